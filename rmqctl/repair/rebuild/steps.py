"""What has to change in a store so that its derived files are the rebuilt ones.

One readable action for each queue and each index file. What is right already stays untouched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rmqctl.checks.verify.common import plural
from rmqctl.engine.dispatch.index import header_of
from rmqctl.errors import StoreIOError
from rmqctl.files.durable import failed
from rmqctl.files.sparse import same_content
from rmqctl.formats.local import batch_consume_queue, consume_queue, names
from rmqctl.repair.plan import (
    Action,
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
from rmqctl.repair.rebuild.seed import BATCH, EXT, PLAIN, batches_of, queues_of
from rmqctl.repair.targets import is_alias
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.overlay import Piece
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue

_VERB = "rebuild"
_MISSING, _BEHIND, _AHEAD, _WRONG, _STRANGE = (
    "{} is missing", "{} lags behind the log", "{} has rows of messages that are not in the log",
    "{} has wrong rows", "{} has files that do not belong there")
Kind = Literal["file", "folder", "other"]
"""``other``: a FIFO, a device, a link that leads to no file or to another one of the store."""


def derived_steps(rebuilt: Rebuilt, *, movable: bool = True) -> Planned:
    """(steps, actions) for the store a rebuild was made for. ``movable``: see `FileContent`.

    Nothing where everything is right. The scratch folder must stay until they are carried out.
    StoreIOError.
    """
    steps: list[Step] = []
    actions: list[Action] = []
    moved: set[str] = set()
    for some in _all(rebuilt, movable):
        for step in some[0]:
            if isinstance(step, MoveAside):
                if step.target in moved:  # it is in the way of several queues
                    continue
                moved.add(step.target)
            steps.append(step)
        actions += some[1]
    return steps, actions


def topic_queue_table(rebuilt: Rebuilt) -> dict[str, int]:
    """``topic-queueId`` -> next queue offset, as a broker has it after the steps.

    A queue without any message in the log counts by its rows. Queues that never had a message
    are left out.
    """
    found = _ends(rebuilt)
    return {f"{topic}-{queue}": end for (topic, queue), end in sorted(found.items()) if end}


def _ends(rebuilt: Rebuilt) -> dict[QueueKey, int]:
    made = rebuilt.next_offsets if CONSUMEQUEUE in rebuilt.only else {}
    found: dict[QueueKey, int] = {}
    for key, queue in queues_of(rebuilt.root, rebuilt.settings.consumequeue_file_size).items():
        if key not in made:
            with closing(queue):
                cut = _first_behind(queue, rebuilt.log_end) if rebuilt.wants(key) else None
                found[key] = queue.written if cut is None else min(cut, queue.written)
    for key, batches in batches_of(rebuilt.root).items():
        if key not in made:
            limit = rebuilt.log_end if rebuilt.wants(key) else None
            found[key] = batches.bounds(0, limit)[1]
    return {**found, **made}


def _all(rebuilt: Rebuilt, movable: bool) -> Iterator[Planned]:
    if CONSUMEQUEUE in rebuilt.only:
        size = rebuilt.settings.consumequeue_file_size
        there, made = queues_of(rebuilt.root, size), queues_of(rebuilt.scratch.root, size)
        for key in sorted({*there, *made}):
            if rebuilt.wants(key):
                yield _Plain(rebuilt, key, movable).planned(there.get(key), made.get(key))
                yield _extension(rebuilt, key, movable)
        batches, fresh = batches_of(rebuilt.root), batches_of(rebuilt.scratch.root)
        for key in sorted({*batches, *fresh}):
            if rebuilt.wants(key):
                yield _Batch(rebuilt, key, movable).planned(batches.get(key), fresh.get(key))
    if INDEX in rebuilt.only:
        yield _index(rebuilt, movable)


# -- queues ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows in words: queue offsets ``[first, end)``."""

    first: int
    end: int

    def __str__(self) -> str:
        return f"rows {self.first} to {self.end - 1}" if self.end > self.first else "no rows"


