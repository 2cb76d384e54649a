"""One run of a backup to a folder: copy the new data of a store, then write a restore point."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from rmqctl.backup import moment, points
from rmqctl.backup.copying import (
    PART,
    Reached,
    appended_files,
    copy_index,
    copy_log,
    copy_queues,
    copy_rest,
    damage_in,
    mend_log,
    refuse_inside,
)
from rmqctl.backup.growing import Copies, Pace
from rmqctl.backup.keeping import take_away
from rmqctl.backup.points import Begun, DamagedRange, Part, Point, id_of, read_points
from rmqctl.backup.sums import AT_ONCE, LOG, relative, sum_of_copy, summed
from rmqctl.errors import FormatError, RefusedError, RmqctlError, StoreIOError
from rmqctl.files.durable import make_folders
from rmqctl.files.lock import StoreLock
from rmqctl.formats.local.message import decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.fillers import replaced
from rmqctl.scan.source import FileSource
from rmqctl.store.log.end import find_end
from rmqctl.store.store import Sizes, Store

_COMPARED = 64 << 10
"""Maximum number of bytes at the end of the copied log that are compared with the store's log."""
_DAY = 86_400_000
_TRIES = 3
"""Maximum number of times that a run is repeated."""
Run = TypeVar("Run")
_SUMMING = min(4, os.cpu_count() or 1)
"""Number of threads that compute SHA-256 sums of copied data: hashing is slower than copying."""
_AHEAD = 2 * _SUMMING
"""Maximum number of groups of copied parts without a sum. They should still be in the page cache
when they are hashed.
"""
OTHER_LOG = ("{store}: its log does not match the one in {backup}: bytes before {place} differ. "
             "If the log is damaged there, repair it first (`rmqctl doctor STORE --backup "
             "DEST`); if it is another log, choose a new place for its backup")
_SMALL = ("config", "checkpoint")
_QUEUES = ("consumequeue", "batchconsumequeue")
"""Starts of the paths of queue files."""


@dataclass(frozen=True, slots=True)
class BackupSource:
    """The store that is backed up."""

    root: str
    commitlog_dirs: Sequence[str] = ()
    sizes: Sizes | None = None

    def open(self) -> Store:
        return Store.open(self.root, self.commitlog_dirs, self.sizes)


class LogFileGoneError(StoreIOError):
    """A log file was deleted before it was copied."""


@contextmanager
def telling_gone(view: Store) -> Iterator[None]:
    """Raise LogFileGoneError if code in the block fails because a log file was deleted."""
    try:
        yield
    except StoreIOError as error:
        if error.errno != errno.ENOENT or all(os.path.exists(file.path) for file in view.log.files):
            raise
        raise LogFileGoneError(str(error)) from None


def again_if_gone(run: Callable[[], Run]) -> Run:
    """Return the result of ``run``. Repeat it if a log file was deleted meanwhile: a broker deletes
    its oldest log files. Raises: the exceptions of ``run``.
    """
    for _ in range(_TRIES):
        with suppress(LogFileGoneError):
            return run()
    return run()


def back_up(source: BackupSource, backup: str, clock: Callable[[], int], version: str,
            pace: Pace = lambda _bytes: None, keep: int | None = None) -> tuple[
                Point, tuple[int, int]]:
    """Copy the new data of a store into the folder `backup`, and write a restore point. Return (the
    new point, (number of removed points, number of removed bytes)).

    * `clock`: returns the time in epoch ms
    * `keep`: age in ms after which a point is removed

    Raises: RefusedError if the folder is another store's backup, StoreHeldError if another run
    writes to it, NotAStoreError, UnsupportedError, StoreIOError.
    """
    return again_if_gone(partial(_back_up, source, backup, clock, version, pace, keep))


