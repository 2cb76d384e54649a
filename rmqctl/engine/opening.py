"""The state of a store before an engine appends to it (spec: recovery.md §3-§6).

The state consists of the end of the log, the offset from which to dispatch again, and the repairs
after an unclean shutdown. The end of the log is the offset at which a broker's recovery would
truncate it. A store is rejected if a broker would truncate intact messages, because appending would
overwrite them. Nothing is deleted: torn bytes and doubtful index files are moved to
``.rmqctl/aside``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress

from rmqctl.broker.recovery import recover_log
from rmqctl.broker.settings import Settings
from rmqctl.broker.versions import BrokerVersion
from rmqctl.broker.view import broker_view
from rmqctl.engine.small_files import CheckpointFile
from rmqctl.errors import FormatError, RefusedError, StoreHeldError, StoreIOError
from rmqctl.files.aside import AsideFolder
from rmqctl.files.bounds import WritableFolders, stores_around
from rmqctl.files.durable import (
    STAGING,
    failed,
    open_file,
    publish,
    sync,
    sync_folder,
    write_all,
)
from rmqctl.files.lock import StoreLock
from rmqctl.formats.local.index_file import HeaderRecord
from rmqctl.formats.local.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Batch
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk
from rmqctl.store.files import StoreFile
from rmqctl.store.index.files import by_age
from rmqctl.store.log.cut_off import NOTE, cut_at
from rmqctl.store.log.end import used_size
from rmqctl.store.store import Sizes, Store

_BLOCK = 4 << 20
_AGAIN = "index-again"
"""Name of the note in ``.rmqctl`` that contains, during a recovery, the physical offset from
which to index again."""
WRITTEN = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config", "timerlog",
           "timerwheel")
"""Paths in a store that a broker writes when messages arrive, except the log and the small files.
These paths must not be links.
"""


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of the log.

    ``end``: physical offset of the next record.
    ``start``: physical offset of the file at which a broker's recovery would start.
    ``clean``: whether the last shutdown was clean.
    ``cut_off``: whether bytes that a repair truncated are still in the file after the end.
    """

    end: int
    start: int
    clean: bool
    cut_off: bool = False


def examine(store: Store, version: BrokerVersion) -> LogState:
    """Return the state of a store's log. Raises: RefusedError if appending would damage the store
    further.
    """
    log = store.log
    for trouble in store.log_troubles:
        would = "read it under its name" if trouble.exchanged else "not start on it"
        raise RefusedError(f"{trouble.path}: {trouble.reason}; a broker would {would}, "
                           "so nothing is appended")
    if not log.files:
        return LogState(0, 0, not store.has_abort)
    for file in log.files:
        if file.length != log.file_size:
            raise RefusedError(
                f"{file.path}: has {file.length} bytes, the other files have {log.file_size}; a "
                "broker would not start on it, so nothing is appended")
    for gap in log.gaps():
        raise RefusedError(f"{store.root}: the log file for physical offsets {gap.start} to "
                           f"{gap.end} is missing; nothing is appended")
    recovered = recover_log(store, version)
    # A broker accepts a record with a wrong physicalOffset; here it is damage.
    damaged = min([*recovered.misplaced, recovered.end])
    # Only leftovers of a write may follow the end.
    cut = store.cut_off is not None and store.cut_off.end == damaged
    intact = None if cut else _intact_behind(store, damaged)
    if intact is not None:
        raise RefusedError(
            f"{store.root}: the log is damaged at physical offset {damaged}, and intact messages "
            f"follow (the first at {intact}); appending would overwrite them. See "
            "`rmqctl verify`")
    return LogState(recovered.end, recovered.start, not store.has_abort, cut)


