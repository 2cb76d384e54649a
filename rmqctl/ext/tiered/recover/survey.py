"""Survey a queue's commit log: write a row for every intact message to a scratch file.

Rows are in the order of the log. Because the rows are in a file, a queue of millions of messages
needs little memory (tiered.md §17.6). Messages with a wrong physical offset are included. Such
messages exist if a write was interrupted and the broker then wrote the complete block after the
partial one (§8.4).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from itertools import pairwise

import numpy as np

from rmqctl.errors import RmqctlError
from rmqctl.ext.tiered.displaced import Shifted, find_shifted
from rmqctl.ext.tiered.files.reader import TierReader
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue, QueueName, Segment
from rmqctl.ext.tiered.slots import SegmentSlots
from rmqctl.files.durable import failed
from rmqctl.files.remote.reader import FileOrFolder
from rmqctl.formats import layout
from rmqctl.formats.local import message
from rmqctl.formats.local.sysflag import BORN_HOST_V6
from rmqctl.formats.tiered.units import CODA_SIZE, NEVER, is_coda
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import text
from rmqctl.scan.derived import TagsCodes
from rmqctl.scan.frames import DAMAGED, Array, Batch, Span, gather_int
from rmqctl.scan.source import FileSource, Source
from rmqctl.scan.walk import Walk

ROW = np.dtype([("queue_offset", "i8"), ("position", "i8"), ("size", "i8"), ("tags_code", "i8"),
                ("store_time", "i8")])
"""A message: ``position`` is its logical offset in the queue's commit log."""

_QUIRK_AT = 56
"""Position in a record at which a broker reads the store time. With an IPv6 born host, the store
time is at a later position (§3).
"""
_MAX_SPANS = 1000
PHYSICAL_OFFSET = layout.field(message.Message, "physical_offset")
"""The field whose value is wrong in a shifted message."""
_WINDOW = 4 << 20


@dataclass(slots=True)
class SegmentSurvey:
    """A commit log segment.

    ``begin`` and ``end``: first and last store time of its messages; `NEVER` if it has none.
    ``quirk``: the two times that a broker reads instead; None if it reads the right times.
    ``damaged``: number of bytes that are not in a message or coda.
    ``beyond``: number of messages that extend past the next segment's base.
    """

    segment: Segment
    begin: int = NEVER
    end: int = NEVER
    quirk: tuple[int, int] | None = None
    messages: int = 0
    damaged: int = 0
    beyond: int = 0


@dataclass(slots=True)
class CommitLogSurvey:
    """A queue's commit log.

    ``rows``: `ROW`s in log order. The row of a shifted message contains its real position.
    ``spans``: the first damaged ranges (logical offsets).
    ``foreign``: number of messages of other queues.
    """

    log: FlatFile
    rows: Array
    segments: list[SegmentSurvey] = field(default_factory=list)
    shifted: list[Shifted] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    foreign: int = 0
    bad_crc: int = 0
    odd: list[tuple[int, int]] = field(default_factory=list)
    """(position, size) of the first intact records without a row. Such a record belongs to another
    queue, or has a body CRC mismatch and an unexpected queue offset.
    """
    doubtful: list[tuple[int, int]] = field(default_factory=list)
    """(position, size) of intact records that may be messages or part of a message body."""
    misplaced: list[tuple[Segment, int]] = field(default_factory=list)
    """Segments whose messages all imply another base, each with this base."""

    @property
    def damaged(self) -> int:
        """Number of bytes that are not in a message or coda."""
        return sum(segment.damaged for segment in self.segments)

    def in_the_way(self) -> list[Segment]:
        """Return the segments without a message that overlap the segment before them."""
        return [after.segment for before, after in pairwise(self.segments)
                if before.segment.size > before.segment.usable and after.segment.usable
                and not after.messages and after.damaged]

    def times(self, start: int, end: int) -> tuple[int, int]:
        """Return the earliest and the latest store time of the messages in ``[start, end)`` of the
        log.
        """
        rows = np.searchsorted(self.rows["position"], [start, end])
        times = self.rows["store_time"][rows[0]:rows[1]]
        return (int(times.min()), int(times.max())) if len(times) else (NEVER, NEVER)


def survey(queue: FlatQueue, log: FlatFile, path: str) -> CommitLogSurvey:
    """Scan all segments of ``log``; write the rows to ``path``. Raises: StoreIOError."""
    surveyed = CommitLogSurvey(log, np.zeros(0, ROW))
    try:
        with open(path, "wb", buffering=1 << 20) as file:
            reading = _SegmentReader(queue, surveyed)
            for segment in log.segments:
                about = SegmentSurvey(segment)
                surveyed.segments.append(about)
                if segment.usable:
                    file.writelines(rows.tobytes() for rows in reading.segment(about))
        size = os.path.getsize(path)
        surveyed.rows = np.memmap(path, ROW, "r") if size else np.zeros(0, ROW)
    except RmqctlError:
        raise
    except OSError as error:
        raise failed(error, path, "write to") from None
    return surveyed


