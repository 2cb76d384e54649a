"""Delayed and timed messages that count as delivered, though the log has no delivered copy."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmqctl.checks import delays as module
from rmqctl.checks.delays import ahead, delays, timer_ahead
from rmqctl.checks.metadata.judge import judge
from rmqctl.formats.local.properties import SCHEDULE_TOPIC
from rmqctl.store.config.config import load_one
from rmqctl.store.store import Store
from tests.checks.timers import CHECK
from tests.conftest import GoldenFolder, Runner

_SET = "4.9.3/delay-delivered/store"
_TIMERS = "5.3.3/timer/store"
_HOUR = 3_600_000
Delivered = Callable[[], Path]


def cut(root: Path, run: Runner, end: int) -> None:
    """Cut the log and all that is derived from it, but keep the progress."""
    kept = {name: (root / name).read_bytes() for name in ("config/delayOffset.json", CHECK)
            if (root / name).exists()}
    run("truncate", root, "--to-phy", str(end), "--apply").expect(0)
    for name, data in kept.items():
        (root / name).write_bytes(data)


def offsets(root: Path) -> dict[int, int]:
    with Store.open(str(root)) as store:
        return {row["level"]: row["offset"] for row in load_one(store, module.FILE).rows()}


def records(root: Path) -> list[tuple[int, str, int, int]]:
    """Physical offset, topic, queue id and store time of each message."""
    with Store.open(str(root)) as store:
        return [(int(place), record.topic.decode(), record.queue_id, record.store_timestamp)
                for batch in store.log.walk() for place in batch.offset
                if (record := store.log.record_at(int(place))) is not None]


@pytest.fixture
def delivered(golden_copy: GoldenFolder) -> Callable[[], Path]:
    """Return a function that makes a store whose delayed messages are all delivered, and whose
    delayOffset.json says so. (The one of the golden store was written some seconds earlier.)
    """
    def make() -> Path:
        root = golden_copy(_SET)
        with Store.open(str(root)) as store:
            (root / "config/delayOffset.json").write_text(json.dumps({"offsetTable": {
                level: delayed.messages for level, delayed in delays(store).items()}}))
        return root

    return make


def test_a_whole_log_has_every_delivered_copy(delivered: Delivered) -> None:
    root = delivered()
    with Store.open(str(root)) as store:
        assert ahead(store) == []
        levels = delays(store)
        assert {level: delayed.delivered_end for level, delayed in levels.items()} == offsets(root)
        assert all(level.first == level.before == level.messages for level in levels.values())


def test_a_log_without_its_end_leaves_the_offsets_too_late(
        delivered: Delivered, rmqctl: Runner) -> None:
    """Before the first delivery, each message that counts as delivered and is due after the end of
    the log is lost to consumers; `recover` sets the offsets back to these.
    """
    original = delivered()
    places = records(original)
    with Store.open(str(original)) as store:
        first_copy = next(number for number, (place, topic, _, _) in enumerate(places)
                          if topic != SCHEDULE_TOPIC
                          and (record := store.log.record_at(place)) is not None
                          and b"REAL_TOPIC" in record.properties)
    root = delivered()
    cut(root, rmqctl, places[first_copy][0])
    before = offsets(root)
    with Store.open(str(root)) as store:
        levels = ahead(store)
        assert levels
        assert 0 in {level.first for level in levels}
        assert {level.level for level in levels} <= before.keys()
        [defect] = [defect for defect in judge(store).defects if defect.category == "config-delays"]
        assert defect.loss.count == sum(level.messages for level in levels)
    result = rmqctl("preflight", root, "-o", "json").expect(1).json()
    assert {"what": "delayed", "count": defect.loss.count} in [
        {"what": loss["what"], "count": loss["count"]} for loss in result["losses"]]
    rmqctl("verify", root).expect(1)
    rmqctl("recover", root, "--apply").expect(0)
    assert offsets(root) == before | {level.level: level.first for level in levels}
    rmqctl("verify", root).expect(0)
    rmqctl("recover", root).expect(0)
    with Store.open(str(root)) as store:
        assert ahead(store) == []


@pytest.mark.parametrize("harm", ["missing", "zeroed", "ends early"])
def test_one_recover_is_enough_without_entries(delivered: Delivered, rmqctl: Runner,
                                               harm: str) -> None:
    """The log has the times of delayed messages whose entries are missing."""
    root = delivered()
    cut(root, rmqctl, records(root)[80][0])
    with Store.open(str(root)) as store:
        levels = ahead(store)
    folder = root / "consumequeue" / SCHEDULE_TOPIC
    if harm == "missing":
        shutil.rmtree(root / "consumequeue")
    else:
        for path in folder.glob("*/*"):
            data = path.read_bytes()
            path.write_bytes(bytes(len(data)) if harm == "zeroed" else data[:20] + bytes(
                len(data) - 20))
    with Store.open(str(root)) as store:
        assert ahead(store) == levels
    assert rmqctl("preflight", root, "--broker-version", "4.9.3", "-o", "json").expect(
        1).json()["losses"]
    rmqctl("recover", root, "--apply", "--yes").expect(0)
    assert {level.level: offsets(root)[level.level] for level in levels} == {
        level.level: level.first for level in levels}
    with Store.open(str(root)) as store:
        assert ahead(store) == []
    rmqctl("verify", root).expect(0)


def test_truncate_sets_the_offsets_back(delivered: Delivered, rmqctl: Runner) -> None:
    root = delivered()
    places = records(root)
    rmqctl("truncate", root, "--to-phy", str(places[80][0]), "--apply").expect(0)
    with Store.open(str(root)) as store:
        assert ahead(store) == []
    rmqctl("verify", root).expect(0)
    rmqctl("undo", root).expect(0)
    assert offsets(root) == offsets(delivered())


@pytest.mark.parametrize("part", range(8))
def test_at_no_end_does_recover_repeat_a_delivered_message(
        delivered: Delivered, rmqctl: Runner, part: int) -> None:
    """A message with a delivered copy in the log stays delivered, wherever the log ends."""
    original = delivered()
    places = records(original)
    for number in range(part + 1, len(places), 24):
        root = delivered()
        cut(root, rmqctl, places[number][0])
        with Store.open(str(root)) as store:
            levels = delays(store)
            for level in ahead(store):
                assert level.first >= levels[level.level].delivered_end
                assert level.first + level.messages <= level.offset


def test_a_message_that_was_delivered_early_is_not_lost(
        delivered: Delivered, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an operator shortened the levels, a message was delivered before its entry says it is
    due: its copy in the log shows that.
    """
    root = delivered()
    with Store.open(str(root)) as store:
        last = module.find_end(store).last
        assert last is not None
        early = replace(last, store_timestamp=0)
        monkeypatch.setattr(module, "find_end", lambda _store: module_end(early))
        assert all(len(units) for units in [module._due_after(store, 0, 1, 0)])
        assert ahead(store) == []


