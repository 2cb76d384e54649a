"""The speed of the pipeline on Spark, of the local engine and of plain ``binaryFile``.

python -m benchmarks.pipeline --dir DIR [--rounds N] [--write-results]

The stores are those of `benchmarks.run` (created in DIR if missing), with their files in the page
cache. Every job has two cores: two threads of the local engine, or Spark ``local[2]`` in a running
session. Rounds are interleaved, and the best pass counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import process
from benchmarks.pipeline_scale import fleet, many_files
from benchmarks.results import machine, publish
from benchmarks.run import PROFILES, prepare, warm

MARK = "\n## Pipeline on Spark\n"
JOB_GOAL, SOURCE_GOAL, ANSWER_GOAL, PLAN_GOAL = 0.6, 0.4, 10.0, 5.0
WORKERS = 2
FLEET = 4
SCALARS = ("physical_offset", "queue_id", "queue_offset", "store_timestamp", "total_size")
WIDE = (*SCALARS, "topic", "tags", "flag", "sys_flag", "born_timestamp", "reconsume_times",
        "magic", "body_crc", "prepared_transaction_offset", "body")
TYPES = {"topic": "string", "tags": "string", "magic": "string", "body": "binary",
         **dict.fromkeys(("physical_offset", "queue_offset", "store_timestamp", "born_timestamp",
                          "prepared_transaction_offset"), "long")}
PEER_BYTES = 128 << 20
Pass = Callable[[], object]
BOUND = (
    "The data source hands every row to Java, one by one; large bodies and small rows are bound by "
    "that and not by the reader. Built-in jobs hand over one value for each range.")


# -- the jobs, on any pool ------------------------------------------------------------------------


def stats(stores: list[str], pool: Any, by: str) -> object:
    """Count messages and bytes by a field."""
    from rmqctl.store.stats import Query, choose_files, collect_many
    from rmqctl.store.store import Store

    query, logs = Query(by), []
    for store in stores:
        with Store.open(store) as opened:
            logs.append(choose_files(opened, query))
    return [result.groups() for result in collect_many(logs, query, pool=pool)]


def verify(store: Path, pool: Any) -> object:
    """Run all checks of verify."""
    from rmqctl.checks.verify.verdict import verdict
    from rmqctl.checks.verify.verify import Verification, VerifyOptions
    from rmqctl.store.log.ranges import Threads
    from rmqctl.store.store import Store

    with Store.open(store) as opened:
        local = isinstance(pool, Threads)
        run = Verification(opened, VerifyOptions(jobs=WORKERS), pool=None if local else pool)
        judged = verdict(run, 10)
    assert judged.ok
    return judged.coverage


def rebuild(store: Path, pool: Any, where: Path) -> object:
    """Rebuild consumequeue and index in a scratch folder."""
    from rmqctl.broker.settings import Settings
    from rmqctl.ext.spark.rebuild.rebuild import rebuild_on
    from rmqctl.repair.rebuild.rebuild import rebuild as rebuild_here
    from rmqctl.repair.scratch import Scratch
    from rmqctl.scan.overlay import LogPart
    from rmqctl.store.log.ranges import Threads
    from rmqctl.store.store import Store

    with Store.open(store) as opened:
        parts = [LogPart(file.base, file.size, file.path) for file in opened.log.files]
    make = (partial(rebuild_here, jobs=WORKERS) if isinstance(pool, Threads)
            else partial(rebuild_on, pool))
    with Scratch(str(where), "rebuilding") as scratch:
        return make(parts, str(store), Settings(), scratch).messages


def export(store: Path, pool: Any, where: Path) -> object:
    """Export all messages as Parquet, by topic and day."""
    from rmqctl.export.export import export as run
    from rmqctl.export.plan import plan
    from rmqctl.export.spec import Export
    from rmqctl.store.query.select import Selection

    out = where / "exported"
    shutil.rmtree(out, ignore_errors=True)
    run(plan([str(store)], Selection(), WORKERS), Export.of(), str(out), pool)
    return sum(path.stat().st_size > 0 for path in out.rglob("*.parquet"))


# -- the data source ------------------------------------------------------------------------------


def columns(stores: list[str], pool: Any, names: tuple[str, ...]) -> object:
    """Read the given columns with minimal work: build Arrow batches and drop them."""
    from rmqctl.store.log import ranges
    from rmqctl.store.store import Store

    parts = []
    for store in stores:
        with Store.open(store) as opened:
            parts += ranges.split(opened.log.files)
    return sum(count for _, count in pool.run(partial(_columns, names), parts))


def _columns(names: tuple[str, ...], part: Any) -> int:
    from rmqctl.scan.columns import message_columns
    from rmqctl.scan.source import FileSource

    with FileSource(part.file.path, part.file.base) as source:
        return sum(message_columns(batch, names).num_rows for batch in part.walk(source))


def source(spark: Any, stores: list[str], names: tuple[str, ...]) -> object:
    """Read the given columns through Spark's rows and drop them."""
    ddl = ", ".join(f"{name} {TYPES.get(name, 'int')}" for name in names)
    frame = spark.read.format("rocketmq").schema(ddl).load(stores)
    frame.write.format("noop").mode("overwrite").save()
    return None


