"""rmqctl: inspect, verify, repair and serve Apache RocketMQ store directories without a broker.

``rmqctl.open(path)`` opens a store for a Python program (`rmqctl.api`, docs/reference/python.md).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqctl.api import open as open  # noqa: A004

# The one place the version is written; the build back end reads it from here. A constant costs
# nothing at start, whereas importlib.metadata alone takes a third of the time of `rmqctl --help`.
__version__ = "1.0.0"

# Spark's workers have the package in an archive that they name relative to a folder which they
# leave, so later imports must still find it.
__path__ = [os.path.abspath(folder) for folder in __path__]


def __getattr__(name: str) -> Any:
    """Load the entry point for Python programs when it is first used; the command line does not
    need it.
    """
    if name == "open":
        from rmqctl.api import open as opened

        return opened
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
