"""``rmqctl tiered query time``: find the queue offset for a time in a tier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqctl.commands.shared.message_options import MessageOptions
from rmqctl.commands.shared.messages import ReadFaults, not_found, rows_of, show_rows
from rmqctl.commands.shared.options import Out
from rmqctl.commands.shared.tiered_options import AsBroker, LocalOptions, TierBroker
from rmqctl.commands.shared.time_options import TierTimeQuery, time_document, time_in_words
from rmqctl.errors import FormatError, UsageError

if TYPE_CHECKING:
    from rmqctl.ext.tiered.as_broker.router import RoutedTime
    from rmqctl.ext.tiered.tier import Tier


def command(
    *,
    query: TierTimeQuery,
    as_broker: AsBroker = False,
    local: LocalOptions,
    tier: TierBroker,
    show: MessageOptions,
    out: Out,
) -> None:
    """Find the queue offset for a store time in a tier.

    Searches the whole queue by the store times of its remaining messages. --as-broker selects a
    segment by its metadata first and misreads the store time of messages with an IPv6 born host, as
    a broker does. If all messages are older, the result is the queue's end. Exit code 1 if the
    queue does not exist (or, with --messages, if nothing is found).

        rmqctl tiered query time /mnt/tier --topic orders --queue 0 --time 2024-06-21T19:53:00Z
    """
    from rmqctl.ext.tiered.as_broker.routed import routed_pages
    from rmqctl.ext.tiered.read.select import pages
    from rmqctl.store.query.select import Selection

    local.check()
    if query.like == "5.2.0" and (as_broker or local.root is not None):
        raise UsageError("--broker-version cannot be combined with --as-broker or --local")
    topic, queue, when = query.topic, query.queue, query.when(show.tz)
    projection = show.projection(out)
    faults = ReadFaults(out, show)
    with tier.open() as opened:
        missing: str | None = None
        answer = None
        try:
            # Find the queue offset for the time: in the tier, or like a broker in both stores.
            if local.root is None:
                answer = _tier_time(opened, tier.broker, query, when, as_broker)
            else:
                with local.router(out, opened, tier.broker) as router:
                    answer = router.at_time(topic, queue, when, upper=query.upper,
                                            as_broker=as_broker)
                    if query.messages and answer is not None:
                        wanted = Selection(topic, queue, answer.queue_offset, query.count)
                        pulled = routed_pages(router, topic, wanted, faults.report)
                        rows = rows_of(out, faults.judged(pulled), projection)
                        if not show_rows(out, rows, projection, show.tz, empty=""):
                            missing = f"no message at queue offset {answer.queue_offset}"
        except FormatError as error:
            missing = f"a broker fails to answer: {error}"
        # Show the messages from there on (a routed query has shown them already), or the answer.
        if answer is None:
            missing = missing or f"topic {topic} has no queue {queue}"
        elif query.messages and local.root is None:
            wanted = Selection(topic, queue, answer.queue_offset, query.count)
            in_tier = faults.judged(pages(opened, wanted, tier.broker, faults.report))
            if not show_rows(out, rows_of(out, in_tier, projection), projection, show.tz, empty=""):
                missing = f"no message at queue offset {answer.queue_offset}"
        elif not query.messages:
            side = "tier" if answer.side == "tier" else "local log"
            words = time_in_words(answer, when, show.tz, f"offset {{}} in the {side}")
            out.document(time_document(query, when, answer, as_broker=as_broker,
                                       **{"from": answer.side}), lambda page: page.pairs(words))
        if missing is not None:
            not_found(out, faults, missing)
    faults.end()


def _tier_time(tier: Tier, broker: str | None, query: TierTimeQuery, when: int,
               as_broker: bool) -> RoutedTime | None:
    from rmqctl.ext.tiered.as_broker.router import RoutedTime
    from rmqctl.ext.tiered.read import by_time

    queue = tier.queue(query.topic, query.queue, broker)
    if queue is None:
        return None
    answer = by_time.at_time(queue, when, upper=query.upper, rule=query.like)
    if as_broker:
        answer = by_time.at_offset(queue, by_time.as_broker(queue, tier.metadata, when,
                                                            upper=query.upper))
    return RoutedTime("tier", answer.queue_offset, answer.min_offset, answer.max_offset,
                      answer.record)
