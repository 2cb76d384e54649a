"""``tieredStoreMetadata.json`` from what the files of a tier say (tiered.md §6, §17.6).

What was there and is right stays: topic ids, reserve times, times of creation. Entries of files
that are gone go, and entries of files that have none come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata, QueueEntry, SegmentEntry, TopicEntry
from rmqctl.formats.tiered.units import NEVER
from rmqctl.tiered.recover.facts import HealedQueue, SegmentFacts


@dataclass(slots=True)
class Changes:
    """How many entries of a metadata file change, by what happens to them."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, what: str, count: int = 1) -> None:
        if count:
            self.counts[what] = self.counts.get(what, 0) + count

    def __str__(self) -> str:
        return ", ".join(f"{count} {what}" for what, count in self.counts.items())


def assign_ids(old: Metadata, spare: Metadata | None, topics: Iterable[str],
               votes: Mapping[str, int], now: int) -> tuple[Metadata, Changes]:
    """A copy of ``old`` in which every topic has an entry: its own, that of ``spare`` (a backup),
    with the id index items voted for, or with the next one.
    """
    found, changes = old.copy(), Changes()
    found.old, found.faults = False, []
    used = {one.topic_id for one in found.topics.values()}
    top = max([found.serial, *used, *votes.values(),
               *((one.topic_id for one in spare.topics.values()) if spare else ())])
    for topic in topics:
        if topic in found.topics:
            continue
        entry = spare.topics.get(topic) if spare is not None else None
        if entry is None or entry.topic_id in used:
            number = votes.get(topic)
            if number is None or number in used:
                top += 1
                number = top
            entry = TopicEntry(number, topic, update_timestamp=now)
        used.add(entry.topic_id)
        found.topics[topic] = entry
        changes.add("topics come")
    serial = max([found.serial, *used])
    if serial != found.serial:
        found.serial = serial
    return found, changes


def settle(found: Metadata, spare: Metadata | None, broker: str, queues: Sequence[HealedQueue],
           indexes: Sequence[SegmentFacts], changes: Changes, now: int) -> None:
    """Brings the entries of a broker's queues and segments to what the files are."""
    tables: dict[str, dict[str, list[SegmentFacts]]] = {kind: {} for kind in names.KINDS}
    moved: set[str] = set()
    for queue in queues:
        path = queue.name.path
        tables[names.COMMIT_LOG][path] = queue.commit_log
        tables[names.CONSUME_QUEUE][path] = queue.consume_queue
        if any(one.quirk is not None for one in queue.commit_log):
            moved.add(path)
        table = found.queues.setdefault(queue.name.topic, {})
        if queue.name.queue_id not in table:
            table[queue.name.queue_id] = QueueEntry(
                queue.name.topic, broker, queue.name.queue_id, queue.first, queue.last, now)
            changes.add("queues come")
    index_path = names.metadata_path(broker, names.INDEX_TOPIC, names.INDEX_QUEUE)
    tables[names.INDEX][index_path] = list(indexes)
    for number, kind in enumerate(names.KINDS):
        _segments(found, spare, number, tables[kind], moved, changes, now, f"{broker}/")


def _segments(found: Metadata, spare: Metadata | None, number: int,
              there: Mapping[str, Sequence[SegmentFacts]], moved: set[str], changes: Changes,
              now: int, prefix: str) -> None:
    kind = names.KINDS[number]
    table = found.segments[kind]
    for path in list(table):
        if not path.startswith(prefix):
            continue
        bases = {one.base for one in there.get(path, ())}
        gone = [base for base in table[path] if base not in bases]
        for base in gone:
            del table[path][base]
        changes.add("segments without a file go", len(gone))
        if not table[path]:
            del table[path]
    for path, facts in there.items():
        for one in facts:
            old = table.get(path, {}).get(one.base)
            known = old or (spare.segments[kind].get(path, {}).get(one.base) if spare else None)
            entry = _entry(path, number, one, known, now, moved=path in moved)
            if entry == old:
                continue
            if old is None:
                changes.add("segments come")
            elif entry.size != old.size:
                changes.add("sizes change")
            else:
                changes.add("times change")
            table.setdefault(path, {})[one.base] = entry


def _entry(path: str, number: int, one: SegmentFacts, old: SegmentEntry | None, now: int, *,
           moved: bool) -> SegmentEntry:
    """``moved``: there are messages of which a broker takes other bytes for the store time."""
    if old is None:
        made = one.mtime_ms if one.mtime_ms is not None else now
        begin, end = one.begin, one.end
        if not one.known and begin == NEVER and one.size:
            begin = end = made  # what expired: a broker that sees none deletes it at once
        return SegmentEntry(path, number, one.base, size=one.size, create_timestamp=made,
                            begin_timestamp=begin, end_timestamp=end)
    begin, end = one.begin, one.end
    before = old.begin_timestamp, old.end_timestamp
    same = old.size == one.size and old.begin_timestamp != NEVER
    if one.quirk == before or (moved and same):
        begin, end = before
    elif not one.known and old.begin_timestamp != NEVER:
        begin = min(begin, old.begin_timestamp)
        end = old.end_timestamp if end == NEVER else max(end, old.end_timestamp)
    return replace(old, size=one.size, begin_timestamp=begin, end_timestamp=end)
