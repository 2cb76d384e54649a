"""Single messages of a tier: by queue offset, by place, and a pull's answer in a broker's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import GoldenFolder, Runner
from tests.support import golden as golden_sets
from tests.support.share import every
from tests.tiered.made import TOPIC, Queue

STATES = [one.id for one in golden_sets.golden_stores() if one.kind == "tiered"]


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
    found = rmqctl(*words, "--offset", "0", "--count", "4").expect(0).json()
    assert (found["status"], found["next_offset"], found["queue_offsets"]) == (
        "FOUND", 4, [0, 1, 2, 3])
    behind = rmqctl(*words, "--offset", str(found["max_offset"] + 5)).expect(1).json()
    assert (behind["status"], behind["next_offset"]) == ("OFFSET_OVERFLOW_BADLY",
                                                         found["max_offset"])
    tags = rmqctl("tiered", "read", root, "--topic", row["topic"], "--queue",
                  str(row["queue_id"]), "-o", "jsonl").jsonl()
    tag = next(one["tags"] for one in tags if one["tags"])
    tagged = rmqctl(*words, "--offset", "0", "--tag", tag).expect(0).json()
    assert tagged["queue_offsets"] == [one["queue_offset"] for one in tags
                                       if one["tags"] == tag
                                       and one["queue_offset"] < tagged["next_offset"]]
    none = rmqctl(*words[:-3], "--queue", "88", "--as-broker", "--offset", "1", "-o",
                  "json").expect(1).json()
    assert none["status"] == "NO_MATCHED_LOGIC_QUEUE"


def test_places_without_a_message(tmp_path: Path, rmqctl: Runner) -> None:
    made = Queue(first=40, log_start=5000)
    for number in range(6):
        if number == 3:
            made.roll_log(coda=True)
        made.put(b"body" * 9)
    made.orphan()
    made.write(tmp_path)
    words = ["tiered", "query", "offset", tmp_path, "--topic", TOPIC, "--queue", "0"]

    def said(*more: str) -> str:
        err: str = rmqctl(*words, *more).expect(1).err
        return err

    coda = made.logs[1][0] - 16
    assert f"a coda record (16 bytes, written by 5.1 and 5.2) is at {coda}" in said(
        "--phy", str(coda))
    assert "expired: the commit log begins at 5000" in said("--phy", "4999")
    assert f"the commit log ends at {made.log_end}" in said("--phy", str(made.log_end))
    assert "in a damaged or unused range" in said("--phy", str(made.log_end - 3), "--containing")
    assert "no queue offset 39: the tier has 40 to 45" in said("--offset", "39")
    assert "no queue offset 46" in said("--offset", "46")
    made.log_path(tmp_path).unlink()
    assert "expired: the first remaining queue offset is 43" in said("--offset", "41")
    for wrong in ([], ["--phy", "1", "--offset", "1"], ["--phy", "1", "--as-broker"],
                  ["--offset", "1", "--containing"], ["--offset", "1", "--tag", "A"]):
        rmqctl(*words, *wrong).expect(2)


def test_a_message_around_a_place_far_into_a_segment(tmp_path: Path, rmqctl: Runner) -> None:
    """The walk begins near the place; a body that holds a message must not mislead it."""
    made = Queue()
    for _ in range(300):
        made.put(b"x" * 9000)
    last = made.put(b"y" * 100)
    made.write(tmp_path)
    words = ["tiered", "query", "offset", tmp_path, "--topic", TOPIC, "--queue", "0",
             "--containing", "-o", "jsonl"]
    for one in (made.records[150], last):
        inside = one.physical_offset + 50
        assert [row["queue_offset"] for row in rmqctl(*words, "--phy", str(inside)).expect(
            0).jsonl()] == [one.queue_offset]
