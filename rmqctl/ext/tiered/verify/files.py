"""Check names and gaps, and compare the metadata with the files (tiered.md §1, §6, §17.3 N, S).

A broker opens only files listed in the metadata. For each file it uses the size in the metadata,
except for the last segment of a flat file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rmqctl import vfs
from rmqctl.checks.findings import INFO, Finding
from rmqctl.checks.verify.common import plural
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.ext.tiered.files.metadata_file import expected_path, load
from rmqctl.ext.tiered.flat_file import FlatFile, QueueName, Segment
from rmqctl.ext.tiered.tier import Tier
from rmqctl.ext.tiered.verify.context import METADATA, TIER
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered import names
from rmqctl.parse_values import is_url


def structure(tier: Tier, broker: str | None = None) -> Iterator[Finding]:
    """Yield findings about names, folders and gaps between segments. ``broker``: check only this
    broker's files.
    """
    for problem in tier.problems:
        category = ("file-unreadable" if problem.unreadable else
                    "tiered-name" if problem.misnamed else "tiered-stray")
        yield Finding(category, TIER, problem.reason, tier.reader.where(problem.path))
    for name, flat in flat_files(tier):
        if broker not in (None, name.broker):
            continue
        for segment in flat.segments:
            if not segment.name_ok:
                yield _about(name, flat, segment, TIER, "tiered-name", "the hash in its name does "
                             f"not match {segment.base}")
        for left, right in pairwise(flat.segments):
            yield from _seam(name, flat, left, right)


def flat_files(tier: Tier) -> Iterator[tuple[QueueName, FlatFile]]:
    """Yield all flat files, each with the name of its queue. The files of an index have the name of
    the pseudo topic.
    """
    for queue in tier.queues():
        yield queue.name, queue.commit_log
        yield queue.name, queue.consume_queue
    for (cluster, broker), flat in sorted(tier.contents.indexes.items()):
        yield QueueName(cluster, broker, names.INDEX_TOPIC, names.INDEX_QUEUE), flat


def _seam(name: QueueName, flat: FlatFile, left: Segment, right: Segment) -> Iterator[Finding]:
    if left.base == right.base:
        yield _about(name, flat, right, TIER, "tiered-stray", "another file has the same base "
                     f"offset: {left.name}")
    elif left.base + left.size < right.base:
        missing = right.base - left.base - left.size
        yield _about(name, flat, left, TIER, "tiered-gap", f"ends at {left.base + left.size}, the "
                     f"next segment begins at {right.base}: {plural(missing, 'byte')} missing",
                     missing)
    elif left.base + left.size > right.base:
        over = left.base + left.size - right.base
        yield _about(name, flat, left, TIER, "tiered-overlap", f"extends {plural(over, 'byte')} "
                     f"past the start of the next segment at {right.base}", over)


def _about(name: QueueName, flat: FlatFile, segment: Segment, structure_: str, category: str,
           detail: str, length: int | None = None, severity: str = "") -> Finding:
    index = flat.kind == names.INDEX
    return Finding(category, structure_, detail, flat.reader.where(segment.path), segment.base,
                   length, None if index else name.topic, None if index else name.queue_id,
                   position=0, severity=severity)


# -- metadata --------------------------------------------------------------------------------------

def foreign(tier: Tier) -> set[str]:
    """Return the brokers whose files are in the tier but not in the metadata."""
    tables = tier.metadata
    named = tables.brokers | {path.split("/")[0] for table in tables.segments.values()
                              for path in table}
    brokers = {name.broker for name, _ in flat_files(tier)}
    return brokers - named if brokers & named else set()


def metadata(tier: Tier, broker: str | None = None) -> Iterator[Finding]:
    """Yield findings about the metadata file, then about its differences from the files."""
    path = tier.metadata_path
    # Missing metadata is damage only if its place is certain.
    if path is None:
        place = None if is_url(tier.name) else expected_path(tier.name)
        if place is not None:
            yield Finding("tiered-metadata-missing", METADATA, f"{place} is missing: a broker "
                          "would start with empty metadata", tier.reader.where(""))
        else:
            yield Finding("tiered-metadata-missing", METADATA, "no tieredStoreMetadata.json beside "
                          "the tier: not compared (pass --metadata)", tier.reader.where(""),
                          severity=INFO)
        return
    # Check the file itself: readable, not only a backup, without invalid parts.
    if tier.metadata_error is not None:
        yield Finding("tiered-metadata-damaged", METADATA, tier.metadata_error, path)
        return
    if path.endswith(".bak"):
        yield Finding("tiered-metadata-missing", METADATA, "only the backup exists", path)
    for fault in tier.metadata.faults:
        yield Finding("tiered-metadata-damaged", METADATA, f"{fault.path}: {fault.reason}", path)
    yield from _backup(path)
    # Several brokers can share a tier; metadata of another broker is not damage.
    others = foreign(tier)
    for other in sorted(others):
        if broker in (None, other):
            yield Finding("tiered-oddity", METADATA, f"has no entries of broker {other!r}; pass "
                          "its metadata with --metadata", path)
    yield from _topics(tier, path, others if broker is None else {
        name.broker for name, _ in flat_files(tier)} - {broker} | others)
    # Compare in both directions: files with their entries, and entries with their files.
    seen = set()
    for name, flat in flat_files(tier):
        seen.add((flat.kind, name.path))
        if name.broker not in others and broker in (None, name.broker):
            yield from _flat(tier, name, flat)
    for kind in names.KINDS:
        for where, table in sorted(tier.metadata.segments[kind].items()):
            if (kind, where) not in seen and broker in (None, where.split("/")[0]):
                for _, entry in sorted(table.items()):
                    yield _missing(kind, where, entry, path)


def _backup(path: str) -> Iterator[Finding]:
    backup = f"{path}.bak"
    if path.endswith(".bak") or not vfs.isfile(backup):
        return
    try:
        load(backup)
    except StoreIOError as error:
        yield Finding("file-unreadable", METADATA, str(error), backup)
    except FormatError as error:
        yield Finding("tiered-oddity", METADATA, f"backup unreadable: {error.reason}; it is used "
                      "only if the file itself is damaged", backup)


def _topics(tier: Tier, path: str, others: set[str]) -> Iterator[Finding]:
    tables = tier.metadata
    # Topic ids must be unique and not above the serial number.
    owners: dict[int, str] = {}
    for topic in sorted(tables.topics.values(), key=lambda entry: (entry.topic_id, entry.topic)):
        if topic.topic_id in owners:
            yield Finding("tiered-metadata-entry", METADATA, f"topics {owners[topic.topic_id]!r} "
                          f"and {topic.topic!r} share the id {topic.topic_id}", path,
                          topic=topic.topic)
        owners.setdefault(topic.topic_id, topic.topic)
        if topic.topic_id > tables.serial:
            yield Finding("tiered-metadata-entry", METADATA, f"topic ID {topic.topic_id} is above "
                          f"the serial number {tables.serial}: it will be assigned again", path,
                          topic=topic.topic)
    # Every queue folder needs an entry of its topic and queue, with the right broker.
    for queue in tier.queues():
        name = queue.name
        if name.broker in others:
            continue
        if name.topic not in tables.topics or (
                name.queue_id not in tables.queues.get(name.topic, {})):
            lacking = "topic" if name.topic not in tables.topics else "queue"
            yield Finding("tiered-metadata-entry", METADATA, f"its {lacking} has no metadata "
                                                             "entry: a broker does not see "
                                                             "it", queue.commit_log.reader.where(
                              queue.commit_log.folder.rpartition("/")[0]),
                          topic=name.topic, queue_id=name.queue_id)
            continue
        broker = tables.queues[name.topic][name.queue_id].broker_name
        if broker != name.broker and len(list(tier.queues(name.topic, name.queue_id))) == 1:
            yield Finding("tiered-metadata-entry", METADATA, "the queue's entry belongs to broker "
                          f"{broker!r}", path, topic=name.topic, queue_id=name.queue_id)


def _flat(tier: Tier, name: QueueName, flat: FlatFile) -> Iterator[Finding]:
    entries = tier.metadata.segments[flat.kind].get(name.path, {})
    bases = {segment.base for segment in flat.segments}
    last = max(bases, default=-1)
    for segment in flat.segments:
        entry = entries.get(segment.base)
        if entry is None:
            harmless = not segment.size
            yield _about(name, flat, segment, METADATA,
                         "tiered-oddity" if harmless else "tiered-metadata-entry",
                         "has no entry in the metadata" + (
                             ", and is empty" if harmless else ": a broker does not see it"))
            continue
        yield from _size(name, flat, segment, entry, segment.base == last)
    for base in sorted(set(entries) - bases):
        yield _missing(flat.kind, name.path, entries[base], flat.reader.where(flat.folder))


def _size(name: QueueName, flat: FlatFile, segment: Segment, entry: meta.SegmentEntry,
          last: bool) -> Iterator[Finding]:
    if entry.size in (segment.size, segment.usable):
        return  # bytes after the next segment's base are an overlap, which is checked elsewhere
    if entry.size > segment.size:
        yield _about(name, flat, segment, METADATA, "tiered-segment-short", f"has {segment.size} "
                     f"bytes, {entry.size} were committed: {entry.size - segment.size} missing",
                     entry.size - segment.size)
    elif last and flat.kind != names.INDEX:
        yield _about(name, flat, segment, METADATA, "tiered-metadata-size", f"has {segment.size} "
                     f"bytes, but metadata say {entry.size}: a broker uses the file's size",
                     severity="info")
    else:
        yield _about(name, flat, segment, METADATA, "tiered-metadata-size", f"has {segment.size} "
                     f"bytes, {entry.size} in the metadata: a broker reads no further")


def _missing(kind: str, where: str, entry: meta.SegmentEntry, file: str) -> Finding:
    parts = where.split("/")
    queue = parts[-2:] if len(parts) > 2 and parts[-1].isdigit() and kind != names.INDEX else None
    topic, queue_id = (queue[0], int(queue[1])) if queue else (None, None)
    detail = f"{kind} segment {names.build_segment(entry.base_offset)} of {where} is missing"
    if entry.status == meta.DELETED or not entry.size:
        return Finding("tiered-oddity", METADATA, f"{detail}; in the metadata it is "
                       + ("deleted" if entry.size else "empty"), file,
                       topic=topic, queue_id=queue_id)
    return Finding("tiered-segment-missing", METADATA, f"{detail}; {entry.size} bytes were "
                   "committed", file, entry.base_offset, entry.size, topic, queue_id, position=None)
