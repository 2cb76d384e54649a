"""Backups of stores, used and unused ones, and what is restored from them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqctl import api
from rmqctl.backup import backup as of_folder
from rmqctl.backup import copying
from rmqctl.backup.backup import BackupSource, back_up
from rmqctl.backup.copying import copy_database
from rmqctl.backup.growing import Copies
from rmqctl.backup.points import in_use, read_points
from rmqctl.backup.restore import restore
from rmqctl.errors import StoreIOError
from rmqctl.scan.source import FileSource
from tests.conftest import GoldenFolder, Runner
from tests.support import damage, golden, snapshot, tiny
from tests.support.deaths import MODES, Trap, in_child
from tests.support.holder import held
from tests.support.layouts import layout_set
from tests.support.share import RUN, every, sample
from tests.support.worn import worn

_NOW = 1_750_000_000_000
FIELDS = ["physical_offset", "topic", "queue_id", "queue_offset", "body", "store_timestamp"]
SOUND = [golden_store for golden_store in (*golden.clean_stores(), *golden.rocksdb_stores())
         if golden_store.id != "5.3.3/rocksdb-double/store"]
LAYOUTS = ("5.3.3/rocksdb", "5.3.3/rocksdb-config-v1", "5.3.3/rocksdb-config-v2",
           "5.3.3/controller", "4.9.3/dledger", "5.3.3/dledger", "5.3.3/dledger-mixed",
           "5.3.3/rocksdb-double")
NEWEST_ONLY = ("dledger", "rocksdb-double")


def run(store: Path, backup: Path, now: int = _NOW, dirs: Any = ()) -> Any:
    return back_up(BackupSource(str(store), dirs), str(backup), lambda: now, "1.0.0")[0]


def messages(store: Path, dirs: Any = ()) -> list[Any]:
    with api.open(store, commitlog_dirs=dirs) as opened:
        return list(opened.messages(fields=FIELDS))


def findings(store: Path, dirs: Any = ()) -> set[tuple[str, str, int | None]]:
    with api.open(store, commitlog_dirs=dirs) as opened:
        return {(finding.category, finding.topic or "", finding.queue_offset)
                for finding in opened.verify().findings}


def folders_of(golden_store: golden.GoldenStore, root: Path) -> list[str]:
    return [name for name in golden.MULTI_PATH
            if (root / name).is_dir()] if golden_store.options else []


@pytest.mark.parametrize("golden_store", sample(SOUND, 6, "backups", always=golden.is_covering),
                         ids=lambda golden_store: golden_store.id)
def test_a_sound_store_is_restored_at_any_record(golden_store: golden.GoldenStore,
                                                 golden: GoldenFolder,
                                                 tmp_path: Path) -> None:
    root = golden(golden_store.id)
    dirs = folders_of(golden_store, root)
    with snapshot.assert_unchanged(root):
        run(root, tmp_path / "backup", dirs=dirs)
    all_of_it, wrong = messages(root, dirs), findings(root, dirs)
    assert messages(tmp_path / "backup") == all_of_it
    assert findings(tmp_path / "backup") == wrong
    for at in {0, len(all_of_it) // 2, len(all_of_it) - 1} if all_of_it else ():
        target, place = tmp_path / f"at {at}", all_of_it[at]["physical_offset"]
        restore(str(tmp_path / "backup"), str(target), offset=place)
        assert messages(target) == all_of_it[:at]
        assert findings(target) <= wrong
        assert not (target / ".rmqctl").exists()
    restore(str(tmp_path / "backup"), str(tmp_path / "new"))
    assert messages(tmp_path / "new") == all_of_it
    with api.open(tmp_path / "new") as again, api.open(root, commitlog_dirs=dirs) as before:
        assert again.preflight().messages_lost == before.preflight().messages_lost == 0


@pytest.mark.parametrize("name", sample(LAYOUTS, 3, "layouts of backups"))
def test_other_layouts(name: str, tmp_path: Path, rmqctl: Runner) -> None:
    root = layout_set(name) / "store"
    run(root, tmp_path / "backup")
    all_of_it = messages(root)
    restore(str(tmp_path / "backup"), str(tmp_path / "new"))
    assert messages(tmp_path / "new") == messages(tmp_path / "backup") == all_of_it
    assert findings(tmp_path / "new") == findings(root)
    middle = all_of_it[len(all_of_it) // 2]["physical_offset"]
    done = rmqctl("restore", tmp_path / "backup", tmp_path / "half", "--until-offset", str(middle))
    if any(kind in name for kind in NEWEST_ONLY):
        done.expect(6)
        assert "only be restored to the newest restore point" in done.err
        assert not list(tmp_path.glob("half*"))
        return
    done.expect(0)
    assert messages(tmp_path / "half") == all_of_it[:len(all_of_it) // 2]
    with api.open(tmp_path / "half") as half:
        assert half.preflight().messages_lost == 0
        assert all(row.diff is None or row.diff >= 0 for row in half.offsets())


@pytest.mark.parametrize("kind", [
    "4.9.3/crash-crc/before", "4.9.3/crash-cqahead/before", "5.3.3/crash-trunc-zero/before",
    "5.3.3/clean-nocheckpoint/before"])
def test_damage_is_copied_and_reported(kind: str, golden: GoldenFolder, tmp_path: Path,
                                       rmqctl: Runner) -> None:
    root, backup = golden(kind), tmp_path / "backup"
    done = rmqctl("backup", root, backup, "-o", "json")
    document = done.json()
    assert done.code == (1 if document["damaged"] else 0)
    assert bool(document["damaged"]) is ("crc" in kind or "trunc" in kind)
    assert messages(backup) == messages(root)
    lost = {name: rmqctl("doctor", store, "-o", "json").json()["already_lost"]
            for name, store in (("store", root), ("backup", backup))}
    assert lost["store"] == lost["backup"]
    text = rmqctl("backup", "check", backup).expect(0).out
    count = len(document["damaged"])
    assert ("1 place was already damaged in the store when it was copied" in " ".join(text.split())
            ) == (count == 1)
    assert (f"{count} places were already damaged" in text) == (count > 1)


# -- run by run -----------------------------------------------------------------------------------


def lines(first: int, count: int, size: int = 200) -> str:
    return "".join(json.dumps({
        "topic": f"T{number % 3}", "queue_id": number % 2, "keys": [f"k{number}"],
        "body": f"{number} " + "x" * (number * 37 % size)}) + "\n"
        for number in range(first, first + count))


@pytest.fixture
def growing(tmp_path: Path, rmqctl: Runner) -> Callable[[int, int], Path]:
    """Appends messages to a store of small files, and gives its root."""
    root = tmp_path / "store"
    rmqctl("init", root, "--commitlog-file-size", "16KiB", "--consumequeue-file-size", "600",
           "--index-slots", "16", "--index-max", "40").expect(0)

    def grow(first: int, count: int) -> Path:
        (tmp_path / "lines").write_text(lines(first, count))
        rmqctl("append", root, tmp_path / "lines", "--auto-create-topic").expect(0)
        return root

    return grow


@pytest.mark.long
def test_each_run_copies_what_is_new(growing: Callable[[int, int], Path], tmp_path: Path,
                                     rmqctl: Runner) -> None:
    backup, seen, ends = tmp_path / "backup", [], []
    for number, count in enumerate((50, 1, 0, 130, 7)):
        root = growing(sum(map(len, seen)), count) if count else tmp_path / "store"
        point = run(root, backup, _NOW + number * 1000)
        seen.append(messages(root)[sum(map(len, seen)):])
        ends.append(point.log_end)
        assert point.messages == len(seen[-1])
        assert sum(part.end - part.start for part in point.parts) <= (
            point.log_end - (ends[-2] if number else 0))
        assert messages(backup) == messages(root)
        assert not findings(backup)
    # The files are those of the store, but for what is rmqctl's own.
    assert {path.name: path.read_bytes() for path in (root / "index").iterdir()} == {
        path.name: path.read_bytes() for path in (backup / "index").iterdir()}
    points = read_points(str(backup))
    for number, point in enumerate(points):
        target = tmp_path / point.id
        restore(str(backup), str(target), point=point.id)
        assert messages(target) == list(chain(*seen[:number + 1]))
        assert not findings(target)
    result = rmqctl("backup", "list", backup, "-o", "json").json()["points"]
    assert [point["log_end"] for point in result] == ends
    rmqctl("backup", "check", backup).expect(0)


def test_offsets_and_times_of_a_point(growing: Callable[[int, int], Path], tmp_path: Path) -> None:
    root, backup = growing(0, 30), tmp_path / "backup"
    offsets = root / "config" / "consumerOffset.json"
    for number, offset in enumerate((2, 4)):
        offsets.write_text(json.dumps({"offsetTable": {"T0@g": {"0": offset}}}))
        run(root, backup, _NOW + number * 60_000)
        growing(30 + 30 * number, 30)
    done = restore(str(backup), str(tmp_path / "early"), until=_NOW + 1)
    assert done.point.time == _NOW
    assert "4" not in (tmp_path / "early/config/consumerOffset.json").read_text()
    assert messages(tmp_path / "early") == []  # all was stored before that time
    rows = messages(backup)
    with api.open(backup) as opened:
        times = [row["store_timestamp"] for row in opened.messages(fields=["store_timestamp"])]
    middle = times[len(times) // 2]
    restore(str(backup), str(tmp_path / "middle"), until=middle)
    assert messages(tmp_path / "middle") == [
        row for row, time in zip(rows, times, strict=True) if time <= middle]


@pytest.mark.long
def test_of_a_store_in_use_no_offset_is_ahead(growing: Callable[[int, int], Path],
                                              tmp_path: Path, rmqctl: Runner) -> None:
    root, backup = growing(0, 60), tmp_path / "backup"
    offsets = json.dumps({"offsetTable": {"T0@g": {"0": 7, "1": 99}, "T1@g": {"0": 1}}})
    (root / "config" / "consumerOffset.json").write_text(offsets)
    with held(root):
        document = rmqctl("backup", root, backup, "-o", "json").json()
        assert document["offsets_lowered"] == 1
    with api.open(backup) as opened:
        assert {row.diff for row in opened.offsets(group="g")} >= {0}
        assert all(row.diff is None or row.diff >= 0 for row in opened.offsets(group="g"))
        assert opened.doctor().ok
    assert (root / "config" / "consumerOffset.json").read_text() == offsets


WRITER = """
import json, sys
number = 0
while True:
    print(json.dumps({"topic": "T%d" % (number % 3), "queue_id": number % 2,
                      "keys": ["k%d" % number], "body": "x" * (number * 37 % 900)}), flush=True)
    number += 1
