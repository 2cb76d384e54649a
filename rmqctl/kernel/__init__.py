"""The optional compiled kernel: loops over the bytes of records.

Reasons: docs/explanation/kernel.md.

If `active` returns None, callers use NumPy instead; both give the same results. The compiled source
is `compiled.pyx`.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from zlib import crc32

from rmqctl.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    import zipfile

VARIABLE = "RMQCTL_KERNEL"
"""Environment variable: ``python`` ignores the compiled kernel, ``compiled`` requires it."""
_CHOICES = ("", "python", "compiled")

_ARCHIVE = Path(__file__).parents[2]
if _ARCHIVE.is_file():
    # The package as Spark's workers receive it. Nothing compiled is loaded from an archive; a
    # kernel for this Python and platform may be beside it, as it was sent, or in an installation.
    __path__ += [str(_ARCHIVE.parent), *(os.path.join(at, "rmqctl", "kernel") for at in sys.path)]


@cache
def active() -> ModuleType | None:
    """Return the compiled kernel, ready to use; None if NumPy is to be used.

    Raises: the errors of `chosen`.
    """
    module = chosen()
    if module is not None:
        module.use_crc(_crc_address())
    return module


def name() -> str:
    """Return ``compiled`` or ``python``, for ``rmqctl --version``.

    Raises: the errors of `chosen`.
    """
    return "python" if chosen() is None else "compiled"


def chosen() -> ModuleType | None:
    """Return the compiled module if environment and installation select it; None otherwise.

    Raises: UsageError for an invalid value of `VARIABLE`, UnsupportedError if `VARIABLE` requires
    the kernel and it is missing.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in _CHOICES:
        raise UsageError(f"{VARIABLE} must be python or compiled, not {wanted!r}")
    if wanted == "python":
        return None
    try:
        return _compiled()
    except UnsupportedError:
        if wanted:
            raise
        return None


def source_digest(folder: Path | zipfile.Path) -> int:
    """Return a digest of the kernel's source as a number. The compiled module contains the same
    number.
    """
    return crc32(b"".join(source.read_bytes() for source in sources(folder)))


def sources(folder: Path | zipfile.Path) -> list[Path | zipfile.Path]:
    """Return the files that the kernel is compiled from."""
    return sorted((file for file in folder.iterdir() if file.name.endswith((".pyx", ".pxi"))),
                  key=lambda file: file.name)


def _folder() -> Path | zipfile.Path:
    if not _ARCHIVE.is_file():
        return Path(__file__).parent
    import zipfile

    return zipfile.Path(str(_ARCHIVE), "rmqctl/kernel/")


def _compiled() -> ModuleType:
    """Import the compiled module.

    Raises: UnsupportedError if it is missing, or was built from other sources.
    """
    try:
        module = import_module("rmqctl.kernel.compiled")
        is_current = module.SOURCE == source_digest(_folder())
    except (ImportError, OSError) as exc:
        raise UnsupportedError(f"{VARIABLE}=compiled, but this installation has no compiled kernel "
                               f"({exc}): install rmqctl where a C compiler is available") from exc
    if not is_current:
        raise UnsupportedError(f"{VARIABLE}=compiled, but {module.__file__} was compiled from "
                               "other sources: reinstall rmqctl")
    return module


def _crc_address() -> int:
    """Return the address of ISA-L's CRC-32 in this process; 0 if its library does not export it."""
    import ctypes

    from isal import isal_zlib

    try:
        function = ctypes.CDLL(isal_zlib.__file__).crc32_gzip_refl
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0
