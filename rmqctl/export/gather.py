"""Write the files of partitions that have few messages in each range of a log.

The tasks that read ranges spill these messages (`rmqctl.export.spill`), divided into buckets by
partition. A further task for each bucket writes the files of its partitions, in log order.

A file ends after `MAX_FILE_BYTES`, and where a range has its own file for the partition. As a
result, the order of a partition's file names is also the log order.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from dataclasses import field
from itertools import groupby
from operator import attrgetter
from typing import Any

import pyarrow as pa

from rmqctl.export.attempt import Attempt, OpenFile, WrittenFile, drop
from rmqctl.export.buffers import FLUSH
from rmqctl.export.layout import Values, bucket
from rmqctl.export.spec import Export
from rmqctl.export.spill import SpilledChunk, SpillReader
from rmqctl.export.staging import refuse_unseen
from rmqctl.export.task import ExportedRange
from rmqctl.lazy_dataclass import dataclass

MAX_FILE_BYTES = 512 << 20
"""Size in bytes at which a new file is begun."""
Place = tuple[int, int]
"""Position of messages in log order: the index of a range, and the index of a buffer in that range.
"""


@dataclass(frozen=True, slots=True)
class Gather:
    """The task of writing one bucket, of about ``weight`` bytes, of the store with index ``store``.

    ``spilled``: (range number, name of the attempt) for each range that spilled messages.
    ``breaks``: for each partition, the positions at which ranges have their own files.
    """

    store: int
    bucket: int
    weight: int
    spilled: tuple[tuple[int, str], ...]
    breaks: dict[Values, list[Place]]


@dataclass(frozen=True, slots=True)
class Gathered:
    """The written files of a bucket, in the folder ``attempt``. ``values``: the values of their
    partitions, by partition number.
    """

    store: int
    attempt: str
    files: list[WrittenFile]
    values: dict[int, Values]


@dataclass(slots=True)
class RangeResults:
    """Results of the ranges of one store, collected by the driver."""

    store: int
    buckets: int
    spilled: list[tuple[int, str]] = field(default_factory=list)
    _weights: list[int] = field(default_factory=list)
    _breaks: dict[Values, list[Place]] = field(default_factory=dict)

    def add(self, part: ExportedRange) -> None:
        """Add the result of the next range, in log order."""
        for file in part.files:
            self._breaks.setdefault(part.values[file.partition], []).append((file.at, file.flush))
        if part.spilled is not None:
            self.spilled.append((part.spilled.at, part.spilled.attempt))
            self._weights = [weight + more for weight, more in zip(
                self._weights or [0] * self.buckets, part.spilled.weights, strict=True)]

    def tasks(self, spec: Export) -> Iterator[Gather]:
        """Yield a task for each bucket that contains messages."""
        breaks: dict[int, dict[Values, list[Place]]] = {}
        for values, places in self._breaks.items() if self.spilled else ():
            own = breaks.setdefault(bucket(spec.partition_by, values, self.buckets), {})
            own[values] = sorted(places)
        for number, weight in enumerate(self._weights):
            if weight:
                yield Gather(self.store, number, weight, tuple(self.spilled),
                             breaks.get(number, {}))


def gather(spec: Export, folder: str, task: Gather) -> Gathered:
    """Write the files of a bucket to a new folder of this attempt below ``folder``.
    Raises: WriteError.
    """
    refuse_unseen(folder)
    files = _BucketWriter(spec, Attempt(spec, folder))
    values: dict[int, Values] = {}
    try:
        with SpillReader(folder, task.spilled) as reader:
            for number, (partition, places) in enumerate(groupby(
                    reader.places(task.bucket), key=attrgetter("values"))):
                values[number] = partition
                breaks, last = task.breaks.get(partition, []), None
                for aside in places:
                    file_number = bisect(breaks, (aside.at, aside.flush))
                    files.add(number, aside, reader.rows(aside), anew=file_number != last)
                    last = file_number
                files.close()
        files.attempt.finish()
    except BaseException:
        files.abandon()
        raise
    pa.default_memory_pool().release_unused()
    return Gathered(task.store, files.attempt.name, files.written, values)


class _BucketWriter:
    """Writes the files of a bucket one after the other, each in pieces of bounded size."""

    def __init__(self, spec: Export, attempt: Attempt) -> None:
        self._spec, self.attempt = spec, attempt
        self.written: list[WrittenFile] = []
        self._open: OpenFile | None = None
        self._pending: list[pa.RecordBatch] = []
        self._size = 0

    def add(self, partition: int, aside: SpilledChunk, rows: pa.RecordBatch, *, anew: bool) -> None:
        """Add messages to a partition. On request, begin a new file first."""
        if anew or (self._open is not None and self._open.size >= MAX_FILE_BYTES):
            self.close()
        if self._open is None:
            self._open = self.attempt.open(partition, aside.at, aside.flush)
        self._open.rows += aside.rows
        self._pending.append(rows)
        self._size += rows.nbytes
        if self._size >= FLUSH:
            self._flush()

    def close(self) -> None:
        """Close the open file, if any."""
        if self._open is not None:
            self._flush()
            file, self._open = self._open, None
            self.written.append(self.attempt.close(file))

    def abandon(self) -> None:
        """Remove all written files."""
        if self._open is not None:
            drop(self._open.target, self._open.file)
        self.attempt.remove()

    def _flush(self) -> None:
        if not self._pending:
            return
        chunk: Any
        if self._spec.is_text:
            chunk = b"".join(text for rows in self._pending for text in rows.column(0).to_pylist())
        else:
            chunk = pa.Table.from_batches(self._pending, self._spec.schema).combine_chunks()
        self._pending, self._size = [], 0
        assert self._open is not None
        with self.attempt.writing(self._open.name):
            self._open.file.write(chunk)
