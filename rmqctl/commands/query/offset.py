"""``rmqctl query offset``: the message at, or around, a physical offset."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqctl.commands.shared.message_options import MessageOptions
from rmqctl.commands.shared.messages import Faults, not_found
from rmqctl.commands.shared.options import Out, StoreLog
from rmqctl.commands.shared.tracking import Track, show_found
from rmqctl.parse_values import parse_offset


def command(
    *,
    phy: Annotated[int, typer.Option(
        "--phy", metavar="OFFSET", parser=parse_offset, help="Physical offset in the log.")],
    around: Annotated[bool, typer.Option(
        "--containing", help="The message whose bytes include the offset.")] = False,
    track: Track = False,
    show: MessageOptions,
    store: StoreLog,
    out: Out,
) -> None:
    """Show the message that starts at a physical offset, or with --containing lies around it.

    Exit code 1 when there is none; what is there instead is said on stderr.

        rmqctl query offset STORE --phy 536897170
    """
    from rmqctl.store.query.lookup import containing, message_at, where_is

    projection = show.projection(out)
    faults = Faults(out, show)
    with store.open() as opened:
        record = containing(opened, phy) if around else message_at(
            opened, phy, faults.report)
        show_found(out, opened, [] if record is None else [record], projection, show.tz, faults,
                   track=track)
        if record is None:
            not_found(out, faults, f"no message at physical offset {phy}: {where_is(opened, phy)}")
    faults.end()
