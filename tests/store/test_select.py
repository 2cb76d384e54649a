"""Selections against the engine's own record of what it stored, and against brute force."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl.broker.view import view_of
from rmqctl.errors import UsageError
from rmqctl.formats.local import message
from rmqctl.store import Store
from rmqctl.store.log.bounds import View
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.pages import chosen_files
from rmqctl.store.objects import FIELDS, message_object
from rmqctl.store.problems import Problem
from rmqctl.store.projection import Projection, checked_fields
from rmqctl.store.query import select
from rmqctl.store.query.conditions import Condition
from rmqctl.store.query.select import Selection, Selector
from rmqctl.store.queue.rows import CLOCK_SLACK, topic_rows, topics_on_disk
from tests.conftest import GoldenFolder
from tests.support import damage
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores
from tests.support.share import sample
from tests.support.stored import intact, object_of, puts_of

STORES = [pytest.param(golden_store, id=golden_store.id)
          for golden_store in golden_sets.golden_stores()]
JUDGED = [pytest.param(golden_store, id=golden_store.id)
          for golden_store in golden_sets.judged_stores()]


def opened(store: golden_sets.GoldenStore, golden: GoldenFolder) -> Store:
    return Store.open(golden(store.id), store.dirs)


def objects(store: Store, selection: Selection | None = None, view: str = "disk",
            problems: list[Problem] | None = None) -> list[dict[str, Any]]:
    reported: list[Problem] = [] if problems is None else problems
    selector = Selector(store, selection or Selection(), view_of(store, view), reported.append)
    return [row for page in selector.pages() for row in Projection().rows(page)]


@pytest.mark.parametrize("store", sample(STORES, 40, "stored records"))
def test_every_record_that_was_stored_is_shown_as_it_was(store: golden_sets.GoldenStore,
                                                         golden: GoldenFolder) -> None:
    root = golden(store.id)
    expected = [*intact(root, store, puts_of(store, golden))]
    assert expected
    problems: list[Problem] = []
    with opened(store, golden) as opened_store:
        rows = {row["physical_offset"]: row for row in objects(opened_store, problems=problems)}
        for record in expected:
            row = rows.pop(record.physical_offset)
            wanted = object_of(record)
            assert {name: row[name] for name in wanted} == wanted
            assert row["crc_ok"]
            raw = opened_store.log.raw_at(record.physical_offset)
            assert raw is not None
            assert hashlib.sha1(raw).hexdigest() == record.raw_sha1
            body = message.decode(raw).body
            assert hashlib.sha1(body).hexdigest() == record.body_sha1
            if row["body_encoding"] == "utf-8":
                assert row["body"].encode() == body
    # What is left was changed after it was stored: it is shown, and its CRC says so.
    assert all(not row["crc_ok"] for row in rows.values())
    if store.is_clean:
        assert not rows
        assert not problems


@pytest.mark.parametrize("store", sample(STORES, 30, "message objects"))
def test_rows_are_message_objects(store: golden_sets.GoldenStore, golden: GoldenFolder) -> None:
    """Columns and single records give the same objects, whatever is asked of the body."""
    with opened(store, golden) as opened_store:
        for body, decompress in (("auto", False), ("utf-8", False), ("base64", True),
                                 ("none", False)):
            projection = Projection(FIELDS, body, decompress)
            for page in Selector(opened_store, Selection(), View(opened_store)).pages():
                rows = list(projection.rows(page))
                assert rows == [message_object(record, body=body, decompress=decompress)
                                for record in page.records()]


@pytest.mark.parametrize("store", JUDGED)
def test_queues_give_what_the_engine_delivers(store: golden_sets.GoldenStore,
                                              golden: GoldenFolder) -> None:
    expect = store.load_expect(golden(store.set.id))
    with opened(store, golden) as opened_store:
        view = view_of(opened_store, "broker")
        for queue in expect.queues:
            if expect.is_compacted(queue.topic):
                continue
            problems: list[Problem] = []
            wanted = Selection(topic=queue.topic, queue_id=queue.queue_id)
            delivered = [(record.queue_offset, record.physical_offset, record.total_size,
                          hashlib.sha1(record.body).hexdigest(), record.topic.decode(),
                          record.queue_id)
                         for record in Selector(opened_store, wanted, view,
                                                problems.append).records()]
            assert delivered == [
                (message.queue_offset, message.physical_offset, message.size, message.body_sha1,
                 message.topic,                  message.queue_id)
                for message in queue.messages], queue.id
            assert not problems


@pytest.mark.parametrize("kind", ["basic", "batchcq", "lmq", "transaction", "multipath"])
def test_all_queues_of_a_topic_come_in_log_order(kind: str, golden: GoldenFolder) -> None:
    store = golden_sets.GoldenStore(golden_sets.GoldenSet("5.3.3", kind), "store")
    expect = store.load_expect(golden(store.set.id))
    with opened(store, golden) as opened_store:
        for topic in {queue.topic for queue in expect.queues}:
            expected = sorted(message.physical_offset for queue in expect.queues
                              for message in queue.messages if queue.topic == topic)
            physical_offsets = [row["physical_offset"]
                                for row in objects(opened_store, Selection(topic=topic))]
            assert physical_offsets == expected, topic


# -- filters, held against brute force ------------------------------------------------------------

Case = tuple[str, dict[str, Any], Any]
CASES: list[Case] = [
    ("tag", {"tag": "A"}, lambda row: row["tags"] == "A"),
    ("tags", {"tag": "A || created"}, lambda row: row["tags"] in ("A", "created")),
    ("key", {"key": "pay-60"}, lambda row: "pay-60" in row["keys"]),
    ("where-number", {"where": [("queue_offset", ">=", "50"), ("total_size", "<", "1000")]},
     lambda row: row["queue_offset"] >= 50 and row["total_size"] < 1000),
    ("where-not", {"where": [("queue_id", "!=", "0")]}, lambda row: row["queue_id"] != 0),
    ("where-topic", {"where": [("topic", "=", "TP_ship_evt-x")]},
     lambda row: row["topic"] == "TP_ship_evt-x"),
    ("where-regex", {"where": [("tags", "~", "^tag|created$")]},
     lambda row: (row["tags"] or "").startswith("tag") or (row["tags"] or "").endswith("created")),
    ("where-no-regex", {"where": [("tags", "!~", "a")]},
     lambda row: "a" not in (row["tags"] or "")),
    ("where-missing", {"where": [("tags", "=", "")]}, lambda row: row["tags"] is None),
    ("where-keys", {"where": [("keys", "!=", "pay-60")]}, lambda row: "pay-60" not in row["keys"]),
    ("where-property", {"where": [("property.WAIT", "=", "true")]},
     lambda row: row["properties"].get("WAIT") == "true"),
    ("where-property-number", {"where": [("property.KEYS", "<", "order")]},
     lambda row: "KEYS" in row["properties"] and row["properties"]["KEYS"] < "order"),
    ("where-host", {"where": [("born_host", "~", r"^10\.2")]},
     lambda row: row["born_host"].startswith("10.2")),
    ("where-body", {"where": [("body", "~", "日本")]},
     lambda row: row["body_encoding"] == "utf-8" and "日本" in row["body"]),
    ("where-id", {"where": [("msg_id", "=", "0A3C217700002A9F00000000000001D4")]},
     lambda row: row["physical_offset"] == 0x1D4),
    ("where-crc", {"where": [("crc_ok", "=", "false")]}, lambda row: False),
    ("places", {"from_phy": 9769, "to_phy": 60_000},
     lambda row: 9769 <= row["physical_offset"] < 60_000),
    ("inside-a-message", {"from_phy": 9770}, lambda row: row["physical_offset"] >= 9770),
    ("times", {"since": 1718999500000, "until": 1718999600000},
     lambda row: 1718999500000 <= row["store_timestamp"] <= 1718999600000),
    ("several", {"tag": "A", "since": 1718999500000, "where": [("queue_id", "=", "1")]},
     lambda row: (row["tags"] == "A" and row["store_timestamp"] >= 1718999500000
                  and row["queue_id"] == 1)),
]


def selection_of(raw: dict[str, Any], **more: Any) -> Selection:
    where = tuple(Condition.of(*condition) for condition in raw.get("where", ()))
    return Selection(**{**raw, "where": where}, **more)


@pytest.fixture(scope="module")
def basic(golden: GoldenFolder) -> Iterator[Store]:
    with Store.open(golden("5.3.3/basic/store")) as opened:
        yield opened


@pytest.fixture(scope="module")
def everything(basic: Store) -> list[dict[str, Any]]:
    return objects(basic)


@pytest.mark.parametrize(("raw", "holds"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])
def test_filters(raw: dict[str, Any], holds: Any, basic: Store,
                 everything: list[dict[str, Any]]) -> None:
    expected = [row for row in everything if holds(row)]
    assert objects(basic, selection_of(raw)) == expected
    assert len(expected) < len(everything)
    for topic in ("TP_ship_evt-x", "TP_fraud_Topic"):
        through_queues = objects(basic, selection_of(raw, topic=topic))
        assert through_queues == [row for row in expected if row["topic"] == topic]
        one_queue = objects(basic, selection_of(raw, topic=topic, queue_id=1))
        assert one_queue == [row for row in expected
                             if (row["topic"], row["queue_id"]) == (topic, 1)]


def test_every_case_but_the_impossible_one_finds_something(
        everything: list[dict[str, Any]]) -> None:
    assert [name for name, _, holds in CASES if not any(map(holds, everything))] == ["where-crc"]


def test_offset_and_count(basic: Store, everything: list[dict[str, Any]]) -> None:
    queue = [row for row in everything if (row["topic"], row["queue_id"]) == ("TP_ship_evt-x", 1)]
    listed_objects = objects(basic,
                             Selection(topic="TP_ship_evt-x", queue_id=1, from_offset=40, count=7))
    assert listed_objects == queue[40:47]
    assert objects(basic, Selection(count=3)) == everything[:3]
    assert objects(basic, Selection(count=0)) == []
    assert objects(basic, Selection(topic="TP_ship_evt-x", count=1000, tag="A")) == [
        row for row in everything if row["topic"] == "TP_ship_evt-x" and row["tags"] == "A"]


@pytest.mark.parametrize("raw", [
    ("nix", "=", "1"), ("queue_id", "=", "x"), ("queue_id", "=", str(1 << 64)), ("tags", "~", "("),
    ("crc_ok", "=", "maybe"), ("queue_id", "<>", "1"), ("property.", "=", "1"),
    ("properties", "=", "1")])
def test_conditions_that_make_no_sense(raw: tuple[str, str, str]) -> None:
    with pytest.raises(UsageError):
        Condition.of(*raw)


def test_values_compare_as_numbers_where_both_are() -> None:
    condition = Condition.of("property.n", ">", "9")
    assert [condition._test(value) for value in ("10", "9", "8", "x", None)] == [
        True, False, False, True, False]


def test_several_keys_in_one_condition() -> None:
    held = {sign: [Condition.of("keys", sign, "a")._test(value)
                   for value in (["a", "b"], ["b"], [])] for sign in ("=", "!=", "~", "!~")}
    assert held == {"=": [True, False, False], "!=": [False, True, True],
                    "~": [True, False, False], "!~": [False, True, True]}


def test_topics_of_one_length_are_distinguished(tmp_path: Path) -> None:
    tiny = tiny_stores.build(tmp_path / "s", [
        tiny_stores.Spec(topic, 0, b"x", raw_properties="") for topic in ("Aa", "BB", "Aa", "A")])
    with Store.open(tiny.root) as opened:
        for topic, count in (("Aa", 2), ("BB", 1), ("A", 1), ("", 0), ("Aaa", 0)):
            where = (Condition.of("topic", "=", topic),)
            assert [row["topic"]
                    for row in objects(opened, Selection(where=where))] == [topic] * count


def test_fields_are_checked() -> None:
    assert checked_fields(["topic", " tags", "topic", "property.a b"]) == [
        "topic", "tags", "property.a b"]
    for wrong in (["nix"], ["property."], [], [" "]):
        with pytest.raises(UsageError, match="physical_offset"):
            checked_fields(wrong)


# -- which files are looked at --------------------------------------------------------------------


def test_files_are_left_out_by_their_times(tmp_path: Path) -> None:
    """Files of 1 KiB with 7 messages a day apart each: only the right ones are opened."""
    day = 86_400_000
    specs = [tiny_stores.Spec("t", 0, b"x" * 100, raw_properties="") for _ in range(40)]
    root = tmp_path / "store"
    tiny = tiny_stores.build(root, specs)
    _shift_times(tiny, lambda number: number * day)
    with Store.open(root) as opened:
        every = objects(opened)
        assert len(every) == len(specs)
        assert len(opened.log.files) >= 5
        since, until = every[15]["store_timestamp"], every[17]["store_timestamp"]
        wanted = Selection(since=since, until=until)
        chosen = chosen_files(opened.log, wanted)
        assert 1 <= len(chosen) <= 2
        assert objects(opened, wanted) == every[15:18]
        assert objects(opened, Selection(topic="t", queue_id=0, since=since, until=until)) == every[
            15:18]
        assert chosen_files(opened.log, Selection(until=every[0]["store_timestamp"])) == [0]
        assert chosen_files(opened.log, Selection(since=every[-1]["store_timestamp"])) == [
            len(opened.log.files) - 1]


def test_a_clock_that_was_set_back_hides_nothing(tmp_path: Path) -> None:
    specs = [tiny_stores.Spec("t", 0, b"x" * 100, raw_properties="") for _ in range(40)]
    tiny = tiny_stores.build(tmp_path / "store", specs)
    # Half a minute forth and back again, over and over.
    _shift_times(tiny, lambda number: (number % 3) * CLOCK_SLACK // 4)
    with Store.open(tiny.root) as opened:
        every = objects(opened)
        times = [row["store_timestamp"] for row in every]
        assert times != sorted(times)
        for wanted in times[::5]:
            expected = [row for row in every if row["store_timestamp"] == wanted]
            assert objects(opened, Selection(since=wanted, until=wanted)) == expected
            assert objects(opened, Selection("t", 0, since=wanted, until=wanted)) == expected


def _shift_times(tiny: tiny_stores.Tiny, shift: Any) -> None:
    """Give the store times of the records another distance (no CRC covers them)."""
    for number, placed in enumerate(tiny.messages):
        record = placed.record
        record.store_timestamp += shift(number)
        file, position = tiny.place(placed.start)
        with (tiny.root / file).open("r+b") as log:
            log.seek(position)
            log.write(message.build(record))


def test_nothing_is_read_ahead_of_what_is_shown(golden: GoldenFolder,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(golden("5.3.3/basic/store")) as opened:
        numbers: list[int] = []
        real = opened.log.source
        monkeypatch.setattr(opened.log, "source", lambda number: numbers.append(number)
                            or real(number))
        pages = Selector(opened, Selection(), View(opened)).pages()
        next(pages)
        assert set(numbers) == {0}


# -- stores that are not whole --------------------------------------------------------------------


def test_rows_that_lead_nowhere_are_reported_in_runs(tiny: tiny_stores.Tiny) -> None:
    """Three records of one queue are wiped out; the others still come."""
    queue = [unit.message for unit in tiny.queues()["orders", 0]]
    assert len(queue) == 4
    for number in queue[1:3]:
        placed = tiny.messages[number]
        file, position = tiny.place(placed.start)
        with (tiny.root / file).open("r+b") as log:
            log.seek(position)
            log.write(b"\xee" * len(placed.raw))
    problems: list[Problem] = []
    with Store.open(tiny.root) as opened:
        listed_objects = objects(opened, Selection(topic="orders", queue_id=0), problems=problems)
    assert [row["physical_offset"] for row in listed_objects] == [
        tiny.messages[queue[0]].start, tiny.messages[queue[3]].start]
    assert [problem.kind for problem in problems] == ["row"]
    assert "orders/0: entries 1 to 2 point to no message" in problems[0].text
    assert problems[0].offset == tiny.messages[queue[1]].start


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_rows_behind_a_cut_log_are_reported(version: str, golden: GoldenFolder) -> None:
    problems: list[Problem] = []
    with Store.open(golden(f"{version}/crash-cqahead/before")) as opened:
        every = {row["physical_offset"] for row in objects(opened)}
        physical_offsets = set()
        for topic in {topic for topic, _ in opened.queues.by_key}:
            physical_offsets |= {row["physical_offset"]
                                 for row in objects(opened, Selection(topic=topic),
                                                    problems=problems)}
    assert physical_offsets == every
    assert problems
    assert {problem.kind for problem in problems} == {"row"}
    assert all("beyond the end of the log" in problem.text for problem in problems)


def test_rows_behind_a_hole_are_shown(tiny: tiny_stores.Tiny) -> None:
    """Two rows of `orders/0` are zero; the broker would end the queue there, the disk has more."""
    units = tiny.queues()["orders", 0]
    for unit in units[1:3]:
        file, position = tiny.unit_place(unit)
        damage.zero(tiny.root, file, position, 20)
    problems: list[Problem] = []
    with Store.open(tiny.root) as opened:
        for wanted in (Selection("orders", 0), Selection("orders", 0, from_offset=1)):
            problems.clear()
            listed_objects = objects(opened, wanted, problems=problems)
            expected = [tiny.messages[unit.message].start for unit in (units[0], units[3])]
            assert [row["physical_offset"]
                    for row in listed_objects] == expected[-len(listed_objects):]
            assert listed_objects
            assert [problem.kind for problem in problems] == ["row"]
            assert "2 entries from 1 on are zero" in problems[0].text
        assert len(objects(opened, Selection("orders", 0), view="broker")) == 1


def test_an_unreadable_queue_does_not_hide_the_others(tiny: tiny_stores.Tiny) -> None:
    refused = tiny.root / "consumequeue/orders/0/00000000000000000000"
    problems: list[Problem] = []
    with damage.refused(refused), Store.open(tiny.root) as opened:
        listed_objects = objects(opened, Selection(topic="orders"), problems=problems)
        assert {row["queue_id"] for row in listed_objects} == {1}
        assert len(listed_objects) == len(tiny.queues()["orders", 1])
        assert [problem.kind for problem in problems] == ["unreadable"]
        assert "orders/0" in problems[0].text
        assert objects(opened, Selection("orders", 0)) == []


@pytest.mark.parametrize(("kind", "length"), [
    ("crash-trunc-zero", 217), ("crash-trunc-header", 6), ("crash-trunc-garbage", 10567)])
def test_damage_is_reported_at_its_place(kind: str, length: int, golden: GoldenFolder) -> None:
    problems: list[Problem] = []
    with Store.open(golden(f"5.3.3/{kind}/before")) as opened:
        objects(opened, problems=problems)
    assert [(problem.kind, problem.offset, problem.length) for problem in problems] == [
        ("damage", 173239, length)]


def test_a_missing_file_is_reported(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    (root / "commitlog" / names[1]).unlink()
    problems: list[Problem] = []
    with Store.open(root) as opened:
        objects(opened, problems=problems)
        gone = int(names[1])
        assert [(problem.kind, problem.offset, problem.length) for problem in problems] == [
            ("gap", gone, int(names[2]) - gone)]
        problems.clear()
        objects(opened, Selection(from_phy=int(names[3])), problems=problems)
        assert not problems


def test_zeros_inside_the_log_are_reported(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    path = sorted((root / "commitlog").iterdir())[1]
    path.write_bytes(bytes(path.stat().st_size))
    problems: list[Problem] = []
    with Store.open(root) as opened:
        objects(opened, problems=problems)
    assert [(problem.kind, problem.offset) for problem in problems] == [("damage", int(path.name))]
    assert "zeroed range in the log" in problems[0].text


def test_without_queues_the_log_is_searched(golden: GoldenFolder) -> None:
    problems: list[Problem] = []
    with Store.open(golden("5.3.3/clean-nocq/before")) as opened:
        every = objects(opened)
        topic = every[0]["topic"]
        expected = [row for row in every if row["topic"] == topic]
        assert objects(opened, Selection(topic=topic), problems=problems) == expected
        assert [problem.kind for problem in problems] == ["note"]
        assert objects(opened, Selection(topic=topic, queue_id=1, from_offset=2)) == [
            row for row in expected if row["queue_id"] == 1 and row["queue_offset"] >= 2]


def test_an_unknown_topic_is_not_searched_for(basic: Store,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(basic.log), "source", lambda *_: pytest.fail("the log was read"))
    assert objects(basic, Selection(topic="nix")) == []


def test_an_unreadable_file_does_not_stop_the_rest(golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic/store")
    with Store.open(root) as opened:
        every = objects(opened)
        refused = opened.log.files[1]
    problems: list[Problem] = []
    with damage.refused(refused.path), Store.open(root) as opened:
        assert objects(opened, problems=problems) == [
            row for row in every if not refused.base <= row["physical_offset"] < refused.end]
    assert [problem.kind for problem in problems] == ["unreadable"]
    assert refused.path in problems[0].text


def test_a_torn_end_is_no_damage_while_a_broker_writes(tiny: tiny_stores.Tiny,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    from rmqctl.files.lock_probe import LockState

    last = tiny.messages[-1]
    file, position = tiny.place(last.start)
    with (tiny.root / file).open("r+b") as log:
        log.seek(position + 60)
        log.write(bytes(len(last.raw) - 60))
    for held, kind in ((True, "in-progress"), (False, "damage")):
        monkeypatch.setattr(Store, "lock", LockState(held))
        problems: list[Problem] = []
        with Store.open(tiny.root) as opened:
            assert len(objects(opened, problems=problems)) == len(tiny.messages) - 1
        assert [(problem.kind, problem.offset) for problem in problems] == [(kind, last.start)]
        assert problems[0].is_fault is not held


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_the_brokers_view_ends_at_the_first_damage(version: str, golden: GoldenFolder) -> None:
    expect = golden_sets.GoldenStore(golden_sets.GoldenSet(version, "crash-crc"),
                                     "after").load_expect(golden(f"{version}/crash-crc"))
    with Store.open(golden(f"{version}/crash-crc/after")) as opened:
        disk, broker = objects(opened), objects(opened, view="broker")
    assert broker == [row for row in disk
                      if row["physical_offset"] < expect.max_physical_offset]
    assert len(broker) == expect.readable_total
    assert len(disk) > len(broker)


def test_rows_of_another_topic_or_queue_are_not_followed(tmp_path: Path) -> None:
    store = tiny_stores.build(tmp_path / "store", [
        tiny_stores.Spec("orders", 0, b"1"), tiny_stores.Spec("bills", 0, b"2"),
        tiny_stores.Spec("orders", 1, b"3"), tiny_stores.Spec("orders", 0, b"4", lmq=("%LMQ%a",))])
    path = store.root / "consumequeue/orders/0/00000000000000000000"
    for wrong in ("bills/0", "orders/1"):
        rows = path.read_bytes()
        with path.open("r+b") as file:
            file.write((store.root / "consumequeue" / wrong / path.name).read_bytes()[:20])
        problems: list[Problem] = []
        with Store.open(store.root) as opened:
            assert [row["body"] for row in objects(opened, Selection(topic="orders", queue_id=0),
                                                   problems=problems)] == ["4"]
        assert f"the message there belongs to {wrong}" in problems[0].text
        path.write_bytes(rows)
    with Store.open(store.root) as opened:  # a light queue has messages of other topics
        assert [row["body"] for row in objects(opened, Selection(topic="%LMQ%a"))] == ["4"]


@pytest.mark.parametrize("number", range(6))
def test_rows_of_queues_are_merged_as_one_by_one(number: int, basic: Store,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the rows of a queue go back, as damage makes them."""
    rng = random.Random(number)
    places = rng.sample(range(10_000), 400)
    streams: list[list[tuple[int, int, int, int]]] = []
    for queue in range(rng.randrange(2, 9)):
        own = sorted(places[queue::9])
        for _ in range(rng.randrange(4) if number > 2 else 0):
            own.insert(rng.randrange(len(own)), own.pop())
        streams.append([(place, at, 100, queue) for at, place in enumerate(own)])

    def rows(_: Selector, queue: int, _rows: Any) -> Iterator[Any]:
        left = streams[queue]
        while left:
            count = rng.randrange(1, 20)
            yield np.array(left[:count], np.int64).T
            left = left[count:]

    monkeypatch.setattr(Selector, "_rows", rows)
    selector = Selector(basic, Selection(topic="t"), view_of(basic, "disk"))
    entries = [tuple(row) for part in selector._merged([None] * len(streams))  # type: ignore[list-item]
               for row in part.T.tolist()]
    assert entries == list(heapq.merge(*streams))


