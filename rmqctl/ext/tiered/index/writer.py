"""The index files of a tier that are not uploaded yet, written as a broker does (§5.4, §5.5).

Only the newest file receives items. It gives way to a new one when the keys of a message would
fill it; then it is ready to be rearranged and uploaded (`rmqctl.ext.tiered.index.compaction`).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from rmqctl.ext.tiered.index.index_file import local_names
from rmqctl.ext.tiered.index.keys import Keys, keys_of
from rmqctl.ext.tiered.index.open_file import LOST_HASH, OpenIndexFile, has_slot
from rmqctl.files import durable
from rmqctl.files.aside import AsideFolder
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import names
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.source import Closing

_SECOND = 1000


class IndexWriter(Closing):
    """The folder ``tiered_index_file`` of a broker's local root, written to. A context manager.

    ``shape`` is what is configured; ``clock`` gives the ms that name new files, which are made
    larger than those of all files here and than ``after``. Without any file the first is created at
    once, as at a broker's start. Nothing is durable before `commit`, except that files commit by
    themselves about once in a million items and when they are full. A commit may write all slots (8
    bytes each), so it is better done for many messages than for few.

    With ``oldest`` (ms) files are named not by the clock but by their messages: the first by it,
    each further one by the oldest message that is to be put. A broker searches a key only in files
    whose name is in the window asked for, which for messages that left its own store ends with the
    first message there (§11): it never looks into a file named by the time of a late dispatch.

    ``dropped`` counts keys that no item can be made for: those with the hash -2^31, unless the
    slots divide it (a broker drops them, with the keys of the same message after them; here only
    they are left out), and messages with more keys than a file holds. Files of 5.1.x (``0000``,
    ``1111``) are left alone.

    RefusedError where the newest file is of another shape or no index file; StoreIOError.
    """

    def __init__(self, folder: str, shape: fmt.Shape, clock: Callable[[], int],
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
        """Put the keys of all messages of a batch; how many items that were.

        ``batch.offset`` are the messages' offsets in the tier's commit log. The time of an item is
        that of the message (a broker reads another field of messages from IPv6 hosts).
        """
        return self.put_keys(keys_of(batch, topic), batch.offset, batch.column("total_size"),
                             batch.column("store_timestamp"), topic_id, queue_id)

    def put_keys(self, keys: Keys, offset: Array, size: Array, store_timestamp: Array,
                 topic_id: Array | int, queue_id: Array | int) -> int:
        """Put keys that are known already; the other arrays have a place for each message.

        For many small batches of different queues together. How many items that were.
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
        """The next file. The one before is committed first: only the last may be unfinished."""
        self._file.commit()
        following = self._opened(self._fresh(self._file.timestamp))
        self._file.close()
        self._file = following

    def commit(self) -> None:
        """Make all items last, and the ways to them. StoreIOError; then it may be tried again."""
        self._file.commit()

    # -- where it stands --------------------------------------------------------------------------

    def position(self) -> tuple[int, int]:
        """Return (the newest file's timestamp, its items), including uncommitted ones."""
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
        """Return to an earlier `position`: later items are forgotten, committed or not.

        Later files are moved aside. False, without changes, if the position no longer exists.
        StoreIOError; an interrupted rewind is done again.
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
    """Seconds from a file's begin, cut off towards zero, as 32 bits hold them."""
    diff = times - np.int64(begin)
    return _int32(np.where(diff < 0, -(-diff // _SECOND), diff // _SECOND))


def _int32(value: Array | np.int64) -> Array:
    """Return the low 32 bits, as Java casts a long."""
    low: Array = np.asarray(value & np.int64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
    return low
