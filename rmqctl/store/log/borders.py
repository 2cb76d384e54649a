"""Boundaries between the records of one log file, found by scanning from a known boundary.

They are used to find the end of a scan, the start of the last record, and offsets for splitting a
file. All positions are physical offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.message import BLANK_SIZE, decode
from rmqctl.scan.frames import BLANK
from rmqctl.scan.source import Source
from rmqctl.scan.walk import Walk
from rmqctl.store.files import StoreFile

_UNWRITTEN = bytes(8)


def last_in_use(files: Sequence[StoreFile]) -> int:
    """Return the list index of the last file with content; 0 if no file has content, -1 if there
    are no files. Later files are only preallocated.
    """
    for number in range(len(files) - 1, -1, -1):
        try:
            with files[number].open() as source:
                if any(source.read(0, BLANK_SIZE)):
                    return number
        except StoreIOError:  # it existed when the folder was listed
            continue
    return min(len(files) - 1, 0)


class Walked(NamedTuple):
    """The result of a scan.

    ``end``: the last record boundary that the scan reached.
    ``last``: the start of the message that ends at ``end``; None if no message ends there, or if
    another message is known to follow.
    """

    end: int
    last: int | None


def walked(source: Source, position: int, limit: int | None, *, growing: bool = False,
           closed: bool = False, least: bool = True) -> Walked:
    """Scan from the boundary ``position`` and return the last record boundary up to ``limit``.

    After damage or zeros, a position is a boundary only if a message or a blank record starts at
    it, or if it is the end of a ``closed`` file.
    """
    reached, last = position, None
    stop = None if limit is None else limit - source.base
    for batch in Walk(source, position - source.base, stop, growing=growing):
        if len(batch):
            offset = batch.offset
            ends = offset + batch.column("total_size")
            count = len(ends) if limit is None else int(np.searchsorted(ends, limit, "right"))
            if not count and least and reached == position:
                count = 1
            if count:
                reached = int(ends[count - 1])
                last = int(offset[-1]) if count == len(ends) else None
            if count < len(ends):
                break
        for span in batch.spans:
            if span.kind == BLANK or closed:
                reached, last = span.end, None
    return Walked(reached, last)


def first_border(source: Source, physical: int) -> int:
    """Return the first record boundary of a file at or after ``physical``, found by scanning from
    the start of the file.
    """
    reached = source.base
    for batch in Walk(source, 0, physical - source.base):
        if len(batch):
            reached = int(batch.offset[-1] + batch.column("total_size")[-1])
        for span in batch.spans:
            # Data that is not written yet starts where it starts.
            reached = span.end if span.kind == BLANK or span.end <= physical else reached
    return reached


def is_whole(source: Source, start: int, end: int) -> bool:
    """Return whether the record at ``[start, end)`` seems to be completely written.

    The CRC covers only the body; topic and properties are written after the body. Unwritten bytes
    are zero. They are at the end of the record, or fill a page of memory within the record.
    """
    try:
        record = decode(source.read(start - source.base, end - start))
    except FormatError:
        return False
    return record.crc_ok and not any(
        text.endswith(b"\0") or _UNWRITTEN in text for text in (record.topic, record.properties))


def is_unfinished(source: Source, start: int, end: int) -> bool:
    """Return whether a process may still be writing the last record of the log.

    This is possible if the record is incomplete, and no queue entry or index entry points to the
    record or to a later offset.
    """
    witness = source.witness
    if witness is None or is_whole(source, start, end):
        return False
    limit = source.base + source.size
    return not any(len(places(start, limit)[0]) for places in (witness.rows, witness.keys))


def cuts(file: StoreFile, start: int, end: int, step: int) -> list[int]:
    """Return the offset of the first message at or after each multiple of ``step`` in the file,
    between ``start`` and ``end``.
    """
    first = file.base + ((start - file.base) // step + 1) * step
    wanted = np.arange(first, max(first, end), step)
    places: list[int] = []
    if not len(wanted):
        return places
    with file.open() as source:
        for batch in Walk(source, start - file.base, end - file.base):
            if len(batch):
                offset = batch.offset
                reached = wanted[wanted <= offset[-1]]
                places += offset[np.searchsorted(offset, reached)].tolist()
                wanted = wanted[len(reached):]
    return sorted({place for place in places if place > start})
