"""Index items that a tier should have and has not, and the files to be made of them (tiered.md §5,
§17.6).

Items that are there are known by a 64-bit mix of what identifies them, in sorted runs on disk, so
that any number of them needs little memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from rmqctl.engine.storage import failed
from rmqctl.formats import tiered_index as fmt
from rmqctl.scan.frames import Array
from rmqctl.tiered.index_file import COMPACTED, EMPTY, IndexFile

LOST = np.dtype([("key_hash", "i4"), ("topic_id", "i4"), ("queue_id", "i4"), ("offset", "i8"),
                 ("size", "i4"), ("store_time", "i8")])
"""An item to be made; ``offset`` in the queue's commit log."""
MOST_ITEMS = 1 << 20
"""Items of a file that is made: a broker finds more in several small ones than in one large one."""
_RUN = 1 << 22


def mixed(key_hash: Array, topic_id: Array, queue_id: Array, offset: Array) -> Array:
    """What items are told apart by (uint64)."""
    value = offset.astype(np.int64).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for one, factor in ((topic_id, 0xC2B2AE3D27D4EB4F), (queue_id, 0x165667B19E3779F9),
                        (key_hash, 0xD6E8FEB86659FD93)):
        value ^= one.astype(np.int64).view(np.uint64) + np.uint64(0x27D4EB2F165667C5)
        value *= np.uint64(factor)
        value ^= value >> np.uint64(29)
    return value


class Known:
    """The items of index files. ``folder`` is for the runs."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._waiting: list[Array] = []
        self._count = 0
        self._runs: list[Array] = []

    def add(self, file: IndexFile) -> None:
        """All items of a file. FormatError, StoreIOError."""
        for _, items in file.blocks():
            self._waiting.append(mixed(items["key_hash"], items["topic_id"], items["queue_id"],
                                       items["commit_log_offset"]))
            self._count += len(items)
            if self._count >= _RUN:
                self._flush()

    def _flush(self) -> None:
        path = os.path.join(self._folder, f"known-{len(self._runs)}")
        try:
            np.sort(np.concatenate(self._waiting)).tofile(path)
        except OSError as error:
            raise failed(error, path, "write to") from None
        self._runs.append(np.memmap(path, np.uint64, "r"))
        self._waiting, self._count = [], 0

    def has(self, wanted: Array) -> Array:
        """Whether there is an item of each (bool)."""
        if self._count:
            self._flush()
        found: Array = np.zeros(len(wanted), bool)
        for run in self._runs:
            at = np.minimum(np.searchsorted(run, wanted), len(run) - 1)
            found |= run[at] == wanted
        return found


def is_sound(file: IndexFile) -> bool:
    """Whether the slots of a compacted file lead to its items, each to those of its hash."""
    if file.form != COMPACTED:
        return True
    slots = file.shape.slots
    counts: Array = np.zeros(slots, np.int64)
    last = seen = 0
    for _, items in file.blocks():
        slot = items["key_hash"].astype(np.int64) % slots
        if int(slot[0]) < last or bool((np.diff(slot) < 0).any()):
            return False
        last = int(slot[-1])
        counts += np.bincount(slot, minlength=slots)
        seen += len(items)
    if seen != file.items:
        return False
    size = fmt.COMPACTED_ITEM.size
    start = file.shape.items_at + (np.cumsum(counts) - counts) * size
    step = 1 << 17
    for first in range(0, slots, step):
        count = min(step, slots - first)
        data = file.read(file.shape.slot_position(first), count * fmt.COMPACTED_SLOT.size)
        if len(data) < count * fmt.COMPACTED_SLOT.size:
            return False
        table = np.frombuffer(data, fmt.COMPACTED_SLOT.dtype())
        wanted = counts[first:first + count] * size
        if (table["length"] != wanted).any() or (
                (table["position"] != start[first:first + count]) & (wanted > 0)).any():
            return False
    return True


def end_of(file: IndexFile) -> int:
    """The largest store time of a file's items: what the header says, unless items are later
    (a broker that opens a file again loses it, tiered.md §5.1). FormatError, StoreIOError.
    """
    header = file.header
    if file.form == EMPTY:
        return header.end_timestamp
    diff = None
    for _, items in file.blocks():
        largest = int(items["time_diff"].max())
        diff = largest if diff is None else max(diff, largest)
    if diff is None:
        return header.end_timestamp
    low, high = diff, diff
    if not file.shape.old:
        low, high = diff * 1000 - (999 if diff <= 0 else 0), diff * 1000 + (999 if diff >= 0 else 0)
    begin = header.begin_timestamp
    return header.end_timestamp if header.end_timestamp >= begin + low else begin + high


# -- new files ------------------------------------------------------------------------------------

def build_files(lost: Array, shape: fmt.Shape, used: set[int], folder: str) -> Iterator[
        tuple[str, int, int, int]]:
    """(path, bytes, begin, end) of the compacted files that hold all of ``lost`` (`LOST`), by
    time. ``used`` are the begins that other files have. StoreIOError.
    """
    order = np.argsort(lost["store_time"], kind="stable")
    most = max(min(MOST_ITEMS, shape.max_items - 1), 1)
    for number, at in enumerate(range(0, len(order), most)):
        part = lost[order[at:at + most]]
        begin = int(part["store_time"][0])
        while begin in used:
            begin -= 1
        used.add(begin)
        path = os.path.join(folder, f"index-{number}")
        try:
            with open(path, "wb") as file:
                file.writelines(_bytes(part, shape, begin))
            size = os.path.getsize(path)
        except OSError as error:
            raise failed(error, path, "write to") from None
        yield path, size, begin, int(part["store_time"][-1])


def _bytes(part: Array, shape: fmt.Shape, begin: int) -> Iterator[bytes]:
    slot = part["key_hash"].astype(np.int64) % shape.slots
    # Slots ascending, in a slot the newest first.
    order = len(part) - 1 - np.argsort(slot[::-1], kind="stable")
    counts = np.bincount(slot, minlength=shape.slots)
    used = shape.slots if shape.old else int((counts > 0).sum())
    yield fmt.HEADER.build(fmt.HeaderRecord(
        fmt.END_MAGIC, begin, int(part["store_time"][-1]), used, len(part)))
    table: Array = np.zeros(shape.slots, fmt.COMPACTED_SLOT.dtype())
    table["length"] = counts * fmt.COMPACTED_ITEM.size
    table["position"] = shape.items_at + (np.cumsum(counts) - counts) * fmt.COMPACTED_ITEM.size
    if shape.old:
        table["position"][counts == 0] = 0
    yield table.tobytes()
    items: Array = np.zeros(len(part), fmt.COMPACTED_ITEM.dtype())
    for name, value in (("key_hash", "key_hash"), ("topic_id", "topic_id"),
                        ("queue_id", "queue_id"), ("commit_log_offset", "offset"),
                        ("size", "size")):
        items[name] = part[value][order]
    diff = (part["store_time"][order] - begin) // (1 if shape.old else 1000)
    items["time_diff"] = np.clip(diff, 0, (1 << 31) - 1)
    yield items.tobytes()
    if shape.old:
        yield fmt.BEGIN_MAGIC.to_bytes(fmt.TAIL_SIZE, "big")
