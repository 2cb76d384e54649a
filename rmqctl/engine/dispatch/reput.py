"""The dispatcher writes the consume queue and index entries of the log's records, as a broker does.

Spec: recovery.md §6, consumequeue.md §3-§10, index.md §5-§7.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rmqctl.broker.settings import Settings
from rmqctl.engine.dispatch.batch_queue import BatchColumns, BatchQueues
from rmqctl.engine.dispatch.consume_queue import (
    Codes,
    ConsumeQueues,
    EntryColumns,
    PlainQueue,
    Positions,
    TwinQueues,
)
from rmqctl.engine.dispatch.consume_queue_ext import ConsumeQueueExt
from rmqctl.engine.dispatch.derive import Derived, FurtherRows, deriver_for
from rmqctl.engine.dispatch.index import IndexWriter
from rmqctl.engine.dispatch.queue_files import FilePool
from rmqctl.errors import InternalError
from rmqctl.files.aside import AsideFolder
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.index_file import IndexShape
from rmqctl.scan import text
from rmqctl.scan.derived import QueueKey, QueueTable, is_queue_name
from rmqctl.scan.frames import Array, records_from

BitMaps = Mapping[int, bytes | None]
"""The filter bit map of each message, by physical offset."""

Recall = Callable[[QueueKey, int, int, int], tuple[int | None, bytes | None]]
"""Function of (queue, physical offset, tags code, store time). It returns the former extension unit
of a message as (address, filter bit map); each value is None if unknown.
"""

QueueIds = Callable[[Sequence[bytes], Array, Array, Array, Array], Array]
"""Function that returns the queue id of each entry that a multi-dispatched message has in a further
queue.

