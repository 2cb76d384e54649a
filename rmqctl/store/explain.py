"""Notes that explain why a selection shows nothing, or begins later than the user requested."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from difflib import get_close_matches

from rmqctl.errors import StoreIOError
from rmqctl.store.config.config import load_one
from rmqctl.store.queue.rows import queue_ids, topics_on_disk
from rmqctl.store.store import Store

_NAMED = 12
_NEAR = 3
_MAX_QUEUES = 1 << 12
_SYSTEM = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_", "rmq_sys_")


def named(items: list[str]) -> str:
    """Return a one-line text of a list: the first dozen items and the number of the remaining
    items.
    """
    more = f" and {len(items) - _NAMED} more" if len(items) > _NAMED else ""
    return ", ".join(items[:_NAMED]) + more


def by_the_log(topic: str, *conditions: str) -> str:
    """Return the command that finds a topic's messages in the log instead of the queues."""
    return " ".join(["rmqctl read STORE --where", shlex.quote(f"topic={topic}"), *conditions])


def near_names(name: str, names: Iterable[str]) -> str:
    """Return `` (did you mean A or B?)`` for a name that may be mistyped; empty if no name is
    similar.
    """
    by_small: dict[str, str] = {name.lower(): name for name in names}
    near = get_close_matches(name.lower(), by_small, _NEAR)
    return f" (did you mean {' or '.join(by_small[name] for name in near)}?)" if near else ""


def configured_queues(store: Store, topic: str) -> int | None:
    """Return the number of queues of a topic in topics.json; None if the file does not contain
    it.
    """
    try:
        rows = [row for row in load_one(store, "topics.json").rows() if row["topic"] == topic]
    except StoreIOError:
        return None
    counts = [row[name] for row in rows for name in ("read_queue_nums", "write_queue_nums")
              if isinstance(row[name], int)]
    return max(counts, default=None)


def is_unknown(store: Store, topic: str) -> bool:
    """Return whether a topic may be only in the log, because it has no queue on disk and is not in
    topics.json.
    """
    return topic not in topics_on_disk(store) and configured_queues(store, topic) is None


def without_consumequeue(store: Store, topic: str) -> str | None:
    """Return a note on the queues of a topic that have no consumequeue; None if every queue has
    one.

    A queue without messages has no consumequeue either.
    """
    existing = {*queue_ids(store, "consumequeue", topic),
                *queue_ids(store, "batchconsumequeue", topic)}
    # a queue of a delay level is created with its first message
    if not existing or topic.startswith(_SYSTEM):
        return None
    count = _queue_count(store, topic, existing)
    missing = [str(queue_id) for queue_id in range(count) if queue_id not in existing]
    if not missing:
        return None
    return (f"{topic}: no consumequeue for queue {named(missing)} of {count}; to look for "
            f"messages in the log: `{by_the_log(topic)}`")


def _queue_count(store: Store, topic: str, existing: Iterable[int]) -> int:
    """Return the number of queues that a topic should have, according to topics.json and the
    existing queues.
    """
    return min(max(configured_queues(store, topic) or 0, max(existing) + 1), _MAX_QUEUES)


def missing_queue(store: Store, topic: str, queue_id: int | None) -> str | None:
    """Return a note if a topic, or one of its queues, has no consumequeue; None if the consumequeue
    exists.
    """
    if not store.layout.reads("consumequeue"):
        return None  # already reported
    existing = sorted({*queue_ids(store, "consumequeue", topic),
                       *queue_ids(store, "batchconsumequeue", topic)})
    if not existing:
        topics = topics_on_disk(store)
        return (f"topic {topic} has no queues in this store{near_names(topic, topics)}; " + (
            f"existing topics: {named(topics)}" if topics else "the store has no consumequeues")
            + f"; to look for it in the log: `{by_the_log(topic)}`")
    if queue_id is not None and queue_id not in existing:
        count = _queue_count(store, topic, existing)
        if 0 <= queue_id < count and not topic.startswith(_SYSTEM):
            return (f"{topic}: no consumequeue for queue {queue_id} of {count}; to look for its "
                    "messages in the log: "
                    f"`{by_the_log(topic, '--where', f'queue_id={queue_id}')}`")
        return f"topic {topic} has no queue {queue_id} in this store; existing queues: " + named(
            [str(queue_id) for queue_id in existing])
    return None