def _intact_behind(store: Store, end: int) -> int | None:
    """Return the physical offset of the first intact record at or after ``end``; None if no intact
    record follows.
    """
    log = store.log
    for number, file in enumerate(log.files):
        if file.end <= end:
            continue
        source = log.source(number)
        for batch in Walk(source, max(0, end - file.base)):
            intact = batch.crc_ok().nonzero()[0]
            if len(intact):
                return int(batch.offset[intact[0]])
    return None


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A sequence of ``count`` contiguous records of the log. ``base``: physical offset of the first
    record.

    ``last_row``: (topic, queue id, queue offset, physical offset) of the last record with a consume
    queue entry; None without such a record.
    """

    base: int
    data: bytes
    count: int
    last_row: tuple[str, int, int, int] | None
    last_timestamp: int


def recorded_runs(store: Store, start: int, end: int) -> Iterator[RecordedRun]:
    """Yield the records in ``[start, end)``, a few MiB at a time."""
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
    """Return the physical offset from which to dispatch again.

    ``dispatched_to``: physical offset up to which the consume queues have entries; -1 if they have
    none.
    """
    start = min(max(dispatched_to, 0), state.end)
    return start if state.clean else min(start, state.start)


def dispatched_to(store: Store, version: BrokerVersion) -> int:
    """Return the physical offset up to which plain consumequeues have entries; -1 if they are
    empty.
    """
    view = broker_view(store, version)
    most = -1
    for queue in store.queues.by_key.values():
        with closing(queue):
            most = max(most, queue.max_physical(view.bounds(queue).end))
    return most


def sizes_of(settings: Settings) -> Sizes:
    """Return the file sizes that the given settings specify for opening a store."""
    return Sizes(settings.commitlog_file_size, settings.consumequeue_file_size,
                 settings.index_slots, settings.index_max)


def lock_for(store: Store, commitlog_dirs: Iterable[str], outside: Iterable[str]) -> StoreLock:
    """Return the lock that a writer of the store needs; it is not taken yet.

    Besides the root, the writer may write to the log folders that the user named, and to the
    folders ``outside`` (relative to the root or absolute). If another store contains such a folder,
    the lock includes that store's lock.

    Raises: RefusedError if a log folder, or a link in a path that a broker writes, points outside
    of these folders.
    """
    named = [os.path.join(store.root, folder) for folder in (*commitlog_dirs, *outside)]
    WritableFolders(store.root, named).refuse_links(*store.log_folders, *map(store.path, WRITTEN))
    return StoreLock(store.root, stores_around(named, [store.root]))


def refuse_held(store: Store, root: str) -> None:
    """Raise StoreHeldError if another process uses the store. This check does not take the lock."""
    held = store.lock
    if held.held:
        who = f"process {held.pid}" if held.pid else "another process"
        raise StoreHeldError(f"{root}: the store is locked by {who} ({held.kind})")


# -- after an unclean end -------------------------------------------------------------------------


def set_right(store: Store, state: LogState, checkpoint: CheckpointFile, aside: AsideFolder,
              begin: Callable[[], None]) -> int:
    """Repair a store before appending. Return the physical offset from which to index again.
    ``begin`` is called before the first change to the disk. Raises: StoreIOError.
    """
    # 1. The checkpoint in memory: do not trust times later than all messages.
    newest = None if state.clean and not state.cut_off else _newest_time(store, state)
    if newest is not None:
        checkpoint.hold_back(newest, _index_ends(store))
    # 2. Index files that end after the checkpoint's time cannot be trusted.
    doubtful, again = untrusted_index(store, state, checkpoint.record.index_msg_timestamp)
    # 3. On disk: the torn end of the log, then those index files.
    if doubtful or not state.clean or state.cut_off:
        begin()
        clear_torn_tail(store, state.end, aside, cut_off=state.cut_off)
        move_aside(store, doubtful, again, aside)
    return again


def _newest_time(store: Store, state: LogState) -> int | None:
    """Return the latest store time (ms) in the part of the log that a recovery reads; None if that
    part has no messages.

    If the checkpoint has a later time, the checkpoint is torn, or messages with old times were
    added again.
    """
    times = [int(batch.column("store_timestamp").max())
             for batch in store.log.walk(state.start, state.end) if len(batch)]
    return max(times, default=None)


def _index_ends(store: Store) -> set[int]:
    """Return the end times (ms) of the valid index files."""
    ends = set()
    for file in store.index.listing.files:
        with suppress(FormatError, StoreIOError):
            ends.add(store.index.open(file).header.end_timestamp)
    return ends


def untrusted_index(store: Store, state: LogState,
                    trusted_until: int) -> tuple[list[StoreFile], int]:
    """Return (index files that cannot be trusted, the physical offset from which to index again).

    After an unclean shutdown, files that end after ``trusted_until`` (the checkpoint's index time)
    may be torn. A broker deletes such files and indexes only a part of the log again, so keys are
    lost. A file with messages after the end of the log is never trusted: a broker would not index
    new messages up to that file's end.

    The offset is the start of the first untrusted file, or the end of the log if all files are
    trusted.
    """
    start = _noted(store, state.end)
    doubtful: set[StoreFile] = set()
    headers: list[tuple[StoreFile, HeaderRecord | None]] = []
    for file in store.index.listing.files:
        try:
            index = store.index.open(file)
        except (FormatError, StoreIOError):
            start = min(start, store.log.min_offset)
            doubtful.add(file)
            headers.append((file, None))
            continue
        header = index.header
        headers.append((file, header))
        # A file that is not full may end exactly in the trusted millisecond.
        torn = not state.clean and (header.end_timestamp > trusted_until or not header.entries
                                    or header.index_count < index.shape.max_entries)
        ahead = header.entries > 0 and header.end_phy_offset >= state.end
        if torn or ahead:
            doubtful.add(file)
            inside = store.log.min_offset <= header.begin_phy_offset <= state.end
            start = min(start, header.begin_phy_offset if inside else store.log.min_offset)
    # Files created after such a file are not trusted either.
    files = by_age(headers)
    first = next((number for number, file in enumerate(files) if file in doubtful), len(files))
    return files[first:], start


def move_aside(store: Store, files: list[StoreFile], again: int, aside: AsideFolder) -> None:
    """Move index files aside.

    Before that, write a note that indexing starts again at physical offset ``again``. After a kill,
    the next process knows of the files only from this note. `done_again` removes the note.

    Raises: StoreIOError.
    """
    if not files:
        return
    publish(store.path(STAGING, _AGAIN), str(again).encode(), store=store.root)
    for file in files:
        aside.move(file.path)


def _noted(store: Store, end: int) -> int:
    """Return the physical offset from which an interrupted recovery would have indexed again,
    according to its note; ``end`` if the note is missing.
    """
    try:
        with FileSource(store.path(STAGING, _AGAIN)) as source:
            text = source.read(0, 32)
    except StoreIOError:
        return end
    if not text.isdigit():
        return store.log.min_offset
    return min(max(int(text), store.log.min_offset), end)


def done_again(root: str) -> None:
    """Remove the note that `move_aside` wrote, once everything is indexed again and on disk.
    Raises: StoreIOError.
    """
    _unlink(os.path.join(root, STAGING, _AGAIN))


def forget_cut_off(root: str) -> None:
    """Remove the note on truncated bytes, once these bytes and all entries that point to them are
    removed. Raises: StoreIOError.
    """
    if _unlink(os.path.join(root, NOTE)):
        sync_folder(os.path.join(root, STAGING))


def _unlink(path: str) -> bool:
    """Delete a file; return whether it existed. Raises: StoreIOError."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise failed(error, path, "remove") from None
    return True


def clear_torn_tail(store: Store, end: int, aside: AsideFolder, *, cut_off: bool = False) -> None:
    """Copy the bytes after the end of the log in its last file, then zero them, in blocks.

    These bytes are the rest of the last write of a killed process, or the END_OF_FILE record of the
    last file. A broker leaves them, but after a shorter record they would look like damage.

    ``cut_off``: whether a repair truncated these bytes. If so, a note on them stays until
    `forget_cut_off` removes it.

    Raises: StoreIOError.
    """
    file = store.log.file_of(end)
    if file is None:
        return
    position = end - file.base
    with FileSource(file.path) as source:
        used = used_size(source)
        if used <= position:
            return
        starts = range(position, used, _BLOCK)
        copy = aside.save_bytes(file.path, position, (
            source.read(start, min(_BLOCK, used - start)) for start in starts))
    if cut_off:
        note = cut_at(store.log, end).build(copy)
        publish(store.path(NOTE), note, store=store.root)
    fd = open_file(file.path, os.O_RDWR)
    try:
        # The last block first: if the process is killed, the header of a torn record still keeps
        # its content from being taken for records.
        for start in reversed(starts):
            write_all(fd, bytes(min(_BLOCK, used - start)), start, file.path)
        sync(fd, file.path)
    finally:
        os.close(fd)
