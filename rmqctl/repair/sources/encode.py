"""Encode a record from its fields, to exactly the bytes that were stored."""

from __future__ import annotations

from rmqctl.engine.put.encoder import assemble
from rmqctl.formats.local.message import HOST_BITS, Record, decode, variant

_V6 = 16


def encoded(record: Record) -> bytes:
    """Return the bytes of a record. Raises: ValueError, struct.error if a record cannot have the
    values.
    """
    shape = variant(record.sys_flag & HOST_BITS, record.magic)
    widths = len(record.born_host[0]) == _V6, len(record.store_host[0]) == _V6
    if widths != (shape.born_v6, shape.store_v6):
        raise ValueError("sys_flag and the hosts do not agree on IPv6")
    raw = assemble(record, shape.topic_length.pack(len(record.topic)) + record.topic,
                   record.properties)
    if decode(raw) != record:
        raise ValueError("decoding the record gives different values")
    return raw
