"""The marks of a filler: a message that `recover` wrote in place of lost bytes.

All fillers have the born host 0.0.0.0:0, from which no broker accepts a message. The property
``RMQCTL`` of a filler is ``lost``. If the filler has no space for the property, its body is all
zeros.
"""

from __future__ import annotations

from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record

MARK = "RMQCTL"
LOST = "lost"
DAMAGED = "damaged"
TOPIC = "RMQCTL_FILLER"
"""The topic of fillers that belong to no queue."""
NOWHERE = (bytes(4), 0)
"""The born host of fillers."""
KEPT_START = f"{MARK}{props.NAME_VALUE_SEPARATOR}{DAMAGED}{props.PROPERTY_SEPARATOR}".encode()
"""The prefix of the properties of a message that is kept damaged."""


def is_kept_damaged(record: Record) -> bool:
    """Return whether `recover` kept this message although a part of it was lost."""
    return record.properties.startswith(KEPT_START)


def is_filler(record: Record) -> bool:
    """Return whether `recover` created this message."""
    if record.born_host != NOWHERE:
        return False
    values = props.parse(record.properties.decode("utf-8", "replace"))
    if MARK in values:
        return values[MARK] == LOST
    return bool(record.body) and not record.body.strip(b"\0") and not (
        values.keys() & {props.UNIQUE_KEY, props.KEYS})
