"""Derive the consume queue and index entries of a batch of messages, as columns.

Nothing is written, and only the bytes of the log are needed. Other threads may therefore derive
entries ahead of the writer (`rmqctl.engine.dispatch.reput.Dispatcher.apply`). Spec: consumequeue.md
§3, §4, §9 and §10, index.md §5.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rmqctl.broker.settings import Settings
from rmqctl.broker.versions import BrokerVersion
from rmqctl.formats.local import delay, sysflag
from rmqctl.formats.local import properties as props
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import text
from rmqctl.scan.derived import LeadsOf, batch_ranges
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.queue_reach import NOT_DISPATCHED, dispatched_rows


@dataclass(slots=True)
class FurtherRows:
    """Entries of multi-dispatched messages in queues other than their own (consumequeue.md §10).

    ``message``: the number of the message. ``name``: the number of the queue's name in ``names``.
    ``offset``: the queue offset in that queue. All three are int64. The entries of a message keep
    their order.
    """

    names: list[bytes]
    message: Array
    name: Array
    offset: Array

    @classmethod
    def joined(cls, parts: Sequence[FurtherRows]) -> FurtherRows:
        """Concatenate parts (at least one), which are in log order."""
        first = np.cumsum([0, *(len(part.names) for part in parts)])
        return cls([name for part in parts for name in part.names],
                   np.concatenate([part.message for part in parts]),
                   np.concatenate([part.name + number
                                   for part, number in zip(parts, first, strict=False)]),
                   np.concatenate([part.offset for part in parts]))


@dataclass(slots=True)
class Derived:
    """The entries of messages, as int64 columns with an element for each message, in log order;
    picklable.

    * ``topic``: indices into ``topics``
    * ``tags``: tags codes without extension addresses
    * ``rowed`` (bool): whether the message gets consume queue entries
    * ``key_row``, ``key_hash``: an element for each key of an indexed message, in index order: the
      index of the message, and the hash in the index entry
    * ``inner``: (first queue offset, number of queue offsets) of each message for a batch queue;
      None if every message is a single message
    """

    topics: list[bytes]
    topic: Array
    queue_id: Array
    queue_offset: Array
    physical: Array
    size: Array
    store_timestamp: Array
    tags: Array
    rowed: Array
    key_row: Array | None
    key_hash: Array | None
    further: FurtherRows | None
    inner: tuple[Array, Array] | None

    def __len__(self) -> int:
        return len(self.physical)

    @classmethod
    def joined(cls, parts: Sequence[Derived]) -> Derived:
        """Concatenate parts of the same deriver (at least one), which are in log order."""
        if len(parts) == 1:
            return parts[0]
        begin = np.cumsum([0, *(len(part) for part in parts)])
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in (
            "topic", "queue_id", "queue_offset", "physical", "size", "store_timestamp", "tags",
            "rowed")}
        key_row = key_hash = inner = None
        if parts[0].key_row is not None:
            key_row = np.concatenate([
                part.key_row + first for part, first in zip(parts, begin, strict=False)])
            key_hash = np.concatenate([part.key_hash for part in parts])
        if any(part.inner is not None for part in parts):
            ranges = [part.inner or (part.queue_offset, np.ones(len(part), np.int64))
                      for part in parts]
            inner = (np.concatenate([first for first, _ in ranges]),
                     np.concatenate([count for _, count in ranges]))
        further = [FurtherRows(part.further.names, part.further.message + first, part.further.name,
                               part.further.offset)
                   for part, first in zip(parts, begin, strict=False) if part.further is not None]
        return cls(topics=parts[-1].topics, **columns, key_row=key_row, key_hash=key_hash,
                   further=FurtherRows.joined(further) if further else None, inner=inner)


def overridden(derived: Derived, tags: Mapping[int, int], keys: Mapping[int, Sequence[int]],
               further: Mapping[int, Sequence[tuple[str, int]]] | None = None) -> Derived:
    """Return ``derived`` with other values for some messages, given by their physical offsets.

    ``tags`` (tags codes) and ``keys`` (key hashes) replace the derived values. ``further`` (queue,
    queue offset) are entries to add.
    """
    further = further or {}
    named = np.array(sorted({*tags, *keys, *further}), np.int64)
    rows = np.flatnonzero(np.isin(derived.physical, named)) if len(named) else named
    if not len(rows):
        return derived
    codes, key_row, key_hash = derived.tags.copy(), derived.key_row, derived.key_hash
    more = []
    for row in rows.tolist():
        place = int(derived.physical[row])
        if place in tags and len(codes):
            codes[row] = tags[place]
        if place in keys and key_row is not None and key_hash is not None:
            low, high = np.searchsorted(key_row, (row, row + 1)).tolist()
            own = np.array(keys[place], np.int64)
            key_row = np.concatenate([key_row[:low], np.full(len(own), row), key_row[high:]])
            key_hash = np.concatenate([key_hash[:low], own, key_hash[high:]])
        if len(codes):
            more += [(row, name, offset) for name, offset in further.get(place, ())]
    return replace(derived, tags=codes, key_row=key_row, key_hash=key_hash,
                   further=_with_more(derived.further, more))


def _with_more(further: FurtherRows | None,
               more: Sequence[tuple[int, str, int]]) -> FurtherRows | None:
    """Add the entries in ``more`` (message, queue, queue offset) that do not exist yet."""
    present = set() if further is None else {
        (row, further.names[name], offset) for row, name, offset in zip(
            further.message.tolist(), further.name.tolist(), further.offset.tolist(),
            strict=True)}
    new = [(row, raw, offset) for row, name, offset in more
           if (row, raw := os.fsencode(name), offset) not in present]
    if not new:
        return further
    names = [raw for _, raw, _ in new]
    added = FurtherRows(names, np.array([row for row, _, _ in new], np.int64), np.arange(len(new)),
                        np.array([offset for _, _, offset in new], np.int64))
    both = added if further is None else FurtherRows.joined([further, added])
    order = np.argsort(both.message, kind="stable")
    return FurtherRows(both.names, both.message[order], both.name[order], both.offset[order])


class Deriver:
    """Derives entries from many batches. A topic keeps its number, because ``topics`` only grows.

    ``rows``: whether to derive consume queue entries; ``keys``: whether to derive index entries.
    Columns that are not derived are empty (``tags``) or None.
    """

    def __init__(self, profile: BrokerVersion, delay_levels: str, *, rows: bool = True,
                 keys: bool = True, multi_dispatch: bool = False) -> None:
        self.topics = text.Dictionary()
        self._profile, self.with_rows, self.with_keys = profile, rows, keys
        self._multi = multi_dispatch and rows
        self.levels = delay.parse_levels(delay_levels)
        self._leads = LeadsOf(self.topics, self.levels, tags=rows, keys=keys)

    def derive(self, batch: Batch) -> Derived:
        """Derive the entries of a batch; the result has no references to the batch's buffer."""
        topic = self.topics.encode(text.topics(batch))
        leads = self._leads.of(batch, topic)
        kind = batch.column("sys_flag") & sysflag.TRANSACTION_MASK
        rowed = (kind == sysflag.TRANSACTION_NONE) | (kind == sysflag.TRANSACTION_COMMIT)
        when, queue_offset = batch.column("store_timestamp"), batch.column("queue_offset")
        derived = Derived(self.topics.texts, topic, batch.column("queue_id"), queue_offset,
                          batch.offset, batch.column("total_size"), when, topic[:0], rowed,
                          None, None, None, None)
        properties = leads.properties
        if self.with_rows:
            derived.tags = leads.tags
            if self._profile.batch_queues and properties is not None and len(
                    properties.places(props.INNER_BASE)[0]):
                derived.inner = batch_ranges(properties, queue_offset)
        if self._multi and properties is not None:
            derived.further = self._further(properties, topic, rowed)
        if self.with_keys:
            derived.key_row, derived.key_hash = leads.key_row, leads.key_hash
            rollback = kind == sysflag.TRANSACTION_ROLLBACK
            if rollback.any():
                indexed = ~rollback[leads.key_row]
                derived.key_row, derived.key_hash = leads.key_row[indexed], leads.key_hash[indexed]
        return derived

    def _further(self, properties: text.PropertySegments, topic: Array,
                 rowed: Array) -> FurtherRows | None:
        if self._profile.generation >= 5:
            left_out = [topic.startswith(NOT_DISPATCHED) for topic in self.topics.texts]
            rowed = rowed & ~np.array(left_out, bool)[topic]
        message, names, offset = dispatched_rows(properties, rowed)
        if not len(message):
            return None
        distinct = text.Dictionary()
        number = distinct.encode(names)
        return FurtherRows(distinct.texts, message, number, offset)


def deriver_for(settings: Settings, *, rows: bool = True) -> Deriver:
    """Return a deriver for a dispatcher with these settings."""
    return Deriver(settings.profile, settings.message_delay_level, rows=rows,
                   keys=settings.message_index, multi_dispatch=settings.multi_dispatch)
