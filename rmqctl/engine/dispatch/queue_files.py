"""The files of queues, written by position, and the code that writers of plain and batch queues
share.

The number of open descriptors is limited, and files to be fsynced are remembered. Every failed call
raises a StoreIOError that names the file and the operation.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.files.aside import AsideFolder
from rmqctl.files.durable import (
    failed,
    lay_out,
    make_folders,
    new_file,
    open_file,
    sync,
    sync_folder,
    wipe,
    write_all,
)
from rmqctl.formats.local import names
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.derived import QueueKey
from rmqctl.store.files import Listing, StoreFile, Trouble, listing

MAX_OPEN = 256


class FilePool:
    """A pool of at most ``most`` open descriptors; the least recently used descriptor is closed
    first.

    `flush` fsyncs only files that were written and folders with new entries. After a failed fsync,
    it is unknown which pages are on disk. The operating system reports the failure only once;
    therefore every later `flush` fails with the same error.
    """

    def __init__(self, aside: AsideFolder, most: int = MAX_OPEN) -> None:
        self._most, self._aside = most, aside
        self._open: OrderedDict[str, int] = OrderedDict()
        self._dirty: dict[str, None] = {}
        self._folders: dict[str, None] = {}
        self._failed: str | None = None

    @property
    def dirty(self) -> list[str]:
        """The files and folders that need an fsync."""
        return [*self._dirty, *self._folders]

    def create(self, path: str, size: int) -> None:
        """Create a sparse file of ``size`` zero bytes, and its folders.

        An existing file of that size is used unchanged. An empty file is extended: the process that
        created it was killed too early. Raises: RefusedError for any other existing file.
        """
        folder = os.path.dirname(path)
        if not os.path.lexists(path):
            if not os.path.isdir(folder):
                for new_folder in make_folders(folder, durable=False):
                    self._folders[new_folder] = None
                    self._folders[os.path.dirname(new_folder)] = None
            fd, present = new_file(path, size), size
        else:
            fd = open_file(path, os.O_RDWR)
            present = os.fstat(fd).st_size
        try:
            if present == 0:
                lay_out(fd, path, size)
            elif present != size:
                raise wrong_size(path, present, size)
        except BaseException:
            os.close(fd)
            raise
        self._keep(path, fd)
        self._dirty[path] = None
        self._folders[folder] = None

    def write(self, path: str, data: bytes | memoryview, position: int, *,
              unused: bool = False) -> None:
        """Write ``data`` at ``position`` of an existing file.

        ``unused``: whether the old bytes have no value. If so, the range is zeroed after a failed
        write, because a partial unit must not look complete.
        """
        fd = self._descriptor(path)
        self._dirty[path] = None
        try:
            write_all(fd, data, position, path)
        except StoreIOError:
            if unused:
                wipe(fd, position, len(data))
            raise

    def read(self, path: str, length: int, position: int) -> bytes:
        """Return up to ``length`` bytes at ``position``."""
        fd = self._descriptor(path)
        try:
            return os.pread(fd, length, position)
        except OSError as error:
            raise failed(error, path, f"read at offset {position} of") from None

    def move_aside(self, path: str) -> None:
        """Move a file out of its queue's folder without deleting it."""
        fd = self._open.pop(path, None)
        if fd is not None:
            os.close(fd)
        self._dirty.pop(path, None)
        self._aside.move(path)
        self._folders[os.path.dirname(path)] = None

    def save_bytes(self, path: str, position: int, data: bytes) -> None:
        """Save a copy of bytes that will be overwritten."""
        self._aside.save_bytes(path, position, data)

    def flush(self) -> None:
        """Fsync the files and then the folders that have changed since the last flush."""
        for path in list(self._dirty):
            self._sync_file(path)
        for folder in list(self._folders):
            self._sync_folder(folder)

    def sync(self, path: str) -> None:
        """Fsync a file and its folder, if they have changed."""
        if path in self._dirty:
            self._sync_file(path)
        folder = os.path.dirname(path)
        if folder in self._folders:
            self._sync_folder(folder)

    def close(self) -> None:
        """Close all descriptors, without fsync."""
        while self._open:
            os.close(self._open.popitem()[1])

    # -- inside -----------------------------------------------------------------------------------

    def _descriptor(self, path: str) -> int:
        fd = self._open.get(path)
        if fd is None:
            fd = open_file(path, os.O_RDWR)
            self._keep(path, fd)
        else:
            self._open.move_to_end(path)
        return fd

    def _keep(self, path: str, fd: int) -> None:
        old = self._open.pop(path, None)
        if old is not None:
            os.close(old)
        self._open[path] = fd
        while len(self._open) > self._most:
            os.close(self._open.popitem(last=False)[1])

    def _sync_file(self, path: str) -> None:
        self._fsync(self._descriptor(path), path)
        self._dirty.pop(path, None)

    def _sync_folder(self, folder: str) -> None:
        self._check()
        try:
            sync_folder(folder)
        except StoreIOError as error:
            self._failed = str(error)
            raise
        self._folders.pop(folder, None)

    def _fsync(self, fd: int, path: str) -> None:
        self._check()
        try:
            sync(fd, path, whole=True)
        except StoreIOError as error:
            self._failed = str(error)
            raise

    def _check(self) -> None:
        if self._failed is not None:
            raise StoreIOError(self._failed)


