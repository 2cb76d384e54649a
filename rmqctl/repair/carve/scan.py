"""Records in any bytes, by content alone: the scan of one source.

A record proves itself by its magic, by lengths that add up to its size, and by the CRC of its
body. ``shift`` is the difference between the physical offset that a record says and the position
where it lies: neighbours of one log share it. The scan's *home* is the shift of the log it goes
along: while records of the home follow each other they are checked by column, as fast as a walk
of a log; elsewhere the next magic is searched for, and each candidate judged by itself.

What lies inside of an intact record is its body and never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rmqctl.formats.local.message import BLANK_SIZE, MAGIC_V1, MAGIC_V2, MIN_SIZE, START_SIZE
from rmqctl.repair.carve.candidates import Candidates
from rmqctl.repair.carve.judge import HEAD, Judge
from rmqctl.repair.carve.spool import Majority, Spool
from rmqctl.repair.carve.window import CHUNK, Window
from rmqctl.scan.frames import Array, Batch, examine
from rmqctl.scan.resync import MAX_RECORD, extent
from rmqctl.scan.source import Source
from rmqctl.scan.walk import hop

HOME_BYTES = 64 << 10
HOME_RECORDS = 8
"""A chain of intact records at least as long, with one shift, is taken for a piece of a log."""
MOST_HOMES = 1 << 16
_BURST = 8
_LARGE = 1 << 20


class Scan:
    """The records of one source (number ``number``). Go through `batches`, then look at the rest.

    ``base`` is the shift its name promises. ``undecided``, ``embedded``, ``damaged`` take the
    places of records which are not given by `batches`: of a shift that no log around them has;
    intact ones inside of a damaged one; those whose lengths add up, but not the CRC.
    """

    def __init__(self, source: Source, number: int, base: int | None, *, undecided: Spool,
                 embedded: Spool, damaged: Spool,
                 advance: Callable[[int], None] = lambda _bytes: None, chunk: int = CHUNK) -> None:
        self._window = Window(source, chunk)
        self._candidates = Candidates(self._window)
        self._judge = Judge(self._window, self._candidates)
        self._number, self._named = number, base is not None
        self._undecided, self._embedded, self._damaged = undecided, embedded, damaged
        self._advance, self._told = advance, 0
        self._at = 0
        self._home = base
        self._broken_at: int | None = None
        self._expected = base is not None
        self.homes: set[int] = set()
        """The shifts of all logs that were gone along, a named one aside."""
        self.shifts = Majority()
        """How many undecided records have which shift."""
        self.in_place = 0
        """Records given by `batches`."""
        self.breaks = 0
        """Places where a log goes on after something that is neither record nor blank, or ends
        in something that is not zeros either."""

    @property
    def size(self) -> int:
        """Bytes of the source; less than at first if it became shorter."""
        return self._window.size

    def batches(self) -> Iterator[tuple[Batch, int]]:
        """(records in place, their shift). A batch is only valid until the next is asked for."""
        while self._at < self.size:
            begin, home = self._at, self._home
            if home is not None:
                for batch in self._follow(home):
                    yield batch, home
                if self._at >= self.size:
                    break
                if (self._at > begin or self._expected) and self._step(self._at > begin, home):
                    self._expected = True
                    continue
                self._expected = False
            self._search()
            if home is not None and (self._at, self._home) == (begin, home):
                self._at += 1  # the file changes while it is read
            self._progress()
        self._progress()

    def _progress(self) -> None:
        at = min(self._at, self.size)
        if at > self._told:
            self._advance(at - self._told)
            self._told = at

    # -- along a log --------------------------------------------------------------------------

    def _follow(self, shift: int) -> Iterator[Batch]:
        """The chain of records with one shift from here on; then stands behind its end."""
        burst, window, last = _BURST, self._window, -1
        while self._at < self.size:
            window.hold(self._at, START_SIZE)
            at, held = self._at - window.start, window.end
            start = hop(window.buffer, at, window.end - window.start, burst)
            batch, ok = examine(window.data, shift + window.start, start)
            good = len(start) if ok.all() else int(ok.argmin())
            if good:
                if self._broken_at is not None:
                    self._mend()
                batch = batch if good == len(start) else batch.select(slice(0, good))
                last = window.start + int(start[good - 1])
                self._at = last + int(batch.column("total_size")[-1])
                yield from self._sound(batch, shift)
                self._progress()
                burst = min(burst * 8, 1 << 62)
            if (good < len(start) or not good) and not self._goes_on(shift, held):
                break
        if last >= 0:
            self._at = self._judge.behind(last, self._at)

    def _sound(self, batch: Batch, shift: int) -> Iterator[Batch]:
        """Those whose CRC is right; the others are noted, and searched for what is in them."""
        ok = batch.crc_ok()
        if ok.all():
            self.in_place += len(batch)
            yield batch
            return
        places = (batch.offset - shift)[~ok].tolist()
        sizes = batch.column("total_size")[~ok].tolist()
        rows = np.flatnonzero(ok)
        if len(rows):
            self.in_place += len(rows)
            yield batch.select(rows)
        for place, size in zip(places, sizes, strict=True):
            self._damaged.add(self._number, place, place + shift, size)
            self._inside(place, place + size, shift)

    def _goes_on(self, shift: int, held: int) -> bool:
        """Whether the next record of the chain promises well but was not held as a whole.

        Then it is loaded. ``held`` is where the window ended that was looked at.
        """
        head = self._window.read(self._at, START_SIZE)
        if len(head) < START_SIZE:
            return False
        total, magic, _, physical, _ = HEAD.unpack_from(head)
        if (magic not in (MAGIC_V1, MAGIC_V2) or physical != self._at + shift
                or not MIN_SIZE <= total <= min(MAX_RECORD, self.size - self._at)
                or self._at + total <= held):
            return False
        return extent(self._window, self._at) == total and self._window.hold(self._at, total)

    def _step(self, chained: bool, shift: int) -> bool:
        """Steps over what stands where the next record of the home should, if its size is known.

        That is a record with a damaged head, and then True: the next one is expected behind it.
        Or the head of a blank. ``chained``: there was a record before.
        """
        if self._judge.is_blank(self._at):
            self._at += BLANK_SIZE
            return False
        head = self._window.read(self._at, START_SIZE)
        if not head or self._judge.record(self._at) is not None:
            return False
        end = self._judge.own_end(self._at, shift) if any(head) else None
        if chained:
            self._broken_at = self._at
        if (chained and any(head)) or end is not None:
            self.breaks += 1
        if end is None:
            return False
        self._broken_at = None
        self._inside(self._at, end, shift)
        self._at = end
        return True

    def _mend(self) -> None:
        """The home goes on behind a gap: if nothing told of the gap, zeros do now."""
        at, self._broken_at = self._broken_at, None
        if at is not None and at != self._at and not any(self._window.read(at, START_SIZE)):
            self.breaks += 1

    # -- elsewhere ----------------------------------------------------------------------------

    def _search(self) -> None:
        """Goes to the next record: one of the home is left to `_follow`, others are noted."""
        for at in self._candidates.within(self._at, self.size):
            found = self._judge.record(at)
            if found is None:
                continue
            size, shift, sound = found
            self._at = at
            if shift == self._home:
                return
            if sound:
                self._take(size, shift)
            else:
                self._damaged.add(self._number, at, at + shift, size)
                self._at = self._inside(at, at + size, shift)
            return
        self._at = self.size

    def _take(self, size: int, shift: int) -> None:
        """A chain of records that are not of the home; a long one makes a new home."""
        window, begin = self._window, self._at
        if size < _LARGE and not self._judge.starts(begin + size, shift):  # one alone: no columns
            self._undecided.add(self._number, begin, begin + shift, size)
            self.shifts.add(shift, 1)
            self._leave(begin, begin + size, shift)
            return
        window.hold(self._at, max(size, min(HOME_BYTES, self.size - self._at)))
        for most in (_BURST, 1 << 62):
            start = hop(window.buffer, self._at - window.start, window.end - window.start, most)
            batch, ok = examine(window.data, shift + window.start, start)
            good = len(start) if ok.all() else int(ok.argmin())
            batch = batch.select(slice(0, good))
            sound = batch.crc_ok()
            good = good if sound.all() else int(sound.argmin())
            if good < min(most, len(start)):
                break
        if not good:  # the file changes while it is read
            self._at += 1
            return
        sizes = batch.column("total_size")[:good]
        last = int(start[good - 1]) + window.start
        end = last + int(sizes[-1])
        length = end - self._at
        if not self._named and ((good >= HOME_RECORDS and length >= HOME_BYTES) or (
                length >= _LARGE and self._judge.starts(end, shift))):
            self._home, self._broken_at = shift, None
            if len(self.homes) < MOST_HOMES:
                self.homes.add(shift)
            return
        places: Array = start[:good] + window.start
        self._undecided.add(self._number, places, places + shift, sizes)
        self.shifts.add(shift, good)
        self._leave(last, end, shift)

    def _leave(self, last: int, end: int, shift: int) -> None:
        """Goes on behind a chain of an undecided shift, over a damaged record if one follows."""
        self._at = self._judge.behind(last, end)
        if self._at == end and not self._judge.is_blank(end) and self._judge.record(end) is None:
            behind = self._judge.own_end(end, shift, strict=True)
            if behind is not None:
                self.breaks += 1
                self._inside(end, behind, shift)
                self._at = behind

    def _inside(self, start: int, end: int, shift: int) -> int:
        """Notes the intact records inside of a damaged one; the position to go on from.

        That is its end, or the start of a record of the home inside of one that is not.
        """
        at = start + 1
        while at < end:
            for candidate in self._candidates.within(at, end):
                found = self._judge.record(candidate)
                if found is None:
                    continue
                if found[1] == self._home != shift:
                    return candidate
                if found[2] and candidate + found[0] <= end:
                    self._embedded.add(self._number, candidate, candidate + found[1], found[0])
                    at = candidate + found[0]
                    break
            else:
                break
        return end
