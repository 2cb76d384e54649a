"""A writer of small stores, made from the format pages with ``struct``; nothing of rmqctl.

    writer = Writer(Layout(log_file_size=32 << 10))
    put = writer.put("orders", b"hello", queue_id=1, keys="k1 k2")
    writer.put("orders", framed([frame("orders", b"false", 7)]))
    writer.write(folder)

What is put is written as a broker writes it (commitlog.md §2, consumequeue.md §2-§4, index.md,
checkpoint-and-small-files.md). Everything that an adversary chooses can be said: bodies that hold
frames (`frame`, `framed`), every header field, bytes changed afterwards (`Writer.patch`), rows and
keys that are not written (``row=False``, ``indexed=False``), a clock that jumps (`Writer.clock`),
sizes of all files, index files of any slots and entries.
"""

from __future__ import annotations

import ipaddress
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.support.model import java_hash

V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
EPOCH = 1_700_000_000_000
"""Store time of the first message, unless a writer's clock is set."""
COMPRESSED, PREPARED, COMMIT, ROLLBACK, BORN_V6, STORED_V6 = 0x1, 0x4, 0x8, 0xC, 0x10, 0x20
FILLER_UNIT = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)
UNIT, SLOT, ENTRY = 20, 4, 20
DELAYS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds of the delay levels 1 to 18."""

Host = tuple[str, int]
Body = bytes | Callable[[int], bytes]
"""Bytes, or what gives them for the physical offset of their first byte, always as many."""


# -- records --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Header:
    """The fields of a record which a broker copies or makes; None is what a broker would store."""

    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int | None = None
    born_host: Host = ("10.0.0.7", 52011)
    store_timestamp: int | None = None
    store_host: Host = ("10.0.0.1", 10911)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int | None = None
    queue_offset: int | None = None
    physical_offset: int | None = None
    magic: int | None = None


def host(value: Host) -> tuple[bytes, bool]:
    """Address and port as stored, and whether it is of IPv6. The port is any i32."""
    address = ipaddress.ip_address(value[0])
    return address.packed + struct.pack(">i", value[1]), address.version == 6


def record(topic: str | bytes, body: bytes, properties: bytes, queue_id: int, queue_offset: int,
           physical_offset: int, header: Header, time: int) -> bytes:
    """One message record (commitlog.md §2.1, §2.2): v2 for topics of more than 127 bytes."""
    name = topic.encode() if isinstance(topic, str) else topic
    born, born_v6 = host(header.born_host)
    stored, stored_v6 = host(header.store_host)
    magic = header.magic or (V2 if len(name) > 127 else V1)
    sys_flag = header.sys_flag | BORN_V6 * born_v6 | STORED_V6 * stored_v6
    crc = zlib.crc32(body) & 0x7FFFFFFF if header.body_crc is None else header.body_crc
    store_time = time if header.store_timestamp is None else header.store_timestamp
    born_time = store_time - 5 if header.born_timestamp is None else header.born_timestamp
    rest = (struct.pack(">iiiqqi", crc, queue_id, header.flag,
                        queue_offset if header.queue_offset is None else header.queue_offset,
                        physical_offset if header.physical_offset is None
                        else header.physical_offset, sys_flag)
            + struct.pack(">q", born_time) + born + struct.pack(">q", store_time) + stored
            + struct.pack(">iqi", header.reconsume_times, header.prepared_transaction_offset,
                          len(body))
            + body + struct.pack(">H" if magic == V2 else ">B", len(name)) + name
            + struct.pack(">h", len(properties)) + properties)
    return struct.pack(">iI", 8 + len(rest), magic) + rest


def field_places(raw: bytes) -> dict[str, tuple[int, int]]:
    """Place and width in a record of every field which says where it lies and how long it is."""
    magic, = struct.unpack_from(">I", raw, 4)
    sys_flag, = struct.unpack_from(">i", raw, 36)
    body_length = 84 + 12 * bool(sys_flag & BORN_V6) + 12 * bool(sys_flag & STORED_V6)
    body, = struct.unpack_from(">i", raw, body_length)
    topic_length = body_length + 4 + body
    wide = 2 if magic == V2 else 1
    topic = raw[topic_length + wide - 1]
    return {"total_size": (0, 4), "magic": (4, 4), "body_crc": (8, 4), "queue_id": (12, 4),
            "queue_offset": (20, 8), "physical_offset": (28, 8), "sys_flag": (36, 4),
            "body_length": (body_length, 4), "body": (body_length + 4, body),
            "topic_length": (topic_length, wide),
            "properties_length": (topic_length + wide + topic, 2)}


def property_bytes(pairs: Mapping[str, str], *, closed: bool) -> bytes:
    """key 01 value 02 …; ``closed``: the last pair has its 02, too (commitlog.md §5.1)."""
    joined = "\x02".join(f"{key}\x01{value}" for key, value in pairs.items())
    return (joined + ("\x02" if closed and joined else "")).encode()


SEAL = b"__CRC32#\x01" + b"0" * 10 + b"\x02"
"""An appended CRC, of 0."""


def sealed(raw: bytes) -> bytes:
    """A record whose last bytes are `SEAL`, with its CRC there (commitlog.md §5.4)."""
    crc = zlib.crc32(raw[:-len(SEAL)]) & 0x7FFFFFFF
    return raw[:-11] + f"{crc:010d}"[::-1].encode() + b"\x02"


# -- hostile bodies -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """A record that shall lie inside a body. ``inner`` are frames in its own body."""

    topic: str
    body: bytes
    queue_id: int = 0
    queue_offset: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    header: Header = Header()
    inner: tuple[Frame, ...] = ()

    def at(self, place: int, time: int = EPOCH) -> bytes:
        """Its bytes, with the physical offset ``place``."""
        empty = record(self.topic, b"", b"", self.queue_id, 0, 0, self.header, time)
        body, at = bytearray(self.body), place + field_places(empty)["body"][0] + len(self.body)
        for frame in self.inner:
            body += frame.at(at + len(body) - len(self.body), time)
        return record(self.topic, bytes(body), property_bytes(self.properties, closed=True),
                      self.queue_id, self.queue_offset, place, self.header, time)


def frame(topic: str, body: bytes, queue_offset: int = 0, *, queue_id: int = 0,
          properties: Mapping[str, str] | None = None, header: Header | None = None,
          inner: Iterable[Frame] = ()) -> Frame:
    return Frame(topic, body, queue_id, queue_offset, properties or {}, header or Header(),
                 tuple(inner))


def framed(frames: Sequence[Frame], *, before: bytes = b"", between: bytes = b"",
           after: bytes = b"", shift: int = 0, time: int = EPOCH) -> Callable[[int], bytes]:
    """A body of frames whose physical offsets are true where they lie.

    ``shift`` is added to these: not 0, they fit somewhere else.
    """
    def body_at(place: int) -> bytes:
        out = bytearray(before)
        for number, frame in enumerate(frames):
            if number:
                out += between
            out += frame.at(place + len(out) + shift, time)
        return bytes(out + after)
    return body_at


def blank_record(size: int) -> bytes:
    """The head of an END_OF_FILE record which says ``size`` bytes."""
    return struct.pack(">iI", size, BLANK)


# -- the store ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Sizes and versions. ``version`` 4 or 5: what properties, abort and checkpoint are like."""

    log_file_size: int = 64 << 10
    queue_file_units: int = 100
    index_slots: int = 16
    index_entries: int = 64
    """maxIndexNum: a file holds one entry fewer."""
    version: int = 5
    first_file: int = 0
    """The physical offset of the log's first file, a multiple of its size."""
    spare_file: bool = False
    """Whether the next log file is there already, all zeros."""
    with_index: bool = True
    with_queues: bool = True
    with_config: bool = True
    abort: bool = False
    queues: int = 4
    """Read and write queues of each topic in topics.json."""
    clock_step: int = 1700
    sealed: bool = False
    """Whether each message ends with an appended CRC (commitlog.md §5.4)."""


