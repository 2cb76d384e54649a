"""An interrupted repair that was made elsewhere is shown, and completed only when it is named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rmqctl.repair.executor.journal import pending
from rmqctl.repair.plan import Replace
from tests.conftest import Runner
from tests.repair.executor.test_undo import interrupt
from tests.support import snapshot
from tests.support.tiny import Tiny

JSON = ("-o", "json")


@pytest.fixture
def copy(tiny: Tiny, tmp_path: Path) -> Path:
    """A copy of a store whose checkpoint and config a killed repair was replacing."""
    checkpoint = (tiny.root / "checkpoint").read_bytes()
    interrupt(tiny.root, Replace("checkpoint", checkpoint[:8] + b"new" + checkpoint[11:]),
              Replace("config/topics.json", b"{}"), at=4)
    return snapshot.copy_tree(tiny.root, tmp_path / "copy")


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*"))
            if path.is_file() and path.name != "lock"}


def test_made_under_another_path(rmqctl: Runner, tiny: Tiny, copy: Path) -> None:
    repair_id = pending(str(copy))
    shown = rmqctl("recover", copy, *JSON)
    document = shown.json()
    unfinished = document["interrupted"]
    assert unfinished["root"] == str(tiny.root)
    assert unfinished["host"] == os.uname().nodename
    assert (unfinished["id"], unfinished["command"], unfinished["state"]) == (
        repair_id, "recover", "interrupted")
    assert document["next"] == [f"rmqctl recover {copy} --complete {repair_id} --apply"]
    page = rmqctl("recover", copy).out
    assert str(tiny.root) in page
    assert os.uname().nodename in page
    before, other = tree(copy), snapshot.take(tiny.root)
    for command in (("recover",), ("truncate", "--to-phy", "0"), ("expire", "--older-than", "1h")):
        refused = rmqctl(command[0], copy, *command[1:], "--apply", *JSON).expect(6)
        assert f"--complete {repair_id}" in refused.err
    assert tree(copy) == before
    rmqctl("recover", copy, "--complete", "20200101T000000Z-1", *JSON).expect(2)
    rmqctl("recover", copy, "--complete", "20200101T000000Z-1", "--apply", *JSON).expect(2)
    rmqctl("recover", copy, "--complete", str(repair_id), "--only", "checkpoint", "--apply",
           *JSON).expect(0)
    assert pending(str(copy)) is None
    assert (copy / "config/topics.json").read_bytes() == b"{}"
    assert other.differences(snapshot.take(tiny.root)) == []


def test_undo_needs_no_further_word(rmqctl: Runner, tiny: Tiny, copy: Path) -> None:
    """It names the repair, puts back what the store keeps, and changes nothing elsewhere."""
    other = snapshot.take(tiny.root)
    document = rmqctl("undo", copy, "--yes", *JSON).expect(0).json()
    assert (document["root"], document["host"]) == (str(tiny.root), os.uname().nodename)
    assert str(tiny.root) in rmqctl("undo", copy, pending(str(tiny.root)) or "", "--dry-run").out
    assert (copy / "config/topics.json").read_bytes() != b"{}"
    assert other.differences(snapshot.take(tiny.root)) == []


def test_the_host_is_not_judged(rmqctl: Runner, tiny: Tiny,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    name = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((name[0], "elsewhere", *name[2:])))
    interrupt(tiny.root, Replace("config/topics.json", b"{}"), at=3)
    monkeypatch.undo()
    assert rmqctl("recover", tiny.root, *JSON).json()["interrupted"]["host"] == "elsewhere"
    rmqctl("recover", tiny.root, "--only", "checkpoint", "--apply", *JSON).expect(0)
    assert (tiny.root / "config/topics.json").read_bytes() == b"{}"


def test_stamps_that_do_not_match(rmqctl: Runner, tiny: Tiny, copy: Path) -> None:
    """A copy at the very path, without the times that the files had."""
    shutil.rmtree(tiny.root)
    shutil.copytree(copy, tiny.root, copy_function=shutil.copyfile)
    repair_id = pending(str(tiny.root))
    before = tree(tiny.root)
    refused = rmqctl("recover", tiny.root, "--apply", *JSON).expect(6)
    assert "stamp" in refused.err
    assert tree(tiny.root) == before
    rmqctl("recover", tiny.root, "--complete", str(repair_id), "--only", "checkpoint", "--apply",
           *JSON).expect(0)
    assert (tiny.root / "config/topics.json").read_bytes() == b"{}"


def test_a_store_that_was_not_moved_needs_no_word(rmqctl: Runner, tiny: Tiny) -> None:
    interrupt(tiny.root, Replace("config/topics.json", b"{}"), at=3)
    document = rmqctl("recover", tiny.root, *JSON).json()
    assert document["interrupted"]["question"] == ""
    assert "--complete" not in " ".join(document["next"])
    rmqctl("recover", tiny.root, "--only", "checkpoint", "--apply", *JSON).expect(0)
    assert pending(str(tiny.root)) is None
    assert rmqctl("recover", tiny.root, *JSON).json()["interrupted"] is None
