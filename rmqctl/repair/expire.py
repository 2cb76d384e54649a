"""Expire files as a broker's cleaner does: the oldest log files, then all files whose entries point
only into expired log files.

Log files expire from the oldest one on, up to the first that is kept. The last file never expires.
Nothing is deleted: a plan moves the files aside. Spec: recovery.md §12, consumequeue.md §5,
index.md §9.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from rmqctl.checks.verify.common import pages, plural
from rmqctl.errors import StoreIOError
from rmqctl.files.disk_usage import BLOCK
from rmqctl.formats.fixed import Fixed
from rmqctl.formats.local import batch_consume_queue, consume_queue, consume_queue_ext
from rmqctl.formats.local.index_file import HEADER
from rmqctl.formats.local.properties import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from rmqctl.formats.timer import timer_log
from rmqctl.formats.timer.timer_log import TAIL, UNIT_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import Action, MoveAside, Plan, Step
from rmqctl.repair.targets import target
from rmqctl.repair.truncate.truncate import WRITES, refuse_overlaps
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource
from rmqctl.store.config.progress import ConsumerProgress, named
from rmqctl.store.files import StoreFile, common_size, listing
from rmqctl.store.log.end import used_size
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Store

HOUR = 3_600_000
_PAGE_ROWS = 1 << 16
_PAGE_UNITS = 1 << 15
_WAITING = {SCHEDULE_TOPIC: "delayed messages not yet delivered",
            HALF_TOPIC: "half messages neither committed nor rolled back"}


@dataclass(frozen=True, slots=True)
class ExpiryLimits:
    """Limits by which log files expire. A file that exceeds any limit expires. None: no limit.

    ``older_than`` (ms): files expire if they were last modified this long ago or earlier, as with a
        broker's ``fileReservedTime``.
    ``keep_bytes``: the oldest files expire until the log has at most this size, as with a broker
        whose disk is full.
    ``free_bytes``: the oldest files expire until the expired files occupy this number of bytes on
        disk.
    """

    older_than: int | None = None
    keep_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Expiry:
    """A plan that expires files.

    ``min_before``, ``min_after``: the log's first physical offset before and after the expiry.
    ``bytes``: total size of the expired files.
    ``rows``: number of expired queue offsets by topic.
    """

    plan: Plan
    min_before: int
    min_after: int
    bytes: int
    rows: dict[str, int] = field(default_factory=dict)


def expire(store: Store, now: int, limits: ExpiryLimits) -> Expiry:
    """Return the plan that expires old files of ``store``; write nothing. ``now``: epoch ms.

    Files of queues, timer log and index also expire if the log files to which they point were
    deleted earlier, as at a broker's startup.

    Raises: RefusedError if log files overlap; StoreIOError.
    """
    store.layout.require_writable(store.root, WRITES, made_anew=True)
    refuse_overlaps(store)
    # The log files that expire.
    log = store.log
    before = log.min_offset
    gone = list(_expired_files(store, now, limits))
    remaining = log.files[len(gone):]
    after = remaining[0].base if remaining else before
    steps: list[Step] = [MoveAside(target(store, file.path)) for file, _ in gone]
    actions = [Action("move aside", target(store, file.path), file.size, None, reason, "byte")
               for file, reason in gone]
    size = sum(file.size for file, _ in gone)
    notes = [f"{trouble.path}: {trouble.reason}" for trouble in store.log_troubles]
    queues = QueuesExpired()
    # Files that point into these only: queues, timer log, index.
    if after > 0:
        progress = ConsumerProgress.of(store)
        queues = expire_queues(store, before, after)
        timer = expire_timer(store, before, after, progress.timer_read)
        follow = [*queues.files, *timer.files, *_expired_index(store, after)]
        size += sum(file.size for file in follow)
        steps += [MoveAside(target(store, file.path)) for file in follow]
        actions += [Action("move aside", target(store, file.path), file.size, None,
                           "all its messages have expired", "byte") for file in follow]
        notes += [*queues.notes, *unread_in_words(queues, progress), *timer.notes]
        if gone and store.layout.consumequeue == "rocksdb":
            notes.append("entries of expired messages stay in the consume queue database until a "
                         "broker compacts it; they have no effect")
    # Notes where the result is not what the user expects.
    if limits.free_bytes is not None:
        notes += _too_little(gone, limits.free_bytes)
    if not gone and limits.older_than is not None:
        notes += younger_than_messages(store, now, limits.older_than)
    plan = Plan("expire", store.root, tuple(actions), tuple(steps), notes=tuple(notes))
    return Expiry(plan, before, after, size, queues.by_topic())


def closed_files(store: Store) -> list[StoreFile]:
    """Return the log files that may expire: all files before the last file that contains data."""
    last = len(store.log.files) - 1
    # Preallocated files are empty: a running broker's last file is the one in use.
    while last > 0 and not used_size(store.log.source(last)):
        last -= 1
    return store.log.files[:max(last, 0)]


def age_of(file: StoreFile) -> os.stat_result:
    """Return the stat result of a log file. Raises: StoreIOError."""
    try:
        return os.stat(file.path)
    except OSError as error:
        raise StoreIOError.from_oserror(error, file.path, "look at") from None


def _expired_files(store: Store, now: int, limits: ExpiryLimits) -> Iterator[tuple[StoreFile, str]]:
    """Yield (file, reason) for each expired log file, oldest first."""
    left, freed = sum(file.size for file in store.log.files), 0
    for file in closed_files(store):
        about = age_of(file)
        written = about.st_mtime_ns // 1_000_000
        if limits.older_than is not None and written + limits.older_than <= now:
            reason = f"last written {_hours(now - written)} ago"
        elif limits.keep_bytes is not None and left > limits.keep_bytes:
            reason = f"the log has more than {limits.keep_bytes} bytes"
        elif limits.free_bytes is not None and freed < limits.free_bytes:
            reason = f"the oldest file; {limits.free_bytes} bytes must be freed"
        else:
            return
        left -= file.size
        freed += min(about.st_blocks * BLOCK, file.size)
        yield file, reason


def _too_little(gone: list[tuple[StoreFile, str]], wanted: int) -> Iterator[str]:
    freed = sum(min(os.stat(file.path).st_blocks * BLOCK, file.size) for file, _ in gone)
    if freed < wanted:
        yield (f"removing these log files frees {freed} of {wanted} bytes: the last file in use is "
               "kept")


def _hours(span: int) -> str:
    return f"{span // HOUR} h" if span >= HOUR else f"{span // 60_000} min"


def _expired_index(store: Store, after: int) -> Iterator[StoreFile]:
    """Yield the index files whose messages have all expired, except the last file (index.md §9)."""
    for file in store.index.listing.files[:-1]:
        with FileSource(file.path) as source:
            raw = source.read(0, HEADER.size)
        if len(raw) < HEADER.size or HEADER.decode(raw).end_phy_offset >= after:
            return
        yield file


def unread(queues: QueuesExpired, progress: ConsumerProgress,
           ) -> dict[tuple[str, str], dict[int, int]]:
    """Return the number of messages that expire before their consumers have read them: for each
    (group, topic), by queue id.
    """
    counts: dict[tuple[str, str], dict[int, int]] = {}
    for commit in progress.everybody():
        span = queues.rows.get((commit.topic, commit.queue_id))
        if span is None:
            continue
        lost = span.after - max(span.before, commit.offset)
        if lost > 0:
            counts.setdefault((commit.group, commit.topic), {})[commit.queue_id] = lost
    return dict(sorted(counts.items()))


def unread_in_words(queues: QueuesExpired, progress: ConsumerProgress) -> Iterator[str]:
    """Yield sentences that describe the result of `unread`."""
    for (group, topic), places in unread(queues, progress).items():
        waiting = _WAITING.get(topic, "messages not yet consumed")
        listed = named([f"queue {queue_id}: {lost}" for queue_id, lost in places.items()])
        yield f"{sum(places.values())} {waiting} expire: {group}, {topic} ({listed})"
    for (topic, queue_id), span in sorted(queues.rows.items()):
        if topic == SCHEDULE_TOPIC and queue_id not in progress.delayed and (
                span.after > span.before):
            yield (plural(span.after - span.before, "delayed message expires",
                          "delayed messages expire")
                   + f", and the progress of the delay service is unknown: {SCHEDULE_TOPIC} (queue "
                   f"{queue_id})")


def younger_than_messages(store: Store, now: int, older_than: int) -> Iterator[str]:
    """Yield a note if the first file is newer than its messages, for example because it was copied
    without its modification time.
    """
    log = store.log
    if len(log.files) < 2:
        return
    try:
        record = log.record_at(log.files[1].base)
    except StoreIOError:
        return
    if record is not None and record.store_timestamp + older_than <= now:
        yield ("all messages of the first file exceed the age limit, but its modification time is "
               "newer (copied without its time?); like a broker, expire uses the file's time")


# -- queue files ----------------------------------------------------------------------------------


class QueueStart(NamedTuple):
    """The queue offset of a queue's first message in the log, ``before`` and ``after``
    the expiry.
    """

    before: int
    after: int


@dataclass(slots=True)
class QueuesExpired:
    """The expired queue files, and the change of each queue's first offset (``rows``)."""

    files: list[StoreFile] = field(default_factory=list)
    rows: dict[QueueKey, QueueStart] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def by_topic(self) -> dict[str, int]:
        """Return the number of expiring queue offsets for each topic that has any."""
        out: dict[str, int] = {}
        for (topic, _), span in self.rows.items():
            if span.after > span.before:
                out[topic] = out.get(topic, 0) + span.after - span.before
        return dict(sorted(out.items(), key=lambda item: -item[1]))


