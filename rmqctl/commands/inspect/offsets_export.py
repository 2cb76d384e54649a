"""``rmqctl offsets export``: the offsets of consumer groups as a broker's file has them."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.shared.options import Out, StoreQueues, Topic


def command(
    *,
    group: Annotated[str | None, typer.Option(
        "--group", "-g", metavar="GROUP", autocompletion=complete_groups,
        help="This consumer group only.")] = None,
    topic: Topic = None,
    store: StoreQueues,
    out: Out,
) -> None:
    """Print the offsets of consumer groups in the form of a broker's consumerOffset.json.

    `offsets import` takes it, and so does a broker. Where the offsets are in RocksDB, or in the
    file for light message queues, it is the same form.

        rmqctl offsets export STORE > offsets.json

        rmqctl offsets export STORE --group billing | rmqctl offsets import OTHER /dev/stdin
    """
    from rmqctl.store.config.committed import narrowed, of_store

    with store.open() as opened:
        found = narrowed(of_store(opened), group, topic)
    table: dict[str, dict[str, int]] = {}
    for (name, of, queue_id), offset in sorted(found.items()):
        table.setdefault(f"{of}@{name}", {})[str(queue_id)] = offset
    document = {"offsetTable": table}
    out.document(document, lambda page: page.text(json.dumps(document, indent=1)))
