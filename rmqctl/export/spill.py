"""Spill messages of a range of a log to a file, if their partitions have few messages in the range.

A range has at most one such file. The file contains one Arrow record batch for each buffer, with
rows sorted by bucket and partition. In each buffer, a bucket's rows are contiguous. A second file
is the index: one record batch for each bucket, with the positions of each partition's messages.

The files exist only during one run, in the folder of the attempt that created them. The files are
read through memory maps.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, repeat
from typing import Any, Self

import numpy as np
import pyarrow as pa

from rmqctl.export.attempt import Attempt, WriteError, drop
from rmqctl.export.layout import Partitions, Values
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, distinct

_ROWS, _INDEX = "aside.rows", "aside.index"
_MAX_OPEN = 64
_PLACES = ("flush", "batch", "start", "length", "rows")


@dataclass(frozen=True, slots=True)
class Spilled:
    """The messages that the range with the number ``at`` spilled to the folder ``attempt``.
    ``weights``: bytes of each bucket.
    """

    at: int
    attempt: str
    weights: list[int]


@dataclass(frozen=True, slots=True)
class SpilledChunk:
    """Messages of a partition in one buffer of a range.

    ``rows``: number of messages. ``length``: number of rows in record batch ``batch``, from row
    ``start`` on.
    """

    values: Values
    at: int
    flush: int
    batch: int
    start: int
    length: int
    rows: int


class Spill:
    """The file of spilled messages, while it is being written. Methods raise WriteError."""

    def __init__(self, attempt: Attempt, schema: pa.Schema) -> None:
        self._attempt, self._schema = attempt, schema
        self._places: list[Array] = []
        self._codes: list[Array] = []
        self._batches = self._bytes = 0
        with attempt.writing(_ROWS):
            self._target = attempt.binary(_ROWS)
            self._writer = pa.ipc.new_file(self._target, schema)

    def add(self, flush: int, table: pa.Table, codes: Sequence[int], lengths: Sequence[int],
            rows: Sequence[int]) -> None:
        """Add consecutive chunks of a table. ``codes``: the partition of each chunk; ``lengths``:
        its number of rows in the table; ``rows``: its number of messages.
        """
        with self._attempt.writing(_ROWS):
            batches = table.combine_chunks().to_batches()
            for batch in batches:
                self._writer.write_batch(batch)
                self._bytes += batch.nbytes
        chunk, places = _placed(lengths, rows, [len(batch) for batch in batches])
        places[:, 0] = flush
        places[:, 1] += self._batches
        self._codes.append(np.array(codes, np.int64)[chunk])
        self._places.append(places)
        self._batches += len(batches)

    def finish(self, at: int, bucket_of: Sequence[int], buckets: int,
               partitions: Partitions) -> Spilled:
        """Close the file and write its index."""
        with self._attempt.writing(_ROWS):
            self._writer.close()
            self._target.close()
        codes, places = np.concatenate(self._codes), np.concatenate(self._places)
        own = np.array(bucket_of, np.int64)[codes]
        order = np.lexsort((places[:, 2], places[:, 1], codes, own))
        codes, places, own = codes[order], places[order], own[order]
        borders = np.searchsorted(own, np.arange(buckets + 1)).tolist()
        bucket_slices = [slice(start, end) for start, end in pairwise(borders)]
        with self._attempt.writing(_INDEX):
            self._target = self._attempt.binary(_INDEX)
            schema = _index_schema(partitions.names)
            writer = pa.ipc.new_file(self._target, schema)
            for bucket_slice in bucket_slices:
                values = [partitions.values[code] for code in codes[bucket_slice].tolist()]
                writer.write_batch(pa.record_batch(
                    [*(pa.array([value[place] for value in values], pa.string())
                       for place in range(len(partitions.names))),
                     *(pa.array(places[bucket_slice, place]) for place in range(len(_PLACES)))],
                    schema=schema))
            writer.close()
            self._target.close()
        counts = [int(places[bucket_slice, 4].sum()) for bucket_slice in bucket_slices]
        total = max(sum(counts), 1)
        return Spilled(at, self._attempt.name, [self._bytes * count // total for count in counts])

    def abandon(self) -> None:
        """Close the file after a failure."""
        drop(self._target)


def _placed(lengths: Sequence[int], rows: Sequence[int], batches: Sequence[int]) -> tuple[
        Array, Array]:
    """Divide chunks into pieces, each within one record batch. Return, for each piece, the
    index of its chunk and its `_PLACES`.

    ``batches``: number of rows in each batch. Arrow divides a table into batches if a column is too
    large, so a chunk may span two batches.
    """
    ends, batch_ends = (np.cumsum(np.array(sizes, np.int64)) for sizes in (lengths, batches))
    edges = distinct(np.concatenate([np.zeros(1, np.int64), ends, batch_ends]))
    starts, sizes = edges[:-1], np.diff(edges)
    chunk = np.searchsorted(ends, starts, "right")
    batch = np.searchsorted(batch_ends, starts, "right")
    places: Array = np.zeros((len(starts), len(_PLACES)), np.int64)
    places[:, 1], places[:, 3] = batch, sizes
    places[:, 2] = starts - np.append(0, batch_ends)[batch]
    # A chunk that is divided has a row for each message.
    is_undivided = sizes == np.array(lengths, np.int64)[chunk]
    places[:, 4] = np.where(is_undivided, np.array(rows, np.int64)[chunk], sizes)
    return chunk, places


def _index_schema(names: Sequence[str]) -> pa.Schema:
    return pa.schema([*(pa.field(f"by_{name}", pa.string()) for name in names),
                      *(pa.field(name, pa.int64()) for name in _PLACES)])


class SpillReader:
    """Reader of the messages that ranges of a store spilled. A context manager; methods raise
    StoreIOError.

    ``spilled``: (range number, name of the attempt) for each of these ranges.
    """

    def __init__(self, folder: str, spilled: Sequence[tuple[int, str]]) -> None:
        self._paths = {at: os.path.join(folder, attempt) for at, attempt in spilled}
        self._open: OrderedDict[int, tuple[pa.MemoryMappedFile, Any]] = OrderedDict()
        self._batch: tuple[tuple[int, int], pa.RecordBatch] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._batch = None
        while self._open:
            self._open.popitem()[1][0].close()

    def places(self, number: int) -> list[SpilledChunk]:
        """Return the chunks of a bucket, sorted by partition; the chunks of a partition are in log
        order.
        """
        asides = []
        for at, folder in self._paths.items():
            with _reading(os.path.join(folder, _INDEX)) as path, pa.memory_map(path) as source:
                columns = pa.ipc.open_file(source).get_batch(number).to_pydict()
            places = [columns.pop(name) for name in _PLACES]
            values = (zip(*columns.values(), strict=True) if columns
                      else repeat((), len(places[0])))
            asides += [SpilledChunk(value, at, *place) for value, place in zip(
                values, zip(*places, strict=True), strict=True)]
        asides.sort(key=lambda aside: ([(value is not None, value or "") for value in aside.values],
                                       aside.at, aside.batch, aside.start))
        return asides

    def rows(self, aside: SpilledChunk) -> pa.RecordBatch:
        """Return the rows of a chunk."""
        batch = self._batch
        if batch is None or batch[0] != (aside.at, aside.batch):
            with _reading(os.path.join(self._paths[aside.at], _ROWS)) as path:
                batch = self._batch = ((aside.at, aside.batch),
                                       self._file(aside.at, path).get_batch(aside.batch))
        return batch[1].slice(aside.start, aside.length)

    def _file(self, at: int, path: str) -> Any:
        mapped = self._open.get(at)
        if mapped is None:
            while len(self._open) >= _MAX_OPEN:
                self._open.popitem(last=False)[1][0].close()
            source = pa.memory_map(path)
            mapped = self._open[at] = source, pa.ipc.open_file(source)
        self._open.move_to_end(at)
        return mapped[1]


@contextmanager
def _reading(path: str) -> Iterator[str]:
    try:
        yield path
    except (OSError, pa.ArrowException) as error:
        raise WriteError(f"cannot read {path}, which contains a part of the export: "
                         f"{error}") from None
