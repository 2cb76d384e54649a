"""Correct progress that is later than a restored log, as far as the log shows what was delivered.

A backup has no progress for an end of the log before its oldest restore point. With the progress of
that point, a broker would skip what was delivered after the end of the restored log: delayed and
timed messages, retries, and checks of transactions.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rmqctl.backup.finishing import offset_files, replaced_offsets, with_moved
from rmqctl.broker.timer import TimerFiles
from rmqctl.broker.timer_messages import progress_of_log
from rmqctl.broker.transactions import READER
from rmqctl.checks.delays import FILE as DELAYS
from rmqctl.checks.delays import delays
from rmqctl.checks.transactions import PASSED, transactions
from rmqctl.files.durable import replace_file
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.properties import (
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    REAL_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
)
from rmqctl.formats.timer import timer_check
from rmqctl.parse_values import now_ms
from rmqctl.phrases import counted
from rmqctl.repair.offsets.table import MovedOffset, with_delays
from rmqctl.scan import text
from rmqctl.scan.frames import Batch
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import TIMERCHECK, load_one
from rmqctl.store.config.rows import Row, rows_of
from rmqctl.store.store import Store

_RETRY_TOPIC = "RETRY_TOPIC"
"""Property with the topic of the message that was sent back first."""
_Name = tuple[bytes | None, int, int, int]
"""Unique key, born time, body CRC and number of retries of a message."""
Place = tuple[str, str, int]
"""Group, topic and queue id of a consumer offset."""


class SentBack(NamedTuple):
    """A message that a group could not process, and that it sent back. ``topic``: its topic."""

    group: str
    topic: str
    name: _Name


def sent_back(store: Store, start: int, end: int) -> list[SentBack]:
    """Return the messages that were sent back between two physical offsets: the log there has a
    retry or a dead letter of them. Raises: StoreIOError.
    """
    messages = []
    for batch in store.log.walk(start, end):
        if not len(batch):
            continue
        real, origin, keys = (_values(batch, name) for name in (
            REAL_TOPIC, _RETRY_TOPIC, props.UNIQUE_KEY))
        names = _names(batch, keys)
        for row, topic in enumerate(map(os.fsdecode, text.topics(batch).tolist())):
            target = os.fsdecode(real.get(row, b"")) if topic == SCHEDULE_TOPIC else topic
            prefix = next((some for some in (RETRY_PREFIX, DLQ_PREFIX)
                           if target.startswith(some)), None)
            if prefix is None or (prefix == RETRY_PREFIX and target == topic):
                continue  # a retry is scheduled first, and then stored in its topic
            group, (key, born, crc, times) = target.removeprefix(prefix), names[row]
            messages.append(SentBack(group, os.fsdecode(origin.get(row, b"")) if times <= 1 else
                                     f"{RETRY_PREFIX}{group}", (key, born, crc, times - 1)))
    return messages


def continue_from_log(root: str, retries: Sequence[SentBack]) -> list[str]:
    """Lower the progress of a restored store to what its log shows; return notes.

    ``retries``: the messages that were sent back after the end of the log. Raises: StoreIOError.
    """
    notes = [(f"{counted(count, noun)} without a delivered copy in the restored log: a broker will "
              "deliver them") for count, noun in (
                  (_delays_of_log(root), "delayed message"),
                  (_timers_of_log(root), "timed message")) if count]
    with Store.open(root) as store:
        back = _unread(store, retries) if retries else {}
        checks = _unchecked(store) if store.layout.reads("consumequeue") else {}
    count = replaced_offsets(root, with_moved(offset_files(root), lambda rows: _moved(
        rows, back | checks))) if back or checks else 0
    if count and back:
        notes.append(f"{counted(len(set(retries)), 'message')} sent back by consumers after the "
                     "end of the restored log: the groups get them again")
    if count and checks:
        notes.append("transactions that ended after the end of the restored log are checked again")
    return notes


def _moved(rows: Iterable[Row], wanted: dict[Place, int]) -> list[MovedOffset]:
    return [MovedOffset(*place, row["offset"], wanted[place], 0, 0, None) for row in rows
            if (place := (row["group"], row["topic"], row["queue_id"])) in wanted
            and row["offset"] > wanted[place]]


def _unread(store: Store, retries: Sequence[SentBack]) -> dict[Place, int]:
    """Return the queue offset of the first message in each queue that a group sent back."""
    by_name = defaultdict(set)
    for group, topic, name in retries:
        by_name[name].add((group, topic))
    born = np.unique(np.array([name[1] for name in by_name], np.int64))
    places: dict[Place, int] = {}
    for batch in store.log.walk():
        rows = np.flatnonzero(np.isin(batch.column("born_timestamp"), born)).tolist()
        if not rows:
            continue
        names = _names(batch, _values(batch, props.UNIQUE_KEY))
        topics = text.topics(batch).tolist()
        queue_ids, offsets = batch.column("queue_id"), batch.column("queue_offset")
        for row in rows:
            for group, topic in by_name.get(names[row], ()):
                if os.fsdecode(topics[row]) == topic:
                    place = group, topic, int(queue_ids[row])
                    places[place] = min(places.get(place, 1 << 62), int(offsets[row]))
    return places


def _unchecked(store: Store) -> dict[Place, int]:
    """Return, for each queue of half messages, the queue offset of the first one that the broker
    does not check though the log has no end of it; and the start of the op messages of that queue.
    """
    places: dict[Place, int] = {}
    for transaction in transactions(store, now_ms(), lambda _problem: None):
        if transaction.state == PASSED and transaction.offsets:
            queue_id = transaction.queue_id
            place = READER, HALF_TOPIC, queue_id
            places[place] = min(places.get(place, 1 << 62), *transaction.offsets)
            ops = store.queues.find_readable(OP_HALF_TOPIC, queue_id)
            places[READER, OP_HALF_TOPIC, queue_id] = 0 if ops is None else ops.first_index
    return places


def _values(batch: Batch, name: str) -> dict[int, bytes]:
    rows, values = text.PropertySegments(batch).find(name)
    return dict(zip(rows.tolist(), values.tolist(), strict=True))


def _names(batch: Batch, keys: dict[int, bytes]) -> list[_Name]:
    born, crc, times = (batch.column(name).tolist() for name in (
        "born_timestamp", "body_crc", "reconsume_times"))
    return [(keys.get(row), *rest) for row, rest in enumerate(zip(born, crc, times, strict=True))]


def _delays_of_log(root: str) -> int:
    """Lower the offset of each delay level to the end of the messages that the log shows as
    delivered; return the number of messages that a broker then delivers.

    A broker delivers the messages of a level in order: those after the last message with a
    delivered copy in the log were delivered later, or not at all. Raises: StoreIOError.
    """
    lowered = 0
    with Store.open(root) as store:
        file = load_one(store, DELAYS)
        copies = [copy for copy in (file.main, file.backup)
                  if copy.usable and not copy.damaged and not copy.database
                  and isinstance(copy.value, dict)]
        levels = delays(store) if copies else {}
        for copy in copies:
            table = {row["level"]: row["offset"] for row in rows_of(file.kind, copy.value, [])}
            ends = {level: levels[level].delivered_end if level in levels
                    else _end_of_level(store, level) for level in table}
            late = {level: ends[level] for level, offset in table.items() if offset > ends[level]}
            lowered = max(lowered, sum(min(table[level], _end_of_level(store, level)) - end
                                       for level, end in late.items()))
            if late:
                replace_file(store.path(copy.path), with_delays(copy.value, late, now_ms))
    return lowered


def _end_of_level(store: Store, level: int) -> int:
    queue = store.queues.find_readable(SCHEDULE_TOPIC, level - 1)
    return 0 if queue is None else queue.disk_end


def _timers_of_log(root: str) -> int:
    """Lower the time up to which timed messages count as delivered to the last delivered one in the
    log; return the number of messages that a broker then delivers. Raises: StoreIOError.
    """
    with Store.open(root) as store:
        files, path = TimerFiles.of(store), store.path("config", TIMERCHECK)
        before = files.checked.last_read_time_ms
        read = min(before, progress_of_log(files, store.log.end)) if files.in_use else before
        if read == before:
            return 0
        with FileSource(path) as source:
            data = source.read(0, source.size)
        changed = timer_check.build(files.checked._replace(last_read_time_ms=read))[:len(data)]
        replace_file(path, changed + data[len(changed):])
        units = files.units(read // files.precision)
        return max(0, int(units.step[units.slot < before // files.precision].sum()))
