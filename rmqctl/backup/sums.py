"""SHA-256 sums of parts of the log, two parts at a time where the processor can do so."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from mmap import mmap
from typing import Any

import numpy as np

from rmqctl.backup.growing import Copies
from rmqctl.backup.points import Part
from rmqctl.kernel import active
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile
from rmqctl.store.store import Store

LOG = "commitlog"
AT_ONCE = 2
"""Maximum number of ranges that are hashed together."""
_READ, _BLOCK = 4 << 20, 64
"""Number of bytes that are read or mapped at once; size of a block of SHA-256."""
_FIRST = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB,
          0x5BE0CD19)
"""State of SHA-256 before the first block."""
_of_thread = threading.local()
"""The buffers of each thread that hashes: reading into new memory would take longer."""

Range = tuple[FileSource, int, int]
"""A file, and the positions ``[start, end)`` of the bytes to hash."""


def relative(view: Store, file: StoreFile) -> str:
    """Return the path of a log file in the copy; all folders of a log are merged into one."""
    if file.head:
        return os.path.relpath(file.path, view.root)
    return os.path.join(LOG, file.name)


def summed(view: Store, copies: Copies, parts: Sequence[tuple[StoreFile, int, int]]) -> list[Part]:
    """Return at most `AT_ONCE` parts of log files with the SHA-256 of their copies: the store's
    files may have changed since they were copied. Raises: StoreIOError.
    """
    names = [relative(view, file) for file, _, _ in parts]
    sums = _sums_of([(copies.path(name), start, end)
                     for name, (_, start, end) in zip(names, parts, strict=True)])
    return [Part(name, start, end, digest)
            for name, (_, start, end), digest in zip(names, parts, sums, strict=True)]


def _sums_of(places: Sequence[tuple[str, int, int]]) -> list[str]:
    with ExitStack() as stack:
        return sha256_of([(stack.enter_context(FileSource(path)), start, end)
                          for path, start, end in places])


def sum_of_copy(view: Store, copies: Copies, file: StoreFile, end: int) -> Part:
    """Return the part of a log file before ``end``, with its SHA-256 computed from the copy.
    Raises: StoreIOError.
    """
    name = relative(view, file)
    return Part(name, 0, end, _sums_of([(copies.path(name), 0, end)])[0])


def sha256_of(ranges: Sequence[Range]) -> list[str]:
    """Return the SHA-256 of each range, of at most `AT_ONCE` ranges. Bytes after the end of a file
    are not hashed. Raises: StoreIOError.
    """
    kernel = active()
    if len(ranges) == AT_ONCE and kernel is not None and kernel.SHA256_PAIRS:
        sums = _of_pair(kernel, ranges)
        if sums is not None:
            return sums
    return [_of_one(*place) for place in ranges]


def _of_one(source: FileSource, start: int, end: int) -> str:
    digest, (room, _) = hashlib.sha256(), _rooms()
    for position in range(start, end, _READ):
        part = room[:min(_READ, end - position)]
        digest.update(part[:source.read_into(part, position)])
    return digest.hexdigest()


def _of_pair(kernel: Any, ranges: Sequence[Range]) -> list[str] | None:
    """Hash two ranges in step. Return None if a file is shorter than its range, or if a mapping
    cannot be read.
    """
    states = np.array(_FIRST * 2, np.uint32)
    rooms, sums = _rooms(), ["", ""]
    positions = [start for _, start, _ in ranges]
    while not all(sums):
        # The next bytes of each range; after the last follows the padding of SHA-256.
        data, blocks, ended = [*rooms], [0, 0], []
        for number, (source, start, end) in enumerate(ranges):
            if sums[number]:
                continue
            size = min(_READ, end - positions[number])
            mapped = source.window(positions[number], size) if size == _READ else None
            if mapped is not None:
                data[number] = mapped
            elif source.read_into(rooms[number][:size], positions[number]) != size:
                return None
            positions[number] += size
            if size < _READ:
                size = _pad(rooms[number], size, end - start)
                ended.append(number)
            blocks[number] = size // _BLOCK
        # Hash them together, then what is longer alone.
        both = min(blocks)
        if not kernel.sha256_pair(states, *data, both):
            return None
        for number, more in enumerate(blocks):
            state = states[8 * number:8 * number + 8]
            if more > both:
                alone, rest = np.tile(state, 2), data[number][both * _BLOCK:]
                if not kernel.sha256_pair(alone, rest, rest, more - both):
                    return None
                state[:] = alone[:8]
            if number in ended:
                sums[number] = state.astype(">u4").tobytes().hex()
    return sums


def _pad(room: memoryview, size: int, total: int) -> int:
    """Write the padding of SHA-256 after the last ``size`` bytes of ``total``; return the size with
    it.
    """
    padded = (size + 9 + _BLOCK - 1) // _BLOCK * _BLOCK
    room[size:padded] = b"\x80" + bytes(padded - size - 9) + (8 * total).to_bytes(8, "big")
    return padded


def _rooms() -> tuple[memoryview, memoryview]:
    """Return the buffers of this thread."""
    rooms: tuple[memoryview, memoryview] | None = getattr(_of_thread, "rooms", None)
    if rooms is None:  # each begins a page: reading to another place takes several times as long
        first, second = (memoryview(mmap(-1, _READ + 2 * _BLOCK)) for _ in range(2))
        rooms = _of_thread.rooms = first, second
    return rooms
