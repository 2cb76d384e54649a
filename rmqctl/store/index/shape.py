"""The shape of an index file: its numbers of slots and entries (spec: index.md).

No file contains these two numbers, and the size of a file determines only one of them if the other
is known. The content decides. With the right shape:

* Every slot points to an entry whose hash belongs to that slot.
* Every entry is reached exactly once.
* Entry 0 is unused.

A wrong shape may match in a few slots, but never in all slots. For a damaged file, the shape that
matches most of the content is used. For a file without entries, the shape comes from the store's
settings, other files or the default. If these are not sufficient, the shape is unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.index_file import (
    DEFAULT_SHAPE,
    ENTRY,
    HEADER,
    SLOT,
    EntryRecord,
    HeaderRecord,
    IndexShape,
    candidates,
    shape_of,
)
from rmqctl.lazy_dataclass import dataclass

Read = Callable[[int, int], bytes]
"""Function ``read(position, length)`` that returns bytes of the file, fewer at its end."""

Gather = Callable[[Sequence[tuple[int, int]]], list[bytes]]
"""Function that takes many (position, length) pairs and returns the bytes of each."""

_WHOLE = 4 << 20
"""Maximum size in bytes of a file whose entries and slots are all checked; in a larger file, only a
sample is checked.
"""
_SAMPLE = 48
_TRIED_ELSEWHERE = 64
_STEP = 4096
"""Number of bytes that are skipped after a disk read error."""
_MIN_SHARE = 0.5
"""Minimum share of the slots and entries of a damaged file that must match a shape."""
_UNKNOWN = ("cannot determine the number of hash slots from the content, other files or the "
            "store's settings: pass --index-slots and --index-max")


class UnknownShapeError(FormatError):
    """The shape is unknown. ``sound``: whether the file is undamaged; ``entries``: the number of
    entries in the header.
    """

    sound = False
    entries = 0


@dataclass(frozen=True, slots=True)
class Decided:
    """A file's shape. ``sure``: false if only the file size supports it."""

    shape: IndexShape
    sure: bool = True


@dataclass(frozen=True, slots=True)
class _Fit:
    """Number of checked slots and entries of a file, and how many of them match a shape."""

    good: int
    total: int

    @property
    def exact(self) -> bool:
        return self.good == self.total > 1  # an unused entry 0 proves nothing

    @property
    def share(self) -> float:
        return self.good / self.total if self.total else 0.0


def decide(size: int, read: Read, preferred: Iterable[IndexShape] = (),
           gather: Gather | None = None) -> Decided:
    """Return the shape of an index file of ``size`` bytes.

    ``preferred``: shapes that other parts of the store suggest, the likeliest first. These are used
    only if the content does not match the default ratio of slots to entries.
    ``gather``: reads many ranges of a remote file at the same time. For such a file, only the first
    possible shapes are tried.

    Unreadable bytes count as zeros, which match no shape.

    Raises: UnknownShapeError, FormatError for a file without a complete header, StoreIOError for an
    unreadable file.
    """
    header = HEADER.decode(read(0, HEADER.size))
    most = None if gather is None else _TRIED_ELSEWHERE
    read = _past_bad_places(read)
    gather = _gathering(read, gather)
    if size <= _WHOLE:
        read = _in_memory(read(0, size))
    # 1. A shape that explains everything: of the default ratio, or one that the store names.
    ratio = _of_default_ratio(size)
    fitting: list[IndexShape] = []
    fits: dict[IndexShape, _Fit] = {}
    for shape in itertools.chain(ratio, preferred):
        if shape.file_size == size:
            fitting.append(shape)
            if shape not in fits:
                fits[shape] = _measure(shape, header, read, gather)
                if fits[shape].exact:
                    return Decided(shape)
    # 2. Nothing to explain: the shape that the store names, else one that the size allows.
    trusted = fitting[len(ratio):] + [shape for shape in ratio if shape == DEFAULT_SHAPE]
    likely = [*trusted, *ratio]
    if not _used(size, header, read):
        if likely:
            return Decided(likely[0], sure=bool(trusted))
        raise _unknown("it has no entries", 0, sound=True)
    # 3. Any other shape that explains all; for a damaged file the shape that explains most.
    best = max(fits, key=lambda shape: fits[shape].share, default=None)
    enough = best if best is not None and fits[best].share > _MIN_SHARE else None
    if enough in trusted:
        return Decided(enough)
    explained = _explained(size, header, read, gather, most, damaged=enough is None)
    if explained is not None:
        return Decided(explained)
    if enough is not None:
        return Decided(enough)
    if likely:  # destroyed: faults are named by the likeliest shape
        return Decided(likely[0], sure=bool(trusted))
    raise _unknown("its slots and entries match no shape", header.entries, sound=False)


