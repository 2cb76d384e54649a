"""Write the fillers of a missing file with millions of known messages into a scratch file.

A gigabyte of small messages is millions of consume queue entries. Their fillers are built from
arrays ("by column"), without an object for each message, to save memory. Unusual entries (batches,
several entries for one physical offset, overlapping messages) are handled one by one, like all
other lost messages.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import field

import numpy as np

from rmqctl.damage.evidence import FoundRow, RowColumns
from rmqctl.damage.survey.survey import Region
from rmqctl.files.durable import failed, make_folders, open_file, write_all
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.salvage import filler
from rmqctl.repair.salvage.filler import Filler, FillerEntry, Style
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array, distinct
from rmqctl.scan.overlay import OverlayPiece

FOLDER = "salvaged"
_CHUNK = 32 << 20


@dataclass(slots=True)
class Bulk:
    """Lost messages of one missing file, in order of physical offset. Each of them gets a filler.

    Messages do not overlap; `gaps` yields the ranges without a message. Columns:

    * ``queue``: index of the message's queue in ``keys``.
    * ``offset``: queue offset.
    * ``physical``: physical offset.
    * ``size``: size in bytes.
    """

    region: Region
    keys: Sequence[QueueKey]
    queue: Array
    offset: Array
    physical: Array
    size: Array
    pieces: list[OverlayPiece] = field(default_factory=list)
    """Pieces to write into the gaps (positions in the file); these are added one by one."""

    times: list[tuple[int, int]] = field(default_factory=list)
    """(physical offset, store time in ms): fillers at or after that offset have that store time."""

    def __len__(self) -> int:
        return len(self.queue)

    @property
    def time(self) -> int:
        """Return the store time (ms) of the last filler: the latest time passed to `later`, or
        the region's time if there is none.
        """
        return self.times[-1][1] if self.times else self.region.time

    def later(self, physical: int, time: int) -> None:
        """Set the store time of all fillers from a physical offset on.

        Nothing changes if ``time`` (ms) is earlier than their present store time.
        """
        if time > self.time:
            self.times.append((physical, time))

    @property
    def end(self) -> int:
        return int(self.physical[-1] + self.size[-1])

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges ``[start, end)`` of the file that no message covers."""
        ends = self.physical + self.size
        starts = np.append(self.physical, self.region.end)
        ends = np.insert(ends, 0, self.region.start)
        for index in np.flatnonzero(starts > ends).tolist():
            yield int(ends[index]), int(starts[index])

    def absorb(self, least: int) -> None:
        """Extend messages over adjacent gaps that are shorter than ``least`` bytes, the size of the
        smallest record.
        """
        if self.region.start < self.physical[0] < self.region.start + least:
            self.size[0] += self.physical[0] - self.region.start
            self.physical[0] = self.region.start
        gap = self.physical[1:] - (self.physical + self.size)[:-1]
        self.size[:-1] += np.where(gap < least, gap, 0)

    def runs(self) -> Iterator[tuple[QueueKey, tuple[int, int, int, int]]]:
        """Yield (queue, (first queue offset, end, first physical offset, end)) for each run of
        consecutive queue offsets. Ends are exclusive.
        """
        order = np.lexsort((self.offset, self.queue))
        queue, offset = self.queue[order], self.offset[order]
        fresh = np.flatnonzero(np.append(True, (np.diff(queue) != 0) | (np.diff(offset) != 1)))
        for first, behind in zip(fresh.tolist(), [*fresh[1:].tolist(), len(queue)], strict=True):
            last = order[behind - 1]
            yield self.keys[int(queue[first])], (
                int(offset[first]), int(offset[behind - 1]) + 1, int(self.physical[order[first]]),
                int(self.physical[last] + self.size[last]))

    def rows(self, count: int) -> Iterator[FoundRow]:
        """Yield the consume queue entries of the first ``count`` messages."""
        for queue, offset, physical, size in zip(*(column[:count].tolist() for column in (
                self.queue, self.offset, self.physical, self.size)), strict=True):
            yield FoundRow(self.keys[queue], offset, physical, size)

    def write(self, folder: str, style: Style, mtime_ns: int | None) -> str:
        """Write the file into ``folder`` and return its path. Equal contents get the same name.
        Raises: StoreIOError.
        """
        base = self.region.start
        path = os.path.join(folder, FOLDER, f"{base:020d}-{self._digest(style)}")
        make_folders(os.path.dirname(path), durable=False)
        # Written in place, without O_TRUNC: an interrupted rebuild recognises its log by the inode.
        fd = open_file(path, os.O_WRONLY | os.O_CREAT, "make")
        try:
            os.ftruncate(fd, self.region.end - base)
            for start, data in self._chunks(style):
                write_all(fd, data.data.cast("B"), start - base, path)
            for piece in self.pieces:
                for offset_in_piece, raw in piece.parts:
                    write_all(fd, raw, piece.at + offset_in_piece, path)
            if mtime_ns is not None:
                os.utime(fd, ns=(mtime_ns, mtime_ns))
        except OSError as error:
            raise failed(error, path, "write") from None
        finally:
            os.close(fd)
        return path

    def _digest(self, style: Style) -> str:
        digest = hashlib.sha256(repr((self.region, self.keys, self.times, style)).encode(
            "utf-8", "surrogateescape"))
        for column in (self.queue, self.offset, self.physical, self.size):
            digest.update(column.tobytes())
        for piece in self.pieces:
            digest.update(repr((piece.at, piece.size)).encode())
            for offset_in_piece, raw in piece.parts:
                digest.update(repr((offset_in_piece, len(raw))).encode() + raw)
        return digest.hexdigest()[:16]

    def _chunks(self, style: Style) -> Iterator[tuple[int, Array]]:
        """Yield (physical offset, bytes) of chunks with several messages each; gaps between
        messages are zeros.
        """
        first, ends = 0, self.physical + self.size
        while first < len(self):
            start = int(self.physical[first])
            behind = max(first + 1, int(np.searchsorted(ends, start + _CHUNK, "right")))
            data = np.zeros(int(ends[behind - 1]) - start, np.uint8)
            self._lay(data, start, slice(first, behind), style)
            yield start, data
            first = behind

    def _lay(self, data: Array, start: int, which: slice, style: Style) -> None:
        queue, size = self.queue[which], self.size[which]
        position, offset = self.physical[which] - start, self.offset[which]
        topics = np.array([_topic_number(self.keys)[key[0]] for key in self.keys], np.int64)
        ids = np.array([key[1] for key in self.keys], np.int64)
        names = list(_topic_number(self.keys))
        topic = topics[queue]
        times = np.array([self.region.time, *(time for _, time in self.times)], np.int64)[
            np.searchsorted([place for place, _ in self.times], self.physical[which], "right")]
        for number in distinct(topic).tolist():
            model = Filler((FillerEntry(names[number], 0, 0),))
            marked = size >= model.wanted(style)
            for rows in (np.flatnonzero((topic == number) & marked),
                         np.flatnonzero((topic == number) & ~marked)):
                if not len(rows):
                    continue
                heads, ends = model.columns(ids[queue[rows]], offset[rows], position[rows] + start,
                                            size[rows], times[rows], style)
                columns_of_rows = position[rows][:, None]
                data[columns_of_rows + np.arange(heads.shape[1])] = heads
                behind = (position[rows] + size[rows])[:, None]
                data[behind - np.arange(ends.shape[1], 0, -1)] = ends


