"""The files that one attempt at a task writes to its own folder; they are flushed to disk when
complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from typing import IO

from rmqctl.errors import StoreIOError
from rmqctl.export.files import ExportFile
from rmqctl.export.forms import opened
from rmqctl.export.spec import Export
from rmqctl.files.durable import sync
from rmqctl.files.sync_many import MANY, sync_many
from rmqctl.lazy_dataclass import dataclass

_FOLDER_NAME = 32


class WriteError(StoreIOError):
    """Raised if the export cannot be written. In this case no file is published."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A written file: its name in the attempt's folder, the index of its partition, and its size
    in rows and bytes.

    ``at``: index of the range that contains the file's first message. ``flush``: index of the
    buffer in this range. Sorted by (``at``, ``flush``), the files of a partition are in log order.
    """

    name: str
    partition: int
    at: int
    flush: int
    rows: int
    bytes: int


@dataclass(slots=True)
class OpenFile:
    """A file that is being written."""

    name: str
    partition: int
    at: int
    flush: int
    target: IO[bytes]
    file: ExportFile
    rows: int = 0

    @property
    def size(self) -> int:
        """Return the number of bytes written so far."""
        return self.target.tell()


class Attempt:
    """The folder of an attempt below ``folder``, which the driver created. Methods raise
    WriteError.
    """

    def __init__(self, spec: Export, folder: str) -> None:
        self.name = uuid.uuid4().hex[:_FOLDER_NAME]
        self._spec, self.folder = spec, os.path.join(folder, self.name)
        self._count = 0
        self._has_folder = False
        self._closed: list[str] = []

    def open(self, partition: int, at: int, flush: int) -> OpenFile:
        """Return a new file of the export's format."""
        name = f"{self._count:06d}{self._spec.ending}"
        self._count += 1
        with self.writing(name):
            target = self.binary(name)
            try:
                return OpenFile(name, partition, at, flush, target, opened(self._spec, target))
            except BaseException:
                drop(target)
                raise

    def binary(self, name: str) -> IO[bytes]:
        """Return a new binary file. Raises: OSError."""
        if not self._has_folder:
            os.mkdir(self.folder)  # the folder above is the driver's, or gone
            self._has_folder = True
        return open(os.path.join(self.folder, name), "xb")

    def close(self, file: OpenFile) -> WrittenFile:
        """Close a file and flush it to disk. After `MANY` files, leave the flush to `finish`."""
        with self.writing(file.name):
            try:
                file.file.close()
                file.target.flush()
                size = file.target.tell()
                if len(self._closed) < MANY:
                    sync(file.target.fileno(), file.target.name, whole=True)
                file.target.close()
            except BaseException:
                drop(file.target, file.file)
                raise
        self._closed.append(os.path.join(self.folder, file.name))
        return WrittenFile(file.name, file.partition, file.at, file.flush, file.rows, size)

    def finish(self) -> None:
        """Flush to disk the closed files that `close` has not flushed. Raises: WriteError."""
        late, self._closed = self._closed[MANY:], []
        with self.writing(""):
            sync_many(late, self.folder)

    def remove(self) -> None:
        """Remove the written files after a failure."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Return a context manager that converts operating system errors to WriteError."""
        try:
            yield
        except OSError as error:
            if error.errno is None:  # Arrow's own error, without a number
                error.errno = errno.EIO
                raise WriteError(f"cannot write the export: {error}") from None
            path = os.path.join(self.folder, name)
            raise WriteError(str(StoreIOError.from_oserror(error, path, "write"))) from None
        except StoreIOError as error:
            raise WriteError(str(error)) from None


def drop(target: IO[bytes], file: ExportFile | None = None) -> None:
    """Close a file that will not be completed, regardless of its state."""
    if file is not None:
        file.abandon()
    with contextlib.suppress(OSError):  # pending data cannot be written now either
        target.close()
