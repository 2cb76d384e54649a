"""Rebuild consume queues in RocksDB from the log, in a scratch folder (spec: rocksdb.md §2-§4).

Each entry is stored at its message's queue offset, as a broker stores it. The present database is
only needed for the positions of queues whose messages have all expired.

The tables have the format version that brokers use. Other files that RocksDB creates are not part
of the result.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from functools import cache, partial
from itertools import islice
from operator import attrgetter

import numpy as np

from rmqctl.broker.settings import Settings
from rmqctl.damage.records import Records
from rmqctl.engine.dispatch.derive import Derived
from rmqctl.errors import StoreIOError
from rmqctl.files.rocksdb_writer import NewDatabase
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.formats.rocksdb import consume_queue as keys
from rmqctl.formats.rocksdb.consume_queue import (
    CHECKPOINT_KEY,
    MAX,
    MIN,
    OFFSETS,
    POSITION,
    ROW,
    ROWS,
    PositionRecord,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.broker_config import configured
from rmqctl.repair.plan import Action, Create, FileContent, MakeFolder, MoveAside, Planned, Step
from rmqctl.repair.rebuild import derived_range
from rmqctl.repair.rebuild.derived_range import derive, log_as_it_is
from rmqctl.repair.rebuild.kept import KeptEntries
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.scan.overlay import LogPart
from rmqctl.store.log import ranges
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.queue.search import begun_at, first_from
from rmqctl.store.rocksdb.queues import RocksQueue, RocksQueues
from rmqctl.store.store import Store

FOLDER = "consumequeue"
_SCRATCH = "rocksdb"
_PAGE = 1 << 15
_OFFSET = struct.Struct(">q")


@dataclass(slots=True)
class BuiltDatabase:
    """A rebuilt database: ``files`` in ``folder``.

    ``ends``: the next queue offset of each queue. ``rows``: number of entries. ``refused``: number
    of messages with an impossible queue offset.
    """

    folder: str
    files: list[str] = field(default_factory=list)
    ends: dict[QueueKey, int] = field(default_factory=dict)
    rows: int = 0
    refused: int = 0


def make(parts: Sequence[LogPart], root: str, settings: Settings, scratch: Scratch,
         present: Mapping[QueueKey, ConsumeQueue], *, log_end: int | None = None, jobs: int = 1,
         progress: Callable[[int], None] | None = None, others: RocksQueues | None = None,
         wants: Callable[[QueueKey], bool] | None = None,
         recreated: bool = False) -> BuiltDatabase:
    """Write into a scratch folder the database that a broker would have for a log.

    * ``parts``: the log of the store at ``root``
    * ``present``: the queues of the store; a queue without any message in the log keeps its
      position
    * ``log_end``: messages that end after this physical offset are skipped
    * ``wants``: selects the queues to rebuild from the log; all others are copied from ``others``
    * ``recreated``: whether to skip the messages of an earlier queue with the same name

    Raises: FormatError if ``others`` cannot be read; StoreIOError, MissingExtraError.
    """
    records = Records(parts)

    @cache
    def begun(key: QueueKey) -> int:
        queue = present.get(key) if recreated else None
        if queue is None:
            return 0
        with closing(queue):
            return begun_at(queue, records)

    writer = DatabaseWriter(scratch.path(_SCRATCH), wants, begun)
    kept = KeptEntries.of(root, settings)
    try:
        work = partial(derive, settings, True, log_end, kept)
        pieces = ranges.split(parts, derived_range.RANGE_SIZE, parts[0].base if parts else 0,
                              log_end)
        for part, result in ranges.in_order(work, pieces, jobs):
            for derived in result.derived:
                writer.add(derived, lmq=settings.multi_dispatch)
            if progress is not None:
                progress(part.length)
        log_min = parts[0].base if parts else 0
        for key, queue in present.items():
            if key not in writer.last and (wants is None or wants(key)):
                writer.keep(key, expired_position(queue, log_min, log_end))
        if others is not None:
            writer.carry_over(others)
    finally:
        kept.close()
        database = writer.finish()
    return database


def expired_position(queue: ConsumeQueue, log_min: int,
                     log_end: int | None = None) -> PositionRecord | None:
    """Return the position of the last entry of a queue whose messages have all expired; None for
    other queues.

    ``log_end``: entries that point to this physical offset or beyond are removed and do not count;
    the queue then continues at the queue offset of the first removed entry.
    """
    last = queue.last if isinstance(queue, RocksQueue) else None
    if last is None and not isinstance(queue, RocksQueue) and queue.disk_end:
        unit = queue.unit(queue.disk_end - 1)
        last = None if unit is None else PositionRecord(unit.physical_offset, queue.disk_end - 1)
    if last is not None and 0 <= last.physical_offset < log_min:
        return last
    if last is None or log_end is None:
        return None
    first = first_from(queue, queue.first_index, queue.disk_end, log_end)
    return PositionRecord(max(log_min - 1, 0), first - 1) if first > 0 else None


class DatabaseWriter:
    """Writer of a database.

    ``wants`` selects queues. ``begun`` returns the physical offset at which a queue begins; earlier
    messages belong to an earlier queue with the same name.
    """

    def __init__(self, folder: str, wants: Callable[[QueueKey], bool] | None,
                 begun: Callable[[QueueKey], int] = lambda _: 0) -> None:
        self.wants, self._begun = wants, begun
        self._database = NewDatabase(folder, (ROWS, OFFSETS), compressed=True)
        self._built = BuiltDatabase(folder)
        self.last: dict[QueueKey, PositionRecord] = {}
        self.first: dict[QueueKey, PositionRecord] = {}
        self.end = 0
        self._rows = self._database.handle(ROWS)

    def add(self, derived: Derived, *, lmq: bool) -> None:
        """Add the entries of messages in log order."""
        own = np.flatnonzero(derived.rowed)
        if not len(own):
            return
        topic, queue_id = derived.topic[own], derived.queue_id[own]
        names = derived.topics
        self._put(names, topic, queue_id, derived.queue_offset[own], derived, own)
        further = derived.further
        if further is not None and lmq:
            light = np.array([name.startswith(LMQ_PREFIX.encode()) for name in further.names], bool)
            which = np.flatnonzero(light[further.name])
            self._put(further.names, further.name[which], np.zeros(len(which), np.int64),
                      further.offset[which], derived, further.message[which])
        self.end = int(derived.physical[own[-1]] + derived.size[own[-1]])

    def _put(self, names: Sequence[bytes], topic: Array, queue_id: Array, offset: Array,
             derived: Derived, message: Array) -> None:
        from rocksdict import WriteBatch

        # The selected queues, and the entries that a database can have.
        if self.wants is not None:
            chosen: Array = np.array([
                self.wants((os.fsdecode(names[topic_id]), queue))
                for topic_id, queue in zip(topic.tolist(), queue_id.tolist(), strict=True)], bool)
            topic, queue_id, offset, message = (
                column[chosen] for column in (topic, queue_id, offset, message))
        good = (offset >= 0) & (queue_id >= 0)
        if not good.all():
            self._built.refused += int((~good).sum())
            topic, queue_id, offset, message = (
                column[good] for column in (topic, queue_id, offset, message))
        # Without the messages of an earlier queue.
        own: Array = np.ones(len(message), bool)
        for topic_id, queue in {*zip(topic.tolist(), queue_id.tolist(), strict=True)}:
            if begun := self._begun((os.fsdecode(names[topic_id]), queue)):
                own[(topic == topic_id) & (queue_id == queue)
                    & (derived.physical[message] < begun)] = False
        if not own.all():
            topic, queue_id, offset, message = (
                column[own] for column in (topic, queue_id, offset, message))
        # The values as columns, then one write for all.
        values = np.zeros(len(message), ROW.dtype())
        values["physical_offset"], values["size"] = derived.physical[message], derived.size[message]
        values["tags_code"] = derived.tags[message]
        values["store_timestamp"] = derived.store_timestamp[message]
        raw, width = values.tobytes(), ROW.size
        batch = WriteBatch(raw_mode=True)
        prefixes: dict[tuple[int, int], bytes] = {}
        for number, (topic_id, queue, index) in enumerate(zip(
                topic.tolist(), queue_id.tolist(), offset.tolist(), strict=True)):
            prefix = prefixes.get((topic_id, queue))
            if prefix is None:
                prefix = prefixes[topic_id, queue] = keys.queue_prefix(names[topic_id], queue)
            batch.put(prefix + _OFFSET.pack(index), raw[number * width:(number + 1) * width],
                      self._rows)
        self._database.write(batch)
        self._built.rows += len(message)
        # The first and last position of each queue.
        places = derived.physical[message]
        for topic_id, queue in prefixes:
            rows = np.flatnonzero((topic == topic_id) & (queue_id == queue))
            self._note((os.fsdecode(names[topic_id]), queue), offset[rows], places[rows])

    def _note(self, key: QueueKey, offset: Array, place: Array) -> None:
        low, high = int(offset.argmin()), int(offset.argmax())
        first = PositionRecord(int(place[low]), int(offset[low]))
        last = PositionRecord(int(place[high]), int(offset[high]))
        offset_of = attrgetter("queue_offset")
        self.first[key] = min(self.first.get(key, first), first, key=offset_of)
        self.last[key] = max(self.last.get(key, last), last, key=offset_of)

    def keep(self, key: QueueKey, last: PositionRecord | None) -> None:
        """Set the position of a queue without entries."""
        if last is not None:
            self.last[key] = last

    def carry_over(self, others: RocksQueues) -> None:
        """Copy the entries and positions of all queues that are not rebuilt from the log.

        The checkpoint is also copied, because the copied entries may be older than the rebuilt
        entries. Raises: FormatError.
        """
        from rocksdict import WriteBatch

        self.end = others.checkpoint
        for (topic, queue_id), queue in others.queues.items():
            if self.wants is None or self.wants((topic, queue_id)):
                continue
            name = os.fsencode(topic)
            rows = others.database.items(ROWS, keys.queue_prefix(name, queue_id),
                                         keys.behind_queue(name, queue_id))
            while page := list(islice(rows, _PAGE)):
                batch = WriteBatch(raw_mode=True)
                for key, value in page:
                    batch.put(key, value, self._rows)
                self._database.write(batch)
                self._built.rows += len(page)
            self.keep((topic, queue_id), queue.last)
            if queue.least is not None:
                self.first[topic, queue_id] = queue.least

    def finish(self) -> BuiltDatabase:
        """Write and close the files of the database; return the database."""
        from rocksdict import WriteBatch

        offsets = self._database.handle(OFFSETS)
        batch = WriteBatch(raw_mode=True)
        for which, positions in ((MAX, self.last), (MIN, self.first)):
            for (topic, queue_id), position in positions.items():
                batch.put(keys.offset_key(os.fsencode(topic), queue_id, which),
                          POSITION.build(position), offsets)
        if self.end:
            batch.put(CHECKPOINT_KEY, keys.build_checkpoint(self.end), offsets)
        self._database.write(batch)
        self._built.files = self._database.finish()
        self._built.ends = {key: last.queue_offset + 1 for key, last in self.last.items()}
        return self._built


def cut(store: Store, to: int, scratch: Scratch) -> tuple[Planned, dict[QueueKey, int]]:
    """Return ((steps, actions), the next queue offset of every queue) for a truncated log.

    The log is truncated at the physical offset ``to``. Raises: StoreIOError, MissingExtraError.
    """
    present, parts = store.queues.rocksdb, log_as_it_is(store)
    queues = {} if present is None else present.queues
    database = make(parts, store.root, configured(store, {}).settings, scratch, queues, log_end=to,
                    recreated=True)
    ends = {key: database.ends.get(key, 0) for key in {**queues, **database.ends}}
    if is_right(present, database, store.log.min_offset):
        return ([], []), ends
    before = sum(queue.disk_end - queue.first_index for queue in queues.values())
    return steps(store.root, database, before, "entries of removed messages"), ends


# -- what has to change ---------------------------------------------------------------------------


def is_right(present: RocksQueues | None, database: BuiltDatabase, log_min: int,
             wants: Callable[[QueueKey], bool] = lambda _: True) -> bool:
    """Return whether a store's database has all entries rebuilt from its log, and no other entries.

    Entries of expired messages are allowed. Return False if part of the database is unreadable.
    ``wants`` selects the queues to compare.
    """
    if present is None or present.damage or present.odd_count:
        return False
    with RocksQueues(database.folder) as fresh:
        try:
            return {key for key, queue in present.queues.items() if queue.disk_end} <= {
                *fresh.queues} and all(_same(present.queues.get(key), queue, log_min)
                                       for key, queue in fresh.queues.items() if wants(key)
                                       ) and not present.has_unread
        except StoreIOError:
            return False


def _same(present: RocksQueue | None, fresh: RocksQueue, log_min: int) -> bool:
    if present is None or present.last != fresh.last:
        return False
    if not fresh.rows_end:  # all its messages have expired
        return True
    first = fresh.first_index
    if present.disk_end != fresh.disk_end or any(
            (rows["physical_offset"] >= log_min).any()
            for _, rows in present.pages(present.first_index, first)):
        return False
    return all((present.rows(number, _PAGE) == fresh.rows(number, _PAGE)).all()
               for number in range(first, fresh.disk_end, _PAGE))


def steps(root: str, database: BuiltDatabase, before: int | None, why: str) -> Planned:
    """Return (steps, actions) that replace ``consumequeue/`` with the database.

    The old folder is moved aside. ``before``: number of entries in the old folder, None if unknown.
    """
    planned: list[Step] = []
    if os.path.lexists(os.path.join(root, FOLDER)):
        planned.append(MoveAside(FOLDER))
    planned.append(MakeFolder(FOLDER))
    planned += [Create(os.path.join(FOLDER, name), FileContent(os.path.join(database.folder, name)))
                for name in database.files]
    return planned, [Action("rebuild", FOLDER, before, database.rows, why, "row")]
