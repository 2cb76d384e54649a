"""What the queue offsets around damage tell of whole records in it (tiered.md §7).

A broker uploads a queue without leaving one out, so between two messages the log has the records of
the queue offsets between: its *slots*. A damaged record has one of them, and so has each message
behind it; frames in a body have none. The sender of a message may know the slots, so what a frame
says to be counts for nothing by itself: the records of all slots have to find room.

* One slot: it is the damaged record's, and what is in the range is its body. But where a write was
  cut and its messages were written again, the range has more records than slots. Then it does not
  end as a message does, or a frame at its end has the slot.
* More slots than frames: if the frames have one each, the rest is for damaged records. Were frames
  in the body of one of these, the messages of their slots would be in the range as well, damaged,
  and each at least as long as a message's head (its topic and properties may be the last bytes of a
  frame, too): where there is no room for one more, the frames are messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from rmqctl.ext.tiered.flat_file import FlatFile, QueueName
from rmqctl.ext.tiered.witness import QueueWitness
from rmqctl.formats.local import message
from rmqctl.formats.local.message import Record
from rmqctl.formats.tiered.units import CODA_SIZE, is_coda
from rmqctl.scan.damage.tails import LONGEST_TAIL, ends_record
from rmqctl.scan.frames import Batch
from rmqctl.scan.walk import Walk

_MOST_DOUBTFUL = 10_000


class Slots:
    """For walks over the segments of a queue's commit log, in their order, each from its start; the
    first one may begin behind a record, ``last`` (place, end).
    """

    def __init__(self, log: FlatFile, name: QueueName,
                 last: tuple[int, int] | None = None) -> None:
        self._log, self._name = log, name
        self._topic = os.fsencode(name.topic)
        self._least = min(message.size_of(0, magic, 0, len(self._topic), 0)
                          for magic in message.VERSIONS)
        self._head = min(message.variant(0, magic).head_size for magic in message.VERSIONS)
        self._last = last
        """Place and end of the last record."""

    def batches(self, walk: Walk) -> Iterator[Batch]:
        """Those of a walk. Of what is doubtful in their spans, that is left of which the slots do
        not tell, and the records of which they do are in a batch of their own. StoreIOError.
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
        """The (place, size) of doubtful records that are messages. Those that are none are no
        longer doubtful.
        """
        start, end = batch.spans[0].offset, batch.spans[-1].end
        doubtful = [frame for span in batch.spans for frame in span.doubtful]
        before, after = self._before(start), self._record(end)
        if before is None or after is None or len(doubtful) >= _MOST_DOUBTFUL:
            return []
        frames = [self._record(place, size) for place, size in doubtful]
        numbers = [-1 if frame is None else frame.queue_offset for frame in frames]
        if after.queue_offset == before.queue_offset + 2:
            if self._is_one(end, doubtful, numbers, before.queue_offset + 1):
                batch.spans = [replace(span, doubtful=()) for span in batch.spans]
            return []
        whole = all(frame is not None and frame.crc_ok for frame in frames)
        return doubtful if whole and self._fit(
            start, end, doubtful, [before.queue_offset, *numbers, after.queue_offset]) else []

    def _is_one(self, end: int, frames: Sequence[tuple[int, int]], numbers: Sequence[int],
                slot: int) -> bool:
        """Whether a range with one slot is one record."""
        place, size = frames[-1]
        if place + size == end and numbers[-1] == slot:
            return False
        first = max(end - LONGEST_TAIL, place)
        return ends_record(self._log.read(first, end - first))

    def _fit(self, start: int, end: int, frames: Sequence[tuple[int, int]],
             numbers: Sequence[int]) -> bool:
        """Whether frames have a slot each, the others have room between them, and no more would.

        ``numbers``: their queue offsets, with those of the messages before and behind.
        """
        rooms = [behind - before for before, behind in zip(
            [start, *(place + size for place, size in frames)],
            [*(place for place, _ in frames), end], strict=True)]
        free = [behind - before - 1 for before, behind in pairwise(numbers)]
        return all(0 <= count * self._least <= room
                   for count, room in zip(free, rooms, strict=True)) and (
            sum(rooms) < (sum(free) + 1) * self._head)

    def _before(self, start: int) -> Record | None:
        """The message that ends where a range starts; a coda may be between."""
        if self._last is None:
            return None
        place, end = self._last
        if end != start and not (end + CODA_SIZE == start and is_coda(
                self._log.read(end, CODA_SIZE))):
            return None
        return self._record(place, end - place)

    def _record(self, place: int, size: int | None = None) -> Record | None:
        """The queue's message at a place."""
        record = self._log.record_at(place, size)
        if record is None or record.physical_offset != place:
            return None
        return record if (record.topic, record.queue_id) == (
            self._topic, self._name.queue_id) else None
