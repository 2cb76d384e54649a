"""One pass over a range of the log: frames, checksums, entries and keys.

The range is the whole log, or the part for one thread or worker process. The results are plain
values, which are merged in log order. spec: commitlog.md §2, §5.4, §6.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmqctl.checks.verify.common import BY_QUEUE, unconfirmed_bytes
from rmqctl.checks.verify.context import (
    MAX_LISTED,
    BadRecord,
    ComparedStructures,
    NotPlainError,
    RangeResult,
)
from rmqctl.checks.verify.index.keys import KeyCheck
from rmqctl.checks.verify.log.sound import SoundPass
from rmqctl.checks.verify.queue.batch_rows import batch_expected
from rmqctl.checks.verify.queue.rows import ExpectedEntries, ExpectedRows, QueueKey
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.header_rules import LONG_PAUSE, TIME_SLACK
from rmqctl.formats.local.message import MAGIC_V2, decode
from rmqctl.kernel import active
from rmqctl.scan import text
from rmqctl.scan.damage.properties import appended_crcs, unsound_texts
from rmqctl.scan.derived import IndexKeys, QueueTable, TagsCodes, is_queue_name
from rmqctl.scan.fillers import fillers, kept_damaged
from rmqctl.scan.frames import BLANK, DAMAGED, ZERO, Array, Batch, Span, gathered
from rmqctl.scan.headers import bad_numbers
from rmqctl.scan.queue_reach import NOT_DISPATCHED, dispatched_rows, skipped_rows
from rmqctl.scan.tolerant import TolerantWalk, UnreadRange
from rmqctl.scan.walk import Sound
from rmqctl.store.files import StoreFile
from rmqctl.store.index.entries import AllIndexEntries
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.store.log.dledger import UnitReader

_SMALL, _MAX_HELD = 1 << 18, 1 << 21
"""Maximum number of bytes in one buffer of pending messages, and in all buffers."""
_LEAST_LEFT, _SHARE_LEFT = 4 << 20, 16
"""Bytes that the compiled check may leave in a plain log: the first value, and one of the second
number of bytes.
"""
_SPECIAL = props.INNER.encode()
UNREADABLE = "(unreadable)"
"""Value of a span's ``field`` if the system could not read the bytes of the span."""


