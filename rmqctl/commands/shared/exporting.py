"""Parts shared by the export commands: options, the run, and notes on the result."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC
from functools import cache
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import typer

from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.commands.shared.message_options import (
    Decode,
    Fields,
    Redact,
    RedactKey,
    SelectOptions,
    decoding_of,
    tell_undecoded,
)
from rmqctl.commands.shared.options import Body, Zone, worker_count
from rmqctl.commands.shared.store_warnings import lost_texts
from rmqctl.errors import ExitCode, UsageError, require
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.units import count_text, counted, size_text
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.export.one_file import Form
    from rmqctl.export.plan import StorePlan
    from rmqctl.export.result import ExportResult, StoreResult
    from rmqctl.export.spec import Export
    from rmqctl.output import Human, Output
    from rmqctl.store.decoded import Decoding
    from rmqctl.store.query.select import Selection

_MAX_NAMED = 5
_STREAM = "-"
_FORMATS = {"jsonl": "json"} | {name: name for name in ("parquet", "csv", "avro", "arrow", "xlsx")}
_FOLDER_FORMATS = ("parquet", "json", "csv", "avro")


class ExportRequest(NamedTuple):
    """A checked request.

    * ``form``: form of the file (None: a folder)
    * ``wanted``: messages to export
    * ``decoding``: decoder of bodies (None: bodies are not decoded)
    """

    form: Form | None
    wanted: Selection
    spec: Export
    decoding: Decoding | None


@dataclass(frozen=True, kw_only=True)
class ExportOptions(OptionGroup):
    """Options for the target, format and fields of an export."""

    target: Annotated[str, typer.Option(
        "--out", metavar="FILE|DIR|-", help="New .parquet, .jsonl, .csv (.gz, .zst), .avro, .arrow "
                                            "or .xlsx file, folder or URL; stdout: -")]
    format: Annotated[
        Literal["parquet", "jsonl", "csv", "avro", "arrow", "xlsx"] | None,
        typer.Option("--format", help="Override the format (default: by the name; parquet for a "
                                      "folder, jsonl for standard "
                                      "output).", show_default=False)] = None
    fields: Fields = None
    body: Body = "auto"
    decode: Decode = None
    redact: Redact = False
    redact_key: RedactKey = None
    partition_by: Annotated[str | None, typer.Option(
        "--partition-by", metavar="NAMES",
        help="Subfolders: any of topic, store and day (store time in --tz), or none (default for a "
             "folder: topic,day).", show_default=False)] = None
    provenance: Annotated[bool, typer.Option(
        "--provenance", help="Add where each message was found: store, file, offset in the file, "
                             "and the SHA-256 of its record.")] = False
    manifest: Annotated[bool, typer.Option(
        "--manifest", help="Also write FILE.manifest.json: contents, gaps, and the SHA-256 of "
                           "FILE. A folder always has one.")] = False
    tz: Zone = UTC

    @property
    def has_path(self) -> bool:
        """True if the target is a file, a folder or a URL; False for standard output."""
        return self.target != _STREAM

    def request(self, select: SelectOptions, stores: int) -> ExportRequest:
        """Check the combination of options and return what to export from ``stores`` stores.
        Raises: UsageError, MissingExtraError.
        """
        from rmqctl.export.spec import Export
        from rmqctl.output.escape import spreadsheet_safe
        from rmqctl.store.projection import is_decoded
        from rmqctl.store.redaction import redaction_of

        # Check the combination of options before any store is opened.
        form = self._form()
        require(*(("pyarrow",) if form is None else form.packages))
        if form is None and select.count is not None:
            raise UsageError("--limit requires a single file: folders are written in parallel")
        if select.from_offset is not None and (select.topic is None or select.queue is None):
            raise UsageError("--offset requires --topic and --queue")
        if self.manifest and not self.has_path:
            raise UsageError("--manifest requires a file: pass --out")
        # Bodies are decoded only if a field or option needs it.
        named = None if self.fields is None else self.fields.split(",")
        decoding = cache(lambda: decoding_of(self.decode))
        of_bodies = self.decode is not None or any(
            is_decoded(name.strip()) for name in named or ())
        wanted = select.selection(self.tz, decoding)
        spec = Export.of(
            _FORMATS[self.format or "parquet"] if form is None else form.format,
            fields=named, body=self.body,
            partition_by=named_parts(self.partition_by or "topic,day") if form is None else (),
            compression=None if form is None else form.compression, zone=self.tz,
            conditions=wanted.in_log(), stores=stores, provenance=self.provenance,
            csv_text=spreadsheet_safe, decoded=self.decode is not None,
            decoding=decoding() if of_bodies else None,
            redaction=redaction_of(self.redact_key, wanted=self.redact))
        return ExportRequest(form, wanted, spec,
                             decoding() if decoding.cache_info().currsize else None)

    def _form(self) -> Form | None:
        """Return the format of the output file; None if the output is a folder.
        Raises: UsageError for options that cannot be combined.
        """
        from rmqctl.export.one_file import Form, form_of

        if not self.has_path:
            if self.partition_by is not None:
                raise UsageError("--partition-by creates folders: pass --out")
            return Form(_FORMATS[self.format or "jsonl"])
        by_name = None if self.target.endswith("/") else form_of(self.target)
        if by_name is None or self.partition_by is not None:
            if by_name is not None:
                raise UsageError(f"--out {self.target} is a file name, but --partition-by creates "
                                 "folders")
            if self.format is not None and _FORMATS[self.format] not in _FOLDER_FORMATS:
                raise UsageError(f"--format {self.format} requires a single file, such as "
                                 f"messages.{self.format}")
            return None
        if self.format is not None and _FORMATS[self.format] != by_name.format:
            raise UsageError(f"--out {self.target} and --format {self.format} contradict each "
                             "other")
        return by_name


def run_export(out: Output, plans: list[StorePlan], options: ExportOptions,
               request: ExportRequest, jobs: int = 1) -> None:
    """Export the plans and show the result. Raises: typer.Exit with exit code 1 if something is
    missing or damaged; RefusedError, StoreIOError.
    """
    from rmqctl.files.remote.reader import without_secrets
    from rmqctl.files.remote.upload import uploaded

    with uploaded(options.target) as path:
        result = _exported(out, plans, options, request, path, jobs)
    result = replace(result, out=without_secrets(options.target))
    # On standard output the data must stay alone, so the summary goes to stderr.
    if options.has_path:
        report(out, result, request.spec)
        if not result.total("rows"):
            out.note("no messages")
    else:
        warn_of(out, result)
        out.note(f"{counted(result.total('rows'), 'message')} exported")
    if request.decoding is not None:
        tell_undecoded(out, request.decoding, redact=options.redact)
    # An incomplete export is still written; the exit code reports the loss.
    if not result.complete:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _exported(out: Output, plans: list[StorePlan], options: ExportOptions, request: ExportRequest,
              path: str, jobs: int) -> ExportResult:
    from rmqctl.export.one_file import export_file, write
    from rmqctl.store.log.ranges import Threads

    count = request.wanted.count
    total = sum(piece.length for plan in plans for piece in plan.pieces)
    with out.progress("exporting", total) as progress:
        if request.form is None:
            from rmqctl.export.export import export

            return export(plans, request.spec, path, Threads(worker_count(jobs)), progress.advance)
        if not options.has_path:
            return write(plans, request.spec, cast("IO[bytes]", out.binary()), path, count=count,
                         progress=progress.advance)
        return export_file(plans, request.spec, path, count=count, manifest=options.manifest,
                           progress=progress.advance)


def replaced_text(count: int) -> str:
    """Return a note on the number of fillers and of repaired messages with a damaged body."""
    return ("fillers for lost messages, or messages with a damaged body (property RMQCTL), in the "
            f"log: {count:,}")


def named_parts(text: str) -> list[str]:
    """Return the names in the value of ``--partition-by``; [] for ``none``. Raises: UsageError."""
    named = [part.strip() for part in text.split(",") if part.strip()]
    if "none" in named and len(named) > 1:
        raise UsageError(f"--partition-by {text}: none cannot be combined with other parts")
    return [] if named == ["none"] else named


def warn_of(out: Output, result: ExportResult) -> None:
    """Warn about data that was damaged or not exported, and about lost messages."""
    from rmqctl.export.manifest import NAME as MANIFEST

    for store_result in result.stores:
        _warn(out, store_result)
    if not result.complete:
        beside = f"{result.out}.manifest.json"
        manifests = [path for path in (os.path.join(result.out, MANIFEST), beside)
                     if os.path.exists(path)]
        out.warn(f"the export is incomplete: {manifests[0]} has the details" if manifests
                 else "the export is incomplete")


def report(out: Output, result: ExportResult, spec: Export) -> None:
    """Print the number of exported messages, files and bytes, after the warnings."""
    from rmqctl.export.manifest import summary

    warn_of(out, result)
    document = {"out": result.out, **summary(result, spec)}
    out.document(document, lambda page: _show(page, document))


def _warn(out: Output, result: StoreResult) -> None:
    """Warn about damaged and missing ranges, messages with a wrong CRC, fillers, and lost messages
    in the export of one store. If there are many ranges, only the first ones are named.
    """
    name = result.plan.name
    for kind, faults in (("not exported", result.missing), ("damage", result.damage)):
        for span in faults.spans[:_MAX_NAMED]:
            where = (f" at physical offset {span.offset}, {span.length} bytes" if span.length
                     else "")
            out.warn(f"{name}: {kind}{where}: {span.reason or 'zeroed range in the log'}")
        if faults.count > _MAX_NAMED:
            size = f", {faults.length:,} bytes in total" if faults.length else ""
            out.warn(f"{name}: {kind}: {faults.count - _MAX_NAMED:,} more ranges{size}")
    if result.bad_crc:
        more = "" if result.bad_crc <= _MAX_NAMED else f" and {result.bad_crc - _MAX_NAMED:,} more"
        places = ", ".join(map(str, result.bad_crc_at[:_MAX_NAMED]))
        out.warn(f"{name}: {result.bad_crc:,} exported with a body CRC mismatch (crc_ok false): "
                 f"physical offset {places}{more}")
    if result.replaced:
        out.warn(f"{name}: {replaced_text(result.replaced)}")
    for text in lost_texts(result.lost):
        out.warn(f"{name}: {text}")
    if result.lost_elsewhere:
        out.note(f"{name}: the exported part is complete: what is lost or damaged is outside it")
    if result.in_progress is not None:
        out.note(f"{name}: the record at physical offset {result.in_progress.offset} is "
                 "being written by the process that holds the store")


def _show(page: Human, document: dict[str, Any]) -> None:
    if len(document["stores"]) > 1:
        rows = [{**store, "log": store["log"]["bytes"]} for store in document["stores"]]
        page.table(rows, ("store", "complete", "messages", "log", "rows", "bytes"), render={
            "log": size_text, "bytes": size_text, "rows": count_text, "messages": count_text,
            "complete": lambda value: "yes" if value else "no"})
        page.blank()
    page.pairs({
        "exported": f"{counted(document['rows'], 'message')}, {size_text(document['bytes'])}",
        "into": document["out"] if os.path.isfile(document["out"]) else
        f"{counted(document['file_count'], 'file')} in "
        f"{counted(document['partition_count'], 'partition')} of {document['out']}",
        "complete": Phrase("yes") if document["complete"] else Phrase("no"),
    })
