"""A flat file that grows: appended to its last segment, rolled where a broker rolls (§2).

What is appended is in the files at once and in the metadata only when it was made to last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from rmqctl.errors import RefusedError
from rmqctl.files.durable import Part
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata, SegmentEntry
from rmqctl.formats.tiered.units import NEVER
from rmqctl.tiered.files.writer import TierWriter
from rmqctl.tiered.flat_file import FlatFile, Segment
from rmqctl.tiered.flat_queue import QueueName

Array = np.ndarray[Any, np.dtype[Any]]


class AppendFile:
    """The end of a flat file. ``limit``: the most bytes of a segment.

    ``entries`` is what metadata knows of its segments; what changes is given out by `changes`,
    the paths that were appended to by `dirty`.
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
        known = entries.get(last.base)
        if known is None:
            self._created = self._now()
            return
        self._created = known.create_timestamp
        if self.size:
            self.begin, self.until = known.begin_timestamp, known.end_timestamp

    @property
    def end(self) -> int:
        """Logical offset behind the last byte; 0 without segments."""
        return self.base + self.size

    def start(self, base: int) -> None:
        """Begins a segment at a logical offset; the file is made, empty."""
        owner = self.owner
        path = names.segment_path(owner.cluster, owner.broker, owner.topic, owner.queue_id,
                                  self.kind, base)
        there = self.writer.size(path)
        if there:
            raise RefusedError(f"{self.writer.where(path)}: holds {there} bytes already, although "
                               "no segment before it ends there")
        self.writer.create(path)
        self._dirty[path] = None
        self.path, self.base, self.size = path, base, 0
        self.begin = self.until = NEVER
        self._created = self._now()
        self._note()

    def roll(self) -> None:
        """Ends the segment; the next one begins behind it."""
        self.start(self.end)

    def is_old(self, interval: int, least: int, now: int) -> bool:
        """Whether a broker rolls the segment for its age, before a round (§2)."""
        return (self.begin != NEVER and self.begin + interval < now and self.size >= least
                and self.size > 0)

    def append(self, data: Part, ends: Array, times: Array) -> None:
        """Appends records one behind the other: ``ends`` is the place in ``data`` behind each,
        ``times`` their store times. None is longer than the limit. StoreIOError.
        """
        view = memoryview(data)
        at = 0
        while at < len(ends):
            begin = int(ends[at - 1]) if at else 0
            stop = int(np.searchsorted(ends, begin + self.limit - self.size, "right"))
            if stop <= at:
                if not self.size:
                    raise RefusedError(f"{self.owner.path}: a record is longer than the most "
                                       f"that a {self.kind} segment may have, {self.limit} bytes")
                self.roll()
                continue
            end = int(ends[stop - 1])
            assert self.path is not None
            self.writer.append(self.path, [view[begin:end]], self.size)
            self._dirty[self.path] = None
            self.size += end - begin
            low, high = int(times[at:stop].min()), int(times[at:stop].max())
            self.begin = low if self.begin == NEVER else min(self.begin, low)
            self.until = high if self.until == NEVER else max(self.until, high)
            self._note()
            at = stop

    def _note(self) -> None:
        self._changed[self.base] = SegmentEntry(
            self.owner.path, names.KINDS.index(self.kind), self.base, size=self.size,
            create_timestamp=self._created, begin_timestamp=self.begin,
            end_timestamp=self.until)

    def changes(self) -> list[SegmentEntry]:
        """The entries that changed since it was asked last."""
        found, self._changed = list(self._changed.values()), {}
        return found

    def dirty(self) -> list[str]:
        """The files appended to or made since it was asked last."""
        found, self._dirty = list(self._dirty), {}
        return found


def apply(metadata: Metadata, entries: Iterable[SegmentEntry]) -> None:
    """Enters what `AppendFile.changes` gave; what is not known here of an entry stays."""
    for one in entries:
        known = metadata.segments[names.KINDS[one.type]].get(one.path, {}).get(one.base_offset)
        if known is not None:
            one = replace(known, size=one.size, begin_timestamp=one.begin_timestamp,  # noqa: PLW2901
                          end_timestamp=one.end_timestamp)
        metadata.put_segment(one)
