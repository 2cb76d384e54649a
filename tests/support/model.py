"""A second, slow reading of a store by plain ``struct``, after the broker's rules.

It shares no code with rmqctl. The tests use it to show what ``expect.json`` means, and as the
judge of stores no engine has seen (the tiny ones). Only undamaged stores and stores the engine
has recovered are in its reach: it does no resync.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

MAGICS = (0xDAA320A7, 0xDAA320AB)
UNIT = struct.Struct(">qiq")
BATCH_UNIT = struct.Struct(">qiqqqhii")
EXT_HEAD = struct.Struct(">hqqh")


class Unit(NamedTuple):
    """A consumequeue unit with its index in the queue."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int


class BatchUnit(NamedTuple):
    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    base_offset: int
    batch_size: int
    compacted_offset: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of a message the checks need."""

    physical_offset: int
    size: int
    queue_offset: int
    queue_id: int
    sys_flag: int
    store_timestamp: int
    topic: str
    properties: str
    body: bytes
    crc_ok: bool

    def row(self) -> tuple[int, int, int, str, str, int]:
        """The record as ``expect.json`` lists it under ``messages``."""
        return (self.queue_offset, self.physical_offset, self.size,
                hashlib.sha1(self.body).hexdigest(), self.topic, self.queue_id)


def record(data: bytes, at: int = 0) -> Record | None:
    """The message at ``data[at:]``, None where there is none."""
    if len(data) - at < 8:
        return None
    size, magic = struct.unpack_from(">iI", data, at)
    if magic not in MAGICS or size > len(data) - at:
        return None
    crc, queue_id, _, queue_offset, physical, sys_flag = struct.unpack_from(">iiiqqi", data, at + 8)
    born = 20 if sys_flag & 0x10 else 8
    store = 20 if sys_flag & 0x20 else 8
    timestamp = struct.unpack_from(">q", data, at + 48 + born)[0]
    pos = at + 48 + born + 8 + store + 12
    body_length = struct.unpack_from(">i", data, pos)[0]
    body = data[pos + 4:pos + 4 + body_length]
    pos += 4 + body_length
    if magic == MAGICS[1]:
        topic_length = struct.unpack_from(">h", data, pos)[0]
        pos += 2
    else:
        topic_length = struct.unpack_from(">b", data, pos)[0]
        pos += 1
    topic = data[pos:pos + topic_length].decode()
    pos += topic_length
    properties_length = struct.unpack_from(">h", data, pos)[0]
    properties = data[pos + 2:pos + 2 + properties_length].decode()
    return Record(physical, size, queue_offset, queue_id, sys_flag, timestamp, topic, properties,
                  body, not body or zlib.crc32(body) & 0x7FFFFFFF == crc)


def java_hash(text: str) -> int:
    """String.hashCode: a signed 32-bit number over UTF-16 code units."""
    value = 0
    for unit, in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


class Stream:
    """A folder of equally long files whose names are the offset of their first byte."""

    def __init__(self, *folders: Path) -> None:
        files = [file for folder in folders if folder.is_dir() for file in folder.iterdir()
                 if file.is_file() and file.name.isdigit()]
        files.sort(key=lambda file: file.name)
        self.files = [(int(file.name), file.read_bytes()) for file in files]
        self.mtimes_ms = [int(file.stat().st_mtime * 1000) for file in files]

    @property
    def start(self) -> int:
        return self.files[0][0] if self.files else 0

    def at(self, offset: int, size: int) -> bytes | None:
        """The bytes, None when they are not all in one file."""
        for base, data in self.files:
            if base <= offset < base + len(data):
                piece = data[offset - base:offset - base + size]
                return piece if len(piece) == size else None
        return None


class Queue:
    """One ordinary consumequeue up to the last unit the engine would keep."""

    def __init__(self, folder: Path, log_end: int) -> None:
        self.stream = Stream(folder)
        self.unit_list: list[Unit] = []
        """Every unit in the files that counts, from the first file's start."""
        for base, data in self.stream.files:
            for position in range(0, len(data) - UNIT.size + 1, UNIT.size):
                physical, size, tags = UNIT.unpack_from(data, position)
                if physical < 0 or size <= 0 or physical >= log_end:
                    return
                self.unit_list.append(Unit((base + position) // UNIT.size, physical, size, tags))

    @property
    def max(self) -> int:
        return self.unit_list[-1].queue_offset + 1 if self.unit_list else 0

    def file_end(self, queue_offset: int) -> int:
        """The queue offset one file ends at, the end of the written part for the last."""
        for base, data in self.stream.files:
            if base <= queue_offset * UNIT.size < base + len(data):
                return min((base + len(data)) // UNIT.size, self.max)
        return queue_offset


@dataclass(frozen=True)
class Model:
    """A store directory read by the rules of one engine version (``4.9.3`` or ``5.3.3``)."""

    root: Path
    version: str
    commitlog_dirs: tuple[str, ...] = ("commitlog",)
    index_slots: int = 0

    @cached_property
    def log(self) -> Stream:
        return Stream(*(self.root / name for name in self.commitlog_dirs))

    @cached_property
    def records(self) -> dict[int, Record]:
        """Every message by its place, up to the first that is none or fails its CRC.

        That is where a broker ends the log; what an earlier recovery cut off still lies behind.
        """
        messages: dict[int, Record] = {}
        for base, data in self.log.files:
            position = 0
            while True:
                if data[position + 4:position + 8] == b"\xcb\xd4\x31\x94":
                    break
                message = record(data, position)
                if message is None or not message.crc_ok:
                    return messages
                messages[base + position] = message
                position += message.size
        return messages

    @property
    def log_end(self) -> int:
        if not self.records:
            return self.log.start
        last = next(reversed(self.records))
        return last + self.records[last].size

    def queue(self, topic: str, queue_id: int) -> Queue:
        return Queue(self.root / "consumequeue" / topic / str(queue_id), self.log_end)

    def min_offset(self, queue: Queue) -> int:
        """4.9.3 takes a filler for an entry while the log starts at 0, 5.3.3 does not."""
        log_start = self.log.start
        for unit in queue.unit_list:
            filler = unit.physical_offset == 0 and unit.size == 0x7FFFFFFF
            if unit.physical_offset >= log_start and not (filler and self.version == "5.3.3"):
                return unit.queue_offset
        return queue.max if self.version == "5.3.3" else queue.stream.start // UNIT.size

    def units(self, topic: str, queue_id: int) -> list[Unit]:
        queue = self.queue(topic, queue_id)
        low = self.min_offset(queue)
        return [unit for unit in queue.unit_list if unit.queue_offset >= low]

    def ext(self, topic: str, queue_id: int, address: int) -> tuple[int, int, bytes, int]:
        """(tagsCode, store timestamp, bit map, size) behind an ext address."""
        stream = Stream(self.root / "consumequeue_ext" / topic / str(queue_id))
        offset = address + (1 << 63)
        head = stream.at(offset, EXT_HEAD.size)
        assert head is not None, f"no ext unit at {offset}"
        size, tags, timestamp, bits = EXT_HEAD.unpack(head)
        whole = stream.at(offset, size)
        assert whole is not None
        assert size == EXT_HEAD.size + bits
        return tags, timestamp, whole[EXT_HEAD.size:], size

    def batch_units(self, topic: str, queue_id: int) -> list[BatchUnit]:
        units = []
        for _, data in Stream(self.root / "batchconsumequeue" / topic / str(queue_id)).files:
            for position in range(0, len(data) - BATCH_UNIT.size + 1, BATCH_UNIT.size):
                unit = BatchUnit(*BATCH_UNIT.unpack_from(data, position))
                if unit.size <= 0 or unit.batch_size <= 0:
                    return units
                units.append(unit)
        return units

    def compaction(self, topic: str, queue_id: int) -> Compaction:
        return Compaction(self.root / "compaction", topic, queue_id)

    # -- answers -----------------------------------------------------------------------------

    def pull(self, topic: str, queue_id: int, offset: int,
             count: int = 5) -> tuple[int, str, int, int, int, tuple[int, ...]]:
        """``getMessage`` of an ordinary queue."""
        queue = self.queue(topic, queue_id)
        low, high = self.min_offset(queue), queue.max
        if high == 0 and self.version == "4.9.3":
            return offset, "NO_MESSAGE_IN_QUEUE", 0, low, high, ()
        if offset < low:
            return offset, "OFFSET_TOO_SMALL", low, low, high, ()
        if offset == high:
            return offset, "OFFSET_OVERFLOW_ONE", offset, low, high, ()
        if offset > high:
            begin = low if self.version == "4.9.3" and low == 0 else high
            return offset, "OFFSET_OVERFLOW_BADLY", begin, low, high, ()
        physical_offsets: list[int] = []
        next_begin = offset
        for unit in queue.unit_list[offset - queue.unit_list[0].queue_offset:]:
            if unit.queue_offset >= queue.file_end(offset) or len(physical_offsets) == count:
                break
            next_begin = unit.queue_offset + 1
            if unit.physical_offset in self.records and unit.size != 0x7FFFFFFF:
                physical_offsets.append(unit.physical_offset)
        return offset, "FOUND", next_begin, low, high, tuple(physical_offsets)

    def pull_batch(self, topic: str, queue_id: int, offset: int,
                   count: int = 5) -> tuple[int, str, int, int, int, tuple[int, ...]]:
        """``getMessage`` of a BatchCQ: a batch counts as many messages, the first always fits."""
        units = self.batch_units(topic, queue_id)
        low = units[0].base_offset if units else 0
        high = units[-1].base_offset + units[-1].batch_size if units else 0
        if offset < low:
            return offset, "OFFSET_TOO_SMALL", low, low, high, ()
        if offset >= high:
            status = "OFFSET_OVERFLOW_ONE" if offset == high else "OFFSET_OVERFLOW_BADLY"
            return offset, status, high, low, high, ()
        physical_offsets: list[int] = []
        taken, next_begin = 0, offset
        for unit in units:
            end = unit.base_offset + unit.batch_size
            if end <= offset:
                continue
            if physical_offsets and taken + unit.batch_size > count:
                break
            physical_offsets.append(unit.physical_offset)
            taken, next_begin = taken + unit.batch_size, end
        return offset, "FOUND", next_begin, low, high, tuple(physical_offsets)

    def by_time(self, topic: str, queue_id: int, timestamp: int, boundary: str = "lower") -> int:
        queue = self.queue(topic, queue_id)
        if not queue.unit_list:
            return 0
        if self.version == "4.9.3":
            return self._nearest(queue, timestamp)
        return self._bound(queue, timestamp, upper=boundary == "upper")

    def _time(self, unit: Unit) -> int:
        message = self.records.get(unit.physical_offset)
        return -1 if message is None or unit.size == 0x7FFFFFFF else message.store_timestamp

    def _in_file(self, queue: Queue, number: int) -> list[Unit]:
        base, data = queue.stream.files[number]
        low, high = base // UNIT.size, (base + len(data)) // UNIT.size
        return [unit for unit in queue.unit_list if low <= unit.queue_offset < high]

    def _nearest(self, queue: Queue, timestamp: int) -> int:
        """4.9.3: the file by modification time, in it the nearest entry."""
        number = next((i for i, mtime in enumerate(queue.stream.mtimes_ms) if mtime >= timestamp),
                      len(queue.stream.files) - 1)
        units = self._in_file(queue, number)
        first = queue.stream.files[number][0] // UNIT.size
        low = max(0, self.min_offset(queue) - first)
        high = len(units) - 1
        left = right = -1
        left_time = right_time = -1
        while high >= low:
            middle = (low + high) // 2
            if units[middle].physical_offset < self.log.start:
                low, left = middle + 1, middle
                continue
            stored = self._time(units[middle])
            if stored < 0:
                return 0
            if stored == timestamp:
                return first + middle
            if stored > timestamp:
                high, right, right_time = middle - 1, middle, stored
            else:
                low, left, left_time = middle + 1, middle, stored
        if left_time == -1:
            return first + max(right, 0)
        if right_time == -1:
            return first + max(left, 0)
        nearer_left = abs(timestamp - left_time) <= abs(timestamp - right_time)
        return first + (left if nearer_left else right)

    def _bound(self, queue: Queue, timestamp: int, *, upper: bool) -> int:
        """5.3.3: the first entry not before (lower), the last not after (upper), clamped."""
        low = self.min_offset(queue)
        times = [(unit.queue_offset, self._time(unit)) for unit in queue.unit_list
                 if unit.queue_offset >= low]
        if upper:
            answer = max((offset for offset, time in times if time <= timestamp), default=0)
        else:
            answer = min((offset for offset, time in times if time >= timestamp),
                         default=queue.max)
        return min(max(answer, low), queue.max)

    def by_time_batch(self, topic: str, queue_id: int, timestamp: int,
                      boundary: str = "lower") -> int:
        """A BatchCQ: the file by its first time, in it a search with a quirk.

        Both boundaries want the first entry not before the time. The upper one walks there
        another way and can miss it; a miss is -1, clamped to the queue's min.
        """
        folder = self.root / "batchconsumequeue" / topic / str(queue_id)
        units = self.batch_units(topic, queue_id)
        if not units:
            return 0
        files = []
        for _, data in Stream(folder).files:
            size = len(data) // BATCH_UNIT.size
            files, units = [*files, units[:size]], units[size:]
        chosen = next((file for file in reversed(files) if file and
                       file[0].store_timestamp <= timestamp), files[0])
        if timestamp >= chosen[-1].store_timestamp:
            return chosen[-1].base_offset
        left, right, low = 0, len(chosen) - 1, files[0][0].base_offset
        while left <= right:
            middle = (left + right) // 2
            stored = chosen[middle].store_timestamp
            if middle in (left, right):
                if stored >= timestamp:
                    return max(chosen[middle].base_offset, low)
                if middle == right:
                    break
                left = middle + 1
            elif boundary == "upper":
                left, right = (middle, right) if stored <= timestamp else (left, middle - 1)
            else:
                left, right = (middle + 1, right) if stored < timestamp else (left, middle)
        return low

    def index_entries(self, topic: str, key: str, maximum: int, begin: int,
                      end: int) -> list[int]:
        """``queryOffset``: physical offsets of an index key, newest file and entry first."""
        text = f"{topic}#{key}"
        wanted = abs(java_hash(text))
        wanted = 0 if wanted == 1 << 31 else wanted
        maximum = min(maximum, 64)
        physicals: list[int] = []
        folder = self.root / "index"
        names = sorted(folder.iterdir(), reverse=True) if folder.is_dir() else []
        for file in names:
            data = file.read_bytes()
            first, last = struct.unpack_from(">qq", data)
            count = struct.unpack_from(">i", data, 36)[0]
            matched = ((begin < first and end > last) or first <= begin <= last
                       or first <= end <= last)
            if matched:
                for physical in self._chain(data, count, wanted, begin, end):
                    if len(physicals) == maximum:
                        break
                    physicals.append(physical)
            if first < begin or len(physicals) == maximum:
                break
        return physicals

    def _chain(self, data: bytes, count: int, wanted: int, begin: int,
               end: int) -> Iterator[int]:
        first = struct.unpack_from(">q", data)[0]
        number = struct.unpack_from(">i", data, 40 + 4 * (wanted % self.index_slots))[0]
        if number <= 0 or number > count or count <= 1:
            return
        while True:
            position = 40 + 4 * self.index_slots + 20 * number
            hash_, physical, seconds, previous = struct.unpack_from(">iqii", data, position)
            if seconds < 0:
                return
            time = first + seconds * 1000
            if hash_ == wanted and begin <= time <= end:
                yield physical
            if previous <= 0 or previous > count or previous == number or time < begin:
                return
            number = previous

    def query(self, topic: str, key: str, maximum: int, begin: int, end: int) -> list[int]:
        """``queryMessage``: up to three rounds; unreadable records are left out."""
        last_time = end
        for _ in range(3):
            offsets = sorted(self.index_entries(topic, key, maximum, begin, last_time))
            if not offsets:
                return []
            offsets_kept = [offset for offset in offsets if offset in self.records]
            if offsets_kept:
                return offsets_kept
            first = self.records.get(offsets[0])
            if first is None:
                return []
            last_time = first.store_timestamp
            if last_time < begin:
                return []
        return []


class Compaction:
    """The compaction store of one queue: sparse 46-byte units and a log of their own."""

    def __init__(self, folder: Path, topic: str, queue_id: int) -> None:
        self.log = Stream(folder / "compactionLog" / topic / str(queue_id))
        self.files: list[list[BatchUnit]] = []
        for _, data in Stream(folder / "compactionCq" / topic / str(queue_id)).files:
            units = []
            for position in range(0, len(data) - BATCH_UNIT.size + 1, BATCH_UNIT.size):
                unit = BatchUnit(*BATCH_UNIT.unpack_from(data, position))
                if unit.physical_offset < 0 or unit.size <= 0:
                    break
                units.append(unit)
            self.files.append(units)

    @property
    def units(self) -> list[BatchUnit]:
        return [unit for file in self.files for unit in file]

    def records(self) -> list[Record]:
        messages = []
        for unit in self.units:
            data = self.log.at(unit.physical_offset, unit.size)
            message = None if data is None else record(data)
            assert message is not None, f"no record at {unit.physical_offset}"
            messages.append(message)
        return messages

    def pull(self, offset: int, count: int = 5) -> tuple[str, int, int, int, tuple[int, ...]]:
        """(status, next begin, min, max, offsets): asking below the min starts at the min."""
        units = self.units
        low = units[0].base_offset if units else 0
        high = units[-1].base_offset + 1 if units else 0
        if offset == high:
            return "OFFSET_OVERFLOW_ONE", offset, low, high, ()
        if offset > high:
            return "OFFSET_OVERFLOW_BADLY", high, low, high, ()
        start = next(i for i, unit in enumerate(units) if unit.base_offset >= offset)
        ends, total = [], 0
        for file in self.files:
            total += len(file)
            ends.append(total)
        file_end = next(end for end in ends if end > start)
        taken = units[start:min(start + count, file_end)]
        return ("FOUND", taken[-1].base_offset + 1, low, high,
                tuple(unit.physical_offset for unit in taken))
