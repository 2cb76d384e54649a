"""Messages and frames of a walk as Arrow record batches with selected columns.

Values are those of the message object (cli.md), in plain Arrow types that any reader accepts. In
text that is not UTF-8, invalid bytes become U+FFFD as in ``bytes.decode("utf-8", "replace")``. The
exact bytes are in ``record``. A record batch covers one batch of the walk (2 MiB of log, or one
larger record). It may be kept, because it does not refer to the walk's buffer.

Properties follow `rmqctl.formats.local.properties.parse`. The key ends at the first separator.
Empty keys and values are ignored. If a key occurs twice, its last value counts, at the position of
its first value. Keys are decoded before they are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from rmqctl.formats import layout
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import (
    VERSIONS,
    HostV4,
    HostV6,
    MessageId4,
    MessageId6,
    host_text,
)
from rmqctl.kernel import active
from rmqctl.scan import text
from rmqctl.scan.frames import DAMAGED, Array, Batch, Span, distinct
from rmqctl.scan.tables import FRAME_COLUMNS, LIST, MAP, MESSAGE_COLUMNS, MOMENT, Columns
from rmqctl.scan.text import KnownTexts, PropertySegments, Texts, contiguous

_ASSIGN = props.NAME_VALUE_SEPARATOR.encode()[0]
_DENSE = 1 << 22
_IDS = {layout.size_of(HostV4): layout.dtype(MessageId4),
        layout.size_of(HostV6): layout.dtype(MessageId6)}
_HOSTS = {layout.size_of(host): layout.reader(host) for host in (HostV4, HostV6)}

_PROPERTIES = {"tags": props.TAGS, "keys": props.KEYS, "unique_key": props.UNIQUE_KEY}
MESSAGE = "message"


def message_columns(batch: Batch, names: Sequence[str]) -> pa.RecordBatch:
    """Return the named columns (`MESSAGE_COLUMNS`) of a batch's messages, in the order of
    ``names``.

    The batch must be in physical order, as from a walk or from ``select`` with ascending rows. If
    no names are given, the result has only the number of rows, which Arrow's IPC format keeps.

    Raises: KeyError for an unknown name.
    """
    source = _Messages(batch, names)
    return record_batch([source.column(name) for name in names], names, MESSAGE_COLUMNS,
                        len(batch))


def frame_columns(batch: Batch, names: Sequence[str], base: int = 0) -> pa.RecordBatch:
    """Return the named columns (`FRAME_COLUMNS`) of messages and spans of a batch, in physical
    order.

    ``base``: physical offset of the file's first byte; the column ``position`` is relative to it.
    Without names: see `message_columns`.

    Raises: KeyError for an unknown name.
    """
    messages, spans = _Messages(batch, names), batch.spans
    offset = np.concatenate([batch.offset, np.array([span.offset for span in spans], np.int64)])
    order = None if (offset[1:] > offset[:-1]).all() else pa.array(np.argsort(offset))
    arrays = []
    for name in names:
        column = _frames(messages, spans, name, base)
        arrays.append(column if order is None else column.take(order))
    return record_batch(arrays, names, FRAME_COLUMNS, len(offset))


def schema(names: Sequence[str], columns: Columns) -> pa.Schema:
    """Return the schema of the named columns.

    Raises: KeyError for an unknown name.
    """
    return pa.schema([columns[name] for name in names])


def record_batch(arrays: Sequence[pa.Array], names: Sequence[str], columns: Columns,
                 count: int) -> pa.RecordBatch:
    """Return a record batch of ``count`` rows, which may have no columns."""
    if not names:
        rows = pa.StructArray.from_buffers(pa.struct([]), count, [None])
        return pa.RecordBatch.from_struct_array(rows)
    return pa.RecordBatch.from_arrays(list(arrays), schema=schema(names, columns))


class _Messages:
    """Builds the columns of one batch; values needed by several columns are computed once."""

    def __init__(self, batch: Batch, names: Sequence[str]) -> None:
        self.batch = batch
        self._searched = tuple(_PROPERTIES[name] for name in names if name in _PROPERTIES)

    @cached_property
    def properties(self) -> PropertySegments:
        return PropertySegments(self.batch, self._searched)

    def column(self, name: str) -> pa.Array:
        kind = MESSAGE_COLUMNS[name].type
        computed = _COMPUTED.get(name)
        if computed is not None:
            return computed(self)
        values = self.batch.column(name)
        if kind == MOMENT:
            return pa.array(values).view(MOMENT)
        return pa.array(values.astype(np.int32) if kind == pa.int32() else values)

    def text(self, name: str) -> pa.StringArray:
        return as_strings(self.properties, len(self.batch), name)


def _magic(messages: _Messages) -> pa.StringArray:
    magics = messages.batch.column("magic")
    if len(magics) and (magics == magics[0]).all():
        return pa.repeat(VERSIONS[int(magics[0])], len(magics))
    numbers: Array = np.zeros(len(magics), np.int8)
    for number, magic in enumerate(VERSIONS):
        numbers[magics == magic] = number
    return pa.array(list(VERSIONS.values()), pa.string()).take(pa.array(numbers))


def _body(messages: _Messages) -> pa.BinaryArray:
    batch = messages.batch
    return binary(Texts(batch.data, batch.column("body_start"), batch.column("body_length")))


_COMPUTED: dict[str, Callable[[_Messages], pa.Array]] = {
    "physical_offset": lambda messages: pa.array(messages.batch.offset),
    "magic": _magic,
    "crc_ok": lambda messages: pa.array(messages.batch.crc_ok()),
    "topic": lambda messages: strings(text.topics(messages.batch)),
    "born_host": lambda messages: hosts(messages.batch, "born_host"),
    "store_host": lambda messages: hosts(messages.batch, "store_host"),
    "properties": lambda messages: as_maps(
        PropertySegments(text.properties(messages.batch).packed()), len(messages.batch)),
    "properties_raw": lambda messages: strings(text.properties(messages.batch)),
    "tags": lambda messages: messages.text(props.TAGS),
    "keys": lambda messages: as_lists(messages.properties, len(messages.batch)),
    "unique_key": lambda messages: messages.text(props.UNIQUE_KEY),
    "msg_id": lambda messages: message_ids(messages.batch),
    "body": _body,
    "record": lambda messages: binary(Texts(messages.batch.data, messages.batch.start,
                                            messages.batch.column("total_size"))),
}
"""Functions that compute the columns, except for columns that are one integer field of the
record.
"""


def _frames(messages: _Messages, spans: Sequence[Span], name: str, base: int) -> pa.Array:
    """Return a column with the values of the messages, then those of the spans."""
    kind, batch = FRAME_COLUMNS[name].type, messages.batch
    first: pa.Array
    if name == "position":
        first = pa.array(batch.offset - batch.head - base)
    elif name == "length":
        first = pa.array(batch.frame_size)
    elif name == "kind":
        first = pa.repeat(MESSAGE, len(batch))
    elif name in MESSAGE_COLUMNS:
        first = messages.column(name)
    else:
        first = pa.nulls(len(batch), kind)
    if not spans:
        return first
    return pa.concat_arrays([first, pa.array([_of_span(span, name, base) for span in spans], kind)])


def _of_span(span: Span, name: str, base: int) -> int | str | None:
    if name == "position":
        return span.offset - base
    if name == "physical_offset":
        return span.offset
    if name == "length":
        return span.length
    if name == "kind":
        return span.kind
    if span.kind == DAMAGED and name in ("reason", "field"):
        return span.reason if name == "reason" else span.field
    return None


# -- texts ----------------------------------------------------------------------------------------


def binary(texts: Texts) -> pa.BinaryArray:
    """Return a copy of the texts as stored. The texts must be in ascending order and must not
    overlap.
    """
    count = len(texts)
    if not count:
        return pa.array([], pa.binary())
    kernel = active()
    if kernel is not None:
        ends: Array = np.zeros(count + 1, np.int32)
        np.cumsum(texts.length, out=ends[1:])
        data: Array = np.empty(int(ends[-1]), np.uint8)
        kernel.join(texts.data, *contiguous(texts.start, texts.length), data)
        return pa.BinaryArray.from_buffers(pa.binary(), count, [
            None, pa.py_buffer(ends), pa.py_buffer(data)])
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = texts.start
    edges[1::2] = texts.start + texts.length
    # Every second element is a wanted text, the others are the bytes between two of them.
    both = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1,
                                       [None, pa.py_buffer(edges), pa.py_buffer(texts.data)])
    return both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def strings(texts: Texts) -> pa.StringArray:
    """Return the texts as Arrow strings; bytes that are not UTF-8 become U+FFFD as in Python."""
    raw = binary(texts)
    shown: pa.StringArray = raw.view(pa.string())
    try:
        shown.validate(full=True)
    # Arrow does not name the invalid text: decode all of this array in Python
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in raw.to_pylist()],
                        pa.string())
    return shown


# -- properties -----------------------------------------------------------------------------------


def as_maps(properties: PropertySegments, count: int) -> pa.MapArray:
    """Return the properties of each of ``count`` records (`MAP`), in stored order and with unique
    keys.
    """
    row, start, end = properties.segments
    assign, valid = _assigns(properties.data, start, end)
    if not valid.all():
        row, start, end, assign = row[valid], start[valid], end[valid], assign[valid]
    names: dict[str, int] = {}
    keys = KnownTexts().encode(
        Texts(properties.data, start, assign - start),
        lambda raw: names.setdefault(raw.decode("utf-8", "replace"), len(names)))
    values = strings(Texts(properties.data, assign + 1, end - assign - 1))
    single = _singles(row, keys, len(names), count)
    if single is not None:
        first, last = single
        row, keys, values = row[first], keys[first], values.take(pa.array(last))
    return pa.MapArray.from_arrays(_edges(row, count), pa.array(list(names), pa.string()).take(
        pa.array(keys)), values, MAP)


def as_lists(properties: PropertySegments, count: int) -> pa.ListArray:
    """Return the list of keys of each record (`LIST`): its KEYS property split at spaces."""
    row, start, length = properties.places(props.KEYS)
    of, start, length = text.split(properties.data, start, length)
    return pa.ListArray.from_arrays(_edges(row[of], count),
                                    strings(Texts(properties.data, start, length)), LIST)


def as_strings(properties: PropertySegments, count: int, name: str) -> pa.StringArray:
    """Return the value of one property for each of ``count`` records; null if a record does not
    have the property.
    """
    row, values = properties.find(name)
    texts = strings(values)
    if len(row) == count:
        return texts
    if not len(row):
        return pa.nulls(count, pa.string())
    # The same bytes: a missing text begins and ends at the same position.
    _, ends, raw = texts.buffers()
    ends = np.frombuffer(ends, np.int32)[texts.offset:][:len(row) + 1]
    edges: Array = np.zeros(count + 1, np.int32)
    edges[0], edges[row + 1] = ends[0], np.diff(ends)
    present = np.zeros(count, bool)
    present[row] = True
    return pa.StringArray.from_buffers(
        count, pa.py_buffer(np.cumsum(edges, dtype=np.int32)), raw,
        pa.py_buffer(np.packbits(present, bitorder="little")), count - len(row))


def _edges(row: Array, count: int) -> pa.Int32Array:
    """Return Arrow's list offsets for elements whose row numbers ascend."""
    edges: Array = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(row, minlength=count), out=edges[1:])
    return pa.array(edges)


