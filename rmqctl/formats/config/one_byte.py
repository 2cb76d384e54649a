"""The readable members of a configuration file in which a byte is wrong.

Brokers write these files with one line for each member, and indent the lines of each level
(`fastjson`). The lines therefore show where a member begins, even if the damage is before it.

A member that is not valid JSON has every possible correction of one byte tried. What all
corrections have in common is certain, and is kept. Everything else of the member is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from rmqctl.formats.config import config_json

_MAX_CORRECTED, _MAX_PARSED = 8, 16 << 20
"""Limits for one file, so that much damage does not take long: the number of damaged members that
are corrected, and of characters that are parsed for this (enough for a member of 650 characters).
"""
_TRIED = '"{}[],: \\0123456789-.+truefalsnbxE'
"""Characters that are tried: all that have a meaning in JSON, and two letters without one."""
_MAX_SHOWN = 60
_FIRST_LINE = re.compile(r'\s*"([^"\\\x00-\x1f]+)"[ \t]*:[ \t]*\{[ \t]*\n')
_BRACKETS = 4
"""No member of an object has fewer characters."""
_VERSION = "dataVersion"
_FOLLOWS = '"\\u0000":0}'
"""A member that is added after a comma, to check that the comma is there."""
_DIFFERENT: Any = object()
Belongs = Callable[[str, Any], str | None]


class DamagedEntry(NamedTuple):
    """A damaged member of a table.

    * ``key``: its key; None if the key is damaged
    * ``value``: what is certain of its value; None if nothing is
    * ``fields``: names that the lost fields of the value may have; empty if the whole value is lost
    * ``text``: the damaged text
    """

    key: str | None
    value: Any
    fields: frozenset[str]
    text: str


class Partial(NamedTuple):
    """The readable part of a file. ``value`` includes the members in ``lost`` that have a key and
    a value.
    """

    value: dict[str, Any]
    lost: tuple[DamagedEntry, ...]


class _Segment(NamedTuple):
    """A part of the file from the start of a member to the start of the next. ``level``: number of
    objects around it. ``closes``: whether it only closes an object.
    """

    text: str
    level: int
    closes: bool


def sound_members(data: bytes, tables: Collection[str], belongs: Belongs) -> Partial | None:
    """Return the readable members of a file.

    Return None if the lines are not indented, or if nothing is readable after the damage.

    ``tables``: names of tables that the file may have.
    ``belongs``: returns the table of a member that shows by itself where it belongs.
    """
    segments = _segments(data.decode("utf-8", "surrogateescape"))
    return None if segments is None else _Reader(segments, tables, belongs).read()


def _segments(text: str) -> list[_Segment] | None:
    indents = re.findall(r"^([ \t]+)\"", text, re.MULTILINE)
    if not indents:
        return None
    unit = "\t" if "\t" in (indent[0] for indent in indents) else min(indents, key=len)
    # Where members of the first two levels begin, and where objects end.
    starts = [(0, 0, False)]
    for match in re.finditer(rf"^(?:({unit}{{1,2}})\"|({unit})?\}})", text, re.MULTILINE):
        if match[1] is not None:
            starts.append((match.start(), len(match[1]) // len(unit), False))
        elif match[2] is None or starts[-1][1] == 2:
            starts.append((match.start(), 1 if match[2] else 0, True))
    ends = [start for start, _, _ in starts[1:]] + [len(text)]
    return [_Segment(text[start:end], level, closes)
            for (start, level, closes), end in zip(starts, ends, strict=True) if end > start]


class _Reader:
    def __init__(self, segments: list[_Segment], tables: Collection[str],
                 belongs: Belongs) -> None:
        self._segments, self._tables, self._belongs = segments, tables, belongs
        self._value: dict[str, Any] = {}
        self._lost: list[DamagedEntry] = []
        self._table: str | None = None
        self._budget, self._corrected = _MAX_PARSED, 0

    def read(self) -> Partial | None:
        at, damaged, goes_on = 0, False, False
        while at < len(self._segments):
            if self._take(at):
                goes_on |= damaged
                at += 1
                continue
            end = at + 1
            while end < len(self._segments) and not self._take(end, only_look=True):
                end += 1
            damaged = True
            self._damaged(at, end)
            at = end
        return Partial(self._value, tuple(self._lost)) if goes_on else None

    def _follows(self, at: int, level: int) -> bool:
        """Return whether a member of this level begins at a segment."""
        return at < len(self._segments) and (
            self._segments[at].level == level and not self._segments[at].closes)

    def _take(self, at: int, *, only_look: bool = False) -> bool:
        """Take the members of an intact segment; return False if it is damaged."""
        segment = self._segments[at]
        text = segment.text.strip()
        if segment.level == 0:
            return text == "}" if segment.closes else text == "{"
        if segment.closes:
            if not only_look:
                self._table = None
            return text == "}," * self._follows(at + 1, 1) or text == "}"
        members: Any = None
        if segment.level == 1 and self._follows(at + 1, 2):
            header = config_json.strict("{" + text + "}}") if text.endswith("{") else None
            if isinstance(header, dict) and [*header.values()] == [{}]:
                if not only_look:
                    self._table = next(iter(header))
                    self._value.setdefault(self._table, {})
                return True
            return False
        members = _parsed(text, closed=False, more=self._follows(at + 1, segment.level))
        if members is None:
            return False
        if not only_look:
            self._add(members, segment.level)
        return True

    def _add(self, members: dict[str, Any], level: int) -> None:
        if level == 1:
            self._value.update(members)
            return
        for key, value in members.items():
            table = self._table or self._belongs(key, value)
            if table is None:
                self._lost.append(DamagedEntry(None, None, frozenset(), _shown(key)))
            else:
                self._value.setdefault(table, {})[key] = value

    # -- damage -----------------------------------------------------------------------------------

    def _damaged(self, at: int, end: int) -> None:
        text = "".join(segment.text for segment in self._segments[at:end])
        level = 1 if self._segments[at].closes else max(self._segments[at].level, 1)
        # An intact line with a table's name, before damage in the table's first member.
        first = _FIRST_LINE.match(text) if level == 1 and self._follows(end, 2) else None
        if first is not None and len(text) > first.end():
            self._table, level, text = first[1], 2, text[first.end():]
            self._value.setdefault(self._table, {})
        # A damaged line with a table's name: the file has only few tables.
        table, before = self._header(text) if self._follows(end, 2) else (None, text)
        if table is not None:
            if not _is_brackets(before):
                self._members(before, level, closed=level == 2, more=True)
            self._table = table
            self._value.setdefault(table, {})
        elif level == 2:
            closed = not self._follows(end, 2) and not (
                end < len(self._segments) and self._segments[end].level == 1
                and self._segments[end].closes)
            self._members(text, level, closed=closed, more=self._follows(end, 1 if closed else 2))
        elif not _is_brackets(text):
            self._members(text, level, closed=False, more=self._follows(end, level))

    def _header(self, text: str) -> tuple[str | None, str]:
        """Return (the table whose first line a text ends with, the text before); at most one byte
        of the line is wrong.
        """
        end = text.rstrip()
        for table in (*self._tables, _VERSION):
            for colon in (":", ": "):
                line = f'\n"{table}"{colon}{{'
                size = len(line) - 1
                tail = end[-size:]
                if len(tail) == size and _differences(tail, line[1:]) <= 1:
                    return table, end[:-size]
        return None, text

    def _named_at(self, text: str) -> str | None:
        """Return the table whose name a text begins with; at most one byte of it is wrong."""
        begin = text.lstrip()
        return next((table for table in self._tables if table not in self._value
                     and len(begin) > len(table) + 2
                     and _differences(begin[:len(table) + 2], f'"{table}"') <= 1), None)

    def _members(self, text: str, level: int, *, closed: bool, more: bool) -> None:
        """Add what is certain of damaged members. ``closed``: whether the end of their table is
        part of the text. ``more``: whether another member follows.
        """
        corrections = self._corrections(text, closed=closed, more=more)
        values = [value for value, _ in corrections]
        if not values:
            start = re.match(r'\s*"([^"\\\x00-\x1f]+)"\s*:', text)
            self._lost.append(DamagedEntry(start[1] if start else None, None, frozenset(),
                                            _shown(text)))
            self._table = None
            return
        places = {place for _, place in corrections}
        shown = _shown(_line(text, places.pop()) if len(places) == 1 else text)
        # Members whose key is certain.
        certain: dict[str, Any] = {}
        keys = set.intersection(*(set(value) for value in values))
        for key in sorted(keys):
            inner = [value[key] for value in values]
            common = _common(inner)
            if common is not _DIFFERENT:
                certain[key] = common
            if any(other != common for other in inner):
                self._lost.append(DamagedEntry(key, certain.get(key), _differing(inner), shown))
        # A member whose key is damaged.
        rest = [[value[key] for key in value.keys() - keys] for value in values]
        if any(rest):
            common = _common([inner[0] for inner in rest]) if all(
                len(inner) == 1 for inner in rest) else _DIFFERENT
            table = self._named_at(text) if level == 1 and isinstance(common, dict) else None
            if table is not None:
                self._value[table] = common
            else:
                self._lost.append(DamagedEntry(None, None if common is _DIFFERENT else common,
                                               frozenset(), shown))
        self._add(certain, level)
        if closed:
            self._table = None

    def _corrections(self, text: str, *, closed: bool,
                     more: bool) -> list[tuple[dict[str, Any], int]]:
        """Return (the members, the position) for each change of one byte that makes a text valid.

        The text itself is the only result if it is valid. Nothing is tried once a limit is
        reached.
        """
        value = _parsed(text, closed=closed, more=more)
        if value is not None:
            return [(value, 0)]
        bad = re.search("[\udc80-\udcff]", text)
        places = range(len(text)) if bad is None else (bad.start(),)
        self._budget -= len(places) * len(_TRIED) * len(text)
        self._corrected += 1
        if self._budget < 0 or self._corrected > _MAX_CORRECTED:
            return []
        corrections: list[tuple[dict[str, Any], int]] = []
        for place in places:
            for char in _TRIED:
                changed = f"{text[:place]}{char}{text[place + 1:]}"
                value = _parsed(changed, closed=closed, more=more)
                if value is not None:
                    corrections.append((value, place))
        return corrections


def _parsed(text: str, *, closed: bool, more: bool) -> dict[str, Any] | None:
    """Return the members in a text; None if the text is not exactly that.

    ``closed``: whether the bracket that ends their table is part of the text. ``more``: whether the
    text ends with a comma, because another member follows.
    """
    before = '{"":{' if closed else "{"
    value = config_json.strict(f"{before}{text}{_FOLLOWS if more else '}'}")
    if not isinstance(value, dict) or (more and value.pop("\0", None) != 0):
        return None
    if closed:
        value = value[""] if [*value] == [""] else None
    return value if isinstance(value, dict) else None


def _is_brackets(text: str) -> bool:
    """Return whether a text only opens or closes an object; at most one byte is wrong."""
    text = text.strip()
    return len(text) < _BRACKETS and (len(text) < 2 or text[0] in "{}" or text[1] == ",")


def _common(values: list[Any]) -> Any:
    """Return what is equal in all values; `_DIFFERENT` if nothing is."""
    first = values[0]
    if all(isinstance(value, dict) for value in values):
        inner = {key: _common([value[key] for value in values]) for key in first
                 if all(key in value for value in values)}
        return {key: value for key, value in inner.items() if value is not _DIFFERENT}
    same = all(type(value) is type(first) and value == first for value in values)
    return first if same else _DIFFERENT


def _differing(values: list[Any]) -> frozenset[str]:
    """Return the keys of those members that are not equal in all values."""
    if not all(isinstance(value, dict) for value in values):
        return frozenset()
    return frozenset(key for value in values for key in value
                     if any(key not in other or other[key] != value[key] for other in values))


def _differences(first: str, other: str) -> int:
    return sum(a != b for a, b in zip(first, other, strict=True))


def _line(text: str, place: int) -> str:
    return text[text.rfind("\n", 0, place) + 1:].partition("\n")[0]


def _shown(text: str) -> str:
    line = text.strip().rstrip(",")
    line = line.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    line = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)
    return line if len(line) <= _MAX_SHOWN else f"{line[:_MAX_SHOWN - 3]}..."
