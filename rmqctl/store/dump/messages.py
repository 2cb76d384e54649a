"""`dump` of files that hold messages: commitlog, compaction log, DLedger data."""

from __future__ import annotations

from collections.abc import Iterator

from rmqctl.errors import FormatError
from rmqctl.formats import dledger, kinds, layout
from rmqctl.formats.fixed import TOO_SHORT
from rmqctl.formats.local import append_crc, message
from rmqctl.scan.frames import BLANK, DAMAGED, Span
from rmqctl.scan.resync import extent
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk
from rmqctl.store.dump.fields import CHUNK, Row, Target, shown_hex
from rmqctl.store.objects import message_object
from rmqctl.store.problems import ambiguity

_SEARCHED = 64 << 20
"""Maximum number of bytes to search for a record that proves the base offset of a file. Used if the
file's name does not contain the offset.
"""
_START = layout.reader(message.Message, "total_size", "magic", "physical_offset")
_PEEK = 1 << 16
_NOTHING_TELLS = "unknown from this file alone (`rmqctl carve --embedded` shows them)"


def _implied_base(source: FileSource, position: int) -> int | None:
    """Return the physical offset of the file's first byte, computed from the record at
    ``position``. Return None if the record's size fields do not match.
    """
    raw = source.read(position, message.START_SIZE)
    if len(raw) < message.START_SIZE:
        return None
    total, magic, physical = _START.unpack_from(raw)
    if not message.is_magic(magic) or physical < position or extent(source, position) != total:
        return None
    return int(physical - position)


def find_base(source: FileSource) -> int | None:
    """Return the physical offset of the file's first byte, computed from its first intact
    record.
    """
    position = 0
    while position < min(source.size, _SEARCHED):
        position = source.next_data(position)
        data = source.read(position, CHUNK)
        if not data:
            return None
        for match in message.MAGIC_PATTERN.finditer(data, message.MAGIC_OFFSET):
            base = _implied_base(source, position + match.start() - message.MAGIC_OFFSET)
            if base is not None:
                return base
        position += max(len(data) - 2 * message.MAGIC_OFFSET, 1)
    return None


def settle_base(target: Target) -> int:
    """Return the base offset for the scan: from the file's name, unless the first record
    contradicts it.
    """
    named = target.base
    if named is None or _implied_base(target.source, 0) not in (None, named):
        base = find_base(target.source)
        if base is not None and named not in (None, base):
            target.notes.append(
                f"this file starts at {base} according to its records, at {named} according to "
                "its name")
            target.faults += 1
        target.base = named if base is None else base
    target.source.base = target.base or 0
    return target.source.base


def message_row(target: Target, raw: bytes, position: int, number: int) -> Row:
    """Return the row of a record whose length fields are consistent."""
    record = message.decode(raw)
    row = {**target.place(position, number), "type": "message", "size": len(raw),
           **message_object(record, body=target.options.body)}
    crc = append_crc.verify(raw)
    if crc is not None:
        row["appended_crc_ok"] = crc
    if target.base is not None and record.physical_offset != target.base + position:
        row["error"] = target.fault(f"physicalOffset is {record.physical_offset}", position,
                                    "physical_offset")
    elif not record.crc_ok:
        row["error"] = target.fault("body CRC mismatch", position, "body_crc")
    target.add_fields(row, message.Message, raw, position)
    return row


def _span_row(target: Target, span: Span, base: int, number: int) -> Row:
    position = span.offset - base
    row = {**target.place(position, number), "type": span.kind, "size": span.length}
    if span.kind == DAMAGED:
        also = f"; {ambiguity(span.doubtful, _NOTHING_TELLS)}" if span.doubtful else ""
        row["error"] = target.fault(span.reason + also, position, span.field)
    if span.kind == BLANK:
        target.add_fields(row, message.Blank, target.read(position, message.BLANK_SIZE), position)
    elif span.kind == DAMAGED and target.options.hex:
        raw = target.read(position, min(span.length, _PEEK))
        target.add_fields(row, message.Message, raw, position)
        row["hex"] = shown_hex(raw, full=target.options.full)
    return row


def log_rows(target: Target) -> Iterator[Row]:
    """Yield a row for every part of a log, in order: messages, blank records, zeros and damage. The
    rows cover all bytes.
    """
    base = settle_base(target)
    options = target.options
    number = 0
    walk = Walk(target.source, by_itself=True, is_dense=target.kind != kinds.COMPACTION_LOG)
    for batch in walk:
        starts = batch.start + (batch.base - base)
        sizes = batch.column("total_size") if len(batch) else starts
        first = 0
        if options.at is not None:
            first = int(((starts + sizes) <= options.at).sum())
        elif options.start is not None:
            first = min(max(options.start - number, 0), len(batch))
        for index in range(first, len(batch)):
            yield message_row(target, batch.bytes_at(index), int(starts[index]), number + index)
        number += len(batch)
        for span in batch.spans:
            passed = options.at is not None and span.end - base <= options.at
            if not passed and number >= (options.start or 0):
                yield _span_row(target, span, base, number)
            number += 1
    if walk.shrunk:
        target.shrunk(target.size)