def _assigns(data: Array, start: Array, end: Array) -> tuple[Array, Array]:
    """Return, for each segment, the position of the first 0x01 and whether the segment is a
    property.
    """
    marks = np.flatnonzero(data == _ASSIGN)
    if len(marks) == len(start) and (marks >= start).all() and (marks < end).all():
        assign = marks
    else:
        marks = np.append(marks, len(data))  # a segment without a separator finds one after it
        assign = marks[np.searchsorted(marks, start)]
    return assign, (assign > start) & (assign < end - 1)


def _singles(row: Array, keys: Array, width: int, count: int) -> tuple[Array, Array] | None:
    """Return (first position, last position) of each key of each row; first positions ascend. None
    if no key is duplicated.

    ``keys`` are numbers below ``width``.
    """
    width = max(width, 1)
    code = row * width + keys
    if count * width <= _DENSE:
        seen = np.zeros(count * width, bool)
        seen[code] = True
        different = int(np.count_nonzero(seen))
    else:
        different = len(distinct(code))
    if different == len(code):
        return None
    first = np.unique(code, return_index=True)[1]
    last = len(code) - 1 - np.unique(code[::-1], return_index=True)[1]
    order = np.argsort(first)
    return first[order], last[order]


# -- hosts and ids --------------------------------------------------------------------------------
#
# A host is an address and a port after it, in two widths by the system flags. A log has few
# distinct ones, so only these are turned into text.


