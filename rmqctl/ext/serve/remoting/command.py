"""Commands (requests and responses): read from frames, and written to frames.

Spec: remoting.md §1.2, §1.3. Reading is lenient, because clients in different languages write
differently. Writing produces strict JSON, which all clients can read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from rmqctl.ext.serve.remoting.frame import (
    BINARY,
    JSON,
    Frame,
    FrameError,
    frame_head,
    read_binary,
)

RESPONSE, ONE_WAY = 1, 2
"""Bits of a command's flag."""
VERSION = 399
"""The broker version to report to clients (4.9.3). Java clients send SQL filters only if it is at
least 232.
"""
LANGUAGE = "JAVA"
_INT = re.compile(r"[-+]?[0-9]{1,10}")
_SIGN = 1 << 31
_LENIENT = 1 << 20
"""Maximum size in bytes of JSON in fastjson's lenient form."""
_BARE_KEY = re.compile(
    r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|([A-Za-z_$][\w$]*+|-?[0-9]++)(?=(\s*+:)?)', re.DOTALL)
"""Matches a quoted text or a word. A word before a colon is a key: old versions of fastjson write
keys without quotes. Unterminated texts and other words are matched completely, because starting
again at each byte would take quadratic time.
"""


class Command(msgspec.Struct):
    """A request or a response. ``ext``: the custom fields in its header, as strings."""

    code: int
    opaque: int = 0
    flag: int = 0
    ext: dict[str, str] = {}  # a new one each time
    remark: str | None = None
    body: bytes = b""
    language: str = LANGUAGE
    version: int = VERSION

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & ONE_WAY)

    def json(self) -> Any:
        """Return the body as a JSON value. Raises: FrameError."""
        return read_json(self.body)


_LANGUAGES = ("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO",
              "PHP", "OMS", "RUST", "NODE_JS")


def read_command(frame: Frame) -> Command:
    """Read the command in a frame. Raises: FrameError if its header cannot be read."""
    kind, data, body = frame
    if kind == JSON:
        command = _read_json_header(data)
        command.body = body
        return command
    if kind != BINARY:
        raise FrameError(f"unknown header type {kind}")
    header = read_binary(data)
    language = header.language
    if isinstance(language, int):
        language = _LANGUAGES[language] if language < len(_LANGUAGES) else "OTHER"
    return Command(header.code, header.opaque, header.flag, header.ext, header.remark, body,
                   language, header.version)


def read_json(data: bytes) -> Any:
    """Parse a JSON value: strict JSON, or JSON as fastjson writes it. Raises: FrameError."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        if len(data) > _LENIENT or isinstance(error, RecursionError):
            raise FrameError(f"invalid JSON: {error}") from None
    try:
        return json.loads(_BARE_KEY.sub(_quoted, data.decode()))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"invalid JSON: {error}") from None


def _quoted(match: re.Match[str]) -> str:
    return f'"{match[1]}"' if match[2] else match[0]


Int32 = Annotated[int, msgspec.Meta(ge=-_SIGN, lt=_SIGN)]


class _Plain(msgspec.Struct, gc=False):
    """A JSON header in the form that most clients write."""

    code: Int32 = 0
    language: str = "OTHER"
    version: Int32 = 0
    opaque: Int32 = 0
    flag: Int32 = 0
    remark: str | None = None
    extFields: dict[str, str] | None = None  # noqa: N815 - its name in the header


_read_plain = msgspec.json.Decoder(_Plain).decode


def _read_json_header(data: bytes) -> Command:
    try:
        plain = _read_plain(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _read_any_header(data)  # which is more lenient
    return Command(plain.code, plain.opaque, plain.flag, plain.extFields or {}, plain.remark, b"",
                   plain.language, plain.version)


def _read_any_header(data: bytes) -> Command:
    value = read_json(data)
    if not isinstance(value, dict):
        raise FrameError("the header is not a JSON object")
    given = value.get("extFields")
    ext = {} if not isinstance(given, dict) else {
        str(name): text_of(field) for name, field in given.items() if field is not None}
    remark = value.get("remark")
    language = value.get("language")
    return Command(_number(value, "code"), _number(value, "opaque"), _number(value, "flag"), ext,
                   None if remark is None else str(remark), b"",
                   language if isinstance(language, str) else "OTHER", _number(value, "version"))


def text_of(value: Any) -> str:
    """Return a header field as text, even if a client wrote it as a number or boolean."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value)


def _number(header: Mapping[str, Any], name: str) -> int:
    value = header.get(name, 0)
    if isinstance(value, str) and _INT.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -_SIGN <= value < _SIGN:
        if value is None:
            return 0
        raise FrameError(f"the header's {name} is not a 32-bit number")
    return value


_write_plain = msgspec.json.Encoder().encode
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def write_json(value: Any) -> bytes:
    """Return a value as strict ASCII JSON without spaces."""
    try:
        raw = _write_plain(value)  # several times faster
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError):  # half a surrogate pair
        raw = b""
    return raw if raw and raw.isascii() and b"\x7f" not in raw else _encode(value).encode("ascii")


class _Head(msgspec.Struct, gc=False):
    """A header to write; its fields are in the order in which fastjson writes them."""

    code: int
    extFields: Mapping[str, str]  # noqa: N815 - its name in the header
    flag: int
    language: str
    opaque: int
    remark: str | UnsetType
    serializeTypeCurrentRPC: str = "JSON"  # noqa: N815
    version: int = VERSION


def _write_header(header: _Head) -> bytes:
    """Return a header as strict ASCII JSON, several times faster than `write_json`."""
    try:
        raw = _write_plain(header)
    except (ValueError, msgspec.MsgspecError):  # half a surrogate pair
        raw = b""
    if raw and raw.isascii() and b"\x7f" not in raw:
        return raw
    return write_json({name: value for name, value in msgspec.structs.asdict(header).items()
                       if value is not UNSET})


def response_head(opaque: int, code: int, ext: Mapping[str, str], remark: str | None,
                  body_size: int) -> bytes:
    """Return the bytes of a response that precede its body."""
    return frame_head(_write_header(_Head(
        code, ext, RESPONSE, LANGUAGE, opaque, UNSET if remark is None else remark)), body_size)


def write_command(command: Command) -> bytes:
    """Return the complete frame of a command as bytes."""
    remark = UNSET if command.remark is None else command.remark
    header = _write_header(_Head(command.code, command.ext, command.flag, command.language,
                                 command.opaque, remark, version=command.version))
    return frame_head(header, len(command.body)) + command.body
