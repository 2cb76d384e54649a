"""Checks of names, sizes and gaps of every file sequence of a store.

Legal, so not findings: any file size, expired first files, preallocated files, queue folders that
come and go, RocksDB files next to the topic folders, working folders of a compaction.

spec: commitlog.md §1, consumequeue.md §1, §8, §9, index.md §1, timer-and-others-5x.md §1.3, §2,
recovery.md §2.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import field
from itertools import islice, pairwise

from rmqctl import vfs
from rmqctl.checks.findings import ERROR, INFO, Finding
from rmqctl.checks.verify.common import bounded
from rmqctl.formats.local import batch_consume_queue, consume_queue, index_file, names
from rmqctl.formats.local.delay import java_int
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.files import Listing, StoreFile, listing
from rmqctl.store.layout import DATABASE_FILE
from rmqctl.store.store import Store

WORKING = ("compacting", "replicating")
_MAX_VOTERS = 1000
"""Maximum number of queues whose files are used to determine the file size.

This many are enough even if some of them are damaged.
"""
_LOG_FIX = "rmqctl recover STORE --strategy salvage"
_CQ_FIX = "rmqctl recover STORE --only consumequeue"
_INDEX_FIX = "rmqctl recover STORE --only index"
MAX_SIZE = (1 << 31) - 1
"""Maximum size in bytes of a file that a broker maps: the maximum of a Java int."""
_MAX_CANDIDATES = 20
"""Maximum number of distinct file sizes, and of distinct distances between file names, that are
considered: a folder may contain anything.
"""


def check(store: Store) -> Iterator[Finding]:
    """Yield the findings for all file sequences of a store."""
    yield from bounded(_all(store), by_folder=True)


def _all(store: Store) -> Iterator[Finding]:
    yield from _commitlog(store)
    yield from _queues(store, "consumequeue", consume_queue.UNIT_SIZE,
                       store.sizes.consumequeue_file, _CQ_FIX, consume_queue.UNIT_SIZE)
    yield from _queues(store, "consumequeue_ext", 1, None, _CQ_FIX)
    yield from _queues(store, "batchconsumequeue", 1, None, _CQ_FIX)
    for part, unit in (("compactionLog", 1), ("compactionCq", batch_consume_queue.UNIT_SIZE)):
        yield from _queues(store, "compaction", unit, None, None, part=part)
    yield from _timerlog(store)
    yield from _index(store)


def _nested(store: Store) -> str:
    """Return the severity of an unexpected folder in a folder of data files; 5.1+ skips such
    folders (recovery.md §2).
    """
    return INFO if store.generation == 4 else ""


# -- commitlog -------------------------------------------------------------------------------


def _commitlog(store: Store) -> Iterator[Finding]:
    sequence = FileSequence("commitlog", fix=_LOG_FIX)
    files: list[StoreFile] = []
    taken: list[int] = []
    # Each folder of the log; a missing one costs the consume queues. Files of the log that have
    # other names are not missing.
    named = {trouble.path: trouble for trouble in store.log_troubles}
    for folder in store.log_folders:
        if not vfs.lexists(folder):
            if any(queue.exists for queue in store.queues.readable.values()):
                yield sequence.finding("file-missing", "the log folder is missing: a broker that "
                                       "starts now deletes all consume queues", folder)
            continue
        log_listing = listing(folder)
        log_listing.troubles = [named.get(trouble.path, trouble)
                                for trouble in log_listing.troubles]
        yield from strange(sequence, folder, log_listing, nested=_nested(store))
        files += log_listing.files
        taken += occupied(log_listing)
    yield from (sequence.finding("file-name", trouble.reason, trouble.path, severity=ERROR)
                for trouble in store.log_troubles if trouble.nested or trouble.exchanged)
    here = {file.path for file in files}
    files += [file for file in store.log_as_it_is.files if file.path not in here]
    # The size of most of the files.
    files.sort(key=lambda file: (file.name, file.path))
    votes = Votes()
    votes.add(files)
    size = store.sizes.commitlog_file or votes.size()
    if size is None:
        yield from _only_odd(sequence, files)
        return
    if len(files) == 1 and store.sizes.commitlog_file is None and files[0].base % size:
        # Its own name shows that it never had this size.
        file = files[0]
        yield sequence.finding("file-size",
                               f"has {file.size} bytes, but its name is not a multiple "
                               "of this size",
                               file.path, base=file.base, position=file.size)
        return
    yield from check_sequence(sequence, files, size, taken=sorted(taken), aligned=votes.sure(size))


def _only_odd(sequence: FileSequence, files: list[StoreFile]) -> Iterator[Finding]:
    """Yield the findings for a sequence in which no file has a possible size, so the right size is
    unknown.
    """
    for file in files:
        if file.size:
            yield sequence.finding("file-size",
                                   f"has {file.size} bytes, a size that no broker uses "
                                   "here", file.path, base=file.base, position=file.size)
        else:
            yield sequence.finding("file-empty", "empty file, like all files here", file.path,
                                   base=file.base, position=0)


# -- queues ----------------------------------------------------------------------------------


def _queues(store: Store, structure: str, unit: int, given: int | None, fix: str | None,
            row_size: int | None = None, part: str | None = None) -> Iterator[Finding]:
    """Yield the findings for the queues of one structure. Their file size is ``given`` or, by
    default, the most frequent size.
    """
    top = store.path(structure, part) if part else store.path(structure)
    if not vfs.lexists(top):
        return
    # The size of most files of the structure.
    votes = Votes(unit)
    for files in islice(_voters(store, top), _MAX_VOTERS):
        votes.add(files)
    size = given or votes.size()
    nested = _nested(store)
    topics = store.queues.listed(top)
    yield from _not_a_folder(FileSequence(structure, fix=fix), top, topics, "topic", DATABASE_FILE)
    # Topic by topic, queue by queue.
    for topic in topics.folders:
        folder = os.path.join(top, topic)
        inside = store.queues.listed(folder)
        sequence = FileSequence(structure, topic, fix=fix)
        yield from _not_a_folder(sequence, folder, inside, "queue", None)
        for name in inside.folders:
            path = os.path.join(folder, name)
            queue = _queue_id(name)
            yield from _queue_name(sequence, path, name, queue)
            if queue is None:
                continue
            held = store.queues.listed(path)
            own = FileSequence(structure, topic, queue, fix, row_size)
            yield from strange(own, path, held, allowed=WORKING if part else (), nested=nested)
            if size is None:
                yield from _only_odd(own, held.files)
                continue
            # A compaction replaces files by fewer ones, which leaves holes between them.
            yield from check_sequence(own, held.files, size, unit=unit, gaps=part is None,
                                      taken=occupied(held), aligned=votes.sure(size))


def _voters(store: Store, top: str) -> Iterator[list[StoreFile]]:
    """Yield the files of each queue folder."""
    for topic in store.queues.listed(top).folders:
        for name in store.queues.listed(os.path.join(top, topic)).folders:
            if _queue_id(name) is not None:
                yield store.queues.listed(os.path.join(top, topic, name)).files


def _queue_id(name: str) -> int | None:
    """Return the queue id in a folder's name as a broker reads it (``Integer.parseInt``)."""
    try:
        return java_int(name) if name.isascii() else None
    except ValueError:
        return None


