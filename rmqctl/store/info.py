"""A summary of a store, without a scan of the log: sizes, offsets, times, the holder of its lock,
and every file.

The document of `collect` is the JSON of ``rmqctl info``; times are epoch milliseconds, and sizes
are bytes. Unreadable parts are listed in ``troubles``. The path of a file determines its kind
(`formats.kinds`); if the path is not enough, its content does.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any

from rmqctl import vfs
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats import kinds
from rmqctl.formats.local import abort, names
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource
from rmqctl.store.controller import about as about_controller
from rmqctl.store.files import NODE, Trouble, common_size
from rmqctl.store.layout import DATABASE_FILE
from rmqctl.store.log.bounds import View
from rmqctl.store.log.end import LogEnd, first_record
from rmqctl.store.log_folders import FOLDERS
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Store
from rmqctl.store.version_hints import hints, summary

Document = dict[str, Any]
MAX_TROUBLES = 1000
OTHER = "other"
_BY_FOLDER = {"tieredstore": "tiered", "tiered_index_file": "tiered", ".rmqctl": "rmqctl"}
_OF_DATABASES = (kinds.CONSUMEQUEUE, kinds.CONFIG)
"""Folders of a store that may contain RocksDB databases."""
_MAX_DEPTH = 16
_BEHIND_LINKS = 3  # as deep as the folder of a queue: consumequeue/TOPIC/QUEUE
_HEAD = 4096
_BLOCK = 512  # the unit of st_blocks, whatever the file system


def collect(store: Store, view: View) -> Document:
    """Return everything that `info` shows about a store in the given view."""
    items, troubles = inventory(store)
    layout = store.layout
    # The ends of the log, then the values of its messages and files.
    first, end, most = None, LogEnd(0, None), None
    if layout.reads("commitlog"):
        troubles += store.log_troubles
        end = view.disk_end
        troubles += end.troubles
        first = first_record(store.log)
        most = end.offset if view.log_end is None else view.log_end
    topics = _topics(store, view, troubles) if layout.reads("consumequeue") else []
    version_hints = hints(store, [record for record in (first, end.last) if record is not None])
    lock = store.lock
    document: Document = {
        "store": store.root,
        "view": "disk" if view.log_end is None else "broker",
        "layout": layout.as_dict(),
        "layout_notes": list(layout.notes),
        "not_judged": [{"structure": name, "reason": reason}
                       for name, reason in layout.unread.items()],
        "version": summary(version_hints),
        "version_hints": [{"versions": hint.versions, "evidence": hint.evidence}
                          for hint in version_hints],
        "min_phy_offset": None if most is None else store.log.min_offset,
        "max_phy_offset": most,
        "first_store_timestamp": None if first is None else first.store_timestamp,
        "last_store_timestamp": None if end.last is None else end.last.store_timestamp,
        "messages": sum(topic["messages"] for topic in topics)
        if layout.reads("consumequeue") else None,
        "topics": topics,
        "checkpoint": None if store.checkpoint is None else store.checkpoint._asdict(),
        "abort": store.has_abort,
        "abort_pid": _abort_pid(store),
        "controller": about_controller(store, most),
        "lock": {"held": lock.held, "pid": lock.pid, "kind": lock.kind, "note": lock.note or None},
        "sizes": _sizes(store),
        "structures": [{"kind": kind, "files": total.files, "size": total.size,
                        "allocated": total.allocated} for kind, total in totals(items).items()],
        "files": [{"path": item.path, "kind": item.kind, "size": item.size,
                   "base_offset": item.base_offset, "allocated": item.allocated} for item in items],
    }
    # Troubles of all structures.
    troubles += _checkpoint_trouble(store)
    if layout.reads("commitlog"):
        troubles += _log_troubles(store, items)
    troubles += [trouble for queue in store.queues.readable.values() for trouble in queue.troubles]
    troubles += [trouble for queue in store.queues.batch.values() for trouble in queue.troubles]
    troubles += store.index.listing.troubles
    document["troubles"] = _summarised(store, troubles)
    return document


def _topics(store: Store, view: View, troubles: list[Trouble]) -> list[Document]:
    """Return topics with their queues and the bounds of each queue, sorted by name."""
    rows: dict[str, list[Document]] = {}

    # An unreadable queue stays in the list, without bounds.
    def add(topic: str, queue_id: int, kind: str, folder: str,
            bounds: Callable[[], tuple[int, int]]) -> None:
        row: Document = {"queue_id": queue_id, "min_offset": None, "max_offset": None,
                         "kind": kind, "messages": 0}
        rows.setdefault(topic, []).append(row)
        try:
            least, most = bounds()
        except (StoreIOError, FormatError) as error:
            troubles.append(Trouble(folder, str(error), True))
            return
        row.update(min_offset=least, max_offset=most, messages=most - least)

    def simple(queue: ConsumeQueue) -> tuple[int, int]:
        with closing(queue):  # a broker may have more queues than a process may open files
            bounds = view.bounds(queue)
        return bounds.first, bounds.end

    for key, queue in store.queues.by_key.items():
        add(*key, "simple", queue.folder, partial(simple, queue))
    for key, batches in store.queues.batch.items():
        add(*key, "batch", batches.folder,
            partial(batches.bounds, store.log.min_offset, view.log_end))
    return [{"topic": topic, "messages": sum(row["messages"] for row in queues), "queues": queues}
            for topic, queues in sorted(rows.items())]


def _abort_pid(store: Store) -> int | None:
    try:
        return abort.parse(store.read_small("abort", most=64)) if store.has_abort else None
    except (StoreIOError, FormatError):
        return None


def _sizes(store: Store) -> Document:
    """Return the sizes that a broker's configuration sets, determined from the files; None:
    unknown.
    """
    queues = [queue for queue in store.queues.readable.values() if queue.files]
    # A queue of several files proves its file size; a single file may be truncated.
    sure = [queue for queue in queues if len(queue.files) > 1] or queues
    shape = next((index.shape for index in store.index.newest_first()), None)
    return {
        "commitlog_file_size": store.sizes.commitlog_file or (
            common_size(store.log.files) if store.layout.reads("commitlog") else None),
        "consumequeue_file_size": sure[0].file_size if sure else None,
        "index_slots": None if shape is None else shape.slots,
        "index_max": None if shape is None else shape.max_entries,
    }


def _checkpoint_trouble(store: Store) -> list[Trouble]:
    if store.checkpoint is not None:
        return []
    path = store.path("checkpoint")
    if not vfs.lexists(path):
        return [Trouble(path, "missing; a broker recovers from the first message to be safe")]
    return [Trouble(path, "not a valid checkpoint", True)]


def _log_troubles(store: Store, items: list[Item]) -> list[Trouble]:
    """Return the problems of the log: gaps, and folders that look like parts of the log but that
    the user did not name.
    """
    troubles = [Trouble(store.log_folders[0], f"no file covers physical offsets {gap.start} to "
                        f"{gap.end}") for gap in store.log.gaps()]
    if not store.log.files:
        troubles.append(Trouble(store.log_folders[0], "no commitlog files"))
    paths = [*(file.path for file in store.log.files),
             *(trouble.path for trouble in store.log_troubles)]
    log_files = {vfs.abspath(path) for path in paths}
    strange = {os.path.dirname(item.path) for item in items
               if item.kind == "commitlog" and item.base_offset is not None
               and vfs.abspath(store.path(item.path)) not in log_files}
    troubles += [Trouble(store.path(folder), "looks like a part of the commitlog; pass "
                         "--commitlog-dir for each of its folders") for folder in sorted(strange)]
    return troubles


def _summarised(store: Store, troubles: list[Trouble]) -> list[Document]:
    """Return each problem once, with its path relative to the root."""
    reasons: dict[tuple[str, str], None] = {}
    for trouble in troubles:
        relative = os.path.relpath(trouble.path, store.root)
        path = trouble.path if relative.startswith("..") else relative
        reason = trouble.reason.removeprefix(f"{trouble.path}: ")
        reasons.setdefault((path, reason))
    rows = [{"path": path, "reason": reason} for path, reason in reasons]
    if len(rows) > MAX_TROUBLES:
        rest = len(rows) - MAX_TROUBLES
        rows[MAX_TROUBLES:] = [{"path": ".", "reason": f"and {rest} more"}]
    return rows


@dataclass(frozen=True, slots=True)
class Item:
    """A file of the store.

    ``path``: relative to the store root; absolute for a file outside of the root.
    ``allocated``: the bytes that the file takes on the disk; less than ``size`` for a sparse file.
    """

    path: str
    kind: str
    size: int
    allocated: int
    base_offset: int | None


@dataclass(slots=True)
class Total:
    """The total sizes of all files of one kind, in bytes."""

    files: int = 0
    size: int = 0
    allocated: int = 0


def inventory(store: Store) -> tuple[list[Item], list[Trouble]]:
    """Return (files by path, unreadable entries) of a store, including log folders outside of its
    root.
    """
    items: list[Item] = []
    troubles: list[Trouble] = []
    logs = {vfs.abspath(folder) for folder in store.log_folders}
    root = os.path.join(vfs.abspath(store.root), "")
    entered = _Entered()
    for top in [store.root, *sorted(logs)]:
        if top.startswith(root) and store.path(top[len(root):]) in entered.paths:
            continue
        if entered.paths:
            entered.identify()
        # All files below a folder have its path as a prefix, so relative paths need no disk access.
        below, absolute = os.path.join(top, ""), vfs.abspath(top)
        from_root = os.path.join(_relative(store, top), "") if top != store.root else ""
        for entry, info, folder in _files(top, entered, troubles, store.queues.note_listed):
            path = from_root + entry.path.removeprefix(below)
            parts = tuple(path.split(os.sep))
            inside = folder[len(below):]  # without the folder itself
            in_log = (os.path.join(absolute, inside) if inside else absolute) in logs
            items.append(Item(path, _kind(parts, entry.path, info.st_size, in_log),
                              info.st_size, info.st_blocks * _BLOCK,
                              kinds.base_offset(entry.name)))
    return sorted(items, key=lambda item: item.path), troubles


def totals(items: list[Item]) -> dict[str, Total]:
    """Return the totals of each kind, in the order of `formats.kinds`."""
    by_kind: dict[str, Total] = {}
    for item in items:
        total = by_kind.setdefault(item.kind, Total())
        total.files += 1
        total.size += item.size
        total.allocated += item.allocated
    order = {kind: place for place, kind in enumerate(kinds.KINDS)}
    return dict(sorted(by_kind.items(), key=lambda pair: (order.get(pair[0], len(order)), pair[0])))


def _relative(store: Store, path: str) -> str:
    relative = os.path.relpath(path, store.root)
    return vfs.abspath(path) if relative.startswith("..") else relative


class _Entered:
    """The folders that were entered. A system call identifies each of them as soon as a link or
    another top may have the same folder again. (A folder that is mounted twice counts twice.)
    """

    def __init__(self) -> None:
        self.paths: dict[str, None] = {}
        self._identities: set[tuple[int, int]] | None = None

    def enter(self, folder: str) -> bool:
        """Note a folder; return False if it was entered before. Raises: OSError."""
        if self._identities is not None:
            info = vfs.stat(folder)
            if (info.st_dev, info.st_ino) in self._identities:
                return False
            self._identities.add((info.st_dev, info.st_ino))
        self.paths[folder] = None
        return True

    def identify(self) -> None:
        """From now on, identify folders. Folders that are deleted meanwhile are left out."""
        if self._identities is None:
            self._identities = set()
            for folder in [*self.paths]:
                with suppress(OSError):
                    self.enter(folder)


def _files(top: str, entered: _Entered, troubles: list[Trouble],
           note: Callable[[str, list[os.DirEntry[str]]], None]) -> Iterator[
               tuple[os.DirEntry[str], os.stat_result, str]]:
    """Yield (entry, stat, containing folder) for each regular file below ``top``.

    No folder is entered twice. A link may point to an entire disk. It is followed only inside one
    of the store's own folders, or if it has the name of such a folder, and only to the depth of a
    store's folders.

    ``note`` is called with the entries of each folder.
    """
    stack: list[tuple[str, int, int]] = [(top, 0, _MAX_DEPTH)]
    while stack:
        folder, depth, deepest = stack.pop()
        try:
            if not entered.enter(folder):
                continue
            entries = list(vfs.scandir(folder))
            note(folder, entries)
        except FileNotFoundError:
            continue
        except OSError as error:
            troubles.append(Trouble(folder, str(StoreIOError.from_oserror(error, "")), True))
            continue
        for entry in entries:
            try:
                if depth < deepest and entry.is_dir(follow_symlinks=False):
                    stack.append((entry.path, depth + 1, deepest))
                    continue
                info = entry.stat()
            except FileNotFoundError:
                if entry.is_symlink():
                    troubles.append(Trouble(entry.path, "broken link", True))
                continue  # else it was deleted meanwhile, as files of a running broker are
            except OSError as error:
                troubles.append(Trouble(entry.path, str(StoreIOError.from_oserror(error, "")),
                                        True))
                continue
            if stat.S_ISREG(info.st_mode):
                yield entry, info, folder
            elif not stat.S_ISDIR(info.st_mode):
                troubles.append(Trouble(entry.path, "not a regular file"))
            elif entry.is_symlink() and not _is_own(top, entry.path):
                troubles.append(Trouble(entry.path, "link to a folder; not read", True))
            elif depth >= deepest:
                if deepest < _MAX_DEPTH:
                    continue  # a folder that does not belong to the store
                troubles.append(Trouble(entry.path, "nested too deeply; not read", True))
            else:
                entered.identify()
                stack.append((entry.path, depth + 1, min(deepest, _BEHIND_LINKS)))


def _is_own(top: str, path: str) -> bool:
    """Return whether a folder has the path of one of a store's folders, or is below such a
    folder.
    """
    first = os.path.relpath(path, top).split(os.sep)[0]
    return first in FOLDERS or first.startswith(NODE)


def _kind(parts: tuple[str, ...], path: str, size: int, in_log: bool) -> str:
    if parts[0] in _BY_FOLDER:
        return _BY_FOLDER[parts[0]]
    if in_log and names.parse_offset(parts[-1]) is not None:
        return kinds.COMMITLOG
    if parts[0] in _OF_DATABASES and DATABASE_FILE.fullmatch(parts[-1]):
        return parts[0]
    kind = kinds.from_path(parts)
    if kind is not None:
        return kind
    try:
        with FileSource(path) as source:
            head = source.read(0, _HEAD)
    except StoreIOError:
        return OTHER
    return kinds.recognise(parts, head, size) or OTHER
