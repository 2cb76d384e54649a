"""What a broker's cleaner takes away: the oldest files of the log, then what only leads there.

spec: recovery.md §12, consumequeue.md §5, index.md §9. The log goes file by file from the first
on, and stops at the first that is kept; the last one always stays. Nothing is deleted: a plan
moves the files aside.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from rmqctl.checks.verify.common import plural
from rmqctl.errors import StoreIOError
from rmqctl.formats.local.index_file import HEADER
from rmqctl.formats.local.properties import HALF_TOPIC, SCHEDULE_TOPIC
from rmqctl.repair.expire.queues import QueuesExpired, expire_queues
from rmqctl.repair.expire.timer import expire_timer
from rmqctl.repair.groups import Progress, named
from rmqctl.repair.log_positions import refuse_overlaps, target
from rmqctl.repair.plan import Action, MoveAside, Plan, Step
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile
from rmqctl.store.log.end import used_size
from rmqctl.store.store import Store

HOUR = 3_600_000
_WAITING = {SCHEDULE_TOPIC: "delayed messages not yet delivered",
            HALF_TOPIC: "half messages not yet decided on"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Which files of the log expire.

    ``older_than`` (ms): as with a broker's ``fileReservedTime``, files that were last written
    (modification time) so long ago. ``keep_bytes``: further ones, whatever their age, until the
    log has no more bytes than these; a broker does so when its disk is full. A file that meets
    either goes. None: no such limit.
    """

    older_than: int | None = None
    keep_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Expiry:
    """The plan; the log's first physical offset before and after; rows that expire, by topic.

    ``bytes`` are the lengths of all files that go.
    """

    plan: Plan
    min_before: int
    min_after: int
    bytes: int
    rows: dict[str, int] = field(default_factory=dict)


def expire(store: Store, now: int, limits: Limits) -> Expiry:
    """The plan that takes expired files of ``store`` away. ``now`` in epoch ms.

    Queues, timer log and index are also rid of what an earlier deletion of log files left, as a
    broker does when it starts. Writes nothing. RefusedError where files of the log overlap,
    StoreIOError.
    """
    refuse_overlaps(store)
    log = store.log
    before = log.min_offset
    gone = list(_expired_files(store, now, limits))
    rest = log.files[len(gone):]
    after = rest[0].base if rest else before
    steps: list[Step] = [MoveAside(target(store, one.path)) for one, _ in gone]
    actions = [Action("move aside", target(store, one.path), one.size, None, reason)
               for one, reason in gone]
    size = sum(one.size for one, _ in gone)
    notes = [f"{trouble.path}: {trouble.reason}" for trouble in store.log_troubles]
    queues = QueuesExpired()
    if after > 0:
        progress = Progress.of(store)
        queues = expire_queues(store, before, after)
        timer = expire_timer(store, before, after, progress.timer_read)
        follow = [*queues.files, *timer.files, *_expired_index(store, after)]
        size += sum(one.size for one in follow)
        steps += [MoveAside(target(store, one.path)) for one in follow]
        actions += [Action("move aside", target(store, one.path), one.size, None,
                           "all its messages have expired") for one in follow]
        notes += [*queues.notes, *_unread(queues, progress), *timer.notes]
    if not gone and limits.older_than is not None:
        notes += _younger_than_messages(store, now, limits.older_than)
    plan = Plan("expire", store.root, tuple(actions), tuple(steps), notes=tuple(notes))
    return Expiry(plan, before, after, size, queues.by_topic())


def _expired_files(store: Store, now: int, limits: Limits) -> Iterator[tuple[StoreFile, str]]:
    """The files of the log that go, oldest first, and why."""
    files = store.log.files
    last = len(files) - 1
    # Files laid out ahead hold nothing yet: a running broker's last file is the one in use.
    while last > 0 and not used_size(store.log.source(last)):
        last -= 1
    left = sum(one.size for one in files)
    for one in files[:max(last, 0)]:
        try:
            written = os.stat(one.path).st_mtime_ns // 1_000_000
        except OSError as error:
            raise StoreIOError.from_oserror(error, one.path, "look at") from None
        if limits.older_than is not None and written + limits.older_than <= now:
            reason = f"last written {_hours(now - written)} ago"
        elif limits.keep_bytes is not None and left > limits.keep_bytes:
            reason = f"more than {limits.keep_bytes} bytes of log"
        else:
            return
        left -= one.size
        yield one, reason


def _hours(span: int) -> str:
    return f"{span // HOUR} h" if span >= HOUR else f"{span // 60_000} min"


def _expired_index(store: Store, after: int) -> Iterator[StoreFile]:
    """Index files all of whose messages have expired, never the last one (index.md §9)."""
    for one in store.index_listing.files[:-1]:
        with FileSource(one.path) as source:
            raw = source.read(0, HEADER.size)
        if len(raw) < HEADER.size or HEADER.decode(raw).end_phy_offset >= after:
            return
        yield one


def _unread(queues: QueuesExpired, progress: Progress) -> Iterator[str]:
    """Messages that expire before those who wait for them have seen them."""
    unread: dict[tuple[str, str], list[str]] = {}
    total: dict[tuple[str, str], int] = {}
    for one in progress.everybody():
        span = queues.rows.get((one.topic, one.queue_id))
        if span is None:
            continue
        lost = span.after - max(span.before, one.offset)
        if lost > 0:
            key = one.group, one.topic
            unread.setdefault(key, []).append(f"queue {one.queue_id}: {lost}")
            total[key] = total.get(key, 0) + lost
    for (group, topic), places in sorted(unread.items()):
        what = _WAITING.get(topic, "messages not yet consumed")
        yield f"{total[group, topic]} {what} expire: {group}, {topic} ({named(places)})"
    for queue_id, span in sorted(queues.of_topic(SCHEDULE_TOPIC)):
        if queue_id not in progress.delayed and span.after > span.before:
            yield (plural(span.after - span.before, "delayed message expires",
                          "delayed messages expire")
                   + f", and no progress of the delay service is known: {SCHEDULE_TOPIC} (queue "
                   f"{queue_id})")


def _younger_than_messages(store: Store, now: int, older_than: int) -> Iterator[str]:
    """Copying a store without its times makes all files young: worth a word."""
    log = store.log
    if len(log.files) < 2:
        return
    try:
        record = log.record_at(log.files[1].base)
    except StoreIOError:
        return
    if record is not None and record.store_timestamp + older_than <= now:
        yield ("all messages of the first file are older than that, but the file was written "
               "later (a copy that did not keep its time?); like a broker, this goes by the time "
               "of the file")
