"""Survey of a log: its damaged regions, the sequences of queue offsets, and what is odd in it.

A record is intact when a broker's recovery accepts it (commitlog.md §9): provably a record, and its
body matches its CRC. Where a store's messages carry an appended CRC, that must match too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.scan.headers import Headers

MAX_LISTED, MAX_ODD = 1_000_000, 1000
"""Number of places of a kind that are kept."""


# -- how the queue offsets of a queue follow each other -------------------------------------------


@dataclass(slots=True)
class Run:
    """Messages of one queue with consecutive queue offsets ``[first, end)``, in log order.

    ``low`` and ``high`` are the physical offsets of the first and the last of them.
    """

    first: int
    end: int
    low: int
    high: int


def joined(rows: Array) -> Array:
    """Return messages by column, int64 of shape (5, n): number of the queue, first queue offset,
    end, physical offset of the first and of the last; those of a queue in log order. What goes on
    where another one of its queue ends becomes one column; queues ascend.
    """
    if not rows.shape[1]:
        return rows
    rows = rows[:, np.argsort(rows[0], kind="stable")]
    queue, first, end = rows[:3]
    fresh = np.ones(len(queue), bool)
    fresh[1:] = (queue[1:] != queue[:-1]) | (first[1:] != end[:-1])
    start = np.flatnonzero(fresh)
    last = np.append(start[1:], len(queue)) - 1
    return np.stack([queue[start], first[start], end[last], rows[3, start], rows[4, last]])


class Runs:
    """The queue offsets of every queue as they follow in the log. ``numbers``: of the queues, by
    which `add` is told of them; several surveys may share them.
    """

    def __init__(self, numbers: Mapping[QueueKey, int]) -> None:
        self._numbers = numbers
        self._names: list[QueueKey] = []
        self._closed: dict[int, list[Run]] = {}
        self._open: Array = np.full((4, 0), -1, np.int64)
        self.breaks: list[tuple[int, int, bool]] = []
        """Places where a queue's offsets do not continue (the first `MAX_ODD`): physical offsets
        of the message before and of the one after, and whether offsets are just missing there.
        """

    @property
    def keys(self) -> list[QueueKey]:
        """Return the queues that have messages."""
        used = set(np.flatnonzero(self._open[1] >= 0).tolist())
        return [key for key, number in self._numbers.items() if number in used]

    def of(self, key: QueueKey) -> list[Run]:
        """Return the runs of a queue, in log order."""
        number = self._numbers.get(key, self._open.shape[1])
        if number >= self._open.shape[1] or self._open[1, number] < 0:
            return []
        return [*self._closed.get(number, ()), Run(*self._open[:, number].tolist())]

    def key_of(self, number: int) -> QueueKey:
        """Return the queue that has a number."""
        if len(self._names) < len(self._numbers):
            self._names = [*self._numbers]  # in the order of their numbers
        return self._names[number]

    def has(self, key: QueueKey, offset: int, *, twice: bool = False) -> bool:
        """Return whether a message has this queue offset; ``twice``: whether more than one has."""
        return sum(run.first <= offset < run.end for run in self.of(key)) > twice

    def add(self, rows: Array) -> None:
        """Take what `joined` gives, of messages behind those that are here."""
        more = len(self._numbers) - self._open.shape[1]
        if more > 0:
            room = np.full((4, max(64, more, self._open.shape[1])), -1, np.int64)
            self._open = np.concatenate([self._open, room], axis=1)
        queue, first = rows[0], rows[1]
        is_first = np.ones(len(queue), bool)
        is_first[1:] = queue[1:] != queue[:-1]
        goes_on = is_first & (first == self._open[1, queue])
        self._open[1, queue[goes_on]], self._open[3, queue[goes_on]] = (
            rows[2, goes_on], rows[4, goes_on])
        for row in np.flatnonzero(~goes_on).tolist():
            number = int(queue[row])
            if self._open[1, number] >= 0:
                if len(self.breaks) < MAX_ODD:
                    self.breaks.append((int(self._open[3, number]), int(rows[3, row]),
                                        int(self._open[1, number]) < int(rows[1, row])))
                self._closed.setdefault(number, []).append(Run(*self._open[:, number].tolist()))
            self._open[:, number] = rows[1:, row]


# -- the survey -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Region:
    """Physical bytes ``[start, end)`` of file number ``file`` that hold nothing intact.

    ``before`` and ``after``: store times of the intact messages around it, None without any.
    ``extents``: damaged records whose place and size are beyond doubt. ``dirty``: whether any of
    its bytes is not zero. ``previous``: place of the message that ends where it starts. ``starts``:
    where a record must have begun. ``doubtful``: see `rmqctl.scan.frames.Span`.
    """

    file: int
    start: int
    end: int
    before: int | None = None
    after: int | None = None
    dirty: bool = False
    previous: int | None = None
    extents: list[tuple[int, int]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    doubtful: list[tuple[int, int]] = field(default_factory=list)

    @property
    def time(self) -> int:
        """Return a store time for what is put here: not after that of the next message, never 0."""
        times = [time for time in (self.before, self.after) if time is not None and time > 0]
        return min(times, default=1)


@dataclass(slots=True)
class Survey:
    """Results of one pass over a log. ``used``: the number of the last file with a message."""

    regions: list[Region]
    runs: Runs
    generation: int
    messages: int = 0
    last_end: int = -1
    last_time: int | None = None
    """The store time of the last message."""
    used: int = -1
    closed: set[int] = field(default_factory=set)
    newer: list[int] = field(default_factory=list)
    """Physical offsets of messages of version 2 (the first few), which no 4.x broker reads."""
    undated: list[int] = field(default_factory=list)
    """Physical offsets of messages with the store time 0 (the first few)."""
    unchecked: list[int] = field(default_factory=list)
    """Physical offsets of messages with an empty body and a body CRC all the same."""
    with_crc: int = 0
    wrong_crcs: list[int] = field(default_factory=list)
    """Physical offsets of messages whose appended CRC is wrong (the body's is not)."""
    unsound: list[int] = field(default_factory=list)
    """Physical offsets of messages with damaged properties, that no appended CRC vouches for."""
    lacking_crc: list[int] = field(default_factory=list)
    """Physical offsets of messages without an appended CRC behind one that has it (the first
    few)."""
    glued: list[int] = field(default_factory=list)
    """Physical offsets of messages whose appended CRC is right, but is the end of another property
    (the first few): a batch does so, and no broker finds it."""
    astray: list[tuple[int, int, int]] = field(default_factory=list)
    """(physical offset, store time before, behind) of messages whose own store time lies out of
    those of their neighbours, which agree with each other (the first few). At the ends of the log
    only one neighbour is there; -1, or 2^62, replaces the other.
    """
    newest_before_last: int = -1
    """The greatest store time of all messages but the log's last."""
    host: tuple[bytes, int] | None = None
    headers: Headers = field(default_factory=Headers)
    """Intact records with fields that no broker can have written."""
    flags: set[int] = field(default_factory=set)
    """The system flags of intact messages, but for those that no release writes."""
    unknown_bits: Counter[int] = field(default_factory=Counter)
    """Number of intact messages with these bits of the system flags, which no known release writes
    (the first patterns).
    """
    inner_batch_topics: set[str] = field(default_factory=set)
    """Topics with inner batches, as the messages say: no broker takes these for a plain queue."""
    skipping: set[str] = field(default_factory=set)
    """Light queues some of whose queue offsets a broker gave to messages without writing a row."""

    borders: list[Array] = field(default_factory=list)
    """Intact records beside damage that have a consume queue entry, by column, int64 of shape
    (4, n): number of the queue, queue offset, physical offset, size."""

    def add(self, behind: Survey) -> None:
        """Take in what was found in the part of the log after this one, but for its runs."""
        self.regions += behind.regions
        self.borders += behind.borders
        if behind.messages:
            self.used, self.last_end = behind.used, behind.last_end
        self.messages += behind.messages
        self.with_crc += behind.with_crc
        self.closed |= behind.closed
        for name in ("newer", "undated", "unchecked", "lacking_crc", "glued",
                     "astray"):
            listed = getattr(self, name)
            listed += getattr(behind, name)[:max(0, MAX_ODD - len(listed))]
        for name in ("wrong_crcs", "unsound"):
            listed = getattr(self, name)
            listed += getattr(behind, name)[:max(0, MAX_LISTED - len(listed))]
        self.newest_before_last = max(self.newest_before_last, behind.newest_before_last)
        self.host = self.host or behind.host
        self.headers.merge(behind.headers)
        self.flags |= behind.flags
        self.count_unknown_bits(behind.unknown_bits)
        self.inner_batch_topics |= behind.inner_batch_topics
        self.skipping |= behind.skipping

    def count_unknown_bits(self, seen: Mapping[int, int]) -> None:
        """Add counts of patterns; new ones only while few are known."""
        for bits, count in seen.items():
            if bits in self.unknown_bits or len(self.unknown_bits) < MAX_ODD:
                self.unknown_bits[bits] += count

    @property
    def has_crcs(self) -> bool:
        """Return whether the store's messages carry appended CRCs: most of them do."""
        return 2 * self.with_crc > self.messages

    @property
    def unclear(self) -> list[tuple[int, int]]:
        """Return (physical offset, size) of whole records in damage that may be messages."""
        return [span for region in self.regions for span in region.doubtful]

    def doubtful(self) -> set[int]:
        """Return messages that the store's appended CRCs prove damaged; empty where it has none.

        One without the CRC is none of them: the feature may have been off for a while, or another
        version wrote it, and a broker reads it (commitlog.md §5.4).
        """
        return set(self.wrong_crcs) if self.has_crcs else set()
