"""Files that a store replaces, and what its device does not give: no good copy is lost."""

from __future__ import annotations

import errno
import inspect
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl.backup import backup as in_folder
from rmqctl.backup import moment, remote, remote_restore
from rmqctl.backup.backup import BackupSource
from rmqctl.backup.restore import restore
from rmqctl.errors import StoreIOError, UsageError
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile
from tests.backup.test_backup import findings, growing, messages
from tests.conftest import GoldenFolder, Runner
from tests.support.worn import worn

_NOW = 1_750_000_000_000
Growing = Callable[[int, int], Path]
__all__ = ["growing"]


def run(store: Path, backup: str, number: int = 0) -> Any:
    module = remote if "://" in backup else in_folder
    return module.back_up(BackupSource(str(store)), backup, lambda: _NOW + number * 1000,
                          "1.0.0")[0]


def restored(backup: str, target: Path, **moment: Any) -> Path:
    (remote_restore.restore if "://" in backup else restore)(backup, str(target), **moment)
    return target


def below(root: Path, folder: str) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes()
            for path in (root / folder).rglob("*") if path.is_file()}


@pytest.fixture(params=["folder", "url"])
def backup(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "backup") if request.param == "folder" else (
        f"memory://replaced-{os.getpid()}-{request.node.name}/a")


@pytest.fixture
def compacting(golden: GoldenFolder, tmp_path: Path) -> tuple[Path, list[Path]]:
    """(a store, the compaction logs that it had one after the other)."""
    parent, store = golden("5.3.3/compaction/store").parent, tmp_path / "store"
    shutil.copytree(parent / "store", store)
    return store, [parent / "compaction-before", parent / "compaction-after-1st",
                   parent / "store/compaction"]


def put(store: Path, other: Path) -> None:
    shutil.rmtree(store / "compaction")
    shutil.copytree(other, store / "compaction", copy_function=shutil.copyfile)


def test_each_point_has_the_compaction_logs_of_its_time(
        compacting: tuple[Path, list[Path]], backup: str, tmp_path: Path) -> None:
    store, logs = compacting
    want = []
    for number, log in enumerate(logs):
        put(store, log)
        want.append((run(store, backup, number).id, below(store, "compaction")))
    for point, files in want:
        assert below(restored(backup, tmp_path / point, point=point), "compaction") == files


@pytest.mark.parametrize("at", ["middle", "end"])
def test_damage_in_a_compaction_log_leaves_the_copy(at: str, golden_copy: GoldenFolder,
                                                    backup: str, tmp_path: Path) -> None:
    store = golden_copy("5.3.3/compaction/store")
    path = store / "compaction/compactionLog/TP_user_Topic/0/00000000000000000000"
    sound, first = path.read_bytes(), run(store, backup)
    used = len(sound.rstrip(b"\0"))
    start = 1024 if at == "middle" else used - 1024
    path.write_bytes(sound[:start] + bytes(1024) + sound[start + 1024:])
    run(store, backup, 1)
    target = restored(backup, tmp_path / "first", point=first.id)
    assert (target / path.relative_to(store)).read_bytes() == sound


def test_a_timer_log_grows(golden_copy: GoldenFolder, tmp_path: Path,
                           monkeypatch: pytest.MonkeyPatch) -> None:
    from rmqctl.backup import copying

    store, backup = golden_copy("5.3.3/timer/store"), tmp_path / "backup"
    [path, *_] = sorted((store / "timerlog").iterdir())
    whole = path.read_bytes()
    cut = len(whole.rstrip(b"\0")) // 2
    path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
    run(store, str(backup))
    path.write_bytes(whole)
    copied: list[str] = []
    real = copying.copy_sparse
    monkeypatch.setattr(copying, "copy_sparse", lambda source, target: copied.append(source) or
                        real(source, target))
    run(store, str(backup), 1)
    assert str(path) not in copied
    assert (backup / "timerlog" / path.name).read_bytes() == whole
    assert (backup / "timerlog" / path.name).stat().st_mtime_ns == path.stat().st_mtime_ns


