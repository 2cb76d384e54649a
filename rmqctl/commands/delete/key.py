"""``rmqctl delete key``: erase the messages with a key."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqctl.commands.delete.erasing import EraseOptions, run
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.options import Out, StoreIndex, Topic


def command(
    *,
    key: Annotated[str, typer.Argument(metavar="KEY",
        help="Message key, or the client's message id.",
                                       show_default=False)],
    topic: Topic = None,
    options: EraseOptions,
    apply: ApplyOptions,
    store: StoreIndex,
    out: Out,
) -> None:
    """Erase the messages with a key, with all their copies.

    Shows the plan; --apply carries it out. Reads the messages themselves, so messages without an
    index entry are found, too. See `rmqctl delete message --help` for what replaces them and what
    is not changed.

        rmqctl delete key STORE order-4711 --topic orders --apply
    """
    from rmqctl.repair.erase.erase import EraseSelection
    from rmqctl.repair.erase.named import selection

    if " " in key:
        out.warn(f"RocketMQ separates keys by spaces, so no message has the key {key!r}; delete "
                 "its parts one by one")
    selected = EraseSelection(selection=selection(topic, key, ()))
    run(out, store, "delete-key", selected, apply, options)
