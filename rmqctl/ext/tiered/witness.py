"""Evidence for the offsets of messages: the units of a queue and the index items of its broker.

This is the tier's counterpart of `rmqctl.store.log.witness`. The evidence is used only after damage
in a commit log. Then it helps to decide whether a frame is a message or part of a message body. A
frame in a body has no unit and no index item.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from rmqctl.damage.index_keys import IndexedKey
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.ext.tiered.files.reader import TierReader, close_source
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue
from rmqctl.ext.tiered.index.index_file import LocalIndex, TierIndexFile, uploaded
from rmqctl.ext.tiered.verify.items import LONG_AGO, time_difference
from rmqctl.ext.tiered.verify.units import TierUnits
from rmqctl.formats.local import message
from rmqctl.formats.local.message import Record
from rmqctl.formats.tiered.units import CODA_SIZE, GUESSED, is_coda
from rmqctl.scan.damage.references import key_hashes
from rmqctl.scan.damage.slots import queues, records_in
from rmqctl.scan.frames import Array, distinct
from rmqctl.scan.resync import provable
from rmqctl.scan.source import LARGEST_RECORD, Past, QueueEnds
from rmqctl.scan.walk import Walk
from rmqctl.store.log.leads import NOTHING, Pages, Pair

_PAGE = 1 << 15
_MAX_CODAS = 100
"""Maximum number of units per page for which the log is read to find a coda before the message."""
_SIGN = 1 << 31
_MAX_READ = 16 << 20
"""Largest record (bytes) that is read as evidence."""
_NEAR = 64
"""Number of messages before a segment that are read to determine queue offsets."""


class KnownItems:
    """The index items of a broker by queue id, uploaded or not. Items are read on demand.

    ``folder``: folder of the uploaded files, in the tier. ``local_folder``: folder of the files
    that are not uploaded.
    """

    def __init__(self, reader: TierReader, folder: str, local_folder: str | None) -> None:
        self._reader, self._folder, self._local_folder = reader, folder, local_folder
        self._local: LocalIndex | None = None
        self._pages: list[tuple[TierIndexFile, Callable[[], Array], Array]] | None = None
        """For each page of items: its file, a function that reads the page, and the queue ids in
        the page.
        """

    def of(self, queue_id: int) -> Pages:
        """Return (offset in the commit log, key hash) of all items that have this queue id; their
        topics may differ.
        """
        pages = Pages()
        for _, read in self._of(queue_id):
            pages.add(partial(_items, read, queue_id))
        return pages

    def times(self, queue_id: int, places: Array, stored: Array) -> Iterator[
            tuple[int, int, IndexedKey]]:
        """Yield (offset in the commit log, size, key) for items with this queue id that point to
        one of ``places``. The topics of the items may differ.

        ``places``: offsets, ascending. ``stored``: store times (ms) of the messages at ``places``.
        If an item's time was computed from its message's store time, the key contains the exact
        store time.
        """
        for file, read in self._of(queue_id):
            items, begin, old = read(), file.timestamp, file.shape.old
            row = np.minimum(np.searchsorted(places, items["commit_log_offset"]), len(places) - 1)
            led = (items["queue_id"] == queue_id) & (places[row] == items["commit_log_offset"])
            times = stored[row[led]]
            proper = time_difference(times - begin, old)
            for item, time, seconds in zip(items[led], times.tolist(), proper.tolist(),
                                           strict=True):
                diff = int(item["time_diff"])
                yield int(item["commit_log_offset"]), int(item["size"]), IndexedKey(
                    int(item["key_hash"]),
                    time if diff == seconds else begin + diff * (1 if old else 1000),
                    # Newer brokers write 0 for a message a little older than the file (PR #10471).
                    is_begin=not diff and begin - time < LONG_AGO * 1000)

    def within(self, queue_id: int, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (topic id, key hash, offset in the commit log, size) for each item that has this
        queue id and points into ``[start, end)``.
        """
        for _, read in self._of(queue_id):
            items = read()
            place = items["commit_log_offset"]
            for item in items[(items["queue_id"] == queue_id) & (place >= start) & (place < end)]:
                yield (int(item["topic_id"]), int(item["key_hash"]),
                       int(item["commit_log_offset"]), int(item["size"]))

    def _of(self, queue_id: int) -> Iterator[tuple[TierIndexFile, Callable[[], Array]]]:
        if self._pages is None:
            self._pages = [(file, read, distinct(read()["queue_id"])) for file in self._files()
                           for read in _blocks(file)]
        for file, read, queue_ids in self._pages:
            if queue_id in queue_ids:
                yield file, read

    def _files(self) -> Iterator[TierIndexFile]:
        try:
            files = list(uploaded(FlatFile.open(self._reader, self._folder)))
            self._local = LocalIndex(self._local_folder)
        except StoreIOError:
            return
        yield from (file for file in files if isinstance(file, TierIndexFile))
        yield from self._local.files

    def close(self) -> None:
        if self._local is not None:
            self._local.close()
            self._local = None
        self._pages = None


