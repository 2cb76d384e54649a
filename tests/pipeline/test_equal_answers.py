"""On all golden stores and on damaged ones, Spark and the local readers say the same.

The log of every store is cut into 1, 7 and 64 pieces (64 on a share of the stores where each has a
task of its own), inside messages and inside damage; verify has a test of its own
(`test_verify_spark`). The stores are read together, as a fleet.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from collections import Counter, defaultdict

import pytest

from rmqctl.ext.spark import register
from rmqctl.repair.rebuild.steps import derived_steps
from rmqctl.repair.scratch import Scratch
from rmqctl.sql.options import ReadOptions
from rmqctl.sql.planning import plan
from rmqctl.store.log.ranges import Threads
from rmqctl.store.stats import Query, choose_files, collect_many
from rmqctl.store.store import Store
from tests.pipeline import exporting
from tests.pipeline.pools import on_pool
from tests.pipeline.reading import local
from tests.repair.rebuilding import DERIVED, carry_out, derived, settings_of, unnamed
from tests.support import damage, snapshot
from tests.support import golden as golden_sets
from tests.support.arrow_rows import rows_of

pytestmark = pytest.mark.exhaustive
COUNTS = (1, 7, 64)
DAMAGED = ("4.9.3/basic/store", "5.3.3/basic/store", "5.3.3/v2topic/store", "4.9.3/batch/store",
           "5.3.3/ipv6/store", "5.3.3/appendcrc/store")
SINGLE = [golden_store for golden_store in golden_sets.golden_stores() if not golden_store.options]
SEVERAL = [golden_store for golden_store in golden_sets.golden_stores() if golden_store.options]


@pytest.fixture(scope="module")
def fleet(golden, tmp_path_factory):
    """The roots of all golden stores with one log folder, and of damaged copies."""
    roots = [golden(golden_store.id) for golden_store in SINGLE]
    folder = tmp_path_factory.mktemp("damaged")
    for number, name in enumerate(DAMAGED):
        chance, root = random.Random(number), folder / f"store{number}"
        snapshot.copy_tree(golden(name), root)
        for file in sorted((root / "commitlog").iterdir()):
            noise = chance.randbytes(chance.choice([1, 60, 3000, 12000]))
            at = chance.randrange(file.stat().st_size - len(noise))
            damage.write(root, f"commitlog/{file.name}", at, noise)
        roots.append(root)
    return roots


def few(fleet):
    """A share of the golden stores, and all damaged ones."""
    return fleet[:-len(DAMAGED):12] + fleet[-len(DAMAGED):]


def ordered(rows):
    return sorted(rows, key=lambda row: (row["store"], row["file"], row.get("position") or 0,
                                         row.get("number") or 0, row["physical_offset"]))


@pytest.fixture(scope="module")
def truth(fleet):
    """The rows of a table by the local readers, made once."""
    answers = {}

    def rows(table):
        if table not in answers:
            answers.clear()
            answers[table] = ordered(row for root in fleet for row in local(root, table))
        return answers[table]

    return rows


CUTS = {"1": lambda fleet: (fleet, 1), "7 each": lambda fleet: (fleet, 7 * len(fleet)),
        "64 each": lambda fleet: (few(fleet), 64 * len(few(fleet)))}
"""What is read, in how many partitions."""


@pytest.mark.parametrize("cut", list(CUTS)[1:])
def test_borders_lie_in_messages_and_in_damage(cut, fleet, truth):
    roots, count = CUTS[cut](fleet)
    options = ReadOptions.of(
        {"paths": json.dumps(list(map(str, roots))), "numPartitions": str(count)})
    borders = defaultdict(set)
    for piece in itertools.chain.from_iterable(plan(options, options.filters)):
        borders[piece.store, piece.file].add(piece.start)
    kinds = Counter(row["kind"] for row in truth("frames")
                    for border in borders[row["store"], row["file"]]
                    if row["position"] < border < row["position"] + row["length"])
    assert kinds["message"] > 100
    assert kinds["damaged"] > 3


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("table", ["messages", "frames", "consumequeue", "index"])
def test_the_data_source(table, cut, spark, fleet, truth):
    register(spark)
    roots, count = CUTS[cut](fleet)
    names = set(map(str, roots))
    rows = rows_of(spark.read.format("rocketmq").option("table", table)
                   .option("numPartitions", str(count)).option("failOnDataLoss", "false")
                   .load(list(map(str, roots))).toArrow(), maps_as_pydicts="strict")
    wanted = [row for row in truth(table) if row["store"] in names]
    assert len(rows) == len(wanted) > 1000
    for first, other in zip(ordered(rows), wanted, strict=True):
        if "properties" in other:
            other = {**other, "properties": dict(other["properties"])}  # noqa: PLW2901
        assert first == other


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("golden_store", SEVERAL, ids=lambda golden_store: golden_store.id)
def test_the_data_source_on_logs_in_several_folders(golden_store, count, spark, golden):
    register(spark)
    root = golden(golden_store.id)
    for table in ("messages", "frames"):
        rows = rows_of(spark.read.format("rocketmq").option("table", table)
                       .option("numPartitions", str(count))
                       .option("commitlogDirs",
                               ",".join(golden_store.commitlog_dirs)).load(str(root))
                       .toArrow(), maps_as_pydicts="strict")
        wanted = [{**row, "properties": dict(row["properties"])} if "properties" in row else row
                  for row in local(root, table, golden_store.commitlog_dirs)]
        assert ordered(rows) == ordered(wanted)


@pytest.mark.parametrize("by", ["queue", "key", "hour"])
@pytest.mark.parametrize("count", COUNTS)
def test_stats(by, count, spark_pool, fleet):
    query, logs = Query(by), []
    for root in fleet if count < COUNTS[-1] else few(fleet):
        with Store.open(root) as store:
            logs.append(choose_files(store, query))
    wanted = [aggregate.groups() for aggregate in collect_many(logs, query)]
    assert sum(map(len, wanted)) > 10
    largest = max(sum(file.size for file in files) for files in logs)
    aggregates = collect_many(logs, query, pool=spark_pool, range_size=-(-largest // count))
    assert [aggregate.groups() for aggregate in aggregates] == wanted


@pytest.mark.parametrize("count", COUNTS)
def test_export(count, spark_pool, fleet, tmp_path):
    roots = fleet if count < COUNTS[-1] else few(fleet)
    exporting.run(roots, tmp_path / "here", "json", Threads(1), partition_by=("store",))
    exporting.run(roots, tmp_path / "there", "json", spark_pool, count=count,
                  partition_by=("store",))
    assert exporting.lines(tmp_path / "there") == exporting.lines(tmp_path / "here") != []
    here, there = (exporting.manifest(tmp_path / name) for name in ("here", "there"))
    assert there["complete"] is here["complete"] is False
    assert len(there["stores"]) == len(roots)
    for first, other in zip(there["stores"], here["stores"], strict=True):
        del first["file_count"], other["file_count"]  # depends on how a log was cut
        assert first == other


@pytest.mark.parametrize("golden_store",
                         [golden_store for golden_store in golden_sets.clean_stores()
                          if not golden_store.options],
                         ids=lambda golden_store: golden_store.id)
def test_rebuild(golden_store, golden, golden_copy, tmp_path, spark_pool):
    """Deleted consumequeues and index files come back as the engine wrote them."""
    settings = settings_of(golden(golden_store.set.id), golden_store.version)
    store = golden_copy(golden_store.id)
    wanted = derived(store)
    for name in DERIVED:
        shutil.rmtree(store / name, ignore_errors=True)
    size = sum(file.stat().st_size for file in (store / "commitlog").iterdir())
    for count in COUNTS:
        with Scratch(str(tmp_path), f"of {count}") as scratch:
            rebuilt = on_pool(spark_pool, store, settings, scratch, range_size=-(-size // count))
            steps = derived_steps(rebuilt)[0]
            copy = snapshot.copy_tree(store, tmp_path / f"{count}")
            carry_out(steps, copy)
        assert unnamed(derived(copy)) == unnamed(wanted), count
        assert {*os.listdir(copy / "commitlog")} == {*os.listdir(store / "commitlog")}
