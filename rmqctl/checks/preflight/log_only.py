"""Prediction for a store whose consume queues have an unsupported format.

spec: rocksdb.md §4, recovery.md §2-§4. Only the log, the small files and the file names are used.

The file at which recovery begins depends on the consume queues. The end of the log is therefore
determined for every file at which recovery may begin. If these ends are equal, the end is known. If
not, only messages beyond the last of these ends are certainly lost.
"""

from __future__ import annotations

from contextlib import closing
from itertools import groupby
from typing import NamedTuple

from rmqctl.broker.recovery import RecoveryWalk, checkpoint, judge, loaded_log, start_file
from rmqctl.broker.versions import BrokerVersion
from rmqctl.checks.preflight import actions
from rmqctl.checks.preflight.index import LoadedIndex
from rmqctl.checks.preflight.load import Load, relative
from rmqctl.checks.preflight.lost import MessageCounts, TailMessages, intact
from rmqctl.checks.preflight.types import Prediction
from rmqctl.checks.verify.common import plural
from rmqctl.scan.frames import DAMAGED
from rmqctl.scan.headers import undecodable
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.store import Store

LOG = "commitlog"
QUEUES = "consumequeue"
CONFIG = "config"


class End(NamedTuple):
    """The end of the log, if recovery begins in one of the files ``first`` to ``last``.

    ``first``, ``last``: indexes of the files.
    ``offset``: physical offset of the end.
    ``why``: the reason for this end.
    """

    first: int
    last: int
    offset: int
    why: str


def judge_log(store: Store, version: BrokerVersion, predicted: Prediction, loading: Load) -> None:
    """Add to a prediction the results that do not depend on the consume queues.
    Raises: StoreIOError.
    """
    reason = store.layout.unread[QUEUES]
    predicted.not_judged = {
        QUEUES: reason,
        "index": "the keys that are indexed again depend on where recovery begins, which only the "
        "consume queues show"}
    if not store.layout.reads(CONFIG):
        predicted.not_judged[CONFIG] = store.layout.unread[CONFIG]
    predicted.queues.unreachable = None
    with closing(loaded_log(store, version)) as log:
        damage = _look(predicted, log)
        if damage is not None:
            predicted.notes.append(damage)
        if not predicted.starts:
            return
        if not log.files:
            predicted.log.truncate_to, predicted.log.stop_reason = 0, "the log has no files"
            return
        _recover(store, version, predicted, log)
        _actions(store, predicted, log, loading)


def _look(predicted: Prediction, log: CommitLog) -> str | None:
    """Count the intact messages of the whole log, and the messages that clients cannot decode.
    Return a note on damage; None if the log is not damaged.
    """
    count, places, first = MessageCounts(), 0, None
    for batch in log.walk():
        bad = [span.offset for span in batch.spans if span.kind == DAMAGED]
        predicted.log.undecided += sum(len(span.doubtful) for span in batch.spans)
        if len(batch):
            good = intact(batch)
            count.add(batch)
            predicted.log.undecodable += int((good & undecodable(batch)).sum())
            bad += batch.offset[~good].tolist()
        places += len(bad)
        if bad and first is None:
            first = min(bad)
    count.fill(predicted)
    return None if first is None else (
        f"{plural(places, 'place')} in the log {'is' if places == 1 else 'are'} damaged, the first "
        f"at {first}")


def _recover(store: Store, version: BrokerVersion, predicted: Prediction, log: CommitLog) -> None:
    """Determine the end of the log after recovery, and the messages that are lost beyond it."""
    # The files in which a recovery may begin; after a clean end older brokers ignore the queues.
    if not store.has_abort and not version.normal_by_queues:
        number, predicted.log.start_reason = start_file(store, log, version, -1)
        predicted.log.start_file = relative(store, log.files[number].path)
        starts = [number]
    else:
        starts = [number for number in range(len(log.files)) if not number
                  or judge(log.source(number), 0, version, check_crc=False)[0] is not None]
    # The end of the log for each of them.
    ends = possible_ends(log, starts, version)
    costs = [TailMessages(log, end.offset) for end in ends]
    predicted.log.cut = costs[-1].as_cut()  # the least that is lost
    if len(ends) == 1:
        predicted.log.truncate_to, predicted.log.stop_reason = ends[0].offset, ends[0].why
    else:
        predicted.notes.append("where recovery begins, and so where the log ends, depends on files "
                               "that rmqctl does not read: " + "; ".join(
                                   _case(store, log, end, cost)
                                   for end, cost in zip(ends, costs, strict=True)))
    if any(cost.total for cost in costs):
        predicted.notes.append("an earlier start may already have truncated the intact messages "
                               "beyond the end of the log; only the consume queues show it")


def possible_ends(log: CommitLog, starts: list[int], version: BrokerVersion) -> list[End]:
    """Return the possible ends of the log, in log order. Raises: StoreIOError.

    ``starts``: the indexes of the files in which recovery may begin, ascending. Every byte is read
    at most once.
    """
    ends: list[End] = []
    while starts:
        walk = RecoveryWalk(log, starts[0], version)
        for _ in walk:
            pass
        reached = [number for number in starts
                   if number == starts[0] or log.files[number].base <= walk.end]
        ends.append(End(reached[0], reached[-1], walk.end, walk.stop))
        starts = starts[len(reached):]
    return [End(same[0].first, same[-1].last, same[0].offset, same[0].why)
            for _, group in groupby(ends, key=lambda end: end.offset) if (same := list(group))]


def _case(store: Store, log: CommitLog, end: End, cost: TailMessages) -> str:
    names = [relative(store, log.files[number].path) for number in (end.first, end.last)]
    where = names[0] if names[0] == names[1] else f"{names[0]} to {names[1]}"
    return (f"if it begins in {where}, the log ends at {end.offset} ({end.why}), which truncates "
            f"{plural(cost.total, 'intact message')}")


def _actions(store: Store, predicted: Prediction, log: CommitLog, loading: Load) -> None:
    """Add those actions of the start that do not depend on the consume queues."""
    saved = checkpoint(store)
    actions.emptied(predicted, store, loading)
    if predicted.log.truncate_to is not None:
        actions.cut_log(predicted, store, log)
    predicted.index.discarded = actions.discarded(
        predicted, store, LoadedIndex(store, not store.has_abort, saved.index_msg_timestamp))
    predicted.notes.append(
        "the checkpoint is missing: recovery creates it" if store.checkpoint is None else
        "what recovery writes to the checkpoint depends on the consume queues")
    if store.has_abort:
        actions.abort(predicted)
