"""Writer of the messages of a range by partition, in bounded memory.

A buffer collects up to `FLUSH` bytes of messages. Then it is written to its partitions' files, as
one row group for each file. A partition gets a file if this range has enough of its messages
(`MIN_FILE_BYTES`). A partition also gets a file if the store has only this range and few files are
open.

All other messages are spilled to one file of the range. From these files, `gather` writes the files
of all ranges. Therefore the number of files depends only on the partitions and their sizes.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pyarrow as pa

from rmqctl.export.attempt import Attempt, OpenFile, WrittenFile, drop
from rmqctl.export.buffers import FLUSH, Chunks, Origin
from rmqctl.export.columns import LINES
from rmqctl.export.forms import buffer
from rmqctl.export.layout import Partitions, Values, bucket
from rmqctl.export.spec import Export
from rmqctl.export.spill import Spill, Spilled
from rmqctl.scan.frames import Array, Batch
from rmqctl.store.log.threads import Behind

MIN_FILE_BYTES = 1 << 20
"""Minimum bytes of columns that a partition must have in a buffer to get its own file."""
MAX_OPEN = 64


class RangeSink:
    """Writes the files of one attempt to export a range. `close` returns the files; `abandon`
    removes them.

    ``at``, ``alone``, ``buckets``: see `ExportRange`.
    ``behind``: write a buffer in a thread while the next one is filled.
    """

    def __init__(self, spec: Export, origin: Origin, folder: str, *, at: int,
                 alone: bool, buckets: int, behind: bool = False) -> None:
        self._spec, self._at, self._buckets, self._alone = spec, at, buckets, alone
        self._attempt = Attempt(spec, folder)
        self.partitions = Partitions(spec.partition_by, origin.store, spec.zone)
        self._buffer = buffer(spec, origin)
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        self._written: list[WrittenFile] = []
        self._bucket_of: list[int] = []
        self._spill: Spill | None = None
        self._flushed = 0
        self._behind: Behind[tuple[Chunks, float]] | None = Behind(
            self._write) if behind else None

    @property
    def attempt(self) -> str:
        """Return the name of the attempt's folder."""
        return self._attempt.name

    @property
    def values(self) -> dict[int, Values]:
        """Return the values of the partitions that have files, by partition number."""
        return {file.partition: self.partitions.values[file.partition] for file in self._written}

    def add(self, batch: Batch) -> None:
        """Add messages from a range. More batches from the range may follow. Raises: WriteError."""
        self._buffer.add(batch, self.partitions.codes(batch))
        if self._buffer.size >= FLUSH:
            self._flush()

    def close(self) -> tuple[list[WrittenFile], Spilled | None]:
        """Flush all files to disk; return the files and the spilled messages. Raises:
        WriteError.
        """
        self._flush()
        if self._behind is not None:
            self._behind.settle()
            self._behind.end()
        while self._open:
            self._close_oldest()
        self._attempt.finish()
        spilled = None
        if self._spill is not None:
            spilled = self._spill.finish(self._at, self._bucket_of, self._buckets,
                                         self.partitions)
            self._spill = None
        return self._written, spilled

    def abandon(self) -> None:
        """Remove the written files after a failure."""
        if self._behind is not None:
            self._behind.end()
        for file in self._open.values():
            drop(file.target, file.file)
        self._open.clear()
        if self._spill is not None:
            self._spill.abandon()
        self._attempt.remove()

    def _flush(self) -> None:
        size = self._buffer.size
        chunks = self._buffer.take(self._rank())
        item = chunks, size / max(sum(chunks.counts), 1)
        del chunks
        if self._behind is None:
            self._write(item)
        else:
            self._behind.put(item)

    def _write(self, item: tuple[Chunks, float]) -> None:
        """Write the chunks of a buffer. ``item``: the chunks, and their bytes per message."""
        chunks, share = item
        aside = [number for number, code in enumerate(chunks.codes)
                 if not self._kept(code, chunks, number, share)]
        if aside:
            self._set_aside(chunks, aside)
        self._flushed += 1
        # Arrow would keep the peak memory of each thread for that thread alone.
        del chunks, item
        pa.default_memory_pool().release_unused()

    def _kept(self, code: int, chunks: Chunks, number: int, share: float) -> bool:
        """Write a chunk to its partition's file, if the partition has a file or is large enough for
        a file. Return whether the chunk was written.
        """
        count = chunks.counts[number]
        if not (code in self._open or count * share >= MIN_FILE_BYTES
                or (self._alone and len(self._open) < MAX_OPEN)):
            return False
        file = self._file(code)
        with self._attempt.writing(file.name):
            file.file.write(chunks.chunk(number))
        file.rows += count
        return True

    def _set_aside(self, chunks: Chunks, numbers: list[int]) -> None:
        if self._spill is None:
            self._spill = Spill(self._attempt, LINES if self._spec.is_text else self._spec.schema)
        table, lengths = chunks.table(numbers)
        self._spill.add(self._flushed, table, [chunks.codes[number] for number in numbers],
                        lengths, [chunks.counts[number] for number in numbers])

    def _rank(self) -> Array | None:
        """Return, for each partition, its position in a buffer. The partitions of a bucket are next
        to each other.
        """
        names = self._spec.partition_by
        self._bucket_of += [bucket(names, values, self._buckets)
                            for values in self.partitions.values[len(self._bucket_of):]]
        if self._buckets == 1:
            return None
        order = np.argsort(np.array(self._bucket_of, np.int64), kind="stable")
        rank: Array = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return rank

    def _file(self, code: int) -> OpenFile:
        already_open = self._open.get(code)
        if already_open is not None:
            self._open.move_to_end(code)
            return already_open
        if len(self._open) >= MAX_OPEN:
            self._close_oldest()
        file = self._open[code] = self._attempt.open(code, self._at, self._flushed)
        return file

    def _close_oldest(self) -> None:
        _, file = self._open.popitem(last=False)
        self._written.append(self._attempt.close(file))
