"""Conditions on rows that the data source itself applies, exactly (predicate pushdown).

A null value meets no condition: for example, the topic of a frame without a message is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array, Batch, gather


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions on rows; a row must meet all of them. None means no condition.

    * ``since``, ``until``: store times (ms), inclusive
    * ``start``, ``end``: physical offsets; ``end`` is exclusive
    """

    topics: frozenset[bytes] | None = None
    queue_ids: frozenset[int] | None = None
    since: int | None = None
    until: int | None = None
    start: int | None = None
    end: int | None = None

    def __and__(self, other: Filters) -> Filters:
        return Filters(_both(self.topics, other.topics), _both(self.queue_ids, other.queue_ids),
                       _most(self.since, other.since), _least(self.until, other.until),
                       _most(self.start, other.start), _least(self.end, other.end))

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns that have a condition."""
        asked = {"topic": self.topics, "queue_id": self.queue_ids,
                 "store_timestamp": (self.since, self.until),
                 "physical_offset": (self.start, self.end)}
        return [name for name, limits in asked.items() if limits is not None
                and limits != (None, None)]

    def of_messages(self, batch: Batch) -> Batch:
        """Return the messages of a batch that meet the conditions. This selection needs no Arrow
        columns.
        """
        keep: Array | None = None
        for name, least, most in (("physical_offset", self.start, _before(self.end)),
                                  ("store_timestamp", self.since, self.until)):
            if len(batch) and (least is not None or most is not None):
                values = batch.offset if name == "physical_offset" else batch.column(name)
                keep = _and(keep, _within(values, least, most))
        if self.queue_ids is not None:
            ids = np.array(sorted(self.queue_ids), np.int64)
            keep = _and(keep, np.isin(batch.column("queue_id"), ids))
        if self.topics is not None:
            keep = _and(keep, with_topics(batch, self.topics))
        return batch if keep is None or keep.all() else batch.select(np.flatnonzero(keep))

    def of_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a record batch that meet the conditions; the batch must contain all
        columns in `columns`.
        """
        if not self.columns:
            return rows
        import pyarrow.compute as pc  # takes as long to load as a small query

        keep: Any = None
        for name in self.columns:
            values = rows.column(name)
            if name == "topic":
                assert self.topics is not None
                condition = pc.is_in(values.cast(pa.binary()),
                                     pa.array(sorted(self.topics), pa.binary()))
            elif name == "queue_id":
                assert self.queue_ids is not None
                ids = pa.array(sorted(self.queue_ids), pa.int64())
                condition = pc.is_in(values.cast(pa.int64()), ids)
            elif name == "store_timestamp":
                condition = _between(values.view(pa.int64()), self.since, self.until)
            else:
                condition = _between(values, self.start, _before(self.end))
            keep = condition if keep is None else pc.and_(keep, condition)
        return rows.filter(keep)

    def takes_topic(self, topic: str) -> bool:
        return self.topics is None or topic.encode("utf-8", "surrogateescape") in self.topics

    def takes_queue(self, queue_id: int) -> bool:
        return self.queue_ids is None or queue_id in self.queue_ids


def limits(sign: str, values: Sequence[int], unit: int = 1) -> tuple[int | None, int | None]:
    """Return the smallest and the greatest integer in a column that can satisfy a comparison.

    None: no limit.
    ``unit``: units of ``values`` per unit of the column, such as 1000 for µs and a column in ms.
    """
    low, high = min(values), max(values)
    least = -(-low // unit) if sign in ("=", "in", ">=") else low // unit + 1
    most = high // unit if sign in ("=", "in", "<=") else -(-high // unit) - 1
    return (None if sign in ("<", "<=") else least), (None if sign in (">", ">=") else most)


def with_topics(batch: Batch, topics: frozenset[bytes]) -> Array:
    """Return a boolean array: whether the topic of each message is one of ``topics``."""
    length, start = batch.column("topic_length"), batch.column("topic_start")
    keep: Array = np.zeros(len(batch), bool)
    for topic in topics:
        rows = np.flatnonzero(length == len(topic))
        if len(rows) and topic:
            texts = gather(batch.data, start[rows], len(topic))
            wanted = np.frombuffer(topic, np.uint8)
            rows = rows[(texts.view(np.uint8).reshape(-1, len(topic)) == wanted).all(axis=1)]
        keep[rows] = True
    return keep


def _within(values: Array, least: int | None, most: int | None) -> Array:
    inside: Array = np.ones(len(values), bool)
    if least is not None:
        inside &= values >= least
    if most is not None:
        inside &= values <= most
    return inside


def _between(values: pa.Array, least: int | None, most: int | None) -> Any:
    import pyarrow.compute as pc

    conditions = []
    if least is not None:
        conditions.append(pc.greater_equal(values, pa.scalar(_clamped(least), pa.int64())))
    if most is not None:
        conditions.append(pc.less_equal(values, pa.scalar(_clamped(most), pa.int64())))
    return conditions[0] if len(conditions) == 1 else pc.and_(*conditions)


def _clamped(value: int) -> int:
    return max(-(1 << 63), min(value, (1 << 63) - 1))


def _and(mask: Array | None, other: Array) -> Array:
    return other if mask is None else mask & other


def _before(end: int | None) -> int | None:
    return None if end is None else end - 1


def _both(values: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    if values is None or other is None:
        return other if values is None else values
    return values & other


def _most(limit: int | None, other: int | None) -> int | None:
    return max((x for x in (limit, other) if x is not None), default=None)


def _least(limit: int | None, other: int | None) -> int | None:
    return min((x for x in (limit, other) if x is not None), default=None)


