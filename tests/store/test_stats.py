"""stats: what was put is what is counted, by every key, over any zone, past damage."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from rmqctl.errors import StoreIOError, UsageError
from rmqctl.formats.local import properties, sysflag
from rmqctl.scan.aggregate import Aggregate
from rmqctl.scan.groupings import KeyNumbers
from rmqctl.scan.source import BytesSource
from rmqctl.scan.walk import Walk
from rmqctl.store import Store
from rmqctl.store.stats import KEY_COLUMNS, VALUE_COLUMNS, Query, choose_files, collect, rows, total
from tests.conftest import GoldenFolder
from tests.support import damage, engine
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores

CLEAN = [pytest.param(golden_store, id=golden_store.id)
         for golden_store in golden_sets.clean_stores()]
Key = Callable[[engine.Stored], Hashable]
KEYS: dict[str, Key] = {
    "topic": lambda record: record.topic,
    "queue": lambda queue: (queue.topic, queue.queue_id),
    "tag": lambda record: properties.parse(record.properties).get("TAGS"),
    "minute": lambda record: record.store_timestamp // 60_000 * 60_000,
    "hour": lambda record: record.store_timestamp // 3_600_000 * 3_600_000,
    "day": lambda record: record.store_timestamp // 86_400_000 * 86_400_000,
    "store-host": lambda record: record.store_host.removeprefix("/"),
    "size": lambda record: (1 << record.size.bit_length() - 1, (1 << record.size.bit_length()) - 1),
    "flag": lambda record: record.flag,
    "transaction": lambda record: sysflag.transaction_type(record.sys_flag),
    "compression": lambda record: sysflag.compression(record.sys_flag) or "none",
    "none": lambda value: None,
}


def expected(stored: Iterable[engine.Stored], key: Key) -> dict[Hashable, tuple[int, ...]]:
    """(messages, bytes, body bytes, first, last) by key, in plain Python."""
    storeds: dict[Hashable, list[engine.Stored]] = {}
    for message in stored:
        storeds.setdefault(key(message), []).append(message)
    return {name: (len(some), sum(item.size for item in some),
                   sum(item.body_length for item in some),
                   min(record.store_timestamp for record in some),
                   max(record.store_timestamp for record in some))
            for name, some in storeds.items()}


def keyed(sums: Aggregate, **options: Any) -> dict[Hashable, tuple[int, ...]]:
    """The rows in the same form."""
    columns = KEY_COLUMNS[sums.by]
    return {tuple(row[name] for name in columns) if len(columns) > 1 else
            row[columns[0]] if columns else None:
            (row["messages"], row["bytes"], row["body_bytes"], row["first_store_timestamp"],
             row["last_store_timestamp"]) for row in rows(sums, **options)}


def puts(store: golden_sets.GoldenStore, golden: GoldenFolder) -> list[engine.Stored]:
    return [message for put in engine.puts(golden(store.set.id) / "input.jsonl")
            for message in put.stored]


@pytest.mark.parametrize("store", CLEAN)
def test_what_was_put_is_counted(store: golden_sets.GoldenStore, golden: GoldenFolder) -> None:
    stored = puts(store, golden)
    with Store.open(golden(store.id), store.dirs) as opened:
        for by, key in KEYS.items():
            sums = collect(opened, Query(by))
            assert keyed(sums) == expected(stored, key), by
            assert sums.bytes_damaged == sums.damaged_spans == 0
            assert (sums.bytes_in_messages + sums.bytes_blank + sums.bytes_zero
                    == sum(file.size for file in opened.log.files))


def test_the_frames_are_those_of_a_walk(golden: GoldenFolder) -> None:
    """Passing over the zeros at the end of a file changes no sum."""
    for store in golden_sets.golden_stores():
        with Store.open(golden(store.id), store.dirs) as opened:
            plain = Aggregate("none")
            for number in range(len(opened.log.files)):
                for batch in Walk(opened.log.source(number)):
                    plain.add(batch)
            sums = collect(opened, Query("none"))
        for name in ("bytes_in_messages", "bytes_blank", "bytes_zero", "bytes_damaged",
                     "damaged_spans"):
            assert getattr(sums, name) == getattr(plain, name), (store.id, name)
        assert sums.groups() == plain.groups(), store.id


@pytest.mark.parametrize("by", ["topic", "tag", "minute"])
def test_filters(by: str, golden: GoldenFolder) -> None:
    store = golden_sets.GoldenStore(golden_sets.GoldenSet("5.3.3", "basic"), "store")
    stored = puts(store, golden)
    times = sorted(message.store_timestamp for message in stored)
    topics = {message.topic for message in stored}
    with Store.open(golden(store.id)) as opened:
        for topic in (None, *topics, "nope", ""):
            for since, until in ((None, None), (times[9], None), (None, times[40]),
                                 (times[9], times[40]), (times[-1] + 1, None)):
                sums = collect(opened, Query(by, topic, since, until))
                assert keyed(sums) == expected(
                    (message for message in stored if topic in (None, message.topic)
                     and (since is None or message.store_timestamp >= since)
                     and (until is None or message.store_timestamp <= until)), KEYS[by])


@pytest.mark.parametrize("zone", [timezone(timedelta(hours=5, minutes=45)),
                                  timezone(timedelta(hours=-9, minutes=-30)),
                                  ZoneInfo("Europe/Berlin")], ids=str)
@pytest.mark.parametrize("by", ["hour", "day"])
def test_hours_and_days_of_a_zone(zone: Any, by: str, tmp_path: Path) -> None:
    """Through the night in which Berlin's clocks go back: 26 hours, one message a quarter."""
    from datetime import datetime

    start = 1_698_526_800_000  # 2023-10-28T21:00Z
    times = [start + number * 900_000 + number for number in range(26 * 4)]
    records = b"".join(record(at=number * 91, store_timestamp=when)
                       for number, when in enumerate(times))
    sums = Aggregate(by)
    for batch in Walk(BytesSource(records)):
        sums.add(batch)
    wanted: dict[int, int] = {}
    for when in times:
        local = datetime.fromtimestamp(when / 1000, UTC).astimezone(zone)
        begin = local.replace(minute=0, second=0, microsecond=0)
        if by == "day":
            begin = begin.replace(hour=0)
        key = int(begin.timestamp() * 1000)
        wanted[key] = wanted.get(key, 0) + 1
    assert {row["time"]: row["messages"] for row in rows(sums, zone)} == wanted
    assert [row["time"] for row in rows(sums, zone)] == sorted(wanted)


