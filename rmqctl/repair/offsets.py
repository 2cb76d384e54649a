"""``offsets reset``: a consumer group's positions set anew, in the file a broker reads them from,
or in the data base that stands in for it.

Everything else in ``consumerOffset.json`` (or ``lmqConsumerOffset.json``, with ``enableLmq``) stays
as it is, in its order. What consumers keep themselves (broadcasting) is not here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rmqctl.broker.view import cut_by_broker
from rmqctl.checks.preflight.missing import known_by_offsets
from rmqctl.checks.verify.common import plural
from rmqctl.errors import RefusedError
from rmqctl.formats.config import fastjson
from rmqctl.formats.local.properties import LMQ_PREFIX, RETRY_PREFIX, REVIVE_PREFIX
from rmqctl.parse_values import time_text
from rmqctl.repair.config.convert import replaced
from rmqctl.repair.plan import Action, Create, Dropped, Plan, Replace, Step
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import EMPTY, FOLDER, MISSING, ConfigFile, load_one
from rmqctl.store.config.offsets import DELAY_GROUP
from rmqctl.store.config.progress import named
from rmqctl.store.log.bounds import View
from rmqctl.store.problems import Problem
from rmqctl.store.queue.rows import BatchRows, PlainRows, QueueRows, batch_queue
from rmqctl.store.queue.topic_queue_table import log_reach
from rmqctl.store.store import Store

COMMAND = "offsets-reset"
_FILE, _LMQ_FILE = "consumerOffset.json", "lmqConsumerOffset.json"
_TABLE, _LMQ_TABLE = "offsetTable", "lmqOffsetTable"
_BARE_ID, _QUOTED_ID = re.compile(rb"[{,]\s*-?\d+\s*:"), re.compile(rb'[{,]\s*"\d+"\s*:')
_SINCE = 5
_REASONS = {"earliest": "the first message", "latest": "after the last message",
            "beyond-end": "beyond the end of the queue"}


@dataclass(frozen=True, slots=True)
class Reset:
    """Whose positions, and whereto: a store time in epoch ms, or an end of the queue. ``topic``
    None: all topics the group committed in, but its retry topic; ``queue_id`` None: all queues.
    ``beyond-end``: offsets beyond the end of a queue move to its end, all others stay.
    """

    group: str
    to: int | Literal["earliest", "latest", "beyond-end"]
    topic: str | None = None
    queue_id: int | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """One queue's position before (None: there was none) and after; the queue's bounds; the store
    time (ms) of the message there, None where none is.
    """

    topic: str
    queue_id: int
    before: int | None
    after: int
    min_offset: int
    max_offset: int
    store_timestamp: int | None

    @property
    def skips(self) -> int:
        """Unread messages that the group does not get any more."""
        start = self.min_offset if self.before is None else max(self.before, self.min_offset)
        return max(0, min(self.after, self.max_offset) - start)

    @property
    def again(self) -> int:
        """Messages that the group has read and gets again."""
        end = 0 if self.before is None else min(self.before, self.max_offset)
        return max(0, end - max(self.after, self.min_offset))

    def as_dict(self) -> dict[str, Any]:
        return {"topic": self.topic, "queue_id": self.queue_id, "from": self.before,
                "to": self.after, "min_offset": self.min_offset, "max_offset": self.max_offset,
                "store_timestamp": self.store_timestamp}


@dataclass(frozen=True, slots=True)
class Offsets:
    """A plan, and every queue it is about, those that stay where they are among them."""

    plan: Plan
    queues: tuple[Moved, ...]


def plan_reset(store: Store, wanted: Reset, view: View, clock: Callable[[], int],
               scratch: Scratch) -> Offsets:
    """The plan for an opened store; ``view`` says where queues begin and end. ``clock``: epoch ms.
    Positions in RocksDB are those of a new data base, made in ``scratch``.

    RefusedError for a group or a queue that is not known, or a file that cannot be changed without
    loss; UnsupportedError where the configuration cannot be read; MissingExtraError, StoreIOError.
    """
    # What cannot be changed, or is not known, is refused.
    store.layout.require(store.root, "config")
    file = _file_of(store, wanted.group)
    _refuse_damage(store, file)
    before = _positions(file, wanted.group)
    _refuse_unknown(store, wanted, before)
    # Each queue: where the group stands, and where it will.
    empty_queues = _Empty(store)
    queues = tuple(_moved(store, view, wanted, topic, queue_id, before.get(topic, {}), empty_queues)
                   for topic, queue_id in _queues(store, wanted, before))
    if not queues:
        raise RefusedError(f"{store.root}: there is no queue of what was asked for, so nothing is "
                           "reset")
    changed = [queue for queue in queues if queue.before != queue.after
               and (queue.before is not None or wanted.to != "beyond-end")]
    # What the user must know before the broker starts.
    cut = cut_by_broker(view)
    notes = _notes(store, wanted, file, before)
    if cut is not None:
        notes.insert(0, f"a broker ends this log at {cut[0]}, at the first record it cannot read, "
                     f"and these are positions before it; records up to {cut[1]} are kept by "
                     "`rmqctl recover`, so do that first")
    empty = [f"{queue.topic}-{queue.queue_id}" for queue in changed
             if queue.before and not queue.max_offset and wanted.to != "beyond-end"]
    if empty:
        notes.insert(0, f"no message is in {named(empty)}, where {wanted.group} had a position: if "
                     "the consumequeue was lost, `rmqctl recover` makes it anew, so do that first")
    if changed:
        notes.append("consumers that run on know their own positions, and commit these again: stop "
                     f"those of {wanted.group} until the broker is up")
    in_rocksdb = file.main.database
    target = file.main.path if in_rocksdb else f"{FOLDER}/{file.name}"
    if not changed:
        return Offsets(Plan(COMMAND, store.root, notes=tuple(notes)), queues)
    # The file with the new positions, or a new data base.
    value = _changed(store, file, wanted.group, changed, clock)
    steps: tuple[Step, ...]
    if in_rocksdb:
        steps = tuple(replaced(store, file.name, value, scratch))
    else:
        steps = ((Create if file.main.state == MISSING else Replace)(
            target, fastjson.build(value)),)
    actions = tuple(_action(target, wanted, queue, cut=cut is not None) for queue in changed)
    # An offset beyond the end may be all that tells of lost messages.
    forgotten = known_by_offsets(store) if any(
        (queue.before or 0) > queue.max_offset for queue in changed) else 0
    if forgotten:
        notes.append(f"{plural(forgotten, 'lost message is', 'lost messages are')} known only by "
                     "committed offsets: the repair keeps their number")
    return Offsets(Plan(COMMAND, store.root, actions, steps, notes=tuple(notes),
                        dropped=Dropped(forgotten)), queues)


# -- whose, and which queues ----------------------------------------------------------------------


def _file_of(store: Store, group: str) -> ConfigFile:
    """The file that holds the group's positions; with ``enableLmq`` a broker keeps all of them in
    the second one.
    """
    plain, light = load_one(store, _FILE), load_one(store, _LMQ_FILE)
    known = [file for file in (plain, light) if _positions(file, group)]
    if known:
        return known[0]
    return light if plain.main.state == plain.backup.state == MISSING and light.used else plain


def _refuse_damage(store: Store, file: ConfigFile) -> None:
    used = file.used
    if used is None and file.damaged and not {
            file.main.state, file.backup.state} <= {EMPTY, MISSING}:  # of which nothing is left
        raise RefusedError(f"{store.root}: {file.main.fault()}; no copy of it can be read, so "
                           "other groups' offsets would be lost: repair it first (`rmqctl "
                           "recover`)")
    if used is not None and (used.damaged or file.faults):
        raise RefusedError(f"{store.root}: {used.path}: "
                           f"{used.reason or file.faults[0]}; writing it anew would lose what is "
                           "odd: repair it first")


def _positions(file: ConfigFile, group: str) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for row in file.rows():
        if row["group"] == group:
            found.setdefault(row["topic"], {})[row["queue_id"]] = row["offset"]
    return found


def _refuse_unknown(store: Store, wanted: Reset, before: Mapping[str, object]) -> None:
    group = wanted.group
    if group == DELAY_GROUP:
        raise RefusedError("the delay service is no consumer group: its progress is in "
                           "config/delayOffset.json")
    if "@" in group or not group.strip():
        raise RefusedError(f"{group!r} is no name of a consumer group")
    configured = {row["group"] for row in load_one(store, "subscriptionGroup.json").rows()}
    if not before and group not in configured:
        raise RefusedError(f"{store.root}: nothing is known here of group {group}: it committed no "
                           "offset and is not configured")
    if wanted.topic is None and not before:
        raise RefusedError(f"{store.root}: group {group} committed no offset here: name the topic "
                           "(--topic)")


def _queues(store: Store, wanted: Reset, before: Mapping[str, Mapping[int, int]]) -> Iterator[
        tuple[str, int]]:
    topics = [wanted.topic] if wanted.topic is not None else [
        topic for topic in sorted(before)
        if wanted.to == "beyond-end" or not topic.startswith(RETRY_PREFIX)]
    on_disk: dict[str, set[int]] = {}
    for topic, queue_id in {**store.queues, **store.batch_queues}:
        on_disk.setdefault(topic, set()).add(queue_id)
    for topic in topics:
        known = on_disk.get(topic, set()) | before.get(topic, {}).keys()
        if wanted.queue_id is None:
            yield from ((topic, queue_id) for queue_id in sorted(known))
        elif wanted.queue_id in known:
            yield topic, wanted.queue_id


# -- whereto --------------------------------------------------------------------------------------


class _Empty:
    """The queues without a message in the log, which is read when it is first asked."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, topic: str, queue_id: int) -> bool:
        return self._reached is not None and (topic, queue_id) not in self._reached

    @cached_property
    def _reached(self) -> Collection[tuple[str, int]] | None:
        """The queues that the log knows; None where damage may hide one."""
        problems: list[Problem] = []
        found = log_reach(self._store, View(self._store), report=problems.append)
        return None if problems else found.keys()


