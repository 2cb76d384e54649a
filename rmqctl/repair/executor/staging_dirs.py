"""The folders in which a repair stages and keeps files.

Renaming works only within one mount, and a log's folder may be on another disk: it may be a link,
or one of several folders of the log. Files for such a target are in a ``.rmqctl`` folder next to
the log's folder. A broker does not start if it finds foreign names inside the log's folder.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib

from rmqctl.errors import InternalError, RefusedError, StoreIOError
from rmqctl.files.durable import (
    STAGING,
    failed,
    make_folders,
    open_file,
    publish,
    refuse_own_links,
)
from rmqctl.repair.executor.journal import FOLDER, Journal, repair_folder
from rmqctl.repair.targets import nearest_folder

STAGING_DIRS = "homes.json"
_OWN_NAME = re.compile("-[0-9a-f]{8}")


def reachable(first: str, other: str) -> bool:
    """Return whether files can be renamed between two folders. Raises: StoreIOError.

    Device numbers do not show this: a bind mount is another mount of the same device. So the test
    renames a file that does not exist, because the system compares the mounts before it looks for
    the file.
    """
    probe = f".rmqctl-probe-{os.getpid()}"
    try:
        os.rename(os.path.join(first, probe), os.path.join(other, probe))
    except FileNotFoundError:
        return os.stat(first).st_dev == os.stat(other).st_dev
    except OSError as error:
        if error.errno == errno.EXDEV:
            return False
        raise failed(error, other, "rename in") from None
    raise InternalError(f"file {probe} exists already")


class StagingDirs:
    """The folders in which one repair stages and keeps files, created as they are needed.

    The first folder is in the store's ``.rmqctl``, further folders are on other file systems.
    """

    def __init__(self, root: str, repair_id: str) -> None:
        self.root, self.id = root, repair_id
        self.folders: list[str] = [repair_folder(root, repair_id)]
        self._dir_near: dict[str, int] = {}

    def of(self, target: str, path: str) -> int:
        """Return the number of the staging folder for a file that is, or will be, at the real
        ``path``.

        Raises: RefusedError if the file system of ``path`` has no suitable folder.
        """
        near = nearest_folder(path)
        if near not in self._dir_near:
            self._dir_near[near] = self._find(target, path, near)
        return self._dir_near[near]

    def _find(self, target: str, path: str, near: str) -> int:
        for number, folder in enumerate(self.folders):
            if reachable(folder, near):
                return number
        top = structure_of(self.root, target)
        beside = os.path.dirname(top)
        if not os.path.isdir(beside) or not reachable(beside, near):
            raise RefusedError(
                f"{target}: {top} is a mount point: the only place for kept files would be inside "
                "it, and a broker does not start on unknown files there")
        staging_dir = os.path.join(beside, STAGING, FOLDER, _staging_dir_name(self.root, self.id))
        note = json.dumps([*self.folders[1:], staging_dir]).encode()
        refuse_own_links(beside)
        # Noted before it is created, to be found again if this run is killed.
        publish(os.path.join(self.folders[0], STAGING_DIRS), note, store=self.root,
                staging=self.folders[0])
        if os.path.lexists(staging_dir):
            raise StoreIOError(f"{staging_dir}: exists already")
        make_folders(staging_dir)
        self.folders.append(staging_dir)
        return len(self.folders) - 1


def structure_of(root: str, target: str) -> str:
    """Return the folder that determines the file system of a target.

    The result is the folder to which the last link in the target's path points. If the path
    contains no link, the result is the folder of the structure (such as ``consumequeue``).
    """
    if os.path.isabs(target):
        return os.path.dirname(target)
    path, top = root, ""
    for part in target.split(os.sep):
        path = os.path.join(path, part)
        if not top or os.path.islink(path):
            real = os.path.realpath(path)
            top = real if os.path.isdir(real) or not top else os.path.dirname(real)
    return top


def _staging_dir_name(root: str, repair_id: str) -> str:
    """Return a name that is unique to the store and repair: several stores may have their logs in
    one folder.
    """
    return f"{repair_id}-{zlib.crc32(os.fsencode(os.path.realpath(root))):08x}"


def refuse_strange_dirs(root: str, journal: Journal) -> None:
    """Raise RefusedError for a further staging folder that this repair cannot have created.

    Such a folder is not next to the changed files, or lacks the repair's name. The journal may come
    from someone else.
    """
    for number, folder in enumerate(journal.staging_dirs, 1):
        targets = [record.target for record in journal.records if record.staging_dir == number]
        expected = {os.path.join(os.path.dirname(structure_of(root, target)), STAGING, FOLDER)
                    for target in targets}
        name = os.path.basename(folder)
        if targets and (os.path.dirname(folder) not in expected or not _OWN_NAME.fullmatch(
                name.removeprefix(journal.id))):
            raise RefusedError(f"repair {journal.id} keeps files in {folder}, which is not beside "
                               "the files it changed: its journal belongs to another store")
        if targets:
            refuse_own_links(os.path.dirname(os.path.dirname(os.path.dirname(folder))))


def noted_staging_dirs(root: str, repair_id: str) -> list[str]:
    """Return the additional staging folders of a repair that was never committed.

    The name of a folder must identify this store: a copy of a store contains the original's notes.
    """
    folder = repair_folder(root, repair_id)
    try:
        path = os.path.join(folder, STAGING_DIRS)
        with open(open_file(path, os.O_RDONLY, "read"), "rb") as file:
            folders = json.load(file)
    except (StoreIOError, OSError, ValueError, RecursionError):
        return []
    if not isinstance(folders, list):
        return []
    mark = os.path.join(STAGING, FOLDER)
    return [folder for folder in folders if isinstance(folder, str) and os.path.isabs(folder)
            and os.path.dirname(folder).endswith(mark)
            and os.path.basename(folder) == _staging_dir_name(root, repair_id)]
