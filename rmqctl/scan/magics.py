"""Where a magic stands in any bytes: by column, which is several times as fast as a pattern."""

from __future__ import annotations

from functools import cache

import numpy as np

from rmqctl.formats.local.message import VERSIONS
from rmqctl.scan.frames import Array, gather

_SIZE = 4
_MESSAGES = tuple(VERSIONS)
_BLOCK, _ROW = 512 << 10, 4096


def find_magics(data: Array, low: int, high: int, magics: tuple[int, ...] = _MESSAGES) -> Array:
    """Positions (int64, ascending) in ``[low, high)`` of ``data`` (uint8) where one of the magics
    stands, all of it before the end of the data.
    """
    high = min(high, len(data) - _SIZE + 1)
    found = [_find(data, start, min(start + _BLOCK, high), *_numbers(magics))
             for start in range(low, high, _BLOCK)]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _find(data: Array, low: int, high: int, wholes: list[int], halves: list[int]) -> Array:
    """First halves of magics are searched for, two bytes at once: at the even places, and at the
    odd ones in a copy, since numpy compares only aligned numbers that fast. Few rows of such pairs
    have one.
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
    words = gather(data, places, _SIZE).view(np.uint32)
    kept: Array = np.zeros(len(places), bool)
    for whole in wholes:
        kept |= words == whole
    magic_places: Array = places[kept]
    return magic_places


@cache
def _numbers(magics: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Magics, and their first two bytes, as numbers of this machine."""
    wholes = np.array(magics, ">u4").view(np.uint32)
    return wholes.tolist(), np.unique(wholes.view(np.uint16)[::2]).tolist()
