"""Consume queue entries in a backup at a URL: each run adds the new entries.

The entries are stored as files of a restore point, below ``.rmqctl/queues``:

* ``NUMBER``: groups of entries, one after the other. Each group begins with a line of JSON that
  names its queue file. A run appends its groups to the newest of these files.
* ``ends``: for each queue, the end of its stored entries and its last entry, as compressed JSON.

A restore writes the consume queues from these entries and compares them with the log. Where the log
is intact, it determines the entries. Other entries (after damage, or of a topic that was created
again) are restored as stored.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

import numpy as np

from rmqctl.backup.copying import kept_where_unreadable
from rmqctl.backup.growing import Copies
from rmqctl.backup.objects import SMALL, Held, Note, Objects, Piece
from rmqctl.backup.points import DamagedRange, require_inside
from rmqctl.errors import FormatError
from rmqctl.files.durable import make_folders, new_file, open_file, write_all
from rmqctl.formats.local import batch_consume_queue, consume_queue
from rmqctl.scan.holes import used_end
from rmqctl.store.files import StoreFile
from rmqctl.store.store import Store

FOLDER = ".rmqctl/queues/"
_ENDS = f"{FOLDER}ends"
_UNITS_OF = {"consumequeue": consume_queue.UNIT_SIZE,
             "batchconsumequeue": batch_consume_queue.UNIT_SIZE}
_UNITS = (*_UNITS_OF.values(),)
_STRETCH, _PIECE = 1 << 20, 4 << 20
"""``_STRETCH``: maximum size in bytes of a group of entries; ``_PIECE``: approximate size in bytes
of a piece.
"""
_PIECES = 256
"""Number of pieces after which a new file is started, because a point lists only a few pieces per
file.
"""
_LARGEST = 1 << 31
_MAX_ENDS = 1 << 28


class _End(NamedTuple):
    """The end of a queue's stored entries: position after the last entry; the last entry in hex."""

    position: int
    last: str

    @property
    def physical(self) -> int:
        """Physical offset to which the last stored entry points."""
        return int(self.last[:16], 16)


