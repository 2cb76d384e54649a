"""``rmqctl tiered query key``: messages with a key, through a tier's index files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.shared.message_options import MessageOptions
from rmqctl.commands.shared.messages import Faults, not_found, show_records
from rmqctl.commands.shared.options import Begin, End, Out, RequiredTopic
from rmqctl.commands.shared.tiered_options import AsBroker, LocalOptions, TierIndex
from rmqctl.errors import UsageError
from rmqctl.parse_values import parse_time_range

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.tiered.read.by_key import IndexFiles, KeyAnswer

NAME = ("tiered", "query", "key")
EFFECT = "read-only"


def command(
    *,
    topic: RequiredTopic,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="The key.")],
    begin: Begin = None,
    end: End = None,
    most: Annotated[int, typer.Option(
        "--max", metavar="N", min=1, help="At most this many: where there are more, the newest.",
    )] = 32,
    kind: Annotated[Literal["key", "unique"] | None, typer.Option(
        "--type", help="Only application keys, or only unique keys (client ids); else both.",
    )] = None,
    raw: Annotated[bool, typer.Option(
        "--raw", help="Keep messages of other keys that only share the hash.")] = False,
    as_broker: AsBroker = False,
    local: LocalOptions,
    tier: TierIndex,
    show: MessageOptions,
    out: Out,
) -> None:
    """Show the messages with a key in a tier, by store time.

    All index files are searched, uploaded or not, under the hash of 5.1 to 5.3.3 and that of
    newer brokers; what only shares the hash is left out. A broker searches only files that were
    made inside the window asked for, and gives what has the hash: --as-broker. With --local the
    local store is asked first. Exit code 1 when there is none.

        rmqctl tiered query key /mnt/tier --topic orders --key order-4711 --begin -30d
    """
    from rmqctl.tiered.as_broker.routed import routed_key
    from rmqctl.tiered.read import by_key

    local.check()
    if as_broker and (raw or kind):
        raise UsageError("--as-broker gives what a broker gives: not with --raw or --type")
    projection = show.projection(out)
    first, last = parse_time_range(begin, end, tz=show.tz)
    since, until = first or 0, by_key.FOR_EVER if last is None else last
    faults = Faults(out)
    with (tier.open() as opened,
          by_key.IndexFiles.open(opened, tier.broker, tier.index_slots, tier.index_max) as files):
        answer: KeyAnswer | None
        false_hits = 0
        if local.root is not None:
            with local.router(out, opened, tier.broker) as router:
                both = routed_key(router, files, topic, key, begin=since, end=until, most=most,
                                  as_broker=as_broker, raw=raw, kind=kind,
                                  report=faults.report)
            records, answer, false_hits = both.records, both.answer, both.local_false_hits
            out.note(f"{len(both.local)} from the local store, {len(both.tier)} from the tier")
        elif as_broker:
            answer = by_key.as_broker(opened, files, topic, key, begin=since, end=until, most=most,
                                      broker=tier.broker, report=faults.report)
            records = answer.records
        else:
            answer = by_key.by_key(opened, files, topic, key, begin=since, end=until, most=most,
                                   broker=tier.broker, raw=raw, kind=kind, report=faults.report)
            records = answer.records
        show_records(out, records, projection, show.tz, faults)
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
