"""What of a log is intact: one pass gives the damaged regions and how the queues' offsets run.

A record is intact when a broker's recovery accepts it (commitlog.md §9): provably a record, and
its body matches its CRC. Where a store's messages carry an appended CRC, that must match too.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.header_rules import MOST_PORT
from rmqctl.formats.local.message import MAGIC_V2, decode
from rmqctl.scan import text
from rmqctl.scan.derived import QueueKey, QueueTable, batch_ranges
from rmqctl.scan.frames import BLANK, DAMAGED, Array, Batch, Span, examine, gather
from rmqctl.scan.headers import Headers, bad_numbers
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.queue_reach import NOT_DISPATCHED, LightQueues, dispatched_rows, skipped_rows
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store

_SLACK = 1000
"""Milliseconds a store time may be out of order without being looked at."""
_LONG_PAUSE = 30 * 24 * 3600 * 1000
"""Milliseconds behind the others that make the last store time worth a look."""
_FAR = 1 << 61
"""Milliseconds to which a pause can be added; no time is near it."""
_MOST_LISTED, _MOST_ODD = 1_000_000, 1000
_CRC_NAME = np.frombuffer(append_crc.build(0)[:append_crc.SIZE - append_crc.DIGITS - 1], np.uint8)


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


class Runs:
    """The queue offsets of every queue as they follow in the log."""

    def __init__(self) -> None:
        self.keys: list[QueueKey] = []
        self._numbers: dict[QueueKey, int] = {}
        self._closed: dict[int, list[Run]] = {}
        self._first: Array = np.zeros(0, np.int64)
        self._end: Array = np.zeros(0, np.int64)
        self._low: Array = np.zeros(0, np.int64)
        self._high: Array = np.zeros(0, np.int64)

    def number(self, key: QueueKey) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.keys)
            self.keys.append(key)
            if number >= len(self._end):
                room = np.full(max(64, number), -1, np.int64)
                self._first, self._end, self._low, self._high = (
                    np.concatenate([column, room])
                    for column in (self._first, self._end, self._low, self._high))
        return number

    def of(self, key: QueueKey) -> list[Run]:
        """The runs of a queue, in log order."""
        number = self._numbers.get(key)
        if number is None:
            return []
        runs = list(self._closed.get(number, ()))
        if self._end[number] >= 0:
            runs.append(Run(int(self._first[number]), int(self._end[number]),
                            int(self._low[number]), int(self._high[number])))
        return runs

    def add(self, queue: Array, first: Array, count: Array, physical: Array) -> None:
        """Rows in log order: queue number, first queue offset, how many, place (all int64)."""
        if not len(queue):
            return
        order = np.argsort(queue, kind="stable")
        queue, first, physical = queue[order], first[order], physical[order]
        end = first + count[order]
        fresh = np.ones(len(queue), bool)
        fresh[1:] = (queue[1:] != queue[:-1]) | (first[1:] != end[:-1])
        start = np.flatnonzero(fresh)
        last = np.append(start[1:], len(queue)) - 1
        runs = queue[start]
        other = np.ones(len(runs), bool)
        other[1:] = runs[1:] != runs[:-1]
        goes_on = other & (first[start] == self._end[runs])
        self._end[runs[goes_on]] = end[last[goes_on]]
        self._high[runs[goes_on]] = physical[last[goes_on]]
        for row in np.flatnonzero(~goes_on).tolist():
            number, a, b = int(runs[row]), int(start[row]), int(last[row])
            if self._end[number] >= 0:
                self._closed.setdefault(number, []).append(Run(
                    int(self._first[number]), int(self._end[number]), int(self._low[number]),
                    int(self._high[number])))
            self._first[number], self._end[number] = first[a], end[b]
            self._low[number], self._high[number] = physical[a], physical[b]


# -- the survey -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Region:
    """Physical bytes ``[start, end)`` of file number ``file`` that hold nothing intact.

    ``before`` and ``after``: store times of the intact messages around it, None where there is
    none. ``extents``: damaged records whose place and size are beyond doubt. ``dirty``: whether
    any of its bytes is not zero. ``previous``: place of the message that ends where it starts.
    ``starts``: where a record must have begun. ``doubtful``: see `rmqctl.scan.frames.Span`.
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
        """A store time for what is put here: not after that of the next message, never 0."""
        known = [time for time in (self.before, self.after) if time is not None and time > 0]
        return min(known, default=1)


