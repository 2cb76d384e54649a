"""The uploaded index of a broker's tier made whole: damaged files go, lost items come in new ones
(tiered.md §5, §12, §17.6). Items that lead to nothing are left: they cost a look, no answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rmqctl.checks.actions import Action
from rmqctl.engine.storage import failed, make_folders
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats import message
from rmqctl.formats import properties as props
from rmqctl.formats import tiered_index as fmt
from rmqctl.formats import tiered_names as names
from rmqctl.formats.tiered_metadata import SegmentEntry
from rmqctl.formats.tiered_units import NEVER
from rmqctl.repair.plan import Create, FileContent, MoveAside, Step
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.walk import Walk
from rmqctl.tiered.flat_file import FlatFile, Segment
from rmqctl.tiered.flat_queue import FlatQueue, QueueName
from rmqctl.tiered.index_file import IndexFile, LocalIndex, uploaded
from rmqctl.tiered.index_keys import key_set, keys_of
from rmqctl.tiered.recover_facts import HealedQueue, SegmentFacts
from rmqctl.tiered.recover_items import LOST, Known, build_files, end_of, is_sound, mixed
from rmqctl.tiered.recover_layout import split_names
from rmqctl.tiered.storage import close_source

_OVERLAP = 600_000
"""Queues are uploaded one after the other: items of index files lie so far (ms) out of order."""


@dataclass(slots=True)
class HealedIndex:
    """What is to be done for the index, and its segments as they will be. ``files`` are those
    that can be read, uploaded or not; ``unread`` says what is wrong with local ones that cannot.
    """

    files: list[IndexFile] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    segments: list[SegmentFacts] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Where the next segment begins."""
        return max((one.base + one.size for one in self.segments), default=0)


def look(flat: FlatFile | None, local: LocalIndex, entries: Mapping[int, SegmentEntry], *,
         changes: bool) -> HealedIndex:
    """The index files that are there. With ``changes`` those that are damaged, and empty ones
    that metadata does not know as a broker leaves them, are to be moved aside. StoreIOError.
    """
    out = HealedIndex()
    out.files.extend(local.files)
    out.unread.extend(map(str, local.errors))
    if flat is None:
        return out
    flat, _, wrong = split_names(flat)
    for segment in wrong if changes else ():
        _aside(out, segment.path, segment.size, "another file has its place")
    for segment, one in zip(flat.segments, uploaded(flat), strict=True):
        entry = entries.get(segment.base)
        if not segment.size:
            if entry is not None and entry.begin_timestamp != NEVER:
                out.segments.append(SegmentFacts(segment.base, 0, entry.begin_timestamp,
                                                 entry.end_timestamp, segment.mtime_ms))
            elif changes:
                _aside(out, segment.path, 0, "an upload that never came: a broker takes it for "
                                             "its newest index file")
            continue
        problem = _problem(one)
        if problem is None and isinstance(one, IndexFile):
            out.files.append(one)
            if changes and not segment.name_ok:
                _rename(out, segment, flat)
            out.segments.append(SegmentFacts(segment.base, segment.usable, one.timestamp,
                                             end_of(one), segment.mtime_ms))
        elif changes:
            _aside(out, segment.path, segment.size,
                   f"damaged ({problem}); what it had is made anew from the messages")
        else:
            out.notes.append(f"{flat.reader.where(segment.path)}: {problem}")
            out.segments.append(SegmentFacts(segment.base, segment.usable, segment.mtime_ms,
                                             segment.mtime_ms, segment.mtime_ms))
    return out


def expired_before(out: HealedIndex, entries: Mapping[int, SegmentEntry]) -> int:
    """The store time before which items may have expired: where the first file does not begin at
    0, and metadata knows of none before it. Files overlap in time, so what is as old as the first
    that is left may have been in one that went.
    """
    first = min(out.segments, key=lambda one: one.base, default=None)
    if first is None or not first.base or any(base < first.base for base in entries):
        return 0
    return first.end + _OVERLAP


def _problem(one: IndexFile | FormatError | StoreIOError) -> str | None:
    if isinstance(one, StoreIOError):
        raise one
    if isinstance(one, FormatError):
        return one.reason
    try:
        return None if is_sound(one) else "its slots do not lead to its items"
    except FormatError as error:
        return error.reason


