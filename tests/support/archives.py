"""Unpacking the archives that tests use."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path, rules: str = "tar") -> None:
    """Unpack an archive of ours by the rules of tarfile, where Python has them (3.11.4)."""
    if hasattr(tarfile, f"{rules}_filter"):
        archive.extractall(folder, filter=rules)
    else:
        archive.extractall(folder)
