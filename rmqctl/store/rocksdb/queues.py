"""Consume queues in RocksDB: the queues of a database, and the rows of one queue.

spec: rocksdb.md §2-§5. A broker writes rows, and for each queue a note of its last row ("max"). To
truncate a queue, a broker only resets "max" and does not delete rows. So rows after "max" may be
outdated, and count only if they point to their message.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.consume_queue import ZERO, UnitRecord
from rmqctl.formats.rocksdb import consume_queue as keys
from rmqctl.formats.rocksdb.consume_queue import (
    MAX,
    MIN,
    OFFSETS,
    POSITION,
    ROW,
    ROWS,
    PositionRecord,
    RowRecord,
)
from rmqctl.scan.frames import Array
from rmqctl.scan.source import Closing
from rmqctl.store.files import StoreFile, Trouble
from rmqctl.store.log.once import cached_property
from rmqctl.store.queue.consume_queue import ConsumeQueue, plain_units
from rmqctl.store.queue.search import first_from
from rmqctl.store.rocksdb.database import Database
from rmqctl.store.rocksdb.row_pass import MAX_QUEUE_OFFSET, Ends, QueueKey, RowPass

Leads = Callable[["RocksQueue", int, UnitRecord], bool]
"""Function that returns whether a row at a queue offset points to a message with that queue
offset."""
_NAMED = 5
_PAGE = 1 << 15


class RocksQueues(Closing):
    """All queues of the database in ``folder``, which is opened immediately.

    * ``leads``: function that decides whether a left-over row counts (None: all count).
    * ``stop``: rows that point to this physical offset or after it are ignored, as if they had not
      been written yet (None: no row is ignored).
    * ``damage``: sentences that describe damage in parts of the database.

    Raises: FormatError, StoreIOError and MissingExtraError like `Database.open`.
    """

    def __init__(self, folder: str, leads: Leads | None = None, stop: int | None = None) -> None:
        self.folder, self.leads, self.stop = folder, leads, stop
        self.database = Database.open(folder)
        self.damage = list(self.database.damage)
        self.no_files: list[StoreFile] = []
        self.no_troubles: list[Trouble] = []
        self.unnoted: dict[QueueKey, str] = {}
        """Queues whose entries in the offset family cannot be read, each with the reason."""
        self.why_no_checkpoint = ""
        """The reason why `checkpoint` cannot be read; "" if it can. A broker does not start with
        an unreadable `checkpoint`."""
        self.odd: list[str] = []
        """Descriptions of the first few keys and values that no broker writes; `odd_count`: their
        total number.
        """
        self.odd_count = 0
        self.positions: dict[QueueKey, dict[bytes, PositionRecord]] = {}
        """For each queue: its existing entries (`MAX`, `MIN`) in the offset family."""
        self.checkpoint = 0
        """The physical offset up to which the rows were written, which is the end of the last
        record in the last batch of rows. 0 if the database does not contain this offset.
        """
        is_complete = self._read_offsets()
        with_rows = self._pass_rows()
        queue_keys = {*self.positions, *with_rows}
        if not is_complete:
            self._read_singly(queue_keys)
        self.queues = {key: RocksQueue(self, *key, with_rows.get(key))
                       for key in sorted(queue_keys)}

    def close(self) -> None:
        self.database.close()

    @property
    def has_unread(self) -> bool:
        """Return whether a row was requested that could not be read."""
        return any(queue.unread for queue in self.queues.values())

    def _read_offsets(self) -> bool:
        """Read the entries of the offset family; return False if only a part of them could be
        read.
        """
        try:
            for key, value in self.database.items(OFFSETS):
                if key == keys.CHECKPOINT_KEY:
                    self._take_checkpoint(value)
                    continue
                place = keys.parse_offset_key(key)
                if place is None or place[2] < 0 or len(value) != POSITION.size:
                    self._is_odd("an entry of the offset family", key)
                    continue
                topic, which, queue_id = place
                self.positions.setdefault((os.fsdecode(topic), queue_id), {})[which] = (
                    POSITION.decode(value))
        except FormatError as error:
            self.damage.append(str(error))
            return False
        return True

    def _take_checkpoint(self, value: bytes) -> None:
        noted = keys.parse_checkpoint(value)
        if noted is None:
            self._is_odd("the checkpoint", value)
        self.checkpoint = noted or 0

    def _read_singly(self, queue_keys: set[QueueKey]) -> None:
        """Read the entries of the offset family one by one, except entries in a damaged block."""
        try:
            value = self.database.get(OFFSETS, keys.CHECKPOINT_KEY)
            if value is not None and not self.checkpoint:
                self._take_checkpoint(value)
        except FormatError as error:
            self.why_no_checkpoint = str(error)
        for topic, queue_id in queue_keys:
            noted = self.positions.setdefault((topic, queue_id), {})
            for which in {MAX, MIN} - noted.keys():
                try:
                    value = self.database.get(
                        OFFSETS, keys.offset_key(os.fsencode(topic), queue_id, which))
                except FormatError as error:
                    self.unnoted[topic, queue_id] = str(error)
                    continue
                if value is not None and len(value) == POSITION.size:
                    noted[which] = POSITION.decode(value)

    def _pass_rows(self) -> dict[QueueKey, Ends | None]:
        """Return the first and last row of each queue that has rows, from one pass over all
        rows.
        """
        row_pass = RowPass(self.database, sorted(
            keys.queue_prefix(os.fsencode(topic), queue_id)
            for topic, queue_id in self.positions), self._is_odd, self._is_damaged)
        ends = dict(row_pass)
        self.held = row_pass.held()
        return ends

    def _is_damaged(self, error: str) -> None:
        if error not in self.damage[:_NAMED]:
            self.damage.append(error)

    def _is_odd(self, kind: str, data: bytes) -> None:
        self.odd_count += 1
        if len(self.odd) < _NAMED:
            self.odd.append(f"{kind}: {data[:keys.MAX_KEY].hex()}")


class RocksQueue(ConsumeQueue):
    """The rows of one queue in a database.

    A queue offset whose row is missing or in a damaged block reads as an entry that was never
    written. Only `units` raises an exception for a damaged block.

    * ``unread``: the queue offsets of requested rows that could not be read, as ascending
      intervals.
    * ``why_unread``: the reason.
    """

    def __init__(self, store: RocksQueues, topic: str, queue_id: int, ends: Ends | None) -> None:
        super().__init__(topic, queue_id, store.folder, store.no_files, store.no_troubles)
        self._store, self._ends = store, ends
        self._held = ends if ends is not None and ends.stop else None
        self.unread: list[tuple[int, int]] = []

    in_rocksdb = True

    @property
    def exists(self) -> bool:
        return True

    @cached_property
    def last(self) -> PositionRecord | None:
        """The broker's note of the last row ("max"); None if it does not exist."""
        return self._store.positions.get((self.topic, self.queue_id), {}).get(MAX)

    @cached_property
    def least(self) -> PositionRecord | None:
        """The broker's note of the first row ("min"), written when that row is first requested, or
        None.
        """
        return self._store.positions.get((self.topic, self.queue_id), {}).get(MIN)

    @property
    def why_unnoted(self) -> str:
        """The reason why the notes "max" and "min" cannot be read; "" if they can be read."""
        return self._store.unnoted.get((self.topic, self.queue_id), "")

    # -- rows -------------------------------------------------------------------------------------

    def units(self, first: int, count: int) -> Array:
        rows = self.rows(first, count)
        if any(start < first + len(rows) and first < end for start, end in self.unread):
            raise StoreIOError(self.why_unread)
        return plain_units(rows)

    def timed_units(self, first: int, count: int) -> Array:
        return self.rows(first, count)

    def rows(self, first: int, count: int) -> Array:
        """Return the same entries as `units`, together with their store times (``store_timestamp``,
        ms).
        """
        return self._within(first, min(first + count, self.disk_end))

    def _within(self, first: int, end: int, *, until_last: bool = False) -> Array:
        """Return the rows of a range. With ``until_last``, the result has at most one entry after
        the last existing row.
        """
        if end <= first or first < 0:
            return np.zeros(0, ROW.dtype())
        # Entries that one pass over the database collected need no further access to it.
        if self._held is not None:
            numbers, data = self._store.held.between(self._held, first, end)
            if until_last:
                end = min(end, numbers[-1] + 2 if numbers else first + 1)
            return _placed(first, end, numbers, data)
        # One damaged block spoils the whole page, so read entry by entry in this case.
        try:
            items = self._store.database.page(ROWS, self._key(first), self._key(end))
        except FormatError:
            items = list(self._one_by_one(first, end))
        at = len(self._prefix)
        if until_last:
            last = next((key for key, _ in reversed(items) if len(key) == at + 8), b"")
            end = min(end, int.from_bytes(last[at:], "big") + 2 if last else first + 1)
        count = end - first
        # Convert the usual page in one step; any gap or odd size takes the slow path.
        if len(items) == count:  # usually no row is missing and all have the right size
            names = b"".join([key for key, _ in items])
            values = [value for _, value in items]
            if len(names) == count * (at + 8) and {*map(len, values)} == {ROW.size}:
                number = np.frombuffer(names, f"V{at}, >i8")["f1"]
                if (number == np.arange(first, end)).all():
                    return np.frombuffer(b"".join(values), ROW.dtype())
        out: Array = np.zeros(count, ROW.dtype())
        for key, value in items:
            if len(key) == at + 8 and len(value) == ROW.size:
                out[int.from_bytes(key[at:], "big") - first] = np.frombuffer(value, ROW.dtype())[0]
        return out

    def _one_by_one(self, first: int, end: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a range that has a damaged block; add the unreadable ones to
        ``unread``.
        """
        for number in range(first, end):
            value = self._value(number)
            if value is not None:
                yield self._key(number), value

    def _value(self, queue_offset: int) -> bytes | None:
        if self._held is not None:
            return self._store.held.value(self._held, queue_offset)
        try:
            return self._store.database.get(ROWS, self._key(queue_offset))
        except FormatError as error:
            self._cannot_read(queue_offset, queue_offset + 1, error)
            return None

    def _cannot_read(self, first: int, end: int, error: FormatError) -> None:
        self.why_unread = self.why_unread or str(error)
        at = bisect_left(self.unread, (first, end))
        while at < len(self.unread) and self.unread[at][0] <= end:
            end = max(end, self.unread.pop(at)[1])
        if at and self.unread[at - 1][1] >= first:
            first, end = self.unread[at - 1][0], max(end, self.unread.pop(at - 1)[1])
            at -= 1
        self.unread.insert(at, (first, end))

    def is_unread(self, queue_offset: int) -> bool:
        at = bisect_right(self.unread, queue_offset, key=lambda span: span[0])
        return at > 0 and queue_offset < self.unread[at - 1][1]

    def unit(self, queue_offset: int) -> UnitRecord | None:
        if not self.first_index <= queue_offset < self.disk_end:
            return None
        row = self._row(queue_offset)
        return ZERO if row is None else UnitRecord(*row[:3])

    def noted_time(self, queue_offset: int) -> int | None:
        row = self._row(queue_offset)
        if row is None and self.is_unread(queue_offset):
            raise StoreIOError(self.why_unread)
        return None if row is None else row.store_timestamp

    def _row(self, queue_offset: int) -> RowRecord | None:
        value = self._value(queue_offset)
        return None if value is None or len(value) != ROW.size else ROW.decode(value)

    def pages(self, first: int, end: int, page: int = _PAGE) -> Iterator[tuple[int, Array]]:
        end = min(end, self.disk_end)
        number = max(first, self.first_index)
        while number < end:
            stop = min(number + page, end)
            rows = plain_units(self._within(number, stop, until_last=True))
            yield number, rows
            number += len(rows)
            if number < stop or not rows["size"].any():  # a long range may have no rows
                number = self.next_row(number, end)

    @property
    def stretches(self) -> list[tuple[int, int]]:
        return [(self.first_index, self.disk_end)] if self.disk_end else []

    def parts(self, page: int) -> Iterator[tuple[int, int]]:
        number, end = self.first_index, self.disk_end
        while number < end:
            yield number, min(page, end - number)
            number = self.next_row(number + page, end)

    @property
    def _prefix(self) -> bytes:
        return keys.queue_prefix(os.fsencode(self.topic), self.queue_id)

    def _key(self, queue_offset: int) -> bytes:
        return keys.row_key(os.fsencode(self.topic), self.queue_id,
                            min(max(queue_offset, 0), MAX_QUEUE_OFFSET))

    def next_row(self, first: int, end: int) -> int:
        try:
            return self._following(first, end)
        except FormatError as error:
            following = self._behind_damage(first, end)
            self._cannot_read(first, following, error)
            return following

    def _following(self, first: int, end: int) -> int:
        """Return the first queue offset in ``[first, end)`` that has a row; ``end`` if no row
        exists.

        Raises: FormatError if a damaged block precedes that row.
        """
        if self._held is not None:
            return self._store.held.following(self._held, first, end)
        row = next(self._store.database.items(ROWS, self._key(first), self._key(end)), None)
        return end if row is None else int.from_bytes(row[0][len(self._prefix):][:8], "big")

    def _behind_damage(self, first: int, end: int) -> int:
        """Return the first queue offset after a damaged block at which rows can be read again."""
        low, step = first, 1
        while low + step < end and not self._is_readable(low + step, end):
            low, step = low + step, step * 2
        high = min(low + step, end)
        while high - low > 1:
            middle = (low + high) // 2
            if self._is_readable(middle, end):
                high = middle
            else:
                low = middle
        return high

    def _is_readable(self, first: int, end: int) -> bool:
        try:
            self._following(first, end)
        except FormatError:
            return False
        return True

    # -- where the rows end and begin -------------------------------------------------------------

    @cached_property
    def first_index(self) -> int:
        if self._ends is not None:
            return min(self._ends.first, self.disk_end)
        try:
            return self._following(0, self.disk_end)
        except FormatError as error:
            first = 0 if self.least is None else max(self.least.queue_offset, 0)
            self._cannot_read(first, first + 1, error)
            return first

    @property
    def written(self) -> int:
        return self.disk_end

    @cached_property
    def rows_end(self) -> int:
        """The queue offset after the last row, which may be a left-over row."""
        if self._ends is not None:
            last, value = self._ends.last, self._ends.value or self._value(self._ends.last)
        else:
            try:
                last_row = self._store.database.last(ROWS, self._key(0),
                                                     self._key(MAX_QUEUE_OFFSET))
            except FormatError as error:  # only the broker's note remains
                end = 0 if self.last is None else max(self.last.queue_offset + 1, 0)
                self._cannot_read(max(end - 1, 0), end, error)
                return end
            if last_row is None:
                return 0
            last, value = int.from_bytes(last_row[0][len(self._prefix):][:8], "big"), last_row[1]
        stop = self._store.stop
        if stop is None or value is None or ROW.size != len(value) or (
                ROW.decode(value).physical_offset < stop):
            return last + 1
        return first_from(self._search, 0, last + 1, stop)

    @cached_property
    def disk_end(self) -> int:
        end, leads = self.rows_end, self._store.leads
        if leads is None:
            return end
        settled = end if self.last is None else min(self.last.queue_offset + 1, end)
        if self.last is not None and not end:  # its rows have expired
            return max(self.last.queue_offset + 1, 0)
        # A truncated queue keeps its rows; the next ones replace them one by one.
        while settled < end:
            middle = (settled + end) // 2
            row = self._row(middle)
            if row is not None and leads(self, middle, UnitRecord(*row[:3])):
                settled = middle + 1
            else:
                end = middle
        return settled

    @cached_property
    def _search(self) -> _SearchRows:
        return _SearchRows(self._row)

    def recovered_end(self, log_end: int) -> int:
        last = self.last
        if last is None:
            return 0
        if self._store.checkpoint <= log_end or last.physical_offset < log_end:
            return last.queue_offset + 1
        cut = self.cut_at(log_end)
        return last.queue_offset + 1 if cut is None else cut

    def cut_at(self, log_end: int) -> int | None:
        """Search as RocksDBConsumeQueueTable.binarySearchInCQ does (spec: rocksdb.md §4).

        Return the queue offset after the last row found before ``log_end``, or None. A row that
        points exactly to ``log_end`` ends the search at once.
        """
        last_before: int | None = None
        low = 0 if self.least is None else self.least.queue_offset
        high = -1 if self.last is None else self.last.queue_offset
        while low <= high:
            middle = (low + high) // 2
            row = self._row(middle)
            if row is not None and row.physical_offset == log_end:
                break
            if row is not None and row.physical_offset > log_end:
                high = middle - 1
            else:
                low = middle + 1
                last_before = middle if row is not None else last_before
        return None if last_before is None else last_before + 1

    def first_kept(self, end: int, log_min: int, generation: int) -> int:
        if self.least is not None and self.least.physical_offset >= log_min:
            return max(self.least.queue_offset, 0)
        if self.last is not None and self.last.physical_offset < log_min:
            return end
        low = 0 if self.least is None else max(self.least.queue_offset, 0)
        low = max(low, self.first_index)
        first = first_from(self._search, low, end, log_min)
        # An unreadable row before it is not known to have expired.
        return low if first > low and self._row(first - 1) is None and (
            self.is_unread(first - 1)) else first


class _SearchRows:
    """The rows of a queue, with the interface that a search by physical offset needs
    (`QueueUnits`).
    """

    def __init__(self, row: Callable[[int], RowRecord | None]) -> None:
        self._row = row

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        row = self._row(queue_offset)
        return None if row is None else row[:3]


def _placed(first: int, end: int, numbers: Sequence[int], values: bytes) -> Array:
    """Return an array of the entries ``[first, end)``: the given rows at their queue offsets, and
    zeros between them.
    """
    rows = np.frombuffer(values, ROW.dtype())
    if len(rows) == end - first:
        return rows
    out: Array = np.zeros(end - first, ROW.dtype())
    out[np.array(numbers, np.int64) - first] = rows
    return out