@pytest.mark.parametrize("store", sample(STORES, 8, "records together",
                                         always=golden_sets.is_covering))
def test_messages_read_together_are_those_read_one_by_one(
        store: golden_sets.GoldenStore, golden: GoldenFolder,
        monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(store, golden) as opened_store:
        for topic in topics_on_disk(opened_store):
            problems: list[Problem] = []
            together = list(Selector(opened_store, Selection(topic=topic),
                                     view_of(opened_store, "disk"),
                                     problems.append).records())
            with monkeypatch.context() as patched:
                patched.setattr(select, "MIN_SIZE", 1 << 40)
                alone: list[Problem] = []
                assert together == list(Selector(opened_store, Selection(topic=topic),
                                                 view_of(opened_store, "disk"),
                                                 alone.append).records())
            assert problems == alone


# -- tags are looked for in the rows ---------------------------------------------------------------


@pytest.mark.parametrize("store", sample(STORES, 30, "tags in rows"))
def test_a_tag_finds_what_reading_everything_finds(store: golden_sets.GoldenStore,
                                                   golden: GoldenFolder) -> None:
    """Whatever a row's tag code is: of a delay topic it is a time, with an extension a place."""
    with opened(store, golden) as opened_store:
        for topic in topics_on_disk(opened_store):
            rows = objects(opened_store, Selection(topic=topic))
            for tag in sorted({row["tags"] for row in rows if row["tags"]})[:5]:
                if "||" not in tag:
                    assert objects(opened_store, Selection(topic=topic, tag=tag)) == [
                        row for row in rows if row["tags"] == tag]


def test_only_messages_that_may_have_the_tag_are_read(
        basic: Store, everything: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [row["physical_offset"] for row in everything
              if row["topic"] == "TP_ship_evt-x" and row["tags"] == "A"]
    read: list[int] = []
    record_at, packed_records = CommitLog.record_at, select.packed_records

    def noted(self: CommitLog, physical: int, *more: Any) -> Any:
        read.append(physical)
        return record_at(self, physical, *more)

    def together(log: CommitLog, physical: Any, *more: Any) -> Any:
        read.extend(physical.tolist())
        return packed_records(log, physical, *more)

    selector = Selector(basic, Selection(topic="TP_ship_evt-x", tag="A"), view_of(basic, "disk"))
    topic_rows(basic, "TP_ship_evt-x", None, selector.view)  # the ends of the queues
    monkeypatch.setattr(CommitLog, "record_at", noted)
    monkeypatch.setattr(select, "packed_records", together)
    physical_offsets = [row["physical_offset"] for page in selector.pages()
                        for row in Projection().rows(page)]
    assert physical_offsets == wanted
    assert set(wanted) <= set(read)
    assert len(read) < len(wanted) + 20


@pytest.mark.parametrize("code", [4711, -1, 1 << 40])
def test_a_damaged_tag_code_hides_no_message(code: int, golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    with Store.open(root) as opened:
        before = objects(opened, Selection(topic="TP_ship_evt-x", tag="A"))
        row = before[len(before) // 2]
        place = row["queue_offset"] * 20
        file = next(file for file in opened.queues.plain["TP_ship_evt-x", row["queue_id"]].files
                    if file.base <= place < file.end)
    damage.cq_wrong_tag(root, f"consumequeue/TP_ship_evt-x/{row['queue_id']}/{file.name}",
                        (place - file.base) // 20, code)
    with Store.open(root) as opened:
        assert objects(opened, Selection(topic="TP_ship_evt-x", tag="A")) == before
