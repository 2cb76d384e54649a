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

from rmqctl.engine.storage import (
    STAGING,
    failed,
    make_folders,
    move_aside,
    open_file,
    publish,
    sync,
    write_all,
)
from rmqctl.errors import FormatError, RefusedError, StoreIOError
from rmqctl.formats.names import build_offset
from rmqctl.formats.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from rmqctl.scan.frames import Batch
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk
from rmqctl.store.bounds import broker_log_end, recovery_start
from rmqctl.store.files import StoreFile
from rmqctl.store.log_end import used_size
from rmqctl.store.store import Store

_AGAIN = "index-again"


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


def untrusted_index(store: Store, state: LogState,
                    trusted_until: int) -> tuple[list[StoreFile], int]:
    """(index files that cannot be relied on, the physical offset to index again from).

    After an unclean end these are the files that end later than ``trusted_until``, the
    checkpoint's index time: what is in them may be torn. A broker destroys them and indexes only
    what its recovery walks over, so keys get lost. After any end, a file that knows messages
    behind the end of the log is another: a broker would not index what is appended below its
    end. The offset is where the first of them began, the end of the log when all are sound.
    """
    start = _noted(store, state.end)
    found: list[StoreFile] = []
    for file in store.index_listing.files:
        try:
            index = store.open_index(file)
        except (FormatError, StoreIOError):
            start, found = min(start, store.log.min_offset), [*found, file]
            continue
        header = index.header
        # One that is not full yet may end in the very millisecond that is trusted.
        torn = not state.clean and (header.end_timestamp > trusted_until or not header.entries
                                    or header.index_count < index.shape.max_entries)
        ahead = header.entries > 0 and header.end_phy_offset >= state.end
        if torn or ahead:
            found.append(file)
            inside = store.log.min_offset <= header.begin_phy_offset <= state.end
            start = min(start, header.begin_phy_offset if inside else store.log.min_offset)
    if found:
        # What follows such a file was made after it, and goes with it.
        first = min(file.name for file in found)
        found = [file for file in store.index_listing.files if file.name >= first]
    return found, start


def set_aside(store: Store, files: list[StoreFile], again: int) -> None:
    """Moves index files to ``.rmqctl/aside``: nothing is deleted. StoreIOError.

    That it has to be indexed again from physical offset ``again`` on is noted first, for whoever
    comes after a kill and finds no trace of the files; `done_again` takes the note away.
    """
    if not files:
        return
    publish(store.path(STAGING, _AGAIN), str(again).encode(), store=store.root)
    aside = _aside(store, "index")
    for file in files:
        move_aside(file.path, os.path.join(aside, file.name))


def _noted(store: Store, end: int) -> int:
    """From where it has to be indexed again since a recovery did not come to its end."""
    try:
        with FileSource(store.path(STAGING, _AGAIN)) as source:
            text = source.read(0, 32)
    except StoreIOError:
        return end
    if not text.isdigit():
        return store.log.min_offset
    return min(max(int(text), store.log.min_offset), end)


def done_again(root: str) -> None:
    """What had to be indexed again is on disk. StoreIOError."""
    path = os.path.join(root, STAGING, _AGAIN)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise failed(error, path, "remove") from None


def clear_torn_tail(store: Store, end: int) -> None:
    """Zeros behind the end of the log in its file; what was there is kept in ``.rmqctl/aside``.

    It is what a killed process left of its last write, or the END_OF_FILE record of a file that
    has no next one. A broker leaves it, and a short record appended over it would have a part of
    it behind: damage to anyone who looks later. StoreIOError.
    """
    place = store.log.file_of(end)
    if place is None:
        return
    at = end - place.base
    with FileSource(place.path) as source:
        torn = source.read(at, max(0, used_size(source) - at))
    if not torn:
        return
    publish(os.path.join(_aside(store, "commitlog"), build_offset(end)), torn, store=store.root)
    fd = open_file(place.path, os.O_RDWR)
    try:
        write_all(fd, bytes(len(torn)), at, place.path)
        sync(fd, place.path)
    finally:
        os.close(fd)


def _aside(store: Store, name: str) -> str:
    folder = store.path(STAGING, "aside", f"{time.time_ns()}-{os.getpid()}", name)
    make_folders(folder)
    return folder
