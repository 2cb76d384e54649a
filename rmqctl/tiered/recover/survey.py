"""What lies in the commit log of one queue: every message that proves itself, as rows on disk.

Rows are in the order of the log, in a file of the scratch folder, so a queue of millions of
messages costs little memory (tiered.md §17.6).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from rmqctl.errors import RmqctlError
from rmqctl.files.durable import failed
from rmqctl.formats.local.sysflag import BORN_HOST_V6
from rmqctl.formats.tiered.units import CODA_SIZE, NEVER, is_coda
from rmqctl.scan import text
from rmqctl.scan.derived import TagsCodes
from rmqctl.scan.frames import DAMAGED, Array, Batch, Span, gather_int
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk
from rmqctl.tiered.files.reader import close_source
from rmqctl.tiered.flat_file import FlatFile, Segment
from rmqctl.tiered.flat_queue import FlatQueue
from rmqctl.tiered.recover.shifted import Shifted, find_shifted

ROW = np.dtype([("queue_offset", "i8"), ("position", "i8"), ("size", "i8"), ("tags_code", "i8"),
                ("store_time", "i8")])
"""A message: ``position`` is its logical offset in the queue's commit log."""

_QUIRK_AT = 56
"""Where a broker looks for the store time, also where an IPv6 born host moves it (§3)."""
_MOST_SPANS = 1000


@dataclass(slots=True)
class LogFacts:
    """A commit log segment. ``begin`` and ``end`` bound its messages' store times (`NEVER`: none),
    ``quirk`` what a broker takes for them where that is something else. ``damaged`` bytes are
    neither message nor coda; ``beyond``: messages that begin before the next segment's base and
    end behind it.
    """

    segment: Segment
    begin: int = NEVER
    end: int = NEVER
    quirk: tuple[int, int] | None = None
    messages: int = 0
    damaged: int = 0
    beyond: int = 0
    has_coda: bool = False


@dataclass(slots=True)
class Survey:
    """A queue's commit log. ``rows`` are `ROW`s in log order, shifted messages at their real
    places; ``spans`` the first damaged ranges (logical offsets); ``foreign`` messages of other
    queues.
    """

    log: FlatFile
    rows: Array
    segments: list[LogFacts] = field(default_factory=list)
    shifted: list[Shifted] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    foreign: int = 0
    bad_crc: int = 0
    misplaced: list[tuple[Segment, int]] = field(default_factory=list)
    """Segments all of whose messages say that it begins elsewhere, and where."""

    def strays(self) -> list[Segment]:
        """Segments without a message that begin before the file in front of them ends."""
        return [two.segment for one, two in pairwise(self.segments)
                if one.segment.size > one.segment.usable and two.segment.usable
                and not two.messages and two.damaged]

    def times(self, start: int, end: int) -> tuple[int, int]:
        """The least and largest store time of messages within ``[start, end)`` of the log."""
        at = np.searchsorted(self.rows["position"], [start, end])
        found = self.rows["store_time"][at[0]:at[1]]
        return (int(found.min()), int(found.max())) if len(found) else (NEVER, NEVER)


def survey(queue: FlatQueue, log: FlatFile, path: str) -> Survey:
    """Walks all segments of ``log``; ``path`` is the new file for the rows. StoreIOError."""
    found = Survey(log, np.zeros(0, ROW))
    try:
        with open(path, "wb", buffering=1 << 20) as file:
            reading = _Reading(queue, found)
            for segment in log.segments:
                facts = LogFacts(segment)
                found.segments.append(facts)
                if segment.usable:
                    file.writelines(rows.tobytes() for rows in reading.segment(facts))
        size = os.path.getsize(path)
        found.rows = np.memmap(path, ROW, "r") if size else np.zeros(0, ROW)
    except RmqctlError:
        raise
    except OSError as error:
        raise failed(error, path, "write to") from None
    return found


