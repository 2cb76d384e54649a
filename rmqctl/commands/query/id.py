"""``rmqctl query id``: the message with an offset message id, or with a client's unique id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.shared.message_options import MessageOptions
from rmqctl.commands.shared.messages import Faults, not_found
from rmqctl.commands.shared.options import Out, StoreIndex
from rmqctl.commands.shared.tracking import Track, show_found
from rmqctl.errors import UsageError

if TYPE_CHECKING:
    from rmqctl.formats.local.message import Record
    from rmqctl.output import Output
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.problems import Report


def command(
    *,
    msgid: Annotated[str, typer.Argument(
        metavar="MSGID", help="A message id of 32 or 56 hex digits; several joined by commas, as "
        "a batch send returns them.", show_default=False)],
    unique: Annotated[bool, typer.Option(
        "--unique", help="MSGID is the id the client made (UNIQ_KEY): found through the index.",
    )] = False,
    topic: Annotated[str | None, typer.Option(
        "--topic", "-t", metavar="TOPIC", help="With --unique: look in this topic only.")] = None,
    track: Track = False,
    show: MessageOptions,
    store: StoreIndex,
    out: Out,
) -> None:
    """Show the message with a message id.

    The id a broker returns (offset message id, msg_id of the message object) names the store
    host and the physical offset. The id a client makes looks the same but is only a key: with
    --unique it is looked up in the index under every topic known. Exit code 1 when there is none.

        rmqctl query id STORE 0A00000100002A9F0000000020006692

        rmqctl query id STORE 0A000008126718B4AAC2CFF2AF34A3CA --unique
    """
    from rmqctl.store.query.lookup import by_unique_key, known_topics

    projection = show.projection(out)
    wanted = [part for part in msgid.replace(" ", "").split(",") if part]
    if not wanted:
        raise UsageError("no message id given")
    if topic is not None and not unique:
        raise UsageError("--topic goes with --unique: an offset message id names the place itself")
    faults = Faults(out, show)
    records: list[Record] = []
    reasons: list[str] = []
    with store.open() as opened:
        topics = [topic] if topic is not None else known_topics(opened) if unique else []
        for message_id in wanted:
            if unique:
                records_of_id = by_unique_key(opened, message_id, topics, faults.report)
                if not records_of_id:
                    reasons.append(_no_unique(opened, message_id, topics))
                records += records_of_id
            else:
                record, reason = _by_offset(out, opened, message_id, faults.report)
                records += [record] if record is not None else []
                reasons += [reason] if record is None else []
        show_found(out, opened, records, projection, show.tz, faults, track=track)
        if reasons:
            not_found(out, faults, *reasons)
    faults.end()


def _by_offset(out: Output, store: OpenedStore, msgid: str,
               report: Report) -> tuple[Record | None, str]:
    """The record an id leads to, or why there is none. UsageError if it is no such id."""
    from rmqctl.formats.local.message import host_text, parse_message_id
    from rmqctl.store.query.lookup import message_at, where_is

    try:
        address, port, physical = parse_message_id(msgid)
    except ValueError:
        raise UsageError(f"{msgid!r} is no message id: it has 32 or 56 hexadecimal digits; an id "
                         "of another form may be a client's (--unique)") from None
    record = message_at(store, physical, report)
    if record is None:
        where = where_is(store, physical) if physical >= 0 else "not a place in a log"
        return None, (f"{msgid} leads to physical offset {physical}: {where}. If the client made "
                      "this id, use --unique")
    if record.store_host != (address, port):
        out.warn(f"{msgid} names the store host {host_text(address, port)}, but the message at "
                 f"physical offset {physical} was stored by {host_text(*record.store_host)}: it "
                 "may be another broker's id")
    return record, ""


def _no_unique(store: OpenedStore, unique: str, topics: list[str]) -> str:
    if not store.index_listing.files:
        return (f"no message with the unique key {unique}: the store has no index files; "
                f"`rmqctl read STORE --where unique_key={unique}` looks at the messages themselves")
    if not topics:
        return (f"cannot look for {unique}: the index needs a topic, and neither queues nor "
                "config/topics.json name any; give --topic")
    where = f"topic {topics[0]}" if len(topics) == 1 else f"the {len(topics)} topics known"
    return (f"no message with the unique key {unique} in {where}; "
            f"`rmqctl read STORE --where unique_key={unique}` looks at every message")
