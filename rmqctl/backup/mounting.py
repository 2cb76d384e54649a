"""Read the newest restore point of a backup at a URL as a store; nothing is written.

Log and configuration files consist of the pieces that the point names. Consume queue files consist
of groups of entries (`rmqctl.backup.entries`), whose headers are read once. The index can be
rebuilt from the log, so a backup at a URL has none.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from rmqctl import vfs
from rmqctl.backup.entries import FOLDER, has_entries, header, is_of_queues
from rmqctl.backup.finishing import deleted_topics
from rmqctl.backup.objects import (
    LOG,
    POINTS,
    SMALL,
    Held,
    Note,
    Objects,
    is_backup,
    is_expired,
    object_of,
)
from rmqctl.backup.points import Point
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.files.remote.listing import file_at
from rmqctl.files.remote.ranges import RangeCache
from rmqctl.files.remote.reader import RemoteReader, without_secrets
from rmqctl.store.store import Store
from rmqctl.vfs import Listed, Tree

_USUAL_HEADER, _HEADER = 1 << 9, 1 << 16
"""``_USUAL_HEADER``: usual size in bytes of a group's header; ``_HEADER``: its maximum size."""


class ObjectSpan(NamedTuple):
    """The bytes ``[start, end)`` of a file; they are at position ``at`` of the object ``name``."""

    start: int
    end: int
    name: str
    at: int


Spans = Sequence[ObjectSpan]


def tree_of(remote: RemoteReader, listed: dict[str, Listed]) -> Tree | None:
    """Return the backup with these objects as the tree of a store; None if the objects are not a
    backup.

    Raises: FormatError if the newest restore point cannot be read, StoreIOError.
    """
    names = sorted(name.removeprefix(f"{POINTS}/").removesuffix(".json") for name in listed
                   if name.startswith(f"{POINTS}/") and name.endswith(".json"))
    if not is_backup({name.partition("/")[0] for name in listed}, names):
        return None
    with Objects(remote.name) as objects:
        [newest] = objects.notes(names[-1:])
        return _without_deleted(_tree(remote, listed, objects, newest, _oldest(objects, names)),
                                newest.point)


def _oldest(objects: Objects, names: Sequence[str]) -> Point:
    """Return the oldest of these points that can be read."""
    for name in names[:-1]:
        with suppress(FormatError):
            return objects.notes([name])[0].point
    return objects.notes(names[-1:])[0].point


def _without_deleted(tree: Tree, point: Point) -> Tree:
    """Return the tree without the consume queues of topics that were deleted before a point."""
    vfs.mount(tree, tree.root)
    with Store.open(tree.root) as store:
        gone = tuple(f"consumequeue/{topic}/" for topic in deleted_topics(store, point))
    return Tree(tree.root, {path: file for path, file in tree.files.items()
                            if not path.startswith(gone)}, tree.reader, lacks=tree.lacks)


def _tree(remote: RemoteReader, listed: dict[str, Listed], objects: Objects, note: Note,
          oldest: Point) -> Tree:
    reader = _Reader(objects, RangeCache(remote, listed), listed)
    files: dict[str, Listed] = {}
    # The log and the small files: the point names their pieces.
    for folder, held_files in ((LOG, note.log), (SMALL, note.others)):
        for path, held in held_files.items():
            if not is_of_queues(path) and not (folder == LOG and is_expired(
                    path, held, oldest)):
                files[path] = Listed(held.size, held.changed or note.point.time * 1_000_000)
                reader.add(path, held.size, _pieces_of(objects, folder, path, held))
    # The consume queues, unless the store had them in RocksDB.
    lacks = {"index", "consumequeue_ext"}
    if has_entries(note) and note.queues != "rocksdb":
        for path, (size, spans) in _queues(reader, objects, note).items():
            files[path] = Listed(size, note.point.time * 1_000_000)
            reader.add(path, size, partial(list, spans))
    else:
        lacks.add("consumequeue")
    return Tree(without_secrets(remote.name), files, reader, lacks=frozenset(lacks))


def _pieces_of(objects: Objects, folder: str, path: str, held: Held) -> Callable[[], Spans]:
    """Return a function that returns the spans of a file. The function reads the list of pieces if
    that list is stored as an object.
    """
    return lambda: [ObjectSpan(piece.start, piece.end, object_of(folder, path, piece), 0)
                    for piece in sorted(objects.pieces_of(held))]


# -- consume queues -------------------------------------------------------------------------------


def _queues(
        reader: _Reader, objects: Objects, note: Note
) -> dict[str, tuple[int, list[ObjectSpan]]]:
    """Return (size, spans) by path for each consume queue file. Raises: FormatError,
    StoreIOError.
    """
    by_folder: dict[str, dict[str, tuple[int, list[ObjectSpan]]]] = {}
    for name in sorted(filter(is_of_queues, note.others)):
        if not name.removeprefix(FOLDER).isdigit():
            continue
        held = note.others[name]
        reader.add(name, held.size, _pieces_of(objects, SMALL, name, held))
        at = 0
        while at < held.size:
            for most in (_USUAL_HEADER, _HEADER):
                head = reader.read(name, at, min(most, held.size - at))
                line = head.find(b"\n")
                if line >= 0:
                    break
            path, position, length, size, _, is_new = header(
                head[:max(line, 0)], objects.where(name))
            at += line + 1
            if at + length > held.size:
                raise FormatError("the last group of consume queue entries is incomplete",
                                  file=objects.where(name))
            folder = path.rpartition("/")[0]
            if is_new:  # the topic was created again
                by_folder.pop(folder, None)
            _, spans = by_folder.setdefault(folder, {}).setdefault(path, (size, []))
            _lay(spans, [*reader.parts(name, at, length)], position - at)
            at += length
    return {path: file for files in by_folder.values() for path, file in files.items()}


