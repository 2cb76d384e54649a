"""``rmqctl offsets``: show the offset ranges of queues, and the lag of consumer groups."""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.shared.options import Out, StoreQueues, Topic, View, Zone
from rmqctl.commands.shared.store_warnings import warn_of_cut
from rmqctl.errors import ExitCode
from rmqctl.output.units import time_text

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.store.config.offsets import Lag

_NARROW = ("group", "topic", "queue_id", "max_offset", "consumer_offset", "diff", "note")
_MIDDLE = (*_NARROW[:-1], "unread_since", "note")
_MIDDLE_COLUMNS, _WIDE_COLUMNS = 110, 150


def command(
    *,
    group: Annotated[str | None, typer.Option(
        "--group", "-g", metavar="GROUP", autocompletion=complete_groups,
        help="Only this consumer group.")] = None,
    topic: Topic = None,
    view: View = "auto",
    tz: Zone = UTC,
    store: StoreQueues,
    out: Out,
) -> None:
    """Show the offset range of every queue, and the lag of consumer groups.

    diff is max_offset minus consumer_offset for every read queue of the topic, as a broker computes
    it: a missing offset counts as 0, and expired messages count as unread. diff_total is the sum
    per group; unread_since is the store time of the oldest unread message. The group "(delay)" is
    the delay service. Exit code 1 if nothing matches.
    """
    from rmqctl.broker.view import view_of
    from rmqctl.store.config.offsets import Lag

    with store.sampled(out) as opened:
        queue_view = view_of(opened, view)
        warn_of_cut(out, queue_view)
        lag = Lag(opened, queue_view, group, topic)
        for file in lag.files:
            for problem in file.problems():
                out.warn(problem)
        count = _show(out, lag, tz)
    if not count and (group is not None or topic is not None):
        asked = [f"group {group}"] * (group is not None) + [f"topic {topic}"] * (topic is not None)
        out.warn(f"not in this store: {' and '.join(asked)}")
        raise typer.Exit(int(ExitCode.FINDINGS))
    if lag.no_commits:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _show(out: Output, lag: Lag, tz: tzinfo) -> int:
    """Print the queues and the totals by group; return the number of queues printed."""
    from rmqctl.store.config.offsets import COLUMNS

    if out.is_value:
        rows = list(lag.rows())
        groups = [{"group": name, "diff_total": diff} for name, diff in lag.totals.items()]
        total = sum(lag.totals.values())
        out.document({"queues": rows, "groups": groups, "diff_total": total})
        return len(rows)
    width = _WIDE_COLUMNS if out.is_data else out.human().width
    count = out.rows(
        lag.rows(),
        COLUMNS,
        brief=(COLUMNS if width >= _WIDE_COLUMNS else
               _MIDDLE if width >= _MIDDLE_COLUMNS else _NARROW),
        empty="" if lag.group or lag.topic else "no queues",
        render=dict.fromkeys(("last_store_timestamp", "unread_since"),
                             lambda value: time_text(value, tz)),
    )
    if lag.totals and not out.is_data:
        page = out.human()
        page.blank()
        page.table(
            ({"group": name, "diff_total": diff} for name, diff in lag.totals.items()),
            styles={"diff_total": lambda diff: "warn" if diff else "good"},
        )
    return count
