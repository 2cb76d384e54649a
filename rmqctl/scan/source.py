"""Sources of bytes: positioned reads of regular files that are opened read-only.

Reads use ``pread``, not a mapping. If a file shrinks during a read, ``pread`` returns fewer bytes
or an error, but a mapping would kill the process with SIGBUS. Only functions of the compiled kernel
that handle SIGBUS access a mapping: for many small records, or for a pass that uses each byte once,
this is much faster.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from mmap import ACCESS_READ, ALLOCATIONGRANULARITY, MADV_DONTNEED, PAGESIZE, mmap
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from rmqctl import vfs
from rmqctl.errors import StoreIOError
from rmqctl.kernel import active
from rmqctl.scan import stopping

QueueEnds = dict[tuple[bytes, int], tuple[int, int] | None]
"""The first and the last queue offset of messages, by topic and queue id; None for a queue whose
offsets are not consecutive.
"""



class Past(NamedTuple):
    """State at the end of the previous file.

    ``ends``: the ends of its queues.
    ``lost``: number of messages that may be lost after these ends.
    ``stored``: store time of the last message (ms).
    """

    ends: QueueEnds
    lost: int
    stored: int


if TYPE_CHECKING:  # small files are read by commands that need no numpy
    from collections.abc import Sequence

    import numpy as np

    from rmqctl.formats.local.message import Record

    Array = np.ndarray[Any, np.dtype[Any]]

_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


BESIDES_BODY = 64 << 10
"""Upper limit for the size in bytes of all fields of a record except the body."""
LARGEST_RECORD = (4 << 20) + BESIDES_BODY
"""Maximum record size if a broker's ``maxMessageSize`` (4 MiB) was never changed."""


_NONZERO = 64
"""Number of bytes read at a position before the system is asked for holes. If one of these bytes is
nonzero, the search is over.
"""


class Witness(Protocol):
    """Independent knowledge of the offsets of a log's records, not influenced by message bodies."""

    @property
    def largest_record(self) -> int:
        """The maximum size of a record in the log, as far as is known."""
        ...

    def rows(self, start: int, end: int) -> tuple[Array, Array]:
        """Return (physical offset, size) of the consume queue entries that point into ``[start,
        end)`` (physical offsets), ascending (int64).
        """
        ...

    def keys(self, start: int, end: int) -> tuple[Array, Array]:
        """Return (physical offset, key hash) of the index entries that point into the range,
        ascending (int64).
        """
        ...

    def confirms(self, record: Record) -> bool | None:
        """Return whether the consume queue entry at a record's queue offset points to the record;
        None if no entry exists at this offset.
        """
        ...

    def confirms_all(self, topic: str, queue_id: int, offsets: Array, places: Array,
                     sizes: Array) -> Array:
        """Return a boolean array: the result of `confirms` for many records of one queue, given
        their queue offsets, physical offsets and sizes. False may also mean unknown; then call
        `confirms`.
        """
        ...

    def entry_of(self, record: Record) -> tuple[int, int] | None:
        """Return (physical offset, size) from the consume queue entry at a record's queue offset;
        None if no entry exists at this offset.
        """
        ...

    def record_at(self, physical: int, size: int) -> Record | None:
        """Return the record of this size whose physicalOffset is ``physical`` and matches its
        position; None if no such record exists.
        """
        ...

    def goes_on(self, physical: int) -> bool:
        """Return whether a log file begins at the offset, and begins with a record."""
        ...

    def offsets_before(self, physical: int) -> Past | None:
        """Return the state of the messages before the file that begins at the offset; None if
        unknown.
        """
        ...

    def offsets_behind(self, physical: int) -> QueueEnds | None:
        """Return the queue offsets of the first messages of the file that begins at the offset;
        None if unknown.
        """
        ...


class Source(Protocol):
    """Bytes ``[0, size)`` whose first byte has the physical offset ``base``.

    ``witness``: independent evidence about the log that contains these bytes; None if the bytes
    belong to no known log. ``head``: size of the DLedger entry header before each record; 0 in a
    plain log.
    """

    name: str
    base: int
    size: int
    witness: Witness | None
    head: int

    def read(self, position: int, length: int) -> bytes: ...

    def read_into(self, buffer: memoryview, position: int) -> int: ...

    def next_data(self, position: int) -> int: ...


