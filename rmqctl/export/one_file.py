"""Export of the messages of stores to one file, in the order of the stores and of their logs.

The complete file appears at the end by one rename, or not at all. Standard output receives each
message when it is read. Counts and missing ranges are the same as for a folder
(`rmqctl.export.export`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import IO, NamedTuple

import numpy as np

from rmqctl import __version__
from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.export.attempt import WriteError
from rmqctl.export.buffers import FLUSH, Buffer, Chunks
from rmqctl.export.files import ExportFile
from rmqctl.export.forms import buffer, opened
from rmqctl.export.layout import Partitions
from rmqctl.export.manifest import summary
from rmqctl.export.plan import StorePlan
from rmqctl.export.result import ExportResult, StoreResult
from rmqctl.export.spec import TEXTS, Export
from rmqctl.export.staging import MARK, checked_target
from rmqctl.export.tally import ExportTally
from rmqctl.export.task import ExportRange, RangeWalk, chosen, portions
from rmqctl.files.durable import sync, sync_folder
from rmqctl.store.log.threads import Behind

_FORMATS = {".parquet": "parquet", ".jsonl": "json", ".ndjson": "json", ".json": "json",
            ".csv": "csv", ".avro": "avro", ".arrow": "arrow", ".feather": "arrow",
            ".xlsx": "xlsx"}
_PACKAGES = {"avro": ("fastavro",), "xlsx": ("xlsxwriter",)}
_PACKED = {".gz": "gzip", ".zst": "zstd"}


class Form(NamedTuple):
    """A format of `Export` and its compression (None: the default of the format)."""

    format: str
    compression: str | None = None

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the Python packages that are needed to write the format."""
        return () if self.format in TEXTS else ("pyarrow", *_PACKAGES.get(self.format, ()))


def form_of(out: str) -> Form | None:
    """Return the format that a file's name implies; None for a folder. Raises: UsageError."""
    stem, ending = os.path.splitext(out)
    packed = _PACKED.get(ending.lower())
    name = _FORMATS.get(os.path.splitext(stem)[1].lower() if packed else ending.lower())
    if packed and name is None:
        raise UsageError(f"--out {out}: no format before {ending}; name it, as in "
                         f"messages.jsonl{ending}")
    if packed and name not in ("json", "csv"):
        raise UsageError(f"--out {out}: {name} files are compressed internally; omit {ending}")
    return None if name is None else Form(name, packed)


def export_file(plans: Sequence[StorePlan], spec: Export, out: str, *, count: int | None = None,
                manifest: bool = False, progress: Callable[[int], None] | None = None
                ) -> ExportResult:
    """Export at most ``count`` messages of the plans into the new file ``out``.

    ``manifest``: write the content, the missing ranges and the digest to ``OUT.manifest.json``.
    Raises: RefusedError if ``out`` exists; StoreIOError if ``out`` cannot be written or nothing can
    be read.
    """
    # Refuse every target before the export starts: nothing is replaced.
    targets = [checked_target(out), *([checked_target(f"{out}.manifest.json")] if manifest else [])]
    for target in targets:
        if os.path.isdir(target):
            raise RefusedError(f"{target}: is a folder; name a new file")
    # Write under temporary names, and flush all bytes to disk.
    staged = [f"{target}{MARK}{uuid.uuid4().hex[:12]}" for target in targets]
    try:
        with _writing(staged[0]), open(staged[0], "xb") as target_file:
            result = write(plans, spec, target_file, out, count=count, progress=progress)
            target_file.flush()
            sync(target_file.fileno(), staged[0], whole=True)
            size = target_file.tell()
        if manifest:
            document = {"made_by": f"rmqctl {__version__}", **summary(result, spec),
                        "file": os.path.basename(out), "bytes": size, "sha256": _digest(staged[0]),
                        "fields": list(spec.fields), "time_zone": str(spec.zone),
                        "conditions": spec.conditions_shown,
                        **({} if spec.redaction is None else {"redacted": True})}
            with _writing(staged[1]), open(staged[1], "xb") as target_file:
                target_file.write(json.dumps(document, ensure_ascii=False, indent=2).encode(
                    "utf-8", "backslashreplace") + b"\n")
                target_file.flush()
                sync(target_file.fileno(), staged[1], whole=True)
        # Publish both files only when both are complete.
        for name, target in zip(staged, targets, strict=True):
            _publish(name, target)
    finally:
        for name in staged:
            with contextlib.suppress(OSError):
                os.unlink(name)
    return result


