"""Single records of a log as bytes: their fields, possible original values, and replacements."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from itertools import compress
from operator import attrgetter, not_
from typing import NamedTuple

from rmqctl.errors import FormatError
from rmqctl.formats import layout
from rmqctl.formats.local import append_crc, sysflag
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import (
    BLANK_SIZE,
    CRC_MASK,
    HOST_BITS,
    MAGIC_BLANK,
    MAX_FOLDER_NAME,
    MIN_SIZE,
    PROPERTIES_LENGTH_SIZE,
    START_SIZE,
    VERSIONS,
    Message,
    Record,
    decode,
    is_magic,
    longest_topic,
    magic_at,
    properties_length_at,
    total_size_at,
    variant,
)
from rmqctl.scan.damage.tails import MAX_TAIL, tails_of
from rmqctl.scan.overlay import LogPart, Nearby, OverlayPiece
from rmqctl.scan.resync import MAX_RECORD, is_placed
from rmqctl.scan.source import Source

FIELDS = {name: slice(field.offset, field.offset + field.size) for name in (
    "total_size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag")
    for field in [layout.field(Message, name)]}
"""The bytes of the header fields that a repair may change."""
_LONGEST_HEAD = max(variant(HOST_BITS, magic).head_size for magic in VERSIONS)
_LENGTH = 4
"""Size in bytes of the body length field, which is the last field before the body."""
_MULTI_DISPATCH = props.MULTI_DISPATCH.encode()
_SECTOR = 512
MAX_BODY = 8 << 20
"""Maximum size in bytes of a body that is repaired. This limits memory use if a length is damaged.
"""


class Records:
    """The records of a log, and replacements for some of them.

    * ``pieces``: replacements by part number, in the order in which they were added.
    * ``rejected``: physical offsets of rejected records.
    * ``reasons``: descriptions of some changes, by physical offset of the changed record.
    """

    def __init__(self, parts: Sequence[LogPart]) -> None:
        self.parts, self._bases = parts, [part.base for part in parts]
        self.pieces: dict[int, list[OverlayPiece]] = {}
        self.rejected: set[int] = set()
        self.reasons: dict[int, str] = {}
        self.count = 0
        self._places: set[int] = set()
        self._held: tuple[int, Source] | None = None
        self._opened = ExitStack()

    def _open(self, number: int) -> Source:
        """Return the opened source of a part. The source is closed when another part is opened, or
        this object is deleted.
        """
        if self._held is None or self._held[0] != number:
            self._opened.close()
            source = self._opened.enter_context(self.parts[number].open())
            self._held = number, Nearby(source)
        return self._held[1]

    def opened(self, physical: int) -> tuple[LogPart, Source]:
        """Return the part that contains a physical offset, and its opened source.
        Raises: StoreIOError.
        """
        number = self._number(physical)
        assert number is not None
        return self.parts[number], self._open(number)

    def read(self, physical: int, size: int | None) -> tuple[int, Record | None, bytes]:
        """Return (part number, decoded record, raw bytes) at a physical offset. Raises:
        StoreIOError.

        The record is None if it is invalid. ``size``: size of the record (None: use its size
        field).
        """
        number = self._number(physical)
        if number is None:
            return -1, None, b""
        part, source = self.parts[number], self._open(number)
        position = physical - part.base
        total = size or total_size_at(source.read(position, START_SIZE))
        if not MIN_SIZE <= total <= min(MAX_RECORD, part.end - physical):
            return number, None, b""
        raw = source.read(position, total)
        try:
            record = decode(raw)
        except FormatError:
            return number, None, b""
        return number, record if record.physical_offset == physical else None, raw

    @property
    def min_offset(self) -> int:
        """Physical offset of the log's start; 0 for an empty log."""
        return self._bases[0] if self._bases else 0

    def record_at(self, physical: int, size: int) -> Record | None:
        """Return the record of ``size`` bytes at a physical offset; None if there is none. The body
        CRC is not checked. Raises: StoreIOError.
        """
        record = self.read(physical, size)[1]
        return record if record is not None and record.total_size == size else None

    def _number(self, physical: int) -> int | None:
        number = bisect_right(self._bases, physical) - 1
        return number if number >= 0 and physical < self.parts[number].end else None

    def is_replaced(self, physical: int) -> bool:
        """Return whether the record at a physical offset already has a replacement."""
        return physical in self._places

    def replace(self, physical: int, content: bytes | None) -> bool:
        """Replace the bytes at a physical offset; return whether this was done.

        Nothing is replaced if ``content`` is None or the offset is outside the log.
        """
        number = self._number(physical)
        if content is None or number is None:
            return False
        self.pieces.setdefault(number, []).append(
            OverlayPiece.of(physical - self.parts[number].base, content))
        self._places.add(physical)
        self.count += 1
        return True

    def set_field(self, physical: int, name: str, value: int) -> None:
        """Change a header field of the record at a physical offset."""
        _, record, raw = self.read(physical, None)
        if record is not None:
            self.replace(physical, with_fields(raw, **{name: value}))


