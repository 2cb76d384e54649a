"""Find the end of a damaged record whose size is unknown.

The record's body may contain anything, even intact records with the right physical offset and queue
offset. So the record may end at any frame boundary after the damage, unless one of these rules
excludes the boundary:

* The distance to the boundary is greater than the size of the store's largest record.
* The boundary is in another file.
* The boundary is after a record of the log that a consume queue or index entry proves.
* More messages would be missing than can be lost. The number of missing messages follows from the
  queue offsets of the last messages before the damage and of the first messages after the boundary
  (`rmqctl.scan.damage.slots`).

Frames after the last possible end are messages. Frames before it are undecided: they are messages,
or part of the damaged record's body. If the end of the log is nearer than the size of the largest
record, the damaged record may have been torn there. Then everything after the damage is undecided.

The frames of a file are read once for all damage in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from weakref import WeakKeyDictionary

import numpy as np

from rmqctl.formats.local.message import MIN_SIZE, VERSIONS, variant
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.damage.slots import (
    EarlierMessages,
    Numbered,
    Queues,
    excess,
    excess_at,
    records_in,
)
from rmqctl.scan.frames import Array, Doubtful, records_from
from rmqctl.scan.resync import is_blank, located_size, next_provable
from rmqctl.scan.source import LARGEST_RECORD, AtHand, Source

MIN_HEAD = min(variant(0, magic).head_size for magic in VERSIONS)
_BLOCK, _FIRST_BLOCK = 1 << 20, 64 << 10
_MAX_INSIDE = 64
"""Largest number of records examined inside the last record before damage: a body may contain very
many.
"""
_BEHIND = 1 << 20
"""Number of bytes after the last possible end that are searched for the next offsets of the queues.
"""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Result of a search for the end of damage.

    ``resume``: position where messages continue; None if it cannot be proven. ``undecided``: the
    frames before this position that may be messages.
    """

    resume: int | None
    undecided: Doubtful = ()


@dataclass(slots=True)
class _Ahead:
    """Frames that begin at positions in ``[low, high)``. ``gap``: number of bytes between the
    previous frame and each frame.

    ``closed``: position of the file's blank, or the file's end, once the scan has reached it.
    """

    low: int
    high: int
    start: Array
    size: Array
    gap: Array
    queue: Array
    offset: Array
    queues: Queues = field(default_factory=Queues)
    closed: int | None = None

    @property
    def end(self) -> int:
        return int(self.start[-1] + self.size[-1]) if len(self.start) else self.low


_AHEAD: WeakKeyDictionary[Source, _Ahead] = WeakKeyDictionary()


def resumed(source: Source, at: int, search: int, stop: int | None, passed: EarlierMessages,
            own_end: Callable[[int], int | None]) -> Resumed:
    """Find the position at or after ``search`` where messages continue after a damaged record at
    ``at``.

    ``stop``: a position where a record of the log certainly begins. ``passed``: the messages before
    the damage. ``own_end`` returns the certain end of a damaged record at a position.

    Raises: StoreIOError.
    """
    largest = LARGEST_RECORD if source.witness is None else source.witness.largest_record
    limit = source.size if stop is None else stop
    reach: int | None = min(at + largest, limit)
    while reach is not None:
        ahead = _look(source, search, reach + _BEHIND, own_end)
        while ahead.closed is None and not (len(ahead.start) and ahead.start[-1] > reach):
            ahead = _look(source, search, ahead.high + _BEHIND, own_end)
        first = int(np.searchsorted(ahead.start, search))
        start, size = ahead.start[first:], ahead.size[first:]
        if stop is not None and stop not in start:
            before = int(np.searchsorted(start + size, stop, "right"))
            return Resumed(stop, _named(source, start[:before], size[:before]))
        if not len(start):
            return Resumed(_closing(source, ahead))
        behind, reach = _behind(source, at, ahead, first, limit, passed, largest)
    if behind == len(start):
        return Resumed(_closing(source, ahead), _named(source, start, size))
    return Resumed(int(start[behind]), _named(source, start[:behind], size[:behind]))


def _behind(source: Source, at: int, ahead: _Ahead, first: int, limit: int, passed: EarlierMessages,
            largest: int) -> tuple[int, int | None]:
    """Return (number of frames from frame ``first`` to the last possible end; a position or None).

    If the second value is None, the number is final. Otherwise, frames must first be read up to
    that position. No possible end is after ``limit``.
    """
    start, is_open = ahead.start[first:], limit == source.size
    # How many records are lost before each frame, the damaged one among them.
    gap = ahead.gap[first:].copy()
    gap[0] = start[0] - at
    lost, ends = np.cumsum(_room(gap)), start - gap
    more = excess(source, at, Numbered(
        start, ahead.queue[first:], ahead.offset[first:], lost, ahead.queues.numbers,
        ahead.queues.batched), passed)
    beyond = _excess_beyond(source, at, ahead, int(lost[-1]), passed) if is_open else None
    # Of the damaged one, and of others that may begin in the damage between frames before its end.
    behind = 0
    for begin in [0, *(np.flatnonzero(gap[1:] >= MIN_HEAD) + 1).tolist()]:
        if begin > behind:
            break
        far = min((at if begin == 0 else int(ends[begin])) + largest, limit)
        if ahead.closed is None and far >= start[-1]:
            return behind, far
        # Frames before it may be messages, and so none of the missing ones; and where more are
        # missing at the first end than can be lost, others never were there.
        room = max(begin, int(more[begin]))
        if is_open and ahead.end <= far and (beyond is None or beyond <= room):
            return len(start), None
        last = int(np.searchsorted(ends, far, "right"))
        possible = np.flatnonzero(more[begin:last] <= room)
        behind = max(behind, begin + int(possible[-1]) if len(possible) else begin)
    return behind, None


