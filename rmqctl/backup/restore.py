"""Restore a store from a backup: at a restore point, a time or a physical offset."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rmqctl.backup import moment
from rmqctl.backup.check import ChangedRange, check
from rmqctl.backup.copying import (
    appended_files,
    copy_index,
    copy_log,
    copy_queues,
    copy_rest,
    refuse_inside,
)
from rmqctl.backup.finishing import finish, lowered_offsets, without_deleted
from rmqctl.backup.growing import Copies, Pace
from rmqctl.backup.points import (
    Point,
    folder_of,
    in_use,
    is_begun,
    is_of_log,
    replaced_after,
    require_points,
)
from rmqctl.errors import RefusedError, RmqctlError, UnsupportedError, UsageError
from rmqctl.files.durable import STAGING, make_folders, publish_folder, remove_folder
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import time_text
from rmqctl.phrases import counted
from rmqctl.repair.plan import Plan
from rmqctl.repair.truncate.compaction import cut_compaction
from rmqctl.repair.truncate.truncate import AHEAD, WRITES, border, truncate
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.source import FileSource
from rmqctl.store.log.end import used_size
from rmqctl.store.queue.compaction import served_queues
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.backup.later_progress import SentBack
    from rmqctl.repair.scratch import Scratch

_PART = ".restoring"
IDENTITY = ("brokerIdentity", "brokerIdentity-temp")
"""Files with the identity of the broker whose store was copied; a controller assigns each new
broker its own identity.
"""
_NOTHING: Mapping[str, Any] = MappingProxyType({})
SMALL = ("config", "checkpoint")
"""Structures that are restored as of the chosen point; all others are restored as of the newest
point.
"""


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore.

    * ``point``: the point whose configuration and consumer offsets were restored
    * ``end``: end of the restored log
    * ``files``: number of restored log files
    * ``lowered``: number of consumer offsets that were lowered to the end of their queue
    * ``faults``: number of damaged parts of the backup, which were restored as they are
    """

    point: Point
    end: int
    files: int
    lowered: int
    notes: tuple[str, ...]
    faults: int = 0


def point_at(points: Sequence[Point], until: int | None) -> Point:
    """Return the newest point at or before ``until`` (epoch ms); the oldest point if all points are
    later.
    """
    older = [point for point in points if until is None or point.time <= until]
    return older[-1] if older else points[0]


def restore(backup: str, target: str, *, until: int | None = None, offset: int | None = None,
            point: str | None = None, seed_slave: bool = False,
            pace: Pace = lambda _bytes: None) -> Restored:
    """Create the store ``target`` from a backup. By default the newest restore point is restored.

    * ``point``: the restore point to restore
    * ``until``: restore the messages stored up to this time (epoch ms)
    * ``offset``: restore the messages before this physical offset
    * ``seed_slave``: omit the broker's identity; the log must equal the master's

    The store gets the name ``target`` only when it is complete.

    Raises: RefusedError if ``target`` exists and is not empty, NotAStoreError if ``backup`` is not
    a backup, UsageError for an unknown point, StoreIOError.
    """
    if sum(given is not None for given in (until, offset, point)) > 1:
        raise UsageError("pass only one of a time, an offset and a restore point")
    refuse_inside(backup, target, "restore into another folder")
    part = refuse_taken(target)
    with in_use(backup), removed_unless_done(part):
        return _restored(backup, target, part, until, offset, point, pace, seed_slave=seed_slave)


@contextmanager
def removed_unless_done(part: str) -> Iterator[None]:
    """Remove the partly restored store in the folder ``part`` if an error occurs."""
    try:
        yield
    except BaseException:
        with suppress(OSError, RmqctlError):
            if os.path.isdir(part):
                remove_folder(part)
        raise


