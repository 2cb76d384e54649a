"""What has to change so that a store's derived files become those in a scratch folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Literal

from rmqctl.errors import StoreIOError
from rmqctl.files.durable import failed, open_file
from rmqctl.repair.executor.staging_dirs import is_alias
from rmqctl.repair.plan import Create, FileContent, MakeFolder, MoveAside, Replace, Step

_BLOCK = 1 << 20
Kind = Literal["file", "folder", "other"]
"""``other``: a FIFO, a device, a link that leads to no file or to another one of the store."""


def compare(root: str, scratch: str, folder: str, *,
            wanted: Callable[[str], bool] | None = None,
            leave: Callable[[str], bool] | None = None,
            movable: bool = True) -> list[Step]:
    """The steps for ``folder`` (relative to both roots, e.g. ``consumequeue/TopicTest/0``).

    ``wanted``: relative paths which the scratch folder speaks for; others are left alone, in
    the store too. ``leave``: files of the store that stay though the scratch folder lacks them.
    Times of files that do not change stay. StoreIOError.
    """
    mine, made = _tree(root, folder), _tree(scratch, folder)
    steps: list[Step] = [MoveAside(one) for one in _in_the_way(root, folder)] if made else []
    gone: set[str] = set()
    for relative in sorted({*mine, *made}, key=lambda one: one.split(os.sep)):
        if wanted is not None and not wanted(relative):
            continue
        here, there = mine.get(relative), made.get(relative)
        if os.path.dirname(relative) in gone:
            here = None
            gone.add(relative)
        if there is None:
            # Folders stay: a broker keeps those of empty queues.
            if here not in (None, "folder") and not (leave is not None and leave(relative)):
                steps.append(MoveAside(relative))
            continue
        content = FileContent(os.path.join(scratch, relative), movable)
        if here == there:
            if here == "file" and not same(os.path.join(root, relative), content.path):
                steps.append(Replace(relative, content))
            continue
        if here is not None:  # a folder where a file should be, or the like
            steps.append(MoveAside(relative))
            gone.add(relative)
        steps.append(Create(relative, content) if there == "file" else MakeFolder(relative))
    return steps


def _in_the_way(root: str, folder: str) -> Iterator[str]:
    """What stands above ``folder`` and is no folder. A link may lead to a disk that is not there
    now: it stays, and no plan goes on below it.
    """
    above, parts = "", folder.split(os.sep)
    for part in parts[:-1]:
        above = os.path.join(above, part)
        path = os.path.join(root, above)
        if os.path.lexists(path) and not os.path.isdir(path) and not os.path.islink(path):
            yield above
            return


def kind_of(root: str, path: str) -> Kind | None:
    """What ``path`` in the store leads to; None: there is nothing, not even a link."""
    if os.path.isfile(path):
        return "other" if is_alias(root, path) else "file"
    if os.path.isdir(path):
        return "folder"
    return "other" if os.path.lexists(path) else None


def _tree(root: str, folder: str) -> dict[str, Kind]:
    """Relative path -> what it is, all below ``folder`` and itself; links are not walked."""
    top = kind_of(root, os.path.join(root, folder))
    if top != "folder":
        return {} if top is None else {folder: top}
    found: dict[str, Kind] = {folder: "folder"}

    def walk(relative: str) -> Iterator[tuple[str, Kind]]:
        try:
            entries = sorted(os.scandir(os.path.join(root, relative)), key=lambda one: one.name)
        except OSError as error:
            raise failed(error, os.path.join(root, relative), "list") from None
        for entry in entries:
            below = os.path.join(relative, entry.name)
            if entry.is_dir(follow_symlinks=False):
                yield below, "folder"
                yield from walk(below)
            else:
                alias = entry.is_symlink() and is_alias(root, entry.path)
                yield below, "file" if entry.is_file() and not alias else "other"

    found.update(walk(folder))
    return found


def same(one: str, other: str) -> bool:
    """Whether two files have the same bytes. StoreIOError, also for what is no regular file."""
    try:
        with (open(open_file(one, os.O_RDONLY), "rb", buffering=0) as first,
              open(open_file(other, os.O_RDONLY), "rb", buffering=0) as second):
            if os.fstat(first.fileno()).st_size != os.fstat(second.fileno()).st_size:
                return False
            while True:
                left, right = first.read(_BLOCK), second.read(_BLOCK)
                if left != right:
                    return False
                if not left:
                    return True
    except OSError as error:
        raise StoreIOError.from_oserror(error, one, "compare") from None
