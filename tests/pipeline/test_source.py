"""The data source in a real Spark session, against the local readers."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tarfile
from datetime import datetime
from pathlib import Path

import pytest

from rmqctl.sql import schema
from tests.conftest import GoldenFolder
from tests.pipeline import reading
from tests.support import damage, snapshot
from tests.support.share import sample

TABLES = ("messages", "frames", "consumequeue", "index")
STORES = ["4.9.3/basic/store", "5.3.3/transaction/store", "5.3.3/batchcq/store",
          "5.3.3/crash-trunc-garbage/before"]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def load(spark):
    """``load(path, table=..., ...)``: the DataFrame; `reading.rows` knows the same options."""

    def loaded(path, schema=None, **options):
        source = spark.read.format("rocketmq").options(**options)
        if schema is not None:
            source = source.schema(schema)
        return source.load(path if isinstance(path, list) else str(path))

    return loaded


@pytest.fixture(params=sample(["true", "false"], 0, "push-down", always=["true"]),
                ids={"true": "push-down", "false": "no push-down"}.get)
def pushdown(request, spark):
    before = spark.conf.get(PUSHDOWN, "false")
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param == "true"
    spark.conf.set(PUSHDOWN, before)


def plain(frame) -> list[dict]:
    """The rows of a DataFrame as those of `reading`: maps as pairs, bytes as bytes."""
    plain_rows = []
    for row in frame.collect():
        values = row.asDict()
        if values.get("properties") is not None:
            values["properties"] = sorted(values["properties"].items())
        if values.get("body") is not None:
            values["body"] = bytes(values["body"])
        plain_rows.append({name: round(value.timestamp() * 1000) if isinstance(value, datetime)
                           else value for name, value in values.items()})
    return plain_rows


def expected(rows: list[dict]) -> list[dict]:
    for values in rows:
        if values.get("properties") is not None:
            values["properties"] = sorted(values["properties"])
    return rows


def shattered(root: Path, seed: int) -> None:
    rng = random.Random(seed)
    for file in sorted((root / "commitlog").iterdir()):
        name, size = f"commitlog/{file.name}", file.stat().st_size
        for number in range(4):
            at = rng.randrange(size - 4000)
            if number % 2:
                damage.flip_bit(root, name, at, rng.randrange(8))
            else:
                damage.garbage_tail(root, name, at, seed + number, rng.randrange(1, 4000))


@pytest.mark.parametrize("name", sample(STORES, 1, "tables on Spark"))
def test_all_tables_are_the_local_readers(name: str, load, golden: GoldenFolder) -> None:
    """`test_planning` has more stores and numbers of partitions, without Spark."""
    root = golden(name)
    for table in TABLES:
        wanted = expected(reading.local(root, table))
        for count in (1, 2, 7, 64) if (name, table) == (STORES[0], "messages") else (7,):
            spark_rows = plain(load(root, table=table, numPartitions=str(count),
                                    failOnDataLoss="false"))
            assert spark_rows == wanted, (table, count)  # partitions are in the order of the files


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["5.3.3/basic/store", "5.3.3/crash-base/store"])
@pytest.mark.parametrize("fixed", [None, 2906493778])
def test_damaged_copies(name: str, fixed: int | None, load, golden_copy: GoldenFolder,
                        seed: int) -> None:
    root = golden_copy(name)
    shattered(root, fixed or seed)
    for table in ("messages", "frames"):
        wanted = expected(reading.local(root, table))
        assert len(wanted) > 50
        for count in (1, 64) if table == "frames" else (7,):
            assert plain(load(root, table=table, numPartitions=str(count),
                              failOnDataLoss="false")) == wanted
    frames = load(root, table="frames", numPartitions="7")
    kinds = {row[0]: row[1] for row in frames.groupBy("kind").count().collect()}
    assert kinds["damaged"] > 0
    size = sum(file.stat().st_size for file in (root / "commitlog").iterdir())
    assert frames.selectExpr("sum(length)").collect()[0][0] == size


def test_projection(load, golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic/store")
    every = reading.local(root, "messages")
    frame = load(root, schema="keys array<string>, Topic string, properties map<string,string>, "
                              "store string, record binary, queue_id int", numPartitions="3")
    assert frame.columns == ["keys", "Topic", "properties", "store", "record", "queue_id"]
    rows = frame.collect()
    assert [(row[0], row[1], row[3], row[5]) for row in rows] == [
        (message["keys"], message["topic"], message["store"], message["queue_id"])
        for message in every]
    assert [row[2] for row in rows] == [dict(message["properties"]) for message in every]
    log = b"".join(file.read_bytes() for file in sorted((root / "commitlog").iterdir()))
    for row, message in zip(rows, every, strict=True):
        at = message["physical_offset"]
        assert bytes(row[4]) == log[at:at + message["total_size"]]


def test_no_column_at_all(load, golden: GoldenFolder) -> None:
    from pyspark.sql.types import StructType

    from rmqctl.ext.spark.versions import COUNTS_WITHOUT_COLUMNS, installed

    root = golden("5.3.3/basic/store")
    if installed() < COUNTS_WITHOUT_COLUMNS:
        with pytest.raises(Exception, match="select at least one"):
            load(root, schema=StructType([])).count()
        return
    for table in TABLES:
        frame = load(root, schema=StructType([]), table=table, numPartitions="3")
        assert frame.count() == len(reading.local(root, table))
    row = reading.local(root, "consumequeue")[0]
    frame = load(root, schema=StructType([]), table="consumequeue", topic=row["topic"])
    assert frame.count() == len(reading.rows(root, "consumequeue", topic=row["topic"]))


def test_body_none(load, golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic/store")
    frame = load(root, body="none")
    assert frame.columns == [name for name in schema.TABLES["messages"]
                             if name not in ("body", "record")]
    assert frame.count() == len(reading.local(root, "messages"))


TABLES_AND_WAYS = [(table, way) for table in TABLES for way in ("gone", "shorter")]
CONDITIONS = [
    "topic = '{topic}'",
    "topic in ('{topic}', 'none', null) and queue_id in (0, 2)",
    "topic = '{topic}' and queue_id = 1 and store_timestamp > timestamp_millis({time})",
    "unix_millis(store_timestamp) between {time} and {later}",
    "store_timestamp <= timestamp_millis({time}) or queue_id = 1",
    "physical_offset >= {offset} and physical_offset < {offset} + 30000",
    "physical_offset = {offset}",
    "physical_offset > 9223372036854775806",
    "topic <> '{topic}' and not queue_id = 0",
    "topic <=> '{topic}' and topic like '%a%'",
    "topic = 'caf\ufffd'",
    "topic is null",
]


@pytest.mark.parametrize("table", sample(["messages", "frames"], 1, "conditions on Spark"))
def test_conditions(table: str, pushdown: bool, load, golden: GoldenFolder, spark) -> None:
    root = golden("5.3.3/basic/store")
    every = load(root, table=table).toArrow()
    middle = reading.local(root, "messages")[200]
    words = {"topic": middle["topic"], "time": middle["store_timestamp"],
             "later": middle["store_timestamp"] + 20_000, "offset": middle["physical_offset"]}
    local = spark.createDataFrame(every)
    for condition in CONDITIONS:
        where = condition.format(**words)
        frame = load(root, table=table, numPartitions="5").where(where)
        columns = ["physical_offset", "topic"]
        wanted = local.where(where).select(columns).collect()
        assert frame.select(columns).collect() == wanted, where


def test_conditions_on_rows(pushdown: bool, load, golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic/store")
    queues, index = reading.local(root, "consumequeue"), reading.local(root, "index")
    topic, at = queues[100]["topic"], queues[100]["physical_offset"]
    frame = load(root, table="consumequeue").where(
        f"topic = '{topic}' and queue_id = 0 and physical_offset >= {at}")
    assert plain(frame) == [queue for queue in queues if queue["topic"] == topic
                            and queue["queue_id"] == 0 and queue["physical_offset"] >= at]
    time = index[300]["store_timestamp"]
    frame = load(root, table="index").where(
        f"store_timestamp < timestamp_millis({time}) and physical_offset > 5000 and number % 2 = 0")
    assert plain(frame) == [index_file for index_file in index
                            if index_file["store_timestamp"] < time
                            and index_file["physical_offset"] > 5000
                            and index_file["number"] % 2 == 0]


def test_options_and_conditions_together(pushdown: bool, load, golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic/store")
    every = reading.local(root, "messages")
    first, second = sorted({row["topic"] for row in every})[:2]
    frame = load(root, topic=f"{first},{second}", endPhy="200000")
    assert frame.count() == sum(row["topic"] in (first, second) and
                                row["physical_offset"] < 200_000 for row in every)
    assert frame.where(f"topic = '{second}'").count() == sum(
        row["topic"] == second and row["physical_offset"] < 200_000 for row in every)
    assert frame.where("topic = 'another'").count() == 0


@pytest.mark.exhaustive
def test_several_stores(load, golden: GoldenFolder) -> None:
    roots = [golden("4.9.3/basic/store"), golden("5.3.3/basic/store")]
    wanted = {str(root): len(reading.local(root, "messages")) for root in roots}
    for path in ([str(root) for root in roots], f"{roots[0].parents[2]}/*/basic/store"):
        frame = load(path, numPartitions="3").groupBy("store").count().collect()
        assert {row[0]: row[1] for row in frame} == wanted


def test_a_multi_path_log(load, golden: GoldenFolder) -> None:
    root = golden("5.3.3/multipath/store")
    frame = load(root, commitlogDirs="cl1,cl2", numPartitions="3")
    assert plain(frame) == expected(reading.local(root, "messages", ("cl1", "cl2")))
    assert {row[0].split("/")[0] for row in frame.select("file").collect()} == {"cl1", "cl2"}


def test_sql(spark, golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic/store")
    spark.sql(f"create or replace temporary view frames using rocketmq options "
              f"(table 'frames', path '{root}')")
    assert spark.sql("select count(*) from frames where kind = 'message'").collect()[0][0] == len(
        reading.local(root, "messages"))
    spark.catalog.dropTempView("frames")


# -- what cannot be read --------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "schema", "words"), [
    ({"path": "/nowhere/at/all"}, None, "/nowhere/at/all: no such file or directory"),
    ({"path": "/"}, None, "/: not a store"),
    ({"table": "topics"}, None, "table=topics: unknown; valid: messages"),
    ({"topik": "x"}, None, "unknown option topik"),
    ({}, "topic int, colour string", r"topic \(int, is string\), colour \(does not exist\)"),
    ({"body": "none"}, "body binary", r"body \(does not exist\)"),
])
def test_refusals_are_sentences(options, schema, words, spark, golden: GoldenFolder) -> None:
    given = {"path": str(golden("5.3.3/basic/store"))} | options
    source = spark.read.format("rocketmq").options(**given)
    with pytest.raises(Exception, match=words):
        (source if schema is None else source.schema(schema)).load().collect()


@pytest.mark.parametrize(("table", "how"), sample(TABLES_AND_WAYS, 1, "a file that changes"))
def test_a_file_that_changes_ends_the_job(table: str, how: str, load,
                                          golden_copy: GoldenFolder) -> None:
    """Planned, then gone: Spark keeps the plan of a DataFrame once it has made it."""
    root = golden_copy("5.3.3/basic/store")
    frame = load(root, table=table, numPartitions="2")
    frame._jdf.queryExecution().toRdd().getNumPartitions()
    top = {"messages": "commitlog", "frames": "commitlog"}.get(table, table)
    file = max((path for path in (root / top).rglob("*") if path.is_file()), key=str)
    if how == "gone":
        file.unlink()
    else:
        os.truncate(file, 100)
    with pytest.raises(Exception, match=f"{file}.*"):
        frame.collect()


# -- found by name --------------------------------------------------------------------------------


FOUND = """
import sys
import tarfile
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").getOrCreate())
assert not any(name.startswith("rmqctl") for name in sys.modules)
frame = spark.read.format("rocketmq").option("table", "consumequeue").load(sys.argv[1])
print("rows", frame.count())
import rmqctl.pipeline
rmqctl.pipeline.register(spark)
print("rows", spark.read.format("rocketmq").load(sys.argv[1]).count())
spark.stop()
"""


@pytest.mark.exhaustive
@pytest.mark.xdist_group("spark-cluster")
def test_found_by_name_where_it_is_installed(golden: GoldenFolder, tmp_path: Path) -> None:
    """No import, no registration: only the package in the path, in a session of one's own.

    Spark does not look for data sources where the path of Python contains a space.
    """
    root = golden("5.3.3/basic/store")
    top = str(Path(schema.__file__).parents[3])
    (tmp_path / "venv").symlink_to(sys.prefix)
    python = str(tmp_path / "venv" / "bin" / Path(sys.executable).name)
    done = subprocess.run([sys.executable, "-c", FOUND, str(root)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": top, "PYSPARK_PYTHON": python},
                          timeout=180, cwd="/")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:2] == [f"rows {len(reading.local(root, table))}"
                                           for table in ("consumequeue", "messages")]


@pytest.mark.exhaustive
def test_the_stores_stay_as_they_were(load, golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic/store")
    with snapshot.assert_unchanged(root):
        for table in TABLES:
            load(root, table=table, numPartitions="3").count()


def test_a_store_in_an_archive(load, golden: GoldenFolder, tmp_path: Path) -> None:
    root = golden("4.9.3/basic/store")
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as packed:
        packed.add(root, "store")
    for table in TABLES:
        ours, theirs = (sorted(load(path, table=table).drop("store", "file").collect())
                        for path in (tmp_path / "x.tar.gz", root))
        assert ours == theirs
