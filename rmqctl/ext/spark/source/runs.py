"""Sorted runs of rows: files by which tasks pass rows to a single writer.

A run is an Arrow IPC stream; the writer merges the runs in bounded memory. The first two columns,
``key`` and ``position``, determine the order of all rows of a job, and no two rows have equal
values in them. Runs are in a folder that the driver and all executors can access. Only runs whose
names a task returned are used.
"""

from __future__ import annotations

import heapq
import os
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rmqctl.errors import StoreIOError

KEY, POSITION = "key", "position"
RUN_BYTES = 64 << 20
BATCH_BYTES = 1 << 20
MAX_OPEN = 64
"""Maximum number of runs that are open at a time."""
Place = tuple[int, int]
"""Key and position of a row, which determine the order of rows."""


class SortedRun(NamedTuple):
    """A sorted run: the name of its file, and the key and position of its first and last rows."""

    name: str
    first: Place
    last: Place


def spool_schema(payload: pa.Schema) -> pa.Schema:
    """Return the schema of runs with the columns of ``payload``."""
    return pa.schema([pa.field(KEY, pa.int64()), pa.field(POSITION, pa.int64()), *payload])


class Spooler:
    """Writes the rows of a task to runs. Rows may be added in any order."""

    def __init__(self, folder: str, schema: pa.Schema, run_bytes: int = RUN_BYTES) -> None:
        self._folder, self._schema, self._run_bytes = folder, schema, run_bytes
        self._held: list[pa.RecordBatch] = []
        self._size = 0
        self._runs: list[SortedRun] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; write a run when the collected rows reach its size. Raises: StoreIOError."""
        if batch.num_rows:
            self._held.append(batch)
            self._size += batch.nbytes
            if self._size >= self._run_bytes:
                self._write()

    def finish(self) -> list[SortedRun]:
        """Write the remaining rows to a run; return all runs."""
        if self._held:
            self._write()
        return self._runs

    def _write(self) -> None:
        rows = pa.Table.from_batches(self._held, self._schema)
        rows = rows.take(pa.array(np.lexsort((_numbers(rows, POSITION), _numbers(rows, KEY)))))
        self._runs.append(write_run(self._folder, self._schema, _cut(rows)))
        self._held, self._size = [], 0


def _numbers(rows: pa.Table | pa.RecordBatch, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    numbers: np.ndarray[Any, np.dtype[np.int64]] = rows.column(name).to_numpy()
    return numbers


def _cut(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of about `BATCH_BYTES`: one batch from each of many runs must fit
    into memory.
    """
    count = max(1, int(rows.num_rows * BATCH_BYTES / max(rows.nbytes, 1)))
    for start in range(0, rows.num_rows, count):
        yield from rows.slice(start, count).combine_chunks().to_batches()


def write_run(folder: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> SortedRun:
    """Write a run from sorted batches (at least one) to a file with a unique name."""
    name = f"{uuid.uuid4().hex}.arrows"
    path = os.path.join(folder, name)
    first: Place | None = None
    last: Place = (0, 0)
    try:
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for batch in batches:
                key, position = _numbers(batch, KEY), _numbers(batch, POSITION)
                first = first or (int(key[0]), int(position[0]))
                last = int(key[-1]), int(position[-1])
                writer.write_batch(batch)
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "save rows in") from None
    assert first is not None
    return SortedRun(name, first, last)


class _RunCursor:
    def __init__(self, folder: str, run: SortedRun) -> None:
        self.path = os.path.join(folder, run.name)
        try:
            self._file = pa.OSFile(self.path, "rb")
            self._batches = iter(pa.ipc.open_stream(self._file))
        except (OSError, pa.ArrowInvalid) as error:
            raise self._failed(error) from None
        self._at = 0
        self._batch: pa.RecordBatch | None = None
        self.advance()

    def _failed(self, error: Exception) -> StoreIOError:
        if isinstance(error, OSError):
            return StoreIOError.from_oserror(error, self.path, "read the rows saved in")
        return StoreIOError(f"cannot read the rows saved in {self.path}: {error}")

    def advance(self) -> None:
        """Read the next batch."""
        try:
            self._batch = next(self._batches, None)
        except (OSError, pa.ArrowInvalid) as error:
            raise self._failed(error) from None
        self._at = 0
        if self._batch is None:
            self._file.close()
        else:
            self._keys = _numbers(self._batch, KEY)
            self._positions = _numbers(self._batch, POSITION)

    @property
    def place(self) -> Place | None:
        """Return the key and the position of the next row; None after the last row."""
        if self._batch is None:
            return None
        return int(self._keys[self._at]), int(self._positions[self._at])

    def before(self, bound: Place | None) -> pa.RecordBatch:
        """Return the next rows of this batch that come before ``bound``; there must be at least
        one.
        """
        assert self._batch is not None
        start, end = self._at, len(self._keys)
        if bound is not None:
            low = int(np.searchsorted(self._keys, bound[0], "left"))
            high = int(np.searchsorted(self._keys, bound[0], "right"))
            end = low + int(np.searchsorted(self._positions[low:high], bound[1]))
        rows = self._batch.slice(start, end - start)
        self._at = end
        if end == len(self._keys):
            self.advance()
        return rows

    def close(self) -> None:
        self._file.close()


def merged(folder: str, runs: Sequence[SortedRun], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all runs in batches, ordered by key and position. Raises: StoreIOError."""
    runs = sorted(runs, key=lambda run: (run.first, run.name))
    while _most_open(runs) > MAX_OPEN:
        groups = [runs[first:first + MAX_OPEN] for first in range(0, len(runs), MAX_OPEN)]
        runs = [_joined(folder, group, schema) for group in groups]
    yield from _merge(folder, runs)


def _joined(folder: str, runs: Sequence[SortedRun], schema: pa.Schema) -> SortedRun:
    joined = write_run(folder, schema, _merge(folder, runs))
    for run in runs:  # of this job, and nobody reads them again
        os.unlink(os.path.join(folder, run.name))
    return joined


def _most_open(runs: Sequence[SortedRun]) -> int:
    """Return the maximum number of runs that overlap. The runs must be sorted by their first
    row.
    """
    ends: list[Place] = []
    most = 0
    for run in runs:
        while ends and ends[0] < run.first:
            heapq.heappop(ends)
        heapq.heappush(ends, run.last)
        most = max(most, len(ends))
    return most


def _merge(folder: str, runs: Sequence[SortedRun]) -> Iterator[pa.RecordBatch]:
    """Yield the merged rows of ``runs``, which are sorted by their first row.

    A run is opened only when its first row is reached.
    """
    waiting = deque(runs)
    opened: list[tuple[Place, int, _RunCursor]] = []
    number = 0
    try:
        while waiting or opened:
            while waiting and (not opened or waiting[0].first < opened[0][0]):
                run = waiting.popleft()
                heapq.heappush(opened, (run.first, number, _RunCursor(folder, run)))
                number += 1
            _, index, cursor = heapq.heappop(opened)
            bounds = [entry[0] for entry in opened[:1]]
            if waiting:
                bounds.append(waiting[0].first)
            try:
                yield cursor.before(min(bounds, default=None))
            except BaseException:
                cursor.close()
                raise
            if (place := cursor.place) is not None:
                heapq.heappush(opened, (place, index, cursor))
    finally:
        for _, _, cursor in opened:
            cursor.close()
