"""Keep damaged messages and mark them, instead of replacing them with fillers.

Messages with damaged properties are always kept. Messages with a damaged body are kept with
``--keep-damaged``.

The record keeps its offset, its size and its consume queue entry. Its CRC is recomputed, and the
property ``RMQCTL`` is set to ``damaged``, so that consumers and filters can recognise it. That
property needs `len(KEPT_START)` bytes. These bytes are taken from the first of the following that
is long enough:

* damaged properties, which are dropped;
* ``CLUSTER``, which a broker adds and no consumer needs, and ``WAIT``, which only the broker uses;
* the body, compressed (zlib; every client decompresses it);
* the end of the body, if it is damaged.

The remaining space is filled with property separators, which every parser ignores (commitlog.md
§5.1).

The compression flag of a body that cannot be decompressed is cleared: a client that fails to
decompress a message drops it together with the rest of its pull. Brokers and clients parse the
bodies of inner batches and op messages, so these are replaced by fillers.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rmqctl.damage.evidence import FoundRow, Gatherer, HoleEntries, holes_with
from rmqctl.damage.records import MAX_BODY, body_crc
from rmqctl.damage.survey.survey import Survey
from rmqctl.errors import FormatError
from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.filler import KEPT_START, MARK
from rmqctl.formats.local.header_rules import bad_number, of_record
from rmqctl.formats.local.message import Record, build, decode
from rmqctl.repair.salvage.contents import unpacks
from rmqctl.repair.salvage.filler import REQUIRED
from rmqctl.scan.overlay import LogPart

_SEPARATOR = props.PROPERTY_SEPARATOR.encode()
_OF_BROKERS = ("CLUSTER", "WAIT")
_MAX_PROPERTIES = (1 << 15) - 1


class KeptRecord(NamedTuple):
    """A record that is delivered with its damage, as marked bytes (``content``).

    ``how``: a description of what was dropped or shortened to make space for the mark.
    """

    physical: int
    content: bytes
    how: str


def kept_damaged(parts: Sequence[LogPart], survey: Survey, gatherer: Gatherer,
                 evidence: HoleEntries, generation: int, *, bodies: bool) -> tuple[
                     list[KeptRecord], set[int]]:
    """Return (the damaged records that can be delivered, the physical offsets of the records that
    have an intact body, but no space for the mark). Raises: StoreIOError.

    A record is delivered only if its offset and size are known and its physicalOffset is right. A
    consume queue entry or a gap in its queue must confirm it. ``bodies``: whether records with a
    damaged body are delivered, too.
    """
    # The entries that may confirm a record.
    rows: dict[int, list[FoundRow]] = {}
    for row in evidence.rows:
        rows.setdefault(row.physical, []).append(row)
    kept: list[KeptRecord] = []
    full: set[int] = set()
    # Each damaged record of known extent.
    for region in survey.regions:
        part = parts[region.file]
        if part.path is None and not part.pieces:
            continue
        with part.open() as source:
            for start, size in region.extents:
                if size > MAX_BODY:
                    continue
                raw = source.read(start - source.base, size)
                try:
                    record = decode(raw)
                except FormatError:
                    continue
                if (record.total_size == len(raw) == size and record.physical_offset == start
                        and (bodies or record.crc_ok) and _deliverable(record, generation)
                        and _expected(record, rows.get(start, []), gatherer)):
                    marked_record = marked(record, survey.has_crcs)
                    if marked_record is not None:
                        kept.append(KeptRecord(start, *marked_record))
                    elif record.crc_ok:
                        full.add(start)
    return kept, full


def marked(record: Record, sealed: bool,
           wanted: Mapping[str, str] | None = None) -> tuple[bytes, str] | None:
    """Return (the record's bytes with the mark and right CRCs, the source of the space in words).

    None if there is not enough space. Damaged properties are dropped. An intact body may be
    compressed, but is never truncated. ``sealed``: whether the store's records end with an appended
    CRC. ``wanted``: properties to add.
    """
    # A body that is marked as compressed but cannot be decompressed loses that mark.
    flags = record.sys_flag
    if unpacks(record) is False:
        flags &= ~(sysflag.COMPRESSED | sysflag.COMPRESSION_MASK)
    # The intact properties, and the space for them.
    text, body = record.properties, record.body
    own = text[:-append_crc.SIZE] if sealed and append_crc.stored(text) is not None else text
    sealed = sealed and (own is not text or bool(props.fault(text)))
    whole = _sound(own, (MARK, *(wanted or {}), *((props.CRC32,) if sealed else ())))
    lead = KEPT_START + props.build(dict(wanted or {})).encode("utf-8", "surrogateescape")
    room = len(text) - len(lead) - append_crc.SIZE * sealed
    # Space for the mark: from damaged properties, properties that only brokers use, compressing the
    # body, or the end of a body that is damaged anyway.
    lean, how = whole, "the damaged properties"
    if _short(lean, sealed, room) > 0:
        lean, how = _without(whole, _OF_BROKERS), "CLUSTER and WAIT"
    if _short(lean, sealed, room) > 0:
        lean, short = whole, _short(whole, sealed, room)
        packed = b"" if flags & sysflag.COMPRESSED else zlib.compress(body)
        if packed and len(packed) + short <= len(body):
            body, how = packed, "compressing the body"
            flags |= sysflag.COMPRESSED
        elif not record.crc_ok and len(body) > short:
            body, how = body[:-short], f"the last {short} bytes of the body"
        else:
            return None
    # Fill the record up to its old size, with right CRCs.
    if sealed and not _is_closed(lean):
        lean += _SEPARATOR
    spare = room + len(record.body) - len(body) - len(lean)
    properties = lead + _SEPARATOR * spare + lean + bytes(append_crc.SIZE * sealed)
    if len(properties) > _MAX_PROPERTIES:
        return None
    raw = build(replace(record, sys_flag=flags, body=body, body_crc=body_crc(body),
                         properties=properties))
    return append_crc.seal(raw) if sealed else raw, how


def _short(text: bytes, sealed: bool, room: int) -> int:
    """Return the number of bytes missing for properties and the separator before the appended CRC.

    The number is 0 or less if there is enough space.
    """
    return len(text) + (sealed and not _is_closed(text)) - room


def _is_closed(text: bytes) -> bool:
    """Return whether another property can be appended without a separator."""
    return not text or text.endswith(_SEPARATOR)


def _sound(text: bytes, names: Sequence[str]) -> bytes:
    """Return the undamaged pairs of a properties string, except the properties in ``names``."""
    if props.fault(text) is None:
        return _without(text, names)
    left = [part for part in text.split(_SEPARATOR) if part and props.fault(part) is None]
    return _without(b"".join(part + _SEPARATOR for part in left), names)


def _without(text: bytes, names: Sequence[str]) -> bytes:
    """Return the properties string without the properties in ``names``, otherwise unchanged."""
    starts = tuple(f"{name}{props.NAME_VALUE_SEPARATOR}".encode() for name in names)
    return _SEPARATOR.join(part for part in text.split(_SEPARATOR) if not part.startswith(starts))


def _deliverable(record: Record, generation: int) -> bool:
    """Return whether brokers and clients accept the record, whatever its body contains."""
    topic = os.fsdecode(record.topic)
    values = props.parse(record.properties.decode("utf-8", "replace"))
    return (len(record.body) > 0 and not of_record(record)
            and not record.sys_flag & (sysflag.INNER_BATCH | sysflag.NEED_UNWRAP)
            and topic not in ("", props.OP_HALF_TOPIC)
            and not bad_number(values, record.topic, generation))


def _expected(record: Record, rows: list[FoundRow], gatherer: Gatherer) -> bool:
    """Return whether a consume queue entry, or a gap in the queue, confirms the record's position.

    A record that gets no entry is confirmed if no entry points to it.
    """
    if not sysflag.has_consume_queue_row(record.sys_flag):
        return not rows
    key = os.fsdecode(record.topic), record.queue_id
    if rows:
        return any(row.key == key and row.size == record.total_size
                   and row.queue_offset == record.queue_offset and not row.batch for row in rows)
    hole = holes_with(gatherer.holes, key, record.queue_offset)
    return hole is not None and hole.inner and hole.low < record.physical_offset < hole.high


def kept_from(ours: Record, theirs: Record) -> bool:
    """Return whether ``ours`` is the message ``theirs`` in the damaged form that an earlier repair
    kept.

    Such a repair changes flags and body, and drops some properties. The properties that it adds
    name the same further queue entries or protect a broker from harm.
    """
    if not ours.properties.startswith(KEPT_START) or theirs.properties.startswith(KEPT_START):
        return False
    left, whole = (props.parse(record.properties.decode("utf-8", "surrogateescape"))
                   for record in (ours, theirs))
    if not {*props.further_rows(left)} <= {*props.further_rows(whole)}:
        return False
    put_in = REQUIRED.get(os.fsdecode(ours.topic), {}).items() & left.items()
    for name in (MARK, props.CRC32, props.MULTI_DISPATCH, props.MULTI_QUEUE_OFFSET,
                 *(name for name, _ in put_in)):
        left.pop(name, None)
    return left.items() <= whole.items() and replace(
        ours, body=theirs.body, body_crc=theirs.body_crc, sys_flag=theirs.sys_flag,
        properties=theirs.properties) == theirs