def _topic_number(keys: Sequence[QueueKey]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for topic, _ in keys:
        numbers.setdefault(topic, len(numbers))
    return numbers


def parted(region: Region, columns: RowColumns, limit: int, style: Style) -> tuple[
        Bulk | None, list[FoundRow]]:
    """Return (the messages that can be handled by column, the entries of the other messages).

    * ``columns``: entries that point into ``region``, a complete missing file.
    * ``limit``: greatest physical offset at which the last message may end.
    """
    keys, queue, offset, physical, size = columns.sorted()
    least = np.array([Filler((FillerEntry(*key, 0),)).least(style) for key in keys], np.int64)
    good = (size >= least[queue]) & (size <= filler.MAX_FILLER) & (physical + size <= limit)
    # A message that is too small for a body takes a byte from the message after it, so both are
    # handled one by one.
    good[1:] &= size[:-1] >= least[queue[:-1]]
    alone = np.ones(len(physical), bool)
    same = physical[1:] == physical[:-1]
    alone[1:] &= ~same
    alone[:-1] &= ~same
    good &= alone
    # Overlapping messages are all handled one by one, because each must be compared with the
    # others.
    end = np.maximum.accumulate(physical + size)
    apart = np.ones(len(physical), bool)
    apart[1:] = physical[1:] >= end[:-1]
    good &= apart & np.append(apart[1:], True)
    others = np.flatnonzero(~good)
    left = [FoundRow(keys[q], o, p, s) for q, o, p, s in zip(*(
        column[others].tolist() for column in (queue, offset, physical, size)), strict=True)]
    taken = np.flatnonzero(good)
    if not len(taken):
        return None, left
    return Bulk(region, keys, queue[taken], offset[taken], physical[taken], size[taken]), left

