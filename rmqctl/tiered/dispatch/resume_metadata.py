"""Metadata of a queue from its files: sizes, and the times of what has units (tiered.md §6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata, SegmentEntry
from rmqctl.formats.tiered.units import NEVER, UNIT_SIZE
from rmqctl.tiered.flat_file import Segment
from rmqctl.tiered.flat_queue import FlatQueue


def enter(queue: FlatQueue, metadata: Metadata, now: int) -> int:
    """Makes metadata say of a queue's segments what their files are; how many entries changed."""
    changed = 0
    for flat in (queue.commit_log, queue.consume_queue):
        known = metadata.segments[flat.kind].get(queue.name.path, {})
        for segment in flat.segments:
            entry = known.get(segment.base)
            if (entry is not None and entry.size == segment.usable
                    and (not segment.usable or NEVER not in (entry.begin_timestamp,
                                                             entry.end_timestamp))):
                continue
            begin, end = _times(queue, flat.kind, segment)
            entry = entry or SegmentEntry(queue.name.path, names.KINDS.index(flat.kind),
                                          segment.base, create_timestamp=now)
            new = replace(entry, size=segment.usable, begin_timestamp=begin, end_timestamp=end)
            if known.get(segment.base) != new:
                metadata.put_segment(new)
                changed += 1
    return changed


def unknown_topic(queues: Iterable[FlatQueue], metadata: Metadata) -> str | None:
    """A topic that has messages and no entry: metadata was lost, or is an old one. Its id stands
    in the index, and another one must not be given out. An entry is saved before a message goes.
    """
    for queue in queues:
        if queue.name.topic not in metadata.topics and any(
                one.size for one in queue.commit_log.segments):
            return queue.name.topic
    return None


def _times(queue: FlatQueue, kind: str, segment: Segment) -> tuple[int, int]:
    """Store times of the first and the last message of a segment that have units."""
    if kind == names.CONSUME_QUEUE:
        first, end = segment.base // UNIT_SIZE, segment.end // UNIT_SIZE
    else:
        first, end = (_first_at(queue, at) for at in (segment.base, segment.end))
    if first >= end:
        return NEVER, NEVER
    begin, last = _time(queue, first), _time(queue, end - 1)
    return (NEVER, NEVER) if begin is None or last is None else (min(begin, last),
                                                                 max(begin, last))


def _first_at(queue: FlatQueue, tiered_offset: int) -> int:
    """The first queue offset whose message begins at or behind a place in the commit log."""
    low, high = queue.cq_start, queue.commit_offset
    while low < high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is not None and unit.commit_log_offset < tiered_offset:
            low = middle + 1
        else:
            high = middle
    return low


def _time(queue: FlatQueue, queue_offset: int) -> int | None:
    try:
        found: int = queue.record(queue_offset).store_timestamp
    except (FormatError, StoreIOError):
        return None
    return found
