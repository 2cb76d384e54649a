"""Tiers made by a test: messages, segments, codas, index files and metadata, byte by byte.

Written apart from the package's own writers, so that a reader is not proven by its twin.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from rmqctl.formats.local import message
from rmqctl.formats.local.message import MAGIC_V1, Record
from rmqctl.formats.local.sysflag import BORN_HOST_V6
from tests.support.model import java_hash

T0 = 1_700_000_000_000
CLUSTER, BROKER, TOPIC = "DefaultCluster", "broker-a", "orders"


def segment_name(base: int) -> str:
    return hashlib.md5(str(base).encode()).hexdigest()[:8] + f"{base:020d}"


def index_hash(topic: str, key: str, masked: bool = False) -> int:
    value = java_hash(f"{topic}#{key}")
    if masked:
        return value & 0x7FFFFFFF
    return -value if value < 0 else value


def record(queue_offset: int, at: int, *, topic: str = TOPIC, queue_id: int = 0,
           body: bytes = b"body", when: int = T0, v6: bool = False, **properties: str) -> Record:
    """A stored message as it lies in a tier at offset ``at``."""
    props = "".join(f"{name}\1{value}\2" for name, value in properties.items()).encode()
    record = Record(0, MAGIC_V1, zlib.crc32(body) & 0x7FFFFFFF, queue_id, 0, queue_offset, at,
                    BORN_HOST_V6 if v6 else 0, when - 5, (bytes(16) if v6 else b"\x0a\0\0\1", 4711),
                    when, (b"\x0a\0\0\2", 10911), 0, 0, body, topic.encode(), props)
    size = message.size_of(record.sys_flag, record.magic, len(body), len(record.topic), len(props))
    return replace(record, total_size=size)


@dataclass
class Queue:
    """One queue of a tier in the making; ``first`` is its first queue offset."""

    topic: str = TOPIC
    queue_id: int = 0
    first: int = 0
    log_start: int = 0
    broker: str = BROKER
    logs: list[tuple[int, bytearray]] = field(default_factory=list)
    units: list[tuple[int, bytearray]] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.logs.append((self.log_start, bytearray()))
        self.units.append((self.first * 20, bytearray()))

    @property
    def log_end(self) -> int:
        base, data = self.logs[-1]
        return base + len(data)

    def put(self, body: bytes = b"body", *, when: int | None = None, v6: bool = False,
            coda_first: bool = False, **properties: str) -> Record:
        """A message and its unit. ``coda_first``: the unit leads to a coda in front of it."""
        number = self.first + sum(len(data) for _, data in self.units) // 20
        unit_at = self.log_end
        if coda_first:
            self.coda()
        stored_record = record(number, self.log_end, topic=self.topic, queue_id=self.queue_id,
                               body=body,
                               when=T0 + 1000 * number if when is None
                               else when, v6=v6, **properties)
        self.logs[-1][1].extend(message.build(stored_record))
        code = java_hash(properties["TAGS"]) if "TAGS" in properties else 0
        self.units[-1][1].extend(struct.pack(
            ">qiq", unit_at if coda_first
            else stored_record.physical_offset, stored_record.total_size, code))
        self.records.append(stored_record)
        return stored_record

    def orphan(self, data: bytes = b"\x7f" * 77) -> None:
        self.logs[-1][1].extend(data)

    def coda(self) -> None:
        self.logs[-1][1].extend(struct.pack(">iIq", 16, 0xCBD43194, T0))

    def roll_log(self, coda: bool = False) -> None:
        if coda:
            self.coda()
        self.logs.append((self.log_end, bytearray()))

    def roll_units(self) -> None:
        base, data = self.units[-1]
        self.units.append((base + len(data), bytearray()))

    def folder(self, root: Path) -> Path:
        cluster = hashlib.md5(CLUSTER.encode()).hexdigest()[:8] + "_" + CLUSTER
        return root / cluster / self.broker / self.topic / str(self.queue_id)

    def log_path(self, root: Path, number: int = 0) -> Path:
        return self.folder(root) / "COMMIT_LOG" / segment_name(self.logs[number][0])

    def units_path(self, root: Path, number: int = 0) -> Path:
        return self.folder(root) / "CONSUME_QUEUE" / segment_name(self.units[number][0])

    def write(self, root: Path) -> None:
        for kind, segments in (("COMMIT_LOG", self.logs), ("CONSUME_QUEUE", self.units)):
            folder = self.folder(root) / kind
            folder.mkdir(parents=True, exist_ok=True)
            for base, data in segments:
                (folder / segment_name(base)).write_bytes(data)


@dataclass
class Index:
    """One index file in the making: ``items`` are (hash, topic id, queue, offset, size, diff)."""

    begin: int
    slots: int = 7
    max_items: int = 40
    items: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)

    def add(self, record: Record, key: str, *, topic_id: int = 0, masked: bool = False,
            key_hash: int | None = None) -> None:
        number = index_hash(record.topic.decode(), key, masked) if key_hash is None else key_hash
        diff = int((record.store_timestamp - self.begin) / 1000)
        self.items.append((number, topic_id, record.queue_id, record.physical_offset,
                           record.total_size,                            diff))

    def _chains(self) -> dict[int, list[int]]:
        chains: dict[int, list[int]] = {}
        for number, item in enumerate(self.items, 1):
            chains.setdefault(item[0] % self.slots, []).insert(0, number)
        return chains

    def _header(self, magic: int) -> bytes:
        return struct.pack(">Iqqii", magic, self.begin, self.begin, len(self._chains()),
                           len(self.items))

    def open_form(self) -> bytes:
        chains = self._chains()
        heads = [chains.get(slot, [0])[0] for slot in range(self.slots)]
        previous = {number: chain[at + 1] if at + 1 < len(chain) else 0
                    for chain in chains.values() for at, number in enumerate(chain)}
        out = self._header(0xBCC50289) + b"".join(struct.pack(">ii", head, 0) for head in heads)
        out += bytes(32) + b"".join(struct.pack(">iiiqiii", *item, previous[number])
                                    for number, item in enumerate(self.items, 1))
        return out.ljust(28 + 8 * self.slots + 32 * self.max_items, b"\0")

    def compacted(self) -> bytes:
        chains = self._chains()
        at = 28 + 8 * self.slots
        heads, body = b"", b""
        for slot in range(self.slots):
            value = chains.get(slot, [])
            heads += struct.pack(">ii", at, 28 * len(value))
            body += b"".join(struct.pack(">iiiqii", *self.items[item - 1]) for item in value)
            at += 28 * len(value)
        return self._header(0xBCC50285) + heads + body


def upload(root: Path, *files: bytes, broker: str = BROKER) -> list[int]:
    """Puts compacted index files into a tier; their bases."""
    queue = Queue("rmq_sys_INDEX", 0, broker=broker)
    folder = queue.folder(root) / "INDEX"
    folder.mkdir(parents=True)
    base, bases = 0, []
    for data in files:
        (folder / segment_name(base)).write_bytes(data)
        bases.append(base)
        base += len(data)
    return bases


def write_metadata(home: Path, topics: dict[str, int], queues: list[Queue],
                   index: dict[int, Index] | None = None) -> Path:
    """``config/tieredStoreMetadata.json`` below ``home`` with what a reader looks at."""
    def entry(path: str, kind: int, base: int, size: int, begin: int,
              end: int) -> dict[str, object]:
        return {"path": path, "type": kind, "baseOffset": base, "status": 0, "size": size,
                "createTimestamp": T0, "beginTimestamp": begin, "endTimestamp": end,
                "sealTimestamp": 0}

    tables: list[dict[str, dict[int, object]]] = [{}, {}, {}]
    for queue in queues:
        path = f"{queue.broker}/{queue.topic}/{queue.queue_id}"
        for kind, segments in ((0, queue.logs), (1, queue.units)):
            for base, data in segments:
                if kind:
                    part = queue.records[base // 20 - queue.first:(base + len(data)) // 20
                                         - queue.first]
                else:
                    part = [record for record in queue.records
                            if base <= record.physical_offset < base + len(data)]
                # As a broker: bytes 56 to 63, whatever lies there.
                times = [int.from_bytes(message.build(record)[56:64], signed=True)
                         for record in part]
                begin, end = (min(times), max(times)) if times else ((1 << 63) - 1,) * 2
                tables[kind].setdefault(path, {})[base] = entry(path, kind, base, len(data), begin,
                                                               end)
    for base, name in (index or {}).items():
        path = f"{BROKER}/rmq_sys_INDEX/0"
        tables[2].setdefault(path, {})[base] = entry(path, 2, base, len(name.compacted()),
                                                     name.begin, name.begin)
    named: dict[str, dict[int, object]] = {}
    for queue in queues:
        named.setdefault(queue.topic, {})[queue.queue_id] = {
            "queue": {"brokerName": queue.broker, "queueId": queue.queue_id, "topic": queue.topic},
            "minOffset": -1, "maxOffset": -1, "updateTimestamp": T0}
    value = {
        "commitLogFileSegmentTable": tables[0], "consumeQueueFileSegmentTable": tables[1],
        "indexFileSegmentTable": tables[2],
        "queueMetadataTable": named,
        "topicMetadataTable": {name: {"topicId": number, "topic": name, "status": 0,
                                      "reserveTime": -1, "updateTimestamp": T0}
                               for name, number in topics.items()},
        "topicSerialNumber": max(topics.values(), default=-1)}
    (home / "config").mkdir(parents=True, exist_ok=True)
    written = home / "config" / "tieredStoreMetadata.json"
    written.write_text(json.dumps(value))
    return written


def small_tier(root: Path, home: Path) -> Queue:
    """A tier of one queue with an uploaded and an open index file; metadata below ``home``."""
    queue = Queue()
    index = Index(T0)
    for number in range(5):
        index.add(queue.put(KEYS=f"k{number}", TAGS="A"), f"k{number}")
    queue.write(root)
    upload(root, index.compacted())
    write_metadata(home, {TOPIC: 0}, [queue], {0: index})
    local = home / "tiered_index_file"
    local.mkdir()
    (local / str(T0 + 1)).write_bytes(Index(T0 + 1).open_form())
    return queue
