"""Prediction of a broker's getMessage answer for a queue offset (spec: recovery.md §13).

The answer is what a master with all data in memory returns to a group without a filter. `select`
shows the messages; this module shows what a consumer receives, including the broker's oddities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rmqctl.formats.local.consume_queue import UNIT_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.log.bounds import View
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.compaction import CompactionQueue, served_rows
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.queue.rows import batch_queue

FOUND = "FOUND"
NO_MESSAGE = "NO_MESSAGE_IN_QUEUE"
TOO_SMALL = "OFFSET_TOO_SMALL"
OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
FOUND_NULL = "OFFSET_FOUND_NULL"
REMOVING = "MESSAGE_WAS_REMOVING"
NO_MATCH = "NO_MATCHED_MESSAGE"

MAX_BYTES = 262_144
"""``maxTransferBytesOnMessageInMemory``. The first message is returned even if it is larger."""
MAX_COUNT = 32
"""``maxTransferCountOnMessageInMemory``."""
_SCANNED_BYTES = 16_000
"""Number of bytes of the consume queue that a broker reads for one answer, unless more messages are
requested.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """A broker's answer.

    ``status``: RocketMQ's name of the status.
    ``next_begin``: the queue offset at which a consumer continues.
    ``min``, ``max``: bounds of the queue.
    ``offsets``: physical offsets of the messages. For a compacted topic, these are offsets in the
    compaction log.
    """

    status: str
    next_begin: int
    min: int
    max: int
    offsets: tuple[int, ...] = ()


class _Unit(NamedTuple):
    """An entry: the queue offset after it, physical offset and size of its record, and number of
    messages in the record.
    """

    next_offset: int
    physical: int
    size: int
    messages: int


def get_message(view: View, topic: str, queue_id: int, offset: int,
                max_messages: int = MAX_COUNT) -> Answer:
    """Return the answer to a pull request. ``view.generation`` selects the rules of 4.9.3 or 5.3.3.

    Raises: StoreIOError if a file of the queue cannot be read.
    """
    store = view.store
    compacted = CompactionQueue.served(store, topic, queue_id) if view.generation >= 5 else None
    if compacted is not None:
        with compacted:
            return compacted_answer(compacted, offset, max_messages)
    batch = batch_queue(store, topic, queue_id) if view.generation >= 5 else None
    if batch is not None:
        return _batch_answer(view, batch, offset, max_messages)
    queue = store.queues.find(topic, queue_id)
    if queue is None:  # a broker creates a queue on request, so it never answers otherwise
        return Answer(NO_MESSAGE, 0, 0, 0)
    return _plain_answer(view, queue, offset, max_messages)


def outside(offset: int, least: int, most: int, generation: int) -> Answer | None:
    """Return the answer for an offset outside ``[least, most)``; None for an offset in this
    range.
    """
    if most == 0:
        return Answer(NO_MESSAGE, 0, least, most)
    if offset < least:
        return Answer(TOO_SMALL, least, least, most)
    if offset == most:
        return Answer(OVERFLOW_ONE, offset, least, most)
    if offset > most:
        # 4.9.3 resets a consumer that is beyond the end of a never expired queue to its beginning.
        return Answer(OVERFLOW_BADLY, least if generation < 5 and least == 0 else most, least,
                      most)
    return None


def _plain_answer(view: View, queue: ConsumeQueue, offset: int, max_messages: int) -> Answer:
    bounds = view.bounds(queue)
    refused = outside(offset, bounds.first, bounds.end, view.generation)
    if refused is not None:
        return refused
    end = next((end for first, end in queue.stretches if first <= offset < end), None)
    if end is None and queue.file_size:
        missing = queue.file_size // UNIT_SIZE
        return Answer(FOUND_NULL, offset - offset % missing + missing, bounds.first, bounds.end)
    end = min(bounds.end if end is None else end, bounds.end)
    scanned = max(_SCANNED_BYTES, max_messages * UNIT_SIZE) // UNIT_SIZE
    rows = queue.units(offset, min(end - offset, scanned))
    units = (_Unit(offset + n + 1, int(row["physical_offset"]), int(row["size"]), 1)
             for n, row in enumerate(rows))
    return _collected(view, units, offset, bounds.first, bounds.end, max_messages)


