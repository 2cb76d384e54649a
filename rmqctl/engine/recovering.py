"""What is set right in a store before the first message is appended after an unclean end.

Nothing is deleted: torn bytes and doubtful index files are kept under ``.rmqctl/aside``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from rmqctl.engine.opening import LogState
from rmqctl.engine.state.aside import AsideFolder
from rmqctl.engine.state.small_files import CheckpointFile
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.files.durable import STAGING, failed, open_file, publish, sync, write_all
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile
from rmqctl.store.log.end import used_size
from rmqctl.store.store import Store

_AGAIN = "index-again"


def set_right(store: Store, state: LogState, checkpoint: CheckpointFile, aside: AsideFolder,
              begin: Callable[[], None]) -> int:
    """Sets a store right; ``begin`` is called before the first change. The physical offset from
    which on it has to be indexed again. StoreIOError.
    """
    newest = None if state.clean else _newest_time(store, state)
    if newest is not None:
        checkpoint.hold_back(newest, _index_ends(store))
    doubtful, again = untrusted_index(store, state, checkpoint.record.index_msg_timestamp)
    if doubtful or not state.clean:
        begin()
        clear_torn_tail(store, state.end, aside)
        set_aside(store, doubtful, again, aside)
    return again


def _newest_time(store: Store, state: LogState) -> int | None:
    """The latest store time (ms) in the part of the log that a recovery goes over; None: no
    message is there.

    A checkpoint that says a later one was torn while it was written, or messages with old times
    were put in again.
    """
    times = [int(batch.column("store_timestamp").max())
             for batch in store.log.walk(state.start, state.end) if len(batch)]
    return max(times, default=None)


def _index_ends(store: Store) -> set[int]:
    """When the index files end (ms), as far as they can be understood."""
    found = set()
    for file in store.index_listing.files:
        with suppress(FormatError, StoreIOError):
            found.add(store.open_index(file).header.end_timestamp)
    return found


def untrusted_index(store: Store, state: LogState,
                    trusted_until: int) -> tuple[list[StoreFile], int]:
    """(index files that cannot be relied on, the physical offset to index again from).

    After an unclean end these are the files that end later than ``trusted_until``, the
    checkpoint's index time: what is in them may be torn. A broker destroys them and indexes only
    what its recovery walks over, so keys get lost. After any end, a file that knows messages
    behind the end of the log is another: a broker would not index what is appended below its
    end. The offset is where the first of them began, the end of the log when all are sound.
    """
    start = _noted(store, state.end)
    found: list[StoreFile] = []
    for file in store.index_listing.files:
        try:
            index = store.open_index(file)
        except (FormatError, StoreIOError):
            start, found = min(start, store.log.min_offset), [*found, file]
            continue
        header = index.header
        # One that is not full yet may end in the very millisecond that is trusted.
        torn = not state.clean and (header.end_timestamp > trusted_until or not header.entries
                                    or header.index_count < index.shape.max_entries)
        ahead = header.entries > 0 and header.end_phy_offset >= state.end
        if torn or ahead:
            found.append(file)
            inside = store.log.min_offset <= header.begin_phy_offset <= state.end
            start = min(start, header.begin_phy_offset if inside else store.log.min_offset)
    if found:
        # What follows such a file was made after it, and goes with it.
        first = min(file.name for file in found)
        found = [file for file in store.index_listing.files if file.name >= first]
    return found, start


def set_aside(store: Store, files: list[StoreFile], again: int, aside: AsideFolder) -> None:
    """Moves index files out of the way. StoreIOError.

    That it has to be indexed again from physical offset ``again`` on is noted first, for whoever
    comes after a kill and finds no trace of the files; `done_again` takes the note away.
    """
    if not files:
        return
    publish(store.path(STAGING, _AGAIN), str(again).encode(), store=store.root)
    for file in files:
        aside.move(file.path)


def _noted(store: Store, end: int) -> int:
    """From where it has to be indexed again since a recovery did not come to its end."""
    try:
        with FileSource(store.path(STAGING, _AGAIN)) as source:
            text = source.read(0, 32)
    except StoreIOError:
        return end
    if not text.isdigit():
        return store.log.min_offset
    return min(max(int(text), store.log.min_offset), end)


def done_again(root: str) -> None:
    """What had to be indexed again is on disk. StoreIOError."""
    path = os.path.join(root, STAGING, _AGAIN)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise failed(error, path, "remove") from None


def clear_torn_tail(store: Store, end: int, aside: AsideFolder) -> None:
    """Zeros behind the end of the log in its file; what was there is kept.

    It is what a killed process left of its last write, or the END_OF_FILE record of a file that
    has no next one. A broker leaves it, and a short record appended over it would have a part of
    it behind: damage to anyone who looks later. StoreIOError.
    """
    place = store.log.file_of(end)
    if place is None:
        return
    at = end - place.base
    with FileSource(place.path) as source:
        torn = source.read(at, max(0, used_size(source) - at))
    if not torn:
        return
    aside.save_bytes(place.path, at, torn)
    fd = open_file(place.path, os.O_RDWR)
    try:
        write_all(fd, bytes(len(torn)), at, place.path)
        sync(fd, place.path)
    finally:
        os.close(fd)