class Entries:
    """The consume queue entries that a run stores. ``log_end``: end of the copied log.

    Raises: StoreIOError; FormatError if the data of the previous point cannot be read.
    """

    def __init__(self, objects: Objects, last: Note, log_end: int) -> None:
        self._objects, self._log_end = objects, log_end
        self._files = {name: held for name, held in last.others.items()
                       if name.startswith(FOLDER) and name != _ENDS}
        self._ends = _read_ends(objects, last)
        self._buffer = bytearray()

    def add_all(
            self, view: Store, copies: Copies, *, again: bool
    ) -> tuple[bool, list[DamagedRange]]:
        """Store the new entries of all consume queues; with ``again`` (after a repair), all
        entries.

        Return (whether any queue has been replaced by a new one since the last run, ranges of
        stored entries that the store has lost).
        """
        lost: list[DamagedRange] = []
        is_other = False
        for queue in view.queues.plain.values():
            with closing(queue), kept_where_unreadable(queue.files, view, copies, lost):
                is_other |= self._add(view, queue.files, _UNITS[0], lost, again=again)
        for batches in view.queues.batch.values():
            with kept_where_unreadable(batches.files, view, copies, lost):
                is_other |= self._add(view, batches.files, _UNITS[1], lost, again=again)
        return is_other, lost

    def held(self, log_start: int) -> dict[str, Held]:
        """Return the files of entries, including new files. A file is skipped if all its entries
        point before ``log_start``.
        """
        self._flush()
        files = {name: held for name, held in self._files.items() if held.changed > log_start}
        ends = zlib.compress(json.dumps(self._ends, separators=(",", ":")).encode())
        piece = self._objects.add(SMALL, _ENDS, 0, ends)
        return {**files, _ENDS: Held(len(ends), self._log_end, (piece,))}

    def _add(self, view: Store, files: Sequence[StoreFile], unit: int, lost: list[DamagedRange], *,
             again: bool) -> bool:
        if not files:
            return False
        ordered = sorted(files, key=lambda file: file.base)
        folder = os.path.relpath(os.path.dirname(ordered[0].path), view.root)
        end = _end_of(ordered, unit)
        have = self._ends.get(folder)
        start, is_other = ordered[0].base, False
        if have is not None and not again:
            is_other = _is_other(ordered, unit, have, end)
            if not is_other:
                start = max(start, have.position)
                if end < have.position:
                    lost.append(DamagedRange(os.path.join(folder, ordered[-1].name),
                                             max(end - ordered[-1].base, 0), have.position - end,
                                             kept=True))
                    return False
        if start >= end:
            return is_other
        is_new = have is not None and (again or is_other)
        for file in ordered:
            name, stop = os.path.join(folder, file.name), min(end - file.base, file.size)
            with file.open() as source:
                for first in range(max(start - file.base, 0), stop, _STRETCH // unit * unit):
                    data = source.read(first, min(_STRETCH // unit * unit, stop - first))
                    head = json.dumps([name, first, len(data), file.size, unit, is_new])
                    self._put(head.encode() + b"\n" + data)
                    is_new = False
                    self._ends[folder] = _End(file.base + first + len(data), data[-unit:].hex())
        return is_other

    def _put(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) >= _PIECE:
            self._flush()

    def _flush(self) -> None:
        """Store the buffered entries as a piece of the newest file of entries."""
        if not self._buffer:
            return
        number = max((int(name.removeprefix(FOLDER)) for name in self._files), default=1)
        held = self._files.get(f"{FOLDER}{number:06d}", Held(0, 0, ()))
        pieces = self._objects.pieces_of(held)
        if len(pieces) >= _PIECES:
            number, held, pieces = number + 1, Held(0, 0, ()), ()
        data = bytes(self._buffer)
        self._buffer.clear()  # not twice in memory while it is sent
        piece = self._objects.add(SMALL, "", held.size, data)
        self._files[f"{FOLDER}{number:06d}"] = Held(
            held.size + len(data), max(held.changed, self._log_end), (*pieces, piece))


def _read_ends(objects: Objects, last: Note) -> dict[str, _End]:
    """Return, for each queue, the end of its stored entries. Raises: FormatError."""
    held = last.others.get(_ENDS)
    if held is None:
        return {}
    raw = b"".join(objects.get(SMALL, _ENDS, piece) for piece in objects.pieces_of(held))
    try:
        text = zlib.decompressobj().decompress(raw, _MAX_ENDS)
        return {folder: _End(int(position), _entry(digits))
                for folder, (position, digits) in json.loads(text).items()}
    except (zlib.error, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"invalid list of consume queue ends: {error}",
                          file=objects.where(_ENDS)) from None


def _entry(digits: str) -> str:
    if len(bytes.fromhex(digits)) not in _UNITS:
        raise ValueError("wrong entry size")
    return digits


def _end_of(ordered: Sequence[StoreFile], unit: int) -> int:
    """Return the position after the last entry of a queue."""
    for file in reversed(ordered):
        with file.open() as source:
            limit = file.size if file.limit is None else min(file.limit, file.size)
            if used := -(-used_end(source, 0, limit) // unit) * unit:
                return file.base + min(used, limit)
    return ordered[0].base


def _is_other(ordered: Sequence[StoreFile], unit: int, have: _End, end: int) -> bool:
    """Return whether the queue was replaced because its topic was created again. This is the case
    if the store's entry at the position of the last stored entry points to a later physical offset.
    """
    at = min(have.position, end) - unit
    for file in ordered:
        if file.base <= at < file.base + file.size:
            with file.open() as source:
                entry = source.read(at - file.base, unit)
            if entry.hex() == have.last or not any(entry):
                return False
            return int.from_bytes(entry[:8], "big") > have.physical
    return False


# -- restore --------------------------------------------------------------------------------------


def has_entries(note: Note) -> bool:
    """Return whether a point includes consume queue entries."""
    return _ENDS in note.others


def is_of_queues(name: str) -> bool:
    """Return whether a file of a point contains consume queue entries."""
    return name.startswith(FOLDER)


def lay(objects: Objects, note: Note, copies: Copies, end: int) -> None:
    """Write the consume queues of a point, up to the first entry that points to ``end`` (the end of
    the log) or beyond. Raises: StoreIOError, FormatError.
    """
    for name in sorted(note.others):
        if name.startswith(FOLDER) and name != _ENDS:
            held = note.others[name]
            for path, position, data, size, unit, is_new in _stretches(
                    objects, name, objects.pieces_of(held)):
                if is_new:
                    _remove_queue(copies, os.path.dirname(path))
                if kept := _before(data, unit, end):
                    _write(copies, path, position, kept, size)


def _stretches(objects: Objects, name: str, pieces: Iterable[Piece]) -> Iterator[
        tuple[str, int, bytes, int, int, bool]]:
    """Yield each group of entries: (queue file, position, entries, size of the file, bytes per
    entry, whether the group starts a new queue).
    """
    buffer = bytearray()
    for piece in pieces:
        buffer += objects.get(SMALL, name, piece)
        while (line := buffer.find(b"\n", 0, 1 << 16)) >= 0:
            path, position, length, size, unit, is_new = header(
                bytes(buffer[:line]), objects.where(name))
            if len(buffer) < line + 1 + length:
                break
            data = bytes(buffer[line + 1:line + 1 + length])
            del buffer[:line + 1 + length]
            yield path, position, data, size, unit, is_new
        if len(buffer) > _STRETCH + (1 << 16):
            break
    if buffer:
        raise FormatError("the last group of consume queue entries is incomplete",
                          file=objects.where(name))


def header(line: bytes, where: str) -> tuple[str, int, int, int, int, bool]:
    """Parse the header line of a group of entries. Raises: FormatError.

    Return (queue file, position, length, size of the file, bytes per entry, whether the group
    starts a new queue).
    """
    try:
        path, position, length, size, unit, is_new = json.loads(line)
        require_inside(path)
        top, _, queue, name = path.split("/")
        if _UNITS_OF.get(top) != unit or not (queue.isdigit() and name.isdigit()) or any(
                type(number) is not int for number in (position, length, size, unit)) or not (
                0 <= position <= position + length <= size <= _LARGEST
                and 0 < length <= _STRETCH):
            raise ValueError("invalid group of entries")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"invalid consume queue entries: {error}", file=where) from None
    return path, position, length, size, unit, bool(is_new)


def _before(data: bytes, unit: int, end: int) -> bytes:
    """Return the entries before the first one that points to `end` or beyond."""
    whole = len(data) // unit * unit
    physical = np.frombuffer(data[:whole], np.uint8).reshape(-1, unit)[:, :8].copy().view(">i8")
    beyond = np.flatnonzero(physical[:, 0] >= end)
    return data[:int(beyond[0]) * unit] if len(beyond) else data


def _write(copies: Copies, name: str, position: int, data: bytes, size: int) -> None:
    path = copies.path(name)
    make_folders(os.path.dirname(path), durable=False)
    copies.changed[name] = None
    fd = open_file(path, os.O_RDWR) if os.path.exists(path) else new_file(path, size)
    try:
        write_all(fd, data, position, path)
    finally:
        os.close(fd)


def _remove_queue(copies: Copies, folder: str) -> None:
    with suppress(FileNotFoundError):
        for name in os.listdir(copies.path(folder)):
            copies.remove(os.path.join(folder, name))
