"""The last messages of a store, found from the end of the log without scanning all of it.

The log is read backwards in windows that grow; each window begins at its first record. If the
newest messages do not include the requested topic, its consumequeue is used to find older ones.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from rmqctl.errors import StoreIOError
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record
from rmqctl.scan.damage.stale import Beside
from rmqctl.scan.frames import BLANK, DAMAGED, Span
from rmqctl.scan.walk import Walk, start_of
from rmqctl.store.log.borders import is_unfinished
from rmqctl.store.log.bounds import View
from rmqctl.store.log.end import used_size
from rmqctl.store.log.follow import Follower
from rmqctl.store.objects import PROPERTY
from rmqctl.store.pages import BatchPage, RecordPage
from rmqctl.store.problems import Problem, Report, damage
from rmqctl.store.query.conditions import Condition, filtered
from rmqctl.store.query.select import Selection
from rmqctl.store.queue.rows import topic_rows

_FIRST_WINDOW, _WINDOW = 64 << 10, 16 << 20
_MAX_DISPATCH_LAG = 64 << 20
"""Number of bytes of the log that are searched before a topic's consumequeue is used.

While a broker is dispatching, the consumequeue lags by at most this number.
"""
_REMEMBERED = 64


def conditions_of(selection: Selection) -> list[Condition]:
    """Convert a selection to conditions on records, for readers that scan the log instead of
    queues.
    """
    conditions = []
    topic = selection.topic
    if topic is not None and topic.startswith(props.LMQ_PREFIX):
        # A message of a light queue has another topic, and the light queue's name in a list.
        conditions.append(Condition(PROPERTY + props.MULTI_DISPATCH, "~",
                                    f"(^|,){re.escape(topic)}(,|$)"))
        selection = replace(selection, queue_id=None)
    elif topic is not None:
        conditions.append(Condition("topic", "=", topic))
    if selection.queue_id is not None:
        conditions.append(Condition("queue_id", "=", selection.queue_id))
    return conditions + selection.conditions()


class Tail:
    """The newest messages of a selection.

    ``end``: the physical offset at which the log continues.
    ``follow``: whether the caller continues with `follower`, which then handles an incomplete last
    message.
    """

    def __init__(self, view: View, selection: Selection, report: Report, *,
                 follow: bool = False) -> None:
        self._view, self.selection, self._report = view, selection, report
        self._follow = follow
        self._log = view.store.log
        self._conditions = conditions_of(selection)
        self.end = self._log.min_offset
        """The physical offset after the last message or blank record, where new records are
        appended."""
        self.torn: list[Span] = []
        """Spans after the last message that are not messages: the record being written, or damage.
        """
        self._reached = self._log.end
        self._has_end = False

    def last(self, count: int) -> list[Record]:
        """Return the last ``count`` messages, oldest first; report unreadable files."""
        newest_first: list[list[Record]] = []
        left = count
        for records in self._windows():
            last_records = records[max(len(records) - left, 0):]
            newest_first.append(last_records)
            left -= len(last_records)
            if left <= 0:
                break
            is_late = self._log.end - self._reached > _MAX_DISPATCH_LAG
            if is_late and self.selection.topic is not None:
                by_queue = self._through_queues(left)
                if by_queue is not None:
                    newest_first.append(by_queue)
                    break
        return [record for records in reversed(newest_first) for record in records]

    def follower(self, report: Report) -> Follower:
        """Return a `Follower` that continues after the last messages. Call `last` first."""
        store = self._view.store
        follower = Follower(store.log_folders, self.end, report,
                            witness=partial(store.new_witness, current=True))
        newest = Tail(self._view, Selection(to_phy=self.end), lambda _problem: None)
        follower.remember(newest.last(_REMEMBERED))
        return follower

    # -- through the log ----------------------------------------------------------------------

    def _windows(self) -> Iterator[list[Record]]:
        """Yield the matching messages, window by window, the newest window first."""
        for number in range(len(self._log.files) - 1, -1, -1):
            try:
                yield from self._windows_of(number)
            except StoreIOError as error:
                self._report(Problem("unreadable", f"{error}: its messages are skipped"))

    def _windows_of(self, number: int) -> Iterator[list[Record]]:
        source = self._log.source(number)
        stop = used_size(source)
        window = _FIRST_WINDOW
        while stop > 0:
            start = max(0, stop - window)
            walk = Walk(source, start_of(source, start), stop,
                        beside=Beside(source).without if source.witness else None)
            if walk.first >= stop and start > 0:  # inside one large record, or damage
                window *= 4
                continue
            records = self._walked(walk)
            stop = walk.first if start > 0 else 0
            self._reached = source.base + stop
            window = min(window * 2, _WINDOW)
            yield records

    def _walked(self, walk: Walk) -> list[Record]:
        records: list[Record] = []
        end: int | None = None
        last = -1
        behind: list[Span] = []
        # Damage counts only once a message follows it: at the end it may be an unfinished write.
        for batch in walk:
            if len(batch):
                self._tell(behind)
                last = int(batch.offset[-1])
                end = int(batch.offset[-1] + batch.column("total_size")[-1])
                records += filtered(BatchPage(batch), self._conditions).records()
            for span in batch.spans:
                if span.kind == BLANK:
                    end, last = span.end, -1
                elif span.kind == DAMAGED:
                    behind.append(span)
        # Only the newest window contains the end of the log; damage in older ones is reported.
        if self._has_end:
            self._tell(behind)
        else:
            self.torn += behind
            # While a broker writes, the last record may have its full length but not its content.
            if self._follow and end is not None and last >= 0 and is_unfinished(
                    walk.source, last, end):
                end = last - walk.source.head
                records = [record for record in records if record.physical_offset < last]
            if end is not None:
                self.end, self._has_end = end, True
        return records

    def _tell(self, spans: list[Span]) -> None:
        for span in spans:
            self._report(damage(span))
        spans.clear()

    def report_torn(self) -> None:
        """Report the bytes after the last message as damage, unless a broker is running."""
        held = bool(self.torn) and self._view.store.lock.held
        for span in self.torn if not held else ():
            self._tell([span])
        if held:
            self._report(Problem("in-progress", f"the record at physical offset "
                                 f"{self.torn[0].offset} is being written", self.torn[0].offset))

    # -- through the consumequeue -------------------------------------------------------------

    def _through_queues(self, count: int) -> list[Record] | None:
        """Return the last messages of the topic before the part of the log that was already read;
        None if the topic has no queues.
        """
        topic = self.selection.topic
        assert topic is not None
        queues = topic_rows(self._view.store, topic, self.selection.queue_id, self._view,
                            self._report)
        if not queues:
            return None
        streams = [queue.backward() for queue in queues]
        newest_first: list[Record] = []
        conditions = self.selection.conditions()
        for physical, size in heapq.merge(*streams, reverse=True):
            if physical >= self._reached:
                continue
            record = self._log.record_at(physical, size)
            if record is not None and len(filtered(RecordPage([record]), conditions)):
                newest_first.append(record)
                if len(newest_first) >= count:
                    break
        return newest_first[::-1]

