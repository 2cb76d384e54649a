"""Correct damaged properties of messages with an intact body where entries prove the original.

No CRC covers properties. A NUL, or one wrong byte in tags or keys, is corrected if exactly one
value of the byte agrees with the entries: the tags code in the consume queue and the key hashes in
the index.

All other messages are marked RMQCTL=damaged. Their damaged pairs are dropped, and the rest is kept.
Names of further queues are restored from the entries that point to the message.

In benchmarks/stage_yields.py, 56 of 60 messages with one NUL in their properties are restored; the
others are marked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from rmqctl.checks.verify.common import plural
from rmqctl.damage.evidence import FoundRow, HoleEntries
from rmqctl.damage.records import Records, batch_range_of, dispatched
from rmqctl.damage.survey.survey import Survey
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.consume_queue import tags_code
from rmqctl.formats.local.message import Record
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.rebuild.kept import EntryKey, StoreEntries
from rmqctl.repair.salvage.correct import Correction
from rmqctl.repair.salvage.filler import REQUIRED
from rmqctl.repair.salvage.keep import marked
from rmqctl.scan.damage.references import key_hashes
from rmqctl.scan.overlay import LogPart
from rmqctl.store.store import Store

_FEW, _SHARE = 1000, 20
"""Limits for damaged properties.

