"""Write patch files with the old and the new bytes of a patch, and copy these bytes to the target.

A patch file contains the bytes of all spans of the patch, concatenated. Zeros are holes, if the
file system supports holes, so a patch that zeroes a gigabyte takes no space.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Literal

from rmqctl.errors import StoreIOError
from rmqctl.files.durable import FILE_MODE, failed, open_file, sync, write_all
from rmqctl.files.sparse import BLOCK
from rmqctl.scan.holes import data_ranges
from rmqctl.scan.overlay import OverlayPiece

_ZEROS = bytes(BLOCK)
Spans = tuple[tuple[int, int], ...]
"""(position, size) of the ranges of a target that a patch overwrites, ascending and not
overlapping.
"""
FileState = Literal["old", "new", "between", "other"]


def write_pieces(path: str, pieces: Iterable[OverlayPiece], mode: int = FILE_MODE) -> None:
    """Write the patch file with the new bytes of a patch. Raises: StoreIOError."""
    fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, "make", mode)
    try:
        base = 0
        for piece in pieces:
            for start, data in piece.parts:
                write_all(fd, data, base + start, path)
            base += piece.size
        set_length(fd, base, path)
        sync(fd, path, whole=True)
    finally:
        os.close(fd)


def save_spans(path: str, source: int, name: str, spans: Spans) -> None:
    """Write the patch file with the present bytes of a target. Raises: StoreIOError.

    The patch file gets the target's mode. Bytes after the end of the target count as zeros.
    ``source``: the target's file descriptor; ``name``: its path.
    """
    about = os.fstat(source)
    fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, "make",
                   stat.S_IMODE(about.st_mode) | stat.S_IRUSR | stat.S_IWUSR)
    try:
        length, base = about.st_size, 0
        for position, size in spans:
            for low, high in data_ranges(source, position, min(position + size, length)):
                _copy(source, low, high, name, fd, base + low - position, path)
            base += size
        set_length(fd, base, path)
        sync(fd, path, whole=True)
    finally:
        os.close(fd)


def lay(target: int, name: str, source_path: str, spans: Spans) -> None:
    """Write the differing bytes of a patch file over the target. Raises: StoreIOError."""
    source = open_file(source_path, os.O_RDONLY)
    try:
        base = 0
        for position, size in spans:
            done = base
            for low, high in data_ranges(source, base, base + size):
                _wipe(target, position + done - base, position + low - base, name)
                for place, data in _blocks(source, low, high, source_path):
                    to = position + place - base
                    if os.pread(target, len(data), to) != data:
                        write_all(target, data, to, name)
                done = high
            _wipe(target, position + done - base, position + size, name)
            base += size
    except OSError as error:
        raise failed(error, name, "read") from None
    finally:
        os.close(source)


def compare(target: int, name: str, new: str, old: str, spans: Spans) -> FileState:
    """Return whether the target has the old bytes of a patch, the new bytes, a mixture of old and
    new (``between``) or ``other`` bytes.

    Bytes after the end of the target count as zeros. Raises: StoreIOError.
    """
    import numpy as np

    is_old = is_new = True
    first, second = open_file(new, os.O_RDONLY), open_file(old, os.O_RDONLY)
    try:
        base = 0
        # Block by block: old, new, a mixture of both, or something else.
        for position, size in spans:
            for start in range(0, size, BLOCK):
                count = min(BLOCK, size - start)
                wanted = os.pread(first, count, base + start)
                before = os.pread(second, count, base + start)
                if len(wanted) != count or len(before) != count:
                    raise StoreIOError(f"{new}: bytes kept by the repair are missing")
                current = os.pread(target, count, position + start).ljust(count, b"\0")
                if current == wanted:
                    is_old = is_old and before == wanted
                elif current == before:
                    is_new = False
                else:
                    is_old = is_new = False
                    present, new_bytes, old_bytes = (np.frombuffer(data, np.uint8)
                                       for data in (current, wanted, before))
                    if not ((present == new_bytes) | (present == old_bytes)).all():
                        return "other"
            base += size
    except OSError as error:
        raise failed(error, name, "read") from None
    finally:
        os.close(first)
        os.close(second)
    return "new" if is_new else "old" if is_old else "between"


def set_length(fd: int, size: int, path: str) -> None:
    """Set the length of a file. Raises: StoreIOError.

    The length of a target changes only if a patch reaches beyond the end of the target. So an undo
    removes only bytes that the repair wrote, and zeros.
    """
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        raise failed(error, path, "set the length of") from None


def _blocks(fd: int, low: int, high: int, path: str) -> Iterator[tuple[int, bytes]]:
    while low < high:
        try:
            data = os.pread(fd, min(BLOCK, high - low), low)
        except OSError as error:
            raise failed(error, path, "read") from None
        if not data:
            raise StoreIOError(f"{path}: was truncated while it was read")
        yield low, data
        low += len(data)


def _copy(source: int, low: int, high: int, name: str, target: int, to: int, path: str) -> None:
    """Copy bytes ``[low, high)`` into a new file, leaving blocks of zeros as holes."""
    for place, data in _blocks(source, low, high, name):
        if data.count(0) != len(data):
            write_all(target, data, to + place - low, path)


def _wipe(fd: int, low: int, high: int, path: str) -> None:
    for start, end in data_ranges(fd, low, min(high, os.fstat(fd).st_size)):
        for place, data in _blocks(fd, start, end, path):
            if data.count(0) != len(data):
                write_all(fd, _ZEROS[:len(data)], place, path)
