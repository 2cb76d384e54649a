"""Folders and files by path, local or in a mounted place. Readers of stores use this module instead
of `os`.

A mounted place is a URL or an archive. Its files are listed once, and `mount` registers the list.
Paths below the place are then looked up in the list, and `FileSource` reads ranges of its files.
All other paths are passed to the operating system.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import posixpath
import stat as modes
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import partial
from typing import IO, Any, NamedTuple, Protocol, Self

from rmqctl.errors import StoreIOError
from rmqctl.lazy_dataclass import dataclass

ARCHIVES = (".tar", ".zip", ".tar.zst", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
_PAGE = 4096
_DEVICE = -1
"""Device number of all files in mounted places; their inode numbers differ."""
_MAX_DEPTH = 64
_FRESH = 10.0
"""Time in seconds for which a listing remains valid."""


class PlaceReader(Protocol):
    """Reads ranges of the files of a mounted place.

    ``failed``: the first error of a read, if any.
    ``sampled``: whether samples may show where the data in a file ends.
    ``sampled_files``: number of files in which samples showed the end of the data.
    """

    failed: StoreIOError | None
    sampled: bool

    @property
    def sampled_files(self) -> int: ...

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return bytes of the file with this path below the root.
        Raises: StoreIOError if the file has changed since it was listed.
        """

    def gather(self, path: str, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of several ranges (position, length), which are requested in
        parallel.
        """

    def next_data(self, path: str, position: int) -> int:
        """Return the first position from ``position`` on that may have a nonzero byte."""

    def end_of(self, path: str) -> int | None:
        """Return the position after the last data in a file if samples determined it, else None."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Listed:
    """A file in the list of a mounted place. ``identity``: a string that changes when the file
    changes.
    """

    size: int
    mtime_ns: int = 0
    identity: str = ""


@dataclass(slots=True, eq=False)
class Tree:
    """A mounted place: its files by their paths below ``root``.

    ``stamp``: see `stamp_of`.
    ``links``: paths of links, which are not followed.
    ``empty``: paths of folders, including folders without files.
    ``lacks``: structures that such a place never has; a broker builds them from the log.
    ``users``: number of readers.
    """

    root: str
    files: Mapping[str, Listed]
    reader: PlaceReader
    listed_at: float = field(default_factory=time.monotonic)
    stamp: tuple[int, int, int] | None = None
    links: frozenset[str] = frozenset()
    empty: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()
    users: int = 0
    folders: dict[str, dict[str, None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folders[""] = {}
        for folder in self.empty:
            self.folders.setdefault(folder, {})
        for path in (*self.files, *self.links, *self.empty):
            if path.count("/") > _MAX_DEPTH:  # no system can read or remove all of them
                raise StoreIOError(f"{self.root}/{path[:_MAX_DEPTH]} ...: more than {_MAX_DEPTH} "
                                   "nested folders")
            while path:
                above, _, name = path.rpartition("/")
                listed = self.folders.setdefault(above, {})
                if name in listed:
                    break
                listed[name] = None
                path = above  # noqa: PLW2901

    def stat(self, inner: str) -> os.stat_result:
        """Return the stat result of a path.
        Raises: FileNotFoundError if it does not exist.
        """
        if (file := self.files.get(inner)) is not None:
            return _stat(modes.S_IFREG | 0o444, hash((self.root, inner)), file.size, file.mtime_ns)
        if inner in self.folders:
            return _stat(modes.S_IFDIR | 0o555, hash((self.root, inner)), 0, 0)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT),
                                f"{self.root}/{inner}" if inner else self.root)


class MountedEntry:
    """An entry in a mounted folder, like `os.DirEntry`."""

    __slots__ = ("_tree", "name", "path")

    def __init__(self, tree: Tree, folder: str, name: str) -> None:
        self._tree, self.name = tree, name
        self.path = os.path.join(folder, name)

    def _inner(self) -> str:
        return _below(self._tree, self.path) or ""

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._inner() in self._tree.folders

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._inner() in self._tree.files

    def is_symlink(self) -> bool:
        return self._inner() in self._tree.links

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._tree.stat(self._inner())

    def inode(self) -> int:
        return 0


class ScanIterator(Protocol):
    """The type of the result of `os.scandir`."""

    def __iter__(self) -> Iterator[os.DirEntry[str]]: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


class _MountedEntries(list[Any]):
    """The entries in a folder, as a `ScanIterator`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no file or folder is open."""

    def close(self) -> None:
        """Do nothing: no file or folder is open."""


_MAX_IDLE = 4
"""Maximum number of unused places that stay mounted."""
_trees: dict[str, Tree] = {}
_replaced: list[Tree] = []
_failures: list[StoreIOError] = []
"""Read errors of places that are no longer mounted."""
_lock = threading.RLock()


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is in a mounted place, or a URL."""
    return isinstance(path, str) and ("://" in path or bool(_trees and _find(path)))


def is_elsewhere(target: str) -> bool:
    """Return whether a location has to be mounted: a URL, an archive, or a path in an archive."""
    return "://" in target or archive_of(target) is not None


def archive_of(target: str) -> tuple[str, str] | None:
    """Return the path of the archive that contains a path, and the path inside the archive; None if
    the path is not in an archive.
    """
    if not any(ending in target for ending in ARCHIVES):
        return None
    parts = target.split("/")
    for count in range(1, len(parts) + 1):
        if parts[count - 1].endswith(ARCHIVES):
            archive = "/".join(parts[:count])
            if "://" in archive or os.path.isfile(archive):
                return archive, "/".join(parts[count:]).strip("/")
    return None


def stem(target: str) -> str:
    """Return the last part of a path or URL without the suffix of an archive, as the name for a
    folder.
    """
    name = target.rstrip("/").rpartition("/")[2]
    return next((name.removesuffix(ending) for ending in ARCHIVES if name.endswith(ending)),
                name) or "store"


def listed_tree(root: str) -> Tree | None:
    """Return a place that was listed a moment ago, or a local archive that has not changed since it
    was listed.
    """
    tree = _trees.get(root)
    if tree is None:
        return None
    if tree.stamp is not None:
        return tree if tree.stamp == stamp_of(root) else None
    return tree if time.monotonic() - tree.listed_at < _FRESH else None


def stamp_of(root: str) -> tuple[int, int, int] | None:
    """Return a value that changes when the local archive that contains a path changes; None if the
    path is not in a local archive.
    """
    archive = None if "://" in root else archive_of(root)
    if archive is None:
        return None
    about = os.stat(archive[0])
    return about.st_ino, about.st_size, about.st_mtime_ns


def roots() -> list[str]:
    """Return the roots of the mounted places."""
    return sorted({tree.root for tree in _trees.values()})


def is_mounted(path: str) -> bool:
    """Return whether a path is in a mounted place."""
    return _find(path) is not None


def mount(tree: Tree, named: str) -> None:
    """Register a place, so that paths below its root are looked up in its list of files. ``named``:
    the location as the user named it.
    """
    with _lock:
        if not _trees:
            atexit.register(unmount_all)
        if (before := _trees.get(named)) is not None:
            _replaced.append(before)  # its files may be open
        _set_trees({**_trees, tree.root: tree, named: tree})
        _tidy()


@contextmanager
def in_use(root: str) -> Iterator[None]:
    """Keep a place mounted while the block runs."""
    use(root, 1)
    try:
        yield
    finally:
        use(root, -1)


def use(root: str, count: int) -> None:
    """Change the number of readers of a place by ``count``; ignored for local folders."""
    with _lock:
        if (tree := _trees.get(root)) is not None:
            tree.users += count


def _set_trees(trees: dict[str, Tree]) -> None:
    global _trees  # noqa: PLW0603  # other threads go over the one before
    _trees = dict(sorted(trees.items(), key=lambda item: -len(item[0])))  # innermost first


def _tidy() -> None:
    """Unmount unused places except the most recent ones, since each one takes memory or
    disk space.
    """
    idle = sorted({id(tree): tree for tree in _trees.values() if not tree.users}.values(),
                  key=lambda tree: tree.listed_at)[:-_MAX_IDLE]
    idle += [tree for tree in _replaced if not tree.users]
    if idle:
        _set_trees({name: tree for name, tree in _trees.items() if tree not in idle})
        _replaced[:] = [tree for tree in _replaced if tree not in idle]
        for tree in idle:
            if tree.reader.failed is not None:
                _failures.append(tree.reader.failed)
            tree.reader.close()


def raise_failure() -> None:
    """Raise the first error that occurred in reading a mounted place, if any. The file that could
    not be read is missing from the result of the command. Raises: StoreIOError.
    """
    for failure in _failures:
        raise failure
    for tree in (*_replaced, *_trees.values()):
        if tree.reader.failed is not None:
            raise tree.reader.failed


def lacks(root: str, structure: str) -> bool:
    """Return whether ``root`` is in a mounted place of a kind that never has this structure."""
    mounted = _find(root)
    return mounted is not None and structure in mounted[0].lacks


def sampled(root: str) -> int:
    """Return the number of files in a mounted place whose ends were found by sampling."""
    mounted = _find(root)
    return 0 if mounted is None else mounted[0].reader.sampled_files


def unmount_all() -> None:
    """Unmount all places."""
    for tree in {id(tree): tree for tree in (*_replaced, *_trees.values())}.values():
        tree.reader.close()
    _replaced.clear()
    _failures.clear()
    _trees.clear()


def _below(tree: Tree, path: str) -> str | None:
    if path == tree.root:
        return ""
    if path.startswith(tree.root + "/"):
        inner = path[len(tree.root) + 1:]
        return posixpath.normpath(inner).lstrip("/") if inner.strip("/") else ""
    return None


def _find(path: str | os.PathLike[str]) -> tuple[Tree, str] | None:
    if not _trees or not isinstance(path, str):
        return None
    for tree in _trees.values():
        if (inner := _below(tree, path)) is not None:
            return tree, "" if inner == "." else inner
    return None


def file_of(path: str) -> tuple[Tree, str, Listed] | None:
    """Return (the place, the path in the place, the file) for a path in a mounted place; None for a
    local path.

    Raises: FileNotFoundError, IsADirectoryError, like `open`.
    """
    mounted = _find(path)
    if mounted is None:
        if "://" in path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return None
    tree, inner = mounted
    listed = tree.files.get(inner)
    if listed is None:
        if inner in tree.folders:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        tree.stat(inner)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return tree, inner, listed


class Elsewhere(NamedTuple):
    """Functions that read a file in a mounted place, and the size of the file in bytes."""

    read: Callable[[int, int], bytes]
    gather: Callable[[Sequence[tuple[int, int]]], list[bytes]]
    next_data: Callable[[int], int]
    end: Callable[[], int | None]
    size: int


def reader_of(path: str) -> Elsewhere | None:
    """Return the functions that read a file of a mounted place; None for local paths.
    Raises: StoreIOError.
    """
    if not _trees and "://" not in path:
        return None
    try:
        mounted = file_of(path)
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "open") from None
    if mounted is None:
        return None
    tree, inner, listed = mounted
    reader = tree.reader
    return Elsewhere(partial(reader.read, inner), partial(reader.gather, inner),
                     partial(reader.next_data, inner), partial(reader.end_of, inner), listed.size)


# -- as in os and os.path -------------------------------------------------------------------------


def stat(path: str | os.PathLike[str]) -> os.stat_result:
    """Behave like `os.stat`."""
    mounted = _find(path)
    return os.stat(path) if mounted is None else mounted[0].stat(mounted[1])


def lexists(path: str) -> bool:
    """Behave like `os.path.lexists`."""
    if _trees and (mounted := _find(path)) is not None:
        return _has(path) or mounted[1] in mounted[0].links
    return os.path.lexists(path)


def exists(path: str) -> bool:
    """Behave like `os.path.exists`."""
    if _trees and _find(path) is not None:
        return _has(path)
    return os.path.exists(path)


def isfile(path: str) -> bool:
    """Behave like `os.path.isfile`."""
    mounted = _find(path)
    return os.path.isfile(path) if mounted is None else mounted[1] in mounted[0].files


def isdir(path: str) -> bool:
    """Behave like `os.path.isdir`."""
    mounted = _find(path)
    return os.path.isdir(path) if mounted is None else mounted[1] in mounted[0].folders


def getsize(path: str) -> int:
    """Behave like `os.path.getsize`."""
    return stat(path).st_size


def access(path: str, mode: int) -> bool:
    """Behave like `os.access`; files in mounted places cannot be written."""
    if _find(path) is None:
        return os.access(path, mode)
    return _has(path) and not mode & os.W_OK


def statvfs(path: str) -> os.statvfs_result:
    """Behave like `os.statvfs`; for a mounted place, all numbers of blocks are 0."""
    if _find(path) is None:
        return os.statvfs(path)
    return os.statvfs_result((_PAGE, _PAGE, 0, 0, 0, 0, 0, 0, 0, 255))


def listdir(path: str) -> list[str]:
    """Behave like `os.listdir`."""
    mounted = _find(path)
    return os.listdir(path) if mounted is None else [*_names(*mounted, path)]


def scandir(path: str = ".") -> ScanIterator:
    """Behave like `os.scandir`."""
    mounted = _find(path)
    if mounted is None:
        return os.scandir(path)
    tree, inner = mounted
    return _MountedEntries(MountedEntry(tree, path, name) for name in _names(tree, inner, path))


def walk(top: str, onerror: Any = None, *, followlinks: bool = False) -> Iterator[
        tuple[str, list[str], list[str]]]:
    """Behave like `os.walk`, top down."""
    mounted = _find(top)
    if mounted is None:
        yield from os.walk(top, onerror=onerror, followlinks=followlinks)
        return
    tree, inner = mounted
    names = [*tree.folders.get(inner, ())]
    folders = [name for name in names if posixpath.join(inner, name) in tree.folders]
    yield top, folders, [name for name in names if posixpath.join(inner, name) in tree.files]
    for name in folders:
        yield from walk(os.path.join(top, name), onerror)


def realpath(path: str | os.PathLike[str]) -> str:
    """Behave like `os.path.realpath`."""
    named = os.fspath(path)
    return named.rstrip("/") if is_remote(named) else os.path.realpath(named)


def abspath(path: str | os.PathLike[str]) -> str:
    """Behave like `os.path.abspath`."""
    named = os.fspath(path)
    return named.rstrip("/") if is_remote(named) else os.path.abspath(named)


def normpath(path: str | os.PathLike[str]) -> str:
    """Behave like `os.path.normpath`."""
    named = os.fspath(path)
    return named.rstrip("/") if is_remote(named) else os.path.normpath(named)


def relpath(path: str, start: str) -> str:
    """Behave like `os.path.relpath`. In a mounted place, ``path`` must be below ``start``."""
    if is_remote(path) or is_remote(start):
        return path.removeprefix(f"{start}/")
    return os.path.relpath(path, start)


def open_bytes(path: str) -> IO[bytes]:
    """Open a file as ``open(path, "rb")`` does; a file of a mounted place is read completely.
    Raises: OSError, StoreIOError.
    """
    mounted = None if not _trees and "://" not in path else file_of(path)
    if mounted is None:
        return open(path, "rb")
    tree, inner, listed = mounted
    return io.BytesIO(tree.reader.read(inner, 0, listed.size))


def open_text(path: str, errors: str = "strict") -> IO[str]:
    """Open a file as ``open(path, encoding="utf-8")`` does."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8", errors=errors)


def _has(path: str) -> bool:
    with suppress(FileNotFoundError):
        stat(path)
        return True
    return False


def _names(tree: Tree, inner: str, path: str) -> Iterable[str]:
    if inner in tree.files:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if inner not in tree.folders:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return tree.folders[inner]


def _stat(mode: int, inode: int, size: int, mtime_ns: int) -> os.stat_result:
    seconds = mtime_ns // 1_000_000_000
    times = (seconds,) * 3 + (mtime_ns / 1e9,) * 3 + (mtime_ns,) * 3
    return os.stat_result((mode, inode, _DEVICE, 1, os.getuid(), os.getgid(), size, *times,
                           _PAGE, -(-size // _PAGE) * _PAGE // 512, 0))
