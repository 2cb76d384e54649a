"""Features of the installed PySpark version, to be checked before a job needs them."""

from __future__ import annotations

import re

from rmqctl.errors import UnsupportedError

JOBS = (3, 5)
"""First version of PySpark that can run the jobs `pipeline stats`, `export`, `verify` and
`rebuild`.
"""
SOURCE = (4, 0)
"""First version with Python data sources, as needed for the source `rocketmq` and `pipeline sql`.
"""
LIMITS = (4, 2)
"""First version that passes a stream's limit (`maxBytesPerTrigger`) to the source."""
COUNTS_WITHOUT_COLUMNS = (4, 1)
"""First version that counts the rows of a source without columns; 4.0 returns 0."""
TESTED = "4.0 to 4.3"


def installed() -> tuple[int, int]:
    """Return the major and the minor version of PySpark; (0, 0) if they cannot be parsed."""
    import pyspark

    match = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def has_source() -> bool:
    """Return whether this PySpark has Python data sources."""
    return installed() >= SOURCE


def require_jobs() -> None:
    """Raise UnsupportedError if PySpark is too old for jobs."""
    if installed() < JOBS:
        raise UnsupportedError(f"PySpark {_text(installed())} is too old: jobs need "
                               f"{_text(JOBS)} or newer; the local engine needs no PySpark")


def require_source() -> None:
    """Raise UnsupportedError if PySpark has no Python data sources."""
    if not has_source():
        raise UnsupportedError(f"PySpark {_text(installed())} has no Python data sources: the data "
                               f"source rocketmq and pipeline sql need PySpark {TESTED}; `rmqctl "
                               "sql` needs no Spark, and pipeline stats, export, verify and "
                               f"rebuild need {_text(JOBS)} or newer")


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
