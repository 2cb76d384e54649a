"""Two stores compared: which messages one lacks, which are not the same, what lies around.

Compared are messages, not files: what a broker preallocated, how files are cut and what lies
behind the end of the log make no difference. ``a`` and ``b`` are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Literal

from rmqctl.checks.diff.around import (
    QueueCount,
    checkpoints,
    compare_config,
    config_differences,
    queue_differences,
)
from rmqctl.checks.diff.differences import Differences
from rmqctl.checks.diff.physical import PhysicalPass
from rmqctl.checks.diff.queue import QueuePass
from rmqctl.checks.diff.side import Side
from rmqctl.checks.verify.common import plural
from rmqctl.formats.local.message import Record, decode
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store

By = Literal["auto", "physical", "queue"]
_SAMPLE = 64
_PLACES = 3


@dataclass(frozen=True, slots=True)
class Options:
    """``whole``: what expired in one store only, and configuration, count as well.

    ``strict`` (by queue): physical offset and store host count as well. ``most``: differences
    that are kept; all are counted. ``view`` is that of `rmqctl.store.log.bounds`.
    """

    by: By = "auto"
    whole: bool = False
    strict: bool = False
    most: int = 1000
    view: str = "disk"


@dataclass(slots=True)
class Diff:
    """One comparison: `run` it, then read the results."""

    a: Store
    b: Store
    options: Options = field(default_factory=Options)
    progress: Callable[[int], None] | None = None
    differences: Differences = field(init=False)
    summary: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    _a: Side = field(init=False)
    _b: Side = field(init=False)

    def __post_init__(self) -> None:
        self.differences = Differences(self.options.most)
        self._a = Side("a", View(self.a, self.options.view))
        self._b = Side("b", View(self.b, self.options.view))

    @property
    def equal(self) -> bool:
        """Whether nothing that counts differs."""
        return not self.differences.total

    def prepare(self) -> int:
        """Decides what pairs messages; the bytes that `run` is going to read of the logs."""
        by = self.options.by
        if by == "auto":
            by = "physical" if shares_offsets(self._a, self._b) else "queue"
            if by == "queue":
                self.remarks.append("the logs do not share their physical offsets: messages are "
                                    "paired by topic, queue and queue offset")
        self.summary["by"] = by
        spans = [(side.start, side.end) for side in (self._a, self._b)]
        if by == "queue":
            return 2 * sum(end - start for start, end in spans)
        return max(end for _, end in spans) - min(start for start, _ in spans)

    def run(self) -> None:
        """Compares. StoreIOError when a file of a log cannot be read."""
        if not self.summary:
            self.prepare()
        compare = self._physical if self.summary["by"] == "physical" else self._queues
        compared = compare(self._a, self._b)
        if compared["damaged_alike"]:
            spans = plural(compared["damaged_alike"], "span")
            self.remarks.append(f"damaged alike in both: {spans}")
        count = QueueCount()
        for one in queue_differences(self._a.view, self._b.view, count, whole=self.options.whole):
            self.differences.add(one)
        config = compare_config(self.a, self.b)
        if self.options.whole:
            for one in config_differences(config):
                self.differences.add(one)
        self.summary |= {
            "a": _about(self._a), "b": _about(self._b), **compared, "queues": asdict(count),
            "config": asdict(config), "checkpoint": checkpoints(self.a, self.b)}

    # -- by physical offset -------------------------------------------------------------------

    def _physical(self, a: Side, b: Side) -> dict[str, Any]:
        start, end = max(a.start, b.start), min(a.end, b.end)
        job = PhysicalPass(a, b, self.differences, self.progress)
        outside = []
        for side, other in ((a, b), (b, a)):
            upto = min(start, side.end)
            if side.start < upto:
                count = self._head(job, side, other, upto)
                outside.append({"store": side.name, "where": "before", "from": side.start,
                                "to": upto, "messages": count})
                self.remarks.append(f"{other.name} starts at {other.start}, {side.name} has "
                                    f"{plural(count, 'message')} before, from {side.start} on")
        job.compare(end)
        for side, other in ((a, b), (b, a)):
            if side.end > max(end, start):
                at = max(side.position, start)
                count = job.rest(side, side.end, f"{other.name} ends at {other.end}")
                if count:
                    outside.append({"store": side.name, "where": "behind", "from": at,
                                    "to": side.end, "messages": count})
                    self.remarks.append(f"{other.name} ends at {other.end}, {side.name} goes on "
                                        f"to {side.end}: {plural(count, 'message')}")
        return {"compared": {"from": start, "to": max(start, end)}, "outside": outside,
                **asdict(job.tally)}

    def _head(self, job: PhysicalPass, side: Side, other: Side, upto: int) -> int:
        """What lies before the other log's beginning; how many messages."""
        if self.options.whole:
            return job.rest(side, upto, f"{other.name} starts at {other.start}")
        before = side.messages
        for _ in side.frames(upto):
            side.close_damage(side.position)
        return side.messages - before

    # -- by queue -----------------------------------------------------------------------------

    def _queues(self, a: Side, b: Side) -> dict[str, Any]:
        job = QueuePass(a, b, self.differences, strict=self.options.strict,
                        whole=self.options.whole, progress=self.progress)
        job.compare()
        tally = asdict(job.tally)
        outside = []
        for side, other in ((a, b), (b, a)):
            for where, count in tally["outside"][side.name].items():
                if count:
                    outside.append({"store": side.name, "where": where, "from": None, "to": None,
                                    "messages": count})
                    verb = "begin" if where == "before" else "end"
                    self.remarks.append(f"{side.name} has {plural(count, 'message')} {where} "
                                        f"where the queues of {other.name} {verb}")
        return {"compared": None, **tally, "outside": outside}


def _about(side: Side) -> dict[str, Any]:
    return {"store": side.store.root, "min_phy_offset": side.start, "max_phy_offset": side.end,
            "messages": side.messages, "damaged_spans": side.damaged_spans,
            "bytes_damaged": side.bytes_damaged}


def shares_offsets(a: Side, b: Side) -> bool:
    """Whether the logs hold the same messages at the same physical offsets, by a few samples.

    Logs with files of one size are taken to share them when most records of any sample agree (a
    slave may have gone its own way later), logs cut into files of other sizes only when all do.
    """
    start, end = max(a.start, b.start), min(a.end, b.end)
    if start >= end:  # nothing in common: only an empty log leaves nothing to pair by queue
        return a.start >= a.end or b.start >= b.end
    samples = []
    for number in range(_PLACES):
        for batch in islice(a.log.walk(start + (end - start) * number // _PLACES, end), 1):
            records = [decode(batch.bytes_at(index)) for index in range(min(len(batch), _SAMPLE))]
            if records:
                agreeing = sum(_is_there(b, one) for one in records)
                samples.append((agreeing, len(records)))
    if a.log.file_size == b.log.file_size:
        return any(2 * agreeing > tried for agreeing, tried in samples) or not samples
    return all(agreeing == tried for agreeing, tried in samples)


def _is_there(side: Side, record: Record) -> bool:
    other = side.log.record_at(record.physical_offset)
    return other is not None and (record.topic, record.queue_id, record.queue_offset) == (
        other.topic, other.queue_id, other.queue_offset)
