"""Widgets that draw their own lines: a list that reads rows while scrolling, and a text pane.

The widgets draw pieces of text with a style, and do not interpret markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.worker import Worker, get_current_worker

from rmqctl.errors import RmqctlError
from rmqctl.ext.browse.listing import (
    Column,
    ListedRows,
    ListRow,
    Position,
    ReadCancelled,
    RowListing,
    sentence,
)
from rmqctl.ext.browse.opened import StoreView
from rmqctl.ext.browse.panes import Line
from rmqctl.output.cells import display_width

_MIN_READ, _MAX_KEPT = 50, 2000
"""Minimum number of rows per read, and maximum number of rows kept in memory."""
_NARROW = 80
"""Width of the list in columns below which times are shown without year, zone and milliseconds."""
_NARROW_WIDTHS = {"time": 14, "queue": 14, "physical_offset": 10}
_FIRST_TO_GO, _MIN_LAST = ("keys", "tags"), 16
"""Columns to omit, in this order, while the last column is narrower than the given width."""


class RowList(Widget, can_focus=True):
    """A scrolling list: keeps the rows of a listing around the cursor, and reads more in a thread
    when needed.
    """

    DEFAULT_CSS = """
    RowList { height: 1fr; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "rowlist--header", "rowlist--cursor", "rowlist--bad", "rowlist--dim"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False), Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False), Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "first", show=False), Binding("end,G", "last", show=False),
        Binding("enter", "choose", show=False)]

    class CursorMoved(Message):
        """The cursor moved to ``row``; None if the list has no rows."""

        def __init__(self, row: ListRow | None) -> None:
            super().__init__()
            self.row = row

    class Chosen(Message):
        """Enter was pressed on the row."""

    class Reading(Message):
        """Progress of a read. ``share``: part of the listing read so far (None when the read ends).
        ``problem``: the reason if the read failed.
        """

        def __init__(self, share: float | None, problem: str = "") -> None:
            super().__init__()
            self.share, self.problem = share, problem

    def __init__(self) -> None:
        super().__init__(id="rows")
        self.reader: StoreView | None = None
        self.listing: RowListing | None = None
        self.rows: list[ListRow] = []
        self.cursor = self._top = 0
        self.at_start = self.at_end = True
        self._worker: Worker[None] | None = None
        self._generation = 0
        self._reported: ListRow | None = None

    # -- what is shown ------------------------------------------------------------------------

    @property
    def row(self) -> ListRow | None:
        """The row under the cursor."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    @property
    def is_reading(self) -> bool:
        return self._worker is not None

    def show(self, reader: StoreView, listing: RowListing,
             position: Position | None = None) -> None:
        """Show a listing, starting at a position (None: at its start)."""
        self.reader, self.listing = reader, listing
        self._reset(at_start=position is None)
        self._read(position, forward=True)

    def stop(self) -> bool:
        """Stop reading; return whether anything was being read."""
        was_reading, self._worker = self._worker, None
        self._generation += 1
        if was_reading is not None:
            was_reading.cancel()
        return was_reading is not None

    def _reset(self, *, at_start: bool, at_end: bool = False) -> None:
        self.stop()
        self.rows, self.cursor, self._top = [], 0, 0
        self.at_start, self.at_end = at_start, at_end
        self._tell()

    # -- reading ------------------------------------------------------------------------------

    def _read(self, position: Position | None, *, forward: bool) -> None:
        self.stop()
        # Remember the generation, so that rows of an older listing are not shown in a newer one.
        reader, listing, generation = self.reader, self.listing, self._generation
        if reader is None or listing is None:
            return
        count = max(_MIN_READ, self.size.height * 2)

        # Read in a thread, because a slow disk must not block the screen.
        def work() -> None:
            worker = get_current_worker()

            def watch(_done: int) -> None:
                if worker.is_cancelled:
                    raise ReadCancelled

            def hand_over(*result: object) -> None:
                if not worker.is_cancelled:
                    self.app.call_from_thread(self._arrived, generation, *result)

            # Forward rows arrive in steps; backward rows are inserted at once to keep the position.
            try:
                with reader.guard:
                    if forward:
                        count_read = 0
                        for step in listing.forward(position, count, watch):
                            count_read += len(step.rows)
                            hand_over(step, listing.share(step.reached))
                        hand_over(None, 1.0, count_read < count)
                    else:
                        rows = listing.backward(position, count, watch)
                        self.app.call_from_thread(self._before, generation, rows,
                                                  len(rows) < count)
            except ReadCancelled:
                return
            except (RmqctlError, OSError) as error:
                self.app.call_from_thread(self._failed, generation, sentence(error))

        self._worker = self.run_worker(work, thread=True, group="rows", exit_on_error=True)
        self.post_message(self.Reading(0.0))

    def _arrived(self, generation: int, step: ListedRows | None, share: float,
                 ended: bool = False) -> None:
        if generation != self._generation:
            return
        if step is None:
            self._worker = None
            self.at_end = ended
            self.post_message(self.Reading(None))
            self._tell()
            self._want()
            return
        self.rows += step.rows
        excess = len(self.rows) - _MAX_KEPT
        if excess > 0 and self.cursor >= excess:
            del self.rows[:excess]
            self.cursor, self._top = self.cursor - excess, max(self._top - excess, 0)
            self.at_start = False
        self.post_message(self.Reading(share))
        self._tell()

    def _before(self, generation: int, rows: list[ListRow], ended: bool) -> None:
        if generation != self._generation:
            return
        self._worker, self.at_start = None, ended
        was_empty = not self.rows
        self.rows[:0] = rows
        self.cursor = len(self.rows) - 1 if was_empty and self.rows else self.cursor + (
            0 if was_empty else len(rows))
        self._top += len(rows)
        if len(self.rows) > _MAX_KEPT and self.cursor < _MAX_KEPT:
            del self.rows[_MAX_KEPT:]
            self.at_end = False
        self.post_message(self.Reading(None))
        self._tell()

    def _failed(self, generation: int, problem: str) -> None:
        if generation == self._generation:
            self._worker, self.at_start, self.at_end = None, True, True
            self.post_message(self.Reading(None, problem))
            self._tell()

    def _want(self) -> None:
        """Read more rows if the cursor is near the first or last row in memory and the listing
        continues there.
        """
        if self._worker is not None:
            return
        margin = max(self._visible, 1)
        if not self.at_end and self.cursor >= len(self.rows) - margin:
            self._read(self.rows[-1].after if self.rows else None, forward=True)
        elif not self.at_start and self.cursor < margin:
            self._read(self.rows[0].position if self.rows else None, forward=False)

    # -- keys ---------------------------------------------------------------------------------

    @property
    def _visible(self) -> int:
        return max(self.size.height - 1, 0)

    def action_move(self, by: int) -> None:
        self.cursor = max(0, min(self.cursor + by, len(self.rows) - 1))
        self._tell()
        self._want()

    def action_page(self, by: int) -> None:
        self.action_move(by * max(self._visible - 1, 1))

    def action_first(self) -> None:
        if self.at_start:
            self.action_move(-len(self.rows))
        else:
            self._reset(at_start=True)
            self._read(None, forward=True)

    def action_last(self) -> None:
        if self.at_end:
            self.action_move(len(self.rows))
        else:
            self._reset(at_start=False, at_end=True)
            self._read(None, forward=False)

    def action_choose(self) -> None:
        self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        if 0 < event.y <= self._visible and self._top + event.y <= len(self.rows):
            self.action_move(self._top + event.y - 1 - self.cursor)

    def on_mouse_scroll_down(self, _event: events.MouseScrollDown) -> None:
        self.action_move(3)

    def on_mouse_scroll_up(self, _event: events.MouseScrollUp) -> None:
        self.action_move(-3)

    def on_resize(self, _event: events.Resize) -> None:
        self._tell()

    def _tell(self) -> None:
        height = max(self._visible, 1)
        self._top = max(0, min(self._top, len(self.rows) - height))
        self._top = min(max(self._top, self.cursor - height + 1), self.cursor)
        self.refresh()
        if self.row is not self._reported:
            self._reported = self.row
            self.post_message(self.CursorMoved(self.row))

    # -- drawing ------------------------------------------------------------------------------

    def _laid_out(self) -> list[tuple[Column, int]]:
        """Return the columns with their widths; the last column gets the rest of the line."""
        columns = self.listing.columns if self.listing is not None else ()
        if self.size.width < _NARROW:
            columns = tuple(column._replace(width=min(column.width, _NARROW_WIDTHS.get(
                column.name, column.width))) for column in columns)
        for name in _FIRST_TO_GO:
            if self._left(columns) < _MIN_LAST:
                columns = tuple(column for column in columns if column.name != name)
        left = max(self._left(columns), 1)
        return [(column, column.width or left) for column in columns]

    def _left(self, columns: Sequence[Column]) -> int:
        return self.size.width - sum(column.width for column in columns) - len(columns)

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self.rich_style
        columns = self._laid_out()
        if y == 0:
            line = " ".join(_cell(column.title, size, right=column.right)
                            for column, size in columns)
            style = self.get_component_rich_style("rowlist--header")
            return Strip([Segment(set_cell_size(line, width), style)], width)
        number = self._top + y - 1
        if number >= len(self.rows):
            words = "" if number or self.is_reading or self.listing is None else "nothing here"
            style = self.get_component_rich_style("rowlist--dim")
            return Strip([Segment(set_cell_size(words, width), style)], width)
        row = self.rows[number]
        style = base
        if row.kind == "damage" or row.wrong:
            style = self.get_component_rich_style("rowlist--bad")
        if number == self.cursor:
            style += self.get_component_rich_style("rowlist--cursor")
        line = _row_line(row, columns, width)
        return Strip([Segment(set_cell_size(line, width), style)], width)


def _row_line(row: ListRow, columns: Sequence[tuple[Column, int]], width: int) -> str:
    """Return a row's cells as one line. A damage row has only some cells; a text fills the space of
    the other cells.
    """
    parts: list[str] = []
    for number, (column, size) in enumerate(columns):
        text = row.cells.get(column.name)
        if text is None:
            taken = sum(len(part) + 1 for part in parts)
            if not any(other.name in row.cells for other, _ in columns[number:-1]):
                return " ".join([*parts, _cell(row.cells.get("body", ""),
                                               max(width - taken, 1))])
            text = ""
        if column.name == "time" and size < 23 and len(text) > 23:
            text = text[5:19].replace("T", " ")
        if column.name == "queue" and display_width(text) > size:  # keep its end, the queue id
            text = "…" + text[1 - size:]
        parts.append(_cell(text, size, right=column.right))
    return " ".join(parts)


def _cell(text: str, width: int, *, right: bool = False) -> str:
    """Pad or truncate a text to exactly ``width`` columns; a truncated text ends in an ellipsis."""
    text = text[:width * 2 + 1]
    fitted = set_cell_size(text, width)
    if len(fitted) < len(text.rstrip()) or fitted.rstrip() != text.rstrip()[:len(fitted.rstrip())]:
        return set_cell_size(text, width - 1) + "…" if width > 1 else fitted
    return fitted if not right else f"{text:>{width}}"


class LinePane(ScrollView, can_focus=True):
    """A scrollable pane of styled lines."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"lines--name", "lines--dim", "lines--bad"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", show=False), Binding("k", "scroll_up", show=False),
        Binding("g", "scroll_home", show=False), Binding("G", "scroll_end", show=False)]

    def __init__(self, lines: Sequence[Line] = (), id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._lines: Sequence[Line] = lines

    @property
    def lines(self) -> Sequence[Line]:
        return self._lines

    def on_mount(self) -> None:
        self.put(self._lines)

    def put(self, lines: Sequence[Line]) -> None:
        """Show new lines, scrolled to the first line."""
        self._lines = lines
        self.virtual_size = Size(0, len(lines))
        self.scroll_to(0, 0, animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        number, width = y + self.scroll_offset.y, self.scrollable_content_region.width
        pieces = self._lines[number] if number < len(self._lines) else ()
        styles: dict[str, Style] = {"": self.rich_style}
        segments = []
        for text, style in pieces:
            if style not in styles:
                styles[style] = self.get_component_rich_style(f"lines--{style}")
            segments.append(Segment(text, styles[style]))
        return Strip(segments).adjust_cell_length(width, self.rich_style)
