"""Stores read and worked on with Apache Spark. The only room that imports pyspark.

Where the package is installed, or in PYTHONPATH, Spark finds the data source ``rocketmq`` by
itself, unless the path of Python contains a space. A session that does not know it gets it by
`register`, or by importing this package while the session is active.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes the data source ``rocketmq`` known to a session; harmless when it is already."""
    from rmqctl.pipeline.source.source import RocketMQ

    spark.dataSource.register(RocketMQ)


def _register_with_active() -> None:
    sql = sys.modules.get("pyspark.sql")  # not imported yet: then no session is active
    session_class = None if sql is None else getattr(sql, "SparkSession", None)
    active = None if session_class is None else session_class.getActiveSession()
    if active is not None:
        register(active)


_register_with_active()