"""


@pytest.mark.exhaustive
def test_while_somebody_writes(growing: Callable[[int, int], Path], tmp_path: Path,
                               rmqctl: Runner) -> None:
    root, backup = growing(0, 10), tmp_path / "backup"
    with (subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE) as lines,
          subprocess.Popen([sys.executable, "-m", "rmqctl", "append", str(root), "-"],
                           stdin=lines.stdout, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL) as writer):
        try:
            counts = []
            for _ in range(40):
                counts.append(rmqctl("backup", root, backup, "-o", "json").expect(0).json())
                assert not findings(backup)
                if len([count for count in counts if count["messages"]]) == 4:
                    break
            assert writer.poll() is None
        finally:
            writer.kill()
            lines.kill()
    assert len(counts) >= 4
    for point in counts:
        target = tmp_path / point["point"]
        restore(str(backup), str(target), point=point["point"])
        assert not findings(target)
        shutil.rmtree(target)


@pytest.mark.exhaustive
@pytest.mark.long
def test_thirty_days_of_increments(growing: Callable[[int, int], Path], tmp_path: Path,
                                   rmqctl: Runner) -> None:
    """A run each hour, a week is kept; what the cleaner deletes stays as long as a point needs it.

    Each restore point is the store of its time, and a time between two is the messages until then.
    """
    random, hour, count, seen = Random(RUN.seed), 3_600_000, 0, {}
    root, backup = tmp_path / "store", tmp_path / "backup"
    for number in range(30 * 24):
        if number % 3 == 0:
            added = random.randrange(1, 12)
            root = growing(count, added)
            count += added
        if number % 40 == 39:  # the cleaner
            files = sorted((root / "commitlog").iterdir())
            for file in files[:max(0, len(files) - 3)]:
                file.unlink()
        now = partial(int, _NOW + number * hour)
        point, _ = back_up(BackupSource(str(root)), str(backup), now, "1.0.0", keep=7 * 24 * hour)
        seen[point.id] = (count, (root / "config/topics.json").read_bytes())
    points = read_points(str(backup))
    assert len(points) == 7 * 24 + 1
    rmqctl("backup", "check", backup).expect(0)
    whole = messages(backup)
    for point in [points[0], *random.sample(points[1:-1], 12), points[-1]]:
        target = tmp_path / point.id
        restore(str(backup), str(target), point=point.id)
        wanted, topics = seen[point.id]
        assert messages(target) == [message for message in whole
                                    if int(message["body"].split()[0]) < wanted]
        assert (target / "config/topics.json").read_bytes() == topics
        assert not findings(target)
        shutil.rmtree(target)
    middle = whole[len(whole) // 2]["store_timestamp"]
    restore(str(backup), str(tmp_path / "then"), until=middle)
    assert messages(tmp_path / "then") == [message for message in whole
                                           if message["store_timestamp"] <= middle]


@pytest.mark.parametrize("mode", sample(MODES, 1, "deaths of backups"))
def test_a_killed_run_leaves_the_points_before(mode: str, growing: Callable[[int, int], Path],
                                               tmp_path: Path) -> None:
    root, first = growing(0, 25), tmp_path / "first"
    run(root, first)
    before = messages(root)
    growing(25, 40)
    after = messages(root)

    def calls(backup: Path, at: int) -> int:
        def work(tell: Callable[[int], Any]) -> int:
            trap = Trap(at, mode, tell, tmp_path)
            trap.arm()
            run(root, backup, _NOW + 1000)
            tell(trap.calls)
            return 0

        return in_child(work)[2]

    shutil.copytree(first, tmp_path / "whole")
    total = calls(tmp_path / "whole", 0)
    assert total > 30
    for at in every(max(1, total // 5), range(1, total + 1), "calls of a backup"):
        backup, target = tmp_path / "backup", tmp_path / "target"
        shutil.copytree(first, backup)
        calls(backup, at)
        points = read_points(str(backup))
        restore(str(backup), str(target), point=points[0].id)
        assert messages(target) == before
        assert not findings(target)
        shutil.rmtree(target)
        run(root, backup, _NOW + 2000)
        assert messages(backup) == after
        assert not findings(backup)
        shutil.rmtree(backup)


# -- what is refused, found, and taken away -------------------------------------------------------


def test_what_is_no_place_for_a_backup(growing: Callable[[int, int], Path], tmp_path: Path,
                                       rmqctl: Runner) -> None:
    root = growing(0, 40)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    for place in (root / "backup", tmp_path, tmp_path / "full", root):
        assert "backup" in rmqctl("backup", root, place).expect(6).err
    rmqctl("backup", root, tmp_path / "backup").expect(0)
    other = tiny.build(tmp_path / "other").root
    shutil.copytree(root, tmp_path / "cut")
    rmqctl("truncate", tmp_path / "cut", "--to-phy", str(messages(root)[3]["physical_offset"]),
           "--apply", "--yes").expect(0)
    for store in (other, tmp_path / "cut"):
        with snapshot.assert_unchanged(tmp_path / "backup"):
            assert "hoose a new" in rmqctl("backup", store, tmp_path / "backup").expect(6).err
    rmqctl("restore", tmp_path / "backup", root).expect(6)
    rmqctl("restore", tmp_path / "backup", tmp_path / "backup" / "x").expect(6)
    rmqctl("restore", root, tmp_path / "new").expect(3)
    rmqctl("restore", tmp_path / "backup", tmp_path / "new", "--until-offset", "5").expect(6)
    rmqctl("restore", tmp_path / "backup", tmp_path / "new", "--point", "x").expect(2)
    assert not list(tmp_path.glob("new*/*"))


def test_check_finds_what_changed(growing: Callable[[int, int], Path], tmp_path: Path,
                                  rmqctl: Runner) -> None:
    backup = tmp_path / "backup"
    run(growing(0, 120), backup)
    names = sorted(path.name for path in (backup / "commitlog").iterdir())
    damage.flip_bit(backup, f"commitlog/{names[0]}", 99, 1)
    (backup / "commitlog" / names[1]).unlink()
    point, = (backup / ".rmqctl" / "backup" / "points").iterdir()
    (point / "config" / "topics.json").write_text("{}")
    faults = rmqctl("backup", "check", backup, "-o", "json").expect(1).json()["faults"]
    assert [Path(fault["file"]).name for fault in faults] == [*names[:2], "topics.json"]
    (point / "point.json").write_text("{")
    rmqctl("backup", "check", backup).expect(3)


def test_keep_takes_away_what_only_old_points_need(growing: Callable[[int, int], Path],
                                                   tmp_path: Path, rmqctl: Runner) -> None:
    root, backup = growing(0, 120), tmp_path / "backup"
    run(root, backup, _NOW)
    gone = min((root / "commitlog").iterdir())
    gone.unlink()
    run(root, backup, _NOW + 1000)
    assert (backup / "commitlog" / gone.name).exists()
    restore(str(backup), str(tmp_path / "first"), point=read_points(str(backup))[0].id)
    assert (tmp_path / "first" / "commitlog" / gone.name).exists()
    document = rmqctl("backup", root, backup, "--keep", "1d", "-o", "json").expect(0).json()
    assert document["points_removed"] == 2
    assert document["bytes_removed"] > 0
    assert not (backup / "commitlog" / gone.name).exists()
    assert len(read_points(str(backup))) == 1
    rmqctl("backup", "check", backup).expect(0)
    restore(str(backup), str(tmp_path / "new"))
    assert messages(tmp_path / "new") == messages(root)


def test_unreadable_bytes_are_told(growing: Callable[[int, int], Path], tmp_path: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    root, backup = growing(0, 120), tmp_path / "backup"
    bad = str(sorted((root / "commitlog").iterdir())[1])
    worn(monkeypatch, Path(bad), 8192, 8192 + 100)
    monkeypatch.setattr(FileSource, "copy_to", lambda *_: 0)
    point = run(root, backup)
    unread = [(hole.offset, hole.length) for hole in point.damaged if hole.unread]
    assert unread == [(8192, 4096)]
    monkeypatch.undo()
    data = (backup / "commitlog" / Path(bad).name).read_bytes()
    assert data[8192:12288] == bytes(4096)
    assert data[:8192] == Path(bad).read_bytes()[:8192]
    assert data[12288:] == Path(bad).read_bytes()[12288:]
    assert point.messages < 120
    assert any(hole.offset <= 8192 < hole.offset + hole.length and not hole.unread
               for hole in point.damaged)


def test_queue_files_are_copied_oldest_first(growing: Callable[[int, int], Path], tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    from rmqctl.backup.growing import Copies

    class Killed(BaseException):
        pass

    root, backup, real = growing(0, 10), tmp_path / "backup", Copies.grow
    run(root, backup)
    growing(10, 400)

    def grow(self: Copies, source: Any, relative: str, *args: Any, **how: Any) -> str:
        digest = real(self, source, relative, *args, **how)
        if relative.startswith("consumequeue"):
            raise Killed
        return digest

    monkeypatch.setattr(Copies, "grow", grow)
    with pytest.raises(Killed):
        run(root, backup, _NOW + 1000)
    monkeypatch.undo()
    run(root, backup, _NOW + 2000)
    assert not findings(backup)


@pytest.mark.parametrize("change", [
    {"id": "../../../../victim", "time": 0}, {"small": {"../../evil": "0" * 64}},
    {"small": {"/evil": ""}}, {"small": ["checkpoint"]}, {"time": "x"}, {"log_end": None},
    {"log_end": -1}, {"last_time": 1 << 64}, {"id": 7},
    {"parts": [{"file": "../x", "start": 0, "end": 1, "sha256": ""}]},
    {"parts": [{"file": 5, "start": 0, "end": 1, "sha256": ""}]},
    {"damaged": [{"file": "commitlog/0", "offset": "x", "length": 1}]}])
def test_a_hostile_point_is_refused(change: dict[str, Any], growing: Callable[[int, int], Path],
                                    tmp_path: Path, rmqctl: Runner) -> None:
    root, backup, victim = growing(0, 20), tmp_path / "backup", tmp_path / "victim"
    victim.mkdir()
    run(root, backup)
    path, = backup.glob(".rmqctl/backup/points/*/point.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    (backup / ".rmqctl" / "backup" / "evil").write_text("evil")
    before = sorted(tmp_path.iterdir())
    for args in (("backup", "list", backup), ("backup", "check", backup),
                 ("restore", backup, tmp_path / "new"), ("backup", root, backup, "--keep", "1s")):
        assert "not a restore point" in rmqctl(*args).expect(3).err
    assert sorted(tmp_path.iterdir()) == before


def test_a_point_half_taken_away_is_none(growing: Callable[[int, int], Path],
                                         tmp_path: Path) -> None:
    root, backup = growing(0, 20), tmp_path / "backup"
    run(root, backup)
    (backup / ".rmqctl/backup/points/20200101T000000.000Z-gone").mkdir()
    run(root, backup, _NOW + 1000)
    assert len(read_points(str(backup))) == 2


def test_a_large_configuration_is_restored(growing: Callable[[int, int], Path],
                                           tmp_path: Path) -> None:
    root, backup = growing(0, 20), tmp_path / "backup"
    offsets = root / "config" / "consumerOffset.json"
    offsets.write_text('{"offsetTable": {"T0@g": {"0": 2}}}' + " " * (65 << 20))
    run(root, backup)
    restore(str(backup), str(tmp_path / "new"))
    assert (tmp_path / "new/config/consumerOffset.json").read_bytes() == offsets.read_bytes()


def test_what_lies_beside_the_target_stays(growing: Callable[[int, int], Path], tmp_path: Path,
                                           rmqctl: Runner) -> None:
    backup = tmp_path / "new.restoring"
    run(growing(0, 20), backup)
    with snapshot.assert_unchanged(backup):
        assert "new.restoring" in rmqctl("restore", backup, tmp_path / "new").expect(6).err
    (tmp_path / "a.restoring").mkdir()
    rmqctl("restore", backup, tmp_path / "a").expect(6)
    assert not (tmp_path / "a").exists()


def test_metrics_and_every(growing: Callable[[int, int], Path], tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    root, backup, metrics = growing(0, 20), tmp_path / "backup", tmp_path / "metrics.prom"
    with subprocess.Popen([sys.executable, "-m", "rmqctl", "backup", str(root), str(backup),
                           "--every", "100ms", "--format-prometheus", str(metrics), "-o", "jsonl"],
                          stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        documents = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.terminate()
    assert documents[0]["messages"] == 20
    assert documents[1]["messages"] == 0
    assert f'rmqctl_backup_success{{backup="{backup}"}} 1.0' in metrics.read_text()


# -- stores that change otherwise than by messages ------------------------------------------------


def sound(store: Path, like: Path, rmqctl: Runner) -> None:
    """The store has the messages of another one, and an entry for each."""
    assert messages(store) == messages(like)
    assert findings(store) == set()
    rmqctl("preflight", store).expect(0)


@pytest.mark.parametrize("share", [0.5, 0], ids=["end", "file"])
def test_entries_that_the_store_lost_stay(share: float, growing: Callable[[int, int], Path],
                                          tmp_path: Path, rmqctl: Runner) -> None:
    root, backup = growing(0, 200), tmp_path / "backup"
    run(root, backup)
    file = max((root / "consumequeue/T0/0").iterdir())
    start = int(len(file.read_bytes().rstrip(b"\0")) / 20 * share) * 20
    with file.open("r+b") as opened:
        opened.seek(start)
        opened.write(bytes(600 - start))
    assert findings(root)
    document = rmqctl("backup", root, backup, "-o", "json").expect(1).json()
    hole = document["damaged"][0]
    assert (hole["file"], hole["kept"]) == (str(file.relative_to(root)), True)
    assert hole["offset"] == start
    assert not findings(backup)
    assert messages(backup) == messages(root)
    restore(str(backup), str(tmp_path / "new"))
    assert not findings(tmp_path / "new")


@pytest.mark.parametrize("harm", ["garbled", "deleted"])
def test_damaged_entries_are_not_restored(harm: str, growing: Callable[[int, int], Path],
                                          tmp_path: Path, rmqctl: Runner) -> None:
    """Of a sound log those of an older point follow from it, whatever got into the copy. A queue
    that is another one stays as it is, and is told of.
    """
    root, backup = growing(0, 200), tmp_path / "backup"
    run(root, backup)
    file = max((root / "consumequeue/T0/0").iterdir())
    if harm == "deleted":
        file.unlink()
    else:
        damage.flip_bit(root, str(file.relative_to(root)), 3, 3)
    assert "the first: T0/0" in rmqctl("backup", root, backup).expect(0).err
    restore(str(backup), str(tmp_path / "new"), point=read_points(str(backup))[0].id)
    assert messages(tmp_path / "new") == messages(root)
    assert not findings(tmp_path / "new")


# -- what a run and a restore must not pass over --------------------------------------------------


def test_a_log_that_was_cut_and_grew_by_messages_of_one_size(
        growing: Callable[[int, int], Path], tmp_path: Path, rmqctl: Runner) -> None:
    root, backup = growing(0, 20), tmp_path / "backup"
    words = ("write", root, "--topic", "T0", "--body")
    rmqctl(*words, "one").expect(0)
    run(root, backup)
    last = messages(root)[-1]["physical_offset"]
    rmqctl("truncate", root, "--to-phy", str(last), "--apply", "--yes").expect(0)
    for body in ("two", "six"):
        rmqctl(*words, body).expect(0)
    with snapshot.assert_unchanged(backup):
        assert "another log" in rmqctl("backup", root, backup).expect(6).err


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/T0", "index", "timerlog"])
def test_a_folder_that_cannot_be_listed_is_not_empty(
        folder: str, growing: Callable[[int, int], Path], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch, rmqctl: Runner) -> None:
    root, real = growing(0, 20), os.scandir
    (root / "timerlog").mkdir(exist_ok=True)
    closed = str(root / folder)

    def scandir(path: Any = ".") -> Any:
        if os.fspath(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", closed)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert closed in rmqctl("backup", root, tmp_path / "backup").expect(5).err
    assert not read_points(str(tmp_path / "backup"))


def test_a_log_that_is_not_there(growing: Callable[[int, int], Path], tmp_path: Path,
                                 rmqctl: Runner) -> None:
    root = growing(0, 200)
    files = sorted((root / "commitlog").iterdir())
    shutil.copytree(root, tmp_path / "gap")
    (tmp_path / "gap/commitlog" / files[1].name).unlink()
    done = rmqctl("backup", tmp_path / "gap", tmp_path / "backup").expect(1)
    assert "is missing from the store" in done.err
    for file in files:
        file.unlink()
    assert "not mounted" in rmqctl("backup", root, tmp_path / "none").expect(6).err


def test_a_log_file_that_the_backup_lost(growing: Callable[[int, int], Path], tmp_path: Path,
                                         rmqctl: Runner) -> None:
    root, backup = growing(0, 200), tmp_path / "backup"
    run(root, backup)
    lost = sorted((backup / "commitlog").iterdir())[1]
    lost.unlink()
    done = rmqctl("restore", backup, tmp_path / "some").expect(1)
    assert lost.name in done.err
    assert "copied again" in rmqctl("backup", root, backup).expect(0).err
    rmqctl("backup", "check", backup).expect(0)
    rmqctl("restore", backup, tmp_path / "all").expect(0)
    assert messages(tmp_path / "all") == messages(root)


def test_nothing_else_writes_to_a_backup(growing: Callable[[int, int], Path], tmp_path: Path,
                                         rmqctl: Runner) -> None:
    root, backup = growing(0, 20), tmp_path / "backup"
    run(root, backup)
    with snapshot.assert_unchanged(backup):
        for words in (("write", backup, "--topic", "T0", "--body", "x"),
                      ("truncate", backup, "--to-phy", "0", "--apply", "--yes"),
                      ("topic", "create", backup, "T9")):
            assert "is a backup" in rmqctl(*words).expect(6).err


def test_one_damaged_point_does_not_hide_the_others(growing: Callable[[int, int], Path],
                                                    tmp_path: Path, rmqctl: Runner) -> None:
    root, backup = growing(0, 20), tmp_path / "backup"
    for number in range(3):
        run(root, backup, _NOW + number)
    points = backup / ".rmqctl/backup/points"
    (points / ".nfs123").write_text("")
    damaged = points / read_points(str(backup))[1].id / "point.json"
    damaged.write_text("")
    for words in (("backup", "list", backup), ("backup", "check", backup)):
        rmqctl(*words).expect(1)
    assert str(damaged) in rmqctl("restore", backup, tmp_path / "new").expect(0).err
    assert messages(tmp_path / "new") == messages(root)
    rmqctl("backup", root, backup).expect(0)


def test_nothing_stays_of_a_restore_that_fails(growing: Callable[[int, int], Path],
                                               tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                               rmqctl: Runner) -> None:
    from rmqctl.backup import restore as restoring

    root, backup = growing(0, 20), tmp_path / "backup"
    run(root, backup)

    def full(*_words: Any, **_more: Any) -> int:
        raise StoreIOError("no space left on the device")

    monkeypatch.setattr(restoring, "complete", full)
    rmqctl("restore", backup, tmp_path / "new").expect(5)
    assert not list(tmp_path.glob("new*"))


def test_a_point_links_what_did_not_change(growing: Callable[[int, int], Path], tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch,
                                           rmqctl: Runner) -> None:
    root, backup = growing(0, 20), tmp_path / "backup"
    link = os.link

    def unable(source: str, target: str, **others: Any) -> None:
        if not others:
            raise OSError(errno.EMLINK, "Too many links")
        link(source, target, **others)

    for number in range(3):
        if number == 2:
            monkeypatch.setattr("os.link", unable)
        run(root, backup, _NOW + number)
    first, second, third = (
        (backup / ".rmqctl/backup/points" / point.id / "config/topics.json").stat()
        for point in read_points(str(backup)))
    assert first.st_ino == second.st_ino != third.st_ino
    rmqctl("backup", "check", backup).expect(0)


def test_nothing_is_removed_while_a_restore_reads(growing: Callable[[int, int], Path],
                                                  tmp_path: Path, rmqctl: Runner) -> None:
    root, backup = growing(0, 20), tmp_path / "backup"
    run(root, backup)
    with in_use(str(backup)), in_use(str(backup)):
        kept = rmqctl("backup", root, backup, "--keep", "1d", "-o", "json").expect(0).json()
        assert kept["points_removed"] == 0
    assert rmqctl("backup", root, backup, "--keep", "1d", "-o", "json").json()["points_removed"]


_WRITER = """
import sys, time
from rocksdict import Options, Rdict, WriteOptions
options = Options(raw_mode=True)
options.set_write_buffer_size(1 << 16)
options.set_target_file_size_base(1 << 15)
database = Rdict(sys.argv[1], options)
number = 0
print("open", flush=True)
while True:
    for number in range(number, number + 500):
        database[b"%08d" % number] = b"%d" % number * 20
    number += 1
    if number % 4000 == 0:
        database.flush()