def _queue_name(sequence: FileSequence, path: str, name: str,
                queue: int | None) -> Iterator[Finding]:
    """Yield a finding for a folder that a broker skips because its name is not a queue id
    (consumequeue.md §1).
    """
    if queue is None:
        yield sequence.finding("file-name", "the name is not a queue id: a broker skips the folder",
                               path, severity=INFO)
    elif str(queue) != name or queue < 0:
        yield sequence.finding("file-name", f"a broker reads the name as queue {queue} and opens "
                               "another folder", path, severity=INFO)


def _not_a_folder(sequence: FileSequence, folder: str, entries: Listing, meaning: str,
                  allowed: re.Pattern[str] | None) -> Iterator[Finding]:
    for trouble in entries.troubles:
        name = os.path.basename(trouble.path)
        if trouble.unreadable:
            yield sequence.finding("file-unreadable", trouble.reason, trouble.path)
        elif allowed is None or not allowed.fullmatch(name):
            yield sequence.finding("file-name", f"not a {meaning} folder: a broker skips it",
                                   trouble.path, severity=INFO)
    for file in entries.files:
        yield sequence.finding("file-name", f"a file in {os.path.basename(folder)}, which contains "
                               f"{meaning} folders: a broker skips it", file.path, severity=INFO)


# -- timer log and index ---------------------------------------------------------------------


def _timerlog(store: Store) -> Iterator[Finding]:
    folder = store.path("timerlog")
    if not vfs.lexists(folder):
        return
    sequence = FileSequence("timer")
    timer_listing = listing(folder)
    yield from strange(sequence, folder, timer_listing, nested=_nested(store))
    votes = Votes()
    votes.add(timer_listing.files)
    size = votes.size()
    if size is not None:
        yield from check_sequence(sequence, timer_listing.files, size,
                                  taken=occupied(timer_listing),
                                  aligned=votes.sure(size))
    elif any(file.size for file in timer_listing.files):
        yield from _only_odd(sequence, timer_listing.files)
    else:
        for file in timer_listing.files:
            # Other implementations create the first file at startup and fill it later.
            yield sequence.finding("file-empty", "empty file: no timer message was ever written",
                                   file.path, base=file.base, position=0, severity=INFO)


