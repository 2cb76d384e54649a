"""What a plan of `recover` means for consumers: they meet fillers where messages are lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace

from rmqctl.checks.consumers import Consumers, QueueLosses, Situation, consumers
from rmqctl.checks.offset_runs import OffsetRuns
from rmqctl.checks.verify.common import plural
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.repair.plan import Lost
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store


def consumers_after(store: Store, lost: Iterable[Lost], table: Mapping[str, int], generation: int,
                    *, complete: bool) -> Consumers | None:
    """For the store as it will be. ``lost``: the messages that cannot be brought back; ``table``
    the next queue offset of every queue (``{"TopicTest-3": 17}``); ``complete``: whether ``lost``
    are all. None where groups' positions are in a form that is not read.
    """
    if not store.layout.reads("config"):
        return None
    queues: dict[tuple[str, int], QueueLosses] = {}
    for name, end in table.items():
        topic, _, queue_id = name.rpartition("-")
        queues[topic, int(queue_id)] = QueueLosses(end)
    for key in {*store.batch_queues} - queues.keys():
        queues[key] = QueueLosses(store.batch_queues[key].bounds(0)[1])
    unknown = 0
    gone: dict[tuple[str, int], OffsetRuns] = {}
    for message in lost:
        if message.topic is None or message.queue_id is None or message.queue_offset is None:
            unknown += 1
            continue
        gone.setdefault((message.topic, message.queue_id), OffsetRuns()).add_run(
            message.queue_offset, message.queue_offset + 1)
    for key, runs in gone.items():
        queues[key] = replace(queues.get(key) or QueueLosses(_end(store, key)), lost=runs)
    found = consumers(store, queues, Situation(generation, store.has_abort))
    if unknown:
        note = (f"{plural(unknown, 'lost message is', 'lost messages are')} of a queue that "
                "nothing tells, and in no group's figures")
        found = replace(found, notes=(*found.notes, note))
    return replace(found, complete=found.complete and complete and not unknown)


def _end(store: Store, key: tuple[str, int]) -> int:
    queue = store.queues.get(key)
    if queue is None:
        return 0
    try:
        with closing(queue):
            return View(store).bounds(queue).end
    except (StoreIOError, FormatError):
        return 0
