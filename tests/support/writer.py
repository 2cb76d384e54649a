"""Plays a broker: writes the log of a golden store again, byte by byte if need be.

Files are made full size and filled front to back, as a broker does with its mapped files; bytes
are handed to the system at once, so a reader in another process sees every state in between.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of the log that belong together: a message, or the blank that closes a file."""

    offset: int
    raw: bytes
    is_message: bool


def parts_of(source: Path) -> list[Part]:
    """What stands in an undamaged commitlog folder, in order."""
    return [part for path in sorted(source.iterdir()) for part in _parts(path)]


def _parts(path: Path) -> Iterator[Part]:
    data, base, at = path.read_bytes(), int(path.name), 0
    while at + 8 <= len(data):
        size, magic = int.from_bytes(data[at:at + 4]), data[at + 4:at + 8]
        if magic == b"\xcb\xd4\x31\x94":
            yield Part(base + at, data[at:at + 8], False)
            return
        if not size:
            return
        yield Part(base + at, data[at:at + size], True)
        at += size


class Writer:
    """Writes a log into ``root/commitlog`` in files of ``file_size`` bytes."""

    def __init__(self, root: Path, file_size: int) -> None:
        self.folder = root / "commitlog"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file_size = file_size

    def path(self, offset: int) -> Path:
        return self.folder / f"{offset - offset % self.file_size:020d}"

    def make(self, offset: int) -> Path:
        """The file for ``offset``, made full size and empty if it is not there."""
        path = self.path(offset)
        if not path.exists():
            path.touch()
            os.truncate(path, self.file_size)
        return path

    def write(self, offset: int, raw: bytes) -> None:
        """Put bytes into the log; they must fit into one file."""
        descriptor = os.open(self.make(offset), os.O_WRONLY)
        try:
            assert os.pwrite(descriptor, raw, offset % self.file_size) == len(raw)
        finally:
            os.close(descriptor)

    def append(self, part: Part, *, cuts: tuple[int, ...] = ()) -> Iterator[int]:
        """Write a part in pieces that end at ``cuts``; yields after each, with the bytes there."""
        at = 0
        for end in (*sorted(cut for cut in cuts if 0 < cut < len(part.raw)), len(part.raw)):
            self.write(part.offset + at, part.raw[at:end])
            at = end
            yield at
