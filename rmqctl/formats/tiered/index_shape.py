"""The shape of an open index file, which is not stored in it, from what it holds (tiered.md §5.2).

The number of slots decides where the newest item lies, and its hash in which slot its number
stands: only the right number fits. So a file with items tells its shape, one without only if it
has the default ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rmqctl.errors import FormatError
from rmqctl.formats.tiered import index as fmt

if TYPE_CHECKING:
    import numpy as np

ReadAt = Callable[[int, int], bytes]

_STEP = fmt.ITEM.size // fmt.SLOT.size
"""An item takes the place of so many slots."""
_BLOCK = 1 << 22
_SEALS = (b"\xff\xff\xff\xff", fmt.END_MAGIC.to_bytes(4, "big"))


def open_shape_of(read: ReadAt, size: int, header: fmt.HeaderRecord, slots: int | None = None,
                  max_items: int | None = None) -> fmt.Shape:
    """The shape of an open file of ``size`` bytes, by what is configured or else by its content.

    FormatError where it cannot be told.
    """
    if size > fmt.MAX_SIZE:
        raise FormatError(f"no open index file has {size} bytes", offset=0, path="size")
    if slots is not None:
        return fmt.open_shape(size, slots, max_items)
    old = read(size - fmt.TAIL_SIZE, fmt.TAIL_SIZE) in _SEALS
    if max_items is not None:
        given = _shape(_room(size, old) - max_items * _STEP, max_items, old)
        return given or fmt.open_shape(size, None, max_items)
    count, rest = divmod(_room(size, old), 1 + 4 * _STEP)
    usual = None if rest else _shape(count, 4 * count, old)
    if usual is not None and (header.item_count == 0 or _fits(read, usual, header)):
        return usual
    found = [one for one in _fitting(read, size, header, old=old) if _fits(read, one, header)]
    if len(found) > 1:
        found = [one for one in found if _used(read, one) == header.slot_count]
    if len(found) == 1:
        return found[0]
    if usual is not None:
        return usual
    raise FormatError(f"the number of hash slots of an open index file of {size} bytes is not to "
                      "be told from it and must be given", offset=0, path="size")


def _room(size: int, old: bool) -> int:
    """How many slots would fill the file; 0 where that is no whole number."""
    spare = fmt.OLD_SPARE + fmt.TAIL_SIZE if old else 0
    room, rest = divmod(size - fmt.HEADER.size - spare, fmt.SLOT.size)
    return 0 if rest else room


def _shape(slots: int, max_items: int, old: bool) -> fmt.Shape | None:
    return fmt.Shape(slots, max_items, old) if slots > 0 and max_items > 0 else None


def _newest(header: fmt.HeaderRecord, old: bool) -> int:
    return header.item_count - 1 if old else header.item_count


def _fits(read: ReadAt, shape: fmt.Shape, header: fmt.HeaderRecord) -> bool:
    """Whether the newest items lie where the shape has them, and their slots lead there."""
    newest = _newest(header, shape.old)
    first = 0 if shape.old else 1
    if header.item_count > shape.max_items:
        return False
    for number in range(newest, max(first, newest - 7) - 1, -1):
        raw = read(shape.item_position(number), fmt.ITEM.size)
        if len(raw) < fmt.ITEM.size:
            return False
        item = fmt.ITEM.decode(raw)
        head = fmt.SLOT.decode(read(shape.slot_position(item.key_hash % shape.slots),
                                    fmt.SLOT.size)).item
        if not number <= head <= newest or item.size <= 0 or item.previous >= number:
            return False
    return True


def _used(read: ReadAt, shape: fmt.Shape) -> int:
    """How many slots have items."""
    return sum(int((found["item"] > 0).sum())
               for _, found in _units(read, fmt.SLOT, fmt.HEADER.size, shape.slots))


def _fitting(read: ReadAt, size: int, header: fmt.HeaderRecord, *,
             old: bool) -> Iterator[fmt.Shape]:
    """Shapes with which the slot of the newest item's hash has its number."""
    import numpy as np

    room, newest = _room(size, old), _newest(header, old)
    most = room - _STEP * (header.item_count + (0 if old else 1))
    if header.item_count <= 0 or most <= 0:
        return
    heads: list[Any] = []
    for first, found in _units(read, fmt.SLOT, fmt.HEADER.size, most):
        heads.append(first + np.flatnonzero(found["item"] == newest))
    leading = np.concatenate(heads)
    least = room % _STEP
    start = fmt.HEADER.size + least * fmt.SLOT.size + newest * fmt.ITEM.size
    for first, found in _units(read, fmt.ITEM, start, (most - least) // _STEP + 1):
        slots = least + _STEP * (first + np.arange(len(found)))
        good = np.flatnonzero((found["size"] > 0) & (slots > 0))
        slots, hashes = slots[good], found["key_hash"][good].astype(np.int64)
        for one in slots[np.isin(hashes % slots, leading)].tolist():
            yield fmt.Shape(one, (room - one) // _STEP, old)


def _units(read: ReadAt, unit: Any, start: int, count: int) -> Iterator[
        tuple[int, np.ndarray[Any, Any]]]:
    """(number of the first, units) of up to ``count`` units, by blocks."""
    import numpy as np

    at_once = _BLOCK // unit.size
    for first in range(0, count, at_once):
        data = read(start + first * unit.size, min(at_once, count - first) * unit.size)
        found = np.frombuffer(data, unit.dtype(), len(data) // unit.size)
        if not len(found):
            return
        yield first, found
