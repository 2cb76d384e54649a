"""Durable writing: all bytes are written, and new directory entries are fsynced.

* Write into a file: `open_file`, `write_all` or `write_parts`, and `sync`.
* Replace an entire file: `publish` in a store (staged in a folder that no broker reads),
  `replace_file` anywhere else.
* Create a file of a fixed length: `new_file`.
* Rename a file, or move it aside: `move`.
* Rename a filled temporary folder to its final name: `publish_folder`.
* Delete an unfinished temporary folder: `remove_folder`.

An error of the system becomes a StoreIOError that names the path and the attempted action. No
function creates a temporary file in a folder of the broker: a broker refuses to start on an unknown
name in ``commitlog``, ``consumequeue`` or ``index``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterable, Sequence

from rmqctl.errors import InternalError, RefusedError, StoreIOError

Part = bytes | bytearray | memoryview
"""Bytes to write; the items of a memoryview must be single bytes."""
Content = bytes | Iterable[bytes]
"""The bytes of an entire file, or its blocks in order, so that the file need not be in memory."""

IOV_MAX = max(16, os.sysconf("SC_IOV_MAX"))
STAGING = ".rmqctl"
GONE = "-gone"
"""Suffix of a folder's name while the folder is deleted."""
FILE_MODE = 0o644
_BROKERS_OWN = frozenset({"commitlog", "consumequeue", "index", "batchconsumequeue",
                          "consumequeue_ext"})
_ZEROS = bytes(1 << 16)
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
"""Error numbers from file systems that do not support files without a name."""
_NO_NAMING = (errno.ENOENT, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.EINVAL)
"""Error numbers from a file system that cannot link an unnamed file to a name."""
_STAGED = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_publishing = threading.Lock()
"""Lock for staging: two threads that publish a file of the same name use the same temporary
name.
"""


def failed(error: OSError, path: str, doing: str) -> StoreIOError:
    """Return the StoreIOError for ``error``: ``cannot DOING PATH: reason``."""
    return StoreIOError.from_oserror(error, path, doing)


def open_file(path: str, flags: int, doing: str = "open", mode: int = FILE_MODE) -> int:
    """Return a descriptor of a regular file, closed on exec. Never waits for a FIFO or a device. A
    new file with the default ``mode`` gets no wider permissions than its folder.

    Raises: StoreIOError, RefusedError for a link with O_NOFOLLOW.
    """
    if flags & os.O_CREAT and mode == FILE_MODE:
        mode = _as_closed(mode, os.path.dirname(path))
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and flags & os.O_NOFOLLOW:
            raise _through_link(path) from None
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


def _as_closed(mode: int, folder: str) -> int:
    """Return the mode without permissions that the folder does not grant. The owner keeps all
    permissions.
    """
    try:
        return mode & (os.stat(folder or ".").st_mode | stat.S_IRWXU)
    except (OSError, ValueError):  # reported when the file is created
        return mode


def _through_link(path: str) -> RefusedError:
    return RefusedError(f"{path} is a link: rmqctl does not write its own files through "
                        "links; remove it")


def refuse_own_links(root: str) -> None:
    """Raise RefusedError if a path that only rmqctl writes is a link.

    These paths are ``.rmqctl`` in ``root``, the entries of ``.rmqctl``, a repair's folder, and the
    files and folders of a repair.

    Raises: StoreIOError.
    """
    own = os.path.join(root, STAGING)
    if os.path.islink(own):
        raise _through_link(own)
    for name in _names(own):
        _refuse_links_in(own, name, deep=name == "repairs")


def _refuse_links_in(folder: str, name: str, *, deep: bool) -> None:
    path = os.path.join(folder, name)
    if os.path.islink(path):
        raise _through_link(path)
    for inner in (os.path.join(path, name) for name in _names(path)):
        for some in (inner, *(os.path.join(inner, name)
                              for name in (_names(inner) if deep else ()))):
            if os.path.islink(some):
                raise _through_link(some)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise failed(error, folder, "list") from None


