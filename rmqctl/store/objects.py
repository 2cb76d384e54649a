"""The message object: one stored record as the JSON-ready mapping of the command-line contract.

Texts that are not UTF-8 keep their bytes as lone surrogates (``surrogateescape``), so that
``properties_raw`` and ``topic`` lead back to exactly what is stored.
"""

from __future__ import annotations

import base64
import zlib
from functools import lru_cache
from typing import Any

from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import VERSIONS, Record, host_text

BODY_MODES = ("auto", "utf-8", "base64", "none")
_host_text = lru_cache(maxsize=4096)(host_text)
MAX_DECOMPRESSED = 64 << 20
"""Bytes a body may grow to: a damaged or hostile body must not eat the memory."""

FIELDS = (
    "physical_offset", "total_size", "magic", "body_crc", "crc_ok", "topic", "queue_id",
    "queue_offset", "flag", "sys_flag", "born_timestamp", "born_host", "store_timestamp",
    "store_host", "reconsume_times", "prepared_transaction_offset", "properties",
    "properties_raw", "tags", "keys", "unique_key", "msg_id", "body", "body_encoding",
)


def text(raw: bytes) -> str:
    """Stored UTF-8 as text; bytes that are none become lone surrogates (lossless)."""
    return raw.decode("utf-8", "surrogateescape")


def java_text(raw: bytes) -> str:
    """Stored UTF-8 as a broker decodes it: what is none becomes U+FFFD (hashes follow that)."""
    return raw.decode("utf-8", "replace")


def message_object(record: Record, *, body: str = "auto", decompress: bool = False) -> dict[
        str, Any]:
    """The message object of cli.md. ``body``: ``auto`` (utf-8 if it is, else base64), ``utf-8``
    (replacing what is none), ``base64`` or ``none`` (left out).
    """
    raw = text(record.properties)
    found = props.parse(raw)
    keys = found.get(props.KEYS)
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
        "properties": found,
        "properties_raw": raw,
        "tags": found.get(props.TAGS),
        "keys": props.split_keys(keys),
        "unique_key": found.get(props.UNIQUE_KEY),
        "msg_id": record.message_id,
    }
    if body != "none":
        content, problem = record.body, None
        if decompress:
            content, problem = decompressed(record)
        out["body"], out["body_encoding"] = encode_body(content, body)
        if problem:
            out["body_problem"] = problem
    return out


def encode_body(content: bytes, mode: str) -> tuple[str, str]:
    """(body, body_encoding) of a message object."""
    if mode != "base64":
        try:
            return content.decode("utf-8"), "utf-8"
        except UnicodeDecodeError:
            if mode == "utf-8":
                return content.decode("utf-8", "replace"), "utf-8"
    return base64.b64encode(content).decode("ascii"), "base64"


def decompressed(record: Record) -> tuple[bytes, str | None]:
    """(body, problem) of a record; see `plain_body`."""
    return plain_body(record.sys_flag, record.body)


def plain_body(sys_flag: int, body: bytes) -> tuple[bytes, str | None]:
    """(body, problem): the body as the producer handed it in, by the flags.

    A body whose flag says compressed while it is not (seen in the field, #1375, #9953) comes
    back as it is stored, with the problem in words. Bounded by `MAX_DECOMPRESSED`.
    """
    kind = sysflag.compression(sys_flag)
    if kind is None or not body:
        return body, None
    try:
        if kind == "zlib":
            return _zlib(body), None
        if kind == "lz4":
            return _lz4(body), None
        if kind == "zstd":
            return _zstd(body), None
    except Exception as error:  # noqa: BLE001  # each codec has its own family of errors
        return body, f"marked as {kind}, but {error}"
    return body, f"marked with {kind} compression"


def _bounded(data: bytes, more: bool) -> bytes:
    if more:
        raise ValueError(f"it grows beyond {MAX_DECOMPRESSED >> 20} MiB")
    return data


def _zlib(body: bytes) -> bytes:
    codec = zlib.decompressobj()
    data = codec.decompress(body, MAX_DECOMPRESSED)
    if not codec.eof and not codec.unconsumed_tail:
        raise ValueError("the stream is cut")
    return _bounded(data, bool(codec.unconsumed_tail))


def _lz4(body: bytes) -> bytes:
    from lz4.frame import LZ4FrameDecompressor

    codec = LZ4FrameDecompressor()
    data: bytes = codec.decompress(body, max_length=MAX_DECOMPRESSED)
    if not codec.eof and codec.needs_input:
        raise ValueError("the frame is cut")
    return _bounded(data, not codec.eof)


def _zstd(body: bytes) -> bytes:
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True) as stream:
        data = stream.read(MAX_DECOMPRESSED + 1)
    return _bounded(data, len(data) > MAX_DECOMPRESSED)
