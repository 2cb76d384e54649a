"""The files of a log as they should be, and bytes laid over them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd

from rmqctl.errors import RefusedError
from rmqctl.formats.local import append_crc
from rmqctl.formats.local.message import build, decode
from rmqctl.repair.salvage.filler import Style
from rmqctl.repair.salvage.survey import Region
from rmqctl.scan.overlay import LogPart, Piece
from rmqctl.store.store import Store

_MOST_PROPERTIES = 32767
_LEAST_FILE = 4096
"""No broker's files are smaller; cut files may be."""


def padded(part: LogPart, region: Region, short: int, style: Style) -> Piece:
    """A region too small for any record is taken by the message before it.

    That gets as many empty properties (0x02) as there are bytes: no broker reads anything from
    them. RefusedError where no message lies before it that has room for them.
    """
    if region.previous is not None:
        with part.open() as source:
            at = region.previous - part.base
            record = decode(source.read(at, region.start - region.previous))
        room = append_crc.SIZE if style.sealed else 0
        text = record.properties
        text = text[:len(text) - room] + b"\2" * short + text[len(text) - room:]
        if len(text) <= _MOST_PROPERTIES and (not style.sealed or len(record.properties) >= room):
            raw = build(replace(record, total_size=record.total_size + short, properties=text))
            return Piece.of(at, append_crc.seal(raw) if style.sealed else raw)
    raise RefusedError(f"{part.path}: {short} damaged bytes at physical offset {region.start} are "
                       "too few for any record, and no message before them can take them")


_FAR = 64
"""Missing files between two that may be a loss; more are a file of another log."""


def log_parts(store: Store) -> list[LogPart]:
    """The files of a log as they should be: all of one size, none missing between two.

    RefusedError where names or sizes make no log.
    """
    log = store.log
    size = file_size(store)
    found: list[LogPart] = []
    for one in log.files:
        if one.size > size:
            raise RefusedError(f"{one.path}: has {one.size} bytes, more than the {size} of a file "
                               "of this log: cut it first")
        at = found[-1].end if found else one.base
        if one.base < at or (one.base - at) % size:
            raise RefusedError(f"{one.path}: its name is no place for a file of {size} bytes "
                               f"behind {at}")
        if (one.base - at) // size > max(_FAR, 4 * len(log.files)):
            raise RefusedError(f"{one.path}: {(one.base - at) // size} files would be missing "
                               "before it, so it is hardly one of this log: move it elsewhere")
        while at < one.base:
            found.append(LogPart(at, size, None))
            at += size
        found.append(LogPart(one.base, size, one.path))
    return found


def without_empty_end(parts: Sequence[LogPart]) -> tuple[list[LogPart], list[LogPart]]:
    """(the parts of a log, those at its end that go): files without a byte that get none.

    A broker was killed between making the next file and extending it.
    """
    end = last = len(parts)
    while last and not parts[last - 1].pieces:
        path = parts[last - 1].path
        if path is not None and os.stat(path).st_size:
            break
        last -= 1
        if path is not None:
            end = last
    while end and end < len(parts) and parts[end - 1].path is None and not parts[end - 1].pieces:
        end -= 1  # nothing is missing before a file that goes
    return list(parts[:end]), list(parts[end:])


def file_size(store: Store) -> int:
    """The size of the log's files: the longest one's, if all names are multiples of it.

    The most frequent length can be that of files that were cut, and the distance of names that of
    files between which one is missing. Where all were cut, what their names have in common.
    """
    log = store.log
    size, bases = log.file_size, [one.base for one in log.files]
    steps = [base for base in bases if base]
    longest = max(one.size for one in log.files)
    if store.sizes.commitlog_file is not None or not steps:
        return size
    if longest >= _LEAST_FILE and all(base % longest == 0 for base in steps):
        return longest
    if size >= _LEAST_FILE and longest <= size and all(base % size == 0 for base in steps):
        return size
    common = gcd(*steps)
    return common if longest <= common else size


def laid_over(parts: Sequence[LogPart],
              pieces: Mapping[int, Sequence[Piece]]) -> list[LogPart]:
    """The parts with more pieces (by number of the part); these cover what is there already."""
    return [replace(part, pieces=over(part.pieces, pieces[number])) if number in pieces else part
            for number, part in enumerate(parts)]


def over(below: Sequence[Piece], above: Sequence[Piece]) -> tuple[Piece, ...]:
    """Pieces as one ascending list without overlaps, where ``above`` hides ``below``."""
    found = list(above)
    for one in below:
        at = one.at
        for upper in sorted(above, key=lambda piece: piece.at):
            if upper.end <= at or upper.at >= one.end:
                continue
            if upper.at > at:
                found.append(cut(one, at, upper.at))
            at = max(at, upper.end)
        if at < one.end:
            found.append(cut(one, at, one.end))
    return tuple(sorted(found, key=lambda piece: piece.at))


def cut(piece: Piece, start: int, end: int) -> Piece:
    """The bytes ``[start, end)`` (positions in the file) of a piece."""
    if start == piece.at and end == piece.end:
        return piece
    parts = []
    for position, data in piece.parts:
        low, high = max(piece.at + position, start), min(piece.at + position + len(data), end)
        if low < high:
            parts.append((low - start, data[low - piece.at - position:high - piece.at - position]))
    return Piece(start, end - start, tuple(parts))
