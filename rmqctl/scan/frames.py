"""Frames as columns: a batch of message frames in one buffer, and the spans between them.

`formats.layout` derives all field positions from the declaration in `formats.message`. Loops over
the bytes run in the compiled kernel, if it is installed, or by column with NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from rmqctl.formats import layout
from rmqctl.formats.local.message import (
    CRC_MASK,
    HOST_BITS,
    MIN_SIZE,
    PROPERTIES_LENGTH_SIZE,
    VERSIONS,
    Message,
)
from rmqctl.kernel import active
from rmqctl.lazy_dataclass import dataclass

Array = np.ndarray[Any, np.dtype[Any]]

BLANK = "blank"
ZERO = "zero"
DAMAGED = "damaged"


Doubtful = tuple[tuple[int, int], ...]
"""(physical offset, size) of frames that may be records of the log."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a log that are not a message: ``blank``, ``zero`` or ``damaged``.

    ``offset``: physical offset.
    ``length``: in bytes.
    ``reason``, ``field``: the fault, if the bytes are damaged.
    ``located``: whether the span is exactly one record, and not the result of a search for the next
        record.
    ``doubtful``: frames in the span that may be records of the log or part of a body.
    """

    kind: str
    offset: int
    length: int
    reason: str = ""
    field: str = ""
    located: bool = False
    doubtful: Doubtful = ()

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class RecordShape:
    """The layout of one of the eight record variants, as numpy sees it."""

    dtype: np.dtype[Any]
    head_size: int
    fixed_size: int
    topic_length_size: int

    def field(self, name: str) -> tuple[np.dtype[Any], int]:
        """Return (type, offset) of a field of the fixed part.

        Raises: KeyError.
        """
        fields = self.dtype.fields
        assert fields is not None
        return fields[name][:2]


@cache
def shape(host_bits: int, magic: int) -> RecordShape:
    """Return the shape for ``sys_flag & 0x30`` and a message magic."""
    context = {"sys_flag": host_bits, "magic": magic}
    head_size = layout.prefix_size(Message, **context)
    return RecordShape(layout.dtype(Message, itemsize=head_size, **context), head_size,
                       layout.fixed_total(Message, **context),
                       layout.width_of(Message, "topic_length", **context)[0])


_HOST_WORD = np.dtype(">i4")


@cache
def _host_words(shaped: RecordShape) -> list[int]:
    """Return the offsets of the four-byte words of a store host's address in a record."""
    kind, offset = shaped.field("store_host.address")
    return list(range(offset, offset + kind.itemsize, _HOST_WORD.itemsize))


_ALL = 1 << 62
_PLACES = ("total_size", "body_start", "body_length", "topic_start", "topic_length",
           "properties_start", "properties_length")
_ROWS = len(_PLACES) + 2  # the columns of the kernel: start is the first, the variant the last
_ZERO_STEP = 1 << 16
_MAGICS = tuple(VERSIONS)
_SIZE = layout.reader(Message, "total_size")
START_SIZE = layout.prefix_size(Message)
_START_DTYPE = layout.dtype(Message, itemsize=START_SIZE)


def gather(data: Array, at: Array, width: int) -> Array:
    """Return the ``width`` bytes at each position in ``at``, as a contiguous array of void items.

    ``data`` is a uint8 array, and must contain all these bytes.
    """
    window: Array = np.ndarray((max(len(data) - width + 1, 0),), f"V{width}", data.data,
                               strides=(1,))
    return window[at]


def gather_int(data: Array, at: Array, code: str) -> Array:
    """Return the big-endian integer (numpy code such as ``i2``) at each position, as int64."""
    return _integers(data, at, np.dtype(f">{code}"))


def _integers(data: Array, at: Array, kind: np.dtype[Any], offset: int = 0) -> Array:
    """Return the big-endian integers at ``offset`` bytes after each position, as int64."""
    kernel = active()
    if kernel is None:
        return gather(data, at + offset, kind.itemsize).view(kind).astype(np.int64)
    out: Array = np.empty(len(at), np.int64)
    kernel.integers(data, np.ascontiguousarray(at, np.int64), offset, kind.itemsize,
                    kind.kind == "i", out)
    return out


