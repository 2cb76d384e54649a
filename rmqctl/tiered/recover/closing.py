"""A commit log segment that is too long by a part of a block which was written again behind it
(tiered.md §8.4): without that part everything is where units, index items and the next segment
take it to be.

In the last segment nothing follows, and what lies there may stay; in an earlier one the end of the
file lies behind the start of the next, where nothing can lead to it.
"""

from __future__ import annotations

import os

from rmqctl.files.durable import failed
from rmqctl.scan.source import FileSource, Source
from rmqctl.tiered.files.reader import Entry, Reader
from rmqctl.tiered.flat_file import FlatFile, Segment
from rmqctl.tiered.recover.scratch import copy_ranges
from rmqctl.tiered.recover.shifted import PLACE
from rmqctl.tiered.recover.survey import Survey


class Overlaid:
    """A reader with other files in place of some. Does not close the one below."""

    def __init__(self, below: Reader, files: dict[str, str]) -> None:
        self.name, self._below, self._files = below.name, below, files

    def where(self, path: str) -> str:
        return self._below.where(path)

    def list(self, folder: str) -> list[Entry]:
        return self._below.list(folder)

    def size(self, path: str) -> int | None:
        return os.path.getsize(self._files[path]) if path in self._files else self._below.size(path)

    def read(self, path: str, position: int, length: int) -> bytes:
        if path not in self._files:
            return self._below.read(path, position, length)
        with FileSource(self._files[path]) as source:
            return source.read(position, length)

    def source(self, path: str, base: int = 0) -> Source:
        if path in self._files:
            return FileSource(self._files[path], base)
        return self._below.source(path, base)

    def close(self) -> None:
        """Nothing: others still read from what is below."""


def close_up(found: Survey, folder: str) -> tuple[FlatFile, dict[str, str]]:
    """(the log with what would be its files, {segment's path: new file in ``folder``}). Only
    segments whose length is then exactly what the next one's base says. StoreIOError.
    """
    log, files = found.log, {}
    segments = []
    for one in log.segments:
        part = _written_twice(found, one) if one is not log.segments[-1] else None
        if part is None:
            segments.append(one)
            continue
        path = os.path.join(folder, f"closed-{one.base}")
        copy_ranges(log.reader, one.path, [(0, part[0]), (part[1], one.size)], path)
        files[one.path] = path
        segments.append(Segment(one.path, one.base, one.usable, one.usable, one.mtime_ms,
                                one.name_ok))
    if not files:
        return log, files
    return FlatFile(Overlaid(log.reader, files), log.folder, log.kind, segments), files


def _written_twice(found: Survey, one: Segment) -> tuple[int, int] | None:
    """``[start, end)`` of the part in the file that is there twice; None where there is none, or
    without it the file would have another length than it should.
    """
    if not one.name_ok:
        return None
    moved = [each for each in found.shifted if one.base <= each.position < one.end]
    if not moved or {each.position - each.says for each in moved} != {one.size - one.usable}:
        return None
    start, end = moved[0].says - one.base, moved[0].position - one.base
    return (start, end) if 0 <= start < end else None


def put_right(found: Survey, files: dict[str, str]) -> int:
    """Makes the messages of new files say where they are: those written after the part that was
    there twice. How many these were; they are no longer ``shifted``. StoreIOError.
    """
    left, count = [], 0
    for each in found.shifted:
        segment = found.log.segment_of(each.position)
        path = files.get(segment.path) if segment is not None else None
        if segment is None or path is None:
            left.append(each)
            continue
        try:
            with open(path, "r+b") as file:
                file.seek(each.position - segment.base + PLACE.offset)
                file.write(each.position.to_bytes(PLACE.size, "big"))
        except OSError as error:
            raise failed(error, path, "write to") from None
        count += 1
    found.shifted = left
    return count