def _back_up(source: BackupSource, backup: str, clock: Callable[[], int], version: str, pace: Pace,
             keep: int | None) -> tuple[Point, tuple[int, int]]:
    # Nothing is written to a folder that is not a backup of this store.
    with source.open() as store:
        refuse_inside(store.root, backup, "a backup needs its own folder")
        store.layout.require(store.root, "commitlog")
        refuse_unreadable(store)
        bad: list[RmqctlError] = []
        before = read_points(backup, bad)
        root, begun = os.path.abspath(store.root), points.begun_of(backup)
        if not before and os.path.isdir(backup) and os.listdir(backup) and not begun:
            raise RefusedError(f"{backup}: not empty and not a backup: choose a new folder")
        if not before and begun and begun.store != root:
            raise RefusedError(f"{backup}: contains an unfinished first backup of {begun.store}: "
                               "remove this folder, or choose a new one")
        if not before:
            points.begin(backup, root)
        with StoreLock(backup, of_backup=True):
            now = clock()
            early = moment.progress_files(store)
            view, end = moment.fix(store, before[-1].log_end if before else 0)
            with view:
                refuse_gone(store, view)
                copied_end = _copied_end(view, backup, before, end) if before or not begun else (
                    _reached(view, backup, begun, end))
                points.begin(backup, root)
                with telling_gone(view):
                    point = _grown(store, view, copied_end, end, backup, before, now, version, pace,
                                   list(map(str, bad)), early, unfinished=begun is not None)
            points.end(backup)
            if keep is None:
                return point, (0, 0)
            with points.unused(backup) as is_unused:  # otherwise a later run removes the old points
                return point, take_away(backup, [*before, point], now - keep) if is_unused else (
                    0, 0)


def _grown(store: Store, view: Store, copied_end: int, end: int, backup: str,
           before: Sequence[Point], now: int, version: str, pace: Pace, bad: Sequence[str],
           early: Mapping[str, bytes], *, unfinished: bool) -> Point:
    # After an unfinished run or a repair, data that is already copied is compared with the store.
    last = before[-1] if before else None
    repairs = tuple(sorted(_names(store.path(".rmqctl", "repairs"))))
    repaired = last is not None and repairs != last.repairs
    copies = Copies(backup, pace, older=None if last is None else points.older_of(backup, last))
    if last is None and unfinished:
        _remove_logs(view, copies, copied_end)
    # The log first, then queues and index, then the configuration. The progress of consumers was
    # read before the log's end was fixed.
    again, is_same = mend_log(view, copies, copied_end, [
        hole for point in before for hole in point.damaged]) if repaired else (False, True)
    compare = (repaired or unfinished) and is_same
    gaps = _put_back(view, copies, copied_end) if before else []
    own = not is_same or (last is not None and last.own)
    damaged: list[DamagedRange] = []
    notes: list[str] = []
    others = False

    def copy_entries(flush: Callable[[Sequence[str]], None]) -> None:
        """Copy the queues and, if it matches the backup's log, the index. Flush them early, so that
        little is left to flush at the end.
        """
        nonlocal others
        import rmqctl.backup.finishing  # noqa: F401  # slow to import; the log takes longer

        others, lost, more = copy_queues(view, copies, compare=compare)
        damaged.extend(lost)
        notes.extend(more)
        flush([name for name in list(copies.changed) if name.startswith(_QUEUES)])
        if not own:
            damaged.extend(copy_index(view, copies, compare=compare))
            flush([name for name in list(copies.changed) if name.startswith("index")])

    parts, of_log, count, newest = _copied_log(
        view, copies, copied_end, end, view.log.min_offset if again or last is None else copied_end,
        None if last else lambda reached: points.note_reached(backup, Begun(
            os.path.abspath(store.root), reached)), copy_entries)
    damaged[:0] = of_log
    if last is None:  # an unfinished first run may have copied parts of the log
        parts = [*_summed_before(view, copies, copied_end), *parts]
    if again:
        parts = [sum_of_copy(view, copies, file, min(end - file.base, file.size))
                 for file in view.log.files if file.base < end]
    notes += [*bad, *gaps]
    if own:
        notes.append("a repair changed messages that the backup still has in their original "
                     "form; the backup keeps the originals (`rmqctl recover STORE --from DEST` "
                     "restores them), and `rmqctl restore` rebuilds the index from the backup's "
                     "log")
    notes += copy_rest(view, copies, early=early)
    damaged += copies.unread
    copies.sync()
    missing = lacking(view, copied_end if before else view.log.min_offset, end, notes)
    from rmqctl.backup.finishing import finish, topics_without_configuration

    # A running broker may commit offsets beyond the copied log: lower them. In the store of a
    # stopped broker, offsets beyond the end of a queue are evidence of lost messages: keep them.
    lowered = finish(backup, end, view.generation, is_plain=not view.nodes) if (
        view.snapshot is not None) else 0
    # Write the point with its small files; it exists as soon as its folder is renamed.
    staged = points.staged(backup)
    small = _keep_small(backup, staged, last)
    point = Point(id_of(now), now, os.path.abspath(store.root), version,
                  view.log.min_offset, end,
                  count, max(min(newest, now + _DAY), last.last_time if last else 0),
                  tuple(view.log_folders) if len(view.log_folders) > 1 else (),
                  tuple(parts), tuple(damaged), small, lowered, tuple(notes),
                  max(min(find_end(view).offset, end), copied_end), missing, repairs,
                  others or repaired, again, own, tuple(appended_files(backup)),
                  topics_without_configuration(view))
    if last is not None and last.id >= point.id:  # the clock was set back
        point = replace(point, id=id_of(max(now, last.time + 1)), time=max(now, last.time + 1))
    points.publish(backup, staged, point)
    return point


