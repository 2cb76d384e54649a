"""``rmqctl tiered query key``: find messages by key, using a tier's index files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqctl.commands.shared.message_options import MessageOptions
from rmqctl.commands.shared.messages import ReadFaults, not_found, show_records
from rmqctl.commands.shared.options import Out
from rmqctl.commands.shared.query_options import KeyQuery, TierKeyQuery
from rmqctl.commands.shared.tiered_options import AsBroker, LocalOptions, TierIndex
from rmqctl.errors import UsageError

if TYPE_CHECKING:
    from rmqctl.ext.tiered.read.by_key import IndexFiles, TierKeyAnswer
    from rmqctl.output import Output


def command(
    *,
    query: TierKeyQuery,
    as_broker: AsBroker = False,
    local: LocalOptions,
    tier: TierIndex,
    show: MessageOptions,
    out: Out,
) -> None:
    """Find messages by key in a tier, in store time order.

    Searches all index files, uploaded or not, with the hashes of 5.1 to 5.3.3 and of newer brokers;
    messages that only share the hash are skipped. --as-broker searches only files created in the
    given time window and returns every hash match, as a broker does. With --local, the local store
    is searched first. Exit code 1 if nothing is found.

        rmqctl tiered query key /mnt/tier --topic orders --key order-4711 --since -30d
    """
    from rmqctl.ext.tiered.as_broker.routed import routed_key
    from rmqctl.ext.tiered.read import by_key

    local.check()
    if as_broker and (query.raw or query.kind):
        raise UsageError("--as-broker cannot be combined with --raw or --type")
    projection = show.projection(out)
    since, until = query.window(show.tz)
    faults = ReadFaults(out, show)
    with (tier.open() as opened,
          by_key.IndexFiles.open(opened, tier.broker, tier.index_slots, tier.index_max) as files):
        answer: TierKeyAnswer | None
        false_hits = 0
        # Query as a broker with both stores, as a broker with the tier alone, or exhaustively.
        if local.root is not None:
            with local.router(out, opened, tier.broker) as router:
                both = routed_key(router, files, query.topic, query.key, begin=since, end=until,
                                  most=query.most, as_broker=as_broker, raw=query.raw,
                                  kind=query.kind, report=faults.report)
            records, answer, false_hits = both.records, both.answer, both.local_false_hits
            out.note(f"{len(both.local)} from the local store, {len(both.tier)} from the tier")
        elif as_broker:
            answer = by_key.as_broker(opened, files, query.topic, query.key, begin=since,
                                      end=until, most=query.most, broker=tier.broker,
                                      report=faults.report)
            records = answer.records
        else:
            answer = by_key.by_key(opened, files, query.topic, query.key, begin=since, end=until,
                                   most=query.most, broker=tier.broker, raw=query.raw,
                                   kind=query.kind, report=faults.report)
            records = answer.records
        # Show the messages, or why there are none.
        show_records(out, records, projection, show.tz, faults)
        if not records:
            not_found(out, faults, _reason(files, query, answer, false_hits))
        elif answer is not None:
            _say_dangling(out, answer)
    faults.end()


def _reason(files: IndexFiles, query: KeyQuery, answer: TierKeyAnswer | None,
            false_hits: int) -> str:
    """Return the reason why no message was found."""
    nothing = query.nothing
    if not files.files and answer is not None:
        return f"{nothing}: the tier has no index files"
    if answer is not None and answer.unreadable:
        queue, offset, reason = answer.dangling[0]
        return (f"{nothing} can be read: the index points to offset {offset} of queue {queue}'s "
                f"commit log: {reason}")
    false_hits += 0 if answer is None else answer.false_hits
    if false_hits:
        return (f"{nothing}: the {false_hits} index hits have other keys with the same hash (--raw "
                "shows them)")
    return (f"{nothing} in the index; `rmqctl tiered read DIR --topic {query.topic} --key "
            f"{query.key}` searches the messages themselves")


def _say_dangling(out: Output, answer: TierKeyAnswer) -> None:
    for queue, offset, reason in answer.dangling[:5]:
        out.note(f"the index also points to offset {offset} of queue {queue}'s commit log: "
                 f"{reason}")
    if answer.unreadable > 5:
        out.note(f"and to {answer.unreadable - 5} more places without a message")
