"""Copy a source's bytes into the files of the log: few bytes as patches, many bytes as a
new file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rmqctl.damage.ranges import Range
from rmqctl.files.durable import failed, open_file, write_all
from rmqctl.files.sparse import copy_sparse
from rmqctl.repair.plan import FileContent
from rmqctl.repair.salvage.log_files import copy_path, laid_over, lay, zero
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.sources.opening import LogSource
from rmqctl.scan.frames import used_length
from rmqctl.scan.overlay import LogPart, OverlayPiece

_BLOCK = 1 << 20
_MAX_IN_MEMORY = 32 << 20
"""Maximum number of bytes that are kept as patches of a file; more bytes are copied into a new
file.
"""


def widen(parts: list[LogPart], start: int, end: int) -> None:
    """Add files before and after the log so that it includes ``[start, end)``."""
    first, last = parts[0], parts[-1]
    while start < parts[0].base >= first.size:
        parts.insert(0, LogPart(parts[0].base - first.size, first.size, None,
                                witness=first.witness, head=first.head))
    while end > parts[-1].end:
        parts.append(LogPart(parts[-1].end, first.size, None, witness=first.witness,
                             head=last.head))


class Copying:
    """Writes copied bytes to the files of a planned log.

    ``scratch``: folder for new files; if None, all bytes are kept in memory.
    """

    def __init__(self, scratch: Scratch | None) -> None:
        self._scratch = scratch

    def copy(self, parts: list[LogPart], files: dict[int, FileContent], source: LogSource,
             number: int, ranges: Sequence[Range]) -> None:
        """Copy ``ranges`` of a source into the part ``number``, which contains them.

        ``files``: contents of new files, by first physical offset. If the part becomes a new file,
        its content is added.
        Raises: StoreIOError.
        """
        part = parts[number]
        total = sum(item.end - item.start for item in ranges)
        path = None
        if part.path is None and not part.pieces:
            path = self._whole_file(source, part, ranges)
        if path is not None:
            files[part.base] = FileContent(path, movable=False)
            parts[number] = replace(part, path=path)
        elif self._scratch is not None and (part.path is None or total > _MAX_IN_MEMORY):
            path = self._written(self._scratch, source, part, ranges)
            files[part.base] = FileContent(path)
            parts[number] = LogPart(part.base, part.size, path, witness=part.witness,
                                    head=part.head)
        else:
            pieces = [OverlayPiece(item.start - part.base, item.end - item.start, tuple(
                (at - item.start, data) for at, data in _bytes(source, item))) for item in ranges]
            parts[number] = laid_over([part], {0: pieces})[0]

    def _whole_file(self, source: LogSource, part: LogPart, ranges: Sequence[Range]) -> str | None:
        """Return the path of the source's file that consists of exactly the part's bytes; else
        None. The last file of a log may be in use, and is never returned.
        """
        log = source.log
        file = log.file_of(part.base)
        if (file is None or file is log.files[-1] or (file.base, file.size) != (
                part.base, part.size) or len(ranges) != 1):
            return None
        return file.path if (ranges[0].start, ranges[0].end) == (part.base, part.end) else None

    def _written(self, scratch: Scratch, source: LogSource, part: LogPart,
                 ranges: Sequence[Range]) -> str:
        """Write a file with the bytes of a part, overwritten by the copied ranges; return its path.
        Raises: StoreIOError.
        """
        # Begin with the present bytes; holes stay holes.
        path = copy_path(scratch, part)
        if part.path is not None and part.path != path:
            try:
                copy_sparse(part.path, path)
            except OSError as error:
                raise failed(error, path, "write") from None
        fresh = os.O_TRUNC if part.path is None else 0
        fd = open_file(path, os.O_RDWR | os.O_CREAT | fresh, "make")
        # Then the pieces of this repair, and the source's bytes, with zeros between its records.
        try:
            os.ftruncate(fd, part.size)
            lay(fd, path, part.pieces)
            for item in ranges:
                position = item.start
                for at, data in _bytes(source, item):
                    zero(fd, path, position - part.base, at - position)
                    write_all(fd, data, at - part.base, path)
                    position = at + len(data)
                zero(fd, path, position - part.base, item.end - position)
            file = source.log.file_of(ranges[0].start)
            if file is not None:  # a broker's expiry depends on it
                time = os.stat(file.path).st_mtime_ns
                os.utime(fd, ns=(time, time))
        except OSError as error:
            raise failed(error, path, "write") from None
        finally:
            os.close(fd)
        return path


def _bytes(source: LogSource, item: Range) -> Iterator[tuple[int, bytes]]:
    """Yield (physical offset, bytes) of the data in a range; all other bytes are zeros. Raises:
    StoreIOError.
    """
    position = item.start
    while position < item.end:
        place = source.log.locate(position)
        if place is None:
            return
        count = min(_BLOCK, item.end - position, place[0].size - place[1])
        data = place[0].read(place[1], count)
        used = used_length(data)
        if used:
            yield position, data[:used]
        if len(data) < count:
            return
        position += count
