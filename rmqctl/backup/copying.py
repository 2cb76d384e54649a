"""Copy a store, up to a given end of its log, into a folder that may already contain a partial
copy.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from rmqctl.backup.growing import BLOCK, Copies
from rmqctl.backup.points import DamagedRange
from rmqctl.backup.sums import relative
from rmqctl.errors import FormatError, RefusedError, StoreIOError
from rmqctl.files.durable import make_folders
from rmqctl.files.sparse import copy_sparse
from rmqctl.formats.local import batch_consume_queue, consume_queue
from rmqctl.formats.local.index_file import HEADER
from rmqctl.kernel import active
from rmqctl.phrases import counted
from rmqctl.scan.frames import DAMAGED, ZERO, Batch
from rmqctl.scan.holes import used_end
from rmqctl.scan.source import FileSource
from rmqctl.scan.tolerant import TolerantWalk, UnreadRange
from rmqctl.scan.walk import start_of
from rmqctl.store.files import StoreFile
from rmqctl.store.layout import is_database
from rmqctl.store.store import Store

_OWN = frozenset({"commitlog", "consumequeue", "batchconsumequeue", "index", "lock", "abort",
                  ".rmqctl"})
_COMPARED = 4096
"""Maximum number of bytes at the end of a file's copy that are compared with the file."""
_APPENDED = ("compaction", "timerlog")
"""Folders whose files only grow, unless a file is replaced as a whole."""
_TRIES = 5
"""Maximum number of attempts to copy a RocksDB database that changes during the copy."""
_UNREADABLE = (errno.EIO, errno.ENODATA, errno.EILSEQ)
"""Values of ``errno`` for bytes that the device cannot read."""
_UNSTEADY = "{} kept changing while it was copied: the copy may mix several states"
_PASSED = 8 << 20
"""Number of bytes of the log that are mapped at once, if the records there are intact."""
_NOTHING: Mapping[str, bytes] = MappingProxyType({})
PART = 128 << 20
"""Maximum number of bytes of the log that are hashed and fsynced as one part."""


def copy_log(view: Store, copies: Copies, copied_end: int, end: int) -> Iterator[
        tuple[StoreFile, int, int]]:
    """Copy the log between the physical offsets ``copied_end`` and ``end``. Raises: StoreIOError.

    Yield (file, start, end), with positions in the file, for each copied part of at most `PART`
    bytes.
    """
    for file in view.log.files:
        start, stop = max(copied_end - file.base, 0), min(end - file.base, file.size)
        name = relative(view, file)
        if start >= stop:
            # Copy this empty file too: otherwise the padding record at the end of the previous
            # file would be the end of the log.
            if file.base == end and not os.path.exists(copies.path(name)):
                with file.open() as source:
                    copies.grow(source, name, 0, 0)
            continue
        copies.wipe_after(name, start)
        with file.open() as source:
            for first in range(start, stop, PART):
                last = min(first + PART, stop)
                copies.grow(source, name, first, last)
                yield file, first, last


class Reached:
    """Physical offset up to which the log has been copied. The checking thread waits until the
    records to check have been copied.
    """

    def __init__(self) -> None:
        self._place, self._changed = 0, threading.Condition()

    def set(self, place: int) -> None:
        with self._changed:
            self._place = place
            self._changed.notify_all()

    def wait(self, place: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._place >= place)


def damage_in(view: Store, start: int, end: int, copied: Reached | None = None) -> tuple[
        list[DamagedRange], int, int]:
    """Check the log in ``[start, end)``. Return (damaged byte ranges, number of intact messages,
    newest store time). With ``copied``, wait until each batch of records has been copied. Next to
    unreadable bytes, some more count as damaged.
    """
    holes: list[DamagedRange] = []
    count = newest = 0

    def note(physical: int, length: int) -> None:
        file = view.log.file_of(physical)
        if file is not None:
            holes.append(DamagedRange(relative(view, file), physical - file.base, length))

    for batch in _batches(view, start, end, copied):
        if isinstance(batch, DamagedRange):
            holes.append(batch)
            continue
        if isinstance(batch, Intact):
            count += batch.messages
            newest = max(newest, batch.newest)
            continue
        if copied is not None and len(batch):
            copied.wait(int(batch.offset[-1]))
        sound = batch.crc_ok()
        count += int(sound.sum())
        if sound.any():
            newest = max(newest, int(batch.column("store_timestamp")[sound].max()))
        for at in (~sound).nonzero()[0].tolist():
            note(int(batch.offset[at]), int(batch.column("total_size")[at]))
        for span in batch.spans:  # zeros inside the log are lost messages
            if span.kind == DAMAGED or (
                    span.kind == ZERO and span.offset + span.length < end):
                note(span.offset, span.length)
    return sorted(holes, key=lambda hole: (hole.file, hole.offset)), count, newest


