"""Check the targets of index items: topic id, queue, offset, size and key (tiered.md §17.3 I4).

Items of expired messages or of removed topics are normal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import field

import numpy as np

from rmqctl.checks.findings import INFO, Finding
from rmqctl.checks.verify.common import plural
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.ext.tiered.flat_file import FlatQueue
from rmqctl.ext.tiered.index.index_file import COMPACTED, TierIndexFile
from rmqctl.ext.tiered.verify.context import TierCoverage
from rmqctl.ext.tiered.verify.index import note
from rmqctl.ext.tiered.verify.keys import ITEM, KEY, KeySpool, compare, folded, marks
from rmqctl.formats.local import message
from rmqctl.formats.local.javahash import string_hash
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered.metadata import Metadata
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, distinct
from rmqctl.store.queue.search import first_from

_I32 = 1 << 32
LONG_AGO = 365 * 86_400
MAX_EXPLAINED = 10_000


@dataclass(slots=True)
class ItemTally:
    """Counts of those items in a file that can be judged without reading messages."""

    expired: int = 0
    removed: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    old_unit: int = 0
    wide: int = 0


class Items:
    """Fingerprints of the items in all index files of a broker. A context manager.
    `tiered.verify.index.check` calls `take`.

    ``queues``: the broker's queues. The ``number`` of a `MessageKeys` is an index in this list.
    ``has_empty``: whether any item has an empty key.
    """

    def __init__(self, queues: Iterable[FlatQueue], metadata: Metadata,
                 counted: TierCoverage) -> None:
        self.queues = list(queues)
        self.counted = counted
        self.items, self.keys = KeySpool(ITEM), KeySpool(KEY)
        self.files: list[TierIndexFile] = []
        self.held = ExitStack()
        """The files that are kept open while items are read."""
        self.has_empty = False
        self._tallies: list[ItemTally] = []
        self._serial = metadata.serial
        self._queues = {_low(topic.topic_id): set(metadata.queues.get(topic.topic, ()))
                        for topic in metadata.topics.values()}
        """Queue ids by topic id, from the metadata."""
        codes, starts, empties = [], [], []
        for number, queue in enumerate(self.queues):
            topic = metadata.topics.get(queue.name.topic)
            if topic is not None and queue.name.queue_id < 1 << 31:
                codes.append((code_of(_low(topic.topic_id), queue.name.queue_id), number))
            starts.append(queue.commit_log.start)
            empties.append(string_hash(f"{queue.name.topic}#"))
        codes.sort()
        self._codes = np.array([code for code, _ in codes], np.int64)
        self._numbers = np.array([number for _, number in codes], np.int64)
        self._starts = np.array(starts, np.int64)
        self._empties = folded(np.array(empties, np.int64))

    def start(self, file: TierIndexFile) -> None:
        """Begin a file, to which all items added from now on belong."""
        self.files.append(file)
        self._tallies.append(ItemTally())

    def take(self, first: int, items: Array) -> None:
        """Add a block of items. ``first``: the number of the first item in its file."""
        self.counted.index_items += len(items)
        tally = self._tallies[-1]
        if not len(self._codes):
            self.counted.items_unverifiable += len(items)
            return
        # Find the queue of each item.
        topic = items["topic_id"].astype(np.int64)
        code = code_of(topic, items["queue_id"].astype(np.int64))
        row = np.minimum(np.searchsorted(self._codes, code), len(self._codes) - 1)
        is_known_queue = self._codes[row] == code
        if not is_known_queue.all():
            self._unknown(tally, topic[~is_known_queue],
                          items["queue_id"][~is_known_queue].astype(np.int64))
        # Items of expired messages are only counted.
        number = self._numbers[row]
        offset = items["commit_log_offset"].astype(np.int64)
        gone = is_known_queue & (offset >= 0) & (offset < self._starts[number])
        tally.expired += int(gone.sum())
        # The others are compared with messages later.
        rows = np.flatnonzero(is_known_queue & ~gone)
        hashed = folded(items["key_hash"][rows])
        self.has_empty |= bool((hashed == self._empties[number[rows]]).any())
        out: Array = np.zeros(len(rows), ITEM)
        out["mark"] = marks(number[rows], offset[rows], items["size"][rows], hashed)
        out["file"], out["number"] = len(self.files) - 1, first + rows
        out["time_diff"] = items["time_diff"][rows]
        self.items.add(out)

    def _unknown(self, tally: ItemTally, topic: Array, queue_id: Array) -> None:
        """Classify items of queues without files. If the metadata contains the queue, the items are
        expired. If the topic id was assigned earlier but no longer exists, the topic was removed.
        """
        pairs, counts = np.unique(np.stack([topic, queue_id]), axis=1, return_counts=True)
        for (topic_id, queue), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            queue_ids = self._queues.get(topic_id)
            if queue_ids is None and (0 <= topic_id <= self._serial or topic_id == fmt.NO_TOPIC):
                tally.removed += count
            elif queue_ids is not None and queue in queue_ids:
                tally.expired += count
            elif len(tally.unknown) < MAX_EXPLAINED:
                tally.unknown[f"unknown topic ID {topic_id}" if queue_ids is None else
                              f"missing queue {queue} of topic ID {topic_id}"] += count
            else:
                tally.unknown["further missing queues"] += count

    # -- when all messages were seen ---------------------------------------------------------------

    def findings(self) -> Iterator[Finding]:
        missing: Counter[int] = Counter()
        first_missing: dict[int, int] = {}
        explained = 0
        more: Counter[int] = Counter()
        # Keys without an item, items without a key, and the times of matching pairs.
        for bucket in compare(self.items, self.keys):
            self.counted.items_proven += len(bucket.items)
            self.counted.keys += bucket.wanted
            for number, count in zip(*np.unique(bucket.missing["queue"], return_counts=True),
                                     strict=True):
                missing[int(number)] += int(count)
                rows = bucket.missing["queue"] == number
                least = int(bucket.missing["queue_offset"][rows].min())
                first_missing[int(number)] = min(first_missing.get(int(number), least), least)
            for file, number in zip(bucket.strange["file"].tolist(),
                                    bucket.strange["number"].tolist(), strict=True):
                explained += 1
                if explained > MAX_EXPLAINED:
                    more[file] += 1
                else:
                    yield self._strange(file, number)
            yield from self._times(bucket.items, bucket.keys)
        # The counts.
        for file, count in more.items():
            yield note(self.files[file], "tiered-index-item", f"{plural(count, 'more item')} "
                       "without a matching message, counted only", count=count)
        yield from self._tallied()
        for number in sorted(missing):
            queue = self.queues[number]
            yield Finding("tiered-index-missing", "index", f"{plural(missing[number], 'key')} of "
                          "messages have no index items: pending, or lost in a broker crash",
                          queue.commit_log.reader.where(queue.commit_log.folder),
                          topic=queue.name.topic, queue_id=queue.name.queue_id,
                          queue_offset=first_missing[number], count=missing[number])

    def _tallied(self) -> Iterator[Finding]:
        for file, tally in zip(self.files, self._tallies, strict=True):
            for unknown, count in sorted(tally.unknown.items()):
                yield note(file, "tiered-index-item", f"{plural(count, 'item')} of {unknown}",
                           count=count)
            if tally.expired or tally.removed:
                yield note(file, "tiered-index-expired", f"{plural(tally.expired, 'item')} of "
                           f"expired messages, {tally.removed} of deleted topics, queues or "
                           "messages",
                           count=tally.expired + tally.removed)
            if tally.old_unit:
                yield note(file, "tiered-oddity", f"{plural(tally.old_unit, 'time')} in "
                           "milliseconds, as in 5.1, in a file that uses seconds",
                           count=tally.old_unit)
            if tally.wide:
                yield note(file, "tiered-oddity", f"{plural(tally.wide, 'time')} from bytes of "
                           "IPv6 hosts, which a broker misreads as the store time",
                           count=tally.wide)

    def _times(self, items: Array, keys: Array) -> Iterator[Finding]:
        """Compare the times of items with the times that the broker versions compute from the
        messages.
        """
        for number in distinct(items["file"]).tolist():
            rows = items["file"] == number
            file, ours, theirs = self.files[number], items[rows], keys[rows]
            begin, difference = file.header.begin_timestamp, ours["time_diff"].astype(np.int64)
            as_read, true = theirs["time"] - begin, theirs["true_time"]
            engine = time_difference(as_read, file.shape.old)
            right = difference == engine
            proper = time_difference(true - begin, file.shape.old)
            # Newer brokers write 0 for messages older than the file (PR #10471).
            right |= (difference == proper) | (
                (difference == 0) & (true < begin) & (true > begin - LONG_AGO * 1000))
            tally = self._tallies[number]
            tally.wide += int(
                ((difference == engine) & (theirs["time"] != theirs["true_time"])).sum())
            millis = ~right & (difference == _wrapped(as_read))
            tally.old_unit += int(millis.sum())
            for row in np.flatnonzero(~right & ~millis).tolist():
                place, size = self._place(file, int(ours["number"][row]))
                yield note(file, "tiered-index-time", f"item {int(ours['number'][row])}: time "
                           f"difference {int(difference[row])}, expected {int(proper[row])} for "
                           "its message", place, length=size)

    def _place(self, file: TierIndexFile, number: int) -> tuple[int, int]:
        if file.form == COMPACTED:
            unit = fmt.COMPACTED_ITEM
            return file.shape.items_at + number * unit.size, unit.size
        return file.shape.item_position(number), fmt.ITEM.size

    def _strange(self, number: int, item: int) -> Finding:
        """Return the finding about an item without a message."""
        file = self.files[number]
        place, size = self._place(file, item)
        item_record = fmt.COMPACTED_ITEM.decode(file.read(place, fmt.COMPACTED_ITEM.size).ljust(
            fmt.COMPACTED_ITEM.size, b"\0"))
        place_of_code = int(np.searchsorted(self._codes,
                                            code_of(item_record.topic_id, item_record.queue_id)))
        queue = self.queues[int(self._numbers[min(place_of_code, len(self._numbers) - 1)])]
        # A damaged message has its own finding; an item that points to it is not at fault. The same
        # holds after the end of a queue that a repair truncated, which is reported.
        is_cut = self.counted.messages_lost_in_repairs and (
            item_record.commit_log_offset >= _end_of_units(queue))
        severity = INFO if is_cut or _leads_as_unit(queue, item_record) else ""
        return note(file, "tiered-index-item", f"item {item} points to "
                    f"{item_record.commit_log_offset} of {queue.name.topic}/{queue.name.queue_id}: "
                    f"{self._reason(queue, item_record)}", place, length=size,
                    topic=queue.name.topic, queue_id=queue.name.queue_id, severity=severity)

    @staticmethod
    def _reason(queue: FlatQueue, item: fmt.CompactedItemRecord) -> str:
        log = queue.commit_log
        if item.commit_log_offset >= log.end or item.commit_log_offset < 0:
            return f"the commit log ends at {log.end}"
        try:
            head = log.read(item.commit_log_offset, message.START_SIZE)
        except StoreIOError as error:
            return str(error)
        total = message.total_size_at(head)
        if not message.is_magic(message.magic_at(head)):
            return "no message starts there"
        if total != item.size:
            return f"the message there has {total} bytes, not {item.size}"
        try:
            message.decode(log.read(item.commit_log_offset, total))
        except (FormatError, StoreIOError):
            return "the message there is damaged"
        return "the message there has no such key, or no unit points to it"

    def close(self) -> None:
        self.held.close()
        self.items.close()
        self.keys.close()


def _end_of_units(queue: FlatQueue) -> int:
    """Return the commit log offset after the message of a queue's last unit."""
    try:
        last = queue.unit(queue.commit_offset - 1)
    except StoreIOError:
        last = None
    return queue.commit_log.end if last is None else last.commit_log_offset + last.size