def _restored(backup: str, target: str, part: str, until: int | None, offset: int | None,
              point: str | None, pace: Pace, *, seed_slave: bool) -> Restored:
    bad: list[RmqctlError] = []
    points = require_points(backup, bad)
    # Choose the point of the configuration, and the end of the log.
    chosen = point_at(points, until) if not point else next(
        (candidate for candidate in points if candidate.id == point), None)
    if chosen is None:
        raise UsageError(f"{backup}: no restore point {point}; the backup has points "
                         f"{points[0].id} to {points[-1].id}")
    newest = points[-1]
    with Store.open(backup) as store, store.up_to(newest.log_end) as whole:
        end = end_of(whole, chosen, newest) if point else newest.log_end
        if until is not None:
            end = end_at(whole, until, newest.log_end)
        elif offset is not None:
            end = _border(whole, offset)
            chosen = next((candidate for candidate in points if candidate.log_end >= end), newest)
        progress = chosen if offset is None else progress_at(points, end)
        # Parts of the backup that do not match their SHA-256.
        faults = [fault for fault in check(backup, points, pace)
                  if _concerns(fault, {chosen.id, progress.id}, end)]
        notes = [*map(str, bad), *(f"{fault.file}: {fault.reason}" for fault in faults),
                 *notes_of(chosen, progress, until, end), *damage_of(points, end),
                 *without_messages(whole, until, end)]
        # The log may be longer than the newest point's: an unfinished run copied more of it.
        is_cut = end < newest.log_end or _reaches_beyond(store, end)
        if is_cut and not _is_derived(store):
            raise RefusedError(f"{backup}: a DLedger log, or consume queues in both files "
                               "and RocksDB, can only be restored to the newest restore point")
        if seed_slave:
            refuse_other_log(backup, newest, is_dledger=store.layout.is_dledger)
        # The store is prepared in a folder next to the target.
        make_folders(part)
        copies = Copies(part, pace)
        with moment.at(store, end) as view:
            parts = list(copy_log(view, copies, view.log.min_offset, end))
            copy_queues(view, copies, compare=False)
            copy_index(view, copies, compare=False)
            copy_rest(view, copies, without=(*SMALL, *IDENTITY) if seed_slave else SMALL)
            last = chosen if chosen.log_end >= end else next(
                (candidate for candidate in points if candidate.log_end >= end), newest)
            _older_files(copies, last, replaced_after(backup, points[points.index(last):]))
            generation, queues = view.generation, view.queues.readable.keys()
        _small_of(backup, chosen, progress, copies)
        copies.sync()
        is_plain = not any(file.head for file in whole.log.files)
        retries = retries_since(whole, end, progress)
        is_derived = _is_derived(store)
    # Rebuild the consume queues from the log if an unfinished run may have written only a part of
    # an entry. Keep the copied entries if the log may not determine them: after damage, or for a
    # topic that was created again. Queues that a later point replaced are always rebuilt.
    entries = is_begun(backup) or newest.own or not (any(
        other.missing or other.again or any(is_of_log(hole.file) for hole in other.damaged)
        for other in points) or faults or not is_derived) or any(
        later.again and (later.log_end > end or later.id > chosen.id) for later in points[1:])
    lowered = complete(part, target, end, generation, notes, chosen, is_plain=is_plain,
                       is_cut=is_cut, entries=entries, queues=queues,
                       retries=retries)
    return Restored(chosen, end, len({file.path for file, _, _ in parts}), lowered, tuple(notes),
                    len(faults))


def _concerns(fault: ChangedRange, points: Collection[str], end: int) -> bool:
    """Return whether a fault affects a part of the backup that is restored. ``points``: the ids of
    the points whose small files are restored.
    """
    if is_of_log(fault.file):
        return int(os.path.basename(fault.file)) + fault.start < end
    return fault.point in points


def complete(part: str, target: str, end: int, generation: int, notes: list[str],
             chosen: Point, *, is_plain: bool, is_cut: bool, entries: bool = False,
             queues: Collection[QueueKey] | None = None,
             bare: Mapping[str, Any] | None = None, has_entries: bool = False,
             retries: Sequence[SentBack] | None = None) -> int:
    """Turn the copy in the folder ``part`` into a store whose log ends at ``end``, and rename the
    folder to ``target``. Return the number of lowered consumer offsets. Raises: StoreIOError.

    * ``queues``: the queues that the store had (None: use the queues in the copy)
    * ``bare``: values of `Settings` for a copy without an index. The index is rebuilt; so are the
      consume queues, unless the copy has them (``has_entries``).
    * ``retries``: if the progress is later than the log, the messages that were sent back since
    """
    if bare is not None:
        _carried_out(part, partial(_with_entries, given=bare, only=frozenset(
            {"index"} if has_entries else {"consumequeue", "index"})))
    # `moment.at` does not truncate timers, epochs, compaction logs, queues in RocksDB and offsets.
    if is_cut:
        notes += [note for note in _carried_out(part, lambda store, scratch: truncate(
            store, end, generation, scratch=scratch, of_copy=True).plan) if AHEAD not in note]
    notes += _carried_out(part, lambda store, _scratch: _with_compaction(store, queues))
    # Rebuild the queues (and the index) from the log.
    if entries:
        _carried_out(part, _with_entries)
    notes += without_deleted(part, chosen, end)
    lowered = finish(part, end, generation, is_plain)
    ahead = 0

    def lowering(store: Store, scratch: Scratch) -> Plan:
        nonlocal ahead
        plan, ahead = lowered_offsets(store, scratch)
        return plan

    _carried_out(part, lowering)
    if retries is not None:
        from rmqctl.backup.later_progress import continue_from_log

        notes += continue_from_log(part, retries)
    publish_folder(part, target, "name")
    return lowered + ahead


