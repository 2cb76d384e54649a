"""Stores at a URL or in an archive, mounted as a read-only tree of files."""

from __future__ import annotations

import glob
from importlib import import_module

from rmqctl import vfs
from rmqctl.errors import NotAStoreError
from rmqctl.files.remote.listing import remote_files
from rmqctl.files.remote.ranges import RangeCache
from rmqctl.files.remote.reader import (
    RemoteReader,
    failing,
    hide,
    revealed,
    without_secrets,
)
from rmqctl.vfs import Tree, archive_of

_POINTS = "points/"
"""Folder of the restore points of a backup at a URL; a store has no such folder."""


def mounted(root: str, *, sampled: bool = False) -> str:
    """List the files at a URL or in an archive, and register them in `vfs`; return their root path.

    Files that were just listed are not listed again. ``sampled`` as in `Store.open`. Raises: the
    errors of `tree_of`.
    """
    named = hide(root.rstrip("/"))
    tree = vfs.listed_tree(named)
    if tree is None:
        vfs.mount(tree := tree_of(named), named)
    tree.reader.sampled = sampled
    return tree.root


def tree_of(named: str) -> Tree:
    """Return the tree of files at a URL, or in an archive.

    Raises: NotAStoreError, FormatError, StoreIOError, UsageError if the driver is missing.
    """
    split = archive_of(named)
    if split is not None:
        from rmqctl.files.remote.archive import tree_in

        if (tree := tree_in(*split)) is not None:
            return tree
    remote = RemoteReader(named)
    files, links, folders = remote_files(remote)
    if not files:
        raise NotAStoreError(f"{without_secrets(named)}: the bucket or folder does not exist or "
                             "is empty; not a store")
    if any(path.startswith(_POINTS) for path in files):
        # The reader of backups is in a higher package, and only loaded for a backup.
        backup: Tree | None = import_module("rmqctl.backup.mounting").tree_of(remote, files)
        if backup is not None:
            return backup
    return Tree(without_secrets(named), files, RangeCache(remote, files), links=links,
                empty=folders)


def matching(url: str) -> list[str]:
    """Return the folders that match a URL with ``*``, ``?`` or ``[``; any other URL unchanged.

    Raises: NotAStoreError if no folder matches, StoreIOError.
    """
    if "://" not in url or not glob.has_magic(revealed(url)):
        return [url]
    remote = RemoteReader(url)
    server = "/".join(url.split("/", 3)[:3])
    with failing(remote.where(""), "list"):
        rows = remote._fs.glob(remote._root, detail=True)
        # A file server's paths do not name the server.
        folders = sorted(f"{server}{name}" if name.startswith("/") and hasattr(remote._fs, "ftp")
                         else str(remote._fs.unstrip_protocol(name)) for name, row in rows.items()
                         if row.get("type") == "directory")
    if not folders:
        raise NotAStoreError(f"{without_secrets(url)}: no folder matches")
    return folders
