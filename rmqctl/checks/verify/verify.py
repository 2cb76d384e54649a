"""Check everything in a store that can be checked, and yield the findings.

The log pass reads every byte of the log once and compares each message with consume queues and
index. Entries that match no message are explained afterwards. Small structures have their own
checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rmqctl import vfs
from rmqctl.broker.recovery import ended_by_repair
from rmqctl.checks import repaired
from rmqctl.checks.findings import INFO, Finding, advised
from rmqctl.checks.verify import checkpoint, compaction, config, files
from rmqctl.checks.verify.at_start import AtStart
from rmqctl.checks.verify.common import plural
from rmqctl.checks.verify.context import ComparedStructures, Context, RangeResult, known_topics
from rmqctl.checks.verify.index import findings as index_structure
from rmqctl.checks.verify.index.findings import index_findings
from rmqctl.checks.verify.log import ranges
from rmqctl.checks.verify.log.findings import log_findings, with_earlier_start
from rmqctl.checks.verify.queue.batch_rows import batch_forward
from rmqctl.checks.verify.queue.reconcile import QueueReconciler, missing_queue
from rmqctl.checks.verify.queue.rows import QueueKey
from rmqctl.checks.verify.timer import timer
from rmqctl.errors import StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource
from rmqctl.store.index.entries import AllIndexEntries
from rmqctl.store.layout import CONTROLLER_FILES
from rmqctl.store.log.cut_off import CutOff
from rmqctl.store.log.ranges import Pool
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.scan.profile import LogProfile

STRUCTURES = ("commitlog", "consumequeue", "index", "checkpoint", "config", "timer",
              "compaction", "store")
_OVER_LOG = ("commitlog", "consumequeue", "index", "checkpoint", "timer")
"""Structures that are compared with the log."""
LOG_STRUCTURES = frozenset({"commitlog", "consumequeue", "index"})
"""The log and the structures that a broker makes of it alone."""
_WITHOUT_LOG = frozenset({"config", "store"})
"""Structures that can be checked without reading the log."""
_BEYOND = frozenset({"cq-ahead", "log-cut", "index-ahead", "checkpoint-ahead"})
"""Categories of findings about data beyond the end of a log that a repair truncated as a broker
does.
"""
_SEQUENCES = {"commitlog": "commitlog", "consumequeue": "consumequeue",
              "consumequeue_ext": "consumequeue", "batchconsumequeue": "consumequeue",
              "index": "index", "timer": "timer", "compaction": "compaction"}
"""For each structure with files, the ``--only`` value that selects the check of their names and
sizes.
"""


@dataclass(slots=True)
class VerifyOptions:
    """Options of a run.

    * ``only``: structures to check (None: all)
    * ``jobs``: number of threads for the log pass
    * ``ranges``: number of ranges that the log is split into for these threads (None: automatic)
    * ``profile``: also profile the log by time and position
    * ``release``: release of the assumed broker (None: the release that wrote the store)
    * ``plain``: raise `NotPlainError` as soon as the log cannot be plain

    Three options restrict the run to a part of the log. Entries are then compared only with this
    part.

    * ``sample``: check this share (0…1) of the log, in pieces chosen by ``seed``
    * ``since``: check the log from this physical offset on
    * ``part``: check only these physical offsets, ``[start, end)``; start is a frame boundary
    """

    only: frozenset[str] | None = None
    jobs: int = 1
    minimum_range: int | None = None
    sample: float | None = None
    since: int | None = None
    seed: int = 0
    ranges: int | None = None
    profile: bool = False
    part: tuple[int, int] | None = None
    release: str | None = None
    plain: bool = False

    def wants(self, structure: str) -> bool:
        return self.only is None or structure in self.only


@dataclass(slots=True)
class Coverage:
    """Counts of what was checked.

    * ``bytes_total``: size of the commitlog, the sum of ``bytes_in_messages``, ``bytes_blank``,
      ``bytes_zero`` and ``bytes_damaged``
    * ``messages_undecided``: intact records that may be messages or part of a body, and stale
      records
    * ``messages_replaced``: messages that a repair wrote in place of lost messages, or kept
      although they are damaged
    * ``messages_lost_in_repairs``: messages and undecided records that repairs dropped
    * ``discarded``: the undecided records that repairs dropped
    """

    bytes_total: int = 0
    messages: int = 0
    messages_undecided: int = 0
    messages_replaced: int = 0
    messages_lost_in_repairs: int = 0
    bytes_in_messages: int = 0
    bytes_blank: int = 0
    bytes_zero: int = 0
    bytes_damaged: int = 0
    bytes_unverifiable: int = 0
    consumequeue_rows: int = 0
    index_entries: int = 0
    discarded: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the JSON object; ``messages_undecided`` includes the records in ``discarded``."""
        values: dict[str, int] = {name: getattr(self, name) for name in self.__slots__}
        values["messages_undecided"] += values.pop("discarded")
        return values


