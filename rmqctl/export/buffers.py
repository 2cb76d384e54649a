"""Messages collected in memory until they are written, in the order of their partitions.

`Columns` holds them as Arrow columns, `Lines` as lines of JSON or CSV. Both give `Chunks`: one for
each partition, to be written into its file or set aside (`rmqctl.export.spill`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, repeat
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from rmqctl.export.files import compact_json, csv_line, json_line
from rmqctl.export.spec import ORIGIN, PROVENANCE, TEXTS, Export
from rmqctl.scan.columns import MESSAGE_TYPES, as_strings, message_columns
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.text import Properties
from rmqctl.store.pages import BatchPage
from rmqctl.store.projection import Projection, is_decoded
from rmqctl.store.query.conditions import PROPERTY

FLUSH = 16 << 20
"""Bytes of columns for which a process needs some 50 MiB in all for each thread: column buffers,
what is taken from them by partition, and the encoded pages."""
LINES = pa.schema([pa.field("lines", pa.large_binary())])
"""What is set aside of texts: all lines of a chunk in one value."""
_FEW = 16
"""Partitions in a batch, and messages of each in it, which make it worth sorting it alone."""


class Chunks:
    """What a buffer held: chunk number ``n`` has all of its messages of the partition
    ``codes[n]``, ``counts[n]`` of them.
    """

    def __init__(self, codes: list[int], counts: list[int], rows: pa.Table | None = None,
                 lines: list[bytes] | None = None) -> None:
        self.codes, self.counts = codes, counts
        self._rows, self._lines = rows, lines
        self._starts = [0, *accumulate(counts)]

    def __len__(self) -> int:
        return len(self.codes)

    def chunk(self, number: int) -> Any:
        """A chunk as `rmqctl.export.files.File` takes it."""
        if self._lines is not None:
            return self._lines[number]
        assert self._rows is not None
        if len(self) == 1:
            return self._rows
        return self._rows.slice(self._starts[number], self.counts[number])

    def all(self) -> Iterator[Any]:
        """All chunks, in their order."""
        return map(self.chunk, range(len(self)))

    def table(self, numbers: Sequence[int]) -> tuple[pa.Table, list[int]]:
        """Some chunks, by ascending number, as one table; how many of its rows each has."""
        if self._lines is not None:
            column = pa.array([self._lines[number] for number in numbers], pa.large_binary())
            return pa.Table.from_arrays([column], schema=LINES), [1] * len(numbers)
        assert self._rows is not None
        lengths = [self.counts[number] for number in numbers]
        if len(numbers) == len(self):
            return self._rows, lengths
        # Chunks that follow each other are one slice.
        slices: list[list[int]] = []
        for number in numbers:
            if slices and slices[-1][1] == self._starts[number]:
                slices[-1][1] = self._starts[number + 1]
            else:
                slices.append([self._starts[number], self._starts[number + 1]])
        return pa.concat_tables([self._rows.slice(start, end - start)
                                 for start, end in slices]), lengths


class Buffer(Protocol):
    """Collects messages; `take` gives all of them by partition and forgets them.

    ``rank``: the place of each partition among the chunks; None for the order of their numbers.
    """

    size: int

    def add(self, batch: Batch, codes: Array) -> None: ...

    def take(self, rank: Array | None = None) -> Chunks: ...


class Origin(NamedTuple):
    """Where messages were found: the store as named, the file relative to it, and the physical
    offset at which that begins.
    """

    store: str
    file: str
    base: int

    def of(self, names: Sequence[str]) -> dict[str, str]:
        """Those of `ORIGIN` that are among the names."""
        return {name: getattr(self, name) for name in names if name in ORIGIN}

    def provenance(self, batch: Batch, names: Sequence[str]) -> dict[str, list[Any]]:
        """The values of those of `PROVENANCE` that are among the names, for each message."""
        found: dict[str, list[Any]] = {}
        if "position" in names:
            found["position"] = (batch.offset - self.base).tolist()
        if "sha256" in names:
            found["sha256"] = [hashlib.sha256(batch.bytes_at(number)).hexdigest()
                               for number in range(len(batch))]
        return found


class Columns:
    """Messages as Arrow columns, in physical order within each partition.

    Batches of few partitions are sorted one by one, which is several times as fast as all at
    once; where nearly every message is of another one, that would make too many pieces.
    """

    def __init__(self, spec: Export, origin: Origin) -> None:
        self._schema = spec.schema
        self._names = [name for name in spec.fields if name in MESSAGE_TYPES]
        self._place, self._origin = origin, origin.of(spec.fields)
        self._decoding = spec.decoding
        self._parts: dict[int, list[pa.RecordBatch]] = {}
        self._is_mixed = False
        self._mixed: list[pa.RecordBatch] = []
        self._codes: list[Array] = []
        self.size = 0

    def add(self, batch: Batch, codes: Array) -> None:
        columns = self._made(batch)
        self.size += columns.nbytes
        if not self._is_mixed:
            count = len(np.unique(codes))
            self._is_mixed = count > _FEW and count * _FEW > len(codes)
        if self._is_mixed:
            self._mixed.append(columns)
            self._codes.append(codes)
        else:
            for code, part in _split(columns, codes):
                self._parts.setdefault(code, []).append(part)

    def _made(self, batch: Batch) -> pa.RecordBatch:
        columns = message_columns(batch, self._names)
        if columns.schema == self._schema:
            return columns
        count = len(batch)
        known = dict(zip(self._names, columns.columns, strict=True)) | {
            name: pa.array(values, PROVENANCE[name])
            for name, values in self._place.provenance(batch, self._schema.names).items()}
        parsed: Properties | None = None
        decoded = self._decoded(batch)
        arrays = []
        for name in self._schema.names:
            if name in ORIGIN:
                arrays.append(pa.repeat(pa.scalar(self._origin[name], pa.string()), count))
            elif name in decoded:
                arrays.append(pa.array(decoded[name], pa.string()))
            elif name in known:
                arrays.append(known[name].cast(self._schema.field(name).type))
            else:
                parsed = parsed or Properties(batch)
                arrays.append(as_strings(parsed, count, name.removeprefix(PROPERTY)))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _decoded(self, batch: Batch) -> dict[str, list[str | None]]:
        """The columns that come of decoded bodies: texts as they are, all else as JSON."""
        names = list(filter(is_decoded, self._schema.names))
        if self._decoding is None or not names:
            return {}
        rows = [[_text_of(decoded.field(name)) for name in names]
                for decoded in self._decoding.rows(BatchPage(batch))]
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))

    def take(self, rank: Array | None = None) -> Chunks:
        parts, mixed, codes = self._parts, self._mixed, self._codes
        self._parts, self._mixed, self._codes, self.size = {}, [], [], 0
        if mixed:  # batches from before that are sorted already come first in their partitions
            for code, known in parts.items():
                mixed[:0], codes[:0] = known, [np.full(len(part), code) for part in known]
            return _sorted(pa.Table.from_batches(mixed, self._schema), np.concatenate(codes), rank)
        order = sorted(parts) if rank is None else sorted(parts, key=rank.__getitem__)
        counts = [sum(map(len, parts[code])) for code in order]
        batches = [part for code in order for part in parts.pop(code)]
        return Chunks(order, counts, pa.Table.from_batches(batches, self._schema))


def _text_of(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else compact_json(value)


def _split(rows: pa.RecordBatch, codes: Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows by their codes, ascending; in each in the order they had."""
    first = int(codes[0])
    if (codes == first).all():
        yield first, rows
        return
    order, borders = _order(codes)
    rows = rows.take(pa.array(order))
    for a, b in pairwise(borders):
        yield int(codes[order[a]]), rows.slice(a, b - a)


