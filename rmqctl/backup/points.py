"""Restore points: what each run of a backup records, in ``.rmqctl/backup`` of the backup's folder.

A point is a folder named after its time; it contains ``point.json`` and the small files of that
time. The folder gets its name only after its data has been fsynced. So a killed run leaves no
point, and the next run continues from the previous point.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rmqctl.errors import FormatError, NotAStoreError, RmqctlError, StoreIOError
from rmqctl.files.durable import (
    GONE,
    make_folders,
    new_whole_file,
    publish_folder,
    remove_folder,
    replace_file,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource

FOLDER = os.path.join(".rmqctl", "backup")
_FILE = "point.json"
_UNFINISHED = "unfinished"
_MAX_NOTE = 1 << 16
_DEEPEST = 16
"""Maximum number of nested folders in a store."""
_OLDER = "replaced"
_SCHEMA = 1
_LOGS = ("commitlog", "data")


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes ``[start, end)`` of a log file that a run copied, with their SHA-256."""

    file: str
    start: int
    end: int
    sha256: str


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """A damaged byte range of a file of the store.

    * ``unread``: whether the device could not read the range
    * ``kept``: whether the backup keeps an earlier copy of the range
    """

    file: str
    offset: int
    length: int
    unread: bool = False
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """A restore point.

    * ``time``: start of the run (epoch ms)
    * ``last_time``: store time of the newest message (epoch ms)
    * ``log_start``, ``log_end``: physical offsets at which the log starts and ends
    * ``whole_end``: end of the last complete record
    * ``parts``: parts of the log that the run copied
    * ``small``: SHA-256, by path, of the small files kept with the point
    * ``lowered``: number of consumer offsets that were lowered to the end of their copied queue
    * ``missing``: number of bytes of the log that the store deleted before they were copied
    * ``repairs``: names of all repairs of the store until then
    * ``again``: whether a consume queue has been replaced since the previous point
    * ``summed_again``: whether ``parts`` cover the whole log, because a repair changed it
    * ``own``: whether the backup keeps the earlier versions of messages that a repair changed
    * ``appended``: files of compaction and timer logs (None: not recorded)
    * ``unconfigured``: topics that have queues but no configuration (None: the configuration could
      not be read)
    """

    id: str
    time: int
    store: str
    version: str
    log_start: int
    log_end: int
    messages: int
    last_time: int
    log_folders: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    damaged: tuple[DamagedRange, ...] = ()
    small: dict[str, str] = field(default_factory=dict)
    lowered: int = 0
    notes: tuple[str, ...] = ()
    whole_end: int = 0
    missing: int = 0
    repairs: tuple[str, ...] = ()
    again: bool = False
    summed_again: bool = False
    own: bool = False
    appended: tuple[str, ...] | None = None
    unconfigured: tuple[str, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"schema_version": _SCHEMA, **asdict(self)}


NO_POINT = Point("", 0, "", "", 0, 0, 0, 0)
"""The previous point of a first run, which has no previous point."""


def id_of(moment: int) -> str:
    """Return the name of the point with this time (epoch ms). The alphabetical order of names is
    the order of times.
    """
    at = datetime.fromtimestamp(moment / 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}.{moment % 1000:03d}Z"


def _points_folder(backup: str) -> str:
    return os.path.join(backup, FOLDER, "points")


def folder_of(backup: str, point: Point) -> str:
    """Return the folder that contains a point's small files."""
    return os.path.join(_points_folder(backup), point.id)


def older_of(backup: str, point: Point) -> str:
    """Return the folder with a point's versions of the files that a later run replaced."""
    return os.path.join(folder_of(backup, point), _OLDER)


