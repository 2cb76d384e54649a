"""The files of a commitlog that is opened for appending, in all folders of the log (spec:
commitlog.md §1-§2, recovery.md §7).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence

from rmqctl.broker.settings import Settings
from rmqctl.engine.log.log_file import BufferPool, ChannelFile, LogFile, MappedFile, PooledFile
from rmqctl.errors import InternalError, RefusedError, RmqctlError
from rmqctl.files.disk_usage import full_folders
from rmqctl.files.durable import (
    Part,
    failed,
    lay_out,
    make_folders,
    new_file,
    open_file,
    sync_folder,
)
from rmqctl.formats import layout
from rmqctl.formats.local.message import BLANK_SIZE, MAGIC_BLANK, Blank
from rmqctl.formats.local.names import build_offset
from rmqctl.scan import ending
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile

PAGE = 4096
"""A broker's page size in bytes: the unit of its settings named "least pages"."""
FULL_RATIO = 0.85
"""Disk usage above which a folder gets no new file as long as another folder has space."""
_BLANK = layout.reader(Blank)


class LogFiles:
    """The files of a commitlog that is opened for appending.

    One thread appends (`append`, `close_with_blank`, `roll`); other threads may call `commit` and
    `sync`. Nothing on disk is truncated or deleted, except an unused file that was allocated ahead
    (`remove_unused`).

    * ``settings``: these determine the file size and the variant of the files
    * ``end``: physical offset of the next byte
    * ``files``: the existing files; without files, the log starts at ``end``
    """

    def __init__(self, folders: Sequence[str], settings: Settings, end: int,
                 files: Sequence[StoreFile] = ()) -> None:
        size = settings.commitlog_file_size
        # A broker uses its pool only if no put waits for a flush.
        buffers = settings.transient_pool if settings.flush == "async" else 0
        self.folders, self.file_size = list(folders), size
        self.files = sorted(files, key=lambda file: file.base)
        """The files of the log, including those created since it was opened."""
        self.current: LogFile | None = None
        self.syncs = 0
        """Number of times that a file was flushed."""
        self._paths = {file.base: file.path for file in self.files}
        if len(self._paths) < len(self.files):
            raise RefusedError("two commitlog files have the same name: recover the store first")
        self._end = end
        self._closed = False
        self._waiting: deque[LogFile] = deque()
        """Full files that are not completely on disk yet, oldest first."""
        self._lock = threading.Lock()
        self._syncing = threading.Lock()
        self._pool = BufferPool(buffers, size) if buffers else None
        self._maker = Maker(size, mapped=settings.mapped, warm=settings.warm, pool=self._pool)
        self._allocator = FileAllocator(self._make) if settings.preallocate else None
        self._open()

    def _open(self) -> None:
        for file in self.files:
            if file.base <= self._end < file.base + self.file_size:
                self.current = self._maker.open(file.path, file.base, self._end - file.base)
                return
        lasts = (file.base + self.file_size for file in self.files)
        if self._end % self.file_size or (self.files and self._end not in lasts):
            raise RefusedError(f"cannot append at physical offset {self._end}: no log file "
                               "contains or ends at it")

    # -- appending ----------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The physical offset of the next byte."""
        file = self.current
        return self._end if file is None else file.base + file.wrote

    def room(self) -> int:
        """Return the number of bytes left in the current file; the file size if no file is open."""
        file = self.current
        return self.file_size if file is None else file.size - file.wrote

    def append(self, parts: Sequence[Part]) -> None:
        """Append the parts at `position`; create a file first if none is open yet.

        The parts must fit into `room`. After a StoreIOError, nothing was appended.
        """
        (self.current or self._next()).append(parts)

    def close_with_blank(self) -> None:
        """End the current file with the END_OF_FILE record; the bytes after that record do not
        change.
        """
        file = self.current or self._next()
        room = file.size - file.wrote
        if room < BLANK_SIZE:
            raise InternalError(f"{file.path}: no space for an end-of-file record")
        file.append([_BLANK.pack(room, MAGIC_BLANK)])
        file.declare_full()

    def start_at(self, physical: int) -> None:
        """Set the start of the first file of an empty log. Raises: RefusedError, InternalError."""
        if self.files or self.current is not None:
            raise InternalError(f"the log continues at {self.position}, not at {physical}")
        if physical % self.file_size or physical < 0:
            raise RefusedError(f"a file of {self.file_size} bytes cannot start at {physical}")
        self._end = physical

    def roll(self) -> None:
        """Continue in the next file; the current one must be full.

        After an error, nothing has changed, and the call can be repeated.
        Raises: StoreIOError if the file cannot be created; RefusedError if a file with data already
        has the name of the next file.
        """
        if self.current is not None and not self.current.full:
            raise InternalError(f"{self.current.path}: the log rolls before the file is full")
        self._next()

    def _next(self) -> LogFile:
        if self._closed:
            raise InternalError("the log is closed")
        base = self.position
        self._free_buffer()
        if self._allocator is None:
            new = self._make(base)
        else:
            new = self._allocator.take(base)
            # Only now: if this file could not be created, the next one would follow a hole.
            self._allocator.ask(base + self.file_size)
        with self._lock:
            if self.current is not None:
                self._waiting.append(self.current)
            self.current = new
        if base not in self._paths:
            self.files.append(StoreFile(new.path, os.path.basename(new.path), base,
                                        self.file_size))
        return new

    def _make(self, base: int) -> LogFile:
        path = self._paths.get(base)
        if path is None:
            full = full_folders(self.folders, FULL_RATIO) if len(self.folders) > 1 else ()
            path = os.path.join(place(self.folders, base, self.file_size, full),
                                build_offset(base))
        return self._maker.next(path, base)

    def _free_buffer(self) -> None:
        """Commit full files, oldest first, until the pool has a free buffer."""
        if self._pool is None:
            return
        for file in self._unforced():
            if self._pool.free:
                return
            file.commit()

    # -- commit and sync ----------------------------------------------------------------------

    def _unforced(self) -> list[LogFile]:
        with self._lock:
            return [*self._waiting, self.current] if self.current else list(self._waiting)

    @property
    def synced(self) -> int:
        """The physical offset up to which all appended data is on disk."""
        with self._lock:
            file = self._waiting[0] if self._waiting else self.current
        return self._end if file is None else file.base + file.synced

    def commit(self) -> None:
        """Write the content of the pool's buffers to the files. Raises: StoreIOError."""
        if self._pool is not None:
            for file in self._unforced():
                file.commit()

    def sync(self, least_pages: int = 0) -> int:
        """Flush the files in order; return `synced`.

        The last file is flushed only if it has ``least_pages`` dirty pages (0: always).
        Raises: StoreIOError; after a failure, in every later call (see `LogFile.sync`).
        """
        with self._syncing:
            for file in self._unforced():
                if _due(file, least_pages):
                    file.sync()
                    self.syncs += 1
                self._leave(file)
            return self.synced

    def _leave(self, file: LogFile) -> None:
        """Close a file that is full and flushed, unless it is the current one."""
        with self._lock:
            done = bool(self._waiting) and file is self._waiting[0] and file.synced == file.size
            if done:
                self._waiting.popleft()
        if done:
            file.close()

    def remove_unused(self) -> None:
        """Remove the unused file that was allocated ahead, as a broker does at a clean shutdown.
        After this call, the log can only be closed.
        Raises: StoreIOError.
        """
        if self._allocator is None:
            return
        for file in self._allocator.close():
            file.close()
            _remove_unused(file)

    def close(self) -> None:
        """Commit collected bytes and close every file.

        Nothing is flushed, and no unused file is removed.
        Raises: StoreIOError, after closing all files that can be closed.
        """
        failures: list[RmqctlError] = []
        steps = [self.commit, *(file.close for file in self._unforced())]
        if self._allocator is not None:
            steps += [file.close for file in self._allocator.close()]
        for step in steps:
            try:
                step()
            except RmqctlError as error:
                failures.append(error)
        self._closed = True
        self._end = self.position
        self._waiting.clear()
        self.current = None
        if self._pool is not None:
            self._pool.close()
        if failures:
            raise failures[0]


