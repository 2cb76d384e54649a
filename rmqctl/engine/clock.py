"""The system's clock in a broker's unit."""

from __future__ import annotations

import time


def now_ms() -> int:
    """The wall clock in milliseconds."""
    return time.time_ns() // 1_000_000
