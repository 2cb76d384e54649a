"""The complete log in physical order, page by page, filtered by conditions; damage is reported and
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from rmqctl.errors import StoreIOError
from rmqctl.scan.frames import BLANK, DAMAGED, Span
from rmqctl.scan.tolerant import TolerantWalk, UnreadRange
from rmqctl.scan.walk import start_of
from rmqctl.store.log.bounds import View
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.pages import BatchPage, Page
from rmqctl.store.problems import Problem, Report, damage, gap, unread
from rmqctl.store.query.conditions import Condition, filtered
from rmqctl.store.queue.rows import CLOCK_SLACK


class LogSelection(Protocol):
    """The conditions of a selection that limit which files of the log are searched."""

    @property
    def from_phy(self) -> int | None: ...
    @property
    def to_phy(self) -> int | None: ...
    @property
    def since(self) -> int | None: ...
    @property
    def until(self) -> int | None: ...


def chosen_files(log: CommitLog, wanted: LogSelection) -> list[int]:
    """Return the indices of the files that may contain selected messages.

    The time range of a file is from its first record's store time to the next file's first store
    time. A broker's clock may have been set back. A file is therefore omitted only if its time
    range differs from the requested times by more than `CLOCK_SLACK`.
    """
    start, end = wanted.from_phy or 0, wanted.to_phy
    numbers = [number for number, file in enumerate(log.files)
               if file.end > start and (end is None or file.base < end)]
    if wanted.since is None and wanted.until is None:
        return numbers
    first = {number: _first_time(log, number) for number in {*numbers, *(n + 1 for n in numbers)}}

    def may_hold(number: int) -> bool:
        opens, closes = first[number], first[number + 1]
        too_old = (wanted.since is not None and closes is not None
                   and closes < wanted.since - CLOCK_SLACK)
        too_new = (wanted.until is not None and opens is not None
                   and opens > wanted.until + CLOCK_SLACK)
        return not too_old and not too_new

    return [number for number in numbers if may_hold(number)]


def _first_time(log: CommitLog, number: int) -> int | None:
    """Return the store time of a file's first record; None if it cannot be read."""
    if number >= len(log.files):
        return None
    try:
        record = log.record_at(log.files[number].base + log.files[number].head)
    except StoreIOError:
        return None
    return None if record is None or record.store_timestamp <= 0 else record.store_timestamp


def log_pages(view: View, wanted: LogSelection, conditions: Sequence[Condition], report: Report,
              advance: Callable[[int], None] = lambda _bytes: None,
              left: Callable[[int, int], Iterable[tuple[int, int]]] | None = None) -> Iterator[
                  Page]:
    """Yield pages of the messages in the range for which all conditions hold, in physical order.

    Every damaged span, missing file and unreadable file is reported once.

    ``advance`` is called with the number of examined bytes, batch by batch.
    ``left`` returns the parts of a log file that may contain such messages; other parts are not
    read.
    """
    # Report files that cannot be opened before anything is read.
    log = view.store.log
    for trouble in view.store.log_troubles:
        if trouble.unreadable:
            report(Problem("unreadable", f"{trouble.path}: {trouble.reason}"))
    spans = _Spans(view, report)
    before: int | None = None
    # Read file by file, and report a gap where two files do not meet.
    for number in chosen_files(log, wanted):
        file = log.files[number]
        if before == number - 1 and log.files[before].end < file.base:
            report(gap(log.files[before].end, file.base))
        before = number
        start, end = max(wanted.from_phy or 0, file.base), file.end
        if wanted.to_phy is not None:
            end = min(end, wanted.to_phy)
        for low, high in ((start, end),) if left is None else left(start, end):
            if low > start:
                spans.passed(1, ())  # messages that are skipped
            walk = _walk(log, number, low, high, view.log_end)
            position = walk.position
            for batch in walk:
                advance(walk.position - position)
                position = walk.position
                # Pass on matching messages; spans are counted even if no message matches.
                if isinstance(batch, UnreadRange):
                    report(unread(file.base, batch))
                    continue
                spans.passed(len(batch), batch.spans)
                page = filtered(BatchPage(batch), conditions)
                if len(page):
                    yield page
            if walk.shrunk:
                report(Problem("unreadable", f"{file.path}: shrank while it was read"))
    spans.finish()


def _walk(log: CommitLog, number: int, low: int, high: int, log_end: int | None) -> TolerantWalk:
    file = log.files[number]
    start = low - file.base
    ends = [end - file.base - file.head for end in (high if high < file.end else None, log_end)
            if end is not None]
    resync = start > 0
    if resync:
        with suppress(StoreIOError):  # else the next record that proves itself is used
            start, resync = start_of(log.source(number), start), False
    return TolerantWalk(partial(log.source, number), start, max(min([file.size, *ends]), 0),
                        resync=resync, no_stale=True)


class _Spans:
    """Collects the byte ranges between messages until it is known whether another message follows.

    Between two messages, zeros and other bytes are damage. After the last message, they are unused
    space or a record that a broker is writing.
    """

    def __init__(self, view: View, report: Report) -> None:
        self._view, self._report = view, report
        self._open: list[Span] = []

    def passed(self, messages: int, spans: Sequence[Span]) -> None:
        if messages:
            self._flush()
        self._open += [span for span in spans if span.kind != BLANK]
        if len(self._open) > 1000:  # do not collect hopeless damage forever
            self._flush()

    def _flush(self) -> None:
        for span in self._open:
            self._report(damage(span))
        self._open.clear()

    def finish(self) -> None:
        """Report the remaining spans, which no message follows."""
        damaged = [span for span in self._open if span.kind == DAMAGED]
        lock = self._view.store.lock if damaged else None
        for span in damaged:
            if span is damaged[-1] and lock is not None and lock.held:
                self._report(Problem(
                    "in-progress", f"the record at physical offset {span.offset} is being written "
                    "by the process that holds the store", span.offset, span.length))
            else:
                self._report(damage(span))
