"""`timers list`: each timed message that waits, and what a start makes of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rmqctl.broker.timer import TimerFiles
from rmqctl.checks.pending_timers import (
    GONE,
    MISSING,
    NEVER,
    PENDING,
    SKIPPED,
    UNREACHABLE,
    WAITING,
    pending_timers,
)
from rmqctl.formats.local.properties import TIMER_TOPIC
from rmqctl.store import Store
from tests.checks.test_timer_start import FIRST_DUE, READ, WEEK
from tests.checks.timers import LOGS, SET, WHEEL
from tests.conftest import GoldenFolder
from tests.support.cli import run


def listed(root: Path, now: int = READ) -> list[dict[str, object]]:
    with Store.open(root) as store:
        return list(pending_timers(store, now))


@pytest.mark.parametrize("now", [READ, FIRST_DUE + WEEK, READ + 400 * 86_400_000])
@pytest.mark.parametrize("gone", [(), (WHEEL,), (LOGS[-1],), (LOGS[0], WHEEL), LOGS])
def test_as_many_as_a_start_counts(golden_copy: GoldenFolder, gone: tuple[str, ...],
                                   now: int) -> None:
    root = golden_copy(SET)
    for name in gone:
        (root / name).unlink()
    with Store.open(root) as store:
        start = TimerFiles.of(store).start(now, store.log.min_offset, store.log.end)
    states = Counter(row["state"] for row in listed(root, now))
    assert states[SKIPPED] == start.skipped
    assert states[UNREACHABLE] == start.unreachable
    assert states[GONE] == start.gone
    assert sum(states.values()) - states[WAITING] - states[MISSING] == start.pending
    assert states[WAITING] == start.waiting
    lost = [loss["count"] for loss in run("preflight", root, "-o", "json").json()["losses"]
            if "units of these messages are missing" in loss["cause"]]
    assert now != READ or [states[MISSING]] == (lost or [0])
    if gone == tuple(LOGS):
        assert states[MISSING] > 40


def test_they_are_messages_of_the_log(golden: GoldenFolder) -> None:
    root = golden(SET)
    rows = [row for row in listed(root) if row["state"] == PENDING]
    assert rows
    messages = {message["physical_offset"]: message for message in run(
        "read", root, "--topic", TIMER_TOPIC, "-o", "json").json()}
    for row in rows:
        properties = messages[row["physical_offset"]]["properties"]
        assert (row["topic"], row["due"]) == (
            properties["REAL_TOPIC"], int(properties["TIMER_OUT_MS"]))


def test_a_log_that_lost_its_file_has_messages_that_are_gone(golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    first = min((root / "commitlog").iterdir())
    count = len(listed(root))
    first.unlink()
    rows = listed(root)
    assert len(rows) == count
    assert all((row["state"] == GONE) == (row["topic"] is None) for row in rows)
    assert any(row["state"] == GONE for row in rows)


def test_the_command(golden: GoldenFolder) -> None:
    root = golden(SET)
    rows = run("timers", "list", root, "-o", "json").expect(1).json()
    assert {row["state"] for row in rows} & NEVER  # due long ago
    lost = run("timers", "list", root, "--state", "lost", "--limit", "2", "-o", "json")
    assert lost.expect(1).json() == [row for row in rows if row["state"] in NEVER][:2]
    topic = rows[0]["topic"]
    assert {row["topic"] for row in run(
        "timers", "list", root, "--topic", topic, "-o", "json").json()} == {topic}
    assert run("timers", "list", golden("5.3.3/basic/store")).expect(0).out == ""
