"""Keys of the log against entries of the index, by column and in both directions.

A broker indexes messages in log order, so the entries of all index files, one file after the
other, are the log's keys in order. They are compared block by block; what does not pair up at
once is kept aside and paired at the end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.index_file import ENTRY, HeaderRecord, Shape, dtype
from rmqctl.kernel import active
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource
from rmqctl.store.index_shape import UnknownShapeError
from rmqctl.store.store import Store

KEEP = 200_000
_FAR = 16 << 20
"""Bytes: four times the largest message that a broker takes by default."""


class EntryPlace(NamedTuple):
    """Where an entry stands: number of the index file (oldest first) and entry number."""

    file: int
    entry: int


class OpenedFile(NamedTuple):
    """What stays known of an index file that could be opened."""

    path: str
    shape: Shape
    header: HeaderRecord


@dataclass(slots=True)
class KeyTally:
    """Entries without key and keys without entry, of one range of the log."""

    expected: int = 0
    actual: int = 0
    extra: list[tuple[int, int, EntryPlace]] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    late: list[tuple[int, int, EntryPlace]] = field(default_factory=list)
    files: list[OpenedFile] = field(default_factory=list)
    unlisted_extra: int = 0
    unlisted_from: int = 1 << 62
    unlisted_missing: int = 0

    def merge(self, other: KeyTally) -> None:
        self.files = self.files or other.files
        self.expected += other.expected
        self.actual += other.actual
        self.extra += other.extra
        self.missing += other.missing
        self.late += other.late
        self.unlisted_extra += other.unlisted_extra
        self.unlisted_from = min(self.unlisted_from, other.unlisted_from)
        self.unlisted_missing += other.unlisted_missing

    def settle(self) -> None:
        """Pairs what was left over in one block with what was left over in another."""
        if not self.extra or not self.missing:
            return
        wanted = Counter(self.missing)
        extra = []
        for entry in self.extra:
            if wanted.get(entry[:2], 0) > 0:
                wanted[entry[:2]] -= 1
            else:
                extra.append(entry)
        self.extra = extra
        self.missing = sorted(wanted.elements())


class Entries:
    """All entries of the readable index files as one sequence, read by blocks."""

    def __init__(self, store: Store) -> None:
        self.files: list[OpenedFile] = []
        self.unknown = False
        """Whether a file has entries that cannot be read: a worn disk, or a shape nothing tells."""
        self._sources: list[FileSource] = []
        self.counts: list[int] = []
        for file in store.index_listing.files:
            try:
                index = store.open_index(file)
            except UnknownShapeError as error:
                self.unknown |= error.sound and error.entries > 0
                continue
            except FormatError:
                continue
            except StoreIOError:
                self.unknown = True
                continue
            self.files.append(OpenedFile(file.path, index.shape, index.header))
            self._sources.append(index.source)
            room = max(0, (index.source.size - index.shape.entry_position(1)) // ENTRY.size)
            self.counts.append(min(index.header.entries, room))
        self._by_age()
        self.starts = np.cumsum([0, *self.counts]).tolist()

    def _by_age(self) -> None:
        """Names are no order where a clock was set back; headers are, if they fit each other."""
        headers = [file.header for file in self.files]
        order = sorted(range(len(headers)), key=lambda number: (
            not self.counts[number], headers[number].begin_phy_offset))
        used = [headers[number] for number in order if self.counts[number]]
        if all(header.begin_phy_offset <= header.end_phy_offset for header in used) and all(
                before.end_phy_offset <= behind.begin_phy_offset
                for before, behind in pairwise(used)):
            self.files = [self.files[number] for number in order]
            self._sources = [self._sources[number] for number in order]
            self.counts = [self.counts[number] for number in order]

    @property
    def total(self) -> int:
        return int(self.starts[-1])

    def place(self, position: int) -> EntryPlace:
        number = int(np.searchsorted(self.starts, position, "right")) - 1
        return EntryPlace(number, position - self.starts[number] + 1)

    def read(self, position: int, count: int) -> Array:
        """Up to ``count`` entries from a position of the sequence on (structured array)."""
        parts = []
        end = min(position + count, self.total)
        while position < end:
            number, entry = self.place(position)
            count_here = min(end - position, self.counts[number] - entry + 1)
            data = self._sources[number].read(
                self.files[number].shape.entry_position(entry), count_here * ENTRY.size)
            got = len(data) // ENTRY.size
            parts.append(data[:got * ENTRY.size])
            if got < count_here:
                break
            position += count_here
        return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype())

    def seek(self, physical: int) -> int:
        """The position of the first entry that leads to ``physical`` or behind, by bisection."""
        low, high = 0, self.total
        while low < high:
            middle = (low + high) // 2
            entry = self.read(middle, 1)
            if len(entry) and int(entry["physical_offset"][0]) < physical:
                low = middle + 1
            else:
                high = middle
        return low

    def close(self) -> None:
        for source in self._sources:
            source.close()


def written(block: Array) -> Array:
    """Which entries have anything in them (bool): all zeros is a place that was never written, and
    says nothing, whatever the header counts.
    """
    anything: Array = np.zeros(len(block), bool)
    for name in block.dtype.names or ():
        anything |= block[name] != 0
    return anything


def turned_place(rows: Array, keyed: Array, end: int, files_end: int) -> tuple[int, int] | None:
    """(where a row leads, where its message was) for the last row of all, where one bit of its
    place was turned; None where nothing tells so.

    ``rows``, ``keyed``: the places of lost messages (int64, ascending) that rows of consumequeues
    and entries of the index lead to. The log is intact up to ``end`` and has files up to
    ``files_end``. That message is the newest of which anything is known, and no other row leads to
    it; its own one leads behind the last file, or farther than any message reaches.
    """
    if not len(rows) or not len(keyed):
        return None
    row, place = int(rows[-1]), int(keyed[-1])
    is_newest = end <= place < files_end and (len(rows) < 2 or int(rows[-2]) < place)
    is_far = row >= files_end or row - place >= _FAR
    return (row, place) if is_newest and is_far and (row ^ place).bit_count() == 1 else None


def paired(wanted: tuple[Array, Array], actual: tuple[Array, Array]) -> tuple[Array, Array]:
    """Pairs equal (place, hash) of two lists, each once: (for each actual one the number of a
    wanted one like it, -1 where none is left; numbers of the wanted ones without a partner).
    """
    count = len(wanted[0])
    place, hashes = (np.concatenate(both) for both in zip(wanted, actual, strict=True))
    # Equal ones beside each other, the wanted ones first.
    order = np.lexsort((hashes, place))
    place, hashes = place[order], hashes[order]
    first = np.flatnonzero(np.append(True, (np.diff(place) != 0) | (np.diff(hashes) != 0))[
        :len(order)])
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    is_wanted = order < count
    asked = np.bincount(group, is_wanted, len(first)).astype(np.int64)
    given = np.bincount(group, ~is_wanted, len(first)).astype(np.int64)
    partner: Array = np.full(len(actual[0]), -1, np.int64)
    turn = np.arange(len(order)) - first[group] - asked[group]
    met = np.flatnonzero(~is_wanted & (turn < asked[group]))
    partner[order[met] - count] = order[first[group[met]]]
    # Those that nothing is left for, in the order in which they were asked for.
    short = np.flatnonzero(asked > given)
    lacking = np.argsort(order[first[short]], kind="stable")
    left: Array = np.repeat(order[first[short]][lacking], (asked - given)[short][lacking])
    return partner, left


class KeyCheck:
    """Compares the keys of messages, handed in by blocks in log order, with the entries.

    It ends with the first entries that cannot be read: whoever looks at the files says so.
    """

    def __init__(self, entries: Entries, start: int) -> None:
        self.entries, self.tally = entries, KeyTally(files=entries.files)
        self.position = 0
        self.unreadable = False
        try:
            self.position = entries.seek(start) if start > 0 else 0
        except StoreIOError:
            self.unreadable = True
        self._begins = np.array([file.header.begin_timestamp for file in entries.files], np.int64)

    def compare(self, physical: Array, key_hash: Array, store_time: Array, end: int) -> None:
        """Keys in index order (int64 columns) of all messages before physical offset ``end``."""
        try:
            if not self.unreadable:
                self._compare(physical, key_hash, store_time, end)
        except StoreIOError:
            self.unreadable = True

    def _compare(self, physical: Array, key_hash: Array, store_time: Array, end: int) -> None:
        count = len(physical)
        self.tally.expected += count
        entries = self.entries.read(self.position, count)
        kernel = active()
        if kernel is not None:
            agree, in_time = kernel.entries_agree(
                entries.view(np.uint8), physical, key_hash, store_time, self.position,
                np.array(self.entries.starts, np.int64), self._begins)
            if agree and in_time:
                self.position += count
                self.tally.actual += count
                return
        if len(entries) == count and (entries["physical_offset"] == physical).all() and (
                entries["key_hash"] == key_hash).all():
            self._times(entries, store_time, np.arange(self.position, self.position + count))
            self.position += count
            self.tally.actual += count
            return
        self._pair(physical, key_hash, store_time, end)

    def _times(self, entries: Array, store_time: Array, position: Array) -> None:
        """Of entries at positions of the sequence against the store times of their messages: whole
        seconds from their file's begin, cut off (index.md §6).
        """
        if not len(entries):
            return
        number = np.searchsorted(self.entries.starts, position, "right") - 1
        when = self._begins[number] + entries["time_diff"].astype(np.int64) * 1000
        late = (when > store_time) | (when <= store_time - 1000)
        # A clock that was set back: what is older than the file's begin counts from it.
        late &= (entries["time_diff"] != 0) | (store_time > when)
        for index in np.flatnonzero(late)[:1000].tolist():
            place = self.entries.place(int(position[index]))
            if place.entry == 1 and self._rolled(place.file, int(entries["time_diff"][index])):
                continue
            if len(self.tally.late) < KEEP:
                self.tally.late.append((int(entries["physical_offset"][index]), int(when[index]),
                                        place))

    def _rolled(self, file: int, diff: int) -> bool:
        """Whether ``diff`` may stand in entry 1: in a rolled file it counts from the end of the
        file before (index.md §7), which may have expired, or of the last one by name.
        """
        if file == 0:
            return diff >= 0 and self.entries.files[0].header.begin_phy_offset > 0
        begin = self.entries.files[file].header.begin_timestamp
        return any(diff == max(0, begin - before.header.end_timestamp) // 1000
                   for before in self.entries.files[:file])

    def _pair(self, physical: Array, key_hash: Array, store_time: Array, end: int) -> None:
        window = self.entries.read(self.position, 2 * len(physical) + 4096)
        # A damaged entry with a huge offset must not hide the good ones behind it.
        least = np.minimum.accumulate(window["physical_offset"][::-1])[::-1]
        taken = int(np.searchsorted(least, end))
        window = window[:taken]
        # Of each key as many entries as it has been met with; the times of these count, too.
        place, hashes = (window[name].astype(np.int64) for name in ("physical_offset", "key_hash"))
        key, left = paired((physical, key_hash), (place, hashes))
        found = np.flatnonzero(key >= 0)
        self._times(window[found], store_time[key[found]], self.position + found)
        # The others are listed, up to a bound.
        extra = np.flatnonzero(key < 0)
        room = max(0, KEEP - len(self.tally.extra))
        for index in extra[:room].tolist():
            self.tally.extra.append((int(place[index]), int(hashes[index]),
                                     self.entries.place(self.position + index)))
        if len(extra) > room:
            self.tally.unlisted_extra += len(extra) - room
            self.tally.unlisted_from = min(self.tally.unlisted_from,
                                           int(place[extra[room:]].min()))
        room = max(0, KEEP - len(self.tally.missing))
        self.tally.missing += zip(physical[left[:room]].tolist(), key_hash[left[:room]].tolist(),
                                  strict=True)
        self.tally.unlisted_missing += len(left[room:])
        self.position += taken
        self.tally.actual += taken

    def finish(self, end: int | None) -> None:
        """Takes the entries left before physical offset ``end`` (None: all) as extra."""
        none = np.zeros(0, np.int64)
        limit = (1 << 63) - 1 if end is None else end
        before = -1
        while not self.unreadable and before < self.position < self.entries.total:
            before = self.position
            try:
                self._pair(none, none, none, limit)
            except StoreIOError:
                self.unreadable = True
