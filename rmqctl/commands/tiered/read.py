"""``rmqctl tiered read``: print the messages of a tier, optionally with the local store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.message_options import MessageOptions, SelectOptions
from rmqctl.commands.shared.messages import ReadFaults, rows_of, show_rows
from rmqctl.commands.shared.options import Out
from rmqctl.commands.shared.tiered_options import LocalOptions, TierBroker
from rmqctl.errors import UsageError

if TYPE_CHECKING:
    from rmqctl.ext.tiered.tier import Tier
    from rmqctl.output import Output


def command(
    *,
    select: Annotated[SelectOptions, pick(
        "topic queue from_offset count since until tag key where")],
    local: LocalOptions,
    tier: TierBroker,
    show: MessageOptions,
    out: Out,
) -> None:
    """Print the messages of a tier through its consume queues, queue by queue.

    physical_offset is the offset in the queue's own tiered commit log. Damage is reported on stderr
    and skipped, with exit code 1. With --local and --topic, messages are pulled as a broker with
    both stores serves them; stderr says which store had which offsets.

        rmqctl tiered read /mnt/tier --topic orders --queue 0 --offset 1200 --limit 10
        rmqctl tiered read /mnt/tier --topic orders --local /data/store --strategy not-in-disk
    """
    from rmqctl.ext.tiered.as_broker.routed import routed_pages, routed_queues
    from rmqctl.ext.tiered.read.select import pages, unreadable

    topic, queue, from_offset, broker = (select.topic, select.queue, select.from_offset,
                                         tier.broker)
    # Queue offsets have a meaning only within one queue.
    if topic is None and (
            queue is not None or from_offset is not None or local.root is not None):
        raise UsageError("--queue, --offset and --local require --topic")
    if from_offset is not None and queue is None:
        raise UsageError("--offset requires --queue")
    local.check()
    # Resolve the options before the tier is opened.
    projection = show.projection(out)
    wanted = select.selection(show.tz, show.decoding)
    faults = ReadFaults(out, show)
    with tier.open() as opened:
        # With a local store, read as a broker with the local log and the tier.
        if local.root is not None and topic is not None:
            unreadable(opened, topic, faults.report)
            with local.router(out, opened, tier.broker) as router:
                found_pages = faults.judged(routed_pages(router, topic, wanted, faults.report))
                shown = show_rows(out, rows_of(out, found_pages, projection), projection, show.tz,
                                  empty="")
                queue_ids = routed_queues(router, topic)
            if not shown:
                out.note("no messages" if queue_ids and queue in (None, *queue_ids) else
                         f"neither the tier nor the store contains {_named(topic, queue)}")
        else:
            # From the tier alone, read the chosen queues one after another.
            chosen = list(opened.queues(topic, queue, broker))
            _say_offset(out, opened, wanted.from_offset, topic, queue, broker)
            size = sum(segment.usable for flat_queue in chosen
                       for segment in flat_queue.commit_log.segments)
            with out.progress("reading the tier", size) as progress:
                rows = rows_of(out, faults.judged(pages(opened, wanted, broker, faults.report,
                                                   progress.advance)), projection)
                shown = show_rows(out, rows, projection, show.tz, empty="")
            if not shown:
                out.note("no messages" if chosen else _missing(opened, topic, queue, broker))
    faults.end()


def _named(topic: str | None, queue: int | None) -> str:
    return f"topic {topic}" if queue is None else f"queue {queue} of topic {topic}"


def _missing(tier: Tier, topic: str | None, queue: int | None, broker: str | None) -> str:
    from rmqctl.store.explain import named

    if topic is None:
        return "the tier has no queues"
    numbers = [str(flat_queue.name.queue_id) for flat_queue in tier.queues(topic, None, broker)]
    if numbers:
        return f"topic {topic} has no queue {queue} in the tier; its queues: {named(numbers)}"
    topics = sorted({flat_queue.name.topic for flat_queue in tier.queues(broker=broker)})
    return f"topic {topic} is not in the tier; " + (
        f"its topics: {named(topics)}" if topics else "the tier has no queues at all")


def _say_offset(out: Output, tier: Tier, offset: int | None, topic: str | None, queue: int | None,
                broker: str | None) -> None:
    """Print how a broker answers a pull from the tier at a queue offset without a message."""
    from rmqctl.broker.get_message import Answer, meaning
    from rmqctl.ext.tiered.as_broker import get_message

    if offset is None or topic is None or queue is None:
        return
    for flat_queue in tier.queues(topic, queue, broker):
        result = get_message.get(flat_queue, offset, 1)
        if result.status not in (get_message.FOUND, get_message.NO_MATCH, get_message.FOUND_NULL):
            answer = Answer(result.status, result.next_offset, result.min, result.max)
            out.note(f"{topic}/{queue}: {meaning(answer, offset)}")
