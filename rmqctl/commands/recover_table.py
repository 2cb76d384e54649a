"""``rmqctl recover table``: the topicQueueTable, rebuilt from the commitlog."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rmqctl.commands.shared.messages import Faults
from rmqctl.commands.shared.options import (
    CommitlogDirs,
    CommitlogFileSize,
    ConsumequeueFileSize,
    Jobs,
    NoProgress,
    OutputFormat,
    Quiet,
    Store,
    Verbose,
    open_output,
    worker_count,
)

NAME = ("recover", "table")
EFFECT = "read-only"


def command(
    store: Store,
    source: Annotated[
        Literal["log", "consumequeue", "both"],
        typer.Option(
            "--source",
            help="Where the offsets of the JSON come from: the log (for a queue whose messages "
            "have all expired, its consumequeue), the consumequeues alone (the log is not "
            "read), or the greater of both.",
        ),
    ] = "log",
    view: Annotated[
        Literal["disk", "broker"],
        typer.Option(
            "--view",
            help="The log as it lies on disk, with what lies behind damage, or as far as a "
            "broker would keep it when it starts.",
        ),
    ] = "disk",
    jobs: Jobs = 1,
    commitlog_dirs: CommitlogDirs = None,
    commitlog_file_size: CommitlogFileSize = None,
    consumequeue_file_size: ConsumequeueFileSize = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
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
    from rmqctl.store import Sizes
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.log.bounds import View
    from rmqctl.store.queue.topic_queue_table import COLUMNS, disagreements, rebuild

    out = open_output(output, quiet, verbose, no_progress)
    faults = Faults(out)
    sizes = Sizes(commitlog_file_size, consumequeue_file_size)
    with OpenedStore.open(store, commitlog_dirs or (), sizes) as opened:
        for trouble in opened.log_troubles:
            out.warn(f"{trouble.path}: {trouble.reason}")
        total = sum(one.size for one in opened.log.files)
        with out.progress("reading the log", total) as progress:
            rows = rebuild(opened, View(opened, view), source, jobs=worker_count(jobs),
                           progress=progress.advance, report=faults.report)  # fmt: skip
    if out.format == "json":
        table = {row.key: row.next_offset(source) for row in rows}
        out.document({key: offset for key, offset in table.items() if offset is not None})
    else:
        out.rows((row.as_dict() for row in rows), COLUMNS, empty="no messages",
                 styles={"agrees": lambda value: "bad" if value is False else None})  # fmt: skip
    for text in disagreements(rows):
        out.warn(f"{text}; `rmqctl verify` says why")
    faults.end()
