"""Queue offsets as evidence of how much of a log a single damaged message may cover.

Within a queue, offsets increase by one from message to message, in log order. So the known messages
before and after a range show how many messages of their queues are missing in the range. If the
range consisted of one damaged message and a few other records, only these could be missing. If more
messages are missing, the range cannot be the body of one message. This proof depends only on
messages outside the range, not on its content.

Not every offset is evidence. A queue counts if its offsets increase by one, without exception,
among the messages right before and right after the range. In addition, the missing messages must
fit into the range. So an offset with a flipped bit, or a gap left by compaction, proves nothing.
Three kinds of messages do not count:

* Batches, and all messages of topics with batches, because a batch uses as many offsets as its
  sender chooses.
* Prepared messages and rollbacks, which have no offset.
* Messages of light message queues (LMQ), because a message may use offsets of several such queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np

from rmqctl.formats.local.message import MIN_SIZE
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.formats.local.sysflag import INNER_BATCH, TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, Batch, records_from
from rmqctl.scan.resync import located_size
from rmqctl.scan.source import Source

_FIRST_BLOCK, _BLOCK = 64 << 10, 1 << 20
_BEFORE, _BEHIND = 8192, 1024
"""``_BEFORE``, ``_BEHIND``: number of frames that are examined right before and right after a
range.
"""
_SEGMENTS = 8
_RUNS_AHEAD, _MAX_RUNS = 3, 64
"""The missing messages of a run of frames are added to those of the ``_RUNS_AHEAD`` runs before it.
At most ``_MAX_RUNS`` runs are examined.
"""
_LIGHT = LMQ_PREFIX.encode()

Stretch = tuple[int, int]
Queue = tuple[bytes, int]
Ends = tuple[int, int]
"""The first and the last queue offset of a queue's messages."""


def records_in(length: int) -> int:
    """Return the maximum number of records in a range of ``length`` bytes."""
    return max(length, 0) // MIN_SIZE


class EarlierMessages:
    """The known messages of a log before the range that is examined.

    ``look_back`` returns the ranges of messages before the first added range; without it, such
    ranges are unknown. ``is_dense``: whether the log contains all messages of its queues.
    """

    def __init__(self, look_back: Callable[[], Iterable[Stretch]] | None = None, *,
                 by_itself: bool = False, is_dense: bool = True) -> None:
        self.by_itself, self.is_dense = by_itself, is_dense
        self.is_damaged = False
        """True if the scan has found damage: then a blank may be part of a body."""
        self.moved_end = -1
        """End (a position) of the last intact record with a wrong physical offset. Whether a record
        of the log begins there is unknown.
        """
        self._look_back = look_back
        self._stretches: deque[Stretch] = deque(maxlen=_SEGMENTS)
        self._last: dict[Stretch, dict[Queue, Ends | None]] = {}

    def add(self, start: int, end: int) -> None:
        """Add the consecutive frames in positions ``[start, end)``, all of which are messages."""
        if end > start:
            self._stretches.append((start, end))

    def stretches(self) -> list[Stretch]:
        """Return the last ranges of known messages, ascending."""
        look_back, self._look_back = self._look_back, None
        if look_back is not None:
            added = list(self._stretches)
            self._stretches.clear()
            for stretch in look_back():
                if added and stretch[1] == added[0][0]:
                    added[0] = stretch[0], added[0][1]
                else:
                    self._stretches.append(stretch)
            self._stretches += added
        return list(self._stretches)

    def known_before(self, source: Source, at: int) -> Iterator[tuple[dict[Queue, Ends | None],
                                                                      int]]:
        """Yield evidence for several parts of the log before a position, each longer than the
        previous one. Each item has two elements:

        * the first and the last queue offset of each queue among the known messages of the part;
        * the number of other messages that may be missing after these messages.

        Raises: StoreIOError.
        """
        ends: dict[Queue, Ends | None] = {}
        edge, extra = at, 0
        for start, stop in reversed(self.stretches() if self.is_dense else []):
            if stop > edge:
                continue
            if stop < edge:
                # What is lost in between, and what nobody knows to be a message, takes offsets.
                extra += records_in(edge - stop) + 1
            _merge(ends, self._offsets(source, start, stop))
            yield ends, extra
            edge = start
        if self.is_dense and source.witness is not None and edge > 0:
            extra += records_in(edge) + 1
        before = source.witness.offsets_before(source.base) if (
            self.is_dense and source.witness is not None) else None
        if before is not None:
            _merge(ends, before.ends)
            yield ends, extra + before.lost

    def _offsets(self, source: Source, start: int, stop: int) -> dict[Queue, Ends | None]:
        ends = self._last.get((start, stop))
        if ends is None:
            if len(self._last) >= 2 * _SEGMENTS:
                self._last.clear()
            ends = self._last[start, stop] = queues(source, start, stop, -_BEFORE)
        return ends


