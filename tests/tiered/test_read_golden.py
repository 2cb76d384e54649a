"""Reading the engine's tiers: every message, and every pull as a consumer makes it."""

from __future__ import annotations

import hashlib

import pytest

from rmqctl.ext.tiered.as_broker import get_message
from rmqctl.ext.tiered.as_broker.get_message import ReadAhead
from rmqctl.ext.tiered.read import messages
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.local import message
from tests.conftest import GoldenFolder, Runner
from tests.support import golden as golden_sets


@pytest.mark.parametrize("state", golden_sets.TIERS)
def test_all_messages(state: str, golden: GoldenFolder) -> None:
    with Tier.open(str(golden(state))) as tier:
        for flat in golden_sets.flat_files(golden(golden_sets.TIERED)):
            queue = tier.queue(flat["topic"], flat["queueId"])
            assert queue is not None
            assert (queue.min_offset, queue.commit_offset) == (flat["cqMin"], flat["cqCommit"])
            records = list(messages.messages(queue))
            assert not [record for record in records if isinstance(record, messages.MessageFault)]
            assert [(record.queue_offset, record.physical_offset, record.total_size,
                     hashlib.sha1(record.body).hexdigest(),
                     hashlib.sha1(message.build(record)).hexdigest()) for record in records
                    if not isinstance(record, messages.MessageFault)] == [
                (row[0], row[1], row[2], row[5], row[6]) for row in flat["messages"]]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("count", [1, 5, 32, 5000])
@pytest.mark.parametrize("state", golden_sets.TIERS)
def test_pulls(state: str, count: int, cached: bool, golden: GoldenFolder) -> None:
    with Tier.open(str(golden(state))) as tier:
        for flat in golden_sets.flat_files(golden(golden_sets.TIERED)):
            queue = tier.queue(flat["topic"], flat["queueId"])
            assert queue is not None
            cache = ReadAhead() if cached else None
            seen: list[get_message.Fetched] = []
            at = flat["cqMin"]
            while (pulled := get_message.get(
                    queue, at, count, cache=cache)).status == get_message.FOUND:
                assert pulled.next_offset == at + len(pulled.messages)
                assert 0 < len(pulled.messages) <= count
                seen += pulled.messages
                at = pulled.next_offset
            assert (pulled.status, at) == (get_message.OVERFLOW_ONE, flat["cqCommit"])
            assert [(fetched.queue_offset, fetched.offset, len(fetched.data), fetched.tags_code)
                    for fetched in seen] == [tuple(row[:4]) for row in flat["messages"]]


@pytest.mark.parametrize("state", golden_sets.TIERS)
def test_a_pull_reads_at_most_two_segments(state: str, golden: GoldenFolder) -> None:
    """A segment of these consumequeues holds 25 units, so no pull gives more than 50."""
    with Tier.open(str(golden(state))) as tier:
        for flat in golden_sets.flat_files(golden(golden_sets.TIERED)):
            queue = tier.queue(flat["topic"], flat["queueId"])
            assert queue is not None
            bases = [consume_queue_segment["baseOffset"] // 20
                     for consume_queue_segment in flat["consumeQueueSegments"]]
            bases.append(flat["cqCommit"])
            for number, base in enumerate(bases[:-1]):
                pulled = get_message.get(queue, base + 1, 4096)
                reach = bases[min(number + 2, len(bases) - 1)]
                assert pulled.next_offset <= reach
                # Fewer only where the messages lie in more than two segments of the log.
                if len(flat["commitLogSegments"]) <= 2:
                    assert pulled.next_offset == reach


