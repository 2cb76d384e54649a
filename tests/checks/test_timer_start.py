"""What a start finds of pending timed messages: the golden timer store, its files changed.

The counts are those of `TimerMessageStore.recover` and `dequeue` of 5.3.3.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.timer import TimerFiles, rebuilt_wheel
from rmqctl.checks.losses import TIMERS
from rmqctl.checks.preflight.around import StartEnvironment
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.checks.preflight.types import Prediction
from rmqctl.formats.timer import timer_check, timer_wheel
from rmqctl.parse_values import time_text
from rmqctl.store import Store
from tests.checks.timers import CHECK, FILE_SIZE, LOGS, SET, WHEEL, place
from tests.conftest import GoldenFolder, Runner
from tests.support import damage

READ = 1795233775000
"""Up to where the wheel was read when the broker was stopped (ms)."""
FIRST_DUE, LAST_DUE = 1795234409000, 1795237366000
WEEK = 7 * 86_400_000
PENDING = 47


def ask(root: Path, now: int = READ, version: str = "5.3.3") -> Prediction:
    with Store.open(root) as store:
        return preflight(store, version, machine=StartEnvironment(now, no_disk="not asked"))


def lost(prediction: Prediction) -> list[int | None]:
    return [loss.count for loss in prediction.other_losses if loss.what == TIMERS]


# -- the clock -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("now", "skipped"), [
    (READ - WEEK, 0), (READ, 0), (READ + WEEK // 2, 0),
    (FIRST_DUE + WEEK - 60_000, 0), (FIRST_DUE + WEEK - 59_000, 1),
    (LAST_DUE + WEEK - 60_000, PENDING - 3), (LAST_DUE + WEEK - 59_000, PENDING),
    (READ + 400 * 86_400_000, PENDING)])
def test_messages_that_are_overdue_by_a_week_are_skipped(golden: GoldenFolder, now: int,
                                                         skipped: int) -> None:
    prediction = ask(golden(SET), now)
    assert lost(prediction) == ([skipped] if skipped else [])
    assert prediction.starts
    assert prediction.harmless is (not skipped)


def test_a_clock_before_the_newest_message_is_named(golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic/store")
    with Store.open(root) as store:
        last = store.log.record_at(325887)  # later than any time of the checkpoint
        assert last is not None
        assert store.checkpoint is not None
        stored = last.store_timestamp
        assert stored > store.checkpoint.physic_msg_timestamp
    for now, expected_text in ((stored, ""),
                               (stored - 7_200_000, "later than this machine's clock"),
                               (stored + 366 * 86_400_000, "more than a year ago")):
        notes = [note for note in ask(root, now).notes if "this machine's clock" in note]
        assert (expected_text in "".join(notes)) is bool(notes or not expected_text), now
        assert bool(notes) is bool(expected_text)
        assert not expected_text or time_text(stored) in notes[0]


def test_a_timer_that_was_read_far_ahead_is_named(golden_copy: GoldenFolder) -> None:
    """The clock was a year ahead for a time: no timed message is delivered till then."""
    root = golden_copy(SET)
    record = timer_check.parse((root / CHECK).read_bytes())
    ahead = record._replace(last_read_time_ms=record.last_read_time_ms + 365 * 86_400_000)
    (root / CHECK).write_bytes(timer_check.build(ahead))
    assert any("Was the clock wrong?" in note for note in ask(root).notes)


# -- the wheel -----------------------------------------------------------------------------------


def _remove(root: Path) -> None:
    (root / WHEEL).unlink()


def _empty(root: Path) -> None:
    os.truncate(root / WHEEL, 0)


def _zeros(root: Path) -> None:
    os.truncate(root / WHEEL, 0)
    os.truncate(root / WHEEL, timer_wheel.FILE_SIZE)


@pytest.mark.long
@pytest.mark.parametrize("spoil", [_remove, _empty, _zeros])
def test_a_wheel_that_is_gone_is_rebuilt_from_the_last_file_alone(
        golden_copy: GoldenFolder, rmqctl: Runner, spoil: Any) -> None:
    root = golden_copy(SET)
    wheel = (root / WHEEL).read_bytes()
    spoil(root)
    assert lost(ask(root)) == [35]
    assert sorted(lost(ask(root, READ + 9 * 86_400_000)), key=str) == [12, 35]
    answer = rmqctl("preflight", root, "--broker-version", "5.3.3", "-o", "json").expect(1).json()
    assert [(loss["what"], loss["count"]) for loss in answer["losses"]] == [("timers", 35)]
    rmqctl("recover", root, "--apply", "--yes").expect(0)
    assert (root / WHEEL).read_bytes() == wheel
    assert lost(ask(root)) == []
    assert rmqctl("recover", root, "-o", "json").expect(0).json()["actions"] == []
    rmqctl("undo", root, "--yes").expect(0)
    assert lost(ask(root)) == [35]


def test_a_wheel_is_rebuilt_as_the_engine_wrote_it(golden: GoldenFolder) -> None:
    root = golden(SET)
    with Store.open(root) as store:
        pages = rebuilt_wheel(TimerFiles.of(store))
    file_size = bytearray(timer_wheel.FILE_SIZE)
    for start, page in pages.items():
        file_size[start:start + len(page)] = page
    assert bytes(file_size) == (root / WHEEL).read_bytes()


@pytest.mark.parametrize("size", [32, 4096, timer_wheel.FILE_SIZE // 2, timer_wheel.FILE_SIZE + 32])
def test_a_wheel_of_another_size_keeps_the_broker_from_starting(
        golden_copy: GoldenFolder, rmqctl: Runner, size: int) -> None:
    root = golden_copy(SET)
    wheel = (root / WHEEL).read_bytes()
    os.truncate(root / WHEEL, size)
    prediction = ask(root)
    assert not prediction.starts
    assert "timerwheel" in "".join(prediction.broker.refusals)
    assert ask(root, version="4.9.3").starts
    rmqctl("recover", root, "--apply", "--yes").expect(0)
    assert (root / WHEEL).read_bytes() == wheel


def test_a_timer_log_of_another_size_keeps_the_broker_from_starting(
        golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    damage.truncate(root, LOGS[0], FILE_SIZE // 2)
    prediction = ask(root)
    assert not prediction.starts
    assert LOGS[0] in "".join(prediction.broker.refusals)


# -- the timer log -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [20168, 40280, 46684])
def test_messages_that_the_log_lacks_are_lost(golden_copy: GoldenFolder, rmqctl: Runner,
                                              end: int) -> None:
    """The log was cut off at ``end``: timed messages behind it are lost, the others delivered."""
    root = golden_copy(SET)
    with Store.open(root) as store:
        units = TimerFiles.of(store).units(READ // 1000)
    gone = int((units.physical >= end).sum())
    assert 0 < gone < len(units) == PENDING
    for file in ("commitlog/00000000000000000000", "commitlog/00000000000000032768"):
        start = max(end - int(Path(file).name), 0)
        if start < 32768:
            damage.zero(root, file, start, 32768 - start)
    prediction = ask(root)
    assert [(loss.count, loss.already) for loss in prediction.other_losses
            if loss.file == "timerlog"] == [(gone, True)]
    assert not prediction.harmless
    rmqctl("truncate", root, "--to-phy", str(end), "--apply", "--yes").expect(0)
    assert lost(ask(root)) == []


@pytest.mark.long
def test_units_beyond_the_end_of_the_log_go(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    """A broker has cut the log and the queues, but not the timer log: `recover` does."""
    root, end = golden_copy(SET), 40280
    kept = {name: (root / name).read_bytes() for name in [*LOGS, WHEEL, CHECK]}
    rmqctl("truncate", root, "--to-phy", str(end), "--apply", "--yes").expect(0)
    cut = {name: (root / name).read_bytes() for name in [*LOGS, WHEEL] if (root / name).exists()}
    for name, data in kept.items():
        (root / name).write_bytes(data)
    assert lost(ask(root)) == [4, 8]  # 8 were delivered after the end of the log
    rmqctl("recover", root, "--apply", "--yes").expect(0)
    assert {name: (root / name).read_bytes() for name in cut} == cut
    assert lost(ask(root)) == []
    rmqctl("verify", root).expect(0)


def test_a_timer_without_its_progress_begins_anew(golden_copy: GoldenFolder) -> None:
    """Without timercheck everything is enqueued again: nothing is lost."""
    root = golden_copy(SET)
    (root / CHECK).unlink()
    (root / WHEEL).unlink()
    prediction = ask(root)
    assert lost(prediction) == []


# -- no timer ------------------------------------------------------------------------------------


def test_a_release_without_a_timer_delivers_none_of_them(golden: GoldenFolder) -> None:
    prediction = ask(golden(SET), version="4.9.3")
    assert lost(prediction) == [PENDING]
    assert prediction.starts
    assert not prediction.harmless
    assert not prediction.recovers


def test_a_timer_that_is_switched_off_delivers_none_of_them(golden: GoldenFolder, tmp_path: Path,
                                                            rmqctl: Runner) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={golden(SET)}\nmappedFileSizeTimerLog={FILE_SIZE}\n"
                    "timerWheelEnable=false\n")
    answer = rmqctl("preflight", golden(SET), "--broker-version", "5.3.3", "--broker-conf", conf,
                    "-o", "json").expect(1).json()
    assert [loss["count"] for loss in answer["losses"]] == [PENDING]


# -- a timer log that is built from the messages -------------------------------------------------


def _short(root: Path) -> None:
    damage.truncate(root, LOGS[0], FILE_SIZE // 2)


def _first_file(root: Path) -> None:
    damage.zero(root, LOGS[1], 0, FILE_SIZE)


def _middle_file(root: Path) -> None:
    damage.remove(root, LOGS[2])


def _all(root: Path) -> None:
    damage.remove_folder(root, "timerlog")


def _flip(root: Path) -> None:
    damage.flip_bit(root, *place(2260, "physical_offset"), 3)


def _end(root: Path) -> None:
    damage.zero(root, LOGS[4], 0, FILE_SIZE)


def _name(root: Path) -> None:
    (root / LOGS[3]).rename(root / "timerlog/10000000000000000000")


@pytest.mark.long
@pytest.mark.parametrize(("spoil", "starts", "less"), [
    (_short, False, True), (_first_file, True, False), (_middle_file, True, True),
    (_all, True, True), (_flip, True, False), (_end, True, False),
    (_name, False, True)])
def test_a_damaged_timer_log_is_built_from_the_messages(
        golden: GoldenFolder, golden_copy: GoldenFolder, rmqctl: Runner, spoil: Any,
        starts: bool, less: bool) -> None:
    root = golden_copy(SET)
    with Store.open(golden(SET)) as store:
        waiting = TimerFiles.of(store).units(READ // 1000)
    spoil(root)
    prediction = ask(root)
    assert prediction.starts is starts
    assert bool(lost(prediction)) >= less
    before = {path: path.read_bytes() for path in (root / "timerlog").glob("*")}
    rmqctl("recover", root, "--apply", "--yes").expect(0)
    with Store.open(root) as store:
        files = TimerFiles.of(store)
        units, start = files.units(READ // 1000), files.start(READ, 0, store.log.end)
    # A broker itself enqueues what lies behind the last unit.
    behind = 47383 if spoil is _end else 1 << 62
    assert sorted(units.physical) == [at for at in sorted(waiting.physical) if at < behind]
    assert (start.pending, start.unreachable, start.gone) == (len(units), 0, 0)
    assert start.waiting == (2 if spoil is _end else 0)
    assert lost(ask(root)) == []
    assert ask(root).starts
    rmqctl("verify", root).expect(0)
    assert rmqctl("recover", root, "-o", "json").expect(0).json()["actions"] == []
    rmqctl("undo", root, "--yes").expect(0)
    assert {path: path.read_bytes() for path in (root / "timerlog").glob("*")} == before


# -- the timer's progress ------------------------------------------------------------------------


def _cut_progress(root: Path) -> None:
    damage.truncate(root, CHECK, 16)


def _garbage(root: Path) -> None:
    damage.write(root, CHECK, 0, b"\x7f\xff" * 28)


def _no_progress(root: Path) -> None:
    damage.remove(root, CHECK)


@pytest.mark.long
@pytest.mark.parametrize("spoil", [_cut_progress, _garbage, _no_progress])
@pytest.mark.parametrize("log", [None, _short], ids=["log", "short-log"])
def test_a_damaged_progress_is_restored(golden: GoldenFolder, golden_copy: GoldenFolder,
                                        rmqctl: Runner, spoil: Any, log: Any) -> None:
    """Every pending message stays, and few are delivered twice: those that were due last."""
    root = golden_copy(SET)
    with Store.open(golden(SET)) as store:
        waiting = TimerFiles.of(store).units(READ // 1000)
    spoil(root)
    if log is not None:
        log(root)
    rmqctl("recover", root, "--broker-version", "5.3.3", "--apply", "--yes").expect(0)
    record = timer_check.parse((root / CHECK).read_bytes())
    assert READ - 10_000 < record.last_read_time_ms <= READ
    assert record.last_timer_queue_offset == record.master_timer_queue_offset == 66
    with Store.open(root) as store:
        files = TimerFiles.of(store)
        units, start = files.units(READ // 1000), files.start(READ, 0, store.log.end)
    assert sorted(units.physical) == sorted(waiting.physical)
    assert start.pending >= PENDING
    assert (start.unreachable, start.gone, start.waiting) == (0, 0, 0)
    rmqctl("verify", root).expect(0)
    assert rmqctl("recover", root, "-o", "json").expect(0).json()["actions"] == []
