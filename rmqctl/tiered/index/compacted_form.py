"""The rearranged form of an open index file, as it is uploaded (tiered.md §5.3).

Items of a slot come together, in the order of its chain. Where the chains are what putting items
makes them (that is proven for every item) the places follow by counting, and the file is read
from front to back; otherwise every chain is followed as a broker follows it. Memory: 12 bytes for
each item, 12 for each slot, then 4 for each item and one part of the result.

An item's *pair* is its slot and, below it, its depth in the slot: 1 for the oldest item. Where the
links are what putting items makes them the pairs follow from them in one pass; otherwise from the
items' hashes, whatever the links are. Only a file that is to be rearranged as a broker does it,
broken chains and all, is followed link by link.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from rmqctl.errors import FormatError, RefusedError
from rmqctl.files import durable
from rmqctl.files.odirect import DirectWriter
from rmqctl.formats.tiered import index as fmt
from rmqctl.kernel import active
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource
from rmqctl.tiered.index.index_file import COMPACTED, IndexFile, examine
from rmqctl.tiered.index.open_file import link, raw, slots_of

PART_ITEMS = 20_000_000
"""Items of the result that are in memory at once, 534 MiB; the file is read once for each part."""
_THREADS = 2
_ITEM_SIZE = fmt.COMPACTED_ITEM.size
_ITEM_BYTES = np.dtype(f"V{_ITEM_SIZE}")
AT_ONCE = 1 << 17
"""Slots or items that are worked on together."""
_ITEMS_READ = 1 << 21
_PAIR = 32
"""A pair has its slot above this bit."""
_DEPTH = (1 << _PAIR) - 1
_DEEPEST = 64
"""Links inside of a block that are followed step by step; where keys recur more often, sorting is
quicker.
"""


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
        yield from slot_table(self._length, shape)
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


def write(compacted: Compacted, path: str) -> None:
    """Writes the rearranged form as a new file, which lasts. StoreIOError, also where it exists.

    What was written of it before an error is taken away again.
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

