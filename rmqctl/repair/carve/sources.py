"""Open the inputs of carving: regular files, block devices, and all files below a folder.

A range that the device cannot read reads as zeros and is reported; the rest is read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import partial

from rmqctl.errors import StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource, Witness, open_bytes
from rmqctl.store.log.witness import StoreWitness
from rmqctl.store.store import Sizes, Store

SECTOR = 4096
"""Number of bytes that are skipped at once around an unreadable position."""
_INDEX = "index"
_LOG_NAME = re.compile(r"[0-9]{20}")
_STORE_MARKS = ("consumequeue", "batchconsumequeue", "index", "config", "checkpoint", "abort")
"""Names of files and folders next to a log's folder. One of these is enough to recognise a
store.
"""
_MAX_OFFSET = (1 << 63) - 1
_UNREADABLE = {errno.EIO} | {getattr(errno, name) for name in (
    "EUCLEAN", "EBADMSG", "ENODATA", "EREMOTEIO", "EILSEQ") if hasattr(errno, name)}
"""Error numbers that indicate that a device cannot read a range."""


@dataclass(frozen=True, slots=True)
class Input:
    """One file or device.

    ``size``: size in bytes.
    ``base``: the physical offset in the file's name; None if the file is not named like a log file.
    ``witness``: the entries of the store that contains the file.
    """

    path: str
    size: int
    base: int | None = None
    witness: Witness | None = field(default=None, compare=False, repr=False)


class CarveSource(FileSource):
    """A source that returns zeros for unreadable ranges of a device.

    ``unreadable`` is called with (position, length) each time an unreadable range is read.
    """

    def __init__(self, path: str, unreadable: Callable[[int, int], None]) -> None:
        # Not FileSource's own opening: it takes regular files only.
        self.name, self.base, self._limit, self.witness = path, 0, None, None
        self._unreadable = unreadable
        self._fd, self.size = open_bytes(path)
        self._holes = hasattr(os, "SEEK_DATA")

    def read(self, position: int, length: int) -> bytes:
        buffer = bytearray(max(0, min(length, self.size - position)))
        return bytes(buffer[:self.read_into(memoryview(buffer), position)])

    def read_into(self, buffer: memoryview, position: int) -> int:
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._fd, [buffer[done:]], position + done)
            except OSError as error:
                if error.errno not in _UNREADABLE:
                    raise self._failed(error, position + done) from None
                count = self._by_sector(buffer[done:], position + done)
            if not count:
                break
            done += count
        return done

    def _by_sector(self, buffer: memoryview, position: int) -> int:
        """Read up to the end of the next sector; if that also fails, return zeros and report the
        range.
        """
        length = min(len(buffer), SECTOR - position % SECTOR, max(0, self.size - position))
        try:
            return os.preadv(self._fd, [buffer[:length]], position)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise self._failed(error, position) from None
        buffer[:length] = bytes(length)
        self._unreadable(position, length)
        return length


def inputs(paths: Iterable[str], skip: Callable[[str, str], None]) -> Iterator[Input]:
    """Yield the files in ``paths``. For a folder, yield all files below it, in the order of their
    paths.

    Entries below a folder that cannot be carved (links, pipes, sockets, unreadable files) are
    passed to ``skip`` with the reason. Raises: StoreIOError if a path that the user named does not
    exist.
    """
    inodes: set[tuple[int, int]] = set()
    for path in paths:
        try:
            about = os.stat(path)
        except OSError as error:
            raise StoreIOError.from_oserror(error, path, "open") from None
        except ValueError as error:
            raise StoreIOError(f"cannot open {path!r}: {error}") from None
        if stat.S_ISDIR(about.st_mode):
            yield from _below(path, inodes, skip)
        else:
            fd, size = open_bytes(path)
            os.close(fd)
            identity = about.st_dev, about.st_ino
            if identity not in inodes:
                inodes.add(identity)
                yield _input(path, size)


def _below(folder: str, inodes: set[tuple[int, int]],
           skip: Callable[[str, str], None]) -> Iterator[Input]:
    def failed(error: OSError) -> None:
        skip(os.fsdecode(error.filename), str(StoreIOError.from_oserror(error)))

    for below, folders, names in os.walk(folder, onerror=failed):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(below, name)
            try:
                about = os.lstat(path)
            except OSError as error:
                skip(path, str(StoreIOError.from_oserror(error)))
                continue
            if not stat.S_ISREG(about.st_mode):
                skip(path, "not a regular file")
            elif (about.st_dev, about.st_ino) not in inodes:
                # Each file is read once, however many names or paths lead to it.
                inodes.add((about.st_dev, about.st_ino))
                yield _input(path, about.st_size)


def _input(path: str, size: int) -> Input:
    name = os.path.basename(path)
    base = int(name) if _LOG_NAME.fullmatch(name) else None
    folder = os.path.dirname(os.path.abspath(path))
    if base is None or base + size > _MAX_OFFSET or (
            os.path.basename(folder) == _INDEX):  # DLedger's, with such names, is no log
        return Input(path, size)
    root = os.path.dirname(folder)
    is_store = any(os.path.lexists(os.path.join(root, name)) for name in _STORE_MARKS)
    return Input(path, size, base, StoreWitness(partial(Store, root, [folder], Sizes()))
                 if is_store else None)
