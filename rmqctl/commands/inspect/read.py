"""``rmqctl read``: print messages from a topic's queues, or the whole log in order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.shared.message_options import MessageOptions, SelectOptions
from rmqctl.commands.shared.messages import ReadFaults, rows_of, show_rows
from rmqctl.commands.shared.options import Out, StoreQueues
from rmqctl.commands.shared.store_warnings import tell_left_over, warn_of_missing
from rmqctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.store.log.bounds import View
    from rmqctl.store.query.select import Selection


def command(
    *,
    select: SelectOptions,
    group: Annotated[str | None, typer.Option(
        "--group", "-g", metavar="GROUP", autocompletion=complete_groups,
        help="Consumer group of --unconsumed.")] = None,
    unconsumed: Annotated[bool, typer.Option(
        "--unconsumed", help="Only messages after the offsets of --group in each queue, including "
                             "the group's retry topic.")] = False,
    view: Annotated[Literal["auto", "disk", "broker"], typer.Option(
        "--view", help="disk: everything intact. broker: what a broker serves. auto: disk, but "
                       "compaction topics as served.")] = "auto",
    last: Annotated[int | None, typer.Option(
        "--last", metavar="N", min=0, help="Print the last N messages in log order, like `rmqctl "
                                           "tail`.",
        show_default=False)] = None,
    follow: Annotated[bool, typer.Option(
        "--follow", help="Then print new messages as they are appended, until "
                         "interrupted.")] = False,
    show: MessageOptions,
    store: StoreQueues,
    out: Out,
) -> None:
    """Print messages of a topic through its consume queues, or the whole log in physical order.

    With --topic, the consume queues decide what is printed; --where topic=T reads the log instead
    and also finds messages without an entry (rollbacks, returned half messages). Compaction topics
    are read from the compaction log, as a broker serves them, unless --view disk is given. --group
    with --unconsumed reads the group's queues and its retry topic from its offsets on. Damage is
    reported on stderr and skipped, with exit code 1.

        rmqctl read STORE --topic orders --queue 0 --offset 1200 --limit 10
        rmqctl read STORE --since -2h --where 'property.user~^4' -o jsonl
        rmqctl read STORE --group billing --unconsumed
        rmqctl read STORE --last 20 --follow
    """
    from rmqctl.broker.view import view_of
    from rmqctl.store.query.select import Selector

    if last is not None or follow:
        others = (select.from_offset, select.count, select.from_phy, select.to_phy, select.since,
                  select.until, group)
        if unconsumed or view != "auto" or any(value is not None for value in others):
            raise UsageError("--last and --follow can only be combined with --topic, --queue, "
                             "--tag, --key and --where")
        from rmqctl.commands.inspect import tail

        tail.command(lines=10 if last is None else last, follow=follow, select=select, show=show,
                     store=store, out=out)
        return
    topic, queue, from_offset = select.topic, select.queue, select.from_offset
    if unconsumed != (group is not None):
        raise UsageError("--group and --unconsumed must be used together")
    if group is not None and from_offset is not None:
        raise UsageError("--unconsumed starts at the group's offsets and cannot be combined with "
                         "--offset")
    if topic is None and (queue is not None or from_offset is not None):
        raise UsageError("--queue and --offset require --topic")
    if from_offset is not None and queue is None:
        raise UsageError("--offset requires --queue")
    # Determine what to read and which fields to show.
    projection = show.projection(out)
    wanted = select.selection(show.tz, show.decoding)
    faults = ReadFaults(out, show)
    with store.open() as opened:
        bounds = view_of(opened, "disk" if view == "auto" else view)
        bounds.compacted |= view == "auto"
        tell_left_over(out, opened)
        # Find where the group continues.
        if group is not None:
            opened.layout.require(store.root, "consumequeue")
            wanted = _unconsumed(out, bounds, wanted, group, faults)
        # Note what a broker would answer for this offset.
        if topic is not None and queue is not None and from_offset is not None:
            from rmqctl.broker.get_message import offset_note

            note = offset_note(bounds, topic, queue, from_offset)
            if note is not None:
                out.note(f"{topic}/{queue}: {note}")
        # Print the messages.
        size = opened.log.size
        with out.progress("reading the log", size) as progress:
            selector = Selector(opened, wanted, bounds, faults.report, progress.advance)
            rows = rows_of(out, faults.judged(selector.pages()), projection)
            empty = "" if topic and not group else "no messages"
            shown = show_rows(out, rows, projection, show.tz, empty=empty)
        # Explain an empty or incomplete result.
        if topic is not None and group is None:
            from rmqctl.store.explain import is_unknown, missing_queue, without_consumequeue

            note = without_consumequeue(opened, topic) if queue is None else None
            if note is not None:
                out.note(note)
            if not shown:
                out.note(missing_queue(opened, topic, queue) or "no messages")
                faults.has_findings |= is_unknown(opened, topic)
        elif wanted.count is None and group is None and not faults.has_findings:
            warn_of_missing(out, opened)
    faults.end()


def _unconsumed(out: Output, view: View, wanted: Selection, group: str,
                faults: ReadFaults) -> Selection:
    """Return a selection of the messages that a group has not consumed. Report problems.

    The selection has the group's queues, each starting at the group's offset.
    """
    from rmqctl.store.groups.unread import StoredOffsets, unread

    groups = StoredOffsets.of(view.store)
    for note in groups.notes:
        out.warn(note)
    problem = groups.nothing(group)
    if problem is not None:
        out.warn(problem)
        raise typer.Exit(int(ExitCode.FINDINGS))
    unread_messages = unread(view, groups, group, faults.report, wanted.topic, wanted.queue_id)
    for note in unread_messages.notes:
        out.note(note)
    faults.has_findings |= not unread_messages.starts
    return replace(wanted, topic=None, queue_id=None, starts=unread_messages.starts)
