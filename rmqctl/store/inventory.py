"""Every file below a store root: what it is, how large, and how much of it is on the disk.

Kinds follow the store's plan (`formats.kinds`); a file whose place says nothing is looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from rmqctl.errors import StoreIOError
from rmqctl.formats import kinds
from rmqctl.formats.local import names
from rmqctl.scan.source import FileSource
from rmqctl.store.files import Trouble
from rmqctl.store.store import Store

OTHER = "other"
_BY_FOLDER = {"tieredstore": "tiered", "tiered_index_file": "tiered", ".rmqctl": "rmqctl"}
_MAX_DEPTH = 16
_HEAD = 4096
_BLOCK = 512  # the unit of st_blocks, whatever the file system


@dataclass(frozen=True, slots=True)
class Item:
    """One file. ``path`` is relative to the store root (absolute for what lies elsewhere).

    ``allocated`` are the bytes it takes on the disk: less than ``size`` where it has holes.
    """

    path: str
    kind: str
    size: int
    allocated: int
    base_offset: int | None


@dataclass(slots=True)
class Total:
    """The files of one kind together, in bytes."""

    files: int = 0
    size: int = 0
    allocated: int = 0


def inventory(store: Store) -> tuple[list[Item], list[Trouble]]:
    """(files by path, what could not be looked at) of a store, its other log folders included."""
    items: list[Item] = []
    troubles: list[Trouble] = []
    seen: set[tuple[int, int]] = set()
    logs = {os.path.normpath(folder) for folder in store.log_folders}
    tops = [store.root, *sorted(logs)]
    for top in tops:
        for entry, info, folder in _files(top, seen, troubles):
            path = _relative(store, entry.path)
            parts = tuple(path.split(os.sep))
            in_log = os.path.normpath(folder) in logs
            items.append(Item(path, _kind(parts, entry.path, info.st_size, in_log),
                              info.st_size, info.st_blocks * _BLOCK,
                              kinds.base_offset(entry.name)))
    return sorted(items, key=lambda item: item.path), troubles


def totals(items: list[Item]) -> dict[str, Total]:
    """The sums per kind, in the order of `formats.kinds`."""
    found: dict[str, Total] = {}
    for item in items:
        total = found.setdefault(item.kind, Total())
        total.files += 1
        total.size += item.size
        total.allocated += item.allocated
    order = {kind: place for place, kind in enumerate(kinds.KINDS)}
    return dict(sorted(found.items(), key=lambda pair: (order.get(pair[0], len(order)), pair[0])))


def _relative(store: Store, path: str) -> str:
    relative = os.path.relpath(path, store.root)
    return os.path.abspath(path) if relative.startswith("..") else relative


def _files(top: str, seen: set[tuple[int, int]],
           troubles: list[Trouble]) -> Iterator[tuple[os.DirEntry[str], os.stat_result, str]]:
    """(entry, stat, its folder) of the regular files below ``top``; no folder is entered twice."""
    stack = [(top, 0)]
    while stack:
        folder, depth = stack.pop()
        try:
            info = os.stat(folder)
            if (info.st_dev, info.st_ino) in seen:
                continue
            seen.add((info.st_dev, info.st_ino))
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        except OSError as error:
            troubles.append(Trouble(folder, str(StoreIOError.from_oserror(error, "")), True))
            continue
        for entry in entries:
            try:
                info = entry.stat()
            except FileNotFoundError:
                if entry.is_symlink():
                    troubles.append(Trouble(entry.path, "a link that leads nowhere", True))
                continue  # else it went away meanwhile, as files of a running broker do
            except OSError as error:
                troubles.append(Trouble(entry.path, str(StoreIOError.from_oserror(error, "")),
                                        True))
                continue
            if stat.S_ISREG(info.st_mode):
                yield entry, info, folder
            elif not stat.S_ISDIR(info.st_mode):
                troubles.append(Trouble(entry.path, "not a regular file"))
            elif depth >= _MAX_DEPTH:
                troubles.append(Trouble(entry.path, "nested too deep; not looked into", True))
            else:
                stack.append((entry.path, depth + 1))


def _kind(parts: tuple[str, ...], path: str, size: int, in_log: bool) -> str:
    if parts[0] in _BY_FOLDER:
        return _BY_FOLDER[parts[0]]
    if in_log and names.parse_offset(parts[-1]) is not None:
        return kinds.COMMITLOG
    known = kinds.from_path(parts)
    if known is not None:
        return known
    try:
        with FileSource(path) as source:
            head = source.read(0, _HEAD)
    except StoreIOError:
        return OTHER
    return kinds.recognise(parts, head, size) or OTHER
