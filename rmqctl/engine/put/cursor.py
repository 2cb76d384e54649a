"""The end of the log while a group of messages is put. Some records are not yet written; others are
written but not yet dispatched (reput; spec: recovery.md §6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Protocol

from rmqctl.formats.local.message import BLANK_SIZE
from rmqctl.lazy_dataclass import dataclass

DISPATCH_BYTES = 1 << 20
"""Number of bytes of records that are collected and then dispatched together, because each
dispatch has a fixed cost."""


class AppendLog(Protocol):
    """The interface of the log that the put path uses. Offsets are physical, sizes are in bytes."""

    @property
    def current(self) -> object | None:
        """The current file; None if the log has no file open for appending."""

    @property
    def files(self) -> Sequence[object]:
        """All files of the log, oldest first."""

    @property
    def position(self) -> int:
        """The physical offset of the next byte."""

    def room(self) -> int:
        """Return the number of bytes left in the current file; without a file, the file size."""

    def append(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write the parts at ``position``; in an empty log, create the first file."""

    def close_with_blank(self) -> None:
        """End the current file with the END_OF_FILE record."""

    def roll(self) -> None:
        """Continue in the next file."""

    def start_at(self, physical: int) -> None:
        """Set the start of the first file of an empty log."""


@dataclass(slots=True)
class RecordRun:
    """Complete contiguous records of one file; ``base``: the physical offset of the first one."""

    base: int
    data: bytes | memoryview
    bit_maps: dict[int, bytes | None] = field(default_factory=dict)


class AppendCursor:
    """Collects the records of a group until they are written; guarded by the put lock.

    Physical offsets: ``base`` is the start of the collected records, ``position`` the start of the
    next record, ``end`` the end of the current file. ``begin`` is called before the first byte is
    written.
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
        """Store time (ms) of the last record; 0 if there is none."""
        self.parts: list[bytes | memoryview] = []
        self.bit_maps: dict[int, bytes | None] = {}
        self.runs: list[RecordRun] = []

    def start(self) -> None:
        """Begin a new group at the end of the log."""
        self.base = self.position = self.log.position
        self.end = self.position + self.log.room()
        self.parts, self.bit_maps, self.runs = [], {}, []

    @property
    def is_new(self) -> bool:
        """Return whether the log has no files and no collected records."""
        return self.log.current is None and not self.log.files and not self.parts

    def start_at(self, physical: int) -> None:
        """Set the start of the first file of an empty log."""
        self.log.start_at(physical)
        self.base = self.position = physical
        self.end = physical + self.log.room()

    def make_room(self, size: int) -> None:
        """Continue in the next file if a record of ``size`` bytes and a blank record do not fit
        into the current file.
        """
        if size + BLANK_SIZE > self.end - self.position:
            self.roll()

    def add(self, records: bytes | memoryview) -> None:
        """Add encoded records that start at ``position``."""
        self.parts.append(records)
        self.position += len(records)

    def roll(self) -> None:
        """Close the current file, if there is one, and continue in the next file."""
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
    """Sequences of records that are not dispatched yet, in log order; guarded by the put lock."""

    def __init__(self, dispatch: Callable[[RecordRun], None]) -> None:
        self._dispatch = dispatch
        self._waiting: list[RecordRun] = []
        self._bytes = 0

    def add(self, written: list[RecordRun]) -> bool:
        """Add sequences of written records; return whether `clear` should be called."""
        self._waiting += written
        self._bytes += sum([len(run.data) for run in written])
        return self._bytes >= DISPATCH_BYTES

    def clear(self) -> None:
        """Dispatch all records."""
        for run in joined(self._waiting):
            self._dispatch(run)
        self._waiting, self._bytes = [], 0


def joined(runs: list[RecordRun]) -> Iterator[RecordRun]:
    """Yield the sequences of records, with adjacent sequences merged.

    Each message that is put alone adds a sequence. Sequences in different files are never adjacent:
    a blank record separates them.
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
