"""Correct header fields of intact messages whose values no broker can have written.

An invalid port or an unknown compression makes a client give up in the middle of a pull, so these
values are always replaced:

* The store host is taken from the neighbouring messages, the compression is derived from the body.
* A port with one flipped bit above its lower 16 bits is reduced to these 16 bits.
* An unknown port becomes 0, which every client accepts.
* A message with unknown compression is replaced by a filler.

An invalid numeric property makes a broker truncate the log. If no other field proves its value, a
filler replaces the message.

Other fields:

* Store time: corrected by `times`.
* Offset of a half message: found with the half message itself, else set to 0.
* Negative reconsume count: becomes its lower 16 bits if one flipped bit explains it, else 0. An
  appended CRC that covers the negative count is recomputed.
* Negative queue id: replaced with the id of the only queue of the topic from which exactly this
  message is missing.

In benchmarks/stage_yields.py, one field of each of 60 messages gets a random value. The offset of
the half message is restored in all of them, the store host in 55, the reconsume count in 34, and
the born host in none. If only one bit is flipped, the born host is restored in 10 of 60 messages,
and the reconsume count in 21.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from itertools import pairwise

from rmqctl.damage.evidence import ENDLESS
from rmqctl.damage.records import Records, unless_crc_differs
from rmqctl.damage.survey.survey import Run, Survey
from rmqctl.errors import StoreIOError
from rmqctl.formats.bodies import CODECS
from rmqctl.formats.local import append_crc, index_file, sysflag
from rmqctl.formats.local import header_rules as rules
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record, build
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.salvage.mend.times import Times
from rmqctl.scan.headers import HeaderFault
from rmqctl.store.index import files as index_files
from rmqctl.store.store import Store

Host = tuple[bytes, int]
_MAX_DIGITS = len(str(-(1 << 63)))
_MAX_LOOKUPS, _MAX_ENTRIES = 1000, 64
_LONG = (1 << 64) - 1


@dataclass(slots=True)
class _Evidence:
    """Evidence for header fields. ``lookups``: number of index lookups that are still allowed."""

    store: Store
    survey: Survey
    records: Records
    times: Times
    lookups: int = _MAX_LOOKUPS
    homeless: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    """Number of messages with an invalid queue id, by topic and queue offset."""


def mend_headers(store: Store, survey: Survey, records: Records) -> None:
    """Correct header fields of intact messages in ``records``; reject records that can be neither
    kept nor corrected.
    """
    evidence = _Evidence(store, survey, records, Times(store, survey, records))
    for fault in survey.headers.faults:
        if rules.QUEUE_ID in fault.categories:
            _, record, _ = records.read(fault.offset, None)
            if record is not None:
                evidence.homeless[record.topic, record.queue_offset] += 1
    for fault in survey.headers.faults:
        if any(name in _MENDED or name == rules.RECONSUME for name in fault.categories):
            _mend(evidence, fault)
    evidence.times.mend_astray()


def _mend(evidence: _Evidence, fault: HeaderFault) -> None:
    records = evidence.records
    _, record, stored = records.read(fault.offset, None)
    if record is None or records.is_replaced(fault.offset):
        return
    corrected: Record | None = record
    reasons = []
    for name in fault.categories:
        if corrected is not None and name in _MENDED:
            corrected, reason = _MENDED[name](corrected, fault, evidence)
            reasons += [reason] if reason else []
    raw = stored if corrected == record else (
        None if corrected is None else unless_crc_differs(build(corrected)))
    if raw is None or corrected is None:
        # The appended CRC contradicts the correction, or no valid value is known: use a filler.
        if any(name in (*rules.UNDECODABLE, rules.NUMBER) for name in fault.categories):
            records.rejected.add(fault.offset)
            return
        raw, corrected, reasons = stored, record, []
    if rules.RECONSUME in fault.categories:
        raw, reason = _reconsume(raw, corrected)
        reasons += [reason] if reason else []
    if raw != stored and records.replace(fault.offset, raw):
        records.reasons[fault.offset] = "; ".join(reasons)


# -- one field each: return (record, None if it needs a filler; reason, "" if unchanged) -----------


def _born_port(record: Record, _fault: HeaderFault, _evidence: _Evidence) -> tuple[Record, str]:
    address, port = record.born_host
    original = _one_bit(port)
    corrected = replace(record, born_host=(address, original or 0))
    if original is None:
        return corrected, f"invalid born port {port}: original unknown, set to 0"
    return corrected, f"invalid born port {port}: corrected to {original} (one flipped bit)"


def _store_port(record: Record, fault: HeaderFault, evidence: _Evidence) -> tuple[Record, str]:
    address, port = record.store_host
    damage = f"invalid store port {port}"
    beside = [host for place in (fault.before, fault.behind)
              if (host := _host_at(evidence.records, place)) is not None]
    if not beside and evidence.survey.host is not None:
        beside = [evidence.survey.host]
    same = [host for host in beside if host[0] == address]
    if len({*beside}) == 1 and len(beside) == 2 and len(beside[0][0]) == len(address):
        return replace(record, store_host=beside[0]), (
            f"{damage}: its neighbours have {beside[0][1]}")
    if len({*same}) == 1:
        return replace(record, store_host=same[0]), f"{damage}: its neighbours have {same[0][1]}"
    right = _one_bit(port)
    corrected = replace(record, store_host=(address, right or 0))
    if right is None:
        return corrected, f"{damage}: original unknown, set to 0"
    return corrected, f"{damage}: corrected to {right} (one flipped bit)"


def _host_at(records: Records, place: int | None) -> Host | None:
    """Return the store host of the message at a physical offset if its port is valid."""
    if place is None:
        return None
    _, record, _ = records.read(place, None)
    if record is None or not 0 <= record.store_host[1] <= rules.MAX_PORT:
        return None
    return record.store_host


def _sys_flag(record: Record, _fault: HeaderFault, _evidence: _Evidence) -> tuple[
        Record | None, str]:
    rest = record.sys_flag & ~sysflag.COMPRESSION_MASK
    for number in sorted(CODECS, reverse=True):
        try:
            CODECS[number].decompress(record.body)
        except Exception:  # noqa: BLE001, S112 - a decoder may raise anything on foreign bytes
            continue
        flag = rest | number << sysflag.COMPRESSION_SHIFT
        return replace(record, sys_flag=flag), (
            f"system flags {record.sys_flag} have an invalid compression type: the body is "
            f"{CODECS[number].name}")
    return None, ""


def _reconsume(raw: bytes, record: Record) -> tuple[bytes, str]:
    """Return (the bytes of the record with a corrected reconsume count, the reason).

    No other field proves the count. An appended CRC that matches a negative count does not prove
    it, either.
    """
    stored = f"reconsumeTimes {record.reconsume_times}"
    times = _one_bit(record.reconsume_times)
    reason = f"{stored}: corrected to {times} (one flipped bit)"
    if times is None and record.reconsume_times >= 0:
        return raw, ""  # clients can increment it, and no better value is known
    if times is None:
        times, reason = 0, f"{stored}: original unknown, set to 0, as in a first delivery"
    mended = build(replace(record, reconsume_times=times))
    return append_crc.seal(mended) if append_crc.verify(raw) else mended, reason


def _number(record: Record, _fault: HeaderFault, evidence: _Evidence) -> tuple[Record | None, str]:
    """Correct numeric properties.

    The delay level is the queue id + 1, and the base of an inner batch is the queue offset. Any
    other property is corrected if exactly one flipped bit makes it a number.
    """
    raw, reasons = record.properties, []
    while name := rules.bad_number(_values(raw), record.topic, evidence.survey.generation):
        stored = _values(raw)[name].encode("utf-8", "surrogateescape")
        proved = {props.DELAY: record.queue_id + 1, props.INNER_BASE: record.queue_offset}
        numbers = [b"%d" % proved[name]] if name in proved else _digits_one_bit_off(stored)
        if len(numbers) != 1 or len(numbers[0]) != len(stored):
            return None, ""
        wrong, right = (name.encode() + b"\x01" + value for value in (stored, numbers[0]))
        raw = b"\x02".join(right if part == wrong else part for part in raw.split(b"\x02"))
        how = "from its queue" if name in proved else "one flipped bit"
        reasons.append(f"{name} was not a number: corrected to {numbers[0].decode()} ({how})")
    return replace(record, properties=raw), "; ".join(reasons)


def _values(raw: bytes) -> dict[str, str]:
    return props.parse(raw.decode("utf-8", "surrogateescape"))


def _digits_one_bit_off(number: bytes) -> list[bytes]:
    """Return all decimal numbers that differ from these bytes in one bit.

    The list is empty if there are too many bytes for a number.
    """
    if len(number) > _MAX_DIGITS:
        return []
    turned = (number[:index] + bytes([byte ^ 1 << bit]) + number[index + 1:]
              for index, byte in enumerate(number) for bit in range(8))
    return [digits for digits in turned if digits.isdigit()]


def _one_bit(number: int) -> int | None:
    """Return the lower 16 bits of a port or reconsume count if exactly one of the upper 16 bits is
    set; otherwise None.
    """
    high = (number & 0xFFFFFFFF) >> 16
    return number & rules.MAX_PORT if high.bit_count() == 1 else None


def _store_time(record: Record, fault: HeaderFault, evidence: _Evidence) -> tuple[Record, str]:
    return evidence.times.possible(record, fault)


def _queue_id(record: Record, _fault: HeaderFault, evidence: _Evidence) -> tuple[Record, str]:
    """Return the record with a corrected queue id: that of the only queue of the topic from which
    exactly this message is missing.

    The record is unchanged if another message with an invalid queue claims the same queue offset.
    """
    if evidence.records.is_replaced(record.physical_offset):  # corrected from an entry
        return record, ""
    topic = os.fsdecode(record.topic)
    lacking = [queue for name, queue in evidence.survey.runs.keys if name == topic and queue >= 0
               and _lacks(evidence.survey.runs.of((name, queue)), record)]
    if len(lacking) != 1 or evidence.homeless[record.topic, record.queue_offset] > 1:
        return record, ""
    return replace(record, queue_id=lacking[0]), (
        f"invalid queue {record.queue_id}: corrected to {lacking[0]}, where only the "
        f"message with queue offset {record.queue_offset} is missing")


def _queue_offset(record: Record, _fault: HeaderFault, evidence: _Evidence) -> tuple[Record, str]:
    """Return the record with queue offset 0, and the correction in words.

    If exactly this message is missing from its queue, the transaction bits are wrong, not the queue
    offset. The record is then returned unchanged.
    """
    topic = os.fsdecode(record.topic)
    if _lacks(evidence.survey.runs.of((topic, record.queue_id)), record):
        return record, ""
    return replace(record, queue_offset=0), (
        f"queue offset {record.queue_offset}: set to 0, as in every message without a consume "
        "queue entry")


def _lacks(runs: Sequence[Run], record: Record) -> bool:
    """Return whether exactly this message is missing from a queue at the message's position in the
    log.
    """
    return any(run.end == record.queue_offset and other.first == record.queue_offset + 1
               and run.high < record.physical_offset < other.low for run, other in pairwise(runs))


# -- the half message of a committed or rolled back message ----------------------------------------


def _prepared(record: Record, _fault: HeaderFault, evidence: _Evidence) -> tuple[Record, str]:
    """Return the record with the offset of its half message, and the correction in words.

    This offset is the stored offset with one bit corrected, the offset of the only half message
    with the same unique key, or 0 if neither is known.
    """
    stored = record.prepared_transaction_offset
    damage = f"invalid preparedTransactionOffset {stored}"
    if record.sys_flag & sysflag.TRANSACTION_MASK in (sysflag.TRANSACTION_NONE,
                                                     sysflag.TRANSACTION_PREPARED):
        return replace(record, prepared_transaction_offset=0), (
            f"{damage}: set to 0, as in every message that does not end a transaction")
    turned = [place for bit in range(64) if _is_half(
        place := (stored & _LONG) ^ 1 << bit, record, evidence.records)]
    if len(turned) == 1:
        return replace(record, prepared_transaction_offset=turned[0]), (
            f"{damage}: corrected to {turned[0]} (one flipped bit)")
    indexed = _indexed_halves(record, evidence)
    if len(indexed) == 1:
        return replace(record, prepared_transaction_offset=indexed[0]), (
            f"{damage}: corrected to {indexed[0]}, by its unique key")
    return replace(record, prepared_transaction_offset=0), f"{damage}: original unknown, set to 0"


def _is_half(place: int, record: Record, records: Records) -> bool:
    """Return whether a half message with the record's queue and unique key is at this offset."""
    if not 0 <= place < record.physical_offset:
        return False
    _, half, _ = records.read(place, None)
    if half is None or not half.crc_ok:
        return False
    values, own = _values(half.properties), _values(record.properties)
    if values.get(props.UNIQUE_KEY) != own.get(props.UNIQUE_KEY):
        return False
    if half.topic == props.HALF_TOPIC.encode():
        return (values.get(props.REAL_TOPIC), values.get(props.REAL_QUEUE_ID)) == (
            os.fsdecode(record.topic), str(record.queue_id))
    return half.sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_PREPARED and (
        half.topic, half.queue_id) == (record.topic, record.queue_id)


def _indexed_halves(record: Record, evidence: _Evidence) -> list[int]:
    key = _values(record.properties).get(props.UNIQUE_KEY)
    if key is None or not evidence.lookups:
        return []
    evidence.lookups -= 1
    places: list[int] = []
    for index in evidence.store.index.newest_first():
        for topic in (props.HALF_TOPIC, os.fsdecode(record.topic)):
            with suppress(StoreIOError):
                index_files.select(index, index_file.key_hash(topic, key), _MAX_ENTRIES, 0,
                                   ENDLESS, places)
    return sorted({place for place in places if _is_half(place, record, evidence.records)})


_MENDED: dict[str, Callable[[Record, HeaderFault, _Evidence], tuple[Record | None, str]]] = {
    rules.BORN_PORT: _born_port, rules.STORE_PORT: _store_port, rules.SYS_FLAG: _sys_flag,
    rules.NUMBER: _number, rules.STORE_TIME: _store_time,
    rules.PREPARED: _prepared, rules.QUEUE_ID: _queue_id, rules.QUEUE_OFFSET: _queue_offset}
