"""Stores in archives: tar, compressed or not, and zip, on this machine or at a URL.

A plain tar, and uncompressed members of a zip, are read in place. Compressed data can be read only
from its beginning, so it is unpacked once, into an unnamed sparse temporary file.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import IO, Any, Protocol

from rmqctl import vfs
from rmqctl.errors import FormatError, NotAStoreError, RmqctlError, StoreIOError
from rmqctl.files.disk_usage import free_bytes
from rmqctl.files.remote.listing import file_at
from rmqctl.files.remote.ranges import RangeCache
from rmqctl.files.remote.reader import RemoteReader, without_secrets
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import stopping
from rmqctl.scan.source import FileSource
from rmqctl.vfs import Listed, Tree

_MARKS = ("commitlog", "consumequeue", "index", "config", "checkpoint", "batchconsumequeue")
_NODE = "dledger-"
_BLOCK = 1 << 20
_NAMED = 5
_LEFT, _ZEROS = 64 << 20, 16
"""Limits for unpacking.

* ``_LEFT``: number of bytes of disk space that stay free.
* ``_ZEROS``: maximum number of unpacked zero bytes, as a multiple of the free space.
"""
_ZIP_HEADER = struct.Struct("<26xHH")
"""The two lengths in the header of a zip member: name and extra field, which precede the data."""
_DAMAGE = (tarfile.TarError, OverflowError, zipfile.BadZipFile, EOFError, lzma.LZMAError,
           zlib.error, gzip.BadGzipFile, ValueError, struct.error)


class _Bytes(Protocol):
    """Interface of a file that is read by position."""

    name: str
    size: int

    def read(self, position: int, length: int) -> bytes: ...

    def close(self) -> None: ...


class _Remote:
    def __init__(self, remote: RemoteReader, file: str, listed: Listed) -> None:
        self.name, self.size, self._file = remote.where(file), listed.size, file
        self._ranges = RangeCache(remote, {file: listed})

    def read(self, position: int, length: int) -> bytes:
        return self._ranges.read(self._file, position, length)

    def close(self) -> None:
        self._ranges.close()


class _Spool:
    """The unpacked bytes of a stream, in an unnamed file. Raises StoreIOError, FormatError."""

    def __init__(self, stream: IO[bytes], name: str, expected: int = 0) -> None:
        self.name, self.size, written = name, 0, 0
        folder = tempfile.gettempdir()
        self._file = tempfile.TemporaryFile(prefix="rmqctl-")  # noqa: SIM115  # closed in close
        try:
            # Zeros take no space, but their number is limited.
            free = free_bytes(folder)
            most = None if free is None else free * _ZEROS
            while most is None or max(self.size, expected) <= most:
                stopping.check()
                if not (data := stream.read(_BLOCK)):
                    break
                if data.strip(b"\0"):
                    written += len(data)
                    if free is not None and written > free - _LEFT:
                        most = 0
                        continue
                    os.pwrite(self._file.fileno(), data, self.size)
                self.size += len(data)
            else:
                raise StoreIOError(f"cannot unpack {name} into {folder}: {free:,} bytes are free "
                                   "there; set TMPDIR to a folder with more space, or unpack it "
                                   "yourself")
            os.ftruncate(self._file.fileno(), self.size)
        except _DAMAGE as error:
            self.close()
            raise FormatError(f"ends early, or is damaged: {error}", file=name) from None
        except OSError as error:
            self.close()
            # bz2 reports damage this way
            if "invalid" in str(error).lower() or error.errno is None:
                raise FormatError(f"ends early, or is damaged: {error}", file=name) from None
            raise StoreIOError.from_oserror(error, folder, "unpack into") from None
        except BaseException:
            self.close()
            raise

    def read(self, position: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), length, position)

    def close(self) -> None:
        self._file.close()


class _AsFile(io.RawIOBase):
    """A file of the archive as a Python file object."""

    def __init__(self, source: _Bytes) -> None:
        self._source, self._position = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size}
        self._position = max(start[whence] + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(self._position, len(buffer))
        buffer[:len(data)] = data
        self._position += len(data)
        return len(data)


@dataclass(slots=True)
class _Member:
    """A file of an archive.

    ``chunks``: (position in the file, number of bytes, position in ``source``); bytes outside of
    all chunks are zeros. ``unpack`` creates the chunks on first use and checks ``crc``.
    """

    listed: Listed
    source: _Bytes | None
    chunks: tuple[tuple[int, int, int], ...] = ()
    unpack: Callable[[], _Bytes] | None = None
    crc: int | None = None


class _Members:
    """The files in an archive, with the interface of a remote store's reader."""

    def __init__(self, source: _Bytes, members: Mapping[str, _Member]) -> None:
        self._source, self._members = source, members
        self._lock = threading.Lock()
        self.failed: StoreIOError | None = None
        self.sampled, self.sampled_files = False, 0

    def read(self, path: str, position: int, length: int) -> bytes:
        member = self._members[path]
        with self._lock:
            try:
                self._prepare(path, member)
            except RmqctlError as error:
                self.failed = self.failed or StoreIOError(str(error))
                raise StoreIOError(str(error)) from None
        end = min(position + length, member.listed.size)
        if end <= position:
            return b""
        data = bytearray(end - position)
        for start, size, place in member.chunks:
            first, last = max(position, start), min(end, start + size)
            if first < last and member.source is not None:
                try:
                    part = member.source.read(place + first - start, last - first)
                    if len(part) != last - first:
                        raise StoreIOError(f"{self._source.name}: shrank while it was read")
                except StoreIOError as error:
                    self.failed = self.failed or error
                    raise
                data[first - position:last - position] = part
        return bytes(data)

    def _prepare(self, path: str, member: _Member) -> None:
        """Unpack a member, or check it, when it is first read.

        Raises: FormatError, StoreIOError.
        """
        if member.source is None and member.unpack is not None:
            member.source = member.unpack()
            member.chunks = ((0, member.listed.size, 0),)
        if member.crc is not None and member.source is not None:
            [(_, size, place)] = member.chunks
            value = 0
            for start in range(0, size, _BLOCK):
                stopping.check()
                value = zlib.crc32(member.source.read(place + start, min(_BLOCK, size - start)),
                                   value)
            if value != member.crc:
                raise FormatError("is damaged: CRC mismatch", file=f"{self._source.name}/{path}")
            member.crc = None

    def gather(self, path: str, places: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(path, *place) for place in places]

    def end_of(self, _path: str) -> None:
        """Return None: files in an archive are not sampled."""

    def next_data(self, path: str, position: int) -> int:
        """Return the position after a hole of a sparse archive."""
        member = self._members[path]
        if member.source is None:  # not unpacked yet
            return position
        after = [start for start, size, _ in member.chunks if start + size > position]
        return max(position, after[0]) if after else member.listed.size

    def close(self) -> None:
        for member in self._members.values():
            if member.source is not None and member.source is not self._source:
                member.source.close()
        self._source.close()