# -- the bytes of one record ----------------------------------------------------------------------


def dispatched(properties: bytes) -> set[tuple[str, int]]:
    """Return the name and the queue offset of each further queue to which a message was
    dispatched.
    """
    if _MULTI_DISPATCH not in properties:
        return set()
    return set(props.further_rows(props.parse(properties.decode("utf-8", "surrogateescape"))))


def batch_range_of(properties: bytes) -> tuple[int, int] | None:
    """Return (first queue offset, number of messages) of an inner batch.

    None if a property is missing or invalid.
    """
    values = props.parse(properties.decode("utf-8", "surrogateescape"))
    try:
        return int(values[props.INNER_BASE]), int(values[props.INNER_NUM])
    except (KeyError, ValueError):
        return None


def whole_record(raw: bytes, start: int, sealed: bool,
                 decoded: Callable[[bytes], Record] = decode) -> Record | None:
    """Return the record if everything that can be checked without its consume queue is right; else
    None.
    """
    try:
        record = decoded(raw)
    except FormatError:
        return None
    good = record.total_size == len(raw) and record.physical_offset == start and record.crc_ok
    if good and sealed and append_crc.verify(raw) is False:
        return None
    return record if good else None


def is_foreign_place(stored: int, start: int, file_size: int) -> bool:
    """Return whether a record with a wrong physicalOffset was probably written to the wrong place.

    If only one bit of the physicalOffset differs, that field is damaged instead. A difference that
    is a multiple of the file size does not count as damage: the record may be from an earlier use
    of the file.
    """
    return stored != start and (
        (stored ^ start).bit_count() > 1 or (stored - start) % file_size == 0)


def is_displaced(parts: Sequence[LogPart], start: int, stored: int, size: int) -> bool:
    """Return whether a record of ``size`` bytes at ``start`` is in a page written to the wrong
    offset.

    ``stored``: the record's physicalOffset, which is not damaged in this case. One of these
    conditions must be met:

    * The log has the same bytes at ``stored``.
    * Both offsets are at the start of a sector, and no record with the right physicalOffset
      follows.
    """
    read = []
    for place, length in ((start, size + START_SIZE), (stored, size)):
        number = bisect_right(parts, place, key=attrgetter("base")) - 1
        part = parts[number]
        if number < 0 or place + size > part.end or (part.path is None and not part.pieces):
            return False
        with part.open() as source:
            read.append(source.read(place - part.base, length))
    follows = read[0][size:]
    return read[0][:size] == read[1] or (
        start % _SECTOR == stored % _SECTOR == 0 and not (
            len(follows) == START_SIZE and is_magic(magic_at(follows))
            and field_of(follows, "physical_offset") == start + size))


def shift_of(source: Source, position: int) -> int:
    """Return the number of bytes by which the physicalOffset of the record at a position is too
    high; 0 if no record starts there.
    """
    head = source.read(position, START_SIZE)
    if len(head) < START_SIZE or not is_magic(magic_at(head)):
        return 0
    return field_of(head, "physical_offset") - source.base - position


def unless_crc_differs(raw: bytes) -> bytes | None:
    """Return the bytes of a record, or None if its appended CRC does not match."""
    return None if append_crc.verify(raw) is False else raw


def field_of(raw: bytes, name: str) -> int:
    """Return a header field of a record, as a signed integer."""
    return int.from_bytes(raw[FIELDS[name]], "big", signed=True)


def with_fields(raw: bytes, **values: int) -> bytes:
    """Return the bytes of a record with some header fields changed."""
    changed = bytearray(raw)
    for name, value in values.items():
        where = FIELDS[name]
        size = where.stop - where.start
        changed[where] = (value & (1 << 8 * size) - 1).to_bytes(size, "big")
    return bytes(changed)


def has_room_for_body(raw: bytes, host_bits: int) -> bool:
    """Return whether the body length fits into the record if its hosts have these widths."""
    head = variant(host_bits, magic_at(raw)).head_size
    length = int.from_bytes(raw[head - _LENGTH:head], "big", signed=True)
    return 0 <= length <= len(raw) - head


def body_at(record: Record) -> int:
    """Return the offset of a record's body from the record's start."""
    return variant(record.sys_flag & HOST_BITS, record.magic).head_size


