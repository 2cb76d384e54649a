"""What preflight says, as a value: what a broker will do to a store when it starts on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rmqctl.actions import Action
from rmqctl.errors import UsageError
from rmqctl.formats.local.checkpoint import CheckpointRecord
from rmqctl.store.files import StoreFile


@dataclass(frozen=True, slots=True)
class Rules:
    """How one version starts (spec: recovery.md §15)."""

    version: str
    generation: int
    message_v2: bool
    blank_must_fit: bool
    """A blank which names more than the rest of its file is damage (5.3.2+)."""
    skips_folders: bool
    deletes_empty_last: bool
    normal_by_queues: bool
    """After a clean end the walk starts by the consumequeues and dispatches what lies behind
    them (5.3.2+); else it starts with the third file from the end and dispatches nothing."""
    reput_from_queues: bool
    """What the consumequeues lack at the end is dispatched after recovery (4.5.1 to 4.9.x)."""
    delay_levels_late: bool
    """Recovery does not know the delay levels yet (4.9.2 to 4.9.8)."""
    keeps_confirm: bool
    empty_queue_file_fails: bool
    """A queue that goes on with a later file and has no row in it keeps the broker from
    starting (5.0.0+; apache/rocketmq#9728)."""


RULES: dict[str, Rules] = {
    "4.9.3": Rules("4.9.3", 4, message_v2=False, blank_must_fit=False, skips_folders=False,
                   deletes_empty_last=False, normal_by_queues=False, reput_from_queues=True,
                   delay_levels_late=True, keeps_confirm=False, empty_queue_file_fails=False),
    "5.3.3": Rules("5.3.3", 5, message_v2=True, blank_must_fit=True, skips_folders=True,
                   deletes_empty_last=True, normal_by_queues=True, reput_from_queues=False,
                   delay_levels_late=False, keeps_confirm=True, empty_queue_file_fails=True),
}
VERSIONS = tuple(RULES)


def rules_of(version: str | None, generation: int) -> Rules:
    """The rules of a version; None: that of the store's generation. UsageError."""
    if version is None:
        return next(one for one in RULES.values() if one.generation == generation)
    found = RULES.get(version)
    if found is None:
        raise UsageError(f"the start of broker version {version!r} cannot be predicted; there "
                         f"are {', '.join(VERSIONS)}")
    return found


class Stretch(NamedTuple):
    """Physical offsets ``[start, end)`` that are dispatched again.

    ``behind``: only records that start behind this physical offset. ``reput``: after recovery,
    by the run-time dispatcher, which looks at no body and skips what it cannot read.
    ``positions`` are the plain queues before that: (queue offset behind the last row, how far the
    log was dispatched).
    """

    start: int
    end: int
    behind: int | None
    reput: bool
    positions: dict[tuple[str, int], tuple[int, int]]


class QueueChange(NamedTuple):
    """A queue whose messages are dispatched again. ``kept``: names of files that stay and
    that the broker goes on from.
    """

    kind: str
    topic: str
    queue_id: int
    added: int
    kept: tuple[str, ...]

    @property
    def target(self) -> str:
        return f"{self.kind}/{self.topic}/{self.queue_id}"


class LostMessage(NamedTuple):
    """An intact message that is cut off the log."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int


@dataclass(slots=True)
class Prediction:
    """The whole of it. Offsets are physical, in bytes.

    ``truncate_to`` is where the log ends for the broker; None where it does not start.
    ``messages_lost`` counts intact messages that are cut off the log; ``superseded`` those whose
    queue offset belongs to another message already, left by an earlier cut. ``unreachable``
    counts messages that stay in the log with no row in their queue (None: not looked for in all
    of the log). ``rows_lost``: rows of queues that are destroyed with an empty log.
    """

    broker_version: str
    recovery: str
    starts: bool = True
    loaded_log: list[StoreFile] = field(default_factory=list)
    """The files of the log that the broker works on."""
    table: dict[str, int] = field(default_factory=dict)
    """The next queue offset of every plain queue: ``{"TopicTest-3": 17}``."""
    refusals: list[str] = field(default_factory=list)
    truncate_to: int | None = None
    start_file: str | None = None
    start_reason: str = ""
    stop_reason: str = ""
    dispatch: list[Stretch] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    messages_lost: int = 0
    lost_by_topic: dict[str, int] = field(default_factory=dict)
    lost_first: list[LostMessage] = field(default_factory=list)
    """The first of them, singly."""
    superseded: int = 0
    unreachable: int | None = 0
    unreachable_by_topic: dict[str, int] = field(default_factory=dict)
    shadowed: int = 0
    """Messages of the log in one of several files of the same name, of which a broker reads
    only the first: found or not by luck."""
    rows_added: int = 0
    rows_cut: int = 0
    rows_lost: int = 0
    index_discarded: int = 0
    index_entries: int = 0
    index_duplicates: int = 0
    index_lost: int = 0
    """Entries of discarded index files that do not come back."""
    checkpoint: CheckpointRecord | None = None
    notes: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    queues: list[QueueChange] = field(default_factory=list)
    doomed: list[str] = field(default_factory=list)
    """Files and folders of log, consumequeues and index that go away (relative to the root or
    absolute), in the order in which a broker takes them away."""

    @property
    def harmless(self) -> bool:
        """Whether the broker starts and nothing readable is lost."""
        return self.starts and not (self.messages_lost or self.unreachable or self.rows_lost
                                    or self.shadowed)

    def as_dict(self) -> dict[str, Any]:
        first = self.dispatch[0] if self.dispatch else None
        return {
            "broker_version": self.broker_version, "recovery": self.recovery,
            "starts": self.starts, "truncate_to": self.truncate_to,
            "start_file": self.start_file, "start_reason": self.start_reason,
            "stop_reason": self.stop_reason,
            "dispatch_from": None if first is None else min(s.start for s in self.dispatch),
            "dispatch_to": None if first is None else max(s.end for s in self.dispatch),
            "actions": [one.as_dict() for one in self.actions],
            "messages_lost": self.messages_lost, "lost_by_topic": self.lost_by_topic,
            "superseded": self.superseded,
            "unreachable": self.unreachable, "unreachable_by_topic": self.unreachable_by_topic,
            "shadowed": self.shadowed,
            "rows_added": self.rows_added, "rows_cut": self.rows_cut,
            "rows_lost": self.rows_lost,
            "index": {"files_discarded": self.index_discarded,
                      "entries_added": self.index_entries,
                      "duplicates": self.index_duplicates,
                      "entries_lost": self.index_lost},
            "checkpoint": None if self.checkpoint is None else self.checkpoint._asdict(),
            "refusals": self.refusals, "notes": self.notes, "differences": self.differences,
        }
