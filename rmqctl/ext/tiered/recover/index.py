"""Recover the index of a broker's tier (tiered.md §5, §12, §17.6).

Damaged files are moved aside. New files with the missing items are added.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import accumulate, pairwise

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue, QueueName, Segment
from rmqctl.ext.tiered.index.compacted_form import slot_table
from rmqctl.ext.tiered.index.index_file import EMPTY, LocalIndex, TierIndexFile, uploaded
from rmqctl.ext.tiered.index.keys import key_set, keys_of
from rmqctl.ext.tiered.index.open_file import LOST_HASH
from rmqctl.ext.tiered.recover.index_damage import IndexDamage, messages_with_units
from rmqctl.ext.tiered.recover.queue import RecoveredQueue, RecoveredSegment, copy_renamed
from rmqctl.ext.tiered.recover.units import split_names
from rmqctl.ext.tiered.verify.index import ItemTimes
from rmqctl.ext.tiered.verify.items import time_difference
from rmqctl.ext.tiered.verify.keys import folded, marks
from rmqctl.files.durable import failed, make_folders
from rmqctl.files.row_file import RowFile, on_disk
from rmqctl.formats.local import message
from rmqctl.formats.local import properties as props
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata, SegmentEntry
from rmqctl.formats.tiered.units import NEVER
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import Changes, Create, FileContent
from rmqctl.scan.frames import Array, Batch

_OVERLAP = 600_000
"""Maximum time (ms) by which index files may overlap. Queues are uploaded one by one, so items are
not ordered by time.
"""
_BLOCK = 1 << 20
_FEW = 1 << 14
_MISSING = "missing index items"


@dataclass(slots=True)
class RecoveredIndex(Changes):
    """Plan for the index.

    ``files``: the readable files, uploaded or not.
    ``unread``: reasons why local files are unreadable.
    ``broken``: (path, reason) of local files that are not valid index files.
    ``gone``: base offsets of files that are moved aside.
    ``segments``: the segments of the index after the plan is carried out.
    """

    files: list[TierIndexFile] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    segments: list[RecoveredSegment] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Logical offset at which the next segment begins."""
        return max((segment.base + segment.size for segment in self.segments), default=0)


def look(flat: FlatFile | None, local: LocalIndex, entries: Mapping[int, SegmentEntry], *,
         changes: bool) -> RecoveredIndex:
    """Examine the index files. With ``changes``, plan steps that move damaged and empty files
    aside. An empty file is kept if, according to the metadata, a broker left this file. Raises:
    StoreIOError.
    """
    # Local files, not uploaded.
    out = RecoveredIndex()
    out.files.extend(local.files)
    for error in local.errors:
        if isinstance(error, FormatError) and error.file is not None:
            out.broken.append((error.file, error.reason))
        else:
            out.unread.append(str(error))
    if flat is None:
        return out
    # Uploaded files, one per base: empty, intact or damaged.
    flat, wrong = split_names(flat)
    for segment in wrong if changes else ():
        out.move_aside(segment.path, segment.size, "another file has the same base offset")
    for segment, file in zip(flat.segments, uploaded(flat), strict=True):
        entry = entries.get(segment.base)
        if not segment.size:
            if entry is not None and entry.begin_timestamp != NEVER:
                out.segments.append(RecoveredSegment(segment.base, 0, entry.begin_timestamp,
                                                     entry.end_timestamp, segment.mtime_ms))
            elif changes:
                out.move_aside(segment.path, 0, "an unfinished upload: a broker would use it as "
                               "its newest index file")
        elif isinstance(file, StoreIOError):
            raise file
        elif isinstance(file, TierIndexFile):
            out.files.append(file)
            if changes and not segment.name_ok:
                copy_renamed(out, flat, segment,
                             f"{flat.folder}/{names.build_segment(segment.base)}")
                out.move_aside(segment.path, segment.size, "its name is wrong")
            out.segments.append(_recovered_segment(file, segment, entry))
        elif changes:
            out.gone.add(segment.base)
            out.move_aside(segment.path, segment.size, _damaged(file.reason))
        else:
            out.notes.append(f"{flat.reader.where(segment.path)}: {file.reason}")
            out.segments.append(RecoveredSegment(segment.base, segment.usable, segment.mtime_ms,
                                                 segment.mtime_ms, segment.mtime_ms))
    return out


