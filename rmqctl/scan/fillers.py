"""Detection of messages that a repair wrote in place of others (`formats.local.filler`)."""

from __future__ import annotations

import numpy as np

from rmqctl.formats.local import filler
from rmqctl.formats.local.message import decode, fixed_field
from rmqctl.formats.local.sysflag import BORN_HOST_V6
from rmqctl.scan import text
from rmqctl.scan.frames import Array, Batch, gather, gather_int

_KEPT_WORD = int.from_bytes(filler.KEPT_START[:8], "big")
_BORN = fixed_field("born_timestamp").offset + fixed_field("born_timestamp").size


def kept_damaged(batch: Batch) -> Array:
    """Return a boolean array: whether each message of a batch was kept with a damaged body."""
    texts = text.properties(batch)
    mask: Array = texts.length >= len(filler.KEPT_START)
    rows = np.flatnonzero(mask)
    mask[:] = False
    rows = rows[gather_int(batch.data, texts.start[rows], "i8") == _KEPT_WORD]  # few records
    if len(rows):
        mask[rows] = gather(batch.data, texts.start[rows], len(filler.KEPT_START)) == np.void(
            filler.KEPT_START)
    return mask


def replaced(batch: Batch) -> Array:
    """Return a boolean array: whether each message of a batch is a filler or was kept with a
    damaged body.
    """
    mask: Array = fillers(batch) | kept_damaged(batch)
    return mask


def fillers(batch: Batch) -> Array:
    """Return a boolean array: whether each message of a batch is a filler."""
    mask: Array = batch.column("born_host.port") == 0
    if not mask.any():
        return mask
    mask &= batch.column("sys_flag") & BORN_HOST_V6 == 0
    rows = np.flatnonzero(mask)
    rows = rows[gather_int(batch.data, batch.start[rows] + _BORN, "i4") == 0]
    mask[:] = False
    if not len(rows):
        return mask
    marked, values = text.PropertySegments(batch.select(rows)).find(filler.MARK)
    is_lost = np.array([value == filler.LOST.encode() for value in values.tolist()], bool)
    mask[rows[marked[is_lost]]] = True
    for row in np.setdiff1d(rows, rows[marked]).tolist():
        mask[row] = filler.is_filler(decode(batch.bytes_at(row)))
    return mask
