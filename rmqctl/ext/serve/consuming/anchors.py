"""Identification of a store by records of its log, to match saved consumer offsets to the right
store.

A store keeps the same records at the same physical offsets when it is moved, renamed or served in
another order. Two records are saved: the first record of the first log file, and the first record
of the last log file. A broker that deletes old files removes the first file; truncation can remove
the last file.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rmqctl.errors import UsageError
from rmqctl.formats.dledger import HEAD_SIZE
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.end import first_record

ANCHORS = "records"
"""The field of an entry that contains the records: lists of physical offset, size and digest."""
_MAX_READ = 16 << 20
_MAX_ANCHORS = 4
"""Maximum number of records that are checked for an entry; the server itself writes only two."""
Anchor = list[int | str]


def anchors_of(log: CommitLog, earlier: Sequence[Anchor] = ()) -> list[Anchor]:
    """Return the records that identify a log, each as [physical offset, size, digest].

    The list is empty if the log is empty or cannot be read. ``earlier``: an earlier result; its
    first record is kept if the log file with this record still exists.
    """
    anchors = [anchor for anchor in earlier if int(anchor[0]) >= log.min_offset][:1]
    first = None if anchors else first_record(log)
    places = [] if first is None else [first.physical_offset]
    # The last file begins with a record, or with the header of a DLedger entry.
    places += [place for file in log.files[-1:] for place in (file.base, file.base + HEAD_SIZE)
               if log.record_at(place) is not None]
    for place in dict.fromkeys(places):
        raw = None if anchors and anchors[0][0] == place else log.raw_at(place)
        if raw is not None:
            anchors.append([place, len(raw), _digest(raw)])
    return anchors


def _is_of(log: CommitLog, entry: Mapping[str, Any]) -> bool | None:
    """Return whether the log contains one of the entry's records.

    Return None (unknown) if the log has no intact record at any of the entry's offsets.
    """
    anchors, other = entry.get(ANCHORS), False
    for anchor in anchors[:_MAX_ANCHORS] if isinstance(anchors, list) else ():
        match anchor:
            case [int(place), int(size), str(digest)] if 0 < size <= _MAX_READ:
                raw = log.raw_at(place, size)
                if raw is not None and _digest(raw) == digest:
                    return True
                other = other or log.record_at(place) is not None
    return False if other else None


def keys_in(entries: Mapping[str, Any], names: Sequence[str], logs: Sequence[CommitLog]
            ) -> tuple[list[str | None], list[str]]:
    """Match stores to the entries of a consumer offsets file.

    Return the name of each store's entry (None if it has no entry), and warnings. An
    entry's name consists of a broker's name, a space and a path.

    * An entry with records belongs to a store whose log contains one of these records.
    * An entry without records (written by an older version) belongs to the store at its path.
    * If several entries or stores fit, those with the same name are matched first, then those with
      the same path; the rest must be unambiguous.

    Raises: UsageError if a store's entry cannot be determined.
    """
    # Find the entries that may belong to each store.
    candidates: list[list[str]] = []
    for name, log in zip(names, logs, strict=True):
        judged = {key: _is_of(log, entry) if entry.get(ANCHORS) else _path(key) == _path(name)
                  for key, entry in entries.items()}
        own = [key for key, belongs in judged.items() if belongs]
        if not own and (key := next((
                key for key, belongs in judged.items()
                if belongs is None and _path(key) == _path(name)), None)) is not None:
            raise UsageError(f"{key}: none of the records that identify this store is in its log, "
                             "so it cannot be determined whether these consumer offsets belong to "
                             "it. Remove the entry from the file, or use another file.")
        candidates.append(own)
    # Assign entries by name, then by path, then the remaining ones.
    keys_by_store: list[str | None] = [
        name if name in own else None for name, own in zip(names, candidates, strict=True)]
    taken = {key for key in keys_by_store if key}
    for at, name in enumerate(names):
        if keys_by_store[at] is None:
            keys_by_store[at] = next((key for key in candidates[at] if key not in taken
                                      and _path(key) == _path(name)), None)
            taken |= {keys_by_store[at] or ""}
    left = [[key for key in own if key not in taken] if keys_by_store[at] is None else []
            for at, own in enumerate(candidates)]
    wanted = Counter(key for keys in left for key in keys)
    warnings = []
    for at, keys in enumerate(left):
        if len(keys) > 1:
            raise UsageError(f"{names[at]}: {' and '.join(keys)} are entries of copies of this "
                             "store, and it cannot be determined which of them belongs to it. "
                             "Serve the store from its former path, or remove the other entries.")
        if keys and wanted[keys[0]] > 1:
            copies = " and ".join(name for name, candidate_keys in zip(names, left, strict=True)
                                  if keys[0] in candidate_keys)
            raise UsageError(f"{copies} are copies of one store, and it cannot be determined which "
                             f"one the entry {keys[0]} belongs to. Serve only one of them.")
        if keys:
            keys_by_store[at] = keys[0]
        elif keys_by_store[at] is None and candidates[at]:
            warnings.append(f"{names[at]} is a copy of {candidates[at][0]} and starts without "
                            "consumer offsets: consumers get the messages of both stores")
        elif keys_by_store[at] is None and entries:
            warnings.append(f"{names[at]} starts without consumer offsets: the file contains only "
                            f"those of {', '.join(entries)}")
    return keys_by_store, warnings


def _path(name: str) -> str:
    return name.partition(" ")[2] or name


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:32]
