"""Queue offsets as evidence: how much of a log one damaged message may be.

Within a queue offsets go up by one from message to message, in the order of the log. So the offsets
that are missing between what is known before a stretch of the log and what is known behind it say
how many messages of these queues the stretch has at least. If it were, but for a few records, the
body of one message, it could not have more than these few and this one. Where more are missing,
it is not: that is a proof, whatever the frames in the stretch say of themselves, as it counts only
what lies outside of it.

Not every offset is good for it. A queue counts whose offsets go up by one, without exception, among
the messages right before the stretch, and right behind it, too, and where no more are missing than
the stretch has room for: a turned bit, or a log of which messages were taken out (compaction),
gives no evidence. A batch of messages takes as many offsets as its sender says, so topics with
such do not count. Prepared messages and rollbacks have no offset. A message may be dispatched to
queues of other topics, and takes an offset in each, but never two of one topic: topics are not
added up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from rmqctl.formats.local.message import MIN_SIZE
from rmqctl.formats.local.sysflag import INNER_BATCH, TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqctl.scan.frames import Batch, records_from
from rmqctl.scan.resync import located_size
from rmqctl.scan.source import Source

_FIRST_BLOCK, _BLOCK = 64 << 10, 1 << 20
_BEFORE, _BEHIND = 8192, 1024
"""Frames right before and right behind a stretch that are looked at."""
_SEGMENTS = 8
_MOST_KNOWN = 4096
BUDGET = 100_000
"""Questions answered of one source; further ones get no proof."""

Queue = tuple[bytes, int]
Ends = tuple[int, int]
"""The first and the last offset."""


def records_in(length: int) -> int:
    """How many records a stretch of ``length`` bytes may hold."""
    return max(length, 0) // MIN_SIZE


@dataclass(slots=True)
class Trusted:
    """What is known of a log up to where it is looked at: the last stretches of frames that follow
    each other and are messages, ascending.

    ``is_dense``: whether the log has all messages of its queues.
    """

    is_dense: bool = True
    stretches: deque[tuple[int, int]] = field(
        default_factory=lambda: deque(maxlen=_SEGMENTS))
    budget: int = BUDGET
    last: dict[int, dict[Queue, Ends | None]] = field(default_factory=dict)
    first: dict[int, dict[Queue, Ends | None]] = field(default_factory=dict)

    def add(self, start: int, end: int) -> None:
        """The frames in positions ``[start, end)`` are messages."""
        if end > start:
            self.stretches.append((start, end))


class Slots:
    """What the queue offsets in a source tell. StoreIOError."""

    def __init__(self, source: Source, trusted: Trusted) -> None:
        self._source, self._trusted = source, trusted

    def has_more(self, origin: int, end: int, upto: int, most: int,
                 near: tuple[int, int] | None) -> bool:
        """Whether positions ``[origin, end)`` hold more than ``most`` records of the log, beyond
        doubt, if records of it follow each other from ``end`` to ``upto``, and in ``near`` before.
        """
        trusted = self._trusted
        stretches = [*trusted.stretches, *([near] if near is not None else [])]
        if not trusted.is_dense or trusted.budget <= 0 or not stretches:
            return False
        trusted.budget -= 1
        behind = self._behind(end, upto)
        if not behind:
            return False
        before: dict[Queue, Ends | None] = {}
        at = origin
        for start, stop in reversed(stretches):
            if stop > at:
                continue
            if stop < at:
                # What is lost in between, and what nobody knows to be a message, takes offsets.
                most += records_in(at - stop) + 1
            for queue, ends in self._before(start, stop).items():
                if ends is None or before.get(queue, ends) is None:
                    before[queue] = None
                else:
                    before.setdefault(queue, ends)
            if most < _missing(before, behind, records_in(end - start)):
                return True
            at = start
        return False

    def _behind(self, start: int, end: int) -> dict[Queue, Ends | None]:
        known = self._trusted.first
        if start not in known:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[start] = queues(self._source, start, end, _BEHIND)
        return known[start]

    def _before(self, start: int, end: int) -> dict[Queue, Ends | None]:
        known = self._trusted.last
        if start not in known:
            if len(known) >= 2 * _SEGMENTS:
                known.clear()
            known[start] = queues(self._source, start, end, -_BEFORE)
        return known[start]


def _missing(before: dict[Queue, Ends | None], behind: dict[Queue, Ends | None],
             room: int) -> int:
    """Offsets missing in between, of the topic of which most are; there is room for ``room``."""
    by_topic: dict[bytes, int] = {}
    for (topic, number), after in behind.items():
        known = before.get((topic, number))
        if after is not None and known is not None and known[1] < after[0] <= known[1] + room:
            by_topic[topic] = by_topic.get(topic, 0) + after[0] - known[1] - 1
    return max(by_topic.values(), default=0)


def queues(source: Source, start: int, end: int, most: int) -> dict[Queue, Ends | None]:
    """The offsets of each queue among the frames that follow each other in ``[start, end)``: of
    the first ``most``, of the last ones where it is negative. None for a queue that is no evidence.

    StoreIOError.
    """
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
    for batch in batches:
        rows.extend(_rows(batch))
    chosen = list(rows)[:most] if most > 0 else list(rows)[most:]
    found: dict[Queue, Ends | None] = {}
    batched = {queue[0] for queue, _, flags in chosen if flags & INNER_BATCH}
    for queue, offset, flags in chosen:
        if flags & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
            continue
        known = found.get(queue, (offset, offset - 1))
        found[queue] = ((known[0], offset) if known is not None and offset == known[1] + 1
                        and queue[0] not in batched else None)
    return found


def _rows(batch: Batch) -> list[tuple[Queue, int, int]]:
    """(queue, offset, sysFlag) of each frame."""
    view = memoryview(batch.data.data)
    names = [bytes(view[at:at + length]) for at, length in zip(
        batch.column("topic_start").tolist(), batch.column("topic_length").tolist(), strict=True)]
    numbers, offsets, flags = (batch.column(name).tolist() for name in (
        "queue_id", "queue_offset", "sys_flag"))
    return [((name, number), offset, flag) for name, number, offset, flag in zip(
        names, numbers, offsets, flags, strict=True)]
