"""``rmqctl query id``: find a message by its offset message id or the client's unique id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.completing import complete_topics
from rmqctl.commands.shared.message_options import MessageOptions
from rmqctl.commands.shared.messages import ReadFaults, not_found
from rmqctl.commands.shared.options import Out, StoreIndex
from rmqctl.commands.shared.tracking import Track, show_found
from rmqctl.errors import UsageError

if TYPE_CHECKING:
    from rmqctl.formats.local.message import Record
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.problems import Report


def command(
    *,
    msgid: Annotated[str, typer.Argument(
        metavar="MSGID", help="Message id of either kind; several separated by commas, as a batch "
                              "send returns them.", show_default=False)],
    unique: Annotated[bool, typer.Option(
        "--unique", help="Interpret the id only as the client's id (UNIQ_KEY).")] = False,
    topic: Annotated[str | None, typer.Option(
        "--topic", "-t", metavar="TOPIC", autocompletion=complete_topics,
        help="Search for the client's id only in this topic.",
    )] = None,
    track: Track = False,
    show: MessageOptions,
    store: StoreIndex,
    out: Out,
) -> None:
    """Find a message by its message id, the broker's or the client's.

    A broker's id (offset message id, msg_id in JSON) contains the store host and physical offset. A
    client's id (UNIQ_KEY; in 4.x it looks the same) is a key that is looked up in the index for
    every known topic. If no client id matches, the message at the offset in the id is shown, with a
    warning if its store host differs. Exit code 1 if nothing is found.

        rmqctl query id STORE 0A00000100002A9F0000000020006692
        rmqctl query id STORE 0A000008126718B4AAC2CFF2AF34A3CA
    """
    from rmqctl.store.query.lookup import by_unique_key, known_topics

    # Resolve the options before the store is opened.
    projection = show.projection(out)
    wanted = [part for part in msgid.replace(" ", "").split(",") if part]
    if not wanted:
        raise UsageError("no message id given")
    faults = ReadFaults(out, show)
    records: list[Record] = []
    reasons: list[str] = []
    with store.sampled(out) as opened:
        topics: list[str] | None = None if topic is None else [topic]
        # An id is a physical offset or a key of the client; only the key needs the index.
        for message_id in wanted:
            record, foreign, reason = None, "", ""
            if not unique:
                record, foreign, reason = _by_offset(opened, message_id, faults.report)
            matches = [] if record is None else [record]
            # The offset may belong to another store, so look for the same id as a key as well.
            if record is None or foreign:
                topics = known_topics(opened) if topics is None else topics
                matches = by_unique_key(opened, message_id, topics, faults.report) or matches
                if foreign and matches == [record]:
                    out.warn(foreign)
                if not matches:
                    reasons.append(reason + _no_unique(opened, message_id, topics))
            records += matches
        # Show all messages together, then explain the ids without a message.
        show_found(out, opened, records, projection, show.tz, faults, track=track)
        if reasons:
            not_found(out, faults, *reasons)
    faults.end()


def _by_offset(store: OpenedStore, msgid: str, report: Report) -> tuple[Record | None, str, str]:
    """Return (the record at the physical offset in a message id, a warning, the reason why no
    record was found).

    The warning says that another host stored the record. An id in another form yields None and
    empty texts.
    """
    from rmqctl.formats.local.message import host_text, parse_message_id
    from rmqctl.store.query.lookup import message_at, where_is

    try:
        address, port, physical = parse_message_id(msgid)
    except ValueError:
        return None, "", ""
    if physical < 0:
        return None, "", ""
    record = message_at(store, physical, report)
    if record is None:
        where = where_is(store, physical)
        return None, "", f"{msgid} points to physical offset {physical}: {where}; "
    if record.store_host != (address, port):
        return record, (
            f"{msgid} contains the store host {host_text(address, port)}, but the message at "
            f"physical offset {physical} was stored by {host_text(*record.store_host)}: the id may "
            "be another broker's"), ""
    return record, "", ""


def _no_unique(store: OpenedStore, unique: str, topics: list[str]) -> str:
    if not store.index.listing.files:
        return (f"no message with the unique key {unique}: the store has no index files; `rmqctl "
                f"read STORE --where unique_key={unique}` searches the messages themselves")
    if not topics:
        return (f"cannot search for {unique}: a search in the index requires a topic, and the "
                "store has neither queues nor topics in config/topics.json; pass --topic")
    where = f"topic {topics[0]}" if len(topics) == 1 else f"the {len(topics)} known topics"
    return (f"no message with the unique key {unique} in {where}; `rmqctl read STORE --where "
            f"unique_key={unique}` searches all messages")
