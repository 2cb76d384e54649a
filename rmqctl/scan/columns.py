"""Messages and frames of a walk as Arrow record batches: the columns somebody asked for.

Values are those of the message object (cli.md), in plain Arrow types which any reader takes.
Where a text is no UTF-8 its bytes become U+FFFD as in ``bytes.decode("utf-8", "replace")``; the
exact bytes are in ``record``. Nothing refers to the walk's buffer, so batches may be kept.
A batch is as large as the walk's (2 MiB of log, or one larger record).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import MAGIC_V2, VERSIONS
from rmqctl.scan.frames import DAMAGED, Array, Batch, Span
from rmqctl.scan.hosts import hosts, message_ids
from rmqctl.scan.pairs import LIST, MAP, as_lists, as_maps, as_strings
from rmqctl.scan.text import Properties, properties, slices, strings, topics

MESSAGE = "message"

MESSAGE_TYPES: dict[str, pa.DataType] = {
    "physical_offset": pa.int64(),
    "total_size": pa.int32(),
    "magic": pa.string(),
    "body_crc": pa.int32(),
    "crc_ok": pa.bool_(),
    "topic": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "flag": pa.int32(),
    "sys_flag": pa.int32(),
    "born_timestamp": pa.int64(),
    "born_host": pa.string(),
    "store_timestamp": pa.int64(),
    "store_host": pa.string(),
    "reconsume_times": pa.int32(),
    "prepared_transaction_offset": pa.int64(),
    "properties": MAP,
    "properties_raw": pa.string(),
    "tags": pa.string(),
    "keys": LIST,
    "unique_key": pa.string(),
    "msg_id": pa.string(),
    "body": pa.binary(),
    "record": pa.binary(),
}
"""The columns of messages. ``body`` is as stored, ``record`` the whole record; ``tags`` and
``unique_key`` are null where there is none, ``keys`` is an empty list then."""

FRAME_TYPES: dict[str, pa.DataType] = {
    "position": pa.int64(),
    "physical_offset": pa.int64(),
    "length": pa.int64(),
    "kind": pa.string(),
    "crc_ok": pa.bool_(),
    "topic": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "store_timestamp": pa.int64(),
    "reason": pa.string(),
    "field": pa.string(),
}
"""The columns of frames. ``position`` is in the file; what only messages have is null for other
frames, and ``reason`` and ``field`` are null for everything but damage."""


def message_columns(batch: Batch, names: Sequence[str]) -> pa.RecordBatch:
    """The named columns (`MESSAGE_TYPES`) of a batch's messages, in that order.

    Rows are the batch's, which must be in physical order, as a walk and ``select`` of ascending
    rows give them. Without names the record batch has no column but the number of rows, which
    Arrow's IPC format keeps. KeyError for an unknown name.
    """
    source = _Messages(batch)
    return record_batch([source.column(name) for name in names], names, MESSAGE_TYPES,
                        len(batch))


def frame_columns(batch: Batch, names: Sequence[str], base: int = 0) -> pa.RecordBatch:
    """The named columns (`FRAME_TYPES`) of messages and spans of a batch, in physical order.

    ``base`` is the physical offset of the file's first byte: ``position`` counts from it.
    Without names as `message_columns`. KeyError for an unknown name.
    """
    messages, spans = _Messages(batch), batch.spans
    offset = np.concatenate([batch.offset, np.array([one.offset for one in spans], np.int64)])
    order = None if (offset[1:] > offset[:-1]).all() else pa.array(np.argsort(offset))
    arrays = []
    for name in names:
        found = _frames(messages, spans, name, base)
        arrays.append(found if order is None else found.take(order))
    return record_batch(arrays, names, FRAME_TYPES, len(offset))


def schema(names: Sequence[str], types: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema of the named columns: all nullable. KeyError for an unknown name."""
    return pa.schema([pa.field(name, types[name]) for name in names])


def record_batch(arrays: Sequence[pa.Array], names: Sequence[str],
                 types: Mapping[str, pa.DataType], count: int) -> pa.RecordBatch:
    """A record batch of ``count`` rows, which may have no column at all."""
    if not names:
        rows = pa.StructArray.from_buffers(pa.struct([]), count, [None])
        return pa.RecordBatch.from_struct_array(rows)
    return pa.RecordBatch.from_arrays(list(arrays), schema=schema(names, types))


class _Messages:
    """Makes the columns of one batch; what several need is made once."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    @cached_property
    def raw_properties(self) -> pa.BinaryArray:
        return properties(self.batch)

    @cached_property
    def properties(self) -> Properties:
        return Properties(self.raw_properties)

    def column(self, name: str) -> pa.Array:
        kind = MESSAGE_TYPES[name]
        made = _MADE.get(name)
        if made is not None:
            return made(self)
        values = self.batch.column(name)
        return pa.array(values.astype(np.int32) if kind == pa.int32() else values)

    def text(self, name: str) -> pa.StringArray:
        return as_strings(self.properties, len(self.batch), name)


def _magic(messages: _Messages) -> pa.StringArray:
    is_v2: Array = messages.batch.column("magic") == MAGIC_V2
    return pa.array(list(VERSIONS.values()), pa.string()).take(pa.array(is_v2.astype(np.int8)))


def _body(messages: _Messages) -> pa.BinaryArray:
    batch = messages.batch
    return slices(batch.data, batch.column("body_start"), batch.column("body_length"))


_MADE: dict[str, Callable[[_Messages], pa.Array]] = {
    "physical_offset": lambda one: pa.array(one.batch.offset),
    "magic": _magic,
    "crc_ok": lambda one: pa.array(one.batch.crc_ok()),
    "topic": lambda one: strings(topics(one.batch)),
    "born_host": lambda one: hosts(one.batch, "born_host"),
    "store_host": lambda one: hosts(one.batch, "store_host"),
    "properties": lambda one: as_maps(one.properties, len(one.batch)),
    "properties_raw": lambda one: strings(one.raw_properties),
    "tags": lambda one: one.text(props.TAGS),
    "keys": lambda one: as_lists(one.properties, len(one.batch)),
    "unique_key": lambda one: one.text(props.UNIQUE_KEY),
    "msg_id": lambda one: message_ids(one.batch),
    "body": _body,
    "record": lambda one: slices(one.batch.data, one.batch.start,
                                 one.batch.column("total_size")),
}
"""All columns which are not simply an integer field of the record."""


def _frames(messages: _Messages, spans: Sequence[Span], name: str, base: int) -> pa.Array:
    """A column of the messages, then of the spans."""
    kind, batch = FRAME_TYPES[name], messages.batch
    first: pa.Array
    if name == "position":
        first = pa.array(batch.offset - base)
    elif name == "length":
        first = pa.array(batch.column("total_size"))
    elif name == "kind":
        first = pa.repeat(MESSAGE, len(batch))
    elif name in MESSAGE_TYPES:
        first = messages.column(name)
    else:
        first = pa.nulls(len(batch), kind)
    if not spans:
        return first
    return pa.concat_arrays([first, pa.array([_of_span(one, name, base) for one in spans], kind)])


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
