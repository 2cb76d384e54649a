"""``rmqctl pop release``: make messages that POP delivered visible again."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.options import ListedOut, Queue, StoreQueues, Topic, Zone
from rmqctl.output.units import count_text
from rmqctl.parse_values import now_ms, show_times_in
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.commands.shared.plan_page import Proposal
    from rmqctl.repair.scratch import Scratch

_RELEASED = ("topic", "queue_id", "queue_offset", "retry_topic", "keys")
_LEFT = ("topic", "queue_id", "queue_offset", "reason")


def command(
    *,
    group: Annotated[str, typer.Option(
        "--group", "-g", metavar="GROUP", autocompletion=complete_groups, show_default=False,
        help="The consumer group that received the messages.")],
    topic: Topic = None,
    queue: Queue = None,
    undecided: Annotated[bool, typer.Option(
        "--undecided", help="Also release messages whose acknowledgement is unknown because of "
                            "damage; they may be delivered twice.")] = False,
    tz: Zone = UTC,
    apply: ApplyOptions,
    store: StoreQueues,
    out: ListedOut,
) -> None:
    """Make unacknowledged POP messages visible again.

    Shows the plan; --apply carries it out. Puts each message, including lost ones, into the group's
    retry topic and acknowledges the original, as a broker does on timeout. Messages that cannot be
    redelivered are only counted. If the store does not show whether a message was acknowledged,
    --undecided releases it; run `rmqctl recover` first, which may restore that evidence. The store
    must be closed cleanly. `rmqctl undo` reverts it until a broker runs.

        rmqctl pop release STORE --group billing
        rmqctl pop release STORE --group billing --topic orders --queue 3 --apply
    """
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.pop_release import COMMAND, plan_release

    show_times_in(tz)

    def propose(scratch: Scratch) -> Proposal:
        with store.open() as opened:
            release = plan_release(opened, lambda point: (
                point.consumerGroup == group and topic in (None, point.topic)
                and queue in (None, point.queueId)), now_ms, scratch, undecided=undecided)
        return plan_page.Proposal(
            release.plan, {"group": group, "released": release.released, "left": release.left},
            {"delivered again": count_text(len(release.released)),
             "left": count_text(len(release.left))},
            listed=((Phrase("Delivered again"), release.released, _RELEASED),
                    (Phrase("Left"), release.left, _LEFT)))

    applying.run(out, store.root, COMMAND, propose, apply, folders=store.folders,
                 made_anew=True)