"""


@pytest.mark.exhaustive
@pytest.mark.long
def test_a_database_that_changes_while_it_is_copied(tmp_path: Path) -> None:
    """A copy that counts as one moment's has all entries up to some, and none after."""
    rocksdict = pytest.importorskip("rocksdict")
    (tmp_path / "store").mkdir()
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, tmp_path / "store/config"],
                              stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        steady = 0
        for number in range(25):
            time.sleep(0.1)
            copies = Copies(str(tmp_path / f"copy-{number % 5}"))  # also over an older copy
            if not copy_database(str(tmp_path / "store"), "config", copies):
                continue
            steady += 1
            copy = tmp_path / "opened"
            shutil.copytree(tmp_path / f"copy-{number % 5}" / "config", copy)
            opened = rocksdict.Rdict(str(copy), rocksdict.Options(raw_mode=True))
            keys = list(opened.keys())
            assert keys == [b"%08d" % at for at in range(len(keys))]
            assert keys
            opened.close()
            shutil.rmtree(copy)
        assert steady
    finally:
        writer.kill()
        writer.wait()


# -- slaves ---------------------------------------------------------------------------------------


def test_a_slave_starts_where_the_backup_ends(tmp_path: Path, rmqctl: Runner) -> None:
    root, backup = layout_set("5.3.3/controller") / "store", tmp_path / "backup"
    point = run(root, backup)
    done = rmqctl("restore", backup, tmp_path / "slave", "--seed-slave").expect(0)
    assert f"from {point.log_end:,} on" in " ".join(done.out.split())
    rmqctl("restore", backup, tmp_path / "same").expect(0)
    for name in ("brokerIdentity", "brokerIdentity-temp"):
        assert not (tmp_path / "slave" / name).exists()
    assert (tmp_path / "same/brokerIdentity").exists()
    assert (tmp_path / "slave/epochFileCheckpoint").read_bytes() == (
        root / "epochFileCheckpoint").read_bytes()
    rmqctl("preflight", tmp_path / "slave").expect(0)
    assert messages(tmp_path / "slave") == messages(root)


