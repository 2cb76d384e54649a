"""``rmqctl sql``: answers are those of Python over what ``read`` shows, and only that is read."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rmqctl.errors import StoreIOError
from rmqctl.output.units import time_text
from rmqctl.scan.tables import comment_of
from rmqctl.sql import query_needs
from rmqctl.sql import session as local_sql
from rmqctl.sql.pushdown import Filters
from rmqctl.sql.query_needs import COLUMNS, Needs, needs
from rmqctl.sql.session import QuerySession
from rmqctl.store.objects import TIMES
from tests.conftest import GoldenFolder, Runner
from tests.pipeline import exporting
from tests.support import damage, tiny

BASIC = "5.3.3/basic/store"
DAMAGED = "5.3.3/crash-crc/before"
FIRST, SECOND = "'1970-01-01 00:00:01Z'", "'1970-01-01 00:00:02Z'"


def asked(store: Path, text: str) -> list[dict[str, Any]]:
    with QuerySession([str(store)]) as session:
        return list(session.ask(text).rows)


def messages(rmqctl: Runner, store: Path) -> list[dict[str, Any]]:
    out = rmqctl("read", store, "--view", "disk", "-o", "jsonl").out
    return [json.loads(line) for line in out.splitlines()]


def test_counts(golden: GoldenFolder, rmqctl: Runner) -> None:
    store = golden(BASIC)
    wanted = Counter((row["topic"], row["queue_id"]) for row in messages(rmqctl, store))
    rows = asked(store, "select topic, queue_id, count(*) as n from messages group by all")
    assert {(row["topic"], row["queue_id"]): row["n"] for row in rows} == wanted


def test_all_columns_are_those_of_read(golden: GoldenFolder, rmqctl: Runner) -> None:
    store = golden(BASIC)
    for row, message in zip(asked(store, "select * from messages"), messages(rmqctl, store),
                            strict=True):
        for name in message.keys() - {"body", "body_encoding", *TIMES}:
            assert row[name] == message[name], name
        for name in TIMES:
            assert row[name] == time_text(message[name]), name
        if message["body_encoding"] == "base64":
            assert row["body"] == message["body"]
    assert "record" not in row
    assert asked(store, "select record from messages limit 1")[0]["record"]


@pytest.mark.parametrize("where", [
    "topic = 'TP_fraud_Topic'", "topic in ('TP_fraud_Topic', 'nothing')", "'TP_ship_evt-x' = topic",
    "queue_id = 2", "queue_id in (0, 3) and topic = 'TP_ship_Event2'", "physical_offset < 105086",
    "105086 <= physical_offset and physical_offset < 200000", "physical_offset > 105086",
    "store_timestamp >= '2024-06-21T19:52:03Z'", "store_timestamp = '2024-06-21 19:50:35.167+00'",
    "store_timestamp < timestamptz '2024-06-22 03:52:03+08'", "store_timestamp <> '2024-06-21'",
    "store_timestamp <= timestamp '2024-06-21 19:52:03.0004'", "date '2024-06-21'<store_timestamp",
    "store_timestamp in ('2024-06-21 19:50:35.167', '2024-06-21 19:50:35.1671')",
    "epoch_ms(store_timestamp) >= 1718999523000", "1718999435167 = epoch_ms(store_timestamp)",
    "store_timestamp > to_timestamp(1718999523)",
    "store_timestamp between '2024-06-21 19:51:00Z' and '2024-06-21 19:52:00Z'",
    "physical_offset between 105086 and 200000", "topic between 'TP_s' and 'TP_t'",
    "topic = 'TP_fraud_Topic' or queue_id = 1", "not (queue_id = 0)", "queue_id is null",
    "topic like 'TP_%' and total_size > 500", "queue_id = 1.0", "topic = null", "queue_id <> 1",
    "epoch_ms(store_timestamp) > 9223372036854775807", "topic = upper('tp_x') or true",
    "store_timestamp < 'infinity'",
    "topic in (select topic from offsets where queue_id = 3)",
])
def test_conditions_that_the_reading_applies_change_no_answer(
        where: str, golden: GoldenFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    store = golden(BASIC)
    text = f"select physical_offset from messages where {where} order by all"
    pushed = asked(store, text)
    monkeypatch.setattr(query_needs, "_filters", lambda *_: Filters())
    assert pushed == asked(store, text)


@pytest.mark.parametrize(("text", "table", "names", "filters"), [
    ("select topic from messages", "messages", {"topic"}, Filters()),
    ("select count(*) from messages", "messages", set(), Filters()),
    ("select * from messages", "messages", None, Filters()),
    ("select m.body from Messages m where M.Topic = 'a'", "messages", {"body", "topic"},
     Filters(topics=frozenset({b"a"}))),
    ("select topic from messages where queue_id in (1, 2) and epoch_ms(store_timestamp) > 5",
     "messages", {"topic", "queue_id", "store_timestamp"},
     Filters(queue_ids=frozenset({1, 2}), since=6)),
    ("from messages where store_timestamp >= '1970-01-01 00:00:01.0001Z'", "messages", None,
     Filters(since=1001)),
    ("from messages where store_timestamp < timestamptz '1970-01-01 08:00:02+08'", "messages", None,
     Filters(until=1999)),
    ("from messages where store_timestamp > '1970-01-01 00:00:01.0001Z'", "messages", None,
     Filters(since=1001)),
    ("from messages where store_timestamp <= '1970-01-01 00:00:02.0009Z'", "messages", None,
     Filters(until=2000)),
    (f"from messages where store_timestamp between {FIRST} and {SECOND}",
     "messages", None, Filters(since=1000, until=2000)),
    ("from messages where store_timestamp not between '1970-01-01Z' and '1970-01-02Z'", "messages",
     None, Filters()),
    ("from messages where epoch_ms('store_timestamp') > 5", "messages", None, Filters()),
    # What else the names could mean: columns of the query's own, another table's, an outer row's.
    ("select 'a' as topic from messages where topic = 'b'", "messages", {"topic"}, Filters()),
    ("select 1 from messages, offsets where messages.topic = 'b'", "messages", {"topic"},
     Filters()),
    ("with x as (select * from messages) select topic from x where topic = 'a'", "messages", None,
     Filters()),
    ("select 1 from messages m(topic) where topic = 'a'", "messages", {"topic"}, Filters()),
    ("select topic from messages natural join consumequeue", "messages", None, Filters()),
    ("select size from messages join consumequeue using (physical_offset)", "messages",
     {"physical_offset"}, Filters()),
])
def test_what_a_query_needs(text: str, table: str, names: set[str] | None,
                            filters: Filters) -> None:
    with duckdb.connect(":memory:") as base:
        listed_needs = needs(base, text)
    assert listed_needs is not None
    assert listed_needs[table] == Needs(names, filters)


def test_only_the_columns_of_a_query_are_made(golden: GoldenFolder,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    original = local_sql.TableReader

    def reading(table: str, names: list[str], *more: Any) -> Any:
        seen.append(list(names))
        return original(table, names, *more)

    monkeypatch.setattr(local_sql, "TableReader", reading)
    assert asked(golden(BASIC), "select count(*) as n, max(queue_id) from messages")[0]["n"] == 600
    assert seen == [["queue_id"]]


def test_a_table_may_be_asked_for_twice(golden: GoldenFolder) -> None:
    rows = asked(golden(BASIC), "select count(*) as n from messages a join messages b "
                 "using (physical_offset) where a.topic in (select topic from messages)")
    assert rows == [{"n": 600}]


def test_queues_index_offsets_and_findings(golden: GoldenFolder, rmqctl: Runner) -> None:
    store = golden(DAMAGED)
    findings = rmqctl("verify", store, "-o", "json").json()["findings"]
    rows = asked(store, "select * exclude (store) from findings")
    assert rows == [{name: finding[name] for name in rows[0]} for finding in findings]
    basic = golden(BASIC)
    assert asked(basic, "select count(*) n from index")[0]["n"] == 1175
    lost = asked(basic, "select count(*) n from messages anti join consumequeue "
                        "using (physical_offset)")
    assert lost == [{"n": 0}]
    wanted = rmqctl("offsets", basic, "-o", "json").json()["queues"]
    rows = asked(basic, "select topic, queue_id, max_offset from offsets")
    assert rows == [{name: row[name] for name in ("topic", "queue_id", "max_offset")}
                    for row in wanted]


def test_times_are_in_utc_and_milliseconds_are_led_to_them(
        golden: GoldenFolder, rmqctl: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    monkeypatch.setitem(sys.modules, "pytz", None)  # which DuckDB's own way of fetching needs
    store = golden(BASIC)
    row, = asked(store, "select min(store_timestamp) as t, t::varchar as s, hour(t) as h, [t] as l "
                        "from messages")
    assert row == {"t": "2024-06-21T19:50:35.167Z", "s": "2024-06-21 19:50:35.167+00", "h": 19,
                   "l": ["2024-06-21T19:50:35.167Z"]}
    for where in ("store_timestamp > 1718999523000", "store_timestamp + 1 > store_timestamp",
                  "store_timestamp in (1718999523000)"):
        done = rmqctl("sql", store, f"select count(*) from messages where {where}").expect(2)
        assert "epoch_ms(store_timestamp) with milliseconds" in " ".join(done.err.split())
    comments = asked(store, "select column_name, comment from duckdb_columns() "
                            "where table_name = 'messages'")
    assert {row["column_name"]: row["comment"] for row in comments} == {
        name: comment_of(field) for name, field in COLUMNS["messages"].items() if name != "record"}


def test_a_time_of_no_calendar_is_null(tmp_path: Path) -> None:
    times = [0, (1 << 63) - 1, -(1 << 63), 253_402_300_799_999, 253_402_300_800_000]
    store = exporting.write_log(tmp_path / "store", [b"t"] * 5, times)
    rows = asked(store, "select store_timestamp as t from messages order by physical_offset")
    assert [row["t"] for row in rows] == ["1970-01-01T00:00:00.000Z", None, None,
                                          "9999-12-31T23:59:59.999Z", None]
    later = asked(store, "select max(store_timestamp) + interval 1 day as t from messages")
    assert later == [{"t": "10000-01-01T23:59:59.999000Z"}]


@pytest.mark.parametrize(("text", "words"), [
    ("copy messages to 'x.csv'", "expected a query that returns rows"),
    ("create table x as select 1", "expected a query that returns rows"),
    ("select 1; select 2", "expected one query, got 2"),
    ("select nothing from messages", "nothing"),
    ("selct x from messages", "selct"),
    ("select * from read_text('/etc/hostname')", "disabled"),
    ("select * from '/etc/hostname.csv'", "disabled"),
    ("attach 'x.db' as x", "expected a query that returns rows"),
    ("set enable_external_access = true", "expected a query that returns rows"),
    ("select * from sqlite_scan('x', 'y')", "sqlite_scan"),
])
def test_what_is_no_query(text: str, words: str, golden: GoldenFolder, rmqctl: Runner,
                          tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = rmqctl("sql", golden(BASIC), f"{text} ").expect(2)
    assert "SQL: " in done.err
    assert words in done.err
    assert list(tmp_path.iterdir()) == []


def test_errors_of_a_store_are_its_own(golden: GoldenFolder, rmqctl: Runner,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB puts words of its own around what a table says."""
    def broken(*_: object) -> Iterator[Any]:
        raise StoreIOError("commitlog/0: the disk is broken")
        yield

    monkeypatch.setattr(local_sql.QuerySession, "_of_files", broken)
    done = rmqctl("sql", golden(BASIC), "select count(*) from messages").expect(5)
    assert done.err == "rmqctl: error: commitlog/0: the disk is broken\n"


