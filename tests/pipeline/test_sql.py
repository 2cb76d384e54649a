"""pipeline sql: the answers are those of the whole tables, and only what is needed is read."""

from __future__ import annotations

import base64
import csv
import datetime
import json
import os
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.formats.local.message import decode
from rmqctl.output.units import time_text
from rmqctl.scan.walk import Walk
from rmqctl.store import Store
from rmqctl.store.log.end import find_end
from rmqctl.store.objects import TIMES, message_object
from tests.conftest import GoldenFolder, Runner
from tests.support import damage
from tests.support.share import sample

VIEWS = ("messages", "frames", "consumequeue", "index")


@pytest.fixture(scope="module")
def root(golden: GoldenFolder) -> str:
    return str(golden("5.3.3/basic/store"))


@pytest.fixture(scope="module")
def stored(root):
    """All message objects of the store, by the local reader."""
    with Store.open(root) as store:
        return [message_object(decode(batch.bytes_at(row)), body="base64")
                for number in range(len(store.log.files))
                for batch in Walk(store.log.source(number)) for row in range(len(batch))]


@pytest.fixture(scope="module")
def whole(spark, root):
    """Views of all columns under other names, read once and kept: what answers are held against."""
    from rmqctl.ext.spark import register

    register(spark)
    for name in VIEWS:
        frame = spark.read.format("rocketmq").option("table", name).load(root)
        spark.createDataFrame(frame.collect(), frame.schema).createOrReplaceTempView(f"all_{name}")
    return lambda text: spark.sql(
        text.replace("messages", "all_messages").replace("frames", "all_frames")
        .replace("consumequeue", "all_consumequeue").replace("index", "all_index"))


def asked(spark, root, text, **options):
    from rmqctl.ext.spark import sql

    return sql.query(spark, [root], text, options={"numPartitions": "3", **options})


def read(frame):
    """The columns that the scans of a query read, in order of the scans."""
    values = []
    leaves = frame._jdf.queryExecution().optimizedPlan().collectLeaves().iterator()
    while leaves.hasNext():
        leaf = leaves.next()
        output = leaf.output().iterator()
        names = set()
        while output.hasNext():
            names.add(output.next().name())
        values.append(names)
    return values


QUERIES = {
    "SELECT count(*) AS n FROM messages": [{"physical_offset"}],
    "SELECT topic, count(*) AS n, sum(total_size) AS b FROM messages GROUP BY topic":
        [{"topic", "total_size"}],
    "SELECT physical_offset FROM messages WHERE topic = 'TP_fraud_Topic' AND queue_id IN (0, 1)":
        [{"physical_offset", "topic", "queue_id"}],
    "SELECT tags, properties['UNIQ_KEY'] AS u FROM messages WHERE size(keys) > 1":
        [{"tags", "properties", "keys"}],
    "SELECT m.topic, c.queue_offset FROM messages m JOIN consumequeue c "
    "ON m.physical_offset = c.physical_offset WHERE m.queue_offset <> c.queue_offset "
    "OR m.topic <> c.topic OR m.total_size <> c.size":
        [{"topic", "queue_offset", "physical_offset", "total_size"},
         {"topic", "queue_offset", "physical_offset", "size"}],
    "SELECT k, count(*) AS n FROM (SELECT explode(keys) AS k FROM messages) GROUP BY k":
        [{"keys"}],
    "WITH x AS (SELECT * FROM messages WHERE queue_id = 1) SELECT a.msg_id FROM x a JOIN x b "
    "ON a.queue_offset = b.queue_offset AND a.topic < b.topic":
        [{"msg_id", "queue_offset", "topic", "queue_id"}] * 2,
    "SELECT physical_offset FROM messages WHERE physical_offset NOT IN "
    "(SELECT physical_offset FROM index)": None,
    "SELECT count(*) AS n FROM messages m WHERE NOT EXISTS (SELECT * FROM consumequeue c WHERE "
    "c.physical_offset = m.physical_offset)": [{"physical_offset"}] * 2,
    "SELECT queue_id, (SELECT max(physical_offset) FROM consumequeue) AS x FROM messages": None,
    "SELECT * FROM messages UNION ALL SELECT * FROM messages": None,
    "SELECT count(*) AS n FROM (SELECT * FROM consumequeue INTERSECT SELECT * FROM consumequeue)":
        None,
    "SELECT topic, rank() OVER (PARTITION BY topic ORDER BY store_timestamp, physical_offset) AS r "
    "FROM messages": [{"topic", "store_timestamp", "physical_offset"}],
    "SELECT count(*) AS n FROM messages NATURAL JOIN consumequeue": None,
    "SELECT physical_offset FROM messages WHERE true OR body = X'00'": [{"physical_offset"}],
    "SELECT store, r FROM messages RIGHT JOIN (SELECT id AS r FROM range(3)) x ON queue_id = r "
    "WHERE 1 = (SELECT min(1) FROM index WHERE false) OR physical_offset % 7 = 1":
        [{"store", "queue_id", "physical_offset"}, {"id"}],
    "WITH x AS (SELECT *, rand() AS z FROM consumequeue) SELECT count(a.size) AS n FROM x a "
    "JOIN x b ON a.z = b.z AND a.physical_offset = b.physical_offset": None,
    "SELECT max(length(body)) AS n FROM messages WHERE topic LIKE 'TP%'": [{"body", "topic"}],
    "SELECT kind, sum(f.length) AS b, max(i.number) AS n FROM frames f FULL JOIN index i "
    "ON i.physical_offset = f.physical_offset GROUP BY kind":
        [{"kind", "length", "physical_offset"}, {"number", "physical_offset"}],
    "SELECT Topic FROM MESSAGES ORDER BY STORE_TIMESTAMP, PHYSICAL_OFFSET LIMIT 5":
        [{"topic", "store_timestamp", "physical_offset"}],
}