If more than `_FEW` messages, and more than one in `_SHARE` of all messages, have such properties, a
producer sent them. Such properties are then not damage.
"""
NO_ROOM = "no space for the mark"
_VALUES = range(1, 256)
_ASSIGN = props.NAME_VALUE_SEPARATOR.encode()
_WORD = 32
"""Number of bits of a hash."""


@dataclass(slots=True)
class Mended:
    """Result for messages with damaged properties.

    * ``records``: the new bytes, by physical offset.
    * ``corrections``: corrections of one byte, by the physical offset of that byte.
    * ``marked``: physical offsets of marked messages.
    * ``left``: reasons why messages are unchanged, by physical offset.
    """

    records: Records
    corrections: dict[int, Correction] = field(default_factory=dict)
    marked: set[int] = field(default_factory=set)
    left: dict[int, str] = field(default_factory=dict)


def mend_properties(store: Store, parts: Sequence[LogPart], survey: Survey,
                    evidence: HoleEntries) -> Mended:
    """Correct or mark all messages with damaged properties. Raises: StoreIOError."""
    mended = Mended(Records(parts))
    places = survey.unsound
    if len(places) > max(_FEW, survey.messages // _SHARE):
        mended.left = dict.fromkeys(
            places, "too many messages have such properties for this to be damage")
        return mended
    entries = StoreEntries(store)
    hashes = entries.keys(places) if places else {}
    rows: dict[int, list[FoundRow]] = {}
    for row in evidence.astray:
        rows.setdefault(row.physical, []).append(row)
    for place in places:
        _, record, _ = mended.records.read(place, None)
        if record is None:
            continue
        code = entries.tags_code(_entry(record)) if sysflag.has_consume_queue_row(
            record.sys_flag) else None
        own_entries = _Entries(code, frozenset(hashes.get(place, ())), rows.get(place, []))
        if code is not None and code != _code(record):
            own_entries = replace(own_entries, tags=entries.tags(_entry(record), code))
        _mend(mended, record, own_entries, survey.has_crcs)
    return mended


@dataclass(frozen=True, slots=True)
class _Entries:
    """The entries that point to a message: tags code, index key hashes and queue entries
    (``rows``).
    """

    code: int | None
    hashes: frozenset[int]
    rows: Sequence[FoundRow]
    tags: str | None = None
    """Tags of another message that has this tags code and is in the same queue."""

    def agrees(self, record: Record) -> bool:
        return (self.code is None or _code(record) == self.code) and (
            not self.hashes or key_hashes(record) == self.hashes) and not self.missing(record)

    def missing(self, record: Record) -> list[FoundRow]:
        """Return the entries that the message needs, but that neither its own queue nor its
        properties name.
        """
        own = os.fsdecode(record.topic), record.queue_id
        named = dispatched(record.properties)
        return [row for row in self.rows if (
            batch_range_of(record.properties) != (row.queue_offset, row.count) if row.batch else
            row.key != own and (row.key[0], row.queue_offset) not in named)]


def _mend(mended: Mended, record: Record, entries: _Entries, sealed: bool) -> None:
    place = record.physical_offset
    correction = _corrected(record, entries)
    if correction is not None:
        mended.corrections[place + correction.position] = correction
        mended.records.replace(place + correction.position, correction.after)
        return
    marked_record = marked(record, sealed, _wanted(record, entries))
    if marked_record is None and entries.tags:
        entries = replace(entries, tags=None)
        marked_record = marked(record, sealed, _wanted(record, entries))
    if marked_record is None:
        mended.left[place] = NO_ROOM
        return
    content, how = marked_record
    mended.marked.add(place)
    mended.records.replace(place, content)
    mended.records.reasons[place] = "; ".join(_mark_reasons(record, entries, how))


def _mark_reasons(record: Record, entries: _Entries, how: str) -> Iterator[str]:
    """Yield, in words, what a marked message loses and what it keeps."""
    yield (f"its properties contain {props.fault(record.properties)}; these pairs are lost, and "
           f"the message is marked RMQCTL=damaged (space from {how})")
    if entries.code is not None and entries.code != _code(record):
        yield (f"tags {entries.tags!r} from a message with the same tags code" if entries.tags else
               f"its consume queue entry keeps the tags code {entries.code}")
    if lost := entries.hashes - key_hashes(record):
        yield f"the index keeps {plural(len(lost), 'key')}"
    if missing := entries.missing(record):
        yield f"{plural(len(missing), 'further entry', 'further entries')} named again"


def _wanted(record: Record, entries: _Entries) -> Mapping[str, str]:
    """Return properties that a message must have. Without them, the message would lose entries or
    harm a broker.
    """
    values = props.parse(record.properties.decode("utf-8", "replace"))
    wanted = {name: value for name, value in REQUIRED.get(os.fsdecode(record.topic), {}).items()
              if name not in values or not _is_text(values[name])}
    if entries.tags:
        wanted[props.TAGS] = entries.tags
    missing = entries.missing(record)
    batch = next((row for row in missing if row.batch), None)
    if batch is not None:
        wanted |= {props.INNER_BASE: str(batch.queue_offset), props.INNER_NUM: str(batch.count)}
    further = {(row.key[0], row.queue_offset) for row in missing if not row.batch}
    if further:
        further |= {(name, offset) for name, offset in dispatched(record.properties)
                    if _is_text(name)}
        wanted |= {props.MULTI_DISPATCH: ",".join(name for name, _ in sorted(further)),
                   props.MULTI_QUEUE_OFFSET: ",".join(str(at) for _, at in sorted(further))}
    return wanted


def _is_text(value: str) -> bool:
    return value.isprintable() and "\ufffd" not in value


# -- one byte -------------------------------------------------------------------------------------


def _corrected(record: Record, entries: _Entries) -> Correction | None:
    """Return the correction of the one wrong byte, if entries prove the original."""
    if entries.agrees(record):
        return None
    raw, matches, tried = record.properties, [], 0
    for at, values in candidates(raw):
        before = raw[at]
        for value in values:
            if value == before:
                continue
            changed = raw[:at] + bytes([value]) + raw[at + 1:]
            tried += 1
            if props.fault(changed) is None and entries.agrees(replace(record, properties=changed)):
                matches.append((at, before, value, changed))
    if len(matches) != 1:
        return None
    at, before, value, changed = matches[0]
    witnesses = tuple(name for name, there in (
        ("the consume queue entry", entries.code is not None), ("the index", bool(entries.hashes)),
        ("further entries", bool(entries.rows))) if there)
    return Correction(record.total_size - len(raw) + at, bytes([before]), bytes([value]),
                      replace(record, properties=changed), "one byte of the properties", tried,
                      tried * 2.0 ** -_WORD, witnesses)


def candidates(raw: bytes) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield (position, possible original values) for each byte of the properties that may be the
    wrong one.
    """
    if raw.count(0):
        if raw.count(0) == 1:
            yield raw.index(0), _VALUES
        return
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        for at in range(max(0, error.start - 1), min(len(raw), error.end + 1)):
            yield at, _VALUES
        return
    # A part without a name or without a separator after the name: either a byte of the part is
    # wrong, or the property separator before it is.
    mark, start = props.PROPERTY_SEPARATOR.encode(), 0
    for part in raw.split(mark):
        if part and props.fault(part) is not None:
            if start:
                yield start - 1, _VALUES
            yield start, _VALUES
            for at in range(start + 1, start + len(part)):
                yield at, _ASSIGN
        start += len(part) + 1


def _entry(record: Record) -> EntryKey:
    return EntryKey(os.fsdecode(record.topic), record.queue_id, record.queue_offset,
                    record.physical_offset, record.total_size)


def _code(record: Record) -> int | None:
    """Return the tags code of a message; None if it cannot be computed from the properties."""
    try:
        return tags_code(record.topic.decode("utf-8", "replace"),
                         props.parse(record.properties.decode("utf-8", "replace")),
                         record.store_timestamp)
    except ValueError:
        return None
