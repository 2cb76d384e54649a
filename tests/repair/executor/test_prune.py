"""``undo --prune``: what old repairs keep is deleted, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqctl.repair.executor import prune
from rmqctl.repair.executor.executor import Repair
from rmqctl.repair.executor.journal import ids
from rmqctl.repair.plan import MoveAside, Replace
from tests.conftest import Runner
from tests.repair.executor import samples
from tests.repair.executor.test_apply import apply
from tests.support import holder, snapshot

YEAR_2001, YEAR_2002 = 1_000_000_000_000, 1_030_000_000_000
FUTURE = 4_000_000_000_000


@pytest.fixture
def root(folder: Path) -> Path:
    """Two repairs of long ago, the second of which moved a log file away, and one to come."""
    root = samples.make(folder / "store")
    apply(root, Replace("checkpoint", b"a" * 5000), now=YEAR_2001)
    apply(root, MoveAside("commitlog/00000000000000018000"), now=YEAR_2002)
    apply(root, Replace("checkpoint", b"b"), now=FUTURE)
    return root


def outside(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*")
            if path.is_file() and ".rmqctl" not in path.parts}


def test_the_plan_changes_nothing(root: Path, rmqctl: Runner) -> None:
    with snapshot.assert_unchanged(root):
        done = rmqctl("undo", root, "--prune", "30d", "-o", "json").expect(0).json()
    assert [(repair["time"], repair["log_files"], repair["bytes"] > 0)
            for repair in done["repairs"]] == [
                (YEAR_2001, 0, True), (YEAR_2002, 1, True)]
    assert done["applied"] is False
    assert done["bytes"] == sum(repair["bytes"] for repair in done["repairs"])


def test_only_the_old_ones_go(root: Path, rmqctl: Runner) -> None:
    before, newest = outside(root), ids(str(root))[-1]
    rmqctl("undo", root, "--prune", "30d", "--apply", "--yes").expect(0)
    assert os.listdir(root / ".rmqctl/repairs") == [newest]
    assert outside(root) == before
    rmqctl("undo", root, newest, "--yes").expect(0)
    assert (root / "checkpoint").read_bytes() == b"a" * 5000
    assert rmqctl("undo", root, "--prune", "30d", "-o", "json").json()["repairs"] == []


def test_it_stops_at_the_first_that_is_younger(folder: Path, rmqctl: Runner) -> None:
    """The clock was set back: what was made later must not go before it."""
    root = samples.make(folder / "store")
    apply(root, Replace("checkpoint", b"a"), now=FUTURE)
    apply(root, Replace("checkpoint", b"b"), now=YEAR_2001)
    done = rmqctl("undo", root, "--prune", "30d", "-o", "json").expect(0).json()
    assert done["repairs"] == []


def test_an_unfinished_repair_keeps_all(root: Path, rmqctl: Runner) -> None:
    (root / ".rmqctl/repairs" / ids(str(root))[0] / "state.json").unlink()
    with snapshot.assert_unchanged(root):
        done = rmqctl("undo", root, "--prune", "30d").expect(6)
    assert "was interrupted" in done.err


def test_a_kill_in_between(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given up is given up: it is no repair any more, and the next run takes the rest away."""
    oldest = ids(str(root))[0]
    with monkeypatch.context() as patched, Repair(str(root), "undo") as held:
        patched.setattr(prune, "clear", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            held.prune([oldest])
    assert (root / ".rmqctl/repairs" / oldest / "aside").is_dir()
    assert oldest not in [entry.id for entry in prune.history(str(root))]
    with Repair(str(root), "undo"):
        assert oldest not in ids(str(root))


def test_while_a_broker_runs(root: Path, rmqctl: Runner) -> None:
    (root / "lock").write_bytes(b"lock")
    with holder.held(root):
        rmqctl("undo", root, "--prune", "30d", "--apply", "--yes").expect(4)
    assert len(ids(str(root))) == 3


@pytest.mark.parametrize("words", [
    ["--prune", "30d", "--apply"], ["--apply", "--dry-run"], ["--prune", "x"],
    ["--prune", "1d", "--force"], ["ID", "--prune", "1d"],
    ["--prune", "1d", "--apply", "--dry-run", "--yes"]])
def test_options_that_do_not_go_together(root: Path, rmqctl: Runner, words: list[str]) -> None:
    with snapshot.assert_unchanged(root):
        rmqctl("undo", root, *words).expect(2)
