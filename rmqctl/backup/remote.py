"""Back up a store to a URL.

The rules of a backup in a folder apply: `moment.fix` determines where the log ends, and damage is
recorded. If a repair of the store replaced messages with fillers, the backup keeps the messages.
The index is not stored, because it can be rebuilt from the log.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from functools import partial
from typing import Any

from rmqctl.backup import moment
from rmqctl.backup.backup import (
    OTHER_LOG,
    BackupSource,
    again_if_gone,
    goes_on,
    lacking,
    refuse_gone,
    refuse_unreadable,
    telling_gone,
)
from rmqctl.backup.copying import copy_log, copy_rest, damage_in
from rmqctl.backup.entries import Entries
from rmqctl.backup.growing import Copies, Pace, refuse_shrunk
from rmqctl.backup.objects import (
    LOG,
    POINTS,
    SETTINGS,
    SMALL,
    Held,
    Note,
    Objects,
    Piece,
)
from rmqctl.backup.points import NO_POINT, Part, Point, id_of, is_of_log
from rmqctl.backup.sums import relative
from rmqctl.errors import RefusedError, RmqctlError, StoreIOError
from rmqctl.files.durable import make_folders, new_file
from rmqctl.scan import malloc_tuning
from rmqctl.scan.frames import used_length
from rmqctl.scan.source import FileSource
from rmqctl.store.files import listing
from rmqctl.store.log.end import find_end
from rmqctl.store.store import Store

PIECE, _SMALL_PIECE = 3 << 20, 4 << 20
"""``PIECE``: maximum size in bytes of a piece of the log; ``_SMALL_PIECE``: maximum size of a piece
of any other file.
"""
_AT_ONCE = 2
"""Maximum number of pieces of the log in memory. An object store gets them at the same time."""
_COMPARED = 64 << 10
"""Maximum number of bytes at the end of the stored log that are compared with the store's log."""
_DAY = 86_400_000


