"""Frames of the remoting protocol: read from a byte stream, and built (spec: remoting.md §1).

A frame consists of its length, the length and kind of its header, the header, and a body.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from construct import Bytes, GreedyBytes, Int8ub, Int16sb, Int32sb, Int32ub, Struct, this

from rmqctl.formats import layout

JSON, BINARY = 0, 1
"""Kinds of headers: how the content is encoded."""

FrameHead = Struct(
    "length" / Int32sb,
    "header" / Int32ub,  # bits 31-24 the kind of the header, below them its length
)
BinaryHeader = Struct(
    "code" / Int16sb,
    "language" / Int8ub,
    "version" / Int16sb,
    "opaque" / Int32sb,
    "flag" / Int32sb,
    "remark_length" / Int32sb,
    "remark" / Bytes(this.remark_length),
    "ext_length" / Int32sb,
    "ext" / Bytes(this.ext_length),
    "rest" / GreedyBytes,
)
ExtName = Struct("length" / Int16sb)
ExtValue = Struct("length" / Int32sb)

MAX_FRAME = 16 << 20
"""Maximum size of a frame in bytes: the default of ``com.rocketmq.remoting.frameMaxLength`` in
clients and servers.
"""
MAX_HEADER = 512 << 10
"""Maximum bytes of a header. Clients write a few KiB; larger headers would take too much time."""

_HEAD = layout.reader(FrameHead, "length", "header")
HEAD_SIZE = _HEAD.size
COUNTED = layout.field(FrameHead, "length").size
"""Size in bytes of a frame's length field, which the length does not include."""
_LENGTH_BITS = 24
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1
_COMPACT = 1 << 16


class FrameError(ValueError):
    """The received bytes are not a valid frame; the rest of the stream cannot be parsed either."""


class Frame(NamedTuple):
    """A received frame. ``kind``: the encoding of its header (`JSON` or `BINARY`)."""

    kind: int
    header: bytes
    body: bytes


class FrameReader:
    """Extracts frames from received bytes.

    Keeps at most one incomplete frame of up to ``limit`` bytes, and the bytes received together
    with its end.
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self.buffer = bytearray()
        """The received bytes; those before position ``at`` were already processed."""
        self.at = 0

    @property
    def held(self) -> int:
        """Number of received bytes that are not part of a frame already returned."""
        return len(self.buffer) - self.at

    @property
    def missing(self) -> int:
        """Number of bytes still missing from the next frame; 0 if its length is unknown."""
        if self.held < HEAD_SIZE:
            return 0
        length, _ = _HEAD.unpack_from(self.buffer, self.at)
        return max(COUNTED + int(length) - self.held, 0)

    def feed(self, data: bytes | memoryview) -> None:
        self.buffer += data

    def next(self) -> Frame | None:
        """Return the next frame; None until it is complete. Raises: FrameError."""
        frame = self.peek()
        if frame is None:
            self._compact()
        else:
            self.skip(self.at + HEAD_SIZE + len(frame.header) + len(frame.body))
        return frame

    def skip(self, end: int) -> None:
        """Continue at position ``end`` of the buffer, where frames processed by other code end."""
        self.at = end
        if end == len(self.buffer):
            self.buffer.clear()
            self.at = 0

    def peek(self) -> Frame | None:
        """Return the next frame without removing it; None until it is complete.
        Raises: FrameError.
        """
        at, buffer = self.at, self.buffer
        if len(buffer) - at < HEAD_SIZE:
            return None
        length, word = _HEAD.unpack_from(buffer, at)
        size = word & _LENGTH_MASK
        if not COUNTED <= length <= self.limit:
            raise FrameError(f"frame of {length:,} bytes; the limit is {self.limit:,}")
        if size > length - COUNTED or size > MAX_HEADER:
            raise FrameError(f"header of {size:,} bytes in a frame of {length:,}; the limit is "
                             f"{MAX_HEADER:,}")
        end = at + COUNTED + length
        if len(buffer) < end:
            return None
        body = at + HEAD_SIZE + size
        return Frame(word >> _LENGTH_BITS, bytes(buffer[at + HEAD_SIZE:body]),
                     bytes(buffer[body:end]))

    def _compact(self) -> None:
        if self.at > _COMPACT:
            del self.buffer[:self.at]
            self.at = 0


def frame_head(header: bytes, body_size: int, kind: int = JSON) -> bytes:
    """Return the bytes of a frame that precede its body."""
    length = COUNTED + len(header) + body_size
    return _HEAD.pack(length, kind << _LENGTH_BITS | len(header)) + header


_START = layout.reader(BinaryHeader, "code", "language", "version", "opaque", "flag",
                       "remark_length")
_NAME = struct.Struct(">" + layout.width_of(ExtName, "length")[1])
_VALUE = struct.Struct(">" + layout.width_of(ExtValue, "length")[1])


class Header(NamedTuple):
    """The content of a header of either kind. ``language``: the client's language, as a number or
    name.
    """

    code: int
    language: int | str
    version: int
    opaque: int
    flag: int
    remark: str | None
    ext: dict[str, str]


def read_binary(data: bytes) -> Header:
    """Read a header of kind `BINARY`. Raises: FrameError."""
    try:
        code, language, version, opaque, flag, size = _START.unpack_from(data)
        remark, at = _text(data, _START.size, size)
        size, at = _VALUE.unpack_from(data, at)[0], at + _VALUE.size
        end = at + size
        if size < 0 or end > len(data):
            raise FrameError("the header's fields run past its end")
        ext: dict[str, str] = {}
        while at < end:
            name, at = _text(data, at + _NAME.size, _NAME.unpack_from(data, at)[0])
            value, at = _text(data, at + _VALUE.size, _VALUE.unpack_from(data, at)[0])
            ext[name] = value
    except struct.error as error:
        raise FrameError(f"truncated header: {error}") from None
    return Header(code, language, version, opaque, flag, remark or None, ext)


def _text(data: bytes, at: int, size: int) -> tuple[str, int]:
    if size < 0 or at + size > len(data):
        raise FrameError("a string in the header runs past the header's end")
    return data[at:at + size].decode("utf-8", "replace"), at + size


def write_binary(header: Header) -> bytes:
    """Return a header of kind `BINARY` as bytes; empty strings are written like missing ones."""
    remark = (header.remark or "").encode()
    ext = b"".join(_NAME.pack(len(name)) + name + _VALUE.pack(len(value)) + value
                   for name, value in ((name.encode(), value.encode())
                                       for name, value in header.ext.items()))
    language = header.language if isinstance(header.language, int) else 0
    return b"".join((_START.pack(header.code, language, header.version, header.opaque, header.flag,
                                 len(remark)), remark, _VALUE.pack(len(ext)), ext))
