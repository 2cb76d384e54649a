"""Add items durably to an index file in the open form (tiered.md §5.2).

Items belong to the file only after the next `commit`. A commit writes the items, then the header
with the number of items, then the slots that point to the new items. Each step is flushed before
the next. If the process is killed in between, only links to the last items can be missing. Opening
the file repairs these links.

Every item points to the previous item of its slot. `link` sorts a block stably by slot: in the
sorted block, each item directly follows the previous item of its slot. The first item of each slot
in the block points to the slot's former newest item.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rmqctl.errors import FormatError, RefusedError
from rmqctl.files import durable
from rmqctl.formats.tiered import index as fmt
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource

LOST_HASH = -(1 << 31)
"""The only hash code whose negation is still negative."""
_HALF = 16
BLOCK = 1 << 17
"""Number of items read at a time."""
MAX_PENDING = 1 << 20
"""Maximum number of items in a commit. When a file is opened, this number of items at its end is
checked.
"""
_KEPT = 1 << 17
"""Maximum number of items kept in memory (4 MiB). If there are more, they are written before the
next commit.
"""
_PAGE = 512
"""Number of slots in a page (4 KiB), which is written as a unit."""
_BRIDGED = 8
"""Maximum number of clean pages between two dirty pages that are written in the same call."""
_WRITTEN = 1 << 17
"""Maximum number of slots written by one call (1 MiB)."""


class OpenIndexFile:
    """The file at ``path``, named after its ``timestamp``. A missing file is created.

    ``items``, ``used`` (slots) and ``end_timestamp`` include pending items. When the file is
    opened, missing links to items are repaired. The end time of a new file is 0, as in a broker's
    file. The end time of an existing file is read at byte 12. A broker reads byte 4 and so loses
    the end time.
    Raises: RefusedError if the file is not an index file of this shape.
    """

    def __init__(self, path: str, timestamp: int, shape: fmt.TieredIndexShape) -> None:
        if shape.old:
            raise RefusedError(f"{path}: only the open format of 5.2.0 and newer can be written")
        if shape.open_size > fmt.MAX_SIZE:
            raise RefusedError(f"{path}: with {shape.slots} slots and {shape.max_items} items it "
                               "would be larger than a broker can map (2 GiB)")
        self.path, self.timestamp, self.shape = path, timestamp, shape
        self.items = self.used = self.end_timestamp = 0
        self._heads: Array = np.zeros(shape.slots, np.int32)
        self._dirty: Array = np.zeros(-(-shape.slots // _PAGE), bool)
        self._pending: list[tuple[int, Array]] = []
        self._waiting = 0
        self._changed = False
        self._fd = durable.open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    # -- opening ----------------------------------------------------------------------------------

    def _open(self) -> None:
        size = os.fstat(self._fd).st_size
        if not size:
            try:
                os.ftruncate(self._fd, self.shape.open_size)
            except OSError as error:
                raise durable.failed(error, self.path, "make") from None
            self._write_header()
            durable.sync(self._fd, self.path, whole=True)
            durable.sync_folder(os.path.dirname(self.path))
            return
        if size != self.shape.open_size:
            raise RefusedError(f"{self.path}: has {size} bytes, expected {self.shape.open_size} "
                               f"for {self.shape.slots} slots and {self.shape.max_items} items "
                               "(pass the numbers it was created with: --index-slots, --index-max)")
        with FileSource(self.path) as source:
            self._load(source)
            if not self._is_sound(source):
                self._repair(source)

    def _load(self, source: FileSource) -> None:
        header = fmt.HEADER.decode(source.read(0, fmt.HEADER.size))
        if header.magic and header.magic not in fmt.MAGICS:
            raise RefusedError(f"{self.path}: not an index file: its magic is {header.magic:08x}")
        if not 0 <= header.item_count < self.shape.max_items:
            raise RefusedError(f"{self.path}: item count is {header.item_count}, but only "
                               f"{self.shape.max_items - 1} fit")
        self.items, self.end_timestamp = header.item_count, max(header.end_timestamp, 0)
        for first in range(0, self.shape.slots, _WRITTEN):
            count = min(_WRITTEN, self.shape.slots - first)
            data = _whole(source, self.shape.slot_position(first), count * fmt.SLOT.size)
            self._heads[first:first + count] = fmt.SLOT.array(data)["item"]
        np.maximum(self._heads, 0, out=self._heads)
        self.used = int(np.count_nonzero(self._heads))
        self._changed = header.magic == 0 or self.used != header.slot_count

    def _is_sound(self, source: FileSource) -> bool:
        """Return whether slots and chains contain all items that the last commit may have added."""
        newest = int(self._heads.max(initial=0))
        if newest != self.items:
            return False
        start = max(1, self.items + 1 - MAX_PENDING)
        heads = np.zeros_like(self._heads)
        for number, items in self._read(source, start):
            slot = slots_of(items["key_hash"], self.shape.slots)
            previous = link(slot, heads, number).previous
            has_previous = previous > 0
            stands = items["previous"]
            if ((stands != previous) & has_previous).any() or (
                    stands[~has_previous] >= start).any():
                return False
        in_use = heads > 0
        return bool((heads[in_use] == self._heads[in_use]).all()
                    and (self._heads[~in_use] < start).all())

    def _repair(self, source: FileSource) -> None:
        """Rebuild all links between items; the content of the items is valid."""
        before, heads = self._heads.copy(), self._heads
        heads[:] = 0
        written = False
        for number, items in self._read(source, 1):
            previous = link(slots_of(items["key_hash"], self.shape.slots), heads, number).previous
            if (items["previous"] != previous).any():
                linked = items.copy()
                linked["previous"] = previous
                durable.write_all(self._fd, raw(linked), self.shape.item_position(number),
                                  self.path)
                written = True
        if written:
            durable.sync(self._fd, self.path)
        self._replace_heads(before)
        self.commit()

    def _replace_heads(self, before: Array) -> None:
        self.used = int(np.count_nonzero(self._heads))
        # The values on disk may differ from both where they are negative, which is harmless.
        self._dirty[np.flatnonzero(before != self._heads) // _PAGE] = True
        self._changed = True

    def _read(self, source: FileSource, start: int,
              end: int | None = None) -> Iterator[tuple[int, Array]]:
        last = self.items if end is None else end
        for number in range(start, last + 1, BLOCK):
            count = min(BLOCK, last + 1 - number)
            data = _whole(source, self.shape.item_position(number), count * fmt.ITEM.size)
            yield number, fmt.ITEM.array(data)

    # -- putting ----------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Number of items that still fit."""
        return self.shape.max_items - 1 - self.items

    def put(self, rows: Array, latest: int) -> None:
        """Add items (`rmqctl.formats.tiered.index.Item`, in order), and set their ``previous``.

        ``latest``: the largest store time of their messages.
        Raises: StoreIOError from an automatic commit.
        """
        for start in range(0, len(rows), MAX_PENDING):
            part = rows[start:start + MAX_PENDING]
            if self._waiting + len(part) > MAX_PENDING:
                self.commit()
            self._add(part, latest)

    def _add(self, rows: Array, latest: int) -> None:
        number = self.items + 1
        links = link(slots_of(rows["key_hash"], self.shape.slots), self._heads, number)
        rows["previous"] = links.previous
        self._dirty[links.touched // _PAGE] = True
        self.used += links.fresh
        self.items += len(rows)
        self.end_timestamp = max(self.end_timestamp, latest)
        self._pending.append((number, rows))
        self._waiting += len(rows)
        self._changed = True
        if sum(len(rows) for _, rows in self._pending) >= _KEPT:
            self._write_items()

    def commit(self) -> None:
        """Commit all items. Raises: StoreIOError; the commit can then be repeated."""
        if not self._changed:
            return
        self._write_items()
        if self._waiting:
            durable.sync(self._fd, self.path)
        self._write_header()
        durable.sync(self._fd, self.path)
        if self._dirty.any():
            self._write_slots()
            durable.sync(self._fd, self.path)
        self._waiting, self._changed = 0, False
        self._dirty[:] = False

    def _write_items(self) -> None:
        """Write the pending items after the committed items. The header does not count them yet."""
        while self._pending:
            number, rows = self._pending[0]
            durable.write_all(self._fd, raw(rows), self.shape.item_position(number), self.path)
            del self._pending[0]

    def _write_header(self) -> None:
        magic = (fmt.END_MAGIC if self.items + 1 == self.shape.max_items else fmt.BEGIN_MAGIC)
        header = fmt.HeaderRecord(magic, self.timestamp, self.end_timestamp, self.used, self.items)
        durable.write_all(self._fd, fmt.HEADER.build(header), 0, self.path)

    def _write_slots(self) -> None:
        pages = np.flatnonzero(self._dirty)
        edges = np.flatnonzero(np.diff(pages) > _BRIDGED)
        starts = pages[np.concatenate([[0], edges + 1])] * _PAGE
        ends = np.minimum((pages[np.append(edges, len(pages) - 1)] + 1) * _PAGE, self.shape.slots)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            for first in range(start, end, _WRITTEN):
                part: Array = np.zeros(min(_WRITTEN, end - first), fmt.SLOT.dtype())
                part["item"] = self._heads[first:first + len(part)]
                durable.write_all(self._fd, raw(part),
                                  self.shape.slot_position(first), self.path)

    def rewind(self, items: int) -> None:
        """Remove all items after item number ``items``, immediately and durably.

        The new end time is the latest time that fits the remaining items. Item times are in
        seconds.
        Raises: StoreIOError; ValueError if fewer items are committed.
        """
        if not 0 <= items <= self.items:
            raise ValueError(f"{items} of {self.items} items cannot be kept")
        self._pending, self._waiting = [], 0
        before = self._heads.copy()
        self._heads[:] = 0
        most = None
        with FileSource(self.path) as source:
            for number, block in self._read(source, 1, items):
                newest = int(block["time_diff"].max())
                most = newest if most is None else max(most, newest)
                slot = slots_of(block["key_hash"], self.shape.slots)
                # If several values go to the same place, the last one stays, which is the newest.
                self._heads[slot] = np.arange(number, number + len(block), dtype=np.int32)
        self.items = items
        if most is None:
            self.end_timestamp = 0
        else:
            latest = self.timestamp + most * 1000 + (999 if most >= 0 else 0)
            self.end_timestamp = min(self.end_timestamp, latest)
        self._replace_heads(before)
        self.commit()

    def close(self) -> None:
        """Close the file; uncommitted items are lost."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)
            self._heads = self._heads[:0].copy()  # free the memory, 4 bytes per slot


def raw(rows: Array) -> memoryview:
    """Return the bytes of a contiguous array without a copy."""
    return memoryview(rows.view(np.uint8).data)


def _whole(source: FileSource, position: int, length: int) -> bytes:
    data = source.read(position, length)
    if len(data) != length:
        raise FormatError("the file ends here", file=source.name, offset=position + len(data))
    return data


# -- chains, a block of items at a time -----------------------------------------------------------

class Links(NamedTuple):
    """The chains of a block of items.

    ``order``: positions of the items in the block, sorted by slot, then by arrival.
    ``slot``: the items' slots in this order.
    ``first``: index in ``order`` of the first item of each slot.
    ``touched``: the slots of the block, ascending.
    ``fresh``: number of slots that were empty.
    ``previous`` (int32): for each item of the block, the previous item of its slot.
    """

    order: Array
    slot: Array
    first: Array
    touched: Array
    fresh: int
    previous: Array


def slots_of(key_hash: Array, slots: int) -> Array:
    """Return the slots (int32) of the hashes in items."""
    slot: Array = np.remainder(key_hash.astype(np.int32), np.int32(slots))
    return slot


def has_slot(slots: int) -> bool:
    """Return whether the hash -2^31 has a slot: true only if ``slots`` divides 2^31."""
    return (1 << 31) % slots == 0


def link(slot: Array, heads: Array, number: int) -> Links:
    """Link new items to the previous items of their slots.

    ``slot`` (int32): slot of each new item.
    ``heads`` (int32): newest item of each slot of the file, 0 for an empty slot. This array is
    updated.
    ``number``: number of the first new item.
    """
    order = _order(slot)
    by_slot = slot[order]
    begins: Array = np.ones(len(slot), bool)
    np.not_equal(by_slot[1:], by_slot[:-1], out=begins[1:])
    first = np.flatnonzero(begins)
    touched = by_slot[first]
    before: Array = np.empty(len(slot), np.int32)
    before[1:] = order[:-1]
    before += np.int32(number)
    old_heads = heads[touched]
    before[first] = old_heads
    previous: Array = np.empty(len(slot), np.int32)
    previous[order] = before
    last = np.append(first[1:], len(slot))[:len(first)] - 1
    heads[touched] = order[last] + number
    return Links(order, by_slot, first, touched, int((old_heads == 0).sum()), previous)


def _order(slot: Array) -> Array:
    """Return the order of a stable sort by slot. First the low, then the high 16 bits are sorted,
    because numpy has a fast radix sort for 16-bit numbers.
    """
    order: Array = np.argsort((slot & 0xFFFF).astype(np.uint16), kind="stable")
    high = (slot >> _HALF).astype(np.uint16)
    if high.any():
        order = order[np.argsort(high[order], kind="stable")]
    return order