def record(at: int, *, store_timestamp: int = 0, flag: int = 0, keys: str = "") -> bytes:
    from rmqctl.formats.local import message

    host = bytes(4), 1
    texts = f"KEYS\x01{keys}\x02".encode() if keys else b""
    return message.build(message.Record(
        91 + len(texts), message.MAGIC_V1, 0, 0, flag, 0, at, 0, 0, host, store_timestamp, host,
        0, 0, b"", b"", texts))


def test_times_no_calendar_has() -> None:
    """Damage that keeps the frame intact makes any time; nothing may fail on it."""
    times = [-(1 << 63), (1 << 63) - 1, 0, -1]
    data = b"".join(record(at=number * 91, store_timestamp=when)
                    for number, when in enumerate(times))
    for by in ("minute", "hour", "day"):
        sums = Aggregate(by)
        for batch in Walk(BytesSource(data)):
            sums.add(batch)
        listed_rows = rows(sums, ZoneInfo("Asia/Kolkata"))
        assert sum(row["messages"] for row in listed_rows) == 4
        assert total(sums)["first_store_timestamp"] == times[0]
        assert total(sums)["last_store_timestamp"] == times[1]


def test_keys_of_wide_and_narrow_ranges() -> None:
    import numpy as np

    keys = KeyNumbers()
    for values in ([5], [3, 3, 3], [9, 3, 5, 9], [-(1 << 40), 1 << 40, 3, 3], [-2, -1, -2]):
        codes = keys.of_ints(np.array(values, np.int64))
        assert [keys.by_number[code] for code in codes.tolist()] == values
    assert len(keys.by_number) == len(set(keys.by_number)) == 7


