"""Comparison of every message of the log with its consume queue entry, by column.

This is the forward direction. Entries are compared by position (queue offset), queue by queue, for
many messages at a time. Matching entries are recorded only as intervals. Differences are recorded
one by one, up to a limit, and `reconcile` explains them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from rmqctl import vfs
from rmqctl.checks.verify.queue.ext_units import FOLDER, ExtReader
from rmqctl.errors import StoreIOError
from rmqctl.formats.local import consume_queue_ext as ext
from rmqctl.formats.local import properties as props
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, distinct
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.queue.search import begun_at
from rmqctl.store.store import Store

QueueKey = tuple[str, int]
MAX_LISTED = 100_000
"""Maximum number of differences that one run records one by one; any others are only counted."""
TIME = "store_timestamp"
"""Name of the field with the store time, in entries that have such a field."""
_BLOCK = 1 << 17
"""Number of messages that are collected before queues are compared, so that each read covers many
entries of a queue.
"""
_BACK, _MAX_BACK = 1 << 12, 1 << 21
"""Initial and maximum number of earlier entries that are searched for the entry of a message."""


class Claim(NamedTuple):
    """A message whose expected entry does not exist. Most fields belong to the expected entry.

    ``row``: physical offset, size and tags code of the actual entry at this queue offset (None: no
    entry).
    """

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    row: tuple[int, int, int] | None


@dataclass(slots=True)
class QueueTally:
    """Results for the messages of one queue. Intervals are half-open, ascending and merged.

    * ``skipped``: queue offsets of a light queue that a broker assigned to messages without
      dispatching them
    * ``shifted``: runs of messages whose entries are too early in the queue
    """

    messages: int = 0
    covered: list[tuple[int, int]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    wrong_tags: list[Claim] = field(default_factory=list)
    odd_tags: list[Claim] = field(default_factory=list)
    wrong_times: int = 0
    """Number of entries in RocksDB whose store time differs from that of their message."""
    first_wrong_time: tuple[int, int, int] | None = None
    """The first entry in RocksDB with a wrong store time.

    The values are its queue offset, its store time (ms), and the store time of its message.
    """
    agreeing: int = 0
    unlisted: int = 0
    first_phy: int = 1 << 62
    next_offset: int = 0
    shifted: list[Shift] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    without_queue: list[Claim] = field(default_factory=list)
    """If the queue has no files: its first intact messages. All others are counted in ``unnoted``.
    """
    unnoted: int = 0
    begun: int | None = None
    """Physical offset of the first message of the queue (`begun_at`), once determined."""
    earlier: int = 0
    """Number of messages of an earlier queue with the same name."""

    @property
    def end(self) -> int:
        """Return the queue offset after the last message."""
        return max(self.next_offset, self.covered[-1][1] if self.covered else 0)

    def cover(self, start: int, end: int) -> None:
        if self.covered and self.covered[-1][1] == start:
            self.covered[-1] = self.covered[-1][0], end
        else:
            self.covered.append((start, end))

    def merge(self, other: QueueTally) -> None:
        """Merge the tally of a later range."""
        self.earlier += other.earlier
        self.begun = self.begun or other.begun
        self.messages += other.messages
        for start, end in other.covered:
            self.cover(start, end)
        self.claims += other.claims
        self.wrong_tags += other.wrong_tags
        self.wrong_times += other.wrong_times
        self.first_wrong_time = self.first_wrong_time or other.first_wrong_time
        self.odd_tags += other.odd_tags
        self.agreeing += other.agreeing
        self.unlisted += other.unlisted
        self.shifted += other.shifted
        self.skipped += other.skipped
        self.without_queue += other.without_queue
        self.unnoted += other.unnoted
        self.first_phy = min(self.first_phy, other.first_phy)
        self.next_offset = max(self.next_offset, other.next_offset)


def merged(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the intervals sorted, with overlapping and touching ones joined."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((start, end))
    return out


def uncovered(tally: QueueTally | None, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the intervals of queue offsets in ``[first, end)`` whose entries match no message."""
    position = first
    for start, stop in merged(tally.covered if tally else []):
        if stop <= position:
            continue
        if start >= end:
            break
        if start > position:
            yield position, start
        position = stop
    if position < end:
        yield position, end



@dataclass(slots=True)
class ExpectedRows:
    """Expected entries as columns: queue number, queue offset, physical offset, size, tags code.

    ``damaged`` marks the entries of records with a damaged body, because other fields of these
    records may be damaged as well.
    """

    queue: Array
    offset: Array
    physical: Array
    size: Array
    tags: Array
    damaged: Array
    store_time: Array

    def __len__(self) -> int:
        return len(self.queue)

    def take(self, which: Any) -> ExpectedRows:
        return ExpectedRows(self.queue[which], self.offset[which], self.physical[which],
                            self.size[which], self.tags[which], self.damaged[which],
                            self.store_time[which])


