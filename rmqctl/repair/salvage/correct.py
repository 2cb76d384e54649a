"""Records that one changed bit or byte explains, by the CRCs that they carry.

A body that does not match its CRC, and a record that does not match its appended CRC (5.2.0+,
commitlog.md §5.4), are corrected where exactly one change makes them match, and a wrong one would
hardly do so: n changes are tried, each has 1 chance in 2^31 to fit bytes that were damaged in
another way (a record stores 31 bits of a CRC). More than `MOST_CHANCE` in all is refused, unless
more speaks for it:

* the bytes are UTF-8 only with it: then just the changes around the place count where they are not;
* a zlib stream ends with a checksum of its own, which must be right then, too.

An appended CRC gives the body's no second proof: both have the same polynomial, so it fits whatever
the body's fits. It tells that nothing else is damaged, and the 32nd bit of the body's.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rmqctl.formats.bodies import CODECS
from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local.message import CRC_MASK, Record
from rmqctl.repair.salvage.records import body_at, body_crc_at, whole_record
from rmqctl.scan.crc_fix import Change, one_bit, one_byte, syndromes

Correct = Literal["bit", "byte", "off"]
MOST_CHANCE = 1e-4
_CRC_BITS = 31
_CHANGES = {"bit": (8, _CRC_BITS), "byte": (255, 3 * 255 + 127)}
"""How many changes are tried of each byte, and of the CRC, which may be what is damaged."""
_CRC_NAME = append_crc.build(0)[:append_crc.SIZE - append_crc.DIGITS - 1]
_LONG_CODE = 4
"""The most bytes of a character in UTF-8."""


@dataclass(frozen=True, slots=True)
class Correction:
    """The ``change`` that makes ``record``; ``proof`` is what speaks for it, as data."""

    change: Change
    before: int
    record: Record
    tried: int
    chance: float
    witnesses: tuple[str, ...]

    @property
    def after(self) -> int:
        return self.before ^ self.change.xor

    @property
    def proof(self) -> Mapping[str, Any]:
        return {"candidates": self.tried, "chance": self.chance,
                "witnesses": list(self.witnesses)}

    def in_words(self) -> str:
        what = "bit" if self.change.xor.bit_count() == 1 else "byte"
        return (f"one changed {what} explains {' and '.join(self.witnesses)}: {self.tried:,} "
                f"candidates tried, {_chance_text(self.chance)} that it is a wrong one")


def corrected(raw: bytes, record: Record, how: Correct, sealed: bool) -> Correction | str | None:
    """The correction of a record which stands where it says; why there is none; None if nothing
    explains it.

    ``raw``: its bytes, of which ``record`` was read. ``sealed``: its store's messages carry
    appended CRCs.
    """
    if how == "off":
        return None
    # By its name: a digit that is none is damage, and no record without an appended CRC.
    sealed = sealed and raw[-append_crc.SIZE:].startswith(_CRC_NAME)
    tried_bytes, found = len(record.body), []
    if record.crc_ok:
        if not sealed or append_crc.verify(raw):
            return None
        tried_bytes = len(raw) - append_crc.SIZE - len(record.body)
    for change in {*_candidates(raw, record, how)}:
        changed = bytearray(raw)
        changed[change.position] ^= change.xor
        result = whole_record(bytes(changed), record.physical_offset, sealed)
        if result is not None and (not sealed or append_crc.verify(bytes(changed))):
            found.append((change, result))
    # A compressed body must be one, too: of several that decides.
    unpacked = [(change, result) for change, result in found if unpacks(result) is not False]
    if found and not unpacked:
        return "the body cannot be unpacked then"
    if len(unpacked) != 1:
        return f"{len(unpacked)} changes explain it" if unpacked else None
    change, result = unpacked[0]
    return _judged(raw, record, change, result, tried_bytes, sealed)


def explained_by_body(record: Record) -> bool:
    """Whether a flipped bit of the body explains that it does not match its CRC."""
    return any(one_bit(len(record.body), syndrome) for syndrome in syndromes(
        zlib.crc32(record.body), record.body_crc & 0xFFFFFFFF))


def _judged(raw: bytes, record: Record, change: Change, result: Record, size: int,
            sealed: bool) -> Correction | str:
    """Whether that is proof enough. ``size``: the bytes whose changes were tried."""
    per_byte, of_crc = _CHANGES["bit" if change.xor.bit_count() == 1 else "byte"]
    tried = per_byte * size + of_crc
    bits = _CRC_BITS + (sealed and not record.crc_ok)
    chance, witnesses = tried / 2 ** bits, ["the body's CRC"]
    if sealed:
        witnesses = ["the record's CRC"] if record.crc_ok else [*witnesses, "the record's"]
    if unpacks(result) and _compression(result) == "zlib" and result.body != record.body:
        chance /= 2 ** 32
        witnesses.append("the checksum of its zlib stream")
    elif (near := _not_text(record.body)) is not None and _not_text(result.body) is None:
        chance = per_byte * near / 2 ** bits
        witnesses.append("that it was no UTF-8")
    if chance > MOST_CHANCE:
        return (f"one does it, but there is {_chance_text(chance)} that it is a wrong one: "
                f"{tried:,} were tried")
    return Correction(change, raw[change.position], result, tried, chance, tuple(witnesses))


def _candidates(raw: bytes, record: Record, how: Correct) -> Iterator[Change]:
    """Changes that may explain a record: of what a CRC covers, or of the CRC itself."""
    by = one_bit if how == "bit" else one_byte
    if not record.crc_ok:
        start = body_at(record)
        computed = zlib.crc32(record.body)
        for syndrome in syndromes(computed, record.body_crc & 0xFFFFFFFF):
            for position, xor in by(len(record.body), syndrome):
                yield Change(start + position, xor)
        right, stored_at = (computed & CRC_MASK).to_bytes(4, "big"), body_crc_at()
    else:
        covered = len(raw) - append_crc.SIZE
        computed, stored = append_crc.compute(raw), append_crc.stored(raw)
        for syndrome in () if stored is None else syndromes(computed, stored):
            yield from by(covered, syndrome)
        right, stored_at = append_crc.build(computed), covered
    differ = [Change(stored_at + index, wanted ^ raw[stored_at + index])
              for index, wanted in enumerate(right) if wanted != raw[stored_at + index]]
    if len(differ) == 1 and (how == "byte" or differ[0].xor.bit_count() == 1):
        yield differ[0]


# -- what else speaks for it ----------------------------------------------------------------------


def _compression(record: Record) -> str | None:
    return sysflag.compression(record.sys_flag)


def unpacks(record: Record) -> bool | None:
    """Whether a compressed body is one; None where it is none, or nothing here can tell."""
    if _compression(record) is None:
        return None
    number = (record.sys_flag & sysflag.COMPRESSION_MASK) >> sysflag.COMPRESSION_SHIFT
    if number not in CODECS:
        return None
    try:
        CODECS[number].decompress(record.body)
    except ImportError:
        return None
    except Exception:  # noqa: BLE001 - a decoder may raise anything on foreign bytes
        return False
    return True


def _not_text(body: bytes) -> int | None:
    """How many bytes there are of which one must change to make this UTF-8; None if it is.

    The decoder stops at the first that does not fit; what is wrong is that, or the character
    before it.
    """
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        return _LONG_CODE + error.end - error.start + 1
    return None


def _chance_text(chance: float) -> str:
    return f"a chance of 1 in {round(1 / chance):,}"