class MessageRows:
    """Builder of rows (`ROW`) for the messages in a queue's commit log."""

    def __init__(self, name: QueueName) -> None:
        self._queue_id = name.queue_id
        self._topics = text.Dictionary()
        self._topic = self._topics.number(os.fsencode(name.topic))
        self._tags = TagsCodes(self._topics)

    def of(self, batch: Batch) -> tuple[Array, Array]:
        """Return a row for each message of a batch, and a boolean array: whether each message
        belongs to the queue.
        """
        topic = self._topics.encode(text.topics(batch))
        rows: Array = np.zeros(len(batch), ROW)
        rows["queue_offset"], rows["position"] = batch.column("queue_offset"), batch.offset
        rows["size"], rows["store_time"] = batch.column("total_size"), batch.column(
            "store_timestamp")
        rows["tags_code"] = self._tags.codes(text.PropertySegments(batch), topic,
                                             rows["store_time"])[0]
        return rows, (topic == self._topic) & (batch.column("queue_id") == self._queue_id)


class _SegmentReader:
    def __init__(self, queue: FlatQueue, survey: CommitLogSurvey) -> None:
        self._name, self._survey = queue.name, survey
        self._slots = SegmentSlots(survey.log, queue.name)
        self._messages = MessageRows(queue.name)
        self._last = -1
        """The queue offset of the last row."""

    def segment(self, about: SegmentSurvey) -> Iterator[Array]:
        """Yield the rows of a segment, in parts, and fill ``about``."""
        with self._survey.log.walk(about.segment) as walk:
            yield from self._rows_of(walk, about)

    def _rows_of(self, walk: Walk, about: SegmentSurvey) -> Iterator[Array]:
        source, waiting = walk.source, None
        for batch in self._slots.batches(walk):
            if len(batch):
                if waiting is not None:
                    yield from self._damaged(source, about, waiting)
                    waiting = None
                yield self._rows(batch, about)
            for span in batch.spans:
                self._survey.doubtful += span.doubtful
                if waiting is None:
                    waiting = span
                else:  # adjacent spans without a message between them
                    waiting = replace(waiting, kind=_joined(waiting, span),
                                      length=span.end - waiting.offset)
        if waiting is not None:
            yield from self._damaged(source, about, waiting)

    def _rows(self, batch: Batch, about: SegmentSurvey) -> Array:
        """Return the rows of the valid messages of the queue in a batch, and update the survey."""
        survey = self._survey
        rows, own = self._messages.of(batch)
        # Messages of this queue that end before the next segment begins.
        good = rows["position"] + rows["size"] <= about.segment.end
        about.beyond += int(len(batch) - good.sum())
        survey.foreign += int((good & ~own).sum())
        good &= own
        offset = rows["queue_offset"]
        crc = batch.crc_ok().astype(bool)
        if not crc.all():
            survey.bad_crc += int((good & ~crc).sum())
            # With a damaged body, only messages with the next queue offset.
            before = np.concatenate([np.array([self._last], np.int64), offset[:-1]])
            good &= crc | (offset == before + 1)
        good &= offset >= 0
        for row in np.flatnonzero(~good)[:_MAX_SPANS - len(survey.odd)].tolist():
            survey.odd.append((int(rows["position"][row]), int(rows["size"][row])))
        kept: Array = rows[good]
        if len(kept):
            self._last = int(kept["queue_offset"][-1])
            self._times(batch, good, kept, about)
        return kept

    def _times(self, batch: Batch, good: Array, rows: Array, about: SegmentSurvey) -> None:
        about.messages += len(rows)
        about.begin, about.end = _widened((about.begin, about.end), rows["store_time"])
        moved = batch.column("sys_flag")[good] & BORN_HOST_V6 != 0
        if about.quirk is None and not moved.any():
            return
        times = rows["store_time"].copy()
        times[moved] = gather_int(batch.data, batch.start[good][moved] + _QUIRK_AT, "i8")
        # No earlier message had a moved store time.
        span = about.quirk or (about.begin, about.end)
        about.quirk = _widened(span if about.messages > len(rows) else (NEVER, NEVER), times)

    def _damaged(self, source: Source, about: SegmentSurvey, span: Span) -> Iterator[Array]:
        """Yield the rows of messages with wrong physical offsets in a damaged span."""
        surveyed = self._survey
        start, length = span.offset, min(span.end, about.segment.end) - span.offset
        if length <= 0:
            return
        if length == CODA_SIZE and is_coda(source.read(start - source.base, CODA_SIZE)):
            return
        shifted = find_shifted(source, start - source.base, length, self._name, self._last)
        moved = {away.position - away.says for away in shifted}
        if len(moved) == 1 and not surveyed.shifted and length == about.segment.usable and (
                shifted[0].position == start):
            surveyed.misplaced.append((about.segment, shifted[0].says))
            shifted = []
        surveyed.shifted += [away for away in shifted if away.says != away.position]
        about.damaged += length - sum(away.size for away in shifted)
        if len(surveyed.spans) < _MAX_SPANS:
            surveyed.spans.append(span)
        rows: Array = np.zeros(len(shifted), ROW)
        for number, away in enumerate(shifted):
            rows[number] = (away.queue_offset, away.position, away.size, away.tags_code,
                            away.store_time)
        if len(rows):
            self._last = int(rows["queue_offset"][-1])
            about.messages += len(rows)
            about.begin, about.end = _widened((about.begin, about.end), rows["store_time"])
            yield rows