def _put_back(view: Store, copies: Copies, copied_end: int) -> list[str]:
    """Copy log files again that have disappeared from the backup. Return notes. Raises:
    StoreIOError.
    """
    notes = []
    for file in view.log.files:
        name = relative(view, file)
        end = min(copied_end - file.base, file.size)
        if end > 0 and not os.path.exists(copies.path(name)):
            with file.open() as source:
                copies.grow(source, name, 0, end)
            notes.append(f"{copies.path(name)}: was missing from the backup and is copied again; "
                         "`rmqctl backup check` checks the other files")
    return notes


def refuse_unreadable(store: Store) -> None:
    """Check that the store can be backed up.

    Raises: StoreIOError if a folder of the store cannot be listed. RefusedError if consume queues
    or an index exist without a log file.
    """
    def fail(error: OSError) -> None:
        raise StoreIOError.from_oserror(error, error.filename or store.root, "list")

    for folder in dict.fromkeys((store.root, *store.log_folders)):
        for _ in os.walk(folder, onerror=fail):
            pass
    if not store.log.files and (store.queues.readable or store.index.listing.files):
        raise RefusedError(f"{store.root}: has consume queues or an index, but no commitlog "
                           "file: is a disk not mounted, or is the log in other folders "
                           "(--commitlog-dir)?")


def refuse_gone(store: Store, view: Store) -> None:
    """Raise StoreIOError if the log files of a store have disappeared since it was opened."""
    if store.log.files and not view.log.files:
        raise StoreIOError(f"{store.log_folders[0]}: its log files have disappeared since this run "
                           "began: was a disk unmounted?")


def lacking(view: Store, copied_end: int, end: int, notes: list[str]) -> int:
    """Return the number of bytes between ``copied_end`` and ``end`` that are missing from the
    store's log. For each missing range, add a note to ``notes``.
    """
    if (missing := max(view.log.min_offset - copied_end, 0)) > 0:
        notes.append(f"the log from {copied_end:,} to {view.log.min_offset:,} was deleted before "
                     "it was copied")
    for file, later in pairwise(view.log.files):
        if file.end < later.base and copied_end < later.base <= end:
            notes.append(f"the log from {file.end:,} to {later.base:,} is missing from the store")
            missing += later.base - max(file.end, copied_end)
    return missing


