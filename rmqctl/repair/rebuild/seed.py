"""Copy data that a rebuild needs, but that the log does not contain, from the store.

Entries of expired messages are kept. In batch queues and the index, rebuilt entries follow them. A
plain queue is rebuilt from its first message in the log, with padding entries before it as in a
broker. After the rebuild, the entries of expired messages are copied over the padding.

Filter bit maps are copied from the present extension units. If the start of the log has expired,
the addresses of rebuilt units continue those of the present units (spec: consumequeue.md §8).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import field
from typing import Any

import numpy as np

from rmqctl.broker.settings import Settings
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.files.aside import AsideFolder
from rmqctl.files.durable import failed, make_folders, open_file, write_all
from rmqctl.formats.local import batch_consume_queue, consume_queue
from rmqctl.formats.local import consume_queue_ext as ext_layout
from rmqctl.formats.local import consume_queue_ext as layout
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.formats.local.consume_queue_ext import MAX_ADDRESS, MAX_SIZE, UnitRecord
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.queue.consume_queue import ConsumeQueue, valid
from rmqctl.store.queue.store_queues import QueueFolders
from rmqctl.store.store import Store

PLAIN, EXT, BATCH = "consumequeue", "consumequeue_ext", "batchconsumequeue"
_FILLER = np.array([tuple(FILLER)], consume_queue.dtype())[0]
_AHEAD = 64
"""Maximum number of units that are skipped to find the unit of a message."""
_MISSES = 64
"""Number of consecutive messages without a unit after which the search for units ends."""
_PAGE = 1 << 16
_BUFFERED = 256


# -- batch queues: before the rebuild -------------------------------------------------------------


def expired_batches(root: str, file_size: int, log_min: int) -> Iterator[tuple[StoreFile, int]]:
    """Yield (file, size) for each batch queue: the last file with entries of expired messages, and
    the size of these entries in bytes.

    Queues without such entries are skipped. Raises: StoreIOError.
    """
    if not log_min:
        return
    for queue in QueueFolders(root).batch.values():
        last: tuple[StoreFile, int] | None = None
        for number, file in enumerate(queue.files):
            rows = queue.used(number, log_min)
            if file.size != file_size or not len(rows):
                break
            last = file, len(rows) * batch_consume_queue.UNIT_SIZE
            if last[1] < file_size:
                break
        if last is not None:
            yield last


def seed_batch(root: str, file: StoreFile, used: int, scratch: Scratch) -> None:
    """Copy the leading ``used`` bytes of a batch queue's file into the scratch folder."""
    with FileSource(file.path) as source:
        data = source.read(0, used)
    target = scratch.path(os.path.relpath(file.path, root))
    make_folders(os.path.dirname(target), durable=False)
    fd = open_file(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "make")
    try:
        os.ftruncate(fd, file.size)
        write_all(fd, data, 0, target)
    except OSError as error:
        raise failed(error, target, "set the length of") from None
    finally:
        os.close(fd)


# -- after an interruption ------------------------------------------------------------------------


def drop_unfinished(scratch: Scratch, settings: Settings, done: int) -> None:
    """Remove the entries of messages that end after physical offset ``done`` from the scratch
    folder.

    The last entries may be incomplete. If a queue has only padding, the padding is removed, too:
    incomplete padding would misplace the first entry. Removed entries are rebuilt. Raises:
    StoreIOError.
    """
    size = settings.consumequeue_file_size
    aside = AsideFolder(scratch.root)
    derived = QueueFolders(scratch.root, size)
    for queue in derived.plain.values():
        with closing(queue):
            numbers = [_sound_rows(file, done) for file in queue.files]
            any_row = any((rows[:count] != _FILLER).any() for rows, count in numbers)
        row_counts = [count for _, count in numbers] if any_row else [0] * len(numbers)
        _cut_files(queue.files, row_counts, consume_queue.UNIT_SIZE, size, aside)
        if not any_row:
            for file in listing(scratch.path(EXT, queue.topic, str(queue.queue_id))).files:
                aside.move(file.path)
    size = settings.batch_consumequeue_file_size
    for batches in derived.batch.values():
        counts = [len(batches.used(number, done)) for number in range(len(batches.files))]
        _cut_files(batches.files, counts, batch_consume_queue.UNIT_SIZE, size, aside)


