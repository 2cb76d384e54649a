"""``rmqctl recover`` of a store with batch queues: a second run finds nothing to do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder, Runner

STORE = "5.3.3/batchcq/store"
FIRST = "00000000000000000000"
SIZES = ("--consumequeue-file-size", "480", "--batch-consumequeue-file-size", "736")


@pytest.fixture
def root(golden_copy: GoldenFolder) -> Path:
    return golden_copy(STORE)


def rows(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes()
            for path in (root / "batchconsumequeue").rglob("0*") if path.is_file()}


def leaves_nothing(rmqctl: Runner, root: Path, *options: str) -> list[dict[str, str]]:
    """The actions of a recovery, after which another one has none, and no word of a gap."""
    done = rmqctl("recover", root, *options, "--apply", "--yes", "-o", "json").expect(0, 1)
    assert "lacks queue offsets" not in done.err
    again = rmqctl("recover", root, *options, "-o", "json").expect(0)
    assert again.json()["actions"] == []
    actions: list[dict[str, str]] = done.json()["actions"]
    return actions


@pytest.mark.parametrize("only", [(), ("--only", "consumequeue")], ids=["all", "only"])
def test_only_the_messages_tell_of_batch_queues(rmqctl: Runner, root: Path,
                                                only: tuple[str, ...]) -> None:
    """No consumequeues, no config: a record that is an inner batch says so itself."""
    before = rows(root)
    shutil.rmtree(root / "batchconsumequeue")
    shutil.rmtree(root / "consumequeue")
    leaves_nothing(rmqctl, root, *SIZES, *only)
    assert rows(root) == before


def test_intact_batches_are_never_mended(rmqctl: Runner, root: Path) -> None:
    """Their rows in plain queues, where a gap follows each of them, are no proof against them."""
    log = {path: path.read_bytes() for path in (root / "commitlog").iterdir()}
    for entry in list(root.iterdir()):
        if entry.name != "commitlog":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    done = rmqctl("recover", root, "--broker-version", "4.9.3", "--apply", "--yes", "-o",
                  "json").expect(0, 1)
    assert "has inner batches" in done.err
    assert "--broker-version 5.3.3" in done.err
    # Such messages prove a 5.x broker, so the same plain queues are looked at anew.
    rmqctl("recover", root, "--apply", "--yes", "-o", "json").expect(0, 1)
    assert {path: path.read_bytes() for path in log} == log


def test_fillers_have_times_in_order(rmqctl: Runner, root: Path) -> None:
    """Batch rows say store times; a filler between two of them must not be older than both."""
    shutil.rmtree(root / "consumequeue")
    os.truncate(root / "commitlog" / FIRST, 3026)
    assert leaves_nothing(rmqctl, root)[0]["action"] == "fill"
