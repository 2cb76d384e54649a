"""The files in which a broker keeps its state: ``checkpoint`` and ``abort``, written in place as a
broker does (spec: checkpoint-and-small-files.md §1-§2).

``abort`` exists while a store is open for writing, and after a crash.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.files.durable import failed, open_file, sync, sync_folder, write_all
from rmqctl.formats.local import abort as abort_format
from rmqctl.formats.local import checkpoint as page
from rmqctl.formats.local.checkpoint import CHECKPOINT, CheckpointRecord

CHECKPOINT_NAME = "checkpoint"
ABORT = "abort"
ABORT_BACKUP = ABORT + ".bak"
_MAX_ABORT = 1 << 20


class CheckpointFile:
    """The fields of ``STORE/checkpoint``. `flush` writes the fields that the broker's version has.

    ``generation`` 4 writes the three classic fields and keeps the others; 5 writes all five. Times
    are store times in ms and only increase. The two offsets of 5.x change only if they are set. A
    missing file counts as zeros, and `flush` creates it. Thread-safe.

    Raises: RefusedError for a link; StoreIOError if the file cannot be read.
    """

    def __init__(self, root: str | os.PathLike[str], generation: int) -> None:
        self.path = os.path.join(os.fspath(root), CHECKPOINT_NAME)
        self._written = page.CLASSIC_SIZE if generation < 5 else CHECKPOINT.size
        self._lock = threading.Lock()
        self._record = self._load()

    def _load(self) -> CheckpointRecord:
        _refuse_link(self.path)
        if not os.path.lexists(self.path):
            data = b""
        else:
            fd = open_file(self.path, os.O_RDONLY)
            try:
                data = os.pread(fd, CHECKPOINT.size, 0)
            except OSError as error:
                raise failed(error, self.path, "read") from None
            finally:
                os.close(fd)
        # A broker maps the page, so missing bytes of a short file read as zeros.
        return page.parse(data.ljust(CHECKPOINT.size, b"\0"))

    @property
    def record(self) -> CheckpointRecord:
        """The fields in memory, which `flush` writes."""
        return self._record

    def advance(self, *, physic: int = 0, logics: int = 0, index: int = 0) -> None:
        """Advance the times; a time that is older than the current one has no effect."""
        with self._lock:
            now = self._record
            self._record = now._replace(
                physic_msg_timestamp=max(now.physic_msg_timestamp, physic),
                logics_msg_timestamp=max(now.logics_msg_timestamp, logics),
                index_msg_timestamp=max(now.index_msg_timestamp, index))

    def hold_back(self, newest: int, index_ends: Collection[int]) -> None:
        """Correct times that a torn write may have damaged.

        The times of the log and of the queues are limited to the time of the ``newest`` message. A
        later index time that is not in ``index_ends``, the end times of index files, is set to 0.
        Then a broker trusts no index file.
        """
        with self._lock:
            now = self._record
            index = now.index_msg_timestamp
            self._record = now._replace(
                physic_msg_timestamp=min(now.physic_msg_timestamp, newest),
                logics_msg_timestamp=min(now.logics_msg_timestamp, newest),
                index_msg_timestamp=0 if index > newest and index not in index_ends else index)

    def flush(self) -> None:
        """Write and flush the page; bytes after the known fields do not change. Raises:
        StoreIOError.
        """
        with self._lock:
            new = not os.path.lexists(self.path)
            fd = open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, "write to")
            try:
                try:
                    grows = os.fstat(fd).st_size < page.PAGE_SIZE
                    if grows:
                        os.ftruncate(fd, page.PAGE_SIZE)
                except OSError as error:
                    raise failed(error, self.path, "set the length of") from None
                write_all(fd, page.build(self._record)[:self._written], 0, self.path)
                sync(fd, self.path, whole=grows)
            finally:
                os.close(fd)
            if new:
                sync_folder(os.path.dirname(self.path) or ".")


def create_abort(root: str, pid: int | None) -> None:
    """Create and flush ``abort`` before anything else is written. After an error, a new ``abort``
    is removed.

    If ``pid`` is None (4.x), an existing file stays as it is. If it is a number (5.x), the old
    content (empty for a new file) is first copied to ``abort.bak``.

    Raises: RefusedError for a link; StoreIOError.
    """
    path, side = os.path.join(root, ABORT), os.path.join(root, ABORT_BACKUP)
    for name in (path, *(() if pid is None else (side,))):
        _refuse_link(name)
    new = not os.path.lexists(path)
    fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, "make")
    try:
        if pid is not None:
            _replace_side(side, _read(fd, path))
            _replace(fd, abort_format.build(pid), path)
        sync(fd, path, whole=True)
        sync_folder(root)
    except StoreIOError:
        if new:
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise
    finally:
        os.close(fd)


def _refuse_link(path: str) -> None:
    """Raise RefusedError for a link: a file written in place must be inside the store."""
    if os.path.islink(path):
        raise RefusedError(f"{path} is a link, and rmqctl does not write through links: replace "
                           "it with the file itself")


def remove_abort(root: str) -> None:
    """Remove ``abort`` after a clean shutdown, and fsync its folder. Raises: StoreIOError."""
    path = os.path.join(root, ABORT)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise failed(error, path, "remove") from None
    sync_folder(root)


def _read(fd: int, path: str) -> bytes:
    try:
        return os.pread(fd, _MAX_ABORT, 0)
    except OSError as error:
        raise failed(error, path, "read") from None


def _replace_side(side: str, data: bytes) -> None:
    fd = open_file(side, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, "make")
    try:
        _replace(fd, data, side)
        sync(fd, side, whole=True)
    finally:
        os.close(fd)


def _replace(fd: int, data: bytes, path: str) -> None:
    """Overwrite a file in place with ``data``, as a broker does, and set its length."""
    write_all(fd, data, 0, path)
    try:
        os.ftruncate(fd, len(data))
    except OSError as error:
        raise failed(error, path, "set the length of") from None
