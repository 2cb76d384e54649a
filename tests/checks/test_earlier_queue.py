"""Topics that were deleted and created again while their old messages are still in the log."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl import api
from tests.backup.test_backup import growing
from tests.backup.test_entries import queues
from tests.conftest import Runner
from tests.support import damage

Growing = Callable[[int, int], Path]
__all__ = ["growing"]


def trouble(store: Path, rmqctl: Runner) -> Counter[tuple[str, str]]:
    """Count the findings of `verify`, by category and severity."""
    done = rmqctl("verify", store, "-o", "json")
    counts: Counter[tuple[str, str]] = Counter()
    for finding in json.loads(done.out)["findings"]:
        counts[finding["category"], finding["severity"]] += finding["count"]
    return counts


@pytest.fixture(params=[(60, 12), (60, 120), (200, 40)], ids=str)
def again(request: pytest.FixtureRequest, growing: Growing) -> Path:
    """Return a store in which T0 was deleted and created again, with fewer messages, or more."""
    before, after = request.param
    shutil.rmtree(growing(0, before) / "consumequeue" / "T0")
    return growing(before, after)


def old(store: Path) -> int:
    with api.open(store) as opened:
        left = len(list(opened.messages(topic="T0")))
        return sum(message["topic"] == "T0" for message in opened.messages()) - left


def test_no_damage(again: Path, rmqctl: Runner) -> None:
    assert trouble(again, rmqctl) == {("cq-earlier", "info"): old(again)}
    rmqctl("verify", again).expect(0)
    doctor = json.loads(rmqctl("doctor", again, "-o", "json").expect(0).out)
    assert doctor["verdict"].startswith("sound")
    assert doctor["messages_not_delivered"] == old(again)
    assert "nothing is lost" not in doctor["verdict"]
    assert f"{old(again):,} older message" in doctor["verdict"]
    start = json.loads(rmqctl("preflight", again, "-o", "json").expect(0).out)
    assert start["unreachable"] == 0
    before = queues(again)
    assert rmqctl("recover", again).expect(0).err == ""
    rmqctl("recover", again, "--apply", "--yes").expect(0)
    assert queues(again) == before


@pytest.mark.parametrize("place", ["older", "newer", "both"])
def test_queues_are_made_of_their_own_messages(place: str, again: Path, rmqctl: Runner) -> None:
    before = queues(again)
    with api.open(again) as store:
        records = [message for message in store.messages()
                   if message["topic"] == "T0" and message["queue_id"] == 0]
        begun = next(message["physical_offset"] for message in store.messages(topic="T0")
                     if message["queue_id"] == 0)
    older = [message for message in records if message["physical_offset"] < begun]
    # The log is damaged, and the last entry of the queue is missing.
    for place_of, position, length in [
            *([(older[3], 0, 90)] if place != "newer" else []),
            *([(records[-1], 50, 4)] if place != "older" else [])]:
        base, within = divmod(place_of["physical_offset"], 16384)
        damage.zero(again, f"commitlog/{base * 16384:020d}", within + position, length)
    path = max((again / "consumequeue/T0/0").iterdir())
    used = len(path.read_bytes().rstrip(b"\0"))
    end = -(-used // 20) * 20
    path.write_bytes(path.read_bytes()[:end - 20] + bytes(600 - end + 20))
    rmqctl("recover", again, "--apply", "--yes")
    listed_queues = queues(again)
    for name in before:
        if name.startswith("consumequeue/T0/") and place == "older":
            assert listed_queues[name] == before[name]
    with api.open(again) as store:
        offsets = [message["physical_offset"] for message in store.messages(topic="T0")
                   if message["queue_id"] == 0]
    assert offsets
    assert min(offsets) == begun


def test_what_nothing_proves_stays_an_error(again: Path, rmqctl: Runner) -> None:
    with (again / "consumequeue/T0/0" / f"{0:020d}").open("r+b") as file:
        file.write(bytes(20))
    counts = trouble(again, rmqctl)
    assert counts["message-fields", "error"] + counts["cq-missing-entry", "error"] > 0
    assert 0 < counts["cq-earlier", "info"] < old(again)  # of the other queue


def test_a_damaged_queue_offset_is_no_earlier_queue(growing: Growing, rmqctl: Runner) -> None:
    root = growing(0, 60)
    with api.open(root) as store:
        [*_, last] = [message["physical_offset"] for message in store.messages(topic="T1")
                      if message["queue_id"] == 0]
    # The queue offset of the last message, and its entry.
    damage.flip_bit(root, f"commitlog/{last // 16384 * 16384:020d}", last % 16384 + 27, 1)
    assert ("cq-earlier", "info") not in trouble(root, rmqctl)


def test_rocksdb(again: Path, rmqctl: Runner) -> None:
    pytest.importorskip("rocksdict")
    expected = queues(again)
    rmqctl("convert", again, "--consumequeue", "rocksdb", "--apply").expect(0)
    with api.open(again) as store:
        physical_offsets = [message["physical_offset"] for message in store.messages(topic="T0")]
    assert trouble(again, rmqctl) == {("cq-earlier", "info"): old(again)}
    assert "nothing to do" in rmqctl("recover", again).expect(0).out
    rmqctl("convert", again, "--consumequeue", "file", "--apply").expect(0)
    assert queues(again) == expected
    with api.open(again) as store:
        assert [message["physical_offset"]
                for message in store.messages(topic="T0")] == physical_offsets
