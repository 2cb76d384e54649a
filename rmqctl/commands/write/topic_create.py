"""``rmqctl topic create``: create or change a topic in ``config/topics.json``."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.applying import WriteOutside
from rmqctl.commands.shared.engine_options import EngineOptions
from rmqctl.commands.shared.options import DryRun, Out, StoreFolders
from rmqctl.errors import UsageError
from rmqctl.parse_values import FieldValue, parse_field_value

if TYPE_CHECKING:
    from rmqctl.engine.config.topics import Change
    from rmqctl.output import Human, Output

_LETTERS = {"w": 2, "r": 4}


def parse_perm(text: str | int) -> int:
    """Parse ``2`` (write), ``4`` (read), ``6`` (both), or letters as brokers show them: ``rw``,
    ``R--``.
    Raises: UsageError for anything else.
    """
    if isinstance(text, int):
        return text
    word = text.strip().lower()
    if word in ("2", "4", "6"):
        return int(word)
    letters = word.replace("-", "")
    if letters and set(letters) <= _LETTERS.keys() and len(set(letters)) == len(letters):
        return sum(_LETTERS[letter] for letter in letters)
    raise UsageError(f"invalid permission {text!r}; expected 2 (w), 4 (r) or 6 (rw)")


def command(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Topic.", show_default=False)],
    read_queues: Annotated[int | None, typer.Option(
        "--read-queues", metavar="N", min=1, max=(1 << 31) - 1,
        help="Number of read queues  [default for a new topic: 8]")] = None,
    write_queues: Annotated[int | None, typer.Option(
        "--write-queues", metavar="N", min=1, max=(1 << 31) - 1,
        help="Number of write queues  [default for a new topic: 8]")] = None,
    perm: Annotated[int | None, typer.Option(
        "--perm", metavar="PERM", parser=parse_perm,
        help="Permission: 2 (w), 4 (r) or 6 (rw)  [default for a new topic: 6]")] = None,
    attribute: Annotated[list[FieldValue] | None, typer.Option(
        "--attribute", metavar="NAME=VALUE", parser=parse_field_value,
        help="Topic attribute of 5.x (queue.type, cleanup.policy, message.type, reserve.time); "
             "repeatable.")] = None,
    order: Annotated[bool | None, typer.Option(
        "--order/--no-order", help="Mark the topic as ordered, or not.")] = None,
    write_outside: WriteOutside = None,
    dry_run: DryRun = False,
    engine: Annotated[EngineOptions, pick("version")],
    store: StoreFolders,
    out: Out,
) -> None:
    """Create or change a topic in config/topics.json.

    Settings that are not given keep their values; nothing else in the file changes, and its old
    content becomes topics.json.bak. Names and system topics that a broker refuses are rejected.
    Queues are created with their first messages. No broker may run on the store.

        rmqctl topic create STORE orders --read-queues 8 --write-queues 8 --perm rw
    """
    from rmqctl.engine.config.topics import Topics
    from rmqctl.files.bounds import WritableFolders, stores_around
    from rmqctl.files.lock import StoreLock

    settings = engine.settings(store, "version", files=False)
    attributes = dict(attribute or ())
    # A link in config/ could lead outside of the store.
    named = [os.path.join(store.root, folder) for folder in write_outside or ()]
    WritableFolders(store.root, named).refuse_links(os.path.join(store.root, "config"))
    # A dry run takes no lock, because it writes nothing.
    with nullcontext() if dry_run else StoreLock(store.root, stores_around(named, [store.root])):
        topics = Topics(store.root, settings, lambda: time.time_ns() // 1_000_000)
        for note in topics.notes:
            out.note(note)
        # With fewer read queues some messages become unreachable: warn before the change.
        change = topics.plan(name, read_queues, write_queues, perm, attributes, order)
        _warn_of_loss(out, change)
        if not dry_run:
            topics.create(name, read_queues, write_queues, perm, attributes, order)
    # The document is the same for a dry run and a change.
    if dry_run:
        out.note("dry run: nothing was changed")
    document = {
        "topic": name,
        "action": change.action,
        "file": "config/topics.json",
        "before": change.before,
        "after": change.after,
        "data_version": topics.data_version or None,
        "dry_run": dry_run,
    }
    out.document(document, lambda page: _show(page, document))


def _warn_of_loss(out: Output, change: Change) -> None:
    before = change.before or {}
    old, new = before.get("readQueueNums"), change.after["readQueueNums"]
    if isinstance(old, int) and old > new:
        out.warn(f"{change.topic} had {old} read queues: consumers no longer see messages in queue "
                 f"{new} and above")


def _show(page: Human, document: dict[str, Any]) -> None:
    from rmqctl.store.config.rows import perm_text

    words = {"create": "new topic", "change": "topic changed", "none": "topic unchanged"}
    after = document["after"]
    perm, attributes = after["perm"], after.get("attributes")
    page.pairs({
        words[document["action"]]: document["topic"],
        "queues": f"{after['readQueueNums']} to read, {after['writeQueueNums']} to write",
        "perm": perm_text(perm) if isinstance(perm, int) else str(perm),
        **({"order": "yes"} if after.get("order") is True else {}),
        **({"attributes": ", ".join(f"{k}={v}" for k, v in attributes.items())}
           if isinstance(attributes, dict) and attributes else {}),
    })
