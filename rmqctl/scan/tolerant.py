"""The frame walk over a file with unreadable ranges, which it skips.

Lost ranges are yielded among the batches. Only errors of reading the file itself are handled here;
errors in the consumer of a batch are passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rmqctl.errors import StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.damage.stale import Beside
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.source import Source
from rmqctl.scan.walk import CHUNK, Sound, Walk

SKIPPED = 64 << 10
"""Number of bytes that are skipped after a failed read."""
STEP = 4 << 10
"""Number of bytes per read just before an unreadable place."""
_MAX_SKIPS = 1000


@dataclass(frozen=True, slots=True)
class UnreadRange:
    """Positions ``[start, end)`` that cannot be read, and the reason."""

    start: int
    end: int
    reason: str


class _OfConsumerError(Exception):
    """An error in the function that skips records."""

    def __init__(self, error: StoreIOError) -> None:
        super().__init__(str(error))
        self.error = error


class TolerantWalk:
    """Iterates over the batches of ``[start, end)`` like `Walk`, and over the unreadable ranges, in
    order.

    ``open_source`` is called once; if it fails, the entire range is unreadable. After a failed
    read, the walk continues in small steps up to the unreadable position. It skips at
    least `SKIPPED` bytes and continues at the next provable record.

    ``first`` (known after the first item), ``position``, ``sound``, ``mapped``: as in `Walk`.
    ``shrunk``: whether the file ends before ``end``.
    ``no_stale``: whether stale records next to damage count as damage.
    """

    def __init__(self, open_source: Callable[[], Source], start: int, end: int, *,
                 resync: bool = False, whole: bool = False, no_stale: bool = False,
                 sound: Sound | None = None, mapped: bool = True) -> None:
        self._mapped = mapped
        self._open_source, self._resync, self._end = open_source, resync, end
        self._whole, self._no_stale, self._sound = whole, no_stale, sound
        self.first = self.position = start
        self.shrunk = False

    def __iter__(self) -> Iterator[Batch | UnreadRange]:
        try:
            source = self._open_source()
        except StoreIOError as error:
            yield from self._given_up(self.position, self._end, str(error))
            return
        resync, stop, in_steps = self._resync, self._end, False
        beside = Beside(source).without if self._no_stale and source.witness else None
        lost_from, reason, skips = -1, "", 0
        base, passes = source.base, self._sound

        def sound(data: Array, first: int, at: int, end: int, lost: Array, mapped: bool) -> int:
            """Skip the sound records, so that the walk does not process them again after a later
            failed read.
            """
            assert passes is not None
            try:
                reached = passes(data, first, at, end, lost, mapped)
            except StoreIOError as error:
                raise _OfConsumerError(error) from None
            if reached > at:
                self.position = first - base + reached
            return reached

        while self.position < min(self._end, source.size):
            walk: Walk | None = None
            try:
                walk = Walk(source, self.position, stop, resync=resync, whole=self._whole,
                            chunk=STEP if in_steps else CHUNK, beside=beside,
                            sound=None if passes is None or in_steps else sound,
                            mapped=self._mapped)
                if lost_from >= 0:  # up to the record with which it continues, if there is one
                    behind = walk.first if walk.first < source.size else self.position
                    yield from self._given_up(lost_from, behind, reason)
                    lost_from = -1
                elif resync:
                    self.first = walk.first
                self.position, resync = walk.first, False
                for batch in walk:
                    self.position = walk.position
                    yield batch
                if stop == self._end or walk.shrunk:
                    break
                stop, in_steps = self._end, False
            except _OfConsumerError as wrapped:
                raise wrapped.error from None
            except StoreIOError as error:
                if walk is not None and self.position < walk.position < stop:
                    stop = walk.position  # only the sound frames that were not yielded yet
                elif not in_steps:
                    stop, in_steps = min(self._end, self.position + CHUNK), True
                else:
                    if lost_from < 0:
                        lost_from, reason = self.position, str(error)
                    skips += 1
                    self.position = min(self.position + SKIPPED, self._end)
                    resync, stop, in_steps = True, self._end, False
                    if skips == _MAX_SKIPS:
                        reason = f"{source.name}: too many unreadable places"
                        self.position = self._end
        if lost_from >= 0:
            yield from self._given_up(lost_from, self.position, reason)
        self.shrunk = source.size < self._end

    def _given_up(self, start: int, end: int, reason: str) -> Iterator[UnreadRange]:
        self.position = max(self.position, end)
        if end > start:
            yield UnreadRange(start, end, reason)
