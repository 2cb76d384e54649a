"""Columns derived from messages: tags codes, index keys, queues, batch ranges.

A check of a store and a dispatch of its messages use the same rules (spec: consumequeue.md §3 and
§9, index.md §5).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container

import numpy as np

from rmqctl.formats.local import delay, filler
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.javahash import string_hash
from rmqctl.kernel import active
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import text
from rmqctl.scan.damage.properties import MARK
from rmqctl.scan.frames import Array, Batch

QueueKey = tuple[str, int]
"""Topic (as a file name) and queue id."""

_DENSE = 64
"""Queue ids below this limit are looked up in a table; other ids (mostly damage) one by one."""
_NAME_MAX = 255
_INT16 = 16
_ODD, _LENGTH_BITS = 1 << 62, 16
"""The kernel's mark for a text that the kernel does not hash."""
_NAMES = (*(np.frombuffer(name.encode(), np.uint8) for name in (
    *(name + props.NAME_VALUE_SEPARATOR for name in (props.TAGS, props.UNIQUE_KEY, props.KEYS)),
    props.INNER)), ord(props.PROPERTY_SEPARATOR))
"""Property names in the kernel's form, and the separator of properties."""
_LOOKED_AT = [*((name + props.NAME_VALUE_SEPARATOR).encode() for name in (
    props.TAGS, props.UNIQUE_KEY, props.KEYS, props.DELAY)), props.INNER.encode(),
    filler.KEPT_START, MARK.tobytes()]
NAMES = (np.frombuffer(b"".join(_LOOKED_AT), np.uint8),
         np.cumsum([len(name) for name in _LOOKED_AT]))
"""Names of the properties that are read from intact records: the joined names, and the position at
which each name ends.
"""
_PLAIN, _SCHEDULE, _OTHER = range(3)


