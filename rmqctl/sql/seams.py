"""Seams: the positions at which tasks divide the frames of a log file.

A log file is cut at arbitrary positions. The seam of a cut is the start of the first frame at or
after the cut.

Tasks cannot communicate, so the tasks on the two sides of a cut compute its seam in the same way,
from the file alone. They look for an *anchor*: a record before the cut that its consume queue entry
points to. (A record forged inside a message body has no such entry.) The seam is the end of a walk
over the frames from the anchor to the cut.

The task before the cut fails if its own walk does not end at the seam (`walk_range`). So a wrong
seam never silently loses or duplicates a record.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.formats.local.message import START_SIZE, Record, decode
from rmqctl.scan.damage.stale import Beside
from rmqctl.scan.frames import ZERO, Batch, Span
from rmqctl.scan.resync import next_provable, provable
from rmqctl.scan.source import Source
from rmqctl.scan.walk import CHUNK, Walk
from rmqctl.store.files import listing
from rmqctl.store.queue.consume_queue import FileQueue

STEPS = (32 << 10, 256 << 10, 4 << 20, 16 << 20)
"""Distances in bytes before the cut at which the search for an anchor starts, in this order."""
MAX_WALK = 32 << 20
"""If no entry proves an anchor, a file is always walked from its start for cuts up to this position
(bytes).
"""
_AGREEING = 3
_CHECKS = 24
_QUEUES = 256
Proof = Callable[[Record], bool]
"""Function that returns whether evidence outside the log proves a record's physical offset."""


