"""rmqctl.open: what a Python program gets is what `read` says, as objects and in columns."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from rmqctl import api
from rmqctl import open as rmqctl_open
from rmqctl.errors import NotAStoreError, RefusedError, UsageError
from rmqctl.store.objects import FIELDS
from rmqctl.store.projection import DECODED
from tests.conftest import GoldenFolder, Runner
from tests.support import damage, snapshot
from tests.support import tiny as tiny_stores

STORES = ["5.3.3/basic/store", "4.9.3/batch/store", "5.3.3/lmq/store", "4.9.3/ipv6/store",
          "5.3.3/batchcq/store"]


def as_told(run: Any) -> list[dict[str, Any]]:
    """The lines of `read --body base64`, with bodies as bytes."""
    rows = [json.loads(line) for line in run.out.splitlines()]
    for row in rows:
        row["body"] = base64.b64decode(row["body"])
        del row["body_encoding"]
    return rows


@pytest.mark.parametrize("name", STORES)
def test_it_gives_what_read_gives(name: str, golden: GoldenFolder, rmqctl: Runner) -> None:
    pa = pytest.importorskip("pyarrow")
    store = golden(name)
    with snapshot.assert_unchanged(store), api.open(store) as opened:
        ways: list[tuple[list[Any], dict[str, Any]]] = [([], {})]
        ways += [(["--topic", topic["topic"]], {"topic": topic["topic"]})
                 for topic in opened.topics()[:3]]
        for words, given in ways:
            rows = as_told(rmqctl("read", store, "--body", "base64", "-o", "jsonl", *words))
            messages = opened.messages(**given)
            assert list(messages) == rows
            assert list(messages) == rows  # each time anew
            table = messages.to_arrow()
            assert table.schema.names == list(rows[0])
            for column in ("physical_offset", "topic", "keys", "body", "tags", "msg_id"):
                assert table[column].to_pylist() == [row[column] for row in rows]
            assert [dict(row) for row in table["properties"].to_pylist()] == [
                row["properties"] for row in rows]
            assert table["store_timestamp"].cast(pa.int64()).to_pylist() == [
                row["store_timestamp"] for row in rows]


def test_conditions_are_those_of_the_command(golden: GoldenFolder, rmqctl: Runner) -> None:
    store = golden("5.3.3/basic/store")
    with rmqctl_open(store) as opened:
        middle = sorted(row["store_timestamp"] for row in opened.messages())[100]
        for since in (middle, datetime.fromtimestamp(middle / 1000, UTC),
                      datetime.fromtimestamp(middle / 1000, UTC).isoformat()):
            fields = ["physical_offset", "property.KEYS"]
            rows = list(opened.messages(since=since, where="total_size>300", limit=20,
                                        fields=fields))
            answer = rmqctl("read", store, "--since", str(middle), "--where", "total_size>300",
                            "--limit", "20", "--fields", ",".join(fields), "-o", "json").json()
            assert rows == answer
            assert rows
        for wrong in ({"where": "nothing"}, {"where": "nosuch=1"}, {"fields": ["nosuch"]},
                      {"since": "yesterdayish"}):
            with pytest.raises(UsageError):
                list(opened.messages(**wrong))


def test_bodies_are_decoded_where_it_is_asked_for(tiny: tiny_stores.Tiny, rmqctl: Runner,
                                                  tmp_path: Path) -> None:
    rows = [{"topic": "orders", "body": json.dumps({"amount": amount})} for amount in (1, 5)]
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rmqctl("append", tiny.root, lines).expect(0)
    with rmqctl_open(tiny.root) as opened:
        messages = list(opened.messages(where="body.amount>2", fields=["body", "body.amount"]))
        assert messages == [{"body": b'{"amount": 5}', "body.amount": 5}]
        records = list(opened.messages(where="body.amount=1", decode="json"))
        assert [(row["decoded"], row["decoded_as"]) for row in records] == [({"amount": 1}, "json")]
        with pytest.raises(UsageError, match="iterate"):
            opened.messages(fields=["body.amount"]).to_arrow()


def test_damage_is_told_and_the_rest_is_read(golden_copy: GoldenFolder) -> None:
    store = golden_copy("5.3.3/basic/store")
    with rmqctl_open(store) as opened:
        places = [row["physical_offset"] for row in opened.messages()]
    damage.write(store, "commitlog/00000000000000000000", places[3] + 4, b"\0\0\0\0")
    with rmqctl_open(store) as opened:
        messages = opened.messages()
        assert [row["physical_offset"] for row in messages] == places[:3] + places[4:]
        assert [problem.offset for problem in messages.problems] == [places[3]]
        assert not opened.verify()["ok"]


def test_other_libraries_take_the_messages(golden: GoldenFolder) -> None:
    polars = pytest.importorskip("polars")
    pytest.importorskip("pandas")
    duckdb = pytest.importorskip("duckdb")
    with rmqctl_open(golden("5.3.3/basic/store")) as opened:
        messages = opened.messages(fields=["topic", "total_size", "store_timestamp"])
        sizes = [row["total_size"] for row in messages]
        assert messages.to_pandas()["total_size"].tolist() == sizes
        assert messages.to_polars()["total_size"].to_list() == sizes
        assert polars.DataFrame(messages)["total_size"].sum() == sum(sizes)
        assert duckdb.sql("select sum(total_size) from messages").fetchone() == (sum(sizes),)


def test_info_and_offsets_are_the_documents(golden: GoldenFolder, rmqctl: Runner) -> None:
    store = golden("5.3.3/basic/store")
    with rmqctl_open(store) as opened:
        answer = rmqctl("info", store, "-o", "json").json()
        assert opened.info()["topics"] == answer["topics"]
        for topic in answer["topics"]:
            for queue in topic["queues"]:
                queue["topic"] = topic["topic"]
        assert [topic.as_dict() for topic in opened.topics()] == answer["topics"]
        assert opened.offsets() == rmqctl("offsets", store, "-o", "json").json()["queues"]
        with pytest.raises(KeyError):
            opened.queues()[0]["as_dict"]


def test_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="not a store"):
        rmqctl_open(tmp_path)


def test_a_message_has_the_fields_of_the_message_object() -> None:
    assert list(get_type_hints(api.Message)) == [
        name for name in (*FIELDS, *DECODED) if name != "body_encoding"]


# -- checks and repair ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_damaged", [False, True])
def test_reports_are_the_documents_of_the_commands(is_damaged: bool, golden_copy: Any,
                                                    golden: GoldenFolder, rmqctl: Runner) -> None:
    store, other = golden_copy("5.3.3/basic/store"), golden("5.3.3/basic/store")
    if is_damaged:
        log = min((store / "commitlog").iterdir())
        damage.flip_bit(store, f"commitlog/{log.name}", 4, 3)
    with api.open(store) as opened:
        reports = {"verify": opened.verify(), "preflight": opened.preflight(),
                   "doctor": opened.doctor(), "diff": opened.diff(other)}
        reports["info"] = opened.info()
    words = {"diff": [other]}
    for name, report in reports.items():
        assert is_dataclass(report)
        result = rmqctl(name, store, *words.get(name, ()), "-o", "json")
        documents = json.loads(result.out), json.loads(json.dumps(report.as_dict()))
        for document in documents:
            document.get("disk", {}).pop("free", None)  # which other processes change
            document.get("disk", {}).pop("used_ratio", None)
        assert documents[0] == documents[1]
        assert list(report) == list(documents[1])
        for field in fields(report):
            if field.name in documents[1]:
                shown = json.loads(json.dumps(report[field.name]))
                assert shown == documents[1][field.name] or field.name == "findings"
        if name == "info":
            continue
        assert report.ok is (result.code == 0) is (not is_damaged)
        assert report.verdict in repr(report)
        assert report.verdict.split()[0] in report._repr_html_()


def test_a_plan_is_applied_and_undone(golden_copy: Any, rmqctl: Runner) -> None:
    store = golden_copy("5.3.3/basic/store")
    name = min(path.name for path in (store / "consumequeue").rglob("0*") if path.is_file())
    path = next((store / "consumequeue").rglob(name))
    damage.write(store, str(path.relative_to(store)), 3, b"\xff" * 40)
    with api.open(store) as opened, snapshot.assert_unchanged(store):
        plan = opened.recover()
    assert plan
    assert plan.lost == plan.undecided == 0
    assert plan.as_dict()["actions"] == [action.as_dict() for action in plan.actions]
    answer = rmqctl("recover", store, "-o", "json").json()
    for step in answer["steps"]:  # what was typed, which the API does not know
        step["command"] = step["command"].replace(" -o json", "")
    answer["next"] = [step["command"] for step in answer["steps"]]
    for document in (own := json.loads(json.dumps(plan.as_dict())), answer):
        for room in document["room"]:
            del room["free"]  # which other processes change
    assert own == answer
    assert [disk.needed for disk in plan.room] == [room["needed"] for room in answer["room"]]
    done = plan.apply()
    assert done["next"] == [f"rmqctl doctor {store}"]
    assert done["applied"]
    assert done["id"]
    with api.open(store) as opened:
        assert opened.verify().ok
        again = opened.recover()
    assert not again
    assert again.next == []
    assert repr(again).endswith("nothing to do>")
    assert not again.apply()["applied"]
    assert rmqctl("undo", store, "--apply", "--yes").code == 0


def test_a_plan_follows_the_broker_conf_as_the_command_does(golden_copy: Any, rmqctl: Runner,
                                                            tmp_path: Path) -> None:
    store, conf = golden_copy("5.3.3/basic/store"), tmp_path / "broker.conf"
    shutil.rmtree(store / "index")
    conf.write_text("maxHashSlotNum=16\nmaxIndexNum=64\n")
    document = json.loads(rmqctl("recover", store, "--broker-conf", conf, "-o", "json").out)
    with api.open(store, broker_conf=conf) as opened:
        plan = opened.recover()
    assert json.loads(json.dumps(plan.as_dict()["actions"])) == document["actions"]
    assert (plan.lost, plan.undecided) == (0, 0)
    assert plan.next == [f"rmqctl recover {store} --broker-conf {conf} --apply"]
    assert plan.apply()["applied"]
    sizes = {path.stat().st_size for path in (store / "index").iterdir()}
    assert sizes == {40 + 4 * 16 + 20 * 64}


def test_undecided_records_are_decided_by_the_caller(golden_copy: Any) -> None:
    store = golden_copy("5.3.3/basic/store")
    for structure in ("consumequeue", "index"):
        shutil.rmtree(store / structure)
    log = min((store / "commitlog").iterdir())
    damage.write(store, f"commitlog/{log.name}", 0, bytes(88))
    with api.open(store) as opened:
        plan = opened.recover(consumequeue="file")
        kept = opened.recover(consumequeue="file", ambiguous="keep")
    assert plan.undecided > 0
    assert [words.split()[3:] for words in plan.next] == [
        ["--consumequeue", "file", "--ambiguous", way, "--apply"] for way in ("keep", "leave-out")]
    with snapshot.assert_unchanged(store), pytest.raises(RefusedError, match="undecided"):
        plan.apply()
    assert kept.apply()["applied"]


@pytest.mark.parametrize(("method", "given"), [
    *(("messages", given) for given in (
        {"view": "x"}, {"topic": ["a"]}, {"topics": "a"}, {"topic": "a", "topics": ["b"]},
        {"topics": []}, {"topics": 5}, {"queue": 1}, {"topic": "a", "offset": 1},
        {"topic": "a", "queue": "1"}, {"limit": -1}, {"limit": True}, {"fields": "topic"},
        {"fields": []}, {"fields": ["x"]}, {"where": 5}, {"since": b"2024"}, {"tag": 5})),
    ("query_key", {"topic": ["a"], "key": "k"}), ("query_key", {"topic": "a", "key": 5}),
    ("query_key", {"topic": "a", "key": "k", "view": "x"}), ("sql", {"query": 5}),
    ("offsets", {"group": ["a"]}), ("queues", {"topic": 5}), ("diff", {"other": ".", "by": "x"}),
    ("recover", {"ambiguous": "x"}), ("recover", {"correct": "x"}),
    ("recover", {"consumequeue": "x"}),
], ids=str)
def test_wrong_arguments_raise(method: str, given: dict[str, Any], golden: GoldenFolder) -> None:
    with api.open(golden("5.3.3/basic/store")) as opened, pytest.raises(UsageError) as refused:
        getattr(opened, method)(**given)
    assert any(name in str(refused.value) for name in given) or "no field" in str(refused.value)


def test_parquet_is_a_source_as_for_the_command(golden_copy: Any, rmqctl: Runner,
                                                tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    store = golden_copy("5.3.3/basic/store")
    rmqctl("export", store, "--out", tmp_path / "copy.parquet").expect(0)
    log = min((store / "commitlog").iterdir())
    damage.write(store, f"commitlog/{log.name}", 300, bytes(40))
    with api.open(store) as opened:
        assert opened.recover().lost == 1
        assert opened.recover(sources=[tmp_path / "copy.parquet"]).lost == 0


def test_a_notebook_shows_messages(tmp_path: Path) -> None:
    store = tiny_stores.build(tmp_path / "store", [
        tiny_stores.Spec("t", 0, b"<script>%d</script>" % number) for number in range(12)]).root
    with api.open(store) as opened:
        some = opened.messages("t", limit=11, fields=["queue_offset", "body"])
        assert repr(some) == f"<rmqctl messages of {store}: topic='t', count=11>"
        page = some._repr_html_()
    assert page.count("<tr>") == 11
    assert "the first 10" in page
    assert "<script>" not in page


CONSUMER = """\
import rmqctl
from rmqctl.api import Message, Report, Store

