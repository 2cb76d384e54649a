"""Reads the new messages of a store while a broker appends to it.

A message is yielded only when it is complete. `GrowingLog` determines the current end of the log.
If the messages shown last are no longer at their offsets, the log was truncated or recreated.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rmqctl.errors import StoreIOError
from rmqctl.formats import layout
from rmqctl.formats.local.message import BLANK_SIZE, MAGIC_BLANK, Blank, Record, build
from rmqctl.scan.frames import BLANK
from rmqctl.scan.source import Witness
from rmqctl.scan.walk import Walk
from rmqctl.store.files import StoreFile
from rmqctl.store.log.growth import GrowingLog
from rmqctl.store.pages import BatchPage
from rmqctl.store.problems import Problem, Report

_BLANK = layout.reader(Blank)
_REMEMBERED = 256
"""Number of shown messages to remember. They show whether the log was truncated, and from which
offset to continue.
"""
_MARK_SIZE = 80
"""Number of bytes at the start of a record that identify it; they include size, CRC, offsets and
times.
"""


class _Mark(NamedTuple):
    """A message that was shown: its physical offset, its size, and its first bytes."""

    offset: int
    size: int
    head: bytes


class Follower:
    """Yields new messages: each `poll` yields those since the last call and never waits.

    ``folders``: the log's folders.
    ``start``: physical offset (a record boundary) from which to continue.
    ``clock``: monotonic, in seconds.
    ``witness``: see `GrowingLog`.
    """

    def __init__(self, folders: list[str], start: int, report: Report,
                 clock: Callable[[], float] = time.monotonic,
                 witness: Callable[[], Witness] | None = None) -> None:
        # Reports of the log itself are passed on here, with places and kinds.
        self._log = GrowingLog(folders, lambda _text: None, clock, witness)
        self._report = report
        self.next = start
        self._files: list[StoreFile] = []
        self._shown: deque[_Mark] = deque(maxlen=_REMEMBERED)
        self._reported: int | None = None
        self._undecided = 0
        self._gone = False
        self._failed = ""

    def remember(self, records: list[Record]) -> None:
        """Remember messages that were already shown, so that a change of the log is noticed."""
        for record in records[-_REMEMBERED:]:
            self._shown.append(_Mark(record.physical_offset, record.total_size,
                                     build(record)[:_MARK_SIZE]))

    def poll(self) -> Iterator[Record]:
        """Yield the messages that are complete since the last call, in order. Problems are reported
        as soon as they are found.
        """
        try:
            self._files = self._log.files()
            if not self._files and not self._gone:
                self._note("no commitlog files yet: waiting")
            self._gone = not self._files
            self._check_shown()
            yield from self._records_up_to(self._log.advance(self.next))
            if self._log.stuck and self._reported != self.next:
                self._reported = self.next
                self._report(Problem("in-progress", f"the record at physical offset {self.next} is "
                                     "incomplete: waiting for the rest", self.next))
            self._failed = ""
        except StoreIOError as error:  # a file may vanish between listing and opening it
            if self._failed != str(error):
                self._failed = str(error)
                self._note(f"{error}: retrying")

    def _note(self, text: str) -> None:
        self._report(Problem("note", text))

    # -- has the log changed under us -----------------------------------------------------------

    def _check_shown(self) -> None:
        """If the last shown message no longer exists, go back to the last one that still exists."""
        if not self._files or not self._shown or self._is_there(self._shown[-1]):
            return
        lost = self._shown[-1]
        if self._files[0].base > lost.offset:
            # The cleaner was faster: the shown messages have expired, and others with them.
            if self.next < self._files[0].base:
                self._note(f"the log expired up to {self._files[0].base}: continuing there")
                self.next = self._files[0].base
            self._shown.clear()
            return
        while self._shown and not self._is_there(self._shown[-1]):
            self._shown.pop()
        if self._shown:
            self.next = self._shown[-1].offset + self._shown[-1].size
            self._note(f"the log was truncated: what was shown from physical offset {self.next} on "
                       "no longer exists; continuing there")
        else:
            self.next = self._files[0].base
            self._note(f"the log was recreated: showing it from physical offset {self.next} on")

    def _is_there(self, mark: _Mark) -> bool:
        file = self._file_of(mark.offset)
        if file is None:
            return False
        with file.open() as source:
            return source.read(mark.offset - file.base, len(mark.head)) == mark.head

    def _file_of(self, offset: int) -> StoreFile | None:
        number = bisect_right(self._files, offset, key=lambda file: file.base) - 1
        return self._files[number] if number >= 0 and offset < self._files[number].end else None

    # -- what has come --------------------------------------------------------------------------

    def _records_up_to(self, reached: int) -> Iterator[Record]:
        """Yield the messages from `next` to ``reached``, which is a record boundary, and set `next`
        to ``reached``.
        """
        if self.next < reached:
            self._files = self._log.files()
        while self.next < reached:
            file = self._file_of(self.next)
            if file is None:
                if not self._pass_gap():
                    return
                continue
            yield from self._records_of(file, reached)
            # it was truncated since: the remembered messages will show it
            if self.next < min(file.end, reached):
                return

    def _records_of(self, file: StoreFile, reached: int) -> Iterator[Record]:
        """Yield the messages of one file. Bytes between them are reported as damage once it is
        known that a message or another file follows.
        """
        with file.open() as source:
            for batch in Walk(source, self.next - file.base, reached - file.base):
                for record in BatchPage(batch).records():
                    self._pass_damage(record.physical_offset - file.head)
                    self.next = record.physical_offset + record.total_size
                    self.remember([record])
                    yield record
                for span in batch.spans:
                    self._undecided += len(span.doubtful)
                    if span.kind == BLANK:
                        self._pass_damage(span.offset)
                        self.next = span.end
            if file.end <= reached:  # the file is closed and grows no more
                head = source.read(self.next - file.base, BLANK_SIZE)
                if not file.head and len(head) == BLANK_SIZE and (
                        _BLANK.unpack(head)[1] == MAGIC_BLANK):
                    # The file was only appended to: the bytes of the blank are in no file.
                    self.next = max(file.end, self._next_base() or 0)
                self._pass_damage(file.end)

    def _pass_damage(self, until: int) -> None:
        if self.next < until:
            length = until - self.next
            self._report(Problem("damage", f"damage at physical offset {self.next}: {length} bytes "
                                 "skipped", self.next, length, self._undecided))
            self.next = until
        self._undecided = 0

    def _pass_gap(self) -> bool:
        """Move `next` past a gap in the log. Return False if no file follows: then the log has
        become shorter.
        """
        base = self._next_base()
        if base is None:
            return False
        self._report(Problem("gap", f"no file contains physical offsets {self.next} to {base}",
                             self.next, base - self.next))
        self.next = base
        return True

    def _next_base(self) -> int | None:
        return min((file.base for file in self._files if file.base > self.next), default=None)
