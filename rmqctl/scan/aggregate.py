"""Sums per group over the batches of a walk: counts, bytes, first and last store time.

Everything goes by column; Python touches a group's key once per batch, never a message.
Sums are int64 and exact. The number of groups is bounded: what comes after is summed as one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmqctl.formats import sysflag
from rmqctl.formats.message import HOST_BITS, MAGIC_V1
from rmqctl.scan.frames import BLANK, DAMAGED, ZERO, Array, Batch, gather, shape

if TYPE_CHECKING:
    import pyarrow as pa

MAX_GROUPS = 200_000
OTHER = "(other)"
"""The key of everything beyond the largest number of groups."""
QUARTER_HOUR = 900_000
MINUTE = 60_000
_DENSE = 1 << 16
_NEVER = np.iinfo(np.int64)

Key = Any
"""bytes (topic, tag), (bytes, int) for a queue, int (time slot, size class, flag), str or None."""


class Sums(NamedTuple):
    """One group: ``first`` and ``last`` are the least and the greatest store time (ms)."""

    messages: int
    bytes: int
    body_bytes: int
    first: int
    last: int


class Keys:
    """Small numbers for keys, in order of appearance."""

    def __init__(self, limit: int = MAX_GROUPS) -> None:
        self.found: list[Key] = []
        self._numbers: dict[Hashable, int] = {}
        self._limit = limit

    def number(self, key: Key) -> int:
        known = self._numbers.get(key)
        if known is None:
            if len(self.found) >= self._limit and key != OTHER:
                return self.number(OTHER)
            known = self._numbers[key] = len(self.found)
            self.found.append(key)
        return known

    def __contains__(self, key: Key) -> bool:
        return key in self._numbers

    def of_ints(self, values: Array, key: Callable[[int], Key] = int) -> Array:
        """The number of each value's ``key``."""
        least, most = int(values.min()), int(values.max())
        if least == most:
            return np.full(len(values), self.number(key(least)), np.int64)
        if most - least < _DENSE:
            shifted = values - least
            present = np.flatnonzero(np.bincount(shifted))
            table = np.zeros(most - least + 1, np.int64)
            table[present] = [self.number(key(one)) for one in (present + least).tolist()]
            found: Array = table[shifted]
            return found
        distinct, place = np.unique(values, return_inverse=True)
        return np.array([self.number(key(one)) for one in distinct.tolist()], np.int64)[place]

    def of_texts(self, array: pa.BinaryArray) -> Array:
        """The number of each text, which is its own key."""
        if not len(array):
            return np.zeros(0, np.int64)
        coded = array.dictionary_encode()
        known = np.array([self.number(one) for one in coded.dictionary.to_pylist()], np.int64)
        found: Array = known[np.asarray(coded.indices)]
        return found


