"""Checks of the consume queue extension: all units, file by file, and single units by address
(consumequeue.md §8).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.common import unreadable
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats import layout as layouts
from rmqctl.formats.local import consume_queue_ext as layout
from rmqctl.formats.local.consume_queue_ext import HEAD_SIZE, MAX_SIZE, Unit, UnitRecord
from rmqctl.formats.local.names import parse_queue_id
from rmqctl.scan.source import Closing, FileSource
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.store import Store

FOLDER = "consumequeue_ext"
_FIX = "rmqctl recover STORE --only consumequeue"
_PAGE = 1 << 16
_CHUNK = 4 << 20
_MAX_ROWS = 1 << 16
_SIZES = layouts.reader(Unit, "size", "bit_map_size")
_MARK = int.from_bytes(layout.END_MARK, "big", signed=True)


class ExtReader(Closing):
    """Reader of the extension units of one queue, by address.

    The tags code of an entry contains the address. The reader reads a page at a time and caches the
    last page for neighbouring entries.
    """

    def __init__(self, store: Store, topic: str, queue: int) -> None:
        self.files = listing(store.path(FOLDER, topic, str(queue))).files
        self._bases = [file.base for file in self.files]
        self._page: tuple[str, int, int] = ("", 0, 0)
        self._data = b""
        self._source: FileSource | None = None

    def place(self, address: int) -> tuple[str, int] | None:
        """Return the file that contains an address, and the position in this file; None if no file
        contains it.
        """
        if not layout.is_address(address):
            return None
        offset = layout.byte_offset(address)
        number = bisect_right(self._bases, offset) - 1
        if number < 0 or offset >= self.files[number].end:
            return None
        return self.files[number].path, offset - self.files[number].base

    def unit(self, address: int) -> UnitRecord | None:
        """Return the unit at an address; None if no complete unit is at the address.

        ``address``: a tags code with the top bit set.
        """
        place = self.place(address)
        if place is None:
            return None
        path, position = place
        if not (self._page[0] == path and self._page[1] <= position <= self._page[2]):
            try:
                start, last, data = self._read(path, position)
            except StoreIOError:
                return None
            self._page, self._data = (path, start, last), data
        try:
            return layout.decode(self._data, position - self._page[1])
        except FormatError:
            return None

    def _read(self, path: str, position: int) -> tuple[int, int, bytes]:
        """Read a page that starts at this position of a file.

        Return the page's position, the last position at which a unit of any size still fits, and
        the bytes.
        """
        if self._source is None or self._source.name != path:
            self.close()
            self._source = FileSource(path)
        data = self._source.read(position, _PAGE)
        to_end = position + len(data) >= self._source.size
        return position, position + len(data) - (0 if to_end else MAX_SIZE), data

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None


def check(store: Store) -> Iterator[Finding]:
    """Check all extension files: another unit or an end mark must follow every unit.

    After the last unit that the consume queue points to, the last file may contain truncated units
    that later units have only partly overwritten. No broker reads these units, so they are not
    checked.
    """
    top = store.path(FOLDER)
    for topic in listing(top).folders:
        for name in listing(os.path.join(top, topic)).folders:
            if (queue_id := parse_queue_id(name)) is None:
                continue
            end = _addressed(store, topic, queue_id)
            files = listing(os.path.join(top, topic, name)).files
            for number, file in enumerate(files):
                last = not any(file.size for file in files[number + 1:])
                try:
                    yield from _file(file, topic, queue_id, end - file.base if last else None)
                except StoreIOError as error:
                    yield unreadable(FOLDER, file.path, error)


def _addressed(store: Store, topic: str, queue_id: int) -> int:
    """Return 1 more than the offset of the last unit that an entry of the queue points to; 0 if no
    entry points to a unit.
    """
    queue = store.queues.find(topic, queue_id)
    if queue is None:
        return 0
    try:
        first = max(queue.disk_end - _MAX_ROWS, queue.first_index)
        codes = queue.units(first, _MAX_ROWS)["tags_code"]
    except StoreIOError:
        return 0
    finally:
        queue.close()
    codes = codes[codes <= layout.MAX_ADDRESS]
    return layout.byte_offset(int(codes.max())) + 1 if len(codes) else 0


def _file(file: StoreFile, topic: str, queue: int, end: int | None) -> Iterator[Finding]:
    """Check the units of one file before position ``end`` (None: all units, and the end mark is
    required).
    """
    def tell(detail: str, position: int, length: int | None = None) -> Finding:
        return Finding("cq-ext", FOLDER, detail, file=file.path, offset=position, length=length,
                       topic=topic, queue_id=queue, next=_FIX)

    with file.open() as source:
        window = _Window(source)
        position, stop = 0, source.size if end is None else min(end, source.size)
        while position < stop and position + HEAD_SIZE <= source.size:
            size, bits = window.head(position)
            if size == _MARK:
                return
            if size == 0:
                break
            if window.is_unit(position):
                position += size
                continue
            # A broker advances by the size, whatever the bit map is; one of the two is right.
            way = window.way_on(position, size, HEAD_SIZE + bits)
            yield tell(f"unit size {size} does not fit its bit map size {bits}", position,
                       source.size - position if way is None else way)
            if way is None:
                return  # the start of the next unit is unknown
            position += way
        if position >= stop and end is not None:
            return
        if source.read(position, len(layout.END_MARK)) == layout.END_MARK:
            return  # there may be an end mark where no header fits
        follows = _next_used(source, position)
        if follows is not None:
            yield tell("zeros instead of a unit, followed by more units",
                       position, follows - position)
        elif end is None:
            yield tell("no end mark after the last unit, although another file follows", position,
                       source.size - position)
        else:
            yield tell("zeros instead of a unit that consume queue entries point to",
                       position,
                       end - position)


class _Window:
    """Reader of the sizes of units, in large pieces of a file."""

    def __init__(self, source: FileSource) -> None:
        self._source, self._start, self._data = source, 0, b""

    def head(self, position: int) -> tuple[int, int]:
        """Return two sizes in bytes: of the unit at ``position``, and of its bit map.

        Both are 0 beyond the end of the file.
        """
        if not self._start <= position <= self._start + len(self._data) - HEAD_SIZE:
            self._start, self._data = position, self._source.read(position, _CHUNK)
            if len(self._data) < HEAD_SIZE:
                self._data = self._data.ljust(HEAD_SIZE, b"\0")
        size, bits = _SIZES.unpack_from(self._data, position - self._start)
        return size, bits

    def is_unit(self, position: int) -> bool:
        size, bits = self.head(position)
        return size == HEAD_SIZE + bits and bits >= 0 and position + size <= self._source.size

    def way_on(self, position: int, *ways: int) -> int | None:
        """Return the first of the sizes ``ways`` after which a unit or the end mark begins.

        Sizes count from ``position``. If no size fits, return the first size after which the unused
        part of the file begins, or None.
        """
        inside = [way for way in ways if way >= HEAD_SIZE and position + way <= self._source.size]
        for way in inside:
            if self.is_unit(position + way) or self.head(position + way)[0] == _MARK:
                return way
        return next((way for way in inside if self.head(position + way)[0] == 0), None)


def _next_used(source: FileSource, position: int) -> int | None:
    """Return the position of the first non-zero byte from ``position`` on; None if all bytes are
    zero.
    """
    while position < source.size:
        position = source.next_data(position)
        data = source.read(position, _CHUNK)
        if not data:
            return None
        rest = data.lstrip(b"\0")
        if rest:
            return position + len(data) - len(rest)
        position += len(data)
    return None
