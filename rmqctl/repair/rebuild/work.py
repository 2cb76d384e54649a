"""What one stretch of the log gives to a rebuild: columns of its intact messages, its damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rmqctl.engine.config.settings import Settings
from rmqctl.engine.dispatch.derive import Derived, deriver_for
from rmqctl.repair.rebuild.parallel import Stretch
from rmqctl.scan.frames import DAMAGED, Batch, Span

MOST_SPANS = 100
"""Damaged spans that are kept one by one; of the others only number and length."""
_BAD_BODY = "the body does not match its CRC"


@dataclass(slots=True)
class Damage:
    """Bytes of the log that were passed over: ``spans`` are the first ones (physical offsets).

    A whole record with a wrong body CRC is a span too.
    """

    count: int = 0
    length: int = 0
    spans: list[Span] = field(default_factory=list)

    def add(self, one: Span) -> None:
        self.count += 1
        self.length += one.length
        if len(self.spans) < MOST_SPANS:
            self.spans.append(one)

    def merge(self, other: Damage) -> None:
        self.count += other.count
        self.length += other.length
        self.spans += other.spans[:MOST_SPANS - len(self.spans)]


@dataclass(slots=True)
class Found:
    """Of one stretch. ``first`` and ``position``: what it covered (positions in the part).

    ``last`` and ``end``: physical offsets of the last intact message and behind it, -1 without
    any; ``newest`` the greatest store time (ms), 0 without any.
    """

    first: int = 0
    position: int = 0
    derived: list[Derived] = field(default_factory=list)
    damage: Damage = field(default_factory=Damage)
    messages: int = 0
    last: int = -1
    end: int = -1
    newest: int = 0


def derive(settings: Settings, rows: bool, limit: int | None, one: Stretch,
           sink: Callable[[Derived], None] | None = None) -> Found:
    """The intact messages of a stretch that end at or before physical offset ``limit``.

    ``rows``: columns for the consumequeues are wanted. ``sink`` takes what was derived, batch by
    batch and with one numbering of topics, instead of the result. StoreIOError.
    """
    deriver = deriver_for(settings, rows=rows)
    found = Found()
    take = found.derived.append if sink is None else sink
    with one.part.open() as source:
        walk = one.walk(source)
        for batch in walk:
            intact = _intact(batch, limit, found.damage) if len(batch) else batch
            if len(intact):
                size = intact.column("total_size")
                take(deriver.derive(intact))
                found.messages += len(intact)
                found.last = int(intact.offset[-1])
                found.end = found.last + int(size[-1])
                found.newest = max(found.newest, int(intact.column("store_timestamp").max()))
            for span in batch.spans:
                if span.kind == DAMAGED:
                    found.damage.add(span)
        found.first, found.position = walk.first, walk.position
    return found


def _intact(batch: Batch, limit: int | None, damage: Damage) -> Batch:
    """The messages that may be dispatched; bodies that were changed are noted as damage."""
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
