"""A repair as a value: readable actions, and the steps that carry them out.

A plan is computed without writing into the store; `rmqctl.repair.executor.executor` applies any
plan. Two plans are equal when their actions are.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from rmqctl.actions import Action, Value
from rmqctl.checks.impact import Impact, span
from rmqctl.damage.verdicts import Verdict
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.store.repair_losses import MAX_PLACES, LostRecord

if TYPE_CHECKING:
    from rmqctl.checks.consumers import Consumers

__all__ = ["Action", "Changes", "Content", "Create", "Dropped", "FileContent", "Lost", "MakeFolder",
           "MoveAside", "Patch", "Plan", "Planned", "Replace", "Step", "Watch"]

Watch = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""(activity, total bytes) -> a context manager; its value is called with the bytes done."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """The content of a file outside of the store's own folders (scratch).

    ``movable``: the file may be renamed into the store instead of copied (same file system).
    """

    path: str
    movable: bool = True


Content = bytes | FileContent | OverlayPiece
"""The content of a file; a `OverlayPiece` (its ``at`` 0) is a sparse form."""


@dataclass(frozen=True, slots=True)
class Create:
    """A new file. ``target`` is relative to the root, or absolute for a file in a further commitlog
    folder. ``mtime_ns``: its modification time; None: now.
    """

    target: str
    content: Content
    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Replace:
    """A file with new content; the old file is kept aside."""

    target: str
    content: Content
    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes to write in place: all ``pieces`` go into an existing file, and the bytes before are
    kept. A piece may reach beyond the end of the file, which then grows.

    The modification time stays, because a broker's expiry depends on it.
    """

    target: str
    pieces: tuple[OverlayPiece, ...]


@dataclass(frozen=True, slots=True)
class MoveAside:
    """A file, or a folder with its content, that is moved aside and kept."""

    target: str


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """A new empty folder (and those above it)."""

    target: str


Step = Create | Replace | Patch | MoveAside | MakeFolder
Planned = tuple[list[Step], list[Action]]
"""A part of a plan: its steps, and the actions that describe them."""


@dataclass(slots=True, kw_only=True)
class Changes:
    """Steps of a plan in the order in which they are carried out, the actions that describe them,
    and notes.
    """

    steps: list[Step] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def act(self, step: Step, verb: str, before: Value, after: Value, why: str,
            unit: str = "byte") -> None:
        """Add a step and its action; the arguments are those of `Action`."""
        self.steps.append(step)
        self.actions.append(Action(verb, step.target, before, after, why, unit))

    def extend(self, more: Changes) -> None:
        """Add all of ``more``."""
        self.steps += more.steps
        self.actions += more.actions
        self.notes += more.notes

    def move_aside(self, target: str, before: Value, why: str, unit: str = "byte") -> None:
        self.act(MoveAside(target), "move aside", before, None, why, unit)


def touches(steps: Iterable[Step], structure: str) -> bool:
    """Return whether any of the steps changes a file below the folder of a structure."""
    return any(step.target.split(os.sep, 1)[0] == structure for step in steps)


@dataclass(frozen=True, slots=True)
class Lost:
    """A message that cannot be restored, with all that is known of it. None: unknown.

    ``time_from`` and ``time_to`` bound its store time (ms). ``key_hashes``: the hashes of
    ``topic#key`` that the index still has for it. ``by``: the evidence of it (``consumequeue``,
    ``record``, ``gap``, ``index``; ``position``: only that a group had read it; ``checkpoint``:
    only the time of the last message).
    """

    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    physical_offset: int | None
    size: int | None
    time_from: int | None = None
    time_to: int | None = None
    key_hashes: tuple[int, ...] = ()
    by: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"topic": self.topic, "queue_id": self.queue_id,
                "queue_offset": self.queue_offset, "physical_offset": self.physical_offset,
                "size": self.size, "store_timestamp_from": self.time_from,
                "store_timestamp_to": self.time_to, "key_hashes": list(self.key_hashes),
                "known_by": self.by}


@dataclass(frozen=True, slots=True)
class Dropped:
    """Losses of a plan that no filler shows: ``messages``, and ``undecided`` records that are not
    kept. ``places``: the first of them that are intact now.
    """

    messages: int = 0
    undecided: int = 0
    places: tuple[LostRecord, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.messages or self.undecided)


