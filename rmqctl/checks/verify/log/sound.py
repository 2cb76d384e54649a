"""Fast check in the compiled kernel, for messages that agree with everything in the store.

The kernel's loop ends at the first message that does not agree, or that needs another check. The
pass by column (`log_pass`) continues at this message. The messages before it are a *run*. The
totals of a run are added to the results like the totals of a batch.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import numpy as np

from rmqctl.checks.verify.common import BY_QUEUE, unconfirmed_bytes
from rmqctl.checks.verify.context import BadRecord, ComparedStructures, RangeResult
from rmqctl.checks.verify.index.keys import KeyCheck
from rmqctl.checks.verify.log.seals import UnsealedRun
from rmqctl.checks.verify.queue.rows import TIME, ExpectedEntries
from rmqctl.errors import StoreIOError
from rmqctl.formats.local import delay, sysflag
from rmqctl.formats.local.consume_queue import UNIT_SIZE
from rmqctl.scan.derived import NAMES, TopicNumbers, delays, grown
from rmqctl.scan.frames import Array, part_of
from rmqctl.scan.headers import WIDTH
from rmqctl.store.queue.consume_queue import plain_units
from rmqctl.store.store import Store

_ROWS, _ENTRIES, _TIMED = 1, 2, 4
_UNITS = 1 << 20
"""Maximum number of consume queue entries in memory."""
_MIN_READ, _MAX_READ = 64, 1 << 13
"""Minimum and maximum number of entries of a queue that are read at once."""
_ENTRIES_HELD = 1 << 15
_MAX_QUEUE_ID = 1 << 12
"""First queue id that the kernel does not check; such queues are checked by column."""
_INTERVALS = 1 << 12
_BAD = _EXTRA = 1 << 12
_SHORT = 256
"""Minimum number of messages in a run after which the kernel begins another run. After a shorter
run, messages are checked by column, which costs less than ending the run.
"""


class MappingError(Exception):
    """A mapping of a log file that cannot be read any more: the file became shorter, or the disk is
    faulty.
    """


class SoundPass:
    """Input of the kernel, and the messages of the current run, which are not counted yet."""

    def __init__(self, kernel: Any, store: Store, wanted: ComparedStructures, rows: ExpectedEntries,
                 batched: set[str]) -> None:
        self._kernel, self._store, self._wanted, self._rows = kernel, store, wanted, rows
        self._at = {name: number for number, name in enumerate(kernel.SOUND_STATE)}
        self._ends = dict(enumerate(kernel.SOUND_ENDS))
        self._state: Array = np.zeros(len(self._at), np.int64)
        self._state[self._at["first_v2"]] = -1
        self._heads: Array = np.zeros((4, WIDTH), np.int64)
        # The tables of topics and queues, which grow with each new one.
        self._topics = TopicNumbers(batched)
        self._cells: Array = np.zeros(0, np.int32)
        self._used_cells = 0
        self._queues: Array = np.zeros((0, 7), np.int64)
        self._intervals: Array = np.zeros((_INTERVALS, 5), np.int64)
        self._bad: Array = np.zeros((_BAD, 7), np.int64)
        self._extra: Array = np.zeros((_EXTRA, 3), np.int64)
        # Their units, and the index entries, that are in memory.
        self._units: Array = np.zeros(0, np.uint8)
        self._times: Array = np.zeros(0, np.int64)
        self._taken = 0
        self._timed = store.layout.consumequeue == "rocksdb"
        self._keys: KeyCheck | None = None
        self._entries: Array = np.zeros(0, np.uint8)
        self._delays = delays(delay.DEFAULT_LEVELS)

    def start(self, keys: KeyCheck | None) -> None:
        self._keys = keys

    @cached_property
    def _of_index(self) -> tuple[Array, Array]:
        """Return two arrays about the index files.

        * for each file, the number of entries in all earlier files, followed by the number of
          entries in all files
        * the begin time of each file
        """
        if self._keys is None:
            return np.zeros(1, np.int64), np.zeros(0, np.int64)
        return np.array(self._keys.entries.starts, np.int64), self._keys.begins

    @property
    def waiting(self) -> int:
        """Return the number of skipped messages that are not counted yet."""
        return self._get("messages") + self._get("bad")

    @property
    def has_damaged(self) -> bool:
        """Return whether a record with a damaged body was skipped and is not recorded yet."""
        return self._get("bad") > 0

    def _get(self, name: str) -> int:
        return int(self._state[self._at[name]])

    def _set(self, **values: int) -> None:
        for name, value in values.items():
            self._state[self._at[name]] = value

    def over(self, data: Array, base: int, at: int, end: int, lost: Array, mapped: bool,
             result: RangeResult) -> int:
        """Skip sound records and the damaged records ``lost``; return the offset after the last of
        them (a callback for `Walk.sound`).

        Raises: MappingError if ``data`` is a mapping that cannot be read any more. This pass has no
        meaning then.
        """
        keys = self._keys
        if keys is not None and keys.unreadable:
            return at
        if not self.waiting:
            self._begin()
        self._set(at=at)
        what = (_ROWS if self._wanted.queues else 0) | (_ENTRIES if keys is not None else 0) | (
            _TIMED if self._timed else 0)
        while True:
            ended = self._ends[self._kernel.sound(
                data, base, end, what, self._state, *NAMES, *self._topics.table.tables,
                self._topics.rows, self._cells, self._queues, self._intervals, self._units,
                self._times, self._entries, *self._of_index, self._delays, self._heads,
                self._bad, lost, self._extra, mapped)]
            asked = self._get("asked"), self._get("asked_1")
            topic = part_of(data, *asked, mapped) if ended == "new_topic" else None
            if ended == "unreadable" or (ended == "new_topic" and topic is None):
                raise MappingError
            if topic is not None:
                self._topics.add(topic)
            elif ended == "no_room":
                self._keep_intervals()
                self._keep_bad(result)
                self._keep_entries()
            elif ended == "another_run" and self._get("messages") >= _SHORT:
                self.settle(result)
                self._begin()
            elif not ((ended == "new_queue" and self._add_queue(*asked))
                      or (ended == "no_unit" and self._read_units(*asked))
                      or (ended == "no_entry" and self._read_entries())):
                return self._get("at")

    def _begin(self) -> None:
        """Begin a run where the last comparison by column ended."""
        if self._keys is not None:
            position = self._keys.position
            starts = self._of_index[0]
            if position != self._get("entry"):
                self._set(entry=position)
            self._set(file=max(int(np.searchsorted(starts, position, "right")) - 1, 0))
        self._set(messages=0, bytes=0, loose=0, keyed=0, first_v2=-1)

    # -- what the kernel asks for ---------------------------------------------------------------

    def _add_queue(self, topic: int, queue_id: int) -> bool:
        """Add a queue to the tables; return False if its queue id is too large for them."""
        if queue_id >= _MAX_QUEUE_ID:
            return False
        first, count = self._topics.rows[topic, 1:3].tolist()
        if queue_id >= count:
            # The topic gets cells after all others.
            more = max(2 * count, queue_id + 1)
            before, first = self._cells[first:first + count], self._used_cells
            self._used_cells = first + more
            if self._used_cells > len(self._cells):
                room = np.full(max(len(self._cells), more), -1, np.int32)
                self._cells = np.concatenate([self._cells, room])
            self._cells[first:first + count] = before
            self._topics.rows[topic, 1:3] = first, more
        number = self._rows.number((os.fsdecode(self._topics.name(topic)), queue_id))
        self._cells[first + queue_id] = number
        self._queues = grown(self._queues, number + 1)
        return True

    def _read_units(self, number: int, offset: int) -> bool:
        """Load the entry at queue offset ``offset`` of a queue, and entries after it.

        Return whether the entry at ``offset`` exists.
        """
        key = self._rows.keys[number]
        # The same share for each queue, so that all fit.
        queues = max(len(self._rows.keys), len(self._rows.ends))
        share = min(max(_UNITS // queues, _MIN_READ), _MAX_READ)
        try:
            queue = self._store.queues.find(*key)
            if queue is None or not queue.exists:
                return False
            end = self._rows.ends.get(key)
            end = queue.disk_end if end is None else end
            if not queue.first_index <= offset < end:
                return False
            units = queue.timed_units(offset, min(share, end - offset))
        except StoreIOError:
            return False
        if not len(units):
            return False
        times = units[TIME].astype(np.int64) if TIME in (units.dtype.names or ()) else None
        if self._timed != (times is not None):
            return False
        if not len(self._units):
            self._units = np.empty(_UNITS * UNIT_SIZE, np.uint8)
            self._times = np.empty(_UNITS if self._timed else 0, np.int64)
        window = self._queues[number]
        place, room = int(window[2]), int(window[1])
        if room < len(units):
            if self._taken + len(units) > _UNITS:
                self._queues[:, 1] = self._taken = 0
            place, self._taken = self._taken, self._taken + len(units)
        raw = (plain_units(units) if times is not None else units).view(np.uint8)
        self._units[place * UNIT_SIZE:(place + len(units)) * UNIT_SIZE] = raw
        if times is not None:
            self._times[place:place + len(units)] = times
        window[:3] = offset, len(units), place
        return True

    def _read_entries(self) -> bool:
        keys, position = self._keys, self._get("entry")
        assert keys is not None
        try:
            entries = keys.entries.read(position, _ENTRIES_HELD)
        except StoreIOError:
            return False
        before = self._get("window"), len(self._entries)
        self._entries = entries.view(np.uint8)
        self._set(window=position)
        return (position, len(self._entries)) != before and len(entries) > 0

    # -- what it leaves -------------------------------------------------------------------------

    def settle(self, result: RangeResult) -> None:
        """Count the messages of the run, and end it: the next message begins a new run or is
        checked by column.
        """
        if not self.waiting:
            return
        self._keep_bad(result)
        result.last_record_start, result.last_record_end = self._get("last"), self._get("last_end")
        if result.passed.first_v2 is None and self._get("first_v2") >= 0:
            result.passed.first_v2 = self._get("first_v2")
        if self._keys is not None:
            self._keep_entries()
        elif self._wanted.index:
            result.keyed += self._get("keyed")
        if self._get("messages"):
            self._count(result, self._get("messages"))
        self._set(messages=0)

    def _count(self, result: RangeResult, count: int) -> None:
        size, sealed = self._get("bytes"), bool(self._get("sealed"))
        first, end = self._get("first"), self._get("end")
        result.messages += count
        result.bytes_in_messages += size
        if sealed:
            result.with_property_crc += count
        else:
            unconfirmed = unconfirmed_bytes(np.zeros(1, np.int64), np.zeros(1, np.int64),
                                            by_index=self._keys is not None)
            result.bytes_unverifiable += self._get("loose") + count * (
                unconfirmed + (0 if self._wanted.queues else BY_QUEUE))
        result.seals.add_run(UnsealedRun(first, end, count), sealed=sealed)
        result.headers.add_run(self._heads, count)
        result.passed.intact_end = end
        astray = self._get("astray")
        result.passed.follow(self._get("first_time"), self._get("time"), in_order=not astray & 1,
                             ascending=not astray & 2)
        newest = self._get("newest")
        result.last_store_timestamp = max(result.last_store_timestamp or newest, newest)

    def _keep_bad(self, result: RangeResult) -> None:
        """Record those messages of the run that have damaged bodies."""
        rows = self._bad[:self._get("bad")].tolist()
        result.bytes_damaged += self._get("bad_bytes")
        self._set(bad=0, bad_bytes=0)
        if not rows:
            return
        names = self._topics.table.texts(slice(None)).tolist()
        for offset, size, topic, queue_id, queue_offset, length, flag in rows:
            result.keep_bad(BadRecord(offset, size, names[topic], queue_id, queue_offset, "body",
                                      "", length > 0, sysflag.has_consume_queue_row(flag)))

    def _keep_entries(self) -> None:
        if self._keys is not None:
            self._keys.passed(self._get("entry"), self._extra[:self._get("extra")])
        self._set(extra=0)

    def finish(self, result: RangeResult) -> None:
        self.settle(result)
        which = np.flatnonzero(self._queues[:, 4] > self._queues[:, 3])
        self._tell(np.column_stack([which, self._queues[which][:, 3:]]))
        self._keep_intervals()

    def _keep_intervals(self) -> None:
        self._tell(self._intervals[:self._get("intervals")])
        self._set(intervals=0)

    def _tell(self, intervals: Array) -> None:
        for interval in intervals.tolist():
            self._rows.agree(*interval)
