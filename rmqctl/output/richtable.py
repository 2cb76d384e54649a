"""Tables on a terminal, drawn by rich, page by page. Imported only when one is drawn.

rich renders into a string which then goes through the sink like everything else: data is never
taken for markup, and a vanished reader is handled in one place.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from rmqctl.output.cells import (
    Layout,
    Row,
    Styles,
    columns_of,
    cut,
    numeric_columns,
    page_cells,
    pages,
    peek,
)
from rmqctl.output.escape import visible

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from rmqctl.output.streams import Sink

_GAP = 2  # blank columns between two table columns
_LEAST_WIDTH = 12  # a text column is not made narrower than this to fit the terminal
_CELL_LINES = 6  # a cell has at most about so many lines: data is cut, sentences need more room
_LONGEST_WORD = 40  # longer ones are data, and may be broken
_NAMES = frozenset({"file", "target", "path", "source", "folder", "store", "structure", "topic"})
"""Columns whose words are copied from the screen: never broken."""
_DATA = frozenset({"body"})

#: What commands may say of a text; the look is decided here.
STYLES = {
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "dim": "dim",
    "bold": "bold",
    "title": "bold cyan",
    "key": "cyan",
}


# SIMPLE_HEAD without a Unicode rule; rich's own substitute would draw vertical bars.
_ASCII_BOX = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)

_FOLDER = Console(file=io.StringIO(), width=80)


class _Paper(io.StringIO):
    """A string to draw on that tells rich the encoding of the real stream (for box characters)."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in io
        return self._encoding


@dataclass(frozen=True)
class Canvas:
    """How to draw for one stream: width in columns, colour or not, and its encoding."""

    width: int
    colour: bool
    encoding: str

    @property
    def unicode(self) -> bool:
        """Whether box drawing and block characters can be shown."""
        return self.encoding.lower().replace("-", "").startswith("utf")

    def paint(self, text: str, style: str) -> str:
        """``text`` in one of :data:`STYLES`, as it is without colour."""
        if not self.colour or not text:
            return text
        return Style.parse(STYLES[style]).render(text, color_system=ColorSystem.STANDARD)

    def draw(self, *things: object, width: int | None = None) -> str:
        """Render rich objects to text with escape sequences (none without colour)."""
        paper = _Paper(self.encoding)
        console = Console(
            file=paper,
            width=width or self.width,
            force_terminal=self.colour,
            no_color=not self.colour,
            color_system="auto" if self.colour else None,
            highlight=False,
            markup=False,
            emoji=False,
        )
        for thing in things:
            console.print(thing, soft_wrap=isinstance(thing, Text))
        return paper.getvalue()


def write_rich_table(sink: Sink, canvas: Canvas, rows: Iterable[Row], layout: Layout) -> int:
    """Stream ``rows`` as one table, never wider than the terminal; returns how many.

    The first page settles the widths; longer text on a later page folds unless there is room.
    Numbers, names and words are neither broken nor cut. Where that leaves too little room, each
    row is a list of its values below each other, from that page on.
    """
    first, stream = peek(pages(rows))
    names = columns_of(first) if layout.columns is None else list(layout.columns)
    if not names or not first:
        return 0
    numeric = numeric_columns(first, names)
    if layout.title:
        sink.write(canvas.draw(Text(visible(layout.title), style=STYLES["title"])))
    headers = [visible(layout.header(name)) for name in names]
    widths: list[int] | None = []
    count = 0
    for page in stream:
        cells = page_cells(page, names, layout)
        natural = [max(_cell_width(line[i]) for line in cells) for i in range(len(names))]
        least = [natural[i] if number else max(_least_width(name, line[i]) for line in cells)
                 for i, (name, number) in enumerate(zip(names, numeric, strict=True))]
        if widths is not None:
            widths = _settled(widths, list(map(max, natural, map(cell_len, headers))),
                              list(map(max, least, map(cell_len, headers))), cells, canvas.width)
        styles = [_row_styles(row, names, layout.styles) for row in page]
        if widths is None:
            parts = [_stacked(headers, line, canvas, style)
                     for line, style in zip(cells, styles, strict=True)]
        else:
            parts = [] if count else [_header(canvas, headers, widths, numeric)]
            parts += [_line(line, widths, numeric, canvas, style)
                      for line, style in zip(cells, styles, strict=True)]
        sink.write("".join(parts))
        sink.flush()
        count += len(page)
    return count


