"""A backup at a URL: objects that never change, and the restore points that name these objects.

Object stores cannot append, so each run adds objects:

* ``log/FILE/START-END-SHA``: a piece of a log file
* ``small/SHA256``: a piece of another file, or a list of pieces that is too long for a point
* ``points/ID.json``: a restore point, written last. It names all pieces of all files.

Zeros are not stored: bytes that no piece covers are zeros. A killed run leaves objects that no
point names; `--keep` removes them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any, NamedTuple

from rmqctl.backup.check import ChangedRange
from rmqctl.backup.copying import refuse_inside
from rmqctl.backup.growing import Pace
from rmqctl.backup.points import DamagedRange, Point, id_of, parsed, require_inside
from rmqctl.errors import (
    FormatError,
    NotAStoreError,
    RmqctlError,
    StoreHeldError,
    StoreIOError,
)
from rmqctl.files.remote.files import RemoteFiles
from rmqctl.lazy_dataclass import dataclass

LOG, SMALL, POINTS = "log", "small", "points"
_MOST_INLINE = 16
"""Maximum number of pieces of a file that are listed in the point itself."""
_MOST_PIECES = 1 << 22
_FEW = 100
"""If at most this number of points remain, all of them are read whenever points are removed."""
_LARGEST = 1 << 28
SETTINGS: dict[str, type] = {
    "version": str, "consumequeue_file_size": int, "consumequeue_ext_file_size": int,
    "batch_consumequeue_file_size": int, "index_slots": int, "index_max": int,
    "consumequeue_ext": bool, "lmq": bool, "multi_dispatch": bool, "batch_topics": list}
"""Fields of `Settings` that a point contains, with the types of their JSON values."""
_SHA = re.compile(r"[0-9a-f]{64}")


class Piece(NamedTuple):
    """The bytes ``[start, end)`` of a file, stored as an object, with the SHA-256 of
    these bytes.
    """

    start: int
    end: int
    sha256: str


class Held(NamedTuple):
    """A stored file: its size, and its modification time in ns (0 for the log). ``pieces``: its
    pieces, or the SHA-256 of an object that contains their list.
    """

    size: int
    changed: int
    pieces: tuple[Piece, ...] | str


@dataclass(frozen=True, slots=True)
class Note:
    """A restore point and the files that it names.

    * ``tail``: SHA-256 of the end of the log
    * ``queues``: form in which the store kept its consume queues, for example ``rocksdb``
    * ``holes``: damage in the log that any run found
    * ``log``, ``others``: files by path
    * ``settings``: values of `Settings` with which queues and index were created
    """

    point: Point
    tail: str = ""
    queues: str = "file"
    holes: tuple[DamagedRange, ...] = ()
    log: dict[str, Held] = field(default_factory=dict)
    others: dict[str, Held] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def files_of(self, oldest: Point) -> Iterator[tuple[str, str, Held]]:
        """Yield (folder, path, file) of each file, except log files needed only by points before
        ``oldest``.
        """
        for path, held in self.log.items():
            if not is_expired(path, held, oldest):
                yield LOG, path, held
        for path, held in self.others.items():
            yield SMALL, path, held


def _day(name: str) -> str:
    """Return the date in the name of a point, for example 20261128."""
    return name.partition("T")[0]


def is_expired(path: str, held: Held, oldest: Point) -> bool:
    """Return whether a log file is needed only by restore points before ``oldest``."""
    name = os.path.basename(path)
    return name.isdigit() and int(name) + held.size <= oldest.log_start


def is_backup(folders: Collection[str], points: Collection[str]) -> bool:
    """Return whether a URL with these top folders and restore points is a backup. Unlike a store, a
    backup has no folder ``commitlog``.
    """
    return bool(points) and "commitlog" not in folders


def object_of(folder: str, path: str, piece: Piece) -> str:
    """Return the name of the object that contains a piece of a file."""
    if folder == SMALL:
        return f"{SMALL}/{piece.sha256}"
    return f"{LOG}/{path}/{piece.start}-{piece.end}-{piece.sha256[:16]}"


class Objects(RemoteFiles):
    """The objects of a backup at a URL. A StoreIOError names the URL without credentials."""

    there: Mapping[str, int] = {}
    """Sizes, by name, of objects that are already complete in the backup and need not be written
    again.
    """
    ASIDE = SMALL  # leftovers of a killed run are removed like other objects that no point names

    def refuse_in_store(self, root: str) -> None:
        """Raise RefusedError if the URL is a local folder inside the store."""
        protocol = self._fs.protocol
        if "file" in ({protocol} if isinstance(protocol, str) else protocol):
            refuse_inside(root, self._root, "a backup needs its own folder")

    # -- pieces ----------------------------------------------------------------------------------

    def add(self, folder: str, path: str, start: int, data: bytes) -> Piece:
        """Store ``data``, which begins at position ``start`` of a file, as a piece of the file."""
        piece = Piece(start, start + len(data), hashlib.sha256(data).hexdigest())
        name = object_of(folder, path, piece)
        if self.there.get(name) == len(data):
            return piece
        try:
            self.put(name, data)
        except StoreIOError as error:
            if error.errno == errno.ENOENT:
                raise StoreIOError(f"cannot write to {self.where(name)}: its bucket or folder does "
                                   "not exist") from None
            raise
        return piece

    def get(self, folder: str, path: str, piece: Piece) -> bytes:
        """Return the bytes of a piece. Raises: StoreIOError if they do not match their SHA-256."""
        return self._checked(object_of(folder, path, piece), piece.sha256, piece.end - piece.start)

    def _checked(self, name: str, digest: str, length: int = -1) -> bytes:
        if length < 0:
            length = self.size(name) or 0
        if length > _LARGEST:
            raise StoreIOError(f"{self.where(name)}: {length:,} bytes, more than the maximum of "
                               "a piece")
        self._sizes[name] = length  # saves a request for the size
        data = self.read(name, 0, length)
        if hashlib.sha256(data).hexdigest() != digest:
            raise StoreIOError(f"{self.where(name)}: its bytes have changed since they were copied")
        return data

    def pieces_of(self, held: Held) -> tuple[Piece, ...]:
        """Return the pieces of a file, in order of position."""
        if not isinstance(held.pieces, str):
            return held.pieces
        name = f"{SMALL}/{held.pieces}"
        try:
            return _pieces(json.loads(self._checked(name, held.pieces)), held.size)
        except (ValueError, TypeError, RecursionError) as error:
            raise FormatError(f"not a list of pieces: {error}", file=self.where(name)) from None

    def listed(self, held: Held) -> Held:
        """Return the file; if its list of pieces is too long for a point, store the list as an
        object.
        """
        if isinstance(held.pieces, str) or len(held.pieces) <= _MOST_INLINE:
            return held
        return held._replace(pieces=self.add(SMALL, "", 0, json.dumps(
            held.pieces, separators=(",", ":")).encode()).sha256)

    # -- points ----------------------------------------------------------------------------------

    def point_names(self) -> list[str]:
        """Return the names of all points, oldest first."""
        return [entry.name.removesuffix(".json") for entry in self.list(POINTS)
                if not entry.is_folder and entry.name.endswith(".json")]

    def is_backup(self) -> bool:
        """Return whether the URL contains a backup rather than a store."""
        return is_backup({entry.name for entry in self.list("")}, self.point_names())

    def notes(self, names: Sequence[str], bad: list[RmqctlError] | None = None) -> list[Note]:
        """Return the points with these names.

        If ``bad`` is given, points that cannot be read are skipped, and their errors are added to
        ``bad``.
        Raises: FormatError for such a point if ``bad`` is None, or if no point can be read.
        """
        paths = [f"{POINTS}/{name}.json" for name in names]
        notes: list[Note] = []
        wrong: list[RmqctlError] = []
        for name, data in zip(names, self.read_all(paths), strict=True):
            try:
                notes.append(self._parsed(name, data))
            except FormatError as error:
                wrong.append(error)
        if wrong and (bad is None or not notes):
            raise wrong[0]
        if bad is not None:
            bad += wrong
        return notes

    def require_notes(self, bad: list[RmqctlError] | None = None) -> list[Note]:
        """Return all points, as `notes` does. Raises: NotAStoreError if no point exists."""
        notes = self.notes(self.point_names(), bad)
        if not notes:
            why = (f"no restore point in {self.where(POINTS)}" if self.list("") else
                   "the bucket or folder does not exist or is empty")
            raise NotAStoreError(f"{self.where('')}: not a backup ({why})")
        return notes

    def _parsed(self, name: str, data: bytes) -> Note:
        path = self.where(f"{POINTS}/{name}.json")
        point, more = parsed(data, name, path)
        try:
            note = Note(point, str(more["tail"]), str(more["queues"]),
                        tuple(DamagedRange(**hole) for hole in more["holes"]),
                        _files(more["log"]), _files(more["others"]), _settings(more["settings"]))
            for file in (*note.log, *note.others, *(hole.file for hole in note.holes)):
                require_inside(file)
            if not all(type(number) is int and number >= 0 for hole in note.holes
                       for number in (hole.offset, hole.length)):
                raise ValueError("not a hole")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(f"not a restore point: {error}", file=path) from None
        return note

    def publish_point(self, note: Note, before: Sequence[str]) -> None:
        """Write a restore point. ``before``: names of the points when the run started. Raises:
        StoreHeldError if another run has written a point since then.
        """
        point = note.point
        document = {**point.as_dict(), "more": {
            "tail": note.tail, "queues": note.queues,
            "holes": [asdict(hole) for hole in note.holes], "log": note.log,
            "others": note.others, "settings": note.settings}}
        # There is no lock. Two concurrent runs never overwrite each other's objects; the run
        # that sees the other's point removes its own point and fails.
        path = f"{POINTS}/{point.id}.json"
        self._refuse_others({*before})
        self.publish(path, json.dumps(document).encode())
        try:
            self._refuse_others({*before, point.id})
        except StoreHeldError:
            self.remove(path)
            raise

    def _refuse_others(self, expected: set[str]) -> None:
        if others := set(self.point_names()) - expected:
            raise StoreHeldError(f"{self.where('')}: another run created restore point "
                                 f"{max(others)} at the same time, so this run created none. "
                                 "Only one run at a time may write to a backup")

    # -- removal of old points -------------------------------------------------------------------

    def take_away(self, before: int) -> tuple[int, int]:
        """Remove the points older than ``before`` (epoch ms), but never the newest point. Then
        remove the objects to which no remaining point refers. Return (number of removed points,
        number of removed bytes).

        If many points remain, all of them are read only once a day. At other times, only the oldest
        and the newest remaining point are read. Then an object is removed only if it belongs to the
        log, a removed point refers to it, and neither of these two points does.
        """
        names = self.point_names()
        gone = [name for name in names[:-1] if name < id_of(before)]
        left = names[len(gone):]
        is_full = len(left) <= _FEW or any(_day(name) != _day(left[0]) for name in gone)
        notes = self.notes(left if is_full else sorted({left[0], left[-1]}))
        needed = {name for note in notes for name, _ in self._named(note, notes[0].point)}
        unneeded: dict[str, int] = {}
        for note in () if is_full else self.notes(gone):
            unneeded |= {name: size for name, size in self._named(note, note.point)
                         if name.startswith(f"{LOG}/") and name not in needed}
        # Remove a point before the objects that it names.
        for name in gone:
            self.remove(f"{POINTS}/{name}.json")
        if is_full:
            unneeded = {name: size for folder in (LOG, SMALL)
                        for name, size in self.find(folder).items() if name not in needed}
        for name in unneeded:
            self.remove(name)
        return len(gone), sum(unneeded.values())

    def _named(self, note: Note, oldest: Point) -> Iterator[tuple[str, int]]:
        """Yield (name, size in bytes) of every object that a point names."""
        for folder, path, held in note.files_of(oldest):
            if isinstance(held.pieces, str):
                yield f"{SMALL}/{held.pieces}", 0
            for piece in self.pieces_of(held):
                yield object_of(folder, path, piece), piece.end - piece.start

    def faults(self, notes: Sequence[Note], pace: Pace) -> Iterator[ChangedRange]:
        """Yield a fault for each object that a point names and that does not match its SHA-256."""
        seen: set[str] = set()
        for note in notes:
            for folder, path, held in note.files_of(notes[0].point):
                try:
                    pieces = self.pieces_of(held)
                except (StoreIOError, FormatError) as error:
                    yield ChangedRange(note.point.id, path, 0, held.size, str(error))
                    continue
                for piece in pieces:
                    if (name := object_of(folder, path, piece)) in seen:
                        continue
                    seen.add(name)
                    try:
                        self.get(folder, path, piece)
                    except StoreIOError as error:
                        yield ChangedRange(note.point.id, path, piece.start, piece.end, str(error))
                    pace(piece.end - piece.start)


def _pieces(value: Any, size: int) -> tuple[Piece, ...]:
    """Parse the JSON value of a file's pieces. Raises: ValueError, TypeError."""
    if not isinstance(value, list) or len(value) > _MOST_PIECES:
        raise ValueError("pieces are not a list, or are too many")
    pieces = tuple(Piece(*piece) for piece in value)
    for start, end, digest in pieces:
        if type(start) is not int or type(end) is not int or not (
                0 <= start < end <= min(start + _LARGEST, size)) or not _SHA.fullmatch(digest):
            raise ValueError("not a piece")
    return pieces


