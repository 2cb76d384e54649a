"""Restore a header field of a record with an appended CRC to the only plausible value that matches.

The appended CRC covers the whole record, so it decides between plausible values. These are the
values in consume queue entries and in the neighbouring messages, and the few values that a field
usually has. Each value has 1 chance in 2^31 of matching by accident, so at most 214,748 values
(`MAX_CHANCE` times 2^31) may be tried for all fields together.

A CRC is linear: it is computed once for the record and once for each bit of a field. The CRC for
each value is the XOR of some of these.

In benchmarks/stage_yields.py, one field of each of 60 messages gets a random value. Flag, queue id,
queue offset, born time and reconsume count are restored in all messages. Store time and store host
are restored in 59, born host and the offset of the half message in 56.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from rmqctl.damage.evidence import FoundRow, Gatherer
from rmqctl.damage.records import whole_record
from rmqctl.damage.survey.survey import Survey
from rmqctl.formats.local import append_crc
from rmqctl.formats.local import header_rules as rules
from rmqctl.formats.local.message import CRC_MASK, HOST_BITS, Record, fixed_field
from rmqctl.repair.salvage.correct import MAX_CHANCE, Chances, Correction
from rmqctl.scan.frames import Array

_CRC_BITS = 31
_MAX_COVERED = 1 << 20
"""Maximum number of covered bytes for which values are tried."""
_FLAGS, _QUEUES, _DELIVERIES, _OFFSETS = 1 << 15, 1 << 10, 1 << 6, 1 << 10
"""Maximum number of values to try for flags, queue id, reconsume count and a missing queue offset.
"""
_ON_THE_WAY, _AHEAD, _BETWEEN = 60_000, 1_000, 20_000
"""Limits in milliseconds.

* ``_ON_THE_WAY``: time from born to store time.
* ``_AHEAD``: lead of a producer's clock.
* ``_BETWEEN``: time between the messages before and after.
"""
Times = tuple[int | None, int | None]
Candidates = tuple[str, int, int, Array]
"""Name, position and width of a field, and the values to try (uint64)."""


def matching(raw: bytes, at: int, width: int, values: Array) -> Array:
    """Return the ``values`` (uint64) of a field with which a record matches its appended CRC."""
    covered, stored = bytearray(raw[:len(raw) - append_crc.SIZE]), append_crc.stored(raw)
    if stored is None or len(covered) > _MAX_COVERED or at + width > len(covered):
        return values[:0]
    covered[at:at + width] = bytes(width)
    crc = zlib.crc32(covered)
    sums: Array = np.full(len(values), crc & CRC_MASK, np.uint64)
    for bit in range(8 * width):
        where = at + width - 1 - bit // 8
        covered[where] = 1 << bit % 8
        delta = (zlib.crc32(covered) ^ crc) & CRC_MASK
        covered[where] = 0
        sums ^= (values >> np.uint64(bit) & np.uint64(1)) * np.uint64(delta)
    matches: Array = values[sums == stored]
    return matches


def field_of_seal(raw: bytes, record: Record, rows: Sequence[FoundRow], times: Times,
                  survey: Survey, gatherer: Gatherer, chances: Chances,
                  before: Record | None) -> Correction | None:
    """Return the correction of one header field with which the record matches its appended CRC.

    None if several plausible values match, or none.

    * ``rows``: entries that point to the record.
    * ``times``: store times of the messages before and after the record.
    * ``before``: the message before the record.
    """
    if not record.crc_ok or append_crc.verify(raw) is not False:
        return None
    matches, tried = [], 0
    for name, at, width, values in _candidates(record, rows, times, gatherer):
        tried += len(values)
        for value in matching(raw, at, width, values).tolist():
            after = int(value).to_bytes(width, "big")
            if after != raw[at:at + width]:
                matches.append((name, at, after))
    for name, at, after in _hosts(record, survey, before):
        tried += 1
        if append_crc.verify(raw[:at] + after + raw[at + len(after):]):
            matches.append((name, at, after))
    chance = tried / 2 ** _CRC_BITS
    allowed = chance <= MAX_CHANCE and chances.allow(record.physical_offset, chance)
    if len(matches) != 1 or not allowed:
        return None
    name, at, after = matches[0]
    changed = raw[:at] + after + raw[at + len(after):]
    result = whole_record(changed, record.physical_offset, sealed=True)
    if result is None:
        return None
    return Correction(at, raw[at:at + len(after)], after, result, f"another {name}", tried, chance,
                      ("the record's CRC",))


def _candidates(record: Record, rows: Sequence[FoundRow], times: Times,
                gatherer: Gatherer) -> Iterator[Candidates]:
    """Yield the plausible values of each field that no other check covers."""
    bits = record.sys_flag & HOST_BITS

    def of(field: str, values: Array | range) -> Candidates:
        where = fixed_field(field, bits)
        return (field.replace("_", " ").replace(".", " "), where.offset, where.size,
                np.array(values, np.int64).astype(np.uint64))

    yield of("flag", range(_FLAGS))
    yield of("queue_id", np.unique([*range(_QUEUES), *(row.key[1] for row in rows)]))
    yield of("queue_offset", np.unique([0, *(row.queue_offset for row in rows),
                                        *_lacking(record, gatherer)]))
    yield of("reconsume_times", range(_DELIVERIES))
    yield of("prepared_transaction_offset", range(1))
    stored = record.store_timestamp
    if rules.EARLIEST <= stored < 1 << 62:
        yield of("born_timestamp", range(stored - _ON_THE_WAY, stored + _AHEAD))
    before, after = times
    if before is not None and after is not None and 0 <= before <= after <= before + _BETWEEN:
        yield of("store_timestamp", range(before, after + 1))
    yield of("born_host.port", range(rules.MAX_PORT + 1))


def _hosts(record: Record, survey: Survey, before: Record | None) -> Iterator[
        tuple[str, int, bytes]]:
    """Yield (field name, position, bytes) of hosts that the record may have had.

    These are the hosts of the message before the record, and the store's own host.
    """
    hosts = set() if before is None else {
        ("store_host", before.store_host), ("born_host", before.born_host)}
    if survey.host is not None:
        hosts.add(("store_host", survey.host))
    for name, host in sorted(hosts):
        address, port = host
        if len(address) == len(getattr(record, name)[0]) and 0 <= port <= rules.MAX_PORT and (
                host != getattr(record, name)):
            at = fixed_field(f"{name}.address", record.sys_flag & HOST_BITS).offset
            yield name.replace("_", " "), at, address + port.to_bytes(4, "big")


def _lacking(record: Record, gatherer: Gatherer) -> range:
    """Return the queue offsets that are missing from the message's queue at the message's position
    in the log.
    """
    key = record.topic.decode("utf-8", "surrogateescape"), record.queue_id
    for hole in gatherer.holes.get(key, ()):
        if hole.low < record.physical_offset < hole.high:
            return range(hole.first, min(hole.end, hole.first + _OFFSETS))
    return range(0)
