"""`pop release`: what a group did not acknowledge is delivered again, once, and can be undone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmqctl.parse_values import now_ms
from tests.repair.test_transactions_end import applied, kept_bytes, sound
from tests.support import popped as pop
from tests.support.cli import run
from tests.support.popped import (
    GROUP,
    INVISIBLE_MS,
    KEYS,
    ORDERS,
    POPPED,
    RETRY,
    REVIVE,
    TOPIC,
    check_point,
    message,
    noted,
    waiting,
)
from tests.support.tiny import Spec

SOON = now_ms() + 3_600_000


def built(tmp_path: Path, *specs: Spec, revived: int = -1, **changes: Any) -> Path:
    return pop.build(tmp_path / "store", (*ORDERS, *specs), revived, **changes).root


def records(root: Path, topic: str) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = run("read", root, "--topic", topic, "-o",
                                       "json").expect(0).json()
    return answer


def release(root: Path, *words: str) -> dict[str, Any]:
    answer: dict[str, Any] = run("pop", "release", root, "--group", GROUP, *words, "-o",
                                 "json").expect(0).json()
    return answer


def test_as_a_broker_revives_them(tmp_path: Path) -> None:
    root = pop.build(tmp_path / "store").root
    before = kept_bytes(root)
    plan = release(root)
    assert kept_bytes(root) == before
    assert [row["queue_offset"] for row in plan["released"]] == [5, 8]
    outcome = applied(root, "pop", "release", root, "--group", GROUP)
    assert [row["queue_offset"] for row in outcome["released"]] == [5, 8]
    # The messages as a broker's revive puts them.
    (_, *retried) = records(root, RETRY)
    assert [(message["body"], message["reconsume_times"], message["queue_id"],
             message["properties"])
            for message in retried] == [
        (f"message {number}", 1, 0, {"UNIQ_KEY": KEYS[number], "KEYS": f"k{number}", "TAGS": "A",
                                     "1ST_POP_TIME": str(POPPED + number // 3 * 3)})
        for number in (5, 8)]
    assert [row["released_offset"] for row in outcome["released"]] == [
        message["physical_offset"] for message in retried]
    # One acknowledgement, of what the broker has not passed.
    last = records(root, REVIVE)[-1]
    assert json.loads(last["body"]) == {"ao": 8, "bn": "broker-a", "c": GROUP, "pt": POPPED + 6,
                                        "q": 0, "so": 6, "t": TOPIC}
    assert last["tags"] == "ack"
    # Nothing is left to do, and all of it is undone.
    assert run("pop", "list", root, "-o", "json").expect(0).json() == []
    assert release(root)["actions"] == []
    sound(root)
    run("undo", root, "--yes").expect(0)
    assert kept_bytes(root) == before


def test_a_retry_topic_that_is_missing_is_created(tmp_path: Path) -> None:
    root = built(tmp_path, check_point(0, 1), topics=(TOPIC,))
    before = kept_bytes(root)
    applied(root, "pop", "release", root, "--group", GROUP)
    topics = json.loads((root / "config/topics.json").read_text())["topicConfigTable"]
    assert topics[RETRY]["readQueueNums"] == topics[RETRY]["writeQueueNums"] == 1
    assert [record["body"] for record in records(root, RETRY)] == ["message 0"]
    sound(root)
    run("undo", root, "--yes").expect(0)
    assert kept_bytes(root) == before


def test_what_is_invisible_too_long_is_left(tmp_path: Path) -> None:
    """A broker's timer does not take its acknowledgement."""
    root = built(tmp_path, waiting(check_point(0, 1, pt=9 * SOON), SOON), check_point(1, 1))
    plan = release(root)
    assert [row["queue_offset"] for row in plan["released"]] == [1]
    assert "rejects it" in plan["left"][0]["reason"]


@pytest.mark.parametrize(("specs", "topic"), [
    ((check_point(0, 1),), RETRY),
    ((message(8, f"%RETRY%{GROUP}+{TOPIC}"), check_point(0, 1)), f"%RETRY%{GROUP}+{TOPIC}"),
    ((message(8, RETRY, reconsume_times=1), check_point(0, 1, t=RETRY)), RETRY),
])
def test_which_retry_topic(tmp_path: Path, specs: tuple[Spec, ...], topic: str) -> None:
    root = built(tmp_path, *specs)
    (row,) = release(root)["released"]
    assert row["retry_topic"] == topic


