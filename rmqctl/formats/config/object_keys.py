"""Map keys that are objects. fastjson writes them although they are not JSON.

They occur in two places:

* the segment tables of tiered storage 5.1.0 and 5.1.1 (tiered.md §16);
* the offsets.json of a broadcasting consumer (``~/.rocketmq_offsets/CLIENT/GROUP``), where the keys
  are queues.
"""

from __future__ import annotations

from typing import Any

from rmqctl.errors import FormatError


def queue_of(value: Any) -> tuple[str, str, int]:
    """Return (broker name, topic, queue id) from a key that represents a queue.

    Raises: FormatError.
    """
    try:
        broker, topic, number = value["brokerName"], value["topic"], value["queueId"]
        if not isinstance(broker, str) or not isinstance(topic, str) or type(number) is not int:
            raise TypeError
    except (KeyError, TypeError):
        raise FormatError("the key is not a queue", offset=0) from None
    return broker, topic, number


def queue_name(value: Any) -> str:
    """Return ``TOPIC@BROKER@QUEUE`` for a key that is a queue.

    Raises: FormatError.
    """
    broker, topic, number = queue_of(value)
    return f"{topic}@{broker}@{number}"
