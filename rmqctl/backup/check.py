"""Check a backup: compare each part of the log and each small file with its SHA-256."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from rmqctl.backup.growing import Pace
from rmqctl.backup.points import Part, Point, folder_of
from rmqctl.backup.sums import AT_ONCE, sha256_of
from rmqctl.errors import StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource

_CHANGED = "its bytes have changed since they were copied"


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
        yield from _of_log(backup, points, point, pace) if number >= newest else ()
        folder = folder_of(backup, point)
        for name, digest in point.small.items():
            reason = ""
            end = 0
            try:
                with FileSource(os.path.join(folder, name)) as source:
                    end = source.size
                    if hashlib.sha256(source.read(0, end)).hexdigest() != digest:
                        reason = _CHANGED
            except StoreIOError as error:
                reason = str(error)
            if reason:
                yield ChangedRange(point.id, os.path.relpath(os.path.join(folder, name), backup), 0,
                                   end,
                                   reason)


def _of_log(backup: str, points: list[Point], point: Point, pace: Pace) -> Iterator[ChangedRange]:
    """Yield a fault for each part of the log that a point copied and that has changed since."""
    parts = [part for part in point.parts
             if not _is_expired(os.path.join(backup, part.file), points[0])]
    for first in range(0, len(parts), AT_ONCE):
        some = parts[first:first + AT_ONCE]
        for part, reason in zip(some, _reasons(backup, some), strict=True):
            pace(part.end - part.start)
            if reason:
                yield ChangedRange(point.id, part.file, part.start, part.end, reason)


def _reasons(backup: str, parts: list[Part]) -> list[str]:
    """Return for each of at most `AT_ONCE` parts why it is faulty; empty if it is not."""
    try:
        with ExitStack() as stack:
            sources = [stack.enter_context(FileSource(os.path.join(backup, part.file)))
                       for part in parts]
            sums = sha256_of([(source, part.start, part.end)
                              for source, part in zip(sources, parts, strict=True)])
            return ["" if part.end <= source.size and digest == part.sha256 else _CHANGED
                    for source, part, digest in zip(sources, parts, sums, strict=True)]
    except StoreIOError as error:
        return [str(error)] if len(parts) == 1 else [
            reason for part in parts for reason in _reasons(backup, [part])]


def _is_expired(path: str, oldest: Point) -> bool:
    """Return whether a log file is missing because no remaining restore point needs it."""
    name = os.path.basename(path)
    return not os.path.exists(path) and name.isdigit() and int(name) < oldest.log_start
