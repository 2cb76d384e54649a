"""offsets: lag as a broker computes it, oddities told, other numbers left alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.versions import version_for
from rmqctl.broker.view import view_of
from rmqctl.store import Store
from rmqctl.store.config.offsets import DELAY_GROUP, MAX_EMPTY_QUEUES, Lag
from rmqctl.store.log.bounds import View
from tests.conftest import GoldenFolder
from tests.support import damage
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores

CLEAN = [pytest.param(golden_store, id=golden_store.id)
         for golden_store in golden_sets.clean_stores()]
Offsets = Mapping[str, Mapping[int, int]]


def write(root: Path, name: str, value: object) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / name).write_text(json.dumps(value))
    (root / "config" / f"{name}.bak").unlink(missing_ok=True)


def commit(root: Path, table: Offsets, topics: Mapping[str, int] | None = None) -> None:
    """Replace the committed offsets and, if given, the topics with their read queues."""
    write(root, "consumerOffset.json", {"offsetTable": table})
    if topics is not None:
        write(root, "topics.json", {"topicConfigTable": {
            name: {"readQueueNums": count} for name, count in topics.items()}})


def lag(root: Path, group: str | None = None, topic: str | None = None,
        dirs: tuple[str, ...] = (), view: str = "disk", generation: int | None = None,
        ) -> tuple[list[dict[str, Any]], dict[str, int]]:
    with Store.open(root, dirs) as store:
        seen = view_of(store, view, version_for(generation) if generation else None)
        lag = Lag(store, seen, group, topic)
        return list(lag.rows()), lag.totals


def brief(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["topic"], row["queue_id"], row["max_offset"], row["consumer_offset"],
             row["diff"]) for row in rows]


def test_the_tiny_store(tiny_base: tiny_stores.Tiny) -> None:
    rows, totals = lag(tiny_base.root, "billing")
    ends = {key: len(units) for key, units in tiny_base.queues().items()}
    assert brief(rows) == [("orders", 0, ends["orders", 0], 2, ends["orders", 0] - 2),
                           ("orders", 1, ends["orders", 1], 1, ends["orders", 1] - 1)]
    assert totals == {"billing": ends["orders", 0] + ends["orders", 1] - 3}
    consumed = tiny_base.queues()["orders", 0][1]
    assert rows[0]["last_store_timestamp"] == (
        tiny_base.messages[consumed.message].record.store_timestamp)


def test_a_zeroed_entry_hides_no_later_entries(tiny: tiny_stores.Tiny) -> None:
    """Neither from the disk's view nor from the readers; a broker's recovery stops there."""
    before, _ = lag(tiny.root, "billing")
    with Store.open(tiny.root) as store:
        file = store.queues.by_key["orders", 0].files[0].path
    with open(file, "r+b") as queue:
        queue.seek(20)
        queue.write(bytes(20))
    rows, _ = lag(tiny.root, "billing")
    assert brief(rows) == brief(before)
    seen_by_broker = brief(lag(tiny.root, "billing", view="broker")[0])
    assert seen_by_broker[0][2] == 1
    assert seen_by_broker[1] == brief(before)[1]


def test_without_a_group_all_are_shown(tiny_base: tiny_stores.Tiny) -> None:
    rows, totals = lag(tiny_base.root)
    assert {row["group"] for row in rows} == {"billing", DELAY_GROUP, None}
    free = [row for row in rows if row["group"] is None]
    assert [(row["topic"], row["queue_id"], row["max_offset"], row["consumer_offset"],
             row["diff"]) for row in free] == [("bills", 0, 2, None, None)]
    assert set(totals) == {"billing", DELAY_GROUP}


@pytest.mark.parametrize("store", CLEAN)
def test_ranges_are_the_engines(store: golden_sets.GoldenStore, golden: GoldenFolder) -> None:
    expect = store.load_expect(golden(store.set.id))
    expected = {(queue.topic, queue.queue_id): (queue.min, queue.max) for queue in expect.queues}
    rows, _ = lag(golden(store.id), dirs=store.dirs)
    for row in rows:
        if (row["topic"], row["queue_id"]) in expected:
            assert (row["min_offset"], row["max_offset"]) == expected[row["topic"], row["queue_id"]]
    assert {key for key, ends in expected.items() if ends != (0, 0)} <= {
        (row["topic"], row["queue_id"]) for row in rows}


@pytest.mark.parametrize("name", ["4.9.3/basic/store", "5.3.3/batchcq/store",
                                  "5.3.3/compaction/store"])
def test_every_committed_offset(name: str, golden_copy: GoldenFolder,
                                golden: GoldenFolder) -> None:
    """The lag and the time of the last consumed message, for each offset of a real queue."""
    root = golden_copy(name)
    part = golden_sets.split(name)[0]
    expect = golden_sets.GoldenStore(part, "store").load_expect(golden(part.id))
    stored = {}
    for put in (golden(part.id) / "input.jsonl").read_text().splitlines():
        raw = json.loads(put)
        for item in raw.get("storedList") or [raw["stored"]]:
            stored[item["phyOffset"]] = item["storeTimestamp"]
    queue = max(expect.queues, key=lambda segment: segment.max)
    places = {offset: unit.physical_offset for unit in queue.units
              for offset in range(unit.queue_offset,
                                  unit.queue_offset + (unit.batch_size or 1))}
    for offset in range(queue.max + 1):
        commit(root, {f"{queue.topic}@g": {queue.queue_id: offset}},
               {queue.topic: queue.queue_id + 1})
        rows, totals = lag(root, "g")
        mine = rows[queue.queue_id]
        assert (mine["consumer_offset"], mine["diff"]) == (offset, queue.max - offset)
        place = places.get(offset - 1)
        assert mine["last_store_timestamp"] == (None if place is None else stored[place])
        assert totals["g"] == sum(stored.max for stored in expect.queues
                                  if stored.topic == queue.topic
                                  and stored.queue_id <= queue.queue_id) - offset


def test_no_commit_counts_from_zero(tiny: tiny_stores.Tiny) -> None:
    commit(tiny.root, {"orders@g": {0: 3}}, {"orders": 2})
    rows, totals = lag(tiny.root, "g")
    end = len(tiny.queues()["orders", 1])
    assert (rows[1]["consumer_offset"], rows[1]["diff"]) == (0, end)
    assert "no offset committed" in rows[1]["note"]
    assert rows[1]["last_store_timestamp"] is None
    assert totals == {"g": len(tiny.queues()["orders", 0]) - 3 + end}


def test_read_queues_decide(tiny: tiny_stores.Tiny) -> None:
    """Queues beyond them do not count, committed or not; queues without a file count as empty."""
    commit(tiny.root, {"orders@g": {0: 1, 1: 1, 7: 3}}, {"orders": 1})
    rows, totals = lag(tiny.root, "g")
    assert brief(rows) == [("orders", 0, 4, 1, 3), ("orders", 1, 2, 1, None),
                           ("orders", 7, 0, 3, None)]
    assert "the topic has only 1 read queues" in rows[1]["note"]
    assert totals == {"g": 3}
    commit(tiny.root, {"orders@g": {0: 1}}, {"orders": 4})
    rows, totals = lag(tiny.root, "g")
    assert [row["queue_id"] for row in rows] == [0, 1, 2, 3]
    assert brief(rows)[3] == ("orders", 3, 0, 0, 0)
    assert totals == {"g": 3 + 2}


def test_without_topics_json_the_queues_on_disk_count(tiny: tiny_stores.Tiny) -> None:
    commit(tiny.root, {"orders@g": {0: 1}})
    damage.remove(tiny.root, "config/topics.json")
    damage.remove(tiny.root, "config/topics.json.bak")
    assert lag(tiny.root, "g")[1] == {"g": 3 + 2}


def test_an_unknown_topic_is_left_out(tiny: tiny_stores.Tiny) -> None:
    commit(tiny.root, {"gone@g": {0: 9}, "bills@g": {0: 1}}, {"bills": 1})
    rows, totals = lag(tiny.root, "g")
    assert brief(rows) == [("bills", 0, 2, 1, 1), ("gone", 0, 0, 9, None)]
    assert "not in topics.json" in rows[1]["note"]
    assert totals == {"g": 1}


@pytest.mark.parametrize(("generation", "word"), [(4, "to 0"), (5, "OVERFLOW_BADLY")])
def test_an_offset_ahead_of_the_queue(tiny: tiny_stores.Tiny, generation: int,
                                      word: str) -> None:
    """Added as it is, negative."""
    commit(tiny.root, {"bills@g": {0: 12}}, {"bills": 1})
    rows, totals = lag(tiny.root, "g", generation=generation)
    assert rows[0]["note"].startswith("10 beyond the end of the queue: OFFSET_OVERFLOW_BADLY")
    assert word in rows[0]["note"]
    assert ("to 0" in rows[0]["note"]) == (generation == 4)
    assert (rows[0]["diff"], rows[0]["last_store_timestamp"], totals) == (-10, None, {"g": -10})


def test_expired_messages_count_as_unread(tmp_path: Path) -> None:
    tiny = tiny_stores.variant(tmp_path / "store", "expired head")
    commit(tiny.root, {"orders@g": {0: 1}}, {"orders": 1})
    rows, totals = lag(tiny.root, "g")
    least, most = rows[0]["min_offset"], rows[0]["max_offset"]
    assert least > 1
    assert totals == {"g": most - 1}
    assert rows[0]["note"] == f"{least - 1} expired before they were consumed"


def test_asked_for_by_name_a_topic_counts_without_a_commit(tiny: tiny_stores.Tiny) -> None:
    commit(tiny.root, {"orders@g": {0: 1}}, {"orders": 2, "bills": 1})
    rows, totals = lag(tiny.root, "g", "bills")
    assert brief(rows) == [("bills", 0, 2, 0, 2)]
    assert totals == {"g": 2}
    rows, _ = lag(tiny.root, None, "bills")
    assert brief(rows) == [("bills", 0, 2, None, None)]


def test_a_group_nobody_knows(tiny: tiny_stores.Tiny) -> None:
    assert lag(tiny.root, "nobody") == ([], {})
    write(tiny.root, "subscriptionGroup.json", {"subscriptionGroupTable": {"nobody": {}}})
    assert lag(tiny.root, "nobody") == ([], {"nobody": 0})


def test_keys_that_are_no_pair_are_ignored(tiny: tiny_stores.Tiny) -> None:
    commit(tiny.root, {"orders": {0: 1}, "a@b@c": {0: 1}, "bills@g": {0: 1}}, {"bills": 1})
    assert lag(tiny.root)[1] == {"g": 1, DELAY_GROUP: lag(tiny.root)[1][DELAY_GROUP]}


def test_light_queues(tiny: tiny_stores.Tiny) -> None:
    write(tiny.root, "lmqConsumerOffset.json", {
        "offsetTable": {"bills@billing": {"0": 1}}, "lmqOffsetTable": {"orders@%LMQ%c": 3}})
    commit(tiny.root, {}, {"bills": 1, "orders": 1})
    assert lag(tiny.root, "billing")[1] == {"billing": 1}
    assert brief(lag(tiny.root, "%LMQ%c")[0]) == [("orders", 0, 4, 3, 1)]


def test_a_monstrous_number_of_queues_stays_bounded(tiny: tiny_stores.Tiny) -> None:
    commit(tiny.root, {"orders@g": {0: 1, 2_000_000_000: 7}}, {"orders": (1 << 31) - 1})
    rows, totals = lag(tiny.root, "g")
    assert len(rows) == MAX_EMPTY_QUEUES + 1
    assert totals == {"g": 3 + 2 - 7}


def test_delay_levels(golden: GoldenFolder) -> None:
    rows, totals = lag(golden("4.9.3/delay-delivered/store"), DELAY_GROUP)
    expect = golden_sets.GoldenStore(golden_sets.GoldenSet("4.9.3", "delay-delivered"),
                                     "store").load_expect(golden("4.9.3/delay-delivered"))
    ends = {queue.queue_id: queue.max for queue in expect.queues
            if queue.topic == "SCHEDULE_TOPIC_XXXX" and queue.max}
    assert {row["queue_id"]: row["diff"] for row in rows} == {
        queue_id: end - 1 for queue_id, end in ends.items()}
    assert totals == {DELAY_GROUP: sum(ends.values()) - len(ends)}
    assert rows[2]["note"].startswith("delay level 3 (10 s by default)")


def test_a_queue_that_cannot_be_read(tiny: tiny_stores.Tiny) -> None:
    commit(tiny.root, {"orders@g": {0: 1, 1: 1}}, {"orders": 2})
    file = tiny.root / "consumequeue/orders/0/00000000000000000000"
    with Store.open(tiny.root) as store:
        lag = Lag(store, View(store), "g")
        assert store.queues.by_key
        file.unlink()  # between listing and reading, as on a running broker
        rows = list(lag.rows())
    assert "00000000000000000000" in rows[0]["note"]
    assert (rows[0]["diff"], rows[1]["diff"], lag.totals) == (None, 1, {"g": 1})
