"""Listings: rows for a list on the screen, read a few at a time, after or before a position.

A listing keeps no rows: even of a 100 GB log, only the rows on the screen are read. A position
(`ListRow.position`, and `ListRow.after` for the next row) depends on the kind of listing:

* in the log: a physical offset
* in queues: (number of the queue, queue offset)
* in other files: a record number
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from rmqctl.errors import RmqctlError, StoreIOError
from rmqctl.formats.local.message import Record
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.cells import cell_text
from rmqctl.output.escape import visible
from rmqctl.output.units import time_text
from rmqctl.store.log.bounds import View
from rmqctl.store.log.end import used_size
from rmqctl.store.log.pages import log_pages
from rmqctl.store.pages import Page, RecordPage
from rmqctl.store.problems import Problem, gap
from rmqctl.store.projection import Projection
from rmqctl.store.query.conditions import Condition, filtered
from rmqctl.store.query.select import Selection
from rmqctl.store.queue.rows import PAGE_ROWS, QueueRows

Position = Any
"""A position in a listing; two positions in the same listing can be compared."""
Kind = Literal["message", "damage", "record"]
Watch = Callable[[int], None]
"""Called repeatedly during a read with the number of bytes or rows read since the last call. Raises
`ReadCancelled` when the result is no longer needed.
"""


class ReadCancelled(Exception):  # noqa: N818 - no error: the user went elsewhere
    """A read was stopped because its result is no longer wanted."""


def sentence(error: RmqctlError | OSError) -> str:
    """Return an error's message as text for the user."""
    return str(StoreIOError.from_oserror(error) if isinstance(error, OSError) else error)


def unwatched(_done: int) -> None:
    """A ``watch`` callback that never stops a read."""


class Column(NamedTuple):
    """A column of a list. ``width``: in terminal columns; 0 for the rest of the line."""

    name: str
    title: str
    width: int
    right: bool = False


@dataclass(frozen=True, slots=True)
class ListRow:
    """A row of a listing.

    * ``cells``: text for each column, on one line and safe for a terminal
    * ``physical``, ``size``: position and size of the row's bytes in the log
    * ``place``: topic, queue id and queue offset of a message
    * ``wrong``: whether the row shows a fault
    """

    position: Position
    after: Position
    kind: Kind
    cells: dict[str, str]
    physical: int | None = None
    size: int | None = None
    place: tuple[str, int, int] | None = None
    wrong: bool = False


class ListedRows(NamedTuple):
    """Rows that were read. ``reached``: the position up to which the listing was read."""

    rows: list[ListRow]
    reached: Position


class RowListing(Protocol):
    """A list of rows in a fixed order."""

    title: str
    """The title, safe for a terminal."""
    columns: tuple[Column, ...]
    of_messages: bool
    """True if the rows are messages or damage in the log; False for a `DumpListing`."""

    def forward(self, start: Position | None, count: int, watch: Watch) -> Iterator[ListedRows]:
        """Yield about ``count`` rows at or after ``start`` (None: from the first row), in parts.
        Fewer rows mean that the end of the listing was reached.
        """
        ...

    def backward(self, end: Position | None, count: int, watch: Watch) -> list[ListRow]:
        """Return at most ``count`` rows before ``end`` (None: the last rows). Fewer rows mean that
        the start of the listing was reached.
        """
        ...

    def share(self, reached: Position) -> float:
        """Return the share, from 0 to 1, of the listing that is before a position."""
        ...

    def next_damage(self, start: Position, watch: Watch) -> Position | None:
        """Return the position of the first row at or after ``start`` that shows a fault; None if no
        such row exists.
        """
        ...


def first_wrong(steps: Iterator[ListedRows]) -> Position | None:
    """Return the position of the first row that is damage or shows a fault; None if no row does."""
    return next((row.position for step in steps for row in step.rows
                 if row.wrong or row.kind == "damage"), None)


PREVIEW = 160
"""Maximum number of bytes of a body that a list shows."""
_FIELDS = ("queue_offset", "physical_offset", "store_timestamp", "topic", "queue_id", "tags",
           "keys", "total_size", "crc_ok", "body")
_PROJECTION = Projection(_FIELDS, preview=PREVIEW)
_TIME = Column("time", "stored", 24)
_TEXTS = (Column("tags", "tags", 8), Column("keys", "keys", 12), Column("body", "body", 0))


