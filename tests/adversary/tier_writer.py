"""A writer of small tiers, made from the format page (tiered.md §1-§6); nothing of rmqctl.

    writer = TierWriter()
    writer.put(b"hello", keys="k1")
    writer.roll()                     # the next commit log segment
    writer.put(framed([frame("orders", b"false", 2)]))
    writer.write(tmp_path / "store")  # store/tieredstore, store/config

One queue, whose segments, units and index items are open to be changed before they are written.
Places are offsets in the queue's tiered commit log.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from dataclasses import dataclass, field
from pathlib import Path

from tests.adversary.writer import (
    EPOCH,
    Body,
    Header,
    Put,
    field_places,
    java_hash,
    property_bytes,
    record,
)

CLUSTER, BROKER, TOPIC, QUEUE = "DefaultCluster", "broker-a", "orders", 1
TOPIC_ID = 4
NEVER = (1 << 63) - 1


def segment_name(base: int) -> str:
    return hashlib.md5(str(base).encode()).hexdigest()[:8] + f"{base:020d}"


def cluster_folder() -> str:
    return f"{hashlib.md5(CLUSTER.encode()).hexdigest()[:8]}_{CLUSTER}"


def index_hash(key: str) -> int:
    """§5.4, up to 5.3.3."""
    return abs(java_hash(f"{TOPIC}#{key}"))


def keys_of(pairs: dict[str, str]) -> list[str]:
    names = [pairs["UNIQ_KEY"]] if pairs.get("UNIQ_KEY") else []
    return list(dict.fromkeys(names + [part for part in pairs.get("KEYS", "").split(" ") if part]))


@dataclass
class TierWriter:
    """``segments``: bytes of the commit log by base; ``units`` by queue offset; ``items``:
    (hash, offset, size, store time) in the order in which they were put.
    """

    first: int = 0
    unit_segment: int = 5
    """Units in a segment of the consume queue."""
    coda: bool = False
    """Whether segments are closed with a coda, as 5.1 and 5.2 did."""
    slots: int = 7
    segments: dict[int, bytearray] = field(default_factory=lambda: {0: bytearray()})
    units: dict[int, bytes] = field(default_factory=dict)
    items: list[tuple[int, int, int, int]] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    with_units: bool = True
    with_index: bool = True
    with_metadata: bool = True
    clock: int = EPOCH
    random: random.Random = field(default_factory=lambda: random.Random(5))
    next_offset: dict[tuple[str, int], int] = field(default_factory=dict)
    _patches: list[tuple[int, bytes]] = field(default_factory=list)
    _torn: int | None = None

    @property
    def end(self) -> int:
        base = max(self.segments)
        return base + len(self.segments[base])

    def put(self, body: Body, *, keys: str = "", tags: str = "",
            properties_raw: bytes | None = None) -> Put:
        """A message at the end of the commit log, with its unit and its items."""
        queue_offset = self.next_offset.setdefault((TOPIC, QUEUE), self.first)
        pairs = {"UNIQ_KEY": f"0A000007CAFE{queue_offset:020X}", "KEYS": keys, "TAGS": tags}
        pairs = {name: value for name, value in pairs.items() if value}
        raw_properties = (property_bytes(pairs, closed=True) if properties_raw is None
                          else properties_raw)
        if properties_raw is not None:
            pairs = dict(pair.split("\x01") for pair in properties_raw.decode().split("\x02")
                         if pair)
        place = self.end
        empty = record(TOPIC, b"", raw_properties, QUEUE, queue_offset, place, Header(),
                       self.clock)
        body_at = place + field_places(empty)["body"][0]
        content = body if isinstance(body, bytes) else body(body_at)
        raw = record(TOPIC, content, raw_properties, QUEUE, queue_offset, place, Header(),
                     self.clock)
        self.segments[max(self.segments)] += raw
        self.units[queue_offset] = struct.pack(">qiq", place, len(raw),
                                               java_hash(tags) if tags else 0)
        self.items += [(index_hash(key), place, len(raw), self.clock) for key in keys_of(pairs)]
        self.next_offset[TOPIC, QUEUE] = queue_offset + 1
        put = Put(place, raw, TOPIC, QUEUE, queue_offset, body_at, content, self.clock,
                  ((TOPIC, QUEUE, queue_offset),))
        self.puts.append(put)
        self.clock += 1700
        return put

    def roll(self) -> None:
        """The segment is full: the next one begins where it ends (§2)."""
        if self.coda:
            self.segments[max(self.segments)] += struct.pack(">iIq", 16, 0xCBD43194, self.clock)
        self.segments[self.end] = bytearray()

    # -- damage -----------------------------------------------------------------------------------

    def patch(self, place: int, data: bytes) -> None:
        self._patches.append((place, data))

    def flip(self, place: int, bit: int = 0) -> None:
        base = max(base for base in self.segments if base <= place)
        self.patch(place, bytes([self.segments[base][place - base] ^ 1 << bit]))

    def tear(self, place: int) -> None:
        """The log ends there: the last write never came to its end (§8.3)."""
        self._torn = place

    # -- files ------------------------------------------------------------------------------------

    def write(self, folder: Path) -> Path:
        """Makes ``folder/tieredstore`` and ``folder/config``; the former is given back."""
        tier = folder / "tieredstore"
        queue = tier / cluster_folder() / BROKER / TOPIC / str(QUEUE)
        logs = {base: bytearray(data) for base, data in self.segments.items()}
        for place, data in self._patches:
            base = max(base for base in logs if base <= place)
            logs[base][place - base:place - base + len(data)] = data
        if self._torn is not None:
            base = max(logs)
            del logs[base][self._torn - base:]
        for base, log in logs.items():
            _lay(queue / "COMMIT_LOG" / segment_name(base), bytes(log))
        rows: dict[int, bytes] = {}
        if self.with_units and self.units:
            last = max(self.units)
            for first in range(self.first, last + 1, self.unit_segment):
                rows[first * 20] = b"".join(
                    self.units[number] for number in range(
                        first, min(first + self.unit_segment, last + 1)))
            for base, data in rows.items():
                _lay(queue / "CONSUME_QUEUE" / segment_name(base), data)
        index = self._compacted() if self.with_index and self.items else b""
        if index:
            _lay(tier / cluster_folder() / BROKER / "rmq_sys_INDEX" / "0" / "INDEX"
                 / segment_name(0), index)
        if self.with_metadata:
            _lay(folder / "config" / "tieredStoreMetadata.json",
                 json.dumps(self._metadata({base: len(log) for base, log in logs.items()},
                                           {base: len(data) for base, data in rows.items()},
                                           len(index))).encode())
        return tier

    def _compacted(self) -> bytes:
        """§5.3: slots with place and length, then items without the link, newest first."""
        begin = self.items[0][3]
        slots = b""
        body = b""
        first = 28 + 8 * self.slots
        used = 0
        for slot in range(self.slots):
            chain = [pair for pair in reversed(self.items) if pair[0] % self.slots == slot]
            used += bool(chain)
            slots += struct.pack(">ii", first + len(body), 28 * len(chain))
            for code, place, size, time in chain:
                body += struct.pack(">iiiqii", code, TOPIC_ID, QUEUE, place, size,
                                    (time - begin) // 1000)
        return struct.pack(">Iqqii", 0xBCC50285, begin, self.items[-1][3], used,
                           len(self.items)) + slots + body

    def _metadata(self, logs: dict[int, int], rows: dict[int, int],
                  index: int) -> dict[str, object]:
        path = f"{BROKER}/{TOPIC}/{QUEUE}"

        def entries(where: str, kind: int, sizes: dict[int, int]) -> dict[str, object]:
            out = {}
            for base, size in sizes.items():
                if kind == 0:
                    times = [put.time for put in self.puts if base <= put.physical < base + size]
                elif kind == 1:
                    times = [put.time for put in self.puts
                             if base <= 20 * put.queue_offset < base + size]
                else:
                    times = [self.items[0][3], self.items[-1][3]] if self.items else []
                out[str(base)] = {
                    "path": where, "type": kind, "baseOffset": base, "status": 0, "size": size,
                    "createTimestamp": EPOCH, "beginTimestamp": min(times, default=NEVER),
                    "endTimestamp": max(times, default=NEVER), "sealTimestamp": 0}
            return {where: out} if out else {}

        return {
            "commitLogFileSegmentTable": entries(path, 0, logs),
            "consumeQueueFileSegmentTable": entries(path, 1, rows),
            "indexFileSegmentTable": entries(f"{BROKER}/rmq_sys_INDEX/0", 2,
                                             {0: index} if index else {}),
            "queueMetadataTable": {TOPIC: {str(QUEUE): {
                "queue": {"brokerName": BROKER, "queueId": QUEUE, "topic": TOPIC},
                "minOffset": -1, "maxOffset": -1, "updateTimestamp": EPOCH}}},
            "topicMetadataTable": {TOPIC: {"topicId": TOPIC_ID, "topic": TOPIC, "status": 0,
                                           "reserveTime": -1, "updateTimestamp": EPOCH}},
            "topicSerialNumber": TOPIC_ID}


def _lay(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
