"""Write the consumer offsets of a plan to the file that a broker reads, or to a new database.

Everything else in ``consumerOffset.json`` (with ``enableLmq``, ``lmqConsumerOffset.json``) is kept
in its order. Offsets that consumers store themselves (broadcasting) are not included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from rmqctl.broker.view import cut_by_broker
from rmqctl.checks.preflight.missing import known_by_offsets
from rmqctl.checks.verify.common import plural
from rmqctl.errors import RefusedError
from rmqctl.formats.config import fastjson
from rmqctl.formats.local.properties import LMQ_PREFIX, REVIVE_PREFIX
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import time_text
from rmqctl.phrases import Phrase, counted
from rmqctl.repair.config.convert import replaced
from rmqctl.repair.plan import Action, Create, Dropped, Plan, Replace, Step
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import EMPTY, FOLDER, MISSING, ConfigFile, load_one
from rmqctl.store.config.offsets import DELAY_GROUP
from rmqctl.store.config.progress import named
from rmqctl.store.log.bounds import View
from rmqctl.store.queue.rows import BatchRows, PlainRows, QueueRows, batch_queue
from rmqctl.store.store import Store

_FILE, _LMQ_FILE = "consumerOffset.json", "lmqConsumerOffset.json"
_TABLE, _LMQ_TABLE = "offsetTable", "lmqOffsetTable"
_BARE_ID, _QUOTED_ID = re.compile(rb"[{,]\s*-?\d+\s*:"), re.compile(rb'[{,]\s*"\d+"\s*:')
_LEVEL = re.compile(r"-?\d{1,9}")
_SINCE = 5


@dataclass(frozen=True, slots=True)
class MovedOffset:
    """A change of a group's offset in a queue.

    ``before``: the old offset; None: no offset.
    ``after``: the new offset.
    ``min_offset``, ``max_offset``: the bounds of the queue.
    ``store_timestamp``: store time in ms of the message at the new offset; None if no message is
    there.
    """

    group: str
    topic: str
    queue_id: int
    before: int | None
    after: int
    min_offset: int
    max_offset: int
    store_timestamp: int | None

    @property
    def skips(self) -> int:
        """Return the number of unread messages that the group will not receive."""
        start = self.min_offset if self.before is None else max(self.before, self.min_offset)
        return max(0, min(self.after, self.max_offset) - start)

    @property
    def again(self) -> int:
        """Return the number of read messages that the group will receive again."""
        end = 0 if self.before is None else min(self.before, self.max_offset)
        return max(0, end - max(self.after, self.min_offset))

    def as_dict(self) -> dict[str, Any]:
        return {"group": self.group, "topic": self.topic, "queue_id": self.queue_id,
                "from": self.before, "to": self.after, "min_offset": self.min_offset,
                "max_offset": self.max_offset, "store_timestamp": self.store_timestamp}

    def action(self, target: str, why: Phrase) -> Action:
        """Return the action that describes the change in the file ``target``, with the reason
        ``why``.
        """
        reason = Phrase(
            "{group} at {topic}, queue {queue}: {why}, {cost}", group=self.group, topic=self.topic,
            queue=self.queue_id, why=why, cost=Phrase("delivers {count:,} again", count=self.again)
            if self.again else Phrase("the queue has no entry, so the skipped messages are unknown")
            if self.after and not self.max_offset else Phrase("skips {messages}", messages=counted(
                self.skips, "unread message")))
        return Action("reset", target, self.before, self.after, reason, proof={
            **self.as_dict(), "skips": self.skips, "delivers_again": self.again,
            "stored": None if self.store_timestamp is None else time_text(self.store_timestamp)})


@dataclass(frozen=True, slots=True)
class OffsetsPlan:
    """A plan that changes offsets, and all selected queues, including those whose offset is
    unchanged.
    """

    plan: Plan
    queues: tuple[MovedOffset, ...]


# -- what a store has -----------------------------------------------------------------------------


def file_of(store: Store, group: str) -> ConfigFile:
    """Return the file that contains the group's offsets. With ``enableLmq``, a broker stores all
    offsets in ``lmqConsumerOffset.json``. Raises: RefusedError if the file cannot be changed
    without loss.
    """
    plain, light = load_one(store, _FILE), load_one(store, _LMQ_FILE)
    holders = [file for file in (plain, light)
               if any(row["group"] == group for row in file.rows())]
    file = holders[0] if holders else (
        light if plain.main.state == plain.backup.state == MISSING and light.used else plain)
    _refuse_damage(store, file)
    return file


def _refuse_damage(store: Store, file: ConfigFile) -> None:
    used = file.used
    if used is None and file.damaged and not {
            file.main.state, file.backup.state} <= {EMPTY, MISSING}:  # nothing is left of it
        raise RefusedError(f"{store.root}: {file.main.fault()}; its backup cannot be read either, "
                           "so other groups' offsets would be lost: repair it first (`rmqctl "
                           "recover`)")
    if used is not None and (used.damaged or file.faults):
        raise RefusedError(f"{store.root}: {used.path}: "
                           f"{used.reason or file.faults[0]}; rewriting it would lose the invalid "
                           "parts: repair it first")


def positions(file: ConfigFile, group: str) -> dict[str, dict[int, int]]:
    """Return the group's offsets by topic and queue id."""
    offsets: dict[str, dict[int, int]] = {}
    for row in file.rows():
        if row["group"] == group:
            offsets.setdefault(row["topic"], {})[row["queue_id"]] = row["offset"]
    return offsets


