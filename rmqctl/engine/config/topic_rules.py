"""What a broker lets a topic be: its name, its attributes, and the topics it has by itself
(spec: checkpoint-and-small-files.md §4.2; `TopicValidator`, `TopicAttributes`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rmqctl.formats.local.delay import java_int
from rmqctl.formats.local.properties import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC

MAX_LENGTH = 127
WRITE, READ, INHERIT = 2, 4, 1
READ_WRITE = READ | WRITE
MAX_PERM = 7
RETRY_PREFIX = "%RETRY%"
DEFAULT_TOPIC = "TBW102"
"""The topic whose configuration new ones are made after."""

QUEUE_TYPE = "queue.type"
BATCH_QUEUE = "BatchCQ"

_ALLOWED = "%|a-zA-Z0-9_-"
_NAME = re.compile(f"[{_ALLOWED}]+")
_SYSTEM_PREFIX = "rmq_sys_"
_HALF, _OP_HALF = HALF_TOPIC, OP_HALF_TOPIC
_CHECK_MAX_TIME = "TRANS_CHECK_MAX_TIME_TOPIC"
_SELF_TEST, _OFFSET_MOVED = "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"
_SYSTEM = frozenset({DEFAULT_TOPIC, SCHEDULE_TOPIC, "BenchmarkTest", _HALF, "RMQ_SYS_TRACE_TOPIC",
                     _OP_HALF, _CHECK_MAX_TIME, _SELF_TEST, _OFFSET_MOVED})
_SYSTEM_SINCE_5 = frozenset({"CHECKPOINT_TOPIC"})
_REPLY_SUFFIX = "_REPLY_TOPIC"
_NO_SENDING = frozenset({SCHEDULE_TOPIC})
_NO_SENDING_SINCE_5 = _NO_SENDING | {_HALF, _OP_HALF, _CHECK_MAX_TIME, _SELF_TEST, _OFFSET_MOVED}

_ENUMS = {
    QUEUE_TYPE: ("SimpleCQ", BATCH_QUEUE),
    "cleanup.policy": ("DELETE", "COMPACTION"),
    "message.type": ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
}
_RESERVE_TIME = "reserve.time"
_FIXED = frozenset({QUEUE_TYPE, "cleanup.policy"})


def name_problem(name: str) -> str | None:
    """Why no broker takes ``name`` for a topic; None when it does."""
    if not name.strip():
        return "the topic is blank"
    if not _NAME.fullmatch(name):
        return f"topic {name!r} has characters other than {_ALLOWED}"
    if len(name) > MAX_LENGTH:
        return f"the topic has {len(name)} characters, a broker allows {MAX_LENGTH}"
    return None


def is_system(name: str, generation: int, cluster: str) -> bool:
    """Whether a broker of the cluster has this topic by itself."""
    return (name in _SYSTEM or name.startswith(_SYSTEM_PREFIX)
            or (generation >= 5 and name in _SYSTEM_SINCE_5)
            or name in (cluster, cluster + _REPLY_SUFFIX))


def takes_no_messages(name: str, generation: int) -> bool:
    """Whether clients may not send to this topic."""
    return name in (_NO_SENDING_SINCE_5 if generation >= 5 else _NO_SENDING)


def attributes_problem(new: Mapping[str, str]) -> str | None:
    """Why these are no attributes to a 5.x broker."""
    for name, value in new.items():
        if name not in _ENUMS and name != _RESERVE_TIME:
            known = ", ".join([*_ENUMS, _RESERVE_TIME])
            return f"there is no topic attribute {name!r}; there are {known}"
        allowed = _ENUMS.get(name)
        if allowed is not None and value not in allowed:
            return f"{name} is one of {', '.join(allowed)}, not {value!r}"
        if allowed is None and not _is_reserve_time(value):
            return f"{name} is -1 or a number of milliseconds, not {value!r}"
    return None


def fixed_attribute(new: Mapping[str, str], old: Mapping[str, str]) -> str | None:
    """The first attribute that would change although a topic keeps it for life."""
    return next((name for name, value in new.items()
                 if name in _FIXED and old.get(name) != value), None)


def _is_reserve_time(value: str) -> bool:
    try:
        return java_int(value, 64) >= -1
    except ValueError:
        return False
