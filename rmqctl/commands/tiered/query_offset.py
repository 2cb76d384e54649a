"""``rmqctl tiered query offset``: show the message at a queue offset or at an offset of a tier's
commit log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.shared.message_options import MessageOptions
from rmqctl.commands.shared.messages import ReadFaults, not_found, show_records
from rmqctl.commands.shared.options import Out, RequiredQueue, RequiredTopic
from rmqctl.commands.shared.tiered_options import LocalOptions, TierBroker
from rmqctl.errors import UsageError
from rmqctl.parse_values import parse_offset

if TYPE_CHECKING:
    from rmqctl.ext.tiered.as_broker.router import RoutedGet


def command(
    *,
    topic: RequiredTopic,
    queue: RequiredQueue,
    offset: Annotated[int | None, typer.Option(
        "--offset", metavar="N", parser=parse_offset, help="Queue offset.")] = None,
    phy: Annotated[int | None, typer.Option(
        "--phy", metavar="OFFSET", parser=parse_offset,
        help="Offset in the queue's tiered commit log (the physical_offset in a tier).")] = None,
    around: Annotated[bool, typer.Option(
        "--containing", help="With --phy: show the message whose bytes include the "
                             "offset.")] = False,
    count: Annotated[int, typer.Option(
        "--limit", "--count", metavar="N", min=1,
        help="With --as-broker: number of messages that are requested.")] = 32,
    as_broker: Annotated[bool, typer.Option(
        "--as-broker", help="With --offset: show a 5.3.3 broker's response to a pull: status, next "
                            "offset, queue range and offsets.")] = False,
    tag: Annotated[str | None, typer.Option(
        "--tag", metavar="TAG", help="With --as-broker: a consumer's tag expression ('A || B').",
    )] = None,
    local: LocalOptions,
    tier: TierBroker,
    show: MessageOptions,
    out: Out,
) -> None:
    """Show the message at a queue offset of a tier, or at an offset of its commit log (--phy).

    A tier has a commit log for each queue, so --phy also needs --topic and --queue. Exit code 1 if
    nothing is found; stderr says why.

        rmqctl tiered query offset /mnt/tier --topic orders --queue 0 --offset 1200
        rmqctl tiered query offset /mnt/tier --topic orders --queue 0 --phy 53755
    """
    from rmqctl.ext.tiered.as_broker import router
    from rmqctl.ext.tiered.as_broker.get_message import Matching
    from rmqctl.ext.tiered.read import messages

    if (offset is None) == (phy is None):
        raise UsageError("pass either --offset (of the queue) or --phy (of its tiered commit log)")
    if phy is not None and (as_broker or local.root is not None):
        raise UsageError("--phy cannot be combined with --as-broker or --local")
    if around and phy is None:
        raise UsageError("--containing requires --phy")
    if tag is not None and (not as_broker or local.root is not None):
        raise UsageError("--tag requires --as-broker and cannot be combined with --local")
    local.check()
    projection = show.projection(out)
    faults = ReadFaults(out, show)
    with tier.open() as opened:
        flat_queue = opened.queue(topic, queue, tier.broker)
        answer: RoutedGet | None = None
        # Show the answer of a broker, if requested.
        if local.root is not None and offset is not None:
            with local.router(out, opened, tier.broker) as routing:
                answer = routing.get(topic, queue, offset, count if as_broker else 1)
        elif as_broker and offset is not None:
            matching = None if tag is None else Matching(tag)
            answer = router.tier_only(flat_queue, offset, count, matching)
        # The answer as a document, its message, or the contents of the tier at the offset.
        if as_broker and answer is not None:
            pull = answer
            out.document(_document(pull), lambda page: page.pairs(_document(pull)))
            if not pull.records:
                faults.has_findings = True
        elif answer is not None and offset is not None:
            records = [record for record in answer.records if record.queue_offset == offset]
            show_records(out, records, projection, show.tz, faults)
            if not records:
                not_found(out, faults, answer.trouble or f"{answer.status}: no message at queue "
                          f"offset {offset}; min {answer.min}, max {answer.max}")
        elif flat_queue is None:
            show_records(out, [], projection, show.tz, faults)
            not_found(out, faults, f"the tier has no queue {queue} of topic {topic}")
        else:
            place = messages.at_offset(flat_queue, offset) if offset is not None else (
                messages.at_place(flat_queue, phy or 0, around))
            records = [] if isinstance(place, str) else [place]
            show_records(out, records, projection, show.tz, faults)
            if isinstance(place, str):
                not_found(out, faults, place)
    faults.end()


def _document(answer: RoutedGet) -> dict[str, Any]:
    return {"status": answer.status, "next_offset": answer.next_offset, "min_offset": answer.min,
            "max_offset": answer.max, "from": answer.side,
            "queue_offsets": [record.queue_offset for record in answer.records],
            "physical_offsets": [record.physical_offset for record in answer.records]}
