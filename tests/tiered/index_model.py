"""Index files of a tier as the engine's own code makes them: item by item, byte by byte.

`Model` follows IndexStoreFile.java of 5.3.3, `OldModel` TieredIndexFile.java of 5.1.4. Neither
knows the package's formats.
"""

from __future__ import annotations

import struct

import numpy as np

BEGIN, END = 0xBCC50289, 0xBCC50285
HEADER, ITEM = ">IqqII", ">iiiqiii"


def java_divided(value: int, by: int) -> int:
    return -(-value // by) if value < 0 else value // by


class Model:
    """putKey and compactToNewFile."""

    def __init__(self, timestamp: int, slots: int, most: int) -> None:
        self.timestamp, self.slots, self.most = timestamp, slots, most
        self.data = bytearray(28 + 8 * slots + 32 * most)
        self.end = self.used = self.items = 0
        self._header(self.data, self.most == 1)

    def _header(self, data: bytearray, end: bool) -> None:
        struct.pack_into(HEADER, data, 0, END if end else BEGIN, self.timestamp, self.end,
                         self.used, self.items)

    def _int(self, at: int) -> int:
        return int(struct.unpack_from(">i", self.data, at)[0])

    def put(self, hashes: list[int], topic: int, queue: int, offset: int, size: int,
            when: int) -> bool:
        """False: FILE_FULL."""
        if self.items + len(hashes) >= self.most:
            return not hashes
        for hash_ in hashes:
            slot = 28 + 8 * (hash_ % self.slots)
            before = max(self._int(slot), 0)
            diff = java_divided(when - self.timestamp, 1000)
            self.items += 1
            struct.pack_into(ITEM, self.data, 28 + 8 * self.slots + 32 * self.items, hash_, topic,
                             queue, offset, size, diff, before)
            struct.pack_into(">i", self.data, slot, self.items)
            self.used += before <= 0
            self.end = max(self.end, when)
            self._header(self.data, self.most == self.items + 1)
        return True

    def compacted(self) -> bytes:
        at = 28 + 8 * self.slots
        limit = at + 28 * self.items
        out, position = bytearray(limit), 0
        for number in range(self.slots):
            slot = 28 + 8 * number
            value, begin = max(self._int(slot), 0), at
            while value > 0 and at < limit:
                item = 28 + 8 * self.slots + 32 * value
                out[at:at + 28] = self.data[item:item + 28]
                value = self._int(item + 28)
                at += 28
                position = at
            struct.pack_into(">ii", out, slot, begin, at - begin)
        self._header(out, True)
        return bytes(out[:position])


class OldModel:
    """putKey and buildCompactFile of 5.1.x: numbers from 0, ms, a seal at the end."""

    def __init__(self, slots: int, most: int) -> None:
        self.slots, self.most = slots, most
        self.data = bytearray(40 + 8 * slots + 32 * most + 4)
        struct.pack_into(HEADER, self.data, 0, BEGIN, -1, -1, 0, 0)
        for number in range(slots):
            struct.pack_into(">i", self.data, 28 + 8 * number, -1)
        struct.pack_into(">i", self.data, len(self.data) - 4, -1)

    @property
    def sealed(self) -> bool:
        return bool(struct.unpack_from(">I", self.data, len(self.data) - 4)[0] == END)

    def put(self, number: int, topic: int, queue: int, offset: int, size: int, when: int) -> None:
        _, begin, _, _, count = struct.unpack_from(HEADER, self.data)
        slot = 28 + 8 * (number % self.slots)
        before = struct.unpack_from(">i", self.data, slot)[0]
        begin = when if begin == -1 else begin
        struct.pack_into(ITEM, self.data, 28 + 8 * self.slots + 32 * count, number, topic, queue,
                         offset, size, when - begin, before)
        struct.pack_into(">i", self.data, slot, count)
        struct.pack_into(HEADER, self.data, 0, BEGIN, begin, when, 0, count + 1)
        if count + 1 == self.most:
            struct.pack_into(">I", self.data, len(self.data) - 4, END)

    def compacted(self) -> bytes:
        _, begin, end, _, count = struct.unpack_from(HEADER, self.data)
        out = bytearray(len(self.data))
        at = 28 + 8 * self.slots
        for number in range(self.slots):
            value, start = struct.unpack_from(">i", self.data, 28 + 8 * number)[0], at
            if value == -1:
                continue
            while 0 <= value < self.most:
                item = 28 + 8 * self.slots + 32 * value
                out[at:at + 28] = self.data[item:item + 28]
                value = struct.unpack_from(">i", self.data, item + 28)[0]
                at += 28
            struct.pack_into(">ii", out, 28 + 8 * number, start, at - start)
        struct.pack_into(HEADER, out, 0, END, begin, end, self.slots, count)
        struct.pack_into(">I", out, at, BEGIN)
        return bytes(out[:at + 4])


class Feed:
    """IndexStoreService.putKey over `Model`: ``files`` oldest first. Like the package's feed, and
    unlike a broker, it never names two files alike.
    """

    def __init__(self, slots: int, most: int, clock) -> None:
        self.slots, self.most, self.clock = slots, most, clock
        self.files = [Model(clock(), slots, most)]

    def put(self, hashes: list[int], *rest: int) -> None:
        if len(hashes) >= self.most:
            return
        while not self.files[-1].put(hashes, *rest):
            now = max(self.clock(), self.files[-1].timestamp + 1)
            self.files.append(Model(now, self.slots, self.most))


def arrays(messages: list[tuple[list[int], int, int, int]]):
    """(rows, hashes, offsets, sizes, times) of (hashes, offset, size, time) of messages."""
    rows = [at for at, message in enumerate(messages) for _ in message[0]]
    hashes = [value for message in messages for value in message[0]]
    columns = [np.array([message[at] for message in messages], np.int64) for at in (1, 2, 3)]
    return np.array(rows, np.int64), np.array(hashes, np.int32), *columns


class Clock:
    """Milliseconds: a number more at each asking."""

    def __init__(self, start: int = 1_795_228_436_874, step: int = 3) -> None:
        self.now, self.step = start, step

    def __call__(self) -> int:
        self.now += self.step
        return self.now