class Intact(NamedTuple):
    """Intact records from the start of a range on: their end (position in the file), number and
    newest store time.
    """

    end: int
    messages: int
    newest: int


def _batches(view: Store, start: int, end: int, copied: Reached | None) -> Iterator[
        Batch | DamagedRange | Intact]:
    """Yield the records that start in ``[start, end)`` and the ranges that cannot be read."""
    for number, file in enumerate(view.log.files):
        if file.end <= start or file.base >= end:
            continue
        first = start_of(view.log.source(number), max(start - file.base, 0))
        stop = min(end - file.base - file.head, file.size)
        if not file.head:
            yield (intact := _intact(view.log.source(number), first, stop, copied))
            first = intact.end
        for item in TolerantWalk(partial(view.log.source, number), first, stop):
            if isinstance(item, UnreadRange):
                yield DamagedRange(relative(view, file), item.start, item.end - item.start)
            else:
                yield item


def _intact(source: FileSource, start: int, end: int, copied: Reached | None) -> Intact:
    """Pass the intact records from position ``start`` on, up to the first other bytes."""
    kernel, at, messages, newest = active(), start, 0, 0
    while kernel is not None and at < end:
        length = min(_PASSED, end - at)
        if copied is not None:
            copied.wait(source.base + at + length)
        if (data := source.window(at, length)) is None:
            break
        behind, count, stored = kernel.intact_records(data, source.base + at, 0)
        if not count:
            break
        at, messages, newest = at + behind, messages + count, max(newest, stored)
    return Intact(at, messages, newest)


def mend_log(view: Store, copies: Copies, copied_end: int,
             damaged: Sequence[DamagedRange]) -> tuple[
        bool, bool]:
    """Copy again the ranges that were damaged when they were first copied and are repaired now.
    Nothing else is overwritten: a message that the repair replaced by a filler may be intact in the
    copy.

    Return (whether anything was copied, whether the copy equals the store's log up to
    ``copied_end``).
    Raises: StoreIOError.
    """
    before = copies.written
    files = {relative(view, file): file for file in view.log.files}
    for hole in damaged:
        if (file := files.get(hole.file)) is not None:
            with file.open() as source:
                copies.grow(source, hole.file, hole.offset, min(
                    hole.offset + hole.length, copied_end - file.base), compare=True)
    return copies.written > before, all(
        _is_same(file, copies.path(name), min(copied_end - file.base, file.size))
        for name, file in files.items())


def _is_same(file: StoreFile, copy: str, end: int) -> bool:
    if end <= 0:
        return True
    with file.open() as ours, FileSource(copy) as theirs:
        return all(ours.read(at, min(BLOCK, end - at)) == theirs.read(at, min(BLOCK, end - at))
                   for at in range(0, end, BLOCK))


def copy_queues(view: Store, copies: Copies, *, compare: bool) -> tuple[
        bool, list[DamagedRange], list[str]]:
    """Copy the new entries of all consume queues. With ``compare``, also copy earlier entries that
    differ from their copies. Raises: StoreIOError.

    Return (whether any queue was replaced by a new one since the last run, ranges of copied entries
    that the store has lost, notes).
    """
    notes: list[str] = []
    lost: list[DamagedRange] = []
    if is_database(view.path("consumequeue")) and not copy_database(
            view.root, "consumequeue", copies):
        notes.append(_UNSTEADY.format("consumequeue"))
    others: list[tuple[str, int]] = []
    for key, queue in view.queues.plain.items():
        with closing(queue), kept_where_unreadable(queue.files, view, copies, lost):
            others += [key] * _copy_appended(queue.files, view, copies, consume_queue.UNIT_SIZE,
                                             compare, lost)
    for key, batches in view.queues.batch.items():
        with kept_where_unreadable(batches.files, view, copies, lost):
            others += [key] * _copy_appended(batches.files, view, copies,
                                             batch_consume_queue.UNIT_SIZE, compare, lost)
    if others:
        notes.append(f"{counted(len(others), 'consume queue does', 'consume queues do')} not match "
                     f"the backup (the first: {others[0][0]}/{others[0][1]}): the topic was "
                     f"created again, or entries are damaged; run `rmqctl verify {view.root}`")
    return bool(others), lost, notes


