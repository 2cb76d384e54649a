"""Exports on processes of this machine: the right rows in the right folders, whole or not."""

from __future__ import annotations

import contextlib
import csv
import errno
import gc
import gzip
import io
import json
import random
import shutil

import pyarrow as pa
import pytest

from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.export import attempt as export_attempt
from rmqctl.export import plan, staging
from rmqctl.export import sink as export_sink
from rmqctl.export.spec import Export
from rmqctl.files.lock_probe import LockState
from rmqctl.formats.local.message import MAGIC_V1, variant
from rmqctl.scan import tolerant
from rmqctl.store.log.ranges import Threads
from rmqctl.store.objects import TIMES
from tests.pipeline.exporting import (
    beside,
    data_files,
    expected,
    lines,
    manifest,
    run,
    table,
    without,
)
from tests.pipeline.pools import LosingFirst, Unruly
from tests.support import damage
from tests.support.golden import GoldenSet, GoldenStore
from tests.support.share import sample

STORES = [GoldenStore(GoldenSet(version, kind), state) for version, kind, state in (
    ("5.3.3", "basic", "store"), ("4.9.3", "basic", "store"), ("5.3.3", "v2topic", "store"),
    ("5.3.3", "ipv6", "store"), ("5.3.3", "multipath", "store"), ("5.3.3", "lmq", "store"),
    ("4.9.3", "transaction", "store"), ("5.3.3", "crash-trunc-garbage", "before"),
    ("5.3.3", "crash-crc", "before"), ("4.9.3", "crash-trunc-header", "before"))]
EACH_STORE = pytest.mark.parametrize(
    "store", [pytest.param(store, id=store.id) for store in STORES])


@EACH_STORE
@pytest.mark.parametrize("count", [1, 7])
def test_json_lines_are_what_read_shows(store, count, golden, rmqctl, tmp_path):
    root, out = golden(store.id), tmp_path / "out"
    read = rmqctl("read", root, "-o", "jsonl", *store.options)
    done = rmqctl("pipeline", "export", root, "--out", out, "--format", "json", "--partitions",
                  str(count), "--jobs", "1", "--partition-by", "topic", *store.options)
    assert done.code == read.code
    assert lines(out) == sorted(f"{line}\n".encode() for line in read.out.split("\n")[:-1])
    assert manifest(out)["complete"] is (read.code == 0)
    assert beside(out) == []


@EACH_STORE
def test_parquet_holds_every_message(store, golden, threads, tmp_path):
    root, out = golden(store.id), tmp_path / "out"
    folders = () if store.options == [] else store.commitlog_dirs
    result = run([root], out, pool=threads, count=5, folders=folders)
    rows = table(out)
    assert without(rows, "store", "file", "day") == expected(root, folders)
    assert {row["store"] for row in rows} == {str(root)}
    for row in rows:
        base = int(row["file"].rpartition("/")[2])
        assert base <= row["physical_offset"] < base + (root / row["file"]).stat().st_size
    assert result.total("rows") == len(rows)


@pytest.mark.long
@pytest.mark.parametrize(("jobs", "count"), sample(
    [(jobs, count) for jobs in (1, 3) for count in (1, 2, 7, 64)], 3, "ranges and threads"))
def test_rows_do_not_depend_on_ranges_nor_threads(count, jobs, golden_copy, tmp_path):
    """With garbage within the log, so that range borders fall into it."""
    root = golden_copy("5.3.3/basic/store")
    damage.zero(root, f"commitlog/{65536:020d}", 20_000, 9_000)
    damage.write(root, f"commitlog/{0:020d}", 5_000, b"garbage" * 40)
    out = tmp_path / "out"
    result = run([root], out, pool=Threads(jobs), count=count, partition_by=["topic"])
    rows = table(out, parts={"topic": pa.string()})
    assert without(rows, "store", "file") == expected(root)
    assert not result.complete
    store = manifest(out)["stores"][0]
    assert store["damage"]["count"] == len(store["damage"]["places"]) == 2
    assert [place["physical_offset"] for place in store["damage"]["places"]] == sorted(
        place["physical_offset"] for place in store["damage"]["places"])


