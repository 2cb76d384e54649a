"""`transactions commit` and `rollback`: as a producer ends them, byte for byte, and undone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.settings import Settings
from rmqctl.engine.engine import Engine
from rmqctl.engine.put.message import Outgoing
from rmqctl.repair.broker_config import configured
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.transactions import TransactionFilter, plan_end
from rmqctl.store import Store
from tests.conftest import GoldenFolder
from tests.support import tiny
from tests.support.cli import run
from tests.support.tiny import Spec

HALF, OP, GIVEN_UP = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
                      "TRANS_CHECK_MAX_TIME_TOPIC")
KEYS = [f"0A0000070000{number:04X}" for number in range(16)]
NOW = tiny.EPOCH + 600_000


def half(number: int, topic: str = HALF, **more: str) -> Spec:
    return Spec(topic, 0, b"half %d" % number, {
        "UNIQ_KEY": KEYS[number], "__transactionId__": KEYS[number], "PGROUP": "pg",
        "TRAN_MSG": "true", "KEYS": f"k{number}", "TAGS": "A", "REAL_TOPIC": "orders",
        "REAL_QID": "1", **more})


def op(body: bytes, tag: str = "d") -> Spec:
    return Spec(OP, 0, body, {"TAGS": tag})


def kept_bytes(root: Path) -> dict[str, bytes]:
    """Every file but those of rmqctl."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*"))
            if path.is_file() and ".rmqctl" not in path.parts}


def applied(_root: Path, *words: Any) -> dict[str, Any]:
    done: dict[str, Any] = run(*words, "--apply", "--yes", "-o", "json").expect(0).json()
    assert done["applied"]
    return done


def sound(root: Path) -> None:
    assert run("verify", root, "-o", "json").expect(0).json()["ok"]
    start = run("preflight", root, "-o", "json").json()
    assert (start["starts"], start["messages_lost"]) == (True, 0)


def built(tmp_path: Path, *specs: Spec, **changes: Any) -> Path:
    root = tiny.build(tmp_path / "store", (
        Spec("orders", 1, b"first"), *specs), **{"commitlog_file_size": 4096, "index_slots": 64,
                                                "index_max": 200, **changes}).root
    shutil.rmtree(root / "config", ignore_errors=True)
    return root


def listed(root: Path) -> list[tuple[str, int | None]]:
    return [(row["state"], row["half_offset"]) for row in run(
        "transactions", "list", root, "-o", "json").json()]


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_golden_stores(golden_copy: GoldenFolder, version: str, end: str) -> None:
    root = golden_copy(f"{version}/transaction/store")
    before = kept_bytes(root)
    open_ones = run("transactions", "list", root, "-o", "json").json()
    assert open_ones
    plan = run("transactions", end, root, "--all", "-o", "json").expect(0).json()
    assert kept_bytes(root) == before
    assert len(plan["transactions"]) == len(open_ones)
    done = applied(root, "transactions", end, root, "--all")
    assert listed(root) == []
    sound(root)
    for row in done["transactions"]:
        if end == "rollback":
            assert row["committed_offset"] is None
            continue
        (record,) = run("query", "offset", root, "--phy", str(row["committed_offset"]),
                        "-o", "json").json()
        assert (record["topic"], record["queue_id"], record["prepared_transaction_offset"]) == (
            row["topic"], row["queue_id"], row["physical_offset"])
        assert record["sys_flag"] & 12 == 8
    again = run("transactions", end, root, "--all", "-o", "json").expect(0).json()
    assert again["actions"] == []
    run("undo", root, "--yes").expect(0)
    assert kept_bytes(root) == before