class LogPass:
    """The check of a range of the log, file by file; `result` accumulates the results."""

    def __init__(self, store: Store, ends: dict[QueueKey, int], wanted: ComparedStructures,
                 start: int,
                 progress: Callable[[int], None] | None = None) -> None:
        self.store, self.wanted = store, wanted
        self.result = RangeResult(start, start)
        self._progress = progress or (lambda _done: None)
        if wanted.profile:
            from rmqctl.scan.profile import LogProfile

            self.result.profile = LogProfile(store.log.min_offset, store.log.end)
        self._topics = text.Dictionary()
        self._messages = MessageChecks(store, ends, wanted, self._topics, self.result)
        self._batch_topics = {os.fsencode(topic) for topic, _ in store.queues.batch}
        self._held: list[Batch] = []
        self._held_bytes = 0
        self._left_bytes = 0
        self._started = False
        kernel = active()
        self._sound = None if kernel is None or wanted.profile else SoundPass(
            kernel, store, wanted, self._messages.rows, self._messages.batched)
        if wanted.plain and self._sound is None:
            raise NotPlainError
        self._units: UnitReader | None = None
        if any(file.head for file in store.log.files):
            from rmqctl.checks.verify.log.entries import EntryTally
            from rmqctl.store.log.dledger import UnitReader

            self.result.entries = EntryTally()
            indexed = [node for node in store.nodes if node.index_listing.files]
            self._units = UnitReader(indexed[0]) if len(indexed) == 1 else None

    def _start(self, first: int) -> None:
        """Open the index at the first frame.

        If the scan had to resynchronize, this frame may be after the start of the range.
        """
        self._started = True
        self.result.first = first
        self._messages.start(first)
        if self._sound is not None:
            self._sound.start(self._messages.keys)

    def passes(self, file: StoreFile) -> Sound | None:
        """Return the fast check that a scan of this file calls; None if the file needs a full
        check.
        """
        return None if self._sound is None or file.head else self._over

    def _over(self, data: Array, base: int, at: int, end: int, lost: Array,
              mapped: bool) -> int:
        assert self._sound is not None
        if not self._started:
            self._start(base + at)
        self._take_held()
        reached = self._sound.over(data, base, at, end, lost, mapped, self.result)
        if self.wanted.plain and (self.result.bad or self._sound.has_damaged):
            raise NotPlainError
        self._progress(base + reached - self.result.position)
        self.result.position = base + reached
        return reached

    def run(self, file: StoreFile, walk: TolerantWalk) -> None:
        """Process all frames that the scan ``walk`` yields for one file."""
        self.result.position = file.base + walk.position
        for item in walk:
            if not self._started:
                self._start(file.base + walk.first)
            position = file.base + walk.position
            if isinstance(item, UnreadRange):
                self._unread(file, item)
            else:
                self._hold(item)
            self._progress(position - self.result.position)
            self.result.position = position
        if not self._started:
            self._start(file.base + walk.first)
        self.result.position = file.base + walk.position
        if walk.shrunk:
            self.result.shrunk.append(file.path)

    def _hold(self, batch: Batch) -> None:
        """Collect small batches and process them together: column operations cost about the same
        for few messages as for many.
        """
        is_small = len(batch.data) <= _SMALL and self.result.entries is None and (
            len(batch) > 0 or bool(self._held))
        if is_small:
            batch.data = batch.data.copy()  # the walk goes on
            self._held.append(batch)
            self._held_bytes += len(batch.data)
        if self._held and (not is_small or self._held_bytes > _MAX_HELD):
            self._take_held()
        if not is_small:
            self._take(batch)

    def _take_held(self) -> None:
        if self._held:
            self._take(gathered(self._held))
            self._held, self._held_bytes = [], 0

    def _unread(self, file: StoreFile, lost: UnreadRange) -> None:
        """Count unreadable bytes in a file as damaged."""
        span = Span(DAMAGED, file.base + lost.start, lost.end - lost.start, lost.reason, UNREADABLE)
        if self.result.entries is not None:
            self.result.entries.passed()
        self.result.bytes_damaged += span.length
        self._keep_span(span)
        if self.result.profile is not None:
            self.result.profile.fill(DAMAGED, span.offset, span.end)

    def finish(self, *, last: bool) -> RangeResult:
        """Compare pending messages. ``last``: whether the range is the last of the log."""
        if not self._started:
            self._start(self.result.first)
        self._take_held()
        if self._sound is not None:
            self._sound.finish(self.result)
        if self._units is not None:
            self._units.close()
        self._messages.finish(None if last else self.result.position)
        return self.result

    # -- one batch ----------------------------------------------------------------------------

    def _take(self, batch: Batch) -> None:
        # Everything but messages: counted, and kept for the findings.
        result = self.result
        if result.entries is not None and batch.head:
            result.entries.add(batch, self.store.log, self._units)
        for span in batch.spans:
            if span.kind == BLANK:
                result.bytes_blank += span.length
                result.passed.blanks.append(span.offset)
            elif span.kind == ZERO:
                result.bytes_zero += span.length
                self._keep_span(span)  # damage, if the log continues after it
            else:
                result.bytes_damaged += span.length
                self._keep_span(span)
        if self.wanted.plain:
            self._require_plain(batch)
        if not len(batch):
            if result.profile is not None:
                result.profile.add(batch, np.ones(0, bool))
            return
        if self._sound is not None:
            self._sound.settle(self.result)
        # Both checksums, by column; a record that fails one counts as damage.
        size = batch.frame_size
        ok = batch.crc_ok().copy()
        sealed, wrong = appended_crcs(batch)
        ok &= ~wrong
        result.with_property_crc += int(np.count_nonzero(sealed))
        # Without an appended CRC, check the form of the properties.
        odd = ok & ~sealed & unsound_texts(text.properties(batch))
        ok &= ~odd
        result.seals.add(batch.offset, batch.frame_size, sealed, ok)
        bad = int((~ok).sum())
        if bad:
            result.bytes_damaged += int(size[~ok].sum())
        result.bytes_in_messages += int(size[ok].sum())
        result.messages += len(batch) - bad
        if result.profile is not None:
            result.profile.add(batch, ok)
        properties = text.PropertySegments(batch)
        numbers = bad_numbers(batch, self.store.generation, properties)
        result.headers.add(batch, ok, numbers)
        self._note(batch, numbers)
        # The newest time, and the last record: the end of the log.
        when = batch.column("store_timestamp")[ok | odd]
        if len(when):
            newest = int(when.max())
            result.last_store_timestamp = max(result.last_store_timestamp or newest, newest)
        result.last_record_start = int(batch.offset[-1])
        result.last_record_end = result.last_record_start + int(batch.column("total_size")[-1])
        codes = self._topics.encode(text.topics(batch))
        self._count_fillers(batch, codes, ok)
        if bad:
            self._keep_bad(batch, codes, ok, odd)
        if self._batch_topics:
            self._batches(batch, codes, ok)
        self._messages.check(CheckedBatch(batch, properties, codes, ok, sealed))
        if self.wanted.plain and self._messages.differ:
            raise NotPlainError

    def _require_plain(self, batch: Batch) -> None:
        """Raise NotPlainError at damage, at messages of special kinds, and if the compiled check
        leaves too many messages.
        """
        self._left_bytes += int(batch.frame_size.sum())
        passed = self.result.position - self.result.first
        if (self.result.bytes_damaged or self._left_bytes > max(
                _LEAST_LEFT, passed // _SHARE_LEFT) or not batch.crc_ok().all() or any(
                    _SPECIAL in batch.bytes_at(row) for row in range(len(batch)))):
            raise NotPlainError

    def _note(self, batch: Batch, numbers: Array) -> None:
        """Record the data about a batch that a prediction needs (`PassFacts`)."""
        facts = self.result.passed
        intact = np.flatnonzero(batch.crc_ok() | (batch.column("body_length") <= 0))
        if len(intact):
            facts.intact_end = int(batch.offset[intact[-1]]
                                   + batch.column("total_size")[intact[-1]])
            when = batch.column("store_timestamp")[intact]
            ordered = (when[1:] >= when[:-1] - TIME_SLACK) & (when[1:] <= when[:-1] + LONG_PAUSE)
            facts.follow(int(when[0]), int(when[-1]), in_order=bool(ordered.all()),
                         ascending=bool((when[1:] >= when[:-1]).all()))
        facts.odd_numbers += batch.offset[numbers[:MAX_LISTED]].tolist()
        facts.complete &= len(facts.odd_numbers) < MAX_LISTED
        if facts.first_v2 is None and batch.has_v2:
            newer = np.flatnonzero(batch.column("magic") == MAGIC_V2)
            facts.first_v2 = int(batch.offset[newer[0]]) if len(newer) else None

    def _count_fillers(self, batch: Batch, codes: Array, ok: Array) -> None:
        result = self.result
        kept = np.flatnonzero(kept_damaged(batch) & ok)
        if len(kept):
            result.kept_damaged += len(kept)
            if result.first_kept is None:
                result.first_kept = int(batch.offset[kept[0]])
        rows = np.flatnonzero(fillers(batch) & ok)
        if not len(rows):
            return
        if result.first_filler is None:
            result.first_filler = int(batch.offset[rows[0]])
        for code, count in zip(*np.unique(codes[rows], return_counts=True), strict=True):
            topic = os.fsdecode(self._topics.texts[int(code)])
            result.fillers[topic] = result.fillers.get(topic, 0) + int(count)

    def _keep_span(self, span: Span) -> None:
        if len(self.result.spans) < MAX_LISTED:
            self.result.spans.append(span)
        else:
            self.result.unlisted += 1

    def _keep_bad(self, batch: Batch, codes: Array, ok: Array, odd: Array) -> None:
        rows = np.flatnonzero(~ok)
        columns = (batch.offset, *map(batch.column, ("total_size", "queue_id", "queue_offset",
                                                     "body_length", "sys_flag")),
                   codes, batch.crc_ok(), odd)
        for row, offset, size, queue_id, queue_offset, length, flag, code, body_ok, is_odd in zip(
                rows.tolist(), *(column[rows].tolist() for column in columns), strict=True):
            why = props.fault(decode(batch.bytes_at(row)).properties) if is_odd else None
            self.result.keep_bad(BadRecord(
                offset, size, self._topics.texts[code], queue_id, queue_offset,
                "properties" if body_ok else "body", why or "", not body_ok and length > 0,
                sysflag.has_consume_queue_row(flag)))

    def _batches(self, batch: Batch, codes: Array, ok: Array) -> None:
        """Collect the entries that records of topics with a batch consume queue must have
        (consumequeue.md §9).
        """
        batched = np.array([topic in self._batch_topics for topic in self._topics.texts], bool)
        for index in np.flatnonzero(batched[codes] & ok).tolist():
            record = decode(batch.bytes_at(index))
            if not sysflag.has_consume_queue_row(record.sys_flag):
                continue
            try:
                base, count = batch_expected(record)
            except ValueError:
                continue  # a broker could not read the numbers and writes no entry
            key = os.fsdecode(record.topic), record.queue_id
            self.result.batch_rows.setdefault(key, []).append(
                (record.physical_offset, record.total_size, base, count))


