"""The ``abort`` file: there while a store is open for writing, so that a crash is known of
(spec: checkpoint-and-small-files.md §2).
"""

from __future__ import annotations

import contextlib
import os

from rmqctl.errors import StoreIOError
from rmqctl.files.durable import failed, open_file, sync, sync_folder, write_all
from rmqctl.formats.local import abort as abort_format

NAME = "abort"
SIDE_NAME = NAME + ".bak"
_MOST = 1 << 20


def create(root: str, pid: int | None) -> None:
    """Makes ``abort`` last before anything else is written. StoreIOError.

    ``pid`` None is 4.x: the file is made if it is missing and else left as it is. With a number
    it is 5.x: the previous content, empty for a new file, goes to ``abort.bak`` first. An
    ``abort`` that was not there before does not stay when this fails.
    """
    path, side = os.path.join(root, NAME), os.path.join(root, SIDE_NAME)
    new = not os.path.lexists(path)
    fd = open_file(path, os.O_RDWR | os.O_CREAT, "make")
    try:
        if pid is not None:
            _replace_side(side, _read(fd, path))
            _replace(fd, abort_format.build(pid), path)
        sync(fd, path, whole=True)
        sync_folder(root)
    except StoreIOError:
        if new:
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise
    finally:
        os.close(fd)


def remove(root: str) -> None:
    """Takes ``abort`` away after a clean end, so that it stays away. StoreIOError."""
    path = os.path.join(root, NAME)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise failed(error, path, "remove") from None
    sync_folder(root)


def _read(fd: int, path: str) -> bytes:
    try:
        return os.pread(fd, _MOST, 0)
    except OSError as error:
        raise failed(error, path, "read") from None


def _replace_side(side: str, data: bytes) -> None:
    fd = open_file(side, os.O_WRONLY | os.O_CREAT, "make")
    try:
        _replace(fd, data, side)
        sync(fd, side, whole=True)
    finally:
        os.close(fd)


def _replace(fd: int, data: bytes, path: str) -> None:
    """In place, as a broker does; the file's length is that of ``data`` afterwards."""
    write_all(fd, data, 0, path)
    try:
        os.ftruncate(fd, len(data))
    except OSError as error:
        raise failed(error, path, "set the length of") from None
