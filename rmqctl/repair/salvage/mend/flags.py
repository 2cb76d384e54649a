"""Restore invalid system flags from everything else that is known about the message.

Each group of flags is derived from separate evidence:

* Widths of the hosts (IPv4 or IPv6): with the right widths, the lengths add up to the record's size
  and the body matches its CRC. Ports and store time are valid, too.
* Transaction: only plain and committed messages have a consume queue entry. Only committed and
  rolled back messages refer to a half message. Only half messages have the property TRAN_MSG.
* Compression: a body that no codec decodes is not compressed. A body that a codec decodes may still
  be what the producer sent. The half message of a committed or rolled back message has the same
  body and valid flags.
* Multi tags and inner batches: only values that other messages of the log have are possible. A
  batch has the property INNER_NUM.

If the record has an appended CRC, which covers the flags, every combination is tried instead.
Exactly one must match.

If only one combination is possible, the flags are restored. If several are possible, hosts and
transaction are restored. Bits that no release uses are then kept, and `verify` still reports the
message. Unknown bits in several messages are also kept, because a newer release may have set them.

In benchmarks/stage_yields.py, 39 of 60 messages with random flags are restored, and 60 of 60 with
appended CRCs. With one flipped bit, only 28 of 60 are restored, because flags below 0x800 may be
what the producer sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from rmqctl.damage.evidence import FoundRow, Gatherer, holes_with
from rmqctl.damage.records import Records, field_of, has_room_for_body, whole_record, with_fields
from rmqctl.damage.survey.survey import Survey
from rmqctl.errors import FormatError
from rmqctl.formats.bodies import CODECS
from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local import header_rules as rules
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import HOST_BITS, Record, decode, fixed_field
from rmqctl.repair.salvage.contents import odd_bytes
from rmqctl.repair.salvage.correct import Chances
from rmqctl.repair.salvage.mend.sealed import Times, matching
from rmqctl.scan.damage.references import key_hashes
from rmqctl.scan.overlay import LogPart

_HOSTS = (0, sysflag.BORN_HOST_V6, sysflag.STORE_HOST_V6, HOST_BITS)
_PACKED = sysflag.COMPRESSED | sysflag.COMPRESSION_MASK
_INNER = sysflag.NEED_UNWRAP | sysflag.INNER_BATCH
_STYLE = sysflag.MULTI_TAGS | _INNER
_TRANSACTIONS = (sysflag.TRANSACTION_NONE, sysflag.TRANSACTION_PREPARED,
                 sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK)
_ALIKE = 3
"""Unknown bits are not damage if at least this many messages have the same bits: a newer release or
a client has then set them.
"""
_OWN_TOPICS = (props.HALF_TOPIC.encode(), props.OP_HALF_TOPIC.encode())
_ALL = np.array([sum(parts) for parts in product(
    _HOSTS, _TRANSACTIONS,
    [0, *(sysflag.COMPRESSED | number << sysflag.COMPRESSION_SHIFT for number in CODECS)],
    (0, sysflag.MULTI_TAGS), (0, sysflag.NEED_UNWRAP, sysflag.INNER_BATCH, _INNER))], np.uint64)
"""All combinations of flags that released brokers write."""
_MAGIC_STARTS = {1: b"\x04\x22\x4d\x18", 2: b"\x28\xb5\x2f\xfd"}
"""First bytes of a compressed frame, by codec number, for codecs that might not be installed."""
_SHOWS_FLAGS = {rules.FLAG_BITS, rules.SYS_FLAG, rules.BORN_PORT, rules.STORE_PORT,
                rules.STORE_TIME}


class CorrectedFlags(NamedTuple):
    """A record with corrected flags, and the reason for the correction. ``whole``: whether all
    flags are known.
    """

    raw: bytes
    record: Record
    reason: str
    whole: bool


def are_odd(sys_flag: int) -> bool:
    """Return whether the flags contain bits or a codec that no release writes."""
    return bool(sys_flag & ~sysflag.KNOWN_BITS) or (
        bool(sys_flag & sysflag.COMPRESSED) and _kind(sys_flag) not in CODECS)


class Flags:
    """Corrector of the system flags of single records, with the evidence of one round."""

    def __init__(self, parts: Sequence[LogPart], survey: Survey, gatherer: Gatherer,
                 records: Records, chances: Chances) -> None:
        self._witness, self._survey = parts[0].witness, survey
        self._gatherer, self._records, self._chances = gatherer, records, chances

    def of(self, raw: bytes, place: int, rows: Sequence[FoundRow], times: Times) -> (
            CorrectedFlags | None):
        """Return the record at a physical offset with its original flags. Raises: StoreIOError.

        None if the flags are right or the original is unknown. ``rows``: entries that point to the
        record; ``times``: store times of the messages before and after it.
        """
        stored = field_of(raw, "sys_flag")
        if self._survey.has_crcs and append_crc.stored(raw) is not None:
            return self._by_seal(raw, place, stored)
        if self._survey.unknown_bits[stored & ~sysflag.KNOWN_BITS] >= _ALIKE:
            return None
        is_odd = are_odd(stored)
        # With the two host widths swapped, the lengths add up, too.
        if not is_odd and _with_hosts(raw, place, (stored ^ HOST_BITS) & HOST_BITS) is None:
            return None
        shaped = self._shaped(raw, place, times)
        if shaped is None:
            return None
        if not is_odd:
            return None if (shaped.sys_flag ^ stored) & HOST_BITS != HOST_BITS else _rebuilt(
                raw, stored ^ HOST_BITS, f"system flags {stored:#x} swap IPv4 and IPv6 of the "
                "hosts: if the bits are swapped back, ports and store time fit", whole=True)
        if not stored & ~sysflag.KNOWN_BITS and odd_bytes(shaped.body) is not None:
            return None  # an unknown codec may have compressed the body
        hosts = shaped.sys_flag & HOST_BITS
        transactions = self._transactions(shaped, rows)
        if len(transactions) != 1:
            return None
        transaction = transactions.pop()
        packed, style = self._packed(shaped, transaction), self._style(shaped)
        damage = f"system flags {stored & 0xFFFFFFFF:#x} are damaged"
        if len(packed) == len(style) == 1:
            flags = hosts | transaction | packed.pop() | style.pop()
            return _rebuilt(raw, flags, f"{damage}: only {flags:#x} fits hosts, transaction, body "
                            "and the other messages", whole=True)
        flags = stored & ~sysflag.KNOWN_BITS | hosts | transaction | _nearest(
            stored & _PACKED, packed) | _nearest(stored & _STYLE, style)
        if not flags & ~sysflag.KNOWN_BITS or flags == stored:
            return None
        return _rebuilt(raw, flags, f"{damage}: hosts and transaction restored, the other flags "
                     "are unknown and stay damaged", whole=False)

    # -- the parts of the flags -------------------------------------------------------------------

    def _shaped(self, raw: bytes, place: int, times: Times) -> Record | None:
        """Return the record with the only host widths that fit, and all other flags 0.

        None if several or no widths fit.
        """
        fitting = [record for bits in _HOSTS
                 if (record := _with_hosts(raw, place, bits)) is not None and all(
                0 <= port <= rules.MAX_PORT for port in (
                    record.born_host[1], record.store_host[1])) and (
                    record.store_timestamp >= rules.EARLIEST)]
        before, after = times
        if len(fitting) > 1:
            fitting = [record for record in fitting if (before or 0) <= record.store_timestamp and (
                after is None or record.store_timestamp <= after)]
        return fitting[0] if len(fitting) == 1 else None

    def _transactions(self, record: Record, rows: Sequence[FoundRow]) -> set[int]:
        """Return the transaction types that entries, the half message and the properties allow."""
        values = _values(record)
        if record.topic in _OWN_TOPICS:
            kinds = {sysflag.TRANSACTION_NONE}
        elif record.prepared_transaction_offset:
            kinds = {sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK}
        elif props.PREPARED in values:
            kinds = {sysflag.TRANSACTION_PREPARED}
        else:
            kinds = {sysflag.TRANSACTION_NONE}
        has_entry = self._has_entry(record, rows)
        if has_entry is None and record.queue_offset:
            has_entry = True  # half messages and rollbacks have the queue offset 0
        if has_entry is None and sysflag.TRANSACTION_COMMIT in kinds and self._is_indexed(record):
            has_entry = True
        return {kind for kind in kinds
                if has_entry is None or sysflag.has_consume_queue_row(kind) == has_entry}

    def _has_entry(self, record: Record, rows: Sequence[FoundRow]) -> bool | None:
        """Return whether a consume queue has or had an entry for the message; None if unknown."""
        key = record.topic.decode("utf-8", "surrogateescape"), record.queue_id
        if any(row.key == key and row.size == record.total_size and (
                row.queue_offset <= record.queue_offset < row.queue_offset + row.count)
               for row in rows):
            return True
        # Checked as a plain message, because some other kinds have no entry.
        confirmed = None if self._witness is None else self._witness.confirms(_plain(record))
        if confirmed is not None:
            return confirmed
        hole = holes_with(self._gatherer.holes, key, record.queue_offset)
        if hole is not None and hole.inner and hole.low < record.physical_offset < hole.high:
            return True
        return None

    def _is_indexed(self, record: Record) -> bool:
        place = record.physical_offset
        return self._witness is not None and bool(key_hashes(record) & {
            *self._witness.keys(place, place + 1)[1].tolist()})

    def _packed(self, record: Record, transaction: int) -> set[int]:
        """Return the possible values of the compression bits."""
        compressions = {0}
        for number, codec in CODECS.items() if record.body else ():
            try:
                codec.decompress(record.body)
            except ImportError:
                if not record.body.startswith(_MAGIC_STARTS[number]):
                    continue
            except Exception:  # noqa: BLE001, S112 - a decoder may raise anything on foreign bytes
                continue
            compressions.add(sysflag.COMPRESSED | number << sysflag.COMPRESSION_SHIFT)
        if len(compressions) > 1 and transaction in (sysflag.TRANSACTION_COMMIT,
                                              sysflag.TRANSACTION_ROLLBACK):
            _, half, _ = self._records.read(record.prepared_transaction_offset, None)
            if half is not None and not are_odd(half.sys_flag) and half.crc_ok and (
                    half.body == record.body) and _unique(half) == _unique(record) is not None:
                return {half.sys_flag & _PACKED}
        return compressions

    def _style(self, record: Record) -> set[int]:
        """Return the possible values of the bits for multi tags and inner batches."""
        seen = {flags & _STYLE for flags in self._survey.flags} | {0}
        if props.INNER_NUM in _values(record):
            return {style for style in seen if style & _INNER} or {*range(_STYLE + 1)}
        return {style for style in seen if not style & _INNER}

    # -- with an appended CRC ---------------------------------------------------------------------

    def _by_seal(self, raw: bytes, place: int, stored: int) -> CorrectedFlags | None:
        """Return the only flags with which the record matches its CRC, after trying all
        combinations.
        """
        if append_crc.verify(raw):
            return None
        where = fixed_field("sys_flag")
        allowed = self._chances.allow(place, len(_ALL) / 2 ** 31)
        matches = [flags for flags in matching(raw, where.offset, where.size, _ALL).tolist()
                 if whole_record(with_fields(raw, sys_flag=flags), place, sealed=True) is not None]
        if len(matches) != 1 or not allowed:
            return None
        return _rebuilt(raw, matches[0], f"system flags {stored & 0xFFFFFFFF:#x} are damaged: with "
                     f"{matches[0]:#x} the record matches its own CRC ({len(_ALL)} candidates "
                     "tried)", whole=True)


def _with_hosts(raw: bytes, place: int, bits: int) -> Record | None:
    """Return the record with hosts of these widths and all other flags 0.

    None if that record would not be complete, or if a host or the store time would be impossible.
    """
    if not has_room_for_body(raw, bits):
        return None  # the usual case
    record = whole_record(with_fields(raw, sys_flag=bits), place, sealed=False)
    return record if record is not None and record.store_timestamp >= rules.EARLIEST and all(
        0 <= port <= rules.MAX_PORT for port in (
            record.born_host[1], record.store_host[1])) else None


def mend_flags(flags: Flags, survey: Survey, records: Records,
               rows: Mapping[int, Sequence[FoundRow]]) -> None:
    """Correct the flags of intact messages with damaged flags, where the original is known.

    Corrected messages are added to ``records``. ``rows``: entries by the physical offset that they
    point to. Raises: StoreIOError.
    """
    def time_at(place: int | None) -> int | None:
        _, record, _ = (0, None, b"") if place is None else records.read(place, None)
        return None if record is None else record.store_timestamp

    for fault in survey.headers.faults:
        if not _SHOWS_FLAGS.intersection(fault.categories):
            continue
        _, record, raw = records.read(fault.offset, None)
        corrected = None if record is None else flags.of(raw, fault.offset, rows.get(
            fault.offset, ()), (time_at(fault.before), time_at(fault.behind)))
        if corrected is not None and records.replace(fault.offset, corrected.raw):
            records.reasons[fault.offset] = corrected.reason


def _rebuilt(raw: bytes, flags: int, reason: str, *, whole: bool) -> CorrectedFlags | None:
    changed = with_fields(raw, sys_flag=flags)
    try:
        return CorrectedFlags(changed, decode(changed), reason, whole)
    except FormatError:
        return None


def _nearest(stored: int, allowed: set[int]) -> int:
    """Return the stored value if it is allowed, else the allowed value with the fewest different
    bits.
    """
    return min(allowed, key=lambda value: ((value ^ stored).bit_count(), value))


def _kind(sys_flag: int) -> int:
    return (sys_flag & sysflag.COMPRESSION_MASK) >> sysflag.COMPRESSION_SHIFT


def _plain(record: Record) -> Record:
    """Return a copy of the record with all flags cleared except the widths of its hosts."""
    return replace(record, sys_flag=record.sys_flag & HOST_BITS)


def _values(record: Record) -> dict[str, str]:
    return props.parse(record.properties.decode("utf-8", "surrogateescape"))


def _unique(record: Record) -> str | None:
    return _values(record).get(props.UNIQUE_KEY)
