"""Measure how the cost of each command grows with the content of a store: messages, queues, log
files, groups, damaged records, findings.

    python -m benchmarks.growth --dir DIR [--only info ...] [--of queues ...] [--times 3]
                                [--scale 1] [--write-results]

Each command runs, in its own process, on stores with 1, 2, 4 and 8 times as many of one thing. The
CPU seconds and bytes read for the smallest store are subtracted; the rest must not grow faster than
the number of these things. The exponent of the growth is printed (1 is linear); the program fails
if the exponent is above 1.15.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

from benchmarks.grown import Shape, make
from benchmarks.process import ROOT, python, remove
from benchmarks.results import machine, publish

MARK = "\n## Growth\n"
MAX_POWER = 1.15
TIMES = (1, 2, 4, 8)
_TRIES = 3
NEGLIGIBLE_S = 0.25
NEGLIGIBLE_MIB = 4.0
"""Growth is not measured if the costs on the largest store, without the startup, are below these
values: CPU seconds and MiB read.
"""
BASE = {"messages": Shape(messages=50_000), "queues": Shape(queues=1_000),
        "files": Shape(files=50), "groups": Shape(groups=1_000),
        "damages": Shape(messages=100_000, damages=500),
        "findings": Shape(messages=100_000, findings=500)}
SMALLEST = Shape(messages=10, queues=1, files=1, groups=1)
COMMANDS = {
    "info": "info {store}",
    "verify": "verify {store} --jobs 1",
    "doctor": "doctor {store}",
    "preflight": "preflight {store}",
    "offsets": "offsets {store}",
    "du": "du {store}",
    "stats": "stats {store} --by topic --jobs 1",
    "recover": "recover {store}",
    "read by tag": "read {store} --topic topic_000000 --tag TagB",
    "query by key": "query key {store} --topic topic_000000 --key k000000000000",
}


@dataclass(frozen=True)
class Cost:
    """The costs of a process."""

    cpu_s: float
    mib: float


@dataclass(frozen=True)
class Growth:
    """Growth of a command. ``costs``: the costs for each of `TIMES`, without the startup."""

    command: str
    of: str
    costs: tuple[Cost, ...]

    @property
    def of_cpu(self) -> float | None:
        return exponent([cost.cpu_s for cost in self.costs], NEGLIGIBLE_S)

    @property
    def of_reading(self) -> float | None:
        return exponent([cost.mib for cost in self.costs], NEGLIGIBLE_MIB)

    @property
    def is_too_fast(self) -> bool:
        return any(power is not None and power > MAX_POWER
                   for power in (self.of_cpu, self.of_reading))


def exponent(costs: Sequence[float], negligible: float) -> float | None:
    """Return the exponent with which costs grow at `TIMES` as many things; None if they hardly
    grow.

    All costs contain a constant part, so their differences are compared: with the exponent p, the
    last difference is (8^p - 4^p) / (4^p - 1) times the sum of all earlier ones, a ratio that
    increases with p.
    """
    first, _, half, whole = costs
    if whole - first < negligible:
        return None
    low, high = 0.01, 8.0
    wanted = (whole - half) / max(half - first, 1e-9)
    for _ in range(40):
        power = (low + high) / 2
        if (8 ** power - 4 ** power) / (4 ** power - 1) < wanted:
            low = power
        else:
            high = power
    return low


def cost_of(words: str, times: int) -> Cost:
    """Return the lowest costs of several runs."""
    return reduce(_least, [_once(words.split()) for _ in range(times)])


def _least(cost: Cost, other: Cost) -> Cost:
    return Cost(min(cost.cpu_s, other.cpu_s), min(cost.mib, other.mib))


def _once(words: list[str]) -> Cost:
    child = subprocess.Popen(python("-m", "rmqctl", *words), cwd=ROOT, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    stderr = child.stderr.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # its counts vanish with it
    counts = Path(f"/proc/{child.pid}/io").read_text().split()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):
        raise SystemExit(f"rmqctl {' '.join(words)} ended with {child.returncode}:\n{stderr}")
    return Cost(used.ru_utime + used.ru_stime, int(counts[1]) / (1 << 20))


def growths(directory: Path, of: str, commands: Sequence[str], times: int, scale: float) -> list[
        Growth]:
    """Measure all commands for one thing. The stores are created and removed."""
    base = BASE[of]
    smallest = directory / "smallest"
    stores = {}
    try:
        make(SMALLEST, smallest)
        for factor in TIMES:
            shape = replace(base, **{of: max(int(getattr(base, of) * factor * scale), 1)})
            shape = replace(shape, messages=max(shape.messages, shape.queues, shape.files))
            stores[factor] = directory / f"{of}-{factor}"
            make(shape, stores[factor])
        measured = []
        for name in commands:
            start = cost_of(COMMANDS[name].format(store=smallest), times)
            costs: list[Cost] = []
            for _ in range(_TRIES):  # other load on the machine only adds to costs
                again = [cost_of(COMMANDS[name].format(store=store), times)
                         for store in stores.values()]
                costs = [*map(_least, costs or again, again)]
                growth = Growth(name, of, tuple(
                    Cost(max(cost.cpu_s - start.cpu_s, 0), max(cost.mib - start.mib, 0))
                    for cost in costs))
                if not growth.is_too_fast:
                    break
            measured.append(growth)
        return measured
    finally:
        for store in (smallest, *stores.values()):
            remove(store)


def table(measured: Sequence[Growth]) -> list[str]:
    """Return the table as Markdown."""
    lines = ["| command | of | CPU s at 1, 2, 4, 8 | exponent | MiB read | exponent | |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for growth in measured:
        seconds = " ".join(f"{cost.cpu_s:.2f}" for cost in growth.costs)
        read = " ".join(f"{cost.mib:.1f}" for cost in growth.costs)
        powers = ["-" if power is None else f"{power:.2f}"
                  for power in (growth.of_cpu, growth.of_reading)]
        lines.append(f"| {growth.command} | {growth.of} | {seconds} | {powers[0]} | {read} | "
                     f"{powers[1]} | {'TOO FAST' if growth.is_too_fast else ''} |")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 if a cost grows too fast."""
    parser = argparse.ArgumentParser(description="How the cost of commands grows.")
    parser.add_argument("--dir", type=Path, required=True, help="where the stores are made")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--of", nargs="+", choices=BASE, default=list(BASE))
    parser.add_argument("--times", type=int, default=3, help="runs, of which the least counts")
    parser.add_argument("--scale", type=float, default=1.0, help="of the stores")
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args(argv)
    given.dir.mkdir(parents=True, exist_ok=True)
    measured: list[Growth] = []
    for of in given.of:
        measured += growths(given.dir.resolve(), of, given.only, given.times, given.scale)
    lines = table(measured)
    sys.stdout.write("\n".join(lines) + "\n")
    if given.write_results:
        origin = (f"Made by `python -m benchmarks.growth --dir DIR --write-results`: {machine()}. "
                  "Costs are without those of a store of ten messages; `-`: they hardly grow.")
        publish(MARK, [MARK.strip(), "", origin, "", *lines])
    return int(any(growth.is_too_fast for growth in measured))


if __name__ == "__main__":
    sys.exit(main())
