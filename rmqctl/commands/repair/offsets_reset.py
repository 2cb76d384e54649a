"""``rmqctl offsets reset``: set a consumer group's offsets, offline."""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.options import ListedOut, Queue, StoreQueues, Topic, View, Zone
from rmqctl.errors import UsageError
from rmqctl.parse_values import now_ms, parse_time, show_times_in

if TYPE_CHECKING:
    from rmqctl.repair.offsets.reset import Number, Reset
    from rmqctl.repair.scratch import Scratch


def command(
    *,
    group: Annotated[str, typer.Option(
        "--group", "-g", metavar="GROUP", autocompletion=complete_groups,
        show_default=False, help="Consumer group.")],
    topic: Topic = None,
    queue: Queue = None,
    to: Annotated[str | None, typer.Option(
        "--to", metavar="earliest|latest|N|TIME", show_default=False,
        help="earliest, latest, a queue offset N, or the first message stored at TIME or later "
             "(ISO-8601, -2h).")] = None,
    time: Annotated[str | None, typer.Option(
        "--time", metavar="TIME", help="Reset to the first message stored at this time or later: "
                                       "ISO-8601, epoch ms or s, yyyyMMdd, relative "
                                       "(-2h).")] = None,
    shift_by: Annotated[int | None, typer.Option(
        "--shift-by", metavar="N", show_default=False,
        help="Move forward by N messages in each queue, or back with a negative N: --shift-by "
             "-100.")] = None,
    beyond_end: Annotated[bool, typer.Option(
        "--beyond-end", help="Move offsets beyond the end of a queue to its end; keep all others. "
                             "Skips no unread message.")] = False,
    view: View = "auto",
    tz: Zone = UTC,
    apply: ApplyOptions,
    store: StoreQueues,
    out: ListedOut,
) -> None:
    """Set the offsets of a consumer group to a time, an offset or either end.

    Shows the plan; --apply carries it out while no broker runs. Without --topic, resets all topics
    in which the group committed offsets, except its retry topics. Broadcasting consumers store
    their offsets themselves; stop the group's other consumers until the broker is up again. Queue
    ends are those after a broker's startup, unless --view disk is given. `rmqctl undo` restores
    the previous file.

        rmqctl offsets reset STORE --group billing --time 2024-06-21T19:53:00Z
        rmqctl offsets reset STORE --group billing --topic orders --queue 3 --to earliest --apply
        rmqctl offsets reset STORE --group billing --shift-by -100
        rmqctl offsets reset STORE --group billing --beyond-end
    """
    from rmqctl.broker.view import after_start
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.offsets.reset import Reset, plan_reset

    show_times_in(tz)
    if sum((time is not None, to is not None, shift_by is not None, beyond_end)) != 1:
        raise UsageError("pass one of --to, --time, --shift-by and --beyond-end")
    if queue is not None and topic is None:
        raise UsageError("--queue requires --topic")
    wanted: Reset = Reset(group, _place(to, time, shift_by, tz), topic, queue)

    def propose(scratch: Scratch) -> plan_page.Proposal:
        with store.open() as opened:
            move = plan_reset(opened, wanted, after_start(opened, view), now_ms, scratch)
        return plan_page.Proposal(move.plan, {
            "group": group, "queues": [moved.as_dict() for moved in move.queues]})

    applying.run(out, store.root, "offsets-reset", propose, apply, writes=())


def _place(to: str | None, time: str | None, shift_by: int | None,
           tz: tzinfo) -> int | Number | Literal["earliest", "latest", "beyond-end"]:
    """Return the kind of reset that the options request; ``beyond-end`` if none of these options is
    given. Raises: UsageError.
    """
    from rmqctl.repair.offsets.reset import Number

    if shift_by is not None:
        return Number(shift_by, is_shift=True)
    if to == "earliest":
        return "earliest"
    if to == "latest":
        return "latest"
    if to is not None and to.isascii() and to.isdigit():
        return Number(int(to))
    when = time if to is None else to
    return "beyond-end" if when is None else parse_time(when, tz=tz)