def module_end(last: object) -> object:
    return type("LogEnd", (), {"last": last})()


def test_a_slave_delivers_nothing(delivered: Delivered, rmqctl: Runner, tmp_path: Path) -> None:
    root = delivered()
    places = records(root)
    cut(root, rmqctl, places[20][0])
    conf = tmp_path / "broker.conf"
    conf.write_text("\n".join((
        f"storePathRootDir={root}", f"storePathCommitLog={root}/commitlog", "brokerRole=SLAVE",
        "brokerId=1", "mappedFileSizeCommitLog=32768", "mappedFileSizeConsumeQueue=480",
        "maxHashSlotNum=100", "maxIndexNum=400")))
    rmqctl("preflight", root).expect(1)
    rmqctl("preflight", root, "--broker-conf", conf).expect(0)
    with Store.open(str(root)) as store:
        assert ahead(store)


def read_until(root: Path, later: int) -> int:
    path = root / CHECK
    data = bytearray(path.read_bytes())
    before: int = struct.unpack_from(">q", data)[0]
    struct.pack_into(">q", data, 0, before + later)
    path.write_bytes(data)
    return before


def test_timers_read_later_than_the_log(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    root = golden_copy(_TIMERS)
    with Store.open(str(root)) as store:
        assert timer_ahead(store, store.log.end).messages == 0
    read_until(root, _HOUR // 2)
    with Store.open(str(root)) as store:
        timers = timer_ahead(store, store.log.end)
    assert timers.messages
    result = rmqctl("preflight", root, "-o", "json").expect(1).json()
    assert (timers.messages, "config/timercheck") in [
        (loss["count"], loss["file"]) for loss in result["losses"]]
    assert "last_read_time_ms is later than the log" in rmqctl("verify", root).expect(1).out
    rmqctl("recover", root, "--apply").expect(0)
    assert read_until(root, 0) == timers.first
    with Store.open(str(root)) as store:
        assert timer_ahead(store, store.log.end).messages == 0
    assert "config/timercheck" not in {
        loss["file"]
        for loss in rmqctl("preflight", root, "-o", "json").expect(0, 1).json()["losses"]}
