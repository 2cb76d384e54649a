"""List queues, segments, index files and metadata entries of a tier as rows, and detect the kind of
a single file.

Only names, sizes, headers, metadata and the first message's header of each queue are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from rmqctl.errors import FormatError, NotAStoreError, StoreIOError
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue, QueueName, Segment
from rmqctl.ext.tiered.index.index_file import (
    EMPTY,
    TierIndexFile,
    local_files,
    uploaded,
)
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats import kinds
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.units import NEVER

Row = dict[str, Any]

OK, EMPTY_FILE, STALE, SHORT, NO_METADATA, NO_FILE, GAP, OVERLAP, BAD_NAME = (
    "ok", "empty", "stale-metadata", "short", "no-metadata", "no-file", "gap", "overlap",
    "bad-name")
STATES = (OK, EMPTY_FILE, STALE, NO_METADATA, OVERLAP, NO_FILE, SHORT, GAP, BAD_NAME)
"""States of a segment, from the most harmless to the most serious state."""

QUEUE_COLUMNS = ("cluster", "broker", "topic", "queue_id", "min_offset", "commit_offset",
                 "cq_start", "commit_log_start", "commit_log_end", "commit_log_segments",
                 "consume_queue_segments", "bytes", "metadata_bytes", "state")
SEGMENT_COLUMNS = ("broker", "topic", "queue_id", "type", "base_offset", "size", "usable",
                   "metadata_size", "status", "begin_timestamp", "end_timestamp",
                   "create_timestamp", "mtime", "state", "path")
INDEX_COLUMNS = ("broker", "status", "form", "begin_timestamp", "end_timestamp", "items",
                 "used_slots", "hash_slots", "size", "base_offset", "generation", "error", "path")


def queues(tier: Tier, broker: str | None = None, topic: str | None = None) -> Iterator[Row]:
    """Yield a row per queue; unreadable values are None."""
    for queue in tier.queues(topic, broker=broker):
        name = queue.name
        segments = [*segments_of(tier, name, queue.commit_log),
                    *segments_of(tier, name, queue.consume_queue)]
        yield {
            "cluster": name.cluster, "broker": name.broker, "topic": name.topic,
            "queue_id": name.queue_id, "min_offset": _min_offset(queue),
            "commit_offset": queue.commit_offset, "cq_start": queue.cq_start,
            "commit_log_start": queue.commit_log.start, "commit_log_end": queue.commit_log.end,
            "commit_log_segments": len(queue.commit_log.segments),
            "consume_queue_segments": len(queue.consume_queue.segments),
            "bytes": sum(segment["size"] or 0 for segment in segments),
            "metadata_bytes": sum(segment["metadata_size"] or 0 for segment in segments)
            if tier.metadata_path else None,
            "state": max((segment["state"] for segment in segments), key=STATES.index,
                         default=EMPTY_FILE),
        }


def _min_offset(queue: FlatQueue) -> int | None:
    try:
        return queue.min_offset
    except StoreIOError:
        return None


def segments(tier: Tier, broker: str | None = None, topic: str | None = None) -> Iterator[Row]:
    """Yield a row per segment. A segment may be a file, a metadata entry, or both. Index segments
    come last.
    """
    seen: set[tuple[str, str]] = set()
    for queue in tier.queues():
        for flat in (queue.commit_log, queue.consume_queue):
            seen.add((flat.kind, queue.name.path))
            if topic in (None, queue.name.topic) and broker in (None, queue.name.broker):
                yield from segments_of(tier, queue.name, flat)
    for (cluster, owner), flat in sorted(tier.contents.indexes.items()):
        name = QueueName(cluster, owner, names.INDEX_TOPIC, names.INDEX_QUEUE)
        seen.add((flat.kind, name.path))
        if topic is None and broker in (None, owner):
            yield from segments_of(tier, name, flat)
    for kind in names.KINDS:
        for path, table in sorted(tier.metadata.segments[kind].items()):
            parts = path.split("/")
            if (kind, path) in seen or len(parts) < 3 or broker not in (None, parts[-3]) or (
                    topic not in (None, parts[-2])):
                continue
            number = int(parts[-1]) if parts[-1].isdigit() and parts[-1].isascii() else None
            for _, entry in sorted(table.items()):
                yield _row(parts[-3], parts[-2], number, kind, None, entry, NO_FILE, None)


def segments_of(tier: Tier, name: QueueName, flat: FlatFile) -> Iterator[Row]:
    """Yield the rows of one flat file, by base offset."""
    entries = dict(tier.metadata.segments[flat.kind].get(name.path, {}))
    has_metadata = tier.metadata_path is not None and tier.metadata_error is None
    rows = []
    for number, segment in enumerate(flat.segments):
        entry = entries.pop(segment.base, None)
        after = flat.segments[number + 1] if number + 1 < len(flat.segments) else None
        state = _state(segment, after, entry, has_metadata)
        rows.append(_row(name.broker, name.topic, name.queue_id, flat.kind, segment, entry, state,
                         flat.reader.where(segment.path)))
    rows += [_row(name.broker, name.topic, name.queue_id, flat.kind, None, entry, NO_FILE, None)
             for entry in entries.values()]
    yield from sorted(rows, key=lambda row: row["base_offset"])


def _state(segment: Segment, after: Segment | None, entry: meta.SegmentEntry | None,
           has_metadata: bool) -> str:
    if not segment.name_ok:
        return BAD_NAME
    if after is not None and segment.base + segment.size < after.base:
        return GAP
    if entry is not None and entry.size > segment.size:
        return SHORT
    if after is not None and segment.base + segment.size > after.base:
        return OVERLAP
    if has_metadata and entry is None and segment.size:
        return NO_METADATA
    if entry is not None and entry.size < segment.size:
        return STALE
    return OK if segment.size else EMPTY_FILE


def _row(broker: str, topic: str, queue_id: int | None, kind: str, segment: Segment | None,
         entry: meta.SegmentEntry | None, state: str, where: str | None) -> Row:
    base = segment.base if segment is not None else entry.base_offset if entry is not None else None
    return {
        "broker": broker, "topic": topic, "queue_id": queue_id, "type": kind, "base_offset": base,
        "size": None if segment is None else segment.size,
        "usable": None if segment is None else segment.usable,
        "metadata_size": None if entry is None else entry.size,
        "status": None if entry is None else entry.status,
        "begin_timestamp": None if entry is None else _time(entry.begin_timestamp),
        "end_timestamp": None if entry is None else _time(entry.end_timestamp),
        "create_timestamp": None if entry is None else entry.create_timestamp,
        "mtime": None if segment is None or not segment.mtime_ms else segment.mtime_ms,
        "state": state, "path": where,
    }


def _time(value: int) -> int | None:
    """Return a timestamp; None if it was never set."""
    return None if value == NEVER else value


def index_files(tier: Tier, broker: str | None = None, slots: int | None = None,
                max_items: int | None = None) -> Iterator[Row]:
    """Yield a row per index file: first the uploaded files by base offset, then the local files,
    oldest first.
    """
    for owner, flat in tier.indexes(broker):
        for number, file in enumerate(uploaded(flat)):
            yield _index_row(owner, file, flat.reader.where(flat.segments[number].path))
    folder = tier.local_index_folder
    try:
        with ExitStack() as sources:
            for path, local in local_files(folder, sources, slots or tier.known_slots(broker),
                                           max_items):
                yield _index_row(None, local, path)
    except StoreIOError as error:
        yield _index_row(None, error, folder)


def _index_row(broker: str | None, file: TierIndexFile | FormatError | StoreIOError,
               path: str | None) -> Row:
    if not isinstance(file, TierIndexFile):
        return dict.fromkeys(INDEX_COLUMNS) | {"broker": broker, "error": str(file), "path": path}
    empty, header = file.form == EMPTY, file.header
    return {
        "broker": broker, "status": file.status, "form": file.form,
        "begin_timestamp": None if empty else header.begin_timestamp,
        "end_timestamp": None if empty else header.end_timestamp,
        "items": file.items, "used_slots": None if file.shape.old else header.slot_count,
        "hash_slots": None if empty else file.shape.slots, "size": file.size,
        "base_offset": None if file.base < 0 else file.base,
        "generation": "5.1" if file.shape.old else "5.2+", "error": None, "path": path,
    }


# -- what a file is ------------------------------------------------------------------------------

TYPES = {
    "commit-log": kinds.TIERED_COMMITLOG,
    "consume-queue": kinds.TIERED_CONSUMEQUEUE,
    "index": kinds.TIERED_INDEX,
    "metadata": kinds.TIERED_METADATA,
}
"""Names that a user may pass for the kinds of files in a tier."""
_ALIKE = {kinds.COMMITLOG: kinds.TIERED_COMMITLOG, kinds.CONSUMEQUEUE: kinds.TIERED_CONSUMEQUEUE,
          kinds.CONFIG: kinds.TIERED_METADATA}
_HEAD = 4096


def kind_of(path: str) -> str | None:
    """Return the kind of a file by path and content, or None if the file is unreadable
    (`store.dump` reports the error).
    Raises: NotAStoreError for a file that is not part of a tier.
    """
    from rmqctl.scan.source import FileSource

    try:
        with FileSource(path) as source:
            head, size = source.read(0, _HEAD), source.size
    except StoreIOError:
        return None
    kind = kinds.recognise(os.path.abspath(path).split(os.sep), head, size)
    kind = _ALIKE.get(str(kind), kind)
    if kind in TYPES.values():
        return kind
    why = "unknown file type" if kind is None else f"not a file of a tier; it looks like {kind}"
    raise NotAStoreError(f"{path}: {why}; pass --kind to set it: {', '.join(TYPES)}")