class QueueTable:
    """Assigns a number to the queue of each message, with the caller's function ``number``. For a
    queue with an id below `_DENSE`, the function is called only once.
    """

    def __init__(self, topics: text.Dictionary, number: Callable[[QueueKey], int]) -> None:
        self._topics, self._number = topics, number
        self._table: Array = np.zeros(0, np.int32)

    def encode(self, topic: Array, queue_id: Array) -> Array:
        """Return an array (int64) with the queue number of each message.

        ``topic``: the topic of each message, as its number in the dictionary.
        """
        short = len(self._topics) * _DENSE - len(self._table)
        if short > 0:
            self._table = np.concatenate([self._table, np.full(short, -1, np.int32)])
        dense = (queue_id >= 0) & (queue_id < _DENSE)
        cell_of_row = topic * _DENSE + np.where(dense, queue_id, 0)
        numbers: Array = self._table[cell_of_row].astype(np.int64)
        unknown = dense & (numbers < 0)
        if unknown.any():
            # With counts, because numpy would load its masked arrays for this otherwise.
            cells, _ = np.unique(cell_of_row[unknown], return_counts=True)
            for cell in cells.tolist():
                self._table[cell] = self._number((self._name(cell // _DENSE), cell % _DENSE))
            numbers = self._table[cell_of_row].astype(np.int64)
        for index in np.flatnonzero(~dense).tolist():
            numbers[index] = self._number((self._name(int(topic[index])), int(queue_id[index])))
        return numbers

    def _name(self, topic: int) -> str:
        return os.fsdecode(self._topics.texts[topic])


class TagsCodes:
    """Tags codes of messages: the hash of the tags, or the deliver time of a delayed message."""

    def __init__(self, topics: text.Dictionary,
                 levels: delay.Levels = delay.DEFAULT_LEVELS) -> None:
        self._topics, self._levels = topics, levels
        self._schedule = -1
        self._looked = 0

    def codes(self, properties: text.PropertySegments, topic: Array,
              store_timestamp: Array) -> tuple[
            Array, Array, Array]:
        """Return (code of each message, rows of the messages with tags, length of their tags in
        bytes), all int64.

        If a message's DELAY is not a number, its code is the tags' hash. A broker treats such a
        record as damage.
        """
        row, start, length = properties.places(props.TAGS)
        out: Array = np.zeros(len(topic), np.int64)
        out[row] = text.hashes(properties.data, start, length)[0]
        delayed = self.delayed(topic)
        if delayed is not None:
            self.set_deliver_times(properties, delayed, store_timestamp, out)
        return out, row, length

    def delayed(self, topic: Array) -> Array | None:
        """Return a boolean array: whether each message waits for its deliver time; None if no
        message does.
        """
        for number in range(self._looked, len(self._topics)):
            if self._topics.texts[number] == props.SCHEDULE_TOPIC.encode():
                self._schedule = number
        self._looked = len(self._topics)
        if self._schedule < 0:
            return None
        delayed: Array = topic == self._schedule
        return delayed if delayed.any() else None

    def set_deliver_times(self, properties: text.PropertySegments, delayed: Array,
                          store_timestamp: Array, out: Array) -> None:
        """Replace the tag hashes of delayed messages with their delivery times."""
        row, levels = properties.find(props.DELAY)
        for message, level in zip(row.tolist(), levels.tolist(), strict=True):
            if not delayed[message]:
                continue
            try:
                due = delay.deliver_time(level.decode("utf-8", "replace"),
                                         int(store_timestamp[message]), self._levels)
            except ValueError:
                continue
            if due is not None:
                out[message] = due


@dataclass(slots=True)
class Keys:
    """Index keys in index order: for each message in turn, the unique key, then the other keys.

    ``row`` (the key's message), ``key_hash`` (the hash in the index entry) and ``size`` (bytes of
    the key) are int64.
    """

    row: Array
    key_hash: Array
    size: Array


class IndexKeys:
    """The keys of messages as an index contains them, for messages of any transaction type."""

    def __init__(self, topics: text.Dictionary) -> None:
        self._topics = topics
        self._sharp: Array = np.zeros(0, np.int64)

    def keys(self, properties: text.PropertySegments, topic: Array) -> Keys:
        """Return the keys. ``topic``: each message's topic, as its number in the dictionary."""
        of_kernel = properties.index_keys(topic, self.sharp())
        if of_kernel is not None:
            return Keys(*of_kernel)
        unique = properties.places(props.UNIQUE_KEY)
        row, start, length = properties.places(props.KEYS)
        number, start, length = text.split(properties.data, start, length)
        row = np.concatenate([unique[0], row[number]])
        order = np.argsort(row, kind="stable")
        row = row[order]
        start = np.concatenate([unique[1], start])[order]
        length = np.concatenate([unique[2], length])[order]
        key_hash, units = text.hashes(properties.data, start, length)
        return Keys(row, text.index_hash(self._sharp[topic[row]], key_hash, units), length)

    def sharp(self) -> Array:
        """Return the hash of ``topic#`` of each topic (int64)."""
        new = self._topics.texts[len(self._sharp):]
        if new:
            hashes = [string_hash(raw.decode("utf-8", "replace") + "#") for raw in new]
            self._sharp = np.concatenate([self._sharp, np.array(hashes, np.int64)])
        return self._sharp


@dataclass(slots=True)
class DerivedColumns:
    """Tags codes of messages, and the keys of their index entries in index order.

    ``key_row``: the message of each key.
    ``key_hash``: the hash in the key's index entry.
    ``properties``: the properties of the messages; None if no message has a property about queues,
        such as ``INNER_BASE``.

    All arrays are int64.
    """

    tags: Array
    key_row: Array
    key_hash: Array
    properties: text.PropertySegments | None


class LeadsOf:
    """Computes the tags codes and index keys of messages: in one pass if the kernel is installed,
    or else column by column.

    ``tags`` and ``keys`` select the results. Results that are not selected have no meaning.
    """

    def __init__(self, topics: text.Dictionary, levels: delay.Levels, *, tags: bool,
                 keys: bool) -> None:
        self._tags, self._keys = TagsCodes(topics, levels), IndexKeys(topics)
        self._with_tags, self._with_keys = tags, keys
        self._most = 2
        """Expected maximum number of keys per message, for which space is allocated beforehand."""

    def of(self, batch: Batch, topic: Array) -> DerivedColumns:
        """Return the values; ``topic``: the index of each message's topic in the dictionary."""
        when = batch.column("store_timestamp")
        if active() is not None:
            return self._by_kernel(batch, topic, when)
        properties = text.PropertySegments(batch)
        leads = DerivedColumns(topic[:0], topic[:0], topic[:0], properties)
        if self._with_tags:
            leads.tags = self._tags.codes(properties, topic, when)[0]
        if self._with_keys:
            keys = self._keys.keys(properties, topic)
            leads.key_row, leads.key_hash = keys.row, keys.key_hash
        return leads

    def _by_kernel(self, batch: Batch, topic: Array, when: Array) -> DerivedColumns:
        kernel = active()
        assert kernel is not None
        texts = text.properties(batch)
        columns = text.contiguous(texts.start, texts.length)
        numbers = text.contiguous(topic, self._keys.sharp())
        tags: Array = np.empty(len(batch), np.int64)
        while True:
            keys: Array = np.empty((2, self._most * len(batch)), np.int64)
            count, odd, others = kernel.leads(texts.data, *columns, *_NAMES, *numbers,
                                              self._with_keys, tags, keys)
            if count <= keys.shape[1]:
                break
            self._most = -(-count // len(batch))
        row, key_hash = keys[:, :count]
        if odd:
            self._decode(texts.data, topic, tags, row, key_hash)
        delayed = self._tags.delayed(topic) if self._with_tags else None
        properties = text.PropertySegments(batch) if others or delayed is not None else None
        if delayed is not None and properties is not None:
            self._tags.set_deliver_times(properties, delayed, when, tags)
        return DerivedColumns(tags, row, key_hash, properties)

    def _decode(self, data: Array, topic: Array, tags: Array, row: Array,
                key_hash: Array) -> None:
        """Hash the texts that are not ASCII, for which the kernel returned only the positions."""
        odd = np.flatnonzero(tags >= _ODD)
        tags[odd] = text.hashes(data, *_place(tags[odd]))[0]
        odd = np.flatnonzero(key_hash >= _ODD)
        hashed, units = text.hashes(data, *_place(key_hash[odd]))
        key_hash[odd] = text.index_hash(self._keys.sharp()[topic[row[odd]]], hashed, units)


def _place(odd: Array) -> tuple[Array, Array]:
    """Return (start, length) of texts that the kernel did not hash."""
    return (odd - _ODD) >> _LENGTH_BITS, odd & ((1 << _LENGTH_BITS) - 1)


def batch_range(queue_offset: int, base: str | None, count: str | None) -> tuple[int, int]:
    """Return (first queue offset, number of queue offsets) of a record in a batch queue.

    Without INNER_BASE or INNER_NUM, a record covers only its own queue offset.

    Raises: ValueError if a broker cannot read the numbers.
    """
    if base is None or count is None:
        return queue_offset, 1
    return delay.java_int(base, 64), delay.java_int(count, _INT16)


def batch_ranges(properties: text.PropertySegments, queue_offset: Array) -> tuple[Array, Array]:
    """Return the result of `batch_range` for each record, as columns (int64); -1 and -1 if a broker
    cannot read the numbers.
    """
    base = queue_offset.copy()
    count: Array = np.ones(len(queue_offset), np.int64)
    base_rows, bases = properties.find(props.INNER_BASE)
    if not len(base_rows):
        return base, count
    number_rows, numbers = properties.find(props.INNER_NUM)
    sizes = dict(zip(number_rows.tolist(), numbers.tolist(), strict=True))
    for row, raw in zip(base_rows.tolist(), bases.tolist(), strict=True):
        if row in sizes:
            try:
                base[row], count[row] = batch_range(0, raw.decode("utf-8", "replace"),
                                                    sizes[row].decode("utf-8", "replace"))
            except ValueError:
                base[row] = count[row] = -1
    return base, count


def is_queue_name(name: str) -> bool:
    """Return whether a topic or queue name is valid as the name of one folder under
    ``consumequeue/``.
    """
    return (name not in {"", ".", ".."} and "/" not in name and "\0" not in name
            and len(os.fsencode(name)) <= _NAME_MAX)


# -- for passes of the kernel over sound records --------------------------------------------------


def delays(levels: delay.Levels) -> Array:
    """Return the milliseconds of each delay level (int64), from level 0 on."""
    return np.array([levels.get(level, delay.UNKNOWN_LEVEL)
                     for level in range(max(levels, default=-1) + 1)], np.int64)


class TopicNumbers:
    """The topics of one pass of the kernel, by number. Messages of the topics in ``others`` are
    processed by column instead.
    """

    def __init__(self, others: Container[str] = ()) -> None:
        self._others = others
        self.table = text.TextTable()
        self.rows: Array = np.zeros((0, 4), np.int64)
        """For each topic number: the hash of ``topic#``, the first cell and the number of cells for
        its queues, and the kind.
        """

    def add(self, raw: Array) -> bytes:
        """Add a new topic."""
        number = int(self.table.encode(text.Texts(
            raw, np.zeros(1, np.int64), np.array([len(raw)], np.int64)))[0])
        name = raw.tobytes()
        topic = os.fsdecode(name)
        kind = _OTHER if topic in self._others else (
            _SCHEDULE if topic == props.SCHEDULE_TOPIC else _PLAIN)
        self.rows = grown(self.rows, number + 1)
        self.rows[number] = string_hash(name.decode("utf-8", "replace") + "#"), 0, 0, kind
        return name

    def name(self, number: int) -> bytes:
        return self.table.texts(slice(number, number + 1)).tolist()[0]


def grown(array: Array, rows: int) -> Array:
    """Return the array extended to ``count`` rows; new rows are zero."""
    if rows <= len(array):
        return array
    more: Array = np.zeros((max(2 * len(array), rows), array.shape[1]), array.dtype)
    more[:len(array)] = array
    return more
