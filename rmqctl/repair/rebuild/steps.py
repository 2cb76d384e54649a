"""Plan the steps that replace consume queue and index files of a store with the rebuilt files.

Each changed queue and index file gets one action. Files that do not differ are not changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Literal

import numpy as np

from rmqctl.engine.dispatch.index import header_of
from rmqctl.errors import StoreIOError
from rmqctl.files.durable import failed
from rmqctl.files.sparse import same_content
from rmqctl.formats.local import batch_consume_queue, consume_queue, names
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import (
    Action,
    Changes,
    Create,
    FileContent,
    MakeFolder,
    MoveAside,
    Patch,
    Planned,
    Replace,
    Step,
)
from rmqctl.repair.rebuild import index
from rmqctl.repair.rebuild.rebuild import CONSUMEQUEUE, INDEX, Rebuilt
from rmqctl.repair.rebuild.seed import BATCH, EXT, PLAIN
from rmqctl.repair.targets import is_alias
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue, valid

_VERB = "rebuild"
_MISSING, _BEHIND, _AHEAD, _WRONG, _STRANGE = (
    "{} is missing", "{} lags behind the log",
    "{} has entries for messages that are not in the log", "{} has wrong entries",
    "{} has files that do not belong there")
Kind = Literal["file", "folder", "other"]
"""``other``: a FIFO, a device, or a link that points to no file or to another file of the store."""


def derived_steps(rebuilt: Rebuilt, index_is_right: Callable[[], bool] = lambda: False) -> Planned:
    """Return (steps, actions) that replace files of a store with the files of its rebuild.

    ``steps`` and ``actions`` are empty if no file differs. ``index_is_right`` is called if index
    files differ; if it returns true, the index files are not replaced. Keep the scratch folder
    until the steps are carried out. Raises: StoreIOError.
    """
    steps: list[Step] = []
    actions: list[Action] = []
    moved: set[str] = set()
    for planned in _all(rebuilt, index_is_right):
        for step in planned[0]:
            if isinstance(step, MoveAside):
                if step.target in moved:  # it is in the way of several queues
                    continue
                moved.add(step.target)
            steps.append(step)
        actions += planned[1]
    return steps, actions


def topic_queue_table(rebuilt: Rebuilt) -> dict[str, int]:
    """Return the next queue offset that each queue has after the repair.

    Keys are ``topic-queueId``, as in a broker. If the log has no message of a queue, the entries of
    the queue determine the offset. Queues that never had a message are skipped.
    """
    ends = _ends(rebuilt)
    return {f"{topic}-{queue}": end for (topic, queue), end in sorted(ends.items()) if end}


def _ends(rebuilt: Rebuilt) -> dict[QueueKey, int]:
    rebuilt_ends = rebuilt.next_offsets if CONSUMEQUEUE in rebuilt.only else {}
    ends: dict[QueueKey, int] = {}
    for key, queue in rebuilt.present.items():
        if key not in rebuilt_ends:
            with closing(queue):
                cut = _first_wrong(rebuilt, key, queue) if rebuilt.wants(key) else None
                ends[key] = queue.written if cut is None else min(cut, queue.written)
    for key, batches in rebuilt.present_batches.items():
        if key not in rebuilt_ends:
            limit = rebuilt.log_end if rebuilt.wants(key) else None
            ends[key] = batches.bounds(0, limit)[1]
    return {**ends, **rebuilt_ends}


def _all(rebuilt: Rebuilt, index_is_right: Callable[[], bool]) -> Iterator[Planned]:
    if CONSUMEQUEUE in rebuilt.only:
        in_scratch = rebuilt.scratch_queues
        queues, rebuilt_queues = rebuilt.present, in_scratch.plain
        for key in sorted({*queues, *rebuilt_queues} - rebuilt.same):
            if rebuilt.wants(key):
                yield _Plain(rebuilt, key).planned(queues.get(key), rebuilt_queues.get(key))
                yield _extension(rebuilt, key)
        batches, fresh = rebuilt.present_batches, in_scratch.batch
        for key in sorted({*batches, *fresh}):
            if rebuilt.wants(key):
                yield _Batch(rebuilt, key).planned(batches.get(key), fresh.get(key))
    if INDEX in rebuilt.only:
        planned = _index(rebuilt)
        if planned[0] and not index_is_right():
            yield planned


# -- queues ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rows:
    """The entries with the queue offsets ``[first, end)``."""

    first: int
    end: int


class _Queue:
    """Planner of the steps for one queue, with subclasses for plain and batch queues."""

    folder = ""
    dtype: Any = None

    def __init__(self, rebuilt: Rebuilt, key: QueueKey) -> None:
        self.rebuilt, self.key = rebuilt, key
        self.target = os.path.join(self.folder, key[0], str(key[1]))

    def older(self, files: list[StoreFile]) -> set[str]:
        """Return the queue's files in the store that come before the first rebuilt file and contain
        only entries of expired messages.
        """
        folder = os.path.join(self.rebuilt.root, self.target)
        first = files[0].base
        older = set()
        for file in listing(folder).files:
            if file.base < first and self._is_expired(file):
                older.add(os.path.join(self.target, file.name))
        return older

    def _is_expired(self, file: StoreFile) -> bool:
        """Return whether the last entry of a file points to an expired message. If so, a broker
        deletes the file.
        """
        with FileSource(file.path) as source:
            size = self.dtype.itemsize
            raw = source.read(max(0, file.size - file.size % size - size), size)
        if len(raw) < size:
            return False
        row = np.frombuffer(raw, self.dtype)[0]
        return int(row["physical_offset"]) < self.rebuilt.log_min

    def changed(self, files: list[StoreFile]) -> list[Step]:
        return compare(self.rebuilt.root, self.rebuilt.scratch.root, self.target,
                       self.older(files).__contains__)

    def cut(self, files: list[StoreFile], end: int) -> list[Step]:
        """Return the steps that truncate the queue at byte ``end``.

        The file that contains ``end`` is zeroed from there on. Later files are moved aside, the
        last file first.
        """
        steps: list[Step] = []
        for file in reversed(files):
            if file.base >= end:
                steps.append(MoveAside(os.path.join(self.target, file.name)))
            elif file.end > end:
                steps.append(Patch(os.path.join(self.target, file.name),
                                   (OverlayPiece(end - file.base, file.end - end),)))
        return steps

    def summarised(self, steps: list[Step], before: _Rows | None, after: _Rows) -> Planned:
        if not steps:
            return [], []
        if before is None or before.end <= before.first:
            reason = _MISSING
        elif all(isinstance(step, MoveAside) for step in steps) and before == after:
            reason = _STRANGE
        elif before.end < after.end:
            reason = _BEHIND
        elif before.end > after.end:
            reason = _AHEAD
        else:
            reason = _WRONG
        return steps, [Action(_VERB, self.target, None if before is None else before.end,
                              after.end, reason.format(self.folder))]


class _Plain(_Queue):
    folder = PLAIN
    dtype = consume_queue.dtype()

    def planned(self, present: ConsumeQueue | None, built: ConsumeQueue | None) -> Planned:
        before = None if present is None else self.rows(present)
        if built is None or not built.files:
            assert present is not None
            with closing(present):
                end = _first_wrong(self.rebuilt, self.key, present)
                damaged = end is None and _is_damaged_at_end(present, self.rebuilt.log_min)
                end = present.written if damaged else end
            if end is None or before is None:
                return [], []
            steps = self.cut(present.files, consume_queue.byte_offset(end))
            if damaged:
                return steps, [Action(_VERB, self.target, before.end, end,
                                      _WRONG.format(self.folder))]
            return self.summarised(steps, before, _Rows(min(before.first, end), end))
        steps = self.changed(built.files)
        after = self.rows(built)
        older_bases = [file.base for file in (present.files if present is not None else [])
                       if file.base < built.files[0].base]
        if older_bases and before is not None and before.end > before.first:
            after = _Rows(min(before.first, after.first), after.end)
        return self.summarised(steps, before, after)

    def rows(self, queue: ConsumeQueue) -> _Rows:
        with closing(queue):
            try:
                return _Rows(queue.filler_end(), queue.written)
            except StoreIOError:
                return _Rows(0, 0)


class _Batch(_Queue):
    folder = BATCH
    dtype = batch_consume_queue.dtype()

    def planned(self, present: BatchQueue | None, built: BatchQueue | None) -> Planned:
        before = None if present is None else _Rows(*present.bounds(0))
        if built is None or not built.files:
            assert present is not None
            rows_left = len(present.all_used(self.rebuilt.log_end))
            if before is None or rows_left == len(present.all_used()):
                return [], []
            end = present.files[0].base + rows_left * batch_consume_queue.UNIT_SIZE
            return self.summarised(self.cut(present.files, end), before,
                             _Rows(*present.bounds(0, self.rebuilt.log_end)))
        steps = self.changed(built.files)
        after = _Rows(*built.bounds(0))
        if before is not None and before.end > before.first:
            after = _Rows(min(before.first, after.first), after.end)
        return self.summarised(steps, before, after)


def _first_wrong(rebuilt: Rebuilt, key: QueueKey, queue: ConsumeQueue) -> int | None:
    """Return the queue offset from which on no entry of a queue can be right; None if its last
    entry can be. The log has no message of the queue.

    An entry cannot be right if it points beyond the end of the log, or to a place where the log is
    intact: messages of other queues are there. Entries that point into damage are evidence, and
    stay.
    """
    log_end = rebuilt.rows_end
    is_judged = _is_without_messages(rebuilt, key)
    wrong_from: int | None = None
    for first, rows in queue.pages(queue.first_index, queue.written):
        places = rows["physical_offset"]
        behind = np.flatnonzero(places >= log_end)
        if len(behind):
            places = places[:behind[0]]
        possible = np.flatnonzero(~_is_in_intact_log(rebuilt, places) | (
            rows["size"][:len(places)] == consume_queue.FILLER.size)
            if is_judged else np.ones(len(places), bool))
        if len(possible):
            wrong_from = first + int(possible[-1]) + 1
        elif wrong_from is None:
            wrong_from = first
        if len(behind):
            return wrong_from
    return None if wrong_from == queue.written else wrong_from


def _is_without_messages(rebuilt: Rebuilt, key: QueueKey) -> bool:
    """Return whether it is certain that the intact part of the log has no message of a queue."""
    topic, _ = key
    if rebuilt.refused or rebuilt.damage.count > len(rebuilt.damage.spans):
        return False
    if topic.startswith(LMQ_PREFIX):  # its entries may have another queue id, or be switched off
        return rebuilt.settings.multi_dispatch and all(
            topic != other for other, _ in rebuilt.next_offsets)
    return key not in rebuilt.next_offsets


def _is_in_intact_log(rebuilt: Rebuilt, places: Array) -> Array:
    """Return whether each physical offset is in a part of the log that is not damaged."""
    inside: Array = np.zeros(len(places), bool)
    if not len(places) or places.max() < rebuilt.log_min:  # nearly always, all have expired
        return inside
    for part in rebuilt.parts:
        inside |= (places >= part.base) & (places < part.end)
    for span in rebuilt.damage.spans:
        inside &= (places < span.offset) | (places >= span.offset + span.length)
    return inside


def _is_damaged_at_end(queue: ConsumeQueue, log_min: int) -> bool:
    """Return whether entries after the end of a queue show that the queue is damaged at its end.

    They do if one of them points into the log and no valid one points to an expired message. Called
    for queues that have no message in the log.
    """
    seen = False
    for _, rows in queue.pages(queue.written, queue.disk_end):
        seen = seen or bool((rows["physical_offset"] >= max(log_min, 1)).any())
        if (valid(rows) & (rows["physical_offset"] < log_min)).any():
            return False
    return seen


def _extension(rebuilt: Rebuilt, key: QueueKey) -> Planned:
    target = os.path.join(EXT, key[0], str(key[1]))
    built = listing(rebuilt.scratch.path(target)).files
    if not built:
        return [], []
    present = listing(os.path.join(rebuilt.root, target)).files
    older = {os.path.join(target, file.name) for file in present if file.base < built[0].base}
    steps = compare(rebuilt.root, rebuilt.scratch.root, target, older.__contains__)
    if not steps:
        return [], []
    reason = (_WRONG.replace("rows", "units") if present else _MISSING).format(EXT)
    return steps, [Action(_VERB, target, len(present) or None, len(built) + len(older), reason,
                          "file")]


# -- index ----------------------------------------------------------------------------------------


def _index(rebuilt: Rebuilt) -> Planned:
    stays = rebuilt.expired.stays
    scratch = rebuilt.scratch.path(INDEX)
    built = [file for file in listing(scratch, names.INDEX_DIGITS).files if file.name not in stays]
    index_listing = listing(os.path.join(rebuilt.root, INDEX), names.INDEX_DIGITS)
    present = {file.name: file for file in index_listing.files if file.name not in stays}
    changes = Changes()
    steps = changes.steps
    chosen = index.matched(built, list(present.values()), max(stays, default=""))
    # Each rebuilt file under the name of the file that it replaces, or a new one.
    for file, name in zip(built, chosen, strict=True):
        target, content = os.path.join(INDEX, name), FileContent(file.path)
        old = present.pop(name, None)
        after = _entries(file)
        if old is None:
            strange = os.path.lexists(os.path.join(rebuilt.root, target))
            if strange:
                steps.append(MoveAside(target))
            changes.act(Create(target, content), _VERB, None, after, "not a regular file"
                        if strange else "index file is missing", "entry")
        elif is_alias(rebuilt.root, old.path):
            steps.append(MoveAside(target))
            changes.act(Create(target, content), _VERB, None, after,
                        "a link to another file of the store", "entry")
        elif not same_content(file.path, old.path):
            before = _entries(old)
            reason = "index has wrong entries" if before == after else "index differs from the log"
            changes.act(Replace(target, content), _VERB, before, after, reason, "entry")
    # The other files of the store have no message of the log.
    for name, old in sorted(present.items(), reverse=True):
        changes.move_aside(os.path.join(INDEX, name), _entries(old),
                           "index file of messages that are not in the log", "entry")
    folder = os.path.join(rebuilt.root, INDEX)
    if steps and not os.path.isdir(folder):
        steps.insert(0, MakeFolder(INDEX))
        if os.path.lexists(folder) and not os.path.islink(folder):
            steps.insert(0, MoveAside(INDEX))
    return steps, changes.actions


def _entries(file: StoreFile) -> int | None:
    """Return the number of entries according to a file's header; None if the header cannot be
    read.
    """
    try:
        return max(header_of(file.path).index_count, 1) - 1
    except StoreIOError:
        return None


# -- files of the store and files of the scratch folder -------------------------------------------


def compare(root: str, scratch: str, folder: str, leave: Callable[[str], bool]) -> list[Step]:
    """Return the steps that make ``folder`` of the store equal to the same folder of the scratch
    folder.

    ``folder``: path relative to both roots, for example ``consumequeue/TopicTest/0``. ``leave``
    returns whether a file of the store is kept if the scratch folder does not contain it. Unchanged
    files keep their times. Raises: StoreIOError.
    """
    present, built = _tree(root, folder), _tree(scratch, folder)
    steps: list[Step] = [MoveAside(path) for path in _in_the_way(root, folder)] if built else []
    gone: set[str] = set()
    for relative in sorted({*present, *built}, key=lambda path: path.split(os.sep)):
        old_kind, new_kind = present.get(relative), built.get(relative)
        if os.path.dirname(relative) in gone:
            old_kind = None
            gone.add(relative)
        if new_kind is None:
            # Folders stay: a broker keeps those of empty queues.
            if old_kind not in (None, "folder") and not leave(relative):
                steps.append(MoveAside(relative))
            continue
        content = FileContent(os.path.join(scratch, relative))
        if old_kind == new_kind:
            if old_kind == "file" and not same_content(os.path.join(root, relative), content.path):
                steps.append(Replace(relative, content))
            continue
        if old_kind is not None:  # a folder where a file should be, or the like
            steps.append(MoveAside(relative))
            gone.add(relative)
        steps.append(Create(relative, content) if new_kind == "file" else MakeFolder(relative))
    return steps


def _in_the_way(root: str, folder: str) -> Iterator[str]:
    """Yield the parent path of ``folder`` that exists but is not a folder, if there is one.

    A link is not yielded, because it may point to a disk that is not mounted. A plan that would
    write through the link is refused later.
    """
    above, parts = "", folder.split(os.sep)
    for part in parts[:-1]:
        above = os.path.join(above, part)
        path = os.path.join(root, above)
        if os.path.lexists(path) and not os.path.isdir(path) and not os.path.islink(path):
            yield above
            return


def kind_of(root: str, path: str) -> Kind | None:
    """Return the kind of the file that ``path`` points to; None if not even a link exists."""
    if os.path.isfile(path):
        return "other" if is_alias(root, path) else "file"
    if os.path.isdir(path):
        return "folder"
    return "other" if os.path.lexists(path) else None


def _tree(root: str, folder: str) -> dict[str, Kind]:
    """Return, by relative path, the kinds of ``folder`` and of everything below it; links are not
    followed.
    """
    top = kind_of(root, os.path.join(root, folder))
    if top != "folder":
        return {} if top is None else {folder: top}
    kinds: dict[str, Kind] = {folder: "folder"}

    def walk(relative: str) -> Iterator[tuple[str, Kind]]:
        try:
            entries = sorted(os.scandir(os.path.join(root, relative)), key=lambda entry: entry.name)
        except OSError as error:
            raise failed(error, os.path.join(root, relative), "list") from None
        for entry in entries:
            below = os.path.join(relative, entry.name)
            if entry.is_dir(follow_symlinks=False):
                yield below, "folder"
                yield from walk(below)
            else:
                alias = entry.is_symlink() and is_alias(root, entry.path)
                yield below, "file" if entry.is_file() and not alias else "other"

    kinds.update(walk(folder))
    return kinds
