"""The properties string of a message: ``key 0x01 value 0x02 …`` (spec: commitlog.md §5).

The string can be parsed by two rules. Readers use the newer rule (4.9.1+, 5.x), which reads all
valid output of older writers. The older rule predicts what an old broker reads.
"""

from __future__ import annotations

from collections.abc import Mapping

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"

KEYS = "KEYS"
TAGS = "TAGS"
DELAY = "DELAY"
UNIQUE_KEY = "UNIQ_KEY"
PREPARED = "TRAN_MSG"
"""The property that marks the first half of a transaction."""
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
"""Property of a dead letter that a proxy forwarded: its original topic."""
REQUEUED = "RMQCTL_REQUEUED"
"""Property of a message that `dlq requeue` sent: the offset message id of its dead letter."""
REAL_TOPIC = "REAL_TOPIC"
NO_TOPIC = "-"
"""Value of `REAL_TOPIC` in a timed message that rmqctl put in place of a lost one."""
REAL_QUEUE_ID = "REAL_QID"
INNER = "INNER_"
"""Common name prefix of four properties that give a message further entries, or entries of another
kind.
"""
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
CRC32 = "__CRC32#"
LMQ_PREFIX = "%LMQ%"
RETRY_PREFIX = "%RETRY%"
"""Topic prefix, followed by a group's name: messages that the group sent back for a retry."""
DLQ_PREFIX = "%DLQ%"
"""Topic prefix, followed by a group's name: dead letters, messages that the group failed to
consume.
"""
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
"""Topic prefix, followed by a cluster's name: messages that were delivered with POP."""
RETRY_TOPIC = "RETRY_TOPIC"
"""Property of a message that was sent back: its original topic."""
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
"""Property of a message that was sent back: the id of the original message (offset message id or
the client's id).
"""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
TIMER_OUT_MS = "TIMER_OUT_MS"
"""Property of a timed message: the time (ms) at which it is due."""
TIMER_DELETE = "TIMER_DEL_UNIQKEY"
"""Property of a message that recalls a timed message: topic and unique key of the timed message,
separated by +.
"""
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


def parse(raw: str) -> dict[str, str]:
    """Return the map that a 4.9.1+ / 5.x broker reads: values may contain 0x01, empty keys or
    values are dropped.
    """
    properties: dict[str, str] = {}
    for segment in raw.split(PROPERTY_SEPARATOR):
        if len(segment) < 3:
            continue
        separator = segment.find(NAME_VALUE_SEPARATOR)
        if 1 <= separator < len(segment) - 1:
            properties[segment[:separator]] = segment[separator + 1:]
    return properties


def build(properties: dict[str, str], *, trailing: bool = True) -> str:
    """Return the string of a map, in the map's order.

    ``trailing``: whether the string ends with 0x02 (true for 4.0-4.9.0 and 5.2.0+, false for
    4.9.1-4.9.8 and 5.0.0-5.1.4).
    """
    text = PROPERTY_SEPARATOR.join(f"{k}{NAME_VALUE_SEPARATOR}{v}" for k, v in properties.items())
    return text + PROPERTY_SEPARATOR if trailing and text else text


def split_keys(keys: str | None) -> list[str]:
    """Return the application keys of a KEYS property: split at spaces, without empty parts."""
    return [key for key in keys.split(" ") if key] if keys else []


def further_rows(properties: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return (queue name, queue offset) of each further consume queue entry of a message (spec:
    consumequeue.md §10).
    """
    names = properties.get(MULTI_DISPATCH, "").split(",")
    numbers = properties.get(MULTI_QUEUE_OFFSET, "").split(",")
    if len(names) != len(numbers):
        return []
    return [(name, int(number)) for name, number in zip(names, numbers, strict=True)
            if name and number.isascii() and number.isdigit() and len(number) < 19]


def are_sound(raw: bytes) -> bool:
    """Return whether a broker accepts the properties of a message.

    Valid properties are text without NULs, in which each nonempty part has a name and a value. No
    CRC covers the properties.
    """
    return fault(raw) is None


def fault(raw: bytes) -> str | None:
    """Return a noun phrase for the fault in a message's properties; None if the properties are
    valid.
    """
    if b"\0" in raw:
        return "NUL bytes"
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return "invalid UTF-8"
    if all(is_pair(part) for part in text.split(PROPERTY_SEPARATOR) if part):
        return None
    return "a property without a name or a value"


def is_pair(part: str) -> bool:
    """Return whether a part of the properties has a name, followed by a separator."""
    return part.find(NAME_VALUE_SEPARATOR) > 0