@dataclass(slots=True)
class Survey:
    """What one pass over a log found. ``used``: the number of the last file with a message."""

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
    lacking_crc: list[int] = field(default_factory=list)
    """Physical offsets of messages without an appended CRC behind one that has it (the first
    few)."""
    astray: list[tuple[int, int, int]] = field(default_factory=list)
    """(physical offset, store time before, behind) of messages whose own store time lies out of
    those of their neighbours, which agree with each other (the first few). At the ends of the log
    only one neighbour is there; -1, or 2^62, stands for the other."""
    newest_before_last: int = -1
    """The greatest store time of all messages but the log's last."""
    host: tuple[bytes, int] | None = None
    headers: Headers = field(default_factory=Headers)
    """Intact records with fields that no broker can have written."""
    inner_batch_topics: set[str] = field(default_factory=set)
    """Topics with inner batches, as the messages say: no broker takes these for a plain queue."""
    skipping: set[str] = field(default_factory=set)
    """Light queues some of whose queue offsets a broker gave to messages without writing a row."""

    @property
    def has_crcs(self) -> bool:
        """Whether the store's messages carry appended CRCs: most of them do."""
        return 2 * self.with_crc > self.messages

    @property
    def unclear(self) -> list[tuple[int, int]]:
        """(physical offset, size) of whole records in damage that may be messages."""
        return [span for region in self.regions for span in region.doubtful]

    def doubtful(self) -> set[int]:
        """Messages that the store's appended CRCs prove damaged; empty where it has none.

        One without the CRC is none of them: the feature may have been off for a while, or
        another version wrote it, and a broker reads it (commitlog.md §5.4).
        """
        return set(self.wrong_crcs) if self.has_crcs else set()