def _summed_before(view: Store, copies: Copies, copied_end: int) -> Iterator[Part]:
    """Yield the parts of the copied log before ``copied_end``, with their SHA-256 sums."""
    for file in view.log.files:
        end = min(copied_end - file.base, file.size)
        for first in range(0, max(end, 0), PART):
            yield from summed(view, copies, [(file, first, min(first + PART, end))])


def _copied_log(view: Store, copies: Copies, copied_end: int, end: int, start: int,
                note: Callable[[int], None] | None,
                meanwhile: Callable[[Callable[[Sequence[str]], None]], None]) -> tuple[
                    list[Part], list[DamagedRange], int, int]:
    """Copy the log from ``copied_end`` to ``end``. While the next part is copied, earlier parts are
    hashed, fsynced and checked. ``note`` is called with each physical offset up to which the copy
    is fsynced. ``meanwhile`` is called in a further thread, with a function that fsyncs files.

    Return the copied parts with their SHA-256 sums, and for the range ``[start, end)``: damaged
    byte ranges, number of intact messages, newest store time.
    """
    def force(name: str, reached: int) -> None:
        copies.force(name)
        if note is not None:
            note(reached)

    copied = Reached()
    with (ThreadPoolExecutor(_SUMMING, "rmqctl-sums") as summing, ThreadPoolExecutor(
            1, "rmqctl-sync") as forcing, ThreadPoolExecutor(
            1, "rmqctl-check") as checking, ThreadPoolExecutor(1, "rmqctl-entries") as copying):
        try:
            check = checking.submit(damage_in, view, start, end, copied)
            sums: list[Future[list[Part]]] = []
            forced: list[Future[None]] = []
            unsummed = []
            rest = copying.submit(meanwhile, lambda names: forced.append(
                forcing.submit(copies.flush, names)))
            for part in copy_log(view, copies, copied_end, end):
                file, _, stop = part
                unsummed.append(part)
                if len(unsummed) == AT_ONCE:
                    if len(sums) >= _AHEAD:
                        sums[-_AHEAD].result()
                    sums.append(summing.submit(summed, view, copies, unsummed))
                    unsummed = []
                forced.append(forcing.submit(force, relative(view, file), file.base + stop))
                copied.set(file.base + stop)
            copied.set(end)
            if unsummed:
                sums.append(summing.submit(summed, view, copies, unsummed))
            rest.result()
        finally:
            copied.set(end)
        for future in forced:
            future.result()
        damaged, count, newest = check.result()
        return [part for future in sums for part in future.result()], damaged, count, newest


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _reached(view: Store, backup: str, begun: Begun, end: int) -> int:
    """Return the physical offset up to which an unfinished first run has copied the log. If the
    copy does not match the store's log, return the start of the log. Raises: StoreIOError.
    """
    copied_end, first = min(begun.reached, end), view.log.min_offset
    files = [file for file in view.log.files if file.base < copied_end]
    if copied_end <= first or not all(
            os.path.exists(os.path.join(backup, relative(view, file))) for file in files):
        return first
    file = files[-1]
    at, length = copied_end - file.base, min(_COMPARED, copied_end - file.base)
    with file.open() as ours, FileSource(os.path.join(backup, relative(view, file))) as theirs:
        same = at <= file.size and (
            ours.read(at - length, length) == theirs.read(at - length, length))
    return copied_end if same else first


def _remove_logs(view: Store, copies: Copies, copied_end: int) -> None:
    """Remove copied log files before ``copied_end`` that the store's log no longer has. The store
    may have deleted or replaced them since an unfinished first run copied them.
    """
    kept = {relative(view, file) for file in view.log.files if file.base < copied_end}
    for name in _names(copies.path(LOG)):
        if name.isdigit() and os.path.join(LOG, name) not in kept:
            copies.remove(os.path.join(LOG, name))