def _of_default_ratio(size: int) -> list[IndexShape]:
    try:
        return [shape_of(size)]
    except FormatError:
        return []


def _unknown(reason: str, entries: int, *, sound: bool) -> UnknownShapeError:
    error = UnknownShapeError(f"{reason}; {_UNKNOWN}", offset=0, path="size")
    error.sound, error.entries = sound, entries
    return error


def _explained(size: int, header: HeaderRecord, read: Read, gather: Gather, most: int | None, *,
               damaged: bool) -> IndexShape | None:
    """Return the only shape for a file of this size that matches the content of the file. If no
    shape matches and ``damaged`` is set, return the shape that matches most of the content.
    """
    fitting: list[tuple[_Fit, IndexShape]] = []
    for shape in _promising(itertools.islice(candidates(size), most), header, read):
        fit = _measure(shape, header, read, gather)
        if fit.share > _MIN_SHARE:
            fitting.append((fit, shape))
    exact = [shape for fit, shape in fitting if fit.exact]
    if len(exact) > 1:
        raise _unknown("its entries match several shapes", header.entries, sound=True)
    if exact:
        return exact[0]
    if not damaged or not fitting:
        return None
    return max(fitting, key=lambda candidate: candidate[0].share)[1]


def _promising(shapes: Iterable[IndexShape], header: HeaderRecord,
               read: Read) -> Iterator[IndexShape]:
    """Yield the shapes that best match the header, after reading the file at three positions."""
    last = header.entries
    for shape in shapes:
        if not 0 < last < shape.max_entries:
            continue
        raw = read(shape.entry_position(last), ENTRY.size)
        first = read(shape.entry_position(0), 2 * ENTRY.size)
        if len(raw) < ENTRY.size or len(first) < 2 * ENTRY.size:
            continue
        newest, oldest = ENTRY.decode(raw), ENTRY.decode(first[ENTRY.size:])
        claims = (not any(first[:ENTRY.size]) and any(first),
                  newest.physical_offset == header.end_phy_offset,
                  oldest.physical_offset == header.begin_phy_offset and oldest.previous == 0,
                  newest.key_hash >= 0 and _slot(shape, newest.key_hash, read) == last)
        if sum(claims) >= len(claims) - 1:
            yield shape


def _slot(shape: IndexShape, key_hash: int, read: Read) -> int:
    raw = read(shape.slot_position(shape.slot_of(key_hash)), SLOT.size)
    return SLOT.decode(raw).entry if len(raw) == SLOT.size else 0


def _used(size: int, header: HeaderRecord, read: Read) -> bool:
    """Return whether a file contains entries. For a large file, only the header is checked."""
    if header.entries > 0:
        return True
    return size <= _WHOLE and any(read(HEADER.size, size))


def _past_bad_places(read: Read) -> Read:
    def given(position: int, length: int) -> bytes:
        try:
            return read(position, length)
        except StoreIOError:
            if length <= _STEP:
                return bytes(length)
        return b"".join(given(start, min(_STEP, position + length - start))
                        for start in range(position, position + length, _STEP))
    return given


def _gathering(read: Read, gather: Gather | None) -> Gather:
    def read_singly(places: Sequence[tuple[int, int]]) -> list[bytes]:
        return [read(*place) for place in places]

    def read_all(places: Sequence[tuple[int, int]]) -> list[bytes]:
        with suppress(StoreIOError):
            return read_singly(places) if gather is None else gather(places)
        return read_singly(places)
    return read_all


def _in_memory(data: bytes) -> Read:
    return lambda position, length: data[position:position + length]


def _measure(shape: IndexShape, header: HeaderRecord, read: Read, gather: Gather) -> _Fit:
    if shape.capacity < 1:
        return _Fit(0, 1)
    if shape.file_size <= _WHOLE:
        return _all(shape, header, read)
    return _sampled(shape, header, gather)


