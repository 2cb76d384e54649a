"""Writer of the index files of a store (spec: index.md §2-§7).

The slot table (20 MB by default), the header and new entries are kept in memory. From time to time,
they are written: the entries first, then the slots, then the header. If the process is killed, only
the entries added since the last `IndexFileWriter.sync_to_file` are missing from the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import MAXYEAR, datetime, timedelta

import numpy as np

from rmqctl.engine.dispatch.queue_files import FilePool, refuse_unreadable, wrong_size
from rmqctl.errors import StoreIOError, UsageError
from rmqctl.files.durable import lay_out, make_folders, open_file, write_all
from rmqctl.formats.local import index_file as layout
from rmqctl.formats.local import names
from rmqctl.formats.local.index_file import ENTRY, HEADER, SLOT, HeaderRecord, IndexShape
from rmqctl.kernel import active
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource
from rmqctl.scan.text import contiguous
from rmqctl.store.files import listing

FOLDER = "index"
MAX_PENDING = 1 << 18
"""Number of new entries after which the slots are written automatically."""
_WRITTEN = 1 << 16
"""Number of entries that are written together, before the slots and the header."""
_PAGE_BITS = 12
_PAGE = 1 << _PAGE_BITS
_INT_MAX = (1 << 31) - 1
_ENTRIES = layout.dtype()
_SLOTS = layout.slot_dtype()["entry"]


@dataclass(slots=True)
class IndexHeader:
    """The header in memory. As in a broker, ``index_count`` starts at 1."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 1

    def record(self, *, counted: bool) -> HeaderRecord:
        """Return the header as it is on disk. Before the first entry its count is 1 if ``counted``,
        else 0.
        """
        count = self.index_count if counted or self.index_count > 1 else 0
        return HeaderRecord(self.begin_timestamp, self.end_timestamp, self.begin_phy_offset,
                            self.end_phy_offset, self.hash_slot_count, count)


