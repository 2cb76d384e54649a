"""The messages of one or many stores as Parquet, JSON lines, CSV or Avro files.

The ranges of all logs are tasks for a `Pool`; each writes files of its own and returns their
names. Here the seams between ranges are checked, what counts is collected, and the whole is
published by one rename: complete, or with a manifest that says what is missing, or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from rmqctl.errors import StoreIOError
from rmqctl.pipeline.export.layout import path
from rmqctl.pipeline.export.manifest import Manifest
from rmqctl.pipeline.export.plan import GAP, StorePlan
from rmqctl.pipeline.export.spec import Export
from rmqctl.pipeline.export.staging import Staging
from rmqctl.pipeline.export.task import MOST_NAMED, Faults, Part, export_range
from rmqctl.scan.frames import DAMAGED, Span
from rmqctl.store.log.ranges import Pool, Range, in_order

Progress = Callable[[int], None]


@dataclass(slots=True)
class StoreResult:
    """What came of one store. Times in ms (store time), offsets physical."""

    plan: StorePlan
    messages: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    bad_crc: int = 0
    bad_crc_at: list[int] = field(default_factory=list)
    damage: Faults = field(default_factory=Faults)
    missing: Faults = field(default_factory=Faults)
    in_progress: Span | None = None
    first_time: int | None = None
    last_time: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    _tail: list[Span] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every message that the log should hold was exported, with a sound body."""
        return not (self.bad_crc or self.damage.count or self.missing.count)

    @property
    def nothing_read(self) -> bool:
        """Whether the system gave nothing of a log that has files, or of its folder."""
        return bool(self.missing.count) and not (self.messages or self.damage.count) and all(
            one.kind != GAP for one in self.missing.spans)

    def add(self, part: Part) -> None:
        """Takes the next range's result, in the order of the log."""
        tally = part.tally
        if tally.messages:
            self._settle()
        self.damage.merge(tally.inside)
        self._tail += tally.tail
        if len(self._tail) > MOST_NAMED:
            self._settle()
        self.missing.merge(tally.unreadable)
        self.messages += tally.messages
        self.rows += tally.rows
        self.bad_crc += tally.bad_crc
        self.bad_crc_at += tally.bad_crc_at[:max(MOST_NAMED - len(self.bad_crc_at), 0)]
        self.files += len(part.files)
        self.bytes += sum(one.bytes for one in part.files)
        self.first_time = _least(self.first_time, tally.first_time)
        self.last_time = _least(self.last_time, tally.last_time, max)
        self.first_offset = _least(self.first_offset, tally.first_offset)
        self.last_offset = _least(self.last_offset, tally.last_offset, max)

    def _settle(self) -> None:
        for one in self._tail:
            self.damage.add(one)
        self._tail.clear()

    def finish(self) -> None:
        """The log has ended: zeros behind its last message are no damage, nor is a record that
        the process which holds the store is just writing.
        """
        left = [one for one in self._tail if one.kind == DAMAGED]
        if left and self.plan.held:
            self.in_progress = left.pop()
        self._tail = left
        self._settle()


def _least(one: int | None, other: int | None, pick: Callable[[int, int], int] = min) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return pick(one, other)


@dataclass(slots=True)
class Result:
    """What came of an export. ``out`` is where it lies; ``partitions`` counts the folders."""

    out: str
    stores: list[StoreResult]
    partitions: int = 0

    @property
    def complete(self) -> bool:
        return all(one.complete for one in self.stores)

    def total(self, name: str) -> int:
        """The sum of a count over all stores."""
        return sum(getattr(one, name) for one in self.stores)


def export(plans: Sequence[StorePlan], spec: Export, out: str, pool: Pool,
           progress: Progress | None = None) -> Result:
    """Exports what was planned into a new folder ``out``.

    Messages whose body does not match its CRC are exported (``crc_ok`` false) and counted. What
    is damaged, missing or unreadable is named in the result and in the manifest.
    RefusedError if ``out`` is there; StoreIOError if it cannot be written, or nothing be read.
    """
    stores = [StoreResult(one) for one in plans]
    for one in stores:
        for span in one.plan.missing:
            one.missing.add(span)
    result = Result(out, stores)
    with Staging(out) as staging, Manifest(staging, spec) as manifest:
        folders: set[str] = set()
        work = cast(Callable[[Range], Part], partial(export_range, spec, staging.attempts))
        pieces = (piece for one in plans for piece in one.pieces)
        for part in in_order(work, pieces, progress=progress, pool=pool):
            stores[part.store].add(part)
            folders |= _keep(staging, manifest, spec, part, plans[part.store].name)
        for one in stores:
            one.finish()
        unread = next((one for one in stores if one.nothing_read), None)
        if unread is not None and all(one.nothing_read or not one.plan.bytes for one in stores):
            raise StoreIOError(f"nothing of it can be read: {unread.missing.spans[0].reason}")
        result.partitions = len(folders)
        manifest.write(result)
        staging.publish()
    return result


def _keep(staging: Staging, manifest: Manifest, spec: Export, part: Part, store: str) -> set[str]:
    """Moves a range's files to where they belong; the folders that got some."""
    seen: Counter[int] = Counter()
    folders = set()
    for file in part.files:
        values = part.partitions[file.partition]
        folder = path(spec.partition_by, values)
        number = seen[file.partition]
        seen[file.partition] += 1
        more = f"-{number}" if number else ""
        name = f"part-{part.store:03d}-{part.at:06d}{more}{spec.ending}"
        relative = f"{folder}/{name}" if folder else name
        staging.keep(part.attempt, file.name, relative)
        manifest.file({"path": relative, "store": store, "rows": file.rows, "bytes": file.bytes})
        manifest.folder(folder, values)
        folders.add(folder)
    return folders
