"""Selection of messages by topic, queue, offset, time, tag, key or any other field, as for `read`.

* With a topic, its consume queues are read. Their entries decide, so LMQ and batch queues are read
  correctly.
* Without a topic, the log is scanned in physical order.

The result is a sequence of pages (`pages.Page`), so memory does not grow with the store. Damaged or
missing parts are reported through a callback while reading continues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.formats.local.javahash import string_hash
from rmqctl.formats.local.message import MIN_SIZE, Record
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.formats.local.sysflag import has_consume_queue_row
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.scan.text import topics
from rmqctl.store.log.bounds import View
from rmqctl.store.log.commit_log import packed_records
from rmqctl.store.log.pages import log_pages
from rmqctl.store.pages import BatchPage, Page, RecordPage, limited
from rmqctl.store.problems import Problem, Report
from rmqctl.store.query.compacted import compacted_pages
from rmqctl.store.query.conditions import KEY, Condition, filtered, is_plain, tag_condition
from rmqctl.store.queue.compaction import SERVED, served_rows
from rmqctl.store.queue.rows import (
    CLOCK_SLACK,
    MissingRows,
    QueueRows,
    has_queue_files,
    topic_rows,
    topics_on_disk,
)
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.store.query.indexed import SkippedRanges

_FIRST_CHUNK, _CHUNK, _CHUNK_BYTES = 32, 4096, 2 << 20
Rows = Array
"""Queue entries as the rows of an int64 array: physical offsets, queue offsets, sizes, and the
numbers of the queues."""
_SIZE = 2


@dataclass(frozen=True, slots=True)
class Selection:
    """The criteria that select messages.

    ``from_offset``: a queue offset.
    ``from_phy``, ``to_phy``: physical offsets, inclusive and exclusive.
    ``since``, ``until``: store times in epoch ms, both inclusive.
    ``starts``: read only these queues, each from its own queue offset; excludes ``topic`` and
    ``from_offset``.
    """

    topic: str | None = None
    queue_id: int | None = None
    from_offset: int | None = None
    count: int | None = None
    from_phy: int | None = None
    to_phy: int | None = None
    since: int | None = None
    until: int | None = None
    tag: str | None = None
    key: str | None = None
    where: tuple[Condition, ...] = ()
    starts: Mapping[tuple[str, int], int] | None = None

    def conditions(self) -> list[Condition]:
        """Return all criteria except topic, queue and count as conditions, the cheapest ones
        first.
        """
        conditions = [
            Condition(field, sign, value)  # type: ignore[arg-type]
            for field, sign, value in (
                ("physical_offset", ">=", self.from_phy), ("physical_offset", "<", self.to_phy),
                ("store_timestamp", ">=", self.since), ("store_timestamp", "<=", self.until),
            ) if value is not None]
        if self.tag is not None:
            conditions.append(tag_condition(self.tag))
        if self.key is not None:
            conditions.append(Condition(KEY, "=", self.key))
        return conditions + sorted(self.where, key=lambda condition: condition.cost)

    def tag_hashes(self) -> frozenset[int] | None:
        """Return the hashes of the wanted tags, which consume queue entries contain; None if hashes
        cannot decide the condition on tags.
        """
        for condition in self.conditions():
            if (condition.field, condition.operator) == ("tags", "="):
                tags = condition.any_of or (str(condition.value),)
                # Invalid UTF-8 has another hash than its displayed text.
                if all(is_plain(tag) for tag in tags):
                    return frozenset(map(string_hash, tags))
        return None

    def in_log(self) -> list[Condition]:
        """Return all criteria, including topic and queue, as conditions for a scan of the log."""
        place = (("topic", "=", self.topic), ("queue_id", "=", self.queue_id),
                 ("queue_offset", ">=", self.from_offset))
        return [Condition(field, sign, value)  # type: ignore[arg-type]
                for field, sign, value in place if value is not None] + self.conditions()


class Selector:
    """Reads the selected messages of a store; ``view`` decides where the queues and the log end."""

    def __init__(self, store: Store, selection: Selection, view: View,
                 report: Report = lambda _problem: None,
                 advance: Callable[[int], None] = lambda _bytes: None) -> None:
        self.store, self.selection, self.view = store, selection, view
        self._report, self._advance = report, advance
        self._tags = selection.tag_hashes()
        self._passed: SkippedRanges | None = None

    def pages(self) -> Iterator[Page]:
        """Yield the selected messages, page by page. A page is only valid until the next one is
        requested.

        Raises: StoreIOError, but only if nothing can be read.
        """
        yield from limited(self._chosen_pages(), self.selection.count)

    def records(self) -> Iterator[Record]:
        """Yield the selected messages one by one."""
        for page in self.pages():
            yield from page.records()

    def _chosen_pages(self) -> Iterator[Page]:
        wanted = self.selection
        if wanted.count == 0:
            return
        conditions = wanted.conditions()
        # Consumer offsets of a group: read each queue from its own start.
        if wanted.starts is not None:
            several = [rows for topic, queue_id in wanted.starts for rows in served_rows(
                self.store, topic, queue_id, self.view, self._report)]
            for page in self._queue_pages(several):
                yield filtered(page, conditions)
            return
        # Without a topic, all messages are read in the order of the log.
        if wanted.topic is None:
            passed = self._passed_over(None)
            yield from log_pages(self.view, wanted, conditions, self._report, self._advance,
                                 None if passed is None else passed.left)
            return
        # The consume queues provide the messages of a topic without reading the entire log.
        layout = self.store.layout
        unread = layout.unread.get("consumequeue")
        # physical offsets of another log
        in_log = wanted.from_phy is not None or wanted.to_phy is not None
        find = topic_rows if in_log else served_rows
        queues = [] if unread else find(self.store, wanted.topic, wanted.queue_id, self.view,
                                        self._report)
        if not in_log and not self.view.compacted:
            for page in compacted_pages(self.store, wanted.topic, wanted.queue_id,
                                        wanted.from_offset or 0, self._report):
                yield filtered(page, conditions)
        if queues:
            self._passed = self._passed_over(sum(queue.end - queue.first for queue in queues))
            for page in self._queue_pages(queues):
                yield filtered(page, conditions)
        elif unread or self._may_lack_queues(wanted.topic):
            # Without usable queues, filter the entire log, and note that this is slower.
            self._report(Problem("row" if "consumequeue" in layout.damaged else "note",
                                 f"{unread or f'{wanted.topic} has no consume queue here'}: "
                                 "searching the whole log for it"))
            own = [Condition("topic", "=", wanted.topic)]
            if wanted.queue_id is not None:
                own.append(Condition("queue_id", "=", wanted.queue_id))
            if wanted.from_offset is not None:
                own.append(Condition("queue_offset", ">=", wanted.from_offset))
            for page in log_pages(self.view, wanted, own + conditions, self._report,
                                  self._advance):
                yield from _with_rows(page)

    def _passed_over(self, read: int | None) -> SkippedRanges | None:
        if self.selection.key is None:
            return None
        from rmqctl.store.query.indexed import passed_over

        return passed_over(self.store, self.selection.topic, self.selection.key, read)

    # -- through the consumequeue -------------------------------------------------------------

    def _may_lack_queues(self, topic: str) -> bool:
        """Return whether the log may contain messages of a topic that has no queues.

        It may if the topic's folder has no queue files, or if no topic of the store has queues.
        """
        topics = topics_on_disk(self.store)
        return not topics or (topic in topics and not has_queue_files(self.store, topic))

    def _range(self, queue: QueueRows) -> tuple[int, int]:
        """Return (start, end) of the queue offsets to read, within the requested offsets and
        times.
        """
        wanted = self.selection
        start, end = queue.first, queue.end
        if wanted.starts is not None:
            start = max(start, wanted.starts[queue.topic, queue.queue_id])
        if wanted.from_offset is not None:
            start = max(start, wanted.from_offset)
        if wanted.since is not None:
            start = max(start, queue.at_or_after(wanted.since - CLOCK_SLACK))
        if wanted.until is not None:
            end = min(end, queue.at_or_after(wanted.until + CLOCK_SLACK + 1))
        return start, end

    def _queue_pages(self, queues: list[QueueRows]) -> Iterator[Page]:
        own = [queue for queue in queues if queue.log is not self.store.log]
        for queue in own:
            self._report(Problem("note", f"{queue.topic}/{queue.queue_id}: {SERVED}"))
        together = [queue for queue in queues if queue.log is self.store.log]
        try:
            for some in (*([queue] for queue in own), together):
                if some:
                    yield from self._pages_of(some)
        finally:  # also report them if the caller stops before the end
            for queue in queues:
                if queue.why_unread:
                    self._report(Problem("row", f"{queue.topic}/{queue.queue_id}: unreadable "
                                         f"entries are skipped: {queue.why_unread}"))
            for queue in own:
                queue.log.close()

    def _pages_of(self, queues: list[QueueRows]) -> Iterator[Page]:
        missing = MissingRows(queues[0].log, queues, self._report)
        size, buffer = _FIRST_CHUNK, np.empty(_CHUNK_BYTES, np.uint8)
        try:
            for rows in self._merged(queues):
                at = 0
                while at < rows.shape[1]:
                    chunk = rows[:, at:at + size]
                    total = np.cumsum(chunk[_SIZE])
                    chunk = chunk[:, :max(int(np.searchsorted(total, _CHUNK_BYTES, "right")), 1)]
                    yield from self._messages(queues, chunk, buffer, missing)
                    at += chunk.shape[1]
                    size = min(size * 2, _CHUNK)
        finally:  # also for messages before the last wanted one
            missing.finish()
            for queue in queues:
                if queue.unused and not queue.why_unread:
                    self._report(Problem(
                        "row", f"{queue.topic}/{queue.queue_id}: {len(queue.unused):,} entries "
                               f"from {queue.unused[0]} on are zero, but others follow"))
        for queue in queues:
            if queue.behind and self.selection.until is None:
                self._report(Problem("row", Phrase(
                    "{topic}/{queue}: {count:,} entry, from queue offset {end} on, points beyond "
                    "the end of the log", "{topic}/{queue}: {count:,} entries, from queue offset "
                    "{end} on, point beyond the end of the log", topic=queue.topic,
                    queue=queue.queue_id, count=queue.behind, end=queue.end)))

    def _messages(self, queues: list[QueueRows], rows: Rows, buffer: Array,
                  missing: MissingRows) -> Iterator[Page]:
        """Yield the messages to which the rows point. Add rows that point to no message to
        ``missing``.

        A page ends before such a row, so the row is not reported if the caller stops at that page.
        """
        physical, _, size, number = rows
        # All at once, if each row points to a record of its queue.
        if (len(physical) > 1 and (physical[1:] > physical[:-1]).all()
                and (size >= MIN_SIZE).all() and (size <= MAX_RECORD).all()):
            batch, ok = packed_records(queues[0].log, physical, size, buffer)
            if ok.all() and _all_belong(queues, number, batch):
                yield BatchPage(batch)
                return
        # Row by row, as long as a row points to something else.
        records: list[Record] = []
        for place, offset, length, which in rows.T.tolist():
            record = queues[0].log.record_at(place, length)
            if record is None or not _belongs(queues[which], record):
                if records:
                    yield RecordPage(records)
                    records = []
                missing.add(which, offset, place, length)
            else:
                records.append(record)
        if records:
            yield RecordPage(records)

    def _merged(self, queues: list[QueueRows]) -> Iterator[Rows]:
        """Yield the rows of all queues, merged into the order of the log. The rows of one queue
        keep their order.
        """
        streams = [self._rows(number, queue) for number, queue in enumerate(queues)]
        if len(streams) == 1:
            yield from streams[0]
            return
        # For each queue a part, and whether another one follows: all rows before the last row of
        # such a part are known. A row with a lower offset stays after the row before it.
        parts: dict[int, tuple[Array, Rows, Rows | None]] = {}

        def take(number: int, rows: Rows | None, least: int) -> None:
            parts.pop(number, None)
            if rows is not None:
                keys = np.maximum(np.maximum.accumulate(rows[0]), least)
                parts[number] = keys, rows, next(streams[number], None)

        for number, stream in enumerate(streams):
            take(number, next(stream, None), 0)
        while parts:
            border = min((int(keys[-1]) for keys, _, more in parts.values() if more is not None),
                         default=None)
            chosen = []
            for number, (keys, rows, more) in list(parts.items()):
                cut = len(keys) if border is None else int(np.searchsorted(keys, border, "right"))
                chosen.append((keys[:cut], rows[:, :cut]))
                if cut == len(keys):
                    take(number, more, int(keys[-1]))
                else:
                    parts[number] = keys[cut:], rows[:, cut:], more
            order = np.argsort(np.concatenate([keys for keys, _ in chosen]), kind="stable")
            yield np.concatenate([rows for _, rows in chosen], axis=1).take(order, axis=1)

    def _rows(self, number: int, queue: QueueRows) -> Iterator[Rows]:
        wanted = self.selection
        try:
            start, end = self._range(queue)
            for offsets, physical, sizes in queue.pages(start, end, self._tags):
                mask = np.ones(len(physical), bool) if self._passed is None else (
                    ~self._passed.covers(physical))
                if wanted.from_phy is not None:
                    mask &= physical >= wanted.from_phy
                if wanted.to_phy is not None:
                    mask &= physical < wanted.to_phy
                if mask.any():
                    yield np.stack([physical[mask], offsets[mask], sizes[mask],
                                    np.full(int(mask.sum()), number, np.int64)])
        except StoreIOError as error:
            self._report(Problem("unreadable", f"{error}: the rest of "
                                 f"{queue.topic}/{queue.queue_id} is skipped"))


def _belongs(queue: QueueRows, record: Record) -> bool:
    """Return whether an entry of the queue may point to the record. Entries of a light queue point
    to messages of other topics.
    """
    return queue.topic.startswith(LMQ_PREFIX) or (record.topic, record.queue_id) == (
        os.fsencode(queue.topic), queue.queue_id)


def _all_belong(queues: list[QueueRows], number: Array, batch: Batch) -> bool:
    """Return whether every record of a batch belongs to the queue whose entry points to the record.
    ``number``: for each record, the number of that queue.
    """
    names, ids = topics(batch), batch.column("queue_id")
    for which in {*number.tolist()}:
        queue, rows = queues[which], number == which
        if not queue.topic.startswith(LMQ_PREFIX) and not (
                (ids[rows] == queue.queue_id).all()
                and names.take(rows).equal(os.fsencode(queue.topic)).all()):
            return False
    return True


def _with_rows(page: Page) -> Iterator[Page]:
    """Yield the messages of a page that have a consume queue entry. Messages of unfinished
    transactions have none.
    """
    mask = np.fromiter(map(has_consume_queue_row, page.column("sys_flag")), bool, len(page))
    if mask.any():
        yield page if mask.all() else page.select(np.flatnonzero(mask))