def test_a_pool_that_runs_tasks_again_leaves_no_double(golden, tmp_path):
    root, out = golden("5.3.3/basic/store"), tmp_path / "out"
    pool = Unruly(seed=5)
    run([root], out, pool=pool, count=7)
    assert pool.attempts > 7
    assert without(table(out), "store", "file", "day") == expected(root)
    assert sum(file["rows"] for file in manifest(out)["files"]) == 600
    assert sorted(file["path"] for file in manifest(out)["files"]) == [
        str(file.relative_to(out)) for file in data_files(out)]
    assert [file["bytes"]
            for file in sorted(manifest(out)["files"], key=lambda file: file["path"])] \
        == [file.stat().st_size for file in data_files(out)]
    assert beside(out) == []


@pytest.mark.parametrize("compression", ["deflate", "none"])
def test_avro_holds_the_same(compression, golden, tmp_path):
    import fastavro

    root, out = golden("5.3.3/basic/store"), tmp_path / "out"
    run([root], out, "avro", partition_by=["topic"], compression=compression)
    rows = []
    for path in data_files(out):
        with path.open("rb") as file:
            rows += fastavro.reader(file)
    rows = sorted((row | {name: round(row[name].timestamp() * 1000) for name in TIMES}
                   for row in rows), key=lambda row: row["physical_offset"])
    assert without(rows, "store", "file") == without(expected(root), "topic")


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_csv_has_the_fields_of_read(compression, golden, rmqctl, tmp_path):
    root, out = golden("5.3.3/basic/store"), tmp_path / "out"
    run([root], out, "csv", partition_by=["topic"], compression=compression)
    opened = gzip.open if compression == "gzip" else open
    rows = []
    for path in data_files(out):
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            rows += csv.DictReader(file)
    objects = {message["physical_offset"]: message
               for message in rmqctl("read", root, "-o", "jsonl").jsonl()}
    assert len(rows) == len(objects) == 600
    for row in rows:
        message = objects[int(row["physical_offset"])]
        assert row["body"] == message["body"]
        assert row["properties_raw"] == message["properties_raw"]
        assert json.loads(row["properties"]) == message["properties"]
        assert json.loads(row["keys"]) == message["keys"]
        assert (row["crc_ok"], row["tags"]) == ("true", message["tags"] or "")
        assert "topic" not in row


def test_only_what_was_asked_for(golden, rmqctl, tmp_path):
    root, out = golden("5.3.3/basic/store"), tmp_path / "out"
    everything = rmqctl("read", root, "-o", "jsonl").jsonl()
    topic, queue = everything[0]["topic"], everything[0]["queue_id"]
    middle = everything[300]["store_timestamp"]
    rmqctl("pipeline", "export", root, "--out", out, "--topic", topic, "--queue", str(queue),
           "--until", str(middle), "--fields", "physical_offset,store,property.KEYS", "-j", "1",
           ).expect(0)
    wanted = [entry for entry in everything if entry["topic"] == topic
              and entry["queue_id"] == queue               and entry["store_timestamp"] <= middle]
    rows = table(out)
    assert 0 < len(wanted) < 300
    assert [(row["physical_offset"], row["property.KEYS"]) for row in rows] == [
        (entry["physical_offset"], entry["properties"].get("KEYS")) for entry in wanted]
    assert set(rows[0]) == {"physical_offset", "store", "property.KEYS", "topic", "day"}
    manifest_content = manifest(out)
    assert manifest_content["rows"] == len(wanted)
    assert len(wanted) < manifest_content["stores"][0][
        "messages"] <= 600  # later files were not looked at
    assert f"topic = {topic}" in manifest_content["conditions"]


