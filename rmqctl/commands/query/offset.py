"""``rmqctl query offset``: the message at, or around, a physical offset."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqctl.commands.shared.messages import Faults, Fields, not_found, projection, show_records
from rmqctl.commands.shared.options import (
    Body,
    CommitlogDirs,
    CommitlogFileSize,
    Decompress,
    NoProgress,
    OutputFormat,
    Quiet,
    Store,
    Verbose,
    Zone,
    open_output,
)
from rmqctl.commands.shared.parsing import parse_offset

NAME = ("query", "offset")
EFFECT = "read-only"


def command(
    store: Store,
    phy: Annotated[int, typer.Option(
        "--phy", metavar="OFFSET", parser=parse_offset, help="Physical offset in the log.")],
    around: Annotated[bool, typer.Option(
        "--containing", help="The message whose bytes include the offset.")] = False,
    fields: Fields = None,
    body: Body = "auto",
    decompress: Decompress = False,
    tz: Zone = "UTC",  # type: ignore[assignment]
    commitlog_dir: CommitlogDirs = None,
    commitlog_file_size: CommitlogFileSize = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Show the message that starts at a physical offset, or with --containing lies around it.

    Exit code 1 when there is none; what is there instead is said on stderr.

        rmqctl query offset STORE --phy 536897170
    """
    from rmqctl.store import Sizes
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.query.lookup import containing, where_is

    out = open_output(output, quiet, verbose, no_progress)
    made = projection(out, fields, body, decompress)
    faults = Faults(out)
    with OpenedStore.open(store, commitlog_dir or (),
                          Sizes(commitlog_file=commitlog_file_size)) as opened:
        record = containing(opened, phy) if around else opened.log.record_at(phy)
        show_records(out, [] if record is None else [record], made, tz, faults)
        if record is None:
            not_found(out, faults, f"no message at physical offset {phy}: {where_is(opened, phy)}")
    faults.end()
