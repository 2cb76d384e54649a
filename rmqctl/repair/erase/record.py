"""The record that replaces an erased message: it has the same size, but no content.

Physical offset, queue offset, times, hosts and tags are kept. The hash of the tags is in the
consume queue entry. The body becomes zeros. Only the properties that a broker needs to handle the
record safely are kept (see `salvage.filler`), and ``RMQCTL=erased`` is added.

A message of a deleted topic becomes a record of the transaction type ROLLBACK. No broker writes a
consume queue entry or index entry for such a record.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

from rmqctl.formats.local import append_crc, filler, sysflag
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import (
    CRC_MASK,
    HOST_BITS,
    Record,
    build,
    size_of,
    variant,
)
from rmqctl.repair.salvage.filler import REQUIRED
from rmqctl.scan.overlay import Parts

ERASED = "erased"
_KEPT = (props.TAGS, props.DELAY, props.INNER_NUM, props.INNER_BASE, props.MULTI_DISPATCH,
         props.MULTI_QUEUE_OFFSET)
_CONTENT_BITS = sysflag.COMPRESSED | sysflag.COMPRESSION_MASK | sysflag.NEED_UNWRAP
_CHUNK = 1 << 20


def erased(raw: bytes, record: Record, *, drop: bool = False,
           mark: str = ERASED) -> tuple[Parts, bool]:
    """Return (the record that replaces ``raw``, in sparse form; whether it has the property
    ``mark``).

    A small record has no space for that property. ``drop``: whether the topic is deleted.
    """
    # A record that ends with a correct appended CRC gets a new one.
    sealed = append_crc.verify(raw) is True
    properties = props.parse(record.properties.decode("utf-8", "surrogateescape"))
    flags = (record.sys_flag & HOST_BITS | sysflag.TRANSACTION_ROLLBACK if drop
             else record.sys_flag & ~_CONTENT_BITS)
    topic = filler.TOPIC.encode() if drop else record.topic
    own = record.topic.decode("utf-8", "replace")
    required = {} if drop else REQUIRED.get(own, {})
    kept = {} if drop else {name: properties[name] for name in _KEPT if name in properties}
    # Say as much as there is space for. What a broker needs of a message that waits has space as
    # the message has it.
    for topic_said, values in (
            (topic, kept | required | {filler.MARK: mark}), (topic, kept | required),
            (topic, kept | {name: properties[name] for name in required if name in properties}),
            (b"" if drop else topic, {})):
        text = props.build(values, trailing=sealed or record.properties.endswith(b"\2")).encode(
            "utf-8", "surrogateescape") + bytes(append_crc.SIZE if sealed else 0)
        body = record.total_size - size_of(flags, record.magic, 0, len(topic_said), len(text))
        if body >= 0 and len(text) < 1 << 15:
            break
    else:
        return ((0, raw),), False
    empty = replace(
        record, sys_flag=flags, topic=topic_said, properties=text, body=b"",
        body_crc=_zeros(body) & CRC_MASK, prepared_transaction_offset=0 if drop else
        record.prepared_transaction_offset,
        born_timestamp=0 if own == props.HALF_TOPIC else record.born_timestamp,
        queue_id=0 if drop else record.queue_id, queue_offset=0 if drop else record.queue_offset)
    return _laid_out(build(empty), variant(flags & HOST_BITS, record.magic).head_size, body,
                     sealed=sealed), filler.MARK in values


def is_erased(record: Record) -> bool:
    """Return whether the message has already been erased.

    Anyone can send the property, so the rest of the record must also be empty. The property may be
    missing from a delayed message that has no space for it.
    """
    properties = props.parse(record.properties.decode("utf-8", "replace"))
    required = REQUIRED.get(record.topic.decode("utf-8", "replace"), {})
    return (properties.get(filler.MARK) == ERASED or bool(required)) and not any(
        record.body) and properties.keys() <= {filler.MARK, props.CRC32, *_KEPT, *required}


def _laid_out(raw: bytes, head_size: int, body: int, *, sealed: bool) -> Parts:
    """Return ``raw`` (a record without a body) in sparse form, with a body of zeros inserted
    between header and properties.
    """
    head, end = raw[:head_size - 4] + body.to_bytes(4, "big"), raw[head_size:]
    if sealed:
        crc = zlib.crc32(end[:-append_crc.SIZE], _zeros(body, zlib.crc32(head))) & CRC_MASK
        end = end[:-append_crc.SIZE] + append_crc.build(crc)
    return (0, head), (head_size + body, end)


def _zeros(count: int, crc: int = 0) -> int:
    while count > 0:
        crc = zlib.crc32(bytes(min(count, _CHUNK)), crc)
        count -= _CHUNK
    return crc
