"""Files of the scratch folder: parts of others in new ones, and taking away what no step needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from rmqctl.files.durable import failed
from rmqctl.tiered.files.reader import Reader

_STEP = 4 << 20


def copy_ranges(reader: Reader, path: str, ranges: Iterable[tuple[int, int]], to: str) -> None:
    """Writes ``[start, end)`` of a file of a tier, one range behind the other, as a new file.
    StoreIOError.
    """
    try:
        with open(to, "wb") as file:
            for start, end in ranges:
                at = start
                while at < end and (part := reader.read(path, at, min(_STEP, end - at))):
                    file.write(part)
                    at += len(part)
    except OSError as error:
        raise failed(error, to, "write to") from None


def forget(path: str) -> None:
    """A file. StoreIOError."""
    try:
        os.unlink(path)
    except OSError as error:
        raise failed(error, path, "remove") from None


def remove_folder(folder: str) -> None:
    """A folder with all that is in it, where there is one."""
    shutil.rmtree(folder, ignore_errors=True)
