"""A key asked of a local store and its tier: what each is asked for, and both answers together
(tiered.md §11).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqctl.formats.local.message import Record
from rmqctl.store.problems import Report
from rmqctl.store.query import lookup
from rmqctl.tiered.as_broker.router import Router, Strategy
from rmqctl.tiered.read import by_key
from rmqctl.tiered.read.by_key_files import IndexFiles


@dataclass(slots=True)
class RoutedKey:
    """``local`` and ``tier`` are the messages of each, in this order; ``answer`` what the tier's
    index had besides, None where the tier was not asked.
    """

    local: list[Record] = field(default_factory=list)
    tier: list[Record] = field(default_factory=list)
    answer: by_key.KeyAnswer | None = None
    local_false_hits: int = 0

    @property
    def records(self) -> list[Record]:
        return self.local + self.tier


def query(router: Router, files: IndexFiles, topic: str, key: str, *, begin: int = 0,
          end: int = by_key.FOR_EVER, most: int = 32, as_broker: bool = False, raw: bool = False,
          kind: lookup.KeyType | None = None, report: Report = lambda _problem: None) -> RoutedKey:
    """The messages with a key, those of the local store first.

    The tier is asked for what is missing, before the local store's first message. ``as_broker``:
    in the window 5.3.3 gives it (its end is forgotten), under every strategy, hash collisions
    included; else a message that both have is there once.
    """
    found = RoutedKey()
    strategy, earliest = router.strategy, router.local.earliest_time()
    forced = strategy is Strategy.FORCE
    if not forced and end >= earliest:
        local = lookup.by_key(router.local.view, topic, key, begin=begin, end=end, most=most,
                              raw=as_broker or raw, kind=kind, report=report)
        found.local, found.local_false_hits = local.records, local.false_hits
    left = most - len(found.local)
    if as_broker:
        if forced or (left > 0 and begin < earliest):
            found.answer = by_key.as_broker(
                router.tier, files, topic, key, begin=begin, end=end if forced else earliest,
                most=left, broker=router.broker, report=report)
            found.tier = found.answer.records
        return found
    last = end if forced or earliest < 0 else min(end, earliest - 1)
    if strategy is Strategy.DISABLE or left <= 0 or begin > last:
        return found
    found.answer = by_key.by_key(router.tier, files, topic, key, begin=begin, end=last, most=left,
                                 broker=router.broker, raw=raw, kind=kind, report=report)
    known = {(one.queue_id, one.queue_offset) for one in found.local}
    found.tier = [one for one in found.answer.records
                  if (one.queue_id, one.queue_offset) not in known]
    return found
