"""Convert an open index file to the compacted form, the form of uploaded index files (tiered.md
§5.3).

The items of a slot are contiguous, in the order of its chain, newest first. The positions of the
items follow from the number of items per slot. The file is therefore read sequentially: once to
count, and once for each part of the result.

The result is the same as a broker's if each item links to the previous item of its slot. Every link
is checked. The conversion needs 8 bytes of memory per slot, and memory for one part of the result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from rmqctl.errors import FormatError, RefusedError
from rmqctl.ext.tiered.index.index_file import COMPACTED, TierIndexFile, examine
from rmqctl.ext.tiered.index.open_file import link, raw, slots_of
from rmqctl.files import durable
from rmqctl.files.odirect import DirectWriter
from rmqctl.formats.tiered import index as fmt
from rmqctl.kernel import active
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource

PART_ITEMS = 2_700_000
"""Number of items in one part of the result. Each part is kept in memory (72 MiB), and requires one
pass over the file.
"""
_ITEM_SIZE = fmt.COMPACTED_ITEM.size
_ITEM_BYTES = np.dtype(f"V{_ITEM_SIZE}")
AT_ONCE = 1 << 17
"""Number of slots or items processed at a time."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The compacted form of a file, not yet written; `parts` yields its bytes.

    ``size``: size in bytes. ``items``: number of items. ``sound``: the chains of the file contain
    every item exactly once.
    """

    file: TierIndexFile
    size: int
    items: int
    sound: bool
    _counts: Array

    def parts(self) -> Iterator[memoryview]:
        """Yield the bytes of the compacted file, in parts. A part is valid until the next part is
        requested.
        Raises: FormatError, StoreIOError.
        """
        if not self.size:
            return
        header = self.file.header
        if not self.sound:
            header = header._replace(slot_count=int(np.count_nonzero(self._counts)))
        yield memoryview(fmt.HEADER.build(header._replace(magic=fmt.END_MAGIC)))
        yield from slot_table(self._counts, self.file.shape)
        yield from _counted_items(self.file, self._counts, self.items)


def compact(file: TierIndexFile) -> Compacted:
    """Return the compacted form of an open file of 5.2.0 or newer, identical to a broker's result.
    The form is empty if the file has no items.

    If the file's chains are damaged, each item is put into the slot of its hash, newest first. As a
    result, no item is lost.
    Raises: FormatError for a truncated file; RefusedError for another form.
    """
    if file.form == COMPACTED or file.shape.old:
        raise RefusedError(f"{file.where}: only the open format of 5.2.0 and newer can be "
                           "compacted")
    if not file.items:
        return Compacted(file, 0, 0, True, np.zeros(0, np.int32))
    counts, sound = counted(file)
    return Compacted(file, file.shape.compacted_size(file.items), file.items, sound, counts)


@contextmanager
def opened(path: str, slots: int | None = None, max_items: int | None = None) -> Iterator[
        TierIndexFile]:
    """Open an index file that is in the open form. Raises: FormatError (with the file),
    StoreIOError.
    """
    with FileSource(path) as source:
        yield examine(source.read, source.size, path, status="UNSEALED", slots=slots,
                      max_items=max_items)


def write(compacted: Compacted, path: str) -> None:
    """Write the compacted form to a new file and flush it. After an error the file is deleted.
    Raises: StoreIOError, also if the file exists.
    """
    fd = durable.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "make")
    writer = DirectWriter()
    try:
        position = 0
        for part in compacted.parts():
            writer.write(fd, part, position, path)
            position += len(part)
        durable.sync(fd, path, whole=True)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        writer.close()
        os.close(fd)
    durable.sync_folder(os.path.dirname(path))


# -- the bytes ------------------------------------------------------------------------------------

def slot_table(counts: Array, shape: fmt.TieredIndexShape) -> Iterator[memoryview]:
    """Yield the bytes of all slots. ``counts``: number of items of each slot. An empty slot
    contains the position of the next slot's items (5.1.x: 0).
    """
    position = shape.items_at
    for first in range(0, shape.slots, AT_ONCE):
        sizes = counts[first:first + AT_ONCE].astype(np.int64) * _ITEM_SIZE
        ends = np.cumsum(sizes) + position
        part: Array = np.empty(len(sizes), fmt.COMPACTED_SLOT.dtype())
        part["position"], part["length"] = ends - sizes, sizes
        if shape.old:
            part["position"][sizes == 0] = 0
        position = int(ends[-1])
        yield raw(part)


def _counted_items(file: TierIndexFile, counts: Array, items: int) -> Iterator[memoryview]:
    ends = np.cumsum(counts, dtype=np.int32)
    room: Array = np.empty(min(PART_ITEMS, items), _ITEM_BYTES)
    for start in range(0, items, PART_ITEMS):
        end = min(start + PART_ITEMS, items)
        part = room[:end - start]
        # The slots with items in this part; the last one may continue in the next part.
        low = int(np.searchsorted(ends, np.int32(start), "right"))
        high = int(np.searchsorted(ends, np.int32(end))) + 1
        last = int(ends[high - 1])
        for _, block in blocks_of(file):
            _put(block, ends, low, high, start, part)
        ends[high - 1] = last
        yield raw(part)


def _put(block: Array, ends: Array, low: int, high: int, start: int, part: Array) -> None:
    """Copy those items of a block whose slots are in ``[low, high)`` to ``part``.

    ``start``: index, in the result, of the first item in ``part``. ``ends``: a position for each
    slot. Each item is put directly before the position of its slot, which is then decreased by one.
    As a result, the newest item comes first.
    """
    kernel = active()
    if kernel is not None:
        kernel.place_items(block.view(np.uint8), ends, low, high, start, part.view(np.uint8))
        return
    slot = slots_of(block["key_hash"], len(ends))
    chosen = np.flatnonzero((slot >= low) & (slot < high))
    chosen = chosen[np.argsort(slot[chosen], kind="stable")]
    touched, first, length = np.unique(slot[chosen], return_index=True, return_counts=True)
    place = np.repeat(ends[touched] + first, length) - np.arange(1, len(chosen) + 1) - start
    ends[touched] -= length.astype(np.int32)
    inside = (place >= 0) & (place < len(part))
    part[place[inside]] = _shortened(block)[chosen[inside]]


def _shortened(items: Array) -> Array:
    """Return the first 28 bytes of each item, as one array element for each item."""
    view = items.view(np.dtype({"names": ["kept"], "formats": [_ITEM_BYTES], "offsets": [0],
                                "itemsize": fmt.ITEM.size}))
    shortened: Array = view["kept"]
    return shortened


# -- chains: what points where, proven for all items at once (§5.2, §5.3) -------------------------

def _heads(file: TierIndexFile) -> Iterator[tuple[int, Array]]:
    """Yield (first slot, numbers) for blocks of consecutive slots. ``numbers``: number of the
    newest item of each slot; 0 for an empty slot.
    """
    shape = file.shape
    for first in range(0, shape.slots, AT_ONCE):
        count = min(AT_ONCE, shape.slots - first)
        data = file.read(shape.slot_position(first), count * fmt.SLOT.size)
        if len(data) < count * fmt.SLOT.size:
            raise FormatError("the file ends here", file=file.where, path="slot",
                              offset=shape.slot_position(first) + len(data))
        yield first, np.maximum(fmt.SLOT.array(data)["item"], 0)


def blocks_of(file: TierIndexFile) -> Iterator[tuple[int, Array]]:
    """Yield all items in blocks, as (number of the first item, items). Raises: FormatError if items
    are missing.
    """
    expected = 1
    for number, items in file.blocks():
        yield number, items
        expected = number + len(items)
    if expected != file.items + 1:
        raise FormatError(f"the file ends before item {expected} of {file.items}", path="item",
                          file=file.where, offset=file.shape.item_position(expected))


def counted(file: TierIndexFile) -> tuple[Array, bool]:
    """Return the number of items of each slot (int32), and whether the chains are sound.

    In sound chains each item links to the previous item of its slot, and each slot points to its
    newest item.
    """
    slots = file.shape.slots
    cells: Array = np.zeros((slots, 2), np.int32)
    newest, counts = cells[:, 0], cells[:, 1]
    kernel = active()
    sound = True
    for number, items in blocks_of(file):
        if kernel is not None:
            sound = kernel.count_items(items.view(np.uint8), number, cells) and sound
            continue
        links = link(slots_of(items["key_hash"], slots), newest, number)
        sound = sound and bool((links.previous == np.maximum(items["previous"], 0)).all())
        counts[links.touched] += np.diff(np.append(links.first, len(items))).astype(np.int32)
    for first, heads in _heads(file):
        sound = sound and bool((heads == newest[first:first + len(heads)]).all())
    return counts.copy(), sound
