"""Where the targets of a plan lie, and where on their file system things can be kept for them.

Renaming works only within one mount, and a log's folder may be another disk, by a link or as one
of several. What is staged and kept for such a target lies in a ``.rmqctl`` folder beside that
folder: never in it, because a broker refuses to start on strange names there.
"""

from __future__ import annotations

import errno
import json
import os
import zlib

from rmqctl.errors import InternalError, RefusedError, StoreIOError
from rmqctl.files.durable import STAGING, failed, make_folders, open_file, publish
from rmqctl.repair.executor.journal import FOLDER, repair_folder

HOMES = "homes.json"
_OUTSIDE = "_outside"


def checked(root: str, target: str) -> str:
    """The target in the one form a journal has: relative to the root if it lies below it."""
    if os.path.isabs(target):
        target = os.path.normpath(target)
        inside = os.path.relpath(target, os.path.abspath(root))
        target = target if inside.startswith(os.pardir) else inside
    else:
        target = os.path.normpath(target)
    first = target.split(os.sep)[0]
    if "\0" in target or first in (os.pardir, os.curdir, STAGING, "lock") or target == os.sep:
        raise InternalError(f"{target!r} is no target of a repair")
    return target


def real_path(root: str, target: str, *, follow: bool) -> str:
    """Where a target lies really.

    A link as the target itself is followed only with ``follow``: to change a file's content
    changes what a link leads to; to move it moves the link.
    """
    path = os.path.join(root, target)
    if follow:
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def is_alias(root: str, path: str) -> bool:
    """Whether ``path`` is a link to something else of the store itself: to change its content
    would change that.
    """
    if not os.path.islink(path):
        return False
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(root), ""))


def refuse_foreign_links(root: str, target: str) -> None:
    """RefusedError where a link that somebody else made leads to what is not theirs.

    The administrator repairs stores of other users: their links must not lead into what only the
    administrator may change. The system's rule for links in ``/tmp`` (protected_symlinks).
    """
    if os.geteuid() != 0:
        return
    at = root
    for part in target.split(os.sep):
        at = os.path.join(at, part)
        if not os.path.islink(at):
            continue
        try:
            maker, owner = os.lstat(at).st_uid, os.stat(at).st_uid
        except OSError:
            continue  # it leads nowhere
        if maker not in (0, owner):
            raise RefusedError(f"{target}: {at} is a link that user {maker} made to what user "
                               f"{owner} owns; it is not followed")


def below(target: str) -> str:
    """The name of a target below a folder like ``aside``."""
    return os.path.join(_OUTSIDE, target.lstrip(os.sep)) if os.path.isabs(target) else target


def up(path: str) -> list[str]:
    """The path and all that are above it."""
    found = [path]
    while (above := os.path.dirname(path)) != path:
        found.append(above)
        path = above
    return found


def nearest_folder(path: str) -> str:
    """The innermost folder above ``path`` that is there."""
    while not os.path.isdir(path := os.path.dirname(path)):
        if path == os.path.dirname(path):
            break
    return path


def reachable(one: str, other: str) -> bool:
    """Whether files can be renamed between two folders. StoreIOError.

    Asked of the system itself: a bind mount has the same device number and yet is another mount.
    A name that does not exist is "renamed": mounts are compared before names are looked up.
    """
    probe = f".rmqctl-probe-{os.getpid()}"
    try:
        os.rename(os.path.join(one, probe), os.path.join(other, probe))
    except FileNotFoundError:
        return os.stat(one).st_dev == os.stat(other).st_dev
    except OSError as error:
        if error.errno == errno.EXDEV:
            return False
        raise failed(error, other, "rename in") from None
    raise InternalError(f"a file {probe} was there")


class Homes:
    """The folders in which one repair stages and keeps things, made as they are needed.

    The first lies in the store's ``.rmqctl``, further ones on other file systems.
    """

    def __init__(self, root: str, id: str) -> None:  # noqa: A002
        self.root, self.id = root, id
        self.folders: list[str] = [repair_folder(root, id)]
        self._found: dict[str, int] = {}

    def of(self, target: str, path: str) -> int:
        """The number of the home for what lies, or will lie, at the real ``path``.

        RefusedError where there is none on its file system.
        """
        near = nearest_folder(path)
        if near not in self._found:
            self._found[near] = self._find(target, path, near)
        return self._found[near]

    def _find(self, target: str, path: str, near: str) -> int:
        for number, folder in enumerate(self.folders):
            if reachable(folder, near):
                return number
        top = os.path.dirname(path) if os.path.isabs(target) else _top(self.root, target)
        beside = os.path.dirname(top)
        if not os.path.isdir(beside) or not reachable(beside, near):
            raise RefusedError(
                f"{target}: {top} is a mount of its own: there is no place on it where files "
                "could be kept out of a broker's sight")
        home = os.path.join(beside, STAGING, FOLDER, _home_name(self.root, self.id))
        note = json.dumps([*self.folders[1:], home]).encode()
        # Noted before it is made: so it is found again if this run is killed.
        publish(os.path.join(self.folders[0], HOMES), note, store=self.root,
                staging=self.folders[0])
        if os.path.lexists(home):
            raise StoreIOError(f"{home}: is there already")
        make_folders(home)
        self.folders.append(home)
        return len(self.folders) - 1


def _top(root: str, target: str) -> str:
    """The folder on whose file system a target lies: that of its last link, or of its structure."""
    at, top = root, ""
    for part in target.split(os.sep):
        at = os.path.join(at, part)
        if not top or os.path.islink(at):
            real = os.path.realpath(at)
            top = real if os.path.isdir(real) or not top else os.path.dirname(real)
    return top


def _home_name(root: str, id: str) -> str:  # noqa: A002
    """Several stores may have their logs side by side, and repairs of the same second."""
    return f"{id}-{zlib.crc32(os.fsencode(os.path.realpath(root))):08x}"


def noted_homes(root: str, id: str) -> list[str]:  # noqa: A002
    """The further homes of a repair that was never committed.

    A copy of a store has the notes of the original: whose homes these are is in their names.
    """
    folder = repair_folder(root, id)
    try:
        path = os.path.join(folder, HOMES)
        with open(open_file(path, os.O_RDONLY, "read"), "rb") as file:
            found = json.load(file)
    except (StoreIOError, OSError, ValueError, RecursionError):
        return []
    if not isinstance(found, list):
        return []
    mark = os.path.join(STAGING, FOLDER)
    return [one for one in found if isinstance(one, str) and os.path.isabs(one)
            and os.path.dirname(one).endswith(mark)
            and os.path.basename(one) == _home_name(root, id)]
