"""Follow growing stores and read each message exactly once (``spark.readStream``).

An offset of the stream contains the physical offset up to which each store's log was read. It is
always the end of a frame. The end of the next batch is found by scanning frames from there, so no
task searches for the start of a record. The rows of a batch depend only on its two offsets and on
the logs.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from rmqctl import vfs
from rmqctl.errors import NotAStoreError, StoreIOError, UsageError
from rmqctl.ext.spark import versions
from rmqctl.ext.spark.source import schema as spark_schema
from rmqctl.ext.spark.source.limits import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from rmqctl.ext.spark.source.losses import SWITCH, damage_text, losses
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import parse_size
from rmqctl.scan.frames import Span
from rmqctl.scan.walk import Walk
from rmqctl.sql import schema
from rmqctl.sql.options import FOLLOWING, ReadOptions, Start, starting
from rmqctl.sql.reader import Holes, TableReader
from rmqctl.store.files import listing
from rmqctl.store.log.growth import PATIENCE, STEP, GrowingLog, LogSlice
from rmqctl.store.store import Store

Offset = dict[str, int]
LOOK_AGAIN = 1.0
"""Minimum time in seconds between two searches for new stores."""
_NEVER = 1 << 40
"""Step larger than any file, for ``splitSize`` 0: parts are then complete files."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamPartition(InputPartition):
    """The messages of a store between two frame boundaries in a log file."""

    store: str
    file: str
    piece: LogSlice

    @property
    def value(self) -> LogSlice:
        return self.piece


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of a stream. The driver plans the batches; executors read them."""

    def __init__(self, given: Mapping[str, str], asked: StructType) -> None:
        self._options = ReadOptions.of(given, FOLLOWING)
        if self._options.table != schema.MESSAGES:
            raise UsageError(f"table={self._options.table}: only {schema.MESSAGES} can be read as "
                             "a stream")
        texts = {name.lower(): text for name, text in given.items()}
        self._start = starting(texts.get("startingoffsets"))
        most = texts.get("maxbytespertrigger")
        self._most = None if most is None else parse_size(most)
        if self._most is not None and self._most < 1:
            raise UsageError("maxBytesPerTrigger must be at least 1")
        if self._most is not None and versions.installed() < versions.LIMITS:
            raise UsageError("maxBytesPerTrigger needs PySpark 4.2 or newer")
        self._arrow, self._names = spark_schema.asked(asked, self._options.table,
                                                      self._options.body)
        if self._options.partitions is not None:
            raise UsageError("numPartitions does not apply to streams: splitSize divides a batch")
        size = self._options.split_size
        self._step = STEP if size is None else size or _NEVER
        self._logs: dict[str, GrowingLog] = {}
        self._target: Offset | None = None
        self._ends: Offset = {}
        self._looked: float | None = None
        self._missed: set[str] = set()
        self._turn = -1

    # -- Spark's side, in the driver ----------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return the offset at which a query without a checkpoint starts, as the option
        ``startingOffsets`` requests.
        """
        logs = self._current_logs(now=True)
        if strange := sorted(self._start.named() - logs.keys()):
            raise UsageError(f"startingOffsets: no such store: {', '.join(strange)}; the stores "
                             f"are {', '.join(logs)}")
        # Earlier losses affect only a query that does not start at the end of the log.
        early = [store for store in logs if self._start.of(store) != "latest"]
        for text in losses(early, self._options.log_folders):
            self._lose(text)
        return {store: self._first(store, log) for store, log in sorted(logs.items())}

    def _first(self, store: str, log: GrowingLog) -> int:
        asked: Start = self._start.of(store)
        if asked == "earliest":
            return log.first()
        return log.advance(log.last_file()) if asked == "latest" else log.border(int(asked))

    def latestOffset(self, start: Offset | None = None,  # noqa: N802
                     limit: ReadLimit | None = None) -> Offset:
        """Return the end of a batch that begins at ``start``. A new store is read from its start.

        PySpark 4.0 and 4.1 do not pass ``start``. The batch then begins at the end of the last
        batch. The first batch begins at the start of the last log file in use.
        """
        if start is None:
            start = {store: self._ends.get(store, log.last_file())
                     for store, log in self._current_logs().items()}
        reached = dict(start)
        for store, log in self._current_logs().items():
            if store not in reached and (self._target is None or store in self._target):
                reached[store] = log.first()
        for store in sorted(reached.keys() - self._logs.keys() - self._missed):
            self._lose(f"{store}: the store no longer exists")
            self._missed.add(store)
        if isinstance(limit, ReadMaxBytes):
            self._share(reached, limit.max_bytes)
        else:
            for store in reached.keys() & self._logs.keys():
                self._go(reached, store, None)
        self._ends = dict(sorted(reached.items()))
        return dict(self._ends)

    def _share(self, reached: Offset, most: int) -> None:
        """Advance the offsets of all stores by at most ``most`` bytes in total.

        The stores get equal shares if they have enough bytes. At least one frame is included, if
        there is any. A different store comes first each time.
        """
        stores = sorted(reached.keys() & self._logs.keys())
        self._turn = (self._turn + 1) % max(len(stores), 1)
        stores = stores[self._turn:] + stores[:self._turn]
        taken = False
        while stores and most > 0:
            part = max(most // len(stores), 1)
            next_round = []
            for store in stores:
                gained = self._go(reached, store, min(part, most), least=not taken)
                if gained:
                    taken = True
                    most -= gained
                    next_round.append(store)
                if most <= 0:
                    return
            stores = next_round

    def _go(self, reached: Offset, store: str, most: int | None, *, least: bool = True) -> int:
        """Advance the offset of a store; return the number of bytes by which it advanced."""
        start = reached[store]
        limit = None if most is None else start + most
        if self._target is not None:
            end = self._target.get(store, start)
            limit = end if limit is None else min(limit, end)
            if start >= limit:
                return 0
        reached[store] = self._logs[store].advance(
            start, limit, patient=self._target is not None, least=least)
        return reached[store] - start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._most is None else ReadMaxBytes(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Save the current ends of the logs as the offset at which the query ends.

        If a record is being written, wait briefly for it.
        """
        logs = self._current_logs(now=True)
        target = {store: log.advance(log.last_file()) for store, log in logs.items()}
        if any(log.torn for log in logs.values()):
            time.sleep(PATIENCE)
        for store, log in logs.items():
            target[store] = log.advance(target[store], patient=True)
        self._target = target

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the parts of a batch; each part ends between two frames. The result depends only
        on the offsets and the logs.
        """
        parts: list[InputPartition] = []
        logs = self._current_logs()
        for store, stop in sorted(end.items()):
            log = logs.get(store)
            first = start.get(store, log.first() if log is not None else stop)
            if first >= stop:
                continue
            if log is None:
                raise StoreIOError(f"{store}: the store no longer exists, but a started batch "
                                   f"needs its physical offsets {first} to {stop}")
            parts += [StreamPartition(store, os.path.relpath(piece.file.path, store), piece)
                      for piece in log.pieces(first, stop, self._step)]
        return parts

    def commit(self, end: Offset) -> None:
        """Do nothing: a batch does not hold any resources."""

    # -- the stores ---------------------------------------------------------------------------

    def _current_logs(self, *, now: bool = False) -> dict[str, GrowingLog]:
        """Return the logs of the existing stores. Search for new stores at most once a second; with
        ``now``, search in any case.
        """
        clock = time.monotonic()
        if now or self._looked is None or clock - self._looked >= LOOK_AGAIN:
            self._looked = clock
            logs: dict[str, GrowingLog] = {}
            for path in self._options.stores():
                try:
                    with Store.open(path, self._options.log_folders) as store:
                        folders = store.log_folders
                        witness = partial(store.new_witness, current=True)
                except NotAStoreError:
                    if path in self._options.paths or path in self._logs:
                        raise
                    continue  # a folder of a glob that may become a store
                logs[path] = self._logs.get(path) or GrowingLog(
                    folders, _log.warning, witness=witness, lost=self._lose)
            self._logs = logs
        return self._logs

    def _lose(self, text: str) -> None:
        """Report messages that the query can no longer read: with ``failOnDataLoss``, raise
        StoreIOError; otherwise log a warning.
        """
        if self._options.fail_on_loss:
            raise StoreIOError(f"{text}; set {SWITCH}=false to continue anyway")
        _log.warning("%s; the query continues", text)

    # -- on executors -------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part of a batch."""
        assert isinstance(partition, StreamPartition)
        reading = _Following(self._options.table, self._names, self._arrow, self._options.filters)
        return reading.part(partition, self._lose)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_logs": {}, "_looked": None}


class _Following(TableReader):
    """Reads the frames between two boundaries, without searching for the start of a record."""

    def part(self, part: StreamPartition, lose: Callable[[str], None]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part; ``lose`` is called for an expired file and for damage."""
        piece = part.piece
        base = piece.file.base
        # A file can expire between planning and reading.
        try:
            source = piece.file.open()
        except StoreIOError:
            if not _expired(piece):
                raise
            lose(f"{piece.file.path}: expired before it was read: physical offsets {piece.start} "
                 f"to {piece.end} are missing")
            return
        with source:
            # Yield the messages of the range, with the constant columns of this part.
            constant: dict[str, str | int] = {"store": part.store, "file": part.file}
            walk = Walk(source, piece.start - base, piece.end - base)
            damaged: list[Span] = []
            holes = Holes(piece.file.path, lambda _path, span: damaged.append(span))
            for batch in walk:
                holes.passed(batch)
                rows = self._finished(self._of_batch(batch, base), constant)
                if rows.num_rows:
                    yield rows
            # A file that becomes shorter while it is read is an error: it did not expire.
            if walk.position < piece.end - base:
                raise StoreIOError(f"{piece.file.path}: truncated at byte {walk.position} while it "
                                   f"was read; expected bytes up to {piece.end - base}")
            holes.settle()  # a part ends at a border: something follows, or the file was complete
            for span in damaged:
                lose(damage_text(piece.file.path, span))


def _expired(piece: LogSlice) -> bool:
    """Return whether the file of a part has expired: it is missing, and the log begins after it."""
    files = listing(os.path.dirname(piece.file.path)).files
    return bool(files) and files[0].base > piece.file.base and not vfs.lexists(piece.file.path)
