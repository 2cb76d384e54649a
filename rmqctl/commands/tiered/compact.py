"""``rmqctl tiered compact``: rearrange local index files and upload them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.shared.applying import WriteOutside
from rmqctl.commands.shared.options import DryRun, Out, Zone, complete_folders
from rmqctl.commands.shared.tiered_options import (
    Broker,
    MetadataFile,
    TieredConf,
    TieredIndexMax,
    TieredIndexSlots,
    TierOptions,
)
from rmqctl.errors import UsageError
from rmqctl.output.units import count_text, size_text, time_text
from rmqctl.parse_values import now_ms, show_times_in

if TYPE_CHECKING:
    from rmqctl.ext.tiered.index.compacted_form import Compacted
    from rmqctl.ext.tiered.index.compaction import CompactRequest, Uploaded
    from rmqctl.output import Output

_COLUMNS = ("file", "status", "timestamp", "items", "base_offset", "bytes", "segment",
            "chains_sound", "kept")
_BRIEF = _COLUMNS[1:6]
_PANEL = "One file"
_TIER = "Tier layout"


def command(
    *,
    root: Annotated[str | None, typer.Argument(
        metavar="DIR", autocompletion=complete_folders, show_default=False,
        help="Tier root, a store with a tieredstore/ folder, or a URL for fsspec.")] = None,
    everything: Annotated[bool, typer.Option(
        "--all/--full", help="Also upload the newest file, as brokers since 5.3.1 do at a clean "
                             "shutdown (default: only full files).")] = True,
    dry_run: DryRun = False,
    write_outside: WriteOutside = None,
    metadata: MetadataFile = None,
    broker: Broker = None,
    cluster: Annotated[str | None, typer.Option(
        "--cluster", metavar="NAME", rich_help_panel=_TIER,
        help="The broker's cluster (brokerClusterName), if the tier has several.")] = None,
    index_slots: TieredIndexSlots = None,
    index_max: TieredIndexMax = None,
    broker_conf: TieredConf = None,
    file: Annotated[str | None, typer.Option(
        "--file", metavar="FILE", rich_help_panel=_PANEL,
        help="Only rearrange this open index file; no tier is needed or changed.")] = None,
    to: Annotated[str | None, typer.Option(
        "--out", metavar="FILE", rich_help_panel=_PANEL,
        help="New file for the rearranged form, with --file.")] = None,
    tz: Zone = UTC,
    out: Out,
) -> None:
    """Rearrange local index files and upload them, as a broker's index service does.

    Changes DIR, the broker's metadata and tiered_index_file/ in its local root. Each file becomes
    the next INDEX segment, sorted by slot and byte-identical to a broker's, and is then moved to
    .rmqctl/aside/ of the local root; files without items are only moved. Items that a crash left
    outside of the chains are found by their hashes. The next run completes an interrupted one.

        rmqctl tiered compact STORE/tieredstore
        rmqctl tiered compact STORE/tieredstore --full
        rmqctl tiered compact --file tiered_index_file/1795233794638 --out compacted
    """
    show_times_in(tz)
    tier = TierOptions(root=root or "", metadata=metadata, cluster=cluster, broker=broker,
                       index_slots=index_slots, index_max=index_max, broker_conf=broker_conf)
    for text in tier.warnings() if root is not None else ():
        out.warn(text)
    tier = tier.value()
    if file is not None or to is not None:
        if file is None or to is None or root is not None:
            raise UsageError("--file and --out must be used together, without DIR")
        _compact_file(out, file, to, tier.index_slots, tier.index_max, dry_run=dry_run)
        return
    if root is None:
        raise UsageError("pass the tier root DIR, or --file and --out")
    from rmqctl.ext.tiered.index.compaction import CompactRequest

    request = CompactRequest(root, tier.metadata, tier.cluster, tier.broker, everything,
                             tier.index_slots, tier.index_max, tuple(write_outside or ()))
    out.rows(_rows(out, request, dry_run=dry_run), _COLUMNS,
             brief=_BRIEF, empty="no index files to upload",
             render={"timestamp": time_text, "items": count_text, "bytes": size_text})
    if dry_run:
        out.note("dry run: nothing was uploaded")


def _rows(out: Output, request: CompactRequest, *, dry_run: bool) -> Iterator[dict[str, Any]]:
    from rmqctl.ext.tiered.index.compaction import plan_local, upload_local

    with out.progress("rearranging", unit="files") as progress:
        for done in (plan_local if dry_run else upload_local)(request, now_ms, out.note):
            progress.advance(1)
            if not done.sound:
                out.warn(f"{done.source}: its chains did not reach all items, so all items were "
                         "assigned to slots by their hashes")
            yield _row(done)


def _row(done: Uploaded) -> dict[str, Any]:
    return {"file": done.source, "status": done.status, "timestamp": done.timestamp,
            "items": done.items, "base_offset": done.base if done.path else None,
            "bytes": done.size, "segment": done.path or None, "chains_sound": done.sound,
            "kept": done.moved_to}


def _compact_file(out: Output, file: str, to: str, slots: int | None, max_items: int | None, *,
                  dry_run: bool) -> None:
    from rmqctl.ext.tiered.index.compacted_form import compact, opened, write
    from rmqctl.files.named import refuse_link_of_others

    refuse_link_of_others(to, itself=False)
    with opened(file, slots, max_items) as index_file:
        done = compact(index_file)
        if not dry_run:
            write(done, to)
    if not done.sound:
        out.warn(f"{file}: its chains do not reach all items; the others were assigned to slots "
                 "by their hashes")
    out.document(_document(done, file, to))


def _document(done: Compacted, file: str, to: str) -> dict[str, Any]:
    return {"file": file, "out": to, "timestamp": done.file.timestamp, "items": done.items,
            "slots": done.file.shape.slots, "bytes": done.size, "chains_sound": done.sound}