def _leads_as_unit(queue: FlatQueue, item: fmt.CompactedItemRecord) -> bool:
    """Return whether a unit points to the same position as the index item, and the message there is
    unreadable.
    """
    try:
        unit = queue.unit(first_from(queue, queue.cq_start, queue.commit_offset,
                                     item.commit_log_offset))
        if unit is None or unit[:2] != (item.commit_log_offset, item.size):
            return False
        message.decode(queue.raw(unit))
    except FormatError:
        return True
    except StoreIOError:
        return False
    return False


def _low(topic_id: int) -> int:
    """Return a topic id in the form used in items: the low 32 bits, signed."""
    return (topic_id + (1 << 31)) % _I32 - (1 << 31)


def code_of(topic_id: Array | int, queue_id: Array | int) -> Array:
    """Return a topic id and a queue id as a single number."""
    codes: Array = np.asarray(topic_id, np.int64) * _I32 + (np.asarray(queue_id, np.int64) % _I32)
    return codes


def _wrapped(value: Array) -> Array:
    wrapped: Array = value.astype(np.int32).astype(np.int64)
    return wrapped


def time_difference(value: Array, old: bool) -> Array:
    """Return time differences (ms) in the form used in items: seconds, rounded towards zero (5.1:
    ms), in 32 bits.
    """
    if old:
        return _wrapped(value)
    return _wrapped(np.where(value < 0, -(-value // 1000), value // 1000))
