"""The progress of consumer groups and of the delay service, from ``config/``.

Used to predict how a startup or a repair affects consumers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rmqctl.formats.local.properties import SCHEDULE_TOPIC
from rmqctl.formats.timer import timer_check
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.config.config import load_shared
from rmqctl.store.store import Store

_NAMED = 5


class Commit(NamedTuple):
    """The progress of a group in one queue; ``offset`` is the next queue offset that the group
    reads.
    """

    group: str
    topic: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class ConsumerProgress:
    """The progress of all consumer groups.

    ``delayed``: for each queue id of the schedule topic, the offset of the delay service.
    ``timer_read``: the time (ms) up to which timer messages were delivered; None if the store has
    no timer.
    """

    commits: tuple[Commit, ...]
    delayed: dict[int, int]
    timer_read: int | None

    @classmethod
    def of(cls, store: Store) -> ConsumerProgress:
        """Return the progress in the files of a store. Unreadable files count as empty; `rmqctl
        config` reports them.
        """
        commits = [Commit(row["group"], row["topic"], row["queue_id"], row["offset"])
                   for name in ("consumerOffset.json", "lmqConsumerOffset.json")
                   for row in load_shared(store, name).rows()
                   if row["group"] is not None and row["offset"] >= 0]
        delayed = {row["queue_id"]: row["offset"]
                   for row in load_shared(store, "delayOffset.json").rows()}
        check = load_shared(store, "timercheck").value
        read = (check.last_read_time_ms
                if isinstance(check, timer_check.TimerCheckRecord) else None)
        return cls(tuple(commits), delayed, read)

    def by_group(self) -> dict[str, dict[str, dict[int, int]]]:
        """Return the offsets of the groups, keyed by group, topic and queue id."""
        groups: dict[str, dict[str, dict[int, int]]] = {}
        for group, topic, queue_id, offset in self.commits:
            groups.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset
        return groups

    def everybody(self) -> Iterator[Commit]:
        """Yield the progress of the groups, and then the progress of the delay service as if it
        were a group.
        """
        yield from self.commits
        for queue_id, offset in sorted(self.delayed.items()):
            yield Commit("the delay service", SCHEDULE_TOPIC, queue_id, offset)


def named(items: list[str]) -> str:
    """Return a one-line text with the first items of a list and the number of the remaining
    items.
    """
    more = f" and {len(items) - _NAMED} more" if len(items) > _NAMED else ""
    return ", ".join(items[:_NAMED]) + more
