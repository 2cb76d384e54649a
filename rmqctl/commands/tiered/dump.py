"""``rmqctl tiered dump``: print a file of a tier, record by record."""

from __future__ import annotations

from datetime import UTC
from typing import Annotated, Literal

import typer

from rmqctl.commands.shared.options import Body, LayoutOptions, Out, Zone
from rmqctl.commands.shared.tiered_options import TieredConf, TieredIndexSlots
from rmqctl.parse_values import parse_offset

Type = Literal["commit-log", "consume-queue", "index", "metadata"]


def command(
    *,
    file: Annotated[str, typer.Argument(
        metavar="FILE", help="A segment, an index file (uploaded or not), "
                             "tieredStoreMetadata.json, or a copy of one.", show_default=False)],
    type_: Annotated[Type | None, typer.Option(
        "--kind", "--type", help="Kind of the file, if neither path nor content shows it.")] = None,
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
        help="Show the record at this offset in the file, or in the flat file of which it is a "
             "segment.")] = None,
    every: Annotated[bool, typer.Option("--all",
        help="Also show units, slots and items that contain only zeros.")] = (
        False),
    body: Body = "auto",
    index_slots: TieredIndexSlots = None,
    broker_conf: TieredConf = None,
    tz: Zone = UTC,
    out: Out,
) -> None:
    """Print any file of a tier, record by record.

    Reads commit log segments (with the coda of 5.1 and 5.2), consume queue segments with their
    queue offsets, index files in either format (header, slots, items), and the metadata. Damaged
    records are listed, and reading continues after them. Exit code 1 if anything is damaged.

        rmqctl tiered dump cfcd208400000000000000000000 --kind commit-log --limit 3
        rmqctl tiered dump STORE/config/tieredStoreMetadata.json
    """
    from rmqctl.commands.inspect.dump import command as dump
    from rmqctl.ext.tiered.read.ls import TYPES, kind_of

    if index_slots is None and broker_conf is not None:
        index_slots = broker_conf.tier.get("index_slots")
    kind = kind_of(file) if type_ is None else TYPES[type_]
    dump(file=file, kind=kind, hex_=hex_, start=start, count=count, at=at, every=every, body=body,
         layout=LayoutOptions(index_slots=index_slots), tz=tz, out=out)
