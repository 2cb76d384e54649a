"""Detection of the folders of a multi-path commitlog by file names and record offsets.

The folders of a multi-path log may have any name (spec: commitlog.md §1). They are inside the store
root, beside it, or named in a broker.conf. A folder is part of the log if all of these conditions
hold:

* Its files have the same size as the other files, and no duplicate names.
* The offsets of their first records match the file names, except for a few damaged files.
* Most consumequeue entries for its files point to records. If no entries exist, its files fill a
  gap in the log, or a broker.conf names the folder, or the folder is in the store root and
  ``commitlog`` is empty.
* One of its files is adjacent to another file of the log.

Other folders are ignored unless `--commitlog-dir` names them. Only a few bytes of each file are
read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

from rmqctl import vfs
from rmqctl.errors import StoreIOError
from rmqctl.formats.layout import reader
from rmqctl.formats.local import names
from rmqctl.formats.local.consume_queue import UNIT_SIZE, Unit
from rmqctl.formats.local.message import VERSIONS, Message
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource
from rmqctl.store.files import DATA, NODE, StoreFile, listing

COMMITLOG = "commitlog"
FOLDERS = frozenset({
    COMMITLOG, "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config",
    "compaction", "timerlog", "kvStore", "RocksDBMessageStore", "tieredstore",
    "tiered_index_file", "conf"})
"""Names of the standard folders of a store. No further folder of the log has one of these names."""
_MARKS_OF_A_STORE = ("consumequeue", "index", "checkpoint", "config", "batchconsumequeue")
_CONFIGURATIONS = (".conf", ".properties")
_MAX_FOLDERS = 256
_FIRST_NAMES = 64
"""Maximum number of entries of a folder that are examined to recognize a log folder.

A log folder contains only log files.
"""
_MAX_CONFIGURATION = 1 << 20
_QUEUES, _ROWS = 32, 32
"""``_QUEUES``: number of queues that are sampled to see where their entries point.
``_ROWS``: number of sampled entries per queue.
"""
_OWN, _CONFIGURED, _BELOW, _BESIDE = range(4)
_HEAD = reader(Message, "total_size", "magic", "physical_offset")
_ROW = reader(Unit, "physical_offset", "size")


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder that may belong to the log. The lower its ``rank``, the more likely it does."""

    path: str
    files: tuple[StoreFile, ...]
    rank: int

    @property
    def bases(self) -> set[int]:
        return {file.base for file in self.files}


def find(root: str) -> list[str]:
    """Return the folders of the log of the store at ``root``, as absolute paths or relative to
    ``root``. Never raises.

    These are ``commitlog`` and any other folders that provably belong to the log. If the store has
    exactly one DLedger node, they are ``commitlog`` (only if it has files) and then the node's data
    folder.
    """
    nodes = nodes_below(root)
    if len(nodes) == 1:
        plain = any(_sized(os.path.join(root, COMMITLOG)))
        return [COMMITLOG, nodes[0]] if plain else [nodes[0]]
    own = _Folder(COMMITLOG, tuple(_sized(os.path.join(root, COMMITLOG))), _OWN)
    candidates = _candidates(root)
    if not candidates:
        return [COMMITLOG]
    size = Counter(file.size for folder in (own, *candidates)
                   for file in folder.files).most_common(1)[0][0]
    sound = [folder for folder in candidates if _proves_itself(folder, size)]
    chosen = _disjoint(own, sound)
    taken = _needed(root, own, chosen, size)
    if not taken:
        return [COMMITLOG]
    return ([COMMITLOG] if own.files else []) + sorted(folder.path for folder in taken)


def nodes_below(root: str) -> list[str]:
    """Return the data folders of DLedger nodes, relative to the store's root."""
    folders = sorted(os.path.join(entry.name, DATA) for entry in _entries(root, _MAX_FOLDERS)
                     if entry.name.startswith(NODE))
    return [folder for folder in folders if listing(os.path.join(root, folder)).files]


def _sized(folder: str) -> Iterator[StoreFile]:
    return (file for file in listing(folder).files if file.size)


# -- where to look --------------------------------------------------------------------------------


def _candidates(root: str) -> list[_Folder]:
    """Return folders whose files have names like those of a log. No folder is returned twice; the
    most likely folders come first.
    """
    root = vfs.abspath(root)
    seen = {_identity(os.path.join(root, COMMITLOG))}
    folders: list[_Folder] = []
    for rank, path in (*((_CONFIGURED, path) for path in _configured(root)),
                       *((_BELOW, path) for path in _below(root)),
                       *((_BESIDE, path) for path in _beside(root))):
        identity = _identity(path)
        if identity is None or identity in seen or not _looks_like_log(path):
            continue
        seen.add(identity)
        files = tuple(_sized(path))
        if files:
            folders.append(_Folder(path, files, rank))
    return folders


