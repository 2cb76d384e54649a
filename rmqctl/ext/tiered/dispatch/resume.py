"""Complete the queues that a killed upload left unfinished (tiered.md §8.3, §18). ``tiered commit``
does this for all queues of a tier, without the local store.

A torn unit is truncated. The intact messages after the last message that has a unit get units if
they continue the queue. As a result, no message is uploaded twice and no offset changes. A torn
message at the end is truncated.

Truncated bytes are first copied to another file. Then the files are flushed, and the metadata is
updated to match the files.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import field, replace
from typing import Any

import numpy as np

from rmqctl.errors import FormatError, RefusedError, StoreIOError, UsageError
from rmqctl.ext.tiered.dispatch.append_file import AppendFile
from rmqctl.ext.tiered.dispatch.local import computed_tags
from rmqctl.ext.tiered.files import metadata_file
from rmqctl.ext.tiered.files.locking import locked
from rmqctl.ext.tiered.files.opening import open_writer
from rmqctl.ext.tiered.files.settings import resolve
from rmqctl.ext.tiered.files.writer import TierWriter
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue, QueueName, Segment
from rmqctl.ext.tiered.recover.survey import ROW, MessageRows
from rmqctl.ext.tiered.slots import SegmentSlots
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.local import message
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata, QueueEntry, SegmentEntry, TopicEntry
from rmqctl.formats.tiered.units import CODA_SIZE, NEVER, UNIT, UNIT_SIZE, is_coda
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import BLANK, Array, Batch
from rmqctl.store.problems import ambiguity
from rmqctl.store.queue.search import LAST, first_from

TagsOf = Callable[[int, bytes], int | None]
"""A function of a queue offset and a record of the tier. It returns the record's tags code, or None
if the record is not the queue's message with this offset.
"""


@dataclass(slots=True)
class QueueCompletion:
    """Changes of a queue.

    ``units``: number of added units.
    ``cut``: for each truncation, (file, number of truncated bytes, path of their copy).
    ``entries``: number of changed metadata entries.
    ``fault``: why the queue cannot be continued.
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
    """The part of the commit log after the last message with a unit.

    ``rows``: `ROW`s of the messages that continue the queue.
    ``next``: the queue offset after these messages; -1 if unknown.
    ``whole_to``: logical offset at which the last intact frame ends.
    ``doubtful``: (position, size) of intact records that may be messages or part of a message body.
    """

    next: int
    whole_to: int = 0
    rows: list[Array] = field(default_factory=list)
    doubtful: list[tuple[int, int]] = field(default_factory=list)


# -- one queue ------------------------------------------------------------------------------------

def resume(writer: TierWriter, queue: FlatQueue, metadata: Metadata, limit: int,
           now: Callable[[], int], tags_of: TagsOf | None = None) -> QueueCompletion:
    """Complete a queue and change the metadata without saving it. A queue that cannot be continued
    has a ``fault`` and is not changed.

    ``limit``: maximum size of a consume queue segment (bytes). ``now`` returns ms.
    Raises: StoreIOError.
    """
    loose = _unconfirmed(queue, metadata)
    resumed, tail = _examined(queue, tags_of)
    if resumed.fault is not None:
        return resumed
    rows, log = queue.consume_queue, queue.commit_log
    # Remove segments that were never committed, then torn ends.
    for segment in loose:
        moved_to = writer.put_aside(segment.path)
        resumed.cut.append((segment.path, segment.size, moved_to))
        metadata.segments[segment.path.split("/")[-2]].get(queue.name.path, {}).pop(
            segment.base, None)
    for number, (path, size, moved_to) in enumerate(resumed.cut):
        if not moved_to:
            present = writer.size(path) or 0
            resumed.cut[number] = path, size, writer.cut(path, present - size) or ""
    # The commit log first: units must not point to messages that a power failure may erase.
    for segment in (*log.segments[-2:], *rows.segments[-2:]):
        writer.settle(segment.path)
    if tail.rows:
        _add_units(writer, queue, metadata, limit, now, tail)
    queue.commit_log = FlatFile.open(writer, log.folder)
    queue.consume_queue = FlatFile.open(writer, rows.folder)
    resumed.entries = enter_segments(queue, metadata, now())
    return resumed


def plan_resume(queue: FlatQueue, metadata: Metadata,
                tags_of: TagsOf | None = None) -> QueueCompletion:
    """Return what `resume` would add and truncate. No file is changed; only ``queue`` is changed in
    memory.
    """
    loose = _unconfirmed(queue, metadata)
    resumed, _ = _examined(queue, tags_of)
    if resumed.fault is None:
        resumed.cut += [(segment.path, segment.size, "") for segment in loose]
    return resumed