def part_of(data: Array, start: int, length: int, mapped: bool) -> Array | None:
    """Return a part of ``data`` (uint8). ``mapped``: ``data`` is a mapping of a file; return a
    copy, or None if the part cannot be read any more.
    """
    if not mapped:
        return data[start:start + length]
    kernel, part = active(), np.empty(length, np.uint8)
    return part if kernel is not None and kernel.copied(data, start, part) else None


def distinct(values: Array) -> Array:
    """Return the distinct values of an array, ascending.

    `numpy.unique` would load numpy.ma, which takes longer than most commands need for this.
    """
    ordered = np.sort(values, axis=None)
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def used_length(data: bytes) -> int:
    """Return the length of ``data`` without the zero bytes at its end.

    Runs at memory speed if most bytes are zero.
    """
    values = np.frombuffer(data, np.uint8)
    end = len(values)
    while end:
        start = max(0, end - _ZERO_STEP)
        part = values[start:end]
        if part.any():
            return start + int(np.flatnonzero(part)[-1]) + 1
        end = start
    return 0


def hop(buffer: bytes | bytearray | memoryview, at: int, filled: int, most: int,
        head: int = 0) -> Array:
    """Return the positions (int64) of at most ``most`` records. The first record starts at ``at``;
    the size of each record shows where the next one starts. ``head``: number of bytes of the entry
    header before each record.
    """
    starts: list[int] = []
    last = filled - _SIZE.size
    at += head
    while at <= last and len(starts) < most:
        size: int = _SIZE.unpack_from(buffer, at)[0]
        if size < MIN_SIZE:
            break
        starts.append(at)
        at += size + head
    return np.array(starts, np.int64)


