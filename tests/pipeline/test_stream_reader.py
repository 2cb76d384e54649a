"""The stream reader as Spark drives it, without Spark: offsets, batches, replays, restarts."""

from __future__ import annotations

import json
import logging
import pickle
import random
import subprocess
import sys
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from rmqctl.errors import NotAStoreError, StoreIOError, UsageError
from rmqctl.ext.spark.source import schema as spark_schema
from rmqctl.ext.spark.source import stream
from rmqctl.ext.spark.source.stream import StreamReader
from rmqctl.scan.columns import message_columns
from rmqctl.sql import schema
from rmqctl.store import Store
from rmqctl.store.log import growth
from tests.pipeline.growing import FILE_SIZE, Writer
from tests.support.arrow_rows import rows_of

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes
except ImportError:
    pytest.skip("this PySpark has no limits for streams", allow_module_level=True)

COLUMNS = StructType([StructField("store", StringType()), StructField("queue_offset", LongType()),
                      StructField("physical_offset", LongType())])
Offset = dict[str, int]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """What is torn in these tests stays so: nobody has to wait for it."""
    monkeypatch.setattr(stream, "PATIENCE", 0.01)
    monkeypatch.setattr(stream, "LOOK_AGAIN", 0.0)
    monkeypatch.setattr(growth, "_TORN_LOOK", 0.0)


class Query:
    """A query: `once` is one batch, `restart` a new process with what a checkpoint holds."""

    def __init__(self, path, asked: StructType = COLUMNS, **options) -> None:
        self.options = {"path": str(path), **options}
        self.asked = asked
        self.rows: list[tuple] = []
        self.log: list[tuple[Offset, Offset, list[tuple]]] = []
        self.offset: Offset | None = None
        self.restart()

    def restart(self) -> None:
        self.reader = StreamReader(self.options, self.asked)

    def _planned(self, offset: Offset) -> Offset:
        assert list(offset) == sorted(offset)
        return json.loads(json.dumps(offset))

    def once(self, limit: ReadLimit | None = None) -> list[tuple]:
        if self.offset is None:
            self.offset = self._planned(self.reader.initialOffset())
        start = self.offset
        limit = limit or self.reader.getDefaultReadLimit()
        end = self._planned(self.reader.latestOffset(dict(start), limit))
        if end == start:
            return []
        batch = self.batch(start, end)
        self.reader.commit(end)
        self.log.append((start, end, batch))
        self.rows += batch
        self.offset = end
        return batch

    def drain(self) -> None:
        before: Offset | None = {"": 0}
        while self.offset != before:
            before = self.offset
            self.once()

    def batch(self, start: Offset, end: Offset) -> list[tuple]:
        """The rows of a batch, each part read by what was sent to an executor."""
        parts = pickle.loads(pickle.dumps(self.reader.partitions(dict(start), dict(end))))
        there = pickle.loads(pickle.dumps(self.reader))
        return [tuple(row.values()) for part in parts for batch in there.read(part)
                for row in rows_of(batch)]

    def available_now(self) -> list[tuple]:
        self.restart()
        self.reader.prepareForTriggerAvailableNow()
        entries: list[tuple] = []
        while rows := self.once():
            entries += rows
        assert self.once() == []
        return entries


def numbers(rows: list[tuple], store: object = None) -> list[int]:
    return [row[1] for row in rows if store is None or row[0] == str(store)]


@pytest.mark.long
def test_random_histories(tmp_path, seed):
    """Appends, limits, restarts, torn ends and replays in any order: each message once."""
    draw = random.Random(seed)
    for history in range(12):
        root = tmp_path / f"history{history}"
        writers = [Writer(root / name, draw.choice([1024, 4096])) for name in "ab"]
        torn: list[bytes | None] = [None, None]
        query = Query(root / "*", splitSize=str(draw.choice([1, 400, 5000])))
        for _ in range(60):
            number = draw.randrange(2)
            writer, act = writers[number], draw.randrange(6)
            if act <= 1:
                if torn[number] is not None:
                    writer._put(torn[number])
                    torn[number] = None
                    assert writer.raw(body=60)
                    writer.append(1, body=60)
                writer.append(draw.randrange(9), body=draw.randrange(20, 300))
            elif act == 2 and torn[number] is None:
                torn[number] = writer.torn(draw.random() * 0.9 + 0.05, body=60)
            elif act == 3:
                query.restart()
            elif act == 4 and query.log:
                start, end, rows = draw.choice(query.log)
                assert query.batch(start, end) == rows
            else:
                query.once(draw.choice([None, ReadMaxBytes(draw.randrange(1, 3000))]))
        for writer, raw in zip(writers, torn, strict=True):
            if raw is not None:
                writer._put(raw)
                writer.append(1, body=60)
        query.drain()
        for writer in writers:
            assert numbers(query.rows, writer.root) == list(range(writer.count))
            assert query.offset is not None
            if writer.count:
                assert query.offset[str(writer.root)] == writer.position
        for start, end, rows in query.log:
            assert query.batch(start, end) == rows


