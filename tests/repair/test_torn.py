"""Runs of a few bytes at known places are solved by the CRC; no correction is ever a wrong one."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqctl.damage.records import body_at, body_crc_at
from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local.message import CRC_MASK, MAGIC_V1, Record, build, decode
from rmqctl.repair.salvage.correct import MAX_CHANCE, Correct, Correction, corrected
from tests.support import tiny
from tests.support.cli import run
from tests.support.share import RUN

LETTERS = "The quick brown fox jumps over the lazy dog, packs my box & leaves. " * 3
WORDS = ("tea", "milk", "sugar", "Äpfel", "茶叶", "customer", "price", "4711", "shipped")


PROPERTIES = b"KEYS\x01k4711\x02TAGS\x01A\x02UNIQ_KEY\x01AC11000123\x02"


def record_of(body: bytes, *, flags: int = 0, sealed: bool = False,
              physical: int = 4096) -> bytes:
    record = Record(
        total_size=0, magic=MAGIC_V1, body_crc=zlib.crc32(body) & CRC_MASK, queue_id=0, flag=0,
        queue_offset=7, physical_offset=physical, sys_flag=flags, born_timestamp=1700000000000,
        born_host=(b"\x0a\0\0\1", 1000), store_timestamp=1700000000001,
        store_host=(b"\x0a\0\0\2", 10911), reconsume_times=0, prepared_transaction_offset=0,
        body=body, topic=b"orders",
        properties=PROPERTIES + bytes(append_crc.SIZE) * sealed)
    raw = build(record)
    raw = len(raw).to_bytes(4, "big") + raw[4:]
    return append_crc.seal(raw) if sealed else raw


def document(luck: Random, size: int) -> bytes:
    """JSON of about that many bytes."""
    lines: list[dict[str, Any]] = []
    while len(json.dumps(lines)) < size:
        lines.append({"name": luck.choice(WORDS), "count": luck.randrange(1000),
                      "price": luck.randrange(10 ** 6) / 100, "new": luck.random() < 0.5})
    return json.dumps({"order": luck.randrange(10 ** 9), "lines": lines},
                      ensure_ascii=luck.random() < 0.5).encode()


def after(raw: bytes, how: Correct, damage: dict[int, int], *, sealed: bool = False) -> (
        Correction | str | None):
    """What `corrected` says once some bytes are others."""
    turned = bytearray(raw)
    for position, value in damage.items():
        turned[position] = value
    correction = corrected(bytes(turned), decode(bytes(turned)), how, sealed)
    if isinstance(correction, Correction):
        assert build(correction.record) == raw
        assert bytes(turned[correction.position:correction.position + len(correction.before)]) == (
            correction.before)
    return correction


def cleared(start: int, size: int) -> dict[int, int]:
    return dict.fromkeys(range(start, start + size), 0)


# -- known places ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("sealed", [False, True])
def test_nuls_in_a_text(size: int, sealed: bool) -> None:
    """A longer text needs no more proof: the place is seen."""
    luck = Random(size)
    for length in (200, 2000, 40_000):
        raw = record_of(document(luck, length), sealed=sealed)
        damage = cleared(body_at(decode(raw)) + length // 2, size)
        assert after(raw, "bit", damage, sealed=sealed) is None or size == 1
        correction = after(raw, "byte", damage, sealed=sealed)
        assert isinstance(correction, Correction)
        assert correction.chance <= MAX_CHANCE


def test_four_nuls_need_more_than_a_text() -> None:
    """31 bits of a CRC are used up by 31 bits of a run: two candidates, of letters or not."""
    raw = record_of(LETTERS.encode())
    correction = after(raw, "byte", cleared(body_at(decode(raw)) + 50, 4))
    assert isinstance(correction, str)
    assert re.match("4 NULs in a text: one of [0-9,]+ candidates matches, but the chance of "
                    "a false match is 1 in [0-9,]+", correction)
    numbers = record_of(json.dumps(list(range(1000, 1060))).encode())
    correction = after(numbers, "byte", cleared(body_at(decode(numbers)) + 50, 4))
    assert isinstance(correction, Correction)
    # Letters may stand in any order in a string of JSON, so that it is JSON says nothing there.
    words = record_of(json.dumps({"text": LETTERS}).encode())
    assert isinstance(after(words, "byte", cleared(body_at(decode(words)) + 50, 4)), str)


def test_bytes_that_are_no_text() -> None:
    """The run may reach beyond the bytes that are seen."""
    raw = record_of(("tea and milk and sugar " * 9).encode())
    start = body_at(decode(raw)) + 40
    for values in ((0x9A, 0x03), (0x03, ord("q")), (ord("q"), 0xFF, ord("z"))):
        correction = after(raw, "byte", {start + index: value
                                         for index, value in enumerate(values)})
        assert isinstance(correction, Correction)
        assert "not all text" in correction.what


def test_nuls_and_borders_of_other_bodies() -> None:
    body = bytes(value | 1 for value in Random(5).randbytes(700))
    raw = record_of(body, physical=4096 - 300)
    start = body_at(decode(raw))
    correction = after(raw, "byte", cleared(start + 99, 2))
    assert isinstance(correction, Correction)
    assert correction.tried == 256 ** 2
    assert correction.chance == correction.tried / 2 ** 31
    for place in (298, 300):  # before the border of a page, and behind it
        correction = after(raw, "byte", {place: raw[place] ^ 0x55, place + 1: raw[place + 1] ^ 3})
        assert isinstance(correction, Correction)
        assert "a border of 4096" in correction.what
    assert after(raw, "byte", {200: raw[200] ^ 0x55, 201: raw[201] ^ 3}) is None
    assert not isinstance(after(raw, "byte", cleared(start + 99, 3)), Correction)


def test_a_zlib_stream_proves_four_bytes() -> None:
    packed = zlib.compress(Random(6).randbytes(3000))
    raw = record_of(packed, flags=sysflag.COMPRESSED)
    correction = after(raw, "byte", cleared(body_at(decode(raw)) + 1000, 4))
    assert isinstance(correction, Correction)
    assert correction.witnesses[-1] == "the checksum of its zlib stream"
    assert correction.chance < 1e-9


def test_properties_by_the_records_crc() -> None:
    raw = record_of(b"tea", sealed=True)
    start = raw.index(b"AC11000123")
    correction = after(raw, "byte", cleared(start + 3, 2), sealed=True)
    assert isinstance(correction, Correction)
    assert correction.witnesses == ("the record's CRC",)


def test_the_whole_field_of_the_bodys_crc() -> None:
    for how in ("bit", "byte"):
        correction = after(record_of(b"tea", sealed=True), how,  # type: ignore[arg-type]
                           cleared(body_crc_at(), 4), sealed=True)
        assert isinstance(correction, Correction)
        assert correction.tried == 1
    assert after(record_of(b"tea"), "byte", cleared(body_crc_at(), 4)) is None


def test_json_speaks_for_a_bit_of_a_large_body() -> None:
    """Of 60 KiB a flipped bit alone has more than 1 chance in 10,000 to be a wrong one."""
    body = json.dumps([[number, number % 7 == 0] for number in range(4000)]).encode()
    raw = record_of(body)
    start = body_at(decode(raw))
    comma = start + body.index(b", ", 30_000)
    correction = after(raw, "bit", {comma: ord("/")})  # a comma with two flipped bits is none
    assert correction is None
    correction = after(raw, "bit", {comma: ord("-")})
    assert isinstance(correction, Correction)
    assert correction.witnesses == ("the body's CRC", "that it is JSON")
    assert correction.chance < correction.tried / 2 ** 31 / 2
    # Text whose letters may as well be others gains nothing.
    prose = record_of(json.dumps("tea and milk and sugar " * 2600).encode())
    assert isinstance(after(prose, "bit", {start + 999: prose[start + 999] ^ 1}), str)


# -- never a wrong one ----------------------------------------------------------------------------


def bodies(luck: Random) -> tuple[bytes, int]:
    """(a body, the flags it needs)."""
    size = luck.choice((3, 40, 300, 1500, 6000))
    match luck.randrange(4):
        case 0:
            return document(luck, size), 0
        case 1:
            return " ".join(luck.choices(WORDS, k=max(1, size // 6))).encode(), 0
        case 2:
            return luck.randbytes(size), 0
        case _:
            return zlib.compress(document(luck, size)), sysflag.COMPRESSED


def damage_of(luck: Random, raw: bytes, record: Record) -> dict[int, int]:
    """Some bytes of a record and what they become: bits, bytes, cleared and foreign runs."""
    body = body_at(record)
    low, high = luck.choice((
        (body, body + len(record.body)), (body, body + len(record.body)), (0, body),
        (body_crc_at(), body_crc_at() + 4), (body + len(record.body), len(raw)), (0, len(raw))))
    kind = luck.randrange(5)
    if kind < 2:  # one to three bits, or bytes
        places = [luck.randrange(low, high) for _ in range(luck.randint(1, 3))]
        return {place: raw[place] ^ (1 << luck.randrange(8) if kind else luck.randrange(1, 256))
                for place in places}
    size = luck.randint(2, 8)
    start = luck.randrange(low, high)
    if kind == 4:  # at a border
        border = -record.physical_offset % 512
        start = max(0, min(len(raw) - 1, luck.choice((border, border - size))))
    run = range(start, min(start + size, len(raw)))
    return cleared(start, len(run)) if kind == 2 else {
        place: luck.choice((raw[place - 7], luck.randrange(256))) for place in run}


def test_every_correction_gives_the_very_bytes() -> None:
    """Bits, bytes and runs, anywhere in records of all kinds: none of them is a wrong one."""
    luck = Random(RUN.number("corrections"))
    fixed: Counter[str] = Counter()
    for _ in range(600):
        body, flags = bodies(luck)
        sealed = luck.random() < 0.5
        raw = record_of(body, flags=flags, sealed=sealed, physical=luck.randrange(1 << 20))
        record = decode(raw)
        damage = damage_of(luck, raw, record)
        turned = bytearray(raw)
        for position, value in damage.items():
            turned[position] = value
        try:
            damaged = decode(bytes(turned))
        except Exception:  # noqa: BLE001 - no record
            continue
        if bytes(turned) == raw or damaged.physical_offset != record.physical_offset:
            continue
        how: Correct = luck.choice(("bit", "byte", "byte"))
        result = corrected(bytes(turned), damaged, how, sealed)
        if isinstance(result, Correction):
            # Without the record's own CRC nothing covers what is neither body nor its CRC.
            right = record if sealed else replace(
                damaged, body=record.body, body_crc=record.body_crc)
            assert result.record == right, (how, sealed, damage)
            assert result.chance <= MAX_CHANCE
            fixed[result.what.split(" (")[0]] += 1
    assert all(fixed[what] > 2 for what in ("one changed bit", "one changed byte", "a run")), fixed


# -- recover --------------------------------------------------------------------------------------


def test_recover_brings_runs_and_names_back(tmp_path: Path) -> None:
    specs = [tiny.Spec("orders", number % 2, document(Random(number), 300),
                       {"UNIQ_KEY": f"0A{number:04X}", "KEYS": f"k{number}"})
             for number in range(6)]
    built = tiny.build(tmp_path / "store", specs, append_crc=True)
    store = built.root
    whole = {path: path.read_bytes() for path in (store / "commitlog").iterdir()}
    first, two, three, four = (built.messages[number] for number in (1, 2, 3, 4))
    for start, value in ((first.start + body_at(first.record) + 100, b"\0\0\0"),
                         (two.start + body_crc_at(), bytes(4)),
                         (three.end - append_crc.SIZE + 2, b"?!"),
                         (four.end - append_crc.SIZE - 4, b"\0\0")):
        name, position = built.place(start)
        content = bytearray((store / name).read_bytes())
        content[position:position + len(value)] = value
        (store / name).write_bytes(content)
    options = ("--index-slots", "8", "--index-max", "32", "-o", "json")
    plan = run("recover", store, *options, "--correct", "bit").expect(1)
    assert "--correct byte restores the original" in plan.err
    document_of = run("recover", store, *options, "--correct", "byte", "--apply",
                      "--yes").expect(0).json()
    actions = [action for action in document_of["actions"] if action["action"] == "correct"]
    assert [len(bytes.fromhex(action["to"][2:])) for action in actions] == [
        action["length"] for action in actions]
    assert [action["proof"]["witnesses"][0] for action in actions] == [
        "the body's CRC", "the record's CRC", "the record's CRC", "the record's CRC"]
    assert {path: path.read_bytes() for path in whole} == whole
    assert run("recover", store, *options).expect(0).json()["actions"] == []
