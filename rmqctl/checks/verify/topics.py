"""Which topics a store's configuration knows: the others may have been deleted (#1852)."""

from __future__ import annotations

from rmqctl.formats.local import properties as props
from rmqctl.store.config.config import load_one
from rmqctl.store.store import Store

_SYSTEM = ("rmq_sys_", "RMQ_SYS_", props.SCHEDULE_TOPIC)


def known_topics(store: Store) -> frozenset[str] | None:
    """The topics of topics.json; None where there is no readable one, so nothing can be said."""
    value = load_one(store, "topics.json").value
    table = value.get("topicConfigTable") if isinstance(value, dict) else None
    return frozenset(table) if isinstance(table, dict) and table else None


def deleted(topic: str, known: frozenset[str] | None) -> bool:
    """Whether a topic is missing in a configuration that is there. Brokers keep their own."""
    return known is not None and topic not in known and not topic.startswith(_SYSTEM)
