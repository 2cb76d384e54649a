"""Which files of a log may hold messages of a time, by the first records of each file.

A store time is covered by no CRC, so one record alone is not believed: a file is left out only
when both of two records say so, and when the times of all files are in order.
"""

from __future__ import annotations

from itertools import pairwise

from rmqctl.store.files import StoreFile
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.stats import CLOCK_SKEW

_Times = tuple[int, int]


def files_of_time(log: CommitLog, since: int | None, until: int | None,
                  skew: int = CLOCK_SKEW) -> list[StoreFile]:
    """The files that may hold messages with store times of ``[since, until]`` (ms).

    Times in a file are believed to be in order up to ``skew``. All files when the times of their
    first records are not: then the broker's clock cannot be relied on.
    """
    if (since is None and until is None) or len(log.files) < 2:
        return log.files
    starts = [_times(log, file) for file in log.files]
    known = [one for one in starts if one is not None]
    if any(after[0] < before[1] - skew for before, after in pairwise(known)):
        return log.files
    kept, after = [], None
    for file, start in zip(reversed(log.files), reversed(starts), strict=True):
        late = until is not None and start is not None and start[0] > until + skew
        early = since is not None and after is not None and after[1] < since - skew
        if not late and not early:
            kept.append(file)
        after = start or after
    return kept[::-1]


def _times(log: CommitLog, file: StoreFile) -> _Times | None:
    """(least, greatest) store time of a file's first two records; None without two."""
    first = log.record_at(file.base)
    second = None if first is None else log.record_at(file.base + first.total_size)
    if first is None or second is None:
        return None
    times = first.store_timestamp, second.store_timestamp
    return min(times), max(times)
