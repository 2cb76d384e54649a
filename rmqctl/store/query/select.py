"""Messages by topic, queue, place, time, tag, key or any field: the selection behind `read`.

Two ways lead to them. With a topic the consumequeue is followed (its rows decide, so LMQ and
batch queues are read as they are meant); without one the log is walked in physical order. Both
give pages (`pages.Page`), memory does not grow with the store, and what is damaged or missing is
reported through a callback while the reading goes on.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.formats.local.javahash import string_hash
from rmqctl.formats.local.message import Record
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.formats.local.sysflag import has_consume_queue_row
from rmqctl.store.log.bounds import View
from rmqctl.store.log.pages import log_pages
from rmqctl.store.pages import Page, RecordPage, limited
from rmqctl.store.problems import Problem, Report
from rmqctl.store.query.compacted import compacted_pages
from rmqctl.store.query.conditions import KEY, Condition, filtered, is_plain, tag_condition
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
    from rmqctl.store.query.indexed import Passed

_FIRST_CHUNK, _CHUNK = 32, 512
Row = tuple[int, int, int, int]
"""(physical offset, queue offset, size, number of the queue): sorted as the log is."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages. Bounds: ``from_offset`` is a queue offset; ``from_phy`` inclusive,
    ``to_phy`` exclusive; ``since`` and ``until`` are store times in epoch ms, both inclusive.
    ``starts``: these queues only, each from its own queue offset on (then neither ``topic`` nor
    ``from_offset``).
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
        """Everything but topic, queue and count, the cheapest first."""
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
        """The hashes of the tags that are wanted, as rows of consumequeues have them; None where
        the condition on tags says nothing of hashes.
        """
        for condition in self.conditions():
            if (condition.field, condition.operator) == ("tags", "="):
                tags = condition.any_of or (str(condition.value),)
                # What is no UTF-8 has another hash than the text that is shown for it.
                if all(is_plain(tag) for tag in tags):
                    return frozenset(map(string_hash, tags))
        return None

    def in_log(self) -> list[Condition]:
        """All conditions for messages in log order: those on topic and queue, too."""
        place = (("topic", "=", self.topic), ("queue_id", "=", self.queue_id),
                 ("queue_offset", ">=", self.from_offset))
        return [Condition(field, sign, value)  # type: ignore[arg-type]
                for field, sign, value in place if value is not None] + self.conditions()


