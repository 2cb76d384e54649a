"""For messages with damaged properties, keep the values in their consume queue and index entries.

No CRC covers properties. The entries were written when the message was intact. If properties are
damaged, or marked as damaged by a repair, a rebuild keeps the values of the entries. These values
are the tags code, the hashes of the keys, and the entries in further queues.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from dataclasses import field
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from rmqctl.broker.settings import Settings
from rmqctl.checks.verify.queue.ext_units import ExtReader
from rmqctl.damage.index_keys import keys_of_places
from rmqctl.engine.dispatch.derive import Derived, overridden
from rmqctl.errors import RmqctlError, StoreIOError
from rmqctl.formats.local.consume_queue_ext import is_address
from rmqctl.formats.local.javahash import tags_code
from rmqctl.formats.local.properties import LMQ_PREFIX, SCHEDULE_TOPIC, TAGS, are_sound, parse
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.damage.properties import damaged_properties
from rmqctl.scan.fillers import kept_damaged
from rmqctl.scan.frames import Batch
from rmqctl.scan.source import Closing
from rmqctl.store.queue.search import first_from
from rmqctl.store.store import Sizes, Store

_NEAR = 1 << 14
"""Messages at most this many queue offsets away are searched for the same tags code."""
_TRIED = 16


class EntryKey(NamedTuple):
    """The values by which a message's entry is found and recognised."""

    topic: str
    queue_id: int
    queue_offset: int
    physical: int
    size: int


@dataclass(slots=True)
class StoreEntries:
    """The entries of an open store."""

    store: Store

    def tags_code(self, message: EntryKey) -> int | None:
        """Return the tags code in a message's entry of its own queue; None if that entry does not
        exist.
        """
        key = message.topic, message.queue_id
        try:
            batch = self.store.queues.batch.get(key)
            if batch is not None:
                row = batch.find(message.queue_offset)
                return row.tags_code if row is not None and (row.physical_offset, row.size) == (
                    message.physical, message.size) else None
            queue = self.store.queues.readable.get(key)
            if queue is None or not queue.exists:
                return None
            with closing(queue):
                unit = queue.unit(message.queue_offset)
        except (StoreIOError, OverflowError):
            return None
        if unit is None or (unit.physical_offset, unit.size) != (message.physical, message.size):
            return None
        return self._of_ext(key, unit.tags_code) if is_address(unit.tags_code) else unit.tags_code

    def tags(self, message: EntryKey, code: int) -> str | None:
        """Return the tags of a nearby message that is in the queue and has the same tags code; None
        if no message meets these conditions.
        """
        queue = self.store.queues.readable.get((message.topic, message.queue_id))
        if queue is None or not queue.exists or message.topic == SCHEDULE_TOPIC or not code:
            return None
        try:
            with closing(queue):
                first = max(queue.first_index, message.queue_offset - _NEAR)
                end = min(queue.disk_end, message.queue_offset + _NEAR)
                for _, units in queue.pages(first, end):
                    same = np.flatnonzero((units["tags_code"] == code) & (
                        units["physical_offset"] != message.physical))
                    for place in units["physical_offset"][same][:_TRIED].tolist():
                        tags = self._tags_at(place)
                        if tags is not None and tags_code(tags) == code:
                            return tags
        except StoreIOError:
            pass
        return None

    def _tags_at(self, place: int) -> str | None:
        record = self.store.log.record_at(place)
        if record is None or not record.crc_ok or not are_sound(record.properties):
            return None
        return parse(record.properties.decode()).get(TAGS)

    def _of_ext(self, key: tuple[str, int], address: int) -> int | None:
        reader = ExtReader(self.store, *key)
        try:
            unit = reader.unit(address)
        finally:
            reader.close()
        return None if unit is None else unit.tags_code

    def keys(self, places: Iterable[int]) -> dict[int, tuple[int, ...]]:
        """Return, for each physical offset, the key hashes of its message in index order, without
        overwritten hashes.
        """
        return {place: tuple(key.key_hash for key in keys if key.key_hash)
                for place, keys in keys_of_places(self.store, places).items()}

    def further(self, place: int, size: int) -> tuple[tuple[str, int], ...]:
        """Return (light queue, queue offset) for each light queue entry that points to a
        message.
        """
        pointing = []
        for (name, _), queue in self.store.queues.readable.items():
            if not name.startswith(LMQ_PREFIX) or not queue.exists:
                continue
            try:
                with closing(queue):
                    end = queue.disk_end
                    at = first_from(queue, queue.first_index, end, place)
                    unit = queue.unit(at) if at < end else None
            except StoreIOError:
                continue
            if unit is not None and (unit.physical_offset, unit.size) == (place, size):
                pointing.append((name, at))
        return tuple(pointing)


@dataclass(slots=True)
class KeptEntries(Closing):
    """The entries of the store at ``root``; the store is opened at the first use.

    Threads may share this object, and it may be sent to another process.
    """

    root: str
    sizes: Sizes
    further: bool
    """True if messages may have entries in light queues."""
    _entries: StoreEntries | None = field(default=None, compare=False)
    _lock: Any = field(default_factory=Lock, compare=False)

    def __reduce__(self) -> Any:
        return KeptEntries, (self.root, self.sizes, self.further)

    @classmethod
    def of(cls, root: str, settings: Settings) -> KeptEntries:
        """Return the entries of a store that is rebuilt with these settings."""
        return cls(root, Sizes(consumequeue_file=settings.consumequeue_file_size,
                               index_slots=settings.index_slots, index_max=settings.index_max),
                   settings.multi_dispatch)

    def kept(self, batch: Batch, derived: Derived) -> Derived:
        """Return the derived entries of a batch. For messages with damaged properties, the values
        are taken from the store's entries.
        """
        odd = kept_damaged(batch) | damaged_properties(batch)
        if not odd.any():
            return derived
        rows = np.flatnonzero(odd).tolist()
        places = batch.offset[odd].tolist()
        with self._lock:
            entries = self._open()
            if entries is None:
                return derived
            tags: dict[int, int] = {}
            further: dict[int, tuple[tuple[str, int], ...]] = {}
            for row, place in zip(rows, places, strict=True):
                size = int(derived.size[row])
                code = entries.tags_code(EntryKey(
                    os.fsdecode(derived.topics[int(derived.topic[row])]),
                    int(derived.queue_id[row]), int(derived.queue_offset[row]), place, size)
                    ) if derived.rowed[row] else None
                if code is not None:
                    tags[place] = code
                if self.further and derived.rowed[row] and (
                        light := entries.further(place, size)):
                    further[place] = light
            keys = entries.keys(places) if derived.key_row is not None else {}
        return overridden(derived, tags, keys, further)

    def close(self) -> None:
        if self._entries is not None:
            self._entries.store.close()
            self._entries = None

    def _open(self) -> StoreEntries | None:
        if self._entries is None:
            try:
                self._entries = StoreEntries(Store.open(self.root, (), self.sizes))
            except RmqctlError:
                return None
        return self._entries
