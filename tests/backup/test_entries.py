"""Backups at a URL where the log does not tell what the consume queues had."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl import api
from rmqctl.backup import entries
from rmqctl.backup.objects import Objects
from rmqctl.backup.points import Point
from rmqctl.errors import FormatError
from tests.backup.test_backup import findings, growing, messages
from tests.backup.test_replaced import backup, restored, run
from tests.conftest import GoldenFolder, Runner
from tests.support import damage

Growing = Callable[[int, int], Path]
__all__ = ["backup", "growing"]


def queues(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes().rstrip(b"\0")
            for top in ("consumequeue", "batchconsumequeue")
            for path in sorted((store / top).rglob("*")) if path.is_file()}


@pytest.mark.long
def test_a_topic_that_was_created_again(growing: Growing, backup: str, tmp_path: Path) -> None:
    first, before = run(root := growing(0, 200), backup), messages(root)
    shutil.rmtree(root / "consumequeue" / "T0")
    growing(200, 40)
    run(root, backup, 1)
    growing(240, 40)
    run(root, backup, 2)
    assert queues(restored(backup, tmp_path / "new")) == queues(root)
    assert findings(tmp_path / "new") == findings(root)
    with api.open(root) as opened, api.open(tmp_path / "new") as other:
        assert list(opened.messages(topic="T0")) == list(other.messages(topic="T0"))
    assert messages(restored(backup, tmp_path / "old", point=first.id)) == before
    assert findings(tmp_path / "old") == set()


@pytest.mark.parametrize("later", [20, 150])
def test_a_topic_that_was_created_again_before_the_first_run(
        later: int, growing: Growing, backup: str, tmp_path: Path) -> None:
    root = growing(0, 60)
    shutil.rmtree(root / "consumequeue" / "T0")
    growing(60, later)
    first, before = run(root, backup), queues(root)
    assert queues(restored(backup, tmp_path / "new")) == before
    growing(60 + later, 20)
    run(root, backup, 1)
    assert queues(restored(backup, tmp_path / "newest")) == queues(root)
    assert queues(restored(backup, tmp_path / "old", point=first.id)) == before


@pytest.mark.parametrize("gone", [30, 700])
def test_a_torn_end_that_was_written_over(gone: int, growing: Growing, backup: str,
                                          tmp_path: Path) -> None:
    root = growing(0, 40)
    log = max((root / "commitlog").iterdir())
    used = len(log.read_bytes().rstrip(b"\0"))
    damage.zero(root, f"commitlog/{log.name}", used - gone, gone)
    torn, before = run(root, backup), messages(root)
    growing(40, 30)
    run(root, backup, 1)
    assert messages(restored(backup, tmp_path / "torn", point=torn.id)) == [
        message for message in before if message["physical_offset"] < torn.whole_end]
    with api.open(tmp_path / "torn") as store:
        assert store.preflight().messages_lost == 0
    assert messages(restored(backup, tmp_path / "new")) == messages(root)


def test_a_lost_end_of_a_log_file_that_was_repaired(growing: Growing, backup: str, tmp_path: Path,
                                                    rmqctl: Runner) -> None:
    root = growing(0, 260)
    damage.zero(root, f"commitlog/{16384:020d}", 12288, 4096)
    [*_, hole] = run(root, backup).damaged
    assert hole.offset + hole.length == 16384
    rmqctl("recover", root, "--apply").expect(1)
    growing(260, 20)
    run(root, backup, 1)
    assert messages(restored(backup, tmp_path / "new")) == messages(root)
    assert queues(tmp_path / "new") == queues(root)


@pytest.mark.long
@pytest.mark.parametrize("file", [0, 2, 4])
def test_messages_that_only_entries_know(file: int, growing: Growing, backup: str,
                                         tmp_path: Path) -> None:
    root = growing(0, 260)
    damage.zero(root, f"commitlog/{file * 16384:020d}", 4096, 8192)
    assert run(root, backup).damaged
    growing(260, 20)
    run(root, backup, 1)
    assert queues(restored(backup, tmp_path / "new")) == queues(root)
    assert findings(tmp_path / "new") == findings(root)
    cut = messages(root)[60]["physical_offset"]
    restored(backup, tmp_path / "cut", offset=cut)
    assert messages(tmp_path / "cut") == messages(root)[:60]
    lost = {finding for finding in findings(root) if finding[0] != "record-damaged"}
    assert {finding for finding in findings(tmp_path / "cut")
            if finding[0] != "record-damaged"} <= lost


def test_batch_queues(golden: GoldenFolder, backup: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden("5.3.3/batchcq/store"), root)
    [log, *_] = sorted((root / "commitlog").iterdir())
    damage.zero(root, f"commitlog/{log.name}", 4096, 4200)
    run(root, backup)
    assert queues(restored(backup, tmp_path / "new")) == queues(root)
    assert findings(tmp_path / "new") == findings(root)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_entries_that_the_store_lost_are_reported(share: float, growing: Growing, backup: str,
                                                  tmp_path: Path) -> None:
    root = growing(0, 100)
    run(root, backup)
    before = queues(root)
    path = max((root / "consumequeue/T1/1").iterdir())
    used = len(path.read_bytes().rstrip(b"\0"))
    gone = int(used * share) // 20 * 20
    path.write_bytes(path.read_bytes()[:used - gone] + bytes(600 - used + gone))
    for number in (1, 2):
        [hole] = run(root, backup, number).damaged
        assert hole.kept
        assert hole.file == str(path.relative_to(root))
    assert queues(restored(backup, tmp_path / "new")) == before


def test_files_of_entries_stay_short(growing: Growing, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://short-{tmp_path.name}/a"
    monkeypatch.setattr(entries, "_PIECES", 2)
    monkeypatch.setattr(entries, "_PIECE", 100)
    for number in range(6):
        root = growing(number * 30, 30)
        run(root, url, number)
    damage.zero(root, f"commitlog/{0:020d}", 4096, 8192)
    with Objects(url) as objects:
        last = objects.notes(objects.point_names()[-1:])[0]
    files = sorted(name for name in last.others if name.startswith(entries.FOLDER))
    assert len(files) > 3
    monkeypatch.setattr("rmqctl.backup.remote_restore._only_entries_tell", lambda _: True)
    assert queues(restored(url, tmp_path / "new")) == queues(root)
    # What leads into expired log is left out.
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        path.unlink()
    run(root, url, 7)
    with Objects(url) as objects:
        last = objects.notes(objects.point_names()[-1:])[0]
    left = sorted(name for name in last.others if name.startswith(entries.FOLDER))
    assert 1 < len(left) < len(files)


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_point_that_is_no_file(kind: str, growing: Growing, tmp_path: Path,
                                 rmqctl_process: Runner) -> None:
    backup = tmp_path / "backup"
    first = run(root := growing(0, 5), str(backup))
    run(root, str(backup), 1)
    path = backup / ".rmqctl/backup/points" / first.id / "point.json"
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for command in ("list", "check"):
        done = rmqctl_process("backup", command, backup).expect(1)
        assert str(path) in done.out + done.err


def test_offsets_of_a_queue_that_begins_after_the_cut(growing: Growing, backup: str,
                                                      tmp_path: Path) -> None:
    root = growing(0, 30)
    (root / "config" / "consumerOffset.json").write_text(
        json.dumps({"offsetTable": {"T0@g": {"0": 2}, "T2@g": {"0": 3}, "gone@g": {"0": 9}}}))
    run(root, backup)
    restored(backup, tmp_path / "new", offset=messages(root)[1]["physical_offset"])
    offset_table = json.loads((tmp_path
                               / "new/config/consumerOffset.json").read_text())["offsetTable"]
    assert offset_table == {"T0@g": {"0": 1}, "T2@g": {"0": 0}, "gone@g": {"0": 9}}


@pytest.mark.parametrize("change", [
    {"path": "../x"}, {"path": "config/topics.json"}, {"path": "/consumequeue/x"},
    {"position": -20}, {"length": 0}, {"length": 1 << 21}, {"size": 1 << 40}, {"unit": 7},
    {"position": True}])
def test_hostile_stretches(change: dict[str, object]) -> None:
    sound = {"path": "consumequeue/T/0/0", "position": 0, "length": 20, "size": 600, "unit": 20,
             "is_new": False}
    assert entries.header(json.dumps([*sound.values()]).encode(), "x")[1] == 0
    with pytest.raises(FormatError):
        entries.header(json.dumps([*{**sound, **change}.values()]).encode(), "x")
    with pytest.raises(FormatError):
        entries.header(b"[1, 2", "x")


def test_a_backup_without_entries_is_restored(growing: Growing, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch,
                                              rmqctl: Runner) -> None:
    root, url = growing(0, 60), f"file://{tmp_path}/url"
    with monkeypatch.context() as before:
        before.setattr(entries.Entries, "held", lambda *_: {})
        damage.zero(root, f"commitlog/{0:020d}", 4096, 8192)
        assert isinstance(run(root, url), Point)
    listed_messages = messages(restored(url, tmp_path / "new"))
    assert listed_messages == messages(root)[:len(listed_messages)]  # up to the damage
    run(root, url, 1)
    assert queues(restored(url, tmp_path / "newest")) == queues(root)
    rmqctl("backup", "check", url).expect(0)
