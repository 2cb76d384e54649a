"""Why a selection shows nothing, or not from where it was asked: in words, for a note."""

from __future__ import annotations

from rmqctl.store.queue.rows import queue_ids, topics_on_disk
from rmqctl.store.store import Store

_NAMED = 12


def named(items: list[str]) -> str:
    """A list that stays on a line: the first dozen and how many more."""
    more = f" and {len(items) - _NAMED} more" if len(items) > _NAMED else ""
    return ", ".join(items[:_NAMED]) + more


def missing_queue(store: Store, topic: str, queue_id: int | None) -> str | None:
    """What to say where a topic, or one of its queues, has no consumequeue; None if it has one."""
    known = sorted({*queue_ids(store, "consumequeue", topic),
                    *queue_ids(store, "batchconsumequeue", topic)})
    if not known:
        topics = topics_on_disk(store)
        return (f"topic {topic} has no queues in this store; " + (
            f"there are: {named(topics)}" if topics else "there are no consumequeues at all"))
    if queue_id is not None and queue_id not in known:
        return f"topic {topic} has no queue {queue_id} here; there are: " + named(
            [str(one) for one in known])
    return None
