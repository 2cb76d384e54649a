"""Finds how an index file is laid out: its numbers of slots and entries are stored nowhere.

The size leaves one number open. The default ratio settles it nearly always; otherwise counts
people configure are held against what the header says of the first and the last entry. The
number of tries is bounded, so that a damaged header costs moments, not minutes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rmqctl.errors import FormatError
from rmqctl.formats.local.index_file import (
    DEFAULT_SHAPE,
    ENTRY,
    HEADER,
    SLOT,
    HeaderRecord,
    Shape,
    shape_of,
)

Read = Callable[[int, int], bytes]
"""``read(position, length)``: bytes of the file, fewer at its end."""

_ROUND = 1000
_EXHAUSTIVE = 200_000
_WORDS = ENTRY.size // SLOT.size


def candidates(size: int) -> Iterator[Shape]:
    """Shapes a file of this size can have, the likely ones first, at most some 100,000."""
    words = (size - HEADER.size) // SLOT.size
    if words * SLOT.size != size - HEADER.size:
        return
    counts: list[int] = []
    with contextlib.suppress(FormatError):
        counts.append(shape_of(size).slots)
    counts += [DEFAULT_SHAPE.slots, words - _WORDS * DEFAULT_SHAPE.max_entries]
    if words <= _EXHAUSTIVE * _WORDS:
        counts += range(words % _WORDS, words, _WORDS)
    else:
        counts += (1 << bit for bit in range(words.bit_length()))
        counts += range(_ROUND, words, _ROUND)
        counts += range(words - _WORDS * _ROUND, 0, -_WORDS * _ROUND)
    seen = set()
    for slots in counts:
        entries, rest = divmod(words - slots, _WORDS)
        if slots > 0 and entries > 1 and not rest and slots not in seen:
            seen.add(slots)
            yield Shape(slots, entries)


def fits(shape: Shape, header: HeaderRecord, read: Read) -> bool:
    """Whether first entry, last entry and the last one's slot are where ``shape`` has them."""
    last_number = header.entries
    if not 0 < last_number < shape.max_entries:
        return False
    raw = read(shape.entry_position(last_number), ENTRY.size)
    if len(raw) < ENTRY.size:
        return False
    last = ENTRY.decode(raw)
    if last.physical_offset != header.end_phy_offset or last.key_hash < 0:
        return False
    first = ENTRY.decode(read(shape.entry_position(1), ENTRY.size))
    if first.physical_offset != header.begin_phy_offset or first.previous != 0:
        return False
    raw = read(shape.slot_position(shape.slot_of(last.key_hash)), SLOT.size)
    return SLOT.decode(raw).entry == last_number


def find_shape(size: int, header: HeaderRecord, read: Read) -> Shape:
    """The shape the content proves, else the one of the default ratio. FormatError for none."""
    for shape in candidates(size):
        if fits(shape, header, read):
            return shape
    return shape_of(size)
