"""Range of each queue's messages over a walk: smallest and greatest queue offset.

Everything is computed by column: Python handles a queue's key once per batch, never a single
message. Only records with a consume queue entry count (spec: consumequeue.md §4). An inner batch
covers several queue offsets (§9). A multi-dispatched message also counts in its further queues
(§10).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import text
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.groupings import KeyNumbers

QueueKey = tuple[bytes, int]
_UNROWED = sysflag.TRANSACTION_PREPARED
"""The bit of ``sys_flag`` that is set for PREPARED and ROLLBACK, but not for NONE and COMMIT."""
NOT_DISPATCHED = (props.RETRY_PREFIX.encode(), b"rmq_sys_", props.SCHEDULE_TOPIC.encode())
"""Prefixes of topics whose messages a 5.x broker does not multi-dispatch."""
_COMMA, _ZERO = b","[0], b"0"[0]
_BLANK = np.isin(np.arange(256), list(b"\t\n\f\r "))
_LMQ = props.LMQ_PREFIX.encode()
_DIGITS = 18
"""Maximum number of digits of a number in a property."""
_INT64 = np.iinfo(np.int64)
ENDLESS = 1 << 62
"""A physical offset greater than any in a log."""

Leads = Callable[[tuple[str, int], Array, Array], Array]
"""Function of (queue, queue offsets, physical offsets). Returns a boolean array: whether the entry
at each queue offset points to the physical offset.
"""


class Reach(NamedTuple):
    """Queue offsets of one queue: ``first`` is the smallest, ``end`` is one more than
    the greatest.
    """

    first: int
    end: int
    messages: int


@dataclass(frozen=True, slots=True)
class LightQueues:
    """Queue ids under which the entries of a store's light queues (``%LMQ%…``) are stored (§10).

    A broker with enableLmq keeps each light queue as queue 0. A broker with only
    enableMultiDispatch (4.9.x) uses the message's own queue id, and counts offsets per id. Brokers
    of both kinds may have used a store.

    ``own``: light queues with files under an id other than 0.
    ``own_ids``: whether a message's own queue id counts if neither files nor entries show the id.
    ``rows_optional``: whether a broker may have assigned queue offsets but never written entries
        (5.x with only enableLmq).
    ``switched``: whether entries may have been written only at some times (5.x).
    ``untold``: whether it is unknown if entries were ever omitted.
    """

    own: frozenset[tuple[str, int]] = frozenset()
    own_ids: bool = False
    rows_optional: bool = False
    switched: bool = False
    untold: bool = False

    def ids(self, names: Sequence[bytes], name: Array, queue_id: Array, offset: Array | None = None,
            physical: Array | None = None, leads: Leads | None = None) -> Array:
        """Return the queue ids (int64) of the entries in further queues.

        ``name``: indexes into ``names``. ``queue_id``: the messages' own ids. If ``leads`` is
        given, the queue id is determined by an existing entry at queue offset ``offset`` that
        points to ``physical``; otherwise, by the files of the queue.
        """
        light: Array = np.array([raw.startswith(_LMQ) for raw in names], bool)[name]
        out: Array = np.where(light, 0, queue_id)
        rows = np.flatnonzero(light & (queue_id != 0)) if self.own or self.own_ids else light[:0]
        if not len(rows):
            return out
        # One queue at a time: the entries that would be in the same queue of the message's own id.
        rows = rows[np.lexsort((queue_id[rows], name[rows]))]
        ends = np.flatnonzero((np.diff(name[rows]) != 0) | (np.diff(queue_id[rows]) != 0)) + 1
        for of_pair in np.split(rows, ends):
            own = int(queue_id[of_pair[0]])
            key = os.fsdecode(names[name[of_pair[0]]]), own
            if key not in self.own and not self.own_ids:
                continue
            if leads is not None and offset is not None and physical is not None:
                places = offset[of_pair], physical[of_pair]
                which = leads(key, *places) | ~leads((key[0], 0), *places)
                out[of_pair[which]] = own
            else:
                out[of_pair] = own
        return out

    def id_of(self, name: str, queue_id: int, offset: int, physical: int, leads: Leads) -> int:
        """Return the queue id of one further entry."""
        text, own, row, place = (np.array([value], np.int64) for value in (
            0, queue_id, offset, physical))
        return int(self.ids([os.fsencode(name)], text, own, row, place, leads)[0])


class QueueNumbers:
    """Assigns small numbers to queues. A queue has the same number in all batches of all walks."""

    def __init__(self) -> None:
        self._queues = KeyNumbers()
        self._texts, self._ids = KeyNumbers(), KeyNumbers()

    @property
    def keys(self) -> list[QueueKey]:
        """The queues, in order of number."""
        return self._queues.by_number

    @property
    def topics(self) -> list[bytes]:
        """The topics, in the order of their numbers."""
        return self._texts.by_number

    def topic(self, texts: text.Texts) -> Array:
        """Return, for each topic, the number assigned to it."""
        return self._texts.of_texts(texts)

    def number(self, key: QueueKey) -> int:
        return self._queues.number(key)

    def of(self, topic: Array, queue_id: Array) -> Array:
        """Return the number of each message's queue. ``topic``: topic numbers that `topic`
        returned.
        """
        ids = self._ids.of_ints(queue_id)
        width = len(self._ids.by_number)

        def key(code: int) -> Any:
            return self._texts.by_number[code // width], self._ids.by_number[code % width]

        return self._queues.of_ints(topic * width + ids, key)


class QueueReach:
    """Collects the first and the last queue offset of each queue from the batches of a walk.
    Picklable.

    ``generation`` (4 or 5) selects the broker's rule for multi-dispatched messages. With ``plain``,
    only the queue offset in a record's header counts. ``light``: the queue ids of light queues.
    """

    def __init__(self, generation: int = 5, light: LightQueues | None = None, *,
                 plain: bool = False) -> None:
        self._generation, self._plain = generation, plain
        self._light = light or LightQueues()
        self._numbers = QueueNumbers()
        self._first: Array = np.zeros(0, np.int64)
        self._last: Array = np.zeros(0, np.int64)
        self._count: Array = np.zeros(0, np.int64)

    def add(self, batch: Batch) -> None:
        """Add the messages of one batch of a walk."""
        if not len(batch):
            return
        flags = batch.column("sys_flag")
        rowed = (flags & _UNROWED) == 0
        queue_id = batch.column("queue_id")
        topic = self._numbers.topic(text.topics(batch))
        first = last = batch.column("queue_offset")
        inner = np.flatnonzero((flags & sysflag.INNER_BATCH) != 0)
        if len(inner) and not self._plain:
            first, last = _covered(batch, inner, first)
        self._include(self._numbers.of(topic, queue_id), first, last, rowed)
        if not self._plain:
            self._add_dispatched(batch, topic, queue_id, rowed)

    def merge(self, other: QueueReach) -> None:
        """Merge the results of a later (or any other) part of the log."""
        keys = other._numbers.keys
        codes = np.array([self._numbers.number(key) for key in keys], np.int64)
        met = np.flatnonzero(other._count[:len(keys)])
        self._reserve()
        codes = codes[met]
        self._first[codes] = np.minimum(self._first[codes], other._first[met])
        self._last[codes] = np.maximum(self._last[codes], other._last[met])
        self._count[codes] += other._count[met]

    def result(self) -> dict[QueueKey, Reach]:
        """Return the results by (topic, queue id), in order of first appearance."""
        return {key: Reach(first, last + 1, count) for key, first, last, count in zip(
            self._numbers.keys, self._first.tolist(), self._last.tolist(), self._count.tolist(),
            strict=False) if count}

    # -- inside -------------------------------------------------------------------------------

    def _include(self, codes: Array, first: Array, last: Array, which: Array) -> None:
        which = which & (first >= 0)  # damage: no broker writes such an offset
        if not which.all():
            codes, first, last = codes[which], first[which], last[which]
        self._reserve()
        np.minimum.at(self._first, codes, first)
        np.maximum.at(self._last, codes, last)
        np.add.at(self._count, codes, 1)

    def _reserve(self) -> None:
        wanted = len(self._numbers.keys)
        if wanted > len(self._first):
            more = max(64, 2 * wanted) - len(self._first)
            self._first = np.append(self._first, np.full(more, _INT64.max))
            self._last = np.append(self._last, np.full(more, -1))
            self._count = np.append(self._count, np.zeros(more, np.int64))

    def _add_dispatched(self, batch: Batch, topic: Array, queue_id: Array, rowed: Array) -> None:
        properties = text.PropertySegments(batch)
        if not len(properties.places(props.MULTI_DISPATCH)[0]):
            return
        if self._generation >= 5:
            left_out = [topic.startswith(NOT_DISPATCHED) for topic in self._numbers.topics]
            rowed = rowed & ~np.array(left_out, bool)[topic]
        row, names, offsets = dispatched_rows(properties, rowed)
        if len(row):
            to = self._numbers.topic(names)
            codes = self._numbers.of(to, self._light.ids(self._numbers.topics, to, queue_id[row]))
            self._include(codes, offsets, offsets, np.ones(len(row), bool))


def _covered(batch: Batch, inner: Array, queue_offset: Array) -> tuple[Array, Array]:
    """Return (first, last) queue offset of each record. ``inner``: rows of the inner batches.

    An inner batch without the properties that a broker adds counts as one message, as for a broker.
    """
    properties = text.PropertySegments(batch.select(inner))
    first, last = queue_offset.copy(), queue_offset.copy()
    base_row, base = _whole(*properties.find(props.INNER_BASE))
    count_row, count = _whole(*properties.find(props.INNER_NUM))
    both, base_place, where = np.intersect1d(base_row, count_row, assume_unique=True,
                                             return_indices=True)
    rows = inner[both]
    first[rows] = base[base_place]
    last[rows] = base[base_place] + np.maximum(count[where], 1) - 1
    return first, last


def dispatched_rows(properties: text.PropertySegments, which: Array, *, skipped: bool = False) -> (
        tuple[Array, text.Texts, Array]):
    """Return (record, queue name, queue offset) of each further entry of multi-dispatched records.

    ``which`` (bool) selects records. A record whose lists differ in length has no further entries,
    and a list item that is not a number has none (spec: consumequeue.md §10). With ``skipped``, the
    entries of `skipped_rows` are included.
    """
    return _paired(properties, which, np.greater_equal if skipped else np.equal)


def skipped_rows(
        properties: text.PropertySegments, which: Array
) -> tuple[Array, text.Texts, Array]:
    """Return the additional entries that are missing because a record's lists differ in length. A
    broker assigns the queue offsets of these entries but does not write the entries.

    For each light queue, a 5.x broker adds a queue offset to the list of offsets; for each other
    name, it adds an empty item. When the list is split, empty items at the end are dropped, so the
    list is too short.
    """
    return _paired(properties, which, np.greater)


def _paired(properties: text.PropertySegments, which: Array,
            fit: Callable[[Array, Array], Array]) -> (
        tuple[Array, text.Texts, Array]):
    """Return (record, name, queue offset) for each name that has an offset. ``fit`` selects records
    by the number of names and the number of offsets that they have.
    """
    name_row, names = properties.find(props.MULTI_DISPATCH)
    if not len(name_row):
        return name_row, names, np.zeros(0, np.int64)
    offset_row, offsets = properties.find(props.MULTI_QUEUE_OFFSET)
    both, name_place, where = np.intersect1d(name_row, offset_row, assume_unique=True,
                                             return_indices=True)
    counted = which[both] & ~_all_blank(names.take(name_place))
    both, name_place, where = both[counted], name_place[counted], where[counted]
    name_of, name, name_count = _parts(names.take(name_place))
    number_of, number, number_count = _parts(offsets.take(where))
    fits = fit(name_count, number_count)
    number = number.take(fits[number_of])
    of_list = np.arange(len(name_of)) - (np.cumsum(name_count) - name_count)[name_of]
    wanted = fits[name_of] & (of_list < number_count[name_of])
    name_of, name = name_of[wanted], name.take(wanted)
    good, value = _integers(number)
    good &= name.length > 0
    return both[name_of[good]], name.take(good), value[good]


def _all_blank(texts: text.Texts) -> Array:
    """Return a boolean array: whether each text consists only of blanks. The texts must not be
    empty.
    """
    blank: Array = _BLANK[texts.data[texts.start]]
    for row in np.flatnonzero(blank).tolist():
        first = int(texts.start[row])
        blank[row] = _BLANK[texts.data[first:first + int(texts.length[row])]].all()
    return blank


def _parts(lists: text.Texts) -> tuple[Array, text.Texts, Array]:
    """Split lists at commas. Return (for each part the index of its list, the parts, the number of
    parts of each list).

    Empty parts at the end are dropped, as by Java's split.
    """
    length = lists.length.copy()
    rows = np.arange(len(lists))
    while len(rows):
        rows = rows[(length[rows] > 0) & (
            lists.data[lists.start[rows] + length[rows] - 1] == _COMMA)]
        length[rows] -= 1
    number, start, size = text.split(lists.data, lists.start, length, separator=_COMMA,
                                     keep_empty=True)
    return number, text.Texts(lists.data, start, size), np.bincount(number, minlength=len(lists))


def _whole(row: Array, values: text.Texts) -> tuple[Array, Array]:
    """Return (rows whose value is an integer, the integers as int64)."""
    good, number = _integers(values)
    return row[good], number[good]


def _integers(texts: text.Texts) -> tuple[Array, Array]:
    """Return (boolean array: whether each text is an integer of ASCII digits, the integers as
    int64).
    """
    good: Array = (texts.length > 0) & (texts.length <= _DIGITS)
    rows = np.flatnonzero(good)
    number: Array = np.zeros(len(texts), np.int64)
    if len(rows):
        some = texts.take(rows)
        digits = text.matrix(some.data, some.start, some.length, _DIGITS)[0]
        inside = np.arange(_DIGITS) < some.length[:, None]
        digits -= _ZERO  # any other character becomes more than 9
        good[rows] = ((digits <= 9) | ~inside).all(axis=1)
        value: Array = np.zeros(len(rows), np.int64)
        for column in range(int(some.length.max())):
            value = np.where(inside[:, column], value * 10 + digits[:, column], value)
        number[rows] = value
    return good, number


def telling(place: Array) -> Array:
    """Return the positions of the entries that may prove a message: the longest series whose
    physical offsets are possible and ascend. ``place``: the physical offsets of adjacent entries
    (int64).

    All other entries contradict the series, so they are damaged and prove nothing.
    """
    possible = np.flatnonzero((place >= 0) & (place < ENDLESS))
    rows: Array = possible[ascending(place[possible])]
    return rows


def ascending(values: Array) -> Array:
    """Return the positions of a longest strictly ascending subsequence of the values."""
    if len(values) < 2 or bool((values[1:] > values[:-1]).all()):
        return np.arange(len(values))
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, value in enumerate(values.tolist()):
        place = bisect_left(tails, value)
        before.append(ends[place - 1] if place else -1)
        if place == len(tails):
            tails.append(value)
            ends.append(number)
        else:
            tails[place], ends[place] = value, number
    chain = []
    number = ends[-1]
    while number >= 0:
        chain.append(number)
        number = before[number]
    return np.array(chain[::-1], np.int64)
