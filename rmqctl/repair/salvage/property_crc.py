"""Appended CRCs of the messages of a batch, by column (spec: commitlog.md §5.4)."""

from __future__ import annotations

import numpy as np

from rmqctl.formats.local import append_crc
from rmqctl.scan.frames import Array, Batch, gather

_SEAL = np.frombuffer(append_crc.build(0)[:append_crc.SIZE - append_crc.DIGITS - 1], np.uint8)


def seals(batch: Batch) -> tuple[Array, Array]:
    """(whether a record ends with an appended CRC, whether that is wrong), both bool."""
    size = batch.column("total_size")
    wrong: Array = np.zeros(len(batch), bool)
    sealed = batch.column("properties_length") >= append_crc.SIZE
    rows = np.flatnonzero(sealed)
    sealed[:] = False
    if not len(rows):
        return sealed, wrong
    end = (batch.start + size)[rows]
    tail = gather(batch.data, end - append_crc.SIZE, append_crc.SIZE).view(np.uint8).reshape(
        -1, append_crc.SIZE)
    has = (tail[:, :len(_SEAL)] == _SEAL).all(axis=1)
    rows, end, tail = rows[has], end[has], tail[has]
    if not len(rows):
        return sealed, wrong
    sealed[rows] = True
    digits = tail[:, len(_SEAL):-1].astype(np.int64) - ord("0")
    stored = digits @ (10 ** np.arange(append_crc.DIGITS, dtype=np.int64))
    start = batch.start[rows]
    good = ((digits >= 0) & (digits <= 9)).all(axis=1)
    good &= batch.crc(start, end - append_crc.SIZE - start) == stored
    wrong[rows] = ~good
    return sealed, wrong
