"""The single things a broker does when it starts, in the order in which they matter to a person:
the log, the queues, the index, the checkpoint; and what other versions would do differently.
"""

from __future__ import annotations

import os

from rmqctl.actions import Action
from rmqctl.broker.consume_queue import LAST_FILES, PLAIN, QueueState
from rmqctl.broker.recovery import RecoveryWalk
from rmqctl.broker.versions import BrokerVersion
from rmqctl.checks.preflight.index import Index
from rmqctl.checks.preflight.load import DELETE, Load, relative
from rmqctl.checks.preflight.queues import Queues
from rmqctl.checks.preflight.types import Prediction, QueueChange
from rmqctl.checks.verify.common import plural
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.checkpoint import CLASSIC_FIELDS, CheckpointRecord, differing
from rmqctl.store.broker_conf import BrokerConf
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.end import used_size
from rmqctl.store.store import Store


def fill(made: Prediction, store: Store, log: CommitLog, version: BrokerVersion, found: Load,
         queues: Queues, index: Index, walk: RecoveryWalk | None,
         saved: CheckpointRecord) -> None:
    """Adds all actions, and the figures that go with them, to the prediction."""
    add = made.actions.append
    for one in found.emptied:
        made.doomed.append(target := relative(store, one.path))
        add(Action(DELETE, target, 0, None, "a last file without a byte", "byte"))
    if not log.files:
        _destroyed(made, store, queues)
    else:
        _log(made, store, log)
        for state in queues.states:
            _queue(made, store, state)
            if state.kind == PLAIN:
                made.table[f"{state.key[0]}-{state.key[1]}"] = state.end
    _index(made, store, index)
    made.leaves |= bool(made.rows_cut) or index.end_phy > (made.truncate_to or 0)
    _checkpoint(made, store, log, version, queues, index, walk, saved)
    if store.has_abort and made.starts:
        add(Action("remove", "abort", None, None,
                   "the last end was unclean; it goes when the broker has stopped cleanly"))


def _log(made: Prediction, store: Store, log: CommitLog) -> None:
    end = made.truncate_to
    assert end is not None
    file = log.file_of(end)
    if file is not None and file.base < end and not log.is_blank_at(end):
        used = file.base + used_size(log.source(log.files.index(file)))
        made.leaves = used > end
        if used > end and not made.cut_off:
            made.actions.append(Action("truncate", relative(store, file.path), used, end,
                                          made.stop_reason))
    behind = [one for one in log.files if one.base > end]
    for one in behind:
        made.doomed.append(target := relative(store, one.path))
        used = used_size(log.source(log.files.index(one)))
        made.actions.append(Action(
            DELETE, target, used, None,
            "it was created ahead and never used" if not used else
            f"it lies beyond the end of the log at {end}: {made.stop_reason}", "byte"))


def _destroyed(made: Prediction, store: Store, queues: Queues) -> None:
    for state in queues.states:
        if state.found is None or not state.found.files:
            continue
        made.rows_lost += state.found_end
        made.doomed.append(state.target)
        further = os.path.join("consumequeue_ext", *state.target.split("/")[1:])
        if state.kind == PLAIN and os.path.isdir(store.path(further)):
            made.doomed.append(further)
        made.actions.append(Action("destroy", state.target, state.found_end, None,
                                      "the log has no file"))


def _queue(made: Prediction, store: Store, state: QueueState) -> None:
    doomed = [relative(store, one.path) for one in state.doomed]
    made.doomed += doomed
    if state.touched:
        made.queues.append(QueueChange(state.kind, *state.key, state.added,
                                       _looked_at(state)))
    kept = state.end - state.added if state.found_end else 0
    if not state.added and (state.end != state.found_end or doomed):
        cut = max(0, state.found_end - state.end)
        made.rows_cut += cut
        gone = f"; files deleted: {len(doomed)}" if doomed else ""
        why = ("the last rows lead beyond the end of the log" if cut
               else "what follows them is no row")
        made.actions.append(Action("cut", state.target, state.found_end, state.end,
                                      why + gone))
    if state.added:
        made.rows_added += state.added
        gone = f"; files deleted before: {len(doomed)}" if doomed else ""
        reason = (f"{plural(state.added, 'row')} for messages from physical offset "
                  f"{state.first_added} on{gone}")
        if state.blanked:
            reason += f"; {plural(state.blanked, 'row')} before them not made again"
        if state.misplaced:
            reason += f"; {plural(state.misplaced, 'row')} of these at a wrong queue offset"
        made.actions.append(Action("add rows", state.target, kept, state.end, reason))


def _looked_at(state: QueueState) -> tuple[str, ...]:
    """The names of the files that stay and tell where the queue ends: recovery sees no others."""
    files = [] if state.found is None else state.found.files
    kept = [one for one in files[-LAST_FILES:] if one not in state.doomed]
    kept = kept or [one for one in files if one not in state.doomed][-1:]
    return tuple(one.name for one in kept)


