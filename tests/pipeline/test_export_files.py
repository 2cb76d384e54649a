"""How many files an export makes: bounded by partitions and bytes, whatever is cut how."""

from __future__ import annotations

import ctypes
import errno
import json
import random
from collections import Counter
from itertools import groupby

import pyarrow.parquet as pq
import pytest

from rmqctl.errors import StoreIOError
from rmqctl.export import attempt, gather, plan
from rmqctl.export import sink as export_sink
from rmqctl.export.spill import _placed
from rmqctl.files import sync_many
from rmqctl.scan import tolerant
from rmqctl.store.log.ranges import Threads
from tests.pipeline.exporting import (
    DAY,
    EPOCH,
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
from tests.pipeline.pools import Unruly
from tests.support.share import sample


def many_topics(tmp_path, seed=1, count=300):
    """A log of a few large topics and many small ones, over three days."""
    chance = random.Random(seed)
    topics = [b"large-%d" % chance.randrange(2) if chance.random() < 0.5
              else b"small-%d" % chance.randrange(20) for _ in range(count)]
    times = [EPOCH + number * 3 * DAY // count for number in range(count)]
    return write_log(tmp_path / f"store-{seed}", topics, times, size=1 << 18)


def partitions(root):
    """(topic, day of the store time) of each message."""
    return Counter((row["topic"], row["store_timestamp"] // DAY) for row in expected(root))


@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_a_partition_has_one_file(form, count, tmp_path):
    """Also where ranges and buffers are many: each of them has a few messages of each topic."""
    root, out = many_topics(tmp_path), tmp_path / "out"
    result = run([root], out, form, count=count)
    wanted = partitions(root)
    assert result.total("files") == result.partitions == len(wanted) > 50
    assert sorted(file["rows"] for file in manifest(out)["files"]) == sorted(wanted.values())
    assert beside(out) == [root.name]


@pytest.mark.parametrize(("form", "seed"), sample(
    [(form, seed) for form in ("parquet", "json", "csv", "avro") for seed in range(20)], 6,
    "small buffers"))
def test_any_cuts_give_the_same_messages_in_order_and_few_files(form, seed, tmp_path, monkeypatch):
    chance = random.Random(seed)
    buffer, enough = chance.choice([4_000, 20_000, 90_000]), chance.choice([500, 4_000, 1 << 20])
    monkeypatch.setattr(export_sink, "FLUSH", buffer)
    monkeypatch.setattr(export_sink, "MIN_FILE_BYTES", enough)
    monkeypatch.setattr(export_sink, "MAX_OPEN", chance.choice([1, 3, 64]))
    monkeypatch.setattr(gather, "FLUSH", chance.choice([1, 3_000, 1 << 20]))
    monkeypatch.setattr(plan, "BUCKET", chance.choice([10_000, 50_000, 1 << 30]))
    monkeypatch.setattr(tolerant, "CHUNK", 8_000)
    pool = chance.choice([Threads(1), Threads(2), Unruly(seed)])
    root, out = many_topics(tmp_path, seed, 100), tmp_path / "out"
    result = run([root], out, form, pool=pool, count=chance.choice([1, 2, 7]))

    wanted = expected(root)
    assert result.total("rows") == sum(file["rows"]
                                       for file in manifest(out)["files"]) == len(wanted)
    # A file for each partition, and two for each buffer that had enough of one.
    size = sum(len(json.dumps(row, default=str)) for row in wanted)
    assert result.total("files") <= result.partitions + 2 * 8 * size / enough + (
        export_sink.MAX_OPEN if enough < 1 << 20 else 0)
    if form == "parquet":
        assert without(table(out), "store", "file", "day") == wanted
    elif form == "json":
        documents = [json.loads(line) for line in lines(out)]
        assert sorted(row["physical_offset"] for row in documents) == [
            row["physical_offset"] for row in wanted]
    if form in ("parquet", "json"):
        # By their names, the files of a folder are in the order of the log.
        for _, files in groupby(data_files(out), lambda path: path.parent):
            offsets = [place for file in files for place in _offsets(file)]
            assert offsets == sorted(offsets)


def _offsets(file):
    if file.suffix == ".parquet":
        return pq.ParquetFile(file).read(["physical_offset"])["physical_offset"].to_pylist()
    return [json.loads(line)["physical_offset"] for line in file.read_text().splitlines()]


def test_a_partition_with_much_gets_files_of_bounded_size(tmp_path, monkeypatch):
    root, out = many_topics(tmp_path), tmp_path / "out"
    monkeypatch.setattr(gather, "MAX_FILE_BYTES", 4_000)
    monkeypatch.setattr(gather, "FLUSH", 1)
    monkeypatch.setattr(export_sink, "FLUSH", 2_000)
    monkeypatch.setattr(tolerant, "CHUNK", 2_000)
    run([root], out, "json", count=5, partition_by=[])
    sizes = [file.stat().st_size for file in data_files(out)]
    assert len(sizes) > 5
    assert all(4_000 <= size < 12_000 for size in sizes[:-1])
    assert len(lines(out)) == 300


def test_values_that_are_none_and_without_folders(tmp_path):
    """Times of no calendar give a day that is null."""
    root = write_log(tmp_path / "store", [b"a", b"b"] * 40, [-1 << 62, EPOCH] * 40)
    run([root], tmp_path / "days", count=6, partition_by=["day"])
    assert len(data_files(tmp_path / "days")) == 2
    run([root], tmp_path / "none", count=6, partition_by=[])
    rows = table(tmp_path / "none", parts={})
    assert without(rows, "store", "file") == expected(root)
    assert len(data_files(tmp_path / "none")) == 1


def test_a_column_too_large_for_one_batch():
    """Chunks of 3, 4 and 2 rows in batches of 5, 3 and 1."""
    chunk, places = _placed([3, 4, 2], [3, 4, 2], [5, 3, 1])
    assert chunk.tolist() == [0, 1, 1, 2, 2]
    assert places[:, 1:].tolist() == [[0, 0, 3, 3], [0, 3, 2, 2], [1, 0, 2, 2], [1, 2, 1, 1],
                                      [2, 0, 1, 1]]
    chunk, places = _placed([1, 1], [30, 40], [2])
    assert places[:, 1:].tolist() == [[0, 0, 1, 30], [0, 1, 1, 40]]


@pytest.mark.parametrize("syncs_names", [True, False])
def test_many_names_are_forced_to_disk_at_once_where_that_can_be(syncs_names, tmp_path,
                                                                 monkeypatch):
    asked, values = [], []

    def whole(folder):
        asked.append(folder)
        return syncs_names

    monkeypatch.setattr(sync_many, "_whole_file_system", whole)
    monkeypatch.setattr(sync_many, "sync_file", values.append)
    paths = [str(tmp_path / str(number)) for number in range(sync_many.MANY)]
    sync_many.sync_many(paths[1:], str(tmp_path))
    assert (asked, values) == ([], paths[1:])
    values.clear()
    sync_many.sync_many(paths, str(tmp_path))
    assert (asked, values) == ([str(tmp_path)], [] if syncs_names else paths)


@pytest.mark.parametrize("where", [sync_many, attempt], ids=["folders", "files"])
def test_what_cannot_be_forced_to_disk_is_no_export(where, tmp_path, monkeypatch):
    root, out = many_topics(tmp_path), tmp_path / "out"
    monkeypatch.setattr(where, "MANY", 2)
    monkeypatch.setattr(sync_many, "MANY", 2)
    run([root], tmp_path / "fine", "json", count=3)

    class Failing:
        @staticmethod
        def syncfs(_fd):
            ctypes.set_errno(errno.EIO)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Failing)
    with pytest.raises(StoreIOError, match="force to disk"):
        run([root], out, "json", count=3)
    assert not out.exists()
