"""The staging folder of an export or of the files of a query. It is published as OUT when complete,
or not at all.

The folder ``OUT.rmqctl-export-ID`` is beside OUT. Workers write below ``attempts``, each attempt
into its own folder. Files of successful attempts are moved below ``export``, which becomes OUT by
one rename. Files of failed attempts are removed with the staging folder.

A worker never creates a folder that the driver should have created. If such a folder is missing,
worker and driver do not share a file system (`refuse_unseen`).
"""

from __future__ import annotations

import errno
import os
import socket
import uuid
from types import TracebackType
from typing import Self

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.files.durable import (
    make_folders,
    move,
    publish_folder,
    remove_folder,
)
from rmqctl.files.named import refuse_link_of_others
from rmqctl.files.sync_many import sync_many
from rmqctl.store.inside_store import refuse_in_store

MARK = ".rmqctl-export-"


def checked_target(out: str) -> str:
    """Return the real path of OUT.
    Raises: UsageError if the path is in a store; RefusedError if it exists and is not an empty
    folder, or if it is another user's link; StoreIOError if the parent folder is missing.
    """
    refuse_link_of_others(out)
    target = os.path.realpath(out)
    refuse_in_store(out)
    try:
        if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
            raise RefusedError(f"{out}: already exists; name a new folder (existing files are "
                               "never changed)")
    except OSError as error:
        raise StoreIOError.from_oserror(error, out, "read") from None
    parent = os.path.dirname(target)
    if not os.path.isdir(parent):
        raise StoreIOError(f"{parent}: no such directory; cannot create {os.path.basename(target)} "
                           "in it")
    return target


class ExportStaging:
    """A staging folder, as a context manager: the entire folder is removed unless `publish` was
    called.
    """

    def __init__(self, out: str) -> None:
        self.target = checked_target(out)
        self.folder = f"{self.target}{MARK}{uuid.uuid4().hex[:12]}"
        self.attempts = os.path.join(self.folder, "attempts")
        self._export = os.path.join(self.folder, "export")
        self._folders: list[str] = []

    def __enter__(self) -> Self:
        try:
            for folder in (self.folder, self.attempts, self._export):
                os.mkdir(folder)
        except OSError as error:
            remove_folder(self.folder)
            raise StoreIOError.from_oserror(error, self.folder, "make") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        remove_folder(self.folder)

    def keep(self, attempt: str, name: str, relative: str) -> None:
        """Move an attempt's file into the export under its final path. Raises: StoreIOError."""
        path = os.path.join(self._export, relative)
        self._folders += make_folders(os.path.dirname(path), durable=False)
        move(os.path.join(self.attempts, attempt, name), path, durable=False)

    def path(self, name: str) -> str:
        """Return the path in the export at which the caller writes a file, such as the manifest."""
        return os.path.join(self._export, name)

    def publish(self) -> None:
        """Rename the export to OUT. Raises: RefusedError if OUT was created in the meantime."""
        sync_many(self._folders, self._export)
        try:
            publish_folder(self._export, self.target)
        except StoreIOError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise RefusedError(f"{self.target}: created by another process in the meantime; "
                                   "nothing was exported") from None
            raise


def refuse_unseen(path: str) -> None:
    """Raise StoreIOError if a path that the driver created does not exist on this machine."""
    if not os.path.exists(path):
        raise StoreIOError(f"{path}: does not exist on {socket.gethostname()}; workers and driver "
                           "must see the stores and the scratch folder (--scratch) at the same "
                           "paths")