def _index(store: Store) -> Iterator[Finding]:
    folder = store.path("index")
    if not vfs.lexists(folder):
        return
    sequence = FileSequence("index", fix=_INDEX_FIX)
    index_listing = store.index.listing
    # Names that no broker loads.
    for trouble in index_listing.troubles:
        if trouble.unreadable or trouble.reason == "not a regular file":
            yield sequence.finding("file-unreadable", trouble.reason, trouble.path)
        else:
            yield sequence.finding("file-name",
                                   "not the name of an index file (17 digits): a broker "
                                   "does not load it", trouble.path)
    for name in index_listing.folders:
        yield sequence.finding("file-name",
                               "a folder among the index files: a broker does not start "
                               "with it", os.path.join(folder, name))
    # Sizes, compared with the others.
    expected = _index_size(store)
    common, count = next(iter(Counter(file.size for file in index_listing.files).most_common(1)),
                         (0, 0))
    for number, file in enumerate(index_listing.files):
        if not vfs.access(file.path, os.R_OK):
            yield sequence.finding("file-unreadable", "permission denied", file.path)
        # Another configuration changes the size of all later files, not of a single one.
        alone = count > 1 and file.size < common in (later.size
                                                     for later in index_listing.files[number:])
        if file.size == 0:
            yield sequence.finding("file-empty",
                                   "empty file: a broker turns it into an index without "
                                   "entries", file.path, position=0)
        elif file.size != expected is not None or alone:
            wanted = expected or common
            yield sequence.finding(
                "file-size", f"has {file.size} bytes, expected {wanted}",
                file.path, position=min(file.size, wanted), length=abs(file.size - wanted))
        elif not _can_be_index(file.size):
            yield sequence.finding("file-size", f"has {file.size} bytes, which fits no number of "
                                   "slots and entries", file.path, position=file.size)


def _index_size(store: Store) -> int | None:
    slots, most = store.sizes.index_slots, store.sizes.index_max
    if slots is None or most is None:
        return None
    return index_file.IndexShape(slots, most).file_size


def _can_be_index(size: int) -> bool:
    """Return whether an index file of this size can have a header, slots and entries."""
    parts = size - index_file.HEADER.size
    return parts >= index_file.SLOT.size + index_file.ENTRY.size and (
        parts % index_file.SLOT.size == 0)


@dataclass(frozen=True, slots=True)
class FileSequence:
    """A sequence of files: its structure, and its queue if the files belong to one."""

    structure: str
    topic: str | None = None
    queue_id: int | None = None
    fix: str | None = None
    row_size: int | None = None
    """Size of an entry in bytes, if positions in the sequence correspond to queue offsets."""

    def finding(self, category: str, detail: str, path: str, *, base: int = 0,
                position: int | None = None, length: int | None = None, count: int = 1,
                severity: str = "") -> Finding:
        """Return a finding about a file. ``base``: the offset of the file in its sequence."""
        offset = position
        if self.structure == "commitlog" and position is not None:
            offset = base + position
        row = None
        if self.row_size and position is not None:
            row = (base + position) // self.row_size
        return Finding(category, self.structure, detail, file=path, offset=offset,
                       position=position, length=length, topic=self.topic,
                       queue_id=self.queue_id, queue_offset=row, count=count,
                       severity=severity, next=self.fix)


@dataclass(slots=True)
class Votes:
    """Evidence of the right file size of a structure: file sizes and distances between names."""

    unit: int = 1
    lengths: Counter[int] = field(default_factory=Counter)
    steps: Counter[int] = field(default_factory=Counter)

    def add(self, files: Iterable[StoreFile]) -> None:
        usable = list(files)
        self.lengths.update(file.size for file in usable)
        self.steps.update(b.base - a.base for a, b in pairwise(usable) if b.base > a.base)

    def size(self) -> int | None:
        """Return the file size that agrees with most actual sizes and distances between names.

        None if no size is possible. If a file is missing, the distance between its neighbors is a
        multiple of the file size.
        """
        steps = [step for step, _ in self.steps.most_common(_MAX_CANDIDATES)]
        lengths = [length for length, _ in self.lengths.most_common(_MAX_CANDIDATES)]

        def weight(size: int) -> tuple[int, bool, bool, int]:
            return (self.lengths[size] + self.steps[size],
                    all(step % size == 0 for step in steps), size in self.lengths, size)

        return max((size for size in {*lengths, *steps}
                    if 0 < size <= MAX_SIZE and size % self.unit == 0), key=weight, default=None)

    def sure(self, size: int) -> bool:
        """Return whether at least two file sizes or distances between names support this size."""
        return self.lengths[size] + self.steps[size] > 1


