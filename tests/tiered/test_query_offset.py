"""Single messages of a tier: by queue offset, by place, and a pull's answer in a broker's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import GoldenFolder, Runner
from tests.support import golden as golden_sets
from tests.support.share import every
from tests.tiered.tiers import TOPIC, Queue

STATES = [golden_store.id for golden_store in golden_sets.golden_stores()
          if golden_store.kind == "tiered"]


@pytest.mark.long
@pytest.mark.parametrize("state", STATES)
def test_every_message_both_ways(state: str, golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden(state)
    rows = rmqctl("tiered", "read", root, "-o", "jsonl").jsonl()
    for row in every(33, rows, "rows of a tier"):
        words = ["tiered", "query", "offset", root, "--topic", row["topic"], "--queue",
                 str(row["queue_id"]), "-o", "jsonl"]
        assert rmqctl(*words, "--offset", str(row["queue_offset"])).expect(0).jsonl() == [row]
        place = row["physical_offset"]
        assert rmqctl(*words, "--phy", str(place)).expect(0).jsonl() == [row]
        for inside in (place, place + 1, place + row["total_size"] - 1):
            assert rmqctl(*words, "--phy", str(inside), "--containing").expect(0).jsonl() == [row]
        beside = rmqctl(*words, "--phy", str(place + 1)).expect(1)
        assert f"It is inside the message at {place}" in beside.err


def test_a_pull_in_a_brokers_words(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden(STATES[0])
    row = rmqctl("tiered", "read", root, "--count", "1", "-o", "jsonl").jsonl()[0]
    words = ["tiered", "query", "offset", root, "--topic", row["topic"], "--queue",
             str(row["queue_id"]), "--as-broker", "-o", "json"]
    answer = rmqctl(*words, "--offset", "0", "--count", "4").expect(0).json()
    assert (answer["status"], answer["next_offset"], answer["queue_offsets"]) == (
        "FOUND", 4, [0, 1, 2, 3])
    behind = rmqctl(*words, "--offset", str(answer["max_offset"] + 5)).expect(1).json()
    assert (behind["status"], behind["next_offset"]) == ("OFFSET_OVERFLOW_BADLY",
                                                         answer["max_offset"])
    tags = rmqctl("tiered", "read", root, "--topic", row["topic"], "--queue",
                  str(row["queue_id"]), "-o", "jsonl").jsonl()
    tag = next(message["tags"] for message in tags if message["tags"])
    tagged = rmqctl(*words, "--offset", "0", "--tag", tag).expect(0).json()
    assert tagged["queue_offsets"] == [message["queue_offset"] for message in tags
                                       if message["tags"] == tag
                                       and message["queue_offset"] < tagged["next_offset"]]
    none = rmqctl(*words[:-3], "--queue", "88", "--as-broker", "--offset", "1", "-o",
                  "json").expect(1).json()
    assert none["status"] == "NO_MATCHED_LOGIC_QUEUE"


def test_places_without_a_message(tmp_path: Path, rmqctl: Runner) -> None:
    queue = Queue(first=40, log_start=5000)
    for number in range(6):
        if number == 3:
            queue.roll_log(coda=True)
        queue.put(b"body" * 9)
    queue.orphan()
    queue.write(tmp_path)
    words = ["tiered", "query", "offset", tmp_path, "--topic", TOPIC, "--queue", "0"]

    def error_of(*more: str) -> str:
        err: str = rmqctl(*words, *more).expect(1).err
        return err

    coda = queue.logs[1][0] - 16
    assert f"a coda record (16 bytes, written by 5.1 and 5.2) is at {coda}" in error_of(
        "--phy", str(coda))
    assert "expired: the commit log begins at 5000" in error_of("--phy", "4999")
    assert f"the commit log ends at {queue.log_end}" in error_of("--phy", str(queue.log_end))
    assert "in a damaged or unused range" in error_of("--phy", str(queue.log_end - 3),
                                                      "--containing")
    assert "no queue offset 39: the tier has 40 to 45" in error_of("--offset", "39")
    assert "no queue offset 46" in error_of("--offset", "46")
    queue.log_path(tmp_path).unlink()
    assert "expired: the first remaining queue offset is 43" in error_of("--offset", "41")
    for wrong in ([], ["--phy", "1", "--offset", "1"], ["--phy", "1", "--as-broker"],
                  ["--offset", "1", "--containing"], ["--offset", "1", "--tag", "A"]):
        rmqctl(*words, *wrong).expect(2)


def test_a_message_around_a_place_far_into_a_segment(tmp_path: Path, rmqctl: Runner) -> None:
    """The walk begins near the place; a body that holds a message must not mislead it."""
    queue = Queue()
    for _ in range(300):
        queue.put(b"x" * 9000)
    last = queue.put(b"y" * 100)
    queue.write(tmp_path)
    words = ["tiered", "query", "offset", tmp_path, "--topic", TOPIC, "--queue", "0",
             "--containing", "-o", "jsonl"]
    for record in (queue.records[150], last):
        inside = record.physical_offset + 50
        assert [row["queue_offset"] for row in rmqctl(*words, "--phy", str(inside)).expect(
            0).jsonl()] == [record.queue_offset]
