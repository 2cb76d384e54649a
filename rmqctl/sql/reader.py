"""Read pieces of files in one task, and return them as the Arrow record batches that Spark expects.

Pieces are plain values that the driver sends to executors. A piece contains the size that its file
had when the job was planned. If the file has shrunk since then, rows are missing, which is an
error. Rows that were appended since then are not read.

This module runs on executors and needs no pyspark.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from rmqctl import vfs
from rmqctl.errors import StoreIOError
from rmqctl.formats.local.index_file import IndexShape
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.columns import frame_columns, message_columns
from rmqctl.scan.frames import DAMAGED, ZERO, Batch, Span
from rmqctl.sql.pushdown import Filters, with_topics
from rmqctl.sql.schema import FRAMES, OF_FILE, OF_TIER, TABLES, as_in_engine
from rmqctl.sql.seams import PlannedSource, QueueProof, Seams, shrank, walk_range
from rmqctl.store.files import StoreFile
from rmqctl.store.queue.compaction import CompactedRows
from rmqctl.store.queue.unit_columns import (
    batch_queue_batches,
    database_batches,
    index_batches,
    queue_batches,
)
from rmqctl.store.store import Sizes, Store

if TYPE_CHECKING:
    from rmqctl.store.rocksdb.queues import RocksQueues

# -- what a task reads ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogPiece:
    """The frames of a log file that begin in ``[start, end)``; the bounds may be inside a frame.

    * ``store``, ``file``: values of the columns of these names
    * ``last``: whether all bytes from ``end`` on are zero; they then belong to this piece
    * ``root``: the path of the store
    * ``without``: topics to skip, because other pieces contain their messages
    """

    store: str
    file: str
    path: StoreFile
    start: int
    end: int
    last: bool
    root: str
    without: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class QueuePiece:
    """Entries ``[start, end)`` of a consume queue file. ``batch``: whether it is a batch consume
    queue file.
    """

    store: str
    file: str
    path: StoreFile
    start: int
    end: int
    topic: str
    queue_id: int
    batch: bool


@dataclass(frozen=True, slots=True)
class RocksPiece:
    """The entries of a queue in RocksDB with queue offsets ``[start, end)``. ``folder``: path of
    the database.
    """

    store: str
    file: str
    folder: str
    start: int
    end: int
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class IndexPiece:
    """The entries of an index file with entry numbers ``[start, end)``."""

    store: str
    file: str
    path: StoreFile
    start: int
    end: int
    shape: IndexShape | None


@dataclass(frozen=True, slots=True)
class CompactedPiece:
    """Messages at positions ``[start, end)`` of a compaction log, as a broker serves them."""

    store: str
    file: str
    root: str
    topic: str
    queue_id: int
    start: int
    end: int

    @property
    def constants(self) -> Constants:
        return {"store": self.store}

    def batches(self) -> Iterator[tuple[str, Batch]]:
        rows = CompactedRows(Store(self.root, [], Sizes()), self.topic, self.queue_id)
        with closing(rows.log):
            for batch in rows.batches(self.start, self.end):
                yield self.file, batch


Constants = dict[str, str | int]
"""Values that are the same for all rows of a piece, by column name."""


class OtherPiece(Protocol):
    """A piece that reads its messages with its own code, for example from a tier."""

    @property
    def constants(self) -> Constants:
        """Return the values that are the same for all rows, except the column ``file``."""

    def batches(self) -> Iterator[tuple[str, Batch]]:
        """Yield batches of messages, each with the path of the file that contains them.
        Raises: StoreIOError.
        """


Piece = LogPiece | QueuePiece | RocksPiece | IndexPiece | OtherPiece


def still_there(file: StoreFile) -> None:
    """Raise StoreIOError if a file is missing or shorter than at planning."""
    try:
        size = vfs.stat(file.path).st_size
    except OSError as error:
        raise StoreIOError.from_oserror(error, file.path, "read") from None
    if size < file.size:
        raise shrank(file.path, file.size, size)


@dataclass(slots=True)
class Holes:
    """Calls ``lost`` for each range of a log file that contains no messages.

    Damage is reported at once, zeros only when other data follows them.
    """

    path: str
    lost: Callable[[str, Span], None] | None
    _zeros: list[Span] = field(default_factory=list)

    def passed(self, batch: Batch) -> None:
        """Process the next batch of the log; the batch's spans come after its messages."""
        if self.lost is None:
            return
        if len(batch):
            self.settle()
        for span in batch.spans:
            if span.kind == DAMAGED:
                self.settle()
                self.lost(self.path, span)
            elif span.kind == ZERO:
                self._zeros.append(span)

    def settle(self) -> None:
        """Report the ranges of zeros since the last message, because other data follows them."""
        zeros, self._zeros = self._zeros, []
        for span in zeros:
            if self.lost is not None:
                self.lost(self.path, span)


# -- its rows -------------------------------------------------------------------------------------