class Batch:
    """Message frames of one buffer, in order, and the spans between and after them.

    ``data`` (uint8): the buffer, valid only until the walk continues.
    ``base``: physical offset of ``data[0]``.
    ``start``: positions of the records in ``data``.
    ``head``: number of bytes before a record that belong to its frame.

    All other columns are computed on demand.
    """

    def __init__(self, data: Array, base: int, start: Array, groups: list[tuple[Any, RecordShape]],
                 columns: dict[str, Array], head: int = 0) -> None:
        self.data, self.base, self.start, self.head = data, base, start, head
        self.spans: list[Span] = []
        self._groups = groups
        self._columns = columns

    def __len__(self) -> int:
        return len(self.start)

    @property
    def has_v2(self) -> bool:
        """Return whether any message is a version 2 record."""
        return any(shaped.topic_length_size > 1 for _, shaped in self._groups)

    @property
    def offset(self) -> Array:
        """Return the physical offset of each record (int64)."""
        column = self._columns.get("offset")
        offsets: Array = self.start + self.base if column is None else column
        return offsets

    @property
    def frame_size(self) -> Array:
        """Return the size of each frame in bytes (int64): the record and the header before it."""
        size: Array = self.column("total_size") + self.head
        return size

    def column(self, name: str) -> Array:
        """Return a column as native int64: an integer field of the fixed part, or one of
        ``body_start``, ``topic_start``, ``properties_start`` (positions in ``data``),
        ``body_length``, ``topic_length`` and ``properties_length``.
        """
        computed = self._columns.get(name)
        if computed is not None:
            return computed
        out: Array = np.empty(len(self.start), np.int64)
        for rows, shaped in self._groups:
            values = _integers(self.data, self.start[rows], *shaped.field(name))
            if len(values) == len(out):
                out = values
            else:
                out[rows] = values
        self._columns[name] = out
        return out

    def hosts(self, name: str) -> Iterator[tuple[Any, Array]]:
        """Yield, for each record shape in the batch, (rows, their ``born_host`` or ``store_host``
        as stored). Hosts are void items: address and port.
        """
        for rows, shaped in self._groups:
            first = shaped.field(f"{name}.address")[1]
            port, last = shaped.field(f"{name}.port")
            yield rows, gather(self.data, self.start[rows] + first, last + port.itemsize - first)

    def store_hosts(self) -> Array:
        """Return a number (int64) for the store host of each record: equal for equal address and
        port, odd for IPv6.
        """
        out = self.column("store_host.port").copy()
        for rows, shaped in self._groups:
            words = _host_words(shaped)
            for word in words:
                out[rows] = out[rows] * 1_000_003 + _integers(
                    self.data, self.start[rows], _HOST_WORD, word)
            out[rows] = out[rows] * 2 + (len(words) > 1)
        return out

    def has_one_store_host(self) -> bool:
        """Return whether all records have the same store host. The batch must not be empty."""
        hosts = self.store_hosts()
        return bool((hosts == hosts[0]).all())

    def crc(self, start: Array, length: Array) -> Array:
        """Return the CRC-32 of a slice of ``data`` for each record, with the top bit cleared
        (int64).
        """
        kernel = active()
        if kernel is not None:
            sums: Array = np.empty(len(start), np.int64)
            kernel.crcs(self.data, np.ascontiguousarray(start), np.ascontiguousarray(length), sums)
            return sums
        view = memoryview(self.data.data)
        slices = map(slice, start.tolist(), (start + length).tolist())
        computed: Array = np.fromiter(map(crc32, map(view.__getitem__, slices)), np.int64,
                                      len(start))
        computed &= CRC_MASK
        return computed

    def crc_ok(self) -> Array:
        """Return a boolean array: whether each body matches its CRC; an empty body has
        the CRC 0.
        """
        is_ok = self._columns.get("crc_ok")
        if is_ok is None:
            is_ok = self.crc(self.column("body_start"), self.column("body_length")) == self.column(
                "body_crc")
            self._columns["crc_ok"] = is_ok
        return is_ok

    def bytes_at(self, index: int) -> bytes:
        """Return the bytes of record number ``index`` of this batch. The record must be intact."""
        at = int(self.start[index])
        return self.data[at:at + int(self.column("total_size")[index])].tobytes()

    def select(self, rows: Any) -> Batch:
        """Return a batch of the selected rows (same buffer, no spans)."""
        groups = self._groups
        if len(groups) > 1:
            part = np.full(len(self.start), -1, np.int8)
            for number, (where, _) in enumerate(groups):
                part[where] = number
            kept = part[rows]
            groups = [(np.flatnonzero(kept == n), s) for n, (_, s) in enumerate(groups)]
            groups = [group for group in groups if len(group[0])] or groups[:1]
        if len(groups) == 1:
            groups = [(slice(None), groups[0][1])]
        return Batch(self.data, self.base, self.start[rows], groups,
                     {name: value[rows] for name, value in self._columns.items()}, self.head)


def joined(batches: Sequence[Batch]) -> Batch:
    """Return one batch that combines several batches of the same buffer, in frame order."""
    if len(batches) == 1:
        return batches[0]
    first, start = batches[0], np.concatenate([batch.start for batch in batches])
    # The rows of each shape, with consecutive numbers.
    rows: dict[RecordShape, list[Array]] = {}
    before = 0
    for batch in batches:
        for which, shaped in batch._groups:
            rows.setdefault(shaped, []).append(np.arange(len(batch))[which] + before)
        before += len(batch)
    groups: list[tuple[Any, RecordShape]] = [(slice(None),
                                              next(iter(rows)))] if len(rows) == 1 else [
        (np.concatenate(some), shaped) for shaped, some in rows.items()]
    combined = Batch(first.data, first.base, start, groups, {
        name: np.concatenate([batch.column(name) for batch in batches]) for name in _PLACES},
        first.head)
    combined.spans = [span for batch in batches for span in batch.spans]
    return combined


