"""Intact messages that a broker loses at startup:

* messages that the start truncates
* messages in the log without a consume queue entry
* messages in only one of several files with the same name
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from rmqctl.checks.offset_runs import OffsetRuns
from rmqctl.checks.preflight.effects import CutMessages, LostMessage
from rmqctl.checks.preflight.queues import BatchClaims, RecoveredQueues
from rmqctl.checks.preflight.types import Prediction
from rmqctl.formats.local.consume_queue import FILLER, UNIT
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase
from rmqctl.scan import text
from rmqctl.scan.damage.properties import damaged_properties
from rmqctl.scan.fillers import replaced
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.walk import Walk
from rmqctl.store.files import StoreFile
from rmqctl.store.log.commit_log import CommitLog, packed_records
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue, plain_units
from rmqctl.store.queue.search import begun_at

Progress = Callable[[int], None]
MAX_NAMED = 10_000
"""Maximum number of lost messages that are listed."""
_BLOCK = 1 << 17
_SOME = 4096
_MAX_DISTANCE = 4096
_ENDLESS = 1 << 62


def intact(batch: Batch) -> Array:
    """Return a boolean array: whether each message of a batch is intact."""
    good: Array = batch.crc_ok() | (batch.column("body_length") <= 0)
    return good


def intact_by_topic(log: CommitLog, start: int, end: int) -> dict[str, int]:
    """Return the number of intact messages of each topic in a part of the log."""
    topics = _Topics()
    for batch in log.walk(start, end, whole=True):
        if len(batch):
            topics._take(batch, np.flatnonzero(intact(batch)))
    return dict(sorted(topics.by_topic.items()))


@dataclass(slots=True)
class MessageCounts:
    """Numbers of messages in a log, counted during a scan. ``first_damaged``: physical offset of
    the first message with damaged properties.
    """

    intact: int = 0
    replaced: int = 0
    damaged: int = 0
    first_damaged: int | None = None

    def add(self, batch: Batch, before: int | None = None) -> None:
        """Count the messages of a batch; with ``before``, only messages that start before that
        physical offset.
        """
        if not len(batch):
            return
        good = intact(batch)
        if before is not None:
            good &= batch.offset < before
        damaged = good & damaged_properties(batch)
        if damaged.any():
            good &= ~damaged
            self.damaged += int(damaged.sum())
            self.first_damaged = min(int(batch.offset[damaged][0]),
                                     _ENDLESS if self.first_damaged is None
                                     else self.first_damaged)
        self.intact += int(good.sum())
        self.replaced += int((replaced(batch) & good).sum())

    def fill(self, predicted: Prediction) -> None:
        """Copy the figures into a prediction, with a note on damaged records."""
        predicted.log.messages, predicted.log.replaced = self.intact, self.replaced
        predicted.log.damaged = self.damaged
        if self.damaged:
            predicted.notes.append(Phrase(
                "{count:,} message at {first} has damaged properties or does not match its "
                "appended CRC: its tags and keys may be lost",
                "{count:,} messages, the first at {first}, have damaged properties or do not match "
                "their appended CRC: their tags and keys may be lost", count=self.damaged,
                first=self.first_damaged))


_NOTED = ("queue_id", "queue_offset", "physical_offset", "total_size", "store_timestamp")


class _Topics:
    """Numbers of messages by topic, and a list of the first messages."""

    def __init__(self) -> None:
        self._topics = text.Dictionary()
        self.by_topic: Counter[str] = Counter()
        self.first: list[LostMessage] = []
        self.times: list[int] = []
        """The earliest and the latest store time (ms) of the counted messages; empty if none was
        counted.
        """
        self.undecided = 0
        """Number of counted records that may be messages or part of the body of a damaged message.
        """

    @property
    def total(self) -> int:
        return sum(self.by_topic.values())

    def as_cut(self) -> CutMessages:
        """Return the counted messages as those that a startup truncates."""
        return CutMessages(self.total, self.undecided, dict(sorted(self.by_topic.items())),
                           self.first, *self.times)

    def _take(self, batch: Batch, rows: Array) -> None:
        self._count(self._columns(batch), rows)

    def _columns(self, batch: Batch) -> list[Array]:
        """Return columns of messages: the index of the topic, and the fields `_NOTED`."""
        return [self._topics.encode(text.topics(batch)), *map(batch.column, _NOTED)]

    def _count(self, columns: Sequence[Array], rows: Array) -> None:
        topic, queue_id, offset, place, size, when = (column[rows] for column in columns)
        if len(rows):
            self.times = [min([*self.times[:1], int(when.min())]),
                          max([*self.times[1:], int(when.max())])]
        names = [os.fsdecode(topic) for topic in self._topics.texts]
        for number, count in zip(*np.unique(topic, return_counts=True), strict=True):
            self.by_topic[names[int(number)]] += int(count)
        left = slice(0, MAX_NAMED - len(self.first))
        for number, *rest in zip(*(column[left].tolist() for column in (
                topic, queue_id, offset, place, size, when)), strict=True):
            self.first.append(LostMessage(names[number], *rest))

    def _take_undecided(self, log: CommitLog, batch: Batch, end: int) -> None:
        frames = [frame for span in batch.spans for frame in span.doubtful if frame[0] >= end]
        for start in range(0, len(frames), _SOME):
            place, size = np.array(frames[start:start + _SOME], np.int64).T
            head = log.files[0].head
            records, _ = packed_records(log, place + head, size - head)
            self.undecided += len(records)
            self._take(records, np.arange(len(records)))


class TailMessages(_Topics):
    """Intact messages of a log from physical offset ``end`` on.
    Raises: StoreIOError.
    """

    def __init__(self, log: CommitLog, end: int) -> None:
        super().__init__()
        for number, file in enumerate(log.files):
            if file.end <= end:
                continue
            for batch in Walk(log.source(number), max(0, end - file.base)):
                if len(batch):
                    self._take(batch, np.flatnonzero(intact(batch) & (batch.offset >= end)))
                self._take_undecided(log, batch, end)


class TruncatedMessages(_Topics):
    """Intact messages beyond the end of the log, by topic.

    ``superseded``: number of messages beyond the end whose queue offset belongs to a message before
    the end. An earlier truncation left these messages, which are not counted as lost.
    """

    def __init__(self, queues: RecoveredQueues, end: int) -> None:
        super().__init__()
        self._queues, self._end = queues, end
        self.superseded = 0
        self.offsets: dict[int, OffsetRuns] = {}
        """Queue offsets of the truncated messages, by queue number."""
        self._pending: list[tuple[list[Array], Array, list[BatchClaims]]] = []
        """For each pending batch: the columns of its messages, whether each message counts, and the
        entries that the messages should have.
        """
        self._held = 0

    def collect(self, log: CommitLog, look: Callable[[Batch], None],
                progress: Progress | None = None, *, whether: bool = False) -> None:
        """Collect the messages. ``look`` receives all batches. ``whether``: whether to stop at the
        first message that counts.
        """
        for number, file in enumerate(log.files):
            if file.end <= self._end:
                continue
            for batch in Walk(log.source(number), max(0, self._end - file.base),
                              whole=not whether):
                look(batch)
                for part in _up_to_doubt(batch):
                    if len(part):
                        self._add(part)
                    if whether or self._held >= _BLOCK or any(
                            span.doubtful for span in part.spans):
                        self._settle()
                    self._take_undecided(log, part, self._end)
                    if whether and self.total:
                        return
            if progress is not None:
                progress(file.end - max(file.base, self._end))
        self._settle()

    def _add(self, batch: Batch) -> None:
        self._pending.append((self._columns(batch), intact(batch) & (batch.offset >= self._end), [
            replace(claim, record=claim.record + self._held)
            for claim in self._queues.expected(batch)]))
        self._held += len(batch)

    def _settle(self) -> None:
        """Compare pending messages with the entries on disk, many entries of a queue at a time."""
        if not self._pending:
            return
        columns, masks, lists = zip(*self._pending, strict=True)
        claims = [claim for batch_claims in lists for claim in batch_claims]
        self._pending, self._held = [], 0
        good = np.concatenate(masks)
        old: Array = np.zeros(len(good), bool)
        if claims:
            every = BatchClaims(*(np.concatenate([getattr(claim, field.name) for claim in claims])
                                  for field in fields(BatchClaims)))
            for part in by_queue(every.number):
                queue = self._queues.states[int(every.number[part[0]])].queue
                if isinstance(queue, ConsumeQueue):
                    units = units_at(queue, every.offset[part])
                    other = ((units["physical_offset"] != every.place[part])
                             & (units["physical_offset"] < self._end)
                             & (units["physical_offset"] >= 0) & (units["size"] > 0)
                             & (units["size"] != FILLER.size))
                    old[every.record[part[other]]] = True
        self.superseded += int((old & good).sum())
        good &= ~old
        self._count([*map(np.concatenate, zip(*columns, strict=True))], np.flatnonzero(good))
        if claims:
            collect(self.offsets, every, good[every.record])


def _up_to_doubt(batch: Batch) -> Iterator[Batch]:
    """Yield parts of a batch, each up to a position with undecided records, so that messages are
    listed in log order.
    """
    cuts = [(number, int(np.searchsorted(batch.offset, span.offset)))
            for number, span in enumerate(batch.spans, 1) if span.doubtful]
    if not cuts:
        yield batch
        return
    begin = first = 0
    for behind, end in [*cuts, (len(batch.spans), len(batch))]:
        part = batch.select(slice(first, end))
        part.spans = batch.spans[begin:behind]
        yield part
        begin, first = behind, end


class Unreachable:
    """Messages of the log without an entry in their queue, by topic. Messages of an earlier queue,
    left from a topic that was deleted and created again, are not included.
    """

    def __init__(self, queues: RecoveredQueues, log: CommitLog) -> None:
        self._queues, self._log = queues, log
        self._pending: list[tuple[Array, Array, Array, Array]] = []
        self._held = 0
        self.by_topic: Counter[str] = Counter()
        self.without_row: dict[int, OffsetRuns] = {}
        """Queue offsets of the messages without an entry, by queue number."""
        self._regained: dict[int, OffsetRuns] = {}

    def add(self, batch: Batch, put: Array) -> None:
        """Add records of a batch; the records selected by ``put`` (bool) already have an entry."""
        for claim in self._queues.expected(batch):
            left = ~put[claim.record]
            if left.any():
                self._pending.append((claim.number[left], claim.offset[left], claim.count[left],
                                      claim.place[left]))
                self._held += int(left.sum())
        if self._held >= _BLOCK:
            self.flush()

    def hold(self, number: Array, offset: Array, place: Array) -> None:
        """Count messages, given by queue number, queue offset and position."""
        if len(number):
            self._pending.append((number, offset, np.ones(len(number), np.int64), place))
            self._held += len(number)

    def cut(self, log: CommitLog, end: int) -> None:
        """Count the messages before the end of the log whose entries the truncation removed.

        If an entry wrongly points beyond the end of the log, the truncation also removes all later
        entries.
        """
        # Together, as most queues have few entries.
        held: list[tuple[int, int, Array]] = []
        count = 0
        for number, first, rows in self._removed():
            held.append((number, first, rows))
            count += len(rows)
            if count >= _BLOCK:
                self._count_removed(held, log, end)
                held, count = [], 0
        self._count_removed(held, log, end)

    def _removed(self) -> Iterator[tuple[int, int, Array]]:
        """Yield the entries that a truncation removed, in pages: number of the queue, queue offset
        of the first entry, entries.
        """
        for number, state in enumerate(self._queues.states):
            if state.added or state.end >= state.disk_end or not isinstance(
                    state.queue, ConsumeQueue):
                continue
            with closing(state.queue):
                for first, rows in state.queue.pages(state.end, state.disk_end):
                    yield number, first, rows

    def _count_removed(self, pages: list[tuple[int, int, Array]], log: CommitLog, end: int) -> None:
        """Count the messages before ``end`` to which entries of ``pages`` point."""
        if not pages:
            return
        every = UNIT.array(b"".join(rows.tobytes() for _, _, rows in pages))
        starts = np.cumsum([0, *(len(rows) for _, _, rows in pages)])
        before = np.flatnonzero(every["physical_offset"] < end)
        page_of = np.searchsorted(starts, before, "right") - 1
        for page, row, (place, size) in zip(
                page_of.tolist(), (before - starts[page_of]).tolist(),
                every[before][["physical_offset", "size"]].tolist(), strict=True):
            if size > 0 and size != FILLER.size and log.record_at(place, size) is not None:
                number, first, _ = pages[page]
                self.by_topic[self._queues.states[number].key[0]] += 1
                self.without_row.setdefault(number, OffsetRuns()).add_run(
                    first + row, first + row + 1)

    def regain(self, batch: Batch, put: Array) -> None:
        """Stop counting the records selected by ``put`` (bool) as records without an entry."""
        for claim in self._queues.expected(batch):
            for queue, count in zip(*np.unique(claim.number[put[claim.record]],
                                               return_counts=True), strict=True):
                self.by_topic[self._queues.states[int(queue)].key[0]] -= int(count)
            collect(self._regained, claim, put[claim.record])

    def offsets(self) -> dict[int, OffsetRuns]:
        """Return, by queue number, the queue offsets of messages that remain without an entry."""
        return {number: runs.without(self._regained[number]) if number in self._regained else runs
                for number, runs in self.without_row.items()}

    def flush(self) -> None:
        """Compare pending messages with the entries on disk."""
        if not self._pending:
            return
        number, offset, count, place = map(np.concatenate, zip(*self._pending, strict=True))
        self._pending, self._held = [], 0
        left = np.flatnonzero(~self._plainly_there(number, offset, place))
        for rows in by_queue(number[left]):
            part = left[rows]
            state = self._queues.states[int(number[part[0]])]
            missing: Array = np.ones(len(part), bool)
            if state.queue is not None and state.queue.exists:
                missing = ~_there(state.queue, state.disk_end, offset[part], place[part])
            if missing.any() and isinstance(state.queue, ConsumeQueue):
                with closing(state.queue) as held:
                    missing &= place[part] >= begun_at(held, self._log)
            if missing.any():
                self.by_topic[state.key[0]] += int(missing.sum())
                self.without_row.setdefault(int(number[part[0]]), OffsetRuns()).add(
                    offset[part[missing]], count[part[missing]])

    def _plainly_there(self, number: Array, offset: Array, place: Array) -> Array:
        """Return, for each message, whether an entry exists at its queue offset (bool). This check
        is optimized for stores in which all messages have such an entry.
        """
        # Queue by queue in the order of queue offsets: one read for each, if the offsets are close.
        order = np.lexsort((offset, number))
        starts = np.append(0, np.flatnonzero(np.diff(number[order])) + 1)
        ends = np.append(starts[1:], len(order))
        pages: list[Array] = []
        begin: Array = np.zeros((2, len(starts)), np.int64)
        begin[1] = np.iinfo(np.int64).min  # no entry
        total = 0
        for at, (queue, first, last, end) in enumerate(zip(
                number[order[starts]].tolist(), offset[order[starts]].tolist(),
                offset[order[ends - 1]].tolist(), (ends - starts).tolist(), strict=True)):
            state = self._queues.states[queue]
            if isinstance(state.queue, ConsumeQueue) and first >= state.queue.first_index and (
                    last < state.disk_end) and last - first < end + _MAX_DISTANCE:
                with closing(state.queue) as held:
                    units = plain_units(held.timed_units(first, last + 1 - first))
                begin[:, at] = total - first, len(units) + total
                pages.append(units)
                total += len(units)
        # Compare each message with the entry at its queue offset.
        has_entry: Array = np.zeros(len(number), bool)
        if pages:
            units = np.concatenate(pages)
            begin = np.repeat(begin, ends - starts, axis=1)
            row = begin[0] + offset[order]
            inside = row < begin[1]
            row, which = row[inside], order[inside]
            has_entry[which] = (units["physical_offset"][row] == place[which]) & (
                units["size"][row] > 0) & (units["size"][row] != FILLER.size)
        return has_entry


def _there(queue: ConsumeQueue | BatchQueue, end: int, offset: Array, place: Array) -> Array:
    """Return a boolean array: whether each message has an entry, at any position of the queue."""
    if isinstance(queue, BatchQueue):
        return np.isin(place, queue.all_used()["physical_offset"])
    inside = (offset >= queue.first_index) & (offset < end)
    units = units_at(queue, offset[inside])
    # A filler looks like an entry of the message at 0.
    row = (units["size"] > 0) & (units["size"] != FILLER.size)
    good = row & (units["physical_offset"] == place[inside])
    present: Array = np.zeros(len(place), bool)
    present[inside] = good
    if not present.all():
        # A broker that finds a gap in a queue puts entries at a wrong queue offset (spec §4).
        with closing(queue):
            for _, rows in queue.pages(queue.first_index, end):
                real = rows["physical_offset"][(rows["size"] > 0) & (rows["size"] != FILLER.size)]
                present[~present] = np.isin(place[~present], real)
    return present


def units_at(queue: ConsumeQueue, offset: Array) -> Array:
    """Return the entries with these queue offsets; zeros for entries that do not exist."""
    out: Array = np.zeros(len(offset), queue.timed_units(0, 0).dtype)
    order = np.argsort(offset, kind="stable")
    with closing(queue):
        for part in np.split(order, np.flatnonzero(np.diff(offset[order]) > _MAX_DISTANCE) + 1):
            if not len(part):
                continue
            first = int(offset[part[0]])
            if first < 0 or int(offset[part[-1]]) >= 1 << 58:
                continue
            rows = queue.timed_units(first, int(offset[part[-1]]) + 1 - first)
            index = offset[part] - first
            in_queue = index < len(rows)
            out[part[in_queue]] = rows[index[in_queue]]
    return out


def collect(runs: dict[int, OffsetRuns], claim: BatchClaims, which: Array) -> None:
    """Add the queue offsets of the entries selected by ``which`` (bool) to the ``runs`` of their
    queues.
    """
    rows = np.flatnonzero(which)
    for part in by_queue(claim.number[rows]):
        numbered = rows[part]
        runs.setdefault(int(claim.number[numbered[0]]), OffsetRuns()).add(
            claim.offset[numbered], claim.count[numbered])


def by_queue(number: Array) -> list[Array]:
    """Return, for each distinct queue number, the indices of its items in ``number``."""
    order = np.argsort(number, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(number[order])) + 1) if len(order) else []


class DuplicateFiles(NamedTuple):
    """Log files with the same name in several folders (apache/rocketmq#8859).

    A broker takes the folders in the order of a Java `HashSet`, and sorts the files by bare name.
    The order of two files with the same name is therefore unknown. The broker reads from the first
    file (`MappedFileQueue.findMappedFileByOffset`), and appends to the last. Chance decides whether
    the broker finds data that only one of the files contains.

    ``differing``: number of intact messages before the end of the log that are missing from at
    least one of the files.
    """

    files: list[StoreFile]
    differing: int


def duplicate_files(log: CommitLog, end: int) -> list[DuplicateFiles]:
    """Return the groups of files in ``log`` that have the same name. ``end``: the end of the log.
    Raises: StoreIOError.
    """
    duplicates: list[DuplicateFiles] = []
    for _, group in groupby(enumerate(log.files), lambda numbered: numbered[1].name):
        same = list(group)
        if len(same) > 1:
            numbers = [number for number, _ in same]
            duplicates.append(DuplicateFiles([file for _, file in same], sum(
                _only_here(log, number, numbers, end) for number in numbers)))
    return duplicates


def shadowed_by(log: CommitLog, start: int) -> int:
    """Return how many messages of the log a broker may not find because of a file that starts at
    the physical offset ``start``, inside another file; at least 1.

    The file takes the place of the next one in the broker's list, so messages of the next file are
    read from it, as far as it reaches. If it is the last file, recovery ends in it
    (recovery.md §3), before the messages at and after ``start``.
    Raises: StoreIOError.
    """
    around = log.file_of(start)
    assert around is not None
    low, high = around.end, start + log.file_size
    if not any(file.base >= around.end for file in log.files):
        low, high = start, around.end
    return max(1, sum(len(batch) for batch in log.walk(low, high, whole=True)))


def _only_here(log: CommitLog, number: int, numbers: list[int], end: int) -> int:
    """Return how many intact messages of the file ``number`` are missing from at least one of the
    files ``numbers``. Only messages that start before ``end`` are counted.
    """
    count = 0
    for batch in Walk(log.source(number), 0):
        good = (batch.crc_ok() | (batch.column("body_length") <= 0)) & (batch.offset < end)
        rows = np.flatnonzero(good)
        if not len(rows):
            continue
        start, stop = batch.start[rows], (batch.start + batch.column("total_size"))[rows]
        low, high = int(start[0]), int(stop[-1])
        own = batch.data[low:high]
        differs: Array = np.zeros(len(rows), bool)
        for other in numbers:
            source = log.source(other)
            raw = source.read(batch.base + low - source.base, high - low).ljust(high - low, b"\0")
            seen = np.append(0, np.cumsum(own != np.frombuffer(raw, np.uint8)))
            differs |= seen[stop - low] > seen[start - low]
        count += int(differs.sum())
    return count