def _joined(span: Span, other: Span) -> str:
    return span.kind if span.kind == other.kind else DAMAGED


def _widened(span: tuple[int, int], times: Array) -> tuple[int, int]:
    low, high = int(times.min()), int(times.max())
    return (low, high) if span[0] == NEVER else (min(span[0], low), max(span[1], high))


# -- repeated parts of blocks ---------------------------------------------------------------------

class ReaderOverlay:
    """A reader that presents the files of another reader with some changes. The other reader is not
    closed.
    """

    def __init__(self, below: TierReader) -> None:
        self.name, self._below = below.name, below

    def where(self, path: str) -> str:
        return self._below.where(path)

    def list(self, folder: str) -> list[FileOrFolder]:
        return self._below.list(folder)

    def size(self, path: str) -> int | None:
        return self._below.size(path)

    def close(self) -> None:
        """Do nothing: the underlying reader is still in use."""


class Overlaid(ReaderOverlay):
    """A reader that replaces some files with local files. ``files``: {path: local path}."""

    def __init__(self, below: TierReader, files: dict[str, str]) -> None:
        super().__init__(below)
        self._files = files

    def size(self, path: str) -> int | None:
        return os.path.getsize(self._files[path]) if path in self._files else super().size(path)

    def read(self, path: str, position: int, length: int) -> bytes:
        if path not in self._files:
            return self._below.read(path, position, length)
        with FileSource(self._files[path]) as source:
            return source.read(position, length)

    def source(self, path: str, base: int = 0) -> Source:
        if path in self._files:
            return FileSource(self._files[path], base)
        return self._below.source(path, base)


def close_up(survey: CommitLogSurvey, folder: str) -> tuple[FlatFile, dict[str, str]]:
    """Remove the partial copy of each block that a broker wrote twice (tiered.md §8.4). Return the
    log with the new files, and {segment's path: new file in ``folder``}.

    Without the partial copy, units, index items and the next segment match the log. The last
    segment is not changed. Each other segment is changed only if its new end is exactly the next
    segment's base.
    Raises: StoreIOError.
    """
    log, files = survey.log, {}
    segments = []
    for segment in log.segments:
        twice = _written_twice(survey, segment) if segment is not log.segments[-1] else None
        if twice is None:
            segments.append(segment)
            continue
        path = os.path.join(folder, f"closed-{segment.base}")
        copy_ranges(log.reader, segment.path, [(0, twice[0]), (twice[1], segment.size)], path)
        files[segment.path] = path
        segments.append(replace(segment, size=segment.usable))
    if not files:
        return log, files
    return replace(log, reader=Overlaid(log.reader, files), segments=segments), files


def _written_twice(survey: CommitLogSurvey, segment: Segment) -> tuple[int, int] | None:
    """Return the repeated part of a segment as ``[start, end)`` in its file, or None.

    The result is None if the file without this part would not end at the next segment's base.
    """
    if not segment.name_ok:
        return None
    shifted = [moved for moved in survey.shifted if segment.base <= moved.position < segment.end]
    if not shifted or {moved.position - moved.says for moved in shifted} != {
            segment.size - segment.usable}:
        return None
    start, end = shifted[0].says - segment.base, shifted[0].position - segment.base
    return (start, end) if 0 <= start < end else None


def correct_offsets(survey: CommitLogSurvey, files: dict[str, str]) -> None:
    """Correct the physical offsets of the messages after the repeated part in the new files. Remove
    these messages from ``survey.shifted``. Raises: StoreIOError.
    """
    left = []
    for shifted in survey.shifted:
        segment = survey.log.segment_of(shifted.position)
        path = files.get(segment.path) if segment is not None else None
        if segment is None or path is None:
            left.append(shifted)
            continue
        try:
            with open(path, "r+b") as file:
                file.seek(shifted.position - segment.base + PHYSICAL_OFFSET.offset)
                file.write(shifted.position.to_bytes(PHYSICAL_OFFSET.size, "big"))
        except OSError as error:
            raise failed(error, path, "write to") from None
    survey.shifted = left


def copy_ranges(reader: TierReader, path: str, ranges: Iterable[tuple[int, int]], to: str) -> None:
    """Copy ranges ``[start, end)`` of a tier's file, back to back, to a new scratch file.
    Raises: StoreIOError.
    """
    try:
        with open(to, "wb") as file:
            for start, end in ranges:
                position = start
                while position < end and (
                        part := reader.read(path, position, min(_WINDOW, end - position))):
                    file.write(part)
                    position += len(part)
    except OSError as error:
        raise failed(error, to, "write to") from None
