"""``rmqctl dlq list``: dead letters by group."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.dead_letters import OF_DEAD_LETTERS, refuse_unknown
from rmqctl.commands.shared.message_options import SelectOptions
from rmqctl.commands.shared.messages import Faults, message_render
from rmqctl.commands.shared.options import Out, StoreIndex, View, Zone

if TYPE_CHECKING:
    from rmqctl.store.log.bounds import View as Bounds
    from rmqctl.store.query.select import Selection

_BRIEF = ("group", "physical_offset", "store_timestamp", "origin_topic", "origin_msg_id",
          "reconsume_times", "keys", "requeued")


def command(
    *,
    group: Annotated[str | None, typer.Option(
        "--group", "-g", metavar="GROUP", autocompletion=complete_groups,
        help="The dead letters of this consumer group only.",
    )] = None,
    select: Annotated[SelectOptions, pick(OF_DEAD_LETTERS)],
    view: View = "disk",
    tz: Zone = UTC,
    store: StoreIndex,
    out: Out,
) -> None:
    """Show the messages that groups gave up, by group, in the order of the log.

    A broker puts a message that failed too often into the topic %DLQ%GROUP. origin_topic is where
    it came from, origin_msg_id the id of the message it was first, reconsume_times how often it
    was sent back. requeued is the id of the message that `dlq requeue` made of it. Exit code 1
    when there is nothing of a group that was named; `read --topic %DLQ%GROUP` shows the messages.

        rmqctl dlq list STORE --group billing --since -1d
    """
    from rmqctl.broker.view import view_of
    from rmqctl.store.groups.dead_letters import COLUMNS, groups_with

    wanted = select.selection(tz)
    faults = Faults(out)
    with store.open() as opened:
        opened.layout.require(store.root, "consumequeue")
        if group is not None:
            refuse_unknown(out, opened, group)
        groups = groups_with(opened) if group is None else [group]
        count = out.rows(_rows(view_of(opened, view), groups, wanted, faults), COLUMNS,
                         brief=_BRIEF, empty="no dead letters", render=message_render(tz))
    faults.found |= not count and group is not None
    faults.end()


def _rows(view: Bounds, groups: list[str], wanted: Selection,
          faults: Faults) -> Iterator[dict[str, Any]]:
    from rmqctl.store.groups.dead_letters import Requeued, dead_letters

    requeued = Requeued(view, faults.report)
    for group in groups:
        for letter in dead_letters(view, group, wanted, faults.report):
            yield {**letter.as_dict(), "requeued": requeued.find(letter)}
