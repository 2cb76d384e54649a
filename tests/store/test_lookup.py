"""Look-ups by key, id, time and place against the engine's answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rmqctl.broker.offset_by_time import offset_by_time
from rmqctl.broker.versions import version_for
from rmqctl.broker.view import view_of
from rmqctl.formats.local import message
from rmqctl.formats.local import properties as props
from rmqctl.store import Store
from rmqctl.store.log.bounds import View
from rmqctl.store.problems import Problem
from rmqctl.store.query.lookup import (
    by_key,
    by_unique_key,
    containing,
    has_key,
    known_topics,
    where_is,
)
from tests.conftest import GoldenFolder
from tests.support import damage
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores
from tests.support.share import sample

JUDGED = [pytest.param(golden_store, id=golden_store.id) for golden_store in sample(
    golden_sets.judged_stores(), 16, "lookups")]  # all of them: tests/engine


def opened(store: golden_sets.GoldenStore, golden: GoldenFolder) -> Store:
    return Store.open(golden(store.id), store.dirs)


@pytest.mark.parametrize("store", JUDGED)
def test_keys_as_the_engine_finds_them(store: golden_sets.GoldenStore,
                                       golden: GoldenFolder) -> None:
    expect = store.load_expect(golden(store.set.id))
    assert expect.queries
    with opened(store, golden) as opened_store:
        view = view_of(opened_store, "auto")
        for query in expect.queries:
            expected = list(query.messages)
            if store.state == "store-live":  # loading it indexed a message a second time
                expected = list(dict.fromkeys(expected))
            how = {"begin": query.begin, "end": query.end, "most": query.max}
            raw = by_key(view, query.topic, query.key, raw=True, **how)
            assert [record.physical_offset for record in raw.records] == expected, query.id
            right = by_key(view, query.topic, query.key, **how)
            assert [record.physical_offset for record in right.records] == [
                record.physical_offset for record in raw.records
                if (record.topic.decode(), True) == (query.topic, has_key(record, query.key, None))]
            assert right.false_hits == len(raw.records) - len(right.records)


def test_some_golden_answer_has_false_hits(golden: GoldenFolder) -> None:
    """Otherwise the test above would not show that they are told apart."""
    count = 0
    for store in golden_sets.judged_stores():
        if store.kind not in ("basic", "lmq", "delay"):
            continue
        with opened(store, golden) as opened_store:
            view = view_of(opened_store, "auto")
            count += sum(by_key(view, query.topic, query.key, most=query.max).false_hits
                         for query in store.load_expect(golden(store.set.id)).queries)
    assert count


def test_the_same_key_of_a_topic_with_the_same_hash(tmp_path: Any) -> None:
    """``Aa`` and ``BB`` have one hash in Java, and so have ``Aa#k`` and ``BB#k``."""
    tiny = tiny_stores.build(tmp_path / "s", [
        tiny_stores.Spec(topic, 0, b"", {"KEYS": "k"}) for topic in ("Aa", "BB", "Aa")])
    with Store.open(tiny.root) as opened:
        key_matches = by_key(View(opened), "Aa", "k")
        assert [record.physical_offset for record in key_matches.records] == [
            tiny.messages[0].start, tiny.messages[2].start]
        assert key_matches.false_hits == 1
        assert len(by_key(View(opened), "Aa", "k", raw=True).records) == 3


@pytest.mark.parametrize("store", JUDGED)
def test_times_as_the_engine_answers_them(store: golden_sets.GoldenStore,
                                          golden: GoldenFolder) -> None:
    expect = store.load_expect(golden(store.set.id))
    with opened(store, golden) as opened_store:
        view = view_of(opened_store, "auto", version_for(int(expect.engine[0])))
        for queue in expect.queues:
            for expected in queue.by_time:
                where = view, queue.topic, queue.queue_id, expected.timestamp
                record = offset_by_time(*where, like=expect.engine)
                assert (record.queue_offset if record
                        else 0) == expected.offset, (queue.id, expected)
                # The tiered store in front of the local one knows no boundary.
                if expected.upper is not None and store.kind != "tiered":
                    upper = offset_by_time(*where, upper=True)
                    assert upper is not None
                    assert upper.queue_offset == expected.upper, (queue.id, expected)


def test_the_record_at_the_answer(golden: GoldenFolder) -> None:
    with Store.open(golden("5.3.3/basic/store")) as opened:
        view = View(opened)
        for offset in (0, 17, 60):
            unit = opened.queues.find("TP_ship_evt-x", 1)
            assert unit is not None
            row = unit.unit(offset)
            assert row is not None
            record = opened.log.record_at(row.physical_offset)
            assert record is not None
            message = offset_by_time(view, "TP_ship_evt-x", 1, record.store_timestamp)
            assert message is not None
            assert message.record is not None
            assert message.record.store_timestamp == record.store_timestamp
        late = offset_by_time(view, "TP_ship_evt-x", 1, 1 << 60)
        assert late is not None
        assert (late.queue_offset, late.record) == (late.max_offset, None)
        assert offset_by_time(view, "TP_ship_evt-x", 99, 0) is None
        assert offset_by_time(view, "nix", 0, 0) is None


