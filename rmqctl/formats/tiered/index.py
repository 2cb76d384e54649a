"""Index files of a tier: the open local form and the compacted, uploaded form (tiered.md §5, §16).

The two forms begin with the same header. The open form has 32-byte items that are chained from
their slots. In the compacted form, the items of a slot are together, newest first, without a chain.
5.1.x differs in a few details (see `OLD_SPARE`).

The *shape* of an open file, its numbers of slots and items, is not stored (§5.2). But the number of
slots determines the position of the newest item, and the hash of this item determines which slot
contains its number. Only the right number of slots fits. So the shape of a file with items can
always be determined. The shape of an empty file is known only with the default ratio of slots to
items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from construct import Int32sb, Int32ub, Int64sb, Struct

from rmqctl.errors import FormatError
from rmqctl.formats.fixed import Fixed
from rmqctl.formats.local import javahash

if TYPE_CHECKING:
    import numpy as np


Header = Struct(
    "magic" / Int32ub,
    "begin_timestamp" / Int64sb,
    "end_timestamp" / Int64sb,
    "slot_count" / Int32sb,
    "item_count" / Int32sb,
)

Slot = Struct("item" / Int32sb, "unused" / Int32sb)
"""A slot of the open form: the number of the newest item of its chain."""

Item = Struct(
    "key_hash" / Int32sb,
    "topic_id" / Int32sb,
    "queue_id" / Int32sb,
    "commit_log_offset" / Int64sb,
    "size" / Int32sb,
    "time_diff" / Int32sb,
    "previous" / Int32sb,
)

CompactedSlot = Struct("position" / Int32sb, "length" / Int32sb)
"""The position of a slot's items in this file, and their size in bytes."""

CompactedItem = Struct(*Item.subcons[:-1])


class HeaderRecord(NamedTuple):
    """The file header.

    ``begin_timestamp``: creation time of the file (its local name).
    ``slot_count``: number of used slots (5.1.x compacted: of all slots).
    """

    magic: int
    begin_timestamp: int
    end_timestamp: int
    slot_count: int
    item_count: int


class SlotRecord(NamedTuple):
    """The start of a chain; 0 or less for an empty slot."""

    item: int
    unused: int


class ItemRecord(NamedTuple):
    """An item. ``time_diff``: seconds after the header's begin time (5.1.x: ms); ``previous`` 0
    ends the chain.
    """

    key_hash: int
    topic_id: int
    queue_id: int
    commit_log_offset: int
    size: int
    time_diff: int
    previous: int


class CompactedSlotRecord(NamedTuple):
    """The position and length of a slot's items; ``length`` 0 for an empty slot."""

    position: int
    length: int


class CompactedItemRecord(NamedTuple):
    """An item of the compacted form, without a chain."""

    key_hash: int
    topic_id: int
    queue_id: int
    commit_log_offset: int
    size: int
    time_diff: int


HEADER = Fixed(Header, HeaderRecord)
SLOT = Fixed(Slot, SlotRecord)
ITEM = Fixed(Item, ItemRecord)
COMPACTED_SLOT = Fixed(CompactedSlot, CompactedSlotRecord)
COMPACTED_ITEM = Fixed(CompactedItem, CompactedItemRecord)

BEGIN_MAGIC = 0xBCC50289
END_MAGIC = 0xBCC50285
MAGICS = (BEGIN_MAGIC, END_MAGIC)
TAIL_SIZE = 4
"""5.1.x: size in bytes of the seal at the end of the file. In the compacted form, the seal is
BEGIN_MAGIC. In the open form, it is -1, or END_MAGIC once the file is sealed.
"""
OLD_SPARE = 12
"""5.1.x: number of unused bytes before the seal in the open form. A broker computes the file size
with a header of 40 bytes instead of 28; 40 bytes is the header size of another kind of file.
"""

MAX_SIZE = (1 << 31) - 1
"""Maximum size in bytes of a file that a broker can map; positions in it have 32 bits."""
DEFAULT_SLOTS = 5_000_000
DEFAULT_MAX_ITEMS = 20_000_000
MAX_CHAIN = 512
"""Maximum number of links that a broker follows in a chain of the open form."""
MAX_SLOT_ITEMS = 1024
"""Maximum number of items of a slot that a broker reads in the compacted form."""


