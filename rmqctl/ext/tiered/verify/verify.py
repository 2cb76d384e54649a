"""Run all checks of `tiered verify` and yield the findings (tiered.md §17).

Index files are read first, and fingerprints of their items are kept. Then every queue's commit log
is scanned once and compared with its consume queue. Finally keys are compared with items. The only
files written are unnamed temporary files, for fingerprints that do not fit into memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import field, replace
from typing import Any

from rmqctl import vfs
from rmqctl.checks import repaired
from rmqctl.checks.findings import INFO, Finding, advised_in_tier
from rmqctl.checks.losses import TierLosses
from rmqctl.checks.verify.common import bounded
from rmqctl.checks.verify.verdict import IsKnown, VerifyResult, first_findings, nothing_new
from rmqctl.errors import FormatError, StoreIOError, UnsupportedError
from rmqctl.ext.tiered.files.opening import open_reader
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue
from rmqctl.ext.tiered.index.index_file import TierIndexFile, local_files, uploaded
from rmqctl.ext.tiered.tier import Tier, index_folder, with_witness
from rmqctl.ext.tiered.verify import files, index
from rmqctl.ext.tiered.verify.context import (
    INDEX,
    LOCAL,
    LOG,
    METADATA,
    QUEUE,
    STRUCTURES,
    TIER,
    QueueFindings,
    TierCoverage,
)
from rmqctl.ext.tiered.verify.items import Items
from rmqctl.ext.tiered.verify.keys import KeySpool, MessageKeys
from rmqctl.ext.tiered.verify.leftover import Leftovers
from rmqctl.ext.tiered.verify.local import compare_queues, count_others
from rmqctl.ext.tiered.verify.queue import QueueCheck, SegmentTimes
from rmqctl.ext.tiered.witness import KnownItems
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata, SegmentEntry
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import time_text
from rmqctl.store.queue.search import first_from
from rmqctl.store.repair_losses import repair_losses
from rmqctl.store.store import Store

_MAX_HANDED_OVER = 10_000
"""Maximum number of findings of one category in one file that a thread returns."""


@dataclass(slots=True)
class Options:
    """Options of a run.

    ``only``: some of `STRUCTURES` (``local`` needs a store); None: all.
    ``index_slots`` and ``index_max``: numbers of slots and items, for files that do not contain
    them (see `index_file.examine`).
    ``jobs``: number of threads.
    """

    only: frozenset[str] | None = None
    broker: str | None = None
    index_slots: int | None = None
    index_max: int | None = None
    jobs: int = 1

    def wants(self, *structures: str) -> bool:
        return self.only is None or any(structure in self.only for structure in structures)


@dataclass(slots=True)
class TierVerification:
    """A verification run. ``coverage`` and ``checked`` are complete only after all `findings` have
    been read.

    ``local``: the store to compare with, message by message. ``beside``: the store whose log may
    still contain messages that the tier has lost.
    """

    tier: Tier
    options: Options = field(default_factory=Options)
    local: Store | None = None
    progress: Callable[[int], None] | None = None
    coverage: TierCoverage = field(default_factory=TierCoverage)
    checked: list[dict[str, Any]] = field(default_factory=list)
    ok: bool = True
    beside: Store | None = None

    def findings(self) -> Iterator[Finding]:
        for finding in bounded(self._all()):
            if finding.severity != INFO:
                self.ok = False
            yield advised_in_tier(finding, self.tier.name)

    def _all(self) -> Iterator[Finding]:
        options = self.options
        if options.wants(TIER):
            yield from files.structure(self.tier, options.broker)
        if options.wants(LOG):
            lost = repair_losses(self.tier.name, None)
            self.coverage.messages_lost_in_repairs = lost.total
            self.coverage.nowhere_since = self._nowhere(lost.total) if lost.total else 0
            yield from repaired.findings(lost)
        if options.wants(METADATA):
            yield from files.metadata(self.tier, options.broker)
        for broker in self._brokers():
            yield from self._broker(*broker)
        if self.local is not None and options.wants(LOCAL):
            for queue in self.tier.queues(broker=options.broker):
                yield from self._guarded(LOCAL, compare_queues(self.tier, queue, self.local,
                                                               self.coverage))
            count_others(self.tier, self.local, self.coverage)
        for name in STRUCTURES:
            if options.wants(name) and (name != LOCAL or self.local is not None):
                self.checked.append({"structure": name})

    def _brokers(self) -> list[tuple[str, str]]:
        return sorted(owner for owner in self.tier.contents.owners
                      if self.options.broker in (None, owner[1]))

    def _broker(self, cluster: str, broker: str) -> Iterator[Finding]:
        """Yield the findings about the queues and index files of a broker."""
        options = self.options
        queues = [queue for queue in self.tier.queues(broker=broker)
                  if queue.name.cluster == cluster]
        tables = Metadata() if broker in files.foreign(self.tier) else self.tier.metadata
        items = Items(queues, tables, self.coverage)
        try:
            if options.wants(INDEX):
                yield from self._index_files(cluster, broker, items)
            if options.wants(LOG, QUEUE, INDEX, METADATA):
                yield from self._wanted(self._queues(queues, items))
            if options.wants(INDEX):
                yield from self._guarded(INDEX, items.findings())
        finally:
            items.close()

    def _queues(self, queues: list[FlatQueue], items: Items) -> Iterator[Finding]:
        self.coverage.queues += len(queues)
        keys = items.keys if items.files else None
        if self.options.jobs > 1 and len(queues) > 1:
            for queue, result in by_threads(self.tier.name, queues, self.options.jobs, keys,
                                            empty_too=items.has_empty,
                                            local_index=self.tier.local_index_folder,
                                            local_from=self._local_from):
                self.coverage.add(result.coverage)
                yield from result.findings
                yield from result.times.findings(queue, self.tier.metadata)
                if self.progress is not None:
                    self.progress(result.coverage.bytes_total)
            return
        for number, queue in enumerate(queues):
            place = QueueFindings(queue, self.coverage, self._local_from(queue))
            check = QueueCheck(queue, place, None if keys is None else
                               MessageKeys(keys, number, queue.name.topic,
                                           empty_too=items.has_empty), self.progress)
            yield from _parts(check)
            yield from check.times.findings(queue, self.tier.metadata)

    def _local_from(self, queue: FlatQueue) -> int | None:
        """Return the queue's first queue offset whose message is in the store's log; None if
        unknown.
        """
        store = self.local or self.beside
        try:
            rows = None if store is None else store.queues.find(queue.name.topic,
                                                                queue.name.queue_id)
            if store is None or rows is None:
                return None
            with closing(rows):
                return first_from(rows, rows.first_index, rows.disk_end, store.log.min_offset)
        except (StoreIOError, UnsupportedError):
            return None  # `verify` of the store reports it

    def _nowhere(self, lost: int) -> int:
        """Return the number of messages that repairs dropped at the ends of queues and that are not
        in the local log.
        """
        between = [(self._local_from(queue), queue.commit_offset) for queue in self.tier.queues()]
        return lost if any(low is None for low, _ in between) else min(
            lost, sum(max(0, (low or 0) - end) for low, end in between))

    def _wanted(self, findings: Iterator[Finding]) -> Iterator[Finding]:
        return (finding for finding in findings if self.options.wants(finding.structure))

    def _guarded(self, structure: str, findings: Iterator[Finding]) -> Iterator[Finding]:
        return _guarded(structure, self.tier.reader.where(""), findings)

    # -- index files -----------------------------------------------------------------------------

    def _index_files(self, cluster: str, broker: str, items: Items) -> Iterator[Finding]:
        flat = self.tier.contents.indexes.get((cluster, broker))
        if flat is not None:
            entries = self.tier.metadata.segments[names.INDEX].get(names.index_path(broker), {})
            for file in uploaded(flat):
                if not isinstance(file, TierIndexFile):
                    yield _unreadable(file)
                    continue
                times = index.ItemTimes()
                yield from self._index_file(file, items, times)
                entry = entries.get(file.base)
                if entry is not None and file.size:
                    yield from _index_entry(file, entry, times)
        if self._owns_local_index(broker):
            yield from _guarded(INDEX, self.tier.local_index_folder or "",
                                self._local_index(broker, items))

    def _owns_local_index(self, broker: str) -> bool:
        """Return whether the local index files belong to this broker."""
        named = self.tier.metadata.brokers
        return broker in named if named else len(self._brokers()) == 1

    def _local_index(self, broker: str, items: Items) -> Iterator[Finding]:
        folder, options = self.tier.local_index_folder, self.options
        slots = options.index_slots or self.tier.known_slots(broker)
        keys = {file.timestamp for file in items.files if file.size}
        for path, file in local_files(folder, items.held, slots, options.index_max):
            name = os.path.basename(path)
            if not isinstance(file, TierIndexFile):
                yield _unreadable(file, path)
                continue
            if not file.shape.old and file.size and int(name) != file.timestamp:
                yield index.note(file, "tiered-index-header", "begins at "
                                 f"{time_text(file.timestamp)}, but at {time_text(int(name))} "
                                 "according to its name",
                                 fmt.HEADER.field("begin_timestamp").offset, length=8)
            elif file.size and file.timestamp in keys:
                yield index.note(file, "tiered-oddity", "already uploaded: a broker deletes it at "
                                 "startup")
            yield from self._index_file(file, items, index.ItemTimes())
        yield from _compacting(folder)

    def _index_file(self, file: TierIndexFile, items: Items,
                    times: index.ItemTimes) -> Iterator[Finding]:
        self.coverage.index_files += 1
        items.start(file)
        yield from self._guarded(INDEX, index.check(file, items.take, times))
        if self.progress is not None:
            self.progress(file.size)


def _index_entry(file: TierIndexFile, entry: SegmentEntry, times: index.ItemTimes) -> Iterator[
        Finding]:
    """Compare the times that the metadata has for an index segment with the segment's header and
    items.
    """
    header = file.header
    low, high = times.newest(file)
    right = entry.end_timestamp == header.end_timestamp or low <= entry.end_timestamp <= high
    if entry.begin_timestamp != header.begin_timestamp or not right:
        yield Finding("tiered-segment-time", METADATA, f"times {time_text(entry.begin_timestamp)} "
                      f"to {time_text(entry.end_timestamp)} in the metadata, "
                      f"{time_text(header.begin_timestamp)} to {time_text(header.end_timestamp)} "
                      "in its header", file.where)


def _compacting(folder: str | None) -> Iterator[Finding]:
    """Yield notes about compacted copies that were not uploaded. A restarted broker creates these
    files again.
    """
    place = os.path.join(folder or "", names.COMPACTING_FOLDER)
    if folder is None or not vfs.isdir(place):
        return
    try:
        left = sorted(vfs.listdir(place))
    except OSError as error:
        yield Finding("file-unreadable", INDEX, str(error), place)
        return
    for name in left:
        yield Finding("tiered-oddity", INDEX, "compacted copy, not uploaded: a broker creates it "
                      "again at startup", os.path.join(place, name))


def _guarded(structure: str, where: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings. For an unreadable file, yield a finding and stop, so that the run continues.
    ``where``: the file to name if the error does not contain a path.
    """
    try:
        yield from findings
    except (StoreIOError, FormatError) as error:
        file = error.file if isinstance(error, FormatError) else None
        yield Finding("file-unreadable", structure, str(error), file or where)


