"""Writer of a queue's consumequeue extension (spec: consumequeue.md §8)."""

from __future__ import annotations

import os

from rmqctl.engine.dispatch.queue_files import FilePool, QueueFiles
from rmqctl.errors import FormatError
from rmqctl.formats import layout as layouts
from rmqctl.formats.local import consume_queue_ext as layout
from rmqctl.formats.local.consume_queue_ext import END_BLANK, END_MARK, HEAD_SIZE, MAX_SIZE, Unit
from rmqctl.formats.local.names import file_start
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile, listing

FOLDER = "consumequeue_ext"
_SIZE = layouts.reader(Unit, "size")
_PAGE = 1 << 20


class ConsumeQueueExt:
    """Writer of the extension units of a queue. An end mark closes each full file."""

    def __init__(self, root: str, key: QueueKey, file_size: int, pool: FilePool,
                 last_address: int | None = None, *, unused: bool = False) -> None:
        """Continue after the last used unit on disk.

        ``last_address``: the last address in the consumequeue. Units after this address belong to
        missing entries and are overwritten. ``unused``: whether all units are overwritten.
        """
        folder = os.path.join(root, FOLDER, key[0], str(key[1]))
        self._files = QueueFiles(folder, file_size, pool)
        files = listing(folder).files
        if files:
            self._files.load(files, files[0].base if unused else _find_end(files, last_address))

    def begin(self, address: int) -> None:
        """If the queue has no files, set the address of its first unit."""
        files = self._files
        if files.base is None:
            offset = layout.byte_offset(address)
            files.start(file_start(offset, files.file_size))
            files.advance(offset - files.position)

    def put(self, tags_code: int, store_timestamp: int, bit_map: bytes | None) -> int | None:
        """Append a unit; return its address, which goes into the consumequeue entry.

        Return None if the bit map is too large, or if no addresses are left.
        """
        unit = layout.make(tags_code, store_timestamp, bit_map or b"")
        files = self._files
        if unit.size > min(MAX_SIZE, files.file_size - END_BLANK):
            return None
        if files.base is None:
            files.start(0)
        elif files.full:
            files.roll()
        assert files.base is not None
        if unit.size > files.base + files.file_size - files.position - END_BLANK:
            self._close_file()
        try:
            address = layout.address(files.position)
            layout.address(files.position + unit.size)
        except ValueError:
            return None
        files.append(layout.build(unit))
        return address

    def _close_file(self) -> None:
        files = self._files
        assert files.base is not None
        files.write_at(files.position, END_MARK)
        files.advance(files.base + files.file_size - files.position)
        files.roll()


def _find_end(files: list[StoreFile], last_address: int | None) -> int:
    """Return the byte offset at which a broker continues after its recovery.

    This is the end of the unit of the last entry. If that unit does not exist, it is the end of the
    last existing unit.
    """
    if last_address is not None:
        offset = layout.byte_offset(last_address)
        for file in files:
            if file.base <= offset < file.end:
                size = _unit_size(file, offset - file.base)
                if size is not None:
                    return offset + size
    last = files[-1]
    return last.base + _used(last)


def _unit_size(file: StoreFile, position: int) -> int | None:
    with FileSource(file.path) as source:
        data = source.read(position, MAX_SIZE)
    try:
        return layout.decode(data).size
    except FormatError:
        return None


def _used(file: StoreFile) -> int:
    """Return the number of bytes of the contiguous units at the start of a file."""
    position = start = 0
    data = b""
    with FileSource(file.path) as source:
        while position + HEAD_SIZE <= source.size:
            if not start <= position <= start + len(data) - _SIZE.size:
                start, data = position, source.read(position, _PAGE)
                if len(data) < _SIZE.size:
                    break
            size = _SIZE.unpack_from(data, position - start)[0]
            if size <= 0:
                break
            position += size
    return min(position, file.size)
