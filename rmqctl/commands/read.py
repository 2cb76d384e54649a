"""``rmqctl read``: messages through a topic's queues, or the whole log in order."""

from __future__ import annotations

from rmqctl.commands.shared.filters import Count, FromOffset, Key, Tag, View, Where, conditions
from rmqctl.commands.shared.messages import Faults, Fields, projection, rows_of, show
from rmqctl.commands.shared.options import (
    Body,
    CommitlogDirs,
    CommitlogFileSize,
    ConsumequeueFileSize,
    Decompress,
    FromPhy,
    NoProgress,
    OutputFormat,
    Queue,
    Quiet,
    Since,
    Store,
    ToPhy,
    Topic,
    Until,
    Verbose,
    Zone,
    open_output,
)
from rmqctl.commands.shared.parsing import parse_time_range
from rmqctl.errors import UsageError

NAME = ("read",)
EFFECT = "read-only"


def command(
    store: Store,
    topic: Topic = None,
    queue: Queue = None,
    from_offset: FromOffset = None,
    count: Count = None,
    from_phy: FromPhy = None,
    to_phy: ToPhy = None,
    since: Since = None,
    until: Until = None,
    tag: Tag = None,
    key: Key = None,
    where: Where = None,
    view: View = "disk",
    fields: Fields = None,
    body: Body = "auto",
    decompress: Decompress = False,
    tz: Zone = "UTC",  # type: ignore[assignment]
    commitlog_dir: CommitlogDirs = None,
    commitlog_file_size: CommitlogFileSize = None,
    consumequeue_file_size: ConsumequeueFileSize = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Show messages: of a topic through its consumequeue, or the whole log in physical order.

    With --topic the queues' rows decide what is shown and in which order (all queues of a topic
    are merged as they lie in the log). Without it every message of the log is looked at, those
    without a row (rollbacks, half messages that came back) too; --where topic=T reads a topic
    that way. Damage does not end the listing: it is named on stderr, the next record that proves
    itself follows, and the exit code is 1.

        rmqctl read STORE --topic orders --queue 0 --offset 1200 --count 10

        rmqctl read STORE --since -2h --where 'property.user~^4' -o jsonl
    """
    from rmqctl.store import Sizes
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.explain import missing_queue, offset_note
    from rmqctl.store.log.bounds import View as StoreView
    from rmqctl.store.query.select import Selection, Selector

    out = open_output(output, quiet, verbose, no_progress)
    if topic is None and (queue is not None or from_offset is not None):
        raise UsageError("--queue and --offset need --topic: every topic has queues of its own")
    if from_offset is not None and queue is None:
        raise UsageError("--offset needs --queue: each queue counts for itself")
    made = projection(out, fields, body, decompress)
    begin, end = parse_time_range(since, until, tz=tz)
    wanted = Selection(topic, queue, from_offset, count, from_phy, to_phy, begin, end, tag, key,
                       conditions(where, tz))
    faults = Faults(out)
    sizes = Sizes(commitlog_file=commitlog_file_size, consumequeue_file=consumequeue_file_size)
    with OpenedStore.open(store, commitlog_dir or (), sizes) as opened:
        at = StoreView(opened, view)
        if topic is not None and queue is not None and from_offset is not None:
            said = offset_note(at, topic, queue, from_offset)
            if said is not None:
                out.note(f"{topic}/{queue}: {said}")
        size = sum(one.size for one in opened.log.files)
        with out.progress("reading the log", size) as progress:
            selector = Selector(opened, wanted, at, faults.report, progress.advance)
            rows = rows_of(faults.judged(selector.pages()), made)
            shown = show(out, rows, made, tz, empty="" if topic else "no messages")
        if not shown and topic is not None:
            out.note(missing_queue(opened, topic, queue) or "no messages")
    faults.end()
