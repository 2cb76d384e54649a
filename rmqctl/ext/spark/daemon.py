"""Spark's Python daemon, which loads rmqctl's modules before it forks its workers.

``spark.python.daemon.module`` is set to this module only if rmqctl is installed on the workers or
they use the driver's package (``local[N]``). Workers then start without importing anything, and the
garbage collection that Spark runs after every task takes almost no time.
"""

from __future__ import annotations

import gc


def load() -> None:
    """Import the modules that tasks use, and exempt them from garbage collection."""
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
