"""Plans for a tier go through the one executor: kills, locks, copies, and `undo`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from rmqctl.files.lock import StoreLock
from rmqctl.repair.executor import executor
from rmqctl.repair.executor.journal import pending
from tests.conftest import GoldenFolder
from tests.repair.accidents import faults_of, kills_of
from tests.support import cli
from tests.tiered import recovering


@pytest.fixture
def make(golden: GoldenFolder, monkeypatch):
    """A tier with its metadata inside, so that one folder has all that changes; damaged in every
    way that is recovered to the same bytes each time.
    """
    monkeypatch.setattr("rmqctl.ext.tiered.recover.recover.now_ms", lambda: 1_800_000_000_000)

    def write_tier(folder: Path) -> None:
        shutil.copytree(golden(recovering.GOLDEN) / "tieredstore", folder)
        shutil.copytree(golden(recovering.GOLDEN) / "config", folder / "config")
        below = folder / "212d6b50_DefaultCluster/broker-a/TP_user_Topic"
        (below / "0/CONSUME_QUEUE" / recovering.name_of(1000)).unlink()
        torn = below / "0/CONSUME_QUEUE" / recovering.name_of(2000)
        torn.write_bytes(torn.read_bytes()[:-7])
        data = (below / "1/COMMIT_LOG" / recovering.name_of(23336)).read_bytes()
        at = list(recovering.sizes(data))[2][0]
        (below / "1/COMMIT_LOG" / recovering.name_of(23336)).write_bytes(
            data[:at] + data[at:at + 50] + data[at:])
    return write_tier


def recover(root: Path):
    return cli.run("tiered", "recover", root, "--apply", "-o", "json")


def expire(root: Path):
    return cli.run("tiered", "expire", root, "--older-than", "0s", "--now", "1795233890000",
                   "--apply", "-o", "json")


@pytest.mark.long
def test_kills_of_recover(make, tmp_path):
    assert kills_of(recover, make, tmp_path, most=6) == 6


@pytest.mark.long
def test_kills_of_expire(make, tmp_path):
    assert kills_of(expire, make, tmp_path, most=5) == 5


@pytest.mark.long
def test_power_failures(make, tmp_path):
    assert kills_of(recover, make, tmp_path, most=2, power=True) == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [recover, expire])
def test_kills_at_every_call(make, tmp_path, command):
    assert kills_of(command, make, tmp_path) > 60


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [recover, expire])
def test_faults(make, tmp_path, command):
    assert faults_of(command, make, tmp_path, step=5) > 20


# -- locks ----------------------------------------------------------------------------------------


def test_both_locks(root):
    """A broker holds its own root, another rmqctl the tier."""
    (root / recovering.METADATA).unlink()
    before = recovering.content(root)
    for place in (root, root / "tieredstore"):
        with StoreLock(place):
            result = cli.run_process("tiered", "recover", root / "tieredstore", "--apply").expect(4)
            assert "held" in result.err
    assert not recovering.changed(before, recovering.content(root))
    cli.run("tiered", "recover", root / "tieredstore").expect(0)


def test_undo_holds_the_brokers_root(root):
    (root / recovering.METADATA).unlink()
    recovering.recover(root)
    with StoreLock(root):
        cli.run_process("undo", root / "tieredstore", "--yes").expect(4)
    recovering.undo(root)
    assert not (root / recovering.METADATA).exists()


def test_plan_warns_where_the_broker_runs(root):
    with StoreLock(root):
        result = cli.run_process("tiered", "recover", root / "tieredstore").expect(0)
    assert "holds the store" in result.err


def test_note_of_the_brokers_root(tmp_path):
    """It moves with a tier that lies in it, and says nothing where it is damaged."""
    home, tier = tmp_path / "home", tmp_path / "home" / "tier"
    tier.mkdir(parents=True)
    other = tmp_path / "other"
    other.mkdir()
    with_note = executor.RootLocks(str(tier), [str(home), str(other), str(tmp_path / "nothing")])
    with_note.acquire()
    with_note.note()
    assert with_note.held
    with_note.release()
    assert not with_note.held
    assert executor.noted_roots(str(tier)) == [str(home), str(other)]
    moved = tmp_path / "moved"
    home.rename(moved)
    assert executor.noted_roots(str(moved / "tier")) == [str(moved), str(other)]
    note = moved / "tier/.rmqctl" / executor.ROOTS_NOTE
    for text in ("", "[]", '{"homes": 1}', '{"homes": [1, "a\\u0000b"]}', "[" * 9999):
        note.write_text(text)
        assert executor.noted_roots(str(moved / "tier")) == []


# -- undo -----------------------------------------------------------------------------------------


def test_undo_list(root):
    cli.run("undo", root / "tieredstore", "--list").expect(0)
    cli.run("undo", root / "tieredstore").expect(6)
    (root / recovering.METADATA).unlink()
    recovering.recover(root)
    rows = cli.run("undo", root / "tieredstore", "--list", "-o", "jsonl").expect(0).jsonl()
    assert [(row["command"], row["state"]) for row in rows] == [("tiered recover", "applied")]


def test_undo_where_neither_store_nor_tier_is(tmp_path):
    cli.run("undo", tmp_path).expect(3)


@pytest.mark.parametrize("whole", [False, True])
def test_undo_of_a_copy_leaves_the_original_alone(root, tmp_path, whole):
    """The copy's journal names files of the original: those of its own lie beside it, or none."""
    (root / recovering.METADATA).unlink()
    recovering.recover(root)
    before = recovering.content(root)
    copy = tmp_path / "second"
    shutil.copytree(root if whole else root / "tieredstore",
                    copy if whole else copy / "tieredstore")
    cli.run("undo", copy / "tieredstore", "--yes").expect(0 if whole else 6)
    assert not (copy / recovering.METADATA).exists()
    assert not recovering.changed(before, recovering.content(root))


def test_interrupted_outside_of_the_tier(root):
    """Killed between the tier's files and metadata: the next run completes it."""
    (root / recovering.METADATA).unlink()
    (root / recovering.place("TP_user_Topic", 0, "CONSUME_QUEUE", 1000)).unlink()
    before = recovering.content(root)
    child = os.fork()
    if not child:
        real = os.rename

        def rename(source: str, target: str, **more: int) -> None:
            real(source, target, **more)
            if str(target).endswith(recovering.name_of(1000)):
                os._exit(7)

        os.rename = rename  # type: ignore[assignment]
        try:
            recover(root / "tieredstore")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert pending(str(root / "tieredstore"))
    assert not (root / recovering.METADATA).exists()
    result = cli.run("tiered", "recover", root / "tieredstore", "--apply").expect(0)
    assert "completed first" in result.err
    assert (root / recovering.METADATA).exists()
    assert recovering.recover(root, apply=False)["actions"] == []
    recovering.undo(root)
    assert not recovering.changed(before, recovering.content(root))


def test_nothing_strange_beside_segments(root):
    """While and after: only names of segments, and `.rmqctl` in the tier root."""
    shutil.rmtree(root / recovering.place("TP_user_Topic", 0, "CONSUME_QUEUE"))
    recovering.recover(root)
    names = {path.name for path in (root / "tieredstore").rglob("*")
             if ".rmqctl" not in path.parts and path.is_file()}
    assert all(len(name) == 28 or name == "lock" for name in names)
    assert sorted(path.name for path in (root / "tieredstore").iterdir()) == [
        ".rmqctl", "212d6b50_DefaultCluster", "lock"]
    note = json.loads((root / "tieredstore/.rmqctl/held.json").read_text())
    assert note == {"homes": [".."]}
