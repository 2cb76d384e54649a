"""Measure what `recover` restores in randomly damaged stores, with and without other copies.

``python -m benchmarks.campaign --stores 3000 --seed 1 --write-docs PAGE`` damages
copies of stores that brokers wrote, and of generated stores, in ten ways, recovers each copy, and
compares every message with the original (tests/repair/campaign). Wrong messages are printed; then
the exit code is 1.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rmqctl import __version__
from tests.repair.campaign import damages, trial
from tests.repair.campaign.sources import FORMS
from tests.support import golden

COLUMNS = ("damaged", "corrected", "copied", "mended", "filled", "kept", "unseen", "near", "lost")
WITHOUT, REPLICA, SPLIT, MESSAGES = "none", "replica", "split brain", "messages"
LIMIT = 120
"""Maximum number of seconds per store."""
COMMAND_EACH = 25
"""Every store whose number is a multiple of this value is also recovered with the command line."""
PAGE = """# What `recover` brings back

Stores damaged at random, recovered, and compared message by message with what they were. Written
by rmqctl {version} itself:

    {command}

Each store is a copy of one that a broker of 4.9.3 or 5.3.3 wrote, or of a made one (text, JSON,
binary and packed bodies, keys, tags, light queues, delays, transactions, IPv6, appended CRCs;
several small files of the log). Damage of one kind, or of several, is done to its log; in some its
consumequeues and index are damaged or gone as well. Then it is recovered with `--correct` bit,
byte or off, in some with `--keep-damaged`, without a source, with `--from` a replica (whole,
lagging behind, or damaged in its own way) or a store that went another way from some message on
(split brain; without `--prefer`, and with either side preferred), or `--from` messages: JSON lines
or Parquet of all or some of them, one file of the log, or a tier, made of the whole log, of a
damaged one, or of one that went another way. It is told the sizes of its files and that light
queues are on. Stale pages (from an earlier use of a file) are only among the damage where
there are rows: they hold whole records at their own places, and without rows `recover` may take
them for messages.

| damage | source | stores | {heads} |
|---|---|---:|{lines}
{rows}

*damaged*: messages of whose bytes any are changed or gone. Of these are afterwards *corrected*,
*copied*, *mended*: the very bytes again, by `--correct`, from the source, or by what rows, index
and the rest of the log know; *filled*: a filler has their queue offset; *kept*: delivered
with the damage, and marked; *unseen*: damaged in bytes that no checksum covers (flags, times,
hosts, properties; topic and queue where no rows are left), which stay as they are; *near*: such a
field was seen to be damaged, and has a value that does no harm; *lost*: nothing shows them any
more (the head or the end of the log, queues that are gone). {others}

