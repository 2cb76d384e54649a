"""The table ``tiered_messages``: what a loop over the queues of a tier finds, however it is cut."""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path

import pytest

from rmqctl.errors import FormatError, NotAStoreError, StoreIOError, UsageError
from rmqctl.ext.spark.source.planning import plan
from rmqctl.ext.tiered.files.opening import open_writer
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats import layout
from rmqctl.formats.local.message import Message, decode
from rmqctl.formats.tiered.names import cluster_folder, segment_path
from rmqctl.formats.tiered.units import CODA, CODA_MAGIC, CODA_SIZE, UNIT, CodaRecord, UnitRecord
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk
from rmqctl.sql.options import ReadOptions
from tests.conftest import GoldenFolder
from tests.pipeline import reading
from tests.support.arrow_rows import rows_of
from tests.support.share import sample

TABLE = "tiered_messages"
STORE, LIVE = "5.3.3/tiered/store", "5.3.3/tiered/store-live"
COUNTS = ("1", "2", "7", "64")
FIELDS = ("total_size", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset",
          "sys_flag", "born_timestamp", "store_timestamp", "reconsume_times", "body")
_PHYSICAL = layout.field(Message, "physical_offset")


def wanted(root: Path | str) -> list[tuple]:
    """(cluster, broker, segment, topic, properties, fields…) by a loop over the queues."""
    values = []
    with Tier.open(str(root)) as tier:
        for queue in tier.queues():
            for at in range(queue.cq_start, queue.commit_offset):
                try:
                    record = queue.record(at)
                except FormatError:
                    continue
                place = queue.unit(at).commit_log_offset
                behind = record.physical_offset == place + CODA_SIZE
                if (record.physical_offset != place and not behind) or (
                        record.topic.decode("utf-8", "replace"), record.queue_id) != (
                        queue.name.topic, queue.name.queue_id):
                    continue
                values.append((queue.name.cluster, queue.name.broker,
                               queue.commit_log.segment_of(record.physical_offset).path,
                               queue.name.topic, record.properties.decode("utf-8", "replace"),
                               *(getattr(record, name) for name in FIELDS)))
    return values


def walked(root: Path | str) -> list[tuple]:
    """(segment, physical offset) of every record that a walk over the commit logs meets."""
    places = []
    with Tier.open(str(root)) as tier:
        for queue in tier.queues():
            for segment in queue.commit_log.segments:
                with FileSource(os.path.join(tier.name, segment.path), segment.base) as source:
                    source.size = segment.usable
                    for batch in Walk(source):
                        places += [(segment.path, offset) for offset in batch.offset.tolist()]
    return places


def plain(rows: list[dict]) -> list[tuple]:
    return [(row["cluster"], row["broker"], row["file"], row["topic"], row["properties_raw"],
             *(row[name] for name in FIELDS)) for row in rows]


def rows(root: Path | str, **options: str) -> list[dict]:
    return reading.rows(root, TABLE, **options)


def messages_of(root: Path) -> list[bytes]:
    with Tier.open(str(root)) as tier:
        return [queue.raw(queue.unit(at)) for queue in tier.queues()
                for at in range(queue.min_offset, queue.commit_offset)]


def placed(data: bytes, physical: int, queue_offset: int | None = None) -> bytes:
    """A message moved to another place (and queue offset)."""
    changed = bytearray(data)
    at, size = _PHYSICAL.offset, _PHYSICAL.size
    changed[at:at + size] = physical.to_bytes(size, "big")
    if queue_offset is not None:
        at = layout.field(Message, "queue_offset").offset
        changed[at:at + 8] = queue_offset.to_bytes(8, "big")
    return bytes(changed)


