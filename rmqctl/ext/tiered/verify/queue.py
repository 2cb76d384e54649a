"""Check a tiered queue (tiered.md §17.3).

Every byte of the commit log is compared with the consume queue, and the messages' times with the
metadata. The log is scanned once. Each message is looked up in the consume queue by its queue
offset. The unmatched messages and units are explained afterwards (`tiered.verify.leftover`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.common import unconfirmed_bytes
from rmqctl.errors import StoreIOError
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue, QueueName, Segment
from rmqctl.ext.tiered.slots import SegmentSlots
from rmqctl.ext.tiered.verify.context import METADATA, Progress, QueueFindings
from rmqctl.ext.tiered.verify.keys import MessageKeys
from rmqctl.ext.tiered.verify.units import SeenOffsets, TierUnits, UnitColumns
from rmqctl.formats.local import append_crc
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import fixed_field
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata
from rmqctl.formats.tiered.units import CODA_SIZE, NEVER, UNIT_SIZE, is_coda
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import time_text
from rmqctl.scan import text
from rmqctl.scan.derived import TagsCodes
from rmqctl.scan.fillers import replaced
from rmqctl.scan.frames import ZERO, Array, Batch, Span, distinct, gather, gather_int
from rmqctl.store.problems import ambiguity

ENGINE_TIME = fixed_field("store_timestamp").offset
"""Offset in a message at which a broker reads the store time. If the born host is IPv6, the store
time is at a later offset.
"""
MAX_HELD = 1 << 20
"""Maximum number of messages without a unit, and of damaged ranges, that are kept in memory."""
_SEAL = props.CRC32.encode() + props.NAME_VALUE_SEPARATOR.encode()
_FAR = np.iinfo(np.int64)


# -- segment times in the metadata (tiered.md §2, §17.3 T1) ---------------------------------------

@dataclass(slots=True)
class TimeSpan:
    """Least and greatest store time of a segment's messages. ``least`` and ``most``: as a broker
    reads them; ``true_least`` and ``true_most``: correct times.
    """

    least: int = _FAR.max
    most: int = _FAR.min
    true_least: int = _FAR.max
    true_most: int = _FAR.min
    count: int = 0

    def take(self, engine: Array, true: Array) -> None:
        self.least = min(self.least, int(engine.min()))
        self.most = max(self.most, int(engine.max()))
        self.true_least = min(self.true_least, int(true.min()))
        self.true_most = max(self.true_most, int(true.max()))
        self.count += len(engine)


class SegmentTimes:
    """Collects the store times of a queue's messages, for each segment of its two flat files.

    The metadata contains two times for each segment: the least and the greatest value at byte 56 of
    its messages. In 5.1 and 5.2 the two times are the first and the last value. After a crash the
    times may be unset or cover only a part of the segment. Only a time outside the range of the
    messages' times is wrong.
    """

    def __init__(self, queue: FlatQueue) -> None:
        self._log: dict[int, TimeSpan] = {}
        self._rows: dict[int, TimeSpan] = {}
        bases = [segment.base for segment in queue.consume_queue.segments if segment.usable]
        self._bases = np.array(bases, np.int64)
        self.partial: set[int] = set()
        """Bases of commit log segments with damaged bytes, which may have contained messages."""

    def take(self, segment: Segment, queue_offset: Array, matched: Array, engine: Array,
             true: Array) -> None:
        """Add messages of a commit log segment.

        ``matched`` (bool): True if the message has a unit.
        ``engine``: store times as a broker reads them.
        ``true``: correct store times.
        """
        self._log.setdefault(segment.base, TimeSpan()).take(engine, true)
        if not len(self._bases) or not matched.any():
            return
        engine, true = engine[matched], true[matched]
        number = np.searchsorted(self._bases, queue_offset[matched] * UNIT_SIZE, "right") - 1
        for segment_number in distinct(number[number >= 0]).tolist():
            rows = number == segment_number
            self._rows.setdefault(int(self._bases[segment_number]), TimeSpan()).take(engine[rows],
                                                                                     true[rows])

    def findings(self, queue: FlatQueue, metadata: Metadata) -> Iterator[Finding]:
        """Yield findings about segment times in the metadata. If some messages of a segment are
        unknown, only check whether the times are possible.
        """
        yield from self._of(queue.name, queue.commit_log, self._log, metadata)
        yield from self._of(queue.name, queue.consume_queue, self._rows, metadata)

    def _of(self, name: QueueName, flat: FlatFile, spans: dict[int, TimeSpan],
            metadata: Metadata) -> Iterator[Finding]:
        kind = flat.kind
        entries = metadata.segments[kind].get(name.path, {})
        for segment in flat.segments:
            entry = entries.get(segment.base)
            if entry is None or not segment.usable:
                continue
            span = spans.get(segment.base)
            complete = span is not None and (
                segment.base not in self.partial if kind == names.COMMIT_LOG
                else span.count * UNIT_SIZE == segment.usable)
            contradiction = judge(entry.begin_timestamp, entry.end_timestamp,
                                  span if complete else None)
            if contradiction is not None:
                category, detail = contradiction
                yield Finding(category, METADATA, detail, flat.reader.where(segment.path),
                              topic=name.topic, queue_id=name.queue_id, offset=segment.base)


def judge(begin: int, end: int, span: TimeSpan | None) -> tuple[str, str] | None:
    """Return (category, detail) if the times of a segment with data are wrong, else None.

    If ``span`` is None, some messages are unknown. Then only check whether the times are possible.
    """
    if NEVER in (begin, end):
        return "tiered-oddity", ("times missing in the metadata after a broker crash: treated as "
                                 "expired")
    if begin > end:
        return "tiered-segment-time", f"begins at {time_text(begin)}, ends at {time_text(end)}"
    if span is None or (begin, end) == (span.true_least, span.true_most):
        return None
    times = f"{time_text(begin)} to {time_text(end)}"
    true = f"{time_text(span.true_least)} to {time_text(span.true_most)}"
    if span.true_least <= begin and end <= span.true_most:
        return "tiered-oddity", (f"the times {times} in the metadata cover only a part of its "
                                 f"messages; all: {true}")
    if span.least <= begin and end <= span.most:
        return "tiered-oddity", ("its times in the metadata are bytes of an IPv6 host; its "
                                 f"messages: {true}")
    return "tiered-segment-time", f"times in the metadata: {times}; of its messages: {true}"


# -- the walk over the log ------------------------------------------------------------------------

@dataclass(slots=True)
class Loose:
    """Intact messages without a unit that points to them, in log order, as columns (int64)."""

    offset: Array
    size: Array
    queue_offset: Array
    has_unit: Array
    unit_offset: Array
    unit_size: Array


class QueueCheck:
    """The scan of a queue. The other attributes are complete only after all `findings` have been
    read.

    ``loose``, ``spans``, ``seen``: see `Leftovers`.
    ``without_unit``: queue offsets of intact messages without a unit.
    ``first``: (queue offset, logical offset) of the first message with a unit.
    """

    def __init__(self, queue: FlatQueue, place: QueueFindings, keys: MessageKeys | None = None,
                 progress: Progress | None = None) -> None:
        self.queue, self.place = queue, place
        self.units = TierUnits(queue)
        self._slots = SegmentSlots(queue.commit_log, queue.name)
        self.seen = SeenOffsets()
        self.without_unit = SeenOffsets()
        self.times = SegmentTimes(queue)
        self.spans: list[Span] = []
        self.first: tuple[int, int] | None = None
        self.loose_count = 0
        self._loose: list[tuple[Array, ...]] = []
        self._last = -1
        self._keys = keys
        self._progress = progress or (lambda _done: None)
        self._topic = os.fsencode(queue.name.topic)
        self._topics = text.Dictionary()
        self._tags = TagsCodes(self._topics)

    def findings(self) -> Iterator[Finding]:
        """Yield the findings of the scan. The scan continues after an unreadable segment."""
        self.units.find_tears()
        self.place.counted.segments += len(self.queue.consume_queue.segments)
        for segment in self.queue.commit_log.segments:
            self.place.counted.segments += 1
            if not segment.usable:
                continue
            try:
                with self.queue.commit_log.walk(segment, cut=True) as walk:
                    done = 0
                    for batch in self._slots.batches(walk):
                        yield from self._take(batch, segment)
                        self._progress(walk.position - done)
                        done = walk.position
                self.place.counted.bytes_total += walk.position
                if walk.shrunk:
                    yield self.place.log("file-changed", "the segment was truncated during this "
                                         "check", segment.base)
            except StoreIOError as error:
                yield self.place.log("file-unreadable", str(error), segment.base)

    @property
    def loose(self) -> Loose:
        """All intact messages without a unit that points to them, in log order."""
        if not self._loose:
            return Loose(*(np.zeros(0, kind) for kind in (
                np.int64, np.int64, np.int64, bool, np.int64, np.int64)))
        return Loose(*map(np.concatenate, zip(*self._loose, strict=True)))

    # -- one batch --------------------------------------------------------------------------------

    def _take(self, batch: Batch, segment: Segment) -> Iterator[Finding]:
        for span in batch.spans:
            self._span(span, segment)
            if span.doubtful:
                self.place.counted.messages_undecided += len(span.doubtful)
                yield self.place.log("ambiguous", ambiguity(span.doubtful), span.doubtful[0][0],
                                     length=sum(size for _, size in span.doubtful),
                                     count=len(span.doubtful))
        if not len(batch):
            return
        queue_offset, size = batch.column("queue_offset"), batch.column("total_size")
        units, matched = self.units.of(batch)
        engine_time = self._engine_time(batch)
        self.times.take(segment, queue_offset, matched, engine_time,
                        batch.column("store_timestamp"))
        self._count(size, matched)
        if not matched.all():
            self._keep(batch, ~matched, units)
        if matched.any():
            fillers = replaced(batch) & matched
            if self.place.local_from is not None:
                fillers &= queue_offset < self.place.local_from
            self.place.counted.messages_replaced += int(fillers.sum())
            yield from self._matched(batch, matched, units, engine_time)

    def _engine_time(self, batch: Batch) -> Array:
        return gather_int(batch.data, batch.start + ENGINE_TIME, "i8")

    def _count(self, size: Array, matched: Array) -> None:
        counted = self.place.counted
        count = int(matched.sum())
        total = int(size[matched].sum())
        counted.messages += count
        counted.bytes_in_messages += total
        counted.orphans += len(size) - count
        counted.bytes_orphaned += int(size.sum()) - total

    def _keep(self, batch: Batch, rows: Array, units: UnitColumns) -> None:
        self.loose_count += int(rows.sum())
        self.without_unit.add(batch.column("queue_offset")[rows & batch.crc_ok()])
        if sum(len(loose[0]) for loose in self._loose) < MAX_HELD:
            self._loose.append((
                batch.offset[rows], batch.column("total_size")[rows],
                batch.column("queue_offset")[rows], units.exists[rows], units.offset[rows],
                units.size[rows]))

    def _matched(self, batch: Batch, matched: Array, units: UnitColumns,
                 engine_time: Array) -> Iterator[Finding]:
        """Yield findings about messages that have units."""
        queue_offset, offset = batch.column("queue_offset"), batch.offset
        # Queue offsets and their order.
        self.seen.add(queue_offset[matched])
        if self.first is None:
            self.first = int(queue_offset[matched][0]), int(offset[matched][0])
        yield from self._order(batch, matched)
        # Topic and queue id, compared with the folder.
        topic = text.topics(batch)
        right = topic.equal(self._topic)
        for number in np.flatnonzero(matched & ~right).tolist():
            yield self._note("tiered-message-fields", batch, number,
                             "its topic is "
                             f"{topic.take([number]).tolist()[0].decode('utf-8', 'replace')!r}")
        queue_id = batch.column("queue_id")
        for number in np.flatnonzero(matched & (queue_id != self.queue.name.queue_id)).tolist():
            yield self._note("tiered-message-fields", batch, number,
                             f"its queue ID is {int(queue_id[number])}")
        broken = matched & ~batch.crc_ok()
        self.place.lost(queue_offset[broken])
        for number in np.flatnonzero(broken).tolist():
            yield self._note("tiered-body-crc", batch, number, "body CRC mismatch")
        self._seals(batch, matched)
        # The unit's tags code, compared with the tag.
        properties = text.PropertySegments(batch)
        numbers = self._topics.encode(topic)
        codes, tagged, tags = self._tags.codes(properties, numbers,
                                               batch.column("store_timestamp"))
        for number in np.flatnonzero(matched & (codes != units.tags_code)).tolist():
            own_offset, code = int(queue_offset[number]), int(units.tags_code[number])
            yield self.place.rows("tiered-cq-wrong-tag", f"tags code {code}, expected "
                                  f"{int(codes[number])} from the message",
                                  self.units.place(own_offset), length=UNIT_SIZE,
                                  queue_offset=own_offset)
        # Keys, for the comparison with the index, and the unverifiable bytes.
        proven: Array = np.zeros(len(batch), np.int64)
        proven[tagged] += tags
        if self._keys is not None:
            # The CRC covers the body only: keys are valid even after a CRC mismatch.
            row, length = self._keys.add(properties, matched & right, offset,
                                         batch.column("total_size"), queue_offset, engine_time,
                                         batch.column("store_timestamp"))
            np.add.at(proven, row, length)
        self.place.counted.bytes_unverifiable += unconfirmed_bytes(
            batch.column("sys_flag")[matched],
            (batch.column("properties_length") - proven)[matched], by_index=self._keys is not None)

    def _order(self, batch: Batch, matched: Array) -> Iterator[Finding]:
        own_offset = batch.column("queue_offset")[matched]
        before = np.concatenate([[self._last], own_offset[:-1]])
        self._last = max(self._last, int(own_offset.max()))
        rows = np.flatnonzero(matched)
        for row in np.flatnonzero(own_offset <= before).tolist():
            yield self._note("tiered-cq-order", batch, int(rows[row]), "is after the message of "
                             f"queue offset {int(before[row])}")

    def _seals(self, batch: Batch, matched: Array) -> None:
        """Count the messages whose appended CRC cannot be checked, because it covers the unknown
        local offset.
        """
        size = batch.column("total_size")
        where = (batch.start + size - append_crc.SIZE)[matched]
        seals = gather(batch.data, where, len(_SEAL))
        self.place.counted.property_crc_unverifiable += int(
            (seals == np.void(_SEAL)).sum())

    def _note(self, category: str, batch: Batch, row: int, detail: str) -> Finding:
        queue_offset = int(batch.column("queue_offset")[row])
        return self.place.log(category, detail, int(batch.offset[row]),
                              length=int(batch.column("total_size")[row]),
                              queue_offset=queue_offset)

    # -- what is no message -----------------------------------------------------------------------

    def _span(self, span: Span, segment: Segment) -> None:
        counted = self.place.counted
        head = self.queue.commit_log.read(span.offset, CODA_SIZE)
        if is_coda(head) and span.length >= CODA_SIZE:
            counted.bytes_coda += CODA_SIZE
            rest = span.length - CODA_SIZE
            if not rest:
                return
            span = Span(span.kind, span.offset + CODA_SIZE, rest, span.reason, span.field)
        if span.kind == ZERO:
            counted.bytes_zero += span.length
        else:
            counted.bytes_damaged += span.length
        self.times.partial.add(segment.base)
        if len(self.spans) < MAX_HELD:
            self.spans.append(span)