def _merge(later: dict[Queue, Ends | None], earlier: dict[Queue, Ends | None]) -> None:
    """Add the offsets of earlier messages to the offsets of each queue."""
    for queue, ends in earlier.items():
        if ends is None or later.get(queue, ends) is None:
            later[queue] = None
        else:
            later.setdefault(queue, ends)


@dataclass(slots=True)
class Numbered:
    """Frames in log order.

    ``queue``: each frame's queue, as its number in ``numbers``; -1 if the frame's queue offset is
    not evidence.
    ``lost``: largest number of records that may be lost before each frame.
    ``batched``: topics with batches.
    """

    start: Array
    queue: Array
    offset: Array
    lost: Array
    numbers: Mapping[Queue, int]
    batched: Collection[bytes]


def excess(source: Source, at: int, frames: Numbered, passed: EarlierMessages) -> Array:
    """Return a difference for each frame: the number of messages missing before the frame, minus
    the number of messages that can be lost after ``at``. No earlier frame counts as a message. The
    difference is 0 or less if either number is unknown.

    The next message of a queue may be after further damage with other lost messages of the queue.
    So both numbers are determined at the end of each run of frames, and the largest difference is
    returned.

    Raises: StoreIOError.
    """
    is_sound = _goes_up(frames)
    most: Array = -frames.lost
    ends = [*(np.flatnonzero(np.diff(frames.lost)) + 1).tolist(), len(frames.start)]
    begins = [0, *ends[:-1]]
    runs = [(begins[max(0, number - _RUNS_AHEAD)], end) for number, end in enumerate(
        ends[:_MAX_RUNS])]
    if len(ends) > 1:
        runs.append((0, len(frames.start)))
    for ends_before, extra in passed.known_before(source, at):
        last: Array = np.full(len(frames.numbers) + 1, -2, np.int64)  # the last one is for -1
        for queue, bounds in ends_before.items():
            number = frames.numbers.get(queue)
            if number is not None and bounds is not None and queue[0] not in frames.batched:
                last[number] = bounds[1]
        missing = frames.offset - last[frames.queue] - 1
        room = (frames.start - at) // MIN_SIZE + extra + 1
        missing[~is_sound | (last[frames.queue] < -1) | (missing < 0) | (missing > room)] = 0
        for low, high in runs:
            counted = _from_each(frames.queue[low:high], missing[low:high])
            most[low:high] = np.maximum(most[low:high],
                                        counted - int(frames.lost[high - 1]) - extra)
    return most


def _from_each(queue: Array, missing: Array) -> Array:
    """Return, for each frame, the total number of missing messages of all queues. The number for
    each queue is taken from its first frame at or after this frame.
    """
    order = np.argsort(queue, kind="stable")
    step = missing[order]
    step[:-1] -= np.where(queue[order[1:]] == queue[order[:-1]], missing[order[1:]], 0)
    steps: Array = np.empty_like(step)
    steps[order] = step
    counted: Array = np.cumsum(steps[::-1])[::-1]
    return counted


def _goes_up(frames: Numbered) -> Array:
    """Return a boolean array: for each frame, whether the offsets of its queue increase by one in
    the following frames. Gaps that lost messages may explain are allowed.
    """
    order = np.argsort(frames.queue, kind="stable")
    queue, offset, lost = frames.queue[order], frames.offset[order], frames.lost[order]
    step = offset[1:] - offset[:-1]
    odd = (queue[1:] == queue[:-1]) & (queue[1:] >= 0) & (
        (step < 1) | (step - 1 > lost[1:] - lost[:-1]))
    sound = frames.queue >= 0
    for row in order[:-1][odd].tolist():
        near = slice(max(0, row - _BEHIND), row + 1)
        sound[near] &= frames.queue[near] != frames.queue[row]
    return sound


