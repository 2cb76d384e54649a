"""``rmqctl impact``: show how damage to a store and a broker's startup affect consumer groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.consumers import show_losses, show_queues
from rmqctl.commands.shared.engine_options import EngineOptions
from rmqctl.commands.shared.options import ListedOut, StoreOptions
from rmqctl.commands.shared.verifying import losses_of_tier
from rmqctl.errors import ExitCode, RefusedError, StoreIOError, noting_refusals
from rmqctl.phrases import Phrase, some_of

if TYPE_CHECKING:
    from rmqctl.checks.consumers import Consumers
    from rmqctl.checks.preflight.types import Prediction
    from rmqctl.output import Output

_NUMBERS = ("messages_lost", "messages_undecided", "messages_replaced", "messages_already_lost",
            "lost_in_repairs")


def command(
    *,
    group: Annotated[str | None, typer.Option(
        "--group", "-g", metavar="GROUP", autocompletion=complete_groups,
        help="Only this consumer group, with all its queues.")] = None,
    engine: Annotated[EngineOptions, pick("version")],
    quick: Annotated[bool, typer.Option(
        "--quick", help="Read only the part of the log that a broker reads at startup; damage in "
                        "older parts is not counted.")] = False,
    store: StoreOptions,
    out: ListedOut,
) -> None:
    """Show how damage and a restart affect each consumer group and queue.

    Per queue: the consumer offset and how far it is beyond the queue's end after a startup, lost
    messages before and after the offset, unread messages at risk from a startup, and redeliveries.
    Unaffected queues appear only with -o json. The group (delay) is the delay service. Exit code 1
    if a group is affected, if lost messages cannot be assigned to a queue, or if a broker would not
    start. See also `rmqctl preflight`.

        rmqctl impact STORE
        rmqctl impact STORE --group billing -o json
    """
    from rmqctl.checks.consumers import Consumers
    from rmqctl.checks.preflight.around import IGNORE, around
    from rmqctl.checks.preflight.preflight import preflight

    # Groups can be judged only if consume queues and consumer offsets are readable.
    with store.open() as opened:
        for structure in ("consumequeue", "config"):
            opened.layout.require(store.root, structure)
        with out.progress("reading the log", opened.log.size) as progress, \
                noting_refusals() as refused:
            predicted = preflight(opened, engine.version, full=not quick, progress=progress.advance,
                                  machine=around(opened, IGNORE))
        if not quick:
            predicted.in_tier = losses_of_tier(out, opened)
    # Without groups in the prediction, the broker opens another log or does not find one.
    consumers = predicted.consumers.groups
    if consumers is None and predicted.misled:  # the broker opens another log, without messages
        consumers = Consumers((), complete=False, positions_known=False,
                              notes=tuple(setting.detail for setting in predicted.misled))
    if consumers is None:
        raise RefusedError(f"{store.root}: no commitlog files found. Is the log in other folders "
                           "(--commitlog-dir), or not mounted?")
    consumers = replace(consumers, notes=tuple(dict.fromkeys((*consumers.notes, *predicted.notes))))
    if group is not None:
        consumers = consumers.of(group)
    # Show the result before any error, so that a partial answer is not lost.
    unknown = group is not None and not (consumers.queues or consumers.without_position)
    if out.is_data or not unknown:
        _show(out, consumers, predicted, all_queues=group is not None)
    if refused:
        raise StoreIOError(f"{refused[0]}; the figures were computed without it")
    if unknown:
        out.warn(Phrase("unknown group: {group}", group=group))
    if (unknown or consumers.groups_affected or not (consumers.positions_known and predicted.starts)
            or (consumers.queues and not consumers.complete) or predicted.beside_messages):
        raise typer.Exit(int(ExitCode.FINDINGS))


def _show(out: Output, consumers: Consumers, predicted: Prediction, *, all_queues: bool) -> None:
    """Print all queues in formats for programs, or a page with the affected (or all) queues."""
    from rmqctl.checks.consumers import COLUMNS
    from rmqctl.checks.losses import GROUPS, MESSAGES
    from rmqctl.checks.repaired import all_in_words

    # If the configuration leads the broker elsewhere, this matters more than any group.
    is_misled = predicted.consumers.groups is None
    first = predicted.misled[0].detail if is_misled else consumers.in_words()
    if not is_misled and any(loss.what == GROUPS for loss in predicted.beside_messages):
        first = Phrase("{what}, but group settings are affected (see below)", what=first)
    style = "bad" if is_misled or consumers.groups_affected else "good"
    # Programs get all queues; people get the affected ones.
    if out.is_value:
        fields = predicted.as_dict()
        out.document(consumers.as_dict() | {name: fields[name] for name in (*_NUMBERS, "losses")})
    elif out.is_data:
        out.rows((queue._asdict() for queue in consumers.queues), COLUMNS)
    else:
        page = out.human()
        page.text(first, style)
        show_queues(page, list(consumers.queues) if all_queues else consumers.affected)
        beside = predicted.beside_messages
        show_losses(page, [loss for loss in predicted.losses
                           if loss.what != MESSAGES or loss in beside])
        if consumers.without_position:
            page.text(Phrase(
                "no consumer offset in this store: {names} (broadcast consumers keep their own)",
                names=some_of(consumers.without_position, 5)))
    # State what limits the figures: notes, earlier repairs, uncounted losses, a refused start.
    if not out.is_value:
        for text in consumers.notes:
            out.note(text)
    repaired = all_in_words(predicted.repairs)
    if repaired is not None and not out.is_value:
        out.note(repaired)
    if not consumers.complete:
        out.warn(Phrase("these figures do not include all lost messages"))
    if not predicted.starts:
        out.warn(Phrase("a {version} broker would not start on this store (see `rmqctl "
                        "preflight`): messages at risk are counted as if nothing were truncated",
                        version=predicted.broker_version))
    # A long page ends with the verdict that it began with.
    if (all_queues or consumers.affected or consumers.notes or consumers.without_position
            or predicted.beside_messages or repaired is not None or not consumers.complete):
        out.conclude(first, style)
