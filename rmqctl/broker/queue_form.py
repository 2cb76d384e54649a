"""Check whether the form of consume queues (files or RocksDB) is known in a store that lost them.

A broker of 5.2.0 or later keeps consume queues in files or in RocksDB (``storeType``), and its
configuration in the same form. In a store without queues, the configuration therefore indicates the
form. A broker would not find queues in the other form. After a clean stop, a broker would not
dispatch all messages again.
"""

from __future__ import annotations

import shlex
from typing import Literal

from rmqctl import vfs
from rmqctl.broker.release import judged
from rmqctl.broker.settings import ext_files
from rmqctl.broker.versions import version_of
from rmqctl.errors import RefusedError, UsageError
from rmqctl.store.layout import SUPERSEDED
from rmqctl.store.store import Sizes, Store

QueueForm = Literal["file", "rocksdb"]
STORE_TYPES: dict[QueueForm, str] = {"file": "default", "rocksdb": "defaultRocksDB"}
"""``storeType`` by form of the consume queues."""


def is_unproven(store: Store, version: str | None = None, *, created: bool = False) -> bool:
    """Return whether a store has no consume queues and nothing proves in which form to create them.

    ``version``: the requested release.
    ``created``: whether a repair has created the existing queue files, which therefore prove
    nothing.
    """
    if store.layout.consumequeue != "file" or _is_told(store.sizes):
        return False
    # Queues of any kind, and configuration in files, belong to a broker with files.
    if store.config.remembered or (not created and (
            store.queues.plain or store.queues.batch or any(ext_files(store)))):
        return False
    files = [f"{name}{end}" for name in SUPERSEDED for end in ("", ".bak")]
    if store.layout.config == "json" and any(
            vfs.lexists(store.path("config", name)) for name in files):
        return False
    return any(version_of(release).rocksdb_queues
               for release in judged(store, version).candidates)


def is_likely_file(store: Store) -> bool:
    """Return whether the consume queues were probably in files, the default of every release.

    Only a checkpoint that has a flush time for the log but none for the queues suggests RocksDB.
    5.3.3 writes such a checkpoint with queues in RocksDB. 5.2.0 to 5.3.2 write both times with
    either form.
    """
    checkpoint = store.checkpoint
    return (checkpoint is None or checkpoint.logics_msg_timestamp > 0
            or not checkpoint.physic_msg_timestamp)


def require_proven(store: Store) -> None:
    """Raise RefusedError if messages must not be appended to a store without consume queues.

    This is the case if the checkpoint suggests RocksDB, because the queues would be created in
    files.
    """
    if is_unproven(store) and not is_likely_file(store):
        raise RefusedError(
            f"{store.root}: there are no consume queues, and the checkpoint indicates RocksDB. A "
            "broker with RocksDB ignores consume queue files. Create the queues first: `rmqctl "
            f"recover {shlex.quote(store.root)} --consumequeue rocksdb` (or file)")


def _is_told(sizes: Sizes) -> bool:
    """Return whether an option or the configuration file determines the form of the consume queues.
    A size of queue files is such an option.
    """
    return bool(sizes.conf.path) or sizes.conf.store_type is not None or (
        sizes.consumequeue_file is not None)


def refuse_other(store: Store, form: QueueForm | None) -> None:
    """Raise UsageError if the queues of a store are not in the given form."""
    if form is None:
        return
    has = store.layout.consumequeue
    if (has == "rocksdb") != (form == "rocksdb"):
        kept = {"file": "in files", "rocksdb": "in RocksDB", "double": "in files and in RocksDB"}
        raise UsageError(f"--consumequeue {form}: the consume queues are {kept[has]}; "
                         f"`rmqctl convert {store.root} --consumequeue {form}` converts them")