def _settled(before: list[int], natural: list[int], least: list[int],
             cells: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """The widths for a page after one of the widths ``before``; None where the page does not fit,
    or a sentence would run down a narrow column.
    """
    if before:
        natural = list(map(max, before, natural))
        least = list(map(max, before, least)) if _total(natural) > width else natural
    widths = fit(natural, least, width)
    if _total(widths) > width:
        return None
    for line in cells:
        for text, room in zip(line, widths, strict=True):
            if " " in text and _cell_width(text) > room * _CELL_LINES:
                return None
    return widths


def _least_width(name: str, text: str) -> int:
    """The narrowest column in which no word of a text is broken that should not be."""
    if name in _DATA or not text:
        return _LEAST_WIDTH
    widest = max((_cell_width(word) for word in text.split()), default=0)
    if widest > _LONGEST_WORD and name not in _NAMES:
        widest = max((length for length in map(_cell_width, text.split())
                      if length <= _LONGEST_WORD), default=0)
    return max(widest, min(_LEAST_WIDTH, _cell_width(text)))


def _stacked(headers: Sequence[str], cells: Sequence[str], canvas: Canvas,
             styles: Mapping[int, str]) -> str:
    """A row as its values below each other, and a blank line; values that are empty are left
    out.
    """
    wide = max(map(cell_len, headers))
    room = max(canvas.width - wide - _GAP, _LEAST_WIDTH)
    mark = "…" if canvas.unicode else "..."
    lines = []
    for column, (name, text) in enumerate(zip(headers, cells, strict=True)):
        parts = _fold(text, room, mark) if text else []
        if len(parts) > 1 and " " not in text and cell_len(text) < canvas.width:
            lines.append(canvas.paint(name, "key") + "\n")  # a long name has a line of its own
            lines.append(f" {text}\n")
            continue
        if text.isdigit():
            parts = [text]
        for number, part in enumerate(parts):
            label = "" if number else name
            shown = canvas.paint(part, styles[column]) if column in styles else part
            head = canvas.paint(label, "key") + " " * (wide - cell_len(label) + _GAP)
            lines.append(f"{head}{shown}".rstrip(" ") + "\n")
    return "".join(lines) + "\n"


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _cell_width(text: str) -> int:
    # A body of megabytes need not be measured: no column becomes that wide.
    return cell_len(text) if len(text) < 4096 else 4096


def shorten(text: str, limit: int, mark: str = "…") -> str:
    """Cut ``text`` so that its folded cell stays small, and say how much is not shown."""
    return text if len(text) <= limit else cut(text, max(limit - 12, 8), mark)


def fit(natural: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Column widths between ``least`` and ``natural`` whose sum with gaps is within ``width``.

    The widest columns that can give way shrink first. Wider than ``width`` where the least does
    not fit.
    """
    widths = list(natural)
    room = width - _GAP * (len(widths) - 1)
    while sum(widths) > room:
        shrinkable = [i for i, w in enumerate(widths) if w > least[i]]
        if not shrinkable:
            break
        widest = max(shrinkable, key=lambda i: widths[i])
        rest = max((widths[i] for i in shrinkable if i != widest), default=0)
        over = sum(widths) - room
        alike = sum(widths[i] == widths[widest] for i in shrinkable)
        widths[widest] = max(
            widths[widest] - over,
            rest if rest < widths[widest] else widths[widest] - max(over // alike, 1),
            least[widest],
        )
    return widths


def _header(
    canvas: Canvas, names: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]
) -> str:
    """The header and the rule below it."""
    table = Table(
        box=box.SIMPLE_HEAD if canvas.unicode else _ASCII_BOX,
        show_edge=False,
        pad_edge=False,
        padding=(0, _GAP - 1, 0, 0),  # the box adds one blank between columns itself
        header_style="bold",
    )
    for name, width, number in zip(names, widths, numeric, strict=True):
        justify: JustifyMethod = "right" if number else "left"
        table.add_column(
            Text(name), justify=justify, min_width=width, max_width=width, overflow="fold"
        )
    return canvas.draw(table, width=max(_total(widths), canvas.width))


def _row_styles(row: Row, names: Sequence[str], styles: Styles | None) -> dict[int, str]:
    if not styles:
        return {}
    row_styles = {i: styles[name](row.get(name)) for i, name in enumerate(names) if name in styles}
    return {i: style for i, style in row_styles.items() if style}


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool], canvas: Canvas,
          styles: Mapping[int, str]) -> str:
    """One row, on several lines where a cell folds.

    rich lays out a whole table at some 50 microseconds a cell; a listing has too many for that,
    so only a cell that must fold is laid out by it.
    """
    mark = "…" if canvas.unicode else "..."
    folded = [_fold(text, width, mark) for text, width in zip(cells, widths, strict=True)]
    lines = []
    for level in range(max(map(len, folded))):
        parts = []
        for column, (texts, width) in enumerate(zip(folded, widths, strict=True)):
            number = numeric[column]
            text = texts[level] if level < len(texts) else ""
            pad = " " * (width - cell_len(text))
            if column in styles:
                text = canvas.paint(text, styles[column])
            parts.append(pad + text if number else text + pad)
        lines.append((" " * _GAP).join(parts).rstrip(" ") + "\n")
    return "".join(lines)


def _fold(text: str, width: int, mark: str) -> list[str]:
    text = shorten(text, width * _CELL_LINES, mark)
    if cell_len(text) <= width:
        return [text]
    lines = Text(text).wrap(_FOLDER, width, justify="left", overflow="fold")
    return [line.plain.rstrip(" ") for line in lines]