def _batch_answer(view: View, queue: BatchQueue, offset: int, max_messages: int) -> Answer:
    least, most = queue.bounds(view.store.log.min_offset, view.log_end)
    refused = outside(offset, least, most, view.generation)
    if refused is not None:
        return refused
    rows = queue.all_used(view.log_end)
    ends = rows["msg_base_offset"] + rows["batch_size"]
    units = (_Unit(int(row["msg_base_offset"]) + int(row["batch_size"]),
                   int(row["physical_offset"]), int(row["size"]), int(row["batch_size"]))
             for row in rows[ends > offset])
    return _collected(view, units, offset, least, most, max_messages)


def _collected(view: View, units: Iterator[_Unit], offset: int, least: int, most: int,
               max_messages: int) -> Answer:
    """Collect entries until the answer is full; entries without a record are skipped."""
    status, next_begin = NO_MATCH, offset
    places: list[int] = []
    total = messages = 0
    skip_to: int | None = None
    readable = _readable(view)
    for unit in units:
        if places and (messages + unit.messages > max_messages or total + unit.size > MAX_BYTES
                       or messages >= MAX_COUNT):
            break
        next_begin = unit.next_offset
        if skip_to is not None and unit.physical < skip_to:
            continue
        if not readable(unit.physical, unit.size):
            if not places:
                status = REMOVING
            size = view.store.log.file_size
            skip_to = unit.physical - unit.physical % size + size
            continue
        places.append(unit.physical)
        total, messages, status, skip_to = total + unit.size, messages + unit.messages, FOUND, None
    return Answer(status, next_begin, least, most, tuple(places))


def _readable(view: View) -> Callable[[int, int], bool]:
    """Return a function that determines whether a broker delivers ``size`` bytes at a physical
    offset. A broker checks only that the log contains them.
    """
    log = view.store.log
    limit = view.log_end

    def judge(physical: int, size: int) -> bool:
        if limit is None:
            return log.record_at(physical, size) is not None
        file = log.file_of(physical)
        return file is not None and physical + size <= min(file.end, limit)

    return judge


def compacted_answer(queue: CompactionQueue, offset: int, max_messages: int) -> Answer:
    """Return the answer for a compacted topic. The answer starts with the first remaining message
    at or after ``offset``, and contains messages from one file only.
    """
    least, most = queue.bounds
    if offset == most:
        return Answer(OVERFLOW_ONE, offset, least, most)
    if offset > most:
        return Answer(OVERFLOW_BADLY, most, least, most)
    units = queue.file_units_from(offset)[:max_messages]
    if not units:
        return Answer(NO_MATCH, offset, least, most)
    return Answer(FOUND, units[-1].msg_base_offset + 1, least, most,
                  tuple(unit.physical_offset for unit in units))


def meaning(answer: Answer, offset: int) -> str:
    """Return RocketMQ's name for the status of an answer without messages, and a sentence that
    explains the status.
    """
    span = f"the queue has offsets {answer.min} to {answer.max - 1}"
    if answer.min >= answer.max:
        span = f"the queue is empty; its next offset is {answer.max}"
    words = {
        NO_MESSAGE: "the queue is empty",
        TOO_SMALL: f"offset {offset} was deleted: {span}",
        OVERFLOW_ONE: f"offset {offset} is the next to be written; {span}",
        OVERFLOW_BADLY: f"offset {offset} is beyond the end; {span}",
        FOUND_NULL: f"the consume queue file with offset {offset} is missing; {span}",
        REMOVING: f"the log has no records for offsets {offset} to {answer.next_begin - 1}",
        NO_MATCH: f"no entry at offset {offset} points to a message; {span}",
    }
    return f"{answer.status}: {words.get(answer.status, span)}"


def offset_note(view: View, topic: str, queue_id: int, offset: int) -> str | None:
    """Return the broker's answer in words if ``offset`` is outside the queue; None if it is
    inside.
    """
    queues = served_rows(view.store, topic, queue_id, view)
    if not queues:  # already reported while reading
        return None
    answer = outside(offset, queues[0].first, queues[0].end, view.generation)
    return None if answer is None else meaning(answer, offset)
