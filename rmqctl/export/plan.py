"""Plan of an export: the ranges of each store's log, and an estimate of the output."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from rmqctl import vfs
from rmqctl.checks.preflight.missing import MissingMessages, missing
from rmqctl.errors import StoreIOError, UsageError
from rmqctl.export.forms import buffer, opened
from rmqctl.export.layout import Partitions
from rmqctl.export.lost_part import MAX_PLACES, LostPlace, Range, lost_places, may_lack
from rmqctl.export.spec import Export
from rmqctl.export.staging import checked_target
from rmqctl.export.tally import GAP, UNREADABLE, ExportTally
from rmqctl.export.task import ExportRange, RangeWalk, chosen
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Batch, Span
from rmqctl.store.files import StoreFile
from rmqctl.store.log.end import used_size
from rmqctl.store.log.pages import chosen_files
from rmqctl.store.log.ranges import cuts
from rmqctl.store.query.select import Selection
from rmqctl.store.queue.compaction import CompactedRows, served_queues
from rmqctl.store.store import Sizes, Store

MIN_SIZE, MAX_SIZE = 64 << 20, 512 << 20
"""Minimum and maximum bytes of a range, unless the number of ranges is given."""
BUCKET, MIN_BUCKET, MAX_BUCKETS = 256 << 20, 4 << 20, 1024
"""Division of spilled messages into buckets.

