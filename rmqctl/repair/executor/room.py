"""The space that a plan needs on each file system, and the free space."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rmqctl.files.disk_usage import BLOCK, free_bytes
from rmqctl.files.durable import failed, open_file
from rmqctl.repair.executor.check_plan import CheckedStep
from rmqctl.repair.plan import Content, Create, FileContent, Patch, Replace
from rmqctl.repair.targets import nearest_folder
from rmqctl.scan.holes import data_ranges
from rmqctl.scan.overlay import OverlayPiece

_RESERVE = 1 << 20
"""Number of bytes that stay free for the journal and the log of actions."""


class Room(NamedTuple):
    """Space on the file system of ``folder``: bytes ``needed`` by a plan and bytes ``free`` (None:
    unknown).
    """

    folder: str
    needed: int
    free: int | None

    @property
    def is_enough(self) -> bool:
        return self.free is None or self.free >= self.needed

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()


def rooms(root: str, todo: Sequence[CheckedStep], folders: Iterable[str] | None = None,
          is_there: Callable[[FileContent, int], bool] = lambda _content, _device: False) -> list[
              Room]:
    """Return a `Room` for each file system that the checked steps write to. Raises: StoreIOError.

    The ``folder`` of a `Room` is the root if the root is on that file system, else a folder of a
    step.

    * ``folders``: for each step, the folder in which it stages its files; None: the folder of its
      target.
    * ``is_there``: function that returns whether a file is already on a device and needs only to be
      renamed.
    """
    needed: dict[int, int] = {}
    where = {os.stat(root).st_dev: root}
    folders = folders or [nearest_folder(checked.path) for checked in todo]
    for checked, folder in zip(todo, folders, strict=True):
        device = os.stat(folder).st_dev
        where.setdefault(device, folder)
        needed.setdefault(device, _RESERVE)
        if isinstance(checked.step, Create | Replace):
            needed[device] += _of_content(checked.step.content, device, is_there)
        elif isinstance(checked.step, Patch):
            needed[device] += _of_patch(checked.path, checked.step)
    return [Room(folder, needed[device], free_bytes(folder)) for device, folder in where.items()
            if device in needed]


def _of_content(content: Content, device: int,
                is_there: Callable[[FileContent, int], bool]) -> int:
    if isinstance(content, bytes):
        return len(content)
    if isinstance(content, OverlayPiece):
        return sum(len(data) for _, data in content.parts)
    try:
        about = os.stat(content.path)
    except OSError as error:
        raise failed(error, content.path, "look at") from None
    return 0 if is_there(content, device) else min(about.st_blocks * BLOCK, about.st_size)


def _of_patch(path: str, step: Patch) -> int:
    """Return the number of bytes that a patch needs.

    A patch needs space for its new content, for the old content that is kept, and for the holes
    that it fills.
    """
    total = 0
    fd = open_file(path, os.O_RDONLY)
    try:
        size, low, high = os.fstat(fd).st_size, 0, 0
        for piece in step.pieces:
            total += 2 * sum(len(data) for _, data in piece.parts)
            # Ask the system only after the data that it named last: there may be many pieces.
            at, end = piece.at, min(piece.end, size)
            while at < end:
                if not low <= at < high:
                    low, high = next(data_ranges(fd, at, size), (size, size))
                total += max(0, min(high, end) - max(low, at))
                at = max(high, low)
    finally:
        os.close(fd)
    return total