@pytest.mark.parametrize("text", sample(QUERIES, 2, "queries"))
def test_answers_are_those_of_the_whole_tables(text, spark, root, whole):
    from rmqctl.ext.spark import sql

    if "MESSAGES" not in text:
        wanted = list(sql.rows(whole(text)))
    else:
        wanted = list(sql.rows(whole(text.lower())))
    frame = asked(spark, root, text)
    rows = list(sql.rows(frame))
    assert sorted(json.dumps(list(row.values()), sort_keys=True) for row in rows) == sorted(
        json.dumps(list(row.values()), sort_keys=True) for row in wanted)
    if QUERIES[text] is not None:
        assert read(frame) == QUERIES[text]
    if "max(length(body)" not in text and "*" not in text:
        assert not any("body" in columns for columns in read(frame))


def test_conditions_are_applied_while_reading(spark, root, stored):
    from rmqctl.ext.spark import sql

    frame = asked(spark, root, "SELECT physical_offset AS p FROM messages WHERE queue_id = 1 AND "
                  "topic = 'TP_fraud_Topic' AND store_timestamp > '2024-06-21 19:51:40'")
    plan = frame._jdf.queryExecution().optimizedPlan()
    options = plan.collectLeaves().head().relation().options()
    assert (options.get("topic"), options.get("queueId"), options.get("since")) == (
        "TP_fraud_Topic", "1", "2024-06-21T19:51:40.001000+00:00")
    assert [row["p"] for row in sql.rows(frame)] == [
        message["physical_offset"] for message in stored if message["queue_id"] == 1
        and message["topic"] ==         "TP_fraud_Topic"
        and message["store_timestamp"] > 1718999500000]


def test_milliseconds_are_led_to_times(spark, root):
    from rmqctl.ext.spark import sql

    with pytest.raises(UsageError, match=r"unix_millis\(store_timestamp\) with milliseconds"):
        sql.query(spark, [root], "SELECT 1 FROM messages WHERE store_timestamp > 1718999500000")


