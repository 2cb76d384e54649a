"""Snapshot of a store that a broker is writing to, so that a command sees a single state.

A broker appends with one thread: first to the log, then to the queues, then to the index. The
snapshot first saves the index headers and then the end of the log. So every entry that the headers
count points before that end. Later data is hidden:

* Entries of later messages are omitted.
* Bytes after the snapshot's end of the log are read as zeros (`FileSource`).
* Index slots that point to newer entries are read as they were at the time of the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import field, replace
from typing import Protocol

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.formats.local.index_file import (
    ENTRY,
    HEADER,
    SLOT,
    IndexShape,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource
from rmqctl.store.files import Listing, StoreFile
from rmqctl.store.index.files import IndexFile
from rmqctl.store.log.end import LogAndQueues, last_dispatched, used_size

_PATIENCE = 0.6
"""Seconds after which incomplete data at the end of the log counts as damage, not as a write in
progress."""
_LOOK = 0.01
_CHANGING = 2
"""Number of index files that a broker may be writing to: the newest, and the previous one while
a new one is started."""
_HEADER_TRIES = 50
INDEX_TRIES = 5
"""Maximum number of attempts to determine the shape of a file that is being written to."""
_PAGE = 1 << 20


class ListedIndex(Protocol):
    """The index files of a `SnapshotStore`."""

    @property
    def listing(self) -> Listing: ...


class SnapshotStore(LogAndQueues, Protocol):
    """The part of a store's interface that a snapshot needs."""

    log_folders: list[str]

    @property
    def index(self) -> ListedIndex: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a store at one moment; small and picklable, so that all processes can share it.

    ``log_end``: physical offset of the end of the log; later bytes are ignored.
    ``index_names``: the index files of that moment.
    ``index_headers``: the header of each index file that may still change.
    ``whole_end``: the end of the last complete message; less than ``log_end`` if the broker has not
    continued an incomplete record for a while.
    """

    log_end: int
    index_names: frozenset[str] = frozenset()
    index_headers: dict[str, bytes] = field(default_factory=dict)
    whole_end: int | None = None


def take(store: SnapshotStore) -> Snapshot:
    """Return a snapshot of the current state. ``store`` must not be a snapshot itself.

    Raises: StoreIOError.
    """
    headers = {}
    files = store.index.listing.files
    for file in _changing(files):
        header = _steady_header(file)
        if header is not None:
            headers[file.name] = header
    end, whole_end = _log_end(store)
    return Snapshot(end, frozenset(file.name for file in files), headers, whole_end)


def _changing(files: list[StoreFile]) -> list[StoreFile]:
    """Return the index files to which a broker may be writing:

    * the last files by name;
    * the files that point to the greatest offsets, which are other files if a clock was set back;
    * files without entries.
    """
    ends: list[tuple[int, StoreFile]] = []
    chosen = files[-_CHANGING:]
    for file in files[:-_CHANGING]:
        try:
            with FileSource(file.path) as source:
                raw = source.read(0, HEADER.size)
        except StoreIOError:
            continue
        if len(raw) < HEADER.size:
            continue
        header = HEADER.decode(raw)
        if header.index_count > 1:
            ends.append((header.end_phy_offset, file))
        else:
            chosen.append(file)
    ends.sort(key=lambda end: end[0])
    return chosen + [file for _, file in ends[-_CHANGING:]]


def _steady_header(file: StoreFile) -> bytes | None:
    """Return the header of a file, read twice with the same result; None if the file is too
    short.
    """
    try:
        with FileSource(file.path) as source:
            before = b""
            for _ in range(_HEADER_TRIES):
                raw = source.read(0, HEADER.size)
                if len(raw) < HEADER.size:
                    return None
                if raw == before:
                    break
                before = raw
                time.sleep(0.001)
            return raw
    except StoreIOError:
        return None


def _log_end(store: SnapshotStore) -> tuple[int, int]:
    """Return (end of the log, end of its last complete message).

    The two differ only if an incomplete record has not changed for a while. The log then ends after
    its last nonzero byte.
    """
    if not store.log.files:
        return 0, 0
    from rmqctl.store.log.growth import GrowingLog

    log = GrowingLog(store.log_folders, lambda _: None)
    hint = last_dispatched(store)
    end = log.advance(log.last_file() if hint is None else hint)
    due = time.monotonic() + _PATIENCE
    while log.torn:
        # A record that is being written becomes complete within moments; damage does not.
        if time.monotonic() > due:
            return _all_bytes(store, end), end
        time.sleep(_LOOK)
        later = log.advance(end)
        if later > end:
            return later, later
    return end, end


def _all_bytes(store: SnapshotStore, end: int) -> int:
    """Return the physical offset after the last nonzero byte of the log, which is at least
    ``end``.
    """
    for number in range(len(store.log.files) - 1, -1, -1):
        used = used_size(store.log.source(number))
        if used:
            return max(end, store.log.files[number].base + used)
    return end


def log_files(files: list[StoreFile], end: int) -> list[StoreFile]:
    """Return the files of a log, limited to bytes before the physical offset ``end``."""
    return [file if file.end <= end else replace(file, limit=max(end - file.base, 0))
            for file in files]


def queue_files(files: list[StoreFile], unit: np.dtype[np.void], log_end: int,
                current_end: Callable[[int], int]) -> list[StoreFile]:
    """Return the files of a queue without the last entries that point to messages written after the
    snapshot.

    Entries that point beyond the current end of the log are kept: the caller reports them.
    Unreadable files are not changed. ``current_end(offset)`` returns the current end of the log, or
    an earlier result that is greater than ``offset``.
    """
    fixed = list(files)
    for number in range(len(files) - 1, -1, -1):
        try:
            used, rows = _last_rows(files[number], unit)
        except StoreIOError:
            return fixed
        if not used:
            continue
        while len(rows):
            newer = rows["physical_offset"] >= log_end
            older = np.flatnonzero(~newer)
            rest = int(older[-1]) + 1 if len(older) else 0
            last = int(rows["physical_offset"].max())
            if newer[rest:].any() and last >= current_end(last):
                return fixed
            used -= (len(rows) - rest) * unit.itemsize
            if rest:
                break
            rows = _rows_before(files[number], unit, used)
        fixed[number] = replace(files[number], limit=used)
        if used:
            return fixed
    return fixed


def _last_rows(file: StoreFile, unit: np.dtype[np.void]) -> tuple[int, Array]:
    """Return (bytes up to and including the last nonzero unit, the units of the page that ends
    there).
    """
    with FileSource(file.path) as source:
        end = used_size(source)
    used = -(-end // unit.itemsize) * unit.itemsize
    return used, _rows_before(file, unit, used)


def _rows_before(file: StoreFile, unit: np.dtype[np.void], used: int) -> Array:
    start = max(0, used - _PAGE // unit.itemsize * unit.itemsize)
    with FileSource(file.path) as source:
        data = source.read(start, used - start)
    return np.frombuffer(data[:len(data) - len(data) % unit.itemsize], unit)


def fixed(index: IndexFile, header: bytes) -> IndexFile:
    """Return an opened index file in the state that it had when its 40-byte header was ``header``.

    A broker increments the entry count before it writes the message's offset to the header. An
    entry that is counted while its offset is not yet in the header is omitted.
    """
    index.source.close()
    decoded = HEADER.decode(header)
    file = IndexFile(index.file, index.shape, decoded, IndexSource(index.file.path, index.shape,
                                                                   header))
    last, before = file.entry(decoded.entries), file.entry(decoded.entries - 1)
    if (decoded.entries < 2 or last is None or before is None
            or last.physical_offset == decoded.end_phy_offset
            or before.physical_offset != decoded.end_phy_offset
            or _rereads(file, header)):
        return file
    file.source.close()
    header = HEADER.build(decoded._replace(
        index_count=decoded.index_count - 1,
        hash_slot_count=decoded.hash_slot_count - (last.previous == 0)))
    return IndexFile(index.file, index.shape, HEADER.decode(header),
                     IndexSource(index.file.path, index.shape, header))


def _rereads(index: IndexFile, header: bytes) -> bool:
    """Return whether the header on disk is unchanged after a short time, which means that no
    process is writing to the file.
    """
    due = time.monotonic() + _PATIENCE
    while index.source.read_now(0, HEADER.size) == header:
        if time.monotonic() > due:
            return True
        time.sleep(_LOOK)
    return False


class IndexSource(FileSource):
    """An index file in the state that it had when its header (40 bytes) was ``header``."""

    def __init__(self, path: str, shape: IndexShape, header: bytes) -> None:
        self._shape, self._header = shape, header
        self._next = max(HEADER.decode(header).index_count, 1)
        super().__init__(path, limit=shape.entry_position(self._next))

    def read(self, position: int, length: int) -> bytes:
        data = super().read(position, length)
        if position < HEADER.size:
            head = self._header[position:position + len(data)]
            data = head + data[len(head):]
        first, last = self._shape.slot_position(0), self._shape.entry_position(0)
        low, high = max(position, first), min(position + len(data), last)
        if low < high and not (low - first) % SLOT.size and not (high - low) % SLOT.size:
            part = data[low - position:high - position]
            data = data[:low - position] + self._older(part) + data[high - position:]
        return data

    def _older(self, raw: bytes) -> bytes:
        """Return slots without later entries: each slot points to its newest entry at the time of
        the snapshot.
        """
        slots = np.frombuffer(raw, ">i4")
        newer = np.flatnonzero(slots >= self._next)
        if not len(newer):
            return raw
        slots = slots.copy()
        for number in newer.tolist():
            slots[number] = self._resolved(int(slots[number]))
        return slots.tobytes()

    def _resolved(self, entry: int) -> int:
        """Follow the chain from ``entry`` to an entry that existed at the time of the snapshot.
        Return ``entry`` itself if the chain is invalid.
        """
        number = entry
        while number >= self._next:
            raw = self.read_now(self._shape.entry_position(number), ENTRY.size)
            if len(raw) < ENTRY.size:
                return entry
            previous = ENTRY.decode(raw).previous
            if not 0 <= previous < number or not any(raw):
                return entry
            number = previous
        return number
