"""Read-only access to the files of a tier by relative path.

The methods correspond to those of a broker's storage drivers: read a range, get the size, list.
`rmqctl.ext.tiered.files.writer` adds create, append and commit. `PosixReader` reads a local folder,
`rmqctl.files.remote.reader` a URL through fsspec.
"""

from __future__ import annotations

import os
import stat
from typing import Protocol, runtime_checkable

from rmqctl import vfs
from rmqctl.files.remote.reader import FileOrFolder, failed
from rmqctl.scan.source import Closing, FileSource, Source

ASIDE = ".rmqctl/tiered"
"""Folder below the tier root for files that rmqctl moved aside and for rmqctl's own notes."""


@runtime_checkable
class TierReader(Protocol):
    """The files of a tier, by path relative to its root (separator: ``/``).

    All methods raise StoreIOError.
    """

    name: str
    """The root as the user named it."""

    def where(self, path: str) -> str:
        """Return a path to show in messages, starting with the root as the user named it."""

    def list(self, folder: str) -> list[FileOrFolder]:
        """Return the entries of a folder, sorted by name; empty if the folder does not exist."""

    def size(self, path: str) -> int | None:
        """Return the size of a file; None if the file does not exist."""

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return the bytes ``[position, position + length)``; fewer bytes only at the end of the
        file.
        """

    def source(self, path: str, base: int = 0) -> Source:
        """Return the file as a `Source` with its first byte at logical offset ``base``.

        Close it with `close_source`.
        """

    def close(self) -> None: ...


def close_source(source: Source) -> None:
    """Close a source that `TierReader.source` opened."""
    close = getattr(source, "close", None)
    if close is not None:
        close()


class PosixReader(Closing):
    """Reader of a folder. Keeps a few recently used files open."""

    _MAX_OPEN = 32

    def __init__(self, root: str) -> None:
        self.name = root
        self.root = vfs.abspath(root)
        self._open: dict[str, FileSource] = {}

    def where(self, path: str) -> str:
        return os.path.join(self.name, path) if path else self.name

    def _full(self, path: str) -> str:
        return os.path.join(self.root, path)

    def list(self, folder: str) -> list[FileOrFolder]:
        full = self._full(folder)
        listed: list[FileOrFolder] = []
        try:
            with vfs.scandir(full) as entries:
                listed.extend(map(self._entry, entries))
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise failed(error, self.where(folder), "list") from None
        return sorted(listed, key=lambda entry: entry.name)

    @staticmethod
    def _entry(entry: os.DirEntry[str]) -> FileOrFolder:
        try:
            about = entry.stat()
        except OSError:  # vanished meanwhile, or a link to nowhere
            return FileOrFolder(entry.name, False, is_strange=True)
        folder = stat.S_ISDIR(about.st_mode)
        return FileOrFolder(entry.name, folder, 0 if folder else about.st_size,
                            about.st_mtime_ns // 1_000_000,
                            not folder and not stat.S_ISREG(about.st_mode))

    def size(self, path: str) -> int | None:
        try:
            return vfs.stat(self._full(path)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise failed(error, self.where(path), "look at") from None

    def read(self, path: str, position: int, length: int) -> bytes:
        source = self._open.pop(path, None)
        if source is None:
            source = FileSource(self._full(path))
            while len(self._open) >= self._MAX_OPEN:
                self._open.pop(next(iter(self._open))).close()
        self._open[path] = source
        return source.read(position, length)

    def source(self, path: str, base: int = 0) -> Source:
        return FileSource(self._full(path), base)

    def close(self) -> None:
        for source in self._open.values():
            source.close()
        self._open.clear()
