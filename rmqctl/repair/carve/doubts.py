"""Find records in place that may be part of the body of a damaged record.

Unknown bytes in a log may have been the start of a record of any size. The following records may
have been in its body. `rmqctl.scan.damage.extents` determines the position from which that is
impossible.

Bytes before the first record of a log are checked only if the log begins at the start of its
source. In an image, these bytes are unrelated.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

import numpy as np

from rmqctl.formats import dledger
from rmqctl.repair.carve.window import AsLog, Window
from rmqctl.scan.damage.extents import judge
from rmqctl.scan.damage.slots import EarlierMessages
from rmqctl.scan.frames import Array

_MAX_KEPT = 8
_MAX_PIECES = 16
_MAX_STEPS = 1000


def is_file(shift: int, size: int) -> bool:
    """Return whether a source of ``size`` bytes may be a single log file, or all files of a log,
    one after the other. ``shift``: the shift of its records.
    """
    return shift >= 0 and size > 0 and shift % size == 0


class Doubts:
    """Finds the records in a source's logs that may be part of a damaged record's body."""

    def __init__(self, window: Window, file_end: Callable[[int], int],
                 record: Callable[[int], tuple[int, int, bool] | None]) -> None:
        self._window, self._file_end, self._record = window, file_end, record
        self._logs: OrderedDict[int, tuple[AsLog, EarlierMessages]] = OrderedDict()
        self._pieces: dict[int, tuple[int, int]] = {}
        """Keyed by shift: (end of the last piece, position up to which records are doubtful)."""
        self._met: OrderedDict[int, deque[tuple[int, int]]] = OrderedDict()
        self.gap = 0
        """Position of the unknown bytes that made the last call of `until` classify records as
        doubtful.
        """
        self.cut: Callable[[int, int], int | None] = lambda _shift, _gap: None
        """Function of a shift and the position of unknown bytes. It returns the end of the fragment
        before these bytes, or None. Records after such an end are not doubtful.
        """

    def _log(self, shift: int) -> tuple[AsLog, EarlierMessages]:
        log_state = self._logs.get(shift)
        if log_state is None:
            if len(self._logs) >= _MAX_KEPT:
                self._logs.popitem(last=False)
            log = AsLog(self._window, shift, None)
            log_state = self._logs[shift] = log, EarlierMessages(by_itself=True)
        self._logs.move_to_end(shift)
        return log_state

    def trust(self, shift: int, start: int, end: int) -> None:
        """Record that the consecutive records of a shift at positions ``[start, end)`` are
        messages.
        """
        self._log(shift)[1].add(start, end)

    def met(self, shift: int, start: int, end: int) -> None:
        """Record that ``[start, end)`` contains consecutive records with this shift. Whether they
        are messages is decided later.
        """
        if shift not in self._met and len(self._met) >= _MAX_KEPT:
            self._met.popitem(last=False)
        self._met.setdefault(shift, deque(maxlen=_MAX_PIECES)).append((start, end))
        self._met.move_to_end(shift)

    def before(self, shift: int) -> tuple[int | None, int]:
        """Continue a log of this shift. Return two positions:

        * The end of the log's last records. Without records: the start of the source, or None if
          unknown.
        * The position up to which the log's records are doubtful.

        Raises: StoreIOError.
        """
        for start, end in self._met.pop(shift, ()):
            self._from_piece(shift, start, end)
        start_of_file = 0 if is_file(shift, self._window.size) else None
        return self._pieces.pop(shift, (start_of_file, 0))

    def until(self, shift: int, gap: int, at: int) -> int:
        """Return the position up to which the records of a shift are doubtful. The bytes between
        ``gap`` and the record at ``at`` are unknown. Raises: StoreIOError.
        """
        log, passed = self._log(shift)
        is_start = not gap
        for _ in range(_MAX_STEPS):
            other = self._first(gap) if is_start else None
            if at <= gap or (other is not None and other[1] != shift and other[2]):
                break  # a file of another log, or of another part of this log, starts there
            is_start = False
            if size := self._file_end(gap):
                gap += size
                is_start = True
                continue
            if dledger.head_at(self._window.read(gap, dledger.HEAD_SIZE), gap + shift) is not None:
                gap += dledger.HEAD_SIZE
                continue
            if self.cut(shift, gap) is not None:
                break
            self.gap = gap
            behind = judge(log, gap, max(gap + 1, at), passed).resume
            if behind is None:
                return self._window.size
            if behind >= at:
                return behind if behind > at else 0
            gap = max(behind, gap + 1)
        return 0

    def _first(self, start: int) -> tuple[int, int, bool] | None:
        """Return (size, shift, whether the CRC matches) of the first record of a file that starts
        at ``start``; None if no record is found there. In a DLedger log, the record follows its
        entry header.
        """
        head = self._window.read(start, dledger.HEAD_SIZE)
        framed = dledger.detect(head) == dledger.FRAMED
        return self._record(start + framed * dledger.HEAD_SIZE)

    def sort(self, rows: Array, shift: int) -> Iterator[tuple[Array, bool]]:
        """Yield (records, whether they are doubtful) for consecutive parts of ``rows``.

        ``rows`` are records of one shift (dtype `spool.PLACE`). Over all calls, records must ascend
        by position. Raises: StoreIOError.
        """
        begin, ends = 0, rows["position"] + rows["size"]
        edges = (np.flatnonzero(rows["position"][1:] != ends[:-1]) + 1).tolist()
        for edge in [*edges, len(rows)]:
            sure = self._from_piece(shift, int(rows["position"][begin]), int(ends[edge - 1]))
            part = rows[begin:edge]
            unsure = int(np.searchsorted(part["position"], sure))
            if unsure:
                yield part[:unsure], True
            if unsure < len(part):
                yield part[unsure:], False
            begin = edge

    def _from_piece(self, shift: int, start: int, end: int) -> int:
        """Apply `until` to consecutive records at positions ``[start, end)``; return the position
        up to which these records are doubtful.
        """
        last_piece = self._pieces.get(shift)
        gap, sure = last_piece or (0 if is_file(shift, self._window.size) else start, 0)
        if gap >= sure:  # else it was judged together with the records before
            sure = max(sure, self.until(shift, gap, start))
        self.trust(shift, max(start, sure), end)
        self._pieces[shift] = end, sure
        return sure
