"""The index file: header, hash slots and chained entries (spec: index.md §1-§5).

The numbers of slots and entries are not stored; `rmqctl.store.index.shape` determines them.
Together with the file size, one number determines the other.

`candidates` yields common configurations. Their number is bounded, which limits the search for a
damaged header to seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from construct import Int32sb, Int64sb, Struct

from rmqctl.errors import FormatError
from rmqctl.formats.fixed import Fixed
from rmqctl.formats.local import javahash
from rmqctl.formats.local import properties as props

if TYPE_CHECKING:
    from collections.abc import Mapping



Header = Struct(
    "begin_timestamp" / Int64sb,
    "end_timestamp" / Int64sb,
    "begin_phy_offset" / Int64sb,
    "end_phy_offset" / Int64sb,
    "hash_slot_count" / Int32sb,
    "index_count" / Int32sb,
)

Slot = Struct("entry" / Int32sb)
"""The number of the newest entry of a chain; 0 for an empty chain."""

Entry = Struct(
    "key_hash" / Int32sb,
    "physical_offset" / Int64sb,
    "time_diff" / Int32sb,
    "previous" / Int32sb,
)


class HeaderRecord(NamedTuple):
    """The file header. ``index_count``: the number of entries + 1; it may be 0 if there are no
    entries.
    """

    begin_timestamp: int
    end_timestamp: int
    begin_phy_offset: int
    end_phy_offset: int
    hash_slot_count: int
    index_count: int

    @property
    def entries(self) -> int:
        """The number of entries according to the header."""
        return max(self.index_count, 1) - 1


class SlotRecord(NamedTuple):
    """The start of a chain of entries."""

    entry: int


class EntryRecord(NamedTuple):
    """An index entry. ``time_diff``: seconds after the header's begin time; ``previous`` 0 ends the
    chain.
    """

    key_hash: int
    physical_offset: int
    time_diff: int
    previous: int


HEADER = Fixed(Header, HeaderRecord)
SLOT = Fixed(Slot, SlotRecord)
ENTRY = Fixed(Entry, EntryRecord)

DEFAULT_SLOTS = 5_000_000
DEFAULT_RATIO = 4
"""``maxIndexNum`` per hash slot in the default configuration."""

parse_header, build_header = HEADER.parse, HEADER.build
parse_slot, build_slot = SLOT.parse, SLOT.build
parse_entry, build_entry = ENTRY.parse, ENTRY.build
dtype, slot_dtype = ENTRY.dtype, SLOT.dtype


class IndexShape(NamedTuple):
    """The numbers of slots and entries, which determine the layout of an index file. They are not
    stored in the file.
    """

    slots: int
    max_entries: int

    @property
    def file_size(self) -> int:
        return self.entry_position(0) + self.max_entries * ENTRY.size

    @property
    def capacity(self) -> int:
        """Maximum number of entries in a file: number 0 is never used."""
        return self.max_entries - 1

    def slot_position(self, slot: int) -> int:
        return HEADER.size + slot * SLOT.size

    def entry_position(self, number: int) -> int:
        return HEADER.size + self.slots * SLOT.size + number * ENTRY.size

    def slot_of(self, key_hash: int) -> int:
        """Return the slot of a (non-negative) key hash."""
        return key_hash % self.slots


DEFAULT_SHAPE = IndexShape(DEFAULT_SLOTS, DEFAULT_RATIO * DEFAULT_SLOTS)


def shape_of(size: int, slots: int | None = None) -> IndexShape:
    """Return the shape of a file of ``size`` bytes with ``slots`` slots (default: with the default
    ratio).

    Raises: FormatError if no such shape has that size.
    """
    room = size - HEADER.size
    if slots is None:
        slots, rest = divmod(room, SLOT.size + DEFAULT_RATIO * ENTRY.size)
        if slots <= 0 or rest:
            raise FormatError(
                f"no index file with the default ratio (4 entries per slot) has {size:,} bytes: "
                "the number of hash slots must be given", offset=0, path="size")
        return IndexShape(slots, DEFAULT_RATIO * slots)
    entries, rest = divmod(room - slots * SLOT.size, ENTRY.size)
    if slots <= 0 or entries <= 0 or rest:
        raise FormatError(f"no index file with {slots:,} hash slots has {size:,} bytes", offset=0,
                          path="size")
    return IndexShape(slots, entries)


def key_text(topic: str, key: str) -> str:
    """Return the text whose hash is stored for a key of a message."""
    return f"{topic}#{key}"


def key_hash(topic: str, key: str) -> int:
    """Return the hash that the entry of a key contains."""
    return javahash.index_hash(key_text(topic, key))


def keys_of(properties: Mapping[str, str]) -> list[str]:
    """Return the keys that a broker indexes for a message, in its order: the unique key, then KEYS.

    A duplicate key is indexed twice.
    """
    unique = properties.get(props.UNIQUE_KEY)
    return ([] if unique is None else [unique]) + props.split_keys(properties.get(props.KEYS))


def entry_time(header: HeaderRecord, entry: EntryRecord) -> int:
    """Return the store time of an entry's message according to the index: whole seconds after the
    begin time.
    """
    return header.begin_timestamp + entry.time_diff * 1000


_ROUND = 1000
_EXHAUSTIVE = 200_000
_WORDS = ENTRY.size // SLOT.size


def candidates(size: int) -> Iterator[IndexShape]:
    """Yield up to about 100,000 possible shapes for a file of this size, the most likely first."""
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
            yield IndexShape(slots, entries)
