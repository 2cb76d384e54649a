"""Prediction of the files that a broker's cleaner deletes after startup, and of whether the broker
accepts messages.

spec: recovery.md §12. The cleaner runs a minute after startup for the first time, then every 10
seconds. Two thresholds of disk usage apply: above one, the cleaner deletes the oldest log files of
any age; above the other, the broker rejects messages.

Files older than ``fileReservedTime`` are deleted in the hour of ``deleteWhen``. These files are
deleted at once if disk usage is above ``diskMaxUsedSpaceRatio``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import NamedTuple

from rmqctl import vfs
from rmqctl.broker.versions import BrokerVersion
from rmqctl.checks.losses import MESSAGES, Loss
from rmqctl.checks.preflight.around import StartEnvironment
from rmqctl.checks.preflight.effects import DiskUse
from rmqctl.checks.preflight.lost import intact
from rmqctl.checks.preflight.types import Prediction
from rmqctl.errors import StoreIOError
from rmqctl.files.disk_usage import BLOCK
from rmqctl.formats.local.delay import java_int
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.phrases import Phrase, counted
from rmqctl.store.files import StoreFile
from rmqctl.store.queue.search import first_from
from rmqctl.store.store import Store

HOUR = 3_600_000


class Rules(NamedTuple):
    """Limits of a broker's cleaner; ratios are shares of disk usage.

    ``forces``: whether the cleaner deletes files before they expire if the disk is full.
    ``batch``: maximum number of such files that the cleaner deletes in a run.
    """

    reserved_hours: int
    delete_when: str
    expire_ratio: float
    clean_ratio: float
    refuse_ratio: float
    forces: bool
    batch: int
    both_disks: bool
    """True if the disk of the queues is checked only while the usage of the log's disk is at most
    ``expire_ratio`` (4.x).
    """

    @classmethod
    def of(cls, store: Store, version: BrokerVersion) -> Rules:
        """Return the limits that ``broker.conf`` sets, else a broker's defaults (the same in 4.9.3
        and 5.3.3).
        """
        given = store.sizes.conf.runtime
        hours = given.get("fileReservedTime", 72)
        most = min(max(given.get("diskMaxUsedSpaceRatio", 75), 10), 95) / 100
        later = version.generation >= 5  # earlier brokers read these only from system properties
        clean = given.get("diskSpaceCleanForciblyRatio", 85) / 100 if later else 0.85
        refuse = given.get("diskSpaceWarningLevelRatio", 90) / 100 if later else 0.90
        if store.layout.is_dledger:  # DLedger's own cleaner (spec: dledger.md §3)
            hours, most = hours + 1, 0.70
        return cls(hours, given.get("deleteWhen", "04"), most, min(max(clean, 0.30), 0.85),
                   min(max(refuse, 0.35), 0.90), given.get("cleanFileForciblyEnable", True),
                   given.get("deleteFileBatchMax", 10) if later else 10, not later)

    @property
    def fails(self) -> bool:
        """Return whether every run of the cleaner fails because of deleteWhen, before it checks the
        disk.
        """
        hours, odd = _hours(self.delete_when)
        return odd is not None and not hours

    @property
    def fault(self) -> Phrase | None:
        """Return the effect of an invalid deleteWhen; None if it is a list of hours."""
        hours, odd = _hours(self.delete_when)
        if odd is None:
            return None
        if not hours:
            return Phrase("deleteWhen={value} is not an hour (04, or 04;16): the cleaner fails "
                          "each time and deletes no log file, however old it is and however full "
                          "the disk is", value=self.delete_when)
        return Phrase("deleteWhen={value} contains \"{odd}\", which is not an hour: the cleaner "
                      "fails at this value each time and deletes log files only in the hours "
                      "listed before it ({hours}), however full the disk is",
                      value=self.delete_when, odd=odd,
                      hours=", ".join(f"{hour:02}" for hour in hours))

    def judge(self, log: float, queues: float) -> tuple[bool, bool, bool]:
        """Return three booleans for these ratios:

        * whether the broker rejects messages
        * whether the cleaner deletes files of any age
        * whether the cleaner deletes files at all
        """
        log_full, queues_full = (used > self.refuse_ratio for used in (log, queues))
        force, queues_force = (used > min(self.clean_ratio, self.refuse_ratio)
                               for used in (log, queues))
        if self.both_disks:
            if log > self.expire_ratio:
                return log_full, force, True
            return queues_full, force or queues_force, queues > self.expire_ratio
        if force:
            return log_full, True, True
        if queues_force:
            return queues_full, True, True
        return False, False, max(log, queues) > self.expire_ratio


def next_deletion(delete_when: str, now: int, zone: tzinfo) -> int | None:
    """Return the time (epoch ms) at which expired files are deleted next; None: never.
    ``delete_when``: hours (``04`` or ``04;16``) in the time zone ``zone``.
    """
    hours, _ = _hours(delete_when)
    start = datetime.fromtimestamp(now // 1000, zone).replace(minute=0, second=0)
    if start.hour in hours:
        return now
    return next((int(hour.timestamp()) * 1000 for hour in (
        datetime.fromtimestamp(start.timestamp() + ahead * 3600, zone) for ahead in range(1, 26))
        if hour.hour in hours), None)


def _hours(delete_when: str) -> tuple[list[int], str | None]:
    """Return the hours in deleteWhen before the first part that is not a number, and this part
    (None: all parts are numbers).

    `UtilAll.isItTimeToDo` fails at this part; Java's split drops empty parts at the end.
    """
    hours: list[int] = []
    named = delete_when.rstrip(";")
    for part in named.split(";") if named or not delete_when else ():
        try:
            hours.append(java_int(part, 32))
        except ValueError:
            return hours, part
    return hours, None


class FileSystem:
    """A file system: its used and usable bytes, from which a broker computes its disk usage."""

    def __init__(self, folder: str, used_ratio: float | None) -> None:
        about = vfs.statvfs(folder)
        used = (about.f_blocks - about.f_bfree) * about.f_frsize
        self.entire = used + about.f_bavail * about.f_frsize
        self.used = used if used_ratio is None else math.floor(used_ratio * self.entire)

    @property
    def ratio(self) -> float:
        """Return the disk usage (0 to 1), rounded up to hundredths."""
        return -(-max(self.used, 0) * 100 // self.entire) / 100 if self.entire else 0.0


def file_systems(store: Store, used_ratio: float | None) -> tuple[FileSystem, FileSystem]:
    """Return the file systems of the log and of the queues. If the log has several folders, the
    least full file system is returned.

    ``used_ratio``: usage to assume (None: the actual usage).
    Raises: StoreIOError.
    """
    try:
        logs = [FileSystem(folder, used_ratio) for folder in store.log_folders
                if vfs.isdir(folder)] or [FileSystem(store.root, used_ratio)]
        queues = FileSystem(store.root, used_ratio)
    except OSError as error:
        raise StoreIOError.from_oserror(error, store.root, "determine the free space of") from None
    return min(logs, key=lambda system: system.ratio), queues


def judge_disk(predicted: Prediction, store: Store, version: BrokerVersion,
               around: StartEnvironment) -> None:
    """Add the effects of the cleaner to a prediction.
    Raises: StoreIOError.
    """
    disk, predicted.broker.refuses_writes = disk_use(store, Rules.of(store, version), _files(
        predicted, store), around, predicted.log.messages)
    predicted.broker.disk = disk
    # Deletion before the time is a loss; the rest is only reported.
    deleted, ratio = disk.deletes_files, disk.used_ratio
    if deleted > disk.expires_files:
        early = None if disk.deletes_messages is None or disk.expires_messages is None else (
            disk.deletes_messages - disk.expires_messages)
        predicted.other_losses.append(Loss(MESSAGES, early, Phrase(
            "disk {used:.0%} full: the cleaner deletes {files} from 1 minute after startup",
            used=ratio, files=counted(deleted, "log file")), "commitlog"))
        predicted.incurable += 1
    if disk.used_ratio is not None and disk.used_ratio > disk.clean_ratio:
        predicted.notes.append(Phrase(
            "disk {used:.0%} full: over {clean:.0%} the broker deletes the oldest log files "
            "whatever their age, over {refuse:.0%} it rejects messages", used=disk.used_ratio,
            clean=disk.clean_ratio, refuse=disk.refuse_ratio))
    if (old := expiry(disk)) is not None:
        predicted.notes.append(old)
    if (fault := Rules.of(store, version).fault) is not None:
        predicted.notes.append(fault)


def disk_use(store: Store, rules: Rules, files: Sequence[StoreFile], around: StartEnvironment,
             messages: int | None = None) -> tuple[DiskUse, bool]:
    """Return (the files that the cleaner deletes, whether the broker rejects messages).

    ``files``: the deletable log files.
    ``messages``: number of messages in the log (None: unknown).
    Raises: StoreIOError.
    """
    # Expired files, and files deleted because the disk is full.
    expired = _expired(files, around.now - rules.reserved_hours * HOUR)
    if around.no_disk:
        deleted, ratio, refuses, at_once = 0, None, False, False
    else:
        deleted, ratio, refuses, at_once = _first_minutes(store, rules, files, expired,
                                                          around.disk_used)
    if rules.fails:
        expired = 0
    if rules.fault is not None:  # it fails before it checks the disk, but only in some hours
        deleted, at_once = 0, False
    # The number of their messages.
    by_age = _messages_of(store, files[:expired], messages)
    forced = _messages_of(store, files[:deleted], messages)
    return DiskUse(
        ratio, rules.clean_ratio, rules.refuse_ratio, deleted, forced, expired, by_age,
        rules.reserved_hours, rules.delete_when, at_once, around.no_disk or None), refuses


def expiry(disk: DiskUse | None, *, hint: bool = True) -> Phrase | None:
    """Return a note on the log files that the broker deletes because of their age, and on the time
    of deletion. None if no file is old enough. ``hint``: whether to name `rmqctl retention`.
    """
    if disk is None or not disk.expires_files:
        return None
    files = counted(disk.expires_files, "log file")
    detail = files if disk.expires_messages is None else Phrase(
        "{files} ({messages})", files=files, messages=counted(disk.expires_messages, "message"))
    when = Phrase("1 minute after startup, because the disk is fuller than "
                  "diskMaxUsedSpaceRatio") if disk.expires_at_once else Phrase(
        "in the hour of deleteWhen={hour}", hour=disk.delete_when)
    expires = Phrase(
        "{files} older than fileReservedTime={hours} h: the broker deletes them {when}",
        files=detail, hours=disk.reserved_hours, when=when)
    return Phrase("{what} (`rmqctl retention STORE` counts the unread messages in them)",
                  what=expires) if hint else expires


def _files(predicted: Prediction, store: Store) -> list[StoreFile]:
    """Return the log files that the cleaner may delete after the start: all remaining files except
    the last one.
    """
    doomed = {os.path.join(store.root, name) for name in predicted.broker.doomed}
    end = predicted.log.truncate_to
    return [file for file in predicted.log.loaded if file.path not in doomed
            and (end is None or file.base <= end)][:-1]


def _expired(files: Sequence[StoreFile], before: int) -> int:
    """Count the files, oldest first, up to the first file written after ``before`` (ms)."""
    for number, file in enumerate(files):
        try:
            if vfs.stat(file.path).st_mtime_ns // 1_000_000 > before:
                return number
        except OSError as error:
            raise StoreIOError.from_oserror(error, file.path, "look at") from None
    return len(files)


def _first_minutes(store: Store, rules: Rules, files: Sequence[StoreFile], expired: int,
                   used_ratio: float | None) -> tuple[int, float, bool, bool]:
    """Simulate runs of the cleaner until a run deletes no file. Return four values:

    * the number of files deleted at any age
    * the initial disk usage (0 to 1)
    * whether the broker rejects messages
    * whether expired files are deleted at once
    """
    least, queues = file_systems(store, used_ratio)
    first, gone, forced = max(least.ratio, queues.ratio), 0, 0
    refuses, _, at_once = rules.judge(least.ratio, queues.ratio)
    while gone < len(files):
        _, force, cleans = rules.judge(least.ratio, queues.ratio)
        if not cleans:
            break
        force = force and rules.forces
        batch = files[gone:gone + rules.batch] if force else files[gone:max(expired, gone)]
        if not batch:
            break
        gone += len(batch)
        forced = gone if force else forced
        freed = sum(allocated(file) for file in batch)
        least.used, queues.used = least.used - freed, queues.used - freed
    return forced, first, refuses, at_once


def allocated(file: StoreFile) -> int:
    """Return the number of bytes that a file occupies on the disk; 0 if it cannot be determined."""
    try:
        return min(vfs.stat(file.path).st_blocks * BLOCK, file.size)
    except OSError:
        return 0


def _messages_of(store: Store, files: Sequence[StoreFile], messages: int | None) -> int | None:
    """Return the number of messages that begin in these files.

    ``messages``: number of messages in the log (None: unknown). The files are read only if the
    queues have a different number of entries.
    """
    if not files:
        return 0

    def rows(low: int, high: int) -> int:
        return sum(first_from(queue, queue.first_index, queue.disk_end, high)
                   - first_from(queue, queue.first_index, queue.disk_end, low)
                   for (topic, _), queue in store.queues.by_key.items()
                   if not topic.startswith(LMQ_PREFIX))  # these are in a topic of their own, too

    low, high = files[0].base, files[-1].end
    if store.layout.reads("consumequeue") and messages in (
            None, rows(store.log.min_offset, store.log.end)) and (count := rows(low, high)):
        return count
    return sum(int(intact(batch).sum()) for batch in store.log.walk(low, high) if len(batch))
