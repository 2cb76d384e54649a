"""Convert message objects (JSON) to the engine's messages; the opposite of `store.objects`.

- `ClientMessages`: a client's message, which needs only topic and body.
- `Replay`: a message as it reaches a broker's put path.
- `Recorded`: a stored record.

If several fields specify the same value, the most exact field is used: ``properties_raw``, then
``properties``, then ``tags`` and ``keys``.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from rmqctl.broker.settings import Host
from rmqctl.engine.input.lines import InputError, Int32, Int64, Line, Typed, half_surrogate
from rmqctl.engine.put.encoder import body_crc, raw_text
from rmqctl.engine.put.message import (
    BatchItem,
    MappedRecord,
    Outgoing,
    OutgoingBatch,
    OutgoingList,
)
from rmqctl.formats import layout
from rmqctl.formats.local import message
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record

__all__ = ["ClientMessages", "Exact", "InputError", "Prepare", "Recorded", "Replay", "joined"]

Prepare = Callable[[dict[str, str] | str], str]
"""Function that converts a client's properties to the properties string that reaches the put
path."""
PrepareMany = Callable[[Sequence[dict[str, str] | str]], list[str]]
"""Function that converts the properties of many messages to their properties strings."""

_MAX_PORT = (1 << 8 * layout.field(message.HostV4, "port").size - 1) - 1
_SHOWN = 60
_NAME, _END = props.NAME_VALUE_SEPARATOR, props.PROPERTY_SEPARATOR


class _Item(msgspec.Struct, gc=False):
    """The fields of one message in a batch."""

    body: str | None = None
    body_encoding: str | None = None
    properties: dict[str, str] | None = None
    properties_raw: str | None = None
    tags: str | None = None
    keys: str | list[str] | None = None
    delay_level: Int32 | None = None
    flag: Int32 | None = None
    filter_bit_map: str | None = None
    crc_ok: Any = None  # only False matters


class _Message(_Item, gc=False):
    topic: str | None = None
    queue_id: Int32 | None = None
    sys_flag: Int32 | None = None
    born_timestamp: Int64 | None = None
    born_host: str | None = None
    store_host: str | None = None
    reconsume_times: Int32 | None = None
    prepared_transaction_offset: Int64 | None = None
    messages: list[_Item] | None = None


class _Timed(_Message, gc=False):
    store_timestamp: Int64 | None = None


class _Stored(_Timed, gc=False):
    queue_offset: Int64 | None = None
    physical_offset: Int64 | None = None
    magic: str | None = None
    body_crc: Int32 | None = None


class _Whole(_Stored, gc=False):
    total_size: Int32 | None = None
    placement: str | None = None


_Fields = TypeVar("_Fields", bound=_Message)
_Outcome = TypeVar("_Outcome")


class _Way(Generic[_Fields, _Outcome]):
    """Converter for one form of message objects."""

    def __init__(self, fields: type[_Fields]) -> None:
        typed = Typed(fields)
        self._read, self._check, self._read_many = typed.line, typed.object, typed.lines

    def line(self, line: Line) -> _Outcome:
        """Return the message of a JSON line. Raises: InputError with the reason."""
        return self._make(self._read(line))

    def lines(self, lines: Sequence[Line]) -> Sequence[_Outcome]:
        """Return the messages of many lines. Raises: InputError if one is invalid."""
        return [self._make(fields) for fields in self._read_many(lines)]

    def object(self, fields: Mapping[str, Any]) -> _Outcome:
        """Return the message of a parsed JSON object; the object is not changed."""
        return self._make(self._check(fields))

    def _make(self, fields: _Fields) -> _Outcome:
        raise NotImplementedError


class _Sent(_Way[_Fields, Outgoing | OutgoingBatch]):
    """Converter for a form whose messages go through the put path. An object with ``messages`` is a
    batch.
    """

    def __init__(self, fields: type[_Fields], single: Prepare, item: Prepare, batch: Prepare,
                 many: PrepareMany | None = None) -> None:
        super().__init__(fields)
        self._single, self._item, self._batch = single, item, batch
        self._many = many or (lambda given: list(map(single, given)))

    def _stored_at(self, read: Sequence[_Fields]) -> Sequence[int | None]:
        """Return the store time of each object; None for an object without a store time."""
        return [None] * len(read)

    def lines(self, lines: Sequence[Line]) -> Sequence[Outgoing | OutgoingBatch]:
        """Return the messages of many lines. Raises: InputError if one is invalid."""
        read = self._read_many(lines)
        bodies, batched = [fields.body for fields in read], [fields.messages for fields in read]
        if None in [fields.topic for fields in read] or None in bodies or (
                batched.count(None) < len(read)):
            return [self._make(fields) for fields in read]
        try:
            properties = self._many(_properties_of(read))
        except ValueError as error:
            raise InputError(str(error)) from None
        return self._singles(read, _bodies(read), properties)

    def _singles(self, read: Sequence[_Fields], bodies: list[bytes],
                 properties: list[str]) -> OutgoingList:
        """Return the messages. Raises: InputError if a topic is missing."""
        born, stored = ([None if host is None else _host(name, host) for host in hosts]
                        for name, hosts in (
                            ("born_host", [fields.born_host for fields in read]),
                            ("store_host", [fields.store_host for fields in read])))
        maps = [None if fields.filter_bit_map is None else _bit_map(fields) for fields in read]
        return OutgoingList([
            [fields.topic for fields in read], bodies, properties,
            [fields.queue_id or 0 for fields in read], [fields.flag or 0 for fields in read],
            [fields.sys_flag or 0 for fields in read],
            [fields.born_timestamp for fields in read], born,
            list(self._stored_at(read)), stored,
            [fields.reconsume_times or 0 for fields in read],
            [fields.prepared_transaction_offset or 0 for fields in read], maps])

    def _make(self, fields: _Fields) -> Outgoing | OutgoingBatch:
        if fields.messages is not None:
            return self._make_batch(fields, fields.messages)
        if fields.topic is None or fields.body is None:
            raise _missing(fields, ("topic", "body"))
        return self._singles([fields], [_body(fields)], [_prepared(self._single, fields)])[0]

    def _make_batch(self, fields: _Fields, items: list[_Item]) -> OutgoingBatch:
        if fields.topic is None:
            raise _missing(fields, ("topic",))
        if fields.body is not None or fields.prepared_transaction_offset or not items:
            raise InputError("field messages: a batch without messages" if not items else
                             "field messages: cannot be combined with body or "
                             "prepared_transaction_offset")
        batch_items = []
        for number, item in enumerate(items):
            field = f"messages[{number}]."
            if item.body is None:
                raise _missing(item, ("body",), field)
            batch_items.append(BatchItem(_body(item, field), _prepared(self._item, item, field),
                                         item.flag or 0, _bit_map(item, field)))
        return OutgoingBatch(
            fields.topic, batch_items, _prepared(self._batch, fields), fields.queue_id or 0,
            fields.sys_flag or 0, fields.born_timestamp,
            None if fields.born_host is None else _host("born_host", fields.born_host),
            self._stored_at([fields])[0],
            None if fields.store_host is None else _host("store_host", fields.store_host),
            fields.reconsume_times or 0)


class ClientMessages(_Sent[_Message]):
    """Converter of messages as a client sends them; fields that a broker sets are ignored.

    ``prepare``: returns the properties string of a message.
    ``item``: the same for a message in a batch (default: ``prepare``).
    ``batch``: the same for a batch (default: unchanged).
    ``many``: ``prepare`` for many messages.
    """

    def __init__(self, prepare: Prepare, *, item: Prepare | None = None,
                 batch: Prepare | None = None, many: PrepareMany | None = None) -> None:
        super().__init__(_Message, prepare, item or prepare, batch or joined(trailing=True), many)


class Replay(_Sent[_Timed]):
    """Converter of messages as they reach a put path: properties, times and hosts are not changed.

    ``trailing``: a properties string that is built from an object ends with a separator.
    """

    def __init__(self, *, trailing: bool) -> None:
        join = joined(trailing=trailing)
        super().__init__(_Timed, join, join, join)

    def _stored_at(self, read: Sequence[_Timed]) -> Sequence[int | None]:
        return [fields.store_timestamp for fields in read]


class Recorded(_Way[_Stored, Record]):
    """Converter of stored records. The engine chooses ``magic`` if it is 0, and each offset that is
    -1.

    A body that does not match its ``body_crc`` is rejected: a broker would truncate the log at this
    record.
    """

    _needed: tuple[str, ...] = ("topic", "body", "born_timestamp", "born_host", "store_timestamp",
                                "store_host")

    def __init__(self, *, trailing: bool = True, fields: type[_Stored] = _Stored) -> None:
        super().__init__(fields)
        self._join = joined(trailing=trailing)

    def _make(self, given: _Stored) -> Record:
        # A stored record needs all stored fields, and no field that only a new message has.
        if given.messages is not None or given.delay_level is not None:
            wrong = "delay_level" if given.messages is None else "messages"
            raise InputError(f"field {wrong}: not valid for a stored record")
        name, born, stored = given.topic, given.born_host, given.store_host
        born_at, stored_at = given.born_timestamp, given.store_timestamp
        if (name is None or given.body is None or born is None or stored is None
                or born_at is None or stored_at is None):
            raise _missing(given, self._needed)
        # Without a body there is nothing to compare a CRC with, so the given value is kept.
        body, topic = _body(given), raw_text(name)
        properties = raw_text(_prepared(self._join, given))
        crc = body_crc(body)
        if given.body_crc is not None and given.body_crc != crc:
            if body:
                raise InputError(f"field body_crc: is {given.body_crc}, but the CRC of the body "
                                 f"is {crc}")
            crc = given.body_crc
        # Without a magic the size is unknown: the topic may need one or two length bytes.
        magic = 0 if given.magic is None else _magic(given.magic)
        sys_flag = given.sys_flag or 0
        size = magic and message.size_of(sys_flag, magic, len(body), len(topic), len(properties))
        fields = (
            size, magic, crc, given.queue_id or 0, given.flag or 0,
            -1 if given.queue_offset is None else given.queue_offset,
            -1 if given.physical_offset is None else given.physical_offset, sys_flag,
            born_at, _host("born_host", born), stored_at, _host("store_host", stored),
            given.reconsume_times or 0, given.prepared_transaction_offset or 0,
            body, topic, properties)
        bit_map = _bit_map(given)
        return Record(*fields) if bit_map is None else MappedRecord(*fields, bit_map)


class Exact(Recorded):
    """Converter of stored records that have all fields, so that their bytes can be restored
    exactly.
    Raises: InputError if a field is missing, or if the sizes of the fields do not match
    ``total_size``.
    """

    _needed = ("topic", "body", "born_timestamp", "born_host", "store_timestamp", "store_host",
               "physical_offset", "total_size", "magic", "body_crc", "queue_id", "queue_offset",
               "flag", "sys_flag", "reconsume_times", "prepared_transaction_offset",
               "properties_raw")

    def __init__(self) -> None:
        super().__init__(fields=_Whole)

    def _make(self, given: _Stored) -> Record:
        assert isinstance(given, _Whole)
        if any(getattr(given, name) is None for name in self._needed):
            raise _missing(given, self._needed)
        if given.placement == "doubtful":
            raise InputError("field placement: doubtful, the record may be part of another "
                             "message's body")
        record = super()._make(given)
        if record.total_size != given.total_size:
            raise InputError(f"field total_size: is {given.total_size}, but the fields add up to "
                             f"{record.total_size}")
        return record


def joined(*, trailing: bool) -> Prepare:
    """Return a function that joins properties, in order, into a string, and returns strings
    unchanged.
    """
    def join(given: dict[str, str] | str) -> str:
        if isinstance(given, str):
            return given
        text = props.build(given, trailing=trailing)
        # An extra separator, or an empty name: find the pair.
        if text.count(_END) != len(given) - (not trailing and bool(given)) or "" in given:
            raise ValueError("separators in names or values")
        if any(_NAME in name for name in given):
            raise ValueError("separators in names")
        return text
    return join


# -- parts of a message ---------------------------------------------------------------------------

def _missing(item: _Item, needed: tuple[str, ...], field: str = "") -> InputError:
    names = [field + name for name in needed if getattr(item, name) is None]
    return InputError(f"field{'s' * (len(names) > 1)} {', '.join(names)}: missing")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _body(item: _Item, field: str = "") -> bytes:
    text, encoding = item.body or "", item.body_encoding
    if item.crc_ok is False and item.body:
        raise InputError(f"field {field}crc_ok: the body is damaged; if it were stored again, it "
                         "would get a matching CRC and look intact (to store it anyway, leave the "
                         "field out)")
    if encoding is None or encoding == "utf-8":
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"field {field}body: {half_surrogate(error)}; encode binary data as "
                             "base64") from None
    if encoding != "base64":
        raise InputError(f"field {field}body_encoding: {_shown(encoding)} is neither utf-8 nor "
                         "base64")
    try:
        return msgspec.convert(text, bytes)  # three times as fast as binascii
    except (msgspec.MsgspecError, ValueError):
        try:
            return binascii.a2b_base64(text, strict_mode=True)
        except ValueError as error:
            raise InputError(f"field {field}body: not base64: {error}") from None


def _bodies(items: Sequence[_Item]) -> list[bytes]:
    """Return the bodies of messages. Each message must have a body."""
    encodings = [item.body_encoding for item in items]
    if encodings.count(None) == len(items) and False not in [item.crc_ok for item in items]:
        try:
            return [item.body.encode() for item in items]  # type: ignore[union-attr]  # there is one
        except UnicodeEncodeError:
            pass
    return [_body(item) for item in items]


def _properties(item: _Item, field: str = "") -> dict[str, str] | str:
    if item.properties_raw is not None:
        if item.delay_level is not None:
            raise InputError(f"field {field}delay_level: cannot be combined with properties_raw")
        return item.properties_raw
    pairs = {} if item.properties is None else item.properties
    if item.tags:
        pairs.setdefault(props.TAGS, item.tags)
    if item.keys:
        keys = item.keys if isinstance(item.keys, str) else " ".join(filter(None, item.keys))
        pairs.setdefault(props.KEYS, keys)
    if item.delay_level:
        pairs.setdefault(props.DELAY, str(item.delay_level))
    return pairs


def _properties_of(items: Sequence[_Item]) -> Sequence[dict[str, str] | str]:
    """Return the results of `_properties` for many messages; faster if all of them use the same
    fields.
    """
    count = len(items)
    raws = [item.properties_raw for item in items]
    if [item.delay_level for item in items].count(None) == count:
        if None not in raws:
            return raws  # type: ignore[return-value]  # no None among them
        if (raws.count(None) == count and [item.tags for item in items].count(None) == count
                and [item.keys for item in items].count(None) == count):
            return [item.properties or {} for item in items]
    return [_properties(item) for item in items]


def _prepared(prepare: Prepare, item: _Item, field: str = "") -> str:
    given = _properties(item, field)
    try:
        return prepare(given)
    except ValueError as error:
        reason = None if isinstance(given, str) else _unstorable(given)
        raise InputError(f"field {field}properties: {reason or error}") from None


def _unstorable(pairs: Mapping[str, str]) -> str | None:
    """Return the reason why properties cannot be joined to a string; None if they can."""
    for name, value in pairs.items():
        if not name or _NAME in name or _END in name:
            return (f"{_shown(name)} cannot be a name: it is empty or contains a separator "
                    "(U+0001, U+0002)")
        if _END in value:
            return f"the value of {_shown(name)} contains the separator U+0002"
    return None


def _bit_map(item: _Item, field: str = "") -> bytes | None:
    try:
        return None if item.filter_bit_map is None else bytes.fromhex(item.filter_bit_map)
    except ValueError:
        raise InputError(f"field {field}filter_bit_map: not hexadecimal") from None


def _host(name: str, text: str) -> Host:
    try:
        return _packed(text)
    except ValueError:
        raise InputError(f"field {name}: expected ADDRESS:PORT, got {_shown(text)}") from None


@lru_cache(maxsize=8192)
def _packed(text: str) -> Host:
    address, port = message.host_bytes(text)
    digits = text.rpartition(":")[2]
    # int() and ip_address() accept too much: blanks, underscores, a scope that is lost.
    if (not digits.removeprefix("-").isdecimal() or "%" in text
            or not ~_MAX_PORT <= port <= _MAX_PORT):
        raise ValueError(text)
    return address, port


def _magic(text: str) -> int:
    for magic, name in message.VERSIONS.items():
        if name == text:
            return magic
    raise InputError(f"field magic: {_shown(text)} is neither v1 nor v2")
