"""Identify the store that positions belong to by records of its log, not by name and path.

A store that was moved, renamed or is served in another order has the same records at the same
physical offsets. Kept are those with which its first and its last log file begin: the first one
goes when a broker deletes old files, the last one when a log is cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.end import first_record

ANCHORS = "records"
"""The field of an entry: lists of physical offset, size and digest."""
_MOST_READ = 16 << 20
_MOST = 4
"""Records of an entry that are looked at; two are written."""


def anchors_of(log: CommitLog) -> list[list[int | str]]:
    """Return (physical offset, size, digest) of the records that identify a log; empty for a log
    that is empty or cannot be read.
    """
    found: list[list[int | str]] = []
    first = first_record(log)
    places = ([] if first is None else [first.physical_offset]) + [
        file.base for file in log.files[-1:]]
    for place in dict.fromkeys(places):
        raw = log.raw_at(place)
        if raw is not None:
            found.append([place, len(raw), _digest(raw)])
    return found


def is_of(log: CommitLog, entry: Mapping[str, Any]) -> bool:
    """Return whether one of the records that an entry names lies in the log."""
    anchors = entry.get(ANCHORS)
    for anchor in anchors[:_MOST] if isinstance(anchors, list) else ():
        match anchor:
            case [int(place), int(size), str(digest)] if 0 < size <= _MOST_READ:
                raw = log.raw_at(place, size)
                if raw is not None and _digest(raw) == digest:
                    return True
    return False


def keys_in(entries: Mapping[str, Any], names: Sequence[str], logs: Sequence[CommitLog]
            ) -> list[str | None]:
    """Return, for each store with its name and its log, the name of its entry in the file; None if
    it has none.

    An entry without records (of an older version) is that of its name. One that names records is
    of the stores that have one of them: first of the store of the same name, then of one that no
    other store took.
    """
    found: list[str | None] = []
    for name, log in zip(names, logs, strict=True):
        entry = entries.get(name)
        has_anchors = isinstance(entry, dict) and bool(entry.get(ANCHORS))
        found.append(name if entry is not None and (
            not has_anchors or is_of(log, entry)) else None)
    taken = {name for name in found if name is not None}
    for number, log in enumerate(logs):
        if found[number] is None:
            found[number] = next((name for name, entry in entries.items() if name not in taken
                                  and isinstance(entry, dict) and is_of(log, entry)), None)
            taken |= {found[number] or ""}
    return found


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:32]
