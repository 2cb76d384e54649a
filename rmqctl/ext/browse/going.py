"""Navigation: the place in the store that the list shows, and key actions that go elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.widgets import Static

from rmqctl.errors import RmqctlError, UsageError
from rmqctl.ext.browse.header import StoreHeader
from rmqctl.ext.browse.listing import (
    LogListing,
    Position,
    QueueListing,
    RowListing,
    Watch,
)
from rmqctl.ext.browse.opened import BrowsedPlace, BrowsedStore, StoreView
from rmqctl.ext.browse.questions import Question
from rmqctl.ext.browse.widgets import RowList
from rmqctl.ext.browse.working import Working
from rmqctl.output.escape import visible
from rmqctl.parse_values import parse_offset
from rmqctl.store.query.conditions import Condition


class Navigator(Working):
    """An application whose main screen has a `RowList`, a `StoreHeader`, and a line ``#what``
    with the list's title.
    """

    def __init__(self, opened: BrowsedStore, parse_time: Callable[[str], int]) -> None:
        super().__init__()
        self.opened, self._parse_time = opened, parse_time
        self.place = BrowsedPlace()
        self.conditions: tuple[Condition, ...] = ()

    @property
    def header(self) -> StoreHeader:
        return self.main.query_one(StoreHeader)

    @property
    def _list(self) -> RowList:
        return self.main.query_one(RowList)

    def _say_listing(self, listing: RowListing | None) -> None:
        title = self.place.name if listing is None else listing.title
        shown = " · filtered" if self.conditions else ""
        self.main.query_one("#what", Static).update(Text(f" {title}{shown}"))

    def _show(self, place: BrowsedPlace,
              at: Callable[[RowListing], Position | None] = lambda _: None,
              then: Callable[[], None] = lambda: None) -> None:
        """Show a place in the list, from the position that ``at`` returns. The reading thread calls
        ``at``, which may read the store.
        """
        conditions = self.conditions
        self._list.stop()

        def work(_watch: Watch) -> tuple[StoreView, RowListing, Position | None]:
            reader = self.opened.scanning() if conditions else self.opened.reader
            with reader.guard:
                listing = reader.listing(place, conditions)
                return reader, listing, at(listing)

        def shown(opened: tuple[StoreView, RowListing, Position | None]) -> None:
            reader, listing, position = opened
            self.place = place
            self._say_listing(listing)
            self._list.show(reader, listing, position)
            then()

        self.run_task(f"opening {place.name}", 0, work, shown)

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
        """Return the index, within the listing, of the queue under the cursor."""
        row = self._list.row
        return 0 if row is None else int(row.position[0])

    def action_next(self) -> None:
        """Go to the next message that matches the filter; without a filter, to the next damage."""
        rows, reader, listing = self._list, self.opened, self._list.listing
        if listing is None or rows.row is None:
            return
        if self.conditions:
            before = rows.row
            rows.action_move(1)
            if rows.row is before:
                self.say("no further hit" if rows.at_end else "still searching for hits")
            return
        start, place = rows.row.after, self.place
        total = listing.end - start if isinstance(listing, LogListing) else 0

        def work(watch: Watch) -> Position | None:
            if not isinstance(listing, LogListing | QueueListing):
                return listing.next_damage(start, watch)
            scan = reader.scanning()  # a reader of its own, so that the screen does not wait
            with scan.guard:
                return scan.listing(place).next_damage(start, watch)

        def show_position(position: Position | None) -> None:
            self.header.show()
            if position is not None and rows.reader is not None:
                rows.show(rows.reader, listing, position)
            elif self.header.survey.reach > self.header.survey.end:
                self.say("no more damage in the log files that exist; later files are missing")
            else:
                self.say("no more damage")

        self.run_task("searching for damage", total, work, show_position)

    def action_offset(self) -> None:
        listing = self._list.listing
        unit = "queue offset" if isinstance(listing, QueueListing) else "physical offset" if (
            isinstance(listing, LogListing)) else "record number"
        self._ask(f"Go to which {unit}? (@N: physical offset)", "1200, 0x4b0, @326000",
                  self._go_to_offset)

    def _go_to_offset(self, text: str) -> None:
        rows = self._list
        listing = rows.listing
        wanted = parse_offset(text.removeprefix("@"))
        if text.startswith("@"):
            self._show_physical(wanted)
        elif isinstance(listing, QueueListing) and listing.queues and rows.reader is not None:
            number = self._current_queue(listing)
            first, end = listing.range_of(number)
            if not first <= wanted < end:
                raise UsageError(f"queue offset {wanted} does not exist: the queue has "
                                 f"offsets {first} to {end - 1}")
            rows.show(rows.reader, listing, listing.at_offset(wanted, number))
        elif isinstance(listing, LogListing):
            self._show_physical(wanted)
        elif listing is not None and rows.reader is not None:
            rows.show(rows.reader, listing, wanted)

    def _show_physical(self, wanted: int) -> None:
        """Show the log, starting at the first record at or after a physical offset."""
        def at(_listing: RowListing) -> int:
            self.opened.reader.check_offset(wanted)
            return wanted

        self._show(BrowsedPlace(), at)

    def action_time(self) -> None:
        self._ask("Go to which time? (the first message stored then or later)",
                  "2024-06-21T19:51, 1700000000000, -2h", self._go_to_time)

    def _go_to_time(self, text: str) -> None:
        when, rows = self._parse_time(text), self._list
        listing, reader = rows.listing, rows.reader
        if reader is None or not isinstance(listing, LogListing | QueueListing):
            raise UsageError("only messages have a time: select a queue, a topic or the log")
        number = self._current_queue(listing) if isinstance(listing, QueueListing) else 0

        def work(watch: Watch) -> Position | None:
            with reader.guard:
                if isinstance(listing, QueueListing):
                    return listing.at_time(when, number) if listing.queues else None
                return listing.at_time(when, watch)

        def show_position(position: Position | None) -> None:
            if position is None:
                self.say(f"no message was stored at {text} or later", bad=True)
                rows.action_last()
            else:
                rows.show(reader, listing, position)

        self.run_task("searching for the time", 0, work, show_position)

    def action_key(self) -> None:
        topic = self.place.topic
        where = f"in {visible(topic)}" if topic else "in all topics"
        self._ask(f"Messages with which key, unique key or message id ({where})?", "order-17",
                  self._go_to_key)

    def _go_to_key(self, key: str) -> None:
        reader, topic = self.opened.reader, self.place.topic

        def work(_watch: Watch) -> RowListing:
            with reader.guard:
                return reader.with_key(key, [topic] if topic else self.opened.known_topics())

        def show_messages(listing: RowListing) -> None:
            self._say_listing(listing)
            self._list.show(reader, listing)
            self._list.focus()

        self.run_task(f"searching for the key {key}", 0, work, show_messages)

    def action_other(self) -> None:
        """Go from a message in the log to its queue entry. In any other list, go to the message in
        the log.
        """
        row = self._list.row
        listing = self._list.listing
        if row is None or row.physical is None:
            return
        if isinstance(listing, LogListing) and row.place is not None:
            topic, queue_id, offset = row.place
            self._show(BrowsedPlace("queue", topic, queue_id), lambda _listing: (0, offset))
        else:
            self._show_physical(row.physical)
