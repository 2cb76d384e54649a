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
_CELL_LINES = 6  # a cell holds about so many full lines before it is cut

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
    """Stream ``rows`` as one table; returns how many.

    The first page settles the widths, within the terminal; longer text on a later page folds
    unless there is room. Numbers are never folded or cut: their columns grow when they must.
    """
    first, stream = peek(pages(rows))
    names = columns_of(first) if layout.columns is None else list(layout.columns)
    if not names or not first:
        return 0
    numeric = numeric_columns(first, names)
    if layout.title:
        sink.write(canvas.draw(Text(visible(layout.title), style=STYLES["title"])))
    headers = [visible(name) for name in names]
    widths: list[int] = []
    count = 0
    for page in stream:
        cells = page_cells(page, names, layout.render)
        natural = [max(_cell_width(line[i]) for line in cells) for i in range(len(names))]
        if not widths:
            natural = list(map(max, natural, map(cell_len, headers)))
            widths = fit(natural, numeric, canvas.width)
        else:
            grown = list(map(max, widths, natural))
            fits = _total(grown) <= canvas.width
            widths = [
                new if fits or number else old
                for old, new, number in zip(widths, grown, numeric, strict=True)
            ]
        parts = [] if count else [_header(canvas, headers, widths, numeric)]
        parts += [
            _line(line, widths, numeric, canvas, _row_styles(row, names, layout.styles))
            for row, line in zip(page, cells, strict=True)
        ]
        sink.write("".join(parts))
        sink.flush()
        count += len(page)
    return count


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _cell_width(text: str) -> int:
    # A body of megabytes need not be measured: no column becomes that wide.
    return cell_len(text) if len(text) < 4096 else 4096


def shorten(text: str, limit: int, mark: str = "…") -> str:
    """Cut ``text`` so that its folded cell stays small, and say how much is not shown."""
    return text if len(text) <= limit else cut(text, max(limit - 12, 8), mark)


def fit(natural: Sequence[int], numeric: Sequence[bool], width: int) -> list[int]:
    """Column widths whose sum with gaps is within ``width``, if text columns can give way.

    The widest text columns shrink first, none below twelve; when that does not suffice the
    table is wider than the terminal, which is better than cut numbers.
    """
    widths = list(natural)
    room = width - _GAP * (len(widths) - 1)
    while sum(widths) > room:
        shrinkable = [i for i, w in enumerate(widths) if not numeric[i] and w > _LEAST_WIDTH]
        if not shrinkable:
            break
        widest = max(shrinkable, key=lambda i: widths[i])
        rest = max((widths[i] for i in shrinkable if i != widest), default=_LEAST_WIDTH)
        over = sum(widths) - room
        widths[widest] = max(
            widths[widest] - over,
            rest if rest < widths[widest] else widths[widest] - 1,
            _LEAST_WIDTH,
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
    found = {i: styles[name](row.get(name)) for i, name in enumerate(names) if name in styles}
    return {i: style for i, style in found.items() if style}


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
