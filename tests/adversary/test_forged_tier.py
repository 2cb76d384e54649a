"""Frames in a message's body are never messages of a tier, whatever befell the message around them.

The oracle is the writer: what is read, counted, or there after `commit` and `recover` must be what
was put, at its queue offset; what nothing touched must be there, unless its absence is said to be
ambiguous; a message whose unit or whose other fields prove it is kept.
"""

from __future__ import annotations

import base64
import random
import shutil
import struct
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.spark.source.tiered import RecordPiece, TierQueue
from rmqctl.ext.tiered.tier import Tier
from tests.adversary.hostile import FORGED, Case, Hostile
from tests.adversary.hostile_tier import (
    BODIES,
    PLACES,
    STATES,
    build,
    damages,
)
from tests.adversary.tier_writer import QUEUE, TOPIC, TierWriter
from tests.adversary.writer import frame, framed
from tests.support.cli import run
from tests.support.share import RUN, sample

READ = ("-o", "jsonl", "--body", "base64")
PROVEN = ("total_size", "magic", "physical_offset", "body_length", "topic_length",
          "properties_length")
"""Fields that the others of a record tell, or its unit."""


def read(tier: Path) -> dict[int, dict[str, Any]]:
    rows = run("tiered", "read", tier, *READ).jsonl()
    return {row["queue_offset"]: row for row in rows}


def body_of(row: dict[str, Any]) -> bytes:
    return (base64.b64decode(row["body"]) if row["body_encoding"] == "base64"
            else row["body"].encode())


def judged(store: Hostile, rows: dict[int, dict[str, Any]]) -> set[int]:
    """The queue offsets given; fails for a message that nobody put, or at another place."""
    put = {record.queue_offset: record for record in store.puts}
    for queue_offset, row in rows.items():
        body = body_of(row)
        assert queue_offset in put, f"a frame in a body was given as queue offset {queue_offset}"
        record = put[queue_offset]
        assert record.physical in store.damaged or (
            row["physical_offset"], body) == (record.physical, record.body), "a frame was given"
        assert row["total_size"] == record.size
    return set(rows)


def is_proven(case: Case) -> bool:
    """Whether the damaged message must be kept, as far as its own queue goes."""
    kind, *rest = case.damage.split(":")
    return kind == "flip" and rest[0] in PROVEN


def check(case: Case, folder: Path) -> None:
    store = build(folder / "store", case)
    tier, puts = store.folder, {put.physical: put for put in store.puts}
    intact = {message.queue_offset for message in store.intact}
    # What is there is given by its units, and nothing else.
    given = judged(store, read(tier))
    if case.state in ("whole", "no-metadata"):
        assert intact <= given
    # A place inside of the message leads to no frame.
    for at in (store.outer.body_at + 1, store.outer.body_at + len(store.outer.body) // 2):
        result = run("tiered", "query", "offset", tier, "--topic", TOPIC, "--queue", str(QUEUE),
                     "--phy", str(at), "--containing", "-o", "json", "--body", "base64")
        if result.code == 0:
            row = result.json()
            row = row[0] if isinstance(row, list) else row
            assert row["physical_offset"] in puts
    # What is counted is no more than there is.
    counted = run("tiered", "verify", tier, "-o", "json").expect(0, 1).json()
    assert "tiered-shifted" not in {finding["category"] for finding in counted["findings"]}
    coverage = counted["coverage"]
    assert coverage["messages"] + coverage["orphans"] <= len(puts)
    stats = run("tiered", "stats", tier, "-o", "json").expect(0).json()
    assert stats["orphans"]["messages"] + stats["total"]["messages"] <= len(puts)
    # What an upload left is completed with messages only.
    if case.state != "no-metadata":
        copy = folder / "copy"
        shutil.copytree(tier.parent, copy)
        run("tiered", "commit", copy / "tieredstore", "-o", "json")
        after = judged(store, read(copy / "tieredstore"))
        assert given <= after
    # What is recovered is what was put.
    named = ("--metadata",
             str(tier.parent / "config" / "tieredStoreMetadata.json"))
    plan = recover(tier, *named, "--apply", "--yes").expect(0, 1).json()
    after = judged(store, read(tier))
    missing = intact - after
    if case.state == "unit-gone":
        missing -= {store.outer.queue_offset}
    if plan.get("ambiguous"):
        # A torn message whose unit leads beyond the end tells of frames in it no more than that.
        assert case.damage.startswith(("tear", "random")) or case.state in (
            "no-units", "nothing", "unit-gone", "units-flipped", "lagging")
        assert any(finding["category"] == "ambiguous" for finding in counted["findings"])
    else:
        assert not missing, f"intact messages are lost: {sorted(missing)}"
    if is_proven(case) and not plan.get("ambiguous"):
        row = read(tier).get(store.outer.queue_offset)
        assert row is not None, "the message itself is lost"
        assert body_of(row) == store.outer.body
    again = recover(tier, *named).expect(0, 1).json()
    assert again["actions"] == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("body", "state"), sample(product(BODIES, STATES), 2, "forged tier"))
