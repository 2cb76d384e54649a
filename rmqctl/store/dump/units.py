"""`dump` of arrays of fixed-size units: consumequeues, wheel, timerlog, DLedger index, index."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from rmqctl.errors import FormatError
from rmqctl.formats import dledger, kinds
from rmqctl.formats.fixed import Fixed
from rmqctl.formats.local import (
    batch_consume_queue,
    compaction,
    consume_queue,
    consume_queue_ext,
    index_file,
)
from rmqctl.formats.timer import timer_log, timer_wheel
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.dump.fields import CHUNK, Row, Target
from rmqctl.store.index.shape import decide

Judged = tuple[str, Row, tuple[str, str] | None]
"""The checked unit: (type, values in addition to its fields, damage). The damage is (field path,
reason) or None.
"""


@dataclass(frozen=True, slots=True)
class Array:
    """The reader of units of one kind. ``judge(unit, number, target)`` checks a unit; ``extra``:
    columns in addition to the unit's fields.
    """

    unit: Fixed[Any]
    judge: Callable[[Any, int, Target], Judged]
    extra: tuple[str, ...] = ()


def _row_of_queue(target: Target, number: int, unit_size: int) -> Row:
    if target.base is None:
        return {}
    return {"queue_offset": target.base // unit_size + number}


def _judge_row(unit: consume_queue.UnitRecord, number: int, target: Target) -> Judged:
    extra = _row_of_queue(target, number, consume_queue.UNIT_SIZE)
    if unit.is_filler:
        return "filler", extra, None
    if not unit.is_valid:
        path = "physical_offset" if unit.physical_offset < 0 else "size"
        return "damaged", extra, (path, "invalid unit")
    if consume_queue_ext.is_address(unit.tags_code):
        extra["ext_offset"] = consume_queue_ext.byte_offset(unit.tags_code)
    return "unit", extra, None


def _judge_batch(unit: batch_consume_queue.UnitRecord, _number: int, target: Target) -> Judged:
    if target.kind == kinds.COMPACTION_CQ and compaction.is_end(unit):
        return "end", {}, None
    if unit.is_valid:
        return "unit", {}, None
    path = ("physical_offset" if unit.physical_offset < 0 else "size" if unit.size <= 0
            else "msg_base_offset" if unit.msg_base_offset < 0 else "batch_size")
    return "damaged", {}, (path, "invalid unit")


def _judge_slot(slot: timer_wheel.SlotRecord, number: int, _target: Target) -> Judged:
    extra = {"time_ms": slot.time_ms()}
    if not timer_wheel.in_place(number, slot):
        return "damaged", extra, ("time", "this time belongs to another slot")
    return "slot", extra, None


def _judge_dledger(unit: dledger.IndexUnitRecord, _number: int, _target: Target) -> Judged:
    if unit.is_valid:
        return "unit", {}, None
    path = ("magic" if unit.magic != dledger.MAGIC_ENTRY else "pos" if unit.pos < 0 else "size")
    return "damaged", {}, (path, "invalid unit")


ARRAYS: dict[str, Array] = {
    kinds.CONSUMEQUEUE: Array(consume_queue.UNIT, _judge_row, ("queue_offset", "ext_offset")),
    kinds.BATCHCONSUMEQUEUE: Array(batch_consume_queue.UNIT, _judge_batch),
    kinds.COMPACTION_CQ: Array(compaction.UNIT, _judge_batch),
    kinds.TIMERWHEEL: Array(timer_wheel.SLOT, _judge_slot, ("time_ms",)),
    kinds.DLEDGER_INDEX: Array(dledger.INDEX_UNIT, _judge_dledger),
}


def used_numbers(data: bytes, unit: int, *, every: bool) -> list[int]:
    """Return the indices of the units in ``data`` that contain a nonzero byte; with ``every``, the
    indices of all units.
    """
    count = len(data) // unit
    if every:
        return list(range(count))
    import numpy as np

    units = np.frombuffer(data, np.uint8, count * unit).reshape(count, unit)
    numbers: list[int] = np.flatnonzero(units.any(axis=1)).tolist()
    return numbers


def _first(target: Target, unit: int) -> int:
    """Return the index of the first unit to show, from --from or --at."""
    options = target.options
    return options.at // unit if options.at is not None else options.start or 0


def array_rows(target: Target, array: Array | None = None) -> Iterator[Row]:
    """Yield the units of a file that consists only of units."""
    array = array or ARRAYS[target.kind]
    size = array.unit.size
    start = _first(target, size) * size
    yield from unit_rows(target, array, start, target.size)
    if target.kind == kinds.TIMERWHEEL and target.size != timer_wheel.FILE_SIZE:
        yield {**target.place(target.size), "type": "damaged", "error": target.fault(
            f"expected {timer_wheel.FILE_SIZE:,} bytes, the file has {target.size:,}", 0, "size")}


def unit_rows(target: Target, array: Array, start: int, end: int, first: int = 0,
           name: str | None = None, origin: int = 0) -> Iterator[Row]:
    """Yield a row for each unit in ``[start, end)``; the unit at ``origin`` has the number
    ``first``.
    """
    unit = array.unit
    for position, data in target.chunks(start, end, unit.size):
        for index in used_numbers(data, unit.size, every=target.options.every):
            place = position + index * unit.size
            number = first + (place - origin) // unit.size
            record = unit.decode(data, index * unit.size)
            kind, extra, wrong = ("unused", {}, None) if not any(record) else array.judge(
                record, number, target)
            row = {**target.place(place, number), "type": kind if name is None else name,
                   **record._asdict(), **extra}
            if wrong is not None:
                row["error"] = target.fault(wrong[1], place, wrong[0])
            target.add_fields(row, unit.declaration,
                              data[index * unit.size:(index + 1) * unit.size], place)
            yield row
        rest = len(data) % unit.size
        if rest:
            place = position + len(data) - rest
            yield _remainder(target, place, data[-rest:], unit.declaration)


def _remainder(target: Target, position: int, raw: bytes, declaration: Any) -> Row:
    """Return a row for the bytes at the end of a file that do not form a complete unit."""
    row = {**target.place(position), "type": "damaged", "size": len(raw),
           "error": target.fault(f"{len(raw)} bytes are left, not a complete unit", position)}
    target.add_fields(row, declaration, raw, position)
    return row


def timerlog_rows(target: Target) -> Iterator[Row]:
    """Yield the units of a timerlog file up to its end mark."""
    size = timer_log.UNIT_SIZE
    for position, data in target.chunks(_first(target, size) * size, target.size, size):
        for step in timer_log.walk(data, 0, position):
            place = position + step.at
            row = target.place(place, place // size)
            # An end mark must cover exactly the rest of the file.
            if step.tail is not None:
                row |= {"type": "end", **step.tail._asdict()}
                declaration = timer_log.Tail
                if step.tail.size != target.size - place:
                    row["error"] = target.fault(
                        f"says {step.tail.size:,} bytes are left, but there are "
                        f"{target.size - place:,}",
                        place, "size")
            elif step.unit is not None:
                # A damaged unit is shown with the fields that can be read.
                row |= {"type": "unit" if step.error is None else "damaged",
                        **step.unit._asdict(), "slot_time": step.unit.slot_time,
                        "flags": step.unit.flags}
                declaration = timer_log.Unit
            else:
                row |= {"type": "damaged", "size": step.size}
                declaration = timer_log.Unit
            if step.error is not None:
                row["error"] = target.fault_of(step.error, place)
            target.add_fields(row, declaration, data[step.at:step.at + step.size], place)
            yield row
            # Nothing after the end mark belongs to the log.
            if step.tail is not None:
                return


_SURE = CHUNK - 3 * consume_queue_ext.MAX_SIZE


def ext_rows(target: Target) -> Iterator[Row]:
    """Yield the units of a ConsumeQueueExt file up to its end mark or unused space."""
    position = number = 0
    ended = False
    while not ended:
        data = target.read(position, CHUNK)
        last = position + len(data) >= target.size
        done = 0
        for step in consume_queue_ext.walk(data, 0, position):
            if step.error is not None and not last and step.at > _SURE:
                break  # the window may end before the data after this unit: read on from here
            done, ended = step.at + step.size, step.end
            if _wanted(target, position + step.at, step.size, number):
                yield _ext_row(target, step, data, position, number)
            number += 1
        position += done
        ended = ended or last or not done
    if not target.unused_from(position) and (target.options.at or position) >= position:
        yield {**target.place(position), "type": "rest", "size": target.size - position}


def _wanted(target: Target, position: int, size: int, number: int) -> bool:
    if target.options.at is not None:
        return position + size > target.options.at
    return number >= (target.options.start or 0)


def _ext_row(target: Target, step: consume_queue_ext.ExtStep, data: bytes, origin: int,
             number: int) -> Row:
    place = origin + step.at
    row = target.place(place, number)
    if step.unit is not None:
        row |= {"type": "unit", **step.unit._asdict(), "bit_map": step.unit.bit_map.hex()}
        if target.base is not None:
            # no file of a broker starts at such a high offset
            with contextlib.suppress(ValueError):
                row["address"] = consume_queue_ext.address(target.base + place)
    elif step.error is None:
        row |= {"type": "end", "size": step.size}
    else:
        row |= {"type": "damaged", "size": target.size - place if step.end else step.size,
                "error": target.fault_of(step.error, place)}
    target.add_fields(row, consume_queue_ext.Unit, data[step.at:step.at + step.size], place)
    return row


def _judge_entry(entry: index_file.EntryRecord, number: int, shape: index_file.IndexShape,
                 header: index_file.HeaderRecord) -> Judged:
    extra: Row = {"entry_time": index_file.entry_time(header, entry), "used": (
        0 < number <= header.entries)}
    if entry.key_hash < 0:
        return "entry", extra, ("key_hash", "a key hash is never negative")
    if not 0 <= entry.previous < number:
        return "entry", extra, ("previous", f"entry {number} cannot follow {entry.previous}")
    extra["slot"] = shape.slot_of(entry.key_hash)
    return "entry", extra, None


def index_rows(target: Target) -> Iterator[Row]:
    """Yield the header, used slots and entries. With ``--from``, start at the entry with this
    number, and omit the header and slots.
    """
    options, header_size = target.options, index_file.HEADER.size
    # Without a readable header, nothing else can be located.
    raw = target.read(0, header_size)
    try:
        header = index_file.HEADER.decode(raw)
    except FormatError as error:
        yield {**target.place(0), "type": "damaged", "size": len(raw),
               "error": target.fault_of(error)}
        return
    # Show the header, unless the rows start after it.
    if options.start is None and (options.at is None or options.at < header_size):
        row = {**target.place(0), "type": "header", **header._asdict()}
        if not 0 <= header.index_count <= target.size // index_file.ENTRY.size:
            row["error"] = target.fault("more entries than fit in the file", 0,
                                        "index_count")
        target.add_fields(row, index_file.Header, raw, 0)
        yield row
    # The number of slots decides where the entries start.
    try:
        shape = (decide(target.size, target.read).shape if options.index_slots is None
                 else index_file.shape_of(target.size, options.index_slots))
    except FormatError as error:
        if not target.unused_from(header_size):
            yield {**target.place(header_size), "type": "damaged",
                   "size": target.size - header_size, "error": target.fault_of(error, header_size)}
        return
    target.notes.append(f"{shape.slots:,} hash slots, up to {shape.capacity:,} entries")
    entries_at = shape.entry_position(0)
    # Show used slots, from the slot that contains the requested offset.
    if options.start is None:
        start = max(header_size, options.at or 0)
        start -= (start - header_size) % index_file.SLOT.size
        yield from unit_rows(target, Array(index_file.SLOT, lambda slot, _number, _target: (
            "slot", {}, None if 0 < slot.entry < shape.max_entries else (
                "entry", f"no entry {slot.entry}"))), start, entries_at,
            origin=header_size)
    # Show entries, from the requested number or offset.
    start = shape.entry_position(options.start or 0)
    if options.at is not None:
        start = max(entries_at, options.at - (options.at - entries_at) % index_file.ENTRY.size)
    entries = Array(index_file.ENTRY, lambda entry, number, _target: _judge_entry(
        entry, number, shape, header))
    yield from unit_rows(target, entries, start, target.size, origin=entries_at)
