"""Consumequeue rows that lead to no record, told in runs instead of one by one."""

from __future__ import annotations

from collections.abc import Sequence

from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.problems import Problem, Report
from rmqctl.store.queue.rows import QueueRows


class MissingRows:
    """Collects rows without a record, queue by queue; a run that ends is reported."""

    def __init__(self, log: CommitLog, queues: Sequence[QueueRows], report: Report) -> None:
        self._log, self._queues, self._report = log, queues, report
        self._runs: dict[int, tuple[int, int, int, int, int]] = {}

    def add(self, number: int, offset: int, physical: int, size: int) -> None:
        """A row of queue ``number``; rows of one queue come in ascending order."""
        known = self._runs.get(number)
        if known is not None and offset == known[1] + 1:
            self._runs[number] = (known[0], offset, *known[2:4], known[4] + 1)
            return
        if known is not None:
            self._tell(number)
        self._runs[number] = offset, offset, physical, size, 1

    def finish(self) -> None:
        """Reports the runs still open."""
        for number in sorted(self._runs):
            self._tell(number)
        self._runs.clear()

    def _tell(self, number: int) -> None:
        first, last, physical, size, count = self._runs[number]
        queue = self._queues[number]
        rows = f"row {first} leads" if count == 1 else f"rows {first} to {last} lead"
        where = "" if count == 1 else ", the first one"
        reason = self._log.explain(physical)
        if reason == "a record is there":
            found = self._log.record_at(physical)
            reason = f"the record there has {found.total_size} bytes, not {size}" if found else ""
        self._report(Problem(
            "row", f"{queue.topic}/{queue.queue_id}: {rows} to no message{where} at physical "
            f"offset {physical}: {reason}", physical, size))
