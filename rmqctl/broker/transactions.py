"""A broker's rules for transactions: names, times of checks, and the op messages that end half
messages (spec: recovery.md §10).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rmqctl.formats.local import properties as props
from rmqctl.formats.local.delay import java_int
from rmqctl.formats.local.message import Record
from rmqctl.store.objects import java_text

GROUP = "PGROUP"
"""Property of a half message that names its producer group."""
READER = "CID_RMQ_SYS_TRANS"
"""The group whose consumer offsets show up to which offset the half topic and the op topic were
read.
"""
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Topic of half messages that were checked too often or are too old."""
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
IMMUNITY_MS = 6000
"""Time (ms) after which the broker first checks a half message."""
MAX_CHECKS = 15
TIMES = "TRANSACTION_CHECK_TIMES"
PREPARED_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
"""Property of a half message that was appended again before a check: the queue offset of its first
copy.
"""
TRANSACTION_ID = "__transactionId__"
ENDED = "d"
"""Tag of an op message."""
OP_BYTES = 4096
"""Maximum number of bytes of queue offsets that a 5.x broker puts into one op message."""
EVERY_S = {4: 60.0, 5: 30.0}
"""Time between two rounds of checks in seconds, by generation of the broker."""
_MAX_OP_BYTES = 1 << 16
"""Maximum number of bytes read from the body of an op message, which any client may have sent."""


def immunity_ms(properties: Mapping[str, str], usual: int = IMMUNITY_MS) -> int | None:
    """Return the time in ms during which a half message should not be checked; None if its producer
    requests no such time.
    """
    text = properties.get(IMMUNITY)
    if text is None:
        return None
    try:
        seconds = java_int(text, 64)
    except ValueError:
        seconds = -1
    return usual if seconds == -1 else seconds * 1000


def half_offsets(bodies: Iterable[bytes]) -> set[int]:
    """Return the queue offsets of the half messages that are ended by op messages with these
    bodies.
    """
    return {int(text) for body in bodies for text in bytes(body[:_MAX_OP_BYTES]).split(b",")
            if text.isdigit() and len(text) < 19}


def ended_by(record: Record) -> set[int]:
    """Return the queue offsets of the half messages that an op message ends; an empty set for any
    other message.
    """
    if props.parse(java_text(record.properties)).get(props.TAGS) != ENDED:
        return set()
    return half_offsets([record.body])
