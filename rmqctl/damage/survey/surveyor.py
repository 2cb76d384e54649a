"""Scan of a log that returns a `Survey`; a repeated scan reads only what has changed
(`stretches`).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from rmqctl.damage.survey.stretches import Asked, Stretch, Stretches, SurveyState
from rmqctl.damage.survey.survey import (
    MAX_LISTED,
    MAX_ODD,
    Region,
    Runs,
    Survey,
    joined,
)
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.header_rules import LONG_PAUSE, MAX_PORT, TIME_SLACK
from rmqctl.formats.local.message import MAGIC_V2, decode
from rmqctl.scan import text
from rmqctl.scan.damage.properties import appended_crcs, glued, unsound_texts
from rmqctl.scan.derived import QueueKey, QueueTable, batch_ranges
from rmqctl.scan.frames import BLANK, DAMAGED, Array, Batch, Span, distinct, examine
from rmqctl.scan.headers import bad_numbers
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.queue_reach import NOT_DISPATCHED, LightQueues, dispatched_rows, skipped_rows
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store

Event = tuple[int, Callable[[], None]]
"""A physical offset, and a function that processes the bytes at this offset."""
_FAR = 1 << 61
"""Store times (ms) are capped at this value, so that adding a pause does not overflow. All real
times are far below it.
"""
_PENDING = 1 << 17
"""Number of columns of runs that are collected before they are joined."""


class Surveyor:
    """Scans the parts of a log, file by file.

    ``batch_topics``: topics with batch queues. ``store``: its consume queues determine the queue
    ids of light queues.
    """

    def __init__(self, generation: int, batch_topics: Iterable[str],
                 progress: Callable[[int], None] | None = None, *,
                 store: Store | None = None) -> None:
        self._generation = generation
        self._light = LightQueues() if store is None else store.queues.light
        self._leads = None if store is None else store.queues.leads
        self._names = text.Dictionary()
        self._batched = {os.fsencode(topic) for topic in batch_topics}
        self._progress = progress or (lambda _bytes: None)
        self._reported = 0
        self._topics = text.Dictionary()
        self._queues: dict[QueueKey, int] = {}
        self._table = QueueTable(self._topics, self._number)
        self._stretches = Stretches()

    def _number(self, key: QueueKey) -> int:
        return self._queues.setdefault(key, len(self._queues))

    def run(self, parts: Sequence[LogPart], rejected: Collection[int] = (),
            confirmed: Mapping[int, int] | None = None) -> Survey:
        """Return a survey of all parts. Stretches that have not changed since the last scan are not
        read.

        ``rejected``: physical offsets of records that count as damaged. ``confirmed``: sizes, by
        physical offset, of records in damaged bytes that other evidence proves. The scan alone
        cannot prove these records: they have no body, and no intact record follows.
        Raises: StoreIOError if a file cannot be read.
        """
        self._rejected = np.array(sorted(rejected), np.int64)
        self._confirmed = dict(confirmed or {})
        self._confirmed_places = sorted(self._confirmed)
        self._stretches.begin(parts, rejected, self._confirmed)
        self._survey = survey = Survey([], Runs(self._queues), self._generation)
        self._waiting: list[Region] = []
        self._passed = SurveyState()
        for number, part in enumerate(parts):
            self._reported = 0
            self._file(number, part)
            self._tell(part.size)
        self._progress = lambda _bytes: None  # a further pass over the log is none of its bytes
        survey.last_time = self._passed.time
        survey.headers.settle()
        if len(self._passed.times) > 1:
            (_, before), (physical, when) = self._passed.times
            if not before - TIME_SLACK <= when <= before + LONG_PAUSE:
                survey.astray.append((physical, before, 1 << 62))
        return survey

    def _tell(self, position: int) -> None:
        """Report progress up to this position of the file, unless it was already reported."""
        if position > self._reported:
            self._progress(position - self._reported)
            self._reported = position

    def _file(self, number: int, part: LogPart) -> None:
        with part.open() as opened:
            source, position = Asked(opened), 0
            self._begin(source, position)
            # A file that is not there is damage as a whole.
            if part.path is None and not part.pieces:
                self._damage(Region(number, part.base, part.end))
                position = source.size
            while position < source.size:
                # A stretch that is known from an earlier survey is not walked again.
                if not self._goes_on(number, part.base + position):
                    self._end(number, source, position)
                    stretch = self._stretches.cached(number, position, self._passed)
                    if stretch is not None:
                        position = stretch.end
                        self._take(number, stretch)
                        self._begin(source, position)
                        continue
                # Walk up to the next known stretch; what is walked is kept in stretches, too.
                walk = Walk(source, position, self._stretches.border(number, position), whole=True)
                for batch in walk:
                    self._batch(number, source, batch)
                    self._tell(walk.position)
                    if walk.position - self._start >= self._stretches.length and not (
                            self._goes_on(number, part.base + walk.position)):
                        self._end(number, source, walk.position)
                if walk.position == position:  # the file has shrunk
                    break
                position = walk.position
            self._end(number, source, position)

    def _batch(self, number: int, source: Source, batch: Batch) -> None:
        """Process a batch: its messages by column, and the spans between them, in log order."""
        spans: list[list[Span]] = []
        for span in batch.spans:
            # Zeros and bytes that are none, side by side, are one damage; a record is by itself.
            if spans and not span.located and span.kind != BLANK and (
                    last := spans[-1][-1]).end == span.offset and not last.located and (
                        last.kind != BLANK):
                spans[-1].append(span)
            else:
                spans.append([span])
        # Confirmed records in damage are messages, too, and have their place among the others.
        first, events = 0, list[Event]()
        for some in spans:
            tell = partial(self._between, number, source, some)
            low, high = (bisect_left(self._confirmed_places, place)
                         for place in (some[0].offset, some[-1].end))
            if low == high:
                events.append((some[0].offset, tell))
                continue
            cut = int(np.searchsorted(batch.offset, some[0].offset))
            self._messages(number, batch.select(slice(first, cut)), events)
            tell()
            first, events = cut, []
        self._messages(number, batch.select(slice(first, None)) if first else batch, events)

    def _between(self, number: int, source: Source, spans: Sequence[Span]) -> None:
        first = spans[0]
        if first.kind != BLANK:
            self._spans(number, source, spans)
        elif self._goes_on(number, first.offset):
            # It does not say where it belongs: it may be that of another file.
            self._damage(Region(number, first.offset, first.end, dirty=True))
        else:
            self._result.closed.add(number)

    # -- stretches --------------------------------------------------------------------------------

    def _begin(self, source: Asked, position: int) -> None:
        """Begin a stretch at this position of a file."""
        source.reach = self._start = position
        self._before = self._passed
        self._first: int | None = None
        self._result = Survey([], self._survey.runs, self._generation)
        self._rows = np.zeros((5, 0), np.int64)
        self._pending: list[Array] = []

    def _end(self, number: int, source: Asked, end: int) -> None:
        """End the stretch at ``end``, which must not be inside a damaged region."""
        if end == self._start:
            return
        survey, first = self._result, self._first
        self._join()
        self._add(survey, self._rows)
        self._stretches.keep(number, Stretch(
            self._start, end, max(end, source.reach), self._before, self._passed, survey,
            self._rows, first, len(survey.regions if first is None else self._waiting)))
        self._begin(source, end)

    def _take(self, number: int, stretch: Stretch) -> None:
        """Add the cached results of a stretch. Regions at the end of the stretch later get the
        store time of the next message.
        """
        survey = stretch.survey
        if stretch.first is not None:
            self._settle(stretch.first)
        at = len(survey.regions) - stretch.waiting
        ends = [replace(region, after=None) for region in survey.regions[at:]]
        self._waiting += ends
        self._add(replace(survey, regions=[*survey.regions[:at], *ends]), stretch.rows)
        self._passed = stretch.behind
        self._stretches.keep(number, stretch)

    def _add(self, survey: Survey, rows: Array) -> None:
        self._survey.add(survey)
        self._survey.runs.add(rows)

    def _join(self) -> None:
        self._rows, self._pending = joined(np.concatenate(
            [self._rows, *self._pending], axis=1)), []

    def _spans(self, number: int, source: Source, spans: Sequence[Span]) -> None:
        """Record adjacent spans of damage and zeros as regions, split at confirmed records. Spans
        of zeros are included, because the first bytes of a record may be zeroed.
        """
        start, end = spans[0].offset, spans[-1].end
        position = start
        first = bisect_left(self._confirmed_places, position)
        for physical in self._confirmed_places[first:bisect_left(self._confirmed_places, end)]:
            size = self._confirmed[physical]
            raw = source.read(physical - source.base, size)
            batch, ok = examine(np.frombuffer(raw, np.uint8), physical, np.zeros(1, np.int64))
            if physical < position or physical + size > end or not ok.all():
                continue
            if position < physical:
                self._damage(_region(number, position, physical, spans))
            self._messages(number, batch)
            position = physical + size
        if position < end:
            region = _region(number, position, end, spans)
            if position == start and spans[0].located:
                region.extents = [(start, end - start)]
            self._damage(region)

    def _goes_on(self, number: int, position: int) -> bool:
        """Return whether the last damaged region ends at this position of the file."""
        last = self._result.regions[-1] if self._result.regions else None
        return last is not None and last.file == number and last.end == position

    def _damage(self, region: Region) -> None:
        region.before = self._passed.time
        if self._passed.last[1] == region.start:
            region.previous = self._passed.last[0]
        if self._goes_on(region.file, region.start):
            last = self._result.regions[-1]
            last.end, last.dirty = region.end, last.dirty or region.dirty
            last.extents += region.extents
            last.starts.append(region.start)
            last.doubtful += region.doubtful
            return
        region.starts.append(region.start)
        self._result.regions.append(region)
        self._waiting.append(region)

    # -- one batch --------------------------------------------------------------------------------

    def _messages(self, number: int, batch: Batch,
                  between: Sequence[Event] = ()) -> None:
        """Process the messages of a batch. ``between``: events for the bytes between them,
        ascending by physical offset.
        """
        if not len(batch):
            for _, tell in between:
                tell()
            return
        # Damaged bodies, rejected records and wrong appended CRCs are damage, in the log's order.
        survey = self._result
        bad = ~batch.crc_ok() & (batch.column("body_length") > 0)
        if len(self._rejected):
            bad |= np.isin(batch.offset, self._rejected)
        self._appended_crcs(batch, bad)
        offset, size = batch.offset, batch.column("total_size")
        when = batch.column("store_timestamp")
        self._in_order(number, batch, np.flatnonzero(bad), between)
        good = np.flatnonzero(~bad)
        if not len(good):
            return
        # The intact ones: counts, headers, oddities, times and queue offsets.
        survey.messages += len(good)
        survey.used, survey.last_end = number, int(offset[good[-1]] + size[good[-1]])
        properties = text.PropertySegments(batch)
        survey.headers.add(batch, ~bad if bad.any() else None,
                          bad_numbers(batch, self._generation, properties))
        self._oddities(batch, good)
        self._times(offset[good], when[good])
        if bad.any():
            batch = batch.select(good)
            properties = text.PropertySegments(batch)
        self._queue_offsets(batch, properties)

    def _appended_crcs(self, batch: Batch, bad: Array) -> None:
        survey, offset = self._result, batch.offset
        with_crc, wrong = appended_crcs(batch)
        good = with_crc & ~wrong
        unsound = ~good & ~bad & unsound_texts(text.properties(batch))
        if len(survey.unsound) < MAX_LISTED:
            survey.unsound += offset[unsound].tolist()
        survey.with_crc += int(np.count_nonzero(good))
        if len(survey.wrong_crcs) < MAX_LISTED:
            survey.wrong_crcs += offset[wrong & ~bad].tolist()
        if good.any() and len(survey.glued) < MAX_ODD:
            survey.glued += offset[good & ~bad & glued(batch)].tolist()
        first = 0 if self._passed.sealed else int(good.argmax())
        if not self._passed.sealed and not good[first]:
            return
        self._passed = self._passed._replace(sealed=True)
        if len(survey.lacking_crc) < MAX_ODD:
            survey.lacking_crc += offset[first:][~with_crc[first:] & ~bad[first:]].tolist()

    def _in_order(self, number: int, batch: Batch, bad: Array,
                  between: Sequence[Event]) -> None:
        """Process the events of a batch in log order: intact messages, damaged records and the
        events ``between``.

        ``bad``: indexes of the damaged records in the batch. Each of them becomes a region.
        """
        offset, size = batch.offset, batch.column("total_size")
        when = batch.column("store_timestamp")
        events: list[tuple[int, Callable[[], None] | None]] = [
            *between, *((place, None) for place in offset[bad].tolist())]
        events.sort(key=itemgetter(0))
        rows = np.searchsorted(offset, [place for place, _ in events])
        if len(rows):
            self._borders(batch, rows, bad)
        # Each event has intact messages [first, end) before it; columns are read at once.
        end = np.append(rows, len(offset))
        is_record = np.array([tell is None for _, tell in events], bool)
        first = np.append(0, rows + is_record)
        last = np.maximum(end - 1, 0)
        columns = (column.tolist() for column in (
            end > first, when[np.minimum(first, len(offset) - 1)], when[last], offset[last],
            size[last], size[np.minimum(end, len(offset) - 1)]))
        for (place, tell), passes, *passed, length in zip(
                [*events, (0, _nothing)], *columns, strict=True):
            if passes:
                self._pass(*passed)
            if tell is not None:
                tell()
            else:
                self._damage(Region(number, place, place + length, dirty=True,
                                    extents=[(place, length)]))

    def _borders(self, batch: Batch, rows: Array, bad: Array) -> None:
        """Record the intact records next to the damage at ``rows``, and the first record of the
        batch if it is intact.
        """
        near = distinct(np.concatenate((np.zeros(1, np.int64), rows - 1, rows, rows + 1)))
        near = near[(near >= 0) & (near < len(batch))]
        near = near[~np.isin(near, bad)]
        flags = batch.column("sys_flag")[near] & sysflag.TRANSACTION_MASK
        near = near[(flags == sysflag.TRANSACTION_NONE) | (flags == sysflag.TRANSACTION_COMMIT)]
        if len(near):
            some = batch.select(near)
            queue = self._table.encode(self._topics.encode(text.topics(some)),
                                       some.column("queue_id"))
            self._result.borders.append(np.stack([
                queue, some.column("queue_offset"), some.offset, some.column("total_size")]))

    def _pass(self, first: int, time: int, place: int, size: int) -> None:
        """Record consecutive intact messages. ``first`` and ``time``: store times of the first and
        the last message. ``place`` and ``size``: physical offset and size of the last message.
        """
        self._settle(first)
        if self._first is None:
            self._first = first
        self._passed = self._passed._replace(time=time, last=(place, place + size))

    def _settle(self, time: int) -> None:
        for region in self._waiting:
            region.after = time
        self._waiting.clear()

    def _oddities(self, batch: Batch, good: Array) -> None:
        survey, offset = self._result, batch.offset
        for which, offsets in (
                (batch.column("magic") == MAGIC_V2, survey.newer),
                (batch.column("store_timestamp") == 0, survey.undated),
                ((batch.column("body_length") == 0) & (batch.column("body_crc") != 0),
                 survey.unchecked)):
            if which[good].any() and len(offsets) < MAX_ODD:
                offsets.extend(offset[good][which[good]].tolist())
        flags = batch.column("sys_flag")[good]
        survey.flags.update({*distinct(flags[flags & ~sysflag.KNOWN_BITS == 0]).tolist()})
        odd = flags[flags & ~sysflag.KNOWN_BITS != 0] & ~sysflag.KNOWN_BITS
        if len(odd):
            survey.count_unknown_bits(Counter(odd.tolist()))
        if survey.host is None:
            port = batch.column("store_host.port")[good]
            plain = np.flatnonzero((flags & (sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6) == 0)
                                   & (port >= 0) & (port <= MAX_PORT))
            if len(plain):
                survey.host = decode(batch.bytes_at(int(good[plain[0]]))).store_host

    def _times(self, offset: Array, when: Array) -> None:
        """Find single messages with a store time out of order. The last two messages of a batch are
        compared together with the next batch.
        """
        when = np.clip(when, -_FAR, _FAR)
        survey, last = self._result, self._passed.times
        is_start = len(last) < 2
        offset = np.concatenate([np.array([physical for physical, _ in last], np.int64), offset])
        when = np.concatenate([np.array([stamp for _, stamp in last], np.int64), when])
        self._passed = self._passed._replace(
            times=tuple(zip(offset[-2:].tolist(), when[-2:].tolist(), strict=True)))
        if len(when) > 1:
            survey.newest_before_last = max(survey.newest_before_last, int(when[:-1].max()))
        if is_start and len(when) > 1 and not (
                when[1] - LONG_PAUSE <= when[0] <= when[1] + TIME_SLACK):
            survey.astray.append((int(offset[0]), -1, int(when[1])))
        before, own_times, behind = when[:-2], when[1:-1], when[2:]
        out = (before <= behind) & (
            (own_times < before - TIME_SLACK) | (own_times > behind + TIME_SLACK))
        if out.any() and len(survey.astray) < MAX_ODD:
            survey.astray += list(zip(offset[1:-1][out].tolist(), before[out].tolist(),
                                     behind[out].tolist(), strict=True))

    def _queue_offsets(self, batch: Batch, properties: text.PropertySegments) -> None:
        # Who takes a queue offset, and in which queue.
        topic = self._topics.encode(text.topics(batch))
        kind = batch.column("sys_flag") & sysflag.TRANSACTION_MASK
        rowed = (kind == sysflag.TRANSACTION_NONE) | (kind == sysflag.TRANSACTION_COMMIT)
        queue = self._table.encode(topic, batch.column("queue_id"))
        # How many it takes: one, but for batches.
        first, count = batch.column("queue_offset"), np.ones(len(batch), np.int64)
        inner = (batch.column("sys_flag") & sysflag.INNER_BATCH) != 0
        batched = np.array([topic in self._batched for topic in self._topics.texts], bool)[topic]
        batched &= self._generation >= 5
        if inner.any() or batched.any():
            ranges = batch_ranges(properties, first)
            # Without a word from topics.json or a folder: the flag, and both numbers fit.
            inner &= (ranges[0] == first) & (ranges[1] > 1)
            self._result.inner_batch_topics.update(
                os.fsdecode(self._topics.texts[number]) for number in distinct(topic[inner]))
            if self._generation >= 5:
                first = np.where(batched, ranges[0], first)
                count = np.where(batched | inner, ranges[1], count)
        # The own entries, and those in further queues, in the order of the log.
        which = np.flatnonzero(rowed & (first >= 0) & (count > 0))
        columns: list[Any] = [queue[which], first[which], count[which], batch.offset[which]]
        further = self._further(batch, topic, rowed, properties)
        if further is not None:
            columns = [np.concatenate(pair) for pair in zip(columns, further, strict=True)]
            order = np.argsort(columns[3], kind="stable")
            columns = [column[order] for column in columns]
        queue, first, count, physical = columns
        # Joined once enough are held.
        self._pending.append(joined(np.stack([queue, first, first + count, physical, physical])))
        if sum(rows.shape[1] for rows in self._pending) > self._rows.shape[1] + _PENDING:
            self._join()

    def _further(self, batch: Batch, topic: Array, rowed: Array,
                 properties: text.PropertySegments) -> tuple[Array, Array, Array, Array] | None:
        """Return the entries of multi-dispatched messages in other queues (consumequeue.md §10).

        Entries that a 5.x broker does not write (`NOT_DISPATCHED`, `skipped_rows`) are included:
        the broker still assigns their queue offsets (apache/rocketmq#8693).

        Return None if a broker that writes no such entries may have used the store. That broker
        restarts the queue offsets at 0 from time to time, so the offsets prove nothing.
        """
        if self._light.rows_optional or not len(properties.places(props.MULTI_QUEUE_OFFSET)[0]):
            return None
        newer = self._generation >= 5
        message, names, offset = dispatched_rows(properties, rowed, skipped=newer)
        if not len(message):
            return None
        if newer:
            self._skipping(properties, rowed, topic)
        name, own = self._names.encode(names), batch.column("queue_id")[message]
        ids = self._light.ids(self._names.texts, name, own, offset, batch.offset[message],
                              self._leads)
        queue = np.array([self._number((os.fsdecode(raw), queue_id)) for raw, queue_id in zip(
            names.tolist(), ids.tolist(), strict=True)], np.int64)
        return queue, offset, np.ones(len(message), np.int64), batch.offset[message]

    def _skipping(self, properties: text.PropertySegments, rowed: Array, topic: Array) -> None:
        left_out = np.array([raw.startswith(NOT_DISPATCHED) for raw in self._topics.texts], bool)
        for _, names, _ in (skipped_rows(properties, rowed),
                            dispatched_rows(properties, rowed & left_out[topic])):
            self._result.skipping.update(os.fsdecode(raw) for raw in set(names.tolist()))


def _nothing() -> None:
    """Do nothing: placeholder for the event at the end of a batch."""


def _region(number: int, start: int, end: int, spans: Iterable[Span]) -> Region:
    """Return the damaged region for the part ``[start, end)`` of adjacent spans."""
    return Region(
        number, start, end, doubtful=[
            frame for span in spans for frame in span.doubtful if start <= frame[0] < end],
        dirty=any(span.kind == DAMAGED and span.offset < end and start < span.end
                  for span in spans))
