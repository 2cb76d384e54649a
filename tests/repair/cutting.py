"""Golden stores with a part of their log, and what a broker would have of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmqctl.broker.settings import Settings
from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.repair.executor.executor import Repair
from rmqctl.repair.plan import Plan
from rmqctl.store.store import Store
from tests.engine_write.dispatching import bit_maps, dispatcher, pieces
from tests.support import golden as golden_sets
from tests.support import replay, snapshot

GENERATION = {"4.9.3": 4, "5.3.3": 5}


def dirs(kind: str) -> tuple[str, ...]:
    return golden_sets.MULTI_PATH if kind == "multipath" else ()


def offsets(store: Path, kind: str) -> list[int]:
    """Where every record of a log begins."""
    with Store.open(store, dirs(kind)) as opened:
        return [int(offset) for batch in opened.log.walk() for offset in batch.offset]


def dispatched(path: Path, store: Path, kind: str, settings: Settings, to: int) -> None:
    """What a broker derives from the records of a store's log before physical offset ``to``."""
    path.mkdir(exist_ok=True)
    writer = dispatcher(path, settings)
    maps = bit_maps(store)
    for data, base, starts in pieces(store, kind, 50):
        count = sum(base + start < to for start in starts)
        if count:
            end = starts[count] if count < len(starts) else len(data)
            writer.dispatch(data[:end], base, maps)
    writer.flush()
    writer.close()


def used(root: Path) -> dict[str, bytes]:
    """Derived files by name without the zeros behind them; index files by their order."""
    return {name: data.rstrip(b"\0") for name, data in replay.contents(root).items()
            if not name.startswith(("commitlog/", "cl1/", "cl2/"))}


def each_border(places: list[int], end: int, most: int) -> list[int]:
    """Up to ``most`` of the borders of a log, spread over it, and the last ones."""
    every = [*places, end]
    return sorted({*every[::max(1, len(every) // most)], *every[-2:]})


def troubles(root: Path, kind: str = "") -> list[Finding]:
    """What verify finds wrong with a store."""
    with Store.open(root, dirs(kind)) as store:
        return [finding for finding in Verification(store, VerifyOptions()).findings()
                if finding.is_trouble]


def content(root: Path) -> snapshot.Snapshot:
    """Names, bytes, times and modes of a store without what rmqctl and the lock leave in it.

    Of folders only their being there: names came and went in them.
    """
    state = snapshot.take(root, inodes=False)
    return snapshot.Snapshot({
        name: entry for name, entry in state.entries.items()
        if not name.startswith((".rmqctl", "lock")) and name != "."})


@contextmanager
def applied_and_undone(plan: Plan) -> Iterator[None]:
    """Inside, the plan is applied; then it is undone, and the store must be what it was."""
    root = Path(plan.root)
    before = content(root)
    with Repair(plan.root, plan.command) as repair:
        done = repair.apply(plan)
    yield
    if not done.already:
        with Repair(plan.root, "undo") as repair:
            repair.undo(done.id)
    assert before.differences(content(root)) == []
