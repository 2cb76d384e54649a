"""What an engine must know of a store before it may append: where the log ends, and from where
it has to be dispatched again (spec: recovery.md §3-§6).

The end of the log is a broker's. Where a broker would cut intact messages off, this refuses:
appending there would overwrite them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from rmqctl.errors import RefusedError
from rmqctl.formats.local.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from rmqctl.scan.frames import Batch
from rmqctl.scan.walk import Walk
from rmqctl.store.log.bounds import View, broker_log_end, recovery_start
from rmqctl.store.store import Store


@dataclass(frozen=True, slots=True)
class LogState:
    """Where the log stands. ``end`` is the physical offset of the next record.

    ``clean``: the last run ended cleanly. ``start``: physical offset of the file which a
    broker's recovery would begin with.
    """

    end: int
    start: int
    clean: bool


def examine(store: Store, generation: int) -> LogState:
    """The state of a store's log, read-only. RefusedError where appending would harm."""
    log = store.log
    for trouble in store.log_troubles:
        raise RefusedError(f"{trouble.path}: {trouble.reason}; a broker would not start on it, "
                           "so nothing is appended")
    if not log.files:
        return LogState(0, 0, not store.has_abort)
    for one in log.files:
        if one.size != log.file_size:
            raise RefusedError(
                f"{one.path}: has {one.size} bytes, the other files {log.file_size}; a broker "
                "would not start on it, so nothing is appended")
    for gap in log.gaps():
        raise RefusedError(f"{store.root}: the log has no file for the physical offsets "
                           f"{gap.start} to {gap.end}; nothing is appended")
    start = log.files[recovery_start(store, generation)].base
    end = broker_log_end(store, generation)
    found = _intact_behind(store, end)
    if found is not None:
        raise RefusedError(
            f"{store.root}: the log is damaged at physical offset {end}, and intact messages "
            f"follow (the first at {found}); appending would overwrite them. See `rmqctl verify`")
    return LogState(end, start, not store.has_abort)


def _intact_behind(store: Store, end: int) -> int | None:
    """Physical offset of the first intact record at or after the end of the log."""
    log = store.log
    for number, one in enumerate(log.files):
        if one.end <= end:
            continue
        source = log.source(number)
        for batch in Walk(source, max(0, end - one.base), resync=one.base < end):
            intact = batch.crc_ok().nonzero()[0]
            if len(intact):
                return int(batch.offset[intact[0]])
    return None


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Whole records behind each other, read from the log: ``count`` of them from ``base`` on.

    ``last_row``: (topic, queue id, queue offset, physical offset) of the last one that has a row
    in a consumequeue; None if none has.
    """

    base: int
    data: bytes
    count: int
    last_row: tuple[str, int, int, int] | None
    last_timestamp: int


def recorded_runs(store: Store, start: int, end: int) -> Iterator[RecordedRun]:
    """The records of ``[start, end)``, a few MiB at a time."""
    for batch in store.log.walk(start, end):
        if not len(batch):
            continue
        last = len(batch) - 1
        first = int(batch.start[0])
        data = batch.data[first:int(batch.start[last] + batch.column("total_size")[last])]
        kind = batch.column("sys_flag") & TRANSACTION_MASK
        rows = ((kind == TRANSACTION_NONE) | (kind == TRANSACTION_COMMIT)).nonzero()[0]
        yield RecordedRun(int(batch.offset[0]), data.tobytes(), len(batch),
                       _row(batch, int(rows[-1])) if len(rows) else None,
                       int(batch.column("store_timestamp")[last]))


def _row(batch: Batch, number: int) -> tuple[str, int, int, int]:
    start = int(batch.column("topic_start")[number])
    topic = batch.data[start:start + int(batch.column("topic_length")[number])].tobytes()
    return (topic.decode("utf-8", "surrogateescape"), int(batch.column("queue_id")[number]),
            int(batch.column("queue_offset")[number]), int(batch.offset[number]))


def catch_up_start(state: LogState, dispatched_to: int) -> int:
    """The physical offset to dispatch from again.

    ``dispatched_to`` is how far the newest row of all consumequeues reaches, -1 without rows.
    """
    start = min(max(dispatched_to, 0), state.end)
    return start if state.clean else min(start, state.start)


def dispatched_to(store: Store, generation: int) -> int:
    """How far the log was dispatched by the plain consumequeues' own account; -1 without rows."""
    view = View(store, "broker", generation)
    most = -1
    for queue in store.queues.values():
        with closing(queue):
            most = max(most, queue.max_physical(view.bounds(queue).end))
    return most