def _unconfirmed(queue: FlatQueue, metadata: Metadata) -> list[Segment]:
    """Remove from ``queue`` the segments after a gap, if the metadata does not confirm them; return
    the removed segments. Only the object in memory changes.

    After a power failure, a segment may be on disk although the end of the previous segment is
    missing. No byte of such a segment was ever committed.
    """
    loose = []
    for flat in (queue.consume_queue, queue.commit_log):
        entries = metadata.segments[flat.kind].get(queue.name.path, {})
        gap = next(flat.gaps(), None)
        if gap is None:
            continue
        number = flat.segments.index(gap[1])
        behind = flat.segments[number:]
        before = entries.get(gap[0].base)
        if ((before is None or before.size <= gap[0].size)
                and all(segment.base not in entries or not entries[segment.base].size
                        for segment in behind)):
            loose += behind
            del flat.segments[number:]
    return loose


def _examined(queue: FlatQueue, tags_of: TagsOf | None) -> tuple[QueueCompletion, _Tail]:
    """Return the planned changes of a queue, and the messages that need units. If the queue cannot
    be continued, the changes contain only the reason.
    """
    resumed = QueueCompletion(fault=_damage_inside(queue))
    last: tuple[int, int] | None = None
    if resumed.fault is None:
        last, resumed.fault = _last_message(queue)
    if resumed.fault is not None:
        return resumed, _Tail(-1)
    tail = _tail(queue, last, tags_of or _computed)
    rows, log = queue.consume_queue.segments, queue.commit_log.segments
    if tail.doubtful and not _is_torn(queue, tail.whole_to):
        resumed.fault = f"{ambiguity(tail.doubtful)}; see `rmqctl tiered recover`"
        return resumed, tail
    if rows and rows[-1].size % UNIT_SIZE:
        resumed.cut.append((rows[-1].path, rows[-1].size % UNIT_SIZE, ""))
    if log and log[-1].end > tail.whole_to:
        keep = max(tail.whole_to - log[-1].base, 0)
        resumed.cut.append((log[-1].path, log[-1].size - keep, ""))
    resumed.units = len(tail.rows)
    return resumed, tail


def _damage_inside(queue: FlatQueue) -> str | None:
    """Describe a gap between segments, or a segment that starts inside a unit; None if the queue
    has no such damage.
    """
    for segment, other in queue.consume_queue.gaps():
        return f"units are missing between {segment.name} and {other.name}"
    for segment, other in queue.commit_log.gaps():
        return f"bytes of the commit log are missing between {segment.name} and {other.name}"
    if any(segment.base % UNIT_SIZE for segment in queue.consume_queue.segments):
        return "a segment of the consume queue begins in the middle of a unit"
    return None


def _last_message(queue: FlatQueue) -> tuple[tuple[int, int] | None, str | None]:
    """Return (position, end) of the last message with a unit, and a fault.

    The first value is None if no message has a unit or the unit is invalid. The second value is the
    reason why the unit is invalid, or None.
    """
    log = queue.commit_log
    unit = queue.unit(queue.commit_offset - 1) if queue.commit_offset > queue.cq_start else None
    if unit is None:
        return None, None
    place = unit.commit_log_offset
    if unit.size < message.MIN_SIZE or place < 0:
        return None, (f"the unit at queue offset {queue.commit_offset - 1} is damaged; "
                   "see `rmqctl tiered recover`")
    if is_coda(log.read(place, CODA_SIZE)):
        place += CODA_SIZE
    end = place + unit.size
    if end > log.end:
        return None, (f"the unit at queue offset {queue.commit_offset - 1} points to a message "
                      f"that would end at {end}, but the commit log ends at {log.end}; see "
                      "`rmqctl tiered recover`")
    return (place, end), None


def _tail(queue: FlatQueue, last: tuple[int, int] | None, tags_of: TagsOf) -> _Tail:
    """Return the messages of the commit log that continue the queue after the message ``last``, and
    the end of the last intact frame.

    ``last``: position and end of a message. If None, begin at the start of the log.
    """
    has_units = bool(queue.consume_queue.segments)
    log, messages = queue.commit_log, MessageRows(queue.name)
    end = log.start if last is None else last[1]
    tail = _Tail(queue.commit_offset if has_units else -1, end)
    slots = SegmentSlots(log, queue.name, last)
    for segment in log.segments:
        if segment.end <= end or not segment.usable:
            continue
        with log.walk(segment, max(end - segment.base, 0)) as walk:
            for batch in slots.batches(walk):
                if len(batch):
                    _take_messages(messages, tail, batch, tags_of)
                for span in batch.spans:
                    tail.doubtful += span.doubtful
                    if span.kind == BLANK:  # a coda
                        tail.whole_to = max(tail.whole_to, span.end)
    return tail


