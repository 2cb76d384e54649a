"""Folders for replaced contents, because rmqctl never deletes data of a store.

* ``.rmqctl/aside``: replaced files and bytes.
* ``.rmqctl/kept``: unreadable files of ``config/``, such as topics.json.

Files that a plan moves aside are kept with its journal: see `rmqctl.repair.executor.journal`.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from typing import NamedTuple

from rmqctl.files.durable import (
    STAGING,
    Content,
    failed,
    make_folders,
    move,
    publish,
    sync_file,
    sync_folder,
)

ASIDE, TIER_ASIDE = "aside", "tiered/aside"
"""Folders below ``.rmqctl`` for replaced contents. ``ASIDE``: in a store or a broker's local root;
``TIER_ASIDE``: in a tier (`tiered.files.writer`).
"""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK)


class AsideFolder:
    """One folder ``.rmqctl/aside/TIME-PID`` for everything that is replaced while a store is open.

    Files keep their paths relative to the store root; the folder is created at its first use.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self.folder = os.path.join(root, STAGING, ASIDE, f"{time.time_ns()}-{os.getpid()}")
        self.used = False

    def move(self, path: str) -> None:
        """Move a file aside, to an unused name.

        Raises: StoreIOError.
        """
        target = self._target(path)
        if os.path.lexists(target):
            target = _numbered(target, 2)
        move(path, target)

    def save_bytes(self, path: str, position: int, data: Content) -> str:
        """Save bytes of a file that are about to be overwritten. Return the path of the copy,
        relative to the store root.

        `position` is the position of the bytes in the file. The bytes are given at once, or in
        blocks.

        Raises: StoreIOError.
        """
        copy = f"{self._target(path)}.at-{position}"
        publish(copy, data, store=self._root)
        return os.path.relpath(copy, self._root)

    def _target(self, path: str) -> str:
        target = _below(path, self._root, self.folder)
        make_folders(os.path.dirname(target))
        self.used = True
        return target


class Aside(NamedTuple):
    """A folder of files that were moved aside together: path below ``.rmqctl``, time (ms), number
    of files.
    """

    path: str
    time: int
    files: int


def asides(root: str) -> list[Aside]:
    """Return the folders with contents that were moved aside in a store or a tier, oldest first.

    Raises: StoreIOError.
    """
    present = []
    for place in (ASIDE, TIER_ASIDE):
        folder = os.path.join(root, STAGING, place)
        try:
            with os.scandir(folder) as entries:
                present += [Aside(os.path.join(place, entry.name),
                                  entry.stat().st_mtime_ns // 1_000_000,
                                  sum(len(files) for _, _, files in os.walk(entry.path)))
                            for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise failed(error, folder, "list") from None
    return sorted(present, key=lambda aside: (aside.time, aside.path))


def save_file(path: str, root: str) -> str | None:
    """Save a file that is about to be replaced. Return the path of the copy; None if the file does
    not exist.

    The copy is in ``.rmqctl/kept`` of the store at `root`. Its path there is the file's path in the
    store, followed by a number.

    Raises: StoreIOError.
    """
    path = os.path.realpath(path)
    if not os.path.lexists(path):
        return None
    target = _below(path, os.path.realpath(root), os.path.join(root, STAGING, "kept"))
    make_folders(os.path.dirname(target))
    number = 1
    while True:
        copy = _numbered(target, number)
        try:
            os.link(path, copy)
        except FileExistsError:  # another process was faster
            number += 1
            continue
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise failed(error, copy, "keep the old file as") from None
            _copy(path, copy)
        sync_folder(os.path.dirname(copy))
        return copy


def _below(path: str, root: str, folder: str) -> str:
    """Return the new path in `folder`: the file's path relative to the store, or only its name if
    it is outside the store.
    """
    relative = os.path.relpath(path, root)
    if relative.startswith(os.pardir):
        relative = os.path.basename(path)
    return os.path.join(folder, relative)


def _numbered(target: str, number: int) -> str:
    """Return ``TARGET.N``, with the first free N from ``number`` on."""
    while os.path.lexists(f"{target}.{number}"):
        number += 1
    return f"{target}.{number}"


def _copy(path: str, copy: str) -> None:
    """Copy a file (used on file systems without hard links)."""
    try:
        shutil.copy2(path, copy)
    except OSError as error:
        raise failed(error, copy, "keep the old file as") from None
    sync_file(copy)
