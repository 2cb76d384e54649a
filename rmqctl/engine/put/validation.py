"""Why a topic, text, number or host cannot be stored: one reason in words, or None.

Partly a broker's rules (topic lengths, spec: recovery.md §8), partly what keeps a store readable
where a broker does not look; `admission` says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from rmqctl.broker.settings import Host, Settings
from rmqctl.broker.versions import version_of
from rmqctl.engine.put.encoder import V1_TOPIC_CHARS, host_flags, raw_text
from rmqctl.formats import layout
from rmqctl.formats.local.message import (
    HOST_BITS,
    MAGIC_V1,
    MAGIC_V2,
    VERSIONS,
    Message,
    longest_topic,
)


def _largest(name: str, **context: int) -> int:
    return (1 << 8 * layout.width_of(Message, name, **context)[0] - 1) - 1


RETRY_PREFIX = "%RETRY%"
MAX_PROPERTIES = _largest("properties_length")
MAX_FOLDER_NAME = 255
MAX_INT = _largest("total_size")
_V1_TOPIC_BYTES = longest_topic(MAGIC_V1)
_ADDRESSES = (4, 16)
_HALF_PAIR = "half a surrogate pair, which has no UTF-8"


@cache
def sign_bit(name: str) -> int:
    """Which bit of a record's number is its sign."""
    return 8 * layout.width_of(Message, name)[0] - 1


INT, LONG = sign_bit("queue_id"), sign_bit("queue_offset")


def folder_fault(name: str) -> str | None:
    """Why a topic or queue name cannot be a folder of ``consumequeue/``."""
    if name in ("", ".", ".."):
        return f"the name {name!r} cannot be a folder"
    if "/" in name or "\0" in name:
        return f"the name {name[:40]!r} cannot be a folder: it holds / or NUL"
    try:
        length = len(raw_text(name))
    except UnicodeEncodeError:
        return f"the name {name[:40]!r} holds {_HALF_PAIR}"
    if length > MAX_FOLDER_NAME:
        return f"the name has {length} bytes, a folder name at most {MAX_FOLDER_NAME}"
    return None


def _units(text: str) -> int:
    """Java's ``String.length``: characters beyond the basic plane count twice."""
    return len(text) if text.isascii() else len(text.encode("utf-16-be", "surrogatepass")) // 2


@lru_cache(maxsize=8192)
def topic_fault(topic: str, version: str, hooks: bool = True) -> str | None:
    """Why a store of this version does not take a topic.

    ``hooks``: with what a 5.3.3 broker tests before it asks its store, which would take more.
    """
    fault = folder_fault(topic)
    if fault is not None:
        return f"topic: {fault}"
    profile = version_of(version)
    units, length = _units(topic), len(raw_text(topic))
    if not profile.message_v2:
        if units > V1_TOPIC_CHARS:
            return f"the topic has {units} characters, at most {V1_TOPIC_CHARS} are allowed"
    elif hooks and length > V1_TOPIC_CHARS and not topic.startswith(RETRY_PREFIX):
        return (f"the topic has {length} bytes, at most {V1_TOPIC_CHARS} are allowed "
                f"(but for {RETRY_PREFIX} topics)")
    if length > _V1_TOPIC_BYTES and units <= V1_TOPIC_CHARS:
        return f"the topic has {length} bytes, which its length byte cannot hold"
    return None


def text_fault(properties: str, settings: Settings) -> str | None:
    """Why a single message cannot have this properties string, its bytes not yet counted."""
    if not settings.profile.message_v2 and _units(properties) > MAX_PROPERTIES:
        return (f"the properties have {_units(properties)} characters, at most {MAX_PROPERTIES} "
                "are allowed")
    return encoding_fault(properties)


def number_fault(holder: object, names: Sequence[str]) -> str | None:
    """The first number that does not fit its field, or a negative queue id."""
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
    """Whether both are hosts, and IPv6 ones where ``sys_flag`` says so."""
    for name, (address, port) in (("born_host", born_host), ("store_host", store_host)):
        if len(address) not in _ADDRESSES or port >> INT not in (0, -1):
            return f"{name} is no address and port"
    if sys_flag & HOST_BITS & ~host_flags(0, born_host, store_host):
        return f"sys_flag {sys_flag} says IPv6, but the host's address is IPv4"
    return None


def encoding_fault(text: str) -> str | None:
    """Whether a properties string has bytes at all."""
    try:
        raw_text(text)
    except UnicodeEncodeError:
        return f"the properties hold {_HALF_PAIR}"
    return None


@lru_cache(maxsize=8192)
def record_topic_fault(raw: bytes, magic: int, version: str) -> str | None:
    """Why a recorded topic cannot be stored again in a record of this magic (0: not given)."""
    fault = folder_fault(raw.decode("utf-8", "surrogateescape"))
    if fault is not None:
        return f"topic: {fault}"
    if magic and magic not in VERSIONS:
        return f"not a message magic: {magic:08x}"
    is_long = len(raw) > _V1_TOPIC_BYTES
    if is_long and magic == MAGIC_V1:
        return f"the topic has {len(raw)} bytes, which a v1 record cannot hold"
    if (is_long or magic == MAGIC_V2) and not version_of(version).message_v2:
        return f"a {version} broker does not know records of version 2"
    return None
