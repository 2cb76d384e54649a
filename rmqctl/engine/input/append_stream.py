"""Many messages from lines of text: what `append` does with each group of its input.

A line that cannot be read, or whose message the store may not take, ends the run or is left
out, as the caller chose; what was written before stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rmqctl.engine.config.settings import Settings
from rmqctl.engine.input import objects
from rmqctl.engine.input.append_session import Session
from rmqctl.engine.input.lines import InputError, Line
from rmqctl.engine.put import ingest
from rmqctl.engine.put.grouping import MAX_BATCH, batches
from rmqctl.engine.put.message import OutgoingBatch
from rmqctl.engine.put.put import Message
from rmqctl.engine.put.result import PutResult
from rmqctl.formats.local.message import BLANK_SIZE

Convert = Callable[[Line], Message]


class Fault(NamedTuple):
    """A line that led to no message. ``status`` is the engine's, None where it never came."""

    line: int
    reason: str
    status: str | None
    raw: Line


@dataclass(slots=True)
class Tally:
    """What a run has done so far; offsets are physical, sizes in bytes."""

    messages: int = 0
    bytes_written: int = 0
    refused: int = 0
    first_physical_offset: int | None = None
    end_physical_offset: int | None = None
    stopped_at_line: int | None = None
    started: float = field(default_factory=time.monotonic)

    def count(self, stored: Sequence[PutResult]) -> None:
        """Takes stored messages into account, in the order of the log."""
        if not stored:
            return
        self.messages += sum([len(one.physical_offsets) or 1 for one in stored])
        self.bytes_written += sum([one.wrote_bytes or 0 for one in stored])
        if self.first_physical_offset is None:
            self.first_physical_offset = stored[0].physical_offset
        last = stored[-1]
        self.end_physical_offset = (last.physical_offset or 0) + (last.wrote_bytes or 0)

    def as_dict(self) -> dict[str, Any]:
        """The summary of the command line."""
        seconds = time.monotonic() - self.started
        return {
            "messages": self.messages,
            "bytes": self.bytes_written,
            "refused": self.refused,
            "first_physical_offset": self.first_physical_offset,
            "end_physical_offset": self.end_physical_offset,
            "stopped_at_line": self.stopped_at_line,
            "seconds": round(seconds, 3),
            "messages_per_second": round(self.messages / seconds) if seconds > 0 else 0,
        }


def converter(settings: Settings, *, as_recorded: bool = False, replay: bool = False) -> Convert:
    """What makes a message of a line; it raises InputError with the reason where none is there.

    ``as_recorded``: the record it was. ``replay``: what once reached the put path. Else what a
    client sends, to which a broker adds its properties.
    """
    trailing = settings.profile.trailing_separator
    if as_recorded:
        return objects.Recorded(trailing=trailing).line
    if replay:
        return objects.Replay(trailing=trailing).line
    made = ingest.preparer(settings, ingest.unique_ids())
    return objects.Plain(made, item=objects.joined(trailing=trailing),
                         batch=ingest.preparer(settings, ingest.unique_ids(), batch=True)).line


class Feed:
    """Puts groups of lines through a session."""

    def __init__(self, session: Session, convert: Convert, *, stop: bool = True,
                 obey_topics: bool = True, batch: int = 0) -> None:
        self._session, self._convert = session, convert
        self._stop, self._obey_topics, self._batch = stop, obey_topics, batch
        settings = session.settings
        self._room = min(MAX_BATCH, settings.max_message_size,
                         settings.commitlog_file_size - BLANK_SIZE)
        self.tally = Tally()
        self.faults: list[Fault] = []
        """What the last group led to no message by."""

    @property
    def stopped(self) -> bool:
        """Whether a fault ended the run."""
        return self.tally.stopped_at_line is not None

    def put(self, lines: Sequence[tuple[int, Line]]) -> Iterator[tuple[int, PutResult]]:
        """Puts one group at once; (line number, result) of all that reached the store's checks.

        When everything is to stop at a fault, nothing behind the faulty line is put.
        """
        self.faults = []
        messages, sources, broken = self._read(lines)
        if self._batch:
            messages, sources = self._join(messages, sources)
        results = self._session.put(messages, stop=self._stop,
                                    obey_topics=self._obey_topics) if messages else []
        stored = [one for one in results if one.physical_offset is not None]
        self.tally.count(stored)
        if len(stored) < len(results):
            for (number, raw), result in zip(sources, results, strict=False):
                if result.physical_offset is None:
                    self._fault(Fault(number, result.reason or result.status, result.status, raw))
        if not self.stopped or not self._stop:
            for one in broken:
                self._fault(one)
        self.faults.sort(key=lambda one: one.line)
        return ((source[0], result) for source, result in zip(sources, results, strict=False))

    def _read(self, lines: Sequence[tuple[int, Line]]) -> tuple[
            list[Message], list[tuple[int, Line]], list[Fault]]:
        """(messages, the line of each, lines that are none)."""
        messages, sources, broken = [], [], []
        for one in lines:
            try:
                messages.append(self._convert(one[1]))
            except InputError as error:
                broken.append(Fault(one[0], str(error), None, one[1]))
                if self._stop:
                    break
            else:
                sources.append(one)
        return messages, sources, broken

    def _join(self, messages: list[Message], sources: list[tuple[int, Line]]) -> tuple[
            list[Message], list[tuple[int, Line]]]:
        """Neighbours joined to batches; the line of a batch is that of its first message."""
        joined: list[Message] = []
        first = []
        at = 0
        for one in batches(messages, self._batch, self._room):
            joined.append(one)
            first.append(sources[at])
            made_here = isinstance(one, OutgoingBatch) and one is not messages[at]
            at += len(one.messages) if made_here else 1  # type: ignore[union-attr]
        return joined, first

    def _fault(self, fault: Fault) -> None:
        self.faults.append(fault)
        self.tally.refused += 1
        if self._stop:
            self.tally.stopped_at_line = fault.line
