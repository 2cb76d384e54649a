"""The topicQueueTable from the log and from the consumequeues, held against the engine's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.versions import version_for
from rmqctl.broker.view import view_of
from rmqctl.formats.local import sysflag
from rmqctl.store import Store
from rmqctl.store.log.bounds import View
from rmqctl.store.problems import Problem
from rmqctl.store.queue.topic_queue_table import TableRow, log_reach, rebuild
from tests.conftest import GoldenFolder
from tests.support import damage
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores
from tests.support.tiny import Spec

JUDGED = [pytest.param(golden_store, id=golden_store.id)
          for golden_store in golden_sets.judged_stores()]
BEFORE = [pytest.param(golden_store, id=golden_store.id)
          for golden_store in golden_sets.golden_stores()
          if golden_store.state == "before" and golden_store.is_loaded]


def table(root: Path, view: str = "disk", dirs: tuple[str, ...] = (), generation: int | None = None,
          **options: Any) -> list[TableRow]:
    with Store.open(root, dirs) as store:
        version = version_for(generation) if generation else None
        return rebuild(store, view_of(store, view, version), **options)


def columns(rows: list[TableRow]) -> tuple[dict[str, int], dict[str, int]]:
    """(from the log, from the consumequeue), without queues that are empty there."""
    return ({row.key: row.from_log for row in rows if row.from_log},
            {row.key: row.from_consumequeue for row in rows if row.from_consumequeue})


def engines(golden_store: golden_sets.GoldenStore, golden: GoldenFolder) -> dict[str, int]:
    """The engine's max offsets after it loaded the set."""
    after = golden_sets.GoldenStore(golden_store.set,
                                    "after") if golden_store.state == "before" else golden_store
    expect = after.load_expect(golden(golden_store.set.id))
    return {f"{queue.topic}-{queue.queue_id}": queue.max for queue in expect.queues if queue.max}


def of(golden_store: golden_sets.GoldenStore, golden: GoldenFolder) -> list[TableRow]:
    dirs = golden_store.commitlog_dirs if golden_store.options else ()
    return table(golden(golden_store.id), "broker", dirs, int(golden_store.version[0]))


@pytest.mark.parametrize("param", JUDGED)
def test_both_sources_say_what_the_engine_says(param: golden_sets.GoldenStore,
                                               golden: GoldenFolder) -> None:
    rows = of(param, golden)
    expected = engines(param, golden)
    assert columns(rows) == (expected, expected)
    assert all(row.agrees for row in rows)


@pytest.mark.parametrize("param", BEFORE)
def test_a_damaged_log_says_what_the_engine_recovers(param: golden_sets.GoldenStore,
                                                     golden: GoldenFolder) -> None:
    assert columns(of(param, golden))[0] == engines(param, golden)


def test_the_disk_view_counts_behind_damage(golden: GoldenFolder) -> None:
    root = golden("4.9.3/crash-crc/before")
    base = golden("4.9.3/crash-base/store")
    disk, whole = columns(table(root))[0], columns(table(base))[0]
    broker = columns(table(root, "broker"))[0]
    assert disk == whole
    assert sum(broker.values()) < sum(disk.values())


@pytest.mark.parametrize("name", ["4.9.3/lmq/store", "5.3.3/batchcq/store", "5.3.3/ipv6/store",
                                  "4.9.3/crash-crc-prev/before"])
@pytest.mark.parametrize("size", [700, 5000])
def test_cuts_and_processes_change_nothing(name: str, size: int, golden: GoldenFolder) -> None:
    whole = table(golden(name))
    assert table(golden(name), range_size=size) == whole
    if size == 5000:
        assert table(golden(name), range_size=size, jobs=2) == whole


@pytest.mark.parametrize("view", ["disk", "broker"])
def test_any_range_size_ends_at_the_brokers_end(view: str, golden: GoldenFolder) -> None:
    root = golden("5.3.3/crash-crc-prev/before")
    assert {str(table(root, view, range_size=size)) for size in (900, 4000, 33_000, 1 << 26)} == {
        str(table(root, view))}