def _sound_rows(file: StoreFile, done: int) -> tuple[Any, int]:
    """Return (the entries of a file, the number of leading entries that are valid)."""
    with FileSource(file.path) as source:
        rows = consume_queue.UNIT.array(source.read(0, file.size))
    end = rows["physical_offset"] + rows["size"]
    good = valid(rows) & ((end <= done) | (rows == _FILLER))
    return rows, len(rows) if good.all() else int(good.argmin())


def _cut_files(files: list[StoreFile], counts: list[int], unit: int, size: int,
               aside: AsideFolder) -> None:
    """Keep only the leading units of a queue's files.

    ``counts``: number of units to keep, for each file. The first file with fewer units than it can
    hold is truncated. Later files are moved aside.
    """
    more = True
    for file, count in zip(files, counts, strict=True):
        if not more or not count:
            aside.move(file.path)
            more = False
            continue
        more = count * unit == size
        if not more:
            try:
                os.truncate(file.path, count * unit)
                os.truncate(file.path, size)
            except OSError as error:
                raise failed(error, file.path, "set the length of") from None


# -- plain queues and their extensions: after the rebuild -----------------------------------------


def take_over(root: str, scratch: Scratch, file_size: int, log_min: int) -> None:
    """Copy data of expired messages from the store to the rebuilt queues.

    The store's entries of expired messages replace the padding entries. The store's extension units
    before the first rebuilt unit are copied, too. Repeating this changes nothing. Raises:
    StoreIOError.
    """
    if not log_min:
        return
    for key, queue in QueueFolders(scratch.root, file_size).plain.items():
        with closing(queue):
            if queue.files:
                _take_units(os.path.join(root, EXT, key[0], str(key[1])), queue,
                            scratch.path(EXT, key[0], str(key[1])), log_min)
                _take_rows(os.path.join(root, PLAIN, key[0], str(key[1])), queue, log_min)


def _first_alive(queue: ConsumeQueue, log_min: int) -> int:
    """Return the queue offset of the first entry that points into the log, after padding and
    entries of expired messages.
    """
    for first, rows in queue.pages(queue.first_index, queue.written):
        alive = np.flatnonzero((rows["physical_offset"] >= log_min) & (rows != _FILLER))
        if len(alive):
            return first + int(alive[0])
    return queue.first_index


def _take_rows(theirs: str, queue: ConsumeQueue, log_min: int) -> None:
    first_file = queue.files[0]
    path = os.path.join(theirs, first_file.name)
    count = min(_first_alive(queue, log_min), consume_queue.queue_offset(first_file.end)) - (
        queue.first_index)
    if count <= 0 or not os.path.isfile(path):
        return
    with FileSource(path) as source:
        rows = consume_queue.UNIT.array(source.read(0, consume_queue.byte_offset(count)))
    place: Any = np.full(count, _FILLER, consume_queue.dtype())
    old = np.flatnonzero(valid(rows) & (rows["physical_offset"] < log_min))
    if len(old):
        place[old] = rows[old]
        _overwrite(first_file.path, place.tobytes())


def _take_units(theirs: str, queue: ConsumeQueue, own_folder: str, log_min: int) -> None:
    files = listing(own_folder).files
    path = os.path.join(theirs, files[0].name) if files else ""
    if not os.path.isfile(path):
        return
    for _, rows in queue.pages(_first_alive(queue, log_min), queue.written):
        codes = rows["tags_code"][rows["tags_code"] <= ext_layout.MAX_ADDRESS]
        if len(codes):
            offset = ext_layout.byte_offset(int(codes[0]))
            if files[0].base < offset < files[0].end:
                with FileSource(path) as source:
                    _overwrite(files[0].path, source.read(0, offset - files[0].base))
            return


def _overwrite(path: str, data: bytes) -> None:
    fd = open_file(path, os.O_RDWR)
    try:
        write_all(fd, data, 0, path)
    finally:
        os.close(fd)


