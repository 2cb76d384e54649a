"""``rmqctl preflight``: predict what a broker would do to a store at startup."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.advising import complete, look
from rmqctl.commands.shared.consumers import show_losses, show_section
from rmqctl.commands.shared.disk_used import DiskUsed
from rmqctl.commands.shared.engine_options import EngineOptions
from rmqctl.commands.shared.options import ListedOut, StartedStore, Zone
from rmqctl.commands.shared.summed import show_actions
from rmqctl.commands.shared.verifying import losses_of_tier
from rmqctl.errors import ExitCode, StoreIOError, noting_refusals
from rmqctl.output.units import time_text
from rmqctl.parse_values import show_times_in
from rmqctl.phrases import Joined, Phrase, counted

if TYPE_CHECKING:
    from rmqctl.checks.preflight.types import Prediction
    from rmqctl.output import Human

_MAX_TOPICS = 5


def command(
    *,
    engine: Annotated[EngineOptions, pick("version")],
    quick: Annotated[bool, typer.Option(
        "--quick", help="Read only what the broker reads; damage and messages without an entry in "
                        "older parts are not found.")] = False,
    start_only: Annotated[bool, typer.Option(
        "--start-only", help="Exit code for this startup only; earlier losses count only if it "
                             "truncates the entries that prove them.")] = False,
    disk_used: DiskUsed = None,
    store: StartedStore,
    tz: Zone = UTC,
    out: ListedOut,
) -> None:
    """Predict what a broker would do at startup, without changing anything.

    Shows whether the broker starts, where its recovery truncates the log, which files it deletes,
    what it dispatches again, which intact messages it loses, what is already lost, and which groups
    are beyond the end of a queue. `rmqctl recover --strategy broker` does the same to the store.
    Exit code 1 if the broker would not start, or if messages are or would be lost; 3 if consume
    queues or the configuration are in an unsupported format.

        rmqctl preflight STORE --broker-version 5.3.3 -o json
    """
    from rmqctl.checks.advice import with_next
    from rmqctl.checks.preflight.around import around
    from rmqctl.checks.preflight.preflight import preflight

    show_times_in(tz)
    with store.open() as opened:
        total = opened.log.size if opened.layout.reads("commitlog") else 0
        with out.progress("reading the log", total) as progress, noting_refusals() as refused:
            predicted = preflight(opened, engine.version, full=not quick, progress=progress.advance,
                                  machine=around(opened, disk_used))
        if not quick:
            predicted.in_tier = losses_of_tier(out, opened)
    # The next command follows from the prediction, so one document contains both.
    document = with_next(predicted, store.root)
    complete(document)
    out.document(document, lambda page: _show(
        page, predicted, store.root, next(iter(document["next"]), None)))
    if not out.is_data:
        for text in predicted.notes:
            out.note(text)
    out.conclude(*_first_line(predicted))
    # An unreadable file makes the prediction unreliable: fail, but only after showing it.
    if refused:
        raise StoreIOError(f"{refused[0]}; the prediction was made without it")
    harmless = predicted.start_is_harmless if start_only else predicted.harmless
    # Without the configuration, the facts about queues and a refused start remain true.
    if harmless or not (predicted.broker.unopened or set(predicted.not_judged) == {"config"}):
        predicted.require_judged(store.root)
    if not harmless:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _show(page: Human, prediction: Prediction, root: str, following: str | None) -> None:
    # Begin with the verdict and everything that limits it.
    page.text(*_first_line(prediction))
    if prediction.not_judged:
        page.text(Phrase("not checked: {name}", name=Joined(", ", prediction.not_judged)), "warn")
    if prediction.impact is not None:
        page.text(prediction.impact.in_words())
    for text in (*prediction.broker.refusals, *(
            setting.detail for setting in prediction.broker.configuration
            if setting.effect != "refuses")):
        page.text(Phrase("  {text}", text=text))
    show_losses(page, prediction.beside_messages)
    # Without a start there are no facts or actions to show.
    if prediction.starts:
        page.blank()
        page.pairs(_facts(prediction))
    if prediction.actions and prediction.starts:
        page.blank()
        show_actions(page, prediction.actions, ("action", "target", "from", "to", "reason"),
                     len(prediction.actions))
    show_section(page, prediction.consumers.groups, prediction.notes)
    # Consequences that appear only later, or only in some cases or versions.
    if prediction.broker.second_start is not None:
        page.text(prediction.broker.second_start.sentence, "bad")
    for text in prediction.undecided:
        page.text(text, "warn")
    if prediction.broker.differences:
        page.heading("Other versions")
        for text in prediction.broker.differences:
            page.text(Phrase("- {text}", text=text))
    # Show only assumed settings that differ from the defaults.
    assumed = [f"{name}={str(value).lower() if value is True else value}"
               for name, value in prediction.broker.assumed.items()
               if value not in (False, "default") and (
                   prediction.broker.conf_path or name != "storePathRootDir")
               and (name != "storePathCommitLog" or _is_elsewhere(prediction))]
    if assumed:
        page.blank()
        page.text(Phrase("assumed: {settings}", settings=Joined(", ", assumed)), "dim")
    for loss in prediction.other_losses:
        if loss.by_hand is not None and not loss.already:
            page.text(Phrase("{what}: {why}", what=loss.cause, why=loss.by_hand))
    if following is not None:
        page.heading("What next")
        page.text(look(root))
        page.text(following)


def _first_line(prediction: Prediction) -> tuple[Phrase, str]:
    """Return (the verdict in one line, the style of this line)."""
    from rmqctl.checks.preflight.in_words import in_words

    return in_words(prediction), ("warn" if prediction.not_judged else
                                   "good" if prediction.harmless else "bad")


def _is_elsewhere(prediction: Prediction) -> bool:
    """Return whether the log is outside the default folder. If it is, broker.conf must name its
    folder.
    """
    assumed = prediction.broker.assumed
    if prediction.broker.conf_path or assumed.get("enableDLegerCommitLog"):
        return False
    folder = os.path.join(assumed.get("storePathRootDir", ""), "commitlog")
    return assumed.get("storePathCommitLog") not in (None, folder)


def _facts(prediction: Prediction) -> dict[str, Any]:
    from rmqctl.checks.repaired import all_in_words

    # Describe the run of the recovery: where it begins, ends, and what it dispatches.
    facts: dict[str, Any] = {"recovery": Phrase("abnormal")
                             if prediction.broker.recovery == "abnormal" else Phrase("normal")}
    repaired = all_in_words(prediction.repairs)
    if repaired is not None:
        facts["since repairs"] = repaired
    facts |= prediction.metadata.facts
    if prediction.log.start_file:
        facts["starts with"] = Phrase("{what}: {why}", what=prediction.log.start_file,
                                      why=prediction.log.start_reason)
    if prediction.log.truncate_to is not None and prediction.log.stop_reason:
        facts["log ends at"] = Phrase("{what}: {why}", what=prediction.log.truncate_to,
                                      why=prediction.log.stop_reason)
    if prediction.log.dispatch:
        values = prediction.as_dict()
        facts["dispatched again"] = Phrase(
            "{first} to {end}: {rows} and {entries:,} index entries are new",
            first=values["dispatch_from"], end=values["dispatch_to"],
            rows=counted(prediction.queues.added, "entry", "entries"),
            entries=prediction.index.entries)
    if prediction.queues.cut:
        facts["entries truncated"] = prediction.queues.cut
    # Show what is already lost, or why this is unknown.
    account = prediction.account
    if account.replaced_in_words is not None:
        facts["replaced"] = account.replaced_in_words
    if account.unread:
        facts["already lost"] = account.unjudged
    elif account.already:
        facts["already lost"] = account.already
        times = (prediction.log.gone.earliest, prediction.log.gone.latest)
        for name, time in zip(("stored from", "stored to"), times, strict=True):
            if time is not None:
                facts[name] = time_text(time)
    # Split each kind of loss by topic, the most affected topics first.
    by_topic: list[tuple[Mapping[str, int], Callable[[str], Phrase]]] = [
        (account.already_by_topic,
         lambda topic: Phrase("already lost in {topic}", topic=topic)),
        (account.cut_by_topic, lambda topic: Phrase("lost in {topic}", topic=topic)),
        (account.without_entry_by_topic,
         lambda topic: Phrase("without an entry in {topic}", topic=topic))]
    for counts, label in by_topic:
        for topic, count in sorted(counts.items(), key=lambda item: -item[1])[:_MAX_TOPICS]:
            facts[label(topic)] = count
        if len(counts) > _MAX_TOPICS:
            facts[label(Phrase("other topics"))] = len(counts) - _MAX_TOPICS
    return facts
