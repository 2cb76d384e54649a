"""Rebuild the consume queue of a queue (tiered.md §4, §17.6).

Units that point to their messages are kept. All other units are created from the messages. A queue
offset that has neither a unit nor a message remains a hole. New files never span a hole, because a
broker that reads across a hole returns wrong messages. Existing files keep their holes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import NamedTuple

import numpy as np

from rmqctl.checks.verify.queue.rows import merged
from rmqctl.ext.tiered.files.settings import recall
from rmqctl.ext.tiered.flat_file import BLOCK_UNITS, FlatFile, Segment
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.local import message
from rmqctl.formats.tiered.metadata import Metadata
from rmqctl.formats.tiered.names import CONSUME_QUEUE
from rmqctl.formats.tiered.units import CODA_SIZE, NEVER, UNIT, UNIT_SIZE, UnitRecord, is_coda
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array

_DTYPE = UNIT.dtype()
_MAX_LOST = 1000
DEFAULT_MAX = 104_857_600
"""A broker's ``tieredStoreConsumeQueueMaxSize`` in bytes."""


class OffsetRun(NamedTuple):
    """A range of queue offsets, ``[start, end)``, without a hole."""

    start: int
    end: int


class Expected:
    """The units computed from a queue's messages. If several messages have the same queue offset,
    the last message is used.
    """

    def __init__(self, rows: Array) -> None:
        self.rows = rows
        offsets = rows["queue_offset"]
        self._order: Array | None = None
        self.repeated = 0
        if len(rows) > 1 and not _ascends(offsets):
            order = np.argsort(offsets, kind="stable")
            ordered = offsets[order]
            last = np.append(ordered[1:] != ordered[:-1], True)
            self._order, self.offsets = order[last], ordered[last]
            self.repeated = len(rows) - len(self.offsets)
        else:
            self.offsets = offsets
        borders = breaks(self.offsets)
        starts = np.concatenate([np.zeros(min(len(self.offsets), 1), np.int64), borders])
        ends = np.append(borders, len(self.offsets))[:len(starts)] - 1
        self.runs = [OffsetRun(int(first), int(other) + 1) for first, other in zip(
            self.offsets[starts], self.offsets[ends], strict=True)]

    def run_of(self, queue_offset: int) -> OffsetRun | None:
        """Return the run that contains a queue offset; None if no run contains it."""
        number = bisect_right(self.runs, queue_offset, key=lambda run: run.start) - 1
        if number >= 0 and queue_offset < self.runs[number].end:
            return self.runs[number]
        return None

    def find(self, queue_offsets: Array) -> tuple[Array, Array]:
        """Return two arrays: whether each queue offset has a message, and the rows of these
        messages.
        """
        if not len(self.offsets):
            return (np.zeros(len(queue_offsets), bool),
                    np.zeros(len(queue_offsets), self.rows.dtype))
        number = np.minimum(np.searchsorted(self.offsets, queue_offsets), len(self.offsets) - 1)
        has = self.offsets[number] == queue_offsets
        row = number if self._order is None else self._order[number]
        return has, self.rows[row]


def _ascends(offsets: Array) -> bool:
    step = 1 << 20
    return all(bool((np.diff(offsets[start:start + step + 1]) > 0).all())
               for start in range(0, len(offsets) - 1, step))


def breaks(offsets: Array) -> Array:
    """Return the positions of values that are not the previous value plus one."""
    step = 1 << 20
    numbers = [np.flatnonzero(np.diff(offsets[start:start + step + 1]) != 1) + start + 1
               for start in range(0, len(offsets) - 1, step)]
    return np.concatenate(numbers).astype(np.int64) if numbers else np.zeros(0, np.int64)


@dataclass(slots=True)
class UnitCounts:
    """Counts of units by outcome.

    ``added``: units built for queue offsets without a unit. ``unknown``: units that point into the
    log, but not to an intact message.
    """

    sound: int = 0
    expired: int = 0
    wrong: int = 0
    added: int = 0
    unknown: int = 0


