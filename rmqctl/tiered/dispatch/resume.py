"""Completes what an upload that was killed left of a queue (tiered.md §8.3, §18).

A torn unit is cut off. Whole messages behind the last one the consume queue knows, which continue
the queue, get their units, so nothing is uploaded twice and nothing shifts; a torn message behind
them is cut off. What is cut is kept aside. Then the files are made to last, and the metadata says
of them what is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqctl.errors import FormatError
from rmqctl.formats.local import message
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata
from rmqctl.formats.tiered.units import UNIT, UNIT_SIZE
from rmqctl.scan.frames import BLANK, Batch
from rmqctl.scan.walk import Walk
from rmqctl.tiered.dispatch.append_file import Growing, settle
from rmqctl.tiered.dispatch.local import computed_tags
from rmqctl.tiered.dispatch.resume_metadata import enter
from rmqctl.tiered.files.reader import close_source
from rmqctl.tiered.flat_file import FlatFile, Segment
from rmqctl.tiered.flat_queue import FlatQueue

if TYPE_CHECKING:
    from rmqctl.tiered.files.writer import Feeder

Array = np.ndarray[Any, np.dtype[Any]]
TagsOf = Callable[[int, bytes], int | None]
"""(queue offset, record as the tier has it) -> tags code; None: not this queue's message."""


@dataclass(slots=True)
class Completed:
    """What was done to a queue. ``units`` were added; ``cut`` are (file, bytes cut off, where they
    are kept); ``fault``: why the queue cannot be continued. ``entries`` of metadata changed.
    """

    units: int = 0
    cut: list[tuple[str, int, str]] = field(default_factory=list)
    entries: int = 0
    fault: str | None = None

    @property
    def changed(self) -> bool:
        return bool(self.units or self.cut or self.entries)


@dataclass(slots=True)
class _Tail:
    """What lies behind the last message that has a unit."""

    next: int
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    whole_to: int = 0


def complete(feeder: Feeder, queue: FlatQueue, metadata: Metadata, limit: int,
             now: Callable[[], int], tags_of: TagsOf | None = None) -> Completed:
    """Completes one queue; ``limit`` is the largest consume queue segment. The metadata is changed
    but not saved.

    StoreIOError. A queue that cannot be continued has a ``fault`` and is left as it is.
    """
    loose = _unconfirmed(queue, metadata)
    done, tail = _looked_at(queue, tags_of)
    if done.fault is not None:
        return done
    rows, log = queue.consume_queue, queue.commit_log
    for segment in loose:
        kept = feeder.put_aside(segment.path)
        done.cut.append((segment.path, segment.size, kept))
        metadata.segments[segment.path.split("/")[-2]].get(queue.name.path, {}).pop(
            segment.base, None)
    for number, (path, size, kept) in enumerate(done.cut):
        if kept:
            continue
        there = feeder.size(path) or 0
        done.cut[number] = path, size, feeder.cut(path, there - size) or ""
    # The commit log first: a unit never leads to what may be gone after a power failure.
    for one in (*log.segments[-2:], *rows.segments[-2:]):
        settle(feeder, one.path)
    if tail.offsets:
        _add(feeder, queue, metadata, limit, now, tail)
    refresh(queue, FlatFile.open(feeder, log.folder), FlatFile.open(feeder, rows.folder))
    done.entries = enter(queue, metadata, now())
    return done


def rehearse(queue: FlatQueue, metadata: Metadata, tags_of: TagsOf | None = None) -> Completed:
    """What `complete` would add and cut; nothing is changed but what ``queue`` sees."""
    loose = _unconfirmed(queue, metadata)
    done, _ = _looked_at(queue, tags_of)
    if done.fault is None:
        done.cut += [(segment.path, segment.size, "") for segment in loose]
    return done


def _unconfirmed(queue: FlatQueue, metadata: Metadata) -> list[Segment]:
    """Takes away, from what the queue sees, segments behind a gap that metadata does not confirm.

    After a power failure a segment may have reached the disk and the end of the one before not:
    nothing in it was ever committed.
    """
    loose = []
    for flat in (queue.consume_queue, queue.commit_log):
        known = metadata.segments[flat.kind].get(queue.name.path, {})
        gap = next(flat.gaps(), None)
        if gap is None:
            continue
        number = flat.segments.index(gap[1])
        behind = flat.segments[number:]
        before = known.get(gap[0].base)
        if ((before is None or before.size <= gap[0].size)
                and all(one.base not in known or not known[one.base].size for one in behind)):
            loose += behind
            del flat.segments[number:]
    return loose


def _looked_at(queue: FlatQueue, tags_of: TagsOf | None) -> tuple[Completed, _Tail]:
    done, tail = Completed(), _Tail(-1)
    done.fault = _torn_inside(queue)
    if done.fault is None:
        end, done.fault = _known_end(queue)
    if done.fault is not None:
        return done, tail
    tail = _tail(queue, end, tags_of or _computed)
    rows, log = queue.consume_queue.segments, queue.commit_log.segments
    if rows and rows[-1].size % UNIT_SIZE:
        done.cut.append((rows[-1].path, rows[-1].size % UNIT_SIZE, ""))
    if log and log[-1].end > tail.whole_to:
        keep = max(tail.whole_to - log[-1].base, 0)
        done.cut.append((log[-1].path, log[-1].size - keep, ""))
    done.units = len(tail.offsets)
    return done, tail


