"""Spool files of a rebuild, between the tasks that read the log and the tasks that write files.

A spool is a sequence of segments of numeric columns, followed by a directory of the segments. Each
segment belongs to one group. A spool is used in a single run on one kind of machine, so columns are
in the machine's byte order.
"""

from __future__ import annotations

import os
import struct
import uuid
from collections.abc import Iterator, Sequence

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.export.staging import refuse_unseen
from rmqctl.files.durable import open_file, write_parts
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource

Columns = Sequence[Array | None]
"""One-dimensional arrays of int64 or uint8; None for a missing column."""

_END = struct.Struct("<8sQQ")
_MAGIC = b"RMQSPOOL"
_COLUMN = struct.Struct("<BQ")
_TYPES = (np.dtype(np.uint8), np.dtype(np.int32), np.dtype(np.int64))
_NONE = len(_TYPES)
_INT32 = np.iinfo(np.int32)


class SpoolWriter:
    """A new spool file in ``folder``, under a unique name. Methods raise StoreIOError.

    The folder is not created: if it is missing, this machine does not see the driver's files.
    """

    def __init__(self, folder: str) -> None:
        refuse_unseen(folder)
        self.path = os.path.join(folder, f"{uuid.uuid4().hex}.spool")
        self._fd = open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "make")
        self._position = 0
        self._directory: list[tuple[int, int, int]] = []

    def add(self, group: int, columns: Columns) -> None:
        """Append a segment with columns of a group."""
        parts: list[bytes | memoryview] = []
        for column in columns:
            if column is None:
                parts.append(_COLUMN.pack(_NONE, 0))
                continue
            small = np.ascontiguousarray(_narrow(column))
            parts.append(_COLUMN.pack(_TYPES.index(small.dtype), small.nbytes))
            if small.nbytes:
                parts.append(small.view(np.uint8).data)
        length = write_parts(self._fd, parts, self._position, self.path)
        self._directory.append((group, self._position, length))
        self._position += length

    def finish(self) -> int:
        """Write the directory, close the file, and return its size in bytes."""
        table = np.array(self._directory, np.int64).reshape(-1, 3)
        end = _END.pack(_MAGIC, len(table), self._position)
        parts: list[bytes | memoryview] = [end]
        if len(table):
            parts.insert(0, table.reshape(-1).view(np.uint8).data)
        self._position += write_parts(self._fd, parts, self._position, self.path)
        self.close()
        return self._position

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def segments(path: str, group: int, count: int) -> Iterator[list[Array | None]]:
    """Yield the segments of a group in a spool, in order. Each segment has ``count`` columns.
    Raises: StoreIOError.
    """
    with FileSource(path) as source:
        table = _directory(source, path)
        for _, position, length in table[table[:, 0] == group].tolist():
            raw = source.read(position, length)
            if len(raw) != length:
                raise _broken(path)
            yield _columns(raw, count, path)


def _directory(source: FileSource, path: str) -> Array:
    directory = source.size - _END.size
    raw = source.read(max(directory, 0), _END.size)
    if directory < 0 or len(raw) != _END.size:
        raise _broken(path)
    magic, entries, start = _END.unpack(raw)
    if magic != _MAGIC or start + entries * 24 != directory:
        raise _broken(path)
    return np.frombuffer(source.read(start, entries * 24), np.int64).reshape(-1, 3)


def _columns(raw: bytes, count: int, path: str) -> list[Array | None]:
    columns: list[Array | None] = []
    position = 0
    for _ in range(count):
        if position + _COLUMN.size > len(raw):
            raise _broken(path)
        kind, size = _COLUMN.unpack_from(raw, position)
        position += _COLUMN.size
        if kind > _NONE or position + size > len(raw):
            raise _broken(path)
        if kind == _NONE:
            columns.append(None)
            continue
        column: Array = np.frombuffer(raw, np.uint8, size, position).view(_TYPES[kind])
        columns.append(column if kind == 0 else column.astype(np.int64))
        position += size
    return columns


def _narrow(column: Array) -> Array:
    """Return an int64 column as int32 if all its numbers fit; else the column itself."""
    if column.dtype != np.int64 or not len(column):
        return column
    if int(column.min()) < _INT32.min or int(column.max()) > _INT32.max:
        return column
    return column.astype(np.int32)


def _broken(path: str) -> StoreIOError:
    return StoreIOError(f"{path}: incomplete; it was changed, or this machine sees another state "
                        "of the file system")


def texts_to_columns(texts: Sequence[bytes]) -> tuple[Array, Array]:
    """Return two columns for texts: their concatenated bytes, and the length of each text in
    bytes.
    """
    return (np.frombuffer(b"".join(texts), np.uint8),
            np.array([len(text) for text in texts], np.int64))


def texts_of(data: Array | None, lengths: Array | None) -> list[bytes]:
    """Return the texts from the columns that `texts_to_columns` returned."""
    if data is None or lengths is None:
        return []
    raw, texts, position = data.tobytes(), [], 0
    for length in lengths.tolist():
        texts.append(raw[position:position + length])
        position += length
    return texts
