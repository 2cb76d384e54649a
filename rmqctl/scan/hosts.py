"""Hosts and offset message ids of a batch as Arrow strings.

A host is an address and a port behind it, in two widths by the system flags; a log has few
distinct ones, so only these are turned into text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from rmqctl.formats import layout
from rmqctl.formats.local.message import (
    HOST_BITS,
    MAGIC_V1,
    HostV4,
    HostV6,
    MessageId4,
    MessageId6,
    host_text,
)
from rmqctl.scan.frames import Array, Batch, gather, shape

_ADDRESS, _PORT = ".address", ".port"
_IDS = {layout.size_of(HostV4): layout.dtype(MessageId4),
        layout.size_of(HostV6): layout.dtype(MessageId6)}
_HOSTS = {layout.size_of(host): layout.reader(host) for host in (HostV4, HostV6)}


def hosts(batch: Batch, name: str) -> pa.StringArray:
    """``born_host`` or ``store_host`` of each message, as `host_text` writes them."""
    parts = []
    for rows, raw in _stored(batch, name):
        width = raw.dtype.itemsize
        coded = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), len(raw), [None, pa.py_buffer(raw)]).dictionary_encode()
        texts = pa.array([_text(one) for one in coded.dictionary.to_pylist()], pa.string())
        parts.append((rows, texts.take(coded.indices)))
    return _in_order(parts, len(batch))


def message_ids(batch: Batch) -> pa.StringArray:
    """The offset message id of each message: upper-case hex of store host and physical offset."""
    parts = []
    for rows, raw in _stored(batch, "store_host"):
        id_type = _IDS[raw.dtype.itemsize]
        found = np.empty(len(raw), id_type)
        host = raw.view(layout.dtype(HostV4 if id_type is _IDS[min(_IDS)] else HostV6))
        found["address"], found["port"] = host["address"], host["port"]
        found["physical_offset"] = batch.offset[rows]
        digits = _hex()[found.view(np.uint8)]
        edges = np.arange(len(raw) + 1, dtype=np.int32) * (2 * id_type.itemsize)
        parts.append((rows, pa.StringArray.from_buffers(
            len(raw), pa.py_buffer(edges), pa.py_buffer(digits))))
    return _in_order(parts, len(batch))


def _stored(batch: Batch, name: str) -> Iterator[tuple[Any, Array]]:
    """(rows, their hosts as stored, void items) for each of the shapes in a batch."""
    bits = batch.column("sys_flag") & HOST_BITS
    alike = len(bits) > 0 and bool((bits == bits[0]).all())
    for one in [int(bits[0])] if alike else np.unique(bits).tolist():
        rows: Any = slice(None) if alike else np.flatnonzero(bits == one)
        fields = shape(one, MAGIC_V1).dtype.fields
        assert fields is not None
        at = fields[name + _ADDRESS][1]
        port, port_at = fields[name + _PORT][:2]
        yield rows, gather(batch.data, batch.start[rows] + at, port_at + port.itemsize - at)


@lru_cache(maxsize=1 << 16)
def _text(raw: bytes) -> str:
    return host_text(*_HOSTS[len(raw)].unpack(raw))


@cache
def _hex() -> Array:
    """The two hex digits of each byte, as one number of two bytes."""
    return np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)


def _in_order(parts: list[tuple[Any, pa.StringArray]], count: int) -> pa.StringArray:
    if not parts:
        return pa.array([], pa.string())
    if len(parts) == 1:
        return parts[0][1]
    order: Array = np.empty(count, np.int64)
    order[np.concatenate([rows for rows, _ in parts])] = np.arange(count)
    return pa.concat_arrays([texts for _, texts in parts]).take(pa.array(order))
