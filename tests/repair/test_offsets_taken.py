"""`offsets copy|import|export|diff`: offsets taken over from a group, a file or another store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.test_lost import filled
from tests.conftest import GoldenFolder
from tests.repair.test_offsets_reset import JSON, store_of, table
from tests.support import snapshot
from tests.support.cli import run


def offsets_of(store: Path) -> dict[str, dict[str, int]]:
    offset_table: dict[str, dict[str, int]] = table(store)["offsetTable"]
    return offset_table


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return store_of(tmp_path)


@pytest.fixture
def older(store: Path, tmp_path: Path) -> Path:
    """A consumerOffset.json with another state of the groups."""
    path = tmp_path / "older.json"
    path.write_text(json.dumps({"offsetTable": {
        "orders@billing": {"0": 3, "1": 9, "2": 4}, "pays@audit": {"0": 7},
        "pays@gone": {"0": 1}}}))
    return path


def test_copy_to_another_group_and_back(store: Path) -> None:
    before = offsets_of(store)
    words = ("offsets", "copy", store, "--from-group", "billing", "--to-group", "v2")
    with snapshot.assert_unchanged(store):
        plan = run(*words, *JSON).expect(0).json()
    assert {(queue["group"], queue["topic"]) for queue in plan["queues"]} == {("v2", "orders")}
    assert any("beyond the end" in note for note in plan["notes"])
    run(*words, "--apply", "--yes").expect(0)
    assert offsets_of(store) == {**before, "orders@v2": before["orders@billing"]}
    assert run(*words, *JSON).json()["actions"] == []
    run("undo", store, "--yes").expect(0)
    assert offsets_of(store) == before


def test_copy_replaces_and_keeps_what_the_other_group_lacks(store: Path) -> None:
    run("offsets", "copy", store, "--from-group", "audit", "--to-group", "billing",
        "--apply", "--yes").expect(0)
    assert offsets_of(store)["pays@billing"] == {"0": 7}
    assert offsets_of(store)["orders@billing"] == {"0": 5, "1": 5, "3": 99}


@pytest.mark.parametrize(("words", "what"), [
    (("--from-group", "nobody", "--to-group", "b"), "committed no offset"),
    (("--from-group", "billing", "--to-group", "billing"), "two groups"),
    (("--from-group", "billing", "--to-group", "a@b"), "not a valid name of a consumer group"),
    (("--from-group", "billing", "--to-group", "b", "--topic", "t"), "in topic t"),
])
def test_copy_refuses(store: Path, words: tuple[str, ...], what: str) -> None:
    assert what in run("offsets", "copy", store, *words).expect(6).err


@pytest.mark.parametrize(("rule", "billing"), [
    ((), {"0": 5, "1": 5, "2": 4, "3": 99}),
    (("--max",), {"0": 5, "1": 9, "2": 4, "3": 99}),
    (("--min",), {"0": 3, "1": 5, "2": 4, "3": 99}),
    (("--replace",), {"0": 3, "1": 9, "2": 4, "3": 99}),
])
def test_import_a_file(store: Path, older: Path, rule: tuple[str, ...],
                       billing: dict[str, int]) -> None:
    before = offsets_of(store)
    plan = run("offsets", "import", store, older, *rule, *JSON).expect(0).json()
    assert bool([note for note in plan["notes"] if "the value of this store" in note]) == (rule
                                                                                           == ())
    for action in plan["actions"]:
        proof = action["proof"]
        skipped, again = proof["skips"], proof["delivers_again"]
        assert not (skipped and again)
        if (proof["topic"], proof["queue_id"]) == ("orders", 0):
            assert (skipped, again) == (0, 2)
    run("offsets", "import", store, older, *rule, "--apply", "--yes").expect(0)
    assert offsets_of(store) == {**before, "orders@billing": billing, "pays@gone": {"0": 1}}
    run("undo", store, "--yes").expect(0)
    assert offsets_of(store) == before


def test_import_from_a_store_of_one_group(store: Path, tmp_path: Path) -> None:
    slave = tmp_path / "slave"
    shutil.copytree(store, slave)
    run("offsets", "reset", slave, "--group", "billing", "--to", "latest", "--apply", "--yes")
    run("offsets", "reset", slave, "--group", "audit", "--to", "earliest", "--apply", "--yes")
    run("offsets", "import", store, slave, "--group", "billing", "--replace", "--apply",
        "--yes").expect(0)
    answer: Any = run("offsets", "diff", store, slave, *JSON).expect(1).json()
    assert {group["group"] for group in answer} == {"audit"}


@pytest.mark.parametrize(("text", "what"), [
    ("{", "@"), ('{"a": 1}', "no offsetTable"),
    ('{"offsetTable": {"a@b": {"x": 1}}}', "invalid entries"),
    ('{"offsetTable": {}}', "no matching offsets")])
def test_import_refuses_what_is_none(store: Path, tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "f.json"
    path.write_text(text)
    with snapshot.assert_unchanged(store):
        assert what in run("offsets", "import", store, path, "--apply", "--yes").expect(6).err


def test_export_is_what_import_and_a_broker_take(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "exported.json"
    path.write_text(run("offsets", "export", store).expect(0).out)
    assert json.loads(path.read_text()) == run("offsets", "export", store, *JSON).json()
    assert json.loads(path.read_text())["offsetTable"] == offsets_of(store)
    assert run("offsets", "diff", path, store, *JSON).expect(0).json() == []
    # An empty store takes all of it, and then has the same.
    other = filled().write(tmp_path / "other")
    run("offsets", "import", other, path, "--apply", "--yes").expect(0)
    run("offsets", "diff", other, store).expect(0)
    shutil.copy(path, other / "config" / "consumerOffset.json")
    run("offsets", "diff", other, store).expect(0)


def test_diff_says_what_one_side_lacks(store: Path, older: Path) -> None:
    answer: Any = run("offsets", "diff", store, older, *JSON).expect(1).json()
    by_queue = {(group["group"], group["topic"], group["queue_id"]): (group["a"], group["b"],
                                                                      group["diff"])
                for group in answer}
    assert by_queue["billing", "orders", 1] == (5, 9, 4)
    assert by_queue["billing", "orders", 2] == (None, 4, None)
    assert by_queue["gone", "pays", 0] == (None, 1, None)
    assert ("audit", "pays", 0) not in by_queue


def test_unread_since_is_the_oldest_unread_message(tmp_path: Path) -> None:
    writer = filled()
    store = store_of(tmp_path, writer)
    rows = run("offsets", store, "--group", "billing", *JSON).json()["queues"]
    for row in rows:
        times = [put.time for put in writer.puts if (put.topic, put.queue_id) == (
            row["topic"], row["queue_id"]) and put.queue_offset >= row["consumer_offset"]]
        assert row["unread_since"] == (times[0] if row["topic"] == "orders" and times else None)


@pytest.mark.parametrize("queue_id", ["-1", "2147483648"])
def test_import_refuses_what_is_no_queue_id(store: Path, tmp_path: Path, queue_id: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"offsetTable": {"orders@billing": {queue_id: 3}}}))
    with snapshot.assert_unchanged(store):
        assert "invalid queue id" in run("offsets", "import", store, path).expect(6).err


def test_a_long_plan_says_what_each_topic_costs(golden_copy: GoldenFolder, tmp_path: Path) -> None:
    """Topics whose names end in different digits stay apart; --all lists each queue."""
    root = golden_copy("4.9.3/basic/store")
    queues = [row for row in run("offsets", root, *JSON).expect(0).json()["queues"]
              if row["topic"].startswith("TP_")]
    given = tmp_path / "offsets.json"
    given.write_text(json.dumps({"offsetTable": {
        f"{row['topic']}@G2": {str(other["queue_id"]): other["max_offset"] // 2
                               for other in queues if other["topic"] == row["topic"]}
        for row in queues}}))
    words = ("offsets", "import", root, given, "--replace")
    plan = run(*words, *JSON).expect(0).json()
    assert len(plan["actions"]) > 8
    shown = " ".join(run(*words).expect(0).out.split())
    for topic in {row["topic"] for row in queues}:
        proofs = [action["proof"] for action in plan["actions"]
                  if action["proof"]["topic"] == topic]
        skips = sum(proof["skips"] for proof in proofs)
        assert f"G2 at {topic}, {len(proofs)} queues: skips {skips:,} unread messages" in shown
    text = " ".join(run(*words, "--all").expect(0).out.split())
    assert all(f"G2 at {row['topic']}, queue {row['queue_id']}:" in text for row in queues
               if row["max_offset"] > 1)


def test_what_is_skipped_in_a_lost_queue_is_not_told(store: Path, older: Path) -> None:
    """The messages may be in the log: the queue comes first."""
    shutil.rmtree(store / "consumequeue")
    shown = run("offsets", "import", store, older, "--replace")
    assert "skips 0" not in shown.out
    assert "the skipped messages are unknown" in " ".join(shown.out.split())
    assert "run `rmqctl recover` first" in " ".join(shown.err.split())
