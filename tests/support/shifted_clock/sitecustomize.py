"""Loaded by every Python process of a run under ``faketime``: see `tests.support.environment`."""

import os
import time

OFFSET = int(os.environ.get("RMQCTL_TESTING_CLOCK", "0"))
"""Seconds that the clock is ahead of the real one."""
_real = {name: getattr(time, name) for name in ("time", "time_ns", "gmtime", "localtime")}

if OFFSET:
    time.time = lambda: _real["time"]() + OFFSET
    time.time_ns = lambda: _real["time_ns"]() + OFFSET * 10**9
    time.gmtime = lambda seconds=None: _real["gmtime"](time.time() if seconds is None else seconds)
    time.localtime = lambda seconds=None: _real["localtime"](
        time.time() if seconds is None else seconds)
