"""``rmqctl recover table``: the topicQueueTable, rebuilt from the commitlog."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rmqctl.commands.shared.messages import ReadFaults
from rmqctl.commands.shared.options import Jobs, Out, StoreQueues, worker_count
from rmqctl.commands.shared.store_warnings import warn_of_log


def command(
    *,
    source: Annotated[Literal["log", "consumequeue", "both"], typer.Option(
        "--source", help="Offsets in JSON. log: from the log, or from the queue if its messages "
                         "expired. both: the larger offset.")] = "log",
    view: Annotated[Literal["disk", "broker"], typer.Option(
        "--view", help="disk: the log on disk, including the part after damage. broker: what a "
                       "broker would keep at startup.")] = "disk",
    jobs: Jobs = 0,
    store: StoreQueues,
    out: Out,
) -> None:
    """Rebuild the topicQueueTable (the next offset of every queue) from the log and print it.

    Counts every message that has a consume queue entry: committed transactions, each message of an
    inner batch, each queue of a multi-dispatched (LMQ) message. JSON is the broker's table,
    {"TopicTest-3": 17}; other formats also show the consume queues' offsets. Differences between
    log and queues are reported as warnings: one of them lags or is damaged. Queues without messages
    are skipped. Exit code 1 if the log is damaged.

        rmqctl recover table STORE -o json > table.json
    """
    from rmqctl.broker.view import view_of
    from rmqctl.store.queue.topic_queue_table import COLUMNS, disagreements, rebuild

    faults = ReadFaults(out)
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
        out.warn(f"{text}; run `rmqctl verify` for the reason")
    faults.end()
