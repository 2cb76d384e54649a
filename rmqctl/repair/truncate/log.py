"""The log itself: where it may be cut, and what is left of its files (spec: recovery.md §3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rmqctl.errors import RefusedError
from rmqctl.repair.log_positions import refuse_overlaps, target
from rmqctl.repair.plan import Action, MoveAside, Patch, Step
from rmqctl.scan.overlay import Piece
from rmqctl.scan.walk import Walk
from rmqctl.store.files import StoreFile
from rmqctl.store.log.end import find_end, used_size
from rmqctl.store.store import Store


@dataclass(frozen=True, slots=True)
class Border:
    """A physical offset at which the log may end.

    ``before`` is the physical offset of the last record in front of it (None: there is none) and
    ``store_timestamp`` that record's store time; ``log_end`` is where the log ends now.
    """

    offset: int
    log_end: int
    before: int | None
    store_timestamp: int | None


def border(store: Store, to: int) -> Border:
    """Checks that a frame of the log (record, blank, unused or damaged part) begins at ``to``.

    Walks the file from its start: a record that only lies in another one's body is no border.
    RefusedError names the borders around an offset that is none, and says why others cannot be
    the end of a log. StoreIOError.
    """
    log = store.log
    refuse_overlaps(store)
    if not log.files:
        raise RefusedError(f"{store.root}: the store has no commitlog files, there is nothing to "
                           "truncate")
    if to < log.min_offset:
        raise RefusedError(f"physical offset {to} lies before the log, which begins at "
                           f"{log.min_offset}")
    found = find_end(store)
    for trouble in found.troubles:
        raise RefusedError(f"{trouble.path}: {trouble.reason}; where the log ends is unknown")
    if to > found.offset:
        raise RefusedError(f"physical offset {to} lies behind the end of the log at "
                           f"{found.offset}")
    number = next((at for at, one in enumerate(log.files) if one.base <= to < one.end), None)
    if number is None:
        number = next((at for at, one in enumerate(log.files) if one.end == to), None)
    if number is None:
        raise RefusedError(f"physical offset {to} lies in a part of the log that has no file")
    source = log.source(number)
    below, above, last = _around(Walk(source, 0, min(to + 1 - source.base, source.size)), to,
                                 log.files[number])
    if below != to:
        raise RefusedError(f"physical offset {to} is no border between records: the one before it "
                           f"is {below}, the one after it {above}")
    while last is None and number > 0:
        number -= 1
        source = log.source(number)
        for batch in Walk(source, 0, used_size(source)):
            if len(batch):
                last = int(batch.offset[-1]), int(batch.column("store_timestamp")[-1])
    before, when = last if last is not None else (None, None)
    return Border(to, found.offset, before, when)


def _around(walk: Walk, to: int, file: StoreFile) -> tuple[int, int, tuple[int, int] | None]:
    """(greatest border up to ``to``, least behind it, last record before it and its store time)."""
    below, above = file.base, file.end
    last: tuple[int, int] | None = None
    for batch in walk:
        places = [side for span in batch.spans for side in (span.offset, span.end)]
        if len(batch):
            at = int(np.searchsorted(batch.offset, to))
            places += batch.offset[max(at - 1, 0):at + 1].tolist()
            if at:
                start = int(batch.offset[at - 1])
                places.append(start + int(batch.column("total_size")[at - 1]))
                last = start, int(batch.column("store_timestamp")[at - 1])
        below = max([below, *(one for one in places if one <= to)])
        above = min([above, *(one for one in places if one > to)])
    return below, above, last


def cut_log(store: Store, to: int) -> tuple[list[Step], list[Action]]:
    """The log's files behind ``to`` go aside, and the rest of the file that holds it is wiped.

    A file that begins exactly at ``to`` stays, as with a broker, but empty: without it the blank
    that closes the file before would be the log's end, and what is appended would overwrite it.
    A file that is too short gets its full size again, as a broker takes no other.
    """
    moved: list[Step] = []
    wiped: list[Step] = []
    actions: list[Action] = []
    size = store.log.file_size
    for one in store.log.files:
        name = target(store, one.path)
        if one.base > to:
            moved.append(MoveAside(name))
            actions.append(Action("move aside", name, one.size, None,
                                  f"begins behind physical offset {to}"))
            continue
        if not one.base <= to < one.base + size:
            continue
        at = to - one.base
        source = store.log.source(store.log.files.index(one))
        used = max(used_size(source), at)
        until = max(used, size if one.size < size else 0)
        if until > at:
            wiped.append(Patch(name, (Piece(at, until - at),)))
            actions.append(Action("truncate", name, used, at, "what follows is wiped"))
    # The last file goes first: what an interruption leaves is a log without a hole.
    return [*reversed(moved), *wiped], actions
