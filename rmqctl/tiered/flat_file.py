"""A flat file: the segments of one queue and kind, read as one run of bytes (tiered.md §2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from rmqctl.errors import FormatError
from rmqctl.formats.tiered import names
from rmqctl.scan.source import Source
from rmqctl.tiered.files.reader import Reader, close_source

if TYPE_CHECKING:
    from rmqctl.scan.frames import Batch


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
        strange, found = [], []
        for entry in reader.list(folder):
            parsed = None if entry.is_folder or entry.is_strange else names.parse_segment(
                entry.name)
            if parsed is None:
                strange.append(entry.name)
            else:
                found.append((*parsed, entry))
        found.sort(key=lambda one: (one[0], not one[1], one[2].name))
        bases = [one[0] for one in found]
        segments = []
        for number, (base, good, entry) in enumerate(found):
            usable = entry.size
            if number + 1 < len(bases):
                usable = min(usable, bases[number + 1] - base)
            segments.append(Segment(f"{folder}/{entry.name}", base, entry.size, usable,
                                    entry.mtime_ms, good))
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
        for one, other in pairwise(self.segments):
            if one.end < other.base:
                yield one, other

    def segment_of(self, offset: int) -> Segment | None:
        """The segment with a logical offset in it; None in a gap and outside."""
        low, high = 0, len(self.segments)
        while low < high:
            middle = (low + high) // 2
            if self.segments[middle].base <= offset:
                low = middle + 1
            else:
                high = middle
        # Empty segments may share a base with the one that holds the bytes.
        for number in range(low - 1, -1, -1):
            one = self.segments[number]
            if one.base <= offset < one.end:
                return one
            if one.usable:
                break
        return None

    def read(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes at a logical offset, over borders of segments; fewer at a gap or
        the end. StoreIOError.
        """
        parts = []
        while length > 0:
            one = self.segment_of(offset)
            if one is None:
                break
            part = self.reader.read(one.path, offset - one.base, min(length, one.end - offset))
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

    def batches(self, segment: Segment, start: int = 0) -> Iterator[Batch]:
        """What lies in a segment from position ``start`` on: messages, and spans of what is none.
        StoreIOError.
        """
        from rmqctl.scan.walk import Walk

        source = self.reader.source(segment.path, segment.base)
        try:
            yield from Walk(source, start, segment.usable)
        finally:
            close_source(source)

    def sources(self) -> Iterator[tuple[Segment, Source]]:
        """Every segment that holds bytes, to walk over; to be closed by `close_source`."""
        for one in self.segments:
            if one.usable:
                yield one, self.reader.source(one.path, one.base)
