"""In-memory queues for messages that consumers send back to a read-only server.

The ids of these queues are higher than the ids of stored queues. The physical offsets of their
messages are higher than in any log. A client can therefore also send back messages from these
queues.
"""

from __future__ import annotations

from dataclasses import field, replace

from rmqctl.broker.get_message import FOUND, MAX_BYTES, MAX_COUNT, NO_MATCH, outside
from rmqctl.ext.serve.reading import Accept, Pulled
from rmqctl.formats.local.message import CRC_MASK, HOST_BITS, Record, build, magic_for, size_of
from rmqctl.lazy_dataclass import dataclass

OVERHEAD = 512
"""Approximate memory in bytes that a message uses in addition to its record."""
BASE = 1 << 61
"""The physical offset of the first record in memory; no log is long enough to reach it."""


@dataclass(slots=True)
class MemoryQueue:
    """An in-memory queue: its records and their tags codes."""

    records: list[bytes] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    first: int = 0

    @property
    def end(self) -> int:
        """The queue offset of the next message."""
        return len(self.records)

    def pull(self, offset: int, most: int, accept: Accept | None, max_bytes: int = MAX_BYTES
             ) -> Pulled:
        refused = outside(offset, 0, self.end, 5)
        if refused is not None:
            return Pulled(refused.status, refused.next_begin, 0, self.end)
        records: list[bytes] = []
        size, at = 0, offset
        last = min(self.end, offset + min(max(most, 1), MAX_COUNT))
        while at < last and not (records and size + len(self.records[at]) > max_bytes):
            if accept is None or accept(self.tags[at], self.records[at]):
                records.append(self.records[at])
                size += len(self.records[at])
            at += 1
        return Pulled(FOUND if records else NO_MATCH, at, 0, self.end, records, len(records))


@dataclass(slots=True)
class Memory:
    """All in-memory queues of one broker. ``limit``: maximum memory in bytes for all queues."""

    limit: int
    queues: dict[tuple[str, int], MemoryQueue] = field(default_factory=dict)
    size: int = 0
    _next: int = BASE
    _places: dict[int, bytes] = field(default_factory=dict)

    def has_room(self, record: Record) -> bool:
        return self.size + 2 * (len(record.body) + OVERHEAD) + len(record.properties) <= self.limit

    def append(self, record: Record, topic: str, queue_id: int, tags: int) -> bytes:
        """Append a copy of a record to a queue. Return the copy as bytes."""
        queue = self.queues.setdefault((topic, queue_id), MemoryQueue())
        name = topic.encode()
        magic = magic_for(name)
        stored = replace(
            record, topic=name, magic=magic, queue_id=queue_id, queue_offset=queue.end,
            physical_offset=self._next, body_crc=record.body_crc & CRC_MASK,
            total_size=size_of(record.sys_flag & HOST_BITS, magic, len(record.body), len(name),
                               len(record.properties)))
        raw = build(stored)
        queue.records.append(raw)
        queue.tags.append(tags)
        self._places[self._next] = raw
        self._next += len(raw)
        self.size += len(raw) + OVERHEAD
        return raw

    def raw_at(self, physical: int) -> bytes | None:
        return self._places.get(physical)