def _identity(path: str) -> tuple[int, int] | None:
    try:
        info = vfs.stat(path)
    except (OSError, ValueError):
        return None
    return info.st_dev, info.st_ino


def _entries(folder: str, most: int) -> list[os.DirEntry[str]]:
    try:
        with vfs.scandir(folder) as entries:
            return list(islice(entries, most))
    except OSError:
        return []


def _folders(folder: str) -> list[str]:
    """Return the names of the folders inside a folder; an empty list if there are too many."""
    inside = _some_folders(folder)
    return inside if len(inside) <= _MAX_FOLDERS else []


def _some_folders(folder: str) -> list[str]:
    return sorted(entry.name for entry in _entries(folder, 16 * _MAX_FOLDERS)
                  if _is_folder(entry))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _looks_like_log(path: str) -> bool:
    return any(names.parse_offset(entry.name) is not None
               for entry in _entries(path, _FIRST_NAMES))


def _below(root: str) -> Iterator[str]:
    for name in _folders(root):
        if name in FOLDERS or name.startswith((".", NODE)):
            continue
        folder = os.path.join(root, name)
        if is_store(folder):
            continue
        yield folder
        yield from (os.path.join(folder, inner) for inner in _folders(folder)
                    if inner.lower().startswith(COMMITLOG)
                    and (inner != COMMITLOG or is_store(root)))  # else the store is that folder


def _beside(root: str) -> Iterator[str]:
    above = os.path.dirname(root)
    for name in _folders(above):
        folder = os.path.join(above, name)
        if name.startswith(".") or folder == root or is_store(folder):
            continue
        yield folder
        yield from (os.path.join(folder, inner) for inner in _folders(folder)
                    if inner.lower().startswith(COMMITLOG))
        for inner in _folders(folder):  # a disk's mount point with a folder named like the root
            if inner == os.path.basename(root):
                below = os.path.join(folder, inner)
                yield from (() if is_store(below) else (os.path.join(below, inside)
                            for inside in _folders(below) if inside.lower().startswith(COMMITLOG)))


def is_store(folder: str) -> bool:
    """Return whether a folder is the root of another store, to which its log then belongs."""
    return any(vfs.lexists(os.path.join(folder, mark)) for mark in _MARKS_OF_A_STORE)


def _configured(root: str) -> Iterator[str]:
    """Yield the log folders that are named in a broker's configuration file near the store."""
    above = os.path.dirname(root)
    for folder in (root, os.path.join(root, "conf"), above, os.path.join(above, "conf")):
        for entry in _entries(folder, 16 * _MAX_FOLDERS):
            if entry.name.endswith(_CONFIGURATIONS):
                yield from _paths_in(entry.path, root)


def _paths_in(path: str, root: str) -> Iterator[str]:
    try:
        if not vfs.isfile(path) or vfs.getsize(path) > _MAX_CONFIGURATION:
            return
        with vfs.open_text(path, errors="replace") as file:
            lines = file.read(_MAX_CONFIGURATION).splitlines()
    except (OSError, StoreIOError):
        return
    settings = {key.strip(): value.strip() for key, sign, value in (
        line.partition("=") for line in lines) if sign}
    home = settings.get("storePathRootDir", "")
    if home and vfs.isdir(home) and _identity(home) != _identity(root):
        return  # belongs to another store on this machine
    for key in ("storePathCommitLog", "readOnlyCommitLogStorePaths"):
        for entry in settings.get(key, "").split(","):
            place = entry.strip()
            if not place or "\0" in place:
                continue
            if home and (place == home or place.startswith(home.rstrip("/") + "/")):
                place = os.path.join(root, os.path.relpath(place, home))
            if vfs.isdir(place):
                yield vfs.abspath(place)


# -- what proves them -----------------------------------------------------------------------------


