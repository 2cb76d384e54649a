"""Frames in a message's body are never messages, whatever befell the message around them.

The oracle is the writer: what is read, carved as in place, or there after a recovery must be what
was put; what nothing touched must be there; a message whose fields are proven elsewhere is kept.
"""

from __future__ import annotations

import base64
import random
import re
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.hostile import (
    BODIES,
    FILE_SIZE,
    FORGED,
    PLACES,
    STATES,
    Case,
    Hostile,
    build,
    damages,
)
from tests.adversary.writer import Header, Layout, Writer, field_places, record
from tests.support.cli import run
from tests.support.share import RUN, sample

PROVEN = ("total_size", "magic", "physical_offset", "body_length", "topic_length",
          "properties_length", "body_crc")
"""Fields that the others of a record tell, or its row."""
OFF_BY_ONE_BIT = Case("short-tail", "file-end", "flip:physical_offset:14", "nothing")


def body_of(row: dict[str, Any]) -> bytes:
    return (base64.b64decode(row["body"]) if row["body_encoding"] == "base64"
            else row["body"].encode())


def undecided(store: Hostile) -> int:
    """Of how many records nothing tells what they are."""
    cover = run("verify", store.folder, "-o", "json").expect(0, 1).json()["coverage"]
    return int(cover["messages_undecided"])


def judged(store: Hostile, rows: list[dict[str, Any]], left_out: int = 0) -> dict[int, bytes]:
    """The bodies given, by place; fails for one that nobody put, and for more than ``left_out``
    that are missing.
    """
    put = {record.physical: record.body for record in store.puts}
    bodies = {row["physical_offset"]: body_of(row) for row in rows}
    for place, body in bodies.items():
        if body.strip(b"\0"):  # a filler's body is zeros
            assert place in put, f"a frame in a body was given at {place}"
            assert body == put[place] or place in store.damaged
        assert place in put or FORGED not in body
    missing = [message.physical for message in store.intact
               if bodies.get(message.physical) != message.body]
    assert len(missing) <= left_out, f"intact messages are not given: {missing}"
    return bodies


def is_proven(case: Case) -> bool:
    """Whether the damaged message must be kept.

    A whole record behind the log's last message which says a place some files away may be of the
    file's earlier life, unless a row or an index entry knows better.
    """
    kind, *rest = case.damage.split(":")
    if kind != "flip" or rest[0] not in PROVEN:
        return False
    return not (rest[0] == "physical_offset" and int(rest[1]) >= 14 and case.place == "last"
                and case.state in ("nothing", "lagging"))


def check(case: Case, folder: Path) -> None:
    store = build(folder / "store", case)
    read = ("-o", "jsonl", "--body", "base64")
    unclear = undecided(store)
    judged(store, run("read", store.folder, *read).jsonl(), unclear)
    inside = store.outer.body_at - store.outer.body_at % 64 + 64
    part = run("read", store.folder, "--from-phy", str(inside), *read).jsonl()
    put = {message.physical for message in store.puts}
    assert {row["physical_offset"] for row in part} <= put
    carving = run("carve", store.folder, *read)
    left_out = re.search(r"(\d+) intact records? inside", carving.err)
    judged(store, [row for row in carving.jsonl()
                   if row.get("placement", "in-place") == "in-place"],
           max(unclear, int(left_out[1]) if left_out else 0))
    started = run("preflight", store.folder, "-o", "json").expect(0, 1).json()
    # Undecided records before the end that the start gives the log may be lost messages.
    assert started["messages_lost"] <= len(store.puts) + started["messages_undecided"]
    shape = ("--index-slots", "16", "--index-max", "256")
    plan = run("recover", store.folder, *shape, "-o", "json").expect(0, 1).json()
    choice = ("--ambiguous", "leave-out") if plan["messages_undecided"] else ()
    run("recover", store.folder, *shape, *choice, "--apply", "--yes").expect(0, 1)
    after = judged(store, run("read", store.folder, *read).jsonl(), plan["messages_undecided"])
    if is_proven(case):
        assert after.get(store.outer.physical) == store.outer.body, "the message itself is lost"
        verdict = run("verify", store.folder, *shape, "-o", "json").json()
        assert [finding for finding in verdict["findings"] if finding["severity"] != "info"] == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("body", "state"), sample(product(BODIES, STATES), 2, "forged"))
def test_forged(body: str, state: str, place: str, tmp_path: Path) -> None:
    """Two kinds of damage each, in an exhaustive run 25 of the 300 there are."""
    which = random.Random(RUN.number(f"{body} {state} {place}"))
    for damage in which.sample(list(damages(place)), 25 if RUN.exhaustive else 2):
        check(Case(body, place, damage, state), tmp_path / damage.replace(":", "."))


@pytest.mark.parametrize("case", [
    Case("own-queue", "middle", "flip:properties_length:3", "no-queues"),
    Case("padded", "last", "flip:properties_length:0", "lagging"),
    Case("padded", "last", "flip:properties_length:2", "lagging"),
], ids=str)
def test_a_length_is_blamed_where_the_size_would_cut_the_properties(case: Case, tmp_path: Path
                                                                    ) -> None:
    """Found by ``test_forged`` with seed 743983499."""
    check(case, tmp_path)


