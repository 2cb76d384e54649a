"""Count the messages in a tier and their bytes, by queue, broker, day and more.

Messages without a unit of the consume queue are counted separately. Sums are computed by
`scan.aggregate`, as for a local log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import field

from rmqctl.errors import StoreIOError
from rmqctl.ext.tiered.flat_file import FlatQueue
from rmqctl.ext.tiered.index.index_file import TierIndexFile, uploaded
from rmqctl.ext.tiered.slots import SegmentSlots
from rmqctl.ext.tiered.tier import Tier
from rmqctl.ext.tiered.verify.units import TierUnits
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.aggregate import Aggregate
from rmqctl.scan.groupings import Key

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class TierQuery:
    """Options of a count. ``by``: a grouping in `groupings.GROUPINGS`. ``since``, ``until``: store
    times in ms, inclusive.
    """

    by: str = "topic"
    broker: str | None = None
    topic: str | None = None
    since: int | None = None
    until: int | None = None

    def start(self, only: Sequence[Key] | None) -> Aggregate:
        raw = None if self.topic is None else os.fsencode(self.topic)
        return Aggregate(self.by, topic=raw, since=self.since, until=self.until, only=only)


@dataclass(slots=True)
class Figures:
    """Sums of a tier.

    ``brokers``: sums by broker.
    ``orphans``: number of intact messages without a unit.
    ``bytes_other``: bytes that do not belong to messages, such as codas.
    ``is_whole``: everything was readable.
    """

    brokers: dict[str, Aggregate] = field(default_factory=dict)
    orphans: int = 0
    bytes_orphaned: int = 0
    bytes_other: int = 0
    index_files: int = 0
    index_items: int = 0
    index_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    is_whole: bool = True


def collect(tier: Tier, query: TierQuery, *, apart: bool = False,
            progress: Progress | None = None) -> Figures:
    """Count the messages. ``apart``: return one sum per broker, instead of a single sum under the
    name ``""``.

    Unreadable parts are reported as problems (texts). All other parts are counted. If the number of
    groups is too large, the logs are read twice (`Aggregate`).
    """
    figures = _pass(tier, query, {}, apart, progress)
    full = {name: aggregate.candidates
            for name, aggregate in figures.brokers.items() if aggregate.is_full}
    if full:
        figures = _pass(tier, query, full, apart, None)
    for reason in tier.unreadable(query.topic):
        figures.problems.append(reason)
        figures.is_whole = False
    for _, flat in tier.indexes(query.broker):
        for file in uploaded(flat):
            if isinstance(file, TierIndexFile):
                figures.index_files += 1
                figures.index_items += file.items
                figures.index_bytes += file.size
            else:
                figures.problems.append(str(file))
    return figures


def _pass(tier: Tier, query: TierQuery, only: dict[str, list[Key]], apart: bool,
          progress: Progress | None) -> Figures:
    figures = Figures()
    for queue in tier.queues(query.topic, broker=query.broker):
        name = queue.name.broker if apart else ""
        if name not in figures.brokers:
            figures.brokers[name] = query.start(only.get(name))
        try:
            _queue(queue, figures.brokers[name], figures, progress)
        except StoreIOError as error:
            figures.problems.append(str(error))
            figures.is_whole = False
    return figures


def _queue(queue: FlatQueue, sums: Aggregate, figures: Figures, progress: Progress | None) -> None:
    units = TierUnits(queue)
    units.find_tears()
    slots = SegmentSlots(queue.commit_log, queue.name)
    for segment in queue.commit_log.segments:
        if not segment.usable:
            continue
        with queue.commit_log.walk(segment, cut=True) as walk:
            done = 0
            for batch in slots.batches(walk):
                figures.bytes_other += sum(span.length for span in batch.spans)
                if len(batch):
                    _, has_unit = units.of(batch)
                    figures.orphans += int((~has_unit).sum())
                    figures.bytes_orphaned += int(batch.column("total_size")[~has_unit].sum())
                    sums.add(batch.select(has_unit))
                if progress is not None:
                    progress(walk.position - done)
                    done = walk.position