@pytest.mark.long
@pytest.mark.parametrize("set_id", ["5.3.3/transaction", "4.9.3/transaction"])
@pytest.mark.parametrize("clear", ["", "index"])
def test_the_bytes_are_the_engines(golden_copy: GoldenFolder, tmp_path: Path, set_id: str,
                                   clear: str) -> None:
    """The same messages put by an engine; only its checkpoint goes on besides."""
    root = golden_copy(f"{set_id}/store")
    if clear:
        shutil.rmtree(root / clear)
    other = tmp_path / "other"
    shutil.copytree(root, other)
    put: list[Outgoing] = []
    with Store.open(root) as store, Scratch() as scratch, pytest.MonkeyPatch.context() as patch:
        from rmqctl.repair import putting

        real = putting.Puts.put

        def noting(puts: putting.Puts, messages: list[Outgoing], why: str) -> Any:
            put.extend(messages)
            return real(puts, messages, why)

        patch.setattr(putting.Puts, "put", noting)
        plan_end(store, "commit", TransactionFilter(), lambda: NOW, scratch)
        settings: Settings = configured(store, {}).settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rmqctl.commands.shared.ending.now_ms", lambda: NOW)
        applied(root, "transactions", "commit", root, "--all")
    with Engine.open(other, settings, clock=lambda: NOW, wall_clock=lambda: NOW) as engine:
        assert all(result.stored for result in engine.put_many(put))
    store_kept_bytes, wanted = kept_bytes(root), kept_bytes(other)
    assert store_kept_bytes.keys() == wanted.keys()
    assert [name for name in store_kept_bytes
            if store_kept_bytes[name] != wanted[name]] in ([], ["checkpoint"])


def test_copies_are_ended_together(tmp_path: Path) -> None:
    root = built(tmp_path, half(0), half(1), half(0, TRANSACTION_CHECK_TIMES="1"), op(b"1,"))
    assert [offset for _, offset in listed(root)] == [2]
    done = applied(root, "transactions", "commit", root, "--id", KEYS[0])
    (row,) = done["transactions"]
    assert (row["copies"], row["checks"]) == (2, 1)
    bodies = [message["body"] for message in run("read", root, "--topic", OP, "-o", "json").json()]
    assert ",".join(bodies[1:]).rstrip(",") == "0,2"
    assert listed(root) == []


@pytest.mark.parametrize("body", [b"", b",,", b"x", b"-1,", b"99999999999999999999,", b"\xff0",
                                  b"0;", b"9" * 70_000])
def test_op_bodies_that_name_nothing(tmp_path: Path, body: bytes) -> None:
    root = built(tmp_path, half(0), op(body), commitlog_file_size=1 << 17)
    assert [offset for _, offset in listed(root)] == [0]


@pytest.mark.parametrize(("body", "left"), [(b"0", [1]), (b"x,1,,0,zz", []), (b"1,1,1", [0])])
def test_op_bodies(tmp_path: Path, body: bytes, left: list[int]) -> None:
    assert [offset for _, offset in listed(built(tmp_path, half(0), half(1), op(body)))] == left


def test_an_op_message_has_its_tag(tmp_path: Path) -> None:
    assert len(listed(built(tmp_path, half(0), op(b"0", "x")))) == 1


@pytest.mark.parametrize("indexed", [True, False])
def test_what_a_check_passed(tmp_path: Path, indexed: bool) -> None:
    """0 was put once more and then ended, 2 was discarded, 3 is unknown, 4 waits."""
    root = built(tmp_path, half(0), half(0), half(2), half(3), half(4), op(b"1,"),
                 half(2, GIVEN_UP))
    if not indexed:
        shutil.rmtree(root / "index")
    (root / "config").mkdir()
    (root / "config/consumerOffset.json").write_text(
        json.dumps({"offsetTable": {f"{HALF}@CID_RMQ_SYS_TRANS": {"0": 4}}}))
    assert listed(root) == [("discarded", 2), ("passed over", 3), ("discarded next", 4)]
    # Only those that are still checked are taken; what was discarded by its id.
    plan = run("transactions", "commit", root, "--all", "-o", "json").expect(0).json()
    assert [row["half_offset"] for row in plan["transactions"]] == [4]
    applied(root, "transactions", "commit", root, "--id", KEYS[2], "--id", KEYS[3])
    assert listed(root) == [("discarded next", 4)]


def test_one_that_another_copy_ended(tmp_path: Path) -> None:
    """Its producer answered late, for the half message that was put once more since."""
    root = built(tmp_path, half(0), half(0), op(b"0"))
    assert listed(root) == [("ended before", 1)]
    plan = run("transactions", "commit", root, "--id", KEYS[0], "-o", "json").expect(0).json()
    assert (plan["actions"], len(plan["left"])) == ([], 1)
    applied(root, "transactions", "rollback", root, "--id", KEYS[0])
    assert listed(root) == []


