"""A selection read as a consumer would: pulled through a local store and its tier."""

from __future__ import annotations

from collections.abc import Iterator

from rmqctl.broker.get_message import MAX_COUNT
from rmqctl.formats.local.message import Record
from rmqctl.store.pages import Page
from rmqctl.store.problems import Problem, Report
from rmqctl.store.query.select import Selection
from rmqctl.store.queue.rows import CLOCK_SLACK, queue_ids
from rmqctl.tiered.as_broker import get_message
from rmqctl.tiered.as_broker.router import RoutedGet, Router
from rmqctl.tiered.read.select import counted, gathered

_NAMED = 10
"""Faults of a queue that are told one by one."""


def routed_queues(router: Router, topic: str) -> list[int]:
    """The queues of a topic that the local store or the tier has."""
    store = router.local.view.store
    return sorted({*queue_ids(store, "consumequeue", topic),
                   *queue_ids(store, "batchconsumequeue", topic),
                   *(one.name.queue_id for one in router.tier.queues(topic, None, router.broker))})


def routed_pages(router: Router, topic: str, wanted: Selection,
                 report: Report = lambda _problem: None) -> Iterator[Page]:
    """The selected messages, queue after queue. Who answered for which offsets is told as a note,
    offsets that nobody has as damage.
    """
    queues = [one for one in routed_queues(router, topic) if wanted.queue_id in (None, one)]

    def found() -> Iterator[Page]:
        for queue_id in queues:
            yield from gathered(_Reading(router, topic, queue_id, wanted, report).records())

    yield from counted(found(), wanted)


class _Reading:
    """One queue, pull by pull."""

    def __init__(self, router: Router, topic: str, queue_id: int, wanted: Selection,
                 report: Report) -> None:
        self.router, self.topic, self.queue_id = router, topic, queue_id
        self.wanted, self._report = wanted, report
        self.name = f"{topic}/{queue_id}"
        self._runs: list[tuple[str, int, int]] = []
        self._faults = 0
        # Who asks for few, and takes what comes, is not given more.
        plain = wanted.count is not None and not wanted.conditions()
        self._pull = min(wanted.count or 1, MAX_COUNT) if plain else MAX_COUNT

    def _start(self) -> int | None:
        start = self.wanted.from_offset
        if self.wanted.since is not None:
            found = self.router.at_time(self.topic, self.queue_id,
                                        self.wanted.since - CLOCK_SLACK)
            if found is not None:
                start = max(start or 0, found.queue_offset)
        return start

    def records(self) -> Iterator[Record]:
        until = self.wanted.until
        start = self._start()
        for at, found in self.router.pulls(self.topic, self.queue_id, start, self._pull):
            self._judge(at, found)
            for one in found.records:
                if found.side == "tier" and not at <= one.queue_offset < found.next_offset:
                    self._fault(f"the tier gives a message of queue offset {one.queue_offset} "
                                f"among those from {at} to {found.next_offset - 1}")
                    continue
                yield one
            if until is not None and found.records and all(
                    one.store_timestamp > until + CLOCK_SLACK for one in found.records):
                break
        if self._faults > _NAMED:
            self._report(Problem("damage", f"{self.name}: {self._faults - _NAMED} more answers "
                                 "were not whole"))
        for side, first, last in self._runs:
            whose = "the tier" if side == "tier" else "the local store"
            self._report(Problem("note", f"{self.name}: queue offsets {first} to {last} from "
                                 f"{whose}"))

    def _judge(self, at: int, found: RoutedGet) -> None:
        """Tells what is wrong with an answer, and remembers who gave it."""
        if found.trouble is not None:
            self._fault(f"the tier cannot answer from queue offset {at} on: {found.trouble}")
        elif found.status == get_message.TOO_SMALL and found.next_offset > found.max:
            self._fault(f"a broker takes {found.next_offset} for the first offset, because of the "
                        "first bytes of the tiered commit log, and finds nothing before it")
        elif found.status == get_message.TOO_SMALL and found.next_offset > at >= 0:
            self._gone(at, found.next_offset)
        else:
            if found.expired:
                self._gone(at, at + found.expired)
            if found.passed_over > found.expired:
                self._fault(f"of the queue offsets {at} to {found.next_offset - 1} "
                            f"{found.passed_over - found.expired} lead to no message in "
                            f"{'the tier' if found.side == 'tier' else 'the log'}")
        if found.records:
            last = found.next_offset - 1
            if self._runs and self._runs[-1][0] == found.side:
                self._runs[-1] = found.side, self._runs[-1][1], last
            else:
                self._runs.append((found.side, found.records[0].queue_offset, last))

    def _gone(self, first: int, end: int) -> None:
        """Offsets that nobody has: at the queue's beginning that is its fate, later a loss."""
        if self._runs:
            self._report(Problem("gap", f"{self.name}: queue offsets {first} to {end - 1} are in "
                                 "neither: the tier ends before the local store begins"))
        else:
            self._report(Problem("note", f"{self.name}: queue offsets {first} to {end - 1} are "
                                 "gone"))

    def _fault(self, text: str) -> None:
        self._faults += 1
        if self._faults <= _NAMED:
            self._report(Problem("damage", f"{self.name}: {text}"))
