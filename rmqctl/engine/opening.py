"""What an engine must know of a store before it may append: where the log ends, and from where
it has to be dispatched again (spec: recovery.md §3-§6).

The end of the log is a broker's. Where a broker would cut intact messages off, this refuses:
appending there would overwrite them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rmqctl.engine.storage import make_folders, move_aside
from rmqctl.errors import FormatError, RefusedError, StoreIOError
from rmqctl.formats.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from rmqctl.scan.frames import Batch
from rmqctl.scan.walk import Walk
from rmqctl.store.bounds import broker_log_end, recovery_start
from rmqctl.store.files import StoreFile
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
class Recorded:
    """Whole records behind each other, read from the log: ``count`` of them from ``base`` on.

    ``last_row``: (topic, queue id, queue offset, physical offset) of the last one that has a row
    in a consumequeue; None if none has.
    """

    base: int
    data: bytes
    count: int
    last_row: tuple[str, int, int, int] | None
    last_timestamp: int


def stretches(store: Store, start: int, end: int) -> Iterator[Recorded]:
    """The records of ``[start, end)``, a few MiB at a time."""
    for batch in store.log.walk(start, end):
        if not len(batch):
            continue
        last = len(batch) - 1
        first = int(batch.start[0])
        data = batch.data[first:int(batch.start[last] + batch.column("total_size")[last])]
        kind = batch.column("sys_flag") & TRANSACTION_MASK
        rows = ((kind == TRANSACTION_NONE) | (kind == TRANSACTION_COMMIT)).nonzero()[0]
        yield Recorded(int(batch.offset[0]), data.tobytes(), len(batch),
                       _row(batch, int(rows[-1])) if len(rows) else None,
                       int(batch.column("store_timestamp")[last]))


def _row(batch: Batch, number: int) -> tuple[str, int, int, int]:
    start = int(batch.column("topic_start")[number])
    topic = batch.data[start:start + int(batch.column("topic_length")[number])].tobytes()
    return (topic.decode("utf-8", "surrogateescape"), int(batch.column("queue_id")[number]),
            int(batch.column("queue_offset")[number]), int(batch.offset[number]))


def set_index_aside(store: Store, trusted_until: int, log_end: int) -> int:
    """After an unclean end: moves index files a broker would destroy out of its way.

    These are the files that end later than the checkpoint's index time: what is in them may be
    torn. A broker indexes only what its recovery walks over, so keys get lost; here the caller
    indexes again from the returned physical offset on, where the first of them began.
    ``log_end`` is returned when all files are trusted.
    """
    start = log_end
    moved: list[StoreFile] = []
    for file in store.index_listing.files:
        try:
            header = store.open_index(file).header
        except (FormatError, StoreIOError):
            start, moved = min(start, store.log.min_offset), [*moved, file]
            continue
        if header.end_timestamp > trusted_until or not header.entries:
            moved.append(file)
            inside = store.log.min_offset <= header.begin_phy_offset <= log_end
            start = min(start, header.begin_phy_offset if inside else store.log.min_offset)
    if moved:
        # What follows an untrusted file was made after it, and goes with it.
        first = min(file.name for file in moved)
        moved = [file for file in store.index_listing.files if file.name >= first]
        aside = store.path(".rmqctl", "aside", f"{time.time_ns()}-{os.getpid()}", "index")
        make_folders(aside)
        for file in moved:
            move_aside(file.path, os.path.join(aside, file.name))
    return start
