"""Write to a tier at a URL through fsspec.

Object stores have no append. Appended data is kept locally until `commit`: in memory, or in a
temporary file if large. `commit` appends the data to the file if the driver can. If not, it writes
old and new bytes to a staged file below `ASIDE`, which then replaces the old file.

When a commit returns, the driver has closed the file. Durability depends on the service. An object
store has stored the object. A local file has been fsynced, but not its directory entry. Until the
commit, only the writer itself reads the appended data.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.ext.tiered.files.reader import ASIDE
from rmqctl.files.remote.files import PIECE, RemoteFiles
from rmqctl.files.remote.reader import FileOrFolder, failing

if TYPE_CHECKING:
    from rmqctl.files.durable import Part

_IN_MEMORY = 8 << 20
"""Maximum number of appended bytes of a file that are kept in memory. If there are more, all of
them are moved to a temporary file.
"""
_IN_MEMORY_OF_ALL = 64 << 20
APPENDING = frozenset({"file", "local", "memory", "sftp", "ssh", "smb", "hdfs", "webhdfs", "s3",
                       "s3a"})
"""Drivers whose mode "ab" keeps existing bytes. Other drivers may accept this mode and overwrite
existing bytes.
"""


class _Pending:
    """Data appended to a file but not committed. ``base``: size of the file before this data."""

    def __init__(self, base: int) -> None:
        self.base, self.length = base, 0
        self._spool: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115

    def add(self, parts: Sequence[Part]) -> int:
        """Append all parts; if an error occurs, append none of them. Raises: OSError."""
        self._spool.seek(self.length)
        try:
            added = sum(map(self._spool.write, parts))
        except BaseException:
            self.cut(self.length)
            raise
        self.length += added
        return added

    def cut(self, length: int) -> None:
        with contextlib.suppress(OSError):  # bytes after the length are never read
            self._spool.truncate(length)
        self.length = length

    def read(self, position: int, length: int) -> bytes:
        self._spool.seek(position)
        return self._spool.read(max(0, min(length, self.length - position)))

    def pieces(self) -> Iterator[bytes]:
        for position in range(0, self.length, PIECE):
            yield self.read(position, PIECE)

    def out_of_memory(self) -> None:
        """Move the data to a temporary file."""
        rollover = getattr(self._spool, "rollover", None)
        if rollover is not None:
            rollover()

    def close(self) -> None:
        self._spool.close()


class RemoteWriter(RemoteFiles):
    """Writer to a tier at a URL. For durability see the module docstring."""

    ASIDE = ASIDE

    def __init__(self, url: str) -> None:
        super().__init__(url)
        protocol = self._fs.protocol
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        self._appends = bool(names & APPENDING)
        self._pending: dict[str, _Pending] = {}
        self._torn: set[str] = set()

    # -- reading, with uncommitted data ----------------------------------------------------------

    def list(self, folder: str) -> list[FileOrFolder]:
        below = f"{folder}/" if folder else ""
        return [replace(entry, size=pending.base + pending.length)
                if (pending := self._pending.get(below + entry.name)) else entry
                for entry in super().list(folder)]

    def size(self, path: str) -> int | None:
        pending = self._pending.get(path)
        return super().size(path) if pending is None else pending.base + pending.length

    def read(self, path: str, position: int, length: int) -> bytes:
        pending = self._pending.get(path)
        if pending is None or position < 0 or length <= 0:
            return super().read(path, position, length)
        data = b""
        if position < pending.base:
            self._sizes[path] = pending.base
            data = super().read(path, position, min(length, pending.base - position))
        with failing(self.where(path), "read the pending part of"):
            rest = pending.read(max(position, pending.base) - pending.base, length - len(data))
        return data + rest if rest else data

    # -- writing ---------------------------------------------------------------------------------

    def create(self, path: str) -> None:
        if self.size(path) is None:
            self._make_folder_of(path)
            with failing(self.where(path), "create"):
                self._fs.pipe_file(self._full(path), b"")
            self._sizes[path] = 0

    def append(self, path: str, parts: Sequence[Part], position: int) -> int:
        present = self.size(path)
        if present is None:
            self.create(path)
            present = 0
        if present != position:
            raise self._somebody_else(path, present, position)
        pending = self._pending.get(path) or _Pending(present)
        with failing(self.where(path), "save the data to write to"):
            added = pending.add(parts)
            if sum(other.length for other in self._pending.values()) > _IN_MEMORY_OF_ALL:
                pending.out_of_memory()
        self._pending[path] = pending
        return added

    def commit(self, path: str) -> None:
        pending = self._pending.get(path)
        if pending is None:
            return
        if path in self._torn:
            self._shorten(path, pending.base)
        present = super().size(path)
        if present != pending.base:
            raise self._somebody_else(path, present, pending.base)
        if pending.length:
            self._add(path, pending)
        pending.close()
        del self._pending[path]
        self._sizes[path] = pending.base + pending.length

    def commit_later(self, paths: Sequence[str]) -> Callable[[], None]:
        """Commit immediately, since drivers have no deferred commit, and return a function that
        does nothing.
        """
        for path in paths:
            self.commit(path)
        return lambda: None

    def settle(self, path: str) -> None:
        """Do nothing: a file that the driver has closed is durable."""

    def _somebody_else(self, path: str, present: int | None, wanted: int) -> RefusedError:
        return RefusedError(f"{self.where(path)}: has {present or 0} bytes, expected {wanted}; "
                            "another process is writing to this tier")

    def _add(self, path: str, pending: _Pending) -> None:
        """Add the pending data to the file. Undo the write if it fails."""
        self._torn.add(path)  # until the size of the file was checked
        try:
            if self._appends:
                self._write(path, pending.pieces(), "ab")
            else:
                self._staged(path, self._both(path, pending))
            present = super().size(path)
            if present != pending.base + pending.length:
                raise StoreIOError(f"cannot write to {self.where(path)}: it has {present} bytes "
                                   f"after the write, expected {pending.base + pending.length}")
        except BaseException:
            with contextlib.suppress(StoreIOError, RefusedError):  # the next commit tries again
                self._shorten(path, pending.base)
            raise
        self._torn.discard(path)

    def _both(self, path: str, pending: _Pending) -> Iterator[bytes]:
        yield from self._committed(path, pending.base)
        yield from pending.pieces()

    def _committed(self, path: str, end: int) -> Iterator[bytes]:
        for position in range(0, end, PIECE):
            length = min(PIECE, end - position)
            data = super().read(path, position, length)
            if len(data) != length:
                raise StoreIOError(f"cannot read {self.where(path)}: it ends before {end} bytes")
            yield data

    def _shorten(self, path: str, size: int) -> None:
        """Truncate a file to ``size`` bytes if it is longer."""
        present = super().size(path)
        if present is not None and present > size:
            self._staged(path, self._committed(path, size))
        self._torn.discard(path)

    def cut(self, path: str, size: int) -> str | None:
        present = self.size(path)
        if present is None or present <= size:
            return None
        pending = self._pending.get(path)
        if pending is not None and path in self._torn:
            self._shorten(path, pending.base)
        aside = f"{self._aside(path)}@{size}"
        self._staged(aside, (self.read(path, position, min(PIECE, present - position))
                             for position in range(size, present, PIECE)))
        if pending is None or size < pending.base:
            self._shorten(path, size)
            if pending is not None:
                self._pending.pop(path).close()
        else:
            pending.cut(size - pending.base)
        return aside

    def _aside(self, path: str) -> str:
        numbers = [int(entry.name) for entry in super().list(f"{ASIDE}/aside")
                   if entry.name.isascii() and entry.name.isdigit()]
        return f"{ASIDE}/aside/{max(numbers, default=-1) + 1:06d}/{path}"

    def put_aside(self, path: str) -> str:
        aside = self._aside(path)
        self.commit(path)
        self._move(path, aside)
        return aside

    def replace(self, path: str, data: bytes) -> None:
        self._staged(path, (data[start:start + PIECE] for start in range(0, len(data), PIECE)))
        pending = self._pending.pop(path, None)
        if pending is not None:
            pending.close()
        self._torn.discard(path)

    def close(self) -> None:
        super().close()
        for pending in self._pending.values():
            pending.close()
        self._pending.clear()
