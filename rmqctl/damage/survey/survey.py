"""Survey of a log: its damaged regions, the runs of queue offsets, and anomalies.

A record is intact if a broker's recovery accepts it (commitlog.md §9): it is provably a record, and
its body matches its CRC. If a store's messages have an appended CRC, this CRC must also match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field

import numpy as np

from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.scan.headers import Headers

MAX_LISTED, MAX_ODD = 1_000_000, 1000
"""Maximum number of positions that are kept for one kind of anomaly: ``MAX_LISTED`` for frequent
kinds, ``MAX_ODD`` for rare kinds.
"""


# -- how the queue offsets of a queue follow each other -------------------------------------------


@dataclass(slots=True)
class Run:
    """Messages of one queue with consecutive queue offsets ``[first, end)``, in log order. ``low``
    and ``high``: physical offsets of the first and the last message.
    """

    first: int
    end: int
    low: int
    high: int


def joined(rows: Array) -> Array:
    """Merge adjacent runs of each queue.

    Runs are given and returned by column, int64 of shape (5, n): queue number, first queue offset,
    end, physical offsets of the first and the last message. The result is sorted by queue number;
    the runs of a queue stay in log order.
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
    """The runs of every queue, in log order. ``numbers``: the number of each queue, as used in
    `add`. Several surveys may share this mapping.
    """

    def __init__(self, numbers: Mapping[QueueKey, int]) -> None:
        self._numbers = numbers
        self._names: list[QueueKey] = []
        self._closed: dict[int, list[Run]] = {}
        self._open: Array = np.full((4, 0), -1, np.int64)
        self.breaks: list[tuple[int, int, bool]] = []
        """The first `MAX_ODD` breaks between two runs of a queue. Each break is (physical offset of
        the message before, physical offset of the message after, flag). The flag is True if queue
        offsets are missing, and False if they repeat.
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
        """Return the queue with this number."""
        if len(self._names) < len(self._numbers):
            self._names = [*self._numbers]  # in the order of their numbers
        return self._names[number]

    def has(self, key: QueueKey, offset: int, *, twice: bool = False) -> bool:
        """Return whether a message has this queue offset, or, with ``twice``, whether several
        messages have it.
        """
        return sum(run.first <= offset < run.end for run in self.of(key)) > twice

    def add(self, rows: Array) -> None:
        """Add runs in the format of `joined`. Their messages must be after all messages added
        before.
        """
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
    """A damaged region without intact records: physical offsets ``[start, end)`` of file number
    ``file``.

    ``before`` and ``after``: store times of the adjacent intact messages, if there are any.
    ``dirty``: at least one byte is not zero.
    ``previous``: physical offset of the message that ends at the start of the region.
    ``extents``: physical offset and size of damaged records, if certain.
    ``starts``: physical offsets at which a record must have begun.
    ``doubtful``: see `rmqctl.scan.frames.Span`.
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
        """Return a store time for a record that is written in this region. The time is positive and
        not later than the next message's time.
        """
        times = [time for time in (self.before, self.after) if time is not None and time > 0]
        return min(times, default=1)


@dataclass(slots=True)
class Survey:
    """Results of one scan of a log.

    ``last_end``: end of the last message.
    ``used``: index of the file that contains the last message.
    ``closed``: indexes of the files with an end-of-file record.
    """

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
    """Physical offsets of the first few version 2 messages, which no 4.x broker reads."""
    undated: list[int] = field(default_factory=list)
    """Physical offsets of messages with the store time 0 (the first few)."""
    unchecked: list[int] = field(default_factory=list)
    """Physical offsets of messages with an empty body but a body CRC other than 0 (the first
    few).
    """
    with_crc: int = 0
    wrong_crcs: list[int] = field(default_factory=list)
    """Physical offsets of messages whose appended CRC is wrong although the body CRC matches."""
    unsound: list[int] = field(default_factory=list)
    """Physical offsets of messages with damaged properties and no matching appended CRC."""
    lacking_crc: list[int] = field(default_factory=list)
    """Physical offsets of the first messages without an appended CRC that follow a message with an
    appended CRC.
    """
    glued: list[int] = field(default_factory=list)
    """Physical offsets of the first messages whose appended CRC matches, but is not separated from
    the property before it. No broker finds such a CRC, but brokers write batches in this form.
    """
    astray: list[tuple[int, int, int]] = field(default_factory=list)
    """The first messages whose store time is out of order although the store times of their two
    neighbours are in order.

    Each is (physical offset, store time of the previous message or -1, store time of the next
    message or 2^62).
    """
    newest_before_last: int = -1
    """The greatest store time of all messages except the last message of the log."""
    host: tuple[bytes, int] | None = None
    headers: Headers = field(default_factory=Headers)
    """Intact records with header fields that no broker can have written."""
    flags: set[int] = field(default_factory=set)
    """All values of the system flags of intact messages, without values that no release writes."""
    unknown_bits: Counter[int] = field(default_factory=Counter)
    """Number of intact messages for each combination of system flag bits that no known release
    writes (only the first combinations).
    """
    inner_batch_topics: set[str] = field(default_factory=set)
    """Topics that have inner batches according to their messages."""
    skipping: set[str] = field(default_factory=set)
    """Light queues for which a broker assigned queue offsets without writing consume queue
    entries.
    """

    borders: list[Array] = field(default_factory=list)
    """Intact records that are next to damage and should have a consume queue entry.

    By column, int64 of shape (4, n): queue number, queue offset, physical offset, size.
    """

    def add(self, behind: Survey) -> None:
        """Add the results for the next part of the log, except the runs."""
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
        """Add message counts by bit pattern; ignore new patterns once `MAX_ODD` are known."""
        for bits, count in seen.items():
            if bits in self.unknown_bits or len(self.unknown_bits) < MAX_ODD:
                self.unknown_bits[bits] += count

    @property
    def has_crcs(self) -> bool:
        """Return whether most of the store's messages have an appended CRC."""
        return 2 * self.with_crc > self.messages

    @property
    def unclear(self) -> list[tuple[int, int]]:
        """Return the physical offset and size of each intact record inside damage that may be a
        message.
        """
        return [span for region in self.regions for span in region.doubtful]

    def doubtful(self) -> set[int]:
        """Return the physical offsets of messages with a wrong appended CRC. The set is empty if at
        most half of the store's messages have an appended CRC.

        A missing CRC is not a reason for doubt, because a broker reads these messages (commitlog.md
        §5.4).
        """
        return set(self.wrong_crcs) if self.has_crcs else set()
