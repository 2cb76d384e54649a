"""Rebuild ``tieredStoreMetadata.json`` from the files of a tier (tiered.md §6, §17.6).

Correct topic ids, reserve times and creation times are kept. Entries of missing files are removed.
An entry is added for each file without an entry. If a topic has no id in the metadata, the id is
determined from index items and their messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.ext.tiered.flat_file import FlatQueue
from rmqctl.ext.tiered.index.index_file import EMPTY, TierIndexFile
from rmqctl.ext.tiered.recover.queue import RecoveredQueue, RecoveredSegment
from rmqctl.formats.local import message, properties
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata, QueueEntry, SegmentEntry, TopicEntry
from rmqctl.formats.tiered.units import NEVER
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import distinct

_MAX_SAMPLES = 64
"""Maximum number of items examined for each topic id."""
_ENOUGH = 8
"""Number of matching items after which no more items of a topic id are examined."""
_MAX_IDS = 1 << 16
"""Maximum number of topic ids that are counted; a damaged file may contain any number of ids."""


@dataclass(slots=True)
class MetadataChanges:
    """Number of changed entries in a metadata file, for each kind of change."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, change: str, count: int = 1) -> None:
        if count:
            self.counts[change] = self.counts.get(change, 0) + count

    def __str__(self) -> str:
        return ", ".join(f"{count} {change}" for change, count in self.counts.items())


def assign_ids(old: Metadata, spare: Metadata | None, topics: Iterable[str],
               index_ids: Mapping[str, int], now: int) -> tuple[Metadata, MetadataChanges]:
    """Return a copy of ``old`` in which every topic has an entry, and the changes.

    A missing entry is copied from ``spare`` (a backup). If ``spare`` has no entry, a new entry gets
    the id found in the index (``index_ids``), or else the next id.
    """
    new, changes = old.copy(), MetadataChanges()
    new.old, new.faults = False, []
    used = {topic.topic_id for topic in new.topics.values()}
    top = max([new.serial, *used, *index_ids.values(),
               *((topic.topic_id for topic in spare.topics.values()) if spare else ())])
    for topic in topics:
        if topic in new.topics:
            continue
        entry = spare.topics.get(topic) if spare is not None else None
        if entry is None or entry.topic_id in used:
            number = index_ids.get(topic)
            if number is None or number in used:
                top += 1
                number = top
            entry = TopicEntry(number, topic, update_timestamp=now)
        used.add(entry.topic_id)
        new.topics[topic] = entry
        changes.add("topics added")
    new.serial = max([new.serial, *used])
    return new, changes


def enter_recovered(new: Metadata, spare: Metadata | None, broker: str,
                    queues: Sequence[RecoveredQueue], indexes: Sequence[RecoveredSegment],
                    changes: MetadataChanges, now: int) -> None:
    """Update the entries for a broker's queues and segments from the files."""
    tables: dict[str, dict[str, list[RecoveredSegment]]] = {kind: {} for kind in names.KINDS}
    moved: set[str] = set()
    for queue in queues:
        path = queue.name.path
        tables[names.COMMIT_LOG][path] = queue.commit_log
        tables[names.CONSUME_QUEUE][path] = queue.consume_queue
        if any(segment.quirk is not None for segment in queue.commit_log):
            moved.add(path)
        table = new.queues.setdefault(queue.name.topic, {})
        if queue.name.queue_id not in table:
            table[queue.name.queue_id] = QueueEntry(
                queue.name.topic, broker, queue.name.queue_id, queue.first, queue.last, now)
            changes.add("queues added")
    tables[names.INDEX][names.index_path(broker)] = list(indexes)
    for number, kind in enumerate(names.KINDS):
        _segments(new, spare, number, tables[kind], moved, changes, now, f"{broker}/")


def _segments(new: Metadata, spare: Metadata | None, number: int,
              present: Mapping[str, Sequence[RecoveredSegment]], moved: set[str],
              changes: MetadataChanges, now: int, prefix: str) -> None:
    """Update the entries of one kind of segment for the paths that begin with ``prefix``."""
    kind = names.KINDS[number]
    table = new.segments[kind]
    # Remove entries of missing files.
    for path in list(table):
        if not path.startswith(prefix):
            continue
        bases = {segment.base for segment in present.get(path, ())}
        gone = [base for base in table[path] if base not in bases]
        for base in gone:
            del table[path][base]
        changes.add("segments without a file removed", len(gone))
        if not table[path]:
            del table[path]
    # Update entries of existing files.
    for path, segments in present.items():
        for segment in segments:
            old = table.get(path, {}).get(segment.base)
            earlier = old or (spare.segments[kind].get(path, {}).get(segment.base)
                              if spare else None)
            entry = _entry(path, number, segment, earlier, now, moved=path in moved)
            if entry == old:
                continue
            if old is None:
                changes.add("segments added")
            elif entry.size != old.size:
                changes.add("sizes corrected")
            else:
                changes.add("times corrected")
            table.setdefault(path, {})[segment.base] = entry