def test_no_slave_of_another_log(tmp_path: Path, rmqctl: Runner) -> None:
    root, backup = layout_set("5.3.3/dledger") / "store", tmp_path / "backup"
    run(root, backup)
    done = rmqctl("restore", backup, tmp_path / "slave", "--seed-slave").expect(6)
    assert "there are no slaves" in done.err
    assert not list(tmp_path.glob("slave*"))


# -- what changes in the store --------------------------------------------------------------------


@pytest.mark.long
def test_a_topic_that_was_made_again(growing: Callable[[int, int], Path], tmp_path: Path,
                                     rmqctl: Runner) -> None:
    root, backup = growing(0, 200), tmp_path / "backup"
    first = run(root, backup)
    before = messages(root)
    shutil.rmtree(root / "consumequeue" / "T0")
    growing(200, 40)
    run(root, backup, _NOW + 1000)
    assert {path.name: path.read_bytes() for path in (root / "consumequeue/T0/0").iterdir()} == {
        path.name: path.read_bytes() for path in (backup / "consumequeue/T0/0").iterdir()}
    restore(str(backup), str(tmp_path / "new"))
    assert findings(tmp_path / "new") == findings(root)
    restore(str(backup), str(tmp_path / "old"), point=first.id)
    assert messages(tmp_path / "old") == before
    assert findings(tmp_path / "old") == set()


