"""``rmqctl query key``: find messages by key with the index files."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rmqctl.commands.shared.message_options import MessageOptions
from rmqctl.commands.shared.messages import ReadFaults, not_found
from rmqctl.commands.shared.options import Out, StoreIndex, View
from rmqctl.commands.shared.query_options import KeyQuery
from rmqctl.commands.shared.tracking import Track, show_found

if TYPE_CHECKING:
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.query.lookup import KeyAnswer


def command(
    *,
    query: KeyQuery,
    view: View = "auto",
    track: Track = False,
    show: MessageOptions,
    store: StoreIndex,
    out: Out,
) -> None:
    """Find messages by key, like a broker's queryMessage and in its order.

    The index contains only a hash of topic and key; messages of other keys with the same hash are
    skipped. TOPIC is the topic in the record (an internal one for delayed and half messages). Exit
    code 1 if nothing is found.

        rmqctl query key STORE --topic orders --key order-4711 --since -2d
    """
    from rmqctl.broker.view import view_of
    from rmqctl.store.query import lookup

    # Resolve the options before the store is opened.
    projection = show.projection(out)
    begin, end = query.window(show.tz)
    faults = ReadFaults(out, show)
    with store.sampled(out) as opened:
        # Ask the index as a broker does.
        answer = lookup.by_key(
            view_of(opened, view), query.topic, query.key, begin=begin, end=end,
            most=query.most, kind=query.kind, raw=query.raw, report=faults.report)
        show_found(out, opened, answer.records, projection, show.tz, faults, track=track)
        # Explain why the answer may be shorter than expected.
        if query.most > lookup.MAX_BATCH <= len(answer.records) + answer.false_hits:
            out.note(f"a broker returns at most {lookup.MAX_BATCH} messages; narrow the time with "
                     f"--since or --until, or use `{_in_the_log(query)}`")
        if answer.behind:
            out.note(f"not shown: physical offset {', '.join(map(str, answer.behind))}; a broker "
                     "truncates the log there or earlier (--view disk shows them)")
        if not answer.records:
            not_found(out, faults, _reason(opened, query, answer))
        # Name index entries without a message, and say whether the index may be incomplete.
        for physical in answer.dangling if answer.records else ():
            out.note(f"the index also points to physical offset {physical}: "
                     f"{opened.log.explain(physical)}")
        if answer.records and (faults.has_findings or lookup.is_lagging(opened)):
            out.note(f"{_why_incomplete(opened, faults)}, so messages may be missing; "
                     f"`{_in_the_log(query)}` searches all messages")
    faults.end()


def _why_incomplete(store: OpenedStore, faults: ReadFaults) -> str:
    if store.snapshot is not None and not faults.has_findings:
        return "the index does not contain the newest messages yet, because a broker is writing"
    return "the index is damaged or lags the log"


def _in_the_log(query: KeyQuery) -> str:
    """Return the command that finds the same messages by reading the log."""
    from rmqctl.store.explain import by_the_log

    return by_the_log(query.topic, "--key", shlex.quote(query.key))


def _reason(store: OpenedStore, query: KeyQuery, answer: KeyAnswer) -> str:
    """Return the reason why no message was found."""
    nothing = query.nothing
    search = f"`{_in_the_log(query)}` searches the messages themselves"
    if not store.index.listing.files:
        return f"{nothing}: the store has no index files; {search}"
    if answer.behind:
        return f"{nothing} before the end of the log as a broker sees it"
    if answer.dangling:
        physical = answer.dangling[0]
        return (f"{nothing} can be read: the index points to physical offset {physical}: "
                f"{store.log.explain(physical)}")
    if answer.false_hits:
        return (f"{nothing}: the {answer.false_hits} index hits have other keys with the same hash "
                "(--raw shows them)")
    return f"{nothing} in the index; {search}"
