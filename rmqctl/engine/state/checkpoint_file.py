"""The ``checkpoint`` page, kept in memory and written in place
(spec: checkpoint-and-small-files.md §1).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection

from rmqctl.files.durable import failed, open_file, sync, sync_folder, write_all
from rmqctl.formats.local import checkpoint as page
from rmqctl.formats.local.checkpoint import CHECKPOINT, CheckpointRecord

NAME = "checkpoint"


class CheckpointFile:
    """The fields of ``STORE/checkpoint``; `flush` writes those the version knows.

    ``generation`` 4 writes the three classic fields and leaves the others as they lie there, 5
    writes all five. Times are store times in ms and only ever move forward; the two offsets of
    5.x stay as found unless they are set. A missing file reads as zeros and is made by `flush`.
    Safe to use from several threads. StoreIOError when the file cannot be read.
    """

    def __init__(self, root: str | os.PathLike[str], generation: int) -> None:
        self.path = os.path.join(os.fspath(root), NAME)
        self._written = page.CLASSIC_SIZE if generation < 5 else CHECKPOINT.size
        self._lock = threading.Lock()
        self._record = self._load()

    def _load(self) -> CheckpointRecord:
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
        # A broker maps the page: what a short file lacks reads as zeros.
        return page.parse(data.ljust(CHECKPOINT.size, b"\0"))

    @property
    def record(self) -> CheckpointRecord:
        """The fields as they are in memory."""
        return self._record

    def advance(self, *, physic: int = 0, logics: int = 0, index: int = 0) -> None:
        """Moves the times forward; an older one changes nothing."""
        with self._lock:
            now = self._record
            self._record = now._replace(
                physic_msg_timestamp=max(now.physic_msg_timestamp, physic),
                logics_msg_timestamp=max(now.logics_msg_timestamp, logics),
                index_msg_timestamp=max(now.index_msg_timestamp, index))

    def hold_back(self, newest: int, index_ends: Collection[int]) -> None:
        """Takes back times that were torn while they were written: later than the ``newest``
        message, and for the index none of the times at which an index file ends. What that was
        nobody knows: 0, so that no index file is relied on.
        """
        with self._lock:
            now = self._record
            index = now.index_msg_timestamp
            self._record = now._replace(
                physic_msg_timestamp=min(now.physic_msg_timestamp, newest),
                logics_msg_timestamp=min(now.logics_msg_timestamp, newest),
                index_msg_timestamp=0 if index > newest and index not in index_ends else index)

    def set_offsets(self, *, master_flushed: int | None = None,
                    confirm: int | None = None) -> None:
        """Sets the offsets of 5.x; None leaves one as it is. They may go back."""
        with self._lock:
            now = self._record
            self._record = now._replace(
                master_flushed_offset=(now.master_flushed_offset if master_flushed is None
                                       else master_flushed),
                confirm_phy_offset=now.confirm_phy_offset if confirm is None else confirm)

    def flush(self) -> None:
        """Writes and forces the page. Bytes behind the known fields stay. StoreIOError."""
        with self._lock:
            new = not os.path.lexists(self.path)
            fd = open_file(self.path, os.O_WRONLY | os.O_CREAT, "write to")
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