class ExpectedEntries:
    """Collection of expected entries, which are compared with the consume queues in blocks."""

    def __init__(self, store: Store, ends: dict[QueueKey, int]) -> None:
        self.store, self.ends = store, ends
        self.tallies: dict[QueueKey, QueueTally] = {}
        self.keys: list[QueueKey] = []
        self._numbers: dict[QueueKey, int] = {}
        self._pending: list[ExpectedRows] = []
        self._count = 0
        self._listed = self._noted = 0
        self._ext: dict[QueueKey, ExtReader] = {}

    @property
    def has_claims(self) -> bool:
        """Return whether a message with another entry, or none, is listed."""
        return self._listed > 0

    def number(self, key: QueueKey) -> int:
        """Return the number that represents a queue in `ExpectedRows.queue`."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.keys)
            self.keys.append(key)
        return number

    def add(self, rows: ExpectedRows) -> None:
        if len(rows):
            self._pending.append(rows)
            self._count += len(rows)
            if self._count >= _BLOCK:
                self.flush()

    def skip(self, number: int, offset: int) -> None:
        """Record a queue offset whose message may or may not have an entry.

        The entry itself is added like other entries, but marked as ``damaged`` and not counted.
        """
        tally = self._tally(self.keys[number])
        if len(tally.skipped) < MAX_LISTED:
            tally.skipped.append(offset)
        tally.messages -= 1

    def agree(self, number: int, least: int, behind: int, physical: int, intact: int) -> None:
        """Record that the messages at queue offsets ``[least, behind)`` have matching entries.

        ``physical``: physical offset of the first message.
        ``intact``: queue offset after the last intact message.
        """
        tally, count = self._tally(self.keys[number]), behind - least
        tally.messages += count
        tally.agreeing += count
        tally.next_offset = max(tally.next_offset, intact)
        tally.first_phy = min(tally.first_phy, physical)
        tally.cover(least, behind)

    def flush(self) -> None:
        if not self._pending:
            return
        columns = zip(*((r.queue, r.offset, r.physical, r.size, r.tags, r.damaged, r.store_time)
                        for r in self._pending), strict=True)
        rows = ExpectedRows(*(np.concatenate(column) for column in columns))
        self._pending, self._count = [], 0
        # Small numbers: numpy sorts 16-bit integers by radix, many times faster.
        small = len(self.keys) < 1 << 16
        order = np.argsort(rows.queue.astype(np.uint16) if small else rows.queue, kind="stable")
        rows = rows.take(order)
        borders = np.flatnonzero(np.diff(rows.queue)) + 1
        starts = [0, *borders.tolist()]
        ends = [*borders.tolist(), len(rows)]
        for start, end in zip(starts, ends, strict=True):
            self._compare(self.keys[int(rows.queue[start])], rows.take(slice(start, end)))

    def _tally(self, key: QueueKey) -> QueueTally:
        return self.tallies.setdefault(key, QueueTally())

    def _compare(self, key: QueueKey, rows: ExpectedRows) -> None:
        tally = self._tally(key)
        tally.messages += len(rows)
        sound, physical = rows.offset[~rows.damaged], rows.physical[~rows.damaged]
        tally.first_phy = min(tally.first_phy, int(rows.physical.min()))
        queue = self.store.queues.find(*key)
        if queue is None or not queue.exists:
            self._note(tally, rows)  # the tally's number of messages is enough for findings
        else:
            self._compare_inside(queue, tally, rows)
        if tally.begun:
            sound = sound[physical >= tally.begun]
        if len(sound):
            tally.next_offset = max(tally.next_offset, int(sound.max()) + 1)

    def _compare_inside(self, queue: ConsumeQueue, tally: QueueTally, rows: ExpectedRows) -> None:
        key = queue.topic, queue.queue_id
        low, end = queue.first_index, self.ends.get(key)
        high = max(queue.disk_end if end is None else end, low)
        inside = (rows.offset >= low) & (rows.offset < high)
        if not inside.all():
            self._keep(queue, tally, rows, None, ~inside)
            rows = rows.take(inside)
        if len(rows):
            for part in _spread(rows):
                self._compare_rows(queue, tally, part)

    def _note(self, tally: QueueTally, rows: ExpectedRows) -> None:
        sound = np.flatnonzero(~rows.damaged)
        room = max(0, MAX_LISTED - self._noted)
        tally.without_queue += [_claim(rows, None, row) for row in sound[:room].tolist()]
        tally.unnoted += len(sound[room:])
        self._noted += len(sound[:room])

    def _compare_rows(self, queue: ConsumeQueue, tally: QueueTally, rows: ExpectedRows) -> None:
        """Compare the expected ``rows`` of one queue with the entries at their queue offsets."""
        # One read for all of them; the faults of an unreadable queue are reported elsewhere.
        first = int(rows.offset.min())
        try:
            units = queue.timed_units(first, int(rows.offset.max()) + 1 - first)
        except StoreIOError:
            units = queue.units(0, 0)

        # Messages beyond the queue's last entry have none.
        number = rows.offset - first
        has_row = number < len(units)
        if not has_row.all():
            self._keep(queue, tally, rows, None, ~has_row)
            rows, number = rows.take(has_row), number[has_row]
        units = units[number]

        # An entry that points elsewhere is kept to be explained; the others are covered.
        leads_here = (units["physical_offset"] == rows.physical) & (units["size"] == rows.size)
        if not leads_here.all():
            self._keep(queue, tally, rows, units, ~leads_here)
            rows, units = rows.take(leads_here), units[leads_here]
        _cover(tally, rows.offset)
        if TIME in (units.dtype.names or ()):
            _compare_times(tally, rows, units[TIME])

        # Their tags codes may still differ.
        differs = units["tags_code"] != rows.tags
        tally.agreeing += len(rows) - int(differs.sum())
        if differs.any():
            self._tags(queue, tally, rows.take(differs), units[differs])

    def _tags(self, queue: ConsumeQueue, tally: QueueTally, rows: ExpectedRows,
              units: Array) -> None:
        """Check tags codes that differ from the hash of the tags; this is legal for delay times and
        extension addresses.
        """
        code = units["tags_code"].astype(np.int64)
        wrong: Array = ~rows.damaged
        if queue.topic == props.SCHEDULE_TOPIC:
            # A broker with its own delay table: whole seconds, but different ones. Assumed only if
            # no entry at all agrees with the default table.
            ahead = code - rows.store_time
            other = wrong & (ahead >= 0) & (ahead % 1000 == 0)
            self._keep_tags(tally.odd_tags, tally, rows, units, other)
            wrong &= ~other
        linked = code <= ext.MAX_ADDRESS
        if linked.any():
            wrong[linked] &= ~self._units_agree(queue, rows.take(linked), code[linked])
        self._keep_tags(tally.wrong_tags, tally, rows, units, wrong)

    def _units_agree(self, queue: ConsumeQueue, rows: ExpectedRows, address: Array) -> Array:
        """Return a boolean array: whether the extension unit at each address has the tags code and
        store time of the message.
        """
        if vfs.lacks(self.store.root, FOLDER):
            return np.ones(len(rows), bool)
        key = queue.topic, queue.queue_id
        if key not in self._ext:
            self._ext[key] = ExtReader(self.store, *key)
        reader = self._ext[key]
        out: Array = np.zeros(len(rows), bool)
        for index, unit_address in enumerate(address.tolist()):
            unit = reader.unit(unit_address)
            out[index] = unit is not None and unit.tags_code == rows.tags[index] and (
                unit.store_timestamp == rows.store_time[index])
        reader.close()
        return out

    def _keep(self, queue: ConsumeQueue, tally: QueueTally, rows: ExpectedRows, units: Array | None,
              which: Array) -> None:
        which = which & ~rows.damaged
        if which.any():
            which[np.flatnonzero(which)] = ~self._shifted(queue, tally, rows.take(which))
        if which.any():
            which &= ~self._earlier(queue, tally, rows.physical, which)
        for index in np.flatnonzero(which).tolist():
            if self._listed >= MAX_LISTED:
                tally.unlisted += 1
                continue
            self._listed += 1
            tally.claims.append(_claim(rows, units, index))

    def _earlier(self, queue: ConsumeQueue, tally: QueueTally, physical: Array,
                 which: Array) -> Array:
        """Return a boolean array: whether each message belongs to an earlier queue of this name.

        Such a message is before the first message of this queue.
        """
        if tally.begun is None:
            tally.begun = begun_at(queue, self.store.log)
        earlier: Array = which & (physical < tally.begun)
        tally.earlier += int(np.count_nonzero(earlier))
        return earlier

    def _shifted(self, queue: ConsumeQueue, tally: QueueTally, rows: ExpectedRows) -> Array:
        """Return a boolean array: whether each message has an entry at an earlier position in its
        queue.
        """
        log_end = self.ends.get((queue.topic, queue.queue_id))
        end = queue.disk_end if log_end is None else log_end
        ahead, by, units = rows_ahead(queue, end, rows.offset, rows.physical, rows.size)
        if ahead.any():
            moved = rows.take(ahead)
            tally.shifted += shifts(moved.offset, by)
            moved.offset = moved.offset - by
            differs = units["tags_code"] != moved.tags
            if differs.any():
                self._tags(queue, tally, moved.take(differs), units[differs])
        return ahead

    def _keep_tags(self, into: list[Claim], tally: QueueTally, rows: ExpectedRows, units: Array,
                   which: Array) -> None:
        for index in np.flatnonzero(which).tolist():
            if self._listed >= MAX_LISTED:
                tally.unlisted += 1
                continue
            self._listed += 1
            into.append(_claim(rows, units, index))


def _claim(rows: ExpectedRows, units: Array | None, index: int) -> Claim:
    row = None if units is None else (
        int(units["physical_offset"][index]), int(units["size"][index]),
        int(units["tags_code"][index]))
    return Claim(int(rows.offset[index]), int(rows.physical[index]), int(rows.size[index]),
                 int(rows.tags[index]), row)


def _cover(tally: QueueTally, offsets: Array) -> None:
    if not len(offsets):
        return
    if len(offsets) > 1 and not (np.diff(offsets) == 1).all():
        offsets = distinct(offsets)
        breaks = np.flatnonzero(np.diff(offsets) != 1)
        starts = offsets[np.append(0, breaks + 1)]
        ends = offsets[np.append(breaks, len(offsets) - 1)] + 1
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            tally.cover(start, end)
        return
    tally.cover(int(offsets[0]), int(offsets[-1]) + 1)


def _spread(rows: ExpectedRows) -> list[ExpectedRows]:
    """Split expected entries into groups with nearby queue offsets, so that no read consists mostly
    of unneeded entries.
    """
    span = int(rows.offset.max() - rows.offset.min())
    if span <= 4 * len(rows) + 4096:
        return [rows]
    rows = rows.take(np.argsort(rows.offset, kind="stable"))
    cuts = np.flatnonzero(np.diff(rows.offset) > 4096) + 1
    return [rows.take(part) for part in np.split(np.arange(len(rows)), cuts)]


def _compare_times(tally: QueueTally, rows: ExpectedRows, noted: Array) -> None:
    wrong = np.flatnonzero((noted != rows.store_time) & ~rows.damaged)
    if len(wrong):
        at = int(wrong[0])
        tally.wrong_times += len(wrong)
        tally.first_wrong_time = tally.first_wrong_time or (
            int(rows.offset[at]), int(noted[at]), int(rows.store_time[at]))


class Shift(NamedTuple):
    """``length`` consecutive messages of a queue, from queue offset ``first`` on, whose entries are
    ``by`` positions too early.
    """

    first: int
    length: int
    by: int


def shifts(offset: Array, by: Array) -> Iterator[Shift]:
    """Yield the runs of messages with consecutive queue offsets and the same shift ``by``."""
    borders = np.flatnonzero((np.diff(by) != 0) | (np.diff(offset) != 1)) + 1
    for start, end in zip([0, *borders.tolist()], [*borders.tolist(), len(by)], strict=True):
        yield Shift(int(offset[start]), end - start, int(by[start]))


def rows_ahead(queue: ConsumeQueue, end: int, offset: Array, physical: Array,
               size: Array) -> tuple[Array, Array, Array]:
    """Search a queue for entries that are at lower queue offsets than their messages.

    Return three arrays:

    * for each message: whether it has such an entry
    * for each found entry: the number of positions by which it is too early
    * the found entries

    ``end``: the queue offset at which the queue ends.
    """
    begin, units = _ahead(queue, end, offset, physical)
    none: Array = np.zeros(len(offset), bool)
    if not len(units):
        return none, offset[:0], units
    order = np.argsort(units["physical_offset"], kind="stable")
    row = order[np.minimum(np.searchsorted(units["physical_offset"][order], physical),
                           len(order) - 1)]
    by = offset - begin - row
    ahead: Array = (units["physical_offset"][row] == physical) & (units["size"][row] == size) & (
        by > 0)
    return ahead, by[ahead], units[row[ahead]]


def _ahead(queue: ConsumeQueue, end: int, offset: Array, physical: Array) -> tuple[int, Array]:
    """Return the part of a queue in which to search for entries that are too early.

    The result is the queue offset of the part's first entry, and all entries of the part. The part
    begins before the queue offset of the first message.
    """
    first, end = int(offset.min()), min(int(offset.max()) + 1, end)
    least, back = int(physical.min()), _BACK
    while True:
        begin = max(queue.first_index, min(first, end) - back)
        try:
            units = queue.units(begin, max(0, end - begin))
        except StoreIOError:
            return begin, queue.units(0, 0)
        if (begin == queue.first_index or back >= _MAX_BACK or not len(units)
                or units["physical_offset"][0] <= least):
            return begin, units
        back *= 8
