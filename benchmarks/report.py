"""Rows of figures as a table for the terminal and as RESULTS.md. Standard library only."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measurements import ENGINE_COLUMNS, ENGINE_MB_S, MEASUREMENTS, RATIOS, Goal

COLUMNS = (
    "measurement",
    "wall s",
    "cpu s",
    "MB/s",
    "Mrec/s",
    *(f"x {peer}" for peer in RATIOS),
    *(f"x {name}" for name in ENGINE_COLUMNS),
    "RSS MiB",
    "own MiB",
    "goals",
)


@dataclass(frozen=True)
class Row:
    """One measurement on one store; MB are 10^6 bytes of log, None where it makes no sense.

    max_rss_mib counts pages of mapped files, anon_mib does not. error: why there are no figures.
    """

    name: str
    profile: str
    wall_s: float | None = None
    cpu_s: float | None = None
    mb_s: float | None = None
    mrec_s: float | None = None
    max_rss_mib: float | None = None
    anon_mib: float | None = None
    error: str = ""


def machine() -> str:
    """One line: CPU model, cores, Python, system, date."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cores = len(os.sched_getaffinity(0))
    today = datetime.now(UTC).date().isoformat()
    return f"{model}, {cores} cores, Python {platform.python_version()}, Linux, {today}"


def ratio(row: Row, name: str, rows: list[Row]) -> float | None:
    """Throughput as a multiple of the row called name on the same store."""
    other = next((o for o in rows if (o.name, o.profile) == (name, row.profile)), None)
    if other is None or not other.mb_s or not row.mb_s:
        return None
    return row.mb_s / other.mb_s


def goal_of(row: Row) -> Goal:
    """The goal registered under the row's name."""
    return next((what.goal for what in MEASUREMENTS if what.name == row.name), Goal())


def judged(row: Row, rows: list[Row]) -> str:
    """Every goal with what came of it."""
    goal, words = goal_of(row), []

    def judge(text: str, reached: bool | None) -> None:
        words.append(f"{text}: {'-' if reached is None else 'yes' if reached else 'NO'}")

    wanted = goal.mb_s.get(row.profile)
    if wanted is not None:
        judge(f">= {wanted:g} MB/s", None if row.mb_s is None else row.mb_s >= wanted)
    if goal.mrec_s is not None:
        judge(f">= {goal.mrec_s:g} Mrec/s",
              None if row.mrec_s is None else row.mrec_s >= goal.mrec_s)
    if goal.process_s is not None:
        judge(
            f"< {goal.process_s:g} s of CPU",
            None if row.cpu_s is None else row.cpu_s < goal.process_s,
        )
    if goal.peak_mib is not None:
        peak = row.max_rss_mib and max(row.max_rss_mib, row.anon_mib or 0)
        judge(f"< {goal.peak_mib:g} MiB", None if peak is None else peak < goal.peak_mib)
    for name, times in goal.ratio_to.items():
        value = ratio(row, name, rows)
        judge(f">= {times:g} x {name}", None if value is None else value >= times)
    return ", ".join(words)


def number(value: float | None, digits: int) -> str:
    """A cell with so many decimals, empty for None."""
    return "" if value is None else f"{value:.{digits}f}"


def cells(row: Row, rows: list[Row]) -> list[str]:
    """A row as text, one per column."""
    if row.error:
        return [row.name, *[""] * (len(COLUMNS) - 2), row.error]
    engine = [ENGINE_MB_S[name][row.profile] for name in ENGINE_COLUMNS.values()]
    return [
        row.name,
        number(row.wall_s, 3),
        number(row.cpu_s, 3),
        number(row.mb_s, 0),
        number(row.mrec_s, 2),
        *(number(ratio(row, name, rows), 2) for name in RATIOS.values()),
        *(number(row.mb_s and row.mb_s / speed, 2) for speed in engine),
        number(row.max_rss_mib, 0),
        number(row.anon_mib, 0),
        judged(row, rows),
    ]


def sections(rows: list[Row]) -> list[tuple[str, list[list[str]]]]:
    """(profile, lines of cells) in the order measured."""
    profiles = dict.fromkeys(row.profile for row in rows)
    return [(name, [cells(row, rows) for row in rows if row.profile == name]) for name in profiles]


def table(rows: list[Row]) -> str:
    """Aligned text."""
    out: list[str] = []
    for profile, lines in sections(rows):
        everything = [list(COLUMNS), *lines]
        widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
        out.append(f"\nstore {profile}")
        for line in everything:
            first, *middle, last = [
                cell.ljust(width) if place in (0, len(line) - 1) else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            out.append("  ".join([first, *middle, last]).rstrip())
    return "\n".join(out)


def markdown(rows: list[Row]) -> str:
    """The whole of RESULTS.md."""
    engine = "; ".join(
        f"{name} {', '.join(f'{speed:g} ({profile})' for profile, speed in speeds.items())}"
        for name, speeds in ENGINE_MB_S.items()
    )
    out = [
        "# Results",
        "",
        "Made by `python benchmarks/run.py --dir DIR --write-results`; do not edit.",
        "",
        f"Machine: {machine()}.",
        "",
        "Stores: `1k` = 1 GiB of log with bodies of 1 KiB, `100` = 512 MiB with bodies of 100",
        "bytes, each with consumequeues and index, about 1 % of the bodies imitating records.",
        "Page cache warm, best pass. MB are 10^6 bytes of log. RSS counts pages of mapped files,",
        "own memory does not.",
        "",
        f"The real engine (Java 17, same kind of machine), MB/s: {engine}.",
    ]
    for profile, lines in sections(rows):
        out += ["", f"## Store {profile}", ""]
        out += [f"| {' | '.join(line)} |" for line in (COLUMNS, ("---",) * len(COLUMNS), *lines)]
    return "\n".join(out) + "\n"