def tree_in(archive: str, inner: str) -> Tree | None:
    """Return the store in the folder ``inner`` of an archive, or else its only store.

    None if the URL does not exist or is a folder. Raises: NotAStoreError, FormatError for a damaged
    archive, StoreIOError.
    """
    source: Any
    if "://" in archive:
        above, _, file = archive.rpartition("/")
        remote = RemoteReader(above)
        if (listed := file_at(remote, file)) is None:
            return None
        source = _Remote(remote, file, listed)
    else:
        source = FileSource(archive)
    try:
        source, entries = _opened(source, archive)
    except _DAMAGE as error:
        raise FormatError(f"ends early, or is damaged: {error}",
                          file=without_secrets(archive)) from None
    stamp, archive = vfs.stamp_of(archive), without_secrets(archive)
    members = {path: member for path, member in entries.items() if isinstance(member, _Member)}
    folder = inner or _store_in(members, archive)
    below = f"{folder}/" if folder else ""
    kept = {path.removeprefix(below): member for path, member in members.items()
            if path.startswith(below)}
    links, folders = (frozenset(path.removeprefix(below) for path, member in entries.items()
                                if member == kind and path.startswith(below))
                      for kind in (_LINK, _FOLDER))
    root = f"{archive}/{folder}" if folder else archive
    if not kept:
        raise NotAStoreError(f"{root}: does not exist; not a store")
    return Tree(root, {path: member.listed for path, member in kept.items()},
                _Members(source, kept), stamp=stamp, links=links, empty=folders)


_Contents = dict[str, "_Member | str"]
"""Contents of an archive: path -> a file, `_LINK` or `_FOLDER`."""
_LINK, _FOLDER = "link", "folder"


def _opened(source: Any, name: str) -> tuple[Any, _Contents]:
    if name.endswith(".zip"):
        return source, dict(_of_zip(source))
    opener = _decompressor(name)
    if opener is not None:
        with source, opener(io.BufferedReader(_AsFile(source), _BLOCK)) as stream:
            source = _Spool(stream, name)
    return source, _of_tar(source)