class RebuiltUnits:
    """The existing and the expected units of a queue."""

    def __init__(self, log: FlatFile, queue: FlatFile, expected: Expected,
                 damaged: Sequence[tuple[int, int, int]] = ()) -> None:
        self.log, self.queue, self.expected = log, queue, expected
        self._damaged: Array = np.array(sorted(damaged), np.int64).reshape(-1, 3)
        """For each damaged message, its queue offset, and the start and end of the bytes that
        contain it.
        """
        self.counts = UnitCounts()
        self.cut = 0
        """Number of units at the end that are dropped because they do not point to a message."""
        self.lost: list[tuple[int, UnitRecord]] = []
        """The first dropped units that once pointed to a message, with their queue offsets."""
        self._kept = {segment.base: OffsetRun(segment.base // UNIT_SIZE, segment.end // UNIT_SIZE)
                      for segment in queue.segments}
        self._trim()
        self.runs = self._runs()

    @property
    def damaged(self) -> int:
        """Number of queue offsets whose messages are damaged, so that only damaged bytes remain."""
        return len(self._damaged)

    @property
    def first_damaged(self) -> int:
        return int(self._damaged[0, 0])

    # -- what is there ----------------------------------------------------------------------------

    def kept(self, segment: Segment) -> OffsetRun:
        """Return the range of a segment's queue offsets whose units are kept."""
        return self._kept[segment.base]

    def _existing(self, start: int, end: int) -> tuple[Array, Array]:
        """Return the units of ``[start, end)``, with zeros for missing units, and a boolean array:
        whether each unit exists.
        """
        units: Array = np.zeros(end - start, _DTYPE)
        present: Array = np.zeros(end - start, bool)
        for segment in self.queue.segments:
            sound_run = self._kept[segment.base]
            low, high = max(start, sound_run.start), min(end, sound_run.end)
            if low >= high:
                continue
            data = self.queue.reader.read(segment.path, low * UNIT_SIZE - segment.base,
                                          (high - low) * UNIT_SIZE)
            read = np.frombuffer(data, _DTYPE, len(data) // UNIT_SIZE)
            units[low - start:low - start + len(read)] = read
            present[low - start:low - start + len(read)] = True
        return units, present

    def _sound(self, first: int, units: Array) -> Array:
        """Return a boolean array: True if the unit points to the message of its queue offset, or to
        a copy of this message.
        """
        rows = self.expected.rows
        good: Array = np.zeros(len(units), bool)
        if not len(rows):
            return good
        offset = units["commit_log_offset"].astype(np.int64)
        for skipped in (0, CODA_SIZE):  # a broker skips a coda before the message (§3)
            number = np.minimum(np.searchsorted(rows["position"], offset + skipped), len(rows) - 1)
            row = rows[number]
            fits = ((row["position"] == offset + skipped) & (row["size"] == units["size"])
                    & (row["queue_offset"] == first + np.arange(len(units)))
                    & (row["tags_code"] == units["tags_code"]) & ~good)
            for unit in np.flatnonzero(fits).tolist() if skipped else ():
                fits[unit] = is_coda(self.log.read(int(offset[unit]), skipped))
            good |= fits
            if good.all():
                break
        return good

    def _leads_to_damage(self, first: int, units: Array) -> Array:
        """Return a boolean array: whether each unit points to the damaged bytes of its message."""
        inside: Array = np.zeros(len(units), bool)
        low, high = np.searchsorted(self._damaged[:, 0], (first, first + len(units)))
        for queue_offset, start, stop in self._damaged[low:high].tolist():
            offset, size, _ = units[queue_offset - first].tolist()
            inside[queue_offset - first] = start <= offset and size >= message.MIN_SIZE and (
                offset + size <= stop)
        return inside

    def _leads_inside(self, units: Array) -> Array:
        """Return a boolean array: whether each unit points to bytes of the log, or to expired
        bytes.
        """
        offset = units["commit_log_offset"].astype(np.int64)
        size = units["size"].astype(np.int64)
        inside: Array = ((offset >= 0) & (offset < self.log.end) & (size >= message.MIN_SIZE)
                         & (size <= self.log.end - np.minimum(offset, self.log.end)))
        return inside

    def _trim(self) -> None:
        """Drop units at the end that point past the end of the log and have no message. If such a
        unit remained, a broker would write its next messages at the offset to which the unit
        points.
        """
        for segment in reversed(self.queue.segments):
            sound_run = self._kept[segment.base]
            end = sound_run.end
            while end > sound_run.start:
                start = max(sound_run.start, end - BLOCK_UNITS)
                units, _ = self._existing(start, end)
                counts = self._leads_inside(units) | self.expected.find(np.arange(start, end))[0]
                rows = np.flatnonzero(counts)
                if len(rows):
                    stop = start + int(rows[-1]) + 1
                    self._leave_out(stop, units[stop - start:])
                    self._kept[segment.base] = OffsetRun(sound_run.start, stop)
                    return
                self._leave_out(start, units)
                end = start
            self._kept[segment.base] = OffsetRun(sound_run.start, sound_run.start)

    def _leave_out(self, start: int, units: Array) -> None:
        self.cut += len(units)
        room = _MAX_LOST - len(self.lost)
        for number, unit in enumerate(units[:room].tolist()):
            if unit[0] >= self.log.start and unit[1] >= message.MIN_SIZE:
                self.lost.append((start + number, UnitRecord(*unit)))

    # -- what has to be ---------------------------------------------------------------------------

    def _runs(self) -> list[OffsetRun]:
        runs = _joined(sound_run for sound_run in (self._kept[segment.base]
                                                   for segment in self.queue.segments)
                       if sound_run.start < sound_run.end)
        # Without units, start with the newest messages: a broker continues after them.
        return runs or self.expected.runs[-1:]

    def fill(self, *, before: bool, behind: bool) -> None:
        """Extend the runs of units by adjacent messages. Runs are always extended towards each
        other.

        ``before``: also extend the first run backwards. ``behind``: also extend the last run
        forwards.
        """
        runs, last = self.runs, len(self.runs) - 1
        for number, run in enumerate(runs):
            start, end = run.start, run.end
            left = self.expected.run_of(start - 1) if number or before else None
            if left is not None:
                start = max(left.start, runs[number - 1].end) if number else left.start
            right = self.expected.run_of(end) if number < last or behind else None
            if right is not None:
                end = min(right.end, runs[number + 1].start) if number < last else right.end
            runs[number] = OffsetRun(start, end)
        self.runs = _joined(runs)

    def content(self, start: int, end: int) -> tuple[Array, bool]:
        """Return the units of ``[start, end)``, which is part of a run, and whether any of them
        changes. Add the outcomes to ``counts``.
        """
        units, present = self._existing(start, end)
        sound = present & self._sound(start, units)
        has, rows = self.expected.find(np.arange(start, end))
        offset = units["commit_log_offset"].astype(np.int64)
        first = self.expected.offsets[0] if len(self.expected.offsets) else 1 << 62
        expired = present & ~sound & (offset >= 0) & (offset < self.log.start) & (
            np.arange(start, end) < first)
        stays = present & self._leads_to_damage(start, units)
        wrong = ~sound & ~expired & ~stays & has
        for name, value in (("commit_log_offset", "position"), ("size", "size"),
                            ("tags_code", "tags_code")):
            units[name][wrong] = rows[value][wrong]
        counts = self.counts
        counts.sound += int(sound.sum())
        counts.expired += int(expired.sum())
        counts.wrong += int((wrong & present).sum())
        counts.added += int((wrong & ~present).sum())
        counts.unknown += int((present & ~sound & ~expired & (stays | ~has)).sum())
        return units, bool(wrong.any())

    def blocks(self, start: int, end: int) -> Iterator[tuple[Array, bool]]:
        """Yield the `content` of a range, a block at a time."""
        for first in range(start, end, BLOCK_UNITS):
            yield self.content(first, min(end, first + BLOCK_UNITS))

    def times(self, start: int, units: Array) -> tuple[int, int, bool]:
        """Return the earliest and the latest store time of the units' messages, and whether all
        store times are known. The times are `NEVER` without a message.
        """
        numbers = np.arange(start, start + len(units))
        has, rows = self.expected.find(numbers)
        has &= ~np.isin(numbers, self._damaged[:, 0])
        if not has.any():
            return NEVER, NEVER, False
        times = rows["store_time"][has]
        return int(times.min()), int(times.max()), bool(has.all())

    def missing(self) -> list[OffsetRun]:
        """Return the runs of queue offsets whose messages get no unit, because a hole separates
        them from the runs of units.
        """
        missing = []
        for messages in self.expected.runs:
            start = messages.start
            for run in self.runs:
                if run.start > start and start < messages.end:
                    missing.append(OffsetRun(start, min(messages.end, run.start)))
                start = max(start, min(run.end, messages.end))
            if start < messages.end:
                missing.append(OffsetRun(start, messages.end))
        return [run for run in missing if run.start < run.end]


def _joined(runs: Iterable[OffsetRun]) -> list[OffsetRun]:
    """Merge adjacent runs."""
    return [OffsetRun(*interval) for interval in merged(runs)]


# -- files ----------------------------------------------------------------------------------------

def split_names(flat: FlatFile, unit: int = 1) -> tuple[FlatFile, list[Segment]]:
    """Return a flat file with at most one segment for each base, and the other segments.

    A segment with a wrong hash in its name is used only if no other segment has its base. ``unit``:
    each base must be a multiple of this value.
    """
    good: dict[int, Segment] = {}
    wrong = []
    for segment in sorted(flat.segments,
                          key=lambda segment: (segment.base, not segment.name_ok, segment.name)):
        if segment.base % unit or segment.base in good:
            wrong.append(segment)
        else:
            good[segment.base] = segment
    return _without_overlaps(flat, list(good.values())), wrong


def _without_overlaps(flat: FlatFile, segments: Sequence[Segment]) -> FlatFile:
    """Return a flat file of these segments (ordered). Each segment is usable up to the next
    segment.
    """
    return replace(flat, strange=[], segments=[
        replace(segment, usable=segment.size if following is None else
                min(segment.size, following.base - segment.base))
        for segment, following in zip_longest(segments, segments[1:])])


def wrong_names(flat: FlatFile) -> list[Segment]:
    """Return the segments with a wrong hash in the name: a broker would not find them."""
    return [segment for segment in flat.segments if not segment.name_ok]


def at_their_places(log: FlatFile, misplaced: Sequence[tuple[Segment, int]]) -> tuple[
        FlatFile, bool]:
    """Move the misplaced segments to the bases that their messages imply. Return the log, and
    whether segments were moved.

    No segment is moved if one of the misplaced segments would overlap another segment.
    """
    bases = {segment.path: base for segment, base in misplaced}
    segments = sorted((replace(segment, base=bases[segment.path], name_ok=False)
                       if segment.path in bases
                       else segment for segment in log.segments), key=lambda segment: segment.base)
    for segment, other in pairwise(segments):
        if segment.base + segment.size > other.base and not bases.keys().isdisjoint(
                (segment.path, other.path)):
            return log, False
    return _without_overlaps(log, segments), True


def max_units(tier: Tier, given: int | None, metadata: Metadata) -> int:
    """Return the maximum number of units in a consume queue file.

    This is the first known of these values: the given number, the number noted in the tier, the
    smallest distance between two files, a broker's default.
    """
    if given is not None:
        return max(given // UNIT_SIZE, 1)
    noted = recall(tier.reader)[0].get("consume_queue_max")
    if noted is not None:
        return max(noted // UNIT_SIZE, 1)
    sizes = []
    for queue in tier.queues():
        bases = sorted({segment.base for segment in queue.consume_queue.segments
                        if segment.base % UNIT_SIZE == 0})
        sizes += [other - low for low, other in pairwise(bases)]
    for table in metadata.segments[CONSUME_QUEUE].values():
        bases = sorted(table)
        sizes += [other - low for low, other in pairwise(bases)]
    # A lost file makes a distance larger, never smaller.
    return max(min(sizes, default=DEFAULT_MAX) // UNIT_SIZE, 1)


@dataclass(frozen=True, slots=True)
class UnitFile:
    """A file of the recovered consume queue: its queue offsets ``[start, end)``, and the existing
    segment (None for a new file).
    """

    start: int
    end: int
    segment: Segment | None

    @property
    def base(self) -> int:
        return self.start * UNIT_SIZE


def unit_files(runs: Iterable[OffsetRun], segments: Sequence[Segment],
               sound_runs: Iterable[OffsetRun], entry_bases: Iterable[int],
               most: int) -> list[UnitFile]:
    """Return the consume queue files for ``runs``.

    ``sound_runs``: for each segment, the run of units that are kept.
    ``entry_bases``: bases of the files in the metadata.
    ``most``: maximum number of units in a file.
    """
    # Files begin at existing files, and at files in the metadata unless another contains them.
    present = {run.start: (segment, run) for segment, run in zip(segments, sound_runs, strict=True)}
    filled = [run for _, run in present.values() if run.start < run.end]
    starts = set(present)
    starts.update(base // UNIT_SIZE for base in entry_bases if base % UNIT_SIZE == 0 and not any(
        run.start < base // UNIT_SIZE < run.end for run in filled))
    ordered = sorted(starts)
    # Divide runs at these offsets and where a file is full.
    files = []
    for run in runs:
        start = run.start
        while start < run.end:
            segment, own = present.get(start, (None, None))
            end = start + max(most, own.end - own.start if own else 0)
            following = bisect_right(ordered, start)
            end = min(end, ordered[following] if following < len(ordered) else run.end, run.end)
            files.append(UnitFile(start, end, segment))
            start = end
    return files
