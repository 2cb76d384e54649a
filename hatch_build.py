"""Compiles the kernel (docs/explanation/kernel.md) into wheels and editable installations, where
that works, and adds the manual pages.

``python hatch_build.py`` compiles it in place; ``--sanitize FOLDER`` makes one that watches its
memory. Without Cython or a C compiler the package is complete, and slower. RMQCTL_KERNEL=python
leaves the kernel out of what is installed, RMQCTL_KERNEL=compiled fails without it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
KERNEL = Path("rmqctl", "kernel")
MANUAL = ROOT / "docs" / "manpages.py"
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g")


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the kernel to a wheel, whose tag then names Python and platform, and manual pages."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        self.scratch = tempfile.mkdtemp()
        if MANUAL.exists():  # not where only the package was copied, as for a container
            folder = Path(self.scratch, "man1")
            try:
                write_manual(folder, self.metadata.version)
                build_data["shared_data"][str(folder)] = "share/man/man1"
            except ImportError as exc:  # built without isolation, where typer is missing
                self.app.display_warning(f"rmqctl is installed without manual pages: {exc}")
        wanted = os.environ.get("RMQCTL_KERNEL", "")
        if wanted == "python":
            return
        try:
            made = compile_kernel(Path(self.scratch))
        except (Exception, SystemExit) as exc:
            if wanted == "compiled":
                raise
            self.app.display_warning(f"rmqctl is installed without its compiled kernel: {exc}")
            return
        if version == "editable":
            install(made, ROOT / KERNEL)
        else:
            build_data["force_include"][str(made)] = str(KERNEL / made.name)
        build_data.update(pure_python=False, infer_tag=True)

    def finalize(self, version: str, build_data: dict[str, Any], artifact: str) -> None:
        if hasattr(self, "scratch"):
            shutil.rmtree(self.scratch, ignore_errors=True)


def write_manual(folder: Path, version: str) -> None:
    """The manual pages of all commands (docs/manpages.py)."""
    sys.path.insert(0, str(ROOT))
    found = importlib.util.spec_from_file_location("manpages", MANUAL)
    assert found is not None
    assert found.loader is not None
    manpages = importlib.util.module_from_spec(found)
    found.loader.exec_module(manpages)
    made = manpages.pages(manpages.reference(), version)
    folder.mkdir()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")


def install(made: Path, folder: Path) -> None:
    """Puts the module there in one step: what runs goes on with the one it has."""
    beside = folder / f".{made.name}.new"
    shutil.copy(made, beside)
    os.replace(beside, folder / made.name)


def compile_kernel(scratch: Path, flags: tuple[str, ...] = ()) -> Path:
    """The compiled module, made in a folder of its own. Any exception where that fails."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    sys.path.insert(0, str(ROOT))
    from rmqctl.kernel import source_digest

    source = source_digest(ROOT / KERNEL)
    extension = Extension("rmqctl.kernel.compiled", [str(ROOT / KERNEL / "compiled.pyx")],
                          define_macros=[("RMQCTL_SOURCE", f"{source}u")],
                          extra_compile_args=["-O3", "-g0", "-fno-tree-slp-vectorize", *flags],
                          extra_link_args=list(flags[:1]))
    made = cythonize([extension], build_dir=str(scratch), quiet=True)
    command = Distribution({"name": "rmqctl", "ext_modules": made}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(scratch / "lib"), str(scratch / "temp")
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath("rmqctl.kernel.compiled")).resolve()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1:2] == ["--sanitize"]:
            install(compile_kernel(Path(folder), SANITIZE), Path(sys.argv[2]))
        else:
            install(compile_kernel(Path(folder)), ROOT / KERNEL)
