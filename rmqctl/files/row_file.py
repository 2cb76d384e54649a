"""Rows that may not fit into memory, in an unnamed temporary file that the system deletes when it
is closed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.files.durable import failed
from rmqctl.scan.frames import Array


class RowFile:
    """Rows of one dtype in the order in which they were added. Call `close` when done.

    Up to ``held`` rows are kept in memory. If there are more, all rows spill to a file in
    ``folder`` (default: the system's temporary folder). ``content``: the name of the rows in
    errors.
    """

    def __init__(self, dtype: Any, content: str = "rows", *, held: int = 0,
                 folder: str | None = None) -> None:
        self._dtype, self._content, self._held = np.dtype(dtype), content, held
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._waiting: list[Array] = []
        self._written = self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def _place(self) -> str:
        return self._folder or tempfile.tempdir or "the folder for temporary files"

    def append(self, rows: Array) -> None:
        """Add rows, which must not be changed afterwards.

        Raises: StoreIOError.
        """
        if not len(rows):
            return
        self._waiting.append(rows)
        self._count += len(rows)
        if self._count - self._written >= self._held:
            self._write()

    def _write(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(  # noqa: SIM115
                    prefix="rmqctl-", dir=self._folder)
            for rows in self._waiting:
                self._file.write(np.ascontiguousarray(rows, self._dtype).view(np.uint8).data)
            self._file.flush()
        except OSError as error:
            raise failed(error, self._place, f"keep {self._content} in") from None
        self._waiting, self._written = [], self._count

    def read(self, first: int, count: int) -> Array:
        """Return ``count`` rows, beginning with row number ``first``. All of these rows must have
        been added.

        Raises: StoreIOError.
        """
        size = self._dtype.itemsize
        raw = bytearray(count * size)
        done = 0
        while done < len(raw):
            assert self._file is not None
            try:
                length = os.preadv(self._file.fileno(), [memoryview(raw)[done:]],
                                   first * size + done)
            except OSError as error:
                raise failed(error, self._place, f"read {self._content} in") from None
            if not length:
                raise StoreIOError(f"{self._place}: {self._content} that were stored there are "
                                   f"missing")
            done += length
        return np.frombuffer(raw, self._dtype)

    def chunks(self, step: int) -> Iterator[Array]:
        """Yield all rows, in pieces of at most ``step``. No rows may be added meanwhile.

        Raises: StoreIOError.
        """
        for first in range(0, self._written, step):
            yield self.read(first, min(step, self._written - first))
        if self._waiting:
            rows = np.concatenate(self._waiting)
            for first in range(0, len(rows), step):
                yield rows[first:first + step]

    def mapped(self) -> Array:
        """Return all rows as one array, which remains valid after `close`.

        Raises: StoreIOError.
        """
        if self._waiting:
            self._write()
        if self._file is None:
            return np.zeros(0, self._dtype)
        try:
            return np.memmap(self._file, self._dtype, "r", shape=(self._count,))
        except OSError as error:
            raise failed(error, self._place, f"read {self._content} in") from None

    def close(self) -> None:
        """Delete all rows and release their space (once no mapping of the file exists)."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._waiting, self._written, self._count = [], 0, 0


def on_disk(rows: Array, content: str, folder: str | None = None) -> Array:
    """Return the same rows, in a file instead of in memory.

    Raises: StoreIOError.
    """
    file = RowFile(rows.dtype, content, folder=folder)
    try:
        file.append(rows)
        return file.mapped()
    finally:
        file.close()
