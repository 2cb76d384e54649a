"""Check the structure of a tier's index file: header, slots, items, chains (tiered.md §5, §17.3 I).

A file is read once, in blocks. `tiered.verify.items` checks the targets of the items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.common import plural
from rmqctl.ext.tiered.index.index_file import BLOCK_ITEMS, COMPACTED, EMPTY, TierIndexFile
from rmqctl.ext.tiered.verify.context import INDEX
from rmqctl.formats.tiered import index as fmt
from rmqctl.parse_values import time_text
from rmqctl.scan.frames import Array

Take = Callable[[int, Array], None]
"""A function that receives a block of items: the number of the first item, and the items as a
structured array.
"""
MAX_SLOTS = 1 << 28
_BLOCK_SLOTS = 1 << 18
_NEAR = 1 << 20
_I32 = np.iinfo(np.int32)
_YEAR_3000 = 32_503_680_000_000


class ItemTimes:
    """The least and greatest time difference of the items of a file."""

    def __init__(self) -> None:
        self.least, self.most = _I32.max, _I32.min
        self.items = 0

    def take(self, items: Array) -> None:
        diffs = items["time_diff"]
        self.items += len(items)
        self.least = min(self.least, int(diffs.min()))
        self.most = max(self.most, int(diffs.max()))

    def newest(self, file: TierIndexFile) -> tuple[int, int]:
        """Return the least and greatest possible store time (ms) of the newest item."""
        step = 1 if file.shape.old else 1000
        newest = file.header.begin_timestamp + self.most * step
        # Differences are truncated towards zero.
        return (newest - (step - 1 if self.most <= 0 else 0),
                newest + (step - 1 if self.most >= 0 else 0))


def check(file: TierIndexFile, take: Take, times: ItemTimes) -> Iterator[Finding]:
    """Yield findings about a file; call ``take`` with every block of items.
    Raises: StoreIOError, FormatError.
    """
    if file.form == EMPTY and file.status == "UNSEALED":
        yield note(file, "file-empty", "empty open index file: its items are lost")
        return
    if file.form == EMPTY:
        yield note(file, "tiered-oddity", "has no items: an idle broker uploads such a file when "
                   "it stops")
        return
    if file.shape.slots > MAX_SLOTS:
        yield note(file, "tiered-index-header", f"{file.shape.slots} slots: implausibly many")
        return
    if file.form == COMPACTED:
        yield from _header(file)
        yield from _slots(file)
        yield from _compacted_items(file, take, times)
    else:
        yield from _open(file, take, times)
    yield from _end_time(file, times)


def note(file: TierIndexFile, category: str, detail: str, position: int | None = None,
         **more: Any) -> Finding:
    """Return a finding about an index file."""
    return Finding(category, INDEX, detail, file.where, position, **more)


def _header(file: TierIndexFile) -> Iterator[Finding]:
    header, shape = file.header, file.shape
    if header.magic != fmt.END_MAGIC:
        yield note(file, "tiered-index-header", "compacted, but has the magic of an open file",
                   0, length=4)
    tail = file.read(file.size - fmt.TAIL_SIZE, fmt.TAIL_SIZE)
    if shape.old and tail != fmt.BEGIN_MAGIC.to_bytes(fmt.TAIL_SIZE, "big"):
        yield note(file, "tiered-index-header", "the end mark after the items is not the value "
                   "that 5.1 writes", file.size - fmt.TAIL_SIZE, length=fmt.TAIL_SIZE)


def _slots(file: TierIndexFile) -> Iterator[Finding]:
    """Check the slots of the compacted form: the item ranges of the slots must be contiguous."""
    shape, unit = file.shape, fmt.COMPACTED_SLOT
    expected, used = shape.items_at, 0
    end = shape.items_at + file.items * fmt.COMPACTED_ITEM.size
    for first in range(0, shape.slots, _BLOCK_SLOTS):
        count = min(_BLOCK_SLOTS, shape.slots - first)
        data = file.read(shape.slot_position(first), count * unit.size)
        slots = unit.array(data)
        length = slots["length"].astype(np.int64)
        position = slots["position"].astype(np.int64)
        filled = length != 0
        # A slot that exceeds the end must not shift the following slots.
        wrong = ((length < 0) | (length % fmt.COMPACTED_ITEM.size != 0)
                 | (length > end - shape.items_at)
                 | ((position <= end) & (position + length > end)))
        begin = expected + np.concatenate([[0], np.cumsum(np.where(wrong, 0, length))])
        # Compare a slot's own position only, without the effect of wrong lengths before it.
        off = ~wrong & (position != begin[:-1]) & ~(shape.old & ~filled & (position == 0))
        if (wrong | off).any():
            yield from _wrong_slots(file, first, length, position, begin, wrong, off)
        used += int((filled & ~wrong).sum())
        follows = filled & ~wrong
        expected = int(position[follows][-1] + length[follows][-1]) if follows.any() and (
            off.any() or wrong.any()) else int(begin[-1])
        if len(slots) < count:
            yield note(file, "tiered-index-slot", "the file ends in the middle of its slots",
                                                  file.size)
            return
    if expected != end:
        yield note(file, "tiered-index-slot", f"slots end at {expected}, items at {end}",
                   shape.items_at)
    if not shape.old and used != file.header.slot_count:
        yield note(file, "tiered-index-header", f"slot count is {file.header.slot_count}, but "
                   f"{used} are used", fmt.HEADER.field("slot_count").offset, length=4)


def _wrong_slots(file: TierIndexFile, first: int, length: Array, position: Array, begin: Array,
                 wrong: Array, off: Array) -> Iterator[Finding]:
    follows = 0
    for slot in np.flatnonzero(wrong | off).tolist():
        place = file.shape.slot_position(first + slot)
        if wrong[slot]:
            yield note(file, "tiered-index-slot", f"slot {first + slot}: invalid length of items: "
                       f"{int(length[slot])} bytes", place, length=8)
            # After a wrong length all positions are off by the same amount.
            rest = position[slot + 1:] - begin[slot + 1:-1]
            follows = int(rest[0]) if len(rest) else 0
        elif int(position[slot] - begin[slot]) != follows:
            yield note(file, "tiered-index-slot", f"slot {first + slot}: items at "
                       f"{int(position[slot])}, expected at {int(begin[slot]) + follows}", place,
                       length=8)
            shift = int(position[slot] - begin[slot])
            if slot + 1 < len(position) and int(position[slot + 1] - begin[slot + 1]) == shift:
                follows = shift  # a length before it is wrong, not all positions after it


def _compacted_items(file: TierIndexFile, take: Take, times: ItemTimes) -> Iterator[Finding]:
    """Check the items of the compacted form: each must be in the range of its hash's slot."""
    unit, slots = fmt.COMPACTED_ITEM, file.shape.slots
    seen = 0
    for first, items in file.blocks():
        take(first, items)
        times.take(items)
        seen += len(items)
        hashed = items["key_hash"].astype(np.int64)
        own = hashed % slots
        position, length = _slot_places(file, own)
        item_position = file.shape.items_at + (first + np.arange(len(items))) * unit.size
        negative = (hashed < 0) & ~_lowest(hashed, slots)
        bad = negative | (item_position < position) | (item_position >= position + length)
        for item in np.flatnonzero(bad).tolist():
            reason = (f"not among the items of the slot of its hash {int(hashed[item])}"
                      if not negative[item] else f"negative key hash: {int(hashed[item])}")
            yield note(file, "tiered-index-hash", f"item {first + item}: {reason}",
                       int(item_position[item]),
                       length=unit.size)
    if seen < file.items:
        yield note(file, "tiered-index-header", f"item count is {file.items}, but there are {seen}",
                   fmt.HEADER.field("item_count").offset, length=4)


