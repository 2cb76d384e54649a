"""The chains of an open index file: what leads where, proven for all items at once (§5.2, §5.3).

An item's *pair* is its slot and, below it, its depth in the slot: 1 for the oldest item. Where the
links are what putting items makes them the pairs follow from them in one pass; otherwise from the
items' hashes, whatever the links are. Only a file that is to be rearranged as a broker does it,
broken chains and all, is followed link by link.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rmqctl.errors import FormatError
from rmqctl.formats.tiered import index as fmt
from rmqctl.tiered.index.index_file import IndexFile
from rmqctl.tiered.index.links import link, slots_of

Array = np.ndarray[Any, np.dtype[Any]]

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
        heads[first:first + count] = np.frombuffer(data, fmt.SLOT.dtype())["item"]
    return np.maximum(heads, 0, out=heads)


def blocks_of(file: IndexFile) -> Iterator[tuple[int, Array]]:
    """All items by blocks. FormatError where some are not there."""
    expected = 1
    for number, found in file.blocks():
        yield number, found
        expected = number + len(found)
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
    for number, found in blocks_of(file):
        previous = found["previous"].astype(np.intp)
        end = number + len(found)
        if (previous < 0).any() or (previous >= np.arange(number, end)).any():
            return None
        own = slots_of(found["key_hash"], slots).astype(np.int64) << _PAIR
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


def _settled(pair: Array, here: Array, previous: Array) -> bool:
    """Brings the depths of items up to date whose links lead into their own block."""
    for _ in range(_DEEPEST):
        more = (pair[previous] & _DEPTH) + 1 - (pair[here] & _DEPTH)
        if not more.any():
            return True
        pair[here] += more
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
    for number, found in blocks_of(file):
        links = link(slots_of(found["key_hash"], slots), newest, number)
        sound = sound and bool((links.previous == np.maximum(found["previous"], 0)).all())
        length = np.diff(np.append(links.first, len(found)))
        depth = np.arange(1, len(found) + 1) - np.repeat(links.first - counts[links.touched],
                                                         length)
        pair[number - 1 + links.order] = links.slot.astype(np.int64) << _PAIR | depth
        counts[links.touched] += length.astype(np.int32)
    return counts, pair, sound and bool((newest == heads).all())


def places(counts: Array, pair: Array) -> Array:
    """The place of each item in the result (int32): in its slot the newest comes first."""
    end = np.cumsum(counts, dtype=np.int32)
    place: Array = np.empty(len(pair), np.int32)
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
    found: Array = np.zeros(shape.max_items, np.int32)
    for first in range(1, shape.max_items, _ITEMS_READ):
        count = min(_ITEMS_READ, shape.max_items - first)
        data = file.read(shape.item_position(first), count * fmt.ITEM.size)
        there = len(data) // fmt.ITEM.size
        found[first:first + there] = np.frombuffer(data, fmt.ITEM.dtype(), there)["previous"]
    return found