def test_more_memory_than_there_is_is_said(golden: GoldenFolder, rmqctl: Runner,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_sql, "_MEMORY", "20MB")
    done = rmqctl("sql", golden(BASIC),
                  "select length(string_agg(repeat('x', 1000000))) from range(4000)").expect(5)
    assert "SQL: Out of Memory" in done.err


def test_damage_costs_only_what_is_damaged(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    store = golden_copy(BASIC)
    damage.flip_bit(store, "commitlog/00000000000000000000", 300, 3)
    rows = asked(store, "select crc_ok, count(*) as n from messages group by all order by all")
    assert rows == [{"crc_ok": False, "n": 1}, {"crc_ok": True, "n": 599}]


def test_values_as_json_knows_them(golden: GoldenFolder, rmqctl: Runner) -> None:
    text = ("select 1.50::decimal(5,2) d, 'a'::blob b, map {'x': [1]} m, "
            "{'y': date '2024-02-03'} s, 'nan'::double f, "
            "timestamptz '2024-02-03 04:05:06Z' t, interval 3 days i, 1 as d, "
            "'-inf'::double inf from messages limit 1")
    rows = rmqctl("sql", golden(BASIC), text, "-o", "json").expect(0).json()
    assert rows == [{"d": "1.50", "b": "YQ==", "m": {"x": [1]}, "s": {"y": "2024-02-03"}, "f": None,
                     "t": "2024-02-03T04:05:06.000Z", "i": "0 months 3 days 0 s", "d_2": 1,
                     "inf": None}]


def test_decoded_bodies_are_columns_where_they_are_asked_for(
        tmp_path: Path, rmqctl: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tiny.build(tmp_path / "store", [
        tiny.Spec("orders", 0, b'{"id": 1, "amount": 3000}'), tiny.Spec("orders", 0, b"null"),
        tiny.Spec("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, b"5,7"), tiny.Spec("orders", 0, b"hello")]).root
    done = rmqctl("sql", store, "select decoded, decoded_as, internal from messages", "--decode",
                  "json", "-o", "jsonl").expect(0)
    assert [tuple(row.values()) for row in done.jsonl()] == [
        ('{"id":1,"amount":3000}', "json", None), ("null", "json", None),
        ("[5,7]", "op", '{"kind":"op"}'), (None, None, None)]
    assert "1 body not decoded with --decode json" in done.err
    rows = rmqctl("sql", store, "select queue_offset from messages where "
                  "(decoded->>'$.amount')::int > 2000", "--decode", "auto", "-o", "jsonl").jsonl()
    assert rows == [{"queue_offset": 0}]
    rmqctl("sql", store, "select decoded from messages").expect(2)
    monkeypatch.setattr(local_sql, "_decoded", None)  # nothing is decoded for other columns
    assert rmqctl("sql", store, "select count(*) as n from messages where body is not null",
                  "--decode", "auto", "-o", "jsonl").jsonl() == [{"n": 4}]


class Stop(BaseException):
    """As a signal raises it."""


@pytest.mark.parametrize("text", ["select count(*) from messages",
                                  "select topic from messages order by topic"])
def test_a_signal_within_a_table_ends_the_query_as_itself(
        text: str, golden: GoldenFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> Iterator[Any]:
        raise Stop
        yield

    monkeypatch.setattr(QuerySession, "_of_files", stopped)
    with pytest.raises(Stop):
        asked(golden(BASIC), text)
