"""When undo refuses, what it keeps, and repairs that were interrupted."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path
from unittest import mock

import pytest

from rmqctl.errors import RefusedError, StoreHeldError, StoreIOError, UsageError
from rmqctl.repair.executor.executor import Repair
from rmqctl.repair.executor.journal import history, pending
from rmqctl.repair.executor.undo import preview
from rmqctl.repair.plan import Create, MoveAside, Patch, Replace
from rmqctl.scan.overlay import OverlayPiece
from tests.engine_write.files_support import failing
from tests.repair.accidents import bytes_of, differences, state, undo_all
from tests.repair.executor import samples
from tests.repair.executor.test_apply import LOG, QUEUE, apply
from tests.support import snapshot
from tests.support.holder import KINDS, held


@pytest.fixture
def root(folder: Path) -> Path:
    return samples.make(folder / "store")


def undo(root: Path, id: str | None = None, *, force: bool = False):  # noqa: A002
    with Repair(str(root), "undo", finish=False) as held:
        return held.undo(id, force=force)


def interrupt(root: Path, *steps, at: int = 1) -> str:
    """Steps that are committed and not finished: the ``at``-th rename fails."""
    with failing(at, errno.EIO, ("rename",)), pytest.raises(StoreIOError):
        apply(root, *steps)
    id = pending(str(root))  # noqa: A001
    assert id
    return id


# -- refusals ---------------------------------------------------------------------------------


CHANGES = {
    "a patched byte": (LOG, lambda path: _poke(path, 106)),
    "a patched file is shorter": (LOG, lambda path: os.truncate(path, 4000)),
    "a patched file is gone": (LOG, lambda path: path.unlink()),
    "a replaced file": ("checkpoint", lambda path: path.write_bytes(b"a broker's")),
    "a replaced file is gone": ("checkpoint", lambda path: path.unlink()),
    "a new file": ("index/20261121000000000", lambda path: _poke(path, 1)),
    "what was moved is there again": ("abort", lambda path: path.touch()),
}


def _poke(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"?")


@pytest.mark.parametrize("change", CHANGES)
def test_a_target_that_was_changed_since(root, change):
    samples.repair(root)
    target, alter = CHANGES[change]
    alter(root / target)
    there = (root / target).read_bytes() if (root / target).exists() else None
    before = state(root)
    with pytest.raises(RefusedError, match=rf"^{target}: .* since repair .*--force"):
        undo(root)
    assert state(root) == before
    assert len(preview(str(root)).changed) == 1
    done = undo(root, force=True)
    assert history(str(root))[0].state == "undone"
    kept = [path.read_bytes() for path in (root / done.backup / "undone").rglob("*")
            if path.is_file()]
    if there is not None:
        # A patched file stays where it is: what had been put into it is kept.
        wanted = there[100:3100] + there[8000:8120] if target == LOG else there
        assert wanted.ljust(3120 if target == LOG else 0, b"\0") in kept
    if target != LOG:
        old = samples.make(root.parent / "old")
        assert not differences(state(root), state(old))


def test_bytes_a_broker_appended_stay_with_their_time(root):
    path = root / LOG
    old = path.read_bytes()
    apply(root, Patch(LOG, (OverlayPiece.of(100, b"bytes"),)))
    _poke(path, 5000)
    os.utime(path, ns=(samples.LAST_YEAR + 7, samples.LAST_YEAR + 7))
    undo(root)
    assert path.read_bytes() == old[:5000] + b"?" + old[5001:]
    assert os.stat(path).st_mtime_ns == samples.LAST_YEAR + 7


def test_a_later_repair_of_the_same_files_comes_first(root):
    old = state(root)
    first = apply(root, Replace(QUEUE, b"first")).id
    apply(root, Replace("checkpoint", b"other"))
    third = apply(root, MoveAside("consumequeue/T")).id
    for force in (False, True):
        with pytest.raises(RefusedError, match=f"repair {third} changed some of the same files"):
            undo(root, first, force=force)
    undo(root, third)
    undo(root, first)
    assert undo_all(root) == 1
    assert not differences(state(root), old)


def test_what_was_kept_is_gone(root):
    done = apply(root, Replace("checkpoint", b"new"), Patch(LOG, (OverlayPiece.of(0, b"x"),)))
    shutil.rmtree(root / done.backup / "aside")
    with pytest.raises(RefusedError, match="checkpoint: its kept copy was deleted"):
        undo(root)
    shutil.rmtree(root / done.backup / "bytes")
    assert len(preview(str(root)).changed) == 2
    before = state(root)
    undo(root, force=True)
    assert state(root) == before


def test_ids(root):
    with pytest.raises(RefusedError, match="no repair to undo"):
        undo(root)
    done = apply(root, Replace("checkpoint", b"new"))
    for id in ("20200101T000000Z-1", "..", "", "x/y"):  # noqa: A001
        with pytest.raises(UsageError, match="has no repair"):
            undo(root, id)
    assert not undo(root).already
    assert undo(root, done.id).already
    with pytest.raises(RefusedError, match="no repair to undo"):
        undo(root)


# -- interrupted ------------------------------------------------------------------------------


def test_an_interrupted_repair_is_taken_back_as_far_as_it_came(root):
    old = state(root)
    id = interrupt(root, Replace("checkpoint", b"new"), MoveAside("abort"), at=4)  # noqa: A001
    assert (root / "checkpoint").read_bytes() == b"new"
    assert (root / "abort").exists()
    assert history(str(root))[0].state == "interrupted"
    assert undo(root).id == id
    assert not differences(state(root), old)


def test_apply_waits_until_it_is_settled(root):
    id = interrupt(root, Replace("checkpoint", b"new"), at=4)  # noqa: A001
    with Repair(str(root), "recover", finish=False) as held, pytest.raises(
            RefusedError, match=f"repair {id} was interrupted"):
        held.apply(samples.plan(root, root.parent / "scratch"))


def test_a_broker_ran_between_an_interruption_and_now(root):
    """Going on would destroy what it wrote."""
    id = interrupt(root, Patch(LOG, (OverlayPiece.of(100, b"bytes"),)),  # noqa: A001
                   Replace("checkpoint", b"new"), at=4)
    _poke(root / LOG, 102)
    (root / "checkpoint").write_bytes(b"a broker's")
    before = state(root)
    for _ in range(2):
        with pytest.raises(RefusedError, match=(
                f"repair {id} was interrupted and cannot be completed: {LOG}: the bytes that the "
                "repair wrote were changed")):
            samples.repair(root)
        assert state(root) == before
    with Repair(str(root), "undo", finish=False) as held:
        held.abandon(id)
    assert state(root) == before
    assert history(str(root))[0].state == "abandoned"
    with Repair(str(root), "recover") as held:
        assert held.finished is None


def test_completing_begins_with_a_look_at_all_steps(root):
    """The first could be carried out, the second not: then neither is."""
    interrupt(root, Replace("checkpoint", b"new"), MoveAside("abort"), at=3)
    (root / "abort").write_bytes(b"4711")
    before = state(root)
    with pytest.raises(RefusedError, match="abort: was changed since"):
        samples.repair(root)
    assert state(root) == before


def test_what_is_made_where_something_is_still_to_be_moved_away(root):
    """The old file has the content of the new one: undo must not take the one for the other."""
    old = state(root)
    content = (root / "index/20261121000000000").read_bytes()
    steps = (MoveAside("index/20261121000000000"), Create("index/20261121000000000", content,
                                                          samples.LAST_YEAR + 5))
    interrupt(root, *steps, at=3)
    undo(root)
    assert not differences(state(root), old)
    interrupt(root, *steps, at=3)
    with Repair(str(root), "recover") as held:
        assert held.finished is not None
    assert os.stat(root / "index/20261121000000000").st_mtime_ns == samples.LAST_YEAR + 5
    undo(root)
    assert not differences(state(root), old)


def test_no_line_is_logged_twice(root):
    log = root / ".rmqctl/log.jsonl"
    for written in range(4):
        with mock.patch("rmqctl.repair.executor.executor.set_state",
                        side_effect=StoreIOError("no")), \
                pytest.raises(StoreIOError):
            samples.repair(root)
        lines = log.read_bytes().splitlines(keepends=True)
        assert len(lines) == 3
        # As many as a power failure left, the last of them in part.
        log.write_bytes(b"".join(lines[:written]) + (lines[written][:9] if written < 3 else b""))
        samples.repair(root)
        rows = [json.loads(line) for line in log.read_bytes().splitlines() if line.endswith(b"}")]
        assert [row["target"] for row in rows] == [action.target for action in samples.ACTIONS]
        undo_all(root)
        log.write_bytes(b"")


@pytest.mark.parametrize("name", ["journal.jsonl", "state.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]\n", b"\0" * 300, b'{"format":1}\n', b"null",
                                     b'{"state":"cut"}', b"[" * 100_000])
def test_a_damaged_journal(root, name, content):
    id = interrupt(root, Replace("checkpoint", b"new"), at=4)  # noqa: A001
    (root / f".rmqctl/repairs/{id}" / name).write_bytes(content)
    before = state(root)
    with pytest.raises(RefusedError, match="journal is damaged"):
        samples.repair(root)
    with pytest.raises((RefusedError, StoreIOError), match="damaged"):
        undo(root)
    assert [repair.state for repair in history(str(root))] == ["damaged"]
    assert preview(str(root), id).entry.state == "damaged"
    with Repair(str(root), "undo", finish=False) as held:
        held.abandon(id)
    assert state(root) == before
    assert samples.repair(root)


def test_every_flipped_bit_of_a_journal_is_seen_or_harmless(root):
    id = interrupt(root, Replace("checkpoint", b"new"), at=4)  # noqa: A001
    path = root / f".rmqctl/repairs/{id}/journal.jsonl"
    good = path.read_bytes()
    rest = good.index(b"\n") + 1
    for at in range(rest, len(good), 5):
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1:])
        with pytest.raises(RefusedError, match="damaged"), Repair(str(root), "recover"):
            pass
    path.write_bytes(good)
    with Repair(str(root), "recover") as held:
        assert held.finished is not None


def test_a_copy_of_the_store_is_taken_back_too(root, folder):
    old = state(root)
    samples.repair(root)
    copy = snapshot.copy_tree(root, folder / "copy")
    undo(copy)
    assert not differences(state(copy), old)
    undo(root)
    assert not differences(state(root), old)


@pytest.mark.parametrize("inode", ["another", "the same"])
@pytest.mark.parametrize("times", ["seconds", "now"])
def test_a_copy_is_known_by_its_bytes(root, folder, inode, times):
    """Backups keep times to the second or not at all; a restored folder may get any inode."""
    bytes_before = bytes_of(root)
    samples.repair(root)
    copy = snapshot.copy_tree(root, folder / "copy")
    for path in copy.rglob("*"):
        if path.is_file() and not path.is_symlink():
            when = path.stat().st_mtime_ns if times == "seconds" else time.time_ns()
            os.utime(path, ns=(when // 10**9 * 10**9, when // 10**9 * 10**9))
    journal, = (copy / ".rmqctl/repairs").glob("*/journal.jsonl")
    if inode == "the same":
        head, _, rest = journal.read_bytes().partition(b"\n")
        values = json.loads(head) | {"inode": journal.parent.stat().st_ino}
        journal.write_bytes(json.dumps(values).encode() + b"\n" + rest)
    undo(copy)
    left = bytes_of(copy)
    assert {name: left[name] for name in left if ".rmqctl" not in name} == {
        name: data for name, data in bytes_before.items() if ".rmqctl" not in name}


# -- the lock ---------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", KINDS)
def test_a_held_store_is_left_alone(root, rmqctl, kind):
    samples.repair(root)
    with held(root, kind) as holder, snapshot.assert_unchanged(root):
        with pytest.raises(StoreHeldError, match=f"held by process {holder.pid}"):
            apply(root, Create("new", b"x"))
        with pytest.raises(StoreHeldError):
            undo(root)
        assert f"process {holder.pid}" in rmqctl("undo", root, "--yes").expect(4).err
        rmqctl("undo", root, "--list").expect(0)
    undo(root)
