"""Damage in the properties of records and in their appended CRC, by column.

No CRC covers the properties of most records (spec: commitlog.md §5). Anything that a producer may
send is valid: any text, empty values, no separator at the end. An appended CRC that matches proves
the properties, whatever they contain (spec: commitlog.md §5.4).
"""

from __future__ import annotations

import numpy as np

from rmqctl.formats.local import append_crc
from rmqctl.formats.local import properties as props
from rmqctl.kernel import active
from rmqctl.scan import text
from rmqctl.scan.frames import Array, Batch, gather, gather_int

_ASSIGN = props.NAME_VALUE_SEPARATOR.encode()
_SEPARATOR = props.PROPERTY_SEPARATOR.encode()
MARK = np.frombuffer(append_crc.build(0)[:append_crc.SIZE - append_crc.DIGITS - 1], np.uint8)
_NAME = int.from_bytes(props.CRC32.encode("ascii"), "big", signed=True)


def damaged_properties(batch: Batch) -> Array:
    """Return a boolean array: True for a record with a wrong appended CRC, and for one without an
    appended CRC whose properties no broker writes (see `props.are_sound`).
    """
    sealed, wrong = appended_crcs(batch)
    damaged: Array = wrong | (~sealed & unsound_texts(text.properties(batch)))
    return damaged


def unsound_texts(texts: text.Texts) -> Array:
    """Return a boolean array: whether each properties string is invalid."""
    unsound: Array = np.zeros(len(texts), bool)
    kernel = active()
    if kernel is not None:
        kernel.unsound(texts.data, *text.contiguous(texts.start, texts.length),
                       unsound.view(np.uint8))
    elif not _all_sound(raws := texts.tolist()):
        unsound[:] = [not props.are_sound(raw) for raw in raws]
    return unsound


def _all_sound(raws: list[bytes]) -> bool:
    """Return whether all properties strings are valid, checked in one pass."""
    joined = _SEPARATOR.join(raws)
    if b"\0" in joined or any(
            part and part.find(_ASSIGN) < 1 for part in joined.split(_SEPARATOR)):
        return False
    try:
        joined.decode()
    except UnicodeDecodeError:
        return False
    return True


def unproven(batch: Batch) -> Array:
    """Return a boolean array: True for a record without an appended CRC, and for one whose appended
    CRC is wrong, 0, or not separated from the previous property.
    """
    sealed, wrong = appended_crcs(batch)
    is_unproven: Array = ~sealed | wrong
    is_unproven |= ~is_unproven & glued(batch)
    length = append_crc.SIZE
    rows = np.flatnonzero(~is_unproven)
    end = (batch.start + batch.column("total_size"))[rows]
    is_unproven[rows] = gather(batch.data, end - length, length) == np.void(append_crc.build(0))
    return is_unproven


def glued(batch: Batch) -> Array:
    """Return a boolean array: whether each record ends with an appended CRC without a separator
    before it.
    """
    is_glued: Array = np.zeros(len(batch), bool)
    length = append_crc.SIZE
    rows = np.flatnonzero(batch.column("properties_length") > length)
    end = (batch.start + batch.column("total_size"))[rows]
    is_glued[rows] = gather(batch.data, end - length - 1, 1) != np.void(_SEPARATOR)
    return is_glued


def appended_crcs(batch: Batch) -> tuple[Array, Array]:
    """Return two boolean arrays: whether each record ends with an appended CRC, and whether this
    CRC is wrong.
    """
    length = append_crc.SIZE
    wrong: Array = np.zeros(len(batch), bool)
    sealed = batch.column("properties_length") >= length
    rows = np.flatnonzero(sealed)
    end = (batch.start + batch.column("total_size"))[rows]
    named = gather_int(batch.data, end - length, "i8") == _NAME
    rows, end = rows[named], end[named]
    sealed[:] = False
    if not len(rows):
        return sealed, wrong
    tail = gather(batch.data, end - length, length).view(np.uint8).reshape(-1, length)
    has = (tail[:, :len(MARK)] == MARK).all(axis=1)
    rows, end, digits = rows[has], end[has], tail[has, len(MARK):-1].astype(np.int64) - ord("0")
    sealed[rows] = True
    stored = digits @ (10 ** np.arange(append_crc.DIGITS, dtype=np.int64))
    good = ((digits >= 0) & (digits <= 9)).all(axis=1)
    start = batch.start[rows]
    good &= batch.crc(start, end - length - start) == stored
    wrong[rows] = ~good
    return sealed, wrong
