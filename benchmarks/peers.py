"""Peers to compare rmqctl's scan with: programs that a user would write with construct or struct.

Both split a commitlog file into records and check magic, physicalOffset, the sum of the lengths and
the body's CRC. They stop at the blank record or the zeros at the end, and raise for anything else.
They deliberately share no code with the rest of this folder or with rmqctl.

`struct_loop` reads only the fields for the checks; `struct_fields` returns the same message for
every record as the construct parse.
"""

from __future__ import annotations

import io
import mmap
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from construct import Bytes, Const, Int8ub, Int16ub, Int32sb, Int64sb, PascalString, Struct, this
from isal import isal_zlib

MESSAGE_MAGIC = 0xDAA320A7
CRC_MASK = 0x7FFFFFFF

CONSTRUCT_HOST = Struct("ip" / Bytes(4), "port" / Int32sb)
CONSTRUCT_MESSAGE = Struct(
    "total_size" / Int32sb,
    "magic" / Const(MESSAGE_MAGIC.to_bytes(4, "big")),
    "body_crc" / Int32sb,
    "queue_id" / Int32sb,
    "flag" / Int32sb,
    "queue_offset" / Int64sb,
    "physical_offset" / Int64sb,
    "sys_flag" / Int32sb,
    "born_timestamp" / Int64sb,
    "born_host" / CONSTRUCT_HOST,
    "store_timestamp" / Int64sb,
    "store_host" / CONSTRUCT_HOST,
    "reconsume_times" / Int32sb,
    "prepared_transaction_offset" / Int64sb,
    "body_length" / Int32sb,
    "body" / Bytes(this.body_length),
    "topic" / PascalString(Int8ub, "utf8"),
    "properties" / PascalString(Int16ub, "utf8"),
)

# total size, magic, body crc, (queue id, flag, queue offset), physical offset, (sys flag to
# prepared transaction offset), body length
STRUCT_HEADER = struct.Struct(">iIi16xq48xi")
STRUCT_START = struct.Struct(">iI")
STRUCT_FIELDS = struct.Struct(">iIIiiqqiq4siq4siiqi")
STRUCT_LENGTH = struct.Struct(">H")


class Message(NamedTuple):
    """All fields of a record, in their order on disk."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_ip: bytes
    born_port: int
    store_timestamp: int
    store_ip: bytes
    store_port: int
    reconsume_times: int
    prepared_transaction_offset: int
    body_length: int
    body: bytes
    topic: str
    properties: str


class Scan(NamedTuple):
    """Numbers of records and their bytes."""

    records: int
    bytes: int


def construct_parse(path: Path, base: int, limit: int | None = None) -> Scan:
    """Parse record by record from a stream of the file's first `limit` bytes (default: all)."""
    with path.open("rb") as log:
        stream = io.BytesIO(log.read(limit))
    end = stream.getbuffer().nbytes
    records = position = 0
    while position + STRUCT_START.size <= end:
        size, magic = STRUCT_START.unpack_from(stream.getbuffer(), position)
        if magic != MESSAGE_MAGIC or position + size > end:
            break
        stream.seek(position)
        message: Any = CONSTRUCT_MESSAGE.parse_stream(stream)
        if stream.tell() - position != message.total_size:
            raise ValueError(f"lengths disagree at {base + position}")
        if message.physical_offset != base + position:
            raise ValueError(f"physicalOffset is wrong at {base + position}")
        if zlib.crc32(message.body) & CRC_MASK != message.body_crc:
            raise ValueError(f"body CRC is wrong at {base + position}")
        records += 1
        position += size
    return Scan(records, position)


def struct_loop(
    path: Path, base: int, crc32: Callable[[memoryview], int] = isal_zlib.crc32
) -> Scan:
    """Parse a mapped file with one call of unpack_from per record; ``crc32``: the CRC function."""
    with (
        path.open("rb") as log,
        mmap.mmap(log.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        return struct_records(data, base, crc32)


def struct_records(data: memoryview, base: int, crc32: Callable[[memoryview], int]) -> Scan:
    """Parse the records of a complete file in a loop."""
    unpack, header = STRUCT_HEADER.unpack_from, STRUCT_HEADER.size
    unpack_length, length_size = STRUCT_LENGTH.unpack_from, STRUCT_LENGTH.size
    last = len(data) - header
    records = position = 0
    while position <= last:
        size, magic, body_crc, physical_offset, body_length = unpack(data, position)
        if magic != MESSAGE_MAGIC:
            break
        body = position + header
        topic = body + body_length
        properties = topic + 1 + data[topic]
        end = properties + length_size + unpack_length(data, properties)[0]
        if end - position != size:
            raise ValueError(f"lengths disagree at {base + position}")
        if physical_offset != base + position:
            raise ValueError(f"physicalOffset is wrong at {base + position}")
        if crc32(data[body:topic]) & CRC_MASK != body_crc:
            raise ValueError(f"body CRC is wrong at {base + position}")
        records += 1
        position = end
    return Scan(records, position)


def struct_fields(path: Path, base: int) -> Scan:
    """Copy all fields of every record to a Message, with zlib's CRC."""
    with path.open("rb") as log, mmap.mmap(log.fileno(), 0, access=mmap.ACCESS_READ) as data:
        last = len(data) - STRUCT_FIELDS.size
        records = position = 0
        while position <= last:
            fields = STRUCT_FIELDS.unpack_from(data, position)
            if fields[1] != MESSAGE_MAGIC:
                break
            body = position + STRUCT_FIELDS.size
            topic = body + fields[-1] + 1
            properties = topic + data[topic - 1] + STRUCT_LENGTH.size
            (length,) = STRUCT_LENGTH.unpack_from(data, properties - STRUCT_LENGTH.size)
            texts = (
                data[topic : properties - STRUCT_LENGTH.size].decode(),
                data[properties : properties + length].decode(),
            )
            message = Message._make((*fields, data[body : topic - 1], *texts))
            if properties + length - position != message.total_size:
                raise ValueError(f"lengths disagree at {base + position}")
            if message.physical_offset != base + position:
                raise ValueError(f"physicalOffset is wrong at {base + position}")
            if zlib.crc32(message.body) & CRC_MASK != message.body_crc:
                raise ValueError(f"body CRC is wrong at {base + position}")
            records += 1
            position += message.total_size
    return Scan(records, position)
