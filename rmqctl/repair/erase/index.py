"""Remove the entries of erased messages from index files, as if they had never been added.

Later entries move up and all chains are rebuilt, so each entry is reachable exactly once. A file
whose chains do not match its entries is damaged and is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import index_file as layout
from rmqctl.formats.local.index_file import ENTRY, SLOT
from rmqctl.repair.plan import Changes, Patch
from rmqctl.repair.targets import target
from rmqctl.scan.frames import Array
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.store.index.files import IndexFile
from rmqctl.store.store import Store

_NEAR = 64
"""Changed slots that are at most this far apart are written in one piece, together with the slots
between them.
"""


def drop_entries(store: Store, gone: Array, why: str = "entries of erased messages") -> Changes:
    """Remove the index entries that point to one of the physical offsets ``gone``. Raises:
    StoreIOError.
    """
    changes = Changes()
    for file in store.index.listing.files:
        try:
            index = store.index.open(file)
        except (FormatError, StoreIOError) as error:
            changes.notes.append(f"{error}; its entries stay: `rmqctl recover STORE --only index` "
                                 "rebuilds it")
            continue
        with closing(index):
            _drop(changes, store, index, gone, why)
    return changes


def _drop(changes: Changes, store: Store, index: IndexFile, gone: Array, why: str) -> None:
    shape, header, source = index.shape, index.header, index.source
    count = min(header.entries, max(shape.capacity, 0))
    entries = ENTRY.array(source.read(shape.entry_position(1), count * ENTRY.size)).copy()
    keep = ~np.isin(entries["physical_offset"], gone)
    if keep.all():
        return
    # The present chains have to match the entries.
    name = target(store, index.file.path)
    slots, previous = _chains(entries, shape.slots)
    old = SLOT.array(source.read(shape.slot_position(0), shape.slots * SLOT.size))["entry"]
    if not index.sure or len(entries) < count or not (
            np.array_equal(old, slots) and np.array_equal(entries["previous"], previous)):
        changes.notes.append(f"{name}: its chains are damaged, so {why} stay in this file; to "
                             "rebuild it afterwards: `rmqctl recover STORE --only index`")
        return
    # The entries that stay, linked again; zeros after them.
    left = entries[keep].copy()
    if not len(left):
        changes.move_aside(name, count, why, "entry")
        return
    new_slots, left["previous"] = _chains(left, shape.slots)
    used = int(np.count_nonzero(new_slots))
    slot_count = len(left) if header.hash_slot_count == header.entries else used
    head = header._replace(index_count=len(left) + 1, hash_slot_count=slot_count,
                           begin_phy_offset=int(left["physical_offset"][0]),
                           end_phy_offset=int(left["physical_offset"][-1]))
    # Times count from the first message of the file.
    begin = store.log.record_at(head.begin_phy_offset)
    if not keep[0] and begin is not None:
        head = head._replace(begin_timestamp=begin.store_timestamp)
        _count_from(store, left, head.begin_timestamp)
    last = store.log.record_at(head.end_phy_offset)
    if last is not None and head.end_phy_offset != header.end_phy_offset:
        head = head._replace(end_timestamp=last.store_timestamp)
    first = int(np.flatnonzero(~keep)[0])
    changed = np.flatnonzero(new_slots != old)
    kind = layout.slot_dtype()["entry"]
    pieces = [OverlayPiece.of(0, layout.build_header(head))]
    pieces += [OverlayPiece.of(shape.slot_position(run.start),
                               new_slots[run].astype(kind).tobytes())
               for run in _runs(changed)]
    pieces.append(OverlayPiece(shape.entry_position(first + 1), (count - first) * ENTRY.size,
                               ((0, left[first:].tobytes()),) if first < len(left) else ()))
    changes.act(Patch(name, tuple(pieces)), "drop", count, len(left),
                why, "entry")


def _runs(slots: Array) -> Iterator[slice]:
    """Yield slices that together contain all ``slots`` (sorted numbers).

    Slots that are close together share a slice, which includes the unchanged slots between them:
    many small pieces would take more memory.
    """
    cuts = np.flatnonzero(np.diff(slots) > _NEAR)
    starts, ends = np.append(0, cuts + 1), np.append(cuts, len(slots) - 1)
    for start, end in zip(*(slots[rows].tolist() for rows in (starts, ends)),
                          strict=True) if len(slots) else ():
        yield slice(start, end + 1)


def _count_from(store: Store, entries: Array, begin: int) -> None:
    """Set the time of each entry: the seconds from ``begin`` (ms) to the store time of
    its message.
    """
    physical = entries["physical_offset"].astype(np.int64)
    for batch in store.log.walk(int(physical.min()), int(physical.max()) + 1):
        if not len(batch):
            continue
        row = np.minimum(np.searchsorted(batch.offset, physical), len(batch) - 1)
        is_at = batch.offset[row] == physical
        seconds = (batch.column("store_timestamp")[row[is_at]] - begin) // 1000
        entries["time_diff"][is_at] = np.clip(seconds, 0, (1 << 31) - 1)


def _chains(entries: Array, slots: int) -> tuple[Array, Array]:
    """Return (number of the newest entry of each slot, number of the previous entry for each
    entry).

    The previous entry of an entry is in the same slot. A number of 0 means that no entry exists.
    """
    slot = entries["key_hash"].astype(np.int64) % slots
    order = np.argsort(slot, kind="stable")
    same = slot[order][1:] == slot[order][:-1]
    previous = np.zeros(len(entries), np.int64)
    previous[order[1:][same]] = order[:-1][same] + 1
    heads = np.zeros(slots, np.int64)
    heads[slot] = np.arange(1, len(entries) + 1)  # the last one of a slot wins
    return heads, previous
