"""The first and the end offset of a queue, in two views.

* ``disk`` (the default everywhere): every entry on disk that points to a record counts, so intact
  messages after damage remain reachable.
* ``broker``: the state after a broker's recovery, which truncates the log at the first record that
  it cannot read (`rmqctl.broker.view`; spec: consumequeue.md §5-§6).
"""

from __future__ import annotations

from collections.abc import Callable

from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.log.end import LogEnd, find_end
from rmqctl.store.log.once import cached_property
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Store


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a queue.

    ``first``: queue offset of the oldest readable entry. ``end``: queue offset of the next entry to
    be written.
    """

    first: int
    end: int


class View:
    """Computes the bounds of a store's queues in one view.

    ``generation`` (4 or 5) selects the broker's rules. ``log_end`` returns the physical offset at
    which a broker truncates the log; it is called when the offset is first needed. Without
    ``log_end``, the view is ``disk``.
    """

    def __init__(self, store: Store, log_end: Callable[[], int] | None = None,
                 generation: int | None = None) -> None:
        self.store = store
        self._generation = generation
        self._bounds: dict[tuple[str, int], Bounds] = {}
        self._log_end = log_end
        self.compacted = log_end is not None
        """True if topics that a broker reads from a compaction log are read from that log."""

    @cached_property
    def generation(self) -> int:
        return self._generation or self.store.generation

    @cached_property
    def log_end(self) -> int | None:
        """The physical offset at which the log ends for a broker; None in the disk view."""
        return None if self._log_end is None else self._log_end()

    @cached_property
    def disk_end(self) -> LogEnd:
        """The end of the log on disk, independent of a broker's view."""
        return find_end(self.store)

    def bounds(self, queue: ConsumeQueue) -> Bounds:
        key = queue.topic, queue.queue_id
        if key not in self._bounds:
            end = self._end(queue)
            first = queue.first_kept(end, self.store.log.min_offset, self.generation)
            self._bounds[key] = Bounds(min(first, end), end)
        return self._bounds[key]

    def _end(self, queue: ConsumeQueue) -> int:
        if self.log_end is None:
            return readable_end(queue, self.store.log, vars(self).get("disk_end"))
        return queue.recovered_end(self.log_end)


def readable_end(queue: ConsumeQueue, log: CommitLog, log_end: LogEnd | None = None) -> int:
    """Return the queue offset after the last entry whose record is in the log.

    If the log was truncated, the last entries of the queue point beyond its end. Bisection finds
    the first of these entries. An entry that was zeroed does not hide those after it.
    """
    end, first = queue.valid_end, queue.first_index
    last = queue.unit(end - 1) if end > first else None
    if last is not None and log_end is not None and log_end.last is not None and (
            last.physical_offset <= log_end.last.physical_offset):
        return end

    def is_readable(index: int) -> bool:
        unit = queue.unit(index)
        if unit is None:
            return False
        return unit == FILLER or not any(unit) or (
            log.record_at(unit.physical_offset, unit.size) is not None)

    if end <= first or is_readable(end - 1):
        return end
    low, high = first, end - 1
    while low < high:
        middle = (low + high) // 2
        if is_readable(middle):
            low = middle + 1
        else:
            high = middle
    unit = queue.unit(low)
    # Entries that point into the log but not to a record are damage, not the end of the queue.
    if unit is not None and _behind_the_log(unit.physical_offset, log):
        return low
    return end


def _behind_the_log(physical: int, log: CommitLog) -> bool:
    """Return whether no provable record starts at or after ``physical``."""
    if physical >= log.end:
        return True
    if physical < log.min_offset or log.locate(physical) is None:
        return False
    return not log.has_record_from(physical)
