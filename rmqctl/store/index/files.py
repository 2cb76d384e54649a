"""The index files of a store: key look-ups as a broker answers them (spec: index.md §8).

A look-up follows one hash chain per file, and reads only the slots and entries on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rmqctl import vfs
from rmqctl.errors import FormatError
from rmqctl.formats.local import index_file as layout
from rmqctl.formats.local.index_file import (
    ENTRY,
    HEADER,
    SLOT,
    EntryRecord,
    HeaderRecord,
    IndexShape,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile
from rmqctl.store.index.shape import Decided, decide

MAX_BATCH = 64
"""The default of ``maxMsgsNumBatch``: the maximum number of messages that a broker returns for
one query."""


@dataclass(slots=True)
class IndexFile:
    """An opened index file: its shape (determined or given), its header, and its source.

    ``sure``: false if only the file size supports the shape; then nothing is written to the file.
    """

    file: StoreFile
    shape: IndexShape
    header: HeaderRecord
    source: FileSource
    sure: bool = True

    @property
    def count(self) -> int:
        """The number of the next free entry (at least 1), which a broker computes from the
        header.
        """
        return max(self.header.index_count, 1)

    def slot(self, number: int) -> int:
        raw = self.source.read(self.shape.slot_position(number), SLOT.size)
        return SLOT.decode(raw).entry if len(raw) == SLOT.size else 0

    def entry(self, number: int) -> EntryRecord | None:
        raw = self.source.read(self.shape.entry_position(number), ENTRY.size)
        return ENTRY.decode(raw) if len(raw) == ENTRY.size else None

    def close(self) -> None:
        self.source.close()


def by_age(files: Iterable[tuple[StoreFile, HeaderRecord | None]]) -> list[StoreFile]:
    """Return index files in the order of their creation, by their first physical offset.

    The names are not in this order if a clock was set back. A file without a first physical offset
    stays after the file with the previous name.

    ``files``: the files in order of name, each with its header, or None if the header cannot be
    read.
    """
    begins: list[tuple[int, StoreFile]] = []
    for file, header in files:
        is_used = header is not None and (header.entries > 0 or header.begin_phy_offset > 0)
        before = begins[-1][0] if begins else 0
        begins.append((header.begin_phy_offset if header and is_used else before, file))
    return [file for _, file in sorted(begins, key=lambda pair: pair[0])]


def open_index(file: StoreFile, slots: int | None = None, max_entries: int | None = None,
               preferred: Iterable[IndexShape] = (), decision: Decided | None = None) -> IndexFile:
    """Open an index file and determine its shape with `rmqctl.store.index.shape`.

    ``preferred``: shapes that other parts of the store suggest.
    ``decision``: the shape, if it was determined earlier.
    Raises: FormatError if the shape is unknown.
    """
    source = file.open()
    sure = True
    try:
        header = HEADER.decode(source.read(0, HEADER.size))
        if slots is not None and max_entries is not None:
            shape = IndexShape(slots, max_entries)
        elif slots is not None:
            shape = layout.shape_of(source.size, slots)
        else:
            decided = decision or decide(
                source.size, source.read, preferred,
                source.gather if vfs.is_mounted(file.path) else None)
            shape, sure = decided.shape, decided.sure
    except FormatError as error:
        source.close()
        error.file = file.path
        raise
    except BaseException:
        source.close()
        raise
    return IndexFile(file, shape, header, source, sure)


def time_matched(header: HeaderRecord, begin: int, end: int) -> bool:
    """Return whether, according to a broker's rule, a file may contain messages with store times in
    ``[begin, end]``.
    """
    first, last = header.begin_timestamp, header.end_timestamp
    return (begin < first and end > last) or first <= begin <= last or first <= end <= last


def select(index: IndexFile, key_hash: int, most: int, begin: int, end: int,
           offsets: list[int]) -> None:
    """Append to ``offsets`` the physical offsets of the entries with this hash in the chain, newest
    first.
    """
    number = index.slot(index.shape.slot_of(key_hash))
    if number <= 0 or number > index.count or index.count <= 1:
        return
    while len(offsets) < most:
        entry = index.entry(number)
        if entry is None or entry.time_diff < 0:
            return
        when = layout.entry_time(index.header, entry)
        if entry.key_hash == key_hash and begin <= when <= end:
            offsets.append(entry.physical_offset)
        previous = entry.previous
        # A legal link points to an older entry: any other link would never end.
        if previous <= 0 or previous >= number or when < begin:
            return
        number = previous


def query_offsets(newest_first: Iterator[IndexFile], topic: str, key: str, most: int, begin: int,
                  end: int) -> list[int]:
    """Return what a broker's queryOffset returns: physical offsets, including hash collisions."""
    most = min(most, MAX_BATCH)
    wanted = layout.key_hash(topic, key)
    offsets: list[int] = []
    for index in newest_first:
        if time_matched(index.header, begin, end):
            select(index, wanted, most, begin, end, offsets)
        if index.header.begin_timestamp < begin or len(offsets) >= most:
            break
    return offsets


def query_messages(offsets: Callable[[int, int], list[int]],
                   store_time: Callable[[int], int | None], begin: int, end: int) -> list[int]:
    """Return the result of a broker's queryMessage: offsets of readable records, in the broker's
    order.

    ``offsets(begin, end)`` queries the index; ``store_time(offset)`` returns None if no record is
    at the offset.
    """
    last = end
    for _ in range(3):
        asked = sorted(offsets(begin, last))
        if not asked:
            break
        result = []
        for number, offset in enumerate(asked):
            when = store_time(offset)
            if when is None:
                continue
            if number == 0:
                last = when
            result.append(offset)
        if result or last < begin:
            return result
    return []
