"""The message record of a commitlog, v1 and v2, IPv4 and IPv6 (spec: commitlog.md §2-§3).

`Message` is the declaration. Two functions return a `Record`, and reject the same bytes:

* `parse` (construct): slow, exact, errors name the field
* `decode`: a compiled struct derived by `layout`

`build` is the inverse of `parse` and `decode`.
"""

from __future__ import annotations

import ipaddress
import re
import struct as _struct
import zlib
from functools import cache

from construct import (
    Bytes,
    ConstructError,
    IfThenElse,
    Int8sb,
    Int16sb,
    Int32sb,
    Int32ub,
    Int64sb,
    Struct,
    this,
)

from rmqctl.errors import FormatError
from rmqctl.formats import layout
from rmqctl.formats.local.sysflag import BORN_HOST_V6, STORE_HOST_V6
from rmqctl.formats.local.trace import trace
from rmqctl.lazy_dataclass import dataclass

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
VERSIONS = {MAGIC_V1: "v1", MAGIC_V2: "v2"}
"""Every message magic and its name in output, shortest maximum topic length first. Any other magic
is damage. CONTRIBUTING.md describes how to add a magic.
"""

HostV4 = Struct("address" / Bytes(4), "port" / Int32sb)
HostV6 = Struct("address" / Bytes(16), "port" / Int32sb)

Blank = Struct("total_size" / Int32sb, "magic" / Int32ub)
"""Blank record: ``total_size`` is the number of bytes to the end of the file."""

Message = Struct(
    "total_size" / Int32sb,
    "magic" / Int32ub,
    "body_crc" / Int32sb,
    "queue_id" / Int32sb,
    "flag" / Int32sb,
    "queue_offset" / Int64sb,
    "physical_offset" / Int64sb,
    "sys_flag" / Int32sb,
    "born_timestamp" / Int64sb,
    "born_host" / IfThenElse(this.sys_flag & BORN_HOST_V6, HostV6, HostV4),
    "store_timestamp" / Int64sb,
    "store_host" / IfThenElse(this.sys_flag & STORE_HOST_V6, HostV6, HostV4),
    "reconsume_times" / Int32sb,
    "prepared_transaction_offset" / Int64sb,
    "body_length" / Int32sb,
    "body" / Bytes(this.body_length),
    "topic_length" / IfThenElse(this.magic == MAGIC_V2, Int16sb, Int8sb),
    "topic" / Bytes(this.topic_length),
    "properties_length" / Int16sb,
    "properties" / Bytes(this.properties_length),
)

MessageId4 = Struct("address" / Bytes(4), "port" / Int32sb, "physical_offset" / Int64sb)
MessageId6 = Struct("address" / Bytes(16), "port" / Int32sb, "physical_offset" / Int64sb)

BatchRequestItem = Struct(
    "total_size" / Int32sb, "magic" / Int32sb, "crc" / Int32sb, "flag" / Int32sb,
    "body_length" / Int32sb, "properties_length" / Int16sb)
"""The fields that precede the body and the properties of one message in a producer's
batch request.
"""

BATCH_ITEM_SIZE = layout.size_of(BatchRequestItem)
BLANK_SIZE = layout.size_of(Blank)
MAX_FOLDER_NAME = 255
"""Maximum length in bytes of a topic name, which is the name of a folder in `consumequeue/`."""
MIN_SIZE = layout.fixed_total(Message, sys_flag=0, magic=MAGIC_V1)
"""Minimum size in bytes of a record: v1, IPv4, no body, no topic, no properties."""
CRC_MASK = 0x7FFFFFFF
HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
VARIANTS = tuple((born | store, magic) for magic in VERSIONS
                 for store in (0, STORE_HOST_V6) for born in (0, BORN_HOST_V6))
"""The possible shapes of a record, as (``sys_flag & HOST_BITS``, magic)."""

MAGIC_OFFSET = layout.field(Message, "magic").offset
"""Bytes from a record's start to its magic; a blank record's magic is at the same position."""


def _pattern(*magics: int) -> re.Pattern[bytes]:
    return re.compile(b"|".join(re.escape(_struct.pack(">I", magic)) for magic in magics))


MAGIC_PATTERN = _pattern(*VERSIONS)
"""Pattern for the magics of messages; a record starts `MAGIC_OFFSET` bytes before a match."""
BLANK_PATTERN = _pattern(MAGIC_BLANK)
"""Pattern for the magic of blank records only. A search is 20 times faster if all matches of a
pattern have the same first bytes.
"""


