"""What is found in bytes of all kinds, and how it is placed."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from rmqctl.formats.local.message import MAGIC_BLANK, decode
from rmqctl.repair.carve.carve import (
    DAMAGED,
    DOUBTFUL,
    EMBEDDED,
    IN_PLACE,
    MISPLACED,
    CarveOptions,
)
from rmqctl.repair.carve.window import CHUNK, Window
from rmqctl.scan.source import BytesSource
from rmqctl.scan.walk import Walk
from tests.conftest import GoldenFolder
from tests.repair.carving import carve, log, places, record, saved
from tests.support.golden import GoldenStore, golden_stores
from tests.support.share import sample
from tests.support.stored import log_bytes

NAME = f"{0:020d}"
EVERYTHING = CarveOptions(embedded=True, damaged=True, duplicates=True)
PAGE = 4096


@pytest.mark.parametrize("store", sample(golden_stores(), 24, "carved logs"),
                         ids=lambda golden_store: golden_store.id)
def test_golden_logs(store: GoldenStore, golden: GoldenFolder, tmp_path: Path) -> None:
    """Every record that a plain walk meets is found in its place, named or in one image."""
    root = golden(store.id)
    content, image = set(), b""
    for base, data in log_bytes(root, store.commitlog_dirs).items():
        for batch in Walk(BytesSource(data, base)):
            content |= set(batch.offset[batch.crc_ok()].tolist())
        image += data
    folders = [root / folder for folder in store.commitlog_dirs]
    named = carve(*folders)
    assert content <= {message.record.physical_offset for message in named.messages
                       if message.placement == IN_PLACE}
    assert all(message.record.physical_offset == message.offset + int(Path(message.source).name)
               for message in named.messages if message.placement == IN_PLACE)
    if not store.set.is_damaged:
        assert len(content) == named.tally.messages == named.tally.given
        assert not named.tally.is_damaged
    together = carve(saved(tmp_path, image))
    assert content <= {message.record.physical_offset for message in together.messages}


@pytest.mark.parametrize("name", [NAME, "image"])
@pytest.mark.parametrize("before", [b"", b"\0" * 77, b"\xda\xa3\x20\xa7" * 5, os.urandom(5000)],
                         ids=["nothing", "zeros", "magics", "noise"])
def test_a_log_behind_anything(name: str, before: bytes, tmp_path: Path) -> None:
    data = log(300)
    carved = carve(saved(tmp_path, before + data + bytes(99), name))
    assert carved.offsets(IN_PLACE) == [len(before) + at for at, _ in places(data)]
    assert carved.tally.breaks == 0


@pytest.mark.parametrize("chunk", [91, 100, 1000, 4099])
def test_windows_of_any_size(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = log(60) + b"garbage" * 9 + record(70_000, b"lost and found") + log(60, base=1 << 40)
    expected = carve(saved(tmp_path, data)).messages
    assert len(expected) == 121
    monkeypatch.setattr(Window.__init__, "__defaults__", (chunk,))
    assert carve(saved(tmp_path, data)).messages == expected


def test_large_records_across_windows(tmp_path: Path) -> None:
    data = b"".join(record(at, bytes([number]) * ((5 << 20) - 96))
                    for number, at in enumerate(range(0, 20 << 20, 5 << 20)))
    assert len(data) == 20 << 20
    carved = carve(saved(tmp_path, data))
    assert carved.offsets(IN_PLACE) == [0, 5 << 20, 10 << 20, 15 << 20]


def test_a_record_that_does_not_fit_its_log_is_misplaced(tmp_path: Path) -> None:
    data, alien = log(400), record(12345, b"from elsewhere")
    at = places(data)[200][0]
    carved = carve(saved(tmp_path, data[:at] + alien + log(200, base=at + len(alien)), NAME))
    assert carved.offsets(MISPLACED) == [at]
    assert carved.tally.in_place == 400


def test_swapped_pages(tmp_path: Path) -> None:
    data = bytearray(log(600))
    data[5 * PAGE:6 * PAGE], data[9 * PAGE:10 * PAGE] = (data[9 * PAGE:10 * PAGE],
                                                         data[5 * PAGE:6 * PAGE])
    whole = [(at, size) for at, size in places(log(600))]
    moved = {at + (4 if here == 5 else -4) * PAGE for at, size in whole
             for here in (5, 9) if here * PAGE <= at and at + size <= (here + 1) * PAGE}
    stayed = [at for at, size in whole
              if not any(at < (here + 1) * PAGE and here * PAGE < at + size for here in (5, 9))]
    carved = carve(saved(tmp_path, bytes(data), NAME))
    assert sorted([*carved.offsets(IN_PLACE), *carved.offsets(DOUBTFUL)]) == stayed
    assert moved <= set(carved.offsets(MISPLACED))
    # In an image these are fragments of the log in another order.
    carved = carve(saved(tmp_path, bytes(data)))
    assert {*stayed, *moved} <= {*carved.offsets(IN_PLACE), *carved.offsets(DOUBTFUL)}
    assert not carved.offsets(MISPLACED)


def test_logs_one_behind_the_other(tmp_path: Path) -> None:
    """Each long stretch is a log of its own; a short one does not fit."""
    first, other, short = log(500), log(500, base=1 << 33, seed=b"b"), log(3, base=7, seed=b"c")
    carved = carve(saved(tmp_path, first + other + short))
    assert carved.tally.in_place == 1000
    assert carved.offsets(MISPLACED) == [len(first) + len(other) + at for at, _ in places(short)]


def test_the_name_of_a_file_decides_what_is_in_place(tmp_path: Path) -> None:
    """A file used again: the new log first, then what is left of an old one."""
    new, old = log(300), log(500, base=1 << 33, seed=b"old")
    carved = carve(saved(tmp_path, new + old, NAME))
    assert (carved.tally.in_place, carved.tally.misplaced) == (300, 500)
    renamed = carve(saved(tmp_path, old, NAME))
    assert (renamed.tally.in_place, renamed.tally.misplaced) == (500, 0)


def test_pieces_of_a_log_before_and_after_the_first_long_one(tmp_path: Path) -> None:
    data = bytearray(log(600))
    for at, _ in (places(log(600))[5], places(log(600))[9]):
        data[at:at + 60] = bytes(60)
    carved = carve(saved(tmp_path, bytes(data)))
    assert (carved.tally.in_place + carved.tally.doubtful, carved.tally.misplaced) == (598, 0)


def test_blanks_and_zeros_are_no_damage(tmp_path: Path) -> None:
    first = log(20)
    room = 16384 - len(first)
    data = first + struct.pack(">iI", room, MAGIC_BLANK) + b"x" * (room - 8) + log(20, base=16384)
    carved = carve(saved(tmp_path, data + bytes(5000), NAME))
    assert carved.tally.in_place == 40
    assert not carved.tally.is_damaged


@pytest.mark.parametrize("hole", [bytes(500), b"\x55" * 500], ids=["zeros", "garbage"])
def test_an_interrupted_log_is_damage(hole: bytes, tmp_path: Path) -> None:
    data = bytearray(log(400))
    at = places(log(400))[200][0]
    data[at:at + 500] = hole
    carved = carve(saved(tmp_path, bytes(data), NAME))
    assert carved.tally.breaks == 1
    assert carved.tally.is_damaged


# -- records in bodies ------------------------------------------------------------------------


def contained(what: bytes) -> tuple[bytes, int]:
    """A log whose middle record carries ``what``; the position of that record."""
    before = log(300)
    carrier = record(len(before), b"look: " + what + b" that was it")
    return before + carrier + log(300, base=len(before) + len(carrier), seed=b"z"), len(before)


def forged(position_of_carrier: int) -> bytes:
    """A run of records that say exactly where they will lie."""
    return log(5, base=position_of_carrier + len(record(0, b"", topic=b"", properties=b""))
               - 3 + len(b"look: "), seed=b"f")


def embeddings() -> dict[str, bytes]:
    at = len(log(300))
    return {"copy": log(300)[:places(log(300))[1][0]], "run": log(40, seed=b"r"),
            "forged": forged(at), "whole log": log(900, base=1 << 30, seed=b"w"),
            "blank": struct.pack(">iI", 8, MAGIC_BLANK)}


def test_the_forged_run_lies_where_it_says() -> None:
    data, at = contained(embeddings()["forged"])
    start = data.index(forged(at))
    assert decode(data, start).physical_offset == start


@pytest.mark.parametrize("name", [NAME, "image"])
@pytest.mark.parametrize("what", embeddings())
def test_nothing_in_an_intact_body_is_taken_for_a_record(what: str, name: str,
                                                         tmp_path: Path) -> None:
    data, _ = contained(embeddings()[what])
    carved = carve(saved(tmp_path, data, name), wanted=EVERYTHING)
    assert carved.offsets() == [at for at, _ in places(data)]
    assert {message.placement for message in carved.messages} == {IN_PLACE}


@pytest.mark.parametrize("name", [NAME, "image"])
@pytest.mark.parametrize("where", ["body", "total_size", "magic", "physical_offset", "body_length",
                                   "sys_flag"])
@pytest.mark.parametrize("what", sample(["copy", "run", "forged", "whole log"], 1, "carve",
                                        always={"forged"}))
def test_in_a_damaged_body_it_is_known_as_such(what: str, where: str, name: str,
                                               tmp_path: Path) -> None:
    content = embeddings()[what]
    data, at = contained(content)
    broken = bytearray(data)
    field = {"body": 90, "total_size": 2, "magic": 4, "physical_offset": 31, "body_length": 86,
             "sys_flag": 39}[where]
    broken[at + field] ^= 0x10
    path = saved(tmp_path, bytes(broken), name)
    expected = [place for place, _ in places(data)]
    carved = carve(path)
    assert set(carved.offsets()) == set(expected) - ({at} if where != "physical_offset" else set())
    if where == "physical_offset":  # its body is as it was: an intact record at a wrong place
        assert carved.offsets(MISPLACED) == [at]
        return
    everything = carve(path, wanted=EVERYTHING)
    inside = [message for message in everything.messages if message.placement == EMBEDDED]
    start = data.index(content, at)
    assert sorted(message.offset for message in inside) == [start + place
                                                            for place, _ in places(content)]
    assert everything.offsets(DAMAGED) == ([at] if where == "body" else [])


def test_a_copy_of_a_known_message_in_a_damaged_body_is_a_duplicate(tmp_path: Path) -> None:
    data, at = contained(embeddings()["copy"])
    broken = bytearray(data)
    broken[at + 90] ^= 1
    carved = carve(saved(tmp_path, bytes(broken), NAME))
    assert (carved.tally.duplicates, carved.tally.embedded) == (1, 0)


def test_a_damaged_record_is_distinguished(tmp_path: Path) -> None:
    data = bytearray(log(50))
    at, size = places(log(50))[20]
    data[at + size - 30] ^= 1
    path = saved(tmp_path, bytes(data), NAME)
    assert carve(path).tally.damaged == 1
    assert at not in carve(path).offsets()
    (only,) = [message for message in carve(path, wanted=EVERYTHING).messages
               if message.placement == DAMAGED]
    assert (only.offset, only.record.crc_ok) == (at, False)


# -- damage at random -------------------------------------------------------------------------


def spoil(data: bytearray, dice: random.Random, starts: list[tuple[int, int]]) -> None:
    """One to twenty damages: bits, pages, garbage."""
    used = starts[-1][0] + starts[-1][1]
    pages = dice.sample(range(used // PAGE), used // PAGE)
    for _ in range(dice.randint(1, 20)):
        kind = dice.randrange(4)
        if kind == 0:
            data[dice.randrange(used)] ^= 1 << dice.randrange(8)
        elif kind == 1:
            at = dice.randrange(used // PAGE) * PAGE
            data[at:at + PAGE] = bytes(PAGE)
        elif kind == 2:
            at = dice.randrange(used - 500)
            data[at:at + 500] = dice.randbytes(500)
        elif len(pages) > 1:
            first, other = pages.pop() * PAGE, pages.pop() * PAGE
            data[first:first + PAGE], data[other:other + PAGE] = (data[other:other + PAGE],
                                                                  data[first:first + PAGE])


@pytest.mark.parametrize("name", [NAME, "image"])
@pytest.mark.parametrize("number", sample(range(25), 8, "carved damage"))
def test_all_intact_records_survive_random_damage(number: int, name: str, seed: int,
                                                  tmp_path: Path) -> None:
    _all_intact_records_survive(random.Random(seed + number), name, tmp_path)


@pytest.mark.parametrize("name", [NAME, "image"])
@pytest.mark.parametrize("number", [9, 30, 73, 92, 142, 188, 189])
def test_lengths_that_lead_to_a_record_by_chance_hide_nothing(number: int, name: str,
                                                              tmp_path: Path) -> None:
    """Nor does a record of another log whose end was written over."""
    _all_intact_records_survive(random.Random(number), name, tmp_path)


def _all_intact_records_survive(dice: random.Random, name: str, tmp_path: Path) -> None:
    whole = log(400, size=500)
    starts = places(whole)
    bodies = {decode(whole[at:at + size]).body for at, size in starts}
    data = bytearray(whole)
    spoil(data, dice, starts)
    carved = carve(saved(tmp_path, bytes(data), name))
    intact = [at for at, size in starts if data[at:at + size] == whole[at:at + size]]
    assert set(intact) <= {*carved.offsets(IN_PLACE), *carved.offsets(DOUBTFUL)}
    assert all(message.record.body in bodies for message in carved.messages)


@pytest.mark.parametrize("name", [NAME, "image"])
@pytest.mark.parametrize("number", range(5))
def test_some_turned_bits_leave_no_doubt(number: int, name: str, seed: int,
                                         tmp_path: Path) -> None:
    """Of all messages but the damaged ones it is sure that they lie in no body."""
    dice = random.Random(seed + number)
    whole = log(400, size=500)
    starts = places(whole)
    data = bytearray(whole)
    for at, size in dice.sample(starts[:-1], 8):
        data[at + dice.randrange(size)] ^= 1 << dice.randrange(8)
    carved = carve(saved(tmp_path, bytes(data), name))
    intact = [at for at, size in starts if data[at:at + size] == whole[at:at + size]]
    assert set(intact) <= set(carved.offsets(IN_PLACE))


@pytest.mark.parametrize("name", [NAME, "image"])
def test_a_size_that_leads_into_unused_space_is_not_believed(name: str, tmp_path: Path) -> None:
    """The head of the last record but one is damaged; its size reaches behind the last one."""
    data = bytearray(log(400) + bytes(4000))
    at, size = places(log(400))[398]
    data[at:at + 4] = (2 * size + 1000).to_bytes(4)
    data[at + 84:at + 88] = b"\xff" * 4
    carved = carve(saved(tmp_path, bytes(data), name), wanted=EVERYTHING)
    assert carved.offsets(IN_PLACE) == [place for place, _ in places(log(400)) if place != at]


@pytest.mark.parametrize("bytes_before", range(1, 40))
def test_a_few_bytes_before_a_record(bytes_before: int, tmp_path: Path) -> None:
    """They are not taken for the start of a record with wider hosts, which would hide it."""
    data, more = log(300), bytes([0, 0, 0, 12]) + b"\xcb\xd4\x31\x94" + bytes(40)
    whole = data + more[:bytes_before] + log(50, base=len(data) + bytes_before, seed=b"m")
    carved = carve(saved(tmp_path, whole, NAME))
    assert carved.tally.in_place == 350


@pytest.mark.parametrize("count", [8, 16])
@pytest.mark.parametrize("less", [0, 50])
def test_a_log_ends_with_the_greatest_offset(count: int, less: int, tmp_path: Path) -> None:
    """Of a chain whose end lies beyond all offsets, at a border of what is read at once."""
    size = CHUNK // 8
    body = bytes(size - len(record(0, b"")))
    base = (1 << 63) - count * size + less
    data = b"".join(record(base + number * size, body) for number in range(count))
    carved = carve(saved(tmp_path, data + bytes(CHUNK)))
    assert carved.offsets("in-place") == [number * size for number in range(count)]
