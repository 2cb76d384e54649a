"""Who else is kept out while a root is repaired.

A store's lock lies in its root. What a broker uploaded to a tier lies elsewhere than the broker's
own root, which has the lock that a running broker holds: such further roots are noted below
``.rmqctl``, so that who completes or takes back a repair later keeps the same ones out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack

from rmqctl.errors import StoreIOError
from rmqctl.files.durable import STAGING, make_folders, open_file, publish
from rmqctl.files.lock import StoreLock

NOTE = "held.json"


class Holding:
    """The locks of a root and of the broker's roots ``homes`` (None: those that were noted)."""

    def __init__(self, root: str, homes: Sequence[str] | None = None) -> None:
        self.root = root
        self._given = homes
        self._lock = StoreLock(root)
        self._more = ExitStack()

    @property
    def held(self) -> bool:
        return self._lock.held

    @property
    def homes(self) -> list[str]:
        """The further roots, as real paths; a folder that is not there is nobody's root."""
        wanted = noted(self.root) if self._given is None else self._given
        here = os.path.realpath(self.root)
        return [one for one in dict.fromkeys(map(os.path.realpath, wanted))
                if one != here and os.path.isdir(one)]

    def acquire(self) -> None:
        """Takes all locks or none. StoreHeldError, StoreIOError."""
        with ExitStack() as stack:
            for home in self.homes:
                lock = StoreLock(home)
                lock.acquire()
                stack.callback(lock.release)
            self._lock.acquire()
            self._more = stack.pop_all()

    def release(self) -> None:
        try:
            self._lock.release()
        finally:
            self._more.close()

    def note(self) -> None:
        """Notes the further roots for later runs, where there are any. StoreIOError."""
        if not self._given:
            return
        root = os.path.realpath(self.root)
        named = [_named(root, home) for home in self.homes]
        if noted(self.root) == [os.path.realpath(os.path.join(root, one)) for one in named]:
            return
        folder = os.path.join(root, STAGING)
        make_folders(folder)
        publish(os.path.join(folder, NOTE), json.dumps({"homes": named}).encode(), store=root,
                staging=folder)


def _named(root: str, home: str) -> str:
    """Relative where the root lies below it: the two are moved together."""
    return os.path.relpath(home, root) if root.startswith(os.path.join(home, "")) else home


def noted(root: str) -> list[str]:
    """The broker's roots that a repair of ``root`` noted; none where there is no such note."""
    path = os.path.join(root, STAGING, NOTE)
    try:
        with open(open_file(path, os.O_RDONLY, "read"), "rb") as file:
            found = json.load(file)["homes"]
    except (StoreIOError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    here = os.path.realpath(root)
    return [os.path.realpath(os.path.join(here, one)) for one in found
            if isinstance(one, str) and "\0" not in one] if isinstance(found, list) else []
