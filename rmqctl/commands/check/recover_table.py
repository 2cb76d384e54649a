"""``rmqctl recover table``: the topicQueueTable, rebuilt from the commitlog."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rmqctl.commands.shared.messages import Faults
from rmqctl.commands.shared.options import Jobs, Out, StoreQueues, worker_count
from rmqctl.commands.shared.store_warnings import warn_of_log


def command(
    *,
    source: Annotated[Literal["log", "consumequeue", "both"], typer.Option(
        "--source", help="Where the offsets of the JSON come from: the log (for a queue whose "
        "messages have all expired, its consumequeue), the consumequeues alone (the log is not "
        "read), or the greater of both.")] = "log",
    view: Annotated[Literal["disk", "broker"], typer.Option(
        "--view", help="The log as it lies on disk, with what lies beyond damage, or as far as a "
        "broker would keep it when it starts.")] = "disk",
    jobs: Jobs = 0,
    store: StoreQueues,
    out: Out,
) -> None:
    """Rebuild the topicQueueTable, the next queue offset of every queue, and print it.

    One pass over the commitlog counts every message that has a row in a queue: transactions once
    they are committed, inner batches with all they hold, multi-dispatched messages (LMQ) in each
    of their queues. JSON is a broker's table, {"TopicTest-3": 17}; the other formats show beside
    it what the consumequeues say. Where the two differ a warning says so: one of them lags
    behind or is damaged. Queues without any message are left out. Exit code 1 after damage in
    the log.

        rmqctl recover table STORE -o json > table.json
    """
    from rmqctl.broker.view import view_of
    from rmqctl.store.queue.topic_queue_table import COLUMNS, disagreements, rebuild

    faults = Faults(out)
    with store.open() as opened:
        warn_of_log(out, opened)
        total = opened.log.size
        with out.progress("reading the log", total) as progress:
            rows = rebuild(opened, view_of(opened, view), source, jobs=worker_count(jobs),
                           progress=progress.advance, report=faults.report)
    if out.is_value:
        table = {row.key: row.next_offset(source) for row in rows}
        out.document({key: offset for key, offset in table.items() if offset is not None})
    else:
        out.rows((row.as_dict() for row in rows), COLUMNS, empty="no messages",
                 styles={"agrees": lambda value: "bad" if value is False else None})
    for text in disagreements(rows):
        out.warn(f"{text}; `rmqctl verify` says why")
    faults.end()
