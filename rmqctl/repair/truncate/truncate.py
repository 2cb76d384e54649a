"""A log that ends earlier, and everything derived from it: what a broker has that never got more.

Every change is a patch of the bytes that go or a whole file that goes aside, so a plan costs
little however large the store is. spec: recovery.md §3, consumequeue.md §6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rmqctl.formats.local import checkpoint as layout
from rmqctl.formats.local.checkpoint import CheckpointRecord
from rmqctl.formats.local.properties import TIMER_TOPIC
from rmqctl.repair.groups import Progress
from rmqctl.repair.plan import Action, Patch, Plan, Step
from rmqctl.repair.truncate.index import cut_index
from rmqctl.repair.truncate.log import Border, border, cut_log
from rmqctl.repair.truncate.lost import messages_behind, warnings
from rmqctl.repair.truncate.queues import cut_queues
from rmqctl.repair.truncate.timer import cut_timer
from rmqctl.scan.frames import BLANK
from rmqctl.scan.overlay import Piece
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk
from rmqctl.store.files import listing
from rmqctl.store.store import Store

_RECOVERED = 3
"""Files at the end of a log which recovery after a clean end walks, at most."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """The plan, where the log ended before it, and the intact messages cut, by topic."""

    plan: Plan
    log_end: int
    lost: int
    lost_by_topic: dict[str, int] = field(default_factory=dict)


def truncate(store: Store, to: int, generation: int,
             step: Callable[[int], None] | None = None) -> Truncation:
    """The plan that ends the log of ``store`` at physical offset ``to``.

    ``to`` must be where a record, a blank, or an unused or damaged part begins: RefusedError names
    the nearest such offsets. ``generation`` (4 or 5) is the broker's. ``step`` hears of the bytes
    read behind the cut. Writes nothing. StoreIOError.
    """
    at = border(store, to)
    progress = Progress.of(store)
    behind = messages_behind(store, to, progress, step)
    log_steps, log_actions = cut_log(store, to)
    queues = cut_queues(store, to)
    timer = cut_timer(store, to, queues.next_offsets.get((TIMER_TOPIC, 0)))
    index = cut_index(store, to, generation)
    steps = [*log_steps, *queues.steps, *timer.steps, *index.steps]
    actions = [*log_actions, *queues.actions, *timer.actions, *index.actions]
    _set_back_checkpoint(store, at, index.full_until, steps, actions)
    notes = [*warnings(behind, progress, queues.next_offsets, queues.restarted),
             *queues.notes, *timer.notes, *index.notes, *_around(store, to)]
    table = {f"{topic}-{queue}": end for (topic, queue), end in queues.next_offsets.items() if end}
    plan = Plan("truncate", store.root, tuple(actions), tuple(steps), tuple(behind.listed), table,
                tuple(notes))
    return Truncation(plan, at.log_end, behind.count, dict(behind.by_topic.most_common()))


def _set_back_checkpoint(store: Store, at: Border, full_until: int | None, steps: list[Step],
                         actions: list[Action]) -> None:
    """Times and offsets of the checkpoint must not be ahead of the log.

    A broker takes what was stored before its times for safe, and would walk too little.
    """
    found = store.checkpoint
    if found is None:
        return
    last = at.store_timestamp or 0
    index = min(found.index_msg_timestamp, last)
    made = found._replace(
        physic_msg_timestamp=min(found.physic_msg_timestamp, last),
        logics_msg_timestamp=min(found.logics_msg_timestamp, last),
        index_msg_timestamp=index if full_until is None else min(index, full_until),
        master_flushed_offset=min(found.master_flushed_offset, at.offset),
        confirm_phy_offset=min(found.confirm_phy_offset, at.offset))
    if made == found:
        return
    with FileSource(store.path("checkpoint")) as source:
        size = min(source.size, layout.CHECKPOINT.size)
    steps.append(Patch("checkpoint", (Piece.of(0, layout.build(made)[:size]),)))
    actions.append(Action("set back", "checkpoint", _told(found, made), _told(made, found),
                          "is ahead of the log"))


def _told(one: CheckpointRecord, other: CheckpointRecord) -> str:
    """The fields in which a record differs from another."""
    mine, theirs = one._asdict(), other._asdict()
    return ", ".join(f"{name.split('_')[0]} {value}" for name, value in mine.items()
                     if value != theirs[name])


def _around(store: Store, to: int) -> list[str]:
    """What else of the store is touched by the cut, and is left as it is."""
    notes = [f"{trouble.path}: {trouble.reason}" for trouble in store.log_troubles]
    damaged = _damage_before(store, to)
    if damaged is not None:
        notes.append(f"the log is damaged before the cut, at physical offset {damaged}: a broker "
                     "whose recovery comes by would end it there")
    if any(listing(store.path("compaction", "compactionLog", topic)).folders
           for topic in listing(store.path("compaction", "compactionLog")).folders):
        notes.append("compaction/ keeps copies of messages of compaction topics; what they hold "
                     "of messages behind the cut stays")
    return notes


def _damage_before(store: Store, to: int) -> int | None:
    """The first damage in the files a broker's recovery may look at after the cut."""
    log = store.log
    kept = [number for number, one in enumerate(log.files) if one.base < to]
    for number in kept[-_RECOVERED:]:
        one = log.files[number]
        if number and log.files[number - 1].end != one.base and number != kept[-_RECOVERED:][0]:
            return log.files[number - 1].end
        for batch in Walk(log.source(number), 0, min(one.size, to - one.base)):
            bad = (~batch.crc_ok()).nonzero()[0]
            places = [int(batch.offset[bad[0]])] if len(bad) else []
            places += [span.offset for span in batch.spans
                       if span.kind != BLANK and span.offset < to]
            if places:
                return min(places)
    return None
