"""Actions of a broker at startup, ordered by importance to the user (log, queues, index,
checkpoint), and differences between versions.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from rmqctl import vfs
from rmqctl.actions import Action
from rmqctl.broker.consume_queue import LAST_FILES, PLAIN, QueueState
from rmqctl.broker.recovery import RecoveryWalk
from rmqctl.broker.versions import BrokerVersion
from rmqctl.checks.preflight.effects import IndexEffect, Noted, QueueChange
from rmqctl.checks.preflight.index import LoadedIndex
from rmqctl.checks.preflight.load import DELETE, Load, relative
from rmqctl.checks.preflight.queues import RecoveredQueues
from rmqctl.checks.preflight.types import Prediction
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.checkpoint import CLASSIC_FIELDS, CheckpointRecord, differing
from rmqctl.phrases import Joined, Phrase, counted
from rmqctl.scan.frames import Array
from rmqctl.store.broker_conf import BrokerConf
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.end import used_size
from rmqctl.store.store import Store


def fill(predicted: Prediction, store: Store, log: CommitLog, version: BrokerVersion, loading: Load,
         queues: RecoveredQueues, index: LoadedIndex, walk: RecoveryWalk | None,
         saved: CheckpointRecord, gone: Callable[[Array], Array]) -> None:
    """Add all actions and their figures to the prediction.

    ``gone``: returns for each physical offset whether its message is lost.
    """
    emptied(predicted, store, loading)
    if not log.files:
        _destroyed(predicted, store, queues)
    else:
        cut_log(predicted, store, log)
        for state in queues.states:
            _queue(predicted, store, state)
            if state.kind == PLAIN:
                predicted.queues.table[f"{state.key[0]}-{state.key[1]}"] = state.end
        if queues.in_rocksdb:
            predicted.queues.noted = Noted(queues.positions(), queues.max_physic)
    predicted.index = _index(predicted, store, index, gone)
    predicted.log.leaves |= bool(predicted.queues.cut) or (
        index.end_phy > (predicted.log.truncate_to or 0))
    _checkpoint(predicted, store, log, version, queues, index, walk, saved)
    if store.has_abort and predicted.starts:
        abort(predicted)


def emptied(predicted: Prediction, store: Store, loading: Load) -> None:
    """Add the deletion of empty last files."""
    for file in loading.emptied:
        predicted.broker.doomed.append(target := relative(store, file.path))
        predicted.actions.append(Action(
            DELETE, target, 0, None, Phrase("empty last file"), "byte"))


def abort(predicted: Prediction) -> None:
    """Add the deletion of the abort file."""
    predicted.actions.append(Action(
        "remove", "abort", None, None,
        Phrase("the last shutdown was unclean; a clean shutdown deletes it")))


def cut_log(predicted: Prediction, store: Store, log: CommitLog) -> None:
    """Add the truncation of everything beyond the end of the log after the startup."""
    end = predicted.log.truncate_to
    assert end is not None
    file = log.file_of(end)
    if file is not None and file.base < end and not log.is_blank_at(end):
        used = file.base + used_size(log.source(log.files.index(file)))
        predicted.log.leaves = used > end
        if used > end and not predicted.log.cut_off:
            predicted.actions.append(Action("truncate", relative(store, file.path), used, end,
                                          predicted.log.stop_reason))
    for number, later_file in enumerate(log.files):
        if later_file.base <= end:
            continue
        predicted.broker.doomed.append(target := relative(store, later_file.path))
        used = used_size(log.source(number))
        predicted.actions.append(Action(
            DELETE, target, used, None,
            Phrase("created ahead and never used") if not used else
            Phrase("beyond the end of the log at {end}: {why}", end=end,
                   why=predicted.log.stop_reason), "byte"))


def _destroyed(predicted: Prediction, store: Store, queues: RecoveredQueues) -> None:
    for state in queues.states:
        if state.queue is None or not state.queue.exists:
            continue
        predicted.queues.lost += state.disk_end
        predicted.broker.doomed.append(state.target)
        further = os.path.join("consumequeue_ext", *state.target.split("/")[1:])
        if state.kind == PLAIN and vfs.isdir(store.path(further)):
            predicted.broker.doomed.append(further)
        predicted.actions.append(Action("destroy", state.target, state.disk_end, None,
                                      Phrase("the log has no files")))


def _queue(predicted: Prediction, store: Store, state: QueueState) -> None:
    # Deleted files, and whether the queue changes at all.
    doomed = [relative(store, file.path) for file in state.doomed]
    predicted.broker.doomed += doomed
    if state.touched:
        predicted.queues.changes.append(QueueChange(state.kind, *state.key, state.added,
                                            _looked_at(state)))
    # Truncated or added entries.
    left = state.end - state.added if state.disk_end else 0
    if not state.added and (state.end != state.disk_end or doomed):
        cut = max(0, state.disk_end - state.end)
        predicted.queues.cut += cut
        why = [Phrase("the last entries point beyond the end of the log") if cut else
               Phrase("a broker takes zeros at the start of a file for an entry")
               if state.end > state.disk_end else Phrase("invalid bytes after the last entries")]
        if doomed:
            why.append(Phrase("files deleted: {some}", some=len(doomed)))
        predicted.actions.append(Action("cut", state.target, state.disk_end, state.end,
                                        Joined("; ", why)))
    if state.added:
        predicted.queues.added += state.added
        parts = [Phrase("{rows} for messages from physical offset {offset} on",
                        rows=counted(state.added, "entry", "entries"), offset=state.first_added)]
        if doomed:
            parts.append(Phrase("files deleted before: {some}", some=len(doomed)))
        if state.blanked:
            parts.append(Phrase("{rows} before them not recreated",
                                rows=counted(state.blanked, "entry", "entries")))
        if state.misplaced:
            parts.append(Phrase("{rows} of these at a wrong queue offset",
                                rows=counted(state.misplaced, "entry", "entries")))
        predicted.actions.append(Action("add rows", state.target, left, state.end,
                                        Joined("; ", parts)))


def _looked_at(state: QueueState) -> tuple[str, ...]:
    """Return the names of those remaining files from which recovery determines the end of the
    queue.
    """
    files = [] if state.queue is None else state.queue.files
    remaining = [file for file in files[-LAST_FILES:] if file not in state.doomed]
    remaining = remaining or [file for file in files if file not in state.doomed][-1:]
    return tuple(file.name for file in remaining)


def discarded(predicted: Prediction, store: Store, index: LoadedIndex) -> int:
    """Add the deletion of index files that the broker does not trust; return their number."""
    for loaded in index.discarded:
        predicted.broker.doomed.append(target := relative(store, loaded.file.path))
        entries = loaded.header.entries if loaded.header else 0
        predicted.actions.append(Action(
            DELETE, target, entries, None,
            Phrase("it ends after the checkpoint's index time; after an unclean shutdown brokers "
                   "do not trust it"), "entry"))
    return len(index.discarded)


def _index(predicted: Prediction, store: Store, index: LoadedIndex,
           gone: Callable[[Array], Array]) -> IndexEffect:
    # The files that go, and the entries that come back.
    effect = IndexEffect(
        discarded(predicted, store, index), index.entries, index.duplicates,
        index.lost(store, predicted.log.truncate_to or 0, gone), len(index.uncounted),
        index.trusted_end)
    # Notes on what does not.
    if effect.lost:
        predicted.notes.append(
            Phrase("{count:,} index entry is not recreated: the affected messages are no longer "
                   "found by key",
                   "{count:,} index entries are not recreated: the affected messages are no longer "
                   "found by key", count=effect.lost))
    for loaded in index.uncounted:
        predicted.notes.append(Phrase(
            "{file} is unreadable: the number of its entries that are not recreated is unknown",
            file=relative(store, loaded.file.path)))
    if index.entries or index.created:
        parts = [Phrase("{keys} of messages that are dispatched again",
                        keys=counted(index.entries, "key"))]
        if index.duplicates:
            parts.append(Phrase("{count:,} already in the index", "{count:,} already in the index",
                                count=index.duplicates))
        predicted.actions.append(Action(
            "add entries", "index", len(index.kept), len(index.kept) + index.created,
            Joined("; ", parts), "file"))
    return effect


def _checkpoint(predicted: Prediction, store: Store, log: CommitLog, version: BrokerVersion,
                queues: RecoveredQueues, index: LoadedIndex, walk: RecoveryWalk | None,
                saved: CheckpointRecord) -> None:
    after = saved._replace(
        logics_msg_timestamp=queues.logics_timestamp or saved.logics_msg_timestamp,
        index_msg_timestamp=index.rolled_at or saved.index_msg_timestamp)
    if version.keeps_confirm and walk is not None:
        none = log.end if predicted.broker.recovery == "normal" else walk.first
        confirm = none if walk.last_valid is None else walk.last_valid
        if store.layout.controller:  # the end of the confirmed log, not a start (dledger.md §8)
            confirm = predicted.log.truncate_to or 0
        after = after._replace(confirm_phy_offset=confirm)
    predicted.broker.checkpoint = after
    if store.checkpoint is None or after != saved:
        predicted.actions.append(Action(
            "write", "checkpoint",
            None if store.checkpoint is None else differing(store.checkpoint, after),
            differing(after, saved),
            Phrase(
                "in controller mode it records the end of the confirmed "
                "log") if store.layout.controller
            and after[:CLASSIC_FIELDS] == saved[:CLASSIC_FIELDS]
            else _checkpoint_reason(saved, after)))


def _checkpoint_reason(saved: CheckpointRecord, after: CheckpointRecord) -> str:
    if after == saved:
        return Phrase("it is missing")
    if after[:CLASSIC_FIELDS] == saved[:CLASSIC_FIELDS]:
        return Phrase("recovery records where the last message starts")
    return Phrase("updated for the messages dispatched again")


def differences(predicted: Prediction, loading: Load, conf: BrokerConf) -> list[str]:
    """Return how other versions would treat this store (spec: recovery.md, versions.md).

    One sentence for each version difference that affects this store; empty if all versions agree.
    """
    out: list[str] = []
    # Causes that keep one version from starting, but not another.
    if loading.wrong_size:
        out.append(Phrase(
            "a file of the wrong size: brokers up to 4.4.0 and 4.9.2 start without it and the "
            "files after it; brokers from 4.5.1 to 4.9.1 and from 4.9.3 on do not start"))
    if loading.folders:
        out.append(Phrase(
            "folders among the files: skipped from 5.1.0 on; older brokers do not start"))
    if loading.emptied:
        out.append(Phrase(
            "an empty last file: deleted from 5.1.3 on; older brokers do not start"))
    if any("correctMinOffset" in reason for reason in predicted.broker.refusals):
        out.append(Phrase(
            "a queue whose last file has no entry: brokers from 5.0.0 on do not start; older "
            "brokers continue"))
    if not predicted.starts:
        return out
    # Differences in the queues and the end of the log.
    clean = predicted.broker.recovery == "normal"
    lagging = predicted.queues.added > 0
    if predicted.queues.lost:
        out.append(Phrase(
            "with an empty log, brokers from 4.5.1 on delete the consume queues after a clean "
            "shutdown; older brokers only after an unclean one"))
    if clean and lagging:
        out.append(Phrase(
            "after a clean shutdown, 4.5.1 to 4.9.8 and versions from 5.3.2 on recreate missing "
            "entries; 5.0.0 to 5.3.1 do not"))
    if clean and (predicted.log.cut.count or predicted.queues.cut):
        out.append(Phrase(
            "after a clean shutdown, brokers up to 5.3.1 check the log from the third-last file "
            "on, 5.3.2 and 5.3.3 from the end of the consume queues on: only the brokers that "
            "begin earlier detect damage between these positions"))
    if not clean and "do not add up" in predicted.log.stop_reason:
        out.append(Phrase(
            "after an unclean shutdown, brokers up to 4.3.1 accept a record whose field lengths "
            "do not match its total size"))
    if "v2 record" in predicted.log.stop_reason:
        out.append(Phrase(
            "brokers before 5.1.0 do not know v2 records and truncate the log at the first one"))
    if "end-of-file record" in predicted.log.stop_reason and "longer" in predicted.log.stop_reason:
        out.append(Phrase(
            "before 5.3.2 such a record ends its file, and brokers continue with the next file"))
    if predicted.index.discarded and not conf.path:
        out.append(Phrase(
            "with messageIndexSafe=true recovery starts earlier and recreates more keys (all "
            "versions; off by default)"))
    if conf.values.get("multi_dispatch") is None and any(
            action.action == "add rows" and action.target.startswith(
                f"consumequeue/{props.LMQ_PREFIX}") for action in predicted.actions):
        out.append(Phrase(
            "with enableMultiDispatch=false no entries are added to light queues (all versions; "
            "off by default)"))
    if not clean and any(action.action == "add rows" and action.target.startswith(
            f"consumequeue/{props.SCHEDULE_TOPIC}/") for action in predicted.actions):
        out.append(Phrase(
            "in 4.9.2 to 4.9.8 recovery creates entries of delayed messages without a delivery "
            "time, so they are delivered at once; all other versions behave correctly"))
    return out