def test_messages_are_the_message_objects(spark, root, stored):
    from rmqctl.ext.spark import sql

    rows = sorted(sql.rows(asked(spark, root, "SELECT * FROM messages")),
                  key=lambda row: row["physical_offset"])
    assert len(rows) == len(stored) == 600
    for mine, theirs in zip(rows, stored, strict=True):
        assert mine.pop("store") == root
        assert mine.pop("file").startswith("commitlog/")
        times = {name: time_text(theirs[name]) for name in TIMES}
        assert mine == {name: (theirs | times)[name] for name in mine}


@pytest.mark.exhaustive
def test_joins_hold_the_local_truth(spark, root, stored):
    """Every message has its row and its index entries, and no more."""
    from rmqctl.ext.spark import sql

    rows = list(sql.rows(asked(
        spark, root, "SELECT m.physical_offset AS p, c.topic, c.queue_id, c.queue_offset, c.size "
        "FROM messages m FULL OUTER JOIN consumequeue c USING (physical_offset) ORDER BY p")))
    assert [tuple(row.values()) for row in rows] == [
        (message["physical_offset"], message["topic"], message["queue_id"], message["queue_offset"],
         message["total_size"]) for message in stored]
    entries = {row["p"]: row["n"] for row in sql.rows(asked(
        spark, root, "SELECT m.physical_offset AS p, count(i.number) AS n FROM messages m "
        "LEFT JOIN index i USING (physical_offset) GROUP BY 1"))}
    assert entries == {message["physical_offset"]: len(message["keys"])
                       + (message["unique_key"] is not None)
                       for message in stored}


def test_several_stores(spark, root, golden: GoldenFolder):
    from rmqctl.ext.spark import sql

    other = str(golden("4.9.3/basic/store"))
    rows = list(sql.rows(sql.query(
        spark, [root, other], "SELECT store, count(*) AS n FROM messages GROUP BY 1")))
    assert {row["store"]: row["n"] for row in rows} == {root: 600, other: 600}


def test_the_record_is_there_where_it_is_named(spark, root, stored):
    from rmqctl.ext.spark import sql

    row, = sql.rows(asked(spark, root, "SELECT record FROM messages ORDER BY physical_offset "
                                       "LIMIT 1"))
    with Store.open(root) as store:
        record = store.log.record_at(stored[0]["physical_offset"])
    assert len(base64.b64decode(row["record"])) == record.total_size == stored[0]["total_size"]


def test_values(spark):
    from rmqctl.ext.spark import sql

    row, = sql.rows(sql.query(spark, [], """
        SELECT 1 AS a, 2 AS a, X'00ff' AS b, array(X'01', NULL) AS c,
               map('x', X'02') AS d, named_struct('p', DATE'2024-02-29', 'q', NULL) AS e,
               TIMESTAMP'2024-03-31 01:30:00.123Z' AS f, TIMESTAMP_NTZ'2024-03-31 01:30:00' AS g,
               CAST(1.50 AS DECIMAL(9, 2)) AS h, CAST(12 AS DECIMAL(38, 0)) AS i, NULL AS j,
               1.5e0 AS k, true AS l, map(3, 'y') AS m, INTERVAL '1' DAY AS n"""))
    assert row == {
        "a": 1, "a_2": 2, "b": "AP8=", "c": ["AQ==", None], "d": {"x": "Ag=="},
        "e": {"p": "2024-02-29", "q": None}, "f": "2024-03-31T01:30:00.123Z",
        "g": "2024-03-31T01:30:00", "h": "1.50", "i": 12, "j": None, "k": 1.5, "l": True,
        "m": {"3": "y"}, "n": str(datetime.timedelta(days=1))}


@pytest.mark.parametrize(("text", "words"), [
    ("SELECT topik FROM messages", "UNRESOLVED_COLUMN"),
    ("SELECT count(*) FROM massages", "TABLE_OR_VIEW_NOT_FOUND"),
    ("SELEC count(*) FROM messages", "PARSE_SYNTAX_ERROR"),
    ("SELECT 1; SELECT 2", "PARSE_SYNTAX_ERROR"),
    ("SELECT sum(topic, 3) FROM messages", "WRONG_NUM_ARGS"),
    ("DROP VIEW messages", "only queries"),
    ("CREATE TABLE t AS SELECT 1 AS a", "only queries"),
    ("INSERT INTO t SELECT 1", "only queries"),
    ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", "only queries"),
    ("INSERT OVERWRITE DIRECTORY '/tmp/nowhere' USING csv SELECT 1", "only queries"),
    ("SET spark.sql.ansi.enabled = false", "only queries"),
])
def test_a_wrong_query_is_one_sentence(text, words, spark, root):
    with pytest.raises(UsageError, match=words) as error:
        asked(spark, root, text)
    assert "\n" not in str(error.value)
    assert not os.path.exists("/tmp/nowhere")


