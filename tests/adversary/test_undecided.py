"""Damage of which nothing is left that says how long the record was, in logs without entries: what
may be a message or bytes of a body is undecided. It is counted everywhere, and never dropped or
published before its owner has said what it is.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rmqctl.scan.walk import Walk
from rmqctl.store.store import Sizes, Store
from tests.adversary.hostile import FORGED
from tests.adversary.writer import Layout, Put, Writer, field_places, frame, framed
from tests.support import snapshot
from tests.support.cli import run

JSON = ("-o", "json")
SIZES = ("--index-slots", "64", "--index-max", "20000", "--consumequeue-file-size", "40000")
MIB = 1 << 20


def bare(file_size: int, *, rows: bool = False) -> Writer:
    """Nothing but the log is written; with ``rows`` consume queues too."""
    return Writer(Layout(log_file_size=file_size, with_queues=rows, with_index=False), seed=3)


def orders(writer: Writer, count: int, topics: int = 1, queues: int = 4) -> list[Put]:
    return [writer.put(f"t{number * 7 % topics}", b"order %06d " % number * (8 + number * 5 % 17),
                       queue_id=number * 11 % queues, keys=f"k{number}")
            for number in range(count)]


def zeroed(writer: Writer, puts: Iterable[Put], at: int, length: int) -> list[Put]:
    """The messages that are not hit."""
    writer.patch(at, bytes(length))
    return [put for put in puts if put.end <= at or put.physical >= at + length]


def undecided(store: Path) -> int:
    count: int = run("verify", store, *JSON).expect(0, 1).json()["coverage"]["messages_undecided"]
    return count


def given(store: Path) -> dict[int, dict[str, Any]]:
    return {row["physical_offset"]: row for row in run("read", store, "-o", "jsonl").jsonl()}


@pytest.mark.long
@pytest.mark.parametrize("length", [4096, 512, 88])
def test_a_hole_in_a_log_as_short_as_one_record(length: int, tmp_path: Path) -> None:
    """All that follows could be the body of the message that is gone, torn at the log's end."""
    writer = bare(MIB)
    puts = orders(writer, 2000)
    at = puts[300].physical
    whole = zeroed(writer, puts, at, length)
    store = writer.write(tmp_path / "store")
    behind = [put for put in whole if put.physical > at]
    # Counted by all that look.
    assert undecided(store) == len(behind)
    start = run("preflight", store, *JSON).expect(1).json()
    assert (start["messages_lost"], start["messages_undecided"]) == (len(behind), len(behind))
    doctor = run("doctor", store, *JSON).expect(1).json()
    assert (doctor["would_lose"], doctor["messages_undecided"]) == (len(behind), len(behind))
    stats = run("stats", store, *JSON).expect(1).json()
    assert (stats["total"]["messages"], stats["messages_undecided"]) == (300, len(behind))
    asked = run("sql", store, "SELECT count(*) AS n FROM messages", "-o", "jsonl").expect(1)
    assert (asked.jsonl(), f"{len(behind):,} undecided records" in asked.err) == (
        [{"n": 300}], True)
    # Nothing is done before somebody has decided.
    plan = run("recover", store, *SIZES, *JSON).expect(1).json()
    assert plan["messages_undecided"] == len(behind)
    assert plan["next"][0].endswith("--ambiguous keep")
    assert plan["assumed"] == {"largest_record": 4 * MIB + (64 << 10)}
    before = snapshot.take(store, inodes=False)
    refused = run("recover", store, *SIZES, "--apply", "--yes").expect(6)
    assert [line for line in before.differences(snapshot.take(store, inodes=False))
            if not line.startswith("changed: . (")] == []
    assert "--ambiguous keep or --ambiguous leave-out" in refused.err
    # All of them are messages, or as few as could be in such a record.
    small = run("recover", store, *SIZES, "--max-message-size", "32KiB", *JSON).expect(1).json()
    assert small["messages_undecided"] < 60
    done = run("recover", store, *SIZES, "--ambiguous", "keep", "--apply", "--yes", *JSON)
    assert done.expect(1).json()["messages_undecided"] == 0
    places_given = given(store)
    assert all(places_given[put.physical]["total_size"] == put.size for put in whole)
    assert run("verify", store, *SIZES, *JSON).expect(0).json()["ok"]


@pytest.mark.long
@pytest.mark.parametrize(("file_size", "topics", "queues"), [
    (8 * MIB, 1, 1), (8 * MIB, 3, 4), (8 * MIB, 50, 8), (MIB, 3, 4)])
