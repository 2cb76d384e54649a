"""Flat files and queues of a tier (tiered.md §2, §3, §4).

A flat file consists of the segments of one queue and kind, read as a contiguous byte range. A queue
has two flat files: its consume queue and its commit log.

Bounds follow a broker's rules. The consume queue defines the queue's end. The first message of the
commit log defines which offsets are expired. All data is read by position; only the bounds are kept
in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from rmqctl.errors import FormatError
from rmqctl.ext.tiered.files.reader import TierReader, close_source
from rmqctl.formats import layout
from rmqctl.formats.local import message
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.units import CODA_SIZE, UNIT, UNIT_SIZE, UnitRecord, is_coda
from rmqctl.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np

    from rmqctl.scan.frames import Batch
    from rmqctl.scan.source import Source, Witness
    from rmqctl.scan.walk import Walk

_QUEUE_OFFSET = layout.field(message.Message, "queue_offset")
BLOCK_UNITS = 1 << 16
"""Number of units that are read at a time when a complete queue is scanned."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment file of ``size`` bytes. The first ``usable`` bytes are before the start of the next
    segment. ``name_ok``: the hash in the file name is correct.
    """

    path: str
    base: int
    size: int
    usable: int
    mtime_ms: int
    name_ok: bool = True

    @property
    def end(self) -> int:
        """Logical offset after the last usable byte."""
        return self.base + self.usable

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class FlatFile:
    """The segments of a flat file, in the order of their base offsets.

    ``folder``: path relative to the tier root.
    ``strange``: names in the folder that are not segment names.
    ``witness``: returns independent evidence of the messages' offsets
    (`rmqctl.ext.tiered.tier.with_witness`).
    """

    reader: TierReader
    folder: str
    kind: str
    segments: list[Segment] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    witness: Callable[[], Witness] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def open(cls, reader: TierReader, folder: str) -> FlatFile:
        """Open the segments in a folder. Raises: StoreIOError."""
        kind = folder.rpartition("/")[2]
        strange, entries = [], []
        for entry in reader.list(folder):
            parsed = None if entry.is_folder or entry.is_strange else names.parse_segment(
                entry.name)
            if parsed is None:
                strange.append(entry.name)
            else:
                entries.append((*parsed, entry))
        entries.sort(key=lambda named: (named[0], not named[1], named[2].name))
        segments = []
        for (base, name_ok, entry), after in zip_longest(entries, entries[1:]):
            usable = entry.size if after is None else min(entry.size, after[0] - base)
            segments.append(Segment(f"{folder}/{entry.name}", base, entry.size, usable,
                                    entry.mtime_ms, name_ok))
        return cls(reader, folder, kind, segments, strange)

    @property
    def start(self) -> int:
        """Logical offset of the first byte; 0 without segments (a broker's min offset)."""
        return self.segments[0].base if self.segments else 0

    @property
    def end(self) -> int:
        """Logical offset after the last byte (a broker's commit offset after a start)."""
        return self.segments[-1].end if self.segments else 0

    def gaps(self) -> Iterator[tuple[Segment, Segment]]:
        """Yield each pair of consecutive segments with a gap between them."""
        for before, after in pairwise(self.segments):
            if before.end < after.base:
                yield before, after

    def segment_of(self, offset: int) -> Segment | None:
        """Return the segment that contains a logical offset; None if no segment contains it."""
        behind = bisect_right(self.segments, offset, key=lambda segment: segment.base)
        # Empty segments may share a base with the one that holds the bytes.
        for segment in reversed(self.segments[:behind]):
            if segment.base <= offset < segment.end:
                return segment
            if segment.usable:
                break
        return None

    def read(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes at a logical offset, across segments. Return fewer bytes if
        a gap or the end of the flat file comes first.
        Raises: StoreIOError.
        """
        parts = []
        while length > 0:
            segment = self.segment_of(offset)
            if segment is None:
                break
            part = self.reader.read(segment.path, offset - segment.base,
                                    min(length, segment.end - offset))
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_as_broker(self, offset: int, length: int, further: int = 0) -> bytes:
        """Read a range as a broker does: from the segment that contains its start, and from the
        next segment. Read up to ``further`` bytes after the range if they exist.

        Raises: FormatError if no byte can be read; StoreIOError.
        """
        number = next((n for n in range(len(self.segments) - 1, -1, -1)
                       if self.segments[n].base <= offset), None)
        segment = None if number is None else self.segments[number]
        if segment is None or number is None or offset >= segment.end or length <= 0:
            raise FormatError(f"cannot read {length} bytes from here",
                              file=self.reader.where(self.folder), offset=offset)
        length += further
        data = self.reader.read(segment.path, offset - segment.base,
                                min(length, segment.end - offset))
        if len(data) < length and number + 1 < len(self.segments):
            after = self.segments[number + 1]
            # After a gap, a broker returns bytes of other offsets; they are not returned here.
            if after.usable and after.base == offset + len(data):
                data += self.reader.read(after.path, 0, min(length - len(data), after.usable))
        return data

    def record_at(self, offset: int, size: int | None = None) -> message.Record | None:
        """Return the record at a logical offset, even if its physicalOffset is wrong; None if no
        valid record starts there. With ``size``, the record must have this size.
        Raises: StoreIOError.
        """
        from rmqctl.scan.resync import MAX_RECORD

        head = self.read(offset, message.START_SIZE)
        if len(head) < message.START_SIZE:
            return None
        total = message.total_size_at(head)
        if not message.MIN_SIZE <= total <= MAX_RECORD or size not in (None, total):
            return None
        try:
            return message.decode(self.read(offset, total))
        except FormatError:
            return None

    @contextmanager
    def source(self, segment: Segment) -> Iterator[Source]:
        """Open a segment as a `Source`, with its witness (evidence of offsets). Raises:
        StoreIOError.
        """
        source = self.reader.source(segment.path, segment.base)
        try:
            if self.witness is not None:
                source.witness = self.witness()
            yield source
        finally:
            close_source(source)

    @contextmanager
    def walk(self, segment: Segment, start: int = 0, *, cut: bool = False) -> Iterator[Walk]:
        """Open a scan of a segment from position ``start``. With ``cut``, ignore bytes after the
        start of the next segment.
        Raises: StoreIOError.
        """
        from rmqctl.scan.walk import Walk

        with self.source(segment) as source:
            if cut:
                source.size = min(source.size, segment.usable)
            yield Walk(source, start, segment.usable)

    def batches(self, segment: Segment, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of a segment from position ``start``: messages, and the spans of other
        bytes.
        Raises: StoreIOError.
        """
        with self.walk(segment, start) as walk:
            yield from walk


# -- a queue --------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class QueueName:
    """Name of a queue of a tier: cluster, broker, topic and queue id."""

    cluster: str
    broker: str
    topic: str
    queue_id: int

    @property
    def path(self) -> str:
        """The queue's path in the metadata."""
        return names.metadata_path(self.broker, self.topic, self.queue_id)


class FlatQueue:
    """A queue of a tier."""

    def __init__(self, name: QueueName, commit_log: FlatFile, consume_queue: FlatFile) -> None:
        self.name = name
        self.commit_log = commit_log
        self.consume_queue = consume_queue
        self._first: int | None = None

    @property
    def cq_start(self) -> int:
        """Queue offset of the first unit."""
        return self.consume_queue.start // UNIT_SIZE

    @property
    def commit_offset(self) -> int:
        """Queue offset after the last complete unit (exclusive end)."""
        return self.consume_queue.end // UNIT_SIZE

    @property
    def min_offset(self) -> int:
        """A broker's min offset: the larger of the first unit's and the first message's queue
        offset.
        """
        return max(self.cq_start, self.first_message_offset())

    def first_message_offset(self) -> int:
        """Return the queue offset field of the commit log's first message; -1 if it has none.

        Like a broker, read bytes 20 to 27 of the first segment without a check.
        """
        if self._first is None:
            raw = self.commit_log.read(self.commit_log.start + _QUEUE_OFFSET.offset,
                                         _QUEUE_OFFSET.size)
            short = len(raw) < _QUEUE_OFFSET.size
            self._first = -1 if short else int.from_bytes(raw, "big", signed=True)
        return self._first

    def unit(self, queue_offset: int) -> UnitRecord | None:
        """Return the unit of a queue offset; None if it is missing."""
        data = self.consume_queue.read(queue_offset * UNIT_SIZE, UNIT_SIZE)
        return UNIT.decode(data) if len(data) == UNIT_SIZE else None

    def units(self, start: int, count: int) -> np.ndarray[Any, Any]:
        """Return up to ``count`` units from queue offset ``start`` on, but none after a gap. The
        result is a structured array (fields of `rmqctl.formats.tiered.units.Unit`).
        """
        data = self.consume_queue.read(start * UNIT_SIZE, count * UNIT_SIZE)
        return UNIT.array(data)

    def raw(self, unit: UnitRecord) -> bytes:
        """Return the bytes to which a unit points. Like a broker, skip a coda record before the
        message.
        Raises: FormatError if bytes are missing or the unit is invalid.
        """
        if unit.size < message.MIN_SIZE or unit.commit_log_offset < 0:
            raise FormatError("the unit does not point to a message",
                              file=self.commit_log.folder, offset=unit.commit_log_offset,
                              path="size")
        data = self.commit_log.read(unit.commit_log_offset, unit.size + CODA_SIZE)
        if is_coda(data):
            data = data[CODA_SIZE:]
        if len(data) < unit.size:
            raise FormatError("the message is missing or incomplete",
                              file=self.commit_log.folder, offset=unit.commit_log_offset,
                              path="total_size")
        return data[:unit.size]

    def record(self, queue_offset: int) -> message.Record:
        """Return the message at a queue offset, after checking its size and queue offset. Topic and
        queue id are not checked (see `rmqctl.ext.tiered.verify.verify`).

        Raises: FormatError (with the offset) if the message is missing or does not match its unit.
        """
        unit = self.unit(queue_offset)
        if unit is None:
            raise FormatError(f"no unit at queue offset {queue_offset}",
                              file=self.consume_queue.folder, offset=queue_offset * UNIT_SIZE)
        data = self.raw(unit)
        try:
            record = message.decode(data, 0, unit.commit_log_offset)
        except FormatError as error:
            raise FormatError(error.reason, file=self.commit_log.folder,
                              offset=unit.commit_log_offset, path=error.path) from None
        for name, wanted in (("total_size", unit.size), ("queue_offset", queue_offset)):
            if getattr(record, name) != wanted:
                raise FormatError(f"is {getattr(record, name)}, expected {wanted} from the unit at "
                                  f"queue offset {queue_offset}", file=self.commit_log.folder,
                                  offset=unit.commit_log_offset, path=name)
        return record