def test_where_a_query_is_wrong(spark, root):
    with pytest.raises(UsageError, match="line 1,? pos 7"):
        asked(spark, root, "SELECT topik FROM messages")


def test_what_is_wrong_with_values_is_the_querys(spark, root):
    from rmqctl.ext.spark import sql

    with pytest.raises(UsageError, match="DIVIDE_BY_ZERO"):
        list(sql.rows(asked(spark, root, "SELECT 1 / (queue_id - queue_id) FROM messages")))


@pytest.mark.exhaustive
def test_a_failing_job_is_no_mistake_of_the_query(spark, golden_copy: GoldenFolder):
    from rmqctl.ext.spark import sql

    root = golden_copy("5.3.3/basic/store")
    frame = asked(spark, str(root), "SELECT body_crc FROM messages")
    frame._jdf.queryExecution().toRdd().getNumPartitions()  # now it is planned
    for name in os.listdir(root / "commitlog"):
        damage.remove(root, f"commitlog/{name}")
    with pytest.raises(StoreIOError, match="commitlog"):
        list(sql.rows(frame))


def test_what_shows_is_run(spark, root):
    from rmqctl.ext.spark import sql

    rows = list(sql.rows(asked(spark, root, "DESCRIBE consumequeue")))
    assert [row["col_name"] for row in rows][:3] == ["store", "file", "topic"]


@pytest.mark.parametrize("form", sample(["parquet", "json", "csv"], 1, "files of SQL"))
def test_files(form, spark, root, stored, tmp_path):
    from rmqctl.ext.spark import sql

    text = "SELECT physical_offset AS p, keys, properties, body FROM messages"
    out = tmp_path / "out"
    sql.write(asked(spark, root, text), str(out), form)
    names = sorted(os.listdir(out))
    assert names
    assert all(name.startswith("part-") for name in names)
    assert os.listdir(tmp_path) == ["out"]
    rows = []
    for name in names:
        if form == "parquet":
            rows += pq.read_table(out / name).to_pylist()
        elif form == "json":
            rows += map(json.loads, (out / name).read_text().splitlines())
        else:
            with open(out / name, newline="") as file:
                rows += csv.DictReader(file, escapechar="\\")
    assert sorted(int(row["p"]) for row in rows) == [message["physical_offset"]
                                                     for message in stored]
    bodies = Counter(message["body"] for message in rows)
    if form == "parquet":
        assert bodies == Counter(base64.b64decode(message["body"]) for message in stored)
    else:
        assert bodies == Counter(message["body"] for message in stored)
    with pytest.raises(RefusedError, match="already exists"):
        sql.write(asked(spark, root, text), str(out), form)


@pytest.mark.exhaustive
def test_a_failed_query_leaves_nothing(spark, root, tmp_path):
    from rmqctl.ext.spark import sql

    text = "SELECT if(physical_offset > 90000, raise_error('no'), 1) AS a FROM messages"
    with pytest.raises(UsageError, match="USER_RAISED"):
        sql.write(asked(spark, root, text), str(tmp_path / "out"), "json")
    assert os.listdir(tmp_path) == []


