"""``offsets reset``: set the offsets at which a consumer group continues, given as a time, a queue
offset, or a number of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import Literal

from rmqctl.broker.view import cut_by_broker
from rmqctl.errors import RefusedError
from rmqctl.formats.local.properties import RETRY_PREFIX
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase
from rmqctl.repair.offsets.table import (
    MovedOffset,
    OffsetsPlan,
    file_of,
    is_configured,
    lost_queues,
    moved_to,
    notes_of,
    planned,
    positions,
    queue_rows,
    refuse_odd_name,
)
from rmqctl.repair.scratch import Scratch
from rmqctl.store.config.progress import named
from rmqctl.store.log.bounds import View
from rmqctl.store.problems import Problem
from rmqctl.store.queue.rows import QueueRows
from rmqctl.store.queue.topic_queue_table import log_reach
from rmqctl.store.store import Store

COMMAND = "offsets-reset"
_REASONS = {"earliest": Phrase("the first message"), "latest": Phrase("after the last message"),
            "beyond-end": Phrase("beyond the end of the queue")}


@dataclass(frozen=True, slots=True)
class Number:
    """A queue offset; if ``is_shift``, the number of offsets to move from the group's present
    offset.
    """

    value: int
    is_shift: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """The offsets to change, and their new value.

    ``to``: a store time in epoch ms, a `Number`, or the start or end of the queue. With
    ``beyond-end``, offsets beyond the end of their queue move to this end, and others are kept.
    ``topic``: None for all topics in which the group committed offsets, except its retry topic.
    ``queue_id``: None for all queues.
    """

    group: str
    to: int | Number | Literal["earliest", "latest", "beyond-end"]
    topic: str | None = None
    queue_id: int | None = None


def plan_reset(store: Store, wanted: Reset, view: View, clock: Callable[[], int],
               scratch: Scratch) -> OffsetsPlan:
    """Return the plan for an opened store.

    ``view``: determines the bounds of queues.
    ``clock``: returns the time in epoch ms.
    ``scratch``: for a new database, if the offsets are in RocksDB.

    Raises: RefusedError for an unknown group or queue, or a file that cannot be changed without
    loss; UnsupportedError if the configuration cannot be read; MissingExtraError, StoreIOError.
    """
    # Refuse unknown groups and files that cannot be changed.
    store.layout.require(store.root, "config")
    refuse_odd_name(wanted.group)
    file = file_of(store, wanted.group)
    before = positions(file, wanted.group)
    _refuse_unknown(store, wanted, before)
    # Each queue: the old and the new offset.
    empty_queues = _Empty(store)
    queues = tuple(_moved(store, view, wanted, topic, queue_id, before.get(topic, {}), empty_queues)
                   for topic, queue_id in _queues(store, wanted, before))
    if not queues:
        raise RefusedError(f"{store.root}: no queue matches the given topics and queues; nothing "
                           "is reset")
    changed = [queue for queue in queues if queue.before != queue.after
               and (queue.before is not None or wanted.to != "beyond-end")]
    # What the user must know before the broker starts.
    notes = notes_of(store, view, [file])
    if wanted.to != "beyond-end":
        notes = [*lost_queues(changed, wanted.group), *notes]
    touched = {queue.topic for queue in queues}
    retry = sorted(topic for topic in before
                   if topic.startswith(RETRY_PREFIX) and topic not in touched)
    if wanted.topic is None and retry:
        notes.append(f"the retry topic {named(retry)} keeps its offsets: messages waiting there "
                     "are still delivered (pass --topic to reset it)")
    is_cut = cut_by_broker(view) is not None
    return planned(store, COMMAND, queues, changed, lambda queue: _why(wanted, queue, cut=is_cut),
                   notes, clock, scratch)


# -- whose, and which queues ----------------------------------------------------------------------


def _refuse_unknown(store: Store, wanted: Reset, before: Mapping[str, object]) -> None:
    group = wanted.group
    if not before and not is_configured(store, group):
        raise RefusedError(f"{store.root}: unknown group {group}: it committed no offset and is "
                           "not configured")
    if wanted.topic is None and not before:
        raise RefusedError(f"{store.root}: group {group} committed no offset here: pass --topic")


def _queues(store: Store, wanted: Reset, before: Mapping[str, Mapping[int, int]]) -> Iterator[
        tuple[str, int]]:
    topics = [wanted.topic] if wanted.topic is not None else [
        topic for topic in sorted(before)
        if wanted.to == "beyond-end" or not topic.startswith(RETRY_PREFIX)]
    on_disk: dict[str, set[int]] = {}
    for topic, queue_id in {**store.queues.by_key, **store.queues.batch}:
        on_disk.setdefault(topic, set()).add(queue_id)
    for topic in topics:
        queue_ids = on_disk.get(topic, set()) | before.get(topic, {}).keys()
        if wanted.queue_id is None:
            yield from ((topic, queue_id) for queue_id in sorted(queue_ids))
        elif wanted.queue_id in queue_ids:
            yield topic, wanted.queue_id


# -- whereto --------------------------------------------------------------------------------------


class _Empty:
    """Test whether a queue has no message in the log. The first call reads the log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, topic: str, queue_id: int) -> bool:
        return self._reached is not None and (topic, queue_id) not in self._reached

    @cached_property
    def _reached(self) -> Collection[tuple[str, int]] | None:
        """Return the queues that have a message in the log; None if messages may be in damaged
        parts.
        """
        problems: list[Problem] = []
        reached = log_reach(self._store, View(self._store), report=problems.append)
        return None if problems else reached.keys()


