"""The messages of a group as columns, and the encoding of many records at once.

Messages with the same queue, system flags and hosts share a *lane*; the common bytes of a lane are
computed once. The kernel extension encodes the records of a range in one loop. Without the
extension, `rmqctl.engine.put.per_message` puts messages one by one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import index
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rmqctl.broker.settings import Host
from rmqctl.engine.put.admission import INT, MAX_PROPERTIES
from rmqctl.engine.put.encoder import raw_text
from rmqctl.engine.put.message import Outgoing, OutgoingList
from rmqctl.formats.local.message import PROPERTIES_LENGTH_SIZE
from rmqctl.kernel import active
from rmqctl.scan.frames import Array

MAX_LANES = 8192
"""Maximum number of lanes that are kept from one group to the next."""
NONE = -1
"""Lane number of messages that have no lane."""
_FLAG, _BORN, _STORED, _AGAIN, _PREPARED = range(5)  # rows of the numbers, in the kernel's order

_REQUESTS = (b"DEL", b"INNER_")
"""Parts of the names of properties that request special treatment: DELAY, TIMER_DELAY_*,
TIMER_DELIVER_MS, INNER_*."""

QueueKey = tuple[str, int]
LaneKey = tuple[str, int, int, Host | None, Host | None]
"""Topic, queue id, system flags, born host and store host of a message, unchanged."""


class Kind(NamedTuple):
    """The values that records with the same topic, flags and hosts have in common."""

    magic: int
    topic: bytes
    """The stored bytes of the topic, with its length before them."""
    fixed: int
    """Size in bytes of the record without body and properties."""
    pack: Callable[..., bytes]
    """Function that packs the header."""
    sys_flag: int
    born_host: Host
    store_host: Host


class Lanes:
    """The lanes used so far, by number, and their values in arrays for the kernel extension.

    ``kind_of`` returns the common parts of a lane's messages; None if they must be put one by one.
    """

    def __init__(self, kind_of: Callable[[LaneKey], Kind | None]) -> None:
        self._kind_of = kind_of
        self.clear()

    def clear(self) -> None:
        """Remove all lanes."""
        self._numbers: dict[LaneKey, int] = {}
        self._of_queues: dict[tuple[Any, ...], dict[QueueKey, int]] = {}
        """The same by the last parts of the keys, then by queue."""
        self._queue_numbers: dict[QueueKey, int] = {}
        self.kinds: list[Kind] = []
        self.keys: list[QueueKey] = []
        self.queues: list[int] = []
        """For each lane: the number of its queue."""
        self._arrays: LaneArrays | None = None

    def encode(self, *columns: Sequence[Any]) -> list[int]:
        """Return the lane number of each message; `NONE` for a message that must be put alone.

        ``columns``: the parts of the lane keys, one column for each part.
        """
        if all(map(_is_constant, columns[2:])):  # then shorter keys will do, which are found faster
            table = self._of_queues.setdefault(tuple(column[0] for column in columns[2:]), {})
            numbers = list(map(table.get, zip(*columns[:2], strict=True)))
            if None not in numbers:
                return numbers  # type: ignore[return-value]  # no None among them
            queues = zip(*columns[:2], strict=True)
            table |= zip(queues, self._encode(columns), strict=True)
            return [table[queue] for queue in zip(*columns[:2], strict=True)]
        return self._encode(columns)

    def _encode(self, columns: Sequence[Sequence[Any]]) -> list[int]:
        numbers = list(map(self._numbers.get, zip(*columns, strict=True)))
        if None in numbers:
            keys: list[LaneKey] = list(zip(*columns, strict=True))
            for key in dict.fromkeys(keys):
                if key not in self._numbers:
                    self._numbers[key] = self._add(key)
            return [self._numbers[key] for key in keys]
        return numbers  # type: ignore[return-value]  # no None among them

    def _add(self, key: LaneKey) -> int:
        kind = self._kind_of(key)
        if kind is None:
            return NONE
        queue = key[:2]
        self.kinds.append(kind)
        self.keys.append(queue)
        self.queues.append(self._queue_numbers.setdefault(queue, len(self._queue_numbers)))
        self._arrays = None
        return len(self.kinds) - 1

    @property
    def is_full(self) -> bool:
        return len(self._numbers) >= MAX_LANES

    @property
    def arrays(self) -> LaneArrays:
        """The values of all lanes as arrays."""
        if self._arrays is None:
            self._arrays = LaneArrays(self)
        return self._arrays


class LaneArrays:
    """The values of lanes as columns: one element for each lane, or a dummy if none exists."""

    def __init__(self, lanes: Lanes) -> None:
        heads = [kind.pack(
            0, kind.magic, 0, queue_id, 0, 0, 0, kind.sys_flag, 0, *kind.born_host, 0,
            *kind.store_host, 0, 0, 0) for kind, (_, queue_id) in zip(lanes.kinds, lanes.keys,
                                                                     strict=True)] or [b""]
        topics = [kind.topic for kind in lanes.kinds] or [b""]
        self.head = np.array([len(head) for head in heads], np.int64)
        self.topic = np.array([len(topic) for topic in topics], np.int64)
        self.fixed = self.head + self.topic + PROPERTIES_LENGTH_SIZE
        self.queue = np.array(lanes.queues or [0], np.int64)
        width = int((self.head + self.topic).max()) or 1
        self.template = np.frombuffer(b"".join(
            (head + topic).ljust(width, b"\0") for head, topic in zip(heads, topics, strict=True)),
            np.uint8).reshape(-1, width)
        self.next_offset: Array = np.zeros(int(self.queue.max()) + 1, np.int64)
        """Array for temporary use: the next offset of each queue."""


class Columns:
    """A group of single messages as columns.

    ``special``: the indexes of the messages that must be put one by one, ascending. Such a message
    has no lane, has a property that changes the message (``concerns``), or has a value that a
    broker might reject.
    Raises: TypeError, ValueError, OverflowError or AttributeError for a value that no field can
    hold.
    """

    def __init__(self, messages: Sequence[Outgoing], kernel: ModuleType, lanes: Lanes,
                 concerns: Callable[[Outgoing], bool], body_limit: int,
                 record_limit: int) -> None:
        if lanes.is_full:
            lanes.clear()
        self.lanes, self._kernel = lanes, kernel
        (topics, bodies, texts, queues, flags, sys_flags, born, born_hosts, stored, store_hosts,
         again, prepared, _) = OutgoingList.of(messages).columns
        # Lanes.
        self.lane = lanes.encode(topics, queues, sys_flags, born_hosts, store_hosts)
        self._row = np.array(self.lane, np.int64)
        ordinary: Array = self._row != NONE
        # Bodies and properties, each in one buffer.
        self._bodies = _Slices(bodies)
        together = "".join(texts)
        if together.isascii():
            self._texts = _Slices(texts, together.encode())
        else:
            self._texts = _Slices(_encoded(texts, ordinary))
        if any(kernel.holds(self._texts.data, word) for word in _REQUESTS):
            ordinary &= [not concerns(message) for message in messages]
        # Numbers, most of which are 0 in all messages.
        self._numbers: Array = np.zeros((5, len(messages)), np.int64)
        self._timeless = self._fill(_STORED, stored)
        self._unborn = self._fill(_BORN, born)
        for name, values in ((_FLAG, flags), (_AGAIN, again), (_PREPARED, prepared)):
            if self._fill(name, values) is not None:
                raise TypeError("a message has None where a number is required")
        ordinary &= (self._numbers[_FLAG] | self._numbers[_AGAIN]) >> INT == 0
        ordinary &= self._numbers.min(axis=0) >= 0
        # Sizes.
        self.size = lanes.arrays.fixed[self._row] + self._bodies.size + self._texts.size
        ordinary &= ((self.size <= record_limit) & (self._bodies.size <= body_limit)
                     & (self._texts.size <= MAX_PROPERTIES))
        self.special: list[int] = np.flatnonzero(~ordinary).tolist()

    def _fill(self, name: int, values: Sequence[int | None]) -> Array | None:
        """Fill the column ``name`` with numbers. Return a boolean array: whether each number is
        missing; None if all numbers exist.
        """
        if _is_constant(values):
            if values[0] is None:
                return np.ones(len(values), bool)
            self._numbers[name] = index(values[0])
            return None
        try:
            self._numbers[name] = array("q", values)  # type: ignore[type-var]  # unless one is None
        except TypeError:
            self._numbers[name] = array("q", [value or 0 for value in values])
            return np.array([value is None for value in values], bool)
        return None

    def ordinary_until(self, number: int) -> int:
        """Return the index of the first message, at or after index ``number``, that must be put
        alone. If no such message exists, return the number of messages.
        """
        place = bisect_left(self.special, number)
        return self.special[place] if place < len(self.special) else len(self.lane)

    def stored_at(self, part: slice, clock: Callable[[], int]) -> Array:
        """Return the store times of a part (int64). All missing times become the current time, from
        a single call of ``clock``.
        """
        stored: Array = self._numbers[_STORED, part]
        if self._timeless is not None:
            stored[self._timeless[part]] = clock()
        if self._unborn is not None:
            np.copyto(self._numbers[_BORN, part], stored, where=self._unborn[part])
        return stored

    def store_hosts(self, part: slice) -> Iterable[Host]:
        """Return the store host of each message of a part."""
        kinds = self.lanes.kinds
        hosts = {kinds[lane].store_host for lane in self._used(part)}
        if len(hosts) == 1:
            return repeat(hosts.pop())
        return [kinds[lane].store_host for lane in self.lane[part]]

    def _used(self, part: slice) -> list[int]:
        """Return the indices of the lanes that occur in a part."""
        used: list[int] = np.flatnonzero(np.bincount(self._row[part])).tolist()
        return used

    def records(self, part: slice, physical: int,
                offsets: dict[QueueKey, int]) -> tuple[memoryview, Array]:
        """Return the records of a part, to be written at a physical offset, and their queue
        offsets.

        ``offsets``: the next offset of each queue (default 0); this function advances them.
        """
        # Copy the next offsets of these queues from the dictionary and back.
        lanes = self.lanes
        used = {lanes.queues[lane]: lanes.keys[lane] for lane in self._used(part)}
        following = lanes.arrays.next_offset
        for queue, key in used.items():
            following[queue] = offsets.get(key, 0)
        given: Array = np.empty(part.stop - part.start, np.int64)
        arrays, bodies, texts = lanes.arrays, self._bodies, self._texts
        out: Array = np.empty(int(self.size[part].sum()), np.uint8)
        self._kernel.encode(
            out, physical, self._row[part], arrays.template, arrays.head, arrays.topic,
            arrays.queue, following, self._numbers[:, part],
            bodies.data, bodies.start[part], bodies.size[part],
            texts.data, texts.start[part], texts.size[part], given)
        for queue, key in used.items():
            offsets[key] = int(following[queue])
        return out.data, given


def _is_constant(values: Sequence[Any]) -> bool:
    """Return whether all values are the same object, or equal to it."""
    return values[0] is values[-1] and values.count(values[0]) == len(values)


class _Slices:
    """Byte strings in a single buffer, with the start and the size of each string (int64).

    ``data``: the concatenated bytes, if they already exist.
    Raises: TypeError if ``len`` of a part is not its size in bytes.
    """

    def __init__(self, parts: Sequence[bytes] | Sequence[str], data: bytes | None = None) -> None:
        self.data = b"".join(parts) if data is None else data  # type: ignore[arg-type]
        self.size = sizes(parts)
        end = np.cumsum(self.size)
        self.start = end - self.size
        if len(end) and end[-1] != len(self.data):
            raise TypeError("a body must be bytes")


def sizes(parts: Sequence[bytes] | Sequence[str]) -> Array:
    """Return the length of each part (int64)."""
    kernel = active()
    if kernel is None:
        return np.fromiter(map(len, parts), np.int64, len(parts))
    out: Array = np.empty(len(parts), np.int64)
    kernel.lengths(parts, out)
    return out


def _encoded(texts: Sequence[str], ordinary: Array) -> list[bytes]:
    """Return the stored bytes of each properties string; in ``ordinary``, clear the element of a
    string that cannot be encoded.
    """
    encoded = []
    for number, text in enumerate(texts):
        try:
            encoded.append(raw_text(text))
        except UnicodeEncodeError:
            encoded.append(b"")
            ordinary[number] = False
    return encoded