def message_rows(page: Page, position: Callable[[dict[str, Any]], tuple[Position, Position]],
                 ) -> list[ListRow]:
    """Return the rows for a page's messages. ``position``: function that returns the position of a
    message, and the position after it.
    """
    rows = []
    for fields in _PROJECTION.rows(page):
        start, after = position(fields)
        cells = {name: cell_text(fields[name]) for name in _FIELDS}
        cells["time"] = time_text(fields["store_timestamp"])
        cells["queue"] = f"{cells['topic']}/{fields['queue_id']}"
        rows.append(ListRow(start, after, "message", cells, fields["physical_offset"],
                            fields["total_size"],
                            (fields["topic"], fields["queue_id"], fields["queue_offset"]),
                            not fields["crc_ok"]))
    return rows


def _damage_row(problem: Problem, position: Position, after: Position) -> ListRow:
    text = visible(problem.text).replace(f" at physical offset {problem.offset},", "", 1)
    return ListRow(position, after, "damage", {"body": text}, problem.offset, problem.length,
                   wrong=problem.is_fault)


# -- the log ---------------------------------------------------------------------------------------


class LogListing:
    """The log, or its range ``span``, in physical order. Damage has its own rows, unless there are
    conditions.

    ``note`` is called with each problem found, ``note_read`` with each range read.
    """

    of_messages = True
    columns: tuple[Column, ...] = (
        Column("physical_offset", "offset", 12, right=True), _TIME,
        Column("queue", "topic/queue", 18), *_TEXTS)

    def __init__(self, view: View, title: str, span: tuple[int, int] | None = None,
                 conditions: Sequence[Condition] = (),
                 note: Callable[[Problem], None] = lambda _problem: None,
                 note_read: Callable[[int, int], None] = lambda _start, _end: None) -> None:
        self.view, self.title, self._conditions, self._note = view, title, conditions, note
        self._note_read = note_read
        log = view.store.log
        self.first, self.end = span or (log.min_offset, log.end)
        self._used: int | None = None

    @property
    def used(self) -> int:
        """The physical offset after the last byte that is not zero. Raises: StoreIOError."""
        if self._used is None:
            log = self.view.store.log
            self._used = self.first
            for number in reversed(range(len(log.files))):
                file = log.files[number]
                if file.base < self.end and file.end > self.first:
                    size = used_size(log.source(number))
                    if size:
                        self._used = min(file.base + size, self.end)
                        break
        return self._used

    def forward(self, start: Position | None, count: int, watch: Watch) -> Iterator[ListedRows]:
        left = count
        for step in self._pass(self.first if start is None else start, self.end, watch, count):
            yield ListedRows(step.rows[:left], step.reached)
            left -= len(step.rows)
            if left <= 0:
                return

    def backward(self, end: Position | None, count: int, watch: Watch) -> list[ListRow]:
        stop = self.used if end is None else end
        span = 64 << 10
        while True:
            begin = max(self.first, stop - span)
            kept: deque[ListRow] = deque(maxlen=count)
            # Include the next frame: it decides whether zeros before it are damage.
            for step in self._pass(begin, min(stop + 1, self.end), watch, None):
                kept.extend(row for row in step.rows if row.position < stop)
            if len(kept) == count or begin == self.first:
                return list(kept)
            span *= 8

    def share(self, reached: Position) -> float:
        return float(reached - self.first) / max(self.end - self.first, 1)

    def at_time(self, when: int, watch: Watch) -> Position | None:
        """Return the physical offset of the first message stored at ``when`` (ms) or later; None if
        no such message exists. Files that cannot contain this message are not read.
        """
        wanted = Selection(since=when, from_phy=self.first, to_phy=self.end)
        for page in log_pages(self.view, wanted, wanted.conditions(), self._note, watch):
            return int(page.numbers("physical_offset")[0])
        return None

    def _pass(self, start: int, end: int, watch: Watch, most: int | None) -> Iterator[ListedRows]:
        """Yield the rows of the range ``[start, end)``, page by page. ``most``: maximum number of
        messages per page (None: all).
        """
        problems = self._gap_at(start)
        wanted = Selection(from_phy=start, to_phy=end)
        for page in log_pages(self.view, wanted, (), problems.append, watch):
            offsets = page.numbers("physical_offset")
            reached = int(offsets[-1]) + int(page.numbers("total_size")[-1])
            self._note_read(start, reached)
            rows = self._of_problems(problems)
            chosen = filtered(page, self._conditions)
            if most is not None and len(chosen) > most:
                chosen = chosen.select(np.arange(most))
            rows += message_rows(chosen, lambda row: (
                row["physical_offset"], row["physical_offset"] + row["total_size"]))
            yield ListedRows(rows, reached)
            watch(0)
        self._note_read(start, end)
        yield ListedRows(self._of_problems(problems), end)

    def next_damage(self, start: Position, watch: Watch) -> Position | None:
        """Return the offset of the first damage, gap or body CRC mismatch at or after a physical
        offset.
        """
        problems = self._gap_at(start)
        wanted = Selection(from_phy=start, to_phy=self.end)
        for page in log_pages(self.view, wanted, (), problems.append, watch):
            offsets = page.numbers("physical_offset")
            self._note_read(start, int(offsets[-1]) + int(page.numbers("total_size")[-1]))
            wrong = offsets[~page.numbers("crc_ok").astype(bool)][:1].tolist()
            if (first := self._first_of(problems, wrong, start)) is not None:
                return first
            watch(0)
        return self._first_of(problems, [], start)

    def _gap_at(self, start: int) -> list[Problem]:
        """Return the gap that begins exactly at a physical offset, if any. A scan that starts at
        this offset does not report this gap.
        """
        return [gap(place.start, place.end) for place in self.view.store.log.gaps()
                if place.start == start]

    def _first_of(self, problems: list[Problem], wrong: list[int], start: int) -> int | None:
        places = [*wrong, *(row.position for row in self._of_problems(problems) if row.wrong)]
        return min((place for place in places if place >= start), default=None)

    def _of_problems(self, problems: list[Problem]) -> list[ListRow]:
        rows = []
        for problem in problems:
            self._note(problem)
            if problem.offset is not None and not self._conditions:
                rows.append(_damage_row(problem, problem.offset,
                                        problem.offset + max(problem.length or 0, 1)))
        problems.clear()
        for row in rows:
            row.cells["physical_offset"] = str(row.position)
        return rows


