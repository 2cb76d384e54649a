"""The same queries over many stores, five ways: `rmqctl sql`, DuckDB over exported Parquet, pandas
over the exact reader's records, `pipeline sql`, and one Spark frame used for all of them.
"""

from __future__ import annotations

import duckdb
import pytest

from rmqctl.output.units import time_text
from rmqctl.sql.session import QuerySession
from tests.pipeline import exporting
from tests.support import golden as golden_sets
from tests.support.share import sample

pd = pytest.importorskip("pandas")

ALL = [golden_store for golden_store in golden_sets.clean_stores() if not golden_store.options]
STORES = sample(ALL, 6, "stores of the queries")
WORDS = ("t", "u", "low", "high", "middle")
"""What stands in braces in a query: two topics, two physical offsets, a store time."""


def _numbers(rows):
    return [tuple(row) for row in rows.itertuples(index=False)]


def _counts(frame, *names):
    return [(*(key if isinstance(key, tuple) else (key,)), count)
            for key, count in frame.groupby(list(names), dropna=False).size().items()]


def _queues(m):
    return m.groupby(["store", "topic", "queue_id"])


QUERIES = {
    "select count(*) from messages": lambda m, v: [(len(m),)],
    "select count(*), count(tags), count(unique_key) from messages": lambda m, v: [
        (len(m), m.tags.notna().sum(), m.unique_key.notna().sum())],
    "select topic, count(*) from messages group by topic": lambda m, v: _counts(m, "topic"),
    "select store, count(*) from messages group by store": lambda m, v: _counts(m, "store"),
    "select topic, queue_id, count(*) from messages group by topic, queue_id":
        lambda m, v: _counts(m, "topic", "queue_id"),
    "select topic, sum(total_size), min(queue_offset), max(queue_offset) from messages group by "
    "topic": lambda m, v: _numbers(m.groupby("topic").agg(
        s=("total_size", "sum"), a=("queue_offset", "min"), b=("queue_offset", "max"))
        .reset_index()),
    "select min(physical_offset), max(physical_offset) from messages": lambda m, v: [
        (m.physical_offset.min(), m.physical_offset.max())],
    "select count(*) from messages where queue_id = 0": lambda m, v: [((m.queue_id == 0).sum(),)],
    "select count(*) from messages where topic = '{t}'": lambda m, v: [
        ((m.topic == v["t"]).sum(),)],
    "select count(*) from messages where topic <> '{t}'": lambda m, v: [
        ((m.topic != v["t"]).sum(),)],
    "select count(*), sum(queue_offset) from messages where topic in ('{t}', '{u}') and queue_id "
    "<= 1": lambda m, v: _numbers(
        m[m.topic.isin([v["t"], v["u"]]) & (m.queue_id <= 1)].agg(
            {"topic": "count", "queue_offset": "sum"}).to_frame().T),
    "select count(distinct topic), count(distinct queue_id), count(distinct store) from messages":
        lambda m, v: [(m.topic.nunique(), m.queue_id.nunique(), m.store.nunique())],
    "select tags, count(*) from messages group by tags": lambda m, v: _counts(m, "tags"),
    "select tags, count(distinct store_timestamp) from messages where tags is not null group by "
    "tags": lambda m, v: _numbers(m.groupby("tags").store_timestamp.nunique().reset_index()),
    "select topic, count(*) from messages group by topic having count(*) > 40":
        lambda m, v: [row for row in _counts(m, "topic") if row[1] > 40],
    "select count(*) from messages where physical_offset between {low} and {high}":
        lambda m, v: [(m.physical_offset.between(v["low"], v["high"]).sum(),)],
    "select count(*) from messages where physical_offset >= {low} and physical_offset < {high} and "
    "topic = '{t}'": lambda m, v: [(((m.physical_offset >= v["low"]) & (
        m.physical_offset < v["high"]) & (m.topic == v["t"])).sum(),)],
    "select count(*) from messages where store_timestamp >= '{middle}'": lambda m, v: [
        ((m.store_timestamp >= v["at"]).sum(),)],
    "select count(*) from messages where store_timestamp < '{middle}' or queue_id = 1":
        lambda m, v: [(((m.store_timestamp < v["at"]) | (m.queue_id == 1)).sum(),)],
    "select store, physical_offset, topic from messages order by store, physical_offset limit 5":
        lambda m, v: _numbers(m.sort_values(["store", "physical_offset"])[
            ["store", "physical_offset", "topic"]].head(5)),
    "select total_size, store, physical_offset from messages order by total_size desc, store, "
    "physical_offset limit 7": lambda m, v: _numbers(m.sort_values(
        ["total_size", "store", "physical_offset"], ascending=[False, True, True])[
        ["total_size", "store", "physical_offset"]].head(7)),
    "select sum(case when crc_ok then 1 else 0 end) from messages": lambda m, v: [
        (m.crc_ok.sum(),)],
    "select distinct born_host from messages": lambda m, v: [
        (host,) for host in m.born_host.unique()],
    "select sys_flag & 3, count(*) from messages group by sys_flag & 3": lambda m, v: _counts(
        m.assign(kind=m.sys_flag & 3), "kind"),
    "select count(*) from messages a join messages b on a.store = b.store and a.topic = b.topic "
    "and a.queue_id = b.queue_id and b.queue_offset = a.queue_offset + 1": lambda m, v: [
        (len(m.assign(queue_offset=m.queue_offset + 1).merge(
            m, on=["store", "topic", "queue_id", "queue_offset"])),)],
    "select count(*) from messages where topic = '{t}' union all select count(*) from messages":
        lambda m, v: [((m.topic == v["t"]).sum(),), (len(m),)],
    "with x as (select * from messages where topic = '{t}') select (select count(*) from x), "
    "(select count(*) from messages)": lambda m, v: [((m.topic == v["t"]).sum(), len(m))],
    "select (select count(*) from messages where topic = '{t}') a, (select count(*) from messages) "
    "b, (select count(*) from messages where queue_id = 3) c": lambda m, v: [
        ((m.topic == v["t"]).sum(), len(m), (m.queue_id == 3).sum())],
    "select topic, queue_id, queue_offset from messages m where not exists (select 1 from messages "
    "n where n.store = m.store and n.topic = m.topic and n.queue_id = m.queue_id and "
    "n.queue_offset > m.queue_offset)": lambda m, v: _numbers(
        m[m.queue_offset == _queues(m).queue_offset.transform("max")][
            ["topic", "queue_id", "queue_offset"]]),
    "select count(*) from (select row_number() over (partition by store, topic, queue_id order by "
    "queue_offset) as r from messages) q where r = 1": lambda m, v: [(_queues(m).ngroups,)],
    "select topic, avg(total_size) from messages group by topic": lambda m, v: _numbers(
        m.groupby("topic").total_size.mean().reset_index()),
    "select topic from messages where queue_id = 0 union select topic from messages where queue_id "
    "= 1": lambda m, v: [(name,) for name in m[m.queue_id.isin([0, 1])].topic.unique()],
    "select sum(octet_length(body)), max(length(topic)) from messages": lambda m, v: [
        (m.body.map(len).sum(), m.topic.map(len).max())],
}


