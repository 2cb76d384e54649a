"""A new store from the rows that tasks have spooled: put by one engine, published by one rename.

Everything happens in a folder beside the target, on the same file system. As long as the rename
has not happened there is no store, afterwards it is whole and on the disk.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from rmqctl.broker.settings import Settings
from rmqctl.engine.config.create import create_store, plan_store
from rmqctl.engine.engine import GROUP_BYTES, GROUP_MESSAGES, Engine
from rmqctl.engine.put import ingest
from rmqctl.engine.put.put import Message
from rmqctl.errors import RefusedError
from rmqctl.files.durable import publish_folder
from rmqctl.formats.local.message import decode
from rmqctl.pipeline.source.rows import RECORD, outgoing
from rmqctl.pipeline.source.spool import Run, merged
from rmqctl.store.inside_store import refuse_in_store

STAGING = ".rmqctl-write-"
_STORE = "store"
_log = logging.getLogger(__name__)


def refuse_existing(target: str) -> None:
    """RefusedError unless nothing, or an empty folder, lies at ``target``; UsageError where that
    is in a store.
    """
    refuse_in_store(os.path.dirname(target) or os.curdir, target)
    if not os.path.lexists(target):
        return
    try:
        if not os.path.islink(target) and not os.listdir(target):
            return
    except OSError:
        pass
    raise RefusedError(f"{target} exists: a new store is made where nothing is, and nothing is "
                       "ever replaced or added to (rmqctl append adds to a store)")


def make(target: str, staging: str, runs: Sequence[Run], schema: pa.Schema, settings: Settings,
         *, batch_topics: Iterable[str] = (), keep_queue_offsets: bool = False) -> int:
    """Makes the store from the rows of all runs and publishes it; the number of messages.

    Rows with a column ``record`` are stored as recorded, others are put. Queue offsets that do not
    go on in their queue are made new unless ``keep_queue_offsets``; a warning counts them.
    RefusedError when the store may not take a row, StoreIOError; then nothing is published.
    """
    refuse_existing(target)
    root = os.path.join(staging, _STORE)
    made = create_store(root, plan_store(root, settings).settings)
    topics = made.settings.batch_topics | frozenset(batch_topics)
    settings = replace(made.settings, batch_topics=topics)
    count = 0
    with Engine.open(root, settings, keep_queue_offsets=keep_queue_offsets) as engine:
        for group in _groups(merged(staging, runs, schema), settings):
            results = engine.put_many(group, stop=True)
            last = results[-1]
            if not last.stored:
                topic = group[len(results) - 1].topic
                name = topic if isinstance(topic, str) else topic.decode("utf-8", "replace")
                raise RefusedError(f"a message of topic {name}: {last.reason or last.status}")
            count += len(results)
        moved, misplaced = engine.renumbered, engine.misplaced
    if moved:
        _log.warning("%s: %d messages got new queue offsets, because rows before them in their "
                     "queues are missing", target, moved)
    if misplaced:
        _log.warning("%s: %d messages kept a queue offset at which their queue does not go on",
                     target, misplaced)
    publish_folder(root, target, "publish the store as")
    return count


def _groups(batches: Iterable[pa.RecordBatch], settings: Settings) -> Iterator[list[Message]]:
    """Messages in the numbers in which the engine takes them best."""
    prepare = ingest.preparer(settings, ingest.unique_ids())
    group: list[Message] = []
    size = 0
    for batch in batches:
        found: Iterable[Message] = (
            map(decode, batch.column(RECORD).to_pylist()) if RECORD in batch.schema.names
            else outgoing(batch, prepare))
        for one in found:
            group.append(one)
            size += len(one.body) if not hasattr(one, "messages") else 0
            if size >= GROUP_BYTES or len(group) >= GROUP_MESSAGES:
                yield group
                group, size = [], 0
    if group:
        yield group
