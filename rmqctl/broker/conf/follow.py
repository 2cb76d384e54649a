"""A store as a broker with a given ``broker.conf`` opens it, and the effects of the settings at
startup.

A startup is predicted with a separate `Store`, which has the paths, layouts and sizes from the
``broker.conf``. The original `Store` does not change.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import field, replace
from typing import Any, Literal, NamedTuple

from rmqctl import vfs
from rmqctl.broker.conf.effective import Effective
from rmqctl.broker.conf.names import is_read, unread
from rmqctl.broker.conf.places import (
    LOG,
    ROOT,
    SELF_ID,
    Places,
    places,
)
from rmqctl.broker.versions import BrokerVersion, is_from
from rmqctl.errors import RmqctlError
from rmqctl.formats.local import batch_consume_queue, consume_queue
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Joined, Phrase
from rmqctl.store.controller import read_identity
from rmqctl.store.files import StoreFile, common_size, queue_size
from rmqctl.store.index.store_index import Index
from rmqctl.store.store import Sizes, Store

Effect = Literal["refuses", "loses", "unserved", "ignored", "differs"]
FATAL: frozenset[Effect] = frozenset({"refuses", "loses", "unserved"})
_DLEDGER, _STORE_TYPE = "enableDLegerCommitLog", "storeType"
_IDENTITY_SINCE, _MERGES_SINCE, _V2_SINCE, _ROCKSDB_SINCE = "5.1.1", "5.3.2", "5.3.2", "5.2.0"
_ROCKSDB = "defaultrocksdb"
_CONFIGURED = ("topics.json", "subscriptionGroup.json", "consumerOffset.json")


class SettingEffect(NamedTuple):
    """The effect of a setting on a startup. ``detail``: a sentence.

    ``effect`` is one of:

    - ``refuses``: the broker does not start.
    - ``loses``: the broker does not read, or deletes, existing data.
    - ``unserved``: the broker runs, but serves no client.
    - ``ignored``: the broker does not know the name.
    - ``differs``: any other effect.
    """

    setting: str
    value: str | None
    effect: Effect
    detail: Phrase

    def as_dict(self) -> dict[str, Any]:
        return {"setting": self.setting, "value": self.value, "effect": self.effect,
                "detail": str(self.detail)}


@dataclass(slots=True)
class Followed:
    """Result of `follow`.

    ``store``: the store that the broker opens; the caller closes it unless it is the original
    store.
    ``assumed``: settings that were determined without a ``broker.conf``.
    ``elsewhere``: whether the broker's root is another folder.
    ``log_unopened``: whether the broker opens none of the existing log files.
    """

    store: Store
    version: BrokerVersion
    effects: list[SettingEffect] = field(default_factory=list)
    assumed: dict[str, Any] = field(default_factory=dict)
    elsewhere: bool = False
    log_unopened: bool = False


def follow(store: Store, release: str, version: BrokerVersion) -> Followed:
    """Return the store that a broker of ``release`` opens with the configuration file of ``store``.
    Without a configuration file, this is ``store`` itself.
    """
    if not store.sizes.conf.path:
        return Followed(store, version, assumed=_assumed(store))
    return _Follower(store, release, version).followed()


def _assumed(store: Store) -> dict[str, Any]:
    """Return settings that were determined from the files of a store."""
    layout = store.layout
    assumed: dict[str, Any] = {
        ROOT: store.root, LOG: ",".join(store.log_folders),
        _DLEDGER: layout.is_dledger,
        _STORE_TYPE: "defaultRocksDB" if layout.consumequeue == "rocksdb" else "default"}
    if layout.reads("commitlog"):
        assumed["mappedFileSizeCommitLog"] = (store.sizes.commitlog_file
                                            or common_size(store.log.files))
    if layout.consumequeue != "rocksdb" and layout.reads("consumequeue"):
        assumed["mappedFileSizeConsumeQueue"] = store.sizes.consumequeue_file or queue_size(
            (queue.files for queue in store.queues.by_key.values()), consume_queue.UNIT_SIZE)
    return {name: value for name, value in assumed.items() if value is not None}


class _Follower:
    """Compares a broker's configuration file with a store."""

    def __init__(self, store: Store, release: str, version: BrokerVersion) -> None:
        self._store, self._release, self._version = store, release, version
        self._settings = Effective(store.sizes.conf, release)
        self._effects: list[SettingEffect] = []

    def followed(self) -> Followed:
        store, settings = self._store, self._settings
        where = places(settings, store.root)
        self._start()
        self._names()
        # What the broker opens: folders, layout, sizes.
        version = self._layouts()
        folders = [os.path.join(store.root, folder) for folder in where.log]
        if store.sizes.folders_given:
            folders = store.log_folders
        seen = Store(store.root, folders, self._sizes())
        if self._makes_rocksdb:
            seen.layout = replace(seen.layout, consumequeue="rocksdb")
        followed = Followed(seen, version, self._effects, elsewhere=where.elsewhere)
        if where.moved:
            followed.assumed[ROOT] = store.root
        # The effects.
        if where.elsewhere:
            self._elsewhere(where)
        followed.log_unopened = self._log(where, seen)
        if not where.elsewhere:
            self._file_sizes(seen, followed.log_unopened)
            self._identity()
        return followed

    def _tell(self, setting: str, effect: Effect, reason: Phrase) -> None:
        self._effects.append(SettingEffect(self._settings.spelled(setting),
                                        self._settings.text(setting), effect, reason))

    # -- what the broker checks first -----------------------------------------------------------

    def _start(self) -> None:
        """Report combinations of settings that make a broker exit at startup."""
        get, origin = self._settings.get, self._settings.origin
        controlled = bool(get("enableControllerMode"))
        if get("brokerRole") == "SLAVE" and get("brokerId") <= 0 and not controlled:
            self._tell("brokerId", "refuses", Phrase(
                "{setting}: a SLAVE needs a brokerId above 0, so the broker does not start",
                setting=origin("brokerId")))
        if not get(_DLEDGER):
            return
        if controlled:
            self._tell("enableControllerMode", "refuses", Phrase(
                "enableControllerMode and enableDLegerCommitLog are both true, so the broker does "
                "not start"))
        for name in ("dLegerPeers", "dLegerGroup", SELF_ID):
            value = get(name)
            if not value or (name == SELF_ID and not re.fullmatch(".[0-9]+", value)):
                self._tell(name, "refuses", Phrase(
                    "{name} is {value}, but DLedger needs a value, so the broker does not start",
                    name=name, value=Phrase("not set") if value is None else repr(value)))

    def _names(self) -> None:
        """Report names that this release does not know and therefore ignores."""
        for name, text in self._settings.conf.texts.items():
            if not is_read(name, self._release):
                self._effects.append(
                    SettingEffect(name, text, "ignored", unread(name, self._release)))

    # -- layouts ----------------------------------------------------------------------------------

    @property
    def _in_rocksdb(self) -> bool:
        return (is_from(self._release, _ROCKSDB_SINCE)
                and self._settings.get(_STORE_TYPE).casefold() == _ROCKSDB)

    @property
    def _makes_rocksdb(self) -> bool:
        """Return whether the broker creates consume queues in RocksDB although the store has
        consume queue files.
        """
        return (self._in_rocksdb and self._store.layout.consumequeue == "file"
                and any(self._store.queues.plain))

    def _layouts(self) -> BrokerVersion:
        """Return the broker's rules, adapted to the form of its consume queues. Report settings
        that do not match the store's layouts.
        """
        layout, origin = self._store.layout, self._settings.origin(_STORE_TYPE)
        if self._makes_rocksdb:
            self._tell(_STORE_TYPE, "differs", Phrase(
                "{setting}: the broker rebuilds the consume queues in RocksDB",
                setting=origin))
        elif not self._in_rocksdb and layout.consumequeue == "rocksdb":
            self._tell(_STORE_TYPE, "differs", Phrase(
                "{setting}: the broker ignores the consume queues in RocksDB and rebuilds them as "
                "files", setting=origin))
        self._configuration()
        return self._version if self._in_rocksdb else replace(self._version, rocksdb_queues=False)

    def _configuration(self) -> None:
        """Report topics, groups and offsets that are stored in a form that the broker does not
        read.
        """
        has, reads = self._store.layout.config, "json"
        setting = _STORE_TYPE
        if is_from(self._release, _V2_SINCE) and self._settings.get("configManagerVersion") == "v2":
            reads, setting = "rocksdb-v2", "configManagerVersion"
        elif self._in_rocksdb:
            reads = "rocksdb-v1"
        if has == reads or (has == "json" and reads == "rocksdb-v1"
                            and is_from(self._release, _MERGES_SINCE)):
            return
        if has == "rocksdb-v2":
            setting = "configManagerVersion"
        if has == "json" and not any(vfs.lexists(self._store.path("config", name))
                                     for name in _CONFIGURED):
            return
        self._tell(setting, "loses", Phrase(
            "{setting}: the broker does not read the topics, groups and offsets in {place}",
            setting=self._settings.origin(setting),
            place={"json": "config/*.json", "rocksdb-v2": "config/rdb"}.get(
                has, "config/ (RocksDB)")))

    # -- where the files are ----------------------------------------------------------------------

    def _elsewhere(self, where: Places) -> None:
        self._tell(ROOT, "loses", Phrase(
            "{setting}: the broker uses {folder}, not {store}, and reads no consume queue, topic "
            "or offset here", setting=self._settings.origin(ROOT),
            folder="~/store" if where.root is None else repr(where.root)
            if where.root != where.root.strip() or not where.root else where.root,
            store=self._store.root))

    def _log(self, where: Places, seen: Store) -> bool:
        """Return whether the broker opens none of the log's files. Report the files that it does
        not open.
        """
        existing = self._files_there()
        # The root also contains the checkpoint and the lock file, so it cannot be the log folder.
        root = vfs.realpath(self._store.root)
        if any(vfs.realpath(folder) == root for folder in seen.log_folders):
            self._tell(where.setting, "refuses", Phrase(
                "{setting} is the root of the store: the broker reads checkpoint and lock as log "
                "files and does not start", setting=self._settings.origin(where.setting)))
        # Compare the log files that the broker would open with the files that belong to this store.
        opened = {vfs.realpath(file.path) for file in seen.log.files}
        missing = [file for file in existing if vfs.realpath(file.path) not in opened]
        if self._settings.get(_DLEDGER) and existing and not any(file.head for file in existing):
            self._tell(_DLEDGER, "differs", Phrase(
                "{setting}: the broker closes the last log file and continues the log in {folder}",
                setting=self._settings.origin(_DLEDGER), folder=where.log[-1]))
        if not missing:
            return False
        layout, settings = self._store.layout, self._settings
        # Find the setting to name: the one whose value hides the missing files from the broker.
        is_dledger = any(file.head for file in missing)
        setting = where.setting
        if is_dledger and not settings.get(_DLEDGER):
            setting = _DLEDGER
        elif where.elsewhere and settings.text(LOG) is None:
            setting = ROOT
        origin = settings.origin(setting)
        if setting == LOG and settings.text(LOG) is None and where.root is not None:
            origin = Phrase("{name} is not set, and {release} does not derive it from {root}",
                            name=LOG, release=self._release, root=ROOT)
        folders = sorted({os.path.dirname(file.path) for file in missing})
        # The log counts as unopened if all of its files are in another root.
        if opened:
            self._tell(setting, "loses", Phrase(
                "{setting}: the broker does not open {count:,} log file, in {folders}",
                "{setting}: the broker does not open {count:,} log files, in {folders}",
                setting=origin, count=len(missing), folders=Joined(", ", folders)))
            return where.elsewhere and len(missing) == len(existing)
        # A broker without any log file deletes the consume queue files in the same root.
        gone = [folder for folder in seen.log_folders if not vfs.isdir(folder)]
        state = Phrase("does not exist") if gone else Phrase("contains no log file")
        deletes = any(self._store.queues.plain) and not where.elsewhere and (
            layout.consumequeue != "rocksdb")
        values = {"setting": origin, "folder": Joined(", ", gone or seen.log_folders),
                  "state": state}
        self._tell(setting, "loses", Phrase(
            "{setting}: the broker opens {folder}, which {state}, and deletes all consume queues",
            **values) if deletes else Phrase(
            "{setting}: the broker opens {folder}, which {state}, and does not read this log",
            **values))
        return True

    def _files_there(self) -> list[StoreFile]:
        """Return the existing files of the log; with several DLedger nodes, the files of all
        nodes.
        """
        with suppress(RmqctlError):
            return list(self._store.log.files)
        from rmqctl.store.files import log_listing
        from rmqctl.store.log_folders import nodes_below

        return [file for node in nodes_below(self._store.root)
                for file in log_listing(self._store.path(node)).files]

    # -- sizes ------------------------------------------------------------------------------------

    def _sizes(self) -> Sizes:
        """Return the file sizes that the broker uses; command options override the configuration
        file.
        """
        sizes, conf = self._store.sizes, self._store.sizes.conf
        settings = self._settings

        def of(name: str, here: int | None, read: str) -> int:
            value: int = settings.get(name)
            return here if here is not None and here != conf.values.get(read) else value

        queue = of("mappedFileSizeConsumeQueue", sizes.consumequeue_file, "consumequeue_file_size")
        kind = "defaultRocksDB" if self._in_rocksdb else "default"
        return replace(
            sizes, conf=replace(conf, store_type=kind), decided=True,
            commitlog_file=of("mappedFileSizeCommitLog", sizes.commitlog_file,
                              "commitlog_file_size"),
            consumequeue_file=consume_queue.file_size(queue) if queue > 0 else queue,
            batch_queue_file=settings.get("mapperFileSizeBatchConsumeQueue"))

    def _file_sizes(self, seen: Store, log_unopened: bool) -> None:
        """Report files whose size differs from the size that the broker expects."""
        sizes = seen.sizes
        if not log_unopened:
            self._size("mappedFileSizeCommitLog", Phrase("log"), sizes.commitlog_file,
                       common_size(seen.log.files))
        if not self._in_rocksdb:
            self._size("mappedFileSizeConsumeQueue", Phrase("consume queue"),
                       sizes.consumequeue_file, queue_size(
                           (queue.files for queue in seen.queues.by_key.values()),
                           consume_queue.UNIT_SIZE))
        if self._version.batch_queues:
            self._size("mapperFileSizeBatchConsumeQueue", Phrase("batch consume queue"),
                       sizes.batch_queue_file, queue_size(
                           (queue.files for queue in seen.queues.batch.values()),
                           batch_consume_queue.UNIT_SIZE))
        self._index_shape(seen)

    def _size(self, name: str, what: Phrase, expected: int | None, actual: int | None) -> None:
        if expected is None or actual is None or expected == actual:
            return
        self._tell(name, "refuses", Phrase(
            "{setting}: the broker expects {what} files of {expected:,} bytes, but the files have "
            "{there:,}; it does not start", setting=self._settings.origin(name), what=what,
            expected=expected, there=actual))

    def _index_shape(self, seen: Store) -> None:
        shape, _ = Index(seen, current=True).shape()
        if shape is None or not self._settings.get("messageIndexEnable"):
            return
        given = (self._store.sizes.index_slots, self._store.sizes.index_max)
        for name, has, option in zip(("maxHashSlotNum", "maxIndexNum"), shape, given, strict=True):
            expected = self._settings.get(name)
            if has not in (expected, option):
                self._tell(name, "loses", Phrase(
                    "{setting}: the broker expects {expected:,} in an index file, but the files "
                    "have {there:,}; key lookups find nothing in them",
                    setting=self._settings.origin(name), expected=expected, there=has))

    # -- controller mode --------------------------------------------------------------------------

    def _identity(self) -> None:
        """Report settings that contradict the broker's brokerIdentity file."""
        get = self._settings.get
        if not get("enableControllerMode") or not is_from(self._release, _IDENTITY_SINCE):
            return
        identity = read_identity(self._store)
        if identity is None:
            return
        for name, has in (("brokerClusterName", identity.cluster),
                          ("brokerName", identity.broker_name)):
            value = get(name)
            if value is None:
                self._tell(name, "differs", Phrase(
                    "{name} is not set: the broker uses its host name, but the file brokerIdentity "
                    "lets it register only as {identity}", name=name, identity=has))
            elif value != has:
                self._tell(name, "unserved", Phrase(
                    "{setting}, but the file brokerIdentity names {identity}: the broker never "
                    "registers with the controller and serves no client",
                    setting=self._settings.origin(name), identity=has))
