"""What one task reads: pieces of files. Plain values, sent from the driver to executors.

A piece knows how large its file was when it was planned: a file that is shorter by then has lost
rows, and that is said. What has been appended since is not read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from rmqctl.errors import StoreIOError
from rmqctl.formats.local.index_file import Shape
from rmqctl.pipeline.source.tiered import RecordPiece, UnitPiece
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile


@dataclass(frozen=True, slots=True)
class LogPiece:
    """The frames of a log file that begin in ``[start, end)``, two cuts anywhere in it.

    ``store`` and ``file`` are what the columns of these names say. ``last``: all bytes from
    ``end`` on are zero, and belong to this piece. ``root`` is where the store lies.
    """

    store: str
    file: str
    path: StoreFile
    start: int
    end: int
    last: bool
    root: str


@dataclass(frozen=True, slots=True)
class QueuePiece:
    """Rows ``[start, end)`` of a consumequeue file (of a batch consumequeue file: ``batch``)."""

    store: str
    file: str
    path: StoreFile
    start: int
    end: int
    topic: str
    queue_id: int
    batch: bool


@dataclass(frozen=True, slots=True)
class IndexPiece:
    """Entries with the numbers ``[start, end)`` of an index file."""

    store: str
    file: str
    path: StoreFile
    start: int
    end: int
    shape: Shape | None


Piece = LogPiece | QueuePiece | IndexPiece | UnitPiece | RecordPiece


class PlannedFile(FileSource):
    """A file with the bytes it had at planning, and none of what has been appended since.

    StoreIOError when it is gone or shorter.
    """

    def __init__(self, file: StoreFile) -> None:
        super().__init__(file.path, file.base)
        if self.size < file.size:
            size = self.size
            self.close()
            raise shrank(file, size)
        self.size = file.size

    def read(self, position: int, length: int) -> bytes:
        return super().read(position, max(min(length, self.size - position), 0))

    def read_into(self, buffer: memoryview, position: int) -> int:
        return super().read_into(buffer[:max(self.size - position, 0)], position)


def still_there(file: StoreFile) -> None:
    """StoreIOError when a file is gone or shorter than it was at planning."""
    try:
        size = os.stat(file.path).st_size
    except OSError as error:
        raise StoreIOError.from_oserror(error, file.path, "read") from None
    if size < file.size:
        raise shrank(file, size)


def shrank(file: StoreFile, size: int) -> StoreIOError:
    """What is said of a file that has ``size`` bytes by now."""
    return StoreIOError(f"{file.path}: the file shrank from {file.size} to {size} bytes since the "
                        f"job was planned: what was there from byte {size} on is missing")
