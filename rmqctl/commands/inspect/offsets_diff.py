"""``rmqctl offsets diff``: compare the offsets of two stores or files."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from rmqctl import vfs
from rmqctl.commands import STORE_VARIABLE
from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.shared.options import ClientBroker, Out, Topic, complete_folders
from rmqctl.errors import ExitCode
from rmqctl.phrases import Phrase

_COLUMNS = ("group", "topic", "queue_id", "a", "b", "diff")


def command(
    *,
    a: Annotated[str, typer.Argument(
        metavar="A", envvar=STORE_VARIABLE, autocompletion=complete_folders, show_default=False,
        help="A store or a file with offsets: consumerOffset.json, the output of `offsets export`, "
             "or the offsets.json of a broadcasting consumer.")],
    b: Annotated[str, typer.Argument(
        metavar="B", autocompletion=complete_folders, show_default=False,
        help="The store or file to compare with.")],
    group: Annotated[str | None, typer.Option(
        "--group", "-g", metavar="GROUP", autocompletion=complete_groups,
        help="Only this consumer group.")] = None,
    topic: Topic = None,
    broker: ClientBroker = None,
    out: Out,
) -> None:
    """Compare the consumer offsets of two stores or files.

    diff is b minus a. An offset that a or b does not contain is empty. Exit code 1 if any offset
    differs.

        rmqctl offsets diff MASTER SLAVE
        rmqctl offsets diff /backup/consumerOffset.json STORE --group billing
    """
    from rmqctl.store.config.committed import committed, narrowed

    offsets_a, offsets_b = (
        narrowed(committed(path, group, broker), group, topic) for path in (a, b))
    rows: list[dict[str, Any]] = []
    for key in sorted(offsets_a.keys() | offsets_b.keys()):
        in_a, in_b = offsets_a.get(key), offsets_b.get(key)
        if in_a != in_b:
            rows.append(dict(zip(_COLUMNS, (
                *key, in_a, in_b, None if in_a is None or in_b is None else in_b - in_a),
                strict=True)))
    out.rows(rows, _COLUMNS, empty=f"{len(offsets_a):,} offsets on both sides, all equal"
             if offsets_a else "neither side has any offset")
    if any(row["diff"] is None or row["diff"] > 0 for row in rows) and vfs.isdir(a):
        out.note(Phrase(
            "`{command}` raises the smaller offsets of {store}. Do so before its slaves start: "
            "they copy the offsets of their master", store=a, command=shlex.join(
                ["rmqctl", "offsets", "import", a, b, "--max"])))
    if rows:
        raise typer.Exit(int(ExitCode.FINDINGS))
