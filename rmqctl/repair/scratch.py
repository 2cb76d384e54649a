"""A folder in which derived structures are built before they move into the store.

It looks like a store root with nothing but ``consumequeue``, ``index`` and the like, so the
engine's dispatcher works in it as in a store. It is empty for a rebuild; for a repair that
continues existing files, it has copies of those that may change.
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
"""Folders of a store that are derived from its log."""


class Scratch:
    """A scratch folder at ``root``. ``keep``: it stays when this is closed (to continue later).

    Created in ``above`` under ``name``, or as a fresh temporary folder without one.
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
        """Copy a file, or a folder with its content, times included. Raises: StoreIOError."""
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
        """Delete the content of the folder, but not the folder, for a new start."""
        for name in DERIVED:
            shutil.rmtree(self.path(name), ignore_errors=True)

    def remove(self) -> None:
        """Delete the scratch folder; everything in it is from rmqctl."""
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
