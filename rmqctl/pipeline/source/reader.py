"""The rows of a piece as Arrow record batches, just as Spark wants them.

This is what runs on executors. It needs no pyspark: a schema, conditions and pieces come in,
record batches come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from rmqctl.pipeline.source.pieces import (
    IndexPiece,
    LogPiece,
    Piece,
    PlannedFile,
    QueuePiece,
    still_there,
)
from rmqctl.pipeline.source.pushdown import Filters
from rmqctl.pipeline.source.schema import FRAMES, OF_FILE, OF_TIER, TABLES
from rmqctl.pipeline.source.seams import QueueProof, Seams, walk_range
from rmqctl.pipeline.source.tiered import RecordPiece, UnitPiece
from rmqctl.scan.columns import frame_columns, message_columns
from rmqctl.scan.frames import Batch
from rmqctl.store.queue.unit_columns import batch_queue_batches, index_batches, queue_batches

Constants = dict[str, str | int]
"""The columns that are the same for all rows of a piece."""


@dataclass(slots=True)
class Reading:
    """How pieces of one table are read: ``names`` are our columns, ``schema`` is Spark's."""

    table: str
    names: Sequence[str]
    schema: pa.Schema
    filters: Filters
    _proofs: dict[str, QueueProof] = field(default_factory=dict, repr=False)

    def rows(self, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        """The record batches of some pieces, in their order; StoreIOError names what is missing."""
        for piece in pieces:
            for batch in self._of(piece):
                if batch.num_rows:
                    yield batch

    def _of(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        if isinstance(piece, UnitPiece | RecordPiece):
            return self._tiered(piece)
        constant: Constants = {"store": piece.store, "file": piece.file}
        if isinstance(piece, LogPiece):
            return self._log(piece, constant)
        if isinstance(piece, QueuePiece):
            return self._queue(piece, constant)
        return self._index(piece, constant)

    def _log(self, piece: LogPiece, constant: Constants) -> Iterator[pa.RecordBatch]:
        with PlannedFile(piece.path) as source:
            seams = Seams(source, self._proofs.setdefault(piece.root, QueueProof(piece.root)))
            for batch in walk_range(source, seams, piece.start, piece.end, last=piece.last):
                yield self._finished(self._of_batch(batch, source.base), constant)

    def _of_batch(self, batch: Batch, base: int) -> pa.RecordBatch:
        names = [name for name in self.names if name not in OF_TIER]
        if self.table != FRAMES:
            return message_columns(self.filters.of_messages(batch), names)
        return self.filters.of_rows(frame_columns(batch, self._with_filters(names), base))

    def _tiered(self, piece: UnitPiece | RecordPiece) -> Iterator[pa.RecordBatch]:
        from rmqctl.pipeline.source.tiered_rows import batches

        queue = piece.queue
        constant: Constants = {"store": queue.store, "cluster": queue.cluster,
                               "broker": queue.broker}
        for path, batch in batches(piece):
            yield self._finished(self._of_batch(batch, 0), constant | {"file": path})

    def _queue(self, piece: QueuePiece, constant: Constants) -> Iterator[
            pa.RecordBatch]:
        # Topic and queue id were chosen at planning.
        of_rows = Filters(start=self.filters.start, end=self.filters.end)
        names = [name for name in self.names if name not in OF_FILE]
        names += [name for name in of_rows.columns if name not in names]
        read = batch_queue_batches if piece.batch else queue_batches
        still_there(piece.path)
        for batch in read(piece.path, names, piece.start, piece.end):
            yield self._finished(of_rows.of_rows(batch), constant | {
                "topic": piece.topic, "queue_id": piece.queue_id})
        still_there(piece.path)

    def _index(self, piece: IndexPiece, constant: Constants) -> Iterator[
            pa.RecordBatch]:
        names = self._with_filters([name for name in self.names if name not in OF_FILE])
        still_there(piece.path)
        for batch in index_batches(piece.path, names, piece.start, piece.end, shape=piece.shape):
            yield self._finished(self.filters.of_rows(batch), constant)
        still_there(piece.path)

    def _with_filters(self, names: list[str]) -> list[str]:
        return names + [name for name in self.filters.columns if name not in names]

    def _finished(self, batch: pa.RecordBatch, constant: Constants) -> pa.RecordBatch:
        """The columns in Spark's order, under Spark's names, with what is the same for all rows."""
        if not self.names:
            return batch.select([])
        types, known = TABLES[self.table], set(batch.schema.names)
        arrays = [batch.column(name) if name in known else
                  pa.repeat(pa.scalar(_shown(constant[name]), types[name]), batch.num_rows)
                  for name in self.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _shown(value: str | int) -> str | int:
    """A name of the file system that is no UTF-8, with U+FFFD as everywhere."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if isinstance(
        value, str) else value