class TieredIndexShape(NamedTuple):
    """The numbers of slots and items, which determine the layout of a file but are not stored in
    the file. ``old``: whether the file is from 5.1.x.

    Items of the open form are numbered from 1 (5.1.x: from 0). Since 5.2.0, number 0 is never used.
    """

    slots: int
    max_items: int
    old: bool = False

    @property
    def open_size(self) -> int:
        """Size in bytes of a file in the open form."""
        return self.item_position(self.max_items) + (OLD_SPARE + TAIL_SIZE if self.old else 0)

    @property
    def items_at(self) -> int:
        """Position of the first item, in either form."""
        return HEADER.size + self.slots * SLOT.size

    def slot_position(self, slot: int) -> int:
        return HEADER.size + slot * SLOT.size

    def item_position(self, number: int) -> int:
        """Return the position of item ``number`` of the open form."""
        return self.items_at + number * ITEM.size

    def compacted_size(self, items: int) -> int:
        """Return the size of the compacted form with this number of items."""
        if not items and not self.old:
            return 0
        return self.items_at + items * COMPACTED_ITEM.size + (TAIL_SIZE if self.old else 0)


DEFAULT_SHAPE = TieredIndexShape(DEFAULT_SLOTS, DEFAULT_MAX_ITEMS)


def compacted_shape(header: HeaderRecord, size: int, slots: int | None = None) -> TieredIndexShape:
    """Return the shape of a compacted file from its header and size.

    ``slots``: the configured number of slots, which the shape must then have.

    Raises: FormatError if no shape fits.
    """
    items = header.item_count
    room = size - HEADER.size - items * COMPACTED_ITEM.size
    if items >= 0:
        for old in (False, True):
            count, rest = divmod(room - (TAIL_SIZE if old else 0), SLOT.size)
            if rest or count <= 0:
                continue
            if old and count != header.slot_count:
                continue
            if slots is None or slots == count:
                return TieredIndexShape(count, max(items + 1, 1), old)
    raise FormatError(f"no index file with {items:,} items has {size:,} "
                      "bytes", offset=0, path="size")


def open_shape(size: int, slots: int | None = None,
               max_items: int | None = None) -> TieredIndexShape:
    """Return the shape of an open file of ``size`` bytes.

    If neither ``slots`` nor ``max_items`` is given, the ratio of a broker's defaults (1:4) is
    assumed.

    Raises: FormatError if the shape is unknown.
    """
    for old in (False, True):
        room = size - HEADER.size - (OLD_SPARE + TAIL_SIZE if old else 0)
        if slots is not None:
            rest, wrong = divmod(room - slots * SLOT.size, ITEM.size)
            if slots > 0 and rest > 0 and not wrong and max_items in (None, rest):
                return TieredIndexShape(slots, rest, old)
        elif max_items is not None:
            rest, wrong = divmod(room - max_items * ITEM.size, SLOT.size)
            if rest > 0 and not wrong:
                return TieredIndexShape(rest, max_items, old)
        else:
            count, wrong = divmod(room, SLOT.size + 4 * ITEM.size)
            if count > 0 and not wrong:
                return TieredIndexShape(count, 4 * count, old)
    raise FormatError(f"the number of hash slots of an open index file of {size:,} bytes is "
                      "unknown and must be given", offset=0, path="size")


def key_text(topic: str, key: str) -> str:
    """Return the text whose hash is stored for a key of a message."""
    return f"{topic}#{key}"


def key_hash(topic: str, key: str) -> int:
    """Return the hash that the item of a key contains: ``-hash`` if the hash is negative; -2^31
    stays unchanged.
    """
    value = javahash.string_hash(key_text(topic, key))
    return -value if -(1 << 31) < value < 0 else value


def masked_hash(topic: str, key: str) -> int:
    """Return the hash that newer brokers (after 5.3.3, PR #10471) use: the hash with a cleared sign
    bit.
    """
    return javahash.string_hash(key_text(topic, key)) & 0x7FFFFFFF


def both_hashes(topic: str, key: str) -> tuple[int, ...]:
    """Return the hashes that an item for a key may contain; the hash of 5.1 to 5.3.3
    comes first.
    """
    plain, other = key_hash(topic, key), masked_hash(topic, key)
    return (plain,) if plain == other else (plain, other)


NO_TOPIC = -1
"""The topic id of an item whose message was erased. No topic has this id, so no query returns the
item. The item's key hash is the number of its slot.
"""

ReadAt = Callable[[int, int], bytes]

_STEP = ITEM.size // SLOT.size
"""Number of slots that have the size of one item."""
_BLOCK = 1 << 22
_SEALS = (b"\xff\xff\xff\xff", END_MAGIC.to_bytes(4, "big"))


