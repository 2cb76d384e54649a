"""DLedger stores of the engine: what is read of them is what the engine says of them."""

from __future__ import annotations

import hashlib

import pytest

from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store
from tests.support import engine
from tests.support.cli import run
from tests.support.layouts import layout_set

SETS = [f"{version}/{name}" for version in ("4.9.3", "5.3.3")
        for name in ("dledger", "dledger-mixed", "dledger3")]


@pytest.mark.parametrize("name", SETS)
def test_entries_messages_and_rows(name: str) -> None:
    folder = layout_set(name)
    expect = engine.load(folder / "expect.json")
    rows = run("read", folder / "store", "-o", "jsonl", "--body", "base64").expect(0).jsonl()
    entries = expect.raw["extra"]["entries"]
    divided = entries[0][2]
    newer = [row for row in rows if row["physical_offset"] >= divided]
    assert [(row["physical_offset"] - 48, row["total_size"] + 48) for row in newer] == [
        (entry[2], entry[3]) for entry in entries]
    with Store.open(folder / "store") as store:
        assert store.log.min_offset == expect.min_physical_offset
        for entry in entries:
            raw = store.log.raw_at(entry[2] + 48, entry[3] - 48)
            assert hashlib.sha1(raw or b"", usedforsecurity=False).hexdigest() == entry[8]
        for queue in expect.queues:
            own = store.queues.find(queue.topic, queue.queue_id)
            assert own is not None or not queue.units
            units = [] if own is None else own.units(own.first_index, own.written).tolist()
            assert [unit[:2] for unit in units[:len(queue.units)]] == [
                (unit.physical_offset, unit.size) for unit in queue.units]
    by_place = {row["physical_offset"]: row for row in rows}
    for queue in expect.queues:
        places = [(row["queue_offset"], row["physical_offset"]) for row in run(
            "read", folder / "store", "--topic", queue.topic, "--queue", str(queue.queue_id),
            "-o", "jsonl").expect(0, 1).jsonl()]
        assert places == [(message.queue_offset, message.physical_offset)
                          for message in queue.messages]
        assert all(by_place[place]["crc_ok"] for _, place in places)
    info = run("info", folder / "store", "-o", "json").json()
    assert info["layout"]["commitlog"] == ("mixed" if divided else "dledger")
    assert (info["min_phy_offset"], info["max_phy_offset"]) == (
        expect.min_physical_offset, expect.max_physical_offset)
    run("verify", folder / "store").expect(0)


@pytest.mark.parametrize("name", SETS)
def test_keys_and_places(name: str) -> None:
    folder = layout_set(name)
    expect = engine.load(folder / "expect.json")
    for query in expect.queries[:4]:
        rows = run("query", "key", folder / "store", "--topic", query.topic, "--key", query.key,
                   "--begin", str(query.begin), "--end", str(query.end), "--max", str(query.max),
                   "-o", "jsonl").expect(0, 1).jsonl()
        assert sorted(row["physical_offset"] for row in rows) == sorted(query.messages)
    index, _, at, size, *_ = expect.raw["extra"]["entries"][3]
    assert index == 3
    for place in (at + 48, at + 90, at + size - 1):
        row, = run("query", "offset", folder / "store", "--phy", str(place), "--containing",
                   "-o", "jsonl").expect(0).jsonl()
        assert row["physical_offset"] == at + 48
    # A range of the log begins with the message whose offset is named, and ends before one.
    last = expect.raw["extra"]["entries"][6][2] + 48
    rows = run("read", folder / "store", "--from-phy", str(at + 48), "--to-phy", str(last),
               "-o", "jsonl").expect(0).jsonl()
    assert [row["physical_offset"] for row in rows] == [
        entry[2] + 48 for entry in expect.raw["extra"]["entries"][3:6]]
    rows = run("sql", folder / "store", f"select physical_offset from messages where "
               f"physical_offset >= {at + 48} and physical_offset < {last}", "-o", "jsonl")
    assert len(rows.expect(0).jsonl()) == 3
    tail = run("tail", folder / "store", "-n", "5", "-o", "jsonl").expect(0).jsonl()
    assert [row["physical_offset"] for row in tail] == [
        entry[2] + 48 for entry in expect.raw["extra"]["entries"][-5:]]


def test_any_cut_gives_the_same() -> None:
    """Ranges of jobs and of the data source meet at entries."""
    store = layout_set("5.3.3/dledger-mixed") / "store"
    totals = [run("stats", store, "-o", "json", "--jobs", jobs).expect(0).json()["total"]
              for jobs in ("1", "3")]
    assert totals[0] == totals[1]
    assert totals[0]["messages"] == 190
    with Store.open(store) as opened:
        for number, file in enumerate(opened.log.files):
            source = opened.log.source(number)
            places = [int(place) for batch in Walk(source) for place in batch.offset]
            for cut in range(0, file.size, 1771):
                first = Walk(source, 0, cut)
                seen = [int(place) for batch in first for place in batch.offset]
                seen += [int(place) for batch in Walk(source, first.position)
                         for place in batch.offset]
                assert seen == places
