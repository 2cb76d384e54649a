"""A disk that does not give all bytes of a file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest


def worn(monkeypatch: pytest.MonkeyPatch, path: Path, start: int, end: int) -> None:
    """Reads of ``[start, end)`` of a file fail, those that begin before it end there."""
    inode, pread, preadv = path.stat().st_ino, os.pread, os.preadv

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
