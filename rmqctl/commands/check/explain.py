"""``rmqctl explain``: the meaning of a finding or an action, and what to do about it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.completing import complete_findings
from rmqctl.commands.shared.options import SpokenOut
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.checks.explanations import Explanation
    from rmqctl.output import Human


def command(
    *,
    name: Annotated[str | None, typer.Argument(
        metavar="[NAME]", show_default=False, autocompletion=complete_findings,
        help="A finding of verify (body-crc) or an action of a plan (fill). Default: list all "
             "names.")] = None,
    out: SpokenOut,
) -> None:
    """Explain a finding or an action, its cause, what brokers do, and what to do about it.

    Accepts the names that `rmqctl verify`, `doctor`, `preflight` and `recover` print.

        rmqctl explain body-crc
        rmqctl explain "move aside"
    """
    from rmqctl.checks.explanations import explain, explanations
    from rmqctl.output.language import language

    caption = language(out.lang).caption
    if name is None:
        out.rows(({"name": one.name, "kind": one.kind, "severity": one.severity,
                   "meaning": caption(one.meaning) or one.cause}
                  for one in explanations(out.lang).values()),
                 ("name", "kind", "severity", "meaning"),
                 styles={"severity": {"error": "bad", "warning": "warn"}.get})
        return
    found = explain(name, out.lang)
    found = replace(found, meaning=caption(found.meaning))
    out.document(found.as_dict(), lambda page: _show(page, found))


def _show(page: Human, found: Explanation) -> None:
    page.text(Phrase("{name} ({severity}): {meaning}", name=found.name, severity=found.severity,
                     meaning=found.meaning) if found.meaning else
              Phrase("{name}: an action of a plan", name=found.name), "bold")
    page.heading("Cause" if found.meaning else "What it does")
    page.text(found.cause)
    if found.brokers:
        page.heading("What brokers do")
        page.text(found.brokers)
    if found.advice:
        page.heading("What to do")
        page.text(found.advice)