@dataclass(slots=True)
class Verification:
    """A run of `verify`.

    ``coverage`` and ``checked`` are complete after `findings` has been iterated to its end.

    * ``progress``: receives the number of bytes read since the last call
    * ``phase``: receives the name of each step after the log pass
    """

    store: Store
    options: VerifyOptions = field(default_factory=VerifyOptions)
    progress: Callable[[int], None] | None = None
    pool: Pool | None = None
    coverage: Coverage = field(default_factory=Coverage)
    checked: list[dict[str, Any]] = field(default_factory=list)
    ok: bool = True
    log_end: int = 0
    last_record: tuple[int, int] | None = None
    profile: LogProfile | None = None
    parts: list[ranges.VerifyRange] | None = None
    not_judged: dict[str, str] = field(default_factory=dict)
    phase: Callable[[str], None] | None = None
    seen: RangeResult | None = None
    """Results of the log pass; None if it did not read the whole log or compare all structures."""
    _unreadable: dict[QueueKey, Finding] = field(default_factory=dict)
    _at_start: AtStart = field(init=False)

    def __post_init__(self) -> None:
        # Including what a repair has truncated, as a broker finds it.
        self._at_start = AtStart(self.store)

    @property
    def settled(self) -> bool:
        """Return whether the store has no problem, not even one that the next broker startup
        repairs.
        """
        return self.ok and not self._at_start.relied_on

    def _parts(self) -> list[ranges.VerifyRange] | None:
        """Return the ranges of the log to read; None for the whole log."""
        options, log = self.options, self.store.log
        if options.part is not None:
            return [ranges.VerifyRange(*options.part, False)]
        if options.since is not None and options.since > log.min_offset:
            return [ranges.VerifyRange(min(options.since, log.end), log.end, False)]
        if options.sample is not None and options.sample < 1:
            return ranges.sample(self.store, options.sample, options.seed)
        return None

    def findings(self) -> Iterator[Finding]:
        """Yield all findings, with the command that helps."""
        return map(self.advised, self.counted())

    def advised(self, finding: Finding) -> Finding:
        """Return a finding of `counted` with its ``next`` command."""
        # No repair is planned for bytes that cannot be written.
        if not self.store.layout.is_mended:
            return finding.with_next(None)
        return advised(finding, self.store.root)

    def counted(self) -> Iterator[Finding]:
        """Yield all findings, and count in ``coverage`` what they tell of messages."""
        for finding in self._judged():
            if finding.severity != INFO:
                self.ok = False
            if finding.category == "ambiguous":
                self.coverage.messages_undecided += finding.count
            if finding.category in ("fillers", "kept-damaged"):
                self.coverage.messages_replaced += finding.count
            if finding.category == "lost-in-repair":
                self.coverage.messages_lost_in_repairs = self.store.repair_losses.total
                self.coverage.discarded = self.store.repair_losses.undecided
            yield finding

    def _judged(self) -> Iterator[Finding]:
        """Yield all findings; for an index file that the next startup discards, only one finding of
        each category.
        """
        for structure, findings in groupby(self._all(), key=attrgetter("structure")):
            if structure != "index" or self.store.lock.held:
                yield from findings
                continue
            going: dict[tuple[str, str], tuple[Finding, int]] = {}
            for reported in findings:
                finding = self._at_start.index_file(reported)
                if finding is reported or finding.file is None:
                    yield finding
                else:
                    key = finding.file, finding.category
                    first, before = going.get(key, (finding, 0))
                    going[key] = first, before + 1
            for first, count in going.values():
                yield first if count == 1 else replace(
                    first, count=count,
                    detail=f"the first of {count:,} similar findings in this file: {first.detail}")

    def _all(self) -> Iterator[Finding]:
        full_store, cut = self.store, ended_by_repair(self.store)
        if self._judges("commitlog"):
            yield from repaired.findings(full_store.repair_losses)
        if cut is None:
            yield from self._structures()
            return
        with full_store.up_to(cut.end) as self.store:
            for finding in self._structures():
                yield finding if finding.category not in _BEYOND else replace(
                    finding, severity=INFO,
                    detail=f"{finding.detail}; a repair truncated the log there")
        self.store = full_store
        if self.options.wants("commitlog"):
            yield _left(full_store, cut)

    def _structures(self) -> Iterator[Finding]:
        # Structures that are not checked, and why.
        store, options = self.store, self.options
        live = store.lock.held
        result = RangeResult(0)
        context: Context | None = None
        self.not_judged = _not_judged(store, options.wants)
        yield from self._layout()
        # The pass over the log, and the results derived from it.
        if any(self._judges(name) for name in _OVER_LOG):
            # Ends first: what a running broker dispatches from now on is already in the log.
            ends = self._ends()
            wanted = ComparedStructures(self._judges("consumequeue"), options.wants("index"),
                                        options.profile, options.plain)
            try:
                self.parts = self._parts()
                if self.parts is None:
                    result = ranges.run(store, ends, wanted, options.jobs, self.progress,
                                        options.minimum_range, self.pool, options.ranges)
                else:
                    result = ranges.run_parts(store, ends, wanted, self.parts, self.progress)
                if self.parts is None and store.cut_off is None and all(
                        map(options.wants, LOG_STRUCTURES)):
                    self.seen = result
            except StoreIOError as error:
                yield Finding("file-unreadable", "commitlog", str(error))
            self._begin("comparing consume queues and index")
            context = self._context(result, live)
            yield from self._log(context, ends)
        # The small files.
        self._begin("checking the other files")
        yield from small_checks(store, context, self.log_end, self._judges, live,
                                self.options.release)
        for name in STRUCTURES:
            if self._judges(name):
                self.checked.append({"structure": name})

    def _begin(self, phase: str) -> None:
        if self.phase is not None:
            self.phase(phase)

    def _judges(self, structure: str) -> bool:
        """Return whether a structure was requested and can be read.

        ``config`` always counts as readable, since only single files in it may be unreadable.
        """
        return self.options.wants(structure) and structure not in self.store.layout.damaged and (
            structure == "config" or structure not in self.not_judged)

    def _layout(self) -> Iterator[Finding]:
        """Yield findings for structures that are not checked.

        If consume queues exist in two forms, also yield notes on which form is used.
        """
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.not_judged.items():
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            yield Finding("not-judged", names[0], f"{', '.join(names)}: {reason}")
        if self.options.wants("consumequeue"):
            if "consumequeue" in self.store.layout.damaged:
                why = self.store.layout.unread["consumequeue"]
                yield Finding("cq-database", "consumequeue", f"{why}; a broker does not start on "
                              "it", file=self.store.path("consumequeue"))
            for note in self.store.layout.notes:
                yield Finding("not-judged", "consumequeue", note,
                              file=self.store.path("consumequeue"))

    def _ends(self) -> dict[QueueKey, int]:
        if not self._judges("consumequeue"):
            return {}
        ends = {}
        for key, queue in self.store.queues.by_key.items():
            try:
                ends[key] = queue.disk_end
            except StoreIOError as error:
                ends[key] = queue.first_index
                self._unreadable[key] = _unreadable(queue, error)
            queue.close()
        return ends

    def _context(self, result: RangeResult, live: bool) -> Context:
        store, cover = self.store, self.coverage
        self.log_end = self._end_of(result)
        self.profile = result.profile
        if result.last_record_start is not None and result.last_record_end is not None:
            self.last_record = result.last_record_start, result.last_record_end
        for name in ("messages", "bytes_in_messages", "bytes_blank", "bytes_zero",
                     "bytes_damaged", "bytes_unverifiable"):
            setattr(cover, name, getattr(result, name))
        cover.bytes_total = (cover.bytes_in_messages + cover.bytes_blank + cover.bytes_zero
                             + cover.bytes_damaged)
        if self.parts is not None and (not self.parts or (
                self.parts[-1].end < store.log.end and (
                    self.options.part is not None
                    or (result.last_record_end or 0) <= self.parts[-1].start))):
            self.log_end = store.log.end  # the end was not read
        # A torn last record is damage at the end, not the end: entries that point to it are lost.
        torn = [span.end for span in result.spans if span.offset >= self.log_end and span.located]
        return Context(store, result, max([self.log_end, *torn]), live, known_topics(store),
                       None if self.parts is None else [
                           (part.start, part.end) for part in self.parts],
                       at_start=None if live else self._at_start)

    def _end_of(self, result: RangeResult) -> int:
        """Return the offset after the last record, or after the blank that ends its file if the
        next file already exists.
        """
        end = result.last_record_end
        if end is None:
            return max(self.options.since or 0, self.store.log.min_offset)
        file = self.store.log.file_of(end)
        if file is not None and self.store.log.is_blank_at(end) and (
                self.store.log.file_of(file.end) is not None):
            return file.end
        return end

    def _log(self, context: Context, ends: dict[QueueKey, int]) -> Iterator[Finding]:
        store, result, cover = self.store, context.result, self.coverage
        reconcilers = self._reconcilers(context, ends) if self._judges("consumequeue") else []
        queue_findings = [finding for reconciler in reconcilers
                          for finding in reconciler.findings()]
        of_log = (log_findings(context, self.log_end, queue_findings)
                  if self.options.wants("commitlog") else ())
        of_log = chain(of_log, self._entries(context) if self.options.wants("commitlog") else ())
        yield from with_earlier_start(context, self.log_end, chain(of_log, queue_findings))
        yield from self._unreadable.values()
        if self._judges("consumequeue"):
            cover.consumequeue_rows = sum(
                end - store.queues.by_key[key].first_index for key, end in ends.items())
            for key, tally in sorted(result.queues.items()):  # ranges meet them in other orders
                if key not in store.queues.by_key or not store.queues.by_key[key].exists:
                    yield from missing_queue(context, key, tally)
            yield from batch_forward(context)
            if store.layout.consumequeue == "rocksdb":
                from rmqctl.checks.verify.queue import rocksdb

                yield from rocksdb.check(context)
            elif store.layout.consumequeue == "double":
                from rmqctl.checks.verify.queue import rocksdb

                yield from rocksdb.check_copy(store)
        if self.options.wants("index"):
            yield from index_structure.check(store)
            entries = AllIndexEntries(store)
            cover.index_entries = entries.total
            entries.close()
            if not entries.unknown:  # otherwise their keys would seem to be missing
                yield from index_findings(context)

    def _entries(self, context: Context) -> Iterator[Finding]:
        """Yield the findings for the entries of a DLedger log."""
        if context.result.entries is not None:
            from rmqctl.checks.verify.log.entries import entry_findings

            yield from entry_findings(
                self.store, context.result.entries, self.log_end, live=context.live,
                whole=self.parts is None or self.parts[-1].end >= self.store.log.end)

    def _reconcilers(self, context: Context, ends: dict[QueueKey, int]) -> list[QueueReconciler]:
        reconcilers = []
        for key, queue in self.store.queues.by_key.items():
            if key in self._unreadable:
                continue
            reconciler = QueueReconciler(context, queue, context.result.queues.get(key), ends[key])
            try:
                reconciler.prepare()
            except StoreIOError as error:
                self._unreadable[key] = _unreadable(queue, error)
                continue
            reconcilers.append(reconciler)
            queue.close()
        return reconcilers


