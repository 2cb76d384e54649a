"""``rmqctl browse``: a store on the screen."""

from __future__ import annotations

import os
from datetime import UTC
from functools import cache

from rmqctl.commands.app.exit_codes import Terminated
from rmqctl.commands.shared.message_options import Decode, decoding_of
from rmqctl.commands.shared.options import StoreOptions, Zone
from rmqctl.errors import UsageError, require
from rmqctl.output.streams import has_screen
from rmqctl.parse_values import parse_time, show_times_in


def command(*, store: StoreOptions, decode: Decode = None, tz: Zone = UTC) -> None:
    """Browse a store: topics, queues, groups, files, messages, damage. Nothing is changed.

    A tree with counts and lag, a list of messages with a filter (the conditions of `rmqctl read
    --where`, or text), and the fields, bytes or JSON of the message under the cursor. Strips show
    where damage is in the log and when messages were stored. Goes to offsets, times, keys and
    damage, verifies a place, and exports it to a new file. Only what is shown is read. ? lists the
    keys. Needs a terminal of 80 by 24 or more, and `pip install 'rmqctl[tui]'`.

        rmqctl browse STORE
    """
    if not has_screen(os.environ):
        raise UsageError("browse needs a terminal for its input, output and errors; `rmqctl read` "
                         "and `rmqctl info` write to files and pipes")
    require("textual")
    from rmqctl.ext.browse.app import Browser
    from rmqctl.ext.browse.opened import Opened
    from rmqctl.store.query.conditions import read_condition

    show_times_in(tz)
    opened = Opened(store.open)
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
