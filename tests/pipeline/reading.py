"""Reading with the data source's own code, without Spark; and with the local walk, to compare."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmqctl.ext.spark.source import schema as spark_schema
from rmqctl.ext.spark.source.planning import plan
from rmqctl.scan.columns import frame_columns, message_columns
from rmqctl.scan.walk import Walk
from rmqctl.sql import schema
from rmqctl.sql.options import ReadOptions
from rmqctl.sql.pushdown import Filters
from rmqctl.sql.reader import TableReader
from rmqctl.store import Store
from rmqctl.store.queue.unit_columns import batch_queue_batches, index_batches, queue_batches
from tests.support.arrow_rows import rows_of

Row = dict[str, Any]


def of(options: ReadOptions) -> pa.Table:
    return read(plan(options, options.filters), options.table, options.filters)


def rows(path: Path | str, table: str = "messages", **options: str) -> list[Row]:
    """The rows of a store, in the order of the partitions."""
    return rows_of(of(ReadOptions.of({"path": str(path), "table": table, **options})))


def read(parts: list[list[Any]], table: str, filters: Filters) -> pa.Table:
    arrow, names = spark_schema.asked(spark_schema.default(table), table)
    batches = [batch for part in parts
               for batch in TableReader(table, names, arrow, filters).rows(part)]
    return pa.Table.from_batches(batches, arrow)


def local(path: Path | str, table: str, folders: tuple[str, ...] = ()) -> list[Row]:
    """The same rows by the local readers: one walk over each whole file, each file of rows."""
    kinds = schema.columns(table)
    place = ("store", "file") if table in schema.LOG_TABLES else schema.OF_FILE
    names = [name for name in kinds if name not in schema.ONLY_ASKED and name not in place]
    rows: list[Row] = []
    root = Path(path)
    with Store.open(path, folders) as store:

        def add(file: Any, batch: pa.RecordBatch, **more: Any) -> None:
            columns = {"store": str(root), "file": _relative(file.path, root), **more}
            rows.extend({name: (columns | row)[name] for name in kinds
                         if name not in schema.ONLY_ASKED} for row in rows_of(batch))

        if table in schema.LOG_TABLES:
            for file in store.log.files:
                with file.open() as source:
                    for batch in Walk(source):
                        add(file, message_columns(batch, names) if table == "messages"
                            else frame_columns(batch, names, file.base))
        elif table == "index":
            for file in store.index.listing.files:
                with closing(store.index.open(file)) as index:
                    shape = index.shape
                for batch in index_batches(file, names, shape=shape):
                    add(file, batch)
        else:
            for queues, batches in ((store.queues.by_key, queue_batches),
                                    (store.queues.batch, batch_queue_batches)):
                for (topic, queue_id), queue in queues.items():
                    for file in queue.files:
                        for batch in batches(file, names):
                            add(file, batch, topic=topic, queue_id=queue_id)
    return rows


def _relative(path: str, root: Path) -> str:
    return str(Path(path).relative_to(root))
