"""Bodies and records that one changed bit or byte explains come back to the engine's very bytes."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqctl.damage.records import body_at, body_crc_at
from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local.message import CRC_MASK, MAGIC_V1, Record, build, decode
from rmqctl.repair.salvage.correct import (
    MAX_CHANCE,
    MAX_WRONG,
    Chances,
    Correct,
    Correction,
    corrected,
)
from tests.conftest import GoldenFolder
from tests.support import tiny
from tests.support.cli import run
from tests.support.share import every

CRC_SETS = [f"{version}/{name}" for version in ("4.9.3", "5.3.3")
            for name in ("crash-crc", "crash-crc-prev", "clean-crc")]
JSON = ("-o", "json")
TEXT = json.dumps({"order": 4711, "lines": ["tea", "milk", "sugar"] * 4}).encode()
SPECS = [tiny.Spec("orders", number % 2, TEXT + b"%d" % number,
                   {"UNIQ_KEY": f"0A{number:04X}", "KEYS": f"k{number}"}) for number in range(6)]


def record_of(body: bytes, **changes: Any) -> tuple[bytes, Record]:
    record = Record(
        total_size=0, magic=MAGIC_V1, body_crc=zlib.crc32(body) & CRC_MASK, queue_id=0, flag=0,
        queue_offset=7, physical_offset=4096, sys_flag=0, born_timestamp=1700000000000,
        born_host=(b"\x0a\0\0\1", 1000), store_timestamp=1700000000001,
        store_host=(b"\x0a\0\0\2", 10911), reconsume_times=0, prepared_transaction_offset=0,
        body=body, topic=b"orders", properties=b"KEYS\x01k\x02")
    record = replace(record, total_size=len(build(record)), **changes)
    raw = build(record)
    return raw, decode(raw)


def after(raw: bytes, how: Correct, *places: tuple[int, int],
          sealed: bool = False) -> Correction | str | None:
    """What `corrected` says once the bits of (position, xor) are changed."""
    turned = bytearray(raw)
    for position, xor in places:
        turned[position] ^= xor
    return corrected(bytes(turned), decode(bytes(turned)), how, sealed)


def is_back(raw: bytes, correction: Correction | str | None) -> bool:
    return isinstance(correction, Correction) and build(correction.record) == raw


# -- one record -----------------------------------------------------------------------------------


def test_every_bit_of_a_body() -> None:
    raw, record = record_of(TEXT)
    start = body_at(record)
    for bit in every(7, range(8 * len(TEXT)), "bits of a body to correct"):
        correction = after(raw, "bit", (start + bit // 8, 1 << bit % 8))
        assert is_back(raw, correction)
        assert isinstance(correction, Correction)
        assert correction.tried == 8 * len(TEXT) + 31
        assert correction.chance <= correction.tried / 2 ** 31 < MAX_CHANCE
        assert correction.before[0] ^ correction.after[0] == 1 << bit % 8


@pytest.mark.parametrize("how", ["bit", "byte"])
@pytest.mark.parametrize("content", ["noise", "zeros"])
@pytest.mark.parametrize("sectors", [1, 3])
def test_a_text_with_a_damaged_sector_is_not_explained_elsewhere(
        how: Correct, content: str, sectors: int) -> None:
    """The CRC is that of the damaged bytes with one bit changed: chance makes such ones, too."""
    text, size = TEXT * 40, 512 * sectors
    _, record = record_of(text)
    start = -(record.physical_offset + body_at(record)) % 512
    for shift, is_corrected in ((0, False), (200, True)):  # a binary part begins anywhere
        for number in range(20):
            filled = random.Random(number).randbytes(size) if content == "noise" else bytes(size)
            at = start + shift
            body = text[:at] + filled + text[at + size:]
            place = at + size + 340 if number % 2 else at - 40 if at > 40 else at + size + 40
            raw, line = record_of(body)
            correction = after(raw, how, (body_at(line) + place, 4))
            assert (is_back(raw, correction) if is_corrected
                    else correction is None), (shift, number)


def test_all_chances_of_a_repair_are_bounded() -> None:
    """Whatever is tried in one repair: few wrong corrections are expected, and said to be."""
    luck, chances, count = random.Random(1), Chances(), 0
    for number in range(400):
        raw, record = record_of(luck.randbytes(800), physical_offset=4096 * number)
        turned = bytearray(raw)
        turned[body_at(record) + 5] ^= 0xFF
        turned[body_at(record) + 300] ^= 0xFF * (number % 2)
        result = corrected(bytes(turned), decode(bytes(turned)), "byte", False, chances)
        assert chances.expected <= MAX_WRONG
        count += isinstance(result, Correction)
    assert 40 < count < 200
    # What nothing explains leaves room for what a bit does.
    chances = Chances()
    for place in range(1000):
        chances.allow(place, MAX_CHANCE, MAX_WRONG / 2)
    assert all(chances.allow(place, 8e-7) for place in range(1000, 5000))


def test_a_byte_only_where_asked() -> None:
    raw, record = record_of(TEXT)
    place = body_at(record) + 11, 0x41
    assert after(raw, "bit", place) is None
    assert after(raw, "off", place) is None
    assert is_back(raw, after(raw, "byte", place))
    assert after(raw, "byte", place, (place[0] + 5, 3)) is None


def test_the_crc_field_itself() -> None:
    raw, _ = record_of(TEXT)
    assert is_back(raw, after(raw, "bit", (body_crc_at() + 2, 0x10)))
    assert is_back(raw, after(raw, "byte", (body_crc_at(), 0xC1)))
    assert after(raw, "bit", (body_crc_at(), 0xC1)) is None


def test_the_larger_the_body_the_more_must_speak_for_it() -> None:
    """32 KiB are 262,144 bits: the chance of a wrong one is above 1 in 10,000."""
    body = bytes(32 + value % 64 for value in random.Random(1).randbytes(32 << 10))
    raw, record = record_of(body)
    start = body_at(record)
    refused = after(raw, "bit", (start + 9, 4))
    assert isinstance(refused, str)
    assert "chance of a false match is 1 in 8,191" in refused
    # Bit 7 makes it no UTF-8: only what stands there can have been changed.
    correction = after(raw, "bit", (start + 9, 0x80))
    assert is_back(raw, correction)
    assert isinstance(correction, Correction)
    assert correction.witnesses[-1] == "that it was not text"
    assert correction.chance < 1e-7
    # A zlib stream has a checksum of its own.
    packed, record = record_of(zlib.compress(random.Random(2).randbytes(40 << 10)),
                               sys_flag=sysflag.COMPRESSED)
    for how, xor in (("bit", 4), ("byte", 0x24)):
        correction = after(packed, how, (body_at(record) + 999, xor))  # type: ignore[arg-type]
        assert is_back(packed, correction)
        assert isinstance(correction, Correction)
        assert correction.chance < 1e-9


def test_what_cannot_be_unpacked_is_not_believed() -> None:
    raw, record = record_of(b"marked, but not compressed", sys_flag=sysflag.COMPRESSED)
    assert after(raw, "bit", (body_at(record) + 3, 4)) == (
        "the corrected body cannot be decompressed")


def test_random_damage_is_explained_as_rarely_as_said() -> None:
    """Of 20,000 bodies damaged in other ways a bit would explain 0.03."""
    raw, record = record_of(TEXT)
    luck, start = random.Random(3), body_at(record)
    for _ in range(300):
        places = [(start + place, luck.randrange(1, 256))
                  for place in luck.sample(range(len(TEXT)), 5)]
        assert after(raw, "bit", *places) is None


def test_every_bit_of_a_record_with_its_own_crc(tmp_path: Path) -> None:
    """Head, topic, properties and the CRC itself; what bends lengths is no record at all."""
    placed = tiny.build(tmp_path / "store", SPECS, append_crc=True).messages[1]
    raw, body = placed.raw, range(body_at(placed.record), body_at(placed.record) + len(TEXT) + 1)
    count = 0
    for bit in every(5, range(8 * len(raw)), "bits of a sealed record"):
        turned = bytearray(raw)
        turned[bit // 8] ^= 1 << bit % 8
        try:
            record = decode(bytes(turned))
        except Exception:  # noqa: BLE001 - no record
            continue
        if record.physical_offset != placed.start or b"__CRC32#\x01" not in turned:
            continue
        correction = corrected(bytes(turned), record, "bit", True)
        assert is_back(raw, correction), bit
        assert isinstance(correction, Correction)
        assert ("the body's CRC" in correction.witnesses) == (
            bit // 8 in body or 0 <= bit // 8 - body_crc_at() < 4)
        count += 1
    assert count > 100


def test_damage_in_two_places_of_a_record_with_its_own_crc(tmp_path: Path) -> None:
    """The body alone would be right then, but its record would not."""
    placed = tiny.build(tmp_path / "store", SPECS, append_crc=True).messages[1]
    for place in ((45, 1), (len(placed.raw) - 5, 0x40), (len(placed.raw) - 5, 1)):
        assert after(placed.raw, "bit", (body_at(placed.record) + 4, 1), place, sealed=True) is None


# -- recover --------------------------------------------------------------------------------------


def corrections(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [action for action in document["actions"] if action["action"] == "correct"]


@pytest.mark.parametrize("name", CRC_SETS)
def test_the_engines_own_byte_comes_back(name: str, golden: GoldenFolder,
                                         golden_copy: GoldenFolder) -> None:
    store = golden_copy(f"{name}/before")
    version = name.partition("/")[0]
    original = golden(f"{version}/crash-base/store")
    # Two bits were changed.
    assert corrections(run("recover", store, "--correct", "bit", *JSON).expect(1).json()) == []
    assert corrections(run("recover", store, "--correct", "off", *JSON).expect(1).json()) == []
    plan = run("recover", store, *JSON).expect(0).json()
    (action,) = corrections(plan)
    proof = action["proof"]
    assert proof["candidates"] / 2 ** 31 == proof["chance"] < MAX_CHANCE
    log = store / action["target"]
    damaged, position = log.read_bytes(), action["offset"] - int(log.name)
    assert damaged[position] == int(action["from"], 16)
    # Carried out: nothing is lost, and every byte of the log is the engine's.
    run("recover", store, "--correct", "byte", "--apply", "--yes", *JSON).expect(0)
    right = (original / action["target"]).read_bytes()
    assert log.read_bytes() == right
    assert right[position] == int(action["to"], 16)
    categories = {finding["category"] for finding in run(
        "verify", store, *JSON).expect(0).json()["findings"]}
    assert "fillers" not in categories
    run("undo", store, "--yes").expect(0)
    assert log.read_bytes() == damaged


@pytest.mark.parametrize("sealed", [False, True])
def test_recover_corrects_bits_of_bodies(sealed: bool, tmp_path: Path) -> None:
    built = tiny.build(tmp_path / "store", SPECS, append_crc=sealed)
    store = built.root
    whole = {path: path.read_bytes() for path in (store / "commitlog").iterdir()}
    for number in (1, 2, 5):
        flip(built, built.messages[number].start + body_at(built.messages[number].record) + 20, 2)
    options = ("--index-slots", "8", "--index-max", "32")
    document = run("recover", store, *options, "--apply", "--yes", *JSON).expect(0).json()
    assert len(corrections(document)) == 3
    assert {path: path.read_bytes() for path in whole} == whole
    assert run("recover", store, *options, *JSON).expect(0).json()["actions"] == []


def test_recover_corrects_fields_that_only_the_records_crc_covers(tmp_path: Path) -> None:
    built = tiny.build(tmp_path / "store", SPECS, append_crc=True)
    store = built.root
    whole = {path: path.read_bytes() for path in (store / "commitlog").iterdir()}
    flip(built, built.messages[2].start + 16, 4)  # the flag, which nothing else tells
    flip(built, built.messages[4].end - append_crc.SIZE - 4, 1)  # a property
    options = ("--index-slots", "8", "--index-max", "32")
    kept = run("recover", store, *options, "--correct", "off", *JSON).expect(1).json()
    assert kept["messages_lost"] == []
    assert kept.get("kept_damaged", 0) == 2 or kept["left_damaged"] == ["commitlog"]
    document = run("recover", store, *options, "--apply", "--yes", *JSON).expect(0).json()
    assert [action["proof"]["witnesses"] for action in corrections(document)] == [
        ["the record's CRC"]] * 2
    assert {path: path.read_bytes() for path in whole} == whole


def test_what_is_not_corrected_is_said(tmp_path: Path) -> None:
    body = bytes(random.Random(4).randbytes(40 << 10))
    built = tiny.build(tmp_path / "store", [*SPECS, tiny.Spec("orders", 0, body), *SPECS],
                       commitlog_file_size=64 << 10)
    flip(built, built.messages[6].start + 500, 2)
    result = run("recover", built.root, *JSON).expect(1)
    assert "not beyond doubt" in " ".join(result.err.split())
    assert len(result.json()["messages_lost"]) == 1


def flip(built: tiny.Tiny, physical: int, xor: int) -> None:
    name, position = built.place(physical)
    path = built.root / name
    content = bytearray(path.read_bytes())
    content[position] ^= xor
    path.write_bytes(content)