class _Reading:
    def __init__(self, queue: FlatQueue, found: Survey) -> None:
        self._name, self._found = queue.name, found
        self._reader = found.log.reader
        self._topics = text.Dictionary()
        self._topic = self._topics.number(os.fsencode(queue.name.topic))
        self._tags = TagsCodes(self._topics)
        self._last = -1
        """The queue offset of the last row."""

    def segment(self, facts: LogFacts) -> Iterator[Array]:
        """The rows of a segment, in parts; fills ``facts``."""
        source = self._reader.source(facts.segment.path, facts.segment.base)
        try:
            yield from self._walk(source, facts)
        finally:
            close_source(source)

    def _walk(self, source: Source, facts: LogFacts) -> Iterator[Array]:
        waiting: Span | None = None
        for batch in Walk(source, 0, facts.segment.usable):
            if len(batch):
                if waiting is not None:
                    yield from self._damaged(source, facts, waiting)
                    waiting = None
                yield self._rows(batch, facts)
            for span in batch.spans:
                if waiting is None:
                    waiting = span
                else:  # spans follow each other without a message between
                    waiting = replace(waiting, kind=_joined(waiting, span),
                                      length=span.end - waiting.offset)
        if waiting is not None:
            yield from self._damaged(source, facts, waiting)

    def _rows(self, batch: Batch, facts: LogFacts) -> Array:
        found = self._found
        end = batch.offset + batch.column("total_size")
        good = end <= facts.segment.end
        facts.beyond += int(len(batch) - good.sum())
        topic = self._topics.encode_places(batch.data, batch.column("topic_start"),
                                           batch.column("topic_length"))
        mine = (topic == self._topic) & (batch.column("queue_id") == self._name.queue_id)
        found.foreign += int((good & ~mine).sum())
        good &= mine
        offset = batch.column("queue_offset")
        crc = batch.crc_ok().astype(bool)
        if not crc.all():
            found.bad_crc += int((good & ~crc).sum())
            # A damaged body is one thing; its queue offset is believed where it fits.
            before = np.concatenate([np.array([self._last], np.int64), offset[:-1]])
            good &= crc | (offset == before + 1)
        good &= offset >= 0
        rows: Array = np.zeros(len(batch), ROW)
        rows["queue_offset"], rows["position"] = offset, batch.offset
        rows["size"], rows["store_time"] = batch.column("total_size"), batch.column(
            "store_timestamp")
        rows["tags_code"] = self._tags.codes(text.Properties(batch), topic,
                                             rows["store_time"])[0]
        rows = rows[good]
        if len(rows):
            self._last = int(rows["queue_offset"][-1])
            self._times(batch, good, rows, facts)
        return rows

    def _times(self, batch: Batch, good: Array, rows: Array, facts: LogFacts) -> None:
        facts.messages += len(rows)
        facts.begin, facts.end = _widened((facts.begin, facts.end), rows["store_time"])
        moved = batch.column("sys_flag")[good] & BORN_HOST_V6 != 0
        if facts.quirk is None and not moved.any():
            return
        times = rows["store_time"].copy()
        times[moved] = gather_int(batch.data, batch.start[good][moved] + _QUIRK_AT, "i8")
        # What came before had none that were moved.
        known = facts.quirk or (facts.begin, facts.end)
        facts.quirk = _widened(known if facts.messages > len(rows) else (NEVER, NEVER), times)

    def _damaged(self, source: Source, facts: LogFacts, span: Span) -> Iterator[Array]:
        """Rows of messages that lie in a span at another place than they say."""
        found = self._found
        start, length = span.offset, min(span.end, facts.segment.end) - span.offset
        if length <= 0:
            return
        if length == CODA_SIZE and is_coda(source.read(start - source.base, CODA_SIZE)):
            facts.has_coda = True
            return
        shifted = find_shifted(source, start - source.base, length, self._name, self._last)
        moved = {one.position - one.says for one in shifted}
        if shifted and not facts.messages and len(moved) == 1 and not found.shifted and (
                shifted[0].position == facts.segment.base == start):
            found.misplaced.append((facts.segment, shifted[0].says))
            shifted = []
        found.shifted += shifted
        facts.damaged += length - sum(one.size for one in shifted)
        if len(found.spans) < _MOST_SPANS:
            found.spans.append(span)
        rows: Array = np.zeros(len(shifted), ROW)
        for number, one in enumerate(shifted):
            rows[number] = (one.queue_offset, one.position, one.size, one.tags_code,
                            one.store_time)
        if len(rows):
            self._last = int(rows["queue_offset"][-1])
            facts.messages += len(rows)
            facts.begin, facts.end = _widened((facts.begin, facts.end), rows["store_time"])
            yield rows


def _joined(one: Span, other: Span) -> str:
    return one.kind if one.kind == other.kind else DAMAGED


def _widened(known: tuple[int, int], times: Array) -> tuple[int, int]:
    low, high = int(times.min()), int(times.max())
    return (low, high) if known[0] == NEVER else (min(known[0], low), max(known[1], high))
