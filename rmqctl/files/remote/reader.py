"""Files at a URL, read through fsspec: object stores, file servers, memory (for tests).

Only ranges are requested, never an entire file. File sizes are remembered, and a read within a
known size costs one request.
"""

from __future__ import annotations

import errno
import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import Any

from rmqctl.errors import RefusedError, RmqctlError, StoreIOError, UsageError, require
from rmqctl.files.remote import web
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import Closing, Source, Witness

_SLASHED = r"[^/@\[:]*:(?!:|\d+/)(?:[^@:/]|:(?!:))*/(?:[^@:]|:(?!:))*@"
"""Pattern of a user and a password that contains a slash: what follows the colon is not a port."""
_CREDENTIALS = re.compile(rf"(?<=://)(?:[^/@]*:[^/]*@|{_SLASHED})")
_hidden: dict[str, str] = {}
"""Start of a URL as displayed -> start of the same URL with the password."""
_MAX_REASON = 300
"""Maximum number of displayed characters of a driver's error, because some errors list every path
that was searched.
"""
_TURN = threading.Lock()
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created", "Last-Modified")
"""Keys under which drivers report the time of the last change."""
_ERRNO: tuple[tuple[type[OSError], int], ...] = (
    (FileNotFoundError, errno.ENOENT), (PermissionError, errno.EACCES),
    (FileExistsError, errno.EEXIST), (IsADirectoryError, errno.EISDIR),
    (NotADirectoryError, errno.ENOTDIR))


@dataclass(frozen=True, slots=True)
class FileOrFolder:
    """An entry in a folder. ``size`` in bytes (0 for a folder), ``mtime_ms`` 0 if unknown."""

    name: str
    is_folder: bool
    size: int = 0
    mtime_ms: int = 0
    is_strange: bool = False
    """True for an entry that is neither a folder nor a regular file."""


