"""Sums per group over the batches of a walk: counts, bytes, first and last store time.

Everything is computed by column (`groupings`). Sums are int64 and exact. The number of groups is
bounded: beyond the limit, groups with few messages are dropped. Neither the order of the messages
nor the division of the log affects which groups are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rmqctl.kernel import active
from rmqctl.scan import text
from rmqctl.scan.fillers import fillers, kept_damaged
from rmqctl.scan.frames import BLANK, DAMAGED, ZERO, Array, Batch
from rmqctl.scan.groupings import GROUPINGS, Key, KeyNumbers

MAX_GROUPS = 200_000
"""Maximum number of groups. If there are more, only heavy groups (see `HEAVY`) are kept."""
MAX_KEYS = 50_000
"""Maximum number of groups when grouping by message key. It is lower than `MAX_GROUPS`, because
there may be as many keys as messages.
"""
HEAVY = 10_000
"""A group is heavy if it has more than 1/`HEAVY` of all counted messages."""
_NEVER = np.iinfo(np.int64)


class Sums(NamedTuple):
    """Sums of one group of messages; ``first`` and ``last``: earliest and latest store time
    (ms).
    """

    messages: int
    bytes: int
    body_bytes: int
    first: int
    last: int


class Aggregate:
    """Sums of messages by one of `GROUPINGS`, and a classification of the log's bytes. Picklable;
    `merge` adds the sums of another object.

    ``topic`` (bytes), ``since`` and ``until`` (store time, ms, inclusive) select messages. Byte
    counts cover all frames.

    With more than ``limit`` groups (`is_full`), the object only searches for heavy groups, with the
    summary of Misra and Gries. Every heavy group is then among the `candidates`, but the sums are
    incomplete. A second pass with these groups as ``only`` gives exact sums: `groups` then contains
    the heavy groups and `OTHER`. The choice of groups depends only on the messages. ``limit`` must
    be a few times ``heavy``.
    """

    def __init__(self, by: str, *, topic: bytes | None = None, since: int | None = None,
                 until: int | None = None, limit: int | None = None, heavy: int | None = None,
                 only: Sequence[Key] | None = None) -> None:
        self.by, self._topic, self._since, self._until = by, topic, since, until
        default = MAX_KEYS if by == "key" else MAX_GROUPS
        self._limit = default if limit is None else limit
        self._heavy = HEAVY if heavy is None else heavy
        self._keys = KeyNumbers(only)
        self._sums = _nothing(0)
        self._all = _nothing(1)
        self._counted = self._given_up = 0
        self.is_cut = only is not None
        """True if light groups are summed as `OTHER`."""
        self.bytes_in_messages = self.bytes_blank = self.bytes_zero = self.bytes_damaged = 0
        self.damaged_spans = self.undecided = self.bodies_damaged = 0
        self.fillers = 0
        """Number of counted messages that `recover` wrote in place of lost bytes."""
        self.replaced = 0
        """Number of fillers plus messages that `recover` kept with damaged bodies."""
        self.bytes_unread = 0
        self.unread = ""
        """Reason why the first unreadable range cannot be read; "" if everything could be read."""

    def miss(self, length: int, reason: str) -> None:
        """Add ``length`` unreadable bytes to the counts."""
        self.bytes_unread += length
        self.unread = self.unread or reason

    def add(self, batch: Batch) -> None:
        """Add one batch from a walk, with its spans."""
        # Bytes that are not messages.
        for span in batch.spans:
            if span.kind == BLANK:
                self.bytes_blank += span.length
            elif span.kind == ZERO:
                self.bytes_zero += span.length
            elif span.kind == DAMAGED:
                self.bytes_damaged += span.length
                self.damaged_spans += 1
                self.undecided += len(span.doubtful)
        if not len(batch):
            return
        # All messages, then the requested ones.
        self.bytes_in_messages += int(batch.frame_size.sum())
        is_ok = batch.crc_ok()
        if not is_ok.all():
            self.bodies_damaged += int((~is_ok & (batch.column("body_length") > 0)).sum())
        batch = self._chosen(batch)
        if len(batch):
            total, body = batch.column("total_size"), batch.column("body_length")
            times = batch.column("store_timestamp")
            own = fillers(batch)
            self.fillers += int(own.sum())
            self.replaced += int((own | kept_damaged(batch)).sum())
            _include(self._all, np.zeros(1, np.int64), len(batch), total.sum(), body.sum(),
                     times.min(), times.max())
            # By group; a message may belong to several, or to none.
            codes, rows = GROUPINGS[self.by](self._keys, batch)
            if rows is not None:
                total, body, times = total[rows], body[rows], times[rows]
            self._counted += len(codes)
            self._reserve()
            kernel = active()
            if kernel is None:
                _include(self._sums, codes, 1, total, body, times, times)
            else:
                kernel.add_up(codes, *map(np.ascontiguousarray, (total, body, times)), self._sums)
            self._bound()

    def merge(self, other: Aggregate) -> None:
        codes = self._keys.numbers(other._keys.by_number)
        self._reserve()
        other._reserve()
        _include(self._sums, codes, *other._sums[:, :len(codes)])
        _include(self._all, np.zeros(1, np.int64), *other._all)
        for name in ("bytes_in_messages", "bytes_blank", "bytes_zero", "bytes_damaged",
                     "damaged_spans", "bodies_damaged", "undecided", "fillers", "replaced",
                     "bytes_unread", "_counted", "_given_up"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.unread = self.unread or other.unread
        self._bound()

    def pack(self) -> None:
        """Reduce a full object to a few groups before it is sent to another process."""
        if self.is_full:
            self._shrink(2 * self._heavy)

    def groups(self) -> dict[Key, Sums]:
        """Return the sums by key, in order of first appearance. Do not call this if `is_full`."""
        assert not self.is_full
        count = len(self._keys)
        self._reserve()
        columns = self._sums[:, :count]
        if self.is_cut:
            light = columns[0] * self._heavy <= self._counted
            light[-1] = True
            rest = np.flatnonzero(light & (columns[0] > 0))
            columns = np.where(light, _nothing(count), columns)
            _include(columns, np.full(len(rest), count - 1), *self._sums[:, rest])
        return {key: Sums(*sums) for key, sums in zip(self._keys.by_number, columns.T.tolist(),
                                                      strict=True) if sums[0]}

    @property
    def total(self) -> Sums | None:
        """Return the sums of all messages; a message in several groups counts once. None if no
        message was counted.
        """
        sums = Sums(*self._all[:, 0].tolist())
        return sums if sums.messages else None

    @property
    def is_full(self) -> bool:
        """Return whether there were more groups than fit, so that a second pass is needed."""
        return self._given_up > 0

    @property
    def candidates(self) -> list[Key]:
        """Return the keys that may be heavy: all heavy keys, and few others."""
        counts = self._sums[0, :len(self._keys)]
        maybe = (counts + self._given_up) * self._heavy > self._counted
        return self._keys.some(np.flatnonzero(maybe))

    # -- inside -------------------------------------------------------------------------------

    def _reserve(self) -> None:
        width = self._sums.shape[1]
        if len(self._keys) > width:
            wider = _nothing(max(64, 2 * len(self._keys)))
            wider[:, :width] = self._sums
            self._sums = wider

    def _bound(self) -> None:
        if not self.is_cut and len(self._keys) > self._limit:
            self._shrink(self._limit // 2)

    def _shrink(self, most: int) -> None:
        """Subtract the same count from all groups and drop those with nothing left, so that at most
        ``most`` remain.

        Each subtraction affects more groups than the limit, so a heavy group is never dropped.
        """
        count = len(self._keys)
        if count <= most:
            return
        counts = self._sums[0, :count]
        cut = count - most - 1
        less = int(np.partition(counts, cut)[cut])
        larger = np.flatnonzero(counts > less)
        sums = self._sums[:, larger]
        sums[0] -= less
        keys = KeyNumbers()
        keys.numbers(self._keys.some(larger))
        self._keys, self._sums = keys, sums
        self._given_up += less

    def _chosen(self, batch: Batch) -> Batch:
        """Return the messages of a batch that match the topic and the time range."""
        keep: Array | None = None
        times = batch.column("store_timestamp")
        if self._since is not None and times.min() < self._since:
            keep = times >= self._since
        if self._until is not None and times.max() > self._until:
            early = times <= self._until
            keep = early if keep is None else keep & early
        if self._topic is not None:
            same = text.topics(batch).equal(self._topic)
            keep = same if keep is None else keep & same
        return batch if keep is None or keep.all() else batch.select(np.flatnonzero(keep))


def _nothing(count: int) -> Array:
    """Return the sums of ``count`` empty groups, in the form of `Sums`."""
    sums: Array = np.zeros((len(Sums._fields), count), np.int64)
    sums[3], sums[4] = _NEVER.max, _NEVER.min
    return sums


def _include(sums: Array, codes: Array, messages: Array | int, total: Array, body: Array,
             first: Array, last: Array) -> None:
    np.add.at(sums[0], codes, messages)
    np.add.at(sums[1], codes, total)
    np.add.at(sums[2], codes, body)
    np.minimum.at(sums[3], codes, first)
    np.maximum.at(sums[4], codes, last)
