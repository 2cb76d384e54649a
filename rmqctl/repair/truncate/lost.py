"""The messages behind a cut: what is lost with them, and who should be told."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from rmqctl.checks.verify.common import plural
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.properties import SCHEDULE_TOPIC, TIMER_TOPIC
from rmqctl.formats.local.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqctl.repair.groups import Progress, named
from rmqctl.repair.plan import Lost
from rmqctl.scan import text
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import DAMAGED, Array, Batch
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store

MOST_LISTED = 100_000
"""Messages that a plan names one by one; all are counted."""


@dataclass(slots=True)
class Cut:
    """What lies behind the cut: ``listed`` are the first of ``count`` intact messages."""

    listed: list[Lost] = field(default_factory=list)
    count: int = 0
    by_topic: Counter[str] = field(default_factory=Counter)
    damaged: int = 0
    pending_delay: int = 0
    delivered_delay: int = 0
    commits: int = 0


def messages_behind(store: Store, to: int, progress: Progress,
                    step: Callable[[int], None] | None = None) -> Cut:
    """Reads the log from ``to`` (a border) on. ``step`` hears of the bytes read. StoreIOError."""
    cut = Cut()
    topics = text.Dictionary()
    for batch in _frames(store, to):
        cut.damaged += sum(one.kind == DAMAGED for one in batch.spans)
        if len(batch):
            _take(cut, batch, topics, progress)
            if step is not None:
                step(int(batch.column("total_size").sum()))
    return cut


def _frames(store: Store, to: int) -> Iterator[Batch]:
    """All frames from the border ``to`` on, damage right behind it included."""
    for number, one in enumerate(store.log.files):
        if one.end > to:
            yield from Walk(store.log.source(number), max(0, to - one.base))


def _take(cut: Cut, batch: Batch, topics: text.Dictionary, progress: Progress) -> None:
    intact = batch.crc_ok()
    cut.damaged += int(len(batch) - np.count_nonzero(intact))
    topic = topics.encode_places(batch.data, batch.column("topic_start"),
                                 batch.column("topic_length"))
    names = [os.fsdecode(one) for one in topics.texts]
    for number, count in zip(*np.unique(topic[intact], return_counts=True), strict=True):
        cut.by_topic[names[int(number)]] += int(count)
    cut.count += int(np.count_nonzero(intact))
    queue_id, offset = batch.column("queue_id"), batch.column("queue_offset")
    if SCHEDULE_TOPIC in cut.by_topic:
        mine = intact & (topic == topics.number(SCHEDULE_TOPIC.encode()))
        next_due = np.array([progress.delayed.get(one, 0) for one in queue_id.tolist()], np.int64)
        cut.pending_delay += int(np.count_nonzero(mine & (offset >= next_due)))
    if progress.delayed:
        cut.delivered_delay += _from_delay(batch, intact, topic, topics)
    kind = batch.column("sys_flag") & TRANSACTION_MASK
    cut.commits += int(np.count_nonzero(intact & (kind == TRANSACTION_COMMIT)))
    columns = [column.tolist() for column in (
        topic, queue_id, offset, batch.offset, batch.column("total_size"),
        batch.column("store_timestamp"))]
    room = MOST_LISTED - len(cut.listed)
    for at in np.flatnonzero(intact)[:room].tolist():
        number, queue, row, physical, size, when = (column[at] for column in columns)
        cut.listed.append(Lost(names[number], queue, row, physical, size, when, when,
                               by="record"))


def _from_delay(batch: Batch, intact: Array, topic: Array, topics: text.Dictionary) -> int:
    """Messages the delay service delivered: they carry the level they once had."""
    rows = text.Properties(batch).places(props.DELAY)[0]
    scheduled = topics.number(SCHEDULE_TOPIC.encode())
    return int(np.count_nonzero(intact[rows] & (topic[rows] != scheduled)))


def warnings(cut: Cut, progress: Progress, next_offsets: dict[QueueKey, int],
             restarted: list[QueueKey]) -> list[str]:
    """What somebody should know before the messages are cut, one sentence each."""
    said = []
    if cut.count > len(cut.listed):
        said.append(f"{plural(cut.count, 'message is', 'messages are')} cut; the first "
                    f"{len(cut.listed)} are listed")
    if cut.damaged:
        said.append(f"{plural(cut.damaged, 'damaged part')} of the log behind the cut "
                    "may hold messages, too")
    topics = cut.by_topic
    if topics[SCHEDULE_TOPIC]:
        said.append(f"{SCHEDULE_TOPIC}: {plural(cut.pending_delay, 'delayed message')} not yet "
                    f"delivered will never be (of {topics[SCHEDULE_TOPIC]} that are cut)")
    if cut.delivered_delay:
        said.append(f"{plural(cut.delivered_delay, 'message')} that the delay service had "
                    "delivered: where only the delivered copy is cut, it is not delivered again")
    half, op = topics[props.HALF_TOPIC], topics[props.OP_HALF_TOPIC]
    if half:
        said.append(f"{props.HALF_TOPIC}: {plural(half, 'half message')} cut, whose transactions "
                    "can neither be committed nor rolled back any more")
    if op:
        said.append(f"{props.OP_HALF_TOPIC}: {plural(op, 'op message')} cut: half messages before "
                    "the cut that were decided on are checked again, and may be committed twice"
                    + (f" ({plural(cut.commits, 'committed message')} cut)" if cut.commits else ""))
    if topics[TIMER_TOPIC]:
        said.append(f"{TIMER_TOPIC}: {plural(topics[TIMER_TOPIC], 'timer message')} cut, which "
                    "will not be delivered if they are still pending")
    said += _too_far(progress, next_offsets)
    if restarted:
        names = named([f"{topic}/{queue}" for topic, queue in restarted])
        said.append(f"no row is left of {names}: queue offsets begin at 0 again there, where older "
                    "messages had expired")
    return said


def _too_far(progress: Progress, next_offsets: dict[QueueKey, int]) -> list[str]:
    """Consumers that are ahead of what is left of their queue."""
    ahead: dict[str, list[str]] = {}
    for one in progress.everybody():
        end = next_offsets.get((one.topic, one.queue_id))
        if end is not None and one.offset > end:
            ahead.setdefault(f"{one.group}, {one.topic}", []).append(
                f"queue {one.queue_id}: {one.offset} of {end}")
    return [f"the offset of {who} is then ahead of the queue ({named(places)}): messages that "
            "come there are skipped until the offset is reached, or reset"
            for who, places in sorted(ahead.items())]