@pytest.mark.long
@pytest.mark.parametrize("file", ["consumequeue/T1/1/00000000000000000600",
                                  "commitlog/00000000000000000000"])
def test_a_repair_in_place_gets_into_the_backup(
        file: str, growing: Callable[[int, int], Path], tmp_path: Path, rmqctl: Runner) -> None:
    root, backup = growing(0, 260), tmp_path / "backup"
    damage.flip_bit(root, file, 45, 2)
    run(root, backup)
    rmqctl("recover", root, "--apply", "--yes").expect(0)
    growing(260, 10)
    rmqctl("backup", root, backup).expect(0)
    sound(backup, root, rmqctl)
    rmqctl("backup", "check", backup).expect(0)
    restore(str(backup), str(tmp_path / "new"))
    sound(tmp_path / "new", root, rmqctl)


@pytest.mark.long
def test_a_repair_that_filled_messages_does_not_reach_the_backup(
        growing: Callable[[int, int], Path], tmp_path: Path, rmqctl: Runner) -> None:
    root, backup = growing(0, 200), tmp_path / "backup"
    run(root, backup)
    before = messages(root)
    damage.zero(root, f"commitlog/{0:020d}", 2000, 3000)
    rmqctl("recover", root, "--apply", "--yes").expect(1)
    growing(200, 10)
    done = rmqctl("backup", root, backup).expect(0)
    assert "keeps the originals" in " ".join(done.err.split())
    assert messages(backup)[:200] == before
    rmqctl("backup", "check", backup).expect(0)
    restore(str(backup), str(tmp_path / "new"))
    assert messages(tmp_path / "new")[:200] == before
    assert findings(tmp_path / "new") == set()


