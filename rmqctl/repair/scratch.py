"""Scratch folders, in which derived structures are built before they are moved into the store.

A scratch folder has the layout of a store, but contains only derived structures: ``consumequeue``,
``index`` and others. So the engine's dispatcher can write to it. For a rebuild, the folder is empty
at first. For a repair that continues existing files, it begins with copies of the files that may
change.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from rmqctl.errors import StoreIOError
from rmqctl.files.durable import failed, make_folders
from rmqctl.files.sparse import copy_sparse

DERIVED = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index")
"""Folders of a store that contain only structures derived from the log."""


class Scratch:
    """A scratch folder: ``name`` in the folder ``above``, or a new temporary folder if ``above`` is
    None.

    ``keep``: the folder stays after the ``with`` block, so that a later run can continue.
    """

    def __init__(self, above: str | None = None, name: str = "scratch", *,
                 keep: bool = False) -> None:
        if above is None:
            try:
                self.root = tempfile.mkdtemp(prefix="rmqctl-")
            except OSError as error:
                raise failed(error, tempfile.gettempdir(), "create a scratch folder in") from None
        else:
            self.root = os.path.join(above, name)
            make_folders(self.root)
            # Files below are written, and deleted later: they must not be elsewhere.
            for path in (self.root, *_below(self.root)):
                if os.path.islink(path):
                    raise StoreIOError(f"{path}: is a link; rmqctl does not use it for scratch "
                                       "files")
        self.keep = keep

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    def copy_in(self, store_root: str, relative: str) -> None:
        """Copy a file, or a folder with its content, from the store, including times. Raises:
        StoreIOError.
        """
        source, target = os.path.join(store_root, relative), self.path(relative)
        try:
            if os.path.isdir(source):
                make_folders(target, durable=False)
                for name in sorted(os.listdir(source)):
                    self.copy_in(store_root, os.path.join(relative, name))
            elif os.path.isfile(source):
                make_folders(os.path.dirname(target), durable=False)
                copy_sparse(source, target)
        except OSError as error:
            raise failed(error, source, f"copy to {target}:") from None

    def clear(self) -> None:
        """Delete all derived structures in the folder, so that building can start again."""
        for name in DERIVED:
            shutil.rmtree(self.path(name), ignore_errors=True)

    def remove(self) -> None:
        """Delete the scratch folder and its contents."""
        shutil.rmtree(self.root, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        if not self.keep:
            self.remove()


def _below(folder: str) -> Iterator[str]:
    for holder, folders, names in os.walk(folder):
        yield from (os.path.join(holder, name) for name in (*folders, *names))
