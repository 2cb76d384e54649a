"""The times of undecided records, compared with the times in the checkpoint: evidence for the user.

No decision depends on it. A message may be on the disk after these times, and the body of a message
may contain a record with any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from rmqctl.formats.local.checkpoint import YEAR_3000
from rmqctl.parse_values import time_text
from rmqctl.store.store import Store

_MAX_READ = 1000
"""Maximum number of undecided records whose times are read."""


def sound_times(store: Store) -> tuple[int, int] | None:
    """Return physicMsgTimestamp and logicsMsgTimestamp of the checkpoint, in ms; None if the
    checkpoint is missing or one of the times is invalid.
    """
    saved = store.checkpoint
    times = None if saved is None else (saved.physic_msg_timestamp, saved.logics_msg_timestamp)
    return times if times is not None and all(0 < time < YEAR_3000 for time in times) else None


def time_evidence(store: Store, stored: int) -> str | None:
    """Return a text that compares a store time (ms) with the checkpoint; None if the checkpoint has
    no valid times.
    """
    times = sound_times(store)
    if times is None:
        return None
    physic, logics = ("after" if stored > time else "not after" for time in times)
    return (f"its store time {time_text(stored)} is {physic} physicMsgTimestamp "
            f"({time_text(times[0])}) and {logics} logicsMsgTimestamp ({time_text(times[1])})")


def note_on_times(store: Store, places: Sequence[tuple[int, int | None]]) -> str | None:
    """Return a note on how many undecided records were stored after the times of the checkpoint;
    None if this is unknown.

    ``places``: physical offset and size (None: unknown) of each record.
    """
    times = sound_times(store)
    stored = [] if times is None else [*_stored(store, places)]
    if times is None or not stored:
        return None
    after = [sum(time < value for value in stored) for time in times]
    count = len(stored)
    return ("checkpoint: undecided records stored after physicMsgTimestamp "
            f"({time_text(times[0])}): {after[0]} of {count}, after logicsMsgTimestamp "
            f"({time_text(times[1])}): {after[1]} of {count}; these times are no proof")


def _stored(store: Store, places: Iterable[tuple[int, int | None]]) -> Iterable[int]:
    for place, size in islice(places, _MAX_READ):
        record = store.log.record_at(place, size)
        if record is not None:
            yield record.store_timestamp
