"""Determine the state of a store that a backup copies: the log up to a fixed end, and the queues
and the index up to the same end.

A running broker writes to the log first, then to the consume queues and the index. So this module
first determines the end of the log, then waits briefly for the entries of the last message.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import closing, suppress

import numpy as np

from rmqctl.backup.copying import database_files
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import index_file as layout
from rmqctl.formats.local import properties
from rmqctl.formats.local.index_file import ENTRY, HEADER, HeaderRecord
from rmqctl.formats.local.message import Record
from rmqctl.repair.truncate.index import entries_before
from rmqctl.scan.source import FileSource
from rmqctl.store import live
from rmqctl.store.index.files import IndexFile
from rmqctl.store.layout import is_database
from rmqctl.store.live import Snapshot
from rmqctl.store.log.end import find_end, last_dispatched
from rmqctl.store.store import Store

_PATIENCE, _LOOK = 2.0, 0.01
"""``_PATIENCE``: maximum wait, in seconds, for the entries of the last message. ``_LOOK``: seconds
between two checks.
"""
_MAX_LAGGING = 64 << 20
"""Maximum number of bytes at the end of the log that may have no entries yet. If more bytes have
none, no process seems to write entries, and the log is copied up to its end.
"""
_NEWEST = 2
"""Number of newest index files that may contain entries of the last message."""
PROGRESS = tuple(name for file in ("consumerOffset.json", "lmqConsumerOffset.json",
                                   "consumerOrderInfo.json", "delayOffset.json", "timercheck")
                 for name in (file, f"{file}.bak"))
"""Names of the files in ``config`` with the progress of consumers, of delayed and of timed
messages.
"""
_DATABASES = tuple(os.path.join("config", name) for name in ("consumerOffsets", "rdb"))
"""Folders of RocksDB databases with this progress; ``rdb`` also contains topics and groups."""
_LARGEST = 64 << 20
"""Maximum size of such a file or database, which is kept in memory; a larger one is copied with
the others.
"""
_TRIES, _MOMENT = 10, 0.005
_COMMITTING = 0.3
"""Time (s) after which a broker with ``transientStorePoolEnable`` has written to the log what it
had in memory: commitIntervalCommitLog is 0.2 s.
"""
_PAGE = 1 << 16
"""Maximum number of index entries read at once."""


def is_progress(path: str) -> bool:
    """Return whether a path in a store is that of a file with the progress of consumers."""
    folder, name = os.path.split(path)
    return folder in _DATABASES or (folder == "config" and name in PROGRESS)


def progress_files(store: Store) -> dict[str, bytes]:
    """Return the files in ``config`` that say what has been delivered, by path. Read them before
    `fix` determines the end of the log.

    Read later, they could say that a delayed message or a retry was delivered whose copy for the
    consumer is after that end: no broker would deliver it again. Raises: StoreIOError.
    """
    files = {}
    for name in PROGRESS:
        for _ in range(_TRIES):
            try:
                with FileSource(store.path("config", name)) as source:
                    if source.size <= _LARGEST:
                        files[os.path.join("config", name)] = source.read(0, source.size)
                break
            except StoreIOError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    break  # `copy_rest` reports it
                if not os.path.exists(store.path("config", f"{name}.bak")):
                    break
                time.sleep(_MOMENT)  # a broker is replacing it
    for folder in _DATABASES:
        if is_database(store.path(folder)):
            files |= database_files(store.root, folder, _LARGEST)
    if store.lock.held:
        time.sleep(_COMMITTING)
    return files


def fix(store: Store, least: int = 0) -> tuple[Store, int]:
    """Return (a view of the store as it is now, the end of its log); the caller closes the view.
    Raises: StoreIOError.

    If no process writes to the store, the view includes any damage at the end. In a running
    broker's store, the log ends after the last message if all entries of this message exist.
    Otherwise it ends at the start of the last message that has entries.

    There is one exception: if that start is `_MAX_LAGGING` bytes or more before the end of the log,
    or is not after ``least`` (the end of the existing copy), the log ends after the last message.
    """
    with _now(store) as now:
        taken = live.take(now)
        # The last record may end with zeros, so `live.take` may return a smaller end.
        log_end = max(taken.log_end, find_end(now).offset)
    if not store.lock.held:
        return _now(store), log_end
    with Store(store.root, store.log_folders, store.sizes, taken) as held:
        whole = held.before_unfinished()
        end = taken.log_end if whole.snapshot is None else whole.snapshot.log_end
        last = find_end(whole).last
    if last is not None:
        dispatched = _wait_for_entries(store, last)
        if max(end - _MAX_LAGGING, least) < dispatched < end:
            end = dispatched
    with _now(store) as now:
        return at(now, end), end


def _now(store: Store) -> Store:
    return Store(store.root, store.log_folders, store.sizes, current=True)


def _wait_for_entries(store: Store, last: Record) -> int:
    """Wait until queues and index contain the entries of the last message. Return the end of the
    part of the log whose entries are complete:

    * the end of the last message
    * after the timeout, the start of the last message that has entries
    * 0 if no message has entries
    """
    keys = len(layout.keys_of(properties.parse(last.properties.decode("utf-8", "replace"))))
    due = time.monotonic() + _PATIENCE
    while True:
        with _now(store) as now:
            reached = last_dispatched(now)
            if reached is None:
                return 0
            file = now.log.file_of(last.physical_offset)
            head = 0 if file is None else file.head
            reached += head
            whole, indexed = _indexed(now, last.physical_offset, keys) if keys else (True, reached)
            if whole and reached >= last.physical_offset:
                return last.physical_offset + last.total_size
            if time.monotonic() > due:
                return min(reached, indexed) - head
        time.sleep(_LOOK)


def _indexed(store: Store, place: int, keys: int) -> tuple[bool, int]:
    """Return (whether the index has all ``keys`` entries of the message at the physical offset
    ``place``, the physical offset in the last index entry). Without an index: (True, ``place``).
    """
    ends, count = [], 0
    for file in store.index.listing.files[-_NEWEST:]:
        with suppress(FormatError, StoreIOError), closing(store.index.open(file)) as index:
            ends.append(index.header.end_phy_offset)
            first = max(index.header.entries + 1 - keys, 1)
            entries = ENTRY.array(index.source.read(index.shape.entry_position(first), max(
                index.header.entries + 1 - first, 0) * ENTRY.size))
            count += int(np.count_nonzero(entries["physical_offset"] == place))
    last = max(ends, default=place)
    return not ends or last > place or count >= keys, last


def at(store: Store, end: int) -> Store:
    """Return a view of the store as it was when its log ended at ``end``; the caller closes the
    view.
    """
    names, headers = set(), {}
    for file in store.index.listing.files:
        try:
            with file.open() as source:
                first = HEADER.decode(source.read(0, HEADER.size))
            header: HeaderRecord | None = first
            if not first.entries or first.end_phy_offset >= end:
                with closing(store.index.open(file)) as index:
                    header = _header_at(store, index, end)
        except (FormatError, StoreIOError):
            names.add(file.name)  # a damaged file is copied unchanged
            continue
        if header is not None:
            names.add(file.name)
            headers[file.name] = HEADER.build(header)
    return Store(store.root, store.log_folders, store.sizes, Snapshot(
        end, frozenset(names), headers))


def _header_at(store: Store, index: IndexFile, end: int) -> HeaderRecord | None:
    """Return the header that an index file had when the log ended at ``end``; None if the file was
    empty at that time.
    """
    header = index.header
    count, when = entries_before(index, end)
    last = index.entry(count) if count else None
    if last is None:
        return None
    # The header counts used slots. A later entry without a previous entry in its slot was the
    # first to use the slot, so the slot was not counted at that time.
    freed = 0
    for first in range(count + 1, header.entries + 1, _PAGE):
        page = ENTRY.array(index.source.read(
            index.shape.entry_position(first),
            min(_PAGE, header.entries + 1 - first) * ENTRY.size))
        freed += int(np.count_nonzero(page["previous"] <= 0))
    with suppress(StoreIOError):  # more exact than the entry, which has seconds only
        record = store.log.record_at(last.physical_offset)
        when = when if record is None else record.store_timestamp
    return header._replace(end_timestamp=when, end_phy_offset=last.physical_offset,
                           index_count=count + 1,
                           hash_slot_count=max(0, header.hash_slot_count - freed))
