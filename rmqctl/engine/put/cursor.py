"""The end of the log while a group of messages is put: unwritten bytes, and undispatched records
(reput; spec: recovery.md §6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rmqctl.formats.local.message import BLANK_SIZE

DISPATCH_BYTES = 1 << 20
"""Bytes of records that are dispatched together, because each call has a fixed cost."""


class AppendLog(Protocol):
    """The log as the put path uses it; physical offsets, sizes in bytes."""

    @property
    def current(self) -> object | None:
        """The file for appending, or None without a file."""

    @property
    def files(self) -> Sequence[object]:
        """All files, oldest first."""

    @property
    def position(self) -> int:
        """Physical offset of the next byte."""

    def room(self) -> int:
        """Return the bytes left in the current file; the file size without a file."""

    def append(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write at ``position``; create the first file of an empty log."""

    def close_with_blank(self) -> None:
        """End the current file with the END_OF_FILE record."""

    def roll(self) -> None:
        """Continue in the next file."""

    def start_at(self, physical: int) -> None:
        """Set the start of the first file of an empty log."""


@dataclass(slots=True)
class RecordRun:
    """Complete contiguous records in a file, from physical offset ``base``."""

    base: int
    data: bytes | memoryview
    bit_maps: dict[int, bytes | None] = field(default_factory=dict)


class AppendCursor:
    """Collector of a group's records; physical offsets. The put lock guards it.

    ``base``: start of the collected records. ``position``: of the next record. ``end``: end of the
    current file. ``begin`` is called before the first byte is written.
    """

    __slots__ = (
        "_begin",
        "base",
        "bit_maps",
        "end",
        "last_timestamp",
        "log",
        "parts",
        "position",
        "runs",
    )

    def __init__(self, log: AppendLog, begin: Callable[[], None]) -> None:
        self.log, self._begin = log, begin
        self.base = self.position = self.end = 0
        self.last_timestamp = 0
        """Store time (ms) of the last record."""
        self.parts: list[bytes | memoryview] = []
        self.bit_maps: dict[int, bytes | None] = {}
        self.runs: list[RecordRun] = []

    def start(self) -> None:
        """Begin a group at the end of the log."""
        self.base = self.position = self.log.position
        self.end = self.position + self.log.room()
        self.parts, self.bit_maps, self.runs = [], {}, []

    @property
    def is_new(self) -> bool:
        """Return whether the log has neither files nor records."""
        return self.log.current is None and not self.log.files and not self.parts

    def start_at(self, physical: int) -> None:
        """Set the start of the first file of an empty log."""
        self.log.start_at(physical)
        self.base = self.position = physical
        self.end = physical + self.log.room()

    def make_room(self, size: int) -> None:
        """Continue in the next file if a record of ``size`` bytes and a blank do not fit."""
        if size + BLANK_SIZE > self.end - self.position:
            self.roll()

    def add(self, records: bytes | memoryview) -> None:
        """Add finished records at ``position``."""
        self.parts.append(records)
        self.position += len(records)

    def roll(self) -> None:
        """Close the current file, if any, and continue in the next."""
        self.write()
        self._begin()
        if self.log.current is not None:
            if self.end > self.position:
                self.log.close_with_blank()
            self.position = self.end
        self.log.roll()
        self.base = self.position
        self.end = self.position + self.log.room()

    def write(self) -> None:
        """Append the collected records to the current file."""
        if not self.parts:
            return
        self._begin()
        data = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.log.append([data])
        self.runs.append(RecordRun(self.base, data, self.bit_maps))
        self.parts, self.bit_maps = [], {}
        self.base = self.position


class Backlog:
    """Undispatched runs of records in log order. The put lock guards it."""

    def __init__(self, dispatch: Callable[[RecordRun], None]) -> None:
        self._dispatch = dispatch
        self._waiting: list[RecordRun] = []
        self._bytes = 0

    def add(self, written: list[RecordRun]) -> bool:
        """Add written runs; return whether it is time to `clear`."""
        self._waiting += written
        self._bytes += sum([len(run.data) for run in written])
        return self._bytes >= DISPATCH_BYTES

    def clear(self) -> None:
        """Dispatch everything."""
        for run in joined(self._waiting):
            self._dispatch(run)
        self._waiting, self._bytes = [], 0


def joined(runs: list[RecordRun]) -> Iterator[RecordRun]:
    """Yield the runs, with adjacent runs merged.

    Single puts leave a run per message. No run crosses the end of a file, because a blank is there.
    """
    start = 0
    while start < len(runs):
        first = runs[start]
        end, stop = first.base + len(first.data), start + 1
        while stop < len(runs) and runs[stop].base == end:
            end += len(runs[stop].data)
            stop += 1
        neighbours = runs[start:stop]
        start = stop
        if len(neighbours) == 1:
            yield first
            continue
        maps: dict[int, bytes | None] = {}
        for run in neighbours:
            maps |= run.bit_maps
        yield RecordRun(first.base, b"".join([run.data for run in neighbours]), maps)
