"""Topics in ``config/topics.json`` (checkpoint-and-small-files.md §4), a broker's rules for topic
names and attributes, and its system topics (§4.2; `TopicValidator`, `TopicAttributes`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rmqctl.engine.config.table import Config, ConfigTable
from rmqctl.errors import RefusedError, UsageError
from rmqctl.formats.local.delay import java_int
from rmqctl.formats.local.properties import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
)
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.queue.compaction import COMPACTION, POLICY

NAME = "topics.json"
TABLE = "topicConfigTable"
CLIENT_QUEUES = 4
"""``defaultTopicQueueNums``: the number of queues that a producer requests when its first message
makes a broker create the topic.
"""
DEFAULT_QUEUES = 8
BEAN_QUEUES = 16
"""Number of queues that a broker assumes for a topic whose configuration contains no number."""
_MAX_QUEUES = (1 << 31) - 1

MAX_LENGTH = 127
WRITE, READ, INHERIT = 2, 4, 1
READ_WRITE = READ | WRITE
MAX_PERM = 7
DEFAULT_TOPIC = "TBW102"
"""The topic whose configuration is the default model for topics that a broker creates when a
message arrives."""

QUEUE_TYPE = "queue.type"
BATCH_QUEUE = "BatchCQ"
MESSAGE_TYPE = "message.type"
_ALLOWED = "%|a-zA-Z0-9_-"
_NAME = re.compile(f"[{_ALLOWED}]+")
_SYSTEM_PREFIX = "rmq_sys_"
_HALF, _OP_HALF = HALF_TOPIC, OP_HALF_TOPIC
_CHECK_MAX_TIME = "TRANS_CHECK_MAX_TIME_TOPIC"
_SELF_TEST, _OFFSET_MOVED = "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"
_TRACE = "RMQ_SYS_TRACE_TOPIC"
_SYSTEM = frozenset({DEFAULT_TOPIC, SCHEDULE_TOPIC, "BenchmarkTest", _HALF, _TRACE,
                     _OP_HALF, _CHECK_MAX_TIME, _SELF_TEST, _OFFSET_MOVED})
_SYSTEM_SINCE_5 = frozenset({"CHECKPOINT_TOPIC"})
_REPLY_SUFFIX = "_REPLY_TOPIC"
_REVIVE_PREFIX, _REVIVE_QUEUES = f"{_SYSTEM_PREFIX}REVIVE_LOG_", 8
_OWN_QUEUES = {DEFAULT_TOPIC: DEFAULT_QUEUES, SCHEDULE_TOPIC: 18, "BenchmarkTest": 1024}
"""Number of queues of some system topics.

The topic that has the name of the cluster has `BEAN_QUEUES` queues; all other system topics have
one queue.
"""
FILTER_TYPES = "SINGLE_TAG", "MULTI_TAG"
_NO_SENDING = frozenset({SCHEDULE_TOPIC})
_NO_SENDING_SINCE_5 = _NO_SENDING | {_HALF, _OP_HALF, _CHECK_MAX_TIME, _SELF_TEST, _OFFSET_MOVED}
_ENUMS = {
    QUEUE_TYPE: ("SimpleCQ", BATCH_QUEUE),
    POLICY: ("DELETE", COMPACTION),
    MESSAGE_TYPE: ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
}
_RESERVE_TIME = "reserve.time"
_FIXED = frozenset({QUEUE_TYPE, POLICY})


# -- what a broker lets a topic be --------------------------------------------------------------


def name_problem(name: str) -> str | None:
    """Return the reason why brokers reject ``name`` as a topic; None if they accept it."""
    if not name.strip():
        return "the topic is blank"
    if not _NAME.fullmatch(name):
        return f"topic {name!r} contains characters other than {_ALLOWED}"
    if len(name) > MAX_LENGTH:
        return f"the topic has {len(name)} characters; a broker allows {MAX_LENGTH}"
    return None


def system_topics(generation: int, cluster: str) -> frozenset[str]:
    """Return the system topics of a broker of the given cluster, except those recognized by their
    prefix.
    """
    return _SYSTEM | (_SYSTEM_SINCE_5 if generation >= 5 else frozenset()) | {
        cluster, cluster + _REPLY_SUFFIX}


def is_system(name: str, generation: int, cluster: str) -> bool:
    """Return whether a topic is a system topic of a broker of the given cluster."""
    return name in system_topics(generation, cluster) or name.startswith(_SYSTEM_PREFIX)


def takes_no_messages(name: str, generation: int) -> bool:
    """Return whether clients are forbidden to send to this topic."""
    return name in (_NO_SENDING_SINCE_5 if generation >= 5 else _NO_SENDING)


def attributes_problem(new: Mapping[str, str]) -> str | None:
    """Return the reason why a 5.x broker rejects these attributes; None if it accepts them."""
    for name, value in new.items():
        if name not in _ENUMS and name != _RESERVE_TIME:
            valid = ", ".join([*_ENUMS, _RESERVE_TIME])
            return f"unknown topic attribute {name!r}; valid: {valid}"
        allowed = _ENUMS.get(name)
        if allowed is not None and value not in allowed:
            return f"{name} must be one of {', '.join(allowed)}, not {value!r}"
        if allowed is None and not _is_reserve_time(value):
            return f"{name} must be -1 or a number of milliseconds, not {value!r}"
    return None


def fixed_attribute(new: Mapping[str, str], old: Mapping[str, str]) -> str | None:
    """Return the first attribute that is immutable and would change; None if all changes are
    allowed.
    """
    return next((name for name, value in new.items()
                 if name in _FIXED and old.get(name) != value), None)


def _is_reserve_time(value: str) -> bool:
    try:
        return java_int(value, 64) >= -1
    except ValueError:
        return False


# -- the topics of a store ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A topic's configuration before a change (None if the topic did not exist) and after it."""

    topic: str
    before: Config | None
    after: Config

    @property
    def action(self) -> str:
        """The kind of change: ``create``, ``change``, or ``none`` if nothing changes."""
        if self.before is None:
            return "create"
        return "none" if self.before == self.after else "change"


