"""Takes the messages of one range and writes them into files by partition, in bounded memory.

A buffer collects messages up to `FLUSH` bytes, then goes into the files of its partitions: one
row group each. At most `MOST_OPEN` files are open; a partition whose file had to be closed gets
another one. All files lie in a folder of this attempt alone and are forced to disk when closed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, repeat
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from rmqctl.errors import StoreIOError
from rmqctl.files.durable import sync
from rmqctl.pipeline.export.files import File, compact_json, csv_line, json_line, opened
from rmqctl.pipeline.export.layout import Partitions
from rmqctl.pipeline.export.spec import ORIGIN, PROVENANCE, TEXTS, Export
from rmqctl.scan.columns import MESSAGE_TYPES, as_strings, message_columns
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.text import Properties
from rmqctl.store.pages import BatchPage
from rmqctl.store.projection import Projection, is_decoded
from rmqctl.store.query.conditions import PROPERTY

FLUSH = 16 << 20
"""Bytes of columns for which a process needs some 50 MiB in all for each thread: column buffers,
what is taken from them by partition, and the encoded pages."""
MOST_OPEN = 64
_FEW = 16
"""Partitions in a batch, and messages of each in it, which make it worth sorting it alone."""
_FOLDER_NAME = 32


class WriteError(StoreIOError):
    """The export could not be written: not the store's fault, and nothing is published."""


@dataclass(frozen=True, slots=True)
class Written:
    """One file: its name in the attempt's folder, its partition's number, what is in it."""

    name: str
    partition: int
    rows: int
    bytes: int


class Buffer(Protocol):
    """Collects messages; `take` gives (partition, chunk, rows) of all of them and forgets them."""

    size: int

    def add(self, batch: Batch, codes: Array) -> None: ...

    def take(self) -> Iterator[tuple[int, Any, int]]: ...


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

    def take(self) -> Iterator[tuple[int, pa.Table, int]]:
        parts, mixed, codes = self._parts, self._mixed, self._codes
        self._parts, self._mixed, self._codes, self.size = {}, [], [], 0
        for code in sorted(parts):
            part_table = pa.Table.from_batches(parts.pop(code), self._schema)
            yield code, part_table, len(part_table)
        if mixed:
            table = pa.Table.from_batches(mixed, self._schema)
            mixed.clear()
            for code, part in _split(table, np.concatenate(codes)):
                yield code, part, len(part)


def _text_of(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else compact_json(value)


def _split(rows: Any, codes: Array) -> Iterator[tuple[int, Any]]:
    """Rows (a record batch or table) by their codes, ascending; in each in the order they had."""
    first = int(codes[0])
    if (codes == first).all():
        yield first, rows
        return
    # The smallest type: numpy sorts those of one and two bytes by counting.
    order = np.argsort(codes.astype(np.min_scalar_type(int(codes.max()))), kind="stable")
    codes = codes[order]
    rows = rows.take(pa.array(order))
    borders = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), len(codes)]
    for a, b in pairwise(borders):
        yield int(codes[a]), rows.slice(a, b - a)


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

    def take(self) -> Iterator[tuple[int, bytes, int]]:
        lines, self._lines, self.size = self._lines, {}, 0
        for code in sorted(lines):
            chunks = lines.pop(code)
            yield code, b"".join(chunks), len(chunks)


def buffer(spec: Export, origin: Origin) -> Buffer:
    """An empty buffer for messages of one file of a store."""
    return (Lines if spec.format in TEXTS else Columns)(spec, origin)


@dataclass(slots=True)
class _Open:
    name: str
    target: IO[bytes]
    file: File
    rows: int = 0


class Sink:
    """The files of one attempt at a range. `close` gives them; `abandon` removes them."""

    def __init__(self, spec: Export, origin: Origin, folder: str) -> None:
        self._spec, self._folder = spec, folder
        self.attempt = uuid.uuid4().hex[:_FOLDER_NAME]
        self.partitions = Partitions(spec.partition_by, origin.store, spec.zone)
        self._buffer = buffer(spec, origin)
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._written: list[Written] = []
        self._made = False

    def add(self, batch: Batch) -> None:
        """Takes messages of the walk, which may go on after that. WriteError."""
        self._buffer.add(batch, self.partitions.codes(batch))
        if self._buffer.size >= FLUSH:
            self._flush()

    def close(self) -> list[Written]:
        """All files, durably written. WriteError."""
        self._flush()
        while self._open:
            self._close_oldest()
        return self._written

    def abandon(self) -> None:
        """Removes what was written, after a failure."""
        for opened_file in self._open.values():
            _drop(opened_file.target, opened_file.file)
        self._open.clear()
        shutil.rmtree(os.path.join(self._folder, self.attempt), ignore_errors=True)

    def _flush(self) -> None:
        for code, chunk, rows in self._buffer.take():
            opened_file = self._file(code)
            with self._writing(opened_file.name):
                opened_file.file.write(chunk)
            opened_file.rows += rows
        # Arrow would keep what each thread had at most, for nobody else.
        pa.default_memory_pool().release_unused()

    def _file(self, code: int) -> _Open:
        known = self._open.get(code)
        if known is not None:
            self._open.move_to_end(code)
            return known
        if len(self._open) >= MOST_OPEN:
            self._close_oldest()
        name = f"{len(self._written) + len(self._open):06d}{self._spec.ending}"
        with self._writing(name):
            path = os.path.join(self._folder, self.attempt, name)
            if not self._made:
                os.mkdir(os.path.dirname(path))  # the folder above is the driver's, or gone
                self._made = True
            target = open(path, "xb")  # noqa: SIM115  # open until its turn comes in _close_oldest
            try:
                opened_file = _Open(name, target, opened(self._spec, target))
            except BaseException:
                _drop(target)
                raise
        self._open[code] = opened_file
        return opened_file

    def _close_oldest(self) -> None:
        code, opened_file = self._open.popitem(last=False)
        with self._writing(opened_file.name):
            try:
                opened_file.file.close()
                opened_file.target.flush()
                size = opened_file.target.tell()
                sync(opened_file.target.fileno(), opened_file.target.name, whole=True)
                opened_file.target.close()
            except BaseException:
                _drop(opened_file.target, opened_file.file)
                raise
        self._written.append(Written(opened_file.name, code, opened_file.rows, size))

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno is None:  # Arrow's own, which has the number in its words only
                error.errno = errno.EIO
                raise WriteError(f"cannot write the export: {error}") from None
            path = os.path.join(self._folder, self.attempt, name)
            raise WriteError(str(StoreIOError.from_oserror(error, path, "write"))) from None
        except StoreIOError as error:
            raise WriteError(str(error)) from None


def _drop(target: IO[bytes], file: File | None = None) -> None:
    """Closes a file of no use any more, whatever state it is in."""
    if file is not None:
        file.abandon()
    with contextlib.suppress(OSError):  # what could not be written yet cannot be now either
        target.close()
