"""What a store's extension files say of messages, beyond what their log says.

Filter bit maps stand in no log: they come from the units there are. And where the log's head has
expired, the addresses go on from those the queue had (spec: consumequeue.md §8).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import consume_queue_ext as layout
from rmqctl.formats.local.consume_queue_ext import MAX_ADDRESS, MAX_SIZE, UnitRecord
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.store import Store

FOLDER = "consumequeue_ext"
_AHEAD = 64
"""Units that are passed over at most to find a message's one."""
_MISSES = 64
"""So many messages in a row without a unit: the others are not looked for any more."""
_PAGE = 1 << 16
_BUFFERED = 256


@dataclass(slots=True)
class _Queue:
    files: list[StoreFile]
    position: int
    found_any: bool = False
    misses: int = 0
    page: tuple[int, bytes] = field(default=(0, b""))


class OldUnits:
    """Gives the unit of each message of a queue, asked in queue order (a `Recall`).

    A message's unit is known by its tags code and store time, and by the row that leads to it.
    """

    def __init__(self, root: str) -> None:
        self._store = Store(root, [], Store.open(root).sizes)
        self._queues: dict[QueueKey, _Queue | None] = {}
        self._recent: OrderedDict[QueueKey, None] = OrderedDict()

    def __call__(self, key: QueueKey, physical: int, tags_code: int,
                 store_timestamp: int) -> tuple[int | None, bytes | None]:
        """(address, bit map or None) of the unit; None and None where none is known."""
        if key not in self._queues:
            self._queues[key] = self._open(key, physical)
        queue = self._queues[key]
        if queue is None:
            return None, None
        self._use(key)
        try:
            at, unit = self._search(queue, tags_code, store_timestamp)
        except (StoreIOError, FormatError):
            at, unit = 0, None
        if unit is None:
            queue.misses += 1
            if queue.misses >= _MISSES or not queue.found_any:
                self._queues[key] = None
            return None, None
        queue.misses, queue.found_any, queue.position = 0, True, at + unit.size
        return layout.address(at), unit.bit_map or None

    def _open(self, key: QueueKey, physical: int) -> _Queue | None:
        files = listing(os.path.join(self._store.root, FOLDER, key[0], str(key[1]))).files
        if not files:
            return None
        at = self._by_row(key, physical)
        if at is None:
            return _Queue(files, files[0].base)
        return _Queue(files, at, found_any=True)

    def _by_row(self, key: QueueKey, physical: int) -> int | None:
        """The byte offset that the queue's row of a message leads to."""
        queue = self._store.queue(*key)
        if queue is None:
            return None
        try:
            with closing(queue):
                for _, rows in queue.pages(queue.first_index, queue.disk_end):
                    mine = np.flatnonzero((rows["physical_offset"] == physical)
                                          & (rows["tags_code"] <= MAX_ADDRESS))
                    if len(mine):
                        return layout.byte_offset(int(rows["tags_code"][mine[0]]))
        except StoreIOError:
            pass
        return None

    def _search(self, queue: _Queue, tags_code: int, store_timestamp: int) -> tuple[
            int, UnitRecord | None]:
        """(byte offset, unit) of the next unit that fits; the first one may lie anywhere."""
        at, passed = queue.position, 0
        while passed < _AHEAD or not queue.found_any:
            unit = self._unit(queue, at)
            if unit is None:
                following = next((one.base for one in queue.files if one.base > at), None)
                if following is None:
                    break
                at = following
                continue
            if unit.tags_code == tags_code and unit.store_timestamp == store_timestamp:
                return at, unit
            at += unit.size
            passed += 1
        return 0, None

    def _unit(self, queue: _Queue, at: int) -> UnitRecord | None:
        """The unit at a byte offset; None where none is."""
        start, data = queue.page
        if not start <= at or at + MAX_SIZE > start + len(data):
            file = next((one for one in queue.files if one.base <= at < one.end), None)
            if file is None:
                return None
            if not (start <= at and start + len(data) >= file.end):
                with FileSource(file.path) as source:
                    start, data = at, source.read(at - file.base, _PAGE)
                queue.page = start, data
        try:
            return layout.decode(data, at - start)
        except FormatError:
            return None

    def _use(self, key: QueueKey) -> None:
        """Only the pages of the queues used last are kept."""
        self._recent[key] = None
        self._recent.move_to_end(key)
        if len(self._recent) > _BUFFERED:
            old = self._queues.get(self._recent.popitem(last=False)[0])
            if old is not None:
                old.page = 0, b""