class Topics(ConfigTable):
    """The topics of a store. To change them, the caller must hold the store's lock."""

    file, table_name = NAME, TABLE
    makes = True
    """True if topics are created when a message for them arrives (autoCreateTopicEnable)."""

    # -- reading ------------------------------------------------------------------------------

    def is_batch(self, topic: str) -> bool:
        """Return whether a topic has ``queue.type=BatchCQ`` (5.x)."""
        return self.settings.profile.batch_queues and (
            _attributes(self.get(topic)).get(QUEUE_TYPE) == BATCH_QUEUE)

    def batch_topics(self) -> frozenset[str]:
        """Return all topics with ``queue.type=BatchCQ``."""
        return frozenset(topic for topic in self.table if self.is_batch(topic))

    def allows(self, topic: str, queue_id: int) -> str | None:
        """Return the reason why a broker would reject a message for this queue, or None.

        For a topic that does not exist, return None; see `creation_problem`.
        """
        config = self.get(topic)
        if config is None:
            return None
        queues = max(number(config, "readQueueNums", BEAN_QUEUES),
                     number(config, "writeQueueNums", BEAN_QUEUES))
        if not 0 <= queue_id < queues:
            return f"topic {topic} has {queues} queues; queue {queue_id} does not exist"
        if not number(config, "perm", READ_WRITE) & WRITE:
            return f"topic {topic} is not writable (perm {config['perm']})"
        return None

    # -- changing -----------------------------------------------------------------------------

    def plan(self, name: str, read_queues: int | None = None, write_queues: int | None = None,
             perm: int | None = None, attributes: Mapping[str, str] | None = None,
             order: bool | None = None, filter_type: str | None = None,
             sys_flag: int | None = None) -> Change:
        """Return what `create` would change, without changing anything.

        Arguments that are None do not change the topic; the defaults of a new topic are 8 queues,
        perm 6 and no order.
        Raises: RefusedError for a name that a broker rejects; UsageError for other invalid values.
        """
        # Refuse names that a broker rejects or creates itself.
        generation = self.settings.profile.generation
        problem = name_problem(name)
        if problem is not None:
            raise RefusedError(problem)
        if is_system(name, generation, self.settings.cluster):
            raise RefusedError(f"{name} is a system topic: a broker creates it automatically")
        if name in self.table and self.get(name) is None:
            raise RefusedError(f"{self.path()}: the entry of {name} is not a JSON object")
        # Start from the existing topic, and change only the given values.
        before = self.get(name)
        after = dict(before) if before is not None else self.bean(name, DEFAULT_QUEUES)
        for field, count in (("readQueueNums", read_queues), ("writeQueueNums", write_queues)):
            if count is not None and not 1 <= count <= _MAX_QUEUES:
                raise UsageError(f"a topic must have 1 to {_MAX_QUEUES} queues, not {count}")
            after[field] = count if count is not None else after.get(field, BEAN_QUEUES)
        if perm is not None and not 1 <= perm <= MAX_PERM:
            raise UsageError(f"perm must be 2 (write), 4 (read) or 6 (both), not {perm}")
        after["perm"] = perm if perm is not None else after.get("perm", READ_WRITE)
        if filter_type is not None and filter_type not in FILTER_TYPES:
            raise UsageError(f"topicFilterType must be {' or '.join(FILTER_TYPES)}, not "
                             f"{filter_type!r}")
        for field, value in (("order", order), ("topicFilterType", filter_type),
                             ("topicSysFlag", sys_flag)):
            if value is not None:
                after[field] = value
        # Attributes need a broker of 5.x, and some of them cannot change after creation.
        if attributes:
            if generation < 5:
                raise UsageError("topic attributes require 5.0.0 or later; this store is for "
                                 f"{self.settings.version}")
            problem = attributes_problem(attributes)
            if problem is not None:
                raise UsageError(problem)
            fixed = before and fixed_attribute(attributes, _attributes(before))
            if fixed:
                raise RefusedError(f"{fixed} of topic {name} cannot be changed after creation")
            after["attributes"] = {**_attributes(after), **attributes}
        return Change(name, before, after)

    def create(self, name: str, read_queues: int | None = None, write_queues: int | None = None,
               perm: int | None = None, attributes: Mapping[str, str] | None = None,
               order: bool | None = None, filter_type: str | None = None,
               sys_flag: int | None = None) -> Config:
        """Add or change a topic, and replace the file; see `plan`.

        If nothing changes, the file is not written.
        """
        self.load()
        change = self.plan(name, read_queues, write_queues, perm, attributes, order, filter_type,
                           sys_flag)
        if change.action != "none":
            self.put({name: change.after})
        return dict(change.after)

    def creation_problem(self, name: str, model: str = DEFAULT_TOPIC) -> str | None:
        """Return the reason why a message for this topic would not create it.

        None if the topic exists or would be created. ``model``: the topic whose configuration the
        producer wants to copy.
        """
        problem = name_problem(name)
        if problem is None and takes_no_messages(name, self.settings.profile.generation):
            return f"sending to topic {name} is forbidden"
        if problem is None and self.get(name) is None and self.own(name) is None and (
                self._made_by_sending(name, model, CLIENT_QUEUES) is None):
            return f"topic {name} does not exist, and topic {model} does not allow creating it"
        return problem

    def auto_create(self, name: str, model: str = DEFAULT_TOPIC, queues: int = CLIENT_QUEUES,
                    sys_flag: int = 0) -> Config:
        """Return the configuration of a topic; create the topic as a broker does on first use.

        A new topic is a copy of the topic ``model``. It has the number of ``queues`` that the
        producer requests, but not more than the model. The configuration of a system topic is
        returned, but not written.
        Raises: RefusedError if a broker would not create the topic.
        """
        existing = self.get(name)
        if existing is None:
            self.load()
            existing = self.get(name)
        problem = self.creation_problem(name, model)
        if problem is not None:
            raise RefusedError(problem)
        existing = existing or self.own(name)
        if existing is not None:
            return existing
        config = self._made_by_sending(name, model, queues)
        assert config is not None
        config["topicSysFlag"] = sys_flag
        self.put({name: config})
        return config

    def own(self, name: str) -> Config | None:
        """Return the configuration of a system topic; None for any other topic."""
        cluster = self.settings.cluster
        if name.startswith(_REVIVE_PREFIX):
            return self.bean(name, _REVIVE_QUEUES)
        if name not in system_topics(self.settings.profile.generation, cluster) or (
                name == _TRACE or (name == DEFAULT_TOPIC and not self.makes)):
            return None  # the trace topic is created on demand (traceTopicEnable is off)
        is_model = name in (DEFAULT_TOPIC, cluster)
        return {**self.bean(name, BEAN_QUEUES if name == cluster else _OWN_QUEUES.get(name, 1)),
                "perm": READ_WRITE | INHERIT if is_model else READ_WRITE}

    def _made_by_sending(self, name: str, model: str, queues: int) -> Config | None:
        after = self.get(model) or self.own(model) or {}
        perm = number(after, "perm", READ_WRITE)
        if perm & INHERIT and (self.makes or model != DEFAULT_TOPIC):
            queues = min(queues, number(after, "writeQueueNums", BEAN_QUEUES))
            return {**self.bean(name, max(queues, 0)), "perm": perm & ~INHERIT,
                    "topicFilterType": after.get("topicFilterType", "SINGLE_TAG")}
        return self.bean(name, 1) if name.startswith(RETRY_PREFIX) else None

    def bean(self, name: str, queues: int) -> Config:
        """Return a new topic's properties in fastjson's order."""
        bean: Config = {} if self.settings.profile.generation < 5 else {"attributes": {}}
        return bean | {"order": False, "perm": READ_WRITE, "readQueueNums": queues,
                       "topicFilterType": "SINGLE_TAG", "topicName": name, "topicSysFlag": 0,
                       "writeQueueNums": queues}


def _attributes(config: Config | None) -> dict[str, str]:
    attributes = (config or {}).get("attributes")
    return dict(attributes) if isinstance(attributes, dict) else {}


def number(config: Config, key: str, default: int) -> int:
    """Return a number from a topic's configuration; ``default`` if it contains no such number."""
    value = config.get(key, default)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
