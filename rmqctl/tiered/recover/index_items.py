"""Index items that a tier should have and has not, and the files to be made of them (tiered.md §5,
§17.6).

Items that are there are known by a 64-bit mix of what identifies them, in sorted runs on disk, so
that any number of them needs little memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np

from rmqctl.files.durable import failed
from rmqctl.files.row_file import on_disk
from rmqctl.formats.tiered import index as fmt
from rmqctl.scan.frames import Array
from rmqctl.tiered.index.compacted_form import slot_table
from rmqctl.tiered.index.index_file import EMPTY, IndexFile
from rmqctl.tiered.verify.index import Times
from rmqctl.tiered.verify.keys import folded, marks

LOST = np.dtype([("key_hash", "i4"), ("topic_id", "i4"), ("queue_id", "i4"), ("offset", "i8"),
                 ("size", "i4"), ("store_time", "i8")])
"""An item to be made; ``offset`` in the queue's commit log."""
MOST_ITEMS = 1 << 20
"""Items of a file that is made: a broker finds more in several small ones than in one large one."""
_RUN = 1 << 22


def mixed(key_hash: Array, topic_id: Array, queue_id: Array, offset: Array) -> Array:
    """What items are told apart by (uint64), whichever rule their hash follows."""
    return marks(topic_id, queue_id, offset, folded(key_hash))


class Known:
    """The items of index files. ``folder`` is for the runs. FormatError, StoreIOError."""

    def __init__(self, folder: str, files: Iterable[IndexFile] = ()) -> None:
        self._folder = folder
        self._waiting: list[Array] = []
        self._count = 0
        self._runs: list[Array] = []
        for file in files:
            self.add(file)

    def add(self, file: IndexFile) -> None:
        """All items of a file. FormatError, StoreIOError."""
        for _, items in file.blocks():
            self._waiting.append(mixed(items["key_hash"], items["topic_id"], items["queue_id"],
                                       items["commit_log_offset"]))
            self._count += len(items)
            if self._count >= _RUN:
                self._flush()

    def _flush(self) -> None:
        self._runs.append(on_disk(np.sort(np.concatenate(self._waiting)), "items of index files",
                                  self._folder))
        self._waiting, self._count = [], 0

    def has(self, wanted: Array) -> Array:
        """Whether there is an item of each (bool)."""
        if self._count:
            self._flush()
        known: Array = np.zeros(len(wanted), bool)
        for run in self._runs:
            row = np.minimum(np.searchsorted(run, wanted), len(run) - 1)
            known |= run[row] == wanted
        return known


def times_of(file: IndexFile) -> tuple[int, int, int]:
    """(the largest store time of a file's items, the least and the greatest it may be): what the
    header says, unless items are later (a broker that opens a file again loses it, tiered.md
    §5.1). FormatError, StoreIOError.
    """
    end = file.header.end_timestamp
    times = Times()
    if file.form != EMPTY:
        for _, items in file.blocks():
            times.take(items)
    if not times.items:
        return end, end, end
    low, high = times.newest(file)
    return (end if end >= low else high), low, high


def end_of(file: IndexFile) -> int:
    """The largest store time of a file's items. FormatError, StoreIOError."""
    return times_of(file)[0]


# -- new files ------------------------------------------------------------------------------------

def build_files(lost: Array, shape: fmt.Shape, used: set[int], folder: str,
                counts: Sequence[int] = ()) -> Iterator[tuple[str, int, int, int]]:
    """(path, bytes, begin, end) of the compacted files that hold all of ``lost`` (`LOST`), by
    time. ``used`` are the begins that other files have; ``counts`` the items of the first files,
    no more than there are. StoreIOError.
    """
    order = np.argsort(lost["store_time"], kind="stable")
    most = max(min(MOST_ITEMS, shape.max_items - 1), 1)
    ends = list(accumulate(counts))
    ends += range((ends[-1] if ends else 0) + most, len(order), most)
    if not ends or ends[-1] < len(order):
        ends.append(len(order))
    for number, (start, end) in enumerate(pairwise([0, *ends])):
        rows = order[start:end]
        begin, last = (int(lost["store_time"][rows[at]]) for at in (0, -1))
        while begin in used:
            begin -= 1
        used.add(begin)
        path = os.path.join(folder, f"index-{number}")
        try:
            with open(path, "wb") as file:
                file.writelines(_bytes(lost, rows, shape, begin, last))
            size = os.path.getsize(path)
        except OSError as error:
            raise failed(error, path, "write to") from None
        yield path, size, begin, last


def _bytes(lost: Array, rows: Array, shape: fmt.Shape, begin: int,
           end: int) -> Iterator[bytes | memoryview]:
    """A file of the items ``lost[rows]`` from front to back; a part is valid until the next."""
    slot = lost["key_hash"][rows].astype(np.int64) % shape.slots
    # Slots ascending, in a slot the newest first.
    rows = rows[len(rows) - 1 - np.argsort(slot[::-1], kind="stable")]
    counts = np.bincount(slot, minlength=shape.slots)
    used = shape.slots if shape.old else int((counts > 0).sum())
    yield fmt.HEADER.build(fmt.HeaderRecord(fmt.END_MAGIC, begin, end, used, len(rows)))
    yield from slot_table(counts, shape)
    for start in range(0, len(rows), MOST_ITEMS):
        part = lost[rows[start:start + MOST_ITEMS]]
        items: Array = np.zeros(len(part), fmt.COMPACTED_ITEM.dtype())
        for name, value in (("key_hash", "key_hash"), ("topic_id", "topic_id"),
                            ("queue_id", "queue_id"), ("commit_log_offset", "offset"),
                            ("size", "size")):
            items[name] = part[value]
        diff = (part["store_time"] - begin) // (1 if shape.old else 1000)
        # As Java casts it.
        items["time_diff"] = (diff & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
        yield items.tobytes()
    if shape.old:
        yield fmt.BEGIN_MAGIC.to_bytes(fmt.TAIL_SIZE, "big")
