"""A flat file: the segments of one queue and kind, read as one run of bytes (tiered.md §2). And a
queue of a tier, which has two of them: its consume queue and its commit log (§3, §4).

Bounds are the broker's: the consume queue says what there is, the commit log's first message what
of it is still there. Everything is read by position; nothing is kept but the bounds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from rmqctl.errors import FormatError
from rmqctl.ext.tiered.files.reader import Reader, close_source
from rmqctl.formats import layout
from rmqctl.formats.local import message
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.units import CODA_SIZE, UNIT, UNIT_SIZE, UnitRecord, is_coda

if TYPE_CHECKING:
    import numpy as np

    from rmqctl.scan.frames import Batch
    from rmqctl.scan.source import Source, Witness
    from rmqctl.scan.walk import Walk

_QUEUE_OFFSET = layout.field(message.Message, "queue_offset")
BLOCK_UNITS = 1 << 16
"""Units read at once by loops over all of them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment file. ``size`` is the file's; ``usable`` are its bytes before the next segment
    begins. ``name_ok``: the hash in its name is right.
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
    """Segments in the order of their base offsets. ``folder`` is below the tier root.

    ``strange``: names in the folder that are no segment's. ``witness`` returns independent
    knowledge of the messages' offsets (`rmqctl.ext.tiered.tier.with_witness`).
    """

    reader: Reader
    folder: str
    kind: str
    segments: list[Segment] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    witness: Callable[[], Witness] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def open(cls, reader: Reader, folder: str) -> FlatFile:
        """The segments in a folder. StoreIOError. What has no segment's name is ``strange``."""
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
        """Neighbours of which the first ends before the second begins."""
        for before, after in pairwise(self.segments):
            if before.end < after.base:
                yield before, after

    def segment_of(self, offset: int) -> Segment | None:
        """Return the segment with a logical offset in it; None in a gap and outside."""
        behind = bisect_right(self.segments, offset, key=lambda segment: segment.base)
        # Empty segments may share a base with the one that holds the bytes.
        for segment in reversed(self.segments[:behind]):
            if segment.base <= offset < segment.end:
                return segment
            if segment.usable:
                break
        return None

    def read(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes at a logical offset, over borders of segments; fewer at a gap or
        the end. StoreIOError.
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
        """A range as a broker reads it: from the segment that has its start, and the next one.

        Up to ``further`` bytes more where they are there. FormatError where nothing is.
        StoreIOError.
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
            # A broker takes the next one even if it does not begin where this one ends.
            if after.usable and after.base == offset + len(data):
                data += self.reader.read(after.path, 0, min(length - len(data), after.usable))
        return data

    def record_at(self, offset: int, size: int | None = None) -> message.Record | None:
        """Return the record at a logical offset, wherever it says it is, or None.

        ``size``: only one of that size. StoreIOError.
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
        """A segment as something to walk over, with what else is known of it. StoreIOError."""
        source = self.reader.source(segment.path, segment.base)
        try:
            if self.witness is not None:
                source.witness = self.witness()
            yield source
        finally:
            close_source(source)

    @contextmanager
    def walk(self, segment: Segment, start: int = 0, *, cut: bool = False) -> Iterator[Walk]:
        """Return the walk over a segment from position ``start`` on. With ``cut``, bytes past the
        start of the next segment are not messages. StoreIOError.
        """
        from rmqctl.scan.walk import Walk

        with self.source(segment) as source:
            if cut:
                source.size = min(source.size, segment.usable)
            yield Walk(source, start, segment.usable)

    def batches(self, segment: Segment, start: int = 0) -> Iterator[Batch]:
        """Return the messages in a segment from position ``start`` on, and spans of other bytes.
        StoreIOError.
        """
        with self.walk(segment, start) as walk:
            yield from walk


# -- a queue --------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class QueueName:
    """Name of a queue of a tier: cluster, broker, topic and number."""

    cluster: str
    broker: str
    topic: str
    queue_id: int

    @property
    def path(self) -> str:
        """Return the folder as metadata names it."""
        return names.metadata_path(self.broker, self.topic, self.queue_id)


class FlatQueue:
    """One queue. ``problems`` are in words what could not be read of its folders."""

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
        """The exclusive end of what may be read: intact units of the consume queue."""
        return self.consume_queue.end // UNIT_SIZE

    @property
    def min_offset(self) -> int:
        """A broker's min offset: of the units, or of the first message that is still there."""
        return max(self.cq_start, self.first_message_offset())

    def first_message_offset(self) -> int:
        """Queue offset in the first message of the commit log; -1 without a message.

        As a broker: bytes 20 to 27 of the first segment, whatever they are.
        """
        if self._first is None:
            raw = self.commit_log.read(self.commit_log.start + _QUEUE_OFFSET.offset,
                                         _QUEUE_OFFSET.size)
            short = len(raw) < _QUEUE_OFFSET.size
            self._first = -1 if short else int.from_bytes(raw, "big", signed=True)
        return self._first

    def unit(self, queue_offset: int) -> UnitRecord | None:
        """Return the unit of a queue offset, or None."""
        data = self.consume_queue.read(queue_offset * UNIT_SIZE, UNIT_SIZE)
        return UNIT.decode(data) if len(data) == UNIT_SIZE else None

    def units(self, start: int, count: int) -> np.ndarray[Any, Any]:
        """Up to ``count`` units from a queue offset on, as a structured array (field names of
        `rmqctl.formats.tiered.units.Unit`); fewer at a gap or the end.
        """
        data = self.consume_queue.read(start * UNIT_SIZE, count * UNIT_SIZE)
        return UNIT.array(data)

    def raw(self, unit: UnitRecord) -> bytes:
        """Return the bytes that a unit points to, without a coda record in front, as a broker does;
        FormatError if they are missing or not a message of that size and offset.
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
        """Return the message of a queue offset, checked by its own fields.

        FormatError (with the offset) if it is missing, or contains another offset, size or queue
        offset. Topic and queue id are not compared: see `rmqctl.ext.tiered.verify.verify`.
        """
        unit = self.unit(queue_offset)
        if unit is None:
            raise FormatError(f"no unit of queue offset {queue_offset}",
                              file=self.consume_queue.folder, offset=queue_offset * UNIT_SIZE)
        data = self.raw(unit)
        try:
            record = message.decode(data, 0, unit.commit_log_offset)
        except FormatError as error:
            raise FormatError(error.reason, file=self.commit_log.folder,
                              offset=unit.commit_log_offset, path=error.path) from None
        for name, wanted in (("total_size", unit.size), ("queue_offset", queue_offset)):
            if getattr(record, name) != wanted:
                raise FormatError(f"is {getattr(record, name)}, expected {wanted} from the unit of "
                                  f"queue offset {queue_offset}", file=self.commit_log.folder,
                                  offset=unit.commit_log_offset, path=name)
        return record
