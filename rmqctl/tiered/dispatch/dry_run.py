"""What a dispatch would upload, from the rows alone; nothing is written and nothing locked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import numpy as np

from rmqctl.formats.local import message
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store
from rmqctl.tiered.dispatch.group_commit import is_due
from rmqctl.tiered.dispatch.local import LocalQueue
from rmqctl.tiered.dispatch.plan import (
    REFUSED,
    STOPPED,
    UPLOADED,
    WAITING,
    Outcome,
    flat_queue,
    judged,
    owner,
    places,
    same_message,
)
from rmqctl.tiered.dispatch.request import Request, Result
from rmqctl.tiered.dispatch.resume import rehearse as completing
from rmqctl.tiered.dispatch.session import opened, resolved, settled
from rmqctl.tiered.dispatch.settings import TierSettings
from rmqctl.tiered.flat_queue import QueueName
from rmqctl.tiered.tier import Tier


def rehearse(request: Request, clock: Callable[[], int]) -> Result:
    """The outcomes as they would be. With ``only_due`` a due queue counts as a whole."""
    with Store.open(request.store, request.commitlog_dirs, request.sizes) as store:
        request, notes = settled(request)
        with closing(opened(request)) as tier:
            cluster, broker = owner(tier, store, request.cluster, request.broker)
            settings, more = resolved(tier, request)
            notes += more
            if tier.metadata_error is not None:
                notes.append(tier.metadata_error)
            result = Result(cluster, broker, [], notes)
            view = View(store)
            for key in places(store, cluster, broker, list(request.topics)).queues:
                local = LocalQueue(view, store.queues[key])
                result.outcomes.append(_outcome(
                    request, settings, view, tier, QueueName(cluster, broker, *key), local,
                    clock()))
    return result


def _outcome(request: Request, settings: TierSettings, view: View, tier: Tier, name: QueueName,
             local: LocalQueue, now: int) -> Outcome:
    found = Outcome(local.topic, local.queue_id)
    flat = flat_queue(tier.reader, name)
    done = completing(flat, tier.metadata, same_message(local))
    tiered = bool(flat.consume_queue.segments)
    current = flat.commit_offset + done.units if tiered else request.start.offset(view, local)
    found.completed = done.units
    verdict = (REFUSED, done.fault) if done.fault else judged(local, current) if tiered else None
    if verdict is not None and verdict[0] == REFUSED and request.restart_queue:
        verdict, current = None, request.start.offset(view, local)
    found.start = found.end = current
    if verdict is not None:
        found.status, found.reason = verdict
        return found
    raw = local.raw(current) if request.only_due else None
    if raw is not None and not is_due(settings, message.decode(raw).store_timestamp,
                                      local.end - current, now):
        found.status = WAITING
        return found
    local.seek(current)
    while (physical := local.next_physical()) is not None:
        first, rows = local.take(physical + (1 << 30))
        found.messages += len(rows)
        found.bytes += int(rows["size"].astype(np.int64).sum())
        found.end = first + len(rows)
        found.status = UPLOADED
    if local.fault is not None:
        found.status = STOPPED
        found.reason = f"queue offset {local.fault.queue_offset}: {local.fault.reason}"
    return found
