"""Copies of erased messages outside the log, and remaining bytes of their bodies.

In a compaction log, or in a tier below the store, a copy is a record like those in the log.
Elsewhere, bytes of an erased body may remain in stale data, in damaged pages, and in files that
repairs keep. These bytes are counted for each file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import field

import numpy as np

from rmqctl.errors import FormatError
from rmqctl.files.durable import STAGING
from rmqctl.formats.local.message import (
    MAGIC_OFFSET,
    MAGIC_PATTERN,
    MIN_SIZE,
    Record,
    decode,
    total_size_at,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.erase.find import MIN_RUN, Traits
from rmqctl.repair.erase.record import is_erased
from rmqctl.scan.frames import Array
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.scan.source import FileSource
from rmqctl.store.store import Store

_NO_MESSAGES = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config",
                "timerwheel", "lock", "checkpoint", "abort", STAGING)
_WORD = 8
_PAGE = 1 << 20
_SHIFT = np.uint64(40)
_TABLE = 1 << 64 - 40
_FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


@dataclass(slots=True)
class OtherCopies:
    """Copies found outside the log: for each file, (position, bytes, record) of each copy."""

    files: dict[str, list[tuple[int, bytes, Record]]] = field(default_factory=dict)


def other_copies(store: Store, traits: Traits) -> OtherCopies:
    """Find the copies of erased messages in all files of the store that are not part of the log.
    Raises: StoreIOError.
    """
    copies = OtherCopies()
    own = {os.path.realpath(file.path) for file in store.log.files}
    for path in files_below(store.root):
        first = os.path.relpath(path, store.root).split(os.sep)[0]
        if first in _NO_MESSAGES or os.path.realpath(path) in own or os.path.islink(path):
            continue
        records = [*_records(path, traits)]
        if records:
            copies.files[path] = records
    return copies


def files_below(root: str) -> Iterator[str]:
    """Yield all files below a folder, sorted within each folder."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        yield from (os.path.join(folder, name) for name in sorted(names)
                    if os.path.isfile(os.path.join(folder, name)))


def _records(path: str, traits: Traits) -> Iterator[tuple[int, bytes, Record]]:
    with FileSource(path) as source:
        base = at = 0
        while base < source.size:
            data = source.read(base, _PAGE)
            for hit in MAGIC_PATTERN.finditer(data):
                start = base + hit.start() - MAGIC_OFFSET
                if start < at:
                    continue
                size = total_size_at(source.read(start, MIN_SIZE))
                if not MIN_SIZE <= size <= min(MAX_RECORD, source.size - start):
                    continue
                raw = source.read(start, size)
                try:
                    record = decode(raw)
                except FormatError:
                    continue
                at = start + size
                if not is_erased(record) and (traits.is_copy(record) or record.topic.decode(
                        "utf-8", "replace") in traits.topics):
                    yield start, raw, record
            base += _PAGE - MAGIC_OFFSET  # a magic may span both pages


# -- what is left ---------------------------------------------------------------------------------


def leftovers(store: Store, traits: Traits, planned: dict[str, list[tuple[int, int]]],
              gone: Iterable[str] = ()) -> dict[str, int]:
    """Return, for each file, the number of bytes of erased bodies that the plan does not erase.

    Only runs of at least `MIN_RUN` bytes count.

    * ``planned``: spans (start, end) of each file that are skipped.
    * ``gone``: files and folders that are moved aside and skipped.
    """
    runs = _BodyRuns(traits.bodies)
    if not len(runs):
        return {}
    away = tuple(os.path.join(path, "") for path in gone)
    left: dict[str, int] = {}
    paths = dict.fromkeys([*files_below(store.root), *(file.path for file in store.log.files)])
    for path in paths:
        if os.path.join(path, "").startswith(away) and away:
            continue
        count = _left_in(path, runs, np.array(sorted(planned.get(path, [])), np.int64))
        if count:
            left[path] = count
    return left


