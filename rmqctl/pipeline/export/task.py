"""One range of a log exported: what a worker does, and the small value it gives back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from rmqctl.pipeline.export.layout import Values
from rmqctl.pipeline.export.sink import Sink, Written
from rmqctl.pipeline.export.spec import Export
from rmqctl.scan import malloc_tuning
from rmqctl.scan.frames import BLANK, Batch, Span
from rmqctl.scan.tolerant import TolerantWalk, Unread
from rmqctl.store.files import StoreFile
from rmqctl.store.log.ranges import Range
from rmqctl.store.pages import BatchPage
from rmqctl.store.query.conditions import filtered

MOST_NAMED = 200
"""Damaged places and messages with a bad CRC which a range names; all of them are counted."""
UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Piece(Range):
    """A range of a store: number ``at`` of the store ``store`` (its number), with their names.

    ``name`` is the store as the user named it, ``relative`` the file's name in the store.
    """

    store: int
    at: int
    name: str
    relative: str


@dataclass(slots=True)
class Faults:
    """Places of the log that gave no message, in order: the first ones named, all counted."""

    spans: list[Span] = field(default_factory=list)
    count: int = 0
    bytes: int = 0

    def add(self, span: Span) -> None:
        self.count += 1
        self.bytes += span.length
        if len(self.spans) < MOST_NAMED:
            self.spans.append(span)

    def merge(self, other: Faults) -> None:
        self.count += other.count
        self.bytes += other.bytes
        self.spans += other.spans[:max(MOST_NAMED - len(self.spans), 0)]


@dataclass(slots=True)
class Tally:
    """What a range held and what was exported of it. Times in ms, offsets physical.

    ``tail`` are the spans behind the last message: whether they are damage or just the unused rest
    of the log is known when it is known whether messages follow.
    """

    messages: int = 0
    rows: int = 0
    bad_crc: int = 0
    bad_crc_at: list[int] = field(default_factory=list)
    inside: Faults = field(default_factory=Faults)
    tail: list[Span] = field(default_factory=list)
    unreadable: Faults = field(default_factory=Faults)
    first_time: int | None = None
    last_time: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None

    def passed(self, messages: int, spans: list[Span]) -> None:
        """Takes what a batch of the walk holds: spans lie behind its messages."""
        if messages:
            self.messages += messages
            self._close()
        self.tail += [one for one in spans if one.kind != BLANK]
        if len(self.tail) > MOST_NAMED:  # hopeless damage is not collected for ever
            self._close()

    def _close(self) -> None:
        for one in self.tail:
            self.inside.add(one)
        self.tail.clear()

    def exported(self, batch: Batch) -> None:
        """Takes messages that are exported, in physical order."""
        self.rows += len(batch)
        ok = batch.crc_ok()
        if not ok.all():
            bad = batch.offset[~ok]
            self.bad_crc += len(bad)
            self.bad_crc_at += bad[:max(MOST_NAMED - len(self.bad_crc_at), 0)].tolist()
        times, offsets = batch.column("store_timestamp"), batch.offset
        low, high = int(times.min()), int(times.max())
        self.first_time = low if self.first_time is None else min(low, self.first_time)
        self.last_time = high if self.last_time is None else max(high, self.last_time)
        if self.first_offset is None:
            self.first_offset = int(offsets[0])
        self.last_offset = int(offsets[-1])


@dataclass(slots=True)
class Part:
    """The result of a range: it covered the frames of positions ``[first, position)``.

    ``files`` lie in the folder ``attempt``; ``partitions`` are the values their numbers stand for.
    ``store`` and ``at`` are those of the `Piece`.
    """

    store: int
    at: int
    first: int
    position: int
    attempt: str
    files: list[Written]
    partitions: list[Values]
    tally: Tally


class Reading:
    """The batches of a range; what the system does not give is counted, the rest is read."""

    def __init__(self, part: Range, tally: Tally) -> None:
        self._part, self._tally = part, tally
        self.first = self.position = part.start

    def __iter__(self) -> Iterator[Batch]:
        part, file = self._part, self._part.file
        with ExitStack() as opened:
            walk = TolerantWalk(lambda: opened.enter_context(file.open()),
                                part.start, part.end, resync=part.resync)
            for item in walk:
                self.first, self.position = walk.first, walk.position
                if isinstance(item, Unread):
                    self._lost(item)
                else:
                    yield item
            self.first, self.position = walk.first, walk.position
        if self.position < part.end and walk.shrunk:
            self._lost(Unread(self.position, part.end,
                              f"{file.path}: became shorter while it was read"))
            self.position = part.end

    def _lost(self, lost: Unread) -> None:
        self._tally.unreadable.add(Span(UNREADABLE, self._part.file.base + lost.start,
                                        lost.end - lost.start, lost.reason))


def chosen(spec: Export, batch: Batch) -> Batch:
    """The messages of a batch which are to be exported."""
    if not spec.conditions:
        return batch
    found = filtered(BatchPage(batch), spec.conditions)
    assert isinstance(found, BatchPage)
    return found.batch


def export_range(spec: Export, folder: str, part: Any) -> Part:
    """Exports a `Piece` into a new folder of this attempt below ``folder``. WriteError."""
    assert isinstance(part, Piece)
    malloc_tuning.keep_freed_memory()
    tally = Tally()
    reading = Reading(part, tally)
    sink = Sink(spec, part.name, part.relative, folder)
    try:
        for batch in reading:
            count = len(batch)
            tally.passed(count, batch.spans)
            wanted = chosen(spec, batch) if count else batch
            if len(wanted):
                tally.exported(wanted)
                sink.add(wanted)
        files = sink.close()
    except BaseException:
        sink.abandon()
        raise
    return Part(part.store, part.at, reading.first, reading.position, sink.attempt, files,
                sink.partitions.found, tally)


def lost_file(file: StoreFile, reason: str) -> Tally:
    """The tally of a file nobody could open."""
    tally = Tally()
    tally.unreadable.add(Span(UNREADABLE, file.base, file.size, reason))
    return tally

