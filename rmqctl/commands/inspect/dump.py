"""``rmqctl dump``: print a file of any kind, record by record."""

from __future__ import annotations

import itertools
import os
from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.options import Body, LayoutOptions, Out, Zone
from rmqctl.errors import ExitCode, UsageError
from rmqctl.output.units import time_text
from rmqctl.parse_values import parse_offset

if TYPE_CHECKING:
    from rmqctl.output import Output


def command(
    *,
    file: Annotated[str, typer.Argument(
        metavar="FILE", help="A store file or a copy of a store file, or the folder of a "
                             "RocksDB database.",
        show_default=False)],
    kind: Annotated[str | None, typer.Option(
        "--kind", metavar="KIND", help="Kind of the file, if neither path nor content shows it.",
    )] = None,
    hex_: Annotated[bool, typer.Option(
        "--hex", help="Show every field with its offset and bytes; -v shows long fields "
                      "completely.")] = False,
    start: Annotated[int | None, typer.Option(
        "--from", metavar="N", min=0, help="Start at record N of the file.")] = None,
    count: Annotated[int | None, typer.Option(
        "--limit", "--count", metavar="N", min=0,
        help="At most N records (default with --at: 1).")] = None,
    at: Annotated[int | None, typer.Option(
        "--at", metavar="OFFSET", parser=parse_offset,
        help="Show the record at this offset, counted from the start of the file or as in the file "
             "name.")] = None,
    every: Annotated[bool, typer.Option(
        "--all", help="Also show unused units, slots and entries.")] = False,
    body: Body = "auto",
    layout: Annotated[LayoutOptions, pick("index_slots broker_conf")],
    tz: Zone = UTC,
    out: Out,
) -> None:
    """Print any file of a store, record by record.

    The kind is detected from the path, then from the content. A damaged record is listed with
    offset, field and reason; the next provable record follows. For a RocksDB folder (consumequeue/,
    config/topics, config/rdb, kvStore/, RocksDBMessageStore/), all entries are listed by column
    family. Exit code 1 if anything is damaged.
    """
    from rmqctl.store.layout import is_database

    # A database is a folder and has no offsets or fields.
    if os.path.isdir(file) and is_database(file):
        if kind is not None or hex_ or at is not None:
            raise UsageError("--kind, --hex and --at require a file; this is a RocksDB database")
        _entries(out, file, start or 0, count)
        return
    from rmqctl.store.dump.dump import Dump, DumpOptions
    from rmqctl.store.dump.fields import FLAT_COLUMNS, fault_text, flattened

    options = DumpOptions(kind=kind, start=start, count=count, at=at, hex=hex_, every=every,
                      full=out.verbose > 0, body=body,
                          index_slots=layout.sizes.index_slots)
    # Show fields, a single record or a table.
    with Dump(file, options) as dump:
        if hex_ and out.is_flat:
            out.rows(flattened(dump.rows()), FLAT_COLUMNS, empty="no records")
        else:
            times = {name: lambda value: time_text(value, tz) for name in dump.times}
            render = {**times, "error": fault_text}
            if dump.single and not out.is_data:
                for row in dump.rows():
                    out.human().pairs({name: render[name](value) if name in render else value
                                       for name, value in row.items()})
            else:
                out.rows(dump.rows(), dump.columns, brief=dump.brief, empty="no records",
                         render=render)
        # Notes and the exit code depend on what was read, so they come after the records.
        for note in dump.notes:
            out.note(note)
        if dump.faults:
            raise typer.Exit(int(ExitCode.FINDINGS))


def _entries(out: Output, folder: str, start: int, count: int | None) -> None:
    from rmqctl.store.dump.database import COLUMNS, DatabaseDump

    dump = DatabaseDump(folder)
    end = None if count is None else start + count
    out.rows(itertools.islice(dump.rows(), start, end), COLUMNS,
             brief=("family", "fields", "error"), empty="no entries")
    if dump.faults:
        raise typer.Exit(int(ExitCode.FINDINGS))