def test_several_stores_have_verdicts_of_their_own(golden, golden_copy, rmqctl, tmp_path):
    sound, broken = golden("5.3.3/basic/store"), golden_copy("4.9.3/basic/store")
    damage.flip_bit(broken, f"commitlog/{0:020d}", 200, 3)
    out = tmp_path / "out"
    done = rmqctl("pipeline", "export", sound, broken, "--out", out, "--partition-by", "store",
                  "-o", "json", "-j", "1").expect(1)
    shown = done.json()
    assert [(store["store"], store["complete"]) for store in shown["stores"]] == [
        (str(sound), True), (str(broken), False)]
    rows = table(out, parts={"store": pa.string()})
    for root in (sound, broken):
        mine = [row for row in rows if row["store"] == str(root)]
        assert without(mine, "store", "file") == expected(root)
    assert str(broken) in done.err
    assert "incomplete" in done.err


def test_lines_of_several_stores_say_whose_they_are(golden, rmqctl, tmp_path):
    first, other = golden("5.3.3/basic/store"), golden("4.9.3/basic/store")
    rmqctl("pipeline", "export", first, other, "--out", tmp_path / "out", "--format", "json", "-j",
           "1").expect(0)
    documents = [json.loads(line) for line in lines(tmp_path / "out")]
    assert {line["store"] for line in documents} == {str(first), str(other)}


def test_a_body_that_does_not_match_is_exported_and_reported(golden_copy, rmqctl, tmp_path):
    root, out = golden_copy("5.3.3/basic/store"), tmp_path / "out"
    damage.flip_bit(root, f"commitlog/{0:020d}", variant(0, MAGIC_V1).head_size, 2)
    done = rmqctl("pipeline", "export", root, "--out", out, "-j", "1").expect(1)
    assert "CRC mismatch" in done.err
    rows = table(out)
    assert [row["physical_offset"] for row in rows if not row["crc_ok"]] == [0]
    assert len(rows) == 600
    assert manifest(out)["stores"][0]["bad_crc"] == {"count": 1, "physical_offsets": [0]}


class Breaking:
    """Does something to the store once a few tasks are done."""

    jobs = 2

    def __init__(self, after, action):
        self._after, self._action, self._done = after, action, 0

    def run(self, work, tasks):
        for task in list(tasks):
            if self._done == self._after:
                self._action()
            self._done += 1
            yield task, work(task)


@pytest.mark.parametrize("how", ["vanishes", "shrinks"])
def test_a_file_that_goes_away_meanwhile(how, golden_copy, tmp_path):
    root, out = golden_copy("5.3.3/basic/store"), tmp_path / "out"
    file = root / f"commitlog/{2 * 65536:020d}"
    size = 0 if how == "vanishes" else 30_000

    def action():
        if how == "vanishes":
            file.unlink()
        else:
            with file.open("r+b") as opened:
                opened.truncate(size)

    before = expected(root)
    result = run([root], out, pool=Breaking(12, action), count=20)
    rows = without(table(out), "store", "file", "day")
    assert not result.complete
    store = manifest(out)["stores"][0]
    spans = [(place["physical_offset"], place["physical_offset"] + place["length"])
             for kind in ("missing", "damage") for place in store[kind]["places"]]
    assert store["missing"]["bytes"] > 20_000
    kept = [row for row in before if not any(
        start < row["physical_offset"] + row["total_size"] and row["physical_offset"] < end
        for start, end in spans)]
    assert rows == kept
    assert len(before) - 130 < len(rows) < len(before)
    assert beside(out) == ["copy-0"]


