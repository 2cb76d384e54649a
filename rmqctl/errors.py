"""Exceptions with their exit codes.

Any module may raise them; only ``cli.main`` turns them into a line on stderr and an exit code. The
text of an exception is for the user: one line, in plain words, with the name of the file. Every
module imports this module, so it imports no large module.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from typing import ClassVar

__all__ = [
    "CopyLimitError",
    "ExitCode",
    "FormatError",
    "InternalError",
    "JobError",
    "MissingExtraError",
    "NotAStoreError",
    "OtherCommandError",
    "RefusedError",
    "RmqctlError",
    "StoreHeldError",
    "StoreIOError",
    "UnsupportedError",
    "UsageError",
    "errno_words",
    "interruption",
    "noting_refusals",
    "require",
]


class ExitCode(IntEnum):
    """The exit codes of rmqctl. The meaning of a number never changes, as scripts rely on it."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    NOT_A_STORE = 3
    HELD = 4
    IO = 5
    FAILED = 6
    INTERNAL = 70
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    TERMINATED = 143

    @property
    def meaning(self) -> str:
        """Return the meaning of the code, as in the reference."""
        return _MEANINGS[self]


_MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done; no problems found",
    ExitCode.FINDINGS: (
        "done; findings: damage (`verify`), differences (`diff`), no match (`query`), predicted "
        "data loss (`preflight`)"
    ),
    ExitCode.USAGE: "usage error: invalid option or argument",
    ExitCode.NOT_A_STORE: (
        "not a store, a file of unknown kind, or an unsupported version or layout"),
    ExitCode.HELD: "refused: another process holds the store",
    ExitCode.IO: "I/O error, no space left, out of memory, permission denied",
    ExitCode.FAILED: "failed for another reason, which is printed",
    ExitCode.INTERNAL: "internal error of rmqctl: please report it",
    ExitCode.INTERRUPTED: "interrupted (SIGINT, Ctrl-C) at a safe point",
    ExitCode.PIPE_CLOSED: "the reader of stdout, such as `head`, exited; no message is printed",
    ExitCode.TERMINATED: "terminated (SIGTERM) at a safe point",
}


class RmqctlError(Exception):
    """Base class of all errors that users see. The text is the reason."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class UsageError(RmqctlError):
    """An invalid option or argument that only the command itself can detect."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class OtherCommandError(UsageError):
    """Another command does what was requested. ``command``: the command line of that command. The
    text of the error gives the reason.
    """

    def __init__(self, reason: str, command: str) -> None:
        super().__init__(reason)
        self.command = command


class NotAStoreError(RmqctlError):
    """The path is not a store directory, or the type of the file is unknown."""

    exit_code: ClassVar[ExitCode] = ExitCode.NOT_A_STORE


class UnsupportedError(RmqctlError):
    """A known file type in a version or variant that rmqctl does not read."""

    exit_code: ClassVar[ExitCode] = ExitCode.NOT_A_STORE


EXTRAS: dict[str, tuple[str, str]] = {
    "pyarrow": ("data", "Arrow"),
    "fastavro": ("data", "Avro"),
    "xlsxwriter": ("data", "Excel"),
    "duckdb": ("data", "SQL"),
    "textual": ("tui", "`rmqctl browse`"),
    "pyspark": ("spark", "Spark"),
    "google.protobuf": ("decode", "Protobuf"),
    "grpc": ("grpc", "serving RocketMQ 5 clients"),
    "uvloop": ("uvloop", "the uvloop event loop"),
    "fsspec": ("url", "a tier or backup at a URL"),
    "jinja2": ("report", "a report"),
    "matplotlib": ("report", "the charts of a report"),
    "rocksdict": ("rocksdb", "a RocksDB database"),
}
"""For each optional package: the extra that installs it, and what requires it."""


class MissingExtraError(RmqctlError):
    """A package of an optional extra (`EXTRAS`) is not installed."""

    exit_code: ClassVar[ExitCode] = ExitCode.NOT_A_STORE

    def __init__(self, package: str) -> None:
        from rmqctl.installation import command_for

        extra, subject = EXTRAS[package]
        super().__init__(f"{subject} requires the Python package {package}, which is not "
                         f"installed: {command_for(extra)}")
        self.package = package

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.package,)


def require(*packages: str) -> None:
    """Raise MissingExtraError if a package of an extra (`EXTRAS`) is missing. Called before work
    begins.
    """
    from importlib.util import find_spec

    for package in packages:
        try:
            spec = find_spec(package)
        except ModuleNotFoundError:  # not even the parent package (google) exists
            spec = None
        if spec is None:
            raise MissingExtraError(package)


