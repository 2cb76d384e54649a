"""Check a backup: compare each part of the log and each small file with its SHA-256."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rmqctl.backup.copying import sha256_of
from rmqctl.backup.growing import Pace
from rmqctl.backup.points import Point, folder_of
from rmqctl.errors import StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource


@dataclass(frozen=True, slots=True)
class ChangedRange:
    """A file of the backup that changed after a run wrote it. ``start``, ``end``: the byte range in
    which it changed.
    """

    point: str
    file: str
    start: int
    end: int
    reason: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check(backup: str, points: list[Point],
          pace: Pace = lambda _bytes: None) -> Iterator[ChangedRange]:
    """Yield a fault for each part of the log and each small file that does not match its SHA-256 or
    cannot be read. ``known``: all points of the backup, oldest first.
    """
    newest = max((number for number, point in enumerate(points) if point.summed_again), default=0)
    for number, point in enumerate(points):
        for part in point.parts if number >= newest else ():
            path = os.path.join(backup, part.file)
            if _is_expired(path, points[0]):
                continue
            reason = ""
            try:
                with FileSource(path) as source:
                    if part.end > source.size or (
                            sha256_of(source, part.start, part.end) != part.sha256):
                        reason = "its bytes have changed since they were copied"
            except StoreIOError as error:
                reason = str(error)
            pace(part.end - part.start)
            if reason:
                yield ChangedRange(point.id, part.file, part.start, part.end, reason)
        folder = folder_of(backup, point)
        for name, digest in point.small.items():
            reason = ""
            end = 0
            try:
                with FileSource(os.path.join(folder, name)) as source:
                    end = source.size
                    if hashlib.sha256(source.read(0, end)).hexdigest() != digest:
                        reason = "its bytes have changed since they were copied"
            except StoreIOError as error:
                reason = str(error)
            if reason:
                yield ChangedRange(point.id, os.path.relpath(os.path.join(folder, name), backup), 0,
                                   end,
                                   reason)


def _is_expired(path: str, oldest: Point) -> bool:
    """Return whether a log file is missing because no remaining restore point needs it."""
    name = os.path.basename(path)
    return not os.path.exists(path) and name.isdigit() and int(name) < oldest.log_start
