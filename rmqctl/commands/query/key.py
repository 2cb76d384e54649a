"""``rmqctl query key``: messages with a key, through the index files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.shared.filters import AnswerView
from rmqctl.commands.shared.messages import Faults, Fields, not_found, projection, show_records
from rmqctl.commands.shared.options import (
    Body,
    CommitlogDirs,
    CommitlogFileSize,
    Decompress,
    IndexMax,
    IndexSlots,
    NoProgress,
    OutputFormat,
    Quiet,
    RequiredTopic,
    Store,
    Verbose,
    Zone,
    open_output,
)
from rmqctl.commands.shared.parsing import parse_time_range

if TYPE_CHECKING:
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.query.lookup import KeyAnswer

NAME = ("query", "key")
EFFECT = "read-only"


def command(
    store: Store,
    topic: RequiredTopic,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="The key.")],
    begin: Annotated[str | None, typer.Option(
        "--begin", metavar="TIME", help="Stored at this time or later: epoch ms, ISO-8601, or "
        "relative (-2h, -7d).")] = None,
    end: Annotated[str | None, typer.Option(
        "--end", metavar="TIME", help="Stored at this time or earlier.")] = None,
    most: Annotated[int, typer.Option(
        "--max", metavar="N", min=1, help="At most this many; a broker gives 64 and no more.",
    )] = 32,
    kind: Annotated[Literal["key", "unique"] | None, typer.Option(
        "--type", help="Only application keys, or only unique keys (client ids); else both.",
    )] = None,
    raw: Annotated[bool, typer.Option(
        "--raw", help="Keep messages of other keys that only share the hash.")] = False,
    view: AnswerView = "auto",
    fields: Fields = None,
    body: Body = "auto",
    decompress: Decompress = False,
    tz: Zone = "UTC",  # type: ignore[assignment]
    commitlog_dir: CommitlogDirs = None,
    commitlog_file_size: CommitlogFileSize = None,
    index_slots: IndexSlots = None,
    index_max: IndexMax = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Show the messages with a key: what a broker's queryMessage answers, in its order.

    The index knows only a hash of topic and key; messages of other keys with that hash are left
    out. The topic is the one the record has (a delayed or half message has an internal one).
    Exit code 1 when there is none.

        rmqctl query key STORE --topic orders --key order-4711 --begin -2d
    """
    from rmqctl.store import Sizes
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.query import lookup

    out = open_output(output, quiet, verbose, no_progress)
    made = projection(out, fields, body, decompress)
    first, last = parse_time_range(begin, end, tz=tz)
    faults = Faults(out)
    sizes = Sizes(commitlog_file_size, None, index_slots, index_max)
    with OpenedStore.open(store, commitlog_dir or (), sizes) as opened:
        answer = lookup.by_key(
            lookup.answering_view(opened, view), topic, key, begin=first or 0,
            end=lookup.FOR_EVER if last is None else last, most=most, kind=kind, raw=raw,
            report=faults.report)
        show_records(out, answer.records, made, tz, faults)
        if most > lookup.MOST and len(answer.records) + answer.false_hits >= lookup.MOST:
            out.note(f"a broker gives no more than {lookup.MOST} at a time; ask again with --begin "
                     "or --end, or use `rmqctl read --key`")
        if answer.behind:
            out.note(f"left out, because a broker ends its log before: physical offset "
                     f"{', '.join(map(str, answer.behind))} (--view disk shows what is there)")
        if not answer.records:
            not_found(out, faults, _reason(opened, topic, key, answer))
        for physical in answer.dangling if answer.records else ():
            out.note(f"the index also leads to physical offset {physical}: "
                     f"{opened.log.explain(physical)}")
    faults.end()


def _reason(store: OpenedStore, topic: str, key: str, answer: KeyAnswer) -> str:
    """Why there is nothing, as far as it can be told."""
    what = f"no message of topic {topic} with the key {key}"
    search = f"`rmqctl read STORE --topic {topic} --key {key}` looks at the messages themselves"
    if not store.index_listing.files:
        return f"{what}: the store has no index files; {search}"
    if answer.behind:
        return f"{what} before the end of the log as a broker sees it"
    if answer.dangling:
        physical = answer.dangling[0]
        return (f"{what} can be read: the index leads to physical offset {physical}: "
                f"{store.log.explain(physical)}")
    if answer.false_hits:
        return (f"{what}: the {answer.false_hits} found through the index have other keys of the "
                "same hash (--raw shows them)")
    return f"{what} in the index; {search}"
