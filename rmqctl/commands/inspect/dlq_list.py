"""``rmqctl dlq list``: list dead letters by consumer group."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.dead_letters import OF_DEAD_LETTERS, refuse_unknown
from rmqctl.commands.shared.message_options import SelectOptions
from rmqctl.commands.shared.messages import ReadFaults, message_render
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
        help="Only dead letters of this consumer group.",
    )] = None,
    select: Annotated[SelectOptions, pick(OF_DEAD_LETTERS)],
    view: View = "disk",
    tz: Zone = UTC,
    store: StoreIndex,
    out: Out,
) -> None:
    """List dead letters by group, in log order.

    A broker moves a message that failed too often to the topic %DLQ%GROUP. origin_topic and
    origin_msg_id identify the original message; reconsume_times counts its retries; requeued is the
    id of the message that `dlq requeue` created. `rmqctl read --topic %DLQ%GROUP` shows the
    messages themselves. Exit code 1 if the given group has no dead letters.

        rmqctl dlq list STORE --group billing --since -1d
    """
    from rmqctl.broker.view import view_of
    from rmqctl.store.groups.dead_letters import COLUMNS, groups_with

    wanted = select.selection(tz)
    faults = ReadFaults(out)
    with store.open() as opened:
        opened.layout.require(store.root, "consumequeue")
        if group is not None:
            refuse_unknown(out, opened, group)
        groups = groups_with(opened) if group is None else [group]
        count = out.rows(_rows(view_of(opened, view), groups, wanted, faults), COLUMNS,
                         brief=_BRIEF, empty="no dead letters", render=message_render(tz))
    faults.has_findings |= not count and group is not None
    faults.end()


def _rows(view: Bounds, groups: list[str], wanted: Selection,
          faults: ReadFaults) -> Iterator[dict[str, Any]]:
    from rmqctl.store.groups.dead_letters import Requeued, dead_letters

    requeued = Requeued(view, faults.report)
    for group in groups:
        for letter in dead_letters(view, group, wanted, faults.report):
            yield {**letter.as_dict(), "requeued": requeued.find(letter)}