@pytest.mark.long
def test_a_torn_end_that_was_written_again(growing: Callable[[int, int], Path], tmp_path: Path,
                                           rmqctl: Runner) -> None:
    root, backup = growing(0, 60), tmp_path / "backup"
    last = messages(root)[-1]["physical_offset"]
    log = f"commitlog/{last // 16384 * 16384:020d}"
    damage.zero(root, log, last % 16384 + 60, 100)
    run(root, backup)
    rmqctl("recover", root, "--strategy", "broker", "--apply", "--yes").expect(0, 1)
    growing(60, 20)
    rmqctl("backup", root, backup).expect(0)
    restore(str(backup), str(tmp_path / "new"))
    sound(tmp_path / "new", root, rmqctl)


@pytest.mark.long
def test_an_index_that_was_made_again(growing: Callable[[int, int], Path], tmp_path: Path,
                                      rmqctl: Runner) -> None:
    root, backup = growing(0, 120), tmp_path / "backup"
    run(root, backup)
    for path in (root / "index").iterdir():
        path.rename(path.with_name(str(int(path.name) + 1000)))
    rmqctl("backup", root, backup).expect(0)
    assert {path.name for path in (backup / "index").iterdir()} == {
        path.name for path in (root / "index").iterdir()}
    assert findings(backup) == findings(root)


