"""Write to a tier: create, append, commit. Removed files are moved aside, not deleted.

An incomplete append is undone. Therefore a repeated append never follows a partial copy of the same
block (tiered.md §8.4).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Protocol, runtime_checkable

from rmqctl.errors import RefusedError
from rmqctl.ext.tiered.files.reader import ASIDE, PosixReader, TierReader
from rmqctl.files import durable, odirect
from rmqctl.files.durable import Part
from rmqctl.files.remote.reader import failed
from rmqctl.scan.source import FileSource

_SYNCS = 4
"""Number of threads that flush files to disk."""
_PIECE = 4 << 20


@runtime_checkable
class TierWriter(TierReader, Protocol):
    """Writer to a tier. Appended data is durable only after `commit` has returned. All methods
    raise StoreIOError.
    """

    def create(self, path: str) -> None:
        """Create an empty file and its folders; do nothing if it exists."""

    def append(self, path: str, parts: Sequence[Part], position: int) -> int:
        """Append bytes at ``position``, which must be the end of the file. Return the number of
        bytes. If a StoreIOError is raised, the file has its old length.
        """

    def commit(self, path: str) -> None:
        """Flush the appended data of a file, and its directory entry, to disk."""

    def commit_later(self, paths: Sequence[str]) -> Callable[[], None]:
        """Return a function that commits the data appended to these files so far. Data appended
        later is not committed. Call the function once, from any thread; it raises StoreIOError.
        """

    def settle(self, path: str) -> None:
        """Commit a file that an earlier process may have left uncommitted."""

    def cut(self, path: str, size: int) -> str | None:
        """Truncate a file and copy the truncated bytes to another file. Return the path of the
        copy, or None if the file is not longer than ``size``.
        """

    def put_aside(self, path: str) -> str:
        """Move a file aside and return its new path, below `ASIDE`."""

    def replace(self, path: str, data: bytes) -> None:
        """Replace a file atomically. The old file is not kept."""


class PosixWriter(PosixReader):
    """Writer to a folder: writes at positions; `commit` flushes the data to disk."""

    _MAX_OPEN = 64

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._writing: dict[str, int] = {}
        self._new: set[str] = set()
        self._dirty: set[str] = set()
        self._direct = odirect.DirectWriter()
        self._syncs: ThreadPoolExecutor | None = None

    def create(self, path: str) -> None:
        if self.size(path) is None:
            self._fd(path)

    def append(self, path: str, parts: Sequence[Part], position: int) -> int:
        fd, where = self._fd(path), self.where(path)
        size = os.fstat(fd).st_size
        if size != position:
            raise RefusedError(f"{where}: has {size} bytes, expected {position}; another process "
                               "is writing to this tier")
        self._dirty.add(path)
        try:
            if len(parts) == 1 and len(parts[0]) >= odirect.FROM:
                self._direct.write(fd, parts[0], position, where)
                return len(parts[0])
            return durable.write_parts(fd, parts, position, where)
        except BaseException:
            _truncate(fd, position, where)
            raise

    def commit(self, path: str) -> None:
        if path in self._dirty:
            durable.sync(self._fd(path), self.where(path))
            self._dirty.discard(path)
        if path in self._new:
            self._sync_names(path)
            self._new.discard(path)

    def settle(self, path: str) -> None:
        if self.size(path) is not None:
            durable.sync(self._fd(path), self.where(path))
            self._sync_names(path)
            self._dirty.discard(path)

    def commit_later(self, paths: Sequence[str]) -> Callable[[], None]:
        files: list[tuple[int, str]] = []
        folders: dict[str, None] = {}
        for path in paths:
            if path in self._dirty:
                files.append((os.dup(self._fd(path)), self.where(path)))
                self._dirty.discard(path)
            if path in self._new:
                folders[os.path.dirname(self._full(path))] = None
                self._new.discard(path)

        def commit() -> None:
            try:
                # A file system merges flushes that are requested at the same time.
                under_way = [self._syncing().submit(_sync_all, files[n::_SYNCS])
                             for n in range(min(_SYNCS, len(files)))]
                wait(under_way)  # close no file while another thread flushes it
                for part in under_way:
                    part.result()
                for folder in folders:
                    durable.sync_folder(folder)
            finally:
                for fd, _ in files:
                    os.close(fd)

        return commit

    def _syncing(self) -> ThreadPoolExecutor:
        if self._syncs is None:
            self._syncs = ThreadPoolExecutor(_SYNCS, "sync")
        return self._syncs

    def _sync_names(self, path: str) -> None:
        durable.sync_folder(os.path.dirname(self._full(path)))

    def cut(self, path: str, size: int) -> str | None:
        present = self.size(path)
        if present is None or present <= size:
            return None
        aside = f"{self._aside(path)}@{size}"
        self._copy_end(path, size, aside)
        fd = self._fd(path)
        _truncate(fd, size, self.where(path))
        durable.sync(fd, self.where(path), whole=True)
        return aside

    def _copy_end(self, path: str, start: int, aside: str) -> None:
        """Copy a file from ``start`` to its end, in pieces, since it may be most of a segment."""
        full = self._full(aside)
        durable.make_folders(os.path.dirname(full))
        fd = durable.open_file(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "create")
        try:
            with FileSource(self._full(path)) as source:
                position = start
                while part := source.read(position, _PIECE):
                    durable.write_all(fd, part, position - start, full)
                    position += len(part)
            durable.sync(fd, full, whole=True)
        finally:
            os.close(fd)
        durable.sync_folder(os.path.dirname(full))

    def _aside(self, path: str) -> str:
        """Return an unused path for a file that is moved aside."""
        for number in range(1_000_000):
            folder = f"{ASIDE}/aside/{number:06d}"
            if not os.path.lexists(self._full(folder)):
                return f"{folder}/{path}"
        raise RefusedError(f"{self.where(ASIDE)}: too many files kept here")

    def put_aside(self, path: str) -> str:
        aside = self._aside(path)
        self._forget(path)
        durable.move(self._full(path), self._full(aside))
        return aside

    def replace(self, path: str, data: bytes) -> None:
        self._forget(path)
        durable.publish(self._full(path), data, store=self.root, staging=self._full(ASIDE))

    def _fd(self, path: str) -> int:
        fd = self._writing.pop(path, None)
        if fd is None:
            full = self._full(path)
            is_new = not os.path.lexists(full)
            if is_new:
                durable.make_folders(os.path.dirname(full))
            fd = durable.open_file(full, os.O_RDWR | os.O_CREAT, "open")
            if is_new:
                self._new.add(path)
            while len(self._writing) >= self._MAX_OPEN:
                self._forget(next(iter(self._writing)))
        self._writing[path] = fd
        return fd

    def _forget(self, path: str) -> None:
        """Flush the appended data of a file, then close the file."""
        fd = self._writing.get(path)
        if fd is not None:
            self.commit(path)
            os.close(self._writing.pop(path))
        source = self._open.pop(path, None)
        if source is not None:
            source.close()

    def close(self) -> None:
        super().close()
        for fd in self._writing.values():
            os.close(fd)
        self._writing.clear()
        self._direct.close()
        if self._syncs is not None:
            self._syncs.shutdown()


def _sync_all(files: list[tuple[int, str]]) -> None:
    for fd, where in files:
        durable.sync(fd, where)


def _truncate(fd: int, size: int, where: str) -> None:
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        raise failed(error, where, "cut") from None
