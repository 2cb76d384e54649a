"""Repairs in stores that were copied or moved: finished or taken back there, and nowhere else."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.repair.executor.apply_step import StepApplier
from rmqctl.repair.executor.executor import Repair
from rmqctl.repair.executor.journal import StepRecord, history, pending
from rmqctl.repair.executor.undo import preview
from rmqctl.repair.plan import Create, MoveAside, Patch, Replace
from rmqctl.scan.overlay import OverlayPiece
from tests.repair.accidents import Trial, bytes_of, in_child, undo_all
from tests.repair.executor import samples
from tests.repair.executor.test_apply import LOG, apply
from tests.repair.executor.test_faults import applied
from tests.repair.executor.test_undo import interrupt
from tests.support import snapshot
from tests.support.deaths import MODES
from tests.support.share import every

# -- killed, then copied ----------------------------------------------------------------------


def _exact(root: Path, copy: Path) -> None:
    snapshot.copy_tree(root, copy)


def _archived(root: Path, copy: Path) -> None:
    """Times to the second, as tar keeps them, and no hard links."""
    shutil.copytree(root, copy, symlinks=True)
    for path in copy.rglob("*"):
        if path.is_file():
            when = path.stat().st_mtime_ns // 10**9 * 10**9
            os.utime(path, ns=(when, when))


def _without_times(root: Path, copy: Path) -> None:
    shutil.copytree(root, copy, symlinks=True)
    for path in copy.rglob("*"):
        if path.is_file():
            os.utime(path, ns=(time.time_ns(), time.time_ns()))


def _renamed(root: Path, copy: Path) -> None:
    root.rename(copy)


COPIES = {"exact": _exact, "archived": _archived, "without times": _without_times,
          "renamed": _renamed}


@pytest.mark.long
@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("command", ["apply", "undo"])
def test_killed_and_copied(folder: Path, command: str, name: str) -> None:
    """At any call: the copy is finished, another one taken back, the original stays as it is."""
    run, make = ((samples.repair, samples.make) if command == "apply" else (undo_all, applied))
    trial = Trial(run, make, folder, undo=False, exact=command == "undo")
    before = trial.old_bytes if command == "apply" else trial.new_bytes
    trial.fresh()
    calls = in_child(trial, 0, "before")[1]
    for number in every(48, range(1, calls + 1), f"{command} {name}"):
        for action, wanted in ((run, trial.new_bytes), (undo_all, before)):
            trial.fresh()
            in_child(trial, number, MODES[number % 3])
            left = snapshot.take(trial.root) if name != "renamed" else None
            copy = folder / "copy"
            COPIES[name](trial.root, copy)
            if action is samples.repair and (unfinished := pending(str(copy))) is not None:
                with pytest.raises(RefusedError, match=f"made in {trial.root} on host"):
                    samples.repair(copy)
                samples.repair(copy, unfinished)
            else:
                action(copy)
            assert bytes_of(copy) == wanted, f"killed at call {number}"
            assert left is None or left.differences(snapshot.take(trial.root)) == []
            shutil.rmtree(copy)


def test_what_was_changed_in_a_copy_is_seen(folder: Path) -> None:
    """Of a file that the repair did not come to: it is not finished, and is taken back."""
    root = samples.make(folder / "store")
    interrupt(root, Replace("checkpoint", b"new"), Replace(LOG, b"x" * 9000), at=4)
    copy = folder / "copy"
    _without_times(root, copy)
    changed = bytearray((copy / LOG).read_bytes())
    changed[77] ^= 1
    (copy / LOG).write_bytes(changed)
    with pytest.raises(RefusedError, match=f"cannot be completed: {LOG}: was changed"):
        samples.repair(copy, pending(str(copy)))
    undo_all(copy)
    old = bytes_of(samples.make(folder / "old"))
    assert bytes_of(copy) == old | {LOG: bytes(changed)}


# -- folders outside of the store -------------------------------------------------------------

NAMES = [f"{number:020d}" for number in (0, 9000, 18000)]
Steps = Callable[[str], tuple[object, ...]]
ALL_KINDS: Steps = lambda log: (  # noqa: E731
    Patch(f"{log}/{NAMES[0]}", (OverlayPiece.of(5, b"bytes"),)), MoveAside(f"{log}/{NAMES[2]}"),
    Create(f"{log}/{27000:020d}", b"y" * 9000), Replace("checkpoint", b"c"))
MOVES: Steps = lambda log: (MoveAside(f"{log}/{NAMES[2]}"), Replace("checkpoint", b"c"))  # noqa: E731


def _machine(folder: Path) -> tuple[Path, Path]:
    """A store whose log lies in a folder outside of it."""
    root, log = samples.make(folder / "data/store"), folder / "disk/log"
    log.parent.mkdir()
    (root / "commitlog").rename(log)
    return root, log


def _files(log: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log.iterdir()}


def cut_short(root: Path, *steps: object, after: int = 2) -> str:
    """Steps of which some are carried out and the next one fails."""
    real, count = StepApplier.forward, [0]

    def forward(self: StepApplier, record: StepRecord) -> None:
        count[0] += 1
        if count[0] > after:
            raise StoreIOError("no")
        real(self, record)

    with mock.patch.object(StepApplier, "forward", forward), pytest.raises(StoreIOError):
        apply(root, *steps)
    repair_id = pending(str(root))
    assert repair_id
    return repair_id


def undo(root: Path, *moved: str, force: bool = False, named: tuple[Path, ...] = ()) -> None:
    with Repair(str(root), "undo", finish=False, named=[*map(str, named)]) as held:
        held.undo(moved=moved, force=force)


@pytest.mark.parametrize("steps", [ALL_KINDS, MOVES])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("gone", [False, True])
def test_a_copy_with_all_its_folders(folder: Path, steps: Steps, *, killed: bool,
                                     gone: bool) -> None:
    """They lie as they did, seen from the root: they are found, and written once they are named."""
    root, log = _machine(folder / "a")
    old = _files(log)
    if killed:
        cut_short(root, *steps(str(log)), after=1)
    else:
        apply(root, *steps(str(log)))
    shutil.copytree(folder / "a", folder / "b")
    before = snapshot.take(folder / "a")
    if gone:
        shutil.rmtree(folder / "a")
    copy = folder / "b/data/store"
    if killed:
        second = folder / "c"
        shutil.copytree(folder / "b", second)
        place = str(second / "data/store")
        with pytest.raises(RefusedError, match="--complete"):
            Repair(place, "recover", named=[str(second / "disk/log")]).__enter__()
        with pytest.raises(RefusedError, match="--write-outside"):
            Repair(place, "recover", complete=pending(place)).__enter__()
        with Repair(place, "recover", named=[str(second / "disk/log")],
                    complete=pending(place)) as held:
            assert held.finished is not None
        assert NAMES[2] not in _files(second / "disk/log")
        undo(second / "data/store", named=(second / "disk/log",))
        assert _files(second / "disk/log") == old
    with pytest.raises(RefusedError, match="--write-outside"):
        undo(copy)
    undo(copy, named=(folder / "b/disk/log",))
    assert _files(folder / "b/disk/log") == old
    assert gone or before.differences(snapshot.take(folder / "a")) == []


@pytest.mark.parametrize("killed", [False, True])
def test_a_copy_of_the_root_alone(folder: Path, *, killed: bool) -> None:
    """The folder outside is the other store's, with --force too, whoever says that it is not."""
    root, log = _machine(folder)
    steps = ALL_KINDS(str(log))
    repair_id = cut_short(root, *steps) if killed else apply(root, *steps).id
    copy = folder / "data/copy"
    shutil.copytree(root, copy)
    before = snapshot.take(folder)
    words = (f"repair {repair_id} was made in {root}, which still contains it, and also changed "
             f"{log}, which .*--moved {log}=FOLDER")
    for force in (False, True):
        with pytest.raises(RefusedError, match=words):
            undo(copy, force=force)
    with pytest.raises(RefusedError, match="belongs to the store"):
        undo(copy, f"{log}={log}")
    if killed:
        with pytest.raises(RefusedError, match=words), Repair(str(copy), "recover",
                                                              complete=repair_id):
            pass
    assert [words in change or "was made in" in change for change in preview(str(copy)).changed]
    after = snapshot.take(folder)
    assert {line for line in before.differences(after) if "/lock" not in line
            and "data/copy " not in line and line != "changed: data/copy (mtime_ns)"} == set()
    undo(root, named=(log,))
    assert NAMES[2] in _files(log)