def _decompressor(name: str) -> Callable[[Any], IO[bytes]] | None:
    if name.endswith(".zst"):
        try:
            from compression import zstd  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            from backports import zstd
        opener: Callable[[Any], IO[bytes]] = zstd.open
        return opener
    ending = name.rpartition(".")[2]
    openers: dict[str, Any] = {"gz": gzip.open, "tgz": gzip.open, "xz": lzma.open, "bz2": bz2.open}
    return openers.get(ending)


def _of_tar(source: _Bytes) -> _Contents:
    entries: _Contents = {}
    with tarfile.open(fileobj=io.BufferedReader(_AsFile(source), 1 << 14), mode="r:") as tar:
        for about in tar:
            name = _plain(about.name)
            member: _Member | str = _FOLDER if about.isdir() else _LINK
            if about.islnk():  # another name of an earlier file
                member = entries.get(_plain(about.linkname) or "", _LINK)
            elif about.isreg() or about.issparse():
                sparse: Any = about.sparse
                chunks = _sparse_chunks(sparse, about.offset_data) if sparse is not None else (
                    (0, about.size, about.offset_data),)
                member = _Member(Listed(about.size, int(about.mtime * 1e9)), source, chunks)
            # If a name occurs twice, the last one counts.
            if name is not None:
                entries[name] = member
        last = tar.offset
    # tarfile accepts an archive that ends in the middle of a member, or has a damaged header.
    if source.read(last, tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"neither a header nor the archive's end at offset {last}")
    return entries


def _sparse_chunks(sparse: list[tuple[int, int]], place: int) -> tuple[tuple[int, int, int], ...]:
    chunks = []
    for start, size in sparse:
        chunks.append((start, size, place))
        place += size
    return tuple(chunks)


def _of_zip(source: _Bytes) -> Iterator[tuple[str, _Member | str]]:
    packed = zipfile.ZipFile(io.BufferedReader(_AsFile(source), 1 << 16))
    for about in packed.infolist():
        name = _plain(about.filename)
        if name is None:
            continue
        if about.is_dir() or stat.S_ISLNK(about.external_attr >> 16):
            yield name, _FOLDER if about.is_dir() else _LINK
            continue
        listed = Listed(about.file_size, int(time.mktime((*about.date_time, 0, 0, -1))) * 10**9)
        if about.compress_type == zipfile.ZIP_STORED and not about.flag_bits & 1:
            name_size, extra_size = _ZIP_HEADER.unpack(source.read(
                about.header_offset, _ZIP_HEADER.size))
            place = about.header_offset + _ZIP_HEADER.size + name_size + extra_size
            yield name, _Member(listed, source, ((0, about.file_size, place),),
                                crc=None if isinstance(source, _Remote) else about.CRC)
        else:
            yield name, _Member(listed, None, unpack=_unpacking(packed, about, source.name))


def _unpacking(packed: zipfile.ZipFile, about: zipfile.ZipInfo, name: str) -> Callable[[], _Bytes]:
    def unpack() -> _Bytes:
        try:
            with packed.open(about) as stream:
                return _Spool(stream, f"{name}/{about.filename}", about.file_size)
        except (*_DAMAGE, NotImplementedError, RuntimeError) as error:
            raise FormatError(f"cannot be unpacked: {error}",
                              file=f"{name}/{about.filename}") from None
    return unpack


def _plain(name: str) -> str | None:
    """Return a member's path below the archive; None for a path outside it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or not path.parts:
        return None
    return str(path)


def _store_in(members: Mapping[str, _Member], archive: str) -> str:
    """Return the only folder of the archive that is a store.

    Raises: NotAStoreError.
    """
    marks: dict[str, set[str]] = {}
    for path in members:
        parts = path.split("/")
        for depth, part in enumerate(parts):
            if part in _MARKS or part.startswith(_NODE):
                marks.setdefault("/".join(parts[:depth]), set()).add(part)
                break
    # A store inside a store belongs to it: a tier, a copy.
    outer = [folder for folder in marks if not any(
        folder.startswith(f"{other}/" if other else "") for other in marks if other != folder)]
    stores = sorted(folder for folder in outer if len(marks[folder]) > 1 or any(
        name == _MARKS[0] or name.startswith(_NODE) for name in marks[folder])) or sorted(outer)
    if len(stores) == 1:
        return stores[0]
    if not stores:
        raise NotAStoreError(f"{archive}: not a store (no folder in it has any of "
                             f"{', '.join(_MARKS)})")
    some = ", ".join(f"{archive}/{folder}" for folder in stores[:_NAMED])
    raise NotAStoreError(f"{archive}: has {len(stores)} stores; name one: {some}"
                         f"{' …' if len(stores) > _NAMED else ''}")
