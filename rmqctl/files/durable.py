"""Durable writing: every byte handed over, every new name made to last.

Each function turns the system's refusal into a StoreIOError that names the path and what was
attempted. Nothing here ever makes a temporary file where a broker looks for its own: it refuses
to start on a strange name in ``commitlog``, ``consumequeue`` or ``index``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
from collections.abc import Sequence

from rmqctl.errors import InternalError, StoreIOError

Part = bytes | bytearray | memoryview
"""Bytes to write; a view must have items of one byte."""

IOV_MAX = max(16, os.sysconf("SC_IOV_MAX"))
STAGING = ".rmqctl"
KEPT = "kept"
"""The folder below the staging folder where replaced files are kept."""
FILE_MODE = 0o644
_BROKERS_OWN = frozenset({"commitlog", "consumequeue", "index", "batchconsumequeue",
                          "consumequeue_ext"})
_ZEROS = bytes(1 << 16)
_publishing = threading.Lock()


def failed(error: OSError, path: str, doing: str) -> StoreIOError:
    """The StoreIOError for ``error``: ``cannot DOING PATH: reason``."""
    return StoreIOError.from_oserror(error, path, doing)


def open_file(path: str, flags: int, doing: str = "open", mode: int = FILE_MODE) -> int:
    """A descriptor of a regular file, closed on exec. Never waits for a FIFO or a device."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        raise failed(error, path, doing) from None
    except ValueError as error:  # a NUL in the name
        raise StoreIOError(f"cannot {doing} {path!r}: {error}") from None
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        os.close(fd)
        raise StoreIOError(f"cannot {doing} {path}: not a regular file")
    if flags & os.O_CREAT and not about.st_size:
        give_to_owner_of(os.path.dirname(path) or ".", fd)
    return fd


def give_to_owner_of(folder: str, made: int | str) -> None:
    """What the administrator makes in somebody's store is that somebody's: a broker that runs as
    another user must be able to write to it. ``made`` is a new file's descriptor or a path.
    """
    if os.geteuid() != 0:
        return
    with contextlib.suppress(OSError):
        owner, mine = os.stat(folder), os.stat(made)
        if mine.st_uid == 0 and (owner.st_uid, owner.st_gid) != (mine.st_uid, mine.st_gid):
            os.chown(made, owner.st_uid, owner.st_gid)


def write_all(fd: int, data: Part, offset: int, path: str) -> None:
    """Writes all of ``data`` at ``offset``. StoreIOError; then a part of it may be written."""
    try:
        _write_rest(fd, data, 0, offset)
    except OSError as error:
        raise failed(error, path, "write to") from None


def _write_rest(fd: int, data: Part, done: int, offset: int) -> None:
    """Writes ``data[done:]`` at ``offset + done``. OSError."""
    size = len(data)
    while done < size:
        count = os.pwrite(fd, memoryview(data)[done:] if done else data, offset + done)
        if not count:  # no error and no progress: it would go on for ever
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += count


def write_parts(fd: int, parts: Sequence[Part], offset: int, path: str) -> int:
    """Writes the parts one behind the other at ``offset``; the number of bytes.

    All or nothing as far as the system lets it: what had been written of them when it failed
    is overwritten with zeros, so that no torn record stays behind the end of the log.
    """
    total = touched = 0
    try:
        for start in range(0, len(parts), IOV_MAX):
            some = parts[start:start + IOV_MAX] if len(parts) > IOV_MAX else parts
            if len(some) == 1:
                size = len(some[0])
                count = os.pwrite(fd, some[0], offset + total)
            else:
                size = sum(map(len, some))
                count = os.pwritev(fd, some, offset + total)
            touched = total + (size if count else 0)
            if count != size:
                _write_rest(fd, b"".join(some), count, offset + total)
            total += size
    except OSError as error:
        wipe(fd, offset, touched)
        raise failed(error, path, "write to") from None
    return total


def wipe(fd: int, offset: int, length: int) -> None:
    """Overwrites a range with zeros, as far as the system lets it; never fails."""
    end = offset + length
    with contextlib.suppress(OSError):
        while offset < end and (count := os.pwrite(fd, _ZEROS[:end - offset], offset)):
            offset += count


def sync(fd: int, path: str, *, whole: bool = False) -> None:
    """Forces a file's data to the device; with ``whole`` all of its attributes too."""
    try:
        if whole:
            os.fsync(fd)
        else:
            os.fdatasync(fd)
    except OSError as error:
        raise failed(error, path, "force to disk") from None


