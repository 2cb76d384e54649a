"""``recover``: one plan that repairs a store in two stages, salvage and rebuild.

First, fillers replace damage in the log (`rmqctl.repair.salvage.salvage`). Then consume queues and
index are rebuilt from the repaired log (`rmqctl.repair.rebuild.rebuild`). Only files that differ
are replaced. The plan for an intact store is empty.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import field, replace
from functools import partial
from typing import Any

from rmqctl.broker.queue_form import QueueForm, is_likely_file, is_unproven, refuse_other
from rmqctl.broker.recovery import ended_by_repair
from rmqctl.checks.consumers import QueueKey
from rmqctl.checks.findings import Finding
from rmqctl.checks.offset_runs import OffsetRuns
from rmqctl.checks.verify.common import plural
from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.damage.survey.surveyor import Surveyor
from rmqctl.errors import FormatError, RefusedError, UsageError
from rmqctl.formats.local.properties import LMQ_PREFIX, TIMER_TOPIC
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import now_ms
from rmqctl.repair.broker_config import Configured, configured
from rmqctl.repair.checkpoint import checkpoint_steps, facts_after, facts_of, lost_with_it
from rmqctl.repair.config.copies import lost_config, newer_offsets_of
from rmqctl.repair.config.epochs import mend_epochs
from rmqctl.repair.config.exported import read_export, refuse_foreign
from rmqctl.repair.config.inferred import topics
from rmqctl.repair.config.mend import CONFIG, mend_config
from rmqctl.repair.config.saved import expanded, read_saved, saved_config, taken
from rmqctl.repair.consumers import consumers_after, lost_by_positions
from rmqctl.repair.moved_log import created_queues, moved_log
from rmqctl.repair.plan import (
    Action,
    Lost,
    MoveAside,
    Patch,
    Plan,
    Planned,
    Step,
    Watch,
    touches,
)
from rmqctl.repair.rebuild import rocksdb
from rmqctl.repair.rebuild.derived_range import log_as_it_is
from rmqctl.repair.rebuild.disputes import ChangedByte, Disputes, disputes
from rmqctl.repair.rebuild.foreign_files import (
    foreign_index_entries,
    foreign_log_entries,
    foreign_queue_entries,
    joined,
    refusals_left,
    refuse_packed,
)
from rmqctl.repair.rebuild.rebuild import (
    CONSUMEQUEUE,
    INDEX,
    KeptHashes,
    Rebuilt,
    log_size,
    rebuild,
)
from rmqctl.repair.rebuild.rebuild import wants as wants_queue
from rmqctl.repair.rebuild.rocksdb_copy import copy_steps
from rmqctl.repair.rebuild.steps import derived_steps, topic_queue_table
from rmqctl.repair.rebuild.timed_disputes import TimedDisputes, timed_disputes
from rmqctl.repair.rebuild.timer import timer_steps, timer_troubles
from rmqctl.repair.salvage.correct import Correct
from rmqctl.repair.salvage.log_files import laid_over, over
from rmqctl.repair.salvage.salvage import (
    Ambiguous,
    Fillers,
    MissingFile,
    Salvage,
    salvage,
)
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.sound_store import SoundStore, sound_store
from rmqctl.repair.sources.opening import OURS, LogSource, Opener, Readers
from rmqctl.repair.targets import part_target
from rmqctl.scan.overlay import LogPart, OverlayPiece
from rmqctl.store.files import listing
from rmqctl.store.log.bounds import View
from rmqctl.store.queue.topic_queue_table import disagreements
from rmqctl.store.queue.topic_queue_table import rebuild as count_table
from rmqctl.store.store import Sizes, Store

COMMAND = "recover"
COMMITLOG, CHECKPOINT, TABLE = "commitlog", "checkpoint", "topic-queue-table"
TIMER = "timer"
PARTS = (COMMITLOG, CONSUMEQUEUE, INDEX, CHECKPOINT, TABLE, TIMER, CONFIG)
"""Values of ``--only``."""


@dataclass(frozen=True, slots=True)
class RecoverOptions:
    """Options of `recover`.

    ``only``: some of `PARTS`.
    ``topic``, ``queue``: rebuild only the consume queues of this topic, or one of them.
    ``given``: values by the names of `Settings`; None for a value that is not given.
    ``sources``: paths that `rmqctl.repair.sources.opening` accepts.
    ``prefer``: the source that wins where copies differ, or "ours" for this store.
    ``light_rows``: rebuild all entries of LMQs, regardless of the broker's settings at the time
        (`--multi-dispatch`).
    ``form``: the value of `--consumequeue`, which is also in ``sizes``.
    """

    only: frozenset[str] = frozenset(PARTS)
    topic: str | None = None
    queue: int | None = None
    missing_file: MissingFile = "fillers"
    ambiguous: Ambiguous = "leave-out"
    jobs: int = 1
    commitlog_dirs: Sequence[str] = ()
    sizes: Sizes = field(default_factory=Sizes)
    given: Mapping[str, Any] = field(default_factory=dict)
    correct: Correct = "byte"
    keep_damaged: bool = False
    fillers: Fillers = "in-place"
    sources: Sequence[str] = ()
    prefer: str | None = None
    readers: Readers = field(default_factory=Readers)
    light_rows: bool | None = None
    form: QueueForm | None = None

    @property
    def whole(self) -> bool:
        """Return whether all structures that a broker needs at startup are repaired."""
        return self.only.issuperset(PARTS[:4]) and self.topic is None

    @property
    def writes(self) -> tuple[str, ...]:
        """Return the structures that must have a writable form. The log is not among them if only
        derived structures are rebuilt.
        """
        derived = self.only <= {CONSUMEQUEUE, INDEX, TABLE}
        return (CONSUMEQUEUE, INDEX, CONFIG, *(() if derived else (COMMITLOG,)))


def _assumed(saved: Salvage) -> dict[str, int]:
    """Return the assumptions on which the detection of damage depends; empty if the log
    is intact.
    """
    witness = saved.parts[0].witness if saved.parts else None
    if witness is None or not (saved.ambiguous or saved.steps):
        return {}
    return {"largest_record": witness.largest_record}


def plan_recover(root: str, scratch: Scratch, options: RecoverOptions, watch: Watch,
                 make: Callable[..., Rebuilt] = rebuild) -> Plan:
    """Return the plan for the store at ``root``, as `plan_opened` does.

    Raises: NotAStoreError, StoreIOError; RefusedError, also for sizes that contradict each other
    (see `configured` and `salvage`).
    """
    with Store.open(root, options.commitlog_dirs, options.sizes) as opened:
        return plan_opened(opened, scratch, options, watch, make)


def plan_opened(opened: Store, scratch: Scratch, options: RecoverOptions, watch: Watch,
                make: Callable[..., Rebuilt] = rebuild) -> Plan:
    """Return the plan for a store that was opened with the folders and sizes of ``options``. Writes
    only derived files to ``scratch``, which must exist until the plan is applied.

    ``make``: the function that rebuilds, with the signature of
    `rmqctl.repair.rebuild.rebuild.rebuild`.

    Raises: StoreIOError; RefusedError as `plan_recover`.
    """
    root, store = opened.root, opened.before_unfinished()
    with nullcontext() if store is opened else store:
        if CONSUMEQUEUE in options.only:
            store.leave_damaged_out()
        refuse_other(store, options.form)
        configuration = configured(store, options.given)
        planner = _Planner(root, store, configuration, scratch, options, watch, make)
        if store is not opened and store.snapshot is not None:
            planner.note(f"the process that locks the store is writing the record at "
                         f"{store.snapshot.log_end}: it is left as it is")
        return planner.plan()


class _Planner:
    def __init__(self, root: str, store: Store, configuration: Configured, scratch: Scratch,
                 options: RecoverOptions, watch: Watch, make: Callable[..., Rebuilt]) -> None:
        self._make = make
        self._root, self._store, self._scratch = root, store, scratch
        self._configuration = configuration
        self._options, self._watch = options, watch
        self._exports, others = taken(expanded(options.sources), read_export)
        self._saved, self._logs = taken(others, read_saved)
        self._generation = configuration.settings.profile.generation
        self._actions: list[Action] = []
        self._steps: list[Step] = []
        self._notes: list[str] = []
        self._unjudged_queues: set[tuple[str, int]] = set()
        self._disputed: set[str] = set()
        """Structures whose entries contradict messages and are not changed."""
        self._unplaceable = 0
        """Number of messages for which no entry can be written."""
        self._before: int | None = None
        """Number of entries in the database of consume queues; None if it does not exist or is
        unreadable.
        """
        self._database: rocksdb.BuiltDatabase | None = None
        self._sound: SoundStore | None = None
        """The store, if neither its log nor what is derived from it needs a repair."""

    def note(self, text: str) -> None:
        """Add a note to the plan."""
        self._notes.append(text)

    def plan(self) -> Plan:
        in_rocksdb = self._store.layout.consumequeue == "rocksdb"
        if self._options.only != {TABLE}:
            self._store.layout.require_writable(self._root, self._options.writes,
                                                made_anew=True, mends=True)
        database = self._store.queues.rocksdb if in_rocksdb else None
        if database is not None and CONSUMEQUEUE in self._options.only:
            self._before = self._rows_before()
        self._refuse_sources()
        self._refuse_log_in_root()
        if not self._logs:
            self._refuse_without_log()
        cut = ended_by_repair(self._store)
        if cut is not None:
            self._notes.append(f"a repair truncated the log at {cut.end}; this plan restores the "
                               "truncated part")
        self._refuse_half_a_log()
        saved = self._log()
        if not saved.restored:
            self._refuse_without_log()
        undo_first = self._undo_first() if cut is not None or saved.lost else None
        forgotten: tuple[Lost, ...] = ()
        held = self._store.snapshot is not None  # the broker maintains checkpoint and abort file
        troubles = [] if held else self._timer_troubles(saved)
        timed = timed_disputes(self._store, saved.parts, troubles)
        saved = self._settle_timed(saved, timed)
        rebuilt = self._derived(saved)
        if self._store.layout.consumequeue == "double" and CONSUMEQUEUE in self._options.only and (
                self._options.topic is None):
            with self._watch("comparing the copy in RocksDB", log_size(saved.parts)) as done:
                self._take(copy_steps(
                    self._store, saved.parts, self._configuration.settings, self._scratch,
                    log_end=saved.log_end if COMMITLOG in self._options.only else None,
                    jobs=self._options.jobs, progress=done))
        keeps_abort = (self._store.has_abort and self._options.whole and not held
                       and self._keep_abort())
        if CHECKPOINT in self._options.only and not held:
            facts = (facts_of(self._store) if rebuilt is None
                     else facts_after(rebuilt, self._options.commitlog_dirs))
            self._take(checkpoint_steps(self._root, facts, self._generation,
                                        trust_index=keeps_abort))
            forgotten = lost_with_it(self._store, facts)
        if keeps_abort:
            pass
        elif self._options.whole and self._store.has_abort and not held and (
                not self._unjudged_queues):
            self._take(([MoveAside("abort")], [Action(
                "move aside", "abort", None, None,
                "the log and its derived files are complete: the next startup is clean"
                if not self._disputed else
                "the log is complete: the next startup is clean")]))
        elif (self._store.layout.is_dledger and self._options.topic is None and not held
                and self._options.only.issuperset((CONSUMEQUEUE, INDEX))
                and self._store.has_abort):
            self._take(([MoveAside("abort")], [Action(
                "move aside", "abort", None, None,
                "DLedger recovers its log at every start; with this file, a broker of 5.2.0 or "
                "later would again truncate entries that point into the log")]))
        table = self._table(rebuilt)
        if TIMER in self._options.only and self._options.topic is None and not held:
            timer = timer_steps(self._store, saved.log_end, table.get(f"{TIMER_TOPIC}-0"),
                                troubles, timed)
            self._take((timer.steps, timer.actions))
            self._notes += timer.notes
        if CONFIG in self._store.layout.unwritten and CONFIG in self._options.only:
            self._notes.append("the configuration is left as it is: "
                               f"{self._store.layout.unwritten[CONFIG]}")
        elif CONFIG in self._options.only and self._options.topic is None:
            planned, notes = saved_config(self._store, self._saved, table)
            self._take(planned)
            self._notes += notes
            mended = mend_config(self._store, self._generation, table, now_ms, self._watch,
                                 missing=self._options.only != frozenset(PARTS),
                                 settled={step.target for step in self._steps},
                                 exports=self._exports)
            self._take((mended.steps, mended.actions))
            self._notes += mended.notes
            self._take(mend_epochs(self._store))
        if self._options.topic is None:
            self._notes += refusals_left(self._store, self._generation, self._steps)
        lost, lost_total, dropped = saved.lost, saved.lost_total, saved.dropped
        reached: Mapping[QueueKey, OffsetRuns] = {}
        complete = lost_total == len(lost) or self._store.layout.is_dledger
        if self._options.whole and not held and complete and self._store.layout.reads("config"):
            beyond = lost_by_positions(self._store, lost, lost_total, table)
            self._notes += beyond.notes
            reached = beyond.reached
            lost, lost_total = (*lost, *beyond.listed), lost_total + beyond.more
            dropped = replace(dropped, messages=dropped.messages + beyond.more)
        lost, lost_total = (*lost, *forgotten), lost_total + len(forgotten)
        dropped = replace(dropped, messages=dropped.messages + len(forgotten))
        total = lost_total if lost_total > len(lost) else None
        if (lost_total and not self._logs and self._options.whole
                and not self._store.layout.is_dledger):  # its own note asks for another member
            self._notes.append(
                f"if a replica, a backup or another disk has this log, `rmqctl recover {self._root}"
                " --from COPY` restores messages that this plan cannot restore")
        left = self._left_damaged(saved)
        consumers = None
        if self._options.whole:
            consumers = consumers_after(self._store, saved.lost, table, self._generation,
                                        reached=reached, total=saved.lost_total)
        return Plan(COMMAND, self._root, tuple(self._actions), tuple(self._steps), lost,
                    table, tuple(self._notes), total, saved.ambiguous,
                    saved.messages + lost_total, saved.kept_damaged, consumers,
                    saved.conflicts, left, _assumed(saved), self._form_unproven, undo_first,
                    dropped, saved.wrong_corrections, saved.fillers, saved.verdicts)

    def _keep_abort(self) -> bool:
        """Return whether the abort file is kept although the store is complete.

        A broker with consume queues in RocksDB rebuilds them only after an unclean shutdown.
        Without the abort file, some entries would be missing from its queues. With a DLedger log,
        the abort file is never kept: a broker with consume queues in files would then truncate
        entries.
        """
        is_open = self._is_form_open or (is_unproven(
            self._store, self._options.given.get("version"), created=True) and created_queues(
                self._store))
        if not is_open or self._form_unproven or self._store.layout.is_dledger:
            return False
        self._notes.append(
            "Nothing proves that the broker keeps its consume queues in files; that is the "
            "default, so files are created. The abort file stays, so that a broker with queues in "
            "RocksDB rebuilds them. Pass --consumequeue file or rocksdb if you know the form")
        return True

    @property
    def _form_unproven(self) -> bool:
        """Return whether the plan creates consume queues as files although the broker may keep them
        in RocksDB.
        """
        return self._is_form_open and not is_likely_file(self._store)

    @property
    def _is_form_open(self) -> bool:
        """Return whether the plan creates consume queues without evidence that the broker keeps
        them in files.
        """
        return touches(self._steps, CONSUMEQUEUE) and is_unproven(
            self._store, self._options.given.get("version"))

    def _refuse_sources(self) -> None:
        only = self._options.only
        if self._logs and COMMITLOG not in only:
            raise UsageError(f"--from {self._logs[0]}: restores messages of the log, so --only "
                             "must include commitlog")
        names = [export.name for export in self._exports] + [saved.name for saved in self._saved]
        if names and CONFIG not in only:
            raise UsageError(f"--from {names[0]}: contains topics, groups or consumer offsets, so "
                             "--only must include config")
        for export in self._exports:  # before the log is read, which may show more topics
            refuse_foreign(export, topics(self._store, self._generation, ())[0])

    def _undo_first(self) -> str | None:
        """Return the id of an earlier repair that moved complete log files aside. None if there was
        no such repair, or if undoing it would also revert other changes.
        """
        moved = moved_log(self._store)
        if moved is None:
            return None
        moved_aside = (f"repair {moved.id} moved {plural(moved.files, 'complete file')} of the log "
                       "aside; this plan does not restore them")
        if moved.as_it_was:
            self._notes.append(f"{moved_aside}. Run `rmqctl undo {self._root} {moved.id}` first")
            return moved.id
        self._notes.append(f"{moved_aside}. The store has changed since then, and `rmqctl undo` "
                           "would revert those changes, too")
        return None

    def _take(self, planned: tuple[Iterable[Step], Iterable[Action]]) -> None:
        steps, actions = planned
        self._steps += steps
        self._actions += actions

    def _refuse_without_log(self) -> None:
        """Raise RefusedError if a file of the log is compressed, or if the log has no data but
        derived files exist: a rebuild would empty them.
        """
        store = self._store
        refuse_packed(store)
        if any(file.size for file in store.log.files):
            return
        if any(file.size for file in listing(self._root).files):
            self._refuse_log_in_root(files_in_root=True)
        queue = next((queue for queue in store.queues.readable.values() if queue.files), None)
        if queue is not None or store.queues.batch or store.index.listing.files:
            raise RefusedError(
                f"{self._root}: no commitlog files found; refusing to remove the derived files. Is "
                "the log elsewhere (--commitlog-dir) or not mounted?")

    def _refuse_log_in_root(self, *, files_in_root: bool = False) -> None:
        """Raise RefusedError if the log files are in the root of the store. No broker starts on
        such a store, and a repair cannot distinguish the log files from the checkpoint and the lock
        file.

        ``files_in_root``: whether log files in the root are already known.
        """
        root = os.path.realpath(self._root)
        if files_in_root or any(
                os.path.realpath(folder) == root for folder in self._store.log_folders):
            raise RefusedError(
                f"{self._root}: the log files are in the root of the store, beside checkpoint and "
                "lock, and no broker starts on such a store. Nothing was changed. Move them into "
                f"{os.path.join(self._root, COMMITLOG)} and set storePathCommitLog to that folder")

    def _refuse_half_a_log(self) -> None:
        """Raise RefusedError if a log file is missing and the log is in several folders that the
        user did not name. A folder may not be mounted. The plan would then write fillers for
        messages that still exist there.
        """
        store = self._store
        size = max((file.size for file in store.log.files), default=0)
        gap = next((gap for gap in store.log.gaps() if gap.end - gap.start >= size), None)
        if (gap is not None and COMMITLOG in self._options.only and not self._logs
                and not self._options.commitlog_dirs
                and store.log_folders != [store.path("commitlog")]):
            raise RefusedError(
                f"{self._root}: the log in {', '.join(store.log_folders)} has no files for "
                f"physical offsets {gap.start} to {gap.end}. Is another log folder elsewhere, or "
                "not mounted? Pass every log folder with --commitlog-dir")

    def _log(self) -> Salvage:
        """Return the repaired log; the log without changes if --only does not include it."""
        # Without the log in --only, nothing is examined.
        if COMMITLOG not in self._options.only or self._options.topic is not None:
            parts = tuple(log_as_it_is(self._store))
            self._configuration = self._configuration.with_batches(
                self._store, self._inner_batch_topics(parts))
            return Salvage(parts, log_end=parts[-1].end if parts else 0)
        # The log from itself and from copies; then the configuration of these copies.
        total = sum(file.size for file in self._store.log.files)
        entries: Planned = [], []
        sound = self._sound = self._sound_store()
        with ExitStack() as stack:
            sources = self._sources(stack)
            if sound is not None:
                saved = Salvage(sound.parts, log_end=sound.rebuilt.log_end,
                                messages=sound.rebuilt.messages)
            else:
                done = stack.enter_context(self._watch("looking for damage", total))
                saved, entries = self._of_member(sources, done) if (
                    self._store.layout.is_dledger) else (salvage(self._store, self._generation,
                                missing_file=self._options.missing_file,
                                ambiguous=self._options.ambiguous,
                                batch_topics=self._configuration.batch_topics, progress=done,
                                scratch=self._scratch, correct=self._options.correct,
                                keep_damaged=self._options.keep_damaged,
                                fillers=self._options.fillers,
                                sources=sources, keep_ours=self._options.prefer == OURS), entries)
            config: Planned = lost_config(self._store, sources) if self._options.whole else ([], [])
            self._notes += newer_offsets_of(self._store, sources, config)
        # In the order in which the steps are carried out.
        self._take(foreign_log_entries(self._store, self._generation))
        self._take((saved.steps, saved.actions))
        self._take(entries)
        self._take(config)
        self._notes += saved.notes
        self._configuration = self._configuration.with_batches(
            self._store, saved.inner_batch_topics)
        return saved

    def _sound_store(self) -> SoundStore | None:
        """Return what is known of a plain store whose log, consume queues and index need no repair,
        after one fast pass over the log; None for any other store.
        """
        options = self._options
        if (not options.whole or options.sources or options.light_rows or options.form
                or self._make is not rebuild or self._scratch.keep):
            return None
        with self._watch("checking the store", self._store.log.size) as done:
            return sound_store(self._store, self._configuration, self._scratch, options.jobs, done)

    def _of_member(self, sources: Sequence[LogSource], done: Callable[[int], None]) -> tuple[
            Salvage, Planned]:
        from rmqctl.repair.dledger.members import mend_log

        return mend_log(self._store, self._scratch, sources,
                        keep_ours=self._options.prefer == OURS,
                        correct=self._options.correct, progress=done)

    def _sources(self, stack: ExitStack) -> list[LogSource]:
        prefer = self._options.prefer
        opened = []
        opener = Opener(self._store, self._scratch, self._watch, self._options.readers)
        for name in self._logs:
            source = opener.open(name, preferred=prefer not in (None, OURS)
                                 and os.path.realpath(prefer or "") == os.path.realpath(name))
            stack.callback(source.close)
            opened.append(source)
        return opened

    def _inner_batch_topics(self, parts: Sequence[LogPart]) -> set[str]:
        """Return the topics whose messages in the log are batches, if config/topics.json cannot be
        read.
        """
        if CONSUMEQUEUE not in self._options.only or self._configuration.topics_known:
            return set()
        with self._watch("looking for batch queues", sum(part.size for part in parts)) as done:
            survey = Surveyor(self._generation, self._configuration.batch_topics,
                              progress=done).run(parts)
        return survey.inner_batch_topics

    def _settle(self, saved: Salvage, rebuilt: Rebuilt, steps: Sequence[Step]) -> Disputes:
        """Return the disputes between messages in the log and entries in the store that do not
        match them.
        """
        queues = {queue_of(step.target) for step in steps
                  if _part_of(step.target) == CONSUMEQUEUE}
        settled = disputes(self._store, saved.parts, rebuilt, queues, index=any(
            _part_of(step.target) == INDEX for step in steps))
        if COMMITLOG not in self._options.only or self._options.topic is not None:
            for change in settled.corrected:
                settled.open[CONSUMEQUEUE].add(change.message)
            settled.corrected.clear()
        if tags := settled.open[CONSUMEQUEUE]:
            self._disputed.add(CONSUMEQUEUE)
            self._notes.append(
                f"{plural(len(tags), 'consume queue entry does', 'consume queue entries do')} not "
                "match the tags of the message. Either may be damaged, so neither is changed; "
                "`rmqctl verify` still reports it")
        if keys := settled.open[INDEX]:
            self._disputed.add(INDEX)
            self._notes.append(
                f"index entries do not match the keys of {plural(len(keys), 'message')} (the first "
                f"at {min(keys)}), and no single changed byte explains this. Keys and "
                "index entries stay unchanged; `rmqctl verify` still reports it")
        return settled

    def _timer_troubles(self, saved: Salvage) -> list[Finding]:
        if TIMER not in self._options.only or self._options.topic is not None:
            return []
        return timer_troubles(self._store, saved.log_end)

    def _settle_timed(self, saved: Salvage, timed: TimedDisputes) -> Salvage:
        """Return the log with corrected values of REAL_TOPIC, where units of the timer log prove
        them.
        """
        if COMMITLOG not in self._options.only:
            timed.open |= timed.topics.keys()
            timed.topics.clear()
            timed.corrected.clear()
        if timed.open:
            self._disputed.add(TIMER)
            self._notes.append(
                f"REAL_TOPIC of {plural(len(timed.open), 'timed message')} (the first at "
                f"{min(timed.open)}) does not match the unit in the timer log. Either may be "
                "damaged, so neither is changed; `rmqctl verify` still reports it")
        return self._corrected(saved, timed.corrected) if timed.corrected else saved

    def _corrected(self, saved: Salvage, corrected: Iterable[ChangedByte]) -> Salvage:
        """Return the log with corrected property bytes; entries have proved the corrections."""
        pieces: dict[int, list[OverlayPiece]] = {}
        bases = [part.base for part in saved.parts]
        for change in {change.place: change for change in corrected}.values():
            number = bisect_right(bases, change.place) - 1
            part = saved.parts[number]
            pieces.setdefault(number, []).append(
                OverlayPiece.of(change.place - part.base, bytes([change.after])))
            self._actions.append(Action(
                "correct", part_target(self._store, part), f"0x{change.before:02x}",
                f"0x{change.after:02x}", change.reason, offset=change.place, length=1))
        # A file has one patch, which gets the bytes as well.
        for number, changed in pieces.items():
            target = part_target(self._store, saved.parts[number])
            patch = next((at for at, step in enumerate(self._steps)
                          if isinstance(step, Patch) and step.target == target), None)
            if patch is None:
                self._steps.insert(0, Patch(target, over((), changed)))
            else:
                step = self._steps[patch]
                assert isinstance(step, Patch)
                self._steps[patch] = replace(step, pieces=over(step.pieces, changed))
        return replace(saved, parts=tuple(laid_over(saved.parts, pieces)))

    def _derived(self, saved: Salvage, settled: Disputes | None = None) -> Rebuilt | None:
        """Rebuild consume queues and index from the repaired log. Return None if --only selects
        neither.

        ``settled``: disputes in which the entries have proved the right content of the log.
        """
        # The selected structures; a database is rebuilt separately.
        wanted = self._options.only & {CONSUMEQUEUE, INDEX}
        if self._options.topic is not None or not self._configuration.settings.message_index:
            wanted -= {INDEX}
        in_rocksdb = CONSUMEQUEUE in wanted and self._store.layout.consumequeue == "rocksdb"
        if in_rocksdb:
            wanted -= {CONSUMEQUEUE}
        if not wanted:
            if in_rocksdb:
                self._in_rocksdb(saved)
            return None
        if self._sound is not None:
            self._notes += self._configuration.notes
            self._take(joined([], [], self._foreign(self._sound.rebuilt)))
            return self._sound.rebuilt
        # Rebuilt from the log as it will be, and compared with the store.
        with self._watch("rebuilding", log_size(saved.parts)) as done:
            rebuilt = self._make(
                saved.parts, self._root, self._configuration.settings, self._scratch, only=wanted,
                topic=self._options.topic, queue=self._options.queue, jobs=self._options.jobs,
                progress=done, batch_topics=self._configuration.batch_topics,
                log_end=saved.log_end if COMMITLOG in self._options.only
                and self._options.topic is None else None,
                **({} if settled is None else {"kept": KeptHashes(settled.tags, settled.keys)}),
                **({"opened": self._store} if self._make is rebuild else {}))
        if rebuilt.gaps and self._store.layout.is_dledger:
            raise RefusedError(
                f"{self._root}: entries of the log are lost or damaged. A DLedger log gets no "
                "fillers, because its group did not agree on them, and without fillers, consume "
                "queue entries would be at wrong queue offsets. " + (
                    "A further member of the group may have the lost entries" if self._logs else
                    "Another node of the group may have the lost entries (`rmqctl diff` compares "
                    "two nodes, `rmqctl recover --from` copies the entries)"))
        rebuilt = replace(rebuilt, void_from=saved.void_from)
        is_intact = not saved.steps and not rebuilt.damage.count
        with self._watch("comparing with the store", 0):
            steps, actions = derived_steps(rebuilt, lambda: is_intact and index_is_right(
                self._store, self._watch, self._options.jobs))
        # Entries that contradict the messages may be right: then rebuild again with them.
        if steps and saved.parts and settled is None and self._make is rebuild:
            with self._watch("comparing entries with messages", 0):
                settled = self._settle(saved, rebuilt, steps)
            if settled.tags or settled.keys:
                return self._derived(self._corrected(saved, settled.corrected), settled)
        if in_rocksdb:
            self._in_rocksdb(saved)
        self._notes += self._configuration.notes
        if is_intact and self._store.snapshot is not None:
            # The files are current and the log has a fixed end: a difference may just be newer.
            sound = [part for part in (CONSUMEQUEUE, INDEX) if not self._troubled(part)]
            steps = [step for step in steps if _part_of(step.target) not in sound]
            actions = [action for action in actions if _part_of(action.target) not in sound]
        if is_intact and (unjudged := self._unjudged(steps)):
            self._unjudged_queues = unjudged
            steps = [step for step in steps if queue_of(step.target) not in unjudged]
            actions = [action for action in actions if queue_of(action.target) not in unjudged]
            ends = {key: end for key, end in rebuilt.next_offsets.items() if key not in unjudged}
            rebuilt = replace(rebuilt, next_offsets=ends, gaps=rebuilt.gaps if any(
                _part_of(step.target) == CONSUMEQUEUE for step in steps) else 0)
        self._notes += rebuilt.notes
        self._unplaceable = rebuilt.unplaceable
        self._take(joined(steps, actions, self._foreign(rebuilt)))
        return rebuilt

    def _foreign(self, rebuilt: Rebuilt) -> Planned:
        """Return what moves foreign files out of the rebuilt structures."""
        foreign: Planned = [], []
        if self._options.topic is None:
            for name, strays in (
                    (CONSUMEQUEUE, foreign_queue_entries(self._store, self._generation)),
                    (INDEX, foreign_index_entries(self._store))):
                if name in rebuilt.only:
                    foreign = [*foreign[0], *strays[0]], [*foreign[1], *strays[1]]
        return foreign

    def _rows_before(self) -> int:
        return sum(queue.disk_end - queue.first_index
                   for queue in self._store.queues.by_key.values())

    def _in_rocksdb(self, saved: Salvage) -> None:
        """Rebuild the database of consume queues if it, or one of the selected queues in it, is
        wrong.
        """
        store, options = self._store, self._options
        wants = partial(wants_queue, options.topic, options.queue)
        others = None if options.topic is None else store.queues.rocksdb
        damaged = RefusedError(
            f"{self._root}: the consume queue database is damaged, so entries of other topics "
            "would be lost; run `recover` without --topic to rebuild the entries of all topics")
        if options.topic is not None and (others is None or others.damage):
            raise damaged
        with self._watch("rebuilding", log_size(saved.parts)) as done:
            try:
                self._database = database = rocksdb.make(
                    saved.parts, self._root, self._configuration.settings, self._scratch,
                    {} if store.queues.rocksdb is None else store.queues.rocksdb.queues,
                    log_end=saved.log_end if COMMITLOG in options.only and others is None else None,
                    jobs=options.jobs, progress=done, others=others, recreated=True,
                    wants=None if others is None else wants)
            except FormatError:
                raise damaged from None
        if rocksdb.is_right(store.queues.rocksdb, database, store.log.min_offset, wants):
            return
        why = ("consumequeue cannot be read, or is missing" if self._before is None else
               "a part of consumequeue cannot be read" if store.queues.rocksdb is not None
               and (store.queues.rocksdb.damage or store.queues.rocksdb.has_unread) else
               "consumequeue lags behind the log" if self._before < database.rows else
               "consumequeue has wrong entries")
        self._take(rocksdb.steps(self._root, database, self._before, why))

    def _left_damaged(self, saved: Salvage) -> tuple[str, ...]:
        """Return the structures that remain damaged.

        The log is among them if some of its messages contradict the index, or get no entry because
        their topic cannot be the name of a folder. The index is among them if it is damaged and its
        numbers of slots and entries are unknown.
        """
        in_log = self._unplaceable or saved.wrong_topics or saved.unmarked
        left = (*((COMMITLOG,) if in_log else ()), *sorted(self._disputed))
        if not (INDEX in self._options.only and self._options.topic is None
                and self._configuration.index_unknown and self._troubled(INDEX)):
            return left
        self._notes.append("the index is damaged and is not repaired: key lookups may miss "
                           "messages until it is rebuilt with the broker's index settings")
        return (*left, INDEX)

    def _troubled(self, part: str) -> bool:
        """Return whether `verify` finds problems in a structure: the consume queues or
        the index.
        """
        return any(finding.is_trouble for finding in _verified(
            self._store, part, self._watch, self._options.jobs))

    def _unjudged(self, steps: Iterable[Step]) -> set[tuple[str, int]]:
        """Return the LMQs that are not rebuilt because it is unknown whether entries are missing.
        The result is empty if the user switched multi-dispatch off or asked for all entries.
        """
        off = self._options.given.get("multi_dispatch") is False
        if off or self._options.light_rows or not any(
                queue_of(step.target)[0].startswith(LMQ_PREFIX) for step in steps):
            return set()
        findings = list(_verified(self._store, CONSUMEQUEUE, self._watch, self._options.jobs))
        unjudged = {(finding.topic or "", finding.queue_id or 0) for finding in findings
                    if finding.category == "not-judged" and finding.topic is not None}
        unjudged -= {(finding.topic or "", finding.queue_id or 0) for finding in findings
                     if finding.category != "not-judged"}
        if unjudged:
            first = ", ".join(f"{topic}/{queue_id}" for topic, queue_id in sorted(unjudged)[:3])
            more = f" and {len(unjudged) - 3} more" if len(unjudged) > 3 else ""
            self._notes.append(
                f"LMQs {first}{more} are left as they are: messages have offsets in these queues "
                "but no entries, because enableMultiDispatch was off for a time or because entries "
                "were lost. --multi-dispatch rebuilds all entries")
        return unjudged

    def _table(self, rebuilt: Rebuilt | None) -> dict[str, int]:
        if self._database is not None:
            return {f"{topic}-{queue_id}": end
                    for (topic, queue_id), end in sorted(self._database.ends.items())}
        if rebuilt is not None and CONSUMEQUEUE in rebuilt.only:
            return topic_queue_table(rebuilt)
        if TABLE not in self._options.only:
            return {}
        total = sum(file.size for file in self._store.log.files)
        with self._watch("counting", total) as done:
            rows = count_table(self._store, View(self._store), jobs=self._options.jobs,
                               progress=done,
                               report=lambda problem: self._notes.append(problem.text))
        self._notes += disagreements(rows)
        table = {row.key: row.next_offset() for row in rows}
        return {key: offset for key, offset in table.items() if offset is not None}


def queue_of(target: str) -> tuple[str, int]:
    """Return the topic and queue id of a target that is a consume queue folder or is inside one;
    ("", 0) for other targets.
    """
    parts = target.split(os.sep)
    if parts[0] != CONSUMEQUEUE or len(parts) < 3 or not parts[2].isdecimal():
        return "", 0
    return parts[1], int(parts[2])


def _part_of(target: str) -> str:
    return INDEX if target.split(os.sep, maxsplit=1)[0] == INDEX else CONSUMEQUEUE


def _verified(store: Store, part: str, watch: Watch, jobs: int
              ) -> Generator[Finding, None, None]:
    """Yield the findings of `verify` about one structure, consume queues or index."""
    with watch(f"checking the {part}", store.log.size) as done:
        yield from Verification(
            store, VerifyOptions(only=frozenset({part}), jobs=jobs), done).findings()


def index_is_right(store: Store, watch: Watch, jobs: int) -> bool:
    """Return whether `verify` finds no problem in the index of a store whose log is intact.

    A correct index may differ from a rebuilt one if the broker's clock was set back, or if the
    broker stopped uncleanly. The message at the boundary of two files may then have entries in both
    files, or a file may be empty.
    """
    if ended_by_repair(store) is not None:
        return False
    with closing(_verified(store, INDEX, watch, jobs)) as findings:
        return next(findings, None) is None
