"""Select messages from a tier for `tiered read`, page by page.

In a tier each queue has its own log, so queues come one after another, by number. Read errors are
reported through a callback, and reading continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rmqctl.errors import StoreIOError
from rmqctl.ext.tiered.flat_file import FlatQueue
from rmqctl.ext.tiered.read.by_time import at_time
from rmqctl.ext.tiered.read.messages import MessageFault, messages
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.local.message import Record
from rmqctl.store.pages import Page, RecordPage, limited
from rmqctl.store.problems import Problem, Report
from rmqctl.store.query.conditions import filtered
from rmqctl.store.query.select import Selection
from rmqctl.store.queue.rows import CLOCK_SLACK

PAGE = 512
"""Maximum number of messages on a page."""
PAGE_BYTES = 4 << 20
"""Size (bytes) at which a page ends."""
_NAMED = 10
"""Maximum number of faults of a queue that are reported one by one."""


def pages(tier: Tier, wanted: Selection, broker: str | None = None,
          report: Report = lambda _problem: None,
          advance: Callable[[int], None] = lambda _bytes: None) -> Iterator[Page]:
    """Yield the selected messages. ``wanted.from_phy`` and ``to_phy`` are offsets in the queue's
    tiered commit log.
    """
    unreadable(tier, wanted.topic, report)
    queue_pages = (page for queue in tier.queues(wanted.topic, wanted.queue_id, broker)
                   for page in _queue_pages(queue, wanted, report, advance))
    yield from counted(queue_pages, wanted)


def unreadable(tier: Tier, topic: str | None, report: Report) -> None:
    """Report the unreadable folders on the path to a topic."""
    for reason in tier.unreadable(topic):
        report(Problem("unreadable", reason))


def counted(unfiltered: Iterable[Page], wanted: Selection) -> Iterator[Page]:
    """Yield the messages that meet the conditions, at most ``wanted.count`` messages."""
    conditions = wanted.conditions()
    yield from limited((filtered(page, conditions) for page in unfiltered), wanted.count)


def _queue_pages(queue: FlatQueue, wanted: Selection, report: Report,
                 advance: Callable[[int], None]) -> Iterator[Page]:
    try:
        start, end = _range(queue, wanted)
    except StoreIOError as error:
        report(Problem("unreadable", f"{queue.name.topic}/{queue.name.queue_id}: {error}"))
        return
    faults = FaultReport(f"{queue.name.topic}/{queue.name.queue_id}", report)
    yield from gathered(_records(messages(queue, start, end), faults, advance))
    faults.finish()


def _range(queue: FlatQueue, wanted: Selection) -> tuple[int | None, int | None]:
    """Return the first queue offset to read and the end, narrowed by the requested times. None: no
    limit.
    """
    start, end = wanted.from_offset, None
    if wanted.since is not None:
        start = max(start or 0, at_time(queue, wanted.since - CLOCK_SLACK).queue_offset)
    if wanted.until is not None:
        end = at_time(queue, wanted.until + CLOCK_SLACK + 1).queue_offset
    return start, end


def _records(messages_: Iterable[Record | MessageFault], faults: FaultReport,
             advance: Callable[[int], None]) -> Iterator[Record]:
    for record in messages_:
        if isinstance(record, MessageFault):
            faults.add(record)
            continue
        advance(record.total_size)
        yield record


def gathered(records: Iterable[Record]) -> Iterator[Page]:
    """Yield records in pages of bounded size."""
    page: list[Record] = []
    size = 0
    for record in records:
        page.append(record)
        size += record.total_size
        if len(page) == PAGE or size >= PAGE_BYTES:
            yield RecordPage(page)
            page, size = [], 0
    if page:
        yield RecordPage(page)


class FaultReport:
    """Reports the first faults in a queue one by one, and then the number of further faults."""

    def __init__(self, queue: str, report: Report) -> None:
        self._queue, self._report = queue, report
        self._reported = self._more = 0
        self._last: int | None = None

    def add(self, fault: MessageFault) -> None:
        if self._reported < _NAMED:
            self._reported += 1
            self._report(Problem("unreadable" if fault.unreadable else "damage",
                                 f"{self._queue}: {fault}", fault.offset))
        else:
            self._more += fault.count
            self._last = fault.queue_offset + fault.count - 1

    def finish(self) -> None:
        if self._more:
            self._report(Problem("damage", f"{self._queue}: {self._more} more queue offsets up to "
                                 f"{self._last} do not point to a message"))
