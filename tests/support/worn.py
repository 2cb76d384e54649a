"""A disk that does not give all bytes of a file."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from rmqctl.scan.source import FileSource


def worn(monkeypatch: pytest.MonkeyPatch, path: Path, start: int, end: int) -> None:
    """Reads of ``[start, end)`` of a file fail, those that begin before it end there. A mapping of
    such bytes raises SIGBUS.
    """
    inode, pread, preadv, window = path.stat().st_ino, os.pread, os.preadv, FileSource.window

    def mapped(source: FileSource, position: int, length: int) -> memoryview | None:
        if os.fstat(source._fd).st_ino != inode or position >= end or position + length <= start:
            return window(source, position, length)
        empty = os.memfd_create("worn")
        os.ftruncate(empty, length)
        pages = memoryview(mmap.mmap(empty, length, access=mmap.ACCESS_READ))
        os.ftruncate(empty, 0)
        os.close(empty)
        return pages

    def room(fd: int, position: int, length: int) -> int:
        if os.fstat(fd).st_ino != inode or position >= end or position + length <= start:
            return length
        if position >= start:
            raise OSError(errno.EIO, "worn out")
        return start - position

    monkeypatch.setattr(os, "pread", lambda fd, length, position: pread(
        fd, room(fd, position, length), position))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, position: preadv(
        fd, [buffers[0][:room(fd, position, len(buffers[0]))]], position))
    monkeypatch.setattr(FileSource, "window", mapped)