def test_figures_of_a_row(tiny_base: tiny_stores.Tiny) -> None:
    with Store.open(tiny_base.root) as store:
        sums = collect(store, Query("topic"))
    orders, bills = rows(sums)
    assert [row["topic"] for row in (orders, bills)] == ["orders", "bills"]
    assert tuple(orders)[1:] == VALUE_COLUMNS
    sizes = [len(message.raw) for message in tiny_base.messages if message.spec.topic == "orders"]
    span = (orders["last_store_timestamp"] - orders["first_store_timestamp"]) / 1000
    assert orders["share"] == 0.75
    assert orders["average_size"] == round(sum(sizes) / 6, 1)
    assert orders["messages_per_second"] == round(6 / span, 3)
    assert orders["bytes_per_second"] == round(sum(sizes) / span, 3)
    everything = total(sums)
    assert everything["messages"] == 8
    assert everything["share"] == 1
    assert everything["bytes"] == sum(len(message.raw) for message in tiny_base.messages)


def test_a_single_moment_has_no_rate_and_a_minute_has(tmp_path: Path) -> None:
    tiny = tiny_stores.variant(tmp_path / "store", "one message")
    with Store.open(tiny.root) as store:
        assert rows(collect(store, Query("topic")))[0]["messages_per_second"] is None
        assert rows(collect(store, Query("minute")))[0]["messages_per_second"] == round(1 / 60, 3)


@pytest.mark.parametrize("sort", ["messages", "bytes", "body_bytes", "average_size",
                                  "messages_per_second", "last_store_timestamp"])
def test_sorting(sort: str, golden: GoldenFolder) -> None:
    with Store.open(golden("5.3.3/basic/store")) as store:
        listed_rows = rows(collect(store, Query("queue")), sort=sort)
    values = [row[sort] or 0 for row in listed_rows]
    assert values == sorted(values, reverse=True)
    by_key = rows(collect(store, Query("queue")), sort="key")
    assert [(row["topic"], row["queue_id"]) for row in by_key] == sorted(
        (row["topic"], row["queue_id"]) for row in listed_rows)


def test_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with Store.open(tmp_path) as store:
        sums = collect(store, Query())
    assert rows(sums) == []
    assert total(sums)["messages"] == 0


def test_damage_is_counted_and_passed_over(tiny: tiny_stores.Tiny) -> None:
    bad = tiny.messages[2]
    damage.zero(tiny.root, *tiny.place(bad.start), 8)
    with Store.open(tiny.root) as store:
        sums = collect(store, Query("none"))
    assert sums.groups()[None].messages == 7
    assert (sums.bytes_damaged, sums.damaged_spans) == (len(bad.raw), 1)


def test_a_vanished_file_is_said(tiny: tiny_stores.Tiny) -> None:
    with Store.open(tiny.root) as store:
        assert len(store.log.files) == 2
        damage.remove(tiny.root, "commitlog/00000000000000001024")
        with pytest.raises(StoreIOError, match="00000000000000001024"):
            collect(store, Query())


def test_an_unknown_grouping(tiny_base: tiny_stores.Tiny) -> None:
    with Store.open(tiny_base.root) as store, pytest.raises(UsageError):
        collect(store, Query("colour"))


# -- files by time -------------------------------------------------------------------------------


def test_files_are_left_out_by_time(golden: GoldenFolder) -> None:
    with Store.open(golden("5.3.3/basic/store")) as store:
        starts = [store.log.record_at(file.base).store_timestamp  # type: ignore[union-attr]
                  for file in store.log.files]
        everything = store.log.files
        assert choose_files(store, Query()) == everything
        kept = choose_files(store, Query(since=starts[2], until=starts[3]), skew=0)
        assert kept == everything[1:4]
        assert choose_files(store, Query(since=starts[2]), skew=1 << 40) == everything
        for since in starts:
            query = Query("topic", since=since, until=since + 500)
            part = collect(store, query, files=choose_files(store, query, skew=0))
            assert part.groups() == collect(store, query, files=everything).groups()


def test_no_file_is_left_out_when_the_clock_went_back(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    damage.write(root, f"commitlog/{names[3]}", 56, (1).to_bytes(8, "big"))
    with Store.open(root) as store:
        query = Query(since=1 << 61)
        assert choose_files(store, query, skew=0) == store.log.files
