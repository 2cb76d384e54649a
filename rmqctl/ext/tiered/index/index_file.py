"""Read an index file of a tier: open or compacted, of any version (tiered.md §5).

All bytes are read through a function, by position. Therefore the same code reads local files,
segments of a tier and objects of an object store, and tests can count the reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

from rmqctl import vfs
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.ext.tiered.flat_file import FlatFile
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.index import open_shape_of
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import Closing, FileSource

if TYPE_CHECKING:
    import numpy as np

ReadAt = Callable[[int, int], bytes]
"""A function that returns ``length`` bytes from a position, fewer at the end of the file."""

Status = Literal["UNSEALED", "UPLOADED"]
EMPTY, OPEN, COMPACTED = "empty", "open", "compacted"
BLOCK_ITEMS = 1 << 16
_EMPTY_HEADER = fmt.HeaderRecord(fmt.END_MAGIC, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class TierIndexFile:
    """An index file. ``where``: path to show in messages. ``base``: base offset of the segment, -1
    for a local file.
    """

    where: str
    size: int
    status: Status
    form: str
    header: fmt.HeaderRecord
    shape: fmt.TieredIndexShape
    read: ReadAt
    base: int = -1

    @property
    def timestamp(self) -> int:
        """Creation time of the file (ms). A broker finds index files by this time."""
        return self.header.begin_timestamp

    @property
    def items(self) -> int:
        """Number of items according to the header (5.1.x numbers items from 0)."""
        return max(self.header.item_count, 0)

    def slot_of(self, key_hash: int) -> int:
        """Return the slot of a hash. Return -1 for the hash -2^31 if the number of slots does not
        divide 2^31.
        """
        slot = key_hash % self.shape.slots
        return slot if key_hash >= 0 or not slot else -1

    def chain(self, key_hash: int, most: int | None = None) -> Iterator[fmt.CompactedItemRecord]:
        """Yield the items with a hash, newest first. In a compacted file this takes two reads.
        ``most``: maximum number of examined items of the slot.

        Raises: FormatError for a slot or link that points outside the file.
        """
        slot = self.slot_of(key_hash)
        if self.form == EMPTY or slot < 0:
            return
        walk = self._compacted_chain if self.form == COMPACTED else self._open_chain
        for item in walk(slot, most):
            if item.key_hash == key_hash:
                yield item

    def slot_range(self, slot: int) -> fmt.CompactedSlotRecord:
        """Return the range of a slot's items in the compacted form.
        Raises: FormatError if the range is not in the file.
        """
        position = self.shape.slot_position(slot)
        extent: fmt.CompactedSlotRecord = self._decoded(fmt.COMPACTED_SLOT, position)
        end = self.shape.items_at + self.items * fmt.COMPACTED_ITEM.size
        if extent.length and (extent.length < 0 or extent.length % fmt.COMPACTED_ITEM.size
                              or not self.shape.items_at <= extent.position
                              or extent.position + extent.length > end):
            raise self._fault(position, "slot", f"items at {extent.position}, {extent.length} "
                              "bytes: outside the file")
        return extent

    def _compacted_chain(self, slot: int, most: int | None) -> Iterator[fmt.CompactedItemRecord]:
        extent = self.slot_range(slot)
        length = extent.length
        if most is not None:
            length = min(length, most * fmt.COMPACTED_ITEM.size)
        block = BLOCK_ITEMS * fmt.COMPACTED_ITEM.size
        for start in range(0, length, block):
            data = self.read(extent.position + start, min(block, length - start))
            complete = len(data) - len(data) % fmt.COMPACTED_ITEM.size
            yield from fmt.COMPACTED_ITEM.decode_all(data[:complete])
            if len(data) < min(block, length - start):
                raise self._fault(extent.position + start + len(data), "item", "the file ends here")

    def _open_chain(self, slot: int, most: int | None) -> Iterator[fmt.CompactedItemRecord]:
        position = self.shape.slot_position(slot)
        number = self._decoded(fmt.SLOT, position).item
        left = self.items if most is None else most
        first = 0 if self.shape.old else 1
        last = self.items - 1 if self.shape.old else self.items
        while number >= first and left > 0:
            if number > last:
                raise self._fault(position, "slot", f"points to item {number} of {self.items}")
            position = self.shape.item_position(number)
            item = self._decoded(fmt.ITEM, position)
            yield fmt.CompactedItemRecord(*item[:-1])
            if item.previous >= number:
                raise self._fault(position, "previous", f"item {number} points to {item.previous}, "
                                  "which is not older")
            number, left = item.previous, left - 1

    def blocks(self) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """Yield all items in the order of the file, in blocks: (number of the first item, items).

        The items are structured arrays: `Item` (`rmqctl.formats.tiered.index`) for an open file,
        `CompactedItem` for a compacted file.
        """
        first = self._first_number
        for start in range(0, self.items if self.form != EMPTY else 0, BLOCK_ITEMS):
            wanted = min(BLOCK_ITEMS, self.items - start)
            items = self.block(start, wanted)
            if len(items):
                yield first + start, items
            if len(items) < wanted:
                return

    @property
    def _first_number(self) -> int:
        """Number of the first item in the open form: 1 (5.1.x: 0)."""
        return 1 if self.form == OPEN and not self.shape.old else 0

    def block(self, start: int, count: int) -> np.ndarray[Any, Any]:
        """Return up to ``count`` items after the first ``start`` items, as an array like those of
        `blocks`.
        """
        unit = fmt.COMPACTED_ITEM if self.form == COMPACTED else fmt.ITEM
        data = self.read(self.shape.items_at + (self._first_number + start) * unit.size,
                         max(0, min(count, self.items - start)) * unit.size)
        return unit.array(data)

    def _decoded(self, unit: Any, position: int) -> Any:
        data = self.read(position, unit.size)
        try:
            return unit.decode(data, 0, position)
        except FormatError as error:
            error.file = self.where
            raise

    def _fault(self, position: int, path: str, reason: str) -> FormatError:
        return FormatError(reason, file=self.where, offset=position, path=path)


def examine(read: ReadAt, size: int, where: str, *, status: Status, base: int = -1,
            slots: int | None = None, max_items: int | None = None) -> TierIndexFile:
    """Open an index file and detect its form. An uploaded file of 0 bytes, or with only a header,
    is empty.

    ``slots`` and ``max_items``: the configured numbers. An open file without items needs at least
    one of them, unless it has the default ratio of slots to items.
    Raises: FormatError (with the file) if this is not an index file.
    """
    if size == 0:
        return TierIndexFile(where, 0, status, EMPTY, _EMPTY_HEADER, fmt.DEFAULT_SHAPE, read, base)
    try:
        header = fmt.HEADER.decode(read(0, fmt.HEADER.size))
        if status == "UNSEALED" and not any(header):  # killed before the header was written
            return TierIndexFile(where, size, status, EMPTY, _EMPTY_HEADER, fmt.DEFAULT_SHAPE, read)
        if header.magic not in fmt.MAGICS:
            raise FormatError(f"invalid index magic: {header.magic:08x}", offset=0, path="magic")
        if header.item_count < 0:
            raise FormatError("negative number of items", path="item_count",
                              offset=fmt.HEADER.field("item_count").offset)
        if status == "UPLOADED":
            return TierIndexFile(where, size, status, COMPACTED, header,
                                 fmt.compacted_shape(header, size, None), read, base)
        shape = open_shape_of(read, size, header, slots, max_items)
        if header.item_count > shape.max_items:
            raise FormatError(f"item count is {header.item_count}, but only {shape.max_items} "
                              "fit", path="item_count",
                              offset=fmt.HEADER.field("item_count").offset)
        return TierIndexFile(where, size, status, OPEN, header, shape, read, base)
    except FormatError as error:
        error.file = where
        raise


def uploaded(flat: FlatFile) -> Iterator[TierIndexFile | FormatError | StoreIOError]:
    """Yield the uploaded index files of a broker by base offset; for an invalid or unreadable file,
    yield the error instead.
    """
    for segment in flat.segments:
        def read(position: int, length: int, path: str = segment.path) -> bytes:
            return flat.reader.read(path, position, length)
        try:
            yield examine(read, segment.usable, flat.reader.where(segment.path), status="UPLOADED",
                          base=segment.base)
        except (FormatError, StoreIOError) as error:
            yield error


class LocalIndex(Closing):
    """A broker's index files that are not uploaded. A context manager.

    ``files``: the readable files, oldest first. ``errors``: errors of the other files.
    """

    def __init__(self, folder: str | None, slots: int | None = None,
                 max_items: int | None = None) -> None:
        self.files: list[TierIndexFile] = []
        self.errors: list[FormatError | StoreIOError] = []
        self._sources = ExitStack()
        for _, file in local_files(folder, self._sources, slots, max_items):
            if isinstance(file, TierIndexFile):
                self.files.append(file)
            else:
                self.errors.append(file)

    def close(self) -> None:
        self._sources.close()


def local_files(folder: str | None, sources: ExitStack, slots: int | None = None,
                max_items: int | None = None) -> Iterator[
                    tuple[str, TierIndexFile | FormatError | StoreIOError]]:
    """Open the index files in a broker's local folder, oldest first. Yield (path, file), or (path,
    error) for an invalid or unreadable file.

    The files stay open until ``sources`` is closed.
    Raises: StoreIOError for the folder.
    """
    for name in local_names(folder):
        path = os.path.join(str(folder), name)
        try:
            source = sources.enter_context(FileSource(path))
            yield path, examine(source.read, source.size, path, status="UNSEALED", slots=slots,
                                max_items=max_items)
        except (FormatError, StoreIOError) as error:
            yield path, error


def local_names(folder: str | None) -> list[str]:
    """Return the names of index files in a broker's local folder, oldest first: numbers that a
    broker accepts, and the fixed names of 5.1.x.
    Raises: StoreIOError.
    """
    if folder is None:
        return []
    try:
        every = vfs.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreIOError.from_oserror(error, folder, "list") from None
    return sorted((name for name in every if name.isascii() and name.isdigit()
                   and not vfs.isdir(os.path.join(folder, name))),
                  key=lambda name: (name not in names.OLD_INDEX_NAMES, int(name)))
