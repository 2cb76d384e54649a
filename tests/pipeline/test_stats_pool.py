"""stats on Spark: the figures of the local engine, for any number of partitions, past damage."""

from __future__ import annotations

import pytest

from rmqctl.scan import aggregate
from rmqctl.store import Store
from rmqctl.store.log.ranges import Threads
from rmqctl.store.stats import Query, collect, collect_many, range_size_for, rows, total
from tests.conftest import GoldenFolder, Runner
from tests.support import damage
from tests.support import tiny as tiny_stores
from tests.support.share import sample

BYTES = ("bytes_in_messages", "bytes_blank", "bytes_zero", "bytes_damaged", "damaged_spans")


def same(first, other):
    assert rows(first) == rows(other)
    assert total(first) == total(other)
    for name in BYTES:
        assert getattr(first, name) == getattr(other, name)


@pytest.mark.parametrize(("by", "partitions"), sample(
    [(by, partitions) for by in ("queue", "key") for partitions in (1, 2, 7, 64)], 2,
    "stats on Spark"))
def test_the_same_figures(by, partitions, spark_pool, golden: GoldenFolder):
    with Store.open(golden("5.3.3/basic/store")) as store:
        size = range_size_for([store.log.files], spark_pool.jobs, partitions)
        same(collect(store, Query(by), range_size=size, pool=spark_pool),
             collect(store, Query(by)))


@pytest.mark.parametrize("size", [3_001, 20_011])
def test_the_same_figures_past_damage(size, spark_pool, golden_copy: GoldenFolder):
    """Borders of ranges lie inside messages and inside damage."""
    root = golden_copy("4.9.3/basic/store")
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    for name, at, length in ((names[0], 4, 50), (names[1], 1000, 9000), (names[2], 300, 3)):
        damage.zero(root, f"commitlog/{name}", at, length)
    with Store.open(root) as store:
        local = collect(store, Query("topic"))
        assert local.bytes_damaged > 5000
        same(collect(store, Query("topic"), range_size=size, pool=spark_pool), local)


def test_several_stores_at_once(spark_pool, golden: GoldenFolder, tiny_base: tiny_stores.Tiny):
    with Store.open(golden("5.3.3/basic/store")) as opened, Store.open(tiny_base.root) as other:
        logs = [opened.log.files, other.log.files]
        for together in (False, True):
            aggregates = collect_many(logs, Query("tag"), pool=spark_pool, range_size=10_007,
                                      together=together)
            wanted = collect_many(logs, Query("tag"), together=together)
            for mine, theirs in zip(aggregates, wanted, strict=True):
                same(mine, theirs)


def test_too_many_groups_are_cut_alike(spark_pool, monkeypatch, golden: GoldenFolder):
    """The workers keep more groups than this process here, which must not matter."""
    monkeypatch.setattr(aggregate, "MAX_KEYS", 200)
    monkeypatch.setattr(aggregate, "HEAVY", 40)
    with Store.open(golden("5.3.3/basic/store")) as store:
        local = collect(store, Query("key"))
        spread = collect(store, Query("key"), range_size=9_001, pool=spark_pool)
        threaded = collect(store, Query("key"), range_size=9_001, pool=Threads(2))
    assert local.is_cut
    assert 1 < len(local.groups()) < 40
    same(threaded, local)
    assert spread.is_cut
    assert {row["key"]: row["messages"] for row in rows(spread)} == {
        row["key"]: row["messages"] for row in rows(local)}


# -- the commands --------------------------------------------------------------------------------


@pytest.mark.long
def test_one_store_is_what_stats_says(golden: GoldenFolder, rmqctl: Runner):
    root = golden("5.3.3/basic/store")
    for options in (["--by", "key", "--top", "7"], ["--by", "hour"], ["--sort", "bytes"],
                    ["--by", "none"], ["--topic", "TP_fraud_Topic", "--by", "size"]):
        plain = rmqctl("stats", root, *options, "-o", "json").expect(0).json()
        answer = rmqctl("pipeline", "stats", root, *options, "-o", "json", "--engine",
                        "local").expect(0).json()
        for row in answer["rows"]:
            assert next(iter(row.items())) == ("store", str(root))
            del row["store"]
        assert answer == plain