def test_forged(body: str, state: str, place: str, tmp_path: Path) -> None:
    which = random.Random(RUN.number(f"{body} {state} {place}"))
    for damage in which.sample(list(damages(place)), 20 if RUN.exhaustive else 1):
        check(Case(body, place, damage, state), tmp_path / damage.replace(":", "."))


@pytest.mark.parametrize("state", ["whole", "units-flipped", "lagging"])
@pytest.mark.parametrize("damage", ["tear:frames", "tear:frames:flip"])
def test_a_torn_message_is_not_made_shorter(damage: str, state: str, tmp_path: Path) -> None:
    """One other bit in two lengths would make a message of what was written of it."""
    check(Case("shifted", "last", damage, state), tmp_path)


@pytest.mark.parametrize("bit", [0, 3, 4])
@pytest.mark.parametrize("body", ["twice", "short-tail"])
def test_a_queue_offset_before_a_coda(body: str, bit: int, tmp_path: Path) -> None:
    """The segment's coda is between the damaged message and the next one (seed 918273645)."""
    case = Case(body, "segment-end", f"flip:queue_offset:{bit}", "no-metadata")
    check(case, tmp_path)
    assert {row["queue_offset"] for row in read(tmp_path / "store" / "tieredstore").values()} == {
        *range(3, 16)}


def test_a_place_and_a_time_are_set_right_at_once(tmp_path: Path) -> None:
    """A second repair found the time only after the place was right (seed 918273645)."""
    check(Case("coda", "middle", "random:3905382200", "unit-gone"), tmp_path)