def body_crc_at() -> int:
    """Return the offset of a record's body CRC from the record's start."""
    return FIELDS["body_crc"].start


def body_crc(body: bytes) -> int:
    """Return the CRC of a body in the form that record headers contain."""
    return zlib.crc32(body) & CRC_MASK


class FieldChange(NamedTuple):
    """A changed field of a record: where it starts in the record, and its new bytes."""

    at: int
    new: bytes

    def of(self, raw: bytes) -> bytes:
        """Return the bytes of a record, or of its start, with the changed field."""
        return raw[:self.at] + self.new + raw[self.at + len(self.new):] if self.new else raw


UNCHANGED = FieldChange(0, b"")


def extent(source: Source, record_start: int, head: bytes, magic: int, most: int,
           change: FieldChange = UNCHANGED) -> int | None:
    """Return the size of a record calculated from its length fields.

    None if a length is invalid, or the size is above ``most``. ``head``: bytes to use in place of
    the record's first bytes in the source; ``change``: a field to change.
    """
    tail = _tail(source, record_start, head, magic, most, change)
    return None if tail is None else tail[1]


def _tail(source: Source, record_start: int, head: bytes, magic: int, most: int,
          change: FieldChange) -> tuple[int, int] | None:
    """Return where in a record its properties start, and its size; None as for `extent`."""
    def read(position: int, length: int) -> bytes:
        if change.at == position and change.new:
            return change.new
        return source.read(record_start + position, length)

    # The header has the length of the body.
    head = change.of(head[:_LONGEST_HEAD])
    shape = variant(field_of(head, "sys_flag") & HOST_BITS, magic)
    if len(head) < shape.head_size:
        return None
    body = shape.head.unpack_from(head)[-1]
    if not 0 <= body <= most - shape.fixed_size:
        return None
    # The lengths of topic and properties come after the body and the topic.
    topic_at = shape.head_size + body
    raw = read(topic_at, shape.topic_length.size)
    if len(raw) < shape.topic_length.size:
        return None
    topic = shape.topic_length.unpack(raw)[0]
    if not 0 <= topic <= most - shape.fixed_size - body:
        return None
    raw = read(topic_at + shape.topic_length.size + topic, PROPERTIES_LENGTH_SIZE)
    if len(raw) < PROPERTIES_LENGTH_SIZE:
        return None
    properties = properties_length_at(raw)
    size = int(shape.fixed_size + body + topic + properties)
    return None if properties < 0 or size > most else (size - properties, size)


def bent_heads(source: Source, start: int, head: bytes, magic: int, most: int,
               sizes: Collection[int]) -> Iterator[tuple[FieldChange, int]]:
    """Yield (change of a record, the record size that `extent` calculates with it).

    The first changes nothing. The others flip one bit of the host widths or of a length, and give a
    size in ``sizes``.
    """
    size = extent(source, start, head, magic, most)
    if size is not None:
        yield UNCHANGED, size
    for change in _bent(source, start, head, magic, max(sizes, default=0)):
        size = extent(source, start, head, magic, most, change)
        if size is not None and size in sizes:
            yield change, size


def likely_first(source: Source, position: int, head: bytes, confirmed: Collection[int],
                 changes: Iterator[tuple[FieldChange, int]]) -> Iterator[tuple[FieldChange, int]]:
    """Yield the unchanged record of `bent_heads` first, unless only changes give whole records: one
    flipped bit of a length explains the record as well as one of its size does.

    ``confirmed``: the size that the record has stored, and those of its entries.
    """
    first = next(changes, None)
    if first is None:
        return
    others: list[tuple[FieldChange, int]] = []
    if first[1] not in confirmed and not _is_complete(source, position, head, *first):
        others = [*changes]
        better = [_is_complete(source, position, head, *other) for other in others]
        yield from compress(others, better)
        others = [*compress(others, map(not_, better))]
    yield first
    yield from others
    yield from changes


def _is_complete(source: Source, position: int, head: bytes, change: FieldChange, size: int) -> (
        bool):
    """Return whether a record of this size has sound properties, and another record or unused space
    follows.
    """
    end = position + size
    after = source.read(end, BLANK_SIZE)
    if any(after) and not is_placed(source, end) and (
            len(after) < BLANK_SIZE or magic_at(after) != MAGIC_BLANK):
        return False
    # The properties alone are read: many records in a body may claim the same large body.
    tail = _tail(source, position, head, magic_at(head), size, change)
    return tail is not None and props.are_sound(
        source.read(position + tail[0], size - tail[0]))


