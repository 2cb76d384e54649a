"""Folders to which a command may write: below the given root, and those that the user named.

A store may come from an unknown source. Its links, its journals of repairs, its settings and the
folder around it name paths. Such paths are read, but only written to after the user named the
folder in this command.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

from rmqctl.errors import RefusedError


def stores_around(folders: Iterable[str], roots: Iterable[str]) -> list[str]:
    """Return the roots of other stores than ``roots`` that contain one of the folders: real paths.

    A writer in these folders needs their locks. A folder in one of ``roots`` belongs to that store.
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


class Bounds:
    """The folders to which a command may write: ``root``, and those that the user ``named``.

    Paths are resolved when the object is created and at each check, so that a link counts as its
    target. A folder named by its path in the root adds no folder: the target of a link in the store
    was not named.
    """

    def __init__(self, root: str, named: Iterable[str] = ()) -> None:
        self.root = os.path.realpath(root)
        own = os.path.join(os.path.abspath(root), ""), os.path.join(self.root, "")
        self.named = tuple(dict.fromkeys(os.path.realpath(folder) for folder in named
                                         if not os.path.abspath(folder).startswith(own)))

    def contain(self, path: str) -> bool:
        """Return whether `path`, a name in a real folder, is in one of the folders."""
        return any(path == folder or path.startswith(os.path.join(folder, ""))
                   for folder in (self.root, *self.named))

    def require(self, target: str, path: str) -> None:
        """Raise RefusedError unless the step for ``target`` writes inside: to ``path``,
        resolved.
        """
        if self.contain(path):
            return
        where = "" if path == target else f": it is {path}"
        raise RefusedError(
            f"{target} is outside the store{where}. If the folder belongs to this store, name it: "
            f"--write-outside {shlex.quote(os.path.dirname(path))}")

    def refuse_links(self, *paths: str) -> None:
        """Raise RefusedError for a file or folder that is outside, or that has a link in or below
        it that points outside: a write there would go elsewhere. Paths that cannot be examined are
        left to the writer.
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