def build(root: Path, messages: list[bytes], *, first: int = 7, log: int = 3000, units: int = 200,
          coda: str = "") -> None:
    """One queue in segments of about ``log`` and ``units`` bytes. ``coda``: its units "behind" the
    records, or lead "to" them, as if who wrote them did not know of the records.
    """
    topic = decode(messages[0]).topic.decode()
    queue_id = decode(messages[0]).queue_id
    files: dict[str, bytearray] = {}

    def file(kind: str, base: int) -> bytearray:
        return files.setdefault(segment_path("C l", "b-1", topic, queue_id, kind, base),
                                bytearray())

    base, at, row_base = 0, 0, first * UNIT.size
    current = file("COMMIT_LOG", 0)
    for number, data in enumerate(messages):
        leads = at
        if len(current) + len(data) > log:
            if coda:
                current += CODA.build(CodaRecord(CODA_SIZE, CODA_MAGIC, 1_700_000_000_000))
                at += CODA_SIZE
            base, leads = at, leads if coda == "to" else at
            current = file("COMMIT_LOG", base)
        current += placed(data, at, first + number)
        row = (first + number) * UNIT.size
        if row - row_base + UNIT.size > units:
            row_base = row
        rows = file("CONSUME_QUEUE", row_base)
        rows += UNIT.build(UnitRecord(leads, len(data), 5))
        at += len(data)
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


@pytest.mark.parametrize("name", [STORE, LIVE])
@pytest.mark.parametrize("count", COUNTS)
def test_it_is_the_loop_over_the_queues(name, count, golden: GoldenFolder):
    root = golden(name)
    store_rows = rows(root, numPartitions=count)
    assert plain(store_rows) == wanted(root)
    assert len(store_rows) > 100
    assert {row["store"] for row in store_rows} == {str(root)}
    tier = rows(root / "tieredstore", numPartitions=count)
    assert plain(tier) == plain(store_rows)
    with_orphans = rows(root, numPartitions=count, orphans="include")
    assert [(with_orphan["file"], with_orphan["physical_offset"])
            for with_orphan in with_orphans] == walked(root)


@pytest.mark.long
@pytest.mark.parametrize("coda", sample(["", "behind", "to"], 1, "codas"))
def test_many_segments(coda, golden: GoldenFolder, tmp_path):
    with Tier.open(str(golden(STORE))) as tier:
        queue = max(tier.queues(), key=lambda unit: unit.commit_offset)
        messages = [queue.raw(queue.unit(at)) for at in range(queue.commit_offset)]
    build(tmp_path, messages, coda=coda)
    expected = wanted(tmp_path)
    if coda != "to":  # then the loop itself refuses some
        assert len(expected) == len(messages)
    assert len({item[2] for item in expected}) > 3
    for count in COUNTS:
        store_rows = rows(tmp_path, numPartitions=count)
        assert [(message["queue_offset"], message["body"]) for message in store_rows] == [
            (7 + number, decode(data).body) for number, data in enumerate(messages)]
        assert [item for item in plain(store_rows) if item in expected] == expected
        every = rows(tmp_path, numPartitions=count, orphans="include")
        assert plain(every) == plain(store_rows)
    whole = rows(tmp_path, splitSize="0")
    assert plain(whole) == plain(store_rows)


@pytest.mark.long
def test_orphans_and_duplicates(golden_copy: GoldenFolder):
    root = golden_copy(STORE)
    before = wanted(root)
    with Tier.open(str(root)) as tier:
        queue = max(tier.queues(), key=lambda unit: unit.commit_offset)
        again = [queue.raw(queue.unit(at)) for at in range(3)]
        segment, end = queue.commit_log.segments[-1], queue.commit_log.end
        path = os.path.join(tier.name, segment.path)
    with open(path, "ab") as file:
        for data in again:
            file.write(placed(data, end))
            end += len(data)
    for count in COUNTS:
        assert plain(rows(root, numPartitions=count)) == before
        every = plain(rows(root, numPartitions=count, orphans="include"))
        assert len(every) == len(before) + 3
        assert [item for item in every if item in before] == before


