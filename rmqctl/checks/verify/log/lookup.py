"""Many records by their physical offsets, read in windows and checked by column.

For the structures whose rows lead to scattered messages of the log (timer log, batch
consumequeue): one positioned read serves all rows that lie near each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.formats.local.message import MIN_SIZE
from rmqctl.scan.frames import Array, Batch, examine
from rmqctl.scan.source import FileSource
from rmqctl.store.log.commit_log import CommitLog

_WINDOW = 4 << 20
_LONG_MAX = (1 << 63) - 1
_NEAR = 64 << 10
"""Bytes between two records that are rather read than left out by another call."""


@dataclass(slots=True)
class Window:
    """Rows of the request that lie together. ``found`` says where a whole record provably is.

    ``batch`` holds the found records only, in the order of ``rows[found]``; None if there is no
    such file or it cannot be read.
    """

    rows: Array
    found: Array
    batch: Batch | None


def records_at(log: CommitLog, offset: Array, size: Array) -> Iterator[Window]:
    """Looks up the records at ``offset`` (ascending, each once); ``size`` is how much to read.

    Every row is in exactly one window. A record larger than its ``size`` is not found.
    """
    if not len(offset):
        return
    bases = np.array([one.base for one in log.files], np.int64)
    ends = np.array([min(one.end, _LONG_MAX) for one in log.files] or [0], np.int64)
    number = np.searchsorted(bases, offset, "right") - 1
    number[offset >= ends[number]] = -1
    cuts = np.flatnonzero(np.diff(number)) + 1
    for rows in np.split(np.arange(len(offset)), cuts):
        file = int(number[rows[0]])
        try:
            source = log.source(file) if file >= 0 else None
        except StoreIOError:
            source = None
        if source is None:
            yield Window(rows, np.zeros(len(rows), bool), None)
            continue
        yield from _in_file(source, rows, offset[rows] - source.base, size[rows])


def _in_file(source: FileSource, rows: Array, start: Array, size: Array) -> Iterator[Window]:
    end = np.minimum(start + np.clip(size, MIN_SIZE, _WINDOW), source.size)
    first = 0
    starts, ends = start.tolist(), end.tolist()
    for at in range(1, len(starts) + 1):
        if (at == len(starts) or starts[at] > ends[at - 1] + _NEAR
                or ends[at] - starts[first] > _WINDOW):
            yield _window(source, rows[first:at], start[first:at], max(ends[first:at]))
            first = at


def _window(source: FileSource, rows: Array, start: Array, end: int) -> Window:
    base = int(start[0])
    try:
        data = np.frombuffer(source.read(base, max(end - base, 0)), np.uint8)
    except StoreIOError:
        return Window(rows, np.zeros(len(rows), bool), None)
    batch, ok = examine(data, source.base + base, start - base)
    # Two that overlap cannot both be records of the log: whoever comes second is none.
    reach = np.maximum.accumulate(np.where(ok, batch.start + batch.column("total_size"), 0))
    ok[1:] &= batch.start[1:] >= reach[:-1]
    return Window(rows, ok, batch.select(np.flatnonzero(ok)))
