"""Failing system calls, and small logs to fail with."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from rmqctl.broker.settings import Settings
from rmqctl.engine.log.log_files import LogFiles
from rmqctl.store.files import listing

CALLS = ("pwrite", "pwritev", "ftruncate", "fsync", "fdatasync", "rename", "mkdir", "open",
         "posix_fallocate", "link", "unlink")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES, errno.EDQUOT)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
FILE_SIZE = 8192


@dataclass
class Faults:
    """What was called, and whether the fault came."""

    calls: list[str] = field(default_factory=list)
    fired: str = ""


@contextmanager
def failing(at: int, error: int, names: tuple[str, ...] = CALLS, *, for_ever: bool = False,
            reading: bool = True) -> Iterator[Faults]:
    """The call number ``at`` (from 1 on; 0: none) of the named functions of ``os`` fails with
    ``error``.

    With ``for_ever`` so do all that come after it: a disk that is full stays full. Without
    ``reading`` opening a file to read it does not count.
    """
    faults = Faults()

    def wrap(name):
        real = getattr(os, name)

        def call(*args, **kwargs):
            if name == "open" and not reading and not args[1] & _WRITING:
                return real(*args, **kwargs)
            faults.calls.append(name)
            count = len(faults.calls)
            if count == at or (for_ever and count > at):
                faults.fired = faults.fired or name
                raise OSError(error, os.strerror(error))
            return real(*args, **kwargs)

        return call

    with mock.patch.multiple(os, **{name: wrap(name) for name in names}):
        yield faults


@contextmanager
def watched() -> Iterator[list[str]]:
    """What is done to which file or folder, in order: ``fsync store``, ``rename a.json.new``."""
    seen: list[str] = []

    def wrap(name):
        real = getattr(os, name)

        def call(what, *args, **kwargs):
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what
            seen.append(f"{name.replace('fdata', 'f')} {os.path.basename(path)}")
            return real(what, *args, **kwargs)

        return call

    names = ("pwrite", "fsync", "fdatasync", "rename", "link", "unlink", "mkdir")
    with mock.patch.multiple(os, **{name: wrap(name) for name in names}):
        yield seen


@contextmanager
def short_writes(limit: int) -> Iterator[list[int]]:
    """No call writes more than ``limit`` bytes; the list of what each wrote."""
    real, seen = os.pwrite, []

    def pwrite(fd, data, offset):
        seen.append(real(fd, memoryview(data)[:limit], offset))
        return seen[-1]

    def pwritev(fd, parts, offset):
        return pwrite(fd, b"".join(parts), offset)

    with mock.patch.multiple(os, pwrite=pwrite, pwritev=pwritev):
        yield seen


def settings(**changed) -> Settings:
    return Settings(**{"commitlog_file_size": FILE_SIZE, **changed})


def open_log(folder: Path, end: int = 0, **changed) -> LogFiles:
    """A log in one folder, with the files that are there."""
    return LogFiles([str(folder)], settings(**changed), end, listing(str(folder)).files)


def put(log: LogFiles, data: bytes) -> int:
    """Appends as a broker does: room for the blank is kept. The physical offset."""
    if len(data) + 8 > log.room():
        if log.room():
            log.close_with_blank()
        log.roll()
    at = log.position
    log.append([data])
    return at


def whole(folder: Path, size: int = FILE_SIZE) -> bytes:
    """The bytes of a log folder; every file of it has its name and its length."""
    file_names = listing(str(folder))
    assert not file_names.troubles
    assert not file_names.folders
    assert [file.size for file in file_names.files] == [size] * len(file_names.files)
    assert [file.base for file in file_names.files] == [n * size
                                                        for n in range(len(file_names.files))]
    return b"".join(Path(file.path).read_bytes() for file in file_names.files)