def _blocks(file: TierIndexFile) -> Iterator[Callable[[], Array]]:
    for first in range(0, file.items, _PAGE):
        yield partial(_block, file, first)


def _block(file: TierIndexFile, first: int) -> Array:
    try:
        return file.block(first, _PAGE)
    except StoreIOError:
        return file.block(0, 0)


def _items(read: Callable[[], Array], queue_id: int) -> Pair:
    items = read()
    items = items[items["queue_id"] == queue_id]
    # Older brokers and the local index negate a negative hash, newer brokers clear its sign bit:
    # return both for each key.
    code = items["key_hash"].astype(np.int64)
    place = items["commit_log_offset"].astype(np.int64)
    return np.concatenate([place, place]), np.concatenate([code, _SIGN - code])


class QueueWitness:
    """The `rmqctl.scan.source.Witness` of a queue's commit log. Its offsets are offsets in the
    tier.
    """

    largest_record = LARGEST_RECORD

    def __init__(self, queue: FlatQueue, items: KnownItems | None) -> None:
        self._queue, self._items = queue, items
        self._topic = os.fsencode(queue.name.topic)
        self._units: TierUnits | None = None
        self._rows: Pages | None = None
        self._keys: Pages | None = None
        self._kept: dict[int, int] = {}

    def keep(self, frames: Iterable[tuple[int, int]]) -> bool:
        """Treat undecided frames (position, size) as messages from now on. Return whether at least
        one of these frames is new.
        """
        before = len(self._kept)
        self._kept.update(frames)
        self._rows = None
        return len(self._kept) > before

    def rows(self, start: int, end: int) -> Pair:
        if self._rows is None:
            self._rows = Pages()
            if self._kept:
                kept = np.array(sorted(self._kept.items()), np.int64)
                self._rows.add(lambda: (kept[:, 0], kept[:, 1]))
            units = self._known_units()
            for first, page in units.blocks() if units is not None else ():
                for number in range(0, len(page), _PAGE):
                    self._rows.add(partial(self._page, first + number,
                                           min(_PAGE, len(page) - number)))
        return self._rows.within(start, end)

    def keys(self, start: int, end: int) -> Pair:
        if self._keys is None:
            self._keys = Pages() if self._items is None else self._items.of(
                self._queue.name.queue_id)
        return self._keys.within(start, end)

    def times(self, records: Mapping[int, Record]) -> dict[int, list[IndexedKey]]:
        """Return the keys and times of the index items that point to ``records``, by commit log
        offset.
        """
        by_place: dict[int, list[IndexedKey]] = {}
        if self._items is None or not records:
            return by_place
        places = np.array(sorted(records), np.int64)
        stored = np.array([records[place].store_timestamp for place in places.tolist()], np.int64)
        for place, size, key in self._items.times(self._queue.name.queue_id, places, stored):
            record = records[place]
            if size == record.total_size and {key.key_hash, _SIGN - key.key_hash} & key_hashes(
                    record):
                by_place.setdefault(place, []).append(key)
        return by_place

    def extents(self, start: int, end: int, beside: Iterable[Record]) -> list[tuple[int, int]]:
        """Return (position, size) of the messages in ``[start, end)`` of the log that have index
        items, in order.

        ``beside``: messages outside the range. Their items determine the queue's topic id. If the
        id remains unknown, the result is empty.
        """
        hashes = {record.physical_offset: (record.total_size, key_hashes(record))
                  for record in beside}
        if self._items is None or not hashes:
            return []
        topics: set[int] = set()
        places: dict[int, set[tuple[int, int]]] = {}
        for topic, code, place, size in self._items.within(
                self._queue.name.queue_id, min(*hashes, start), max(*hashes, end) + 1):
            if start <= place < end:
                places.setdefault(topic, set()).add((place, size))
            elif place in hashes and size == hashes[place][0] and (
                    {code, _SIGN - code} & hashes[place][1]):
                topics.add(topic)
        return sorted(places.get(topics.pop(), ())) if len(topics) == 1 else []

    def confirms(self, record: Record) -> bool | None:
        """Return whether the unit of the record's queue offset points to the record; None if the
        unit is unknown.

        Return False for a record of another queue: a commit log contains only one queue.
        """
        if record.topic != self._topic or record.queue_id != self._queue.name.queue_id:
            return False
        entry = self.entry_of(record)
        return None if entry is None else entry == (record.physical_offset, record.total_size)

    def confirms_all(self, _topic: str, _queue_id: int, offsets: Array, _places: Array,
                     _sizes: Array) -> Array:
        return np.zeros(len(offsets), bool)

    def entry_of(self, record: Record) -> tuple[int, int] | None:
        units = self._known_units()
        try:
            page = None if units is None else units.block(record.queue_offset, 1)
        except StoreIOError:
            return None
        if page is None or not len(page):
            return None
        place, size = self._valid(page)
        if not len(place):
            return None
        return int(place[0]), int(size[0])

    def record_at(self, physical: int, size: int) -> Record | None:
        log = self._queue.commit_log
        segment = log.segment_of(physical)
        if segment is None or size > _MAX_READ:
            return None
        try:
            raw = log.reader.read(segment.path, physical - segment.base, size)
            record = message.decode(raw)
        except (StoreIOError, FormatError):
            return None
        return record if (record.physical_offset, record.total_size) == (physical, size) else None

    def goes_on(self, physical: int) -> bool:
        log = self._queue.commit_log
        segment = log.segment_of(physical)
        if segment is None or segment.base != physical:
            return False
        try:
            source = log.reader.source(segment.path, segment.base)
            try:
                return provable(source, 0)
            finally:
                close_source(source)
        except StoreIOError:
            return False

    def offsets_before(self, physical: int) -> Past | None:
        log = self._queue.commit_log
        segment = log.segment_of(physical - 1)
        if segment is None or segment.end != physical:
            return None
        try:
            source = log.reader.source(segment.path, segment.base)
            try:
                walk, stored = Walk(source, 0, segment.usable), -1
                for batch in walk:
                    stored = int(batch.column("store_timestamp")[-1]) if len(batch) else stored
                stretches = walk.passed.stretches()
                return Past(queues(source, *stretches[-1], -_NEAR), records_in(
                    segment.usable - stretches[-1][1]), stored) if stretches else None
            finally:
                close_source(source)
        except StoreIOError:
            return None

    def offsets_behind(self, physical: int) -> QueueEnds | None:
        if not self.goes_on(physical):
            return None
        record = self._queue.commit_log.record_at(physical)
        return None if record is None else {
            (record.topic, record.queue_id): (record.queue_offset, record.queue_offset)}

    # -- units ------------------------------------------------------------------------------------

    def _known_units(self) -> TierUnits | None:
        if self._units is None:
            units = TierUnits(self._queue)
            try:
                units.find_tears()
            except StoreIOError:
                return None
            self._units = units
        return self._units

    def _page(self, first: int, count: int) -> Pair:
        units = self._known_units()
        try:
            return NOTHING if units is None else self._valid(units.block(first, count))
        except (StoreIOError, FormatError):
            return NOTHING

    def _valid(self, units: Array) -> Pair:
        """Return the positions and the sizes of the messages to which units point. Invalid units
        and units that `tiered recover` guessed are ignored. If a coda precedes the message, the
        position is after the coda.
        """
        place = units["commit_log_offset"].astype(np.int64)
        size = units["size"].astype(np.int64)
        good = (place >= 0) & (size >= message.MIN_SIZE) & (units["tags_code"] != GUESSED)
        place, size = place[good], size[good]
        if len(place):
            meets = np.append(place[1:] == place[:-1] + size[:-1], False)
            for row in np.flatnonzero(~meets)[:_MAX_CODAS].tolist():
                if is_coda(self._queue.commit_log.read(int(place[row]), CODA_SIZE)):
                    place[row] += CODA_SIZE
        return place, size