@pytest.fixture(scope="module")
def roots(golden):
    return [golden(store.id) for store in STORES]


@pytest.fixture(scope="module")
def truth(roots):
    """(messages, values of the words)."""
    frame = pd.DataFrame([{"store": str(root), **row} for root in roots
                          for row in exporting.expected(root)])
    frame = frame.astype({"tags": object, "unique_key": object})
    first, second = frame.topic.value_counts().index[:2]
    middle = int(frame.store_timestamp.quantile(0.5))
    return frame, {"t": first, "u": second, "low": int(frame.physical_offset.quantile(0.3)),
                   "high": int(frame.physical_offset.quantile(0.8)), "at": middle,
                   "middle": time_text(middle)}


def plain(rows):
    """Rows of values that compare, in one order."""
    plain_rows = []
    for row in rows:
        values = [None if value is None or value != value else  # noqa: PLR0124  # NaN
                  value if isinstance(value, str) else round(float(value), 6) for value in row]
        plain_rows.append(values)
    return sorted(plain_rows, key=repr)


def answers(truth):
    """(query, what pandas answers)."""
    frame, values = truth
    for text, of in QUERIES.items():
        yield text.format(**values), plain(of(frame, values))


def test_there_are_thirty():
    assert len(QUERIES) >= 30


@pytest.mark.long
def test_rmqctl_sql(roots, truth):
    with QuerySession(list(map(str, roots))) as session:
        for text, wanted in answers(truth):
            answer = session.ask(text)
            values = [row.values() for row in answer.rows]
            assert plain(values) == wanted, text
        assert session.damaged == 0


@pytest.mark.long
def test_duckdb_over_exported_parquet(roots, truth, tmp_path):
    exporting.run(roots, tmp_path / "out", partition_by=["topic"], count=3)
    with duckdb.connect() as base:
        base.execute(f"create view messages as select * from read_parquet('{tmp_path}/out/**/*.parq"
                     "uet', hive_partitioning = true, hive_types = {'topic': varchar})")
        for text, wanted in answers(truth):
            assert plain(base.execute(text).fetchall()) == wanted, text


@pytest.fixture(scope="module")
def one_frame(roots, spark):
    """A view of a frame that all queries use."""
    frame = spark.read.format("rocketmq").load(list(map(str, roots)))
    frame.createOrReplaceTempView("whole_log")
    yield
    spark.catalog.dropTempView("whole_log")


EACH_QUERY = pytest.mark.parametrize("text", [pytest.param(text, id=f"query {number}")
                                        for number, text in enumerate(QUERIES, 1)])


@EACH_QUERY
def test_spark(text, roots, truth, spark, one_frame):
    """`pipeline sql`, which makes views of its own for each query, and one frame for all."""
    from rmqctl.ext.spark import sql

    frame, values = truth
    query, wanted = text.format(**values), plain(QUERIES[text](frame, values))
    assert plain(sql.query(spark, list(map(str, roots)), query).collect()) == wanted
    again = query.replace("from messages", "from whole_log").replace("join messages",
                                                                     "join whole_log")
    assert plain(spark.sql(again).collect()) == wanted
