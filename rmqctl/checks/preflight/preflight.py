"""preflight: predict what a broker does to a store at startup, without doing it.

spec: recovery.md §1-§6, consumequeue.md §4-§6, index.md §7-§9. `preflight` only reads. The module
follows the broker's steps in their order, and keeps in memory the results that later steps need.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np

from rmqctl import vfs
from rmqctl.actions import Action
from rmqctl.broker.dledger import Ledger, record_walk, recovered
from rmqctl.broker.recovery import (
    DispatchRange,
    RecoveryWalk,
    ReputWalk,
    as_configured,
    checkpoint,
    loaded_log,
    start_file,
)
from rmqctl.broker.versions import BrokerVersion
from rmqctl.checks.consumers import QueueLosses, Situation, consumers
from rmqctl.checks.metadata.judge import judge
from rmqctl.checks.preflight import actions
from rmqctl.checks.preflight.actions import differences
from rmqctl.checks.preflight.already import AlreadyLost
from rmqctl.checks.preflight.around import StartEnvironment
from rmqctl.checks.preflight.by_queue import by_queue
from rmqctl.checks.preflight.disk import judge_disk
from rmqctl.checks.preflight.downgrade import judge_downgrade
from rmqctl.checks.preflight.effects import BrokerEffect
from rmqctl.checks.preflight.from_pass import SoundLog, sound_pass
from rmqctl.checks.preflight.index import LoadedIndex
from rmqctl.checks.preflight.load import Load, load, relative
from rmqctl.checks.preflight.log_only import CONFIG, LOG, QUEUES, judge_log
from rmqctl.checks.preflight.lost import (
    MessageCounts,
    TruncatedMessages,
    Unreachable,
    duplicate_files,
    shadowed_by,
)
from rmqctl.checks.preflight.queues import RecoveredQueues
from rmqctl.checks.preflight.second import second_start
from rmqctl.checks.preflight.startup import start_of
from rmqctl.checks.preflight.timers import judge_timers
from rmqctl.checks.preflight.types import Prediction
from rmqctl.checks.verify.common import plural
from rmqctl.checks.verify.config_database import topics_cleaned
from rmqctl.checks.verify.context import RangeResult, deleted, known_topics
from rmqctl.errors import StoreIOError
from rmqctl.phrases import Joined, Phrase, some_of
from rmqctl.scan.frames import Array, Batch
from rmqctl.store.controller import read_epochs
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.cut_off import CutOff
from rmqctl.store.store import Store

Progress = Callable[[int], None]
_MAX_TOPICS = 3
"""Maximum number of topics that a note names."""


def preflight(store: Store, broker_version: str | None = None, *, full: bool = True,
              progress: Progress | None = None, machine: StartEnvironment | None = None,
              seen: RangeResult | None = None) -> Prediction:
    """Return what a broker of ``broker_version`` does at startup.

    ``broker_version``: if None, the version that the store was created for or, if that is unknown,
    the version that the store's files indicate.
    ``full``: whether to search the whole log for messages without an entry. If false, only the part
    that the broker reads is searched, until messages are known to be lost.
    ``progress``: receives the number of bytes read since the last call.
    ``machine``: clock and disk at startup. None: their effects are not predicted.
    ``seen``: results of a verification pass over the log. A sound log is then not read again.

    ``not_judged`` of the result names the structures that rmqctl cannot read:

    * If the format of the consume queues is unsupported, only the log is judged.
    * If the format of the configuration is unsupported, everything else is judged.
    * If the layout of the log is unclear, nothing is judged.

    Raises: UsageError for a version that cannot be predicted, StoreIOError if the log cannot be
    read.
    """
    def predict(opened: Store, release: str, version: BrokerVersion, full: bool) -> Prediction:
        return _predict(opened, release, version, full, progress, machine,
                        None if opened.is_by_name else seen)

    return start_of(store, broker_version, predict, full=full)


def _predict(store: Store, release: str, version: BrokerVersion, full: bool,
             progress: Progress | None, machine: StartEnvironment | None,
             seen: RangeResult | None) -> Prediction:
    """Return the prediction of a broker's startup on the files that it opens, and of the first
    minutes after the startup.
    """
    version = as_configured(store, version)
    predicted = _of_log_and_queues(store, release, version, full, progress, seen)
    if machine is not None and store.layout.reads(LOG):
        try:
            judge_timers(predicted, store, version, machine.now)
        except StoreIOError as error:
            predicted.not_judged["timer"] = str(error)
        judge_disk(predicted, store, version, machine)
        judge_downgrade(predicted, store)
    return predicted


def _of_log_and_queues(store: Store, release: str, version: BrokerVersion, full: bool,
                       progress: Progress | None, seen: RangeResult | None) -> Prediction:
    predicted = Prediction(release, BrokerEffect("abnormal" if store.has_abort else "normal"),
                           profile=version.name, mendable=store.layout.is_mended)
    holder = store.lock
    running = holder.held and holder.pid != os.getpid()
    if running:
        predicted.notes.append(Phrase(
            "a broker is running; this predicts a start on the current files"))
    if not store.layout.reads(LOG):  # unknown which of several
        predicted.not_judged = dict.fromkeys((LOG, QUEUES, "index"), store.layout.unread[LOG])
        predicted.queues.unreachable = None
        return predicted
    predicted.metadata = judge(store, live=running, release=release)
    predicted.notes += predicted.metadata.notes
    predicted.repairs = store.repair_losses
    loading = load(store, version)
    if loading.refusals:
        predicted.actions = list(loading.refusals)
        predicted.broker.refusals = [
            Phrase("{what}: {why}", what=refusal.target, why=refusal.reason)
            for refusal in loading.refusals]
        predicted.broker.unopened = any(refusal.target == QUEUES for refusal in loading.refusals)
    if not store.layout.reads(QUEUES):
        judge_log(store, version, predicted, loading)
        return predicted
    if not store.layout.reads(CONFIG):  # offsets of groups beyond the end
        predicted.not_judged[CONFIG] = store.layout.unread[CONFIG]
    if loading.refusals:
        predicted.broker.differences = differences(predicted, loading, store.sizes.conf)
        with closing(loaded_log(store, version)) as log:
            queues = RecoveredQueues(store, version)
            already = AlreadyLost(store, queues)
            count = MessageCounts()
            for batch in log.walk(whole=True):
                already.look(batch)
                count.add(batch)
            count.fill(predicted)
            already.judge(predicted, log, {}, running)
            if log.files:
                _judge_consumers(store, version, predicted, by_queue(predicted, queues, already),
                                 running)
        return predicted
    with closing(loaded_log(store, version)) as log:
        _Start(store, version, predicted, loading, log, full, running, progress,
               seen if full and not running else None).run()
    predicted.broker.differences = differences(predicted, loading, store.sizes.conf)
    return predicted


def _judge_consumers(store: Store, version: BrokerVersion, predicted: Prediction,
                     losses: dict[tuple[str, int], QueueLosses], running: bool) -> None:
    predicted.queues.losses = losses
    if store.layout.reads(CONFIG):
        unplaced = predicted.log.gone.count - sum(predicted.log.gone.by_topic.values())
        judged = consumers(store, losses, Situation(
            version.generation, store.has_abort, running, version.clamps_delay_offsets), unplaced,
            predicted.metadata.offsets)
        predicted.consumers.groups = replace(
            judged, notes=(*judged.notes, *predicted.consumers.notes))


class _Start:
    """A broker startup, step by step."""

    def __init__(self, store: Store, version: BrokerVersion, predicted: Prediction, loading: Load,
                 log: CommitLog, full: bool, running: bool, progress: Progress | None,
                 seen: RangeResult | None) -> None:
        self.store, self.version, self.log = store, version, log
        self.predicted, self.loading = predicted, loading
        self.full, self.running, self.progress = full, running, progress
        self.clean = predicted.broker.recovery == "normal"
        self.saved = checkpoint(store)
        self.queues = RecoveredQueues(store, version)
        self.index = LoadedIndex(store, self.clean, self.saved.index_msg_timestamp)
        self.unreachable = Unreachable(self.queues, log)
        self.lost: TruncatedMessages | None = None
        """Messages that the start truncates; None if a repair has already truncated them."""
        self.already = AlreadyLost(store, self.queues)
        self.walk: RecoveryWalk | None = None
        self.cut: CutOff | None = None
        self.skipped: list[int] = []
        """Positions, in files that recovery did not read, from which the run-time dispatcher skips
        to the next file.
        """
        self.count = MessageCounts()
        self.seen = seen
        self.sound: SoundLog | None = None
        """Results of an earlier pass over a sound log, which is then not read again."""
        self.ledger: Ledger | None = None
        """The remaining DLedger data; None for a plain log."""

    def run(self) -> None:
        # The effect of the start on log and queues.
        predicted = self.predicted
        predicted.log.loaded = list(self.log.files)
        if not self.log.files:
            predicted.log.truncate_to = 0
            predicted.log.stop_reason = Phrase("the log has no files")
        else:
            if self.log.files[-1].head:
                self._recover_dledger(predicted)
            else:
                self._recover(predicted)
            self._table()
            self._reput(predicted)
            if self.full and self.sound is None:
                self._older()
            self._count(predicted)
            if self.full:
                self.count.fill(predicted)
            if not self.full and predicted.log.cut.count:
                return
        # Earlier losses, then the effect of both on consumers.
        self.already.judge(predicted, self.log, self.unreachable.without_row, self.running,
                           0 if self.full or not self.log.files else self.start,
                           cut_off=self.cut is not None)
        if self.log.files:
            _judge_consumers(self.store, self.version, predicted, by_queue(
                predicted, self.queues, self.already, self.unreachable, self.lost), self.running)
        # A broker stops at zeros; where intact messages follow them, more was written.
        if predicted.log.cut.count and predicted.log.stop_reason.startswith("nothing was written"):
            predicted.log.stop_reason = Phrase(
                "zeros at {where}, which a broker takes for the end of the log",
                where=predicted.log.truncate_to)
        # Notes on it, and its changes.
        self._notes()
        actions.fill(predicted, self.store, self.log, self.version, self.loading, self.queues,
                     self.index, self.walk, self.saved, self.already.gone)
        if self.walk is not None and predicted.starts and self.cut is None:
            predicted.broker.second_start = second_start(
                self.store, self.version, self.log, predicted, self.start, self.queues.max_physic)

    def _recover(self, predicted: Prediction) -> None:
        # Where recovery begins.
        predicted, log, version = self.predicted, self.log, self.version
        reach = self.queues.max_physic
        number, predicted.log.start_reason = start_file(self.store, log, version, reach)
        start = log.files[number]
        predicted.log.start_file = relative(self.store, start.path)
        self.start = start.base
        sound = self.sound = None if self.seen is None else sound_pass(
            self.store, version, log, self.queues, self.seen)
        self.walk = walk = RecoveryWalk(log, number, version, None if sound is None else sound.last)
        # The walk of recovery, which may dispatch what it passes.
        dispatches = not self.clean or version.normal_by_queues
        behind = reach if self.clean else None
        before = self.queues.positions()
        for batch in walk:
            if not dispatches:
                which: Array = np.zeros(len(batch), bool)
            elif behind is None:
                which = np.ones(len(batch), bool)
            else:
                which = batch.offset > behind
            put = self._dispatch(batch, which, walk.odd)
            if not walk.odd and (not version.reput_from_queues or not self.clean):
                self.unreachable.add(batch, put)
            if not walk.odd:
                self.already.look(batch, spans=False)
            self._add(batch)
            self._read(batch)
        if sound is not None:
            self.already.take(sound.walked)
            self.count = MessageCounts(sound.messages, sound.replaced)
            if self.progress is not None:
                self.progress(sound.last - log.min_offset)
        # The end of the log, and the queues truncated there.
        predicted.log.truncate_to, predicted.log.stop_reason = walk.end, walk.stop
        if self.store.cut_off is not None and self.store.cut_off.end == walk.end:
            self.cut = self.store.cut_off
            predicted.log.cut_off = True
        if dispatches and walk.last_valid is not None and (
                behind is None or walk.last_valid > behind):
            predicted.log.dispatch.append(
                DispatchRange(start.base, walk.end, behind, False, before))
        if reach >= walk.end:
            self.queues.truncate(walk.end)
            self.unreachable.cut(log, walk.end)

    def _recover_dledger(self, predicted: Prediction) -> None:
        """Simulate DLedger's own recovery, then the broker's recovery (spec: dledger.md §4)."""
        # DLedger truncates its own log first.
        log, store = self.log, self.store
        self.ledger = ledger = recovered(store, log)
        predicted.log.start_file = relative(store, log.files[ledger.number].path)
        predicted.log.start_reason = ledger.why
        predicted.log.truncate_to, predicted.log.stop_reason = ledger.end, ledger.stop
        self.start = cut = ledger.end
        if log.files[-1].base - ledger.end > log.file_size:
            predicted.broker.refusals.append(Phrase(
                "DLedger would have to truncate more than one file (after {end}); the broker exits "
                "instead", end=ledger.end))
        if ledger.units:
            predicted.actions.append(Action(
                "write", f"{store.nodes[0].name}/index" if store.nodes else "index", None,
                ledger.units, Phrase("the DLedger index does not point to these entries"), "entry"))
        if ledger.last is not None and ledger.last.term > 0 and ledger.committed < ledger.end:
            predicted.notes.append(Phrase(
                "entries from {committed} on are not marked as committed: another leader of the "
                "group may overwrite them", committed=ledger.committed))
        # Then the broker walks the records, after an unclean end of some releases.
        reach, before = self.queues.max_physic, self.queues.positions()
        with closing(ledger.log(log)) as kept:
            if not self.clean and self.version.walks_dledger:
                walk, predicted.log.start_reason = record_walk(store, kept, self.version)
                self.start = walk.first
                predicted.log.start_file = relative(store, walk.path)
                for batch in walk:
                    put = self._dispatch(batch, np.ones(len(batch), bool), odd=False)
                    self.unreachable.add(batch, put)
                    self.already.look(batch, spans=False)
                    self._add(batch)
                    self._read(batch)
                cut = walk.end
                if walk.last_valid is not None:
                    predicted.log.dispatch.append(
                        DispatchRange(walk.first, ledger.end, None, False, before))
                for batch in kept.walk(walk.first if walk.last_valid is None
                                       else walk.last_valid + 1):
                    self.already.look(batch)
                    self.unreachable.add(batch, np.zeros(len(batch), bool))
                    self._add(batch)
            # Entries beyond the end are removed from the queues.
            if reach >= cut:
                self.queues.truncate(cut)
                self.unreachable.cut(log, ledger.end)
                if cut < ledger.end:
                    predicted.notes.append(Phrase(
                        "the broker does not count the headers of DLedger entries, so it takes the "
                        "log to be {bytes} shorter: it truncates the consume queues at {cut}",
                        bytes=plural(ledger.end - cut, "byte"), cut=cut))

    def _table(self) -> None:
        """Build the broker's table of queue offsets, which fails in 5.x for a queue whose last file
        has no entry.
        """
        predicted = self.predicted
        if not self.version.empty_queue_file_fails:
            return
        for state in self.queues.states:
            file = state.empty_last
            if file is not None:
                predicted.broker.refusals.append(
                    Phrase(
                        "{file}: the last file of its queue has no entry, so correctMinOffset "
                        "throws an IllegalArgumentException after recovery",
                        file=relative(self.store, file.path)))

    def _reput(self, predicted: Prediction) -> None:
        """Dispatch messages after recovery; 4.x starts at the end of the queues."""
        assert self.predicted.log.truncate_to is not None
        # Where the broker begins to dispatch.
        end, log = self.predicted.log.truncate_to, self.log
        if not self.version.reput_from_queues and self.ledger is None:
            return
        start = max(log.min_offset, self.queues.max_physic, 0)
        if self.ledger is not None and not self.version.reput_from_queues:
            start = max(log.min_offset, self.ledger.committed)
        # The walk, and the entries that it adds.
        walk = ReputWalk(log, start, end, self.version)
        if start < end:
            self.predicted.log.dispatch.append(
                DispatchRange(start, end, None, True, self.queues.positions()))
            for batch in walk:
                put = self._dispatch(batch, np.ones(len(batch), bool), walk.odd)
                if walk.odd:
                    continue
                if self.ledger is not None and self.clean:
                    self.already.look(batch, spans=False)
                elif self.clean and int(batch.offset[0]) < self.start:
                    self.already.look(batch, spans=False, accepted=False)
                if start < self.start and (self.clean or self.ledger is None):
                    self._add(batch, before=self.start)
                if self.clean:
                    self.unreachable.add(batch, put)
                else:
                    self.unreachable.regain(batch, put)
            # Where it gets stuck, and what it skips.
            if walk.stuck is not None:
                self.predicted.broker.refusals.append(Phrase(
                    "start-up hangs at physical offset {stuck}: no file covers it, and dispatch "
                    "must reach the end of the log", stuck=walk.stuck))
            self.predicted.notes += [Phrase(
                "the log from {offset} to the end of that file is unreadable; its messages get no "
                "entries",
                offset=position) for position in walk.skipped]
            self.skipped = walk.skipped if self.clean else []
        self.reput_start = min(start, end)

    def _older(self) -> None:
        """Process the part of the log that the broker does not read at startup."""
        end = self.start
        if self.clean and (self.version.reput_from_queues or self.ledger is not None):
            end = min(self.reput_start, self.predicted.log.truncate_to or 0)
        unread = [(self.log.min_offset, end)]
        for position in self.skipped:
            file = self.log.file_of(position)
            if file is not None and position < self.start:
                unread.append((position, file.end))
        for first, last in unread:
            for batch in self.log.walk(first, last, whole=True):
                self.already.look(batch)
                self._add(batch, before=self.start)
                if len(batch):
                    self.unreachable.add(batch, np.zeros(len(batch), bool))
                    self._read(batch)

    def _dispatch(self, batch: Batch, which: Array, odd: bool) -> Array:
        if not which.any():
            return np.zeros(len(batch), bool)
        if odd and len(batch) > 1:  # what a broker writes depends on each record before
            return np.concatenate([
                self._dispatch(batch.select(slice(row, row + 1)), which[row:row + 1], odd)
                for row in range(len(batch))])
        put = self.queues.dispatch(batch, which, odd)
        if self.store.sizes.conf.message_index is not False:
            self.index.dispatch(batch, which)
        return put

    def _count(self, predicted: Prediction) -> None:
        predicted = self.predicted
        self.unreachable.flush()
        lost = TruncatedMessages(self.queues, predicted.log.truncate_to or 0)
        # Intact messages beyond the end of the log; a repair has truncated them already.
        lost.collect(self.log, self._beyond, self.progress, whether=not self.full)
        if self.cut is not None:
            predicted.notes.append(
                Phrase(
                    "a repair truncated the log at {end}: {messages} after this offset ({bytes} in "
                    "all) is no longer part of it",
                    "a repair truncated the log at {end}: {messages} after this offset ({bytes} in "
                    "all) are no longer part of it", count=lost.total + lost.superseded,
                    messages=plural(lost.total + lost.superseded, 'intact message'),
                    bytes=plural(self.cut.used - self.cut.end, 'byte'), end=self.cut.end))
        else:
            self.lost = lost
            predicted.log.cut, predicted.log.superseded = lost.as_cut(), lost.superseded
        # Messages of deleted topics are not a loss.
        configured = known_topics(self.store)
        gone = {topic for topic in self.unreachable.by_topic if deleted(topic, configured)}
        if gone:
            predicted.metadata = again = judge(
                self.store, live=self.running, logged=gone, release=predicted.broker_version)
            predicted.notes += [note for note in again.notes if note not in predicted.notes]
        predicted.queues.unreachable_by_topic = {
            topic: count for topic, count in sorted(self.unreachable.by_topic.items())
            if count and topic not in gone}
        predicted.queues.unreachable = sum(predicted.queues.unreachable_by_topic.values())
        self._duplicates(predicted)
        # Notes on both.
        if gone:
            count = sum(self.unreachable.by_topic[topic] for topic in gone)
            predicted.notes.append(Phrase(
                "{count:,} message without an entry belongs to topics that are not in "
                "config/topics.json; deleted topics are not counted",
                "{count:,} messages without an entry belong to topics that are not in "
                "config/topics.json; deleted topics are not counted", count=count))

    def _add(self, batch: Batch, before: int | None = None) -> None:
        """Count the messages of a batch, or only the messages ``before`` a physical offset."""
        self.count.add(batch, before)

    def _beyond(self, batch: Batch) -> None:
        """Process a batch beyond the end of the log."""
        self.already.look(batch)
        self._add(batch)

    def _duplicates(self, predicted: Prediction) -> None:
        for duplicate in duplicate_files(self.log, predicted.log.truncate_to or 0):
            predicted.log.shadowed += duplicate.differing
            parts = [Phrase(
                "{names} have the same name: a broker reads from the first and writes to the last, "
                "and their order depends on the hash of their folder paths",
                names=Joined(", ", [relative(self.store, file.path)
                                    for file in duplicate.files]))]
            if duplicate.differing:
                parts.append(Phrase("{some} of the messages are not in all of these files",
                                    some=duplicate.differing))
            predicted.notes.append(Joined("; ", parts))
        for trouble in self.store.log_troubles:
            if trouble.stray:
                predicted.log.shadowed += shadowed_by(self.log, int(os.path.basename(trouble.path)))
                predicted.notes.append(Phrase(
                    "{file}: {reason}. A broker may read it in place of the next file, or append "
                    "to it; `rmqctl recover` moves it aside",
                    file=relative(self.store, trouble.path), reason=trouble.reason))

    def _notes(self) -> None:
        predicted, walk = self.predicted, self.walk
        # Epochs and index.
        epochs = read_epochs(self.store)
        if epochs.main.fault is not None or epochs.used is epochs.backup:
            predicted.notes.append(Phrase(
                "{main} cannot be used: a broker reads the epochs from {backup}",
                main=epochs.main.name, backup=epochs.backup.name) if epochs.used else Phrase(
                "neither {main} nor its backup can be read: a broker starts without epochs",
                main=epochs.main.name))
        if predicted.log.truncate_to is not None and self.index.end_phy > predicted.log.truncate_to:
            predicted.notes.append(Phrase(
                "the index ends at {end_phy} according to its header, but the log ends at "
                "{truncate_to}: new messages before the end of the index get no index entry",
                end_phy=self.index.end_phy, truncate_to=predicted.log.truncate_to))
        # Records, and consume queues in RocksDB.
        if walk is not None and walk.misplaced:
            predicted.notes.append(Phrase(
                "{count:,} record has a wrong physicalOffset, at {first}; a broker accepts such a "
                "record, and its consume queue entry points to nothing",
                "{count:,} records have a wrong physicalOffset, the first at {first}; a broker "
                "accepts such records, and their consume queue entries point to nothing",
                count=len(walk.misplaced), first=walk.misplaced[0]))
        unread = self.queues.rocksdb_trouble
        if unread:
            predicted.notes.append(Phrase(
                "part of the consume queue database is unreadable: a broker starts, but does not "
                "deliver the messages of that part ({why})", why=unread))
        cleaned = topics_cleaned(self.store)[2] if self.queues.in_rocksdb else []
        if cleaned:
            predicted.notes.append(Phrase(
                "{topics} is not configured: 10 minutes after its start a broker deletes the "
                "consume queues of that topic",
                "{topics} are not configured: 10 minutes after its start a broker deletes the "
                "consume queues of these topics",
                count=len(cleaned), topics=some_of(cleaned, _MAX_TOPICS)))
        left = self.queues.left_beyond(predicted.log.truncate_to)
        if left:
            predicted.notes.append(Phrase(
                "{count:,} queue in RocksDB, {first}, keeps a last entry beyond the end of the "
                "log: its next message gets a queue offset after a gap",
                "{count:,} queues in RocksDB, the first {first}, keep a last entry beyond the end "
                "of the log: their next messages get queue offsets after a gap",
                count=len(left), first=left[0].target))
        # Messages that are not lost now, or were not searched.
        if predicted.log.superseded:
            predicted.notes.append(Phrase(
                "{count:,} intact message beyond the end of the log was truncated earlier: another "
                "message has its queue offset",
                "{count:,} intact messages beyond the end of the log were truncated earlier: other "
                "messages have their queue offsets", count=predicted.log.superseded))
        if self.log.files and not self.store.index.listing.files and not self.index.entries and (
                not vfs.lacks(self.store.root, "index")):
            predicted.notes.append(Phrase(
                "the index is missing and is not rebuilt: no message can be found by its key"))
        if not self.full and self.log.files:
            predicted.notes.append(Phrase(
                "messages without an entry were counted only in the part of the log that the "
                "broker reads"))

    def _read(self, batch: Batch) -> None:
        if self.progress is not None:
            self.progress(int(batch.column("total_size").sum()))
