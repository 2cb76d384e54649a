"""Checks whether a broker can load a store at all (spec: recovery.md §2): names and sizes of files,
unexpected folders, unreadable configuration.
"""

from __future__ import annotations

import os
import stat
from dataclasses import field

from rmqctl import vfs
from rmqctl.actions import Action
from rmqctl.broker.consume_queue import batch_topics, rocksdb_of
from rmqctl.broker.settings import Settings
from rmqctl.broker.versions import BrokerVersion
from rmqctl.checks.verify.context import known_topics
from rmqctl.checks.verify.queue.ext_units import FOLDER
from rmqctl.errors import StoreIOError
from rmqctl.formats import dledger
from rmqctl.formats.config.epoch import stops_broker
from rmqctl.formats.local import batch_consume_queue
from rmqctl.formats.local import consume_queue as layout
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase
from rmqctl.store.config.config import load_shared
from rmqctl.store.controller import MAX_FILE_SIZE, read_epochs
from rmqctl.store.files import StoreFile, Trouble, listing, queue_size
from rmqctl.store.layout import SUPERSEDED
from rmqctl.store.store import Store

_CONFIG = ("topics.json", "consumerOffset.json", "subscriptionGroup.json", "consumerFilter.json",
           "delayOffset.json")
_SINCE_5 = ("topicQueueMapping.json", "consumerOrderInfo.json", "timermetrics")
"""Additional files that a 5.x broker loads; the broker does not start if it cannot decode them."""
QUEUES = "consumequeue"
_FIVE = 5
_EXTENSION_FILE = Settings().consumequeue_ext_file_size
"""Size in bytes of an extension file, if the configuration file does not set a size."""
REFUSE = "refuse to start"
DELETE = "delete"


@dataclass(slots=True)
class Load:
    """Results of loading.

    ``refusals``: reasons why the broker does not start.
    ``emptied``: empty files that brokers of 5.1.3 or later delete.
    ``wrong_size``: whether a file of the wrong size was found.
    ``folders``: whether a folder was found among the files.
    """

    refusals: list[Action] = field(default_factory=list)
    emptied: list[StoreFile] = field(default_factory=list)
    wrong_size: bool = False
    folders: bool = False

    def refuse(self, target: str, reason: str) -> None:
        self.refusals.append(Action(REFUSE, target, None, None, reason))


def load(store: Store, version: BrokerVersion) -> Load:
    """Return everything that keeps a broker from starting.

    Of data files, only names and sizes are read. Consume queues in an unsupported format are
    reported only if their database is damaged.
    """
    loading = Load()
    _config(store, version, loading)
    _epochs(store, version, loading)
    _log(store, version, loading)
    if not store.layout.reads(QUEUES):
        if QUEUES in store.layout.damaged and version.rocksdb_queues:
            loading.refuse(QUEUES, store.layout.unread[QUEUES])
        return loading
    expected = queue_file_size(store)
    in_rocksdb = rocksdb_of(store, version)
    if in_rocksdb is not None and in_rocksdb.why_no_checkpoint:
        loading.refuse(QUEUES, in_rocksdb.why_no_checkpoint)
    for queue in () if in_rocksdb is not None else store.queues.plain.values():
        _folder(store, version, loading, queue.folder, queue.files, queue.troubles, expected)
    if in_rocksdb is None:
        _extensions(store, version, loading)
    if version.generation >= 5:
        size = store.sizes.batch_queue_file or queue_size(
            (batch.files for batch in store.queues.batch.values()), batch_consume_queue.UNIT_SIZE)
        for batch in store.queues.batch.values():
            _folder(store, version, loading, batch.folder, batch.files, batch.troubles, size)
        _batch_types(store, loading)
    return loading


def _extensions(store: Store, version: BrokerVersion, loading: Load) -> None:
    """Check consumequeue_ext, which a broker loads with its queues if enableConsumeQueueExt is set.
    If the configuration file is missing, the option counts as set if the folder exists.
    """
    conf = store.sizes.conf.values
    if store.sizes.conf.path and not conf.get("consumequeue_ext"):
        return
    parts = [(folder, listing(folder)) for topic, queue in store.queues.plain
             if vfs.isdir(folder := store.path(FOLDER, topic, str(queue)))] if (
                 vfs.isdir(store.path(FOLDER))) else []
    expected = (conf.get("consumequeue_ext_file_size", _EXTENSION_FILE)
                if store.sizes.conf.path else
                queue_size((files.files for _, files in parts), 1))
    for folder, files in parts:
        _folder(store, version, loading, folder, files.files, files.troubles, expected)


def relative(store: Store, path: str) -> str:
    """Return a path as plans show it: relative to the store's root if it is inside the root, else
    absolute.
    """
    below = vfs.relpath(path, store.root)
    return vfs.abspath(path) if below.startswith(os.pardir) else below


def queue_file_size(store: Store) -> int | None:
    """Return the size of a broker's consume queue files in bytes; None if unknown."""
    size = store.sizes.consumequeue_file or store.config.remembered.get("consumequeue_file_size")
    return layout.file_size(size) if size else queue_size(
        (queue.files for queue in store.queues.by_key.values()), layout.UNIT_SIZE)


