"""The entries of all index files of a store as one sequence."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.index_file import ENTRY, HeaderRecord, IndexShape, dtype
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource
from rmqctl.store.index.shape import UnknownShapeError
from rmqctl.store.store import Store


class EntryPlace(NamedTuple):
    """The position of an entry: number of the index file (oldest first) and entry number."""

    file: int
    entry: int


class OpenedFile(NamedTuple):
    """The facts about an opened index file that do not change."""

    path: str
    shape: IndexShape
    header: HeaderRecord


class AllIndexEntries:
    """All entries of the readable index files as one sequence, read in blocks."""

    def __init__(self, store: Store) -> None:
        self.files: list[OpenedFile] = []
        self.unknown = False
        """True if a file has entries that cannot be read, because of a bad sector or an unknown
        shape."""
        self._sources: list[FileSource] = []
        self.counts: list[int] = []
        for file in store.index.listing.files:
            try:
                index = store.index.open(file)
            except UnknownShapeError as error:
                self.unknown |= error.sound and error.entries > 0
                continue
            except FormatError:
                continue
            except StoreIOError:
                self.unknown = True
                continue
            self.files.append(OpenedFile(file.path, index.shape, index.header))
            self._sources.append(index.source)
            room = max(0, (index.source.size - index.shape.entry_position(1)) // ENTRY.size)
            self.counts.append(min(index.header.entries, room))
        self._by_age()
        self.starts = np.cumsum([0, *self.counts]).tolist()

    def _by_age(self) -> None:
        """Sort the files by their headers, if these are consistent: names are not in order if a
        clock was set back.
        """
        headers = [file.header for file in self.files]
        order = sorted(range(len(headers)), key=lambda number: (
            not self.counts[number], headers[number].begin_phy_offset))
        used = [headers[number] for number in order if self.counts[number]]
        if all(header.begin_phy_offset <= header.end_phy_offset for header in used) and all(
                before.end_phy_offset <= behind.begin_phy_offset
                for before, behind in pairwise(used)):
            self.files = [self.files[number] for number in order]
            self._sources = [self._sources[number] for number in order]
            self.counts = [self.counts[number] for number in order]

    @property
    def total(self) -> int:
        return int(self.starts[-1])

    def place(self, position: int) -> EntryPlace:
        number = bisect_right(self.starts, position) - 1
        return EntryPlace(number, position - self.starts[number] + 1)

    def read(self, position: int, count: int) -> Array:
        """Return up to ``count`` entries, as a structured array, beginning at ``position``."""
        parts = []
        end = min(position + count, self.total)
        while position < end:
            number, entry = self.place(position)
            count_here = min(end - position, self.counts[number] - entry + 1)
            data = self._sources[number].read(
                self.files[number].shape.entry_position(entry), count_here * ENTRY.size)
            got = len(data) // ENTRY.size
            parts.append(data[:got * ENTRY.size])
            if got < count_here:
                break
            position += count_here
        return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype())

    def seek(self, physical: int) -> int:
        """Return the position of the first entry that points to the offset ``physical`` or a later
        one. Uses bisection.
        """
        low, high = 0, self.total
        while low < high:
            middle = (low + high) // 2
            entry = self.read(middle, 1)
            if len(entry) and int(entry["physical_offset"][0]) < physical:
                low = middle + 1
            else:
                high = middle
        return low

    def close(self) -> None:
        for source in self._sources:
            source.close()




def written(block: Array) -> Array:
    """Return a boolean array: whether each entry was written. An entry of zeros was never written,
    even if the header's count includes it.
    """
    anything: Array = np.zeros(len(block), bool)
    for name in block.dtype.names or ():
        anything |= block[name] != 0
    return anything