class CheckedBatch(NamedTuple):
    """The messages of a batch.

    * ``topic``: each message's topic, as a topic number
    * ``ok``: whether each message passed the checks
    * ``sealed``: whether each message has an appended CRC
    """

    batch: Batch
    properties: text.PropertySegments
    topic: Array
    ok: Array
    sealed: Array


class MessageChecks:
    """The comparison of batches, received in log order, with consume queues and index."""

    def __init__(self, store: Store, ends: dict[QueueKey, int], wanted: ComparedStructures,
                 topics: text.Dictionary, result: RangeResult) -> None:
        self.store, self.wanted, self.result = store, wanted, result
        self._topics = topics
        self._tags = TagsCodes(topics)
        self._index = IndexKeys(topics)
        self.batched: set[str] = {topic for topic, _ in store.queues.batch}
        self._plain: list[bool] = []
        self.rows: ExpectedEntries = ExpectedEntries(store, ends)
        self._numbers = QueueTable(topics, self.rows.number)
        self._further = text.Dictionary()
        self.keys: KeyCheck | None = None

    def start(self, first: int) -> None:
        """Open the index. ``first``: physical offset of the first frame of the range."""
        if self.wanted.index and self.store.index.listing.files:
            entries = AllIndexEntries(self.store)
            if entries.total:
                self.keys = KeyCheck(entries, first)
            else:
                entries.close()

    @property
    def differ(self) -> bool:
        """Return whether a message without its entry, or a key without its entry, was met."""
        return self.rows.has_claims or (self.keys is not None and bool(self.keys.tally.missing))

    def finish(self, end: int | None) -> None:
        """Finish the comparison. ``end``: the end of the range (None: the end of the log)."""
        self.rows.flush()
        self.result.queues = self.rows.tallies
        if self.keys is not None:
            self.keys.finish(end)
            self.result.keys = self.keys.tally
            self.keys.entries.close()

    def check(self, part: CheckedBatch) -> None:
        for raw in self._topics.texts[len(self._plain):]:
            self._plain.append(os.fsdecode(raw) not in self.batched)
        checked: Array = np.zeros(len(part.batch), np.int64)
        kind = part.batch.column("sys_flag") & sysflag.TRANSACTION_MASK
        if self.wanted.queues:
            self._queue_rows(part, kind, checked)
        if self.keys is not None:
            self._index_keys(part, kind, self.keys, checked)
        elif self.wanted.index:
            keyed = np.zeros(len(part.batch), bool)
            for name in (props.UNIQUE_KEY, props.KEYS):
                keyed[part.properties.find(name)[0]] = True
            self.result.keyed += int(keyed.sum())
        self._count_doubtful(part, checked)

    def _count_doubtful(self, part: CheckedBatch, checked: Array) -> None:
        """Count the bytes of intact records that no other structure of this store confirms.

        ``checked``: for each record, the number of bytes of its properties that were compared with
        a consume queue or the index.
        """
        loose = part.ok & ~part.sealed
        count = int(loose.sum())
        if not count:
            return
        total = unconfirmed_bytes(part.batch.column("sys_flag")[loose],
                                  part.batch.column("properties_length")[loose] - checked[loose],
                                  by_index=self.keys is not None)
        if not self.wanted.queues:
            lengths = np.array([len(raw) for raw in self._topics.texts], np.int64)
            total += count * BY_QUEUE + int(lengths[part.topic[loose]].sum())
        self.result.bytes_unverifiable += total

    # -- consumequeue rows ----------------------------------------------------------------------

    def _queue_rows(self, part: CheckedBatch, kind: Array, checked: Array) -> None:
        rowed = (kind == sysflag.TRANSACTION_NONE) | (kind == sysflag.TRANSACTION_COMMIT)
        if self.batched:
            rowed &= np.array(self._plain, bool)[part.topic]
        batch, when = part.batch, part.batch.column("store_timestamp")
        tags, tagged, size = self._tags.codes(part.properties, part.topic, when)
        checked[tagged] += size
        rows = ExpectedRows(self._numbers.encode(part.topic, batch.column("queue_id")),
                            batch.column("queue_offset"), batch.offset, batch.column("total_size"),
                            tags, ~part.ok, when)
        self.rows.add(rows if rowed.all() else rows.take(rowed))
        # Further entries of multi-dispatched (LMQ) messages (consumequeue.md §10).
        which = rowed & part.ok
        self._add_further(part, rows, dispatched_rows(part.properties, which))
        if self.store.generation >= 5:
            self._add_further(part, rows, skipped_rows(part.properties, which), skipped=True)

    def _add_further(self, part: CheckedBatch, rows: ExpectedRows,
                     further: tuple[Array, text.Texts, Array], *,
                     skipped: bool = False) -> None:
        """Add the entries that messages should have in the further queues that they name.

        Some of these entries may legally be missing: a 5.x broker assigns queue offsets to messages
        of some topics without dispatching them (apache/rocketmq#8693). An older broker, which may
        have written the store before, dispatches them.

        An entry does not count as missing in two cases:

        * The broker's settings may have kept it from writing such entries.
        * The broker ignores the message's queues, because their list is too short (``skipped``).
        """
        message, names, offsets = further
        if not len(message):
            return
        self.result.passed.complete = False
        light = self.store.queues.light
        topics = self._topics.texts
        newer = self.store.generation >= 5
        # The queues that messages name, and their queue ids.
        picked: list[tuple[int, int, int]] = []
        free: list[bool] = []
        name = self._further.encode(names)
        queue_ids = light.ids(self._further.texts, name, part.batch.column("queue_id")[message],
                              offsets, rows.physical[message], self.store.queues.leads)
        for row, raw, offset, queue_id in zip(message.tolist(), names.tolist(), offsets.tolist(),
                                              queue_ids.tolist(), strict=True):
            queue = os.fsdecode(raw)
            if is_queue_name(queue):
                picked.append((row, self.rows.number((queue, queue_id)), offset))
                free.append(skipped or light.rows_optional or (
                    newer and topics[part.topic[row]].startswith(NOT_DISPATCHED)))
                if free[-1]:
                    self.rows.skip(picked[-1][1], offset)
        # They count as further entries of these messages.
        if picked:
            columns = np.array(picked, np.int64)
            more = rows.take(columns[:, 0])
            more.damaged = more.damaged | np.array(free, bool)
            more.queue, more.offset = columns[:, 1], columns[:, 2]
            self.rows.add(more)

    # -- index keys -----------------------------------------------------------------------------

    def _index_keys(self, part: CheckedBatch, kind: Array, check: KeyCheck, checked: Array) -> None:
        keys = self._index.keys(part.properties, part.topic)
        checked += np.bincount(keys.row, keys.size, len(part.batch)).astype(np.int64)
        row, hashes = keys.row, keys.key_hash
        rollback = kind == sysflag.TRANSACTION_ROLLBACK
        if rollback.any():
            indexed = ~rollback[row]
            row, hashes = row[indexed], hashes[indexed]
        offset = part.batch.offset
        check.compare(offset[row], hashes, part.batch.column("store_timestamp")[row],
                      int(offset[-1] + part.batch.column("total_size")[-1]))
