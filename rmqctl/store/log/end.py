"""The start and end of the readable log, found without reading all of it.

The last entries of the queues point close to the end of the log. The scan starts at the records to
which these entries point, or at the start of the last file with content. Zeros of preallocated
files are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Protocol

from rmqctl.errors import StoreIOError
from rmqctl.formats.local.message import Record
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import BLANK
from rmqctl.scan.holes import used_end
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk
from rmqctl.store.files import Trouble
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.queue.consume_queue import ConsumeQueue

_MAX_TRIES = 64
_FIRST_CHUNK = 64 << 10


class QueuesOfLog(Protocol):
    """The queues of `LogAndQueues`, by topic and queue id."""

    @property
    def readable(self) -> Mapping[tuple[str, int], ConsumeQueue]: ...


class LogAndQueues(Protocol):
    """The part of a store's interface that this module needs: the log and the queues."""

    @property
    def log(self) -> CommitLog: ...
    @property
    def queues(self) -> QueuesOfLog: ...


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log.

    ``offset``: physical offset after the last provable record, where the next record would be
    appended.
    ``last``: the last provable record; None in an empty log.
    ``troubles``: the unreadable files.
    """

    offset: int
    last: Record | None
    troubles: tuple[Trouble, ...] = ()


def used_size(source: Source) -> int:
    """Return the position after the last nonzero byte of a file; 0 if all bytes are zero. Holes are
    not read.
    """
    return used_end(source, 0, source.size)


def last_dispatched(store: LogAndQueues) -> int | None:
    """Return the physical offset of the last frame to which the last entry of a queue provably
    points; None if no last entry points to a record.
    """
    rows = []
    for queue in store.queues.readable.values():
        try:
            with closing(queue):  # a broker may have more queues than a process may open files
                unit = queue.late_unit()
        except StoreIOError:
            continue
        if unit is not None and unit.is_valid and not unit.is_filler:
            rows.append((unit.physical_offset, unit.size))
    for physical, size in sorted(rows, reverse=True)[:_MAX_TRIES]:
        file = store.log.file_of(physical)
        if file is not None and store.log.record_at(physical, size) is not None:
            return physical - file.head
    return None


def find_end(store: LogAndQueues) -> LogEnd:
    """Return the end of the log on disk, which is after the last provable record, even if damage
    precedes that record.
    """
    log = store.log
    hint = last_dispatched(store) or 0
    troubles = []
    for number in range(len(log.files) - 1, -1, -1):
        file = log.files[number]
        start = hint - file.base if file.base <= hint < file.end else 0
        try:
            last_record = _last_of(log, number, start)
        except StoreIOError as error:
            troubles.append(Trouble(file.path, str(error), True))
            continue
        if last_record is None:
            continue
        physical, end, blank = last_record
        if blank and number + 1 < len(log.files) and log.files[number + 1].base == file.end:
            end = file.end  # the file is closed: the next record goes into the next file
        return LogEnd(end, log.record_at(physical), tuple(troubles))
    return LogEnd(log.min_offset, None, tuple(troubles))


def _last_of(log: CommitLog, number: int, start: int) -> tuple[int, int, bool] | None:
    """Return the last record in a file as (physical offset, end, whether a blank record closes the
    file); None if the file has no record.

    ``start`` is a position at which a record is known to start, or 0.
    """
    source = log.source(number)
    used = used_size(source)
    last: tuple[int, int] | None = None
    blank = False
    for batch in Walk(source, start, used):
        if len(batch):
            physical = int(batch.offset[-1])
            last = physical, physical + int(batch.column("total_size")[-1])
        blank = bool(batch.spans) and batch.spans[-1].kind == BLANK
    return None if last is None else (*last, blank)


def first_record(log: CommitLog) -> Record | None:
    """Return the first provable record of the log; None if the log has no readable record."""
    for number in range(len(log.files)):
        try:
            # Read no further than that record: the zeros of a preallocated file are skipped.
            for batch in Walk(log.source(number), chunk=_FIRST_CHUNK):
                if len(batch):
                    return log.record_at(int(batch.offset[0]))
        except StoreIOError:
            continue
    return None