def test_zeros_at_the_end_of_a_file_are_damage_if_messages_follow(golden_copy, rmqctl, tmp_path):
    root = golden_copy("5.3.3/basic/store")
    damage.zero(root, f"commitlog/{65536:020d}", 50_000, 65_536 - 50_000)
    (root / f"commitlog/{5 * 65536:020d}").write_bytes(bytes(65_536))  # allocated ahead: none
    for count in (1, 9):
        out = tmp_path / f"out-{count}"
        assert not run([root], out, "json", count=count).complete
        read = rmqctl("read", root, "-o", "jsonl").expect(1)
        assert lines(out) == sorted(f"{part}\n".encode() for part in read.out.split("\n")[:-1])
        result = manifest(out)["stores"][0]["damage"]
        assert sum(place["length"] for place in result["places"]) == result["bytes"] > 15_000


@pytest.mark.skipif(not damage.can_deny(), reason="nothing is denied to this user")
def test_a_file_that_may_not_be_read(golden_copy, tmp_path):
    root, out = golden_copy("5.3.3/basic/store"), tmp_path / "out"
    damage.unreadable(root, f"commitlog/{65536:020d}")
    assert not run([root], out, count=9).complete
    missing = manifest(out)["stores"][0]["missing"]
    assert missing["bytes"] == 65_536
    assert "permission denied" in missing["places"][0]["reason"]


def test_a_file_that_is_missing_is_reported(golden_copy, rmqctl, tmp_path):
    root, out = golden_copy("5.3.3/basic/store"), tmp_path / "out"
    (root / f"commitlog/{65536:020d}").unlink()
    done = rmqctl("pipeline", "export", root, "--out", out, "-j", "1").expect(1)
    assert "65536" in done.err
    assert without(table(out), "store", "file", "day") == expected(root)
    assert manifest(out)["stores"][0]["missing"]["places"] == [
        {"kind": "gap", "physical_offset": 65536, "length": 65536,
         "reason": "no file contains these bytes"}]


def test_nothing_to_be_read_at_all_is_no_export(golden_copy, tmp_path):
    root, out = golden_copy("5.3.3/basic/store"), tmp_path / "out"

    def action():
        for path in (root / "commitlog").iterdir():
            path.unlink()

    with pytest.raises(StoreIOError, match="nothing can be read"):
        run([root], out, pool=Breaking(0, action))
    assert not out.exists()
    assert "out" not in "".join(beside(out))


class Full:
    """Opens files on a disk with room for a few bytes."""

    def __init__(self, room, buffered=True):
        self.room, self.buffered = room, buffered

    def __call__(self, path, mode):
        disk = self

        class File(io.FileIO):
            def write(self, data):
                disk.room -= memoryview(data).nbytes
                if disk.room < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return super().write(data)

        return io.BufferedWriter(File(path, mode)) if disk.buffered else File(path, mode)


@pytest.mark.parametrize("room", [0, 3, 5_000, 90_000])
@pytest.mark.parametrize("form", ["parquet", "json", "csv", "avro"])
@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_disk_leaves_nothing(form, room, buffered, golden, tmp_path, monkeypatch):
    monkeypatch.setattr(export_attempt, "open", Full(room, buffered), raising=False)
    with pytest.raises(StoreIOError, match="no space left"):
        run([golden("5.3.3/basic/store")], tmp_path / "out", form, count=3)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_under_compressed_lines(golden, tmp_path, monkeypatch):
    monkeypatch.setattr(export_attempt, "open", Full(2_000), raising=False)
    with pytest.raises(StoreIOError, match="no space left"):
        run([golden("5.3.3/basic/store")], tmp_path / "out", "json", compression="gzip")
    assert list(tmp_path.iterdir()) == []


