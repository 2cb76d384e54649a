"""Read JSON lines from a descriptor in bounded memory, and convert them to structs.

Each read returns a group of lines. A line from a slow pipe is acknowledged at once; a file is
processed in large pieces. `Typed` decodes a line fast. A line that the fast decoder rejects is
parsed again: this is slower, but supports lone surrogates and reports exact errors.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Generic, NoReturn, TypeVar

import msgspec

from rmqctl.errors import StoreIOError

MAX_LINE = 64 << 20
"""Maximum size in bytes of a line: many times the size of a 4 MiB message in base64."""
READ_SIZE = 1 << 20
STANDARD_INPUT = "standard input"

_BOM = b"\xef\xbb\xbf"
_MAX_DIGITS = 40
_BEYOND = 1 << 100


class InputError(ValueError):
    """Invalid input. The text is the reason on one line, without the position in the input."""


Line = bytes | InputError
"""A line without its newline character, or the error for a line that is too long."""


class LineReader:
    """Reader of the lines of an open descriptor, which the caller closes.

    ``name``: name of the input in errors.
    ``limit``: maximum length of a line (bytes); a longer line is skipped.
    ``taken``: number of bytes read so far.
    ``wake``: descriptor that interrupts waiting for input (see
    `rmqctl.commands.shared.deferred_signals.DeferredSignals.wake`). Its data is discarded.
    """

    def __init__(self, fd: int, name: str = STANDARD_INPUT, *, limit: int = MAX_LINE,
                 read_size: int = READ_SIZE) -> None:
        self.fd, self.name = fd, name
        self.taken = 0
        self.wake: int | None = None
        self._limit, self._read_size = limit, read_size
        self._number = 0
        self._held = bytearray()
        self._beyond = False

    def groups(self) -> Iterator[list[tuple[int, Line]]]:
        """Yield non-empty lists of (line number from 1, line). Blank lines are counted and skipped.
        The last line may lack a newline character.

        Signal handlers may raise exceptions while this method waits for input.
        Raises: StoreIOError if reading fails.
        """
        while data := self._read():
            self.taken += len(data)
            *complete, rest = data.split(b"\n")
            lines: list[Line] = [*complete]
            if complete:
                self._hold(complete[0])
                lines[0] = self._whole()
            self._hold(rest)
            if group := self._numbered(lines):
                yield group
        if group := self._numbered([self._whole()] if self._held or self._beyond else []):
            yield group

    @property
    def waits(self) -> bool:
        """Return whether the next read would have to wait for input."""
        try:
            return not select.select([self.fd], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def _numbered(self, lines: list[Line]) -> list[tuple[int, Line]]:
        first = self._number + 1
        ordinary = [line for line in lines
                    if isinstance(line, bytes) and line.startswith(b"{")
                    and len(line) <= self._limit]
        if len(ordinary) == len(lines):
            self._number += len(lines)
            return list(enumerate(lines, first))
        group: list[tuple[int, Line]] = []
        for number, line in enumerate(lines, first):
            if isinstance(line, bytes):
                if len(line) > self._limit:
                    group.append((number, self._too_long()))
                    continue
                if number == 1:
                    line = line.removeprefix(_BOM)  # noqa: PLW2901  # a mark, not part of it
                if not line or line.isspace():
                    continue
            group.append((number, line))
        self._number += len(lines)
        return group

    def _hold(self, part: bytes) -> None:
        """Keep a part of a line, unless the line exceeds the limit."""
        self._beyond |= len(self._held) + len(part) > self._limit
        if not self._beyond:
            self._held += part

    def _whole(self) -> Line:
        """Return the line collected so far, which is now complete, and start the next one."""
        line: Line = self._too_long() if self._beyond else bytes(self._held)
        self._held, self._beyond = bytearray(), False
        return line

    def _too_long(self) -> InputError:
        return InputError(f"longer than {self._limit} bytes")

    def _read(self) -> bytes:
        while True:
            try:
                if self.wake is not None:
                    self._wait(self.wake)
                return os.read(self.fd, self._read_size)
            except BlockingIOError:
                # Another process may have made the shared terminal or pipe non-blocking.
                select.select([self.fd], [], [])
            except OSError as error:
                raise StoreIOError.from_oserror(error, self.name, "read") from error

    def _wait(self, wake: int) -> None:
        """Wait for input. If a signal arrives, its handler runs, and may raise an exception."""
        waiting = select.poll()
        for descriptor in (self.fd, wake):
            waiting.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in waiting.poll()}
            if wake in ready:
                with suppress(BlockingIOError):
                    os.read(wake, 1 << 12)
            if self.fd in ready:
                return


@contextmanager
def open_lines(path: str | None, *, limit: int = MAX_LINE) -> Iterator[LineReader]:
    """Open a reader of a file; None and ``-`` mean standard input. Raises: StoreIOError."""
    if path is None or path == "-":
        if sys.stdin is None:
            # Descriptor 0 may be a file of the store if standard input was closed.
            raise StoreIOError(f"cannot read {STANDARD_INPUT}: it is closed")
        with suppress(OSError):  # a larger pipe gives larger groups; fails for a file
            fcntl.fcntl(0, fcntl.F_SETPIPE_SZ, READ_SIZE)
        yield LineReader(0, limit=limit)
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        if isinstance(error, OSError):
            raise StoreIOError.from_oserror(error, path, "open") from error
        raise StoreIOError(f"cannot open {path!r}: {error}") from error
    try:
        yield LineReader(fd, path, limit=limit)
    finally:
        os.close(fd)


def parse(line: bytes) -> dict[str, Any]:
    """Parse the JSON object in a line, slowly but exactly.

    Lone surrogates are kept. A number outside the range of all fields is replaced by another number
    outside this range.
    Raises: InputError with the fault and its position.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line[:error.start].decode("utf-8")) + 1
        raise InputError(f"column {column}: not UTF-8") from None
    if not text.strip():
        raise InputError("empty")
    try:
        document = json.loads(text, parse_int=_integer, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        raise InputError(f"column {error.colno}: not JSON: {reason}") from None
    except RecursionError:
        raise InputError("cannot be read: nested too deeply") from None
    if not isinstance(document, dict):
        raise InputError("not a JSON object")
    return document


def _integer(digits: str) -> int:
    """Convert digits to a number. A long number is replaced by a number that is outside of every
    valid range: Python rejects numbers of thousands of digits, and is slow for hundreds of digits.
    """
    if len(digits) <= _MAX_DIGITS:
        return int(digits)
    return -_BEYOND if digits.startswith("-") else _BEYOND


def _no_constant(name: str) -> NoReturn:
    raise InputError(f"not JSON: {name} is not a number")


# -- types ----------------------------------------------------------------------------------------

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

_Fields = TypeVar("_Fields", bound=msgspec.Struct)
_AT = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)