class QueueProof:
    """Proof of a record by its consume queue.

    The entry at the record's queue offset must contain exactly the record's physical offset and
    size. The files of each queue are listed once, and cached for a bounded number of queues. An
    unreadable queue proves nothing.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._queues: OrderedDict[tuple[str, int], FileQueue | None] = OrderedDict()

    def __call__(self, record: Record) -> bool:
        try:
            queue = self._queue(record.topic.decode("utf-8", "surrogateescape"), record.queue_id)
            if queue is None:
                return False
            with closing(queue):
                unit = queue.unit(record.queue_offset)
        except (StoreIOError, ValueError):
            return False
        return (unit is not None and unit.physical_offset == record.physical_offset
                and unit.size == record.total_size)

    def _queue(self, topic: str, queue_id: int) -> FileQueue | None:
        key = topic, queue_id
        if key not in self._queues:
            if len(self._queues) >= _QUEUES:
                self._queues.popitem(last=False)
            self._queues[key] = self._listed(topic, queue_id)
        self._queues.move_to_end(key)
        return self._queues[key]

    def _listed(self, topic: str, queue_id: int) -> FileQueue | None:
        if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
            return None
        folder = os.path.join(self._root, "consumequeue", topic, str(queue_id))
        queue_listing = listing(folder)
        return FileQueue(topic, queue_id, folder, queue_listing.files,
                            []) if queue_listing.files else None


class Seams:
    """The seams of one log file. ``proof``: evidence from a consume queue, if there is one."""

    def __init__(self, source: Source, proof: Proof | None) -> None:
        self._source, self._proof = source, proof

    def at(self, cut: int) -> int:
        """Return the seam of ``cut``: the start of the first frame at or after this position.

        The result is the frame that a walk over the complete file would find. The actual walk
        starts at the first available of these positions:

        * a proven record at most 16 MiB before the cut
        * the file's start, if the cut is near it
        * unproven records at several distances before the cut, if all their walks end at one seam
        * the file's start

        Raises: StoreIOError if the file cannot be read or has shrunk.
        """
        if cut <= 0:
            return 0
        seams: list[int] = []
        for back in STEPS:
            start = cut - back
            if start <= 0:
                return self._walked(0, cut)
            anchor = self._anchored(start, cut)
            if anchor is None:
                continue
            seam, proven = anchor
            if proven:
                return seam
            seams.append(seam)
            if seams[0] != seam or (cut > MAX_WALK and len(seams) >= _AGREEING):
                break
        if cut > MAX_WALK and len(seams) > 1 and len(set(seams)) == 1:
            return seams[0]
        return self._walked(0, cut)

    def _walked(self, start: int, cut: int) -> int:
        walk = Walk(self._source, start, cut)
        for _ in walk:
            pass
        whole(walk)
        return walk.position

    def _anchored(self, start: int, cut: int) -> tuple[int, bool] | None:
        """Walk from the first record in ``[start, cut)`` to the cut.

        Return the position at which the walk ends, and whether one of the checked records on the
        way is proven. Return None if the range contains no record.
        """
        first = next_provable(self._source, start, cut)
        if first is None:
            return None
        chunk = min(CHUNK, max(cut - first + START_SIZE, 64 << 10))
        walk = Walk(self._source, first, cut, chunk=chunk)
        proven, left = False, _CHECKS
        for batch in walk:
            if not proven and left and self._proof is not None and len(batch):
                rows = sorted({*np.linspace(0, len(batch) - 1, min(left, 8)).astype(int).tolist()})
                left -= len(rows)
                proven = any(self._proves(batch, row) for row in rows)
        whole(walk)
        return walk.position, proven

    def _proves(self, batch: Batch, row: int) -> bool:
        assert self._proof is not None
        if not self._proof(decode(batch.bytes_at(row))):
            return False
        # Do not start in a range that resync would skip after damage.
        return provable(self._source, int(batch.offset[row]) - batch.head - self._source.base)


def walk_range(source: Source, seams: Seams, start: int, end: int, *, last: bool) -> Iterator[
        Batch]:
    """Yield the frames of a file from the seam of ``start`` up to the seam of ``end``.

    ``last``: whether all bytes from ``end`` on are zero; they then form one frame with the zeros
    before ``end``.
    Raises: StoreIOError if the range does not end where the next range begins, or if the file
    shrank. The frames already yielded are then invalid.
    """
    walk = Walk(source, seams.at(start), end,
                beside=Beside(source).without if source.witness else None)
    yield from walk
    whole(walk)
    if not last:
        seam = seams.at(end)
        if walk.position != seam:
            raise StoreIOError(f"{source.name}: the frames of the byte range {start} to {end} "
                               f"end at {walk.position}, but those of the next range begin at "
                               f"{seam}: a message body contains a record, or the file was "
                               "changed; pass the option splitSize=0 to read the file in one "
                               "piece")
    elif walk.position < source.size:
        yield zeros(source.base + walk.position, source.size - walk.position)


def whole(walk: Walk) -> None:
    """Raise StoreIOError if the file shrank during the walk."""
    if walk.shrunk:
        raise StoreIOError(f"{walk.source.name}: the file shrank while it was read: the bytes from "
                           f"{walk.source.size} on are missing")


class PlannedSource:
    """A source limited to ``size`` bytes, the size of the file at planning.

    Bytes appended later are not read.
    Raises: StoreIOError if the file has shrunk.
    """

    def __init__(self, source: Source, size: int) -> None:
        if source.size < size:
            raise shrank(source.name, size, source.size)
        self.name, self.base, self.size, self._source = source.name, source.base, size, source
        self.witness, self.head = source.witness, source.head

    def read(self, position: int, length: int) -> bytes:
        return self._source.read(position, max(min(length, self.size - position), 0))

    def read_into(self, buffer: memoryview, position: int) -> int:
        return self._source.read_into(buffer[:max(self.size - position, 0)], position)

    def next_data(self, position: int) -> int:
        return min(self._source.next_data(position), self.size)


def shrank(name: str, planned: int, size: int) -> StoreIOError:
    """Return the error to raise for a file that has shrunk to ``size`` bytes."""
    return StoreIOError(f"{name}: the file shrank from {planned} to {size} bytes since the job was "
                        f"planned: the bytes from {size} on are missing")


def zeros(physical: int, length: int) -> Batch:
    """Return a batch that contains no messages, only one frame of zeros."""
    nothing = np.zeros(0, np.int64)
    batch = Batch(np.zeros(0, np.uint8), physical, nothing, [], {})
    batch.spans = [Span(ZERO, physical, length)]
    return batch
