"""What a run of the suite takes: shares, parts, tiers, the time limit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import case_shares, environment
from tests.support.share import RUN, Run, every, examples, sample

ROOT = Path(__file__).parents[1]
SUITE = """
import pytest
from tests.support.share import RUN, every, sample

@pytest.mark.parametrize("number", range(40))
def test_many(number):
    pass

@pytest.mark.parametrize("number", sample(range(40), 8, "numbers", always=[3]))
def test_share(number):
    assert number < 40

@pytest.mark.area
def test_area():
    pass

@pytest.mark.exhaustive
def test_expensive():
    assert False, f"seed is {RUN.number('test_expensive')}"

@pytest.mark.long
def test_long():
    pass

@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("number", range(5))
def test_spark(number):
    pass
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
        as_run):
    """``run("--quick", seed="3")``: the output of a small suite of its own under this plugin."""
    (tmp_path / "test_it.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  exhaustive:\n  long:\n  area:\n")
    for name in [variable for variable in os.environ
                 if variable.startswith(("PYTEST_XDIST", "RMQCTL_SEED"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    as_run(Run())

    def start(*args: str, seed: str = "") -> str:
        capsys.readouterr()
        sys.modules.pop("test_it", None)  # its shares are those of the run that imported it
        words = ["-v", "-s", "--import-mode=importlib", "-p", "tests.plugin_run",
                 "-p", "no:cacheprovider", "-p", "no:hypothesispytest",
                 "-c", str(tmp_path / "pytest.ini"), *args, str(tmp_path),
                 # Without a its own folder it would take away what old runs of ours left.
                 f"--basetemp={tmp_path / 'base'}"]
        with monkeypatch.context() as patch:
            if seed:
                patch.setenv("RMQCTL_SEED", seed)
            if "-n" in args:
                return subprocess.run([sys.executable, "-m", "pytest", *words], text=True,
                                      capture_output=True, timeout=300, check=False).stdout
            pytest.main(words)
        return "".join(capsys.readouterr())

    return start


@cache
def source(path: Path) -> str:
    return path.read_text()


def names(output: str) -> set[str]:
    """The tests that ran, in the words of pytest and of pytest-xdist."""
    name = r"::(test_\w+(?:\[\d+\])?)(?:@\w+)?"
    return (set(re.findall(name + r" (?:PASSED|FAILED)", output))
            | set(re.findall(r"(?:PASSED|FAILED) \S*" + name + " $", output, re.MULTILINE)))


@pytest.fixture
def as_run(monkeypatch: pytest.MonkeyPatch):
    def change(run: Run) -> None:
        for name in ("seed", "exhaustive", "replays"):
            monkeypatch.setattr(RUN, name, getattr(run, name))
    return change


def test_shares_of_following_seeds_take_all(as_run) -> None:
    whole = list(range(100))
    taken: set[int] = set()
    for seed in range(20_000, 20_010):
        as_run(Run(seed))
        share = sample(whole, 10, "a list", always=[7])
        assert len(share) == 11
        assert share == sorted(share)
        assert 7 in share
        assert sample(whole, 10, "another list") != sample(whole, 10, "a third list")
        taken |= set(share)
    assert len(taken) == 100
    assert {number for seed in range(11)
            for number in _every(as_run, seed, 11, whole)} == set(whole)
    as_run(Run(4, exhaustive=True))
    assert sample(whole, 10, "a list") == list(every(11, whole, "a list")) == whole


def _every(as_run, seed, step, whole):
    as_run(Run(seed))
    return every(step, whole, "positions")


def test_a_property_has_all_examples_in_an_exhaustive_run(as_run) -> None:
    as_run(Run(4, exhaustive=True))
    assert examples(300) == 300
    as_run(Run(4))
    assert examples(300) == 120


def test_more_than_there_is_is_all(as_run) -> None:
    as_run(Run(12345))
    assert sample("abc", 5, "letters") == ["a", "b", "c"]
    assert sample([], 5, "nothing") == []
    assert sample("abc", 0, "letters", always=lambda name: name == "b") == ["b"]


def test_default_and_quick(run) -> None:
    output = run(seed="11")
    taken = names(output)
    assert len([name for name in taken if name.startswith("test_share")]) == 9
    assert not {"test_expensive", "test_area"} & taken
    assert {"test_long", "test_spark[4]", "test_many[39]"} <= taken
    assert output.count("seed 11 ") == 2
    assert run().count("seed 0 ") == 2, "without a seed, each run has the same"
    core = names(run("--area", "core", seed="11"))
    assert core == taken | {"test_area"}
    assert not names(run("--area", "serve", seed="11"))
    assert taken == names(run("-n", "2", "--dist", "loadgroup", seed="11"))
    quick = names(run("--quick", seed="11"))
    assert len(quick) == 2
    assert not quick & {"test_long", "test_expensive"}


def test_parts_together_are_everything(run) -> None:
    whole = names(run("--exhaustive"))
    assert len(whole) == 40 + 40 + 1 + 1 + 1 + 5
    parts = [names(run("--exhaustive", "--part", f"{part}/3")) for part in (1, 2, 3)]
    assert set().union(*parts) == whole
    assert sum(map(len, parts)) == len(whole)
    assert sorted(len([text for text in part if text.startswith("test_spark")])
                  for part in parts) == [0, 0, 5]
    assert "write it as 3/8" in run("--part", "4/3")


def test_a_picked_seed_gives_the_same_again(run) -> None:
    first = run("--exhaustive", "-n", "1", "-k", "expensive")
    seeds = re.findall(r"^seed (\d+) ", first, re.MULTILINE)
    assert len(seeds) == 2
    assert len(set(seeds)) == 1
    number = re.search(r"seed is (\d+)", first)[1]
    assert f"seed is {number}" in run("--exhaustive", "-k", "expensive", seed=seeds[0])
    assert f"seed is {number}" not in run("--exhaustive", "-k", "expensive", seed="4")


def test_what_the_time_limit_leaves_is_no_failure(run) -> None:
    output = run("--time-limit", "0", "-k", "long or spark", "-n", "1")
    assert "time limit of 0 s: 6 tests were not begun" in output
    assert re.search(r"^=* 6 skipped in ", output, re.MULTILINE)
    assert "not begun" not in run("--time-limit", "300", "-k", "test_many")


def test_of_an_expensive_function_some_cases_run() -> None:
    items = [SimpleNamespace(nodeid=f"tests/a.py::test_{name}[{number}]@group")
             for name in "bcd" for number in range(9)]
    counts = {"tests/a.py::test_b": 2, "tests/a.py::test_c": 0}
    kept = case_shares.reduced(items, counts)
    assert [len([item for item in kept if f"::test_{name}" in item.nodeid]) for name in "bcd"] == [
        2, 0, 9]
    assert kept == case_shares.reduced(items[::-1], counts)[::-1]


def test_the_table_of_shares_follows_the_costs() -> None:
    text = case_shares.written({"tests/a.py::test_cheap": [0.01] * 9,
                                "tests/a.py::test_dear": [0.05] * 9,
                                "tests/b.py::test_one_of_them": [0.25, 0.25],
                                "tests/b.py::test_too_dear": [0.5],
                                "tests/test_docs.py::test_whole": [9.0]})
    assert tomllib.loads(text) == {"tests/a.py": {"test_dear": 2},
                                   "tests/b.py": {"test_one_of_them": 1, "test_too_dear": 0}}


def test_the_table_of_shares_names_functions_that_exist() -> None:
    for function in case_shares.table():
        module, name = function.split("::")
        assert f"def {name}(" in source(ROOT / module), function


def test_the_budget_is_said(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.plugin_run.BUDGET_S", -1)
    output = run("-k", "test_long or test_many")
    assert "40 cases took over" in output
    assert "test_long" not in output.partition("40 cases took over")[2]


def test_only_variables_of_a_login_shell_stay() -> None:
    environ = {"PATH": "/bin", "HOME": "/h", "PYTHONUNBUFFERED": "1", "CI": "true", "COLUMNS": "9",
               "RMQCTL_STORE": "/s", "RMQCTL_SEED": "4", "PYTEST_XDIST_WORKER": "gw0"}
    environment.reduce_to_login(environ)
    assert sorted(environ) == ["HOME", "PATH", "PYTEST_XDIST_WORKER", "RMQCTL_SEED"]
