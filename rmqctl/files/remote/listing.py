"""Lists the files below a URL by path, each with its size and its identity.

An object store lists all files at once; a file server is listed folder by folder, with all folders
of one depth at the same time. Names that are invalid on a local disk are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rmqctl.errors import StoreIOError
from rmqctl.files.remote.reader import RemoteReader, changed_at, failing
from rmqctl.files.remote.threads import run_all
from rmqctl.vfs import Listed

_MAX_DEPTH, _MAX_FILES = 16, 1_000_000
_IDENTITIES = ("ETag", "etag", "md5Hash", "Content-MD5", "Digest", "checksum")
"""Keys under which drivers report a value that changes with the object's content."""
Row = Mapping[str, Any]


class RemoteListing(NamedTuple):
    """Result of a listing. ``links``: paths of links that are not followed; ``folders``: paths of
    folders that the server lists.
    """

    files: dict[str, Listed]
    links: frozenset[str]
    folders: frozenset[str]


def remote_files(remote: RemoteReader) -> RemoteListing:
    """List all files below a URL.

    Raises: StoreIOError.
    """
    folders: set[str] = set()
    rows = _at_once(remote) if _lists_at_once(remote._fs) else _by_folder(remote, folders)
    named = {path: row for path, row in rows.items() if _is_plain(path)}
    unknown = [path for path, row in named.items()
               if row.get("type") != "file" or not isinstance(row.get("size"), int)]
    # A server lists only names, or a link may lead to a file.
    named |= zip(unknown, run_all(lambda path: _resolved(remote, path, named[path]), unknown),
                 strict=True)
    files = {path: row for path, row in named.items() if row.get("type") == "file"}
    return RemoteListing({path: _listed(remote, path, row) for path, row in files.items()},
                         frozenset(named.keys() - files.keys()),
                         frozenset(filter(_is_plain, folders)))


def file_at(remote: RemoteReader, path: str) -> Listed | None:
    """Return one file below a URL; None if it does not exist, or is a folder.

    Raises: StoreIOError.
    """
    row = remote.info(path)
    # A web server shows a folder as a page.
    if row is None or row.get("type") == "directory" or "text/html" in str(row.get("mimetype")):
        return None
    return _listed(remote, path, row)


def identity(row: Row) -> str:
    """Return a value that changes with the object's content; "0" if the server reports none."""
    for name in _IDENTITIES:
        if value := row.get(name):
            return str(value).strip('"')
    return str(row.get("Last-Modified") or changed_at(dict(row)))


def _lists_at_once(fs: Any) -> bool:
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    return type(fs).find is not AbstractFileSystem.find or (
        isinstance(fs, AsyncFileSystem) and type(fs)._find is not AsyncFileSystem._find)


def _at_once(remote: RemoteReader) -> dict[str, Row]:
    with failing(remote.where(""), "list"):
        remote._fs.invalidate_cache()
        try:
            rows: dict[str, Row] = remote._fs.find(remote._root, detail=True)
        except FileNotFoundError:
            return {}
    start = len(remote._root.strip("/")) + 1 if remote._root.strip("/") else 0
    return {name.lstrip("/")[start:]: row for name, row in rows.items()
            if row.get("type") != "directory" and not name.endswith("/")}


def _by_folder(remote: RemoteReader, every: set[str]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    folders: list[str] = [""]
    for _ in range(_MAX_DEPTH):
        below: list[str] = []
        for folder, entries in zip(folders, run_all(remote.rows, folders), strict=True):
            for name, row in entries:
                path = f"{folder}/{name}" if folder else name
                if row.get("type") == "directory" and not row.get("islink"):
                    below.append(path)
                else:
                    rows[path] = row
        if len(rows) + len(below) > _MAX_FILES:
            raise StoreIOError(f"cannot list {remote.where('')}: more than {_MAX_FILES:,} "
                               "files")
        every.update(folders := below)
    if folders:
        raise StoreIOError(f"cannot list {remote.where(folders[0])}: more than {_MAX_DEPTH} "
                           "nested folders")
    return rows


def _is_plain(path: str) -> bool:
    """Return whether each part of a path is a valid file name on a local disk."""
    parts: Iterable[str] = path.split("/")
    return "\0" not in path and not any(part in ("", ".", "..") for part in parts)


def _resolved(remote: RemoteReader, path: str, row: Row) -> Row:
    """Return the driver's entry for a file, with links resolved.

    For a link to a folder, or a broken link, the entry of the link itself is returned.
    """
    target = remote.info(path)
    if target is None and row.get("type") == "file":
        raise StoreIOError(f"cannot read {remote.where(path)}: it is listed but does not exist")
    return row if target is None else target


def _listed(remote: RemoteReader, path: str, row: Row) -> Listed:
    size = row.get("size")
    if not isinstance(size, int) or size < 0:
        raise StoreIOError(f"cannot read {remote.where(path)}: the server does not report its size")
    # An unknown time must not make a file look old.
    changed = changed_at(dict(row)) * 1_000_000 or time.time_ns()
    return Listed(size, changed, identity(row))