class _Queue:
    """The steps for one queue. What differs between plain and batch queues is below."""

    folder = ""
    dtype: Any = None

    def __init__(self, rebuilt: Rebuilt, key: QueueKey, movable: bool) -> None:
        self.rebuilt, self.key, self.movable = rebuilt, key, movable
        self.target = os.path.join(self.folder, key[0], str(key[1]))

    def older(self, made: list[StoreFile]) -> set[str]:
        """Files of the store before the first made one, of expired messages only."""
        folder = os.path.join(self.rebuilt.root, self.target)
        first = made[0].base
        found = set()
        for one in listing(folder).files:
            if one.base < first and self._is_expired(one):
                found.add(os.path.join(self.target, one.name))
        return found

    def _is_expired(self, one: StoreFile) -> bool:
        """As a broker's cleaner sees it: by the last row."""
        with FileSource(one.path) as source:
            size = self.dtype.itemsize
            raw = source.read(max(0, one.size - one.size % size - size), size)
        if len(raw) < size:
            return False
        row = np.frombuffer(raw, self.dtype)[0]
        return int(row["physical_offset"]) < self.rebuilt.log_min

    def changed(self, made: list[StoreFile]) -> list[Step]:
        older = self.older(made)
        return compare(self.rebuilt.root, self.rebuilt.scratch.root, self.target,
                       leave=older.__contains__, movable=self.movable)

    def cut(self, files: list[StoreFile], at: int) -> list[Step]:
        """Zeros from byte ``at`` of the queue on; files behind go away, the last first."""
        steps: list[Step] = []
        for one in reversed(files):
            if one.base >= at:
                steps.append(MoveAside(os.path.join(self.target, one.name)))
            elif one.end > at:
                steps.append(Patch(os.path.join(self.target, one.name),
                                   (Piece(at - one.base, one.end - at),)))
        return steps

    def summarised(self, steps: list[Step], before: _Rows | None, after: _Rows) -> Planned:
        if not steps:
            return [], []
        if before is None or before.end <= before.first:
            reason = _MISSING
        elif all(isinstance(one, MoveAside) for one in steps) and before == after:
            reason = _STRANGE
        elif before.end < after.end:
            reason = _BEHIND
        elif before.end > after.end:
            reason = _AHEAD
        else:
            reason = _WRONG
        return steps, [Action(_VERB, self.target, "missing" if before is None else str(before),
                              str(after), reason.format(self.folder))]


class _Plain(_Queue):
    folder = PLAIN
    dtype = consume_queue.dtype()

    def planned(self, there: ConsumeQueue | None, made: ConsumeQueue | None) -> Planned:
        before = None if there is None else self.rows(there)
        if made is None or not made.files:
            assert there is not None
            with closing(there):
                end = _first_behind(there, self.rebuilt.log_end)
            if end is None or before is None:
                return [], []
            steps = self.cut(there.files, consume_queue.byte_offset(end))
            return self.summarised(steps, before, _Rows(min(before.first, end), end))
        steps = self.changed(made.files)
        after = self.rows(made)
        kept = [one.base for one in (there.files if there is not None else [])
                if one.base < made.files[0].base]
        if kept and before is not None and before.end > before.first:
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

    def planned(self, there: BatchQueue | None, made: BatchQueue | None) -> Planned:
        before = None if there is None else _Rows(*there.bounds(0))
        if made is None or not made.files:
            assert there is not None
            kept = len(there.all_used(self.rebuilt.log_end))
            if before is None or kept == len(there.all_used()):
                return [], []
            at = there.files[0].base + kept * batch_consume_queue.UNIT_SIZE
            return self.summarised(self.cut(there.files, at), before,
                             _Rows(*there.bounds(0, self.rebuilt.log_end)))
        steps = self.changed(made.files)
        after = _Rows(*made.bounds(0))
        if before is not None and before.end > before.first:
            after = _Rows(min(before.first, after.first), after.end)
        return self.summarised(steps, before, after)


def _first_behind(queue: ConsumeQueue, log_end: int) -> int | None:
    """The first row that leads beyond the end of the log; None without any."""
    for at, rows in queue.pages(queue.first_index, queue.written):
        behind = np.flatnonzero(rows["physical_offset"] >= log_end)
        if len(behind):
            return at + int(behind[0])
    return None


def _extension(rebuilt: Rebuilt, key: QueueKey, movable: bool) -> Planned:
    target = os.path.join(EXT, key[0], str(key[1]))
    made = listing(rebuilt.scratch.path(target)).files
    if not made:
        return [], []
    there = listing(os.path.join(rebuilt.root, target)).files
    older = {os.path.join(target, one.name) for one in there if one.base < made[0].base}
    steps = compare(rebuilt.root, rebuilt.scratch.root, target, leave=older.__contains__,
                    movable=movable)
    if not steps:
        return [], []
    reason = (_WRONG.replace("rows", "units") if there else _MISSING).format(EXT)
    return steps, [Action(_VERB, target, plural(len(there), "file") if there else "missing",
                          plural(len(made) + len(older), "file"), reason)]


# -- index ----------------------------------------------------------------------------------------


