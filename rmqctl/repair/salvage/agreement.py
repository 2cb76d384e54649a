"""Check whether the remains of a damaged record can belong to the message of another store.

Two logs may be equal before and after a damaged record and still have different messages in its
place. So the other store's message is copied only if it agrees with the remains of our record: with
its body CRC or, if that CRC is damaged too, with every byte that is left.

One run of damaged bytes, zeroed bytes or a few flipped bits may differ. If more bytes differ, our
record was another message. In a DLedger log, complete entries are compared, including index and
term in their headers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from rmqctl.damage.ranges import Range
from rmqctl.damage.records import body_crc_at
from rmqctl.errors import FormatError
from rmqctl.formats import dledger
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.filler import is_filler
from rmqctl.formats.local.message import MIN_SIZE, decode
from rmqctl.repair.salvage.mend.moved import misplaced
from rmqctl.repair.sources.opening import LogSource
from rmqctl.scan.damage.entries import whole_entry
from rmqctl.scan.damage.references import key_hashes
from rmqctl.scan.frames import Array
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import Source as AnySource
from rmqctl.scan.walk import Walk

_ZEROS = 8
"""Minimum length in bytes of a run of zeros that counts as damage."""
_MAX_BITS = 8
_SECTOR, _PAGE = 512, 4096
_APART = 16
"""Distance in bytes above which two differing bytes belong to separate runs of damage."""


def agrees(ours: bytes, theirs: bytes, head: int = 0) -> bool | None:
    """Return whether the damaged bytes ``ours`` can be the remains of the message ``theirs``.

    None if too few bytes are left to decide. ``head``: size in bytes of the DLedger entry header
    before the message. That header is compared as well, because the same message may be in an entry
    with another index or term.
    """
    here, there = np.frombuffer(ours, np.uint8), np.frombuffer(theirs, np.uint8)
    if len(here) != len(there) or not here.any():
        return None
    at = head + body_crc_at()
    crc = slice(at, at + 4)
    differs = (here != there) & ~_zeroed(here)
    if here[crc].any() and (here[crc] == there[crc]).all() and not differs[:head].any():
        return True
    places = np.flatnonzero(differs)
    if not len(places):
        return True
    if places[0] < head and (here[head:] != there[head:]).any() and len(
            _runs(np.flatnonzero(here != there))) > 1:
        return None if _is_dense(differs) else False  # one run of damage cannot explain it
    # Only the CRC differs outside a zeroed range that is further on. So our CRC is intact, and our
    # record is another message.
    if places[0] >= crc.start and places[-1] < crc.stop and (
            (here != there)[crc.stop + _APART:] & _zeroed(here)[crc.stop + _APART:]).any() and (
            here[crc.stop:crc.stop + _APART] == there[crc.stop:crc.stop + _APART]).all():
        return False
    # A few flipped bits or one run of damage explain a different CRC; more damage does not.
    if int(np.unpackbits(here[places] ^ there[places]).sum()) <= _MAX_BITS:
        return True
    if len(_runs(places)) == 1 and places[0] < crc.stop and (
            places[-1] >= crc.start or places[0] < head):
        return None if places[-1] - places[0] > len(here) * 3 // 4 else True
    return None if _is_dense(differs) else False


def is_one_damage(ours: bytes, theirs: bytes) -> bool:
    """Return whether zeroed bytes, plus one run of damage or a few flipped bits, explain all
    differences.
    """
    here, there = np.frombuffer(ours, np.uint8), np.frombuffer(theirs, np.uint8)
    places = np.flatnonzero((here != there) & ~_zeroed(here))
    return len(_runs(places)) == 1 or int(
        np.unpackbits(here[places] ^ there[places]).sum()) <= _MAX_BITS


def _runs(places: Array) -> list[Array]:
    return np.split(places, np.flatnonzero(np.diff(places) > _APART) + 1)


def _zeroed(data: Array) -> Array:
    """Return a mask of the bytes in runs of at least `_ZEROS` zeros."""
    bounds = np.flatnonzero(np.diff(np.concatenate([[False], data == 0, [False]]).astype(np.int8)))
    is_zero_run: Array = np.zeros(len(data), bool)
    for start, end in bounds.reshape(-1, 2).tolist():
        if end - start >= _ZEROS:
            is_zero_run[start:end] = True
    return is_zero_run


def _is_dense(differs: Array) -> bool:
    """Return whether nothing of a record is left: in each quarter of the record, nearly all bytes
    differ.
    """
    quarters = np.array_split(differs, 4)
    return all(float(part.mean()) > 0.85 for part in quarters)


def records_of(source: LogSource, item: Range) -> Iterator[tuple[int, bytes]]:
    """Yield (physical offset, bytes) for each message of a source in a range. Raises: StoreIOError.

    In a DLedger log, each item is an entry.
    """
    position = item.start
    while position < item.end and (place := source.log.locate(position)) is not None:
        file, at = place
        if file.head:
            raw = _raw(source, position)
            if raw is not None:
                yield position, raw
            position = file.base + file.size if raw is None else position + len(raw)
            continue
        walk = Walk(file, at, min(file.size, item.end - file.base))
        for batch in walk:
            for row in range(len(batch)):
                yield int(batch.offset[row]), batch.bytes_at(row)
        position = file.base + max(walk.position, at + 1)


def disputed(parts: Sequence[LogPart], source: LogSource, others: Sequence[LogSource], item: Range,
             replaced: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges ``[start, end)`` of the source's messages that this store's log
    contradicts.

    The remains of this store's record decide. If nothing is left of it, the other sources decide by
    majority. ``replaced``: ascending ranges of this store's log that do not count as evidence, such
    as ranges that an earlier repair wrote. Raises: StoreIOError.
    """
    ranges = []
    ends = [end for _, end in replaced]
    for start, theirs in records_of(source, item):
        head, end = _head(parts, start), start + len(theirs)
        if len(theirs) < (head or MIN_SIZE):
            continue
        near = bisect_right(ends, start)
        is_agreed = None if near < len(replaced) and replaced[near][0] < end else agrees(
            _without_foreign(parts, start, len(theirs)), theirs, head)
        if is_agreed is None:
            copies = [_raw(other, start) for other in others]
            votes = [vote for vote in copies if vote is not None
                     and vote != theirs and _counts(parts, vote, head)]
            same = sum(vote == theirs for vote in copies)
            is_agreed = not votes or (_counts(parts, theirs, head) and 1 + same > len(votes))
        if is_agreed is False:
            ranges.append((start, end))
    return ranges