def open_shape_of(read: ReadAt, size: int, header: HeaderRecord, slots: int | None = None,
                  max_items: int | None = None) -> TieredIndexShape:
    """Return the shape of an open file of ``size`` bytes: from the configured numbers, if given, or
    from the content of the file.

    Raises: FormatError if the shape is unknown.
    """
    if size > MAX_SIZE:
        raise FormatError(f"no open index file has {size:,} bytes", offset=0, path="size")
    if slots is not None:
        return open_shape(size, slots, max_items)
    old = read(size - TAIL_SIZE, TAIL_SIZE) in _SEALS
    if max_items is not None:
        given = _shape(_room(size, old) - max_items * _STEP, max_items, old)
        return given or open_shape(size, None, max_items)
    count, rest = divmod(_room(size, old), 1 + 4 * _STEP)
    usual = None if rest else _shape(count, 4 * count, old)
    if usual is not None and (header.item_count == 0 or _fits(read, usual, header)):
        return usual
    fitting = [shape for shape in _fitting(read, size, header, old=old)
               if _fits(read, shape, header)]
    if len(fitting) > 1:
        fitting = [shape for shape in fitting if _used(read, shape) == header.slot_count]
    if len(fitting) == 1:
        return fitting[0]
    if usual is not None:
        return usual
    raise FormatError(f"the number of hash slots of an open index file of {size:,} bytes is "
                      "unknown and must be given", offset=0, path="size")


def _room(size: int, old: bool) -> int:
    """Return the number of slots that a file of this size would have if it contained no items; 0 if
    the size does not fit a whole number of slots.
    """
    spare = OLD_SPARE + TAIL_SIZE if old else 0
    room, rest = divmod(size - HEADER.size - spare, SLOT.size)
    return 0 if rest else room


def _shape(slots: int, max_items: int, old: bool) -> TieredIndexShape | None:
    return TieredIndexShape(slots, max_items, old) if slots > 0 and max_items > 0 else None


def _newest(header: HeaderRecord, old: bool) -> int:
    return header.item_count - 1 if old else header.item_count


def _fits(read: ReadAt, shape: TieredIndexShape, header: HeaderRecord) -> bool:
    """Return whether the newest items are where the shape expects them, and their slots point to
    them.
    """
    newest = _newest(header, shape.old)
    first = 0 if shape.old else 1
    if header.item_count > shape.max_items:
        return False
    for number in range(newest, max(first, newest - 7) - 1, -1):
        raw = read(shape.item_position(number), ITEM.size)
        if len(raw) < ITEM.size:
            return False
        item = ITEM.decode(raw)
        head = SLOT.decode(read(shape.slot_position(item.key_hash % shape.slots),
                                    SLOT.size)).item
        if not number <= head <= newest or item.size <= 0 or item.previous >= number:
            return False
    return True


def _used(read: ReadAt, shape: TieredIndexShape) -> int:
    """Return the number of slots with items."""
    return sum(int((heads["item"] > 0).sum())
               for _, heads in _units(read, SLOT, HEADER.size, shape.slots))


def _fitting(read: ReadAt, size: int, header: HeaderRecord, *,
             old: bool) -> Iterator[TieredIndexShape]:
    """Yield the shapes with which the slot for the newest item's hash contains that
    item's number.
    """
    import numpy as np

    room, newest = _room(size, old), _newest(header, old)
    most = room - _STEP * (header.item_count + (0 if old else 1))
    if header.item_count <= 0 or most <= 0:
        return
    heads: list[Any] = []
    for first, units in _units(read, SLOT, HEADER.size, most):
        heads.append(first + np.flatnonzero(units["item"] == newest))
    leading = np.concatenate(heads)
    least = room % _STEP
    start = HEADER.size + least * SLOT.size + newest * ITEM.size
    for first, units in _units(read, ITEM, start, (most - least) // _STEP + 1):
        slots = least + _STEP * (first + np.arange(len(units)))
        good = np.flatnonzero((units["size"] > 0) & (slots > 0))
        slots, hashes = slots[good], units["key_hash"][good].astype(np.int64)
        for slot_count in slots[np.isin(hashes % slots, leading)].tolist():
            yield TieredIndexShape(slot_count, (room - slot_count) // _STEP, old)


def _units(read: ReadAt, unit: Any, start: int, count: int) -> Iterator[
        tuple[int, np.ndarray[Any, Any]]]:
    """Yield (index of the first unit, units) in blocks, up to ``count`` units in total."""
    import numpy as np

    at_once = _BLOCK // unit.size
    for first in range(0, count, at_once):
        data = read(start + first * unit.size, min(at_once, count - first) * unit.size)
        units = np.frombuffer(data, unit.dtype(), len(data) // unit.size)
        if not len(units):
            return
        yield first, units
