"""Predict which files of a store a broker's cleaner deletes, and how long the disk will have space.

The rules are those of a broker's startup (`rmqctl.checks.preflight.disk`). Expiring files and
unread messages are determined as in `expire`, and the growth rate as in `du`. Nothing is changed.
"""

from __future__ import annotations

import math
from dataclasses import field, replace
from datetime import UTC, tzinfo
from typing import Any, NamedTuple

from rmqctl.broker.conf.effective import Effective
from rmqctl.broker.release import judged
from rmqctl.broker.versions import version_of
from rmqctl.checks.preflight.around import StartEnvironment
from rmqctl.checks.preflight.disk import (
    HOUR,
    Rules,
    allocated,
    disk_use,
    file_systems,
    next_deletion,
)
from rmqctl.checks.preflight.effects import DiskUse
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.expire import (
    Expiry,
    ExpiryLimits,
    age_of,
    closed_files,
    expire,
    expire_queues,
    expire_timer,
    unread,
    unread_in_words,
    younger_than_messages,
)
from rmqctl.repair.targets import target
from rmqctl.store.config.progress import ConsumerProgress
from rmqctl.store.space import Growth, growth
from rmqctl.store.store import Store


class AgedFile(NamedTuple):
    """A file of the log.

    ``written``: its modification time (ms), from which its age is counted.
    ``expires``: time (ms) at which it expires by age; None for the file in use, which never
        expires.
    ``goes``: "age" if it has expired by age, "disk" if it is deleted because the disk is too full,
        "" if it stays.
    """

    file: str
    bytes: int
    written: int
    expires: int | None
    goes: str


@dataclass(frozen=True, slots=True)
class DiskOutlook:
    """Prediction of disk use if the log keeps growing by ``bytes_per_day``, its growth from
    ``since`` to ``until`` (store times in ms).

    ``levels_off_at``: share of the disk in use when as many bytes expire as arrive. ``reached_in``:
    hours until each named limit of disk use is reached (None: never). ``reserved_hours``: the
    largest fileReservedTime that keeps disk use below ``diskMaxUsedSpaceRatio``; 0 if no value
    does.
    """

    bytes_per_day: int
    since: int
    until: int
    levels_off_at: float
    reached_in: dict[str, float | None]
    reserved_hours: int

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Retention:
    """Actions of a broker's cleaner on a store.

    ``settings``: origin of each setting's value.
    ``next_run``: next time (ms) of deleteWhen (None: never).
    ``unread``: number of expiring messages that groups have not read, by (group, topic) and queue
        id. None if the queues cannot be read.
    ``outlook``: prediction of disk use. If it is None, ``no_outlook`` is the reason.
    """

    release: str
    rules: Rules
    settings: dict[str, str]
    disk: DiskUse
    refuses_writes: bool
    files: list[AgedFile]
    unread: dict[tuple[str, str], dict[int, int]] | None
    next_run: int | None
    outlook: DiskOutlook | None = None
    no_outlook: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def unread_messages(self) -> int | None:
        """Return the number of expiring messages that a group has not read, summed over all groups;
        None if unknown.
        """
        return None if self.unread is None else sum(
            sum(places.values()) for places in self.unread.values())

    @property
    def harmless(self) -> bool:
        return not self.refuses_writes and not self.unread_messages

    def as_dict(self) -> dict[str, Any]:
        return {
            "broker_version": self.release, "harmless": self.harmless,
            "refuses_writes": self.refuses_writes, "unread_messages": self.unread_messages,
            "unread": None if self.unread is None else [
                {"group": group, "topic": topic, "messages": sum(places.values()),
                 "queues": {str(queue_id): lost for queue_id, lost in places.items()}}
                for (group, topic), places in self.unread.items()],
            "settings": self.settings, "reserved_hours": self.rules.reserved_hours,
            "delete_when": self.rules.delete_when, "next_run": self.next_run,
            "expire_ratio": self.rules.expire_ratio,
            "forces": self.rules.forces, "disk": self.disk.as_dict(),
            "outlook": None if self.outlook is None else self.outlook.as_dict(),
            "no_outlook": self.no_outlook or None,
            "files": [file._asdict() for file in self.files], "notes": self.notes}


def rules_of(store: Store, version: str | None = None) -> tuple[str, Rules]:
    """Return (the release that is assumed for the store, the rules of this release's cleaner)."""
    release = judged(store, version).release
    return release, Rules.of(store, version_of(release))


def origin(store: Store, release: str, setting: str) -> str:
    """Return the origin of a setting's value as text."""
    return str(Effective(store.sizes.conf, release).origin(setting))


def expire_by_settings(store: Store, now: int) -> Expiry:
    """Return the plan that expires files (see `expire`) by the broker's fileReservedTime,
    regardless of disk use.
    """
    release, rules = rules_of(store)
    done = expire(store, now, ExpiryLimits(older_than=rules.reserved_hours * HOUR))
    note = (f"log files last written {rules.reserved_hours} h ago or earlier expire "
            f"({origin(store, release, 'fileReservedTime')}; release {release})")
    return replace(done, plan=replace(done.plan, notes=(note, *done.plan.notes)))