def _rename(out: HealedIndex, segment: Segment, flat: FlatFile) -> None:
    target = f"{flat.folder}/{names.build_segment(segment.base)}"
    full = os.path.abspath(flat.reader.where(segment.path))
    out.steps.append(Create(target, FileContent(full, movable=False),
                            segment.mtime_ms * 1_000_000))
    out.actions.append(Action("rename", target, segment.name, os.path.basename(target),
                              "its name is wrong: a broker would not find it"))
    _aside(out, segment.path, segment.size, "its name is wrong")


def _aside(out: HealedIndex, path: str, size: int, why: str) -> None:
    out.steps.append(MoveAside(path))
    out.actions.append(Action("move aside", path, size, None, why))


def rebuild(out: HealedIndex, queues: Sequence[tuple[FlatQueue, HealedQueue]],
            ids: Mapping[str, int], scope: tuple[str, str], shape: fmt.Shape, folder: str,
            since: int = 0) -> None:
    """Adds files with the items that messages should have and have not. ``queues`` come with what
    they will be; ``ids`` are the topics' ids, ``scope`` cluster and broker. Items of messages
    before ``since`` have expired. FormatError, StoreIOError.
    """
    make_folders(folder, durable=False)
    known = Known(folder)
    for one in out.files:
        known.add(one)
    path = os.path.join(folder, "lost")
    count = 0
    try:
        with open(path, "wb") as file:
            for queue, healed in queues:
                for found in _lost(queue, healed, ids[queue.name.topic], known):
                    lost = found[found["store_time"] >= since]
                    file.write(lost.tobytes())
                    count += len(lost)
    except OSError as error:
        raise failed(error, path, "write to") from None
    if not count:
        return
    used = {one.timestamp for one in out.files}
    base = out.end
    for made, size, begin, end in build_files(np.memmap(path, LOST, "r"), shape, used, folder):
        target = names.segment_path(*scope, names.INDEX_TOPIC, names.INDEX_QUEUE,
                                    names.INDEX, base)
        out.steps.append(Create(target, FileContent(made)))
        items = (size - shape.items_at) // fmt.COMPACTED_ITEM.size
        out.actions.append(Action("rebuild", target, None, size,
                                  f"keys of messages that have no index item: {items}"))
        out.segments.append(SegmentFacts(base, size, begin, end, None))
        base += size


def _lost(queue: FlatQueue, healed: HealedQueue, topic_id: int, known: Known) -> Iterator[Array]:
    """The items that messages of a queue should have and have not (`LOST`)."""
    offsets = np.fromfile(healed.refs, np.int64)
    offsets.sort()
    if not len(offsets):
        return
    name = queue.name
    for segment in queue.commit_log.segments:
        if not segment.usable:
            continue
        source = queue.commit_log.reader.source(segment.path, segment.base)
        try:
            for batch in Walk(source, 0, segment.usable):
                if len(batch):
                    yield from _lost_of(batch, offsets, name, topic_id, known)
        finally:
            close_source(source)
    moved = [_item(queue, one.position, one.size, topic_id) for one in healed.shifted
             if one.position in offsets]
    if moved:
        yield from _unknown(np.concatenate(moved), known)


def _item(queue: FlatQueue, position: int, size: int, topic_id: int) -> Array:
    """The items of a message that does not say where it lies."""
    record = message.decode(queue.commit_log.read(position, size))
    found = props.parse(record.properties.decode("utf-8", "replace"))
    hashes = [fmt.key_hash(queue.name.topic, key) for key in key_set(
        found.get(props.UNIQUE_KEY), found.get(props.KEYS))]
    return np.array([(one, topic_id, queue.name.queue_id, position, size, record.store_timestamp)
                     for one in hashes if one != -(1 << 31)], LOST)


def _lost_of(batch: Batch, offsets: Array, name: QueueName, topic_id: int,
             known: Known) -> Iterator[Array]:
    place = batch.offset
    at = np.minimum(np.searchsorted(offsets, place), len(offsets) - 1)
    led = offsets[at] == place
    if not led.any():
        return
    keys = keys_of(batch, name.topic)
    kept = led[keys.row] & (keys.key_hash != -(1 << 31))
    row = keys.row[kept]
    found: Array = np.zeros(len(row), LOST)
    found["key_hash"], found["topic_id"], found["queue_id"] = (
        keys.key_hash[kept], topic_id, name.queue_id)
    found["offset"], found["size"] = place[row], batch.column("total_size")[row]
    found["store_time"] = batch.column("store_timestamp")[row]
    yield from _unknown(found, known)


def _unknown(found: Array, known: Known) -> Iterator[Array]:
    lost = found[~known.has(mixed(found["key_hash"], found["topic_id"], found["queue_id"],
                                  found["offset"]))]
    if len(lost):
        yield lost