def _parts(check: QueueCheck) -> Iterator[Finding]:
    """Yield all findings of a queue: first those of the scan, then those about unmatched units and
    bytes.
    """
    log = check.queue.commit_log
    where = log.reader.where(log.folder)
    yield from _guarded(LOG, where, check.findings())
    yield from _guarded(QUEUE, where, Leftovers(check).findings())


def _unreadable(error: FormatError | StoreIOError, path: str | None = None) -> Finding:
    if isinstance(error, StoreIOError):
        return Finding("file-unreadable", INDEX, str(error), path)
    return Finding("tiered-index-unreadable", INDEX, error.reason, error.file, error.offset)


# -- by several threads ---------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Result:
    """The results of checking a queue in a thread."""

    findings: list[Finding]
    coverage: TierCoverage
    times: SegmentTimes


def by_threads(root: str, queues: Sequence[FlatQueue], jobs: int, keys: KeySpool | None, *,
               empty_too: bool, local_index: str | None = None,
               local_from: Callable[[FlatQueue], int | None] = lambda _queue: None) -> Iterator[
                   tuple[FlatQueue, _Result]]:
    """Check queues in ``jobs`` threads. Yield every queue with its result, in order. Each thread
    opens the files itself.

    ``keys``: collects the keys of messages; None: keys are not checked.
    ``local_index``: folder of the index files that are not uploaded.
    ``local_from``: see `QueueFindings`.
    Raises: StoreIOError.
    """
    from rmqctl.store.log.threads import parallel

    def work(task: tuple[int, FlatQueue, int | None]) -> _Result:
        number, queue, low = task
        wanted = None if keys is None else MessageKeys(keys, number, queue.name.topic,
                                                       empty_too=empty_too)
        return _checked(root, queue, wanted, local_index, low)

    tasks = ((number, queue, local_from(queue)) for number, queue in enumerate(queues))
    for (_, queue, _), result in parallel(work, tasks, jobs):
        yield queue, result


