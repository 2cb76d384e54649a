"""Forward direction for batch consumequeues: every record must have its row (consumequeue.md §9).

The other direction is `batch_rows`, which looks at each row and the record it leads to.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rmqctl.checks.findings import INFO, Finding
from rmqctl.checks.verify.common import plural
from rmqctl.checks.verify.context import Context
from rmqctl.checks.verify.queue.rows import QueueKey
from rmqctl.errors import StoreIOError
from rmqctl.store.queue.batch_queue import BatchQueue

Expected = list[tuple[int, int, int, int]]
"""(physical offset, size, base offset, count) of each record, in log order."""


def batch_forward(context: Context) -> Iterator[Finding]:
    """Records of batch topics that no row leads to: in the middle, or behind the last row."""
    for key, expected in context.result.batch_rows.items():
        queue = context.store.batch_queues.get(key)
        if queue is None or not queue.files:
            yield _finding(context, key, "cq-missing", expected, None,
                           f"{plural(len(expected), 'record')} in the log, no batch consumequeue")
            continue
        try:
            yield from _queue(context, key, queue, expected)
        except StoreIOError:
            continue  # the file check names it


def _queue(context: Context, key: QueueKey, queue: BatchQueue, expected: Expected) -> Iterator[
        Finding]:
    known = {int(place) for place in np.concatenate(
        [queue.rows_of(number)["physical_offset"] for number in range(len(queue.files))])}
    rows = queue.all_used()
    newest = int(rows["physical_offset"].max()) if len(rows) else -1
    missing = [one for one in expected if one[0] not in known]
    between = [one for one in missing if one[0] < newest]
    behind = [one for one in missing if one[0] > newest]
    if between:
        yield _finding(context, key, "cq-missing-entry", between, queue,
                       f"{plural(len(between), 'record has', 'records have')} no row, though "
                       f"later ones have; the first is at {between[0][0]}")
    if behind:
        yield _finding(context, key, "cq-behind", behind, queue,
                       f"the rows end, the log goes on: {plural(len(behind), 'record')} from "
                       f"{behind[0][0]} on without a row", INFO if context.live else "")


def _finding(context: Context, key: QueueKey, category: str, records: Expected,
             queue: BatchQueue | None, detail: str, severity: str = "") -> Finding:
    topic, queue_id = key
    file = queue.files[-1].path if queue and queue.files else context.store.path(
        "batchconsumequeue", topic, str(queue_id))
    return Finding(category, "batchconsumequeue", detail, file=file, offset=None, topic=topic,
                   queue_id=queue_id, queue_offset=records[0][2], count=len(records),
                   severity=severity)
