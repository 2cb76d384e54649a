"""Parts of a table: pages, columns, the text of a cell, column widths."""

from __future__ import annotations

import json
import math
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmqctl.output.escape import visible
from rmqctl.phrases import Joined, Phrase

if TYPE_CHECKING:
    from rmqctl.output.language import Language

Row = Mapping[str, Any]
#: Column -> a function that words a value for people.
Render = Mapping[str, Callable[[Any], str]]
#: Column -> a function from a value to a style name (good, warn, bad, dim, bold) or None.
Styles = Mapping[str, Callable[[Any], str | None]]

#: A producer yields this row to say "show what you have, the next row may take long" (``tail -f``).
FLUSH: Final[Row] = MappingProxyType({})


class Encoded(NamedTuple):
    """Rows that are already encoded as JSON in UTF-8, one per line. ``rows``: their number."""

    lines: bytes | memoryview
    rows: int


class RowLayout(NamedTuple):
    """The layout of rows (see `Output.rows`). Only the formats for people use the fields after
    ``columns``.
    """

    columns: Sequence[str] | None
    brief: Sequence[str] | None
    title: str | None
    render: Render | None = None
    styles: Styles | None = None
    language: Language | None = None

    def header(self, column: str) -> str:
        """Return the header text of a column."""
        return self.caption(column)

    def caption(self, text: str) -> str:
        """Return the displayed name of a column or table."""
        return text if self.language is None else self.language.caption(text)

    def say(self, value: Any) -> Any:
        """Return a text in the language of the output."""
        return value if self.language is None else self.language.say(value)

    def cell(self, column: str, value: Any) -> Any:
        """Return the value of a cell in the language of the output."""
        return value if self.language is None else self.language.cell(column, value)


_MAX_SENTENCE = 1000
"""Maximum number of characters of a sentence in a cell."""
PAGE_ROWS = 500
_PAGE_SECONDS = 0.5


def pages(
    rows: Iterable[Row], size: int = PAGE_ROWS, clock: Callable[[], float] = time.monotonic
) -> Iterator[list[Row]]:
    """Divide ``rows`` into pages of at most ``size`` rows. A page also ends at a FLUSH, and after
    half a second.

    At most one page is in memory, for any number of rows.
    """
    page: list[Row] = []
    started = clock()
    for row in rows:
        if row is not FLUSH:
            page.append(row)
            if len(page) < size and clock() - started < _PAGE_SECONDS:
                continue
        if page:
            yield page
            page = []
        started = clock()
    if page:
        yield page


def peek(stream: Iterator[list[Row]]) -> tuple[list[Row], Iterator[list[Row]]]:
    """Return the first page of a stream (empty for no rows), and an iterator over all pages."""
    first = next(stream, [])
    return first, chain([first], stream) if first else stream


def columns_of(page: Sequence[Row]) -> list[str]:
    """Return all keys of the rows of ``page``, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in page for key in row))


def refuse_bytes(value: Any) -> None:
    """Raise TypeError for bytes: the command must decide how to show them."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("a row contains bytes; commands must pass text")


def plain_value(value: Any) -> Any:
    """Convert a mapping, a numpy scalar or a set for the JSON encoder. The encoder calls this
    function for values of unknown types.
    """
    refuse_bytes(value)
    if isinstance(value, Mapping):
        return dict(value)
    item = getattr(value, "item", None)
    if item is not None:  # a numpy scalar
        return item()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a row contains a {type(value).__name__}, which no output format supports")


def compact_json(value: Any) -> str:
    """Return a nested value as JSON without spaces, for a cell; non-ASCII characters are
    unchanged.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=plain_value)


def simple(value: Any) -> int | float | str:
    """Convert a number, a Boolean or None for a text format. Finite numbers are unchanged; None,
    NaN and infinities become "".
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if value is not None and math.isfinite(value) else ""


def cell_text(value: Any) -> str:
    """Return a value as the text of a table cell: on one line, and safe for a terminal."""
    if isinstance(value, str):
        return visible(value)
    if value is None or isinstance(value, int | float):
        return str(simple(value))
    if isinstance(value, list | tuple) and all(isinstance(v, str | int) for v in value):
        return visible(", ".join(map(str, value)))
    refuse_bytes(value)
    return visible(compact_json(value))


_ADDRESSES = (
    r".*(offset|_id|_crc|hash|flag|code|magic|port|version|timestamp)|"
    r"(id|pid|position|value|hex|number|record|crc|begin|end|epoch|term)")
"""Names of columns with ids or numbers that users copy; these are shown without thousands
separators.
"""