# -- extension files ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Queue:
    files: list[StoreFile]
    position: int
    found_any: bool = False
    misses: int = 0
    page: tuple[int, bytes] = field(default=(0, b""))


class OldUnits:
    """Finds the existing extension unit of each message (a `Recall`).

    Calls must be in queue order. A message's unit is recognised by its tags code and store time,
    and by the entry that points to the unit.
    """

    def __init__(self, root: str) -> None:
        self._store = Store(root, [], Store.open(root).sizes)
        self._queues: dict[QueueKey, _Queue | None] = {}
        self._recent: OrderedDict[QueueKey, None] = OrderedDict()

    def __call__(self, key: QueueKey, physical: int, tags_code: int,
                 store_timestamp: int) -> tuple[int | None, bytes | None]:
        """Return (address, bit map or None) of a message's unit; (None, None) if unknown."""
        if key not in self._queues:
            self._queues[key] = self._open(key, physical)
        queue = self._queues[key]
        if queue is None:
            return None, None
        self._use(key)
        try:
            place, unit = self._search(queue, tags_code, store_timestamp)
        except (StoreIOError, FormatError):
            place, unit = 0, None
        if unit is None:
            queue.misses += 1
            if queue.misses >= _MISSES or not queue.found_any:
                self._queues[key] = None
            return None, None
        queue.misses, queue.found_any, queue.position = 0, True, place + unit.size
        return layout.address(place), unit.bit_map or None

    def _open(self, key: QueueKey, physical: int) -> _Queue | None:
        files = listing(os.path.join(self._store.root, EXT, key[0], str(key[1]))).files
        if not files:
            return None
        place = self._by_row(key, physical)
        if place is None:
            return _Queue(files, files[0].base)
        return _Queue(files, place, found_any=True)

    def _by_row(self, key: QueueKey, physical: int) -> int | None:
        """Return the byte offset of the unit to which a message's consume queue entry points; None
        if unknown.
        """
        queue = self._store.queues.find(*key)
        if queue is None:
            return None
        try:
            with closing(queue):
                for _, rows in queue.pages(queue.first_index, queue.disk_end):
                    hits = np.flatnonzero((rows["physical_offset"] == physical)
                                          & (rows["tags_code"] <= MAX_ADDRESS))
                    if len(hits):
                        return layout.byte_offset(int(rows["tags_code"][hits[0]]))
        except StoreIOError:
            pass
        return None

    def _search(self, queue: _Queue, tags_code: int, store_timestamp: int) -> tuple[
            int, UnitRecord | None]:
        """Return (byte offset, unit) of the next matching unit; (0, None) if no unit matches.

        The first unit may be anywhere in the queue.
        """
        place, passed = queue.position, 0
        while passed < _AHEAD or not queue.found_any:
            unit = self._unit(queue, place)
            if unit is None:
                following = next((file.base for file in queue.files if file.base > place), None)
                if following is None:
                    break
                place = following
                continue
            if unit.tags_code == tags_code and unit.store_timestamp == store_timestamp:
                return place, unit
            place += unit.size
            passed += 1
        return 0, None

    def _unit(self, queue: _Queue, place: int) -> UnitRecord | None:
        """Return the unit at a byte offset; None if no unit is there."""
        start, data = queue.page
        if not start <= place or place + MAX_SIZE > start + len(data):
            file = next((file for file in queue.files if file.base <= place < file.end), None)
            if file is None:
                return None
            if not (start <= place and start + len(data) >= file.end):
                with FileSource(file.path) as source:
                    start, data = place, source.read(place - file.base, _PAGE)
                queue.page = start, data
        try:
            return layout.decode(data, place - start)
        except FormatError:
            return None

    def _use(self, key: QueueKey) -> None:
        """Keep only the pages of the most recently used queues."""
        self._recent[key] = None
        self._recent.move_to_end(key)
        if len(self._recent) > _BUFFERED:
            old = self._queues.get(self._recent.popitem(last=False)[0])
            if old is not None:
                old.page = 0, b""
