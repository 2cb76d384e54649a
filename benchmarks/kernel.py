"""The compiled kernel against NumPy's way: the same work with both, in turns, in one run.

    python -m benchmarks.kernel --dir DIR [--rounds 5] [--write-results]

Beside them what other programs take to go through the same files: cat and openssl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.options import PROFILES
from benchmarks.report import machine
from benchmarks.results import publish
from benchmarks.run import prepare, warm

MARK = "\n## Compiled kernel\n"
KERNELS = ("python", "compiled")
COUNT = 50_000
CALLS = {"walk+crc, in process": "walk_crc", "verify, in process": "verify_all",
         "stats by topic, in process": "stats_by_topic"}
COMMANDS = {"verify": "verify STORE -o json", "recover table": "recover table STORE -o json",
            "stats --by topic": "stats STORE --by topic -o json",
            f"read -o jsonl --count {COUNT}": f"read STORE -o jsonl --count {COUNT}"}
PEERS = {"cat": ["cat"], "openssl dgst -sha256": ["openssl", "dgst", "-sha256"],
         "openssl dgst -md5": ["openssl", "dgst", "-md5"]}


Times = tuple[float, float]
"""Seconds, and seconds of CPU."""


def timed(argv: list[str]) -> Times:
    """What a process takes."""
    started, before = time.perf_counter(), os.times()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return time.perf_counter() - started, (after.children_user + after.children_system
                                           - before.children_user - before.children_system)


def called(function: str, store: Path) -> Times:
    """What a function of calls.py takes in a process that did it once before."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.worker", function, str(store),
                           '{"jobs": 1}', "2"], check=True, stdout=subprocess.PIPE)
    best = json.loads(done.stdout)
    return best["wall_s"], best["cpu_s"]


def passes(store: Path) -> dict[str, Times]:
    """One pass of everything: seconds by measurement and kernel."""
    found: dict[str, Times] = {}
    logs = sorted(map(str, (store / "commitlog").iterdir()))
    for name, argv in PEERS.items():
        found[name] = timed([*argv, *logs])
    for kernel in KERNELS:
        os.environ["RMQCTL_KERNEL"] = kernel
        for name, function in CALLS.items():
            found[f"{name}/{kernel}"] = called(function, store)
        for name, line in COMMANDS.items():
            words = line.replace("STORE", str(store)).split()
            found[f"{name}/{kernel}"] = timed([sys.executable, "-m", "rmqctl", *words])
    return found


def table(profile: str, size: int, rounds: list[dict[str, Times]]) -> list[str]:
    """One section of RESULTS.md; the best of all rounds, wall and CPU each for itself."""
    best = {name: tuple(min(each[name][which] for each in rounds) for which in (0, 1))
            for name in rounds[0]}
    lines = [f"### Store {profile}", "",
             ("| measurement | python s | CPU s | compiled s | CPU s | times less CPU | "
              "compiled, MB per CPU s |"), "| --- | --- | --- | --- | --- | --- | --- |"]
    for name in [*CALLS, *COMMANDS]:
        slow, fast = (best[f"{name}/{kernel}"] for kernel in KERNELS)
        rate = "" if "--count" in name else f"{size / fast[1] / 1e6:,.0f}"
        lines.append(f"| {name} | {slow[0]:.3f} | {slow[1]:.3f} | {fast[0]:.3f} | {fast[1]:.3f} | "
                     f"{slow[1] / fast[1]:.1f} | {rate} |")
    lines += [f"| peer: {name} |  |  | {best[name][0]:.3f} | {best[name][1]:.3f} |  | "
              f"{size / best[name][1] / 1e6:,.0f} |" for name in PEERS]
    return [*lines, ""]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where the stores are or go")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args()
    lines = [MARK.strip("\n"), "",
             ("Made by `python -m benchmarks.kernel --dir DIR --write-results`: the same work with "
              f"NumPy and with the compiled kernel, in turns, one process; best of {given.rounds} "
              f"rounds, wall and CPU each for itself. {machine()}"), ""]
    for profile in PROFILES:
        store, facts = prepare(profile, given.dir)
        warm(store)
        lines += table(profile, facts["log_bytes"], [
            passes(store) for _ in range(given.rounds)])
    print("\n".join(lines))
    if given.write_results:
        publish(MARK, lines)


if __name__ == "__main__":
    main()
