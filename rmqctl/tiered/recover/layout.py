"""Which files a healed consume queue has: those there are, and new ones between and behind them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rmqctl.formats.tiered.metadata import Metadata
from rmqctl.formats.tiered.names import CONSUME_QUEUE
from rmqctl.formats.tiered.units import UNIT_SIZE
from rmqctl.tiered.dispatch.settings import recall
from rmqctl.tiered.flat_file import FlatFile, Segment
from rmqctl.tiered.recover.units import Run
from rmqctl.tiered.tier import Tier

DEFAULT_MAX = 104_857_600
"""A broker's ``tieredStoreConsumeQueueMaxSize`` in bytes."""


def split_names(flat: FlatFile, unit: int = 1) -> tuple[FlatFile, list[Segment], list[Segment]]:
    """(the segments that a broker may find, one for each base; those with a wrong hash in the
    name and none beside them that has the right one; those that cannot be).

    The second ones are among the first. ``unit``: what bases have to be a multiple of.
    """
    good: dict[int, Segment] = {}
    renamed, wrong = [], []
    for one in sorted(flat.segments, key=lambda one: (one.base, not one.name_ok, one.name)):
        if one.base % unit or one.base in good:
            wrong.append(one)
            continue
        good[one.base] = one
        if not one.name_ok:
            renamed.append(one)
    bases = sorted(good)
    segments = []
    for at, base in enumerate(bases):
        one = good[base]
        usable = min(one.size, bases[at + 1] - base) if at + 1 < len(bases) else one.size
        segments.append(Segment(one.path, base, one.size, usable, one.mtime_ms, one.name_ok))
    return FlatFile(flat.reader, flat.folder, flat.kind, segments), renamed, wrong


def at_their_places(log: FlatFile, misplaced: Sequence[tuple[Segment, int]]) -> tuple[
        FlatFile, bool]:
    """(the log with segments where their messages say they begin, whether any is moved): those for
    which there is room between the others.
    """
    changes = {one.path: base for one, base in misplaced}
    ordered = sorted(((changes.get(one.path, one.base), one) for one in log.segments),
                     key=lambda each: each[0])
    for (base, one), (following, other) in pairwise(ordered):
        if base + one.size > following and not changes.keys().isdisjoint((one.path, other.path)):
            return log, False
    segments = []
    for at, (base, one) in enumerate(ordered):
        usable = min(one.size, ordered[at + 1][0] - base) if at + 1 < len(ordered) else one.size
        good = one.name_ok and one.path not in changes
        segments.append(Segment(one.path, base, one.size, usable, one.mtime_ms, good))
    return FlatFile(log.reader, log.folder, log.kind, segments), True


def max_units(tier: Tier, given: int | None, metadata: Metadata) -> int:
    """How many units a consume queue file takes: as given, as noted in the tier, as other files
    that are full have, as metadata says of some, or a broker's default.
    """
    if given is not None:
        return max(given // UNIT_SIZE, 1)
    noted = recall(tier.reader)[0].get("consume_queue_max")
    if noted is not None:
        return max(noted // UNIT_SIZE, 1)
    sizes = []
    for queue in tier.queues():
        bases = sorted({one.base for one in queue.consume_queue.segments
                        if one.base % UNIT_SIZE == 0})
        sizes += [other - one for one, other in pairwise(bases)]
    for table in metadata.segments[CONSUME_QUEUE].values():
        bases = sorted(table)
        sizes += [other - one for one, other in pairwise(bases)]
    # A lost file makes a distance larger, never smaller.
    return max(min(sizes, default=DEFAULT_MAX) // UNIT_SIZE, 1)


@dataclass(frozen=True, slots=True)
class Place:
    """A file of the healed queue: queue offsets ``[start, end)``; the segment that is there."""

    start: int
    end: int
    segment: Segment | None

    @property
    def base(self) -> int:
        return self.start * UNIT_SIZE


def lay_out(runs: Iterable[Run], segments: Sequence[Segment], kept: Iterable[Run],
            known: Iterable[int], most: int) -> list[Place]:
    """The files for ``runs``. ``kept``: the units that count of each segment; ``known``: bases
    that metadata has; ``most``: units in a file.
    """
    there = {run.start: (one, run) for one, run in zip(segments, kept, strict=True)}
    filled = [run for _, run in there.values() if run.start < run.end]
    cuts = set(there)
    cuts.update(base // UNIT_SIZE for base in known if base % UNIT_SIZE == 0 and not any(
        run.start < base // UNIT_SIZE < run.end for run in filled))
    ordered = sorted(cuts)
    found = []
    for run in runs:
        start = run.start
        while start < run.end:
            segment, own = there.get(start, (None, None))
            end = start + max(most, own.end - own.start if own else 0)
            at = bisect_right(ordered, start)
            end = min(end, ordered[at] if at < len(ordered) else run.end, run.end)
            found.append(Place(start, end, segment))
            start = end
    return found
