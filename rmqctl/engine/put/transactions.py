"""The messages that a broker puts at the end of a transaction: the committed message and an op
message (spec: recovery.md §10).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rmqctl.broker.settings import Host, Settings
from rmqctl.broker.transactions import ENDED
from rmqctl.engine.config.topics import name_problem
from rmqctl.engine.put.message import Outgoing
from rmqctl.formats.config.java_map import JavaMap
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record
from rmqctl.formats.local.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from rmqctl.store.objects import java_text

_QUEUE_ID = re.compile(r"[0-9]{1,9}")


def rebuilt(record: Record, settings: Settings, **more: str) -> str:
    """Return the properties string of a half message as a broker rebuilds it, with the properties
    ``more`` added.
    """
    properties = JavaMap.from_properties(java_text(record.properties),
                                         settings.profile.map_capacity)
    for name, value in more.items():
        properties.put(name, value)
    return properties.text(trailing=settings.profile.trailing_separator)


def target(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the topic and queue id into which a commit puts a half message; None if its properties
    do not name a valid topic and queue id.
    """
    topic, queue = properties.get(props.REAL_TOPIC, ""), properties.get(props.REAL_QUEUE_ID, "")
    if name_problem(topic) is not None or not _QUEUE_ID.fullmatch(queue):
        return None
    return topic, int(queue)


def committed(record: Record, properties: Mapping[str, str], settings: Settings) -> Outgoing | None:
    """Return the message that a commit puts; None if the half message names no valid topic and
    queue.
    """
    place = target(properties)
    if place is None:
        return None
    return Outgoing(
        place[0], bytes(record.body), rebuilt(record, settings), place[1], record.flag,
        record.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT, record.born_timestamp,
        record.born_host, None, record.store_host, record.reconsume_times, record.physical_offset)


def op_message(body: str, settings: Settings, now: int, host: Host, queue_id: int = 0) -> Outgoing:
    """Return an op message (the note that a transaction has ended), born at ``now`` (ms)."""
    properties = JavaMap()  # as in a client's message
    properties.put(props.TAGS, ENDED)
    properties.put("WAIT", "true")
    return Outgoing(props.OP_HALF_TOPIC, body.encode(),
                    properties.text(trailing=settings.profile.trailing_separator), queue_id,
                    born_timestamp=now, born_host=host, store_host=host)
