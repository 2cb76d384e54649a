"""``rmqctl preflight``: what a broker would do to a store when it starts on it."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.app import typed
from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.consumers import show_section
from rmqctl.commands.shared.engine_options import EngineOptions
from rmqctl.commands.shared.options import Out, StoreOptions, Zone
from rmqctl.errors import ExitCode, StoreIOError, noting_refusals
from rmqctl.output.units import count_text, counted, time_text
from rmqctl.parse_values import show_times_in

if TYPE_CHECKING:
    from rmqctl.checks.preflight.types import Prediction
    from rmqctl.output import Human

_TOPICS = 5
_NAMED = 3


def command(
    *,
    engine: Annotated[EngineOptions, pick("version")],
    quick: Annotated[bool, typer.Option(
        "--quick", help="Read no more of the log than the broker does; messages without a row are "
        "then not looked for in older parts, nor is damage.")] = False,
    start_only: Annotated[bool, typer.Option(
        "--start-only", help="Let the exit code judge this start alone: what is lost already is "
        "shown, and is 1 only where the start would cut off the rows that tell of it.")] = False,
    store: StoreOptions,
    tz: Zone = UTC,
    out: Out,
) -> None:
    """Predict what a broker would do at its start: nothing is changed.

    Says whether it starts, where its recovery begins and cuts the log, which files it deletes,
    which rows and index entries it makes again, and how many intact messages that costs: those
    cut off the log, and those that stay in it but get no row in their queue. Also what is lost
    already, though consumequeues, index or group offsets know it, and which groups would stand
    beyond the end of their queue. `rmqctl recover --strategy broker` does the same things. Exit
    code 1 when the broker would not start, or anything readable would be or is lost; 3 where the
    consumequeues are in a form that is not read (RocksDB): then the log is judged, not they; also
    where only the configuration is, and nothing else is wrong.

        rmqctl preflight STORE --broker-version 5.3.3 -o json
    """
    from rmqctl.checks.preflight.preflight import preflight

    show_times_in(tz)
    with store.open() as opened:
        total = opened.log.size
        with out.progress("reading the log", total) as progress, noting_refusals() as refused:
            predicted = preflight(opened, engine.version, full=not quick, progress=progress.advance)
    following = _next(predicted, store.root)
    out.document({**predicted.as_dict(), "next": following},
                 lambda page: _show(page, predicted, following))
    if not out.is_data:
        for text in predicted.notes:
            out.note(text)
    if refused:
        raise StoreIOError(f"{refused[0]}; the prediction is made without it")
    harmless = predicted.start_is_harmless if start_only else predicted.harmless
    if harmless or set(predicted.not_judged) != {"config"}:  # what queues tell is no less true
        predicted.require_judged(store.root)
    if not harmless:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _next(prediction: Prediction, root: str) -> str | None:
    """The one command to go on with, which only looks or shows a plan; None where nothing is to be
    done.
    """
    if prediction.not_judged:  # `recover` plans nothing for such a store
        return typed.other("verify", root)
    if prediction.harmless:
        return None
    ahead = prediction.offsets_beyond_end
    if ahead and ahead[0].group and prediction.start_is_harmless and not (
            prediction.messages_already_lost or prediction.undecodable):
        # Nothing but groups beyond an end, which `recover` leaves as they are.
        return typed.other("offsets", "reset", root, "--group", ahead[0].group, "--to", "latest")
    return typed.other("recover", root)


def _show(page: Human, prediction: Prediction, following: str | None) -> None:
    page.text(_headline(prediction), "warn" if prediction.not_judged else
              "good" if prediction.harmless else "bad")
    if prediction.not_judged:
        page.text(f"not judged: {', '.join(prediction.not_judged)}", "warn")
    if prediction.impact is not None:
        page.text(prediction.impact.in_words())
    for text in prediction.refusals:
        page.text(f"  {text}")
    if prediction.starts:
        page.blank()
        page.pairs(_facts(prediction))
    if prediction.actions and prediction.starts:
        page.blank()
        page.table([action.in_words() for action in prediction.actions],
                   ("action", "target", "from", "to", "reason"))
    show_section(page, prediction.consumers, prediction.notes)
    if prediction.differences:
        page.heading("Other versions")
        for text in prediction.differences:
            page.text(f"- {text}")
    if following is not None:
        page.heading("What next")
        page.text(following)


def _headline(prediction: Prediction) -> str:
    broker = f"a {prediction.broker_version} broker"
    if prediction.not_judged:
        broker = f"as far as can be judged, {broker}"
    gone = ""
    if prediction.messages_already_lost:
        count = prediction.messages_already_lost
        gone = (f"{counted(count, 'message')} {'is' if count == 1 else 'are'} lost already"
                f"{_of_topics(prediction.already_lost_by_topic)}; ")
    if not prediction.starts:
        return f"{gone}{broker} would not start"
    costs = []
    if prediction.messages_lost:
        costs.append(f"cut {counted(prediction.messages_lost, 'intact message')} off the log")
    if prediction.unreachable:
        costs.append(f"leave {counted(prediction.unreachable, 'message')} in the log without a row "
                     "in the queue")
    if prediction.shadowed:
        costs.append(f"maybe not find {counted(prediction.shadowed, 'message')} in log files that "
                     "are there twice")
    if prediction.undecodable:
        costs.append(f"serve {counted(prediction.undecodable, 'message')} at which clients give up")
    if prediction.rows_lost:
        costs.append(f"destroy all consumequeues ({count_text(prediction.rows_lost)} rows)")
    groups = {offset.group for offset in prediction.offsets_beyond_end}
    beyond = f"; {counted(len(groups), 'group')} would stand beyond the end" if groups else ""
    costless = "lose nothing more" if gone else (
        prediction.costless if not prediction.not_judged else "cut no message off the log"
        if prediction.truncate_to is not None else "maybe cut messages off the log")
    return f"{gone}{broker} would start and {' and '.join(costs) or costless}{beyond}"


def _of_topics(counts: dict[str, int]) -> str:
    """The topics with the most of them, for a headline."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{topic} {count}" for topic, count in ordered[:_NAMED]]
    if len(ordered) > _NAMED:
        shown.append(f"{len(ordered) - _NAMED} more topics")
    return f" ({', '.join(shown)})" if shown else ""


