"""What a queue, and each of its segments, will be once a plan is carried out."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqctl.actions import Action
from rmqctl.repair.plan import Lost, Step
from rmqctl.tiered.flat_queue import FlatQueue, QueueName
from rmqctl.tiered.recover.shifted import Shifted


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment as it will be. ``begin`` and ``end``: store times of its messages, `NEVER` for
    none; ``known`` False where they are not to be had (expired messages). ``quirk``: what a
    broker takes for them, where that is something else.
    """

    base: int
    size: int
    begin: int
    end: int
    mtime_ms: int | None
    quirk: tuple[int, int] | None = None
    known: bool = True


@dataclass(slots=True)
class HealedQueue:
    """What is to be done for a queue, and what it will be. ``first`` and ``last`` bound its queue
    offsets; ``refs`` is the file with the log offset (int64) of every unit; ``shifted`` messages
    will say where they are; ``view`` is the queue as its commit log will be, where files change.
    """

    name: QueueName
    commit_log: list[SegmentFacts] = field(default_factory=list)
    consume_queue: list[SegmentFacts] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    lost_total: int = 0
    shifted: list[Shifted] = field(default_factory=list)
    first: int = 0
    last: int = 0
    refs: str = ""
    view: FlatQueue | None = None
