"""Encode messages as records (spec: commitlog.md §2, §5.4 and §7).

The layout comes from the declaration in `formats.message`. The fixed part of each record variant is
packed with a compiled struct.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from isal.isal_zlib import crc32

from rmqctl.broker.settings import Host, Settings
from rmqctl.formats import layout
from rmqctl.formats.local import append_crc
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import (
    CRC_MASK,
    HOST_BITS,
    MAGIC_V1,
    MAGIC_V2,
    Message,
    Record,
    variant,
)
from rmqctl.formats.local.sysflag import BORN_HOST_V6, STORE_HOST_V6
from rmqctl.lazy_dataclass import dataclass

V1_TOPIC_CHARS = 127
_TOPICS = 8192
_PROPERTIES_LENGTH = Struct(">" + layout.width_of(Message, "properties_length")[1])
_SEPARATOR = props.PROPERTY_SEPARATOR.encode()
_V6 = 16


def raw_text(text: str) -> bytes:
    """Return the stored bytes of a text. The lone surrogates U+DC80 to U+DCFF represent bytes that
    are not UTF-8.
    Raises: UnicodeEncodeError for other lone surrogates.
    """
    return text.encode("utf-8", "surrogateescape")


def host_flags(sys_flag: int, born_host: Host, store_host: Host) -> int:
    """Return ``sys_flag`` with the IPv6 bits set for IPv6 hosts; no bit is cleared."""
    if len(born_host[0]) == _V6:
        sys_flag |= BORN_HOST_V6
    if len(store_host[0]) == _V6:
        sys_flag |= STORE_HOST_V6
    return sys_flag


@dataclass(frozen=True, slots=True)
class TopicPart:
    """A topic as it is stored: the record version, and the topic's bytes with their length before
    them.
    """

    magic: int
    length: int
    prefixed: bytes


class Encoder:
    """Encodes messages for a configuration, which determines the record version and whether a CRC
    is appended.
    """

    def __init__(self, settings: Settings) -> None:
        self._v2 = settings.profile.message_v2
        self.reserved = append_crc.SIZE if settings.append_properties_crc else 0
        self.topic_part = lru_cache(maxsize=_TOPICS)(self._topic_part)

    def _topic_part(self, topic: str, magic: int = 0) -> TopicPart:
        if not magic:
            units = len(topic) if topic.isascii() else len(
                topic.encode("utf-16-be", "surrogatepass")) // 2
            magic = MAGIC_V2 if self._v2 and units > V1_TOPIC_CHARS else MAGIC_V1
        raw = raw_text(topic)
        width = variant(0, magic).topic_length
        # A topic of up to 127 characters may have more bytes; the length byte then reads back
        # negative, and the admission checks refuse such a topic before it comes here.
        return TopicPart(magic, len(raw), width.pack(len(raw)) + raw)

    def properties_part(self, properties: str) -> bytes:
        """Return the stored bytes of the properties; if a CRC is appended, they end with a
        separator.
        """
        raw = raw_text(properties)
        if self.reserved and raw and not raw.endswith(_SEPARATOR):
            raw += _SEPARATOR
        return raw

    def size(self, sys_flag: int, topic: TopicPart, body: int, properties: int) -> int:
        """Return the size of the record in bytes, including the space reserved for an appended
        CRC.
        """
        return (variant(sys_flag & HOST_BITS, topic.magic).fixed_size + body + topic.length
                + properties + self.reserved)

    def record(self, record: Record, topic: TopicPart) -> bytes:
        """Return the bytes of a record; its ``total_size`` must be the result of `size`.

        ``record.properties`` must not include the appended CRC: this function adds the space for
        it.
        """
        if not self.reserved:
            return assemble(record, topic.prefixed, record.properties)
        return append_crc.seal(
            assemble(record, topic.prefixed, record.properties + bytes(self.reserved)))


def assemble(record: Record, topic: bytes, properties: bytes) -> bytes:
    """Return the bytes of a record; ``topic`` includes its length.

    ``total_size``, ``physical_offset`` and the CRC are taken from ``record``.
    """
    body = record.body
    return b"".join((
        variant(record.sys_flag & HOST_BITS, record.magic).head.pack(
            record.total_size, record.magic, record.body_crc, record.queue_id, record.flag,
            record.queue_offset, record.physical_offset, record.sys_flag, record.born_timestamp,
            *record.born_host, record.store_timestamp, *record.store_host,
            record.reconsume_times, record.prepared_transaction_offset, len(body)),
        body, topic, _PROPERTIES_LENGTH.pack(len(properties)), properties))


def body_crc(body: bytes) -> int:
    """Return the CRC of a body as it is stored in a record; 0 for an empty body."""
    return crc32(body) & CRC_MASK
