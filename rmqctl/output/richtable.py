"""Tables on a terminal, coloured by rich, page by page. Imported only when a table is drawn.

`fitting` determines the layout for the width of the terminal. rich renders to a string, which is
written to the sink like all other output. Data is therefore never interpreted as markup. Only the
sink has to handle the exit of the reader.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.cells import (
    Row,
    RowLayout,
    Styles,
    columns_of,
    display_width,
    folded,
    not_shown,
    numeric_columns,
    page_cells,
    pages,
    peek,
)
from rmqctl.output.escape import visible
from rmqctl.output.fitting import (
    GAP,
    MIN_WIDTH,
    TableFit,
    fitted,
    fold_cell,
    header_of,
    lines_of,
    plain_line,
    refitted,
    total,
)

if TYPE_CHECKING:
    from rmqctl.output.streams import Sink

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


class _Paper(io.StringIO):
    """A buffer for rich's output. The buffer reports the encoding of the real stream: this encoding
    determines whether box characters can be used.
    """

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in io
        return self._encoding


@dataclass(frozen=True)
class Canvas:
    """Settings for drawing on a stream. ``width``: in terminal columns; ``colour``: whether to use
    colours.
    """

    width: int
    colour: bool
    encoding: str

    @property
    def unicode(self) -> bool:
        """Return whether box drawing and block characters can be shown."""
        return self.encoding.lower().replace("-", "").startswith("utf")

    def paint(self, text: str, style: str) -> str:
        """Return ``text`` in a style of :data:`STYLES`; unchanged without colour."""
        if not self.colour or not text or not style:
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


def write_rich_table(sink: Sink, canvas: Canvas, rows: Iterable[Row], layout: RowLayout) -> int:
    """Stream ``rows`` as one table, never wider than the terminal; return their number.

    The first page determines the columns and their widths; long texts on later pages are folded.
    Numbers, names and words are never broken or cut. Columns that do not fit are omitted and listed
    below the table. If fewer than two columns fit on a page, its rows and all later rows are shown
    as lists of their values.
    """
    # The first page decides the columns.
    first, stream = peek(pages(rows))
    names = columns_of(first) if layout.columns is None else list(layout.columns)
    if not names or not first:
        return 0
    numeric = numeric_columns(first, names)
    if layout.title:
        sink.write(canvas.draw(Text(visible(layout.caption(layout.title)), style=STYLES["title"])))
    headers = [visible(layout.header(name)) for name in names]
    fit: TableFit | None = None
    hidden: dict[int, None] = {}
    count = 0
    for page in stream:
        cells = page_cells(page, names, layout)
        # Later pages may need wider columns; once the table no longer fits, rows are stacked.
        if not count:
            fit = fitted(names, headers, cells, numeric, canvas.width)
        elif fit is not None:
            fit = refitted(fit, names, headers, cells, numeric, canvas.width)
        styles = [_row_styles(row, names, layout.styles) for row in page]
        if fit is None:
            parts = [_stacked(names, headers, line, canvas, style)
                     for line, style in zip(cells, styles, strict=True)]
        else:
            parts = [] if count else [_header(canvas, headers, fit, numeric)]
            parts += [_line(names, line, fit, numeric, canvas, style)
                      for line, style in zip(cells, styles, strict=True)]
            hidden |= {column: None for column in fit.dropped
                       if any(line[column] for line in cells)}
        sink.write("".join(parts))
        sink.flush()
        count += len(page)
    # Name the omitted columns in which some row had a value.
    if hidden:
        text = layout.say(not_shown([headers[column] for column in sorted(hidden)]))
        sink.write(canvas.draw(Text("\n".join(folded(text, canvas.width)), style=STYLES["dim"])))
    return count


def _stacked(names: Sequence[str], headers: Sequence[str], cells: Sequence[str], canvas: Canvas,
             styles: Mapping[int, str]) -> str:
    """Return a row as a list of names with their values, followed by a blank line. Empty values are
    omitted.
    """
    wide = max(map(display_width, headers))
    room = max(canvas.width - wide - GAP, MIN_WIDTH)
    mark = "…" if canvas.unicode else "..."
    lines = []
    for column, (name, text) in enumerate(zip(headers, cells, strict=True)):
        parts = fold_cell(names[column], text, room, mark) if text else []
        if len(parts) > 1 and " " not in text and display_width(text) < canvas.width:
            lines.append(canvas.paint(name, "key") + "\n")  # a long name gets its own line
            lines.append(f" {text}\n")
            continue
        if text.replace(",", "").isdigit():
            parts = [text]
        for number, part in enumerate(parts):
            label = "" if number else name
            shown = canvas.paint(part, styles[column]) if column in styles else part
            head = canvas.paint(label, "key") + " " * (wide - display_width(label) + GAP)
            lines.append(f"{head}{shown}".rstrip(" ") + "\n")
    return "".join(lines) + "\n"


def _header(canvas: Canvas, headers: Sequence[str], fit: TableFit, numeric: Sequence[bool]) -> str:
    """Return the header of a table, and the line below it."""
    lines = [Text(line, style="bold") for line in header_of(headers, fit, numeric)]
    wide = max(total(fit.widths), *(line.cell_len for line in lines))
    if not canvas.unicode:
        rule = (" " * GAP).join("-" * width for width in fit.widths)
    else:
        rule = "─" * min(wide, canvas.width)
    return canvas.draw(*lines, Text(rule))


def _row_styles(row: Row, names: Sequence[str], styles: Styles | None) -> dict[int, str]:
    if not styles:
        return {}
    row_styles = {i: styles[name](row.get(name)) for i, name in enumerate(names) if name in styles}
    return {i: style for i, style in row_styles.items() if style}


def _line(names: Sequence[str], cells: Sequence[str], fit: TableFit, numeric: Sequence[bool],
          canvas: Canvas, styles: Mapping[int, str]) -> str:
    """Return a row of a table; it has several lines if a cell is folded."""
    mark = "…" if canvas.unicode else "..."
    lines = []
    for parts in lines_of(names, cells, fit, canvas.width, mark):
        painted = [(column, canvas.paint(text, styles.get(column, "")), blanks)
                   for column, text, blanks in parts]
        lines.append(plain_line(painted, numeric) + "\n")
    return "".join(lines)
