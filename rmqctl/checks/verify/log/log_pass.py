"""One pass over a range of the log: frames, checksums, and what the records lead to.

The range may be the whole log or a part of it that a worker process takes; results are plain
values which merge in order. spec: commitlog.md §2, §5.4, §6.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from rmqctl.checks.verify.log.message_checks import MessageChecks
from rmqctl.checks.verify.log.results import BadRecord, RangeResult, Wanted
from rmqctl.checks.verify.log.text_block import BLOCK, Gatherer
from rmqctl.checks.verify.queue.batch_rows import batch_expected
from rmqctl.checks.verify.queue.rows import QueueKey
from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import decode
from rmqctl.scan import text
from rmqctl.scan.frames import BLANK, DAMAGED, ZERO, Array, Batch, Span, gather, gather_int
from rmqctl.scan.walk import Walk
from rmqctl.store.files import StoreFile
from rmqctl.store.store import Store

KEEP = 100_000
UNREADABLE = "(unreadable)"
"""Stands for the field of a span that the system would not read."""
_SEAL_NAME = props.CRC32.encode("ascii")


class LogPass:
    """Runs over one source range after the other; `result` accumulates."""

    def __init__(self, store: Store, ends: dict[QueueKey, int], wanted: Wanted, start: int,
                 progress: Callable[[int], None] | None = None) -> None:
        self.store, self.wanted = store, wanted
        self.result = RangeResult(start, start)
        self._progress = progress or (lambda _done: None)
        self._topics = text.Dictionary()
        self._messages = MessageChecks(store, ends, wanted, self._topics, self.result)
        self._gathered = Gatherer()
        self._batch_topics = {os.fsencode(topic) for topic, _ in store.batch_queues}
        self._started = False

    def _start(self, first: int) -> None:
        """Opens the index at the first frame (a resync may have moved it behind the cut)."""
        self._started = True
        self.result.first = first
        self._messages.start(first)

    def run(self, walk: Walk) -> None:
        """Consumes a walk: all frames of one file's range."""
        if not self._started:
            self._start(walk.source.base + walk.first)
        self.result.position = walk.source.base + walk.position
        for batch in walk:
            self._take(batch)
            here = walk.source.base + walk.position
            self._progress(here - self.result.position)
            self.result.position = here
        self.result.position = walk.source.base + walk.position
        if walk.shrunk:
            self.result.shrunk.append(walk.source.name)

    def unreadable(self, file: StoreFile, start: int, end: int, reason: str) -> None:
        """Takes note of positions ``[start, end)`` of a file that the system does not give."""
        if not self._started:
            self._start(file.base + start)
        if end > start:
            span = Span(DAMAGED, file.base + start, end - start, reason, UNREADABLE)
            self.result.bytes_damaged += span.length
            self._keep_span(span)
        self.result.position = file.base + end

    def finish(self, *, last: bool) -> RangeResult:
        """Compares what is still gathered. ``last``: nothing of the log comes behind."""
        if not self._started:
            self._start(self.result.first)
        self._flush_block()
        self._messages.finish(None if last else self.result.position)
        return self.result

    def _flush_block(self) -> None:
        block = self._gathered.take()
        if block is not None:
            self._messages.check(block)

    # -- one batch ----------------------------------------------------------------------------

    def _take(self, batch: Batch) -> None:
        found = self.result
        for span in batch.spans:
            if span.kind == BLANK:
                found.bytes_blank += span.length
            elif span.kind == ZERO:
                found.bytes_zero += span.length
                self._keep_span(span)  # damage, should the log go on behind it
            else:
                found.bytes_damaged += span.length
                self._keep_span(span)
        if not len(batch):
            return
        size = batch.column("total_size")
        ok = batch.crc_ok().copy()
        sealed = self._seals(batch, ok)
        bad = int((~ok).sum())
        if bad:
            found.bytes_damaged += int(size[~ok].sum())
        found.bytes_in_messages += int(size[ok].sum())
        found.messages += len(batch) - bad
        when = batch.column("store_timestamp")[ok]
        if len(when):
            newest = int(when.max())
            found.last_store_timestamp = max(found.last_store_timestamp or newest, newest)
        found.last_record_start = int(batch.offset[-1])
        found.last_record_end = found.last_record_start + int(size[-1])
        codes = self._topics.encode(text.topics(batch))
        if bad:
            self._keep_bad(batch, codes, ok)
        if self._batch_topics:
            self._batches(batch, codes, ok)
        self._gathered.add(batch, codes, ok, sealed)
        if self._gathered.count >= BLOCK:
            self._flush_block()

    def _keep_span(self, span: Span) -> None:
        if len(self.result.spans) < KEEP:
            self.result.spans.append(span)
        else:
            self.result.unkept += 1

    def _keep_bad(self, batch: Batch, codes: Array, ok: Array) -> None:
        for index in np.flatnonzero(~ok).tolist():
            if len(self.result.bad) >= KEEP:
                self.result.unkept += 1
                continue
            body_ok = bool(batch.crc_ok()[index])
            self.result.bad.append(BadRecord(
                int(batch.offset[index]), int(batch.column("total_size")[index]),
                self._topics.texts[int(codes[index])], int(batch.column("queue_id")[index]),
                int(batch.column("queue_offset")[index]), "properties" if body_ok else "body"))

    def _seals(self, batch: Batch, ok: Array) -> Array:
        """Verifies appended property CRCs; True where a record carries one (commitlog.md §5.4)."""
        length = append_crc.SIZE
        sealed = batch.column("properties_length") >= length
        end = batch.start + batch.column("total_size")
        sealed &= batch.column("total_size") >= length
        rows = np.flatnonzero(sealed)
        head = gather_int(batch.data, end[rows] - length, "i8")
        rows = rows[head == int.from_bytes(_SEAL_NAME, "big", signed=True)]
        sealed[:] = False
        if not len(rows):
            return sealed
        seal = gather(batch.data, end[rows] - length, length).view(np.uint8).reshape(-1, length)
        mark = np.frombuffer(append_crc.build(0)[:length - append_crc.DIGITS - 1], np.uint8)
        digits = seal[:, len(mark):-1].astype(np.int64) - ord("0")
        has = (seal[:, :len(mark)] == mark).all(axis=1)
        sealed[rows] = has
        rows, digits = rows[has], digits[has]
        if len(rows):
            stored = digits @ (10 ** np.arange(append_crc.DIGITS, dtype=np.int64))
            good = ((digits >= 0) & (digits <= 9)).all(axis=1)
            start = batch.start[rows]
            good &= batch.crc(start, end[rows] - length - start) == stored
            ok[rows] &= good
            self.result.with_property_crc += len(rows)
        return sealed

    def _batches(self, batch: Batch, codes: Array, ok: Array) -> None:
        """Rows that records of batch consumequeue topics must have (consumequeue.md §9)."""
        mine = np.array([one in self._batch_topics for one in self._topics.texts], bool)
        for index in np.flatnonzero(mine[codes] & ok).tolist():
            record = decode(batch.bytes_at(index))
            if not sysflag.has_consume_queue_row(record.sys_flag):
                continue
            try:
                base, count = batch_expected(record)
            except ValueError:
                continue  # a broker could not read the numbers and writes no row
            key = os.fsdecode(record.topic), record.queue_id
            self.result.batch_rows.setdefault(key, []).append(
                (record.physical_offset, record.total_size, base, count))
