"""Tests of single positions of a log: whether a record or a blank record may begin there.

A record is provable by its magic, by lengths that add up, and above all by a physical offset equal
to its position. In addition, something provable must follow the record, or its body must match its
CRC.

A sender can put a complete record into a message body. So after damage, this module finds only
candidates, and `rmqctl.scan.damage.extents` decides which of them are records of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from rmqctl.formats import dledger, layout
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    HOST_BITS,
    MAGIC_BLANK,
    MAGIC_OFFSET,
    MAGIC_V1,
    MIN_SIZE,
    PROPERTIES_LENGTH_SIZE,
    START_SIZE,
    VERSIONS,
    Blank,
    Message,
    decode,
    is_magic,
    properties_length_at,
    variant,
)
from rmqctl.scan.frames import Array, gather, used_length
from rmqctl.scan.source import Source

MAX_RECORD = 128 << 20
"""Maximum record size: larger sizes are treated as damage, which bounds memory (a broker's default
limit is 4 MiB).
"""
_FIRST_WINDOW = 8 << 10
_WINDOW = 4 << 20
_BLOCK, _ROW = 512 << 10, 4096
_MAGIC_SIZE = 4
_MAGICS = tuple(VERSIONS)
_BLANK = layout.reader(Blank)
_LOCATED = layout.reader(Message, "total_size", "magic", "physical_offset", "sys_flag")
_HEAD = layout.dtype(Message, "total_size", "magic", "physical_offset", itemsize=_LOCATED.size)
_END = dledger.MAGIC_END & 0xFFFFFFFF


def is_blank(source: Source, position: int) -> bool:
    """Return whether ``position`` has a blank record, or DLedger's end mark, whose size is exactly
    the rest of the file.
    """
    head = source.read(position, BLANK_SIZE)
    if len(head) < BLANK_SIZE:
        return False
    left = source.size - position
    return _BLANK.unpack(head) == (left, MAGIC_BLANK) if not source.head else (
        dledger.END.decode(head) == (dledger.MAGIC_END, left))


def _self_located(source: Source, position: int) -> bytes | None:
    """Return the bytes of the record whose frame begins at ``position``. Return None if the magic,
    the offset or a length of the record does not match or, in a DLedger log, if its entry header
    does not match.
    """
    entry = None
    if source.head:
        entry = dledger.head_at(source.read(position, source.head), source.base + position)
        if entry is None:
            return None
        position += source.head
    head = source.read(position, START_SIZE)
    if len(head) < _LOCATED.size:
        return None
    total, magic, physical, _ = _LOCATED.unpack_from(head)
    if not is_magic(magic) or physical != source.base + position:
        return None
    if not MIN_SIZE <= total <= min(MAX_RECORD, source.size - position):
        return None
    if entry is not None and entry.body_length != total:
        return None
    if extent(source, position) != total:
        return None
    raw = source.read(position, total)
    return raw if len(raw) == total else None


def located_size(source: Source, position: int) -> int | None:
    """Return the size of the frame of a record at ``position`` if magic, offset and lengths match.
    Nothing else is checked.
    """
    raw = _self_located(source, position)
    return None if raw is None else source.head + len(raw)


def is_placed(source: Source, position: int) -> bool:
    """Return whether the frame at ``position`` has a message's magic, and contains its own position
    as its physical offset.
    """
    position += source.head
    head = source.read(position, START_SIZE)
    if len(head) < _LOCATED.size:
        return False
    _, magic, physical, _ = _LOCATED.unpack_from(head)
    return is_magic(magic) and bool(physical == source.base + position)


def first_placed(source: Source, places: Array) -> int:
    """Return the index of the first of ``places`` (positions, ascending) for which `is_placed` is
    true; the number of places if it is true for none. The bytes between the places are read.
    """
    if not len(places):
        return 0
    start = int(places[0])
    data = np.frombuffer(source.read(
        start, int(places[-1]) - start + source.head + _HEAD.itemsize), np.uint8)
    at = places - start + source.head
    at = at[at <= len(data) - _HEAD.itemsize]
    heads = gather(data, at, _HEAD.itemsize).view(_HEAD)
    placed = heads["physical_offset"] - at == source.base + start
    placed &= np.isin(heads["magic"], np.array(_MAGICS, np.int64))
    return int(placed.argmax()) if placed.any() else len(places)


def extent(source: Source, position: int, magic: int | None = None,
           host_bits: int | None = None) -> int | None:
    """Return the record size that results from the length fields at ``position``, without reading
    the body. None if a length is negative or extends past the end of the file.

    ``magic`` and ``host_bits`` override the stored values. An unknown stored magic counts as the
    oldest one.
    """
    # The header, whose shape follows from magic and system flags.
    head = source.read(position, START_SIZE)
    if len(head) < START_SIZE:
        return None
    _, stored, _, sys_flag = _LOCATED.unpack_from(head)
    magic = magic or stored
    bits = sys_flag & HOST_BITS if host_bits is None else host_bits
    shape = variant(bits, magic if is_magic(magic) else MAGIC_V1)
    head = source.read(position, shape.head_size)
    if len(head) < shape.head_size:
        return None
    # The lengths of body, topic and properties, each after the end of the previous field.
    body = shape.head.unpack(head)[-1]
    if not 0 <= body <= source.size:
        return None
    topic_at = position + shape.head_size + body
    raw = source.read(topic_at, shape.topic_length.size)
    if len(raw) < shape.topic_length.size:
        return None
    topic = shape.topic_length.unpack(raw)[0]
    if topic < 0:
        return None
    raw = source.read(topic_at + shape.topic_length.size + topic, PROPERTIES_LENGTH_SIZE)
    if len(raw) < PROPERTIES_LENGTH_SIZE:
        return None
    properties = properties_length_at(raw)
    if properties < 0:
        return None
    # Their sum must be in the file.
    size: int = shape.fixed_size + body + topic + properties
    return size if position + size <= source.size else None


def provable(source: Source, position: int) -> bool:
    """Return whether a record or the file's blank record provably starts at ``position``."""
    if is_blank(source, position):
        return True
    raw = _self_located(source, position)
    if raw is None:
        return False
    after = position + source.head + len(raw)
    if after == source.size or is_blank(source, after) or _self_located(source, after):
        return True
    record = decode(raw)
    return (bool(record.body) and record.crc_ok) or not any(source.read(after, BLANK_SIZE))


