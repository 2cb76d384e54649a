"""The golden sets of other layouts (`tests/golden-layouts`): RocksDB, DLedger, controller mode."""

from __future__ import annotations

import tarfile
import tempfile
from functools import cache
from pathlib import Path

from tests.support.archives import unpack
from tests.support.snapshot import copy_tree

FOLDER = Path(__file__).parents[1] / "golden-layouts"
_unpacked = tempfile.TemporaryDirectory(prefix="rmqctl-layouts-")  # goes with the process


@cache
def layout_set(name: str) -> Path:
    """The folder of a set (``5.3.3/controller``), to be read only; unpacked once per process."""
    version, kind = name.split("/")
    base = Path(_unpacked.name)
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        unpack(archive, base / version, "fully_trusted")
    return base / version / kind


def layout_copy(name: str, folder: Path, state: str = "store") -> Path:
    """A copy of a store of a set, to be changed."""
    return copy_tree(layout_set(name) / state, folder / state)
