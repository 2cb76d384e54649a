"""Append to the last segment of a flat file. A new segment begins at the offset at which a broker
would begin a segment (tiered.md §2).

Data is written to the files at once. The metadata records the data only after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from rmqctl.errors import RefusedError
from rmqctl.ext.tiered.files.writer import TierWriter
from rmqctl.ext.tiered.flat_file import FlatFile, QueueName, Segment
from rmqctl.files.durable import Part
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata, SegmentEntry
from rmqctl.formats.tiered.units import NEVER
from rmqctl.scan.frames import Array


class AppendFile:
    """The end of a flat file.

    ``limit``: maximum size of a segment (bytes). ``entries``: the metadata entries of its segments.
    `changes` returns the changed entries, and `dirty` returns the paths of the files with appended
    data.
    """

    def __init__(self, writer: TierWriter, owner: QueueName, flat: FlatFile, limit: int,
                 entries: dict[int, SegmentEntry], now: Callable[[], int]) -> None:
        self.writer, self.owner, self.kind = writer, owner, flat.kind
        self.limit, self._now = limit, now
        self._changed: dict[int, SegmentEntry] = {}
        self._dirty: dict[str, None] = {}
        self.path: str | None = None
        self.base = self.size = 0
        self.begin = self.until = NEVER
        if flat.segments:
            self._take(flat.segments[-1], entries)

    def _take(self, last: Segment, entries: dict[int, SegmentEntry]) -> None:
        self.path, self.base, self.size = last.path, last.base, last.size
        entry = entries.get(last.base)
        if entry is None:
            self._created = self._now()
            return
        self._created = entry.create_timestamp
        if self.size:
            self.begin, self.until = entry.begin_timestamp, entry.end_timestamp

    @property
    def end(self) -> int:
        """Logical offset after the last byte; 0 without segments."""
        return self.base + self.size

    def start(self, base: int) -> None:
        """Begin a segment at a logical offset and create its file."""
        owner = self.owner
        path = names.segment_path(owner.cluster, owner.broker, owner.topic, owner.queue_id,
                                  self.kind, base)
        present = self.writer.size(path)
        if present:
            raise RefusedError(f"{self.writer.where(path)}: already contains {present} bytes, but "
                               "the previous segment does not end where this one begins")
        self.writer.create(path)
        self._dirty[path] = None
        self.path, self.base, self.size = path, base, 0
        self.begin = self.until = NEVER
        self._created = self._now()
        self._note()

    def roll(self) -> None:
        """End the segment and begin the next one after it."""
        self.start(self.end)

    def is_old(self, interval: int, least: int, now: int) -> bool:
        """Return whether a broker would roll the segment because of its age before it begins a
        group commit (§2).
        """
        return (self.begin != NEVER and self.begin + interval < now and self.size >= least
                and self.size > 0)

    def append(self, data: Part, ends: Array, times: Array) -> None:
        """Append the records in ``data``. ``ends``: end position of each record; ``times``: store
        time of each record.
        Raises: RefusedError if a record is larger than the maximum segment size; StoreIOError.
        """
        view = memoryview(data)
        first = 0
        while first < len(ends):
            # The records from ``first`` that fit into the segment; if none fits, roll.
            begin = int(ends[first - 1]) if first else 0
            stop = int(np.searchsorted(ends, begin + self.limit - self.size, "right"))
            if stop <= first:
                if not self.size:
                    raise RefusedError(f"{self.owner.path}: a record is longer than the maximum "
                                       f"size of a {self.kind} segment, {self.limit} bytes")
                self.roll()
                continue
            end = int(ends[stop - 1])
            assert self.path is not None
            self.writer.append(self.path, [view[begin:end]], self.size)
            self._dirty[self.path] = None
            self.size += end - begin
            low, high = int(times[first:stop].min()), int(times[first:stop].max())
            self.begin = low if self.begin == NEVER else min(self.begin, low)
            self.until = high if self.until == NEVER else max(self.until, high)
            self._note()
            first = stop

    def _note(self) -> None:
        self._changed[self.base] = SegmentEntry(
            self.owner.path, names.KINDS.index(self.kind), self.base, size=self.size,
            create_timestamp=self._created, begin_timestamp=self.begin,
            end_timestamp=self.until)

    def changes(self) -> list[SegmentEntry]:
        """Return the metadata entries that changed since the last call."""
        entries, self._changed = list(self._changed.values()), {}
        return entries

    def dirty(self) -> list[str]:
        """Return the files appended to or created since the last call."""
        paths, self._dirty = list(self._dirty), {}
        return paths


def enter_changes(metadata: Metadata, entries: Iterable[SegmentEntry]) -> None:
    """Enter the result of `AppendFile.changes` in the metadata; keep unknown fields of existing
    entries.
    """
    for new in entries:
        old = metadata.segments[names.KINDS[new.type]].get(new.path, {}).get(new.base_offset)
        metadata.put_segment(new if old is None else replace(
            old, size=new.size, begin_timestamp=new.begin_timestamp,
            end_timestamp=new.end_timestamp))