class Closing:
    """Objects closed at the end of a ``with`` block."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BytesSource:
    """A source over bytes in memory (tests, single records)."""

    def __init__(self, data: bytes, base: int = 0, name: str = "<bytes>", head: int = 0) -> None:
        self.name, self.base, self.size, self._data = name, base, len(data), data
        self.head = head
        self.witness: Witness | None = None

    def read(self, position: int, length: int) -> bytes:
        return self._data[position:position + length]

    def read_into(self, buffer: memoryview, position: int) -> int:
        part = self._data[position:position + len(buffer)]
        buffer[:len(part)] = part
        return len(part)

    def next_data(self, position: int) -> int:
        return position


class AtHand:
    """A source with some of its bytes in memory. A walk has read these bytes; they are not read
    from the file again.
    """

    def __init__(self, source: Source) -> None:
        self.name, self.base, self.head = source.name, source.base, source.head
        self.witness = source.witness
        self.of = source
        self._data = memoryview(b"")
        self._start = self._end = 0

    @property
    def size(self) -> int:
        """The current size, which may shrink while the file is read."""
        return self.of.size

    @size.setter
    def size(self, size: int) -> None:
        self.of.size = size

    def hold(self, buffer: bytearray, position: int, filled: int) -> None:
        """Use the first ``filled`` bytes of a buffer for reads."""
        self._data = memoryview(buffer)
        self._start, self._end = position, position + filled

    def read(self, position: int, length: int) -> bytes:
        end = min(position + length, self.of.size)
        if self._start <= position and end <= self._end:
            return bytes(self._data[position - self._start:max(end, position) - self._start])
        return self.of.read(position, length)

    def read_into(self, buffer: memoryview, position: int) -> int:
        return self.of.read_into(buffer, position)

    def next_data(self, position: int) -> int:
        at = position - self._start
        if 0 <= at < self._end - self._start and any(self._data[at:at + _NONZERO]):
            return position
        return self.of.next_data(position)


def open_any(path: str) -> int:
    """Return a read-only descriptor; opening never blocks on a FIFO or a device.

    Raises: StoreIOError.
    """
    try:
        return os.open(path, _OPEN_FLAGS)
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "open") from None
    except ValueError as error:  # a NUL in the name
        raise StoreIOError(f"cannot open {path!r}: {error}") from None


def open_regular(path: str) -> int:
    """Return a read-only descriptor for a regular file.

    Raises: StoreIOError for anything else, with the reason.
    """
    return _regular(path)[0]


def _regular(path: str) -> tuple[int, int]:
    """Return (read-only descriptor of a regular file, the file's size)."""
    fd = open_any(path)
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        os.close(fd)
        kind = "a directory" if stat.S_ISDIR(about.st_mode) else "not a regular file"
        raise StoreIOError(f"{path}: {kind}")
    return fd, about.st_size


def open_bytes(path: str) -> tuple[int, int]:
    """Return (descriptor, size) of a regular file or block device.

    Raises: StoreIOError for anything else.
    """
    fd = open_any(path)
    try:
        about = os.fstat(fd)
        if stat.S_ISREG(about.st_mode):
            return fd, about.st_size
        if stat.S_ISBLK(about.st_mode):
            return fd, os.lseek(fd, 0, os.SEEK_END)
    except OSError as error:
        os.close(fd)
        raise StoreIOError.from_oserror(error, path, "look at") from None
    os.close(fd)
    raise StoreIOError(f"{path}: not a regular file or block device")


def read_short(path: str, size: int, page: int, length: int) -> bytes | None:
    """Return the first ``length`` bytes of a regular file of ``size`` bytes, if only a hole follows
    its first ``page`` bytes. None: read the file as a `FileSource`.

    For many small files, this takes half the time. Raises: StoreIOError.
    """
    if vfs.reader_of(path) is not None:
        return None
    stopping.check()
    fd = open_any(path)
    try:
        if size > page:
            try:
                if os.lseek(fd, page, os.SEEK_DATA) < size:
                    return None
            except AttributeError:  # this system does not report holes
                return None
            except OSError as error:
                if error.errno != errno.ENXIO:
                    return None
        return os.pread(fd, min(size, length), 0)
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "read at offset 0 of") from None
    finally:
        os.close(fd)


