"""The message object that cli.md defines: one stored record as a mapping that can be written as
JSON.

Texts that are not UTF-8 keep their bytes as lone surrogates (``surrogateescape``). So the stored
bytes can be restored from ``properties_raw`` and ``topic``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rmqctl.formats import bodies
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import MAGIC_V1, VERSIONS, Record, host_text

_host_text = lru_cache(maxsize=4096)(host_text)


def text(raw: bytes) -> str:
    """Return stored UTF-8 as text; invalid bytes become lone surrogates (lossless)."""
    return raw.decode("utf-8", "surrogateescape")


def java_text(raw: bytes) -> str:
    """Decode stored UTF-8 as a broker does: invalid bytes become U+FFFD. Hashes are computed from
    this text.
    """
    return raw.decode("utf-8", "replace")


def message_object(record: Record, *, body: str = "auto", decompress: bool = False) -> dict[
        str, Any]:
    """Return the message object of cli.md. ``body``: ``auto`` (utf-8 if valid, else base64),
    ``utf-8`` (invalid bytes replaced), ``base64`` or ``none`` (omitted).
    """
    # The message object has these fields in this order in every output.
    raw = text(record.properties)
    parsed = props.parse(raw)
    keys = parsed.get(props.KEYS)
    out: dict[str, Any] = {
        "physical_offset": record.physical_offset,
        "total_size": record.total_size,
        "magic": VERSIONS[record.magic],
        "body_crc": record.body_crc,
        "crc_ok": record.crc_ok,
        "topic": text(record.topic),
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "born_timestamp": record.born_timestamp,
        "born_host": _host_text(*record.born_host),
        "store_timestamp": record.store_timestamp,
        "store_host": _host_text(*record.store_host),
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "properties": parsed,
        "properties_raw": raw,
        "tags": parsed.get(props.TAGS),
        "keys": props.split_keys(keys),
        "unique_key": parsed.get(props.UNIQUE_KEY),
        "msg_id": record.message_id,
    }
    # The body is optional, so it follows the fields that every record has.
    if bodies.FORMS[body] is not None:
        content, problem = record.body, None
        if decompress:
            content, problem = plain_body(record.sys_flag, record.body)
        out["body"], out["body_encoding"] = bodies.encode(content, body)
        if problem:
            out["body_problem"] = problem
    return out


def plain_body(sys_flag: int, body: bytes) -> tuple[bytes, str | None]:
    """Return (body, problem). ``body``: the body as the producer passed it, decompressed if it is
    stored compressed. ``problem``: the reason if decompression fails.
    """
    return bodies.decompressed(sysflag.compression(sys_flag), body)


FIELDS = tuple(message_object(Record(
    0, MAGIC_V1, 0, 0, 0, 0, 0, 0, 0, (bytes(4), 0), 0, (bytes(4), 0), 0, 0, b"", b"", b"")))
"""The fields of a message object, in order."""
TIMES = ("born_timestamp", "store_timestamp")
"""The fields of a message object that are times (epoch ms)."""
PROPERTY, OF_BODY = "property.", "body."
"""Prefixes of the names of fields that are properties, or come from decoded bodies."""
