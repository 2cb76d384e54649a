"""Plan the export of a tier. Each queue is a range with the messages that `tiered read` prints.

What `rmqctl.ext.tiered.read.messages` cannot read is reported as not exported or as damage. A
message's ``file`` is the folder of its queue's commit log. Its ``position`` is its offset in that
log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from rmqctl.export.plan import StorePlan
from rmqctl.export.tally import UNREADABLE
from rmqctl.export.task import ExportRange
from rmqctl.ext.tiered.flat_file import FlatQueue
from rmqctl.ext.tiered.read.messages import messages
from rmqctl.ext.tiered.read.select import PAGE, PAGE_BYTES
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.local import message
from rmqctl.formats.local.message import Record
from rmqctl.scan.frames import DAMAGED, Batch, Span, examine
from rmqctl.scan.tolerant import UnreadRange
from rmqctl.store.files import StoreFile
from rmqctl.store.query.select import Selection


def plan_tier(tier: Tier, wanted: Selection, broker: str | None = None) -> StorePlan:
    """Return the plan for the selected queues, in the order of `Tier.queues`. Keep the tier open
    while the plan is carried out.

    ``broker``: only queues that this broker uploaded.
    """
    planned = StorePlan(tier.name)
    planned.missing += [Span(UNREADABLE, 0, 0, reason) for reason in tier.unreadable(wanted.topic)]
    text = tier.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    for queue in tier.queues(wanted.topic, wanted.queue_id, broker):
        log = queue.commit_log
        file = StoreFile(log.folder, log.kind, 0, log.end)
        planned.files.append(file)
        planned.pieces.append(ExportRange(
            file, log.start, log.end, log.end, False, 0, len(planned.pieces), text, log.folder,
            False, 1, partial(_batches, queue)))
    return planned


def _batches(queue: FlatQueue, unread: Callable[[UnreadRange], None]) -> Iterator[Batch]:
    """Yield the messages of a queue, and a damaged span for each fault. Call ``unread`` for faults
    whose content is unknown.
    """
    name = f"{queue.name.topic}/{queue.name.queue_id}"
    records: list[Record] = []
    faults: list[Span] = []
    size = 0
    for item in messages(queue):
        if isinstance(item, Record):
            records.append(item)
            size += item.total_size
        elif item.unreadable:
            unread(UnreadRange(item.offset, item.offset, f"{name}: {item}"))
        else:
            faults.append(Span(DAMAGED, item.offset, 0, f"{name}: {item}"))
        if len(records) + len(faults) >= PAGE or size >= PAGE_BYTES:
            yield _batch(records, faults)
            records, faults, size = [], [], 0
    if records or faults:
        yield _batch(records, faults)


def _batch(records: list[Record], faults: list[Span]) -> Batch:
    raw = [message.build(record) for record in records]
    sizes = np.array([len(data) for data in raw], np.int64)
    start = np.cumsum(sizes) - sizes
    offset = np.array([record.physical_offset for record in records], np.int64)
    batch, ok = examine(np.frombuffer(b"".join(raw), np.uint8), offset - start, start)
    rejected = [Span(DAMAGED, int(at), 0, "the record contradicts its own lengths or its offset")
                for at in offset[~ok]]
    batch = batch if ok.all() else batch.select(np.flatnonzero(ok))
    batch.spans = faults + rejected
    return batch
