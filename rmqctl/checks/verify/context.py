"""What the whole log showed, for everything that explains what is left over."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from rmqctl.checks.verify.log.results import RangeResult
from rmqctl.checks.verify.queue.rows import QueueKey, merged
from rmqctl.formats.local import properties as props
from rmqctl.store.store import Store


@dataclass(slots=True)
class Context:
    """What the whole log showed, for looking up what a left-over row leads to."""

    store: Store
    result: RangeResult
    log_end: int
    live: bool = False
    known_topics: frozenset[str] | None = None
    looked_at: list[tuple[int, int]] | None = None
    damage_starts: list[int] = field(default_factory=list)
    damage_ends: list[int] = field(default_factory=list)
    lost: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    strays: dict[int, tuple[QueueKey, int]] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        holes = [(span.offset, span.end) for span in self.result.spans]
        holes += [(bad.offset, bad.offset + bad.size) for bad in self.result.bad]
        holes += [(gap.start, gap.end) for gap in self.store.log.gaps()]
        for start, end in merged(holes):
            self.damage_starts.append(start)
            self.damage_ends.append(end)

    @property
    def default_delays(self) -> bool:
        """Whether any delayed message was due as the default table of delays has it."""
        return any(tally.agreeing for (topic, _), tally in self.result.queues.items()
                   if topic == props.SCHEDULE_TOPIC)

    def was_read(self, physical: int) -> bool:
        """Whether this run looked at that part of the log."""
        return self.looked_at is None or any(
            start <= physical < end for start, end in self.looked_at)

    def in_damage(self, physical: int) -> bool:
        at = bisect_right(self.damage_starts, physical) - 1
        return at >= 0 and physical < self.damage_ends[at]