def test_a_limit_is_shared(tmp_path):
    writers = [Writer(tmp_path / name) for name in "abc"]
    for writer, count in zip(writers, (60, 5, 60), strict=True):
        writer.append(count)
    query = Query(tmp_path / "*", maxBytesPerTrigger="3000")
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(3000)
    query.drain()
    sizes = [sum(end[store] - start.get(store, 0) for store in end)
             for start, end, _ in query.log]
    assert all(size <= 3000 for size in sizes)
    assert all(size > 2000 for size in sizes[:-2])
    assert {row[0] for row in query.log[0][2]} == {str(writer.root) for writer in writers}
    for writer in writers:
        assert numbers(query.rows, writer.root) == list(range(writer.count))


@pytest.mark.parametrize(("size", "parts"), [(None, 3), ("0", 3), ("1KiB", 10), ("1", 3)])
def test_how_a_batch_is_cut(tmp_path, size, parts):
    """By files at least; where it would be very many parts, by files alone."""
    writer = Writer(tmp_path / "a")
    writer.append(45)
    query = Query(tmp_path / "a", **({} if size is None else {"splitSize": size}))
    end = query.reader.latestOffset(query.reader.initialOffset(), ReadAllAvailable())
    assert len(query.reader.partitions({str(writer.root): 0}, end)) == parts
    assert query.reader.partitions(end, end) == []


def test_everything_may_be_asked_for(tmp_path):
    Writer(tmp_path / "a").append(100)
    query = Query(tmp_path / "a", maxBytesPerTrigger="1")
    assert numbers(query.once()) == [0]
    assert numbers(query.once(ReadAllAvailable())) == list(range(1, 100))
    assert Query(tmp_path / "a").reader.getDefaultReadLimit() == ReadAllAvailable()


def test_available_now_ends_at_what_was_there(tmp_path):
    writer = Writer(tmp_path / "a")
    writer.append(50)
    query = Query(tmp_path / "*", maxBytesPerTrigger="2000")
    query.reader.prepareForTriggerAvailableNow()
    entries = query.once()
    later = writer.append(20)
    Writer(tmp_path / "b").append(3)
    while rows := query.once():
        entries += rows
    assert numbers(entries) == list(range(50))
    assert numbers(query.available_now(), writer.root) == later
    assert numbers(query.rows, tmp_path / "b") == [0, 1, 2]
    assert query.available_now() == []


def test_available_now_waits_a_moment_for_what_is_torn(tmp_path, monkeypatch):
    writer = Writer(tmp_path / "a")
    writer.append(5)
    raw = writer.torn(0.6)
    query = Query(tmp_path / "a")
    assert numbers(query.available_now()) == list(range(5))

    def completes(_seconds: float) -> None:
        writer._put(raw)
        writer.position += len(raw)
        writer.count += 1

    def sleeping(sleep) -> None:
        """Only this module's clock: threads of Spark's gateway sleep, too."""
        monkeypatch.setattr(stream, "time", SimpleNamespace(sleep=sleep, monotonic=monotonic))

    sleeping(completes)
    assert numbers(query.available_now()) == [5]
    sleeping(lambda _seconds: pytest.fail("nothing is torn"))
    assert query.available_now() == []


def test_available_now_reads_behind_damage_in_the_last_file(tmp_path):
    """Nobody writes any more: what reading at once shows is shown here, too."""
    writer = Writer(tmp_path / "a")
    writer.append(3)
    border = writer.position
    writer.append(4)
    with writer.path(0).open("r+b") as file:
        file.seek(border)
        file.write(bytes(4))  # its size; the lengths still say where it ends
    reading_on = {"failOnDataLoss": "false"}
    assert numbers(Query(tmp_path / "a", **reading_on).available_now()) == [0, 1, 2, 4, 5, 6]
    with writer.path(0).open("r+b") as file:
        file.seek(border)
        file.write(bytes(300))  # nothing tells whether what follows lies in its body
    assert numbers(Query(tmp_path / "a", **reading_on).available_now()) == [0, 1, 2]