def _moved(store: Store, view: View, wanted: Reset, topic: str, queue_id: int,
           before: Mapping[int, int], is_empty: Callable[[str, int], bool]) -> MovedOffset:
    old, queue = before.get(queue_id), (wanted.group, topic, queue_id)
    with ExitStack() as stack:
        rows = queue_rows(store, view, topic, queue_id, stack)
        if wanted.to == "beyond-end" and ((old or 0) <= rows.end if rows is not None else
                                          not old or not is_empty(topic, queue_id)):
            # a queue that has messages in the log is rebuilt by `recover`
            least, most = (0, 0) if rows is None else (rows.first, rows.end)
            return MovedOffset(*queue, old, old or 0, least, most, None)
        # No file: the queue begins with 0.
        return moved_to(store, rows, queue, old, 0 if rows is None else _place(wanted, rows, old))


def _place(wanted: Reset, rows: QueueRows, before: int | None) -> int:
    """Return the new offset of a group in a queue; a given number is limited to the
    queue's bounds.
    """
    if isinstance(wanted.to, Number):
        number = wanted.to.value + ((rows.first if before is None else before)
                                    if wanted.to.is_shift else 0)
        return min(max(number, rows.first), rows.end)
    if isinstance(wanted.to, int):
        return rows.at_or_after(wanted.to)
    return rows.first if wanted.to == "earliest" else rows.end


def _why(wanted: Reset, queue: MovedOffset, *, cut: bool) -> Phrase:
    if isinstance(wanted.to, str):
        return _REASONS[wanted.to]
    if isinstance(wanted.to, Number):
        if queue.after in (queue.min_offset, queue.max_offset) and (
                wanted.to.is_shift or wanted.to.value != queue.after):
            return (Phrase("the first available message") if queue.after == queue.min_offset
                    else _REASONS["latest"])
        if not wanted.to.is_shift:
            return Phrase("the given offset")
        by = {"count": abs(wanted.to.value)}
        return Phrase("{count:,} forward", **by) if wanted.to.value > 0 else (
            Phrase("{count:,} back", **by))
    return (Phrase("the first message stored then or later") if queue.after < queue.max_offset
            else Phrase("no message that startup keeps was stored then or later") if cut else
            Phrase("no message was stored then or later"))