@dataclass(frozen=True)
class Put:
    """A message as it was put. ``rows``: (topic, queue id, queue offset) of its units."""

    physical: int
    raw: bytes
    topic: str
    queue_id: int
    queue_offset: int
    body_at: int
    body: bytes
    time: int
    rows: tuple[tuple[str, int, int], ...]

    @property
    def size(self) -> int:
        return len(self.raw)

    @property
    def end(self) -> int:
        return self.physical + self.size


@dataclass
class IndexFile:
    """One index file, entry by entry (index.md §6)."""

    slots: int
    entries: int
    begin_time: int = 0
    end_time: int = 0
    begin: int = 0
    end: int = 0
    used_slots: int = 0
    count: int = 1
    named_by: int = EPOCH
    slot: dict[int, int] = field(default_factory=dict)
    entry: list[tuple[int, int, int, int]] = field(default_factory=list)

    def put(self, key: str, physical: int, time: int) -> None:
        number = abs(java_hash(key))
        number = 0 if number == 1 << 31 else number
        at = number % self.slots
        seconds = (time - self.begin_time) // 1000 if self.begin_time > 0 else 0
        seconds = min(max(0, seconds), 0x7FFFFFFF)
        before = self.slot.get(at, 0)
        self.entry.append((number, physical, seconds, before))
        self.slot[at] = self.count
        if self.count <= 1:
            self.begin, self.begin_time = physical, time
        self.used_slots += not before
        self.count += 1
        self.end, self.end_time = physical, time

    @property
    def full(self) -> bool:
        return self.count >= self.entries

    @property
    def name(self) -> str:
        moment = datetime.fromtimestamp(self.named_by / 1000, UTC)
        return moment.strftime("%Y%m%d%H%M%S") + f"{self.named_by % 1000:03d}"

    def parts(self) -> dict[int, bytes]:
        """The bytes by place."""
        count = self.count if self.count > 1 else 0
        out = {0: struct.pack(">qqqqii", self.begin_time, self.end_time, self.begin, self.end,
                              self.used_slots, count)}
        for at, number in self.slot.items():
            out[40 + SLOT * at] = struct.pack(">i", number)
        first = 40 + SLOT * self.slots
        for number, entry in enumerate(self.entry, 1):
            out[first + ENTRY * number] = struct.pack(">iqii", *entry)
        return out

    @property
    def size(self) -> int:
        return 40 + SLOT * self.slots + ENTRY * self.entries


