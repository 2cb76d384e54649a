"""Shared parts of the export commands: partitions, and notes on the result."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rmqctl import vfs
from rmqctl.errors import UsageError
from rmqctl.output.units import count_text, counted, size_text
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.checks.preflight.missing import MissingMessages
    from rmqctl.export.result import ExportResult, StoreResult
    from rmqctl.export.spec import Export
    from rmqctl.output import Human, Output

_MAX_NAMED = 5


def replaced_text(count: int) -> str:
    """Return the note about fillers among the messages."""
    return ("fillers for lost messages, or messages with a damaged body (property RMQCTL), in the "
            f"log: {count:,}")


def lost_texts(lost: MissingMessages) -> Iterator[str]:
    """Yield the notes about messages that the log does not contain."""
    if count := lost.known_lost:
        yield (f"{counted(count, 'message')} {'is' if count == 1 else 'are'} already lost, "
               "according to consume queues, index or consumer offsets; run `rmqctl doctor` for "
               "details")
    if count := lost.in_repairs + lost.discarded:
        yield (f"earlier repairs dropped {counted(count, 'message')} or undecided "
               f"record{'' if count == 1 else 's'}; `rmqctl doctor` lists the repairs")


def warn_of_lost(out: Output, stores: Sequence[str], folders: Sequence[str], *,
                 damaged: bool = False) -> None:
    """Warn about each store with known losses: the lost messages are missing from any answer about
    the store.
    """
    from rmqctl.checks.preflight.missing import missing
    from rmqctl.store import Store

    for name in stores:
        with Store.open(vfs.abspath(name), folders) as store:
            lost = missing(store, damaged=damaged)
        for text in lost_texts(lost):
            out.warn(f"{name}: {text}" if len(stores) > 1 else text)


def named_parts(text: str) -> list[str]:
    """Return the value of ``--partition-by``. Raises: UsageError."""
    named = [part.strip() for part in text.split(",") if part.strip()]
    if "none" in named and len(named) > 1:
        raise UsageError(f"--partition-by {text}: none cannot be combined with other parts")
    return [] if named == ["none"] else named


def warn_of(out: Output, result: ExportResult) -> None:
    """Report missing and damaged data, with the first positions of each kind."""
    from rmqctl.export.manifest import NAME as MANIFEST

    for store_result in result.stores:
        _warn(out, store_result)
    if not result.complete:
        beside = f"{result.out}.manifest.json"
        manifests = [path for path in (os.path.join(result.out, MANIFEST), beside)
                     if os.path.exists(path)]
        out.warn(f"the export is incomplete: {manifests[0]} lists what is missing" if manifests
                 else "the export is incomplete")


def report(out: Output, result: ExportResult, spec: Export) -> None:
    """Report how many messages, files and bytes were exported."""
    from rmqctl.export.manifest import summary

    warn_of(out, result)
    document = {"out": result.out, **summary(result, spec)}
    out.document(document, lambda page: _show(page, document))


def _warn(out: Output, result: StoreResult) -> None:
    """Warn about the first missing or damaged positions of each kind, and give the number of
    further ones.
    """
    name = result.plan.name
    for kind, faults in (("not exported", result.missing), ("damage", result.damage)):
        for span in faults.spans[:_MAX_NAMED]:
            where = (f" at physical offset {span.offset}, {span.length} bytes" if span.length
                     else "")
            out.warn(f"{name}: {kind}{where}: {span.reason or 'zeroed range in the log'}")
        if faults.count > _MAX_NAMED:
            out.warn(f"{name}: {kind}: {faults.count - _MAX_NAMED:,} more places, "
                     f"{faults.length:,} bytes in all")
    if result.bad_crc:
        more = "" if result.bad_crc <= _MAX_NAMED else f" and {result.bad_crc - _MAX_NAMED:,} more"
        places = ", ".join(map(str, result.bad_crc_at[:_MAX_NAMED]))
        out.warn(f"{name}: {result.bad_crc:,} exported with a body CRC mismatch (crc_ok false): "
                 f"physical offset {places}{more}")
    if result.replaced:
        out.warn(f"{name}: {replaced_text(result.replaced)}")
    for text in lost_texts(result.lost):
        out.warn(f"{name}: {text}")
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
