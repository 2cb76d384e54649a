"""Full index files of a broker go up into its tier, rearranged (tiered.md §5.5, §18.6).

Segment first, made to last; then metadata; then the local file is moved aside. Killed anywhere in
between, the next run finds how far it came: nothing is uploaded twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from rmqctl.engine.state.aside import AsideFolder
from rmqctl.errors import RefusedError
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata, SegmentEntry
from rmqctl.tiered.files.reader import Reader
from rmqctl.tiered.files.writer import Feeder, PosixFeeder
from rmqctl.tiered.flat_file import FlatFile
from rmqctl.tiered.index.compaction_form import Compacted, compact, opened, write
from rmqctl.tiered.index.index_file import IndexFile

__all__ = ["Compacted", "Opening", "Uploaded", "compact", "is_uploaded", "opened", "opened_as",
           "plan", "upload", "upload_files", "write"]

Status = Literal["uploaded", "completed", "known", "empty"]
"""``completed``: the segment was there whole, metadata did not know it; ``known``: it did."""

Opening = Callable[[str], AbstractContextManager[IndexFile]]

_RECOVER = "let `rmqctl tiered recover` look at the tier first"
_INDEX = names.KINDS.index(names.INDEX)


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What became of a file. ``path`` of its segment below the tier root (empty: of none).

    ``sound``: its chains led to all of its items (otherwise they were put to their slots by their
    hashes). ``kept``: where a part of a segment that a killed run had left was moved.
    """

    source: str
    status: Status
    timestamp: int
    items: int
    path: str = ""
    base: int = -1
    size: int = 0
    sound: bool = True
    kept: str | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a segment belongs; ``there`` is the size of the file that lies there, None: none."""

    path: str
    base: int
    there: int | None


def upload(feeder: Feeder, metadata: Metadata, cluster: str, broker: str, file: IndexFile,
           now: int) -> Uploaded:
    """Uploads one open file as the next INDEX segment and enters it into ``metadata``.

    The segment lasts when this returns; the caller saves the metadata, and only then the local
    file may go. ``now`` in ms. A file without items is not uploaded. RefusedError where tier and
    metadata do not fit together; FormatError where the file is cut short; StoreIOError, after
    which a further run completes what is there.
    """
    if not file.items:
        return Uploaded(file.where, "empty", file.timestamp, 0)
    known = _known(feeder, metadata, cluster, broker, file)
    if known is not None:
        return known
    place = _next_place(feeder, metadata, cluster, broker)
    found = compact(file)
    status: Status = "uploaded"
    kept = None
    if place.there:
        if _is_there(feeder, place, found):
            status = "completed"
        else:
            _refuse_foreign(feeder, place, file)
            kept = feeder.put_aside(place.path)
    if status == "uploaded":
        _send(feeder, place.path, found)
        feeder.commit(place.path)
    elif isinstance(feeder, PosixFeeder):
        feeder.settle(place.path)  # who wrote it may have been killed before it was forced
    _enter(metadata, broker, place, found, now)
    return Uploaded(file.where, status, file.timestamp, found.items, place.path, place.base,
                    found.size, found.sound, kept)


def is_uploaded(reader: Reader, metadata: Metadata, cluster: str, broker: str,
                file: IndexFile) -> bool:
    """Whether a file's segment is in the tier, whole: a run was killed before the file went away.

    Such a file must not be fed on: what it has would go up twice. RefusedError, StoreIOError.
    """
    if not file.items:
        return False
    if any(entry.begin_timestamp == file.timestamp and entry.size
           for entry in _entries(metadata, broker).values()):
        return True
    place = _next_place(reader, metadata, cluster, broker)
    return (place.there == file.shape.compacted_size(file.items)
            and _is_there(reader, place, compact(file)))


def plan(reader: Reader, metadata: Metadata, cluster: str, broker: str, file: IndexFile,
         ahead: set[int], now: int) -> Uploaded:
    """What `upload` would do. Changes ``metadata``, and the bases in ``ahead`` that are planned."""
    if not file.items:
        return Uploaded(file.where, "empty", file.timestamp, 0)
    known = _known(reader, metadata, cluster, broker, file)
    if known is not None:
        return known
    place = _next_place(reader, metadata, cluster, broker, ahead)
    found = compact(file)
    there = bool(place.there) and _is_there(reader, place, found)
    if place.there and not there:
        _refuse_foreign(reader, place, file)
    _enter(metadata, broker, place, found, now)
    ahead.add(place.base)
    return Uploaded(file.where, "completed" if there else "uploaded", file.timestamp,
                    found.items, place.path, place.base, found.size, found.sound)


def upload_files(feeder: Feeder, metadata: Metadata, cluster: str, broker: str,
                 paths: Iterable[str], opening: Opening, home: str, now: Callable[[], int],
                 save: Callable[[], object]) -> Iterator[Uploaded]:
    """Uploads local files, oldest first, and moves each aside (below ``home``/.rmqctl/aside).

    ``opening`` opens one (`opened_as` where the shape is known), ``save`` publishes ``metadata``.
    Files without items go aside, too. Between two files is a safe point.
    """
    aside = AsideFolder(os.path.abspath(home))
    for path in paths:
        with opening(path) as file:
            done = upload(feeder, metadata, cluster, broker, file, now())
        if done.status in ("uploaded", "completed"):
            save()
        aside.move(os.path.abspath(path))
        yield done


def opened_as(shape: fmt.Shape) -> Opening:
    """Opens files of this shape."""
    return lambda path: opened(path, shape.slots, shape.max_items)


# -- where it belongs -----------------------------------------------------------------------------

def _entries(metadata: Metadata, broker: str) -> dict[int, SegmentEntry]:
    path = names.metadata_path(broker, names.INDEX_TOPIC, names.INDEX_QUEUE)
    return metadata.segments[names.INDEX].get(path, {})


def _segment_path(cluster: str, broker: str, base: int) -> str:
    return names.segment_path(cluster, broker, names.INDEX_TOPIC, names.INDEX_QUEUE, names.INDEX,
                              base)


def _known(feeder: Reader, metadata: Metadata, cluster: str, broker: str,
           file: IndexFile) -> Uploaded | None:
    """The segment metadata has for this file: a run was killed before the file went away."""
    for entry in _entries(metadata, broker).values():
        if entry.begin_timestamp == file.timestamp and entry.size:
            path = _segment_path(cluster, broker, entry.base_offset)
            expected, there = file.shape.compacted_size(file.items), feeder.size(path)
            if not expected == entry.size == there:
                raise RefusedError(
                    f"{file.where}: metadata has it uploaded as {feeder.where(path)} with "
                    f"{entry.size} bytes; there are {there or 0}, and {expected} are expected: "
                    f"{_RECOVER}")
            return Uploaded(file.where, "known", file.timestamp, file.items, path,
                            entry.base_offset, entry.size)
    return None


def _next_place(feeder: Reader, metadata: Metadata, cluster: str, broker: str,
                ahead: Collection[int] = ()) -> _Place:
    """Behind the last segment, which must be as long as metadata says: a broker believes it.

    An entry of no bytes, which a killed broker leaves, takes no place. Segments in ``ahead`` are
    only planned.
    """
    last = max(_entries(metadata, broker).values(),
               key=lambda one: (one.base_offset + one.size, one.base_offset), default=None)
    base = 0
    if last is not None:
        base = last.base_offset + last.size
        path = _segment_path(cluster, broker, last.base_offset)
        there = feeder.size(path) or 0
        if last.size and there != last.size and last.base_offset not in ahead:
            raise RefusedError(f"{feeder.where(path)}: metadata says {last.size} bytes, there are "
                               f"{there}: {_RECOVER}")
    path = _segment_path(cluster, broker, base)
    flat = FlatFile.open(feeder, path.rpartition("/")[0])
    beyond = [one for one in flat.segments if one.base > base and one.size]
    if beyond:
        raise RefusedError(f"{feeder.where(beyond[0].path)}: metadata does not know it, it ends at "
                           f"{base}: {_RECOVER}")
    return _Place(path, base, feeder.size(path))


def _is_there(feeder: Reader, place: _Place, found: Compacted) -> bool:
    """Whether the segment was written whole before."""
    if place.there != found.size:
        return False
    position = 0
    for part in found.parts():
        if feeder.read(place.path, position, len(part)) != part:
            return False
        position += len(part)
    return True


def _refuse_foreign(feeder: Reader, place: _Place, file: IndexFile) -> None:
    """What lies there may be a part of this file, or no index file; never that of another one."""
    raw = feeder.read(place.path, 0, fmt.HEADER.size)
    if len(raw) < fmt.HEADER.size:
        return
    header = fmt.HEADER.decode(raw)
    if header.magic in fmt.MAGICS and header.begin_timestamp != file.timestamp:
        raise RefusedError(f"{feeder.where(place.path)}: an index file from "
                           f"{header.begin_timestamp} that metadata does not know: {_RECOVER}")


def _send(feeder: Feeder, path: str, found: Compacted) -> None:
    feeder.create(path)
    parts = found.parts()
    position = 0
    # The header goes with the first slots: it is too short for a write of its own.
    for some in chain([[next(parts), next(parts)]], ([one] for one in parts)):
        position += feeder.append(path, some, position)


def _enter(metadata: Metadata, broker: str, place: _Place, found: Compacted, now: int) -> None:
    before = _entries(metadata, broker).get(place.base)
    metadata.put_segment(SegmentEntry(
        names.metadata_path(broker, names.INDEX_TOPIC, names.INDEX_QUEUE), _INDEX, place.base,
        size=found.size, create_timestamp=before.create_timestamp if before else now,
        begin_timestamp=found.file.timestamp, end_timestamp=found.file.header.end_timestamp))
