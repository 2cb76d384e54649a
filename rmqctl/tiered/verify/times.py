"""Segment timestamps in metadata against the store times of messages (tiered.md §2, §17.3 T1).

A broker keeps the least and the greatest of what lies at byte 56 of the messages. 5.1 and 5.2 keep
the first and the last; after a crash the numbers may be of a part of the segment, or never set.
Only times beyond those of the messages contradict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rmqctl.checks.findings import Finding
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata
from rmqctl.formats.tiered.units import NEVER, UNIT_SIZE
from rmqctl.scan.frames import Array
from rmqctl.tiered.flat_file import FlatFile, Segment
from rmqctl.tiered.flat_queue import FlatQueue, QueueName
from rmqctl.tiered.verify.context import METADATA

_FAR = np.iinfo(np.int64)


@dataclass(slots=True)
class Span:
    """Least and greatest time of a segment's messages: as a broker reads it, and as it is."""

    least: int = _FAR.max
    most: int = _FAR.min
    true_least: int = _FAR.max
    true_most: int = _FAR.min
    count: int = 0

    def take(self, engine: Array, true: Array) -> None:
        self.least = min(self.least, int(engine.min()))
        self.most = max(self.most, int(engine.max()))
        self.true_least = min(self.true_least, int(true.min()))
        self.true_most = max(self.true_most, int(true.max()))
        self.count += len(engine)


class Times:
    """Collects the times of one queue, by segment of its two flat files."""

    def __init__(self, queue: FlatQueue) -> None:
        self._log: dict[int, Span] = {}
        self._rows: dict[int, Span] = {}
        bases = [one.base for one in queue.consume_queue.segments if one.usable]
        self._bases = np.array(bases, np.int64)
        self.partial: set[int] = set()
        """Segments of the commit log with bytes that are no message: they may have been one."""

    def take(self, segment: Segment, queue_offset: Array, matched: Array, engine: Array,
             true: Array) -> None:
        """Messages of one segment of the commit log; ``matched``: those a unit leads to."""
        self._log.setdefault(segment.base, Span()).take(engine, true)
        if not len(self._bases) or not matched.any():
            return
        engine, true = engine[matched], true[matched]
        at = np.searchsorted(self._bases, queue_offset[matched] * UNIT_SIZE, "right") - 1
        for one in np.unique(at[at >= 0]).tolist():
            rows = at == one
            self._rows.setdefault(int(self._bases[one]), Span()).take(engine[rows], true[rows])

    def findings(self, queue: FlatQueue, metadata: Metadata) -> Iterator[Finding]:
        """What metadata says of segments whose messages were all seen."""
        yield from self._of(queue.name, queue.commit_log, self._log, metadata)
        yield from self._of(queue.name, queue.consume_queue, self._rows, metadata)

    def _of(self, name: QueueName, flat: FlatFile, spans: dict[int, Span],
            metadata: Metadata) -> Iterator[Finding]:
        kind = flat.kind
        entries = metadata.segments[kind].get(name.path, {})
        for one in flat.segments:
            entry = entries.get(one.base)
            if entry is None or not one.usable:
                continue
            span = spans.get(one.base)
            whole = span is not None and (
                one.base not in self.partial if kind == names.COMMIT_LOG
                else span.count * UNIT_SIZE == one.usable)
            told = judge(entry.begin_timestamp, entry.end_timestamp, span if whole else None)
            if told is not None:
                yield Finding(told[0], METADATA, told[1], flat.reader.where(one.path),
                              topic=name.topic, queue_id=name.queue_id, offset=one.base)


def judge(begin: int, end: int, span: Span | None) -> tuple[str, str] | None:
    """(category, detail) for the times of a segment that has bytes; None where all is well.

    ``span`` None: the messages are not all known, so only the times themselves can be judged.
    """
    if NEVER in (begin, end):
        return "tiered-oddity", ("its times were never set in the metadata: a broker died before "
                                 "they were, and takes the segment for expired")
    if begin > end:
        return "tiered-segment-time", f"begins at {begin}, ends at {end}"
    if span is None or (begin, end) == (span.true_least, span.true_most):
        return None
    if span.true_least <= begin and end <= span.true_most:
        return "tiered-oddity", (f"metadata has the times {begin} to {end} of a part of its "
                                 f"messages, which are of {span.true_least} to {span.true_most}")
    if span.least <= begin and end <= span.most:
        return "tiered-oddity", ("its times in the metadata come from bytes of an IPv6 host: "
                                 f"the messages are of {span.true_least} to {span.true_most}")
    return "tiered-segment-time", (f"metadata has the times {begin} to {end}, the messages are of "
                                   f"{span.true_least} to {span.true_most}")
