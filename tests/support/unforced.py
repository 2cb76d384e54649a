"""Nothing is forced to the disk while tests run: it waits a millisecond and more each time.

What is forced, and when, is told by the calls, which tests record, make fail, or count for what a
power failure leaves (`tests.support.deaths`). Processes with an interpreter of their own do force.
"""

from __future__ import annotations

import os
from typing import Any

CALLS = ("fsync", "fdatasync")


def forced(file: Any) -> None:
    """As the system's call: OSError for what is not open."""
    os.fstat(file if isinstance(file, int) else file.fileno())


def install() -> None:
    for name in CALLS:
        setattr(os, name, forced)
