"""``rmqctl tail``: the last messages, and then the new ones as a broker appends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.shared.filters import Key, Tag, Where, conditions
from rmqctl.commands.shared.messages import Faults, Fields, projection, rows_of, show
from rmqctl.commands.shared.options import (
    Body,
    CommitlogDirs,
    CommitlogFileSize,
    Decompress,
    NoProgress,
    OutputFormat,
    Queue,
    Quiet,
    Store,
    Topic,
    Verbose,
    Zone,
    open_output,
)
from rmqctl.errors import UsageError
from rmqctl.output import FLUSH
from rmqctl.output.waiting import wait

if TYPE_CHECKING:
    from rmqctl.store.log.tail import Tail
    from rmqctl.store.projection import Projection
    from rmqctl.store.query.conditions import Condition

NAME = ("tail",)
EFFECT = "read-only"
_PAGE = 256


def command(
    store: Store,
    lines: Annotated[int, typer.Option(
        "-n", "--lines", metavar="N", min=0, help="How many of the last messages.")] = 10,
    follow: Annotated[bool, typer.Option(
        "--follow", "-f", help="Go on as messages are appended, until interrupted.")] = False,
    interval: Annotated[int, typer.Option(
        "--interval", metavar="MS", min=10, max=60_000,
        help="Milliseconds between two looks at the store, with --follow.")] = 200,
    topic: Topic = None,
    queue: Queue = None,
    tag: Tag = None,
    key: Key = None,
    where: Where = None,
    fields: Fields = None,
    body: Body = "auto",
    decompress: Decompress = False,
    tz: Zone = "UTC",  # type: ignore[assignment]
    commitlog_dir: CommitlogDirs = None,
    commitlog_file_size: CommitlogFileSize = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Show the last messages in log order, found from the end, and follow the log with -f.

    Following needs nothing from the broker and keeps nothing from it: the files are looked at
    again and again. A record that is being written is waited for; a log that was cut back or
    made anew is said, and shown from there. It ends with Ctrl-C (exit code 130) or when the
    reader of its output goes away.

        rmqctl tail STORE -n 20 --topic orders

        rmqctl tail STORE -f -o jsonl --where 'property.user=4711'
    """
    from rmqctl.store import Sizes
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.log.bounds import View
    from rmqctl.store.log.tail import Tail
    from rmqctl.store.query.select import Selection

    out = open_output(output, quiet, verbose, no_progress)
    if follow and out.format == "json":
        raise UsageError("--follow has no end, and so has no JSON array: use -o jsonl")
    made = projection(out, fields, body, decompress)
    wanted = Selection(topic=topic, queue_id=queue, tag=tag, key=key, where=conditions(where, tz))
    faults = Faults(out)
    with OpenedStore.open(store, commitlog_dir or (),
                          Sizes(commitlog_file=commitlog_file_size)) as opened:
        tail = Tail(View(opened), wanted, faults.report)
        rows = _rows(tail, lines, made, faults)
        if not follow:
            rows = _closed(rows, tail)
        else:
            rows = _followed(rows, tail, made, faults, lambda: wait(interval / 1000))
        show(out, rows, made, tz)
    faults.end()


def _rows(tail: Tail, count: int, made: Projection, faults: Faults) -> Iterator[Mapping[str, Any]]:
    from rmqctl.store.pages import RecordPage

    records = tail.last(count)
    pages = (RecordPage(records[at:at + _PAGE]) for at in range(0, len(records), _PAGE))
    yield from rows_of(faults.judged(pages), made)


def _closed(rows: Iterator[Mapping[str, Any]], tail: Tail) -> Iterator[Mapping[str, Any]]:
    yield from rows
    tail.report_torn()


def _followed(rows: Iterator[Mapping[str, Any]], tail: Tail, made: Projection, faults: Faults,
              pause: Callable[[], None]) -> Iterator[Mapping[str, Any]]:
    from rmqctl.store.log.tail import conditions_of
    from rmqctl.store.pages import RecordPage
    from rmqctl.store.query.conditions import filtered

    yield from rows
    follower = tail.follower(faults.report)
    kept: list[Condition] = conditions_of(tail.selection)
    while True:
        yield FLUSH
        pause()
        arrived = follower.poll()
        while chunk := list(islice(arrived, _PAGE)):
            yield from rows_of(faults.judged([filtered(RecordPage(chunk), kept)]), made)