def hosts(batch: Batch, name: str) -> pa.StringArray:
    """Return ``born_host`` or ``store_host`` of each message, in the form of `host_text`."""
    parts = []
    for rows, raw in batch.hosts(name):
        width = raw.dtype.itemsize
        coded = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), len(raw), [None, pa.py_buffer(raw)]).dictionary_encode()
        texts = pa.array([_text(host) for host in coded.dictionary.to_pylist()], pa.string())
        parts.append((rows, texts.take(coded.indices)))
    return _in_order(parts, len(batch))


def message_ids(batch: Batch) -> pa.StringArray:
    """Return the offset message id of each message: upper-case hex of store host and physical
    offset.
    """
    parts = []
    for rows, raw in batch.hosts("store_host"):
        id_type = _IDS[raw.dtype.itemsize]
        ids = np.empty(len(raw), id_type)
        host = raw.view(layout.dtype(HostV4 if id_type is _IDS[min(_IDS)] else HostV6))
        ids["address"], ids["port"] = host["address"], host["port"]
        ids["physical_offset"] = batch.offset[rows]
        digits = _hex()[ids.view(np.uint8)]
        edges = np.arange(len(raw) + 1, dtype=np.int32) * (2 * id_type.itemsize)
        parts.append((rows, pa.StringArray.from_buffers(
            len(raw), pa.py_buffer(edges), pa.py_buffer(digits))))
    return _in_order(parts, len(batch))


