"""Table of the parts of a store that only newer brokers read, each with the first release that
reads it.

The table is used by these modules:

* `rmqctl.store.version_hints`: hints on the writer of a store;
* `rmqctl.checks.preflight.downgrade`: the losses of a downgrade;
* `rmqctl.repair.convert.release`: the plan of a downgrade.

`rmqctl.broker.versions` describes how releases start, write and answer. To support another feature,
or conversion to another release, add an entry here.

spec: versions.md, timer-and-others-5x.md, rocksdb.md §7, tiered.md §1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.layout import CONFIG_DATABASES, CONTROLLER_FILES

TIMER, BATCH_QUEUES, LONG_TOPICS = "timer", "batch_queues", "message_v2"
ROCKSDB_QUEUES, PROPERTY_CRC = "rocksdb_queues", "property_crc"
STATIC_TOPICS, POP, POP_RECORDS = "static-topics", "pop", "pop-records"
COMPACTION, TIER, CONFIG_V1, CONFIG_V2 = "compaction", "tier", "rocksdb-v1", "rocksdb-v2"
COMPRESSION, ABORT_WITH_PID = "compression", "abort-with-pid"
LONG_TRANSACTIONS = "transactions-of-long-topics"
MAX_V1_TOPIC = 127
"""Maximum length in bytes of a topic name in a v1 record; longer names need the feature
`LONG_TOPICS`.
"""


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of newer brokers.

    ``since``: the first release that reads the files of the feature.
    ``files``: these files, relative to the store root.
    ``shown_by``: other files that prove that the feature was used; None: ``files`` prove it.
    """

    since: str
    files: tuple[str, ...] = ()
    shown_by: tuple[str, ...] | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        return self.files if self.shown_by is None else self.shown_by


FEATURES: Mapping[str, Feature] = {
    "sql-filters": Feature("4.1.0", ("config/consumerFilter.json",)),
    "lock": Feature("4.2.0", ("lock",)),
    "light-queues": Feature("4.9.2", ("config/lmqConsumerOffset.json",)),
    COMPRESSION: Feature("4.9.4"),
    ABORT_WITH_PID: Feature("5.0.0", ("abort.bak",)),
    TIMER: Feature("5.0.0", ("timerwheel", "timerlog", "config/timercheck",
                             "config/timermetrics")),
    BATCH_QUEUES: Feature("5.0.0", ("batchconsumequeue",)),
    STATIC_TOPICS: Feature("5.0.0", ("config/topicQueueMapping.json",)),
    POP: Feature("5.0.0", ("config/consumerOrderInfo.json", "config/messageRequestMode.json")),
    "transaction-metrics": Feature("5.0.0", ("config/transactionMetrics",)),
    "controller": Feature("5.0.0", (CONTROLLER_FILES[0],)),
    LONG_TOPICS: Feature("5.1.0"),
    LONG_TRANSACTIONS: Feature("5.1.0"),
    COMPACTION: Feature("5.1.0", ("compaction/compactionLog",), ("compaction",)),
    TIER: Feature("5.1.0", ("config/tieredStoreMetadata.json",)),
    "broker-identity": Feature("5.1.1", CONTROLLER_FILES[2:]),
    CONFIG_V1: Feature("5.1.4", tuple(CONFIG_DATABASES["rocksdb-v1"].values()), ()),
    ROCKSDB_QUEUES: Feature("5.2.0", shown_by=("consumequeue/CURRENT",)),
    PROPERTY_CRC: Feature("5.2.0"),
    CONFIG_V2: Feature("5.3.2", ("config/rdb",), ()),
    POP_RECORDS: Feature("5.3.2", ("kvStore",)),
}


@dataclass(frozen=True, slots=True)
class ConfigField:
    """A field of a file of ``config/``.

    ``path``: the keys on the path to the field; ``*`` matches each entry of a table.
    ``usual``: values with the same effect as a missing field.
    """

    since: str
    file: str
    path: tuple[str, ...]
    usual: tuple[object, ...] = field(default=(None, {}, []))


_TOPICS, _GROUPS = "topicConfigTable", "subscriptionGroupTable"
_VERSION = ("dataVersion", "stateVersion")
_GROUP_FILE = "subscriptionGroup.json"
CONFIG_FIELDS = (
    ConfigField("5.0.0", "topics.json", _VERSION, (0,)),
    ConfigField("5.0.0", "topics.json", (_TOPICS, "*", "attributes"), (
        None, {}, {"message.type": "NORMAL"}, {"message.type": "UNSPECIFIED"})),
    ConfigField("5.0.0", _GROUP_FILE, _VERSION, (0,)),
    ConfigField("5.0.0", _GROUP_FILE, (_GROUPS, "*", "consumeMessageOrderly"), (None, False)),
    ConfigField("5.0.0", _GROUP_FILE, (_GROUPS, "*", "consumeTimeoutMinute"), (None, 15)),
    ConfigField("5.0.0", _GROUP_FILE, (_GROUPS, "*", "groupRetryPolicy"), (
        None, {}, {"type": "CUSTOMIZED"})),
    ConfigField("5.0.0", _GROUP_FILE, (_GROUPS, "*", "groupSysFlag"), (None, 0)),
    ConfigField("5.1.1", _GROUP_FILE, (_GROUPS, "*", "subscriptionDataSet")),
    ConfigField("5.1.3", _GROUP_FILE, (_GROUPS, "*", "attributes")),
    ConfigField("5.0.0", _GROUP_FILE, ("forbiddenTable",)),
    *(ConfigField("5.0.0", name, (key,), ()) for name in (
        "consumerOffset.json", "lmqConsumerOffset.json") for key in (
        "dataVersion", "groupTopicMap", "pullOffsetTable")),
    ConfigField("5.0.0", "delayOffset.json", ("dataVersion",), ()),
)
"""Fields that only newer brokers read. If ``usual`` is empty (derived fields, counters), losing the
field never matters.
"""


def release_numbers(release: str) -> tuple[int, int, int]:
    """Return the numbers of a release, for example ``(5, 1, 0)``."""
    major, minor, patch = map(int, release.split("."))
    return major, minor, patch