class _Uploads(Copies):
    """The copies that a run stores as objects of a backup.

    * ``root``: a local folder with an empty file for each stored file
    * ``border``: a physical offset at which a piece must end
    """

    __slots__ = ("_at_once", "_sending", "border", "last", "log", "objects", "others", "parts",
                 "stored")

    def __init__(self, root: str, pace: Pace, objects: Objects, last: Note | None,
                 whole_end: int) -> None:
        super().__init__(root, pace)
        self.objects, self.last, self.border = objects, last or Note(NO_POINT), whole_end
        self.log = dict(self.last.log)
        self.others: dict[str, Held] = {}
        self.parts: list[Part] = []
        self.stored: set[str] = set()
        self._at_once = _AT_ONCE if objects.is_object_store else 1
        self._sending = ThreadPoolExecutor(self._at_once, "rmqctl-send")

    def grow(self, source: FileSource, relative: str, start: int, end: int, *,
             compare: bool = False) -> None:
        """Store ``[start, end)`` of a log file; pieces before ``start`` that are already stored are
        kept.
        """
        pieces = [piece for piece in self.pieces_of(relative) if piece.end <= start]
        sent: deque[Future[Piece]] = deque()
        try:
            for position, data in self._read_pieces(source, relative, start, end):
                sent.append(self._sending.submit(
                    self.objects.add, LOG, relative, position, data))
                del data  # only the pieces under way are in memory
                if len(sent) == _AT_ONCE:
                    pieces.append(self._noted(relative, sent.popleft()))
        finally:
            wait(sent)  # no upload may still run after the return
        pieces += [self._noted(relative, piece) for piece in sent]
        self.log[relative] = Held(source.size, 0, tuple(pieces))

    def _read_pieces(self, source: FileSource, relative: str, start: int,
                     end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (position, bytes) of each piece of ``[start, end)`` that has a nonzero byte."""
        position = start
        while position < end and (position := source.next_data(position)) < end:
            refuse_shrunk(source, position)
            stop = min(position + PIECE, end)
            if position < self.border - source.base < stop:
                stop = self.border - source.base
            data = self._read(source, relative, position, stop - position)
            length = len(data)
            if used_length(data):
                piece = [data]
                del data  # the caller has the only reference
                yield position, piece.pop()
            position += length
            self.pace(length)
        if end > start:  # the end of a file that was cut looks like a hole
            refuse_shrunk(source)

    def _noted(self, relative: str, sent: Future[Piece]) -> Piece:
        piece = sent.result()
        self.parts.append(Part(relative, *piece))
        self.written += piece.end - piece.start
        return piece

    def pieces_of(self, name: str) -> tuple[Piece, ...]:
        """Return the stored pieces of a log file."""
        held = self.log.get(name)
        return () if held is None else self.objects.pieces_of(held)

    def _add(self, name: str, start: int, data: bytes) -> Piece:
        return self._noted(name, self._sending.submit(self.objects.add, LOG, name, start, data))

    def close(self) -> None:
        """Stop the upload threads."""
        self._sending.shutdown()

    def takes(self, source: str, relative: str) -> bool:
        """Store a file that is not part of the log, unless its size and modification time equal
        those of the stored version. Return True in both cases.
        """
        about = os.stat(source)
        have = self.others.get(relative) or self.last.others.get(relative)
        if have is None or (have.size, have.changed) != (about.st_size, about.st_mtime_ns):
            if have is not None:  # unchanged pieces are not stored again
                self.stored.update(piece.sha256 for piece in self.objects.pieces_of(have))
            have = Held(about.st_size, about.st_mtime_ns, tuple(self._stored(source)))
        self.others[relative] = have
        self._mark(relative)
        return True

    def _mark(self, relative: str) -> None:
        """Create an empty file for a stored file."""
        path = self.path(relative)
        make_folders(os.path.dirname(path), durable=False)
        if not os.path.exists(path):
            os.close(new_file(path, 0))

    def keep(self, relative: str, data: bytes) -> None:
        """Store a small file, unless the last point has the same bytes."""
        pieces = (Piece(0, len(data), hashlib.sha256(data).hexdigest()),) if data else ()
        have = self.last.others.get(relative)
        if have is None or have.size != len(data) or self.objects.pieces_of(have) != pieces:
            have = Held(len(data), 0, (self.objects.add(SMALL, relative, 0, data),) if data else ())
            self.written += len(data)
        self.others[relative] = have
        self._mark(relative)

    def _stored(self, path: str) -> Iterator[Piece]:
        """Store and yield each piece of a file that has a nonzero byte."""
        try:
            source = FileSource(path)
        except StoreIOError as error:
            if error.errno == errno.ENOENT:
                raise FileNotFoundError from None
            raise
        with source:
            position = 0
            while (position := source.next_data(position)) < source.size:
                start = position - position % _SMALL_PIECE
                wanted = min(_SMALL_PIECE, source.size - start)
                data = source.read(start, wanted)
                if len(data) != wanted:
                    raise StoreIOError(f"{path}: shrank while it was copied")
                position = start + wanted
                if used := used_length(data):
                    data = data[:used]
                    digest = hashlib.sha256(data).hexdigest()
                    if digest not in self.stored:
                        self.objects.add(SMALL, path, start, data)
                        self.stored.add(digest)
                        self.written += used
                    yield Piece(start, start + used, digest)
                self.pace(wanted)

    def remove(self, relative: str) -> None:
        super().remove(relative)
        self.others.pop(relative, None)


def back_up(source: BackupSource, backup: str, clock: Callable[[], int], version: str,
            pace: Pace = lambda _bytes: None, keep: int | None = None) -> tuple[
                Point, tuple[int, int]]:
    """Store the new data of a store at a URL, and write a restore point, as `backup.back_up` does.

    Raises: StoreHeldError if another run has written a point since this run started.
    """
    return again_if_gone(partial(_back_up, source, backup, clock, version, pace, keep))


def _back_up(source: BackupSource, backup: str, clock: Callable[[], int], version: str, pace: Pace,
             keep: int | None) -> tuple[Point, tuple[int, int]]:
    malloc_tuning.share_freed_memory()  # a client of an object store has several threads
    with source.open() as store, Objects(backup) as objects:
        objects.refuse_in_store(store.root)
        store.layout.require(store.root, "commitlog")
        refuse_unreadable(store)
        names = objects.point_names()
        last = objects.notes(names[-1:])[0] if names else None
        if last is None and {entry.name for entry in objects.list("")} - {LOG, SMALL, POINTS}:
            raise RefusedError(f"{objects.where('')}: not empty and not a backup: choose a new "
                               "place")
        if last is None and objects.is_object_store:  # objects of a killed first run
            objects.there = objects.find(LOG)
        now = clock()
        early = moment.progress_files(store)
        view, end = moment.fix(store, last.point.log_end if last else 0)
        with view, tempfile.TemporaryDirectory(prefix="rmqctl-backup-") as empty:
            refuse_gone(store, view)
            stored_end = _stored_end(view, objects, last, end)
            whole_end = max(min(find_end(view).offset, end), stored_end)
            malloc_tuning.give_back()
            with closing(_Uploads(empty, pace, objects, last, whole_end)) as uploads, \
                    telling_gone(view):
                note = _grown(view, uploads, stored_end, end, now, version, early)
        objects.publish_point(note, names)
        return note.point, objects.take_away(now - keep) if keep is not None else (0, 0)


def _grown(view: Store, uploads: _Uploads, stored_end: int, end: int, now: int,
           version: str, early: Mapping[str, bytes]) -> Note:
    last = uploads.last
    before = last.point if last.point.id else None
    repairs = _repairs(view)
    repaired = before is not None and repairs != before.repairs
    # The log first, then the configuration; the consumer offsets were read before the log.
    again, is_same = _mend(view, uploads, stored_end) if repaired else (False, True)
    for _part in copy_log(view, uploads, stored_end, end):
        pass
    damaged, count, newest = damage_in(view, view.log.min_offset if again else stored_end, end)
    malloc_tuning.give_back()
    entries = Entries(uploads.objects, last, end)
    others, lost = entries.add_all(view, uploads, again=repaired)
    notes = copy_rest(view, uploads, ("consumequeue_ext",), early)
    damaged += [*lost, *uploads.unread]
    own = not is_same or (before is not None and before.own)
    if own:
        notes.append("a repair changed messages that the backup still has in their original "
                     "form; the backup keeps the originals, and `rmqctl restore` restores them")
    missing = lacking(view, stored_end if before else view.log.min_offset, end, notes)
    if before is not None and before.id >= id_of(now):  # the clock was set back
        now = before.time + 1
    # Imported when the pieces of the log are no longer in memory.
    from rmqctl.backup.finishing import topics_without_configuration

    # Damage that earlier runs found in the log, unless the range was copied again.
    there = {relative(view, file) for file in view.log.files}
    earlier = [hole for hole in last.holes if not again or hole.file not in there]
    log = {name: uploads.objects.listed(held) for name, held in uploads.log.items()}
    # Lower offsets only if a broker is running: see `backup._grown`.
    lowered = _lower_offsets(view, uploads, early) if view.snapshot is not None else 0
    stored = {**uploads.others, **entries.held(view.log.min_offset)}
    point = Point(id_of(now), now, os.path.abspath(view.root), version, view.log.min_offset, end,
                  count, max(min(newest, now + _DAY), before.last_time if before else 0),
                  tuple(view.log_folders) if len(view.log_folders) > 1 else (),
                  parts=tuple(uploads.parts), damaged=tuple(damaged), lowered=lowered,
                  notes=tuple(notes),
                  whole_end=uploads.border, missing=missing, repairs=repairs,
                  again=others or repaired, own=own,
                  unconfigured=topics_without_configuration(view))
    return Note(point, _tail(view, uploads.border), view.layout.consumequeue,
                (*earlier, *(hole for hole in damaged if is_of_log(hole.file))), log,
                {name: uploads.objects.listed(held) for name, held in stored.items()},
                _settings(view, last))


def _lower_offsets(view: Store, uploads: _Uploads, early: Mapping[str, bytes]) -> int:
    """If a consumer offset is beyond the end of its copied queue, lower it to the end of the queue.
    This changes only the stored files, not offsets in RocksDB. Return the number of lowered
    offsets.
    """
    from rmqctl.backup.finishing import lowered_files

    lowered = 0
    for name, (content, count) in lowered_files(view, early).items():
        uploads.keep(name, content)
        lowered += 0 if name.endswith(".bak") else count
    return lowered


def _settings(view: Store, last: Note) -> dict[str, Any]:
    """Return the settings with which queues and index were created. Settings that are unknown have
    the values of the previous point.
    """
    from rmqctl.repair.broker_config import configured

    shape = {name: last.settings.get(name) for name in ("index_slots", "index_max")
             if view.index.listing.files}
    try:
        configuration = configured(view, shape)
    except RmqctlError:  # the store's own record of its settings is damaged
        return last.settings
    values = {name: getattr(configuration.settings, name) for name in SETTINGS}
    return {**values, "batch_topics": sorted(configuration.batch_topics)}


def _repairs(view: Store) -> tuple[str, ...]:
    return tuple(listing(view.path(".rmqctl", "repairs")).folders)


def _stored_end(view: Store, objects: Objects, last: Note | None, end: int) -> int:
    """Return the physical offset after the last complete record in the backup's log.

    Raises: RefusedError if the backup belongs to another store, or if the store's log was
    truncated.
    """
    if last is None:
        return view.log.min_offset
    stored_end = last.point.whole_end
    if end < stored_end:
        raise RefusedError(f"{view.root}: its log ends at {end:,}, but the log in "
                           f"{objects.where('')} ends at {stored_end:,}. The end of the log is "
                           "damaged (see `rmqctl doctor STORE`) or was truncated, or this is "
                           "another store. For a truncated log or another store, choose a new "
                           "place")
    if _tail(view, stored_end) not in ("", last.tail) and last.tail and (
            _repairs(view) == last.point.repairs or not _goes_on(view, objects, last, stored_end)):
        raise RefusedError(OTHER_LOG.format(store=view.root, backup=objects.where(""),
                                            place=f"{stored_end:,}"))
    return stored_end


def _goes_on(view: Store, objects: Objects, last: Note, stored_end: int) -> bool:
    """Return whether the end of the stored log matches the store's log, apart from differences that
    a repair causes.
    """
    file = view.log.file_of(stored_end - 1)
    if file is None:
        return True
    name = relative(view, file)
    beyond = stored_end - file.base
    at = beyond - min(_COMPARED, beyond)
    theirs = bytearray(beyond - at)
    for piece in objects.pieces_of(last.log[name]) if name in last.log else ():
        if piece.end > at and piece.start < beyond:
            data = objects.get(LOG, name, piece)
            low, high = max(piece.start, at), min(piece.end, beyond)
            theirs[low - at:high - at] = data[low - piece.start:high - piece.start]
    return goes_on(view, bytes(theirs), file.base + at)


def _tail(view: Store, end: int) -> str:
    """Return the SHA-256 of the last bytes of the log before ``end``; "" if they cannot be read."""
    file = view.log.file_of(end - 1) if end else None
    if file is not None:
        length = min(_COMPARED, end - file.base)
        with suppress(StoreIOError), file.open() as source:
            return hashlib.sha256(source.read(end - file.base - length, length)).hexdigest()
    return ""


def _mend(view: Store, uploads: _Uploads, stored_end: int) -> tuple[bool, bool]:
    """Store again the ranges that were damaged when they were first copied and are repaired now.
    Nothing else is replaced: a message that the repair replaced by a filler may be intact in the
    backup.

    Return (whether anything was stored, whether the stored log equals the store's log up to
    ``stored_end``). Raises: StoreIOError.
    """
    again, is_same = False, True
    for file in view.log.files:
        name = relative(view, file)
        if name not in uploads.log:
            continue
        pieces = uploads.pieces_of(name)
        holes = [hole for hole in uploads.last.holes if hole.file == name]
        mended: list[Piece] = []
        with file.open() as source:
            for piece in _with_gaps(pieces, min(stored_end - file.base, file.size)):
                ours = uploads._read(source, name, piece.start, piece.end - piece.start)
                if hashlib.sha256(ours).hexdigest() == piece.sha256 or not (
                        piece.sha256 or used_length(ours)):
                    mended += [piece] if piece.sha256 else []
                    continue
                theirs = uploads.objects.get(LOG, name, piece) if piece.sha256 else bytes(len(ours))
                merged = bytearray(theirs)
                for hole in holes:
                    first = max(hole.offset - piece.start, 0)
                    beyond = max(hole.offset + hole.length - piece.start, first)
                    merged[first:beyond] = ours[first:beyond]
                is_same &= merged == ours
                if merged != theirs:
                    again = True
                    piece = uploads._add(name, piece.start, bytes(merged))  # noqa: PLW2901
                mended += [piece] if piece.sha256 else []
        uploads.log[name] = uploads.log[name]._replace(pieces=tuple(mended))
    return again, is_same


def _with_gaps(pieces: Sequence[Piece], end: int) -> Iterator[Piece]:
    """Yield the pieces up to ``end``. Between two pieces, the zeros are yielded as pieces with an
    empty SHA-256.
    """
    position = 0
    for piece in (*(piece for piece in pieces if piece.end <= end), Piece(end, end, "")):
        while position < piece.start:
            stop = min(position + PIECE, piece.start)
            yield Piece(position, stop, "")
            position = stop
        if piece.sha256:
            yield piece
            position = piece.end
