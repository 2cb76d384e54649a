"""``df.write.format("rocketmq")``: a new store from a DataFrame of messages.

Tasks check and sort their rows, and write them to files in a folder next to the target. The driver
and all executors must see this folder. The commit writes the rows in order to a store in the
folder, flushes the store, and publishes it with a single rename. After a failure before the rename,
the target does not exist.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqctl.broker.settings import Settings
from rmqctl.engine.config.create import create_store, plan_store
from rmqctl.engine.engine import GROUP_BYTES, GROUP_MESSAGES, Engine
from rmqctl.engine.put import ingest
from rmqctl.engine.put.put import Message
from rmqctl.errors import RefusedError, UsageError
from rmqctl.export.staging import refuse_unseen
from rmqctl.ext.spark.source.rows import (
    RECORD,
    RECORD_SCHEMA,
    RecordRows,
    is_recorded,
    outgoing,
    put_columns,
    put_schema,
)
from rmqctl.ext.spark.source.runs import SortedRun, Spooler, merged, spool_schema
from rmqctl.files.durable import make_folders, publish_folder, remove_folder
from rmqctl.formats.local.message import decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import parse_size, parse_watermark
from rmqctl.sql.options import by_name, local, number
from rmqctl.store.inside_store import refuse_in_store

AS_RECORDED, KEEP_OFFSETS = "asRecorded", "keepQueueOffsets"
_SIZES = {"commitlogFileSize": "commitlog_file_size",
          "consumequeueFileSize": "consumequeue_file_size",
          "batchConsumequeueFileSize": "batch_consumequeue_file_size"}
_COUNTS = {"indexSlots": "index_slots", "indexMax": "index_max"}
_SWITCHES = {"appendCrc": "append_properties_crc", "lmq": "lmq",
             "multiDispatch": "multi_dispatch"}
_TEXTS = {"brokerVersion": "version", "cluster": "cluster"}
OPTIONS = ("path", AS_RECORDED, KEEP_OFFSETS, *_SIZES, *_COUNTS, *_SWITCHES, *_TEXTS,
           "diskWatermark")
"""Options for writing, with the same meanings as the options of ``rmqctl init``."""
_MAX_ROWS = 1 << 40
"""Maximum number of rows in a partition."""
STAGING = ".rmqctl-write-"
_STORE = "store"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpooledRows(WriterCommitMessage):
    """Result of a task: the runs to which it wrote its rows, and the topics with inner batches."""

    runs: tuple[SortedRun, ...]
    batch_topics: frozenset[str]


class StoreWriter(DataSourceArrowWriter):
    """A writer of the rows of a DataFrame with ``schema`` to a new store.

    ``options``: the options of the data source, with the ``path`` of the new store. Invalid
    columns, options and paths are refused before any task runs.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        given = by_name(options, OPTIONS)
        if not given.get("path"):
            raise UsageError("no path given: pass the new store with .save(PATH)")
        self._target = os.path.abspath(local(given["path"]))
        self._names = schema.fieldNames()
        asked = given.get(AS_RECORDED.lower())
        self._keep = _switch(KEEP_OFFSETS, given.get(KEEP_OFFSETS.lower(), "false"))
        self._recorded = is_recorded(
            self._names, None if asked is None else _switch(AS_RECORDED, asked))
        self._settings = settings_of(options, recorded=self._recorded)
        self._schema = spool_schema(
            RECORD_SCHEMA if self._recorded else put_schema(self._names))
        refuse_existing(self._target)
        plan_store(self._target, self._settings)
        self._staging = f"{self._target}{STAGING}{uuid.uuid4().hex}"
        # Only the driver creates it: a task that does not find it sees other files, or is too late.
        make_folders(self._staging, durable=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a partition to runs, on an executor."""
        context = TaskContext.get()
        position = (context.partitionId() if context is not None else 0) * _MAX_ROWS
        refuse_unseen(self._staging)
        spooler = Spooler(self._staging, self._schema)
        rows = RecordRows(self._names, self._settings)
        for batch in iterator:
            order = np.arange(position, position + batch.num_rows)
            position += batch.num_rows
            columns: list[pa.Array]
            if self._recorded:
                places, records = rows.columns(batch)
                columns = [pa.array(places), pa.array(order), records]
            else:
                columns = [pa.array(np.zeros(batch.num_rows, np.int64)), pa.array(order),
                           *put_columns(batch, put_schema(self._names))]
            spooler.add(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        return SpooledRows(tuple(spooler.finish()), frozenset(rows.batch_topics))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Create and publish the store, on the driver, after all tasks."""
        spooled = [message for message in messages if isinstance(message, SpooledRows)]
        make_store(self._target, self._staging,
                   [run for message in spooled for run in message.runs],
                   self._schema, self._settings, keep_queue_offsets=self._keep,
                   batch_topics=[topic for message in spooled for topic in message.batch_topics])
        remove_folder(self._staging)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """If the write failed before the store was published, remove the runs (on the driver)."""
        remove_folder(self._staging)


def refuse_existing(target: str) -> None:
    """Raise RefusedError if ``target`` exists and is not an empty folder; UsageError if it is in a
    store.
    """
    refuse_in_store(os.path.dirname(target) or os.curdir, target)
    if not os.path.lexists(target):
        return
    try:
        if not os.path.islink(target) and not os.listdir(target):
            return
    except OSError:
        pass
    raise RefusedError(f"{target} already exists: a new store needs a new path; nothing is "
                       "replaced or appended (rmqctl append adds to a store)")


# -- the store, on the driver ---------------------------------------------------------------------


def make_store(target: str, staging: str, runs: Sequence[SortedRun], schema: pa.Schema,
               settings: Settings, *, batch_topics: Iterable[str] = (),
               keep_queue_offsets: bool = False) -> int:
    """Create the store from the rows of all runs and publish it; return the number of messages.

    Rows with a column ``record`` are stored as recorded, other rows are put as new messages.
    Without ``keep_queue_offsets``, queue offsets that do not continue their queue are replaced. A
    warning contains the number of these messages.
    Raises: RefusedError for a row that the store cannot contain; StoreIOError. After an error,
    nothing is published.
    """
    refuse_existing(target)
    root = os.path.join(staging, _STORE)
    new_store = create_store(root, plan_store(root, settings).settings)
    topics = new_store.settings.batch_topics | frozenset(batch_topics)
    settings = replace(new_store.settings, batch_topics=topics)
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
        _log.warning("%s: %d messages got new queue offsets, because earlier rows of their queues "
                     "are missing", target, moved)
    if misplaced:
        _log.warning("%s: %d messages kept a queue offset that does not continue their queue",
                     target, misplaced)
    publish_folder(root, target, "publish the store as")
    return count


def _groups(batches: Iterable[pa.RecordBatch], settings: Settings) -> Iterator[list[Message]]:
    """Yield the messages in groups of the best size for the engine."""
    prepare = ingest.Preparer(settings, ingest.unique_ids())
    group: list[Message] = []
    size = 0
    for batch in batches:
        messages: Iterable[Message] = (
            map(decode, batch.column(RECORD).to_pylist()) if RECORD in batch.schema.names
            else outgoing(batch, prepare))
        for message in messages:
            group.append(message)
            size += len(message.body) if not hasattr(message, "messages") else 0
            if size >= GROUP_BYTES or len(group) >= GROUP_MESSAGES:
                yield group
                group, size = [], 0
    if group:
        yield group


# -- options --------------------------------------------------------------------------------------


def settings_of(options: Mapping[str, str], *, recorded: bool = False) -> Settings:
    """Return the settings of a new store from options of the data source. Raises: UsageError."""
    given = {name.lower(): text for name, text in options.items()}
    fields: dict[str, Any] = {}
    if recorded:
        # A record that names rows in other queues gets them.
        fields |= {"lmq": True, "multi_dispatch": True}
    for name, field in {**_SIZES, **_COUNTS, **_SWITCHES, **_TEXTS}.items():
        text = given.get(name.lower())
        if text is None:
            continue
        if name in _SWITCHES:
            fields[field] = _switch(name, text)
        else:
            fields[field] = parse_size(text) if name in _SIZES else (
                number(name, text, 0) if name in _COUNTS else text.strip())
    if (share := given.get("diskwatermark")) is not None:
        fields["disk_watermark"] = parse_watermark(share)
    settings = Settings(**fields)
    _ = settings.profile
    return settings


def _switch(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise UsageError(f"{name}={text}: expected true or false")
    return text.strip().lower() == "true"
