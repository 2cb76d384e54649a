"""``rmqctl query time``: find the queue offset for a time, as a broker does."""

from __future__ import annotations

from rmqctl.broker.versions import version_of
from rmqctl.commands.shared.message_options import MessageOptions
from rmqctl.commands.shared.messages import ReadFaults, not_found, rows_of, show_rows
from rmqctl.commands.shared.options import Out, StoreQueues, View
from rmqctl.commands.shared.time_options import StoreTimeQuery, time_document, time_in_words
from rmqctl.errors import UsageError


def command(
    *,
    query: StoreTimeQuery,
    view: View = "auto",
    show: MessageOptions,
    store: StoreQueues,
    out: Out,
) -> None:
    """Find the queue offset for a time, like a broker's getOffsetInQueueByTime.

    If nothing was stored at or after the time, the result is the queue's max offset. Exit code 1 if
    the queue does not exist (or, with --messages, if nothing is found).

        rmqctl query time STORE --topic orders --queue 0 --time 2024-06-21T19:53:00Z
    """
    from rmqctl.broker.offset_by_time import TimeAnswer, offset_by_time
    from rmqctl.broker.view import view_of
    from rmqctl.store.explain import missing_queue
    from rmqctl.store.query.select import Selection, Selector

    version = version_of(query.like)
    if version.nearest_in_time and query.upper:
        raise UsageError(f"--broker-version {query.like} has no --boundary: it returns the message "
                         "nearest in time")
    when = query.when(show.tz)
    faults = ReadFaults(out, show)
    with store.sampled(out) as opened:
        bounds = view_of(opened, view, version)
        # Find the queue offset for the time, and the queue's bounds.
        answer = offset_by_time(bounds, query.topic, query.queue, when, upper=query.upper,
                                like=query.like)
        missing = None if answer else missing_queue(opened, query.topic, query.queue)
        answer = answer or TimeAnswer(0, 0, 0)
        # Show the messages from that offset on, or the offset itself.
        if query.messages:
            projection = show.projection(out)
            wanted = Selection(query.topic, query.queue, from_offset=answer.queue_offset,
                               count=query.count)
            selector = Selector(opened, wanted, bounds, faults.report)
            pages = faults.judged(selector.pages()) if missing is None else ()
            rows = rows_of(out, pages, projection)
            if not show_rows(out, rows, projection, show.tz, empty="") and missing is None:
                missing = (f"no message at offset {answer.queue_offset}: the queue has offsets "
                           f"{answer.min_offset} to {answer.max_offset - 1}"
                           if answer.min_offset < answer.max_offset else "the queue is empty")
        else:
            words = time_in_words(answer, when, show.tz, "physical offset {}")
            document = time_document(query, when, answer, like=query.like)
            if version.nearest_in_time:
                document["boundary"] = "nearest"
            out.document(document, lambda page: page.pairs(words))
        if missing is not None:
            not_found(out, faults, missing)
    faults.end()