def expire_queues(store: Store, before: int, after: int) -> QueuesExpired:
    """Return the queue files that expire when the start of the log moves from ``before`` to
    ``after``.

    A queue's first files expire if their last entries point before ``after``. The last file with an
    entry stays, because it determines the queue's next offset. Raises: StoreIOError.
    """
    out = QueuesExpired()
    for key, queue in store.queues.by_key.items():
        with closing(queue):
            gone = _gone(out, queue.files, queue.file_size, consume_queue.UNIT, after)
            if after > before:
                out.rows[key] = QueueStart(_first_row(queue, before), _first_row(queue, after))
        out.files += gone
        out.files += _gone_ext(store, key, queue.files[len(gone):], after)
    for key, batch in store.queues.batch.items():
        out.files += _gone(out, batch.files, batch.file_size, batch_consume_queue.UNIT, after)
        if after > before:
            out.rows[key] = QueueStart(_first_of_batch(batch, before),
                                       _first_of_batch(batch, after))
    return out


def _gone(out: QueuesExpired, files: list[StoreFile], file_size: int, unit: Fixed[Any],
          after: int) -> list[StoreFile]:
    gone: list[StoreFile] = []
    for file in files[:_last_used(files)]:
        if file.size < file_size or not _ends_before(file, file_size, unit, after):
            break
        if _points_after(file, unit, after):
            out.notes.append(f"{file.path}: its last entry points to an expired message, but "
                             "other entries point to messages that stay; the file is kept (a "
                             "broker would delete it), see `rmqctl verify`")
            break
        gone.append(file)
    return gone


