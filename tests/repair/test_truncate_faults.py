"""`truncate` and `expire` through failing calls, kills and power failures: old or new, undoable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Runner
from tests.repair.accidents import faults_of, kills_of
from tests.repair.cutting import offsets
from tests.support import snapshot
from tests.support.cli import Result
from tests.support.tiny import Tiny

both = pytest.mark.parametrize("name", ["truncate", "expire"])


def command(name: str, tiny: Tiny, rmqctl: Runner) -> Callable[[Path], Result]:
    words = {"truncate": ["--to-phy", str(offsets(tiny.root, "")[3])],
             "expire": ["--keep-bytes", "1"]}[name]
    return lambda root: rmqctl(name, root, *words, "--apply", "--yes")


def make(tiny: Tiny) -> Callable[[Path], Path]:
    return lambda folder: snapshot.copy_tree(tiny.root, folder)


@pytest.mark.long
@both
def test_some_failing_calls(name: str, tiny: Tiny, rmqctl: Runner, tmp_path: Path) -> None:
    assert faults_of(command(name, tiny, rmqctl), make(tiny), tmp_path / "faults", step=29) >= 5


@pytest.mark.long
@both
def test_some_kills(name: str, tiny: Tiny, rmqctl: Runner, tmp_path: Path) -> None:
    assert kills_of(command(name, tiny, rmqctl), make(tiny), tmp_path / "kills", most=6) >= 5


@pytest.mark.exhaustive
@both
def test_every_failing_call(name: str, tiny: Tiny, rmqctl: Runner, tmp_path: Path) -> None:
    assert faults_of(command(name, tiny, rmqctl), make(tiny), tmp_path / "faults") >= 100


@pytest.mark.exhaustive
@both
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_a_kill_at_every_call(name: str, power: bool, tiny: Tiny, rmqctl: Runner,
                              tmp_path: Path) -> None:
    assert kills_of(command(name, tiny, rmqctl), make(tiny), tmp_path / "kills",
                    power=power) >= 50