@contextmanager
def kept_where_unreadable(files: Sequence[StoreFile], view: Store, copies: Copies,
                           lost: list[DamagedRange]) -> Iterator[None]:
    """If the device can no longer read one of the files, keep the copies of all files, and add all
    files to ``lost``.
    """
    try:
        yield
    except StoreIOError as error:
        if error.errno not in _UNREADABLE or copies.root in str(error):
            raise
        names = [os.path.relpath(file.path, view.root) for file in files]
        lost += [DamagedRange(name, 0, file.size, unread=True,
                              kept=os.path.exists(copies.path(name)))
                 for name, file in zip(names, files, strict=True)]


def _copy_appended(files: Sequence[StoreFile], view: Store, copies: Copies, unit: int,
                   compare: bool, lost: list[DamagedRange]) -> bool:
    """Copy the new data of append-only files, oldest file first. A killed run therefore leaves no
    incomplete copy before a non-empty copy.

    Return whether the copy belongs to a different queue, for example because the topic was created
    again. Then all entries are compared, and copies of missing files are removed.

    If entries at the end of a file are zeros in the store now, their copies are kept and added to
    ``lost``.
    """
    if not files:
        return False
    folder = os.path.relpath(os.path.dirname(files[0].path), view.root)
    names = {file.name for file in files}
    strange = [name for name in _names(copies.path(folder))
               if name not in names and name > files[-1].name]
    grown: list[StoreFile] = []
    is_other = bool(strange)
    for file in sorted(files, key=lambda file: file.base, reverse=True):
        grown.append(file)
        name = os.path.join(folder, file.name)
        if (used := copies.used(name)) and not compare:
            if not _agree(file, copies.path(name), used):
                end = _lost_end(file, copies, name, used, unit)
                if not end:  # only zeros: does the previous file match its copy?
                    older = max((other for other in files if other.base < file.base), default=None,
                                key=lambda other: other.base)
                    before = "" if older is None else copies.path(os.path.join(folder, older.name))
                    if older is None or not os.path.exists(before) or not _agree(
                            older, before, older.size):
                        end = None
                if end is not None and not is_other:
                    lost.append(DamagedRange(name, end, used - end, kept=True))
                    grown.pop()
                else:
                    is_other = True
            break
    if is_other:
        strange = [name for name in _names(copies.path(folder)) if name not in names]
        for name in strange:
            copies.remove(os.path.join(folder, name))
        grown, compare = sorted(files, key=lambda file: file.base, reverse=True), True
    for file in reversed(grown):
        name = os.path.join(folder, file.name)
        done = -(-copies.used(name) // unit) * unit  # round up: an entry may end with zeros
        with file.open() as source:
            end = -(-used_end(source, 0, source.size if file.limit is None else
                              min(file.limit, source.size)) // unit) * unit
            if done > end:
                copies.wipe_after(name, end)
                done = end
            if compare and done:
                copies.grow(source, name, 0, min(done, source.size), compare=True)
            if done < end or (not end and not os.path.exists(copies.path(name))
                              and file.limit is None):
                copies.grow(source, name, done, min(end, source.size))  # a torn entry may end it
    return is_other


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _agree(file: StoreFile, copy: str, used: int) -> bool:
    """Return whether a queue file and its copy have the same last bytes before ``used``."""
    start = max(0, used - _COMPARED)
    with file.open() as ours, FileSource(copy) as theirs:
        return ours.read(start, used - start) == theirs.read(start, used - start)


def _lost_end(file: StoreFile, copies: Copies, name: str, used: int, unit: int) -> int | None:
    """If the last entries of a queue file are zeros now and all earlier entries equal the copy,
    return the end of the earlier entries. Otherwise return None.

    The copy of such a file is kept unchanged: copies of a queue or a log are never shortened.
    """
    with file.open() as ours:
        end = -(-used_end(ours, 0, min(used, ours.size)) // unit) * unit
    return end if end < used and (not end or _agree(file, copies.path(name), end)) else None


def copy_index(view: Store, copies: Copies, *, compare: bool) -> list[DamagedRange]:
    """Copy the index files: first the new entries, then the changed slots, then the headers. With
    ``compare``, copy everything that differs. Remove the copies of files that the store has deleted
    and created again.

    Return the files that could not be read. Raises: StoreIOError.
    """
    headers = {} if view.snapshot is None else view.snapshot.index_headers
    begins: list[int] = []
    lost: list[DamagedRange] = []
    for file in view.index.listing.files:
        raw = headers.get(file.name) or _header(file.path)
        if raw:
            begins.append(HEADER.decode(raw).begin_phy_offset)
        with kept_where_unreadable([file], view, copies, lost):
            _copy_index_file(view, copies, file, raw, compare=compare)
    # A broker deletes the oldest index files; a newer file is missing only if it was replaced.
    names = {file.name for file in view.index.listing.files}
    for gone in set(_names(copies.path("index"))) - names if begins else ():
        raw = _header(copies.path(name := os.path.join("index", gone)))
        if raw and HEADER.decode(raw).begin_phy_offset >= min(begins):
            copies.remove(name)
    return lost


def _copy_index_file(view: Store, copies: Copies, file: StoreFile, raw: bytes, *,
                     compare: bool) -> None:
    name = os.path.join("index", file.name)
    copied = _header(copies.path(name))
    if raw == copied and raw and not compare:
        return
    try:
        index = view.index.open(file)
    except FormatError:  # the numbers of slots and entries are unknown
        with file.open() as source:
            copies.grow(source, name, 0, source.size, compare=True)
        return
    with index.source:
        first, entries = index.shape.slot_position(0), index.shape.entry_position(0)
        before = HEADER.decode(copied) if copied else None
        copied_count = 0
        if before is not None and before.begin_phy_offset == index.header.begin_phy_offset and (
                before.index_count <= index.count):
            copied_count = before.index_count
        start = index.shape.entry_position(copied_count)
        copies.wipe_after(name, start)
        if compare and copied_count:
            copies.grow(index.source, name, entries, start, compare=True)
        copies.grow(index.source, name, start, index.shape.entry_position(index.count))
        copies.grow(index.source, name, first, entries, compare=True)
        copies.grow(index.source, name, 0, HEADER.size, compare=True)


def _header(path: str) -> bytes:
    """Return the header of an index file; empty bytes if the header is incomplete or unreadable."""
    try:
        with FileSource(path) as source:
            raw = source.read(0, HEADER.size)
    except StoreIOError:
        return b""
    return raw if len(raw) == HEADER.size else b""


def copy_database(root: str, folder: str, copies: Copies) -> bool:
    """Copy a RocksDB database; return False if it kept changing during the copy. Raises:
    StoreIOError.

    Table files never change, and the manifest only grows. So a copy is consistent if the manifest
    did not change while the files were copied.
    """
    where, target = os.path.join(root, folder), copies.path(folder)
    for _ in range(_TRIES):
        before = _manifest(where)
        make_folders(target, durable=False)
        names = sorted(os.listdir(where), key=lambda name: (not name.endswith(".sst"), name))
        try:
            for name in names:
                if name != "LOCK" and os.path.isfile(os.path.join(where, name)):
                    _copy_changed(root, os.path.join(folder, name), copies)
        except FileNotFoundError:
            continue
        if before == _manifest(where):
            for name in set(os.listdir(target)) - set(names):
                copies.remove(os.path.join(folder, name))
            return True
    return False


def database_files(root: str, folder: str, most: int) -> dict[str, bytes]:
    """Return the files of a RocksDB database by path; empty if they have more than ``most`` bytes,
    cannot be read or keep changing.
    """
    where = os.path.join(root, folder)
    for _ in range(_TRIES):
        before = _manifest(where)
        files: dict[str, bytes] = {}
        with suppress(StoreIOError):
            for name in sorted(_names(where), key=lambda name: (not name.endswith(".sst"), name)):
                with FileSource(os.path.join(where, name)) as source:
                    if source.size > most - sum(map(len, files.values())):
                        return {}
                    if name != "LOCK":
                        files[os.path.join(folder, name)] = source.read(0, source.size)
            if before == _manifest(where):
                return files
    return {}


def _manifest(folder: str) -> tuple[str, int]:
    try:
        with open(os.path.join(folder, "CURRENT"), encoding="ascii", errors="replace") as file:
            name = file.read(64).strip()
        return name, os.path.getsize(os.path.join(folder, name))
    except OSError:
        return "", -1


def copy_rest(view: Store, copies: Copies, without: Sequence[str] = (),
              early: Mapping[str, bytes] = _NOTHING) -> list[str]:
    """Copy all changed files that no other function copies: configuration, timers, compaction logs.
    Files and folders in the store's root that are in ``without`` are skipped. ``early``: contents
    to copy instead of those that files have by now, by path. Return notes.
    """
    notes = []
    _remove_gone(view.root, copies)
    logs = {os.path.dirname(relative(view, file)) for file in view.log.files if file.head}
    logs |= {os.path.relpath(folder, view.root) for folder in view.log_folders}
    for folder, name in _others(view.root, logs, _OWN.union(without)):
        if name is None:
            if contents := {inner: data for inner, data in early.items()
                            if os.path.dirname(inner) == folder}:
                for inner, data in contents.items():
                    copies.keep(inner, data)
                for inner in _names(copies.path(folder)):
                    if os.path.join(folder, inner) not in contents:
                        copies.remove(os.path.join(folder, inner))
            elif not copy_database(view.root, folder, copies):
                notes.append(_UNSTEADY.format(folder))
            continue
        if (inner := os.path.join(folder, name)) in early:
            copies.keep(inner, early[inner])
            continue
        try:
            _copy_changed(view.root, inner, copies)
        except FileNotFoundError:
            continue  # the file was deleted in the meantime
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise StoreIOError.from_oserror(error, os.path.join(view.root, folder, name),
                                                "copy") from None
            copies.unread.append(DamagedRange(inner, 0,
                                              os.path.getsize(os.path.join(view.root, inner)),
                                              unread=True, kept=os.path.exists(copies.path(inner))))
    return notes


def _others(root: str, logs: set[str], own: frozenset[str]) -> Iterator[tuple[str, str | None]]:
    """Yield (folder, file name), relative to the root, of each file that no other function copies;
    for a RocksDB database (folder, None). ``logs``, ``own``: folders and names that are skipped.
    """
    walked: set[str] = set()
    for path, folders, names in os.walk(root, followlinks=True):
        folder = os.path.relpath(path, root)
        if (real := os.path.realpath(path)) in walked:  # a link to a parent folder
            folders.clear()
            continue
        walked.add(real)
        if folder == os.curdir:
            folder = ""
            folders[:] = [name for name in folders if name not in own]
            names[:] = [name for name in names if name not in own]
        if folder in logs:
            folders.clear()
            continue
        if folder and is_database(path):
            folders.clear()
            yield folder, None
            continue
        for name in sorted(names):
            if os.path.isfile(os.path.join(path, name)):
                yield folder, name


def _remove_gone(root: str, copies: Copies) -> None:
    """Remove copies of files that the store no longer has. These are compaction log files that a
    compaction replaced, and configuration files without a ``.bak`` in the store.
    """
    there = set(_names(os.path.join(root, "config")))
    for name in _names(copies.path("config")):
        inner = os.path.join("config", name)
        if name not in there and f"{name}.bak" not in there and os.path.isfile(copies.path(inner)):
            copies.remove(inner)
    for path, _folders, names in os.walk(copies.path("compaction")):
        folder = os.path.relpath(path, copies.root)
        for name in names:
            if not os.path.lexists(os.path.join(root, folder, name)):
                copies.replaces(os.path.join(folder, name))


def _copy_changed(root: str, name: str, copies: Copies) -> None:
    """Copy a file unless its size and modification time equal those of the copy. Raises: OSError.

    For an append-only file, copy only the new bytes. If such a file was replaced, keep its old copy
    for earlier points.
    """
    source, target = os.path.join(root, name), copies.path(name)
    if copies.takes(source, name):
        return
    about = os.stat(source)
    try:
        have = os.stat(target)
        if (have.st_size, have.st_mtime_ns) == (about.st_size, about.st_mtime_ns):
            return
        if name.split(os.sep, 1)[0] in _APPENDED:
            if _appended(source, name, copies):
                os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))
                return
            copies.replaces(name)
    except FileNotFoundError:
        pass
    make_folders(os.path.dirname(target), durable=False)
    part = f"{target}.part"
    copy_sparse(source, part)
    os.replace(part, target)
    copies.changed[name] = None
    copies.written += about.st_size


def appended_files(root: str) -> list[str]:
    """Return the sorted paths, relative to the root, of all files in the folders `_APPENDED`."""
    return sorted(os.path.relpath(os.path.join(folder, name), root) for top in _APPENDED
                  for folder, _folders, names in os.walk(os.path.join(root, top))
                  for name in names)


def _appended(path: str, name: str, copies: Copies) -> bool:
    """Append the new bytes of a file to its copy; return False if the copy is not a prefix of the
    file.
    Raises: OSError.
    """
    used = copies.used(name)
    start = max(used - _COMPARED, 0)
    with FileSource(path) as source, FileSource(copies.path(name)) as copy:
        if not used or source.size < copy.size or (
                source.read(start, used - start) != copy.read(start, used - start)):
            return False
        copies.grow(source, name, used, source.size)
    return True


def refuse_inside(folder: str, other: str, what: str) -> None:
    """Raise RefusedError if one folder contains the other, or both are the same."""
    first, second = os.path.realpath(folder), os.path.realpath(other)
    if os.path.commonpath([first, second]) in (first, second):
        raise RefusedError(f"{other}: is inside {folder}, or contains it; {what}")