# -- queues ----------------------------------------------------------------------------------------

_CHUNK, _CHUNK_BYTES = 64, 4 << 20
"""Maximum number of messages, and of bytes of messages, that are read between two calls of
``watch``.
"""


@dataclass(frozen=True, slots=True)
class EntryWithRecord:
    """A consume queue entry, and the message that it points to, if any."""

    offset: int
    physical: int
    size: int
    record: Record | None


class QueueListing:
    """The entries of a topic's queues, one queue after the other, including dangling entries."""

    of_messages = True

    def __init__(self, view: View, title: str, queues: Sequence[QueueRows],
                 conditions: Sequence[Condition] = (),
                 note: Callable[[Problem], None] = lambda _problem: None) -> None:
        self.view, self.title, self.queues = view, title, queues
        self._conditions, self._note = conditions, note
        many = (Column("queue_id", "queue", 5, right=True),) if len(queues) > 1 else ()
        self.columns = (*many, Column("queue_offset", "offset", 10, right=True), _TIME, *_TEXTS)

    def forward(self, start: Position | None, count: int, watch: Watch) -> Iterator[ListedRows]:
        number, offset = (0, 0) if start is None else start
        left = count
        while number < len(self.queues):
            queue = self.queues[number]
            for entries in self._chunks(queue, max(offset, queue.first), queue.end):
                rows = self._rows(number, entries)
                yield ListedRows(rows[:left], (number, entries[-1].offset + 1))
                left -= len(rows)
                if left <= 0:
                    return
                watch(len(entries))
            number, offset = number + 1, 0

    def backward(self, end: Position | None, count: int, watch: Watch) -> list[ListRow]:
        number, offset = (len(self.queues), 0) if end is None else end
        kept: list[ListRow] = []
        if number < len(self.queues):
            kept = self._before(number, min(offset, self.queues[number].end), count, watch)
        while len(kept) < count and number > 0:
            number -= 1
            kept = self._before(number, self.queues[number].end, count - len(kept), watch) + kept
        return kept

    def share(self, reached: Position) -> float:
        number, offset = reached
        sizes = [max(queue.end - queue.first, 0) for queue in self.queues]
        passed = sum(sizes[:number])
        if number < len(sizes):
            passed += max(offset - self.queues[number].first, 0)
        return passed / max(sum(sizes), 1)

    def next_damage(self, start: Position, watch: Watch) -> Position | None:
        return first_wrong(self.forward(start, 1 << 60, watch))

    def at_offset(self, offset: int, number: int) -> Position:
        """Return the position of a queue offset in the listing's queue ``number``."""
        return number, offset

    def at_time(self, when: int, number: int) -> Position:
        """Return the position of the first message in the queue ``number`` that was stored at
        ``when`` (ms) or later.
        Raises: StoreIOError.
        """
        return number, self.queues[number].at_or_after(when)

    def range_of(self, number: int) -> tuple[int, int]:
        """Return the range ``[first, end)`` of queue offsets in the queue ``number``."""
        return self.queues[number].first, self.queues[number].end

    def _before(self, number: int, end: int, count: int, watch: Watch) -> list[ListRow]:
        queue, span = self.queues[number], _CHUNK
        kept: list[ListRow] = []
        while len(kept) < count and end > queue.first:
            begin = max(queue.first, end - span)
            part: list[ListRow] = []
            for entries in self._chunks(queue, begin, end):
                part += self._rows(number, entries)
                watch(len(entries))
            kept = part + kept
            end, span = begin, min(span * 4, PAGE_ROWS)
        return kept[-count:]

    def _chunks(self, queue: QueueRows, start: int, end: int) -> Iterator[list[EntryWithRecord]]:
        """Yield the entries with queue offsets ``[start, end)`` and their messages, a few at a
        time.
        """
        read = self.view.store.log.record_at
        for offsets, physical, sizes in queue.pages(start, end):
            chunk: list[EntryWithRecord] = []
            held = 0
            for offset, place, size in zip(offsets.tolist(), physical.tolist(), sizes.tolist(),
                                           strict=True):
                if offset < start:  # a batch that starts earlier
                    continue
                chunk.append(EntryWithRecord(offset, place, size, read(place, size)))
                held += size
                if len(chunk) == _CHUNK or held > _CHUNK_BYTES:
                    yield chunk
                    chunk, held = [], 0
            if chunk:
                yield chunk

    def _rows(self, number: int, entries: list[EntryWithRecord]) -> list[ListRow]:
        readable = [entry for entry in entries if entry.record is not None]
        page = filtered(
            RecordPage([entry.record for entry in readable if entry.record is not None]),
            self._conditions)
        offsets: dict[int, deque[int]] = {}
        for entry in readable:  # several entries may point to one message
            offsets.setdefault(entry.physical, deque()).append(entry.offset)

        def position(fields: dict[str, Any]) -> tuple[Position, Position]:
            offset = offsets[fields["physical_offset"]].popleft()
            return (number, offset), (number, offset + 1)

        rows = message_rows(page, position)
        lost = [entry for entry in entries if entry.record is None]
        queue = self.queues[number]
        for entry in lost:
            reason = self.view.store.log.explain(entry.physical)
            problem = Problem("row", f"points to no message at physical offset {entry.physical}: "
                              f"{reason}", entry.physical, entry.size)
            self._note(problem)
            if not self._conditions:
                row = _damage_row(problem, (number, entry.offset), (number, entry.offset + 1))
                rows.append(row)
        for row in rows:  # a light queue has offsets of its own
            row.cells["queue_offset"] = str(row.position[1])
            row.cells["queue_id"] = str(queue.queue_id)
        return sorted(rows, key=lambda row: row.position) if lost else rows


