"""Plan the export of a tier: each segment of a queue's commit log is a range.

Only messages that a unit of the consume queue points to are exported, as in `tiered read` and
`tiered stats`: after a failed upload, a broker writes messages again, so a commit log may contain a
message twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from rmqctl.errors import StoreIOError
from rmqctl.export.plan import StorePlan
from rmqctl.export.tally import GAP, UNREADABLE
from rmqctl.export.task import ExportRange
from rmqctl.ext.tiered.flat_file import FlatQueue, Segment
from rmqctl.ext.tiered.slots import SegmentSlots
from rmqctl.ext.tiered.tier import Tier
from rmqctl.ext.tiered.verify.units import TierUnits
from rmqctl.formats.tiered.units import CODA_SIZE, is_coda
from rmqctl.scan.frames import Batch, Span
from rmqctl.scan.tolerant import UnreadRange
from rmqctl.store.files import StoreFile
from rmqctl.store.query.select import Selection


def plan_tier(tier: Tier, wanted: Selection, broker: str | None = None) -> StorePlan:
    """Return the plan for the selected queues, in the order of `Tier.queues`. The tier must stay
    open while the plan is carried out. ``broker``: only what this broker uploaded.
    """
    planned = StorePlan(tier.name)
    planned.missing += [Span(UNREADABLE, 0, 0, reason) for reason in tier.unreadable(wanted.topic)]
    text = tier.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    for queue in tier.queues(wanted.topic, wanted.queue_id, broker):
        planned.missing += [
            Span(GAP, before.end, after.base - before.end,
                 f"{queue.name.topic}/{queue.name.queue_id}: no segment contains these bytes")
            for before, after in queue.commit_log.gaps()]
        for segment in queue.commit_log.segments:
            if not segment.usable:
                continue
            file = StoreFile(segment.path, segment.name, segment.base, segment.size)
            planned.files.append(file)
            planned.pieces.append(ExportRange(
                file, 0, segment.usable, segment.usable, False, 0, len(planned.pieces), text,
                segment.path, False, 1, partial(_batches, queue, segment)))
    if len(planned.pieces) == 1:
        planned.pieces[0] = replace(planned.pieces[0], alone=True)
    return planned


def _batches(queue: FlatQueue, segment: Segment,
             unread: Callable[[UnreadRange], None]) -> Iterator[Batch]:
    """Yield the messages of a segment that units point to, and the damaged spans of the segment.
    Call ``unread`` with the bytes that cannot be read.
    """
    position = 0
    try:
        units = TierUnits(queue)
        units.find_tears()
        slots = SegmentSlots(queue.commit_log, queue.name)
        with queue.commit_log.walk(segment, cut=True) as walk:
            for batch in slots.batches(walk):
                position = walk.position
                spans = [named for span in batch.spans if (named := _fault(queue, span))]
                pointed_to = batch.select(np.flatnonzero(units.of(batch)[1])) if len(batch) else (
                    batch)
                pointed_to.spans = spans
                yield pointed_to
    except StoreIOError as error:
        unread(UnreadRange(position, segment.usable, str(error)))


def _fault(queue: FlatQueue, span: Span) -> Span | None:
    """Add the queue to the reason of a span, and remove a coda from the span's start (brokers up to
    5.2 end each file with a coda). Return the new span; None if the span contains only a coda.
    """
    start, length = span.offset, span.length
    if length >= CODA_SIZE and is_coda(queue.commit_log.read(start, CODA_SIZE)):
        start, length = start + CODA_SIZE, length - CODA_SIZE
    reason = span.reason or "zeroed range in the log"
    return replace(span, offset=start, length=length,
                   reason=f"{queue.name.topic}/{queue.name.queue_id}: {reason}") if length else None
