"""The JSON of ``config/`` as fastjson writes it (spec: checkpoint-and-small-files.md §4.1).

The standard decoder reads strict JSON. The dialect's only extension is map keys that are bare
integers; these keys are quoted first. If a position in the file is needed, `_Reader` reads the
file. Oddities are reported; they are not fatal if the value is clear. Some files have keys that are
objects (`object_keys`); the caller provides the text that replaces such a key.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn

from rmqctl.errors import FormatError

MAX_DEPTH = 100
MAX_NUMBER = 1000
"""Maximum number of characters of a number."""
MAX_ODDITIES = 100
"""Maximum number of reported oddities."""

BYTE_ORDER_MARK = "byte-order-mark"
INVALID_UTF8 = "invalid-utf8"
TRAILING_GARBAGE = "trailing-garbage"
DUPLICATE_KEY = "duplicate-key"
LONE_SURROGATE = "lone-surrogate"


class Oddity(NamedTuple):
    """A difference from what a broker would write; ``offset``: bytes from the start of the file."""

    kind: str
    offset: int
    detail: str


KeyOf = Callable[[Any], str]


class Parsed(NamedTuple):
    """The value in a file, with object keys as strings, and the oddities of the file."""

    value: Any
    oddities: list[Oddity]


_SPACE = re.compile(r"[ \t\r\n]*+")
_STRING = re.compile(
    r'"((?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+)"')
# No possessive groups here: before Python 3.11.5 they match a part that does not match (gh-106052).
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_INTEGER_KEY = re.compile(r"-?(?:0|[1-9][0-9]*+)(?=[ \t\r\n]*+:)")
_BARE_KEYS = re.compile(r"([{,][ \t\r\n]*+)(-?(?:0|[1-9][0-9]*+))(?=[ \t\r\n]*+:)")
"""Matches bare keys, so that they can be quoted.