def _is_torn(queue: FlatQueue, offset: int) -> bool:
    """Return whether the log ends within the message at an offset, according to the message's size
    field.
    """
    head = queue.commit_log.read(offset, message.START_SIZE)
    return len(head) < message.START_SIZE or (
        message.is_magic(message.magic_at(head))
        and message.total_size_at(head) > queue.commit_log.end - offset)


def _take_messages(messages: MessageRows, tail: _Tail, batch: Batch, tags_of: TagsOf) -> None:
    """Add the messages of a batch that continue the queue."""
    rows, own = messages.of(batch)
    tail.whole_to = max(tail.whole_to, int(rows["position"][-1] + rows["size"][-1]))
    for number in np.flatnonzero(own & batch.crc_ok()).tolist():
        queue_offset = int(rows["queue_offset"][number])
        if tail.next >= 0 and queue_offset != tail.next:
            continue
        tags = tags_of(queue_offset, batch.bytes_at(number))
        if tags is not None:
            rows["tags_code"][number] = tags
            tail.rows.append(rows[number])
            tail.next = queue_offset + 1


def _computed(_: int, raw: bytes) -> int | None:
    try:
        return computed_tags(raw)
    except FormatError:
        return None


def _add_units(writer: TierWriter, queue: FlatQueue, metadata: Metadata, limit: int,
               now: Callable[[], int], tail: _Tail) -> None:
    """Append units for the messages of ``tail``."""
    flat = FlatFile.open(writer, queue.consume_queue.folder)
    entries = metadata.segments[names.CONSUME_QUEUE].get(queue.name.path, {})
    file = AppendFile(writer, queue.name, flat, limit, entries, now)
    rows = np.array(tail.rows, ROW)
    if file.path is None:
        file.start((tail.next - len(rows)) * UNIT_SIZE)
    file.append(*unit_rows(rows["position"], rows["size"], rows["tags_code"]), rows["store_time"])
    for path in file.dirty():
        writer.commit(path)


def unit_rows(offsets: Any, sizes: Any, tags: Any) -> tuple[bytes, Array]:
    """Return consume queue units as bytes, and the position after each unit."""
    rows = np.empty(len(offsets), UNIT.dtype())
    rows["commit_log_offset"], rows["size"], rows["tags_code"] = offsets, sizes, tags
    return rows.tobytes(), np.arange(1, len(rows) + 1, dtype=np.int64) * UNIT_SIZE


# -- its metadata ---------------------------------------------------------------------------------

def enter_queue(metadata: Metadata, name: QueueName, now: int) -> int:
    """Add the topic's and queue's metadata entries, and return the number of new entries. Without
    these entries, a broker does not open the files.
    """
    changed = 0
    if name.topic not in metadata.topics:
        metadata.serial += 1
        metadata.topics[name.topic] = TopicEntry(metadata.serial, name.topic, update_timestamp=now)
        changed += 1
    table = metadata.queues.setdefault(name.topic, {})
    if name.queue_id not in table:
        table[name.queue_id] = QueueEntry(name.topic, name.broker, name.queue_id,
                                          update_timestamp=now)
        changed += 1
    return changed


def enter_segments(queue: FlatQueue, metadata: Metadata, now: int) -> int:
    """Update the metadata of a queue's segments from the segment files; return the number of
    changes.
    """
    changed = 0
    for flat in (queue.commit_log, queue.consume_queue):
        entries = metadata.segments[flat.kind].get(queue.name.path, {})
        for segment in flat.segments:
            entry = entries.get(segment.base)
            if (entry is not None and entry.size == segment.usable
                    and (not segment.usable or NEVER not in (entry.begin_timestamp,
                                                             entry.end_timestamp))):
                continue
            begin, end = _times(queue, flat.kind, segment)
            entry = entry or SegmentEntry(queue.name.path, names.KINDS.index(flat.kind),
                                          segment.base, create_timestamp=now)
            new = replace(entry, size=segment.usable, begin_timestamp=begin, end_timestamp=end)
            if entries.get(segment.base) != new:
                metadata.put_segment(new)
                changed += 1
    return changed


