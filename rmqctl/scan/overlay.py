"""Bytes laid over a file without changing the file: a log as it would be after a repair.

A piece stores its bytes sparsely: even gigabytes of zeros need no memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field

from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource, Source, Witness

Parts = tuple[tuple[int, bytes], ...]
"""(position, bytes) of each part, ascending and without overlap; the gaps are zeros."""


@dataclass(frozen=True, slots=True)
class OverlayPiece:
    """A piece: ``size`` bytes at position ``at`` of a file. The positions in ``parts`` are relative
    to ``at``.
    """

    at: int
    size: int
    parts: Parts = ()

    @property
    def end(self) -> int:
        return self.at + self.size

    @classmethod
    def of(cls, position: int, data: bytes) -> OverlayPiece:
        return cls(position, len(data), ((0, data),) if data else ())

    def read_into(self, buffer: memoryview, position: int) -> None:
        """Fill ``buffer`` with the bytes from ``position`` on, relative to ``at``."""
        buffer[:] = bytes(len(buffer))
        until = position + len(buffer)
        first = max(0, bisect_right(self.parts, position, key=lambda part: part[0]) - 1)
        for start, data in self.parts[first:]:
            if start >= until:
                break
            low, high = max(start, position), min(start + len(data), until)
            if low < high:
                buffer[low - position:high - position] = data[low - start:high - start]


@dataclass(frozen=True, slots=True)
class LogPart:
    """One file of a log with planned changes: ``size`` bytes, starting at physical offset ``base``.

    Picklable.

    ``path``: the underlying file; None for a missing file. Bytes in neither the file nor a piece
        read as zeros.
    ``pieces``: ascending, without overlaps.
    ``witness``, ``head``: see `rmqctl.scan.source.Source`.
    ``limit``: bytes of the file from this position on are newer than the view, and read as zeros
        (`StoreFile.limit`).
    """

    base: int
    size: int
    path: str | None
    pieces: tuple[OverlayPiece, ...] = ()
    witness: Witness | None = field(default=None, compare=False, repr=False)
    limit: int | None = None
    head: int = 0

    @property
    def end(self) -> int:
        return self.base + self.size

    @contextmanager
    def open(self) -> Iterator[Source]:
        """Open a source that reads the file with its pieces applied.

        Raises: StoreIOError.
        """
        if self.path is None:
            yield OverlaidSource(self, None)
            return
        with FileSource(self.path, self.base, self.limit, self.witness, self.head) as below:
            if not self.pieces and below.size == self.size:
                yield below
            else:
                yield OverlaidSource(self, below)


class OverlaidSource:
    """The `Source` of a `LogPart`; ``below`` is the source of the underlying file, opened by the
    caller.
    """

    def __init__(self, part: LogPart, below: Source | None) -> None:
        self.name = part.path or f"<missing file {part.base:020d}>"
        self.base, self.size, self.witness = part.base, part.size, part.witness
        self.head = part.head
        self._pieces, self._below = part.pieces, below
        self._starts = [piece.at for piece in part.pieces]

    def read(self, position: int, length: int) -> bytes:
        buffer = bytearray(max(0, min(length, self.size - position)))
        self.read_into(memoryview(buffer), position)
        return bytes(buffer)

    def read_into(self, buffer: memoryview, position: int) -> int:
        count = max(0, min(len(buffer), self.size - position))
        buffer = buffer[:count]
        got = self._below.read_into(buffer, position) if self._below is not None else 0
        if got < count:
            buffer[got:] = bytes(count - got)
        number = max(0, bisect_right(self._starts, position) - 1)
        for piece in self._pieces[number:]:
            if piece.at >= position + count:
                break
            low, high = max(piece.at, position), min(piece.end, position + count)
            if low < high:
                piece.read_into(buffer[low - position:high - position], low - piece.at)
        return count

    def next_data(self, position: int) -> int:
        if position >= self.size:
            return min(position, self.size)
        next_used = self.size
        if self._below is not None and position < self._below.size:
            next_used = min(next_used, self._below.next_data(position))
            if next_used >= self._below.size:
                next_used = self.size
        number = max(0, bisect_right(self._starts, position) - 1)
        for piece in self._pieces[number:]:
            if piece.at >= next_used:
                break
            for start, data in piece.parts:
                if piece.at + start + len(data) > position:
                    next_used = min(next_used, max(piece.at + start, position))
                    break
        return next_used


class Nearby:
    """A source whose short reads at close positions are served from one window in memory.

    The window grows while the positions are close to each other, so that bytes between distant
    positions are not read. The bytes must not change while this object is used.
    """

    _LEAST, _MOST = 4 << 10, 256 << 10

    def __init__(self, source: Source) -> None:
        self.name, self.base, self.head = source.name, source.base, source.head
        self.size, self.witness = source.size, source.witness
        self.read_into, self.next_data = source.read_into, source.next_data
        self._of, self._data, self._start = source, b"", 0
        self._window = self._LEAST

    def read(self, position: int, length: int) -> bytes:
        inside = position - self._start
        if 0 <= inside and inside + length <= len(self._data):
            return self._data[inside:inside + length]
        if length > self._LEAST // 2:
            return self._of.read(position, length)
        is_close = 0 <= inside < len(self._data) + self._window // 4
        self._window = min(2 * self._window, self._MOST) if is_close else self._LEAST
        self._start = max(0, position - self._window // 16)
        self._data = self._of.read(self._start, self._window)
        inside = position - self._start
        return self._data[inside:inside + length]
