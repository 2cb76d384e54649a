"""Folders to which a command may write: the given root, and folders that the user named.

A store may come from an unknown source. Its links, repair journals, settings and parent folder
contain paths. A command reads such a path, but writes to it only if the user named its folder in
this command.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

from rmqctl.errors import RefusedError


def stores_around(folders: Iterable[str], roots: Iterable[str]) -> list[str]:
    """Return the real paths of the stores, except ``roots``, that contain one of the folders.

    A writer in these folders needs the locks of these stores. The search from a folder upwards ends
    at a folder in ``roots``.
    """
    own = set(map(os.path.realpath, roots))
    stores: dict[str, None] = {}
    for folder in folders:
        path = os.path.realpath(folder)
        while path not in own and path != os.path.dirname(path):
            if os.path.isfile(os.path.join(path, "lock")) or os.path.isdir(
                    os.path.join(path, "consumequeue")):
                stores[path] = None
            path = os.path.dirname(path)
    return list(stores)


class WritableFolders:
    """The folders to which a command may write: ``root``, and the folders that the user ``named``.

    Paths are resolved when the object is created and at each check, so a link counts as its target.
    A named path inside the root adds no folder: if the path is a link in the store, the user did
    not name the link's target.
    """

    def __init__(self, root: str, named: Iterable[str] = ()) -> None:
        self.root = os.path.realpath(root)
        own = os.path.join(os.path.abspath(root), ""), os.path.join(self.root, "")
        self.named = tuple(dict.fromkeys(os.path.realpath(folder) for folder in named
                                         if not os.path.abspath(folder).startswith(own)))

    def contain(self, path: str) -> bool:
        """Return whether `path`, whose parent folder is a real path, is in one of the folders."""
        return any(path == folder or path.startswith(os.path.join(folder, ""))
                   for folder in (self.root, *self.named))

    def require(self, target: str, path: str) -> None:
        """Raise RefusedError if ``path``, with its links resolved, is not in any of the folders.
        ``target``: the path that the error names.
        """
        if self.contain(path):
            return
        where = "" if path == target else f": it is {path}"
        raise RefusedError(
            f"{target} is outside the store{where}. If the folder belongs to this store, name it: "
            f"--write-outside {shlex.quote(os.path.dirname(path))}")

    def refuse_links(self, *paths: str) -> None:
        """Raise RefusedError for a file or folder that is outside the folders, or that is or
        contains a link to the outside.

        A path that cannot be examined is accepted here; the writer will report it.
        """
        for path in paths:
            self.require(path, os.path.realpath(path))
        left = list(paths)
        while left:
            try:
                entries = list(os.scandir(left.pop()))
            except (OSError, ValueError):
                continue
            for entry in entries:
                if entry.is_symlink():
                    self.require(entry.path, os.path.realpath(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
