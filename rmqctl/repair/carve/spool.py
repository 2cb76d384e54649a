"""Store the places of records, and the identities of all records found, in bounded memory.

A place takes 32 bytes in a nameless file (`Spool`) until the records can be classified. An identity
takes 16 bytes, in memory up to a limit, then on disk (`RecordSet`).

Two records are the same if these fields are equal: store host, physical offset, size, CRC of the
body, queue offset and store time. Host and physical offset are not enough: equal values exist in a
log that was truncated and continued, and in the stores of brokers with the same host name.

The physical offsets are compared directly, the other fields as one 64-bit hash. The chance of a
false match is 2^-64 for each earlier record with the same physical offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rmqctl.files.row_file import RowFile, on_disk
from rmqctl.formats.local.message import HOST_BITS, fixed_field
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, distinct, gather
from rmqctl.store.pages import BatchPage, Page

PLACE = np.dtype([("position", "<i8"), ("physical", "<i8"), ("size", "<i4"), ("source", "<i4"),
                  ("late", "<i8")])
"""Place of a record.

``position``: position in the source.
``physical``: physical offset in the record.
``size``: size in bytes.
``source``: number of the source.
``late``: a further value of the caller.
"""
_STEP = 1 << 12
_HELD = 1 << 14
HELD = 8 << 20
"""Maximum number of records whose identities are kept in memory (128 MiB)."""
_RUN = 1 << 22
_FEW = 4
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(32)
_PORT = 4
_IDENTITY = ("total_size", "body_crc", "queue_offset", "store_timestamp")
_WIDTH = 24
_IDENTITIES = "identities of records"


class Spool(RowFile):
    """Places of records, in the order in which they were added. Call `close` when done. Raises:
    StoreIOError.
    """

    def __init__(self) -> None:
        super().__init__(PLACE, "places of records", held=_HELD)

    def add(self, source: int, position: Array | int, physical: Array | int, size: Array | int,
            late: Array | int = 0) -> None:
        """Add places of one source. The arguments are arrays of equal length, or single numbers."""
        rows: Array = np.empty(len(position) if isinstance(position, np.ndarray) else 1, PLACE)
        rows["position"], rows["physical"], rows["size"] = position, physical, size
        rows["source"], rows["late"] = source, late
        self.append(rows)

    def chunks(self, step: int = _STEP) -> Iterator[Array]:
        """Yield all places, in pieces of at most ``step``. Nothing may be added meanwhile."""
        return super().chunks(step)


class Majority:
    """Finds the most frequent of any number of keys with bounded memory (Misra-Gries).

    The most frequent key is found for certain if it makes up more than one in `LIMIT` of all keys.
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
        self._counts = {key: count - least for key, count in counts.items() if count > least}
        if weight > least:
            self._counts[key] = weight - least

    def most(self, least: int) -> int | None:
        """Return the key with the greatest weight (the first of several such keys); None if its
        weight is below ``least``.
        """
        if not self._counts:
            return None
        key = max(self._counts, key=self._counts.__getitem__)
        return key if self._counts[key] >= least else None


# -- which records were met before ----------------------------------------------------------------


def identity(page: Page) -> Array:
    """Return, for each record, one number (uint64) that represents its identity without the
    physical offset.
    """
    identities: Array = np.full(len(page), _OTHER, np.uint64)
    for column in (hosts_of(page), *map(page.numbers, _IDENTITY)):
        identities = (identities ^ column.astype(np.int64, copy=False).view(np.uint64)) * _PRIME
        identities ^= identities >> _SHIFT
    return identities


def hosts_of(page: Page) -> Array:
    """Return a number (int64) for the store host of each record. All kinds of pages use the same
    numbers.
    """
    if not isinstance(page, BatchPage):
        joined = b"".join(host.ljust(_WIDTH, b"\0") for host in page.hosts("store_host"))
        return _folded(np.frombuffer(joined, np.uint8).reshape(-1, _WIDTH))
    batch = page.batch
    if len(batch) > 1 and batch.has_one_store_host():
        return np.repeat(hosts_of(BatchPage(batch.select(slice(0, 1)))), len(batch))
    kinds = batch.column("sys_flag") & HOST_BITS
    out: Array = np.zeros(len(page), np.int64)
    for bits in distinct(kinds).tolist() if len(page) and kinds.any() else [0]:
        rows: Any = slice(None) if (kinds == bits).all() else np.flatnonzero(kinds == bits)
        address = fixed_field("store_host.address", bits)
        raw = gather(batch.data, batch.start[rows] + address.offset, address.size + _PORT)
        table: Array = np.zeros((len(raw), _WIDTH), np.uint8)
        table[:, :raw.itemsize] = raw.view(np.uint8).reshape(-1, raw.itemsize)
        out[rows] = _folded(table)
    return out