@lru_cache(maxsize=1 << 16)
def _text(raw: bytes) -> str:
    return host_text(*_HOSTS[len(raw)].unpack(raw))


@cache
def _hex() -> Array:
    """Return the two hex digits of each byte, as one two-byte number."""
    return np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)


def _in_order(parts: list[tuple[Any, pa.StringArray]], count: int) -> pa.StringArray:
    if not parts:
        return pa.array([], pa.string())
    if len(parts) == 1:
        return parts[0][1]
    order: Array = np.empty(count, np.int64)
    order[np.concatenate([rows for rows, _ in parts])] = np.arange(count)
    return pa.concat_arrays([texts for _, texts in parts]).take(pa.array(order))


def dict_column(column: pa.ChunkedArray) -> list[dict[str, str | None] | None]:
    """Return a column of maps as Python dicts. Arrow's own conversion takes ten times as long,
    because it creates a scalar for each pair.
    """
    values: list[dict[str, str | None] | None] = []
    for part in column.chunks:
        edges, keys, items = (array.to_pylist() for array in (part.offsets, part.keys, part.items))
        values += [dict(zip(keys[a:b], items[a:b], strict=True)) for a, b in pairwise(edges)]
        if part.null_count:
            for number in range(len(part)):
                if not part[number].is_valid:
                    values[number - len(part)] = None
    return values
