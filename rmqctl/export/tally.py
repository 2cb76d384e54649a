"""Counts of the log while it is exported, range by range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import ClassVar

from rmqctl.formats.local.filler import TOPIC as UNKNOWN_TOPIC
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.fillers import replaced
from rmqctl.scan.frames import BLANK, Batch, Span
from rmqctl.scan.passed_over import Damage
from rmqctl.scan.text import topics

MAX_NAMED = 200
"""Maximum number of listed damaged places, and of listed messages with a CRC mismatch; all are
counted.
"""
UNREADABLE, GAP = "unreadable", "gap"
"""Kinds of missing spans: a span that is unreadable, and a span that no file contains."""


@dataclass(slots=True)
class CountedSpans(Damage):
    """Ranges of the log without a message, in order. All are counted, and the first ones are
    listed.
    """

    most: ClassVar[int] = MAX_NAMED


@dataclass(slots=True)
class ExportTally:
    """Counts of a part of a log and of the messages exported from it. Times are store times in ms;
    offsets are physical.

    ``tail``: the spans after the last message. These spans are damage if a message follows in a
    later part. If no message follows, they may be the unused end of the log.
    """

    messages: int = 0
    rows: int = 0
    replaced: int = 0
    """Number of fillers, plus the number of damaged messages that a repair kept."""
    replaced_here: int = 0
    """Part of `replaced`: those that are exported, and fillers for messages of unknown topics."""
    bad_crc: int = 0
    bad_crc_at: list[int] = field(default_factory=list)
    damage: CountedSpans = field(default_factory=CountedSpans)
    missing: CountedSpans = field(default_factory=CountedSpans)
    tail: list[Span] = field(default_factory=list)
    first_time: int | None = None
    last_time: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None

    def passed(self, batch: Batch) -> None:
        """Add the next batch from the log. A batch's spans come after its messages."""
        if len(batch):
            self.messages += len(batch)
            marked = replaced(batch)
            if marked.any():
                self.replaced += int(marked.sum())
                self.replaced_here += int((marked & topics(batch).equal(
                    UNKNOWN_TOPIC.encode())).sum())
            self._settle()
        self._behind([span for span in batch.spans if span.kind != BLANK])

    def exported(self, batch: Batch) -> None:
        """Add exported messages, in physical order."""
        self.rows += len(batch)
        marked = replaced(batch)
        if marked.any():
            self.replaced_here += int((marked & ~topics(batch).equal(
                UNKNOWN_TOPIC.encode())).sum())
        ok = batch.crc_ok()
        if not ok.all():
            bad = batch.offset[~ok]
            self._bad_crc(len(bad), bad[:MAX_NAMED].tolist())
        times, offsets = batch.column("store_timestamp"), batch.offset
        self._within(int(times.min()), int(times.max()), int(offsets[0]), int(offsets[-1]))

    def append(self, later: ExportTally) -> None:
        """Add the counts of the next range of the log."""
        if later.messages:
            self._settle()
        self.damage.merge(later.damage)
        self.missing.merge(later.missing)
        self._behind(later.tail)
        self.messages += later.messages
        self.rows += later.rows
        self.replaced += later.replaced
        self.replaced_here += later.replaced_here
        self._bad_crc(later.bad_crc, later.bad_crc_at)
        self._within(later.first_time, later.last_time, later.first_offset, later.last_offset)

    def _behind(self, spans: list[Span]) -> None:
        self.tail += spans
        if len(self.tail) > MAX_NAMED:  # limit the list for a log full of damage
            self._settle()

    def _settle(self) -> None:
        for span in self.tail:
            self.damage.add(span)
        self.tail.clear()

    def _bad_crc(self, count: int, offsets: list[int]) -> None:
        self.bad_crc += count
        self.bad_crc_at += offsets[:max(MAX_NAMED - len(self.bad_crc_at), 0)]

    def _within(self, first_time: int | None, last_time: int | None, first_offset: int | None,
                last_offset: int | None) -> None:
        self.first_time = _pick(min, self.first_time, first_time)
        self.last_time = _pick(max, self.last_time, last_time)
        self.first_offset = _pick(min, self.first_offset, first_offset)
        self.last_offset = _pick(max, self.last_offset, last_offset)


def _pick(pick: Callable[[int, int], int], current: int | None, new: int | None) -> int | None:
    if current is None or new is None:
        return new if current is None else current
    return pick(current, new)