def test_interrupted_it_leaves_nothing(golden, tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([golden("5.3.3/basic/store")], tmp_path / "out", pool=Breaking(2, interrupt), count=5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["parquet", "json", "json gzip", "csv zstd", "avro"])
@pytest.mark.parametrize("room", [1 << 40, 100])
def test_interrupted_within_a_task_it_leaves_nothing_and_is_silent(form, room, golden, tmp_path,
                                                                   monkeypatch, capfd):
    """With files open, on a disk which may be full as well."""
    disk, add = Full(1 << 40), export_sink.RangeSink.add
    monkeypatch.setattr(export_attempt, "open", disk, raising=False)
    monkeypatch.setattr(export_sink, "FLUSH", 1)
    monkeypatch.setattr(tolerant, "CHUNK", 8_000)
    calls = []

    def interrupted(sink, batch):
        calls.append(batch)
        if len(calls) == 4:
            disk.room = room
            raise KeyboardInterrupt
        add(sink, batch)

    monkeypatch.setattr(export_sink.RangeSink, "add", interrupted)
    name, *how = form.split()
    with pytest.raises(KeyboardInterrupt):
        run([golden("5.3.3/basic/store")], tmp_path / "out", name,
            compression=how[0] if how else None)
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_late_worker_cannot_write_any_more(golden, tmp_path):
    """One that still runs when the job was given up: its folder is not made anew."""
    tasks = []

    class Keeping:
        jobs = 1

        def run(self, work, given):
            for task in given:
                tasks.append((work, task))
                raise KeyboardInterrupt
            yield

    with pytest.raises(KeyboardInterrupt):
        run([golden("5.3.3/basic/store")], tmp_path / "out", pool=Keeping())
    work, task = tasks[0]
    with pytest.raises(export_attempt.WriteError):
        work(task)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_never_replaced(golden, rmqctl, tmp_path):
    root, out = golden("5.3.3/basic/store"), tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    done = rmqctl("pipeline", "export", root, "--out", out).expect(6)
    assert "already exists" in done.err
    assert [path.name for path in out.iterdir()] == ["mine"]
    (out / "mine").unlink()
    rmqctl("pipeline", "export", root, "--out", f"{out}/", "-j", "1").expect(0)
    assert manifest(out)["rows"] == 600
    rmqctl("pipeline", "export", root, "--out", tmp_path / "no" / "out").expect(5)
    rmqctl("pipeline", "export", root, "--out", root / "export").expect(2)


def test_what_came_meanwhile_is_never_replaced(golden, tmp_path):
    out = tmp_path / "out"

    def action():
        out.mkdir()
        (out / "other").write_text("other")

    with pytest.raises(RefusedError, match="meanwhile"):
        run([golden("5.3.3/basic/store")], out, pool=Breaking(0, action))
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "other"]


def test_a_dry_run_writes_nothing_and_knows_about_how_much(golden, rmqctl, tmp_path):
    root = golden("5.3.3/basic/store")
    for form in ("parquet", "json", "csv", "avro"):
        shown = rmqctl("pipeline", "export", root, "--out", tmp_path / "out", "--format", form,
                       "--partitions", "4", "--dry-run", "-o", "json").expect(0).json()
        assert list(tmp_path.iterdir()) == []
        assert shown["partitions"] >= 4
        result = run([root], tmp_path / "out", form, partition_by=[])
        assert 0.3 < shown["expected_bytes"] / result.total("bytes") < 3
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("wrong", [
    {"format": "orc"}, {"partition_by": ["tag"]}, {"compression": "brotli"}, {"body": "base64"},
    {"fields": ["nothing"]}, {"fields": ["topic"]}, {"fields": ["body_encoding"]},
    {"format": "json", "fields": ["record"]}])
def test_what_does_not_go_together_is_refused(wrong):
    with pytest.raises(UsageError):
        Export.of(**{"format": "parquet", **wrong})


def test_a_zone_that_cannot_be_sent_goes_by_its_name(tmp_path, monkeypatch):
    from zoneinfo import ZoneInfo

    place = tmp_path / "zoneinfo" / "Asia" / "Shanghai"
    with (next(zone_file for zone_file in _zone_files("Asia/Shanghai"))).open("rb") as file:
        local = ZoneInfo.from_file(file, key="local")
    monkeypatch.setattr("os.path.realpath", lambda path: str(place))
    assert Export.of(zone=local).zone == ZoneInfo("Asia/Shanghai")
    monkeypatch.setattr("os.path.realpath", lambda path: "/etc/localtime")
    with pytest.raises(UsageError, match="no name"):
        Export.of(zone=local)