def _facts(prediction: Prediction) -> dict[str, Any]:
    facts: dict[str, Any] = {"recovery": prediction.recovery}
    if prediction.start_file:
        facts["starts with"] = f"{prediction.start_file}: {prediction.start_reason}"
    if prediction.truncate_to is not None and prediction.stop_reason:
        facts["log ends at"] = f"{prediction.truncate_to}: {prediction.stop_reason}"
    if prediction.dispatch:
        values = prediction.as_dict()
        facts["dispatched again"] = (
            f"{values['dispatch_from']} to {values['dispatch_to']}: "
            f"{counted(prediction.rows_added, 'row')} and {prediction.index_entries} index entries "
            "are new"
        )
    if prediction.rows_cut:
        facts["rows cut off"] = prediction.rows_cut
    if prediction.messages_already_lost:
        facts["lost already"] = prediction.messages_already_lost
        times = (prediction.already_lost_from, prediction.already_lost_to)
        for name, time in zip(("stored from", "stored to"), times, strict=True):
            if time is not None:
                facts[name] = time_text(time)
    for name, counts in (("already lost of", prediction.already_lost_by_topic),
                         ("lost of", prediction.lost_by_topic),
                         ("without a row of", prediction.unreachable_by_topic)):
        for topic, count in sorted(counts.items(), key=lambda item: -item[1])[:_TOPICS]:
            facts[f"{name} {topic}"] = count
        if len(counts) > _TOPICS:
            facts[f"{name} other topics"] = len(counts) - _TOPICS
    return facts