def _sorted(rows: pa.Table, codes: Array, rank: Array | None) -> Chunks:
    """Rows by the rank of their codes; in each in the order they had."""
    order, borders = _order(codes if rank is None else rank[codes])
    return Chunks(codes[order[borders[:-1]]].tolist(), [b - a for a, b in pairwise(borders)],
                  rows.take(pa.array(order)))


def _order(keys: Array) -> tuple[Array, list[int]]:
    """The stable order of keys, and where in it each key begins, with the end."""
    # The smallest type: numpy sorts those of one and two bytes by counting.
    order = np.argsort(keys.astype(np.min_scalar_type(int(keys.max()))), kind="stable")
    keys = keys[order]
    return order, [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]


class Lines:
    """Messages as lines of JSON or CSV."""

    def __init__(self, spec: Export, origin: Origin) -> None:
        self._spec, self._place = spec, origin
        self._own = Projection([name for name in spec.fields
                                if name not in ORIGIN and name not in PROVENANCE], spec.body,
                               decoding=spec.decoding)
        self._origin = origin.of(spec.fields)
        self._lines: dict[int, list[Any]] = {}
        self.size = 0

    def add(self, batch: Batch, codes: Array) -> None:
        rows: Any = (self._own.rows(BatchPage(batch)) if self._own.fields
                     else ({} for _ in range(len(batch))))
        if self._spec.decoding is not None and self._spec.format == "csv":  # of some rows only
            rows = ({name: row[name] for name in self._own.names} for row in rows)
        made = self._place.provenance(batch, self._spec.fields)
        if self._origin or made:
            more = (dict(zip(made, values, strict=True))
                    for values in (zip(*made.values(), strict=True) if made
                                   else repeat((), len(batch))))
            rows = ({name: {**row, **self._origin, **own}[name] for name in self._spec.fields}
                    for row, own in zip(rows, more, strict=True))
        render = (json_line if self._spec.format == "json"
                  else partial(csv_line, text=self._spec.csv_text))
        for code, line in zip(codes.tolist(), map(render, rows), strict=True):
            self._lines.setdefault(code, []).append(line)
            self.size += len(line)

    def take(self, rank: Array | None = None) -> Chunks:
        lines, self._lines, self.size = self._lines, {}, 0
        order = sorted(lines) if rank is None else sorted(lines, key=rank.__getitem__)
        counts = [len(lines[code]) for code in order]
        return Chunks(order, counts, lines=[b"".join(lines.pop(code)) for code in order])


def buffer(spec: Export, origin: Origin) -> Buffer:
    """An empty buffer for messages of one file of a store."""
    return (Lines if spec.format in TEXTS else Columns)(spec, origin)
