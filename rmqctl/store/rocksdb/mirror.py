"""The temporary folder in which the RocksDB library opens a database.

The folder has links to the tables. The MANIFEST and the write-ahead logs are copied, because the
library and a running broker write to these files. A store must not be able to fill the disk of the
machine that reads it. So the size of the copies is limited, holes stay holes, and the free space is
checked first.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterator
from typing import NamedTuple

from rmqctl import vfs
from rmqctl.errors import CopyLimitError, FormatError, StoreIOError, UsageError
from rmqctl.parse_values import parse_size
from rmqctl.scan.holes import data_ranges
from rmqctl.scan.source import FileSource

VARIABLE = "RMQCTL_ROCKSDB_COPY"
"""The environment variable that overrides `MAX_COPY`."""
MAX_COPY = 4 << 30
"""Maximum total size in bytes of MANIFEST and write-ahead logs, including holes; a broker's files
are smaller.
"""
MAX_RECORD = 16 << 20
"""Maximum size in bytes of a record in MANIFEST and write-ahead logs.

A broker's records are far smaller. To read a record, the library needs many times its size in
memory.
"""
_SPARE = 64 << 20
"""Minimum number of bytes that must remain free in the temporary folder."""
_PIECE = 1 << 20
_CURRENT = re.compile(rb"(MANIFEST-\d{6,20})\n")
_LOG = re.compile(r"\d{6,20}\.log", re.ASCII)
_TABLE = re.compile(r"\d{6,20}\.sst", re.ASCII)
_BLOCK = 32768
_RECORD = struct.Struct("<IHB")  # masked CRC-32C, length, type
_WHOLE_OR_PART = range(1, 5)
_BEGINS = 1, 2
"""The types of the frames that begin a record: a complete record, or the first part of a record."""


class VanishedError(Exception):
    """A file of the database does not exist or no longer exists."""


class _Copied(NamedTuple):
    """A file that is going to be copied: its open descriptor, its size, and its ranges of data."""

    name: str
    fd: int
    size: int
    data: list[tuple[int, int]]


def mirror(folder: str, shadow: str) -> tuple[int, list[str]]:
    """Fill the folder that the library opens; return (number of tables, texts about damage in the
    logs).

    Raises: FormatError for damage, StoreIOError for files that are too large or unreadable,
    VanishedError.
    """
    current = os.path.join(folder, "CURRENT")
    named = _CURRENT.fullmatch(_small(current))
    if named is None:
        raise FormatError("names no MANIFEST, so the database cannot be opened", file=current)
    manifest = named[1].decode()
    damage: list[str] = []
    tables = 0
    copied: list[_Copied] = []
    try:
        # Link the tables and open the other files: open files cannot vanish.
        for name in vfs.listdir(folder):
            path = os.path.join(folder, name)
            if _TABLE.fullmatch(name):
                if not vfs.isfile(path):
                    raise FormatError("not a regular file", file=path)
                _link(path, os.path.join(shadow, name))
                tables += 1
            elif name == manifest or (_LOG.fullmatch(name) and vfs.isfile(path)):
                copied.append(_open(path, name))
        # Copy, if the limit allows it.
        _check_space(folder, shadow, copied)
        for file in copied:
            target = os.path.join(shadow, file.name)
            _copy(file, target)
            _check_records(os.path.join(folder, file.name), target, file, damage,
                           file.name == manifest)
        with open(os.path.join(shadow, "CURRENT"), "wb") as pointer:
            pointer.write(named[0])
    except FileNotFoundError as error:
        raise VanishedError(f"{error.filename} is missing") from None
    except OSError as error:
        raise StoreIOError.from_oserror(error, None, "read") from None
    finally:
        for file in copied:
            os.close(file.fd)
    if not os.path.lexists(os.path.join(shadow, manifest)):
        raise VanishedError(f"{manifest}, which CURRENT names, is missing, so the database cannot "
                            "be opened")
    return tables, damage


def _small(path: str) -> bytes:
    try:
        if not vfs.lexists(path):
            raise VanishedError("CURRENT is missing, so the database cannot be opened")
        if not vfs.isfile(path):
            raise FormatError("not a regular file", file=path)
        with vfs.open_bytes(path) as file:
            return file.read(64)
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "read") from None


def _open(path: str, name: str) -> _Copied:
    """Open a file for copying at its current size: bytes that are appended later are not copied.

    Raises: OSError, FormatError.
    """
    if vfs.is_remote(path):
        import tempfile

        with tempfile.TemporaryFile(prefix="rmqctl-") as copy:
            fd = os.dup(copy.fileno())
        _fetch(path, fd)
    else:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        os.close(fd)
        raise FormatError("not a regular file", file=path)
    return _Copied(name, fd, about.st_size, list(data_ranges(fd, 0, about.st_size)))


def _link(path: str, target: str) -> None:
    """Create a link to a table; a table on another machine is copied.

    Raises: OSError, StoreIOError.
    """
    if not vfs.is_remote(path):
        os.symlink(os.path.abspath(path), target)
        return
    with open(target, "wb") as copy:
        _fetch(path, copy.fileno())


def _fetch(path: str, fd: int) -> None:
    with FileSource(path) as source:
        for position in range(0, source.size, _PIECE):
            os.pwrite(fd, source.read(position, _PIECE), position)


def _check_space(folder: str, shadow: str, files: list[_Copied]) -> None:
    """Raise CopyLimitError if the copies would be larger than the limit or the free space."""
    given = os.environ.get(VARIABLE, "")
    try:
        most = parse_size(given) if given else MAX_COPY
    except UsageError as error:
        raise UsageError(f"{VARIABLE}: {error}") from None
    size = sum(file.size for file in files)
    if size > most:
        raise CopyLimitError(
            f"{folder}: MANIFEST and write-ahead logs have {_mib(size)}; at most {_mib(most)} are "
            f"copied to read them; {VARIABLE}=SIZE sets another limit")
    system = os.statvfs(shadow)
    free = system.f_bavail * system.f_frsize
    needed = sum(end - start for file in files for start, end in file.data)
    if needed + _SPARE > free:
        import tempfile

        raise CopyLimitError(
            f"{folder}: copies of MANIFEST and write-ahead logs need {_mib(needed)}, but "
            f"{tempfile.gettempdir()} has {_mib(free)} free; TMPDIR=FOLDER names another folder")


def _mib(size: int) -> str:
    return f"{-(-size >> 20):,} MiB"


def _copy(file: _Copied, target: str) -> None:
    with open(target, "wb") as copy:
        copy.truncate(file.size)
        for position, end in file.data:
            copy.seek(position)
            while part := os.pread(file.fd, max(min(_PIECE, end - copy.tell()), 0), copy.tell()):
                copy.write(part)


def _check_records(path: str, copy: str, copied: _Copied, damage: list[str],
                   is_manifest: bool) -> None:
    """Check the frame of every record in the copy of a MANIFEST or a write-ahead log.

    A record of a type that a broker never writes would make the library read forever. A record that
    is too large would take all memory. The copy of a log is truncated at such a record; in a
    MANIFEST, the record raises FormatError.

    If a MANIFEST ends within a record, this is added to ``damage``, because the library loses that
    record without reporting it.
    """
    start = length = 0  # of the record whose parts are being read
    with open(copy, "r+b") as file:
        for position in _blocks(copied):
            file.seek(position)
            block = file.read(_BLOCK)
            place = 0
            while place + _RECORD.size <= len(block):
                crc, part, kind = _RECORD.unpack_from(block, place)
                if not (crc or part or kind):
                    place = len(block)  # preallocated, or the rest of a block
                    break
                if kind in _BEGINS:
                    start, length = position + place, 0
                length += part
                at, odd = position + place, ""
                if kind not in _WHOLE_OR_PART:
                    odd = f"unknown RocksDB record type {kind}"
                elif length > MAX_RECORD:
                    at, odd = start, (f"a record of more than {MAX_RECORD >> 20} MiB, which no "
                                      "broker writes")
                if odd:
                    error = FormatError(odd, file=path, offset=at)
                    if is_manifest:
                        raise error
                    damage.append(f"{error}; the log is read up to there")
                    file.truncate(at)
                    return
                place += _RECORD.size + part
            torn = place > len(block) or (place < len(block) < _BLOCK)
            if torn and is_manifest:
                damage.append(str(FormatError(
                    "ends in the middle of a record: the last changes to the list of tables are "
                    "lost", file=path,
                    offset=position + min(place, len(block)))))


def _blocks(file: _Copied) -> Iterator[int]:
    """Yield the starts of the blocks that contain data; all other blocks are zero."""
    behind = 0
    for start, end in file.data:
        for position in range(max(start // _BLOCK * _BLOCK, behind), end, _BLOCK):
            yield position
            behind = position + _BLOCK
