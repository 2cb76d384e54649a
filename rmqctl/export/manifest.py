"""``_rmqctl_export.json``: the contents of an export, their sources, and what is missing.

Readers of data sets ignore files whose names begin with ``_``. The list of files may be very long.
Until it is written at the end, it is kept in a temporary file.
"""

from __future__ import annotations

import json
import os
from types import TracebackType
from typing import Any, Self

from rmqctl import __version__
from rmqctl.errors import StoreIOError
from rmqctl.export.layout import Values, is_cut
from rmqctl.export.result import ExportResult, StoreResult
from rmqctl.export.spec import Export
from rmqctl.export.staging import ExportStaging
from rmqctl.export.tally import MAX_NAMED, CountedSpans
from rmqctl.files.durable import sync
from rmqctl.scan.frames import Span

NAME = "_rmqctl_export.json"
_SPOOL = "files"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": ")).encode


class Manifest:
    """The manifest of an export, collected until `write` is called. A context manager. Methods
    raise StoreIOError.
    """

    def __init__(self, staging: ExportStaging, spec: Export) -> None:
        self._staging, self._spec = staging, spec
        self._spool_path = os.path.join(staging.folder, _SPOOL)
        self._cut: dict[str, str] = {}
        self._last = ""

    def __enter__(self) -> Self:
        try:
            self._spool = open(self._spool_path, "w+b")
        except OSError as error:
            raise StoreIOError.from_oserror(error, self._spool_path, "make") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            self._spool.close()
        except OSError as error:  # a full disk may be reported only here
            if kind is None:
                raise StoreIOError.from_oserror(error, self._spool_path, "write") from None

    def file(self, row: dict[str, Any]) -> None:
        """Add a file of the export."""
        try:
            self._spool.write(_bytes(row) + b"\n")
        except OSError as error:
            raise StoreIOError.from_oserror(error, self._spool_path, "write") from None

    def folder(self, path: str, values: Values) -> None:
        """Add a folder with files. Partition values that are too long for its name are recorded."""
        if path == self._last:
            return
        self._last = path
        for name, value, part in zip(self._spec.partition_by, values, path.split("/"),
                                     strict=False):
            if value and len(self._cut) < MAX_NAMED and is_cut(name, value):
                self._cut[part] = value

    def write(self, result: ExportResult) -> None:
        """Write the manifest into the export and flush it to disk."""
        path = self._staging.path(NAME)
        head = _bytes(self._document(result))
        try:
            with open(path, "xb") as target:
                target.write(head[:-1] + b', "files": [')
                self._spool.seek(0)
                target.writelines((b",\n" if number else b"\n") + line.rstrip(b"\n")
                                  for number, line in enumerate(self._spool))
                target.write(b"]}\n")
                target.flush()
                sync(target.fileno(), path, whole=True)
        except OSError as error:
            raise StoreIOError.from_oserror(error, path, "write") from None

    def _document(self, result: ExportResult) -> dict[str, Any]:
        spec = self._spec
        return {
            "made_by": f"rmqctl {__version__}",
            **summary(result, spec),
            "compression": spec.compression,
            "body": spec.body,
            "partition_by": list(spec.partition_by),
            "time_zone": str(spec.zone),
            "conditions": spec.conditions_shown,
            **({} if spec.redaction is None else {"redacted": True}),
            "schema": [{"name": field.name, "type": str(field.type)} for field in spec.schema],
            "cut_names": self._cut,
        }


def _bytes(value: Any) -> bytes:
    return _encode(value).encode("utf-8", "backslashreplace")


def summary(result: ExportResult, spec: Export) -> dict[str, Any]:
    """Return the summary of an export for the user, which is also the first part of the
    manifest.
    """
    return {
        "complete": result.complete,
        "format": spec.format,
        "rows": result.total("rows"),
        "messages_undecided": sum(store.undecided for store in result.stores),
        "messages_replaced": result.total("replaced"),
        "messages_already_lost": None if any(
            store.lost.counted is None for store in result.stores) else sum(
            store.lost.already for store in result.stores),
        "bytes": result.total("bytes"),
        "file_count": result.total("files"),
        "partition_count": result.partitions,
        "stores": [_store(store) for store in result.stores],
    }


def _store(result: StoreResult) -> dict[str, Any]:
    files = result.plan.files
    return {
        "store": result.plan.name,
        "complete": result.complete,
        "messages": result.messages,
        "rows": result.rows,
        "bytes": result.bytes,
        "file_count": result.files,
        "log": {"from": files[0].base if files else None, "to": files[-1].end if files else None,
                "files": len(files), "bytes": result.plan.bytes},
        "first_physical_offset": result.first_offset,
        "last_physical_offset": result.last_offset,
        "first_store_timestamp": result.first_time,
        "last_store_timestamp": result.last_time,
        "bad_crc": {"count": result.bad_crc, "physical_offsets": result.bad_crc_at},
        "messages_undecided": result.undecided,
        "messages_replaced": result.replaced,
        "messages_already_lost": result.lost.counted,
        "lost_messages": [place._asdict() for place in result.losses.places],
        "lost_elsewhere": result.lost_elsewhere,
        "damage": _faults(result.damage),
        "missing": _faults(result.missing),
        "in_progress": None if result.in_progress is None else _span(result.in_progress),
    }


def _faults(faults: CountedSpans) -> dict[str, Any]:
    return {"count": faults.count, "bytes": faults.length, "places": [_span(span) for span in
                                                                     faults.spans]}


def _span(span: Span) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": span.kind, "physical_offset": span.offset,
                           "length": span.length, "reason": span.reason or "zeros inside the log"}
    return {**row, "field": span.field} if span.field else row