def strange(sequence: FileSequence, folder: str, entries: Listing, *, allowed: tuple[str, ...] = (),
            nested: str = INFO) -> Iterator[Finding]:
    """Yield findings for unexpected content in the folder of a sequence.

    ``allowed``: names of sub-folders that the folder may contain.
    ``nested``: severity of any other sub-folder ("": no finding, as 5.1+ skips such folders).
    """
    for trouble in entries.troubles:
        name = os.path.basename(trouble.path)
        if trouble.unreadable or _in_sequence(name):
            yield sequence.finding("file-unreadable", trouble.reason, trouble.path)
        elif not (name.endswith(".delete") and allowed):
            yield sequence.finding("file-name",
                                   f"{trouble.reason}: a broker does not start while "
                                   "the folder contains this name", trouble.path)
    for name in entries.folders:
        path = os.path.join(folder, name)
        if _in_sequence(name):
            yield sequence.finding("file-unreadable", "a folder with the name of a file", path)
        elif name not in allowed and nested:
            yield sequence.finding("file-name", "a folder among the files: brokers before 5.1 do "
                                   "not start with it", path, severity=nested)


def _in_sequence(name: str) -> bool:
    return names.parse_offset(name) is not None


def occupied(entries: Listing) -> list[int]:
    """Return the offsets in the names of unreadable files; these files are not missing."""
    taken = [os.path.basename(trouble.path) for trouble in entries.troubles] + entries.folders
    return sorted(base for base in map(names.parse_offset, taken) if base is not None)


def check_sequence(sequence: FileSequence, files: list[StoreFile], size: int, *, unit: int = 1,
                   taken: Iterable[int] = (), gaps: bool = True,
                   aligned: bool = True) -> Iterator[Finding]:
    """Yield findings on sizes, names and gaps of one sequence.

    * ``files``: the files, sorted by name
    * ``size``: the right size of a file in bytes
    * ``taken``: offsets of files that exist but are unreadable
    * ``gaps``: whether a gap is damage
    * ``aligned``: whether ``size`` is certain enough to check names against it
    """
    usable: list[StoreFile] = []
    for number, file in enumerate(files):
        if not vfs.access(file.path, os.R_OK):
            yield sequence.finding("file-unreadable", "permission denied", file.path)
        last = number == len(files) - 1
        yield from _length(sequence, file, size, unit, last)
        if aligned and file.base % size:
            yield sequence.finding("file-name", f"{file.base} is not a multiple of the file size "
                                   f"{size}: no broker uses this name", file.path, base=file.base,
                                   position=0)
        elif usable and file.base == usable[-1].base:
            yield sequence.finding("file-name", f"same name as {usable[-1].path}", file.path,
                                   base=file.base, position=0, severity=ERROR)
        else:
            usable.append(file)
    if gaps:
        for a, b in pairwise(usable):
            yield from _missing(sequence, a, b.base, size, taken)


def _length(sequence: FileSequence, file: StoreFile, size: int, unit: int,
            last: bool) -> Iterator[Finding]:
    if file.size == 0 and last:
        yield sequence.finding("file-empty",
                               "empty file: brokers before 5.1.3 do not start with it, "
                               "later ones delete it", file.path, base=file.base, position=0,
                               length=size)
    elif file.size != size:
        position = min(file.size, size)
        yield sequence.finding(
            "file-size", f"has {file.size} bytes, expected {size}: a broker does not start with it",
            file.path, base=file.base, position=position,
            length=abs(file.size - size))
    elif size % unit:
        yield sequence.finding("file-size",
                               f"size {file.size} is not a multiple of the unit size, {unit} "
                               "bytes", file.path, base=file.base, position=size - size % unit,
                               length=size % unit)


def _missing(sequence: FileSequence, before: StoreFile, end: int, size: int,
             taken: Iterable[int]) -> Iterator[Finding]:
    """Yield a finding for each run of missing files between the file ``before`` and the file at
    offset ``end``.
    """
    start = max(before.base + size, before.end)
    for stop in [*(base for base in taken if start <= base < end), end]:
        if stop > start:
            count = -(-(stop - start) // size)
            path = os.path.join(os.path.dirname(before.path), names.build_offset(start))
            yield sequence.finding(
                "file-missing", f"{count} file{'s' if count > 1 else ''} missing: "
                f"[{start}, {stop})", path, base=start, position=0, length=stop - start,
                count=count)
        start = max(start, stop + size)
