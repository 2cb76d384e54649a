"""The list of what is lost, with all that is known of each message."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rmqctl.checks.verify.index.keys import Entries
from rmqctl.errors import StoreIOError
from rmqctl.formats.local.index_file import EntryRecord, entry_time
from rmqctl.repair.plan import Lost
from rmqctl.repair.salvage.evidence import MOST_LISTED, Evidence
from rmqctl.repair.salvage.rows import Known, rank
from rmqctl.repair.salvage.survey import Region, Survey
from rmqctl.scan.frames import Array
from rmqctl.store.store import Store

_BLOCK = 1 << 15
_SECOND = 1000


class IndexedKey(NamedTuple):
    """A key the index holds for a message: its hash and the second it was stored in (ms)."""

    key_hash: int
    time: int


class LostMessages(NamedTuple):
    """``listed``: the first `MOST_LISTED`; ``total``: how many there are."""

    listed: tuple[Lost, ...]
    total: int


def lost_messages(store: Store, survey: Survey, known: Known, evidence: Evidence,
                  end: int) -> LostMessages:
    """The lost messages in the order of their places, those of unknown place behind them.

    Also those which consumequeues know behind the last file of the log (which ends at ``end``).
    A message of which only the index tells stands there with its keys alone.
    """
    regions = list(survey.regions)
    if evidence.beyond:
        regions.append(Region(-1, end, max(row.physical + row.size for row in evidence.beyond),
                              before=survey.last_time))
    starts = [one.start for one in regions]
    found: list[Lost] = []
    for one in known.carried:
        own, placed = one.own, one.by != "gap"
        from_, to = _times(regions, starts, one.physical if placed else None, one.low, one.high)
        found.append(Lost(own.topic, own.queue_id, own.queue_offset,
                          one.physical if placed else None, one.size if placed else None,
                          from_, to, by=one.by))
    for physical, size, record in known.bare:
        from_, to = _times(regions, starts, physical, -1, 1 << 62)
        found.append(Lost(record.topic.decode("utf-8", "replace"), record.queue_id,
                          record.queue_offset, physical, size, from_, to, by="record"))
    beyond = {row.physical: row for row in sorted(evidence.beyond, key=rank, reverse=True)}
    for row in beyond.values():
        from_, to = _times(regions, starts, row.physical, -1, 1 << 62)
        found.append(Lost(*row.key, row.queue_offset, row.physical, row.size, from_, to,
                          by="consumequeue"))
    total = len(found) + evidence.ahead - len(evidence.beyond)
    places = np.array([one.physical_offset for one in found
                       if one.physical_offset is not None], np.int64)
    for bulk in known.bulks.values():
        total += len(bulk)
        places = np.concatenate([places, bulk.physical])
        found += [Lost(*row.key, row.queue_offset, row.physical, row.size, bulk.region.before,
                       bulk.region.after, by="consumequeue") for row in bulk.rows(MOST_LISTED)]
    places.sort()
    found.sort(key=_order)
    del found[MOST_LISTED:]
    wanted = {one.physical_offset for one in found if one.physical_offset is not None}
    keys, others = _known_keys(store, regions, wanted, places, end)
    found = [_with_keys(one, keys) for one in found]
    if evidence.beyond:
        regions.pop()
    for physical in sorted(keys):
        from_, to = _times(regions, starts, physical, -1, 1 << 62)
        found.append(_with_keys(Lost(None, None, None, physical, None, from_, to, by="index"),
                                keys))
    found.sort(key=_order)
    return LostMessages(tuple(found[:MOST_LISTED]), total + others)


def _order(lost: Lost) -> tuple[bool, int, str, int, int]:
    return (lost.physical_offset is None, lost.physical_offset or 0, lost.topic or "",
            lost.queue_id or 0, lost.queue_offset or 0)


def _with_keys(lost: Lost, keys: dict[int, list[IndexedKey]]) -> Lost:
    mine = keys.pop(lost.physical_offset, None) if lost.physical_offset is not None else None
    if not mine:
        return lost
    low = [one for one in (lost.time_from, min(key.time for key in mine)) if one is not None]
    high = [one for one in (lost.time_to, max(key.time for key in mine) + _SECOND - 1)
            if one is not None]
    from_, to = max(low), min(high)
    if from_ > to:  # the index's header is of another time: it tells nothing
        from_, to = lost.time_from or from_, lost.time_to or to
    return replace(lost, key_hashes=tuple(key.key_hash for key in mine), time_from=from_,
                   time_to=to)


def _times(regions: Sequence[Region], starts: Sequence[int], physical: int | None, low: int,
           high: int) -> tuple[int | None, int | None]:
    """Store times of the intact messages around a place, or around a range of places."""
    if physical is not None:
        at = bisect_right(starts, physical) - 1
        if at >= 0 and physical < regions[at].end:
            return regions[at].before, regions[at].after
        return None, None
    first, last = bisect_right(starts, low), bisect_right(starts, high) - 1
    if first > last:
        return None, None
    return regions[first].before, regions[last].after


def indexed_keys(store: Store, regions: Sequence[Region]) -> dict[int, list[IndexedKey]]:
    """Keys which the index files hold for places in the regions, by physical offset."""
    found: dict[int, list[IndexedKey]] = {}
    for physical, key in _keys(store, regions):
        found.setdefault(physical, []).append(key)
    return found


def _known_keys(store: Store, regions: Sequence[Region], wanted: set[int], places: Array,
                end: int) -> tuple[dict[int, list[IndexedKey]], int]:
    """(keys by place, how many places before ``end`` only the index knows).

    Keys of the ``wanted`` places, and of the first ones that are none of ``places`` (ascending).
    An index is not cut with its log, so what it alone knows behind ``end`` may be long gone.
    """
    known = np.array(sorted(wanted), np.int64)
    seen: list[Array] = []

    def chosen(physical: Array) -> Array:
        others = ~_among(physical, places) & (physical < end)
        fresh = np.unique(physical[others])
        if len(fresh):
            seen.append(fresh)
            others &= sum(map(len, seen)) <= MOST_LISTED
        return others | _among(physical, known)

    found: dict[int, list[IndexedKey]] = {}
    for physical, key in _keys(store, regions, chosen):
        found.setdefault(physical, []).append(key)
    return found, len(np.unique(np.concatenate(seen))) if seen else 0


def _among(values: Array, ascending: Array) -> Array:
    at = np.searchsorted(ascending, values)
    found: Array = np.zeros(len(values), bool)
    inside = at < len(ascending)
    found[inside] = ascending[at[inside]] == values[inside]
    return found


def _keys(store: Store, regions: Sequence[Region], chosen: Callable[[Array], Array] | None = None,
          ) -> Iterator[tuple[int, IndexedKey]]:
    """(physical offset, key) of the entries that lead into the regions, in their order.

    ``chosen``: says of physical offsets which are wanted (bool).
    """
    entries = Entries(store)
    try:
        for region in regions:
            at = entries.seek(region.start)
            while at < entries.total:
                block = entries.read(at, _BLOCK)
                if not len(block):
                    break
                physical = block["physical_offset"]
                rows = np.flatnonzero((physical >= region.start) & (physical < region.end))
                if chosen is not None and len(rows):
                    rows = rows[chosen(physical[rows].astype(np.int64))]
                files = np.searchsorted(entries.starts, at + rows, "right") - 1
                for values, file in zip(block[rows].tolist(), files.tolist(), strict=True):
                    entry = EntryRecord(*values)
                    yield entry.physical_offset, IndexedKey(
                        entry.key_hash, entry_time(entries.files[file].header, entry))
                if int(physical[-1]) >= region.end:
                    break
                at += len(block)
    except StoreIOError:
        return  # the index only adds to what is known
    finally:
        entries.close()
