"""The classes by which Spark limits the batches of a stream, and replacements for PySpark versions
that lack these classes.

PySpark 4.0 and 4.1 request the end of a batch without passing a start or a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            SupportsTriggerAvailableNow,
        )
    except ImportError:
        class ReadLimit:
            """Base class of limits."""

        class ReadAllAvailable(ReadLimit):
            """No limit."""

        class ReadMaxBytes(ReadLimit):
            """A maximum number of bytes."""

            def __init__(self, max_bytes: int) -> None:
                self.max_bytes = max_bytes

        class SupportsTriggerAvailableNow:
            """A stream that Spark notifies if a query reads only the data that is available now."""


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "SupportsTriggerAvailableNow"]