A match inside a text is harmless. The inserted quote ends the text, and the digit or "-" after the
quote is invalid JSON, which the decoder rejects.
"""
_WORD = re.compile(r"(?:true|false|null)(?![A-Za-z0-9_])")
_WORDS = {"true": True, "false": False, "null": None}
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BAD_BYTES = re.compile("[\udc80-\udcff]+")
_NO_BRACKETS = re.compile(r'(?:"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[^\[\]{}"]++)+', re.DOTALL)
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}


def _behind_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


class _NotStrictError(ValueError):
    """Raised from hooks of the standard decoder: `_Reader` must read the file."""


def _strict_number(text: str) -> int:
    if len(text) > MAX_NUMBER:
        raise _NotStrictError
    return int(text)


def _strict_float(text: str) -> float:
    if math.isinf(value := float(text)):
        raise _NotStrictError
    return value


class _EnoughError(Exception):
    """Raised when the maximum number of oddities is reached."""


def _strict_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _NotStrictError
    return members


def _refuse_constant(text: str) -> NoReturn:
    raise _NotStrictError(text)


_STRICT = json.JSONDecoder(parse_int=_strict_number, parse_float=_strict_float,
                           parse_constant=_refuse_constant, object_pairs_hook=_strict_object)
_WITH_DUPLICATES = json.JSONDecoder(parse_int=_strict_number, parse_float=_strict_float,
                                    parse_constant=_refuse_constant)


class _Text:
    """The decoded file, with one character for each undecodable byte, so that positions can be
    converted.
    """

    def __init__(self, data: bytes) -> None:
        escaped = data.decode("utf-8", "surrogateescape")
        self.oddities: list[Oddity] = []
        self.start = 0
        self._ascii = len(escaped) == len(data) and escaped.isascii()
        self._escaped = escaped
        self.text = escaped
        if escaped.startswith("\ufeff"):
            self.start = 1
            self.note(BYTE_ORDER_MARK, 0, "starts with a byte order mark")
        if not self._ascii:
            bad = _BAD_BYTES.findall(escaped)
            if bad:
                first = _BAD_BYTES.search(escaped)
                count = sum(map(len, bad))
                self.note(INVALID_UTF8, first.start() if first else 0,
                          f"{count} {'byte is' if count == 1 else 'bytes are'} not UTF-8, "
                          "shown as U+FFFD")
                self.text = _BAD_BYTES.sub(lambda m: "\ufffd" * len(m[0]), escaped)

    def byte_offset(self, position: int) -> int:
        """Return the byte offset of character ``position`` in the file."""
        if self._ascii:
            return position
        return len(self._escaped[:position].encode("utf-8", "surrogateescape"))

    def note(self, kind: str, position: int, detail: str) -> None:
        if len(self.oddities) < MAX_ODDITIES:
            self.oddities.append(Oddity(kind, self.byte_offset(position), detail))


def _deep(text: str) -> bool:
    """Return whether brackets are nested so deeply that only `_Reader`, which counts levels, may
    read the file.
    """
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return False
    depths = accumulate(map(_STEPS.__getitem__, _NO_BRACKETS.sub("", text)))
    return any(depth > MAX_DEPTH for depth in depths)


class _Reader:
    """Reader for a value in the dialect: one pass with an explicit stack."""

    def __init__(self, source: _Text, *, may_end: bool = False, key_of: KeyOf | None = None,
                 start: int | None = None, inside: str = "$") -> None:
        self._source, self._text = source, source.text
        self._at = source.start if start is None else start
        self._may_end, self._key_of, self._inside = may_end, key_of, inside
        self._stack: list[tuple[Any, str | None]] = []

    def _fail(self, reason: str, position: int | None = None) -> NoReturn:
        where = self._at if position is None else position
        path = "".join(f"[{len(inside)}]" if isinstance(inside, list) else f".{key or ''}"
                       for inside, key in self._stack).rstrip(".")
        if where >= len(self._text):
            reason = f"unexpected end: {reason}"
        raise FormatError(reason, offset=self._source.byte_offset(where),
                          path=f"{self._inside}{path}"[:200].encode("utf-8", "replace").decode())

    def _skip(self) -> str:
        """Move to the next character that is not a space, and return it (empty at the end)."""
        self._at = _behind_space(self._text, self._at)
        return self._text[self._at:self._at + 1]

    def _string(self) -> str:
        match = _STRING.match(self._text, self._at)
        if match is None:
            self._fail("invalid string: no closing quote, or an unescaped control character")
        raw, position = match[1], self._at
        self._at = match.end()
        if "\\" not in raw:
            return raw
        text: str = json.loads(match[0])
        if _SURROGATE.search(text):
            self._source.note(LONE_SURROGATE, position, "unpaired surrogate")
        return text

    def _scalar(self) -> Any:
        if word := _WORD.match(self._text, self._at):
            self._at = word.end()
            return _WORDS[word[0]]
        number = _NUMBER.match(self._text, self._at)
        if number is None:
            self._fail("expected a value")
        text = number[0]
        integer = text.lstrip("-").isdigit()
        value: Any = None
        if len(text) <= MAX_NUMBER:
            value = int(text) if integer else float(text)
        if value is None or (not integer and math.isinf(value)):
            self._fail("number too large")
        self._at = number.end()
        return value

    def _key(self, container: dict[str, Any]) -> str:
        position = self._at
        if self._text.startswith('"', position):
            key = self._string()
        elif self._key_of is not None and self._text.startswith("{", position):
            key = self._object_key(self._key_of)
        else:
            match = _INTEGER_KEY.match(self._text, position)
            if match is None:
                self._fail("expected a key")
            key = match[0]
            self._at = match.end()
        if key in container:
            if self._may_end and len(self._source.oddities) >= MAX_ODDITIES:
                raise _EnoughError
            self._source.note(DUPLICATE_KEY, position, f"duplicate key {key[:80]!r}; the later one "
                              "counts")
        if self._skip() != ":":
            self._fail("expected a colon")
        self._at += 1
        return key

    def _object_key(self, key_of: KeyOf) -> str:
        """Return the text for a key that is an object."""
        position = self._at
        value, self._at = _Reader(self._source, start=position, inside="$.(key)").read()
        try:
            return key_of(value)
        except FormatError as error:
            self._fail(error.reason, position)

    def _open(self, container: Any) -> None:
        if len(self._stack) >= MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels")
        self._at += 1
        self._stack.append((container, None))

    def read(self) -> tuple[Any, int]:
        """Return the value that was read, and the position after it."""
        while True:
            value = self._value()
            while self._stack:
                container, key = self._stack[-1]
                if value is not _OPENED:
                    if key is None:
                        container.append(value)
                    else:
                        container[key] = value
                        self._stack[-1] = (container, None)
                closed = self._next(container, first=value is _OPENED)
                if not closed:
                    break
                value = self._stack.pop()[0]
            else:
                return value, self._at

    def _value(self) -> Any:
        char = self._skip()
        if char == "{":
            self._open({})
            return _OPENED
        if char == "[":
            self._open([])
            return _OPENED
        return self._string() if char == '"' else self._scalar()

    def _next(self, container: Any, *, first: bool) -> bool:
        """Move to the container's next value; return True if the container is closed instead."""
        end = "}" if isinstance(container, dict) else "]"
        char = self._skip()
        if char == end:
            self._at += 1
            return True
        if not first:
            if char != ",":
                self._fail(f"expected a comma or {end}")
            self._at += 1
            self._skip()
        if isinstance(container, dict):
            self._stack[-1] = (container, self._key(container))
        return False


