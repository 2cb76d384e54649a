"""How long the repair commands take on whole stores, beside verify.

python -m benchmarks.recovering --dir DIR [--rounds N] [--write-results]

The stores are those of `benchmarks.run` (made in DIR when they are not there), their files in the
page cache; the damaged one is a copy of one with a wrong byte at 20 places of its log. Commands
from the start of their process to its end, the best of interleaved rounds.
"""

from __future__ import annotations

import argparse
import random
import shutil
from pathlib import Path

from benchmarks import process
from benchmarks.report import machine
from benchmarks.results import publish
from benchmarks.run import PROFILES, prepare, warm

MARK = "\n## Recovering\n"
PLANS = ("verify", "preflight", "preflight --quick", "recover", "recover --jobs 2",
         "recover --only topic-queue-table")
DAMAGED = ("verify", "preflight", "recover", "recover --jobs 2")
PLACES, SEED = 20, 4


def damaged(store: Path, target: Path) -> Path:
    """A copy of a store with wrong bytes in its log."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(store, target)
    chance = random.Random(SEED)
    for path in sorted((target / "commitlog").iterdir()):
        with path.open("r+b") as log:
            size = log.seek(0, 2)
            for _ in range(PLACES):
                at = chance.randrange(size // 20, size - size // 20)
                log.seek(at)
                byte = log.read(1)[0]
                log.seek(at)
                log.write(bytes([byte ^ 0x40]))
    return target


def rows(store: Path, commands: tuple[str, ...], rounds: int, label: str) -> list[str]:
    """Lines of a table: every command on a store."""
    warm(store)
    best: dict[str, process.Usage] = {}
    for _ in range(rounds):
        for one in commands:
            name, *options = one.split()
            used = process.run(process.python("-m", "rmqctl", name, str(store), *options,
                                              "-o", "json"))
            assert used.exit_code in (0, 1), used
            if one not in best or used.wall_s < best[one].wall_s:
                best[one] = used
    verify = best["verify"].wall_s
    return [f"| {label} | `{one}` | {used.wall_s:.2f} | {used.cpu_s:.2f} | "
            f"{used.wall_s / verify:.2f} | {used.max_rss_mib:.0f} |" for one, used in best.items()]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where the stores are or go")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args()
    lines = [MARK.strip("\n"), "",
             ("Made by `python -m benchmarks.recovering --dir DIR --write-results`: plans only, "
              f"best of {given.rounds}. The damaged store has a wrong byte at {PLACES} places. "
              f"{machine()}"), "",
             "| store | command | wall s | CPU s | of verify | RSS MiB |",
             "| --- | --- | --- | --- | --- | --- |"]
    for profile in PROFILES:
        store, _ = prepare(profile, given.dir)
        lines += rows(store, PLANS, given.rounds, profile)
        broken = damaged(store, given.dir / "damaged")
        lines += rows(broken, DAMAGED, given.rounds, f"{profile}, damaged")
        shutil.rmtree(broken)
    lines.append("")
    print("\n".join(lines))
    if given.write_results:
        publish(MARK, lines)


if __name__ == "__main__":
    main()
