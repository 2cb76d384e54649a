"""``rmqctl export``: export messages to one file or a folder of files."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from functools import cache
from typing import IO, TYPE_CHECKING, Annotated, Literal, NamedTuple, cast

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.app.without_pandas import leave_pandas_out
from rmqctl.commands.shared.exporting import named_parts, report, warn_of
from rmqctl.commands.shared.message_options import (
    Decode,
    Fields,
    Redact,
    RedactKey,
    SelectOptions,
    decoding_of,
    tell_undecoded,
)
from rmqctl.commands.shared.options import (
    Body,
    Compacted,
    Jobs,
    LayoutOptions,
    Out,
    Zone,
    worker_count,
)
from rmqctl.commands.shared.spark_options import Stores, named_stores
from rmqctl.errors import ExitCode, UsageError, require
from rmqctl.output.escape import spreadsheet_safe
from rmqctl.output.units import counted
from rmqctl.parse_values import is_url

if TYPE_CHECKING:
    from rmqctl.export.one_file import Form
    from rmqctl.export.plan import StorePlan
    from rmqctl.export.result import ExportResult
    from rmqctl.export.spec import Export
    from rmqctl.output import Output

_STREAM = "-"
_FORMATS = {"jsonl": "json"} | {name: name for name in ("parquet", "csv", "avro", "arrow", "xlsx")}
_FOLDER_FORMATS = ("parquet", "json", "csv", "avro")
_IN_ONE = "topic queue from_offset count from_phy to_phy since until tag key where"


def command(
    *,
    target: Annotated[str, typer.Option(
        "--out", metavar="FILE|DIR|-", help="New .parquet, .jsonl, .csv (.gz, .zst), .avro, .arrow "
                                            "or .xlsx file, folder or URL; stdout: -")],
    stores: Stores = None,
    format: Annotated[  # noqa: A002
        Literal["parquet", "jsonl", "csv", "avro", "arrow", "xlsx"] | None,
        typer.Option("--format", help="Override the format (default: by the name; parquet for a "
                                      "folder, jsonl for standard "
                                      "output).", show_default=False)] = None,
    select: Annotated[SelectOptions, pick(_IN_ONE)],
    fields: Fields = None,
    body: Body = "auto",
    decode: Decode = None,
    redact: Redact = False,
    redact_key: RedactKey = None,
    partition_by: Annotated[str | None, typer.Option(
        "--partition-by", metavar="NAMES",
        help="Subfolders by any of topic, day (store time in --tz), store, or none (default of a "
             "folder: topic,day).", show_default=False)] = None,
    provenance: Annotated[bool, typer.Option(
        "--provenance", help="Add where each message was found: store, file, offset in the file, "
                             "and the SHA-256 of its record.")] = False,
    manifest: Annotated[bool, typer.Option(
        "--manifest", help="Also write FILE.manifest.json: contents, gaps, and the SHA-256 of "
                           "FILE. A folder always has one.")] = False,
    view: Compacted = "auto",
    tz: Zone = UTC,
    jobs: Jobs = 0,
    layout: Annotated[LayoutOptions, pick("commitlog_dirs commitlog_file_size broker_conf")],
    out: Out,
) -> None:
    """Export messages to Parquet, JSON lines, CSV, Avro, Arrow or Excel.

    Exports all messages in log order, even without a consume queue entry (`rmqctl read --topic`
    uses the consume queue). With --topic of a compaction topic, exports what a broker serves,
    unless --view disk is given. The file appears only when complete; nothing is overwritten. Damage
    is reported, and messages with a CRC mismatch get crc_ok false, with exit code 1. `rmqctl
    pipeline export` runs on Spark.

        rmqctl export STORE --out orders.parquet --topic orders --since -7d
        rmqctl export STORE --out evidence.csv --provenance --manifest
        rmqctl export '/backup/*/store' --out messages --partition-by topic,day
    """
    leave_pandas_out()
    from rmqctl.export.plan import check_place, plan
    from rmqctl.export.spec import Export
    from rmqctl.files.remote.reader import without_secrets
    from rmqctl.files.remote.upload import uploaded
    from rmqctl.store.projection import is_decoded
    from rmqctl.store.queue.compaction import SERVED
    from rmqctl.store.redaction import redaction_of

    # Check the combination of options before any store is opened.
    form = _form(target, format, partition_by)
    require(*(("pyarrow",) if form is None else form.packages))
    if form is None and select.count is not None:
        raise UsageError("--limit requires a single file: folders are written in parallel")
    if select.from_offset is not None and (select.topic is None or select.queue is None):
        raise UsageError("--offset requires --topic and --queue")
    # Build the selection and the fields; bodies are decoded only if a field or option needs it.
    names = named_stores(stores)
    named = None if fields is None else fields.split(",")
    decoding = cache(lambda: decoding_of(decode))
    of_bodies = decode is not None or any(is_decoded(name.strip()) for name in named or ())
    wanted = select.selection(tz, decoding)
    spec = Export.of(
        _FORMATS[format or "parquet"] if form is None else form.format,
        fields=named, body=body,
        partition_by=named_parts(partition_by or "topic,day") if form is None else (),
        compression=None if form is None else form.compression, zone=tz,
        conditions=wanted.in_log(), stores=len(names), provenance=provenance,
        csv_text=spreadsheet_safe, decoded=decode is not None,
        decoding=decoding() if of_bodies else None,
        redaction=redaction_of(redact_key, wanted=redact))
    # Check the target before the log is read.
    folders = layout.folders_of(names)
    if target == _STREAM and manifest:
        raise UsageError("--manifest requires a file: pass --out")
    if target != _STREAM and not is_url(target):
        check_place(target, names, folders)
    plans = plan(names, wanted, worker_count(jobs), folders=folders, sizes=layout.sizes,
                 compacted=view == "auto")
    if any(piece.served for store_plan in plans for piece in store_plan.pieces):
        out.note(f"{wanted.topic}: {SERVED}")
    with uploaded(target) as path:
        result = _exported(out, plans, spec, path,
                           _ExportSettings(form, select.count, manifest, jobs))
    result = replace(result, out=without_secrets(target))
    # On standard output the data must stay alone, so the summary goes to stderr.
    if target == _STREAM:
        warn_of(out, result)
        out.note(f"{counted(result.total('rows'), 'message')} exported")
    else:
        report(out, result, spec)
        if not result.total("rows"):
            out.note("no messages")
    if decoding.cache_info().currsize:
        tell_undecoded(out, decoding(), redact=redact)
    # An incomplete export is still written; the exit code reports the loss.
    if not result.complete:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _form(target: str, format: str | None, partition_by: str | None) -> Form | None:  # noqa: A002
    """Return the format of the output file; None for a folder.
    Raises: UsageError for options that cannot be combined.
    """
    from rmqctl.export.one_file import Form, form_of

    if target == _STREAM:
        if partition_by is not None:
            raise UsageError("--partition-by creates folders: pass --out")
        return Form(_FORMATS[format or "jsonl"])
    by_name = None if target.endswith("/") else form_of(target)
    if by_name is None or partition_by is not None:
        if by_name is not None:
            raise UsageError(f"--out {target} is a file name, but --partition-by creates folders")
        if format is not None and _FORMATS[format] not in _FOLDER_FORMATS:
            raise UsageError(f"--format {format} requires a single file, such as messages.{format}")
        return None
    if format is not None and _FORMATS[format] != by_name.format:
        raise UsageError(f"--out {target} and --format {format} contradict each other")
    return by_name


class _ExportSettings(NamedTuple):
    """Settings of an export: ``form`` of the file (None: a folder), ``most``: maximum number of
    messages.
    """

    form: Form | None
    most: int | None
    manifest: bool
    jobs: int


def _exported(out: Output, plans: list[StorePlan], spec: Export, target: str,
              way: _ExportSettings) -> ExportResult:
    from rmqctl.export.one_file import export_file, write
    from rmqctl.store.log.ranges import Threads

    total = sum(piece.length for plan in plans for piece in plan.pieces)
    with out.progress("exporting", total) as progress:
        if way.form is None:
            from rmqctl.export.export import export

            return export(plans, spec, target, Threads(worker_count(way.jobs)), progress.advance)
        if target == _STREAM:
            return write(plans, spec, cast("IO[bytes]", out.binary()), target, count=way.most,
                         progress=progress.advance)
        return export_file(plans, spec, target, count=way.most, manifest=way.manifest,
                           progress=progress.advance)
