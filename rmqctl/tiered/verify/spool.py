"""Rows kept by fingerprint until both sides of a comparison are there, in bounded memory.

Rows are structured arrays with a ``mark`` (uint64). Beyond a bound they go to an unnamed temporary
file, cut into buckets by the mark's first bits; one bucket after the other is then compared.
"""

from __future__ import annotations

import tempfile
from typing import IO, Any

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.scan.frames import Array

BUCKETS = 64
MEMORY = 64 << 20
_FIRST = np.arange(BUCKETS, dtype=np.uint64) << np.uint64(58)
"""The least mark of each bucket."""


class Spool:
    """Rows of one dtype. Use `add`, then `bucket` for each of `BUCKETS`, then `close`."""

    def __init__(self, dtype: np.dtype[Any], memory: int = MEMORY) -> None:
        self._dtype, self._memory = dtype, memory
        self._rows: list[Array] = []
        self._bytes = 0
        self._ordered = False
        self._file: IO[bytes] | None = None
        self._extents: list[list[tuple[int, int]]] = [[] for _ in range(BUCKETS)]
        self.count = 0

    def add(self, rows: Array) -> None:
        """Takes a copy's ownership: ``rows`` must not be changed afterwards. StoreIOError."""
        if not len(rows):
            return
        self._rows.append(rows)
        self._ordered = False
        self._bytes += rows.nbytes
        self.count += len(rows)
        if self._bytes > self._memory:
            self._spill()

    def _spill(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="rmqctl-")  # noqa: SIM115
            at = self._file.seek(0, 2)
            for number, part in enumerate(self._split()):
                if len(part):
                    self._file.write(part.tobytes())
                    self._extents[number].append((at, len(part)))
                    at += part.nbytes
        except OSError as error:
            raise StoreIOError.from_oserror(error, tempfile.gettempdir(), "write to") from None
        self._rows, self._bytes = [], 0

    def _split(self) -> list[Array]:
        rows = self._memory_rows()
        return np.split(rows, np.searchsorted(rows["mark"], _FIRST[1:]))

    def _memory_rows(self) -> Array:
        """What is in memory, ordered by mark."""
        if len(self._rows) != 1 or not self._ordered:
            whole = np.concatenate(self._rows) if self._rows else np.zeros(0, self._dtype)
            self._rows = [whole[np.argsort(whole["mark"], kind="stable")]]
            self._ordered = True
        return self._rows[0]

    def bucket(self, number: int) -> Array:
        """All rows whose mark's first bits are ``number``, ordered by mark. StoreIOError."""
        rows = self._memory_rows()
        low = int(np.searchsorted(rows["mark"], _FIRST[number]))
        high = len(rows) if number + 1 == BUCKETS else int(
            np.searchsorted(rows["mark"], _FIRST[number + 1]))
        parts = [rows[low:high]]
        if not self._extents[number]:
            return parts[0]
        for at, count in self._extents[number]:
            assert self._file is not None
            try:
                self._file.seek(at)
                data = self._file.read(count * self._dtype.itemsize)
            except OSError as error:
                raise StoreIOError.from_oserror(error, tempfile.gettempdir(), "read") from None
            parts.append(np.frombuffer(data, self._dtype))
        found: Array = np.concatenate(parts)
        order = np.argsort(found["mark"], kind="stable")
        return found[order]

    def close(self) -> None:
        self._rows = []
        if self._file is not None:
            self._file.close()
            self._file = None
