"""Compact and upload full index files of a broker (tiered.md §5.5, §18.6).

`upload` uploads one file, `upload_files` several files, and `upload_local` all files in a broker's
local root. First the segment is written and flushed, then the metadata. Finally the local file is
moved aside. The next run continues after a killed run and uploads no file twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import field
from itertools import chain
from typing import Literal

from rmqctl.errors import RefusedError, UsageError
from rmqctl.ext.tiered.files import metadata_file
from rmqctl.ext.tiered.files.locking import locked
from rmqctl.ext.tiered.files.opening import open_writer
from rmqctl.ext.tiered.files.reader import TierReader
from rmqctl.ext.tiered.files.settings import recall
from rmqctl.ext.tiered.files.writer import TierWriter
from rmqctl.ext.tiered.flat_file import FlatFile
from rmqctl.ext.tiered.index.compacted_form import Compacted, compact, opened
from rmqctl.ext.tiered.index.index_file import TierIndexFile, local_names
from rmqctl.ext.tiered.index.progress import IndexProgress
from rmqctl.ext.tiered.tier import Tier
from rmqctl.files.aside import AsideFolder
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata, SegmentEntry
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import time_text
from rmqctl.scan import malloc_tuning

Status = Literal["uploaded", "completed", "known", "empty"]
"""Status of a file after an upload. ``completed``: the segment already existed, but only now has a
metadata entry. ``known``: the segment already had a metadata entry.
"""

Opening = Callable[[str], AbstractContextManager[TierIndexFile]]

_RECOVER = "run `rmqctl tiered recover` first"
_INDEX = names.KINDS.index(names.INDEX)


@dataclass(frozen=True, slots=True)
class Uploaded:
    """Outcome of a file.

    ``path``: its segment, relative to the tier root; empty if it has no segment.
    ``sound``: the chains contained all items. If False, items were put into slots by their hashes.
    ``moved_to``: new path of an unfinished segment of a killed run.
    """

    source: str
    status: Status
    timestamp: int
    items: int
    path: str = ""
    base: int = -1
    size: int = 0
    sound: bool = True
    moved_to: str | None = None


@dataclass(frozen=True, slots=True)
class _SegmentPlace:
    """Position and path of a new segment. ``there``: size of an existing file with this path, or
    None.
    """

    path: str
    base: int
    there: int | None


def upload(reader: TierReader, metadata: Metadata, cluster: str, broker: str, file: TierIndexFile,
           now: int, *, ahead: set[int] | None = None) -> Uploaded:
    """Upload one open file as the next INDEX segment and enter it into ``metadata``. A file without
    items is not uploaded.

    The segment is durable when this function returns. The caller then saves the metadata and
    removes the local file.

    ``now``: the current time (ms).
    ``ahead``: for a plan, the bases planned so far; no file is then written.
    Raises: RefusedError if tier and metadata do not match; FormatError for a truncated file;
    StoreIOError. After a StoreIOError, another run can complete the upload.
    """
    if not file.items:
        return Uploaded(file.where, "empty", file.timestamp, 0)
    earlier = _earlier_upload(reader, metadata, cluster, broker, file)
    if earlier is not None:
        return earlier
    place = _next_place(reader, metadata, cluster, broker, ahead or ())
    compacted = compact(file)
    is_there = bool(place.there) and _is_there(reader, place, compacted)
    if place.there and not is_there:
        _refuse_foreign(reader, place, file)
    aside = None
    if ahead is not None:
        ahead.add(place.base)
    else:
        assert isinstance(reader, TierWriter)
        aside = _write(reader, place, compacted, is_there=is_there)
    _enter(metadata, broker, place, compacted, now)
    return Uploaded(file.where, "completed" if is_there else "uploaded", file.timestamp,
                    compacted.items, place.path, place.base, compacted.size, compacted.sound, aside)


def _write(writer: TierWriter, place: _SegmentPlace, compacted: Compacted, *,
           is_there: bool) -> str | None:
    """Write and flush a segment. If an older file had the segment's path, move it aside and return
    its new path.
    """
    if is_there:
        writer.settle(place.path)  # its writer may have been killed before the flush
        return None
    aside = writer.put_aside(place.path) if place.there else None
    _send(writer, place.path, compacted)
    writer.commit(place.path)
    return aside


def is_uploaded(reader: TierReader, metadata: Metadata, cluster: str, broker: str,
                file: TierIndexFile) -> bool:
    """Return whether a file's segment is already complete in the tier. A run leaves this state if
    it is killed before it removes the local file. Further items must not be added to such a file:
    its existing items would be uploaded twice.
    Raises: RefusedError, StoreIOError.
    """
    if not file.items:
        return False
    if any(entry.begin_timestamp == file.timestamp and entry.size
           for entry in _entries(metadata, broker).values()):
        return True
    place = _next_place(reader, metadata, cluster, broker)
    return (place.there == file.shape.compacted_size(file.items)
            and _is_there(reader, place, compact(file)))


def upload_files(writer: TierWriter, metadata: Metadata, cluster: str, broker: str,
                 paths: Iterable[str], opening: Opening, broker_root: str,
                 now: Callable[[], int], save: Callable[[], object]) -> Iterator[Uploaded]:
    """Upload local files, oldest first, and move each file below ``broker_root``/.rmqctl/aside.
    Files without items are only moved aside. A run can be stopped between two files.

    ``opening`` opens a file (`opened_as` for a known shape). ``save`` saves ``metadata``.
    """
    aside = AsideFolder(os.path.abspath(broker_root))
    for path in paths:
        with opening(path) as file:
            done = upload(writer, metadata, cluster, broker, file, now())
        if done.status in ("uploaded", "completed"):
            save()
        aside.move(os.path.abspath(path))
        yield done


def opened_as(shape: fmt.TieredIndexShape) -> Opening:
    """Return a function that opens files of this shape."""
    return lambda path: opened(path, shape.slots, shape.max_items)


# -- where it belongs -----------------------------------------------------------------------------

def _entries(metadata: Metadata, broker: str) -> dict[int, SegmentEntry]:
    return metadata.segments[names.INDEX].get(names.index_path(broker), {})


def _segment_path(cluster: str, broker: str, base: int) -> str:
    return names.segment_path(cluster, broker, names.INDEX_TOPIC, names.INDEX_QUEUE, names.INDEX,
                              base)


def _earlier_upload(writer: TierReader, metadata: Metadata, cluster: str, broker: str,
                    file: TierIndexFile) -> Uploaded | None:
    """Return the outcome of an earlier upload of the file; None if the file is not in the metadata.
    The metadata contains the file if a run was killed before it removed the file.
    Raises: RefusedError if the uploaded file does not match the metadata.
    """
    for entry in _entries(metadata, broker).values():
        if entry.begin_timestamp == file.timestamp and entry.size:
            path = _segment_path(cluster, broker, entry.base_offset)
            expected, size = file.shape.compacted_size(file.items), writer.size(path)
            if not expected == entry.size == size:
                raise RefusedError(f"{file.where}: according to the metadata, this file was "
                                   f"uploaded as {writer.where(path)} with {entry.size} bytes, but "
                                   f"that file has {size or 0}, expected {expected}: {_RECOVER}")
            return Uploaded(file.where, "known", file.timestamp, file.items, path,
                            entry.base_offset, entry.size)
    return None


def _next_place(writer: TierReader, metadata: Metadata, cluster: str, broker: str,
                ahead: Collection[int] = ()) -> _SegmentPlace:
    """Return the path and the base of the next segment. An entry with size 0, which a killed broker
    leaves, is ignored. ``ahead``: bases of planned segments.
    Raises: RefusedError if the last segment's size does not match the metadata.
    """
    last = max(_entries(metadata, broker).values(),
               key=lambda entry: (entry.base_offset + entry.size, entry.base_offset), default=None)
    base = 0
    if last is not None:
        base = last.base_offset + last.size
        path = _segment_path(cluster, broker, last.base_offset)
        present = writer.size(path) or 0
        if last.size and present != last.size and last.base_offset not in ahead:
            raise RefusedError(f"{writer.where(path)}: {last.size} bytes in the metadata, but the "
                               f"file has {present}: {_RECOVER}")
    path = _segment_path(cluster, broker, base)
    flat = FlatFile.open(writer, path.rpartition("/")[0])
    beyond = [segment for segment in flat.segments if segment.base > base and segment.size]
    if beyond:
        raise RefusedError(f"{writer.where(beyond[0].path)}: not in the metadata, which ends at "
                           f"{base}: {_RECOVER}")
    return _SegmentPlace(path, base, writer.size(path))


def _is_there(writer: TierReader, place: _SegmentPlace, compacted: Compacted) -> bool:
    """Return whether the tier already contains the complete segment at its path."""
    if place.there != compacted.size:
        return False
    position = 0
    for part in compacted.parts():
        if writer.read(place.path, position, len(part)) != part:
            return False
        position += len(part)
    return True


def _refuse_foreign(writer: TierReader, place: _SegmentPlace, file: TierIndexFile) -> None:
    """Raise RefusedError if the segment at this position was written from another index file."""
    raw = writer.read(place.path, 0, fmt.HEADER.size)
    if len(raw) < fmt.HEADER.size:
        return
    header = fmt.HEADER.decode(raw)
    if header.magic in fmt.MAGICS and header.begin_timestamp != file.timestamp:
        raise RefusedError(f"{writer.where(place.path)}: an index file from "
                           f"{time_text(header.begin_timestamp)} that is not in the metadata: "
                           f"{_RECOVER}")


def _send(writer: TierWriter, path: str, compacted: Compacted) -> None:
    writer.create(path)
    parts = compacted.parts()
    position = 0
    # The header is too short for a write of its own: write it with the first slots.
    for some in chain([[next(parts), next(parts)]], ([part] for part in parts)):
        position += writer.append(path, some, position)


def _enter(metadata: Metadata, broker: str, place: _SegmentPlace, compacted: Compacted,
           now: int) -> None:
    before = _entries(metadata, broker).get(place.base)
    metadata.put_segment(SegmentEntry(
        names.index_path(broker), _INDEX, place.base,
        size=compacted.size, create_timestamp=before.create_timestamp if before else now,
        begin_timestamp=compacted.file.timestamp,
        end_timestamp=compacted.file.header.end_timestamp))


# -- the files of a broker's local root -----------------------------------------------------------

@dataclass(slots=True)
class LocalFiles:
    """The request for a run, and the local index files. ``notes``: a text for each skipped file."""

    metadata_path: str
    cluster: str
    broker: str
    paths: list[str]
    slots: int | None
    max_items: int | None
    notes: list[str] = field(default_factory=list)

    def opening(self, path: str) -> AbstractContextManager[TierIndexFile]:
        """Open one of the files. Raises: FormatError, StoreIOError."""
        return opened(path, self.slots, self.max_items)


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """Request for a run.

    ``everything``: also upload the newest file, as a broker does at a clean shutdown.
    ``slots`` and ``max_items``: override the values noted in the tier or found in uploaded files.
    ``cluster`` and ``broker``: required if the tier has several brokers or is empty.
    """

    root: str
    metadata: str | None = None
    cluster: str | None = None
    broker: str | None = None
    everything: bool = False
    slots: int | None = None
    max_items: int | None = None
    outside: tuple[str, ...] = ()
    """Folders to which links in the tier may point."""


def upload_local(request: CompactRequest, now: Callable[[], int],
                 note: Callable[[str], None]) -> Iterator[Uploaded]:
    """Compact and upload a broker's local files; yield the outcome of each file when it is done.
    ``now`` returns ms; ``note`` is called with a text for each skipped file.

    If a run is interrupted, the next run continues.
    Raises: StoreHeldError while a broker runs; UsageError, NotAStoreError, RefusedError,
    FormatError, StoreIOError.
    """
    malloc_tuning.keep_freed_memory()
    with Tier.open(request.root, request.metadata) as tier:
        root, broker_root = tier.name, _known_root(tier)
        path = (tier.metadata_path or "").removesuffix(".bak")
    with locked(root, path, metadata=request.metadata, outside=request.outside), \
            Tier.open(request.root, request.metadata) as tier:
        files = _files(tier, request)
        for text in files.notes:
            note(text)
        metadata = tier.metadata
        with closing(open_writer(root)) as writer:
            yield from upload_files(
                writer, metadata, files.cluster, files.broker, files.paths, files.opening,
                broker_root, now,
                lambda: metadata_file.save(files.metadata_path, metadata, broker_root))


def plan_local(request: CompactRequest, now: Callable[[], int],
               note: Callable[[str], None]) -> Iterator[Uploaded]:
    """Yield the outcomes that `upload_local` would yield, without changing or locking anything."""
    with Tier.open(request.root, request.metadata) as tier:
        files = _files(tier, request)
        for text in files.notes:
            note(text)
        ahead: set[int] = set()
        for path in files.paths:
            with files.opening(path) as file:
                yield upload(tier.reader, tier.metadata, files.cluster, files.broker, file, now(),
                             ahead=ahead)


def _known_root(tier: Tier) -> str:
    """Return the local root of the tier's broker. Raises: UsageError if it is unknown."""
    if tier.broker_root is None or tier.metadata_path is None:
        raise UsageError(f"{tier.name}: no {names.METADATA_NAME} next to it, so the broker's local "
                         "root is unknown: pass the file with --metadata")
    return tier.broker_root