def _checked(root: str, given: FlatQueue, keys: MessageKeys | None, local_index: str | None,
             local_from: int | None) -> _Result:
    reader = open_reader(root)
    name = given.name
    items = KnownItems(reader, index_folder(name.cluster, name.broker), local_index)
    try:
        queue = with_witness(FlatQueue(name, *(FlatFile.open(reader, kind.folder) for kind in (
            given.commit_log, given.consume_queue))), lambda: items)
        place = QueueFindings(queue, local_from=local_from)
        check = QueueCheck(queue, place, keys)
        findings = list(bounded(_parts(check), most=_MAX_HANDED_OVER))
        return _Result(findings, place.counted, check.times)
    finally:
        items.close()
        reader.close()


def verdict(run: TierVerification, most: int,
            baseline: IsKnown | None = None) -> VerifyResult[TierCoverage]:
    """Run a verification to its end and keep the first ``most`` findings. ``baseline``: known
    findings; if it contains all findings, the verdict is ok.
    """
    first, counts = first_findings(run.findings(), most, baseline)
    lost = TierLosses.of(run.coverage.as_dict()).already if run.options.wants(LOG) else None
    return VerifyResult(run.tier.name, run.ok or nothing_new(counts), first, counts,
                        replace(run.coverage), tuple(run.checked), already_lost=lost)