@pytest.mark.long
def test_several_stores(golden: GoldenFolder, tiny_base: tiny_stores.Tiny, rmqctl: Runner):
    roots = [golden("5.3.3/basic/store"), tiny_base.root]

    def ask(*options):
        return rmqctl("pipeline", "stats", *roots, "--engine", "local", "-o", "json",
                      *options).expect(0).json()

    single = [rmqctl("stats", root, "-o", "json").expect(0).json() for root in roots]
    response = ask("--by", "store")
    assert [(row["store"], row["messages"], row["share"]) for row in response["rows"]] == [
        (str(roots[0]), 600, round(600 / 608, 6)), (str(roots[1]), 8, round(8 / 608, 6))]
    assert response["by"] == "store"
    assert response["total"]["messages"] == 608
    assert [store["coverage"] for store in response["stores"]] == [answer["coverage"]
                                                                   for answer in single]
    assert [store["messages"] for store in response["stores"]] == [600, 8]
    assert response["coverage"]["bytes_total"] == sum(answer["coverage"]["bytes_total"]
                                                      for answer in single)
    by_topic = ask()
    assert {(row["store"], row["topic"]): row["messages"] for row in by_topic["rows"]} == {
        (str(root), row["topic"]): row["messages"]
        for root, answer in zip(roots, single, strict=True) for row in answer["rows"]}
    together = ask("--together")
    assert "store" not in together["rows"][0]
    assert together["total"] == by_topic["total"]
    for form in ("plain", "table", "csv"):
        text = rmqctl("pipeline", "stats", *roots, "--engine", "local", "-o", form).expect(0).out
        assert "orders" in text
    rmqctl("pipeline", "stats", *roots, "--engine", "local", "--plot", "--by", "hour").expect(0)
    rmqctl("pipeline", "stats", *roots, "--by", "store", "--together").expect(2)


def test_a_pattern_and_what_is_no_store(golden: GoldenFolder, tmp_path, rmqctl: Runner):
    pattern = str(golden("5.3.3/basic/store").parent / "st*e")
    result = rmqctl("pipeline", "stats", pattern, "--engine", "local", "-o", "json").expect(0)
    assert result.json()["total"]["messages"] == 600
    rmqctl("pipeline", "stats", tmp_path / "none", "--engine", "local").expect(3)
    rmqctl("pipeline", "stats", str(tmp_path / "x*"), "--engine", "local").expect(3)


def test_damage_names_its_store(tiny: tiny_stores.Tiny, golden: GoldenFolder, rmqctl: Runner):
    damage.zero(tiny.root, *tiny.place(tiny.messages[2].start), 8)
    done = rmqctl("pipeline", "stats", tiny.root, golden("5.3.3/basic/store"), "--engine",
                  "local", "-o", "json").expect(1)
    assert f"{tiny.root}: {len(tiny.messages[2].raw)} bytes in 1 damaged range skipped" in done.err


def test_a_dry_run_starts_nothing(golden: GoldenFolder, rmqctl: Runner):
    root = golden("5.3.3/basic/store")
    done = rmqctl("pipeline", "stats", root, "--dry-run", "-o", "json", "--partitions",
                  "64").expect(0).json()
    assert done["engine"] == "spark"
    row, = done["stores"]
    assert row["store"] == str(root)
    assert 60 <= row["partitions"] <= 70
    assert 0 < row["bytes"] <= row["file_bytes"]
    rmqctl("pipeline", "stats", root, "--dry-run", "--engine", "auto").expect(0)
    rmqctl("pipeline", "stats", root, "--dry-run", "--master", "nonsense").expect(2)
