"""pipeline verify says what verify says: on every golden store, for any number of ranges."""

from __future__ import annotations

import os
import random
from functools import partial

import pytest

from rmqctl.checks.verify.verdict import verdict
from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.ext.spark.verify import verify_stores
from rmqctl.store.log.ranges import Threads
from rmqctl.store.store import Store
from tests.support import damage, forged, golden
from tests.support.share import sample

COUNTS = (1, 2, 7, 64)
MOST = 500


def local(root, dirs=()):
    with Store.open(root, dirs) as store:
        return verdict(Verification(store), MOST).as_dict()


def on_pool(root, pool, count, dirs=()):
    (verify_store,) = verify_stores([root], pool, VerifyOptions(ranges=count), MOST, dirs)
    assert verify_store.error is None
    return verify_store.verdict.as_dict()


def all_counts_say_the_same(value, golden, pool):
    root = str(golden(value.id))
    wanted = local(root, value.commitlog_dirs)
    for count in COUNTS:
        assert on_pool(root, pool, count, value.commitlog_dirs) == wanted, count


@pytest.mark.parametrize("golden_store", sample(golden.golden_stores(), 10, "verify in ranges"),
                         ids=lambda golden_store: golden_store.id)
def test_every_golden_store(golden_store, golden):
    all_counts_say_the_same(golden_store, golden, Threads(1))


@pytest.mark.parametrize("golden_store", sample(golden.golden_stores(), 1, "verify on Spark"),
                         ids=lambda golden_store: golden_store.id)
def test_every_golden_store_on_spark(golden_store, golden, spark_pool):
    all_counts_say_the_same(golden_store, golden, spark_pool)


def damaged(chance, golden_copy):
    """A store with damage in any of its files."""
    store = golden_copy(chance.choice(["4.9.3/basic/store", "5.3.3/basic/store",
                                       "5.3.3/v2topic/store", "4.9.3/batch/store"]))
    files = sorted((store / "commitlog").iterdir())
    for _ in range(chance.randint(1, 6)):
        file = chance.choice(files)
        at = chance.randrange(file.stat().st_size)
        length = min(chance.choice([1, 40, 3000]), file.stat().st_size - at)
        damage.write(store, f"commitlog/{file.name}", at, chance.randbytes(length))
    return store


@pytest.mark.long
@pytest.mark.parametrize("seed", sample(range(12), 5, "damage"))
def test_random_damage_with_borders_inside_it(seed, golden_copy):
    chance = random.Random(seed)
    store = damaged(chance, golden_copy)
    wanted = local(str(store))
    assert wanted["ok"] is False
    for count in (*COUNTS, chance.randint(3, 300)):
        assert on_pool(str(store), Threads(1), count) == wanted, count


@pytest.mark.parametrize("seed", sample(range(12), 1, "damage on Spark"))
def test_random_damage_on_spark(seed, golden_copy, spark_pool):
    chance = random.Random(seed)
    store = damaged(chance, golden_copy)
    assert on_pool(str(store), spark_pool, chance.randint(2, 64)) == local(str(store))


class Strange:
    """A pool that runs every task twice, the last one first, and keeps the second result."""

    jobs = 3

    def run(self, work, tasks):
        all_tasks = list(tasks)
        for task in reversed(all_tasks):
            work(task)
        yield from [(task, work(task)) for task in all_tasks]


def test_tasks_may_run_twice_and_in_any_order(golden):
    root = str(golden("5.3.3/crash-crc/before"))
    assert on_pool(root, Strange(), 7) == local(root)


@pytest.mark.long
def test_a_forged_record_at_a_border_costs_nothing(tmp_path):
    """A body that holds whole records with the right physical offsets is no seam."""
    store, inside = forged.build(tmp_path)
    assert inside < 4096
    wanted = local(str(store.root))
    for count in range(2, 41):
        assert on_pool(str(store.root), Threads(1), count) == wanted, count


def test_many_stores_have_a_verdict_each(golden, tmp_path, spark_pool):
    roots = [str(golden("4.9.3/basic/store")), str(tmp_path / "nothing"),
             str(golden("5.3.3/crash-crc/before"))]
    for pool in (spark_pool, Threads(1), Threads(2)):
        verdicts = list(verify_stores(roots, pool, VerifyOptions(), MOST))
        assert [verify_store.root for verify_store in verdicts] == roots
        assert [verify_store.verdict is not None and verify_store.verdict.ok
                for verify_store in verdicts] == [
                    True, False, False]
        assert "no such file" in str(verdicts[1].error)
        assert verdicts[2].verdict.as_dict() == local(roots[2])


class Meanwhile:
    """A pool which lets something happen to the store before the first task."""

    jobs = 2

    def __init__(self, happening):
        self._happening = happening

    def run(self, work, tasks):
        self._happening()
        yield from Threads(1).run(work, tasks)


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("what", ["vanishes", "shrinks"])
def test_a_file_that_changes_meanwhile_is_never_passed_over(what, number, count, golden_copy):
    store = golden_copy("5.3.3/basic/store")
    file = sorted((store / "commitlog").iterdir())[number]
    happening = (partial(file.unlink, missing_ok=True) if what == "vanishes"
                 else lambda: os.truncate(file, 5000))
    (verify_store,) = verify_stores([str(store)], Meanwhile(happening), VerifyOptions(ranges=count),
                                    MOST)
    if verify_store.error is not None:
        assert file.name in str(verify_store.error)
    elif (what, number) == ("vanishes", 0):  # it has expired: what is left is a whole store
        assert verify_store.verdict.as_dict() == local(str(store))
    else:
        assert not verify_store.verdict.ok
