"""Remove old restore points of a backup and the files that only these points need."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace

from rmqctl.backup.points import Point, folder_of, rewrite
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.files.durable import remove_folder, sync_folder
from rmqctl.store.store import Store


def take_away(backup: str, points: Sequence[Point], before: int) -> tuple[int, int]:
    """Remove the restore points older than ``before`` (epoch ms), but never the newest point. Also
    remove files that the store had already deleted at the oldest remaining point.

    Return (number of removed points, number of removed bytes). Raises: StoreIOError.
    """
    gone = [point for point in points[:-1] if point.time < before]
    left = points[len(gone)] if len(gone) < len(points) else points[-1]
    if gone:
        _take_over(backup, gone, left)
    for point in gone:
        remove_folder(folder_of(backup, point))
    removed = 0
    with Store.open(backup) as store:
        paths = [file.path for file in store.log.files if file.end <= left.log_start]
        removed += _remove(paths)
        for queue in store.queues.plain.values():
            with closing(queue), suppress(StoreIOError):
                removed += _remove([
                    file.path for file, (first, end) in zip(
                        queue.files[:-1], queue.stretches[:-1], strict=False)
                    if end > first and _leads_before(queue.unit(end - 1), left.log_start)])
        for file in store.index.listing.files[:-1]:
            with suppress(FormatError, StoreIOError), closing(store.index.open(file)) as index:
                if index.header.entries and index.header.end_phy_offset < left.log_start:
                    removed += _remove([file.path])
    return len(gone), removed


def _take_over(backup: str, gone: Sequence[Point], left: Point) -> None:
    """Copy the sums and damaged ranges of the remaining log files to the oldest remaining restore
    point. ``gone``: the points to be removed, from which they are copied.
    """
    before = [point for number, point in enumerate(gone)
              if not any(later.summed_again for later in (*gone[number + 1:], left))]

    def stays(file: str) -> bool:
        name = os.path.basename(file)
        return not name.isdigit() or os.path.exists(os.path.join(backup, file))

    parts = [part for point in before for part in point.parts if stays(part.file)]
    damaged = [hole for point in before for hole in point.damaged if stays(hole.file)]
    rewrite(backup, replace(left, parts=(*parts, *left.parts), damaged=(*damaged, *left.damaged)))


def _leads_before(unit: object, start: int) -> bool:
    physical = getattr(unit, "physical_offset", None)
    return physical is not None and physical < start


def _remove(paths: Sequence[str]) -> int:
    """Remove files of the backup; return the disk space that they used, in bytes."""
    removed = 0
    for path in paths:
        with suppress(FileNotFoundError):
            removed += os.stat(path).st_blocks * 512
            os.unlink(path)
    for folder in {os.path.dirname(path) for path in paths}:
        sync_folder(folder)
    return removed
