"""Payloads: what undoes their compression, and the forms in which they are shown.

Both are closed tables. A codec has the number that ``sys_flag`` gives it (spec: commitlog.md §4);
a form is a choice of ``--body``. CONTRIBUTING.md says how to add one.
"""

from __future__ import annotations

import base64
import sys
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

MAX_DECOMPRESSED = 64 << 20
"""Bytes a body may grow to: a damaged or hostile body must not eat the memory."""
MAX_MEMBERS = 10_000
"""Members of gzip or frames of zstd in one body."""


_FIRST_PIECE = 512
"""Bytes that the decompressor of one member is fed with first, twice as many each time: what it
leaves of them is copied, and a body may be made of any number of small members."""


class TooLargeError(ValueError):
    """A body grows beyond what is decompressed of any body."""


class _Stream(Protocol):
    """A decompressor of one member, as zlib and zstd have it."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, most: int, /) -> bytes: ...


def members(body: bytes, start: Callable[[], _Stream], most: int, kind: str) -> bytes:
    """Return the content of the ``kind`` members that ``body`` is, one after the other.

    ``start`` makes a decompressor of one member. Takes time by the bytes of the body and of the
    content, whatever the number of members. Raise TooLargeError beyond ``most`` bytes, ValueError
    for a cut body, and what the decompressor raises.
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
    """Return the module that packs and unpacks zstd, imported where it is used."""
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
    """``decompress`` gives the body as the producer handed it in, or raises anything."""

    name: str
    decompress: Callable[[bytes], bytes]


CODECS = {
    0: Codec("zlib", _zlib),
    1: Codec("lz4", _lz4),
    2: Codec("zstd", _zstd),
    3: Codec("zlib", _zlib),
}
"""By the number in the compression bits of ``sys_flag``."""
_BY_NAME = {codec.name: codec for codec in CODECS.values()}
CODEC_NAMES = tuple(_BY_NAME)


def decompressed(codec_name: str | None, body: bytes) -> tuple[bytes, str | None]:
    """Return (body, problem): the body as the producer handed it in.

    ``codec_name`` as `sysflag.compression` says it, None for a plain body. A body whose flag says
    compressed while it is not (seen in the field, #1375, #9953) comes back as it is stored, with
    the problem in words. Bounded by `MAX_DECOMPRESSED`.
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
"""Body to (``body``, ``body_encoding``) of a message object; None leaves both out."""


def encode(content: bytes, form: str) -> tuple[str, str]:
    """Return (``body``, ``body_encoding``) of a message object. Raise KeyError for a form that
    shows none.
    """
    to_text = FORMS[form]
    if to_text is None:
        raise KeyError(form)
    return to_text(content)