class Typed(Generic[_Fields]):
    """Decodes JSON objects to a struct and ignores unknown fields.

    Texts may contain the lone surrogates U+DC80 to U+DCFF. They represent bytes that are not UTF-8.
    """

    def __init__(self, fields: type[_Fields]) -> None:
        self._type = fields
        self._decode = msgspec.json.Decoder(fields).decode

    def line(self, line: Line) -> _Fields:
        """Return the object in a line. Raises: InputError with the reason why it is invalid."""
        try:
            return self._decode(line)  # type: ignore[arg-type]  # no error is a line: TypeError
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            if isinstance(line, InputError):
                raise line from None
        return self.object(parse(line))

    def lines(self, lines: Sequence[Line]) -> list[_Fields]:
        """Return the objects in many lines. Raises: InputError if one is invalid."""
        try:
            return list(map(self._decode, lines))  # type: ignore[arg-type]
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            return list(map(self.line, lines))

    def object(self, fields: Mapping[str, Any]) -> _Fields:
        """Return the struct for a parsed JSON object; the object is not changed."""
        try:
            typed = msgspec.convert(fields, self._type)
        except msgspec.ValidationError as error:
            raise InputError(_in_words(str(error))) from None
        _check_texts(typed, "")
        return typed


_NAMES = {"int": "an integer", "float": "a number with a fraction or exponent",
          "bool": "true or false", "str": "text", "array": "a list", "object": "an object"}


def _name(match: re.Match[str]) -> str:
    kinds = [kind for kind in match[1].split(" | ") if kind != "null"] or ["null"]
    return " or ".join(_NAMES.get(kind, kind) for kind in kinds)


def _in_words(account: str) -> str:
    """Return the decoder's message about a wrong type, reworded like the other reasons."""
    match = _AT.fullmatch(account)
    wrong, where = match.groups() if match else (account, "")
    wrong = re.sub("`([^`]*)`", _name, wrong[:1].lower() + wrong[1:])
    return f"field {where.removesuffix('[...]')}: {wrong}" if where else wrong


def _check_texts(value: Any, field: str) -> None:
    """Raise InputError if a text has a lone surrogate that does not represent a byte."""
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError as error:
                raise InputError(f"field {field}: {half_surrogate(error)}") from None
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _check_texts(getattr(value, name), f"{field}.{name}" if field else name)
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_texts(name, field)
            _check_texts(item, field)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_texts(item, f"{field}[{number}]")


def half_surrogate(error: UnicodeEncodeError) -> str:
    """Return, in words, the reason why a text cannot be encoded."""
    return f"contains an unpaired surrogate (U+{ord(error.object[error.start]):04X})"
