"""The top of the screen: the store and its verdict, a time axis, and a map of the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from rmqctl.ext.browse.opened import BrowsedStore
from rmqctl.ext.browse.survey import LogOverview, Piece, log_strip, time_range, time_strip
from rmqctl.output.cells import display_width
from rmqctl.output.escape import visible
from rmqctl.output.units import counted, size_text, time_text

_NARROW = 110
"""Screen width in columns below which times are shown without the year."""
_NAME = 6


class StoreHeader(Vertical):
    """The header, four lines high. Parts of the store that were not read never appear as intact."""

    def __init__(self, opened: BrowsedStore) -> None:
        super().__init__(id="header")
        self._opened, self.survey = opened, LogOverview()

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield Static(id="judged")
        yield Overview(self._opened)

    def show(self, survey: LogOverview | None = None) -> None:
        """Show a new survey, or update the current survey with damage found since the last call."""
        if survey is not None:
            self.survey = survey
        self.query_one(Overview).show(self.survey)
        opened = self._opened
        lock, (places, rows) = opened.lock, opened.seen
        held = "not in use" if not lock.held else (
            f"in use by process {lock.pid} ({lock.kind})" if lock.pid else f"in use ({lock.kind})")
        met = [counted(places, "damaged place")] if places else []
        met += [counted(rows, "dangling entry", "dangling entries")] if rows else []
        state = "verified" if self.survey.diagnosis is not None else "not verified"
        right = f" {held} · {', '.join(met) if met else state} "
        room = max(self.size.width - display_width(right) - 1, 8)
        name = cut_left(visible(opened.root), room)
        title, judged = self.query_one("#title", Static), self.query_one("#judged", Static)
        title.update(Text(f" {name}{' ' * (room - display_width(name))}{right}"))
        title.set_class(bool(met), "bad")
        judged.update(Text(visible(str(self.survey.verdict))))
        judged.set_class(self.survey.is_bad, "bad")
        judged.set_class(self.survey.has_abort and not self.survey.is_bad, "warn")

    def mark(self, physical: int | None) -> None:
        """Show the cursor's position in the log."""
        self.query_one(Overview).mark(physical)

    def on_resize(self) -> None:
        self.show()


def cut_left(words: str, width: int) -> str:
    """Return a text if it fits into ``width`` columns, else an ellipsis and the end of the text."""
    if display_width(words) <= width:
        return words
    while display_width(words) > width - 1:
        words = words[1:]
    return f"…{words}"


class Overview(Widget):
    """A widget of two lines: a time axis, and a map of the log from its first to its last byte."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "overview--name", "overview--dim", "overview--bad", "overview--time", "overview--cursor"}

    def __init__(self, opened: BrowsedStore) -> None:
        super().__init__(id="overview")
        self._opened, self._survey = opened, LogOverview()
        self._cursor: int | None = None

    def show(self, survey: LogOverview) -> None:
        """Draw a new survey."""
        self._survey = survey
        self.refresh()

    def mark(self, physical: int | None) -> None:
        """Mark the physical offset of the message under the cursor on the map of the log."""
        self._cursor = physical
        self.refresh()

    def render_line(self, y: int) -> Strip:
        left, pieces, right = self._time() if y == 0 else self._log()
        name = "name", ("time" if y == 0 else "log").ljust(_NAME)
        segments = [self._segment(*part) for part in (
            ("", " "), name, ("dim", left), *((style, text) for text, style in pieces),
            ("dim", right))]
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)

    def _segment(self, style: str, text: str) -> Segment:
        drawn = self.rich_style
        for name in style.split():
            drawn += self.get_component_rich_style(f"overview--{name}")
        return Segment(text, drawn)

    def _time(self) -> tuple[str, Sequence[Piece], str]:
        span = time_range(self._survey)
        ends = ["", ""] if span is None else [self._moment(when) for when in span]
        left, right = f"{ends[0]:>{self._label}} ", f" {ends[1]}"
        pieces = time_strip(self._survey, self._room(left, right))
        return left, [(text, style or "time") for text, style in pieces], right

    def _log(self) -> tuple[str, Sequence[Piece], str]:
        survey = self._survey
        left = f"{survey.first:>{self._label}} "
        right = f" {size_text(survey.reach - survey.first)}"
        opened = self._opened
        return left, log_strip(survey, self._room(left, right), opened.damaged,
                               opened.read_of, self._cursor), right

    @property
    def _label(self) -> int:
        return 14 if self.size.width < _NARROW else 19

    def _moment(self, when: int) -> str:
        return time_text(when)[19 - self._label:19].replace("T", " ")

    def _room(self, left: str, right: str) -> int:
        """Return the width in columns of the time axis and of the map, which end at the same
        column.
        """
        taken = 1 + _NAME + cell_len(left) + max(cell_len(right), self._label + 1) + 1
        return max(self.size.width - taken, 8)
