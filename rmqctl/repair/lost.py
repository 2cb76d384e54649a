"""The list of what is lost, with all that is known of each message."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rmqctl.checks.index_keys import Entries
from rmqctl.errors import StoreIOError
from rmqctl.formats.index_file import EntryRecord, entry_time
from rmqctl.repair.plan import Lost
from rmqctl.repair.salvage_rows import Known
from rmqctl.repair.salvage_survey import Region, Survey
from rmqctl.store.store import Store

_BLOCK = 4096
_SECOND = 1000


class IndexedKey(NamedTuple):
    """A key the index holds for a message: its hash and the second it was stored in (ms)."""

    key_hash: int
    time: int


def lost_messages(store: Store, survey: Survey, known: Known) -> tuple[Lost, ...]:
    """All lost messages in the order of their places, those of unknown place among them.

    A message of which only the index tells stands there with its keys alone.
    """
    keys = indexed_keys(store, survey.regions)
    starts = [one.start for one in survey.regions]
    found: list[Lost] = []
    for one in known.carried:
        own = one.own
        from_, to = _times(survey.regions, starts, one.physical if one.by != "gap" else None,
                           one.low, one.high)
        place = None if one.by == "gap" else one.physical
        found.append(_with_keys(
            Lost(own.topic, own.queue_id, own.queue_offset, place,
                 None if one.by == "gap" else one.size, from_, to, by=one.by), keys))
    for physical, size, record in known.bare:
        from_, to = _times(survey.regions, starts, physical, -1, 1 << 62)
        found.append(_with_keys(
            Lost(record.topic.decode("utf-8", "replace"), record.queue_id, record.queue_offset,
                 physical, size, from_, to, by="record"), keys))
    for physical in sorted(keys):
        from_, to = _times(survey.regions, starts, physical, -1, 1 << 62)
        found.append(_with_keys(Lost(None, None, None, physical, None, from_, to, by="index"),
                                keys))
    return tuple(sorted(found, key=lambda lost: (
        lost.physical_offset is None, lost.physical_offset or 0, lost.topic or "",
        lost.queue_id or 0, lost.queue_offset or 0)))


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
    entries = Entries(store)
    try:
        for region in regions:
            at = entries.seek(region.start)
            while at < entries.total:
                block = entries.read(at, _BLOCK)
                if not len(block):
                    break
                for number, values in enumerate(block.tolist()):
                    entry = EntryRecord(*values)
                    if region.start <= entry.physical_offset < region.end:
                        header = entries.files[entries.place(at + number).file].header
                        found.setdefault(entry.physical_offset, []).append(
                            IndexedKey(entry.key_hash, entry_time(header, entry)))
                if int(block["physical_offset"][-1]) >= region.end:
                    break
                at += len(block)
    except StoreIOError:
        pass  # the index only adds to what is known
    finally:
        entries.close()
    return found