``BUCKET``: bytes of log per bucket; fewer, down to ``MIN_BUCKET``, if workers would be idle.
``MAX_BUCKETS``: maximum number of buckets.
"""
_SAMPLES, _SAMPLE = 8, 4 << 20


class ExportLosses(NamedTuple):
    """Known losses of a store.

    ``places``: the first lost messages that queues prove.
    ``in_part``: whether messages of the exported part may be lost.
    """

    messages: MissingMessages = MissingMessages()
    places: tuple[LostPlace, ...] = ()
    in_part: bool = True


@dataclass(slots=True)
class StorePlan:
    """Plan for a store.

    ``pieces``: ranges of the log to export. ``missing``: ranges known to be missing before the log
    is read.
    """

    name: str
    files: list[StoreFile] = field(default_factory=list)
    pieces: list[ExportRange] = field(default_factory=list)
    missing: list[Span] = field(default_factory=list)
    held: bool = False
    buckets: int = 1
    served: bool = False
    opened: Callable[[], Store] | None = None
    """Function that opens the store again to determine its losses."""
    wanted: Selection = field(default_factory=Selection)

    def losses(self, ranges: Sequence[Range] | None, *, damaged: bool) -> ExportLosses:
        """Return the known losses of the store.

        ``ranges``: all damaged and missing ranges of the log that were found; None if unknown.
        """
        if self.opened is None:
            return ExportLosses()
        with self.opened() as store:
            lost = missing(store, damaged=damaged)
            if not (lost.total or damaged):
                return ExportLosses(lost, in_part=False)
            places: tuple[LostPlace, ...] = ()
            try:
                if lost.queues is not None:
                    places = tuple(islice(lost_places(store, lost.queues), MAX_PLACES))
                inside = self.served or may_lack(store, self.wanted, lost.queues, lost.unplaced,
                                                 ranges)
            except StoreIOError:
                inside = True
            return ExportLosses(lost, places, in_part=inside)

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def used(self) -> int:
        """Return the total size of the ranges in bytes, without the zeros at the end of the log."""
        return sum(piece.end - piece.start for piece in self.pieces)


def plan(names: Sequence[str], wanted: Selection, jobs: int, *, count: int | None = None,
         folders: Sequence[str] = (), sizes: Sizes | None = None,
         compacted: bool = False) -> list[StorePlan]:
    """Return the plan of each store.

    ``count``: number of ranges of each log; None: determined by size and jobs.
    ``compacted``: read a topic with a compaction log from that log, as a broker does.
    Raises: NotAStoreError, StoreIOError for a store that cannot be opened.
    """
    plans = []
    for number, name in enumerate(names):
        # Workers may have another current folder.
        opened = partial(Store.open, vfs.abspath(name), folders, sizes)
        with opened() as store:
            served = _served(store, number, name, wanted) if compacted else None
            plans.append(served or _planned(store, number, name, wanted, jobs, count))
        plans[-1].opened, plans[-1].wanted = opened, wanted
    return plans


def _served(store: Store, number: int, name: str, wanted: Selection) -> StorePlan | None:
    """Return the plan for a topic whose queues are read from compaction logs; None for any other
    topic.
    """
    queues = [queue_id for topic, queue_id in served_queues(store) if topic == wanted.topic]
    if wanted.topic is None or not queues or (wanted.from_phy, wanted.to_phy) != (None, None):
        return None
    planned = StorePlan(name, held=store.lock.held)
    files = [(file, queue_id) for queue_id in queues if wanted.queue_id in (None, queue_id)
             for file in CompactedRows(store, wanted.topic, queue_id).log.files]
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    for at, (file, queue_id) in enumerate(files):
        planned.files.append(file)
        planned.pieces.append(ExportRange(
            file, 0, file.size, file.size, False, number, at, text,
            vfs.relpath(file.path, store.root), len(files) == 1, 1,
            partial(_served_batches, vfs.abspath(store.root), wanted.topic, queue_id, file.base,
                    file.end)))
    planned.served = True
    return planned


def _served_batches(root: str, topic: str, queue_id: int, start: int, end: int,
                    _unread: object) -> Iterator[Batch]:
    """Yield the messages that a broker serves from a file of a compaction log."""
    rows = CompactedRows(Store(root, [], Sizes()), topic, queue_id)
    with contextlib.closing(rows.log):
        yield from rows.batches(start, end)


def _planned(store: Store, number: int, name: str, wanted: Selection, jobs: int,
             count: int | None) -> StorePlan:
    planned = StorePlan(name, held=store.lock.held)
    # Note what is missing before any byte is read: unreadable files and gaps between files.
    for trouble in store.log_troubles:
        if trouble.unreadable:
            planned.missing.append(Span(UNREADABLE, 0, 0, f"{trouble.path}: {trouble.reason}"))
    before: int | None = None
    for place in chosen_files(store.log, wanted):
        file = store.log.files[place]
        last = None if before is None else store.log.files[before]
        if last is not None and before == place - 1 and last.end < file.base:
            planned.missing.append(Span(GAP, last.end, file.base - last.end,
                                        "no file contains these bytes"))
        before = place
        planned.files.append(file)
    # Cut the log into ranges: as many as requested, or a few per worker within bounds of size.
    ends = _ends(planned.files)
    if count is not None:
        size = max(1, -(-sum(ends) // count))
    else:
        size = min(max(sum(ends) // (4 * max(jobs, 1)), MIN_SIZE), MAX_SIZE)
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    # Use enough buckets to keep idle workers busy when ranges are merged.
    total = sum(ends)
    planned.buckets = max(1, min(max(total // BUCKET, min(jobs, total // MIN_BUCKET)),
                                 MAX_BUCKETS))
    # A worker gets pieces and not the store, so each piece carries the names it needs.
    parts = [part for file, used in zip(planned.files, ends, strict=True)
             for part in cuts(file, 0, used, file.size, size)]
    for at, part in enumerate(parts):
        relative = vfs.relpath(part.file.path, store.root)
        planned.pieces.append(ExportRange(
            part.file, part.start, part.end, part.until, part.resync, number, at, text, relative,
            len(parts) == 1, planned.buckets))
    return planned


def _ends(files: Sequence[StoreFile]) -> list[int]:
    """Return the position at which reading of each file stops. Zeros after the end of the log are
    not read.

    Zeros at the end of an earlier file are read, because they are damage. The export later reports
    a file that cannot be opened.
    """
    ends = [file.size for file in files]
    for number in reversed(range(len(files))):
        with contextlib.suppress(StoreIOError), files[number].open() as source:
            ends[number] = used_size(source)
        if ends[number]:
            break
    return ends


@dataclass(frozen=True, slots=True)
class Estimate:
    """The approximate number of bytes that an export will write, calculated from ``sampled`` bytes
    of the logs.
    """

    bytes: int
    sampled: int


def estimate(spec: Export, plans: Sequence[StorePlan]) -> Estimate:
    """Estimate the size of an export by exporting a few MiB of some ranges into memory."""
    pieces = [piece for store_plan in plans for piece in store_plan.pieces]
    total = sum(piece.end - piece.start for piece in pieces)
    step = max(1, len(pieces) // _SAMPLES)
    read = sample_size = 0
    for piece in pieces[::step][:_SAMPLES]:
        end = min(piece.end, piece.start + _SAMPLE)
        covered, size = _sampled(spec, replace(piece, end=end))
        read, sample_size = read + covered, sample_size + size
    return Estimate(sample_size * total // read if read else 0, read)


def _sampled(spec: Export, part: ExportRange) -> tuple[int, int]:
    """Return the size in bytes of a range of the log, and of an export file that contains its
    messages.
    """
    reading = RangeWalk(part, ExportTally())
    target, rows = io.BytesIO(), buffer(spec, part.origin)
    partitions = Partitions((), part.name, spec.zone)
    file = opened(spec, target)
    for batch in reading:
        wanted = chosen(spec, batch) if len(batch) else batch
        if len(wanted):
            rows.add(wanted, partitions.codes(wanted))
    for chunk in rows.take().all():
        file.write(chunk)
    file.close()
    return max(reading.position - reading.first, 0), len(target.getvalue())


def check_place(out: str, names: Sequence[str], folders: Sequence[str]) -> None:
    """Raise UsageError if ``out`` is inside a store to be exported; also raise the errors of
    `checked_target`.
    """
    target = checked_target(out)
    for name in names:
        for path in (name, *(os.path.join(name, folder) for folder in folders)):
            store = vfs.realpath(path).rstrip(os.sep)
            if target == store or target.startswith(store + os.sep):
                raise UsageError(f"--out {out} is inside {path}, a store to be exported")


def plan_document(plans: Sequence[StorePlan], out: str, expected: Estimate) -> dict[str, Any]:
    """Return the document of ``pipeline export --dry-run``."""
    return {
        "out": out,
        "partitions": sum(len(store.pieces) for store in plans),
        "bytes": sum(store.bytes for store in plans),
        "used_bytes": sum(store.used for store in plans),
        "expected_bytes": expected.bytes,
        "sampled_bytes": expected.sampled,
        "free_bytes": shutil.disk_usage(os.path.dirname(os.path.realpath(out))).free,
        "stores": [{"store": store.name, "files": len(store.files), "bytes": store.bytes,
                    "used_bytes": store.used, "partitions": len(store.pieces),
                    "missing": len(store.missing)} for store in plans],
    }