class RemoteReader(Closing):
    """A URL, opened for reading.

    Raises: UsageError if no driver supports it.
    """

    def __init__(self, url: str) -> None:
        self.name = url
        self._fs, self._root = _driver(url)
        self._is_web = web.is_web(self._fs)
        # Clients of SFTP and FTP mix up the answers for two threads.
        self._turn: AbstractContextManager[Any] = (
            _TURN if hasattr(self._fs, "ftp") else nullcontext())
        self._sizes: dict[str, int] = {}

    def where(self, path: str) -> str:
        named = without_secrets(self.name)
        return f"{named.rstrip('/')}/{path}" if path else named

    def _full(self, path: str) -> str:
        inside = web.encoded(path) if self._is_web else path
        return f"{self._root.rstrip('/')}/{inside}" if path else self._root

    def rows(self, folder: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the entries of a folder by name, as the driver describes them; empty if it does
        not exist.
        """
        full = self._full(folder)
        with self._turn, failing(self.where(folder), "list"):
            self._fs.invalidate_cache()
            try:
                rows = self._fs.ls(full, detail=True)
            except FileNotFoundError:
                return []
        named = []
        for row in rows:
            if _same(row["name"], full):
                if row.get("type") != "directory" and len(rows) == 1 and not row["name"].endswith(
                        "/"):
                    raise failed(NotADirectoryError(errno.ENOTDIR, ""), self.where(folder), "list")
                continue  # the marker object that some tools create for a folder in an object store
            name = web.name_in(row["name"], full) if self._is_web else row[
                "name"].rstrip("/").rpartition("/")[2]
            if name is not None:
                named.append((name, row))
        return named

    def list(self, folder: str) -> list[FileOrFolder]:
        listed = [_entry(name, row) for name, row in self.rows(folder)]
        for entry in listed:
            if not entry.is_folder:
                self._sizes[f"{folder}/{entry.name}" if folder else entry.name] = entry.size
        return sorted(listed, key=lambda entry: entry.name)

    def fetch(self, path: str, start: int, end: int, size: int) -> tuple[bytes, str]:
        """Return bytes ``[start, end)`` of a file of ``size`` bytes, and the object's identity.

        The result has fewer bytes if the file has shrunk. The identity is "" if the response has
        none.
        """
        with self._turn, failing(self.where(path), f"read at offset {start} of"):
            if self._is_web:
                data, headers = web.read_range(self._fs, self._full(path), start, end, size)
                return data, headers.get("ETag", "").strip('"') or headers.get("Last-Modified", "")
            if web.reads_of_s3(self._fs):
                return web.read_s3(self._fs, self._full(path), start, end)
            return self._fs.cat_file(self._full(path), start=start, end=end), ""

    def info(self, path: str) -> dict[str, Any] | None:
        """Return the driver's current description of a file or folder; None if it does not
        exist.
        """
        with self._turn, failing(self.where(path), "look at"):
            self._fs.invalidate_cache()
            try:
                row: dict[str, Any] = self._fs.info(self._full(path))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return row

    def size(self, path: str) -> int | None:
        row = self.info(path)
        if row is None or row.get("type") == "directory":
            self._sizes.pop(path, None)
            return None
        if not isinstance(row.get("size"), int):
            raise StoreIOError(f"cannot read {self.where(path)}: its size is unknown")
        self._sizes[path] = row["size"]
        return int(row["size"])

    def _size_of(self, path: str, wanted: int) -> int:
        """Return the size of a file; request it again if the known size is less than ``wanted``."""
        size = self._sizes.get(path)
        if size is None or size < wanted:
            size = self.size(path)
        if size is None:
            raise failed(FileNotFoundError(errno.ENOENT, ""), self.where(path), "open")
        return size

    def read(self, path: str, position: int, length: int) -> bytes:
        if position < 0 or length <= 0:
            return b""
        end = min(position + length, self._size_of(path, position + length))
        parts = []
        while position < end:
            part, _ = self.fetch(path, position, end, self._sizes[path])
            if not part:  # it has shrunk
                self._sizes.pop(path, None)
                break
            if len(part) > end - position:
                raise StoreIOError(f"cannot read at offset {position} of {self.where(path)}: "
                                   "the server does not serve ranges")
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def source(self, path: str, base: int = 0) -> Source:
        size = self.size(path)
        if size is None:
            raise failed(FileNotFoundError(errno.ENOENT, ""), self.where(path), "open")
        return RemoteSource(self, path, size, base)

    def close(self) -> None:
        self._sizes.clear()


class RemoteSource:
    """A file at a URL for a scan: small reads are served from a few cached blocks.

    ``size`` is determined at opening, as for a local file.
    """

    BLOCK = 1 << 20
    CACHED = 4
    head = 0

    def __init__(self, reader: RemoteReader, path: str, size: int, base: int = 0) -> None:
        self.name, self.base, self.size = reader.where(path), base, size
        self.witness: Witness | None = None
        self._reader, self._path = reader, path
        self._blocks: dict[int, bytes] = {}

    def read(self, position: int, length: int) -> bytes:
        length = min(length, self.size - position)
        if position < 0 or length <= 0:
            return b""
        if length >= self.BLOCK:
            return self._reader.read(self._path, position, length)
        first, last = position // self.BLOCK, (position + length - 1) // self.BLOCK
        data = self._block(first)
        # A file that has shrunk ends in the first block that is not full.
        if last > first and len(data) == self.BLOCK:
            data += self._block(last)
        return data[position - first * self.BLOCK:][:length]

    def _block(self, number: int) -> bytes:
        data = self._blocks.pop(number, None)
        if data is None:
            start = number * self.BLOCK
            data = self._reader.read(self._path, start, min(self.BLOCK, self.size - start))
            while len(self._blocks) >= self.CACHED:
                self._blocks.pop(next(iter(self._blocks)))
        self._blocks[number] = data
        return data

    def read_into(self, buffer: memoryview, position: int) -> int:
        data = self.read(position, len(buffer))
        buffer[:len(data)] = data
        return len(data)

    def next_data(self, position: int) -> int:
        """Return ``position``: the holes of a remote file are unknown."""
        return min(position, self.size)

    def close(self) -> None:
        self._blocks.clear()


def _driver(url: str) -> tuple[Any, str]:
    """Return (fsspec file system, path in this file system).

    Raises: UsageError if no driver is installed, StoreIOError for other errors.
    """
    protocol = url.partition("://")[0]
    # A driver would take the start of such a password for a port, and show it in an error.
    if re.search(f"://{_SLASHED}", revealed(url)):
        raise UsageError(f"{without_secrets(url)}: a password in a URL cannot contain \"/\"; write "
                         "%2F instead")
    require("fsspec")
    import fsspec
    from fsspec.core import url_to_fs

    try:
        fsspec.get_filesystem_class(protocol.rpartition("::")[2])
    except (ValueError, ImportError) as error:
        raise UsageError(f"{without_secrets(url)}: no driver for {protocol}:// is installed "
                         f"({_words(error)})") from None
    with failing(without_secrets(url), "open"):
        fs, path = url_to_fs(revealed(url), **_patience(protocol))
    if hasattr(fs, "ftp"):  # paramiko waits forever
        fs.ftp.get_channel().settimeout(web.PATIENCE)
        path = path or "/"
    return fs, str(path)


def _patience(protocol: str) -> dict[str, Any]:
    """Return a driver's timeouts and number of attempts, except values that the fsspec
    configuration sets.
    """
    from fsspec.config import conf

    given = dict(conf.get(protocol, {}))
    if protocol in ("http", "https"):
        return web.patient(given)
    if protocol in ("s3", "s3a"):
        limits = {"read_timeout": web.PATIENCE / 2, "connect_timeout": web.PATIENCE / 2,
                  "retries": {"max_attempts": 0}}  # the driver itself retries
        return {"config_kwargs": limits | given.get("config_kwargs", {})}
    return {}


def hide(url: str) -> str:
    """Return a URL without its user and password. The result can be displayed safely, and
    `RemoteReader` accepts it from now on.
    """
    secret = _CREDENTIALS.search(url)
    if secret is None:
        return url
    end = secret.end() + len(url[secret.end():].partition("/")[0])
    for number in itertools.count(1):
        other = "***" if number == 1 else f"***{number}"
        shown = f"{url[:secret.start()]}{other}@{url[secret.end():end]}"
        if _hidden.setdefault(shown, url[:end]) == url[:end]:
            return shown + url[end:]
    raise AssertionError("no number")


def revealed(url: str) -> str:
    """Return the original URL of a result of `hide`."""
    shown = next((shown for shown in _hidden if f"{url}/".startswith(f"{shown}/")), "")
    return _hidden[shown] + url[len(shown):] if shown else url


def secrets() -> dict[str, str]:
    """Return the URLs known to `hide`, for `share_secrets` in another process."""
    return dict(_hidden)


def share_secrets(secrets: dict[str, str]) -> None:
    """Add the URLs that another process has hidden."""
    _hidden.update(secrets)


def without_secrets(url: str) -> str:
    """Return a URL without its user and password, for messages."""
    return _CREDENTIALS.sub("***@", url)


def failed(error: Exception, where: str, doing: str) -> StoreIOError:
    """Return the StoreIOError for an operating system error or an invalid name."""
    if isinstance(error, OSError):
        return StoreIOError.from_oserror(error, where, doing)
    return StoreIOError(f"cannot {doing} {where!r}: {error}")


@contextmanager
def failing(where: str, doing: str) -> Iterator[None]:
    """Raise a driver's exception as StoreIOError, or as RefusedError for an unsupported action."""
    try:
        yield
    except web.NoRangesError as error:
        raise web.NoRangesError(f"cannot {doing} {where}: {error}") from None
    except (RmqctlError, MemoryError):
        raise
    except TimeoutError:
        raise StoreIOError(f"cannot {doing} {where}: the server did not answer in time") from None
    except NotImplementedError:
        raise RefusedError(f"cannot {doing} {where}: its driver does not support that") from None
    except OSError as error:
        if error.errno is None and len(str(error)) > _MAX_REASON:
            raise StoreIOError(f"cannot {doing} {where}: {_words(error)}") from None
        raise failed(_numbered(error), where, doing) from None
    except Exception as error:  # noqa: BLE001  # each driver has its own family of errors
        raise StoreIOError(f"cannot {doing} {where}: {_words(error)}") from None


def _numbered(error: OSError) -> OSError:
    """Return the error with an errno: drivers raise errors such as FileNotFoundError with only a
    path.
    """
    if error.errno is None:
        for kind, number in _ERRNO:
            if isinstance(error, kind):
                return kind(number, "")
    return error


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0] if len(lines[0]) <= _MAX_REASON else f"{lines[0][:_MAX_REASON]} ..."


def _same(name: str, full: str) -> bool:
    return name.strip("/") == full.strip("/")


def _entry(name: str, row: dict[str, Any]) -> FileOrFolder:
    kind, size = row.get("type"), row.get("size")
    if kind == "directory":
        return FileOrFolder(name, True)
    strange = kind != "file" or not isinstance(size, int)
    return FileOrFolder(name, False, size if isinstance(size, int) else 0, changed_at(row), strange)


def changed_at(row: dict[str, Any]) -> int:
    """Return the time of the last change (ms); 0 if the driver does not report it."""
    for key in _TIMES:
        value = row.get(key)
        if isinstance(value, str):
            try:
                from email.utils import parsedate_to_datetime  # slow to import, and seldom needed

                value = parsedate_to_datetime(value) if "," in value else datetime.fromisoformat(
                    value)
            except ValueError:
                continue
        if isinstance(value, datetime):
            value = value.timestamp()
        if isinstance(value, int | float):
            return int(value * 1000)
    return 0