def number_text(name: str, value: Any) -> str:
    """Return the text of a value in the field ``name``: counts and sizes with thousands separators,
    all other values as in `cell_text`.
    """
    if (isinstance(value, int) and not isinstance(value, bool)
            and not re.fullmatch(_ADDRESSES, name)):
        return f"{value:,}"
    return cell_text(value)


def not_shown(columns: Sequence[str]) -> Phrase:
    """Return the note below a table about columns that do not fit."""
    return Phrase("columns not shown: {columns} (-o json has them)", columns=Joined(", ", columns))


def page_cells(page: Iterable[Row], columns: Sequence[str], layout: RowLayout) -> list[list[str]]:
    """Return the texts of the cells of a page, by row. ``layout.render`` may contain functions that
    format the values of a column.
    """
    show = [(name, (layout.render or {}).get(name)) for name in columns]
    return [
        [
            number_text(name, layout.cell(name, row.get(name)))
            if special is None or row.get(name) is None
            else visible(layout.cell(name, special(row[name])))
            for name, special in show
        ]
        for row in page
    ]


def numeric_columns(page: Sequence[Row], columns: Sequence[str]) -> list[bool]:
    """Return, for each column, whether it contains only numbers. Such columns are right-aligned and
    never cut.
    """
    return [
        any(row.get(name) is not None for row in page)
        and all(
            isinstance(value := row.get(name), int | float) and not isinstance(value, bool)
            for row in page
            if row.get(name) is not None
        )
        for name in columns
    ]


def cut(text: str, limit: int, mark: str = "…") -> str:
    """Shorten data to about ``limit`` characters and append the number of omitted characters.

    A text with spaces counts as a sentence, which is cut only if it is extremely long.
    """
    if " " in text[:limit]:
        limit = max(limit, _MAX_SENTENCE)
    if len(text) <= limit:
        return text
    return f"{text[:limit]}{mark}(+{len(text) - limit})"


def display_width(text: str) -> int:
    """Return the width of ``text`` in terminal columns: a wide East Asian character has two, a
    combining character none.
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return ``text`` padded to ``width`` terminal columns, left- or ``right``-aligned."""
    blanks = " " * (width - display_width(text))
    return blanks + text if right else text + blanks


_UNITS = ("\uff08*(?:[\u1100-\uff07\uff09-\uffef]|[^\u1100-\uffef]+)"
          "[\u3001\u3002\uff01\uff09\uff0c\uff1a\uff1b\uff1f]*")


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """Fold ``text`` into lines of at most ``width`` columns. All lines after the first begin with
    ``indent``.

    Lines end between words and between East Asian characters, but not before East Asian commas and
    full stops. A word that is longer than a line is broken.
    """
    start = text.lstrip(" ")
    lines, line = [], " " * (len(text) - len(start))
    for word in start.split(" "):
        units = [word] if word.isascii() else re.findall(_UNITS, word)
        for number, whole in enumerate(units):
            unit = whole
            glue = "" if number or not line.strip() else " "
            if line.strip() and display_width(line + glue + unit) > width:
                lines.append(line)
                line, glue = indent, ""
            while display_width(line + glue + unit) > width and len(unit) > 1:
                head = _head_of(unit, width - display_width(line + glue))
                lines.append(line + glue + head)
                unit, line, glue = unit[len(head):], indent, ""
            line += glue + unit
    return [*lines, line] if line else lines


def _head_of(word: str, room: int) -> str:
    """Return the longest prefix of a word that fits into ``room`` columns, at least one character.
    If the second half of the prefix contains a slash, the result ends after the slash.
    """
    fits = 1
    while fits < len(word) and display_width(word[: fits + 1]) <= room:
        fits += 1
    slash = word.rfind("/", fits // 2, fits)
    return word[: slash + 1] if slash > 0 else word[:fits]


_SHELL_WORD = r"""(?:'[^']*'|"[^"]*"|[^\s'"])+"""


def folded_command(text: str, width: int) -> list[str]:
    """Return a command in several lines that a shell reads as one line.

    All lines but the last end with a backslash. Lines end between words, never within quotes. A
    long word without quotes is broken.
    """
    if display_width(text) <= width:
        return [text]
    lines, line = [], " " * (len(text) - len(text.lstrip(" ")))
    for whole in re.findall(_SHELL_WORD, text):
        word = whole
        glue = " " if line.strip() else ""
        if line.strip() and display_width(line + glue + word) > width - 2:
            lines.append(f"{line} \\")
            line, glue = "  ", ""
        while display_width(line + glue + word) > width - 2 and not {*word} & {*"'\"\\"}:
            head = _head_of(word, width - 1 - display_width(line))
            lines.append(f"{line}{head}\\")
            word, line = word[len(head):], ""
        line += glue + word
    return [*lines, line]
