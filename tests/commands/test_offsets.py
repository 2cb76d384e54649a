"""``rmqctl offsets``: the document, the rows, the exit code."""

from __future__ import annotations

from tests.conftest import Runner
from tests.support import damage
from tests.support import tiny as tiny_stores


def test_the_document(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    answer = rmqctl("offsets", tiny_base.root, "--group", "billing", "-o", "json").expect(0).json()
    assert answer["groups"] == [{"group": "billing", "diff_total": 3}]
    assert answer["diff_total"] == 3
    assert [list(row) for row in answer["queues"]] == [[
        "group", "topic", "queue_id", "min_offset", "max_offset", "consumer_offset", "diff",
        "last_store_timestamp", "unread_since", "note"]] * 2
    assert [row["diff"] for row in answer["queues"]] == [2, 1]


def test_rows(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    rows = rmqctl("offsets", tiny_base.root, "-o", "jsonl").expect(0).jsonl()
    assert {row["group"] for row in rows} == {"billing", "(delay)", None}
    head = rmqctl("offsets", tiny_base.root, "-o", "csv").expect(0).out.splitlines()[0]
    assert head == ("group,topic,queue_id,min_offset,max_offset,consumer_offset,diff,"
                    "last_store_timestamp,unread_since,note")


def test_for_people(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    out = rmqctl("offsets", tiny_base.root, "--topic", "orders", "-o", "table").expect(0).out
    assert "diff_total" in out
    assert "2023-11-14T22:13:25" in out
    narrow = rmqctl("offsets", tiny_base.root, "--topic", "orders", "-o", "table",
                    env={"COLUMNS": "80"}).expect(0).out
    assert max(map(len, narrow.splitlines())) <= 80


def test_nothing_matches(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    done = rmqctl("offsets", tiny_base.root, "--group", "biling", "-o", "json").expect(1)
    assert done.json() == {"queues": [], "groups": [], "diff_total": 0}
    assert "biling" in done.err
    rmqctl("offsets", tiny_base.root, "--topic", "nope").expect(1)


def test_damaged_commits_are_reported(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    damage.config_truncated(tiny.root, "consumerOffset.json", 20)
    done = rmqctl("offsets", tiny.root, "--group", "billing", "-o", "json").expect(0)
    assert done.json()["diff_total"] == 3
    assert "showing config/consumerOffset.json.bak" in done.err
    damage.config_both_bad(tiny.root, "consumerOffset.json")
    done = rmqctl("offsets", tiny.root, "-o", "json").expect(1)
    assert {row["topic"] for row in done.json()["queues"]} >= {"orders", "bills"}


def test_an_empty_store(tmp_path, rmqctl: Runner) -> None:
    (tmp_path / "commitlog").mkdir()
    assert rmqctl("offsets", tmp_path, "-o", "json").expect(0).json() == {
        "queues": [], "groups": [], "diff_total": 0}
