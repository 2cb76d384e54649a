"""Open a store for writing as a broker does, or open an empty temporary store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rmqctl.broker.queue_form import require_proven
from rmqctl.broker.settings import Settings, packed, resolve
from rmqctl.engine.config.create import create_store
from rmqctl.engine.config.groups import SubscriptionGroups
from rmqctl.engine.config.topics import Topics, name_problem
from rmqctl.engine.engine import Engine
from rmqctl.errors import RefusedError
from rmqctl.ext.serve.consuming.positions import Positions
from rmqctl.ext.serve.producing.writing import Writer
from rmqctl.ext.serve.reading import PageCache
from rmqctl.ext.serve.source import LMQ_FILE, ServedStore, stat_of
from rmqctl.files.durable import publish
from rmqctl.formats.config import fastjson
from rmqctl.formats.local.properties import LMQ_PREFIX, RETRY_PREFIX
from rmqctl.parse_values import Address, now_ms
from rmqctl.store.config.config import BACKUP, FOLDER, OK, load_one
from rmqctl.store.store import Store

_SMALL: dict[str, Any] = {
    "commitlog_file_size": 64 << 20, "index_slots": 10_000, "index_max": 40_000}
"""File sizes of a temporary store, which are small so that files are quickly created."""


@contextmanager
def temporary_store(wanted: bool) -> Iterator[str | None]:
    """Yield the path of an empty temporary store with small files, and delete the store afterwards.
    If not ``wanted``, yield None.
    """
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rmqctl-serve-") as folder:
        root = os.path.join(folder, "store")
        create_store(root, Settings(**_SMALL))
        yield root


def open_writer(open_store: Callable[[], Store], flush: str | None, pages: PageCache,
                address: Address, cluster: str, folders: Iterable[str] = (),
                outside: Iterable[str] = ()) -> Writer:
    """Open a store for writing, and take its lock.

    * ``folders``: log folders that the user named
    * ``outside``: see `Engine.open`
    * ``address``: the server's address, for message ids
    * ``cluster``: the cluster's name, for messages

    Raises: StoreHeldError; StoreIOError; RefusedError if appending would damage the store;
    UnsupportedError for layouts that cannot be written.
    """
    with open_store() as store:
        store.layout.require_writable(store.root)
        require_proven(store)
        root, sizes = store.root, store.sizes
        settings = resolve(store, {
            **sizes.conf.values, "flush": flush, "commitlog_file_size": sizes.commitlog_file,
            "consumequeue_file_size": sizes.consumequeue_file, "index_slots": sizes.index_slots,
            "index_max": sizes.index_max}).settings
    settings = replace(settings, store_host=packed(address), cluster=cluster)
    engine = Engine.open(root, settings, commitlog_dirs=folders, outside=outside)
    try:
        engine.reput()
        source = ServedStore(open_store, "disk", pages, is_own=True)
        topics = Topics(root, settings, now_ms)
        topics.makes = sizes.conf.makes_topics is not False
        writer = Writer(engine, topics, SubscriptionGroups(root, settings, now_ms), source)
        writer.makes_groups = sizes.conf.makes_groups is not False
    except BaseException:
        engine.close()
        raise
    return writer


def keep_json(source: ServedStore, name: str, value: dict[str, object]) -> None:
    """Write a file of ``config/`` as a broker does: the previous file becomes the backup.

    Raises: StoreIOError; RefusedError if the existing file cannot be read, and so must not be
    overwritten.
    """
    store = source.store
    path = store.path(FOLDER, name)
    is_whole = name in source.kept and source.kept[name] == stat_of(path)
    if not is_whole:
        config = load_one(store, name)
        is_whole = config.main.state == OK
        if not is_whole and (config.main.usable or config.main.damaged):
            raise RefusedError(f"{path}: {config.main.reason}; the file is not overwritten")
    if is_whole:
        publish(path + BACKUP, store.read_small(FOLDER, name, most=1 << 28), store=store.root)
    publish(path, fastjson.build(value), store=store.root)
    source.kept[name] = stat_of(path)


def keep_positions(source: ServedStore, positions: Positions) -> None:
    """Write the consumer offsets to ``config/consumerOffset.json``. Raises: RefusedError,
    StoreIOError.

    A queue without a committed offset keeps its offset in the store, even if the server ignores the
    store's offsets. If ``lmqConsumerOffset.json`` exists, it is also written: brokers with
    ``enableLmq`` read it instead. It contains a single offset for each light group.

    Another thread may call this function with a snapshot.
    """
    table = Positions(source.offsets, positions.committed).table()
    keep_json(source, "consumerOffset.json", {"offsetTable": table})
    source.groups_that_stand = {group for group, _ in (*source.offsets, *positions.committed)}
    if source.has_light_positions:
        light = {key: max(queues.values()) for key, queues in table.items()
                 if f"@{LMQ_PREFIX}" in key}
        keep_json(source, LMQ_FILE, {"lmqOffsetTable": light, "offsetTable": {
            key: queues for key, queues in table.items() if key not in light}})


def keep_groups(writer: Writer, names: Iterable[str]) -> None:
    """Write new groups and their retry topics to the configuration, with a broker's default
    settings.
    Raises: StoreIOError, RefusedError.
    """
    topics, groups = writer.topics, writer.groups
    names = [name for name in names if name_problem(RETRY_PREFIX + name) is None]
    new = {name: groups.bean(name) for name in names if name not in groups.table}
    retries = {name: topics.bean(name, queues) for group in names
               if (name := RETRY_PREFIX + group) not in topics.table
               and (queues := writer.source.retry_queues(group)) > 0}
    if retries:
        topics.put(retries)
        for name, config in retries.items():
            writer.source.learn(name, config)
    if new:
        groups.put(new)
        writer.source.learn_groups(new)
