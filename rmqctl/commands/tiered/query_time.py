"""``rmqctl tiered query time``: the queue offset at a time, in a tier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.shared.message_options import MessageOptions
from rmqctl.commands.shared.messages import Faults, not_found, rows_of, show_rows
from rmqctl.commands.shared.options import Out, RequiredQueue, RequiredTopic
from rmqctl.commands.shared.tiered_options import AsBroker, LocalOptions, TierBroker
from rmqctl.errors import FormatError, UsageError
from rmqctl.parse_values import parse_time

if TYPE_CHECKING:
    from rmqctl.tiered.as_broker.router import RoutedTime
    from rmqctl.tiered.tier import Tier

NAME = ("tiered", "query", "time")
EFFECT = "read-only"


def command(
    *,
    topic: RequiredTopic,
    queue: RequiredQueue,
    time: Annotated[str, typer.Option(
        "--time", metavar="TIME", help="Store time: epoch ms, ISO-8601, or relative (-2h, -7d).")],
    boundary: Annotated[Literal["lower", "upper"], typer.Option(
        "--boundary", help="lower: the first message stored then or later. upper: the last one "
        "stored exactly then; where none was, see --like.")] = "lower",
    like: Annotated[Literal["5.3.3", "5.2.0"], typer.Option(
        "--like", help="The upper boundary between two messages: the later one (5.3.3), or the "
        "earlier one (5.2.0 and local stores).")] = "5.3.3",
    messages: Annotated[bool, typer.Option(
        "--messages", help="Show the messages from that offset on instead of the offset.")] = False,
    count: Annotated[int, typer.Option(
        "--count", metavar="N", min=1, help="With --messages: how many.")] = 1,
    as_broker: AsBroker = False,
    local: LocalOptions,
    tier: TierBroker,
    show: MessageOptions,
    out: Out,
) -> None:
    """Show the queue offset at a store time in a tier.

    The whole queue is searched, by the store times of the messages that are still there. A broker
    picks a segment by its metadata first, and reads the store time of a message with an IPv6 born
    host at the wrong place: --as-broker. Where all is older, the answer is the queue's end. Exit
    code 1 when there is no such queue (or, with --messages, no message).

        rmqctl tiered query time /mnt/tier --topic orders --queue 0 --time 2024-06-21T19:53:00Z
    """
    from rmqctl.store.query.select import Selection
    from rmqctl.tiered.as_broker.routed import routed_pages
    from rmqctl.tiered.read.select import pages

    local.check()
    if like == "5.2.0" and (as_broker or local.root is not None):
        raise UsageError("--like is for the tier alone: not with --as-broker or --local")
    when, upper = parse_time(time, tz=show.tz), boundary == "upper"
    projection = show.projection(out)
    faults = Faults(out)
    with tier.open() as opened:
        missing: str | None = None
        answer = None
        try:
            if local.root is None:
                place = (topic, queue, tier.broker)
                answer = _tier_time(opened, place, when, upper, like, as_broker)
            else:
                with local.router(out, opened, tier.broker) as router:
                    answer = router.at_time(topic, queue, when, upper=upper, as_broker=as_broker)
                    if messages and answer is not None:
                        wanted = Selection(topic, queue, answer.queue_offset, count)
                        pulled = routed_pages(router, topic, wanted, faults.report)
                        rows = rows_of(faults.judged(pulled), projection)
                        if not show_rows(out, rows, projection, show.tz, empty=""):
                            missing = f"nothing is at queue offset {answer.queue_offset}"
        except FormatError as error:
            missing = f"a broker fails to answer: {error}"
        if answer is None:
            missing = missing or f"there is no queue {queue} of topic {topic}"
        elif messages and local.root is None:
            wanted = Selection(topic, queue, answer.queue_offset, count)
            found = faults.judged(pages(opened, wanted, tier.broker, faults.report))
            if not show_rows(out, rows_of(found, projection), projection, show.tz, empty=""):
                missing = f"nothing is at queue offset {answer.queue_offset}"
        elif not messages:
            known = answer
            out.document(_document(known, topic, queue, when, boundary, as_broker),
                         lambda page: page.pairs(_worded(known, when, show.tz)))
        if missing is not None:
            not_found(out, faults, missing)
    faults.end()


def _tier_time(tier: Tier, queue: tuple[str, int, str | None], when: int, upper: bool,
               like: Literal["5.3.3", "5.2.0"], as_broker: bool) -> RoutedTime | None:
    from rmqctl.tiered.as_broker.router import RoutedTime
    from rmqctl.tiered.read import by_time

    found = tier.queue(*queue)
    if found is None:
        return None
    answer = by_time.at_time(found, when, upper=upper, rule=like)
    if as_broker:
        answer = by_time.at_offset(found, by_time.as_broker(found, tier.metadata, when,
                                                            upper=upper))
    return RoutedTime("tier", answer.queue_offset, answer.min_offset, answer.max_offset,
                      answer.record)


def _document(answer: RoutedTime, topic: str, queue: int, when: int, boundary: str,
              as_broker: bool) -> dict[str, Any]:
    record = answer.record
    return {
        "queue_offset": answer.queue_offset, "topic": topic, "queue_id": queue, "time": when,
        "boundary": boundary, "as_broker": as_broker, "from": answer.side,
        "min_offset": answer.min_offset, "max_offset": answer.max_offset,
        "store_timestamp": None if record is None else record.store_timestamp,
        "physical_offset": None if record is None else record.physical_offset,
    }


def _worded(answer: RoutedTime, when: int, tz: Any) -> dict[str, str]:
    """The answer for people."""
    from rmqctl.output.units import time_text

    there = "nothing yet" if answer.queue_offset >= answer.max_offset else "no readable message"
    if answer.record is not None:
        where = "in the tier" if answer.side == "tier" else "in the local log"
        there = (f"stored {time_text(answer.record.store_timestamp, tz)}, offset "
                 f"{answer.record.physical_offset} {where}")
    return {"asked for": time_text(when, tz), "queue offset": str(answer.queue_offset),
            "there": there, "min offset": str(answer.min_offset),
            "max offset": str(answer.max_offset)}
