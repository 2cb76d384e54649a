"""The readable part of a log that is being written, divided into slices at record boundaries.

A broker writes front to back with one thread, so everything before a written byte is final. The
first bytes that are not a complete record normally belong to a record that is being written. They
count as damage in two cases: the next file is in use, or nothing has changed for a while and other
records follow.

A following record may be a copy in the body of the record being written. It counts only if consume
queue entries and index entries point to it, because a broker adds these entries in the order of the
log.

Nothing is locked, and no file stays open between two calls.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rmqctl.errors import StoreIOError
from rmqctl.formats.local.message import BLANK_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource, Witness
from rmqctl.store.files import StoreFile, log_listings
from rmqctl.store.log.borders import (
    cuts,
    first_border,
    is_unfinished,
    is_whole,
    last_in_use,
    walked,
)

PATIENCE = 2.0
"""Seconds after which the bytes after an incomplete record are examined."""
STEP = 64 << 20
_WHOLE_FILES = 256
"""Number of slices above which each slice is an entire file: finding smaller slices would need a
scan of all files.
"""
_MAX_DELAY = 60.0
_IDLE_LOOK, _TORN_LOOK = 1.0, 0.1
"""Number of seconds before the files of a log are listed again.

``_IDLE_LOOK``: if the log has no new data. ``_TORN_LOOK``: if its last record is incomplete.
"""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Physical offsets ``[start, end)`` of one log file; both are record boundaries."""

    file: StoreFile
    start: int
    end: int


@dataclass(slots=True)
class _Waiting:
    """A position at which no complete record starts, and when (by the clock) to examine it
    again.
    """

    position: int
    due: float
    delay: float


@dataclass(frozen=True, slots=True)
class _Idle:
    """A position without new data.

    ``head``: the first bytes at the position. ``until``: when (by the clock) to list the files
    again.
    """

    file: StoreFile
    position: int
    head: bytes
    until: float