def next_provable(source: Source, start: int, end: int) -> int | None:
    """Return the first position in ``[start, end)`` where the frame of a record or a blank record
    provably starts.
    """
    head = source.head
    for window_start, data in used_windows(source, start + head, end + head):
        for candidate in _candidates(source, window_start, np.frombuffer(data, np.uint8)):
            if start <= candidate < end and provable(source, candidate):
                return candidate
    return next((mark for mark in _end_marks(source, start, end)), None) if head else None


def bare_records(source: Source, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (position, size) of records in ``[start, end)`` that look intact but cannot be proven.
    Such a record has no body and therefore no CRC, and damage follows.
    """
    for window_start, data in used_windows(source, start + source.head, end + source.head):
        for candidate in _candidates(source, window_start, np.frombuffer(data, np.uint8)):
            size = located_size(source, candidate) if start <= candidate < end else None
            if size is None or candidate + size > end or provable(source, candidate):
                continue
            if not decode(source.read(candidate + source.head, size - source.head)).body:
                yield candidate, size


def _candidates(source: Source, start: int, data: Array) -> list[int]:
    """Return the positions in ``data`` that must be checked with `provable`. ``start``: position of
    ``data[0]``. The search is by column, because foreign bytes may contain a great many magic
    numbers.
    """
    magics = find_magics(data, 0, len(data), (*VERSIONS, MAGIC_BLANK))
    at = magics - (MAGIC_OFFSET + source.head)
    inside = (at >= 0) & (at <= len(data) - source.head - _HEAD.itemsize)
    heads = gather(data, at[inside] + source.head, _HEAD.itemsize).view(_HEAD)
    total, place = heads["total_size"], at[inside] + start
    left = source.size - place
    kept = heads["physical_offset"] - place == source.head + source.base
    kept &= (total >= MIN_SIZE) & (total <= np.minimum(left - source.head, MAX_RECORD))
    if source.head:  # `is_blank` reads the header of the entry
        marks = gather(data, at[inside], dledger.END.size).view(dledger.END.dtype())
        kept |= marks["magic"] == dledger.MAGIC_END
    else:
        kept |= (total == left) & (heads["magic"] == MAGIC_BLANK)
    possible = ~inside
    possible[inside] = kept
    candidates: list[int] = (at[possible] + start).tolist()
    return candidates


def _end_marks(source: Source, start: int, end: int) -> Iterator[int]:
    """Yield the positions in ``[start, end)`` of DLedger end marks whose size equals the rest of
    the file.
    """
    for window_start, data in used_windows(source, start, end):
        magics = find_magics(np.frombuffer(data, np.uint8), 0, len(data), (_END,)) + window_start
        yield from (at for at in magics.tolist() if start <= at < end and is_blank(source, at))


def used_windows(source: Source, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield windows (position, bytes) that together contain all nonzero bytes of ``[start, end)``.
    Holes are not read.

    Each window also has the first `BLANK_SIZE` bytes of the next one. The magic of each record that
    starts in ``[start, end)`` is completely in one window.
    """
    window, position = _FIRST_WINDOW, start
    while position < end:
        used = source.next_data(position) - MAGIC_OFFSET
        if used > position:
            position, window = used, _FIRST_WINDOW
        if position >= end:
            return
        data = source.read(position, min(window, end - position) + BLANK_SIZE)
        if used_length(data):
            yield position, data
        if len(data) <= BLANK_SIZE:
            return
        position, window = position + len(data) - BLANK_SIZE, min(2 * window, _WINDOW)


# -- magics in any bytes ------------------------------------------------------------------------


def find_magics(data: Array, low: int, high: int, magics: tuple[int, ...] = _MAGICS) -> Array:
    """Return the positions (int64, ascending) of the magics that start in ``[low, high)`` and end
    within ``data`` (uint8).
    """
    high = min(high, len(data) - _MAGIC_SIZE + 1)
    parts = [_find(data, start, min(start + _BLOCK, high), *_numbers(magics))
             for start in range(low, high, _BLOCK)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _find(data: Array, low: int, high: int, wholes: list[int], halves: list[int]) -> Array:
    """Return the positions of magics. Their first two bytes are searched for, at even and at odd
    positions of ``data``, because NumPy compares only aligned numbers fast. All bytes are then
    compared.
    """
    count = (high - low + 1) // 2
    hit: Array = np.zeros((-(-count // _ROW), _ROW), bool)
    for start in (low, low + 1):
        pairs = np.require(data[start:start + 2 * count].view(np.uint16), requirements="A")
        for half in halves:
            hit.reshape(-1)[:count] |= pairs == half
    rows = np.flatnonzero(hit.any(axis=1))
    row, column = np.divmod(np.flatnonzero(hit[rows]), _ROW)
    places = (2 * (rows[row] * _ROW + column)[:, None] + np.array([low, low + 1])).ravel()
    if len(places) and places[-1] >= high:
        places = places[:-1]
    words = gather(data, places, _MAGIC_SIZE).view(np.uint32)
    kept: Array = np.zeros(len(places), bool)
    for magic in wholes:
        kept |= words == magic
    magic_places: Array = places[kept]
    return magic_places


@cache
def _numbers(magics: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return the magics, and the first two bytes of each, as numbers in this machine's
    byte order.
    """
    wholes = np.array(magics, ">u4").view(np.uint32)
    return wholes.tolist(), sorted({*wholes.view(np.uint16)[::2].tolist()})
