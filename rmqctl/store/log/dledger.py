"""The files that DLedger keeps beside the data of a log: index, checkpoint and term (spec:
dledger.md §1, §3).

The index has a unit of 32 bytes for each entry; the unit of entry i starts at byte 32 i. Only a
broker writes units, and a message sender cannot forge them. So a unit proves the position of an
entry, as a consume queue entry does for a message.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats import dledger
from rmqctl.scan.frames import Array
from rmqctl.scan.source import Closing, FileSource
from rmqctl.store.files import INDEX, Listing, StoreFile, listing
from rmqctl.store.log.end import used_size
from rmqctl.store.log.once import cached_property

if TYPE_CHECKING:
    from rmqctl.store.log.commit_log import CommitLog

UNIT_SIZE = dledger.INDEX_UNIT.size
PAGE = 1 << 15
"""Number of units that are read at a time."""
_MAX_CHECKPOINT_SIZE = 1 << 16
_MAX_UNITS = 1 << 16
"""Maximum range of entry indexes in one request: indexes that are further apart are damaged."""


class IndexUnits(NamedTuple):
    """Units (`dledger.INDEX_UNIT`, structured) of consecutive entries; ``first``: the entry index
    of the first unit.
    """

    first: int
    rows: Array


def entry_of(log: CommitLog, physical_offset: int) -> dledger.EntryHeadRecord | None:
    """Return the header of the DLedger entry that contains the record at a physical offset; None if
    the record is in a plain file, or the header is invalid.

    Raises: StoreIOError.
    """
    file = log.file_of(physical_offset)
    if file is None or not file.head:
        return None
    with file.open() as source:
        raw = source.read(physical_offset - file.base - dledger.HEAD_SIZE, dledger.HEAD_SIZE)
    return dledger.head_at(raw, physical_offset - dledger.HEAD_SIZE)


class Node:
    """The files of one DLedger node, in ``folder`` (``dledger-<selfId>``)."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @property
    def name(self) -> str:
        return os.path.basename(self.folder)

    @cached_property
    def index_listing(self) -> Listing:
        return listing(os.path.join(self.folder, INDEX))

    def units(self) -> Iterator[IndexUnits]:
        """Yield all written units, page by page; unreadable files are omitted."""
        for read in self._pages():
            page = read()
            if len(page.rows):
                yield page

    def leads(self) -> Iterator[Callable[[], tuple[Array, Array]]]:
        """Yield a function for each page of units. The function returns the physical offsets and
        sizes of the records to which the units point.
        """
        return (partial(_leads, read) for read in self._pages())

    def _pages(self) -> Iterator[Callable[[], IndexUnits]]:
        for file in self.index_listing.files:
            try:
                with file.open() as source:
                    count = -(-used_size(source) // UNIT_SIZE)
            except StoreIOError:
                continue
            for first in range(0, count, PAGE):
                yield partial(_units, file, first, min(PAGE, count - first))

    @cached_property
    def checkpoint(self) -> dict[str, int] | None:
        """The values ``end_index`` and ``committed_index`` of DLedger's checkpoint or its backup;
        None if neither file exists.

        Raises: FormatError if no existing file contains the values.
        """
        files = [file for file in (self.own_checkpoint, self._saved("checkpoint.bak")) if file]
        best = next((file for file in files if isinstance(file, dict)), None)
        if best is None and files:
            raise files[0]  # type: ignore[misc]
        return best

    @cached_property
    def own_checkpoint(self) -> dict[str, int] | FormatError | None:
        """The content of the checkpoint file; None if the file is missing, a FormatError if it is
        damaged.

        As in DLedger, the backup of the checkpoint is ignored.
        """
        return self._saved("checkpoint")

    def _saved(self, name: str) -> dict[str, int] | FormatError | None:
        try:
            with FileSource(os.path.join(self.folder, name)) as source:
                return dledger.parse_checkpoint(source.read(0, _MAX_CHECKPOINT_SIZE))
        except StoreIOError:
            return None
        except FormatError as error:
            return error


class UnitReader(Closing):
    """Reads the units of entries whose indexes are requested in ascending order. A missing unit
    reads as zeros.
    """

    def __init__(self, node: Node | None) -> None:
        self._files = [] if node is None else node.index_listing.files
        self._source: FileSource | None = None

    def of(self, index: Array) -> Array:
        """Return the unit of each entry index (any int64); zeros if no file contains the unit."""
        out: Array = np.zeros(len(index), dledger.INDEX_UNIT.dtype())
        if not len(index):
            return out
        low, high = int(index.min()), int(index.max())
        # damaged indexes: read them singly, not all units
        if not 0 <= low <= high < low + _MAX_UNITS + len(index):
            inside = np.flatnonzero(np.abs(index - int(np.median(index))) <= _MAX_UNITS // 2)
            if len(inside) < len(index):
                out[inside] = self.of(index[inside])
            return out
        raw = bytearray((high + 1 - low) * UNIT_SIZE)
        for file in self._files:
            first, last = max(low * UNIT_SIZE, file.base), min((high + 1) * UNIT_SIZE, file.end)
            if first < last:
                part = self._read(file, first, last)
                raw[first - low * UNIT_SIZE:first - low * UNIT_SIZE + len(part)] = part
        out[:] = np.frombuffer(raw, out.dtype)[index - low]
        return out

    def _read(self, file: StoreFile, first: int, last: int) -> bytes:
        try:
            if self._source is None or self._source.name != file.path:
                self.close()
                self._source = file.open()
            return self._source.read(first - file.base, last - first)
        except StoreIOError:
            return b""

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None


def _units(file: StoreFile, first: int, count: int) -> IndexUnits:
    try:
        with file.open() as source:
            raw = source.read(first * UNIT_SIZE, count * UNIT_SIZE)
    except StoreIOError:
        raw = b""
    rows = np.frombuffer(raw[:len(raw) - len(raw) % UNIT_SIZE], dledger.INDEX_UNIT.dtype())
    return IndexUnits(file.base // UNIT_SIZE + first, rows)


def _leads(read: Callable[[], IndexUnits]) -> tuple[Array, Array]:
    rows = read().rows
    rows = rows[(rows["magic"] == dledger.MAGIC_ENTRY) & (rows["pos"] >= 0)
                & (rows["size"] > dledger.HEAD_SIZE)]
    return (rows["pos"].astype(np.int64) + dledger.HEAD_SIZE,
            rows["size"].astype(np.int64) - dledger.HEAD_SIZE)
