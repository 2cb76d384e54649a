"""``--strategy broker``: the plan which leaves what a broker's own start would leave.

`rmqctl.checks.preflight.preflight` says what a broker does; this turns that very prediction into
steps. What results is a store that the broker has loaded, dispatched to the end and stopped
cleanly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rmqctl.checks.preflight.preflight import Progress, preflight
from rmqctl.checks.preflight.types import Prediction, rules_of
from rmqctl.checks.verify.common import plural
from rmqctl.engine.config.settings import Settings
from rmqctl.errors import StoreIOError
from rmqctl.formats.local import checkpoint as page
from rmqctl.formats.local.checkpoint import CHECKPOINT
from rmqctl.repair.broker.derived import Derived
from rmqctl.repair.broker_config import configured
from rmqctl.repair.plan import Create, Lost, MoveAside, Plan, Replace, Step
from rmqctl.repair.scratch import Scratch
from rmqctl.store.store import Store

COMMAND = "recover"
_KNOWN_BY = "record"


def plan_broker(store: Store, version: str | None, scratch: Scratch,
                wall_clock: Callable[[], int], *, given: Mapping[str, Any] | None = None,
                commitlog_dirs: Iterable[str] = (), prediction: Prediction | None = None,
                progress: Progress | None = None) -> Plan:
    """The plan for an opened store; derived files are made in ``scratch``.

    ``version`` None: that of the store's generation. ``given``: values by the names of
    `Settings`. ``prediction``: what `preflight` said of this store and version, if it was asked.
    Where a broker does not start, the plan is empty and its notes say why. UsageError,
    StoreIOError, RefusedError as `preflight` and `configured` raise them.
    """
    rules = rules_of(version, store.generation)
    made = prediction or preflight(store, rules.version, progress=progress)
    actions = tuple(made.actions)
    notes = list(made.notes)
    if not made.starts:
        said = "; ".join(made.refusals)
        return Plan(COMMAND, store.root, actions,
                    notes=(*notes, f"a {rules.version} broker does not start on it: {said}"))
    known = configured(store.root, {**(given or {}), "version": rules.version}, commitlog_dirs)
    notes += known.notes
    log = [MoveAside(one) for one in made.doomed if not _derived(one)]
    queues, index = Derived(store, made, rules, known.settings, known.batch_topics.__contains__,
                            scratch, wall_clock).steps()
    steps: list[Step] = [*log, *queues, *index, *_checkpoint(store, made, known.settings)]
    if store.has_abort:
        steps.append(MoveAside("abort"))
    more = made.messages_lost - len(made.lost_first)
    if more > 0:
        notes.append(f"{plural(more, 'more message is', 'more messages are')} lost than listed")
    return Plan(COMMAND, store.root, actions, tuple(steps), _lost(made), made.table, tuple(notes))


def _derived(target: str) -> bool:
    return target.split(os.sep, 1)[0] in {"consumequeue", "consumequeue_ext",
                                          "batchconsumequeue", "index"}


def _lost(made: Prediction) -> tuple[Lost, ...]:
    return tuple(Lost(one.topic, one.queue_id, one.queue_offset, one.physical_offset, one.size,
                      one.store_timestamp, one.store_timestamp, by=_KNOWN_BY)
                 for one in made.lost_first)


def _checkpoint(store: Store, made: Prediction, settings: Settings) -> list[Step]:
    """The checkpoint's page, if it changes; bytes that the version does not know stay."""
    assert made.checkpoint is not None
    size = page.CLASSIC_SIZE if settings.profile.generation < 5 else CHECKPOINT.size
    there = os.path.lexists(store.path("checkpoint"))
    try:
        old = store.read_small("checkpoint", most=1 << 20) if there else b""
    except StoreIOError:
        old = b""
    whole = old.ljust(page.PAGE_SIZE, b"\0")
    new = page.build(made.checkpoint)[:size] + whole[size:]
    if not there:
        return [Create("checkpoint", new)]
    return [] if new == old else [Replace("checkpoint", new)]