class Writer:
    """Puts messages in memory; `write` makes the store. Everything is open to be changed before.

    ``log``: bytes by base of each file, cut at what is written; ``rows``: units by queue, by their
    queue offset; ``index``: its files; ``offsets``: consumerOffset.json; ``puts``: all messages.
    """

    def __init__(self, layout: Layout | None = None, seed: int = 0, clock: int = EPOCH) -> None:
        self.layout = layout or Layout()
        self.random = random.Random(seed)
        self.clock = clock
        self.log: dict[int, bytearray] = {self.layout.first_file: bytearray()}
        self.rows: dict[tuple[str, int], dict[int, bytes]] = {}
        self.next_offset: dict[tuple[str, int], int] = {}
        self.index: list[IndexFile] = []
        self.puts: list[Put] = []
        self.topics: dict[str, int] = {}
        self.offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.checkpoint: dict[str, int] = {}
        self._patches: list[tuple[int, bytes]] = []

    # -- putting ----------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The physical offset behind the last byte written."""
        base = max(self.log)
        return base + len(self.log[base])

    def put(self, topic: str, body: Body = b"", *, queue_id: int = 0, tags: str = "",
            keys: str = "", unique_key: str | None = None, delay_level: int = 0,
            properties: Mapping[str, str] | None = None, properties_raw: bytes | None = None,
            header: Header | None = None, lmq: Sequence[str] = (), row: bool = True,
            indexed: bool = True) -> Put:
        """Appends a message as a broker does, with its row and its keys.

        ``header``: fields that are not what a broker would store. ``unique_key`` "" gives none.
        ``row``, ``indexed``: False leaves them out, as if they had not been dispatched yet.
        """
        header = header or Header()
        number = len(self.puts)
        pairs = dict(properties or {})
        if unique_key != "":
            pairs.setdefault("UNIQ_KEY", unique_key or f"0A000007CAFE{number:020X}")
        pairs |= {name: value for name, value in (
            ("KEYS", keys), ("TAGS", tags), ("DELAY", str(delay_level or ""))) if value}
        if lmq:
            places = [self._offset(name, 0 if name.startswith("%LMQ%") else queue_id)
                      for name in lmq]
            pairs |= {"INNER_MULTI_DISPATCH": ",".join(lmq),
                      "INNER_MULTI_QUEUE_OFFSET": ",".join(map(str, places))}
        raw_properties = (property_bytes(pairs, closed=self.layout.version >= 5)
                          if properties_raw is None else properties_raw)
        if self.layout.sealed:
            closed = not raw_properties or raw_properties.endswith(b"\x02")
            raw_properties += (b"" if closed else b"\x02") + SEAL
        time = self.clock if header.store_timestamp is None else header.store_timestamp
        kind = header.sys_flag & ROLLBACK
        has_row = kind in (0, COMMIT)
        key = topic, queue_id
        queue_offset = self._offset(*key) if has_row else 0

        # How large it is does not depend on where it lies, so roll first, then encode.
        def encode(place: int) -> tuple[int, bytes, bytes]:
            empty = record(topic, b"", raw_properties, queue_id, queue_offset, place, header, time)
            body_at = place + field_places(empty)["body"][0]
            content = body if isinstance(body, bytes) else body(body_at)
            return body_at, content, self._sealed(record(
                topic, content, raw_properties, queue_id, queue_offset, place, header, time))

        size = len(encode(self.end)[2])
        self._make_room(size)
        body_at, content, raw = encode(self.end)
        assert len(raw) == size, "a body's length must not depend on its place"
        physical = self.end
        self.log[max(self.log)] += raw

        # Rows: that of its own queue, those of light message queues.
        rows: list[tuple[str, int, int]] = []
        code = java_hash(tags) if tags else 0
        if topic == "SCHEDULE_TOPIC_XXXX" and delay_level:
            code = time + 1000 * DELAYS[min(delay_level, len(DELAYS)) - 1]
        if has_row:
            rows.append((topic, queue_id, queue_offset))
        if lmq:
            rows += [(name, 0 if name.startswith("%LMQ%") else queue_id, place)
                     for name, place in zip(lmq, places, strict=True)]
        for name, queue, place in rows:
            self.next_offset[name, queue] = place + 1
            if row:
                self.rows.setdefault((name, queue), {})[place] = struct.pack(
                    ">qiq", physical, size, code)
        if indexed and kind != ROLLBACK:
            self.dispatch_keys(topic, pairs, physical, time)
        self.topics[topic] = max(self.topics.get(topic, self.layout.queues), queue_id + 1)
        put = Put(physical, raw, topic, queue_id, queue_offset, body_at, content, time,
                  tuple(rows))
        self.puts.append(put)
        self.clock += self.layout.clock_step
        return put

    def _sealed(self, raw: bytes) -> bytes:
        return sealed(raw) if self.layout.sealed else raw

    def dispatch_keys(self, topic: str, pairs: Mapping[str, str], physical: int,
                      time: int) -> None:
        """Puts a message's keys into the index; the file is made and rolled as a broker does."""
        layout = self.layout
        if not self.index or self.index[-1].full:
            index_file = IndexFile(layout.index_slots, layout.index_entries, named_by=time)
            if self.index:
                before = self.index[-1]
                index_file.begin = index_file.end = before.end
                index_file.begin_time = index_file.end_time = before.end_time
            self.index.append(index_file)
        keys = [pairs["UNIQ_KEY"]] if "UNIQ_KEY" in pairs else []
        for key in keys + [part for part in pairs.get("KEYS", "").split(" ") if part]:
            if self.index[-1].full:
                self.dispatch_keys(topic, {}, physical, time)
            self.index[-1].put(f"{topic}#{key}", physical, time)

    def _offset(self, topic: str, queue_id: int) -> int:
        return self.next_offset.get((topic, queue_id), 0)

    def roll(self) -> None:
        """Closes the log file with its blank record and begins the next one."""
        base = max(self.log)
        room = self.layout.log_file_size - len(self.log[base])
        if room:
            assert room >= 8, "no room for the blank record"
            self.log[base] += blank_record(room) + bytes(room - 8)
        self.log[base + self.layout.log_file_size] = bytearray()

    def _make_room(self, size: int) -> None:
        assert size + 8 <= self.layout.log_file_size, "larger than a log file"
        if size + 8 > self.layout.log_file_size - len(self.log[max(self.log)]):
            self.roll()

    def room(self) -> int:
        """Bytes left in the last log file; a record may have 8 fewer."""
        return self.layout.log_file_size - len(self.log[max(self.log)])

    # -- damage -----------------------------------------------------------------------------------

    def patch(self, physical: int, data: bytes) -> None:
        """Bytes that are laid over the log when it is written."""
        self._patches.append((physical, data))

    def flip(self, physical: int, bit: int = 0) -> None:
        """Turns bit ``bit`` (0 is the lowest) of the byte at ``physical``."""
        base = physical - physical % self.layout.log_file_size
        self.patch(physical, bytes([self.log[base][physical - base] ^ (1 << bit)]))

    def tear(self, physical: int, *, rows: bool = True) -> None:
        """Zeros from ``physical`` to the end of its file, as a crash leaves what was not flushed.

        ``rows``: rows and keys of messages cut by it stay, as they were dispatched; else they go.
        """
        base = physical - physical % self.layout.log_file_size
        self.patch(physical, bytes(self.layout.log_file_size - (physical - base)))
        if not rows:
            for units in self.rows.values():
                for at in [at for at, unit in units.items() if sum(struct.unpack(
                        ">qi", unit[:12])) > physical]:
                    del units[at]

    # -- files ------------------------------------------------------------------------------------

    def write(self, folder: Path) -> Path:
        """Makes the store in ``folder``; called again it brings a store up to date, in place."""
        layout = self.layout
        size = layout.log_file_size
        bases = sorted(self.log)
        for base in bases + ([bases[-1] + size] if layout.spare_file else []):
            parts = {0: bytes(self.log.get(base, b""))}
            _lay(folder / "commitlog" / f"{base:020d}", size, parts)
        for physical, data in self._patches:
            base = physical - physical % size
            _lay(folder / "commitlog" / f"{base:020d}", size, {physical - base: data})
        if layout.with_queues:
            for (topic, queue_id), units in self.rows.items():
                self._queue(folder / "consumequeue" / topic / str(queue_id), units)
        if layout.with_index:
            for index_file in self.index:
                _lay(folder / "index" / index_file.name, index_file.size, index_file.parts())
        self._small_files(folder)
        return folder

    def _queue(self, folder: Path, units: Mapping[int, bytes]) -> None:
        """Files of a queue: fillers before its first unit, zeros for what is missing."""
        if not units:
            return
        per_file = self.layout.queue_file_units
        first = min(units)
        files: dict[int, dict[int, bytes]] = {}
        for at in range(first - first % per_file, first):
            files.setdefault(at // per_file, {})[UNIT * (at % per_file)] = FILLER_UNIT
        for at, unit in units.items():
            files.setdefault(at // per_file, {})[UNIT * (at % per_file)] = unit
        for number, parts in files.items():
            _lay(folder / f"{number * per_file * UNIT:020d}", per_file * UNIT, parts)

    def _small_files(self, folder: Path) -> None:
        last = self.puts[-1].time if self.puts else 0
        full = [index_file.end_time for index_file in self.index if index_file.full]
        values = {"physic": last, "logics": last, "index": max(full, default=0),
                  "master_flushed": 0, "confirm": self.end if self.layout.version >= 5 else 0}
        values |= self.checkpoint
        _lay(folder / "checkpoint", 4096, {0: struct.pack(">5q", *values.values())})
        (folder / "lock").write_bytes(b"lock")
        if self.layout.abort:
            (folder / "abort").write_bytes(b"4711" if self.layout.version >= 5 else b"")
        if self.layout.with_config:
            self._config(folder / "config")

    def _config(self, folder: Path) -> None:
        version = {"counter": 1, **({"stateVersion": 0} if self.layout.version >= 5 else {}),
                   "timestamp": EPOCH}
        topics = {name: {"order": False, "perm": 6, "readQueueNums": queues,
                         "topicFilterType": "SINGLE_TAG", "topicName": name, "topicSysFlag": 0,
                         "writeQueueNums": queues} for name, queues in self.topics.items()}
        _json(folder / "topics.json", {"dataVersion": version, "topicConfigTable": topics})
        groups = sorted({group for _, group in self.offsets})
        _json(folder / "subscriptionGroup.json", {
            "dataVersion": version,
            "subscriptionGroupTable": {name: {"consumeEnable": True, "groupName": name,
                                              "retryMaxTimes": 16, "retryQueueNums": 1}
                                       for name in groups}})
        table = {f"{topic}@{group}": {str(queue): place for queue, place in places.items()}
                 for (topic, group), places in self.offsets.items()}
        _json(folder / "consumerOffset.json", {"dataVersion": version, "offsetTable": table})


def _lay(path: Path, size: int, parts: Mapping[int, bytes]) -> None:
    """Bytes into a file of ``size`` bytes, the rest as it was (zeros in a new one)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_bytes(b"")
    with path.open("r+b") as file:
        if path.stat().st_size < size:
            file.truncate(size)
        for at, data in parts.items():
            file.seek(at)
            file.write(data)


def _json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent="\t"))
