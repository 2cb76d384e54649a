"""``query … --track``: who consumed a message, and what became of what was sent back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Runner
from tests.support import damage, retried
from tests.support import tiny as tiny_stores


def tracked(rmqctl: Runner, root: Path, *query: str, code: int = 0) -> dict[str, Any]:
    done = rmqctl("query", query[0], root, *query[1:], "--track", "-o", "json")
    row: dict[str, Any] = done.expect(code).json()[0]
    return row


def words(row: dict[str, Any]) -> dict[str, str]:
    return {step["group"]: step["track"] for step in row["track"]}


def roles(row: dict[str, Any]) -> list[tuple[str, str | None, int]]:
    return [(copy["role"], copy["group"], copy["physical_offset"]) for copy in row["chain"]]


CHAIN = [("message", None, 0), ("delayed", "billing", 573), ("retry", "billing", 844),
         ("dead letter", "billing", 1344)]


@pytest.mark.parametrize("query", [
    ("id", retried.FIRST), ("key", "--topic", "orders", "--key", "k0"), ("offset", "--phy", "0")])
def test_each_query(retried_base: tiny_stores.Tiny, rmqctl: Runner, query: list[str]) -> None:
    row = tracked(rmqctl, retried_base.root, *query)
    assert row["body"] == "first"
    assert words(row) == {"billing": "CONSUMED", "audit": "CONSUMED", "stock": "NOT_SUBSCRIBED"}
    assert roles(row) == CHAIN
    billing = next(step for step in row["track"] if step["group"] == "billing")
    assert billing["detail"] == "sent back 2 times, finally to the dead letter at 1344"


@pytest.mark.parametrize("place", [573, 844, 1344])
def test_the_chain_from_each_of_its_copies(retried_base: tiny_stores.Tiny, rmqctl: Runner,
                                           place: int) -> None:
    assert roles(tracked(rmqctl, retried_base.root, "offset", "--phy", str(place))) == CHAIN


def test_not_yet_consumed(retried_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    row = tracked(rmqctl, retried_base.root, "offset", "--phy", "287")
    assert words(row) == {"billing": "CONSUMED", "audit": "NOT_CONSUME_YET",
                          "stock": "NOT_SUBSCRIBED"}
    details = {step["group"]: step["detail"] for step in row["track"]}
    assert details["billing"] == "sent back 1 time: the copy at 1102 is not consumed yet"
    assert details["audit"] == "no consumer offset in this queue"
    last = tracked(rmqctl, retried_base.root, "offset", "--phy", "1867")
    assert words(last)["billing"] == "NOT_CONSUME_YET"
    assert last["chain"] == []


def test_the_delay_service(retried_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    row = tracked(rmqctl, retried_base.root, "offset", "--phy", "573")
    assert words(row) == {"(delay)": "CONSUMED"}


def test_the_first_of_all_is_not_here(retried_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    done = rmqctl("query", "offset", retried_base.root, "--phy", "1600", "--track").expect(0)
    assert f"{retried.ELSEWHERE} of topic bills, is not in this store" in done.err


def test_without_an_index_the_origin_is_found_by_place(retried: tiny_stores.Tiny,
                                                       rmqctl: Runner) -> None:
    for file in (retried.root / "index").iterdir():
        file.unlink()
    row = tracked(rmqctl, retried.root, "offset", "--phy", "1344")
    assert roles(row) == [CHAIN[0], CHAIN[-1]]
    done = rmqctl("query", "offset", retried.root, "--phy", "0", "--track").expect(0)
    assert "unique_key=0A00000700000000" in done.err


def test_light_queues(tmp_path: Path, rmqctl: Runner) -> None:
    built = tiny_stores.variant(tmp_path / "store", "lmq")
    (built.root / "config" / "consumerOffset.json").write_text(json.dumps(
        {"offsetTable": {"orders@plain": {0: 0}, "%LMQ%a@light": {0: 3}, "%LMQ%b@light": {0: 0}}}))
    second = built.messages[1].start
    row = tracked(rmqctl, built.root, "offset", "--phy", str(second))
    assert [(step["topic"], step["group"], step["track"]) for step in row["track"]] == [
        ("orders", "plain", "NOT_CONSUME_YET"), ("orders", "light", "NOT_SUBSCRIBED"),
        ("%LMQ%a", "light", "CONSUMED"), ("%LMQ%b", "light", "NOT_CONSUME_YET")]


def test_a_half_message_is_nobodys(tmp_path: Path, rmqctl: Runner) -> None:
    built = tiny_stores.variant(tmp_path / "store", "transaction")
    done = rmqctl("query", "offset", built.root, "--phy", "0", "--track").expect(0)
    assert "a prepared record has no consume queue entry" in done.err


def test_positions_that_cannot_be_read(retried: tiny_stores.Tiny, rmqctl: Runner) -> None:
    damage.config_both_bad(retried.root, "consumerOffset.json")
    row = tracked(rmqctl, retried.root, "offset", "--phy", "143", code=1)
    assert set(words(row).values()) == {"UNKNOWN"}