# -- messages at hand ------------------------------------------------------------------------------


@dataclass
class RecordListing:
    """A list of given messages, in the given order."""

    title: str
    records: Sequence[Record]
    conditions: Sequence[Condition] = ()
    columns: tuple[Column, ...] = LogListing.columns
    of_messages: bool = True
    _rows: list[ListRow] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        number = iter(range(len(self.records)))

        def position(_row: dict[str, Any]) -> tuple[int, int]:
            start = next(number)
            return start, start + 1

        self._rows = message_rows(filtered(RecordPage(self.records), self.conditions), position)

    def forward(self, start: Position | None, count: int, watch: Watch) -> Iterator[ListedRows]:
        rows = self._rows[start or 0:][:count]
        yield ListedRows(rows, len(self._rows))

    def backward(self, end: Position | None, count: int, watch: Watch) -> list[ListRow]:
        return self._rows[:end][-count:]

    def share(self, reached: Position) -> float:
        return 1.0

    def next_damage(self, start: Position, watch: Watch) -> Position | None:
        return first_wrong(self.forward(start, len(self._rows), watch))


def committed(listing: RowListing, at: int | None) -> Position | None:
    """Return the position of the entry nearest to a consumer offset, in the listing of a queue;
    None for other listings.
    """
    if at is None or not isinstance(listing, QueueListing) or not listing.queues:
        return None
    first, end = listing.range_of(0)
    return listing.at_offset(max(min(at, end - 1), first), 0)
