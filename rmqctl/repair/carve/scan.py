"""Find records in the bytes of one source, by content alone.

A record is recognised by its magic, by lengths that add up to its size, and by the CRC of its body.
The *shift* of a record is the difference between its physical offset and its position in the
source. Consecutive records of a log have the same shift.

The scan follows one log, with the shift `log_shift`. Consecutive records of this log are checked by
column, as fast as a log is read. Elsewhere the scan searches for the next magic, and checks each
candidate separately. The body of an intact record is never searched.

After damage of unknown length, records may be part of a damaged record's body: such records are
doubtful. `rmqctl.scan.damage.extents` determines these records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rmqctl.formats import dledger
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    MIN_SIZE,
    START_SIZE,
    VERSIONS,
    total_size_at,
)
from rmqctl.repair.carve.doubts import Doubts
from rmqctl.repair.carve.judge import HEAD, LAST_RECORD, Judge
from rmqctl.repair.carve.pieces import Pieces
from rmqctl.repair.carve.spool import Majority, Spool
from rmqctl.repair.carve.window import AsLog, Candidates, Window
from rmqctl.scan.damage.extents import claimed_end, judge, own_extent
from rmqctl.scan.damage.references import References
from rmqctl.scan.damage.slots import EarlierMessages
from rmqctl.scan.frames import Array, Batch, records_from
from rmqctl.scan.resync import MAX_RECORD, extent
from rmqctl.scan.source import Source, Witness

LOG_BYTES = 64 << 10
LOG_RECORDS = 8
"""A chain with one shift counts as a piece of a log if it has at least this many intact records."""
MAX_LOG_SHIFTS = 1 << 16
_BURST = 8
_LARGE = 1 << 20
_MAX_OFFSET = (1 << 63) - 1


class Scan:
    """The records of one source. Iterate over `batches` before using the other attributes.

    ``number``: number of the source.
    ``base``: the shift that the source's name implies.
    ``witness``: the entries of the source's store.

    These spools receive the places of records that `batches` does not yield:

    ``undecided``: no log around the record has its shift.
    ``embedded``: intact, inside a damaged record.
    ``damaged``: the lengths add up, but the CRC does not match.
    ``doubtful``: may be part of a damaged record's body.

    For embedded and doubtful records, ``late`` is the position of the damage.
    """

    def __init__(self, source: Source, number: int, base: int | None, *, undecided: Spool,
                 embedded: Spool, damaged: Spool, doubtful: Spool,
                 witness: Witness | None = None,
                 advance: Callable[[int], None] = lambda _bytes: None) -> None:
        self._window = Window(source)
        self._candidates = Candidates(self._window)
        self._judge = Judge(self._window, self._candidates)
        self._number, self._named, self._base = number, base is not None, base
        self._witness = witness
        self._undecided, self._embedded, self._damaged = undecided, embedded, damaged
        self.doubts = Doubts(self._window, self._judge.file_end, self._judge.record)
        """Decides which records of a log, including undecided ones, are doubtful."""
        self.pieces = Pieces(self._window, self._judge.file_end)
        """Finds facts that contradict undecided records with other shifts."""
        self._doubtful, self._doubt_end, self._doubt_gap = doubtful, 0, 0
        self._gap: int | None = None
        self._advance, self._reported = advance, 0
        self._at = 0
        self._log_shift = base
        self._broken_at: int | None = None
        self._expected = base is not None
        self.log_shifts: set[int] = set()
        """The shifts of all followed logs, except a shift that follows from the source's name."""
        self.shifts = Majority()
        """Number of undecided records by shift."""
        self.broken: dict[int, int] = {}
        """Shift of each damaged record that contains intact records, keyed by the record's
        position.
        """
        self.in_place = 0
        """Number of records of a followed log: yielded by `batches`, or doubtful."""
        self.breaks = 0
        """Number of positions where a log continues after invalid bytes, or ends in invalid bytes.

        Invalid bytes are neither record nor blank. At the end of a log, zeros do not count.
        """

    @property
    def size(self) -> int:
        """Return the size of the source in bytes; it decreases if the file becomes shorter."""
        return self._window.size

    def batches(self) -> Iterator[tuple[Batch, int]]:
        """Yield (records in place, their shift). A batch is valid until the next is requested."""
        while self._at < self.size:
            begin, log_shift = self._at, self._log_shift
            if log_shift is not None:
                for batch in self._follow(log_shift):
                    yield batch, log_shift
                if self._at >= self.size:
                    break
                if self._at > begin or self._expected:
                    left = self._at
                    if self._step(self._at > begin, log_shift):
                        self._expected = True
                        continue
                    if not self._of_store(log_shift):
                        self._gap = left
                self._expected = False
            self._search()
            if log_shift is not None and (self._at, self._log_shift) == (begin, log_shift):
                self._at += 1  # the file changes while it is read
            self._progress()
        self._progress()

    def _progress(self) -> None:
        position = min(self._at, self.size)
        if position > self._reported:
            self._advance(position - self._reported)
            self._reported = position

    # -- along a log --------------------------------------------------------------------------

    def _follow(self, shift: int) -> Iterator[Batch]:
        """Yield the chain of records that starts at the current position and has this shift."""
        burst, window, first, last = _BURST, self._window, -1, -1
        while self._at < self.size and self._at + shift <= _MAX_OFFSET:
            window.hold(self._at, START_SIZE)
            held = window.end
            batch = records_from(window.data, shift + window.start, self._at - window.start,
                                 len(window.data), burst)
            good = len(batch)
            if good:
                if self._broken_at is not None:
                    self._mend()
                if first < 0:
                    first = window.start + int(batch.start[0])
                    self.pieces.chains.start(shift, first)
                    if self._gap is not None and self._gap >= self._doubt_end:
                        self._doubt_end = self.doubts.until(shift, self._gap, first)
                        self._doubt_gap = self.doubts.gap
                    self._gap = None
                last = window.start + int(batch.start[-1])
                self._at = last + int(batch.column("total_size")[-1])
                yield from self._sound(batch, shift)
                self._progress()
            if good < burst and not self._goes_on(shift, held):
                break
            burst = min(burst * 8, 1 << 62)
        if last >= 0:
            self.pieces.ended(shift, self._at)
        if last >= 0 and not self._of_store(shift):
            self.doubts.trust(shift, max(first, self._doubt_end), self._at)
            self._at = self._judge.behind(last, self._at)

    def _sound(self, batch: Batch, shift: int) -> Iterator[Batch]:
        """Yield the records with a matching CRC; add the others to the damaged records, and search
        inside them.
        """
        ok = batch.crc_ok()
        unsure = int(np.searchsorted(batch.offset - shift, self._doubt_end))
        if unsure:
            rows = np.flatnonzero(ok[:unsure])
            self.in_place += len(rows)
            self._doubtful.add(self._number, batch.offset[rows] - shift, batch.offset[rows],
                               batch.column("total_size")[rows], self._doubt_gap)
        if ok.all():
            if unsure:
                batch = batch.select(slice(unsure, None))
            if len(batch):
                self.in_place += len(batch)
                yield batch
            return
        places = (batch.offset - shift)[~ok].tolist()
        sizes = batch.column("total_size")[~ok].tolist()
        rows = np.flatnonzero(ok)
        rows = rows[rows >= unsure]
        if len(rows):
            self.in_place += len(rows)
            yield batch.select(rows)
        for place, size in zip(places, sizes, strict=True):
            self._damaged.add(self._number, place, place + shift, size)
            self._inside(place, place + size, shift)

    def _goes_on(self, shift: int, held: int) -> bool:
        """Return whether the chain continues with a record that looks valid but was only partly in
        the window. Such a record is loaded.

        ``held``: end of the window that was examined.
        """
        head = self._window.read(self._at, START_SIZE)
        if len(head) < START_SIZE:
            return False
        total, magic, _, physical, _ = HEAD.unpack_from(head)
        if (magic not in VERSIONS or physical != self._at + shift
                or not MIN_SIZE <= total <= min(MAX_RECORD, self.size - self._at)
                or self._at + total <= held):
            return False
        return extent(self._window, self._at) == total and self._window.hold(self._at, total)

    def _step(self, chained: bool, shift: int) -> bool:
        """Skip the bytes at a position where the log has no intact record, if their length is
        known.

        Such bytes are a damaged record, a DLedger entry header, a blank, or the end mark of a
        DLedger file. Return True after a damaged record or a header, because the next record is
        expected there.

        ``chained``: whether a record precedes this position.
        """
        # A blank, the head of an entry, or the end of a file of DLedger's.
        if self._judge.is_blank(self._at):
            self._at += BLANK_SIZE
            return False
        entry = self._window.read(self._at, dledger.HEAD_SIZE)
        if dledger.head_at(entry, self._at + shift) is not None:
            self._at += dledger.HEAD_SIZE
            return True
        if chained and dledger.detect(entry) == dledger.END_OF_FILE:
            self._at += dledger.END.size
            return False
        # A damaged record: its end decides where to search for the next one.
        head = self._window.read(self._at, START_SIZE)
        record = self._judge.record(self._at) if head else None
        if not head or (record is not None and (record[2] or not self._of_store(shift))):
            return False
        if record is not None:  # place and body are damaged, the lengths are not
            self._damaged.add(self._number, self._at, self._at + record[1], record[0])
        end = self._behind_damage(shift) if any(head) or self._of_store(shift) else None
        if chained:
            self._broken_at = self._at
        if (chained and any(head)) or (end is not None and any(head)):
            self.breaks += 1
        if end is None and not self._of_store(shift):
            torn = self._behind_torn(self._at, shift)
            self._at = self._at if torn is None else torn
            return torn is not None
        if end is None:
            return False
        # Records inside it may be copies in its body.
        self._broken_at = None
        self._inside(self._at, end, shift, sure=self._is_confirmed(self._at, end, shift))
        self._at = end
        return True

    def _of_store(self, shift: int) -> bool:
        """Return whether a store has entries for the records with this shift."""
        return self._witness is not None and shift == self._base

    def _behind_damage(self, shift: int) -> int | None:
        """Return the position at which the log continues after a damaged record; None if
        unknown.
        """
        log = AsLog(self._window, shift, self._witness if self._of_store(shift) else None)
        if log.witness is not None:
            verdict = judge(log, self._at, self._at + 1, EarlierMessages())
            return self.size if verdict.resume is None else verdict.resume
        own = own_extent(log, self._at, References(log))
        return self._judge.own_end(self._at, shift) if own is None else own.end

    def _is_confirmed(self, position: int, end: int, shift: int) -> bool:
        """Return whether more than one fact confirms that a damaged record ends at ``end``.

        A single length may point to another record by chance. Intact records would then be skipped.
        """
        if self._of_store(shift):
            return True
        log = AsLog(self._window, shift, None)
        own = own_extent(log, position, References(log))
        total = total_size_at(log.read(position, START_SIZE))
        return (own is not None and own.proven and own.end == end) or (
            position + total == end == claimed_end(log, position, strict=True))

    def _own_extent(self, position: int, shift: int) -> int | None:
        """Return the end of a damaged record if the CRC of its body proves this end; else None. The
        ends of the files in the source are unknown, and do not count as proof.
        """
        log = AsLog(self._window, shift, None)
        own = own_extent(log, position, References(log))
        if own is None or not own.proven:
            return None
        sizes = (total_size_at(log.read(position, START_SIZE)), extent(log, position))
        return next((position + size for size in sizes
                     if size and self._judge.is_blank(position + size)),
                    own.end if own.firm else None)

    def _behind_torn(self, position: int, shift: int) -> int | None:
        """Return the position at which the search continues after the torn record at ``position``;
        None if the header does not show the size of the record. No byte within this size belongs to
        another message of the same log.
        """
        log = AsLog(self._window, shift, None)
        own = own_extent(log, position, References(log))
        claimed = claimed_end(log, position, strict=True) if own is None else own.end
        end = min(claimed, position + LAST_RECORD)
        if end <= position:
            return None
        return self._inside(position, end, shift, of_any=False,
                            sure=self._is_confirmed(position, end, shift))

    def _mend(self) -> None:
        """Continue the log after a gap; count a break if the gap was unexplained and starts with
        zeros.
        """
        broken_at, self._broken_at = self._broken_at, None
        if broken_at is not None and broken_at != self._at and not any(
                self._window.read(broken_at, START_SIZE)):
            self.breaks += 1

    # -- elsewhere ----------------------------------------------------------------------------

    def _search(self) -> None:
        """Go to the next record. Records of the followed log are left to `_follow`; others are
        added here.
        """
        for position in self._candidates.within(self._at, self.size):
            record = self._judge.record(position)
            if record is None:
                continue
            size, shift, sound = record
            self._at = position
            if shift == self._log_shift:
                return
            if sound:
                self._take(size, shift)
            else:
                self._damaged.add(self._number, position, position + shift, size)
                self._at = self._inside(position, position + size, shift)
            return
        self._at = self.size

    def _take(self, size: int, shift: int) -> None:
        """Add the chain of records that starts here, with a different shift, to the undecided
        records. A long chain is followed as a log instead.
        """
        window, begin = self._window, self._at
        self.pieces.chains.start(shift, begin)
        if size < _LARGE and not self._judge.starts(begin + size, shift):  # one alone: no columns
            self._undecided.add(self._number, begin, begin + shift, size)
            self.shifts.add(shift, 1)
            self.doubts.met(shift, begin, begin + size)
            self._leave(begin, begin + size, shift)
            return
        # The chain of intact records with this shift, the first few to begin with.
        window.hold(self._at, max(size, min(LOG_BYTES, self.size - self._at)))
        for most in (_BURST, 1 << 62):
            batch = records_from(window.data, shift + window.start, self._at - window.start,
                                 len(window.data), most)
            sound = batch.crc_ok()
            good = len(batch) if sound.all() else int(sound.argmin())
            if good < most:
                break
        if not good:  # the file changes while it is read
            self._at += 1
            return
        # Long enough to be a log of its own?
        sizes = batch.column("total_size")[:good]
        last = int(batch.start[good - 1]) + window.start
        end = last + int(sizes[-1])
        length = end - self._at
        if not self._named and ((good >= LOG_RECORDS and length >= LOG_BYTES) or (
                length >= _LARGE and self._judge.starts(end, shift))):
            self._log_shift, self._broken_at = shift, None
            self._gap, self._doubt_end = self.doubts.before(shift)
            self._doubt_gap = self.doubts.gap
            if len(self.log_shifts) < MAX_LOG_SHIFTS:
                self.log_shifts.add(shift)
            return
        places: Array = batch.start[:good] + window.start
        self._undecided.add(self._number, places, places + shift, sizes)
        self.shifts.add(shift, good)
        self.doubts.met(shift, begin, end)
        self._leave(last, end, shift)

    def _leave(self, last: int, end: int, shift: int) -> None:
        """End a chain with an undecided shift; skip a damaged record that follows it."""
        self._at = self._judge.behind(last, end)
        self.pieces.ended(shift, end)
        if self._at == end and not self._judge.is_blank(end) and self._judge.record(end) is None:
            behind = self._own_extent(end, shift) or self._judge.own_end(end, shift, strict=True)
            if behind is not None:
                is_sure = self._is_confirmed(end, behind, shift)
                behind = self._inside(end, behind, shift, sure=is_sure)
            else:
                behind = self._behind_torn(end, shift)
            if behind is not None:
                self.breaks += 1
                self._at = behind

    def _inside(self, start: int, end: int, shift: int, *, of_any: bool = True,
                sure: bool = True) -> int:
        """Add the intact records inside a damaged record to the embedded or doubtful records.
        Return the position from which the scan continues.

        This position is the end of the damaged record, or the start of a record with another shift
        that cannot be part of the damaged record's body:

        * a record of the followed log
        * an intact record that extends beyond the damaged record
        * if ``of_any`` is False, any intact record

        Records of the same shift are doubtful if they extend beyond the damaged record. If the
        length of the damaged record is not ``sure``, all records of the same shift are doubtful.
        """
        position = start + 1
        while position < end:
            for candidate in self._candidates.within(position, end):
                record = self._judge.record(candidate)
                if record is None:
                    continue
                if record[1] != shift and (record[1] == self._log_shift or (
                        record[2] and not of_any)):
                    return candidate
                if not record[2]:
                    continue
                reaches_over = candidate + record[0] > end
                if reaches_over and record[1] != shift:
                    return candidate
                unsure = record[1] == shift and (reaches_over or not sure)
                (self._doubtful if unsure else self._embedded).add(
                    self._number, candidate, candidate + record[1], record[0], start)
                if len(self.broken) < MAX_LOG_SHIFTS:
                    self.broken[start] = shift
                position = candidate + record[0]
                break
            else:
                break
        return end