class Aggregate:
    """Sums of messages by one of `GROUPINGS`, and what the bytes of the log are.

    ``topic`` (bytes), ``since`` and ``until`` (store time, ms, inclusive) choose messages; the
    byte counts cover all frames. Picklable; `merge` adds another one's sums.
    """

    def __init__(self, by: str, *, topic: bytes | None = None, since: int | None = None,
                 until: int | None = None, limit: int = MAX_GROUPS) -> None:
        self.by, self._topic, self._since, self._until = by, topic, since, until
        self._keys = Keys(limit)
        self._texts, self._queues = Keys(limit), Keys(limit)
        self._sums = np.zeros((len(Sums._fields), 0), np.int64)
        self.bytes_in_messages = self.bytes_blank = self.bytes_zero = self.bytes_damaged = 0
        self.damaged_spans = 0

    def add(self, batch: Batch) -> None:
        """Takes one batch of a walk, with its spans."""
        for span in batch.spans:
            if span.kind == BLANK:
                self.bytes_blank += span.length
            elif span.kind == ZERO:
                self.bytes_zero += span.length
            elif span.kind == DAMAGED:
                self.bytes_damaged += span.length
                self.damaged_spans += 1
        if not len(batch):
            return
        self.bytes_in_messages += int(batch.column("total_size").sum())
        batch = self._chosen(batch)
        if len(batch):
            codes = GROUPINGS[self.by](self, batch)
            times = batch.column("store_timestamp")
            self._reserve()
            self._include(codes, 1, batch.column("total_size"), batch.column("body_length"),
                          times, times)

    def merge(self, other: Aggregate) -> None:
        codes = np.array([self._keys.number(key) for key in other._keys.found], np.int64)
        self._reserve()
        self._include(codes, *other._sums[:, :len(codes)])
        for name in ("bytes_in_messages", "bytes_blank", "bytes_zero", "bytes_damaged",
                     "damaged_spans"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def groups(self) -> dict[Key, Sums]:
        """The sums by key, in order of first appearance."""
        count = len(self._keys.found)
        columns = self._sums[:, :count].T.tolist()
        return {key: Sums(*one) for key, one in zip(self._keys.found, columns, strict=True)
                if one[0]}

    @property
    def is_cut(self) -> bool:
        """Whether there were more groups than are kept apart."""
        return OTHER in self._keys

    # -- inside -------------------------------------------------------------------------------

    def _reserve(self) -> None:
        known = self._sums.shape[1]
        if len(self._keys.found) > known:
            wider = np.zeros((len(Sums._fields), max(64, 2 * len(self._keys.found))), np.int64)
            wider[3], wider[4] = _NEVER.max, _NEVER.min
            wider[:, :known] = self._sums
            self._sums = wider

    def _include(self, codes: Array, messages: Array | int, total: Array, body: Array,
                 first: Array, last: Array) -> None:
        sums = self._sums
        np.add.at(sums[0], codes, messages)
        np.add.at(sums[1], codes, total)
        np.add.at(sums[2], codes, body)
        np.minimum.at(sums[3], codes, first)
        np.maximum.at(sums[4], codes, last)

    def _chosen(self, batch: Batch) -> Batch:
        """The messages of a batch that are asked for."""
        keep: Array | None = None
        times = batch.column("store_timestamp")
        if self._since is not None and times.min() < self._since:
            keep = times >= self._since
        if self._until is not None and times.max() > self._until:
            early = times <= self._until
            keep = early if keep is None else keep & early
        if self._topic is not None:
            same = _is_topic(batch, self._topic)
            keep = same if keep is None else keep & same
        return batch if keep is None or keep.all() else batch.select(np.flatnonzero(keep))

    def _by_topic(self, batch: Batch) -> Array:
        from rmqctl.scan.text import topics

        return self._keys.of_texts(topics(batch))

    def _by_queue(self, batch: Batch) -> Array:
        from rmqctl.scan.text import topics

        topic = self._texts.of_texts(topics(batch))
        queue = self._queues.of_ints(batch.column("queue_id"))
        width = len(self._queues.found)

        def pair(code: int) -> tuple[Any, Any]:
            return self._texts.found[code // width], self._queues.found[code % width]

        return self._keys.of_ints(topic * width + queue, pair)

    def _by_tag(self, batch: Batch) -> Array:
        from rmqctl.scan.text import Properties

        rows, tags = Properties(batch).find("TAGS")
        codes: Array = np.zeros(len(batch), np.int64)
        if len(rows) < len(batch):
            codes[:] = self._keys.number(None)
        codes[rows] = self._keys.of_texts(tags)
        return codes

    def _by_quarter(self, batch: Batch) -> Array:
        return self._keys.of_ints(batch.column("store_timestamp") // QUARTER_HOUR)

    def _by_minute(self, batch: Batch) -> Array:
        return self._keys.of_ints(batch.column("store_timestamp") // MINUTE)

    def _by_store_host(self, batch: Batch) -> Array:
        bits = batch.column("sys_flag") & HOST_BITS
        codes: Array = np.empty(len(batch), np.int64)
        for one in np.unique(bits).tolist():
            fields = shape(one, MAGIC_V1).dtype.fields
            assert fields is not None
            at = fields["store_host.address"][1]
            width = fields["store_host.port"][1] + 4 - at
            rows: Any = slice(None) if (bits == one).all() else np.flatnonzero(bits == one)
            hosts = gather(batch.data, batch.start[rows] + at, width)
            # Hosts are few: sorting them as texts of fixed width is good enough.
            distinct, place = np.unique(hosts.view(f"S{width}"), return_inverse=True)
            codes[rows] = np.array([self._keys.number(host.ljust(width, b"\0"))
                                    for host in distinct.tolist()], np.int64)[place]
        return codes

    def _by_size(self, batch: Batch) -> Array:
        return self._keys.of_ints(np.frexp(batch.column("total_size"))[1].astype(np.int64) - 1)

    def _by_flag(self, batch: Batch) -> Array:
        return self._keys.of_ints(batch.column("flag"))

    def _by_transaction(self, batch: Batch) -> Array:
        return self._keys.of_ints(batch.column("sys_flag") & sysflag.TRANSACTION_MASK,
                                  sysflag.transaction_type)

    def _by_compression(self, batch: Batch) -> Array:
        flags = batch.column("sys_flag") & (sysflag.COMPRESSED | sysflag.COMPRESSION_MASK)
        return self._keys.of_ints(flags, lambda flag: sysflag.compression(flag) or "none")

    def _by_none(self, batch: Batch) -> Array:
        return np.full(len(batch), self._keys.number(None), np.int64)


GROUPINGS: dict[str, Callable[[Aggregate, Batch], Array]] = {
    "topic": Aggregate._by_topic,
    "queue": Aggregate._by_queue,
    "tag": Aggregate._by_tag,
    "minute": Aggregate._by_minute,
    "hour": Aggregate._by_quarter,
    "day": Aggregate._by_quarter,
    "store-host": Aggregate._by_store_host,
    "size": Aggregate._by_size,
    "flag": Aggregate._by_flag,
    "transaction": Aggregate._by_transaction,
    "compression": Aggregate._by_compression,
    "none": Aggregate._by_none,
}
"""Hours and days are kept in quarters of an hour, from which those of any zone are made; a size
class is the exponent of the power of two at or below a record's size."""


def _is_topic(batch: Batch, topic: bytes) -> Array:
    same: Array = batch.column("topic_length") == len(topic)
    rows = np.flatnonzero(same)
    if len(rows) and topic:
        texts = gather(batch.data, batch.column("topic_start")[rows], len(topic))
        wanted = np.frombuffer(topic, np.uint8)
        same[rows] = (texts.view(np.uint8).reshape(-1, len(topic)) == wanted).all(axis=1)
    return same
