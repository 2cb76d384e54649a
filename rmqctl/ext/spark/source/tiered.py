"""Read tiers: units of consume queues, or ranges of commit logs, and their messages.

A unit points to exactly one message, so consume queues can be divided between any two units. Commit
logs are scanned only for messages that no unit points to (``orphans=include``).

A message is returned if physicalOffset, size and queue offset match its unit, and topic and queue
match the folder. The job fails if planned files are missing. Files that were added after planning
are not read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise

import numpy as np

from rmqctl.errors import NotAStoreError, StoreIOError
from rmqctl.ext.tiered.files.opening import open_reader
from rmqctl.ext.tiered.files.reader import TierReader
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue, QueueName, Segment
from rmqctl.ext.tiered.tier import Tier, index_folder, with_witness
from rmqctl.ext.tiered.witness import KnownItems
from rmqctl.formats import layout
from rmqctl.formats.local.message import MIN_SIZE, Message, Record
from rmqctl.formats.tiered.units import CODA_SIZE, UNIT, UNIT_SIZE, is_coda
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import is_url
from rmqctl.scan.frames import Array, Batch, examine
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.scan.walk import CHUNK
from rmqctl.sql.pushdown import Filters
from rmqctl.sql.schema import TIERED_MESSAGES
from rmqctl.sql.seams import PlannedSource, Seams, shrank, walk_range

_BLOCK_UNITS = 1 << 14
_MAX_HOLE = 64 << 10
"""Maximum size in bytes of a gap between two messages that is read with them instead of skipped."""
_SIZE = layout.field(Message, "total_size")
_PHYSICAL = layout.field(Message, "physical_offset")


@dataclass(frozen=True, slots=True)
class TierQueue:
    """A queue in a tier.

    * ``store``: the path that the user passed
    * ``root``: the path of the tier, to which folders are relative
    * ``log``: start and end of each segment of the commit log when the read was planned
    """

    store: str
    root: str
    cluster: str
    broker: str
    topic: str
    queue_id: int
    log_folder: str
    queue_folder: str
    log: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TierPiece:
    """A range ``[start, end)`` of a segment: numbers of units, or positions in bytes, depending on
    the subclass.
    """

    queue: TierQueue
    segment: Segment
    start: int
    end: int

    @property
    def constants(self) -> dict[str, str | int]:
        """Return the columns that have the same value in all rows, except ``file``."""
        return {"store": self.queue.store, "cluster": self.queue.cluster,
                "broker": self.queue.broker}

    def batches(self) -> Iterator[tuple[str, Batch]]:
        """Yield the messages of the piece in batches, each with the path of its commit log segment.
        Raises: StoreIOError.
        """
        queue = self.queue
        own = Filters(frozenset((queue.topic.encode("utf-8", "surrogateescape"),)),
                      frozenset((queue.queue_id,)))
        with closing(open_reader(queue.root)) as reader:
            for path, batch in self._read(reader):
                if len(batch):
                    yield path, own.of_messages(batch)

    def _read(self, reader: TierReader) -> Iterator[tuple[str, Batch]]:
        raise NotImplementedError


class UnitPiece(TierPiece):
    """The messages of the units ``[start, end)`` of a consume queue segment (numbers of units in
    the file).
    """

    def _read(self, reader: TierReader) -> Iterator[tuple[str, Batch]]:
        return _led_to(reader, self)


class RecordPiece(TierPiece):
    """The records of a commit log segment that begin in ``[start, end)``. Both positions may be
    inside a record.
    """

    def _read(self, reader: TierReader) -> Iterator[tuple[str, Batch]]:
        return _walked(reader, self)


TierItem = tuple[int, Callable[[int, int], TierPiece]]
"""Number of bytes, and a function that returns the piece for a range of these bytes."""


def has_tier(path: str) -> bool:
    """Return whether a path is a tier, or a store that contains one. Raises: StoreIOError."""
    try:
        Tier.open(path).close()
    except NotAStoreError:
        return False
    return True


def holding(table: str, paths: Sequence[str]) -> list[str]:
    """Return the paths from which a table is read.

    These are all paths. For the messages of tiers, they are only the paths with a tier, if any path
    has one.
    """
    return [path for path in paths if table != TIERED_MESSAGES or has_tier(path)] or list(paths)


# -- pieces of a tier, at planning ----------------------------------------------------------------


def of_tier(path: str, filters: Filters, *, orphans: bool) -> Iterator[TierItem]:
    """Yield the items to read from the tier ``path``.
    Raises: NotAStoreError; StoreIOError if a part cannot be read, as its messages would be missing.
    """
    with Tier.open(path if is_url(path) else os.path.abspath(path)) as tier:
        for problem in tier.problems:
            if problem.unreadable:
                raise StoreIOError(f"cannot read {tier.reader.where(problem.path)}: "
                                   f"{problem.reason}")
        for flat in tier.queues():
            if filters.takes_topic(flat.name.topic) and filters.takes_queue(flat.name.queue_id):
                queue = _queue(path, tier.name, flat)
                yield from _records(queue, flat) if orphans else _units(queue, flat)


def _queue(path: str, root: str, flat: FlatQueue) -> TierQueue:
    name, log = flat.name, flat.commit_log
    return TierQueue(path, root, name.cluster, name.broker, name.topic, name.queue_id,
                     log.folder, flat.consume_queue.folder,
                     tuple((segment.base, segment.end)
                           for segment in log.segments if segment.usable))


def _units(queue: TierQueue, flat: FlatQueue) -> Iterator[TierItem]:
    """Yield an item for each segment of the consume queue, with the size of its messages.

    The size is an estimate: all messages are assumed to be equally large.
    """
    segments = [segment for segment in flat.consume_queue.segments if segment.usable >= UNIT_SIZE]
    of_log = sum(segment.usable for segment in flat.commit_log.segments)
    of_rows = sum(segment.usable for segment in segments)
    rows = weight = 0
    for segment in segments:
        rows += segment.usable
        before, weight = weight, of_log * rows // of_rows
        yield _unit_item(queue, segment, max(segment.usable, weight - before))


def _unit_item(queue: TierQueue, segment: Segment, weight: int) -> TierItem:
    count = segment.usable // UNIT_SIZE

    def cut(start: int, end: int) -> UnitPiece:
        return UnitPiece(queue, segment, start * count // weight, end * count // weight)

    return weight, cut


def _records(queue: TierQueue, flat: FlatQueue) -> Iterator[TierItem]:
    for segment in flat.commit_log.segments:
        if segment.usable:
            yield _record_item(queue, segment)


def _record_item(queue: TierQueue, segment: Segment) -> TierItem:
    def cut(start: int, end: int) -> RecordPiece:
        return RecordPiece(queue, segment, start, end)

    return segment.usable, cut


# -- their messages, on executors -----------------------------------------------------------------


def _planned_log(reader: TierReader, queue: TierQueue) -> FlatFile:
    """Return the commit log of a queue. Raises: StoreIOError if it has lost bytes since
    planning.
    """
    log = FlatFile.open(reader, queue.log_folder)
    now = {segment.base: segment for segment in log.segments if segment.usable}
    for start, end in queue.log:
        segment = now.get(start)
        if segment is None:
            raise StoreIOError(f"{reader.where(queue.log_folder)}: the segment at offset {start}, "
                               "present when the job was planned, no longer exists")
        if segment.end < end:
            raise StoreIOError(f"{reader.where(segment.path)}: ends at offset {segment.end}, but "
                               f"ended at {end} when the job was planned: the bytes between are "
                               "missing")
    return log


# -- what units point to ---------------------------------------------------------------------------


def _led_to(reader: TierReader, piece: UnitPiece) -> Iterator[tuple[str, Batch]]:
    log = _planned_log(reader, piece.queue)
    segment = piece.segment
    for start in range(piece.start, piece.end, _BLOCK_UNITS):
        count = min(_BLOCK_UNITS, piece.end - start)
        data = reader.read(segment.path, start * UNIT_SIZE, count * UNIT_SIZE)
        if len(data) < count * UNIT_SIZE:
            raise shrank(reader.where(segment.path), segment.size,
                         start * UNIT_SIZE + len(data))
        units = np.frombuffer(data, UNIT.dtype())
        yield from _UnitMessages(reader, log, units, segment.base // UNIT_SIZE + start).batches()


class _UnitMessages:
    """Reads the messages to which units point, in runs of messages that are near each other."""

    def __init__(self, reader: TierReader, log: FlatFile, units: Array, first: int) -> None:
        self._reader, self._log = reader, log
        self._segments = [segment for segment in log.segments if segment.usable]
        self.offset = units["commit_log_offset"].astype(np.int64)
        self.size = units["size"].astype(np.int64)
        self.number: Array = first + np.arange(len(units), dtype=np.int64)

    def batches(self) -> Iterator[tuple[str, Batch]]:
        if not self._segments:
            return
        base = np.array([segment.base for segment in self._segments], np.int64)
        end = np.array([segment.end for segment in self._segments], np.int64)
        place = np.searchsorted(base, self.offset, "right") - 1
        inside = (place >= 0) & (self.size >= MIN_SIZE) & (self.size <= MAX_RECORD)
        inside &= self.offset < end[np.maximum(place, 0)]
        rows = np.flatnonzero(inside)
        for start, stop in _runs(place[rows], self.offset[rows], self.size[rows],
                                 end[place[rows]]):
            run = rows[start:stop]
            yield from self._run(self._segments[int(place[run[0]])], run)

    def _run(self, segment: Segment, rows: Array) -> Iterator[tuple[str, Batch]]:
        first = int(self.offset[rows[0]])
        length = min(int(self.offset[rows[-1]] + self.size[rows[-1]]), segment.end) - first
        if length > CHUNK and not self._promises(segment, first, int(self.size[rows[0]])):
            return
        data = self._reader.read(segment.path, first - segment.base, length)
        if len(data) < length:
            raise shrank(self._reader.where(segment.path), segment.size,
                         first - segment.base + len(data))
        batch, ok = examine(np.frombuffer(data, np.uint8), first, self.offset[rows] - first)
        codas = [row for row in np.flatnonzero(~ok).tolist()
                 if is_coda(data, int(self.offset[rows[row]]) - first)]
        if not codas:
            yield segment.path, self._proven(batch, np.flatnonzero(ok), rows)
            return
        for before, row in pairwise([-1, *codas, len(rows)]):
            between = before + 1 + np.flatnonzero(ok[before + 1:row])
            yield segment.path, self._proven(batch, between, rows)
            if row < len(rows):
                yield self._behind_coda(segment, int(rows[row]))

    def _promises(self, segment: Segment, physical_offset: int, size: int) -> bool:
        """Return whether a message of ``size`` bytes or a coda seems to be at ``physical_offset``.

        Only then is it worthwhile to read the message.
        """
        head = self._reader.read(segment.path, physical_offset - segment.base, CODA_SIZE)
        return is_coda(head) or int.from_bytes(head[:_SIZE.size], "big", signed=True) == size

    def _proven(self, batch: Batch, good: Array, rows: Array) -> Batch:
        """Return the messages of a batch whose size and queue offset match their units.

        ``good``: indices of the valid messages in the batch.
        """
        records = batch.select(good)
        units = rows[good]
        keep = records.column("total_size") == self.size[units]
        keep &= records.column("queue_offset") == self.number[units]
        return records if keep.all() else records.select(np.flatnonzero(keep))

    def _behind_coda(self, segment: Segment, row: int) -> tuple[str, Batch]:
        """Return the message of a unit that points to a coda. A broker skips the coda (tiered.md
        §3).
        """
        physical_offset = int(self.offset[row]) + CODA_SIZE
        data = self._log.read(physical_offset, int(self.size[row])) or bytes(1)
        holder = self._log.segment_of(physical_offset) or segment
        recorded = int.from_bytes(data[_PHYSICAL.offset:][:_PHYSICAL.size], "big", signed=True)
        base = recorded if recorded == physical_offset - CODA_SIZE else physical_offset
        batch, ok = examine(np.frombuffer(data, np.uint8), base, np.zeros(1, np.int64))
        return holder.path, self._proven(batch, np.flatnonzero(ok), np.array([row]))


def _runs(place: Array, offset: Array, size: Array, end: Array) -> Iterator[tuple[int, int]]:
    """Yield ranges of units whose messages are read together.

    The messages of a range are in one segment, in order, near each other, and about 2 MiB in total.
    A unit whose message would extend past the segment's end forms a separate range.
    """
    if not len(offset):
        return
    stop = offset + size
    crossing = stop > end
    broken = (place[1:] != place[:-1]) | (offset[1:] < stop[:-1]) | (
        offset[1:] - stop[:-1] > _MAX_HOLE) | crossing[1:] | crossing[:-1]
    for first, last in pairwise([0, *(np.flatnonzero(broken) + 1).tolist(), len(offset)]):
        start = first
        while start < last:
            within = start + int(np.searchsorted(stop[start:last], offset[start] + CHUNK, "right"))
            yield start, max(within, start + 1)
            start = max(within, start + 1)


# -- all of a commit log --------------------------------------------------------------------------


def _walked(reader: TierReader, piece: RecordPiece) -> Iterator[tuple[str, Batch]]:
    segment, queue = piece.segment, piece.queue
    items = KnownItems(reader, index_folder(queue.cluster, queue.broker), None)
    flat = with_witness(FlatQueue(
        QueueName(queue.cluster, queue.broker, queue.topic, queue.queue_id),
        FlatFile.open(reader, queue.log_folder), FlatFile.open(reader, queue.queue_folder)),
        lambda: items)
    with closing(items), flat.commit_log.source(segment) as source:
        planned = PlannedSource(source, segment.usable)
        seams = Seams(planned, _Proof(flat.consume_queue))
        for batch in walk_range(planned, seams, piece.start, piece.end,
                                last=piece.end == segment.usable):
            yield segment.path, batch


class _Proof:
    """Determines whether the consume queue proves a record.

    The unit at the record's queue offset must contain the record's position and size.
    """

    def __init__(self, units: FlatFile) -> None:
        self._units = units

    def __call__(self, record: Record) -> bool:
        try:
            data = self._units.read(record.queue_offset * UNIT_SIZE, UNIT_SIZE)
        except StoreIOError:
            return False
        if len(data) < UNIT_SIZE:
            return False
        unit = UNIT.decode(data)
        return (unit.commit_log_offset == record.physical_offset
                and unit.size == record.total_size)
