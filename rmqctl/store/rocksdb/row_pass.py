"""One pass over the rows of all queues of a database, with one cursor.

It finds the first and last row of each queue, and all rows of short queues. If a database has more
queues than messages, a look-up for each queue costs more than reading all rows.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rmqctl.errors import FormatError
from rmqctl.formats.rocksdb import consume_queue as keys
from rmqctl.formats.rocksdb.consume_queue import ROW, ROWS
from rmqctl.store.rocksdb.database import Cursor, Database

QueueKey = tuple[str, int]
MAX_QUEUE_OFFSET = 1 << 58
"""Upper bound of the queue offsets that a broker writes; rows with greater offsets are
irregular."""
MAX_HELD_PER_QUEUE = 64
"""Maximum number of rows of a short queue. All rows of short queues are kept in memory."""
MAX_HELD = 1 << 20
"""Maximum total number of rows that are kept in memory, where they take 36 MiB."""
_OFFSET = 8  # bytes at the end of a key


class Ends(NamedTuple):
    """The ends of a queue.

    * ``first``, ``last``: the queue offsets of its first and last row.
    * ``value``: the last row, if the rows are not kept in memory.
    * ``begin``, ``stop``: the positions ``[begin, stop)`` of its rows among all rows in memory;
      empty if the rows are not kept in memory.
    """

    first: int
    last: int
    value: bytes
    begin: int = 0
    stop: int = 0


class RowPass:
    """The pass over all rows.

    * ``noted``: the key prefixes of known queues, ascending. After a damaged block, the pass
      continues at the next of these prefixes.
    * ``odd``: called for a row with an irregular key.
    * ``damaged``: called for a damaged block.
    """

    def __init__(self, database: Database, noted: Sequence[bytes],
                 odd: Callable[[str, bytes], None], damaged: Callable[[str], None]) -> None:
        self._database, self._noted = database, noted
        self._odd, self._damaged = odd, damaged
        self._numbers, self._values = array("q"), bytearray()

    def __iter__(self) -> Iterator[tuple[QueueKey, Ends | None]]:
        """Yield (queue, ends) for all queues with rows.

        The ends are None if a row of the queue is unreadable or irregular.
        """
        cursor = self._database.cursor(ROWS)
        start: bytes | None = b""
        while start is not None:
            try:
                key = cursor.key if cursor.key is not None and cursor.key >= start > b"" else (
                    cursor.seek(start))
            except FormatError as error:
                self._damaged(str(error))
                number = bisect_right(self._noted, start)
                start = self._noted[number] if number < len(self._noted) else None
                cursor = self._database.cursor(ROWS)
                continue
            if key is None:
                return
            place = keys.parse_row_key(key)
            if place is None or place[1] < 0:
                self._odd("a key of a consume queue entry", key)
                start = _behind(key)
                continue
            start = keys.behind_queue(*place[:2])
            try:
                ends = self._ends(cursor, key[:-_OFFSET], start)
            except FormatError:  # the next read at the same place reports it
                ends, cursor = None, self._database.cursor(ROWS)
            yield (os.fsdecode(place[0]), place[1]), ends

    def _ends(self, cursor: Cursor, prefix: bytes, behind: bytes) -> Ends | None:
        """Return the ends of the queue whose first row is at the cursor.

        The cursor moves to the next queue, or to a key before it.
        """
        size = len(prefix) + _OFFSET
        numbers: list[int] = []
        values: list[bytes] = []
        key: bytes | None = cursor.key
        # Read row by row, as long as the queue may be short.
        while key is not None and key.startswith(prefix) and len(numbers) < MAX_HELD_PER_QUEUE:
            value = cursor.value()
            number = int.from_bytes(key[-_OFFSET:], "big")
            if len(key) != size or len(value) != ROW.size or number >= MAX_QUEUE_OFFSET:
                return None
            numbers.append(number)
            values.append(value)
            key = cursor.next()
        first = numbers[0]
        if key is None or not key.startswith(prefix):
            begin = len(self._numbers)
            if begin + len(numbers) > MAX_HELD:
                return Ends(first, numbers[-1], values[-1])
            self._numbers.extend(numbers)
            self._values += b"".join(values)
            return Ends(first, numbers[-1], b"", begin, begin + len(numbers))
        # The last row of a longer queue is before the next queue.
        cursor.seek(behind)
        key = cursor.previous()
        value = b"" if key is None else cursor.value()
        if key is None or len(key) != size or len(value) != ROW.size:
            return None
        number = int.from_bytes(key[-_OFFSET:], "big")
        return Ends(first, number, value) if number < MAX_QUEUE_OFFSET else None

    def held(self) -> HeldRows:
        """Return the rows kept in memory. Call this method once, after the pass."""
        values, self._values = bytes(self._values), bytearray()
        return HeldRows(self._numbers, values)


class HeldRows:
    """The rows of all short queues in one array. `Ends` has the positions of each queue's rows."""

    def __init__(self, numbers: array[int], values: bytes) -> None:
        self._numbers, self._values = numbers, values

    def value(self, ends: Ends, queue_offset: int) -> bytes | None:
        at = bisect_left(self._numbers, queue_offset, ends.begin, ends.stop)
        if at == ends.stop or self._numbers[at] != queue_offset:
            return None
        return self._values[at * ROW.size:(at + 1) * ROW.size]

    def following(self, ends: Ends, first: int, end: int) -> int:
        """Return the first queue offset in ``[first, end)`` that has a row; ``end`` if no row
        exists.
        """
        at = bisect_left(self._numbers, first, ends.begin, ends.stop)
        return end if at == ends.stop else min(self._numbers[at], end)

    def between(self, ends: Ends, first: int, end: int) -> tuple[Sequence[int], bytes]:
        """Return (queue offsets, values) of the rows in ``[first, end)``."""
        begin = bisect_left(self._numbers, first, ends.begin, ends.stop)
        stop = bisect_left(self._numbers, end, begin, ends.stop)
        return self._numbers[begin:stop], self._values[begin * ROW.size:stop * ROW.size]


def _behind(key: bytes) -> bytes:
    """Return a key that is greater than ``key``, but not greater than the next key that a broker
    may have written.
    """
    if len(key) <= keys.MAX_KEY:
        return key + b"\0"
    # No key of a broker begins with so many bytes of it, unless it is shorter and so before it.
    head = key[:keys.MAX_KEY].rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else key + b"\0"