def _last_used(files: list[StoreFile]) -> int:
    """Return the index of the last file that has an entry; 0 if all files are empty."""
    for number in range(len(files) - 1, 0, -1):
        with FileSource(files[number].path) as source:
            if used_size(source):
                return number
    return 0


def _ends_before(file: StoreFile, file_size: int, unit: Fixed[Any], after: int) -> bool:
    """Return whether the last entry of a file points before ``after``, which is what a broker
    checks.
    """
    with FileSource(file.path) as source:
        raw = source.read(file_size - unit.size, unit.size)
    return bool(unit.decode(raw).physical_offset < after)


def _points_after(file: StoreFile, unit: Fixed[Any], after: int) -> bool:
    """Return whether any entry of a file points to a message that is kept. If the last entry points
    to an expired message, only a damaged file has such an entry.
    """
    return any(len(rows) for rows in _rows_after(file, unit, after))


def _rows_after(file: StoreFile, unit: Fixed[Any], after: int) -> Iterator[Array]:
    """Yield, page by page, the entries of a file that point to ``after`` or a later offset."""
    with FileSource(file.path) as source:
        for _, data in pages(source, unit.size, _PAGE_ROWS):
            rows = unit.array(data)
            yield rows[(rows["physical_offset"] >= after) & (rows["size"] > 0)]


def _first_row(queue: ConsumeQueue, physical: int) -> int:
    """Return the index of the first entry that points to ``physical`` or a later offset; the end of
    the queue if no such entry exists.

    Binary search finds the entry, because physical offsets ascend. Padding entries come first and
    point to offset 0.
    """
    low, high = queue.first_index, queue.written
    while low < high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is not None and not unit.is_filler and unit.physical_offset >= physical:
            high = middle
        else:
            low = middle + 1
    return low


