"""Comparison by queue offset of two stores whose physical offsets differ (rebuilt, migrated).

Both logs are read in parallel, in the order of store times. A message is represented by 24 bytes,
which are kept until the other log has the same message: a key (topic, queue id, queue offset), a
digest of the content, and the position. So memory depends on how much the order of messages
differs, not on the size of the logs.

An earlier pass determines the range of queue offsets of each store. Messages outside the range of
the other store are not kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import field

import numpy as np

from rmqctl.checks.diff.differences import (
    MISSING,
    PLACE,
    Differences,
    Side,
    differences_of,
    of_pair,
    of_record,
    report_damage,
)
from rmqctl.errors import StoreIOError
from rmqctl.formats.local import sysflag
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import digests, text
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.queue_reach import QueueKey, QueueNumbers, QueueReach

Progress = Callable[[int], None]
_BLOCK = 1 << 16
_BITS = 40
"""Number of low bits of a key that contain the queue offset; the rest is the queue number."""
_UNROWED = 1 << (_BITS - 1)
_WILD = 1 << 62


@dataclass(slots=True)
class Outside:
    """Number of messages in one store's queue that are before or after all messages in the other
    store's queue.
    """

    before: int = 0
    beyond: int = 0


@dataclass(slots=True)
class JoinTally:
    """Number of messages by result. ``outside``: see `Outside`, for each store."""

    equal: int = 0
    different: int = 0
    missing_in_a: int = 0
    missing_in_b: int = 0
    damaged_alike: int = 0
    outside: dict[str, Outside] = field(default_factory=lambda: {"a": Outside(), "b": Outside()})


@dataclass(slots=True)
class _WaitingMessages:
    """Messages that are not paired yet, sorted by key, then by position in the log."""

    key: Array
    digest: Array
    place: Array

    @classmethod
    def nothing(cls) -> _WaitingMessages:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.int64))

    def with_more(self, parts: list[tuple[Array, Array, Array]]) -> _WaitingMessages:
        key, digest, place = (np.concatenate(column) for column in zip(
            (self.key, self.digest, self.place), *parts, strict=True))
        order = np.argsort(key, kind="stable")
        return _WaitingMessages(key[order], digest[order], place[order])

    def take(self, which: Array) -> _WaitingMessages:
        return _WaitingMessages(self.key[which], self.digest[which], self.place[which])


class _SideStream:
    def __init__(self, side: Side) -> None:
        self.side = side
        self.batches = side.frames(side.end)
        self.clock = -1
        self.done = False
        self.waiting = _WaitingMessages.nothing()
        self.fresh: list[tuple[Array, Array, Array]] = []
        self.fresh_count = 0


class QueuePass:
    """A comparison by queue offset.

    * ``strict``: whether a different physical offset or store host is a difference
    * ``whole``: whether messages older than all messages of the other store count as missing in
      that store, not as expired
    """

    def __init__(self, a: Side, b: Side, out: Differences, *, strict: bool = False,
                 whole: bool = False, progress: Progress | None = None) -> None:
        self.a, self.b, self.out = a, b, out
        self.tally = JoinTally()
        self._ignored = frozenset() if strict else PLACE
        self._digest = digests.whole if strict else digests.content
        self._whole = whole
        self._progress = progress or (lambda _: None)
        self._numbers = QueueNumbers()
        self._wild: dict[tuple[int, int], int] = {}
        self._reach: dict[str, dict[QueueKey, tuple[int, int]]] = {}
        self._limits: dict[str, tuple[Array, Array]] = {
            name: (np.zeros(0, np.int64), np.zeros(0, np.int64)) for name in ("a", "b")}

    def compare(self) -> None:
        for side in (self.a, self.b):
            self._reach[side.name] = self._measure(side)
        streams = {side.name: _SideStream(side) for side in (self.a, self.b)}
        a, b = streams["a"], streams["b"]
        while not (a.done and b.done):
            slower = a if not a.done and (b.done or a.clock <= b.clock) else b
            self._advance(slower)
            waiting = len(a.waiting.key) + len(b.waiting.key)
            if a.fresh_count + b.fresh_count >= max(_BLOCK, waiting):
                self._join(a, b)
        self._join(a, b)
        self.tally.damaged_alike += report_damage(self.a, self.b, 1 << 63, self.out)
        for stream, other in ((a, b), (b, a)):
            self._missing(stream.side, other.side, stream.waiting.place)

    def _measure(self, side: Side) -> dict[QueueKey, tuple[int, int]]:
        """Return the range ``[first, end)`` of queue offsets that the log contains, by queue.

        For a queue without a message in the log, both bounds are the end of its consume queue.
        """
        reach = QueueReach(plain=True)
        for batch in side.log.walk(0, side.end):
            reach.add(batch)
            if len(batch):
                self._progress(int(batch.column("total_size").sum()))
        limits = {key: (reach.first, reach.end) for key, reach in reach.result().items()}
        for (topic, queue_id), queue in side.store.queues.by_key.items():
            key = os.fsencode(topic), queue_id
            if key not in limits:
                try:
                    limits[key] = (side.view.bounds(queue).end,) * 2
                except StoreIOError:
                    continue
                finally:
                    queue.close()
        return limits

    # -- one batch ----------------------------------------------------------------------------

    def _advance(self, stream: _SideStream) -> None:
        side = stream.side
        before = side.position
        batch = next(stream.batches, None)
        if batch is None:
            stream.done = True
            return
        self._progress(side.position - before)
        if not len(batch):
            return
        # The middle one: a damaged time must not hold up its log for the rest of the run.
        times = np.sort(batch.column("store_timestamp"))
        stream.clock = int(times[len(times) // 2])
        part = self._part(batch, side)
        stream.fresh.append(part)
        stream.fresh_count += len(part[0])

    def _part(self, batch: Batch, side: Side) -> tuple[Array, Array, Array]:
        """Return the keys, digests and physical offsets of those messages that can also be in the
        other store.
        """
        queue_offset = batch.column("queue_offset")
        numbers = self._numbers.of(self._numbers.topic(text.topics(batch)),
                                   batch.column("queue_id"))
        rowed = (batch.column("sys_flag") & sysflag.TRANSACTION_PREPARED) == 0
        low = np.where(rowed, queue_offset, _UNROWED)
        key = (numbers << _BITS) | low
        odd = rowed & ((queue_offset < 0) | (queue_offset >= _UNROWED))
        odd |= numbers >= 1 << (61 - _BITS)
        for index in np.flatnonzero(odd).tolist():
            pair = int(numbers[index]), int(low[index])
            key[index] = _WILD | self._wild.setdefault(pair, len(self._wild))
        digest, place = self._digest(batch), batch.offset
        other = self.b if side is self.a else self.a
        first, end = self._limits_of(other)
        before = rowed & (queue_offset < first[numbers]) & (queue_offset >= 0)
        beyond = rowed & ((queue_offset >= end[numbers]) | (queue_offset < 0))
        hopeless = before | beyond
        if not hopeless.any():
            return key, digest, place
        outside = self.tally.outside[side.name]
        outside.before += int(before.sum())
        outside.beyond += int(beyond.sum())
        self._missing(side, other, place[hopeless if self._whole else beyond])
        return key[~hopeless], digest[~hopeless], place[~hopeless]

    def _limits_of(self, side: Side) -> tuple[Array, Array]:
        """Return the bounds of each queue in one store, as two arrays by queue number.

        The arrays contain the first queue offset, and the queue offset after the last message.
        """
        first, end = self._limits[side.name]
        more = self._numbers.keys[len(first):]
        if more:
            limits = self._reach[side.name]
            more_limits = np.array([limits.get(key, (0, 0)) for key in more], np.int64)
            first, end = np.append(first, more_limits[:, 0]), np.append(end, more_limits[:, 1])
            self._limits[side.name] = first, end
        return first, end

    # -- pairing ------------------------------------------------------------------------------

    def _join(self, a: _SideStream, b: _SideStream) -> None:
        left, right = (stream.waiting.with_more(stream.fresh) for stream in (a, b))
        for stream in (a, b):
            stream.fresh, stream.fresh_count = [], 0
        # The n-th of the messages with one key is the partner of the n-th in the other log.
        index = np.searchsorted(right.key, left.key) + _rank(left.key)
        paired = index < len(right.key)
        paired[paired] = right.key[index[paired]] == left.key[paired]
        pairs, other = np.flatnonzero(paired), index[paired]
        same = left.digest[pairs] == right.digest[other]
        self.tally.equal += int(same.sum())
        self._compare(left.place[pairs[~same]], right.place[other[~same]])
        self.tally.damaged_alike += report_damage(
            self.a, self.b, min(self.a.position, self.b.position), self.out)
        alone = np.ones(len(right.key), bool)
        alone[other] = False
        a.waiting, b.waiting = left.take(~paired), right.take(alone)

    def _compare(self, places: Array, other: Array) -> None:
        """Compare the records of pairs with different digests. Records that differ only in the
        order of their properties are equal.
        """
        for index in np.argsort(places, kind="stable").tolist():
            left = self.a.log.record_at(int(places[index]))
            right = self.b.log.record_at(int(other[index]))
            if left is None or right is None:  # the file was deleted meanwhile
                self.out.count("different", 1)
            elif not differences_of(left, right, ignored=self._ignored):
                self.tally.equal += 1
                continue
            else:
                self.out.add(of_pair(left, right, ignored=self._ignored))
            self.tally.different += 1

    def _missing(self, holder: Side, side: Side, places: Array) -> None:
        if side is self.a:
            self.tally.missing_in_a += len(places)
        else:
            self.tally.missing_in_b += len(places)
        kind = MISSING[side.name]
        named = np.sort(places)[:self.out.room]
        for place in named.tolist():
            record = holder.log.record_at(place)
            if record is None:
                self.out.count(kind, 1)
                continue
            first, end = self._reach[side.name].get((record.topic, record.queue_id), (0, 0))
            detail = ""
            if record.queue_offset >= end:
                detail = f"the queue ends at {end} in {side.name}"
            elif record.queue_offset < first:
                detail = f"the queue starts at {first} in {side.name}"
            self.out.add(of_record(kind, record, detail))
        self.out.count(kind, len(places) - len(named))


def _rank(key: Array) -> Array:
    """Return, for each of the sorted keys, the number of equal keys before it."""
    number = np.arange(len(key))
    first: Array = np.ones(len(key), bool)
    first[1:] = key[1:] != key[:-1]
    starts = np.maximum.accumulate(np.where(first, number, 0))
    ranks: Array = number - starts
    return ranks

