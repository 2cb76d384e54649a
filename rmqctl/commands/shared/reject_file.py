"""The file in which a command keeps the lines it could not use."""

from __future__ import annotations

import os
from typing import IO, Self

from rmqctl.errors import StoreIOError, UsageError


class Kept:
    """The file for bad lines; it is made when the first one comes."""

    def __init__(self, path: str | None) -> None:
        if path is not None and os.path.lexists(path):
            raise UsageError(f"{path} exists already; bad lines go to a new file")
        if path is not None and not os.path.isdir(os.path.dirname(path) or "."):
            raise StoreIOError(f"cannot make {path}: no such folder")
        self._path = path
        self._file: IO[bytes] | None = None

    def add(self, line: bytes) -> None:
        """Keeps a line. StoreIOError; a file that came into being meanwhile is never touched."""
        if self._path is None:
            return
        try:
            if self._file is None:
                self._file = open(self._path, "xb", buffering=0)  # noqa: SIM115
            self._file.write(line + b"\n")
        except OSError as error:
            raise StoreIOError.from_oserror(error, self._path, "write to") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
