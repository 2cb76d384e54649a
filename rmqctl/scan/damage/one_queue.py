"""Judge intact records in damage by the queue offsets around it, in a log of one queue.

The log of a tier contains all messages of one queue and no others (tiered.md §7). So the range
between two messages contains a record for each queue offset between those of the two messages: the
*slots*. A damaged record has one slot, and so has each message after it; frames in a body have
none. The sender of a message may know the slots, so the fields of a frame prove nothing by
themselves: the records of all slots must fit into the range.

* One slot: it belongs to the damaged record, and everything in the range is its body. Exception: if
  a write was interrupted and its messages were written again, the range has more records than
  slots. Then the range does not end like a message, or the frame at its end has the slot.
* More slots than frames: if each frame has a slot, the remaining slots belong to damaged records.
  If frames were in the body of one of these records, the range would also contain the damaged
  messages to which the slots of these frames belong, each at least as long as a message's header
  (its topic and properties may be the last bytes of a frame). If the range has no space for one
  more message, the frames are messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rmqctl.formats.local import message
from rmqctl.scan.damage.tails import MAX_TAIL, ends_record

HEAD = min(message.variant(0, magic).head_size for magic in message.VERSIONS)


@dataclass(frozen=True, slots=True)
class DamagedFrames:
    """A damaged range ``[start, end)`` that contains ``frames`` (physical offset, size) with the
    queue offsets ``numbers``. The adjacent messages have the queue offsets ``before`` and
    ``after``.
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
        """Return whether each frame has a slot, and the records of the remaining slots fit between
        the frames, without space for one more record. ``least``: size in bytes of the smallest
        record of the queue.
        """
        rooms = [after - before for before, after in zip(
            [self.start, *(place + size for place, size in self.frames)],
            [*(place for place, _ in self.frames), self.end], strict=True)]
        free = [after - before - 1 for before, after in pairwise(
            [self.before, *self.numbers, self.after])]
        return all(0 <= count * least <= room
                   for count, room in zip(free, rooms, strict=True)) and (
            sum(rooms) < (sum(free) + 1) * HEAD)