@pytest.mark.parametrize("state", sample(STATES, 2, "forged tier and random damage"))
def test_random_damage(state: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    for number in range(100 if RUN.exhaustive else 2):
        case = Case(chance.choice(list(BODIES)), chance.choice(PLACES),
                    f"random:{seed + number}", state)
        check(case, tmp_path / str(number))


def recover(tier: Path, *options: str) -> Any:
    return run("tiered", "recover", tier, *options, "-o", "json")


@pytest.mark.parametrize("coda", [False, True])
def test_what_the_writer_makes_is_sound(coda: bool, tmp_path: Path) -> None:
    writer = TierWriter(first=3, coda=coda)
    for number in range(20):
        if number in (4, 11):
            writer.roll()
        writer.put(framed([frame(TOPIC, FORGED, number, queue_id=QUEUE)]), keys=f"k{number} all",
                   tags="A")
    tier = writer.write(tmp_path / "store")
    verdict = run("tiered", "verify", tier, "-o", "json").expect(0).json()
    assert verdict["findings"] == []
    assert verdict["coverage"]["messages"] == len(writer.puts)
    assert verdict["coverage"]["items_proven"] == len(writer.items)
    assert recover(tier).expect(0).json()["actions"] == []


@pytest.mark.parametrize("body", ["own", "straddle", "nested"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_where_nothing_tells_it_is_left_for_a_choice(body: str, place: str,
                                                     tmp_path: Path) -> None:
    """No head, no unit, no index item, and the log is still written to: frames may be messages."""
    store = build(tmp_path / "store", Case(body, place, "zeros", "nothing"))
    findings = run("tiered", "verify", store.folder, "-o", "json").json()["findings"]
    unclear = [finding for finding in findings if finding["category"] == "ambiguous"]
    assert [finding["offset"] in range(store.outer.physical, store.outer.end)
            for finding in unclear] == [True]
    before = [put.physical for put in store.puts if put.physical < store.outer.physical]
    for options in ((), ("--drop-orphans",)):
        plan = recover(store.folder, *options).expect(1)
        assert "--ambiguous keep" in plan.err
        assert plan.json()["ambiguous"] == unclear[0]["count"] > 0
        assert not [action for action in plan.json()["actions"] if action["action"] == "cut"]
    refused = run("tiered", "commit", store.folder, "-o", "json").expect(1).json()
    assert [refusal["status"] for refusal in refused] == ["refused"]
    recover(store.folder, "--apply", "--yes").expect(1)
    assert [row["physical_offset"] for row in read(store.folder).values()] == before
    recover(store.folder, "--ambiguous", "keep", "--apply", "--yes").expect(0)
    assert any(FORGED in body_of(row) for row in read(store.folder).values())
    assert recover(store.folder).expect(0).json()["actions"] == []


def test_a_full_segment_proves_no_message_at_its_end(tmp_path: Path) -> None:
    """Nothing but the files is left: what follows the damage reaches just to where the next segment
    begins, but more may be lost than the frames.
    """
    store = build(tmp_path / "store", Case("padded", "middle", "zeros", "nothing"))
    plan = recover(store.folder, "--apply", "--yes").expect(1).json()
    given = judged(store, read(store.folder))
    assert len({message.queue_offset for message in store.intact} - given) == plan["ambiguous"] == 5


def test_a_torn_upload_is_cut_with_the_frames_in_it(tmp_path: Path) -> None:
    """The message that was being written says to end behind the log: what is in it is its body."""
    store = build(tmp_path / "store", Case("own", "last", "tear:topic", "lagging"))
    done = run("tiered", "commit", store.folder, "-o", "json").expect(0).json()
    assert [(action["units_added"], action["status"]) for action in done] == [(0, "completed")]
    given = judged(store, read(store.folder))
    assert given == {action.queue_offset for action in store.intact}
    assert run("tiered", "verify", store.folder, "-o", "json").expect(0).json()["findings"] == []


def test_a_unit_that_leads_to_just_before_its_message_is_set_right(tmp_path: Path) -> None:
    """16 bytes before, where a coda might lie and none does."""
    writer = TierWriter()
    for number in range(4):
        writer.put(b"message %d" % number)
    place = writer.puts[2].physical
    writer.units[2] = (place - 16).to_bytes(8, "big") + writer.units[2][8:]
    tier = writer.write(tmp_path / "store")
    recover(tier, "--apply", "--yes").expect(0)
    assert [row["physical_offset"] for row in read(tier).values()] == [
        put.physical for put in writer.puts]


def test_an_index_item_proves_a_message(tmp_path: Path) -> None:
    """Without a consume queue, and nothing left of the damaged message's head, the keys of the
    messages behind it tell that they are messages.
    """
    store = build(tmp_path / "store", Case("own", "first", "zeros", "no-units"))
    recover(store.folder, "--apply", "--yes").expect(0)
    given = judged(store, read(store.folder))
    assert {message.queue_offset for message in store.intact} <= given
    assert recover(store.folder).expect(0).json()["actions"] == []


@pytest.mark.parametrize("damaged", ["unit", "item"])
def test_what_is_damaged_and_leads_into_a_body(damaged: str, tmp_path: Path) -> None:
    """A unit, or an index item, that leads to just where a frame lies, which is like the message
    that it was of.
    """
    writer = TierWriter()
    writer.put(b"first")
    false = frame(TOPIC, FORGED, 2, queue_id=QUEUE, properties={"UNIQ_KEY": "wanted"})
    around = writer.put(framed([false], before=b"lead", after=b"rest"))
    place, size = around.body_at + 4, len(false.at(0))
    last = writer.put(b"gen", properties_raw=b"UNIQ_KEY\x01wanted\x02KEYS\x01\x02")
    if damaged == "unit":
        writer.units[2] = struct.pack(">qiq", place, size, 0)
    else:
        writer.items = [(code, place, size, time) if at == last.physical
                        else (code, at, length, time) for code, at, length, time in writer.items]
    tier = writer.write(tmp_path / "store")
    assert set(read(tier)) == ({0, 1} if damaged == "unit" else {0, 1, 2})
    at = ("--topic", TOPIC, "--queue", str(QUEUE), "--offset", "2")
    assert FORGED.decode() not in run("tiered", "query", "offset", tier, *at).out
    by_place = (*at[:4], "--phy", str(place))
    assert run("tiered", "query", "offset", tier, *by_place).expect(1).out == ""
    key = ("--topic", TOPIC, "--key", "wanted", "-o", "json")
    assert FORGED.decode() not in run("tiered", "query", "key", tier, *key).expect(0, 1).out
    findings = run("tiered", "verify", tier, "-o", "json").expect(1).json()["findings"]
    assert ("tiered-cq-unit" if damaged == "unit" else "tiered-index-item") in {
        finding["category"] for finding in findings}
    recover(tier, "--apply", "--yes").expect(0)
    assert [row["physical_offset"] for row in read(tier).values()] == [
        put.physical for put in writer.puts]


def test_rows_of_all_that_lies_in_a_commit_log(tmp_path: Path) -> None:
    """The data source's table of records, whether units lead there or not."""
    store = build(tmp_path / "store", Case("own", "middle", "flip:magic:3", "whole"))
    given: set[int] = set()
    with Tier.open(str(store.folder)) as tier:
        for queue in tier.queues():
            about = TierQueue(str(store.folder), str(store.folder), queue.name.cluster,
                              queue.name.broker, TOPIC, QUEUE, queue.commit_log.folder,
                              queue.consume_queue.folder, ())
            for segment in queue.commit_log.segments:
                for _, batch in RecordPiece(about, segment, 0, segment.usable).batches():
                    given |= set(batch.offset.tolist())
    assert given == {message.physical for message in store.intact}
