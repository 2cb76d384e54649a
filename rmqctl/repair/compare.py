"""What has to change so that a store's derived files become those in a scratch folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from rmqctl.engine.storage import failed
from rmqctl.errors import StoreIOError
from rmqctl.repair.plan import Create, FileContent, MakeFolder, MoveAside, Replace, Step

_BLOCK = 1 << 20


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
    steps: list[Step] = []
    for relative in sorted({*mine, *made}):
        if wanted is not None and not wanted(relative):
            continue
        here, there = mine.get(relative), made.get(relative)
        if there is None:
            # Folders stay: a broker keeps those of empty queues.
            if here and not (leave is not None and leave(relative)):
                steps.append(MoveAside(relative))
        elif here is None:
            steps.append(Create(relative, FileContent(os.path.join(scratch, relative), movable))
                         if there else MakeFolder(relative))
        elif here and there and not same(os.path.join(root, relative),
                                         os.path.join(scratch, relative)):
            steps.append(Replace(relative, FileContent(os.path.join(scratch, relative), movable)))
    return steps


def _tree(root: str, folder: str) -> dict[str, bool]:
    """Relative path -> whether it is a file (else a folder), all below ``folder`` and itself."""
    top = os.path.join(root, folder)
    if not os.path.isdir(top):
        return {folder: True} if os.path.isfile(top) else {}
    found: dict[str, bool] = {folder: False}

    def walk(relative: str) -> Iterator[tuple[str, bool]]:
        try:
            entries = sorted(os.scandir(os.path.join(root, relative)), key=lambda one: one.name)
        except OSError as error:
            raise failed(error, os.path.join(root, relative), "list") from None
        for entry in entries:
            below = os.path.join(relative, entry.name)
            if entry.is_dir(follow_symlinks=False):
                yield below, False
                yield from walk(below)
            else:
                yield below, True

    found.update(walk(folder))
    return found


def same(one: str, other: str) -> bool:
    """Whether two files have the same bytes. StoreIOError."""
    try:
        with open(one, "rb", buffering=0) as first, open(other, "rb", buffering=0) as second:
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
