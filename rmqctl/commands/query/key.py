"""``rmqctl query key``: messages with a key, through the index files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.shared.message_options import MessageOptions
from rmqctl.commands.shared.messages import Faults, not_found, show_records
from rmqctl.commands.shared.options import Begin, End, Out, RequiredTopic, StoreIndex, View
from rmqctl.parse_values import parse_time_range

if TYPE_CHECKING:
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.query.lookup import KeyAnswer

NAME = ("query", "key")
EFFECT = "read-only"


def command(
    *,
    topic: RequiredTopic,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="The key.")],
    begin: Begin = None,
    end: End = None,
    most: Annotated[int, typer.Option(
        "--max", metavar="N", min=1, help="At most this many; a broker gives 64 and no more.",
    )] = 32,
    kind: Annotated[Literal["key", "unique"] | None, typer.Option(
        "--type", help="Only application keys, or only unique keys (client ids); else both.",
    )] = None,
    raw: Annotated[bool, typer.Option(
        "--raw", help="Keep messages of other keys that only share the hash.")] = False,
    view: View = "auto",
    show: MessageOptions,
    store: StoreIndex,
    out: Out,
) -> None:
    """Show the messages with a key: what a broker's queryMessage answers, in its order.

    The index knows only a hash of topic and key; messages of other keys with that hash are left
    out. The topic is the one the record has (a delayed or half message has an internal one).
    Exit code 1 when there is none.

        rmqctl query key STORE --topic orders --key order-4711 --begin -2d
    """
    from rmqctl.broker.view import view_of
    from rmqctl.store.query import lookup

    projection = show.projection(out)
    first, last = parse_time_range(begin, end, tz=show.tz)
    faults = Faults(out)
    with store.open() as opened:
        answer = lookup.by_key(
            view_of(opened, view), topic, key, begin=first or 0,
            end=lookup.FOR_EVER if last is None else last, most=most, kind=kind, raw=raw,
            report=faults.report)
        show_records(out, answer.records, projection, show.tz, faults)
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