@pytest.mark.parametrize("point", [0, 1])
def test_a_killed_run_leaves_what_older_points_need(
        point: int, compacting: tuple[Path, list[Path]], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    from rmqctl.backup import points

    (store, logs), backup = compacting, str(tmp_path / "backup")
    put(store, logs[0])
    want = [(run(store, backup).id, below(store, "compaction"))]
    put(store, logs[1])
    with monkeypatch.context() as ended:
        ended.setattr(points, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(store, backup, 1)
    want.append((run(store, backup, 2).id, below(store, "compaction")))
    name, files = want[point]
    assert below(restored(backup, tmp_path / "new", point=name), "compaction") == files


@pytest.mark.parametrize("have", [False, True])
@pytest.mark.parametrize(("name", "start"), [
    ("index", 0), ("index", 64), ("index", 400), ("checkpoint", 0), ("config/topics.json", 0),
    ("consumequeue", 0), ("consumequeue", 200)])
def test_what_the_device_does_not_give_is_reported(
        name: str, start: int, have: bool, growing: Growing, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch, rmqctl: Runner) -> None:
    store, backup = growing(0, 150), tmp_path / "backup"
    path = store / name
    if path.is_dir():
        path = max((file for file in path.rglob("*") if file.is_file()),
                   key=lambda file: len(file.read_bytes().rstrip(b"\0")))
    sound = (messages(store), path.read_bytes())
    if have:
        run(store, str(backup))
        os.utime(path)
    with monkeypatch.context() as device:
        device.setattr(os, "copy_file_range", lambda *_: (_ for _ in ()).throw(
            OSError(errno.EIO, "worn out")))
        worn(device, path, start, start + 20)
        point = run(store, str(backup), 1)
    holes = [hole for hole in point.damaged if hole.file == str(path.relative_to(store))]
    is_read = have and name in ("index", "consumequeue")  # what is unchanged may not be read
    assert holes or is_read
    assert all(hole.unread and hole.kept is have for hole in holes)
    if have:
        assert (backup / path.relative_to(store)).read_bytes() == sound[1]
    target = restored(str(backup), tmp_path / "new")
    assert messages(target) == sound[0]
    assert {finding[0] for finding in findings(target)} <= {"config-backup", "topic-unconfigured"}
    rmqctl("backup", "list", backup).expect(0)


def test_nothing_is_as_old_as_the_time(growing: Growing, backup: str, tmp_path: Path) -> None:
    store = growing(0, 20)
    run(store, backup)
    done = (remote_restore.restore if "://" in backup else restore)(
        backup, str(tmp_path / "new"), until=1)
    assert any("no message was stored up to 1970-01-01" in note and "the store is empty" in note
               for note in done.notes)
    assert messages(tmp_path / "new") == []


def test_a_place_that_is_not_there(tmp_path: Path, rmqctl: Runner) -> None:
    done = rmqctl("backup", "list", f"file://{tmp_path}/none").expect(3)
    assert "bucket or folder does not exist" in done.err


def test_a_url_as_the_other_copy(growing: Growing, tmp_path: Path, rmqctl: Runner) -> None:
    store, url = growing(0, 60), f"file://{tmp_path}/url"
    run(store, url)
    intact = messages(store)
    [path, *_] = sorted((store / "commitlog").iterdir())
    path.write_bytes(path.read_bytes()[:4096] + bytes(4096) + path.read_bytes()[8192:])
    [step, *_] = rmqctl("doctor", store, "--backup", url, "-o", "json").json()["next"]
    assert step == f"rmqctl recover {store} --from {url}"
    rmqctl(*step.split()[1:], "--apply").expect(0)
    assert messages(store) == intact
    assert findings(store) == set()


def test_a_backup_with_the_same_damage_comes_after_other_repairs(
        growing: Growing, tmp_path: Path, rmqctl: Runner) -> None:
    store, backup = growing(0, 60), tmp_path / "backup"
    [path, *_] = sorted((store / "commitlog").iterdir())
    path.write_bytes(path.read_bytes()[:4096] + bytes(4096) + path.read_bytes()[8192:])
    assert run(store, str(backup)).damaged
    steps = rmqctl("doctor", store, "--backup", backup, "-o", "json").json()["next"]
    at = steps.index(f"rmqctl recover {store} --from {backup}")
    assert at == steps.index(f"rmqctl recover {store}") + 1
    assert "already damaged then (1 damaged range)" in " ".join(
        rmqctl("doctor", store, "--backup", backup).out.split())


def test_a_folder_of_points_beside_a_log_is_no_backup(growing: Growing, tmp_path: Path,
                                                      rmqctl: Runner) -> None:
    store = growing(0, 20)
    (store / "points").mkdir()
    (store / "points/20261129T000000.000Z.json").write_text("{}")
    assert rmqctl("info", f"file://{store}", "-o", "json").json()["messages"] == 20
    rmqctl("restore", f"file://{store}", tmp_path / "new").expect(0)
    assert messages(tmp_path / "new") == messages(store)


def test_a_name_that_is_no_text(growing: Growing, tmp_path: Path, rmqctl: Runner) -> None:
    store, backup = growing(0, 20), tmp_path / "backup"
    (store / "config" / os.fsdecode(b"caf\xe9.json")).write_text("{}")
    point = run(store, str(backup))
    rmqctl("backup", "check", backup).expect(0)
    restored(str(backup), tmp_path / "new")
    assert below(tmp_path / "new", "config") == below(store, "config")
    note = backup / ".rmqctl/backup/points" / point.id / "point.json"
    note.write_text(note.read_text().replace("topics.json", "\\ud800.json"))
    rmqctl("backup", "list", backup).expect(3)


def test_two_moments(growing: Growing, backup: str, tmp_path: Path) -> None:
    run(growing(0, 20), backup)
    with pytest.raises(UsageError):
        restored(backup, tmp_path / "new", until=1, offset=0)


@pytest.mark.long
def test_a_deleted_topic_does_not_come_back(growing: Growing, backup: str, tmp_path: Path) -> None:
    def delete(topic: str) -> None:
        path = root / "config/topics.json"
        document = json.loads(path.read_text())
        del document["topicConfigTable"][topic]
        path.write_text(json.dumps(document))
        shutil.rmtree(root / "consumequeue" / topic)

    root = growing(0, 60)
    delete("T0")
    run(root, backup)
    first = {path.name for path in (root / "consumequeue").iterdir()}
    growing(60, 30)  # T0 again
    delete("T1")
    middle = run(root, backup, 1)
    growing(90, 30)
    delete("T2")
    shutil.rmtree(root / "consumequeue" / "T0")  # lost, as it is configured
    last = run(root, backup, 2)
    for point, topics in ((last.id, {"T0", "T1"}), (middle.id, {"T0", "T2"})):
        new = restored(backup, tmp_path / point, point=point)
        assert {path.name for path in (new / "consumequeue").iterdir()} == topics
        assert messages(new)
    done = (remote_restore.restore if "://" in backup else restore)(
        backup, str(tmp_path / "x"), offset=messages(root)[60]["physical_offset"])
    assert {path.name for path in (tmp_path / "x/consumequeue").iterdir()} >= first
    assert not any("had deleted" in note for note in done.notes)


class Gone:
    """Changes a store's log during a run: after its end was fixed, before or after it is copied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: str,
                 change: Callable[[], object]) -> None:
        self.change, self.left = change, 1
        fix, copy_log = moment.fix, in_folder.copy_log

        def copied(view: Any, *args: Any) -> Any:
            if at == "before" and view.log.files:
                self.after(None)
            yield from copy_log(view, *args)
            if at == "copied":
                self.after(None)

        if at == "fixed":
            monkeypatch.setattr(moment, "fix", lambda *args: self.after(fix(*args)))
        for module in (in_folder, remote):
            monkeypatch.setattr(module, "copy_log", copied)

    def after(self, done: Any) -> Any:
        if self.left:
            self.left -= 1
            self.change()
        return done


def test_a_log_file_that_is_deleted_meanwhile(growing: Growing, backup: str, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """As the cleanup of a broker: the run begins again, and has what is left."""
    store = growing(0, 150)
    oldest = min((store / "commitlog").iterdir())
    Gone(monkeypatch, "fixed", oldest.unlink)
    point = run(store, backup)
    assert point.log_start == int(min((store / "commitlog").iterdir()).name) > 0
    assert messages(restored(backup, tmp_path / "new")) == messages(store)


def test_a_log_file_that_is_cut_meanwhile_ends_the_run(growing: Growing, backup: str,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """It did so, without an end: a position after the end of the file was never reached."""
    store = growing(0, 150)
    first, *_ = sorted((store / "commitlog").iterdir())
    sound = first.read_bytes()
    Gone(monkeypatch, "before", lambda: os.truncate(first, 5000))
    with pytest.raises(StoreIOError, match=r"commitlog/0+: shrank while it was copied"):
        run(store, backup)
    first.write_bytes(sound)
    assert run(store, backup, 1).damaged == ()


def test_a_log_that_disappears_meanwhile(growing: Growing, backup: str, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    store = growing(0, 150)
    fix = moment.fix

    def without_log(*args: Any) -> Any:
        (store / "commitlog").rename(tmp_path / "elsewhere")
        return fix(*args)

    monkeypatch.setattr(moment, "fix", without_log)
    with pytest.raises(StoreIOError, match="its log files have disappeared"):
        run(store, backup)


@pytest.mark.parametrize("change", ["cut", "zeros"])
def test_a_log_that_changes_after_it_was_copied(change: str, growing: Growing, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch,
                                                rmqctl: Runner) -> None:
    """The sums are those of the copy."""
    store, backup = growing(0, 150), tmp_path / "backup"
    first, *_ = sorted((store / "commitlog").iterdir())
    sound = first.read_bytes()
    Gone(monkeypatch, "copied", lambda: os.truncate(first, 5000) if change == "cut"
         else first.write_bytes(bytes(len(sound))))
    run(store, str(backup))
    assert (backup / "commitlog" / first.name).read_bytes() == sound
    rmqctl("backup", "check", backup).expect(0)


@pytest.mark.parametrize("left", [0, 4096, 5000])
def test_a_log_file_that_is_cut_while_it_is_copied(left: int, growing: Growing, backup: str,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was opened, its end looks like a hole."""
    store = growing(0, 150)
    first, *_ = sorted((store / "commitlog").iterdir())
    opened = StoreFile.open
    cut: list[str] = []

    def cutting(file: StoreFile) -> FileSource:
        source = opened(file)
        if file.path == str(first) and any(
                frame.function == "copy_log" for frame in inspect.stack()[1:3]):
            os.truncate(first, left)
            cut.append(file.path)
        return source

    monkeypatch.setattr(StoreFile, "open", cutting)
    with pytest.raises(StoreIOError, match=r"commitlog/0+: shrank while it was copied"):
        run(store, backup)
    assert cut


@pytest.mark.parametrize("size", [219, 233, 239])
def test_a_queue_file_that_ends_with_a_part_of_an_entry(size: int, growing: Growing, backup: str,
                                                        tmp_path: Path) -> None:
    store = growing(0, 150)
    last = max((store / "consumequeue").rglob("0*"), key=lambda path: (path.name, str(path)))
    last.write_bytes((last.read_bytes() + b"\x01" * 600)[:size - 1] + b"\x07")
    point = run(store, backup)
    assert point.log_end
    assert run(store, backup, 1).log_end == point.log_end
    assert messages(restored(backup, tmp_path / "new")) == messages(store)