def refuse_odd_name(group: str) -> None:
    """Raise RefusedError if a consumer group cannot have this name."""
    if group == DELAY_GROUP:
        raise RefusedError("the delay service is not a consumer group: its progress is in "
                           "config/delayOffset.json")
    if "@" in group or not group.strip():
        raise RefusedError(f"{group!r} is not a valid name of a consumer group")


def is_configured(store: Store, group: str) -> bool:
    """Return whether the group has a subscription group configuration."""
    return any(row["group"] == group for row in load_one(store, "subscriptionGroup.json").rows())


def queue_rows(store: Store, view: View, topic: str, queue_id: int,
               stack: ExitStack) -> QueueRows | None:
    """Return the entries of a queue; None if the queue does not exist. The queue is closed with
    ``stack``.

    If a broker meets a damaged message during a look-up by time, the broker returns the start of
    the queue (`offset_by_time`). The returned object continues the search instead.
    """
    queue = store.queues.find(topic, queue_id)
    if queue is not None:
        return PlainRows(stack.enter_context(closing(queue)), view)
    batch = batch_queue(store, topic, queue_id)
    return None if batch is None else BatchRows(batch, view)


def moved_to(store: Store, rows: QueueRows | None, queue: tuple[str, str, int], before: int | None,
             to: int) -> MovedOffset:
    """Return the change of a group's offset to ``to``. ``queue``: (group, topic, queue id). Raises:
    StoreIOError.
    """
    if rows is None:
        return MovedOffset(*queue, before, to, 0, 0, None)
    place = next((page for page in rows.pages(to, min(to + 1, rows.end)) if len(page[0])), None)
    record = None if place is None else store.log.record_at(int(place[1][0]), int(place[2][0]))
    return MovedOffset(*queue, before, to, rows.first, rows.end,
                       None if record is None else record.store_timestamp)


# -- the plan -------------------------------------------------------------------------------------


def planned(store: Store, command: str, queues: Sequence[MovedOffset],
            changed: Sequence[MovedOffset], why: Callable[[MovedOffset], Phrase],
            notes: Iterable[str], clock: Callable[[], int], scratch: Scratch) -> OffsetsPlan:
    """Return the plan that changes the offsets ``changed``, a subset of ``queues``.

    ``why``: returns the reason for a change.
    ``clock``: returns the time in epoch ms.
    Raises: RefusedError, MissingExtraError, StoreIOError.
    """
    if not changed:
        return OffsetsPlan(Plan(command, store.root, notes=tuple(notes)), tuple(queues))
    # By file: a broker whose `enableLmq` was changed leaves both.
    files: dict[str, tuple[ConfigFile, list[MovedOffset]]] = {}
    for group in dict.fromkeys(queue.group for queue in changed):
        file = file_of(store, group)
        files.setdefault(file.name, (file, []))[1].extend(
            queue for queue in changed if queue.group == group)
    steps: list[Step] = []
    actions: list[Action] = []
    for file, queues_of_file in files.values():
        target = file.main.path if file.main.database else f"{FOLDER}/{file.name}"
        value = _changed(store, file, queues_of_file, clock)
        if file.main.database:
            steps += replaced(store, {file.name: value}, scratch)
        else:
            steps.append((Create if file.main.state == MISSING else Replace)(
                target, fastjson.build(value)))
        actions += [queue.action(target, why(queue)) for queue in queues_of_file]
    # An offset beyond the end may be the only evidence of lost messages.
    forgotten = known_by_offsets(store) if any(
        (queue.before or 0) > queue.max_offset for queue in changed) else 0
    whose = named(sorted({queue.group for queue in changed}))
    texts = [*notes, ("running consumers commit their own offsets again: stop the consumers of "
                      f"{whose} until the broker is up")]
    if forgotten:
        texts.append(f"{plural(forgotten, 'lost message is', 'lost messages are')} known only "
                     "from committed offsets: the journal of the repair counts them")
    return OffsetsPlan(Plan(command, store.root, tuple(actions), tuple(steps), notes=tuple(texts),
                            dropped=Dropped(forgotten)), tuple(queues))