# -- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "words"), [
    (["{root}"], "no query"),
    (["{root}", "{root}"], "no query"),
    (["SELECT 1 AS a"], "name a store, or set RMQCTL_STORE"),
    (["{root}", "SELECT 1 AS a", "--file", "{file}"], "mutually exclusive"),
    (["{root}", "--file", "{empty}"], "contains no query"),
])
def test_what_is_asked_for_must_be_clear(arguments, words, root, tmp_path, rmqctl: Runner):
    (tmp_path / "a b.sql").write_text("SELECT count(*) AS n FROM messages\n")
    (tmp_path / "empty").write_text(" \n")
    given = [argument.format(root=root, file=tmp_path / "a b.sql", empty=tmp_path / "empty")
             for argument in arguments]
    assert words in rmqctl("pipeline", "sql", *given).expect(2).err


def test_no_store_no_spark(tmp_path, rmqctl: Runner):
    rmqctl("pipeline", "sql", tmp_path / "none", "SELECT 1 AS a").expect(3)
    rmqctl("pipeline", "sql", tmp_path, "--file", tmp_path / "none.sql").expect(5)


@pytest.mark.parametrize("count", [1, 7])
def test_a_dry_run_shows_the_pieces_and_starts_nothing(count, root, golden: GoldenFolder, tmp_path,
                                                       rmqctl: Runner, monkeypatch):
    monkeypatch.setattr("rmqctl.ext.spark.session.session", None)
    roots = [root, str(golden("4.9.3/basic/store"))]
    query = ("SELECT c.topic FROM consumequeue c JOIN Messages m USING (physical_offset) "
             "WHERE m.topic <> 'frame'")
    done = rmqctl("pipeline", "sql", *roots, query, "--dry-run", "--partitions", str(count),
                  "--out", tmp_path / "out", "-o", "json").expect(0)
    queues = sum(file.stat().st_size for item in roots
                 for file in Path(item, "consumequeue").rglob("*") if file.is_file())
    log = 0
    for item in roots:
        with Store.open(item) as store:
            log += find_end(store).offset
    views = {view.pop("view"): view for view in done.json()}
    assert views == {"messages": {"stores": 2, "partitions": count, "bytes": log},
                     "consumequeue": {"stores": 2, "partitions": count, "bytes": queues}}
    assert queues > 1000 < log
    assert os.listdir(tmp_path) == []
    assert "none of the views" in rmqctl("pipeline", "sql", root, "SELECT 1 AS one",
                                         "--dry-run").expect(0).err


@pytest.mark.exhaustive  # it starts Spark once more, as the fixture does: 27 s
@pytest.mark.xdist_group("spark")
def test_the_command(root, stored, tmp_path, rmqctl_process: Runner):
    """In a process of its own, as it starts Spark itself."""
    query = tmp_path / "q.sql"
    query.write_text("SELECT topic, count(*) AS n FROM messages GROUP BY topic;\n")
    done = rmqctl_process("pipeline", "sql", root, "--file", query, "-o", "jsonl", "--master",
                          "local[2]", timeout=300).expect(0)
    assert done.err == ""
    assert {row["topic"]: row["n"] for row in done.jsonl()} == Counter(
        message["topic"] for message in stored)


@pytest.mark.exhaustive
@pytest.mark.xdist_group("spark")
def test_the_command_says_what_is_wrong(root, tmp_path, rmqctl_process: Runner):
    done = rmqctl_process("pipeline", "sql", root, "SELECT nothing FROM messages", "--master",
                          "local[2]", "--out", tmp_path / "out", timeout=300).expect(2)
    assert done.out == ""
    assert done.err.startswith("rmqctl: error: SQL: [UNRESOLVED_COLUMN")
    assert "Exception" not in done.err
    assert os.listdir(tmp_path) == []


def test_consumequeues_in_rocksdb(spark, golden: GoldenFolder):
    from rmqctl.ext.spark import sql

    root = golden("5.3.3/rocksdb/store")
    rows = sql.rows(sql.query(
        spark, [str(root)], "SELECT topic, queue_id, queue_offset, physical_offset FROM "
        "consumequeue", options={"numPartitions": "2"}))
    with Store.open(root) as store:
        assert sorted(tuple(row.values()) for row in rows) == sorted(
            (*key, queue.first_index + number, row[0]) for key, queue in store.queues.by_key.items()
            for number, row in enumerate(queue.units(0, queue.disk_end).tolist()))
