"""Which frames behind damage are messages where only the log itself can tell: no consumequeue and
no index is around, as in a file by itself or in an image of a disk.

Let nothing be left of a damaged record O but the place where it began. Behind it lie *runs* of
frames that follow each other, with something else before and between them. O may end

* where a run begins, if the bytes right before it can be read as O's topic and properties,
* or with an odd frame of a run (`rmqctl.scan.chains`).

From the last of these places on that O's size can reach, and where there is none from the first
frame on, all are messages: there is no way for them to lie in one record. What lies before may be
O's body, and is doubtful. That needs an end to O: a run that leads to the end of the log, or more
bytes than a record may have. Where the log ends in damage, O may have been torn there, and so the
last run is as doubtful as all before it.

Each part of a source is gone through once, however much of it is damaged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rmqctl.formats.local.message import (
    BLANK_SIZE,
    PROPERTIES_LENGTH_SIZE,
    START_SIZE,
    VERSIONS,
    variant,
)
from rmqctl.scan.chains import MOST_NAMED, ends_record, follow
from rmqctl.scan.frames import Doubtful, used_length
from rmqctl.scan.resync import (
    MAX_RECORD,
    is_blank,
    located_size,
    next_provable,
    used_windows,
)
from rmqctl.scan.source import Source

LEAST_HEAD = min(variant(0, magic).head_size for magic in VERSIONS)
LONGEST_TAIL = (1 << 15) + 1024
_PIECE = 16 << 20


@dataclass(slots=True)
class Seen:
    """What is known of a source's positions ``[start, end)``: nothing is looked at again.

    ``ends``: where a record that began before may end. ``is_open``: whether the last run leads
    nowhere. ``goes_on``: whether it goes on at ``end``.
    """

    start: int = 0
    end: int = 0
    ends: deque[int] = field(default_factory=deque)
    is_open: bool = False
    goes_on: bool = False


class Ahead:
    """What lies ahead in a file. Questions come in ascending order, else all is read again.

    ``own_end``: where a damaged record at a position ends, if that is beyond doubt.
    """

    def __init__(self, source: Source, seen: Seen, own_end: Callable[[int], int | None]) -> None:
        self._source, self._seen, self._own_end = source, seen, own_end

    def behind(self, origin: int, search: int) -> tuple[int | None, int]:
        """(where the log goes on behind a damaged record at ``origin``, None where nothing is
        proven to; up to where that was looked at). StoreIOError.

        Nothing begins before ``search``.
        """
        seen = self._seen
        if not seen.start <= search <= seen.end:
            seen.start = seen.end = search
            seen.ends.clear()
            seen.is_open = seen.goes_on = False
        limit, far = self._source.size, origin + MAX_RECORD
        while seen.end < limit and (seen.end < far or seen.is_open):
            self._look(limit)
        while seen.ends and seen.ends[0] < search:
            seen.ends.popleft()
        first = self._first(search, min(seen.end, far))
        if first is None or first - origin < LEAST_HEAD:
            return first, seen.end
        if seen.is_open:
            return None, seen.end
        # Where it may end, at last.
        last = next((end for end in reversed(seen.ends) if end <= far), first)
        return (last if last > origin + LEAST_HEAD else first), seen.end

    def _first(self, start: int, end: int) -> int | None:
        """The first frame, or the blank that closes the file."""
        while start < end:
            place = next_provable(self._source, start, end)
            if place is None or not is_blank(self._source, place) or self.closes(place):
                return place
            start = place + 1
        return None

    def _look(self, limit: int) -> None:
        """Goes along the next run, or on along the last one."""
        source, seen, start = self._source, self._seen, self._seen.end
        if not seen.goes_on:
            first = self._first(start, limit)
            if first is None:
                seen.end = limit
                return
            start = first
            before = max(seen.start, start - LONGEST_TAIL)
            if ends_record(source.read(before, start - before)):
                seen.ends.append(start)
        chain = follow(source, start, start + _PIECE - MAX_RECORD, None, self._own_end,
                       self.closes)
        if chain.odd is not None:
            seen.ends.append(chain.odd)
        seen.goes_on = chain.end - start > _PIECE
        seen.is_open = chain.sure is None
        is_last = not seen.goes_on and not seen.is_open
        seen.end = source.size if is_last else max(chain.end, start + (not seen.goes_on))

    def closes(self, at: int) -> bool:
        """Whether the log of a file by itself ends there: with the file, with its blank, or in
        space that was never used.
        """
        source = self._source
        if at >= source.size:
            return True
        if not is_blank(source, at):
            return not any(source.read(at, START_SIZE)) and next(
                used_windows(source, at, source.size), None) is None
        if next_provable(source, at + 1, source.size) is not None:
            return False
        # Behind a blank in a body the record goes on, to its topic and properties.
        used = at
        for position, data in used_windows(source, at + BLANK_SIZE, source.size):
            used = position + used_length(data)
        before = max(at, used - LONGEST_TAIL)
        tail = source.read(before, used - before)
        return not any(ends_record(tail + bytes(zeros)) for zeros in range(
            PROPERTIES_LENGTH_SIZE + 1))


def frames_between(source: Source, start: int, end: int) -> Doubtful:
    """(physical offset, size) of the first frames in positions ``[start, end)``. StoreIOError."""
    frames: list[tuple[int, int]] = []
    while start < end and len(frames) < MOST_NAMED:
        place = next_provable(source, start, end)
        if place is None:
            break
        start = place + 1
        while place < end and (size := located_size(source, place)) is not None:
            frames.append((source.base + place, size))
            start = place = place + size
    return tuple(frames[:MOST_NAMED])
