"""The ends of records: topic and properties, read backwards from the last byte.

A body is followed by the topic length, the topic, the properties length and the properties. If a
record's own lengths are damaged, these fields show whether the record may end at a position.
"""

from __future__ import annotations

import numpy as np

from rmqctl.formats.local.message import MAGIC_V1, PROPERTIES_LENGTH_SIZE, longest_topic
from rmqctl.scan.frames import Array

_PAIR = b"\1"
"""Separator between name and value of a property."""
_SHORT_TOPIC = longest_topic(MAGIC_V1)
_MAX_TOPIC = 512
MAX_TAIL = (1 << 15) + 1024
"""Maximum total size in bytes of a topic and properties, including their length fields."""


def tails_of(data: bytes) -> set[int]:
    """Return the positions in ``data`` where the topic may begin, if a record ends with these
    bytes.
    """
    array = np.frombuffer(data, np.uint8)
    return {topic for place in _properties(array) for topic in _topics(array, place)}


def ends_record(data: bytes) -> bool:
    """Return whether a record may end with these bytes, that is, whether they end with a topic and
    properties.
    """
    array = np.frombuffer(data, np.uint8)
    for place in _properties(array):
        properties = data[place + PROPERTIES_LENGTH_SIZE:]
        if (not properties or _PAIR in properties) and _topics(array, place):
            return True
    return False


def _properties(data: Array) -> list[int]:
    """Return the positions of possible properties lengths: each one ends exactly at the end of the
    data.
    """
    if len(data) < 2 * PROPERTIES_LENGTH_SIZE:
        return []
    value = (data[:-1].astype(np.int32) << 8) | data[1:]
    wanted = len(data) - np.arange(len(data) - 1) - PROPERTIES_LENGTH_SIZE
    places: list[int] = np.flatnonzero(value == wanted).tolist()
    return places


def _topics(data: Array, end: int) -> set[int]:
    """Return the positions where a topic that ends at ``end`` may begin. The topic's length
    precedes it. Topic names are printable.
    """
    low = max(1, end - _MAX_TOPIC)
    window = data[low:end].astype(np.int32)
    left = len(window) - 1 - np.arange(len(window))
    short = (window == left) & (left > 0) & (left <= _SHORT_TOPIC)
    starts = set((np.flatnonzero(short) + low + 1).tolist())
    if len(window) > 1:
        wide = ((window[:-1] << 8) | window[1:]) == left[1:]
        starts |= set((np.flatnonzero(wide & (left[1:] > _SHORT_TOPIC)) + low + 2).tolist())
    return {topic for topic in starts
            if bool(((data[topic:end] > 32) & (data[topic:end] < 127)).all())}