def test_configuration_that_is_linked_or_removed(growing: Callable[[int, int], Path],
                                                 tmp_path: Path) -> None:
    root, backup = growing(0, 20), tmp_path / "backup"
    (root / "config" / "delayOffset.json").write_text("{}")
    (root / "config").rename(tmp_path / "elsewhere")
    (root / "config").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "elsewhere")
    point = run(root, backup)
    assert {"config/topics.json", "config/delayOffset.json"} <= set(point.small)
    (tmp_path / "elsewhere" / "delayOffset.json").unlink()
    point = run(root, backup, _NOW + 1000)
    assert "config/delayOffset.json" not in point.small
    restore(str(backup), str(tmp_path / "new"))
    assert not (tmp_path / "new" / "config" / "delayOffset.json").exists()
    assert (tmp_path / "new" / "config" / "topics.json").read_bytes() == (
        tmp_path / "elsewhere" / "topics.json").read_bytes()


def test_a_first_run_that_was_killed_goes_on(growing: Callable[[int, int], Path],
                                             tmp_path: Path, rmqctl: Runner) -> None:
    root, backup = growing(0, 120), tmp_path / "backup"

    def work(tell: Callable[[int], Any]) -> int:
        Trap(40, "after", tell, tmp_path).arm()
        run(root, backup)
        return 0

    assert in_child(work)[0]
    assert not read_points(str(backup))
    oldest = min((root / "commitlog").iterdir())
    oldest.unlink()  # it expired meanwhile
    run(root, backup)
    assert not (backup / "commitlog" / oldest.name).exists()
    assert messages(backup) == messages(root)
    rmqctl("backup", "check", backup).expect(0)


