"""Measures rmqctl and its peers on the two bench stores, in one run, and prints ratios.

    python benchmarks/run.py --dir DIR [--profile 1k] [--only verify ...] [--times 3]
                             [--json FILE] [--write-results]

The stores are made in DIR when they are not there (s1k and s100, facts in s1k.json, s100.json).
Every measurement runs in processes of its own, with the stores in the page cache.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import sys
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import process
from benchmarks.measurements import MEASUREMENTS, Call, Command, Measurement
from benchmarks.report import Row, machine, markdown, table
from benchmarks.results import RESULTS
from benchmarks.writing import MARK

PROFILES = ("1k", "100")
BUFFER = 1 << 23
MEGA = 1e6


def prepare(profile: str, directory: Path) -> tuple[Path, dict[str, Any]]:
    """The bench store of a profile, made if need be, and its facts."""
    # As an installation is: with PYTHONDONTWRITEBYTECODE each run would compile rmqctl anew.
    compileall.compile_dir(process.ROOT / "rmqctl", quiet=1)
    store, facts = directory / f"s{profile}", directory / f"s{profile}.json"
    if not facts.exists():
        print(f"making {store}", file=sys.stderr)
        directory.mkdir(parents=True, exist_ok=True)
        script = str(Path(__file__).with_name("make_store.py"))
        made = process.run(process.python(script, "--profile", profile, "--out", str(store)))
        if made.exit_code:
            raise SystemExit(f"could not make {store}:\n{made.stderr}")
        facts.write_text(made.stdout, encoding="utf-8")
    return store, json.loads(facts.read_text(encoding="utf-8"))


def warm(store: Path) -> None:
    """Reads all written parts of the store's files, so that they lie in the page cache."""
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
                except OSError:  # only a hole is left
                    break
                position += file.readinto(buffer) or 0


def measure(what: Measurement, profile: str, store: Path, facts: dict[str, Any], times: int) -> Row:
    """The best of some passes."""
    if isinstance(what, Call):
        return measure_call(what, profile, store, times)
    return measure_command(what, profile, store, facts, times)


def measure_call(what: Call, profile: str, store: Path, times: int) -> Row:
    """All passes in one new process; the time is that of the function alone."""
    arguments = (what.function, str(store.resolve()), json.dumps(what.arguments), str(times))
    used = process.run(process.python("-m", "benchmarks.worker", *arguments))
    if used.exit_code:
        return Row(what.name, profile, error=last_line(used))
    best = json.loads(used.stdout)
    return Row(
        what.name,
        profile,
        wall_s=best["wall_s"],
        cpu_s=best["cpu_s"],
        mb_s=best["bytes"] / best["wall_s"] / MEGA,
        mrec_s=best["records"] / best["wall_s"] / MEGA,
        max_rss_mib=used.max_rss_mib,
        anon_mib=used.anon_mib,
    )


def measure_command(
    what: Command, profile: str, store: Path, facts: dict[str, Any], times: int
) -> Row:
    """A new process for each pass; the time is that of the process from start to end."""
    values = {**facts["probe"], "store": str(store.resolve())}
    argv = process.python("-m", "rmqctl", *(part.format_map(values) for part in what.argv))
    passes = [process.run(argv, discards=what.discards) for _ in range(times)]
    failed = next((used for used in passes if used.exit_code), None)
    if failed:
        return Row(what.name, profile, error=last_line(failed))
    best = min(passes, key=lambda used: used.wall_s)
    amount = 1 / best.wall_s / MEGA if what.whole_log else None
    return Row(
        what.name,
        profile,
        wall_s=best.wall_s,
        cpu_s=best.cpu_s,
        mb_s=amount and facts["log_bytes"] * amount,
        mrec_s=amount and facts["records"] * amount,
        max_rss_mib=max(used.max_rss_mib for used in passes),
        anon_mib=max(used.anon_mib for used in passes),
    )


def last_line(used: process.Usage) -> str:
    """Why a process failed, in short."""
    lines = used.stderr.strip().splitlines() or [""]
    return f"exit {used.exit_code}: {lines[-1]}"[:100]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, required=True, help="where the stores are or go")
    parser.add_argument("--profile", choices=PROFILES, action="append", help="default: both")
    parser.add_argument("--only", action="append", metavar="TEXT", help="names containing TEXT")
    parser.add_argument("--times", type=int, default=3, help="passes of each (default 3)")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--write-results", action="store_true", help=f"write {RESULTS.name}")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Measures what the command line asks for."""
    given = parse(arguments)
    chosen = [
        what
        for what in MEASUREMENTS
        if not given.only or any(text in what.name for text in given.only)
    ]
    rows: list[Row] = []
    for profile in given.profile or PROFILES:
        store, facts = prepare(profile, given.dir)
        warm(store)
        for what in chosen:
            print(f"{profile}: {what.name}", file=sys.stderr)
            rows.append(measure(what, profile, store, facts, given.times))
    print(table(rows))
    if given.json:
        document = {"machine": machine(), "rows": [vars(row) for row in rows]}
        given.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if given.write_results:
        # The section on writing is another script's.
        _, mark, writing = RESULTS.read_text(encoding="utf-8").partition(MARK)
        RESULTS.write_text(markdown(rows) + mark + writing, encoding="utf-8")


if __name__ == "__main__":
    main()
