"""Places of records that are kept for later, outside of memory: 32 bytes each in a nameless file.

What is said of a record at once and what is only known at the end of its source, or of all, part
here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.scan.frames import Array

PLACE = np.dtype([("position", "<i8"), ("physical", "<i8"), ("size", "<i4"), ("source", "<i4"),
                  ("late", "<i8")])
"""Where a record lies: position in its source, what it says is its physical offset, its size,
the number of its source. ``late`` is the user's (a time, an order)."""
_STEP = 1 << 12
_HELD = 1 << 14


class Spool:
    """Places in the order in which they were added. Use `close` when done. StoreIOError."""

    def __init__(self) -> None:
        self._file: Any = None
        self._fresh: list[Array] = []
        self._pending = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, source: int, position: Array | int, physical: Array | int, size: Array | int,
            late: Array | int = 0) -> None:
        """Adds places of one source; columns of equal length, or single numbers."""
        count = len(position) if isinstance(position, np.ndarray) else 1
        if not count:
            return
        rows: Array = np.empty(count, PLACE)
        rows["position"], rows["physical"], rows["size"] = position, physical, size
        rows["source"], rows["late"] = source, late
        self.add_rows(rows)

    def add_rows(self, rows: Array) -> None:
        self._fresh.append(rows)
        self._count += len(rows)
        self._pending += len(rows)
        if self._pending >= _HELD:
            self._write()

    def _write(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="rmqctl-")  # noqa: SIM115
            for rows in self._fresh:
                self._file.write(np.ascontiguousarray(rows).view(np.uint8).data)
        except OSError as error:
            raise StoreIOError.from_oserror(error, tempfile.gettempdir(),
                                            "keep places of records in") from None
        self._fresh, self._pending = [], 0

    def chunks(self, step: int = _STEP) -> Iterator[Array]:
        """All places, in pieces of at most ``step``. Nothing may be added meanwhile."""
        written = self._count - self._pending
        try:
            if written:
                self._file.flush()
            for at in range(0, written, step):
                self._file.seek(at * PLACE.itemsize)
                raw = self._file.read(min(step, written - at) * PLACE.itemsize)
                yield np.frombuffer(raw, PLACE)
            if written:
                self._file.seek(0, 2)
        except OSError as error:
            raise StoreIOError.from_oserror(error, tempfile.gettempdir(),
                                            "read places of records in") from None
        if self._fresh:
            rows = np.concatenate(self._fresh)
            for at in range(0, len(rows), step):
                yield rows[at:at + step]

    def close(self) -> None:
        """Gives the space back; the spool is empty then."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._fresh, self._pending, self._count = [], 0, 0


class Majority:
    """Which of any number of keys came most, with a bounded memory (Misra-Gries).

    The most frequent one is certain to be found if it has more than one in `LIMIT` of all.
    """

    LIMIT = 64

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, key: int, weight: int) -> None:
        counts = self._counts
        if key in counts or len(counts) < self.LIMIT:
            counts[key] = counts.get(key, 0) + weight
            return
        least = min(weight, *counts.values())
        self._counts = {one: count - least for one, count in counts.items() if count > least}
        if weight > least:
            self._counts[key] = weight - least

    def most(self, least: int) -> int | None:
        """The key with the greatest weight, the first of several; None if that is below
        ``least``.
        """
        if not self._counts:
            return None
        key = max(self._counts, key=self._counts.__getitem__)
        return key if self._counts[key] >= least else None