def _lay(spans: list[ObjectSpan], added: Iterable[ObjectSpan], moved: int) -> None:
    """Insert the spans ``added``, shifted by ``moved`` bytes, into the spans of a file. Added spans
    replace older spans that they overlap.
    """
    for start, end, name, at in added:
        span = ObjectSpan(start + moved, end + moved, name, at)
        first = bisect.bisect_right(spans, span.start, key=lambda old: old.end)
        last = bisect.bisect_left(spans, span.end, first, key=lambda old: old.start)
        parts = [part for old in spans[first:last] for part in _outside(old, span)]
        spans[first:last] = sorted([*parts, span])


def _outside(old: ObjectSpan, new: ObjectSpan) -> Iterator[ObjectSpan]:
    if old.start < min(old.end, new.start):
        yield old._replace(end=min(old.end, new.start))
    if (start := max(old.start, new.end)) < old.end:
        yield old._replace(start=start, at=old.at + start - old.start)


# -- reading --------------------------------------------------------------------------------------


class _Reader:
    """Reader of files that consist of ranges of objects (`vfs.Reader`); bytes outside all spans are
    zeros.
    """

    sampled = False
    sampled_files = 0

    def __init__(self, objects: Objects, ranges: RangeCache, listed: dict[str, Listed]) -> None:
        self._objects, self._ranges, self._listed = objects, ranges, listed
        self._spans: dict[str, Callable[[], Spans] | Spans] = {}
        self._sizes: dict[str, int] = {}

    @property
    def failed(self) -> StoreIOError | None:
        """The first error in reading a range; None if no error occurred."""
        return self._ranges.failed

    @failed.setter
    def failed(self, error: StoreIOError | None) -> None:
        self._ranges.failed = error

    def add(self, path: str, size: int, spans: Callable[[], Spans]) -> None:
        """Add a file that consists of spans. The function ``spans`` is called when the file is
        first read.
        """
        self._spans[path], self._sizes[path] = spans, size

    def _of(self, path: str) -> Spans:
        spans = self._spans[path]
        if callable(spans):
            spans = self._spans[path] = self._checked(spans())
        return spans

    def _checked(self, spans: Spans) -> Spans:
        """Return ``spans``. Raises: StoreIOError if an object is missing or too small, or if spans
        overlap.
        """
        for before, span in pairwise((ObjectSpan(0, 0, "", 0), *spans)):
            file = self._listed.get(span.name)
            # A run that finished after the objects were listed may have added this object.
            if file is None and (file := file_at(self._objects, span.name)) is not None:
                self._listed[span.name] = file
            if file is None or file.size < span.at + span.end - span.start or (
                    span.start < before.end):
                error = StoreIOError(
                    f"{self._objects.where(span.name)}: missing from the backup, or incomplete")
                self.failed = self.failed or error
                raise error
        return spans

    def parts(self, path: str, position: int, length: int) -> Iterator[ObjectSpan]:
        """Yield the spans of a file, clipped to ``[position, position + length)``. Raises:
        StoreIOError.
        """
        spans, end = self._of(path), position + length
        number = max(bisect.bisect_right(spans, position, key=lambda span: span.start) - 1, 0)
        while number < len(spans) and spans[number].start < end:
            start, stop, name, at = spans[number]
            first = max(start, position)
            if first < min(stop, end):
                yield ObjectSpan(first, min(stop, end), name, at + first - start)
            number += 1

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return ``length`` bytes; fewer only at the end of the file. Raises: StoreIOError."""
        data = bytearray(max(min(length, self._sizes[path] - position), 0))
        length = len(data)
        for start, end, name, at in self.parts(path, position, length):
            part = self._ranges.read(name, at, end - start)
            data[start - position:start - position + len(part)] = part
        return bytes(data)

    def gather(self, path: str, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each range (position, length); requests run concurrently. Raises:
        StoreIOError.
        """
        results = [bytearray(max(min(length, self._sizes[path] - position), 0))
                 for position, length in places]
        wanted: dict[str, list[tuple[int, int, int, int]]] = {}
        for number, (position, _) in enumerate(places):
            for start, end, name, at in self.parts(path, position, len(results[number])):
                wanted.setdefault(name, []).append((number, start - position, at, end - start))
        for name, parts in wanted.items():
            answers = self._ranges.gather(name, [(at, size) for _, _, at, size in parts])
            for (number, start, _, size), answer in zip(parts, answers, strict=True):
                results[number][start:start + size] = answer
        return [bytes(data) for data in results]

    def next_data(self, path: str, position: int) -> int:
        """Return the first position at or after ``position`` that is in a span and not known to be
        zero. If no such position exists, return the end of the file.
        """
        spans = self._of(path)
        number = max(bisect.bisect_right(spans, position, key=lambda span: span.start) - 1, 0)
        for start, end, name, at in spans[number:]:
            if (first := max(start, position)) < end:
                data_at = first + self._ranges.next_data(name, at + first - start) - (
                    at + first - start)
                if data_at < end:
                    return data_at
        return max(self._sizes[path], position)

    def end_of(self, path: str) -> int | None:
        """Return the position after the last span if only samples of the file are read, otherwise
        None.
        """
        if not self.sampled:
            return None
        spans = self._of(path)
        return spans[-1].end if spans else 0

    def close(self) -> None:
        """Free the cached ranges of objects."""
        self._ranges.close()
