"""CPU time of short commands, compared with Python and numpy alone, and with another checkout.

    python -m benchmarks.startup --dir DIR [--against TREE] [--times 7] [--write-results]

TREE is another checkout of rmqctl, measured alternately with this one. Both are compiled to byte
code first, as in an installation: with PYTHONDONTWRITEBYTECODE in the environment every run would
compile rmqctl again, which takes a quarter more time.
"""

from __future__ import annotations

import argparse
import compileall
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.process import ROOT
from benchmarks.results import machine, publish
from benchmarks.run import prepare, warm

MARK = "\n## Start-up\n"
PYTHON, NUMPY = "Python alone", "Python and numpy"
PARTS = {PYTHON: "pass", NUMPY: "import numpy"}
COMMANDS = {
    "--help": "--help",
    "query key --help": "query key --help",
    "query key": "query key {store} --topic {topic} --key {key} -o json",
    "query id": "query id {store} {msg_id} -o json",
    "query time": "query time {store} --topic {topic} --queue {queue} --time {store_timestamp}"
                  " -o json",
    "read --offset": "read {store} --topic {topic} --queue {queue} --offset {queue_offset}"
                     " --limit 1 -o json",
    "stats --by topic": "stats {store} --by topic -o json",
    "verify": "verify {store} -o json",
    "verify, empty": "verify {empty} -o json",
}

BOUND = ("What bounds a look-up: numpy, typer with the modules of Python it needs, construct, and "
         "about 90 modules of rmqctl, whose dataclasses are most of their time; the look-up itself "
         "takes 5 to 10 ms.")


def cpu(argv: list[str], tree: Path) -> float:
    """Return user and system seconds of a process that uses rmqctl from ``tree``."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *argv], cwd=tree, env=environment, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measured(trees: list[Path], facts: dict[str, Any], times: int) -> dict[str, list[float]]:
    """Return the lowest CPU seconds by measurement for each tree; the trees are measured
    alternately.
    """
    work = {name: ["-c", code] for name, code in PARTS.items()} | {
        name: ["-m", "rmqctl", *line.format(**facts).split()] for name, line in COMMANDS.items()}
    rounds = [{name: [cpu(argv, tree) for tree in trees] for name, argv in work.items()}
              for _ in range(times)]
    return {name: [min(taken[name][number] for taken in rounds) for number in range(len(trees))]
            for name in work}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where the stores are or go")
    parser.add_argument("--against", type=Path, help="another checkout, measured beside this one")
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args()
    store, facts = prepare("1k", given.dir)
    warm(store)
    empty = given.dir / "empty"
    if not empty.exists():
        subprocess.run([sys.executable, "-m", "rmqctl", "init", str(empty)], cwd=ROOT, check=True,
                       stdout=subprocess.DEVNULL)
    trees = [ROOT] if given.against is None else [given.against.resolve(), ROOT]
    for tree in trees:
        compileall.compile_dir(tree / "rmqctl", quiet=1)
    best = measured(trees, {**facts["probe"], "store": store, "empty": empty}, given.times)
    lines = [MARK.strip("\n"), "",
             ("Made by `python -m benchmarks.startup --dir DIR --against TREE --write-results`: "
              f"CPU seconds (user and system) of a process, best of {given.times}; store 1k. "
              f"{machine()}"), "",
             "| process | before | now | of before | of Python and numpy |",
             "| --- | --- | --- | --- | --- |"]
    for name, times in best.items():
        lines.append(f"| {name} | {times[0]:.3f} | {times[-1]:.3f} | {times[-1] / times[0]:.2f} | "
                     f"{times[-1] / best[NUMPY][-1]:.1f} |")
    lines += ["", BOUND]
    print("\n".join([*lines, ""]))
    if given.write_results:
        publish(MARK, [*lines, ""])


if __name__ == "__main__":
    main()