def places_of(records: Iterable[tuple[int, int]],
              read: Callable[[int, int], bytes | None]) -> tuple[LostRecord, ...]:
    """Return the first `MAX_PLACES` ``records`` (physical offset, size), with their bytes."""
    raws = ((offset, read(offset, size)) for offset, size in islice(records, MAX_PLACES))
    return tuple(LostRecord.of(offset, raw) for offset, raw in raws if raw)


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes that a repair would make to the store at ``root``.

    ``steps`` are in the order in which they are carried out: log, queues, index, checkpoint, abort.
    ``notes`` are warnings for the user. ``messages_lost_total``: the number of lost messages if
    ``messages_lost`` names only the first ones, else None. ``ambiguous``: intact records left out
    that may be messages. ``messages``: the messages of the store, lost ones included; None if not
    counted. ``conflicts``: places where another store has other intact messages, and ``--prefer``
    does not decide. ``kept_damaged``: messages that are kept although a part of them is lost.
    ``left_damaged``: structures whose damage the plan does not repair, because the correct content
    is unknown.
    """

    command: str
    root: str = field(compare=False)
    actions: tuple[Action, ...] = ()
    steps: tuple[Step, ...] = field(default=(), compare=False)
    messages_lost: tuple[Lost, ...] = ()
    topic_queue_table: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    messages_lost_total: int | None = None
    ambiguous: int = 0
    messages: int | None = None
    kept_damaged: int = 0
    consumers: Consumers | None = None
    """Effects of the applied plan on consumer groups; None if not determined."""
    conflicts: int = 0
    left_damaged: tuple[str, ...] = ()
    assumed: Mapping[str, int] = field(default_factory=dict)
    """Assumptions about the broker that wrote the store, by name."""
    form_unproven: bool = False
    """True if consume queues are created as files without proof that the broker uses files."""
    undo_first: str | None = None
    """The id of the repair that keeps what this plan cannot restore."""
    dropped: Dropped = field(default_factory=Dropped, compare=False)
    wrong_corrections: float = 0.0
    """The expected number of wrong corrections by CRC."""
    fillers: int = 0
    """Number of fillers written for lost messages."""
    verdicts: Mapping[int, Verdict] = field(default_factory=dict, compare=False)
    """The verdicts on intact records that do not count as messages, by physical offset."""

    @property
    def lost(self) -> int:
        """Return the number of messages that are lost after the plan, named or not."""
        return max(len(self.messages_lost), self.messages_lost_total or 0)

    @property
    def lost_for_sure(self) -> int:
        """Return the number of messages that are lost whether or not undecided records are kept."""
        return max(0, self.lost - max(0, self.ambiguous - self.dropped.undecided))

    @property
    def fills(self) -> int:
        """Return the number of messages that the plan replaces by fillers or keeps damaged."""
        return self.fillers + self.kept_damaged

    @property
    def drops(self) -> tuple[int, int]:
        """Return (messages lost without a filler, undecided records discarded)."""
        return self.dropped.messages, self.dropped.undecided

    @property
    def impact(self) -> Impact | None:
        """Return the plan's loss of messages as an impact; None if no message is lost."""
        lost, total = self.messages_lost, self.lost
        if not total:
            return None
        topics = Counter(message.topic for message in lost if message.topic is not None)
        earliest, latest = span((message.time_from, message.time_to) for message in lost)
        return Impact(total, self.messages, topics, earliest, latest, total == len(lost))

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to do."""
        return not self.steps

    def as_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {"actions": [action.as_dict() for action in self.actions],
                 "messages_lost": [lost.as_dict() for lost in self.messages_lost],
                 "topic_queue_table": dict(self.topic_queue_table)}
        if self.messages_lost_total is not None:
            values["messages_lost_total"] = self.messages_lost_total
        values["messages_undecided"] = self.ambiguous
        if self.assumed:
            values["assumed"] = dict(self.assumed)
        if any(action.action == "correct" for action in self.actions):
            values["wrong_corrections_expected"] = self.wrong_corrections
        if self.ambiguous:
            values["ambiguous"] = self.ambiguous
        if self.kept_damaged:
            values["kept_damaged"] = self.kept_damaged
        if self.consumers is not None:
            values |= self.consumers.as_fields()
        if self.form_unproven:
            values["consumequeue_unproven"] = True
        if self.conflicts:
            values["conflicts"] = self.conflicts
        if self.left_damaged:
            values["left_damaged"] = list(self.left_damaged)
        return values