Arguments: the queue names; for each entry, the index of the queue's name, the message's queue id,
the queue offset, and the physical offset.
"""

_LMQ = props.LMQ_PREFIX.encode()
_NOWHERE, _PLAIN, _BATCH = range(3)


class Dispatcher:
    """Writer of a store's consumequeues (plain, extended, batch and light queues) and index.

    * ``log_end``: end of the log; entries that point beyond it are truncated at opening, as in a
      broker's recovery
    * ``wall_clock``: returns the time (ms) for the names of index files
    * ``batch_topics``: returns whether a topic's queues are batch queues; called once for each
      topic
    * ``positions``: the ends of plain queues, if they are known more exactly than from the files
    * ``as_broker``: write data twice where a broker would (extension units of existing entries,
      index entries of the last indexed message), and do not zero truncated entries; by default,
      dispatching a record again changes nothing

    Parameters for a rebuild:

    * ``wanted``: selects the queues to write (default: all)
    * ``rows``: if False, no queue is written
    * ``recall``: returns the former extension unit of a message; the log contains neither bit maps
      nor the address of a queue's first unit
    * ``most_pending``: maximum number of new index entries in memory
    * ``twins``: see `ConsumeQueues`

    Raises: StoreIOError from any method, after which the same records may be dispatched again;
    RefusedError at opening if files do not have the sizes in the settings.
    """

    def __init__(self, root: str, settings: Settings, wall_clock: Callable[[], int],
                 batch_topics: Callable[[str], bool], log_end: int | None = None, *,
                 as_broker: bool = False, aside: AsideFolder | None = None,
                 wanted: Callable[[QueueKey], bool] | None = None, rows: bool = True,
                 recall: Recall | None = None, most_pending: int | None = None,
                 positions: Positions | None = None, queue_ids: QueueIds | None = None,
                 twins: TwinQueues | None = None) -> None:
        self._positions, self._queue_ids, self._twins = positions, queue_ids, twins
        self._root, self._settings, self._profile = root, settings, settings.profile
        self._is_batch, self._as_broker = batch_topics, as_broker
        self._rows, self._wanted, self._recall = rows, wanted, recall
        self._most_pending = most_pending
        self._deriver = deriver_for(settings, rows=rows)
        self._topics = self._deriver.topics
        self._numbering: tuple[list[bytes], Array] = [], np.zeros(0, np.int64)
        """The topics of the last `Derived` of another deriver, and the numbers of these topics
        in this dispatcher."""
        self._kinds: Array = np.zeros(0, np.int8)
        self._further = text.Dictionary()
        self._ext: dict[QueueKey, ConsumeQueueExt] = {}
        self._index: IndexWriter | None = None
        self._failed = False
        self.logics_timestamp = 0
        """Store time (ms) of the last message with a consumequeue entry; 0 if there is none."""
        self.unplaceable = 0
        """Number of skipped entries whose topic is not a valid folder name (``a/b``, ``..``)."""
        self._pool = FilePool(aside or AsideFolder(root))
        try:
            self._open(wall_clock, log_end)
        except BaseException:
            self._pool.close()
            raise

    def _open(self, wall_clock: Callable[[], int], log_end: int | None) -> None:
        root, settings, as_broker = self._root, self._settings, self._as_broker
        self._queues = ConsumeQueues(root, settings.consumequeue_file_size, self._pool, log_end,
                                     as_broker=as_broker, wanted=self._wanted,
                                     positions=self._positions, twins=self._twins)
        self._batches = BatchQueues(root, settings.batch_consumequeue_file_size, self._pool,
                                    log_end, as_broker=as_broker, wanted=self._wanted)
        self._numbers = QueueTable(self._topics, self._queues.number)
        self._further_numbers = QueueTable(self._further, self._queues.number)
        self._batch_numbers = QueueTable(self._topics, self._batches.number)
        if settings.message_index:
            self._index = IndexWriter(root, IndexShape(settings.index_slots, settings.index_max),
                                      self._pool, wall_clock, as_broker=as_broker,
                                      counts_empty=self._profile.generation >= 5,
                                      most_pending=self._most_pending)

    # -- what there is ----------------------------------------------------------------------------

    @property
    def index_timestamp(self) -> int:
        """End timestamp of the newest full index file that is on disk; 0 if no file is full."""
        return 0 if self._index is None else self._index.index_timestamp

    @property
    def gaps(self) -> int:
        """Number of entries written after a gap in the queue offsets."""
        return self._queues.gaps

    @property
    def repeated(self) -> int:
        """Number of skipped entries whose queue offset an earlier message already has."""
        return self._queues.repeated

    @property
    def refused(self) -> int:
        """Number of skipped entries with an invalid queue offset."""
        return self._queues.refused + self._batches.refused

    def next_offsets(self) -> dict[QueueKey, int]:
        """Return the next queue offset of every queue, as in a broker's topicQueueTable."""
        offsets = {queue.key: queue.end for queue in self._queues.queues}
        offsets.update({queue.key: queue.next_offset for queue in self._batches.queues})
        return offsets

    def max_physic(self) -> int:
        """Return the physical offset up to which the log was dispatched, -1 if there are no
        entries.

        This is the end of the last record with an entry; for a batch queue, the start of this
        record.
        """
        ends = [queue.max_physic for queue in self._queues.queues]
        ends += [batch.max_physic for batch in self._batches.queues]
        return max(ends, default=-1)

    # -- dispatch ---------------------------------------------------------------------------------

    def dispatch(self, data: bytes | bytearray | memoryview, base: int,
                 bit_maps: BitMaps | None = None) -> None:
        """Dispatch the complete, valid and contiguous records in ``data``.

        ``base``: physical offset of ``data[0]``. ``data`` must not contain blank records.
        Raises: InternalError if ``data`` contains anything but records.
        """
        if not len(data):
            return
        raw = np.frombuffer(data, np.uint8)
        batch = records_from(raw, base, 0, len(raw))
        if not len(batch) or batch.start[-1] + batch.column("total_size")[-1] != len(data):
            raise InternalError(f"the bytes dispatched from physical offset {base} on are not "
                                "complete records")
        self.apply(self._deriver.derive(batch), bit_maps)

    def apply(self, derived: Derived, bit_maps: BitMaps | None = None) -> None:
        """Write derived entries. Calls must be in log order.

        The entries may come from another deriver, whose topics have other numbers.
        """
        if not len(derived):
            return
        self._failed = True
        self._put_rows(derived, self._translated(derived), bit_maps or {})
        if self._index is not None and derived.key_row is not None and derived.key_hash is not None:
            self._index.put(derived.physical, derived.key_row, derived.key_hash,
                            derived.store_timestamp)
        self._failed = False

    def _translated(self, derived: Derived) -> Array:
        """Return the topics of the messages as this dispatcher's topic numbers."""
        topics = self._deriver.topics
        topic = derived.topic
        if derived.topics is not topics.texts:
            if self._numbering[0] is not derived.topics or (
                    len(self._numbering[1]) < len(derived.topics)):
                own = np.array([topics.number(raw) for raw in derived.topics], np.int64)
                self._numbering = derived.topics, own
            topic = self._numbering[1][topic]
        new = topics.texts[len(self._kinds):]
        if new:
            kinds = [self._kind(os.fsdecode(raw)) for raw in new]
            self._kinds = np.concatenate([self._kinds, np.array(kinds, np.int8)])
        return topic

    def _kind(self, topic: str) -> int:
        if not is_queue_name(topic):
            return _NOWHERE
        return _BATCH if self._profile.batch_queues and self._is_batch(topic) else _PLAIN

    def _put_rows(self, derived: Derived, topic: Array, bit_maps: BitMaps) -> None:
        rowed, when = derived.rowed, derived.store_timestamp
        if self._rows:
            self._put_queues(derived, topic, bit_maps)
        if rowed.any():
            self.logics_timestamp = int(when[np.flatnonzero(rowed)[-1]])

    def _put_queues(self, derived: Derived, topic: Array, bit_maps: BitMaps) -> None:
        """Write the entries of messages in plain queues, in batch queues, and in further queues."""
        rowed, tags = derived.rowed, derived.tags
        # Separate the messages by kind of queue.
        kinds = self._kinds[topic]
        plain = rowed & (kinds == _PLAIN)
        if plain.all():
            which: Any = slice(None)
        else:
            which = np.flatnonzero(plain)
            batched = np.flatnonzero(rowed & (kinds == _BATCH))
            if len(batched):
                self._put_batches(derived, topic, batched)
            self.unplaceable += int(np.count_nonzero(rowed & (kinds == _NOWHERE)))
        # Plain rows; with extension units, an address replaces the tags code.
        rows = EntryColumns(self._numbers.encode(topic[which], derived.queue_id[which]),
                            derived.queue_offset[which], derived.physical[which],
                            derived.size[which],
                            tags[which])
        codes = None
        if self._settings.consumequeue_ext:
            codes = self._ext_codes(tags[which], derived.store_timestamp[which], rows.physical,
                                    bit_maps)
            if self._as_broker:
                rows.tags_code = self._all_codes(rows, codes)
                codes = None
        # Rows in the further queues of multi-dispatched messages.
        if derived.further is not None:
            rows, codes = self._with_dispatched(rows, codes, derived, derived.further, plain)
        self._queues.put(rows, codes)

    def _put_batches(self, derived: Derived, topic: Array, which: Array) -> None:
        offset = derived.queue_offset
        first, count = derived.inner or (offset, np.ones(len(offset), np.int64))
        self._batches.put(BatchColumns(
            self._batch_numbers.encode(topic[which], derived.queue_id[which]),
            derived.physical[which], derived.size[which], derived.tags[which],
            derived.store_timestamp[which], first[which], count[which]))

    # -- rows that only some messages have --------------------------------------------------------

    def _ext_codes(self, tags: Array, when: Array, physical: Array, bit_maps: BitMaps) -> Codes:
        def codes(queue: PlainQueue, rows: Array) -> Array:
            out: Array = np.empty(len(rows), np.int64)
            for number, row in enumerate(rows.tolist()):
                code, stored, record = int(tags[row]), int(when[row]), int(physical[row])
                ext, bit_map = self._ext_of(queue), bit_maps.get(record)
                if self._recall is not None:
                    old_address, old_map = self._recall(queue.key, record, code, stored)
                    bit_map = old_map if bit_map is None else bit_map
                    if old_address is not None:
                        ext.begin(old_address)
                address = ext.put(code, stored, bit_map)
                out[number] = code if address is None else address
            return out
        return codes

    def _ext_of(self, queue: PlainQueue) -> ConsumeQueueExt:
        ext = self._ext.get(queue.key)
        if ext is None:
            ext = self._ext[queue.key] = ConsumeQueueExt(
                self._root, queue.key, self._settings.consumequeue_ext_file_size, self._pool,
                self._queues.last_address(queue),
                unused=queue.end == 0 and not self._as_broker)
        return ext

    def _all_codes(self, rows: EntryColumns, codes: Codes) -> Array:
        out: Array = np.empty(len(rows), np.int64)
        for row, number in enumerate(rows.queue.tolist()):
            out[row] = codes(self._queues.queues[number], np.array([row]))[0]
        return out

    def _with_dispatched(self, rows: EntryColumns, codes: Codes | None, derived: Derived,
                         further: FurtherRows, plain: Array) -> tuple[EntryColumns, Codes | None]:
        """Return all entries in log order.

        Each message has an entry in its own queue, then entries in further queues (consumequeue.md
        §10).
        """
        message, queue, offset = self._dispatched(derived, further, plain)
        if not len(message):
            return rows, codes
        own, count = np.flatnonzero(plain), len(rows)
        extra = rows.take(np.searchsorted(own, message))
        extra.queue, extra.offset, extra.tags_code = queue, offset, derived.tags[message]
        both = EntryColumns(*(np.concatenate([getattr(rows, name), getattr(extra, name)])
                              for name in ("queue", "offset", "physical", "size", "tags_code")))
        order = np.argsort(both.physical, kind="stable")
        both = both.take(order)
        if codes is None:
            return both, None
        own_codes = codes

        def mixed(queue: PlainQueue, asked: Array) -> Array:
            out: Array = both.tags_code[asked]
            own = np.flatnonzero(order[asked] < count)  # further rows have plain codes
            if len(own):
                out[own] = own_codes(queue, order[asked[own]])
            return out

        return both, mixed

    def _dispatched(self, derived: Derived, further: FurtherRows,
                    plain: Array) -> tuple[Array, Array, Array]:
        """Return (message, queue number, queue offset) of the entries in further queues."""
        own = np.array([self._further.number(raw) for raw in further.names], np.int64)
        message, name, offset = further.message, own[further.name], further.offset
        queued = plain[message]
        if not queued.all():
            message, name, offset = message[queued], name[queued], offset[queued]
        texts = self._further.texts
        safe = np.array([is_queue_name(os.fsdecode(name_text)) for name_text in texts], bool)[name]
        if not safe.all():
            self.unplaceable += int(np.count_nonzero(~safe))
            message, name, offset = message[safe], name[safe], offset[safe]
        queue_id = derived.queue_id[message]
        if self._queue_ids is not None:
            queue_id = self._queue_ids(texts, name, queue_id, offset, derived.physical[message])
        elif self._settings.lmq:
            light = np.array([name_text.startswith(_LMQ) for name_text in texts], bool)[name]
            queue_id = np.where(light, 0, queue_id)
        return message, self._further_numbers.encode(name, queue_id), offset

    # -- the end ----------------------------------------------------------------------------------

    def wipe_cut(self) -> None:
        """Zero the entries that point beyond the end of the log. Raises: StoreIOError.

        Without this call, these entries are zeroed when the next entries are written.
        """
        self._failed = True
        self._queues.wipe_cut()
        self._batches.wipe_cut()
        self._failed = False
        self.flush()

    def finish_twins(self) -> frozenset[QueueKey]:
        """Return the queues that were not written because their files equal those of their twins.
        Call this method last.
        """
        return self._queues.finish_twins()

    def show(self) -> None:
        """Write buffered data to the files, so that readers see it."""
        failed, self._failed = self._failed, True
        if self._index is not None:
            self._index.sync_to_file()
        self._failed = failed

    def flush(self) -> None:
        """Write buffered data and fsync everything."""
        self.show()
        failed, self._failed = self._failed, True
        self._pool.flush()
        self._failed = failed

    def close(self) -> None:
        """Write buffered data and close all files, without fsync (see `flush`).

        After an error, nothing more is written. The next opening then continues from the state of
        the files.
        """
        try:
            if self._index is not None and not self._failed:
                self._index.close()
        finally:
            self._pool.close()
