"""Chains of an open index file, a block of items at a time (tiered.md §5.2).

Every item leads to the one before it in its slot. For a block that is its neighbour after a
stable sort by slot, and for the first of each slot what the slot led to before the block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

LOST_HASH = -(1 << 31)
"""The one hash code that negating leaves negative."""
_HALF = 16


class Links(NamedTuple):
    """The chains of a block.

    ``order``: places in the block by slot, then as they came; ``slot``: their slots in this order;
    ``first``: where in it each slot begins; ``touched``: the slots, ascending; ``fresh``: how many
    of them were empty; ``previous`` (int32): the item before each, in the order of the block.
    """

    order: Array
    slot: Array
    first: Array
    touched: Array
    fresh: int
    previous: Array


def slots_of(key_hash: Array, slots: int) -> Array:
    """The slot (int32) of each hash, as items that stand in a file have it."""
    found: Array = np.remainder(key_hash.astype(np.int32), np.int32(slots))
    return found


def has_slot(slots: int) -> bool:
    """Whether the hash -2^31 has a slot, as it does where the slots divide 2^31."""
    return (1 << 31) % slots == 0


def link(slot: Array, heads: Array, number: int) -> Links:
    """Links items ``number``, ``number + 1``, … of these slots (int32) behind the ``heads``.

    ``heads`` (int32, 0: empty) has one place for each slot of the file, and is brought up to date.
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
    known = heads[touched]
    before[first] = known
    previous: Array = np.empty(len(slot), np.int32)
    previous[order] = before
    last = np.append(first[1:], len(slot))[:len(first)] - 1
    heads[touched] = order[last] + number
    return Links(order, by_slot, first, touched, int((known == 0).sum()), previous)


def _order(slot: Array) -> Array:
    """A stable sort by slot: numpy sorts 16 bits by counting, so it is done half by half."""
    order: Array = np.argsort((slot & 0xFFFF).astype(np.uint16), kind="stable")
    high = (slot >> _HALF).astype(np.uint16)
    if high.any():
        order = order[np.argsort(high[order], kind="stable")]
    return order