def _lowest(hashed: Array, slots: int) -> Array:
    """Return a boolean array: True for the hash -2^31 if this hash has a slot. A broker cannot
    negate this hash.
    """
    mask: Array = (hashed == _I32.min) & (hashed % slots == 0)
    return mask


def _slot_places(file: TierIndexFile, own: Array) -> tuple[Array, Array]:
    """Return the positions and the lengths in bytes of the slots' item ranges. Nearby slots are
    read together.
    """
    unit = fmt.COMPACTED_SLOT
    least, most = int(own.min()), int(own.max())
    if most - least <= _NEAR:
        data = file.read(file.shape.slot_position(least), (most - least + 1) * unit.size)
        table = unit.array(data)
        picked = table[np.minimum(own - least, len(table) - 1)]
    else:
        distinct, back = np.unique(own, return_inverse=True)
        data = b"".join(file.read(file.shape.slot_position(slot), unit.size).ljust(unit.size, b"\0")
                        for slot in distinct.tolist())
        picked = unit.array(data)[back]
    return picked["position"].astype(np.int64), picked["length"].astype(np.int64)


def _open(file: TierIndexFile, take: Take, times: ItemTimes) -> Iterator[Finding]:
    """Check the open form: each item must point to the previous item of its slot, and each slot
    must point to its newest item.
    """
    shape, header = file.shape, file.header
    none = -1 if shape.old else 0
    full = header.item_count + 1 == shape.max_items
    if not shape.old and (header.magic == fmt.END_MAGIC) != full:
        yield note(file, "tiered-index-header", f"{plural(header.item_count, 'item')} of "
                   f"{shape.max_items}, but the magic marks {'an open' if full else 'a full'} file",
                   0,
                   length=4)
    last: Array = np.full(shape.slots, none, np.int32)
    seen = 0
    for first, items in file.blocks():
        take(first, items)
        times.take(items)
        seen += len(items)
        yield from _links(file, first, items, last)
    if seen < file.items:
        yield note(file, "tiered-index-header", f"item count is {file.items}, but only {seen} fit",
                                                fmt.HEADER.field("item_count").offset, length=4)
    used = int((last != none).sum())
    if not shape.old and used != header.slot_count:
        yield note(file, "tiered-index-header", f"slot count is {header.slot_count}, but {used} "
                   "are used", fmt.HEADER.field("slot_count").offset, length=4)
    yield from _heads(file, last)


