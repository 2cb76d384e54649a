"""The consumequeues as a broker's start leaves them, byte by byte, straight from its source.

`ConsumeQueue.recover`, `putMessagePositionInfo` and `truncateDirtyLogicFiles` written down again
with plain lists, to judge the prediction and the plan. Tags codes are left out: a unit is (physical
offset, size).
"""

from __future__ import annotations

import struct
from pathlib import Path

from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import Record, decode

UNIT = 20
Files = dict[int, list[tuple[int, int]]]


def long(number: int) -> int:
    """A sum as Java has it: it wraps around."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


class Queue:
    """One queue: units by file base, in order; ``wrote`` of the last file; ``max_physic``."""

    def __init__(self, size: int, files: Files) -> None:
        self.size, self.files = size, files
        self.wrote = size
        self.max_physic = -1
        self._recover()

    def _recover(self) -> None:
        if not self.files:
            return
        names = sorted(self.files)
        number = max(0, len(names) - 3)
        while True:
            done = 0
            for physical, size in self.files[names[number]]:
                if physical < 0 or size <= 0:
                    break
                done += UNIT
                self.max_physic = long(physical + size)
            if done < self.size or number + 1 == len(names):
                break
            number += 1
        for name in names[number + 1:]:
            del self.files[name]
        self.wrote = done

    @property
    def end(self) -> int:
        return (max(self.files) + self.wrote) // UNIT if self.files else 0

    @property
    def refuses(self) -> bool:
        """`correctMinOffset` of 5.x asks for the unit before an empty last file."""
        return bool(self.files) and not self.wrote and max(self.files) > 0

    def put(self, physical: int, size: int, index: int) -> None:
        if long(physical + size) <= self.max_physic:
            return
        place = index * UNIT
        first = not self.files
        if first or self.wrote == self.size:
            base = place - place % self.size if first else max(self.files) + self.size
            self.files[base] = [(0, 0)] * (self.size // UNIT)
            self.wrote = 0
        base = max(self.files)
        if first and index:
            self.wrote = place % self.size
            self.files[base][:self.wrote // UNIT] = [(0, 0x7FFFFFFF)] * (self.wrote // UNIT)
        if index and place < base + self.wrote:
            return
        self.max_physic = long(physical + size)
        self.files[base][self.wrote // UNIT] = physical, size
        self.wrote += UNIT

    def truncate(self, end: int) -> None:
        self.max_physic = end
        while self.files:
            base = max(self.files)
            units = self.files[base]
            if units[0][0] >= end:
                del self.files[base]
                self.wrote = self.size
                continue
            self.wrote, self.max_physic = UNIT, long(sum(units[0]))
            for physical, size in units[1:]:
                if physical < 0 or size <= 0 or physical >= end:
                    break
                self.wrote += UNIT
                self.max_physic = long(physical + size)
            return


class Broker:
    """All queues of a store, and its log as one stretch of bytes for each file."""

    def __init__(self, root: Path, size: int) -> None:
        self.size = size
        self.log = {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir()}
        self.queues = {(path.parent.name, int(path.name)): Queue(size, units(path))
                       for path in (root / "consumequeue").glob("*/*")}

    @property
    def max_physic(self) -> int:
        return max((queue.max_physic for queue in self.queues.values()), default=-1)

    def dispatch(self, record: Record) -> None:
        if sysflag.has_consume_queue_row(record.sys_flag):
            key = record.topic.decode(), record.queue_id
            queue = self.queues.setdefault(key, Queue(self.size, {}))
            queue.put(record.physical_offset, record.total_size, record.queue_offset)

    def records(self, start: int, end: int) -> list[Record]:
        """The records that begin in ``[start, end)``, by their sizes; up to each file's blank."""
        texts = []
        for base, data in sorted(self.log.items()):
            at = max(start - base, 0)
            while base + at < end and at + 8 <= len(data):
                total, magic = struct.unpack_from(">iI", data, at)
                if magic not in (0xDAA320A7, 0xDAA320AB):
                    break
                texts.append(decode(data[at:at + total]))
                at += total
        return texts

    def start(self, new: bool, clean: bool, start: int, end: int) -> None:
        """``start`` and ``end``: where recovery of the log begins and ends."""
        reach = self.max_physic
        if new or not clean:
            for record in self.records(start, end):
                if not clean or record.physical_offset > reach:
                    self.dispatch(record)
        if reach >= end:
            for queue in self.queues.values():
                queue.truncate(end)
        if not new:
            for record in self.records(max(min(self.log), self.max_physic), end):
                self.dispatch(record)


def units(folder: Path) -> Files:
    """Physical offset and size of all units of a queue's files."""
    return {int(path.name): [struct.unpack_from(">qi", data, at) for at in range(
        0, len(data), UNIT)] for path in folder.iterdir() if (data := path.read_bytes())}
