"""``--keep-damaged``: messages whose body stays damaged, delivered as it is instead of a filler.

The record keeps its place, its size and its row. Its CRC is set anew, and the property ``RMQCTL``
is ``damaged``, so that consumers and filters can tell. That property takes `len(KEPT_START)` bytes,
which come from the first of these that has them:

* ``CLUSTER``, which a broker adds and no consumer needs, and ``WAIT``, of use to the broker alone;
* the body, compressed (zlib; every client unpacks it);
* the end of the body.

What is left over is filled with property separators, which no parser minds (commitlog.md §5.1).

A compressed body that cannot be unpacked is no longer said to be compressed: a client that fails to
unpack a message drops it together with the rest of its pull. Inner batches and op messages, whose
bodies are not read by consumers but taken apart by brokers and clients, are left to the fillers.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rmqctl.errors import FormatError
from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.filler import KEPT_START, MARK
from rmqctl.formats.local.header_rules import bad_number, of_record
from rmqctl.formats.local.message import Record, build, decode
from rmqctl.repair.salvage.contents import unpacks
from rmqctl.repair.salvage.evidence import Evidence, FoundRow, Gatherer, holes_with
from rmqctl.repair.salvage.records import MOST_BODY, body_crc
from rmqctl.repair.salvage.survey.survey import Survey
from rmqctl.scan.overlay import LogPart

_SEPARATOR = props.PROPERTY_SEPARATOR.encode()
_OF_BROKERS = ("CLUSTER", "WAIT")
_MOST_PROPERTIES = (1 << 15) - 1


class Kept(NamedTuple):
    """A record that is delivered with its damage. ``how``: where the mark's bytes came from."""

    physical: int
    content: bytes
    how: str


def kept_damaged(parts: Sequence[LogPart], survey: Survey, gatherer: Gatherer,
                 evidence: Evidence, generation: int) -> list[Kept]:
    """The damaged records that can be delivered as they are. StoreIOError.

    Only records whose place and size are beyond doubt, that say themselves where they stand, and
    that their consumequeue row, or a hole in their queue, confirms.
    """
    rows: dict[int, list[FoundRow]] = {}
    for row in evidence.rows:
        rows.setdefault(row.physical, []).append(row)
    kept = []
    for region in survey.regions:
        part = parts[region.file]
        if part.path is None and not part.pieces:
            continue
        with part.open() as source:
            for start, size in region.extents:
                if size > MOST_BODY:
                    continue
                raw = source.read(start - source.base, size)
                try:
                    record = decode(raw)
                except FormatError:
                    continue
                if (record.total_size == len(raw) == size and record.physical_offset == start
                        and _deliverable(record, generation)
                        and _expected(record, rows.get(start, []), gatherer)):
                    made = marked(record, survey.has_crcs)
                    if made is not None:
                        kept.append(Kept(start, *made))
    return kept


def marked(record: Record, sealed: bool) -> tuple[bytes, str] | None:
    """(the record with the mark and right CRCs, where the mark's bytes came from).

    None where the properties have no room or the body no byte to spare. ``sealed``: the store's
    records end with an appended CRC.
    """
    flags = record.sys_flag
    if unpacks(record) is False:
        flags &= ~(sysflag.COMPRESSED | sysflag.COMPRESSION_MASK)
    text = record.properties
    sealed = sealed and append_crc.stored(text) is not None
    own = text[:-append_crc.SIZE] if sealed else text
    body, how = record.body, "CLUSTER and WAIT"
    lean = _without(own, _OF_BROKERS)
    if len(own) - len(lean) < len(KEPT_START):
        lean = own
        packed = b"" if flags & sysflag.COMPRESSED else zlib.compress(body)
        if packed and len(packed) + len(KEPT_START) <= len(body):
            body, how = packed, "compressing the body"
            flags |= sysflag.COMPRESSED
        elif len(body) > len(KEPT_START):
            body, how = body[:-len(KEPT_START)], f"the last {len(KEPT_START)} bytes of the body"
        else:
            return None
    spare = len(record.body) + len(text) - len(body) - len(KEPT_START) - len(lean) - (
        append_crc.SIZE if sealed else 0)
    if sealed and lean and not lean.endswith(_SEPARATOR):
        lean, spare = lean + _SEPARATOR, spare - 1
    properties = KEPT_START + _SEPARATOR * max(spare, 0) + lean + bytes(append_crc.SIZE * sealed)
    if spare < 0 or len(properties) > _MOST_PROPERTIES:
        return None
    made = build(replace(record, sys_flag=flags, body=body, body_crc=body_crc(body),
                         properties=properties))
    return append_crc.seal(made) if sealed else made, how


def _without(text: bytes, names: Sequence[str]) -> bytes:
    """The properties string without some properties, all else as it was."""
    starts = tuple(f"{name}{props.NAME_VALUE_SEPARATOR}".encode() for name in names)
    return _SEPARATOR.join(part for part in text.split(_SEPARATOR) if not part.startswith(starts))


def _deliverable(record: Record, generation: int) -> bool:
    """Whether brokers and clients take it, whatever its body is."""
    topic = os.fsdecode(record.topic)
    values = props.parse(record.properties.decode("utf-8", "replace"))
    return (len(record.body) > 0 and not of_record(record)
            and not record.sys_flag & (sysflag.INNER_BATCH | sysflag.NEED_UNWRAP)
            and topic not in ("", props.OP_HALF_TOPIC)
            and not bad_number(values, record.topic, generation))


def _expected(record: Record, rows: list[FoundRow], gatherer: Gatherer) -> bool:
    """Whether its queue misses just this message at just this place."""
    if not sysflag.has_consume_queue_row(record.sys_flag):
        return not rows
    key = os.fsdecode(record.topic), record.queue_id
    if rows:
        return any(row.key == key and row.size == record.total_size
                   and row.queue_offset == record.queue_offset and not row.batch for row in rows)
    hole = holes_with(gatherer.holes, key, record.queue_offset)
    return hole is not None and hole.inner and hole.low < record.physical_offset < hole.high


def kept_from(ours: Record, theirs: Record) -> bool:
    """Whether ours is this message, kept with a damaged body by an earlier repair: that leaves all
    but flags and body as they were, and of the properties all but two that it may take away.
    """
    if not ours.properties.startswith(KEPT_START) or theirs.properties.startswith(KEPT_START):
        return False
    left, whole = (props.parse(record.properties.decode("utf-8", "surrogateescape"))
                   for record in (ours, theirs))
    for name in (MARK, props.CRC32):
        left.pop(name, None)
    return left.items() <= whole.items() and replace(
        ours, body=theirs.body, body_crc=theirs.body_crc, sys_flag=theirs.sys_flag,
        properties=theirs.properties) == theirs
