"""A flat file: the segments of one queue and kind, read as one run of bytes (tiered.md §2)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING

from rmqctl.errors import FormatError
from rmqctl.formats.local import message
from rmqctl.formats.tiered import names
from rmqctl.tiered.files.reader import Reader, close_source

if TYPE_CHECKING:
    from rmqctl.scan.frames import Batch
    from rmqctl.scan.walk import Walk


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment file. ``size`` is the file's; ``usable`` what of it counts: the bytes before the
    next segment begins. ``name_ok``: the hash in its name is right.
    """

    path: str
    base: int
    size: int
    usable: int
    mtime_ms: int
    name_ok: bool = True

    @property
    def end(self) -> int:
        """Logical offset behind the last usable byte."""
        return self.base + self.usable

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class FlatFile:
    """Segments in the order of their base offsets. ``folder`` is below the tier root.

    ``strange``: names in the folder that are no segment's.
    """

    reader: Reader
    folder: str
    kind: str
    segments: list[Segment] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)

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
        """Logical offset behind the last byte (a broker's commit offset after a start)."""
        return self.segments[-1].end if self.segments else 0

    def gaps(self) -> Iterator[tuple[Segment, Segment]]:
        """Neighbours of which the first ends before the second begins."""
        for before, after in pairwise(self.segments):
            if before.end < after.base:
                yield before, after

    def segment_of(self, offset: int) -> Segment | None:
        """The segment with a logical offset in it; None in a gap and outside."""
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
            raise FormatError(f"{length} bytes cannot be read from here",
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
        """The record at a logical offset, wherever it says it lies; None where there is none.

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
    def walk(self, segment: Segment, start: int = 0, *, cut: bool = False) -> Iterator[Walk]:
        """The walk over a segment from position ``start`` on. With ``cut`` what reaches over the
        start of the next segment is no message. StoreIOError.
        """
        from rmqctl.scan.walk import Walk

        source = self.reader.source(segment.path, segment.base)
        try:
            if cut:
                source.size = min(source.size, segment.usable)
            yield Walk(source, start, segment.usable)
        finally:
            close_source(source)

    def batches(self, segment: Segment, start: int = 0) -> Iterator[Batch]:
        """What lies in a segment from position ``start`` on: messages, and spans of what is none.
        StoreIOError.
        """
        with self.walk(segment, start) as walk:
            yield from walk
