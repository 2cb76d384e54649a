"""The rearranged form of an open index file, as it is uploaded (tiered.md §5.3).

Items of a slot come together, in the order of its chain. Where the chains are what putting items
makes them (that is proven for every item) the places follow by counting, and the file is read
from front to back; otherwise every chain is followed as a broker follows it. Memory: 12 bytes for
each item, 12 for each slot, then 4 for each item and one part of the result.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rmqctl.errors import FormatError, RefusedError
from rmqctl.files import durable
from rmqctl.files.odirect import DirectWriter
from rmqctl.formats.tiered import index as fmt
from rmqctl.scan.source import FileSource
from rmqctl.tiered.index.compaction_chains import (
    AT_ONCE,
    blocks_of,
    counted,
    followed,
    heads_of,
    places,
    proven,
)
from rmqctl.tiered.index.index_file import COMPACTED, IndexFile, examine
from rmqctl.tiered.index.open_file import raw

Array = np.ndarray[Any, np.dtype[Any]]

PART_ITEMS = 20_000_000
"""Items of the result that are in memory at once, 534 MiB; the file is read once for each part."""
_THREADS = 2
_KEPT = fmt.COMPACTED_ITEM.size
_ITEM_BYTES = np.dtype(f"V{_KEPT}")


@dataclass(frozen=True, slots=True)
class Compacted:
    """The rearranged form of a file, not yet written.

    ``size`` in bytes; ``items`` that it has; ``sound``: the chains lead to all items and to
    nothing else. `parts` gives the bytes in order.
    """

    file: IndexFile
    size: int
    items: int
    sound: bool
    _length: Array
    _place: Array
    _follows: bool

    def parts(self) -> Iterator[memoryview]:
        """The bytes from front to back; a part is valid until the next is asked for. FormatError,
        StoreIOError.
        """
        if not self.size:
            return
        shape, header = self.file.shape, self.file.header
        if not self.sound and not self._follows:
            header = header._replace(slot_count=int(np.count_nonzero(self._length)))
        yield memoryview(fmt.HEADER.build(header._replace(magic=fmt.END_MAGIC)))
        yield from _slots(self._length, shape)
        items = _followed_items if self._follows else _counted_items
        yield from items(self.file, self._place, self.items)


def compact(file: IndexFile, *, mend: bool = True) -> Compacted:
    """Works out the rearranged form of an open file of 5.2.0 or newer.

    Byte by byte what a broker makes of it (no bytes at all without items). Where its chains are
    not sound and ``mend`` is true, items are put to the slots of their hashes instead, newest
    first, so that none is lost; without ``mend`` the chains are followed as a broker follows them.
    FormatError where the file is cut short or, without ``mend``, a chain leads outside of it;
    RefusedError where it is another form.
    """
    if file.form == COMPACTED or file.shape.old:
        raise RefusedError(f"{file.where}: only the open form of 5.2.0 and newer can be rearranged")
    if not file.items:
        none: Array = np.zeros(0, np.int32)
        return Compacted(file, 0, 0, True, none, none, False)
    heads = heads_of(file)
    known = proven(file, heads)
    counts, pair, sound = (*known, True) if known else counted(file, heads)
    if sound or mend:
        place = places(counts, pair)
        return Compacted(file, file.shape.compacted_size(file.items), file.items, sound, counts,
                         place, False)
    length, order = followed(file, heads)
    size = file.shape.compacted_size(len(order)) if len(order) else 0
    return Compacted(file, size, len(order), False, length, order, True)


@contextmanager
def opened(path: str, slots: int | None = None, max_items: int | None = None) -> Iterator[
        IndexFile]:
    """An open index file at a path. FormatError (with the file), StoreIOError."""
    with FileSource(path) as source:
        yield examine(source.read, source.size, path, status="UNSEALED", slots=slots,
                      max_items=max_items)


def write(found: Compacted, path: str) -> None:
    """Writes the rearranged form as a new file, which lasts. StoreIOError, also where it exists.

    What was written of it before an error is taken away again.
    """
    fd = durable.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "make")
    writer = DirectWriter()
    try:
        position = 0
        for part in found.parts():
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

def _slots(length: Array, shape: fmt.Shape) -> Iterator[memoryview]:
    """An empty slot has the place where the next items go."""
    position = shape.items_at
    for first in range(0, shape.slots, AT_ONCE):
        sizes = length[first:first + AT_ONCE].astype(np.int64) * _KEPT
        ends = np.cumsum(sizes) + position
        part: Array = np.empty(len(sizes), fmt.COMPACTED_SLOT.dtype())
        part["position"], part["length"] = ends - sizes, sizes
        position = int(ends[-1])
        yield raw(part)


def _counted_items(file: IndexFile, place: Array, items: int) -> Iterator[memoryview]:
    room: Array = np.empty(min(PART_ITEMS, items), _ITEM_BYTES)
    for start in range(0, items, PART_ITEMS):
        end = min(start + PART_ITEMS, items)
        part = room[:end - start]

        def put(number: int, found: Array, part: Array = part, start: int = start,
                end: int = end) -> None:
            to = place[number - 1:number - 1 + len(found)]
            kept = _shortened(found)
            if start or end < items:
                inside = (to >= start) & (to < end)
                to, kept = to[inside], kept[inside]
            part[to - start if start else to] = kept

        # No two items have one place, and numpy copies without holding the interpreter's lock.
        with ThreadPoolExecutor(_THREADS) as pool:
            under_way: deque[Future[None]] = deque()
            for number, found in blocks_of(file):
                under_way.append(pool.submit(put, number, found))
                while len(under_way) > 2 * _THREADS:
                    under_way.popleft().result()
            for one in under_way:
                one.result()
        yield raw(part)


def _followed_items(file: IndexFile, order: Array, items: int) -> Iterator[memoryview]:
    """One by one: only for files whose chains are broken."""
    for start in range(0, items, AT_ONCE):
        part = bytearray()
        for number in order[start:start + AT_ONCE].tolist():
            data = file.read(file.shape.item_position(number), fmt.ITEM.size)
            if len(data) < fmt.ITEM.size:
                raise FormatError("the file ends here", file=file.where, path="item",
                                  offset=file.shape.item_position(number) + len(data))
            part += data[:_KEPT]
        yield memoryview(part)


def _shortened(found: Array) -> Array:
    """The first 28 bytes of each item, as one thing."""
    whole = found.view(np.dtype({"names": ["kept"], "formats": [_ITEM_BYTES], "offsets": [0],
                                 "itemsize": fmt.ITEM.size}))
    kept: Array = whole["kept"]
    return kept
