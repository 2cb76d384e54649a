"""``rmqctl tiered query key``: messages with a key, through a tier's index files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.shared.messages import Faults, Fields, not_found, projection, show_records
from rmqctl.commands.shared.options import (
    Body,
    Decompress,
    NoProgress,
    OutputFormat,
    Quiet,
    RequiredTopic,
    Verbose,
    Zone,
    open_output,
)
from rmqctl.commands.shared.parsing import parse_time_range
from rmqctl.commands.shared.tiered_local import (
    AsBroker,
    InMemory,
    Local,
    ReadStrategy,
    check_local,
    opened_router,
)
from rmqctl.commands.shared.tiered_options import (
    Broker,
    MetadataFile,
    TieredIndexMax,
    TieredIndexSlots,
    TierRoot,
    opened_tier,
)
from rmqctl.errors import UsageError

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.tiered.read.by_key import KeyAnswer
    from rmqctl.tiered.read.by_key_files import IndexFiles

NAME = ("tiered", "query", "key")
EFFECT = "read-only"


def command(
    root: TierRoot,
    topic: RequiredTopic,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="The key.")],
    begin: Annotated[str | None, typer.Option(
        "--begin", metavar="TIME", help="Stored at this time or later: epoch ms, ISO-8601, or "
        "relative (-2h, -7d).")] = None,
    end: Annotated[str | None, typer.Option(
        "--end", metavar="TIME", help="Stored at this time or earlier.")] = None,
    most: Annotated[int, typer.Option(
        "--max", metavar="N", min=1, help="At most this many: where there are more, the newest.",
    )] = 32,
    kind: Annotated[Literal["key", "unique"] | None, typer.Option(
        "--type", help="Only application keys, or only unique keys (client ids); else both.",
    )] = None,
    raw: Annotated[bool, typer.Option(
        "--raw", help="Keep messages of other keys that only share the hash.")] = False,
    as_broker: AsBroker = False,
    local: Local = None,
    strategy: ReadStrategy = None,
    in_memory: InMemory = None,
    metadata: MetadataFile = None,
    broker: Broker = None,
    index_slots: TieredIndexSlots = None,
    index_max: TieredIndexMax = None,
    fields: Fields = None,
    body: Body = "auto",
    decompress: Decompress = False,
    tz: Zone = "UTC",  # type: ignore[assignment]
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Show the messages with a key in a tier, by store time.

    All index files are searched, uploaded or not, under the hash of 5.1 to 5.3.3 and that of
    newer brokers; what only shares the hash is left out. A broker searches only files that were
    made inside the window asked for, and gives what has the hash: --as-broker. With --local the
    local store is asked first. Exit code 1 when there is none.

        rmqctl tiered query key /mnt/tier --topic orders --key order-4711 --begin -30d
    """
    from rmqctl.tiered.as_broker import router_key
    from rmqctl.tiered.read import by_key
    from rmqctl.tiered.read.by_key_files import IndexFiles

    out = open_output(output, quiet, verbose, no_progress)
    check_local(local, strategy, in_memory)
    if as_broker and (raw or kind):
        raise UsageError("--as-broker gives what a broker gives: not with --raw or --type")
    made = projection(out, fields, body, decompress)
    first, last = parse_time_range(begin, end, tz=tz)
    since, until = first or 0, by_key.FOR_EVER if last is None else last
    faults = Faults(out)
    with (opened_tier(root, metadata, broker) as tier,
          IndexFiles.open(tier, broker, index_slots, index_max) as files):
        answer: KeyAnswer | None
        false_hits = 0
        if local is not None:
            with opened_router(out, tier, local, strategy, in_memory, broker) as router:
                both = router_key.query(router, files, topic, key, begin=since, end=until,
                                        most=most, as_broker=as_broker, raw=raw, kind=kind,
                                        report=faults.report)
            records, answer, false_hits = both.records, both.answer, both.local_false_hits
            out.note(f"{len(both.local)} from the local store, {len(both.tier)} from the tier")
        elif as_broker:
            answer = by_key.as_broker(tier, files, topic, key, begin=since, end=until, most=most,
                                      broker=broker, report=faults.report)
            records = answer.records
        else:
            answer = by_key.by_key(tier, files, topic, key, begin=since, end=until, most=most,
                                   broker=broker, raw=raw, kind=kind, report=faults.report)
            records = answer.records
        show_records(out, records, made, tz, faults)
        if not records:
            not_found(out, faults, _reason(files, topic, key, answer, false_hits))
        elif answer is not None:
            _say_dangling(out, answer)
    faults.end()


def _reason(files: IndexFiles, topic: str, key: str, answer: KeyAnswer | None,
            false_hits: int) -> str:
    """Why there is nothing, as far as it can be told."""
    what = f"no message of topic {topic} with the key {key}"
    if not files.files and answer is not None:
        return f"{what}: the tier has no index files"
    if answer is not None and answer.unreadable:
        queue, offset, reason = answer.dangling[0]
        return (f"{what} can be read: the index leads to offset {offset} of queue {queue}'s "
                f"commit log: {reason}")
    false_hits += 0 if answer is None else answer.false_hits
    if false_hits:
        return (f"{what}: the {false_hits} found through the index have other keys of the same "
                "hash (--raw shows them)")
    return (f"{what} in the index; `rmqctl tiered read DIR --topic {topic} --key {key}` looks at "
            "the messages themselves")


def _say_dangling(out: Output, answer: KeyAnswer) -> None:
    for queue, offset, reason in answer.dangling[:5]:
        out.note(f"the index also leads to offset {offset} of queue {queue}'s commit log: {reason}")
    if answer.unreadable > 5:
        out.note(f"and to {answer.unreadable - 5} more places without a message")