def wrong_size(path: str, size: int, wanted: int) -> RefusedError:
    """Return the error for a file whose unexpected size would keep a broker from starting."""
    return RefusedError(f"{path}: has {size} bytes, but the setting is {wanted}; files of "
                        "different sizes cannot be mixed")


class QueueFiles:
    """The files of a queue, all of the same size. A file's name is the offset of its first byte in
    the queue.

    ``base``: the offset of the last file; None if the queue has no files. ``position``: the byte
    offset of the next unit in the queue. File sizes are multiples of the unit size; no unit extends
    over two files.
    """

    __slots__ = ("_behind", "_path", "_pool", "_stale", "base", "file_size", "folder", "position")

    def __init__(self, folder: str, file_size: int, pool: FilePool) -> None:
        self.folder, self.file_size, self._pool = folder, file_size, pool
        self.base: int | None = None
        self.position = 0
        self._path = ""
        self._behind: list[str] = []
        self._stale = 0

    def load(self, files: list[StoreFile], position: int | None, stale: int = 0) -> None:
        """Continue with existing files.

        ``position``: the byte offset at which the next unit will be written; None: keep no file.
        Files that start after ``position`` are moved aside at the next write to the queue, or by
        `wipe`. (A broker would delete these files.) `wipe` also zeroes the units from ``position``
        to ``stale``.

        Raises: RefusedError for a file of another size.
        """
        for number, file in enumerate(files):
            empty_last = file.size == 0 and number == len(files) - 1
            if file.size != self.file_size and not empty_last:
                raise wrong_size(file.path, file.size, self.file_size)
        used_files = [file for file in files if position is not None and file.base <= position]
        self._behind = [file.path for file in files if position is None or file.base > position]
        if position is None or not used_files:
            return
        self.base, self._path, self.position = used_files[-1].base, used_files[-1].path, position
        self._stale = min(stale, self.base + self.file_size)
        if used_files[-1].size == 0:
            self._enter(self.base)

    @property
    def full(self) -> bool:
        """Return whether the last file is full; False if there are no files."""
        return self.base is not None and self.position >= self.base + self.file_size

    def start(self, base: int) -> None:
        """Create the first file; the next unit will be written at its start."""
        self._enter(base)
        self.position = base

    def roll(self) -> None:
        """Create the next file; the last file must be full."""
        assert self.base is not None
        self._enter(self.base + self.file_size)

    def append(self, data: bytes | memoryview) -> None:
        """Write complete units at ``position``, in as many files as needed.

        After an error, ``position`` is the end of the units that were written.
        """
        done, length = 0, len(data)
        while done < length:
            if self.base is None or self.full:
                self._enter(self.position if self.base is None else self.base + self.file_size)
            if self._behind:
                self._clear()
            base = self.base
            assert base is not None
            room = base + self.file_size - self.position
            part = data if not done and length <= room else data[done:done + room]
            self._write(part, self.position - base)
            self.position += len(part)
            done += len(part)

    def advance(self, length: int) -> None:
        """Move ``position`` forward by ``length`` bytes."""
        self.position += length

    def write_at(self, position: int, data: bytes) -> None:
        """Overwrite bytes inside the last file."""
        assert self.base is not None
        self._pool.write(self._path, data, position - self.base)

    def wipe(self) -> None:
        """Remove the units of records that are no longer in the log.

        A broker keeps such units, and uses them as entries once the log has grown beyond their
        offsets.
        """
        self._clear()
        if self.base is not None and self._stale > self.position:
            position, length = self.position - self.base, self._stale - self.position
            self._pool.save_bytes(self._path, position,
                                  self._pool.read(self._path, length, position))
            self.write_at(self.position, bytes(length))
        self._stale = 0

    def _write(self, data: bytes | memoryview, position: int) -> None:
        self._pool.write(self._path, data, position, unused=True)

    def _enter(self, base: int) -> None:
        if self._behind:
            self._clear()
        path = os.path.join(self.folder, names.build_offset(base))
        self._pool.create(path, self.file_size)
        self.base, self._path = base, path

    def _clear(self) -> None:
        # Move the last file first, so that an error leaves no hole.
        while self._behind:
            self._pool.move_aside(self._behind[-1])
            self._behind.pop()


