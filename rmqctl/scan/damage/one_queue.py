"""Decide whether intact records in a damaged range are messages, in a log of one queue.

An intact record in a damaged range (a *frame*) is a message, or a part of a damaged message's body.
The log of a tier contains all messages of one queue and no others (tiered.md §7). So each queue
offset missing between the messages before and after the range (a *slot*) belongs to one message in
the range. The fields of a frame prove nothing by themselves, because a sender may guess a queue
offset and put a forged record into a body. The evidence is whether the messages of all slots fit
into the range.

One slot: it belongs to the damaged message, and the whole range is this message. There is one
exception. After an interrupted write, messages are written again, so the range contains more
records than slots. Such a range does not end as a message does, or the queue offset of its last
frame is the slot.

More slots than frames: if the queue offset of each frame is a slot, the other slots belong to
damaged messages. If a frame were a part of a body, the range would also contain the damaged message
of the frame's slot. That message needs at least the space of a header; its topic and properties may
be the last bytes of a frame. Without this space, the frames are messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rmqctl.formats.local import message
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.damage.tails import MAX_TAIL, ends_record

HEAD = min(message.variant(0, magic).head_size for magic in message.VERSIONS)


@dataclass(frozen=True, slots=True)
class DamagedFrames:
    """A damaged range with intact records inside, in a log of one queue.

    ``start``, ``end``: the range.
    ``frames``: (physical offset, size) of each record.
    ``numbers``: queue offset of each record.
    ``before``, ``after``: queue offsets of the messages next to the range.
    """

    start: int
    end: int
    frames: Sequence[tuple[int, int]]
    numbers: Sequence[int]
    before: int
    after: int

    @property
    def has_one_slot(self) -> bool:
        return self.after == self.before + 2

    @property
    def tail(self) -> tuple[int, int]:
        """Return (offset, length) of the bytes to pass to `is_one_record`."""
        first = max(self.end - MAX_TAIL, self.frames[-1][0])
        return first, self.end - first

    def is_one_record(self, tail: bytes) -> bool:
        """Return whether a range with one slot is a single record."""
        place, size = self.frames[-1]
        if place + size == self.end and self.numbers[-1] == self.before + 1:
            return False
        return ends_record(tail)

    def are_messages(self, least: int) -> bool:
        """Return whether the frames are messages. Each frame must have a slot. Each gap must have
        space for the records of its slots, but all gaps together must have no space for one more
        record.

        ``least``: size in bytes of the smallest record of the queue.
        """
        rooms = [after - before for before, after in zip(
            [self.start, *(place + size for place, size in self.frames)],
            [*(place for place, _ in self.frames), self.end], strict=True)]
        free = [after - before - 1 for before, after in pairwise(
            [self.before, *self.numbers, self.after])]
        return all(0 <= count * least <= room
                   for count, room in zip(free, rooms, strict=True)) and (
            sum(rooms) < (sum(free) + 1) * HEAD)
