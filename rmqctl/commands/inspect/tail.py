"""``rmqctl tail``: print the newest messages, and then new ones as a broker appends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.message_options import MessageOptions, SelectOptions
from rmqctl.commands.shared.messages import ReadFaults, show_rows
from rmqctl.commands.shared.options import Out, StoreLog
from rmqctl.commands.shared.store_warnings import warn_of_missing
from rmqctl.errors import UsageError
from rmqctl.output import FLUSH
from rmqctl.output.streams import wait

if TYPE_CHECKING:
    from rmqctl.store.log.tail import Tail
    from rmqctl.store.projection import Projection
    from rmqctl.store.query.conditions import Condition

_PAGE = 256


def command(
    *,
    lines: Annotated[int, typer.Option(
        "--limit", "-n", "--lines", metavar="N", min=0,
        help="Number of messages to print from the end.")] = 10,
    follow: Annotated[bool, typer.Option(
        "--follow", "-f", help="Print new messages as they are appended, until "
                               "interrupted.")] = False,
    interval: Annotated[int, typer.Option(
        "--interval", metavar="MS", min=10, max=60_000,
        help="Milliseconds between two checks for new messages, with --follow.")] = 200,
    select: Annotated[SelectOptions, pick("topic queue tag key where")],
    show: MessageOptions,
    store: StoreLog,
    out: Out,
) -> None:
    """Print the newest messages in log order; with -f, follow the log.

    Following polls the files and does not affect the broker. A record that is still being written
    is printed once it is complete; if the log was truncated or recreated, a note says so and
    printing continues from there. Ctrl-C stops it (exit code 130), as does closing the output.

        rmqctl tail STORE -n 20 --topic orders
        rmqctl tail STORE -f -o jsonl --where 'property.user=4711'
    """
    from rmqctl.store.log.bounds import View
    from rmqctl.store.log.tail import Tail

    if follow and out.is_value:
        raise UsageError("--follow has no end, so it cannot print a JSON array: use -o jsonl")
    projection = show.projection(out)
    wanted = select.selection(show.tz, show.decoding)
    faults = ReadFaults(out, show)
    with store.open() as opened:
        tail = Tail(View(opened), wanted, faults.report, follow=follow)
        rows = _rows(tail, lines, projection, faults)
        if not follow:
            rows = _closed(rows, tail)
        else:
            rows = _followed(rows, tail, projection, faults, lambda: wait(interval / 1000))
        show_rows(out, rows, projection, show.tz)
        if not follow and not faults.has_findings:
            warn_of_missing(out, opened)
    faults.end()


def _rows(tail: Tail, count: int, projection: Projection,
          faults: ReadFaults) -> Iterator[Mapping[str, Any]]:
    from rmqctl.store.pages import RecordPage

    records = tail.last(count)
    pages = (RecordPage(records[start:start + _PAGE]) for start in range(0, len(records), _PAGE))
    for page in faults.judged(pages):
        yield from projection.rows(page)


def _closed(rows: Iterator[Mapping[str, Any]], tail: Tail) -> Iterator[Mapping[str, Any]]:
    yield from rows
    tail.report_torn()


def _followed(rows: Iterator[Mapping[str, Any]], tail: Tail, projection: Projection,
              faults: ReadFaults, pause: Callable[[], None]) -> Iterator[Mapping[str, Any]]:
    from rmqctl.store.log.tail import conditions_of
    from rmqctl.store.pages import RecordPage
    from rmqctl.store.query.conditions import filtered

    yield from rows
    follower = tail.follower(faults.report)
    conditions: list[Condition] = conditions_of(tail.selection)
    while True:
        yield FLUSH
        pause()
        arrived = follower.poll()
        while chunk := list(islice(arrived, _PAGE)):
            for page in faults.judged([filtered(RecordPage(chunk), conditions)]):
                yield from projection.rows(page)