LARGE = [*product(("total_size", "body_length"), range(20)),
         *product(("topic_length",), range(8)), *product(("properties_length",), range(15))]


@pytest.mark.parametrize(("place", "field", "bit"), sample([
    (place, *flip) for place, flip in product(("middle", "last"), LARGE)], 6, "large bodies",
    always=[("middle", "topic_length", 0), ("last", "properties_length", 4)]))
def test_a_length_of_a_record_with_a_large_body(place: str, field: str, bit: int, tmp_path: Path,
                                                ) -> None:
    """Nothing but the record itself tells its lengths, and two of them are far from its start."""
    writer = Writer(Layout(with_queues=False, with_index=False, log_file_size=1 << 20), seed=2)
    writer.put("orders", b"before", keys="k1")
    body = random.Random(bit).randbytes(100_000)
    hit = writer.put("orders", body, keys="k2", tags="red")
    after = [writer.put("orders", b"after", keys="k3") for _ in range(3 * (place == "middle"))]
    at, width = field_places(hit.raw)[field]
    writer.flip(hit.physical + at + width - 1 - bit // 8, bit % 8)
    folder = writer.write(tmp_path / "store")
    run("recover", folder, "--apply", "--yes").expect(0, 1)
    rows = {row["physical_offset"]: row for row in run(
        "read", folder, "-o", "jsonl", "--body", "base64").jsonl()}
    assert rows.keys() >= {hit.physical, *(put.physical for put in after)}
    assert body_of(rows[hit.physical]) == body
    assert "RMQCTL" not in rows[hit.physical]["properties"]


def test_a_flipped_bit_in_an_offset_costs_nothing(tmp_path: Path) -> None:
    """Found by ``test_forged[short-tail-nothing-file-end]`` with seed 41939863."""
    check(OFF_BY_ONE_BIT, tmp_path)


@pytest.mark.parametrize("body", sorted(BODIES))
def test_lengths_that_leave_no_room_for_the_blank(body: str, tmp_path: Path) -> None:
    """A message with a byte more would end 7 bytes before the file does: it never was so long."""
    for damage in ("flip:properties_length:0", "flip:total_size:0"):
        check(Case(body, "file-end", damage, "queue-gone"), tmp_path / damage.replace(":", "."))


@pytest.mark.parametrize("left", [1, 7])
def test_too_few_bytes_for_a_blank(left: int, tmp_path: Path) -> None:
    """A whole message that no engine puts there stays, and so does what lies behind it."""
    writer = Writer(Layout(log_file_size=FILE_SIZE, with_queues=False, with_index=False))
    fixed = writer.put("orders", b"").size
    last = writer.put("orders", bytes(writer.room() - fixed - 8))
    behind = writer.put("orders", b"in the next file")
    properties = last.raw[field_places(last.raw)["properties_length"][0] + 2:]
    longer = record("orders", last.body + b"+" * (8 - left), properties, 0, 1, last.physical,
                    Header(), last.time)
    assert last.physical + len(longer) == FILE_SIZE - left
    writer.write(tmp_path)
    log = tmp_path / "commitlog" / f"{0:020d}"
    content = log.read_bytes()
    log.write_bytes(content[:last.physical] + longer + b"\x07" * left)
    applied = run("recover", tmp_path, "--apply", "--yes").expect(0, 1)
    assert f"physical offset {FILE_SIZE - left} are too short for an end-of-file record" in re.sub(
        r"\s+", " ", applied.out + applied.err)
    assert log.read_bytes()[last.physical:] == longer + b"\x07" * left
    counts = {row["physical_offset"]: len(body_of(row)) for row in run(
        "read", tmp_path, "-o", "jsonl", "--body", "base64").jsonl()}
    assert counts[last.physical] == len(last.body) + 8 - left
    assert behind.physical in counts


@pytest.mark.parametrize("state", sample(STATES, 3, "forged and random damage"))
def test_random_damage(state: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    for number in range(200 if RUN.exhaustive else 3):
        case = Case(chance.choice(list(BODIES)), chance.choice(PLACES),
                    f"random:{seed + number}", state)
        check(case, tmp_path / str(number))


@pytest.mark.parametrize("body", ["chain", "straddle", "nested"])
@pytest.mark.parametrize("place", ["middle", "last"])
def test_where_nothing_tells_it_is_left_for_a_choice(body: str, place: str,
                                                     tmp_path: Path) -> None:
    """No head, no row, no index entry: the frames may be messages, for all that is known."""
    store = build(tmp_path / "store", Case(body, place, "zeros", "nothing"))
    read = ("-o", "jsonl", "--body", "base64")
    judged(store, run("read", store.folder, *read).expect(1).jsonl(), undecided(store))
    findings = run("verify", store.folder, "-o", "json").json()["findings"]
    unclear = [finding for finding in findings if finding["category"] == "ambiguous"]
    inside = range(store.outer.physical, store.outer.end)
    assert [finding["offset"] in inside for finding in unclear] == [True]
    plan = run("recover", store.folder, "-o", "json").expect(1)
    assert "--ambiguous keep" in plan.out + plan.err
    assert plan.json()["ambiguous"] > 0
    run("recover", store.folder, "--ambiguous", "keep", "--apply", "--yes").expect(0, 1)
    kept = run("read", store.folder, *read).jsonl()
    assert any(FORGED in body_of(row) and row["topic"] == "evil" for row in kept)


CLAIMED = [("padded", "last", "tear:topic:flip"), ("padded", "last", "tear:frames:flip"),
           ("padded", "last", "tear:body-end:flip"), ("straddle", "file-end", "random:17"),
           ("nested", "last", "tear:frames:flip"), ("chain", "last", "tear:properties:flip"),
           ("own-queue", "last", "flip:total_size:10"), ("straddle", "last", "flip:magic:8"),
           ("blank", "file-end", "flip:total_size:22"), ("repeated", "last", "tear:topic")]
"""Bodies and damages of which a file by itself, or an image, gave frames as messages."""


@pytest.mark.parametrize(("body", "place", "damage"), CLAIMED)
def test_where_no_store_is_around(body: str, place: str, damage: str, tmp_path: Path) -> None:
    """What a damaged record says to be its own holds no messages: `dump` of a file, `carve` of
    files without a store, and of an image.
    """
    store = build(tmp_path / "store", Case(body, place, damage, "nothing"))
    put = {message.physical for message in store.puts}
    alone = tmp_path / "alone"
    shutil.copytree(store.folder / "commitlog", alone)
    files = sorted(alone.iterdir())
    image = tmp_path / "image"
    image.write_bytes(b"\1" * 4096 + b"".join(file.read_bytes() for file in files) + b"\1" * 999)
    dumped = {row["physical_offset"] for file in files
              for row in run("dump", file, "-o", "jsonl").jsonl() if "physical_offset" in row}
    assert dumped <= put
    if damage.startswith("random"):
        return  # nothing tells of the size: all that follows may be its body
    assert {message.physical for message in store.intact} <= dumped
    for source in (alone, image):
        rows = run("carve", source, "-o", "jsonl", "--body", "none").jsonl()
        given = {row["physical_offset"] for row in rows if row["placement"] == "in-place"}
        assert given <= put
        assert {message.physical for message in store.intact} <= given


def test_a_row_proves_what_was_written_over_a_torn_record(tmp_path: Path) -> None:
    """Rows lead to messages inside of what a torn record's size takes in: they are messages."""
    writer = Writer(Layout(log_file_size=FILE_SIZE))
    writer.put("orders", b"first")
    torn = writer.put("orders", b"t" * 2000, row=False, indexed=False)
    base = min(writer.log)
    writer.log[base] = writer.log[base][:torn.physical + 300]
    writer.next_offset["orders", 0] = 1
    later = [writer.put("orders", b"later %d" % number) for number in range(3)]
    folder = writer.write(tmp_path / "store")
    physical_offsets = {row["physical_offset"]
                        for row in run("read", folder, "-o", "jsonl").jsonl()}
    assert {message.physical for message in later} <= physical_offsets


def without_rows(writer: Writer, folder: Path) -> Path:
    store = writer.write(folder)
    for derived in ("consumequeue", "index"):
        shutil.rmtree(store / derived)
    return store


@pytest.mark.parametrize("bit", [0, 6, 12, 13, 21, 31])
def test_an_empty_body_is_proven_by_its_crc_too(bit: int, tmp_path: Path) -> None:
    """One bit of its length is turned, and neither rows nor index are left: what follows stays."""
    writer = Writer(Layout(log_file_size=16 << 10))
    for number in range(20):
        writer.put("orders", b"x" * 40 * (number % 3), keys=f"k{number}")
    hit = writer.puts[3]
    assert not hit.body
    writer.flip(hit.body_at - 1 - bit // 8, bit % 8)
    store = without_rows(writer, tmp_path / "s")
    read = run("read", store, "--fields", "physical_offset", "-o", "jsonl").expect(1)
    assert [message["physical_offset"] for message in read.jsonl()] == [
        put.physical for put in writer.puts if put is not hit]


def test_what_a_torn_record_may_have_swallowed_is_told(tmp_path: Path) -> None:
    """Its size leads to the next message, the length of its body behind the last one."""
    writer = Writer(Layout(log_file_size=16 << 10))
    for number in range(10):
        writer.put("orders", b"x" * 40, keys=f"k{number}")
    hit = writer.puts[0]
    writer.flip(hit.body_at - 2, 5)  # 8 KiB more
    writer.flip(hit.body_at + 3)
    store = without_rows(writer, tmp_path / "s")
    findings = run("verify", store, "-o", "json").expect(1).json()["findings"]
    assert [(finding["offset"], finding["count"]) for finding in findings
            if finding["category"] == "ambiguous"] == [
                (writer.puts[1].physical, 9)]