def slot_table(counts: Array, shape: fmt.Shape) -> Iterator[memoryview]:
    """The bytes of all slots, from the number of items of each. An empty slot has the place where
    the next items go (of 5.1.x: 0).
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


def _counted_items(file: IndexFile, place: Array, items: int) -> Iterator[memoryview]:
    room: Array = np.empty(min(PART_ITEMS, items), _ITEM_BYTES)
    for start in range(0, items, PART_ITEMS):
        end = min(start + PART_ITEMS, items)
        part = room[:end - start]

        def put(number: int, block: Array, part: Array = part, start: int = start,
                end: int = end) -> None:
            to = place[number - 1:number - 1 + len(block)]
            kernel = active()
            if kernel is not None:
                kernel.place_items(block.view(np.uint8), to, start, part.view(np.uint8))
                return
            short_items = _shortened(block)
            if start or end < items:
                inside = (to >= start) & (to < end)
                to, short_items = to[inside], short_items[inside]
            part[to - start if start else to] = short_items

        # No two items have one place, and they are copied without holding the interpreter's lock.
        with ThreadPoolExecutor(_THREADS) as pool:
            under_way: deque[Future[None]] = deque()
            for number, block in blocks_of(file):
                under_way.append(pool.submit(put, number, block))
                while len(under_way) > 2 * _THREADS:
                    under_way.popleft().result()
            for future in under_way:
                future.result()
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
            part += data[:_ITEM_SIZE]
        yield memoryview(part)


def _shortened(items: Array) -> Array:
    """The first 28 bytes of each item, as one thing."""
    view = items.view(np.dtype({"names": ["kept"], "formats": [_ITEM_BYTES], "offsets": [0],
                                "itemsize": fmt.ITEM.size}))
    shortened: Array = view["kept"]
    return shortened


# -- chains: what leads where, proven for all items at once (§5.2, §5.3) -------------------------

def heads_of(file: IndexFile) -> Array:
    """The newest item of each slot (int32), 0 for an empty one."""
    shape = file.shape
    heads: Array = np.zeros(shape.slots, np.int32)
    for first in range(0, shape.slots, AT_ONCE):
        count = min(AT_ONCE, shape.slots - first)
        data = file.read(shape.slot_position(first), count * fmt.SLOT.size)
        if len(data) < count * fmt.SLOT.size:
            raise FormatError("the file ends here", file=file.where, path="slot",
                              offset=shape.slot_position(first) + len(data))
        heads[first:first + count] = fmt.SLOT.array(data)["item"]
    return np.maximum(heads, 0, out=heads)


def blocks_of(file: IndexFile) -> Iterator[tuple[int, Array]]:
    """All items by blocks. FormatError where some are not there."""
    expected = 1
    for number, items in file.blocks():
        yield number, items
        expected = number + len(items)
    if expected != file.items + 1:
        raise FormatError(f"the file ends before item {expected} of {file.items}", path="item",
                          file=file.where, offset=file.shape.item_position(expected))


def proven(file: IndexFile, heads: Array) -> tuple[Array, Array] | None:
    """(items of each slot, the pair of each item), proven from the links alone; None where they are
    not what putting items makes them, or too deep for this.

    Each link leads to an older item of the same slot, and the slots lead to chains that are, taken
    together, as long as there are items: so each has all items of its slot, newest first.
    """
    slots, count = file.shape.slots, file.items
    pair: Array = np.zeros(count + 1, np.int64)
    kernel = active()
    if kernel is not None:
        if not all(kernel.chain_pairs(items.view(np.uint8), number, slots, pair)
                   for number, items in blocks_of(file)):
            return None
        lengths: Array = np.empty(slots, np.int32)
        return (lengths, pair[1:]) if kernel.chain_counts(heads, pair, lengths) else None
    for number, items in blocks_of(file):
        previous = items["previous"].astype(np.intp)
        end = number + len(items)
        if (previous < 0).any() or (previous >= np.arange(number, end)).any():
            return None
        own = slots_of(items["key_hash"], slots).astype(np.int64) << _PAIR
        pair[number:end] = own
        before = pair[previous]
        depth = before & _DEPTH
        before ^= own
        if ((before > _DEPTH) & (previous > 0)).any():
            return None
        pair[number:end] += depth + 1
        inside = np.flatnonzero(previous >= number)
        if len(inside) and not _settled(pair, inside + number, previous[inside]):
            return None
    used = np.flatnonzero(heads)
    if (heads[used] > count).any():
        return None
    newest = pair[heads[used]]
    counts: Array = np.zeros(slots, np.int32)
    counts[used] = newest & _DEPTH
    if (newest >> _PAIR != used).any() or int(counts.sum()) != count:
        return None
    return counts, pair[1:]


def _settled(pair: Array, own: Array, previous: Array) -> bool:
    """Brings the depths of items up to date whose links lead into their own block."""
    for _ in range(_DEEPEST):
        more = (pair[previous] & _DEPTH) + 1 - (pair[own] & _DEPTH)
        if not more.any():
            return True
        pair[own] += more
    return False


def counted(file: IndexFile, heads: Array) -> tuple[Array, Array, bool]:
    """What `proven` gives, by the items' hashes whatever their links are; and whether the slots
    and links of the file say the same.
    """
    slots = file.shape.slots
    newest: Array = np.zeros(slots, np.int32)
    counts: Array = np.zeros(slots, np.int32)
    pair: Array = np.empty(file.items, np.int64)
    sound = True
    for number, items in blocks_of(file):
        links = link(slots_of(items["key_hash"], slots), newest, number)
        sound = sound and bool((links.previous == np.maximum(items["previous"], 0)).all())
        length = np.diff(np.append(links.first, len(items)))
        depth = np.arange(1, len(items) + 1) - np.repeat(links.first - counts[links.touched],
                                                         length)
        pair[number - 1 + links.order] = links.slot.astype(np.int64) << _PAIR | depth
        counts[links.touched] += length.astype(np.int32)
    return counts, pair, sound and bool((newest == heads).all())


def places(counts: Array, pair: Array) -> Array:
    """The place of each item in the result (int32): in its slot the newest comes first."""
    end = np.cumsum(counts, dtype=np.int32)
    place: Array = np.empty(len(pair), np.int32)
    kernel = active()
    if kernel is not None:
        kernel.item_places(pair, end, place)
        return place
    for first in range(0, len(pair), AT_ONCE):
        some = pair[first:first + AT_ONCE]
        place[first:first + len(some)] = end[some >> _PAIR] - (some & _DEPTH)
    return place


def followed(file: IndexFile, heads: Array) -> tuple[Array, Array]:
    """(items of each slot, numbers of the items in the order of the result), as a broker goes: it
    follows any link until the result has as many items as the header says.
    """
    shape, most = file.shape, file.items
    previous = _all_previous(file).data
    length: Array = np.zeros(shape.slots, np.int32)
    order: Array = np.empty(most, np.int32)
    out = order.data
    written = 0
    for slot in np.flatnonzero(heads).tolist():
        begin, number = written, int(heads[slot])
        while number > 0 and written < most:
            if number >= shape.max_items:
                raise FormatError(f"a chain leads to item {number}; there is place for "
                                  f"{shape.max_items - 1}", file=file.where, path="previous",
                                  offset=shape.slot_position(slot))
            out[written] = number
            written += 1
            number = previous[number]
        length[slot] = written - begin
        if written == most:
            break
    return length, order[:written]


def _all_previous(file: IndexFile) -> Array:
    """The link of every item there is place for (int32), also of those the header does not count:
    a damaged chain may lead to them. What is not in the file leads nowhere.
    """
    shape = file.shape
    previous: Array = np.zeros(shape.max_items, np.int32)
    for first in range(1, shape.max_items, _ITEMS_READ):
        count = min(_ITEMS_READ, shape.max_items - first)
        data = file.read(shape.item_position(first), count * fmt.ITEM.size)
        read = len(data) // fmt.ITEM.size
        previous[first:first + read] = np.frombuffer(data, fmt.ITEM.dtype(), read)["previous"]
    return previous
