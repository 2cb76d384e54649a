"""Which tests a run takes: tiers, areas, parts, seeds, a time limit (tests/README.md).

It also measures the CPU time of each case and lists those over the budget.

Loaded by tests/conftest.py. The process that starts the others decides; they are given its
decisions, so that all collect the same.
"""

from __future__ import annotations

import gc
import os
import random
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import case_shares, in_memory
from tests.support.share import FIXED_SEED, RUN

NOT_RUN = "not run: the time limit"
KEY = "rmqctl_run"
DEAR = ("tests/tiered/", "tests/engine_write/", "tests/repair/")
PIPELINE = Path(__file__).parent / "pipeline"
AREAS = {"serve": ("tests/serve/", "tests/remoting/"), "tiered": ("tests/tiered/",),
         "spark": ("tests/pipeline/",)}
"""Folders of each area; the area ``core`` is the rest."""
BUDGET_S = 0.5
"""CPU seconds of a case (its call, and the processes it waited for) that is not marked long."""
CPU = "cpu_s"
Decisions = dict[str, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rmqctl", "what a run takes")
    group.addoption("--exhaustive", action="store_true",
                    help="everything: every bit, every length, every call, long campaigns")
    group.addoption("--quick", action="store_true",
                    help="one case of each test; no Spark, nothing marked long")
    group.addoption("--area", choices=["core", *AREAS],
                    help="the tests of one area, with those that `make test` leaves out")
    group.addoption("--write-shares", action="store_true",
                    help="run every case that is not exhaustive; write tests/shares.toml")
    group.addoption("--part", metavar="K/N", help="the K-th of N parts of the tests, from 1")
    group.addoption("--time-limit", metavar="SECONDS", type=float,
                    help="begin no test after that many seconds; what is left is no failure")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A quick run does not even import what belongs to Spark: that alone takes seconds."""
    if config.getoption("--quick") and collection_path == PIPELINE:
        return True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    in_memory.install()
    given = getattr(config, "workerinput", {}).get(KEY) or _decide(config)
    RUN.seed, RUN.exhaustive, RUN.replays = given["seed"], given["exhaustive"], given["replays"]
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(RUN.seed)
    config.pluginmanager.register(_Run(config, given), "rmqctl-run")


def _decide(config: pytest.Config) -> Decisions:
    """Seed, tier and end of this run."""
    exhaustive = config.getoption("--exhaustive")
    given = os.environ.get("RMQCTL_SEED")
    picked = random.SystemRandom().randrange(2 ** 31) if exhaustive else FIXED_SEED
    limit = config.getoption("--time-limit")
    return {"seed": int(given or picked), "exhaustive": exhaustive, "replays": bool(given),
            "until": None if limit is None else time.time() + limit}


class _Run:
    """One run: what is left out, and what is said at its start and end."""

    def __init__(self, config: pytest.Config,
                 decisions: Decisions) -> None:
        self._config = config
        self._decisions = decisions
        self._until = decisions["until"]
        self._over_budget: list[tuple[float, str]] = []
        self._costs: dict[str, list[float]] = {}

    def _names_tests(self) -> bool:
        """Whether the command line names tests, by file or by -k: then all their cases run."""
        return bool(self._config.getoption("keyword")) or any(
            "::" in word or word.endswith(".py") for word in self._config.args)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """A process of pytest-xdist is about to start."""
        node.workerinput[KEY] = self._decisions

    @property
    def _seed_line(self) -> str:
        return f"seed {RUN.seed} (again with RMQCTL_SEED={RUN.seed}, or make ... SEED={RUN.seed})"

    def pytest_sessionstart(self) -> None:
        if terminal := self._config.pluginmanager.getplugin("terminalreporter"):
            terminal.ensure_newline()
            terminal.write_line(self._seed_line)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        taken = items
        area = self._config.getoption("--area")
        if area:
            taken = [item for item in taken if _area(item) == area]
        if not RUN.exhaustive:
            taken = [item for item in taken if "exhaustive" not in item.keywords]
        if not (RUN.exhaustive or area or self._config.getoption("--write-shares")
                or self._names_tests()):
            taken = [item for item in taken if "area" not in item.keywords]
            taken = case_shares.reduced(taken, case_shares.table())
        if self._config.getoption("--quick"):
            taken = _quick(taken)
        if part := self._config.getoption("--part"):
            taken = _part(taken, part)
        if len(taken) < len(items):
            chosen = set(map(id, taken))
            self._config.hook.pytest_deselected(
                items=[item for item in items if id(item) not in chosen])
            items[:] = taken

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """The tests themselves stay to the end: three million objects to look at in vain."""
        gc.freeze()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if self._until is not None and time.time() > self._until:
            pytest.skip(NOT_RUN)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Note the CPU time of the case; its report carries it to the process that prints."""
        begin = _cpu_seconds()
        try:
            return (yield)
        finally:
            item.user_properties.append((CPU, round(_cpu_seconds() - begin, 3)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        spent = dict(report.user_properties).get(CPU, 0.0)
        if report.when == "call":
            self._costs.setdefault(case_shares.function_of(report.nodeid), []).append(
                max(spent, report.duration))
        if report.when == "call" and spent > BUDGET_S and "long" not in report.keywords:
            self._over_budget.append((spent, report.nodeid))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self._config.getoption("--write-shares"):
            case_shares.TABLE.write_text(case_shares.written(self._costs))
        if self._over_budget:
            terminalreporter.write_line(
                f"{len(self._over_budget)} cases took over {BUDGET_S} CPU seconds and are not "
                "marked long:")
            for spent, name in sorted(self._over_budget, reverse=True):
                terminalreporter.write_line(f"  {spent:6.2f} s  {name}")
        left = sum(NOT_RUN in str(report.longrepr)
                   for report in terminalreporter.stats.get("skipped", ()))
        if left:
            terminalreporter.write_line(
                f"time limit of {self._config.getoption('--time-limit'):g} s: "
                f"{left} tests were not begun (counted as skipped)")
        terminalreporter.write_line(self._seed_line)


def _cpu_seconds() -> float:
    """CPU time of this process and of the child processes it has waited for."""
    return sum(os.times()[:4])


def _area(item: pytest.Item) -> str:
    return next((area for area, folders in AREAS.items() if item.nodeid.startswith(folders)),
                "core")


def _quick(items: list[pytest.Item]) -> list[pytest.Item]:
    """One case of each test, by the seed; none that needs Spark or is marked long.

    Of the folders in `DEAR` a third of the tests, by the seed too.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = item.nodeid.split("[")[0]
        if name.startswith(DEAR) and (zlib.crc32(name.encode()) + RUN.seed) % 3:
            continue
        if "long" not in item.keywords and not _group(item).startswith("spark"):
            cases.setdefault(name, []).append(item)
    chosen = {id(scenario[RUN.seed % len(scenario)]) for scenario in cases.values()}
    return [item for item in items if id(item) in chosen]


def _part(items: list[pytest.Item], part: str) -> list[pytest.Item]:
    """The tests whose hash falls on this part; one module's tests of an xdist group stay together.

    A group as a whole could be no part: all of Spark is one.
    """
    try:
        which, of = (int(word) for word in part.split("/"))
    except ValueError:
        which, of = 0, 0
    if not 1 <= which <= of:
        raise pytest.UsageError(f"--part {part}: write it as 3/8, from 1/8 to 8/8")
    return [item for item in items if zlib.crc32(_unit(item).encode()) % of == which - 1]


def _unit(item: pytest.Item) -> str:
    """What of a test's name decides its part."""
    return item.nodeid.split("::")[0] if _group(item) else item.nodeid


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0] if mark.args else mark.kwargs["name"]) if mark else ""