def expired_before(out: RecoveredIndex, entries: Mapping[int, SegmentEntry]) -> int:
    """Return the store time (ms) before which items may have expired; 0 if no items have expired.

    Items have expired if the first file does not begin at 0 and the metadata has no file before it.
    A deleted file may have contained items as recent as those of the first file, because files
    overlap in time.
    """
    first = min(out.segments, key=lambda segment: segment.base, default=None)
    if first is None or not first.base or any(base < first.base
                                              for base in (*entries, *out.gone)):
        return 0
    return first.end + _OVERLAP


def _recovered_segment(file: TierIndexFile, segment: Segment,
                       entry: SegmentEntry | None) -> RecoveredSegment:
    """Return the state of an index segment after the recovery. The end time in the metadata entry
    is kept if a broker may have written this time.
    """
    end, low, high = times_of(file)
    quirk = None
    if entry is not None and entry.begin_timestamp == file.timestamp and (
            entry.end_timestamp == file.header.end_timestamp
            or low <= entry.end_timestamp <= high):
        quirk = entry.begin_timestamp, entry.end_timestamp
    return RecoveredSegment(segment.base, segment.usable, file.timestamp, end, segment.mtime_ms,
                            quirk)


def _damaged(reason: str) -> str:
    return f"damaged ({reason}); its items are rebuilt from the messages"


def discard(out: RecoveredIndex, flat: FlatFile | None,
            damaged: Sequence[tuple[TierIndexFile, str]]) -> None:
    """Plan to move aside damaged files with a valid layout."""
    segments = {segment.base: segment for segment in split_names(flat)[0].segments} if flat else {}
    for file, reason in damaged:
        out.files.remove(file)
        if file.base < 0:
            out.move_aside(os.path.abspath(file.where), file.size, _damaged(reason))
            continue
        segment = segments[file.base]
        out.gone.add(file.base)
        out.segments = [segment for segment in out.segments if segment.base != file.base]
        if segment.name_ok:
            out.move_aside(segment.path, segment.size, _damaged(reason))
        elif flat is not None:  # replace the planned renaming
            target = f"{flat.folder}/{names.build_segment(file.base)}"
            out.steps = [step for step in out.steps if step.target != target]
            out.actions = [action for action in out.actions if action.target != target]


def discard_broken(out: RecoveredIndex) -> None:
    """Plan to move aside local files with an invalid layout."""
    for path, reason in out.broken:
        out.move_aside(os.path.abspath(path), os.path.getsize(path), _damaged(reason))


