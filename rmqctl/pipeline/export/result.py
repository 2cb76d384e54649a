"""What came of an export, store by store: gathered from the results of its ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rmqctl.pipeline.export.plan import GAP, StorePlan
from rmqctl.pipeline.export.task import MOST_NAMED, Faults, Part
from rmqctl.scan.frames import DAMAGED, Span


@dataclass(slots=True)
class StoreResult:
    """What came of one store. Times in ms (store time), offsets physical."""

    plan: StorePlan
    messages: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    bad_crc: int = 0
    bad_crc_at: list[int] = field(default_factory=list)
    damage: Faults = field(default_factory=Faults)
    missing: Faults = field(default_factory=Faults)
    in_progress: Span | None = None
    first_time: int | None = None
    last_time: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    _tail: list[Span] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every message that the log should hold was exported, with a sound body."""
        return not (self.bad_crc or self.damage.count or self.missing.count)

    @property
    def nothing_read(self) -> bool:
        """Whether the system gave nothing of a log that has files, or of its folder."""
        return bool(self.missing.count) and not (self.messages or self.damage.count) and all(
            one.kind != GAP for one in self.missing.spans)

    def add(self, part: Part) -> None:
        """Takes the next range's result, in the order of the log."""
        tally = part.tally
        if tally.messages:
            self._settle()
        self.damage.merge(tally.inside)
        self._tail += tally.tail
        if len(self._tail) > MOST_NAMED:
            self._settle()
        self.missing.merge(tally.unreadable)
        self.messages += tally.messages
        self.rows += tally.rows
        self.bad_crc += tally.bad_crc
        self.bad_crc_at += tally.bad_crc_at[:max(MOST_NAMED - len(self.bad_crc_at), 0)]
        self.files += len(part.files)
        self.bytes += sum(one.bytes for one in part.files)
        self.first_time = _least(self.first_time, tally.first_time)
        self.last_time = _least(self.last_time, tally.last_time, max)
        self.first_offset = _least(self.first_offset, tally.first_offset)
        self.last_offset = _least(self.last_offset, tally.last_offset, max)

    def _settle(self) -> None:
        for one in self._tail:
            self.damage.add(one)
        self._tail.clear()

    def finish(self) -> None:
        """The log has ended: zeros behind its last message are no damage, nor is a record that
        the process which holds the store is just writing.
        """
        left = [one for one in self._tail if one.kind == DAMAGED]
        if left and self.plan.held:
            self.in_progress = left.pop()
        self._tail = left
        self._settle()


def _least(one: int | None, other: int | None, pick: Callable[[int, int], int] = min) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return pick(one, other)


@dataclass(slots=True)
class Result:
    """What came of an export. ``out`` is where it lies; ``partitions`` counts the folders."""

    out: str
    stores: list[StoreResult]
    partitions: int = 0

    @property
    def complete(self) -> bool:
        return all(one.complete for one in self.stores)

    def total(self, name: str) -> int:
        """The sum of a count over all stores."""
        return sum(getattr(one, name) for one in self.stores)