@pytest.mark.parametrize(("text", "first"), [
    ("earliest", 0), ("EARLIEST", 0), ("latest", 60), ('{"{A": 0}', 0), ('{"{A": "latest"}', 60),
    ('{"{A": 1}', 1), ('{"{A": 4095}', "next file"), ("{}", 0)])
def test_where_a_query_starts(tmp_path, text, first):
    writer = Writer(tmp_path / "a")
    writer.append(60)
    query = Query(tmp_path / "a", startingOffsets=text.replace("{A", str(writer.root)))
    query.once()
    writer.append(2)
    query.restart()
    query.once()
    listed_numbers = numbers(query.rows)
    assert listed_numbers == list(range(listed_numbers[0], 62))
    if first == "next file":
        assert query.log[0][0] == {str(writer.root): FILE_SIZE}
    else:
        assert listed_numbers[0] == first


@pytest.mark.parametrize(("options", "words"), [
    ({"startingOffsets": "soon"}, "earliest, latest, or a JSON object"),
    ({"startingOffsets": "[1]"}, "JSON object"),
    ({"startingOffsets": '{"/x": -1}'}, "expected a physical offset, earliest or latest"),
    ({"startingOffsets": '{"/x": true}'}, "expected a physical offset, earliest or latest"),
    ({"startingOffsets": '{"/x": 5}'}, "no such store: /x"),
    ({"maxBytesPerTrigger": "0"}, "must be at least 1"),
    ({"maxBytesPerTrigger": "x"}, "invalid size"),
    ({"table": "frames"}, "only messages"),
    ({"numPartitions": "3"}, "splitSize divides a batch"),
    ({"maxBytes": "5"}, "unknown option")])
def test_what_cannot_be_is_said(tmp_path, options, words):
    Writer(tmp_path / "a").append(1)
    with pytest.raises((UsageError, PySparkException), match=words):
        Query(tmp_path / "a", **options).once()


def test_an_expired_head_is_warned_of(tmp_path, caplog):
    writer = Writer(tmp_path / "a")
    writer.append(60)
    query = Query(tmp_path / "a", maxBytesPerTrigger="1000", failOnDataLoss="false")
    query.once()
    start = query.log[0]
    writer.path(0).unlink()
    query.restart()
    with caplog.at_level(logging.WARNING):
        query.drain()
        assert "to 4096 have expired" in caplog.text
        listed_numbers = numbers(query.rows)
        rest = listed_numbers[len(start[2]):]
        assert rest == list(range(rest[0], 60))
        caplog.clear()
        assert query.batch(start[0], start[1]) == []
        assert f"0 to {start[1][str(writer.root)]} have expired" in caplog.text


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "true"}])
def test_an_expired_head_ends_a_query(tmp_path, options):
    writer = Writer(tmp_path / "a")
    writer.append(60)
    query = Query(tmp_path / "a", maxBytesPerTrigger="1000", **options)
    query.once()
    writer.path(0).unlink()
    query.restart()
    with pytest.raises(StoreIOError, match="to 4096 have expired.*failOnDataLoss=false"):
        query.drain()


def test_a_store_that_vanishes_ends_a_query(tmp_path):
    writer = Writer(tmp_path / "a")
    writer.append(3)
    query = Query(tmp_path / "*")
    assert numbers(query.once()) == [0, 1, 2]
    writer.root.rename(tmp_path.parent / f"{tmp_path.name}-kept")
    (tmp_path / "b").mkdir()
    with pytest.raises(StoreIOError, match="no longer exists.*failOnDataLoss=false"):
        query.once()


def test_a_file_that_expires_between_plan_and_task(tmp_path, caplog):
    writer = Writer(tmp_path / "a")
    writer.append(60)
    query = Query(tmp_path / "a", failOnDataLoss="false")
    end = query.reader.latestOffset(query.reader.initialOffset(), ReadAllAvailable())
    parts = query.reader.partitions({str(writer.root): 0}, end)
    writer.path(0).unlink()
    with caplog.at_level(logging.WARNING):
        assert list(query.reader.read(parts[0])) == []
    assert "expired before it was read" in caplog.text
    writer.path(2 * FILE_SIZE).unlink()
    with pytest.raises(StoreIOError, match="8192"):
        list(query.reader.read(parts[2]))