def test_what_lies_in_the_wrong_folder_is_left_out(golden: GoldenFolder, tmp_path):
    with Tier.open(str(golden(STORE))) as tier:
        queue = next(tier.queues())
        messages = [queue.raw(queue.unit(at)) for at in range(4)]
    build(tmp_path, messages)
    there = tmp_path / cluster_folder("C l") / "b-1"
    topic = next(there.iterdir())
    topic.rename(there / "another")
    for filters in ({}, {"topic": "another"}, {"topic": topic.name}):
        for orphans in ("exclude", "include"):
            assert rows(tmp_path, orphans=orphans, **filters) == []


@pytest.mark.long
@pytest.mark.parametrize("number", sample(range(6), 2, "damaged tiers"))
def test_damaged_copies(number: int, golden_copy: GoldenFolder, seed: int):
    """Bits flipped, ends torn, ranges overwritten: cut anyhow, it stays what the loop finds."""
    rng = random.Random(seed)
    root = golden_copy(STORE)
    files = sorted(path for kind in ("COMMIT_LOG", "CONSUME_QUEUE")
                   for path in (root / "tieredstore").rglob(f"{kind}/*") if path.stat().st_size)
    for path in files:
        data = bytearray(path.read_bytes())
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(data))
            if rng.randrange(4):
                data[at] ^= 1 << rng.randrange(8)
            else:
                data[at:at + 300] = rng.randbytes(min(300, len(data) - at))
        if not rng.randrange(4):
            data = data[:-rng.randrange(1, 15)]
        path.write_bytes(data)
    expected = wanted(root)
    assert 20 < len(expected) < 300
    every = walked(root)
    for count in COUNTS:
        assert plain(rows(root, numPartitions=count)) == expected
        assert [(message["file"], message["physical_offset"])
                for message in rows(root, numPartitions=count, orphans="include")
                ] == every_of_the_folder(root, every)


def every_of_the_folder(root: Path, places: list[tuple]) -> list[tuple]:
    """Without records that say another topic or queue than their folder's."""
    values = []
    for path, offset in places:
        *_, topic, queue_id, _, name = path.split("/")
        data = (root / "tieredstore" / path).read_bytes()
        text = decode(data, offset - int(name[8:]))
        if (text.topic.decode("utf-8", "replace"), text.queue_id) == (topic, int(queue_id)):
            values.append((path, offset))
    return values