def replaced_after(backup: str, later: Sequence[Point]) -> dict[str, str]:
    """Return a dict: path of a replaced file in the store -> path of its earlier copy in the
    backup.

    A file is included if a run of the points ``later`` replaced its copy. If several of these runs
    did, the oldest copy is returned.
    """
    paths: dict[str, str] = {}
    for point in reversed(later):
        older = older_of(backup, point)
        for folder, _folders, names in os.walk(older):
            inner = os.path.relpath(folder, older)
            paths |= {os.path.normpath(os.path.join(inner, name)): os.path.join(folder, name)
                      for name in names}
    return paths


def staged(backup: str) -> str:
    """Return an empty folder in which a run prepares the next point."""
    folder = os.path.join(backup, FOLDER, "next")
    if os.path.isdir(folder):
        remove_folder(folder)
    make_folders(folder)
    return folder


def publish(backup: str, folder: str, point: Point) -> None:
    """Create a point from ``folder``, which already contains the point's small files.

    Raises: StoreIOError.
    """
    new_whole_file(os.path.join(folder, _FILE), _noted(point))
    make_folders(_points_folder(backup))
    publish_folder(folder, folder_of(backup, point))


class Begun(NamedTuple):
    """Record of an unfinished run.

    * ``store``: the store to back up
    * ``reached``: in a first run, the physical offset up to which the copied log has been fsynced
    """

    store: str
    reached: int = 0


def begin(backup: str, store: str) -> None:
    """Record on disk that a backup of a store has started. Raises: StoreIOError."""
    path = os.path.join(backup, FOLDER, _UNFINISHED)
    make_folders(os.path.dirname(path))
    if not os.path.exists(path):
        new_whole_file(path, json.dumps(Begun(store)).encode())


def note_reached(backup: str, begun: Begun) -> None:
    """Record on disk the physical offset that a first run has reached. Raises: StoreIOError."""
    replace_file(os.path.join(backup, FOLDER, _UNFINISHED), json.dumps(begun).encode())


def is_begun(backup: str) -> bool:
    """Return whether the backup has an unfinished run."""
    return os.path.exists(os.path.join(backup, FOLDER, _UNFINISHED))


def begun_of(backup: str) -> Begun | None:
    """Return the record of the backup's unfinished run; None if all runs have finished. Raises:
    StoreIOError.
    """
    if not is_begun(backup):
        return None
    with FileSource(os.path.join(backup, FOLDER, _UNFINISHED)) as source:
        raw = source.read(0, _MAX_NOTE)
    with suppress(ValueError, TypeError, RecursionError):
        store, reached = json.loads(raw)
        return Begun(str(store), int(reached))
    return Begun(os.fsdecode(raw).rstrip("\n"))


def end(backup: str) -> None:
    """Remove the record of the unfinished run."""
    os.unlink(os.path.join(backup, FOLDER, _UNFINISHED))


def rewrite(backup: str, point: Point) -> None:
    """Replace the file ``point.json`` of a point. Raises: StoreIOError."""
    replace_file(os.path.join(folder_of(backup, point), _FILE), _noted(point))


def _noted(point: Point) -> bytes:
    return json.dumps(point.as_dict(), indent=1).encode()


@contextmanager
def in_use(backup: str) -> Iterator[None]:
    """Prevent backup runs from removing files while a restore reads them. This also works on
    read-only file systems.
    """
    with _locked(backup, fcntl.LOCK_SH):
        yield


@contextmanager
def unused(backup: str) -> Iterator[bool]:
    """Try to lock the backup against restores; yield False if a restore is reading it."""
    with _locked(backup, fcntl.LOCK_EX | fcntl.LOCK_NB) as held:
        yield held