def notes_of(store: Store, view: View, files: Iterable[ConfigFile]) -> list[str]:
    """Return notes that apply to any change of offsets and that the user must know before the
    broker starts.
    """
    notes = []
    cut = cut_by_broker(view)
    if cut is not None:
        notes.append(f"a broker truncates this log at {cut[0]}, the first record it cannot read. "
                     "These offsets count only earlier messages. Run `rmqctl recover` first: it "
                     f"keeps records up to {cut[1]}")
    notes += [f"{file.main.fault()}; reading the other offsets from {file.backup.path}, as a "
              "broker does" for file in files if file.fell_back]
    if any(topic.startswith(REVIVE_PREFIX) for topic, _ in store.queues.by_key):
        notes.append("the store was used with POP: messages delivered by POP and not yet "
                     "acknowledged are delivered again, whatever the offset")
    return notes


def lost_queues(changed: Iterable[MovedOffset], whose: str) -> list[str]:
    """Return a note if offsets were changed in queues that have no entries: the queues may have to
    be rebuilt first.
    """
    empty = [f"{queue.topic}-{queue.queue_id}" for queue in changed
             if (queue.before or queue.after) and not queue.max_offset]
    if not empty:
        return []
    return [(f"{named(empty)} has no messages, although {whose} had an offset there. If the "
             "consume queue was lost, run `rmqctl recover` first: it rebuilds the queue")]


def _changed(store: Store, file: ConfigFile, queues: Sequence[MovedOffset],
             clock: Callable[[], int]) -> dict[str, Any]:
    """Return the content of the file with the new offsets."""
    old = dict(file.value or {})
    value = with_offsets(file.name, old, queues, clock,
                         quoted=quotes_queue_ids(store, file, old.get(_TABLE)))
    if "dataVersion" not in old and store.generation >= _SINCE and not file.value:
        value["dataVersion"] = {"counter": 1, "stateVersion": 0, "timestamp": clock()}
    return value if file.value else dict(sorted(value.items()))


def with_offsets(name: str, value: Mapping[str, Any], queues: Iterable[MovedOffset],
                 clock: Callable[[], int], *, quoted: bool) -> dict[str, Any]:
    """Return the content of the file ``name`` with other offsets and a later version.

    ``quoted``: whether queue ids are written as JSON strings.
    """
    changed = dict(value)
    for queue in queues:
        light = name == _LMQ_FILE and queue.group.startswith(LMQ_PREFIX)
        section = _LMQ_TABLE if light else _TABLE
        table = dict(changed.get(section) or {})
        key = f"{queue.topic}@{queue.group}"
        table[key] = queue.after if light else {**(table.get(key) or {}),
                                                str(queue.queue_id): queue.after}
        changed[section] = table
    if not quoted:
        changed[_TABLE] = {key: {int(queue_id): offset for queue_id, offset in entry.items()}
                           for key, entry in (changed.get(_TABLE) or {}).items()}
    return _later(changed, clock)


def with_delays(value: Mapping[str, Any], offsets: Mapping[int, int],
                clock: Callable[[], int]) -> bytes:
    """Return delayOffset.json with other offsets of delay levels and a later version."""
    table = value.get(_TABLE)
    kept = table if isinstance(table, dict) else {}
    return fastjson.build(_later({**value, _TABLE: {
        **{int(level): offset for level, offset in kept.items() if _LEVEL.fullmatch(level)},
        **offsets}}, clock))


def _later(value: dict[str, Any], clock: Callable[[], int]) -> dict[str, Any]:
    version = value.get("dataVersion")
    if isinstance(version, dict) and isinstance(version.get("counter"), int):
        value["dataVersion"] = {**version, "counter": version["counter"] + 1, "timestamp": clock()}
    return value


def quotes_queue_ids(store: Store, file: ConfigFile, table: Mapping[str, Any] | None) -> bool:
    """Return whether queue ids in the file are JSON strings; a broker writes them without
    quotes.
    """
    if file.used is None or file.used.database or not table:
        return False
    with FileSource(store.path(file.used.path)) as source:
        return has_quoted_ids(source.read(0, source.size))


def has_quoted_ids(data: bytes) -> bool:
    """Return whether queue ids in the bytes of a file are JSON strings."""
    return _QUOTED_ID.search(data) is not None and _BARE_ID.search(data) is None
