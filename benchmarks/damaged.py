"""Compare the costs of commands on an intact store and on the same store with damaged records.

    python -m benchmarks.damaged --dir DIR [--messages 200000] [--times 2] [--write-results]

Each command runs in its own process; the lowest CPU seconds of several runs count. Bytes read are
those of the process, compared with the size of the store on disk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.grown import Shape, make
from benchmarks.growth import Cost, cost_of
from benchmarks.process import remove
from benchmarks.results import machine, publish

MARK = "\n## Damage\n"
QUEUES = (10, 2_000)
DAMAGES = (1, 1_000, 10_000)
COMMANDS = {"verify": "verify {store} --jobs 1", "recover (plan)": "recover {store}"}
HEAD = ["| command | queues | damaged records | CPU s sound | damaged | ratio | read / store |",
        "| --- | --- | --- | --- | --- | --- | --- |"]


def line(command: str, queues: int, damages: int, sound: Cost, hit: Cost, store_mib: float) -> str:
    """Return a row of the table."""
    return (f"| {command} | {queues:,} | {damages:,} | {sound.cpu_s:.2f} | {hit.cpu_s:.2f} | "
            f"{hit.cpu_s / max(sound.cpu_s, 1e-9):.2f} | {hit.mib / store_mib:.2f} |")


def lines(directory: Path, queues: int, messages: int, times: int) -> list[str]:
    """Return the rows for a number of queues. The stores are created and removed."""
    costs: dict[int, dict[str, Cost]] = {}
    used = 0.0
    for damages in (0, *DAMAGES):
        store = directory / f"damaged-{queues}-{damages}"
        try:
            make(Shape(messages, queues, damages=damages), store)
            used = sum(file.stat().st_blocks for file in store.rglob("*")) / 2048
            costs[damages] = {name: cost_of(words.format(store=store), times)
                              for name, words in COMMANDS.items()}
        finally:
            remove(store)
    return [line(name, queues, damages, costs[0][name], costs[damages][name], used)
            for name in COMMANDS for damages in DAMAGES]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What damage costs.")
    parser.add_argument("--dir", type=Path, required=True, help="where the stores are made")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--times", type=int, default=2, help="runs, of which the least counts")
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args(argv)
    given.dir.mkdir(parents=True, exist_ok=True)
    tables = [*HEAD, *(line for queues in QUEUES for line in lines(
        given.dir.resolve(), queues, given.messages, given.times))]
    sys.stdout.write("\n".join(tables) + "\n")
    if given.write_results:
        origin = (f"Made by `python -m benchmarks.damaged --dir DIR --write-results`: {machine()}. "
                  f"{given.messages:,} messages; a bit is flipped in the body, the size or the "
                  "magic of a record. Start-up is part of the costs.")
        publish(MARK, [MARK.strip(), "", origin, "", *tables])
    return 0


if __name__ == "__main__":
    sys.exit(main())
