"""`dump` of the files of a tier: commit log and consume queue segments, index files, metadata.

The name of a segment contains its base offset (tiered.md §1). The slots of an index file show
whether it is plain or compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

from rmqctl.errors import FormatError
from rmqctl.formats import kinds
from rmqctl.formats.local import message
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered.index import open_shape_of
from rmqctl.formats.tiered.metadata import read as read_metadata
from rmqctl.formats.tiered.units import CODA, CODA_SIZE, UNIT, UNIT_SIZE, Coda, UnitRecord
from rmqctl.scan.frames import BLANK
from rmqctl.store.dump.fields import Row, Target
from rmqctl.store.dump.messages import log_rows
from rmqctl.store.dump.texts import MAX_TEXT
from rmqctl.store.dump.units import Array, Judged, array_rows, unit_rows

METADATA_COLUMNS = ("path", "kind", "name", *meta.SegmentEntry.__dataclass_fields__,
                    "topic", "broker_name", "queue_id", "min_offset", "max_offset",
                    "update_timestamp", "topic_id", "reserve_time", "serial")


def judge_unit(unit: UnitRecord, number: int, target: Target) -> Judged:
    """Classify a unit of a tiered consume queue, and compute its queue offset from its position."""
    extra = {} if target.base is None else {"queue_offset": target.base // UNIT_SIZE + number}
    if unit.commit_log_offset >= 0 and unit.size >= message.MIN_SIZE:
        return "unit", extra, None
    path = "commit_log_offset" if unit.commit_log_offset < 0 else "size"
    return "damaged", extra, (path, "invalid unit")


UNITS = Array(UNIT, judge_unit, ("queue_offset",))


def queue_rows(target: Target) -> Iterator[Row]:
    """Yield the units of a consume queue segment."""
    if target.base is not None and target.base % UNIT_SIZE:
        target.notes.append(f"the file starts at {target.base}, inside a unit")
    yield from array_rows(target, UNITS)


def tiered_log_rows(target: Target) -> Iterator[Row]:
    """Yield the messages of a commit log segment, and the coda that 5.1 and 5.2 write at its
    end.
    """
    for row in log_rows(target):
        raw = b""
        if row["type"] == BLANK and row.get("size") == CODA_SIZE:
            raw = target.read(row["offset"], CODA_SIZE)
        if len(raw) == CODA_SIZE:
            coda = CODA.decode(raw)
            row.update(type="coda", **coda._asdict() | {"magic": f"{coda.magic:08x}"})
            row.pop("fields", None)
            target.add_fields(row, Coda, raw, row["offset"])
        yield row


# -- index files -----------------------------------------------------------------------------------

def tiered_index_rows(target: Target) -> Iterator[Row]:
    """Yield the header, the used slots and the items of a plain or compacted index file. ``--from``
    is the number of the first item.
    """
    raw = target.read(0, fmt.HEADER.size)
    if not target.size:
        target.notes.append("no items; an idle broker uploads such a file when it stops")
        return
    # The header comes first: without it nothing else can be located.
    try:
        header = fmt.HEADER.decode(raw)
    except FormatError as error:
        yield {**target.place(0), "type": "damaged", "size": len(raw),
               "error": target.fault_of(error)}
        return
    options = target.options
    if options.start is None and (options.at is None or options.at < fmt.HEADER.size):
        yield _header_row(target, header, raw)
    # The form and the number of slots decide where slots and items are.
    try:
        compacted, shape = _shape(target, header)
    except FormatError as error:
        if not target.unused_from(fmt.HEADER.size):
            yield {**target.place(fmt.HEADER.size), "type": "damaged",
                   "size": target.size - fmt.HEADER.size,
                   "error": target.fault_of(error, fmt.HEADER.size)}
        return
    target.notes.append(f"{'compacted' if compacted else 'open'} format"
                        f"{' of 5.1' if shape.old else ''}, {shape.slots:,} hash slots")
    # Show used slots, from the slot that contains the requested offset.
    if options.start is None:
        start = max(fmt.HEADER.size, options.at or 0)
        start -= (start - fmt.HEADER.size) % fmt.SLOT.size
        slot = _compacted_slot(target, shape) if compacted else _open_slot(shape, header)
        yield from unit_rows(target, slot, start, min(shape.items_at, target.size),
                             origin=fmt.HEADER.size)
    yield from _items(target, header, shape, compacted=compacted)


def _header_row(target: Target, header: fmt.HeaderRecord, raw: bytes) -> Row:
    row = {**target.place(0), "type": "header", **header._asdict(),
           "magic": f"{header.magic:08x}"}
    if header.magic not in fmt.MAGICS:
        row["error"] = target.fault("not an index magic", 0, "magic")
    elif not 0 <= header.item_count <= target.size // fmt.COMPACTED_ITEM.size:
        row["error"] = target.fault("more items than fit in the file", 0, "item_count")
    target.add_fields(row, fmt.Header, raw, 0)
    return row


def _shape(target: Target, header: fmt.HeaderRecord) -> tuple[bool, fmt.TieredIndexShape]:
    """Return (whether the index file is compacted, its shape).

    Raises: FormatError.
    """
    slots = target.options.index_slots
    try:
        shape = fmt.compacted_shape(header, target.size, slots)
        first = fmt.COMPACTED_SLOT.decode(target.read(fmt.HEADER.size, fmt.COMPACTED_SLOT.size))
        # In an open file the first slot contains an item number, which is less than any item
        # position.
        if first.position >= shape.items_at or shape.old:
            return True, shape
    except FormatError:
        pass
    return False, open_shape_of(target.read, target.size, header, slots)


def _compacted_slot(target: Target, shape: fmt.TieredIndexShape) -> Array:
    def judge(slot: fmt.CompactedSlotRecord, _number: int, _target: Target) -> Judged:
        if not slot.length:
            return "empty", {}, None
        bad = (slot.length < 0 or slot.length % fmt.COMPACTED_ITEM.size
               or slot.position < shape.items_at or slot.position + slot.length > target.size)
        wrong = ("position", "outside the items") if bad else None
        return "slot", {"count": slot.length // fmt.COMPACTED_ITEM.size}, wrong

    return Array(fmt.COMPACTED_SLOT, judge)


def _open_slot(shape: fmt.TieredIndexShape, header: fmt.HeaderRecord) -> Array:
    def judge(slot: fmt.SlotRecord, _number: int, _target: Target) -> Judged:
        if slot.item < (0 if shape.old else 1):
            return "empty", {}, None
        most = header.item_count - 1 if shape.old else header.item_count
        return "slot", {}, None if slot.item <= most else ("item", f"no item {slot.item}")

    return Array(fmt.SLOT, judge)


def _items(target: Target, header: fmt.HeaderRecord, shape: fmt.TieredIndexShape, *,
           compacted: bool) -> Iterator[Row]:
    unit = fmt.COMPACTED_ITEM if compacted else fmt.ITEM
    first = 0 if compacted or shape.old else 1
    origin = shape.items_at
    end = min(origin + (first + max(header.item_count, 0)) * unit.size, target.size)
    start = origin + ((target.options.start or 0) + first) * unit.size
    if target.options.at is not None:
        position = target.options.at
        start = max(origin + first * unit.size, position - (position - origin) % unit.size)
    step = 1 if shape.old else 1000

    def judge(item: fmt.ItemRecord, number: int, _target: Target) -> Judged:
        extra: Row = {"item_time": header.begin_timestamp + item.time_diff * step}
        if item.key_hash < 0:
            return "item", extra, ("key_hash", "a key hash is never negative")
        extra["slot"] = item.key_hash % shape.slots
        if not compacted and not item.previous < max(number, 1):
            return "item", extra, ("previous", f"item {number} cannot follow {item.previous}")
        return "item", extra, None

    yield from unit_rows(target, Array(unit, judge), start, end, origin=origin)


# -- metadata --------------------------------------------------------------------------------------

def metadata_rows(target: Target) -> Iterator[Row]:
    """Yield one row per topic, queue and segment entry, then the entries that cannot be read."""
    try:
        if target.size > MAX_TEXT:
            raise FormatError(f"{target.size:,} bytes are too many for such a file",
                              offset=MAX_TEXT, path="size")
        metadata = read_metadata(target.read(0, target.size))
    except FormatError as error:
        yield {**target.place(error.offset or 0), "type": "damaged", "size": target.size,
               "error": target.fault_of(error)}
        return
    for number, row in enumerate(_entries(metadata)):
        if number >= (target.options.start or 0):
            yield {**target.place(0, number), **row}
    for fault in metadata.faults:
        yield {**target.place(0), "type": "damaged", "name": fault.path,
               "error": target.fault(fault.reason, 0, fault.path)}


def _entries(metadata: meta.Metadata) -> Iterator[Row]:
    yield {"type": "metadata", "serial": metadata.serial}
    for topic in sorted(metadata.topics.values(), key=lambda topic: topic.topic_id):
        yield {"type": "topic", **asdict(topic)}
    for _, queues in sorted(metadata.queues.items()):
        for _, queue in sorted(queues.items()):
            yield {"type": "queue", **asdict(queue)}
    for kind, table in metadata.segments.items():
        for _, segments in sorted(table.items()):
            for _, entry in sorted(segments.items()):
                row = asdict(entry)
                row.pop("type")
                yield {"type": "segment", "kind": kind, **row}


READERS: dict[str, Callable[[Target], Iterator[Row]]] = {
    kinds.TIERED_COMMITLOG: tiered_log_rows,
    kinds.TIERED_CONSUMEQUEUE: queue_rows,
    kinds.TIERED_INDEX: tiered_index_rows,
    kinds.TIERED_METADATA: metadata_rows,
}