def _files(value: Any) -> dict[str, Held]:
    """Parse the JSON object that lists stored files by path. Raises: ValueError, TypeError."""
    return {file: _held(*held) for file, held in value.items()}


def _settings(value: Any) -> dict[str, Any]:
    """Parse the JSON object that contains a point's settings. Raises: ValueError, TypeError."""
    for name, setting in value.items():
        kind = SETTINGS[name]
        if type(setting) is not kind or (isinstance(setting, int) and not 0 <= setting < 1 << 40):
            raise ValueError(f"{name} has a wrong value")
    if not all(isinstance(topic, str) for topic in value.get("batch_topics", [])):
        raise TypeError("batch_topics is not a list of names")
    return dict(value)


def _held(size: Any, changed: Any, pieces: Any) -> Held:
    """Parse the JSON values of a stored file: size, time, pieces. Raises: ValueError, TypeError."""
    if type(size) is not int or type(changed) is not int or not 0 <= size < 1 << 62:
        raise ValueError("not a size")
    if isinstance(pieces, str):
        if not _SHA.fullmatch(pieces):
            raise ValueError("not a list of pieces")
        return Held(size, changed, pieces)
    return Held(size, changed, _pieces(pieces, size))


def newest(backup: str) -> tuple[int, Point | None]:
    """Return the number of points, and the newest point (None if no point exists). Raises:
    FormatError.
    """
    with Objects(backup) as objects:
        names = objects.point_names()
        return len(names), objects.notes(names[-1:])[0].point if names else None


def require_points(backup: str, bad: list[RmqctlError] | None = None) -> list[Point]:
    """Return the points of a backup, oldest first (see `Objects.notes`).

    Raises: NotAStoreError if no point exists.
    """
    with Objects(backup) as objects:
        notes = objects.require_notes(bad)
    # The oldest point's `holes` include the damage that removed points found.
    return [replace(notes[0].point, damaged=notes[0].holes), *(note.point for note in notes[1:])]


def check(backup: str, points: list[Point],
          pace: Pace = lambda _bytes: None) -> Iterator[ChangedRange]:
    """Yield a fault for each object of a backup that does not match its SHA-256."""
    with Objects(backup) as objects:
        names = [point.id for point in points]
        yield from objects.faults(objects.notes(names), pace)
