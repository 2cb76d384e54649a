"""Losses before and during a broker startup for each queue, as ranges of queue offsets (the view of
consumers).
"""

from __future__ import annotations

from rmqctl.broker.consume_queue import PLAIN, QueueState
from rmqctl.checks.consumers import QueueLosses
from rmqctl.checks.offset_runs import OffsetRuns
from rmqctl.checks.preflight.already import AlreadyLost
from rmqctl.checks.preflight.lost import TruncatedMessages, Unreachable
from rmqctl.checks.preflight.positions import batch_end
from rmqctl.checks.preflight.queues import RecoveredQueues
from rmqctl.checks.preflight.types import Prediction
from rmqctl.formats.local.properties import LMQ_PREFIX


def by_queue(predicted: Prediction, queues: RecoveredQueues, already: AlreadyLost,
             unreachable: Unreachable | None = None,
             lost: TruncatedMessages | None = None) -> dict[tuple[str, int], QueueLosses]:
    """Return the losses of every queue; call this after all queues are judged.

    ``unreachable``: None if the broker does not start.
    ``lost``: None if the broker does not start or truncates nothing.
    """
    rowless = {} if unreachable is None else unreachable.offsets()
    losses_of: dict[tuple[str, int], QueueLosses] = {}
    for number, state in enumerate(queues.states):
        gone = already.lost_offsets.get(number) or OffsetRuns()
        cut = OffsetRuns() if lost is None else lost.offsets.get(number) or OffsetRuns()
        if lost is not None and state.key[0].startswith(LMQ_PREFIX):
            cut = _cut_rows(state).without(gone)
        end = state.end if state.kind == PLAIN else batch_end(state, predicted.log.truncate_to)
        losses = QueueLosses(end, gone, cut, rowless.get(number) or OffsetRuns(),
                             already.undecodable_offsets.get(number) or OffsetRuns(),
                             state.blanked, queues.least_made(state))
        if state.kind == PLAIN:
            losses_of[state.key] = losses
        else:
            losses_of.setdefault(state.key, losses)
    return losses_of


def _cut_rows(state: QueueState) -> OffsetRuns:
    """Return the queue offsets of a light queue's truncated entries; the messages of these entries
    belong to other queues.
    """
    rows = OffsetRuns()
    rows.add_run(state.end, state.disk_end)
    return rows
