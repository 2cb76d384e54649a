"""Correct records whose CRC mismatch is explained by one changed bit or byte, or by a torn write.

A body that does not match its CRC is corrected if exactly one change makes it match. The same
applies to a record that does not match its appended CRC (5.2.0+, commitlog.md §5.4). A record
stores 31 bits of a CRC, so each change has a chance of 1 in 2^31 of a false match. If these chances
add up to more than `MAX_CHANCE`, the content must give more evidence
(`rmqctl.repair.salvage.contents`):

* If the change makes the content text, only changes near the bytes that are not text count.
* If the change makes the content JSON, only changes that make it JSON count.
* If the body is a zlib stream, the checksum at its end must be right as well.

If complete sectors of a text body are not text, these sectors are the damage, and no change is
tried. The chances of all records in one repair add up to at most `MAX_WRONG` (`Chances`).

In benchmarks/stage_yields.py, 60 of 60 messages are restored after one changed bit in the body, 51
of 60 after one changed byte, and 43 of 60 after a random body CRC (`damaged_crc`).

Up to four adjacent damaged bytes are restored only at known positions
(`rmqctl.repair.salvage.torn`). An appended CRC does not prove the body again, because the two CRCs
have the same polynomial. It only adds the 32nd bit of the body CRC, and shows that nothing else is
damaged.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Literal

from rmqctl.damage.records import body_at, body_crc_at, whole_record
from rmqctl.formats.local import append_crc
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import CRC_MASK, Record
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.salvage import torn
from rmqctl.repair.salvage.contents import (
    ZLIB_CHANCE,
    compression,
    has_bad_sectors,
    is_json,
    is_zlib,
    most_json,
    not_text,
    unpacks,
)
from rmqctl.scan.crc_fix import ByteChange, one_bit, one_byte, syndromes

Correct = Literal["bit", "byte", "off"]
MAX_CHANCE = 1e-4
MAX_WRONG = 0.01
"""Limit on the expected number of wrong corrections in one repair."""
_CRC_BITS = 31
_CHANGES = {"bit": (8, _CRC_BITS), "byte": (255, 3 * 255 + 127)}
"""Number of changes tried for each byte, and for the CRC, which may be damaged itself."""
_CRC_NAME = append_crc.build(0)[:append_crc.SIZE - append_crc.DIGITS - 1]
_MIN_OF_NAME = len(_CRC_NAME) - 3
_BODY, _RECORD, _WITH_RECORD = "the body's CRC", "the record's CRC", "the record's"
_UNPACKED = "the corrected body cannot be decompressed"


@dataclass(frozen=True, slots=True)
class Correction:
    """A change of a record's bytes at ``position`` from ``before`` to ``after``.

    * ``record``: the changed record.
    * ``what``: the change, in words.
    * ``tried``: number of candidates.
    * ``chance``: chance of a false match among the candidates.
    * ``witnesses``: structures that confirm the change.
    """

    position: int
    before: bytes
    after: bytes
    record: Record
    what: str
    tried: int
    chance: float
    witnesses: tuple[str, ...]

    @property
    def proof(self) -> Mapping[str, Any]:
        return {"candidates": self.tried, "chance": self.chance,
                "witnesses": list(self.witnesses)}

    def in_words(self) -> str:
        return (f"{self.what} explains {' and '.join(self.witnesses)} (1 of {self.tried:,} "
                f"candidates; chance of a false match {_odds(self.chance)})")


class Chances:
    """Expected number of wrong corrections of one repair.

    Each damaged record counts once, with its chance of a false match, even without a correction.
    Records without a correction use at most half of the limit, so they cannot block all others.
    """

    def __init__(self) -> None:
        self._by_place: dict[int, float] = {}
        self.expected = 0.0

    def allow(self, place: int, chance: float, most: float = MAX_WRONG) -> bool:
        """Add the chance that the record at a physical offset is corrected wrongly. Return False,
        and add nothing, if the sum would exceed ``most``.
        """
        more = chance - self._by_place.get(place, 0.0)
        if more > 0 and self.expected + more > most:
            return False
        self._by_place[place] = chance
        self.expected += more
        return True


def corrected(raw: bytes, record: Record, how: Correct, sealed: bool,
              chances: Chances | None = None) -> Correction | str | None:
    """Return the correction of a record that is at its own physical offset.

    If a correction exists but is not certain, return the reason. None if no change explains the
    damage.

    * ``raw``: the bytes from which ``record`` was decoded.
    * ``how``: the kind of changes to try.
    * ``sealed``: whether the store's messages have appended CRCs.
    * ``chances``: shared by all records of this repair.
    """
    if how == "off":
        return None
    sealed = sealed and _is_sealed(raw)
    if record.crc_ok and (not sealed or append_crc.verify(raw)):
        return None
    if compression(record) is None and has_bad_sectors(
            record.body, record.physical_offset + body_at(record)):
        return None
    correction = _correction(raw, record, how, sealed)
    if chances is None:
        return correction
    place = record.physical_offset
    if not isinstance(correction, Correction):
        chances.allow(place, min(MAX_CHANCE, _CHANGES[how][0] * len(raw) / 2 ** _CRC_BITS),
                      MAX_WRONG / 2)
        return correction
    if not chances.allow(place, correction.chance):
        return (f"{correction.what} explains it, but with that many corrections in this repair, "
                f"more than {MAX_WRONG:g} false matches would be expected")
    return correction


def _correction(raw: bytes, record: Record, how: Correct, sealed: bool) -> Correction | str | None:
    correction = _single_change(raw, record, how, sealed)
    if sealed and not isinstance(correction, Correction):
        correction = _name(raw, record) or _field(raw, record) or correction
    if how == "byte" and not isinstance(correction, Correction):
        run = _run(raw, record, sealed)
        if correction is None or isinstance(run, Correction):
            return run
    return correction


def explained_by_body(record: Record) -> bool:
    """Return whether a flipped bit of the body explains the body CRC mismatch."""
    return any(one_bit(len(record.body), syndrome) for syndrome in syndromes(
        zlib.crc32(record.body), record.body_crc & 0xFFFFFFFF))


def damaged_crc(record: Record) -> str | None:
    """Return the proof, in words, that the body CRC is damaged and the body is intact, or None.

    No broker sets the highest bit of the CRC, so a CRC with this bit is damaged. Physical offset
    and lengths are stored between CRC and body. If they are intact, the same run of damage cannot
    have reached the body.
    """
    if record.crc_ok or not record.body or not props.are_sound(record.properties) or (
            unpacks(record) is False) or has_bad_sectors(
            record.body, record.physical_offset + body_at(record)):
        return None
    damage = f"body CRC {record.body_crc & 0xFFFFFFFF:#010x} is damaged"
    if compression(record) == "zlib" and is_zlib(record.body):
        return f"{damage}: the checksum of the zlib stream proves the body"
    if record.body_crc < 0:
        return (f"{damage}: no broker sets its highest bit; the fields between it and the body "
                "are intact")
    return None


def _whole(raw: bytes, position: int, after: bytes, record: Record,
           sealed: bool) -> Record | None:
    """Return the record with the bytes ``after`` at a position if it then matches its CRCs; else
    None.
    """
    changed = raw[:position] + after + raw[position + len(after):]
    result = whole_record(changed, record.physical_offset, sealed)
    return None if result is None or (sealed and not append_crc.verify(changed)) else result


# -- fields with only one possible value -----------------------------------------------------------


def _is_sealed(raw: bytes) -> bool:
    """Return whether a record ends with an appended CRC.

    Up to three bytes of that property's name may be damaged: a message that was stored without the
    feature does not end with anything similar.
    """
    alike = sum(a == b for a, b in zip(raw[-append_crc.SIZE:], _CRC_NAME, strict=False))
    return alike >= _MIN_OF_NAME


def _name(raw: bytes, record: Record) -> Correction | None:
    """Return the correction of the appended CRC's property name if the record then matches that
    CRC; else None.
    """
    at = len(raw) - append_crc.SIZE
    if raw[at:].startswith(_CRC_NAME):
        return None
    return _only_candidate(raw, record, at, _CRC_NAME, "the name of an appended CRC")


def _field(raw: bytes, record: Record) -> Correction | None:
    """Return the correction of the body CRC field, or None.

    The field gets the CRC of the body. The record must then match its appended CRC.
    """
    if record.crc_ok:
        return None
    return _only_candidate(raw, record, body_crc_at(),
                           (zlib.crc32(record.body) & CRC_MASK).to_bytes(4, "big"),
                           "the right field of the body's CRC")


def _only_candidate(raw: bytes, record: Record, at: int, after: bytes,
                    what: str) -> Correction | None:
    """Return a correction that sets the bytes at ``at`` to ``after``, their only possible value.

    None if the record would still not match its appended CRC.
    """
    result = _whole(raw, at, after, record, sealed=True)
    if result is None or unpacks(result) is False:
        return None
    return Correction(at, raw[at:at + len(after)], after, result, what, 1, 2.0 ** -_CRC_BITS,
                      (_RECORD,))


# -- one bit, one byte ----------------------------------------------------------------------------


def _single_change(raw: bytes, record: Record, how: Correct,
                   sealed: bool) -> Correction | str | None:
    size = len(record.body) if not record.crc_ok else (
        len(raw) - append_crc.SIZE - len(record.body))
    matches = []
    for change in {*_candidates(raw, record, how)}:
        after = bytes([raw[change.position] ^ change.xor])
        result = _whole(raw, change.position, after, record, sealed)
        if result is not None:
            matches.append((change, result))
    # A compressed body must also decompress; this may leave only one of several matches.
    unpacked = [(change, result) for change, result in matches if unpacks(result) is not False]
    if matches and not unpacked:
        return _UNPACKED
    if len(unpacked) != 1:
        return f"{len(unpacked)} changes explain it" if unpacked else None
    change, result = unpacked[0]
    return _judged(raw, record, change, result, size, sealed)


def _judged(raw: bytes, record: Record, change: ByteChange, result: Record, size: int,
            sealed: bool) -> Correction | str:
    """Return the correction, or the reason why the evidence is too weak. ``size``: number of bytes
    in which changes were tried.
    """
    what = "bit" if change.xor.bit_count() == 1 else "byte"
    per_byte, of_crc = _CHANGES[what]
    tried = per_byte * size + of_crc
    bits = _CRC_BITS + (sealed and not record.crc_ok)
    chance, witnesses = tried / 2 ** bits, _by_crcs(record, sealed)
    if unpacks(result) and compression(result) == "zlib" and result.body != record.body:
        chance *= ZLIB_CHANCE
        witnesses.append("the checksum of its zlib stream")
    elif (near := not_text(record.body)) is not None and not_text(result.body) is None:
        chance = per_byte * near / 2 ** bits
        witnesses.append("that it was not text")
    elif chance > MAX_CHANCE and result.body != record.body and is_json(result.body):
        chance *= most_json(len(record.body), record.body_crc, _Changed(record.body, what))
        witnesses.append(torn.AS_JSON)
    if chance > MAX_CHANCE:
        return (f"one of {tried:,} candidates matches, but the chance of a false match is "
                f"{_odds(chance)}")
    return Correction(change.position, raw[change.position:change.position + 1],
                      bytes([raw[change.position] ^ change.xor]), result, f"one changed {what}",
                      tried, chance, tuple(witnesses))


class _Changed:
    """Generator of copies of a body with one random bit or byte changed."""

    def __init__(self, body: bytes, what: str) -> None:
        self._body, self._bit = bytearray(body), what == "bit"

    def __call__(self, luck: Random) -> bytes:
        position = luck.randrange(len(self._body))
        xor = 1 << luck.randrange(8) if self._bit else luck.randrange(1, 256)
        self._body[position] ^= xor
        changed = bytes(self._body)
        self._body[position] ^= xor
        return changed


def _candidates(raw: bytes, record: Record, how: Correct) -> Iterator[ByteChange]:
    """Yield the changes of covered bytes, or of the CRC itself, that can explain a record's CRC
    mismatch.
    """
    by = one_bit if how == "bit" else one_byte
    if not record.crc_ok:
        start = body_at(record)
        computed = zlib.crc32(record.body)
        for syndrome in syndromes(computed, record.body_crc & 0xFFFFFFFF):
            for position, xor in by(len(record.body), syndrome):
                yield ByteChange(start + position, xor)
        right, stored_at = (computed & CRC_MASK).to_bytes(4, "big"), body_crc_at()
    else:
        covered = len(raw) - append_crc.SIZE
        computed, stored = append_crc.compute(raw), append_crc.stored(raw)
        for syndrome in () if stored is None else syndromes(computed, stored):
            yield from by(covered, syndrome)
        right, stored_at = append_crc.build(computed), covered
    differ = [ByteChange(stored_at + index, wanted ^ raw[stored_at + index])
              for index, wanted in enumerate(right) if wanted != raw[stored_at + index]]
    if len(differ) == 1 and (how == "byte" or differ[0].xor.bit_count() == 1):
        yield differ[0]


# -- a run of bytes -------------------------------------------------------------------------------


def _run(raw: bytes, record: Record, sealed: bool) -> Correction | str | None:
    """Return the correction of a damaged run at a known position.

    If a correction exists but is not certain, return the reason. None if no run explains the
    damage.
    """
    bits = _CRC_BITS + (sealed and not record.crc_ok)
    refused = None
    for start, content, differences in _contents(raw, record):
        for step in torn.runs(content, differences, MAX_CHANCE * 2 ** bits):
            matches = []
            for run in step:
                result = _whole(raw, start + run.position, run.after, record, sealed)
                if result is not None and unpacks(result) is not False:
                    matches.append((run, result))
            if len(matches) > 1:
                return f"{len(matches)} changes explain it"
            for run, result in matches:
                chance = run.weight / 2 ** bits
                if chance > MAX_CHANCE:
                    refused = (f"{run.place.why}: one of {run.tried:,} candidates matches, but "
                               f"the chance of a false match is {_odds(chance)}")
                    break
                at = start + run.position
                extra = ("the checksum of its zlib stream",) if content.share < 1 else ()
                return Correction(
                    at, raw[at:at + len(run.after)], run.after, result, f"a run ({run.place.why})",
                    run.tried, chance, (*_by_crcs(record, sealed), *run.witnesses, *extra))
    return refused


def _contents(raw: bytes, record: Record) -> Iterator[tuple[int, torn.Content, tuple[int, ...]]]:
    """Yield (position in the record, content that may have a damaged run, possible differences
    between the computed and the stored CRC).
    """
    place, body = record.physical_offset, body_at(record)
    if not record.crc_ok:
        share = ZLIB_CHANCE if compression(record) == "zlib" else 1.0
        yield body, torn.Content(record.body, place + body, share=share, seed=record.body_crc), (
            syndromes(zlib.crc32(record.body), record.body_crc & 0xFFFFFFFF))
        return
    covered, stored = len(raw) - append_crc.SIZE, append_crc.stored(raw)
    start = len(raw) - len(record.properties)
    if stored is not None:
        yield start, torn.Content(raw[start:covered], place + start, properties=True), syndromes(
            append_crc.compute(raw), stored)


def _by_crcs(record: Record, sealed: bool) -> list[str]:
    if not sealed:
        return [_BODY]
    return [_RECORD] if record.crc_ok else [_BODY, _WITH_RECORD]


def _odds(chance: float) -> str:
    return f"1 in {round(1 / chance):,}"
