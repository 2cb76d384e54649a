"""Queue offsets by time: the engine's answers, and the ones for the whole queue."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.ext.tiered.flat_file import FlatQueue
from rmqctl.ext.tiered.read import by_time
from rmqctl.ext.tiered.tier import Tier
from tests.conftest import GoldenFolder, Runner
from tests.support import golden as golden_sets
from tests.support.share import examples
from tests.tiered.tiers import T0, TOPIC, Queue, write_metadata


@pytest.mark.parametrize("state", golden_sets.TIERS)
def test_as_the_engine(state: str, golden: GoldenFolder) -> None:
    asked = 0
    with Tier.open(str(golden(state))) as tier:
        for flat in golden_sets.flat_files(golden(golden_sets.TIERED)):
            queue = tier.queue(flat["topic"], flat["queueId"])
            assert queue is not None
            for when, lower, upper in flat["offsetByTime"]:
                asked += 1
                assert by_time.as_broker(queue, tier.metadata, when) == lower
                assert by_time.as_broker(queue, tier.metadata, when, upper=True) == upper
                assert by_time.at_time(queue, when).queue_offset == lower
                assert by_time.at_time(queue, when, upper=True).queue_offset == upper
    assert asked


def test_without_metadata_the_answers_are_the_same(golden: GoldenFolder) -> None:
    from rmqctl.formats.tiered.metadata import Metadata

    with Tier.open(str(golden(golden_sets.TIERS[0]))) as tier:
        for flat in golden_sets.flat_files(golden(golden_sets.TIERED)):
            queue = tier.queue(flat["topic"], flat["queueId"])
            assert queue is not None
            for when, lower, _ in flat["offsetByTime"]:
                assert by_time.as_broker(queue, Metadata(), when) == lower


# -- the table of the engine's source, and what is better -----------------------------------------


def made_queue(times: list[int], root: Path, *, per_segment: int = 3, v6: bool = False) -> Tier:
    queue = Queue()
    for number, when in enumerate(times):
        if number and number % per_segment == 0:
            queue.roll_units()
        queue.put(when=when, v6=v6)
    queue.write(root / "tier")
    write_metadata(root, {TOPIC: 0}, [queue])
    return Tier.open(str(root / "tier"))


def queue_of(tier: Tier) -> FlatQueue:
    queue = tier.queue(TOPIC, 0)
    assert queue is not None
    return queue


TIMES = [T0 + number for number in (0, 10, 10, 10, 20, 30, 30, 40)]


@pytest.mark.parametrize(("when", "lower", "upper", "upper_520"), [
    (-5, 0, 0, 0), (0, 0, 0, 0), (5, 1, 1, 0), (10, 1, 3, 3), (15, 4, 4, 3), (25, 5, 5, 4),
    (30, 5, 6, 6), (35, 7, 7, 6), (40, 7, 7, 7), (41, 8, 8, 7)])
def test_boundaries(when: int, lower: int, upper: int, upper_520: int, tmp_path: Path) -> None:
    with made_queue(TIMES, tmp_path, per_segment=4) as tier:
        queue = queue_of(tier)
        assert by_time.as_broker(queue, tier.metadata, T0 + when) == lower
        assert by_time.as_broker(queue, tier.metadata, T0 + when, upper=True) == upper
        assert by_time.at_time(queue, T0 + when).queue_offset == lower
        assert by_time.at_time(queue, T0 + when, upper=True).queue_offset == upper
        assert by_time.at_time(queue, T0 + when, upper=True,
                               rule="5.2.0").queue_offset == upper_520


def test_equal_times_over_a_border(tmp_path: Path) -> None:
    """A broker may answer with the first of the later segment."""
    with made_queue([T0, T0 + 9, T0 + 9, T0 + 9, T0 + 9, T0 + 20], tmp_path,
                    per_segment=2) as tier:
        queue = queue_of(tier)
        assert by_time.at_time(queue, T0 + 9).queue_offset == 1
        assert by_time.as_broker(queue, tier.metadata, T0 + 9) == 2


def test_a_time_between_two_segments(tmp_path: Path) -> None:
    with made_queue([T0, T0 + 10, T0 + 50, T0 + 60], tmp_path, per_segment=2) as tier:
        queue = queue_of(tier)
        assert by_time.at_time(queue, T0 + 30).queue_offset == 2
        queue_offset = by_time.as_broker(queue, tier.metadata, T0 + 30)
        assert queue_offset in (1, 2)  # whichever segment its search ends in


def test_a_broker_fails_in_what_is_expired(tmp_path: Path) -> None:
    flat_queue = Queue()
    for number in range(12):
        if number == 6:
            flat_queue.roll_log()
        flat_queue.put()
    flat_queue.write(tmp_path / "tier")
    write_metadata(tmp_path, {TOPIC: 0}, [flat_queue])
    flat_queue.log_path(tmp_path / "tier", 0).unlink()
    with Tier.open(str(tmp_path / "tier")) as tier:
        queue = queue_of(tier)
        assert by_time.at_time(queue, T0).queue_offset == 6
        assert by_time.at_time(queue, T0 + 8000).queue_offset == 8
        with pytest.raises(FormatError):
            by_time.as_broker(queue, tier.metadata, T0 + 8000)


def test_ipv6_store_times(tmp_path: Path) -> None:
    """A broker reads bytes 56 to 63, which are a part of the born host then."""
    with made_queue(TIMES, tmp_path, v6=True) as tier:
        queue = queue_of(tier)
        assert [by_time.at_time(queue, when).queue_offset for when in TIMES] == [
            0, 1, 1, 1, 4, 5, 5, 7]
        assert {by_time.broker_time(queue, offset) for offset in range(8)} == {0}
        assert by_time.as_broker(queue, tier.metadata, T0 + 10) == 8


def test_damage_is_passed_over(tmp_path: Path, rmqctl: Runner) -> None:
    times = [T0 + 10 * number for number in range(30)]
    with made_queue(times, tmp_path, per_segment=30) as tier:
        queue = queue_of(tier)
        path = Path(queue.commit_log.reader.where(queue.commit_log.segments[0].path))
        data = bytearray(path.read_bytes())
        sizes = len(data) // 30
        for number in (7, 14, 15, 16, 22):
            data[number * sizes + 4] ^= 1
        path.write_bytes(data)
        for number in range(30):
            if number not in (7, 14, 15, 16, 22):
                assert by_time.at_time(queue, times[number]).queue_offset == number
        assert by_time.at_time(queue, times[14]).queue_offset == 17
        assert by_time.at_time(queue, times[15], upper=True, rule="5.2.0").queue_offset == 13
        result = rmqctl("tiered", "query", "time", tmp_path / "tier", "--topic", TOPIC, "--queue",
                        "0", "--time", str(times[14] + 5), "-o", "json").expect(0)
        assert result.json()["queue_offset"] == 17


@settings(max_examples=examples(60))
@given(steps=st.lists(st.integers(0, 40), min_size=1, max_size=40), when=st.integers(-3, 45),
       per_segment=st.integers(1, 9))
def test_against_a_list(steps: list[int], when: int, per_segment: int,
                        tmp_path_factory: pytest.TempPathFactory) -> None:
    times = sorted(steps)
    with made_queue([T0 + time for time in times], tmp_path_factory.mktemp("times"),
                    per_segment=per_segment) as tier:
        queue = queue_of(tier)
        lower = sum(time < when for time in times)
        behind = sum(time <= when for time in times)
        assert by_time.at_time(queue, T0 + when).queue_offset == lower
        assert by_time.at_time(queue, T0 + when, upper=True).queue_offset == (
            behind - 1 if behind > lower else lower)
        assert by_time.at_time(queue, T0 + when, upper=True, rule="5.2.0").queue_offset == max(
            behind - 1, 0)
        exact = by_time.as_broker(queue, tier.metadata, T0 + when)
        if when in times:
            assert times[exact] == when  # of equal times over a border maybe a later one
        elif when < times[0] or when > times[-1]:
            assert exact == lower


# -- the command ----------------------------------------------------------------------------------


def test_the_command(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden(golden_sets.TIERS[0])
    flat = golden_sets.flat_files(golden(golden_sets.TIERED))[0]
    words = ["tiered", "query", "time", root, "--topic", flat["topic"], "--queue",
             str(flat["queueId"])]
    for when, lower, upper in flat["offsetByTime"]:
        for broker in ([], ["--as-broker"]):
            answer = rmqctl(*words, "--time", str(when), *broker, "-o", "json").expect(0).json()
            assert answer["queue_offset"] == lower
            assert (answer["min_offset"], answer["max_offset"], answer["from"]) == (
                flat["cqMin"], flat["cqCommit"], "tier")
            place = {row[0]: row[1] for row in flat["messages"]}.get(lower)
            assert answer["physical_offset"] == place
            assert rmqctl(*words, "--time", str(when), "--boundary", "upper", *broker, "-o",
                          "json").json()["queue_offset"] == upper
    when, lower, _ = flat["offsetByTime"][3]
    rows = rmqctl(*words, "--time", str(when), "--messages", "--count", "3", "-o",
                  "jsonl").expect(0).jsonl()
    assert [row["queue_offset"] for row in rows] == [lower, lower + 1, lower + 2]
    text = rmqctl(*words, "--time", str(when)).expect(0).out
    assert f"queue offset    {lower}\n" in text


def test_what_is_not_there(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden(golden_sets.TIERS[0])
    flat = golden_sets.flat_files(golden(golden_sets.TIERED))[0]
    words = ["tiered", "query", "time", root, "--topic", flat["topic"]]
    assert "no queue 99" in rmqctl(*words, "--queue", "99", "--time", "0").expect(1).err
    late = rmqctl(*words, "--queue", str(flat["queueId"]), "--time", "9999999999999", "--messages")
    assert f"no message at queue offset {flat['cqCommit']}" in late.expect(1).err
    rmqctl(*words, "--queue", "0", "--time", "0", "--like", "5.2.0", "--as-broker").expect(2)
    rmqctl(*words, "--queue", "0").expect(2)
