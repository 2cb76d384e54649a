"""Lost messages with their positions, and the question whether a selected part lacks any.

A lost message was in a damaged or missing range of the log, or after the end of the log. The part
is complete in two cases:

* All these ranges are outside the part. A range is outside by physical offset, or by the store
  times of the messages before and after it.
* The part is a topic or a queue, and consume queue entries show that the ranges contained only
  messages of other queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple, Protocol

from rmqctl.checks.consumers import QueueLosses
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.formats.local.message import MIN_SIZE
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.scan.queue_reach import ENDLESS
from rmqctl.store.log.end import find_end
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Store

MAX_PLACES = 1000
"""Maximum number of lost messages that are listed with their positions."""
_MAX_RANGES, _MAX_MESSAGES = 64, 1 << 16
_NEAR = 8 << 20
"""Number of bytes of the log before or after a range in which a message is searched."""
_BLOCK = 4096
Queues = Mapping[tuple[str, int], QueueLosses]
Range = tuple[int, int]
"""A range of the log, as physical offsets."""


class SelectedPart(Protocol):
    """The conditions of a selection that limit where its messages may be."""

    @property
    def topic(self) -> str | None: ...
    @property
    def queue_id(self) -> int | None: ...
    @property
    def from_phy(self) -> int | None: ...
    @property
    def to_phy(self) -> int | None: ...
    @property
    def since(self) -> int | None: ...
    @property
    def until(self) -> int | None: ...


class LostPlace(NamedTuple):
    """A lost message that a queue proves. ``physical_offset`` and ``size`` are None if no entry
    points to the message.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int | None
    size: int | None


def lost_places(store: Store, queues: Queues) -> Iterator[LostPlace]:
    """Yield the lost messages that queues prove, queue by queue. Light queues are omitted: their
    messages are those of other queues. Raises: StoreIOError.
    """
    for (topic, queue_id), losses in sorted(queues.items()):
        if losses.lost and not topic.startswith(LMQ_PREFIX):
            queue = store.queues.find(topic, queue_id)
            for first, end in losses.lost.runs().tolist():
                for start in range(first, end, _BLOCK):
                    yield from _of_queue(queue, topic, queue_id, start, min(end, start + _BLOCK))


def _of_queue(queue: ConsumeQueue | None, topic: str, queue_id: int, start: int,
              end: int) -> Iterator[LostPlace]:
    entries: list[tuple[int, int]] = [(0, 0)] * (end - start)
    if isinstance(queue, ConsumeQueue) and queue.exists:
        with closing(queue):
            units = map(queue.unit, range(start, end))
            entries = [(0, 0) if unit is None else (unit.physical_offset, unit.size)
                       for unit in units]
    for offset, (place, size) in zip(range(start, end), entries, strict=True):
        is_entry = size >= MIN_SIZE and size != FILLER.size and place >= 0
        yield LostPlace(topic, queue_id, offset, place if is_entry else None,
                        size if is_entry else None)


def may_lack(store: Store, part: SelectedPart, queues: Queues | None, unplaced: int,
             ranges: Sequence[Range] | None) -> bool:
    """Return whether a part of a store may lack messages that the store has lost.

    ``queues``: the losses of each queue; None if unknown.
    ``unplaced``: number of lost messages whose queue is unknown.
    ``ranges``: all damaged and missing ranges of the files that the part reads; None if unknown.
    Raises: StoreIOError.
    """
    if ranges is None or len(ranges) > _MAX_RANGES:
        return True
    end = find_end(store).offset
    listed = None if queues is None else [*islice(lost_places(store, queues), _MAX_MESSAGES + 1)]
    if listed is not None and len(listed) > _MAX_MESSAGES:
        listed = None
    at_end = listed is None or unplaced or any(
        lost.physical_offset is None or lost.physical_offset >= end for lost in listed)
    # A lost message outside of all ranges: its bytes are overwritten.
    overwritten = [] if listed is None else [
        (lost.physical_offset, lost.physical_offset + lost.size) for lost in listed
        if lost.physical_offset is not None and lost.size is not None and not any(
            start <= lost.physical_offset < stop for start, stop in ranges)]
    if len(overwritten) > _MAX_RANGES:
        return True
    every = [*ranges, *overwritten, *[(end, ENDLESS)] * bool(at_end)]
    inside = [(start, stop) for start, stop in every
              if not _is_outside(store, part, start, stop)]
    if not inside:
        return False
    if part.topic is None or listed is None or unplaced:
        return True
    return not _of_others(part, listed, inside)


def _of_others(part: SelectedPart, listed: Sequence[LostPlace], inside: Sequence[Range]) -> bool:
    """Return whether entries show that ranges contained only messages of other queues."""
    covered: list[Range] = []
    for lost in listed:
        own = lost.topic == part.topic and part.queue_id in (None, lost.queue_id)
        if lost.physical_offset is None or lost.size is None:
            if own:
                return False
            continue
        end = lost.physical_offset + lost.size
        if any(start < end and lost.physical_offset < stop for start, stop in inside):
            if own:
                return False
            covered.append((lost.physical_offset, end))
    covered.sort()
    return all(stop == ENDLESS or _is_covered(start, stop, covered) for start, stop in inside)


def _is_covered(start: int, end: int, covered: Sequence[Range]) -> bool:
    """Return whether no part of a range that has space for a message is uncovered."""
    for first, stop in covered:
        if first - start >= MIN_SIZE and first < end:
            return False
        start = max(start, stop)
    return end - start < MIN_SIZE


def _is_outside(store: Store, part: SelectedPart, start: int, end: int) -> bool:
    """Return whether no message of a part can have been in a range of the log."""
    if part.to_phy is not None and part.to_phy <= start:
        return True
    if part.from_phy is not None and part.from_phy >= end:
        return True
    if part.until is None and part.since is None:
        return False
    before = _time_before(store, start)
    after = None if end == ENDLESS else _time_after(store, end)
    if before is not None and after is not None and after < before:
        return False  # the clock was set back
    return (part.until is not None and before is not None and before > part.until) or (
        part.since is not None and after is not None and after < part.since)


def _time_before(store: Store, place: int) -> int | None:
    """Return the store time of the last message before a physical offset; None if unknown."""
    time = None
    for batch in store.log.walk(max(place - _NEAR, 0), place):
        if len(batch):
            time = int(batch.column("store_timestamp")[-1])
    return time


def _time_after(store: Store, place: int) -> int | None:
    """Return the store time of the first message after a physical offset; None if unknown."""
    for batch in store.log.walk(place, place + _NEAR):
        if len(batch):
            return int(batch.column("store_timestamp")[0])
    return None

