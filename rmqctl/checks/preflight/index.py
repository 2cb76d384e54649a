"""The index as a broker loads it, and the entries that the dispatch of messages adds to it
(index.md §5-§9).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rmqctl.broker.recovery import properties
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.index_file import (
    DEFAULT_RATIO,
    DEFAULT_SLOTS,
    ENTRY,
    HEADER,
    HeaderRecord,
    IndexShape,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import text
from rmqctl.scan.derived import IndexKeys
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile
from rmqctl.store.store import Store

_PAGE = 1 << 16
_MAX_KEYS = 1 << 15
"""Maximum number of keys that fit into the properties of a message."""


@dataclass(slots=True)
class Loaded:
    """An index file and its header; the header is None if it cannot be read."""

    file: StoreFile
    header: HeaderRecord | None


class LoadedIndex:
    """The index of a store. ``discarded``: files that a broker deletes when it loads the index
    after an unclean shutdown.
    """

    def __init__(self, store: Store, clean: bool, trusted_until: int) -> None:
        """``clean``: whether the last shutdown was clean.
        ``trusted_until``: index time (ms) of the checkpoint. After an unclean shutdown, index files
        that end later are discarded.
        """
        self._most = _shape(store).max_entries
        self._topics = text.Dictionary()
        self._keys = IndexKeys(self._topics)
        self.kept: list[Loaded] = []
        self.discarded: list[Loaded] = []
        for file in store.index.listing.files:
            loaded = Loaded(file, _header(file))
            late = loaded.header is not None and loaded.header.end_timestamp > trusted_until
            (self.discarded if late and not clean else self.kept).append(loaded)
        last = self.kept[-1].header if self.kept else None
        self._has_file = bool(self.kept)
        self._count = max(1, last.index_count) if last else 1
        self._end_phy = last.end_phy_offset if last else 0
        self._end_time = last.end_timestamp if last else 0
        self._entries_at_end = self._last_entries(store)
        self._first: int | None = None
        self._gone: Callable[[Array], Array] = lambda place: np.zeros(len(place), bool)
        self._discarded_end = max((loaded.header.end_phy_offset for loaded in self.discarded
                                   if loaded.header), default=-1)
        self._trusted_end, self._returned = self._end_phy, 0
        self.entries = self.duplicates = self.created = 0
        self.uncounted: list[Loaded] = []
        """Discarded files that `lost` cannot read. Their lost entries are not counted."""
        self.rolled_at = 0
        """End time (ms) of the last index file that became full; 0 if no file became full. The
        broker writes this time to the checkpoint as index time.
        """

    @property
    def trusted_end(self) -> int:
        """Return the value of `end_phy` before any message is dispatched."""
        return self._trusted_end

    @property
    def end_phy(self) -> int:
        """Return the physical offset before which messages get no further index entry."""
        return self._end_phy

    def dispatch(self, batch: Batch, which: Array) -> None:
        """Add the keys of the records selected by ``which`` (bool), in order."""
        # From the first record that the index does not reach.
        record = np.flatnonzero(which)
        if not len(record):
            return
        if self._first is None:
            self._first = int(batch.offset[record[0]])
        self._current()
        start = int(np.searchsorted(batch.offset[record], self._end_phy, "left"))
        if start >= len(record):
            return
        # The keys of these records.
        topic = self._topics.encode(text.topics(batch))
        rows = self._keys.keys(properties(batch), topic).row
        kind = batch.column("sys_flag") & sysflag.TRANSACTION_MASK
        wanted = which & (kind != sysflag.TRANSACTION_ROLLBACK)
        wanted[:record[start]] = False
        rows = rows[wanted[rows]]
        # Entries that already exist.
        place, when = batch.offset[rows], batch.column("store_timestamp")[rows]
        self._returned += int((place <= self._discarded_end).sum())
        if len(rows) and self._entries_at_end:
            again = int((place == self._end_phy).sum())
            self.duplicates += min(again, self._entries_at_end)
        # The others, file by file.
        done = 0
        while done < len(rows):
            self._current()
            take = min(self._most - self._count, len(rows) - done)
            done += take
            self._count += take
            self._end_phy, self._end_time = int(place[done - 1]), int(when[done - 1])
            self._entries_at_end = int((place == self._end_phy).sum())
        self.entries += len(rows)
        if len(rows) and rows[-1] < record[-1]:
            self._current()

    def _last_entries(self, store: Store) -> int:
        """Return the number of entries of the last message in the last remaining file."""
        if not self.kept or self.kept[-1].header is None:
            return 0
        try:
            index = store.index.open(self.kept[-1].file)
        except (FormatError, StoreIOError):
            return 0
        try:
            number = number_of_first = self._count - 1
            while number_of_first > 0 and number - number_of_first < _MAX_KEYS:
                entry = index.entry(number_of_first)
                if entry is None or entry.physical_offset != self._end_phy:
                    break
                number_of_first -= 1
            return number - number_of_first
        finally:
            index.close()

    def lost(self, store: Store, end: int, gone: Callable[[Array], Array]) -> int:
        """Return the number of entries of the discarded files that are not recreated.

        An entry is not recreated if its message is not dispatched again, or has fewer keys than
        entries. Entries of lost messages, and entries that point to ``end`` (a physical offset) or
        beyond, are not counted.

        ``gone``: returns for each physical offset whether its message is lost.
        """
        if not self.discarded:
            return 0
        self._gone = gone
        again = min(end, max(end if self._first is None else self._first, self._trusted_end))
        before = self._discarded_before(store, again)
        between = self._discarded_before(store, end) - before
        return before + max(0, between - self._returned + self.duplicates)

    def _discarded_before(self, store: Store, end: int) -> int:
        """Count entries of the discarded files that point before physical offset ``end``."""
        lost = 0
        for loaded in self.discarded:
            try:
                index = store.index.open(loaded.file)
            except (FormatError, StoreIOError):
                if loaded not in self.uncounted:
                    self.uncounted.append(loaded)
                continue
            try:
                number, last = 1, min(index.count, index.shape.max_entries)
                while number < last:
                    many = min(_PAGE, last - number)
                    raw = index.source.read(index.shape.entry_position(number), many * ENTRY.size)
                    entries = ENTRY.array(raw)
                    if not len(entries):
                        break
                    place = entries["physical_offset"]
                    used = (place > 0) | (entries["key_hash"] != 0)
                    before_end = used & (place >= 0) & (place < end)
                    lost += int((before_end & ~self._gone(place.astype(np.int64))).sum())
                    number += len(entries)
            finally:
                index.close()
        return lost

    def _current(self) -> None:
        full = self._has_file and self._count >= self._most
        if full:
            self.rolled_at = self._end_time
        if full or not self._has_file:
            self._has_file, self._count = True, 1
            self.created += 1


def _header(file: StoreFile) -> HeaderRecord | None:
    try:
        with FileSource(file.path) as source:
            return HEADER.decode(source.read(0, HEADER.size).ljust(HEADER.size, b"\0"))
    except StoreIOError:
        return None


def _shape(store: Store) -> IndexShape:
    for index in store.index.newest_first():
        return index.shape
    saved = store.config.remembered
    slots = store.sizes.index_slots or saved.get("index_slots") or DEFAULT_SLOTS
    most = store.sizes.index_max or saved.get("index_max") or slots * DEFAULT_RATIO
    return IndexShape(slots, max(2, most))