class Surveyor:
    """Walks the parts of a log, file by file.

    ``batch_topics``: those with batch queues. ``rejected``: physical offsets of records that
    count as damaged. ``confirmed`` (physical offset -> size): records in damaged bytes which the
    walk cannot prove (without a body, and nothing whole behind them), but something else does.
    ``store``: whose consumequeues say under which queue ids light queues lie.
    """

    def __init__(self, generation: int, batch_topics: Iterable[str],
                 rejected: Iterable[int] = (), confirmed: Mapping[int, int] | None = None,
                 progress: Callable[[int], None] | None = None, *,
                 store: Store | None = None) -> None:
        self._generation = generation
        self._light = LightQueues() if store is None else store.light_queues
        self._leads = None if store is None else store.leads
        self._names = text.Dictionary()
        self._batched = {os.fsencode(topic) for topic in batch_topics}
        self._progress = progress or (lambda _bytes: None)
        self._rejected = np.array(sorted(rejected), np.int64)
        self._confirmed = confirmed or {}
        self._confirmed_places = sorted(self._confirmed)
        self._topics = text.Dictionary()
        self.survey = Survey([], Runs(), generation)
        self._table = QueueTable(self._topics, self.survey.runs.number)
        self._waiting: list[Region] = []
        self._time: int | None = None
        self._previous = -1, -1
        self._last: list[tuple[int, int]] = []

    def run(self, parts: Sequence[LogPart]) -> Survey:
        """StoreIOError when a file cannot be read."""
        for number, part in enumerate(parts):
            self._file(number, part)
            self._progress(part.size)
        self.survey.last_time = self._time
        self.survey.headers.settle()
        if len(self._last) > 1:
            (_, before), (physical, when) = self._last
            if not before - _SLACK <= when <= before + _LONG_PAUSE:
                self.survey.astray.append((physical, before, 1 << 62))
        return self.survey

    def _file(self, number: int, part: LogPart) -> None:
        survey = self.survey
        with part.open() as source:
            if part.path is None and not part.pieces:
                self._damage(Region(number, part.base, part.end))
                return
            for batch in Walk(source):
                self._messages(number, batch)
                for span in batch.spans:
                    if span.kind != BLANK:
                        self._span(number, source, span)
                    elif self._goes_on(number, span.offset):
                        # It does not say where it belongs: it may be that of another file.
                        self._damage(Region(number, span.offset, span.end, dirty=True))
                    else:
                        survey.closed.add(number)

    def _span(self, number: int, source: Source, span: Span) -> None:
        """A damaged span, cut where records in it are vouched for."""
        position = span.offset
        first = bisect_left(self._confirmed_places, position)
        for physical in self._confirmed_places[first:bisect_left(self._confirmed_places, span.end)]:
            size = self._confirmed[physical]
            raw = source.read(physical - source.base, size)
            batch, ok = examine(np.frombuffer(raw, np.uint8), physical, np.zeros(1, np.int64))
            if physical < position or physical + size > span.end or not ok.all():
                continue
            if position < physical:
                self._damage(Region(number, position, physical, dirty=span.kind == DAMAGED))
            self._messages(number, batch)
            position = physical + size
        if position < span.end:
            complete = position == span.offset and span.located
            self._damage(Region(number, position, span.end, dirty=span.kind == DAMAGED,
                                extents=[(span.offset, span.length)] if complete else [],
                                doubtful=[span for span in span.doubtful if span[0] >= position]))

    def _goes_on(self, number: int, position: int) -> bool:
        """Whether the last damaged region ends at a place in a file."""
        last = self.survey.regions[-1] if self.survey.regions else None
        return last is not None and last.file == number and last.end == position

    def _damage(self, region: Region) -> None:
        region.before = self._time
        if self._previous[1] == region.start:
            region.previous = self._previous[0]
        if self._goes_on(region.file, region.start):
            last = self.survey.regions[-1]
            last.end, last.dirty = region.end, last.dirty or region.dirty
            last.extents += region.extents
            last.starts.append(region.start)
            last.doubtful += region.doubtful
            return
        region.starts.append(region.start)
        self.survey.regions.append(region)
        self._waiting.append(region)

    # -- one batch --------------------------------------------------------------------------------

    def _messages(self, number: int, batch: Batch) -> None:
        if not len(batch):
            return
        survey = self.survey
        bad = ~batch.crc_ok() & (batch.column("body_length") > 0)
        if len(self._rejected):
            bad |= np.isin(batch.offset, self._rejected)
        self._appended_crcs(batch, bad)
        offset, size = batch.offset, batch.column("total_size")
        when = batch.column("store_timestamp")
        if bad.any():
            self._bad(number, batch, np.flatnonzero(bad))
        good = np.flatnonzero(~bad)
        if not len(good):
            return
        if not bad.any():
            self._settle(int(when[0]))
            self._time = int(when[-1])
            self._previous = int(offset[-1]), int(offset[-1] + size[-1])
        survey.messages += len(good)
        survey.used, survey.last_end = number, int(offset[good[-1]] + size[good[-1]])
        survey.headers.add(batch, ~bad if bad.any() else None,
                           bad_numbers(batch, self._generation))
        self._oddities(batch, good)
        self._times(offset[good], when[good])
        self._rows(batch.select(good) if bad.any() else batch)

    def _appended_crcs(self, batch: Batch, bad: Array) -> None:
        survey, offset = self.survey, batch.offset
        with_crc, wrong = appended_crcs(batch)
        good = with_crc & ~wrong
        count = int(np.count_nonzero(good))
        if not count and not survey.with_crc:
            return
        survey.with_crc += count
        if len(survey.wrong_crcs) < _MOST_LISTED:
            survey.wrong_crcs += offset[wrong & ~bad].tolist()
        if len(survey.lacking_crc) < _MOST_ODD:
            first = 0 if survey.with_crc > count else int(good.argmax())
            survey.lacking_crc += offset[first:][~with_crc[first:] & ~bad[first:]].tolist()

    def _bad(self, number: int, batch: Batch, rows: Array) -> None:
        """Records with a wrong body CRC become regions; times come from those between them."""
        offset, size = batch.offset.tolist(), batch.column("total_size").tolist()
        when = batch.column("store_timestamp").tolist()
        first = 0
        for row in [*rows.tolist(), len(when)]:
            if row > first:
                self._settle(when[first])
                self._time = when[row - 1]
                self._previous = offset[row - 1], offset[row - 1] + size[row - 1]
            if row < len(when):
                self._damage(Region(number, offset[row], offset[row] + size[row], dirty=True,
                                    extents=[(offset[row], size[row])]))
            first = row + 1

    def _settle(self, time: int) -> None:
        for region in self._waiting:
            region.after = time
        self._waiting.clear()

    def _oddities(self, batch: Batch, good: Array) -> None:
        survey, offset = self.survey, batch.offset
        for which, offsets in (
                (batch.column("magic") == MAGIC_V2, survey.newer),
                (batch.column("store_timestamp") == 0, survey.undated),
                ((batch.column("body_length") == 0) & (batch.column("body_crc") != 0),
                 survey.unchecked)):
            if which[good].any() and len(offsets) < _MOST_ODD:
                offsets.extend(offset[good][which[good]].tolist())
        if survey.host is None:
            flags = batch.column("sys_flag")[good]
            port = batch.column("store_host.port")[good]
            plain = np.flatnonzero((flags & (sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6) == 0)
                                   & (port >= 0) & (port <= MOST_PORT))
            if len(plain):
                survey.host = decode(batch.bytes_at(int(good[plain[0]]))).store_host

    def _times(self, offset: Array, when: Array) -> None:
        """Looks for single store times out of order; the last two messages wait for the next."""
        when = np.clip(when, -_FAR, _FAR)
        is_start = len(self._last) < 2
        offset = np.concatenate([np.array([physical for physical, _ in self._last], np.int64),
                                 offset])
        when = np.concatenate([np.array([stamp for _, stamp in self._last], np.int64), when])
        self._last = list(zip(offset[-2:].tolist(), when[-2:].tolist(), strict=True))
        if len(when) > 1:
            self.survey.newest_before_last = max(self.survey.newest_before_last,
                                                 int(when[:-1].max()))
        if is_start and len(when) > 1 and not (
                when[1] - _LONG_PAUSE <= when[0] <= when[1] + _SLACK):
            self.survey.astray.append((int(offset[0]), -1, int(when[1])))
        before, own_times, behind = when[:-2], when[1:-1], when[2:]
        out = (before <= behind) & ((own_times < before - _SLACK) | (own_times > behind + _SLACK))
        if out.any() and len(self.survey.astray) < _MOST_ODD:
            self.survey.astray += list(zip(offset[1:-1][out].tolist(), before[out].tolist(),
                                           behind[out].tolist(), strict=True))

    def _rows(self, batch: Batch) -> None:
        topic = self._topics.encode(text.topics(batch))
        kind = batch.column("sys_flag") & sysflag.TRANSACTION_MASK
        rowed = (kind == sysflag.TRANSACTION_NONE) | (kind == sysflag.TRANSACTION_COMMIT)
        queue = self._table.encode(topic, batch.column("queue_id"))
        first, count = batch.column("queue_offset"), np.ones(len(batch), np.int64)
        properties: text.Properties | None = None
        inner = (batch.column("sys_flag") & sysflag.INNER_BATCH) != 0
        batched = np.array([topic in self._batched for topic in self._topics.texts], bool)[topic]
        batched &= self._generation >= 5
        if inner.any() or batched.any():
            properties = text.Properties(batch)
            ranges = batch_ranges(properties, first)
            # Without a word from topics.json or a folder: the flag, and both numbers fit.
            inner &= (ranges[0] == first) & (ranges[1] > 1)
            self.survey.inner_batch_topics.update(
                os.fsdecode(self._topics.texts[number]) for number in np.unique(topic[inner]))
            if self._generation >= 5:
                first = np.where(batched, ranges[0], first)
                count = np.where(batched | inner, ranges[1], count)
        which = np.flatnonzero(rowed & (first >= 0) & (count > 0))
        columns: list[Any] = [queue[which], first[which], count[which], batch.offset[which]]
        further = self._further(batch, topic, rowed, properties)
        if further is not None:
            columns = [np.concatenate(pair) for pair in zip(columns, further, strict=True)]
            order = np.argsort(columns[3], kind="stable")
            columns = [column[order] for column in columns]
        self.survey.runs.add(*columns)

    def _further(self, batch: Batch, topic: Array, rowed: Array,
                 properties: text.Properties | None) -> tuple[Array, Array, Array, Array] | None:
        """Rows of multi-dispatched messages in other queues (consumequeue.md §10).

        Also those which a 5.x broker does not write (`NOT_DISPATCHED`, `skipped_rows`): the queue
        offsets are taken all the same, and none of them is missing (apache/rocketmq#8693). Where
        it may write none at all, it begins at 0 again and again: such numbers say nothing.
        """
        if self._light.rows_optional:
            return None
        low = int(batch.start[0])
        high = int(batch.start[-1] + batch.column("total_size")[-1])
        if properties is None:
            if batch.data[low:high].tobytes().find(props.MULTI_QUEUE_OFFSET.encode()) < 0:
                return None
            properties = text.Properties(batch)
        newer = self._generation >= 5
        message, names, offset = dispatched_rows(properties, rowed, skipped=newer)
        if not len(message):
            return None
        if newer:
            self._skipping(properties, rowed, topic)
        name, own = self._names.encode(names), batch.column("queue_id")[message]
        ids = self._light.ids(self._names.texts, name, own, offset, batch.offset[message],
                              self._leads)
        number = self.survey.runs.number
        queue = np.array([number((os.fsdecode(raw), queue_id)) for raw, queue_id in zip(
            names.tolist(), ids.tolist(), strict=True)], np.int64)
        return queue, offset, np.ones(len(message), np.int64), batch.offset[message]

    def _skipping(self, properties: text.Properties, rowed: Array, topic: Array) -> None:
        left_out = np.array([raw.startswith(NOT_DISPATCHED) for raw in self._topics.texts], bool)
        for _, names, _ in (skipped_rows(properties, rowed),
                            dispatched_rows(properties, rowed & left_out[topic])):
            self.survey.skipping.update(os.fsdecode(raw) for raw in set(names.tolist()))


