"""Decide by queue offset which intact records in damaged ranges of a queue's log are messages
(`rmqctl.scan.damage.one_queue`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from rmqctl.ext.tiered.flat_file import FlatFile, QueueName
from rmqctl.ext.tiered.witness import QueueWitness
from rmqctl.formats.local import message
from rmqctl.formats.local.message import Record
from rmqctl.formats.tiered.units import CODA_SIZE, is_coda
from rmqctl.scan.damage.one_queue import DamagedFrames
from rmqctl.scan.frames import Batch
from rmqctl.scan.walk import Walk

_MAX_DOUBTFUL = 10_000


class SegmentSlots:
    """Decides which records after damage are messages.

    Call `batches` for each segment of a queue's commit log, in order. Each scan starts at the
    segment's start; only the first scan may start later, after the record ``last`` (position, end).
    """

    def __init__(self, log: FlatFile, name: QueueName,
                 last: tuple[int, int] | None = None) -> None:
        self._log, self._name = log, name
        self._topic = os.fsencode(name.topic)
        self._least = min(message.size_of(0, magic, 0, len(self._topic), 0)
                          for magic in message.VERSIONS)
        self._last = last
        """Position and end of the last record."""

    def batches(self, walk: Walk) -> Iterator[Batch]:
        """Yield the batches of a scan.

        A doubtful record in a damaged range is yielded in a separate batch if queue offsets prove
        that it is a message. If queue offsets prove nothing, the record stays doubtful.
        Raises: StoreIOError.
        """
        for batch in walk:
            self._remember(batch)
            kept = self._settle(batch) if any(span.doubtful for span in batch.spans) else []
            witness = walk.source.witness
            if not kept or not isinstance(witness, QueueWitness):
                yield batch
                continue
            start, end = batch.spans[0].offset, batch.spans[-1].end
            batch.spans = []
            if len(batch):
                yield batch
            witness.keep(kept)
            for again in Walk(walk.source, start - walk.source.base, end - walk.source.base):
                self._remember(again)
                yield again

    def _remember(self, batch: Batch) -> None:
        if len(batch):
            place = int(batch.offset[-1])
            self._last = place, place + int(batch.column("total_size")[-1])

    def _settle(self, batch: Batch) -> list[tuple[int, int]]:
        """Return (position, size) of each doubtful record that is a message. Records that are
        proven not to be messages are no longer marked as doubtful.
        """
        start, end = batch.spans[0].offset, batch.spans[-1].end
        doubtful = [frame for span in batch.spans for frame in span.doubtful]
        before, after = self._before(start), self._record(end)
        if before is None or after is None or len(doubtful) >= _MAX_DOUBTFUL:
            return []
        frames = [self._record(place, size) for place, size in doubtful]
        damaged = DamagedFrames(start, end, doubtful,
                                [-1 if frame is None else frame.queue_offset for frame in frames],
                                before.queue_offset, after.queue_offset)
        if damaged.has_one_slot:
            if damaged.is_one_record(self._log.read(*damaged.tail)):
                batch.spans = [replace(span, doubtful=()) for span in batch.spans]
            return []
        whole = all(frame is not None and frame.crc_ok for frame in frames)
        return doubtful if whole and damaged.are_messages(self._least) else []

    def _before(self, start: int) -> Record | None:
        """Return the message directly before a range, or None. A coda may separate the message from
        the range.
        """
        if self._last is None:
            return None
        place, end = self._last
        if end != start and not (end + CODA_SIZE == start and is_coda(
                self._log.read(end, CODA_SIZE))):
            return None
        return self._record(place, end - place)

    def _record(self, place: int, size: int | None = None) -> Record | None:
        """Return the queue's message at a position; None if the position has no message of the
        queue.
        """
        record = self._log.record_at(place, size)
        if record is None or record.physical_offset != place:
            return None
        return record if (record.topic, record.queue_id) == (
            self._topic, self._name.queue_id) else None