class FileSource(Closing):
    """A regular file, read by position. Use as a context manager or call `close`.

    ``size`` is the size at opening. Bytes from position ``limit`` on read as zeros, because they
    were written after the examined moment. With ``device``, the file may be a block device. The
    source ends at position ``most``, even if the file goes on.
    """

    _fd = -1  # `__del__` calls `close` even if opening failed
    _mapped: mmap | None = None
    _elsewhere: vfs.Elsewhere | None = None
    """Reader for a file at a mounted location (`rmqctl.vfs`), which has no descriptor."""
    head = 0
    zeros_from: int | None = None
    """The position after which all bytes are known to be zero, for example in a hole."""

    def __init__(self, path: str, base: int = 0, limit: int | None = None,
                 witness: Witness | None = None, head: int = 0, *, device: bool = False,
                 most: int | None = None) -> None:
        self.name, self.base, self._limit, self.witness = path, base, limit, witness
        self.head = head
        elsewhere = vfs.reader_of(path)
        if elsewhere is None:
            self._fd, self.size = (open_bytes if device else _regular)(path)
        else:
            self._elsewhere, self.size = elsewhere, elsewhere.size
        if most is not None and most < self.size:
            self.size = most
            self._limit = most if limit is None else min(limit, most)
        self._holes = elsewhere is None and hasattr(os, "SEEK_DATA")

    def read(self, position: int, length: int) -> bytes:
        """Return up to ``length`` bytes at ``position``; fewer only at the end of the file."""
        data = self.read_now(position, length)
        if self._limit is not None and position + len(data) > self._limit:
            inside = max(self._limit - position, 0)
            data = data[:inside] + bytes(len(data) - inside)
        return data

    def gather(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of many (position, length) ranges, read in parallel if that
        is faster.
        """
        if self._elsewhere is None or self._limit is not None:
            return [self.read(*place) for place in places]
        stopping.check()
        return self._elsewhere.gather(places)

    @property
    def sampled_end(self) -> int | None:
        """Return the end of the data, found by sampling; None if the file must be read to find the
        end.
        """
        return None if self._elsewhere is None else self._elsewhere.end()

    def read_now(self, position: int, length: int) -> bytes:
        """Return the current bytes, including those after the limit."""
        stopping.check()
        if self._elsewhere is not None:
            return self._elsewhere.read(position, length)
        parts = []
        while length > 0:
            try:
                part = os.pread(self._fd, min(length, 1 << 30), position)
            except OSError as error:
                raise self._failed(error, position) from None
            if not part:
                break
            parts.append(part)
            position += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill ``buffer`` from ``position``; return the number of bytes read."""
        stopping.check()
        done = 0
        if self._elsewhere is not None:
            data = self._elsewhere.read(position, len(buffer))
            done = len(data)
            buffer[:done] = data
        while self._elsewhere is None and done < len(buffer):
            try:
                got = os.preadv(self._fd, [buffer[done:]], position + done)
            except OSError as error:
                raise self._failed(error, position + done) from None
            if not got:
                break
            done += got
        if self._limit is not None and position + done > self._limit:
            inside = max(self._limit - position, 0)
            buffer[inside:done] = bytes(done - inside)
        return done

    def read_parts(self, buffer: memoryview, start: Array, end: Array, position: Array) -> None:
        """Fill ``buffer[start:end]`` from ``position`` for each part (int64 arrays). Bytes after
        the end of the file or the limit of this source are zeros.

        Raises: StoreIOError.
        """
        stopping.check()
        limit = self.size if self._limit is None else self._limit
        kernel = active()
        at = 0
        if self._elsewhere is not None:
            for first, last, at in zip(start.tolist(), end.tolist(), position.tolist(),
                                       strict=True):
                data = self._elsewhere.read(at, max(min(last - first, limit - at), 0))
                buffer[first:last] = data + bytes(last - first - len(data))
            return
        try:
            if kernel is not None:
                kernel.read_parts(self._fd, buffer, start, end, position, limit)
                return
            for first, last, at in zip(start.tolist(), end.tolist(), position.tolist(),
                                       strict=True):
                inside = max(min(last, first + limit - at), first)
                got = os.preadv(self._fd, [buffer[first:inside]], at)
                buffer[first + got:last] = bytes(last - first - got)
        except OSError as error:
            raise self._failed(error, at) from None

    def read_records(self, buffer: memoryview, place: Array, size: Array, end: int | None,
                     mapped: bool = True) -> bool:
        """Fill ``buffer`` with the records of these sizes at these physical offsets (int64), back
        to back. ``mapped``: read from a mapping.

        Return True if every record is complete, matches its CRC, and ends at or before physical
        offset ``end``. Return False if the kernel is missing, this source has a limit, or a read
        fails; the caller then reads record by record.
        """
        stopping.check()
        kernel = active()
        if kernel is None or self._limit is not None or self.head or self._elsewhere is not None:
            return False
        if mapped and self._mapped is None:
            with suppress(OSError, ValueError):  # it is empty, has shrunk, or there is no memory
                self._mapped = mmap(self._fd, self.size, access=ACCESS_READ)
        last = self.base + self.size
        is_complete: bool = kernel.read_records(
            self._fd, b"" if not mapped or self._mapped is None else self._mapped, buffer, place,
            size, self.base, last if end is None else min(last, end))
        return is_complete

    def window(self, position: int, length: int) -> memoryview | None:
        """Return a mapping of ``length`` bytes from ``position`` on; None if the bytes must be read
        instead. Only functions of the kernel that handle SIGBUS may access a mapping.
        """
        stopping.check()
        end = position + length
        if self._elsewhere is not None or length <= 0 or end > (
                self.size if self._limit is None else min(self.size, self._limit)):
            return None
        before = position % ALLOCATIONGRANULARITY
        try:
            return memoryview(mmap(self._fd, before + length, access=ACCESS_READ,
                                   offset=position - before))[before:]
        except (OSError, ValueError):  # it has shrunk, or the file system has no mappings
            return None

    @property
    def has_shrunk(self) -> bool:
        """Return whether the file is shorter now than when it was opened."""
        return self._elsewhere is None and os.fstat(self._fd).st_size < self.size

    def let_go(self, start: int, end: int) -> None:
        """Release from this process's memory the pages of ``[start, end)`` that `read_records` has
        touched.
        """
        start = max(start, 0) // PAGESIZE * PAGESIZE
        end = min(end, self.size)
        if self._mapped is not None and start < end:
            self._mapped.madvise(MADV_DONTNEED, start, end - start)

    def copy_to(self, fd: int, position: int, length: int) -> int:
        """Copy bytes to the same position of another file within the kernel. Return the number of
        copied bytes. It is 0 if the system does not support such copies, or if a byte is beyond the
        limit.
        """
        if self._elsewhere is not None or (
                self._limit is not None and position + length > self._limit):
            return 0
        try:
            return os.copy_file_range(self._fd, fd, length, position, position)
        except (AttributeError, OSError):
            return 0

    def _failed(self, error: OSError, position: int) -> StoreIOError:
        return StoreIOError.from_oserror(error, self.name, f"read at offset {position} of")

    def next_data(self, position: int) -> int:
        """Return the first position at or after ``position`` that may contain a nonzero byte (holes
        are skipped).
        """
        if self._limit is not None and position >= self._limit:
            return self.size
        if self.zeros_from is not None and position >= self.zeros_from:
            return self.size
        if self._elsewhere is not None:
            return min(self._elsewhere.next_data(position), self.size)
        if not self._holes or position >= self.size:
            return min(position, self.size)
        try:
            return min(os.lseek(self._fd, position, os.SEEK_DATA), self.size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return self.size
            self._holes = False
            return position

    def next_hole(self, position: int) -> int:
        """Return the first position at or after ``position`` where a hole begins. Return the end of
        the file if no hole follows, or if the system does not report holes.
        """
        if not self._holes or position >= self.size:
            return self.size
        try:
            return min(os.lseek(self._fd, position, os.SEEK_HOLE), self.size)
        except OSError:
            return self.size

    def close(self) -> None:
        # Never close it twice: the number may already belong to another file.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            if self._mapped is not None:
                self._mapped.close()

    def __del__(self) -> None:
        self.close()