store: Store = rmqctl.open("store")
message: Message = next(iter(store.messages("orders", queue=0)))
size: int = message["total_size"] + len(message["body"])
report: Report = store.verify()
words: list[str] = [found.category for found in report.findings if report.ok]
unread: int | None = store.offsets(group="billing")[0].diff
first: int | None = store.topics()[0].queues[0].min_offset
lost: int = store.preflight().messages_lost + store.doctor().would_lose
same: bool = store.diff("other").equal and store.verify().findings_total == 0
last: int | None = store.info().max_phy_offset
plan = store.recover(ambiguous="keep")
done: dict[str, object] = plan.apply() if plan and not plan.lost else {}
"""


@pytest.mark.long
def test_a_strict_consumer(tmp_path: Path) -> None:
    """What an installed rmqctl says of its types: a right program passes, a wrong one does not."""
    pytest.importorskip("mypy")
    for wrong in ("", 'store.recover(ambiguous="x")\nbad: str = message["queue_offset"]\n'):
        (tmp_path / "consumer.py").write_text(CONSUMER + wrong)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir",
             str(tmp_path / "cache"), "consumer.py"], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.count(": error: ") == (2 if wrong else 0), done.stdout + done.stderr


def test_keys_queues_topics_and_sql(golden: GoldenFolder, rmqctl: Runner) -> None:
    pytest.importorskip("duckdb")
    store = golden("5.3.3/basic/store")
    with api.open(store) as opened:
        topics = [topic["topic"] for topic in opened.topics()]
        message = next(stored_message for stored_message in opened.messages()
                       if stored_message["keys"])
        found_ids = opened.query_key(message["topic"], message["keys"][0])
        assert message["physical_offset"] in [found_identifier["physical_offset"]
                                              for found_identifier in found_ids]
        assert {queue["topic"] for queue in opened.queues()} == set(topics)
        some = topics[:2]
        assert {message["topic"] for message in opened.messages(topics=some)} == set(some)
        count, = opened.sql("select count(*) as n from messages")
        assert count["n"] == sum(1 for _ in opened.messages())
