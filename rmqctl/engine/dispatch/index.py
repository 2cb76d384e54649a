"""Writer of the index files of a store root (spec: index.md §5-§7)."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import MAXYEAR, datetime, timedelta
from typing import Any

import numpy as np

from rmqctl.engine.dispatch.consume_queue import refuse_unreadable
from rmqctl.engine.dispatch.index_file import (
    IndexFile,
    header_of,
    last_hashes,
    newest_full_end,
)
from rmqctl.engine.dispatch.queue_files import FilePool
from rmqctl.errors import UsageError
from rmqctl.formats.local import names
from rmqctl.formats.local.index_file import Shape
from rmqctl.store.files import listing

Array = np.ndarray[Any, np.dtype[Any]]
FOLDER = "index"


class IndexWriter:
    """Adds keys to the last file and rolls to a new one when it is full.

    A broker indexes the last indexed message once more when it is dispatched again; here that is
    noticed, and nothing changes, unless ``as_broker``.
    """

    def __init__(self, root: str, shape: Shape, pool: FilePool, wall_clock: Callable[[], int], *,
                 counts_empty: bool = True, as_broker: bool = False,
                 most_pending: int | None = None) -> None:
        """``counts_empty``: `close` writes a count of 1 into an empty file, as 5.x does.
        ``most_pending``: entries that are kept in memory without being asked to write them.
        """
        if shape.slots <= 0 or shape.capacity <= 0:
            raise UsageError(f"no index file can have {shape.slots} hash slots and "
                             f"{shape.max_entries} entries")
        self._folder, self._shape, self._pool = os.path.join(root, FOLDER), shape, pool
        self._clock, self._as_broker = wall_clock, as_broker
        self._counts_empty, self._most_pending = counts_empty, most_pending
        self._file: IndexFile | None = None
        found = listing(self._folder, names.INDEX_DIGITS)
        refuse_unreadable(found.troubles)
        self._paths = [one.path for one in found.files]
        if self._paths:
            self._file = IndexFile.load(self._paths[-1], shape, pool, heal=not as_broker)
            self._patient(self._file)
            if self._file.is_blank and len(self._paths) > 1:
                self._file.follow(header_of(self._paths[-2]))
        self.index_timestamp = newest_full_end(self._paths[:-1], shape)
        """The end of the newest file that is full and was rolled; 0 if none."""

    def put(self, physical: Array, key_row: Array, key_hash: Array,
            store_timestamp: Array) -> None:
        """Messages of one chunk in log order and their keys in index order (int64 columns).

        ``physical`` and ``store_timestamp`` have one element for each message, with or without
        keys; ``key_row`` is the message a key belongs to.
        """
        first_message, first_key = self._known(physical, key_row, key_hash)
        if first_message >= len(physical):
            return
        phy, when = physical[key_row], store_timestamp[key_row]
        done, count = first_key, len(key_hash)
        while True:
            file = self._current()
            take = min(file.room, count - done)
            if take:
                part = slice(done, done + take)
                file.extend(key_hash[part], phy[part], when[part])
                done += take
            if not file.full or (done == count and key_row[-1] == len(physical) - 1):
                return

    def _known(self, physical: Array, key_row: Array, key_hash: Array) -> tuple[int, int]:
        """(first message, first key) that the index does not have yet."""
        if self._file is None:
            return 0, 0
        if self._as_broker and self._file.full and len(physical):
            self._current()
        end = self._file.header.end_phy_offset
        message = int(np.searchsorted(physical, end, "left"))
        key = int(np.searchsorted(key_row, message, "left"))
        if self._as_broker or message == len(physical) or physical[message] != end:
            return message, key
        if self._file.header.index_count <= 1 and len(self._paths) <= 1:
            return message, key  # nothing is indexed yet: offset 0 is not an end
        self._file.sync_to_file()  # what is read back now must be counted there
        known = last_hashes(self._paths, self._shape, end)
        behind = int(np.searchsorted(key_row, message, "right"))
        mine = key_hash[key:behind].tolist()
        if not known or mine[:len(known)] != known:
            return message, key
        if len(known) == len(mine):
            return message + 1, behind
        return message, key + len(known)

    def _current(self) -> IndexFile:
        """The last file; a new one where there is none or it is full."""
        file = self._file
        if file is not None and not file.full:
            return file
        before = None
        if file is not None:
            file.sync_to_file()
            self._pool.sync(file.path)
            before = file.header
            self.index_timestamp = before.end_timestamp
        path = os.path.join(self._folder, self._name())
        self._file = IndexFile.create(path, self._shape, self._pool, before)
        self._patient(self._file)
        self._paths.append(path)
        return self._file

    def _patient(self, file: IndexFile) -> None:
        if self._most_pending is not None:
            file.most_pending = self._most_pending

    def _name(self) -> str:
        """The wall clock's name, moved on behind the last file's: order of names is order of age.

        Two files that are created in one millisecond must not share a name (a broker's do).
        """
        now = self._clock()
        try:
            moment = datetime.fromtimestamp(now // 1000) + timedelta(  # noqa: DTZ006 (local by spec)
                milliseconds=now % 1000)
        except (ValueError, OverflowError, OSError):  # a rebuild's clock is a damaged store time
            moment = datetime(1970, 1, 1)  # noqa: DTZ001
        name = names.build_index(moment)
        if not self._paths or name > (last := os.path.basename(self._paths[-1])):
            return name
        known = names.parse_index(last)
        if known is None or known.year == MAXYEAR:
            return f"{int(last) + 1:0{names.INDEX_DIGITS}d}"
        return names.build_index(known + timedelta(milliseconds=1))

    def sync_to_file(self) -> None:
        """Writes what is only in memory. Fsyncs nothing."""
        if self._file is not None:
            self._file.sync_to_file()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None and file.touched:
            file.sync_to_file(counted=self._counts_empty)