def retries_since(whole: Store, end: int, progress: Point) -> list[SentBack] | None:
    """Return the messages that were sent back after ``end``, before a point; None if this point's
    log does not end after ``end``. ``whole``: the store with the log of the point. Raises:
    StoreIOError.
    """
    if progress.log_end <= end:
        return None
    from rmqctl.backup.later_progress import sent_back

    return sent_back(whole, end, progress.log_end)


def refuse_other_log(backup: str, newest: Point, *, is_dledger: bool) -> None:
    """Raise RefusedError if a slave cannot be created from the backup."""
    if newest.own:
        raise RefusedError(f"{backup}: keeps messages as they were before a repair of the store, "
                           "so its log is not the master's. Back up the master into a new folder")
    if is_dledger:
        raise RefusedError(f"{backup}: the log is DLedger's; its members replicate it "
                           "themselves, so there are no slaves")


def refuse_taken(target: str) -> str:
    """Return the path of the folder, next to the target, in which the store is prepared.

    Raises: RefusedError if the target cannot be replaced, for example because it is not empty, or
    if the folder already exists.
    """
    if os.path.lexists(target) and (os.path.islink(target) or not os.path.isdir(target)):
        raise RefusedError(f"{target}: not a folder")
    if os.path.isdir(target) and os.listdir(target):
        raise RefusedError(f"{target}: not empty. Restore into a new folder; nothing is "
                           "overwritten")
    if os.path.ismount(target):
        raise RefusedError(f"{target}: is a mount point and cannot be replaced. Restore into a "
                           "folder inside it")
    part = f"{os.path.normpath(target)}{_PART}"
    if os.path.lexists(part):
        raise RefusedError(f"{part}: exists already: a restore was killed or is still running. "
                           "Remove it, or restore into another folder")
    return part


def _is_derived(store: Store) -> bool:
    """Return whether queues and index can be rebuilt from the log; only then can the log be
    truncated.
    """
    try:
        store.layout.require_writable(store.root, WRITES, made_anew=True)
    except UnsupportedError:
        return False
    return True


def _reaches_beyond(store: Store, end: int) -> bool:
    """Return whether the log has nonzero bytes after `end`."""
    return any(file.end > end and file.base + used_size(store.log.source(number)) > end
               for number, file in enumerate(store.log.files))


def end_of(store: Store, point: Point, newest: Point) -> int:
    """Return the end of a point's log. If the log ended with an incomplete record that was later
    overwritten, return the end of the last complete record.
    """
    if point.whole_end < point.log_end < newest.log_end and not store.layout.is_dledger:
        try:
            border(store, point.log_end)
        except RefusedError:
            return point.whole_end
    return point.log_end


def end_at(store: Store, until: int, end: int) -> int:
    """Return the physical offset of the first message stored after the time ``until``. If there is
    none, return ``end``, the end of the log.
    """
    log = store.log
    for file in reversed(log.files):
        offset = None
        for batch in log.walk(file.base, min(file.end, end)):
            later = (batch.column("store_timestamp") > until).nonzero()[0]
            if len(later):
                offset = int(batch.offset[int(later[0])])
                break
        if offset is None:
            return end
        if offset > file.base or file is log.files[0]:
            return offset
        end = offset
    return end


def without_messages(store: Store, until: int | None, end: int) -> list[str]:
    """Return a note if all messages of the log were stored after the time ``until``."""
    if until is None or end > store.log.min_offset:
        return []
    first = next((batch for batch in store.log.walk() if len(batch)), None)
    oldest = "" if first is None else (
        f" (the oldest one: {time_text(int(first.column('store_timestamp')[0]))})")
    return [f"no message was stored up to {time_text(until)}{oldest}: the store is empty"]


def _border(store: Store, offset: int) -> int:
    """Return ``offset``. Raises: RefusedError if no record begins or ends at this offset."""
    border(store, offset)
    return offset


def progress_at(points: Sequence[Point], end: int) -> Point:
    """Return the newest point whose log ends at or before ``end``; the oldest point if none does.
    A later point may count messages as delivered whose copies for consumers are after ``end``.
    """
    older = [point for point in points if point.log_end <= end]
    return older[-1] if older else points[0]