def test_transactions_lmq_and_order_of_rows(tmp_path: Path) -> None:
    built = tiny_stores.build(tmp_path / "store", (
        Spec("b", 10, b"1"), Spec("b", 9, b"2"),
        Spec("a", 0, b"3", sys_flag=sysflag.TRANSACTION_PREPARED),
        Spec("a", 0, b"4", sys_flag=sysflag.TRANSACTION_COMMIT),
        Spec("a", 0, b"5", sys_flag=sysflag.TRANSACTION_ROLLBACK),
        Spec("a", 1, b"6", lmq=("%LMQ%x", "%LMQ%y")), Spec("a", 1, b"7", lmq=("%LMQ%x",))))
    rows = table(built.root)
    assert [(row.key, row.from_log, row.from_consumequeue, row.agrees) for row in rows] == [
        ("%LMQ%x-0", 2, 2, True), ("%LMQ%y-0", 1, 1, True), ("a-0", 1, 1, True),
        ("a-1", 2, 2, True), ("b-9", 1, 1, True), ("b-10", 1, 1, True)]


def test_a_queue_whose_messages_have_expired(tmp_path: Path) -> None:
    early = [Spec("early", 0, b"x" * 200) for _ in range(5)]
    late = [Spec("late", 0, b"x" * 200) for _ in range(9)]
    built = tiny_stores.build(tmp_path / "store", early + late, expired_files=2)
    rows = {row.key: row for row in table(built.root)}
    assert rows["early-0"].from_log is None
    assert rows["early-0"].from_consumequeue == 5
    assert rows["early-0"].agrees is None
    assert rows["early-0"].next_offset("log") == 5
    assert rows["late-0"] == TableRow("late", 0, 9, 9, expired=True)


def test_a_missing_consumequeue_is_made_good_by_the_log(tiny: tiny_stores.Tiny) -> None:
    damage.remove_folder(tiny.root, "consumequeue/orders/0")
    row = next(row for row in table(tiny.root) if row.key == "orders-0")
    assert row == TableRow("orders", 0, 4, None)
    assert row.agrees is False
    assert (row.next_offset("log"), row.next_offset("consumequeue"), row.next_offset("both")) == (
        4, None, 4)


def test_a_lagging_consumequeue_disagrees(tiny: tiny_stores.Tiny) -> None:
    damage.remove(tiny.root, "consumequeue/orders/0/00000000000000000060")
    row = next(row for row in table(tiny.root) if row.key == "orders-0")
    assert (row.from_log, row.from_consumequeue, row.agrees) == (4, 3, False)


def test_queues_without_a_message_are_left_out(tiny: tiny_stores.Tiny) -> None:
    (tiny.root / "consumequeue/new/0").mkdir(parents=True)
    (tiny.root / "consumequeue/new/0/00000000000000000000").write_bytes(bytes(60))
    assert {row.topic for row in table(tiny.root)} == {"bills", "orders"}


def test_without_the_log_nothing_is_compared(tiny: tiny_stores.Tiny) -> None:
    shutil.rmtree(tiny.root / "commitlog")
    rows = table(tiny.root, source="consumequeue")
    assert {row.agrees for row in rows} <= {None}


def test_damage_is_passed_over_and_reported(tiny: tiny_stores.Tiny) -> None:
    lost = tiny.messages[-1]
    file, position = tiny.place(lost.start)
    damage.zero(tiny.root, file, position, 8)
    problems: list[Problem] = []
    with Store.open(tiny.root) as store:
        reach = log_reach(store, View(store), report=problems.append)
    assert reach["orders", 1].end == lost.record.queue_offset
    assert [(problem.kind, problem.offset) for problem in problems] == [("damage", lost.start)]


def test_a_body_that_fails_its_crc_still_counts_on_disk(tiny: tiny_stores.Tiny) -> None:
    bad = tiny.messages[1]
    file, position = tiny.place(bad.start + bad.raw.index(b"second"))
    damage.flip_bit(tiny.root, file, position, 0)
    assert columns(table(tiny.root))[0]["orders-1"] == 2
    assert columns(table(tiny.root, "broker"))[0] == {"orders-0": 1}


def test_what_a_broker_leaves_out_is_mentioned(tiny: tiny_stores.Tiny) -> None:
    bad = tiny.messages[1]
    file, position = tiny.place(bad.start + bad.raw.index(b"second"))
    damage.flip_bit(tiny.root, file, position, 0)
    problems: list[Problem] = []
    table(tiny.root, "broker", report=problems.append)
    assert [(problem.kind, problem.offset, problem.is_fault)
            for problem in problems] == [("note", bad.start, False)]


def test_a_missing_file_of_the_log_is_reported(tmp_path: Path) -> None:
    built = tiny_stores.build(tmp_path / "store", [Spec("t", 0, b"x" * 200)] * 12)
    damage.remove(built.root, f"commitlog/{1024:020d}")
    problems: list[Problem] = []
    rows = table(built.root, report=problems.append)
    assert [(problem.kind, problem.offset, problem.length)
            for problem in problems] == [("gap", 1024, 1024)]
    assert rows[0].from_log == 12