def _proves_itself(folder: _Folder, size: int) -> bool:
    """Return whether the files of a folder alone prove that it is a log.

    Their names must be multiples of the file size. Their first records must have the offsets in the
    names; files with a matching offset must outnumber those with a wrong one. At most half of the
    files may be too short; one short file is always allowed.
    """
    files = folder.files
    if len(folder.bases) != len(files) or any(file.size > size for file in files):
        return False
    short = sum(file.size < size for file in files)
    if short > max(1, len(files) // 2):
        return False
    proven = at_fault = 0
    for file in files:
        offset = _offset_of_first(file.path)
        right = offset == file.base and not file.base % size
        proven += right
        at_fault += not right and (offset is not None or file.base % size != 0)
    return proven > at_fault


def _offset_of_first(path: str) -> int | None:
    """Return the physical offset in the first record of a file; None if no record is at its
    start.
    """
    head = _read(path, 0, _HEAD.size)
    if len(head) < _HEAD.size:
        return None
    _, magic, physical = _HEAD.unpack(head)
    return int(physical) if magic in VERSIONS else None


def _read(path: str, position: int, length: int) -> bytes:
    if vfs.is_mounted(path):
        with suppress(StoreIOError), FileSource(path) as source:
            return source.read(position, length)
        return b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return b""
    try:
        return os.pread(fd, length, position)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(fd)


def _disjoint(own: _Folder, folders: list[_Folder]) -> list[_Folder]:
    """Return the folders that share no file name with the store's own folder, or with another
    folder that is at least as likely to belong to the log.
    """
    taken = own.bases
    chosen: list[_Folder] = []
    for rank in sorted({folder.rank for folder in folders}):
        times = Counter(base for folder in folders if folder.rank == rank
                        for base in folder.bases)
        fit = [folder for folder in folders if folder.rank == rank
               and not folder.bases & taken and all(times[base] == 1 for base in folder.bases)]
        chosen += fit
        taken |= {base for folder in fit for base in folder.bases}
    return chosen


def _needed(root: str, own: _Folder, folders: list[_Folder], size: int) -> list[_Folder]:
    """Return the folders that belong to the log.

    A folder belongs to the log if most of the consume queue entries that point into its files point
    to records. If no entry points into it, it must fill a gap in the log, or have a low rank.
    """
    rows = list(_sampled_rows(root)) if folders else []
    proofs = [(folder, _led_to(folder, rows)) for folder in folders]
    first, last = min(own.bases, default=0), max(own.bases, default=0)
    taken = []
    for folder, led_to in proofs:
        fills = any(first < base < last for base in folder.bases)
        trusted = folder.rank <= (_CONFIGURED if own.files else _BELOW)
        if led_to or (led_to is None and (fills or trusted)):
            taken.append(folder)
    return _joined(own, taken, size)


def _joined(own: _Folder, folders: list[_Folder], size: int) -> list[_Folder]:
    """Return the folders whose files are adjacent to another file of the log; a single folder is
    returned without this check.
    """
    every = [own, *folders] if own.files else folders
    if len(every) == 1:
        return folders
    taken = []
    for folder in folders:
        others = {base for other_folder in every if other_folder is not folder
                  for base in other_folder.bases}
        if any(base - size in others or base + size in others for base in folder.bases):
            taken.append(folder)
    return taken


def _sampled_rows(root: str) -> Iterator[tuple[int, int]]:
    """Yield (physical offset, size) of a sample of consumequeue entries."""
    top = os.path.join(root, "consumequeue")
    queues = (os.path.join(top, topic, queue) for topic in _some_folders(top)
              for queue in _some_folders(os.path.join(top, topic)) if queue.isdigit())
    for folder in islice(queues, _QUEUES):
        files = listing(folder).files
        rows = sum(file.size // UNIT_SIZE for file in files)
        step = max(1, rows // _ROWS)
        number = 0
        for file in files:
            rows_here = file.size // UNIT_SIZE
            for row in range(-number % step, rows_here, step):
                raw = _read(file.path, row * UNIT_SIZE, _ROW.size)
                if len(raw) == _ROW.size:
                    physical, length = _ROW.unpack(raw)
                    if physical >= 0 and 0 < length < (1 << 31) - 1:
                        yield physical, length
            number += rows_here


def _led_to(folder: _Folder, rows: Iterable[tuple[int, int]]) -> bool | None:
    """Return whether most entries for the folder's files point to records; None if there are no
    such entries.
    """
    hits = misses = 0
    for physical, length in rows:
        file = next((file for file in folder.files if file.base <= physical < file.end), None)
        if file is None:
            continue
        head = _read(file.path, physical - file.base, _HEAD.size).ljust(_HEAD.size, b"\0")
        size, magic, offset = _HEAD.unpack(head)
        right = size == length and magic in VERSIONS and offset == physical
        hits, misses = hits + right, misses + (not right)
    return hits > misses if hits or misses else None
