"""Which frames behind damage are messages where only the log itself can tell: no consumequeue and
no index is around, as in a file by itself or in an image of a disk.

Let nothing be left of a damaged record O but a stretch of bytes in which it began. Behind it lie
*runs* of frames that follow each other, with something else before and between them. If the first
frames are O's body, O ends

* before a run, in what lies between it and the one before: O's topic and properties, perhaps
  damaged too, and what else is lost there; or
* with an odd frame of a run (`rmqctl.scan.damage.chains`).

Frames before such an end may be O's body, or those of others whose heads are gone, too; they are
doubtful, unless the queue offsets before O and behind that end tell of more messages than could be
lost between the frames (`rmqctl.scan.damage.slots`). From the last end on that is left all are
messages: there is no way for them to lie in a body. That needs an end to O: a run that leads to the
end of the log, or more bytes than a record may have. Where the log ends in damage O may have been
torn there; then nothing lies behind it that could tell, and the last run is as doubtful as all
before it.

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
from rmqctl.scan.damage.chains import MOST_NAMED, ends_record, follow, note
from rmqctl.scan.damage.slots import Slots, Trusted, records_in
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
_MOST_RUNS = 4096


@dataclass(slots=True)
class Run:
    """Frames that follow each other in positions ``[start, end)``; ``records`` of the log, if they
    are no body. ``odd``: ends of frames with which a body may end, too. ``more``: other runs
    follow up to ``end``, too many to tell them apart; the last one begins at the last of ``odd``.
    """

    start: int
    end: int
    records: int
    odd: list[int]
    more: bool = False

    @property
    def vague(self) -> int:
        """An end that stands for others, too; -1 where there is none."""
        return self.odd[-1] if self.odd and (self.more or len(self.odd) >= MOST_NAMED) else -1


@dataclass(slots=True)
class Seen:
    """What is known of a source's positions ``[start, end)``: nothing is looked at again.

    ``is_open``: whether the last run leads nowhere. ``goes_on``: whether it goes on at ``end``.
    ``trusted``: what is known of the log before. ``resumed``: where a walk of it went on.
    """

    start: int = 0
    end: int = 0
    runs: deque[Run] = field(default_factory=deque)
    is_open: bool = False
    goes_on: bool = False
    trusted: Trusted = field(default_factory=Trusted)
    resumed: int | None = None


def _room(gap: int) -> int:
    """How many records may be lost in bytes that are no frames, one with a body behind included."""
    return 1 + records_in(gap - LEAST_HEAD) if gap >= LEAST_HEAD else records_in(gap)


class Ahead:
    """What lies ahead in a file. Questions come in ascending order, else all is read again.

    ``own_end``: where a damaged record at a position ends, if that is beyond doubt.
    """

    def __init__(self, source: Source, seen: Seen, own_end: Callable[[int], int | None]) -> None:
        self._source, self._seen, self._own_end = source, seen, own_end
        self._slots = Slots(source, seen.trusted)

    def behind(self, origin: int, search: int) -> tuple[int | None, int]:
        """(where the log goes on behind damage that begins at ``origin``, None where nothing is
        proven to; up to where that was looked at). StoreIOError.

        Nothing begins before ``search``.
        """
        seen, limit = self._seen, self._source.size
        while seen.runs and seen.runs[0].end <= search:
            seen.runs.popleft()
        if not seen.start <= search <= seen.end or (seen.runs and seen.runs[0].start < search):
            seen.start = seen.end = search
            seen.runs.clear()
            seen.is_open = seen.goes_on = False
        while seen.end < limit and not seen.runs:
            self._look(limit)
        if not seen.runs or seen.runs[0].start - origin < LEAST_HEAD:
            return (seen.runs[0].start if seen.runs else None), seen.end
        # No record that began before the first run reaches further.
        far = seen.runs[0].start + MAX_RECORD
        while seen.end < min(limit, far):
            self._look(min(limit, far))
        if seen.is_open and seen.runs[-1].end < far:
            return None, seen.end
        return self._resume(origin), seen.end

    def _resume(self, origin: int) -> int:
        """From where on no frame can lie in a record that began behind ``origin``, but before."""
        runs = list(self._seen.runs)
        resume, gap = runs[0].start, origin
        near: tuple[int, int] | None = None
        for number, run in enumerate(runs):
            if number and gap >= resume:
                break
            # A run before that ends with a body, if it is one: asked for already.
            if run.start - gap >= LEAST_HEAD and (near is None or near[0] < near[1]):
                resume = self._last_end(runs[number:], gap, resume, near)
            near, gap = (run.odd[-1] if run.odd else run.start, run.end), run.end
        return resume

    def _last_end(self, runs: list[Run], gap: int, resume: int,
                  near: tuple[int, int] | None) -> int:
        """Where records that begin from ``gap`` on, and whose bodies are all frames behind it, may
        end at last; ``resume``, if not behind that. ``near``: messages right before, if those are.
        """
        far = runs[0].start + MAX_RECORD
        lost: list[int] = []  # before each run
        at = gap
        for run in runs:
            lost.append((lost[-1] if lost else 0) + _room(run.start - at))
            at = run.end
        for number in range(len(runs) - 1, -1, -1):
            run = runs[number]
            for end in reversed([run.start, *run.odd] if number else run.odd):
                if end <= resume:
                    return resume
                if end != run.vague and (end > far or (
                        end == run.end and number + 1 < len(runs))):
                    continue  # too far, or where the next run begins is an end that tells more
                if end == run.vague or not self._slots.has_more(gap, end, run.end, lost[number],
                                                                near):
                    return end
        return resume

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
        chain = follow(source, start, start + _PIECE - MAX_RECORD, None, self._own_end,
                       self.closes)
        run = Run(start, chain.end, chain.records, chain.odd)
        if seen.runs and (seen.goes_on or len(seen.runs) >= _MOST_RUNS):
            last = seen.runs[-1]
            if not seen.goes_on:
                last.more = True
                note(last.odd, [start])
            note(last.odd, run.odd)
            last.end, last.records = run.end, last.records + run.records
        else:
            seen.runs.append(run)
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