def _left(store: Store, cut: CutOff) -> Finding:
    """Return the finding for bytes after the end of a log that a repair truncated."""
    file = store.log.file_of(cut.end)
    count = sum(int(batch.crc_ok().sum()) for batch in store.log.walk(cut.end, cut.used))
    return Finding(
        "cut-off", "commitlog", f"a repair truncated the log at {cut.end}, before "
        f"{plural(count, 'intact message')}", file=None if file is None else file.path,
        offset=cut.end, length=cut.used - cut.end,
        position=None if file is None else cut.end - file.base, count=max(count, 1))


def _unreadable(queue: ConsumeQueue, error: StoreIOError) -> Finding:
    """Return the finding for an unreadable queue; it names the file if the queue cannot
    be opened.
    """
    path = queue.folder
    for file in queue.files:
        try:
            FileSource(file.path).close()
        except StoreIOError as refused:
            path, error = file.path, refused
            break
    return Finding("file-unreadable", "consumequeue", str(error), file=path, topic=queue.topic,
                   queue_id=queue.queue_id)


def _not_judged(store: Store, wants: Callable[[str], bool]) -> dict[str, str]:
    """Return the requested structures that cannot be checked because of the store's layout, each
    with the reason.
    """
    unread = dict(store.layout.unread)
    if "commitlog" in unread:
        unread |= {name: unread["commitlog"] for name in STRUCTURES if name not in _WITHOUT_LOG}
    return {name: unread[name] for name in STRUCTURES
            if name in unread and name not in store.layout.damaged and wants(name)}