def test_a_second_retry_counts_on(tmp_path: Path) -> None:
    root = built(tmp_path, message(8, RETRY, reconsume_times=1, properties={
        "1ST_POP_TIME": "17", "DELAY": "3"}), check_point(0, 1, t=RETRY))
    applied(root, "pop", "release", root, "--group", GROUP)
    last = records(root, RETRY)[-1]
    assert (last["reconsume_times"], last["properties"]["1ST_POP_TIME"]) == (2, "17")
    assert "DELAY" not in last["properties"]
    assert run("pop", "list", root, "-o", "json").expect(0).json() == []


def test_what_waits_in_the_timer(tmp_path: Path) -> None:
    """Its acknowledgement waits in the timer as well, a second behind the check point."""
    root = built(tmp_path, waiting(check_point(0, 1, pt=SOON), SOON + INVISIBLE_MS - 1000))
    outcome = applied(root, "pop", "release", root, "--group", GROUP)
    assert any("start the broker before" in note for note in outcome["notes"])
    last = records(root, "rmq_sys_wheel_timer")[-1]
    assert last["properties"]["REAL_TOPIC"] == REVIVE
    assert SOON + INVISIBLE_MS - 1000 <= int(last["properties"]["TIMER_OUT_MS"])
    assert run("pop", "list", root, "-o", "json").expect(0).json() == []


@pytest.mark.parametrize("spec", [
    waiting(check_point(0, 1), POPPED), check_point(40, 1), check_point(0, 1, q=9),
    check_point(0, 1, t="none"), check_point(3, 1, pt=POPPED - 500_000)])
def test_what_is_left(tmp_path: Path, spec: Spec) -> None:
    root = built(tmp_path, spec)
    plan = release(root)
    assert (plan["actions"], plan["released"], len(plan["left"])) == ([], [], 1)
    assert plan["left"][0]["reason"]


def test_what_may_be_acknowledged_is_left(tmp_path: Path) -> None:
    root = built(tmp_path, check_point(0, 1), noted("ack", b"{"), revived=1)
    plan = release(root)
    assert [(row["state"], row["queue_offset"]) for row in plan["left"]] == [("undecided", 0)]
    assert "--undecided" in plan["left"][0]["reason"]
    chosen = release(root, "--undecided")
    assert [(row["state"], row["queue_offset"]) for row in chosen["released"]] == [("undecided", 0)]
    assert chosen["left"] == []


@pytest.mark.parametrize(("words", "count"), [
    (("--topic", TOPIC), 2), (("--topic", "bills"), 0), (("--queue", "0"), 2), (("--queue", "1"),
                                                                               0)])
def test_narrowed(tmp_path: Path, words: tuple[str, ...], count: int) -> None:
    assert len(release(pop.build(tmp_path / "store").root, *words)["released"]) == count


def test_a_store_that_was_not_closed(tmp_path: Path) -> None:
    root = pop.build(tmp_path / "store", abort=True).root
    before = kept_bytes(root)
    result = run("pop", "release", root, "--group", GROUP, "--apply", "--yes").expect(6)
    assert "not closed cleanly" in result.err
    assert kept_bytes(root) == before


@pytest.mark.parametrize("group", ["../x", "a/b", "é\u0000"])
def test_names_that_can_be_no_topic(tmp_path: Path, group: str) -> None:
    """A check point may name any group: nothing is written outside of the store's folders."""
    root = built(tmp_path, check_point(0, 1, c=group), check_point(1, 1))
    rows = run("pop", "list", root, "-o", "json").expect(0).json()
    assert {row["group"] for row in rows} == {GROUP, group}
    if "\0" not in group:
        before = kept_bytes(root)
        done = run("pop", "release", root, "--group", group, "--apply", "-o", "json").expect(0)
        assert (done.json()["released"], len(done.json()["left"])) == ([], 1)
        assert kept_bytes(root) == before


def test_names_that_are_too_long(tmp_path: Path) -> None:
    """They are counted, and keep nothing from being released."""
    root = built(tmp_path, check_point(0, 1, t="x" * 300), check_point(1, 1))
    assert "too long" in run("pop", "list", root).expect(1).err
    assert [row["queue_offset"] for row in release(root)["released"]] == [1]