@pytest.mark.parametrize("state", golden_sets.TIERS)
def test_the_command_shows_them(state: str, golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden(state)
    rows = rmqctl("tiered", "read", root, "-o", "jsonl").expect(0).jsonl()
    wanted = [(flat["topic"], flat["queueId"], row[0], row[1])
              for flat in sorted(golden_sets.flat_files(golden(golden_sets.TIERED)),
                                  key=lambda queue: (queue["topic"], queue["queueId"]))
              for row in flat["messages"]]
    assert [(row["topic"], row["queue_id"], row["queue_offset"], row["physical_offset"])
            for row in rows] == wanted
    assert all(row["crc_ok"] for row in rows)


def test_a_tiered_message_is_the_local_one_but_for_its_place(golden: GoldenFolder,
                                                             rmqctl: Runner) -> None:
    root = golden(f"{golden_sets.TIERED}/store")
    flat = golden_sets.flat_files(golden(golden_sets.TIERED))[0]
    words = ["--topic", flat["topic"], "--queue", str(flat["queueId"]), "-o", "jsonl"]
    there = rmqctl("tiered", "read", root, *words).expect(0).jsonl()
    here = rmqctl("read", root, *words).expect(0).jsonl()
    for row in (*there, *here):
        del row["physical_offset"], row["msg_id"]
    assert there == here


def test_the_tier_root_itself_and_its_metadata(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden(f"{golden_sets.TIERED}/store")
    flat = golden_sets.flat_files(golden(golden_sets.TIERED))[0]
    words = ["--topic", flat["topic"], "-o", "jsonl"]
    whole = rmqctl("tiered", "read", root, *words).expect(0).out
    assert rmqctl("tiered", "read", root / "tieredstore", *words).expect(0).out == whole
    assert rmqctl("tiered", "read", root / "tieredstore", *words, "--metadata",
                  root / "config/tieredStoreMetadata.json").expect(0).out == whole
    assert rmqctl("tiered", "read", root, *words, "--broker", "nobody").expect(2).out == ""


def test_selections(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden(f"{golden_sets.TIERED}/store")
    flat = golden_sets.flat_files(golden(golden_sets.TIERED))[0]
    words = ["tiered", "read", root, "--topic", flat["topic"], "-o", "jsonl"]
    rows = rmqctl(*words).expect(0).jsonl()
    tag = next(row["tags"] for row in rows if row["tags"])
    key = next(row["keys"][0] for row in rows if row["keys"])
    times = sorted(row["store_timestamp"] for row in rows)
    since, until = times[len(times) // 4], times[len(times) // 2]
    for extra, holds in (
        (["--tag", tag], lambda row: row["tags"] == tag),
        (["--key", key], lambda row: key in (*row["keys"], row["unique_key"])),
        (["--since", str(since), "--until", str(until)],
         lambda row: since <= row["store_timestamp"] <= until),
        (["--where", "total_size>400"], lambda row: row["total_size"] > 400),
        (["--queue", "1"], lambda row: row["queue_id"] == 1),
        (["--queue", "0", "--offset", "7"],
         lambda row: row["queue_id"] == 0 and row["queue_offset"] >= 7),
    ):
        wanted = [row for row in rows if holds(row)]
        assert wanted
        assert rmqctl(*words, *extra).expect(0).jsonl() == wanted, extra
        assert rmqctl(*words, *extra, "--count", "2").expect(0).jsonl() == wanted[:2]


def test_what_is_not_there(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden(f"{golden_sets.TIERED}/store")
    flat = golden_sets.flat_files(golden(golden_sets.TIERED))[0]
    topic, end = flat["topic"], flat["cqCommit"]
    no_topic = rmqctl("tiered", "read", root, "--topic", "nobody").expect(0)
    assert f"nobody is not in the tier; its topics: {topic}" in no_topic.err
    assert "no queue 77" in rmqctl("tiered", "read", root, "--topic", topic, "--queue",
                                   "77").expect(0).err
    behind = rmqctl("tiered", "read", root, "--topic", topic, "--queue", str(flat["queueId"]),
                    "--offset", str(end)).expect(0)
    assert f"OFFSET_OVERFLOW_ONE: offset {end} is the next to be written" in behind.err
    for wrong in (["--queue", "0"], ["--topic", topic, "--offset", "3"], ["--local", root],
                  ["--topic", topic, "--strategy", "force"]):
        rmqctl("tiered", "read", root, *wrong).expect(2)
    rmqctl("tiered", "read", root / "commitlog").expect(3)
    rmqctl("tiered", "read", root / "nowhere").expect(3)