class Selector:
    """Reads a selection from a store; ``view`` decides where queues and log end."""

    def __init__(self, store: Store, selection: Selection, view: View,
                 report: Report = lambda _problem: None,
                 advance: Callable[[int], None] = lambda _bytes: None) -> None:
        self.store, self.selection, self.view = store, selection, view
        self._report, self._advance = report, advance
        self._tags = selection.tag_hashes()
        self._passed: Passed | None = None

    def pages(self) -> Iterator[Page]:
        """The selected messages, page by page. A page is only valid until the next is asked for.

        Raises StoreIOError only where nothing can be read at all.
        """
        yield from limited(self._chosen_pages(), self.selection.count)

    def records(self) -> Iterator[Record]:
        """The selected messages one by one."""
        for page in self.pages():
            yield from page.records()

    def _chosen_pages(self) -> Iterator[Page]:
        wanted = self.selection
        if wanted.count == 0:
            return
        conditions = wanted.conditions()
        # Consumer offsets of a group: read each queue from its own start.
        if wanted.starts is not None:
            several = [rows for topic, queue_id in wanted.starts for rows in topic_rows(
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
        # Consume queues find the messages of a topic without reading the whole log.
        layout = self.store.layout
        unread = layout.unread.get("consumequeue")
        queues = [] if unread else topic_rows(self.store, wanted.topic, wanted.queue_id, self.view,
                                              self._report)
        if wanted.from_phy is None and wanted.to_phy is None:  # places of another log
            for page in compacted_pages(self.store, wanted.topic, wanted.queue_id,
                                        wanted.from_offset or 0, self._report):
                yield filtered(page, conditions)
        if queues:
            self._passed = self._passed_over(sum(queue.end - queue.first for queue in queues))
            for page in self._queue_pages(queues):
                yield filtered(page, conditions)
        elif unread or self._may_lack_queues(wanted.topic):
            # Without usable queues, filter the whole log, and say that this is slower.
            self._report(Problem("row" if "consumequeue" in layout.damaged else "note",
                                 f"{unread or f'{wanted.topic} has no consumequeue here'}: "
                                 "looking through the whole log for it"))
            own = [Condition("topic", "=", wanted.topic)]
            if wanted.queue_id is not None:
                own.append(Condition("queue_id", "=", wanted.queue_id))
            if wanted.from_offset is not None:
                own.append(Condition("queue_offset", ">=", wanted.from_offset))
            for page in log_pages(self.view, wanted, own + conditions, self._report,
                                  self._advance):
                yield from _with_rows(page)

    def _passed_over(self, read: int | None) -> Passed | None:
        if self.selection.key is None:
            return None
        from rmqctl.store.query.indexed import passed_over

        return passed_over(self.store, self.selection.topic, self.selection.key, read)

    # -- through the consumequeue -------------------------------------------------------------

    def _may_lack_queues(self, topic: str) -> bool:
        """Whether the log may hold a topic that has no queue: not if others have theirs."""
        topics = topics_on_disk(self.store)
        return not topics or (topic in topics and not has_queue_files(self.store, topic))

    def _range(self, queue: QueueRows) -> tuple[int, int]:
        """The queue offsets to look at, narrowed by the times asked for."""
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
        try:
            yield from self._pages_of(queues)
        finally:  # who has enough before the end is told of these too
            for queue in queues:
                if queue.why_unread:
                    self._report(Problem("row", f"{queue.topic}/{queue.queue_id}: rows that cannot "
                                         f"be read are left out: {queue.why_unread}"))

    def _pages_of(self, queues: list[QueueRows]) -> Iterator[Page]:
        missing = MissingRows(self.store.log, queues, self._report)
        rows = self._merged(queues)
        size = _FIRST_CHUNK
        read = self.store.log.record_at
        while chunk := list(islice(rows, size)):
            records = []
            for physical, offset, length, number in chunk:
                record = read(physical, length)
                if record is None or not _belongs(queues[number], record):
                    missing.add(number, offset, physical, length)
                else:
                    records.append(record)
            if records:
                yield RecordPage(records)
            size = min(size * 2, _CHUNK)
        missing.finish()
        for queue in queues:
            if queue.unused and not queue.why_unread:
                self._report(Problem("row", f"{queue.topic}/{queue.queue_id}: {len(queue.unused)} "
                                     f"rows from {queue.unused[0]} on are zero, though others "
                                     "follow"))
            if queue.behind and self.selection.until is None:
                self._report(Problem("row", f"{queue.topic}/{queue.queue_id}: {queue.behind} rows "
                                     f"from {queue.end} on lead beyond the end of the log"))

    def _merged(self, queues: list[QueueRows]) -> Iterator[Row]:
        """The rows of all queues in the order of the log; one queue in its own order."""
        streams = [self._rows(number, queue) for number, queue in enumerate(queues)]
        return streams[0] if len(streams) == 1 else heapq.merge(*streams)

    def _rows(self, number: int, queue: QueueRows) -> Iterator[Row]:
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
                for row in zip(physical[mask].tolist(), offsets[mask].tolist(),
                               sizes[mask].tolist(), strict=True):
                    yield *row, number
        except StoreIOError as error:
            self._report(Problem("unreadable", f"{error}: the rest of {queue.topic}/"
                                 f"{queue.queue_id} is left out"))


def _belongs(queue: QueueRows, record: Record) -> bool:
    """Whether a row of the queue may lead to a record. A light queue has messages of others."""
    return queue.topic.startswith(LMQ_PREFIX) or (record.topic, record.queue_id) == (
        os.fsencode(queue.topic), queue.queue_id)


def _with_rows(page: Page) -> Iterator[Page]:
    """The messages of a page to which a queue has rows: not those of unfinished transactions."""
    mask = np.fromiter(map(has_consume_queue_row, page.column("sys_flag")), bool, len(page))
    if mask.any():
        yield page if mask.all() else page.select(np.flatnonzero(mask))
