"""Truncate a log, and all structures derived from it, to their state before the removed messages
arrived.

Each change removes bytes in place or moves a file aside, so the cost hardly depends on the size of
the store. Spec: recovery.md §3, consumequeue.md §6.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import field
from itertools import pairwise

import numpy as np

from rmqctl.checks.delays import ahead, timer_ahead
from rmqctl.checks.impact import Impact, span
from rmqctl.checks.preflight.missing import Beyond, known_beyond
from rmqctl.checks.verify.common import plural
from rmqctl.errors import RefusedError
from rmqctl.formats.local import checkpoint as layout
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.properties import SCHEDULE_TOPIC, TIMER_TOPIC
from rmqctl.formats.local.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import now_ms
from rmqctl.repair.offsets.delays import set_back_delays
from rmqctl.repair.plan import (
    Action,
    Dropped,
    Lost,
    MoveAside,
    Patch,
    Plan,
    Planned,
    Step,
    places_of,
)
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.targets import target
from rmqctl.repair.truncate.compaction import cut_compaction
from rmqctl.repair.truncate.epochs import cut_epochs
from rmqctl.repair.truncate.index import cut_index
from rmqctl.repair.truncate.queues import cut_queues
from rmqctl.repair.truncate.timer import cut_timer
from rmqctl.scan import text
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import BLANK, DAMAGED, Array, Batch
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk
from rmqctl.store.config.progress import ConsumerProgress, named
from rmqctl.store.files import StoreFile
from rmqctl.store.log.end import find_end, used_size
from rmqctl.store.store import Store

AHEAD = "is then ahead of the queue"
"""Part of the note on consumer offsets beyond the new end of a queue. `restore` omits this note: it
lowers such offsets.
"""
WRITES = ("commitlog", "consumequeue", "index")
_RECOVERED = 3
"""Maximum number of files at the end of the log that a broker scans after a clean shutdown."""
MAX_LISTED = 100_000
"""Maximum number of messages that a plan lists individually; it counts all messages."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """A plan that truncates a log.

    * ``log_end``: end of the log before the truncation
    * ``lost``: number of intact messages that are removed
    * ``lost_by_topic``: this number for each topic
    """

    plan: Plan
    log_end: int
    lost: int
    lost_by_topic: dict[str, int] = field(default_factory=dict)

    @property
    def impact(self) -> Impact | None:
        """Return the impact on messages; None if no message is removed. The total number of
        messages is unknown: the log before the cut is not read.
        """
        if not self.lost:
            return None
        listed = self.plan.messages_lost
        earliest, latest = span((message.time_from, message.time_to) for message in listed)
        return Impact(self.lost, None, self.lost_by_topic, earliest, latest,
                      self.lost == len(listed))


def truncate(store: Store, to: int, generation: int,
             step: Callable[[int], None] | None = None,
             scratch: Scratch | None = None, *, of_copy: bool = False) -> Truncation:
    """Return the plan that truncates the log of ``store`` at the physical offset ``to``. Nothing is
    written to the store.

    * ``to``: start of a record, a blank record, or an unused or damaged range
    * ``generation``: generation of the broker (4 or 5)
    * ``step``: called with the number of bytes read after ``to``
    * ``scratch``: folder in which a database of consume queues is rebuilt
    * ``of_copy``: whether entries and offsets beyond the cut are no evidence of lost messages,
      because the store is a copy of a part of another one

    Raises: RefusedError with the nearest valid offsets; StoreIOError.
    """
    store.layout.require_writable(store.root, WRITES, made_anew=True)
    store.layout.require(store.root, "consumequeue")
    cut_at = border(store, to)
    progress = ConsumerProgress.of(store)
    # Messages known only by entries beyond the cut, which are removed.
    beyond = known_beyond(store, to) if store.layout.reads("config") and not of_copy else Beyond()
    behind = removed_messages(store, to, progress, step, beyond.places)
    # Log and everything derived from it, each for itself.
    log_steps, log_actions = cut_log(store, to)
    queues = cut_queues(store, to, scratch)
    with store.up_to(to) as before:
        levels = ahead(before) if store.layout.reads("config") else []
        read = timer_ahead(before, to)
    delays = set_back_delays(store, {level.level: level.first for level in levels}, now_ms)
    timer = cut_timer(store, to, queues.next_offsets.get((TIMER_TOPIC, 0)),
                      read.first if read.messages else None)
    index = cut_index(store, to, generation)
    epochs = cut_epochs(store, to)
    compacted = cut_compaction(store, {key: end for key, end in queues.next_offsets.items()
                                       if key not in queues.restarted})
    steps = [*log_steps, *queues.steps, *timer.steps, *index.steps, *epochs.steps,
             *compacted.steps, *delays.steps]
    actions = [*log_actions, *queues.actions, *timer.actions, *index.actions, *epochs.actions,
               *compacted.actions, *delays.actions]
    _set_back_checkpoint(store, cut_at, index.full_until, steps, actions)
    # The losses.
    notes = [*warnings(behind, progress, queues.next_offsets, queues.restarted),
             *queues.notes, *timer.notes, *index.notes, *epochs.notes, *compacted.notes,
             *_left_as_is(store, to)]
    if beyond.messages:
        counted = plural(beyond.messages, "more message is", "more messages are")
        notes.append(f"{counted} already lost and known only from entries beyond the cut: the "
                     "journal of the repair counts them. If another copy has them, `rmqctl recover "
                     "--from` restores them")
    table = {f"{topic}-{queue}": end for (topic, queue), end in queues.next_offsets.items() if end}
    dropped = Dropped(behind.count + beyond.messages, behind.undecided, places_of(
        ((message.physical_offset or 0, message.size or 0) for message in behind.listed),
        store.log.raw_at))
    plan = Plan("truncate", store.root, tuple(actions), tuple(steps), tuple(behind.listed), table,
                tuple(notes), dropped=dropped)
    return Truncation(plan, cut_at.log_end, behind.count, dict(behind.by_topic.most_common()))


def _set_back_checkpoint(store: Store, cut_at: Border, full_until: int | None, steps: list[Step],
                         actions: list[Action]) -> None:
    """Reduce the times and offsets in the checkpoint that are beyond the new end of the log.

    A broker does not check messages that were stored before these times. With the old times it
    would not check new messages.
    """
    checkpoint = store.checkpoint
    if checkpoint is None:
        return
    last = cut_at.store_timestamp or 0
    index = min(checkpoint.index_msg_timestamp, last)
    changed = checkpoint._replace(
        physic_msg_timestamp=min(checkpoint.physic_msg_timestamp, last),
        logics_msg_timestamp=min(checkpoint.logics_msg_timestamp, last),
        index_msg_timestamp=index if full_until is None else min(index, full_until),
        master_flushed_offset=min(checkpoint.master_flushed_offset, cut_at.offset),
        confirm_phy_offset=min(checkpoint.confirm_phy_offset, cut_at.offset))
    if changed == checkpoint:
        return
    with FileSource(store.path("checkpoint")) as source:
        size = min(source.size, layout.CHECKPOINT.size)
    steps.append(Patch("checkpoint", (OverlayPiece.of(0, layout.build(changed)[:size]),)))
    actions.append(Action("set back", "checkpoint", layout.differing(checkpoint, changed),
                          layout.differing(changed, checkpoint), "is ahead of the log"))


def _left_as_is(store: Store, to: int) -> list[str]:
    """Return notes on log files that cannot be used, and on damage before the cut."""
    notes = [f"{trouble.path}: {trouble.reason}" for trouble in store.log_troubles]
    damaged = _damage_before(store, to)
    if damaged is not None:
        notes.append(f"the log is damaged before the cut, at physical offset {damaged}: a broker "
                     "whose recovery reaches it would truncate the log there")
    return notes


def _damage_before(store: Store, to: int) -> int | None:
    """Return the offset of the first damage in the last files before ``to``; None if they are
    intact. A broker's recovery may scan these files after the truncation.
    """
    log = store.log
    numbers = [number for number, file in enumerate(log.files) if file.base < to]
    for number in numbers[-_RECOVERED:]:
        file = log.files[number]
        if number and log.files[number - 1].end != file.base and number != numbers[-_RECOVERED:][0]:
            return log.files[number - 1].end
        for batch in Walk(log.source(number), 0, min(file.size, to - file.base)):
            bad = (~batch.crc_ok()).nonzero()[0]
            places = [int(batch.offset[bad[0]])] if len(bad) else []
            places += [span.offset for span in batch.spans
                       if span.kind != BLANK and span.offset < to]
            if places:
                return min(places)
    return None


# -- the log: where it may be cut, and what is left of its files ----------------------------------


@dataclass(frozen=True, slots=True)
class Border:
    """A physical offset at which the log can be truncated.

    ``store_timestamp``: store time of the last record before this offset (None: no record).
    ``log_end``: present end of the log.
    """

    offset: int
    log_end: int
    store_timestamp: int | None


def border(store: Store, to: int) -> Border:
    """Return the boundary at ``to``, where a frame of the log must begin: a record, a blank record,
    or an unused or damaged range.

    The file is read from its start, because a record inside the body of another record does not
    begin at a boundary.

    Raises: StoreIOError. RefusedError with the nearest boundaries before and after ``to``, or with
    the reason why the log cannot end at ``to``.
    """
    log = store.log
    refuse_overlaps(store)
    if not log.files:
        raise RefusedError(f"{store.root}: the store has no commitlog files: nothing to truncate")
    if to < log.min_offset:
        raise RefusedError(f"physical offset {to} is before the start of the log at "
                           f"{log.min_offset}")
    log_end = find_end(store)
    for trouble in log_end.troubles:
        raise RefusedError(f"{trouble.path}: {trouble.reason}; where the log ends is unknown")
    if to > log_end.offset:
        raise RefusedError(f"physical offset {to} is beyond the end of the log at "
                           f"{log_end.offset}")
    # The file that contains it, or ends there.
    number = next((index for index, file in enumerate(log.files) if file.base <= to < file.end),
                  None)
    if number is None:
        number = next((index for index, file in enumerate(log.files) if file.end == to), None)
    if number is None:
        raise RefusedError(f"physical offset {to} is in a part of the log whose file is missing")
    source = log.source(number)
    walk = Walk(source, 0, min(to + 1 - source.base, source.size))
    below, above, last = _borders_around(walk, to, log.files[number])
    if below != to:
        raise RefusedError(f"physical offset {to} is not a boundary between records: the previous "
                           f"one is {below}, the next one {above}")
    # The last record before it may be in an earlier file.
    while last is None and number > 0:
        number -= 1
        source = log.source(number)
        for batch in Walk(source, 0, used_size(source)):
            if len(batch):
                last = int(batch.column("store_timestamp")[-1])
    return Border(to, log_end.offset, last)


def refuse_overlaps(store: Store) -> None:
    """Raise RefusedError if the physical offsets of two log files overlap.

    A broker reads only one of the two files, depending on the order of its folders, so no
    truncation is safe.
    """
    files = store.log.files
    for first, other in pairwise(files):
        if first.end > other.base:
            raise RefusedError(f"{other.path}: starts at {other.base}, but {first.path} ends at "
                               f"{first.end}; it is unknown which of the two belongs to the log")


def _borders_around(walk: Walk, to: int, file: StoreFile) -> tuple[int, int, int | None]:
    """Return (last boundary at or before ``to``, first boundary after ``to``, store time of the
    last record before ``to``).
    """
    below, above = file.base, file.end
    last: int | None = None
    for batch in walk:
        places = [side for span in batch.spans for side in (span.offset, span.end)]
        if len(batch):
            row = int(np.searchsorted(batch.offset, to))
            places += batch.offset[max(row - 1, 0):row + 1].tolist()
            if row:
                start = int(batch.offset[row - 1])
                places.append(start + int(batch.column("total_size")[row - 1]))
                last = int(batch.column("store_timestamp")[row - 1])
        below = max([below, *(place for place in places if place <= to)])
        above = min([above, *(place for place in places if place > to)])
    return below, above, last


def cut_log(store: Store, to: int) -> Planned:
    """Move the log files after ``to`` aside, and zero the bytes after ``to`` in the file that
    contains this offset.

    * A file that begins exactly at ``to`` is emptied but kept, as a broker does. Without this file,
      the log would end with a blank record, which new messages would overwrite.
    * A file that is too short is extended to its full size: a broker accepts no other size.
    """
    moved: list[Step] = []
    wiped: list[Step] = []
    actions: list[Action] = []
    size = store.log.file_size
    for file in store.log.files:
        name = target(store, file.path)
        if file.base > to:
            moved.append(MoveAside(name))
            actions.append(Action("move aside", name, file.size, None,
                                  f"starts beyond physical offset {to}", "byte"))
            continue
        if not file.base <= to < file.base + size:
            continue
        position = to - file.base
        source = store.log.source(store.log.files.index(file))
        used = max(used_size(source), position)
        until = max(used, size if file.size < size else 0)
        if until > position:
            wiped.append(Patch(name, (OverlayPiece(position, until - position),)))
            actions.append(Action("truncate", name, used, position,
                                  "bytes after the cut are zeroed"))
    # The last file first, so that an interruption leaves a log without a hole.
    return [*reversed(moved), *wiped], actions


# -- the messages after the cut: what is lost, and who should know ---------------------------------


@dataclass(slots=True)
class RemovedMessages:
    """Messages in the removed part of the log.

    * ``count``: number of intact messages
    * ``listed``: the first of these messages
    * ``undecided``: number of records that may be messages, plus damaged records that are not yet
      counted as lost
    """

    listed: list[Lost] = field(default_factory=list)
    count: int = 0
    by_topic: Counter[str] = field(default_factory=Counter)
    damaged: int = 0
    undecided: int = 0
    pending_delay: int = 0
    delivered_delay: int = 0
    commits: int = 0


def removed_messages(store: Store, to: int, progress: ConsumerProgress,
                     step: Callable[[int], None] | None = None,
                     lost_places: Array | None = None) -> RemovedMessages:
    """Read the log from the boundary ``to`` on, and return the messages found. Raises:
    StoreIOError.

    ``step`` is called with the number of bytes read. ``lost_places``: physical offsets of messages
    that are already lost.
    """
    cut = RemovedMessages()
    topics = text.Dictionary()
    for batch in _frames(store, to):
        cut.damaged += sum(span.kind == DAMAGED for span in batch.spans)
        cut.undecided += sum(len(span.doubtful) for span in batch.spans)
        if len(batch):
            bad = batch.offset[~batch.crc_ok()]
            lost = () if lost_places is None else lost_places
            cut.undecided += int(np.count_nonzero(~np.isin(bad, lost)))
            _take(cut, batch, topics, progress)
            if step is not None:
                step(int(batch.column("total_size").sum()))
    return cut


def _frames(store: Store, to: int) -> Iterator[Batch]:
    """Yield batches of all frames from the boundary ``to`` on, including damaged ranges."""
    for number, file in enumerate(store.log.files):
        if file.end > to:
            yield from Walk(store.log.source(number), max(0, to - file.base))


def _take(cut: RemovedMessages, batch: Batch, topics: text.Dictionary,
          progress: ConsumerProgress) -> None:
    intact = batch.crc_ok()
    cut.damaged += int(len(batch) - np.count_nonzero(intact))
    topic = topics.encode(text.topics(batch))
    names = [os.fsdecode(topic) for topic in topics.texts]
    for number, count in zip(*np.unique(topic[intact], return_counts=True), strict=True):
        cut.by_topic[names[int(number)]] += int(count)
    cut.count += int(np.count_nonzero(intact))
    queue_id, offset = batch.column("queue_id"), batch.column("queue_offset")
    if SCHEDULE_TOPIC in cut.by_topic:
        delayed = intact & (topic == topics.number(SCHEDULE_TOPIC.encode()))
        next_due = np.array([progress.delayed.get(number, 0) for number in queue_id.tolist()],
                            np.int64)
        cut.pending_delay += int(np.count_nonzero(delayed & (offset >= next_due)))
    if progress.delayed:
        cut.delivered_delay += _from_delay(batch, intact, topic, topics)
    kind = batch.column("sys_flag") & TRANSACTION_MASK
    cut.commits += int(np.count_nonzero(intact & (kind == TRANSACTION_COMMIT)))
    columns = [column.tolist() for column in (
        topic, queue_id, offset, batch.offset, batch.column("total_size"),
        batch.column("store_timestamp"))]
    room = MAX_LISTED - len(cut.listed)
    for index in np.flatnonzero(intact)[:room].tolist():
        number, queue, row, physical, size, when = (column[index] for column in columns)
        cut.listed.append(Lost(names[number], queue, row, physical, size, when, when,
                               by="record"))


def _from_delay(batch: Batch, intact: Array, topic: Array, topics: text.Dictionary) -> int:
    """Return the number of copies that the delay service delivered: messages that have a delay
    level and are not in the service's topic.
    """
    rows = text.PropertySegments(batch).places(props.DELAY)[0]
    scheduled = topics.number(SCHEDULE_TOPIC.encode())
    return int(np.count_nonzero(intact[rows] & (topic[rows] != scheduled)))


def warnings(cut: RemovedMessages, progress: ConsumerProgress, next_offsets: dict[QueueKey, int],
             restarted: list[QueueKey]) -> list[str]:
    """Return warnings for the user to read before the messages are removed, one sentence each."""
    # Messages that are not listed, and damage that may contain more.
    notes = []
    if cut.count > len(cut.listed):
        notes.append(f"{plural(cut.count, 'message is', 'messages are')} removed; the first "
                     f"{len(cut.listed)} are listed")
    if cut.damaged:
        notes.append(f"{plural(cut.damaged, 'damaged part')} of the log beyond the cut "
                     "may contain messages, too")
    # Delays, transactions and timers, which lose more than messages.
    topics = cut.by_topic
    if topics[SCHEDULE_TOPIC]:
        notes.append(f"{SCHEDULE_TOPIC}: {plural(topics[SCHEDULE_TOPIC], 'delayed message')} "
                     f"removed, of which {cut.pending_delay} will never be delivered")
    if cut.delivered_delay:
        notes.append(f"{plural(cut.delivered_delay, 'message')} removed that the delay service had "
                     "delivered; originals that were due before the cut are not delivered again")
    half, op = topics[props.HALF_TOPIC], topics[props.OP_HALF_TOPIC]
    if half:
        notes.append(f"{props.HALF_TOPIC}: {plural(half, 'half message')} removed, whose "
                     "transactions can no longer be committed or rolled back")
    if op:
        commits = f" ({plural(cut.commits, 'committed message')} removed)" if cut.commits else ""
        notes.append(f"{props.OP_HALF_TOPIC}: {plural(op, 'op message')} removed: half messages "
                     "before the cut that were committed or rolled back are checked again, and may "
                     f"be committed twice{commits}")
    if topics[TIMER_TOPIC]:
        notes.append(f"{TIMER_TOPIC}: {plural(topics[TIMER_TOPIC], 'timer message')} removed; "
                     "any that are still pending will not be delivered")
    # Consumers, and queues without an entry.
    notes += _too_far(progress, next_offsets)
    if restarted:
        names = named([f"{topic}/{queue}" for topic, queue in restarted])
        notes.append(f"no entry is left in {names}, whose older messages had expired: queue "
                     "offsets of these queues start at 0 again")
    return notes


def _too_far(progress: ConsumerProgress, next_offsets: dict[QueueKey, int]) -> list[str]:
    """Return notes about consumer offsets that will be beyond the end of their queue."""
    ahead: dict[str, list[str]] = {}
    for commit in progress.everybody():
        end = next_offsets.get((commit.topic, commit.queue_id))
        if end is not None and commit.offset > end:
            ahead.setdefault(f"{commit.group}, {commit.topic}", []).append(
                f"queue {commit.queue_id}: {commit.offset} of {end}")
    return [f"the offset of {consumer} {AHEAD} ({named(places)}): new messages are skipped until "
            "the offset is reached or reset"
            for consumer, places in sorted(ahead.items())]
