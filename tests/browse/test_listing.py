"""Lists read piece by piece, in both directions, have just the rows that `read` gives at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from rmqctl.errors import UsageError
from rmqctl.ext.browse.dump_listing import DumpListing
from rmqctl.ext.browse.filters import conditions_of
from rmqctl.ext.browse.listing import ListRow, LogListing, ReadCancelled, RowListing, unwatched
from rmqctl.ext.browse.opened import BrowsedPlace, BrowsedStore
from rmqctl.ext.browse.panes import PANES, pane
from rmqctl.parse_values import UTC
from rmqctl.store import Store
from rmqctl.store.dump.dump import Dump, DumpOptions
from rmqctl.store.log.bounds import View
from rmqctl.store.query.conditions import read_condition
from rmqctl.store.query.select import Selection, Selector
from rmqctl.store.queue.rows import topics_on_disk
from tests.support import damage, golden
from tests.support.share import sample

STEP = 7
STORES = [store for store in golden.golden_stores() if not store.options]


def parse(text: str):
    return conditions_of(text, lambda part: read_condition(part, UTC))


def onward(listing: RowListing) -> list[ListRow]:
    """All rows, a few at a time, from the first one on."""
    rows: list[ListRow] = []
    start = None
    while True:
        part = [row for step in listing.forward(start, STEP, unwatched) for row in step.rows]
        rows += part
        if len(part) < STEP:
            return rows
        start = part[-1].after


def back(listing: RowListing) -> list[ListRow]:
    """All rows, a few at a time, from the last one back; in the order of the listing."""
    rows: list[ListRow] = []
    end = None
    while True:
        part = listing.backward(end, STEP, unwatched)
        rows = part + rows
        if len(part) < STEP:
            return rows
        end = part[0].position


def offsets(rows: list[ListRow]) -> list[int | None]:
    return [row.physical for row in rows if row.kind == "message"]


def read(store: Store, selection: Selection) -> list[int]:
    return [record.physical_offset
            for record in Selector(store, selection, View(store)).records()]


@pytest.fixture
def opened(request, golden) -> Iterator[BrowsedStore]:
    browsed_store = BrowsedStore(lambda: Store.open(golden(request.param.id)))
    yield browsed_store
    browsed_store.close()


@pytest.mark.parametrize("opened", sample(STORES, 4, "browse"), ids=lambda store: store.id,
                         indirect=True)
def test_all_that_read_gives_in_both_directions(opened: BrowsedStore):
    store = opened.reader.store
    log = opened.reader.listing(BrowsedPlace())
    assert offsets(onward(log)) == read(store, Selection())
    assert onward(log) == back(log)
    for topic in topics_on_disk(store):
        queues = opened.queues(topic)
        own = [read(store, Selection(topic=topic, queue_id=queue)) for queue in queues]
        for queue, wanted in zip(queues, own, strict=True):
            listing = opened.reader.listing(BrowsedPlace("queue", topic, queue))
            assert offsets(onward(listing)) == wanted
            assert onward(listing) == back(listing)
        listing = opened.reader.listing(BrowsedPlace("topic", topic))
        assert offsets(back(listing)) == offsets(onward(listing)) == [*chain.from_iterable(own)]


@pytest.fixture
def sound(golden) -> Iterator[BrowsedStore]:
    browsed_store = BrowsedStore(lambda: Store.open(golden("5.3.3/basic/store")))
    yield browsed_store
    browsed_store.close()


@pytest.fixture
def broken(golden_copy) -> Iterator[BrowsedStore]:
    root = golden_copy("5.3.3/basic/store")
    damage.garbage_tail(root, "commitlog/00000000000000065536", 9000, 7, 3000)
    damage.zero(root, "commitlog/00000000000000131072", 4096, 4096)
    damage.cq_wrong_offset(root, "consumequeue/TP_fraud_Topic/0/00000000000000000000", 5)
    browsed_store = BrowsedStore(lambda: Store.open(root))
    yield browsed_store
    browsed_store.close()


@pytest.mark.parametrize("text", ["TagA", "tags=TagA", 'body~h && queue_id=0', '"TagA"',
                                  "store_timestamp>=2024-06-21T19:51:00Z && tags!=A"])
def test_a_filter_is_that_of_read(sound: BrowsedStore, text: str):
    conditions = parse(text)
    for place, wanted in ((BrowsedPlace(), Selection(where=conditions)),
                          (BrowsedPlace("queue", "TP_fraud_Topic", 0), Selection(
                              topic="TP_fraud_Topic", queue_id=0, where=conditions))):
        listing = sound.reader.listing(place, conditions)
        numbers = offsets(onward(listing))
        assert numbers
        assert numbers == read(sound.reader.store, wanted) == offsets(back(listing))


def test_text_is_looked_for_in_tags_keys_and_body(sound: BrowsedStore):
    wanted = [record.physical_offset for record in Selector(
        sound.reader.store, Selection(), View(sound.reader.store)).records()
        if any(b"order-3" in part for part in (record.body, record.properties))]
    numbers = offsets(onward(sound.reader.listing(BrowsedPlace(), parse("order-3"))))
    assert numbers
    assert numbers == wanted


@pytest.mark.parametrize(("text", "expected_text"), [
    ("nosuch=1", "no field 'nosuch'"), ("queue_id=x", "expected an integer"), ("body~(", "regular"),
    ("tags=A && nosuch>1", "to search for text: \"nosuch>1\"")])
def test_a_filter_that_means_nothing_is_refused(text, expected_text):
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert expected_text in str(refused.value)


def test_no_conditions_in_an_empty_line():
    assert parse("  ") == ()


def test_damage_has_rows(broken: BrowsedStore):
    rows = onward(broken.reader.listing(BrowsedPlace()))
    spans = [(row.physical, row.size) for row in rows if row.kind == "damage"]
    assert spans[0] == (74565, 9731)
    assert len(spans) > 1
    assert rows == back(broken.reader.listing(BrowsedPlace()))
    assert all(row.after >= row.position for row in rows)
    assert len(broken.problems) == len(spans)
    # From within the damage on: what follows it.
    later = next(broken.reader.listing(BrowsedPlace()).forward(80_000, 3, unwatched))
    assert later.rows[0].position == 84296
    queue = onward(broken.reader.listing(BrowsedPlace("queue", "TP_fraud_Topic", 0)))
    assert [row.position[1] for row in queue] == list(range(len(queue)))
    wrong = queue[5]
    assert wrong.kind == "damage"
    assert "points to no message" in wrong.cells["body"]


def test_a_file_of_the_log_alone(broken: BrowsedStore):
    store = broken.reader.store
    for file in store.log.files:
        rows = onward(broken.reader.listing(BrowsedPlace("file", path=file.path)))
        assert rows == back(broken.reader.listing(BrowsedPlace("file", path=file.path)))
        assert all(file.base <= row.position < file.end for row in rows)
        assert offsets(rows) == read(store, Selection(from_phy=file.base, to_phy=file.end))


def test_times(sound: BrowsedStore):
    reader = sound.reader
    record = list(Selector(reader.store, Selection(), View(reader.store)).records())[40]
    log = reader.listing(BrowsedPlace())
    assert isinstance(log, LogListing)
    at_time = log.at_time(record.store_timestamp, unwatched)
    assert at_time is not None
    assert reader.record(at_time).store_timestamp == record.store_timestamp
    assert log.at_time(1 << 50, unwatched) is None


def test_every_file_and_every_pane(broken: BrowsedStore):
    """All files of a store, as `dump` shows them, and what is shown of their records."""
    root, seen = Path(broken.root), set()
    for path in sorted(root.rglob("*")):
        if not path.is_file() or path.parent.name == "commitlog":
            continue
        listing = DumpListing(str(path), path.name)
        seen.add(listing.kind)
        with Dump(str(path), DumpOptions(start=0)) as dump:
            numbers = [row.get("number", 0) for row in dump.rows()]
        rows = onward(listing)
        header = 1 if listing.kind == "index" else 0
        assert [row.position for row in rows[header:]] == numbers
        assert [row.position for row in back(listing)] == [row.position for row in rows]
        for name in PANES if rows else ():
            assert pane(name, broken.reader, listing, rows[-1], 50)
    assert {"consumequeue", "index", "checkpoint", "lock"} <= seen
    log = broken.reader.listing(BrowsedPlace())
    for row in [row for number, row in enumerate(onward(log))
                if row.kind == "damage" or number % 20 == 0]:
        for name in PANES:
            lines = pane(name, broken.reader, log, row, 50)
            assert lines
            assert not any(ord(char) < 0x20 for line in lines for text, _ in line for char in text)


def test_nobody_waits_for_a_scan_that_was_stopped(sound: BrowsedStore):
    def stop(_done: int) -> None:
        raise ReadCancelled

    for place in (BrowsedPlace(), BrowsedPlace("topic", "TP_fraud_Topic")):
        listing = sound.reader.listing(place, parse("no such text anywhere"))
        with pytest.raises(ReadCancelled):
            list(listing.forward(None, 10, stop))


def test_keys_and_message_ids(sound: BrowsedStore):
    reader = sound.reader
    record = next(record for record in Selector(
        reader.store, Selection(), View(reader.store)).records() if b"user-290" in
        record.properties)
    by_id = reader.with_key(record.message_id, [])
    assert offsets(onward(by_id)) == [record.physical_offset]
    by_key = reader.with_key("user-290", sound.known_topics())
    assert record.physical_offset in offsets(onward(by_key))
    with pytest.raises(UsageError, match="no message with the key"):
        reader.with_key("no-such-key", sound.known_topics())
