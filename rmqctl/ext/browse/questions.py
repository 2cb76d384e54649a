"""Screens shown on top of the main screen: a question, and the list of keys."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from rmqctl.ext.browse.panes import Line
from rmqctl.ext.browse.widgets import LinePane

KEYS = """\
Everywhere
  Tab          go to the next of tree, list, pane
  j k          down and up, like the arrow keys
  g G          to the first and last row, like Home and End
  n            next hit of the filter; without a filter, next damage
  Esc          stop reading; when idle, remove the filter
  r            read the store again, with what was written since
  q            quit
The lines at the top
  time         bytes of messages by store time, from a sample;
               \u2591 messages of this time are lost
  log          from the first to the last byte, the cursor reversed:
               \u2500 read, \u00b7 not read yet, \u2588 damage, x no file
In the tree
  Enter        show it in the list; open and close a branch
  v            verify it: a file, queue, topic, or the whole store
  0-99         offsets of a queue; +9! entries beyond the log
  lag 12       messages that a group has not consumed
In the list
  PgUp PgDn    one screen up and down
  /            filter: text in tags, keys or body; or conditions as
               in `rmqctl read --where`, such as
               tags=TagA && store_timestamp>=2024-06-21
               ("a=b" in quotes is text)
  :            to a queue offset; in the log, to a physical offset
               (@N is a physical offset in every list)
  t            to a time: 2024-06-21T19:51, 1700000000000, -2h
  K            messages with a key, unique key or message id
  o            from the log to the message's queue, and back
  v            verify the message, or the damage
  e            export what the list shows, filtered, to a new file
The pane below
  1 2 3        fields, bytes by field, JSON
  z            full screen, and back

Nothing in the store is changed. Damage is red.
"""


class Help(ModalScreen[None]):
    """The screen that lists the keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter",
                                                     "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        lines: list[Line] = [((line, "" if line.startswith(" ") else "name"),)
                             for line in KEYS.splitlines()]
        with Vertical(classes="box"):
            yield LinePane(lines, id="help")

    def on_mount(self) -> None:
        self.query_one(LinePane).focus()


class Question(ModalScreen[str | None]):
    """A question with one line of input. Result: the input, or None if Esc was pressed."""

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
