"""Run `recover` on damaged logs of all forms ("worlds"), with and without forged bodies.

``python -m benchmarks.worlds --seeds 1000 --seed 1 --write-results`` damages, reads, recovers and
checks the world of each seed (tests/repair/campaign/worlds), and counts wrong results by kind.
Wrong results are printed; then the exit code is 1. ``--seconds`` limits the duration.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import results
from tests.repair.campaign.worlds import trial
from tests.repair.campaign.worlds.grounds import FORMS, LARGE
from tests.repair.campaign.worlds.harms import WIDE
from tests.support import unforced

HEADING, WIDE_HEADING = "## Worlds of damage", "## Wide worlds of damage"
LIMIT = 120
"""Maximum number of seconds per world."""
MAX_PER_PAGE = 200
"""A run fails if a log without forged bodies that is longer than its largest record has this number
of undecided records per damaged page, or more.
"""
TEXT = """Made by `{command}`: {seeds:,} seeds, {first:,} to {last:,}. A seed chooses a form of the log, whether bodies hold forged records, the damage, and the state of entries and index. *refused*: nothing is changed. *damaged* messages are *back* with their bytes, *filled*, or *lost*: nothing stands for them. *forged*: worlds in which a record from a body is shown or published without `--ambiguous keep`. *not counted*: an intact message is hidden, left out or lost without being counted, with `--ambiguous keep` or without. *nothing is lost*: that is said, and a message has to be filled. *verify*: an error after `recover` that the plan did not announce. *stale shown*: `read` shows records from an earlier use of a file which the entries contradict. *other*: a second plan is not empty, or `undo` does not restore every byte. *undecided*: intact and forged records of which the plan says so, in all worlds, and their share of all messages; *most a page*: the most of one world, divided by its damaged places.
"""  # noqa: E501 - a paragraph of Markdown
COLUMNS = ("seeds", "refused", "damaged", "back", "filled", "lost", *trial.KINDS_OF_WRONG,
           "undecided", "share", "most a page")


@dataclass
class Sums:
    """Sums by kind of world: seeds, results of messages, and number of seeds by kind of error."""

    seeds: Counter[str] = field(default_factory=Counter)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    bad: int = 0

    def add(self, outcome: trial.Outcome) -> None:
        world = outcome.world
        counts = outcome.counts + Counter({kind for kind, _ in outcome.wrong})
        for name in (f"{world.form}, {'forged' if world.forged else 'honest'}", world.kind):
            self.seeds[name] += 1
            self.counts.setdefault(name, Counter()).update(counts)
            if counts["pages"]:
                self.most[name] = max(self.most.get(name, 0),
                                      counts["undecided"] / counts["pages"])
        if outcome.wrong:
            self.fail(outcome.describe())

    def fail(self, text: str) -> None:
        self.bad += 1
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def merge(self, other: Sums) -> None:
        """Add the sums of another process."""
        self.seeds.update(other.seeds)
        for name, counts in other.counts.items():
            self.counts.setdefault(name, Counter()).update(counts)
        for name, most in other.most.items():
            self.most[name] = max(self.most.get(name, 0), most)
        self.bad += other.bad

    def table(self, names: list[str]) -> Iterator[str]:
        yield "| world | " + " | ".join(COLUMNS) + " |"
        yield "| --- |" + " ---: |" * len(COLUMNS)
        for name in names:
            counts = self.counts.get(name, Counter())
            share = counts["undecided"] / max(1, counts["messages"])
            cells = [self.seeds[name], *(counts[cell] for cell in COLUMNS[1:-2]),
                     f"{share:.2%}", f"{self.most.get(name, 0):.0f}"]
            yield f"| {name} | " + " | ".join(
                cell if isinstance(cell, str) else f"{cell:,}" for cell in cells) + " |"

    @property
    def too_many(self) -> bool:
        """Whether a long log without forged bodies has too many undecided records."""
        return self.most.get(f"{LARGE}, honest", 0) >= MAX_PER_PAGE


def run(seeds: range, base: Path, seconds: float | None = None, *,
        wide: bool = False) -> tuple[Sums, int]:
    """Run the worlds of ``seeds`` until the time is over; return (sums, number of worlds)."""
    sums, started, done = Sums(), time.monotonic(), 0
    for seed in seeds:
        if seconds is not None and time.monotonic() - started > seconds:
            break
        signal.alarm(LIMIT)
        try:
            sums.add(trial.try_one(trial.world(seed, wide=wide), base))
        except Exception:  # noqa: BLE001 - whatever it is, it is to be shown with its seed
            sums.fail(f"{trial.world(seed, wide=wide).name}\n{traceback.format_exc(limit=-8)}")
        finally:
            signal.alarm(0)
        done += 1
    return sums, done


def run_in(jobs: int, seeds: range, seconds: float | None, *, wide: bool) -> tuple[Sums, int]:
    """Run the worlds of ``seeds`` in several processes, each with its own part of seeds and
    stores.
    """
    size = -(-len(seeds) // jobs)
    parts = [seeds[first:first + size] for first in range(0, len(seeds), size)]
    sums, done = Sums(), 0
    with ProcessPoolExecutor(len(parts)) as pool:
        for part_sums, count in pool.map(_part, parts, [seconds] * len(parts), [wide] * len(parts)):
            sums.merge(part_sums)
            done += count
    return sums, done


def _part(seeds: range, seconds: float | None, wide: bool) -> tuple[Sums, int]:
    signal.signal(signal.SIGALRM, _too_long)
    unforced.install()
    with tempfile.TemporaryDirectory() as folder:
        return run(seeds, Path(folder), seconds, wide=wide)


def section(sums: Sums, command: str, first: int, done: int) -> str:
    """Return the section of RESULTS.md."""
    forms = [f"{form}, {what}" for form in FORMS for what in ("honest", "forged")]
    return "\n".join([
        TEXT.format(command=command, seeds=done, first=first, last=first + done - 1),
        *sums.table(forms), "", *sums.table([kind for kind in WIDE if kind in sums.seeds]), "",
        f"{sums.bad:,} of {done:,} seeds have an error of any kind."])


def _too_long(_number: int, _frame: object) -> None:
    raise TimeoutError(f"more than {LIMIT} s")


def main(words: list[str] | None = None) -> int:
    """Run the command line; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--seconds", type=float, help="begin no world after this time")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--wide", action="store_true", help="worlds with records of any queues in "
                        "bodies, and with more kinds of damage")
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args(words)
    seeds = range(given.seed, given.seed + given.seeds)
    sums, done = run_in(given.jobs, seeds, given.seconds, wide=given.wide)
    text = section(sums, f"python -m benchmarks.worlds --seeds {done} --seed {given.seed}"
                   + " --wide" * given.wide,
                   given.seed, done)
    if given.write_results:
        heading = WIDE_HEADING if given.wide else HEADING
        results.publish(heading, [heading, "", text])
    sys.stdout.write(text + "\n")
    return 1 if sums.bad or sums.too_many else 0


if __name__ == "__main__":
    sys.exit(main())