def _bent(source: Source, start: int, head: bytes, magic: int, largest: int) -> (
        Iterator[FieldChange]):
    """Yield changes of the host widths or lengths. Lengths above ``largest`` are omitted."""
    # The header: the widths of its addresses, and the length of the body.
    flags = FIELDS["sys_flag"]
    for bit in (sysflag.BORN_HOST_V6, sysflag.STORE_HOST_V6, HOST_BITS):
        changed = with_fields(head[:_LONGEST_HEAD], sys_flag=field_of(head, "sys_flag") ^ bit)
        yield FieldChange(flags.start, changed[flags])
    shape = variant(field_of(head, "sys_flag") & HOST_BITS, magic)
    if len(head) < shape.head_size:
        return
    room = largest - shape.fixed_size
    yield from _turned(head[shape.head_size - _LENGTH:shape.head_size],
                       shape.head_size - _LENGTH, room)
    # After the body: the lengths of the topic and of the properties.
    body = shape.head.unpack_from(head)[-1]
    if not 0 <= body <= room:
        return
    topic_at, width = shape.head_size + body, shape.topic_length.size
    tail = source.read(start + topic_at, width + MAX_FOLDER_NAME + PROPERTIES_LENGTH_SIZE)
    if len(tail) < width:
        return
    yield from _turned(tail[:width], topic_at, room - body)
    yield from _topic_lengths(tail, topic_at, width, magic, field_of(head, "total_size"))
    topic = shape.topic_length.unpack_from(tail)[0]
    properties = tail[width + topic:width + topic + PROPERTIES_LENGTH_SIZE]
    if topic >= 0 and len(properties) == PROPERTIES_LENGTH_SIZE:
        yield from _turned(properties, topic_at + width + topic, room - body - topic)


def with_other_lengths(raw: bytes, magic: int,
                       is_known: Callable[[bytes], bool]) -> Iterator[bytes]:
    """Yield variants of a record with a different body length or properties length.

    In each variant, the lengths match the record size, and the body matches its CRC. ``is_known``:
    returns whether a topic exists. Only an existing topic proves that properties with a damaged
    length belong to this record.
    """
    shape = variant(field_of(raw, "sys_flag") & HOST_BITS, magic)
    width, first = shape.topic_length.size, shape.head_size
    if len(raw) < shape.fixed_size:
        return
    body = shape.head.unpack_from(raw)[-1]
    crc = field_of(raw, "body_crc")
    # After the body the length of a topic that ends, with the properties, where the record does.
    begin = max(first - 1, len(raw) - MAX_TAIL)
    for place in sorted(tails_of(raw[begin:])):
        end = begin + place - width
        if end >= first and end - first != body and body_crc(raw[first:end]) == crc:
            yield raw[:first - _LENGTH] + (end - first).to_bytes(_LENGTH, "big") + raw[first:]
    if 0 <= body <= len(raw) - shape.fixed_size and body_crc(raw[first:first + body]) == crc:
        topic = shape.topic_length.unpack_from(raw, first + body)[0]
        at = first + body + width + max(topic, 0)
        length = len(raw) - at - PROPERTIES_LENGTH_SIZE
        if topic > 0 and 0 <= length < 1 << 15 and props.are_sound(
                raw[at + PROPERTIES_LENGTH_SIZE:]) and is_known(raw[first + body + width:at]):
            yield (raw[:at] + length.to_bytes(PROPERTIES_LENGTH_SIZE, "big")
                   + raw[at + PROPERTIES_LENGTH_SIZE:])


def _topic_lengths(tail: bytes, topic_at: int, width: int, magic: int, end: int) -> (
        Iterator[FieldChange]):
    """Yield each topic length with which the properties end exactly at the end of the record.

    ``tail``: the bytes at ``topic_at``, where that length is; ``end``: the record's size.
    """
    most = min(MAX_FOLDER_NAME, longest_topic(magic), len(tail) - width - PROPERTIES_LENGTH_SIZE)
    for length in range(1, most + 1):
        behind = width + length + PROPERTIES_LENGTH_SIZE
        if properties_length_at(tail[behind - PROPERTIES_LENGTH_SIZE:behind]) == (
                end - topic_at - behind):
            yield FieldChange(topic_at, length.to_bytes(width, "big", signed=True))


def _turned(stored: bytes, at: int, most: int) -> Iterator[FieldChange]:
    """Yield each flip of one bit of a length after which it is at most ``most``.

    ``stored``: the bytes of the length, which starts at ``at``.
    """
    length = int.from_bytes(stored, "big")
    for bit in range(8 * len(stored)):
        other = length ^ 1 << 8 * (len(stored) - 1 - bit // 8) + bit % 8
        if other <= most:
            yield FieldChange(at, other.to_bytes(len(stored), "big"))