def notes_of(point: Point, progress: Point, until: int | None, end: int) -> list[str]:
    """Return notes if the configuration of ``point``, or the offsets of the point ``progress``, do
    not match a log that ends at ``end``.
    """
    notes = []
    if point.log_folders:
        notes.append(f"the log was in {len(point.log_folders)} folders and is in commitlog/ "
                     "here: set storePathCommitLog to that folder")
    if progress.log_end > end or (until is not None and progress.time > until):
        notes.append(f"configuration and consumer offsets are from {progress.id}, which is later "
                     "than the restored log: groups may skip messages that they had not read")
    elif progress.log_end < end:
        what = "configuration and" if point is progress else "delayed messages' progress and"
        notes.append(f"{what} consumer offsets are from {progress.id}, which is earlier than the "
                     "restored log: messages read since then are delivered again")
    return notes


def damage_of(points: Iterable[Point], end: int) -> list[str]:
    """Return a note if the restored log contains damage that a run found when it copied the log."""
    holes = {(hole.file, hole.offset) for point in points for hole in point.damaged
             if is_of_log(hole.file) and int(os.path.basename(hole.file)) + hole.offset < end}
    if not holes:
        return []
    return [(f"the log was damaged in {counted(len(holes), 'place')} when it was copied, and so is "
             "the restored log: run `rmqctl doctor` before a broker starts on it")]


def _small_of(backup: str, point: Point, progress: Point, copies: Copies) -> None:
    """Copy the configuration and the checkpoint of a point, with the progress of consumers of the
    point ``progress``. Raises: StoreIOError.
    """
    names = {name: point for name in point.small if not moment.is_progress(name)}
    names |= {name: progress for name in progress.small if moment.is_progress(name)}
    for name, its_point in names.items():
        folder = folder_of(backup, its_point)
        with FileSource(os.path.join(folder, name)) as source:
            copies.grow(source, name, 0, source.size)


def _older_files(copies: Copies, last: Point, versions: Mapping[str, str]) -> None:
    """For files that later runs replaced, restore the versions at the point ``last``. Remove files
    that did not exist at that point. Raises: StoreIOError.
    """
    if last.appended is not None:
        for name in set(appended_files(copies.root)).difference(last.appended):
            copies.remove(name)
    for name, path in versions.items():
        if last.appended is not None and name not in last.appended:
            continue
        copies.remove(name)
        with FileSource(path) as source:
            copies.grow(source, name, 0, source.size)


def _with_compaction(store: Store, queues: Collection[QueueKey] | None) -> Plan:
    """Return the plan that truncates compaction logs at the end of their queues. A queue in
    ``queues`` that has no message ends at 0.

    The compaction logs were copied after the end of the log was determined, so they may extend
    beyond the ends of the queues.
    """
    keys = store.queues.readable.keys() if queues is None else queues
    ends = {key: queue.disk_end if (queue := store.queues.find_readable(*key)) else 0
            for key in served_queues(store) if key in keys}
    cut = cut_compaction(store, ends)
    return Plan("restore", store.root, tuple(cut.actions), tuple(cut.steps),
                notes=tuple(cut.notes))


def _with_entries(store: Store, scratch: Scratch, given: Mapping[str, Any] = _NOTHING,
                  only: frozenset[str] | None = None) -> Plan:
    from rmqctl.repair.recover import RecoverOptions, plan_recover

    @contextmanager
    def silent(_label: str, _total: int) -> Iterator[Callable[[int], None]]:
        yield lambda _bytes: None

    # A store may have no index, because a broker can be configured to write none.
    if only is None:
        only = frozenset({"consumequeue", "index"} if store.index.listing.files else {
            "consumequeue"})
    derived = RecoverOptions(only, given=given)
    return plan_recover(store.root, scratch, derived, silent)


def _carried_out(root: str, propose: Callable[[Store, Scratch], Plan]) -> list[str]:
    """Compute a plan for the store in the folder ``root`` and carry it out; return the plan's
    notes.
    """
    from rmqctl.repair.executor.executor import Repair
    from rmqctl.repair.executor.planned import planned

    def proposed(scratch: Scratch) -> Plan:
        with Store.open(root) as store:
            return propose(store, scratch)

    with Repair(root, "restore") as repair, planned(repair, proposed) as plan:
        if not plan.empty:
            repair.apply(plan)
    remove_folder(os.path.join(root, STAGING))
    return list(map(str, plan.notes))