def unknown_topic(queues: Iterable[FlatQueue], metadata: Metadata) -> str | None:
    """Return a topic that has messages but no metadata entry, or None.

    A dispatch saves the entry of a topic before it uploads messages. A missing entry means that the
    metadata was lost or is outdated. The index contains the topic's id, so the topic must not get a
    new id.
    """
    for queue in queues:
        if queue.name.topic not in metadata.topics and any(
                segment.size for segment in queue.commit_log.segments):
            return queue.name.topic
    return None


def _times(queue: FlatQueue, kind: str, segment: Segment) -> tuple[int, int]:
    """Return the store times of the first and the last message that has a unit in a segment."""
    if kind == names.CONSUME_QUEUE:
        first, end = segment.base // UNIT_SIZE, segment.end // UNIT_SIZE
    else:
        first, end = (first_from(queue, queue.cq_start, queue.commit_offset, place, gap=LAST)
                      for place in (segment.base, segment.end))
    if first >= end:
        return NEVER, NEVER
    begin, last = _time(queue, first), _time(queue, end - 1)
    return (NEVER, NEVER) if begin is None or last is None else (min(begin, last),
                                                                 max(begin, last))


def _time(queue: FlatQueue, queue_offset: int) -> int | None:
    try:
        return int(queue.record(queue_offset).store_timestamp)
    except (FormatError, StoreIOError):
        return None


# -- all queues of a tier -------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Committed:
    """A queue of a tier and its changes."""

    queue: FlatQueue
    done: QueueCompletion

    def as_dict(self) -> dict[str, Any]:
        name, done = self.queue.name, self.done
        return {"broker": name.broker, "topic": name.topic, "queue_id": name.queue_id,
                "units_added": done.units, "bytes_cut": sum(size for _, size, _ in done.cut),
                "kept": [moved_to for *_, moved_to in done.cut if moved_to],
                "entries_changed": done.entries,
                "status": ("refused" if done.fault else "completed" if done.changed else
                           "nothing to do"),
                "reason": done.fault}


def commit_tier(root: str, metadata: str | None, clock: Callable[[], int], *,
                dry_run: bool = False, outside: Sequence[str] = ()) -> Generator[Committed]:
    """Complete the queues of a tier one after the other, and save the metadata at the end.

    ``outside``: folders to which links may point.
    Raises: NotAStoreError, StoreHeldError, StoreIOError; UsageError without metadata; RefusedError
    if saving would lose a part of the metadata.
    """
    with Tier.open(root, metadata) as tier:
        path, broker_root, tier_root = tier.metadata_path, tier.broker_root, tier.name
        if path is None or broker_root is None:
            raise UsageError(f"{root}: tieredStoreMetadata.json not found; pass it with "
                             "--metadata, or create it with `rmqctl tiered recover`")
        if dry_run:
            _refuse(tier, path)
            for queue in tier.queues():
                yield Committed(queue, plan_resume(queue, tier.metadata))
            return
    with locked(tier_root, path.removesuffix(".bak"), metadata=metadata, outside=outside), \
            Tier.open(root, metadata) as tier, closing(open_writer(tier_root)) as writer:
        _refuse(tier, path)
        settings, _ = resolve(writer, {})
        try:
            for queue in tier.queues():
                done = resume(writer, queue, tier.metadata, settings.consume_queue_limit, clock)
                done.entries += enter_queue(tier.metadata, queue.name, clock())
                yield Committed(queue, done)
        finally:  # also after an error, for the queues that are done
            metadata_file.save(path.removesuffix(".bak"), tier.metadata, broker_root)


def _refuse(tier: Tier, path: str) -> None:
    """Raise RefusedError for outdated metadata, StoreIOError for unreadable parts of the tier."""
    for problem in tier.problems:
        if problem.unreadable:
            raise StoreIOError(problem.reason)
    if tier.metadata_error is not None:
        raise RefusedError(f"{tier.metadata_error}; `rmqctl tiered recover` rebuilds it")
    if tier.metadata.old or tier.metadata.faults:
        raise RefusedError(f"{path}: rewriting the file would lose data; see `rmqctl tiered "
                           "recover`")
    topic = unknown_topic(tier.queues(), tier.metadata)
    if topic is not None:
        raise RefusedError(f"{path} does not contain the topic {topic}, which is in the tier; "
                           "`rmqctl tiered recover` finds its ID in the index")