def by_topic(spark: Any, stores: list[str]) -> object:
    """Run Spark's own aggregation over the data source."""
    frame = spark.read.format("rocketmq").schema("topic string").load(stores)
    return len(frame.groupBy("topic").count().collect())


def peer(spark: Any, part: Path) -> object:
    """Read the log with ``binaryFile`` and a Python loop over the fixed fields, without rmqctl's
    data source.
    """
    def parse(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for content in batch.column("content"):
                data, at, messages = content.as_buffer(), 0, 0
                view = memoryview(data)
                while at + 88 <= len(view):
                    size, _magic, *_ = struct.unpack_from(">iiiiiqqiqqqqqiq", view, at)
                    if size <= 0:
                        break
                    at += size
                    messages += 1
                yield pa.RecordBatch.from_pydict({"messages": [messages]})

    frame = spark.read.format("binaryFile").load(str(part)).select("content")
    return frame.mapInArrow(parse, "messages long").collect()


# -- measuring ------------------------------------------------------------------------------------


def best(passes: dict[str, Pass], rounds: int) -> dict[str, float]:
    """Return the seconds of the best pass of each job; the first round does not count."""
    shortest: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, run in passes.items():
            began = time.perf_counter()
            run()
            took = time.perf_counter() - began
            print(f"{number} {name:40} {took:7.2f} s", file=sys.stderr)
            if number:
                shortest[name] = min(took, shortest.get(name, took))
    return shortest


def jobs_of(store: Path, many: list[str], where: Path) -> dict[str, Callable[[Any], object]]:
    """Return the jobs by name; each runs on a pool."""
    roots = [str(store)]
    return {
        "stats by topic": lambda pool: stats(roots, pool, "topic"),
        f"stats by topic, {len(many)} stores": lambda pool: stats(many, pool, "topic"),
        "stats by tag": lambda pool: stats(roots, pool, "tag"),
        "verify": lambda pool: verify(store, pool),
        "rebuild": lambda pool: rebuild(store, pool, where),
        "export to Parquet": lambda pool: export(store, pool, where),
    }


def section(profile: str, directory: Path, where: Path, rounds: int) -> list[str]:
    """Return a table: every job on both engines."""
    from rmqctl.ext.spark.pool import SparkPool
    from rmqctl.ext.spark.session import session
    from rmqctl.store.log.ranges import Threads

    store, facts = prepare(profile, directory)
    warm(store)
    size = facts["log_bytes"]
    local = Threads(WORKERS)
    passes: dict[str, Pass] = {}
    goals: dict[str, float] = {}
    with fleet(store, FLEET, where) as many, session(f"local[{WORKERS}]") as spark:
        for name, job in jobs_of(store, many, where).items():
            passes[f"{name}, local"] = partial(job, local)
            passes[f"{name}, Spark"] = partial(job, SparkPool(spark))
            goals[name] = JOB_GOAL
        for more, stores in (("", [str(store)]), (f", {FLEET} stores", many)):
            for what, names in (("5 numbers", SCALARS), ("15 columns with bodies", WIDE)):
                name = f"data source: {what}{more}"
                passes[f"{name}, local"] = partial(columns, stores, local, names)
                passes[f"{name}, Spark"] = partial(source, spark, stores, names)
                goals[name] = SOURCE_GOAL
            name = f"data source: count by topic{more}"
            passes[f"{name}, local"] = partial(stats, stores, local, "topic")
            passes[f"{name}, Spark"] = partial(by_topic, spark, stores)
            goals[name] = SOURCE_GOAL
        shortest = best(passes, rounds)
    part = _first_part(store, where)
    with session(f"local[{WORKERS}]", conf={"spark.driver.memory": "6g"}) as spark:
        beside = best({"peer": partial(peer, spark, part)}, 1)["peer"]
    lines = [f"### Store {profile}", "", f"{facts['records']:,} messages, {size:,} bytes.", "",
             "| job | local MB/s | Spark MB/s | Spark of local | goal |",
             "| --- | --- | --- | --- | --- |"]
    for name, goal in goals.items():
        here, there = (shortest[f"{name}, {engine}"] for engine in ("local", "Spark"))
        is_reached = "yes" if here / there >= goal else "NO"
        read = size * (FLEET if name.endswith("stores") else 1)
        lines.append(f"| {name} | {read / here / 1e6:.0f} | {read / there / 1e6:.0f} | "
                     f"{here / there:.2f} | >= {goal}: {is_reached} |")
    rate = part.stat().st_size / beside / 1e6
    peers = f"`binaryFile` and a Python loop, first {PEER_BYTES >> 20} MiB"
    return [*lines, f"| {peers} | | {rate:.0f} | | |", ""]


def _first_part(store: Path, where: Path) -> Path:
    """Copy the start of the log to a file that ``binaryFile`` can read as a whole."""
    first = min((store / "commitlog").iterdir())
    target = where / "part"
    with first.open("rb") as log, target.open("wb") as out:
        out.write(log.read(PEER_BYTES))
    return target


def commands(directory: Path, where: Path, rounds: int) -> list[str]:
    """Measure complete processes of commands: one store, fleets, many files."""
    lines = ["### From start to answer", "",
             "`pipeline stats --engine spark` on fleets of the 1 KiB store (links to the one log).",
             "", "| stores | GiB | wall s | s per GiB | driver RSS MiB (Python) | goal |",
             "| --- | --- | --- | --- | --- | --- |"]
    store, facts = prepare("1k", directory)
    for count in (1, 2, 4, 8):
        with fleet(store, count, where) as roots:
            used = [process.run(process.python("-m", "rmqctl", "pipeline", "stats", *roots,
                                               "-o", "json")) for _ in range(rounds)]
        assert all(run.exit_code == 0 for run in used), used[0]
        wall = min(run.wall_s for run in used)
        gib = count * facts["log_bytes"] / (1 << 30)
        goal = (f"< {ANSWER_GOAL:.0f} s: {'yes' if wall < ANSWER_GOAL else 'NO'}"
                if count == 1 else "")
        lines.append(f"| {count} | {gib:.0f} | {wall:.2f} | {wall / gib:.2f} | "
                     f"{_python_rss(roots, where, count, store):.0f} | {goal} |")
    seconds, files, parts = many_files(where)
    is_reached = "yes" if seconds < PLAN_GOAL else "NO"
    planned = f"Planning {files:,} files of the log into {parts} partitions"
    lines += ["", f"{planned}: {seconds:.2f} s (goal: under {PLAN_GOAL:.0f} s: {is_reached}).", ""]
    return lines


def _python_rss(_roots: list[str], where: Path, count: int, store: Path) -> float:
    """Return the peak memory of the driver's Python process, which collects the results."""
    code = ("import resource, sys; from rmqctl.cli import main\n"
            "try: main(sys.argv[1:])\n"
            "except SystemExit: pass\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=sys.stderr)")
    with fleet(store, count, where) as roots:
        done = process.run(process.python("-c", code, "pipeline", "stats", *roots, "-o", "json"))
    return float(done.stderr.split()[-1])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where the stores are or go")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
    with contextlib.ExitStack() as held:
        where = Path(held.enter_context(tempfile.TemporaryDirectory(dir=given.dir)))
        lines = [MARK.strip("\n"), "",
                 ("Made by `python -m benchmarks.pipeline --dir DIR --write-results`: best of "
                  f"{given.rounds}, interleaved. {machine()}"), "", BOUND, ""]
        lines += commands(given.dir, where, given.rounds)
        for profile in PROFILES:
            lines += section(profile, given.dir, where, given.rounds)
    print("\n".join(lines))
    if given.write_results:
        publish(MARK, lines)


if __name__ == "__main__":
    main()
