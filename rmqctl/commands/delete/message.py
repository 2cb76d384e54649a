"""``rmqctl delete message``: erase messages selected by id, by property or by a list."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqctl.commands.delete.erasing import EraseOptions, run
from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.options import Out, StoreIndex, Topic
from rmqctl.errors import UsageError


def command(
    *,
    ids: Annotated[list[str] | None, typer.Option(
        "--id", metavar="MSGID", show_default=False,
        help="Message id, the broker's or the client's (repeatable).")] = None,
    key: Annotated[str | None, typer.Option(
        "--key", "-k", metavar="KEY", help="Message key.")] = None,
    named: Annotated[list[str] | None, typer.Option(
        "--property", metavar="NAME=VALUE", show_default=False,
        help="Property of the messages (repeatable; all must match).")] = None,
    list_file: Annotated[str | None, typer.Option(
        "--list", metavar="FILE", help="File with message ids, one per line.",
        show_default=False)] = None,
    topic: Topic = None,
    options: EraseOptions,
    apply: ApplyOptions,
    store: StoreIndex,
    out: Out,
) -> None:
    """Erase messages, with all their copies in the store.

    Shows the plan; --apply carries it out. Overwrites each message with a record of the same size
    without body and keys, marked RMQCTL=erased, which consumers receive. Finds copies in the log
    (delayed, half, retry, dead letter, trace), in compaction logs and in a tier below STORE.
    `rmqctl undo` restores them until a run with --purge. Replicas, DLedger members and backups
    are not changed.

        rmqctl delete message STORE --id 0A000008126718B4AAC2CFF2AF34A3CA
        rmqctl delete message STORE --property user=4711 --apply --purge --certificate erased.json
    """
    from rmqctl.repair.erase.erase import EraseSelection
    from rmqctl.repair.erase.named import read_ids, selection

    if not (ids or key or named or list_file):
        raise UsageError("pass --id, --key, --property or --list")
    if topic is not None and not (key or named):
        raise UsageError("--topic requires --key or --property")
    all_ids = (*(ids or ()), *(read_ids(list_file) if list_file else ()))
    run(out, store, "delete-message", EraseSelection(
        all_ids, selection(topic, key, named or ())), apply, options)
