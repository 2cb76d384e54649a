"""What a pass over a range of the log shows: plain values, which merge in log order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rmqctl.checks.verify.index.keys import KeyTally
from rmqctl.checks.verify.queue.rows import QueueKey, QueueTally
from rmqctl.scan.frames import Span


class BadRecord(NamedTuple):
    """A whole record whose bytes do not match a checksum. ``field`` is ``body`` or properties."""

    offset: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    field: str


@dataclass(slots=True)
class RangeResult:
    """What one range of the log showed. Byte counts are of the frames that start in it."""

    first: int
    position: int = 0
    messages: int = 0
    bytes_in_messages: int = 0
    bytes_blank: int = 0
    bytes_zero: int = 0
    bytes_damaged: int = 0
    bytes_unverifiable: int = 0
    with_property_crc: int = 0
    keyed: int = 0
    last_store_timestamp: int | None = None
    last_record_end: int | None = None
    last_record_start: int | None = None
    shrunk: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)
    unkept: int = 0
    queues: dict[QueueKey, QueueTally] = field(default_factory=dict)
    batch_rows: dict[QueueKey, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    keys: KeyTally = field(default_factory=KeyTally)

    def merge(self, other: RangeResult) -> None:
        """Takes in the result of the range behind this one."""
        self.position = other.position
        for name in ("messages", "bytes_in_messages", "bytes_blank", "bytes_zero",
                     "bytes_damaged", "bytes_unverifiable", "with_property_crc", "keyed", "unkept"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        times = [t for t in (self.last_store_timestamp, other.last_store_timestamp)
                 if t is not None]
        self.last_store_timestamp = max(times, default=None)
        if other.last_record_end is not None:
            self.last_record_end = other.last_record_end
            self.last_record_start = other.last_record_start
        self.shrunk += other.shrunk
        self.spans += other.spans
        self.bad += other.bad
        for key, tally in other.queues.items():
            if key in self.queues:
                self.queues[key].merge(tally)
            else:
                self.queues[key] = tally
        for key, rows in other.batch_rows.items():
            self.batch_rows.setdefault(key, []).extend(rows)
        self.keys.merge(other.keys)


@dataclass(slots=True)
class Wanted:
    """Which structures the pass compares the log with."""

    queues: bool = True
    index: bool = True