# -- appended CRCs (spec: commitlog.md §5.4) ------------------------------------------------------


def appended_crcs(batch: Batch) -> tuple[Array, Array]:
    """(whether a record ends with an appended CRC, whether that is wrong), both bool."""
    size = batch.column("total_size")
    wrong: Array = np.zeros(len(batch), bool)
    with_crc = batch.column("properties_length") >= append_crc.SIZE
    rows = np.flatnonzero(with_crc)
    with_crc[:] = False
    if not len(rows):
        return with_crc, wrong
    end = (batch.start + size)[rows]
    tail = gather(batch.data, end - append_crc.SIZE, append_crc.SIZE).view(np.uint8).reshape(
        -1, append_crc.SIZE)
    has = (tail[:, :len(_CRC_NAME)] == _CRC_NAME).all(axis=1)
    rows, end, tail = rows[has], end[has], tail[has]
    if not len(rows):
        return with_crc, wrong
    with_crc[rows] = True
    digits = tail[:, len(_CRC_NAME):-1].astype(np.int64) - ord("0")
    stored = digits @ (10 ** np.arange(append_crc.DIGITS, dtype=np.int64))
    start = batch.start[rows]
    good = ((digits >= 0) & (digits <= 9)).all(axis=1)
    good &= batch.crc(start, end - append_crc.SIZE - start) == stored
    wrong[rows] = ~good
    return with_crc, wrong
