"""Derive the entries of a range of the repaired log, for a rebuild."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import numpy as np

from rmqctl.broker.settings import Settings
from rmqctl.engine.dispatch.derive import Derived, deriver_for
from rmqctl.engine.dispatch.in_one_loop import LeadPass
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.rebuild.kept import KeptEntries
from rmqctl.scan.frames import DAMAGED, Batch, Span
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.passed_over import Damage
from rmqctl.scan.tolerant import UnreadRange
from rmqctl.store.log.ranges import FileRange
from rmqctl.store.store import Store

RANGE_SIZE = 32 << 20
"""Number of bytes of the log from which entries are derived at a time. With a quarter of this size,
a rebuild takes 12 % more CPU time.
"""
_BAD_BODY = "the body does not match its CRC"


def log_as_it_is(store: Store) -> list[LogPart]:
    """Return the files of the unchanged log."""
    return [LogPart(file.base, file.size, file.path, witness=file.witness, limit=file.limit,
                    head=file.head)
            for file in store.log.files if file.size]


@dataclass(slots=True)
class LogSummary:
    """Figures of a part of the log that was read.

    ``last`` and ``end``: physical offsets of the start and end of the last intact message, -1 if no
    message is intact. ``newest``: the greatest store time (ms), 0 if no message is intact.
    """

    messages: int = 0
    last: int = -1
    end: int = -1
    newest: int = 0
    damage: Damage = field(default_factory=Damage)

    def append(self, later: LogSummary) -> None:
        """Add the figures of the next part of the log."""
        self.messages += later.messages
        if later.messages:
            self.last, self.end = later.last, later.end
            self.newest = max(self.newest, later.newest)
        self.damage.merge(later.damage)


@dataclass(slots=True)
class DerivedRange(LogSummary):
    """The derived entries of a range. ``first`` and ``position``: start and end of the range
    (positions in the part).
    """

    first: int = 0
    position: int = 0
    derived: list[Derived] = field(default_factory=list)


def derive(settings: Settings, rows: bool, limit: int | None, kept: KeptEntries,
           part: FileRange[LogPart], sink: Callable[[Derived], None] | None = None) -> DerivedRange:
    """Derive the entries of the intact messages of a range.

    * ``rows``: whether to derive the columns for consume queues
    * ``limit``: only messages that end at or before this physical offset are used
    * ``kept``: entries of the store, which still have the original values of damaged messages
    * ``sink``: gets the derived batches, with the same topic numbers in all batches; without
      ``sink``, the batches are in the result

    Bytes that the system cannot read count as damage. Raises: StoreIOError for a file that cannot
    be opened.
    """
    deriver = deriver_for(settings, rows=rows)
    result = DerivedRange()

    def take(derived: Derived) -> None:
        (result.derived.append if sink is None else sink)(derived)
        result.messages += len(derived)
        result.last = int(derived.physical[-1])
        result.end = result.last + int(derived.size[-1])
        result.newest = max(result.newest, int(derived.store_timestamp.max()))

    # By the kernel as far as it goes, and else batch by batch.
    passes = None if part.file.head else LeadPass.of(
        deriver, part.end - part.start, limit, take)
    with part.file.open() as source:
        walk = part.walk(source, sound=None if passes is None else passes.over)
        for batch in walk:
            if passes is not None:
                passes.settle()
            if isinstance(batch, UnreadRange):
                result.damage.add(Span(DAMAGED, source.base + batch.start,
                                       batch.end - batch.start, batch.reason))
                continue
            intact = _intact(batch, limit, result.damage) if len(batch) else batch
            if len(intact):
                take(kept.kept(intact, deriver.derive(intact)))
            for span in batch.spans:
                if span.kind == DAMAGED:
                    result.damage.add(span)
        if passes is not None:
            passes.settle()
        result.first, result.position = walk.first, walk.position
    return result


def _intact(batch: Batch, limit: int | None, damage: Damage) -> Batch:
    """Return the messages of a batch that may be dispatched; messages with a body CRC mismatch are
    added to ``damage``.
    """
    good = batch.crc_ok()
    if limit is not None:
        inside = batch.offset + batch.column("total_size") <= limit
        if not inside.all():
            batch = batch.select(np.flatnonzero(inside))
            good = good[inside]
    if good.all():
        return batch
    size = batch.column("total_size")
    for row in np.flatnonzero(~good).tolist():
        damage.add(Span(DAMAGED, int(batch.offset[row]), int(size[row]), _BAD_BODY, "body_crc",
                        located=True))
    return batch.select(np.flatnonzero(good))
