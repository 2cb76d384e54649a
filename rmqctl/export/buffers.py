"""Messages collected in memory until they are written, in the order of their partitions.

`LineBuffer` contains lines of JSON or CSV; the buffer of `rmqctl.export.columns` contains Arrow
columns. Each buffer returns `Chunks` with one chunk for each partition. A chunk is written to its
partition's file or spilled (`rmqctl.export.spill`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rmqctl.export.files import csv_line, json_line
from rmqctl.export.spec import ORIGIN, PROVENANCE, Export
from rmqctl.scan.frames import Array, Batch
from rmqctl.store.pages import BatchPage
from rmqctl.store.projection import Projection

if TYPE_CHECKING:
    import pyarrow as pa

FLUSH = 16 << 20
"""Maximum size in bytes of the columns in a buffer. Each thread then needs about 50 MiB: column
buffers, rows selected by partition, and encoded pages.
"""

class Chunks:
    """Content of a buffer: chunk ``n`` contains all ``counts[n]`` messages of partition
    ``codes[n]``.
    """

    def __init__(self, codes: list[int], counts: list[int], rows: pa.Table | None = None,
                 lines: list[bytes] | None = None) -> None:
        self.codes, self.counts = codes, counts
        self._rows, self._lines = rows, lines
        self._starts = [0, *accumulate(counts)]

    def __len__(self) -> int:
        return len(self.codes)

    def chunk(self, number: int) -> Any:
        """Return a chunk in the form that `rmqctl.export.files.ExportFile` accepts."""
        if self._lines is not None:
            return self._lines[number]
        assert self._rows is not None
        if len(self) == 1:
            return self._rows
        return self._rows.slice(self._starts[number], self.counts[number])

    def all(self) -> Iterator[Any]:
        """Return all chunks, in order."""
        return map(self.chunk, range(len(self)))

    def table(self, numbers: Sequence[int]) -> tuple[pa.Table, list[int]]:
        """Return the chunks with the given numbers as one table, and the number of rows in each
        chunk. ``numbers`` must be ascending.
        """
        import pyarrow as pa

        if self._lines is not None:
            column = pa.array([self._lines[number] for number in numbers], pa.large_binary())
            return pa.Table.from_arrays([column], names=["lines"]), [1] * len(numbers)
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
    """A buffer of messages; `take` removes all messages and returns them as one chunk per
    partition.

    ``rank``: position of each partition in the order of the chunks; None: ordered by partition
    number.
    """

    size: int

    def add(self, batch: Batch, codes: Array) -> None: ...

    def take(self, rank: Array | None = None) -> Chunks: ...


class Origin(NamedTuple):
    """Origin of messages: the store as named by the user, the file relative to the store, and the
    physical offset at which the file begins.
    """

    store: str
    file: str
    base: int

    def of(self, names: Sequence[str]) -> dict[str, str]:
        """Return the values for the names that are in `ORIGIN`."""
        return {name: getattr(self, name) for name in names if name in ORIGIN}

    def provenance(self, batch: Batch, names: Sequence[str]) -> dict[str, list[Any]]:
        """Return the values for the names in `PROVENANCE`, for each message."""
        values: dict[str, list[Any]] = {}
        if "position" in names:
            values["position"] = (batch.offset - self.base).tolist()
        if "sha256" in names:
            values["sha256"] = [hashlib.sha256(batch.bytes_at(number)).hexdigest()
                                for number in range(len(batch))]
        return values


class LineBuffer:
    """Messages as lines of JSON or CSV."""

    def __init__(self, spec: Export, origin: Origin) -> None:
        self._spec, self._place = spec, origin
        self._own = Projection([name for name in spec.fields
                                if name not in ORIGIN and name not in PROVENANCE], spec.body,
                               decoding=spec.decoding, redaction=spec.redaction)
        self._origin = origin.of(spec.fields)
        self._lines: dict[int, list[Any]] = {}
        self.size = 0

    def add(self, batch: Batch, codes: Array) -> None:
        rows: Any = (self._own.rows(BatchPage(batch)) if self._own.fields
                     else ({} for _ in range(len(batch))))
        if self._spec.decoding is not None and self._spec.format == "csv":  # rows differ in fields
            rows = ({name: row[name] for name in self._own.names} for row in rows)
        provenance = self._place.provenance(batch, self._spec.fields)
        if self._spec.redaction is not None:
            provenance = {name: [self._spec.redaction.field(name, value) for value in values]
                          for name, values in provenance.items()}
        if self._origin or provenance:
            more = (dict(zip(provenance, values, strict=True))
                    for values in (zip(*provenance.values(), strict=True) if provenance
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