def rebuild(out: RecoveredIndex, flat: FlatFile | None,
            queues: Sequence[tuple[FlatQueue, RecoveredQueue]], metadata: Metadata,
            scope: tuple[str, str], shape: fmt.TieredIndexShape, folder: str,
            entries: Mapping[int, SegmentEntry]) -> None:
    """Plan to move damaged files aside and to add files with the missing items of messages. A new
    file gets the base offset of a missing file if enough items exist to fill that file.

    ``queues``: each queue with its recovered state.
    ``metadata``: contains the topics' ids.
    ``scope``: cluster and broker.
    ``entries``: metadata entries of the index.
    Raises: StoreIOError.
    """
    make_folders(folder, durable=False)
    ids = {topic: entry.topic_id for topic, entry in metadata.topics.items()}
    # Missing items show which files are damaged; without these files more items are missing.
    damage = IndexDamage(out.files, [queue for queue, _ in queues], metadata,
                         lambda number: _offsets(queues[number][1]))
    try:
        missing = _missing_items(folder, queues, ids, IndexedItems(folder, out.files), damage)
        damaged = damage.damaged(missing.mapped()["key_hash"])
    finally:
        damage.close()
    if damaged:
        discard(out, flat, damaged)
        missing.close()
        missing = _missing_items(folder, queues, ids, IndexedItems(folder, out.files))
    lost = _since(missing, expired_before(out, entries), folder)
    if not len(lost):
        return
    # Place new files where files are missing, while there are enough items, then after the last.
    used = {file.timestamp for file in out.files}
    bases: list[int] = []
    counts: list[int] = []
    for base, items in _holes(out, {*out.gone, *entries}, shape):
        if items <= len(lost) - sum(counts):
            bases.append(base)
            counts.append(items)
    following = out.end
    for number, (new, size, begin, end) in enumerate(build_files(
            lost, shape, used, folder, counts)):
        base = bases[number] if number < len(bases) else following
        target = names.segment_path(*scope, names.INDEX_TOPIC, names.INDEX_QUEUE,
                                    names.INDEX, base)
        items = (size - shape.items_at) // fmt.COMPACTED_ITEM.size
        out.act(Create(target, FileContent(new)), "rebuild", None, size,
                f"message keys without an index item: {items}")
        out.segments.append(RecoveredSegment(base, size, begin, end, None))
        if base == following:
            following += size
    out.segments.sort(key=lambda segment: segment.base)


def _missing_items(folder: str, queues: Sequence[tuple[FlatQueue, RecoveredQueue]],
                   ids: Mapping[str, int], indexed: IndexedItems,
                   damage: IndexDamage | None = None) -> RowFile:
    """Return the items (`LOST`) that messages should have but no index file contains. Pass all
    expected items to ``damage``.
    """
    missing = RowFile(LOST, _MISSING, held=_FEW, folder=folder)
    for number, (queue, recovered) in enumerate(queues):
        offsets, topic_id = _offsets(recovered), ids[queue.name.topic]
        keys = damage.collector(number) if damage is not None else None
        for batch, rows in messages_with_units(queue, offsets):
            if damage is not None and keys is not None:
                damage.take_messages(keys, batch, rows)
            missing.append(_unknown(_items(batch, rows, queue.name, topic_id), indexed))
        for shifted in recovered.shifted:
            if shifted.position not in offsets:
                continue
            items = _item(queue, shifted.position, shifted.size, topic_id)
            if damage is not None:
                damage.take_lost(number, items)
            missing.append(_unknown(items, indexed))
    return missing


def _since(missing: RowFile, since: int, folder: str) -> Array:
    """Return the items stored at ``since`` (ms) or later."""
    if not since:
        return missing.mapped()
    younger = RowFile(LOST, _MISSING, held=_FEW, folder=folder)
    for items in missing.chunks(_BLOCK):
        younger.append(items[items["store_time"] >= since])
    missing.close()
    return younger.mapped()


def _holes(out: RecoveredIndex, bases_before: set[int],
           shape: fmt.TieredIndexShape) -> Iterator[tuple[int, int]]:
    """Yield (base, number of items) of each missing file that is followed by an existing file.

    ``shape``: the assumed shape of the missing files. ``bases_before``: bases of the files before
    the recovery.
    """
    present = sorted((segment.base, segment.base + segment.size) for segment in out.segments)
    position = min([*bases_before, *(base for base, _ in present[:1])], default=0)
    for start, end in present:
        bases = sorted({position, start,
                        *(base for base in bases_before if position < base < start)})
        for base, following in pairwise(bases):
            room = following - base - shape.items_at - (
                fmt.TAIL_SIZE if shape.old else 0)
            items, rest = divmod(room, fmt.COMPACTED_ITEM.size)
            if items > 0 and not rest:
                yield base, items
        position = max(position, end)


def _offsets(recovered: RecoveredQueue) -> Array:
    """Return the positions to which a queue's units point after the recovery (int64, ascending)."""
    offsets = np.fromfile(recovered.refs, np.int64)
    offsets.sort()
    return offsets


