"""Values in Hessian 2.0, the serialisation of Dubbo and of many Java services.

Source: the serialisation draft of Caucho (grammar and table of byte codes).

* Four-byte doubles (``x5f``) count thousandths, as the Java implementations write them.
* An object, or a map with a type, becomes a dict with its class as ``@class``.
* The types of lists are omitted.
* A reference to a container that is still being read (a cycle) becomes ``{"@ref": N}``: the N-th
  list, map or object, counted from 0.

Bytes may be hostile: depth and number of values are bounded, and no class is ever instantiated.
Repeated references return the same object; code that copies or writes values counts that object
each time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from rmqctl.formats import budget
from rmqctl.formats.budget import Budget

CLASS, REFERENCE = "@class", "@ref"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END = 0x5A  # Z


class HessianError(ValueError):
    """The bytes are not valid Hessian 2.0."""


def loads(data: bytes) -> Any:
    """Return the value encoded in ``data``. Raises: HessianError, BudgetError.

    The value consists of str, bytes, int, float, bool, None, datetime (UTC), lists and dicts. The
    keys of dicts may be any hashable value.
    """
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise HessianError(f"trailing bytes after the value: {len(data) - reader.at:,}")
    return value


class _Class(NamedTuple):
    name: str
    fields: tuple[str, ...]


class _Reader:
    """A reader of consecutive values. ``at``: the position of the next byte."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0
        self._budget = Budget()
        self._classes: list[_Class] = []
        self._types: list[str] = []
        self._seen: list[Any] = []
        self._unfinished: set[int] = set()

    # -- bytes ------------------------------------------------------------------------------------

    def _take(self, count: int) -> bytes:
        taken = self._data[self.at:self.at + count]
        if len(taken) < count:
            raise HessianError("the value is truncated")
        self.at += count
        return taken

    def _byte(self) -> int:
        return self._take(1)[0]

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _peek(self) -> int:
        if self.at >= len(self._data):
            raise HessianError("the value is truncated")
        return self._data[self.at]

    # -- values -----------------------------------------------------------------------------------

    def value(self, depth: int) -> Any:
        """Return the next value, at nesting level ``depth``."""
        if depth > budget.MAX_DEPTH:
            raise HessianError(f"nested deeper than {budget.MAX_DEPTH} levels")
        self._budget.take()
        code = self._byte()
        while code == 0x43:  # C: a class definition precedes the object that needs it
            self._definition()
            code = self._byte()
        if 0x60 <= code <= 0x6F:
            return self._object(code - 0x60, depth)
        if 0x70 <= code <= 0x7F:
            if code < 0x78:
                self._type()
            return self._list(code & 7, depth)
        simple = self._simple(code)
        if simple is not _NONE:
            return simple
        compound = _COMPOUND.get(code)
        if compound is None:
            raise HessianError(f"byte {code:#04x} at {self.at - 1} does not start a value")
        return compound(self, depth)

    def _simple(self, code: int) -> Any:
        """Return the scalar value that starts with ``code``, or `_NONE` if another kind of value
        starts with it.
        """
        if code <= 0x1F or 0x30 <= code <= 0x33 or code in (0x52, 0x53):
            return self._text(code)
        if 0x20 <= code <= 0x2F or 0x34 <= code <= 0x37 or code in (0x41, 0x42):
            return self._binary(code)
        if code >= 0x80:
            return self._compact(code)
        if 0x38 <= code <= 0x3F:
            return ((code - 0x3C) << 16) + int(self._number(">H"))
        fixed = _FIXED.get(code)
        if fixed is not None:
            return fixed[0]
        form = _NUMBERS.get(code)
        if form is not None:
            number = self._number(form)
            return round(number * 0.001, 3) if code == 0x5F else float(number) if (
                code in (0x5D, 0x5E)) else number
        if code in (0x4A, 0x4B):
            return self._moment(code)
        return _NONE

    def _compact(self, code: int) -> int:
        """Return a compact integer, which takes one to three bytes. ``code``: its first byte."""
        if code <= 0xBF:
            return code - 0x90
        if code <= 0xCF:
            return ((code - 0xC8) << 8) + self._byte()
        if code <= 0xD7:
            return ((code - 0xD4) << 16) + int(self._number(">H"))
        if code <= 0xEF:
            return code - 0xE0
        return ((code - 0xF8) << 8) + self._byte()

    def _integer(self) -> int:
        code = self._byte()
        if code == 0x49:
            return int(self._number(">i"))
        if 0x80 <= code <= 0xD7:
            return self._compact(code)
        raise HessianError(f"byte {code:#04x} at {self.at - 1} does not start an integer")

    def _count(self) -> int:
        count = self._integer()
        if not 0 <= count <= len(self._data) - self.at:  # an element takes at least one byte
            raise HessianError(f"{count:,} elements in only {len(self._data) - self.at:,} bytes")
        return count

    def _moment(self, code: int) -> datetime:
        millis = self._number(">q") if code == 0x4A else self._number(">i") * 60_000
        try:
            return _EPOCH + timedelta(milliseconds=millis)
        except OverflowError:
            raise HessianError(f"{millis} ms is outside the range of dates") from None

    def _text(self, code: int) -> str:
        chunks = []
        while code == 0x52:
            chunks.append(self._characters(self._number(">H")))
            code = self._byte()
        if code <= 0x1F:
            count = code
        elif 0x30 <= code <= 0x33:
            count = ((code - 0x30) << 8) + self._byte()
        elif code == 0x53:
            count = self._number(">H")
        else:
            raise HessianError(f"byte {code:#04x} at {self.at - 1} does not start a string")
        chunks.append(self._characters(count))
        # Characters beyond 16 bits are two surrogates, each encoded alone, perhaps in two chunks.
        text = "".join(chunks)
        return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode(
            "utf-16-le", "replace")

    def _characters(self, count: int) -> str:
        """Return text of ``count`` UTF-16 units, which is stored as UTF-8."""
        raw = self._data[self.at:self.at + count]
        if len(raw) == count and raw.isascii():
            self.at += count
            return raw.decode("ascii")
        start, data = self.at, self._data
        while count > 0:
            first = self._byte()
            more = 0 if first < 0x80 else 1 if first < 0xE0 else 2 if first < 0xF0 else 3
            self._take(more)
            count -= 2 if more == 3 else 1
        try:
            return data[start:self.at].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise HessianError(f"the string at {start} is not valid UTF-8") from None

    def _binary(self, code: int) -> bytes:
        chunks = []
        while code == 0x41:
            chunks.append(self._take(self._number(">H")))
            code = self._byte()
        if 0x20 <= code <= 0x2F:
            count = code - 0x20
        elif 0x34 <= code <= 0x37:
            count = ((code - 0x34) << 8) + self._byte()
        elif code == 0x42:
            count = self._number(">H")
        else:
            raise HessianError(f"byte {code:#04x} at {self.at - 1} does not start binary data")
        return b"".join([*chunks, self._take(count)])

    # -- values that hold others ------------------------------------------------------------------

    def _register(self, container: Any) -> int:
        """Register a list or map that is being read. Return its number for references."""
        self._seen.append(container)
        self._unfinished.add(len(self._seen) - 1)
        return len(self._seen) - 1

    def _reference(self, _depth: int) -> Any:
        number = self._integer()
        if not 0 <= number < len(self._seen):
            raise HessianError(f"reference to value {number}, but there are only {len(self._seen)}")
        return {REFERENCE: number} if number in self._unfinished else self._seen[number]

    def _type(self) -> str:
        code = self._peek()
        if code <= 0x1F or 0x30 <= code <= 0x33 or code in (0x52, 0x53):
            self.at += 1
            self._types.append(self._text(code))
            return self._types[-1]
        number = self._integer()
        if not 0 <= number < len(self._types):
            raise HessianError(f"reference to type {number}, but there are only {len(self._types)}")
        return self._types[number]

    def _definition(self) -> None:
        name = self._text(self._byte())
        self._classes.append(_Class(name, tuple(
            self._text(self._byte()) for _ in range(self._count()))))

    def _object(self, number: int, depth: int) -> dict[Any, Any]:
        if not 0 <= number < len(self._classes):
            raise HessianError(f"object of class {number}, but there are only {len(self._classes)}")
        kind = self._classes[number]
        fields: dict[Any, Any] = {CLASS: kind.name}
        reference = self._register(fields)
        for field in kind.fields:
            fields[field] = self.value(depth + 1)
        self._unfinished.discard(reference)
        return fields

    def _list(self, count: int | None, depth: int) -> list[Any]:
        """Return a list of ``count`` values. Without a count, the list ends with the byte ``Z``."""
        values: list[Any] = []
        reference = self._register(values)
        while len(values) != count:
            if count is None and self._peek() == _END:
                self.at += 1
                break
            values.append(self.value(depth + 1))
        self._unfinished.discard(reference)
        return values

    def _map(self, kind: str | None, depth: int) -> dict[Any, Any]:
        entries: dict[Any, Any] = {CLASS: kind} if kind else {}
        reference = self._register(entries)
        while self._peek() != _END:
            key = self.value(depth + 1)
            if isinstance(key, list | dict):
                raise HessianError("the key of a map is a list or map")
            entries[key] = self.value(depth + 1)
        self.at += 1
        self._unfinished.discard(reference)
        return entries

    def _typed_list(self, depth: int) -> list[Any]:
        self._type()
        return self._list(self._count(), depth)

    def _typed_open_list(self, depth: int) -> list[Any]:
        self._type()
        return self._list(None, depth)


_NONE = object()
_FIXED: dict[int, tuple[Any]] = {
    0x46: (False,), 0x54: (True,), 0x4E: (None,), 0x5B: (0.0,), 0x5C: (1.0,)}
_NUMBERS = {0x49: ">i", 0x4C: ">q", 0x59: ">i", 0x44: ">d", 0x5D: ">b", 0x5E: ">h", 0x5F: ">i"}
_COMPOUND: dict[int, Callable[[_Reader, int], Any]] = {
    0x48: lambda reader, depth: reader._map(None, depth),
    0x4D: lambda reader, depth: reader._map(reader._type(), depth),
    0x4F: lambda reader, depth: reader._object(reader._integer(), depth),
    0x51: _Reader._reference,
    0x55: _Reader._typed_open_list,
    0x56: _Reader._typed_list,
    0x57: lambda reader, depth: reader._list(None, depth),
    0x58: lambda reader, depth: reader._list(reader._count(), depth),
}
