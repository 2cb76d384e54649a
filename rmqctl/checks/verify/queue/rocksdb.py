"""Checks of a consume queue database (spec: rocksdb.md §3, §4, §10).

The database must be completely readable, and the recorded last entry of each queue must be right.
The entries are compared with the log like entries in files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from rmqctl.checks.findings import INFO, WARNING, Finding
from rmqctl.checks.verify.common import plural
from rmqctl.checks.verify.context import Context
from rmqctl.checks.verify.queue.rows import QueueTally
from rmqctl.errors import RmqctlError, StoreIOError
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.store.rocksdb.queues import RocksQueue, RocksQueues

STRUCTURE = "consumequeue"


def check(context: Context) -> Iterator[Finding]:
    """Yield the findings for the consume queue database; nothing if it cannot be opened or the
    consume queues are in files.
    """
    store = context.store
    database = store.queues.rocksdb if store.layout.consumequeue == "rocksdb" else None
    if database is None:
        return
    for damage in database.damage:
        yield Finding("cq-database", STRUCTURE, damage, file=database.folder)
    if database.odd_count:
        yield Finding("cq-database", STRUCTURE, f"{plural(database.odd_count, 'entry', 'entries')} "
                      f"that no broker writes: {', '.join(database.odd)}", file=database.folder,
                      severity=WARNING, count=database.odd_count)
    if not database.queues and context.result.queues:
        yield Finding("cq-database", STRUCTURE, "no entry on disk, as after a kill before the "
                      "first flush", file=database.folder, severity=INFO)
    for queue in database.queues.values():
        try:
            yield from _last(context, database, queue)
        except StoreIOError:
            continue  # reported for the entries


def check_copy(store: Store) -> Iterator[Finding]:
    """Compare the consume queues in RocksDB with the files, if a broker writes both.

    The broker reads the files. Entries in RocksDB are not flushed at once, so a killed broker
    leaves permanent holes in the database.
    """
    # An unreadable copy does not affect the broker, which reads files.
    folder = store.path(STRUCTURE)
    try:
        database = store.queues.rocksdb
    except RmqctlError as error:
        yield Finding("cq-copy", STRUCTURE, f"cannot read the copy in RocksDB: {error}",
                      file=folder, severity=INFO)
        return
    # Queue by queue, page by page.
    missing = 0
    for key, queue in store.queues.by_key.items():
        copy = None if database is None else database.queues.get(key)
        for first, rows in queue.pages(queue.first_index, queue.disk_end):
            try:
                other = rows[:0] if copy is None else copy.units(first, len(rows))
            except StoreIOError as error:
                yield Finding("cq-copy", STRUCTURE, str(error), file=folder, topic=key[0],
                              queue_id=key[1], queue_offset=first)
                break
            held = np.zeros(len(rows), rows.dtype)
            held[:len(other)] = other
            absent = held["size"] == 0
            missing += int((absent & (rows["physical_offset"] >= store.log.min_offset)).sum())
            wrong = np.flatnonzero(~absent & (held != rows))
            if len(wrong):
                at = int(wrong[0])
                yield Finding(
                    "cq-copy", STRUCTURE, f"{plural(len(wrong), 'entry', 'entries')} different in "
                    "the RocksDB copy and the files",
                    file=folder, topic=key[0], queue_id=key[1], queue_offset=first + at,
                    count=len(wrong))
        queue.close()
    if missing:
        yield Finding("cq-copy", STRUCTURE, "the RocksDB copy lacks "
                      f"{plural(missing, 'entry', 'entries')} that the files have",
                      file=folder, severity=INFO, count=missing)


def _last(context: Context, database: RocksQueues, queue: RocksQueue) -> Iterator[Finding]:
    """Compare the recorded last entry of a queue with the entries of the queue."""
    last, end = queue.last, queue.disk_end
    if context.live or (last is None and not end):
        return

    def tell(detail: str, row: int, count: int = 1) -> Finding:
        return Finding("cq-last", STRUCTURE, detail, file=database.folder, topic=queue.topic,
                       queue_id=queue.queue_id, queue_offset=row, count=count)

    if last is None and queue.why_unnoted:
        return  # reported for the database
    if last is None:
        yield tell(f"no last entry recorded: a broker sees none of the entries up to {end - 1}",
                   end - 1)
        return
    unit = queue.unit(last.queue_offset)
    if last.queue_offset + 1 < end:
        yield tell(
            f"entry {last.queue_offset} is recorded as the last: brokers ignore entries up to "
            f"{end - 1}",
            last.queue_offset + 1, end - 1 - last.queue_offset)
    elif unit is None or not unit.size:
        # `recover` records the log's first offset for a queue without messages.
        expired = last.physical_offset <= context.store.log.min_offset
        if not expired and not queue.is_unread(last.queue_offset):
            yield tell(f"entry {last.queue_offset} is recorded as the last, but is missing",
                       last.queue_offset)
    elif unit.physical_offset != last.physical_offset:
        yield tell(f"last entry {last.queue_offset} points to {unit.physical_offset}, but "
                   f"{last.physical_offset} is recorded",
                   last.queue_offset)


def gaps(context: Context, queue: ConsumeQueue, tally: QueueTally,
         unclaimed: Iterable[tuple[int, int]]) -> Iterator[Finding]:
    """Yield a finding for each gap between two entries of a queue.

    A gap is reported only if the log has no messages with the missing queue offsets.
    ``unclaimed``: intervals of queue offsets whose entries point to no message of the log.
    """
    if context.looked_at is not None or tally.unlisted:
        return  # for some messages it is unknown whether they have an entry
    missing = sorted({claim.queue_offset for claim in tally.claims})
    for first, stop in unclaimed:
        number = max(first, queue.first_index + 1)
        for start, rows in queue.pages(number, stop):
            for empty in (start + np.flatnonzero(rows["size"] == 0)).tolist():
                if empty < number:
                    continue
                number = queue.next_row(empty, stop)
                before = queue.unit(empty - 1) if number > empty else None
                if before is not None and (
                        before.physical_offset >= context.store.log.min_offset) and (
                        bisect_left(missing, empty) == bisect_left(missing, number)):
                    yield _gap(queue, empty, number)


def _gap(queue: ConsumeQueue, first: int, end: int) -> Finding:
    return Finding("cq-gap", STRUCTURE, "no entry or message for "
                   f"{plural(end - first, 'queue offset')} from {first} on: pulls end here",
                   file=queue.folder, topic=queue.topic, queue_id=queue.queue_id,
                   queue_offset=first, count=end - first)