def _links(file: TierIndexFile, first: int, items: Array, last: Array) -> Iterator[Finding]:
    hashed = items["key_hash"].astype(np.int64)
    negative = (hashed < 0) & ~_lowest(hashed, file.shape.slots)
    good = np.flatnonzero(~negative)
    previous = items["previous"].astype(np.int64)
    for row in np.flatnonzero(negative).tolist():
        yield note(file, "tiered-index-hash", f"item {first + row}: negative key hash: "
                   f"{int(hashed[row])}", file.shape.item_position(first + row),
                   length=fmt.ITEM.size)
    slot = hashed[good] % file.shape.slots
    order = np.argsort(slot, kind="stable")
    slot, rows = slot[order], good[order]
    wanted = np.empty(len(rows), np.int64)
    head = np.ones(len(rows), bool)
    head[1:] = slot[1:] != slot[:-1]
    wanted[head] = last[slot[head]]
    wanted[1:][~head[1:]] = first + rows[:-1][~head[1:]]
    tail = np.append(head[1:], True) if len(rows) else head
    last[slot[tail]] = first + rows[tail]
    leads_to = previous[rows]
    bad = leads_to != wanted
    for row in np.sort(rows[bad])[:BLOCK_ITEMS].tolist():
        should = int(wanted[rows == row][0])
        yield note(file, "tiered-index-chain", f"item {first + row} points to "
                   f"{int(previous[row])}, the previous item in its slot is {should}",
                   file.shape.item_position(first + row), length=fmt.ITEM.size)


def _heads(file: TierIndexFile, last: Array) -> Iterator[Finding]:
    unit = fmt.SLOT
    for first in range(0, file.shape.slots, _BLOCK_SLOTS):
        count = min(_BLOCK_SLOTS, file.shape.slots - first)
        data = file.read(file.shape.slot_position(first), count * unit.size)
        heads = unit.array(data)
        heads_lead_to = heads["item"].astype(np.int64)
        wrong = heads_lead_to != last[first:first + len(heads)]
        spare = heads["unused"] != 0
        for slot in np.flatnonzero(wrong | spare).tolist():
            place = file.shape.slot_position(first + slot)
            detail = (f"points to item {int(heads['item'][slot])}, its newest is "
                      f"{int(last[first + slot])}" if wrong[slot] else "contains data, but no item "
                                                                       "uses it")
            yield note(file, "tiered-index-slot", f"slot {first + slot} {detail}", place, length=8)
        if len(heads) < count:
            yield note(file, "tiered-index-slot", "the file ends in the middle of its slots",
                                                  file.size)
            return


def _end_time(file: TierIndexFile, times: ItemTimes) -> Iterator[Finding]:
    """Compare the header's end time with the newest item. A broker that reopens a file loses the
    header's end time.
    """
    if not times.items or times.items < file.items:
        return
    begin, end = file.header.begin_timestamp, file.header.end_timestamp
    low, high = times.newest(file)
    if times.most - times.least > _I32.max // 2 or end in (begin, begin + times.most):
        return  # times of IPv6 hosts, a file reopened since, or milliseconds
    if end > _YEAR_3000:
        yield note(file, "tiered-oddity", f"invalid header end time {end}: a broker read an IPv6 "
                   "host as the store time", fmt.HEADER.field("end_timestamp").offset, length=8)
    elif end > high:
        yield note(file, "tiered-index-header", f"header end time {time_text(end)} is after "
                   f"the newest item {time_text(high)}", fmt.HEADER.field("end_timestamp").offset,
                   length=8)
    elif end < low:
        yield note(file, "tiered-oddity", f"header end time {time_text(end)} is before "
                   f"the newest item {time_text(low)}",
                   fmt.HEADER.field("end_timestamp").offset, length=8)
