"""Backups at a URL: what is restored from them is what a backup in a folder gives."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rmqctl import api
from rmqctl.backup import remote
from rmqctl.backup.backup import BackupSource
from rmqctl.backup.objects import Objects, check, require_points
from rmqctl.backup.remote import back_up
from rmqctl.backup.remote_restore import restore
from rmqctl.errors import NotAStoreError, RefusedError, StoreHeldError, UsageError
from rmqctl.files.remote.files import RemoteFiles
from tests.backup import test_backup as local
from tests.backup.test_backup import (
    LAYOUTS,
    SOUND,
    findings,
    folders_of,
    growing,
    messages,
)
from tests.conftest import GoldenFolder, Runner
from tests.support import damage, golden, snapshot
from tests.support.holder import held
from tests.support.layouts import layout_set
from tests.support.s3 import simulated
from tests.support.share import sample

_NOW = 1_750_000_000_000
_numbers = itertools.count()
Growing = Callable[[int, int], Path]
__all__ = ["growing"]


@pytest.fixture
def url() -> str:
    return f"memory://backup-{os.getpid()}-{next(_numbers)}/a"


def run(store: Path, url: str, now: int = _NOW, keep: int | None = None, dirs: Any = ()) -> Any:
    return back_up(BackupSource(str(store), dirs), url, lambda: now, "1.0.0", keep=keep)[0]


def names(url: str, folder: str = "log") -> set[str]:
    with Objects(url) as objects:
        return set(objects.find(folder))


def offsets(store: Any) -> list[Any]:
    return [row.as_dict() for row in store.offsets()]


def bounds(store: Any) -> dict[Any, tuple[int, int]]:
    return {key: (queue.first_index, queue.disk_end)
            for key, queue in store._store.queues.by_key.items()}


def alike(store: Path, other: Path, config: bool = True) -> None:
    """Both have the same messages, files, offsets, and a broker starts on them alike."""
    assert messages(store) == messages(other)
    assert findings(store) <= findings(other)  # what follows from the log is sound
    with api.open(store) as opened, api.open(other) as two:
        assert opened.preflight().messages_lost == two.preflight().messages_lost == 0
        if findings(store) == findings(other):
            assert offsets(opened) == offsets(two)
            assert bounds(opened) == bounds(two)
    files = [{path.relative_to(root): path.read_bytes() for path in root.rglob("*")
              if path.is_file() and (config or "config" not in path.parts)
              and path.name not in ("checkpoint", "lock", "LOCK")
              and path.parent.name not in ("index", "consumequeue")
              and path.parts[len(root.parts)] != "consumequeue_ext"}  # without filters' bits
             for root in (store, other)]
    assert sorted(files[0]) == sorted(files[1])
    has_ext = (store / "consumequeue_ext").exists()
    assert [path for path in files[0] if files[0][path] != files[1][path]
            and not (has_ext and path.parts[0] == "consumequeue")] == []


@pytest.mark.parametrize("byte", sample(SOUND, 2, "remote backups",
                                        always=lambda golden_store: golden_store.id in (
                                            "5.3.3/batchcq/store", "5.3.3/lmq/store")),
                         ids=lambda golden_store: golden_store.id)
def test_a_golden_store(byte: golden.GoldenStore, golden: GoldenFolder, tmp_path: Path,
                        url: str) -> None:
    root = golden(byte.id)
    dirs = folders_of(byte, root)
    with snapshot.assert_unchanged(root):
        run(root, url, dirs=dirs)
    local.run(root, tmp_path / "backup", dirs=dirs)
    restore(url, str(tmp_path / "new"))
    local.restore(str(tmp_path / "backup"), str(tmp_path / "like"))
    alike(tmp_path / "new", tmp_path / "like")
    if rows := messages(root, dirs):
        at = rows[len(rows) // 2]["physical_offset"]
        restore(url, str(tmp_path / "half"), offset=at)
        local.restore(str(tmp_path / "backup"), str(tmp_path / "like half"), offset=at)
        alike(tmp_path / "half", tmp_path / "like half")
    assert list(check(url, require_points(url))) == []


@pytest.mark.parametrize("name", sample(LAYOUTS, 2, "layouts of remote backups", always=lambda n: (
    n == "5.3.3/rocksdb")))
def test_other_layouts(name: str, tmp_path: Path, url: str) -> None:
    root = layout_set(name) / "store"
    run(root, url)
    restore(url, str(tmp_path / "new"))
    assert messages(tmp_path / "new") == messages(root)
    assert findings(tmp_path / "new") <= findings(root)
    with api.open(tmp_path / "new") as new, api.open(root) as old:
        assert new.preflight().messages_lost == 0
        assert new._store.layout.consumequeue == (
            "file" if "double" in name else old._store.layout.consumequeue)


def test_a_slave_starts_where_the_backup_ends(tmp_path: Path, url: str) -> None:
    run(layout_set("5.3.3/controller") / "store", url)
    for name, seed in (("slave", True), ("same", False)):
        restore(url, str(tmp_path / name), seed_slave=seed)
    left_out = {"brokerIdentity", "brokerIdentity-temp"}
    theirs, same = ({path.name for path in (tmp_path / name).iterdir()}
                    for name in ("slave", "same"))
    assert not theirs & left_out
    assert same - left_out == theirs < same
    run(layout_set("5.3.3/dledger") / "store", url + "-dledger")
    with pytest.raises(RefusedError, match="there are no slaves"):
        restore(url + "-dledger", str(tmp_path / "none"), seed_slave=True)
    assert not list(tmp_path.glob("none*"))


# -- run by run -----------------------------------------------------------------------------------


@pytest.mark.long
def test_each_moment_is_that_of_a_local_backup(growing: Growing, tmp_path: Path, url: str,
                                               rmqctl: Runner) -> None:
    backup, stored = tmp_path / "backup", 0
    for number, count in enumerate((50, 0, 90)):
        root = growing(number * 50, count) if count else tmp_path / "store"
        (root / "config" / "consumerOffset.json").write_text(
            json.dumps({"offsetTable": {"T0@g": {"0": number * 2}}}))
        before = names(url)
        point = run(root, url, _NOW + number * 60_000)
        local.run(root, backup, _NOW + number * 60_000)
        assert before < names(url) if count else before == names(url)
        assert sum(part.end - part.start for part in point.parts) == point.log_end - stored
        stored = point.log_end
    rows, points = messages(backup), require_points(url)
    assert [point.id for point in points] == [point.id for point in local.read_points(str(backup))]
    with api.open(backup) as opened:
        times = [row["store_timestamp"] for row in opened.messages(fields=["store_timestamp"])]
    for number, how in enumerate(({}, {"point": points[0].id}, {"until": times[60]},
                                  {"offset": rows[70]["physical_offset"]}, {"until": _NOW + 1})):
        target, like = tmp_path / f"new{number}", tmp_path / f"like{number}"
        done, same = restore(url, str(target), **how), local.restore(str(backup), str(like), **how)
        assert (done.point.id, done.end, done.files, done.notes) == (
            same.point.id, same.end, same.files, same.notes)
        alike(target, like)
        assert not (target / ".rmqctl").exists()
    result = rmqctl("backup", "list", url, "-o", "json").json()["points"]
    assert [point["log_end"] for point in result] == [point.log_end for point in points]
    rmqctl("backup", "check", url).expect(0)
    rmqctl("restore", url, tmp_path / "new", "--point", "x").expect(2)


class Killed(BaseException):
    """A run ends here."""


@pytest.mark.parametrize("place", ["memory", "file", "several at once"])
def test_a_killed_run_leaves_the_points_before(place: str, growing: Growing, tmp_path: Path,
                                               url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if place == "file":
        url = f"file://{tmp_path}/backup"
    if place == "several at once":
        monkeypatch.setattr(RemoteFiles, "is_object_store", True)
        monkeypatch.setattr(remote, "PIECE", 4096)
    root = growing(0, 30)
    first = run(root, url)
    before = messages(root)
    growing(30, 60)
    real, left = RemoteFiles.put, 0

    def put(self: RemoteFiles, path: str, data: bytes) -> None:
        nonlocal left
        left -= 1
        if not left:
            if not path.startswith("points"):
                real(self, path, data[:len(data) // 2])
            raise Killed
        real(self, path, data)

    def move(self: RemoteFiles, path: str, target: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Killed
        moved(self, path, target)

    moved = RemoteFiles._move
    monkeypatch.setattr(RemoteFiles, "put", put)
    monkeypatch.setattr(RemoteFiles, "_move", move)
    for number in range(1, 100):
        left = number
        try:
            run(root, url, _NOW + number * 1000)
            break
        except Killed:
            assert [point.id for point in require_points(url)] == [first.id]
    assert number > 4
    left = 0
    back_up(BackupSource(str(root)), url, lambda: _NOW + 200_000, "1", keep=300_000)
    restore(url, str(tmp_path / "first"), point=first.id)
    assert messages(tmp_path / "first") == before
    restore(url, str(tmp_path / "new"))
    assert messages(tmp_path / "new") == messages(root)
    assert list(check(url, require_points(url))) == []


def test_a_first_run_that_was_killed_goes_on(growing: Growing, tmp_path: Path, url: str,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteFiles, "is_object_store", True)
    monkeypatch.setattr(remote, "PIECE", 4096)
    root, real, put = growing(0, 90), RemoteFiles.put, list[str]()

    def putting(self: RemoteFiles, path: str, data: bytes) -> None:
        if len(put) == 4 and not is_second:
            raise Killed
        put.append(path)
        real(self, path, data)

    monkeypatch.setattr(RemoteFiles, "put", putting)
    is_second = False
    with pytest.raises(Killed):
        run(root, url)
    is_second = True
    run(root, url)
    assert len(put) == len({*put}) > 4
    restore(url, str(tmp_path / "new"))
    assert messages(tmp_path / "new") == messages(root)


def test_keep_removes_what_no_point_names(growing: Growing, tmp_path: Path, url: str) -> None:
    root = growing(0, 120)
    first = run(root, url)
    gone = min((root / "commitlog").iterdir())
    gone.unlink()
    with Objects(url) as objects:
        objects.put("log/commitlog/x/0-1-0", b"of a killed run")
    run(root, url, _NOW + 1000)
    restore(url, str(tmp_path / "first"), point=first.id)
    assert (tmp_path / "first" / "commitlog" / gone.name).exists()
    objects_before = names(url, "")
    _point, removed = back_up(BackupSource(str(root)), url, lambda: _NOW + 9000, "1", keep=2000)
    assert removed[0] == 2
    assert removed[1] > 10_000
    assert [point.time for point in require_points(url)] == [_NOW + 9000]
    taken = {name for name in objects_before - names(url, "") if name.startswith("log")}
    assert {name.split("/")[2] for name in taken} == {gone.name, "x"}
    assert list(check(url, require_points(url))) == []
    restore(url, str(tmp_path / "new"))
    assert messages(tmp_path / "new") == messages(root)


def test_keep_reads_few_points_of_many(growing: Growing, tmp_path: Path, url: str,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    from rmqctl.backup import objects

    monkeypatch.setattr(objects, "_FEW", 1)
    root, read, real = growing(0, 120), [], Objects.notes
    for number in range(4):
        run(root, url, _NOW + number * 1000)
        if not number:
            min((root / "commitlog").iterdir()).unlink()
        (root / "config" / "a.json").write_text("AB"[number % 2])
    monkeypatch.setattr(Objects, "notes", lambda self, some, _bad=None: (
        read.extend(some), real(self, some))[1])
    run(root, url, _NOW + 4000, keep=2500)
    assert len(read) == 1 + 2 + 2  # the newest, then oldest and newest left, those that go
    assert len(require_points(url)) == 3
    assert f"log/commitlog/{0:020d}" not in {name.rpartition("/")[0] for name in names(url)}
    assert list(check(url, require_points(url))) == []
    run(root, url, _NOW + 86_400_000, keep=1000)  # the next day all are read
    assert len(names(url, "small")) == len({piece.sha256 for held in real(
        Objects(url), [require_points(url)[0].id])[0].others.values() for piece in held.pieces})


def test_a_file_of_many_pieces_has_a_list(growing: Growing, tmp_path: Path, url: str,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    from rmqctl.backup import remote

    monkeypatch.setattr(remote, "PIECE", 700)
    root = growing(0, 60)
    for number in range(3):
        run(root, url, _NOW + number * 1000, keep=1500)
        growing(60 + number, 1)
    run(root, url, _NOW + 9000, keep=500)
    with Objects(url) as objects:
        note = objects.require_notes()[-1]
        listed = [held.pieces for held in note.log.values() if isinstance(held.pieces, str)]
        assert listed
        assert {f"small/{digest}" for digest in listed} <= set(objects.find("small"))
    restore(url, str(tmp_path / "new"))
    assert messages(tmp_path / "new") == messages(root)
    with Objects(url) as objects:
        objects.remove(f"small/{listed[0]}")
    assert len(list(check(url, require_points(url)))) == 1


# -- damage ---------------------------------------------------------------------------------------


def test_check_finds_what_changed(growing: Growing, tmp_path: Path, url: str,
                                  rmqctl: Runner) -> None:
    run(growing(0, 120), url)
    first, two, *_ = sorted(names(url))
    with Objects(url) as objects:
        data = bytearray(objects.read(first, 0, 1 << 20))
        data[99] ^= 1
        objects.put(first, bytes(data))
        objects.remove(two)
    faults = rmqctl("backup", "check", url, "-o", "json").expect(1).json()["faults"]
    assert [fault["file"] for fault in faults] == [
        "/".join(name.split("/")[1:3]) for name in (first, two)]
    for name in (first, two):
        assert name.rpartition("/")[2] in " ".join(fault["reason"] for fault in faults)
    failed = rmqctl("restore", url, tmp_path / "new").expect(5)
    assert first.rpartition("/")[2] in failed.err.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize("kind", ["4.9.3/crash-crc/before", "5.3.3/crash-trunc-zero/before"])
def test_damage_is_copied_and_reported(kind: str, golden: GoldenFolder, tmp_path: Path, url: str,
                                       rmqctl: Runner) -> None:
    root = golden(kind)
    assert run(root, url).damaged
    rmqctl("backup", root, url, "--keep", "1s")
    answer = rmqctl("backup", "check", url, "-o", "json").expect(0).json()
    assert (answer["points"], answer["damaged_in_the_store"] > 0) == (1, True)
    restore(url, str(tmp_path / "new"))
    assert messages(tmp_path / "new") == messages(root)


@pytest.mark.long
@pytest.mark.parametrize("harm", ["flip", "zero", "torn"])
def test_a_repair_in_place_gets_into_the_backup(harm: str, growing: Growing, tmp_path: Path,
                                                url: str, rmqctl: Runner) -> None:
    root = growing(0, 200)
    log = f"commitlog/{0:020d}"
    if harm == "flip":
        damage.flip_bit(root, log, 10, 1)
    elif harm == "zero":
        damage.zero(root, log, 4096, 8192)
    else:
        last = messages(root)[-1]["physical_offset"]
        damage.zero(root, f"commitlog/{last // 16384 * 16384:020d}", last % 16384 + 60, 100)
    first = run(root, url)
    local.run(root, tmp_path / "backup")
    rmqctl("recover", root, "--apply", "--yes",
           *(("--strategy", "broker") if harm == "torn" else ())).expect(0, 1)
    growing(200, 20)
    for place in (url, tmp_path / "backup"):
        rmqctl("backup", root, place).expect(0)
    restore(url, str(tmp_path / "new"))
    local.restore(str(tmp_path / "backup"), str(tmp_path / "like"))
    assert messages(tmp_path / "new") == messages(root)
    assert findings(tmp_path / "new") == findings(tmp_path / "like")
    rmqctl("preflight", tmp_path / "new").expect(0, 1)
    assert first.damaged
    assert list(check(url, require_points(url))) == []


@pytest.mark.long
def test_a_repair_that_filled_messages_does_not_reach_the_backup(
        growing: Growing, tmp_path: Path, url: str, rmqctl: Runner) -> None:
    root = growing(0, 200)
    run(root, url)
    before = messages(root)
    damage.zero(root, f"commitlog/{0:020d}", 2000, 3000)
    rmqctl("recover", root, "--apply", "--yes").expect(1)
    growing(200, 10)
    done = rmqctl("backup", root, url).expect(0)
    assert "keeps the originals" in " ".join(done.err.split())
    restore(url, str(tmp_path / "new"))
    assert messages(tmp_path / "new")[:200] == before
    assert findings(tmp_path / "new") == set()


# -- what is refused ------------------------------------------------------------------------------


def test_of_two_runs_at_once_one_is_refused(growing: Growing, url: str,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    root = growing(0, 20)
    run(root, url)
    growing(20, 20)
    real = Objects.publish_point

    def publish(self: Objects, *args: Any) -> None:
        monkeypatch.undo()
        run(root, url, _NOW + 2000, keep=500)  # another one comes first
        real(self, *args)

    monkeypatch.setattr(Objects, "publish_point", publish)
    with pytest.raises(StoreHeldError, match="another run created"):
        run(root, url, _NOW + 1000)
    assert [point.time for point in require_points(url)] == [_NOW + 2000]
    assert list(check(url, require_points(url))) == []

    def late(self: Objects, path: str, data: bytes) -> None:
        monkeypatch.undo()
        put(self, path, data)
        put(self, "points/20990101T000000.000Z.json", data)

    put = RemoteFiles.put
    monkeypatch.setattr(RemoteFiles, "publish", late)
    with pytest.raises(StoreHeldError):
        run(root, url, _NOW + 3000)
    assert len(names(url, "points")) == 2


def test_what_is_no_place_for_a_backup(growing: Growing, tmp_path: Path, url: str,
                                       rmqctl: Runner) -> None:
    root = growing(0, 40)
    with Objects(url) as objects:
        objects.put("something", b"else")
    with pytest.raises(RefusedError, match="not empty"):
        run(root, url)
    with pytest.raises(RefusedError, match="its own folder"):
        run(root, f"file://{root}/backup")
    rmqctl("restore", f"{url}/none", tmp_path / "new").expect(3)
    with pytest.raises(NotAStoreError):
        restore(f"{url}/none", str(tmp_path / "new"))
    place = f"file://{tmp_path}/backup"
    run(root, place)
    run(root, f"{place}2")
    at = messages(root)[1]["physical_offset"]
    rmqctl("truncate", root, "--to-phy", str(at), "--apply", "--yes").expect(0)
    assert "hoose a new place" in rmqctl("backup", root, place).expect(6).err
    growing(100, 90)
    assert "hoose a new place" in rmqctl("backup", root, f"{place}2").expect(6).err
    assert "hoose a new place" in rmqctl("backup", root, place).expect(6).err
    shown = rmqctl("backup", root, "nosuch://me:secret@host/b").expect(2)
    assert "secret" not in shown.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("error", "words"), [
    (PermissionError("Access Denied"), "permission denied"),
    (FileNotFoundError("NoSuchBucket"), "its bucket or folder does not exist"),
    (RuntimeError("no route to host\nstack"), "no route to host")])
def test_errors_name_the_place_without_credentials(
        error: Exception, words: str, growing: Growing, rmqctl: Runner,
        monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **_named: Any) -> None:
        raise error

    root, place = growing(0, 5), f"memory://me:secret@host-{next(_numbers)}/b"
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fails)
    done = rmqctl("backup", root, place).expect(5)
    assert words in " ".join(done.err.split())
    assert "secret" not in done.err
    assert "memory://***@host" in done.err
    monkeypatch.setattr(MemoryFileSystem, "ls", fails)
    if not isinstance(error, FileNotFoundError):
        rmqctl("backup", "list", place).expect(5)
        rmqctl("restore", place, root.parent / "new").expect(5)


def test_of_a_store_in_use_no_offset_is_ahead(growing: Growing, tmp_path: Path, url: str) -> None:
    root = growing(0, 60)
    (root / "config" / "consumerOffset.json").write_text(
        json.dumps({"offsetTable": {"T0@g": {"0": 7, "1": 99}, "T1@g": {"0": 1}}}))
    with held(root):
        assert run(root, url).lowered == 1
    assert restore(url, str(tmp_path / "new")).lowered == 0
    with api.open(tmp_path / "new") as opened:
        assert all(row.diff is None or row.diff >= 0 for row in opened.offsets(group="g"))
        assert opened.doctor().ok


def test_what_cannot_be_reached_for_a_while_does_not_end_every(
        growing: Growing, url: str, monkeypatch: pytest.MonkeyPatch, rmqctl: Runner) -> None:
    from rmqctl.backup import remote
    from rmqctl.errors import StoreIOError

    root, real, calls = growing(0, 5), remote.back_up, []

    def sometimes(*args: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:
            raise StoreIOError("no route to host")
        if len(calls) == 4:
            raise UsageError("enough")
        return real(*args)

    monkeypatch.setattr(remote, "back_up", sometimes)
    done = rmqctl("backup", root, url, "--every", "10ms").expect(2)
    assert "the next run tries again" in " ".join(done.err.split())
    assert len(require_points(url)) == 2


def test_few_pieces_are_in_memory(growing: Growing, url: str,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    root, lock, under_way, most = growing(0, 100), threading.Lock(), 0, 0
    read, add = remote._Uploads._read, Objects.add

    def counted(uploads: Any, *args: Any) -> bytes:
        nonlocal under_way, most
        data = read(uploads, *args)
        with lock:
            under_way += any(data)
            most = max(most, under_way)
        return data

    def added(objects: Objects, folder: str, *args: Any) -> Any:
        nonlocal under_way
        piece = add(objects, folder, *args)
        with lock:
            under_way -= folder == "log"
        return piece

    monkeypatch.setattr(remote, "PIECE", 512)
    monkeypatch.setattr(remote._Uploads, "_read", counted)
    monkeypatch.setattr(Objects, "add", added)
    run(root, url)
    assert 1 <= most <= remote._AT_ONCE


@pytest.mark.long
def test_s3(growing: Growing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
            rmqctl: Runner) -> None:
    with simulated(monkeypatch) as client:
        for number in range(3):
            root = growing(number * 50, 50)
            (root / "config" / "consumerOffset.json").write_text(
                json.dumps({"offsetTable": {"T0@g": {"0": number}}}))
            for place in ("s3://bucket/a/b", str(tmp_path / "backup")):
                back_up(BackupSource(str(root)), place, lambda at=number: _NOW + at * 1000,
                        "1") if (
                    "://" in place) else local.run(root, Path(place), _NOW + number * 1000)
        points, rows = require_points("s3://bucket/a/b"), messages(root)
        for number, how in enumerate(({}, {"point": points[1].id}, {"until": _NOW},
                                      {"offset": rows[70]["physical_offset"]})):
            restore("s3://bucket/a/b", str(tmp_path / f"new{number}"), **how)
            local.restore(str(tmp_path / "backup"), str(tmp_path / f"like{number}"), **how)
            alike(tmp_path / f"new{number}", tmp_path / f"like{number}")
        rmqctl("backup", root, "s3://bucket/a/b", "--keep", "1s").expect(0)
        assert len(require_points("s3://bucket/a/b")) == 1
        rmqctl("backup", "check", "s3://bucket/a/b").expect(0)
        client.delete_object(Bucket="bucket", Key=f"a/b/{min(names('s3://bucket/a/b'))}")
        rmqctl("backup", "check", "s3://bucket/a/b").expect(1)
        rmqctl("restore", "s3://bucket/a/b", tmp_path / "x").expect(5)
        done = rmqctl("backup", root, "s3://none/a").expect(5)
        assert "its bucket or folder does not exist" in " ".join(done.err.split())
        assert [bucket["Name"] for bucket in client.list_buckets()["Buckets"]] == ["bucket"]


@pytest.mark.parametrize("change", [
    {"more": {}}, {"id": "x"}, {"more": {"log": {"../x": [1, 0, []]}}},
    {"more": {"log": {"/x": [1, 0, []]}}}, {"more": {"log": {"x": [1, 0, [[0, 2, "0" * 64]]]}}},
    {"more": {"log": {"x": [9, 0, [[0, 2, "../../x"]]]}}}, {"more": {"others": {"x": [-1, 0, []]}}},
    {"more": {"others": {"x": [1, 0, "y"]}}}, {"more": {"settings": {"index_slots": -1}}},
    {"more": {"settings": {"jobs": 1}}}, {"more": {"holes": [{"file": "a", "offset": -1}]}}])
def test_a_hostile_point_is_refused(change: dict[str, Any], growing: Growing, tmp_path: Path,
                                    url: str, rmqctl: Runner) -> None:
    run(growing(0, 5), url)
    with Objects(url) as objects:
        name, = names(url, "points")
        value = json.loads(objects.read(name, 0, 1 << 20))
        more = {**value["more"], **change["more"]} if change.get("more") else (
            change.get("more", value["more"]))
        objects.put(name, json.dumps({**value, **change, "more": more}).encode())
    for args in (("list", url), ("check", url)):
        assert "not a restore point" in rmqctl("backup", *args).expect(3).err
    assert "not a restore point" in rmqctl("restore", url, tmp_path / "new").expect(3).err
    assert not list(tmp_path.glob("new*"))