def _files(tier: Tier, request: CompactRequest) -> LocalFiles:
    broker_root = _known_root(tier)
    assert tier.metadata_path is not None
    # Damaged metadata could hide segments, so nothing is uploaded.
    fault = tier.metadata_error or next(
        (f"{tier.metadata_path}: {fault.path}: {fault.reason}" for fault in tier.metadata.faults),
        None)
    if fault:
        raise RefusedError(f"{fault}; run `rmqctl tiered recover` first to repair the metadata")
    cluster, broker = _owner(tier, request)
    # The broker still appends to the newest file, so it is skipped unless all are requested.
    folder = os.path.join(broker_root, names.LOCAL_INDEX_FOLDER)
    every = local_names(folder)
    old = [name for name in every if name in names.OLD_INDEX_NAMES]
    present = [name for name in every if name not in old]
    if not request.everything:
        present = present[:-1]
    # Files of an interrupted dispatch are completed by the next dispatch.
    remembered, notes = recall(tier.reader)
    waiting = _waiting_for_dispatch(tier, broker_root, (cluster, broker), present)
    if waiting:
        notes.append(f"a `tiered dispatch` was interrupted: {', '.join(waiting)} in {folder} stay "
                     "until it is run again")
        present = [name for name in present if name not in waiting]
    # Slots and items come from options, from the last run, or from files of the tier.
    files = LocalFiles(
        tier.metadata_path.removesuffix(".bak"), cluster, broker,
        [os.path.join(folder, name) for name in present],
        request.slots or remembered.get("index_slots") or tier.known_slots(broker),
        request.max_items or remembered.get("index_max"), notes)
    files.notes += [f"{os.path.join(folder, name)}: from a 5.1.x broker, skipped"
                    for name in old]
    return files


