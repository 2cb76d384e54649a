"""The settings in a broker's own configuration file (``broker.conf``) that affect a store.

The file is what `BrokerStartup -c` reads: Java properties named after the fields of
`MessageStoreConfig` and `BrokerConfig`. Settings that do not affect a store's files are accepted
and ignored. The paths in the file are paths on the broker's machine. A path below
``storePathRootDir`` is looked up below the given store, which may be a copy in another folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import field
from typing import Any

from rmqctl import vfs
from rmqctl.errors import FormatError, UsageError
from rmqctl.formats.config import properties_file
from rmqctl.formats.local import delay
from rmqctl.formats.local.consume_queue import UNIT_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource

MAX_SIZE = 1 << 20
_SPLITTER = ","
"""Separator between the folders of a multi-path log (the JVM property
rocketmq.broker.multiPathSplitter).
"""
_INT_MAX = (1 << 31) - 1
TIER_METADATA = os.path.join("config", "tieredStoreMetadata.json")


@dataclass(frozen=True, slots=True)
class BrokerConf:
    """The part of a broker's configuration that affects the files of a store.

    ``values``: only the settings in the file, by their names in `rmqctl.broker.settings.Settings`.
    ``notes``: remarks on settings whose effect is easily misunderstood.
    ``path``: the path of the file; "" if no file is used.
    """

    path: str = ""
    values: dict[str, Any] = field(default_factory=dict, hash=False)
    root: str | None = None
    """The value of storePathRootDir."""
    commitlog_paths: tuple[str, ...] = ()
    """The folders of storePathCommitLog and readOnlyCommitLogStorePaths, as written in the file."""
    multi_path: bool = False
    store_type: str | None = None
    """storeType: ``default``, or ``defaultRocksDB`` for consumequeues in RocksDB (5.2.0+)."""
    double_write: bool | None = None
    """rocksdbCQDoubleWriteEnable: consumequeues in files and in RocksDB (5.3.1+)."""
    config_version: str | None = None
    """configManagerVersion: ``v2`` for topics, groups and offsets in config/rdb (5.3.2+)."""
    dledger: bool | None = None
    """enableDLegerCommitLog: whether the log is a DLedger log."""
    dledger_self_id: str | None = None
    dledger_paths: tuple[str, ...] = ()
    """storePathDLedgerCommitLog, if it is set (5.x)."""
    message_index: bool | None = None
    """messageIndexEnable: whether the broker writes index files."""
    message_index_safe: bool | None = None
    """messageIndexSafe: whether the broker also considers the index when it determines where
    recovery starts."""
    force_property_crc: bool | None = None
    """forceVerifyPropCRC: whether recovery checks appended CRCs instead of body CRCs (5.2.0+)."""
    name: str | None = None
    """The value of brokerName."""
    makes_topics: bool | None = None
    """autoCreateTopicEnable: whether the broker creates a topic when a message for it arrives."""
    makes_groups: bool | None = None
    """autoCreateSubscriptionGroup: whether the broker creates a group when a consumer connects."""
    tier: dict[str, Any] = field(default_factory=dict, hash=False)
    """The settings of tiered storage, by the names of the command options that they correspond
    to."""
    tier_path: str | None = None
    """The value of tieredStoreFilePath (5.1: tieredStoreFilepath)."""
    notes: tuple[str, ...] = ()
    texts: dict[str, str] = field(default_factory=dict, hash=False)
    """Every name in the file with its value as written; the last value if a name is repeated."""
    lines: dict[str, int] = field(default_factory=dict, hash=False)
    """For each setting: the number of the line on which it begins."""
    repeated: dict[str, list[int]] = field(default_factory=dict, hash=False)
    """For each setting that occurs more than once: the numbers of all lines that set it."""
    runtime: dict[str, Any] = field(default_factory=dict, hash=False)
    """The settings that decide what a running broker deletes or delivers, by their names in the
    file."""

    @property
    def metadata(self) -> str | None:
        """The path of the broker's tieredStoreMetadata.json below storePathRootDir; None if
        storePathRootDir is not set (spec: tiered.md §1).
        """
        return None if self.root is None else os.path.join(self.root, TIER_METADATA)

    def folders(self, root: str) -> tuple[str, ...]:
        """Return the folders of the log of a store at ``root``; () if no folder named in the file
        contains log files.

        A folder below storePathRootDir is looked up below ``root``; any other folder is used
        unchanged. The plain folders of a DLedger broker contain the log from before the broker used
        DLedger (spec: dledger.md §5).
        """
        paths = self.commitlog_paths
        if self.dledger:
            from rmqctl.store.files import DATA, NODE, listing

            own = (f"{NODE}{self.dledger_self_id}/{DATA}",) if self.dledger_self_id else ()
            data = [path for path in (self._moved(path, root)
                                      for path in self.dledger_paths or own)
                    if vfs.isdir(os.path.join(root, path))]
            plain = [path for path in (self._moved(path, root) for path in paths or ("commitlog",))
                     if listing(os.path.join(root, path)).files]
            return (*plain, *data) if data else ()
        from rmqctl.store.files import listing

        folders = tuple(path for path in (self._moved(path, root) for path in paths)
                        if vfs.isdir(os.path.join(root, path)))
        return folders if any(listing(os.path.join(root, path)).files for path in folders) else ()

    def remarks(self, root: str) -> list[str]:
        """Return remarks on how the file applies to a store at ``root``."""
        texts = [f"{self.path}: {text}" for text in self.notes]
        folders = [(path, self._moved(path, root)) for path in self.commitlog_paths]
        missing = [path for path, moved in folders if not vfs.isdir(os.path.join(root, moved))]
        if missing:
            texts.append(f"{self.path}: missing log folder{'s' if len(missing) > 1 else ''} "
                         f"{', '.join(missing)}")
        if self.root is not None and not _same(self.root, root):
            elsewhere = [path for path, moved in folders
                         if os.path.isabs(moved) and path not in missing]
            if elsewhere:
                texts.append(f"{self.path} belongs to the store {self.root}, not to {root}: "
                             f"{', '.join(elsewhere)} may also belong to the former "
                             "(--commitlog-dir names other folders)")
        return texts

    def _moved(self, path: str, root: str) -> str:
        """Return the part of ``path`` below storePathRootDir; ``path`` itself if it is outside that
        folder.
        """
        base = self.root
        if base is None:
            return path
        below = os.path.relpath(vfs.normpath(path), vfs.normpath(base))
        return path if below == ".." or below.startswith("../") else below


NO_CONF = BrokerConf()


def read_conf(path: str) -> BrokerConf:
    """Return the configuration in the file at ``path``.

    Raises: UsageError for a file that a broker could not read either, StoreIOError.
    """
    with FileSource(path) as source:
        if source.size > MAX_SIZE:
            raise UsageError(f"{path}: not a broker configuration file: {source.size:,} bytes; the "
                             f"limit is {MAX_SIZE:,}")
        data = source.read(0, source.size)
    try:
        entries = properties_file.parse(data)
    except FormatError as error:
        raise UsageError(f"{path}: {error.reason}") from None
    if b"\0" in data or not any(entry.value for entry in entries):
        raise UsageError(f"{path}: not a broker configuration file: no line NAME=VALUE")
    return _Reading(path, entries).conf()


class _Reading:
    """Builds a `BrokerConf` from the entries of a file."""

    def __init__(self, path: str, entries: list[properties_file.PropertyEntry]) -> None:
        self._path = path
        self._notes: list[str] = []
        self._texts: dict[str, str] = {}
        self._lines: dict[str, int] = {}
        self._repeated: dict[str, list[int]] = {}
        for entry in entries:
            before = self._texts.get(entry.key)
            if entry.key in _ALL_KEYS and before is not None and before != entry.value:
                self._notes.append(f"{entry.key} is set twice: line {entry.line} ({entry.value!r}) "
                                   f"counts, not {before!r}")
            if before is not None:
                self._repeated.setdefault(entry.key, [self._lines[entry.key]]).append(entry.line)
            self._texts[entry.key] = entry.value
            self._lines[entry.key] = entry.line

    def conf(self) -> BrokerConf:
        values = {name: value for key, (name, read) in _SETTINGS.items()
                  if (value := read(self, key)) is not None}
        folders = self._folders("storePathCommitLog")
        read_only = self._folders("readOnlyCommitLogStorePaths")
        return BrokerConf(
            self._path, values, self._text("storePathRootDir"),
            tuple(dict.fromkeys((*folders, *read_only))),
            _SPLITTER in (self._text("storePathCommitLog") or ""), self._text("storeType"),
            self._flag("rocksdbCQDoubleWriteEnable"), self._text("configManagerVersion"),
            self._flag("enableDLegerCommitLog"), self._text("dLegerSelfId"),
            self._folders("storePathDLedgerCommitLog"), self._flag("messageIndexEnable"),
            self._flag("messageIndexSafe"), self._flag("forceVerifyPropCRC"),
            self._text("brokerName"),
            self._flag("autoCreateTopicEnable"), self._flag("autoCreateSubscriptionGroup"),
            {name: value for key, (name, read) in _TIER_SETTINGS.items()
             if (value := read(self, key)) is not None},
            self._text("tieredStoreFilePath") or self._text("tieredStoreFilepath"),
            tuple(self._notes), self._texts, self._lines, self._repeated,
            {name: value for name, read in _RUNTIME.items()
             if (value := read(self, name)) is not None})

    def _text(self, key: str) -> str | None:
        value = self._texts.get(key, "").strip()
        return value if value and "\0" not in value else None

    def _folders(self, key: str) -> tuple[str, ...]:
        return tuple(part.strip()
                     for part in (self._text(key) or "").split(_SPLITTER) if part.strip())

    def _flag(self, key: str) -> bool | None:
        """Parse the value as `Boolean.parseBoolean` does: anything but ``true`` is false,
        including ``true`` followed by a space.
        """
        value = self._texts.get(key)
        if value is None:
            return None
        if value.lower() not in ("true", "false"):
            self._notes.append(f"{key} is {value!r}, which Java reads as false")
        return value.lower() == "true"

    def _count(self, key: str) -> int | None:
        """Return the value as `Integer.parseInt` does; None for an invalid value, for which the
        broker uses its default.
        """
        value = self._texts.get(key)
        if value is None:
            return None
        if re.fullmatch("[+-]?[0-9]+", value) and 0 < int(value[:20]) <= _INT_MAX:
            return int(value)
        self._notes.append(f"{key} is {value!r}, which Java does not read as a number (expected 1 "
                           f"to {_INT_MAX}, without a unit): a broker uses its default")
        return None

    def _integer(self, key: str) -> int | None:
        """Return the value as `Integer.parseInt` does, including values below 1."""
        value = self._texts.get(key, "")
        number = int(value[:20]) if re.fullmatch("[+-]?[0-9]+", value) else None
        if number is not None and -_INT_MAX <= number <= _INT_MAX:
            return number
        return self._count(key)  # `_count` reports why the value is invalid

    def _queue_size(self, key: str) -> int | None:
        """Return the size in bytes, rounded up to complete units as a broker does."""
        size = self._count(key)
        return None if size is None else -(-size // UNIT_SIZE) * UNIT_SIZE

    def _levels(self, key: str) -> str | None:
        value = self._text(key)
        if value is None:
            return None
        try:
            delay.parse_levels(value)
        except ValueError as error:
            self._notes.append(f"{key}: {error}")
            return None
        return value

    def _role(self, key: str) -> str | None:
        value = self._text(key)
        if value is None or value in ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"):
            return value
        self._notes.append(f"{key} is {value!r}, which is not a broker role")
        return None


_Read = Callable[[_Reading, str], Any]
_SETTINGS: dict[str, tuple[str, _Read]] = {
    "mappedFileSizeCommitLog": ("commitlog_file_size", _Reading._count),
    "mappedFileSizeConsumeQueue": ("consumequeue_file_size", _Reading._queue_size),
    "mappedFileSizeConsumeQueueExt": ("consumequeue_ext_file_size", _Reading._count),
    "mapperFileSizeBatchConsumeQueue": ("batch_consumequeue_file_size", _Reading._count),
    "maxHashSlotNum": ("index_slots", _Reading._count),
    "maxIndexNum": ("index_max", _Reading._count),
    "messageIndexEnable": ("message_index", _Reading._flag),
    "enableConsumeQueueExt": ("consumequeue_ext", _Reading._flag),
    "enableLmq": ("lmq", _Reading._flag),
    "enableMultiDispatch": ("multi_dispatch", _Reading._flag),
    "maxLmqConsumeQueueNum": ("max_lmq_queues", _Reading._count),
    "enabledAppendPropCRC": ("append_properties_crc", _Reading._flag),
    "messageDelayLevel": ("message_delay_level", _Reading._levels),
    "maxMessageSize": ("max_message_size", _Reading._count),
    "timerPrecisionMs": ("timer_precision", _Reading._count),
    "brokerClusterName": ("cluster", _Reading._text),
    "brokerRole": ("role", _Reading._role),
}
"""For each setting in the file: the name of its value in `Settings`, and the function that
parses the value as Java does."""

_TIER_SETTINGS: dict[str, tuple[str, _Read]] = {
    "brokerName": ("broker", _Reading._text),
    "brokerClusterName": ("cluster", _Reading._text),
    "tieredStoreIndexFileMaxHashSlotNum": ("index_slots", _Reading._count),
    "tieredStoreIndexFileMaxIndexNum": ("index_max", _Reading._count),
    "tieredStoreConsumeQueueMaxSize": ("consumequeue_max_size", _Reading._count),
}
"""For each setting of tiered storage: the name of the corresponding command option, and the
function that parses the value.
"""

_RUNTIME: dict[str, _Read] = {
    "fileReservedTime": _Reading._integer,
    "deleteWhen": _Reading._text,
    "diskMaxUsedSpaceRatio": _Reading._integer,
    "diskSpaceWarningLevelRatio": _Reading._integer,
    "diskSpaceCleanForciblyRatio": _Reading._integer,
    "cleanFileForciblyEnable": _Reading._flag,
    "deleteFileBatchMax": _Reading._count,
    "timerWheelEnable": _Reading._flag,
    "enableControllerMode": _Reading._flag,
    "mappedFileSizeTimerLog": _Reading._count,
}
"""For each setting in the file that goes to `BrokerConf.runtime`: the function that parses its
value as Java does."""

_ALL_KEYS = frozenset(_SETTINGS) | frozenset(_TIER_SETTINGS) | frozenset(_RUNTIME) | {
    "tieredStoreFilePath", "tieredStoreFilepath",
    "storePathRootDir", "storePathCommitLog", "readOnlyCommitLogStorePaths", "storeType",
    "rocksdbCQDoubleWriteEnable", "configManagerVersion", "enableDLegerCommitLog", "dLegerSelfId",
    "storePathDLedgerCommitLog", "messageIndexSafe", "forceVerifyPropCRC",
    "autoCreateTopicEnable", "autoCreateSubscriptionGroup"}


def _same(path: str, other: str) -> bool:
    return vfs.realpath(path) == vfs.realpath(other)