def _folded(table: Array) -> Array:
    """Return one number for each line of a two-dimensional byte array."""
    words = table.view("<u8")
    folded: Array = (words[:, 0] + words[:, 1] * _PRIME + words[:, 2] * _OTHER).view(np.int64)
    return folded


@dataclass(slots=True)
class _SortedRecords:
    """Records sorted by physical offset, then by ``rest``, the number for their other fields."""

    physical: Array
    rest: Array

    @property
    def low(self) -> int:
        return int(self.physical[0])

    @property
    def high(self) -> int:
        return int(self.physical[-1])

    def __len__(self) -> int:
        return len(self.physical)


class RecordSet:
    """A growing set of records. ``held``: maximum number of records kept in memory."""

    def __init__(self, held: int = HELD) -> None:
        self._limit = held
        self._most = min(_RUN, max(held // 2, 1))
        self._runs: list[_SortedRecords] = []
        self._stored: list[_SortedRecords] = []
        self._in_memory = 0
        self.count = 0

    def take(self, physical: Array, rest: Array) -> Array:
        """Add records; return for each whether an equal record was already in the set (bool).

        ``physical``: physical offsets (int64).
        ``rest``: values of `identity` (uint64).

        The first of several equal records is new. Raises: StoreIOError.
        """
        is_repeated: Array = np.zeros(len(physical), bool)
        if not len(physical):
            return is_repeated
        if len(physical) == 1 or (physical[1:] > physical[:-1]).all():
            run = _SortedRecords(physical.copy(), rest)
        else:
            order = np.lexsort((rest, physical))  # stable: the first of equal ones stays first
            run = _SortedRecords(physical[order], rest[order])
            same = (run.physical[1:] == run.physical[:-1]) & (run.rest[1:] == run.rest[:-1])
            is_repeated[order[1:][same]] = True
        low, high = run.low, run.high
        for other in (*self._runs, *self._stored):
            if other.low <= high and low <= other.high:
                is_repeated |= _inside(other, physical, rest)
        self.count += len(is_repeated) - int(is_repeated.sum())
        if is_repeated.any():
            new = ~is_repeated
            if not new.any():
                return is_repeated
            order = np.lexsort((rest[new], physical[new]))
            run = _SortedRecords(physical[new][order], rest[new][order])
        self._add(run)
        return is_repeated

    def _add(self, run: _SortedRecords) -> None:
        """Add a run. Runs of similar length are merged, so each of n records is moved only about
        log n times.
        """
        self._in_memory += len(run)
        runs = self._runs
        while runs and len(runs[-1]) <= 2 * len(run) and len(runs[-1]) + len(run) <= self._most:
            run = _joined(runs.pop(), run)
        runs.append(run)
        if self._in_memory > self._limit:
            largest = max(runs, key=len)
            self._runs = [run for run in runs if run is not largest]
            self._stored.append(_SortedRecords(on_disk(largest.physical, _IDENTITIES),
                                               on_disk(largest.rest, _IDENTITIES)))
            self._in_memory -= len(largest)


def _inside(run: _SortedRecords, physical: Array, rest: Array) -> Array:
    """Return a boolean array: whether each record is in a run."""
    left = np.searchsorted(run.physical, physical, "left")
    right = np.searchsorted(run.physical, physical, "right")
    is_inside: Array = np.zeros(len(physical), bool)
    width = right - left
    rows = np.flatnonzero(width)
    for step in range(_FEW):
        if not len(rows):
            return is_inside
        is_inside[rows] |= run.rest[left[rows] + step] == rest[rows]
        rows = rows[width[rows] > step + 1]
    for row in rows.tolist():  # hostile: many records with the same physical offset
        part = run.rest[left[row]:right[row]]
        place = int(np.searchsorted(part, rest[row]))
        is_inside[row] |= place < len(part) and bool(part[place] == rest[row])
    return is_inside


def _joined(first: _SortedRecords, other: _SortedRecords) -> _SortedRecords:
    if other.high < first.low:
        first, other = other, first
    physical = np.concatenate([first.physical, other.physical])
    rest = np.concatenate([first.rest, other.rest])
    if first.high < other.low:
        return _SortedRecords(physical, rest)
    order = np.lexsort((rest, physical))
    return _SortedRecords(physical[order], rest[order])
