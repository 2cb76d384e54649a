"""Progress on a terminal: that it moves, what it says of the time left, and its width."""

from __future__ import annotations

import contextlib
import io
import threading

import pytest

from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.output import Output
from rmqctl.output.cells import display_width
from rmqctl.output.progress import BarProgress
from rmqctl.repair.recover import RecoverOptions, plan_recover
from rmqctl.repair.scratch import Scratch
from rmqctl.store import Store
from tests.support import damage


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Ticking:
    """A progress whose clock is moved by hand, and the line that it shows."""

    def __init__(self, total, *, width=80, unit_bytes=True):
        self.now = 0.0
        self.bar = BarProgress("reading the log", total, io.StringIO(), width=lambda: width,
                               clock=lambda: self.now, unit_bytes=unit_bytes)

    def after(self, seconds: float, amount: int = 0) -> str:
        self.now += seconds
        self.bar.advance(amount)
        return self.bar.line()


def test_the_time_left_is_that_of_the_phase_at_its_own_rate():
    run = Ticking(1000 << 20)
    assert "left" not in run.after(1, 400 << 20)  # too early to say
    for second in range(2, 9):
        line = run.after(1, 100 << 20 if second > 4 else 0)
        done = (400 + 100 * max(second - 4, 0)) / second
        left = (1000 - 400 - 100 * max(second - 4, 0)) / done
        assert f"{round(left) // 60}:{round(left) % 60:02} left" in line
    run.after(0, 10 << 20)
    assert "%" in run.bar.line()
    run.bar.phase("checking the index", 500 << 20)
    assert "left" not in run.bar.line()
    assert "0 B of 500.0 MiB" in run.bar.line()
    line = run.after(5, 100 << 20)
    assert "0:20 left" in line
    assert "checking the index" in line


def test_a_full_bar_is_not_shown_while_the_work_goes_on():
    run = Ticking(1000)
    assert "100%" not in run.after(10, 1000)
    line = run.after(70)
    assert "left" not in line
    assert "1:20" in line  # time goes on


def test_no_time_is_left_where_nothing_moves():
    run = Ticking(1000)
    assert "left" in run.after(5, 100)
    run.now += 60
    assert "left" not in run.bar.line()
    assert "left" in run.after(1, 100)


@pytest.mark.parametrize("width", [10, 30, 60, 80, 200])
def test_progress_is_never_wider_than_the_terminal(width):
    for total in (None, 1 << 40):
        run = Ticking(total, width=width)
        for seconds in (0, 1, 4000):
            assert display_width(run.after(seconds, 1 << 34)) < width


def test_progress_moves_without_any_sign_of_the_work():
    """The line is drawn by a clock: first within a second, then again and again."""
    err = Screen()
    out = Output.open("json", stdout=io.StringIO(), stderr=err, environ={"TERM": "xterm"})
    drawn = threading.Event()
    seen = []

    def write(text, real=err.write):
        if "planning" in text:
            seen.append(text)
            if len(seen) == 3:
                drawn.set()
        return real(text)

    err.write = write
    with out.progress("planning"):
        assert drawn.wait(60)
    assert len(set(seen)) == 3


def test_a_progress_within_another_is_a_phase_of_it():
    err = Screen()
    out = Output.open("json", stdout=io.StringIO(), stderr=err, environ={"TERM": "xterm"})
    with out.progress("planning") as around:
        around._show_at = 0
        with out.watch("rebuilding", 1000) as advance:
            advance(500)
            assert "rebuilding" in around.line()
            assert "50%" in around.line()
        assert "planning" in around.line()
        assert "%" not in around.line()
    with out.progress("verify", 10) as later:
        assert isinstance(later, BarProgress)


@pytest.mark.parametrize("jobs", [1, 2, 3])
@pytest.mark.parametrize("harm", [False, True])
def test_verify_tells_of_each_byte_once(golden_copy, jobs, harm):
    root = golden_copy("5.3.3/basic/store")
    if harm:
        damage.zero(root, "commitlog/00000000000000065536", 30_000, 20_000)
    numbers: list[int] = []
    phases: list[str] = []
    with Store.open(str(root)) as store:
        options = VerifyOptions(jobs=jobs, minimum_range=20_000)
        list(Verification(store, options, numbers.append, phase=phases.append).findings())
        assert sum(numbers) == store.log.size
        assert min(numbers) >= 0
    assert phases == ["comparing consume queues and index", "checking the other files"]


@pytest.mark.long
def test_recover_names_each_pass_and_tells_no_more_than_its_bytes(golden_copy):
    root = golden_copy("5.3.3/basic/store")
    damage.flip_bit(root, "commitlog/00000000000000065536", 40_301, 3)
    damage.zero(root, "consumequeue/TP_fraud_Topic/0/00000000000000000380", 20, 60)
    totals: dict[str, list[int]] = {}

    @contextlib.contextmanager
    def watch(label, total):
        totals[label] = [total]
        yield totals[label].append

    with Scratch() as scratch:
        plan_recover(str(root), scratch, RecoverOptions(jobs=2), watch)
    assert list(totals)[:3] == ["checking the store", "looking for damage", "rebuilding"]
    for label, (total, *parts) in totals.items():
        assert sum(parts) <= total, label
    assert len(totals["looking for damage"]) > 2
