"""Entries of consume queue files and of index files as Arrow record batches.

Each function reads a range of entries of one file as rows, in batches of limited size, with the
requested columns. The columns do not include values that the path determines: store, topic, queue
id, file name. Bytes are not validated. A file that is too short has fewer rows; an incomplete row
at its end is omitted. An unreadable file raises StoreIOError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import batch_consume_queue, consume_queue, index_file
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.formats.local.index_file import HEADER, IndexShape
from rmqctl.scan.columns import record_batch
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource
from rmqctl.scan.tables import INDEX_COLUMNS, MOMENT, QUEUE_COLUMNS
from rmqctl.store.files import StoreFile
from rmqctl.store.index.files import IndexFile, open_index
from rmqctl.store.queue.consume_queue import ConsumeQueue

ROWS = 100_000
"""Maximum number of rows that are read for one record batch."""


def queue_batches(file: StoreFile, names: Sequence[str], start: int = 0, end: int | None = None,
                  rows: int = ROWS) -> Iterator[pa.RecordBatch]:
    """Yield the used rows among rows ``[start, end)`` of a consume queue file.

    Rows have 20 bytes and are counted from 0. All rows except zeros and padding entries are used,
    including damaged rows. Columns: `QUEUE_COLUMNS`.
    """
    first = file.base // consume_queue.UNIT_SIZE
    with file.open() as source:
        for first_unit, units in _pages(source, consume_queue.dtype(), start, end, rows):
            keep = _used(units)
            keep &= ((units["size"] != FILLER.size) | (units["tags_code"] != FILLER.tags_code)
                     | (units["physical_offset"] != FILLER.physical_offset))
            number = first_unit + np.flatnonzero(keep)
            yield from _queue_rows(units[keep], number, first + number, names)


def database_batches(queue: ConsumeQueue, names: Sequence[str], start: int, end: int,
                     rows: int = ROWS) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a queue in RocksDB with queue offsets ``[start, end)``.

    Columns: `QUEUE_COLUMNS`; ``position`` is null. Raises: StoreIOError, after all readable rows,
    if a part is unreadable.
    """
    for first, units in queue.pages(start, end, rows):
        keep = _used(units)
        yield from _queue_rows(units[keep], None, first + np.flatnonzero(keep), names)
    if queue.why_unread:
        raise StoreIOError(queue.why_unread)


def batch_queue_batches(file: StoreFile, names: Sequence[str], start: int = 0,
                        end: int | None = None, rows: int = ROWS) -> Iterator[pa.RecordBatch]:
    """Yield the nonzero rows among rows ``[start, end)`` of a batch consume queue file (46-byte
    units).

    Each row is a batch of messages; its ``queue_offset`` is the first one that the batch covers.
    """
    with file.open() as source:
        for first_unit, units in _pages(source, batch_consume_queue.dtype(), start, end, rows):
            keep = _used(units)
            yield from _queue_rows(units[keep], first_unit + np.flatnonzero(keep),
                                   units["msg_base_offset"][keep], names)


def index_entries(file: StoreFile, shape: IndexShape | None = None) -> int:
    """Return the number of used entries of an index file, according to its header and its size.

    Raises: StoreIOError if the file cannot be read, or its shape is unknown.
    """
    index = _open_index(file, shape)
    if index is None:
        return 0
    with index.source:
        return _entries(index)


def index_batches(file: StoreFile, names: Sequence[str], start: int = 1, end: int | None = None,
                  rows: int = ROWS, shape: IndexShape | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the used entries with numbers ``[start, end)`` of an index file. Columns:
    `INDEX_COLUMNS`.

    The first used entry has the number 1, and the header contains the number of used entries.
    ``shape``: the shape of the file (None: determine it from the file). Raises: StoreIOError like
    `index_entries`.
    """
    index = _open_index(file, shape)
    if index is None:
        return
    with index.source:
        last = _entries(index) + 1
        for first_unit, units in _pages(index.source, index_file.dtype(), max(start, 1),
                                        last if end is None else min(end, last), rows,
                                        index.shape.entry_position(0)):
            arrays = [_of_entries(index, units, first_unit, name) for name in names]
            yield record_batch(arrays, names, INDEX_COLUMNS, len(units))


def _pages(source: FileSource, kind: np.dtype[Any], start: int, end: int | None, rows: int,
           origin: int = 0) -> Iterator[tuple[int, Array]]:
    """Yield (index of the first unit, units) for each page of the units ``[start, end)``; unit 0 is
    at position ``origin``.
    """
    width = kind.itemsize
    most = max(source.size - origin, 0) // width
    number, end = max(start, 0), most if end is None else min(end, most)
    while number < end:
        if not origin:  # if zeros are not rows, holes need not be read
            number = max(number, source.next_data(number * width) // width)
        data = source.read(origin + number * width, max(min(rows, end - number), 0) * width)
        count = len(data) // width
        if not count:
            return
        yield number, np.frombuffer(data, kind, count)
        number += count


def _used(units: Array) -> Array:
    """Return a boolean array: whether each unit has a nonzero byte."""
    mask: Array = np.zeros(len(units), bool)
    for name in units.dtype.names or ():
        mask |= units[name] != 0
    return mask


def _queue_rows(units: Array, number: Array | None, queue_offset: Array,
                names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches. ``number``: the index of each unit in its file; None for a queue
    without files.
    """
    if len(units):
        none = pa.nulls(len(units), QUEUE_COLUMNS["position"].type)
        yield record_batch([none if name == "position" and number is None else _native(
            number * units.itemsize if name == "position" and number is not None else
            queue_offset if name == "queue_offset" else units[name], QUEUE_COLUMNS[name].type)
            for name in names], names, QUEUE_COLUMNS, len(units))


def _native(values: Array, kind: pa.DataType) -> pa.Array:
    return pa.array(values.astype(kind.to_pandas_dtype()))


def _open_index(file: StoreFile, shape: IndexShape | None) -> IndexFile | None:
    """Return the opened index file; None for a file that is too short to have an entry."""
    try:
        if shape is None:
            return open_index(file)
        return open_index(file, shape.slots, shape.max_entries)
    except FormatError as error:
        with file.open() as source:
            if source.size < HEADER.size or not HEADER.decode(source.read(0, HEADER.size)).entries:
                return None
        raise StoreIOError(str(error)) from None


def _entries(index: IndexFile) -> int:
    room = (index.source.size - index.shape.entry_position(0)) // index_file.ENTRY.size - 1
    return max(min(index.header.entries, index.shape.capacity, room), 0)


def _of_entries(index: IndexFile, units: Array, first: int, name: str) -> pa.Array:
    kind = INDEX_COLUMNS[name].type
    number = first + np.arange(len(units))
    if name == "number":
        return _native(number, kind)
    if name == "position":
        return _native(index.shape.entry_position(0) + number * units.itemsize, kind)
    if name == "store_timestamp":
        seconds = units["time_diff"].astype(np.int64)
        return pa.array(seconds * 1000 + np.int64(index.header.begin_timestamp)).view(MOMENT)
    if name == "slot":
        hashed: Any = units["key_hash"].astype(np.int64)  # `slot_of` accepts a column too
        return pa.array(index.shape.slot_of(hashed), mask=hashed < 0).cast(kind)
    return _native(units[name], kind)