def _item(queue: FlatQueue, position: int, size: int, topic_id: int) -> Array:
    """Return the items of a message with a wrong physicalOffset."""
    record = message.decode(queue.commit_log.read(position, size))
    pairs = props.parse(record.properties.decode("utf-8", "replace"))
    hashes = [fmt.key_hash(queue.name.topic, key) for key in key_set(
        pairs.get(props.UNIQUE_KEY), pairs.get(props.KEYS))]
    return np.array([(key_hash, topic_id, queue.name.queue_id, position, size,
                      record.store_timestamp)
                     for key_hash in hashes if key_hash != LOST_HASH], LOST)


def _items(batch: Batch, rows: Array, name: QueueName, topic_id: int) -> Array:
    """Return the items of those messages in a batch for which ``rows`` (bool) is true."""
    keys = keys_of(batch, name.topic)
    indexed = rows[keys.row] & (keys.key_hash != LOST_HASH)
    row = keys.row[indexed]
    items: Array = np.zeros(len(row), LOST)
    items["key_hash"], items["topic_id"], items["queue_id"] = (
        keys.key_hash[indexed], topic_id, name.queue_id)
    items["offset"], items["size"] = batch.offset[row], batch.column("total_size")[row]
    items["store_time"] = batch.column("store_timestamp")[row]
    return items


def _unknown(items: Array, indexed: IndexedItems) -> Array:
    """Return the items that no index file contains."""
    lost: Array = items[~indexed.has(mixed(items["key_hash"], items["topic_id"], items["queue_id"],
                                           items["offset"]))]
    return lost


# -- items that are there, and new files of those that are not ------------------------------------

LOST = np.dtype([("key_hash", "i4"), ("topic_id", "i4"), ("queue_id", "i4"), ("offset", "i8"),
                 ("size", "i4"), ("store_time", "i8")])
"""A missing item. ``offset``: the offset of its message in the queue's commit log."""
MAX_ITEMS = 1 << 20
"""Maximum number of items in a new file. A broker finds more messages in several small files than
in one large file.
"""
_RUN = 1 << 22


def mixed(key_hash: Array, topic_id: Array, queue_id: Array, offset: Array) -> Array:
    """Return a number (uint64) that identifies each item, and that is the same under both hash
    rules.
    """
    return marks(topic_id, queue_id, offset, folded(key_hash))


class IndexedItems:
    """The items of index files, kept as sorted runs in files in ``folder``. Raises: FormatError,
    StoreIOError.
    """

    def __init__(self, folder: str, files: Iterable[TierIndexFile] = ()) -> None:
        self._folder = folder
        self._waiting: list[Array] = []
        self._count = 0
        self._runs: list[Array] = []
        for file in files:
            self.add(file)

    def add(self, file: TierIndexFile) -> None:
        """Add all items of a file. Raises: FormatError, StoreIOError."""
        for _, items in file.blocks():
            self._waiting.append(mixed(items["key_hash"], items["topic_id"], items["queue_id"],
                                       items["commit_log_offset"]))
            self._count += len(items)
            if self._count >= _RUN:
                self._flush()

    def _flush(self) -> None:
        self._runs.append(on_disk(np.sort(np.concatenate(self._waiting)), "items of index files",
                                  self._folder))
        self._waiting, self._count = [], 0

    def has(self, wanted: Array) -> Array:
        """Return a boolean array: whether an item exists for each identity (`mixed`) in
        ``wanted``.
        """
        if self._count:
            self._flush()
        matches: Array = np.zeros(len(wanted), bool)
        for run in self._runs:
            row = np.minimum(np.searchsorted(run, wanted), len(run) - 1)
            matches |= run[row] == wanted
        return matches