def retention(store: Store, around: StartEnvironment, version: str | None = None,
              zone: tzinfo = UTC) -> Retention:
    """Return what a broker's cleaner would do to this store. ``zone``: the broker's time zone.
    Raises: UsageError, StoreIOError.
    """
    store.layout.require(store.root, "commitlog")
    # The expiring files, by the rules of a start.
    release, rules = rules_of(store, version)
    files = closed_files(store)
    disk, refuses = disk_use(store, rules, files, around)
    gone = max(disk.deletes_files, disk.expires_files)
    answer = Retention(
        release, rules, {name: origin(store, release, name) for name in (
            "fileReservedTime", "deleteWhen", "diskMaxUsedSpaceRatio")}, disk, refuses,
        _files(store, rules, disk, len(files)), {},
        next_deletion(rules.delete_when, around.now, zone))
    if store.layout.is_dledger:
        answer.settings["fileReservedTime"] += ", and DLedger keeps files an hour longer"
        answer.settings["diskMaxUsedSpaceRatio"] = "DLedger's own limit"
    # Groups that have not read the expiring messages.
    after = store.log.files[gone].base if gone else store.log.min_offset
    if not store.layout.reads("consumequeue"):
        answer.unread = None
        answer.notes.append(f"{store.layout.unread.get('consumequeue')}: unknown which groups have "
                            "not read the expiring messages")
    elif gone:
        progress = ConsumerProgress.of(store)
        queues = expire_queues(store, store.log.min_offset, after)
        answer.unread = unread(queues, progress)
        if not progress.commits:
            answer.notes.append("config/ has no consumer offsets: unknown which groups have not "
                                "read the expiring messages")
        answer.notes += unread_in_words(queues, progress)
        answer.notes += expire_timer(store, store.log.min_offset, after,
                                     progress.timer_read).notes
    # Notes on the file times of a copied store.
    if not gone:
        answer.notes += younger_than_messages(store, around.now, rules.reserved_hours * HOUR)
    if disk.expires_files:
        answer.notes.append(
            "a log file's age counts from its last modification, a time that cp -p, rsync -a and "
            "tar keep. To keep the messages of a restored copy, `touch` its files or set a larger "
            "fileReservedTime before a broker starts on it")
    if (fault := rules.fault) is not None:
        answer.notes.insert(0, str(fault))
    # How long the disk has space.
    if around.no_disk:
        answer.no_outlook = str(around.no_disk)
    elif len(store.log_folders) > 1:
        answer.no_outlook = "the log is in several folders"
    else:
        answer.outlook = _outlook(store, rules, around, growth(store),
                                  by_time=answer.next_run is not None)
        if answer.outlook is None:
            answer.no_outlook = "the messages of the log span less than a minute"
    return answer


def _files(store: Store, rules: Rules, disk: DiskUse, closed: int) -> list[AgedFile]:
    """Return all files of the log. A file expires no earlier than the files before it."""
    files, latest = [], 0
    for number, file in enumerate(store.log.files):
        written = age_of(file).st_mtime_ns // 1_000_000
        latest = max(latest, written + rules.reserved_hours * HOUR)
        goes = "age" if number < disk.expires_files else (
            "disk" if number < disk.deletes_files else "")
        files.append(AgedFile(target(store, file.path), file.size, written,
                              latest if number < closed else None, goes))
    return files


def _outlook(store: Store, rules: Rules, around: StartEnvironment, grows: Growth, *,
             by_time: bool) -> DiskOutlook | None:
    """Return the prediction of disk use; None if the growth rate is unknown. ``by_time``: whether
    ``deleteWhen`` names a time that ever occurs.
    """
    per_day = grows.recent_per_day or grows.per_day
    if not per_day or grows.last is None:
        return None
    since = grows.first if grows.recent_per_day is None else grows.recent_from
    system = file_systems(store, around.disk_used)[0]
    # Expired files go once a day, and the file in use never does.
    beside = system.used - sum(map(allocated, store.log.files))
    slack = per_day + max(file.size for file in store.log.files)

    def used(hours: float) -> float:
        return (beside + slack + per_day * hours / 24) / system.entire

    most = used(rules.reserved_hours)
    if rules.fails:
        most = math.inf
    elif not by_time:  # expired files are deleted once the disk is fuller
        most = max(most, math.nextafter(rules.expire_ratio, 2))
    reached: dict[str, float | None] = {}
    for name, share in (("expire_ratio", rules.expire_ratio), ("clean_ratio", rules.clean_ratio),
                        ("refuse_ratio", rules.refuse_ratio), ("full", 1.0)):
        left = share * system.entire - system.used
        reached[name] = 0.0 if left < 0 else (
            round(left / per_day * 24, 1) if most > share else None)
    room = rules.expire_ratio * system.entire - beside - slack
    # The result is the value for broker.conf; DLedger keeps an hour more.
    hours = max(math.floor(room / per_day * 24) - (1 if store.layout.is_dledger else 0), 0)
    if not by_time:
        hours = 0  # files are not deleted by age
    return DiskOutlook(per_day, since or 0, grows.last, round(1.0 if math.isinf(most) else most, 4),
                       reached, hours)