class IndexFileWriter:
    """Writer of the index file at ``path``. Use `create` or `load`."""

    def __init__(self, path: str, shape: IndexShape, pool: FilePool, header: IndexHeader,
                 table: Array) -> None:
        self.path, self.shape, self.header = path, shape, header
        self._pool, self._table = pool, table
        pages = (shape.entry_position(0) + _PAGE - 1) >> _PAGE_BITS
        self._dirty: Array = np.zeros(pages, bool)
        self._header_dirty = False
        self._entries: list[Array] = []
        self._unwritten = 0
        self._pending = 0
        self.most_pending = MAX_PENDING
        self.touched = False
        """True if anything was written since the file was opened."""

    @classmethod
    def create(cls, path: str, shape: IndexShape, pool: FilePool,
               before: IndexHeader | None) -> IndexFileWriter:
        """Create a file whose range begins at the end offset and end time of the file ``before``
        (index.md §7).
        """
        pool.create(path, shape.file_size)
        file = cls(path, shape, pool, IndexHeader(), np.zeros(shape.slots, _SLOTS))
        file._header_dirty = file.touched = True
        if before is not None:
            file.follow(before)
            file.sync_to_file()  # else the indexed end would be unknown after a crash
        return file

    def follow(self, before: IndexHeader) -> None:
        """Let the range in an empty file's header begin at the end offset and end time of the file
        ``before``.
        """
        if before.end_phy_offset > 0:
            self.header.begin_phy_offset = self.header.end_phy_offset = before.end_phy_offset
        if before.end_timestamp > 0:
            self.header.begin_timestamp = self.header.end_timestamp = before.end_timestamp
        self._header_dirty = True

    @classmethod
    def load(cls, path: str, shape: IndexShape, pool: FilePool, *, repair: bool) -> IndexFileWriter:
        """Load a file from disk.

        ``repair``: whether to reset slots that point to entries which the header does not count.
        Such slots exist if the process was killed after it wrote the slots and before it wrote the
        header. They are reset to the newest counted entry in their chain.

        Raises: RefusedError if the file's size does not match ``shape``.
        """
        with FileSource(path) as source:
            if source.size not in {0, shape.file_size}:
                raise wrong_size(path, source.size, shape.file_size)
            raw = source.read(0, HEADER.size)
            header = IndexHeader(*HEADER.decode(raw)) if len(raw) == HEADER.size else IndexHeader()
            header.index_count = max(header.index_count, 1)
            table = np.zeros(shape.slots, _SLOTS)
            source.read_into(memoryview(table.view(np.uint8).data), HEADER.size)
            if source.size == 0:
                pool.create(path, shape.file_size)
            file = cls(path, shape, pool, header, table)
            if repair:
                file._lead_slots_back(source)
        return file

    def _lead_slots_back(self, source: FileSource) -> None:
        """Make each slot that points to an uncounted entry point to the newest counted entry of its
        chain instead.
        """
        count = self.header.index_count
        over = np.flatnonzero(self._table >= count)
        if not len(over):
            return
        behind = self._table[over].astype(np.int64)
        most = min(int(behind.max()), self.shape.capacity)
        raw = source.read(self.shape.entry_position(count), (most + 1 - count) * ENTRY.size)
        previous = ENTRY.array(raw)["previous"].astype(np.int64)
        while True:
            behind[behind - count >= len(previous)] = 0
            leading = np.flatnonzero(behind >= count)
            if not len(leading):
                break
            linked = previous[behind[leading] - count]
            behind[leading] = np.where((linked >= 0) & (linked < behind[leading]), linked, 0)
        self._table[over] = behind
        self._mark(over)

    @property
    def is_blank(self) -> bool:
        """Return whether the header was never written, because the process that created the file
        was killed.
        """
        return self.header == IndexHeader()

    @property
    def room(self) -> int:
        """Number of entries that the file can still hold."""
        return max(0, self.shape.max_entries - self.header.index_count)

    @property
    def full(self) -> bool:
        return self.header.index_count >= self.shape.max_entries

    # -- writing ----------------------------------------------------------------------------------

    def extend(self, key_hash: Array, key_row: Array, physical: Array,
               store_timestamp: Array) -> None:
        """Add an entry for each of the keys: at least one key, at most `room`. All arguments are
        int64 columns.

        ``key_hash`` and ``key_row`` are in index order. ``key_row``: for each key, the position of
        its message in ``physical`` and ``store_timestamp``.
        """
        header, many = self.header, len(key_hash)
        first, last = int(key_row[0]), int(key_row[-1])
        entries: Array = np.empty(many, _ENTRIES)
        fresh = self._link(entries, key_hash, key_row, physical, store_timestamp)
        self._entries.append(entries)
        if header.index_count <= 1:
            header.begin_phy_offset = int(physical[first])
            header.begin_timestamp = int(store_timestamp[first])
        header.hash_slot_count += fresh
        header.index_count += many
        header.end_phy_offset = int(physical[last])
        header.end_timestamp = int(store_timestamp[last])
        self._header_dirty = self.touched = True
        self._pending += many
        self._unwritten += many
        if self._pending >= self.most_pending:
            self.sync_to_file()
        elif self._unwritten >= _WRITTEN:
            self._write_entries()

    def _link(self, entries: Array, key_hash: Array, key_row: Array, physical: Array,
              store_timestamp: Array) -> int:
        """Fill new entries and update their slots; return the number of slots that were empty
        before.
        """
        kernel = active()
        if kernel is not None:
            fresh: int = kernel.link_entries(
                *contiguous(key_hash, key_row, physical, store_timestamp), self.header.index_count,
                self.header.begin_timestamp, self._table.view(np.int32),
                self._dirty.view(np.uint8), _PAGE_BITS, entries.view(np.uint8))
            return fresh
        entries["key_hash"], entries["physical_offset"] = key_hash, physical[key_row]
        self._set_times(entries, store_timestamp[key_row])
        return self._set_links(entries, key_hash)

    def _set_times(self, entries: Array, store_timestamp: Array) -> None:
        """Set the times of entries, in seconds.

        The time of a file's first entry counts from the begin time in the header. All other times
        count from the store time of the first entry.
        """
        begin, head = self.header.begin_timestamp, int(self.header.index_count <= 1)
        if head:
            entries["time_diff"][:1] = _seconds(store_timestamp[:1], begin)
            begin = int(store_timestamp[0])
        entries["time_diff"][head:] = _seconds(store_timestamp[head:], begin)

    def _set_links(self, entries: Array, key_hash: Array) -> int:
        """Link each new entry to the previous entry of its slot; return the number of slots that
        were empty before.
        """
        count, many = self.header.index_count, len(key_hash)
        bits = many.bit_length()
        # Sorted by slot, then by number, neighbours in a slot are linked to each other ...
        ranked = np.sort((key_hash % self.shape.slots) << bits | np.arange(many))
        slot, place = ranked >> bits, ranked & ((1 << bits) - 1)
        first = np.empty(many, bool)
        first[0] = True
        np.not_equal(slot[1:], slot[:-1], out=first[1:])
        linked = np.empty(many, np.int64)
        linked[1:] = place[:-1] + count
        # ... and the first one to the old entry of the slot.
        used = slot[first]
        old = self._table[used].astype(np.int64)
        # Each entry was added when the file had as many entries as are before it.
        old[(old <= 0) | (old > place[first] + count)] = 0
        linked[first] = old
        entries["previous"][place] = linked
        self._table[used] = place[np.append(first[1:], True)] + count
        self._mark(used)
        return int(np.count_nonzero(old == 0))

    def _mark(self, slots: Array) -> None:
        self._dirty[(slots * SLOT.size + HEADER.size) >> _PAGE_BITS] = True

    def sync_to_file(self, *, counted: bool = False) -> None:
        """Write the new entries, then the changed slots, then the header, without fsync.

        A reader, or a process that starts after a kill, sees a consistent file, except between the
        last two writes. ``counted``: write a count of 1 instead of 0 into the header of an empty
        file, as 5.x does at shutdown.
        """
        # 1. The entries.
        self._write_entries()
        # 2. The slots, by changed pages, or all of them if most have changed.
        pages = np.flatnonzero(self._dirty)
        if len(pages):
            if 2 * len(pages) > len(self._dirty):
                self._write_pages(0, len(self._dirty))
            else:
                breaks = (np.flatnonzero(np.diff(pages) > 1) + 1).tolist()
                for start, stop in zip([0, *breaks], [*breaks, len(pages)], strict=True):
                    self._write_pages(int(pages[start]), int(pages[stop - 1]) + 1)
        # 3. The header, with the number of entries.
        if self._header_dirty or (counted and self.header.index_count <= 1):
            raw = layout.build_header(self.header.record(counted=counted))
            self._pool.write(self.path, raw, 0)
            self._header_dirty = False
        self._pending = 0

    def _write_entries(self) -> None:
        """Write the new entries. Readers ignore them until the header counts them."""
        if self._entries:
            # Join them as bytes: numpy would concatenate them in native byte order.
            body = b"".join([entries.view(np.uint8).data for entries in self._entries])
            first = self.header.index_count - self._unwritten
            self._pool.write(self.path, body, self.shape.entry_position(first))
            self._entries, self._unwritten = [], 0

    def _write_pages(self, first: int, stop: int) -> None:
        """Write the slots that are in the pages ``[first, stop)`` of the file."""
        start = max(0, first * _PAGE - HEADER.size) // SLOT.size
        end = (stop * _PAGE - HEADER.size) // SLOT.size
        part = self._table[start:end].view(np.uint8).data
        self._pool.write(self.path, part, self.shape.slot_position(start))
        self._dirty[first:stop] = False