def test_a_copy_with_a_folder_elsewhere(folder: Path) -> None:
    root, log = _machine(folder)
    old = _files(log)
    apply(root, *ALL_KINDS(str(log)))
    copy, own = folder / "data/copy", folder / "own=log"
    shutil.copytree(root, copy)
    shutil.copytree(log, own)
    before = snapshot.take(log)
    undo(copy, f"{log}={own}")
    assert _files(own) == old
    assert before.differences(snapshot.take(log)) == []


def test_what_was_given_is_remembered(folder: Path) -> None:
    """Killed while it is taken back, the next run goes on with it, in this store and no other."""
    root, log = _machine(folder)
    old = _files(log)
    apply(root, *ALL_KINDS(str(log)))
    copy, own = folder / "data/copy", folder / "own"
    shutil.copytree(root, copy)
    shutil.copytree(log, own)
    child = os.fork()
    if not child:
        real, count = os.rename, [0]

        def rename(source: str, target: str) -> None:
            count[0] += 1
            if count[0] == 4:
                os._exit(7)
            real(source, target)
        os.rename = rename  # type: ignore[assignment]
        undo(copy, f"{log}={own}")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert history(str(copy))[0].state == "undoing"
    shutil.copytree(copy, folder / "third")
    with pytest.raises(RefusedError, match="--moved"):
        undo(folder / "third")
    before = snapshot.take(log)
    with pytest.raises(RefusedError, match="--complete"):
        Repair(str(copy), "recover", named=[str(own)]).__enter__()
    with pytest.raises(RefusedError, match="--write-outside"):
        Repair(str(copy), "recover", complete=pending(str(copy))).__enter__()
    with Repair(str(copy), "recover", named=[str(own)], complete=pending(str(copy))) as held:
        assert held.finished is not None
    assert _files(own) == old
    assert before.differences(snapshot.take(log)) == []