def _copied_end(view: Store, backup: str, before: Sequence[Point], end: int) -> int:
    """Return the physical offset after the last complete record in the backup's log. The log is
    copied again from this offset on, because the store may have rewritten the bytes there.

    Raises: RefusedError if the backup belongs to another store, or if the store's log was
    truncated.
    """
    if not before:
        return view.log.min_offset
    copied_end = before[-1].whole_end
    if end < copied_end:
        raise RefusedError(f"{view.root}: its log ends at {end:,}, but the log in {backup} ends at "
                           f"{copied_end:,}. The end of the log is damaged (`rmqctl doctor STORE "
                           "--backup DEST`) or was truncated, or this is another store. For a "
                           "truncated log or another store, choose a new folder")
    file = view.log.file_of(copied_end - 1) if copied_end else None
    if file is None:
        return copied_end
    length = min(_COMPARED, copied_end - file.base)
    copy = os.path.join(backup, relative(view, file))
    at = copied_end - file.base - length
    try:
        with file.open() as ours, FileSource(copy) as theirs:
            copied = theirs.read(at, length)
            same = ours.read(at, length) == copied
    except StoreIOError:
        return copied_end  # the store's bytes cannot be read, but they are already copied
    if not same and not (_was_repaired(view, before[-1]) and goes_on(
            view, copied, file.base + at)):
        raise RefusedError(OTHER_LOG.format(store=view.root, backup=backup,
                                            place=f"{copied_end:,}"))
    return copied_end


def goes_on(view: Store, theirs: bytes, at: int) -> bool:
    """Return whether the log still contains the copied bytes ``theirs`` at the physical offset
    ``at``.

    Damage and fillers do not count as differences: a repair in place causes them. Different
    messages mean that the log was truncated and has grown again.
    """
    batches = [*view.log.walk(at, at + len(theirs))]
    for batch in batches:
        for row in (~replaced(batch) & batch.crc_ok()).nonzero()[0].tolist():
            first = int(batch.offset[row]) - at
            raw = batch.bytes_at(row)
            copied = theirs[first:first + len(raw)]
            if raw == copied:
                continue
            try:
                mine, other = decode(raw), decode(copied)
            except FormatError:
                continue  # the record was already damaged when it was copied
            if other.crc_ok and (mine.body != other.body or (
                    mine.store_timestamp != other.store_timestamp
                    and mine.properties != other.properties)):
                return False
    return bool(batches)


def _was_repaired(view: Store, last: Point) -> bool:
    return tuple(sorted(_names(view.path(".rmqctl", "repairs")))) != last.repairs


def _keep_small(backup: str, staged: str, last: Point | None) -> dict[str, str]:
    """Store the configuration and the checkpoint with a new point; return their SHA-256 by path. A
    file that equals its version in the point ``last`` becomes a hard link to that version.
    """
    kept = {}
    for name in _small_files(backup):
        path = os.path.join(backup, name)
        with FileSource(path) as source:
            data = source.read(0, source.size)
        target = os.path.join(staged, name)
        make_folders(os.path.dirname(target), durable=False)
        kept[name] = hashlib.sha256(data).hexdigest()
        if last is not None and last.small.get(name) == kept[name]:
            before = os.path.join(points.folder_of(backup, last), name)
            with suppress(OSError):  # hard links are not supported, or the file has too many
                if Path(before).read_bytes() == data:
                    os.link(before, target)
                    continue
        _written(target, data)
    return kept


def _small_files(backup: str) -> list[str]:
    paths = []
    for top in _SMALL:
        path = os.path.join(backup, top)
        if os.path.isfile(path):
            paths.append(top)
        for folder, _folders, names in os.walk(path):
            paths += [os.path.relpath(os.path.join(folder, name), backup) for name in names
                      if not name.endswith(".part")]
    return sorted(paths)


def _written(path: str, data: bytes) -> None:
    from rmqctl.files.durable import new_whole_file

    new_whole_file(path, data)
