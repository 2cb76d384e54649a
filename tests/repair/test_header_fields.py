"""Any single field of the head that says where a message lies, whose it is and how long it is,
overwritten with any value: all other fields, the body's CRC and what stands around leave one
solution.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.adversary import heads
from tests.adversary.writer import (
    COMMIT,
    COMPRESSED,
    PREPARED,
    ROLLBACK,
    Header,
    Layout,
    Writer,
    field_places,
)
from tests.support.cli import run
from tests.support.share import RUN, sample

OPTIONS = ("--index-slots", "16", "--index-max", "256", "-o", "json")
LENGTHS = ("total_size", "magic", "physical_offset", "body_length", "topic_length",
           "properties_length")
TOLD_BY_ENTRIES = ("queue_id", "queue_offset")
Value = Callable[[random.Random, int], bytes]
VALUES: dict[str, Value] = {
    "all ones": lambda _, width: b"\xff" * width, "zeros": lambda _, width: bytes(width),
    "noise": lambda chance, width: chance.randbytes(width)}


def log_of(store: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((store / "commitlog").iterdir())]


@pytest.mark.parametrize(("field", "value", "derived", "long_topic", "last"), sample([
    (field, value, derived, long_topic, last)
    for field, value, derived, long_topic, last in product(
        (*LENGTHS, *TOLD_BY_ENTRIES), VALUES, (True, False), (False, True), (False, True))
    # Without entries only another record behind it tells the size; queues nothing tells.
    if derived or not (last or field in TOLD_BY_ENTRIES)], 40, "header fields"))
def test_one_field_is_set_right(field: str, value: str, derived: bool, long_topic: bool,
                                last: bool, tmp_path: Path) -> None:
    writer = Writer(Layout(log_file_size=16 << 10, index_slots=16, index_entries=256,
                           with_queues=derived, with_index=derived))
    topic = "orders" * (30 if long_topic else 1)  # more than 127 bytes: version 2
    puts = [writer.put(topic, b"order %d " % number * 9, queue_id=number % 2, tags="a",
                       keys=f"o{number}") for number in range(40)]
    whole = log_of(writer.write(tmp_path / "whole"))
    message = puts[-1 if last else 20]
    at, width = field_places(message.raw)[field]
    chance = random.Random(RUN.number(f"{field} {value}"))
    writer.patch(message.physical + at, VALUES[value](chance, width))
    store = writer.write(tmp_path / "store")
    if log_of(store) == whole:
        pytest.skip("it had that value")
    run("recover", store, *OPTIONS, "--apply", "--yes").expect(0)
    assert log_of(store) == whole
    assert run("verify", store, *OPTIONS).expect(0).json()["ok"]


# -- every field of the header, with any value ----------------------------------------------------

PROVED = {"total_size", "magic", "physical_offset", "body_length", "topic_length",
          "properties_length", "queue_offset", "prepared_transaction_offset"}
"""Fields that everything else in a store leaves one value of."""
UNPROVED = {"flag", "queue_id"}
"""Fields that any value may be in: the flag is the producer's, and no entry points to a prepared or
rolled back message, whose queue id may be any."""
UNKNOWN = ("not known", "unknown")


def judged(store: heads.Store, root: Path, field: str, value: bytes) -> str:
    """What became of a message with another ``value`` in a field, and that nothing is claimed."""
    store.write(root, field, value)
    shown = run("verify", root, *heads.OPTIONS, "-o", "json").json()["findings"]
    done = run("recover", root, *heads.OPTIONS, "-o", "json", "--apply", "--yes").expect(0, 1)
    plan, place = done.json(), store.victim.physical
    after = run("verify", root, *heads.OPTIONS, "-o", "json").json()["findings"]
    if store.bytes_in(root) == store.victim.raw:
        assert done.code == 0
        assert [finding for finding in after if finding["severity"] != "info"] == []
        return "restored"
    text = " ".join(map(str, (*plan["notes"], *plan.get("left_damaged", ()))))
    assert all(str(place) in text or "damaged" in text for finding in after
               if finding["severity"] == "error"), after
    for action in plan["actions"]:
        if place <= (action.get("offset") or -1) < store.victim.end:
            assert action["action"] in ("fill", "keep damaged") or any(
                word in action["reason"] for word in UNKNOWN), action
    assert shown or (field in UNPROVED and done.code == 0)
    return "shown" if shown else "nobody knows"


@pytest.mark.parametrize(("field", "seed"), sample(
    [(field, seed) for field in heads.FIELDS for seed in range(36)], 34, "any value in a header"))
def test_any_value_in_any_field_is_restored_or_shown(field: str, seed: int,
                                                     tmp_path: Path) -> None:
    """Single fields of records of every shape, in stores with and without appended CRCs."""
    store = heads.Store.of(seed)
    luck = random.Random(f"{seed} {field}")
    fate = judged(store, tmp_path / "store", field, store.value(field, luck))
    if field in PROVED:
        assert fate == "restored"


@pytest.mark.parametrize("seed", [0, 2, 4, 22, 23])
@pytest.mark.parametrize("field", ["sys_flag", "flag", "queue_id", "queue_offset",
                                   "born_timestamp", "store_timestamp", "reconsume_times",
                                   "prepared_transaction_offset", "body_crc"])
def test_an_appended_crc_decides_between_plausible_values(field: str, seed: int,
                                                          tmp_path: Path) -> None:
    store = heads.Store.of(seed, sealed=True)
    luck = random.Random(f"{seed} {field}")
    assert judged(store, tmp_path / "store", field, store.value(field, luck)) == "restored"


# -- system flags ---------------------------------------------------------------------------------


def flagged(tmp_path: Path, flags: int, header: Header, body: bytes = b"plain text",
            **put: object) -> tuple[heads.Store, Path]:
    """A store whose message of a header has other system flags."""
    writer = Writer(Layout(index_slots=16, index_entries=256))
    for number in range(20):
        kind = {"header": header, "body": body, **put} if number == 9 else {"body": b"x" * 40}
        writer.put("orders", queue_id=number % 2, keys=f"k{number}", **kind)
    store = heads.Store(writer, writer.puts[9])
    return store, store.write(tmp_path / "store", "sys_flag", flags.to_bytes(4, "big"))


def recovered(root: Path) -> tuple[dict, list[dict]]:
    """The plan, and what `verify` finds afterwards but for information."""
    plan = run("recover", root, *heads.OPTIONS, "-o", "json", "--apply", "--yes").expect(0).json()
    findings = run("verify", root, *heads.OPTIONS, "-o", "json").json()["findings"]
    return plan, [finding for finding in findings if finding["severity"] != "info"]


@pytest.mark.parametrize("bits", [1 << 11, 1 << 20, 1 << 31, 0x7FFFF800])
def test_bits_that_no_release_uses_are_damage(bits: int, tmp_path: Path) -> None:
    store, root = flagged(tmp_path, bits, Header())
    findings = run("verify", root, *heads.OPTIONS, "-o", "json").json()["findings"]
    assert [(finding["category"], finding["severity"], finding["offset"])
            for finding in findings] == [
                ("header-flag-bits", "warning", store.victim.physical)]
    assert len(run("read", root, "-o", "jsonl").expect(0).jsonl()) == 20
    assert recovered(root)[1] == []
    assert store.bytes_in(root) == store.victim.raw


def test_compressed_or_not_is_undecided_where_the_body_may_be_either(tmp_path: Path) -> None:
    """A zlib stream: the client packed it, or its producer sent one."""
    body = zlib.compress(b"text " * 50)
    store, root = flagged(tmp_path, 0x7FFFF800, Header(sys_flag=COMPRESSED), body)
    plan, joined = recovered(root)
    assert [finding["category"] for finding in joined] == ["header-flag-bits"]
    assert any("system flags that no known release" in note for note in plan["notes"])
    again, joined = recovered(root)
    assert (again["actions"], len(joined)) == ([], 1)
    assert store.bytes_in(root) != store.victim.raw


def test_the_half_message_says_how_the_body_is_packed(tmp_path: Path) -> None:
    body = zlib.compress(b"text " * 50)
    writer = Writer(Layout(index_slots=16, index_entries=256))
    writer.put("orders", b"first")
    half = writer.put("orders", body, unique_key="U1", properties={"TRAN_MSG": "true"},
                      header=Header(sys_flag=PREPARED | COMPRESSED | 0x300))
    for number in range(9):
        writer.put("orders", b"x", keys=f"k{number}")
    done = writer.put("orders", body, unique_key="U1", header=Header(
        sys_flag=COMMIT | COMPRESSED | 0x300, prepared_transaction_offset=half.physical))
    store = heads.Store(writer, done)
    root = store.write(tmp_path / "store", "sys_flag", b"\xff\xff\xff\xff")
    assert recovered(root)[1] == []
    assert store.bytes_in(root) == store.victim.raw


@pytest.mark.parametrize("flags", [0, 0x10, 0x20, 0x30, 0xFFFFF800, 0xFFFFF830])
@pytest.mark.parametrize("hosts", list(product(("10.0.0.7", "2001:db8::7"), repeat=2)))
def test_the_widths_of_the_hosts_are_those_that_fit(flags: int, hosts: tuple[str, str],
                                                    tmp_path: Path) -> None:
    store, root = flagged(tmp_path, flags, Header(born_host=(hosts[0], 52011),
                                                  store_host=(hosts[1], 10911)))
    assert recovered(root)[1] == []
    assert store.bytes_in(root) == store.victim.raw


def test_nothing_is_restored_without_a_witness_of_the_transaction(tmp_path: Path) -> None:
    """The entries are gone, and whether it was committed or rolled back nothing shows."""
    writer = Writer(Layout(index_slots=16, index_entries=256, with_queues=False,
                           with_index=False))
    for number in range(9):
        writer.put("orders", b"x", queue_id=1, keys=f"k{number}")
    odd = writer.put("bills", b"y", header=Header(
        sys_flag=ROLLBACK, prepared_transaction_offset=writer.puts[3].physical))
    writer.put("orders", b"z", queue_id=1)
    store = heads.Store(writer, odd)
    root = store.write(tmp_path / "store", "sys_flag", b"\xff\xff\xf8\x00")
    run("recover", root, *heads.OPTIONS, "-o", "json", "--apply", "--yes").expect(0)
    now = store.bytes_in(root)
    assert now[36:40] == b"\xff\xff\xf8\x00"


@pytest.mark.parametrize("count", [2, 3, 40])
def test_bits_that_several_messages_have_are_no_damage(count: int, tmp_path: Path) -> None:
    """A newer release, or a client, may set bits that are unknown here: they are not cleared."""
    writer = Writer(Layout(index_slots=16, index_entries=256))
    for number in range(40):
        writer.put("orders", b"x" * 40, queue_id=number % 2, keys=f"k{number}",
                   header=Header(sys_flag=0x1000 if number < count else 0))
    root = writer.write(tmp_path / "store")
    before = log_of(root)
    plan, joined = recovered(root)
    if count < 3:
        assert (len(plan["actions"]), joined) == (count, [])
    else:
        assert (plan["actions"], log_of(root)) == ([], before)
        assert {finding["category"] for finding in joined} == {"header-flag-bits"}
        assert any("no known release writes" in note for note in plan["notes"])
