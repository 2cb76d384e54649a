"""``dlq list`` and ``dlq requeue``: the messages that a group gave up, and sending them anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Runner
from tests.support import retried, snapshot
from tests.support import tiny as tiny_stores

LETTERS = ["0A00000100002A9F0000000000000540", "0A00000100002A9F0000000000000640"]


def listed(rmqctl: Runner, root: Path, *more: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = rmqctl("dlq", "list", root, *more, "-o", "jsonl").expect(0).jsonl()
    return rows


def requeued(rmqctl: Runner, root: Path, *more: str, code: int = 0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = rmqctl(
        "dlq", "requeue", root, "--group", "billing", "-o", "jsonl", *more).expect(code).jsonl()
    return rows


def last(rmqctl: Runner, root: Path, topic: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = rmqctl(
        "read", root, "--topic", topic, "-o", "jsonl").expect(0).jsonl()
    return rows[-1]


def test_the_list(retried_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    rows = listed(rmqctl, retried_base.root)
    assert [row["msg_id"] for row in rows] == LETTERS
    assert [(row["origin_topic"], row["origin_msg_id"], row["reconsume_times"], row["requeued"])
            for row in rows] == [("orders", retried.FIRST, 2, None),
                                 ("bills", retried.ELSEWHERE, 16, None)]
    assert [row["keys"] for row in listed(rmqctl, retried_base.root, "--key", "k4")] == [["k4"]]
    done = rmqctl("dlq", "list", retried_base.root, "--group", "biling").expect(1)
    assert "did you mean billing?" in done.err


def test_no_dead_letters(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    assert rmqctl("dlq", "list", tiny_base.root, "-o", "json").expect(0).json() == []


def test_the_plan_changes_nothing_and_is_what_comes(retried: tiny_stores.Tiny,
                                                    rmqctl: Runner) -> None:
    with snapshot.assert_unchanged(retried.root):
        planned = requeued(rmqctl, retried.root)
    done = requeued(rmqctl, retried.root, "--apply")
    assert done == planned
    assert [row["status"] for row in done] == ["PUT_OK", "PUT_OK"]
    rmqctl("verify", retried.root).expect(0)


def test_what_is_sent(retried: tiny_stores.Tiny, rmqctl: Runner) -> None:
    requeued(rmqctl, retried.root, "--apply")
    sent = last(rmqctl, retried.root, "orders")
    assert sent["body"] == "first"
    assert (sent["reconsume_times"], sent["queue_id"]) == (0, 0)
    assert sent["store_host"] == "10.0.0.1:10911"
    assert (sent["born_timestamp"], sent["born_host"]) == (1_699_999_999_995, "10.0.0.7:52011")
    del sent["properties"]["CLUSTER"]
    assert sent["properties"] == {
        "UNIQ_KEY": "0A00000700000000", "KEYS": "k0", "TAGS": "A",
        "ORIGIN_MESSAGE_ID": "0A00000100002A9F0000000000000000", "RMQCTL_REQUEUED": LETTERS[0]}
    chain = rmqctl("query", "id", retried.root, LETTERS[0], "--track", "-o", "json").json()[0]
    assert [copy["role"] for copy in chain["chain"]][-2:] == ["dead letter", "requeued"]


def test_nothing_is_sent_twice(retried: tiny_stores.Tiny, rmqctl: Runner) -> None:
    first = requeued(rmqctl, retried.root, "--count", "1", "--apply")
    second = requeued(rmqctl, retried.root, "--apply")
    assert [row["status"] for row in second] == ["ALREADY_REQUEUED", "PUT_OK"]
    assert second[0]["msg_id"] == first[0]["msg_id"]
    assert listed(rmqctl, retried.root)[0]["requeued"] == first[0]["msg_id"]
    for file in (retried.root / "index").iterdir():  # then by the topics themselves
        file.unlink()
    assert [row["requeued"] for row in listed(rmqctl, retried.root)] == [
        row["msg_id"] for row in second]
    again = requeued(rmqctl, retried.root, "--again")
    assert [row["status"] for row in again] == ["PUT_OK", "PUT_OK"]


def test_truncate_takes_it_back(retried: tiny_stores.Tiny, rmqctl: Runner) -> None:
    rows = requeued(rmqctl, retried.root, "--apply")
    rmqctl("truncate", retried.root, "--to-phy", str(rows[0]["physical_offset"]),
           "--apply").expect(0)
    assert [row["requeued"] for row in listed(rmqctl, retried.root)] == [None, None]


def test_into_the_retry_topic(retried: tiny_stores.Tiny, rmqctl: Runner) -> None:
    plain = rmqctl("dlq", "requeue", retried.root, "--group", "billing").expect(0)
    assert "audit reads the same topics" in plain.err
    done = rmqctl("dlq", "requeue", retried.root, "--group", "billing", "--into", "retry",
                  "--apply").expect(0)
    assert "audit" not in done.err
    sent = last(rmqctl, retried.root, "%RETRY%billing")
    assert (sent["body"], sent["properties"]["RETRY_TOPIC"]) == ("of another broker", "bills")
    assert "ALREADY_REQUEUED" in requeued(rmqctl, retried.root)[0]["status"]


def test_into_a_file_that_append_takes(retried_base: tiny_stores.Tiny, tiny: tiny_stores.Tiny,
                                       tmp_path: Path, rmqctl: Runner) -> None:
    path = tmp_path / "letters.jsonl"
    rows = requeued(rmqctl, retried_base.root, "--out", str(path))
    assert [row["status"] for row in rows] == ["WRITTEN", "WRITTEN"]
    assert [json.loads(line)["topic"] for line in path.read_text().splitlines()] == [
        "orders", "bills"]
    rmqctl("append", tiny.root, path).expect(0)
    assert last(rmqctl, tiny.root, "orders")["body"] == "first"
    rmqctl("dlq", "requeue", retried_base.root, "--group", "billing", "--out", path).expect(5)


def test_into_another_store(retried_base: tiny_stores.Tiny, tiny: tiny_stores.Tiny,
                            rmqctl: Runner) -> None:
    with snapshot.assert_unchanged(retried_base.root):
        requeued(rmqctl, retried_base.root, "--to", str(tiny.root), "--apply")
        assert {row["status"] for row in requeued(rmqctl, retried_base.root, "--to",
                                                  str(tiny.root))} == {"ALREADY_REQUEUED"}
    assert last(rmqctl, tiny.root, "bills")["body"] == "of another broker"


def test_what_has_no_topic_to_go_to_is_left_out(tmp_path: Path, rmqctl: Runner) -> None:
    letter = retried.DLQ
    built = tiny_stores.build(tmp_path / "store", [
        *retried.SPECS[:1],
        tiny_stores.Spec(letter, 0, b"a", {"UNIQ_KEY": "0A01"}),
        tiny_stores.Spec(letter, 0, b"b", {"UNIQ_KEY": "0A02", "RETRY_TOPIC": "gone"}),
        tiny_stores.Spec(letter, 0, b"c", {"UNIQ_KEY": "0A03", "RETRY_TOPIC": "%DLQ%billing"}),
        tiny_stores.Spec(letter, 0, b"d", {"UNIQ_KEY": "0A04",
                                           "RETRY_TOPIC": "SCHEDULE_TOPIC_XXXX"}),
        tiny_stores.Spec(letter, 0, b"e", {"UNIQ_KEY": "0A05", "RETRY_TOPIC": "orders"})])
    rows = requeued(rmqctl, built.root, "--apply", code=1)
    assert [row["status"] for row in rows] == ["LEFT_OUT"] * 4 + ["PUT_OK"]
    assert "does not contain the topic" in rows[1]["reason"]


@pytest.mark.parametrize("words", [
    ["--to", "a", "--out", "b"], ["--out", "b", "--apply"], ["--yes"], ["--apply", "--dry-run"]])
def test_options_that_do_not_go_together(retried_base: tiny_stores.Tiny, rmqctl: Runner,
                                         words: list[str]) -> None:
    rmqctl("dlq", "requeue", retried_base.root, "--group", "billing", *words).expect(2)
