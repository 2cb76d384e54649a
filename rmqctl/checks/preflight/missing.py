"""Number of messages that a store is known to have lost, for commands with their own log scan."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmqctl.broker.recovery import default_release, loaded_log
from rmqctl.broker.versions import version_of
from rmqctl.checks.preflight.already import AlreadyLost
from rmqctl.checks.preflight.effects import BrokerEffect
from rmqctl.checks.preflight.log_only import CONFIG, LOG, QUEUES
from rmqctl.checks.preflight.queues import RecoveredQueues
from rmqctl.checks.preflight.types import Prediction
from rmqctl.errors import StoreIOError, UsageError
from rmqctl.scan.frames import Array
from rmqctl.store.log.end import last_dispatched
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqctl.checks.consumers import QueueLosses
    from rmqctl.checks.verify.context import RangeResult


class MissingMessages(NamedTuple):
    """Counts of the messages that a store has lost.

    ``known_lost``: messages that entries, index or consumer offsets show but the log lacks (None:
    unknown).
    ``in_repairs``: messages that repairs dropped.
    ``discarded``: undecided records that repairs dropped.
    ``queues``: the losses of each queue (None: unknown).
    ``unplaced``: number of messages in ``known_lost`` whose queue is unknown.
    """

    known_lost: int | None = None
    in_repairs: int = 0
    discarded: int = 0
    queues: Mapping[tuple[str, int], QueueLosses] | None = None
    unplaced: int = 0

    @property
    def already(self) -> int:
        return (self.known_lost or 0) + self.in_repairs

    @property
    def counted(self) -> int | None:
        """Return the number of lost messages; None if it cannot be determined."""
        return None if self.known_lost is None else self.already

    @property
    def total(self) -> int:
        return self.already + self.discarded


def missing(store: Store, *, damaged: bool, seen: RangeResult | None = None) -> MissingMessages:
    """Return the numbers of messages that a store has lost, as `preflight` counts them.

    ``damaged``: whether the caller has found damage in the log.
    ``seen``: results of a complete verification.

    The log is not read again if ``seen`` is sufficient, or if the log is undamaged, none of its
    files is missing, and no evidence shows messages after the end of the log.
    """
    if not store.layout.reads(LOG):
        return MissingMessages()
    noted = store.repair_losses
    unjudged = MissingMessages(None, noted.messages, noted.undecided)
    if not all(map(store.layout.reads, (QUEUES, CONFIG))):
        return unjudged
    try:
        if not (damaged or any(store.log.gaps()) or _after_the_end(store, seen)):
            return unjudged._replace(known_lost=0)
        count = None
        if seen is not None:
            from rmqctl.checks.preflight.from_pass import known_from

            count = known_from(store, seen)
        if count is None:
            from rmqctl.checks.preflight.preflight import preflight

            predicted = preflight(store, full=True)
            lost = predicted.account
            return unjudged._replace(
                known_lost=lost.known_lost, queues=predicted.queues.losses,
                unplaced=lost.known_lost - sum(lost.already_by_topic.values()))
        return unjudged._replace(known_lost=count)
    except (StoreIOError, UsageError):
        return unjudged


class Beyond(NamedTuple):
    """Lost messages after a position in the log.

    ``messages``: number of lost messages.
    ``places``: positions of the lost messages to which entries or the index point.
    """

    messages: int = 0
    places: Array = np.zeros(0, np.int64)


def known_beyond(store: Store, end: int) -> Beyond:
    """Return the lost messages at or after the physical offset ``end``. They are known from consume
    queue entries, index entries and committed offsets.

    A repair that truncates the log at ``end`` removes this evidence. Raises: StoreIOError,
    UsageError.
    """
    looked_from = _looked_from(store, end)[1]
    places = looked_from[looked_from >= end]
    predicted = _predicted(store)
    lost = predicted.account
    return Beyond(min(len(places) + lost.by_offsets + predicted.log.gone.at_end, lost.known_lost),
                  places)


def known_by_offsets(store: Store) -> int:
    """Return the number of lost messages that only committed offsets show; 0 if unknown.

    Changing these offsets hides the loss.
    """
    try:
        return _predicted(store).account.by_offsets
    except (StoreIOError, UsageError):
        return 0


def known_by_checkpoint(store: Store) -> int:
    """Return the number of lost messages that only the checkpoint shows; 0 if it cannot be
    determined.

    A new checkpoint hides the loss.
    """
    try:
        return _predicted(store).log.gone.at_end
    except (StoreIOError, UsageError):
        return 0


def _predicted(store: Store) -> Prediction:
    """Return a prediction that includes earlier losses. The whole log is read if a start would
    truncate messages.
    Raises: StoreIOError, UsageError.
    """
    from rmqctl.checks.preflight.preflight import preflight

    predicted = preflight(store, full=False)
    return preflight(store, full=True) if predicted.log.cut.count else predicted


def _after_the_end(store: Store, seen: RangeResult | None) -> bool:
    """Return whether entries, index or consumer offsets may show messages after the end of the log.
    Entries that a pass over an undamaged log (``seen``) has matched are not read again.

    If this is false, `preflight` counts no lost messages in an undamaged log.
    """
    start = last_dispatched(store)
    return True if start is None else _looked_from(store, start, seen)[0] > 0


def _looked_from(store: Store, start: int, seen: RangeResult | None = None) -> tuple[int, Array]:
    """Examine the log from physical offset ``start`` on. Return the number of lost messages, and
    the positions of the lost messages that entries or the index show.

    ``seen``: results of a pass over the whole log, in which no message was damaged.
    """
    version = version_of(default_release(store))
    holder = store.lock
    predicted = Prediction(version.name, BrokerEffect(
        "abnormal" if store.has_abort else "normal"))
    with closing(loaded_log(store, version)) as log:
        queues = RecoveredQueues(store, version)
        already = AlreadyLost(store, queues)
        if seen is not None:
            from rmqctl.checks.verify.queue.rows import uncovered
        for key, tally in seen.queues.items() if seen is not None else ():
            queue = store.queues.by_key.get(key)
            if queue is not None and queue.exists and not any(
                    uncovered(tally, queue.first_index, queue.disk_end)):
                already.know_sound(queues.number(key))
        for batch in log.walk(start, whole=True):
            already.look(batch)
        already.judge(predicted, log, {}, holder.held and holder.pid != os.getpid(), start)
    return predicted.log.gone.count, already.places
