"""``rmqctl preflight``: what a broker would do to a store when it starts on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.broker.versions import VersionName
from rmqctl.commands.shared.applying import blank_for_none
from rmqctl.commands.shared.options import Out, StoreOptions
from rmqctl.errors import ExitCode, StoreIOError, noting_refusals

if TYPE_CHECKING:
    from rmqctl.checks.preflight.types import Prediction
    from rmqctl.output import Human

NAME = ("preflight",)
EFFECT = "read-only"

_TOPICS = 5


def command(
    *,
    broker_version: Annotated[VersionName | None, typer.Option(
        "--broker-version", metavar="VERSION", help="The broker that would start: 4.9.3 or 5.3.3. "
        "Default: the one the store was made for, else by the generation that wrote it.")] = None,
    quick: Annotated[bool, typer.Option(
        "--quick", help="Read no more of the log than the broker does; messages without a row are "
        "then not looked for in older parts.")] = False,
    store: StoreOptions,
    out: Out,
) -> None:
    """Predict what a broker would do at its start: nothing is changed.

    Says whether it starts, where its recovery begins and cuts the log, which files it deletes,
    which rows and index entries it makes again, and how many intact messages that costs: those
    cut off the log, and those that stay in it but get no row in their queue. `rmqctl recover
    --strategy broker` does the same things. Exit code 1 when the broker would not start or
    anything readable would be lost.

        rmqctl preflight STORE --broker-version 5.3.3 -o json
    """
    from rmqctl.checks.preflight.preflight import preflight

    with store.open() as opened:
        total = opened.log.size
        with out.progress("reading the log", total) as progress, noting_refusals() as refused:
            made = preflight(opened, broker_version, full=not quick, progress=progress.advance)
    out.document(made.as_dict(), lambda page: _show(page, made))
    if not out.is_data:
        for text in made.notes:
            out.note(text)
    if refused:
        raise StoreIOError(f"{refused[0]}; the prediction is made without it")
    if not made.harmless:
        raise typer.Exit(int(ExitCode.FINDINGS))


def _show(page: Human, made: Prediction) -> None:
    page.text(_headline(made), "good" if made.harmless else "bad")
    for text in made.refusals:
        page.text(f"  {text}")
    if made.starts:
        page.blank()
        page.pairs(_facts(made))
    if made.actions and made.starts:
        page.blank()
        page.table([blank_for_none(one.as_dict()) for one in made.actions],
                   ("action", "target", "from", "to", "reason"))  # fmt: skip
    if made.differences:
        page.heading("Other versions")
        for text in made.differences:
            page.text(f"- {text}")


def _headline(made: Prediction) -> str:
    from rmqctl.output.units import count_text

    broker = f"a {made.broker_version} broker"
    if not made.starts:
        return f"{broker} would not start"
    costs = []
    if made.messages_lost:
        costs.append(f"cut {_many(made.messages_lost, 'intact message')} off the log")
    if made.unreachable:
        costs.append(f"leave {_many(made.unreachable, 'message')} in the log without a row in "
                     "the queue")  # fmt: skip
    if made.shadowed:
        costs.append(f"maybe not find {_many(made.shadowed, 'message')} in log files that are "
                     "there twice")  # fmt: skip
    if made.rows_lost:
        costs.append(f"destroy all consumequeues ({count_text(made.rows_lost)} rows)")
    return f"{broker} would start and {' and '.join(costs) or 'lose nothing'}"


def _many(count: int, thing: str) -> str:
    from rmqctl.output.units import count_text

    return f"{count_text(count)} {thing}{'' if count == 1 else 's'}"


def _facts(made: Prediction) -> dict[str, Any]:
    facts: dict[str, Any] = {"recovery": made.recovery}
    if made.start_file:
        facts["starts with"] = f"{made.start_file}: {made.start_reason}"
        facts["log ends at"] = f"{made.truncate_to}: {made.stop_reason}"
    if made.dispatch:
        found = made.as_dict()
        facts["dispatched again"] = (
            f"{found['dispatch_from']} to {found['dispatch_to']}: "
            f"{_many(made.rows_added, 'row')} and {made.index_entries} index entries are new"
        )
    if made.rows_cut:
        facts["rows cut off"] = made.rows_cut
    for name, counts in (("lost of", made.lost_by_topic),
                         ("without a row of", made.unreachable_by_topic)):  # fmt: skip
        for topic, count in sorted(counts.items(), key=lambda one: -one[1])[:_TOPICS]:
            facts[f"{name} {topic}"] = count
        if len(counts) > _TOPICS:
            facts[f"{name} other topics"] = len(counts) - _TOPICS
    return facts