def _first_of_batch(batch: BatchQueue, physical: int) -> int:
    """Return the queue offset of the first entry that points to ``physical`` or a later offset; the
    end of the queue if no such entry exists.
    """
    end = 0
    for number in range(len(batch.files)):
        rows = batch.used(number)
        alive = np.flatnonzero(rows["physical_offset"] >= physical)
        if len(alive):
            return int(rows[alive[0]]["msg_base_offset"])
        if len(rows):
            end = int(rows[-1]["msg_base_offset"]) + int(rows[-1]["batch_size"])
    return end


def _gone_ext(store: Store, key: QueueKey, queue_files: list[StoreFile],
              after: int) -> list[StoreFile]:
    """Return the extension files before the unit to which the queue's first entry refers (spec §8).

    Like a broker, this examines only the first remaining queue file. It keeps an extension file
    that ends exactly where the unit begins.
    """
    files = listing(store.path("consumequeue_ext", key[0], str(key[1]))).files
    if not files or not queue_files:
        return []
    code = _first_code(queue_files[0], after)
    if code is None or not consume_queue_ext.is_address(code):
        return []
    offset = consume_queue_ext.byte_offset(code)
    size = common_size(files) or files[0].size
    return [file for file in files[:-1] if file.base + size < offset]


def _first_code(file: StoreFile, after: int) -> int | None:
    """Return the tags code of a file's first entry that points to ``after`` or a later physical
    offset; None if no entry does.
    """
    behind = (rows for rows in _rows_after(file, consume_queue.UNIT, after) if len(rows))
    first = next(behind, None)
    return None if first is None else int(first[0]["tags_code"])


# -- files of the timer log (5.x) -----------------------------------------------------------------


@dataclass(slots=True)
class TimerExpired:
    """The expired files of the timer log, and notes for the user."""

    files: list[StoreFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def expire_timer(store: Store, before: int, after: int, read_until: int | None) -> TimerExpired:
    """Return the timer log files that expire when the start of the log moves from ``before`` to
    ``after``.

    A file expires if its last unit points to an expired message and all files before it expire. The
    file in use never expires. The timer has delivered all messages due up to ``read_until`` (ms). A
    note counts the expired messages that are due later.

    Raises: StoreIOError.
    """
    out = TimerExpired()
    files = listing(store.path("timerlog")).files
    size = common_size(files) or 0
    for file in files[:_last_used(files)]:
        unit = _last_unit(file, size)
        if unit is None or not unit.is_valid or unit.physical_offset >= after:
            break
        out.files.append(file)
    if after > before and read_until is not None:
        pending = sum(_pending(file, before, after, read_until) for file in files)
        if pending:
            out.notes.append(f"{pending} timer message{'s' if pending != 1 else ''} not yet "
                             f"delivered expire: {TIMER_TOPIC}")
    return out


def _last_unit(file: StoreFile, size: int) -> timer_log.UnitRecord | None:
    """Return the unit at the last position of a full file, which a broker checks; None if the file
    is shorter.
    """
    position = (size - TAIL.size) // UNIT_SIZE * UNIT_SIZE - UNIT_SIZE
    if position < 0:
        return None
    with FileSource(file.path) as source:
        raw = source.read(position, UNIT_SIZE)
    return timer_log.decode(raw) if len(raw) == UNIT_SIZE else None


def _pending(file: StoreFile, before: int, after: int, read_until: int) -> int:
    """Return the number of units in a file whose messages expire before they have been
    delivered.
    """
    count = 0
    with FileSource(file.path) as source:
        for _, data in pages(source, UNIT_SIZE, _PAGE_UNITS):
            units = timer_log.UNIT.array(data)
            physical = units["physical_offset"].astype(np.int64)
            due = units["curr_write_time"].astype(np.int64) + units["delay_time"]
            count += int(np.count_nonzero(
                (units["size"] == UNIT_SIZE) & ((units["magic"] & ~timer_log.MAGIC_BITS) == 0)
                & ((units["magic"] & timer_log.MAGIC_DELETE) == 0)
                & (physical >= before) & (physical < after) & (due > read_until)))
    return count
