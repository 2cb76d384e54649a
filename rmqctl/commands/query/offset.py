"""``rmqctl query offset``: show the message at a physical offset or at a queue offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.shared.message_options import MessageOptions
from rmqctl.commands.shared.messages import ReadFaults, not_found
from rmqctl.commands.shared.options import Out, Queue, StoreQueues, Topic
from rmqctl.commands.shared.tracking import Track, show_found
from rmqctl.errors import UsageError
from rmqctl.parse_values import parse_offset

if TYPE_CHECKING:
    from rmqctl.formats.local.message import Record
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.problems import Report


def command(
    *,
    offset: Annotated[int | None, typer.Argument(
        metavar="[OFFSET]", parser=parse_offset, show_default=False,
        help="Queue offset, with --topic and --queue.")] = None,
    topic: Topic = None,
    queue: Queue = None,
    phy: Annotated[int | None, typer.Option(
        "--phy", metavar="OFFSET", parser=parse_offset, help="Physical offset in the log.")] = None,
    around: Annotated[bool, typer.Option(
        "--containing", help="With --phy: show the message whose bytes include the "
                             "offset.")] = False,
    track: Track = False,
    show: MessageOptions,
    store: StoreQueues,
    out: Out,
) -> None:
    """Show the message at a queue offset or at a physical offset.

    Exit code 1 if nothing is found; stderr says what is at the offset instead.

        rmqctl query offset STORE --topic orders --queue 0 1200
        rmqctl query offset STORE --phy 536897170
    """
    if (phy is None) == (offset is None):
        raise UsageError("pass either OFFSET (with --topic and --queue) or --phy")
    if offset is not None and (topic is None or queue is None or around):
        raise UsageError("OFFSET requires --topic and --queue; --containing requires --phy")
    if phy is not None and (topic is not None or queue is not None):
        raise UsageError("--topic and --queue cannot be combined with --phy")
    projection = show.projection(out)
    faults = ReadFaults(out, show)
    with store.sampled(out) as opened:
        if phy is not None:
            record, reason = _in_log(opened, phy, around, faults.report)
        else:
            record, reason = _in_queue(opened, topic or "", queue or 0, offset or 0, faults.report)
        show_found(out, opened, [] if record is None else [record], projection, show.tz, faults,
                   track=track)
        if record is None:
            not_found(out, faults, reason)
    faults.end()


def _in_log(store: OpenedStore, phy: int, around: bool,
            report: Report) -> tuple[Record | None, str]:
    """Return the record at a physical offset, or the reason why no record was found."""
    from rmqctl.store.query.lookup import containing, message_at, where_is

    record = containing(store, phy) if around else message_at(store, phy, report)
    return record, "" if record else (
        f"no message at physical offset {phy}: {where_is(store, phy)}")


def _in_queue(store: OpenedStore, topic: str, queue: int, offset: int,
              report: Report) -> tuple[Record | None, str]:
    """Return the record at a queue offset, or the reason why no record was found.

    Each message of a batch has its own queue offset.
    """
    from rmqctl.broker.get_message import offset_note
    from rmqctl.broker.view import view_of
    from rmqctl.store.explain import missing_queue
    from rmqctl.store.query.select import Selection, Selector

    view = view_of(store, "disk")
    wanted = Selection(topic, queue, from_offset=offset, count=1)
    record = next(Selector(store, wanted, view, report).records(), None)
    if record is not None and record.queue_offset <= offset:
        return record, ""
    return None, (missing_queue(store, topic, queue) or
                  f"no message at offset {offset} of {topic}/{queue}: "
                  f"{offset_note(view, topic, queue, offset) or 'nothing readable at that offset'}")