@contextmanager
def _locked(backup: str, how: int) -> Iterator[bool]:
    try:
        fd = os.open(_points_folder(backup), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # `read_points` raises this error with its reason
        yield True
        return
    try:
        try:
            fcntl.flock(fd, how)
            held = True
        except BlockingIOError:
            held = False
        except OSError:  # the file system does not support locks
            held = True
        yield held
    finally:
        os.close(fd)


def read_points(backup: str, bad: list[RmqctlError] | None = None) -> list[Point]:
    """Return the points of a backup, oldest first; an empty list if the folder is not a backup.

    If ``bad`` is given, points that cannot be read are skipped, and their errors are added to
    ``bad``.
    Raises: FormatError or StoreIOError for such a point if ``bad`` is None, or if no point can be
    read.
    """
    folder = _points_folder(backup)
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreIOError.from_oserror(error, folder, "list") from None
    points: list[Point] = []
    wrong: list[RmqctlError] = []
    for name in names:
        if name.endswith(GONE) or not os.path.isdir(os.path.join(folder, name)):
            continue  # partly removed, or not a point
        try:
            points.append(_read(folder, name))
        except (FormatError, StoreIOError) as error:
            wrong.append(error)
    if wrong and (bad is None or not points):
        raise wrong[0]
    if bad is not None:
        bad += wrong
    return points


def require_points(backup: str, bad: list[RmqctlError] | None = None) -> list[Point]:
    """Return the points of a backup, as `read_points` does. Raises: NotAStoreError if no point
    exists.
    """
    points = read_points(backup, bad)
    if not points:
        raise NotAStoreError(f"{backup}: not a backup (no restore point in "
                             f"{_points_folder(backup)})")
    return points


def _read(folder: str, name: str) -> Point:
    path = os.path.join(folder, name, _FILE)
    with FileSource(path) as file:
        return parsed(file.read(0, file.size), name, path)[0]


def parsed(data: bytes, name: str, path: str) -> tuple[Point, dict[str, Any]]:
    """Parse the content of a ``point.json``. Return (the point, its field ``more``). Raises:
    FormatError.
    """
    try:
        value = json.loads(data)
        more = value.pop("more", {})
        if value.pop("schema_version") != _SCHEMA:
            raise ValueError("unsupported schema_version")
        value["parts"] = tuple(Part(**part) for part in value["parts"])
        value["damaged"] = tuple(DamagedRange(**hole) for hole in value["damaged"])
        lists = {name: tuple(value[name]) for name in ("notes", "log_folders", "repairs")}
        lists |= {name: tuple(value[name]) for name in ("appended", "unconfigured")
                  if value.get(name) is not None}
        point = Point(**{**value, **lists})
        return _required_plain(point, name), more
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FormatError(f"not a restore point: {error}", file=path) from None


def _required_plain(point: Point, name: str) -> Point:
    """Return the point. Raises: ValueError or TypeError for values that no run writes: a wrong
    type, an ``id`` other than ``name``, a path outside the backup.
    """
    numbers = [point.time, point.log_start, point.log_end, point.messages, point.last_time,
               point.lowered, point.whole_end, point.missing]
    for part in point.parts:
        numbers += [part.start, part.end]
    for hole in point.damaged:
        numbers += [hole.offset, hole.length]
    if any(type(number) is not int or not 0 <= number < 1 << 63 for number in numbers):
        raise ValueError("a value is not a number or is out of range")
    if point.id != name:
        raise ValueError(f"its id is {point.id!r}")
    if not isinstance(point.small, dict):
        raise TypeError("small is not an object")
    paths: list[Any] = [*point.small, *(part.file for part in point.parts),
                        *(hole.file for hole in point.damaged)]
    for file in paths:
        require_inside(file)
    return point


def require_inside(file: Any) -> None:
    """Raise ValueError if ``file`` is not a relative path inside a backup."""
    if not isinstance(file, str) or "\0" in file or os.path.isabs(file) or (
            file != os.path.normpath(file)) or file.split("/", 1)[0] in (".", "..") or (
            file.count("/") > _DEEPEST):
        raise ValueError(f"{file!r} is not a path inside a backup")
    os.fsencode(file)  # UnicodeEncodeError for surrogates that do not encode a byte


def is_of_log(file: str) -> bool:
    """Return whether a path in a backup is that of a log file."""
    folder, name = os.path.split(file)
    return os.path.basename(folder) in _LOGS and name.isdigit()