def _waiting_for_dispatch(tier: Tier, broker_root: str, owner: tuple[str, str],
                          present: list[str]) -> list[str]:
    """Return the names of the files that an interrupted dispatch must complete. ``owner``:
    (cluster, broker).
    """
    progress = IndexProgress(broker_root, "/".join(owner))
    progress.load()
    ends = {(name.topic, name.queue_id): queue.commit_offset
            for name, queue in tier.contents.queues.items() if (name.cluster, name.broker) == owner}
    if progress.position is None or not progress.is_unfinished(ends):
        return []
    return [name for name in present if int(name) >= progress.position[0]]


def _owner(tier: Tier, request: CompactRequest) -> tuple[str, str]:
    """Return the cluster and broker of the local files.

    Raises: UsageError if they cannot be determined.
    """
    owners = tier.contents.owners
    fitting = sorted((cluster, broker) for cluster, broker in owners
                     if request.cluster in (None, cluster) and request.broker in (None, broker))
    if len(fitting) == 1:
        return fitting[0]
    if not fitting and request.cluster and request.broker:
        return request.cluster, request.broker
    named = ", ".join(f"{broker} of {cluster}" for cluster, broker in fitting or sorted(owners))
    raise UsageError(f"{tier.name}: cannot determine the owner of these index files "
                     f"({named or 'no broker'} found): pass --broker and --cluster")
