"""Where what is replaced goes: ``.rmqctl/aside``. Nothing of a store is ever deleted."""

from __future__ import annotations

import os
import time

from rmqctl.files.durable import STAGING, make_folders, move_aside, publish

FOLDER = "aside"


class Aside:
    """One folder below ``.rmqctl/aside`` for all that one opening of a store replaces.

    Paths in it are those below the store root; the folder is made when it is first needed.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self.folder = os.path.join(root, STAGING, FOLDER, f"{time.time_ns()}-{os.getpid()}")
        self.used = False

    def _target(self, path: str) -> str:
        below = os.path.relpath(path, self._root)
        if below.startswith(os.pardir):
            below = os.path.basename(path)
        target = os.path.join(self.folder, below)
        make_folders(os.path.dirname(target))
        self.used = True
        return target

    def move(self, path: str) -> None:
        """Moves a file away. StoreIOError."""
        target = wanted = self._target(path)
        number = 1
        while os.path.lexists(target):  # a file of that name was moved before
            number += 1
            target = f"{wanted}.{number}"
        move_aside(path, target)

    def keep(self, path: str, at: int, data: bytes) -> None:
        """Keeps bytes of a file that are about to be overwritten. StoreIOError.

        ``at`` is where they lie in the file.
        """
        publish(f"{self._target(path)}.at-{at}", data, store=self._root)
