"""A frame, view or relation that is used more than once: every answer is of all its rows.

Spark keeps the filters that a Python data source has taken with the relation, and hands them to
later scans of it, too. rmqctl's source takes none: these tests switch the setting on and ask.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
BASIC = "5.3.3/basic/store"


@pytest.fixture(params=["true", "false"], ids=["push-down", "no push-down"])
def pushing(request, spark):
    before = spark.conf.get(PUSHDOWN, "false")
    spark.conf.set(PUSHDOWN, request.param)
    yield
    spark.conf.set(PUSHDOWN, before)


@pytest.fixture
def frame(spark, pushing, golden: GoldenFolder):
    return spark.read.format("rocketmq").load(str(golden(BASIC)))


@pytest.fixture
def counts(rmqctl, golden: GoldenFolder) -> dict[str, int]:
    """Messages by topic, as the command says."""
    rows = rmqctl("read", golden(BASIC), "-o", "jsonl").jsonl()
    return dict(Counter(row["topic"] for row in rows))


def test_a_frame_with_other_conditions(frame, counts):
    topic = next(iter(counts))
    assert frame.where(f"topic = '{topic}'").count() == counts[topic]
    assert frame.count() == sum(counts.values())
    for name, count in counts.items():
        assert frame.where(frame.topic == name).count() == count
    assert frame.where("queue_id < 0").count() == 0
    assert frame.groupBy("topic").count().count() == len(counts)


def test_unions_joins_and_cached_frames(frame, counts):
    first, second = list(counts)[:2]
    filtered, other = frame.where(f"topic = '{first}'"), frame.where(f"topic = '{second}'")
    assert filtered.unionAll(other).count() == counts[first] + counts[second]
    assert filtered.unionAll(frame).count() == counts[first] + sum(counts.values())
    rest = frame.join(filtered, "physical_offset", "left_anti")
    assert rest.count() == sum(counts.values()) - counts[first]
    assert frame.alias("a").join(other.alias("b"), "physical_offset").count() == counts[second]
    cached = filtered.cache()
    try:
        assert cached.count() == counts[first]
        assert frame.count() == sum(counts.values())
        assert other.count() == counts[second]
    finally:
        cached.unpersist()


def test_a_temporary_view_in_one_query(spark, frame, counts):
    first, second = list(counts)[:2]
    total = sum(counts.values())
    frame.createOrReplaceTempView("log")
    try:
        row = spark.sql(f"select (select count(*) from log where topic = '{first}'), (select "
                        "count(*) from log), (select count(*) from log where topic = "
                        f"'{second}')").first()
        assert tuple(row) == (counts[first], total, counts[second])
        row = spark.sql(f"with x as (select * from log where topic = '{first}') select (select "
                        "count(*) from x), (select count(*) from log)").first()
        assert tuple(row) == (counts[first], total)
    finally:
        spark.catalog.dropTempView("log")


QUERIES = {
    "select (select count(*) from messages where topic = '{0}') a, (select count(*) from messages) "
    "b, (select count(*) from messages where topic = '{1}') c": ("first", "all", "second"),
    "select count(*) from messages where topic = '{0}' union all select count(*) from messages":
        ("first", "all"),
    "with x as (select * from messages where topic = '{0}'), y as (select * from messages) "
    "select (select count(*) from x), (select count(*) from y)": ("first", "all"),
    "select count(*) from messages a left anti join messages b on a.physical_offset = "
    "b.physical_offset and b.topic = '{0}'": ("rest",),
    "select count(*) from messages where topic = '{0}' and physical_offset in (select "
    "physical_offset from messages where topic in ('{0}', '{1}'))": ("first",),
    "select count(*) from messages where topic in ('{0}', '{1}') and store_timestamp > '1970'":
        ("both",),
}


@pytest.mark.parametrize("text", QUERIES)
def test_a_query_of_pipeline_sql(text, spark, pushing, counts, golden: GoldenFolder):
    from rmqctl.ext.spark import sql

    first, second = list(counts)[:2]
    values = {"first": counts[first], "second": counts[second], "all": sum(counts.values())}
    values |= {"rest": values["all"] - values["first"],
               "both": values["first"] + values["second"]}
    frame = sql.query(spark, [str(golden(BASIC))], text.format(first, second))
    result = [value for row in frame.collect() for value in row]
    assert sorted(result) == sorted(values[name] for name in QUERIES[text])


def test_what_a_query_answers_may_be_asked_further(spark, pushing, counts, golden: GoldenFolder):
    from rmqctl.ext.spark import sql

    first = next(iter(counts))
    frame = sql.query(spark, [str(golden(BASIC))], "select topic, queue_id from messages")
    assert frame.where(f"topic = '{first}'").count() == counts[first]
    assert frame.count() == sum(counts.values())


@pytest.mark.parametrize(("where", "options"), [
    ("topic = 'A'", {"topic": "A"}),
    ("topic in ('A', 'B') and queue_id = 3", {"topic": "A,B", "queueId": "3"}),
    ("topic = 'A,B'", {}),
    ("topic = ' A'", {}),
    ("topic <> 'A'", {}),
    ("topic = 'A' or queue_id = 1", {}),
    ("physical_offset >= 100 and physical_offset < 200", {"startPhy": "100", "endPhy": "200"}),
    ("100 < physical_offset", {"startPhy": "101"}),
    ("physical_offset = 7", {"startPhy": "7", "endPhy": "8"}),
    ("physical_offset > -5", {}),
    ("unix_millis(store_timestamp) >= 1500", {"since": "1970-01-01T00:00:01.500000+00:00"}),
    ("store_timestamp < '1970-01-01T00:00:02Z'", {"until": "1970-01-01T00:00:01.999000+00:00"}),
    ("store_timestamp > '1970-01-01 00:00:02.0001Z'", {
        "since": "1970-01-01T00:00:02.001000+00:00"}),
    ("store_timestamp = timestamp '1970-01-02'", {"since": "1970-01-02T00:00:00+00:00",
                                                  "until": "1970-01-02T00:00:00+00:00"}),
    ("unix_millis(store_timestamp) > 9223372036854775806", {}),
    ("queue_id = null", None),
])
def test_conditions_that_become_load_options(where, options, spark, golden: GoldenFolder):
    from rmqctl.ext.spark.plan_needs import Scans, needs

    frame = spark.read.format("rocketmq").option("table", "messages").load(str(golden(BASIC)))
    scans = needs(frame.where(where)._jdf.queryExecution().optimizedPlan())
    if options is None:
        assert scans == {}, "the optimiser knows that nothing fulfils it"
    else:
        listed_options = scans["messages"].options("messages", {})
        assert {name: sorted(text.split(",")) for name, text in listed_options.items()} == {
            name: sorted(text.split(",")) for name, text in options.items()}
        assert Scans(set(), scans["messages"].conditions * 2).options("messages", {}) == {}


@pytest.mark.exhaustive
def test_spark_keeps_filters_of_other_sources():
    """The reason for all this; with a Spark that answers 10 the source could take filters again."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, str(root / "examples/pipeline/filters_kept.py")],
                          capture_output=True, text=True, timeout=300)
    assert ": 3, 3; right: 3, 10" in done.stdout, done.stderr