def _index(rebuilt: Rebuilt, movable: bool) -> Planned:
    stays = rebuilt.expired.stays
    scratch = rebuilt.scratch.path(INDEX)
    made = [one for one in listing(scratch, names.INDEX_DIGITS).files if one.name not in stays]
    found = listing(os.path.join(rebuilt.root, INDEX), names.INDEX_DIGITS)
    there = {one.name: one for one in found.files if one.name not in stays}
    steps: list[Step] = []
    actions: list[Action] = []
    chosen = index.matched(made, list(there.values()), max(stays, default=""))
    # Each made file under the name of the store's file that it replaces, or a new one.
    for one, name in zip(made, chosen, strict=True):
        target, content = os.path.join(INDEX, name), FileContent(one.path, movable)
        old = there.pop(name, None)
        after = _entries(one)
        if old is None:
            strange = os.path.lexists(os.path.join(rebuilt.root, target))
            if strange:
                steps.append(MoveAside(target))
            steps.append(Create(target, content))
            actions.append(Action(_VERB, target, "no regular file" if strange else "missing",
                                  after, "index file is missing"))
        elif is_alias(rebuilt.root, old.path):
            steps += [MoveAside(target), Create(target, content)]
            actions.append(Action(_VERB, target, "a link to another file of the store", after,
                                  "index file is missing"))
        elif not same_content(one.path, old.path):
            steps.append(Replace(target, content))
            before = _entries(old)
            reason = "index has wrong entries" if before == after else "index differs from the log"
            actions.append(Action(_VERB, target, before, after, reason))
    # What is left of the store's files tells of nothing in the log.
    for name, old in sorted(there.items(), reverse=True):
        target = os.path.join(INDEX, name)
        steps.append(MoveAside(target))
        actions.append(Action("move aside", target, _entries(old), None,
                              "index file of messages that are not in the log"))
    folder = os.path.join(rebuilt.root, INDEX)
    if steps and not os.path.isdir(folder):
        steps.insert(0, MakeFolder(INDEX))
        if os.path.lexists(folder) and not os.path.islink(folder):
            steps.insert(0, MoveAside(INDEX))
    return steps, actions


def _entries(one: StoreFile) -> str:
    try:
        return plural(max(header_of(one.path).index_count, 1) - 1, "entry", "entries")
    except StoreIOError:
        return "unreadable"


# -- files of the store and files of the scratch folder -------------------------------------------


def compare(root: str, scratch: str, folder: str, *,
            wanted: Callable[[str], bool] | None = None,
            leave: Callable[[str], bool] | None = None,
            movable: bool = True) -> list[Step]:
    """The steps for ``folder`` (relative to both roots, e.g. ``consumequeue/TopicTest/0``).

    ``wanted``: relative paths which the scratch folder speaks for; others are left alone, in
    the store too. ``leave``: files of the store that stay though the scratch folder lacks them.
    Times of files that do not change stay. StoreIOError.
    """
    mine, made = _tree(root, folder), _tree(scratch, folder)
    steps: list[Step] = [MoveAside(one) for one in _in_the_way(root, folder)] if made else []
    gone: set[str] = set()
    for relative in sorted({*mine, *made}, key=lambda one: one.split(os.sep)):
        if wanted is not None and not wanted(relative):
            continue
        here, there = mine.get(relative), made.get(relative)
        if os.path.dirname(relative) in gone:
            here = None
            gone.add(relative)
        if there is None:
            # Folders stay: a broker keeps those of empty queues.
            if here not in (None, "folder") and not (leave is not None and leave(relative)):
                steps.append(MoveAside(relative))
            continue
        content = FileContent(os.path.join(scratch, relative), movable)
        if here == there:
            if here == "file" and not same_content(os.path.join(root, relative), content.path):
                steps.append(Replace(relative, content))
            continue
        if here is not None:  # a folder where a file should be, or the like
            steps.append(MoveAside(relative))
            gone.add(relative)
        steps.append(Create(relative, content) if there == "file" else MakeFolder(relative))
    return steps


def _in_the_way(root: str, folder: str) -> Iterator[str]:
    """What stands above ``folder`` and is no folder. A link may lead to a disk that is not there
    now: it stays, and no plan goes on below it.
    """
    above, parts = "", folder.split(os.sep)
    for part in parts[:-1]:
        above = os.path.join(above, part)
        path = os.path.join(root, above)
        if os.path.lexists(path) and not os.path.isdir(path) and not os.path.islink(path):
            yield above
            return


def kind_of(root: str, path: str) -> Kind | None:
    """What ``path`` in the store leads to; None: there is nothing, not even a link."""
    if os.path.isfile(path):
        return "other" if is_alias(root, path) else "file"
    if os.path.isdir(path):
        return "folder"
    return "other" if os.path.lexists(path) else None


def _tree(root: str, folder: str) -> dict[str, Kind]:
    """Relative path -> what it is, all below ``folder`` and itself; links are not walked."""
    top = kind_of(root, os.path.join(root, folder))
    if top != "folder":
        return {} if top is None else {folder: top}
    found: dict[str, Kind] = {folder: "folder"}

    def walk(relative: str) -> Iterator[tuple[str, Kind]]:
        try:
            entries = sorted(os.scandir(os.path.join(root, relative)), key=lambda one: one.name)
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

    found.update(walk(folder))
    return found