def times_of(file: TierIndexFile) -> tuple[int, int, int]:
    """Return the largest store time of a file's items, and a lower and an upper bound of this time.

    The bounds are computed from the items. The largest store time is the header's end time. A
    broker loses the end time when it reopens a file (tiered.md §5.1). Therefore, an end time that
    is before the lower bound is replaced with the upper bound.
    Raises: FormatError, StoreIOError.
    """
    end = file.header.end_timestamp
    times = ItemTimes()
    if file.form != EMPTY:
        for _, items in file.blocks():
            times.take(items)
    if not times.items:
        return end, end, end
    low, high = times.newest(file)
    return (end if end >= low else high), low, high


def end_of(file: TierIndexFile) -> int:
    """Return the largest store time of a file's items. Raises: FormatError, StoreIOError."""
    return times_of(file)[0]


# -- new files ------------------------------------------------------------------------------------

def build_files(lost: Array, shape: fmt.TieredIndexShape, used: set[int], folder: str,
                counts: Sequence[int] = ()) -> Iterator[tuple[str, int, int, int]]:
    """Write the items in ``lost`` (dtype `LOST`) to compacted files, ordered by time.
    Yield (path, bytes, begin time, end time) for each file.

    ``used``: begin times of existing files. ``counts``: number of items in the first file, in
    the second file, and so on; later files are filled up to the limit.
    Raises: StoreIOError.
    """
    # Divide the items by time; every file has fewer items than its limit.
    order = np.argsort(lost["store_time"], kind="stable")
    most = max(min(MAX_ITEMS, shape.max_items - 1), 1)
    ends = list(accumulate(counts))
    ends += range((ends[-1] if ends else 0) + most, len(order), most)
    if not ends or ends[-1] < len(order):
        ends.append(len(order))
    for number, (start, end) in enumerate(pairwise([0, *ends])):
        rows = order[start:end]
        times = lost["store_time"][rows]
        # The start of a file is its name in the tier, so it must be unique.
        begin = int(times[0])
        while begin in used:
            begin += -1 if begin > 0 else 1
        used.add(begin)
        # Items cannot have a time 68 years away, so the header is limited like them.
        step = 1 if shape.old else 1000
        newest = begin + int(time_difference(times - begin, shape.old).max()) * step
        last = int(times[-1])
        last = last if newest <= last < newest + step else max(newest, -1 << 63)
        # Write the file; its name and metadata need these values.
        path = os.path.join(folder, f"index-{number}")
        try:
            with open(path, "wb") as file:
                file.writelines(_bytes(lost, rows, shape, begin, last))
            size = os.path.getsize(path)
        except OSError as error:
            raise failed(error, path, "write to") from None
        yield path, size, begin, last


def _bytes(lost: Array, rows: Array, shape: fmt.TieredIndexShape, begin: int,
           end: int) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file with the items ``lost[rows]``, in parts. A part is valid until the
    next part is requested.
    """
    slot = lost["key_hash"][rows].astype(np.int64) % shape.slots
    # Order by slot, and in a slot the newest item first.
    rows = rows[len(rows) - 1 - np.argsort(slot[::-1], kind="stable")]
    counts = np.bincount(slot, minlength=shape.slots)
    used = shape.slots if shape.old else int((counts > 0).sum())
    yield fmt.HEADER.build(fmt.HeaderRecord(fmt.END_MAGIC, begin, end, used, len(rows)))
    yield from slot_table(counts, shape)
    for start in range(0, len(rows), MAX_ITEMS):
        part = lost[rows[start:start + MAX_ITEMS]]
        items: Array = np.zeros(len(part), fmt.COMPACTED_ITEM.dtype())
        for name, value in (("key_hash", "key_hash"), ("topic_id", "topic_id"),
                            ("queue_id", "queue_id"), ("commit_log_offset", "offset"),
                            ("size", "size")):
            items[name] = part[value]
        items["time_diff"] = time_difference(part["store_time"] - begin, shape.old)
        yield items.tobytes()
    if shape.old:
        yield fmt.BEGIN_MAGIC.to_bytes(fmt.TAIL_SIZE, "big")