# -- all queues of one kind -----------------------------------------------------------------------

UNWANTED = (1 << 31) - 1
"""The number that `QueueSet.number` returns for each queue that is not written."""


@dataclass(slots=True)
class DispatchedQueue:
    """The state of a queue that is being written.

    ``max_physic``: the physical offset up to which the queue has entries; -1 if it has none.
    """

    key: QueueKey
    files: QueueFiles
    max_physic: int = -1


class OnDisk(Protocol):
    """The interface of a queue that `rmqctl.store` has read from disk."""

    folder: str
    troubles: list[Trouble]


Q = TypeVar("Q", bound=DispatchedQueue)
D = TypeVar("D", bound=OnDisk)


class QueueSet(ABC, Generic[Q, D]):
    """All queues of one kind in a store. They are numbered in the order in which they first appear.

    ``refused``: number of skipped entries with an invalid queue offset.
    """

    def __init__(self, folder: str, file_size: int, pool: FilePool, log_end: int | None, *,
                 as_broker: bool, wanted: Callable[[QueueKey], bool] | None) -> None:
        """Find all queues on disk. As a broker does, truncate entries that point to records after
        ``log_end``.

        The first `put` zeroes these entries, unless ``as_broker``. ``wanted`` selects the queues to
        write (default: all).
        """
        self._folder, self._file_size, self._pool = folder, file_size, pool
        self._log_end, self._as_broker, self._wanted = log_end, as_broker, wanted
        self.queues: list[Q] = []
        self._numbers: dict[QueueKey, int] = {}
        self._cut: list[Q] = []
        self.refused = 0
        refuse_unreadable(listing(folder).troubles)

    @abstractmethod
    def _on_disk(self, key: QueueKey, folder: str, listed: Listing) -> D:
        """Return a queue as `rmqctl.store` reads it from disk."""

    @abstractmethod
    def _loaded(self, key: QueueKey, files: QueueFiles, on_disk: D) -> Q:
        """Return the queue in its state after a broker's recovery."""

    def number(self, key: QueueKey) -> int:
        """Return the number that identifies a queue in entries; `UNWANTED` if the queue is not
        written.
        """
        if self._wanted is not None and not self._wanted(key):
            return UNWANTED
        number = self._numbers.get(key)
        if number is None:
            folder = os.path.join(self._folder, key[0], str(key[1]))
            number = self._take(key, self._on_disk(key, folder, listing(folder)))
        return number

    def _take(self, key: QueueKey, on_disk: D) -> int:
        refuse_unreadable(on_disk.troubles)
        files = self._files_of(key, on_disk.folder)
        self.queues.append(self._loaded(key, files, on_disk))
        number = self._numbers[key] = len(self.queues) - 1
        return number

    def _files_of(self, key: QueueKey, folder: str) -> QueueFiles:
        return QueueFiles(folder, self._file_size, self._pool)

    def wipe_cut(self) -> None:
        """Zero the entries that were truncated when the queues were opened. Raises:
        StoreIOError.
        """
        while self._cut:
            self._cut[-1].files.wipe()
            self._cut.pop()


def refuse_unreadable(troubles: list[Trouble]) -> None:
    """Raise StoreIOError if a folder or file is unreadable, because its queue may have entries."""
    for trouble in troubles:
        if trouble.unreadable:
            raise StoreIOError(f"cannot list {trouble.path}: {trouble.reason}")
