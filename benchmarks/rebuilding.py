"""How fast consumequeues and index are rebuilt from the log, beside a walk of the same log.

python -m benchmarks.rebuilding --dir DIR [--rounds N] [--write-results]

The stores are those of `benchmarks.run` (made in DIR when they are not there), their logs in the
page cache. Every measurement is a process of its own; the rounds are interleaved and the best pass
counts, from the first byte read to the last one written (not forced to disk). What was made is
compared with the store's own files once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.results import publish
from benchmarks.run import PROFILES, prepare, warm

MARK = "\n## Rebuilding\n"
ENGINE = {"1k": 1080, "100": 320}
"""MB/s of the engine (4.9.3; 5.3.3 does 480 and 120), on the same kind of machine."""
GOAL = {"1k": 1000, "100": 300}
GOAL_NAME = "rebuild, 2 threads"
CHECK = "compared with the store"


def walk(store: Path, _where: Path) -> None:
    """The frames of the log and the CRC of every body, nothing else."""
    from rmqctl.store.store import Store

    with Store.open(store) as opened:
        for batch in opened.log.walk():
            assert not len(batch) or batch.crc_ok().all()


def rebuilding(store: Path, where: Path, **wishes: Any) -> None:
    """A rebuild into a scratch folder below ``where``."""
    from rmqctl.broker.settings import Settings
    from rmqctl.repair.rebuild.rebuild import rebuild
    from rmqctl.repair.rebuild.steps import derived_steps
    from rmqctl.repair.scratch import Scratch
    from rmqctl.scan.overlay import LogPart
    from rmqctl.store.store import Store

    compared = wishes.pop("compared", False)
    with Store.open(store) as opened:
        parts = [LogPart(one.base, one.size, one.path) for one in opened.log.files]
    with Scratch(str(where), "rebuilding") as scratch:
        made = rebuild(parts, str(store), Settings(), scratch, **wishes)
        if compared:
            assert derived_steps(made) == ([], [])


def _compared(store: Path, where: Path) -> None:
    rebuilding(store, where, jobs=2, compared=True)


Measured = Callable[[Path, Path], None]
MEASUREMENTS: dict[str, Measured] = {
    "walk and CRC, 1 thread": walk,
    "rebuild, 1 thread": rebuilding,
    GOAL_NAME: lambda *given: rebuilding(*given, jobs=2),
    "consumequeue alone, 1 thread": lambda *given: rebuilding(*given, only={"consumequeue"}),
    "index alone, 1 thread": lambda *given: rebuilding(*given, only={"index"}),
}


def one(name: str, store: Path, where: Path) -> None:
    """Runs one measurement here and prints its figures."""
    if name.endswith("1 thread"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    run = MEASUREMENTS.get(name, _compared)
    before = os.times()
    started = time.perf_counter()
    run(store, where)
    wall, after = time.perf_counter() - started, os.times()
    rss = [resource.getrusage(who).ru_maxrss / 1024
           for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({"wall": wall, "cpu": sum(after[:4]) - sum(before[:4]), "rss": max(rss)}))


def alone(name: str, store: Path, directory: Path) -> dict[str, float]:
    """The figures of one measurement in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.rebuilding", "--one", name, "--dir", str(directory),
         "--store", str(store)], check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(directory: Path, profile: str, rounds: int) -> tuple[dict[str, Any], dict[
        str, dict[str, float]]]:
    """(facts of the store, the best pass of every measurement)."""
    store, facts = prepare(profile, directory)
    warm(store)
    alone(CHECK, store, directory)
    best: dict[str, dict[str, float]] = {}
    for number in range(rounds):
        for name in MEASUREMENTS:
            found = alone(name, store, directory)
            print(f"{number + 1} {profile:4} {name:32} "
                  f"{facts['log_bytes'] / found['wall'] / 1e6:8.0f} MB/s", file=sys.stderr)
            if name not in best or found["wall"] < best[name]["wall"]:
                best[name] = found
    return facts, best


def table(profile: str, facts: dict[str, Any], found: dict[str, dict[str, float]]) -> list[str]:
    """One section of RESULTS.md."""
    lines = [f"### Store {profile}", "",
             (f"{facts['records']:,} messages, {facts['log_bytes']:,} bytes, "
              f"{facts['index_entries']:,} index entries. The engine: {ENGINE[profile]} MB/s."), "",
             ("| measurement | wall s | CPU s | MB/s | messages/s | of the walk | of the engine | "
              "RSS MiB | goal |"), "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    walked = next(iter(found.values()))["wall"]
    for name, row in found.items():
        rate = facts["log_bytes"] / row["wall"] / 1e6
        goal = GOAL[profile] if name == GOAL_NAME else 0
        said = f">= {goal} MB/s: {'yes' if rate >= goal else 'NO'}" if goal else ""
        lines.append(f"| {name} | {row['wall']:.2f} | {row['cpu']:.2f} | {rate:.0f} | "
                     f"{facts['records'] / row['wall']:,.0f} | {walked / row['wall']:.2f} | "
                     f"{rate / ENGINE[profile]:.2f} | {row['rss']:.0f} | {said} |")
    return [*lines, ""]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where the stores are or go")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=[*MEASUREMENTS, CHECK])
    parser.add_argument("--store", type=Path)
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args()
    if given.one:
        one(given.one, given.store, given.dir)
        return
    from benchmarks.report import machine

    lines = [MARK.strip("\n"), "",
             ("Made by `python -m benchmarks.rebuilding --dir DIR --write-results`: consumequeue "
              "and index from the log alone, into new files (not forced); best pass. Two processes "
              f"are the one that writes and one worker. {machine()}"), ""]
    for profile in PROFILES:
        lines += table(profile, *measure(given.dir, profile, given.rounds))
    print("\n".join(lines))
    if given.write_results:
        publish(MARK, lines)


if __name__ == "__main__":
    main()
