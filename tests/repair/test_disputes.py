"""Properties have no CRC: where an entry contradicts one, what proves itself is set right, and what
does not is left as it is, on both sides, to be seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqctl.repair.rebuild import disputes
from tests.adversary.writer import Layout, Put, Writer
from tests.support import damage
from tests.support.cli import run
from tests.support.model import java_hash

JSON = ("-o", "json")
SIZES = ("--index-slots", "101", "--index-max", "256")
QUEUE, INDEX = "consumequeue/orders/0/" + "0" * 20, "index"


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disputes, "_PAGE", 3)  # entries of the index that are read at a time


def orders(folder: Path, tag: str = "paid") -> tuple[Path, list[Put]]:
    writer = Writer(Layout(log_file_size=64 << 10, index_slots=101, index_entries=256))
    puts = [writer.put("orders", b"order %d" % number * 9, tags=tag, keys=f"order-{number}")
            for number in range(20)]
    return writer.write(folder / "store"), puts


def contents(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for part in (
        "commitlog", "consumequeue", INDEX) for path in sorted((store / part).rglob("*"))
        if path.is_file()}


def change(store: Path, put: Put, before: bytes, after: bytes) -> None:
    """In the properties of a message."""
    path = f"commitlog/{0:020d}"
    at = put.physical + put.raw.rindex(before)
    damage.write(store, path, at, after)


def recover(store: Path, *options: str) -> dict[str, Any]:
    answer: dict[str, Any] = run("recover", store, *SIZES, *options, *JSON).expect(0, 1).json()
    return answer


@pytest.mark.parametrize(("before", "after"), [
    (b"paid", b"pahd"), (b"paid", b"qaid"), (b"paid", b"pzid"),  # one bit, one bit, one byte
    (b"order-7", b"order-6"), (b"order-7", b"orde2-7")])
def test_an_entry_proves_what_a_property_was(before: bytes, after: bytes, tmp_path: Path) -> None:
    store, puts = orders(tmp_path)
    whole = contents(store)
    change(store, puts[7], before, after)
    assert not run("verify", store, *SIZES, *JSON).expect(1).json()["ok"]
    plan = recover(store)
    assert [(action["action"], action["length"]) for action in plan["actions"]] == [
        ("correct", 1)]
    recover(store, "--apply", "--yes")
    assert contents(store) == whole
    assert run("verify", store, *SIZES, *JSON).expect(0).json()["ok"]
    run("undo", store, "--yes").expect(0)
    assert contents(store) != whole


def test_an_entry_of_which_one_bit_is_turned_is_set_right(tmp_path: Path) -> None:
    """No byte of the message explains its hash."""
    store, _ = orders(tmp_path)
    whole = contents(store)
    damage.flip_bit(store, QUEUE, 7 * 20 + 12 + 5, 6)
    recover(store, "--apply", "--yes")
    assert contents(store) == whole


@pytest.mark.parametrize("which", ["message", "entry"])
def test_what_damage_of_either_explains_stays_on_both_sides(which: str, tmp_path: Path) -> None:
    """The last character of a tag is what the last bits of its hash are."""
    store, puts = orders(tmp_path)
    if which == "message":
        change(store, puts[7], b"paid", b"paie")
    else:
        damage.flip_bit(store, QUEUE, 7 * 20 + 12 + 7, 0)
    before = contents(store)
    plan = recover(store)
    assert plan["left_damaged"] == ["consumequeue"]
    assert plan["actions"] == []
    run("recover", store, *SIZES, "--apply", "--yes").expect(1)
    assert contents(store) == before
    assert not run("verify", store, *SIZES, *JSON).expect(1).json()["ok"]


def test_an_entry_that_stays_keeps_others_from_no_repair(tmp_path: Path) -> None:
    store, puts = orders(tmp_path)
    change(store, puts[7], b"paid", b"paie")
    before = contents(store)
    damage.zero(store, QUEUE, 12 * 20, 60)
    recover(store, "--apply", "--yes")
    assert contents(store) == before


def test_keys_that_no_changed_byte_explains_stay_in_the_index(tmp_path: Path) -> None:
    store, puts = orders(tmp_path)
    change(store, puts[7], b"order-7", b"\0" * 7)
    before = {name: data for name, data in contents(store).items() if name.startswith(INDEX)}
    run("recover", store, *SIZES, "--apply", "--yes").expect(1)
    assert {name: data for name, data in contents(store).items()
            if name.startswith(INDEX)} == before


@pytest.mark.parametrize("keys", [["one"], ["one", "two"]], ids=len)
def test_garbage_over_all_keys_takes_no_entry_away(keys: list[str], tmp_path: Path) -> None:
    """No other key of the message is left to prove that the entries are its own: their times do."""
    writer = Writer(Layout(log_file_size=64 << 10, index_slots=101, index_entries=256))
    puts = [writer.put("orders", b"order %d" % number * 9, unique_key="", keys=" ".join(
        f"{key}-{number:02}" for key in keys)) for number in range(20)]
    store = writer.write(tmp_path / "store")
    old = " ".join(f"{key}-07" for key in keys).encode()
    change(store, puts[7], old, b"zq" * (len(old) // 2) + b"z" * (len(old) % 2))
    before = contents(store)
    plan = recover(store, "--apply", "--yes", "--ambiguous", "leave-out")
    assert contents(store) == before, plan["actions"]
    assert not run("verify", store, *SIZES, *JSON).expect(1).json()["ok"]
    # An index of another log, stored at other times, is made anew.
    other = Writer(Layout(log_file_size=64 << 10, index_slots=101, index_entries=256),
                   clock=1_600_000_000_000)
    for number in range(20):
        other.put("orders", b"order %d" % number * 9, unique_key="", keys=f"other-{number:02}")
    theirs = other.write(tmp_path / "other")
    for file in (store / INDEX).iterdir():
        file.write_bytes(next((theirs / INDEX).iterdir()).read_bytes())
    recover(store, "--apply", "--yes", "--ambiguous", "leave-out")
    assert run("verify", store, *SIZES, *JSON).expect(0).json()["ok"]


def test_an_index_entry_in_the_chain_of_another_hash_is_set_right(tmp_path: Path) -> None:
    store, _ = orders(tmp_path)
    whole = contents(store)
    name = next(name for name in whole if name.startswith(INDEX))
    damage.flip_bit(store, name, 40 + 101 * 4 + 20 * 9 + 3, 0)
    recover(store, "--apply", "--yes")
    assert contents(store) == whole


def test_zeroed_index_entries_are_of_no_message(tmp_path: Path) -> None:
    """In the chain of slot 0 they looked like one of the key hash 0 of the message at 0."""
    key = next(f"k{number}" for number in range(1000) if java_hash(
        f"orders#k{number}") % 101 == 0)
    writer = Writer(Layout(log_file_size=64 << 10, index_slots=101, index_entries=256))
    for number in range(20):
        writer.put("orders", b"order", keys=key if number == 9 else f"order-{number}")
    store = writer.write(tmp_path / "store")
    whole = contents(store)
    name = next(name for name in whole if name.startswith(INDEX))
    number = int.from_bytes(whole[name][40:44], "big")
    assert number == 20
    damage.zero(store, name, 40 + 101 * 4 + 20 * (number - 1), 60)
    recover(store, "--apply", "--yes")
    assert contents(store) == whole
    assert run("verify", store, *SIZES, *JSON).expect(0).json()["ok"]


@pytest.mark.parametrize(("number", "verdict", "remedy"), [
    (3, "intact", "none"), (8, "damaged", "filled")])
def test_a_place_is_explained(number: int, verdict: str, remedy: str, tmp_path: Path) -> None:
    store, puts = orders(tmp_path)
    damage.zero(store, f"commitlog/{0:020d}", puts[8].physical, puts[8].size)
    message = puts[number]
    asked = ("recover", store, *SIZES, "--explain", str(message.physical + 5))
    place = run(*asked, *JSON).expect(0).json()
    assert (place["verdict"], place["remedy"]) == (verdict, remedy)
    assert (place["start"], place["end"]) == (message.physical, message.end)
    assert "record" in {reason["source"] for reason in place["evidence"]}
    run(*asked, "--apply").expect(2)
    run("recover", store, *SIZES, "--explain", "99999999").expect(2)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_index_file_of_another_store(golden, golden_copy, number: int) -> None:
    """Some of its entries point to messages of this log, which have all their own entries."""
    store = golden_copy("4.9.3/crash-zerocheckpoint/before")
    paths = sorted((store / "index").iterdir())
    paths[number].write_bytes(min((golden("4.9.3/ipv6/store") / "index").iterdir()).read_bytes())
    plan = run("recover", str(store), "--apply", "--yes", *JSON).expect(0).json()
    assert not any("do not match the keys" in note for note in plan["notes"])
    assert {finding["severity"] for finding in run(
        "verify", str(store), *JSON).json()["findings"]} <= {"info"}
