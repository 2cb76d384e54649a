"""``offsets copy`` and ``offsets import``: take offsets from another group, store or file."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Literal, NamedTuple

from rmqctl.checks.verify.common import plural
from rmqctl.errors import RefusedError
from rmqctl.formats.local.properties import RETRY_PREFIX
from rmqctl.phrases import Phrase
from rmqctl.repair.offsets.table import (
    MovedOffset,
    OffsetsPlan,
    file_of,
    lost_queues,
    moved_to,
    notes_of,
    planned,
    positions,
    queue_rows,
    refuse_odd_name,
)
from rmqctl.repair.scratch import Scratch
from rmqctl.store.config.committed import Commits
from rmqctl.store.config.progress import named
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store

COPY, IMPORT = "offsets-copy", "offsets-import"

Rule = Literal["missing", "max", "min", "replace"]
"""The offset to use if store and source both have an offset:

* ``missing``: the store's offset
* ``replace``: the source's offset
* ``max``: the larger offset
* ``min``: the smaller offset
"""


class NewOffsets(NamedTuple):
    """Offsets to take, by (group, topic, queue id); the ``rule`` for offsets that differ; a
    description of their source.
    """

    offsets: Commits
    rule: Rule
    source: str


def plan_copy(store: Store, source: str, target: str, topic: str | None, view: View,
              clock: Callable[[], int], scratch: Scratch) -> OffsetsPlan:
    """Return the plan that gives the group ``target`` the offsets of the group ``source``.

    ``topic``: None for all topics except retry topics, which belong to one group each.
    Raises: RefusedError if ``source`` has no offsets, or a file cannot be changed without loss.
    """
    store.layout.require(store.root, "config")
    for group in (source, target):
        refuse_odd_name(group)
    if source == target:
        raise RefusedError(f"source and target are the same group, {source}: name two groups")
    offsets = {(target, name, queue_id): offset
               for name, queues in positions(file_of(store, source), source).items()
               if not name.startswith(RETRY_PREFIX) and topic in (None, name)
               for queue_id, offset in queues.items()}
    if not offsets:
        where = "" if topic is None else f" in topic {topic}"
        raise RefusedError(f"{store.root}: group {source} committed no offset{where}: nothing to "
                           "copy")
    taken = NewOffsets(offsets, "replace", f"group {source}")
    return _plan(store, COPY, taken, view, clock, scratch)


def plan_import(store: Store, wanted: NewOffsets, view: View, clock: Callable[[], int],
                scratch: Scratch) -> OffsetsPlan:
    """Return the plan that imports offsets from a file or from another store. Raises: RefusedError
    if a file cannot be changed without loss.
    """
    store.layout.require(store.root, "config")
    return _plan(store, IMPORT, wanted, view, clock, scratch)


def _plan(store: Store, command: str, wanted: NewOffsets, view: View, clock: Callable[[], int],
          scratch: Scratch) -> OffsetsPlan:
    # The old and the new offsets of each group.
    groups = sorted({group for group, _, _ in wanted.offsets})
    files = {group: file_of(store, group) for group in groups}
    ours = {(group, topic, queue_id): offset for group in groups
            for topic, queues in positions(files[group], group).items()
            for queue_id, offset in queues.items()}
    queues = [*_moved(store, view, wanted, ours)]
    changed = [queue for queue in queues if queue.before != queue.after]
    # What the user must know before the broker starts.
    notes = notes_of(store, view, {file.name: file for file in files.values()}.values())
    beyond = [f"{queue.group} at {queue.topic}-{queue.queue_id}" for queue in changed
              if queue.after > queue.max_offset > 0]
    notes = [*lost_queues(changed, wanted.source), *notes]
    if any(queue.skips for queue in changed):
        notes.append(Phrase("the skipped messages are unread only in this store: according to "
                            "{source}, the groups have read them", source=wanted.source))
    if beyond:
        first = next(queue.group for queue in changed if queue.after > queue.max_offset > 0)
        command_line = shlex.join(("rmqctl", "offsets", "reset", store.root, "--group", first,
                                   "--beyond-end"))
        notes.append(f"{plural(len(beyond), 'offset is', 'offsets are')} beyond the end of the "
                     f"queue ({named(beyond)}): the messages there are not in this store. "
                     f"`{command_line}` moves a group to the end")
    kept = sum(queue.before == queue.after and queue.before != wanted.offsets[
        queue.group, queue.topic, queue.queue_id] for queue in queues)
    if kept and wanted.rule == "missing":
        notes.append(f"{plural(kept, 'different offset keeps', 'different offsets keep')} the "
                     "value of this store (pass --max, --min or --replace to change that)")
    return planned(store, command, queues, changed, lambda _: Phrase(
        "copied from {source}", source=wanted.source), notes,
                   clock, scratch)


def _moved(store: Store, view: View, wanted: NewOffsets,
           ours: Commits) -> Iterator[MovedOffset]:
    for key, theirs in sorted(wanted.offsets.items()):
        before = ours.get(key)
        with ExitStack() as stack:
            rows = queue_rows(store, view, key[1], key[2], stack)
            yield moved_to(store, rows, key, before, _chosen(wanted.rule, before, theirs))


def _chosen(rule: Rule, ours: int | None, theirs: int) -> int:
    if ours is None or rule == "replace":
        return theirs
    if rule == "missing":
        return ours
    return max(ours, theirs) if rule == "max" else min(ours, theirs)