class GrowingLog:
    """The log in ``folders``; positions are physical offsets of record boundaries.

    ``tell`` is called with a text about skipped bytes.
    ``lost`` (default: ``tell``) is called with a text about ranges that no file contains any more,
    or about a log that ends before a position that was already read.
    ``clock`` is monotonic, in seconds.
    ``witness`` is called at each check and returns the evidence of record positions from the
    store's entries. Without it, only the log itself is read.
    """

    def __init__(self, folders: Sequence[str], tell: Callable[[str], None],
                 clock: Callable[[], float] = time.monotonic,
                 witness: Callable[[], Witness] | None = None,
                 lost: Callable[[str], None] | None = None) -> None:
        self._folders, self._tell, self._clock = list(folders), tell, clock
        self._lost = lost or tell
        self._witness = witness
        self._checked: set[str] = set()
        self._waiting: _Waiting | None = None
        self._idle: _Idle | None = None
        self._reported: int | None = None
        self.torn = False
        """True if incomplete data follows the end of the last `advance`."""
        self.stuck = False
        """True if the incomplete data that `torn` reports has not changed for `PATIENCE`, and no
        complete record follows it.
        """

    def files(self) -> list[StoreFile]:
        """Return the files of the log, sorted by name.

        Raises: StoreIOError if a folder cannot be listed.
        """
        listings = log_listings(self._folders, checked=self._checked)
        for folder in listings:
            for trouble in folder.troubles:
                if trouble.unreadable:
                    raise StoreIOError(trouble.reason)
        witness = self._witness() if self._witness is not None else None
        return sorted((replace(file, witness=witness)
                       for folder in listings for file in folder.files),
                      key=lambda file: (file.name, file.path))

    def first(self) -> int:
        """Return the first offset of the log; 0 while the log has no files."""
        files = self.files()
        return files[0].base if files else 0

    def last_file(self) -> int:
        """Return the base offset of the last file in use, which is close to the end of the log."""
        files = self.files()
        number = last_in_use(files)
        return files[max(number, 0)].base if files else 0

    def border(self, physical: int) -> int:
        """Return the first record boundary at or after a physical offset; if no file contains the
        offset, return it unchanged.

        Raises: StoreIOError.
        """
        for file in self.files():
            if file.base <= physical < file.end:
                with file.open() as source:
                    return first_border(source, physical)
        return physical

    def advance(self, position: int, limit: int | None = None, *, patient: bool = False,
                least: bool = True) -> int:
        """Return the furthest record boundary that can be reached from the boundary ``position``.

        ``limit``: the maximum physical offset to reach.
        ``least``: count the first record even if it extends beyond ``limit``.
        ``patient``: whether no process writes to the log any more, so that records after damage
        count at once.

        Missing files are skipped; `pieces` reports them.

        Raises: StoreIOError.
        """
        if not patient and self._is_idle(position):
            return position
        while True:
            files = self.files()
            try:
                reached = self._advance(files, position, limit, patient, least)
                break
            except StoreIOError:
                if self.files() == files:  # else it was a file that has expired meanwhile
                    raise
        if reached == position and least:
            self._remember(files, position)
        return reached

    def _is_idle(self, position: int) -> bool:
        """Return whether the last check was recent, and no data was added since then.

        An idle log is polled a hundred times a second. Its folders are not listed each time.
        """
        idle = self._idle
        if idle is None or idle.position != position or self._clock() >= idle.until:
            return False
        try:
            with FileSource(idle.file.path, idle.file.base) as source:
                return source.read(position - source.base, BLANK_SIZE) == idle.head
        except StoreIOError:
            return False

    def _remember(self, files: Sequence[StoreFile], position: int) -> None:
        self._idle = None
        for file in files:
            if file.base <= position < file.end:
                with file.open() as source:
                    head = source.read(position - file.base, BLANK_SIZE)
                # The rest of a record may be written without a change of its first bytes.
                rest = _TORN_LOOK if any(head) else _IDLE_LOOK
                self._idle = _Idle(file, position, head, self._clock() + rest)

    def _advance(self, files: list[StoreFile], position: int, limit: int | None,
                 patient: bool, least: bool) -> int:
        last, start = last_in_use(files), position
        self.torn = self.stuck = False
        while limit is None or position < limit:
            number = bisect_right(files, position, key=lambda file: file.base) - 1
            if number >= 0 and position < files[number].end:
                file = files[number]
                first = least and position == start
                if number < last:
                    position = self._in_closed(file, position, limit, first)
                else:
                    position = self._in_growing(file, position, limit, patient, first)
                if position < file.end:
                    break
            elif number < last:
                position = files[number + 1].base
            else:
                self._check_end(files, position)
                break
        return position

    def _check_end(self, files: Sequence[StoreFile], position: int) -> None:
        """Report once if the log ends before a position that was already reached."""
        end = files[-1].end if files else 0
        if end < position and self._reported != position:
            self._lost(f"{self._folders[0]}: the log now ends before physical offset {position}, "
                       "up to which it was already read. It was truncated, recreated or is not "
                       "mounted. Reading resumes when the log reaches that offset again")
            self._reported = position

    def _in_closed(self, file: StoreFile, position: int, limit: int | None,
                   least: bool) -> int:
        """Return the last record boundary inside a file that is no longer being written."""
        if limit is None or limit >= file.end:
            return file.end
        with file.open() as source:
            return walked(source, position, limit, closed=True, least=least).end

    def _in_growing(self, file: StoreFile, position: int, limit: int | None,
                    patient: bool, least: bool) -> int:
        """Return the furthest record boundary inside the last file, at which incomplete or
        unwritten bytes start.
        """
        with file.open() as source:
            if patient:
                return walked(source, position, limit, least=least).end
            reached = position
            if any(source.read(position - file.base, BLANK_SIZE)):
                done = walked(source, position, limit, growing=True, least=least)
                reached = done.end
                if not any(source.read(reached - file.base, BLANK_SIZE)):
                    if done.last is not None and not is_whole(source, done.last, reached):
                        self.torn, reached = True, done.last - file.head
                elif limit is None or reached < limit:
                    self.torn = reached < file.end
            if (limit is None or reached < limit) and reached < file.end and self._is_due(reached):
                # Nothing has changed for long: records after it will not be overwritten.
                done = walked(source, reached, limit, least=least)
                behind = done.end
                if done.last is not None and is_unfinished(source, done.last, behind):
                    behind = done.last - file.head
                self.stuck = self.torn and behind == reached
                reached = behind
            return reached

    def _is_due(self, position: int) -> bool:
        """Return whether nothing has changed at ``position`` for a while; each further check waits
        longer.
        """
        now = self._clock()
        if self._waiting is None or self._waiting.position != position:
            self._waiting = _Waiting(position, now + PATIENCE, PATIENCE)
        if now < self._waiting.due:
            return False
        self._waiting.delay = min(2 * self._waiting.delay, _MAX_DELAY)
        self._waiting.due = now + self._waiting.delay
        return True

    def pieces(self, start: int, end: int, step: int = STEP) -> Iterator[LogSlice]:
        """Divide the log from ``start`` to ``end`` (both are record boundaries) into slices of
        about ``step`` bytes. No slice extends over two files.

        The slices depend only on ``start``, ``end`` and the log. Missing ranges are reported.
        """
        files = self.files()
        position = start
        for file in files:
            if file.end <= start or file.base >= end:
                continue
            first, stop = max(start, file.base), min(end, file.end)
            if first > position:
                self._missing(position, first, expired=file is files[0])
            position = stop
            inner = [] if end - start > _WHOLE_FILES * step else cuts(file, first, stop, step)
            for piece_start, other in zip([first, *inner], [*inner, stop], strict=True):
                yield LogSlice(file, piece_start, other)
        if position < end:
            self._missing(position, end, expired=bool(files) and files[0].base >= end)

    def _missing(self, start: int, end: int, *, expired: bool) -> None:
        why = "have expired" if expired else "are in no file"
        self._lost(f"{self._folders[0]}: physical offsets {start} to {end} {why} and were not "
                   "read")
