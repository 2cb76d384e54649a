"""The data source ``rocketmq``: ``spark.read.format("rocketmq").option("table", ...).load(PATH)``.

Spark pickles these objects and sends them to executors, so they contain only plain values.

Spark does not prune columns: to read only some columns, use ``.schema("topic string, ...")``. To
read fewer bytes, pass conditions as load options.

The reader accepts no filters from Spark. Spark (4.1 to 4.3) keeps accepted filters in the relation,
and a DataFrame used twice with different conditions would miss rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from rmqctl.errors import UsageError
from rmqctl.ext.spark.source import schema as spark_schema
from rmqctl.ext.spark.source.losses import refuse_damage, refuse_losses
from rmqctl.ext.spark.source.planning import plan
from rmqctl.ext.spark.versions import COUNTS_WITHOUT_COLUMNS, installed
from rmqctl.sql import schema
from rmqctl.sql.options import FOLLOWING, ReadOptions
from rmqctl.sql.reader import Piece, TableReader


class RocketMQ(DataSource):
    """The data source. Its tables are ``messages``, ``frames``, ``consumequeue`` and ``index`` of
    stores, and ``tiered_messages`` of the stores' tiers.
    """

    @classmethod
    def name(cls) -> str:
        return schema.NAME

    def schema(self) -> StructType:
        options = ReadOptions.of(self.options, FOLLOWING)
        options.stores()
        return spark_schema.default(options.table, options.body)

    def reader(self, schema: StructType) -> DataSourceReader:
        return SourceReader(ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from rmqctl.ext.spark.source.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from rmqctl.ext.spark.source.write import StoreWriter

        return StoreWriter(schema, self.options)


class Partition(InputPartition):
    """The pieces of stores that a task reads."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(pieces)
        self.pieces = pieces


class SourceReader(DataSourceReader):
    """A reader that plans partitions in the driver and reads them on executors."""

    def __init__(self, options: ReadOptions, asked: StructType) -> None:
        self.options, self.filters = options, options.filters
        self.arrow, self.names = spark_schema.asked(asked, options.table, options.body)
        if not self.names and installed() < COUNTS_WITHOUT_COLUMNS:
            raise UsageError("this PySpark cannot count rows without columns: select at least one")

    def partitions(self) -> list[InputPartition]:
        refuse_losses(self.options)
        return [Partition(pieces) for pieces in plan(self.options, self.filters)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Partition)
        options = self.options
        lost = refuse_damage if options.fail_on_loss and options.table == schema.MESSAGES else None
        reading = TableReader(options.table, self.names, self.arrow, self.filters, lost=lost)
        return reading.rows(partition.pieces)
