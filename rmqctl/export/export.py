"""Export of the messages of one or many stores as Parquet, JSON lines, CSV or Avro files.

The ranges of all logs are tasks for a `Pool`. Each task writes its own files and returns their
names. If a partition has few messages in a range, the task spills them. Further tasks write the
files of these partitions.

This module checks the seams between ranges, collects results, and publishes the export by one
rename. The export is published complete, with a manifest of the missing ranges, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from rmqctl.errors import StoreIOError
from rmqctl.export.gather import Gathered, RangeResults, gather
from rmqctl.export.layout import path
from rmqctl.export.manifest import Manifest
from rmqctl.export.plan import StorePlan
from rmqctl.export.result import ExportResult, StoreResult
from rmqctl.export.spec import Export
from rmqctl.export.staging import ExportStaging
from rmqctl.export.task import ExportedRange, export_range
from rmqctl.store.files import StoreFile
from rmqctl.store.log.ranges import FileRange, Pool, in_order

Progress = Callable[[int], None]


def export(plans: Sequence[StorePlan], spec: Export, out: str, pool: Pool,
           progress: Progress | None = None) -> ExportResult:
    """Export the plans into a new folder ``out``.

    Messages with a body CRC mismatch are exported (``crc_ok`` false) and counted. Damaged, missing
    and unreadable ranges are listed in the result and in the manifest.
    Raises: RefusedError if ``out`` exists; StoreIOError if ``out`` cannot be written or nothing can
    be read.
    """
    stores = [StoreResult(plan=plan) for plan in plans]
    for store_result in stores:
        for span in store_result.plan.missing:
            store_result.missing.add(span)
    result = ExportResult(out, stores)
    with ExportStaging(out) as staging, Manifest(staging, spec) as manifest:
        folders: set[str] = set()
        collected = [RangeResults(number, store_plan.buckets)
                     for number, store_plan in enumerate(plans)]

        # Export the ranges in order, with the files of partitions that have enough messages.
        # A single task leaves a core idle, so a thread encodes its files.
        work = cast(Callable[[FileRange[StoreFile]], ExportedRange],
                    partial(export_range, spec, staging.attempts,
                            pool.jobs == 1 and spec.is_encoded))
        pieces = (piece for plan in plans for piece in plan.pieces)
        for _, part in in_order(work, pieces, progress=progress, pool=pool):
            stores[part.store].add(part)
            collected[part.store].add(part)
            folders |= _keep(staging, manifest, spec, part, plans[part.store].name)

        # Write the files of all other partitions.
        tasks = [task for results in collected for task in results.tasks(spec)]
        for _, gathered in pool.run(partial(gather, spec, staging.attempts), tasks):
            stores[gathered.store].take(gathered.files)
            folders |= _keep(staging, manifest, spec, gathered, plans[gathered.store].name)

        for store_result in stores:
            store_result.finish()
        unread = next((store_result for store_result in stores if store_result.nothing_read), None)
        if unread is not None and all(store_result.nothing_read or not store_result.plan.bytes
                                      for store_result in stores):
            raise StoreIOError(f"nothing can be read: {unread.missing.spans[0].reason}")
        result.partitions = len(folders)
        manifest.write(result)
        staging.publish()
    return result


def _keep(staging: ExportStaging, manifest: Manifest, spec: Export,
          written: ExportedRange | Gathered, store: str) -> set[str]:
    """Move a task's files to their final folders, and return these folders."""
    folders = set()
    for file in written.files:
        values = written.values[file.partition]
        folder = path(spec.partition_by, values)
        more = f"_{file.flush:04d}" if file.flush else ""
        name = f"part-{written.store:03d}-{file.at:06d}{more}{spec.ending}"
        relative = f"{folder}/{name}" if folder else name
        staging.keep(written.attempt, file.name, relative)
        manifest.file({"path": relative, "store": store, "rows": file.rows, "bytes": file.bytes})
        manifest.folder(folder, values)
        folders.add(folder)
    return folders
