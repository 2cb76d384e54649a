"""``rmqctl query time``: the queue offset at a time, as a broker answers it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from rmqctl.broker.versions import NEWEST, AnswersLike, version_of
from rmqctl.commands.shared.message_options import MessageOptions
from rmqctl.commands.shared.messages import Faults, not_found, rows_of, show_rows
from rmqctl.commands.shared.options import Out, RequiredQueue, RequiredTopic, StoreQueues, View
from rmqctl.errors import UsageError
from rmqctl.parse_values import parse_time

NAME = ("query", "time")
EFFECT = "read-only"


def command(
    *,
    topic: RequiredTopic,
    queue: RequiredQueue,
    time: Annotated[str, typer.Option(
        "--time", metavar="TIME", help="Store time: epoch ms, ISO-8601, or relative (-2h, -7d).")],
    boundary: Annotated[Literal["lower", "upper"], typer.Option(
        "--boundary", help="lower: the first message stored then or later. upper: the last one "
        "stored then or earlier.")] = "lower",
    like: Annotated[AnswersLike, typer.Option(
        "--like", help="Whose rule. Before 5.1.1 it was the message nearest in time, in a file "
        "chosen by its modification time.")] = NEWEST,
    messages: Annotated[bool, typer.Option(
        "--messages", help="Show the messages from that offset on instead of the offset.")] = False,
    count: Annotated[int, typer.Option(
        "--count", metavar="N", min=1, help="With --messages: how many.")] = 1,
    view: View = "auto",
    show: MessageOptions,
    store: StoreQueues,
    out: Out,
) -> None:
    """Show the queue offset at a time, as a broker's getOffsetInQueueByTime answers it.

    Where nothing was stored at or after the time, that is the queue's max offset: the next
    message to come. Exit code 1 when there is no such queue (or, with --messages, no message).

        rmqctl query time STORE --topic orders --queue 0 --time 2024-06-21T19:53:00Z
    """
    from rmqctl.broker.offset_by_time import TimeAnswer, offset_by_time
    from rmqctl.broker.view import view_of
    from rmqctl.store.explain import missing_queue
    from rmqctl.store.query.select import Selection, Selector

    version = version_of(like)
    if version.nearest_in_time and boundary == "upper":
        raise UsageError(f"--like {like} knows no boundary: it gives the message nearest in time")
    when = parse_time(time, tz=show.tz)
    faults = Faults(out)
    with store.open() as opened:
        bounds = view_of(opened, view, version)
        answer = offset_by_time(bounds, topic, queue, when, upper=boundary == "upper", like=like)
        missing = None if answer is not None else missing_queue(opened, topic, queue)
        answer = answer or TimeAnswer(0, 0, 0)
        if messages:
            projection = show.projection(out)
            wanted = Selection(topic, queue, from_offset=answer.queue_offset, count=count)
            selector = Selector(opened, wanted, bounds, faults.report)
            pages = faults.judged(selector.pages()) if missing is None else ()
            rows = rows_of(pages, projection)
            if not show_rows(out, rows, projection, show.tz, empty="") and missing is None:
                missing = (f"nothing is at offset {answer.queue_offset}: the queue has the "
                           f"offsets {answer.min_offset} to {answer.max_offset - 1}"
                           if answer.min_offset < answer.max_offset else "the queue is empty")
        else:
            record = answer.record
            out.document({
                "queue_offset": answer.queue_offset, "topic": topic, "queue_id": queue,
                "time": when, "boundary": "nearest" if version.nearest_in_time else boundary,
                "like": like,
                "min_offset": answer.min_offset, "max_offset": answer.max_offset,
                "store_timestamp": None if record is None else record.store_timestamp,
                "physical_offset": None if record is None else record.physical_offset,
            }, lambda page: page.pairs(_worded(answer, when, show.tz)))
        if missing is not None:
            not_found(out, faults, missing)
    faults.end()


def _worded(answer: Any, when: int, tz: Any) -> dict[str, str]:
    """The answer for people."""
    from rmqctl.output.units import time_text

    there = "nothing yet" if answer.queue_offset >= answer.max_offset else "no readable message"
    if answer.record is not None:
        there = (f"stored {time_text(answer.record.store_timestamp, tz)}, physical offset "
                 f"{answer.record.physical_offset}")
    return {"asked for": time_text(when, tz), "queue offset": str(answer.queue_offset),
            "there": there, "min offset": str(answer.min_offset),
            "max offset": str(answer.max_offset)}
