"""Open a tier root for reading or writing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rmqctl import vfs
from rmqctl.errors import NotAStoreError
from rmqctl.ext.tiered.files.reader import PosixReader, TierReader
from rmqctl.files import durable
from rmqctl.parse_values import is_url

if TYPE_CHECKING:
    from rmqctl.ext.tiered.files.writer import TierWriter


def open_reader(target: str) -> TierReader:
    """Open a tier root for reading. Raises: NotAStoreError if it is not a folder."""
    if is_url(target) and not vfs.is_mounted(target):
        from rmqctl.files.remote.reader import RemoteReader

        return RemoteReader(target)
    if not vfs.isdir(target):
        words = "not a folder" if vfs.lexists(target) else "no such folder"
        raise NotAStoreError(f"{target}: {words}")
    return PosixReader(target)


def open_writer(target: str) -> TierWriter:
    """Open a tier root for writing; create it if needed. Raises: NotAStoreError, StoreIOError."""
    if is_url(target):
        from rmqctl.ext.tiered.files.remote_writer import RemoteWriter

        return RemoteWriter(target)
    if os.path.lexists(target) and not os.path.isdir(target):
        raise NotAStoreError(f"{target}: not a folder")
    from rmqctl.ext.tiered.files.writer import PosixWriter

    durable.make_folders(os.path.abspath(target))
    return PosixWriter(target)
