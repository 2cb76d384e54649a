"""Groups of queues, and the columns of a group's segment in a spool.

A group contains complete queues, selected by a hash of topic and queue id, so each group can be
written separately. A message that was dispatched to several queues is passed to the groups of all
these queues. Each group receives only the entries of its own queues.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import numpy as np

from rmqctl.engine.dispatch.derive import Derived, FurtherRows
from rmqctl.errors import InternalError
from rmqctl.ext.spark.rebuild.spool import Columns, texts_of, texts_to_columns
from rmqctl.formats.local import properties as props
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.rebuild.rebuild import wants
from rmqctl.scan import text
from rmqctl.scan.derived import QueueKey, QueueTable, is_queue_name
from rmqctl.scan.frames import Array

ROW_COLUMNS = 16
INDEX_COLUMNS = 4
_LMQ = props.LMQ_PREFIX.encode()


@dataclass(frozen=True, slots=True)
class Grouping:
    """A division of the queues into ``count`` groups. ``topic``, ``queue``: the only queues to
    include, if not None.
    """

    count: int
    topic: str | None = None
    queue: int | None = None
    lmq: bool = False
    """True if all further queues with the name of an LMQ have the queue id 0."""

    @property
    def index(self) -> int:
        """Return the group number for the index; no group of queues has it."""
        return self.count

    @property
    def left_out(self) -> int:
        """Return the group number for entries that are not needed."""
        return self.count + 1

    def of(self, key: QueueKey) -> int:
        """Return the group number of a queue.

        A queue whose folder cannot be created also belongs to a group, so that its entries are
        counted.
        """
        if is_queue_name(key[0]) and not wants(self.topic, self.queue, key):
            return self.left_out
        return zlib.crc32(os.fsencode(f"{key[0]}\0{key[1]}")) % self.count


class Splitter:
    """Divides batches of derived entries by group. A topic must have the same number in all
    batches.
    """

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._topics, self._names = text.Dictionary(), text.Dictionary()
        self._groups = QueueTable(self._topics, grouping.of)
        self._further_groups = QueueTable(self._names, grouping.of)

    def split(self, some: list[Derived]) -> Iterator[tuple[int, Columns]]:
        """Yield the number and the columns of each group with entries in these batches."""
        topics = some[-1].topics
        for raw in topics[len(self._topics):]:
            self._topics.number(raw)
        derived = _joined(some)
        rowed = np.flatnonzero(derived.rowed)
        group: Array = np.full(len(derived), self._grouping.left_out, np.int64)
        group[rowed] = self._groups.encode(derived.topic[rowed], derived.queue_id[rowed])
        further = self._further(derived)
        order = np.argsort(group.astype(np.uint16), kind="stable")
        edges = np.searchsorted(group[order], np.arange(self._grouping.count + 1))
        for number in range(self._grouping.count):
            which = order[edges[number]:edges[number + 1]]
            further_rows = None
            if further is not None:
                rows, of = further
                further_rows = np.flatnonzero(of == number)
                if len(further_rows):
                    which = np.union1d(which, rows.message[further_rows])
            if len(which):
                yield number, _columns(derived, which, further[0] if further else None,
                                       further_rows)

    def _further(self, derived: Derived) -> tuple[FurtherRows, Array] | None:
        """Return the entries that a dispatcher would write in further queues, and the group of each
        entry.
        """
        rows = derived.further
        if rows is None:
            return None
        own = np.array([self._names.number(raw) for raw in rows.names], np.int64)
        safe = np.array([is_queue_name(os.fsdecode(topic_text))
                         for topic_text in self._topics.texts], bool)
        queued = np.flatnonzero(derived.rowed[rows.message] & safe[derived.topic[rows.message]])
        rows = FurtherRows(rows.names, rows.message[queued], rows.name[queued], rows.offset[queued])
        name, queue_id = own[rows.name], derived.queue_id[rows.message]
        if self._grouping.lmq:
            light = np.array([name_text.startswith(_LMQ) for name_text in self._names.texts],
                             bool)[name]
            queue_id = np.where(light, 0, queue_id)
        return rows, self._further_groups.encode(name, queue_id)


def _joined(some: list[Derived]) -> Derived:
    """Return several batches as one, without the columns of the index."""
    if len(some) == 1:
        return some[0]
    starts = np.cumsum([0, *(len(piece) for piece in some)])

    def all_of(name: str) -> Array:
        joined: Array = np.concatenate([getattr(piece, name) for piece in some])
        return joined

    inner = None
    if any(piece.inner is not None for piece in some):
        single = [piece.inner or (piece.queue_offset, np.ones(len(piece), np.int64))
                  for piece in some]
        inner = (np.concatenate([parts[0] for parts in single]),
                 np.concatenate([parts[1] for parts in single]))
    further, names = [], text.Dictionary()
    for start, piece in zip(starts.tolist(), some, strict=False):
        if piece.further is not None:
            own = np.array([names.number(raw) for raw in piece.further.names], np.int64)
            further.append((piece.further.message + start, own[piece.further.name],
                            piece.further.offset))
    rows = FurtherRows(names.texts, *(np.concatenate(parts) for parts in zip(*further, strict=True))
                       ) if further else None
    return Derived(some[-1].topics, all_of("topic"), all_of("queue_id"), all_of("queue_offset"),
                   all_of("physical"), all_of("size"), all_of("store_timestamp"), all_of("tags"),
                   all_of("rowed"), None, None, rows, inner)


def _columns(derived: Derived, which: Array, further: FurtherRows | None,
             further_rows: Array | None) -> Columns:
    """Return the columns of a segment for some messages and for their entries in further queues.

    ``which``: indices of the messages, ascending.
    ``further_rows``: indices of these entries in ``further``.
    """
    topics, topic = _used(derived.topics, derived.topic[which])
    first, count = (None, None) if derived.inner is None else (
        derived.inner[0][which], derived.inner[1][which])
    columns: list[Array | None] = [
        *texts_to_columns(topics), topic, derived.queue_id[which], derived.queue_offset[which],
        derived.physical[which], derived.size[which], derived.store_timestamp[which],
        derived.tags[which],
        first, count]
    if further is None or further_rows is None or not len(further_rows):
        return [*columns, None, None, None, None, None]
    names, name = _used(further.names, further.name[further_rows])
    return [*columns, *texts_to_columns(names),
            np.searchsorted(which, further.message[further_rows]), name,
            further.offset[further_rows]]


def rows_of(columns: list[Array | None]) -> Derived:
    """Convert a segment to the input of a dispatcher."""
    data, lengths = columns[:2]
    topic, queue_id, queue_offset, physical, size, when, tags = map(there, columns[2:9])
    first, count, names, name_lengths, message, name, offset = columns[9:]
    inner = None if first is None or count is None else (first, count)
    further = None
    if message is not None and name is not None and offset is not None:
        further = FurtherRows(texts_of(names, name_lengths), message, name, offset)
    return Derived(texts_of(data, lengths), topic, queue_id, queue_offset, physical, size, when,
                   tags, np.ones(len(physical), bool), None, None, further, inner)


def there(column: Array | None) -> Array:
    """Return a required column of a segment. Raises: InternalError if the column is missing."""
    if column is None:
        raise InternalError("a column is missing from a spool")
    return column


def index_columns(some: list[Derived]) -> tuple[Array, Array, Array, Array] | None:
    """Return four columns; None without keys.

    * physical offset and store time of each message
    * for each key, in the order of the index: row of its message, and hash of the key
    """
    starts = np.cumsum([0, *(len(piece) for piece in some)])
    keys = [(piece.key_row + start, piece.key_hash)
            for start, piece in zip(starts.tolist(), some, strict=False)
            if piece.key_row is not None and piece.key_hash is not None]
    if not keys:
        return None
    return (np.concatenate([piece.physical for piece in some]),
            np.concatenate([piece.store_timestamp for piece in some]),
            np.concatenate([pair[0] for pair in keys]), np.concatenate([pair[1] for pair in keys]))


def _used(texts: list[bytes], number: Array) -> tuple[list[bytes], Array]:
    """Return the texts that ``number`` (indexes into ``texts``) refers to, and ``number`` converted
    to indexes into the returned texts.
    """
    count = np.bincount(number, minlength=len(texts))
    used = np.flatnonzero(count)
    new: Array = np.zeros(len(texts), np.int64)
    new[used] = np.arange(len(used))
    return [texts[index] for index in used.tolist()], new[number]