def give_to_owner_of(folder: str, created: int | str) -> None:
    """Give a new file or folder to the owner of the folder that contains it.

    A broker that runs as a user other than the administrator must be able to write to it. `created`
    is a descriptor of a new file, or a path.
    """
    if os.geteuid() != 0:
        return
    with contextlib.suppress(OSError):
        owner, current = os.stat(folder), os.stat(created)
        if current.st_uid == 0 and (owner.st_uid, owner.st_gid) != (current.st_uid, current.st_gid):
            os.chown(created, owner.st_uid, owner.st_gid)


def copy_mode_and_owner(fd: int, old: os.stat_result) -> None:
    """Give a new file the mode and, if the system allows it, the owner of the file that it
    replaces.
    """
    with contextlib.suppress(OSError):
        os.fchmod(fd, stat.S_IMODE(old.st_mode))
    with contextlib.suppress(OSError):
        os.fchown(fd, old.st_uid, old.st_gid)


def write_all(fd: int, data: Part, offset: int, path: str) -> None:
    """Write all of ``data`` at ``offset``.

    Raises: StoreIOError, possibly after a part was written.
    """
    try:
        _write_rest(fd, data, 0, offset)
    except OSError as error:
        raise failed(error, path, "write to") from None


def _write_rest(fd: int, data: Part, done: int, offset: int) -> None:
    """Write ``data[done:]`` at ``offset + done``.

    Raises: OSError.
    """
    size = len(data)
    while done < size:
        count = os.pwrite(fd, memoryview(data)[done:] if done else data, offset + done)
        if not count:  # no error and no progress: it would go on forever
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += count


