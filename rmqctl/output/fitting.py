"""The layout of a table in a terminal: visible columns, their widths and positions.

Pure functions over the texts of cells; `richtable` and `human` draw the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.cells import cut, display_width, folded, padded

GAP = 2
"""Number of blanks between two table columns."""
MIN_WIDTH = 12
"""Minimum width of a text column when a table is fitted to the terminal."""
_MAX_CELL_LINES = 6
"""Approximate maximum number of lines of a cell with data. Longer data is cut."""
_MAX_SENTENCE_LINES = 3
"""Number of lines above which a sentence is written below its row."""
_MAX_WORD = 40
"""Number of characters above which a word is considered data and may be broken."""
_NAMES = frozenset({"file", "target", "path", "source", "folder", "store", "structure", "topic",
                     "where"})
"""Names of columns with words that users copy from the screen; these words are never broken."""
_DATA = {"body": MIN_WIDTH, "hex": MIN_WIDTH, "value": MIN_WIDTH + 2}
"""Minimum widths of the columns with data, whose text may be wrapped at any character."""
_WHOLE = frozenset({"hex"})
"""Names of columns with data that is never cut, because it has already been shortened or because
the user requested all of it.
"""
_SENTENCES = frozenset({"cause", "detail", "error", "meaning", "note", "reason", "why"})
"""Names of columns that contain sentences. One of these columns may be written below each row."""
_KEPT = frozenset({
    "action", "body", "category", "cause", "count", "detail", "error", "field", "file", "finding",
    "fields", "folder", "group", "hex", "key", "kind", "lost", "meaning", "messages", "name",
    "offset", "queue", "reason", "severity", "source", "store", "structure", "target", "topic",
    "value", "verdict", "where"})
"""Names of the columns that are omitted last."""
_ANY = 1 << 20
_INDENT = 4
"""Number of blanks before a sentence that is written below its row."""


@dataclass
class TableFit:
    """The layout of a table, with columns by number.

    ``columns``: the columns side by side.
    ``widths``: the widths of these columns.
    ``below``: the column whose text is written below each row.
    ``dropped``: columns that are not shown.
    """

    columns: list[int]
    widths: list[int] = field(default_factory=list)
    below: int | None = None
    dropped: list[int] = field(default_factory=list)


def fitted(names: Sequence[str], headers: Sequence[str], cells: Sequence[Sequence[str]],
           numeric: Sequence[bool], width: int) -> TableFit | None:
    """Return the layout of a table within ``width``; None if fewer than two columns fit.

    These steps are tried in order:

    * Fold sentences.
    * Omit empty columns.
    * Write a sentence below its row.
    * Omit other columns, the least important first.
    """
    measured = _Measured(names, headers, cells, numeric)
    fit = TableFit(list(range(len(names))))
    if _settle(fit, measured, width):
        return fit
    empty = [column for column in fit.columns if not any(line[column] for line in cells)]
    fit.columns = [column for column in fit.columns if column not in empty]
    if _settle(fit, measured, width):
        return fit
    sentences = [column for column in fit.columns[1:] if names[column] in _SENTENCES]
    if sentences:
        fit.below = max(sentences, key=lambda column: measured.natural[column])
        fit.columns.remove(fit.below)
    for column in [None, *_by_importance(fit.columns, names)]:
        if column is not None:
            fit.columns.remove(column)
            fit.dropped.append(column)
        if _settle(fit, measured, width):
            return fit
    return None


def refitted(before: TableFit, names: Sequence[str], headers: Sequence[str],
             cells: Sequence[Sequence[str]], numeric: Sequence[bool],
             width: int) -> TableFit | None:
    """Return the layout of a later page of a table, with the columns of the first page; None if the
    columns do not fit.
    """
    measured = _Measured(names, headers, cells, numeric)
    after = TableFit(before.columns, before.widths, before.below, before.dropped)
    return after if _settle(after, measured, width) else None


class _Measured:
    """The preferred and minimum widths of the columns of a page."""

    def __init__(self, names: Sequence[str], headers: Sequence[str],
                 cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
        every = range(len(names))
        self.cells = cells
        heads = [max(map(display_width, header_lines(text)), default=0) for text in headers]
        self.natural = [max(display_width(headers[i]), *(_cell_width(line[i]) for line in cells))
                        for i in every]
        self.least = [max(heads[i], *(
            _cell_width(line[i]) if numeric[i] else _least_width(names[i], line[i])
            for line in cells)) for i in every]
        self.lines = [_ANY if name in _DATA else
                      _MAX_SENTENCE_LINES if name in _SENTENCES and i else _MAX_CELL_LINES
                      for i, name in enumerate(names)]


def _settle(layout: TableFit, measured: _Measured, width: int) -> bool:
    """Set the widths of the columns; return False if the columns do not fit.

    Columns also do not fit if a sentence would need too many lines in a narrow column.
    """
    natural = [measured.natural[column] for column in layout.columns]
    least = [measured.least[column] for column in layout.columns]
    if layout.widths and len(layout.widths) == len(natural):
        natural = list(map(max, layout.widths, natural))
        least = list(map(max, layout.widths, least)) if total(natural) > width else natural
    widths = fit(natural, least, width)
    if total(widths) > width:
        return False
    for line in measured.cells:
        for column, room in zip(layout.columns, widths, strict=True):
            if (" " in line[column]
                    and _cell_width(line[column]) > room * measured.lines[column]):
                return False
    layout.widths = widths
    return True


def _by_importance(columns: Sequence[int], names: Sequence[str]) -> list[int]:
    """Return the columns that may be omitted, the least important first. Two columns are not
    included, as they are always shown.
    """
    kept = set(columns[:1]) | set([c for c in columns if names[c] in _KEPT][:1])
    if len(kept) < 2:
        kept |= set([c for c in columns if c not in kept][:1])
    later = [column for column in columns if column not in kept]
    return [*[c for c in reversed(later) if names[c] not in _KEPT],
            *[c for c in reversed(later) if names[c] in _KEPT]]


def header_lines(text: str) -> list[str]:
    """Return the lines into which a header may be split, such as ``queue_`` and ``offset``."""
    lines: list[str] = []
    for part in text.replace("_", "_\0").replace(" ", "\0").split("\0"):
        if lines and display_width(lines[-1] + part) < MIN_WIDTH // 2:
            lines[-1] += part if lines[-1].endswith("_") else f" {part}"
        else:
            lines.append(part)
    return lines


def header_cells(text: str, width: int) -> list[str]:
    """Return the lines of a header in a column of this width."""
    if display_width(text) <= width:
        return [text]
    lines: list[str] = []
    for part in text.replace("_", "_\0").replace(" ", "\0").split("\0"):
        glue = "" if not lines or lines[-1].endswith("_") else " "
        if lines and display_width(lines[-1] + glue + part) <= width:
            lines[-1] += glue + part
        else:
            lines.append(part)
    return lines


def _least_width(name: str, text: str) -> int:
    """Return the minimum width of the column ``name`` for this text. Outside the columns in
    `_NAMES`, a word longer than `_MAX_WORD` may be broken.
    """
    if name in _DATA or not text:
        return min(_DATA.get(name, 0), _cell_width(text))
    words = list(map(_cell_width, text.split()))
    widest = max(words, default=0)
    if widest > _MAX_WORD and name not in _NAMES:
        widest = max((length for length in words if length <= _MAX_WORD), default=0)
    return max(widest, min(MIN_WIDTH, _cell_width(text)))


def total(widths: Sequence[int]) -> int:
    """Return the width of a table with columns of these widths."""
    return sum(widths) + GAP * (len(widths) - 1)


def _cell_width(text: str) -> int:
    # Do not measure a body of megabytes: no column becomes that wide.
    return display_width(text) if len(text) < 4096 else 4096


def fit(natural: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Return column widths between ``least`` and ``natural``, for a table that is at most ``width``
    wide.

    The widest columns shrink first. If the minimum widths do not fit, the table is wider.
    """
    widths = list(natural)
    room = width - GAP * (len(widths) - 1)
    while sum(widths) > room:
        shrinkable = [i for i, w in enumerate(widths) if w > least[i]]
        if not shrinkable:
            break
        widest = max(shrinkable, key=lambda i: widths[i])
        next_widest = max((widths[i] for i in shrinkable if i != widest), default=0)
        over = sum(widths) - room
        alike = sum(widths[i] == widths[widest] for i in shrinkable)
        widths[widest] = max(
            widths[widest] - over,
            next_widest if next_widest < widths[widest] else widths[widest] - max(over // alike, 1),
            least[widest],
        )
    return widths


def fold_cell(name: str, text: str, width: int, mark: str) -> list[str]:
    """Return the lines of a cell. Long data is cut, and the number of omitted characters is
    appended.
    """
    limit = width * _MAX_CELL_LINES
    if len(text) > limit and name not in _WHOLE:
        text = cut(text, max(limit - 12, 8), mark)
    return [text] if display_width(text) <= width else folded(text, width) or [""]


def lines_of(names: Sequence[str], cells: Sequence[str], fit: TableFit, width: int, mark: str
             ) -> list[list[tuple[int, str, str]]]:
    """Return the lines of a row. Each line consists of parts: column index, text, padding."""
    texts = [fold_cell(names[column], cells[column], room, mark)
             for column, room in zip(fit.columns, fit.widths, strict=True)]
    lines: list[list[tuple[int, str, str]]] = []
    for level in range(max(map(len, texts))):
        line = []
        for column, parts, room in zip(fit.columns, texts, fit.widths, strict=True):
            part = parts[level] if level < len(parts) else ""
            line.append((column, part, " " * max(room - display_width(part), 0)))
        lines.append(line)
    if fit.below is not None and cells[fit.below]:
        room = max(width - _INDENT, MIN_WIDTH)
        lines += [[(fit.below, " " * _INDENT + part, "")]
                  for part in fold_cell(names[fit.below], cells[fit.below], room, mark)]
    return lines


def plain_line(parts: Sequence[tuple[int, str, str]], numeric: Sequence[bool]) -> str:
    """Return the text of a line from its parts (see `lines_of`)."""
    return (" " * GAP).join(blanks + text if numeric[column] else text + blanks
                            for column, text, blanks in parts).rstrip(" ")


def header_of(headers: Sequence[str], fit: TableFit, numeric: Sequence[bool]) -> list[str]:
    """Return the header lines of a table. The header of a sentence below the rows is indented like
    the sentence.
    """
    texts = [header_cells(headers[column], room)
             for column, room in zip(fit.columns, fit.widths, strict=True)]
    height = max(map(len, texts))
    lines = []
    for level in range(height):
        parts = []
        for column, cell, room in zip(fit.columns, texts, fit.widths, strict=True):
            lead = height - len(cell)  # the last line of each is just above the rows
            parts.append(padded(cell[level - lead] if level >= lead else "", room,
                                right=numeric[column]))
        lines.append((" " * GAP).join(parts).rstrip(" "))
    if fit.below is not None:
        lines.append(" " * _INDENT + headers[fit.below])
    return lines
