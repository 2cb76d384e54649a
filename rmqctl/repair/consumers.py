"""Determine how a plan of `recover` affects consumers, which receive fillers in place of lost
messages. Also find the lost messages that are known only from consumer offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from rmqctl.checks.consumers import Consumers, QueueKey, QueueLosses, Situation, consumers
from rmqctl.checks.offset_runs import OffsetRuns
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.damage.evidence import MAX_LISTED
from rmqctl.errors import FormatError, RmqctlError, StoreIOError
from rmqctl.repair.plan import Lost
from rmqctl.store.config.config import load_one
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store

POSITIONS = ("consumerOffset.json", "lmqConsumerOffset.json")
_ENDLESS = 1 << 62


class ByPositions(NamedTuple):
    """Lost messages that are known only from consumer offsets: a group has consumed them, or they
    were after the present end of a DLedger log.

    ``reached``: the queue offsets of all these messages, by queue. Some messages may already be
        counted as messages of unknown queues.
    ``listed``: the first messages that are not counted yet.
    ``more``: number of messages that are not counted yet.
    ``notes``: notes on the consumer offsets.
    """

    listed: tuple[Lost, ...] = ()
    more: int = 0
    reached: Mapping[QueueKey, OffsetRuns] = {}
    notes: tuple[str, ...] = ()


def consumers_after(store: Store, lost: Sequence[Lost], table: Mapping[str, int], generation: int,
                    *, total: int, reached: Mapping[QueueKey, OffsetRuns]) -> Consumers | None:
    """Return the effects of a repair on consumer groups; None if the form of the consumer offsets
    is not supported.

    ``total``: number of messages that cannot be restored.
    ``lost``: the messages that are listed; there may be fewer than ``total``. In a DLedger log,
        unlisted messages belong to unknown queues.
    ``table``: the next queue offset of each queue (``{"TopicTest-3": 17}``).
    ``reached``: lost messages that only consumer offsets show (`lost_by_positions`). Messages of
        unknown queues may be among them.
    """
    if not store.layout.reads("config"):
        return None
    queues: dict[QueueKey, QueueLosses] = {}
    for name, end in table.items():
        topic, _, queue_id = name.rpartition("-")
        queues[topic, int(queue_id)] = QueueLosses(end)
    for key in {*store.queues.batch} - queues.keys():
        queues[key] = QueueLosses(store.queues.batch[key].bounds(0)[1])
    unlisted = total - len(lost)
    unknown = unlisted if store.layout.is_dledger else 0
    gone: dict[QueueKey, OffsetRuns] = {}
    for message in lost:
        if message.topic is None or message.queue_id is None or message.queue_offset is None:
            unknown += 1
            continue
        gone.setdefault((message.topic, message.queue_id), OffsetRuns()).add_run(
            message.queue_offset, message.queue_offset + 1)
    for key, runs in reached.items():
        gone[key] = gone[key].join(runs) if key in gone else runs
        unknown -= runs.count()
    for key, runs in gone.items():
        queues[key] = replace(queues.get(key) or QueueLosses(_end(store, key)), lost=runs)
    impact = consumers(store, queues, Situation(generation, store.has_abort), max(0, unknown))
    return replace(impact, complete=impact.complete and (not unlisted or store.layout.is_dledger))


def lost_by_positions(store: Store, lost: Iterable[Lost], total: int, table: Mapping[str, int],
                      ) -> ByPositions:
    """Return the lost messages that are known only from consumer offsets, as `preflight` determines
    them.

    The parameters are those of `consumers_after`. A lost message belongs to an unknown queue if it
    has no queue offset or is not in ``lost``.
    """
    ends = {tuple(name.rpartition("-")[::2]): end for name, end in table.items()}
    placed: dict[tuple[str | None, int | None], OffsetRuns] = {}
    unplaced = total  # each of these may be counted again below
    for message in lost:
        if message.queue_offset is not None:
            unplaced -= 1
            placed.setdefault((message.topic, message.queue_id), OffsetRuns()).add_run(
                message.queue_offset, message.queue_offset + 1)
    # A repairable DLedger log has no gap: its queues lack only messages after their ends.
    by_end = store.layout.is_dledger and unplaced > 0
    if not by_end and not any(row["offset"] > ends.get(
            (row["topic"], str(row["queue_id"])), _ENDLESS)
            for name in POSITIONS for row in load_one(store, name).rows()):
        return ByPositions()
    listed: list[Lost] = []
    count = 0
    try:
        predicted = preflight(store)
    except RmqctlError:  # reported elsewhere; positions only add to it
        return ByPositions()
    reached: dict[QueueKey, OffsetRuns] = {}
    for key, losses in sorted((predicted.queues.losses or {}).items()):
        topic, queue_id = key
        beyond = OffsetRuns()
        beyond.add_run(ends.get((topic, str(queue_id)), 0 if by_end else _ENDLESS), _ENDLESS)
        new = losses.lost.without(losses.lost.without(beyond))
        new = new.without(placed[key]) if key in placed else new
        count += new.count()
        if new.count():
            reached[key] = new
        for first, end in new.runs().tolist():
            room = unplaced + MAX_LISTED - len(listed)
            listed += [Lost(topic, queue_id, offset, None, None, by="position")
                       for offset in range(first, min(end, first + room))]
    return ByPositions(tuple(listed[unplaced:]), max(0, count - unplaced), reached,
                       tuple(predicted.consumers.notes))


def _end(store: Store, key: tuple[str, int]) -> int:
    queue = store.queues.by_key.get(key)
    if queue is None:
        return 0
    try:
        with closing(queue):
            return View(store).bounds(queue).end
    except (StoreIOError, FormatError):
        return 0
