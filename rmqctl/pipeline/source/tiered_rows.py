"""The messages of a piece of a tier, as batches of frames. Runs on executors.

A message counts when its unit leads to it and it says so itself: its place, its size and its
queue offset, and that topic and queue are those of the folder. What was planned and is not there
any more ends the job with its name; what was added since is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.formats import layout
from rmqctl.formats.local.message import MIN_SIZE, Message, Record
from rmqctl.formats.tiered.units import CODA_SIZE, UNIT, UNIT_SIZE, is_coda
from rmqctl.pipeline.source.pushdown import Filters
from rmqctl.pipeline.source.seams import Seams, walk_range
from rmqctl.pipeline.source.tiered import RecordPiece, TierPiece, TierQueue, UnitPiece
from rmqctl.scan.frames import Array, Batch, examine
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.scan.source import Source
from rmqctl.scan.walk import CHUNK
from rmqctl.tiered.files.opening import open_reader
from rmqctl.tiered.files.reader import Reader, close_source
from rmqctl.tiered.flat_file import FlatFile, Segment

_BLOCK_UNITS = 1 << 14
_HOLE = 64 << 10
"""Bytes between two messages that are rather read with them than jumped over."""
_SIZE = layout.field(Message, "total_size")
_PHYSICAL = layout.field(Message, "physical_offset")


def batches(piece: TierPiece) -> Iterator[tuple[str, Batch]]:
    """(commit log segment, messages that lie in it) of a piece. StoreIOError."""
    queue = piece.queue
    own = Filters(frozenset((queue.topic.encode("utf-8", "surrogateescape"),)),
                  frozenset((queue.queue_id,)))
    with closing(open_reader(queue.root)) as reader:
        made = _led_to(reader, piece) if isinstance(piece, UnitPiece) else _walked(reader, piece)
        for path, batch in made:
            if len(batch):
                yield path, own.of_messages(batch)


# -- what units lead to ---------------------------------------------------------------------------

def _led_to(reader: Reader, piece: UnitPiece) -> Iterator[tuple[str, Batch]]:
    log = _planned_log(reader, piece.queue)
    segment = piece.segment
    for start in range(piece.start, piece.end, _BLOCK_UNITS):
        count = min(_BLOCK_UNITS, piece.end - start)
        data = reader.read(segment.path, start * UNIT_SIZE, count * UNIT_SIZE)
        if len(data) < count * UNIT_SIZE:
            raise _shrank(reader, segment, start * UNIT_SIZE + len(data))
        units = np.frombuffer(data, UNIT.dtype())
        yield from _Units(reader, log, units, segment.base // UNIT_SIZE + start).batches()


def _planned_log(reader: Reader, queue: TierQueue) -> FlatFile:
    """The commit log, which has all that it had at planning."""
    log = FlatFile.open(reader, queue.log_folder)
    now = {one.base: one for one in log.segments if one.usable}
    for start, end in queue.log:
        one = now.get(start)
        if one is None:
            raise StoreIOError(f"{reader.where(queue.log_folder)}: the segment of offset {start} "
                               "is not there any more: what it had when the job was planned is "
                               "missing")
        if one.end < end:
            raise StoreIOError(f"{reader.where(one.path)}: it ends at offset {one.end}, at {end} "
                               "when the job was planned: what was there is missing")
    return log


class _Units:
    """The messages of some units, read in runs of messages that follow each other."""

    def __init__(self, reader: Reader, log: FlatFile, units: Array, first: int) -> None:
        self._reader, self._log = reader, log
        self._segments = [one for one in log.segments if one.usable]
        self.offset = units["commit_log_offset"].astype(np.int64)
        self.size = units["size"].astype(np.int64)
        self.number: Array = first + np.arange(len(units), dtype=np.int64)

    def batches(self) -> Iterator[tuple[str, Batch]]:
        if not self._segments:
            return
        base = np.array([one.base for one in self._segments], np.int64)
        end = np.array([one.end for one in self._segments], np.int64)
        place = np.searchsorted(base, self.offset, "right") - 1
        inside = (place >= 0) & (self.size >= MIN_SIZE) & (self.size <= MAX_RECORD)
        inside &= self.offset < end[np.maximum(place, 0)]
        rows = np.flatnonzero(inside)
        for start, stop in _runs(place[rows], self.offset[rows], self.size[rows],
                                 end[place[rows]]):
            some = rows[start:stop]
            yield from self._run(self._segments[int(place[some[0]])], some)

    def _run(self, segment: Segment, rows: Array) -> Iterator[tuple[str, Batch]]:
        first = int(self.offset[rows[0]])
        length = min(int(self.offset[rows[-1]] + self.size[rows[-1]]), segment.end) - first
        if length > CHUNK and not self._promises(segment, first, int(self.size[rows[0]])):
            return
        data = self._reader.read(segment.path, first - segment.base, length)
        if len(data) < length:
            raise _shrank(self._reader, segment, first - segment.base + len(data))
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

    def _promises(self, segment: Segment, at: int, size: int) -> bool:
        """Whether a message, or a coda, of which a unit says it is so large is worth reading."""
        head = self._reader.read(segment.path, at - segment.base, CODA_SIZE)
        return is_coda(head) or int.from_bytes(head[:_SIZE.size], "big", signed=True) == size

    def _proven(self, batch: Batch, good: Array, rows: Array) -> Batch:
        """The messages ``good`` of a batch whose size and queue offset are those of their units."""
        found = batch.select(good)
        units = rows[good]
        keep = found.column("total_size") == self.size[units]
        keep &= found.column("queue_offset") == self.number[units]
        return found if keep.all() else found.select(np.flatnonzero(keep))

    def _behind_coda(self, segment: Segment, row: int) -> tuple[str, Batch]:
        """The message of a unit that leads to a coda: a broker passes over it (tiered.md §3)."""
        at = int(self.offset[row]) + CODA_SIZE
        data = self._log.read(at, int(self.size[row])) or bytes(1)
        holder = self._log.segment_of(at) or segment
        said = int.from_bytes(data[_PHYSICAL.offset:][:_PHYSICAL.size], "big", signed=True)
        base = said if said == at - CODA_SIZE else at
        batch, ok = examine(np.frombuffer(data, np.uint8), base, np.zeros(1, np.int64))
        return holder.path, self._proven(batch, np.flatnonzero(ok), np.array([row]))


def _runs(place: Array, offset: Array, size: Array, end: Array) -> Iterator[tuple[int, int]]:
    """Ranges of units of one segment, in order and near to each other, of about 2 MiB.

    A unit whose message would reach behind its segment comes alone.
    """
    if not len(offset):
        return
    stop = offset + size
    crossing = stop > end
    broken = (place[1:] != place[:-1]) | (offset[1:] < stop[:-1]) | (
        offset[1:] - stop[:-1] > _HOLE) | crossing[1:] | crossing[:-1]
    for first, last in pairwise([0, *(np.flatnonzero(broken) + 1).tolist(), len(offset)]):
        start = first
        while start < last:
            within = start + int(np.searchsorted(stop[start:last], offset[start] + CHUNK, "right"))
            yield start, max(within, start + 1)
            start = max(within, start + 1)


# -- all of a commit log --------------------------------------------------------------------------

def _walked(reader: Reader, piece: RecordPiece) -> Iterator[tuple[str, Batch]]:
    segment = piece.segment
    with _source(reader, segment) as source:
        if source.size < segment.usable:
            raise _shrank(reader, segment, source.size)
        planned = _Planned(source, segment.usable)
        seams = Seams(planned, _Proof(FlatFile.open(reader, piece.queue.queue_folder)))
        for batch in walk_range(planned, seams, piece.start, piece.end,
                                last=piece.end == segment.usable):
            yield segment.path, batch


class _Proof:
    """A record is proven when the unit of its queue offset leads to just its place and size."""

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


class _Planned:
    """A source with the bytes it had at planning, and none of what has been appended since."""

    def __init__(self, source: Source, size: int) -> None:
        self.name, self.base, self.size, self._source = source.name, source.base, size, source
        self.witness = source.witness

    def read(self, position: int, length: int) -> bytes:
        return self._source.read(position, max(min(length, self.size - position), 0))

    def read_into(self, buffer: memoryview, position: int) -> int:
        return self._source.read_into(buffer[:max(self.size - position, 0)], position)

    def next_data(self, position: int) -> int:
        return min(self._source.next_data(position), self.size)


@contextmanager
def _source(reader: Reader, segment: Segment) -> Iterator[Source]:
    source = reader.source(segment.path, segment.base)
    try:
        yield source
    finally:
        close_source(source)


def _shrank(reader: Reader, segment: Segment, size: int) -> StoreIOError:
    return StoreIOError(f"{reader.where(segment.path)}: the file shrank from {segment.size} to "
                        f"{size} bytes since the job was planned: what was there is missing")