def sync_folder(path: str) -> None:
    """Forces the names in a folder to the device."""
    path = path or "."
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise failed(error, path, "open") from None
    try:
        os.fsync(fd)
    except OSError as error:
        # Some file systems know no fsync of a folder; then there is nothing to force.
        if error.errno != errno.EINVAL:
            raise failed(error, path, "force to disk") from None
    finally:
        os.close(fd)


def make_folders(path: str, *, durable: bool = True) -> list[str]:
    """Makes a folder and those above it that are missing; which these were, outermost first.

    Their names are forced to the device, unless the caller does that (``durable`` False).
    """
    missing = []
    at = os.path.abspath(path)
    while not os.path.isdir(at):
        missing.append(at)
        above = os.path.dirname(at)
        if above == at:
            break
        at = above
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except FileExistsError as error:
            if not os.path.isdir(folder):
                raise failed(error, folder, "make the folder") from None
        except OSError as error:
            raise failed(error, folder, "make the folder") from None
        give_to_owner_of(os.path.dirname(folder), folder)
        if durable:
            sync_folder(os.path.dirname(folder))
    return list(reversed(missing))


def publish(path: str, data: bytes, *, store: str, staging: str | None = None,
            keep: bool = False) -> str | None:
    """Puts a whole file in place: after a kill there is the old one or the new one.

    It is written in ``staging`` (default: ``.rmqctl`` in the store), forced, and renamed. Mode
    and owner of a file that is replaced stay. With ``keep`` the replaced file is kept under
    ``staging/kept``; the answer is where, None if there was none. StoreIOError.
    """
    staging = staging or os.path.join(store, STAGING)
    _refuse_brokers_own(staging, store)
    # A link stays a link: what it leads to is replaced.
    path = os.path.realpath(path)
    staged = os.path.join(staging, os.path.basename(path) + ".new")
    with _publishing:
        make_folders(os.path.dirname(path))
        make_folders(staging)
        fd = open_file(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, "make")
        try:
            try:
                _dress(fd, path)
                write_all(fd, data, 0, staged)
                sync(fd, staged, whole=True)
            finally:
                os.close(fd)
            kept = _keep(path, store, os.path.join(staging, KEPT)) if keep else None
            try:
                os.rename(staged, path)
            except OSError as error:
                raise failed(error, path, "put in place") from None
        except StoreIOError:
            with contextlib.suppress(OSError):
                os.unlink(staged)
            raise
        sync_folder(os.path.dirname(path))
        return kept


def move_aside(path: str, target: str) -> None:
    """Moves a file or folder to a name that is free, for good. StoreIOError.

    Both must be on one file system; an existing ``target`` is never replaced.
    """
    make_folders(os.path.dirname(target))
    try:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        os.rename(path, target)
    except OSError as error:
        raise failed(error, path, f"move to {target}:") from None
    # The new name first: a crash in between leaves two names rather than none.
    sync_folder(os.path.dirname(target))
    sync_folder(os.path.dirname(path))


def _refuse_brokers_own(staging: str, store: str) -> None:
    inside = os.path.relpath(os.path.realpath(staging), os.path.realpath(store)).split(os.sep)
    if _BROKERS_OWN.intersection(inside):
        raise InternalError(f"{staging}: a broker would not start on temporary files there")


def _dress(fd: int, path: str) -> None:
    """Gives a new file the mode and, where the system lets us, the owner of the old one."""
    try:
        old = os.stat(path)
    except OSError:
        return
    with contextlib.suppress(OSError):
        os.fchmod(fd, stat.S_IMODE(old.st_mode))
    with contextlib.suppress(OSError):
        os.fchown(fd, old.st_uid, old.st_gid)


def _keep(path: str, store: str, folder: str) -> str | None:
    """Keeps the present file under a name that is free; its path, None if there is no file."""
    if not os.path.lexists(path):
        return None
    below = os.path.relpath(path, os.path.realpath(store))
    below = os.path.basename(path) if below.startswith(os.pardir) else below
    target = os.path.join(folder, below)
    make_folders(os.path.dirname(target))
    number = 1
    while True:
        kept = f"{target}.{number}"
        try:
            os.link(path, kept)
        except FileExistsError:
            number += 1
            continue
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK):
                raise failed(error, kept, "keep the old file as") from None
            if os.path.lexists(kept):
                number += 1
                continue
            _copy(path, kept)
        sync_folder(os.path.dirname(kept))
        return kept


def _copy(path: str, kept: str) -> None:
    """For file systems without hard links."""
    try:
        shutil.copy2(path, kept)
    except OSError as error:
        raise failed(error, kept, "keep the old file as") from None
    fd = open_file(kept, os.O_RDONLY)
    try:
        sync(fd, kept, whole=True)
    finally:
        os.close(fd)
