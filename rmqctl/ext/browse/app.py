"""The main screen of ``rmqctl browse``: tree, list, pane, and key actions."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widgets import Footer, Input, Static
from textual.worker import get_current_worker

from rmqctl.errors import RmqctlError
from rmqctl.ext.browse.exporting import export
from rmqctl.ext.browse.figures import PlaceFigures
from rmqctl.ext.browse.filters import Parse, conditions_of
from rmqctl.ext.browse.going import Navigator
from rmqctl.ext.browse.header import StoreHeader
from rmqctl.ext.browse.listing import (
    ListRow,
    LogListing,
    QueueListing,
    ReadCancelled,
    Watch,
    committed,
)
from rmqctl.ext.browse.opened import BrowsedPlace, BrowsedStore
from rmqctl.ext.browse.panes import PANES, Line, aligned, pane
from rmqctl.ext.browse.questions import Help
from rmqctl.ext.browse.survey import LogOverview, judged
from rmqctl.ext.browse.tree import StoreTree
from rmqctl.ext.browse.widgets import LinePane, RowList
from rmqctl.output.units import counted

if TYPE_CHECKING:
    from rmqctl.checks.findings import Finding
    from rmqctl.ext.browse.checking import CheckResult, Task

_PAUSE = 0.35
"""Seconds after the last key press in the filter line until the filter is applied."""
_LOCK_LOOK = 5.0


class Browser(Navigator):
    """The main screen for one store."""

    CSS_PATH = "browse.tcss"
    ENABLE_COMMAND_PALETTE = False
    TITLE = "rmqctl browse"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("n", "next", "Next hit"),
        Binding("colon", "offset", "Offset", key_display=":"),
        Binding("t", "time", "Time"),
        Binding("K", "key", "Key", key_display="K"),
        Binding("o", "other", "Other place", show=False),
        Binding("v", "verify", "Verify"),
        Binding("e", "export", "Export"),
        Binding("1", "pane('fields')", show=False),
        Binding("2", "pane('hex')", show=False),
        Binding("3", "pane('json')", show=False),
        Binding("z", "zoom", "Zoom", show=False),
        Binding("r", "refresh", "Refresh", show=False),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("escape", "escape", show=False),
    ]

    def __init__(self, opened: BrowsedStore, parse: Parse, parse_time: Callable[[str], int]
                 ) -> None:
        super().__init__(opened, parse_time)
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (140, "-wide")]
        self._parse = parse
        self._pane = PANES[0]
        self._typed: Timer | None = None

    def compose(self) -> ComposeResult:
        yield StoreHeader(self.opened)
        with Horizontal(id="main"):
            yield StoreTree(self.opened)
            with Vertical(id="right"):
                yield Input(placeholder="text, or conditions such as tags=TagA && queue_id=0",
                            id="filter", compact=True)
                yield Static(id="what")
                yield RowList()
                yield Static(id="panes")
                yield LinePane(id="pane")
        yield Static(id="status")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.main.query_one("#filter", Input).display = False
        self.main.query_one(StoreTree).focus()
        self._show(self.place)
        self._say_panes()
        self.call_after_refresh(self._judge)
        self.set_interval(_LOCK_LOOK, self._look_at_lock)
        self.mind_signals()

    # -- what is said -------------------------------------------------------------------------

    def _judge(self) -> None:
        """In a thread, sample the log and predict a broker's startup; show the results in the
        header.
        """
        opened = self.opened

        def work() -> None:
            worker = get_current_worker()

            def watch(_done: int) -> None:
                if worker.is_cancelled:
                    raise ReadCancelled

            def show(survey: LogOverview) -> None:
                watch(0)
                self.call_from_thread(self.header.show, survey)

            reader = opened.another()
            try:
                for survey in judged(reader.store, watch):
                    show(survey)
            except ReadCancelled:
                return
            finally:
                reader.close()

        self.run_worker(work, thread=True, group="judge", exclusive=True)

    def _say_panes(self) -> None:
        line = Text(" ")
        for number, name in enumerate(PANES, 1):
            line.append(f" {number} {name} ", "reverse" if name == self._pane else "")
        self.main.query_one("#panes", Static).update(line)

    def on_resize(self) -> None:
        self.call_after_refresh(self._fill_pane)

    def _look_at_lock(self) -> None:
        before = self.opened.lock
        self.opened.lock = self.opened.reader.store.lock
        if self.opened.lock.held and not before.held:
            self.say("a process has opened the store; press r to read it again")
        for header in self.main.query(StoreHeader):  # the screen may be closed already
            header.show()

    # -- what the list shows ------------------------------------------------------------------

    def on_store_tree_chosen(self, event: StoreTree.Chosen) -> None:
        self._show(event.place, lambda listing: committed(listing, event.place.at))
        self._list.focus()

    def on_store_tree_looked(self, _event: StoreTree.Looked) -> None:
        self._fill_pane()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if isinstance(event.widget, StoreTree | RowList):
            self._fill_pane()

    def on_row_list_cursor_moved(self, event: RowList.CursorMoved) -> None:
        self.header.mark(None if event.row is None else event.row.physical)
        self._fill_pane()

    def on_row_list_chosen(self, _event: RowList.Chosen) -> None:
        self.main.query_one("#pane", LinePane).focus()

    def on_row_list_reading(self, event: RowList.Reading) -> None:
        rows = self._list
        if event.problem:
            self.say(event.problem, bad=True)
        elif not self.is_working and self.conditions:
            hits = counted(len(rows.rows), "message")
            if event.share is not None:
                if rows.is_reading:  # it may have been stopped meanwhile
                    self.say(f"filter: {event.share:.0%}, {hits} found, Esc stops")
            else:
                more = "" if rows.at_end else "; go to the end of the list to continue the search"
                self.say(f"filter: {hits} found{more}")
        self.header.show()

    def _fill_pane(self) -> None:
        """Fill the pane with the record under the list's cursor, read in a thread; a newer call
        replaces an older one. If statistics of a tree node are to be shown, fill the pane with
        these instead.
        """
        rows, lines = self._list, self.main.query_one("#pane", LinePane)
        row, listing, name = rows.row, rows.listing, self._pane
        if (figures := self._figures()) is not None:
            lines.put(aligned(((fact, value, "bad" if fact == "problem" else "")
                               for fact, value in figures.facts.items()),
                              max(lines.size.width - 2, 20)))
            return
        if row is None or listing is None:
            lines.put([])
            return
        width, reader = max(lines.size.width - 2, 20), self.opened.reader

        def work() -> None:
            worker = get_current_worker()
            with reader.guard:
                if worker.is_cancelled:
                    return
                content = pane(name, reader, listing, row, width)
            if not worker.is_cancelled:
                self.call_from_thread(self._put_pane, row, name, content)

        self.run_worker(work, thread=True, group="pane", exclusive=True)

    def _put_pane(self, row: ListRow, name: str, content: list[Line]) -> None:
        if self._list.row is row and self._pane == name and not self._figures():
            self.main.query_one("#pane", LinePane).put(content)

    def _figures(self) -> PlaceFigures | None:
        """Return the tree node's statistics to show in the pane; None if the pane shows a row of
        the list.
        """
        tree = self.main.query_one(StoreTree)
        if not tree.has_focus or tree.place is None or self._pane != PANES[0]:
            return None
        figures = tree.figures_of(tree.place)
        return figures if figures is not None and figures.facts else None

    def action_pane(self, name: str) -> None:
        self._pane = name
        self._say_panes()
        self._fill_pane()

    def action_zoom(self) -> None:
        """Switch the pane between full screen and its normal size."""
        for selector in ("#tree", "#rows", "#what"):
            widget = self.main.query_one(selector)
            widget.display = not widget.display
        self.main.query_one("#pane").focus()
        self.call_after_refresh(self._fill_pane)

    # -- filter -------------------------------------------------------------------------------

    def action_filter(self) -> None:
        line = self.main.query_one("#filter", Input)
        line.display = True
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter":
            if self._typed is not None:
                self._typed.stop()
            self._typed = self.set_timer(_PAUSE, self._apply_filter)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            if self._typed is not None:
                self._typed.stop()
            self._apply_filter()
            self._list.focus()

    def _apply_filter(self) -> None:
        try:
            conditions = conditions_of(self.main.query_one("#filter", Input).value, self._parse)
        except RmqctlError as error:
            self.say(str(error), bad=True)
            return
        if conditions != self.conditions:
            self.conditions = conditions
            self.say("")
            self._show(self.place)

    def action_escape(self) -> None:
        """Close the full-screen pane. If none is open, stop reading; if nothing is being read,
        leave or remove the filter.
        """
        line, rows = self.main.query_one("#filter", Input), self._list
        if not rows.display:
            self.action_zoom()
        elif self.stop_task() | rows.stop():
            self.say("stopped")
        elif line.has_focus and line.value:
            rows.focus()
        elif line.display:
            line.value = ""
            line.display = False
            rows.focus()
            self._apply_filter()

    # -- verify, export, refresh --------------------------------------------------------------

    def action_verify(self) -> None:
        from rmqctl.ext.browse import checking  # verify is large, and not needed at the start

        # Read the selection now: it may change while the thread works.
        row = self._list.row
        of_tree = self.main.query_one(StoreTree).has_focus
        task = None if of_tree or row is None else checking.of_row(row)
        place, opened = self._verified_place(of_tree), self.opened

        def work(watch: Watch) -> tuple[Task, CheckResult]:
            reader = opened.another()
            try:
                chosen = task or checking.of_place(place, reader)
                answer = checking.run(chosen, reader, watch)
                if row is not None and row.kind == "message" and task is not None:
                    note = checking.row_of(reader, row.physical or 0)
                    answer.notes += [note] if note else []
                return chosen, answer
            finally:
                reader.close()

        # The share of completed work needs a total.
        total = 0
        if task is not None and task.part is not None:
            total = task.part[1] - task.part[0]
        elif opened.reader.store.layout.reads("commitlog"):
            total = 2 * opened.reader.store.log.size
        self.run_task(f"verifying {place.name if task is None else 'it'}", total, work,
                  lambda result: self._show_findings(*result))

    def _verified_place(self, of_tree: bool) -> BrowsedPlace:
        node = self.main.query_one(StoreTree).cursor_node
        if of_tree and node is not None and isinstance(node.data, BrowsedPlace):
            return node.data
        return self.place

    def _show_findings(self, task: Task, answer: CheckResult) -> None:
        from rmqctl.ext.browse.findings import Findings

        if answer.diagnosis is not None:
            self.header.show(replace(self.header.survey, start=answer.diagnosis.start,
                                     diagnosis=answer.diagnosis))
        self.push_screen(Findings(task, answer, self.opened.root), self._go_to_finding)

    def _go_to_finding(self, finding: Finding | None) -> None:
        if finding is None:
            return
        if finding.structure == "commitlog" and finding.offset is not None:
            self._show_physical(finding.offset)
        elif finding.topic is not None and finding.queue_id is not None:
            offset = finding.queue_offset
            self._show(BrowsedPlace("queue", finding.topic, finding.queue_id),
                       lambda _listing: None if offset is None else (0, offset))
        elif finding.file is not None and os.path.isfile(finding.file):
            self._show(BrowsedPlace("file", path=finding.file))
        self._list.focus()

    def action_export(self) -> None:
        if not isinstance(self._list.listing, LogListing | QueueListing):
            self.say("only messages can be exported: select a queue, a topic or the log", bad=True)
            return
        self._ask(f"Export {self.place.name}{' (filtered)' if self.conditions else ''} to which "
                  "new file?", "messages.jsonl (.parquet .csv .avro .arrow .xlsx)",
                  self._export_to)

    def _export_to(self, target: str) -> None:
        place, conditions, reader = self.place, self.conditions, self.opened.reader
        self.run_task("exporting", reader.store.log.size,
                  lambda watch: export(reader, place, conditions, target, watch), self.say)

    def action_refresh(self) -> None:
        rows = self._list
        row, was_log = rows.row, isinstance(rows.listing, LogListing | QueueListing)
        rows.stop()

        def work(_watch: Watch) -> None:
            self.opened.refresh()

        def done(_nothing: None) -> None:
            self.main.query_one(StoreTree).fill()
            self._judge()
            self._show(self.place, lambda _listing: row.position if row and was_log else None,
                       lambda: self.say("read again"))

        self.run_task("reading the store again", 0, work, done)

    def action_help(self) -> None:
        self.push_screen(Help())