def _due(file: LogFile, least_pages: int) -> bool:
    """Return whether a broker would flush the file now (spec: recovery.md §11)."""
    wrote, synced = file.wrote, file.synced
    if wrote == synced:
        return False
    if wrote == file.size or not least_pages:
        return True
    return wrote // PAGE - synced // PAGE >= least_pages


def _remove_unused(file: LogFile) -> None:
    """Remove a file that was allocated ahead, after checking again that it is empty."""
    if file.wrote or not is_all_zero(file.path):
        raise InternalError(f"{file.path}: preallocated, but not empty")
    try:
        os.unlink(file.path)
    except OSError as error:
        raise failed(error, file.path, "remove") from None
    sync_folder(os.path.dirname(file.path))


# -- new files ------------------------------------------------------------------------------------

_READ = 1 << 20


def place(folders: Sequence[str], start: int, file_size: int,
          full: Collection[str] = ()) -> str:
    """Return the folder for a new file that starts at physical offset ``start``.

    Folders in ``full`` are used only if all folders are full.
    """
    candidates = sorted(set(folders).difference(full) or set(folders))
    return candidates[start // file_size % len(candidates)]


def is_all_zero(path: str) -> bool:
    """Return whether a file contains only zeros, without reading holes. Raises: StoreIOError."""
    with FileSource(path) as source:
        position = source.next_data(0)
        while position < source.size:
            data = source.read(position, _READ)
            if data.count(0) != len(data):
                return False
            position = source.next_data(position + _READ)
    return True


class Maker:
    """Creates and opens log files of one length and one variant.

    With a ``pool``, appended bytes go to the pool's buffers, and ``mapped`` has no effect, as in a
    broker.
    """

    def __init__(self, file_size: int, *, mapped: bool = False, warm: bool = False,
                 pool: BufferPool | None = None) -> None:
        self.file_size, self.warm, self.pool = file_size, warm, pool
        self.mapped = mapped and pool is None

    def open(self, path: str, base: int, position: int) -> LogFile:
        """Open an existing file for appending at ``position``.
        Raises: RefusedError if its length differs from the length of the log's files; StoreIOError.
        """
        fd = open_file(path, os.O_RDWR)
        try:
            size = os.fstat(fd).st_size
            if size != self.file_size:
                raise RefusedError(f"{path}: has {size} bytes, not {self.file_size}: recover the "
                                   "store first")
            # A mapping needs reserved space: a hole on a full disk would raise SIGBUS.
            self._lay_out(fd, path)
            return self._wrap(fd, path, base, position)
        except BaseException:
            os.close(fd)
            raise

    def next(self, path: str, base: int) -> LogFile:
        """Return the next file: one that was allocated earlier and is empty, or a new one.

        Raises: RefusedError if a file with data has the same name; StoreIOError.
        """
        fd = self._create(path) if not os.path.lexists(path) else self._take(path)
        try:
            return self._wrap(fd, path, base, 0, fresh=True)
        except BaseException:
            os.close(fd)
            raise

    def _take(self, path: str) -> int:
        """Open a file that was allocated earlier.

        The file is extended if it is too short because the process that created it was killed.
        """
        if not is_all_zero(path):
            raise RefusedError(f"{path}: contains data beyond the end of the log: recover the "
                               "store first")
        fd = open_file(path, os.O_RDWR)
        try:
            if os.fstat(fd).st_size > self.file_size:
                raise RefusedError(f"{path}: has more than {self.file_size} bytes")
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
    """A thread that creates files, which are requested by base offset. It starts at the first
    request.
    """

    def __init__(self, make: Callable[[int], LogFile]) -> None:
        self._make = make
        self._change = threading.Condition()
        self._wanted: list[int] = []
        self._created: dict[int, LogFile | RmqctlError] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False
        ending.note(self)

    def ask(self, base: int) -> None:
        """Request the file that starts at ``base``, without waiting."""
        with self._change:
            if self._stopping:
                raise InternalError("a file of a closed log was requested")
            if base in self._created or base in self._wanted:
                return
            self._wanted.append(base)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log-ahead", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def take(self, base: int) -> LogFile:
        """Wait for the file that starts at ``base`` and return it.

        If the creation already failed in the background, try again: the disk may have space now.
        Raises: the error with which the creation failed.
        """
        with self._change:
            if isinstance(self._created.get(base), RmqctlError):
                del self._created[base]
        self.ask(base)
        with self._change:
            self._change.wait_for(lambda: base in self._created)
            file = self._created.pop(base)
        if isinstance(file, RmqctlError):
            raise file
        return file

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._wanted or self._stopping)
                if self._stopping:
                    return
                base = self._wanted[0]
            outcome: LogFile | RmqctlError
            try:
                outcome = self._make(base)
            except RmqctlError as error:
                outcome = error
            except Exception as error:  # noqa: BLE001  # a waiting caller must get an answer
                outcome = InternalError(f"cannot create the log file at {base}: {error!r}")
            with self._change:
                self._wanted.remove(base)
                self._created[base] = outcome
                self._change.notify_all()

    def end(self) -> None:
        """End the thread."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> list[LogFile]:
        """End the thread and return the created files that `take` has not returned."""
        self.end()
        left = [outcome for outcome in self._created.values() if isinstance(outcome, LogFile)]
        self._created.clear()
        return left