def _zone_files(name):
    from pathlib import Path
    from zoneinfo import TZPATH

    return (path for path in (Path(folder, name) for folder in TZPATH) if path.is_file())


def test_whole_records_can_be_exported(golden, tmp_path):
    root, out = golden("5.3.3/basic/store"), tmp_path / "out"
    run([root], out, fields=["physical_offset", "record"], partition_by=[])
    log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    rows = table(out, parts={})
    assert len(rows) == 600
    for row in rows:
        assert log[row["physical_offset"]:][:len(row["record"])] == row["record"]


def test_a_record_that_is_being_written_is_no_damage(golden_copy, tmp_path, monkeypatch):
    root = golden_copy("5.3.3/crash-trunc-garbage/before")
    assert not run([root], tmp_path / "crashed").complete
    monkeypatch.setattr(plan.Store, "lock", LockState(True, 4711, "fcntl"))
    result = run([root], tmp_path / "held")
    assert manifest(tmp_path / "held")["stores"][0]["in_progress"]["length"] > 0
    assert result.stores[0].damage.count == 0


def test_attempts_that_are_lost_do_not_count(golden, tmp_path):
    @contextlib.contextmanager
    def breaking():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(export_attempt.Attempt, "finish", fail)
            yield

    def fail(_attempt):
        raise export_attempt.WriteError("lost")

    root, out, pool = golden("5.3.3/basic/store"), tmp_path / "out", LosingFirst(breaking)
    run([root], out, pool=pool, count=5)
    assert pool.lost >= 6  # the ranges, and what they set aside
    assert without(table(out), "store", "file", "day") == expected(root)
    assert beside(out) == []


def test_an_empty_store_is_an_empty_export(rmqctl, tmp_path):
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    done = rmqctl("pipeline", "export", tmp_path / "store", "--out", tmp_path / "out").expect(0)
    assert "no messages" in done.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_rmqctl_export.json"]


def test_the_staging_folder_is_seen_for_what_it_is(golden, tmp_path):
    seen = []

    def action():
        seen.extend(path.name for path in tmp_path.iterdir())

    run([golden("5.3.3/basic/store")], tmp_path / "out", pool=Breaking(0, action))
    assert len(seen) == 1
    assert seen[0].startswith(f"out{staging.MARK}")


@pytest.mark.parametrize("seed_number", range(3))
def test_random_damage_gives_the_same_for_any_ranges(seed_number, golden_copy, rmqctl, tmp_path,
                                                     monkeypatch):
    monkeypatch.setattr(export_attempt.os, "fsync", lambda _descriptor: None)
    chance = random.Random(seed_number)
    root = golden_copy(chance.choice(["5.3.3/basic/store", "4.9.3/batch/store"]))
    files = sorted((root / "commitlog").iterdir())
    for _ in range(4):
        file = chance.choice(files)
        at = chance.randrange(file.stat().st_size)
        length = chance.choice([1, 4, 100, 3000, 20_000])
        data = chance.choice([bytes(length), chance.randbytes(length),
                              chance.choice(files).read_bytes()[at // 2:][:length]])
        damage.write(root, f"commitlog/{file.name}", at, data[:file.stat().st_size - at])
    read = rmqctl("read", root, "-o", "jsonl")
    wanted = sorted(f"{line}\n".encode() for line in read.out.split("\n")[:-1])
    results = []
    for count in (1, 7, 64):
        out = tmp_path / f"out-{count}"
        result = run([root], out, "json", count=count)
        assert lines(out) == wanted
        assert result.complete is (read.code == 0)
        store = manifest(out)["stores"][0]
        results.append([store[name] for name in ("damage", "missing", "bad_crc", "messages")])
    assert results[0] == results[1] == results[2]