class _BodyRuns:
    """The hashes of all runs of `MIN_RUN` bytes (two words) in a set of bodies."""

    def __init__(self, bodies: Iterable[bytes]) -> None:
        self._words, self._runs = np.zeros(_TABLE, bool), np.zeros(_TABLE, bool)
        bodies = [*bodies]
        self._hashes = np.zeros(sum(len(body) - MIN_RUN + 1 for body in bodies), np.uint64)
        count = 0
        for part in _parts(bodies):
            # Each body begins at a multiple of a word; no run leaves its body.
            data = b"".join(body + bytes(-len(body) % _WORD) for body in part)
            sizes = np.array([len(body) for body in part], np.int64)
            begins = np.cumsum((sizes + _WORD - 1) // _WORD * _WORD)
            begins = np.append(0, begins[:-1])
            inside = np.zeros(len(data), np.int8)
            inside[begins] = 1
            inside[begins + sizes - MIN_RUN + 1] -= 1
            words = _words_of(data)
            hashes = _hashes(words, np.flatnonzero(np.cumsum(inside, dtype=np.int8)))
            hashes = hashes[hashes != 0]
            self._runs[_place(hashes)] = True
            self._hashes[count:count + len(hashes)] = hashes
            count += len(hashes)
            aligned = words[::_WORD]
            self._words[_place(aligned[aligned != 0] * _FACTORS[0])] = True
        self._hashes = self._hashes[:count]
        self._hashes.sort()

    def __len__(self) -> int:
        return len(self._hashes)

    def starts(self, data: bytes, base: int, spans: Array) -> Array:
        """Return the sorted positions at which these runs occur in a file.

        ``data``: the bytes of the file from position ``base`` on. ``spans``: ranges (start, end);
        runs that overlap them are skipped.
        """
        words = _words_of(data)
        # Each run has an aligned word of its body, so only bytes near such a word are hashed.
        is_word = self._words[_place(words * _FACTORS[0])] & (words != 0)
        near = is_word[:len(data) - MIN_RUN + 1].copy()
        for shift in range(1, MIN_RUN - _WORD + 1):
            near |= is_word[shift:shift + len(near)]
        starts = np.flatnonzero(near)
        if len(spans):
            row = np.searchsorted(spans[:, 0], starts + base + MIN_RUN) - 1
            starts = starts[(row < 0) | (spans[row, 1] <= starts + base)]
        hashes = _hashes(words, starts)
        maybe = np.flatnonzero(self._runs[_place(hashes)])
        maybe = maybe[np.argsort(hashes[maybe])]  # in order, they are found faster
        row = np.minimum(np.searchsorted(self._hashes, hashes[maybe]), len(self._hashes) - 1)
        places: Array = np.sort(starts[maybe[self._hashes[row] == hashes[maybe]]]) + base
        return places


def _parts(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the bodies in groups that are concatenated and hashed together."""
    part: list[bytes] = []
    size = 0
    for body in bodies:
        part.append(body)
        size += len(body)
        if size >= _PAGE:
            yield part
            part, size = [], 0
    if part:
        yield part


def _words_of(data: bytes) -> Array:
    """Return, for each position, the 8 bytes from this position on as a number."""
    return np.ndarray(len(data) - _WORD + 1, "<u8", data, 0, (1,))


def _hashes(words: Array, starts: Array) -> Array:
    """Return the hashes of the runs that start at ``starts``; 0 for a run of zeros, which any file
    may contain.
    """
    hashes: Array = words[starts] * _FACTORS[0] ^ words[starts + _WORD] * _FACTORS[1]
    return hashes


def _place(hashes: Array) -> Array:
    places: Array = (hashes >> _SHIFT).astype(np.int64)
    return places


def _left_in(path: str, runs: _BodyRuns, spans: Array) -> int:
    """Return how many bytes of a file, outside ``spans``, belong to any of the ``runs``."""
    count, last = 0, -MIN_RUN
    with FileSource(path) as source:
        at = source.next_data(0)
        while at + MIN_RUN <= source.size:
            starts = runs.starts(source.read(at, _PAGE + MIN_RUN - 1), at, spans)
            # Runs that overlap are counted once.
            count += int(np.minimum(np.diff(starts, prepend=last), MIN_RUN).sum())
            last = int(starts[-1]) if len(starts) else last
            at = source.next_data(at + _PAGE)
    return count
