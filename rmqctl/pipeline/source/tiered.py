"""What is read of tiers, cut into pieces: units of consume queues, or ranges of commit logs.

A unit leads to just one message, so pieces of units need no seams: any cut between two units is
one. Only who wants what no unit leads to (``orphans=include``) has the commit logs walked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqctl.errors import NotAStoreError, StoreIOError
from rmqctl.formats.tiered.units import UNIT_SIZE
from rmqctl.pipeline.source.schema import TIERED_MESSAGES
from rmqctl.tiered.files.reader import is_url
from rmqctl.tiered.flat_file import Segment
from rmqctl.tiered.tier import Tier

if TYPE_CHECKING:
    from rmqctl.pipeline.source.pushdown import Filters
    from rmqctl.tiered.flat_queue import FlatQueue


@dataclass(frozen=True, slots=True)
class TierQueue:
    """The queue that pieces belong to. ``root`` is where the tier lies, for any process; folders
    are relative to it. ``log``: (start, end) of what the commit log's segments had at planning.
    """

    store: str
    root: str
    cluster: str
    broker: str
    topic: str
    queue_id: int
    log_folder: str
    queue_folder: str
    log: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class UnitPiece:
    """Messages of the units ``[start, end)`` of a consume queue segment (numbers in the file)."""

    queue: TierQueue
    segment: Segment
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RecordPiece:
    """The records of a commit log segment that begin in ``[start, end)``, two cuts anywhere."""

    queue: TierQueue
    segment: Segment
    start: int
    end: int


TierPiece = UnitPiece | RecordPiece
TierItem = tuple[int, Callable[[int, int], TierPiece]]
"""(bytes of it, what makes a piece of a range of them)."""


def has_tier(path: str) -> bool:
    """Whether a path is a tier, or a store that has one. StoreIOError."""
    try:
        Tier.open(path).close()
    except NotAStoreError:
        return False
    return True


def holding(table: str, paths: Sequence[str]) -> list[str]:
    """Of stores and tiers those that a table is read of: all, where none has a tier."""
    return [one for one in paths if table != TIERED_MESSAGES or has_tier(one)] or list(paths)


def of_tier(path: str, filters: Filters, *, orphans: bool) -> Iterator[TierItem]:
    """What is read of the tier ``path``. NotAStoreError; StoreIOError for what cannot be looked
    at: its messages would be missing.
    """
    with Tier.open(path if is_url(path) else os.path.abspath(path)) as tier:
        for one in tier.problems:
            if one.unreadable:
                raise StoreIOError(f"cannot look at {tier.reader.where(one.path)}: {one.reason}")
        for flat in tier.queues():
            if filters.takes_topic(flat.name.topic) and filters.takes_queue(flat.name.queue_id):
                queue = _queue(path, tier.name, flat)
                yield from _records(queue, flat) if orphans else _units(queue, flat)


def _queue(path: str, root: str, flat: FlatQueue) -> TierQueue:
    name, log = flat.name, flat.commit_log
    return TierQueue(path, root, name.cluster, name.broker, name.topic, name.queue_id,
                     log.folder, flat.consume_queue.folder,
                     tuple((one.base, one.end) for one in log.segments if one.usable))


def _units(queue: TierQueue, flat: FlatQueue) -> Iterator[TierItem]:
    """The weight of units is that of their messages, if all were of one size."""
    segments = [one for one in flat.consume_queue.segments if one.usable >= UNIT_SIZE]
    of_log = sum(one.usable for one in flat.commit_log.segments)
    of_rows = sum(one.usable for one in segments)
    rows = weight = 0
    for one in segments:
        rows += one.usable
        before, weight = weight, of_log * rows // of_rows
        yield _unit_item(queue, one, max(one.usable, weight - before))


def _unit_item(queue: TierQueue, segment: Segment, weight: int) -> TierItem:
    count = segment.usable // UNIT_SIZE

    def cut(start: int, end: int) -> UnitPiece:
        return UnitPiece(queue, segment, start * count // weight, end * count // weight)

    return weight, cut


def _records(queue: TierQueue, flat: FlatQueue) -> Iterator[TierItem]:
    for one in flat.commit_log.segments:
        if one.usable:
            yield _record_item(queue, one)


def _record_item(queue: TierQueue, segment: Segment) -> TierItem:
    def cut(start: int, end: int) -> RecordPiece:
        return RecordPiece(queue, segment, start, end)

    return segment.usable, cut