def test_of_a_long_log_few_records_stay_undecided(file_size: int, topics: int, queues: int,
                                                  tmp_path: Path) -> None:
    writer = bare(file_size)
    puts = orders(writer, 20_000, topics, queues)
    holes = [(puts[number].body_at + 9, length) for number, length in (
        (1700, 4096), (2000, 512), (3400, 4096), (6000, 4096))]
    whole = puts
    for at, length in holes:
        whole = zeroed(writer, whole, at, length)
    store = writer.write(tmp_path / "store")
    count = undecided(store)
    assert 0 < count < 45 * len(holes)
    place = given(store)
    assert len({put.physical for put in whole} - set(place)) == count
    assert set(place) <= {put.physical for put in whole}


def test_entries_prove_what_follows(tmp_path: Path) -> None:
    writer = bare(MIB, rows=True)
    puts = orders(writer, 600)
    whole = zeroed(writer, puts, puts[300].physical, 4096)
    store = writer.write(tmp_path / "store")
    assert undecided(store) == 0
    assert set(given(store)) == {put.physical for put in whole}


def test_the_next_file_tells_how_many_are_missing(tmp_path: Path) -> None:
    """The damaged one ends in its file, and the next one begins with a message."""
    writer = bare(64 << 10)
    puts = orders(writer, 600)
    at = next(put.physical for put in puts if put.physical > 20_000)
    whole = zeroed(writer, puts, at, 512)
    store = writer.write(tmp_path / "store")
    assert 0 < undecided(store) < 12
    assert len({put.physical for put in whole} - set(given(store))) == undecided(store)


def forger(writer: Writer, at: int, count: int) -> tuple[Put, bytes]:
    """A message with frames in its body that say its own topic, queue and properties, and the next
    queue offsets; the last of them ends where the message does.
    """
    properties = "UNIQ_KEY\x01F\x02"

    def put_message(body: bytes | Any) -> Put:
        return writer.put("t0", body, queue_id=1, properties_raw=properties.encode())

    first = writer.next_offset.get(("t0", 1), 0) + at
    frames = [frame("t0", FORGED + b" %d" % number, first + number, queue_id=1,
                    properties={"UNIQ_KEY": "F"}) for number in range(count)]
    put = put_message(framed(frames, before=b"x" * 60))
    # Without the topic and the properties of the last frame: the message's own stand for them.
    return put, framed(frames)(0)


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("zeroed_bytes", [88, 120])
def test_forged_frames_are_never_given(files: int, derived: bool, zeroed_bytes: int,
                                       tmp_path: Path) -> None:
    writer = bare(64 << 10, rows=derived)
    before = orders(writer, 60)
    outer, _ = forger(writer, 1, 7)
    behind = orders(writer, 60 if files == 1 else 400)
    whole = [*before, *behind]
    writer.patch(outer.physical, bytes(zeroed_bytes))
    store = writer.write(tmp_path / "store")
    if derived:  # of the forger's own queue no entry is left
        shutil.rmtree(store / "consumequeue" / "t0" / "1")
    for options in ((), ("--ambiguous", "leave-out")):
        if options:
            run("recover", store, *SIZES, *options, "--apply", "--yes").expect(0, 1)
        place = given(store)
        assert set(place) <= {put.physical for put in [*whole, outer]}
        assert not [row for row in place.values() if FORGED.decode() in str(row["body"])]
        count = undecided(store)
        if not options:
            assert len({put.physical for put in whole} - set(place)) <= count


@pytest.mark.long
@pytest.mark.parametrize("content", [b"", bytes(700), b"word " * 30], ids=len)
def test_no_size_that_is_wrong_hides_what_follows(content: bytes, tmp_path: Path) -> None:
    """A message says another size, and its topic or body is damaged too: whatever is there in its
    end's place, those behind it are messages or undecided.
    """
    writer = bare(64 << 10)
    for number in range(40):
        writer.put(f"topic{number % 2}", (b"", bytes(300), content)[number % 3], keys=f"k{number}")
    hit = writer.puts[8]
    behind = {put.physical for put in writer.puts[9:]}
    size, length = len(hit.raw), field_places(hit.raw)["topic_length"][0]
    store = writer.write(tmp_path / "store")
    log = store / "commitlog" / f"{0:020d}"
    raw = log.read_bytes()
    for damaged in (length, length + 2, hit.body_at - hit.physical + 1):
        for more in (*range(1, 400, 7), 512, 1024, 2048, 8192):
            new = bytearray(raw)
            new[hit.physical:hit.physical + 4] = struct.pack(">i", size + more)
            new[hit.physical + damaged] ^= 0x55
            log.write_bytes(new)
            with (Store.open(str(store), (), Sizes(64 << 10)) as opened,
                  opened.log.files[0].open() as source):
                seen = {place for batch in Walk(source) for place in (
                    *batch.offset.tolist(), *(range_ for span in batch.spans
                                              for range_, _ in span.doubtful))}
            assert behind <= seen, (damaged, more, sorted(behind - seen))
