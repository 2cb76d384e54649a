"""The screen of ``rmqctl browse``: tree, list, pane, and what the keys do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer
from textual.widgets import Footer, Input, Static
from textual.worker import get_current_worker

from rmqctl.errors import RmqctlError, UsageError
from rmqctl.ext.browse.exporting import export
from rmqctl.ext.browse.filters import Parse, conditions_of
from rmqctl.ext.browse.listing import (
    Listing,
    LogListing,
    Position,
    QueueListing,
    Row,
    Watch,
)
from rmqctl.ext.browse.opened import Opened, Place, Reader
from rmqctl.ext.browse.panes import PANES, Line, pane
from rmqctl.ext.browse.questions import Help, Question
from rmqctl.ext.browse.tree import StoreTree
from rmqctl.ext.browse.widgets import Lines, RowList
from rmqctl.ext.browse.working import Working
from rmqctl.output.escape import visible
from rmqctl.output.units import counted
from rmqctl.parse_values import parse_offset
from rmqctl.store.query.conditions import Condition

if TYPE_CHECKING:
    from rmqctl.checks.findings import Finding
    from rmqctl.ext.browse.checking import Answer, Task

_PAUSE = 0.35
"""Seconds without a key after which what was typed into the filter counts."""
_LOCK_LOOK = 5.0


class Browser(Working):
    """One store on the screen."""

    CSS_PATH = "browse.tcss"
    ENABLE_COMMAND_PALETTE = False
    TITLE = "rmqctl browse"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("g", "offset", "Offset"),
        Binding("t", "time", "Time"),
        Binding("k", "key", "Key"),
        Binding("o", "other", "Other place", show=False),
        Binding("v", "verify", "Verify"),
        Binding("e", "export", "Export"),
        Binding("1", "pane('fields')", show=False),
        Binding("2", "pane('hex')", show=False),
        Binding("3", "pane('json')", show=False),
        Binding("z", "zoom", "Zoom", show=False),
        Binding("r", "refresh", "Refresh"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("escape", "escape", show=False),
    ]

    def __init__(self, opened: Opened, parse: Parse, parse_time: Callable[[str], int]) -> None:
        super().__init__()
        self.opened, self._parse, self._parse_time = opened, parse, parse_time
        self.place = Place()
        self.conditions: tuple[Condition, ...] = ()
        self._pane = PANES[0]
        self._typed: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with Horizontal(id="main"):
            yield StoreTree(self.opened)
            with Vertical(id="right"):
                yield Input(placeholder="text, or conditions such as tags=TagA && queue_id=0",
                            id="filter", compact=True)
                yield Static(id="what")
                yield RowList()
                yield Static(id="panes")
                yield Lines(id="pane")
        yield Static(id="status")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.main.query_one("#filter", Input).display = False
        self.main.query_one(StoreTree).focus()
        self._show(self.place)
        self._say_panes()
        self.set_interval(_LOCK_LOOK, self._look_at_lock)
        self.mind_signals()

    # -- what is said -------------------------------------------------------------------------

    def _say_title(self) -> None:
        lock = self.opened.lock
        held = "not in use" if not lock.held else (
            f"in use by process {lock.pid} ({lock.kind})" if lock.pid else f"in use ({lock.kind})")
        places, rows = self.opened.seen
        seen = [*([counted(places, "place")] if places else []),
                *([counted(rows, "lost row")] if rows else [])]
        damage = f"damage: {', '.join(seen)}" if seen else "no damage seen so far"
        right = f" {held} · {damage} "
        name = visible(self.opened.root)
        room = max(self.size.width - len(right) - 1, 8)
        shown = name if len(name) <= room else f"…{name[1 - room:]}"
        line = Text(f" {shown:<{room}}{right}")
        title = self.main.query_one("#title", Static)
        title.update(line)
        title.set_class(bool(seen), "bad")

    def _say_panes(self) -> None:
        line = Text(" ")
        for number, name in enumerate(PANES, 1):
            line.append(f" {number} {name} ", "reverse" if name == self._pane else "")
        self.main.query_one("#panes", Static).update(line)

    def _say_listing(self, listing: Listing | None) -> None:
        title = self.place.name if listing is None else listing.title
        shown = " · filtered" if self.conditions else ""
        self.main.query_one("#what", Static).update(Text(f" {title}{shown}"))

    def on_resize(self) -> None:
        self.call_after_refresh(self._say_title)
        self.call_after_refresh(self._fill_pane)

    def _look_at_lock(self) -> None:
        before = self.opened.lock
        self.opened.lock = self.opened.reader.store.lock
        if self.opened.lock.held and not before.held:
            self.say("a process has taken the store meanwhile: r looks at it anew")
        self._say_title()

    # -- what the list shows ------------------------------------------------------------------

    def on_store_tree_chosen(self, event: StoreTree.Chosen) -> None:
        self._show(event.place)
        self.main.query_one(RowList).focus()

    def _show(self, place: Place, at: Callable[[Listing], Position | None] = lambda _: None,
              then: Callable[[], None] = lambda: None) -> None:
        """Shows a place from the position that ``at`` says; it may read, in the thread."""
        conditions = self.conditions
        self.main.query_one(RowList).stop()

        def work(_watch: Watch) -> tuple[Reader, Listing, Position | None]:
            reader = self.opened.scanning() if conditions else self.opened.reader
            with reader.guard:
                listing = reader.listing(place, conditions)
                return reader, listing, at(listing)

        def shown(found: tuple[Reader, Listing, Position | None]) -> None:
            reader, listing, position = found
            self.place = place
            self._say_listing(listing)
            self.main.query_one(RowList).show(reader, listing, position)
            then()

        self.run_task(f"opening {place.name}", 0, work, shown)

    def on_row_list_moved(self, _event: RowList.Moved) -> None:
        self._fill_pane()

    def on_row_list_chosen(self, _event: RowList.Chosen) -> None:
        self.main.query_one("#pane", Lines).focus()

    def on_row_list_reading(self, event: RowList.Reading) -> None:
        rows = self.main.query_one(RowList)
        if event.problem:
            self.say(event.problem, bad=True)
        elif not self.is_working and self.conditions:
            found = counted(len(rows.rows), "message")
            if event.share is not None:
                if rows.is_reading:  # else it was stopped since
                    self.say(f"filter: {event.share:.0%}, {found} found, Esc stops")
            else:
                more = "" if rows.at_end else "; more are looked for at the end of the list"
                self.say(f"filter: {found} found{more}")
        self._say_title()

    def _fill_pane(self) -> None:
        """Reads what the cursor is on, in a thread; only the last call counts."""
        rows, lines = self.main.query_one(RowList), self.main.query_one("#pane", Lines)
        row, listing, name = rows.row, rows.listing, self._pane
        if row is None or listing is None:
            lines.put([])
            return
        width, reader = max(lines.size.width - 2, 20), self.opened.reader

        def work() -> None:
            worker = get_current_worker()
            with reader.guard:
                if worker.is_cancelled:
                    return
                found = pane(name, reader, listing, row, width)
            if not worker.is_cancelled:
                self.call_from_thread(self._put_pane, row, name, found)

        self.run_worker(work, thread=True, group="pane", exclusive=True)

    def _put_pane(self, row: Row, name: str, found: list[Line]) -> None:
        if self.main.query_one(RowList).row is row and self._pane == name:
            self.main.query_one("#pane", Lines).put(found)

    def action_pane(self, name: str) -> None:
        self._pane = name
        self._say_panes()
        self._fill_pane()

    def action_zoom(self) -> None:
        """The pane over the whole screen, and back."""
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
            self.main.query_one(RowList).focus()

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
        """Esc: out of the line of the filter; stops what is being read; takes the filter away."""
        line, rows = self.main.query_one("#filter", Input), self.main.query_one(RowList)
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

    # -- going somewhere ----------------------------------------------------------------------

    def _ask(self, question: str, placeholder: str, then: Callable[[str], None]) -> None:
        def answered(text: str | None) -> None:
            if text is None:
                return
            try:
                then(text)
            except RmqctlError as error:
                self.say(str(error), bad=True)

        self.push_screen(Question(question, placeholder), answered)

    def _current_queue(self, listing: QueueListing) -> int:
        """The number of the queue that the cursor is in."""
        row = self.main.query_one(RowList).row
        return 0 if row is None else int(row.position[0])

    def action_offset(self) -> None:
        listing = self.main.query_one(RowList).listing
        what = "queue offset" if isinstance(listing, QueueListing) else "physical offset" if (
            isinstance(listing, LogListing)) else "record number"
        self._ask(f"Go to which {what}? (@N: physical offset)", "1200, 0x4b0, @326000",
                  self._go_to_offset)

    def _go_to_offset(self, text: str) -> None:
        rows = self.main.query_one(RowList)
        listing = rows.listing
        wanted = parse_offset(text.removeprefix("@"))
        if text.startswith("@"):
            self._show_physical(wanted)
        elif isinstance(listing, QueueListing) and listing.queues and rows.reader is not None:
            number = self._current_queue(listing)
            first, end = listing.range_of(number)
            if not first <= wanted < end:
                raise UsageError(f"queue offset {wanted}: the queue has {first} to {end - 1}")
            rows.show(rows.reader, listing, listing.at_offset(wanted, number))
        elif isinstance(listing, LogListing):
            self._show_physical(wanted)
        elif listing is not None and rows.reader is not None:
            rows.show(rows.reader, listing, wanted)

    def _show_physical(self, wanted: int) -> None:
        """The log from a physical offset on, or from the first record behind it."""
        def at(_listing: Listing) -> int:
            self.opened.reader.check_offset(wanted)
            return wanted

        self._show(Place(), at)

    def action_time(self) -> None:
        self._ask("Go to which time? (the first message stored then or later)",
                  "2024-06-21T19:51, 1700000000000, -2h", self._go_to_time)

    def _go_to_time(self, text: str) -> None:
        when, rows = self._parse_time(text), self.main.query_one(RowList)
        listing, reader = rows.listing, rows.reader
        if reader is None or not isinstance(listing, LogListing | QueueListing):
            raise UsageError("times are of messages: choose a queue, a topic or the log")
        number = self._current_queue(listing) if isinstance(listing, QueueListing) else 0

        def work(watch: Watch) -> Position | None:
            with reader.guard:
                if isinstance(listing, QueueListing):
                    return listing.at_time(when, number) if listing.queues else None
                return listing.at_time(when, watch)

        def found(position: Position | None) -> None:
            if position is None:
                self.say(f"no message was stored at {text} or later", bad=True)
                rows.action_last()
            else:
                rows.show(reader, listing, position)

        self.run_task("looking for the time", 0, work, found)

    def action_key(self) -> None:
        topic = self.place.topic
        where = f"in {visible(topic)}" if topic else "in all topics"
        self._ask(f"Messages with which key, unique key or message id ({where})?", "order-17",
                  self._go_to_key)

    def _go_to_key(self, key: str) -> None:
        reader, topic = self.opened.reader, self.place.topic

        def work(_watch: Watch) -> Listing:
            with reader.guard:
                return reader.with_key(key, [topic] if topic else self.opened.known_topics())

        def found(listing: Listing) -> None:
            self._say_listing(listing)
            self.main.query_one(RowList).show(reader, listing)
            self.main.query_one(RowList).focus()

        self.run_task(f"looking for the key {key}", 0, work, found)

    def action_other(self) -> None:
        """From the log to the queue of the message, and back."""
        row = self.main.query_one(RowList).row
        listing = self.main.query_one(RowList).listing
        if row is None or row.physical is None:
            return
        if isinstance(listing, LogListing) and row.place is not None:
            topic, queue_id, offset = row.place
            self._show(Place("queue", topic, queue_id), lambda _listing: (0, offset))
        else:
            self._show_physical(row.physical)

    # -- verify, export, refresh --------------------------------------------------------------

    def action_verify(self) -> None:
        from rmqctl.ext.browse import checking  # verify is large, and not needed at the start

        # Read the selection now: it may change while the thread works.
        row = self.main.query_one(RowList).row
        of_tree = self.main.query_one(StoreTree).has_focus
        task = None if of_tree or row is None else checking.of_row(row)
        place, opened = self._verified_place(of_tree), self.opened

        def work(watch: Watch) -> tuple[Task, Answer]:
            reader = opened.another()
            try:
                chosen = task or checking.of_place(place, reader)
                answer = checking.run(chosen, reader, watch)
                if row is not None and row.kind == "message" and task is not None:
                    said = checking.row_of(reader, row.physical or 0)
                    answer.notes += [said] if said else []
                return chosen, answer
            finally:
                reader.close()

        # The share of completed work needs a total.
        total = 0
        if task is not None and task.part is not None:
            total = task.part[1] - task.part[0]
        elif opened.reader.store.layout.reads("commitlog"):
            total = opened.reader.store.log.size
        self.run_task(f"verifying {place.name if task is None else 'it'}", total, work,
                  lambda found: self._show_findings(*found))

    def _verified_place(self, of_tree: bool) -> Place:
        node = self.main.query_one(StoreTree).cursor_node
        if of_tree and node is not None and isinstance(node.data, Place):
            return node.data
        return self.place

    def _show_findings(self, task: Task, answer: Answer) -> None:
        from rmqctl.ext.browse.findings import Findings

        self.push_screen(Findings(task, answer, self.opened.root), self._go_to_finding)

    def _go_to_finding(self, finding: Finding | None) -> None:
        if finding is None:
            return
        if finding.structure == "commitlog" and finding.offset is not None:
            self._show_physical(finding.offset)
        elif finding.topic is not None and finding.queue_id is not None:
            offset = finding.queue_offset
            self._show(Place("queue", finding.topic, finding.queue_id),
                       lambda _listing: None if offset is None else (0, offset))
        elif finding.file is not None and os.path.isfile(finding.file):
            self._show(Place("file", path=finding.file))
        self.main.query_one(RowList).focus()

    def action_export(self) -> None:
        if not isinstance(self.main.query_one(RowList).listing, LogListing | QueueListing):
            self.say("messages are exported: choose a queue, a topic or the log", bad=True)
            return
        self._ask(f"Export {self.place.name}{' as filtered' if self.conditions else ''} to which "
                  "new file?", "messages.jsonl (.parquet .csv .avro .arrow .xlsx)",
                  self._export_to)

    def _export_to(self, target: str) -> None:
        place, conditions, reader = self.place, self.conditions, self.opened.reader
        self.run_task("exporting", reader.store.log.size,
                  lambda watch: export(reader, place, conditions, target, watch), self.say)

    def action_refresh(self) -> None:
        rows = self.main.query_one(RowList)
        row, was_log = rows.row, isinstance(rows.listing, LogListing | QueueListing)
        rows.stop()

        def work(_watch: Watch) -> None:
            self.opened.refresh()

        def done(_nothing: None) -> None:
            self.main.query_one(StoreTree).fill()
            self._say_title()
            self._show(self.place, lambda _listing: row.position if row and was_log else None,
                       lambda: self.say("looked at anew"))

        self.run_task("looking at the store anew", 0, work, done)

    def action_help(self) -> None:
        self.push_screen(Help())
