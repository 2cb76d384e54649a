"""Read a local store and its tier together (tiered.md §11).

The result is either the selected messages, pulled in the way a consumer pulls them, or the messages
with a given key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from rmqctl.broker.get_message import MAX_COUNT
from rmqctl.ext.tiered.as_broker import get_message
from rmqctl.ext.tiered.as_broker.router import RoutedGet, Router, Strategy
from rmqctl.ext.tiered.read import by_key
from rmqctl.ext.tiered.read.by_key import IndexFiles
from rmqctl.ext.tiered.read.select import counted, gathered
from rmqctl.formats.local.message import Record
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.pages import Page
from rmqctl.store.problems import Problem, Report
from rmqctl.store.query import lookup
from rmqctl.store.query.select import Selection
from rmqctl.store.queue.rows import CLOCK_SLACK, queue_ids

_NAMED = 10
"""Maximum number of faults of a queue that are reported one by one."""


def routed_queues(router: Router, topic: str) -> list[int]:
    """Return the queues of a topic that are in the local store or in the tier."""
    store = router.local.view.store
    return sorted({*queue_ids(store, "consumequeue", topic),
                   *queue_ids(store, "batchconsumequeue", topic),
                   *(queue.name.queue_id for queue in router.tier.queues(topic, None,
                                                                         router.broker))})


def routed_pages(router: Router, topic: str, wanted: Selection,
                 report: Report = lambda _problem: None) -> Iterator[Page]:
    """Yield the selected messages, queue after queue. The source of each range is reported as a
    note. A range that is in neither store is reported as damage.
    """
    queues = [queue_id for queue_id in routed_queues(router, topic)
              if wanted.queue_id in (None, queue_id)]

    def pages_by_queue() -> Iterator[Page]:
        for queue_id in queues:
            yield from gathered(_QueueReader(router, topic, queue_id, wanted, report).records())

    yield from counted(pages_by_queue(), wanted)


class _QueueReader:
    """A reader of a queue that sends one pull after another."""

    def __init__(self, router: Router, topic: str, queue_id: int, wanted: Selection,
                 report: Report) -> None:
        self.router, self.topic, self.queue_id = router, topic, queue_id
        self.wanted, self._report = wanted, report
        self.name = f"{topic}/{queue_id}"
        self._runs: list[tuple[str, int, int]] = []
        self._faults = 0
        # Pull no more messages than the selection needs.
        plain = wanted.count is not None and not wanted.conditions()
        self._pull = min(wanted.count or 1, MAX_COUNT) if plain else MAX_COUNT

    def _start(self) -> int | None:
        start = self.wanted.from_offset
        if self.wanted.since is not None:
            by_time = self.router.at_time(self.topic, self.queue_id,
                                          self.wanted.since - CLOCK_SLACK)
            if by_time is not None:
                start = max(start or 0, by_time.queue_offset)
        return start

    def records(self) -> Iterator[Record]:
        until = self.wanted.until
        start = self._start()
        for offset, answer in self.router.pulls(self.topic, self.queue_id, start, self._pull):
            self._judge(offset, answer)
            for record in answer.records:
                if answer.side == "tier" and not offset <= record.queue_offset < answer.next_offset:
                    self._fault("the tier returns a message with queue offset "
                                f"{record.queue_offset} for queue offsets {offset} to "
                                f"{answer.next_offset - 1}")
                    continue
                yield record
            if until is not None and answer.records and all(
                    record.store_timestamp > until + CLOCK_SLACK for record in answer.records):
                break
        if self._faults > _NAMED:
            self._report(Problem("damage", f"{self.name}: {self._faults - _NAMED} more incomplete "
                                 "answers"))
        for side, first, last in self._runs:
            whose = "the tier" if side == "tier" else "the local store"
            self._report(Problem("note", f"{self.name}: queue offsets {first} to {last} from "
                                 f"{whose}"))

    def _judge(self, offset: int, answer: RoutedGet) -> None:
        """Report any fault in an answer, and record the source of its messages."""
        if answer.trouble is not None:
            self._fault(f"the tier cannot answer from queue offset {offset} on: {answer.trouble}")
        elif answer.status == get_message.TOO_SMALL and answer.next_offset > answer.max:
            self._fault(f"a broker computes {answer.next_offset} as the first queue offset from "
                        "the first bytes of the tiered commit log, and returns nothing before it")
        elif answer.status == get_message.TOO_SMALL and answer.next_offset > offset >= 0:
            self._gone(offset, answer.next_offset)
        else:
            if answer.expired:
                self._gone(offset, offset + answer.expired)
            if answer.passed_over > answer.expired:
                self._fault(f"{answer.passed_over - answer.expired} of the queue offsets {offset} "
                            f"to {answer.next_offset - 1} point to no message in "
                            f"{'the tier' if answer.side == 'tier' else 'the log'}")
        if answer.records:
            last = answer.next_offset - 1
            if self._runs and self._runs[-1][0] == answer.side:
                self._runs[-1] = answer.side, self._runs[-1][1], last
            else:
                self._runs.append((answer.side, answer.records[0].queue_offset, last))

    def _gone(self, first: int, end: int) -> None:
        """Report a range that is in neither store: as expired if it is at the queue's start, else
        as a gap.
        """
        if self._runs:
            self._report(Problem("gap", f"{self.name}: queue offsets {first} to {end - 1} are in "
                                 "neither store: the tier ends before the local store begins"))
        else:
            self._report(Problem("note", f"{self.name}: queue offsets {first} to {end - 1} were "
                                 "deleted"))

    def _fault(self, text: str) -> None:
        self._faults += 1
        if self._faults <= _NAMED:
            self._report(Problem("damage", f"{self.name}: {text}"))


@dataclass(slots=True)
class RoutedKey:
    """Messages with a key: ``local`` from the local store, ``tier`` from the tier. ``answer``: the
    complete answer of the tier's index; None if the tier was not asked.
    """

    local: list[Record] = field(default_factory=list)
    tier: list[Record] = field(default_factory=list)
    answer: by_key.TierKeyAnswer | None = None
    local_false_hits: int = 0

    @property
    def records(self) -> list[Record]:
        return self.local + self.tier


def routed_key(router: Router, files: IndexFiles, topic: str, key: str, *, begin: int = 0,
               end: int = by_key.FOR_EVER, most: int = 32, as_broker: bool = False,
               raw: bool = False, kind: lookup.KeyType | None = None,
               report: Report = lambda _problem: None) -> RoutedKey:
    """Return the messages with a key; messages of the local store come first.

    The tier is searched for messages older than the first message of the local store. A message
    that is in both stores is returned once.

    ``as_broker``: follow 5.3.3. This release searches the tier under every strategy, in a time
    window with an exclusive end. Its answer contains duplicates, and messages that have another key
    with the same hash.
    """
    both = RoutedKey()
    strategy, earliest = router.strategy, router.local.earliest_time()
    forced = strategy is Strategy.FORCE
    # The local store, for its part of the window.
    if not forced and end >= earliest:
        local = lookup.by_key(router.local.view, topic, key, begin=begin, end=end, most=most,
                              raw=as_broker or raw, kind=kind, report=report)
        both.local, both.local_false_hits = local.records, local.false_hits
    left = most - len(both.local)
    # The tier, as 5.3.3 asks it.
    if as_broker:
        if forced or (left > 0 and begin < earliest):
            both.answer = by_key.as_broker(
                router.tier, files, topic, key, begin=begin, end=end if forced else earliest,
                most=left, broker=router.broker, report=report)
            both.tier = both.answer.records
        return both
    # Or for messages older than the local store's first one.
    last = end if forced or earliest < 0 else min(end, earliest - 1)
    if strategy is Strategy.DISABLE or left <= 0 or begin > last:
        return both
    both.answer = by_key.by_key(router.tier, files, topic, key, begin=begin, end=last, most=left,
                                 broker=router.broker, raw=raw, kind=kind, report=report)
    known_locally = {(record.queue_id, record.queue_offset) for record in both.local}
    both.tier = [record for record in both.answer.records
                 if (record.queue_id, record.queue_offset) not in known_locally]
    return both
