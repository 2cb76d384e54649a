"""Recognise copies of messages in a compaction log or a tier, if the original log is also carved.

A *run* is the set of a source's records with the same shift. A run from a compaction log or a tier
contains messages of one queue only. A run from a log mixes the messages of several queues.

A message in a run of a single queue is a copy if a run with several queues contains the same
message at another physical offset.
"""

from __future__ import annotations

import numpy as np

from rmqctl.files.row_file import RowFile
from rmqctl.scan.frames import Array, distinct

_MAX_RUNS = 1 << 20
_MAX_COPIES = 1 << 22
"""Maximum number of messages from single-queue runs that are compared at once."""
_STEP = 1 << 16
_SEVERAL = -2
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def identities(*columns: Array) -> Array:
    """Return a number (hash) for each element of the columns. Elements with equal values in all
    columns get the same number.
    """
    numbers: Array = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        numbers = (numbers ^ column.astype(np.int64).view(np.uint64)) * _FACTOR
        numbers ^= numbers >> np.uint64(29)
    return numbers


class ShiftQueues:
    """The queue of each run of messages, or a mark for runs with several queues.

    The keys are source and shift (physical offset minus position). At most a million runs are kept.
    Copies in later runs are not recognised.
    """

    def __init__(self) -> None:
        self._queue: dict[tuple[int, int], int] = {}

    def add(self, rows: Array) -> None:
        """Add messages. ``rows``: array with their source, physical offset, position and queue."""
        keys, run = self._keys(rows)
        low, high = np.full(len(keys), 1 << 31), np.full(len(keys), -1)
        np.minimum.at(low, run, rows["queue"])
        np.maximum.at(high, run, rows["queue"])
        for key, first, last in zip(keys, low.tolist(), high.tolist(), strict=True):
            queue = self._queue.get(key, first)
            if key in self._queue or len(self._queue) < _MAX_RUNS:
                self._queue[key] = queue if queue == first == last else _SEVERAL

    @staticmethod
    def _keys(rows: Array) -> tuple[list[tuple[int, int]], Array]:
        pairs = np.stack([rows["source"].astype(np.int64), rows["physical"] - rows["position"]])
        keys, run = np.unique(pairs, axis=1, return_inverse=True)
        return [*zip(*keys.tolist(), strict=True)], run.reshape(-1)

    def without_copies(self, rows: RowFile, into: RowFile) -> tuple[RowFile, int]:
        """Remove copies; return (the remaining messages, the number of removed copies).

        If there are no copies, ``rows`` itself is returned. Otherwise, the remaining messages are
        appended to ``into``, and ``into`` is returned. If copies were made of a run of messages,
        these messages are no longer marked as misplaced (``is_late``). Raises: StoreIOError.
        """
        count = sum(int(self._of_one(part).sum()) for part in rows.chunks(_STEP))
        if not 0 < count < len(rows):
            return rows, 0
        parts = -(-count // _MAX_COPIES)
        gone = [self._copied(rows, part, parts) for part in range(parts)]
        copied: Array = np.concatenate(gone)
        if not len(copied):
            return rows, 0
        copied.sort()
        origins = {key for part in rows.chunks(_STEP) for key in self._having(part, copied)}
        for part in rows.chunks(_STEP):
            keys, run = self._keys(part)
            is_origin = np.array([key in origins for key in keys], bool)[run]
            kept = part.copy()
            kept["is_late"][is_origin] = 0
            into.append(kept[~(self._of_one(part) & _among(part["identity"], copied))])
        return into, len(rows) - len(into)

    def _copied(self, rows: RowFile, part: int, parts: int) -> Array:
        """Return the sorted identities of messages that occur both in a run of a single queue and
        in a run with several queues.

        To limit memory, only one of ``parts`` groups of identities is compared: group ``part``.
        """
        def some(*, of_one: bool) -> Array:
            own: list[Array] = [np.zeros(0, np.uint64)]
            for chunk in rows.chunks(_STEP):
                identities = chunk["identity"][(self._of_one(chunk) if of_one else self._of_several(
                    chunk)) & (chunk["identity"] % np.uint64(parts) == part)]
                own.append(identities if of_one else identities[_among(identities, wanted)])
            return distinct(np.concatenate(own))

        wanted: Array = np.zeros(0, np.uint64)
        wanted = some(of_one=True)
        return some(of_one=False)

    def _having(self, rows: Array, copied: Array) -> set[tuple[int, int]]:
        """Return the runs that span several queues and contain a copied message."""
        return set(self._keys(rows[self._of_several(rows) & _among(
            rows["identity"], copied)])[0])

    def _of_one(self, rows: Array) -> Array:
        """Return a boolean array: whether each message is in a run of a single queue."""
        keys, run = self._keys(rows)
        is_of: Array = np.array([self._queue.get(key, -1) >= 0 for key in keys], bool)[run]
        return is_of

    def _of_several(self, rows: Array) -> Array:
        keys, run = self._keys(rows)
        is_of: Array = np.array([self._queue.get(key) == _SEVERAL for key in keys], bool)[run]
        return is_of & (rows["queue"] >= 0)


def _among(values: Array, wanted: Array) -> Array:
    """Return a boolean array: whether each value occurs in the sorted array ``wanted``."""
    if not len(wanted):
        return np.zeros(len(values), bool)
    place = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
    is_in: Array = wanted[place] == values
    return is_in
