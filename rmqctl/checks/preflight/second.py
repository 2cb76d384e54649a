"""Prediction of the second startup: after a clean shutdown, without new messages.

A recovery reads only the last files of the log. After an unclean shutdown, a recovery may begin at
a later file than after a clean shutdown. Damage before this file is then skipped, and the next
start truncates the log at the damage (spec: recovery.md §3, §4).
"""

from __future__ import annotations

from contextlib import closing

from rmqctl.broker.recovery import RecoveryWalk, start_file
from rmqctl.broker.versions import BrokerVersion
from rmqctl.checks.preflight.effects import SecondStart
from rmqctl.checks.preflight.load import relative
from rmqctl.checks.preflight.lost import intact_by_topic
from rmqctl.checks.preflight.types import Prediction
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.store import Store


def second_start(store: Store, version: BrokerVersion, log: CommitLog, first: Prediction,
                 begun: int, reach: int) -> SecondStart | None:
    """Return the prediction of the second start; None if that start keeps all messages.

    ``first``: the prediction of the first start.
    ``begun``: physical offset at which recovery of the first start begins.
    ``reach``: physical offset that the consume queues reach after the first start.
    Raises: StoreIOError.
    """
    end = first.log.truncate_to or 0
    gone = set(first.broker.doomed)
    left = [file for file in log.files
            if file.base <= end and relative(store, file.path) not in gone]
    if not left:
        return None
    with closing(CommitLog(left, store.log.file_size)) as kept:
        number, why = start_file(store, kept, version, reach, clean=True)
        if left[number].base >= begun:
            return None  # it reads no more than the first start
        walk = RecoveryWalk(kept, number, version)
        for _ in walk:
            pass
        if walk.end >= end:
            return None
        lost = intact_by_topic(kept, walk.end, end)
        if not lost:
            return None
        return SecondStart(relative(store, left[number].path), why, walk.end, walk.stop,
                           sum(lost.values()), lost)