def test_a_store_that_was_renamed(folder: Path) -> None:
    """It may be a copy, and the other one elsewhere: that is for a person to say."""
    root, log = _machine(folder)
    old = _files(log)
    apply(root, *ALL_KINDS(str(log)))
    renamed = folder / "data/renamed"
    root.rename(renamed)
    before = snapshot.take(log)
    with pytest.raises(RefusedError, match="unknown whether that folder belongs to .* If it "
                                           f"belongs to .*--moved {log}={log}`"):
        undo(renamed)
    assert before.differences(snapshot.take(log)) == []
    undo(renamed, f"{log}={log}")
    assert _files(log) == old


def test_a_folder_that_knows_nothing_of_the_repair(folder: Path) -> None:
    """It lies where the copy's own should, and holds other files."""
    root, log = _machine(folder / "a")
    apply(root, *MOVES(str(log)))
    shutil.copytree(folder / "a", folder / "b")
    for path in (folder / "b/disk/log").iterdir():
        path.write_bytes(b"other" * 1800)
    before = snapshot.take(folder / "b/disk/log")
    with pytest.raises(RefusedError, match="--moved"):
        undo(folder / "b/data/store")
    assert before.differences(snapshot.take(folder / "b/disk/log")) == []


def test_the_same_store_by_another_path(folder: Path) -> None:
    root, log = _machine(folder)
    old = _files(log)
    apply(root, *ALL_KINDS(str(log)))
    (folder / "link").symlink_to(root)
    undo(folder / "link", named=(log,))
    assert _files(log) == old


@pytest.mark.parametrize("how", ["a link", "a hard link"])
def test_a_copy_that_shares_files_with_the_original(folder: Path, how: str) -> None:
    root, log = _machine(folder)
    if how == "a link":
        (root / "commitlog").symlink_to(log)
        copy_file: Callable[..., object] = shutil.copy2
    else:
        log.rename(root / "commitlog")
        copy_file = os.link
    apply(root, Patch(LOG, (OverlayPiece.of(5, b"bytes"),)))
    copy = folder / "data/copy"
    shutil.copytree(root, copy, symlinks=True,
                    copy_function=lambda source, target: copy_file(source, target)
                    if LOG in source else shutil.copy2(source, target))
    before = snapshot.take(root / "commitlog")
    for force in (False, True):
        with pytest.raises(RefusedError, match="which still contains it"):
            undo(copy, force=force)
    assert before.differences(snapshot.take(root / "commitlog")) == []


def test_the_command(folder: Path, rmqctl) -> None:
    root, log = _machine(folder)
    repair_id = apply(root, *ALL_KINDS(str(log))).id
    copy = folder / "data/copy"
    shutil.copytree(root, copy)
    refused = rmqctl("undo", copy, "--yes").expect(6)
    assert f"`rmqctl undo {copy} {repair_id} --moved {log}=FOLDER`" in refused.err
    rmqctl("undo", copy, "--dry-run").expect(0)
    for given in ("nothing", f"{folder}={folder}", f"{log}=", f"{log}=/no/folder"):
        rmqctl("undo", copy, "--moved", given, "--yes").expect(2)
    rmqctl("undo", copy, "--list", "--moved", f"{log}={log}").expect(2)
    own = folder / "own"
    shutil.copytree(log, own)
    rmqctl("undo", copy, repair_id, "--moved", f"{log}={own}", "--yes").expect(0)
    assert NAMES[2] in _files(own)
    assert NAMES[2] not in _files(log)


def test_abandoned_in_a_copy(folder: Path) -> None:
    root, log = _machine(folder)
    repair_id = cut_short(root, *ALL_KINDS(str(log)))
    copy = folder / "data/copy"
    shutil.copytree(root, copy)
    with Repair(str(copy), "undo", finish=False) as held:
        held.abandon(repair_id)
    assert pending(str(copy)) is None
    assert pending(str(root)) == repair_id
    with pytest.raises(UsageError, match="these folders outside"):
        undo(root, "x=y")
