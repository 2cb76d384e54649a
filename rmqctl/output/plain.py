"""Tables without a terminal: aligned text and Markdown, laid out by tabulate, page by page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmqctl.output.cells import (
    Render,
    Row,
    columns_of,
    cut,
    display_width,
    numeric_columns,
    page_cells,
    pages,
    peek,
)
from rmqctl.output.escape import markdown_text, visible
from rmqctl.output.streams import Sink

# Longest text shown in one cell; what is left out is counted in the cell. The data formats
# (json, jsonl, csv, tsv) never cut.
_CELL_LIMIT = {"plain": 200, "markdown": 500}
_TABULATE = {"plain": "plain", "markdown": "github"}
_HEADER_LINES = {"plain": 1, "markdown": 2}

# tabulate makes a column at least two wider than its header.
_HEADER_PADDING = 2


def write_tabulated(
    sink: Sink,
    style: str,
    rows: Iterable[Row],
    columns: Sequence[str] | None,
    *,
    render: Render | None = None,
    mark: str = "…",
    indent: str = "",
) -> int:
    """Stream ``rows`` as a ``plain`` or ``markdown`` table; returns how many.

    The header stands once. Column widths are those of the first page; a page with longer cells
    is wider, never narrower, so that columns stay in line in all but freak cases.
    """
    first, stream = peek(pages(rows))
    names = list(columns) if columns is not None else columns_of(first)
    if not names or not first:
        return 0
    numeric = numeric_columns(first, names)
    headers = [_cell(visible(name), style) for name in names]
    widths = [0] * len(names)
    count = 0
    for page in stream:
        cells = [
            [_cell(cut(text, _CELL_LIMIT[style], mark), style) for text in line]
            for line in page_cells(page, names, render)
        ]
        for column in range(len(names)):
            widest = max(display_width(line[column]) for line in cells)
            widths[column] = max(widths[column], widest, len(headers[column]) + _HEADER_PADDING)
        lines = _layout(style, headers, cells, widths, numeric)
        if count:
            del lines[: _HEADER_LINES[style]]
        count += len(page)
        sink.write("".join(f"{indent}{line.rstrip()}\n" for line in lines))
        sink.flush()
    return count


def _cell(text: str, style: str) -> str:
    return markdown_text(text) if style == "markdown" else text


def _layout(
    style: str,
    headers: Sequence[str],
    cells: Sequence[Sequence[str]],
    widths: Sequence[int],
    numeric: Sequence[bool],
) -> list[str]:
    from tabulate import tabulate

    # A header padded to the width makes tabulate keep that width on every page.
    padded = [
        header.rjust(width - _HEADER_PADDING) if right else header.ljust(width - _HEADER_PADDING)
        for header, width, right in zip(headers, widths, numeric, strict=True)
    ]
    text = tabulate(
        cells,
        headers=padded,
        tablefmt=_TABULATE[style],
        disable_numparse=True,
        colalign=["right" if right else "left" for right in numeric],
    )
    return text.split("\n")
