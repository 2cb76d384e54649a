"""What messages lead to: their consumequeue rows and index keys, by blocks of columns."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa

from rmqctl.checks.index_keys import Entries, KeyCheck
from rmqctl.checks.queue_rows import QueueKey, QueueRows, Rows
from rmqctl.checks.results import RangeResult, Wanted
from rmqctl.checks.textblock import Block
from rmqctl.formats import delay, layout, sysflag
from rmqctl.formats import properties as props
from rmqctl.formats.javahash import string_hash
from rmqctl.formats.message import HostV4, HostV6, Message
from rmqctl.scan import text
from rmqctl.scan.frames import Array
from rmqctl.store.store import Store

_UNPROTECTED = sum(layout.width_of(Message, name)[0] for name in (
    "flag", "born_timestamp", "reconsume_times", "prepared_transaction_offset"))
_BY_QUEUE = sum(layout.width_of(Message, name)[0] for name in ("queue_id", "queue_offset"))
_BY_INDEX = layout.width_of(Message, "store_timestamp")[0]
_DENSE = 64
"""Queue ids below this are looked up in a table; others (damage, mostly) one by one."""


class MessageChecks:
    """Takes blocks in log order and compares them with consumequeues and index."""

    def __init__(self, store: Store, ends: dict[QueueKey, int], wanted: Wanted,
                 topics: text.Dictionary, result: RangeResult) -> None:
        self.store, self.wanted, self.result = store, wanted, result
        self._topics = topics
        self._tags = text.Dictionary()
        self._tag_codes: list[int] = []
        self._sharp: list[int] = []
        self._names: list[str] = []
        self._numbers: Array = np.zeros(0, np.int32)
        self._batched: set[str] = {topic for topic, _ in store.batch_queues}
        self._plain: list[bool] = []
        self._rows = QueueRows(store, ends)
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
        for raw in self._topics.texts[len(self._names):]:
            self._names.append(os.fsdecode(raw))
            self._plain.append(os.fsdecode(raw) not in self._batched)
            self._sharp.append(string_hash(raw.decode("utf-8", "replace") + "#"))
        short = len(self._names) * _DENSE - len(self._numbers)
        if short > 0:
            self._numbers = np.concatenate([self._numbers, np.full(short, -1, np.int32)])

    # -- consumequeue rows ----------------------------------------------------------------------

    def _tag_hashes(self, block: Block, checked: Array) -> Array:
        row, tags = block.properties.find(props.TAGS)
        out: Array = np.zeros(len(block), np.int64)
        if len(row):
            numbers = self._tags.encode(tags)
            for raw in self._tags.texts[len(self._tag_codes):]:
                self._tag_codes.append(string_hash(raw.decode("utf-8", "replace")))
            out[row] = np.array(self._tag_codes, np.int64)[numbers]
            checked[row] += np.diff(text.values(tags)[0])
        if props.SCHEDULE_TOPIC in self._names:
            self._deliver_times(block, out)
        return out

    def _deliver_times(self, block: Block, codes: Array) -> None:
        """Delayed messages have their deliver time for a tags code (consumequeue.md §3)."""
        delayed = block.topic == self._names.index(props.SCHEDULE_TOPIC)
        row, levels = block.properties.find(props.DELAY)
        for at, level in zip(row.tolist(), levels.to_pylist(), strict=True):
            if not delayed[at]:
                continue
            try:
                due = delay.deliver_time(level.decode("utf-8", "replace"),
                                         int(block.store_timestamp[at]))
            except ValueError:
                continue
            if due is not None:
                codes[at] = due

    def _queue_numbers(self, block: Block) -> Array:
        """The number of each message's queue in `QueueRows` (int64)."""
        dense = (block.queue_id >= 0) & (block.queue_id < _DENSE)
        at = block.topic * _DENSE + np.where(dense, block.queue_id, 0)
        found: Array = self._numbers[at].astype(np.int64)
        unknown = dense & (found < 0)
        if unknown.any():
            for cell in np.unique(at[unknown]).tolist():
                key = self._names[cell // _DENSE], cell % _DENSE
                self._numbers[cell] = self._rows.number(key)
            found = self._numbers[at].astype(np.int64)
        for index in np.flatnonzero(~dense).tolist():
            found[index] = self._rows.number((self._names[int(block.topic[index])],
                                              int(block.queue_id[index])))
        return found

    def _queue_rows(self, block: Block, checked: Array) -> None:
        kind = block.sys_flag & sysflag.TRANSACTION_MASK
        rowed = (kind == sysflag.TRANSACTION_NONE) | (kind == sysflag.TRANSACTION_COMMIT)
        if self._batched:
            rowed &= np.array(self._plain, bool)[block.topic]
        rows = Rows(self._queue_numbers(block), block.queue_offset, block.offset,
                    block.total_size, self._tag_hashes(block, checked), ~block.ok,
                    block.store_timestamp)
        self._rows.add(rows if rowed.all() else rows.take(rowed))
        self._dispatched(block, rows, rowed & block.ok)

    def _dispatched(self, block: Block, rows: Rows, which: Array) -> None:
        """Further rows of multi-dispatched (LMQ) messages (consumequeue.md §10)."""
        row, names = block.properties.find(props.MULTI_DISPATCH)
        if not len(row):
            return
        offset_row, offsets = block.properties.find(props.MULTI_QUEUE_OFFSET)
        known = dict(zip(offset_row.tolist(), offsets.to_pylist(), strict=True))
        picked: list[tuple[int, int, int]] = []
        for at, raw in zip(row.tolist(), names.to_pylist(), strict=True):
            queues, numbers = os.fsdecode(raw).split(","), known.get(at, b"").split(b",")
            if not which[at] or len(queues) != len(numbers):
                continue  # lists of different length: no rows at all
            for queue, number in zip(queues, numbers, strict=True):
                if number.isdigit() and queue and "/" not in queue:
                    lmq = queue.startswith(props.LMQ_PREFIX)
                    key = queue, 0 if lmq else int(block.queue_id[at])
                    picked.append((at, self._rows.number(key), int(number)))
        if picked:
            columns = np.array(picked, np.int64)
            more = rows.take(columns[:, 0])
            more.queue, more.offset = columns[:, 1], columns[:, 2]
            self._rows.add(more)

    # -- index keys -----------------------------------------------------------------------------

    def _index_keys(self, block: Block, check: KeyCheck, checked: Array) -> None:
        unique_row, unique = block.properties.find(props.UNIQUE_KEY)
        keys_row, keys = block.properties.find(props.KEYS)
        of, split = text.split_keys(keys)
        key_row = keys_row[of]
        count = len(block)
        unique_size = np.diff(text.values(unique)[0])
        key_size = np.diff(text.values(split)[0])
        has = np.zeros(count, np.int64)
        has[unique_row] = 1
        many = np.bincount(key_row, minlength=count)
        checked[unique_row] += unique_size
        checked += np.bincount(key_row, key_size, count).astype(np.int64)
        # Index order: each message's unique key, then its keys, message by message.
        each = has + many
        begin = np.cumsum(each) - each
        place_unique = begin[unique_row]
        first_key = np.cumsum(many) - many
        place_key = begin[key_row] + has[key_row] + np.arange(len(key_row)) - first_key[key_row]
        sharp = np.array(self._sharp, np.int64)[block.topic]
        hashes: Array = np.empty(int(each.sum()), np.int64)
        hashes[place_unique] = _hash(sharp[unique_row], unique)
        hashes[place_key] = _hash(sharp[key_row], split)
        row = np.repeat(np.arange(count), each)
        rollback = block.sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_ROLLBACK
        if rollback.any():
            kept = ~rollback[row]
            row, hashes = row[kept], hashes[kept]
        end = int(block.offset[-1] + block.total_size[-1])
        check.compare(block.offset[row], hashes, block.store_timestamp[row], end)


def _hash(sharp: Array, keys: pa.BinaryArray) -> Array:
    return text.index_hash(sharp, text.java_hash(keys), text.utf16_length(keys))
