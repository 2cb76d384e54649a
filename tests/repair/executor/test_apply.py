"""What applying a plan does to a store, what it refuses, and what it leaves beside it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections import namedtuple
from pathlib import Path
from unittest import mock

import pytest

from rmqctl.errors import (
    InternalError,
    NotAStoreError,
    RefusedError,
    RmqctlError,
    StoreIOError,
)
from rmqctl.repair.executor.executor import Applied, Repair
from rmqctl.repair.executor.journal import history, pending
from rmqctl.repair.plan import (
    Action,
    Create,
    FileContent,
    MakeFolder,
    MoveAside,
    Patch,
    Plan,
    Replace,
)
from rmqctl.scan.overlay import OverlayPiece
from tests.repair.accidents import differences, state, undo_all
from tests.repair.executor import samples
from tests.repair.executor.conftest import MEMORY
from tests.support import snapshot

LOG = "commitlog/00000000000000000000"
QUEUE = "consumequeue/T/0/00000000000000000000"
ACTION = Action("change", LOG, 1, 2, "a test")


def apply(root: Path, *steps, actions=(ACTION,), now: int = 1_800_000_000_000) -> Applied:
    """The user has named the folders outside that the steps are about."""
    named = {os.path.dirname(os.path.realpath(root / step.target)) for step in steps
             if "\0" not in step.target}
    with Repair(str(root), "recover", lambda: now, named=sorted(named)) as held:
        return held.apply(Plan("recover", str(root), actions, steps))


@pytest.fixture
def root(folder: Path) -> Path:
    return samples.make(folder / "store")


def test_an_empty_plan_touches_nothing(root):
    (root / "lock").write_bytes(b"lock")
    with snapshot.assert_unchanged(root):
        assert apply(root) == Applied("", 0, "", already=True)
        assert history(str(root)) == []
        assert pending(str(root)) is None
    assert not (root / ".rmqctl").exists()


def test_every_kind_of_step(root):
    old = {path: (root / path).read_bytes() for path in samples.FILES}
    done = samples.repair(root)
    assert done == Applied(done.id, 13, f".rmqctl/repairs/{done.id}")
    log = bytearray(old[LOG])
    log[100:3100] = b"\0" * 5 + b"head" + b"\0" * 2981 + b"tail" + b"\0" * 6
    log[8000:8120] = b"more" * 30
    assert (root / LOG).read_bytes() == log
    second = (root / "commitlog/00000000000000009000").read_bytes()
    assert second == (old["commitlog/00000000000000009000"][:5000] + b"\0" * 3990
                      + b"across" * 9).ljust(11000, b"\0")
    assert not (root / "commitlog/00000000000000018000").exists()
    assert (root / "consumequeue/U/0/00000000000000000000").read_bytes() == b"rebuilt" * 20
    assert (root / QUEUE).read_bytes() == b"moved" * 100
    assert (root / "consumequeue/V/3").is_dir()
    assert (root / "consumequeue/W/1/00000000000000000000").read_bytes() == (
        b"\0" * 5000 + b"sparse" + b"\0" * 3994)
    assert not (root / "abort").exists()
    kept = root / done.backup / "aside"
    for path in ("commitlog/00000000000000018000", "consumequeue/U/0/00000000000000000000", QUEUE,
                 "index/20261121000000000", "checkpoint", "abort"):
        assert (kept / path).read_bytes() == old[path]


def test_times_and_modes(root):
    was = os.stat(root / LOG)
    samples.repair(root)
    now = os.stat(root / LOG)
    assert (now.st_mtime_ns, now.st_ino) == (was.st_mtime_ns, was.st_ino)
    assert stat.S_IMODE(os.stat(root / QUEUE).st_mode) == 0o640
    assert os.stat(root / "consumequeue/T/1/00000000000000000000").st_mtime_ns == samples.LAST_YEAR
    status = os.stat(root / "consumequeue/W/1/00000000000000000000")
    assert status.st_mtime_ns == samples.LAST_YEAR + 5
    assert stat.S_IMODE(status.st_mode) == 0o640  # as its neighbour has
    assert status.st_blocks * 512 <= 8192 < status.st_size


def test_what_is_made_now_has_the_time_of_the_clock(root):
    apply(root, Create("new", b"x"), now=1_234_567_890_123)
    assert os.stat(root / "new").st_mtime_ns == 1_234_567_890_123_000_000


@pytest.mark.long
def test_wiping_a_large_tail_keeps_it_sparse(root):
    path = root / "commitlog/large"
    with path.open("wb") as file:
        file.write(b"x" * 50_000)
        file.truncate(1 << 30)
    done = apply(root, Patch("commitlog/large", (OverlayPiece(40_000, (1 << 30) - 40_000),)))
    with path.open("rb") as file:
        assert file.read(60_000) == b"x" * 40_000 + b"\0" * 20_000
    assert os.stat(path).st_blocks * 512 < 1 << 20
    assert sum(file_path.stat().st_blocks * 512
               for file_path in (root / done.backup).rglob("*")) < 1 << 20
    undo_all(root)
    with path.open("rb") as file:
        assert file.read(60_000) == b"x" * 50_000 + b"\0" * 10_000


def test_ids_are_readable_and_never_go_back(root):
    ids = [apply(root, Replace("checkpoint", bytes([number])), now=now).id
           for number, now in enumerate([1_800_000_000_000] * 11 + [1_700_000_000_000,
                                                                    1_800_000_001_000], 1)]
    assert ids[:2] == ["20270115T080000Z-1", "20270115T080000Z-2"]
    assert ids[-3:] == ["20270115T080000Z-11", "20270115T080000Z-12", "20270115T080001Z-1"]
    assert [repair.id for repair in history(str(root))] == ids


def test_the_log_has_a_line_for_every_action(root):
    samples.repair(root)
    undo_all(root)
    lines = [json.loads(line) for line in (root / ".rmqctl/log.jsonl").read_text().splitlines()]
    assert [text_line["state"] for text_line in lines] == ["applied"] * 3 + ["undone"] * 3
    id = history(str(root))[0].id  # noqa: A001
    assert {text_line["id"] for text_line in lines} == {id}
    assert {text_line["command"] for text_line in lines} == {"recover"}
    assert [(action["action"], action["target"], action["from"], action["to"], action["reason"])
            for action in lines[:2]] == [
        (action.action, action.target, action.before, action.after, action.reason)
        for action in samples.ACTIONS[:2]]


def test_half_a_line_in_the_log_spoils_nothing(root):
    (root / ".rmqctl").mkdir()
    (root / ".rmqctl/log.jsonl").write_bytes(b'{"id": "x", "sta')
    samples.repair(root)
    lines = (root / ".rmqctl/log.jsonl").read_text().splitlines()
    assert len(lines) == 4
    assert all(json.loads(line) for line in lines[1:])


def test_applied_again_it_does_nothing(root):
    steps = (MoveAside("consumequeue/U"), Create("consumequeue/U/0/0", b"new"),
             Patch(LOG, (OverlayPiece.of(3, b"abc"),)), MoveAside("abort"),
             Replace("checkpoint", b"c"),
             MakeFolder("consumequeue/V"))
    assert not apply(root, *steps).already
    before = state(root)
    assert apply(root, *steps) == Applied("", 0, "", already=True)
    assert state(root) == before
    assert len(history(str(root))) == 1
    (root / "consumequeue/U/0/strange").touch()
    with pytest.raises(RefusedError):
        apply(root, *steps)


def test_patches_of_one_file_are_one(root):
    old = (root / LOG).read_bytes()
    apply(root, Patch(LOG, (OverlayPiece.of(50, b"later"),)),
          Patch(LOG, (OverlayPiece.of(10, b"early"),)),
          Patch(LOG, ()))
    assert (root / LOG).read_bytes() == old[:10] + b"early" + old[15:50] + b"later" + old[55:]
    undo_all(root)
    assert (root / LOG).read_bytes() == old


@pytest.mark.parametrize(("steps", "words"), [
    ([Create(LOG, b"")], "exists already"),
    ([Create(LOG + "/x", b"")], "is not a folder"),
    ([Replace("none", b"")], "no longer exists"),
    ([Replace("consumequeue", b"")], "is not a regular file"),
    ([Patch("none", (OverlayPiece(0, 1),))], "no longer exists"),
    ([MoveAside("none")], "no longer exists"),
    ([MoveAside("abort"), MoveAside("abort")], "no longer exists"),
    ([MakeFolder("abort")], "exists already"),
    ([MoveAside("consumequeue/U"), Replace("consumequeue/U/0/00000000000000000000", b"")],
     "no longer exists"),
    ([MoveAside("linked")], "is a link to a folder"),
])
def test_a_store_that_is_not_as_the_plan_takes_it(root, steps, words):
    (root / "linked").symlink_to("consumequeue")
    before = state(root)
    with pytest.raises(RefusedError, match=words):
        apply(root, Replace("checkpoint", b"new"), *steps)
    assert state(root) == before
    assert history(str(root)) == []
    assert not list(root.glob(".rmqctl/repairs/*"))


@pytest.mark.parametrize("steps", [
    [Create("../x", b"")], [Create(".rmqctl/x", b"")], [MoveAside("lock")], [MoveAside(".")],
    [Create("a\0b", b"")], [Create("new", b""), MoveAside("new")],
    [Create("new", b""), Patch("new", (OverlayPiece(0, 1),))],
    [Create("new/x", b""), MoveAside("new")],
    [Patch(LOG, (OverlayPiece(0, 5), OverlayPiece(3, 9)))], [Patch(LOG, (OverlayPiece(-1, 5),))],
    [Patch(LOG, (OverlayPiece(0, 5), )), Patch(LOG, (OverlayPiece(4, 1), ))],
    [Create("new", OverlayPiece(1, 5))], [Create("new", OverlayPiece(0, 5, ((3, b"long"),)))],
    [Create("new", OverlayPiece(0, 9, ((3, b"ab"), (4, b"c"))))],
])
def test_a_plan_that_contradicts_itself(root, steps):
    before = state(root)
    with pytest.raises(InternalError):
        apply(root, *steps)
    assert state(root) == before


def test_content_that_went_away(root, tmp_path):
    before = state(root)
    with pytest.raises(StoreIOError, match="cannot look at"):
        apply(root, Replace("checkpoint", FileContent(str(tmp_path / "none"))))
    assert state(root) == before


def test_a_file_of_the_store_is_never_moved_as_content(root):
    old = (root / LOG).read_bytes()
    apply(root, Replace("checkpoint", FileContent(str(root / LOG), movable=True)))
    assert (root / LOG).read_bytes() == (root / "checkpoint").read_bytes() == old


def test_without_room_nothing_is_touched(root):
    free = os.statvfs(root)
    names = [name for name in dir(free) if name.startswith("f_")]
    small = namedtuple("Small", names)(**{name: getattr(free, name) for name in names}  # noqa: PYI024
                                       | {"f_bavail": 100})
    before = state(root)
    with (mock.patch.object(os, "statvfs", return_value=small),
          pytest.raises(StoreIOError, match=r"not enough space: the repair needs \d+ bytes")):
        samples.repair(root)
    assert state(root) == before


def test_no_store(folder):
    with pytest.raises(NotAStoreError), Repair(str(folder / "none"), "recover"):
        pass
    (folder / "empty").mkdir()
    with pytest.raises(NotAStoreError), Repair(str(folder / "empty"), "recover"):
        pass
    assert not list((folder / "empty").iterdir())


def test_what_was_staged_and_never_committed_is_cleared(root):
    with Repair(str(root), "recover") as held, mock.patch(
            "rmqctl.repair.executor.executor.commit", side_effect=KeyboardInterrupt), mock.patch(
            "rmqctl.repair.executor.executor.clear"), pytest.raises(KeyboardInterrupt):
        held.apply(samples.plan(root, Path(held.scratch_folder)))
    assert len(list(root.glob(".rmqctl/repairs/*"))) == 1
    assert history(str(root)) == []
    with Repair(str(root), "recover") as held:
        assert held.finished is None
    assert not list(root.glob(".rmqctl/repairs/*"))


@pytest.mark.parametrize("target", ["consumequeue/New/0/00000000000000000000",
                                    "commitlog/00000000000000099000", "empty/1"])
def test_a_new_file_is_no_more_open_than_its_neighbours(tmp_path, target):
    root = samples.make(tmp_path / "store")
    for path in root.rglob("*"):
        if path.is_file():
            path.chmod(0o600)
    (root / "empty").mkdir()
    apply(root, Create(target, b"new"))
    assert stat.S_IMODE((root / target).stat().st_mode) == 0o600


# -- other file systems -----------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path):
    """A folder on another file system than ``tmp_path``."""
    if not os.access(MEMORY, os.W_OK) or os.stat(MEMORY).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is but one file system")
    path = Path(tempfile.mkdtemp(prefix="rmqctl-test-", dir=MEMORY))
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("how", ["absolute", "link"])
def test_a_log_on_another_file_system(tmp_path, elsewhere, how):
    root = samples.make(tmp_path / "store")
    log = elsewhere / "disk/log"
    log.parent.mkdir()
    shutil.move(root / "commitlog", log)
    prefix = str(log)
    if how == "link":
        (root / "commitlog").symlink_to(log)
        prefix = "commitlog"
    before = snapshot.take(log, inodes=False)
    old = state(root)
    first, last = (f"{prefix}/{number:020d}" for number in (0, 18000))
    steps = (Patch(first, (OverlayPiece.of(5, b"bytes"),)), MoveAside(last),
             Create(f"{prefix}/{27000:020d}", OverlayPiece(0, 9000)),
             Replace(f"{prefix}/{9000:020d}", b"new" * 3000), Replace("checkpoint", b"c"))
    done = apply(root, *steps)
    assert sorted(path.name for path in log.iterdir()) == [
        f"{number:020d}" for number in (0, 9000, 27000)]
    assert (log / f"{9000:020d}").read_bytes() == b"new" * 3000
    homes = list((elsewhere / "disk/.rmqctl/repairs").iterdir())
    assert len(homes) == 1
    assert homes[0].name.startswith(done.id)
    with pytest.raises(RefusedError, match=f"--write-outside {log}"):
        undo_all(root)
    undo_all(root, log)
    assert before.differences(snapshot.take(log, inodes=False)) == []
    assert not differences(state(root), old)


def test_undo_in_a_copy_of_a_store_on_two_file_systems(tmp_path, elsewhere):
    """What was kept lies beside the copy's own log; the other store's is not touched."""
    root = samples.make(tmp_path / "store")
    log = elsewhere / "disk/log"
    log.parent.mkdir()
    shutil.move(root / "commitlog", log)
    os.symlink(log, root / "commitlog")
    old = {path.name: path.read_bytes() for path in log.iterdir()}
    done = apply(root, MoveAside(f"commitlog/{18000:020d}"),
                 Replace(f"commitlog/{9000:020d}", b"new" * 3000))
    # The copy: both file systems, each in another place.
    copy, disk = tmp_path / "copy", elsewhere / "disk-copy"
    shutil.copytree(root, copy, symlinks=True)
    shutil.copytree(elsewhere / "disk", disk)
    (copy / "commitlog").unlink()
    os.symlink(disk / "log", copy / "commitlog")
    before = snapshot.take(elsewhere / "disk")
    undo_all(copy, disk / "log")
    assert {path.name: path.read_bytes() for path in (disk / "log").iterdir()} == old
    assert before.differences(snapshot.take(elsewhere / "disk")) == []
    # Without what was kept nothing is done, to neither of them.
    bare = tmp_path / "bare"
    shutil.copytree(root, bare, symlinks=True)
    (bare / "commitlog").unlink()
    shutil.copytree(log, bare / "commitlog")
    with pytest.raises(RmqctlError):
        undo_all(bare)
    assert before.differences(snapshot.take(elsewhere / "disk")) == []
    assert done.id


def test_a_folder_that_is_a_mount_of_its_own(tmp_path, elsewhere):
    """A broker looks at all names in it, so nothing can be kept there."""
    root = samples.make(tmp_path / "store")
    before = state(root)
    with (mock.patch("rmqctl.repair.executor.staging_dirs.reachable",
                     lambda first, other: first == other),
          pytest.raises(RefusedError, match="is a mount point")):
        apply(root, MoveAside("commitlog/00000000000000018000"))
    assert state(root) == before


def test_an_abandoned_staging_on_another_file_system_is_cleared(tmp_path, elsewhere):
    root = samples.make(tmp_path / "store")
    (elsewhere / "log").mkdir()
    with pytest.raises(RefusedError):
        apply(root, Create(str(elsewhere / "log/0"), b"x"), MoveAside("none"))
    with (mock.patch("rmqctl.repair.executor.executor.commit", side_effect=StoreIOError("no")),
          pytest.raises(StoreIOError)):
        apply(root, Create(str(elsewhere / "log/0"), b"x"))
    assert list((elsewhere / ".rmqctl/repairs").iterdir()) == []
    assert list((elsewhere / "log").iterdir()) == []
