"""What of a queue cannot be healed, or is left as it is, in words."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rmqctl.checks.verify.common import plural
from rmqctl.tiered.flat_queue import FlatQueue
from rmqctl.tiered.recover.survey import Survey
from rmqctl.tiered.recover.units import Run, Units

_MOST_RUNS = 8


def remarks(queue: FlatQueue, found: Survey, units: Units, dropped: int | None, *,
            changes: bool) -> Iterator[str]:
    """``dropped``: what lies behind it in the log is no loss."""
    where = f"{queue.name.topic}/{queue.name.queue_id}"
    for segment, base in found.misplaced:
        yield (f"{found.log.reader.where(segment.path)}: its messages say that it begins at "
               f"{base}, where there is no room for it")
    damaged = sum(one.damaged for one in found.segments)
    if damaged:
        yield (f"{where}: {damaged} bytes of the commit log are no message; they stay "
               f"(from {found.spans[0].offset} on)")
    beyond = sum(one.beyond for one in found.segments)
    if beyond:
        yield (f"{where}: {plural(beyond, 'message')} beyond the start of the next segment, where "
               "nothing can lead to them")
    if found.foreign:
        yield f"{where}: {plural(found.foreign, 'message')} of other queues in its commit log"
    if found.bad_crc:
        yield f"{where}: {plural(found.bad_crc, 'message')} with a body that does not match its CRC"
    if units.counts.unknown:
        yield (f"{where}: {plural(units.counts.unknown, 'unit')} to what is no whole message any "
               "more; they stay")
    for one, other in found.log.gaps():
        yield (f"{where}: the commit log has nothing from {one.end} to {other.base}; the messages "
               "that were there are lost")
    missing = units.missing() if changes and dropped is None else []
    for run in missing[:_MOST_RUNS]:
        yield (f"{where}: queue offsets {_span(run)} are in the commit log and get no units, "
               "because a hole lies between them and the rest")
    if len(missing) > _MOST_RUNS:
        yield f"{where}: and {len(missing) - _MOST_RUNS} more such runs"
    for left, right in pairwise(units.runs):
        yield (f"{where}: of queue offsets {_span(Run(left.end, right.start))} neither units nor "
               "messages are left; the hole stays")


def _span(run: Run) -> str:
    return str(run.start) if run.end - run.start == 1 else f"{run.start} to {run.end - 1}"
