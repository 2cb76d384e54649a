"""What comes up over the screen: a question, the keys."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from rmqctl.ext.browse.panes import Line
from rmqctl.ext.browse.widgets import Lines

KEYS = """\
Everywhere
  Tab          to the next of tree, list, pane
  Esc          stops what is being read, else takes the filter away
  r            looks at the store anew: what a broker wrote since
  q            the end
In the tree
  Enter        shows it in the list; opens and closes a branch
  v            verifies it: a file, queue, topic, or all of it
In the list
  arrows, PgUp, PgDn, Home, End: one is at the ends of all there is
  /            filter: text in tags, keys or body; or conditions as
               of `rmqctl read --where`, such as
               tags=TagA && store_timestamp>=2024-06-21
               ("a=b" in quotes is text)
  g            to an offset: of the queue, in the log a physical one
               (@N is a physical offset from everywhere)
  t            to a time: 2024-06-21T19:51, 1700000000000, -2h
  k            messages with a key, unique key or message id
  o            the message's other place: in its queue, in the log
  v            verifies the message, or the damage
  e            exports what the list shows, filtered, to a new file
The pane below
  1 2 3        fields, bytes by field, JSON
  z            as large as the screen, and back

Nothing of the store is changed. What is damaged is red.
"""


class Help(ModalScreen[None]):
    """The keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter",
                                                     "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        lines: list[Line] = [((line, "" if line.startswith(" ") else "name"),)
                             for line in KEYS.splitlines()]
        with Vertical(classes="box"):
            yield Lines(lines, id="help")

    def on_mount(self) -> None:
        self.query_one(Lines).focus()


class Question(ModalScreen[str | None]):
    """One line to be typed; None where Esc was pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]

    def __init__(self, question: str, placeholder: str) -> None:
        super().__init__()
        self._question, self._placeholder = question, placeholder

    def compose(self) -> ComposeResult:
        with Vertical(classes="box question"):
            yield Static(Text(self._question))
            yield Input(placeholder=self._placeholder, id="answer")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value.strip() or None)
