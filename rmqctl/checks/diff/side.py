"""One of the two logs that `diff` compares: its frames in order, and its damage.

Positions are physical offsets throughout. A hole of the log (a missing file, a file that is too
short) is passed over: what the other store has there is missing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from rmqctl.checks.diff.differences import Difference, Differences, Kind
from rmqctl.scan.frames import DAMAGED, Array, Batch, Span
from rmqctl.scan.walk import Walk
from rmqctl.store.log.bounds import View
from rmqctl.store.log.end import find_end

Name = Literal["a", "b"]
MISSING: dict[Name, Kind] = {"a": "missing-in-a", "b": "missing-in-b"}
DAMAGE: dict[Name, Kind] = {"a": "damaged-in-a", "b": "damaged-in-b"}
_PAGE = 2 << 20


class Side:
    """A cursor over the frames of a log. ``position`` is where the next frame starts.

    ``messages`` and ``bytes_damaged`` count what it passed. ``end`` is where the log ends in its
    view, on disk behind the last provable record, at the moment the comparison began.
    """

    def __init__(self, name: Name, view: View) -> None:
        self.name, self.view, self.store = name, view, view.store
        self.log = view.store.log
        self.start = self.log.min_offset
        self.end = find_end(view.store).offset if view.log_end is None else view.log_end
        self.position = self.start
        self.messages = self.bytes_damaged = self.damaged_spans = 0
        self.open_damage: list[Damage] = []
        self._page = bytearray(_PAGE)

    def _normalise(self) -> None:
        """A position in a hole moves to the file behind it."""
        if self.log.file_of(self.position) is None:
            later = [one.base for one in self.log.files if one.base >= self.position]
            self.position = min(later, default=max(self.position, self.log.end))

    def frames(self, upto: int) -> Iterator[Batch]:
        """The batches of all frames that start before ``upto``; moves ``position`` on."""
        while self.position < min(upto, self.log.end):
            file, place = self.log.file_of(self.position), self.log.locate(self.position)
            if file is None or place is None:
                return
            source, at = place
            walk = Walk(source, at, upto - source.base)
            for batch in walk:
                self.position = source.base + walk.position
                self._passed(batch)
                yield batch
            if walk.end < upto - source.base:  # all of the file, which may have shrunk meanwhile
                self.position = max(source.base + walk.position, file.end)
            self._normalise()

    def _passed(self, batch: Batch) -> None:
        self.messages += len(batch)
        for span in batch.spans:
            if span.kind == DAMAGED:
                self.bytes_damaged += span.length
                self.damaged_spans += 1
                self.open_damage.append(Damage(span))

    def skip(self, upto: int, messages: int) -> None:
        """Goes over frames that are known to be the same as the other side's."""
        self.position = upto
        self.messages += messages
        self._normalise()

    def holds(self, physical: int, data: Array) -> bool:
        """Whether exactly these bytes lie at ``physical``, all in one file."""
        place = self.log.locate(physical)
        if place is None or place[1] + len(data) > place[0].size:
            return False
        if len(self._page) < len(data):
            self._page = bytearray(len(data))
        view = memoryview(self._page)[:len(data)]
        if place[0].read_into(view, place[1]) < len(data):
            return False
        return bool(np.array_equal(np.frombuffer(view, np.uint8), data))

    def pages(self, start: int, length: int) -> Iterator[bytes]:
        """The bytes of a span that lies in one file, a bounded page at a time."""
        place = self.log.locate(start)
        for at in range(0, length, _PAGE):
            yield b"" if place is None else place[0].read(place[1] + at, min(_PAGE, length - at))

    # -- damage -------------------------------------------------------------------------------

    def damaged_at(self, start: int, end: int) -> Damage | None:
        """The damage that touches ``[start, end)``, if any; it then counts as told."""
        for one in self.open_damage:
            if one.span.offset < end and start < one.span.end:
                one.told = True
                return one
        return None

    def close_damage(self, upto: int) -> list[Damage]:
        """The damage that lies wholly before ``upto``: nobody will ask for it again."""
        closed = [one for one in self.open_damage if one.span.end <= upto]
        self.open_damage = [one for one in self.open_damage if one.span.end > upto]
        return closed


class Damage:
    """A damaged span; ``told`` once a difference has named it."""

    def __init__(self, span: Span) -> None:
        self.span, self.told = span, False

    @property
    def place(self) -> tuple[int, int]:
        """(physical offset, length)"""
        return self.span.offset, self.span.length

    def words(self, side: Side) -> str:
        return f"{side.name} is damaged here: {self.span.reason}"


def tell_damage(a: Side, b: Side, upto: int, out: Differences) -> int:
    """Damage before ``upto``, which both sides have passed: a difference if none has named it.

    The same damage on both sides is none: returned is how many such spans there were.
    """
    ours, theirs = a.close_damage(upto), b.close_damage(upto)
    if not ours and not theirs:
        return 0
    common = {one.place for one in ours} & {one.place for one in theirs}
    alike = {place for place in common if all(
        one == other for one, other in zip(a.pages(*place), b.pages(*place), strict=True))}
    for side, damages in ((a, ours), (b, theirs)):
        for one in damages:
            if not one.told and one.place not in alike:
                out.add(Difference(DAMAGE[side.name], physical_offset=one.span.offset,
                                   length=one.span.length, detail=one.words(side)))
    return len(alike)
