"""Measure rmqctl and its peers on the two bench stores, and print a table of goals.

    python -m benchmarks.run --dir DIR [--profile 1k] [--only verify ...] [--times 3] [--by cpu]
                             [--log-size 64MiB] [--scale 0.05] [--json FILE] [--write-results]

The stores are created in DIR if missing (s1k and s100, facts in s1k.json and s100.json). Every
measurement has its own process, on one core, or on two if a goal names two threads, with the stores
in the page cache. Calls are repeated in the process, commands in new ones.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import process
from benchmarks.goals import (
    BODY,
    COUNT,
    CPU,
    FACTOR,
    ITEMS,
    K_S,
    M_S,
    PEAK,
    PEAK_MIB,
    SECONDS,
    WORKS,
    Work,
)
from benchmarks.results import machine, publish

MARK = "\n## Goals\n"
PROFILES = tuple(BODY)
BUFFER = 1 << 23
COLUMNS = ("work", "store", "one core", "two threads", "unit", "goal", "reached", "engine",
           "x engine", "CPU s", "MiB")


@dataclass
class Row:
    """A row of the table. ``figures``: on one core and, if requested, with two threads. ``cpu_s``
    and ``mib`` (largest resident set, including mapped files): on one core.
    """

    work: Work
    profile: str
    figures: tuple[float, ...] = ()
    cpu_s: float = 0.0
    mib: float = 0.0
    error: str = ""
    beside: float | None = None


# -- stores -----------------------------------------------------------------------------------


def prepare(profile: str, directory: Path, log_size: str = "") -> tuple[Path, dict[str, Any]]:
    """Return (bench store of a profile, its facts); create the store if needed."""
    # As in an installation: with PYTHONDONTWRITEBYTECODE each run would compile rmqctl again.
    compileall.compile_dir(process.ROOT / "rmqctl", quiet=1)
    store, facts = directory / f"s{profile}", directory / f"s{profile}.json"
    if not facts.exists():
        print(f"making {store}", file=sys.stderr)
        directory.mkdir(parents=True, exist_ok=True)
        more = ("--log-size", log_size) if log_size else ()
        result = process.run(process.python("-m", "benchmarks.make_store", "--profile", profile,
                                            "--out", str(store.resolve()), *more))
        if result.exit_code:
            raise SystemExit(f"could not make {store}:\n{result.stderr}")
        facts.write_text(result.stdout, encoding="utf-8")
    return store, json.loads(facts.read_text(encoding="utf-8"))


def damaged(store: Path) -> Path:
    """Return a copy of a store with wrong bytes in its log; create it if needed."""
    target = store.with_name(f"{store.name}-damaged").resolve()
    if not target.exists():
        code = f"copy_with_damage(Path({str(store.resolve())!r}), Path({str(target)!r}))"
        result = process.run(process.python("-c", f"from benchmarks.calls import *; {code}"))
        if result.exit_code:
            raise SystemExit(f"could not make {target}:\n{result.stderr}")
    return target


def warm(store: Path) -> None:
    """Read all written parts of the store's files into the page cache."""
    buffer = bytearray(BUFFER)
    for path in store.rglob("*"):
        if not path.is_file():
            continue
        with path.open("rb", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            position = 0
            while position < end:
                try:
                    position = os.lseek(file.fileno(), position, os.SEEK_DATA)
                except OSError:  # only a hole follows
                    break
                position += file.readinto(buffer) or 0


# -- measuring --------------------------------------------------------------------------------


def measure(work: Work, profile: str, directory: Path, facts: dict[str, Any],
            given: argparse.Namespace) -> Row:
    """Return the best of several passes for each number of cores, from 1 to the number of goals."""
    row = Row(work, profile)
    for cores in range(1, 1 + max(1, len(work.goal.get(profile, ())))):
        with process.cores(cores):
            passes = (_call if work.call else _command)(work, profile, directory, facts, given,
                                                        cores)
        failed = next((used for used, _ in passes if used.exit_code not in work.exits), None)
        if failed:
            why = (failed.stderr.strip() or "-").splitlines()[-1]
            row.error = f"exit {failed.exit_code}: {why}"[:100]
            return row
        by = "cpu_s" if work.unit == CPU or (given.by == "cpu" and cores == 1) else "wall_s"
        best = min((result for _, result in passes), key=lambda figures: figures[by])
        row.figures += (_figure(work.unit, best, best[by]),)
        if cores == 1:
            row.cpu_s, row.mib = best["cpu_s"], max(used.max_rss_mib for used, _ in passes)
    return row


Passes = list[tuple[process.Usage, dict[str, float]]]


def _call(work: Work, profile: str, directory: Path, _facts: dict[str, Any],
          given: argparse.Namespace, cores: int) -> Passes:
    arguments = {name: value[profile] if isinstance(value, dict) else value
                 for name, value in work.arguments.items()}
    for name, least in (("count", 1000), ("items", 1000)):
        if name in arguments:
            arguments[name] = max(least, int(arguments[name] * given.scale))
    scratch = directory.resolve() / "scratch"
    used = process.run(process.python(
        "-m", "benchmarks.worker", work.call, str((directory / f"s{profile}").resolve()),
        str(scratch), str(cores), str(given.times), json.dumps(arguments)))
    process.remove(scratch)
    return [(used, json.loads(used.stdout) if not used.exit_code else {})]


def _command(work: Work, profile: str, directory: Path, facts: dict[str, Any],
             given: argparse.Namespace, _cores: int) -> Passes:
    store = (directory / f"s{profile}").resolve()
    log = shlex.join(map(str, sorted((store / "commitlog").iterdir())))
    line = work.argv.format_map({**facts["probe"], "store": store, "log": log,
                                 "damaged": f"{store}-damaged"})
    argv = (shlex.split(line[1:]) if line.startswith("!")
            else process.python("-m", "rmqctl", *shlex.split(line)))
    size = sum(path.stat().st_size for path in (store / "commitlog").iterdir())
    passes = []
    for _ in range(given.times):
        used = process.run(argv, discards=True)
        passes.append((used, {"wall_s": used.wall_s, "cpu_s": used.cpu_s,
                              "records": facts["records"], "bytes": size}))
    return passes


def _figure(unit: str, best: dict[str, float], seconds: float) -> float:
    if unit in (SECONDS, CPU):
        return seconds
    return best["records" if unit in (K_S, M_S) else "bytes"] / seconds / FACTOR[unit]


# -- the table --------------------------------------------------------------------------------


def cells(row: Row) -> list[str]:
    """Return a row as text, with a cell for each of `COLUMNS`."""
    work, goals = row.work, row.work.goal.get(row.profile, ())
    start = [work.name, row.profile]
    if row.error:
        return [*start, *[""] * 4, f"NO: {row.error}", *[""] * (len(COLUMNS) - 7)]
    engine = work.engine.get(row.profile)
    shown = [f"{figure:.3g}" for figure in row.figures]
    wanted = f"{goals[0]:g}" + (f" ({goals[1]:g})" if len(goals) > 1 else "") if goals else ""
    if work.beside:
        name, times = work.beside
        wanted = " or ".join(filter(None, (wanted, f"{times:g} x {name}")))
    return [*start, shown[0], shown[1] if len(shown) > 1 else "", work.unit, wanted, reached(row),
            "" if engine is None else f"{engine:g}",
            "" if engine is None else f"{row.figures[0] / engine:.2f}",
            f"{row.cpu_s:.3f}", f"{row.mib:.0f}"]


def reached(row: Row) -> str:
    """Return ``yes`` or ``NO`` for each goal of a row, for the second goal in brackets."""
    work, goals = row.work, row.work.goal.get(row.profile, ())
    least = work.unit in FACTOR

    def holds(figure: float, goal: float) -> bool:
        return figure >= goal if least else figure < goal

    verdicts = [holds(figure, goal) for figure, goal in zip(row.figures, goals, strict=False)]
    if work.beside and row.beside is not None:
        near = holds(row.figures[0], work.beside[1] * row.beside)
        verdicts = [near or any(verdicts[:1])]
    words = ["yes" if is_reached else "NO" for is_reached in verdicts]
    return " ".join([*words[:1], *(f"({word})" for word in words[1:])])


def peak(rows: list[Row]) -> list[str]:
    """Return the row about memory: the maximum, and the measurements that exceed the goal."""
    own = [row for row in rows if not row.work.is_peer and not row.error]
    over = [f"{row.work.name} ({row.profile})" for row in own if row.mib >= PEAK_MIB]
    greatest = max((row.mib for row in own), default=0.0)
    verdict = "NO: " + ", ".join(over) if over else "yes"
    return [PEAK, "", f"{greatest:.0f}", "", "MiB", f"{PEAK_MIB:g}", verdict, "", "", "", ""]


def table(rows: list[Row]) -> list[list[str]]:
    """Return all rows, each after the row that its goal names."""
    for row in rows:
        if row.work.beside:
            row.beside = next((other.figures[0] for other in rows if other.figures and (
                other.work.name, other.profile) == (row.work.beside[0], row.profile)), None)
    return [[*COLUMNS], *map(cells, rows), peak(rows)]


def text(lines: list[list[str]]) -> str:
    """Return a table in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
                     .rstrip() for line in lines)


def markdown(lines: list[list[str]], given: argparse.Namespace) -> list[str]:
    """Return the section of RESULTS.md."""
    time = "wall clock" if given.by == "wall" else "CPU time"
    return [MARK.strip("\n"), "",
            (f"Made by `python -m benchmarks.run --dir DIR --write-results`: {machine()}. Stores: "
             "`1k` = 1 GiB of log with bodies of 1 KiB, `100` = 512 MiB with bodies of 100 bytes, "
             "each with consumequeues and index, about 1 % of the bodies imitating records. One "
             f"core, two threads on two; page cache warm; {time}, best of {given.times} passes; GB "
             "are 10^9 bytes of log. The engine: 4.9.3 with Java 17 on the same kind of machine, "
             f"hot. Appended are {COUNT:,} messages, compacted {ITEMS:,} items. MiB: largest "
             "resident set, pages of mapped files included."), "",
            *(f"| {' | '.join(line)} |" for line in (lines[0], ["---"] * len(COLUMNS), *lines[1:])),
            ""]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, required=True, help="where the stores are or go")
    parser.add_argument("--profile", choices=PROFILES, action="append", help="default: both")
    parser.add_argument("--only", action="append", metavar="TEXT", help="names containing TEXT")
    parser.add_argument("--times", type=int, default=3, help="passes of each (default 3)")
    parser.add_argument("--by", choices=("wall", "cpu"), default="wall",
                        help="cpu: for a machine that has other work")
    parser.add_argument("--log-size", default="", help="of stores to make; default: the profile's")
    parser.add_argument("--scale", type=float, default=1.0,
                        help="of the numbers of messages and items that are written")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--write-results", action="store_true", help="write RESULTS.md")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Run the measurements that the command line requests."""
    given = parse(arguments)
    chosen = [work for work in WORKS
              if not given.only or any(part in work.name for part in given.only)]
    rows: list[Row] = []
    for profile in given.profile or PROFILES:
        store, facts = prepare(profile, given.dir, given.log_size)
        warm(store)
        if any("{damaged}" in work.argv for work in chosen):
            warm(damaged(store))
        for work in chosen:
            if profile in work.stores:
                rows.append(measure(work, profile, given.dir, facts, given))
                print(f"{profile}: {work.name}: {rows[-1].figures or rows[-1].error}",
                      file=sys.stderr)
    lines = table(sorted(rows, key=lambda row: WORKS.index(row.work)))
    print(text(lines))
    if given.json:
        figures = [dict(zip(COLUMNS, line, strict=True)) for line in lines[1:]]
        given.json.write_text(json.dumps({"machine": machine(), "rows": figures}, indent=2) + "\n",
                              encoding="utf-8")
    if given.write_results:
        publish(MARK, markdown(lines, given))


if __name__ == "__main__":
    main()