@pytest.mark.parametrize("kind", ["basic", "lmq", "transaction", "delay", "multipath", "ipv6"])
def test_every_unique_key_is_found(kind: str, golden: GoldenFolder) -> None:
    store = golden_sets.GoldenStore(golden_sets.GoldenSet("5.3.3", kind), "store")
    with opened(store, golden) as opened_store:
        topics = known_topics(opened_store)
        wanted: dict[str, list[int]] = {}
        for batch in opened_store.log.walk():
            for number in range(len(batch)):
                record = opened_store.log.record_at(int(batch.offset[number]))
                assert record is not None
                unique = props.parse(record.properties.decode()).get(props.UNIQUE_KEY)
                indexed = record.sys_flag & 0xC != 0xC
                if unique is not None and indexed and record.topic.decode() in topics:
                    wanted.setdefault(unique, []).append(record.physical_offset)
        assert wanted
        for unique, places in list(wanted.items())[::7]:
            records = by_unique_key(opened_store, unique, topics)
            assert [record.physical_offset for record in records] == places
            assert by_unique_key(opened_store, unique, ["nix"]) == []


@pytest.fixture
def log(golden: GoldenFolder) -> Iterator[Store]:
    with Store.open(golden("5.3.3/basic/store")) as opened:
        yield opened


@pytest.mark.parametrize("window", [64, 1 << 10, 1 << 20])
def test_the_message_around_a_place(window: int, log: Store,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqctl.store.query.lookup._WINDOW", window)
    places = [int(place) for batch in log.log.walk() for place in batch.offset]
    for place in places[::9]:
        record = log.log.record_at(place)
        assert record is not None
        for inside in (0, 1, record.total_size // 2, record.total_size - 1):
            message = containing(log, place + inside)
            assert message is not None
            assert message.physical_offset == place
    assert containing(log, log.log.end + 1) is None


def test_a_record_inside_a_body_is_not_taken_for_one(tmp_path: Any,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """A body holds a whole record that names its own place; the window begins before it."""
    monkeypatch.setattr("rmqctl.store.query.lookup._WINDOW", 64)
    specs = [tiny_stores.Spec("t", 0, b"o" * 80, raw_properties="") for _ in range(3)]
    fake = tiny_stores.build(tmp_path / "fake", specs).messages[0].record

    def outer(body: bytes) -> tiny_stores.Tiny:
        last = tiny_stores.Spec("t", 0, body, raw_properties="")
        return tiny_stores.build(tmp_path / f"{len(list(tmp_path.iterdir()))}", [*specs, last],
                                 commitlog_file_size=1 << 16)

    raw = message.build(fake)
    start = outer(b"p" * 90 + raw + b"q" * 300).messages[-1]
    fake.physical_offset = start.start + start.raw.index(raw)
    tiny = outer(b"p" * 90 + message.build(fake) + b"q" * 300)
    physical = tiny.messages[-1].start
    with Store.open(tiny.root) as opened:
        assert opened.log.record_at(fake.physical_offset) is not None
        for inside in range(len(tiny.messages[-1].raw)):
            record = containing(opened, physical + inside)
            assert record is not None
            assert record.physical_offset == physical, inside


def test_what_is_where_no_message_starts(log: Store) -> None:
    first = log.log.record_at(0)
    assert first is not None
    assert "inside the record at 0" in where_is(log, 5)
    blank = next(span for batch in log.log.walk() for span in batch.spans if span.kind == "blank")
    assert "end-of-file record" in where_is(log, blank.offset)
    assert "unused" in where_is(log, log.log.end - 100)
    assert "beyond the end" in where_is(log, log.log.end + 100)


def test_an_expired_place(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    first = min((root / "commitlog").iterdir())
    first.unlink()
    with Store.open(root) as opened:
        assert "expired" in where_is(opened, 0)


def test_topics_come_from_queues_and_configuration(tiny: tiny_stores.Tiny) -> None:
    with Store.open(tiny.root) as opened:
        assert {"orders", "bills"} <= set(known_topics(opened))
    damage.remove(tiny.root, "consumequeue/bills/0/00000000000000000000")
    (tiny.root / "consumequeue/bills/0").rmdir()
    (tiny.root / "consumequeue/bills").rmdir()
    with Store.open(tiny.root) as opened:
        assert "bills" in known_topics(opened)


def test_a_broken_index_file_is_reported(tiny: tiny_stores.Tiny) -> None:
    damage.truncate(tiny.root, f"index/{tiny_stores.INDEX_NAME}", 30)
    problems: list[Problem] = []
    with Store.open(tiny.root) as opened:
        assert by_key(View(opened), "orders", "k1", report=problems.append).records == []
    assert [problem.kind for problem in problems] == ["damage"]
    assert tiny_stores.INDEX_NAME in problems[0].text


def test_dangling_entries_are_reported(tiny: tiny_stores.Tiny) -> None:
    placed = tiny.messages[1]
    file, position = tiny.place(placed.start)
    damage.zero(tiny.root, file, position, len(placed.raw))
    with Store.open(tiny.root) as opened:
        answer = by_key(View(opened), "orders", "k1")
    assert [record.physical_offset for record in answer.records] == [tiny.messages[0].start]
    assert answer.dangling == [placed.start]


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_what_a_broker_leaves_out_is_reported(version: str, golden: GoldenFolder) -> None:
    """Behind the first damage of `clean-crc` intact messages lie; a broker has cut them off."""
    store = golden_sets.GoldenStore(golden_sets.GoldenSet(version, "clean-crc"), "after")
    expect = store.load_expect(golden(store.set.id))
    with opened(store, golden) as opened_store:
        behind = 0
        for query in expect.queries:
            answer = by_key(view_of(opened_store, "auto"), query.topic, query.key)
            more = by_key(view_of(opened_store, "disk"), query.topic, query.key)
            hidden = [record.physical_offset for record in more.records
                      if record.physical_offset >= expect.max_physical_offset]
            assert set(hidden) <= set(answer.behind)
            behind += len(hidden)
        assert behind