def _moved(store: Store, view: View, wanted: Reset, topic: str, queue_id: int,
           before: Mapping[int, int], is_empty: Callable[[str, int], bool]) -> Moved:
    old = before.get(queue_id)
    with ExitStack() as stack:
        rows = _rows(store, view, topic, queue_id, stack)
        if wanted.to == "beyond-end" and ((old or 0) <= rows.end if rows is not None else
                                          not old or not is_empty(topic, queue_id)):
            # a queue that has messages in the log is rebuilt by `recover`
            least, most = (0, 0) if rows is None else (rows.first, rows.end)
            return Moved(topic, queue_id, old, old or 0, least, most, None)
        if rows is None:  # no file: the queue begins with 0
            return Moved(topic, queue_id, old, 0, 0, 0, None)
        if isinstance(wanted.to, int):
            to = rows.at_or_after(wanted.to)
        else:
            to = rows.first if wanted.to == "earliest" else rows.end
        place = next((page for page in rows.pages(to, min(to + 1, rows.end)) if len(page[0])), None)
        record = None if place is None else store.log.record_at(int(place[1][0]), int(place[2][0]))
        return Moved(topic, queue_id, old, to, rows.first, rows.end,
                     None if record is None else record.store_timestamp)


def _rows(store: Store, view: View, topic: str, queue_id: int,
          stack: ExitStack) -> QueueRows | None:
    """The queue, until the stack is left. A broker's answer for a time (`offset_by_time`) is the
    start of the queue where it meets a damaged message; this one looks beyond that.
    """
    queue = store.queue(topic, queue_id)
    if queue is not None:
        return PlainRows(stack.enter_context(closing(queue)), view)
    batch = batch_queue(store, topic, queue_id)
    return None if batch is None else BatchRows(batch, view)


