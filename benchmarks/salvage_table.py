"""Compare what salvage and a broker's recovery keep of damaged stores.

``python -m benchmarks.salvage_table`` damages copies of the golden stores at random, salvages
each, checks the result as the tests do, and writes ``benchmarks/salvage.md``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.repair import damage, salvaging
from tests.support import golden
from tests.support.replay import settings_of

TARGET = Path(__file__).parent / "salvage.md"
SETS = [f"{version}/{kind}" for kind in ("basic", "batch", "delay", "lmq", "cqext", "transaction")
        for version in ("4.9.3", "5.3.3")]
MIXED, ALONE = 200, 60
PAGE = """# What salvage keeps

Random damage, 1 to 20 times in one store, in copies of stores which brokers 4.9.3 and 5.3.3
wrote (plain, batch, delay, light queues, consumequeue extension, transaction). Written by
`python -m benchmarks.salvage_table`.

*Intact*: messages whose bytes are all there and unchanged. *Salvage keeps*: those that stand in
the result, byte by byte, with their row at the same queue offset. *Broker keeps*: those before
the point where a broker's recovery ends the log (it deletes what follows). *Restored*: damaged
messages that salvage brought back to the byte. *Listed*: messages in the list of what is lost.

| damage | stores | intact messages | salvage keeps | broker keeps | restored | listed |
|---|---:|---:|---:|---:|---:|---:|
{rows}

In every store the result walks without damage to its end, all queues go on without a gap, and
`verify` finds nothing wrong in log, consumequeues and index.
"""


@dataclass(slots=True)
class Sum:
    """Sums for a row of the table: messages, and stores in which a broker's recovery loses
    messages.
    """

    stores: int = 0
    intact: int = 0
    kept: int = 0
    broker: int = 0
    restored: int = 0
    lost: int = 0

    def add(self, outcome: salvaging.Outcome) -> None:
        self.stores += 1
        self.intact += outcome.intact
        self.kept += outcome.kept
        self.broker += outcome.broker
        self.restored += outcome.restored
        self.lost += outcome.lost

    def row(self, name: str) -> str:
        return (f"| {name} | {self.stores} | {self.intact} | {self.kept / self.intact:.2%} | "
                f"{self.broker / self.intact:.2%} | {self.restored} | {self.lost} |")


def measure(base: Path, kinds: Sequence[str], seeds: int) -> Sum:
    """Damage and salvage stores one after the other. Raises: AssertionError for a wrong result."""
    total = Sum()
    for seed in range(seeds):
        name = SETS[seed % len(SETS)]
        golden_store, _ = golden.split(name)
        folder = golden.unpack(golden_store, base / "golden")
        root = base / "store"
        shutil.copytree(folder / "store", root)
        settings = settings_of(folder, golden_store.version, lmq=True, multi_dispatch=True)
        whole, rows = damage.remember(root), salvaging.rows_of(root)
        damage.do(root, seed, kinds)
        total.add(salvaging.check(root, whole, rows, settings))
        shutil.rmtree(root)
    return total


def table() -> str:
    """Return the page. This takes some minutes."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        rows = [measure(base, [kind], ALONE).row(kind) for kind in damage.KINDS]
        rows.append(measure(base, damage.KINDS, MIXED).row("all kinds mixed"))
    return PAGE.format(rows="\n".join(rows))


if __name__ == "__main__":
    TARGET.write_text(table())
    sys.stdout.write(TARGET.read_text())
