"""Erase single messages inside a record that is a batch (flag INNER_BATCH), in place.

Each message of a batch has a header, a body and properties. An erased message keeps its size: its
body becomes zeros, and its only property is ``RMQCTL=erased``.

This is impossible in a compressed batch, whose size would change. Such a batch can only be erased
as a whole, on request. RocketMQ's clients do not send compressed batches.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from rmqctl.formats import bodies, layout
from rmqctl.formats.local import append_crc, filler, sysflag
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import (
    BATCH_ITEM_SIZE,
    CRC_MASK,
    PROPERTIES_LENGTH_SIZE,
    BatchRequestItem,
    Record,
    build,
    properties_length_at,
)

_HEAD = layout.reader(BatchRequestItem, "total_size", "magic", "crc", "flag", "body_length")
_MARK = props.build({filler.MARK: "erased"}).encode()


class Inner(NamedTuple):
    """A message of a batch: its position ``at`` and its size in the batch's body, and its own body
    and properties.
    """

    at: int
    size: int
    body: bytes
    properties: bytes

    @property
    def unique_key(self) -> bytes | None:
        """Return the message id that the client assigned; None if the message has no id."""
        properties = props.parse(self.properties.decode("utf-8", "surrogateescape"))
        value = properties.get(props.UNIQUE_KEY)
        return None if value is None else value.encode("utf-8", "surrogateescape")


def inner_messages(record: Record, plain: bytes | None = None) -> list[Inner]:
    """Return the messages of a batch; an empty list if the record is not a batch.

    ``plain``: the decompressed body of the batch, if known.
    """
    if not record.sys_flag & sysflag.INNER_BATCH:
        return []
    if plain is None:
        plain = bodies.decompressed(sysflag.compression(record.sys_flag), bytes(record.body))[0]
    items = [*_items(plain)]
    return items if sum(item.size for item in items) == len(plain) else []


def _items(body: bytes) -> Iterator[Inner]:
    at = 0
    while at + BATCH_ITEM_SIZE <= len(body):
        length = _HEAD.unpack_from(body, at)[-1]
        start = at + _HEAD.size
        tail = start + length + PROPERTIES_LENGTH_SIZE
        if length < 0 or tail > len(body):
            return
        size = properties_length_at(body, start + length)
        if size < 0 or tail + size > len(body):
            return
        yield Inner(at, tail + size - at, body[start:start + length], body[tail:tail + size])
        at = tail + size


def without(raw: bytes, record: Record, gone: Callable[[Inner], bool]) -> tuple[
        bytes, list[Inner]]:
    """Return a batch's record, with the messages for which ``gone`` is true emptied, and a list of
    these messages.
    """
    body, erased = bytearray(record.body), []
    for item in inner_messages(record):
        if gone(item):
            erased.append(item)
            body[item.at:item.at + item.size] = _empty(body, item)
    patched = build(replace(record, body=bytes(body), body_crc=zlib.crc32(body) & CRC_MASK))
    if append_crc.verify(raw) is True:
        covered = patched[:-append_crc.SIZE]
        patched = covered + append_crc.build(zlib.crc32(covered) & CRC_MASK)
    return patched, erased


def _empty(body: bytearray, item: Inner) -> bytes:
    total, magic, _, flag, _ = _HEAD.unpack_from(body, item.at)
    space = item.size - BATCH_ITEM_SIZE
    text = _MARK if len(_MARK) <= space else b""
    length = space - len(text)
    return (_HEAD.pack(total, magic, 0, flag, length) + bytes(length)
            + len(text).to_bytes(PROPERTIES_LENGTH_SIZE, "big") + text)


def is_empty(item: Inner) -> bool:
    """Return whether a message of a batch has already been erased."""
    return item.properties == _MARK and not any(item.body)


def digest(item: Inner) -> str:
    """Return the SHA-256 of the body of a message."""
    return hashlib.sha256(item.body).hexdigest()
