"""``rmqctl browse``: browse a store on the screen."""

from __future__ import annotations

import os
from datetime import UTC
from functools import cache

from rmqctl.commands.app.exit_codes import Terminated
from rmqctl.commands.app.typed import words
from rmqctl.commands.shared.message_options import Decode, decoding_of
from rmqctl.commands.shared.options import StoreOptions, Zone
from rmqctl.errors import UsageError, require
from rmqctl.output.core import Output
from rmqctl.output.language import ENGLISH, requested
from rmqctl.output.streams import has_screen
from rmqctl.parse_values import parse_time, show_times_in
from rmqctl.phrases import Phrase

_IN_ENGLISH = Phrase("The screens of browse are in English.")


def command(*, store: StoreOptions, decode: Decode = None, tz: Zone = UTC) -> None:
    """Browse a store interactively. Nothing is changed.

    Shows topics, queues, groups and files with counts and lag; messages with a filter (conditions
    as for `rmqctl read --where`, or text); fields, bytes or JSON of a message; and where damage is.
    Jumps to offsets, times, keys and damage, and exports messages. Press ? for the keys. Requires a
    terminal of at least 80x24 and pip install 'rmqctl[tui]'.

        rmqctl browse STORE
    """
    if not has_screen(os.environ):
        raise UsageError("browse requires a terminal for input, output and errors; use `rmqctl "
                         "read` or `rmqctl info` with files and pipes")
    require("textual")
    from rmqctl.ext.browse.app import Browser
    from rmqctl.ext.browse.opened import BrowsedStore
    from rmqctl.store.query.conditions import read_condition

    spoken = requested(words.get(), os.environ)
    if spoken.name != ENGLISH:
        Output.open(lang=spoken.name).note(_IN_ENGLISH)
    show_times_in(tz)
    opened = BrowsedStore(store.open)
    try:
        decoding = cache(lambda: decoding_of(decode))  # only when a condition asks for it
        app = Browser(opened, lambda text: read_condition(text, tz, decoding),
                      lambda text: parse_time(text, tz=tz))
        app.run()
    finally:
        opened.close()
    if app.failure is not None:
        raise app.failure
    if app.terminated:
        raise Terminated
