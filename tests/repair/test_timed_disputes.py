"""REAL_TOPIC of a timed message against its unit in the timer log: who is right, or unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl.broker.timer import TimerFiles, rebuilt_wheel
from rmqctl.formats.local.message import Record
from rmqctl.formats.timer.timer_wheel import FILE_SIZE
from rmqctl.store import Store
from tests.checks.timers import CHECK, LOGS, SET, place, unit
from tests.support.cli import run

POSITION = 520
"""A unit of the timer log."""


def message_of(store: Path) -> tuple[Path, int, Record]:
    """(log file, position in it, the message) of the unit."""
    at = unit(store, POSITION).physical_offset
    with Store.open(store) as opened:
        record, file = opened.log.record_at(at), opened.log.file_of(at)
    return Path(file.path), at - file.base, record


def changed(store: Path, where: int, byte: Callable[[int], int]) -> bytes:
    """Change a byte, counted from the name REAL_TOPIC on; the log file as it was."""
    path, at, _ = message_of(store)
    before = path.read_bytes()
    data = bytearray(before)
    spot = data.index(b"REAL_TOPIC", at) + where
    data[spot] = byte(data[spot])
    path.write_bytes(data)
    return before


def timer_log(store: Path) -> list[bytes]:
    return [(store / name).read_bytes() for name in LOGS]


@pytest.mark.parametrize(("where", "bit"), [(0, 1), (9, 4), (11, 1), (13, 2), (22, 16)])
def test_a_unit_proves_what_the_message_named(golden_copy, where: int, bit: int):
    store = golden_copy(SET)
    units = timer_log(store)
    path, _, _ = message_of(store)
    before = changed(store, where, lambda byte: byte ^ bit)
    plan = run("recover", store, "--apply", "--yes", "-o", "json").expect(0).json()
    assert [action["target"] for action in plan["actions"] if action["action"] == "correct"] == [
        f"commitlog/{path.name}"]
    assert path.read_bytes() == before
    assert timer_log(store) == units
    assert run("verify", store, "-o", "json").expect(0).json()["findings"] == []


def test_a_damaged_hash_in_a_unit_changes_no_message(golden_copy):
    store = golden_copy(SET)
    path, _, _ = message_of(store)
    before = path.read_bytes()
    file, at = place(POSITION, "topic_hash")
    data = bytearray((store / file).read_bytes())
    data[at] ^= 16
    (store / file).write_bytes(data)
    plan = run("recover", store, "--apply", "--yes", "-o", "json").expect(0).json()
    assert "timerlog" in [action["target"] for action in plan["actions"]]
    assert path.read_bytes() == before
    assert run("verify", store, "-o", "json").expect(0).json()["ok"]


def test_what_nothing_proves_is_left_and_told(golden_copy):
    """Two changed bytes: the unit says that the message is wrong, and not what it was."""
    store = golden_copy(SET)
    units = timer_log(store)
    changed(store, 11, lambda byte: byte ^ 1)
    path, _, _ = message_of(store)
    data = bytearray(path.read_bytes())
    _, at, _ = message_of(store)
    data[data.index(b"REAL_TOPIC", at) + 14] ^= 2
    path.write_bytes(data)
    plan = run("recover", store, "--apply", "--yes", "-o", "json").expect(1).json()
    assert plan["left_damaged"] == ["timer"]
    assert any("REAL_TOPIC of 1 timed message" in note for note in plan["notes"])
    assert timer_log(store) == units
    assert path.read_bytes() == bytes(data)
    [finding] = [reported_finding for reported_finding in run("verify", store, "-o",
                                                              "json").expect(1).json()["findings"]
                 if reported_finding["severity"] == "error"]
    assert finding["detail"].startswith("topic_hash of the unit at 520")


@pytest.mark.parametrize("left", [0, 52])
def test_a_wheel_ahead_of_the_timer_log_is_rebuilt(golden_copy, left: int):
    """A power loss: the timer log lost its end, and timercheck was written before."""
    store = golden_copy(SET)
    with Store.open(store) as opened:
        pages = rebuilt_wheel(TimerFiles.of(opened), None)
    with (store / "timerwheel").open("wb") as wheel:
        wheel.truncate(FILE_SIZE)
        for at, page in pages.items():
            wheel.seek(at)
            wheel.write(page)
    log = store / LOGS[-1]
    if left:
        data = log.read_bytes()
        log.write_bytes(data[:left] + bytes(len(data) - left))
    else:
        log.unlink()
    check = bytearray((store / CHECK).read_bytes())
    check[8:16] = (2688).to_bytes(8, "big")
    (store / CHECK).write_bytes(check)
    findings = run("verify", store, "-o", "json").expect(1).json()["findings"]
    assert {finding["category"] for finding in findings} == {"timer-wheel"}
    assert run("doctor", store, "-o", "json").json()["next"][0].startswith("rmqctl recover ")
    run("recover", store, "--apply", "--yes").expect(0)
    assert run("verify", store, "-o", "json").expect(0).json()["ok"]
    assert run("recover", store, "-o", "json").expect(0).json()["actions"] == []