@dataclass(slots=True)
class Record:
    """One message as it is stored: numbers as on disk, texts as bytes.

    ``born_host``/``store_host`` are (packed address, port). ``body`` may be a view.
    """

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: tuple[bytes, int]
    store_timestamp: int
    store_host: tuple[bytes, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: bytes
    properties: bytes

    @property
    def crc_ok(self) -> bool:
        """Return whether the body matches its CRC. The CRC of an empty body is 0; no broker checks
        it.
        """
        return zlib.crc32(self.body) & CRC_MASK == self.body_crc

    @property
    def message_id(self) -> str:
        """The broker's offset message id: upper-case hex of store host and physical offset."""
        address, port = self.store_host
        return message_id(address, port, self.physical_offset)


@dataclass(frozen=True, slots=True)
class Variant:
    """The positions of the fields in one of the eight shapes of a record (host widths, version)."""

    head: _struct.Struct
    head_size: int
    fixed_size: int
    topic_length: _struct.Struct
    born_v6: bool
    store_v6: bool


@cache
def variant(sys_flag_bits: int, magic: int) -> Variant:
    """Return the shape for ``sys_flag & 0x30`` and ``magic``, derived from the declaration."""
    context = {"sys_flag": sys_flag_bits, "magic": magic}
    return Variant(
        head=layout.reader(Message, **context),
        head_size=layout.prefix_size(Message, **context),
        fixed_size=layout.fixed_total(Message, **context),
        topic_length=_struct.Struct(">" + layout.width_of(Message, "topic_length", **context)[1]),
        born_v6=bool(sys_flag_bits & BORN_HOST_V6),
        store_v6=bool(sys_flag_bits & STORE_HOST_V6),
    )


_START = layout.reader(Message, "total_size", "magic", "sys_flag")
START_SIZE = _START.size
_TOTAL_SIZE = layout.reader(Message, "total_size")
_MAGIC = layout.reader(Message, "magic")
_PROPERTIES_LENGTH = _struct.Struct(">" + layout.width_of(Message, "properties_length")[1])
PROPERTIES_LENGTH_SIZE = _PROPERTIES_LENGTH.size
_MAX_TOPIC_LENGTHS = {magic: (1 << 8 * layout.width_of(Message, "topic_length", magic=magic)[0] - 1)
                      - 1 for magic in VERSIONS}


def is_magic(value: int) -> bool:
    """Return whether an unsigned number is the magic of a message."""
    return value in VERSIONS


def total_size_at(data: bytes | bytearray | memoryview, position: int = 0) -> int:
    """Return the size in bytes that is stored in the record (or blank record) at ``position``.

    The size may be negative. If the data is too short, return 0, which is not the size of any
    record.
    """
    if len(data) < position + _TOTAL_SIZE.size:
        return 0
    size: int = _TOTAL_SIZE.unpack_from(data, position)[0]
    return size


def magic_at(data: bytes | bytearray | memoryview, position: int = 0) -> int:
    """Return the magic (unsigned) of a record at ``data[position:]``; 0 if the data
    ends too early.
    """
    if len(data) < position + _MAGIC.size:
        return 0
    magic: int = _MAGIC.unpack_from(data, position)[0]
    return magic


def properties_length_at(data: bytes | memoryview, position: int = 0) -> int:
    """Return the length of the properties as stated by the length field at ``data[position:]``."""
    length: int = _PROPERTIES_LENGTH.unpack_from(data, position)[0]
    return length


def fixed_field(name: str, host_bits: int = 0) -> layout.Field:
    """Return the position of a field before the body.

    The position depends on the widths of the hosts, not on the magic.
    """
    return layout.field(Message, name, sys_flag=host_bits, magic=next(iter(VERSIONS)))


def longest_topic(magic: int) -> int:
    """Return the maximum topic length in bytes of records with this magic."""
    return _MAX_TOPIC_LENGTHS[magic]


def magic_for(topic: bytes) -> int:
    """Return the oldest magic whose records can contain a topic of this length; the newest magic if
    no record can.
    """
    return next((magic for magic, most in _MAX_TOPIC_LENGTHS.items() if len(topic) <= most),
                list(VERSIONS)[-1])


def _refuse(path: str, reason: str, offset: int | None) -> FormatError:
    return FormatError(reason, offset=offset, path=path)


def _refusal(data: bytes | memoryview, position: int, where: int) -> FormatError:
    """Return the error that names the first invalid or incomplete field of the record at
    ``position``.
    """
    last: tuple[str, int | bytes | None] = ("", None)
    for part in trace(Message, data, position):
        if part.name == "magic" and part.whole and part.value not in VERSIONS:
            return _refuse("magic", f"invalid message magic: {part.raw.hex()}", where)
        if not part.whole:
            if last[0] == f"{part.name}_length" and isinstance(last[1], int) and last[1] < 0:
                return _refuse(last[0], "negative length", where)
            return _refuse(part.name, "record runs past the end of the data", where)
        last = part.name, part.value
    return _refuse("total_size", "not a record", where)


def parse(data: bytes, position: int = 0, base: int | None = None) -> Record:
    """Return the record at ``data[position:]`` through construct.

    ``base``: the physical offset of ``data[0]``, only used in errors. Raises: FormatError that
    names field and offset.
    """
    where = position if base is None else base + position
    if position < 0 or position > len(data):
        raise _refuse("total_size", "outside the data", where)
    try:
        values = Message.parse(data[position:])
    except ConstructError:
        raise _refusal(data, position, where) from None
    lengths = (values.body_length, values.topic_length, values.properties_length)
    _judge(values.total_size, values.magic, values.sys_flag, lengths, where)
    return Record(
        values.total_size, values.magic, values.body_crc, values.queue_id, values.flag,
        values.queue_offset, values.physical_offset, values.sys_flag, values.born_timestamp,
        (values.born_host.address, values.born_host.port), values.store_timestamp,
        (values.store_host.address, values.store_host.port), values.reconsume_times,
        values.prepared_transaction_offset, values.body, values.topic, values.properties,
    )


def _judge(total: int, magic: int, sys_flag: int, lengths: tuple[int, int, int],
           where: int | None) -> None:
    if magic not in VERSIONS:
        raise _refuse("magic", f"invalid message magic: {magic:08x}", where)
    for name, length in zip(("body_length", "topic_length", "properties_length"), lengths,
                            strict=True):
        if length < 0:
            raise _refuse(name, "negative length", where)
    expected = variant(sys_flag & HOST_BITS, magic).fixed_size + sum(lengths)
    if expected != total:
        raise _refuse("total_size", f"says {total} bytes, but the fields add up to "
                      f"{expected}", where)


def _cut(path: str, where: int) -> FormatError:
    return _refuse(path, "record runs past the end of the data", where)


@cache
def _ends(sys_flag_bits: int, magic: int) -> tuple[tuple[int, str], ...]:
    """Return (end, name) of each field before the body, in one of the eight shapes."""
    return tuple((field.offset + field.size, field.name) for field in layout.prefix(
        Message, sys_flag=sys_flag_bits, magic=magic))


def _cut_in_head(have: int, shape: tuple[int, int], where: int) -> FormatError:
    """Return the fault of a record that is truncated before its body; ``have``: the number of
    remaining bytes.
    """
    return _cut(next(name for end, name in _ends(*shape) if end > have), where)


def decode(data: bytes | memoryview, position: int = 0, base: int | None = None) -> Record:
    """Return the record at ``data[position:]``, parsed with the derived struct, with the same
    result as `parse`.
    """
    where = position if base is None else base + position
    end = len(data)
    if position < 0 or position > end:
        raise _refuse("total_size", "outside the data", where)
    if position + START_SIZE > end:
        if position + BLANK_SIZE <= end and magic_at(data, position) not in VERSIONS:
            raise _refuse("magic", f"invalid message magic: {magic_at(data, position):08x}", where)
        raise _cut_in_head(end - position, VARIANTS[0], where)
    # The header, whose layout depends on the magic and the width of the addresses.
    total, magic, sys_flag = _START.unpack_from(data, position)
    if magic not in VERSIONS:
        raise _refuse("magic", f"invalid message magic: {magic:08x}", where)
    shape = variant(sys_flag & HOST_BITS, magic)
    if position + shape.head_size > end:
        raise _cut_in_head(end - position, (sys_flag & HOST_BITS, magic), where)
    (_, _, crc, queue_id, flag, queue_offset, physical_offset, _, born_timestamp, born_address,
     born_port, store_timestamp, store_address, store_port, reconsume, prepared,
     body_length) = shape.head.unpack_from(data, position)
    if body_length < 0:
        raise _refuse("body_length", "negative length", where)
    # Body, topic and properties, each with its length before it.
    body_at = position + shape.head_size
    topic_at = body_at + body_length + shape.topic_length.size
    if topic_at > end:
        raise _cut("body" if body_at + body_length > end else "topic_length", where)
    topic_length: int = shape.topic_length.unpack_from(data, topic_at - shape.topic_length.size)[0]
    if topic_length < 0:
        raise _refuse("topic_length", "negative length", where)
    properties_at = topic_at + topic_length + _PROPERTIES_LENGTH.size
    if properties_at > end:
        raise _cut("topic" if topic_at + topic_length > end else "properties_length", where)
    properties_length: int = _PROPERTIES_LENGTH.unpack_from(
        data, properties_at - _PROPERTIES_LENGTH.size)[0]
    if properties_length < 0:
        raise _refuse("properties_length", "negative length", where)
    if properties_at + properties_length > end:
        raise _cut("properties", where)
    # The lengths must add up to the total size.
    if shape.fixed_size + body_length + topic_length + properties_length != total:
        _judge(total, magic, sys_flag, (body_length, topic_length, properties_length), where)
    return Record(
        total, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag,
        born_timestamp, (born_address, born_port), store_timestamp, (store_address, store_port),
        reconsume, prepared, bytes(data[body_at:body_at + body_length]),
        bytes(data[topic_at:topic_at + topic_length]),
        bytes(data[properties_at:properties_at + properties_length]),
    )


def build(record: Record) -> bytes:
    """Return the bytes of a record; ``total_size`` is written as given (`size_of` computes it).

    Raises: ValueError for an address that does not have the width in ``sys_flag``.
    """
    shape = variant(record.sys_flag & HOST_BITS, record.magic)
    born, store = record.born_host, record.store_host
    if (len(born[0]), len(store[0])) != (16 if shape.born_v6 else 4, 16 if shape.store_v6 else 4):
        raise ValueError(f"addresses of {len(born[0])} and {len(store[0])} bytes do not match "
                         f"sys_flag {record.sys_flag:#x}")
    head = shape.head.pack(
        record.total_size, record.magic, record.body_crc, record.queue_id, record.flag,
        record.queue_offset, record.physical_offset, record.sys_flag, record.born_timestamp,
        *born, record.store_timestamp, *store, record.reconsume_times,
        record.prepared_transaction_offset, len(record.body))
    return b"".join((head, record.body, shape.topic_length.pack(len(record.topic)), record.topic,
                     _PROPERTIES_LENGTH.pack(len(record.properties)), record.properties))


def size_of(sys_flag: int, magic: int, body: int, topic: int, properties: int) -> int:
    """Return the size in bytes of a record with these field lengths."""
    return variant(sys_flag & HOST_BITS, magic).fixed_size + body + topic + properties


def host_text(address: bytes, port: int) -> str:
    """Return ``10.0.0.1:10911`` or ``[::1]:10911``."""
    ip = ipaddress.ip_address(address)
    return f"[{ip}]:{port}" if len(address) == 16 else f"{ip}:{port}"


def host_bytes(text: str) -> tuple[bytes, int]:
    """Return the inverse of `host_text`: (packed address, port).

    Raises: ValueError for any other form.
    """
    address, separator, port = text.rpartition(":")
    if not separator:
        raise ValueError(f"no port in {text!r}")
    return ipaddress.ip_address(address.removeprefix("[").removesuffix("]")).packed, int(port)


_ID4 = layout.reader(MessageId4)
_ID6 = layout.reader(MessageId6)


def message_id(address: bytes, port: int, physical_offset: int) -> str:
    """Return 32 (IPv4) or 56 (IPv6) upper-case hex characters (spec: commitlog.md §3)."""
    shape = _ID6 if len(address) == 16 else _ID4
    return shape.pack(address, port, physical_offset).hex().upper()


def parse_message_id(text: str) -> tuple[bytes, int, int]:
    """Return (packed address, port, physical offset) of an offset message id.

    Raises: ValueError if it is invalid.
    """
    raw = bytes.fromhex(text)
    shape = _ID6 if len(raw) == _ID6.size else _ID4
    if len(raw) != shape.size:
        raise ValueError(f"an offset message id has 32 or 56 hex digits, not {len(text)}")
    address, port, physical_offset = shape.unpack(raw)
    return address, port, physical_offset