# -- the file -------------------------------------------------------------------------------------


def _changed(store: Store, file: ConfigFile, group: str, queues: list[Moved],
             clock: Callable[[], int]) -> dict[str, Any]:
    """The whole of the file, with the positions as they are to be."""
    value = dict(file.value or {})
    light = file.name == _LMQ_FILE and group.startswith(LMQ_PREFIX)
    name = _LMQ_TABLE if light else _TABLE
    table = dict(value.get(name) or {})
    for queue in queues:
        key = f"{queue.topic}@{group}"
        table[key] = queue.after if light else {**(table.get(key) or {}),
                                                str(queue.queue_id): queue.after}
    value[name] = table
    if not _quotes_queue_ids(store, file, value.get(_TABLE)):
        value[_TABLE] = {key: {int(queue): offset for queue, offset in entry.items()}
                         for key, entry in (value.get(_TABLE) or {}).items()}
    version = value.get("dataVersion")
    if isinstance(version, dict) and isinstance(version.get("counter"), int):
        value["dataVersion"] = {**version, "counter": version["counter"] + 1, "timestamp": clock()}
    elif store.generation >= _SINCE and not file.value:
        value["dataVersion"] = {"counter": 1, "stateVersion": 0, "timestamp": clock()}
    return value if file.value else dict(sorted(value.items()))