@dataclass(slots=True)
class TableReader:
    """Reader for pieces of one table.

    * ``names``: the columns to read
    * ``schema``: their names and types in the result
    * ``passed``: called with each batch of a log
    * ``lost``: called with the path of a log file and each range in which messages are missing (see
      `Holes`)
    """

    table: str
    names: Sequence[str]
    schema: pa.Schema
    filters: Filters
    passed: Callable[[Batch], None] | None = None
    lost: Callable[[str, Span], None] | None = None
    _proofs: dict[str, QueueProof] = field(default_factory=dict, repr=False)
    _databases: dict[str, RocksQueues] = field(default_factory=dict, repr=False)

    def rows(self, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of pieces, in order. Raises: StoreIOError that names the missing
        parts.
        """
        for piece in pieces:
            places = [getattr(piece, "store", "")]
            if isinstance(piece, LogPiece) and "://" in piece.path.path:
                places.append(os.path.dirname(piece.path.path))
            with ExitStack() as used:
                for place in places:
                    if vfs.is_elsewhere(place) and not vfs.is_mounted(place):
                        from rmqctl.files.remote.tree import mounted

                        place = mounted(place)  # noqa: PLW2901  # another process has planned it
                    used.enter_context(vfs.in_use(place))
                for batch in self._of(piece):
                    if batch.num_rows:
                        yield batch

    def _of(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        if not isinstance(piece, LogPiece | RocksPiece | QueuePiece | IndexPiece):
            return self._other(piece)
        constant: Constants = {"store": piece.store, "file": piece.file}
        if isinstance(piece, LogPiece):
            return self._log(piece, constant)
        if isinstance(piece, RocksPiece):
            return self._database(piece, constant)
        if isinstance(piece, QueuePiece):
            return self._queue(piece, constant)
        return self._index(piece, constant)

    def _log(self, piece: LogPiece, constant: Constants) -> Iterator[pa.RecordBatch]:
        with piece.path.open() as source:
            planned = PlannedSource(source, piece.path.size)
            seams = Seams(planned, self._proofs.setdefault(piece.root, QueueProof(piece.root)))
            holes = Holes(piece.path.path, self.lost)
            for batch in walk_range(planned, seams, piece.start, piece.end, last=piece.last):
                if self.passed is not None:
                    self.passed(batch)
                holes.passed(batch)
                own = batch if not piece.without or not len(batch) else batch.select(
                    np.flatnonzero(~with_topics(batch, piece.without)))
                yield self._finished(self._of_batch(own, source.base), constant)
            # The last piece of the log is followed by unused zeros.
            if not piece.last or piece.end >= piece.path.size:
                holes.settle()

    def _of_batch(self, batch: Batch, base: int) -> pa.RecordBatch:
        names = [name for name in self.names if name not in OF_TIER]
        if self.table != FRAMES:
            return message_columns(self.filters.of_messages(batch), names)
        return self.filters.of_rows(frame_columns(batch, self._with_filters(names), base))

    def _other(self, piece: OtherPiece) -> Iterator[pa.RecordBatch]:
        for path, batch in piece.batches():
            if self.passed is not None and isinstance(piece, CompactedPiece):
                self.passed(batch)
            yield self._finished(self._of_batch(batch, 0), piece.constants | {"file": path})

    def _queue(self, piece: QueuePiece, constant: Constants) -> Iterator[
            pa.RecordBatch]:
        of_rows, names = self._of_rows()
        read = batch_queue_batches if piece.batch else queue_batches
        still_there(piece.path)
        for batch in read(piece.path, names, piece.start, piece.end):
            yield self._finished(of_rows.of_rows(batch), constant | {
                "topic": piece.topic, "queue_id": piece.queue_id})
        still_there(piece.path)

    def _database(self, piece: RocksPiece, constant: Constants) -> Iterator[pa.RecordBatch]:
        from rmqctl.store.rocksdb.queues import RocksQueues

        of_rows, names = self._of_rows()
        if piece.folder not in self._databases:  # opening one takes as long as thousands of rows
            self._databases[piece.folder] = RocksQueues(piece.folder)
        queue = self._databases[piece.folder].queues.get((piece.topic, piece.queue_id))
        for batch in () if queue is None else database_batches(queue, names, piece.start,
                                                               piece.end):
            yield self._finished(of_rows.of_rows(batch), constant | {
                "topic": piece.topic, "queue_id": piece.queue_id})

    def _of_rows(self) -> tuple[Filters, list[str]]:
        """Return the conditions on rows, and the columns to read. Conditions on topic and queue id
        were already applied at planning.
        """
        of_rows = Filters(start=self.filters.start, end=self.filters.end)
        names = [name for name in self.names if name not in OF_FILE]
        return of_rows, names + [name for name in of_rows.columns if name not in names]

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
        """Return all columns, including constant ones, in the order and with the names of
        ``schema``.
        """
        if not self.names:
            return batch.select([])
        columns, in_batch = TABLES[self.table], set(batch.schema.names)
        arrays = [as_in_engine(batch.column(name), wanted.type) if name in in_batch else
                  pa.repeat(pa.scalar(_shown(constant[name]), columns[name].type), batch.num_rows)
                  for name, wanted in zip(self.names, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _shown(value: str | int) -> str | int:
    """Return a constant as valid text: in a file name, U+FFFD replaces bytes that are not UTF-8."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if isinstance(
        value, str) else value
