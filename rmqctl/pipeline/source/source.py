"""The data source ``rocketmq``: ``spark.read.format("rocketmq").option("table", ...).load(PATH)``.

Spark makes these objects in Python processes of its own, pickles them and reads on executors, so
they hold plain values only. It does not prune columns: who wants few of them names them with
``.schema("topic string, ...")``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from rmqctl.pipeline.source import pushdown, schema
from rmqctl.pipeline.source.options import FOLLOWING, Options
from rmqctl.pipeline.source.planning import plan
from rmqctl.pipeline.source.pushdown import Filters
from rmqctl.pipeline.source.reader import Piece, Reading

_PUSHING = "data_source_pushdown_filters.py"


class RocketMQ(DataSource):
    """Stores of RocketMQ: tables ``messages``, ``frames``, ``consumequeue``, ``index``; tiers of
    theirs: ``tiered_messages``.
    """

    @classmethod
    def name(cls) -> str:
        return schema.NAME

    def schema(self) -> StructType:
        options = Options.of(self.options, FOLLOWING)
        options.stores()
        return schema.default(options.table, options.body)

    def reader(self, schema: StructType) -> DataSourceReader:
        # A reader that takes filters is refused while spark.sql.python.filterPushdown.enabled is
        # off; who asks for the reader tells whether it is on.
        pushing = sys._getframe(1).f_code.co_filename.endswith(_PUSHING)
        return (PushingReader if pushing else Reader)(Options.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from rmqctl.pipeline.source.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rmqctl.pipeline.source.write import StoreWriter

        return StoreWriter(schema, self.options)


class Partition(InputPartition):
    """The pieces one task reads."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(pieces)
        self.pieces = pieces


class Reader(DataSourceReader):
    """Plans in the driver, reads on executors."""

    def __init__(self, options: Options, asked: StructType) -> None:
        self.options, self.filters = options, options.filters
        self.arrow, self.names = schema.asked(asked, options.table, options.body)

    def partitions(self) -> list[InputPartition]:
        return [Partition(pieces) for pieces in plan(self.options, self.filters)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Partition)
        reading = Reading(self.options.table, self.names, self.arrow, self.filters)
        return reading.rows(partition.pieces)


class PushingReader(Reader):
    """The same, with filters that Spark hands over."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        known: Iterable[str] = schema.columns(self.options.table)
        taken, left = pushdown.split(filters, known)
        self.filters: Filters = self.filters & taken
        return left
