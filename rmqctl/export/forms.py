"""The two forms of an export: lines of text and Arrow columns, each imported on demand."""

from __future__ import annotations

from typing import IO

from rmqctl.export.buffers import Buffer, LineBuffer, Origin
from rmqctl.export.files import ExportFile, TextFile
from rmqctl.export.spec import Export


def opened(spec: Export, target: IO[bytes]) -> ExportFile:
    """Return a new file of the export's format that writes to ``target``."""
    if spec.is_text:
        return TextFile(spec, target)
    from rmqctl.export import arrow_files

    return arrow_files.opened(spec, target)


def buffer(spec: Export, origin: Origin) -> Buffer:
    """Return an empty buffer for the messages of one file of a store."""
    if spec.is_text:
        return LineBuffer(spec, origin)
    from rmqctl.export.columns import ColumnBuffer

    return ColumnBuffer(spec, origin)
