"""Restore a store from a backup: at a restore point, a time or a physical offset."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
    replaced_after,
    require_points,
)
from rmqctl.errors import RefusedError, RmqctlError, UnsupportedError, UsageError
from rmqctl.files.durable import STAGING, make_folders, publish_folder, remove_folder
from rmqctl.parse_values import time_text
from rmqctl.repair.plan import Plan
from rmqctl.repair.truncate.compaction import cut_compaction
from rmqctl.repair.truncate.truncate import AHEAD, WRITES, border, truncate
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.source import FileSource
from rmqctl.store.log.end import used_size
from rmqctl.store.queue.compaction import served_queues
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.repair.scratch import Scratch

_PART = ".restoring"
_LOGS = ("commitlog", "data")
IDENTITY = ("brokerIdentity", "brokerIdentity-temp")
"""Files with the identity of the copied broker: a controller assigns a new broker its own
identity.
"""
_NOTHING: Mapping[str, Any] = MappingProxyType({})
SMALL = ("config", "checkpoint")
"""Structures restored from the chosen point; all other structures are from the newest point."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore: the log up to `end`, with the configuration and the offsets of `point`.
    `lowered`: number of consumer offsets that were lowered to the end of their queue. `faults`:
    number of damaged parts of the backup that were restored nevertheless.
    """

    point: Point
    end: int
    files: int
    lowered: int
    notes: tuple[str, ...]
    faults: int = 0


def point_at(points: Sequence[Point], until: int | None) -> Point:
    """Return the newest point that is not later than ``until`` (epoch ms); the oldest point if all
    are later.
    """
    older = [point for point in points if until is None or point.time <= until]
    return older[-1] if older else points[0]


def restore(backup: str, target: str, *, until: int | None = None, offset: int | None = None,
            point: str | None = None, seed_slave: bool = False,
            pace: Pace = lambda _bytes: None) -> Restored:
    """Create the store `target` from a backup: at its newest restore point, at `point`, with the
    messages stored up to the time `until` (epoch ms), or with those before a physical `offset`.

    `target` gets its name when it is complete. `seed_slave`: restore without the broker's identity,
    and only if the log equals the master's. Raises: RefusedError unless `target` does not exist or
    is empty, NotAStoreError if `backup` is not a backup, UsageError for an unknown point,
    StoreIOError.
    """
    if sum(given is not None for given in (until, offset, point)) > 1:
        raise UsageError("pass only one of a time, an offset and a restore point")
    refuse_inside(backup, target, "restore into another folder")
    part = refuse_taken(target)
    with in_use(backup), removed_unless_done(part):
        return _restored(backup, target, part, until, offset, point, pace, seed_slave=seed_slave)


@contextmanager
def removed_unless_done(part: str) -> Iterator[None]:
    """Remove the partly restored store if an error occurs."""
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
    # The configuration of a point, and where the log is to end.
    chosen = point_at(points, until) if not point else next(
        (candidate for candidate in points if candidate.id == point), None)
    if chosen is None:
        raise UsageError(f"{backup}: no restore point {point}: it has {points[0].id} to "
                         f"{points[-1].id}")
    newest = points[-1]
    with Store.open(backup) as store, store.up_to(newest.log_end) as whole:
        end = end_of(whole, chosen, newest) if point else newest.log_end
        if until is not None:
            end = end_at(whole, until, newest.log_end)
        elif offset is not None:
            end = _border(whole, offset)
            chosen = next((candidate for candidate in points if candidate.log_end >= end), newest)
        # What the copied bytes should be, and are not.
        faults = [fault for fault in check(backup, points, pace) if _concerns(fault, chosen, end)]
        notes = [*map(str, bad), *(f"{fault.file}: {fault.reason}" for fault in faults),
                 *notes_of(chosen, until, end), *without_messages(whole, until, end)]
        # What a run that was killed had copied is no restore point yet.
        is_cut = end < newest.log_end or _reaches_beyond(store, end)
        if is_cut and not _is_derived(store):
            raise RefusedError(f"{backup}: a DLedger log, or consume queues in files and "
                               "RocksDB, can only be restored at the newest restore point")
        if seed_slave:
            refuse_other_log(backup, newest, is_dledger=store.layout.is_dledger)
        # All is put together beside its place.
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
            generation, queues = view.generation, view.known_queues.keys()
        _small_of(backup, chosen, copies)
        copies.sync()
        is_plain = not any(file.head for file in whole.log.files)
        is_derived = _is_derived(store)
    # Of a run that was killed, or goes on, one may be half written. What was damaged in the store
    # may be damaged in the copy; of a damaged log, or a topic that was made again, entries may be
    # all that tells.
    entries = is_begun(backup) or newest.own or not (any(
        other.missing or other.again or any(is_of_log(hole.file) for hole in other.damaged)
        for other in points) or faults or not is_derived) or any(
        later.again and (later.log_end > end or later.id > chosen.id) for later in points[1:])
    lowered = complete(part, target, end, generation, notes, chosen, is_plain=is_plain,
                       is_cut=is_cut, entries=entries, queues=queues)
    return Restored(chosen, end, len({file.path for file, _, _ in parts}), lowered, tuple(notes),
                    len(faults))


def _concerns(fault: ChangedRange, chosen: Point, end: int) -> bool:
    """Return whether a fault of the backup affects what is restored."""
    if is_of_log(fault.file):
        return int(os.path.basename(fault.file)) + fault.start < end
    return fault.point == chosen.id


def is_of_log(file: str) -> bool:
    """Return whether a file of a backup is a log file, from its name."""
    folder, name = os.path.split(file)
    return os.path.basename(folder) in _LOGS and name.isdigit()


def complete(part: str, target: str, end: int, generation: int, notes: list[str],
             chosen: Point, *, is_plain: bool, is_cut: bool, entries: bool = False,
             queues: Collection[QueueKey] | None = None,
             bare: Mapping[str, Any] | None = None, has_entries: bool = False) -> int:
    """Turn the copy in the folder `part` into a store whose log ends at `end`, and rename it to
    `target`. Return the number of lowered consumer offsets. `queues`: the queues that the store had
    (None: only the queues in the copy are known). `bare`: values of `Settings` for a copy without
    an index and, unless it `has_entries`, without consume queues, which are then rebuilt. Raises:
    StoreIOError.
    """
    if bare is not None:
        _carried_out(part, partial(_with_entries, given=bare, only=frozenset(
            {"index"} if has_entries else {"consumequeue", "index"})))
    # What the moment does not cover by itself: timers, epochs, compaction logs, queues in RocksDB,
    # offsets.
    if is_cut:
        notes += [note for note in _carried_out(part, lambda store, scratch: truncate(
            store, end, generation, scratch=scratch).plan) if AHEAD not in note]
    notes += _carried_out(part, lambda store, _scratch: _with_compaction(store, queues))
    # Queues that a later point replaced follow from the log.
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
    publish_folder(part, target, "name")
    return lowered + ahead


def refuse_other_log(backup: str, newest: Point, *, is_dledger: bool) -> None:
    """Raise RefusedError if no slave can be created from the backup."""
    if newest.own:
        raise RefusedError(f"{backup}: keeps messages as they were before a repair of the store, "
                           "so its log is not the master's. Back up the master into a new folder")
    if is_dledger:
        raise RefusedError(f"{backup}: the log is DLedger's; its members replicate it "
                           "themselves, so there are no slaves")


def refuse_taken(target: str) -> str:
    """Return the folder next to the target in which the store is prepared. Raises: RefusedError if
    the target or this folder is in use.
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
    """Return whether queues and index can be rebuilt from the log, so that the log can be
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
    """Return the end of a point's log, or of its last complete record if the record after it was
    incomplete at that time and has been overwritten since.
    """
    if point.whole_end < point.log_end < newest.log_end and not store.layout.is_dledger:
        try:
            border(store, point.log_end)
        except RefusedError:
            return point.whole_end
    return point.log_end


def end_at(store: Store, until: int, end: int) -> int:
    """Return the end of the part of the log that contains the messages stored up to a time."""
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
    """Return a note if the time ``until`` is before the first message."""
    if until is None or end > store.log.min_offset:
        return []
    first = next((batch for batch in store.log.walk() if len(batch)), None)
    oldest = "" if first is None else (
        f" (the oldest one: {time_text(int(first.column('store_timestamp')[0]))})")
    return [f"no message was stored up to {time_text(until)}{oldest}: the store is empty"]


def _border(store: Store, offset: int) -> int:
    """Return the offset. Raises: RefusedError unless a record begins or ends there."""
    border(store, offset)
    return offset


def notes_of(point: Point, until: int | None, end: int) -> list[str]:
    """Return notes on how the configuration of a point differs from a log that ends at `end`."""
    notes = []
    if point.log_folders:
        notes.append(f"the log was in {len(point.log_folders)} folders and is in commitlog/ "
                     "here: set storePathCommitLog to that folder")
    if point.log_end > end or (until is not None and point.time > until):
        notes.append(f"configuration and consumer offsets are from {point.id}, which is later: "
                     "groups may skip messages that they had not read")
    elif point.log_end < end:
        notes.append(f"configuration and consumer offsets are from {point.id}, which is earlier: "
                     "messages read since then are delivered again")
    return notes


def _small_of(backup: str, point: Point, copies: Copies) -> None:
    """Copy the configuration and the checkpoint of a point. Raises: StoreIOError."""
    folder = folder_of(backup, point)
    for name in point.small:
        with FileSource(os.path.join(folder, name)) as source:
            copies.grow(source, name, 0, source.size)


def _older_files(copies: Copies, last: Point, versions: Mapping[str, str]) -> None:
    """Restore the versions that a point had of files that a later run replaced; remove files that
    did not exist at that point. Raises: StoreIOError.
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
    """Return the plan that truncates compaction logs at the end of their queues: they were copied
    after the end of the log was determined. Queues in ``queues`` without a message begin at 0.
    """
    keys = store.known_queues.keys() if queues is None else queues
    ends = {key: queue.disk_end if (queue := store.known_queue(*key)) else 0
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

    # A broker may be set to write no index.
    if only is None:
        only = frozenset({"consumequeue", "index"} if store.index_listing.files else {
            "consumequeue"})
    derived = RecoverOptions(only, given=given)
    return plan_recover(store.root, scratch, derived, silent)


def _carried_out(root: str, propose: Callable[[Store, Scratch], Plan]) -> list[str]:
    """Carry out a plan for the store that is being created; return the plan's notes."""
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
