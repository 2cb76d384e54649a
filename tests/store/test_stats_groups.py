"""stats by key, too many groups, several stores: the same however the logs are cut."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmqctl.formats.local import properties
from rmqctl.scan import aggregate
from rmqctl.scan.aggregate import Aggregate
from rmqctl.scan.groupings import OTHER
from rmqctl.scan.source import BytesSource
from rmqctl.scan.walk import Walk
from rmqctl.store import Store
from rmqctl.store.log.ranges import Threads
from rmqctl.store.stats import (
    Query,
    choose_files,
    collect,
    collect_many,
    range_size_for,
    rows,
    rows_of_stores,
    total,
)
from tests.conftest import GoldenFolder
from tests.store.test_stats import CLEAN, puts, record
from tests.support import damage
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores
from tests.support.share import sample


class Elsewhere:
    """A pool like Spark's: tasks and results travel as bytes, in any order, some twice."""

    jobs = 3

    def run(self, work: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        all_tasks = list(tasks)
        sent = [pickle.dumps((work, task)) for task in all_tasks]
        texts: dict[int, bytes] = {}
        for at in random.Random(len(all_tasks)).sample([*range(len(all_tasks))] * 2,
                                                       2 * len(all_tasks)):
            do, task = pickle.loads(sent[at])
            texts[at] = pickle.dumps(do(task))
        for at, task in enumerate(all_tasks):
            yield task, pickle.loads(texts[at])


def log_of(keys: Iterable[str], **fields: Any) -> bytes:
    data = b""
    for key in keys:
        data += record(len(data), keys=key, **fields)
    return data


def store_of(root: Path, keys: Iterable[str], files: int = 1) -> Path:
    """A store whose log has a message for each of ``keys`` (a KEYS property)."""
    wanted = list(keys)
    (root / "commitlog").mkdir(parents=True)
    base = 0
    for number in range(files):
        data = b""
        for key in wanted[number::files]:
            data += record(base + len(data), keys=key)
        data += bytes(64)  # not even room for a blank: then there are none in the next file
        data += bytes(-len(data) % 4096)
        size = 1 << 18
        data = data.ljust(size, b"\0")
        (root / "commitlog" / f"{base:020}").write_bytes(data)
        base += size
    return root


def counts(sums: Aggregate) -> dict[Any, int]:
    return {key: group.messages for key, group in sums.groups().items()}


@pytest.mark.parametrize("store", CLEAN)
def test_every_key_counts(store: golden_sets.GoldenStore, golden: GoldenFolder) -> None:
    wanted: Counter[str | None] = Counter()
    size: Counter[str | None] = Counter()
    for message in puts(store, golden):
        keys = set(properties.split_keys(properties.parse(message.properties).get("KEYS"))) or {
            None}
        for key in keys:
            wanted[key] += 1
            size[key] += message.size
    with Store.open(golden(store.id), store.dirs) as opened:
        sums = collect(opened, Query("key"))
        everything = collect(opened, Query("none"))
    assert {row["key"]: row["messages"] for row in rows(sums)} == wanted
    assert {row["key"]: row["bytes"] for row in rows(sums)} == size
    assert total(sums) == total(everything)


def test_a_key_that_stands_twice_counts_once() -> None:
    sums = Aggregate("key")
    for batch in Walk(BytesSource(log_of(["a a b", "", "  b  ", "a", "c b a c"])), chunk=300):
        sums.add(batch)
    assert counts(sums) == {b"a": 3, b"b": 3, None: 1, b"c": 1}
    assert total(sums)["messages"] == 5
    assert {row["key"]: row["share"] for row in rows(sums)} == {
        "a": 0.6, "b": 0.6, None: 0.2, "c": 0.2}


def test_what_is_summed_as_other_comes_last(monkeypatch, tmp_path: Path) -> None:
    bounded(monkeypatch, limit=8, heavy=2)
    with Store.open(store_of(tmp_path, ["x"] * 31 + [f"k{n}" for n in range(29)])) as store:
        entries = collect(store, Query("key"))
    for sort in ("key", "messages", "bytes", None):
        assert [row["key"] for row in rows(entries, sort=sort)] == ["x", OTHER]
    assert [row["messages"] for row in rows(entries)] == [31, 29]
    assert entries.is_cut


def bounded(monkeypatch: pytest.MonkeyPatch, limit: int, heavy: int) -> None:
    monkeypatch.setattr(aggregate, "MAX_KEYS", limit)
    monkeypatch.setattr(aggregate, "MAX_GROUPS", limit)
    monkeypatch.setattr(aggregate, "HEAVY", heavy)


@pytest.mark.long
@pytest.mark.parametrize("seed", sample(range(6), 1, "heavy groups", always={0}))
def test_heavy_groups_are_exact_however_the_log_is_cut(seed: int, monkeypatch,
                                                       tmp_path: Path) -> None:
    """Many light keys, some heavy ones, one just at the border, in a hostile order."""
    dice = random.Random(seed)
    bounded(monkeypatch, limit=40, heavy=10)
    sent = ["heavy one"] * 300 + ["border"] * 100 + [f"light{n} two" for n in range(300)] + [""] * 9
    sent += [f"k{dice.randrange(60)}" for _ in range(91)] + ["above"] * 201
    sent = [*sorted(sent), *sent] if seed == 0 else dice.sample(sent * 2, 2 * len(sent))
    wanted: Counter[str | None] = Counter()
    for text in sent:
        wanted.update(set(text.split()) or {None})
    everything = sum(wanted.values())
    heavy = {key: count for key, count in wanted.items() if count * 10 > everything}
    assert set(heavy) == {"heavy", "one", "two", "above"}
    rest = everything - sum(heavy.values())
    values = []
    with Store.open(store_of(tmp_path, sent, files=2)) as store:
        for size in (1 << 30, 60_000, 4_099, 701):
            for how in ({}, {"jobs": 2}, {"pool": Elsewhere()}, {"pool": Threads(2)}):
                if how and size < 4_099:
                    continue
                values.append(collect(store, Query("key"), range_size=size, **how))
    for sums in values:
        assert counts(sums) == {**{key.encode(): n for key, n in heavy.items()}, OTHER: rest}
        assert rows(sums) == rows(values[0])
        assert total(sums)["messages"] == len(sent)


def test_groups_that_just_fit_are_all_kept(monkeypatch, tmp_path: Path) -> None:
    bounded(monkeypatch, limit=40, heavy=10)
    for count, cut in ((40, False), (41, True)):
        sent = [f"k{number}" for number in range(count)] * 3
        with Store.open(store_of(tmp_path / str(count), sent, files=2)) as store:
            for size in (1 << 30, 2_000, 333):
                sums = collect(store, Query("key"), range_size=size, pool=Elsewhere())
                assert sums.is_cut is cut
                assert counts(sums) == ({OTHER: 3 * count} if cut else
                                        {key.encode(): 3 for key in sent})


def test_the_second_reading_is_reported(monkeypatch, tmp_path: Path) -> None:
    bounded(monkeypatch, limit=8, heavy=2)
    steps: list[int] = []
    done: list[int] = []
    with Store.open(store_of(tmp_path, map(str, range(30)))) as store:
        collect(store, Query("key"), progress=done.append, again=steps.append)
        assert steps == [store.log.files[0].size]
        assert sum(done) == 2 * steps[0]
        collect(store, Query("none"), again=steps.append)
    assert len(steps) == 1


def test_what_is_sent_is_small(monkeypatch) -> None:
    """A part with too many groups keeps twice the heavy ones; the answer stays as it is."""
    bounded(monkeypatch, limit=400, heavy=20)
    sums = Aggregate("key")
    for batch in Walk(BytesSource(log_of([f"k{n % 700} big" for n in range(2500)])), chunk=9000):
        sums.add(batch)
    assert sums.is_full
    sums.pack()
    assert len(sums.candidates) <= len(sums._keys.by_number) <= 40
    assert b"big" in sums.candidates


@pytest.mark.parametrize("by", ["topic", "queue", "tag", "key", "minute", "hour", "size", "none"])
@pytest.mark.parametrize("partitions", sample([1, 2, 7, 64], 2, "pools of figures"))
def test_a_pool_gives_the_same(by: str, partitions: int, golden: GoldenFolder) -> None:
    with Store.open(golden("5.3.3/basic/store")) as store:
        plain = collect(store, Query(by))
        size = range_size_for([store.log.files], 2, partitions)
        other = collect(store, Query(by), range_size=size, pool=Elsewhere())
    assert rows(other) == rows(plain)
    assert total(other) == total(plain)


@pytest.mark.parametrize("size", sample([97, 1000, 100_000], 1, "sizes past damage"))
def test_a_pool_gives_the_same_past_damage(size: int, golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    for name, at, length in ((names[0], 0, 60), (names[1], 1000, 5000), (names[2], 300, 3)):
        damage.zero(root, f"commitlog/{name}", at, length)
    with Store.open(root) as store:
        plain = collect(store, Query("queue"))
        size = max(size, sum(file.size for file in store.log.files) // 3000)
        other = collect(store, Query("queue"), range_size=size, pool=Elsewhere())
    assert plain.bytes_damaged > 1000
    assert rows(other, sort="key") == rows(plain, sort="key")
    for name in ("bytes_in_messages", "bytes_blank", "bytes_zero", "bytes_damaged",
                 "damaged_spans"):
        assert getattr(other, name) == getattr(plain, name)


# -- several stores ------------------------------------------------------------------------------


def opened(stack: Any, *roots: Path) -> list[Sequence[Any]]:
    stores = [stack.enter_context(Store.open(root)) for root in roots]
    return [choose_files(store, Query()) for store in stores]


@pytest.mark.parametrize("by", ["topic", "key", "none"])
@pytest.mark.parametrize("pool", [None, Elsewhere()], ids=["here", "elsewhere"])
def test_several_stores(by: str, pool: Any, golden: GoldenFolder,
                        tiny_base: tiny_stores.Tiny) -> None:
    from contextlib import ExitStack

    roots = [golden("5.3.3/basic/store"), tiny_base.root, golden("4.9.3/basic/store")]
    with ExitStack() as stack:
        logs = opened(stack, *roots)
        aggregates = [collect_many([log], Query(by))[0] for log in logs]
        many = collect_many(logs, Query(by), pool=pool, range_size=10_000)
        item, = collect_many(logs, Query(by), pool=pool, range_size=10_000, together=True)
    assert [rows(sums) for sums in many] == [rows(sums) for sums in aggregates]
    everything = total(item)
    assert everything == total(*many)
    assert everything["messages"] == sum(total(sums)["messages"] for sums in aggregates)
    listed_rows_of_stores = rows_of_stores([("a", many[0]), ("b", many[1]), ("c", many[2])])
    assert [row["messages"] for row in listed_rows_of_stores] == sorted(
        (row["messages"] for row in listed_rows_of_stores), reverse=True)
    for name, sums in zip("abc", aggregates, strict=True):
        mine = [row for row in listed_rows_of_stores if row["store"] == name]
        assert [{**row, "share": 0} for row in rows(sums)] == [
            {key: 0 if key == "share" else value for key, value in row.items() if key != "store"}
            for row in mine]
        for row in mine:
            assert row["share"] == round(row["messages"] / everything["messages"], 6)
    names = [row["store"] for row in rows_of_stores([("b", many[0]), ("a", many[1])], sort="key")]
    assert names == sorted(names)
    summed: Counter[Any] = Counter()
    for row in listed_rows_of_stores:
        summed[row.get(by)] += row["messages"]
    assert {row.get(by): row["messages"] for row in rows(item)} == summed


def test_together_is_cut_as_one(monkeypatch, tmp_path: Path) -> None:
    """Each store's groups fit, those of both together do not."""
    from contextlib import ExitStack

    bounded(monkeypatch, limit=40, heavy=10)
    roots = [store_of(tmp_path / name, [f"{name}{n}" for n in range(30)] + ["both"] * 9)
             for name in "ab"]
    with ExitStack() as stack:
        logs = opened(stack, *roots)
        aggregates = collect_many(logs, Query("key"))
        item, = collect_many(logs, Query("key"), together=True)
    assert [(sums.is_cut, len(sums.groups())) for sums in aggregates] == [(False, 31)] * 2
    assert counts(item) == {b"both": 18, OTHER: 60}


def test_how_fine_to_cut(golden: GoldenFolder) -> None:
    with Store.open(golden("5.3.3/basic/store")) as store:
        files = store.log.files
        whole = sum(file.size for file in files)
        assert range_size_for([files], 2) == 64 << 20
        assert range_size_for([files], 2, 7) == -(-whole // 7)
        assert range_size_for([], 2, 7) == 1
