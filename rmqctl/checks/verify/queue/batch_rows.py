"""Checks of batch consume queues (consumequeue.md §9).

Each entry is checked by itself and against the message that it points to. The order of entries is
checked, and messages without an entry are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rmqctl.checks.findings import INFO, Finding
from rmqctl.checks.verify.common import Gaps, nowhere, pages, plural, runs, unreadable, used_units
from rmqctl.checks.verify.context import Context
from rmqctl.checks.verify.queue.rows import QueueKey
from rmqctl.errors import StoreIOError
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.batch_consume_queue import NOT_COMPACTED, UNIT, UNIT_SIZE
from rmqctl.formats.local.message import Record
from rmqctl.scan import text
from rmqctl.scan.derived import batch_range, batch_ranges
from rmqctl.scan.frames import Array, Batch
from rmqctl.store.files import StoreFile
from rmqctl.store.log.commit_log import records_at
from rmqctl.store.queue.batch_queue import BatchQueue, valid
from rmqctl.store.store import Store

STRUCTURE = "batchconsumequeue"
_FIX = "rmqctl recover STORE --only consumequeue"
_PAGE = 1 << 15
_MAX_SINGLE = 1000

Wrong = tuple[str, str, str]
"""A fault of an entry: category of the finding, field, description."""


def batch_expected(record: Record) -> tuple[int, int]:
    """Return (msgBaseOffset, batchSize) of the entry that a broker writes for a record.

    Only a record with both INNER_BASE and INNER_NUM covers several queue offsets.
    Raises: ValueError if a broker could not parse the numbers in these properties.
    """
    properties = props.parse(record.properties.decode("utf-8", "replace"))
    return batch_range(record.queue_offset, properties.get(props.INNER_BASE),
                       properties.get(props.INNER_NUM))


def check(store: Store, log_end: int, *, live: bool = False,
          in_damage: Callable[[int], bool] | None = None) -> Iterator[Finding]:
    """Yield the findings for all batch consume queues.

    ``log_end``: physical offset after the log's last record.
    ``in_damage``: whether a physical offset is in a damaged part of the log.
    """
    for queue in store.queues.batch.values():
        yield from _BatchQueueCheck(store, queue, log_end, live, in_damage or nowhere).check()


class _BatchQueueCheck:
    def __init__(self, store: Store, queue: BatchQueue, log_end: int, live: bool,
                 in_damage: Callable[[int], bool]) -> None:
        self._store, self._queue, self._log_end, self._live = store, queue, log_end, live
        self._in_damage = in_damage
        self._next = self._last_physical = -1
        self._asked = 0

    def _tell(self, file: StoreFile, row: int, wrong: Wrong, *, base: int | None = None,
              count: int = 1, severity: str = "") -> Finding:
        category, name, words = wrong
        place = UNIT.field(name)
        position = row * UNIT_SIZE
        single = count == 1
        return Finding(category, STRUCTURE, f"{name} of entry {row}: {words}", file=file.path,
                       offset=position + (place.offset if single else 0),
                       length=place.size if single else count * UNIT_SIZE, topic=self._queue.topic,
                       queue_id=self._queue.queue_id, queue_offset=base, count=count,
                       severity=severity, next=_FIX)

    def check(self) -> Iterator[Finding]:
        unfinished: tuple[StoreFile, int] | None = None
        for file in self._queue.files:
            gaps = Gaps()
            try:
                with file.open() as source:
                    for first_row, data in pages(source, UNIT_SIZE, _PAGE):
                        filled = np.flatnonzero(used_units(data, UNIT_SIZE))
                        if not len(filled):
                            continue
                        rows = UNIT.array(data)[filled]
                        real = valid(rows)
                        if unfinished is not None and real.any():
                            yield self._gap(*unfinished)
                            unfinished = None
                        for first, count in gaps.add(first_row + filled, real):
                            words = (
                                f"{plural(count, 'entry', 'entries')} zeroed, followed by more "
                                "entries")
                            yield self._tell(file, first, (
                                "cq-missing-entry", "physical_offset", words), count=count)
                        yield from self._page(file, rows, first_row + filled)
                    if 0 < gaps.used <= source.size // UNIT_SIZE - 1:
                        unfinished = file, gaps.used
            except StoreIOError as error:
                yield unreadable(STRUCTURE, file.path, error)

    def _gap(self, file: StoreFile, row: int) -> Finding:
        words = "zeros to the end of the file, followed by entries in a later file"
        return self._tell(file, row, ("cq-missing-entry", "physical_offset", words),
                          count=(file.size - row * UNIT_SIZE) // UNIT_SIZE)

    def _page(self, file: StoreFile, rows: Array, index: Array) -> Iterator[Finding]:
        """Yield the findings for entries of one file.

        ``rows``: the entries that are not all zeros.
        ``index``: the positions of these entries in the file, counted in entries.
        """
        good: Array = np.ones(len(rows), bool)
        bases = rows["msg_base_offset"]
        for wrong, mask in self._alone(rows):
            wrong_rows = np.flatnonzero(mask & good)
            good &= ~mask
            for row in wrong_rows.tolist():
                yield self._tell(file, int(index[row]), wrong, base=int(bases[row]))
        yield from self._ahead(file, rows, index, good)
        for row, wrong in self._messages(rows, np.flatnonzero(
                good & (rows["physical_offset"] >= self._store.log.min_offset))):
            good[row] = False
            yield self._tell(file, int(index[row]), wrong, base=int(bases[row]),
                             severity=INFO if wrong[0] == "cq-lost" else "")
        wrong_rows = np.flatnonzero(good)
        for row, wrong in self._order(rows[wrong_rows]):
            yield self._tell(file, int(index[wrong_rows[row]]), wrong,
                             base=int(bases[wrong_rows[row]]))

    def _alone(self, rows: Array) -> list[tuple[Wrong, Array]]:
        return [
            (("cq-wrong-offset", "physical_offset", "negative"), rows["physical_offset"] < 0),
            (("cq-wrong-size", "size", "not a valid message size"), rows["size"] <= 0),
            (("cq-out-of-order", "msg_base_offset", "negative"), rows["msg_base_offset"] < 0),
            (("cq-batch", "batch_size", "not a valid number of messages"), rows["batch_size"] <= 0),
            (("cq-batch", "compacted_offset", f"not {NOT_COMPACTED}"),
             rows["compacted_offset"] != NOT_COMPACTED),
            (("cq-batch", "reserved", "not 0"), rows["reserved"] != 0),
        ]

    def _ahead(self, file: StoreFile, rows: Array, index: Array, good: Array) -> Iterator[Finding]:
        """Yield a finding for each run of entries that point beyond the end of the log.

        These entries are removed from ``good``.
        """
        ahead = good & (rows["physical_offset"] >= self._log_end)
        if not self._store.log.files:
            ahead &= False
        good &= ~ahead
        if self._live:
            return  # the log has grown since the walk
        numbers = index[ahead]
        for first, count in runs(numbers.tolist()):
            row = int(np.flatnonzero(index == first)[0])
            words = (f"{plural(count, 'entry', 'entries')} from "
                     f"{int(rows['physical_offset'][row])} on "
                     f"{'points' if count == 1 else 'point'} beyond the end of the log "
                     f"({self._log_end})")
            yield self._tell(file, first, ("cq-ahead", "physical_offset", words),
                             base=int(rows["msg_base_offset"][row]), count=count)

    def _order(self, rows: Array) -> Iterator[tuple[int, Wrong]]:
        """Yield the faults of entries that are out of order or cover a queue offset a second time.

        The order of the entries must be the order of their messages. Only entries without another
        fault are considered, so that one wrong number does not make other entries look wrong.
        """
        if not len(rows):
            return
        physical = rows["physical_offset"].astype(np.int64)
        base = rows["msg_base_offset"].astype(np.int64)
        ends = base + rows["batch_size"]
        before = np.concatenate([[self._last_physical], physical[:-1]])
        behind = np.concatenate([[self._next], ends[:-1]])
        self._last_physical, self._next = int(physical[-1]), int(ends[-1])
        for row in np.flatnonzero((physical <= before) | (base < behind)).tolist():
            if physical[row] == before[row]:
                words = "points to the same message as the previous entry"
                yield row, ("cq-duplicate", "physical_offset", words)
            else:
                words = (f"{int(base[row])} (message at {int(physical[row])}), the previous entry "
                         f"ends at {int(behind[row])} (message at {int(before[row])})")
                yield row, ("cq-out-of-order", "msg_base_offset", words)

    def _messages(self, rows: Array, number: Array) -> Iterator[tuple[int, Wrong]]:
        """Compare entries with the messages that they point to, and yield the faults. ``number``:
        indices of these entries in ``rows``.
        """
        if not self._store.log.files:
            return
        physical, first = np.unique(rows["physical_offset"][number].astype(np.int64),
                                    return_index=True)
        number = number[first]
        for window in records_at(self._store.log, physical,
                                 rows["size"][number].astype(np.int64)):
            for row in number[window.rows[~window.is_proved]].tolist():
                yield row, self._missing(rows[row], window.batch is not None)
            if window.batch is not None:
                yield from self._compare(rows, number[window.rows[window.is_proved]], window.batch)

    def _missing(self, row: Any, readable: bool) -> Wrong:
        physical = int(row["physical_offset"])
        self._asked += 1
        if not readable or self._in_damage(physical):
            return "cq-lost", "physical_offset", (f"the message at {physical} is damaged or in a "
                                                  "missing file")
        record = (self._store.log.record_at(physical) if self._asked <= _MAX_SINGLE else None)
        if record is None:
            return "cq-wrong-offset", "physical_offset", f"no message at {physical}"
        return "cq-wrong-size", "size", (f"{int(row['size'])}, but the message at {physical} has "
                                         f"{record.total_size}")

    def _compare(self, rows: Array, number: Array, batch: Batch) -> Iterator[tuple[int, Wrong]]:
        properties = text.PropertySegments(batch)
        tags: Array = np.zeros(len(batch), np.int64)
        tagged, values = properties.find(props.TAGS)
        tags[tagged] = text.hashes(values.data, values.start, values.length)[0]
        base, count = batch_ranges(properties, batch.column("queue_offset"))
        topic = self._queue.topic.encode("utf-8", "surrogateescape")
        other = ~text.topics(batch).equal(topic)
        other |= batch.column("queue_id") != self._queue.queue_id
        rows_of_batch = rows[number]
        good: Array = np.ones(len(number), bool)
        for category, name, column in (
                ("cq-wrong-size", "size", batch.column("total_size")),
                ("cq-wrong-offset", "physical_offset", np.where(other, -1, batch.offset)),
                ("cq-out-of-order", "msg_base_offset", base),
                ("cq-batch", "batch_size", count),
                ("cq-wrong-tag", "tags_code", tags),
                ("cq-batch", "store_timestamp", batch.column("store_timestamp"))):
            bad = good & (rows_of_batch[name] != column)
            good &= ~bad
            for row in np.flatnonzero(bad).tolist():
                value = int(rows_of_batch[row][name])
                words = (f"points to a message of another queue ({value})"
                         if name == "physical_offset"
                         else f"{value}, but the message has {int(column[row])}")
                yield int(number[row]), (category, name, words)


Expected = list[tuple[int, int, int, int]]
"""For each record, in log order: physical offset, size in bytes, first queue offset, and number of
messages.
"""


def batch_forward(context: Context) -> Iterator[Finding]:
    """Yield findings for records of batch topics to which no entry points.

    These are records between records with an entry, and records after the last record with an
    entry.
    """
    for key, expected in context.result.batch_rows.items():
        queue = context.store.queues.batch.get(key)
        if queue is None or not queue.exists:
            repairs = context.start_repairs_of_rows(key, expected[0][0], _end(expected))
            yield _finding(context, key, "cq-missing", expected, None,
                           f"{plural(len(expected), 'record')} in the log, but no batch consume "
                           f"queue{repairs.words('recreates it')}", repairs.severity)
            continue
        try:
            yield from _queue(context, key, queue, expected)
        except StoreIOError:
            continue  # the file check reports it


def _queue(context: Context, key: QueueKey, queue: BatchQueue, expected: Expected) -> Iterator[
        Finding]:
    with_row = {int(place) for place in np.concatenate(
        [queue.rows_of(number)["physical_offset"] for number in range(len(queue.files))])}
    rows = queue.all_used()
    newest = int(rows["physical_offset"].max()) if len(rows) else -1
    missing = [message for message in expected if message[0] not in with_row]
    between = [message for message in missing if message[0] < newest]
    behind = [message for message in missing if message[0] > newest]
    if between:
        yield _finding(context, key, "cq-missing-entry", between, queue,
                       f"{plural(len(between), 'record has', 'records have')} no entry, but later "
                       f"records do; the first is at {between[0][0]}")
    if behind:
        repairs = context.start_repairs_of_rows(key, behind[0][0], _end(expected))
        yield _finding(context, key, "cq-behind", behind, queue,
                       f"the entries end before the log: {plural(len(behind), 'record')} from "
                       f"{behind[0][0]} on without an entry"
                       f"{repairs.words('recreates the entries')}",
                       INFO if context.live else repairs.severity)


def _end(expected: Expected) -> int:
    """Return the queue offset after the last message of the last record."""
    return max(base + count for _, _, base, count in expected)


def _finding(context: Context, key: QueueKey, category: str, records: Expected,
             queue: BatchQueue | None, detail: str, severity: str = "") -> Finding:
    topic, queue_id = key
    file = queue.files[-1].path if queue and queue.files else context.store.path(
        "batchconsumequeue", topic, str(queue_id))
    return Finding(category, "batchconsumequeue", detail, file=file, offset=None, topic=topic,
                   queue_id=queue_id, queue_offset=records[0][2], count=len(records),
                   severity=severity)