def gathered(batches: Sequence[Batch]) -> Batch:
    """Return one batch from several batches of different buffers, with a copy of their bytes."""
    if len(batches) == 1:
        return batches[0]
    moved, before = [], 0
    for batch in batches:
        places = {name: batch.column(name) for name in _PLACES}
        moved.append(Batch(batch.data, 0, batch.start + before, batch._groups, {
            name: value + before if name.endswith("_start") else value
            for name, value in places.items()}, batch.head))
        moved[-1].spans = batch.spans
        before += len(batch.data)
    combined = joined(moved)
    combined.data = np.concatenate([batch.data for batch in batches])
    combined._columns["offset"] = np.concatenate([batch.offset for batch in batches])
    return combined


def records_from(data: Array, base: int, at: int, end: int, most: int = _ALL,
                 head: int = 0) -> Batch:
    """Return the consecutive records from ``data[at:]`` on, at most ``most``. The sizes lead from
    one record to the next.

    The records end before the first one that is not proved (see `examine`), or whose frame starts
    at or after ``end``. ``base``: physical offset of ``data[0]``. ``head``: size of the entry
    header before each record.
    """
    kernel = active()
    if kernel is None:
        start = hop(data.data, at, len(data), most, head)
        batch, ok = examine(data, base, start)
        good = len(start) if ok.all() else int(ok.argmin())
        good = min(good, int(np.searchsorted(start, end + head)))
        batch = batch if good == len(start) else batch.select(slice(0, good))
    else:
        room = max(min(end, len(data)) - at, 0) // (MIN_SIZE + head) + 1
        table: Array = np.empty((_ROWS, min(room, most)), np.int64)
        count = kernel.follow(data, base, at, end, most, table, min(head, len(data)))
        batch = _batch(data, base, table[:, :count])
    batch.head = head
    return batch


def _batch(data: Array, base: int, table: Array) -> Batch:
    """Return a batch of the records in a table that the kernel filled. The table is much larger
    than its records, so the batch has copies of the columns.
    """
    start, *places, variant = table
    is_uniform = len(variant) and (variant == variant[0]).all()
    numbers = variant[:1] if is_uniform else np.flatnonzero(np.bincount(variant + 1)) - 1
    groups: list[tuple[Any, RecordShape]] = [
        (np.flatnonzero(variant == number), shape(number & HOST_BITS, _MAGICS[number & ~HOST_BITS]))
        for number in numbers[numbers >= 0].tolist()]
    if len(groups) == 1:  # rows without a shape are not ok, and nothing reads them
        groups = [(slice(None), groups[0][1])]
    return Batch(data, base, start.copy(), groups,
                 {name: column.copy() for name, column in zip(_PLACES, places, strict=True)})