class FormatError(RmqctlError):
    """Bytes that do not match their format.

    ``file``: the path as the user named it (None if only a buffer is known).
    ``offset``: the position in that file in bytes.
    ``path``: the path of the field in the layout ("header.magic").
    ``reason``: a sentence without a full stop.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.NOT_A_STORE

    def __init__(
        self,
        reason: str,
        *,
        file: str | os.PathLike[str] | None = None,
        offset: int | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.file = None if file is None else os.fspath(file)
        self.offset = offset
        self.path = path

    def __str__(self) -> str:
        """Return a line ``FILE @OFFSET field PATH: reason``, without the parts that are unknown."""
        where = []
        if self.file is not None:
            where.append(self.file)
        if self.offset is not None:
            where.append(f"@{self.offset}")
        if self.path:
            where.append(f"field {self.path}")
        return f"{' '.join(where)}: {self.reason}" if where else self.reason

    def __reduce__(self) -> tuple[object, ...]:
        # Worker processes hand it back pickled; the default would lose the keyword arguments.
        return _rebuild_format_error, (type(self), self.reason, self.file, self.offset, self.path)


def _rebuild_format_error(
    cls: type[FormatError], reason: str, file: str | None, offset: int | None, path: str | None
) -> FormatError:
    return cls(reason, file=file, offset=offset, path=path)


class StoreHeldError(RmqctlError):
    """Another process holds the store's lock."""

    exit_code: ClassVar[ExitCode] = ExitCode.HELD


class StoreIOError(RmqctlError):
    """The operating system failed, or refused, to read or write a path."""

    exit_code: ClassVar[ExitCode] = ExitCode.IO
    errno: int | None = None
    """The error number of the operating system; None if the error has another cause."""

    @classmethod
    def from_oserror(
        cls, exc: OSError, path: str | os.PathLike[str] | None = None, doing: str | None = None
    ) -> StoreIOError:
        """Return an error with the path and the reason in plain words.

        ``path`` replaces the name in ``exc``; ``doing`` is a verb phrase ("read", "list").
        """
        named = path if path is not None else exc.filename
        # A descriptor number or None means nothing to a user; bytes names occur with os.fsencode.
        if isinstance(named, bytes | str | os.PathLike):
            where = os.fsdecode(named)
            if exc.filename2 is not None and path is None:
                where = f"{where} -> {os.fsdecode(exc.filename2)}"
        else:
            where = ""
        words = errno_words(exc)
        failure = f"cannot {doing} {where}".rstrip() if doing else where
        text = f"{failure}: {words}" if failure else words
        noted = _refused.get()
        if noted is not None and exc.errno not in (errno.ENOENT, errno.ENOTDIR):
            noted.append(text)
        refused = cls(text)
        refused.errno = exc.errno
        return refused


_refused: ContextVar[list[str] | None] = ContextVar("refused", default=None)


class CopyLimitError(StoreIOError):
    """A database cannot be read because the copies of its logs would be too large. The database
    itself is not damaged.
    """


@contextmanager
def noting_refusals() -> Iterator[list[str]]:
    """Collect the errors of the operating system during the block, even if code in the block
    handles them. Missing files are not included.

    Code that must not act on incomplete data uses this, because a file that is temporarily
    unreadable looks like a damaged file.
    """
    refusals: list[str] = []
    token = _refused.set(refusals)
    try:
        yield refusals
    finally:
        _refused.reset(token)


class JobError(RmqctlError):
    """A failure of the workers that process a store, such as a killed worker or a failed cluster.

    It is not a StoreIOError, because it says nothing about the store and must not become a finding.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.IO


class RefusedError(RmqctlError):
    """rmqctl refuses to do something, for a reason (for example, to append a message that the store
    rejects).
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class InternalError(RmqctlError):
    """An impossible state: a defect in rmqctl itself."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL


_ERRNO_WORDS: dict[int, str] = {
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
    errno.ENOENT: "no such file or directory",
    errno.ENOTDIR: "a part of the path is not a directory",
    errno.EISDIR: "is a directory, not a file",
    errno.EEXIST: "already exists",
    errno.ENOTEMPTY: "the directory is not empty",
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "disk quota exceeded",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "input/output error: the device could not read or write the data",
    errno.EFBIG: "the file would exceed the size limit",
    errno.EMFILE: "too many files are open in this process (see `ulimit -n`)",
    errno.ENFILE: "too many files are open on this system",
    errno.ENOMEM: "out of memory",
    errno.ELOOP: "too many symbolic links, or a loop of them",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ESTALE: "stale handle: the file server deleted or moved the file",
    errno.ENXIO: "no such device, or a pipe that nobody writes to",
    errno.ENODEV: "this kind of file does not support the operation",
    errno.EBADF: "not open",
    errno.EXDEV: "is on another file system",
    errno.EBUSY: "is in use",
    errno.ETIMEDOUT: "timed out",
}


def interruption(error: BaseException) -> BaseException | None:
    """Return the exception for a signal (Ctrl-C, SIGTERM) that a library replaced with another
    error; None if there was no signal.
    """
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if not isinstance(cause, Exception):
            return cause
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return None


def errno_words(exc: OSError) -> str:
    """Return the reason for ``exc`` in plain words, followed by the symbol of its error number, if
    it has one.
    """
    if exc.errno is None:
        return str(exc) or type(exc).__name__
    words = _ERRNO_WORDS.get(exc.errno) or (exc.strerror or os.strerror(exc.errno)).lower()
    symbol = errno.errorcode.get(exc.errno)
    return f"{words} ({symbol})" if symbol else words