def test_a_file_that_shrinks_under_a_task(tmp_path):
    writer = Writer(tmp_path / "a")
    writer.append(60)
    query = Query(tmp_path / "a")
    end = query.reader.latestOffset(query.reader.initialOffset(), ReadAllAvailable())
    parts = query.reader.partitions({str(writer.root): 0}, end)
    with writer.path(FILE_SIZE).open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(StoreIOError, match="truncated at byte"):
        list(query.reader.read(parts[1]))


def test_stores_that_come_and_go(tmp_path, caplog):
    a = Writer(tmp_path / "a")
    a.append(3)
    (tmp_path / "b").mkdir()
    (tmp_path / "c").write_text("no folder")
    query = Query(tmp_path / "*", startingOffsets="latest", failOnDataLoss="false")
    assert query.once() == []
    (tmp_path / "b").rmdir()
    b = Writer(tmp_path / "b", base=3 * FILE_SIZE)
    b.append(2)
    assert numbers(query.once(), b.root) == [0, 1]
    kept = tmp_path.parent / f"{tmp_path.name}-kept"
    b.root.rename(kept)
    a.append(1)
    with caplog.at_level(logging.WARNING):
        assert numbers(query.once()) == [3]
        assert query.once() == []
        assert caplog.text.count("no longer exists") == 1
    assert query.offset is not None
    assert query.offset[str(b.root)] == b.position
    kept.rename(b.root)
    b.append(1)
    assert numbers(query.once()) == [2]


def test_a_store_that_must_be_there(tmp_path):
    with pytest.raises(NotAStoreError):
        Query(tmp_path / "none").once()
    writer = Writer(tmp_path / "a")
    writer.append(3)
    query = Query(tmp_path / "*")
    query.once()
    start, end, _ = query.log[0]
    Writer(tmp_path / "b").append(1)
    (tmp_path / "a").rename(tmp_path.parent / f"{tmp_path.name}-gone")
    query.restart()
    with pytest.raises(StoreIOError, match="no longer exists"):
        query.batch(start, end)


@pytest.mark.long
def test_an_engine_at_work(tmp_path, rmqctl):
    """Another process appends through a memory map while this one reads as fast as it can."""
    root, count = tmp_path / "a", 20_000
    rmqctl("init", root, "--commitlog-file-size", "256KiB", "--index-slots", "1000",
           "--index-max", "40000").expect(0)
    lines = tmp_path / "lines"
    lines.write_text("".join(json.dumps({"topic": "t", "body": f"{number} " + "x" * (
        number * 7 % 300)}) + "\n" for number in range(count)))
    query = Query(root, StructType([StructField("store", StringType()),
                                    StructField("queue_offset", LongType()),
                                    StructField("crc_ok", BooleanType())]),
                  maxBytesPerTrigger="50000", splitSize="20000")
    with subprocess.Popen([sys.executable, "-m", "rmqctl", "append", str(root), str(lines),
                           "--mapped", "--disk-watermark", "100%", "-q"],
                          cwd=Path(__file__).parents[2]) as engine:
        meanwhile = 0
        while engine.poll() is None:
            meanwhile += len(query.once()) > 0
    assert engine.returncode == 0
    query.drain()
    assert meanwhile > 3
    assert numbers(query.rows) == list(range(count))
    assert all(row[2] for row in query.rows)
    for start, end, rows in query.log[::5]:
        assert query.batch(start, end) == rows


DAMAGED = ["4.9.3/crash-crc-prev/before", "5.3.3/crash-trunc-garbage/before",
           "5.3.3/crash-trunc-header/before", "5.3.3/multipath/store"]


@pytest.mark.parametrize("name", DAMAGED)
def test_all_columns_are_those_of_a_walk(golden, name):
    root = golden(name)
    dirs = ["cl1", "cl2"] if "multipath" in name else []
    default = spark_schema.default(schema.MESSAGES)
    query = Query(root, default, maxBytesPerTrigger="30000", splitSize="7000",
                  commitlogDirs=",".join(dirs), failOnDataLoss="false")
    query.available_now()
    names = [name for name in default.fieldNames() if name not in ("store", "file")]
    with Store.open(str(root), dirs) as store:
        wanted = [tuple(row.values()) for batch in store.log.walk()
                  for row in rows_of(message_columns(batch, names))]
    assert len(query.log) > 1
    assert len(wanted) > 50
    assert [row[2:] for row in query.rows] == wanted
    assert {Path(row[1]).parts[0] for row in query.rows} == set(dirs or ["commitlog"])
