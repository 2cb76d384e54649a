"""Truncate index files together with the log: remove the last entries, as if they had never been
added.

Each entry contains the previous value of its hash slot. So any earlier state of a file can be
restored without the log, byte for byte (spec: index.md §4-§7).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import index_file as layout
from rmqctl.formats.local.index_file import ENTRY, HEADER, SLOT, HeaderRecord
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import Changes, Patch
from rmqctl.repair.targets import target
from rmqctl.scan.frames import Array, distinct
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.store.files import StoreFile
from rmqctl.store.index.files import IndexFile, by_age
from rmqctl.store.log.end import used_size
from rmqctl.store.store import Store

_PAGE_ENTRIES = 1 << 17
_PAGE_SLOTS = 1 << 10


@dataclass(slots=True, kw_only=True)
class IndexCut(Changes):
    """Changes to the index files.

    ``full_until``: the new index time for the checkpoint: the end time of the newest file that is
    still full; 0 if no file is full. None means that all full files stay full.
    """

    full_until: int | None = None


def cut_index(store: Store, to: int, generation: int) -> IndexCut:
    """Remove from all index files the entries of records at or after physical offset ``to``.

    Slots and entries are read page by page. ``generation`` (4 or 5) determines the header of an
    empty file. Raises: StoreIOError.
    """
    cut = IndexCut()
    newest_full = 0
    was_full = False
    gone = False
    before: HeaderRecord | None = None
    files = by_age(_headers(store))
    for file in files:
        name = target(store, file.path)
        if gone:
            # A file follows a full one only; this was created after removed entries.
            cut.move_aside(name, file.size, "created after the cut")
            continue
        # A file that cannot be read, or of unknown shape, stays.
        try:
            index = store.index.open(file)
        except (FormatError, StoreIOError) as error:
            cut.notes.append(f"{error}; the file is left as it is, see `rmqctl recover STORE "
                             "--only index`")
            before = None
            continue
        if not index.sure:
            index.close()
            cut.notes.append(f"{file.path}: cannot determine the number of hash slots; the file "
                             "is left as it is (pass --index-slots and --index-max)")
            before = None
            continue
        # After the first truncated file, all others are newer.
        try:
            full = index.header.index_count >= index.shape.max_entries
            header = _cut_file(cut, store, index, file is files[0], before, to, generation)
        finally:
            index.close()
        gone = header is None or (full and header.index_count < index.shape.max_entries)
        was_full |= full and gone
        if header is not None and not gone and full:
            newest_full = header.end_timestamp
        before = header
    if was_full:
        cut.full_until = newest_full
    cut.steps.reverse()
    return cut


def _headers(store: Store) -> Iterator[tuple[StoreFile, HeaderRecord | None]]:
    for file in store.index.listing.files:
        try:
            with closing(store.index.open(file)) as index:
                header = index.header
        except (FormatError, StoreIOError):
            header = None
        yield file, header


def _cut_file(cut: IndexCut, store: Store, index: IndexFile, oldest: bool,
              before: HeaderRecord | None, to: int, generation: int) -> HeaderRecord | None:
    """Truncate one index file. Return its new header; None if the file is moved aside."""
    # The entries before the cut: all, none, or some.
    header, name = index.header, target(store, index.file.path)
    count, when = entries_before(index, to)
    made_before = count > 0 or _was_made(store, oldest, before, to)
    if count == header.entries and header.end_phy_offset < to and made_before:
        return header
    if not made_before:
        cut.move_aside(name, header.entries, "created after the cut", "entry")
        return None
    # Set the slots back to the entries that stay, and the header to the last of them.
    table, freed = _restored(index, count)
    if count == 0:
        new_header = _empty(before, generation)
    else:
        last = index.entry(count)
        assert last is not None
        record = store.log.record_at(last.physical_offset)
        if record is None:
            cut.notes.append(f"{name}: the message of its last entry, at physical offset "
                             f"{last.physical_offset}, cannot be read; the end time in its header "
                             "is exact only to a second")
        new_header = HeaderRecord(
            header.begin_timestamp, when if record is None else record.store_timestamp,
            header.begin_phy_offset, last.physical_offset,
            max(0, header.hash_slot_count - freed), count + 1)
    pieces = [OverlayPiece.of(0, layout.build_header(new_header)), *_slot_pieces(index, table),
              *_entry_piece(index, count)]
    cut.act(Patch(name, tuple(pieces)), "truncate", header.entries, count,
            "entries of removed messages", "entry")
    return new_header


def _empty(before: HeaderRecord | None, generation: int) -> HeaderRecord:
    """Return the header of a file without entries, as a broker leaves it at shutdown (spec §7)."""
    count = 1 if generation >= 5 else 0
    when = before.end_timestamp if before is not None and before.end_timestamp > 0 else 0
    physical = before.end_phy_offset if before is not None and before.end_phy_offset > 0 else 0
    return HeaderRecord(when, when, physical, physical, 0, count)


def _was_made(store: Store, oldest: bool, before: HeaderRecord | None, to: int) -> bool:
    """Return whether a broker that received only the messages before ``to`` would have created an
    index file.

    The first message creates the first file. When a file is full, the next message creates the next
    file, even if the message has no keys. ``oldest``: whether the file is the oldest one.
    ``before``: header of the previous file, if known.
    """
    log = store.log
    if oldest:
        return to > log.min_offset
    if before is None:
        return True
    record = log.record_at(before.end_phy_offset)
    if record is None:
        return True
    behind = before.end_phy_offset + record.total_size
    if log.is_blank_at(behind) or log.file_of(behind) is None:
        behind = next((file.base for file in log.files if file.base >= behind), to)
    return behind < to


# -- entries --------------------------------------------------------------------------------------


def _pages(index: IndexFile, last: int) -> Iterator[tuple[int, Array]]:
    """Yield (number of the first entry, entries) page by page, backward from entry ``last``."""
    while last > 0:
        first = max(1, last + 1 - _PAGE_ENTRIES)
        data = index.source.read(index.shape.entry_position(first),
                                 (last + 1 - first) * ENTRY.size)
        yield first, ENTRY.array(data)
        last = first - 1


def entries_before(index: IndexFile, to: int) -> tuple[int, int]:
    """Return (number of entries that are kept, store time of the last kept entry)."""
    entries = min(index.header.entries, max(index.shape.capacity, 0))
    for first, page in _pages(index, entries):
        before = np.flatnonzero(page["physical_offset"] < to)
        if len(before):
            last = int(before[-1])
            when = index.header.begin_timestamp + 1000 * int(page["time_diff"][last])
            return first + last, min(when, index.header.end_timestamp)
    return 0, 0


def _restored(index: IndexFile, count: int) -> tuple[Array, int]:
    """Return (the slots as they were with ``count`` entries, the decrease of the slot count in the
    header).

    The slot count decreases for each removed entry that was the first in its slot. Up to 4.7.0 it
    counts every entry, so it decreases for every removed entry (spec §2).
    """
    shape, header = index.shape, index.header
    table = np.zeros(shape.slots, np.int64)
    raw = index.source.read(shape.slot_position(0), shape.slots * SLOT.size)
    slots = SLOT.array(raw)["entry"]
    table[:len(slots)] = slots
    entries = min(header.entries, max(shape.capacity, 0))
    freed = 0
    table[table > shape.capacity] = 0
    # A writer that died may have left entries and slots after what its header counts.
    for first, page in _pages(index, max(entries, int(table.max(initial=0)))):
        if first + len(page) <= count + 1:
            break
        low = max(first, count + 1)
        previous = page["previous"][low - first:].astype(np.int64)
        freed += int(np.count_nonzero(previous[:max(0, entries + 1 - low)] <= 0))
        over = np.flatnonzero(table >= low)
        while len(over):
            place = table[over] - low
            linked = np.where(place < len(previous), previous[np.minimum(place, len(previous) - 1)],
                              0)
            # An intact link points to an older entry; anything else ends the chain.
            table[over] = np.where((linked > 0) & (linked < table[over]), linked, 0)
            over = over[table[over] >= low]
    if header.hash_slot_count == header.entries:
        freed = entries - count
    return table, freed


def _slot_pieces(index: IndexFile, table: Array) -> Iterator[OverlayPiece]:
    """Yield pieces that write the changed slots, in runs of whole pages."""
    shape = index.shape
    raw = index.source.read(shape.slot_position(0), shape.slots * SLOT.size)
    old = SLOT.array(raw)["entry"]
    pages = distinct(np.flatnonzero(table[:len(old)] != old) // _PAGE_SLOTS)
    if not len(pages):
        return
    new = table.astype(layout.slot_dtype()["entry"])
    breaks = np.flatnonzero(np.diff(pages) > 1) + 1
    for run in np.split(pages, breaks):
        first = int(run[0]) * _PAGE_SLOTS
        stop = min((int(run[-1]) + 1) * _PAGE_SLOTS, len(old))
        yield OverlayPiece.of(shape.slot_position(first), new[first:stop].tobytes())


def _entry_piece(index: IndexFile, count: int) -> Iterator[OverlayPiece]:
    """Yield a piece that zeros all bytes after the last kept entry."""
    start = index.shape.entry_position(count + 1)
    until = max(used_size(index.source), HEADER.size)
    if until > start:
        yield OverlayPiece(start, until - start)


