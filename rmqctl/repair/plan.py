"""Plans of repairs: actions, which describe the changes, and steps, which carry them out.

A plan is computed without writing to the store; `rmqctl.repair.executor.executor` applies any plan.
Two plans are equal if their actions are equal.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, Any

from rmqctl.actions import Action, Value
from rmqctl.checks.impact import Impact, span
from rmqctl.damage.verdicts import Verdict
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.store.repair_losses import MAX_PLACES, LostRecord

if TYPE_CHECKING:
    from rmqctl.checks.consumers import Consumers

__all__ = ["Action", "Changes", "Content", "Create", "Dropped", "FileContent", "Lost", "MakeFolder",
           "MoveAside", "Patch", "Plan", "Planned", "Replace", "Step", "Watch"]

Watch = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Function of (name of an activity, its total number of bytes). Returns a context manager, which
yields a function to call with the number of bytes processed.
"""


@dataclass(frozen=True, slots=True)
class FileContent:
    """The content of a new file, in a file outside the store (in a scratch folder).

    ``movable``: whether that file may be renamed into the store. Otherwise, or on another file
    system, it is copied.
    """

    path: str
    movable: bool = True


Content = bytes | FileContent | OverlayPiece
"""The content of a file: bytes, a file in a scratch folder, or a `Piece` at 0, which is sparse."""


@dataclass(frozen=True, slots=True)
class Create:
    """Creation of a file.

    ``target``: path relative to the root, or absolute if the file is in another commitlog folder.
    ``mtime_ns``: modification time of the file (None: now).
    """

    target: str
    content: Content
    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Replace:
    """Replacement of a file; the old file is kept for `undo`."""

    target: str
    content: Content
    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """Changes of an existing file in place. All ``pieces`` are written; `undo` restores the old
    bytes. The file grows if a piece extends beyond its end.

    The modification time does not change, because it determines when a broker expires the file.
    """

    target: str
    pieces: tuple[OverlayPiece, ...]


@dataclass(frozen=True, slots=True)
class MoveAside:
    """Removal of a file, or of a folder with its content; it is moved aside and kept for `undo`."""

    target: str


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """Creation of an empty folder, and of its parent folders."""

    target: str


Step = Create | Replace | Patch | MoveAside | MakeFolder
Planned = tuple[list[Step], list[Action]]
"""A part of a plan: steps, and the actions that describe these steps."""


@dataclass(slots=True, kw_only=True)
class Changes:
    """Steps of a plan in the order of execution, the actions that describe them, and notes."""

    steps: list[Step] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def act(self, step: Step, verb: str, before: Value, after: Value, why: str,
            unit: str = "byte") -> None:
        """Add a step, and an action with the other arguments (see `Action`)."""
        self.steps.append(step)
        self.actions.append(Action(verb, step.target, before, after, why, unit))

    def extend(self, more: Changes) -> None:
        """Add the steps, actions and notes of ``more``."""
        self.steps += more.steps
        self.actions += more.actions
        self.notes += more.notes

    def move_aside(self, target: str, before: Value, why: str, unit: str = "byte") -> None:
        self.act(MoveAside(target), "move aside", before, None, why, unit)


def touches(steps: Iterable[Step], structure: str) -> bool:
    """Return whether any step changes a file in the folder of a structure."""
    return any(step.target.split(os.sep, 1)[0] == structure for step in steps)


@dataclass(frozen=True, slots=True)
class Lost:
    """A message that cannot be restored, with everything known about it (None: unknown).

    ``time_from``, ``time_to``: bounds of its store time (ms).
    ``key_hashes``: hashes of ``topic#key`` in the index for this message.
    ``by``: the evidence for the message: ``consumequeue``, ``record``, ``gap``, ``index``,
        ``position`` (only a consumer offset after it) or ``checkpoint`` (only the time of the last
        message).
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
    """Losses of a plan that no fillers replace.

    ``messages``: number of lost messages.
    ``undecided``: number of discarded records that may be messages.
    ``places``: the first messages and records, of all these, whose bytes are intact in the
    unrepaired log.
    """

    messages: int = 0
    undecided: int = 0
    places: tuple[LostRecord, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.messages or self.undecided)


def places_of(records: Iterable[tuple[int, int]],
              read: Callable[[int, int], bytes | None]) -> tuple[LostRecord, ...]:
    """Return the first `MAX_PLACES` of ``records`` (physical offset, size), with the bytes that
    ``read`` returns for them.
    """
    raws = ((offset, read(offset, size)) for offset, size in islice(records, MAX_PLACES))
    return tuple(LostRecord.of(offset, raw) for offset, raw in raws if raw)


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes that a repair would make to the store at ``root``.

    ``steps``: in the order of execution: log, queues, index, checkpoint, abort.
    ``notes``: warnings for the user.
    ``messages_lost``: lost messages, all or only the first ones.
    ``messages_lost_total``: number of all lost messages; None if all are listed.
    ``ambiguous``: number of discarded intact records that may be messages.
    ``messages``: number of messages in the store, lost ones included (None: not counted).
    ``conflicts``: number of places where another store has different intact messages, without
        ``--prefer``.
    ``kept_damaged``: number of kept messages that are partly lost.
    ``left_damaged``: structures that are not repaired because the correct content is unknown.
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
    """Effects on consumer groups after the plan has been applied; None if not determined."""
    conflicts: int = 0
    left_damaged: tuple[str, ...] = ()
    assumed: Mapping[str, int] = field(default_factory=dict)
    """Assumed values on which the plan depends, by name."""
    form_unproven: bool = False
    """True if consume queues are created as files, although the broker may keep them in RocksDB."""
    undo_first: str | None = None
    """Id of an earlier repair that keeps files which this plan cannot restore, but `undo` can."""
    dropped: Dropped = field(default_factory=Dropped, compare=False)
    wrong_corrections: float = 0.0
    """Expected number of wrong corrections among those that a CRC determined."""
    fillers: int = 0
    """Number of fillers written for lost messages."""
    verdicts: Mapping[int, Verdict] = field(default_factory=dict, compare=False)
    """Verdicts on intact records that are not messages of the log, by physical offset."""

    @property
    def lost(self) -> int:
        """Return the number of messages that are lost once the plan is applied, listed or not."""
        return max(len(self.messages_lost), self.messages_lost_total or 0)

    @property
    def lost_for_sure(self) -> int:
        """Return the number of messages that are certainly lost, even if undecided records are
        kept.
        """
        return max(0, self.lost - max(0, self.ambiguous - self.dropped.undecided))

    @property
    def fills(self) -> int:
        """Return the number of messages that the plan replaces with fillers or keeps in
        damaged form.
        """
        return self.fillers + self.kept_damaged

    @property
    def drops(self) -> tuple[int, int]:
        """Return (number of lost messages that get no filler, number of discarded undecided
        records).
        """
        return self.dropped.messages, self.dropped.undecided

    @property
    def impact(self) -> Impact | None:
        """Return the extent of the plan's losses; None if no message is lost."""
        lost, total = self.messages_lost, self.lost
        if not total:
            return None
        topics = Counter(message.topic for message in lost if message.topic is not None)
        earliest, latest = span((message.time_from, message.time_to) for message in lost)
        return Impact(total, self.messages, topics, earliest, latest, total == len(lost))

    @property
    def empty(self) -> bool:
        """Return whether the plan changes nothing."""
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
