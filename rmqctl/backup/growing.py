"""Copy files that grow: append the new bytes of a file to its copy. Holes remain holes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field, replace

from rmqctl.backup.points import DamagedRange
from rmqctl.errors import StoreIOError
from rmqctl.files.durable import (
    make_folders,
    move,
    new_file,
    open_file,
    sync,
    wipe,
    write_all,
)
from rmqctl.files.sync_many import sync_many
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.holes import used_end
from rmqctl.scan.source import FileSource

BLOCK, _SECTOR = 4 << 20, 4096


def refuse_shrunk(source: FileSource, position: int = 0) -> None:
    """Raise StoreIOError if a file ends before a position that is to be copied, or is shorter than
    when it was opened.
    """
    if position >= source.size or source.has_shrunk:
        raise StoreIOError(f"{source.name}: shrank while it was copied")


Pace = Callable[[int], None]
"""Callback that is called after each written block, with the size of the block in bytes."""


@dataclass(slots=True)
class Copies:
    """The copies of files that a run writes.

    * ``changed``: files not yet fsynced
    * ``unread``: ranges that the device could not read. They are zeros in the copy, unless an
      earlier run copied them (``kept``).
    * ``written``: bytes written
    * ``older``: folder to which the copy of a replaced file is moved (None: it is removed)
    * ``turn``: held while a thread counts bytes, as several threads may copy
    """

    root: str
    pace: Pace = lambda _bytes: None
    changed: dict[str, None] = field(default_factory=dict)
    unread: list[DamagedRange] = field(default_factory=list)
    written: int = 0
    older: str | None = None
    turn: threading.Lock = field(default_factory=threading.Lock)

    def path(self, relative: str) -> str:
        return os.path.join(self.root, relative)

    def used(self, relative: str) -> int:
        """Return the position after the last nonzero byte of a copy; 0 if it has only zeros or is
        missing.
        """
        try:
            with FileSource(self.path(relative)) as copy:
                return used_end(copy, 0, copy.size)
        except StoreIOError:
            return 0

    def grow(self, source: FileSource, relative: str, start: int, end: int, *,
             compare: bool = False) -> None:
        """Copy ``[start, end)`` of a file whose copy is valid before ``start``, and extend the copy
        to the size of the file. Source ranges that cannot be read are added to ``unread``.

        ``compare``: write only sectors that differ, because the copy already contains most of the
        range.
        Raises: StoreIOError if the copy cannot be written.
        """
        fd = self._open(relative, source.size)
        try:
            position = start
            while position < end and (position := source.next_data(position)) < end:
                refuse_shrunk(source, position)
                length = min(BLOCK, end - position, max(source.next_hole(position) - position, 1))
                copied = 0 if compare else source.copy_to(fd, position, length)
                if not copied:
                    copied = self._copy(fd, source, position, length, relative, compare=compare)
                elif not compare:
                    self._count(copied)
                position += copied
                with self.turn:
                    self.pace(copied)
            if end > start:  # the end of a file that was cut looks like a hole
                refuse_shrunk(source)
        finally:
            os.close(fd)

    def _copy(self, fd: int, source: FileSource, position: int, length: int, relative: str, *,
              compare: bool) -> int:
        first = len(self.unread)
        data = self._read(source, relative, position, length)
        if not compare:
            self._write(fd, data, position, relative)
        elif (old := os.pread(fd, len(data), position)) != data:
            unread = {hole.offset - position: hole for hole in self.unread[first:]}
            for at in range(0, len(data), _SECTOR):
                if old[at:at + _SECTOR] != data[at:at + _SECTOR] and at not in unread:
                    self._write(fd, data[at:at + _SECTOR], position + at, relative)
            self.unread[first:] = [replace(hole, kept=any(old[at:at + hole.length]))
                                   for at, hole in unread.items()]
        return len(data)

    def whole(self, relative: str, data: bytes) -> None:
        """Write a small file, replacing its previous version."""
        from rmqctl.files.durable import replace_file

        make_folders(os.path.dirname(self.path(relative)))
        replace_file(self.path(relative), data)
        self._count(len(data))

    def keep(self, relative: str, data: bytes) -> None:
        """Store a small file, unless its copy is equal. Raises: StoreIOError."""
        try:
            with FileSource(self.path(relative)) as copy:
                if copy.size == len(data) and copy.read(0, copy.size) == data:
                    return
        except StoreIOError:
            pass  # there is no copy, or it cannot be read
        self.whole(relative, data)

    def takes(self, source: str, relative: str) -> bool:
        """Return whether this method has stored the file itself, as a subclass may do. If so, the
        file need not be copied to a folder. Raises: OSError.
        """
        return False

    def remove(self, relative: str) -> None:
        """Remove the copy of a file that the store no longer has."""
        self.changed.pop(relative, None)
        with suppress(FileNotFoundError):
            os.unlink(self.path(relative))

    def replaces(self, relative: str) -> None:
        """Move the copy of a file that the store has replaced or removed to the folder ``older``,
        where earlier points find the copy. Raises: StoreIOError.
        """
        path = self.path(relative)
        if self.older is not None and os.path.exists(path):
            aside = os.path.join(self.older, relative)
            # If `older` already has a copy, a killed run wrote this one, and no point needs it.
            if not os.path.lexists(aside):
                move(path, aside)
                return
        self.remove(relative)

    def force(self, relative: str) -> None:
        """Fsync one copied file early, so that `sync` has less work."""
        path = self.path(relative)
        fd = open_file(path, os.O_RDWR)
        try:
            sync(fd, path)
        finally:
            os.close(fd)

    def sync(self) -> None:
        """Fsync all changed files and their folders. Raises: StoreIOError."""
        self.flush(list(self.changed))
        self.changed.clear()

    def flush(self, names: Sequence[str]) -> None:
        """Fsync copied files and their folders. Raises: StoreIOError."""
        paths = [self.path(name) for name in names]
        sync_many([*paths, *dict.fromkeys(map(os.path.dirname, paths))], self.root)

    def _open(self, relative: str, size: int) -> int:
        path = self.path(relative)
        self.changed[relative] = None
        if not os.path.exists(path):
            make_folders(os.path.dirname(path), durable=False)
            return new_file(path, size)
        fd = open_file(path, os.O_RDWR)
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
        return fd

    def wipe_after(self, relative: str, end: int) -> None:
        """Overwrite with zeros the bytes from ``end`` on that an unfinished run wrote to a copy."""
        path = self.path(relative)
        if os.path.exists(path) and (used := self.used(relative)) > end:
            fd = open_file(path, os.O_RDWR)
            wipe(fd, end, used - end)
            os.close(fd)
            self.changed[relative] = None

    def _write(self, fd: int, data: bytes, position: int, relative: str) -> None:
        write_all(fd, data, position, self.path(relative))
        self._count(len(data))

    def _count(self, size: int) -> None:
        with self.turn:
            self.written += size

    def _read(self, source: FileSource, relative: str, position: int, length: int) -> bytes:
        """Return a range of bytes of the source, with zeros for sectors that the device cannot
        read.
        """
        try:
            data = source.read(position, length)
            if data:
                return data
        except StoreIOError:
            if length > _SECTOR:  # read each sector separately
                return b"".join(
                    self._read(source, relative, at, min(_SECTOR, position + length - at))
                    for at in range(position, position + length, _SECTOR))
        self.unread.append(DamagedRange(relative, position, length, unread=True))
        return bytes(length)
