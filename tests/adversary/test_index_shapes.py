"""Index files of any number of slots and entries: the shape is found from all of them, or not said.

A wrong shape is worse than none: a sound store would be condemned by it, and what is written by it
hides every key that was there.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from tests.adversary.writer import Layout, Writer
from tests.support.cli import Result, run
from tests.support.share import every, sample
from tests.support.snapshot import assert_unchanged

SHAPES = [(1, 50), (2, 9), (7, 7), (7, 11), (16, 64), (17, 1000), (37, 50), (37, 1000), (97, 89),
          (100, 400), (101, 401), (499, 4999), (1000, 37), (1024, 4096), (5000, 100)]


def keyed(slots: int, entries: int, count: int = 24, *, seed: int = 1, keys: int = 1) -> Writer:
    writer = Writer(Layout(index_slots=slots, index_entries=entries), seed=seed)
    for number in range(count):
        writer.put("orders", b"body %d" % number, queue_id=number % 3, unique_key="",
                   keys=" ".join(f"k{number}-{index}" for index in range(keys)))
    return writer


def shape_of(store: Path) -> tuple[int | None, int | None]:
    sizes = run("info", store, "-o", "json").expect(0).json()["sizes"]
    return sizes["index_slots"], sizes["index_max"]


def troubles(result: Result) -> list[str]:
    return [finding["category"] for finding in result.json()["findings"]
            if finding["severity"] != "info"]


def found_keys(store: Path, names: list[str]) -> int:
    return sum(run("query", "key", store, "--topic", "orders", "--key", name, "-o", "jsonl").code
               == 0 for name in names)


@pytest.mark.parametrize("shape", sample(SHAPES, 20, "shapes of an index"), ids=str)
@pytest.mark.parametrize("count", sample([1, 3, 24], 1, "keys of an index of any shape"))
def test_a_sound_store_of_any_shape(tmp_path: Path, shape: tuple[int, int], count: int) -> None:
    for seed in every(8, range(8), f"seeds of {shape} {count}"):
        store = keyed(*shape, count, seed=seed, keys=1 + seed % 3).write(tmp_path / str(seed))
        assert shape_of(store) == shape
        assert troubles(run("verify", store, "-o", "json").expect(0)) == []
        assert run("recover", store, "-o", "json").expect(0).json()["actions"] == []


@pytest.mark.parametrize("shape", [(37, 1000), (101, 401), (1, 50)], ids=str)
def test_what_is_written_keeps_the_shape(tmp_path: Path, shape: tuple[int, int]) -> None:
    store = keyed(*shape, 10).write(tmp_path / "s")
    run("write", store, "--topic", "orders", "--body", "new", "--key", "fresh").expect(0)
    assert found_keys(store, [*(f"k{number}-0" for number in range(10)), "fresh"]) == 11
    run("verify", store).expect(0)
    run("truncate", store, "--to-phy", "0", "--apply").expect(0, 1)
    run("verify", store).expect(0)


@pytest.mark.parametrize("shape", [(37, 50), (97, 89)], ids=str)
def test_one_damaged_file_among_sound_ones(tmp_path: Path, shape: tuple[int, int]) -> None:
    """It keeps the shape of the others, its damage is named, and recover makes it right."""
    writer = keyed(*shape, 200)
    assert len(writer.index) > 2
    store = writer.write(tmp_path / "s")
    damaged = sorted((store / "index").iterdir())[1]
    raw = bytearray(damaged.read_bytes())
    raw[40:40 + 4 * shape[0]] = bytes(4 * shape[0])
    raw[40 + 4 * shape[0] + 40:] = bytes(len(raw) - 40 - 4 * shape[0] - 40)
    damaged.write_bytes(raw)
    assert shape_of(store) == shape
    assert set(troubles(run("verify", store, "-o", "json").expect(1))) <= {
        "index-slot", "index-entry", "index-header", "index-key-missing", "index-chain"}
    run("recover", store, "--apply").expect(0)
    run("verify", store).expect(0)
    assert found_keys(store, [f"k{number}-0" for number in range(0, 200, 20)]) == 10


@pytest.mark.parametrize("place", [0, 8, 16, 24, 32, 36])
def test_a_flipped_bit_in_the_header_does_not_hide_the_shape(tmp_path: Path, place: int) -> None:
    store = keyed(37, 1000, 24).write(tmp_path / "s")
    file, = (store / "index").iterdir()
    for bit in every(7, range(64 if place < 32 else 32), f"bits of the field at {place}"):
        raw = bytearray(file.read_bytes())
        raw[place + bit // 8] ^= 1 << bit % 8
        other = tmp_path / "flipped"
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(store, other)
        (other / "index" / file.name).write_bytes(raw)
        if place != 36:  # the count of entries: what tells the shape, where no other file does
            assert shape_of(other) == (37, 1000), bit
        texts = troubles(run("verify", other, "-o", "json").expect(0, 1))
        assert set(texts) <= {"index-header", "index-time", "index-unreadable", "index-behind",
                              "index-entry", "index-slot", "index-key-missing", "index-missing"}


@pytest.mark.parametrize("count", [0, 1, 23, 25, 1 << 20, -1])
def test_a_wrong_count_of_used_slots_is_found(tmp_path: Path, count: int) -> None:
    """hashSlotCount is the number of slots used since 4.7.1 and of entries before (24 each here,
    or less): what is neither is wrong.
    """
    writer = keyed(1000, 100, 24)
    used = writer.index[0].used_slots
    writer.index[0].used_slots = count
    store = writer.write(tmp_path / "s")
    sound = used <= count <= 24
    judged = run("verify", store, "-o", "json").expect(0 if sound else 1)
    assert troubles(judged) == ([] if sound else ["index-header"])


@pytest.mark.parametrize(("version", "file", "severity"), [(5, 0, "info"), (5, 1, "error"),
                                                           (4, 0, "error"), (4, 1, "error")])
def test_a_count_that_two_ways_of_counting_would_give(tmp_path: Path, version: int, file: int,
                                                      severity: str) -> None:
    """Between the two lies what a file has that a broker of up to 4.7.0 began: not one behind a
    file that counts used slots, nor one that begins with a message no such broker wrote.
    """
    writer = Writer(Layout(index_slots=5, index_entries=20, version=version))
    for number in range(40):
        writer.put("orders", b"x", unique_key="", keys=f"k{number}")
    assert writer.index[file].used_slots == 5
    writer.index[file].used_slots = 7
    store = writer.write(tmp_path / "s")
    finding, = (reported_finding
                for reported_finding in run("verify", store, "-o", "json").json()["findings"]
                if reported_finding["category"] == "index-header")
    assert finding["severity"] == severity


# -- what cannot be told --------------------------------------------------------------------------


def empty_index(folder: Path, slots: int, entries: int) -> Path:
    """A store of messages without keys: its first index file was made and never used."""
    writer = Writer(Layout(index_slots=slots, index_entries=entries, with_index=False))
    for number in range(10):
        writer.put("orders", b"body %d" % number, unique_key="")
    store = writer.write(folder)
    (store / "index").mkdir(exist_ok=True)
    (store / "index/20231114221320000").write_bytes(bytes(40 + 4 * slots + 20 * entries))
    return store


def test_an_empty_file_of_an_odd_shape_is_no_damage_and_nothing_is_written(tmp_path: Path) -> None:
    store = empty_index(tmp_path / "s", 37, 1000)
    assert troubles(run("verify", store, "-o", "json").expect(0)) == []
    with assert_unchanged(store / "index"):
        refused = run("write", store, "--topic", "orders", "--body", "x", "--key", "k").expect(6)
        assert "--index-slots" in refused.err
        planned = run("recover", store, "-o", "json").expect(0).json()
        assert not [action for action in planned["actions"] if action["target"].startswith("index")]
        run("recover", store, "--apply").expect(0)
    run("write", store, "--topic", "orders", "--body", "x", "--key", "k", "--index-slots", "37",
        "--index-max", "1000").expect(0)
    assert shape_of(store) == (37, 1000)
    run("verify", store).expect(0)


def test_other_files_and_the_notes_of_init_say_it(tmp_path: Path) -> None:
    writer = keyed(37, 50, 30)
    store = writer.write(tmp_path / "s")
    full = min((store / "index").iterdir())
    (store / "index/20991114221320000").write_bytes(bytes(full.stat().st_size))
    assert shape_of(store) == (37, 50)
    noted = tmp_path / "noted"
    run("init", noted, "--index-slots", "37", "--index-max", "1000").expect(0)
    run("write", noted, "--topic", "orders", "--auto-create-topic", "--body", "x", "--key",
        "k").expect(0)
    assert shape_of(noted) == (37, 1000)
    assert found_keys(noted, ["k"]) == 1


def test_a_note_that_the_files_contradict_is_not_followed(tmp_path: Path) -> None:
    """A store.json of another store with files of the same size."""
    store = keyed(37, 1000, 10).write(tmp_path / "s")
    noted = tmp_path / "noted"
    run("init", noted, "--index-slots", "42", "--index-max", "999", "--commitlog-file-size",
        "64KiB", "--consumequeue-file-size", "2000").expect(0)
    shutil.copytree(noted / ".rmqctl", store / ".rmqctl")
    assert shape_of(store) == (37, 1000)
    run("write", store, "--topic", "orders", "--body", "x", "--key", "fresh").expect(0)
    assert found_keys(store, [*(f"k{number}-0" for number in range(10)), "fresh"]) == 11
    run("verify", store).expect(0)


def test_wrecked_files_are_distinguished_from_odd_ones(tmp_path: Path) -> None:
    store = keyed(37, 1000, 24).write(tmp_path / "s")
    file, = (store / "index").iterdir()
    header = file.read_bytes()[:40]
    file.write_bytes(header + bytes(range(256)) * ((file.stat().st_size - 40) // 256 + 1))
    with file.open("r+b") as opened:
        opened.truncate(40 + 4 * 37 + 20 * 1000)
    assert "index-unreadable" in troubles(run("verify", store, "-o", "json").expect(1))
    with assert_unchanged(store / "index"):
        answer = run("recover", store, "--apply", "-o", "json").expect(1).json()
    assert answer["left_damaged"] == ["index"]
    run("recover", store, "--index-slots", "37", "--index-max", "1000", "--apply").expect(0)
    assert found_keys(store, [f"k{number}-0" for number in range(24)]) == 24
    run("verify", store).expect(0)


@pytest.mark.parametrize(("shape", "place"), [((37, 1000), 36), ((37, 1000), 40), ((16, 64), 32),
                                              ((16, 64), 47)], ids=str)
def test_a_bit_in_a_file_without_entries(tmp_path: Path, shape: tuple[int, int],
                                         place: int) -> None:
    """Nothing tells its shape, so it is left; that it is damaged is said, and no success."""
    store = keyed(*shape, 0).write(tmp_path / "s")
    (store / "index").mkdir(exist_ok=True)
    file = store / "index" / "20231114221325000"
    raw = bytearray(40 + 4 * shape[0] + 20 * shape[1])
    file.write_bytes(raw)
    run("verify", store).expect(0)
    run("recover", store, "--apply").expect(0)
    raw[place] ^= 1
    file.write_bytes(raw)
    run("verify", store).expect(1)
    result = run("recover", store, "--apply").expect(1)
    assert "the index is damaged and is not repaired" in result.err
    texts = "--index-slots", str(shape[0]), "--index-max", str(shape[1])
    answer = run("preflight", store, *texts, "-o", "json").expect(0, 1).json()
    assert answer["messages_already_lost"] == 0
    run("recover", store, "--apply", *texts).expect(0)
    run("verify", store).expect(0)


def test_several_files_that_begin_with_one_message(tmp_path: Path) -> None:
    """More keys than a file holds, and of the files made in one millisecond only the last is there:
    two of the new files begin where one of the old does.
    """
    store = keyed(2, 3, 12, keys=4).write(tmp_path / "s")
    run("recover", store, "--apply").expect(0)
    run("verify", store).expect(0)
    assert found_keys(store,
                      [f"k{number}-{count}" for number in range(12) for count in (0, 3)]) == 24


# -- clocks ---------------------------------------------------------------------------------------


def test_a_clock_set_back_within_a_file(tmp_path: Path) -> None:
    """Entries of the time before the first are stored with a difference of 0 (index.md §6)."""
    writer = Writer(Layout(index_slots=37, index_entries=1000))
    for number in range(30):
        if number == 10:
            writer.clock -= 3_600_000
        writer.put("orders", b"body %d" % number, queue_id=number % 3, keys=f"k{number}")
    store = writer.write(tmp_path / "s")
    header = struct.unpack(">qqqqii", next((store / "index").iterdir()).read_bytes()[:40])
    assert header[1] < header[0]
    assert troubles(run("verify", store, "-o", "json").expect(0)) == []
    assert run("recover", store, "-o", "json").expect(0).json()["actions"] == []


def test_a_clock_set_back_over_several_files(tmp_path: Path) -> None:
    writer = Writer(Layout(index_slots=7, index_entries=20))
    for number in range(60):
        if number % 13 == 12:
            writer.clock -= 500_000
        writer.put("orders", b"body %d" % number, queue_id=number % 3, keys=f"k{number}")
    store = writer.write(tmp_path / "s")
    assert troubles(run("verify", store, "-o", "json").expect(0)) == []