def dledger_rows(target: Target) -> Iterator[Row]:
    """Yield, in file order, the DLedger entry headers, the messages inside the entries, plain
    records, and the end mark.
    """
    source, options, position, number = target.source, target.options, 0, 0
    while position < source.size:
        raw = target.read(position, dledger.HEAD_SIZE)
        rows, after = _entry(target, raw, position, number)
        if after > options.at if options.at is not None else number >= (options.start or 0):
            yield from rows
        number += 1
        position = after


def _entry(target: Target, raw: bytes, position: int, number: int) -> tuple[Iterator[Row], int]:
    """Return (rows, end) of the DLedger entry at ``position``; ``end`` is always greater than
    ``position``.
    """
    source = target.source
    framing = dledger.detect(raw)
    if framing == dledger.END_OF_FILE:
        return _end_row(target, raw, position, number), source.size
    if framing == dledger.PLAIN:
        size = extent(source, position)
        if size is not None and size == message.total_size_at(raw):
            return _inner(target, position, position + size, number), position + size
    try:
        head = dledger.parse(raw, 0, position)
        if head.size > source.size - position:
            raise FormatError(TOO_SHORT, offset=position, path="size")
    except FormatError as error:
        end = _next_entry(target, position + 1)
        return _lost_rows(target, raw, position, number, error, end), end
    if target.base is None:
        target.base = head.pos - position
    return _entry_rows(target, head, raw, position, number), position + head.size


def _end_row(target: Target, raw: bytes, position: int, number: int) -> Iterator[Row]:
    end = dledger.END.decode(raw)
    row = {**target.place(position, number), "type": "end", **end._asdict()}
    target.add_fields(row, dledger.End, raw, position)
    if end.size != target.size - position:
        row["error"] = target.fault(
            f"says {end.size:,} bytes are left, but there are "
            f"{target.size - position:,}", position, "size")
    yield row


def _entry_rows(target: Target, head: dledger.EntryHeadRecord, raw: bytes, position: int,
                number: int) -> Iterator[Row]:
    row = {**target.place(position, number), "type": "entry", **head._asdict()}
    if target.base is not None and head.pos != target.base + position:
        row["error"] = target.fault(f"pos is {head.pos}", position, "pos")
    target.add_fields(row, dledger.EntryHead, raw, position)
    yield row
    yield from _inner(target, position + dledger.HEAD_SIZE, position + head.size, number)


def _inner(target: Target, position: int, end: int, number: int) -> Iterator[Row]:
    """Yield the messages in ``[position, end)`` of one entry. A batch contains several."""
    while position < end:
        size = extent(target.source, position)
        try:
            if size is None or position + size > end:
                raise FormatError("incomplete message", path="total_size")
            yield message_row(target, target.read(position, size), position, number)
        except FormatError as error:
            yield {**target.place(position, number), "type": DAMAGED, "size": end - position,
                   "error": target.fault_of(error, position)}
            return
        position += size


def _lost_rows(target: Target, raw: bytes, position: int, number: int, error: FormatError,
               end: int) -> Iterator[Row]:
    """Yield a row for bytes that are not an entry: unused space, or damage up to the next provable
    entry.
    """
    row = {**target.place(position, number), "type": "zero", "size": end - position}
    if end < target.size or not target.unused_from(position):
        row |= {"type": DAMAGED, "error": target.fault_of(error, position)}
        target.add_fields(row, dledger.EntryHead, raw, position)
    yield row


def _next_entry(target: Target, position: int) -> int:
    """Return the next position of an entry header whose ``pos`` matches; the end of the file if no
    such header follows.
    """
    source, base = target.source, target.base
    magic = dledger.MAGIC_ENTRY.to_bytes(4, "big")
    while position < source.size:
        position = source.next_data(position)
        data = target.read(position, CHUNK + dledger.HEAD_SIZE)
        hit = data.find(magic)
        while 0 <= hit < CHUNK and hit + dledger.HEAD_SIZE <= len(data):
            head = dledger.ENTRY_HEAD.decode(data, hit)
            if (dledger.judge(head, 0) is None and head.size <= source.size - position - hit
                    and head.pos >= 0 and base in (None, head.pos - position - hit)):
                return position + hit
            hit = data.find(magic, hit + 1)
        if len(data) <= dledger.HEAD_SIZE:
            break
        position += len(data) - dledger.HEAD_SIZE
    return source.size


READERS = {kinds.COMMITLOG: log_rows, kinds.COMPACTION_LOG: log_rows, kinds.DLEDGER: dledger_rows}