# -- all slots and entries ------------------------------------------------------------------------


def _all(shape: IndexShape, header: HeaderRecord, read: Read) -> _Fit:
    """Count what matches this shape:

    * slots that point to one of their own entries
    * entries that are linked to an older entry of the same slot
    * entries that are reached exactly once
    * entry 0, which must be unused
    """
    raw = read(shape.slot_position(0), shape.slots * SLOT.size)
    heads = SLOT.array(raw)["entry"].astype(np.int64)
    raw = read(shape.entry_position(0), shape.max_entries * ENTRY.size)
    table = ENTRY.array(raw)
    used = np.flatnonzero(heads)
    inside = (heads[used] > 0) & (heads[used] < len(table))
    count = max(min(header.entries, len(table) - 1), int(heads[used][inside].max(initial=0)), 0)
    number = np.arange(1, count + 1)
    hashes = table["key_hash"].astype(np.int64)
    slot_of = np.where(hashes >= 0, hashes % shape.slots, -1)
    # 1. Slots point to an entry of their own.
    led = np.where(inside, heads[used], 0)
    good_slots = inside & (slot_of[led] == used)
    # 2. Entries are written, and linked to an older entry of the same slot.
    entries = table[1:count + 1]
    previous = entries["previous"].astype(np.int64)
    linked = (previous > 0) & (previous < number)
    same = slot_of[np.where(linked, previous, 0)] == slot_of[1:count + 1]
    good = (hashes[1:count + 1] >= 0) & (entries["physical_offset"] >= 0)
    good &= (previous == 0) | (linked & same)
    good &= (hashes[1:count + 1] != 0) | (entries["physical_offset"] != 0) | (previous != 0)
    # 3. Each entry is reached once.
    times = np.bincount(np.concatenate([led[good_slots], previous[linked & same]]),
                        minlength=count + 1)[1:count + 1]
    unused_zero = not table[:1].tobytes().strip(b"\0")
    return _Fit(int(good_slots.sum()) + int(good.sum()) + int((times == 1).sum()) + unused_zero,
                len(used) + 2 * count + 1)


# -- a sample of them -----------------------------------------------------------------------------


def _sampled(shape: IndexShape, header: HeaderRecord, gather: Gather) -> _Fit:
    """Count the matching entries in a sample from the entire file.

    A matching entry is linked to an entry of the same slot, and this slot does not point to an
    older entry.
    """
    count = min(header.entries, shape.capacity)
    if count < 1:
        return _Fit(0, 0)
    # Read the entries, the newest entry of the slot of each, and the entries linked to by both.
    numbers = sorted(set(np.linspace(1, count, min(_SAMPLE, count)).astype(np.int64).tolist()))
    unused, *sample = _entries(shape, [0, *numbers], gather)
    entries = {number: entry for number, entry in zip(numbers, sample, strict=True)
               if entry is not None and any(entry) and entry.key_hash >= 0
               and 0 <= entry.previous < number}
    raw = gather([(shape.slot_position(shape.slot_of(entry.key_hash)), SLOT.size)
                  for entry in entries.values()])
    heads = {number: SLOT.decode(part).entry if len(part) == SLOT.size else 0
             for number, part in zip(entries, raw, strict=True)}
    led = [number for number, head in heads.items() if number <= head <= shape.capacity]
    asked = sorted({other for number in led
                    for other in (heads[number], entries[number].previous) if other})
    slots = {number: shape.slot_of(entry.key_hash) for number, entry
             in zip(asked, _entries(shape, asked, gather), strict=True)
             if entry is not None and entry.key_hash >= 0}
    good = sum(all(slots.get(other) == shape.slot_of(entries[number].key_hash)
                   for other in (heads[number], entries[number].previous) if other)
               for number in led)
    return _Fit(good + (unused is None or not any(unused)), len(numbers) + 1)


def _entries(shape: IndexShape, numbers: Sequence[int], gather: Gather) -> list[EntryRecord | None]:
    raw = gather([(shape.entry_position(number), ENTRY.size) for number in numbers])
    return [ENTRY.decode(part) if len(part) == ENTRY.size else None for part in raw]
