"""Writing, moving and removing files at a URL, through fsspec."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from inspect import signature

from rmqctl.errors import StoreIOError
from rmqctl.files.durable import sync
from rmqctl.files.remote.reader import RemoteReader, failing

PIECE = 4 << 20
_AT_ONCE = 64
_writers = itertools.count()
"""Counter that numbers the writers of this process."""


class RemoteFiles(RemoteReader):
    """A URL that is written to.

    All methods raise StoreIOError, and RefusedError for actions that a driver does not support.
    When a write returns, the driver has closed the file, with the guarantees of its service. A
    local file has been fsynced, but its directory entry has not.
    """

    ASIDE = "staged"
    """Folder below the URL for complete new files that will replace existing files."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._folders: set[str] = set()
        self._number = next(_writers)

    def put(self, path: str, data: bytes) -> None:
        """Write an entire file. On a file server, readers may see it half-written; in an object
        store they do not.
        """
        self._sizes.pop(path, None)
        if self._renames:
            self._make_folder_of(path)
            self._write(path, [data], "wb")
            return
        with failing(self.where(path), "write to"):
            self._fs.pipe_file(self._full(path), data)

    def publish(self, path: str, data: bytes) -> None:
        """Write an entire file that is never visible half-written."""
        if self._renames:
            self._staged(path, [data])
        else:
            self.put(path, data)

    def publish_file(self, path: str, local: str) -> None:
        """Upload a local file in pieces; it is never visible half-written."""
        if self._renames:
            with open(local, "rb") as file:
                self._staged(path, iter(partial(file.read, PIECE), b""))
            return
        self._sizes.pop(path, None)
        driver = getattr(self._fs, "_put_file", self._fs.put_file)
        options = {"chunksize": 2 * PIECE} if "chunksize" in signature(driver).parameters else {}
        with failing(self.where(path), "write to"):
            self._fs.put_file(local, self._full(path), **options)

    @property
    def is_object_store(self) -> bool:
        """Return whether several threads may write at the same time: the driver then serves all of
        them with one event loop.
        """
        return bool(getattr(self._fs, "async_impl", False)) and not self._renames

    @property
    def _renames(self) -> bool:
        """Return whether the driver has folders and can rename files, as file servers do."""
        from fsspec import AbstractFileSystem

        return type(self._fs).mv is not AbstractFileSystem.mv

    def find(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files below a folder, by path from the root."""
        full = self._full(folder)
        with failing(self.where(folder), "list"):
            self._fs.invalidate_cache()
            try:
                rows = self._fs.find(full, detail=True)
            except FileNotFoundError:
                return {}
        start = len(self._root.strip("/")) + 1 if self._root.strip("/") else 0
        return {name.strip("/")[start:]: int(row.get("size") or 0) for name, row in rows.items()}

    def read_all(self, paths: Sequence[str]) -> Iterator[bytes]:
        """Yield the contents of many small files in the given order; several files are requested at
        once.
        """
        for first in range(0, len(paths), _AT_ONCE):
            some = paths[first:first + _AT_ONCE]
            with failing(self.where(some[0]), "read"):
                contents = self._fs.cat_ranges(list(map(self._full, some)), [None] * len(some),
                                               [None] * len(some), on_error="return")
            for path, data in zip(some, contents, strict=True):
                with failing(self.where(path), "read"):
                    if isinstance(data, BaseException):
                        raise data
                yield data

    def remove(self, path: str) -> None:
        """Remove a file; do nothing if it does not exist."""
        self._sizes.pop(path, None)
        with failing(self.where(path), "remove"), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._full(path))

    # -- through the driver ----------------------------------------------------------------------

    def _staged(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write an entire file under a temporary name, then rename it: readers see the old or the
        new file.
        """
        # Two writers of one run may stage files of one name at the same time.
        staged = f"{self.ASIDE}/{path.rpartition('/')[2]}.{self._number}.tmp"
        self._make_folder_of(staged)
        size = self._write(staged, pieces, "wb")
        self._move(staged, path)
        present = RemoteReader.size(self, path)
        # not every driver's rename replaces a file, or reports that it does not
        if present != size:
            raise StoreIOError(f"cannot replace {self.where(path)}: it has {present} bytes "
                               f"afterwards, expected {size}")

    def _write(self, path: str, pieces: Iterable[bytes], mode: str) -> int:
        """Write pieces to a file and close it; return the number of bytes."""
        self._sizes.pop(path, None)
        size = 0
        with failing(self.where(path), "write to"), self._fs.open(self._full(path), mode) as file:
            for piece in pieces:
                file.write(piece)
                size += len(piece)
            file.flush()
            if hasattr(file, "fileno"):
                with contextlib.suppress(NotImplementedError, ValueError):
                    sync(file.fileno(), self.where(path), whole=True)
        return size

    def _move(self, path: str, place: str) -> None:
        old, new = self._full(path), self._full(place)
        self._make_folder_of(place)
        with failing(self.where(path), "move"):
            # Without a rename of its own a driver would treat the names as patterns.
            if self._renames:
                self._fs.mv(old, new)
            else:
                self._fs.cp_file(old, new)
                self._fs.rm_file(old)
        self._sizes.pop(path, None)
        self._sizes.pop(place, None)

    def _make_folder_of(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            with failing(self.where(folder), "create"):
                self._fs.makedirs(self._full(folder), exist_ok=True)
            self._folders.add(folder)