def write_whole(path: str, shape: IndexShape, parts: Iterable[tuple[int, bytes]]) -> None:
    """Create an index file in a scratch folder, without fsync. Raises: StoreIOError.

    ``parts``: (position, bytes); all other bytes are zero. An `IndexWriter` can append to the file.
    """
    make_folders(os.path.dirname(path), durable=False)
    fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "make")
    try:
        lay_out(fd, path, shape.file_size)
        for position, data in parts:
            write_all(fd, data, position, path)
    finally:
        os.close(fd)


def last_hashes(paths: list[str], shape: IndexShape, physical: int) -> list[int]:
    """Return the key hashes of the last index entries that point to ``physical``, oldest first.

    ``paths``: the index files, oldest first. The entries of a message may be in several files.
    """
    out: list[int] = []
    for path in reversed(paths):
        with FileSource(path) as source:
            header = HEADER.decode(source.read(0, HEADER.size).ljust(HEADER.size, b"\0"))
            number = min(header.entries, shape.capacity)
            while number > 0:
                raw = source.read(shape.entry_position(number), ENTRY.size)
                if len(raw) < ENTRY.size:
                    raise StoreIOError(f"{path}: the file is too short for its entry count")
                entry = ENTRY.decode(raw)
                if entry.physical_offset != physical:
                    return out[::-1]
                out.append(entry.key_hash)
                number -= 1
    return out[::-1]


