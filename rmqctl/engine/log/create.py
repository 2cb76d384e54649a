"""Making and opening the files of a commitlog: where they go and how they come to be
(spec: commitlog.md §1), the next one in the background before it is needed (recovery.md §7).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence

from rmqctl.engine.log.log_file import BufferPool, ChannelFile, LogFile, MappedFile, PooledFile
from rmqctl.errors import InternalError, RefusedError, RmqctlError
from rmqctl.files.durable import lay_out, make_folders, new_file, open_file
from rmqctl.scan.source import FileSource

_READ = 1 << 20


def place(folders: Sequence[str], start: int, file_size: int, *,
          read_only: Collection[str] = (), full: Collection[str] = ()) -> str:
    """The folder in which the file that starts at physical offset ``start`` is made.

    Folders that are ``full`` are passed over unless all are. RefusedError when every folder is
    ``read_only``.
    """
    writable = {one for one in folders if one not in read_only}
    candidates = sorted(writable.difference(full) or writable)
    if not candidates:
        raise RefusedError("every commitlog folder is read-only: nowhere to make a file")
    return candidates[start // file_size % len(candidates)]


def is_all_zero(path: str) -> bool:
    """Whether a file holds nothing but zeros; holes are not read. StoreIOError."""
    with FileSource(path) as source:
        at = source.next_data(0)
        while at < source.size:
            data = source.read(at, _READ)
            if data.count(0) != len(data):
                return False
            at = source.next_data(at + _READ)
    return True


class Maker:
    """Makes and opens log files of one length for one way of writing them.

    With a ``pool`` appends go to its buffers and ``mapped`` does not matter, as in a broker.
    """

    def __init__(self, file_size: int, *, mapped: bool = False, warm: bool = False,
                 pool: BufferPool | None = None) -> None:
        self.file_size, self.warm, self.pool = file_size, warm, pool
        self.mapped = mapped and pool is None

    def open(self, path: str, base: int, position: int) -> LogFile:
        """An existing file, to be appended to at ``position``.

        RefusedError when its length is not that of the log's files, StoreIOError.
        """
        fd = open_file(path, os.O_RDWR)
        try:
            size = os.fstat(fd).st_size
            if size != self.file_size:
                raise RefusedError(f"{path}: is {size} bytes long, not {self.file_size}: the "
                                   "store needs to be recovered first")
            # For a mapping the space itself: a hole of a full disk would be a SIGBUS.
            self._lay_out(fd, path)
            return self._wrap(fd, path, base, position)
        except BaseException:
            os.close(fd)
            raise

    def next(self, path: str, base: int) -> LogFile:
        """The file to go on with: one laid out earlier that holds nothing, or a new one.

        RefusedError when a file with anything in it has the name, StoreIOError.
        """
        fd = self._create(path) if not os.path.lexists(path) else self._take(path)
        try:
            return self._wrap(fd, path, base, 0, fresh=True)
        except BaseException:
            os.close(fd)
            raise

    def _take(self, path: str) -> int:
        """A file laid out earlier. Where it is too short, somebody was killed making it."""
        if not is_all_zero(path):
            raise RefusedError(f"{path}: holds data beyond the end of the log: the store needs "
                               "to be recovered first")
        fd = open_file(path, os.O_RDWR)
        try:
            if os.fstat(fd).st_size > self.file_size:
                raise RefusedError(f"{path}: is longer than {self.file_size} bytes")
            self._lay_out(fd, path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _wrap(self, fd: int, path: str, base: int, position: int, *,
              fresh: bool = False) -> LogFile:
        size = self.file_size
        if self.mapped:
            return MappedFile(fd, path, base, size, position, fresh=fresh, warm=self.warm)
        if self.pool is not None:
            return PooledFile(fd, path, base, size, position, fresh=fresh, pool=self.pool)
        return ChannelFile(fd, path, base, size, position, fresh=fresh)

    def _create(self, path: str) -> int:
        make_folders(os.path.dirname(path))
        return new_file(path, self.file_size, self.mapped)

    def _lay_out(self, fd: int, path: str) -> None:
        lay_out(fd, path, self.file_size, self.mapped)


class FileAllocator:
    """One thread that makes files by their base offsets. It starts with the first request."""

    def __init__(self, make: Callable[[int], LogFile]) -> None:
        self._make = make
        self._change = threading.Condition()
        self._wanted: list[int] = []
        self._made: dict[int, LogFile | RmqctlError] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False

    def ask(self, base: int) -> None:
        """Wants the file that starts at ``base``; does not wait."""
        with self._change:
            if self._stopping:
                raise InternalError("the files of a closed log are asked for")
            if base in self._made or base in self._wanted:
                return
            self._wanted.append(base)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log-ahead", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def take(self, base: int) -> LogFile:
        """The file that starts at ``base``, waited for. The error that kept it from being made.

        What failed earlier, in the background, is tried once more: the disk may have room now.
        """
        with self._change:
            if isinstance(self._made.get(base), RmqctlError):
                del self._made[base]
        self.ask(base)
        with self._change:
            self._change.wait_for(lambda: base in self._made)
            found = self._made.pop(base)
        if isinstance(found, RmqctlError):
            raise found
        return found

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._wanted or self._stopping)
                if self._stopping:
                    return
                base = self._wanted[0]
            found: LogFile | RmqctlError
            try:
                found = self._make(base)
            except RmqctlError as error:
                found = error
            except Exception as error:  # noqa: BLE001  # whoever waits must get an answer
                found = InternalError(f"the file at {base} could not be made: {error!r}")
            with self._change:
                self._wanted.remove(base)
                self._made[base] = found
                self._change.notify_all()

    def close(self) -> list[LogFile]:
        """Ends the thread; the files nobody took."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()
        left = [one for one in self._made.values() if isinstance(one, LogFile)]
        self._made.clear()
        return left