def small_checks(store: Store, context: Context | None, log_end: int,
                 wants: Callable[[str], bool], live: bool,
                 release: str | None = None) -> Iterator[Finding]:
    """Yield the findings of the checks of small structures, in the order of `STRUCTURES`.

    ``context``: results of the log pass (None: the log was not read).
    """
    for finding in files.check(store):
        if wants(_SEQUENCES.get(finding.structure, "store")):
            yield finding
    if wants("checkpoint"):
        # A part of the log may lack the newest time: a sample, or a clock that was set back.
        newest = context.result.last_store_timestamp if context and not context.looked_at else None
        yield from checkpoint.check(store, newest, log_end, live=live)
    if wants("config"):
        logged = {key: tally.end for key, tally in context.result.queues.items()} if (
            context) else None
        yield from config.check(store, live=live, logged=logged, release=release)
    if wants("timer"):
        yield from timer.check(store, log_end, live=live,
                               in_damage=context.in_damage if context else None)
    if wants("compaction"):
        yield from compaction.check(store, live=live)
    in_damage = context.in_damage if context else None
    if wants("store") and any(vfs.lexists(store.path(name)) for name in CONTROLLER_FILES):
        from rmqctl.checks.verify import controller

        yield from controller.check(store, None if context is None else log_end, live=live,
                                    in_damage=in_damage)
    if wants("consumequeue"):
        yield from config.check_queues(store, log_end, live=live, in_damage=in_damage)