def _without_foreign(parts: Sequence[LogPart], start: int, size: int) -> bytes:
    """Return this store's bytes at a physical offset, with displaced sectors zeroed.

    The records in such a sector have the physicalOffset of another page. These records prove
    nothing about the message that was stored at this offset.
    """
    ours = bytearray(_ours(parts, start, size))
    part = _part(parts, start)
    if part is None or part.head or not any(ours):
        return bytes(ours)
    at = start - part.base
    low, high = max(0, at - at % _SECTOR - _PAGE), min(part.size, at + size + _PAGE)
    with part.open() as source:
        for first, end in _foreign(source, low, high):
            inside = slice(max(first, at) - at, max(first, at, min(end, at + size)) - at)
            ours[inside] = bytes(inside.stop - inside.start)
    return bytes(ours)


def _foreign(source: AnySource, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges ``[start, end)`` of complete sectors whose records are all displaced by the
    same distance.
    """
    start = end = distance = 0
    for position, record in misplaced(source, low, high):
        place = record if isinstance(record, int) else record.physical_offset
        away = place - source.base - position
        if away % _SECTOR:
            continue
        upto = position + (MIN_SIZE if isinstance(record, int) else record.total_size)
        if away == distance and position <= end + _PAGE:
            end = max(end, upto)
            continue
        if start < end:
            yield start, -(-end // _SECTOR) * _SECTOR
        start, end, distance = position - position % _SECTOR, upto, away
    if start < end:
        yield start, -(-end // _SECTOR) * _SECTOR


def _raw(source: LogSource, start: int) -> bytes | None:
    """Return the bytes of a source's message at a physical offset; in a DLedger log, the bytes of
    its entry.
    """
    place = source.log.locate(start)
    if place is None or not place[0].head:
        return source.log.raw_at(start)
    entry = whole_entry(*place)
    return None if entry is None else place[0].read(place[1], entry.size)


def _counts(parts: Sequence[LogPart], raw: bytes, head: int) -> bool:
    """Return whether a source's message counts as evidence.

    The message must be intact, not a filler, and have valid properties. If this store's index has
    keys for its physical offset, one of these keys must belong to the message. A DLedger control
    entry always counts.
    """
    if head and dledger.ENTRY_HEAD.decode(raw).magic in dledger.CONTROL:
        return True
    try:
        record = decode(raw[head:])
    except FormatError:
        return False
    if not record.crc_ok or not props.are_sound(record.properties) or is_filler(record):
        return False
    witness = parts[0].witness
    place = record.physical_offset
    hashes = set() if witness is None else set(witness.keys(place, place + 1)[1].tolist())
    return not hashes or bool(hashes & key_hashes(record))


def _part(parts: Sequence[LogPart], start: int) -> LogPart | None:
    return next((part for part in parts if part.base <= start < part.end), None)


def _head(parts: Sequence[LogPart], start: int) -> int:
    """Return the size in bytes of the DLedger entry header before a message; 0 in a plain log."""
    return (_part(parts, start) or parts[-1]).head


def _ours(parts: Sequence[LogPart], start: int, size: int) -> bytes:
    part = _part(parts, start)
    if part is None or (part.path is None and not part.pieces):
        return b""
    with part.open() as source:
        return source.read(start - part.base, size)
