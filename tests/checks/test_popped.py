"""`pop list`: what was received by POP and not acknowledged, and what a broker makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmqctl.checks.popped import (
    BEYOND,
    DUE,
    GONE,
    INVISIBLE,
    LOST,
    NO_QUEUE,
    NO_TOPIC,
    REPLACED,
    UNDECIDED,
    PopState,
    popped,
)
from rmqctl.store import Store
from tests.support import popped as pop
from tests.support.cli import run
from tests.support.popped import (
    GROUP,
    INVISIBLE_MS,
    KEYS,
    ORDERS,
    POPPED,
    RETRY,
    TOPIC,
    ack,
    check_point,
    message,
    noted,
    waiting,
)
from tests.support.tiny import Spec

LATER = POPPED + 10 * INVISIBLE_MS
"""When all deliveries are visible again."""


def ask(root: Path, now: int = LATER) -> PopState:
    with Store.open(root) as store:
        return popped(store, now)


def states(root: Path, now: int = LATER) -> list[tuple[int, str]]:
    return [(message.queue_offset, message.state) for message in ask(root, now).messages]


def built(tmp_path: Path, *specs: Spec, revived: int = -1, **changes: Any) -> Path:
    return pop.build(tmp_path / "store", (*ORDERS, *specs), revived, **changes).root


def test_lost_and_due_ones(tmp_path: Path) -> None:
    root = pop.build(tmp_path / "store").root
    assert states(root) == [(5, LOST), (8, DUE)]
    assert states(root, POPPED) == [(5, LOST), (8, INVISIBLE)]
    state = ask(root)
    assert (state.acknowledged, state.unmatched, state.damaged) == (6, 1, 0)
    row = state.messages[0].as_dict(LATER)
    assert {name: row[name] for name in (
        "group", "topic", "queue_id", "popped", "visible_at", "delivered", "acknowledged",
        "revive_offset", "unique_key", "keys")} == {
        "group": GROUP, "topic": TOPIC, "queue_id": 0, "popped": POPPED + 3,
        "visible_at": POPPED + 3 + INVISIBLE_MS, "delivered": 3, "acknowledged": 1,
        "revive_offset": 2, "unique_key": KEYS[5], "keys": ["k5"]}


def test_what_a_broker_noted_again_is_one_delivery(tmp_path: Path) -> None:
    """A broker that cannot read a message puts a check point of it alone."""
    root = built(tmp_path, check_point(3), ack(3, 3, 4), check_point(
        5, 1, pt=POPPED + 3, rp="1"), revived=1)
    assert states(root) == [(5, DUE)]
    assert ask(root).messages[0].as_dict(LATER)["retries"] == 1


@pytest.mark.parametrize(("spec", "wanted"), [
    (message(4, RETRY, properties={"1ST_POP_TIME": str(POPPED + 4)}, reconsume_times=1), []),
    (message(4, f"%RETRY%{GROUP}+{TOPIC}", properties={"1ST_POP_TIME": str(POPPED + 4)},
             reconsume_times=1), []),
    (message(4, RETRY, properties={"1ST_POP_TIME": "17"}, reconsume_times=1), [(4, LOST)]),
    (message(5, RETRY, properties={"1ST_POP_TIME": str(POPPED + 4)}, reconsume_times=1),
     [(4, LOST)]),
])
def test_a_retried_message_is_that_of_the_delivery(tmp_path: Path, spec: Spec,
                                                   wanted: list[tuple[int, str]]) -> None:
    assert states(built(tmp_path, check_point(4, 1), spec, revived=0)) == wanted


@pytest.mark.parametrize(("point", "wanted"), [
    (check_point(40, 1), BEYOND), (check_point(0, 1, q=7), NO_QUEUE),
    (check_point(0, 1, t="none"), NO_TOPIC), (check_point(3, 1, pt=POPPED - 500_000), REPLACED),
])
@pytest.mark.parametrize("revived", [-1, 0])
def test_orphaned_ones(tmp_path: Path, point: Spec, wanted: str, revived: int) -> None:
    """Those of a topic that was deleted, and maybe made again (apache/rocketmq#8479)."""
    root = built(tmp_path, point, revived=revived)
    assert [state for _, state in states(root)] == [wanted]
    rows = run("pop", "list", root, "--state", "orphaned", "-o", "json").expect(1).json()
    assert [row["state"] for row in rows] == [wanted]


def test_a_message_that_expired_is_gone(tmp_path: Path) -> None:
    root = built(tmp_path, check_point(0, 1), commitlog_file_size=1024)
    min((root / "commitlog").iterdir()).unlink()
    assert states(root) == [(0, GONE)]


def test_what_waits_in_the_timer(tmp_path: Path) -> None:
    due = POPPED + INVISIBLE_MS
    root = built(tmp_path, waiting(check_point(0), due), waiting(ack(0, 1), due),
                 waiting(ack(0, 2), due))
    assert states(root, POPPED) == [(0, INVISIBLE)]
    (stored_message,) = ask(root).messages
    assert (stored_message.delivery.offset, stored_message.delivery.kept_in) == (None, "timer")


@pytest.mark.parametrize("spec", [
    noted("ck", b""), noted("ck", b"{"), noted("ck", b"[]"), noted("ck", b"[" * 100_0),
    check_point(0, n=-1), check_point(0, n=128), check_point(0, so="x"), check_point(0, so=1 << 70),
    check_point(0, d=[0]), check_point(0, d=["0"]), check_point(0, t=None), check_point(0, q=-1),
    check_point(0, it=1.5), noted("ack", b"\xff"), ack(0, 1, aol=[1 << 64]), ack(0, 1, c=7),
])
def test_bodies_that_are_none(tmp_path: Path, spec: Spec) -> None:
    """One of them is counted, and what it may have acknowledged is undecided."""
    root = built(tmp_path, check_point(4, 1), spec, check_point(5, 1), revived=1)
    state = ask(root)
    assert state.damaged == 1
    assert [(message.queue_offset, message.state)
            for message in state.messages] == [(4, UNDECIDED), (5, DUE)]
    result = run("pop", "list", root).expect(1)
    assert "is not a" in result.err


@pytest.mark.parametrize(("specs", "left"), [
    ((check_point(0), ack(0, 0, 1, 2), ack(0, 0, 1, 2)), []),
    ((check_point(0), ack(0, 1), ack(0, 1), ack(0, 9)), [0, 2]),
    ((ack(0, 1), check_point(0)), [0, 1, 2]),
    ((check_point(0), ack(0, 1, bn="broker-b")), [0, 1, 2]),
    ((check_point(0), ack(0, 1, bn="")), [0, 2]),
    ((check_point(0, bn=None), ack(0, 1)), [0, 2]),
    ((check_point(0, bm=5),), [1]),
    ((check_point(0, d=None), ack(0, 2)), [0, 1]),
    ((check_point(0, d=[0, 3, 7]), ack(0, 3)), [0, 7]),
    ((check_point(0), ack(0, 1), check_point(0)), [0, 1, 2]),
    ((noted("xx", b"{"), check_point(0, 1)), [0]),
])
def test_which_are_acknowledged(tmp_path: Path, specs: tuple[Spec, ...], left: list[int]) -> None:
    assert [offset for offset, _ in states(built(tmp_path, *specs))] == left


def test_long_names(tmp_path: Path) -> None:
    """5.0.0 writes acknowledgements so."""
    body = json.dumps({"ackOffset": 1, "consumerGroup": GROUP, "popTime": POPPED, "queueId": 0,
                       "startOffset": 0, "topic": TOPIC}).encode()
    assert states(built(tmp_path, check_point(0), noted("ack", body))) == [(0, DUE), (2, DUE)]


def test_records_in_rocksdb(golden_copy: Any, tmp_path: Path) -> None:
    rocksdict = pytest.importorskip("rocksdict")
    root = built(tmp_path)
    key = (POPPED + INVISIBLE_MS).to_bytes(8, "big") + f"{GROUP}@{TOPIC}@".encode() + (
        bytes(4) + b"@" + (7).to_bytes(8, "big"))
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    database = rocksdict.Rdict(str(root / "kvStore"), options, column_families={
        "default": options, "popState": options})
    database.get_column_family("popState")[key] = json.dumps(
        {"popTime": POPPED, "invisibleTime": INVISIBLE_MS}).encode()
    database.get_column_family("popState")[b"odd"] = b"{}"
    database.close()
    state = ask(root)
    assert [(message.queue_offset, message.state, message.delivery.kept_in)
            for message in state.messages] == [
                (7, DUE, "kvStore")]
    assert len(state.notes) == 1


def test_the_command(tmp_path: Path) -> None:
    root = pop.build(tmp_path / "store").root
    rows = run("pop", "list", root, "-o", "json").expect(1).json()
    assert [row["state"] for row in rows] == [LOST, DUE]
    for words, count in ((("--group", "other"), 0), (("--topic", "bills"), 0),
                         (("--queue", "1"), 0), (("--state", "due"), 1), (("--limit", "1"), 1)):
        assert len(run("pop", "list", root, *words, "-o", "json").expect(0, 1).json()) == count
    run("pop", "list", root, "--state", "due").expect(0)
