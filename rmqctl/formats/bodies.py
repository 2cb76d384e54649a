"""Bodies: their decompression, and the forms in which they are shown.

Codecs and forms are two fixed tables. A codec has its number in ``sys_flag`` (spec: commitlog.md
§4); a form is a value of ``--body``. CONTRIBUTING.md describes how to add a codec or a form.
"""

from __future__ import annotations

import base64
import sys
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

MAX_DECOMPRESSED = 64 << 20
"""Maximum size in bytes of a decompressed body, so that a damaged or hostile body cannot
exhaust memory.
"""
MAX_MEMBERS = 10_000
"""Maximum number of gzip members or zstd frames in one body."""


_FIRST_PIECE = 512
"""Number of bytes in the decompressor's first input for a member; each further input is twice as
large. Unused input is copied and a body may have many small members, so the first input is small.
"""


class TooLargeError(ValueError):
    """A body exceeds the size limit of decompression."""


class _Stream(Protocol):
    """The interface of a decompressor of one member, as in zlib and zstd."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, most: int, /) -> bytes: ...


def members(body: bytes, start: Callable[[], _Stream], most: int, kind: str) -> bytes:
    """Return the decompressed content of ``body``, which consists of members of format ``kind``.

    ``start`` creates a decompressor for one member. The time is linear in the sizes of body and
    content, whatever the number of members.

    Raises: TooLargeError beyond ``most`` bytes, ValueError for a truncated body, exceptions of the
    decompressor.
    """
    parts: list[bytes] = []
    at, free, started = 0, most, 0
    while at < len(body):
        started += 1
        if started > MAX_MEMBERS:
            raise TooLargeError(f"it has more than {MAX_MEMBERS:,} {kind}s")
        codec, piece = start(), _FIRST_PIECE
        while not codec.eof:
            if at >= len(body):
                raise ValueError(f"the {kind} is truncated")
            fed = body[at:at + piece]
            at, piece = at + len(fed), piece * 2
            parts.append(codec.decompress(fed, free + 1))
            free -= len(parts[-1])
            if free < 0:
                raise _too_large(most)
        at -= len(codec.unused_data)
    return b"".join(parts)


def _too_large(most: int) -> TooLargeError:
    return TooLargeError(f"it decompresses to more than {most >> 20} MiB")


def _zlib(body: bytes) -> bytes:
    codec = zlib.decompressobj()
    data = codec.decompress(body, MAX_DECOMPRESSED + 1)
    if len(data) > MAX_DECOMPRESSED:
        raise _too_large(MAX_DECOMPRESSED)
    if not codec.eof:
        raise ValueError("the stream is truncated")
    return data


def _lz4(body: bytes) -> bytes:
    from lz4.frame import LZ4FrameDecompressor

    codec = LZ4FrameDecompressor()
    data: bytes = codec.decompress(body, max_length=MAX_DECOMPRESSED + 1)
    if len(data) > MAX_DECOMPRESSED:
        raise _too_large(MAX_DECOMPRESSED)
    if not codec.eof:
        raise ValueError("the frame is truncated")
    return data


def zstd() -> Any:
    """Return the zstd module, imported on first use."""
    if sys.version_info >= (3, 14):
        from compression import zstd as module
    else:
        from backports import zstd as module
    return module


def _zstd(body: bytes) -> bytes:
    try:
        return members(body, zstd().ZstdDecompressor, MAX_DECOMPRESSED, "frame")
    except zstd().ZstdError as error:
        raise ValueError(f"zstd decompress error: {str(error).partition(': ')[2]}") from None


class Codec(NamedTuple):
    """A codec; ``decompress`` returns the body as the producer passed it to the client, or raises
    any exception.
    """

    name: str
    decompress: Callable[[bytes], bytes]


CODECS = {
    0: Codec("zlib", _zlib),
    1: Codec("lz4", _lz4),
    2: Codec("zstd", _zstd),
    3: Codec("zlib", _zlib),
}
"""Codecs by the number in the compression bits of ``sys_flag``."""
_BY_NAME = {codec.name: codec for codec in CODECS.values()}
CODEC_NAMES = tuple(_BY_NAME)


def decompressed(codec_name: str | None, body: bytes) -> tuple[bytes, str | None]:
    """Return (body, problem): the body as the producer passed it, of at most `MAX_DECOMPRESSED`
    bytes.

    ``codec_name`` is the result of `sysflag.compression`, None for a plain body. A body may be
    plain although its flag says that it is compressed (seen in practice, #1375, #9953). Such a body
    is returned as stored, with the problem in words.
    """
    if codec_name is None or not body:
        return body, None
    codec = _BY_NAME.get(codec_name)
    if codec is None:
        return body, f"marked with unknown {codec_name} compression"
    try:
        return codec.decompress(body), None
    except Exception as error:  # noqa: BLE001  # each codec has its own family of errors
        return body, f"marked as {codec_name}, but {error}"


def _utf8(content: bytes) -> tuple[str, str]:
    return content.decode("utf-8", "replace"), "utf-8"


def _base64(content: bytes) -> tuple[str, str]:
    return base64.b64encode(content).decode("ascii"), "base64"


def _auto(content: bytes) -> tuple[str, str]:
    try:
        return content.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return _base64(content)


FORMS: dict[str, Callable[[bytes], tuple[str, str]] | None] = {
    "auto": _auto,
    "utf-8": _utf8,
    "base64": _base64,
    "none": None,
}
"""For each form: the function that converts a body to (``body``, ``body_encoding``) of a message
object; None omits these two fields.
"""


def encode(content: bytes, form: str) -> tuple[str, str]:
    """Return (``body``, ``body_encoding``) of a message object.

    Raises: KeyError for a form without a body.
    """
    to_text = FORMS[form]
    if to_text is None:
        raise KeyError(form)
    return to_text(content)
