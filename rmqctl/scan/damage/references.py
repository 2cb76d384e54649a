"""Offsets of a log's records according to consume queues and index, by position in a log file."""

from __future__ import annotations

import numpy as np

from rmqctl.errors import FormatError
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.index_file import key_hash, keys_of
from rmqctl.formats.local.message import Record, decode
from rmqctl.scan.frames import Array
from rmqctl.scan.resync import located_size
from rmqctl.scan.source import Source

_WINDOW = 16 << 20
_FIRST_STEP = 16 << 10


class References:
    """Consume queue entries and index entries that point into a source, which is part of a log.
    They are found by position in the source.
    """

    def __init__(self, source: Source) -> None:
        self._source, self._witness = source, source.witness
        self._base = source.base + source.head
        """The physical offset of a record whose frame is at the start of the file."""

    def sizes(self, at: int) -> list[int]:
        """Return the size of the frame at a position according to each consume queue entry that
        points to the position.
        """
        if self._witness is None:
            return []
        physical, size = self._rows(at)
        place = self._base + at
        low, high = np.searchsorted(physical, (place, place + 1)).tolist()
        return [int(length) + self._source.head for length in size[low:high] if length > 0]

    def chain(self, at: int, most: int) -> Array:
        """Return the positions (int64) of consecutive frames according to consume queue entries:
        the first is ``at``, and each begins where the one before ends. The chain ends within
        ``most`` bytes, or before a position with other than one entry.
        """
        if self._witness is None:
            return np.zeros(0, np.int64)
        physical, size = self._rows(at)
        low, high = np.searchsorted(physical, (self._base + at, self._base + at + most)).tolist()
        places, sizes = physical[low:high] - self._base, size[low:high]
        if not len(places) or places[0] != at:
            return places[:0]
        ends = places[:-1] + sizes[:-1] + self._source.head
        broken = np.flatnonzero((ends != places[1:]) | (sizes[:-1] <= 0))
        return places[:int(broken[0]) + 1 if len(broken) else len(places)]

    def _rows(self, at: int) -> tuple[Array, Array]:
        assert self._witness is not None
        return self._witness.rows(*self._window(at))

    def _window(self, at: int) -> tuple[int, int]:
        """Return the range of physical offsets around a position for one query of entries."""
        start = at - at % _WINDOW
        return self._base + start, self._base + min(start + _WINDOW, self._source.size)

    def first(self, start: int, end: int) -> int | None:
        """Return the first record in positions ``[start, end)`` to which a consume queue or index
        entry points.
        """
        if self._witness is None:
            return None
        at = start
        while at < end:
            upto = min(at - at % _WINDOW + _WINDOW, end)
            rows = self._rows(at)
            keys = self._witness.keys(*self._window(at))
            # It is near, mostly, so little is examined first.
            step = _FIRST_STEP
            while at < upto:
                position = self._first_of(rows, keys, at, min(at + step, upto))
                if position is not None:
                    return position
                at, step = min(at + step, upto), step * 4
        return None

    def begins(self, start: int, end: int) -> int | None:
        """Return the first position in ``[start, end)`` to which a consume queue entry points; None
        if no entry does.
        """
        if self._witness is None or start >= end:
            return None
        places, _ = self._witness.rows(self._base + start, self._base + end)
        return int(places[0]) - self._base if len(places) else None

    def _first_of(self, rows: tuple[Array, Array], keys: tuple[Array, Array], start: int,
                  end: int) -> int | None:
        base = self._base
        (physical, size), (places, hashes) = rows, keys
        low, high = np.searchsorted(physical, (base + start, base + end)).tolist()
        sizes: dict[int, set[int]] = {}
        for place, length in zip(physical[low:high].tolist(), size[low:high].tolist(), strict=True):
            sizes.setdefault(place, set()).add(length)
        low, high = np.searchsorted(places, (base + start, base + end)).tolist()
        for place in sorted({*sizes, *places[low:high].tolist()}):
            if self._is_record(place - base, sizes.get(place, set()), places, hashes):
                return int(place - base)
        return None

    def _is_record(self, at: int, sizes: set[int], places: Array, hashes: Array) -> bool:
        """Return whether entries confirm the record at a position. Either a consume queue entry for
        the position has the record's size, or an index entry for it has the hash of one of the
        record's keys.
        """
        size = located_size(self._source, at)
        if size is None:
            return False
        if size - self._source.head in sizes:
            return True
        place = self._base + at
        low, high = np.searchsorted(places, (place, place + 1)).tolist()
        record = self._record(at, size) if low < high else None
        if record is None:
            return False
        return bool(key_hashes(record) & set(hashes[low:high].tolist()))

    def denies(self, at: int, size: int) -> bool:
        """Return whether the queue contains another record instead of the record at a position.

        An older record does not count, because brokers assign some queue offsets twice
        (apache/rocketmq#7689).
        """
        record = self._record(at, size) if self._witness is not None else None
        if record is None or self._witness is None or self._witness.confirms(record) is not False:
            return False
        entry = self._witness.entry_of(record)
        other = None if entry is None else self._witness.record_at(*entry)
        return other is None or not other.crc_ok or (
            other.topic, other.queue_id, other.queue_offset) != (
            record.topic, record.queue_id, record.queue_offset) or (
            other.store_timestamp >= record.store_timestamp)

    def _record(self, at: int, size: int) -> Record | None:
        try:
            return decode(self._source.read(at + self._source.head, size - self._source.head))
        except FormatError:
            return None


def key_hashes(record: Record) -> set[int]:
    """Return the hashes of the keys that a broker puts into its index for a record."""
    values = props.parse(record.properties.decode("utf-8", "replace"))
    topic = record.topic.decode("utf-8", "replace")
    return {key_hash(topic, key) for key in keys_of(values)}
