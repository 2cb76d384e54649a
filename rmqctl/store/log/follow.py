"""Follows a store that is being appended to: new messages as they become whole.

Nothing is locked and nothing is mapped. A broker appends with one thread, front to back, so the
first record that is not whole is the one being written. A log that was cut back or made anew is
recognised by the last messages shown, which then are no longer where they were.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats import layout
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    MAGIC_BLANK,
    MIN_SIZE,
    VERSIONS,
    Blank,
    Record,
    build,
    decode,
)
from rmqctl.scan.resync import MAX_RECORD, next_provable
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.problems import Problem, Report

_BLANK = layout.reader(Blank)
_REMEMBERED = 256
"""Messages by which a log that was cut back is recognised, and the place to go on from."""
_MARK_SIZE = 80
"""Bytes of a record's head that identify it: they include size, CRC, offsets and times."""
PATIENCE = 2.0
"""Seconds after which a record that does not become whole is looked at more closely."""
_SEARCHED = 8 << 20
"""Bytes behind an incomplete record in which the next one is looked for."""


class _Mark(NamedTuple):
    """A message that was shown: where it lies, how long it is, how it begins."""

    offset: int
    size: int
    head: bytes


class Follower:
    """`poll` gives what has come since the last call; it never waits.

    ``folders`` are the log's folders, ``start`` the physical offset to go on from, ``clock`` a
    monotonic clock in seconds.
    """

    def __init__(self, folders: list[str], start: int, report: Report,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._folders, self._report, self._clock = folders, report, clock
        self.next = start
        self._files: list[StoreFile] = []
        self._shown: deque[_Mark] = deque(maxlen=_REMEMBERED)
        self._waiting: tuple[int, float] | None = None
        self._said: int | None = None
        self._gone = False
        self._failed = ""

    def remember(self, records: list[Record]) -> None:
        """Messages that were shown already: by them a change of the log is noticed."""
        for record in records[-_REMEMBERED:]:
            self._remember(record.physical_offset, record.total_size, build(record))

    def _remember(self, offset: int, size: int, raw: bytes) -> None:
        self._shown.append(_Mark(offset, size, raw[:_MARK_SIZE]))

    def poll(self) -> Iterator[Record]:
        """The messages that have become whole, in order. Problems are reported as they are met."""
        self._files = sorted((one for folder in self._folders for one in listing(folder).files),
                             key=lambda one: (one.name, one.path))
        if not self._files:
            if not self._gone:
                self._tell("there is no commitlog file: waiting for one")
            self._gone = True
            return
        self._gone = False
        try:
            self._check_shown()
            while (record := self._next_record()) is not None:
                self._waiting = None
                yield record
            self._failed = ""
        except StoreIOError as error:  # a file may vanish between listing and opening it
            if self._failed != str(error):
                self._failed = str(error)
                self._tell(f"{error}: trying again")

    def _tell(self, text: str) -> None:
        self._report(Problem("note", text))

    # -- has the log changed under us -----------------------------------------------------------

    def _check_shown(self) -> None:
        """Goes back to the last message that is still there, if the newest one is not."""
        if not self._shown or self._is_there(self._shown[-1]):
            return
        lost = self._shown[-1]
        if self._files[0].base > lost.offset:
            # The cleaner overtook us: what was shown has expired since, and more with it.
            if self.next < self._files[0].base:
                self._tell(f"the log was expired up to {self._files[0].base}: going on there")
                self.next = self._files[0].base
            self._shown.clear()
            return
        while self._shown and not self._is_there(self._shown[-1]):
            self._shown.pop()
        if self._shown:
            self.next = self._shown[-1].offset + self._shown[-1].size
            self._tell(f"the log was cut back: what was shown from physical offset {self.next} on "
                       "is no longer there; going on from it")
        else:
            self.next = self._files[0].base
            self._tell("the log was made anew: showing it from physical offset "
                       f"{self.next} on")

    def _is_there(self, mark: _Mark) -> bool:
        one = self._file_of(mark.offset)
        if one is None:
            return False
        with one.open() as source:
            return source.read(mark.offset - one.base, len(mark.head)) == mark.head

    def _file_of(self, offset: int) -> StoreFile | None:
        number = bisect_right(self._files, offset, key=lambda one: one.base) - 1
        return self._files[number] if number >= 0 and offset < self._files[number].end else None

    # -- one record after the other -----------------------------------------------------------

    def _next_record(self) -> Record | None:
        """The record at `next`, once it is whole; None while there is nothing to show."""
        while True:
            one = self._file_of(self.next)
            if one is None:
                if not self._enter_next_file(self.next):
                    return None
                continue
            with one.open() as source:
                at = self.next - one.base
                head = source.read(at, BLANK_SIZE)
                total, magic = _BLANK.unpack(head) if len(head) == BLANK_SIZE else (0, 0)
                if magic == MAGIC_BLANK and total >= BLANK_SIZE:
                    # The file that follows may not be there yet.
                    if not self._enter_next_file(self.next + 1):
                        return None
                    continue
                if magic in VERSIONS and MIN_SIZE <= total <= MAX_RECORD:
                    raw = source.read(at, total)
                    record = self._whole(raw, total)
                    if record is not None and (is_finished(record)
                                               or self._settled(source, at + total)):
                        self.next += total
                        self._remember(record.physical_offset, total, raw)
                        return record
                if not self._skip(source, at, head):
                    return None

    def _whole(self, raw: bytes, total: int) -> Record | None:
        try:
            record = decode(raw)
        except FormatError:
            return None
        return record if len(raw) == total and record.physical_offset == self.next else None

    def _settled(self, source: FileSource, after: int) -> bool:
        """Whether a record will stay as it is: the next one is there, or time is up."""
        return any(source.read(after, BLANK_SIZE)) or self._waited()

    def _waited(self) -> bool:
        """Whether nothing has moved for `PATIENCE`."""
        now = self._clock()
        if self._waiting is None or self._waiting[0] != self.next:
            self._waiting = self.next, now
        return now - self._waiting[1] >= PATIENCE

    def _enter_next_file(self, behind: int) -> bool:
        """Moves to the start of the first file at or after ``behind``, if it is in use."""
        for one in self._files:
            if one.base >= behind:
                with one.open() as source:
                    if not any(source.read(0, BLANK_SIZE)):
                        return False
                if one.base > self.next and self._file_of(self.next) is None:
                    self._report(Problem("gap", f"no file holds the physical offsets {self.next} "
                                         f"to {one.base}", self.next, one.base - self.next))
                self.next = one.base
                return True
        return False

    def _skip(self, source: FileSource, at: int, head: bytes) -> bool:
        """What is at `next` (``head``) is no whole record. True if there is something to go on to.

        A broker does not leave a record half written to begin another: once a record behind it,
        or the next file, is in use, it is damage and passed over.
        """
        started = any(head)
        if not self._waited():
            return False
        if started:
            found = next_provable(source, at + 1, min(source.size, at + _SEARCHED))
            if found is not None:
                self._damage(source.base + found)
                return True
        place = self.next
        if self._enter_next_file(source.base + source.size):
            reached, self.next = self.next, place
            # It was written behind our back if the beginning is not what it was.
            if source.read(at, BLANK_SIZE) == head:
                self._damage(reached)
            return True
        if started and self._said != self.next:
            self._said = self.next
            self._report(Problem("in-progress", f"the record at physical offset {self.next} is "
                                 "not whole yet: waiting for the rest of it", self.next))
        return False

    def _damage(self, reached: int) -> None:
        length = reached - self.next
        self._report(Problem("damage", f"damage at physical offset {self.next}, {length} bytes: "
                             "passed over", self.next, length))
        self.next = reached


def is_finished(record: Record) -> bool:
    """Whether nothing says that bytes of a record are still to come.

    The CRC covers only the body; topic and properties are written behind it, and what is not
    there yet is zero.
    """
    return record.crc_ok and not record.properties.endswith(b"\0") and not record.topic.endswith(
        b"\0")