def _named(source: Source, start: Array, size: Array) -> Doubtful:
    return tuple(zip((start + source.base).tolist(), size.tolist(), strict=True))


def _closing(source: Source, ahead: _Ahead) -> int | None:
    """Return the position of the file's blank, if the log continues in the next file."""
    if ahead.closed is None or ahead.closed == source.size or source.witness is None:
        return None
    return ahead.closed if source.witness.goes_on(source.base + source.size) else None


def _excess_beyond(source: Source, at: int, ahead: _Ahead, lost: int,
                   passed: EarlierMessages) -> int | None:
    """Assume that no frame in this file is a message. Return the number of messages that are then
    missing before the next file, minus the number that can be lost. Return None if the missing
    messages cannot be counted.

    Raises: StoreIOError.
    """
    if source.witness is None or ahead.closed is None:
        return None
    behind = source.witness.offsets_behind(source.base + source.size)
    return None if behind is None else excess_at(
        source, at, ahead.end, behind, lost + records_in(ahead.closed - ahead.end), passed)


def _room(gap: Array) -> Array:
    """Return the largest number of records that each gap between frames may contain.

    A gap may contain records of the smallest size, and the start of a record whose body continues
    after the gap.
    """
    room: Array = gap // MIN_SIZE
    long = gap >= MIN_HEAD
    room[long] = 1 + (gap[long] - MIN_HEAD) // MIN_SIZE
    return room


def _reaching_over(source: Source, start: int, end: int) -> int | None:
    """Return the position in ``(start, end)`` of a record that extends beyond ``end`` and is
    followed by a record or a blank. None if no such record is found.
    """
    position = start + 1
    for _ in range(_MAX_INSIDE):
        start_inside = next_provable(source, position, end)
        if start_inside is None:
            break
        size = located_size(source, start_inside)
        behind = start_inside + (size or 0)
        if behind > end and (is_blank(source, behind) or located_size(source, behind) is not None):
            return start_inside
        position = start_inside + 1
    return None


def _look(source: Source, low: int, high: int, own_end: Callable[[int], int | None]) -> _Ahead:
    """Return the frames that begin at positions in ``[low, high)``, and later frames that are
    already known.
    """
    # What earlier calls found of this file, if it reaches to here.
    file = source.of if isinstance(source, AtHand) else source
    ahead = _AHEAD.get(file)
    if ahead is None or not ahead.low <= low <= ahead.high:
        nothing: Array = np.zeros(0, np.int64)
        ahead = _AHEAD[file] = _Ahead(
            low, low, nothing, nothing, nothing, nothing, nothing)
    # Of that, what begins at `low` or after it.
    keep = int(np.searchsorted(ahead.start, low))
    columns = [[column[keep:]] for column in (
        ahead.start, ahead.size, ahead.gap, ahead.queue, ahead.offset)]
    end, at = max(ahead.end, low), ahead.high
    ahead.low = low
    # On from there, a block of frames at a time.
    while at < min(high, source.size) and ahead.closed is None:
        size = located_size(source, at)
        if size is None and at == end and len(columns[0][-1]) and not is_blank(source, at):
            # Two frames overlap: one of them is none, rather that after which nothing begins.
            start = int(columns[0][-1][-1])
            other = _reaching_over(source, start, at)
            if other is not None:
                at, end = other, start - int(columns[2][-1][-1])
                for column in columns:
                    column[-1] = column[-1][:-1]
                continue
        if size is not None:
            raw = source.read(at, max(_FIRST_BLOCK if at == low else _BLOCK, size))
            batch = records_from(np.frombuffer(raw, np.uint8), source.base + at, 0, len(raw),
                                 head=source.head)
            begin = batch.start - source.head + at
            gap: Array = np.zeros(len(batch), np.int64)
            gap[:1] = at - end
            for column, more in zip(columns, (
                    begin, batch.frame_size, gap, *ahead.queues.columns(batch)), strict=True):
                column.append(more)
            if len(batch):
                at = end = int(begin[-1] + batch.frame_size[-1])
                continue
        elif is_blank(source, at) and next_provable(source, at + 1, source.size) is None:
            ahead.closed = at
            break
        # No frame: after the damaged record's own end, or at the next record that proves itself.
        behind = own_end(at) if size is None else None
        if behind is None or behind <= at:
            behind = next_provable(source, at + 1, source.size)
        at = source.size if behind is None else behind
    if at >= source.size and ahead.closed is None:
        ahead.closed = source.size
    ahead.high = max(at, low)
    ahead.start, ahead.size, ahead.gap, ahead.queue, ahead.offset = map(np.concatenate, columns)
    return ahead