def refresh(queue: FlatQueue, log: FlatFile, rows: FlatFile) -> None:
    """Lets a queue see its files as they are now."""
    queue.commit_log, queue.consume_queue = log, rows


def _torn_inside(queue: FlatQueue) -> str | None:
    """Whether a segment that is not the last is not what the next one's base makes it."""
    for one, other in queue.consume_queue.gaps():
        return f"units are missing between {one.name} and {other.name}"
    for one, other in queue.commit_log.gaps():
        return f"bytes of the commit log are missing between {one.name} and {other.name}"
    if any(one.base % UNIT_SIZE for one in queue.consume_queue.segments):
        return "a segment of the consume queue begins in the middle of a unit"
    return None


def _known_end(queue: FlatQueue) -> tuple[int, str | None]:
    """(tiered offset behind the last message that has a unit, why that cannot be)."""
    log = queue.commit_log
    unit = queue.unit(queue.commit_offset - 1) if queue.commit_offset > queue.cq_start else None
    if unit is None:
        return log.start, None
    end = unit.commit_log_offset + unit.size
    if unit.size < message.MIN_SIZE or unit.commit_log_offset < 0:
        return 0, (f"the unit of queue offset {queue.commit_offset - 1} is damaged; "
                   "see `rmqctl tiered recover`")
    if end > log.end:
        return 0, (f"the unit of queue offset {queue.commit_offset - 1} leads behind the end of "
                   f"the commit log ({end}, it ends at {log.end}); see `rmqctl tiered recover`")
    return end, None


def _computed(_: int, raw: bytes) -> int | None:
    try:
        return computed_tags(raw)
    except FormatError:
        return None


def _tail(queue: FlatQueue, end: int, tags_of: TagsOf) -> _Tail:
    """Goes through the commit log behind ``end``: which messages continue the queue, and where
    the last whole frame ends.
    """
    known = bool(queue.consume_queue.segments)
    tail = _Tail(queue.commit_offset if known else -1, whole_to=end)
    for segment in queue.commit_log.segments:
        if segment.end <= end or not segment.usable:
            continue
        source = queue.commit_log.reader.source(segment.path, segment.base)
        try:
            for batch in Walk(source, max(end - segment.base, 0), segment.usable):
                _take(queue, tail, batch, tags_of)
                for span in batch.spans:
                    if span.kind == BLANK:  # a coda
                        tail.whole_to = max(tail.whole_to, span.end)
        finally:
            close_source(source)
    return tail


def _take(queue: FlatQueue, tail: _Tail, batch: Batch, tags_of: TagsOf) -> None:
    if not len(batch):
        return
    offset, size = batch.offset.tolist(), batch.column("total_size").tolist()
    number, time = batch.column("queue_offset").tolist(), batch.column("store_timestamp").tolist()
    good = batch.crc_ok() & (batch.column("queue_id") == queue.name.queue_id)
    topic = queue.name.topic.encode("utf-8", "surrogateescape")
    starts, lengths = batch.column("topic_start"), batch.column("topic_length")
    tail.whole_to = max(tail.whole_to, offset[-1] + size[-1])
    for row in range(len(batch)):
        if not good[row] or (tail.next >= 0 and number[row] != tail.next):
            continue
        at = int(starts[row])
        if batch.data[at:at + int(lengths[row])].tobytes() != topic:
            continue
        tags = tags_of(number[row], batch.bytes_at(row))
        if tags is None:
            continue
        tail.offsets.append(offset[row])
        tail.sizes.append(size[row])
        tail.tags.append(tags)
        tail.times.append(time[row])
        tail.next = number[row] + 1


def _add(feeder: Feeder, queue: FlatQueue, metadata: Metadata, limit: int,
         now: Callable[[], int], tail: _Tail) -> None:
    """Appends the units of messages that had none."""
    flat = FlatFile.open(feeder, queue.consume_queue.folder)
    known = metadata.segments[names.CONSUME_QUEUE].get(queue.name.path, {})
    growing = Growing(feeder, queue.name, flat, limit, known, now)
    if growing.path is None:
        growing.start((tail.next - len(tail.offsets)) * UNIT_SIZE)
    growing.append(*unit_rows(tail.offsets, tail.sizes, tail.tags),
                   np.array(tail.times, np.int64))
    for path in growing.dirty():
        feeder.commit(path)


def unit_rows(offsets: Any, sizes: Any, tags: Any) -> tuple[bytes, Array]:
    """(the bytes of units, the place behind each)."""
    rows = np.empty(len(offsets), UNIT.dtype())
    rows["commit_log_offset"], rows["size"], rows["tags_code"] = offsets, sizes, tags
    return rows.tobytes(), np.arange(1, len(rows) + 1, dtype=np.int64) * UNIT_SIZE