def _config(store: Store, version: BrokerVersion, loading: Load) -> None:
    for name in (*_CONFIG, *(_SINCE_5 if version.generation >= _FIVE else ())):
        part = store.config.parts.get(name)
        if part is not None and part.value is None and not part.missing:
            loading.refuse(part.folder, part.reason)
        if name in SUPERSEDED and store.layout.config != "json":
            continue  # nobody reads it
        try:
            config = load_shared(store, name)
        except StoreIOError as error:
            loading.refuse(f"config/{name}", str(error))
            continue
        if config.stops_broker:
            loading.refuse(f"config/{name}", Phrase("neither it nor its backup can be decoded"))


def _epochs(store: Store, version: BrokerVersion, loading: Load) -> None:
    """Check the epoch file of the controller mode: a broker that cannot read it does not start.
    Without a configuration file, the store's files show whether the controller mode is on.
    """
    conf = store.sizes.conf
    if version.generation < _FIVE or not store.layout.controller or (
            conf.path and not conf.runtime.get("enableControllerMode")):
        return
    for copy in read_epochs(store).copies:
        if copy.epochs:
            return  # the first copy with epochs counts
        try:
            data = store.read_small(copy.name, most=MAX_FILE_SIZE)
        except StoreIOError:
            continue
        reason = stops_broker(data)
        if reason is not None:
            loading.refuse(copy.name, Phrase(
                "{reason}: causes a NumberFormatException at startup, and .bak is not read",
                reason=reason))
            return


def _log(store: Store, version: BrokerVersion, loading: Load) -> None:
    every = [listing(folder) for folder in store.log_folders]
    names = [name for folder_listing in every for name in (
        *folder_listing.folders, *(file.name for file in folder_listing.files),
        *(os.path.basename(odd.path) for odd in folder_listing.troubles))]
    last = max(names, default="")
    for folder, folder_listing in zip(store.log_folders, every, strict=True):
        if not version.skips_folders:
            for name in folder_listing.folders:
                loading.folders = True
                loading.refuse(relative(store, os.path.join(folder, name)),
                               Phrase("a folder among the files of the log"))
        for odd in folder_listing.troubles:
            _odd(store, version, loading, odd, last)
    strays = {trouble.path for trouble in store.log_troubles if trouble.stray}
    for file in (*store.log.files, *(file for folder_listing in every
                                     for file in folder_listing.files if file.path in strays)):
        _size(store, version, loading, file, store.log.file_size,
              file.name == last and not file.head)
    for node in store.nodes:  # DLedger ends the broker if a file has another size
        for file in node.index_listing.files:
            _size(store, version, loading, file, dledger.INDEX_FILE_SIZE, False)


def _folder(store: Store, version: BrokerVersion, loading: Load, folder: str,
            files: list[StoreFile],
            troubles: list[Trouble], expected: int | None) -> None:
    inner = store.queues.listed(folder).folders
    last = max((*inner, *(file.name for file in files),
                *(os.path.basename(odd.path) for odd in troubles)), default="")
    for odd in troubles:
        _odd(store, version, loading, odd, last)
    if not version.skips_folders:
        for name in inner:
            loading.folders = True
            loading.refuse(relative(store, os.path.join(folder, name)),
                           Phrase("a folder among the files of a queue"))
    for file in files:
        _size(store, version, loading, file, expected, file.name == last)


def _odd(store: Store, version: BrokerVersion, loading: Load, odd: Trouble, last: str) -> None:
    """Process a file that does not fit the sequence. Some brokers delete such a file if it is last
    and empty.
    """
    name = os.path.basename(odd.path)
    if version.deletes_empty_last and not odd.unreadable and name == last and _is_empty(odd.path):
        loading.emptied.append(StoreFile(odd.path, name, -1, 0))
    else:
        loading.refuse(relative(store, odd.path), odd.reason)


def _is_empty(path: str) -> bool:
    """Return whether a broker regards a file as empty. The broker checks only the length of the
    file and that it is not a folder.
    """
    try:
        info = vfs.stat(path)
    except OSError:
        return False
    return not stat.S_ISDIR(info.st_mode) and not info.st_size


def _size(store: Store, version: BrokerVersion, loading: Load, file: StoreFile,
          expected: int | None,
          last: bool) -> None:
    if not file.size and last and version.deletes_empty_last:
        loading.emptied.append(file)
    elif expected is not None and file.length != expected:
        loading.wrong_size = True
        loading.refuse(relative(store, file.path),
                       Phrase(
                           "it has {size} bytes, expected {expected}", size=file.length,
                           expected=expected))


def _batch_types(store: Store, loading: Load) -> None:
    """Check (5.x) that the folder of each queue is of the type (batch or plain) that the topic's
    configuration requires.
    """
    if known_topics(store) is None:
        return
    batch = batch_topics(store)
    for topic in sorted({topic for topic, _ in store.queues.batch} - batch):
        loading.refuse(f"batchconsumequeue/{topic}", Phrase(
            "topic {topic} is not configured, or has plain queues; `rmqctl topic create` with "
            "--attribute queue.type=BatchCQ corrects that", topic=topic))
    for topic in sorted({topic for topic, _ in store.queues.by_key} & batch):
        loading.refuse(f"consumequeue/{topic}", Phrase(
            "topic {topic} is configured with queue.type=BatchCQ; `rmqctl topic create` with "
            "--attribute queue.type=SimpleCQ corrects that", topic=topic))