_OPENED: Any = object()


def _decode(source: _Text, key_of: KeyOf | None = None) -> tuple[Any, int]:
    text = source.text
    if not _SURROGATE_ESCAPE.search(text) and not _deep(text):
        with contextlib.suppress(ValueError):
            return _STRICT.raw_decode(text, _behind_space(text, source.start))
        quoted = _BARE_KEYS.sub(r'\1"\2"', text)
        with contextlib.suppress(ValueError):
            return _complete(_STRICT, quoted, text, source.start)
        # Many duplicates: the slow reader reports the first of them.
        with contextlib.suppress(_EnoughError):
            return _Reader(source, may_end=True, key_of=key_of).read()
        with contextlib.suppress(ValueError):
            return _complete(_WITH_DUPLICATES, quoted, text, source.start)
    return _Reader(source, key_of=key_of).read()


def _complete(decoder: json.JSONDecoder, quoted: str, text: str, start: int) -> tuple[Any, int]:
    """Return the value in ``quoted`` (the text with bare keys quoted), and the length of ``text``.

    Raises: ValueError, also if anything follows the value.
    """
    value, end = decoder.raw_decode(quoted, _behind_space(quoted, start))
    if _behind_space(quoted, end) != len(quoted):
        raise _NotStrictError
    return value, len(text)


def parse(data: bytes, key_of: KeyOf | None = None) -> Parsed:
    """Return the value of a file's bytes, and the oddities of the file.

    ``key_of`` returns the text for a key that is an object, or raises FormatError. Without
    ``key_of``, such keys are errors.

    Raises: FormatError with offset and JSON path.
    """
    source = _Text(data)
    if not source.text[source.start:].strip(" \t\r\n"):
        raise FormatError("empty", offset=0, path="$")
    if not data.strip(b"\0"):
        raise FormatError(f"{len(data):,} zero bytes instead of JSON", offset=0, path="$")
    value, end = _decode(source, key_of)
    rest = source.text[end:]
    if rest.strip(" \t\r\n"):
        position = source.byte_offset(_behind_space(source.text, end))
        if not isinstance(value, dict | list):
            raise FormatError("not a JSON object", offset=position, path="$")
        source.oddities.append(Oddity(
            TRAILING_GARBAGE, position, f"{len(data) - position} bytes follow the end of the JSON "
                                        "value"))
    return Parsed(value, sorted(source.oddities, key=lambda oddity: oddity.offset))


def strict(text: str) -> Any:
    """Return the value of a text that is JSON in the dialect, without any oddity; None for any
    other text. Much faster than `parse`.
    """
    if _SURROGATE.search(text) or _deep(text):
        return None
    with contextlib.suppress(ValueError):
        return _complete(_STRICT, _BARE_KEYS.sub(r'\1"\2"', text), text, 0)[0]
    return None


def build(value: Any) -> bytes:
    """Return strict JSON in fastjson's pretty style: tabs, ``"key":value``, keys always quoted."""
    return json.dumps(value, ensure_ascii=False, indent="\t", separators=(",", ":"),
                      allow_nan=False).encode("utf-8", "backslashreplace")
