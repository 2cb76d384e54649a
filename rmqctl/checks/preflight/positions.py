"""Lost messages that only consumer offsets show. These messages have no entry and no record.

A committed offset does not reliably prove messages before this offset. `config/` may be damaged,
edited by hand, copied from another cluster, or left over from a deleted topic of the same name.

An offset beyond the known end of a queue counts only under two conditions: other evidence shows
that the log had more data, and the log has space for the missing messages. Space consists of:

* the holes of the log
* the rest of the last file after the end of the log
* one more file, which a broker creates in advance

Offsets that do not count are listed in ``positions_unclear``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import NamedTuple

from rmqctl.broker.consume_queue import PLAIN, QueueState
from rmqctl.checks.metadata.queues import OffsetBeyondEnd, offsets_beyond
from rmqctl.checks.preflight.effects import ConsumerEffect
from rmqctl.checks.preflight.queues import RecoveredQueues
from rmqctl.checks.verify.common import plural
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.formats.local.message import MIN_SIZE
from rmqctl.phrases import Joined, Phrase
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import ConsumeQueue, valid
from rmqctl.store.store import Store

_MAX_ROWS = 1000
"""Number of entries at the end of a queue from which the size of its smallest messages is
estimated.
"""
_MAX_NAMED = 3


class WalkFacts(NamedTuple):
    """Results of the scans.

    ``end``: physical offset after the last intact record.
    ``holes``: number of bytes before ``end`` without intact data.
    ``seen``: for each queue number, the queue offset after the last record of the queue.
    ``last_time``: store time (ms) of the last record that a broker accepts (None: no such record).
    """

    log: CommitLog
    end: int
    holes: int
    seen: dict[int, int]
    last_time: int | None


class _OffsetBeyond(NamedTuple):
    """A committed offset beyond ``known_end``, the known end of the plain queue ``number``."""

    number: int
    position: OffsetBeyondEnd
    known_end: int

    @property
    def missing(self) -> int:
        return self.position.offset - self.known_end


class OffsetJudge:
    """Comparison of a store's committed offsets with the ends of its queues."""

    def __init__(self, store: Store, queues: RecoveredQueues, facts: WalkFacts) -> None:
        self._store, self._queues, self._facts = store, queues, facts
        self.lost: dict[int, tuple[int, int]] = {}
        """By queue number, the half-open range of queue offsets of the messages counted as lost."""

    def judge(self, truncate_to: int | None, *, starts: bool) -> (
            tuple[Counter[str], ConsumerEffect]):
        """Return (number of lost messages by topic, the offsets that show them or are unclear).

        ``truncate_to``: the end of the log after the startup; ``starts``: whether the broker
        starts.
        """
        # Offsets beyond the end of their queue, and beyond the known losses.
        numbers = {state.key: number for number, state in enumerate(self._queues.states)
                   if state.kind == PLAIN}
        beyond_end = [*offsets_beyond(self._store, self._end_of(numbers, truncate_to, starts))]
        by_queue: dict[int, list[_OffsetBeyond]] = {}
        for position in beyond_end:
            number = numbers.get((position.topic, position.queue_id))
            if number is not None and (end := self._known_end(number)) and (
                    position.offset > end):
                by_queue.setdefault(number, []).append(_OffsetBeyond(number, position, end))
        # Those that show lost messages: not in a recreated queue, and only if the log lacks
        # enough bytes for them.
        furthest: list[_OffsetBeyond] = []
        alone: list[_OffsetBeyond] = []
        without_room: list[_OffsetBeyond] = []
        room = self._room()
        for number, reached in by_queue.items():
            if self._is_recreated(number) or not self._went_on(number):
                alone += reached
                continue
            smallest = self._smallest(number)
            fitting = [beyond for beyond in reached if beyond.missing * smallest <= room]
            without_room += [beyond for beyond in reached if beyond not in fitting]
            if fitting:
                furthest.append(max(fitting, key=lambda beyond: beyond.position.offset))
        if sum(beyond.missing * self._smallest(beyond.number) for beyond in furthest) > room:
            without_room += furthest  # not all are true, and none is more likely than another
            furthest = []
        # The messages that these show, and the offsets left unclear.
        lost: Counter[str] = Counter()
        for beyond in furthest:
            lost[beyond.position.topic] += beyond.missing
            self.lost[beyond.number] = beyond.known_end, beyond.position.offset
        return lost, ConsumerEffect(
            beyond_end=beyond_end,
            unclear=[beyond.position for beyond in (*alone, *without_room)],
            notes=list(self._notes(furthest, alone, without_room, room)))

    def _notes(self, furthest: list[_OffsetBeyond], alone: list[_OffsetBeyond],
               without_room: list[_OffsetBeyond], room: int) -> Iterable[str]:
        if alone:
            queues = len({beyond.number for beyond in alone})
            yield Phrase(
                "group offsets are beyond the end of {queues}, and nothing else shows more "
                "messages ({named}). Messages may be lost, but the offsets may also have been set "
                "by hand or belong to a topic that was recreated, so no message is counted as lost",
                queues=plural(queues, 'queue'), named=_named(alone))
        if without_room:
            yield Phrase(
                "unknown whether messages are lost before the offset of {named}: at most {room:,} "
                "bytes are missing from the log, too few for these messages. Such an offset was "
                "set by hand, is damaged, or belongs to another store or to a topic that was "
                "recreated; nothing is counted as lost for it", named=_named(without_room),
                room=room)
        if furthest:
            count = sum(beyond.missing for beyond in furthest)
            yield Phrase(
                "{count:,} lost message is known only from the offset of {named}: it never existed "
                "if the offset was set by hand or comes from elsewhere",
                "{count:,} lost messages are known only from the offset of {named}: they never "
                "existed if the offset was set by hand or comes from elsewhere",
                count=count, named=_named(furthest))

    def _end_of(self, numbers: dict[tuple[str, int], int], truncate_to: int | None,
                starts: bool) -> Callable[[str, int], int]:
        """Return a function that returns the end of a queue after startup. If the broker does not
        start, the function returns the current end.
        """
        batches = {state.key: state for state in self._queues.states if state.kind != PLAIN}

        def end(topic: str, queue_id: int) -> int:
            number, batch = numbers.get((topic, queue_id)), batches.get((topic, queue_id))
            if number is None:
                return 0 if batch is None else batch_end(batch, truncate_to)
            queue_end = self._queues.states[number].end
            return queue_end if starts else max(
                queue_end, self._facts.seen.get(number, 0))

        return end

    # -- what there may have been ---------------------------------------------------------------

    def _room(self) -> int:
        """Return the number of bytes that the missing messages may have occupied."""
        files = self._facts.log.files
        behind = max(0, files[-1].end - self._facts.end) if files else 0
        return self._facts.holes + behind + max((file.size for file in files), default=0)

    def _smallest(self, number: int) -> int:
        """Return the size in bytes of the smallest of a queue's last messages. If the queue has no
        entry, return the minimum size of a message.
        """
        state = self._queues.states[number]
        least = MIN_SIZE + len(state.key[0].encode("utf-8", "surrogateescape"))
        if not isinstance(state.queue, ConsumeQueue) or not state.queue.exists:
            return least
        with closing(state.queue) as queue:
            end = min(queue.disk_end, state.disk_end)
            first = max(queue.first_index, end - _MAX_ROWS)
            rows = queue.timed_units(first, end - first) if end > first else None
        if rows is None:
            return least
        sizes = rows["size"][valid(rows) & (rows["size"] != FILLER.size)]
        return max(least, int(sizes.min())) if len(sizes) else least

    def _went_on(self, number: int) -> bool:
        """Return whether evidence other than committed offsets shows that this log and this queue
        may have had more data.
        """
        saved, state = self._store.checkpoint, self._queues.states[number]
        last = self._facts.last_time
        if self._store.has_abort or saved is None or not state.disk_end or last is None:
            return True
        when = max(saved.physic_msg_timestamp, saved.logics_msg_timestamp)
        return when > last or saved.confirm_phy_offset > self._facts.end

    def _known_end(self, number: int) -> int:
        """Return the queue offset after the last known entry or message of a queue; 0 if neither is
        known.
        """
        state = self._queues.states[number]
        on_disk = 0
        if isinstance(state.queue, ConsumeQueue) and state.queue.exists:
            with closing(state.queue) as queue:
                on_disk = max(queue.disk_end, state.disk_end)
                on_disk = on_disk if on_disk > queue.first_index else 0
        return max(on_disk, state.end, self._facts.seen.get(number, 0))

    def _is_recreated(self, number: int) -> bool:
        """Return whether the queue begins at 0 although the log does not.

        The topic may then have been deleted and created again. Offsets of the old topic prove
        nothing.
        """
        queue, log = self._queues.states[number].queue, self._facts.log
        if log.min_offset <= 0 or not isinstance(queue, ConsumeQueue) or not queue.exists:
            return False
        with closing(queue):
            unit = queue.unit(0)
        return unit is not None and unit != FILLER and unit.physical_offset >= log.min_offset


def batch_end(state: QueueState, end: int | None) -> int:
    """Return the queue offset after the last message of a batch queue whose log ends at ``end``."""
    assert isinstance(state.queue, BatchQueue) or state.queue is None
    return 0 if state.queue is None else state.queue.bounds(0, end)[1]


def _named(reached: list[_OffsetBeyond]) -> Phrase:
    """Return text such as ``g at 1000000 in orders/0, which ends at 81`` for the first offsets."""
    first = [Phrase("{group} at {offset} in {queue}, which ends at {end}", group=position.group,
                    offset=position.offset, queue=f"{position.topic}/{position.queue_id}",
                    end=position.max_offset)
             for position in (beyond.position for beyond in reached[:_MAX_NAMED])]
    more = len(reached) - len(first)
    return Joined("; ", [*first, Phrase("and {some} more", some=more)] if more > 0 else first)
