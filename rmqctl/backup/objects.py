"""A backup at a URL: objects of which none is changed, and the restore points that name them.

Object stores cannot append, so each run adds objects:

* ``log/FILE/START-END-SHA``: bytes of a file of the log;
* ``small/SHA256``: a piece of another file, or a list of pieces that is too long for a point;
* ``points/ID.json``: a restore point, written last. It names all pieces of all files.

Zeros are not stored: what no piece covers is zero. What a run that was killed had written is named
by no point, and `--keep` removes it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from rmqctl.backup.check import Fault
from rmqctl.backup.copying import refuse_inside
from rmqctl.backup.growing import Pace
from rmqctl.backup.points import Hole, Point, id_of, parsed, require_inside
from rmqctl.errors import (
    FormatError,
    NotAStoreError,
    RmqctlError,
    StoreHeldError,
    StoreIOError,
)
from rmqctl.files.remote.files import RemoteFiles

LOG, SMALL, POINTS = "log", "small", "points"
_MOST_INLINE = 16
"""Pieces of a file that a point names itself."""
_MOST_PIECES = 1 << 22
_FEW = 100
"""Points that are all read whenever some are removed."""
_LARGEST = 1 << 28
SETTINGS: dict[str, type] = {
    "version": str, "consumequeue_file_size": int, "consumequeue_ext_file_size": int,
    "batch_consumequeue_file_size": int, "index_slots": int, "index_max": int,
    "consumequeue_ext": bool, "lmq": bool, "multi_dispatch": bool, "batch_topics": list}
"""Fields of `Settings` that a point notes, with their types in JSON."""
_SHA = re.compile(r"[0-9a-f]{64}")


class Piece(NamedTuple):
    """Bytes ``[start, end)`` of a file."""

    start: int
    end: int
    sha256: str


class Held(NamedTuple):
    """A file: its size, the time of its last change in ns (0 for the log), and its pieces; the
    SHA-256 of their list where that is an object of its own.
    """

    size: int
    changed: int
    pieces: tuple[Piece, ...] | str


@dataclass(frozen=True, slots=True)
class Note:
    """A restore point with all that it names. ``tail``: SHA-256 of the end of the log. ``queues``:
    the form of the consume queues. ``holes``: damage in the log, of all runs. ``log``, ``others``:
    files by path. ``settings``: values of `Settings` that queues and index were made with.
    """

    point: Point
    tail: str = ""
    queues: str = "file"
    holes: tuple[Hole, ...] = ()
    log: dict[str, Held] = field(default_factory=dict)
    others: dict[str, Held] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def files_of(self, oldest: Point) -> Iterator[tuple[str, str, Held]]:
        """Yield (folder, path, file) of all but the files of the log that only points before
        ``oldest`` needed.
        """
        for path, held in self.log.items():
            if not is_expired(path, held, oldest):
                yield LOG, path, held
        for path, held in self.others.items():
            yield SMALL, path, held


def _day(name: str) -> str:
    """Return the day of a point: 20261128."""
    return name.partition("T")[0]


def is_expired(path: str, held: Held, oldest: Point) -> bool:
    """Return whether no restore point from `oldest` on needs a file of the log."""
    name = os.path.basename(path)
    return name.isdigit() and int(name) + held.size <= oldest.log_start


def is_backup(folders: Collection[str], points: Collection[str]) -> bool:
    """Return whether a place with these top folders and restore points is a backup: every store has
    a folder ``commitlog``.
    """
    return bool(points) and "commitlog" not in folders


def object_of(folder: str, path: str, piece: Piece) -> str:
    """Return the object name of a piece of a file."""
    if folder == SMALL:
        return f"{SMALL}/{piece.sha256}"
    return f"{LOG}/{path}/{piece.start}-{piece.end}-{piece.sha256[:16]}"


class Objects(RemoteFiles):
    """The objects of a backup. StoreIOError with the URL, without credentials."""

    there: Mapping[str, int] = {}
    """Sizes of objects that need not be written again, by name: never half-written ones."""
    ASIDE = SMALL  # what a run that was killed leaves there is removed with what no point names

    def refuse_in_store(self, root: str) -> None:
        """RefusedError for a URL of a folder of this machine that is in the store."""
        protocol = self._fs.protocol
        if "file" in ({protocol} if isinstance(protocol, str) else protocol):
            refuse_inside(root, self._root, "a backup needs its own folder")

    # -- pieces ----------------------------------------------------------------------------------

    def add(self, folder: str, path: str, start: int, data: bytes) -> Piece:
        """Store bytes of a file that begin at ``start``."""
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
        """Return the bytes of a piece. StoreIOError where they are not those that were stored."""
        return self._checked(object_of(folder, path, piece), piece.sha256, piece.end - piece.start)

    def _checked(self, name: str, digest: str, length: int = -1) -> bytes:
        if length < 0:
            length = self.size(name) or 0
        if length > _LARGEST:
            raise StoreIOError(f"{self.where(name)}: {length:,} bytes, more than the maximum of "
                               "a piece")
        self._sizes[name] = length  # nobody needs to be asked for it
        data = self.read(name, 0, length)
        if hashlib.sha256(data).hexdigest() != digest:
            raise StoreIOError(f"{self.where(name)}: its bytes have changed since they were copied")
        return data

    def pieces_of(self, held: Held) -> tuple[Piece, ...]:
        """Return the pieces of a file, in order."""
        if not isinstance(held.pieces, str):
            return held.pieces
        name = f"{SMALL}/{held.pieces}"
        try:
            return _pieces(json.loads(self._checked(name, held.pieces)), held.size)
        except (ValueError, TypeError, RecursionError) as error:
            raise FormatError(f"not a list of pieces: {error}", file=self.where(name)) from None

    def listed(self, held: Held) -> Held:
        """Return the file with its list of pieces as an object, where it is long."""
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
        """Return whether the place is a backup, not a store."""
        return is_backup({entry.name for entry in self.list("")}, self.point_names())

    def notes(self, names: Sequence[str], bad: list[RmqctlError] | None = None) -> list[Note]:
        """Return the points of these names. Those that cannot be read are skipped, and the reason
        is added to ``bad``; without it, and where none can be read: FormatError.
        """
        paths = [f"{POINTS}/{name}.json" for name in names]
        found: list[Note] = []
        wrong: list[RmqctlError] = []
        for name, data in zip(names, self.read_all(paths), strict=True):
            try:
                found.append(self._parsed(name, data))
            except FormatError as error:
                wrong.append(error)
        if wrong and (bad is None or not found):
            raise wrong[0]
        if bad is not None:
            bad += wrong
        return found

    def require_notes(self, bad: list[RmqctlError] | None = None) -> list[Note]:
        """Return all points, as `notes`. NotAStoreError where none exist."""
        found = self.notes(self.point_names(), bad)
        if not found:
            why = (f"no restore point in {self.where(POINTS)}" if self.list("") else
                   "the bucket or folder does not exist or is empty")
            raise NotAStoreError(f"{self.where('')}: not a backup ({why})")
        return found

    def _parsed(self, name: str, data: bytes) -> Note:
        path = self.where(f"{POINTS}/{name}.json")
        point, more = parsed(data, name, path)
        try:
            note = Note(point, str(more["tail"]), str(more["queues"]),
                        tuple(Hole(**hole) for hole in more["holes"]),
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
        """Write a restore point. StoreHeldError where another run wrote one meanwhile."""
        point = note.point
        document = {**point.as_dict(), "more": {
            "tail": note.tail, "queues": note.queues,
            "holes": [asdict(hole) for hole in note.holes], "log": note.log,
            "others": note.others, "settings": note.settings}}
        # There is no lock: of two runs at once none writes over what the other needs.
        path = f"{POINTS}/{point.id}.json"
        self._refuse_others({*before})
        self.publish(path, json.dumps(document).encode())
        try:
            self._refuse_others({*before, point.id})
        except StoreHeldError:
            self.remove(path)
            raise

    def _refuse_others(self, known: set[str]) -> None:
        if others := set(self.point_names()) - known:
            raise StoreHeldError(f"{self.where('')}: another run created restore point "
                                 f"{max(others)} at the same time, so this run created none. "
                                 "Only one run at a time may write to a backup")

    # -- what is kept ----------------------------------------------------------------------------

    def take_away(self, before: int) -> tuple[int, int]:
        """Remove the points older than a time (epoch ms), but never the newest, then all objects
        that no point left names. (points, bytes) removed.

        Where many points are left, not all are read each time: but for once a day only what the
        removed ones name of the log goes, which the oldest and the newest left do not.
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
        # A point goes before what it names.
        for name in gone:
            self.remove(f"{POINTS}/{name}.json")
        if is_full:
            unneeded = {name: size for folder in (LOG, SMALL)
                        for name, size in self.find(folder).items() if name not in needed}
        for name in unneeded:
            self.remove(name)
        return len(gone), sum(unneeded.values())

    def _named(self, note: Note, oldest: Point) -> Iterator[tuple[str, int]]:
        """Yield (object, bytes) of all that a point names."""
        for folder, path, held in note.files_of(oldest):
            if isinstance(held.pieces, str):
                yield f"{SMALL}/{held.pieces}", 0
            for piece in self.pieces_of(held):
                yield object_of(folder, path, piece), piece.end - piece.start

    def faults(self, known: Sequence[Note], pace: Pace) -> Iterator[Fault]:
        """Compare each object that a point names with its SHA-256."""
        seen: set[str] = set()
        for note in known:
            for folder, path, held in note.files_of(known[0].point):
                try:
                    pieces = self.pieces_of(held)
                except (StoreIOError, FormatError) as error:
                    yield Fault(note.point.id, path, 0, held.size, str(error))
                    continue
                for piece in pieces:
                    if (name := object_of(folder, path, piece)) in seen:
                        continue
                    seen.add(name)
                    try:
                        self.get(folder, path, piece)
                    except StoreIOError as error:
                        yield Fault(note.point.id, path, piece.start, piece.end, str(error))
                    pace(piece.end - piece.start)


