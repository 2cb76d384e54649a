"""Pages for people: headings, pairs, tables, text.

A command writes to a :class:`Human`, which formats the page for a terminal, a file or Markdown.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rmqctl.output.cells import (
    Render,
    Row,
    RowLayout,
    Styles,
    columns_of,
    cut,
    display_width,
    folded,
    folded_command,
    not_shown,
    number_text,
    numeric_columns,
    padded,
    page_cells,
    pages,
    peek,
)
from rmqctl.output.escape import markdown_text, visible, visible_lines
from rmqctl.output.fitting import (
    GAP,
    TableFit,
    fitted,
    header_of,
    lines_of,
    plain_line,
    refitted,
    total,
)
from rmqctl.output.language import Language
from rmqctl.output.streams import WriterTarget, can_encode, wants_colour

if TYPE_CHECKING:
    from rmqctl.output.richtable import Canvas
    from rmqctl.output.streams import Sink

_MAX_VALUE = 2000
_MIN_ROOM = 30
"""Minimum width of a value next to its name; on a narrower terminal the value gets its own line."""
_UNICODE_SAMPLE = "…─│█▁"

# Longest text shown in one cell; what is left out is counted in the cell. The data formats
# (json, jsonl, csv, tsv) never cut.
_CELL_LIMIT = {"plain": 200, "markdown": 500}
_TABULATE = {"plain": "plain", "markdown": "github"}
_HEADER_LINES = {"plain": 1, "markdown": 2}

# tabulate makes a column at least two wider than its header.
_HEADER_PADDING = 2


class Human(ABC):
    """A page for people, to which a command writes.

    ``width``: in terminal columns.
    ``unicode``: whether block and box characters can be shown.
    ``colour``: whether styles have an effect.
    ``every``: whether to list all of many similar entries.
    """

    def __init__(self, sink: Sink, *, width: int, unicode: bool, language: Language | None,
                 limit: int | None = None) -> None:
        self._sink = sink
        self._limit = limit
        self._language = language or Language()
        self._started = False
        self.every = False
        self.width = width
        self.unicode = unicode
        self.colour = False
        self.mark = "…" if unicode else "..."

    def heading(self, text: str) -> None:
        """Start a section with a heading."""
        self._gap()
        self._heading(visible(self._language.caption(text)))

    def pairs(self, mapping: Mapping[str, Any], *, styles: Mapping[str, str] | None = None) -> None:
        """Write names and values, one pair per line. ``styles``: the styles of some values, by name
        of the value.
        """
        self._started = True
        texts = {
            visible(self._language.caption(key)): cut(
                number_text(key, self._language.value(key, value)), _MAX_VALUE, self.mark)
            for key, value in mapping.items()
        }
        if texts:
            self._pairs(texts, styles or {})

    def table(self, rows: Iterable[Row], columns: Sequence[str] | None = None,
              title: str | None = None, *, render: Render | None = None,
              styles: Styles | None = None) -> int:
        """Write rows as a table while they are produced; return their number.

        ``render`` and ``styles``: see `Output.rows`.
        """
        if title:
            self._gap()
        self._started = True
        return self._table(rows, RowLayout(columns, None, title, render, styles, self._language))

    def text(self, text: str, style: str | None = None) -> None:
        """Write lines unchanged (a sentence, a plot); ``style``: good, warn, bad, dim, bold."""
        self._started = True
        self._text(visible_lines(self._language.text(text)), style)

    def blank(self) -> None:
        """Write an empty line."""
        self._sink.write("\n")

    def _lines(self, text: str) -> str:
        """Return a text folded to the width of the page. A command is folded so that it can still
        be copied.
        """
        if self._limit is None:
            return text
        return "\n".join(part for line in text.split("\n") for part in self._folded(line))

    def _folded(self, line: str) -> list[str]:
        limit = self._limit
        words = line.lstrip(" ")
        if limit is None or display_width(line) <= limit:
            return [line]
        if words.startswith("rmqctl "):
            return folded_command(line, limit)
        indent = " " * (len(line) - len(words) + (2 if words.startswith("- ") else 0))
        return folded(line, limit, indent)

    def _pair_lines(self, texts: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
        """Yield, for each line of the pairs: the name, the text of the name column (the name or
        blanks), and a part of the value.
        """
        width = max(map(display_width, texts))
        room = None if self._limit is None else self._limit - width - 2
        for key, value in texts.items():
            parts = [value]
            if room is not None and display_width(value) > room:
                parts = folded(value, max(room, 1)) or [""]
                if room < _MIN_ROOM or (" " not in value and self._limit is not None
                                        and display_width(value) < self._limit):
                    # A long name, or a value that does not fit beside it, gets its own line.
                    yield key, key, ""
                    for part in folded(f" {value}", self._limit or room, " "):
                        yield key, "", part
                    continue
            for number, part in enumerate(parts):
                yield key, padded("" if number else key, width) + "  ", part

    def _gap(self) -> None:
        if self._started:
            self._sink.write("\n")
        self._started = True

    @abstractmethod
    def _table(self, rows: Iterable[Row], layout: RowLayout) -> int: ...

    @abstractmethod
    def _heading(self, text: str) -> None: ...

    @abstractmethod
    def _pairs(self, texts: Mapping[str, str], styles: Mapping[str, str]) -> None: ...

    @abstractmethod
    def _text(self, text: str, style: str | None) -> None: ...


class PlainHuman(Human):
    """A page for files and pipes: aligned text without colours."""

    style = "plain"

    def _table(self, rows: Iterable[Row], layout: RowLayout) -> int:
        if layout.title:
            self._title(visible(layout.caption(layout.title)))
        return _write_tabulated(self._sink, self.style, rows, layout, self.mark, self._limit)

    def _title(self, text: str) -> None:
        self._sink.write(f"{text}\n")

    def _heading(self, text: str) -> None:
        self._sink.write(f"{text}\n{'-' * display_width(text)}\n")

    def _pairs(self, texts: Mapping[str, str], styles: Mapping[str, str]) -> None:
        for _, name, part in self._pair_lines(texts):
            self._sink.write(f"{name}{part}".rstrip() + "\n")

    def _text(self, text: str, style: str | None) -> None:
        self._sink.write(f"{self._lines(text)}\n")


class MarkdownHuman(PlainHuman):
    """A page for a report or a ticket: GitHub-flavoured Markdown, with lines of any length."""

    style = "markdown"

    def _title(self, text: str) -> None:
        self._sink.write(f"**{markdown_text(text)}**\n\n")

    def _heading(self, text: str) -> None:
        self._sink.write(f"## {markdown_text(text)}\n\n")

    def _pairs(self, texts: Mapping[str, str], styles: Mapping[str, str]) -> None:
        for key, value in texts.items():
            self._sink.write(f"- **{markdown_text(key)}**: {markdown_text(value)}".rstrip() + "\n")

    def _text(self, text: str, style: str | None) -> None:
        if "\n" in text:  # a plot or a dump: only a fence keeps its columns
            self._sink.write(f"```\n{text}\n```\n")
        else:
            self._sink.write(f"{markdown_text(text)}\n")


class RichHuman(Human):
    """A page for a terminal: colours and rich tables."""

    def __init__(self, sink: Sink, canvas: Canvas, language: Language | None) -> None:
        super().__init__(sink, width=canvas.width, unicode=canvas.unicode, language=language,
                         limit=canvas.width)
        self._canvas = canvas
        self.colour = canvas.colour

    def _table(self, rows: Iterable[Row], layout: RowLayout) -> int:
        from rmqctl.output.richtable import write_rich_table

        return write_rich_table(self._sink, self._canvas, rows, layout)

    def _heading(self, text: str) -> None:
        self._styled(text, "title")

    def _pairs(self, texts: Mapping[str, str], styles: Mapping[str, str]) -> None:
        from rich.text import Text

        from rmqctl.output.richtable import STYLES

        self._sink.write(self._canvas.draw(*(
            Text.assemble((name, STYLES["key"]), (part, STYLES.get(styles.get(key, ""), "")))
            for key, name, part in self._pair_lines(texts))))

    def _text(self, text: str, style: str | None) -> None:
        self._styled(self._lines(text), style)

    def _styled(self, text: str, style: str | None) -> None:
        from rich.text import Text

        from rmqctl.output.richtable import STYLES

        self._sink.write(self._canvas.draw(Text(text, style=STYLES.get(style or "", ""))))


def describe(human: Human, document: Mapping[str, Any]) -> None:
    """Show an object that has no specific page: scalars as pairs, lists of objects as tables."""
    plain: dict[str, Any] = {}
    tables: dict[str, list[Mapping[str, Any]]] = {}
    for key, value in document.items():
        if (
            isinstance(value, list | tuple)
            and value
            and all(isinstance(item, Mapping) for item in value)
        ):
            tables[key] = list(value)
        else:
            plain[key] = value
    human.pairs(plain)
    for key, rows in tables.items():
        human.table(rows, None, key)


# -- tables without a terminal, laid out by tabulate, page by page --------------------------------


def _write_tabulated(sink: Sink, style: str, rows: Iterable[Row], layout: RowLayout, mark: str,
                     limit: int | None) -> int:
    """Stream ``rows`` as a ``plain`` or ``markdown`` table; return their number.

    The header is printed once. The first page determines the widths of the columns. A later page
    with longer cells widens the columns; widths never shrink. From the first page with lines longer
    than ``limit`` on, pages are fitted to ``limit``.
    """
    # The first page decides the columns and which of them are right-aligned.
    first, stream = peek(pages(rows))
    names = columns_of(first) if layout.columns is None else list(layout.columns)
    if not names or not first:
        return 0
    numeric = numeric_columns(first, names)
    headers = [_cell(visible(layout.header(name)), style) for name in names]
    widths = [0] * len(names)
    count = 0
    narrow: _Narrow | None = None
    for page in stream:
        cells = [
            [_cell(cut(text, _CELL_LIMIT[style], mark), style) for text in line]
            for line in page_cells(page, names, layout)
        ]
        # Widths only grow, so that most pages have the same layout.
        for column in range(len(names)):
            widest = max(display_width(line[column]) for line in cells)
            widths[column] = max(widths[column], widest,
                                 display_width(headers[column]) + _HEADER_PADDING)
        # Switch to the narrow layout at the first page that is too wide, and keep it.
        if narrow is None and limit is not None and _is_wider(widths, cells, headers, limit):
            narrow = _Narrow(names, headers, numeric, limit, mark)
        if narrow is not None:
            lines = narrow.lines(cells)
        else:
            lines = _layout(style, headers, cells, widths, numeric)
            if count:
                del lines[: _HEADER_LINES[style]]
        count += len(page)
        sink.write("".join(f"{line.rstrip()}\n" for line in lines))
        sink.flush()
    # Name the columns that the narrow layout omitted.
    if narrow is not None and narrow.hidden:
        text = layout.say(not_shown([headers[column] for column in sorted(narrow.hidden)]))
        sink.write("".join(f"{line}\n" for line in folded(text, narrow.width)))
    return count


def _is_wider(widths: Sequence[int], cells: Sequence[Sequence[str]], headers: Sequence[str],
              limit: int) -> bool:
    """Return whether a page of a plain table has lines that are wider than ``limit``."""
    if total(widths) <= limit:
        return False
    end = sum(widths[:-1]) + GAP * (len(widths) - 1)  # the last column is not filled up
    return end + max(display_width(headers[-1]), *(
        display_width(line[-1]) for line in cells)) > limit or any(
        width > limit for width in widths)


class _Narrow:
    """A plain table that is fitted to a width, page by page. ``hidden``: columns that do not
    fit.
    """

    def __init__(self, names: Sequence[str], headers: Sequence[str], numeric: Sequence[bool],
                 width: int, mark: str) -> None:
        self._names, self._headers, self._numeric = names, headers, numeric
        self.width, self._mark = width, mark
        self._fit: TableFit | None = None
        self._started = False
        self.hidden: set[int] = set()

    def lines(self, cells: Sequence[Sequence[str]]) -> list[str]:
        """Return the lines of a page; the first page begins with the header."""
        if not self._started:
            self._fit = fitted(self._names, self._headers, cells, self._numeric, self.width)
        elif self._fit is not None:
            self._fit = refitted(self._fit, self._names, self._headers, cells, self._numeric,
                                 self.width)
        if self._fit is None:
            self._started = True
            return [line for row in cells for line in self._stacked(row)]
        lines = [] if self._started else header_of(self._headers, self._fit, self._numeric)
        self._started = True
        self.hidden |= {column for column in self._fit.dropped if any(row[column] for row in cells)}
        for row in cells:
            lines += [plain_line(parts, self._numeric) for parts in lines_of(
                self._names, row, self._fit, self.width, self._mark)]
        return lines

    def _stacked(self, row: Sequence[str]) -> list[str]:
        lines = []
        for name, text in zip(self._headers, row, strict=True):
            lines += folded(f"{name}  {text}", self.width, "  ") if text else []
        return [*lines, ""]


def _cell(text: str, style: str) -> str:
    return markdown_text(text) if style == "markdown" else text


def _tabulate() -> Any:
    """Import tabulate. It reads its own version first, and the modules for that take longer to load
    than tabulate itself.
    """
    name = "importlib.metadata"
    if "tabulate" in sys.modules or name in sys.modules:
        return import_module("tabulate")
    stub = ModuleType(name)
    vars(stub).update(version=str, PackageNotFoundError=LookupError)
    sys.modules[name] = stub
    try:
        return import_module("tabulate")
    finally:
        del sys.modules[name]


def _layout(style: str, headers: Sequence[str], cells: Sequence[Sequence[str]],
            widths: Sequence[int], numeric: Sequence[bool]) -> list[str]:
    tabulate = _tabulate()
    # The module for wide characters takes longer to load than most tables to lay out. The mark of a
    # cut is the most frequent other character.
    tabulate.WIDE_CHARS_MODE = not all(
        text.replace("…", "").isascii() for line in (headers, *cells) for text in line)
    # A header padded to the width makes tabulate keep that width on every page.
    tops = [
        padded(header, width - _HEADER_PADDING, right=right)
        for header, width, right in zip(headers, widths, numeric, strict=True)
    ]
    text: str = tabulate.tabulate(
        cells,
        headers=tops,
        tablefmt=_TABULATE[style],
        disable_numparse=True,
        colalign=["right" if right else "left" for right in numeric],
    )
    return text.split("\n")


# -- the formats of this module -------------------------------------------------------------------


class HumanWriter:
    """Writer of a format for people: a table for rows, a page for a document."""

    def __init__(self, name: str, target: WriterTarget) -> None:
        self._name, self._target = name, target

    def page(self) -> Human:
        page = self._page()
        page.every = self._target.every
        return page

    def _page(self) -> Human:
        target = self._target
        if self._name == "table":
            from rmqctl.output.richtable import Canvas

            return RichHuman(target.sink, Canvas(
                target.width, wants_colour(target.stream, target.environ), target.sink.encoding),
                target.language)
        unicode = can_encode(target.stream, _UNICODE_SAMPLE)
        if self._name == "markdown":
            return MarkdownHuman(target.sink, width=target.width, unicode=unicode,
                                 language=target.language)
        return PlainHuman(target.sink, width=target.width, unicode=unicode,
                          language=target.language, limit=target.limit)

    def rows(self, rows: Iterable[Row], layout: RowLayout) -> int:
        columns = layout.columns if layout.brief is None else layout.brief
        return self.page().table(rows, columns, layout.title, render=layout.render,
                                 styles=layout.styles)

    def document(self, document: Mapping[str, Any],
                 human: Callable[[Human], None] | None) -> None:
        if human is None:
            describe(self.page(), document)
        else:
            human(self.page())


def writer(name: str, target: WriterTarget) -> HumanWriter:
    """Return the writer of ``table``, ``plain`` or ``markdown``."""
    return HumanWriter(name, target)
