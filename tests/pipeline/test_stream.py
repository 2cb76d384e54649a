"""``readStream.format("rocketmq")``: every message once, whatever is stopped, torn or added."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.growing import FILE_SIZE, Writer

COLUMNS = "store string, queue_offset long, physical_offset long"


class Following:
    """One query: its stores, its checkpoint, and what it has read so far, batch by batch.

    A batch that is done once more must have the same rows, and counts once.
    """

    def __init__(self, spark, folder: Path, path, schema: str = COLUMNS) -> None:
        self.spark, self.path, self.schema = spark, str(path), schema
        self.checkpoint = folder / "checkpoint"
        self.batches: dict[int, list[tuple]] = {}
        self.again: list[int] = []

    def stream(self, **options):
        if "maxBytesPerTrigger" in options:
            from rmqctl.ext.spark.versions import LIMITS, installed

            if installed() < LIMITS:
                pytest.skip("this PySpark has no limits for streams")
        return self.spark.readStream.format("rocketmq").schema(self.schema).options(
            **options).load(self.path)

    def _start(self, options: dict[str, str], trigger: dict[str, object]):
        def keep(frame, number: int) -> None:
            rows = sorted(tuple(row) for row in frame.collect())
            if number in self.batches:
                assert self.batches[number] == rows
                self.again.append(number)
            self.batches[number] = rows

        return (self.stream(**options).writeStream.foreachBatch(keep).trigger(**trigger)
                .option("checkpointLocation", str(self.checkpoint)).start())

    def run(self, **options) -> list[tuple]:
        """Until what is there now was read; the rows of this run."""
        before = set(self.batches)
        query = self._start(options, {"availableNow": True})
        assert query.awaitTermination(120)
        return [row for number in self.batches.keys() - before for row in self.batches[number]]

    def rows(self) -> list[tuple]:
        return [row for batch in self.batches.values() for row in batch]

    def offsets(self) -> list[dict[str, int]]:
        """The offsets of the batches that were planned."""
        folder = self.checkpoint / "offsets"
        return [json.loads(path.read_text().splitlines()[-1]) for path in sorted(
            (path for path in folder.iterdir() if path.name.isdigit()),
            key=lambda path: int(path.name))]

    def forget_last(self) -> None:
        """As if the last batch had been planned, and the program killed before it was done."""
        last = max(int(path.name) for path in (self.checkpoint / "commits").iterdir()
                   if path.name.isdigit())
        for name in (f"{last}", f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def rocketmq(spark):
    from rmqctl.ext.spark import register

    register(spark)
    spark.conf.set("spark.sql.streaming.stopTimeout", "60s")
    return spark


@pytest.fixture
def writer(tmp_path) -> Writer:
    return Writer(tmp_path / "a")


@pytest.fixture
def following(rocketmq, tmp_path, writer) -> Iterator[Following]:
    following = Following(rocketmq, tmp_path, tmp_path / "a")
    yield following
    for query in rocketmq.streams.active:
        query.stop()


def numbers(rows: list[tuple]) -> list[int]:
    return sorted(row[1] for row in rows)


def test_stopped_and_started_again(following, writer):
    """Appends in between, over several files, and an end that is torn at first."""
    added = writer.append(40)
    assert numbers(following.run()) == added
    raw = writer.torn(0.5)
    assert following.run() == []
    writer._put(raw)
    added = writer.append(1)  # the torn one, whole
    assert numbers(following.run(maxBytesPerTrigger="1KiB")) == added
    assert numbers(following.rows()) == list(range(writer.count))
    assert following.offsets()[-1] == {following.path: writer.position}


@pytest.mark.exhaustive
def test_a_limit_makes_many_batches_and_a_batch_replayed_is_the_same(following, writer):
    writer.append(100)
    first = following.run(maxBytesPerTrigger="3000")
    assert numbers(first) == list(range(100))
    assert len(following.batches) >= writer.position // 3000
    ends = [offset[following.path] for offset in following.offsets()]
    assert all(0 < after - before <= 3000 for before, after in zip([0, *ends], ends, strict=False))
    last = max(following.batches)
    following.forget_last()
    added = writer.append(20)
    assert numbers(following.run(splitSize="500")) == added
    assert following.again == [last]


@pytest.mark.exhaustive
def test_it_ends_at_what_was_there_when_it_started(following, writer):
    """Messages that come while it runs are for the next run, also those in a new store."""
    writer.append(50)
    path, more = following.path, []

    def appending(frame, number: int) -> None:
        following.batches[number] = [tuple(row) for row in frame.collect()]
        more.extend(writer.append(5))

    query = (following.stream(maxBytesPerTrigger="2000").writeStream.foreachBatch(appending)
             .trigger(availableNow=True)
             .option("checkpointLocation", str(following.checkpoint)).start())
    assert query.awaitTermination(120)
    assert numbers(following.rows()) == list(range(50))
    assert len(more) >= 20
    following.path = path
    assert numbers(following.run()) == more


@pytest.mark.exhaustive
def test_two_stores_and_one_that_comes_later(rocketmq, tmp_path, writer):
    following = Following(rocketmq, tmp_path, tmp_path / "[a-z]")
    second = Writer(tmp_path / "b", base=2 * FILE_SIZE)
    (tmp_path / "c").mkdir()  # not a store yet
    writer.append(30)
    second.append(20)
    rows = following.run(maxBytesPerTrigger="2KiB")
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert numbers([row for row in rows if row[0] == a]) == list(range(30))
    assert numbers([row for row in rows if row[0] == b]) == list(range(20))
    assert all({row[0] for row in following.batches[number]} == {a, b} for number in range(3))
    (tmp_path / "c").rmdir()
    third = Writer(tmp_path / "c")
    third.append(3)
    added = second.append(2)
    rows = following.run(startingOffsets="latest")  # only a query without checkpoint looks at it
    assert [row[1:2] for row in rows if row[0] == c] == [(0,), (1,), (2,)]
    assert numbers([row for row in rows if row[0] == b]) == added
    assert following.offsets()[-1] == {
        a: writer.position, b: second.position, c: third.position}


@pytest.mark.exhaustive
def test_a_running_query_follows(following, writer):
    """Also a torn record that becomes whole, the next file, and a head that expires."""
    import time

    writer.append(3)
    query = following._start({}, {"processingTime": "0 seconds"})

    def wait_for(count: int) -> None:
        until = time.monotonic() + 60
        while len(following.rows()) < count:
            assert query.isActive, query.exception()
            assert time.monotonic() < until, following.rows()
            time.sleep(0.05)

    wait_for(3)
    raw = writer.torn(0.7)
    time.sleep(0.3)
    assert len(following.rows()) == 3
    writer._put(raw)
    writer.append(1)
    wait_for(4)
    for _ in range(4):
        writer.append(15)
        wait_for(writer.count)
    query.stop()
    assert numbers(following.rows()) == list(range(writer.count))
    writer.append(2 * FILE_SIZE // 150)
    writer.path(writer.position - writer.position % FILE_SIZE - FILE_SIZE).unlink()
    rest = following.run(failOnDataLoss="false")
    assert numbers(rest)[-1] == writer.count - 1
    assert len(set(numbers(following.rows()))) == len(following.rows()) < writer.count


def test_columns_and_conditions(rocketmq, tmp_path, writer):
    for number in range(30):
        writer.append(1, topic=b"bills" if number % 3 == 0 else b"orders", queue=number % 2)
    following = Following(rocketmq, tmp_path, tmp_path / "a",
                          "queue_offset long, topic string, record binary, properties "
                          "map<string,string>")
    rows = following.run(topic="bills", queueId="1", splitSize="700")
    assert [(row[0], row[1], row[3]["KEYS"]) for row in rows] == [
        (number, "bills", f"k{number}") for number in range(30) if number % 3 == 0 and number % 2]
    assert all(b"message %d " % row[0] in row[2] for row in rows)


@pytest.mark.exhaustive
def test_rows_are_those_of_reading_at_once(rocketmq, tmp_path, golden):
    """All columns, many parts, on what an engine wrote, damaged."""
    store = golden("5.3.3/crash-crc-prev/before")
    at_once = rocketmq.read.format("rocketmq").option("failOnDataLoss", "false").load(
        str(store))
    following = Following(rocketmq, tmp_path, store, at_once.schema)
    result = following.run(splitSize="10KiB", maxBytesPerTrigger="100KiB",
                           failOnDataLoss="false")
    assert len(following.batches) > 1

    def plain(rows):
        return sorted(([str(value) for value in row] for row in rows), key=lambda row: row[2])

    wanted = plain(tuple(row) for row in at_once.collect())
    assert len(wanted) > 50
    assert plain(result) == wanted


def test_what_cannot_be_is_said(following, writer):
    writer.append(1)
    with pytest.raises(Exception, match="earliest, latest, or a JSON object"):
        following.run(startingOffsets="soon")
    assert following.rows() == []
