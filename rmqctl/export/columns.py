"""Messages of an export as Arrow columns, collected in memory by partition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from rmqctl.export.buffers import Chunks, Origin
from rmqctl.export.files import compact_json
from rmqctl.export.spec import ORIGIN, Export
from rmqctl.scan.columns import as_strings, message_columns
from rmqctl.scan.frames import Array, Batch, distinct
from rmqctl.scan.tables import MESSAGE_COLUMNS
from rmqctl.scan.text import PropertySegments
from rmqctl.store.objects import PROPERTY
from rmqctl.store.pages import BatchPage
from rmqctl.store.projection import is_decoded
from rmqctl.store.redaction import CHECKED, KEPT

LINES = pa.schema([pa.field("lines", pa.large_binary())])
"""Schema of spilled texts: all lines of a chunk in one value."""
_MAX_SPLIT = 16
"""Limit for sorting batches one by one.

A batch is over the limit if it has more partitions than this number, and on average fewer messages
per partition than this number. This batch and the following batches are then sorted together.
"""


class ColumnBuffer:
    """Messages as Arrow columns, in physical order within each partition.

    Batches with few partitions are sorted one by one, which is several times as fast as sorting
    them together. A batch in which nearly every message has another partition would produce too
    many pieces. Such a batch and all later batches are sorted together.
    """

    def __init__(self, spec: Export, origin: Origin) -> None:
        self._schema = spec.schema
        self._names = [name for name in spec.fields if name in MESSAGE_COLUMNS]
        self._place, self._origin = origin, origin.of(spec.fields)
        self._decoding, self._redaction = spec.decoding, spec.redaction
        self._parts: dict[int, list[pa.RecordBatch]] = {}
        self._is_mixed = False
        self._mixed: list[pa.RecordBatch] = []
        self._codes: list[Array] = []
        self.size = 0

    def add(self, batch: Batch, codes: Array) -> None:
        columns = self._columns_of(batch)
        self.size += columns.nbytes
        if not self._is_mixed:
            count = 1 if (codes == codes[0]).all() else len(distinct(codes))
            self._is_mixed = count > _MAX_SPLIT and count * _MAX_SPLIT > len(codes)
        if self._is_mixed:
            self._mixed.append(columns)
            self._codes.append(codes)
        else:
            for code, part in _split(columns, codes):
                self._parts.setdefault(code, []).append(part)

    def _columns_of(self, batch: Batch) -> pa.RecordBatch:
        columns = self._plain(batch)
        if self._redaction is None:
            return columns
        redacted = [column if name in KEPT - CHECKED else pa.array(
            [self._redaction.field(name, value) for value in column.to_pylist()], column.type)
            for name, column in zip(columns.schema.names, columns.columns, strict=True)]
        return pa.RecordBatch.from_arrays(redacted, schema=self._schema)

    def _plain(self, batch: Batch) -> pa.RecordBatch:
        columns = message_columns(batch, self._names)
        if columns.schema == self._schema:
            return columns
        count = len(batch)
        by_name = dict(zip(self._names, columns.columns, strict=True)) | {
            name: pa.array(values, self._schema.field(name).type)
            for name, values in self._place.provenance(batch, self._schema.names).items()}
        parsed: PropertySegments | None = None
        decoded = self._decoded(batch)
        arrays = []
        for name in self._schema.names:
            if name in ORIGIN:
                arrays.append(pa.repeat(pa.scalar(self._origin[name], pa.string()), count))
            elif name in decoded:
                arrays.append(pa.array(decoded[name], pa.string()))
            elif name in by_name:
                arrays.append(by_name[name])
            else:
                parsed = parsed or PropertySegments(batch)
                arrays.append(as_strings(parsed, count, name.removeprefix(PROPERTY)))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _decoded(self, batch: Batch) -> dict[str, list[str | None]]:
        """Return the columns of decoded bodies: texts unchanged, all other values as JSON."""
        names = list(filter(is_decoded, self._schema.names))
        if self._decoding is None or not names:
            return {}
        rows = [[_text_of(decoded.field(name)) for name in names]
                for decoded in self._decoding.rows(BatchPage(batch))]
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))

    def take(self, rank: Array | None = None) -> Chunks:
        parts, mixed, codes = self._parts, self._mixed, self._codes
        self._parts, self._mixed, self._codes, self.size = {}, [], [], 0
        if mixed:  # batches that were sorted earlier come first in their partitions
            for code, sorted_batches in parts.items():
                mixed[:0] = sorted_batches
                codes[:0] = [np.full(len(part), code) for part in sorted_batches]
            return _sorted(pa.Table.from_batches(mixed, self._schema), np.concatenate(codes), rank)
        order = sorted(parts) if rank is None else sorted(parts, key=rank.__getitem__)
        counts = [sum(map(len, parts[code])) for code in order]
        batches = [part for code in order for part in parts.pop(code)]
        return Chunks(order, counts, pa.Table.from_batches(batches, self._schema))


def _text_of(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else compact_json(value)
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _split(rows: pa.RecordBatch, codes: Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (code, rows) by ascending code; rows with equal codes keep their order."""
    first = int(codes[0])
    if (codes == first).all():
        yield first, rows
        return
    order, borders = _order(codes)
    rows = rows.take(pa.array(order))
    for a, b in pairwise(borders):
        yield int(codes[order[a]]), rows.slice(a, b - a)


def _sorted(rows: pa.Table, codes: Array, rank: Array | None) -> Chunks:
    """Return the rows sorted by the rank of their codes; rows with equal codes keep their order."""
    order, borders = _order(codes if rank is None else rank[codes])
    return Chunks(codes[order[borders[:-1]]].tolist(), [b - a for a, b in pairwise(borders)],
                  rows.take(pa.array(order)))


def _order(keys: Array) -> tuple[Array, list[int]]:
    """Return the indexes that sort the keys, and the start of each group of equal keys.

    The sort is stable. The starts are positions in the sorted order; the last value is the number
    of keys.
    """
    # Use the smallest type: numpy sorts types of one or two bytes by counting.
    order = np.argsort(keys.astype(np.min_scalar_type(int(keys.max()))), kind="stable")
    keys = keys[order]
    return order, [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