def newest_full_end(paths: list[str], shape: IndexShape) -> int:
    """Return the end timestamp of the newest full file; 0 if no file is full."""
    for path in reversed(paths):
        header = header_of(path)
        if header.index_count >= shape.max_entries:
            return header.end_timestamp
    return 0


def header_of(path: str) -> IndexHeader:
    """Return the header of a file on disk; the header of an unused file if the file is too
    short.
    """
    with FileSource(path) as source:
        return IndexHeader(*HEADER.decode(source.read(0, HEADER.size).ljust(HEADER.size, b"\0")))


def _seconds(store_timestamp: Array, begin: int) -> Array:
    if begin <= 0:
        return np.zeros(len(store_timestamp), np.int64)
    seconds: Array = np.clip((store_timestamp - begin) // 1000, 0, _INT_MAX)
    return seconds


class IndexWriter:
    """Appends to the last index file, and creates a new one when it is full.

    When a broker dispatches the last indexed message again, it indexes the message twice. This
    writer skips keys that are already in the index, unless ``as_broker`` is true.
    """

    def __init__(self, root: str, shape: IndexShape, pool: FilePool, wall_clock: Callable[[], int],
                 *,
                 counts_empty: bool = True, as_broker: bool = False,
                 most_pending: int | None = None) -> None:
        """Open the last index file.

        ``counts_empty``: whether `close` writes a count of 1 into an empty file, as 5.x does.
        ``most_pending``: number of new entries after which the slots are written.
        """
        if shape.slots <= 0 or shape.capacity <= 0:
            raise UsageError(f"an index file cannot have {shape.slots} hash slots and "
                             f"{shape.max_entries} entries")
        self._folder, self._shape, self._pool = os.path.join(root, FOLDER), shape, pool
        self._clock, self._as_broker = wall_clock, as_broker
        self._counts_empty, self._most_pending = counts_empty, most_pending
        self._file: IndexFileWriter | None = None
        listed = listing(self._folder, names.INDEX_DIGITS)
        refuse_unreadable(listed.troubles)
        self._paths = [file.path for file in listed.files]
        if self._paths:
            self._file = IndexFileWriter.load(self._paths[-1], shape, pool, repair=not as_broker)
            self._patient(self._file)
            if self._file.is_blank and len(self._paths) > 1:
                self._file.follow(header_of(self._paths[-2]))
        self.index_timestamp = newest_full_end(self._paths[:-1], shape)
        """The end timestamp of the newest full file; 0 if no file is full."""

    def put(self, physical: Array, key_row: Array, key_hash: Array,
            store_timestamp: Array) -> None:
        """Index the messages of a part of the log by their keys. All arguments are int64 columns.

        ``physical`` and ``store_timestamp`` have an element for each message, in log order.
        ``key_hash`` and ``key_row`` have an element for each key, in index order; ``key_row`` is
        the index of the key's message.
        """
        first_message, first_key = self._first_unindexed(physical, key_row, key_hash)
        if first_message >= len(physical):
            return
        done, count = first_key, len(key_hash)
        while True:
            file = self._current()
            take = min(file.room, count - done)
            if take:
                part = slice(done, done + take)
                file.extend(key_hash[part], key_row[part], physical, store_timestamp)
                done += take
            # A message that arrives when the file is full creates the next one, even without keys.
            if not file.full or (done == count and key_row[-1] == len(physical) - 1):
                return

    def _first_unindexed(self, physical: Array, key_row: Array, key_hash: Array) -> tuple[int, int]:
        """Return the indexes of the first message and the first key that are not indexed yet."""
        if self._file is None:
            return 0, 0
        if self._as_broker and self._file.full and len(physical):
            self._current()
        end = self._file.header.end_phy_offset
        message = int(np.searchsorted(physical, end, "left"))
        key = int(np.searchsorted(key_row, message, "left"))
        # If the last indexed message is repeated, read back which of its keys are indexed.
        if self._as_broker or message == len(physical) or physical[message] != end:
            return message, key
        if self._file.header.index_count <= 1 and len(self._paths) <= 1:
            return message, key  # nothing is indexed yet: offset 0 is not an end
        self._file.sync_to_file()  # entries must be in the file to be read back
        indexed = last_hashes(self._paths, self._shape, end)
        next_key = int(np.searchsorted(key_row, message, "right"))
        wanted = key_hash[key:next_key].tolist()
        if not indexed or wanted[:len(indexed)] != indexed:
            return message, key
        if len(indexed) == len(wanted):
            return message + 1, next_key
        return message, key + len(indexed)

    def _current(self) -> IndexFileWriter:
        """Return the writer of the last file. If no file exists or the last file is full, create a
        new file.
        """
        file = self._file
        if file is not None and not file.full:
            return file
        before = None
        if file is not None:
            file.sync_to_file()
            self._pool.sync(file.path)
            before = file.header
            self.index_timestamp = before.end_timestamp
        path = os.path.join(self._folder, self._name())
        self._file = IndexFileWriter.create(path, self._shape, self._pool, before)
        self._patient(self._file)
        self._paths.append(path)
        return self._file

    def _patient(self, file: IndexFileWriter) -> None:
        if self._most_pending is not None:
            file.most_pending = self._most_pending

    def _name(self) -> str:
        """Return a file name that is derived from the wall clock and greater than the last file's
        name.

        Names must be in the order of creation. Two files of the same millisecond get different
        names, unlike in a broker.
        """
        name = name_at(self._clock())
        last = os.path.basename(self._paths[-1]) if self._paths else ""
        return name if name > last else next_name(last)

    def sync_to_file(self) -> None:
        """Write the new entries, changed slots and header, without fsync."""
        if self._file is not None:
            self._file.sync_to_file()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None and file.touched:
            file.sync_to_file(counted=self._counts_empty)


# -- names ----------------------------------------------------------------------------------------


def name_at(time: int) -> str:
    """Return the name of an index file created at ``time`` (ms), in local time as in a broker.

    For a time outside the calendar, return a name of 1970. In a rebuild, ``time`` is a message's
    store time, which may be damaged.
    """
    try:
        moment = datetime.fromtimestamp(time // 1000)  # noqa: DTZ006 (local by spec)
        return names.build_index(moment + timedelta(milliseconds=time % 1000))
    except (ValueError, OverflowError, OSError):
        return names.build_index(datetime(1970, 1, 1))  # noqa: DTZ001


def next_name(name: str) -> str:
    """Return the next possible name after ``name``; "" is less than all names."""
    time = names.parse_index(name)
    if time is None or time.year == MAXYEAR:
        return f"{int(name or 0) + 1:0{names.INDEX_DIGITS}d}"
    return names.build_index(time + timedelta(milliseconds=1))
