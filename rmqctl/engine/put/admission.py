"""Checks that reject messages with a broker's status (spec: recovery.md §8, commitlog.md §7-§8).

Every check returns None if the message passes, otherwise a `PutResult` with the reason for the
rejection. The checks are in the order in which they are called; `rewrite` is called before sizes
are checked.

rmqctl also rejects messages that would damage the store or be written to the wrong file. Their
status is MESSAGE_ILLEGAL. Such a message has:

* a topic that cannot be a folder name (empty, ``.``, ``..``, with ``/`` or NUL, more than 255
  bytes)
* a topic whose length byte would be read as a negative number
* a negative queue id, or a number that does not fit its field
* an IPv6 bit in ``sys_flag`` with an IPv4 host
* text that UTF-8 cannot encode
* no messages, if it is a batch
* a form that every later recovery would treat as damage (`unreadable`)

The status is also MESSAGE_ILLEGAL if a broker would throw an exception.

rmqctl does not check the number of light queues. 4.9.3 counts them but compares the wrong variable,
so it never rejects a message for this reason. 5.3.3 does not count them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache

from rmqctl.broker.settings import Host, Settings
from rmqctl.broker.versions import version_of
from rmqctl.engine.put.encoder import V1_TOPIC_CHARS, host_flags, raw_text
from rmqctl.engine.put.message import (
    MESSAGE_ILLEGAL,
    PROPERTIES_SIZE_EXCEEDED,
    SERVICE_NOT_AVAILABLE,
    Outgoing,
    OutgoingBatch,
    PutResult,
    refused,
)
from rmqctl.formats import layout
from rmqctl.formats.local import append_crc
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.delay import PropertyMap, delay_level_of, java_int
from rmqctl.formats.local.message import (
    BATCH_ITEM_SIZE,
    HOST_BITS,
    MAGIC_V1,
    MAGIC_V2,
    MAX_FOLDER_NAME,
    VERSIONS,
    Message,
    Record,
    longest_topic,
)
from rmqctl.formats.local.sysflag import INNER_BATCH, TRANSACTION_MASK
from rmqctl.lazy_dataclass import dataclass

UNKNOWN_ERROR = "UNKNOWN_ERROR"
_LOCK_STUCK = 10_000_000

# -- topics, texts, numbers, hosts: one reason in words, or None ----------------------------------

def _largest(name: str, **context: int) -> int:
    return (1 << 8 * layout.width_of(Message, name, **context)[0] - 1) - 1


MAX_PROPERTIES = _largest("properties_length")
MAX_INT = _largest("total_size")
_V1_TOPIC_BYTES = longest_topic(MAGIC_V1)
_ADDRESSES = (4, 16)
_HALF_PAIR = "an unpaired surrogate, which UTF-8 cannot encode"


@cache
def sign_bit(name: str) -> int:
    """Return the position of the sign bit in a field of a record (0: the lowest bit)."""
    return 8 * layout.width_of(Message, name)[0] - 1


INT, LONG = sign_bit("queue_id"), sign_bit("queue_offset")


def folder_fault(name: str) -> str | None:
    """Return the reason why a topic or queue name cannot be a folder of ``consumequeue/``; None if
    it can.
    """
    if name in ("", ".", ".."):
        return f"the name {name!r} cannot be a folder"
    if "/" in name or "\0" in name:
        return f"the name {name[:40]!r} cannot be a folder: it contains / or NUL"
    try:
        length = len(raw_text(name))
    except UnicodeEncodeError:
        return f"the name {name[:40]!r} contains {_HALF_PAIR}"
    if length > MAX_FOLDER_NAME:
        return f"the name has {length} bytes, a folder name at most {MAX_FOLDER_NAME}"
    return None


def _units(text: str) -> int:
    """Return the result of Java's ``String.length``, which counts characters beyond the basic plane
    twice.
    """
    return len(text) if text.isascii() else len(text.encode("utf-16-be", "surrogatepass")) // 2


@lru_cache(maxsize=8192)
def topic_fault(topic: str, version: str, hooks: bool = True) -> str | None:
    """Return the reason why a store of this version rejects a topic; None if it accepts it.

    ``hooks``: whether to include the checks that a 5.3.3 broker makes before it passes a message to
    its store. These checks reject more topics than the store.
    """
    fault = folder_fault(topic)
    if fault is not None:
        return f"topic: {fault}"
    profile = version_of(version)
    units, length = _units(topic), len(raw_text(topic))
    if not profile.message_v2:
        if units > V1_TOPIC_CHARS:
            return f"the topic has {units} characters; at most {V1_TOPIC_CHARS} are allowed"
    elif hooks and length > V1_TOPIC_CHARS and not topic.startswith(props.RETRY_PREFIX):
        return (f"the topic has {length} bytes; at most {V1_TOPIC_CHARS} are allowed "
                f"(but for {props.RETRY_PREFIX} topics)")
    if length > _V1_TOPIC_BYTES and units <= V1_TOPIC_CHARS:
        return f"the topic has {length} bytes, too many for its 1-byte length field"
    return None


def text_fault(properties: str, settings: Settings) -> str | None:
    """Return the reason why a message cannot have this properties string; None if it can. Sizes are
    checked later.
    """
    if not settings.profile.message_v2 and _units(properties) > MAX_PROPERTIES:
        return (f"the properties have {_units(properties)} characters; at most {MAX_PROPERTIES} "
                "are allowed")
    return encoding_fault(properties)


def number_fault(holder: object, names: Sequence[str]) -> str | None:
    """Return a text that names the first invalid number; None if all numbers are valid. A number is
    invalid if it does not fit its field or is a negative queue id.
    """
    for name in names:
        value = getattr(holder, name)
        if value is None:
            continue
        limit = 1 << sign_bit(name)
        if not -limit <= value < limit:
            return f"{name} {value} does not fit its field"
        if name == "queue_id" and value < 0:
            return f"queue_id {value} is negative"
    return None


def hosts_fault(sys_flag: int, born_host: Host, store_host: Host) -> str | None:
    """Return the reason why a host is invalid or contradicts the IPv6 bits of ``sys_flag``; None if
    all hosts are valid.
    """
    for name, (address, port) in (("born_host", born_host), ("store_host", store_host)):
        if len(address) not in _ADDRESSES or port >> INT not in (0, -1):
            return f"{name} is not an address and port"
    if sys_flag & HOST_BITS & ~host_flags(0, born_host, store_host):
        return f"sys_flag {sys_flag} means IPv6, but the host's address is IPv4"
    return None


def encoding_fault(text: str) -> str | None:
    """Return the reason why a properties string cannot be encoded; None if it can."""
    try:
        raw_text(text)
    except UnicodeEncodeError:
        return f"the properties contain {_HALF_PAIR}"
    return None


@lru_cache(maxsize=8192)
def record_topic_fault(raw: bytes, magic: int, version: str) -> str | None:
    """Return the reason why a recorded topic does not fit a record with this magic (0: any); None
    if it fits.
    """
    fault = folder_fault(raw.decode("utf-8", "surrogateescape"))
    if fault is not None:
        return f"topic: {fault}"
    if magic and magic not in VERSIONS:
        return f"invalid message magic: {magic:08x}"
    is_long = len(raw) > _V1_TOPIC_BYTES
    if is_long and magic == MAGIC_V1:
        return f"the topic has {len(raw)} bytes, too many for a v1 record"
    if (is_long or magic == MAGIC_V2) and not version_of(version).message_v2:
        return f"a {version} broker does not support v2 records"
    return None


# -- the store --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreState:
    """The state that decides whether a store accepts messages. ``lock_held_ms``: time in ms since
    the current put took the put lock; 0 if no put is running.
    """

    shutdown: bool = False
    role: str = "ASYNC_MASTER"
    writeable: bool = True
    lock_held_ms: int = 0


def check_store(state: StoreState, settings: Settings) -> PutResult | None:
    """Return a result with SERVICE_NOT_AVAILABLE or the profile's status for "busy"; None if the
    store accepts messages.
    """
    if state.shutdown:
        return refused(SERVICE_NOT_AVAILABLE, "the store was shut down")
    if state.role == "SLAVE":
        return refused(SERVICE_NOT_AVAILABLE, "the store belongs to a slave")
    if not state.writeable:
        return refused(SERVICE_NOT_AVAILABLE, "the store is not writable: its disk usage "
                       "exceeds the watermark, or writing a queue or the index failed")
    if settings.page_cache_busy < state.lock_held_ms < _LOCK_STUCK:
        return refused(settings.profile.page_cache_busy,
                       f"the previous put has been holding the lock for {state.lock_held_ms} ms")
    return None


# -- a message --------------------------------------------------------------------------------


def check_message(message: Outgoing, settings: Settings, *,
                  hooks: bool = True) -> PutResult | None:
    """Check a single message before it is rewritten.

    ``hooks``: whether to include the checks that a 5.3.3 broker makes before it passes a message to
    its store. False for messages that come from a store.
    """
    fault = topic_fault(message.topic, settings.version, hooks)
    if fault is not None:
        return refused(MESSAGE_ILLEGAL, fault)
    properties = message.properties
    if not properties.isascii() or len(properties) > MAX_PROPERTIES:
        fault = text_fault(properties, settings)
        if fault is not None:
            return refused(MESSAGE_ILLEGAL, fault)
    if (message.queue_id | message.flag | message.sys_flag | message.reconsume_times) >> INT or (
            message.prepared_transaction_offset | (message.born_timestamp or 0)
            | (message.store_timestamp or 0)) >> LONG:
        fault = number_fault(message, ("queue_id", "flag", "sys_flag", "born_timestamp",
                                        "store_timestamp", "reconsume_times",
                                        "prepared_transaction_offset"))
    fault = fault or hosts_fault(message.sys_flag, message.born_host or settings.born_host,
                                  message.store_host or settings.store_host)
    return refused(MESSAGE_ILLEGAL, fault) if fault else None


def check_inner_batch(message: Outgoing, properties: PropertyMap, settings: Settings,
                      is_batch_topic: Callable[[str], bool]) -> PutResult | None:
    """For 5.x, check that inner batches have a BatchCQ topic, and that no other message has
    ``INNER_NUM``.

    A broker makes this check both before and after the delay and timer rewrite.
    """
    if not settings.profile.batch_queues:
        return None
    is_inner = message.sys_flag & INNER_BATCH
    if not is_inner and properties.get(props.INNER_NUM) is not None:
        return refused(MESSAGE_ILLEGAL, f"it has the property {props.INNER_NUM}, but its "
                       "sys_flag does not mark it as an inner batch")
    if is_inner and not is_batch_topic(message.topic):
        return refused(MESSAGE_ILLEGAL, f"it is an inner batch, but the topic {message.topic} is "
                       "not a BatchCQ topic")
    return None


def unreadable(topic: str, properties: PropertyMap, settings: Settings) -> str | None:
    """Return the reason why a broker's recovery would truncate the log at this message; None if it
    would not.
    """
    if topic == props.SCHEDULE_TOPIC:
        try:
            delay_level_of(properties)
        except ValueError as error:
            return f"{error}; in {topic} a broker would treat the record as damage"
    number, base = properties.get(props.INNER_NUM), properties.get(props.INNER_BASE)
    if settings.profile.batch_queues and number is not None and base is not None:
        try:
            java_int(number, 16)
            java_int(base, 64)
        except ValueError as error:
            return (f"the properties {props.INNER_NUM} and {props.INNER_BASE}: {error}; a broker "
                    "would treat the record as damage")
    return None


def check_sizes(settings: Settings, body: int, properties: int, record: int, *,
                multi_dispatch: bool = False) -> PutResult | None:
    """Check sizes (in bytes) against the limits of the encoder.

    * ``properties``: size of the properties, including the separator and the space reserved for an
      appended CRC
    * ``record``: size of the complete record
    * ``multi_dispatch``: whether offsets of other queues were added to the properties, which
      changes limits and statuses
    """
    profile, limit = settings.profile, settings.max_message_size
    room = min(limit + profile.body_room, MAX_INT)
    status = exceeded = MESSAGE_ILLEGAL
    if not multi_dispatch:
        exceeded = PROPERTIES_SIZE_EXCEEDED
    elif profile.message_v2:
        room = limit
    else:
        status = exceeded = UNKNOWN_ERROR
    if properties > MAX_PROPERTIES:
        return refused(exceeded, f"the properties have {properties} bytes; at most "
                       f"{MAX_PROPERTIES} are allowed")
    if profile.body_room and body > limit:
        return refused(status, f"the body has {body} bytes; at most {limit} are allowed")
    if record > room:
        return refused(status, f"the record has {record} bytes; at most {room} are allowed")
    return None


# -- batches and records ----------------------------------------------------------------------


def request_size(batch: OutgoingBatch) -> int:
    """Return the size in bytes of a batch as its producer sends it."""
    return sum(BATCH_ITEM_SIZE + len(item.body) + len(raw_text(item.properties))
               for item in batch.messages)


def check_batch(batch: OutgoingBatch, settings: Settings, *,
                hooks: bool = True) -> PutResult | None:
    """Check a batch before it is encoded; for ``hooks`` see `check_message`.

    The status of all faults is MESSAGE_ILLEGAL.
    """
    fault = topic_fault(batch.topic, settings.version, hooks) or number_fault(
        batch, ("queue_id", "sys_flag", "born_timestamp", "store_timestamp", "reconsume_times"))
    for number, item in enumerate(batch.messages, 1):
        fault = fault or number_fault(item, ("flag",)) or encoding_fault(item.properties)
        if fault is not None:
            return refused(MESSAGE_ILLEGAL, f"message {number} of the batch: {fault}")
    fault = fault or encoding_fault(batch.properties) or _batch_fault(batch, settings)
    fault = fault or hosts_fault(batch.sys_flag, batch.born_host or settings.born_host,
                                  batch.store_host or settings.store_host)
    return refused(MESSAGE_ILLEGAL, fault) if fault else None


def _batch_fault(batch: OutgoingBatch, settings: Settings) -> str | None:
    if not batch.messages:
        return "the batch is empty"
    size = request_size(batch)
    if size > settings.max_message_size:
        return (f"the batch has {size} bytes; at most {settings.max_message_size} are allowed "
                "for all its messages")
    if batch.sys_flag & TRANSACTION_MASK:
        return "a batch cannot be part of a transaction"
    properties = props.parse(batch.properties)
    if settings.profile.batch_queues and (batch.sys_flag & INNER_BATCH
                                          or props.INNER_NUM in properties):
        return "an inner batch is put as one message, not as a batch"
    try:
        level = delay_level_of(properties)
    except ValueError as error:
        return str(error)
    return "a batch cannot be delayed" if level > 0 else None


def check_batch_sizes(settings: Settings, batch: OutgoingBatch, properties: Sequence[int],
                      records: Sequence[int]) -> PutResult | None:
    """Check the sizes (in bytes) of the messages of a batch against the limits of the batch
    encoder.

    ``properties``: for each message, the size of its properties plus the size of the batch's
    properties, without an appended CRC. A broker does not check this sum, and the length field
    could overflow.
    """
    reserved = append_crc.SIZE if settings.append_properties_crc else 0
    longest = max([len(raw_text(batch.properties)), *(size + reserved for size in properties)])
    if longest > MAX_PROPERTIES:
        return refused(PROPERTIES_SIZE_EXCEEDED, f"the properties of a message of the batch have "
                       f"{longest} bytes; at most {MAX_PROPERTIES} are allowed")
    if not settings.profile.body_room and sum(records) > settings.max_message_size:
        return refused(MESSAGE_ILLEGAL, f"the records of the batch have {sum(records)} bytes; at "
                       f"most {settings.max_message_size} are allowed")
    return None


_RECORD_NUMBERS = (
    "queue_id", "flag", "sys_flag", "reconsume_times", "body_crc", "queue_offset",
    "physical_offset", "born_timestamp", "store_timestamp", "prepared_transaction_offset")


def check_record(record: Record, settings: Settings) -> PutResult | None:
    """Check a recorded message. It is rejected only if it could not be read back or a value does
    not fit its field. Magic 0 means the record version that the topic needs.
    """
    fault = record_topic_fault(record.topic, record.magic, settings.version)
    if fault is None and (
            (record.queue_id | record.flag | record.sys_flag | record.reconsume_times
             | record.body_crc) >> INT
            or (record.queue_offset | record.physical_offset | record.born_timestamp
                | record.store_timestamp | record.prepared_transaction_offset) >> LONG):
        fault = number_fault(record, _RECORD_NUMBERS)
    fault = fault or hosts_fault(record.sys_flag, record.born_host, record.store_host)
    if fault is None and host_flags(0, record.born_host, record.store_host) & ~record.sys_flag:
        fault = f"a host's address is IPv6, but sys_flag {record.sys_flag} means IPv4"
    if fault is not None:
        return refused(MESSAGE_ILLEGAL, fault)
    raw = record.properties
    if len(raw) > MAX_PROPERTIES:
        return refused(PROPERTIES_SIZE_EXCEEDED, f"the properties have {len(raw)} bytes; at most "
                       f"{MAX_PROPERTIES} are allowed")
    if b"DELAY" in raw or b"INNER_NUM" in raw:
        fault = unreadable(record.topic.decode("utf-8", "surrogateescape"),
                           props.parse(raw.decode("utf-8", "surrogateescape")), settings)
    return refused(MESSAGE_ILLEGAL, fault) if fault else None
