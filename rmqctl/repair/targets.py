"""Targets of a plan's steps: the names of files and folders, and their paths."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

from rmqctl.errors import InternalError, RefusedError
from rmqctl.files.durable import STAGING
from rmqctl.formats.local import names
from rmqctl.repair.plan import MoveAside, Patch, Step
from rmqctl.scan.overlay import LogPart, OverlayPiece
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile, node_of
from rmqctl.store.log.cut_off import NOTE
from rmqctl.store.log.end import used_size
from rmqctl.store.store import Store

_OUTSIDE = "_outside"


def target(store: Store, path: str) -> str:
    """Return ``path`` relative to the store root; absolute if it is outside the root (multi-path
    log).
    """
    root, full = os.path.abspath(store.root), os.path.abspath(path)
    if full.startswith(root.rstrip(os.sep) + os.sep):
        return os.path.relpath(full, root)
    return full


def cut_files(store: Store, files: Sequence[StoreFile], end: int,
              used: int | None = None) -> list[Step]:
    """Return the steps that truncate consecutive files at byte ``end``. Later bytes become zeros.
    Files that begin at ``end`` or later are moved aside, the last file first.

    ``used``: end of the written bytes, if known.
    """
    steps: list[Step] = []
    for file in reversed(files):
        if file.base >= end:
            steps.append(MoveAside(target(store, file.path)))
        elif end < file.end:
            until = used
            if until is None:
                with FileSource(file.path) as source:
                    until = file.base + used_size(source)
            until = min(until, file.end)
            if until > end:
                steps.append(Patch(target(store, file.path),
                                   (OverlayPiece(end - file.base, until - end),)))
    return steps


def part_target(store: Store, part: LogPart) -> str:
    """Return the path of the log file for a part of the log. For a missing file, this is the path
    that the file would have.

    The bytes of the part may be in another file that does not belong to the log.
    """
    files = store.log.files
    number = bisect_left(files, part.base, key=attrgetter("base"))
    path = ""
    if number < len(files) and files[number].base == part.base:
        folder = os.path.dirname(files[number].path)
        if folder not in store.log_folders:  # a file that was moved into a folder there
            folder = os.path.dirname(folder)
        if folder in store.log_folders:
            path = os.path.join(folder, files[number].name)
    if not path:
        folders = sorted(folder for folder in store.log_folders
                         if bool(part.head) == (node_of(folder) is not None)) or sorted(
                             store.log_folders)
        path = os.path.join(folders[(part.base // part.size) % len(folders)],
                            names.build_offset(part.base))
    relative = os.path.relpath(path, store.root)
    return path if relative.startswith("..") else relative


def checked(root: str, target: str) -> str:
    """Return the target in the form that journals contain: relative to the root if it is below the
    root.
    """
    if os.path.isabs(target):
        target = os.path.normpath(target)
        inside = os.path.relpath(target, os.path.abspath(root))
        target = target if inside.startswith(os.pardir) else inside
    else:
        target = os.path.normpath(target)
    first = target.split(os.sep)[0]
    if target == NOTE:  # plans do not change anything else in that folder
        return target
    if "\0" in target or first in (os.pardir, os.curdir, STAGING, "lock") or target == os.sep:
        raise InternalError(f"{target!r} is not a valid target of a repair")
    return target


def real_path(root: str, target: str, *, follow: bool) -> str:
    """Return the real path of a target.

    ``follow``: whether to follow a target that is a link. A change of content affects the file to
    which the link points, but a move affects the link itself.
    """
    path = os.path.join(root, target)
    if follow:
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def is_alias(root: str, path: str) -> bool:
    """Return whether ``path`` is a link to another path in the store. A change through such a link
    would change that other file.
    """
    if not os.path.islink(path):
        return False
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(root), ""))


def refuse_foreign_links(root: str, target: str) -> None:
    """Raise RefusedError if the path of a target contains a link that is owned by one user and
    points to a file of another user.

    The administrator repairs the stores of other users. A user must not be able to make the repair
    change a file of the administrator through a link. The kernel has the same rule for links in
    ``/tmp`` (protected_symlinks).
    """
    if os.geteuid() != 0:
        return
    path = root
    for part in target.split(os.sep):
        path = os.path.join(path, part)
        if not os.path.islink(path):
            continue
        try:
            maker, owner = os.lstat(path).st_uid, os.stat(path).st_uid
        except OSError:
            continue  # a dangling link
        if maker not in (0, owner):
            raise RefusedError(f"{target}: {path} is a link created by user {maker} to a file of "
                               f"user {owner}; rmqctl does not follow it")


def below(target: str) -> str:
    """Return the path of a target in a folder that mirrors the store, such as ``aside``."""
    return os.path.join(_OUTSIDE, target.lstrip(os.sep)) if os.path.isabs(target) else target


def up(path: str) -> list[str]:
    """Return the path and all its parent folders."""
    folders = [path]
    while (above := os.path.dirname(path)) != path:
        folders.append(above)
        path = above
    return folders


def nearest_folder(path: str) -> str:
    """Return the nearest parent folder of ``path`` that exists."""
    while not os.path.isdir(path := os.path.dirname(path)):
        if path == os.path.dirname(path):
            break
    return path
