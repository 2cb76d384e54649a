"""Read and process stores with Apache Spark. Only this package imports pyspark.

If rmqctl is installed or in PYTHONPATH, Spark finds the data source ``rocketmq`` automatically.
This does not work if the path of the Python interpreter contains a space. Without automatic
discovery, call `register`, or import this package while a session is active.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the data source ``rocketmq`` in a session; registering it again is harmless.
    Raises: UnsupportedError for a PySpark without Python data sources.
    """
    from rmqctl.ext.spark.versions import require_source

    require_source()
    from rmqctl.ext.spark.source.source import RocketMQ

    try:
        spark.dataSource.register(RocketMQ)
    except Exception as error:
        # PySpark 4.0 and 4.1 refuse a name that their own search has registered.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def _register_with_active() -> None:
    sql = sys.modules.get("pyspark.sql")  # not imported yet: then no session is active
    session_class = None if sql is None else getattr(sql, "SparkSession", None)
    active = None if session_class is None else session_class.getActiveSession()
    if active is not None:
        from rmqctl.ext.spark.versions import has_source

        if has_source():
            register(active)


_register_with_active()
