"""Show why rmqctl's data source accepts no filters from Spark: a source of ten rows, used twice.

    python examples/pipeline/filters_kept.py

Print Spark's results and the correct ones. With Spark 4.1 to 4.3 the second result is wrong,
because Spark keeps the filter of the first query in the relation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    Filter,
    InputPartition,
    LessThan,
)


class Reader(DataSourceReader):
    """Reader of the numbers below ``end`` that accepts the filter ``v < N``."""

    end = 10

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's
        for condition in filters:
            if isinstance(condition, LessThan):
                self.end = condition.value
            else:
                yield condition

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(self.end)])


class TenRows(DataSource):
    """A table with the column ``v``: 0 to 9."""

    @classmethod
    def name(cls) -> str:
        return "ten_rows"

    def schema(self) -> str:
        return "v int"

    def reader(self, schema: object) -> Reader:
        return Reader()


os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.sql.python.filterPushdown.enabled", "true")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(TenRows)
frame = spark.read.format("ten_rows").load()
answers = frame.where("v < 3").count(), frame.count()
print(f"Spark {spark.version}: {answers[0]}, {answers[1]}; right: 3, 10")
spark.stop()