@pytest.mark.parametrize("harm", ["", "expired", "other", "copy"])
def test_a_first_run_that_was_killed_does_not_copy_the_log_again(
        harm: str, growing: Callable[[int, int], Path], tmp_path: Path, rmqctl: Runner,
        monkeypatch: pytest.MonkeyPatch) -> None:
    root, backup = growing(0, 300), tmp_path / "backup"
    damage.flip_bit(root, f"commitlog/{0:020d}", 900, 1)
    real, left = Copies.grow, 8

    def grow(self: Copies, source: FileSource, relative: str, start: int, end: int, *,
             compare: bool = False) -> None:
        nonlocal left
        if relative.startswith("commitlog"):
            left -= 1
            if not left:
                raise KeyboardInterrupt
        real(self, source, relative, start, end, compare=compare)
        if relative.startswith("commitlog"):
            copied.append((relative, start))

    copied: list[tuple[str, int]] = []
    with monkeypatch.context() as patched:
        patched.setattr(Copies, "grow", grow)
        for module in (copying, of_folder):
            patched.setattr(module, "PART", 4096)
        with pytest.raises(KeyboardInterrupt):
            run(root, backup)
        first, copied = copied, []
        assert len(first) == 7
        if harm == "expired":
            min((root / "commitlog").iterdir()).unlink()
        elif harm == "other":
            shutil.rmtree(root)
            rmqctl("init", root, "--commitlog-file-size", "16KiB").expect(0)
            growing(50, 300)
        elif harm == "copy":
            damage.flip_bit(backup, first[-1][0], first[-1][1] + 4000, 1)
        run(root, backup)
    assert bool({*first} & {*copied}) == (harm in ("other", "copy"))
    assert messages(backup) == messages(root)
    answer = rmqctl("backup", "check", backup, "-o", "json").expect(0).json()
    assert answer["damaged_in_the_store"] == (harm not in ("expired", "other"))


def test_a_first_run_that_ended_is_not_mixed_with_another_store(
        growing: Callable[[int, int], Path], tmp_path: Path, rmqctl: Runner) -> None:
    root, backup = growing(0, 300), tmp_path / "backup"

    def work(tell: Callable[[int], Any]) -> int:
        Trap(40, "after", tell, tmp_path).arm()
        run(root, backup)
        return 0

    assert in_child(work)[0]
    other = tmp_path / "other"
    rmqctl("init", other).expect(0)
    done = rmqctl("backup", other, backup).expect(6)
    assert str(root) in " ".join(done.err.split())
    # Another store at the same path, with files of other sizes.
    shutil.rmtree(root)
    rmqctl("init", root, "--commitlog-file-size", "4KiB").expect(0)
    rmqctl("append", root, tmp_path / "lines", "--auto-create-topic").expect(0)
    run(root, backup)
    assert not findings(backup)
    assert sorted(path.name for path in (backup / "commitlog").iterdir()) == sorted(
        path.name for path in (root / "commitlog").iterdir())
    rmqctl("backup", "check", backup).expect(0)


def test_keep_leaves_the_sums_and_the_damage(growing: Callable[[int, int], Path], tmp_path: Path,
                                             rmqctl: Runner) -> None:
    root, backup = growing(0, 60), tmp_path / "backup"
    damage.flip_bit(root, f"commitlog/{0:020d}", 10, 1)
    run(root, backup)
    rmqctl("backup", root, backup, "--keep", "1s").expect(0)
    answer = rmqctl("backup", "check", backup, "-o", "json").expect(0).json()
    assert (answer["points"], answer["damaged_in_the_store"]) == (1, 1)
    damage.flip_bit(backup, f"commitlog/{0:020d}", 600, 1)
    rmqctl("backup", "check", backup).expect(1)


def test_log_that_expired_before_it_was_copied(growing: Callable[[int, int], Path],
                                               tmp_path: Path, rmqctl: Runner) -> None:
    root, backup = growing(0, 30), tmp_path / "backup"
    run(root, backup)
    growing(30, 200)
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        path.unlink()
    assert "deleted before it was copied" in rmqctl("backup", root, backup).expect(1).err