def examine(data: Array, base: int | Array, start: Array) -> tuple[Batch, Array]:
    """Check candidate records at positions ``start`` (int64, ascending) of ``data``.

    ``base``: physical offset of ``data[0]``. If the buffer contains records from several positions,
    ``base`` is an array (int64) with a value for each record, and the batch has ``base`` 0.

    Returns (batch over all candidates, ok). ``ok`` is true for each provable record. Such a record
    is completely inside ``data``. It has the magic of a message, a physical offset equal to its
    position, and lengths that add up to its size. Columns of rows that are not ok have no meaning.
    """
    kernel = active()
    if kernel is not None:
        table: Array = np.empty((_ROWS, len(start)), np.int64)
        proven: Array = np.empty(len(start), bool)
        kernel.examine(data, np.atleast_1d(np.asarray(base, np.int64)),
                       np.ascontiguousarray(start), table, proven.view(np.uint8))
        return _placed(_batch(data, 0, table), base), proven

    # The evidence of the headers, for all candidates inside the data: a message's magic, the
    # record's own place, a size that fits. A variant is numbered by its host bits (0x30) and, below
    # them, by the index of its magic.
    count = len(start)
    ok: Array = np.zeros(count, bool)
    inside = int(np.searchsorted(start, len(data) - START_SIZE, "right")) if count else 0
    head = gather(data, start[:inside], START_SIZE).view(_START_DTYPE)
    total: Array = np.zeros(count, np.int64)
    total[:inside] = head["total_size"]
    variant = head["sys_flag"] & HOST_BITS
    good: Array = np.zeros(inside, bool)
    for number, magic in enumerate(_MAGICS):
        has_magic = head["magic"] == magic
        good |= has_magic
        variant += number * has_magic
    bases = base[:inside] if isinstance(base, np.ndarray) else base
    good &= head["physical_offset"] == start[:inside] + bases
    good &= (total[:inside] >= MIN_SIZE) & (start[:inside] + total[:inside] <= len(data))

    # The rest variant by variant, since their fields are at different positions: nearly always all
    # rows have one variant, and a slice is enough instead of a gathered copy.
    columns = {name: np.zeros(count, np.int64) for name in _PLACES[1:]}
    groups: list[tuple[Any, RecordShape]] = []
    alike = variant[:1] if len(variant) and (variant == variant[0]).all() else distinct(variant)
    variants = alike.tolist()
    for number in variants:
        shaped = shape(number & HOST_BITS, _MAGICS[number & ~HOST_BITS])
        everything = len(variants) == 1 and good.all()
        rows: Any = slice(0, inside) if everything else np.flatnonzero((variant == number) & good)
        ok[rows] = _lengths(data, start[rows], total[rows], shaped, columns, rows)
        groups.append((rows, shaped))
    if len(groups) == 1:  # rows without a shape are not ok, and nothing reads them
        groups = [(slice(None), groups[0][1])]
    return _placed(Batch(data, 0, start, groups, {"total_size": total, **columns}), base), ok


def proved(data: Array, base: int, start: Array) -> Array:
    """Return a boolean array: whether each candidate record is provable, as `examine` does."""
    kernel = active()
    if kernel is None:
        return examine(data, base, start)[1]
    proven: Array = np.empty(len(start), bool)
    kernel.examine(data, np.array([base], np.int64), np.ascontiguousarray(start),
                   np.empty((_ROWS, len(start)), np.int64), proven.view(np.uint8))
    return proven


def _placed(batch: Batch, base: int | Array) -> Batch:
    """Return a batch whose records have the physical offsets start + ``base``; ``base`` is one
    number, or one per record.
    """
    if isinstance(base, np.ndarray):
        batch._columns["offset"] = batch.start + base
    else:
        batch.base = base
    return batch


def _lengths(data: Array, start: Array, total: Array, shaped: RecordShape, out: dict[str, Array],
             rows: Any) -> Array:
    """Write the positions of the variable-length fields of records of one shape to ``out``. Return
    a boolean array: whether each record's lengths add up.
    """
    if len(data) < shaped.head_size:
        return np.zeros(len(start), bool)
    end = start + total
    ok: Array = total >= shaped.fixed_size
    # A failed row gets a harmless position, so that one invalid length cannot stop the others.
    body_length = _integers(data, np.where(ok, start, 0), *shaped.field("body_length"))
    body_start = start + shaped.head_size
    ok &= (body_length >= 0) & (body_length <= total - shaped.fixed_size)
    topic_start = body_start + body_length + shaped.topic_length_size
    at = np.where(ok, topic_start - shaped.topic_length_size, 0)
    topic_length = gather_int(data, at, f"i{shaped.topic_length_size}")
    properties_start = topic_start + topic_length + PROPERTIES_LENGTH_SIZE
    ok &= (topic_length >= 0) & (properties_start <= end)
    at = np.where(ok, properties_start - PROPERTIES_LENGTH_SIZE, 0)
    properties_length = gather_int(data, at, f"i{PROPERTIES_LENGTH_SIZE}")
    ok &= (properties_length >= 0) & (properties_start + properties_length == end)
    for name, value in zip(_PLACES[1:], (body_start, body_length, topic_start, topic_length,
                                         properties_start, properties_length), strict=True):
        out[name][rows] = value
    return ok