def _index(made: Prediction, store: Store, index: Index) -> None:
    for one in index.discarded:
        made.doomed.append(target := relative(store, one.file.path))
        entries = one.header.entries if one.header else 0
        made.actions.append(Action(
            DELETE, target, entries, None,
            "it ends after the checkpoint's index time, which is not trusted after an unclean "
            "end", "entry"))
    made.index_discarded = len(index.discarded)
    made.index_lost = max(0, index.discarded_before(store, made.truncate_to or 0)
                          - index.entries + index.duplicates)
    made.index_entries, made.index_duplicates = index.entries, index.duplicates
    if made.index_lost:
        made.notes.append(f"{plural(made.index_lost, 'index entry does', 'index entries do')} not "
                          "come back: the messages concerned are no longer found by key")
    if index.entries or index.created:
        double = (f"; {plural(index.duplicates, 'is', 'are')} there already" if index.duplicates
                  else "")
        made.actions.append(Action(
            "add entries", "index", len(index.kept), len(index.kept) + index.created,
            f"{plural(index.entries, 'key')} of messages that are dispatched again{double}",
            "file"))


def _checkpoint(made: Prediction, store: Store, log: CommitLog, version: BrokerVersion,
                queues: Queues, index: Index, walk: RecoveryWalk | None,
                saved: CheckpointRecord) -> None:
    after = saved._replace(
        logics_msg_timestamp=queues.logics_timestamp or saved.logics_msg_timestamp,
        index_msg_timestamp=index.rolled_at or saved.index_msg_timestamp)
    if version.keeps_confirm and walk is not None:
        none = log.end if made.recovery == "normal" else walk.first
        confirm = none if walk.last_valid is None else walk.last_valid
        if store.layout.controller:  # the end of what is confirmed, not a start (dledger.md §8)
            confirm = made.truncate_to or 0
        after = after._replace(confirm_phy_offset=confirm)
    made.checkpoint = after
    if store.checkpoint is None or after != saved:
        made.actions.append(Action(
            "write", "checkpoint",
            None if store.checkpoint is None else differing(store.checkpoint, after),
            differing(after, saved),
            "in controller mode it is where the confirmed log ends" if store.layout.controller
            and after[:CLASSIC_FIELDS] == saved[:CLASSIC_FIELDS]
            else _checkpoint_reason(saved, after)))


def _checkpoint_reason(saved: CheckpointRecord, after: CheckpointRecord) -> str:
    if after == saved:
        return "there is none"
    if after[:CLASSIC_FIELDS] == saved[:CLASSIC_FIELDS]:
        return "recovery notes where the last message starts"
    return "it follows what was dispatched again"


def differences(made: Prediction, found: Load, conf: BrokerConf) -> list[str]:
    """What other versions would do to this very store (spec: recovery.md, versions.md).

    One sentence a row of the tables that matters here; empty where all versions agree.
    """
    out: list[str] = []
    if found.wrong_size:
        out.append("a file of the wrong size: up to 4.4.0, and in 4.9.2, it and the files after "
                   "it are left out and the broker starts; 4.5.1 to 4.9.1 and 4.9.3 on refuse")
    if found.folders:
        out.append("folders among the files are skipped from 5.1.0 on; older brokers refuse")
    if found.emptied:
        out.append("a last file without a byte is deleted from 5.1.3 on; older brokers refuse")
    if any("correctMinOffset" in one for one in made.refusals):
        out.append("a queue whose last file has no row keeps brokers from 5.0.0 on from starting; "
                   "older ones go on with it")
    if not made.starts:
        return out
    clean = made.recovery == "normal"
    lagging = made.rows_added > 0
    if made.rows_lost:
        out.append("consumequeues are destroyed with an empty log after a clean end since 4.5.1; "
                   "older brokers did it only after an unclean one")
    if clean and lagging:
        out.append("after a clean end missing rows come back in 4.5.1 to 4.9.8 and from 5.3.2 "
                   "on; in 5.0.0 to 5.3.1 they stay missing")
    if clean and (made.messages_lost or made.rows_cut):
        out.append("after a clean end the walk starts with the third file from the end up to "
                   "5.3.1, and where the consumequeues end in 5.3.2 and 5.3.3: damage between "
                   "the two is seen by the one and not by the other")
    if not clean and "do not add up" in made.stop_reason:
        out.append("up to 4.3.1 a record whose lengths do not add up is taken for valid after an "
                   "unclean end")
    if "v2 record" in made.stop_reason:
        out.append("v2 records are known from 5.1.0 on; every older broker cuts the log at the "
                   "first")
    if "blank" in made.stop_reason and "names more" in made.stop_reason:
        out.append("before 5.3.2 such a blank ends its file, and the walk goes on with the next")
    if made.index_discarded and not conf.path:
        out.append("with messageIndexSafe=true the walk starts earlier and more keys come back "
                   "(all versions; off by default)")
    if not clean and any(one.action == "add rows" and one.target.startswith(
            f"consumequeue/{props.SCHEDULE_TOPIC}/") for one in made.actions):
        out.append("rows of delayed messages that recovery makes carry no deliver time in 4.9.2 "
                   "to 4.9.8 (they are delivered at once); they are right in all other versions")
    return out