def test_a_half_message_that_is_gone(tmp_path: Path) -> None:
    built = tiny.build(tmp_path / "store", (Spec("orders", 1, b"first"), half(0), half(1)),
                       commitlog_file_size=4096)
    place = built.messages[1].start
    data = bytearray((built.root / "commitlog" / f"{0:020}").read_bytes())
    data[place + 4] ^= 255
    (built.root / "commitlog" / f"{0:020}").write_bytes(data)
    rows = run("transactions", "list", built.root, "-o", "json").expect(1).json()
    assert sorted((row["state"], row["in_log"]) for row in rows) == [
        ("discarded next", True), ("gone", False)]


@pytest.mark.parametrize(("more", "reason"), [
    ({"REAL_TOPIC": "a/b"}, "no topic and queue"), ({"REAL_QID": "x"}, "no topic and queue"),
    ({"REAL_QID": "-1"}, "no topic and queue")])
def test_what_is_left(tmp_path: Path, more: dict[str, str], reason: str) -> None:
    root = built(tmp_path, half(0, **more), half(1))
    done = applied(root, "transactions", "commit", root, "--all")
    assert [reason in row["reason"] for row in done["left"]] == [True]
    assert [offset for _, offset in listed(root)] == [0]
    applied(root, "transactions", "rollback", root, "--all")
    assert listed(root) == []


def test_a_topic_that_is_not_known(tmp_path: Path) -> None:
    root = built(tmp_path, half(0))
    (root / "config").mkdir()
    (root / "config/topics.json").write_text('{"topicConfigTable": {}}')
    plan = run("transactions", "commit", root, "--all", "-o", "json").expect(0).json()
    assert "has no topic orders" in plan["left"][0]["reason"]


def test_the_log_goes_on_in_the_next_file(tmp_path: Path) -> None:
    root = built(tmp_path, *map(half, range(6)), commitlog_file_size=1024)
    before = kept_bytes(root)
    applied(root, "transactions", "commit", root, "--all")
    assert len(list((root / "commitlog").iterdir())) > len(
        [name for name in before if name.startswith("commitlog")])
    sound(root)
    run("undo", root, "--yes").expect(0)
    assert kept_bytes(root) == before


def test_queues_in_rocksdb(golden_copy: GoldenFolder) -> None:
    pytest.importorskip("rocksdict")
    root = golden_copy("5.3.3/transaction/store")
    run("convert", root, "--consumequeue", "rocksdb", "--apply", "--yes").expect(0)
    before = kept_bytes(root)
    assert len(listed(root)) == 5
    applied(root, "transactions", "commit", root, "--all")
    assert listed(root) == []
    sound(root)
    run("undo", root, "--yes").expect(0)
    assert kept_bytes(root) == before


@pytest.mark.parametrize("words", [(), ("--all", "--id", "x"), ("--all", "--older-than", "1h")])
def test_one_way_to_choose(tmp_path: Path, words: tuple[str, ...]) -> None:
    run("transactions", "commit", built(tmp_path, half(0)), *words).expect(2)


def test_chosen_by_age_group_and_id(tmp_path: Path) -> None:
    root = built(tmp_path, half(0), half(1, PGROUP="other"), half(2), op(b"2"))
    for words, count in ((("--older-than", "1h"), 2), (("--older-than", "90000d"), 0),
                         (("--all", "--group", "other"), 1), (("--all", "--group", "none"), 0)):
        plan = run("transactions", "rollback", root, *words, "-o", "json").expect(0).json()
        assert len(plan["transactions"]) == count
    ended = run("transactions", "rollback", root, "--id", KEYS[2], "-o", "json").expect(0).json()
    assert (ended["actions"], len(ended["notes"])) == ([], 1)
    result = run("transactions", "rollback", root, "--id", "nobody").expect(6)
    assert "nobody" in result.err
    offset_id = run("transactions", "list", root, "-o", "json").json()[1]["msg_id"]
    plan = run("transactions", "rollback", root, "--id", offset_id, "-o", "json").expect(0).json()
    assert [row["half_offset"] for row in plan["transactions"]] == [1]


def test_a_store_that_is_held_or_was_not_closed(tmp_path: Path) -> None:
    root = built(tmp_path, half(0), abort=True)
    before = kept_bytes(root)
    run("transactions", "commit", root, "--all", "--apply", "--yes").expect(6)
    assert kept_bytes(root) == before
