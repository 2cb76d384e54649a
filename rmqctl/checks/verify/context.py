"""Results of a pass over the log, shared by the checks that explain them.

The results of each range of the log are plain values, merged in log order.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from rmqctl.checks.findings import INFO
from rmqctl.checks.verify.common import plural
from rmqctl.checks.verify.index.keys import KeyTally
from rmqctl.checks.verify.log.seals import Seals
from rmqctl.checks.verify.queue.rows import QueueKey, QueueTally, merged
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.header_rules import LONG_PAUSE, TIME_SLACK
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import BLANK, Array, Span
from rmqctl.scan.headers import Headers
from rmqctl.store.config.config import topic_table
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.checks.verify.log.entries import EntryTally
    from rmqctl.scan.profile import LogProfile

_IN_MEMORY = "not yet flushed by the broker"
_WAS_IN_MEMORY = "never flushed by the killed broker"
MAX_LISTED = 100_000
"""Maximum number of damaged records and spans that are listed; the rest is counted."""
_SYSTEM = ("rmq_sys_", "RMQ_SYS_", props.SCHEDULE_TOPIC)


class StartRepairs(NamedTuple):
    """Effect of a startup on a finding.

    * ``by``: releases that repair it without losing a message
    * ``not_by``: releases that do not
    * ``entries_lost``: number of index entries that the startup discards permanently
    * ``unflushed``: if entries are or were only in a broker's memory, and the log has all of their
      messages, the reason why they are not on disk; otherwise ""
    """

    by: tuple[str, ...] = ()
    not_by: tuple[str, ...] = ()
    entries_lost: int = 0
    unflushed: str = ""

    @property
    def severity(self) -> str:
        """Return INFO if all of these releases repair the finding.

        Also return INFO if the finding's entries are only unflushed. Otherwise return "": the
        finding then has the severity of its category.
        """
        return INFO if self.unflushed or (self.by and not self.not_by) else ""

    def words(self, action: str) -> str:
        """Return text to append to a detail; "" if there is nothing to say.

        An example is ``; startup recreates them (4.9.3, 5.3.3)``. If only some releases do,
        the text names these. For unflushed entries, it is the reason.
        ``action``: what the startup does.
        """
        if not self.by:
            return f"; {self.unflushed}" if self.unflushed else ""
        if not self.not_by:
            return f"; startup {action} ({', '.join(self.by)})"
        return f"; only {' or '.join(self.by)} {action}"

    def index_words(self, action: str) -> str:
        """Return `words` for an index finding, with the number of entries that a startup loses."""
        words = self.words(action)
        if words and self.entries_lost:
            count = self.entries_lost
            words += (f"; {plural(count, 'discarded entry is', 'discarded entries are')} not "
                      "recreated")
        return words


class Starts(Protocol):
    """Prediction of the next broker startup; see `rmqctl.checks.verify.at_start`."""

    def rows(self, key: QueueKey, place: int | None, end: int) -> StartRepairs: ...

    def keys(self, place: int | None) -> StartRepairs: ...

    def rely(self) -> None: ...


@dataclass
class Context:
    """Results about the whole log, to look up the messages that unmatched entries point to."""

    store: Store
    result: RangeResult
    log_end: int
    live: bool = False
    known_topics: frozenset[str] | None = None
    looked_at: list[tuple[int, int]] | None = None
    damage_starts: list[int] = field(default_factory=list)
    damage_ends: list[int] = field(default_factory=list)
    lost: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    loose_rows: dict[int, tuple[QueueKey, int]] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)
    at_start: Starts | None = None
    """Prediction of the next startup, used if entries are missing; None while a broker runs."""

    def __post_init__(self) -> None:
        holes = [(span.offset, span.end) for span in self.result.spans]
        holes += [(bad.offset, bad.offset + bad.size) for bad in self.result.bad]
        holes += [(gap.start, gap.end) for gap in self.store.log.gaps()]
        for start, end in merged(holes):
            self.damage_starts.append(start)
            self.damage_ends.append(end)

    def start_repairs_of_rows(self, key: QueueKey, place: int | None,
                              end: int | None = None) -> StartRepairs:
        """Return which releases recreate the missing entries of a queue.

        ``place``: physical offset of the first message with a missing entry (None: unknown).
        ``end``: queue offset after the queue's last message; needed only if the queue is not plain.
        """
        unflushed = self.unflushed if place is not None and self.is_unflushed(place) else ""
        if self.at_start is None:
            return StartRepairs(unflushed=unflushed)
        repairs = self.at_start.rows(key, place, self.result.queues[key].next_offset if end is None
                                     else end)
        if not unflushed or repairs.severity:
            return repairs
        self.at_start.rely()
        return repairs._replace(unflushed=unflushed)

    def is_unflushed(self, place: int) -> bool:
        """Return whether the entry of the message at ``place`` may be missing because a broker did
        not flush it.
        """
        return self._flushed_to is not None and place >= self._flushed_to

    @property
    def unflushed(self) -> str:
        """Return the text that explains why entries are not on disk."""
        return _IN_MEMORY if self.live else _WAS_IN_MEMORY

    @cached_property
    def _flushed_to(self) -> int | None:
        """Return the physical offset up to which a broker has flushed all entries to RocksDB.

        None if the offset is unknown, or if all entries must be on disk, because the queues are in
        files or the shutdown was clean.

        A broker writes entries in log order, without a write-ahead log, and flushes the two column
        families together. So the checkpoint on disk shows which entries are on disk. Later entries
        are only in the broker's memory (rocksdb.md §4).
        """
        store = self.store
        if store.layout.consumequeue != "rocksdb" or not (self.live or store.has_abort):
            return None
        database = store.queues.rocksdb
        if database is None or database.why_no_checkpoint:
            return None
        return database.checkpoint

    def start_repairs_of_keys(self, place: int | None) -> StartRepairs:
        """Return which releases recreate the missing index entries, from the message at physical
        offset ``place`` on.
        """
        return StartRepairs() if self.at_start is None else self.at_start.keys(place)

    @cached_property
    def rowless(self) -> set[int]:
        """Return the physical offsets of messages whose entry in an ordinary queue (not a light
        queue) is missing or empty.
        """
        return {claim.physical_offset for (topic, _), tally in self.result.queues.items()
                if not topic.startswith(props.LMQ_PREFIX)
                for claim in tally.claims if claim.row is None or not any(claim.row)}

    @cached_property
    def default_delays(self) -> bool:
        """Return whether the entry of any delayed message has the due time of the default delay
        table.
        """
        return any(tally.agreeing for (topic, _), tally in self.result.queues.items()
                   if topic == props.SCHEDULE_TOPIC)

    def was_read(self, physical: int) -> bool:
        """Return whether this run of `verify` read the log at this physical offset."""
        return self.looked_at is None or any(
            start <= physical < end for start, end in self.looked_at)

    @cached_property
    def is_damaged(self) -> bool:
        """Return whether the log has damage before its end."""
        return bool(self.result.bad) or any(
            span.kind != BLANK and span.offset < self.log_end for span in self.result.spans)

    def in_damage(self, physical: int) -> bool:
        index = bisect_right(self.damage_starts, physical) - 1
        return index >= 0 and physical < self.damage_ends[index]

    def in_damages(self, physical: Array) -> Array:
        """Return a boolean array: whether each physical offset is in a damaged part."""
        starts, ends = self._damage
        inside: Array = (np.searchsorted(starts, physical, "right")
                         > np.searchsorted(ends, physical, "right"))
        return inside

    @cached_property
    def _damage(self) -> tuple[Array, Array]:
        return np.array(self.damage_starts, np.int64), np.array(self.damage_ends, np.int64)


class BadRecord(NamedTuple):
    """A complete record with a damaged body or damaged properties.

    ``field``: the damaged part, ``body`` or ``properties``.
    ``why``: what is wrong with the properties, if no checksum shows their damage; otherwise "".
    """

    offset: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    field: str
    why: str = ""
    is_body: bool = False
    """True if the record has a body that does not match its CRC."""
    rowed: bool = True
    """True if messages of this transaction type have a consume queue entry."""


@dataclass(slots=True)
class PassFacts:
    """Data that the pass collects, so that a prediction need not read the log again.

    `rmqctl.checks.preflight.from_pass` uses it. All offsets are physical.

    * ``intact_end``: the offset after the last intact message
    * ``blanks``: offsets of the blank records that close files
    * ``odd_numbers``: offsets of records with a numeric property that a broker cannot parse
    * ``first_v2``: offset of the first record of version 2
    * ``complete``: whether all of this data was kept and no message has additional entries
    * ``first_time``, ``last_time``: store times (ms) of the first and the last intact message
    * ``in_order``: whether no store time is clearly lower than the one before, or much greater
    * ``ascending``: whether no store time is lower than the one before
    """

    intact_end: int = -1
    blanks: list[int] = field(default_factory=list)
    odd_numbers: list[int] = field(default_factory=list)
    first_v2: int | None = None
    complete: bool = True
    first_time: int | None = None
    last_time: int | None = None
    in_order: bool = True
    ascending: bool = True

    def follow(self, first: int | None, last: int | None, *, in_order: bool,
               ascending: bool) -> None:
        """Add the first and the last store time of the next messages."""
        if first is None:
            return
        if self.last_time is not None:
            in_order &= -TIME_SLACK <= first - self.last_time <= LONG_PAUSE
            ascending &= first >= self.last_time
        self.first_time = first if self.first_time is None else self.first_time
        self.last_time, self.in_order = last, self.in_order and in_order
        self.ascending &= ascending

    def merge(self, other: PassFacts) -> None:
        """Merge the data of the range after this one."""
        self.follow(other.first_time, other.last_time, in_order=other.in_order,
                    ascending=other.ascending)
        self.intact_end = max(self.intact_end, other.intact_end)
        self.blanks += other.blanks
        self.odd_numbers += other.odd_numbers
        self.first_v2 = other.first_v2 if self.first_v2 is None else self.first_v2
        self.complete &= other.complete


@dataclass(slots=True)
class RangeResult:
    """Results of one range of the log. Byte counts refer to the frames that start in the range."""

    first: int
    position: int = 0
    messages: int = 0
    bytes_in_messages: int = 0
    bytes_blank: int = 0
    bytes_zero: int = 0
    bytes_damaged: int = 0
    bytes_unverifiable: int = 0
    with_property_crc: int = 0
    seals: Seals = field(default_factory=Seals)
    keyed: int = 0
    last_store_timestamp: int | None = None
    last_record_end: int | None = None
    last_record_start: int | None = None
    shrunk: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)
    unlisted: int = 0
    queues: dict[QueueKey, QueueTally] = field(default_factory=dict)
    batch_rows: dict[QueueKey, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    keys: KeyTally = field(default_factory=KeyTally)
    headers: Headers = field(default_factory=Headers)
    fillers: dict[str, int] = field(default_factory=dict)
    """Number of fillers by topic."""
    first_filler: int | None = None
    kept_damaged: int = 0
    """Number of messages with damaged bodies that a repair kept."""
    first_kept: int | None = None
    profile: LogProfile | None = None
    """Profile of the log; None if no profile was requested."""
    entries: EntryTally | None = None
    """Entries of a DLedger log; None for any other log."""
    passed: PassFacts = field(default_factory=PassFacts)

    def keep_bad(self, record: BadRecord) -> None:
        """Add a damaged record to the list; beyond the limit of the list, only count it."""
        if len(self.bad) < MAX_LISTED:
            self.bad.append(record)
        else:
            self.unlisted += 1

    def merge(self, other: RangeResult) -> None:
        """Merge the result of the range after this one."""
        # The position reached, and the sums.
        if self.entries is not None and other.entries is not None:
            self.entries.merge(other.entries, adjacent=self.position == other.first)
        self.position = other.position
        for name in ("messages", "bytes_in_messages", "bytes_blank", "bytes_zero",
                     "bytes_damaged", "bytes_unverifiable", "with_property_crc", "keyed",
                     "unlisted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        # The last message, and the damage.
        times = [t for t in (self.last_store_timestamp, other.last_store_timestamp)
                 if t is not None]
        self.last_store_timestamp = max(times, default=None)
        if other.last_record_end is not None:
            self.last_record_end = other.last_record_end
            self.last_record_start = other.last_record_start
        self.shrunk += other.shrunk
        self.spans += other.spans
        self.bad += other.bad
        # The queues; of facts that are only shown once, the first counts.
        for key, tally in other.queues.items():
            if key in self.queues:
                self.queues[key].merge(tally)
            else:
                self.queues[key] = tally
        for key, rows in other.batch_rows.items():
            self.batch_rows.setdefault(key, []).extend(rows)
        self.keys.merge(other.keys)
        self.seals.merge(other.seals)
        self.headers.merge(other.headers)
        self.passed.merge(other.passed)
        for topic, count in other.fillers.items():
            self.fillers[topic] = self.fillers.get(topic, 0) + count
        if self.first_filler is None:
            self.first_filler = other.first_filler
        self.kept_damaged += other.kept_damaged
        if self.first_kept is None:
            self.first_kept = other.first_kept
        if self.profile is not None and other.profile is not None:
            self.profile.merge(other.profile)


@dataclass(slots=True)
class ComparedStructures:
    """Structures that the pass compares with the log.

    ``profile``: whether the pass also creates a profile.
    ``plain``: whether the pass raises `NotPlainError` as soon as the log cannot be plain.
    """

    queues: bool = True
    index: bool = True
    profile: bool = False
    plain: bool = False


class NotPlainError(Exception):
    """A log with damage, with messages of special kinds, or whose messages the compiled check does
    not accept.
    """


def known_topics(store: Store) -> frozenset[str] | None:
    """Return the configured topics; None if they cannot be read.

    Also None if the broker does not store the topics that it creates itself (rocksdb.md §7, v2).
    """
    if store.layout.config == "rocksdb-v2":
        return None
    table = topic_table(store)
    return frozenset(table) if table else None


def deleted(topic: str, configured: frozenset[str] | None) -> bool:
    """Return whether brokers regard a topic as deleted: it is missing from an existing
    configuration and is not a system topic.
    """
    return configured is not None and topic not in configured and not topic.startswith(_SYSTEM)
