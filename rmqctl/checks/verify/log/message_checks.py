"""What messages lead to: their consumequeue rows and index keys, by blocks of columns."""

from __future__ import annotations

import os

import numpy as np

from rmqctl.checks.verify.index.keys import Entries, KeyCheck
from rmqctl.checks.verify.log.results import RangeResult, Wanted
from rmqctl.checks.verify.log.text_block import Block
from rmqctl.checks.verify.queue.rows import QueueKey, QueueRows, Rows
from rmqctl.formats import layout
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import HostV4, HostV6, Message
from rmqctl.scan import text
from rmqctl.scan.derived import IndexKeys, QueueTable, TagsCodes, is_queue_name
from rmqctl.scan.frames import Array
from rmqctl.scan.queue_reach import NOT_DISPATCHED, dispatched_rows
from rmqctl.store.store import Store

_UNPROTECTED = sum(layout.width_of(Message, name)[0] for name in (
    "flag", "born_timestamp", "reconsume_times", "prepared_transaction_offset"))
_BY_QUEUE = sum(layout.width_of(Message, name)[0] for name in ("queue_id", "queue_offset"))
_BY_INDEX = layout.width_of(Message, "store_timestamp")[0]


class MessageChecks:
    """Takes blocks in log order and compares them with consumequeues and index."""

    def __init__(self, store: Store, ends: dict[QueueKey, int], wanted: Wanted,
                 topics: text.Dictionary, result: RangeResult) -> None:
        self.store, self.wanted, self.result = store, wanted, result
        self._topics = topics
        self._tags = TagsCodes(topics)
        self._index = IndexKeys(topics)
        self._batched: set[str] = {topic for topic, _ in store.batch_queues}
        self._plain: list[bool] = []
        self._rows = QueueRows(store, ends)
        self._numbers = QueueTable(topics, self._rows.number)
        self._keys: KeyCheck | None = None

    def start(self, first: int) -> None:
        """``first``: physical offset of the first frame of the range."""
        if self.wanted.index and self.store.index_listing.files:
            entries = Entries(self.store)
            if entries.total:
                self._keys = KeyCheck(entries, first)
            else:
                entries.close()

    def finish(self, end: int | None) -> None:
        """``end``: where the range ends, None for the end of the log."""
        self._rows.flush()
        self.result.queues = self._rows.tallies
        if self._keys is not None:
            self._keys.finish(end)
            self.result.keys = self._keys.tally
            self._keys.entries.close()

    def check(self, block: Block) -> None:
        self._know_topics()
        checked: Array = np.zeros(len(block), np.int64)
        if self.wanted.queues:
            self._queue_rows(block, checked)
        if self._keys is not None:
            self._index_keys(block, self._keys, checked)
        elif self.wanted.index:
            keyed = np.zeros(len(block), bool)
            for name in (props.UNIQUE_KEY, props.KEYS):
                keyed[block.properties.find(name)[0]] = True
            self.result.keyed += int(keyed.sum())
        self._count_doubtful(block, checked)

    def _count_doubtful(self, block: Block, checked: Array) -> None:
        """Adds the bytes of intact records that nothing in this store could have proved wrong.

        ``checked``: bytes of each record's properties that queue or index were held against.
        """
        loose = block.ok & ~block.sealed
        count = int(loose.sum())
        if not count:
            return
        flags = block.sys_flag[loose]
        wide = sum(int((flags & bit != 0).sum()) for bit in (
            sysflag.BORN_HOST_V6, sysflag.STORE_HOST_V6))
        total = count * _UNPROTECTED + wide * layout.size_of(HostV6) + (
            2 * count - wide) * layout.size_of(HostV4)
        total += int((block.properties_length[loose] - checked[loose]).sum())
        if not self.wanted.queues:
            lengths = np.array([len(raw) for raw in self._topics.texts], np.int64)
            total += count * _BY_QUEUE + int(lengths[block.topic[loose]].sum())
        if self._keys is None:
            total += count * _BY_INDEX
        self.result.bytes_unverifiable += total

    def _know_topics(self) -> None:
        for raw in self._topics.texts[len(self._plain):]:
            self._plain.append(os.fsdecode(raw) not in self._batched)

    # -- consumequeue rows ----------------------------------------------------------------------

    def _tag_codes(self, block: Block, checked: Array) -> Array:
        codes, row, size = self._tags.codes(block.properties, block.topic, block.store_timestamp)
        checked[row] += size
        return codes

    def _queue_rows(self, block: Block, checked: Array) -> None:
        kind = block.sys_flag & sysflag.TRANSACTION_MASK
        rowed = (kind == sysflag.TRANSACTION_NONE) | (kind == sysflag.TRANSACTION_COMMIT)
        if self._batched:
            rowed &= np.array(self._plain, bool)[block.topic]
        numbers = self._numbers.encode(block.topic, block.queue_id)
        rows = Rows(numbers, block.queue_offset, block.offset, block.total_size,
                    self._tag_codes(block, checked), ~block.ok, block.store_timestamp)
        self._rows.add(rows if rowed.all() else rows.take(rowed))
        self._dispatched(block, rows, rowed & block.ok)

    def _dispatched(self, block: Block, rows: Rows, which: Array) -> None:
        """Further rows of multi-dispatched (LMQ) messages (consumequeue.md §10).

        A 5.x broker gives queue offsets to messages of some topics that it does not dispatch then
        (apache/rocketmq#8693); an older one, which may have written the store before, does.
        """
        message, names, offsets = dispatched_rows(block.properties, which)
        if not len(message):
            return
        free: Array = np.zeros(len(self._topics.texts), bool)
        if self.store.generation >= 5:
            free = np.array([one.startswith(NOT_DISPATCHED) for one in self._topics.texts], bool)
        free = free[block.topic]
        picked: list[tuple[int, int, int]] = []
        for at, raw, offset in zip(message.tolist(), names.tolist(), offsets.tolist(),
                                   strict=True):
            queue = os.fsdecode(raw)
            if is_queue_name(queue):
                light = queue.startswith(props.LMQ_PREFIX)
                key = queue, 0 if light else int(block.queue_id[at])
                picked.append((at, self._rows.number(key), offset))
                if free[at]:
                    self._rows.skip(picked[-1][1], offset)
        if picked:
            columns = np.array(picked, np.int64)
            more = rows.take(columns[:, 0])
            more.damaged = more.damaged | free[columns[:, 0]]
            more.queue, more.offset = columns[:, 1], columns[:, 2]
            self._rows.add(more)

    # -- index keys -----------------------------------------------------------------------------

    def _index_keys(self, block: Block, check: KeyCheck, checked: Array) -> None:
        keys = self._index.keys(block.properties, block.topic)
        checked += np.bincount(keys.row, keys.size, len(block)).astype(np.int64)
        row, hashes = keys.row, keys.key_hash
        rollback = block.sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_ROLLBACK
        if rollback.any():
            kept = ~rollback[row]
            row, hashes = row[kept], hashes[kept]
        end = int(block.offset[-1] + block.total_size[-1])
        check.compare(block.offset[row], hashes, block.store_timestamp[row], end)