def _entry(path: str, number: int, segment: RecoveredSegment, old: SegmentEntry | None,
           now: int, *, moved: bool) -> SegmentEntry:
    """Return the metadata entry of a segment. ``moved``: a broker reads the store time of some
    messages from the wrong bytes.
    """
    if old is None:
        created = segment.mtime_ms if segment.mtime_ms is not None else now
        begin, end = segment.begin, segment.end
        if not segment.all_times and begin == NEVER and segment.size:
            begin = end = created  # expired: a broker deletes a segment without times at once
        return SegmentEntry(path, number, segment.base, size=segment.size, create_timestamp=created,
                            begin_timestamp=begin, end_timestamp=end)
    begin, end = segment.begin, segment.end
    before = old.begin_timestamp, old.end_timestamp
    same = old.size == segment.size and old.begin_timestamp != NEVER
    if segment.quirk == before or (moved and same):
        begin, end = before
    elif not segment.all_times and old.begin_timestamp != NEVER:
        begin = min(begin, old.begin_timestamp)
        end = old.end_timestamp if end == NEVER else max(end, old.end_timestamp)
    return replace(old, size=segment.size, begin_timestamp=begin, end_timestamp=end)


# -- topic ids from the index ---------------------------------------------------------------------

def count_topic_ids(files: Iterable[TierIndexFile],
                    queues: Iterable[FlatQueue]) -> dict[str, dict[int, int]]:
    """Return {topic: {id: count}}. ``count``: number of items with this topic id that point to a
    message of the topic with the right key. Unreadable items and messages are not counted.
    """
    samples: dict[int, list[tuple[int, int, int, int]]] = {}
    for file in files:
        _sample(file, samples)
    by_number: dict[int, list[FlatQueue]] = {}
    for queue in queues:
        by_number.setdefault(queue.name.queue_id, []).append(queue)
    counts: dict[str, dict[int, int]] = {}
    for topic_id, items in samples.items():
        for topic, count in _count(items, by_number).items():
            counts.setdefault(topic, {})[topic_id] = count
    return counts


def most_likely_ids(counts: dict[str, dict[int, int]]) -> dict[str, int]:
    """Return {topic: id} from the result of `count_topic_ids`. Each topic gets a different id."""
    chosen: dict[str, int] = {}
    used: set[int] = set()
    ranked = sorted(((count, topic_id, topic) for topic, ids in counts.items()
                     for topic_id, count in ids.items()), reverse=True)
    for _, topic_id, topic in ranked:
        if topic not in chosen and topic_id not in used:
            chosen[topic] = topic_id
            used.add(topic_id)
    return chosen


def _sample(file: TierIndexFile, samples: dict[int, list[tuple[int, int, int, int]]]) -> None:
    if file.form == EMPTY:
        return
    try:
        for _, items in file.blocks():
            ids = items["topic_id"]
            for topic_id in distinct(ids).tolist():
                sample = samples.get(topic_id)
                if sample is None:
                    if len(samples) >= _MAX_IDS or topic_id < 0:
                        continue
                    sample = samples[topic_id] = []
                if len(sample) >= _MAX_SAMPLES:
                    continue
                rows = np.flatnonzero(ids == topic_id)
                step = max(1, len(rows) // (_MAX_SAMPLES - len(sample)))
                for item in items[rows[::step]][:_MAX_SAMPLES - len(sample)].tolist():
                    sample.append((item[0], item[2], item[3], item[4]))
    except (FormatError, StoreIOError):
        return


def _count(items: Iterable[tuple[int, int, int, int]],
           queues: dict[int, list[FlatQueue]]) -> Counter[str]:
    topics: Counter[str] = Counter()
    for key_hash, queue_id, offset, size in items:
        for queue in queues.get(queue_id, ()):
            if _has_key(queue, key_hash, offset, size):
                topics[queue.name.topic] += 1
        if topics and topics.most_common(1)[0][1] >= _ENOUGH:
            break
    return topics


def _has_key(queue: FlatQueue, key_hash: int, offset: int, size: int) -> bool:
    log = queue.commit_log
    if not (log.start <= offset and message.MIN_SIZE <= size <= log.end - offset):
        return False
    try:
        record = log.record_at(offset, size)
    except StoreIOError:
        return False
    if record is None or record.topic.decode("utf-8", "replace") != queue.name.topic:
        return False
    return any(key_hash in fmt.both_hashes(queue.name.topic, key) for key in keys_of(record))


def keys_of(record: message.Record) -> Iterator[str]:
    """Yield the keys under which the index may contain a message."""
    pairs = properties.parse(record.properties.decode("utf-8", "replace"))
    unique = pairs.get(properties.UNIQUE_KEY)
    if unique:
        yield unique
    yield from dict.fromkeys(pairs.get(properties.KEYS, "").split(" "))
