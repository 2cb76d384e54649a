"""Comparison of the keys in the log with the index entries, by column and in both directions.

A broker indexes messages in log order. So the entries of all index files, one file after the other,
are the log's keys in order. They are compared block by block. Unmatched keys and entries are
collected and paired at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array
from rmqctl.store.index.entries import AllIndexEntries, EntryPlace, OpenedFile

MAX_LISTED = 200_000
_MARGIN = 4096
"""Number of entries that are read at a time to find the last entry that belongs to a block."""


@dataclass(slots=True)
class KeyTally:
    """Index entries without a key and keys without an index entry, in one range of the log."""

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

    def settle(self) -> list[tuple[int, int, EntryPlace]]:
        """Pair the unmatched entries of one block with the unmatched keys of another. Return these
        entries; their times were not compared.
        """
        if not self.extra or not self.missing:
            return []
        wanted = Counter(self.missing)
        extra, paired_entries = [], []
        for entry in self.extra:
            if wanted.get(entry[:2], 0) > 0:
                wanted[entry[:2]] -= 1
                paired_entries.append(entry)
            else:
                extra.append(entry)
        self.extra = extra
        self.missing = sorted(wanted.elements())
        return paired_entries


def paired(wanted: tuple[Array, Array], actual: tuple[Array, Array]) -> tuple[Array, Array]:
    """Pair equal items (position, hash) of two lists; each item is used once. Return two arrays:

    * for each actual item, the index of the wanted item that it is paired with (-1: not paired)
    * the indices of the wanted items that are not paired
    """
    count = len(wanted[0])
    place, hashes = (np.concatenate(both) for both in zip(wanted, actual, strict=True))
    # Sort equal ones next to each other, the wanted ones first.
    order = _by_place(place, hashes)
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
    # Wanted ones without a partner, in their original order.
    short = np.flatnonzero(asked > given)
    lacking = np.argsort(order[first[short]], kind="stable")
    left: Array = np.repeat(order[first[short]][lacking], (asked - given)[short][lacking])
    return partner, left


def _by_place(place: Array, hashes: Array) -> Array:
    """Return the indices that sort the items by position and hash; equal items keep their order."""
    low = int(place.min(initial=0))
    if int(place.max(initial=0)) - low < 1 << 31 and int(hashes.min(initial=0)) >= 0:
        # Sorting one column that is nearly in order takes a fraction of the time.
        return np.argsort(((place - low) << 31) + hashes, kind="stable")
    return np.lexsort((hashes, place))


class KeyCheck:
    """Comparison of the keys of messages, added block by block in log order, with index entries.

    The comparison stops at the first unreadable entries, which the check of the index files
    reports.
    """

    def __init__(self, entries: AllIndexEntries, start: int) -> None:
        self.entries, self.tally = entries, KeyTally(files=entries.files)
        self.position = 0
        self.unreadable = False
        try:
            self.position = entries.seek(start) if start > 0 else 0
        except StoreIOError:
            self.unreadable = True
        self.begins = np.array([file.header.begin_timestamp for file in entries.files], np.int64)

    def compare(self, physical: Array, key_hash: Array, store_time: Array, end: int) -> None:
        """Compare the next keys with index entries.

        The keys of all messages before physical offset ``end`` are given in index order, as int64
        columns.
        """
        try:
            if not self.unreadable:
                self._compare(physical, key_hash, store_time, end)
        except StoreIOError:
            self.unreadable = True

    def late_of(self, paired_entries: Sequence[tuple[int, int, EntryPlace]],
                store_times: Array) -> list[tuple[int, int, EntryPlace]]:
        """Return those entries that `KeyTally.settle` paired and whose time differs from the store
        time (ms) of their message.
        Raises: StoreIOError.
        """
        positions = np.array([self.entries.starts[place.file] + place.entry - 1
                              for _, _, place in paired_entries], np.int64)
        read = [self.entries.read(position, 1) for position in positions.tolist()]
        if read:
            self._times(np.concatenate(read), store_times, positions)
        return self.tally.late

    def passed(self, position: int, extra: Array) -> None:
        """Record that the index entries before entry number ``position`` match the keys, except
        the entries ``extra`` (as rows: physical offset, hash, entry number).
        """
        self._keep_extra(*extra.T)
        self.tally.expected += position - self.position - len(extra)
        self.tally.actual += position - self.position
        self.position = position

    def _compare(self, physical: Array, key_hash: Array, store_time: Array, end: int) -> None:
        count = len(physical)
        self.tally.expected += count
        entries = self.entries.read(self.position, count)
        if len(entries) == count and (entries["physical_offset"] == physical).all() and (
                entries["key_hash"] == key_hash).all():
            self._times(entries, store_time, np.arange(self.position, self.position + count))
            self.position += count
            self.tally.actual += count
            return
        self._pair(physical, key_hash, store_time, end, entries)

    def _times(self, entries: Array, store_time: Array, position: Array) -> None:
        """Compare the times in entries with the store times of their messages. An entry contains
        the number of seconds since the begin time of its file, rounded down (index.md §6).
        """
        if not len(entries):
            return
        number = np.searchsorted(self.entries.starts, position, "right") - 1
        when = self.begins[number] + entries["time_diff"].astype(np.int64) * 1000
        late = (when > store_time) | (when <= store_time - 1000)
        # If the clock was set back, times before the file's begin time count from it.
        late &= (entries["time_diff"] != 0) | (store_time > when)
        for index in np.flatnonzero(late)[:1000].tolist():
            place = self.entries.place(int(position[index]))
            if place.entry == 1 and self._rolled(place.file, int(entries["time_diff"][index])):
                continue
            if len(self.tally.late) < MAX_LISTED:
                self.tally.late.append((int(entries["physical_offset"][index]), int(when[index]),
                                        place))

    def _rolled(self, file: int, diff: int) -> bool:
        """Return whether the first entry of an index file may have the time difference ``diff``.

        In a rolled file, this time is counted from the end of an earlier file. That is the previous
        file, which may have expired, or the last file by name (index.md §7).
        """
        if file == 0:
            return diff >= 0 and self.entries.files[0].header.begin_phy_offset > 0
        begin = self.entries.files[file].header.begin_timestamp
        return any(diff == max(0, begin - before.header.end_timestamp) // 1000
                   for before in self.entries.files[:file])

    def _pair(self, physical: Array, key_hash: Array, store_time: Array, end: int,
              window: Array) -> None:
        # As many entries as point before the end. ``window``: the first of them.
        more = _MARGIN
        while True:
            after = self.position + len(window)
            window = np.concatenate((window, self.entries.read(after, more)))
            # A damaged entry with a huge offset must not hide the good ones after it.
            least = np.minimum.accumulate(window["physical_offset"][::-1])[::-1]
            taken = int(np.searchsorted(least, end))
            if taken + _MARGIN // 2 < len(window) or self.position + len(window) in (
                    after, self.entries.total):
                break
            more *= 2
        window = window[:taken]
        # As many entries of each key as the log has; the times of these count, too.
        place, hashes = (window[name].astype(np.int64) for name in ("physical_offset", "key_hash"))
        key, left = paired((physical, key_hash), (place, hashes))
        matched = np.flatnonzero(key >= 0)
        self._times(window[matched], store_time[key[matched]], self.position + matched)
        # The others are listed, up to a limit.
        extra = np.flatnonzero(key < 0)
        self._keep_extra(place[extra], hashes[extra], self.position + extra)
        room = max(0, MAX_LISTED - len(self.tally.missing))
        self.tally.missing += zip(physical[left[:room]].tolist(), key_hash[left[:room]].tolist(),
                                  strict=True)
        self.tally.unlisted_missing += len(left[room:])
        self.position += taken
        self.tally.actual += taken

    def _keep_extra(self, place: Array, hashes: Array, position: Array) -> None:
        """Record entries without a key."""
        room = max(0, MAX_LISTED - len(self.tally.extra))
        self.tally.extra += zip(place[:room].tolist(), hashes[:room].tolist(),
                                map(self.entries.place, position[:room].tolist()), strict=True)
        if len(place) > room:
            self.tally.unlisted_extra += len(place) - room
            self.tally.unlisted_from = min(self.tally.unlisted_from, int(place[room:].min()))

    def finish(self, end: int | None) -> None:
        """Record as unmatched the remaining entries that point before physical offset ``end``
        (None: all remaining entries).
        """
        none = np.zeros(0, np.int64)
        limit = (1 << 63) - 1 if end is None else end
        before = -1
        while not self.unreadable and before < self.position < self.entries.total:
            before = self.position
            try:
                self._pair(none, none, none, limit, self.entries.read(self.position, _MARGIN))
            except StoreIOError:
                self.unreadable = True
