r"""A Java ``.properties`` file such as broker.conf, as `java.util.Properties.load` reads it.

* The bytes are Latin-1. ``\uXXXX`` is a UTF-16 unit.
* A line that ends with an odd number of backslashes continues on the next line.
* ``#`` and ``!`` begin comments.
* A key ends at ``=``, ``:`` or space.
* Spaces before a value are dropped, spaces after it are kept.
* Of duplicate keys, the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rmqctl.errors import FormatError

_SPACE = " \t\f"
_KEY = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_ESCAPE = re.compile(r"\\(u(.{0,4})|.)", re.DOTALL)
_HEX = re.compile("[0-9A-Fa-f]{4}")
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertyEntry(NamedTuple):
    """A key with its value, and the number (from 1) of the line on which the key begins."""

    key: str
    value: str
    line: int


def parse(data: bytes) -> list[PropertyEntry]:
    r"""Return all entries in file order, including entries that a later entry with the same key
    replaces.

    Raises: FormatError at a ``\u`` without four hexadecimal digits: Java rejects the entire file.
    """
    return [_entry(text, line) for text, line in _logical_lines(data.decode("latin-1"))]


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield (line, line number) for each line that is not blank or a comment. A line includes its
    continuation lines.
    """
    pending, begun = "", 0
    for number, natural in enumerate(re.split("\r\n|\r|\n", text), start=1):
        line = natural.lstrip(_SPACE)  # also for a continuation line
        if not begun and (not line or line[0] in "#!"):
            continue
        begun = begun or number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield pending + line, begun
        pending, begun = "", 0
    if begun and pending:
        yield pending, begun


def _entry(text: str, line: int) -> PropertyEntry:
    match = _KEY.match(text)
    assert match is not None  # it also matches an empty text
    rest = text[match.end():].lstrip(_SPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_SPACE)
    return PropertyEntry(_unescaped(match.group(), line), _unescaped(rest, line), line)


def _unescaped(text: str, line: int) -> str:
    def character(match: re.Match[str]) -> str:
        escaped = match.group(1)
        if escaped[0] != "u":
            return _NAMED.get(escaped, escaped)
        if not _HEX.fullmatch(match.group(2)):
            raise FormatError(f"line {line}: \\u without four hexadecimal digits: Java rejects "
                              "the file")
        return chr(int(match.group(2), 16))

    unescaped = _ESCAPE.sub(character, text)
    # The two UTF-16 units of one character are two escapes.
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
