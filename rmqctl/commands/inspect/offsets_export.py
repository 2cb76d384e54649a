"""``rmqctl offsets export``: print the offsets of consumer groups in the format of a
broker's file.
"""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.shared.options import Out, StoreQueues, Topic
from rmqctl.errors import ExitCode, FormatError, RefusedError
from rmqctl.output import Output
from rmqctl.phrases import Phrase


def command(
    *,
    group: Annotated[str | None, typer.Option(
        "--group", "-g", metavar="GROUP", autocompletion=complete_groups,
        help="Only this consumer group.")] = None,
    topic: Topic = None,
    store: StoreQueues,
    out: Out,
) -> None:
    """Print consumer offsets as consumerOffset.json.

    `offsets import` and brokers read this format. Offsets in RocksDB and of light message queues
    are printed in the same format. For a broadcasting consumer's offsets.json, all readable entries
    are printed in the format of this file; the output can replace a damaged file. Exit code 1 if
    the file is damaged.

        rmqctl offsets export STORE > offsets.json
        rmqctl offsets export STORE --group billing | rmqctl offsets import OTHER /dev/stdin
        rmqctl offsets export .rmq_offsets/CLIENT/GROUP/offsets.json > repaired.json
    """
    if os.path.isfile(store.root):
        _of_client(out, store.root)
        return
    from rmqctl.store.config.committed import narrowed, of_store

    with store.open() as opened:
        offsets = narrowed(of_store(opened), group, topic)
    table: dict[str, dict[str, int]] = {}
    for (of_group, of_topic, queue_id), offset in sorted(offsets.items()):
        table.setdefault(f"{of_topic}@{of_group}", {})[str(queue_id)] = offset
    document = {"offsetTable": table}
    out.document(document, lambda page: page.text(json.dumps(document, indent=1)))


def _of_client(out: Output, path: str) -> None:
    """Print the readable entries of a client's offsets.json. Exit with code 1 if the file is
    damaged.
    """
    from rmqctl.scan.source import FileSource
    from rmqctl.store.config.client_offsets import build, parse, readable
    from rmqctl.store.config.config import MAX_SIZE

    with FileSource(path) as source:
        data = source.read(0, min(source.size, MAX_SIZE))
    why = ""
    try:
        rows, faults, _ = parse(data)
        why = faults[0] if faults else ""
    except FormatError as error:
        rows, why = readable(data), str(error)
    if why and not rows:
        raise RefusedError(f"{path}: {why}: no readable offset")
    out.document({"offsets": [row._asdict() for row in rows], "damaged": why or None},
                 lambda page: page.text(build(rows)))
    if why:
        out.warn(Phrase("{file}: {why}; readable entries: {count:,}", file=path, why=why,
                        count=len(rows)))
        raise typer.Exit(int(ExitCode.FINDINGS))