*wrong* are stores with a message presented as a good one with other bytes, or that never was
there; a row or an index entry that leads to a wrong message; an intact message that is gone,
changed, or not to be had by its row; an error that `verify` finds afterwards; a second plan that
has anything left to do; a source, or a store after `undo`, that is not as it was to the byte. Not
counted as wrong: rows after a gap, and what `verify` and a second plan say of them, where the
first plan has warned of the gap; what `verify` says of a message with *unseen* damage; a second
plan with a source that only copies more, which is proven once ours is whole ({later} stores).
**{wrong}** of {stores} stores.
"""


@dataclass
class Sums:
    """Number of stores, and of messages by result, for each kind of damage and of source."""

    stores: Counter[tuple[str, str]] = field(default_factory=Counter)
    fates: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: Counter[tuple[str, str]] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, outcome: trial.Outcome) -> None:
        key = outcome.case.kind, group(outcome.case.source)
        self.stores[key] += 1
        self.fates.setdefault(key, Counter()).update(outcome.verdict.fates)
        if outcome.refused:
            self.refused[key[1]] += 1
        if outcome.verdict.wrong:
            self.wrong[key] += 1
            self.fail(outcome.describe())

    def fail(self, text: str) -> None:
        """Print a failure at once, because the run may take hours."""
        self.bad.append(text)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def rows(self) -> Iterator[str]:
        kinds = [*damages.KINDS, damages.MIXED]
        for source in (WITHOUT, REPLICA, SPLIT, MESSAGES):
            for kind in kinds:
                if self.stores[kind, source]:
                    yield self._row(kind, source, [(kind, source)])
            if any(self.stores[kind, source] for kind in kinds):
                yield self._row("**all**", source, [(kind, source) for kind in kinds])

    def _row(self, kind: str, source: str, keys: list[tuple[str, str]]) -> str:
        total = sum((self.fates.get(key, Counter()) for key in keys), Counter())
        stores, wrong = (sum(some[key] for key in keys) for some in (self.stores, self.wrong))
        return f"| {kind} | {source} | {stores:,} | " + " | ".join(
            f"{total[name]:,}" for name in COLUMNS) + f" | {wrong:,} |"

    def others(self) -> str:
        """Return a sentence with the results that have no column in the table."""
        total = sum(self.fates.values(), Counter())
        return (f"Besides, {total['theirs']:,} damaged messages gave way to those of a preferred "
                f"source, {total['refused']:,} are in the {self.refused.total()} stores in which "
                "nothing was done, since no message of the source is known to be one of theirs, "
                f"and {total['left out']:,} intact ones were skipped and reported, because "
                "nothing distinguishes them from records in a body; "
                f"{total['misplaced']:,} intact ones are after a gap in their queue, of which "
                "the plan warns.")


def group(source: str) -> str:
    """Return the name under which the table shows a source."""
    return (WITHOUT if source == trial.NONE else SPLIT if source in trial.SPLITS
            else MESSAGES if source in FORMS else REPLICA)


def run(stores: int, seed: int, base: Path, kind: str | None = None,
        source: str | None = None) -> Sums:
    """Run the cases ``seed``, ``seed + 1``, … in folders below ``base``."""
    sums = Sums()
    for number in range(seed, seed + stores):
        case = trial.case(number, kind, source)
        store = trial.base_of(case, base / "made", lambda name: golden.unpack(
            golden.split(name)[0], base / "golden"))
        signal.alarm(LIMIT)
        try:
            sums.add(trial.try_one(case, store, base / "one",
                                   by_command=number % COMMAND_EACH == 0))
        except Exception:  # noqa: BLE001 - whatever it is, it is to be shown with its case
            sums.fail(f"{case.name}\n{traceback.format_exc(limit=-8)}")
        finally:
            signal.alarm(0)
    return sums


def page(sums: Sums, command: str) -> str:
    """Return the results as a page of the docs."""
    return PAGE.format(
        version=__version__, command=command, heads=" | ".join((*COLUMNS, "wrong")),
        lines="---:|" * (len(COLUMNS) + 1), rows="\n".join(sums.rows()), others=sums.others(),
        later=sum(some["copied later"] for some in sums.fates.values()),
        wrong=len(sums.bad), stores=f"{sums.stores.total():,}")


def _too_long(_number: int, _frame: object) -> None:
    raise TimeoutError(f"more than {LIMIT} s")


def main(words: list[str] | None = None) -> int:
    """Run the command line; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stores", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="the first case's number")
    parser.add_argument("--kind", choices=[*damages.KINDS, damages.MIXED])
    parser.add_argument("--source", choices=sorted({*trial.SOURCES}))
    parser.add_argument("--write-docs", type=Path, metavar="PAGE")
    given = parser.parse_args(words)
    signal.signal(signal.SIGALRM, _too_long)
    with tempfile.TemporaryDirectory() as folder:
        sums = run(given.stores, given.seed, Path(folder), given.kind, given.source)
    command = f"python -m benchmarks.campaign --stores {given.stores} --seed {given.seed}"
    text = page(sums, command + (f" --write-docs {given.write_docs}" if given.write_docs else ""))
    if given.write_docs:
        given.write_docs.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 1 if sums.bad else 0


if __name__ == "__main__":
    sys.exit(main())
