"""Write the index files of a tier that have not been uploaded yet, as a broker does (§5.4, §5.5).

Only the newest file receives items. If the keys of a message would fill this file, a new file
begins. The full file can then be compacted and uploaded (`rmqctl.ext.tiered.index.compaction`).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from rmqctl.ext.tiered.index.index_file import local_names
from rmqctl.ext.tiered.index.keys import BatchKeys, keys_of
from rmqctl.ext.tiered.index.open_file import LOST_HASH, OpenIndexFile, has_slot
from rmqctl.files import durable
from rmqctl.files.aside import AsideFolder
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import names
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.source import Closing

_SECOND = 1000


class TierIndexWriter(Closing):
    """Writer to the folder ``tiered_index_file`` of a broker's local root. A context manager.

    ``shape``: number of slots and items, as configured.
    ``clock``: returns the current time (ms). A file is named with the time of its creation.
    ``after``: the name of a new file is larger than this time, and than the names of all existing
    files.
    ``oldest``: if given (ms), files are named with store times: the first file with ``oldest``,
    each further file with the store time of its oldest message.
    ``dropped``: number of keys without an item.

    If no file exists, the first file is created at once, as at a broker's startup. Files of 5.1.x
    (``0000``, ``1111``) are ignored.

    Data is durable after `commit`. Full files are committed automatically, other data about once
    per million items. A commit may write all slots (8 bytes each), so call it only after many
    messages.

    A broker searches for a key only in files whose names are in the requested time window. For
    expired messages this window ends at the first message of the local store (§11). If messages are
    dispatched late, a broker would never search a file that is named with the current time. Use
    ``oldest`` for such messages.

    A key is dropped if its message has more keys than fit into a file. A key is also dropped if it
    has the hash -2^31 and this hash has no slot. A broker then also drops the message's following
    keys.

    Raises: RefusedError if the newest file is not an index file of this shape; StoreIOError.
    """

    def __init__(self, folder: str, shape: fmt.TieredIndexShape, clock: Callable[[], int],
                 after: int = 0, oldest: int | None = None) -> None:
        self.folder, self.shape = folder, shape
        self.dropped = 0
        self._clock, self._after, self._oldest = clock, after, oldest
        self._has_lost = has_slot(shape.slots)
        durable.make_folders(folder)
        timestamps = self._timestamps()
        self._file = self._opened(timestamps[-1] if timestamps else self._fresh(0))

    def _timestamps(self) -> list[int]:
        return sorted(int(name) for name in local_names(self.folder)
                      if name not in names.OLD_INDEX_NAMES and str(int(name)) == name)

    def _path(self, timestamp: int) -> str:
        return os.path.join(self.folder, str(timestamp))

    def _opened(self, timestamp: int) -> OpenIndexFile:
        return OpenIndexFile(self._path(timestamp), timestamp, self.shape)

    def _fresh(self, last: int) -> int:
        begin = self._clock() if self._oldest is None else self._oldest
        return max(begin, last + 1, self._after + 1)

    # -- putting ----------------------------------------------------------------------------------

    def put(self, batch: Batch, topic: str, topic_id: int, queue_id: int) -> int:
        """Add the keys of all messages of a batch. Return the number of items.

        ``batch.offset``: the messages' offsets in the tier's commit log. An item's time is the real
        store time of its message. For IPv6 hosts, a broker reads another field.
        """
        return self.put_keys(keys_of(batch, topic), batch.offset, batch.column("total_size"),
                             batch.column("store_timestamp"), topic_id, queue_id)

    def put_keys(self, keys: BatchKeys, offset: Array, size: Array, store_timestamp: Array,
                 topic_id: Array | int, queue_id: Array | int) -> int:
        """Add the keys of many messages, which may belong to different queues. Return the number of
        added items.

        All arrays except ``keys`` contain one value per message.
        """
        # Unless the slots divide 2^31, the lowest hash has no slot, and a broker drops the key.
        row, key_hash = keys.row, keys.key_hash
        if not self._has_lost and (lost := key_hash == LOST_HASH).any():
            self.dropped += int(lost.sum())
            row, key_hash = row[~lost], key_hash[~lost]
        # The keys of one message must fit into one file.
        counts = np.bincount(row, minlength=len(offset))
        if (large := counts >= self.shape.max_items).any():
            self.dropped += int(counts[large].sum())
            small = ~large[row]
            row, key_hash = row[small], key_hash[small]
            counts = np.bincount(row, minlength=len(offset))
        if not len(row):
            return 0
        # Build all items at once, except for the times, which depend on the file.
        rows = np.empty(len(row), fmt.ITEM.dtype())
        rows["key_hash"], rows["size"] = key_hash, size[row]
        rows["commit_log_offset"] = offset[row]
        for name, value in (("topic_id", topic_id), ("queue_id", queue_id)):
            rows[name] = _int32(value[row] if isinstance(value, np.ndarray) else np.int64(value))
        times = store_timestamp[row]
        ends = np.cumsum(counts)
        done = 0
        # Fill file after file; all keys of a message stay in the same file.
        while True:
            fitting = int(np.searchsorted(ends, done + self._file.room, "right"))
            upto = int(ends[fitting - 1]) if fitting else 0
            if upto > done:
                part = rows[done:upto]
                part["time_diff"] = _seconds(times[done:upto], self._file.timestamp)
                self._file.put(part, int(times[done:upto].max()))
                done = upto
            if done == len(rows):
                return done
            if self._oldest is not None:
                self._oldest = int(times[done:].min())
            self._roll()

    def _roll(self) -> None:
        """Commit the file and begin the next file; only the last file may be unfinished."""
        self._file.commit()
        following = self._opened(self._fresh(self._file.timestamp))
        self._file.close()
        self._file = following

    def commit(self) -> None:
        """Commit all items and their links. Raises: StoreIOError; the commit can then be
        repeated.
        """
        self._file.commit()

    # -- where it stands --------------------------------------------------------------------------

    def position(self) -> tuple[int, int]:
        """Return the newest file's timestamp, and the number of its items, including uncommitted
        items.
        """
        return self._file.timestamp, self._file.items

    def full_files(self) -> list[str]:
        """Return the paths of the files that no longer receive items, oldest first."""
        return [self._path(timestamp)
                for timestamp in self._timestamps() if timestamp < self._file.timestamp]

    @property
    def open_file(self) -> str:
        """The path of the file that receives items."""
        return self._file.path

    def rewind(self, timestamp: int, items: int) -> bool:
        """Return to an earlier `position`: remove later items, committed or not, and move later
        files aside. An interrupted rewind can be repeated.

        Return False, without changes, if the position no longer exists.
        Raises: StoreIOError.
        """
        timestamps = self._timestamps()
        if timestamp not in timestamps:
            return False
        target = self._file if timestamp == self._file.timestamp else self._opened(timestamp)
        if not 0 <= items <= target.items:
            if target is not self._file:
                target.close()
            return False
        if target is not self._file:
            self._file.close()
            self._file = target
            aside = AsideFolder(os.path.dirname(os.path.abspath(self.folder)))
            for later in reversed([later for later in timestamps if later > timestamp]):
                aside.move(os.path.abspath(self._path(later)))
        target.rewind(items)
        return True

    def close(self) -> None:
        """Close the files; uncommitted items are lost."""
        self._file.close()


def _seconds(times: Array, begin: int) -> Array:
    """Return the time since a file's start in seconds, truncated towards zero and to 32 bits."""
    diff = times - np.int64(begin)
    return _int32(np.where(diff < 0, -(-diff // _SECOND), diff // _SECOND))


def _int32(value: Array | np.int64) -> Array:
    """Return the low 32 bits as a signed number, as a cast from long to int does in Java."""
    low: Array = np.asarray(value & np.int64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
    return low
