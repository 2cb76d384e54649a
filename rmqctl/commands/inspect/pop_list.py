"""``rmqctl pop list``: list messages that POP delivered but no consumer acknowledged."""

from __future__ import annotations

from datetime import UTC
from typing import Annotated, Literal

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.shared.messages import ReadFaults
from rmqctl.commands.shared.options import Out, Queue, StoreQueues, Topic, Zone
from rmqctl.output.units import duration_text, time_text
from rmqctl.parse_values import now_ms

_BRIEF = ("state", "group", "topic", "queue_id", "queue_offset", "age_ms", "visible_at", "keys",
          "popped")


def command(
    *,
    group: Annotated[str | None, typer.Option(
        "--group", "-g", metavar="GROUP", autocompletion=complete_groups,
        help="Only deliveries to this consumer group.")] = None,
    topic: Topic = None,
    queue: Queue = None,
    state: Annotated[Literal[
        "invisible", "due", "lost", "orphaned", "undecided"] | None, typer.Option(
        "--state", show_default=False, help="invisible, due: a broker delivers the message again. "
                                            "lost, orphaned: it does not. undecided: "
                                            "unknown.")] = None,
    count: Annotated[int | None, typer.Option(
        "--limit", metavar="N", min=0, help="At most this many messages.")] = None,
    tz: Zone = UTC,
    store: StoreQueues,
    out: Out,
) -> None:
    """List messages that POP delivered and the group did not acknowledge.

    state: invisible until visible_at; due (the broker delivers it again soon after startup); lost
    (the revive offset is past it and no retry topic contains it); undecided (the evidence is
    damaged); orphaned (no longer in the log, replaced, beyond the end, or without queue or topic).
    Acknowledgements in a broker's memory are not in the store. Exit code 1 if a message will not be
    redelivered; `pop release` redelivers lost messages.

        rmqctl pop list STORE --group billing --state lost
    """
    from rmqctl.checks.popped import COLUMNS, LOST, ORPHANED, UNDECIDED, popped

    now, faults = now_ms(), ReadFaults(out)
    with store.open() as opened:
        result = popped(opened, now, faults.report, lambda point: (
            group in (None, point.consumerGroup) and topic in (None, point.topic)
            and queue in (None, point.queueId)))
    shown = [message for message in result.messages if state is None or message.state == state
             or (state == "orphaned" and message.state in ORPHANED)]
    out.rows((message.as_dict(now) for message in shown[:count]), COLUMNS, brief=_BRIEF,
             empty="no unacknowledged POP messages",
             render={**dict.fromkeys(("age_ms", "invisible_ms"), duration_text), **dict.fromkeys(
                 ("popped", "visible_at", "store_timestamp"),
                 lambda value: time_text(value, tz))})
    for note in result.notes:
        out.note(note)
    if result.acknowledged or result.unmatched:
        out.note(f"acknowledgements found: {result.acknowledged} of deliveries, {result.unmatched} "
                 "without a delivery (acknowledged earlier, or unknown)")
    faults.has_findings |= any(message.state in (LOST, UNDECIDED, *ORPHANED) for message in shown)
    faults.end()
