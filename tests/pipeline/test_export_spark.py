"""Exports by Spark: the files are those of processes, and Spark reads them as one data set."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from rmqctl.errors import StoreIOError
from tests.pipeline.exporting import (
    beside,
    data_files,
    expected,
    lines,
    manifest,
    run,
    table,
    without,
    write_log,
)
from tests.support import damage
from tests.support.share import sample


@pytest.mark.parametrize("count", sample([1, 7, 20], 1, "export on Spark"))
def test_files_are_those_of_threads(count, spark_pool, golden_copy, tmp_path):
    root = golden_copy("5.3.3/basic/store")
    damage.zero(root, f"commitlog/{65536:020d}", 20_000, 9_000)
    here, there = tmp_path / "here", tmp_path / "there"
    run([root], here, count=count)
    run([root], there, pool=spark_pool, count=count)
    assert manifest(here) == manifest(there)
    assert [file.relative_to(here) for file in data_files(here)] == [
        file.relative_to(there) for file in data_files(there)]
    assert all(file.read_bytes() == (there / file.relative_to(here)).read_bytes()
               for file in data_files(here))
    assert beside(there) == ["copy-0", "here"]


@pytest.mark.parametrize("form", sample(["json", "csv", "avro"], 1, "formats on Spark"))
def test_other_formats_too(form, spark_pool, golden, tmp_path):
    root = golden("4.9.3/basic/store")
    run([root], tmp_path / "here", form, count=3)
    run([root], tmp_path / "there", form, pool=spark_pool, count=3)
    if form == "json":
        assert lines(tmp_path / "here") == lines(tmp_path / "there")
    assert manifest(tmp_path / "here")["rows"] == manifest(tmp_path / "there")["rows"] > 0


def test_spark_reads_what_was_exported(spark, golden, tmp_path):
    from pyspark.sql import functions

    root, out = golden("5.3.3/basic/store"), tmp_path / "out"
    run([root], out, count=3)
    frame = spark.read.parquet(str(out))
    assert {"topic", "day", "body", "properties", "keys"} <= set(frame.columns)
    times = [name for name, kind in frame.dtypes if kind == "timestamp"]
    assert times == ["born_timestamp", "store_timestamp"]
    frame = frame.withColumns({name: functions.unix_millis(name) for name in times})
    rows = [row.asDict() for row in frame.orderBy("physical_offset").collect()]
    for row in rows:
        row["body"] = bytes(row["body"])
    assert without(rows, "store", "file", "day") == [
        {name: row[name] for name in rows[0] if name in row} for row in expected(root)]
    assert {str(row["day"]) for row in rows} == {row["day"] for row in table(out)}


@pytest.mark.exhaustive
def test_spark_reads_odd_topics(spark, tmp_path):
    topics = [b"%RETRY%group", b"a/b", b"x=y", "größe".encode(), b"quote'\"{[^]}", b"", b"a b"]
    root, out = write_log(tmp_path / "store", topics), tmp_path / "out"
    run([root], out)
    rows = spark.read.parquet(str(out)).orderBy("physical_offset").select("topic").collect()
    assert [row.topic for row in rows] == [topic.decode() or None for topic in topics]
    once = spark.read.parquet(str(out)).where("topic = '%RETRY%group'").count()
    assert once == 1


@pytest.mark.exhaustive
def test_spark_reads_lines_of_json(spark, golden, tmp_path):
    root, out = golden("5.3.3/basic/store"), tmp_path / "out"
    run([root], out, "json", count=3, partition_by=["day"], compression="gzip")
    frame = spark.read.json(str(out))
    assert frame.count() == 600
    wanted = {row["msg_id"]: row["unique_key"] for row in expected(root)}
    assert {row.msg_id: row.unique_key for row in frame.select("msg_id", "unique_key").collect()
            } == wanted


class KilledOnce:
    """Work whose process is killed after it wrote everything, the first time."""

    def __init__(self, work, mark):
        self._work, self._mark = work, mark

    def __call__(self, task):
        work = self._work(task)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._mark)
            os.kill(os.getpid(), signal.SIGKILL)
        return work


class Killing:
    """A pool that loses a worker."""

    def __init__(self, pool, mark):
        self._pool, self._mark, self.jobs = pool, mark, pool.jobs

    def run(self, work, tasks):
        return self._pool.run(KilledOnce(work, self._mark), tasks)


def test_a_killed_worker_leaves_no_double(spark_pool, golden, tmp_path):
    root, out, mark = golden("5.3.3/basic/store"), tmp_path / "out", tmp_path / "killed"
    run([root], out, pool=Killing(spark_pool, str(mark)), count=7)
    assert mark.is_dir()
    assert without(table(out), "store", "file", "day") == expected(root)
    assert sum(file["rows"] for file in manifest(out)["files"]) == 600
    assert len(manifest(out)["files"]) == len(data_files(out))
    assert beside(out) == ["killed"]


def test_a_disk_that_cannot_be_written_to(spark_pool, golden, tmp_path):
    """What stops a worker is said by the driver, with the path."""
    with pytest.raises(StoreIOError, match="attempts"):
        run([golden("5.3.3/basic/store")], tmp_path / "out", pool=Removing(spark_pool, tmp_path))
    assert list(tmp_path.iterdir()) == []


class Removing:
    """Takes the folder of the attempts away before the work starts."""

    def __init__(self, pool, folder):
        self._pool, self._folder, self.jobs = pool, folder, pool.jobs

    def run(self, work, tasks):
        for path in self._folder.glob("*/attempts"):
            path.rmdir()
        yield from self._pool.run(work, tasks)
