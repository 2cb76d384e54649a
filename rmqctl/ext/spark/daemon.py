"""Spark's Python daemon with our modules loaded before it forks its workers.

``spark.python.daemon.module``: only where the package is installed or the driver's (``local[N]``).
Workers then start without importing anything, and the collection of garbage which Spark runs
after every task has next to nothing to look at.
"""

from __future__ import annotations

import gc


def load() -> None:
    """Imports what tasks use, then sets it aside from garbage collection."""
    import numpy  # noqa: F401
    import pyarrow.compute  # noqa: F401

    import rmqctl.checks.verify.log.ranges
    import rmqctl.ext.spark.pool
    import rmqctl.ext.spark.source.tiered
    import rmqctl.scan.aggregate
    import rmqctl.scan.columns
    import rmqctl.sql.reader  # noqa: F401

    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    load()
    manager()