def excess_at(source: Source, at: int, end: int, behind: Mapping[Queue, Ends | None], lost: int,
              passed: EarlierMessages) -> int:
    """Return the number of messages that are missing between the messages before and after ``[at,
    end)``, minus the number that can be lost in this range. ``behind``: queue offsets of the
    messages after the range. Raises: StoreIOError.
    """
    most = -lost
    for ends_before, extra in passed.known_before(source, at):
        room = records_in(end - at) + extra + 1
        missing = sum(
            after[0] - ends[1] - 1 for queue, after in behind.items()
            if after is not None and (ends := ends_before.get(queue)) is not None
            and 0 < after[0] - ends[1] <= room + 1)
        most = max(most, missing - lost - extra)
    return most


class Queues:
    """Assigns numbers to queues, in the order of their first frames. ``batched``: topics with
    batches.
    """

    def __init__(self) -> None:
        self.numbers: dict[Queue, int] = {}
        self.batched: set[bytes] = set()

    def columns(self, batch: Batch) -> tuple[Array, Array]:
        """Return two arrays with an element for each frame: the number of the frame's queue, and
        its queue offset. The number is -1 if the offset cannot be used as evidence.
        """
        numbers: list[int] = []
        for queue, _, flags in _rows(batch):
            if flags & INNER_BATCH:
                self.batched.add(queue[0])
            tells = flags & TRANSACTION_MASK in (0, TRANSACTION_COMMIT) and not (
                flags & INNER_BATCH or queue[0].startswith(_LIGHT))
            numbers.append(self.numbers.setdefault(queue, len(self.numbers)) if tells else -1)
        return np.array(numbers, np.int64), batch.column("queue_offset")


def queues(source: Source, start: int, end: int, most: int) -> dict[Queue, Ends | None]:
    """Return, by queue, the first and the last queue offset of consecutive frames in ``[start,
    end)``; None for a queue whose offsets prove nothing.

    ``most``: number of frames to examine from the start; if it is negative, frames are examined
    from the end.

    Raises: StoreIOError.
    """
    # The frames, in blocks; only as many are held as count.
    rows: deque[tuple[Queue, int, int]] = deque()
    batches: deque[Batch] = deque()
    at, held = start, 0
    while at < end and (size := located_size(source, at)) is not None:
        raw = source.read(at, max(_BLOCK if most < 0 else _FIRST_BLOCK, size))
        batch = records_from(np.frombuffer(raw, np.uint8), source.base + at, 0,
                             min(len(raw), end - at))
        if not len(batch):
            break
        at += int(batch.start[-1] + batch.column("total_size")[-1])
        batches.append(batch)
        held += len(batch)
        if most > 0 and held >= most:
            break
        while held - len(batches[0]) >= abs(most):
            held -= len(batches.popleft())
    # The first of them, or the last.
    for batch in batches:
        rows.extend(_rows(batch))
    chosen = list(rows)[:most] if most > 0 else list(rows)[most:]
    # A queue counts while its offsets go up by one.
    ends: dict[Queue, Ends | None] = {}
    batched = {queue[0] for queue, _, flags in chosen if flags & INNER_BATCH}
    for queue, offset, flags in chosen:
        if flags & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT) or queue[0].startswith(_LIGHT):
            continue
        bounds = ends.get(queue, (offset, offset - 1))
        ends[queue] = ((bounds[0], offset) if bounds is not None and offset == bounds[1] + 1
                        and queue[0] not in batched else None)
    return ends


def _rows(batch: Batch) -> list[tuple[Queue, int, int]]:
    """Return (queue, offset, sysFlag) of each frame."""
    view = memoryview(batch.data.data)
    names = [bytes(view[at:at + length]) for at, length in zip(
        batch.column("topic_start").tolist(), batch.column("topic_length").tolist(), strict=True)]
    numbers, offsets, flags = (batch.column(name).tolist() for name in (
        "queue_id", "queue_offset", "sys_flag"))
    return [((name, number), offset, flag) for name, number, offset, flag in zip(
        names, numbers, offsets, flags, strict=True)]
