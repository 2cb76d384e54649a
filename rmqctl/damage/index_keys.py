"""Keys of messages in the index, by the physical offsets that the index entries point to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rmqctl.damage.evidence import MAX_LISTED
from rmqctl.damage.survey.survey import Region
from rmqctl.errors import StoreIOError
from rmqctl.formats.local.index_file import EntryRecord, HeaderRecord, entry_time
from rmqctl.scan.frames import Array, distinct
from rmqctl.store.index.entries import AllIndexEntries, written
from rmqctl.store.store import Store

SECOND = 1000
_BLOCK = 1 << 15
_FAR = 1 << 20
"""Minimum distance in bytes between two messages at which their index entries are searched for
separately.
"""


_FARTHEST = 16 << 20
"""Minimum distance in bytes from a message to the offset in its entry at which the entry counts as
pointing too far. The distance is four times the largest message that a broker accepts by default.
"""


class IndexedKey(NamedTuple):
    """A key of a message in the index.

    * ``key_hash``: the hash of the key.
    * ``time``: the start of the second in which the message was stored (ms).
    * ``is_begin``: whether ``time`` is the begin time of the index file. The entries of messages
      older than the file also contain this time.
    * ``exact``: whether ``time`` is the exact store time.
    """

    key_hash: int
    time: int
    is_begin: bool = False
    exact: bool = False

    def agrees(self, time: int) -> bool:
        """Return whether a broker would write this entry for a message with this store time.

        For a message older than the index file's begin time, a broker writes the begin time
        (index.md §6).
        """
        return self.time <= time < self.time + SECOND or (self.is_begin and time < self.time)


def keys_of_places(store: Store, places: Iterable[int]) -> dict[int, list[IndexedKey]]:
    """Return, by physical offset, the keys in the index files for messages at these offsets."""
    wanted = np.array(sorted(places), np.int64)
    cuts = np.flatnonzero(np.diff(wanted) > _FAR) + 1
    regions = [Region(-1, int(near[0]), int(near[-1]) + 1)
               for near in np.split(wanted, cuts) if len(near)]
    by_place: dict[int, list[IndexedKey]] = {}
    for physical, key in _keys(store, regions, lambda physical: _among(physical, wanted)):
        by_place.setdefault(physical, []).append(key)
    return by_place


def known_keys(store: Store, regions: Sequence[Region], wanted: set[int], places: Array,
                end: int) -> tuple[dict[int, list[IndexedKey]], int]:
    """Return (index keys by physical offset, number of offsets that only the index contains).

    The keys are those for the ``wanted`` offsets, and for the first offsets that are not in
    ``places`` (ascending). Offsets from ``end`` on that only the index contains are ignored,
    because they may belong to another log.
    """
    wanted_places = np.array(sorted(wanted), np.int64)
    seen: list[Array] = []

    def chosen(physical: Array) -> Array:
        others = ~_among(physical, places) & (physical < end)
        fresh = distinct(physical[others])
        if len(fresh):
            seen.append(fresh)
            others &= sum(map(len, seen)) <= MAX_LISTED
        return others | _among(physical, wanted_places)

    by_place: dict[int, list[IndexedKey]] = {}
    for physical, key in _keys(store, regions, chosen):
        by_place.setdefault(physical, []).append(key)
    return by_place, len(distinct(np.concatenate(seen))) if seen else 0


def _among(values: Array, ascending: Array) -> Array:
    place = np.searchsorted(ascending, values)
    among: Array = np.zeros(len(values), bool)
    inside = place < len(ascending)
    among[inside] = ascending[place[inside]] == values[inside]
    return among


def _keys(store: Store, regions: Sequence[Region], chosen: Callable[[Array], Array] | None = None,
          ) -> Iterator[tuple[int, IndexedKey]]:
    """Yield (physical offset, key) of each index entry that points into the regions, in file order.

    ``chosen``: function that returns, for each physical offset, whether its entries are wanted.
    """
    entries = AllIndexEntries(store)
    try:
        for region in regions:
            # Entries follow the log: from the first that may lead into the region on.
            position = entries.seek(region.start)
            while position < entries.total:
                block = entries.read(position, _BLOCK)
                if not len(block):
                    break
                # Those that lead into the region, of these the wanted ones.
                physical = block["physical_offset"]
                rows = np.flatnonzero((physical >= region.start) & (physical < region.end)
                                      & written(block))
                if chosen is not None and len(rows):
                    rows = rows[chosen(physical[rows].astype(np.int64))]
                files = np.searchsorted(entries.starts, position + rows, "right") - 1
                for row, values, file in zip(rows.tolist(), block[rows].tolist(), files.tolist(),
                                             strict=True):
                    entry = EntryRecord(*values)
                    yield entry.physical_offset, _key(
                        entry, entries.files[file].header,
                        is_first=position + row == entries.starts[file])
                # The rest leads after the region.
                if int(physical[-1]) >= region.end:
                    break
                position += len(block)
    except StoreIOError:
        return  # the index only adds to what is known
    finally:
        entries.close()


def _key(entry: EntryRecord, header: HeaderRecord, *, is_first: bool) -> IndexedKey:
    """Return the key of an entry.

    Only the first and the last message in the file have exact store times, which are in the file's
    header (index.md §6).
    """
    if is_first:
        return IndexedKey(entry.key_hash, header.begin_timestamp, exact=True)
    if entry.physical_offset == header.end_phy_offset:
        return IndexedKey(entry.key_hash, header.end_timestamp, exact=True)
    return IndexedKey(entry.key_hash, entry_time(header, entry), is_begin=not entry.time_diff)


def turned_place(rows: Array, keyed: Array, end: int, files_end: int) -> tuple[int, int] | None:
    """Find a consume queue entry that points too far because of one flipped bit.

    Return the physical offset in the entry, and the physical offset of its message; None if nothing
    indicates such an entry.

    * ``rows``, ``keyed``: physical offsets (int64, ascending) of lost messages to which consume
      queue entries and index entries point.
    * ``end``: the log is intact up to this physical offset.
    * ``files_end``: end of the log's files.

    The message must be the newest known message, and no other consume queue entry may point to it.
    Its entry must point after the last file, or farther than any message reaches.
    """
    if not len(rows) or not len(keyed):
        return None
    row, place = int(rows[-1]), int(keyed[-1])
    is_newest = end <= place < files_end and (len(rows) < 2 or int(rows[-2]) < place)
    is_far = row >= files_end or row - place >= _FARTHEST
    return (row, place) if is_newest and is_far and (row ^ place).bit_count() == 1 else None