def write_parts(fd: int, parts: Sequence[Part], offset: int, path: str) -> int:
    """Write the parts in order at `offset`; return the number of bytes.

    No incomplete record may remain after the end of the log. After a failure, the written part is
    therefore overwritten with zeros, if the system allows it.
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
    """Overwrite a range with zeros; ignore errors."""
    end = offset + length
    with contextlib.suppress(OSError):
        while offset < end and (count := os.pwrite(fd, _ZEROS[:end - offset], offset)):
            offset += count


def sync(fd: int, path: str, *, whole: bool = False) -> None:
    """Flush a file's data to the device (fdatasync); with ``whole``, also all its attributes
    (fsync).
    """
    try:
        if whole:
            os.fsync(fd)
        else:
            os.fdatasync(fd)
    except OSError as error:
        raise failed(error, path, "force to disk") from None


def sync_file(path: str) -> None:
    """Flush a closed file and its attributes to the device (fsync).

    Raises: StoreIOError.
    """
    fd = open_file(path, os.O_RDONLY)
    try:
        sync(fd, path, whole=True)
    finally:
        os.close(fd)


def sync_folder(path: str) -> None:
    """Flush the directory entries of a folder to the device (fsync)."""
    path = path or "."
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise failed(error, path, "open") from None
    try:
        os.fsync(fd)
    except OSError as error:
        # Some file systems do not support fsync of a folder; then nothing needs to be forced.
        if error.errno != errno.EINVAL:
            raise failed(error, path, "force to disk") from None
    finally:
        os.close(fd)


def make_folders(path: str, *, durable: bool = True) -> list[str]:
    """Create a folder and its missing parent folders; return the created folders, outermost first.

    Their directory entries are fsynced; if ``durable`` is False, the caller must do that. A new
    folder has no wider permissions than the folder that contains it.
    """
    missing = []
    folder = os.path.abspath(path)
    while not os.path.isdir(folder):
        missing.append(folder)
        above = os.path.dirname(folder)
        if above == folder:
            break
        folder = above
    for folder in reversed(missing):
        try:
            os.mkdir(folder, _as_closed(0o777, os.path.dirname(folder)))
        except FileExistsError as error:
            if not os.path.isdir(folder):
                raise failed(error, folder, "create the folder") from None
        except OSError as error:
            raise failed(error, folder, "create the folder") from None
        give_to_owner_of(os.path.dirname(folder), folder)
        if durable:
            sync_folder(os.path.dirname(folder))
    return list(reversed(missing))


# -- whole files and folders ----------------------------------------------------------------------


def publish(path: str, data: Content, *, store: str, staging: str | None = None) -> None:
    """Replace a file of a store atomically: after a kill, either the old or the new file exists.

    The new file is written to ``staging`` (default: ``.rmqctl`` in the store), fsynced and renamed.
    Missing folders are created. Mode and owner of the old file are kept. A link is followed, except
    in ``.rmqctl``.

    Raises: StoreIOError, RefusedError for a link in ``.rmqctl``.
    """
    own = os.path.join(store, STAGING)
    staging = staging or own
    _refuse_brokers_own(staging, store)
    for name in (own, staging, path):
        if name.startswith(own) and os.path.islink(name):
            raise _through_link(name)
    path = os.path.realpath(path)
    with _publishing:
        make_folders(os.path.dirname(path))
        make_folders(staging)
        replace_file(path, data, staged=os.path.join(staging, os.path.basename(path) + ".new"),
                     like_old=True)


def _refuse_brokers_own(staging: str, store: str) -> None:
    inside = os.path.relpath(os.path.realpath(staging), os.path.realpath(store)).split(os.sep)
    if _BROKERS_OWN.intersection(inside):
        raise InternalError(f"{staging}: a broker would not start with temporary files there")


def replace_file(path: str, data: Content, *, staged: str | None = None, doing: str = "",
                 mode: int = FILE_MODE, like_old: bool = False, durable: bool = True) -> None:
    """Replace a file outside of a store atomically: readers see the old or the new file.

    The bytes are written to ``staged``, which is fsynced and renamed to ``path``. If ``path`` is a
    link, the link itself is replaced.

    ``staged``: a path on the same file system, by default ``.NAME.RANDOM.tmp`` beside ``path``. It
    is removed after any failure.
    ``mode``: the mode of the new file, restricted by the umask.
    ``like_old``: the new file gets mode and owner of the replaced file.
    ``durable``: if False, nothing is fsynced. The new file then survives a kill of the process, but
    perhaps not a failure of the machine.
    ``doing``: the verb of the error text ``cannot DOING PATH``. Without it, the text names the
    failed step and its path.

    Raises: StoreIOError.
    """
    # Open the staged file; a generated name must be new, a given one may remain from a crash.
    if staged is None:
        name = f".{os.path.basename(path)}.{os.urandom(4).hex()}.tmp"
        staged = os.path.join(os.path.dirname(path), name)
        try:
            fd = os.open(staged, _STAGED | os.O_EXCL, mode)
        except OSError as error:
            raise failed(error, path if doing else staged, doing or "make") from None
    else:
        fd = open_file(staged, _STAGED | os.O_TRUNC, "make", mode)
    step, at_fault = "write to", staged
    try:
        try:
            if like_old:
                with contextlib.suppress(OSError):  # the file does not exist yet
                    copy_mode_and_owner(fd, os.stat(path))
            # Write everything and force it to disk before the rename makes it visible.
            position = 0
            for part in [data] if isinstance(data, bytes) else data:
                _write_rest(fd, part, 0, position)
                position += len(part)
            step = "force to disk"
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        step, at_fault = "put in place", path
        os.rename(staged, path)
    except BaseException as error:
        # Remove the staged file after any failure, including an interrupt.
        with contextlib.suppress(OSError):
            os.unlink(staged)
        if isinstance(error, OSError):
            raise failed(error, path if doing else at_fault, doing or step) from None
        raise
    if durable:
        sync_folder(os.path.dirname(path))


def publish_folder(folder: str, target: str, doing: str = "publish") -> None:
    """Rename a filled temporary folder to `target`, durably.

    Its contents must already be fsynced. `target` may be an empty folder.

    Raises: StoreIOError with the text ``cannot DOING TARGET``. Its `errno` is ENOTEMPTY, EEXIST or
    ENOTDIR if `target` exists and is not an empty folder.
    """
    sync_folder(folder)
    try:
        os.rename(folder, target)
    except OSError as error:
        raise failed(error, target, doing) from None
    sync_folder(os.path.dirname(target))


def move(path: str, target: str, *, durable: bool = True) -> None:
    """Move a file or folder to an unused name, durably.

    ``path`` and ``target`` must be on one file system. An existing ``target`` is never replaced;
    missing parent folders are created. If ``durable`` is False, the caller must fsync the directory
    entries.

    Raises: StoreIOError.
    """
    make_folders(os.path.dirname(target), durable=durable)
    try:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        os.rename(path, target)
    except OSError as error:
        raise failed(error, path, f"move to {target}:") from None
    if durable:
        # The new name first: a crash in between leaves two names rather than none.
        sync_folder(os.path.dirname(target))
        sync_folder(os.path.dirname(path))


def remove_folder(folder: str) -> None:
    """Delete a folder whose entire content this run created; errors are ignored.

    The folder is renamed first, so that a worker that is still running cannot write into it under
    the old name.
    """
    gone = f"{folder}{GONE}"
    with contextlib.suppress(OSError):
        os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)
        shutil.rmtree(gone, ignore_errors=True)  # again, for files that were being written


# -- new files of a fixed length -----------------------------------------------------------------


def new_file(path: str, size: int, reserve: bool = False) -> int:
    """Return a descriptor of a new file of ``size`` zero bytes (sparse, unless ``reserve``).

    A broker refuses to start on a file that is too short, and a kill must not leave such a file.
    The file therefore gets its length before its name, if the file system supports that.

    Raises: StoreIOError.
    """
    folder = os.path.dirname(path) or "."
    fd = _unnamed(folder, path)
    if fd >= 0:
        try:
            lay_out(fd, path, size, reserve)
            if _give_name(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, "make")
    try:
        lay_out(fd, path, size, reserve)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return fd


def new_whole_file(path: str, data: bytes) -> None:
    """Create a new file with its content, durably. An existing file is never replaced.

    If the file system supports it, the file gets its name only when all bytes are on the device.

    Raises: StoreIOError.
    """
    folder = os.path.dirname(path) or "."
    fd = _unnamed(folder, path)
    named = False
    try:
        if fd >= 0:
            _filled(fd, path, data)
            named = _give_name(fd, path)
    finally:
        if fd >= 0:
            os.close(fd)
    if not named:
        fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "make")
        try:
            _filled(fd, path, data)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        finally:
            os.close(fd)
    sync_folder(folder)


def _filled(fd: int, path: str, data: bytes) -> None:
    write_all(fd, data, 0, path)
    sync(fd, path, whole=True)


def lay_out(fd: int, path: str, size: int, reserve: bool = False) -> None:
    """Extend a file to a length, but never shrink it. ``reserve``: also allocate the space."""
    try:
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
    except OSError as error:
        raise failed(error, path, f"reserve space for {size} bytes in") from None
    if not reserve:
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        raise failed(error, path, f"reserve {size} bytes for") from None


def _unnamed(folder: str, path: str) -> int:
    """Create a file without a name in ``folder``, and return its descriptor; -1 if the file system
    does not support such files.
    """
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC,
                     _as_closed(FILE_MODE, folder))
    except OSError as error:
        if error.errno in _NO_UNNAMED:
            return -1
        raise failed(error, path, "make") from None
    give_to_owner_of(folder, fd)
    return fd


def _give_name(fd: int, path: str) -> bool:
    """Link an unnamed file to a name; return False if the file system does not support that."""
    folder = os.path.dirname(path) or "."
    try:
        # With a folder's descriptor Python uses linkat(2), which can follow /proc's link.
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.link(f"/proc/self/fd/{fd}", os.path.basename(path), src_dir_fd=folder_fd,
                    dst_dir_fd=folder_fd, follow_symlinks=True)
        finally:
            os.close(folder_fd)
    except OSError as error:
        if error.errno in _NO_NAMING:
            return False
        raise failed(error, path, "make") from None
    return True
