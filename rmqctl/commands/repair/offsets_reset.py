"""``rmqctl offsets reset``: sets a consumer group's offsets, offline."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.options import ListedOut, Queue, StoreQueues, Topic, View, Zone
from rmqctl.errors import UsageError
from rmqctl.parse_values import now_ms, parse_time, show_times_in

if TYPE_CHECKING:
    from rmqctl.repair.offsets import Reset
    from rmqctl.repair.scratch import Scratch


def command(
    *,
    group: Annotated[str, typer.Option(
        "--group", "-g", metavar="GROUP", autocompletion=complete_groups,
        show_default=False, help="The consumer group.")],
    topic: Topic = None,
    queue: Queue = None,
    time: Annotated[str | None, typer.Option(
        "--time", metavar="TIME", help="To the first message stored then or later: ISO-8601, epoch "
        "ms or s, yyyyMMdd, relative (-2h).")] = None,
    to: Annotated[Literal["earliest", "latest"] | None, typer.Option(
        "--to", show_default=False, help="To the first message there is, or behind the last.",
    )] = None,
    beyond_end: Annotated[bool, typer.Option(
        "--beyond-end", help="Move offsets beyond the end of a queue to its end; keep all others. "
        "Skips no unread message.")] = False,
    view: View = "auto",
    tz: Zone = UTC,
    apply: ApplyOptions,
    store: StoreQueues,
    out: ListedOut,
) -> None:
    """Set where a consumer group goes on: shows the plan, and with --apply carries it out.

    Without --topic in all topics of which the group committed offsets, but its retry topics. Only
    the offsets in config/ are changed, while no broker runs; consumers that keep their own do not
    see it: broadcasting ones, and those that are not stopped until the broker is up again. A queue
    begins and ends where a broker has it after a start, unless --view disk is given. The file as
    it was is kept, and `rmqctl undo` brings it back.

        rmqctl offsets reset STORE --group billing --time 2024-06-21T19:53:00Z

        rmqctl offsets reset STORE --group billing --topic orders --queue 3 --to earliest --apply

        rmqctl offsets reset STORE --group billing --beyond-end
    """
    from rmqctl.broker.view import view_of
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.offsets import Reset, plan_reset

    show_times_in(tz)
    if sum((time is not None, to is not None, beyond_end)) != 1:
        raise UsageError("pass one of --time, --to and --beyond-end")
    if queue is not None and topic is None:
        raise UsageError("--queue needs --topic")
    wanted: Reset = Reset(group, parse_time(time, tz=tz) if time is not None
                          else "beyond-end" if beyond_end else to or "latest", topic, queue)

    def propose(scratch: Scratch) -> plan_page.Proposal:
        with store.open() as opened:
            kind = view if view == "disk" or not opened.layout.reads("consumequeue") else "broker"
            made = plan_reset(opened, wanted, view_of(opened, kind), now_ms, scratch)
        return plan_page.Proposal(made.plan, {
            "group": group, "queues": [moved.as_dict() for moved in made.queues]})

    applying.run(out, store.root, "offsets-reset", propose, apply, writes=())