def write(plans: Sequence[StorePlan], spec: Export, target: IO[bytes], out: str, *,
          count: int | None = None, progress: Callable[[int], None] | None = None) -> ExportResult:
    """Export the plans into an open binary file. Raises: StoreIOError."""
    stores = [StoreResult(plan=plan) for plan in plans]
    file = opened(spec, target)
    writing = Writing(file, behind=spec.is_encoded)
    left = count
    try:
        for planned, counted in zip(plans, stores, strict=True):
            for span in planned.missing:
                counted.missing.add(span)
            counted.files = 1
            for piece in planned.pieces:
                if left == 0:
                    break
                tally = _piece(spec, piece, writing, left, progress)
                counted.append(tally)
                left = None if left is None else left - tally.rows
            counted.finish()
        unread = next((store for store in stores if store.nothing_read), None)
        if unread is not None and all(
                store.nothing_read or not store.plan.bytes for store in stores):
            raise StoreIOError(f"nothing can be read: {unread.missing.spans[0].reason}")
        writing.end()
        file.close()
        if len(stores) == 1:
            stores[0].bytes = target.tell()
    except BaseException:
        writing.abandon()
        file.abandon()
        raise
    return ExportResult(out, stores, 1)


def _piece(spec: Export, piece: ExportRange, writing: Writing, most: int | None,
           progress: Callable[[int], None] | None) -> ExportTally:
    """Write the messages in a range, at most ``most``, in row groups of bounded size."""
    tally = ExportTally()
    reading, rows = RangeWalk(piece, tally), buffer(spec, piece.origin)
    partitions, done = Partitions((), piece.name, spec.zone), piece.start
    for batch in reading:
        tally.passed(batch)
        wanted = chosen(spec, batch) if len(batch) else batch
        if most is not None and len(wanted) > most - tally.rows:
            wanted = wanted.select(np.arange(most - tally.rows))
        if len(wanted):
            tally.exported(wanted)
            for portion in portions(spec, wanted):
                rows.add(portion, partitions.codes(portion))
                if rows.size >= FLUSH:
                    writing.flush(rows)
        if progress is not None:
            progress(reading.position - done)
            done = reading.position
        if tally.rows == most:
            break
    writing.flush(rows)
    return tally


class Writing:
    """Writes buffers to a file; with ``behind``, in a thread while the next one is filled."""

    def __init__(self, file: ExportFile, *, behind: bool) -> None:
        self._file = file
        self._behind: Behind[Chunks] | None = Behind(self._write) if behind else None

    def flush(self, rows: Buffer) -> None:
        """Write the content of a buffer, and empty it.

        Raises: the exception of this call, or of the previous one.
        """
        if self._behind is None:
            self._write(rows.take())
        else:
            self._behind.put(rows.take())

    def end(self) -> None:
        """Wait until everything is written. Raises: the exception of the last `flush`."""
        if self._behind is not None:
            self._behind.settle()
            self._behind.end()

    def abandon(self) -> None:
        """Wait until the thread has ended, after a failure."""
        if self._behind is not None:
            self._behind.end()

    def _write(self, chunks: Chunks) -> None:
        for chunk in chunks.all():
            self._file.write(chunk)


def _publish(staged: str, target: str) -> None:
    """Rename a file to its final name, unless another file has that name."""
    try:
        os.link(staged, target)
    except FileExistsError:
        raise RefusedError(f"{target}: created by another process in the meantime; nothing was "
                           "exported") from None
    except OSError:  # a file system without links
        if os.path.lexists(target):
            raise RefusedError(f"{target}: already exists; existing files are never "
                               "replaced") from None
        os.rename(staged, target)
    sync_folder(os.path.dirname(target))


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteError(str(StoreIOError.from_oserror(error, path, "write"))) from None


def _digest(path: str) -> str:
    with open(path, "rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