def _quotes_queue_ids(store: Store, file: ConfigFile, table: Mapping[str, Any] | None) -> bool:
    """Whether the file has its queue ids as JSON texts; a broker writes them bare."""
    if file.used is None or file.used.database or not table:
        return False
    with FileSource(store.path(file.used.path)) as source:
        data = source.read(0, source.size)
    return _QUOTED_ID.search(data) is not None and _BARE_ID.search(data) is None


def _action(target: str, wanted: Reset, queue: Moved, *, cut: bool) -> Action:
    reason = f"{wanted.group} at {queue.topic}, queue {queue.queue_id}: "
    if isinstance(wanted.to, int):
        reason += ("the first message stored then or later" if queue.after < queue.max_offset else
                   "nothing that a start leaves was stored then or later" if cut else
                   "nothing was stored then or later")
    else:
        reason += _REASONS[wanted.to]
    reason += f", delivers {queue.again:,} again" if queue.again else (
        f", skips {plural(queue.skips, 'unread message')}")
    return Action("reset", target, queue.before, queue.after, reason, proof={
        "group": wanted.group, "topic": queue.topic, "queue_id": queue.queue_id,
        "skips": queue.skips, "delivers_again": queue.again,
        "min_offset": queue.min_offset, "max_offset": queue.max_offset,
        "store_timestamp": queue.store_timestamp,
        "stored": None if queue.store_timestamp is None else time_text(queue.store_timestamp)})


def _notes(store: Store, wanted: Reset, file: ConfigFile,
           before: Mapping[str, object]) -> list[str]:
    notes = []
    if file.fell_back:
        notes.append(f"{file.main.fault()}; the other offsets are taken from {file.backup.path}, "
                     "as a broker does")
    retry = sorted(topic for topic in before if topic.startswith(RETRY_PREFIX))
    if wanted.topic is None and retry:
        notes.append(f"the retry topic {named(retry)} keeps its offsets: messages that wait there "
                     "are delivered all the same (--topic names it)")
    if any(topic.startswith(REVIVE_PREFIX) for topic, _ in store.queues):
        notes.append("the store was used with POP: what was handed out and not acknowledged comes "
                     "again, wherever the offset is")
    return notes
