"""Find, with the index and the consume queues, the ranges of the log that may contain a message
with a key.

A message is skipped only if all of these conditions hold:

* A consume queue entry and an index entry point exactly to its offset.
* No index entry for that offset has the hash of the key.
* The adjacent index entries are in the order of the log.

All other bytes are read, including damage and messages that are not yet in the index.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from rmqctl.formats.local.index_file import key_hash
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.scan.frames import Array
from rmqctl.scan.source import Witness
from rmqctl.store.index.entries import AllIndexEntries, written
from rmqctl.store.query.conditions import is_plain
from rmqctl.store.store import Store

_BLOCK = 1 << 16
_COSTS = 160
"""Cost of checking an index entry, as the number of bytes of the log that can be read in the
same time."""
_ALONE = 1000
"""Cost of reading a single message, as the number of bytes of the log that can be read in the
same time."""
_LAST = np.iinfo(np.int64).max - 1
_NEAR = 1 << 16
"""Two ranges are read as one if at most this many bytes are between them."""


class SkippedRanges:
    """The ranges ``[start, end)`` of the log that certainly contain no message with the key,
    ascending.
    """

    def __init__(self, start: Array, end: Array) -> None:
        self._start, self._end = start, end
        large = end - start > _NEAR
        self._large = start[large], end[large]

    def covers(self, places: Array) -> Array:
        """Return a boolean array: for each physical offset, whether the message at this offset can
        be skipped.
        """
        number = np.searchsorted(self._start, places, "right") - 1
        ends = np.append(self._end, 0)  # after the last stretch, where number is -1
        inside: Array = (number >= 0) & (places < ends[number])
        return inside

    def left(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that must be read."""
        starts, ends = self._large
        some = slice(int(np.searchsorted(ends, start, "right")), int(np.searchsorted(starts, end)))
        for low, high in zip(starts[some].tolist(), ends[some].tolist(), strict=True):
            if low > start:
                yield start, low
            start = high
        if start < end:
            yield start, end


def passed_over(store: Store, topic: str | None, key: str, read: int | None = None
                ) -> SkippedRanges | None:
    """Return the ranges that need not be read to find the messages with a key. Return None if the
    ranges are unknown, or if determining them costs more than reading everything.

    ``topic``: None searches all topics. ``read``: number of messages that would otherwise be read
    one by one; None: the entire log would be scanned.

    Raises: StoreIOError.
    """
    log, layout = store.log, store.layout
    witness = log.files[0].witness if log.files else None
    if witness is None or layout.is_dledger or not store.index.listing.files or not (
            layout.reads("consumequeue")):
        return None
    # The message of a light queue's entry has another topic, which may have no queue here. A text
    # with invalid UTF-8 has another hash than its displayed form.
    topics = {name for name, _ in (*store.queues.readable, *store.queues.batch)}
    if any(name.startswith(LMQ_PREFIX) or not is_plain(name) for name in topics) or (
            not is_plain(key)):
        return None
    hashes = {key_hash(name, key) for name in (topics if topic is None else (topic,))} or {0}
    entries = AllIndexEntries(store)
    try:
        costs = log.size if read is None else read * (
            _ALONE + log.size // max(entries.total, 1))
        return _passed(entries, witness, hashes) if costs > _COSTS * entries.total else None
    finally:
        entries.close()


def _passed(entries: AllIndexEntries, witness: Witness, hashes: Collection[int]) -> SkippedRanges:
    wanted = np.array(sorted(hashes), np.int64)
    stretches: list[tuple[Array, Array]] = []
    open_start: list[Array] = []
    open_end: list[Array] = []
    position, before, last_good = 0, 0, 0
    while position < entries.total:
        block = entries.read(position, _BLOCK + 1)
        if not len(block):
            break
        place = block["physical_offset"].astype(np.int64)
        count = len(block) - 1 if len(block) > _BLOCK else len(block)
        # Entries that are not in the order of the log, together with their neighbors.
        around = np.concatenate(([before], place, place[-1:]))
        odd = ~written(block) | (place < around[:-2]) | (place > around[2:])
        good = np.flatnonzero(~odd)
        number = np.searchsorted(good, np.flatnonzero(odd[:count]))
        sides = (np.concatenate(([last_good], place[good]))[number],
                 np.append(place[good], _LAST)[number])
        open_start.append(np.minimum(*sides))
        open_end.append(np.maximum(*sides) + 1)
        hit = place[:count][_among(block["key_hash"][:count].astype(np.int64), wanted)]
        open_start.append(hit)
        open_end.append(hit + 1)
        # The records that are proved by the entries in order.
        good = good[good < count]
        if len(good):
            stretches.append(_stretches(witness, _distinct(place[good])))
            last_good = int(place[good[-1]])
        before = int(place[count - 1])
        position += count
    # The stretches that the index covers, without those that it leaves open.
    start, end = (np.concatenate(parts) if parts else np.zeros(0, np.int64)
                  for parts in (list(zip(*stretches, strict=True)) or ((), ())))
    return _without(*_united(start, end), *_united(
        np.concatenate([start[:0], *open_start]), np.concatenate([start[:0], *open_end])))


def _stretches(witness: Witness, places: Array) -> tuple[Array, Array]:
    """Return the ranges of the messages at ``places``, if a consume queue entry points to them.

    An entry is ignored as damaged if, with its size, the message would extend beyond the start of
    the next message or beyond another of the offsets.
    """
    first, last = int(places[0]), int(places[-1])
    rows, sizes = witness.rows(first, last + 1)
    fits = np.flatnonzero(np.append(rows[1:] != rows[:-1], True)[:len(rows)])
    rows, sizes = rows[fits], sizes[fits]
    for others in (rows, places):
        number = np.searchsorted(others, rows, "right")
        room = np.append(others, np.iinfo(np.int64).max)[number] - rows
        rows, sizes = rows[sizes <= room], sizes[sizes <= room]
    own = _among(rows, places)
    return _united(rows[own], rows[own] + sizes[own])


def _distinct(places: Array) -> Array:
    if (places[1:] < places[:-1]).any():
        places = np.sort(places)
    distinct: Array = places[np.append(True, places[1:] != places[:-1])]
    return distinct


def _among(values: Array, sorted_ones: Array) -> Array:
    """Return a boolean array: whether each value occurs in the array ``sorted_ones``."""
    number = np.minimum(np.searchsorted(sorted_ones, values), len(sorted_ones) - 1)
    is_among: Array = sorted_ones[number] == values
    return is_among


def _united(start: Array, end: Array) -> tuple[Array, Array]:
    """Return the ranges in ascending order; ranges that touch or overlap are merged."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order]) if len(order) else end
    apart = start[1:] > end[:-1]
    return start[np.append(True, apart)[:len(start)]], end[np.append(apart, True)[:len(end)]]


def _without(start: Array, end: Array, other_start: Array, other_end: Array) -> SkippedRanges:
    """Return the ranges ``[start, end)`` without the ranges ``[other_start, other_end)``. The
    ranges of each list are neither adjacent nor overlapping.
    """
    edges = np.concatenate([start, end, other_start, other_end])
    step = np.concatenate([np.ones(len(start), np.int64), np.full(len(end), -1),
                           np.full(len(other_start), -2), np.full(len(other_end), 2)])
    order = np.argsort(edges, kind="stable")
    edges, level = edges[order], np.cumsum(step[order])
    inside = (level[:-1] == 1) & (edges[1:] > edges[:-1])
    return SkippedRanges(edges[:-1][inside], edges[1:][inside])
