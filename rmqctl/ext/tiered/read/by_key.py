"""Find messages of a tier by key: all messages with the key, or a broker's answer (tiered.md §11).

An index item contains only a hash, an offset and an imprecise time. The message contains the key
and the exact time. `by_key` searches every file under both hash rules and returns only messages
that have the key. `as_broker` follows 5.3.3 step by step: the same messages are missing from its
answer, and it contains the same wrong messages.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from dataclasses import field
from typing import NamedTuple, Self

from rmqctl.errors import FormatError, StoreIOError, UsageError
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue
from rmqctl.ext.tiered.index.index_file import (
    COMPACTED,
    EMPTY,
    OPEN,
    LocalIndex,
    TierIndexFile,
    uploaded,
)
from rmqctl.ext.tiered.read.messages import inside_of
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.local import message
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered.index import CompactedItemRecord
from rmqctl.formats.tiered.metadata import java_order
from rmqctl.formats.tiered.names import INDEX, OLD_INDEX_NAMES, index_path
from rmqctl.formats.tiered.units import NEVER
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.resync import MAX_RECORD
from rmqctl.scan.source import Closing
from rmqctl.store.objects import java_text
from rmqctl.store.problems import Problem, Report
from rmqctl.store.query.lookup import KeyType

FOR_EVER = (1 << 63) - 1
_NAMED = 100
"""Maximum number of unreadable messages that are listed."""


# -- the index files that can answer --------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Keyed:
    """An index file, its broker (``owner``), and its key in the broker's table of index files. The
    key is the creation time that the broker uses.
    """

    key: int
    owner: str
    file: TierIndexFile


@dataclass(slots=True)
class IndexFiles(Closing):
    """The readable index files of a tier, by ascending key. A context manager.

    ``errors``: errors of the unreadable files.
    """

    files: list[Keyed] = field(default_factory=list)
    errors: list[FormatError | StoreIOError] = field(default_factory=list)
    _local: LocalIndex | None = None

    @classmethod
    def open(cls, tier: Tier, broker: str | None = None, slots: int | None = None,
             max_items: int | None = None) -> Self:
        """Open the index files and read their headers.

        ``slots`` and ``max_items``: numbers of slots and items for files that are not uploaded,
        because these files do not contain the numbers. Default for ``slots``: the number in the
        uploaded files.
        """
        files = cls()
        for owner, flat in tier.indexes(broker):
            files._add_uploaded(tier, owner, flat)
        owner = _local_owner(tier)
        if broker is None or owner in (broker, ""):
            if slots is None and max_items is None:
                slots = next((keyed.file.shape.slots for keyed in files.files
                              if keyed.file.form == COMPACTED and owner in (keyed.owner, "")), None)
            files._add_local(tier, owner, slots, max_items)
        files.files.sort(key=lambda keyed: (keyed.key, keyed.owner, keyed.file.base))
        return files

    def _add_uploaded(self, tier: Tier, owner: str, flat: FlatFile) -> None:
        entries = tier.metadata.segments[INDEX].get(index_path(owner), {})
        for file in uploaded(flat):
            if not isinstance(file, TierIndexFile):
                self.errors.append(file)
                continue
            entry = entries.get(file.base)
            has_times = entry is not None and entry.begin_timestamp != NEVER
            key = entry.begin_timestamp if has_times and entry is not None else file.timestamp
            self.files.append(Keyed(key, owner, file))

    def _add_local(self, tier: Tier, owner: str, slots: int | None,
                   max_items: int | None) -> None:
        try:
            self._local = LocalIndex(tier.local_index_folder, slots, max_items)
        except StoreIOError as error:
            self.errors.append(error)
            return
        self.errors += self._local.errors
        for file in self._local.files:
            name = os.path.basename(file.where)
            key = file.timestamp if name in OLD_INDEX_NAMES else int(name)
            self.files.append(Keyed(key, owner, file))

    def newest_first(self) -> Iterator[Keyed]:
        """Yield all files, newest first."""
        return reversed(self.files)

    def table_newest_first(self) -> Iterator[Keyed]:
        """Yield the files in a broker's table of index files, newest first.

        The table contains only one file for each creation time: the file that was uploaded last. At
        startup a broker deletes a local file with the same creation time.
        """
        last: int | None = None
        for keyed in self.newest_first():
            if keyed.key != last:
                last = keyed.key
                yield keyed

    def close(self) -> None:
        if self._local is not None:
            self._local.close()


def _local_owner(tier: Tier) -> str:
    """Return the broker of the local files, or an empty text if it is unknown."""
    named = tier.metadata.brokers
    if len(named) == 1:
        return named.pop()
    owners = {owner for owner, _ in tier.indexes()}
    return owners.pop() if len(owners) == 1 else ""


# -- what really has the key ----------------------------------------------------------------------

class Dangling(NamedTuple):
    """An index item that does not point to a message: its queue, its offset in the queue's commit
    log, and the reason.
    """

    queue_id: int
    offset: int
    reason: str


@dataclass(slots=True)
class TierKeyAnswer:
    """Answer to a query by key.

    ``records``: the messages, in order.
    ``false_hits``: number of messages that have another key.
    ``unreadable``: number of items that do not point to a message.
    ``dangling``: the first of these items.
    """

    records: list[Record] = field(default_factory=list)
    false_hits: int = 0
    unreadable: int = 0
    dangling: list[Dangling] = field(default_factory=list)

    def miss(self, item: CompactedItemRecord, reason: str) -> None:
        self.unreadable += 1
        if len(self.dangling) < _NAMED:
            self.dangling.append(Dangling(item.queue_id, item.commit_log_offset, reason))


def has_key(record: Record, key: str, kind: KeyType | None = None) -> bool:
    """Return whether brokers index a message under a key.

    Brokers index a message under its unique key and under each part of KEYS. The parts are
    separated by single spaces and may be empty. ``kind``: consider only the unique key, or only
    KEYS.
    """
    properties = props.parse(java_text(record.properties))
    if kind != "key" and key and properties.get(props.UNIQUE_KEY) == key:
        return True
    if kind == "unique":
        return False
    keys = properties.get(props.KEYS, "")
    return key in keys.rstrip(" ").split(" ") if keys.strip() else not key


class _Queues:
    """The queues of a topic by broker and queue id. If clusters share the tier, several queues may
    have the same broker and queue id.
    """

    def __init__(self, tier: Tier, topic: str, broker: str | None) -> None:
        self._queues: dict[tuple[str, int], list[FlatQueue]] = {}
        for queue in tier.queues(topic, broker=broker):
            # The broker of an index file is an empty text if it is unknown.
            for owner in (queue.name.broker, ""):
                self._queues.setdefault((owner, queue.name.queue_id), []).append(queue)

    def of(self, owner: str, queue_id: int) -> list[FlatQueue]:
        return self._queues.get((owner, queue_id), [])

    def record(self, owner: str, item: CompactedItemRecord) -> tuple[FlatQueue, Record]:
        """Return the queue and the message of an item, after a check. Raises: FormatError,
        StoreIOError.
        """
        last: FormatError | None = None
        for queue in self.of(owner, item.queue_id):
            try:
                return queue, _proven(queue, item)
            except FormatError as error:
                last = error
        raise last or FormatError("the topic has no such queue here", path="queue_id")


def _proven(queue: FlatQueue, item: CompactedItemRecord) -> Record:
    """Return the message that an item points to. Raises: FormatError if its size or offset does not
    match.
    """
    physical_offset = item.commit_log_offset
    where = queue.commit_log.reader.where(queue.commit_log.folder)
    if not message.MIN_SIZE <= item.size <= MAX_RECORD or physical_offset < 0:
        raise FormatError("the item does not point to a message", file=where,
                          offset=physical_offset, path="size")
    data = queue.commit_log.read(physical_offset, item.size)
    record = message.decode(data, 0, physical_offset) if len(data) == item.size else None
    if record is None:
        gone = "expired" if physical_offset < queue.commit_log.start else "missing"
        raise FormatError(f"the message is {gone}", file=where, offset=physical_offset,
                          path="offset")
    for name, wanted in (("physical_offset", physical_offset), ("total_size", item.size)):
        if getattr(record, name) != wanted:
            raise FormatError(f"is {getattr(record, name)}, but {wanted} in the index", file=where,
                              offset=physical_offset, path=name)
    # A damaged item may point to a frame in a message's body, which has no unit.
    witness = queue.commit_log.witness
    if witness is not None and not witness().confirms(record):
        around = inside_of(queue, physical_offset)
        if around is not None:
            raise FormatError(f"the item points into the message at {around.physical_offset}",
                              file=where, offset=physical_offset, path="offset")
    return record


def _errors(files: IndexFiles, report: Report) -> None:
    for error in files.errors:
        kind = "unreadable" if isinstance(error, StoreIOError) else "damage"
        report(Problem(kind, f"{error}: index file skipped"))  # type: ignore[arg-type]


def by_key(tier: Tier, files: IndexFiles, topic: str, key: str, *, begin: int = 0,
           end: int = FOR_EVER, most: int = 32, broker: str | None = None, raw: bool = False,
           kind: KeyType | None = None, report: Report = lambda _problem: None) -> TierKeyAnswer:
    """Return the messages of a topic with a key, stored in ``[begin, end]`` (ms), by store time.
    Damaged index files are reported and skipped.

    ``most``: maximum number of messages; the newest are returned. ``raw``: also return messages
    that have another key with the same hash.
    """
    _errors(files, report)
    answer = TierKeyAnswer()
    queues = _Queues(tier, topic, broker)
    newest: list[tuple[tuple[int, int, int, str], Record]] = []
    places: set[tuple[str, int, int]] = set()
    for owner, item in _all_items(files, topic, key, report):
        # The message of the item, unless another one pointed to it.
        if (owner, item.queue_id, item.commit_log_offset) in places:
            continue
        try:
            queue, record = queues.record(owner, item)
        except FormatError as error:
            answer.miss(item, str(error))
            continue
        except StoreIOError as error:
            report(Problem("unreadable", str(error)))
            continue
        # Check that it is requested.
        if not begin <= record.store_timestamp <= end:
            continue
        if not raw and (java_text(record.topic) != topic or not has_key(record, key, kind)):
            answer.false_hits += 1
            continue
        place = queue.name.broker, item.queue_id, item.commit_log_offset
        entry = (record.store_timestamp, -item.queue_id, record.queue_offset, place[0]), record
        if place in places:
            continue
        # Keep the newest in a heap, with the oldest of them on top.
        if len(newest) < most:
            heapq.heappush(newest, entry)
        elif entry[0] > newest[0][0]:
            (_, number, _, gone_owner), gone = heapq.heapreplace(newest, entry)
            places.discard((gone_owner, -number, gone.physical_offset))
        else:
            continue
        places.add(place)
    answer.records = [record for _, record in sorted(newest, key=lambda entry: (
        entry[0][0], -entry[0][1], entry[0][2]))]
    return answer


def _all_items(files: IndexFiles, topic: str, key: str,
               report: Report) -> Iterator[tuple[str, CompactedItemRecord]]:
    """Yield (broker, item) for all items with one of the possible hashes of a key, newest file
    first.
    """
    for keyed in files.newest_first():
        for wanted in fmt.both_hashes(topic, key):
            for item in _chain(keyed, wanted, report):
                yield keyed.owner, item


def _chain(keyed: Keyed, wanted: int, report: Report,
           most: int | None = None) -> Iterator[CompactedItemRecord]:
    try:
        yield from keyed.file.chain(wanted, most)
    except FormatError as error:
        report(Problem("damage", f"{error}: rest of this chain skipped"))
    except StoreIOError as error:
        report(Problem("unreadable", str(error)))


# -- as a broker ----------------------------------------------------------------------------------

def items_as_broker(files: IndexFiles, topic: str, key: str, most: int, begin: int, end: int,
                    report: Report = lambda _problem: None) -> list[CompactedItemRecord]:
    """Return the items that a 5.3.3 broker's index service returns, in the order of the broker's
    hash map.

    Only files created in ``[begin, end]`` are searched. Other files may contain messages of that
    time.
    """
    table: dict[str, CompactedItemRecord] = {}
    if begin > end:
        return []
    wanted = fmt.key_hash(topic, key)
    for keyed in files.table_newest_first():
        if not begin <= keyed.key <= end:
            continue
        limit = most + 1 if keyed.file.form == OPEN else most
        for item in _accepted(keyed, wanted, begin, end, limit, report):
            if len(table) < most:
                table[f"{item.queue_id}-{item.commit_log_offset}"] = item
    return [item for _, item in java_order(table)][:most]


def _accepted(keyed: Keyed, wanted: int, begin: int, end: int, limit: int,
              report: Report) -> Iterator[CompactedItemRecord]:
    if keyed.file.form == EMPTY:
        return
    looked = fmt.MAX_SLOT_ITEMS if keyed.file.form == COMPACTED else fmt.MAX_CHAIN
    scale = 1 if keyed.file.shape.old else 1000
    for item in _chain(keyed, wanted, report, looked):
        if limit <= 0:
            return
        if begin <= keyed.key + item.time_diff * scale <= end:
            limit -= 1
            yield item


def as_broker(tier: Tier, files: IndexFiles, topic: str, key: str, *, begin: int = 0,
              end: int = FOR_EVER, most: int = 32, broker: str | None = None,
              report: Report = lambda _problem: None) -> TierKeyAnswer:
    """Return the messages that a 5.3.3 broker's tier returns for a key, including messages with
    other keys.

    For some items a broker returns bytes that are not a message, or fails. These items are
    ``dangling`` here.
    Raises: UsageError for index files of several brokers.
    """
    if len({keyed.owner for keyed in files.files}) > 1:
        raise UsageError("the tier has index files of several brokers, and a broker reads only its "
                         "own: choose one with --broker")
    _errors(files, report)
    answer = TierKeyAnswer()
    # A broker without an entry for the topic does not search the index.
    topic_entry = tier.metadata.topics.get(topic)
    if topic_entry is None:
        report(Problem("note", f"topic {topic} is not in the metadata: a broker finds none of its "
                       "messages in the tier"))
        return answer
    queues = _Queues(tier, topic, broker)
    owner = files.files[0].owner if files.files else ""
    for item in items_as_broker(files, topic, key, most, begin, end, report):
        # A broker compares the item's half of the topic id with the complete one.
        owned = queues.of(owner, item.queue_id)
        if item.topic_id != topic_entry.topic_id or not owned:
            continue
        queue = owned[0]
        # A broker reads whatever bytes the item names, so check the size and decode them.
        try:
            if item.size > MAX_RECORD:
                raise FormatError(f"the item has an invalid size: {item.size} bytes", path="size")
            data = queue.commit_log.read_as_broker(item.commit_log_offset, item.size)
            answer.records.append(message.decode(data, 0, item.commit_log_offset))
        except FormatError as error:
            answer.miss(item, str(error))
        except StoreIOError as error:
            report(Problem("unreadable", str(error)))
    return answer