def test_conditions(golden: GoldenFolder):
    root = golden(STORE)
    every = rows(root)
    topic = every[len(every) // 2]["topic"]
    times = sorted(message["store_timestamp"] for message in every)
    since, until = times[len(times) // 3], times[len(times) // 2]
    for options, holds in (
            ({"topic": topic}, lambda queue: queue["topic"] == topic),
            ({"topic": f"{topic},nothing", "queueId": "0,1"},
             lambda queue: queue["topic"] == topic and queue["queue_id"] in (0, 1)),
            ({"since": str(since), "until": str(until)},
             lambda message: since <= message["store_timestamp"] <= until)):
        assert rows(root, numPartitions="5", **options) == [row for row in every if holds(row)]
    parts = plan(options := ReadOptions.of({"path": str(root), "table": TABLE, "topic": topic}),
                 options.filters)
    assert {piece.queue.topic for part in parts for piece in part} == {topic}


def test_partitions_are_about_equal(golden: GoldenFolder):
    options = ReadOptions.of({"path": str(golden(STORE)), "table": TABLE, "numPartitions": "4"})
    parts = plan(options, options.filters)
    counts = [len(reading.read([part], TABLE, options.filters)) for part in parts]
    assert sum(counts) == 300
    assert all(40 < count < 110 for count in counts)


def test_a_tier_behind_a_url(rmqctl, golden: GoldenFolder):
    root, url = golden(STORE) / "tieredstore", f"memory://tiered-messages-{os.getpid()}/tier"
    with closing(open_writer(url)) as feeder:
        for path in sorted(file for file in root.rglob("*") if file.is_file()):
            name = path.relative_to(root).as_posix()
            feeder.create(name)
            if path.stat().st_size:
                feeder.append(name, [path.read_bytes()], 0)
            feeder.commit(name)
    local = rows(root)
    for more in ({}, {"orphans": "include"}):
        listed_rows = rows(url, numPartitions="7", **more)
        assert plain(listed_rows) == plain(local)
        assert {row["store"] for row in listed_rows} == {url}
    answer = rmqctl("pipeline", "sql", url, "SELECT count(*) FROM tiered_messages", "--dry-run",
                    "-o", "json").expect(0).json()
    assert [(item["view"], item["stores"]) for item in answer] == [("tiered_messages", 1)]
    rmqctl("pipeline", "sql", url, "SELECT count(*) FROM messages", "--dry-run").expect(3)


def test_usage(golden: GoldenFolder, tmp_path):
    path = str(golden(STORE))
    for given in ({"startPhy": "0"}, {"endPhy": "9"}, {"commitlogDirs": "a"}, {"orphans": "all"}):
        with pytest.raises(UsageError, match=next(iter(given))):
            ReadOptions.of({"path": path, "table": TABLE, **given})
    with pytest.raises(UsageError, match="orphans does not apply to the table messages"):
        ReadOptions.of({"path": path, "orphans": "include"})
    with pytest.raises(NotAStoreError, match="not a tier"):
        rows(tmp_path)
    assert rows(golden(STORE), topic="nothing") == []


@pytest.mark.parametrize("orphans", ["exclude", "include"])
@pytest.mark.parametrize("kind", ["COMMIT_LOG", "CONSUME_QUEUE"])
def test_what_becomes_shorter_after_planning_is_said(kind, orphans, golden_copy: GoldenFolder):
    root = golden_copy(STORE)
    options = ReadOptions.of({"path": str(root), "table": TABLE, "orphans": orphans})
    parts = plan(options, options.filters)
    path = max((root / "tieredstore").rglob(f"{kind}/*"), key=lambda file: file.stat().st_size)
    os.truncate(path, path.stat().st_size // 2)
    if (kind, orphans) == ("CONSUME_QUEUE", "include"):  # it only proves seams there
        assert len(reading.read(parts, TABLE, options.filters)) == 300
        return
    with pytest.raises(StoreIOError, match=r"shrank from|when the job was planned") as raised:
        reading.read(parts, TABLE, options.filters)
    assert path.parent.name in str(raised.value)


def test_what_is_appended_after_planning_is_not_read(golden_copy: GoldenFolder):
    root = golden_copy(STORE)
    before = rows(root)
    for more in ({}, {"orphans": "include"}):
        options = ReadOptions.of({"path": str(root), "table": TABLE, **more})
        parts = plan(options, options.filters)
        for kind in ("COMMIT_LOG", "CONSUME_QUEUE"):
            for path in (root / "tieredstore").rglob(f"{kind}/*"):
                with path.open("ab") as file:
                    file.write(path.read_bytes()[:2000])
        assert rows_of(reading.read(parts, TABLE, options.filters)) == before


def test_units_that_promise_too_much(golden: GoldenFolder, tmp_path):
    """Sizes up to 128 MiB and places anywhere: none is read for nothing, none fails."""
    with Tier.open(str(golden(STORE))) as tier:
        queue = next(tier.queues())
        messages = [queue.raw(queue.unit(at)) for at in range(4)]
    build(tmp_path, messages, first=0)
    path = next(tmp_path.rglob("CONSUME_QUEUE/*"))
    most = (1 << 63) - 1
    odd = [UnitRecord(place, size, 0) for place in (-1, 0, 5, len(messages[0]), most, -most - 1)
           for size in (0, 1, -1, 92, 5 << 20, 127 << 20, (1 << 31) - 1)]
    with path.open("ab") as file:
        for unit in odd:
            file.write(UNIT.build(unit))
    assert plain(rows(tmp_path)) == wanted(tmp_path)
    assert len(rows(tmp_path)) == 4


def test_what_a_query_would_read(rmqctl, golden: GoldenFolder):
    store, bare = golden(STORE), golden("5.3.3/basic/store")
    text = "SELECT count(*) FROM tiered_messages"
    for paths, count in (([store], 1), ([store / "tieredstore"], 1), ([bare, store], 1)):
        shown = rmqctl("pipeline", "sql", *map(str, paths), text, "--dry-run", "-o", "json")
        views = shown.expect(0).json()
        assert [(view["view"], view["stores"]) for view in views] == [("tiered_messages", count)]
        assert views[0]["bytes"] == sum(path.stat().st_size for path in store.rglob("COMMIT_LOG/*"))
    result = rmqctl("pipeline", "sql", str(bare), text, "--dry-run").expect(3)
    assert "not a tier" in result.err
    rmqctl("pipeline", "sql", str(store / "tieredstore"), "SELECT * FROM messages", "--dry-run"
           ).expect(3)


# -- in a Spark session ---------------------------------------------------------------------------

def test_in_a_session(spark, golden: GoldenFolder, tmp_path):
    root = golden(STORE)
    expected = wanted(root)
    for count in COUNTS:
        frame = spark.read.format("rocketmq").options(table=TABLE, numPartitions=count).load(
            str(root))
        assert frame.rdd.getNumPartitions() == int(count)
        rows = [row | {"body": bytes(row["body"])} for row in rows_of(
            frame.toArrow(), maps_as_pydicts="strict")]
        assert plain(rows) == expected
    build(tmp_path, messages_of(root)[:60], coda="behind")
    every = spark.read.format("rocketmq").options(table=TABLE, orphans="include").schema(
        "broker string, queue_offset long, record binary").load(str(tmp_path))
    assert [bytes(row[2]) for row in every.collect()] == [
        queue.raw(queue.unit(at)) for tier in [Tier.open(str(tmp_path))] for queue in tier.queues()
        for at in range(queue.cq_start, queue.commit_offset)]
    assert every.count() == 60


@pytest.mark.exhaustive
@pytest.mark.parametrize("pushing", ["true", "false"])
def test_answers_do_not_depend_on_push_down(pushing, spark, golden: GoldenFolder):
    root = golden(STORE)
    every = rows(root)
    topic, time = every[10]["topic"], every[40]["store_timestamp"]
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, pushing)
    try:
        frame = spark.read.format("rocketmq").option("table", TABLE).load(str(root))
        for where, holds in (
                (f"topic = '{topic}' and queue_id in (0, 1)",
                 lambda queue: queue["topic"] == topic and queue["queue_id"] in (0, 1)),
                (f"unix_millis(store_timestamp) >= {time} and cluster = 'DefaultCluster'",
                 lambda message: message["store_timestamp"] >= time),
                ("physical_offset < 1000 and broker like 'broker%'",
                 lambda message: message["physical_offset"] < 1000),
                ("queue_offset = 3", lambda message: message["queue_offset"] == 3)):
            filtered = frame.where(where).select("file", "physical_offset").collect()
            assert [tuple(row) for row in filtered] == [
                (message["file"], message["physical_offset"]) for message in every
                if holds(message)], where
    finally:
        spark.conf.set(name, before)


@pytest.mark.exhaustive
def test_a_view_of_sql(spark, golden: GoldenFolder):
    from rmqctl.ext.spark import sql

    store, bare = str(golden(STORE)), str(golden("5.3.3/basic/store"))
    tier = os.path.join(store, "tieredstore")
    text = ("SELECT cluster, broker, count(*) AS n FROM tiered_messages "
            "GROUP BY cluster, broker")
    for paths in ([store], [tier], [bare, store]):
        assert list(sql.rows(sql.query(spark, paths, text))) == [
            {"cluster": "DefaultCluster", "broker": "broker-a", "n": 300}]
    with pytest.raises(NotAStoreError, match="not a tier"):
        list(sql.rows(sql.query(spark, [bare], text)))
    joined = ("SELECT count(*) AS n FROM messages m JOIN tiered_messages t "
              "USING (topic, queue_id, queue_offset) WHERE m.body = t.body")
    assert list(sql.rows(sql.query(spark, [store], joined))) == [{"n": 300}]