def _pieces(value: Any, size: int) -> tuple[Piece, ...]:
    """Return pieces of a file from JSON. ValueError, TypeError."""
    if not isinstance(value, list) or len(value) > _MOST_PIECES:
        raise ValueError("pieces are not a list, or are too many")
    found = tuple(Piece(*piece) for piece in value)
    for start, end, digest in found:
        if type(start) is not int or type(end) is not int or not (
                0 <= start < end <= min(start + _LARGEST, size)) or not _SHA.fullmatch(digest):
            raise ValueError("not a piece")
    return found


def _files(value: Any) -> dict[str, Held]:
    """Return files from JSON. ValueError, TypeError."""
    return {file: _held(*held) for file, held in value.items()}


def _settings(value: Any) -> dict[str, Any]:
    """Return settings from JSON. ValueError, TypeError."""
    for name, one in value.items():
        kind = SETTINGS[name]
        if type(one) is not kind or (isinstance(one, int) and not 0 <= one < 1 << 40):
            raise ValueError(f"{name} has a wrong value")
    if not all(isinstance(topic, str) for topic in value.get("batch_topics", [])):
        raise TypeError("batch_topics is not a list of names")
    return dict(value)


def _held(size: Any, changed: Any, pieces: Any) -> Held:
    """Return a file from JSON. ValueError, TypeError."""
    if type(size) is not int or type(changed) is not int or not 0 <= size < 1 << 62:
        raise ValueError("not a size")
    if isinstance(pieces, str):
        if not _SHA.fullmatch(pieces):
            raise ValueError("not a list of pieces")
        return Held(size, changed, pieces)
    return Held(size, changed, _pieces(pieces, size))


def newest(backup: str) -> tuple[int, Point | None]:
    """Return (how many points there are, the newest). FormatError."""
    with Objects(backup) as objects:
        names = objects.point_names()
        return len(names), objects.notes(names[-1:])[0].point if names else None


def require_points(backup: str, bad: list[RmqctlError] | None = None) -> list[Point]:
    """Return the points of a backup, oldest first, as `Objects.notes`. NotAStoreError where none
    exist.
    """
    with Objects(backup) as objects:
        found = objects.require_notes(bad)
    # The oldest has the damage that those removed before it had noted.
    return [replace(found[0].point, damaged=found[0].holes), *(note.point for note in found[1:])]


def check(backup: str, known: list[Point], pace: Pace = lambda _bytes: None) -> Iterator[Fault]:
    """Compare all objects of a backup with their SHA-256."""
    with Objects(backup) as objects:
        names = [point.id for point in known]
        yield from objects.faults(objects.notes(names), pace)
