"""``rmqctl undo``: what it prints, asks and refuses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rmqctl.commands.shared import applying
from rmqctl.errors import StoreIOError
from rmqctl.files.aside import AsideFolder
from rmqctl.repair.executor.journal import history
from rmqctl.repair.plan import Replace
from tests.engine_write.files_support import failing
from tests.repair.accidents import differences, state
from tests.repair.executor import samples
from tests.repair.executor.test_apply import apply
from tests.support import snapshot


@pytest.fixture
def root(folder: Path) -> Path:
    return samples.make(folder / "store")


def test_list(root, rmqctl):
    with snapshot.assert_unchanged(root):
        assert rmqctl("undo", root, "--list", "-o", "json").expect(0).json() == []
        assert rmqctl("undo", root, "--list").expect(0).err == "rmqctl: no repairs\n"
    first = samples.repair(root).id
    second = apply(root, Replace("checkpoint", b"x"), now=4_000_000_000_000).id
    rmqctl("undo", root, "--yes").expect(0)
    with snapshot.assert_unchanged(root):
        rows = rmqctl("undo", root, "--list", "-o", "json").expect(0).json()
    assert [(row["id"], row["state"], row["actions"], row["files"]) for row in rows] == [
        (second, "undone", 1, 1), (first, "applied", 3, 13)]
    assert rows[0]["time"] == 4_000_000_000_000
    assert {row["command"] for row in rows} == {"recover"}
    assert first in rmqctl("undo", root, "--list").expect(0).out


def test_what_was_put_aside_without_a_repair(root, rmqctl):
    """What an opening of the store or a dispatch replaced is listed, and no repair to take back."""
    done = samples.repair(root)
    AsideFolder(str(root)).save_bytes(str(root / "commitlog/0"), 7, b"torn")
    (root / ".rmqctl/tiered/aside/000000/q").mkdir(parents=True)
    with snapshot.assert_unchanged(root):
        rows = rmqctl("undo", root, "--list", "-o", "json").expect(0).json()
        assert [(row["state"], row["files"]) for row in rows] == [
            ("applied", 13), ("aside", 0), ("aside", 1)]
        assert rows[1]["id"] == "tiered/aside/000000"
        kept = root / ".rmqctl" / rows[2]["id"] / "commitlog/0.at-7"
        assert kept.read_bytes() == b"torn"
        refused = rmqctl("undo", root, rows[2]["id"], "--yes").expect(6).err
        assert "is not a repair" in refused
        assert str(root / ".rmqctl" / rows[2]["id"]) in refused
    assert rmqctl("undo", root, "--yes", "-o", "json").expect(0).json()["id"] == done.id


def test_undo(root, rmqctl):
    old = state(root)
    done = samples.repair(root)
    with snapshot.assert_unchanged(root):
        shown = rmqctl("undo", root, "--dry-run", "-o", "json").expect(0).json()
    assert (shown["undone"], shown["state"], shown["changed"]) == (False, "applied", [])
    document = rmqctl("undo", root, done.id, "-o", "json").expect(0).json()
    assert {**document, "actions": len(document["actions"])} == {
        "id": done.id, "time": document["time"], "command": "recover", "state": "undone",
        "actions": 3,
        "files": 13, "changed": [], "root": os.path.realpath(root), "host": os.uname().nodename,
        "kept": done.backup, "undone": True,
        "next": [f"rmqctl doctor {root}"], "steps": document["steps"]}
    assert [step["command"] for step in document["steps"]] == document["next"]
    assert not differences(state(root), old)
    again = rmqctl("undo", root, done.id, "-o", "json").expect(0)
    assert "was already undone" in again.err
    assert not differences(state(root), old)


def test_a_person_is_asked(root, rmqctl, monkeypatch):
    samples.repair(root)
    before = state(root)
    monkeypatch.setattr(applying, "at_a_terminal", lambda: True)
    id = history(str(root))[0].id  # noqa: A001
    no = rmqctl("undo", root, stdin=b"n\n").expect(1)
    assert f"Undo recover {id} (13 files or folders)? [y/N]" in no.err
    rmqctl("undo", root, stdin=b"").expect(130)
    assert state(root) == before
    rmqctl("undo", root, stdin=b"y\n").expect(0)
    assert state(root) != before


def test_refusals(root, rmqctl, folder):
    assert "no repair to undo" in rmqctl("undo", root).expect(6).err
    assert "no such file" in rmqctl("undo", folder / "none", "--list").expect(3).err
    (folder / "empty").mkdir()
    rmqctl("undo", folder / "empty").expect(3)
    assert not list((folder / "empty").iterdir())
    done = samples.repair(root)
    assert "has no repair 'x'" in rmqctl("undo", root, "x").expect(2).err
    rmqctl("undo", root, "--abandon").expect(2)
    rmqctl("undo", root, done.id, "--abandon", "--force").expect(2)
    rmqctl("undo", root, done.id, "--list").expect(2)
    assert "is not interrupted" in rmqctl("undo", root, done.id, "--abandon").expect(6).err
    (root / "checkpoint").write_bytes(b"other")
    result = rmqctl("undo", root).expect(6)
    assert "warning: checkpoint: was changed since" in result.err
    rmqctl("undo", root, "--force").expect(0)


def test_abandon(root, rmqctl):
    with failing(3, errno.EIO, ("rename",)), pytest.raises(StoreIOError):
        apply(root, Replace("checkpoint", b"x"))
    before = state(root)
    id = history(str(root))[0].id  # noqa: A001
    document = rmqctl("undo", root, id, "--abandon", "-o", "json").expect(0).json()
    assert (document["state"], document["undone"]) == ("abandoned", False)
    assert state(root) == before
    assert history(str(root))[0].state == "abandoned"
