"""Log files of one name in several folders (apache/rocketmq#8859).

A broker sorts the files of all folders by bare name, and takes the folders in the order of a
Java `HashSet` of their paths: which of two namesakes comes first cannot be told from the store.
By physical offset it reads the first (`MappedFileQueue.findMappedFileByOffset`), and the last is
appended to, so what only one of them holds is found or not by luck.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy as np

from rmqctl.scan.frames import Array
from rmqctl.scan.walk import Walk
from rmqctl.store.files import StoreFile
from rmqctl.store.log.commit_log import CommitLog


class Twins(NamedTuple):
    """Files of one name. ``differing``: intact messages, before the end of the log, which not
    all of them hold.
    """

    files: list[StoreFile]
    differing: int


def twins(log: CommitLog, end: int) -> list[Twins]:
    """The names that more than one file of ``log`` has. ``end``: of the log. StoreIOError."""
    found: list[Twins] = []
    for _, group in groupby(enumerate(log.files), lambda one: one[1].name):
        same = list(group)
        if len(same) > 1:
            numbers = [number for number, _ in same]
            found.append(Twins([file for _, file in same], sum(
                _only_here(log, number, numbers, end) for number in numbers)))
    return found


def _only_here(log: CommitLog, number: int, numbers: list[int], end: int) -> int:
    """Intact messages of file ``number`` that start before ``end`` and that not all of the
    files ``numbers`` hold.
    """
    count = 0
    for batch in Walk(log.source(number), 0):
        good = (batch.crc_ok() | (batch.column("body_length") <= 0)) & (batch.offset < end)
        rows = np.flatnonzero(good)
        if not len(rows):
            continue
        start, stop = batch.start[rows], (batch.start + batch.column("total_size"))[rows]
        low, high = int(start[0]), int(stop[-1])
        mine = batch.data[low:high]
        differs: Array = np.zeros(len(rows), bool)
        for other in numbers:
            source = log.source(other)
            raw = source.read(batch.base + low - source.base, high - low).ljust(high - low, b"\0")
            seen = np.append(0, np.cumsum(mine != np.frombuffer(raw, np.uint8)))
            differs |= seen[stop - low] > seen[start - low]
        count += int(differs.sum())
    return count
